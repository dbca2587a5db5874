//! Speeds of disks are measured in the background: soon after the start, as soon as enough lies on a disk, and then once in an interval, for
//! others come to share them; but only if somebody uses the node, for a disk that nobody uses may rest.
//!
//! Not here: how, and what is done with it (`store::probe`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use platform::task::first;

use crate::system::FileSystem;

/// Not at once: who opens a node begins with what he opened it for. Then twice as long each time, as long as there is too little on some disk.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(3600);

impl FileSystem {
    /// Measures what a request takes on each disk now. Whether on all: where there is little there is nothing to measure.
    pub async fn measure_speeds(&self) -> bool {
        self.store.measure_speeds(Duration::ZERO).await
    }

    /// The background task that measures what disks take for requests.
    pub(crate) async fn run_measurer(self: Arc<Self>) {
        let interval = self.options.speed_interval;
        let (mut pause, mut calls) = (PAUSE_FIRST, 0);
        while !self.is_stopping.load(Ordering::SeqCst) {
            if interval.is_zero() {
                self.wants_no_measuring.notified().await;
                continue;
            }
            first(self.wants_no_measuring.notified(), self.platform.tasks.sleep(pause.min(interval))).await;
            if self.is_stopping.load(Ordering::SeqCst) {
                break;
            }
            let called = self.calls();
            if called == calls {
                continue;
            }
            calls = called;
            let are_all = self.store.measure_speeds(interval).await;
            pause = if are_all { interval } else { (pause * 2).min(PAUSE_MAX) };
        }
        self.stopped.add_permits(1);
    }
}
