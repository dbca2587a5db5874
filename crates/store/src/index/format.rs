//! The file `index` below redb: pages in groups, the first of each with the checksums of the others. Described in docs/format.md, "Index".
//!
//! A checksum is bound to its page's place, and a page of checksums to its group, so that the right bytes in the wrong place do not pass.
//! Decoding never panics.
//!
//! Not here: what is in redb's tables (`crate::format`), who reads and writes (`backend`).

use base::hash::checksum;

/// The first page of each group of the index: checksums of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IndexSums {
    /// By place in the group; 0 of a page that nobody wrote, which is all zeroes.
    pub(crate) sums: Box<[u64; IndexSums::PAGES]>,
}

impl IndexSums {
    /// A page: the least that redb writes, but for its header.
    pub(crate) const PAGE_BYTES: usize = 4096;
    /// Pages of redb's in a group.
    pub(crate) const PAGES: usize = Self::PAGE_BYTES / 8 - 1;
    const MAGIC: u64 = u64::from_le_bytes(*b"HFXSUM\x01\0");

    /// Of a group that nobody wrote.
    pub(crate) fn unwritten() -> IndexSums {
        IndexSums { sums: Box::new([0; Self::PAGES]) }
    }

    /// Where a page of redb's lies in the file.
    pub(crate) fn offset_of(page: u64) -> u64 {
        (page / Self::PAGES as u64 * (Self::PAGES as u64 + 1) + 1 + page % Self::PAGES as u64) * Self::PAGE_BYTES as u64
    }

    /// Where a group's checksums lie in the file.
    pub(crate) fn offset(group: u64) -> u64 {
        group * (Self::PAGES as u64 + 1) * Self::PAGE_BYTES as u64
    }

    /// Bytes of the file for so many pages of redb's.
    pub(crate) fn file_bytes(pages: u64) -> u64 {
        pages.checked_sub(1).map_or(0, |last| Self::offset_of(last) + Self::PAGE_BYTES as u64)
    }

    /// Pages of redb's in a file of this length.
    pub(crate) fn pages_in(file_bytes: u64) -> u64 {
        let pages = file_bytes / Self::PAGE_BYTES as u64;
        pages.saturating_sub(pages.div_ceil(Self::PAGES as u64 + 1))
    }

    /// The checksum of a page. Bound to its place; never 0.
    pub(crate) fn sum(page: u64, bytes: &[u8]) -> u64 {
        checksum(page, bytes).max(1)
    }

    pub(crate) fn encode(&self, group: u64) -> [u8; Self::PAGE_BYTES] {
        let mut bytes = [0; Self::PAGE_BYTES];
        bytes[..8].copy_from_slice(&(Self::MAGIC ^ group).to_le_bytes());
        for (slot, sum) in bytes[8..].chunks_exact_mut(8).zip(&*self.sums) {
            slot.copy_from_slice(&sum.to_le_bytes());
        }
        bytes
    }

    /// `None` for a page that is no group's, or another's. What a power cut left of one that was being written is a mixture of old and
    /// new checksums, each whole.
    pub(crate) fn decode(group: u64, bytes: &[u8; Self::PAGE_BYTES]) -> Option<IndexSums> {
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        let mut read = IndexSums::unwritten();
        for (sum, slot) in read.sums.iter_mut().zip(bytes[8..].chunks_exact(8)) {
            *sum = word(slot);
        }
        let is_unwritten = bytes.iter().all(|byte| *byte == 0);
        (is_unwritten || word(&bytes[..8]) == Self::MAGIC ^ group).then_some(read)
    }
}
