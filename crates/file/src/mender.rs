//! Mending in the background: what lies on fewer disks than it should, for one failed, is gone or lied, is brought onto others.
//!
//! Not here: which packs those are, and how (`store`); how far it is (`mending`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use platform::task::first;
use store::{CopiesReport, Pace, Share};

use crate::mending::Mending;
use crate::reclaim::Reclaim;
use crate::system::FileSystem;

/// How soon after it was noticed it is begun. Soon, because another disk may fail; not at once, because much may be noticed together.
const PAUSE: Duration = Duration::from_secs(10);
/// The longest pause between passes of which each could do nothing: something needed is good nowhere, or no disk has room for it.
const PAUSE_MAX: Duration = Duration::from_secs(160);

impl FileSystem {
    /// Brings everything onto as many disks as it should be on, in two goes if reclaim has to come in between. `tell` hears of bytes done, and
    /// of bytes in all.
    pub async fn restore_copies(&self, share: Share, tell: &(dyn Fn(u64, u64) + Sync)) -> CopiesReport {
        let report = self.restore_once(share, tell).await;
        // What is good nowhere may be what nobody needs: L-6. A pass that fails is told of by the status.
        if !self.store.wants_reclaim() || self.reclaim(&Reclaim { share, ..Reclaim::default() }).await.is_err() {
            return report;
        }
        let CopiesReport { packs, written, bytes, is_index_moved, .. } = report;
        let after = self.restore_once(share, tell).await;
        CopiesReport {
            packs: packs + after.packs,
            written: written + after.written,
            bytes: bytes + after.bytes,
            is_index_moved: is_index_moved || after.is_index_moved,
            ..after
        }
    }

    async fn restore_once(&self, share: Share, tell: &(dyn Fn(u64, u64) + Sync)) -> CopiesReport {
        let (goes_on, of_time) = (|| !self.is_stopping.load(Ordering::SeqCst), || share);
        let pace = Pace::new(&self.platform, &of_time, &goes_on);
        self.store.restore_copies(&pace, tell).await
    }

    /// How far it is, if it is at work; and what was done last.
    pub fn mending(&self) -> (Option<Mending>, CopiesReport) {
        (*self.mending.lock(), self.mended.lock().clone())
    }

    pub(crate) async fn run_mender(self: Arc<Self>) {
        let mut pause = PAUSE;
        while !self.is_stopping.load(Ordering::SeqCst) {
            first(self.wants_mending.notified(), self.platform.tasks.sleep(pause)).await;
            if !self.is_stopping.load(Ordering::SeqCst) && self.store.lacks_copies() {
                let progress = |done, total| {
                    let mut mending = self.mending.lock();
                    *mending = Some(Mending::now(*mending, self.platform.clock.elapsed(), done, total));
                };
                let report = self.restore_once(self.options.repair_share, &progress).await;
                if self.store.wants_reclaim() {
                    // Beside this: another disk may fail meanwhile.
                    self.wants_reclaim.notify_one();
                }
                *self.mending.lock() = None;
                let is_vain = !report.problems.is_empty() && report.written == 0;
                pause = if is_vain { PAUSE_MAX.min(2 * pause) } else { PAUSE };
                *self.mended.lock() = report;
            }
        }
        self.stopped.add_permits(1);
    }
}
