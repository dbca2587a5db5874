//! A reading of a daemon's metrics, and what happened between two; how times are written.

use std::collections::BTreeMap;
use std::path::Path;

use base::metric::Distribution;
use serde_json::{Map, Value, json};

use crate::control::client::Daemon;
use crate::control::wire::Request;
use crate::exposition;
use crate::failure::Failure;

/// The metric of the kernel's requests, by kind.
pub(super) const REQUEST: &str = "fuse_request";

/// A metric's name, and its label where it is one of several.
pub(super) type Key = (String, Option<String>);

/// A reading, or the difference of two.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    /// Of the daemon's time.
    pub(super) seconds: f64,
    pub(super) process: u64,
    pub(super) counters: BTreeMap<Key, u64>,
    /// As they are at the moment, also in a difference.
    pub(super) gauges: BTreeMap<Key, u64>,
    pub(super) histograms: BTreeMap<Key, Distribution>,
}

impl Sample {
    /// Asks the daemon.
    pub(super) fn take(folder: &Path) -> Result<Sample, Failure> {
        let answer = Daemon::find(folder)?.ask(&Request::Counters {}, super::remark)?;
        Ok(Sample::read(&answer))
    }

    fn read(answer: &Value) -> Sample {
        Sample {
            seconds: answer["elapsed_seconds"].as_f64().unwrap_or_default(),
            process: super::number(answer, "/process"),
            counters: by_key(&answer["counters"], Value::as_u64),
            gauges: by_key(&answer["gauges"], Value::as_u64),
            histograms: by_key(&answer["histograms"], exposition::distribution),
        }
    }

    /// What happened since an earlier reading; `None` if the daemon was started anew.
    pub(super) fn since(&self, before: &Sample) -> Option<Sample> {
        if (self.process, self.seconds) < (before.process, before.seconds) || self.process != before.process {
            return None;
        }
        let none = Distribution::default();
        let counter = |(key, now): (&Key, &u64)| {
            (key.clone(), now.saturating_sub(before.counters.get(key).copied().unwrap_or_default()))
        };
        let histogram =
            |(key, now): (&Key, &Distribution)| (key.clone(), now.since(before.histograms.get(key).unwrap_or(&none)));
        Some(Sample {
            seconds: self.seconds - before.seconds,
            process: self.process,
            counters: self.counters.iter().map(counter).collect(),
            gauges: self.gauges.clone(),
            histograms: self.histograms.iter().map(histogram).collect(),
        })
    }

    /// The sum of a counter's values over all its labels, or how often a histogram recorded.
    pub(super) fn count(&self, name: &str) -> u64 {
        let counters = self.counters.iter().filter(|((known, _), _)| known == name).map(|(_, value)| *value);
        let histograms = self.histograms.iter().filter(|((known, _), _)| known == name);
        counters.chain(histograms.map(|(_, values)| values.count())).sum()
    }

    /// A gauge; 0 where there is none.
    pub(super) fn gauge(&self, name: &str) -> u64 {
        self.gauges.get(&(name.to_owned(), None)).copied().unwrap_or_default()
    }

    /// A histogram, of all its labels together; empty where there is none.
    pub(super) fn times(&self, name: &str) -> Distribution {
        let mut sum = Distribution::default();
        let known = self.histograms.iter().filter(|((known, _), _)| known == name);
        known.for_each(|(_, values)| sum.merge(values));
        sum
    }

    /// The requests of each kind, the kind with the largest sum of times first.
    pub(super) fn requests(&self) -> Vec<(String, Distribution)> {
        let requests = self.histograms.iter().filter(|((name, _), values)| name == REQUEST && values.count() > 0);
        let mut requests: Vec<_> =
            requests.map(|((_, op), values)| (op.clone().unwrap_or_default(), values.clone())).collect();
        requests.sort_by_key(|(_, values)| std::cmp::Reverse(values.sum()));
        requests
    }
}

/// Values by name, those of objects also by label. What is not as expected is left out: it is a newer daemon's.
fn by_key<T>(section: &Value, read: impl Fn(&Value) -> Option<T>) -> BTreeMap<Key, T> {
    let mut found = BTreeMap::new();
    for (name, value) in section.as_object().into_iter().flatten() {
        if let Some(value) = read(value) {
            found.insert((name.clone(), None), value);
            continue;
        }
        for (label, value) in value.as_object().into_iter().flatten() {
            found.extend(read(value).map(|value| ((name.clone(), Some(label.clone())), value)));
        }
    }
    found
}

/// Values by name and label as JSON.
pub(super) fn object<T>(values: &BTreeMap<Key, T>, write: impl Fn(&T) -> Option<Value>) -> Value {
    let mut object = Map::new();
    for ((name, label), value) in values {
        let Some(value) = write(value) else { continue };
        match label {
            None => drop(object.insert(name.clone(), value)),
            Some(label) => object.entry(name.clone()).or_insert_with(|| json!({}))[label] = value,
        }
    }
    Value::Object(object)
}

/// What programs hear of a distribution; `None` if it is empty.
pub(super) fn summary(values: &Distribution) -> Option<Value> {
    (values.count() > 0).then(|| {
        json!({
            "count": values.count(),
            "sum": values.sum(),
            "p50": values.quantile(0.5),
            "p90": values.quantile(0.9),
            "p99": values.quantile(0.99),
            "max": values.max(),
        })
    })
}

/// Nanoseconds, to three digits: `950ns`, `12.3us`, `4.57ms`, `1.20s`.
pub(super) fn time(nanos: u64) -> String {
    let scales = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
    let value = nanos as f64;
    // Up to what is written as 1000 of the next smaller one.
    let (unit, scale) = *scales.iter().rev().find(|(_, scale)| value >= 0.9995 * scale).unwrap_or(&scales[0]);
    let value = value / scale;
    let digits = if scale == 1.0 || value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.digits$}{unit}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Sample, time};

    fn sample(process: u64, seconds: f64, reads: u64) -> Sample {
        Sample::read(&json!({
            "elapsed_seconds": seconds,
            "process": process,
            "counters": { "file_reads": reads, "fuse_requests": { "read": reads, "write": 1 }, "odd": ["x"] },
            "gauges": { "file_dirty_bytes": 10 * reads },
            "histograms": { "fuse_request": { "read": { "sum": 8 * reads, "buckets": [[7, reads]] } } },
        }))
    }

    #[test]
    fn a_difference_is_what_came_between() {
        let (before, now) = (sample(1, 1.0, 3), sample(1, 3.5, 10));
        let found = now.since(&before).expect("one daemon");
        assert_eq!((found.seconds, found.count("file_reads"), found.gauge("file_dirty_bytes")), (2.5, 7, 100));
        assert_eq!((found.count("fuse_requests"), found.count("fuse_request"), found.count("odd")), (7, 7, 0));
        let requests = found.requests();
        assert_eq!((requests.len(), &requests[0].0[..], requests[0].1.sum()), (1, "read", 56));
        assert!(sample(2, 9.0, 9).since(&before).is_none() && sample(1, 0.5, 1).since(&before).is_none());
    }

    #[test]
    fn times_have_three_digits_and_a_unit() {
        let times = [0, 999, 1000, 12_345, 999_999, 4_567_000, 100_000_000, 1_200_000_000, 95_000_000_000];
        let shown = ["0ns", "999ns", "1.00us", "12.3us", "1.00ms", "4.57ms", "100ms", "1.20s", "95.0s"];
        assert_eq!(times.map(time), shown);
    }
}
