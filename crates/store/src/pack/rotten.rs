//! Packs that cannot be copied, cut or mended, for a chunk or block of them is good on none of their disks: remembered until they are, or gone.
//!
//! Not here: what becomes of them (`reclaim`).

use platform::disk::DiskErrorKind;

use super::Packs;
use crate::failure::StoreError;

impl Packs {
    /// Notes that a pack cannot be copied for this error, unless it is gone, or the error tells of something else: a disk that gives no answer
    /// now, or that failed as a whole, may give one later. A sector that cannot be read is as good as one that rotted.
    pub(crate) fn note_rotten(&self, pack: u64, error: &StoreError) {
        let catalog = self.catalog.read();
        let Some(known) = catalog.get(&pack) else { return };
        let is_rot = match error {
            StoreError::Corrupt { .. } => true,
            StoreError::Disk(error) => match error.kind {
                DiskErrorKind::Absent | DiskErrorKind::Short => true,
                DiskErrorKind::Failed => known.places().iter().all(|disk| self.pool.disks[disk].is_good()),
                _ => false,
            },
            _ => false,
        };
        if is_rot {
            self.rotten.lock().entry(pack).or_default();
        }
    }

    /// Notes that all of it could be read.
    pub(crate) fn forget_rotten(&self, pack: u64) {
        self.rotten.lock().remove(&pack);
    }

    pub(crate) fn is_rotten(&self, pack: u64) -> bool {
        self.rotten.lock().contains_key(&pack)
    }

    /// Whether there are any that reclaim has not tried to do without.
    pub(crate) fn are_rotten_untried(&self) -> bool {
        self.rotten.lock().values().any(|is_tried| !is_tried)
    }

    /// Notes that reclaim tries.
    pub(crate) fn try_rotten(&self) {
        self.rotten.lock().values_mut().for_each(|is_tried| *is_tried = true);
    }
}
