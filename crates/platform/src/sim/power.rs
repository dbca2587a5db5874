//! The power supply of the machine, and the count of operations that tells it when to fail.

use parking_lot::Mutex;

/// What an operation meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Current {
    /// Power until it is done.
    Steady,
    /// The power goes while the operation is under way: it fails, and may have happened.
    Failing,
    /// No power.
    Gone,
}

/// One supply for all disks.
pub(super) struct Power(Mutex<Supply>);

struct Supply {
    operations: u64,
    cut_at: Option<u64>,
    is_on: bool,
}

impl Power {
    pub(super) fn new() -> Power {
        Power(Mutex::new(Supply { operations: 0, cut_at: None, is_on: true }))
    }

    /// Counts an operation and says what it meets.
    pub(super) fn operation(&self) -> Current {
        let mut supply = self.0.lock();
        supply.operations += 1;
        if !supply.is_on {
            return Current::Gone;
        }
        if supply.cut_at.is_some_and(|number| number <= supply.operations) {
            supply.is_on = false;
            supply.cut_at = None;
            return Current::Failing;
        }
        Current::Steady
    }

    pub(super) fn operations(&self) -> u64 {
        self.0.lock().operations
    }

    pub(super) fn cut_at(&self, operation: u64) {
        self.0.lock().cut_at = Some(operation);
    }

    pub(super) fn is_on(&self) -> bool {
        self.0.lock().is_on
    }

    /// Forgets a cut that is over or has not come yet.
    pub(super) fn restore(&self) {
        let mut supply = self.0.lock();
        supply.is_on = true;
        supply.cut_at = None;
    }

    /// Returns whether it was on.
    pub(super) fn switch(&self, is_on: bool) -> bool {
        std::mem::replace(&mut self.0.lock().is_on, is_on)
    }
}
