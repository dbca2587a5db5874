//! The only door to the outside: disks, clock, randomness, tasks. Real or simulated, and nobody above can tell.
//!
//! Crates above take a [`Platform`] and [`disk::Disk`]s and never touch `std::fs`, `Instant::now`, threads or random numbers
//! themselves (clippy.toml bans them). On the real platform an operation on a disk is a call that may never return, and is left behind
//! then (`real/call.rs`); on the simulated one it waits its turn in virtual time.
//!
//! Not here: what the bytes mean; sockets (they come with the cluster).

pub mod task;

pub mod pools;

pub mod memory;

mod meter;

pub mod disk;

pub mod real;
pub mod sim;

use std::sync::Arc;
use std::time::Duration;

use base::metric::Histogram;
use base::time::Timestamp;

/// Time as the outside world has it.
pub trait Clock: Send + Sync {
    /// Wall-clock time, which may jump.
    fn now(&self) -> Timestamp;
    /// Time since some fixed moment of this process; never goes back.
    fn elapsed(&self) -> Duration;
}

impl dyn Clock {
    /// Measures the time from now until it is dropped, whatever ends it. A reading of the clock took 56 to 115 ns (measured on
    /// a busy virtual machine).
    pub fn timer<'a>(&'a self, histogram: &'a Histogram) -> Timer<'a> {
        Timer { clock: self, histogram, start: self.elapsed() }
    }
}

/// A time being measured.
#[must_use]
pub struct Timer<'a> {
    clock: &'a dyn Clock,
    histogram: &'a Histogram,
    start: Duration,
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        self.histogram.record_time(self.clock.elapsed().saturating_sub(self.start));
    }
}

/// A source of random bytes.
pub trait Chance: Send + Sync {
    /// Fills `bytes`.
    fn fill(&self, bytes: &mut [u8]);
}

/// Clock, randomness and tasks of one node.
#[derive(Clone)]
pub struct Platform {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub chance: Arc<dyn Chance>,
    /// Tasks and timers.
    pub tasks: Arc<dyn task::Tasks>,
}
