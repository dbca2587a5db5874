//! `hydrafs stats`: what a node does, live, one line per interval, like vmstat(8).
//!
//! Rates are differences of the daemon's counters over its own time, so that a late line is not a wrong one.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::number;
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
    hydrafs stats --json ./node      one JSON object per line, with every counter"
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
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let folder = NodeFolder::open(&arguments.node)?.path;
    let mut before = sample(&folder)?;
    let mut line = 0;
    while arguments.count.is_none_or(|count| line < count) {
        pause(Duration::from_secs_f64(arguments.interval));
        let now = sample(&folder)?;
        let rates = rates(&before, &now);
        if arguments.json {
            super::say(json!({ "rates": rates, "gauges": now["gauges"], "counters": now["counters"] }));
        } else {
            if line % LINES_PER_HEADING == 0 {
                super::say(heading());
            }
            super::say(row(&rates, &now["gauges"]));
        }
        before = now;
        line += 1;
    }
    Ok(ExitCode::SUCCESS)
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| (0.01..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "expected seconds, 0.01 to 86400".to_owned())
}

fn sample(folder: &Path) -> Result<Value, Failure> {
    Daemon::find(folder)?.ask(&Request::Counters {}, super::remark)
}

#[expect(clippy::disallowed_methods, reason = "a command that waits for a person's clock")]
fn pause(interval: Duration) {
    std::thread::sleep(interval);
}

/// Columns that are rates: heading, counters whose sum it is, and what a unit of it is.
const RATES: [(&str, &[&str], f64); 10] = [
    ("req/s", &["kernel_requests"], 1.0),
    ("read/s", &["file_reads"], 1.0),
    ("rdMiB/s", &["file_read_bytes"], MIB),
    ("write/s", &["file_writes"], 1.0),
    ("wrMiB/s", &["file_write_bytes"], MIB),
    ("flMiB/s", &["file_flushed_bytes", "file_inlined_bytes"], MIB),
    ("newMiB/s", &["store_bytes_new"], MIB),
    ("stMiB/s", &["store_bytes_stored"], MIB),
    ("fsync/s", &["file_syncs"], 1.0),
    ("commit/s", &["file_commits"], 1.0),
];
const MIB: f64 = (1 << 20) as f64;

/// Every rate by its heading, and the share of chunk reads that the cache answered, in percent.
fn rates(before: &Value, now: &Value) -> Value {
    let seconds = |sample: &Value| sample["elapsed_seconds"].as_f64().unwrap_or_default();
    let elapsed = (seconds(now) - seconds(before)).max(0.001);
    let counter = |sample: &Value, name: &str| number(&sample["counters"], &format!("/{name}"));
    // A daemon that was started anew counts from 0.
    let grown = |name: &str| counter(now, name).saturating_sub(counter(before, name)) as f64;
    let rate = |(heading, counters, unit): &(&str, &[&str], f64)| {
        let sum: f64 = counters.iter().map(|name| grown(name)).sum();
        ((*heading).to_owned(), json!(sum / unit / elapsed))
    };
    let mut rates: serde_json::Map<String, Value> = RATES.iter().map(rate).collect();
    let reads = grown("store_chunks_read");
    let hits = if reads > 0.0 { json!(100.0 * grown("store_cache_hits") / reads) } else { Value::Null };
    rates.insert("cache%".to_owned(), hits);
    Value::Object(rates)
}

fn heading() -> String {
    let mut line = String::new();
    RATES.iter().for_each(|(heading, ..)| line.push_str(&format!("{heading:>9}")));
    line + "   cache% dirtyMiB  logMiB"
}

fn row(rates: &Value, gauges: &Value) -> String {
    let mut line = String::new();
    for (heading, _, unit) in RATES {
        let value = rates[heading].as_f64().unwrap_or_default();
        let digits = if unit > 1.0 { 1 } else { 0 };
        line.push_str(&format!("{value:>9.digits$}"));
    }
    let hits = rates["cache%"].as_f64().map_or("-".to_owned(), |share| format!("{share:.0}"));
    let gauge = |name: &str| number(gauges, &format!("/{name}")) as f64 / MIB;
    format!("{line}{hits:>9}{:>9.1}{:>8.1}", gauge("dirty_bytes"), gauge("journal_bytes"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{heading, rates, row};

    #[test]
    fn rates_are_differences_over_the_daemons_time() {
        let sample = |seconds: f64, reads: u64, bytes: u64| {
            json!({
                "elapsed_seconds": seconds,
                "counters": { "file_reads": reads, "file_read_bytes": bytes, "store_chunks_read": reads, "store_cache_hits": 3 * reads / 4 },
                "gauges": { "dirty_bytes": 3 << 20 },
            })
        };
        let (before, now) = (sample(1.0, 0, 0), sample(3.0, 400, 64 << 20));
        let found = rates(&before, &now);
        assert_eq!(
            (&found["read/s"], &found["rdMiB/s"], &found["cache%"]),
            (&json!(200.0), &json!(32.0), &json!(75.0))
        );
        assert_eq!(rates(&now, &before)["read/s"], json!(0.0), "a daemon that was started anew");
        assert_eq!(row(&found, &now["gauges"]).len(), heading().len());
    }
}
