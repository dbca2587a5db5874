//! The power supply of the machine, and the count of operations that tells it when to fail, and which operation fails by itself.

use parking_lot::Mutex;

use crate::disk::DiskErrorKind;

/// What an operation meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Current {
    /// Power until it is done.
    Steady,
    /// The same, and this operation is to fail: M-9.
    Refused(DiskErrorKind),
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
    failure: Option<(u64, DiskErrorKind)>,
    is_on: bool,
}

impl Power {
    pub(super) fn new() -> Power {
        Power(Mutex::new(Supply { operations: 0, cut_at: None, failure: None, is_on: true }))
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
        let operations = supply.operations;
        let failure = supply.failure.take_if(|(number, _)| *number <= operations);
        failure.map_or(Current::Steady, |(_, kind)| Current::Refused(kind))
    }

    pub(super) fn operations(&self) -> u64 {
        self.0.lock().operations
    }

    pub(super) fn cut_at(&self, operation: u64) {
        self.0.lock().cut_at = Some(operation);
    }

    pub(super) fn fail_at(&self, operation: u64, kind: DiskErrorKind) {
        self.0.lock().failure = Some((operation, kind));
    }

    pub(super) fn is_on(&self) -> bool {
        self.0.lock().is_on
    }

    /// Forgets what has not come yet.
    pub(super) fn restore(&self) {
        let mut supply = self.0.lock();
        *supply = Supply { cut_at: None, failure: None, is_on: true, ..*supply };
    }

    /// Returns whether it was on.
    pub(super) fn switch(&self, is_on: bool) -> bool {
        std::mem::replace(&mut self.0.lock().is_on, is_on)
    }
}
