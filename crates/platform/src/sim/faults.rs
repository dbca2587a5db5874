//! What is wrong with a disk, beyond what every disk may do at a power loss.

use std::time::Duration;

/// Faults of one disk. Probabilities are per operation, 0 to 1. The default is a disk without faults.
#[derive(Clone, Debug, PartialEq)]
pub struct Faults {
    /// A read or a listing fails, or an existing file cannot be opened.
    pub read_error: f64,
    /// A write, a change of length or of a name fails. Any part of it may have happened.
    pub write_error: f64,
    /// A sync fails, and what it should have made durable may be lost (rule M-7).
    pub sync_error: f64,
    /// One bit flips on its way into memory (rule M-8).
    pub flip_read: f64,
    /// A page comes as it was before the last sync that changed the file (rule M-8).
    pub stale_read: f64,
    /// A write stores one wrong bit.
    pub flip_write: f64,
    /// A write is acknowledged and the bytes never get there; the file grows as if they had.
    pub lost_write: f64,
    /// A write is acknowledged and its bytes go to some other place, in this file or another; here it is a lost write.
    pub misdirected_write: f64,
    /// Every operation takes this many times as long.
    pub slowness: u32,
    /// Every operation takes so much longer: a disk that is far away, or turns.
    pub latency: Duration,
    /// Everything that would change something fails with `ReadOnly`.
    pub is_read_only: bool,
    /// Every operation fails.
    pub is_dead: bool,
}

impl Default for Faults {
    fn default() -> Self {
        Faults {
            read_error: 0.0,
            write_error: 0.0,
            sync_error: 0.0,
            flip_read: 0.0,
            stale_read: 0.0,
            flip_write: 0.0,
            lost_write: 0.0,
            misdirected_write: 0.0,
            slowness: 1,
            latency: Duration::ZERO,
            is_read_only: false,
            is_dead: false,
        }
    }
}
