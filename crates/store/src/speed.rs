//! Speed: what a disk takes for a request, and how many at a time it does best (BFO, Yang et al., MSST 2019, merges reads over gaps that cost
//! less than a request, by the measured profile of the disk).
//!
//! Not here: how it is measured (`probe`).

use std::time::Duration;

/// The least and the largest gap that is read over: a request costs our own threads something too, and no run is longer.
const GAP_BYTES: std::ops::RangeInclusive<u64> = 32 << 10..=1 << 20;

/// What a disk takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpeed {
    /// A small read while nobody else reads.
    pub alone: Duration,
    /// How many requests at a time it does best: twice as many gain less than a quarter, and let others wait twice as long.
    pub depth: u32,
    /// What a small read adds where so many are under way.
    pub request: Duration,
    /// What long reads bring beyond what they take as requests.
    pub bytes_per_second: u64,
    /// When it was measured, by the monotonic clock.
    pub measured: Duration,
}

impl DiskSpeed {
    /// Reading so many bytes that nobody wants costs no more than another request.
    #[must_use]
    pub fn gap_bytes(&self) -> u64 {
        let bytes = self.request.as_nanos() * u128::from(self.bytes_per_second) / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX).clamp(*GAP_BYTES.start(), *GAP_BYTES.end())
    }
}
