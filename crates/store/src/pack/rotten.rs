//! Packs that cannot be copied, for a chunk of them is good on none of their disks: remembered until they are copied, or gone.
//!
//! Not here: what becomes of them (`reclaim`).

use super::Packs;

impl Packs {
    /// Notes that a pack cannot be copied.
    pub(crate) fn note_rotten(&self, pack: u64) {
        self.rotten.lock().entry(pack).or_default();
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
