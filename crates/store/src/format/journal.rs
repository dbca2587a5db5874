//! Segments of the journal, and frames.
//!
//! Not here: what a frame means (the caller), which segments are needed (`journal`).

use std::ops::RangeInclusive;

use base::codec::{Reader, Writer};
use base::hash::checksum;
use base::id::Position;
use base::limits::FRAME_BYTES_MAX;

use super::{NUMBER_MAX, Unfit, checked, expect, expect_end, expect_magic, expect_numbers, expect_version, seal};

// ---------------------------------------------------------------------------------------------------------------
// Journal: the files journal/<16 hex digits>.segment.

/// The first bytes of a segment that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// Rises with each use of a segment: the life of its frames.
    pub(crate) segment: u64,
    pub(crate) node_identity: [u8; 16],
    /// Position of the first frame.
    pub(crate) first: Position,
}

impl SegmentHeader {
    pub(crate) const BYTES: usize = 64;
    /// 2: frames under the life of their segment, groups at pages.
    pub(super) const VERSION: u32 = 2;
    /// Where the first frame of a segment begins, in bytes.
    pub(crate) const FRAMES_AT: usize = FrameHeader::GROUP_ALIGN;
    const MAGIC: [u8; 8] = *b"HydrSegm";

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(Self::BYTES);
        writer.put(&Self::MAGIC).u32(Self::VERSION).u32(0).u64(self.segment).put(&self.node_identity).u64(self.first.0);
        seal(writer, Self::BYTES, self.segment)
    }

    pub(crate) fn decode(bytes: &[u8], segment: u64) -> Result<SegmentHeader, Unfit> {
        let mut reader = Reader::new(bytes);
        expect_magic(Self::MAGIC, reader.array("magic")?)?;
        checked(bytes, segment)?;
        expect_version(Self::VERSION, reader.u32("version")?)?;
        reader.zeroes("padding", 4)?;
        expect("segment number", segment, reader.u64("segment")?)?;
        let node_identity = reader.array("node identity")?;
        let first = Position(reader.u64("first position")?);
        expect_numbers(&reader, &[first.0])?;
        expect_end(&mut reader, Self::BYTES)?;
        Ok(SegmentHeader { segment, node_identity, first })
    }
}

/// What stands before each frame of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// Bytes of the payload, without the padding to 8.
    pub(crate) length: u32,
    pub(crate) position: Position,
    /// Last position known durable when this frame was written.
    pub(crate) durable: Position,
}

impl FrameHeader {
    pub(crate) const BYTES: usize = 32;
    /// Frames begin at multiples of this.
    pub(crate) const ALIGN: usize = 8;
    /// Frames that are written together begin at a multiple of this, in bytes: a device takes them past the page cache, and writes no sector
    /// again that holds frames which are durable.
    pub(crate) const GROUP_ALIGN: usize = 4096;
    pub(crate) const MAGIC: [u8; 4] = *b"Fram";

    /// Header, payload and padding.
    pub(crate) fn frame_bytes(payload: usize) -> usize {
        Self::BYTES + payload.next_multiple_of(Self::ALIGN)
    }

    /// What goes before a payload and behind it, for [`FrameHeader::stamp`] to fill in later; only the length is there.
    pub(crate) fn blank(payload: usize) -> ([u8; Self::BYTES], &'static [u8]) {
        let mut header = [0; Self::BYTES];
        header[..4].copy_from_slice(&Self::MAGIC);
        header[4..8].copy_from_slice(&u32::try_from(payload).expect("at most FRAME_BYTES_MAX").to_le_bytes());
        (header, &[0; Self::ALIGN][..Self::frame_bytes(payload) - Self::BYTES - payload])
    }

    /// Bytes of the blank or stamped frame at the head of `bytes`, which we wrote ourselves.
    pub(crate) fn own_frame_bytes(bytes: &[u8]) -> usize {
        let mut length = [0; 4];
        length.copy_from_slice(&bytes[4..8]);
        Self::frame_bytes(u32::from_le_bytes(length) as usize)
    }

