//! Sizes and habits of a store, chosen each time it is opened.

use std::ops::RangeInclusive;

use crate::cache::Weights;
use crate::chunk::Compression;
use crate::level::{Erasure, Level};

/// Least and most of [`Options::run_bytes`]. Linux makes no longer requests than the most, unless somebody tells it to (BLK_DEF_MAX_SECTORS_CAP);
/// and with what is kept before and behind it a run of that size fits a large page of memory.
pub const RUN_BYTES: RangeInclusive<usize> = 64 << 10..=1280 << 10;

/// How a store is opened. Nothing here changes what is on disk already.
#[derive(Clone, Debug)]
pub struct Options {
    /// Most bytes of verified chunks kept in memory for reading.
    pub cache_bytes: u64,
    /// What chunks of either class weigh in that cache.
    pub cache_weights: Weights,
    /// Most bytes of packs that are read ahead at a time.
    pub ahead_bytes_max: u32,
    /// Of chunks that are read in order those are read together that lie no further apart than this many bytes. `None`: as far as reading on costs
    /// less than another request, by the measured speed of the disk ([`crate::Store::measure_speeds`]).
    pub gap_bytes: Option<u32>,
    /// Bytes of content that are hashed, compressed and appended at a time; who comes then is told that the store is busy.
    pub put_bytes_max: u64,
    /// Most bytes of the index kept in memory: three quarters for its pages, and one for what says that content is new.
    pub index_cache_bytes: u64,
    /// A pack is sealed when it has about this size. Between 1 MiB and 2 GiB.
    pub pack_bytes: u64,
    /// A pack is also sealed when it has so many chunks: of those that the index file does not have yet memory holds about 160 bytes each.
    pub pack_chunks_max: usize,
    /// Bytes of a pack that are written at once, within [`RUN_BYTES`]: large enough to stream to a rotating disk; each disk has up to seven times
    /// as much in memory, for two packs in hand that are written from one large page and filled in another.
    pub run_bytes: usize,
    /// Size of a journal segment. At least 4 MiB, for the largest frame must fit; at most 1 GiB, which is what an open reads.
    pub segment_bytes: u64,
    /// On how many disks a new pack lies, and the journal, as long as so many take writes. At least one.
    pub copies: u8,
    /// What a sealed pack is cut into, instead of those copies: until then it lies on as many disks as survive as much.
    pub fragments: Option<Erasure>,
    /// How new chunks are compressed.
    pub compression: Compression,
    /// Room on each disk that content of files never takes (at most an eighth of the disk), so that deleting and
    /// committing work on a full disk.
    pub reserve_bytes: u64,
    /// Opens although frames are lost that were durable ([`crate::StoreError::FramesLost`], [`crate::StoreError::TwoHistories`]), or all of them
    /// are missing ([`crate::StoreError::JournalMissing`]): what they changed is given up.
    pub gives_up_frames: bool,
    /// Opens although disks are missing, unless the journal is on no other: what lies on them alone cannot be read, and everything else
    /// goes on.
    pub goes_without_disks: bool,
}

impl Options {
    /// Of the index's bytes in memory those of the filter.
    pub(crate) fn index_filter_bytes(&self) -> u64 {
        self.index_cache_bytes / 4
    }

    /// And those of pages.
    pub(crate) fn index_pages_bytes(&self) -> u64 {
        self.index_cache_bytes - self.index_filter_bytes()
    }

    /// What is asked for against the loss of disks.
    pub(crate) fn level(&self) -> Level {
        Level::of_settings(self.copies, self.fragments)
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            cache_bytes: 256 << 20,
            cache_weights: Weights::WEIGHTED,
            ahead_bytes_max: 8 << 20,
            gap_bytes: None,
            put_bytes_max: 32 << 20,
            index_cache_bytes: 64 << 20,
            pack_bytes: 64 << 20,
            pack_chunks_max: 64 << 10,
            run_bytes: *RUN_BYTES.end(),
            segment_bytes: 16 << 20,
            copies: 1,
            fragments: None,
            compression: Compression::Zstd(1),
            reserve_bytes: 512 << 20,
            gives_up_frames: false,
            goes_without_disks: false,
        }
    }
}
