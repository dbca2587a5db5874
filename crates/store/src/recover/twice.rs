//! Chunks that lie in two packs: which of the two places the index names, when a pack is taken in that it does not cover.
//!
//! O-5 is kept here; C-6, K-9 and N-4 have a word in it.
//!
//! Not here: which packs there are, and what is in them (`recover`, `fragments`).

use base::id::ChunkAddress;

use crate::failure::StoreError;
use crate::format::{Codec, Place};
use crate::index::SealedPack;
use crate::pack::{PackKnown, Packs};

/// Takes in a pack that the index does not cover. Of its chunks those are named there that have no better copy (O-5).
pub(super) async fn take_in(packs: &Packs, mut sealed: SealedPack, known: PackKnown) {
    packs.note_sealed_at(sealed.pack, known);
    // Of what cannot be mended where it is a better copy stays what is named.
    let is_left = sealed.summary.lacks_directory;
    sort_out(packs, &mut sealed, is_left).await;
    packs.note_found(vec![sealed]);
}

/// Sets those of its chunks apart that have a better copy (O-5).
pub(super) async fn sort_out(packs: &Packs, sealed: &mut SealedPack, is_left: bool) {
    let mut entries = Vec::with_capacity(sealed.entries.len());
    for entry in std::mem::take(&mut sealed.entries) {
        let (address, here) = (entry.header.address, Place::of(sealed.pack, &entry));
        let is_better = match packs.index.lookup(&address, &packs.counters) {
            Ok(Some(other)) if other.pack != sealed.pack => is_better(packs, &address, &other, &here, is_left).await,
            _ => false,
        };
        if is_better { &mut sealed.others } else { &mut entries }.push(entry);
    }
    sealed.entries = entries;
}

/// Whether the chunk at `other` verifies and the one at `here` does not, or nobody knows. Few chunks lie in two places, so few are read.
/// Of two that verify the newcomer's counts, unless the other lies on a disk that it lacks, and it on too few: mostly reclaim copied it there, and then the other
/// pack goes, with what the index has of it.
async fn is_better(packs: &Packs, address: &ChunkAddress, other: &Place, here: &Place, is_left: bool) -> bool {
    let grade = async |place: &Place| match packs.is_good(address, place).await {
        Ok(()) => 3,
        // Nobody knows.
        Err(StoreError::Disk(_)) => 2,
        Err(_) => 1,
    };
    // C-6.
    if other.codec == Codec::Bundle && here.codec != Codec::Bundle {
        return false;
    }
    // K-9: by what is asked for, and by what is there; a disk that was away may have what was left of a pack when that went on without it.
    let is_lower = packs.is_lower(here.pack, other.pack) || packs.lies_better(other.pack, here.pack);
    // N-4: of one that is left open the others may lack something.
    let is_lower = is_lower || (is_left && !packs.is_lower(other.pack, here.pack));
    let here = grade(here).await;
    // K-9.
    (here < 3 || is_lower) && grade(other).await >= here + i32::from(!is_lower)
}
