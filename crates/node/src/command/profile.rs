//! `hydrafs profile`: where a workload's time went. Two readings of the daemon's metrics, and what happened between them.
//!
//! What the sums mean is said in the output, because they invite wrong ones: the times of requests that were under way at once
//! add up, as those of their waits do; work may have been done for a request or in the background, and parts of work are measured
//! again as works of their own. Only what is indented is part of what stands above it.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use base::metric::Distribution;
use base::units::Bytes;
use clap::Args;
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::sample::{self, Sample, time};
use crate::failure::Failure;
use crate::node_folder::NodeFolder;

/// Show where a workload's time goes: requests by kind, and what they waited for.
#[derive(Args, Debug)]
#[command(
    after_help = "Watches until Ctrl-C, for some seconds, or while a command runs. With a command, its exit code is kept.\n\n\
    Examples:\n  \
    hydrafs profile ./node                     until Ctrl-C\n  \
    hydrafs profile ./node 10                  for ten seconds\n  \
    hydrafs profile ./node -- tar xf src.tar -C /mnt\n  \
    hydrafs profile --json ./node 10 | jq .requests.fsync.p99"
)]
pub(super) struct Arguments {
    /// The node's folder.
    node: PathBuf,
    /// How long; until Ctrl-C where nothing is said.
    #[arg(value_parser = super::stats::seconds)]
    seconds: Option<f64>,
    /// Print JSON. Times are in nanoseconds; what the command prints goes to standard error.
    #[arg(long)]
    json: bool,
    /// A command to run meanwhile, after `--`.
    #[arg(last = true, conflicts_with = "seconds")]
    command: Vec<OsString>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let folder = NodeFolder::open(&arguments.node)?.path;
    let (send, signals) = channel();
    watch(send)?;
    let before = Sample::take(&folder)?;
    let code = match &arguments.command[..] {
        [] => {
            wait(&signals, arguments.seconds.map(Duration::from_secs_f64));
            ExitCode::SUCCESS
        }
        [program, rest @ ..] => run_command(program, rest, arguments.json)?,
    };
    let between = Sample::take(&folder)?.since(&before).ok_or_else(|| {
        Failure::new("cannot compare", "the daemon was started anew meanwhile").at(&folder).mend("try again")
    })?;
    if arguments.json {
        super::say_json(&as_json(&between));
    } else {
        lines(&between).iter().for_each(super::say);
    }
    Ok(code)
}

/// From here on an interrupt ends the watching and not this program. A command gets it from the terminal too.
fn watch(send: Sender<()>) -> Result<(), Failure> {
    let cannot = |error: io::Error| Failure::new("cannot watch for signals", error);
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).map_err(cannot)?;
    let tell = move || signals.forever().take_while(|_| send.send(()).is_ok()).for_each(drop);
    std::thread::Builder::new().name("signals".to_owned()).spawn(tell).map_err(cannot)?;
    Ok(())
}

fn wait(signals: &Receiver<()>, time: Option<Duration>) {
    // A signal, the end of the time, or nobody left to tell of signals: it is over.
    let _ = match time {
        Some(time) => signals.recv_timeout(time),
        None => {
            super::remark("watching; Ctrl-C shows where the time went");
            signals.recv().map_err(RecvTimeoutError::from)
        }
    };
}

fn run_command(program: &OsString, rest: &[OsString], is_quiet: bool) -> Result<ExitCode, Failure> {
    let mut command = Command::new(program);
    command.args(rest);
    if is_quiet {
        command.stdout(Stdio::from(io::stderr()));
    }
    let cannot = |error: io::Error| Failure::new("cannot run the command", error).place(program.to_string_lossy());
    let status = command.status().map_err(cannot)?;
    if !status.success() {
        super::remark(&format!("{}: {status}", program.to_string_lossy()));
    }
    // As a shell says it when a signal ended the command.
    let signal = std::os::unix::process::ExitStatusExt::signal(&status).unwrap_or_default();
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(128 + signal)).unwrap_or(1)))
}

/// A part of the time, measured by one histogram.
struct Part {
    name: &'static str,
    /// How far it is part of what stands above it.
    depth: usize,
    words: &'static str,
}

const fn part(name: &'static str, depth: usize, words: &'static str) -> Part {
    Part { name, depth, words }
}

/// What somebody waited for: requests, and the background tasks that do the same.
const WAITS: &[Part] = &[
    part("file_write_wait", 0, "room in the write buffer"),
    part("file_record_wait", 0, "a commit, the journal being far ahead"),
    part("file_room_wait", 0, "room on the disks: flush, commit, reclaim"),
    part("store_log_wait", 0, "the journal to be on disk"),
    part("store_chunk_read", 0, "chunks read from packs"),
];

