//! What the index file names, about, in a few bits of memory for each chunk: whoever stores new content need not look into the file to hear that
//! it is new. With cold caches, or a file beyond them, each such look would be a read of a page by itself.
//!
//! A split block Bloom filter (Putze, Sanders, Singler, WEA 2007; Parquet's, with words of 64 bits): addresses are hashes already, and all bits of one
//! lie in one line of the processor's cache.
//!
//! X-7   Only who looks for a duplicate believes it: he stores a chunk once more at worst. It takes in what is appended from its beginning on, then
//!       what memory has, and last what the file has, so that it lacks nothing when it is whole; until then it says that all may be there.
//!
//! Not here: when it is made (`store`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::id::ChunkAddress;

/// Words of a block: 64 bytes.
const WORDS: usize = 8;
/// Bits of a chunk at first; when there are twice as many, half of it. Of those that are new at most one in a hundred is looked for in vain then (tested).
const BITS: u64 = 32;
/// With fewer it says too seldom that something is new.
const BITS_MIN: u64 = 8;
/// Of an index of so many it begins.
const CHUNKS_MIN: u64 = 64 << 10;

/// The filter.
pub(crate) struct Filter {
    blocks: Box<[[AtomicU64; WORDS]]>,
    is_whole: AtomicBool,
    is_over: AtomicBool,
}

impl Filter {
    /// An empty one for so many chunks and as many again, in no more than so many bytes; `None`: they are too many for it.
    pub(super) fn for_chunks(chunks: u64, bytes_max: u64) -> Option<Filter> {
        let chunks = chunks.max(CHUNKS_MIN);
        let bytes = (chunks * BITS / 8).min(bytes_max);
        if bytes * 8 < chunks * BITS_MIN {
            return None;
        }
        Some(Filter::empty(bytes))
    }

    /// An empty one of so many bytes, which lacks nothing.
    pub(super) fn of_bytes(bytes: u64) -> Filter {
        let filter = Filter::empty(bytes);
        filter.note_whole();
        filter
    }

    fn empty(bytes: u64) -> Filter {
        let blocks = (bytes / (WORDS as u64 * 8)).max(1);
        let blocks = (0..blocks).map(|_| Default::default()).collect();
        Filter { blocks, is_whole: AtomicBool::new(false), is_over: AtomicBool::new(false) }
    }

    pub(super) fn add(&self, address: &ChunkAddress) {
        let (block, mask) = self.place(address);
        for (word, bit) in block.iter().zip(mask) {
            // Most are there in the end, and a line that is only read is nobody's alone.
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    /// Whether the index may name it.
    pub(super) fn may_have(&self, address: &ChunkAddress) -> bool {
        if !self.is_whole.load(Ordering::Acquire) {
            return true;
        }
        let (block, mask) = self.place(address);
        block.iter().zip(mask).all(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// From now on what it lacks is new.
    pub(super) fn note_whole(&self) {
        self.is_whole.store(true, Ordering::Release);
    }

    /// Whether nobody waits for it to become whole any more.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// The block of an address, and a bit of each of its words.
    fn place(&self, address: &ChunkAddress) -> (&[AtomicU64; WORDS], [u64; WORDS]) {
        // Not the bytes that the maps and their shards use.
        let word = |at: usize| u64::from_le_bytes(address.0[at..at + 8].try_into().expect("eight bytes"));
        let block = ((u128::from(word(8)) * self.blocks.len() as u128) >> 64) as usize;
        let bits = word(16);
        (&self.blocks[block], std::array::from_fn(|number| 1 << ((bits >> (6 * number)) & 63)))
    }
}

#[cfg(test)]
mod tests {
    use base::hash::DomainKey;
    use base::id::ChunkAddress;

    use super::{CHUNKS_MIN, Filter};

    fn address(number: u64) -> ChunkAddress {
        DomainKey([7; 32]).address(&number.to_le_bytes())
    }

    #[test]
    fn what_was_added_may_be_there_and_hardly_anything_else() {
        for (bits, wrong_max) in [(32, 10), (16, 100), (8, 700)] {
            let chunks = CHUNKS_MIN;
            let filter = Filter::for_chunks(chunks, chunks * bits / 8).expect("there is room");
            assert!(filter.may_have(&address(1)), "not whole, it knows nothing");
            (0..chunks).for_each(|number| filter.add(&address(number)));
            filter.note_whole();
            assert!((0..chunks).all(|number| filter.may_have(&address(number))));
            let wrong = (chunks..chunks + 10_000).filter(|number| filter.may_have(&address(*number))).count();
            assert!(wrong <= wrong_max, "{wrong} of 10000 with {bits} bits");
        }
    }

    #[test]
    fn there_is_none_without_room() {
        assert!(Filter::for_chunks(1 << 30, 64 << 20).is_none());
        assert!(Filter::for_chunks(0, 1 << 10).is_none());
        assert!(Filter::for_chunks(0, 1 << 20).is_some());
    }
}
