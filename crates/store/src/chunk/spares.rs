//! Contexts of a library that are dear to make, kept for whoever needs one next.
//!
//! There are as many as were ever in use at once, which is about one for each CPU. One for each thread would be several times that: threads that
//! wait for disks come and go (`platform::real::aside`), and those that each of them had were 4 MB of a budget of 64 MiB (measured).

use std::ops::{Deref, DerefMut};

use parking_lot::Mutex;

/// Those that nobody uses.
pub(super) struct Spares<T: 'static>(Mutex<Vec<T>>);

/// One in use; it comes back when this is dropped. After a panic it does not: nobody knows what state it is in.
pub(super) struct Lent<T: 'static> {
    of: &'static Spares<T>,
    one: Option<T>,
}

impl<T> Spares<T> {
    pub(super) const fn new() -> Spares<T> {
        Spares(Mutex::new(Vec::new()))
    }

    /// The last given back of those that suit, else a new one.
    pub(super) fn lend<E>(
        &'static self,
        suits: impl Fn(&T) -> bool,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Lent<T>, E> {
        let mut idle = self.0.lock();
        let spare = idle.iter().rposition(suits).map(|place| idle.remove(place));
        drop(idle);
        let one = spare.map_or_else(make, Ok)?;
        Ok(Lent { of: self, one: Some(one) })
    }
}

impl<T> Deref for Lent<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.one.as_ref().expect("there until it is dropped")
    }
}

impl<T> DerefMut for Lent<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.one.as_mut().expect("there until it is dropped")
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.of.0.lock().extend(self.one.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::Spares;

    static NUMBERS: Spares<u32> = Spares::new();

    #[test]
    fn there_are_as_many_as_were_in_use_at_once_and_a_panic_loses_its_own() {
        let lend =
            |number: u32| NUMBERS.lend(|one| *one % 10 == number % 10, || Ok::<_, Infallible>(number)).expect("makes");
        let (first, second) = (lend(1), lend(11));
        assert_eq!((*first, *second), (1, 11), "two at once are two");
        drop(first);
        assert_eq!(*lend(2), 2, "one that does not suit is left alone");
        assert_eq!(*lend(21), 1, "one that came back serves again");
        drop(second);
        assert_eq!(*lend(31), 11, "the last that came back first: its memory is warm");
        let broken = catch_unwind(AssertUnwindSafe(|| {
            let _lent = lend(41);
            panic!("in use");
        }));
        assert!(broken.is_err());
        assert_eq!(*lend(51), 1, "what a panic had in use is gone");
    }
}
