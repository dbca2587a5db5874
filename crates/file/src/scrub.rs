//! Scrub in the background: what is stored is read again often enough that damage is found while there is something to mend it with.
//!
//! Not here: reading packs again, and what is known of their age (`store`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::metric::Counter;
use platform::task::first;
use store::{Pace, ScrubPlan, ScrubReport, Share};

use crate::system::FileSystem;

/// Parts of the interval after each of which what is due is read: packs come in about as evenly as they were written.
const ROUNDS_PER_INTERVAL: u32 = 100;
/// A node that is on for a short time each day scrubs too.
const ROUND_MAX: Duration = Duration::from_secs(3600);

impl FileSystem {
    /// What work that nobody waits for takes of the time.
    pub fn background_share(&self) -> Share {
        self.options.background_share
    }

    /// Calls so far of those to whom background work gives way.
    pub(crate) fn calls(&self) -> u64 {
        let counters = &self.counters;
        [&counters.reads, &counters.writes, &counters.lookups, &counters.namespace_changes]
            .map(Counter::value)
            .iter()
            .sum()
    }

    /// What the mender may take of the time.
    pub fn repair_share(&self) -> Share {
        self.options.repair_share
    }

    /// What [`FileSystem::scrub`] would read.
    pub fn scrub_plan(&self, older_than: Duration) -> ScrubPlan {
        self.store.scrub_plan(older_than)
    }

    /// Reads again what was last checked as long ago. `tell` hears of bytes done, and of bytes in all. One at a time.
    pub async fn scrub(&self, older_than: Duration, share: Share, tell: &(dyn Fn(u64, u64) + Sync)) -> ScrubReport {
        let _one = self.scrubbing.lock().await;
        let (goes_on, share) = (|| !self.is_stopping.load(Ordering::SeqCst), || share);
        let calls = || self.calls();
        let pace = Pace::new(&self.platform, &share, &goes_on).beside(&calls);
        // V-3. Why it cannot be committed the commit tells.
        if self.journal_ahead() > 0 && goes_on() {
            let _ = self.commit_everywhere().await;
        }
        self.store.scrub(older_than, &pace, tell).await
    }

    /// The background task that reads everything again once in an interval.
    pub(crate) async fn run_scrubber(self: Arc<Self>) {
        let interval = self.options.scrub_interval;
        let pause = (interval / ROUNDS_PER_INTERVAL).min(ROUND_MAX);
        while !self.is_stopping.load(Ordering::SeqCst) {
            if interval.is_zero() {
                self.wants_no_scrub.notified().await;
                continue;
            }
            first(self.wants_no_scrub.notified(), self.platform.tasks.sleep(pause)).await;
            let report = self.scrub(interval, self.options.background_share, &|_, _| {}).await;
            drop(report);
        }
        self.stopped.add_permits(1);
    }
}
