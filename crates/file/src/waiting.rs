//! Who waits: seen by the one who is waited for.
//!
//! Not here: what is waited for, a lock mostly.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// How many wait for something that somebody holds who could give it sooner.
#[derive(Debug, Default)]
pub(crate) struct Waiting(AtomicUsize);

/// Whether somebody keeps off what others would wait for, and whether one of those has waited for him in vain.
#[derive(Debug, Default)]
pub(crate) struct KeptOff {
    by_somebody: AtomicBool,
    is_long: AtomicBool,
}

impl KeptOff {
    /// Somebody does. One at a time: the caller has a lock.
    pub(crate) fn begin(&self) {
        self.is_long.store(false, Ordering::SeqCst);
        self.by_somebody.store(true, Ordering::SeqCst);
    }

    /// He does no more.
    pub(crate) fn end(&self) {
        self.by_somebody.store(false, Ordering::SeqCst);
    }

    /// Who waits has done so for long: the one who is there now, if there is one, is not waited for again, whoever it was that he waited for.
    pub(crate) fn note_long(&self) {
        self.is_long.store(true, Ordering::SeqCst);
    }

    /// Whether there is one who is not waited for.
    pub(crate) fn is_long(&self) -> bool {
        self.by_somebody.load(Ordering::SeqCst) && self.is_long.load(Ordering::SeqCst)
    }
}

/// One of them.
#[must_use]
pub(crate) struct Waits<'a>(&'a Waiting);

impl Waiting {
    /// Counts the caller as long as it keeps what it is given.
    pub(crate) fn wait(&self) -> Waits<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Waits(self)
    }

    /// How many do.
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether anybody does.
    pub(crate) fn are_any(&self) -> bool {
        self.count() > 0
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
