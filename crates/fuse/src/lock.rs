//! Locks of the standard library, as this crate takes them.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A lock whose holder panicked is still good: no state is left half-changed while one is held.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
