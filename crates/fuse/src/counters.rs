//! What a session measures, kept per thread and added up when asked.
//!
//! A request is timed from the moment in which its thread saw it until its answer is handed to the kernel, on whichever thread and
//! however late. What it waited in the kernel before is not known here. Two readings of the clock a request (`platform::Clock`).

use crate::flags::opcode;
use crate::lock::lock;
use base::metric::{Description, Histogram, Kind, Metric, Unit, Value};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

base::metrics! {
    /// What one thread counts beside its requests.
    fuse:
    late: Counter, Count, "requests answered after the first poll";
    interrupts: Counter, Count, "INTERRUPTs read";
    forgets: Counter, Count, "nodes in FORGET and BATCH_FORGET";
    ring_grown: Counter, Count, "ring entries added because late answers occupied the others";
    ring_starved: Counter, Count, "times the queue of a ring was set going, for requests might wait beside entries that are free";
    ring_watches: Counter, Count, "times a ring's thread stayed awake for the answer to a request that waited";
    ring_watches_vain: Counter, Count, "those in which none came in the time that it usually takes";
    ring_delayed: Counter, Count, "times a ring's thread got its CPU late because it gives way to callers, and stopped doing so for a while";
}

const REQUESTS: Description = Description {
    layer: "fuse",
    name: "requests",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "requests received from the kernel, by kind",
};
const REQUEST: Description = Description {
    layer: "fuse",
    name: "request",
    kind: Kind::Histogram,
    unit: Unit::Seconds,
    help: "a request is answered, by kind: from its arrival in the daemon until its answer is handed over",
};

/// One thread's share; mostly nobody else writes it, so counting costs no shared cache line.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Tally {
    pub(crate) counters: Counters,
    requests: Cells<AtomicU64>,
    /// Made at the first request of a kind: a thread sees few of the kinds, and a histogram takes 3 KiB.
    times: Cells<OnceLock<Box<Histogram>>>,
}

/// By opcode; unknown ones in place 0.
struct Cells<T>([T; opcode::COUNT]);

impl<T: Default> Default for Cells<T> {
    fn default() -> Self {
        Cells(std::array::from_fn(|_| T::default()))
    }
}

impl<T> Cells<T> {
    fn of(&self, number: u32) -> &T {
        &self.0[usize::try_from(number).ok().filter(|index| *index < opcode::COUNT).unwrap_or(0)]
    }
}

impl Tally {
    /// A request has arrived.
    pub(crate) fn request(&self, number: u32) {
        self.requests.of(number).fetch_add(1, Ordering::Relaxed);
    }

    /// A request that arrived then is answered.
    pub(crate) fn answered(&self, number: u32, arrived: Instant) {
        self.times.of(number).get_or_init(Box::default).record_time(arrived.elapsed());
    }
}

/// What all threads of a session measured; outlives it.
#[derive(Clone, Default)]
pub struct Meter(Arc<Mutex<Vec<Arc<Tally>>>>);

impl Meter {
    /// For one more thread.
    pub(crate) fn tally(&self) -> Arc<Tally> {
        let tally = Arc::<Tally>::default();
        lock(&self.0).push(tally.clone());
        tally
    }

    /// What is measured.
    #[must_use]
    pub fn descriptions() -> Vec<Description> {
        [&[REQUESTS, REQUEST], Counters::DESCRIPTIONS].concat()
    }

    /// Requests so far, of all kinds.
    #[must_use]
    pub fn requests(&self) -> u64 {
        let of = |tally: &Arc<Tally>| tally.requests.0.iter().map(|cell| cell.load(Ordering::Relaxed)).sum::<u64>();
        lock(&self.0).iter().map(of).sum()
    }

    /// The sum over all threads. Kinds of requests that never came are left out.
    #[must_use]
    pub fn list(&self) -> Vec<Metric> {
        let tallies = lock(&self.0);
        let mut metrics = Vec::new();
        for number in 0..opcode::COUNT {
            let count = tallies.iter().map(|tally| tally.requests.0[number].load(Ordering::Relaxed)).sum();
            let mut times = Value::Distribution(Default::default());
            for time in tallies.iter().filter_map(|tally| tally.times.0[number].get()) {
                times.merge(&Value::Distribution(time.distribution()));
            }
            if count > 0 {
                let name = opcode::name(u32::try_from(number).unwrap_or_default()).to_lowercase();
                let metric = |description, value| Metric { description, label: Some(("op", name.clone())), value };
                metrics.extend([metric(REQUESTS, Value::Number(count)), metric(REQUEST, times)]);
            }
        }
        let mut sum = Counters::default().list();
        for tally in tallies.iter() {
            sum.iter_mut().zip(tally.counters.list()).for_each(|(sum, more)| sum.value.merge(&more.value));
        }
        metrics.extend(sum);
        metrics
    }
}
