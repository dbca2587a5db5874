//! Random numbers that are a function of a seed.
//!
//! Each user has its own stream, so that one more draw in one place (a latency, say) does not change the choices in another. The
//! generator is SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): eight lines, any seed is a good one, and nothing
//! here has to resist an adversary.

use base::hash::checksum;

/// One stream.
pub(super) struct Random(u64);

impl Random {
    /// The stream of this name in a world with this seed.
    pub(super) fn stream(seed: u64, name: &str) -> Random {
        Random(checksum(seed, name.as_bytes()))
    }

    /// 64 random bits.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below 0");
        let wide = u128::from(self.next()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("the high half of a product is below its factors")
    }

    /// An index below `count`, which is not 0.
    pub(super) fn index(&mut self, count: usize) -> usize {
        let bound = u64::try_from(count).expect("a count in memory");
        usize::try_from(self.below(bound)).expect("below a usize")
    }

    /// True in half of the cases.
    pub(super) fn coin(&mut self) -> bool {
        self.next() >> 63 == 1
    }

    /// True with this probability. Zero draws nothing, so that a fault that is switched off changes nothing.
    pub(super) fn chance(&mut self, probability: f64) -> bool {
        // 2^53 is the number of steps of an f64 between 0 and 1; the product is exact enough and the same everywhere.
        const STEPS: u64 = 1 << 53;
        probability > 0.0 && (self.below(STEPS) as f64) < probability * STEPS as f64
    }

    /// Fills `bytes`.
    pub(super) fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            piece.copy_from_slice(&self.next().to_le_bytes()[..piece.len()]);
        }
    }

    /// A random order.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }
}
