//! Who waits: seen by the one who is waited for.
//!
//! Not here: what is waited for, a lock mostly.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How many wait for something that somebody holds who could give it sooner.
#[derive(Debug, Default)]
pub(crate) struct Waiting(AtomicUsize);

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
