//! Failures of the store that programs see as EIO: logged here, once, and not more often than a person can read.

use std::time::Duration;

use parking_lot::Mutex;
use platform::Platform;

/// Lines that are logged in one period; the rest is counted.
const LINES_MAX: u32 = 20;
const PERIOD: Duration = Duration::from_secs(10);

/// What was logged lately.
#[derive(Default)]
pub(crate) struct Failures(Mutex<Recent>);

#[derive(Default)]
struct Recent {
    since: Duration,
    count: u32,
}

impl Failures {
    /// Logs a failure, unless there were many just now.
    pub(crate) fn note(&self, platform: &Platform, what: impl FnOnce() -> String) {
        let now = platform.clock.elapsed();
        let mut recent = self.0.lock();
        if now.saturating_sub(recent.since) >= PERIOD {
            if recent.count > LINES_MAX {
                tracing::error!("{} more failures of the store were not logged", recent.count - LINES_MAX);
            }
            *recent = Recent { since: now, count: 0 };
        }
        recent.count = recent.count.saturating_add(1);
        if recent.count <= LINES_MAX {
            tracing::error!("the store failed: {}", what());
        }
    }
}