/// What was done, whoever waited for it.
const WORKS: &[Part] = &[
    part("file_find", 0, "names looked for in trees"),
    part("file_load", 0, "inodes looked for in trees"),
    part("file_read_stored", 0, "content read that is not in the buffer"),
    part("store_log_sync", 0, "journal written and synced"),
    part("file_flush", 0, "write buffer flushed to chunks"),
    part("file_flush_cut", 1, "waiting for chunks to be cut"),
    part("file_commit", 0, "records committed to trees"),
    part("store_superblock_write", 1, "superblock written and synced"),
    part("store_group_hash", 0, "chunks hashed (in flush, commit)"),
    part("store_group_compress", 0, "chunks compressed (same)"),
    part("store_group_append", 0, "chunks appended to packs (same)"),
    part("store_settle", 0, "packs synced (same)"),
];

/// What disks were asked for, all together.
const DISKS: &[Part] =
    &[part("disk_read", 0, "read, not from memory"), part("disk_write", 0, "written"), part("disk_sync", 0, "synced")];

fn lines(between: &Sample) -> Vec<String> {
    let row = |name: &str, cells: [String; 6]| {
        let [count, total, share, p50, p99, max] = cells;
        format!("{name:<38}{count:>9}{total:>9}{share:>8}{p50:>9}{p99:>9}{max:>9}")
    };
    let heading =
        |name: &str, share: &str| row(name, ["count", "total", share, "p50", "p99", "max"].map(str::to_owned));
    let numbers = |name: &str, values: &Distribution, whole: f64| {
        let share = format!("{:.1}%", percent(values.sum(), whole));
        let times = [values.quantile(0.5), values.quantile(0.99), values.max()].map(time);
        let [p50, p99, max] = times;
        row(name, [values.count().to_string(), time(values.sum()), share, p50, p99, max])
    };
    let mut lines = verdict(between);
    let requests = between.requests();
    if !requests.is_empty() {
        let whole = request_time(between);
        lines.extend([String::new(), heading("requests", "share")]);
        lines.extend(requests.iter().map(|(op, values)| numbers(&format!("  {op}"), values, whole as f64)));
        lines.push("  Times add up where several were under way at once. Each counts where it was answered, from its arrival in the daemon.".to_owned());
    }
    for (title, parts, words) in [
        (
            "waited for",
            WAITS,
            "  Summed over all who waited at once: requests (it is part of their time) and background tasks.",
        ),
        ("work below", WORKS, "  For a request or in the background. Indented lines are part of the line above them."),
        ("disks", DISKS, "  Calls, summed over all that were under way at once; it is part of what stands above."),
    ] {
        let parts = parts.iter().map(|part| (part, between.times(part.name))).filter(|(_, values)| values.count() > 0);
        let shown: Vec<String> = parts
            .map(|(part, values)| {
                let name = format!("{}{}", "  ".repeat(part.depth + 1), part.words);
                numbers(&name, &values, between.seconds * 1e9)
            })
            .collect();
        if !shown.is_empty() {
            lines.extend([String::new(), heading(title, "of time")]);
            lines.extend(shown);
            lines.push(words.to_owned());
        }
    }
    lines
}

/// What dominates, in words.
fn verdict(between: &Sample) -> Vec<String> {
    let elapsed = between.seconds.max(1e-9) * 1e9;
    let whole = request_time(between);
    let requests = between.requests();
    let count: u64 = requests.iter().map(|(_, values)| values.count()).sum();
    let under_way = whole as f64 / elapsed;
    let cpu = between.counters.get(&("node_cpu".to_owned(), None)).copied().unwrap_or_default();
    let mut lines = vec![format!(
        "{} watched: {count} requests took {} together, {under_way:.2} were under way on average; \
         the daemon used {} of processor.",
        time(elapsed as u64),
        time(whole),
        time(cpu),
    )];
    match requests.first() {
        None => lines
            .push("No request was answered: the mount was idle, or the kernel answered from its caches.".to_owned()),
        Some((op, values)) => {
            let mean = values.sum() / values.count();
            let share = percent(values.sum(), whole as f64);
            lines.push(format!("The largest part is {op}: {share:.0} %, {} on average.", time(mean)));
            if under_way < 0.2 {
                lines.push(format!(
                    "A request was under way for at most {:.0} % of the time: programs, and the kernel, spent the rest elsewhere.",
                    100.0 * under_way
                ));
            }
        }
    }
    for (parts, what) in [(WAITS, "was waited for most"), (WORKS, "is the largest work")] {
        let top = parts.iter().map(|part| (part, between.times(part.name))).max_by_key(|(_, values)| values.sum());
        if let Some((part, values)) = top.filter(|(_, values)| values.sum() > 0) {
            let (sum, share) = (time(values.sum()), percent(values.sum(), elapsed));
            lines.push(format!("Below requests, \"{}\" {what}: {sum}, {share:.0} % of the time watched.", part.words));
        }
    }
    let dirty = between.gauge("file_dirty_bytes");
    if dirty > 0 {
        lines.push(format!("{} written wait to be flushed: that work is not in here yet.", Bytes(dirty)));
    }
    lines
}

