//! What is measured: counters, and histograms of times and sizes. Each crate declares its own with [`metrics!`], once: name,
//! kind, unit and help; `stats`, `profile`, the Prometheus endpoint and docs/metrics.md all come from that.
//!
//! A histogram has eight buckets between a number and its double, so what it says of a value is at most an eighth off. To record
//! is two relaxed additions: no lock, no allocation, no clock (`platform::Clock::timer` brings one). Nothing else is kept, so the
//! difference of two readings is a histogram of what came between them, with its own largest value.
//!
//! Of our own, because it is the smaller thing: prometheus-client takes a lock for each value; `metrics` has one registry for the
//! process, where the simulator runs many nodes in one; hdrhistogram is written by one thread at a time. Half of this file would
//! remain beside any of them.
//!
//! Not here: how metrics are shown (`node`), times in the kernel's requests (`fuse`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What a metric's values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number of things, which the name says.
    Count,
    /// Bytes.
    Bytes,
    /// Time. Kept in nanoseconds, shown in seconds.
    Seconds,
}

/// What a metric's values do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// They only rise.
    Counter,
    /// They rise and fall.
    Gauge,
    /// They are many, and kept as a distribution.
    Histogram,
}

/// A declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// The crate that measures.
    pub layer: &'static str,
    /// Unique within the layer.
    pub name: &'static str,
    /// What the values do.
    pub kind: Kind,
    /// What the values are.
    pub unit: Unit,
    /// One sentence for people.
    pub help: &'static str,
}

impl Description {
    /// Its name in JSON: `file_read_bytes`.
    #[must_use]
    pub fn key(&self) -> String {
        format!("{}_{}", self.layer, self.name)
    }

    /// Its name in Prometheus, with the unit and, for counters, `total` at the end: `hydrafs_file_read_bytes_total`.
    #[must_use]
    pub fn prometheus(&self) -> String {
        let unit = match self.unit {
            Unit::Count => "",
            Unit::Bytes => "_bytes",
            Unit::Seconds => "_seconds",
        };
        let unit = if self.name.ends_with(unit) { "" } else { unit };
        let total = if self.kind == Kind::Counter { "_total" } else { "" };
        format!("hydrafs_{}{unit}{total}", self.key())
    }
}

/// A metric with its value at one moment.
#[derive(Clone, Debug)]
pub struct Metric {
    /// What it is.
    pub description: Description,
    /// Which one of several it is: name and value.
    pub label: Option<(&'static str, String)>,
    /// What was measured.
    pub value: Value,
}

/// What was measured.
#[derive(Clone, Debug)]
pub enum Value {
    /// Of a counter or gauge.
    Number(u64),
    /// Of a histogram.
    Distribution(Distribution),
}

impl Value {
    /// Adds what another thread measured of the same metric.
    pub fn merge(&mut self, other: &Value) {
        match (self, other) {
            (Value::Number(sum), Value::Number(more)) => *sum += more,
            (Value::Distribution(sum), Value::Distribution(more)) => sum.merge(more),
            _ => unreachable!("one metric is of one kind"),
        }
    }
}

/// What [`metrics!`] can declare.
pub trait Measure {
    /// Its kind.
    const KIND: Kind;
    /// Its value now.
    fn read(&self) -> Value;
}

/// A number that only rises.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// The sum so far.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Measure for Counter {
    const KIND: Kind = Kind::Counter;
    fn read(&self) -> Value {
        Value::Number(self.value())
    }
}

/// Buckets between a number and its double, as a power of two.
const SPLIT: u32 = 3;
/// Larger values are recorded as this one. As nanoseconds it is three days; as many of them as fit into 64 bits would take years.
pub const VALUE_MAX: u64 = 1 << 48;
/// Buckets of a histogram.
const BUCKETS: usize = bucket(VALUE_MAX) + 1;

/// The bucket of a value. Borders belong to the bucket below, as in Prometheus, so that powers of two are borders there; 0 is
/// counted as 1.
const fn bucket(value: u64) -> usize {
    let below = value.saturating_sub(1);
    if below < 1 << SPLIT {
        return below as usize;
    }
    let shift = below.ilog2() - SPLIT;
    ((shift as usize) << SPLIT) + (below >> shift) as usize
}

/// The largest value of a bucket.
const fn border(bucket: usize) -> u64 {
    let bucket = bucket as u64 + 1;
    if bucket <= 1 << (SPLIT + 1) {
        return bucket;
    }
    let (shift, part) = (((bucket - 1) >> SPLIT) - 1, (bucket - 1) & ((1 << SPLIT) - 1));
    ((1 << SPLIT) + part + 1) << shift
}

