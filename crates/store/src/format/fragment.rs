//! Fragments: the files that a sealed pack is cut into, each on a disk of its own.
//!
//! Not here: what parity is (`erasure`), what lies in a pack (`pack`).

use std::ops::Range;

use base::codec::{Reader, Writer};
use base::hash::checksum;

use super::{
    ChunkHeader, NUMBER_MAX, PACKS, Unfit, checked, expect, expect_end, expect_magic, expect_version, number_of, seal,
};
use crate::level::Erasure;

// ---------------------------------------------------------------------------------------------------------------
// Fragments: the files packs/<16 hex digits>.<k>+<m>.<index>.fragment.

/// The version of fragments that this program writes.
///
/// | version | date | change |
/// |---|---|---|
/// | 1 | 2026-11 | first |
pub(super) const FRAGMENT_VERSION: u32 = 1;

const FRAGMENT_SUFFIX: &str = ".fragment";
/// Added to the name of a fragment that is not whole yet.
const UNFINISHED_SUFFIX: &str = ".fragment.new";
/// Added to the name of a fragment of a pack that was set aside.
const FRAGMENT_DAMAGED_SUFFIX: &str = ".fragment.damaged";

/// How a pack's file is cut: into runs of equal length, one after the other, the last one filled up with zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) erasure: Erasure,
    /// Bytes of the pack's file.
    pub(crate) whole_bytes: u64,
}

impl Cut {
    /// What has a checksum of its own.
    pub(crate) const BLOCK_BYTES: u64 = 16 << 10;
    /// What the code takes at a time.
    const UNIT_BYTES: u64 = 64;
    /// Where content may begin, as the device has it.
    const ALIGN: u64 = 4096;

    /// Bytes of content in each fragment.
    pub(crate) fn bytes(&self) -> u64 {
        self.whole_bytes.div_ceil(u64::from(self.erasure.data())).max(1).next_multiple_of(Self::UNIT_BYTES)
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.bytes().div_ceil(Self::BLOCK_BYTES)
    }

    /// Where the checksums of some blocks lie in a fragment's file.
    pub(crate) fn sums_at(&self, blocks: &Range<u64>) -> Range<u64> {
        let at = |block| FragmentHeader::BYTES as u64 + block * size_of::<u64>() as u64;
        at(blocks.start)..at(blocks.end)
    }

    /// Where content begins in a fragment's file.
    pub(crate) fn content_at(&self) -> u64 {
        self.sums_at(&(0..self.blocks())).end.next_multiple_of(Self::ALIGN)
    }

    /// Bytes of a fragment's file.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.content_at() + self.bytes()
    }

    /// Bytes of all its fragments.
    pub(crate) fn all_bytes(&self) -> u64 {
        self.file_bytes() * self.erasure.count() as u64
    }

    /// The blocks that a range of a fragment's content is in.
    pub(crate) fn blocks_of(&self, range: &Range<u64>) -> Range<u64> {
        range.start / Self::BLOCK_BYTES..range.end.div_ceil(Self::BLOCK_BYTES)
    }

    /// The content of some blocks.
    pub(crate) fn content_of(&self, blocks: &Range<u64>) -> Range<u64> {
        blocks.start * Self::BLOCK_BYTES..(blocks.end * Self::BLOCK_BYTES).min(self.bytes())
    }

    /// Where a range of the pack's file lies: which fragment, and where in its content.
    pub(crate) fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = (usize, Range<u64>)> {
        let (bytes, end) = (self.bytes(), range.end.min(self.whole_bytes));
        let mut at = range.start;
        std::iter::from_fn(move || {
            let (index, from) = (at / bytes, at % bytes);
            let to = bytes.min(from + end.checked_sub(at).filter(|left| *left > 0)?);
            at += to - from;
            Some((usize::try_from(index).expect("below k"), from..to))
        })
    }
}

/// The first bytes of a fragment. Behind them the checksums of its blocks, zeroes up to a page, and its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FragmentHeader {
    pub(crate) pack: u64,
    pub(crate) node_identity: [u8; 16],
    pub(crate) cut: Cut,
    /// Those of data come first.
    pub(crate) index: u8,
    /// Checksum of the checksums.
    pub(crate) sums: u64,
}

impl FragmentHeader {
    pub(crate) const BYTES: usize = 72;
    const MAGIC: [u8; 8] = *b"HydrFrag";

    /// Binds what lies in a fragment to its place.
    fn seed(pack: u64, index: u8) -> u64 {
        ChunkHeader::seed(pack, u32::from(index))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(Self::BYTES);
        let Cut { erasure, whole_bytes } = self.cut;
        writer.put(&Self::MAGIC).u32(FRAGMENT_VERSION).u8(erasure.data()).u8(erasure.parity()).u8(self.index).u8(0);
        writer.u64(self.pack).put(&self.node_identity).u64(whole_bytes).u64(self.sums);
        seal(writer, Self::BYTES, Self::seed(self.pack, self.index))
    }

