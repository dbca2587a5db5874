//! Random choices of the workload, a function of a seed and a stream's name.
//!
//! Each actor (a client, the keeper, the nemesis) has a stream of its own, so that one more draw of one does not change
//! what another does. SplitMix64, as in `platform::sim`.

use base::hash::checksum;

/// One stream.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The stream of this name for this seed.
    pub(crate) fn stream(seed: u64, name: &str) -> Random {
        Random(checksum(seed, name.as_bytes()))
    }

    /// 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `bound`; 0 for a bound of 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("the high half of a product is below its factors")
    }

    /// An index below `count`.
    pub(crate) fn index(&mut self, count: usize) -> usize {
        usize::try_from(self.below(count as u64)).expect("below a usize")
    }

    /// True once in `count` times.
    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// One of these.
    pub(crate) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.index(items.len())]
    }

    /// One of these, or `None` of none.
    pub(crate) fn pick_any<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        if items.is_empty() { None } else { Some(self.pick(items)) }
    }

    /// A length: mostly small, sometimes up to `most`.
    pub(crate) fn length(&mut self, most: u64) -> u64 {
        let bound = match self.below(10) {
            0..=3 => 200,
            4..=7 => 9_000,
            _ => most,
        };
        1 + self.below(bound.min(most))
    }

    /// Content of a write. Mostly unlike any other, so that every byte tells which write it is from; also what compresses, what
    /// was written before (dedup), and zeroes.
    pub(crate) fn content(&mut self, length: u64) -> Vec<u8> {
        let length = usize::try_from(length).expect("a write fits in memory");
        let (mut source, mask) = match self.below(12) {
            0 => return vec![0; length],
            1 | 2 => (Random(self.below(4)), u64::MAX),
            3 | 4 => (Random(self.next()), 0x0307_0307_0307_0307),
            _ => (Random(self.next()), u64::MAX),
        };
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend_from_slice(&(source.next() & mask).to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }
}
