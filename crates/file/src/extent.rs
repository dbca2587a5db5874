//! Extents: what lies in a range of a file, and the layers in which newer content hides older.

use std::ops::Range;

use base::id::ChunkAddress;
use base::interval::{IntervalMap, Piece};

/// Settled content of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Nothing: reads as zeroes, takes no space.
    Hole,
    /// Reads as zeroes and counts as allocated (fallocate).
    Zero,
    /// Part of a chunk, beginning `skip` bytes into its `chunk_bytes`.
    Chunk { address: ChunkAddress, skip: u32, chunk_bytes: u32 },
}

impl Extent {
    /// Whether `st_blocks` counts it.
    pub(crate) fn is_allocated(&self) -> bool {
        !matches!(self, Extent::Hole)
    }

    /// The same content, beginning `bytes` later.
    pub(crate) fn advanced(&self, bytes: u64) -> Extent {
        match *self {
            Extent::Chunk { address, skip, chunk_bytes } => {
                let skip = u32::try_from(u64::from(skip) + bytes).expect("an extent lies inside its chunk");
                Extent::Chunk { address, skip, chunk_bytes }
            }
            other => other,
        }
    }
}

impl Extent {
    /// [`Extent::advanced`], where the chunk has more; `None` at its end.
    pub(crate) fn advanced_within(&self, bytes: u64) -> Option<Extent> {
        match *self {
            Extent::Chunk { skip, chunk_bytes, .. } if u64::from(skip) + bytes >= u64::from(chunk_bytes) => None,
            other => Some(other.advanced(bytes)),
        }
    }
}

impl Piece for Extent {
    fn split_off(&mut self, at: u64) -> Extent {
        self.advanced(at)
    }
}

/// Content that the journal has and the committed tree not yet. `inlined` lies above `extents`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overlay {
    /// In chunks, or holes.
    pub(crate) extents: IntervalMap<Extent>,
    /// Bytes that the journal carries itself; they become chunks at the commit.
    pub(crate) inlined: IntervalMap<Vec<u8>>,
    /// Bytes in chunks that were here and went before any tree named them.
    pub(crate) dropped_bytes: u64,
}

impl Overlay {
    pub(crate) fn insert_extent(&mut self, offset: u64, length: u64, extent: Extent) {
        let end = offset.saturating_add(length);
        self.inlined.remove(offset..end);
        // Zeroes lie in no chunk, and may be of any length.
        let chunks = self.extents.overlapping(offset..end).filter(|(_, old)| matches!(old, Extent::Chunk { .. }));
        self.dropped_bytes += chunks.map(|(below, _)| below.end.min(end) - below.start.max(offset)).sum::<u64>();
        self.extents.insert(offset..end, extent);
    }

    /// Drops all of it.
    pub(crate) fn clear(&mut self) {
        self.insert_extent(0, u64::MAX, Extent::Hole);
        *self = Overlay { dropped_bytes: self.dropped_bytes, ..Overlay::default() };
    }

    pub(crate) fn insert_inline(&mut self, offset: u64, bytes: Vec<u8>) {
        self.inlined.insert(offset..offset + bytes.len() as u64, bytes);
    }

    /// Puts a newer overlay on top of this one.
    pub(crate) fn cover_with(&mut self, newer: Overlay) {
        let Overlay { mut extents, mut inlined, dropped_bytes } = newer;
        self.dropped_bytes += dropped_bytes;
        for (range, extent) in extents.take() {
            self.insert_extent(range.start, range.end - range.start, extent);
        }
        for (range, bytes) in inlined.take() {
            self.insert_inline(range.start, bytes);
        }
    }
}

/// The ranges that have a decision, those that touch as one.
pub(crate) fn covered_ranges(content: &IntervalMap<Extent>) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for (range, _) in content.iter() {
        match ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => ranges.push(range),
        }
    }
    ranges
}