    /// Reads the header of the file that should be this fragment.
    pub(crate) fn decode(bytes: &[u8], name: &FragmentName) -> Result<FragmentHeader, Unfit> {
        let mut reader = Reader::new(bytes);
        expect_magic(Self::MAGIC, reader.array("magic")?)?;
        checked(bytes, Self::seed(name.pack, name.index))?;
        expect_version(FRAGMENT_VERSION, reader.u32("version")?)?;
        let erasure = Erasure::new(reader.u8("k")?, reader.u8("m")?).ok_or_else(|| reader.refuse("k+m"))?;
        expect("k+m", name.erasure, erasure)?;
        expect("index", name.index, reader.u8("index")?)?;
        reader.zeroes("padding", 1)?;
        expect("pack number", name.pack, reader.u64("pack")?)?;
        let node_identity = reader.array("node identity")?;
        let whole_bytes = reader.u64("length of the pack")?;
        if whole_bytes == 0 || whole_bytes > u64::from(u32::MAX) {
            return Err(reader.refuse("length of the pack").into());
        }
        let sums = reader.u64("checksum of checksums")?;
        expect_end(&mut reader, Self::BYTES)?;
        let cut = Cut { erasure, whole_bytes };
        Ok(FragmentHeader { pack: name.pack, node_identity, cut, index: name.index, sums })
    }

    /// The checksum of a block of content.
    pub(crate) fn sum(pack: u64, index: usize, block: u64, bytes: &[u8]) -> u64 {
        let index = u8::try_from(index).expect("fewer than 256 fragments");
        checksum(Self::seed(pack, index).rotate_left(32) ^ block, bytes)
    }

    /// The checksum of all of them as they lie there.
    pub(crate) fn sum_of_sums(pack: u64, index: u8, sums: &[u8]) -> u64 {
        checksum(Self::seed(pack, index), sums)
    }
}

/// Which fragment of which pack, as the name of its file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FragmentName {
    pub(crate) pack: u64,
    pub(crate) erasure: Erasure,
    pub(crate) index: u8,
}

impl FragmentName {
    pub(crate) fn new(pack: u64, erasure: Erasure, index: usize) -> FragmentName {
        FragmentName { pack, erasure, index: u8::try_from(index).expect("fewer than 256 fragments") }
    }

    fn with(&self, suffix: &str) -> String {
        let FragmentName { pack, erasure, index } = self;
        format!("{PACKS}/{pack:016x}.{erasure}.{index}{suffix}")
    }

    /// Its path on its disk.
    pub(crate) fn path(&self) -> String {
        self.with(FRAGMENT_SUFFIX)
    }

    /// Where it is written until it is whole.
    pub(crate) fn unfinished_path(&self) -> String {
        self.with(UNFINISHED_SUFFIX)
    }

    /// Where it is set aside.
    pub(crate) fn damaged_path(&self) -> String {
        self.with(FRAGMENT_DAMAGED_SUFFIX)
    }

    fn read(name: &str, suffix: &str) -> Option<FragmentName> {
        let (pack, rest) = name.strip_suffix(suffix)?.split_once('.')?;
        let (erasure, index) = rest.split_once('.')?;
        let pack = number_of(pack, "").filter(|pack| *pack <= NUMBER_MAX)?;
        let read = FragmentName { pack, erasure: erasure.parse().ok()?, index: index.parse().ok()? };
        let is_ours = usize::from(read.index) < read.erasure.count() && read.with(suffix).ends_with(name);
        is_ours.then_some(read)
    }

    /// `None` for names that are not ours.
    pub(crate) fn of(name: &str) -> Option<FragmentName> {
        FragmentName::read(name, FRAGMENT_SUFFIX)
    }

    /// The same for one that is not whole yet.
    pub(crate) fn of_unfinished(name: &str) -> Option<FragmentName> {
        FragmentName::read(name, UNFINISHED_SUFFIX)
    }

    /// The same for one that was set aside.
    pub(crate) fn of_damaged(name: &str) -> Option<FragmentName> {
        FragmentName::read(name, FRAGMENT_DAMAGED_SUFFIX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_a_pack_lies_in_one_fragment() {
        for whole_bytes in [1, 63, 64, 100_000, 1 << 20, (64 << 20) + 77] {
            for erasure in ["2+1", "4+2", "16+4"] {
                let cut = Cut { erasure: erasure.parse().unwrap(), whole_bytes };
                let pieces: Vec<_> = cut.pieces(0..whole_bytes).collect();
                assert!(pieces.len() <= usize::from(cut.erasure.data()));
                let mut at = 0;
                for (index, range) in &pieces {
                    assert_eq!(*index as u64 * cut.bytes() + range.start, at);
                    assert!(range.end <= cut.bytes());
                    at += range.end - range.start;
                }
                assert_eq!(at, whole_bytes);
                assert_eq!(cut.pieces(whole_bytes..whole_bytes + 9).count(), 0);
                assert_eq!(cut.content_of(&cut.blocks_of(&(0..cut.bytes()))), 0..cut.bytes());
            }
        }
    }

    #[test]
    fn names_are_read_as_they_are_written_and_no_others() {
        let name = FragmentName::new(0xab, "4+2".parse().unwrap(), 5);
        assert_eq!(name.path(), "packs/00000000000000ab.4+2.5.fragment");
        assert_eq!(FragmentName::of("00000000000000ab.4+2.5.fragment"), Some(name));
        assert_eq!(FragmentName::of_unfinished("00000000000000ab.4+2.5.fragment.new"), Some(name));
        assert_eq!(FragmentName::of_damaged("00000000000000ab.4+2.5.fragment.damaged"), Some(name));
        for other in ["ab.4+2.5.fragment", "00000000000000ab.4+2.6.fragment", "00000000000000ab.04+2.5.fragment"] {
            assert_eq!(FragmentName::of(other), None, "{other}");
        }
        for other in ["00000000000000ab.4+2.05.fragment", "00000000000000ab.fragment", "00000000000000ab.pack"] {
            assert_eq!(FragmentName::of(other), None, "{other}");
        }
    }
}
