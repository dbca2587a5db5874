//! `hydrafs stats`: what a node does, live, one line per interval, like vmstat(8).
//!
//! Rates are differences of the daemon's counters over its own time, so that a late line is not a wrong one. Also all histograms
//! since the daemon's start as a table, and all metrics as Prometheus reads them.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::sample::{self, Sample};
use crate::control::client::Daemon;
use crate::control::wire::Request;
use crate::failure::Failure;
use crate::node_folder::NodeFolder;

/// Lines between two headings.
const LINES_PER_HEADING: u64 = 20;

/// Show what a node does, one line per interval, like vmstat.
#[derive(Args, Debug)]
#[command(
    after_help = "Columns: requests of the kernel per second; reads and writes per second and MiB/s; MiB/s flushed to the store\n\
    and what of it was new and had to be written; fsyncs and commits per second; share of chunk reads from the cache;\n\
    MiB waiting to be flushed, and in the journal.\n\n\
    Examples:\n  \
    hydrafs stats ./node             a line each second, until Ctrl-C\n  \
    hydrafs stats ./node 5 -n 12     a line each 5 s, for a minute\n  \
    hydrafs stats --json ./node      one JSON object per line: every counter, and the times of the interval in ns\n  \
    hydrafs stats --latency ./node   how long requests and the work below them take, since the daemon's start\n  \
    hydrafs stats --prometheus ./node > /var/lib/node_exporter/hydrafs.prom\n\n\
    `hydrafs profile` says where the time of one workload goes."
)]
pub(super) struct Arguments {
    /// The node's folder.
    node: PathBuf,
    /// Seconds between lines.
    #[arg(default_value_t = 1.0, value_parser = seconds)]
    interval: f64,
    /// End after this many lines.
    #[arg(long, short = 'n')]
    count: Option<u64>,
    /// Print JSON: one object per line.
    #[arg(long)]
    json: bool,
    /// Print how long requests and the work below them took since the daemon's start, and end. Times are at most an eighth too
    /// large, totals exact; those of requests that run at once add up.
    #[arg(long)]
    latency: bool,
    /// Print all metrics as Prometheus reads them, and end.
    #[arg(long, conflicts_with_all = ["latency", "json"])]
    prometheus: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let folder = NodeFolder::open(&arguments.node)?.path;
    if arguments.prometheus {
        let answer = Daemon::find(&folder)?.ask(&Request::Metrics {}, super::remark)?;
        super::say(super::text(&answer, "/text").trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let mut before = Sample::take(&folder)?;
    if arguments.latency {
        match arguments.json {
            true => super::say_json(&sample::object(&before.histograms, sample::summary)),
            false => latency(&before).iter().for_each(super::say),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut line = 0;
    while arguments.count.is_none_or(|count| line < count) && !super::is_unheard() {
        pause(Duration::from_secs_f64(arguments.interval));
        let now = Sample::take(&folder)?;
        // A daemon that was started anew counts from 0.
        let between = now.since(&before).unwrap_or_else(|| now.clone());
        let rates = rates(&between);
        if arguments.json {
            let number = |value: &u64| Some(json!(value));
            super::say(json!({
                "rates": rates,
                "gauges": sample::object(&now.gauges, number),
                "counters": sample::object(&now.counters, number),
                "histograms": sample::object(&between.histograms, sample::summary),
            }));
        } else {
            if line % LINES_PER_HEADING == 0 {
                super::say(heading());
            }
            super::say(row(&rates, &now));
        }
        before = now;
        line += 1;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| (0.01..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "expected seconds, 0.01 to 86400".to_owned())
}

#[expect(clippy::disallowed_methods, reason = "a command that waits for a person's clock")]
fn pause(interval: Duration) {
    std::thread::sleep(interval);
}

/// Columns that are rates: heading, counters and histograms whose sum it is, and what a unit of it is.
const RATES: [(&str, &[&str], f64); 10] = [
    ("req/s", &["fuse_requests"], 1.0),
    ("read/s", &["file_reads"], 1.0),
    ("rdMiB/s", &["file_read_bytes"], MIB),
    ("write/s", &["file_writes"], 1.0),
    ("wrMiB/s", &["file_write_bytes"], MIB),
    ("flMiB/s", &["file_flushed_bytes", "file_inlined_bytes"], MIB),
    ("newMiB/s", &["store_new_bytes"], MIB),
    ("stMiB/s", &["store_stored_bytes"], MIB),
    ("fsync/s", &["file_sync"], 1.0),
    ("commit/s", &["file_commit"], 1.0),
];
const MIB: f64 = (1 << 20) as f64;

/// Every rate by its heading, and the share of chunk reads that the cache answered, in percent.
fn rates(between: &Sample) -> Value {
    let elapsed = between.seconds.max(0.001);
    let grown = |name: &str| between.count(name) as f64;
    let rate = |(heading, counters, unit): &(&str, &[&str], f64)| {
        let sum: f64 = counters.iter().map(|name| grown(name)).sum();
        ((*heading).to_owned(), json!(sum / unit / elapsed))
    };
    let mut rates: serde_json::Map<String, Value> = RATES.iter().map(rate).collect();
    let reads = grown("store_chunks_read");
    let hits = if reads > 0.0 {
        json!(100.0 * (grown("store_cache_metadata_hits") + grown("store_cache_data_hits")) / reads)
    } else {
        Value::Null
    };
    rates.insert("cache%".to_owned(), hits);
    Value::Object(rates)
}

fn heading() -> String {
    let mut line = String::new();
    RATES.iter().for_each(|(heading, ..)| line.push_str(&format!("{heading:>9}")));
    line + "   cache% dirtyMiB  logMiB"
}

fn row(rates: &Value, now: &Sample) -> String {
    let mut line = String::new();
    for (heading, _, unit) in RATES {
        let value = rates[heading].as_f64().unwrap_or_default();
        let digits = if unit > 1.0 { 1 } else { 0 };
        line.push_str(&format!("{value:>9.digits$}"));
    }
    let hits = rates["cache%"].as_f64().map_or("-".to_owned(), |share| format!("{share:.0}"));
    let gauge = |name: &str| now.gauge(name) as f64 / MIB;
    format!("{line}{hits:>9}{:>9.1}{:>8.1}", gauge("file_dirty_bytes"), gauge("store_journal_bytes"))
}

/// All histograms that have anything: those of requests with the largest sum first, then layer by layer. Those that count things
/// and not time have no unit.
fn latency(sample: &Sample) -> Vec<String> {
    let row = |name: &str, [count, p50, p90, p99, max, sum]: [String; 6]| {
        format!("{name:<26}{count:>10}{p50:>9}{p90:>9}{p99:>9}{max:>9}{sum:>9}")
    };
    let mut lines = vec![row("", ["count", "p50", "p90", "p99", "max", "total"].map(str::to_owned))];
    let requests = sample.requests().into_iter().map(|(op, values)| (format!("request {op}"), values));
    let layers = sample.histograms.iter().filter(|((name, _), _)| name != sample::REQUEST);
    let layers = layers.map(|((name, label), values)| {
        let name = name.replacen('_', " ", 1);
        (label.as_ref().map_or(name.clone(), |label| format!("{name} {label}")), values.clone())
    });
    for (name, values) in requests.chain(layers).filter(|(_, values)| values.count() > 0) {
        let is_time = !name.ends_with("_frames");
        let show = |value: u64| if is_time { sample::time(value) } else { value.to_string() };
        let at = |share| show(values.quantile(share));
        let cells = [values.count().to_string(), at(0.5), at(0.9), at(0.99), show(values.max()), show(values.sum())];
        lines.push(row(&name, cells));
    }
    lines
}

#[cfg(test)]
mod tests {
    use base::metric::Distribution;
    use serde_json::json;

    use super::{Sample, heading, latency, rates, row};

    fn of_times(name: &str, label: Option<&str>, bucket: usize) -> ((String, Option<String>), Distribution) {
        ((name.to_owned(), label.map(str::to_owned)), Distribution::of(1_000, [(bucket, 4)]))
    }

    #[test]
    fn rates_are_differences_over_the_daemons_time() {
        let counter = |name: &str, value: u64| ((name.to_owned(), None), value);
        let counters = [
            ("file_reads", 400),
            ("file_read_bytes", 64 << 20),
            ("store_chunks_read", 4),
            ("store_cache_metadata_hits", 1),
            ("store_cache_data_hits", 2),
        ];
        let between = Sample {
            seconds: 2.0,
            counters: counters.map(|(name, value)| counter(name, value)).into(),
            gauges: [counter("file_dirty_bytes", 3 << 20)].into(),
            histograms: [of_times("file_sync", None, 3)].into(),
            ..Sample::default()
        };
        let found = rates(&between);
        assert_eq!(
            (&found["read/s"], &found["rdMiB/s"], &found["cache%"], &found["fsync/s"]),
            (&json!(200.0), &json!(32.0), &json!(75.0), &json!(2.0))
        );
        let row = row(&found, &between);
        assert!(row.len() == heading().len() && row.contains(" 3.0 "), "{row}");
    }

    #[test]
    fn the_table_has_a_line_for_all_that_was_timed() {
        let histograms = [
            of_times("fuse_request", Some("fsync"), 7),
            of_times("store_log_sync", None, 7),
            of_times("store_log_sync_frames", None, 1),
            (("file_commit".to_owned(), None), Distribution::default()),
        ];
        let lines = latency(&Sample { histograms: histograms.into(), ..Sample::default() });
        let words: Vec<Vec<&str>> = lines.iter().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[1], ["request", "fsync", "4", "8ns", "8ns", "8ns", "8ns", "1.00us"]);
        assert_eq!(words[3], ["store", "log_sync_frames", "4", "2", "2", "2", "2", "1000"]);
        assert_eq!(lines.len(), 4, "nothing was committed: {lines:?}");
    }
}