/// Values by size; times in nanoseconds.
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: [const { AtomicU64::new(0) }; BUCKETS], sum: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// Takes a value; one beyond [`VALUE_MAX`] as that.
    pub fn record(&self, value: u64) {
        let value = value.min(VALUE_MAX);
        self.buckets[bucket(value)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// Takes a time.
    pub fn record_time(&self, time: Duration) {
        self.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// What was recorded so far. Values that come meanwhile are in it or not.
    #[must_use]
    pub fn distribution(&self) -> Distribution {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        Distribution { buckets: self.buckets.iter().map(read).collect(), sum: read(&self.sum) }
    }
}

impl Measure for Histogram {
    const KIND: Kind = Kind::Histogram;
    fn read(&self) -> Value {
        Value::Distribution(self.distribution())
    }
}

/// A reading of a histogram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    buckets: Box<[u64]>,
    sum: u64,
}

impl Default for Distribution {
    fn default() -> Distribution {
        Distribution { buckets: [0; BUCKETS].into(), sum: 0 }
    }
}

impl Distribution {
    /// A distribution from the non-empty buckets by number, as [`Distribution::filled`] gives them. Unknown buckets are left out.
    #[must_use]
    pub fn of(sum: u64, filled: impl IntoIterator<Item = (usize, u64)>) -> Distribution {
        let mut distribution = Distribution { sum, ..Distribution::default() };
        for (bucket, count) in filled {
            if let Some(cell) = distribution.buckets.get_mut(bucket) {
                *cell = cell.saturating_add(count);
            }
        }
        distribution
    }

    /// The non-empty buckets: number and count.
    pub fn filled(&self) -> impl Iterator<Item = (usize, u64)> {
        self.buckets.iter().copied().enumerate().filter(|(_, count)| *count > 0)
    }

    /// How many values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Their sum; exact.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// How many of them are at most `bound`: exact if it is a power of two, else up to the border below.
    #[must_use]
    pub fn count_to(&self, bound: u64) -> u64 {
        let within = self.buckets.iter().enumerate().take_while(|(bucket, _)| border(*bucket) <= bound);
        within.fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// The value below which this share of all lies, as the upper border of its bucket: at most an eighth too large. 0 if there
    /// are none.
    #[must_use]
    pub fn quantile(&self, share: f64) -> u64 {
        let rank = ((self.count() as f64 * share).ceil() as u64).max(1);
        let mut seen = 0_u64;
        for (bucket, count) in self.filled() {
            seen = seen.saturating_add(count);
            if seen >= rank {
                return border(bucket);
            }
        }
        self.filled().last().map_or(0, |(bucket, _)| border(bucket))
    }

    /// The largest value, to the same precision.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.quantile(1.0)
    }

    /// Adds another one's values.
    pub fn merge(&mut self, other: &Distribution) {
        self.sum = self.sum.saturating_add(other.sum);
        for (cell, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *cell = cell.saturating_add(*more);
        }
    }

    /// What was recorded after an earlier reading.
    #[must_use]
    pub fn since(&self, before: &Distribution) -> Distribution {
        let buckets = self.buckets.iter().zip(&before.buckets).map(|(now, before)| now.saturating_sub(*before));
        Distribution { buckets: buckets.collect(), sum: self.sum.saturating_sub(before.sum) }
    }
}

/// Declares what a crate measures: a struct `Counters` with a field for each, and lists of them.
///
/// ```text
/// base::metrics! {
///     /// What the file layer counts.
///     file:
///     reads: Counter, Count, "read calls";
///     commit: Histogram, Seconds, "commits of the tree";
/// }
/// ```
#[macro_export]
macro_rules! metrics {
    ($(#[$attribute:meta])* $layer:ident: $($name:ident: $kind:ident, $unit:ident, $help:literal;)+) => {
        $(#[$attribute])*
        #[derive(Debug, Default)]
        pub struct Counters {
            $(#[doc = $help] pub $name: $crate::metric::$kind,)+
        }

        impl Counters {
            /// What is declared, in that order.
            pub const DESCRIPTIONS: &'static [$crate::metric::Description] = &[$($crate::metric::Description {
                layer: stringify!($layer),
                name: stringify!($name),
                kind: <$crate::metric::$kind as $crate::metric::Measure>::KIND,
                unit: $crate::metric::Unit::$unit,
                help: $help,
            },)+];

            /// All values now, in the order of declaration.
            #[must_use]
            pub fn list(&self) -> Vec<$crate::metric::Metric> {
                let values = [$($crate::metric::Measure::read(&self.$name),)+];
                let metric = |(description, value): (&$crate::metric::Description, _)| {
                    $crate::metric::Metric { description: *description, label: None, value }
                };
                Self::DESCRIPTIONS.iter().zip(values).map(metric).collect()
            }
        }
    };
}

#[cfg(test)]
mod tests;
