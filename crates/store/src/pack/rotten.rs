//! Packs that cannot be copied, cut or mended, for a chunk or block of them is good on none of their disks: remembered until they are, or gone.
//!
//! Not here: what becomes of them (`reclaim`).

use super::Packs;
use crate::failure::StoreError;

impl Packs {
    /// Notes that a pack cannot be copied for this error, unless it is gone, or the error tells of something else: a disk that gives no answer
    /// now may give one later.
    pub(crate) fn note_rotten(&self, pack: u64, error: &StoreError) {
        let catalog = self.catalog.read();
        if matches!(error, StoreError::Corrupt { .. }) && catalog.contains_key(&pack) {
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
