//! What a session has done, counted per thread and added up when asked.

use crate::flags::opcode;
use std::sync::atomic::{AtomicU64, Ordering};

/// One thread's counters; nobody else writes them, so counting costs no shared cache line.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    requests: Cells<{ opcode::COUNT }>,
    /// Answered after the first poll.
    pub(crate) late: AtomicU64,
    /// INTERRUPTs read.
    pub(crate) interrupts: AtomicU64,
    /// Nodes in FORGET and BATCH_FORGET.
    pub(crate) forgets: AtomicU64,
    /// Ring entries added because late answers occupied the others.
    pub(crate) grown: AtomicU64,
    /// Times a ring had no entry left and its queue had to be set going again.
    pub(crate) starved: AtomicU64,
}

struct Cells<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Cells<N> {
    fn default() -> Self {
        Cells(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Counters {
    pub(crate) fn request(&self, number: u32) {
        let index = usize::try_from(number).ok().filter(|index| *index < opcode::COUNT).unwrap_or(0);
        add(&self.requests.0[index], 1);
    }
}

/// Adds to a counter of the calling thread.
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// What a session has done so far.
#[derive(Clone, Debug)]
pub struct Counts {
    /// Requests by opcode (`flags::opcode`); unknown ones in place 0.
    pub requests: [u64; opcode::COUNT],
    /// Requests that were not answered on the spot.
    pub late: u64,
    /// INTERRUPTs read.
    pub interrupts: u64,
    /// Nodes forgotten.
    pub forgets: u64,
    /// Ring entries added because late answers occupied the others.
    pub grown: u64,
    /// Times a ring had no entry left and its queue had to be set going again.
    pub starved: u64,
}

impl Counts {
    /// The sum over all threads.
    pub(crate) fn sum<'a>(all: impl Iterator<Item = &'a Counters>) -> Counts {
        let mut sum = Counts { requests: [0; opcode::COUNT], late: 0, interrupts: 0, forgets: 0, grown: 0, starved: 0 };
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        for one in all {
            for (total, cell) in sum.requests.iter_mut().zip(&one.requests.0) {
                *total += read(cell);
            }
            sum.late += read(&one.late);
            sum.interrupts += read(&one.interrupts);
            sum.forgets += read(&one.forgets);
            sum.grown += read(&one.grown);
            sum.starved += read(&one.starved);
        }
        sum
    }

    /// All requests.
    pub fn total(&self) -> u64 {
        self.requests.iter().sum()
    }
}
