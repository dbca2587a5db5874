//! Layout upkeep in the background: once in an interval all directories are gone through, and small files that lie scattered are brought
//! together, as `hydrafs optimize` does.
//!
//! Everything is looked at each time. To know which directories changed would take a list that survives restarts, is bounded, and knows what
//! clones, copies and the dedup of others' content moved; a pass over what lies together already reads the trees of names and extents, which is
//! little beside what a scrub reads, and writes nothing (I-140). For the same reason a pass that was ended begins anew, and where it had
//! got to is kept nowhere.
//!
//! It is off unless somebody sets the interval: what it moves is written once more and lies twice until a pass of reclaim, which costs
//! room and the life of flash, and what it gains is seeks, which not every disk has.
//!
//! I-142 A pass takes its share of the time and gives way to callers. None begins while a disk is missing or something lies on fewer disks than
//!       it should, and none goes on while room is scarce or would not come back.
//!
//! Not here: what is scattered, and the moving (`batch/optimize`, `store::rewrite`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::id::FileId;
use platform::task::first;

use crate::batch::BatchOptimize;
use crate::system::FileSystem;
use crate::upkeep::LayoutStatus;

/// How soon after the start the first pass begins, and one after a pass that came to no end: a node that is on for a short time each day
/// has its turn too.
const PAUSE_MAX: Duration = Duration::from_secs(3600);
/// Room is scarce where less than one in so many bytes is free.
const FREE_PARTS: u64 = 5;

impl FileSystem {
    /// What layout upkeep does and did since the node was opened.
    #[must_use]
    pub fn layout_status(&self) -> LayoutStatus {
        let state = self.upkeep.state.lock();
        let mut status = LayoutStatus {
            interval: self.options.layout_interval,
            now: state.now,
            obstacle: state.obstacle,
            ..LayoutStatus::default()
        };
        if let Some((at, result)) = &state.last {
            status.ended = Some(self.platform.clock.elapsed().saturating_sub(*at));
            match result {
                Ok(report) => status.report = *report,
                Err(error) => status.failure = Some(error.to_string()),
            }
        }
        status
    }

    /// Begins the background task, if there is anything to do for it.
    pub(crate) fn begin_upkeep(self: &Arc<Self>) {
        if self.options.layout_interval.is_zero() {
            self.stopped.add_permits(1);
        } else {
            self.platform.tasks.spawn_behind("layout", Box::pin(Arc::clone(self).run_upkeep()));
        }
    }

    async fn run_upkeep(self: Arc<Self>) {
        let interval = self.options.layout_interval;
        let mut pause = interval.min(PAUSE_MAX);
        while !self.is_ending() {
            first(self.upkeep.wants_end.notified(), self.platform.tasks.sleep(pause)).await;
            if !self.is_ending() {
                pause = if self.upkeep_pass().await { interval } else { interval.min(PAUSE_MAX) };
            }
        }
        self.stopped.add_permits(1);
    }

    /// Goes through everything. Whether it came to its end.
    async fn upkeep_pass(&self) -> bool {
        let obstacle = self.layout_obstacle();
        self.upkeep.state.lock().obstacle = obstacle;
        if obstacle.is_some() {
            return false;
        }
        let tell = |files, bytes| {
            let obstacle = self.space_obstacle();
            let mut state = self.upkeep.state.lock();
            (state.now, state.obstacle) = (Some((files, bytes)), obstacle);
            obstacle.is_none()
        };
        let how = BatchOptimize { share: self.options.background_share, tell: &tell, ..BatchOptimize::default() };
        let result = self.batch_optimize(FileId::ROOT, &how).await;
        let is_done = result.as_ref().is_ok_and(|report| report.is_done);
        self.counters.layout_passes.add(u64::from(is_done));
        let mut state = self.upkeep.state.lock();
        state.now = None;
        state.last = Some((self.platform.clock.elapsed(), result));
        is_done
    }

    /// Why no pass is to begin now (I-142).
    fn layout_obstacle(&self) -> Option<&'static str> {
        if self.store.refuse_degraded().is_err() {
            return Some("a disk is missing");
        }
        if self.store.lacks_copies() {
            return Some("something lies on fewer disks than it should");
        }
        self.space_obstacle()
    }

    /// Why none is to go on.
    fn space_obstacle(&self) -> Option<&'static str> {
        let space = self.store.space();
        if space.free < space.total / FREE_PARTS {
            return Some("room is scarce");
        }
        let is_kept = self.left_out_count.load(Ordering::Relaxed) > 0 || self.reclaim_failure.lock().is_some();
        is_kept.then_some("no room comes back, for something is damaged")
    }
}
