//! What the store counts. Declared once, with name and help text, so that `stats`, metrics and documents list the same.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($name:ident: $help:literal,)*) => {
        /// Everything the store counts since it was opened. All only rise.
        #[derive(Debug, Default)]
        pub struct Counters {
            $(#[doc = $help] pub $name: Counter,)*
        }

        impl Counters {
            /// Name, help and value of each, in the order of declaration.
            pub fn list(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), $help, self.$name.value()),)*]
            }
        }
    };
}

/// A number that only rises.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Keeps the larger of the value and `candidate`.
    pub fn raise(&self, candidate: u64) {
        self.0.fetch_max(candidate, Ordering::Relaxed);
    }

    /// The value now.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

counters! {
    chunks_put: "Chunks given to put or put_many.",
    chunks_duplicate: "Chunks put that were there already.",
    chunks_duplicate_raced: "Chunks stored twice because two callers put them at the same moment.",
    bytes_put: "Content bytes given to put or put_many.",
    bytes_new: "Content bytes of chunks that were not there yet.",
    bytes_stored: "Bytes those chunks take in packs, after compression, with their headers.",
    chunks_incompressible: "Chunks stored raw because compression saved less than a sixteenth.",
    chunks_read: "Chunks asked for by get.",
    cache_hits: "Chunks that get found in the cache.",
    cache_misses: "Chunks that get did not find in the cache.",
    bytes_read: "Bytes read from packs for get.",
    verify_failures: "Chunks read from a pack that were not what their address says.",
    index_lookups: "Look-ups that had to ask the index file.",
    index_commits: "Batches of entries committed to the index file.",
    index_entries: "Entries committed to the index file.",
    index_failures: "Index commits that failed or were put off; the entries stay in memory.",
    index_made_again: "Times the index turned out to be damaged and was made again from the packs, beside the work.",
    packs_created: "Packs begun.",
    packs_sealed: "Packs sealed.",
    packs_deleted: "Packs deleted by reclaim.",
    pack_writes: "Writes to packs.",
    pack_syncs: "Syncs of packs.",
    settles: "Calls of settle that found something not yet durable.",
    log_frames: "Frames logged.",
    log_bytes: "Bytes of frames logged, with headers.",
    log_syncs: "Groups of frames written and synced.",
    log_group_frames_max: "Most frames in one group.",
    log_segments_created: "Journal segments made and filled with zeroes.",
    log_segments_recycled: "Journal segments used again.",
    commits: "Superblocks committed.",
    disk_failures: "Disks taken out after a failed write or sync.",
    reclaimed_bytes: "Bytes of packs that reclaim gave back.",
    reclaim_copied_bytes: "Bytes that reclaim copied to other packs.",
}