    /// What binds frames to one use of one segment of one node. The node identity is random and never leaves the node, so
    /// that user data inside a frame cannot pass for a frame.
    pub(crate) fn life(segment: u64, node_identity: &[u8; 16]) -> u64 {
        checksum(segment, node_identity)
    }

    /// Fills in position, durable and checksum of the frame that `frame` is, padding included.
    pub(crate) fn stamp(frame: &mut [u8], life: u64, position: Position, durable: Position) {
        // Under the life: who does not know it cannot make what looks like a frame (`glance`).
        frame[16..24].copy_from_slice(&(position.0 ^ life).to_le_bytes());
        frame[24..32].copy_from_slice(&(durable.0 ^ life).to_le_bytes());
        let sum = Self::sum(frame, life);
        frame[8..16].copy_from_slice(&sum.to_le_bytes());
    }

    /// A whole frame.
    #[cfg(test)]
    pub(crate) fn stamped(payload: &[u8], life: u64, position: u64, durable: u64) -> Vec<u8> {
        let (header, padding) = Self::blank(payload.len());
        let mut frame = [&header[..], payload, padding].concat();
        Self::stamp(&mut frame, life, Position(position), Position(durable));
        frame
    }

    // Everything from byte 16, padding included; the length, which stands before, takes part through the seed.
    pub(super) fn sum(frame: &[u8], life: u64) -> u64 {
        let mut length = [0; 4];
        length.copy_from_slice(&frame[4..8]);
        let seed = life ^ u64::from(u32::from_le_bytes(length));
        checksum(seed, &frame[16..])
    }

    /// Bytes of the frame that may begin here, by what needs no checksum: a position that can be in this segment, after what was durable.
    pub(crate) fn glance(bytes: &[u8], life: u64, positions: &RangeInclusive<u64>) -> Option<usize> {
        let mut reader = Reader::new(bytes);
        if reader.array("magic").ok()? != Self::MAGIC {
            return None;
        }
        let length = Self::frame_bytes(reader.u32("length").ok()? as usize);
        let _checksum = reader.u64("checksum").ok()?;
        let (position, durable) = (reader.u64("position").ok()? ^ life, reader.u64("durable").ok()? ^ life);
        (positions.contains(&position) && durable < position && length <= bytes.len()).then_some(length)
    }

    /// Reads the frame at the head of `bytes` in the segment use called `life`: header and payload, or `None` where no
    /// valid one begins.
    pub(crate) fn decode(bytes: &[u8], life: u64) -> Option<(FrameHeader, &[u8])> {
        let mut reader = Reader::new(bytes);
        if reader.array("magic").ok()? != Self::MAGIC {
            return None;
        }
        let length = reader.u32("length").ok()?;
        if length as usize > FRAME_BYTES_MAX {
            return None;
        }
        let frame = bytes.get(..Self::frame_bytes(length as usize))?;
        if reader.u64("checksum").ok()? != Self::sum(frame, life) {
            return None;
        }
        let header = FrameHeader {
            length,
            position: Position(reader.u64("position").ok()? ^ life),
            durable: Position(reader.u64("durable").ok()? ^ life),
        };
        let (payload, padding) = frame[Self::BYTES..].split_at(length as usize);
        let fits = padding.iter().all(|byte| *byte == 0) && header.position.0.max(header.durable.0) <= NUMBER_MAX;
        fits.then_some((header, payload))
    }
}

const _: () = assert!(FrameHeader::BYTES.is_multiple_of(FrameHeader::ALIGN));
const _: () = assert!(FrameHeader::GROUP_ALIGN.is_multiple_of(FrameHeader::ALIGN));
const _: () = assert!(SegmentHeader::FRAMES_AT >= SegmentHeader::BYTES);
