//! Who gets a CPU first where there are not enough: work in masses gives way.
//!
//! Who asks for a page waits for that page; who copies a hundred thousand files waits for the last of them. On CPUs that are all busy the
//! scheduler treats both alike, and a thread that has just had its share waits for those that have not, for milliseconds. Measured, and
//! what else was tried: docs/decisions/0013-rank.md.
//!
//! A thread that gave way stays so, for to take up again is a right that not everybody has: so there are others for what it has computed
//! or waits for.
//!
//! Not here: which work that is (`node` for requests, `file` and `store` for tasks).

#![expect(unsafe_code, reason = "sched_getattr(2) and sched_setattr(2) have no safe wrapper")]

use std::cell::Cell;
use std::sync::OnceLock;

use rayon::{ThreadPool, ThreadPoolBuilder};

/// By how much the nice value of work in masses is higher. It then has a tenth of what an ordinary thread has of a CPU that both want, and all
/// of one that nobody else wants.
const STEPS: i32 = 10;
/// The kernel's most.
const NICE_MAX: i32 = 19;
/// How long it goes on before others of its kind get their turn, in nanoseconds. A thread that wakes and has a shorter slice, as all
/// others have, need not wait for its end (PREEMPT_SHORT in kernel/sched/features.h; before Linux 6.12 this is ignored).
const SLICE: u64 = 20_000_000;

/// How the scheduler treats a thread.
#[derive(Clone, Copy)]
struct Rank(libc::sched_attr);

impl Rank {
    /// Of the calling thread; `None` where the system does not tell.
    fn own() -> Option<Rank> {
        let size = u32::try_from(size_of::<libc::sched_attr>()).expect("some bytes");
        // SAFETY: a `sched_attr` may be all zeros; the call fills at most `size` bytes of it, and lives shorter.
        unsafe {
            let mut rank: libc::sched_attr = std::mem::zeroed();
            let result = libc::syscall(libc::SYS_sched_getattr, 0, &raw mut rank, size, 0);
            (result == 0).then_some(Rank(rank))
        }
    }

    /// Of this process: of the thread that asked first, which has not given way yet.
    fn usual() -> Option<Rank> {
        static USUAL: OnceLock<Option<Rank>> = OnceLock::new();
        *USUAL.get_or_init(Rank::own)
    }

    /// Of its work in masses. Where somebody chose another policy than the two that know nice values it is his choice for all.
    fn behind() -> Option<Rank> {
        let Rank(usual) = Rank::usual()?;
        let is_fair = [libc::SCHED_OTHER, libc::SCHED_BATCH].map(i32::cast_unsigned).contains(&usual.sched_policy);
        is_fair.then(|| {
            // Of this policy it does not come before who runs when it wakes (sched(7)).
            let sched_policy = libc::SCHED_BATCH.cast_unsigned();
            let sched_nice = (usual.sched_nice + STEPS).min(NICE_MAX);
            Rank(libc::sched_attr { sched_policy, sched_nice, sched_runtime: SLICE, ..usual })
        })
    }

    /// Gives it to the calling thread, and to those that it starts. A refusal only costs time.
    fn take(self) {
        let mut rank = self.0;
        // SAFETY: the call reads as many bytes as the structure says it has, may write there how many it knows, and lives shorter.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw mut rank, 0) };
    }
}

thread_local! {
    /// Whether this thread gave way, or one that started it did; `None` until that is asked.
    static IS_BEHIND: Cell<Option<bool>> = const { Cell::new(None) };
}

/// To be called before any thread gives way, by one that may run everywhere: what comes later compares with its rank.
pub(super) fn begin() {
    Rank::usual();
}

/// From now on the calling thread, and those that it starts, get a CPU after others: for work in masses, where hardly anybody waits for a
/// part. What they have computed by the platform does so too.
pub fn give_way() {
    let rank = Rank::behind();
    rank.into_iter().for_each(Rank::take);
    IS_BEHIND.set(Some(rank.is_some()));
}

/// Whether the calling thread gave way.
pub(super) fn is_behind() -> bool {
    let of = |rank: Option<Rank>| rank.map(|Rank(rank)| (rank.sched_policy, rank.sched_nice));
    let is_behind =
        IS_BEHIND.get().unwrap_or_else(|| Rank::behind().is_some() && of(Rank::own()) == of(Rank::behind()));
    IS_BEHIND.set(Some(is_behind));
    is_behind
}

/// Where that thread has something computed; `None`: where everybody has.
pub(super) fn cores() -> Option<&'static ThreadPool> {
    static BEHIND: OnceLock<Option<ThreadPool>> = OnceLock::new();
    let make = || {
        let builder = ThreadPoolBuilder::new().thread_name(|number| format!("behind-{number}"));
        builder.start_handler(|_| give_way()).build().ok()
    };
    // No such thread is tied to a CPU.
    if is_behind() { BEHIND.get_or_init(make).as_ref() } else { None }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{Rank, begin, cores, give_way, is_behind};

    /// Policy, nice value and slice of the calling thread.
    pub(in crate::real) fn own() -> Option<(u32, i32, u64)> {
        begin();
        Rank::own().map(|Rank(rank)| (rank.sched_policy, rank.sched_nice, rank.sched_runtime))
    }

    #[test]
    fn who_gives_way_has_it_computed_by_those_who_did() {
        let usual = own();
        // On a thread of its own, for it stays so.
        let test = std::thread::spawn(move || {
            assert!(cores().is_none());
            give_way();
            let behind = own();
            give_way();
            assert_eq!(own(), behind, "once is enough");
            if !is_behind() {
                // Somebody chose a policy that knows no nice values.
                assert_eq!(behind, usual);
                return;
            }
            assert_ne!(behind, usual);
            let started = std::thread::spawn(|| {
                let computing = cores().expect("threads are started").install(|| (own(), cores().is_some()));
                (own(), computing)
            });
            assert_eq!(started.join().expect("no panic"), (behind, (behind, true)));
        });
        test.join().expect("no panic");
        assert_eq!(own(), usual, "the others do not");
    }
}