/// Of all requests together, in nanoseconds.
fn request_time(between: &Sample) -> u64 {
    between.requests().iter().map(|(_, values)| values.sum()).sum()
}

fn percent(part: u64, whole: f64) -> f64 {
    if whole > 0.0 { 100.0 * part as f64 / whole } else { 0.0 }
}

fn as_json(between: &Sample) -> Value {
    let parts = |parts: &[Part]| {
        let part = |part: &Part| Some((part.name.to_owned(), sample::summary(&between.times(part.name))?));
        Value::Object(parts.iter().filter_map(part).collect())
    };
    let requests = between.requests().into_iter().filter_map(|(op, values)| Some((op, sample::summary(&values)?)));
    json!({
        "seconds": between.seconds,
        "verdict": verdict(between),
        "requests": Value::Object(requests.collect()),
        "waits": parts(WAITS),
        "works": parts(WORKS),
        "disks": parts(DISKS),
        "counters": sample::object(&between.counters, |value| Some(json!(value))),
        "gauges": sample::object(&between.gauges, |value| Some(json!(value))),
    })
}

#[cfg(test)]
mod tests {
    use base::metric::{Distribution, Kind};

    use super::{DISKS, Sample, WAITS, WORKS, as_json, lines};
    use crate::front;

    fn sample(times: &[(&str, Option<&str>, u64)]) -> Sample {
        let times = times.iter().map(|(name, label, sum)| {
            (((*name).to_owned(), label.map(str::to_owned)), Distribution::of(*sum, [(100, 2)]))
        });
        Sample { seconds: 1.0, histograms: times.collect(), ..Sample::default() }
    }

    #[test]
    fn every_part_is_measured() {
        let known = front::descriptions();
        for part in WAITS.iter().chain(WORKS).chain(DISKS) {
            let is_it = |known: &base::metric::Description| known.key() == part.name && known.kind == Kind::Histogram;
            assert!(known.iter().any(is_it), "{}", part.name);
        }
    }

    #[test]
    fn what_dominates_is_said_in_words() {
        let text = |sample: &Sample| lines(sample).join("\n");
        let busy = sample(&[
            ("fuse_request", Some("fsync"), 1_500_000_000),
            ("fuse_request", Some("lookup"), 500_000_000),
            ("store_log_wait", None, 1_400_000_000),
            ("store_log_sync", None, 700_000_000),
            ("file_flush", None, 300_000_000),
            ("disk_sync", Some("0"), 200_000_000),
            ("disk_sync", Some("1"), 400_000_000),
        ]);
        let found = text(&busy);
        assert!(found.contains("4 requests took 2.00s together, 2.00 were under way"), "{found}");
        assert!(found.contains("The largest part is fsync: 75 %, 750ms on average."), "{found}");
        assert!(found.contains("\"the journal to be on disk\" was waited for most: 1.40s, 140 %"), "{found}");
        assert!(found.contains("\"journal written and synced\" is the largest work: 700ms, 70 %"), "{found}");
        assert!(!found.contains("spent the rest elsewhere"), "{found}");
        assert_eq!(as_json(&busy)["requests"]["fsync"]["count"], 2);
        assert_eq!(as_json(&busy)["waits"]["store_log_wait"]["sum"], 1_400_000_000_u64);
        assert_eq!(as_json(&busy)["disks"]["disk_sync"]["sum"], 600_000_000_u64);
        assert!(found.lines().any(|line| line.starts_with("  synced ") && line.contains("600ms")), "{found}");

        let idle = text(&sample(&[]));
        assert!(idle.contains("No request was answered") && !idle.contains("Below requests"), "{idle}");
        let light = text(&sample(&[("fuse_request", Some("read"), 50_000_000)]));
        assert!(light.contains("for at most 5 % of the time"), "{light}");
    }
}
