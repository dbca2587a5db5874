//! What the daemon measures: the metrics of all layers, and gauges, which are declared here once.

use std::time::Duration;

use base::metric::{Description, Kind, Metric, Unit, Value};
use file::{ClassStatus, DiskStatus, Status};

use super::Control;

/// The state that gauges are read from.
struct Moment {
    status: Status,
    uptime: Duration,
    /// Of this process since it was started.
    cpu: Duration,
    resident_bytes: u64,
}

type Label = Option<(&'static str, String)>;

/// What is read anew each time somebody asks.
struct Gauge {
    description: Description,
    read: fn(&Moment) -> Vec<(Label, u64)>,
}

const fn gauge(
    layer: &'static str,
    name: &'static str,
    unit: Unit,
    help: &'static str,
    read: fn(&Moment) -> Vec<(Label, u64)>,
) -> Gauge {
    Gauge { description: Description { layer, name, kind: Kind::Gauge, unit, help }, read }
}

const GAUGES: &[Gauge] = &[
    gauge("node", "uptime", Unit::Seconds, "time since the daemon opened the node", |m| one(nanos(m.uptime))),
    Gauge {
        description: Description {
            layer: "node",
            name: "cpu",
            kind: Kind::Counter,
            unit: Unit::Seconds,
            help: "processor time of the daemon, all threads",
        },
        read: |m| one(nanos(m.cpu)),
    },
    gauge("node", "resident_bytes", Unit::Bytes, "memory of the daemon", |m| one(m.resident_bytes)),
    gauge("file", "dirty_bytes", Unit::Bytes, "bytes accepted that wait to be flushed", |m| one(m.status.dirty_bytes)),
    gauge("file", "dirty_limit_bytes", Unit::Bytes, "where writers begin to wait", |m| one(m.status.dirty_bytes_max)),
    gauge("file", "writers_waiting", Unit::Count, "writers that wait for room in the write buffer", |m| {
        one(m.status.writers_waiting)
    }),
    gauge("file", "changes_waiting", Unit::Count, "changes that wait for a commit to make room", |m| {
        one(m.status.changes_waiting)
    }),
    gauge("file", "room_waiting", Unit::Count, "who waits for room on the disks", |m| one(m.status.room_waiting)),
    gauge("file", "unlogged_files", Unit::Count, "files with data that is only in memory", |m| {
        one(m.status.unlogged_files)
    }),
    gauge("file", "uncommitted_files", Unit::Count, "files whose records wait for a commit", |m| {
        one(m.status.uncommitted_files)
    }),
    gauge("file", "inodes", Unit::Count, "inodes in memory", |m| one(m.status.inodes)),
    gauge("file", "snapshots", Unit::Count, "snapshots", |m| one(m.status.snapshots)),
    gauge("file", "flush_failing", Unit::Count, "1 while the last flush failed", |m| {
        one(u64::from(m.status.flush_failure.is_some()))
    }),
    gauge("file", "commit_failing", Unit::Count, "1 while the last commit failed", |m| {
        one(u64::from(m.status.commit_failure.is_some()))
    }),
    gauge("file", "reclaim_failing", Unit::Count, "1 while the last pass of reclaim failed: no room comes back", |m| {
        one(u64::from(m.status.reclaim_failure.is_some()))
    }),
    gauge(
        "store",
        "journal_bytes",
        Unit::Bytes,
        "frames since the newest superblock: what a recovery would replay",
        |m| one(m.status.store.journal_bytes),
    ),
    gauge("store", "journal_segments", Unit::Count, "journal segments on disk, spare ones included", |m| {
        one(m.status.store.journal_segments)
    }),
    gauge("store", "journal_failed", Unit::Count, "1 if the journal takes no more frames", |m| {
        one(u64::from(m.status.journal_failure.is_some() || m.status.store.journal_failure.is_some()))
    }),
    gauge("store", "cache_bytes", Unit::Bytes, "chunks in the cache", |m| one(m.status.store.cache_bytes)),
    gauge("store", "index_size", Unit::Count, "chunks in the index file", |m| one(m.status.store.index_entries)),
    gauge("store", "index_recent", Unit::Count, "chunks that the index file does not have yet", |m| {
        one(m.status.store.recent_entries)
    }),
    gauge("store", "packs", Unit::Count, "packs, by class", |m| classes(m, |class| class.packs)),
    gauge("store", "chunks", Unit::Count, "chunks in packs, needed or not, by class", |m| {
        classes(m, |class| class.chunks)
    }),
    gauge("store", "content_bytes", Unit::Bytes, "content of those chunks, by class", |m| {
        classes(m, |class| class.content_bytes)
    }),
    gauge("store", "pack_bytes", Unit::Bytes, "what they take in packs, by class", |m| {
        classes(m, |class| class.stored_bytes)
    }),
    gauge("store", "disk_size_bytes", Unit::Bytes, "size, by disk", |m| disks(m, |disk| disk.total_bytes)),
    gauge("store", "disk_free_bytes", Unit::Bytes, "free, the reserve included, by disk", |m| {
        disks(m, |disk| disk.free_bytes)
    }),
    gauge("store", "disk_good", Unit::Count, "1 while it takes writes, by disk", |m| {
        disks(m, |disk| u64::from(disk.is_good))
    }),
    gauge(
        "store",
        "disk_silent",
        Unit::Count,
        "1 while it owes an answer that somebody waited for in vain, by disk",
        |m| disks(m, |disk| u64::from(disk.is_silent)),
    ),
];

fn one(value: u64) -> Vec<(Label, u64)> {
    vec![(None, value)]
}

fn classes(moment: &Moment, value: fn(&ClassStatus) -> u64) -> Vec<(Label, u64)> {
    let store = &moment.status.store;
    let classes = [("data", &store.data), ("metadata", &store.metadata)];
    classes.map(|(name, class)| (Some(("class", name.to_owned())), value(class))).to_vec()
}

fn disks(moment: &Moment, value: fn(&DiskStatus) -> u64) -> Vec<(Label, u64)> {
    let disks = moment.status.store.disks.iter();
    disks.map(|disk| (Some(("disk", disk.number.to_string())), value(disk))).collect()
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Control {
    /// Everything that is measured, in the order of its declarations.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        let mut status = self.system.status();
        let mut metrics = self.mount.as_ref().map(|mount| mount.meter.list()).unwrap_or_default();
        metrics.append(&mut status.metrics);
        let uptime = self.platform.clock.elapsed().saturating_sub(self.started);
        let moment = Moment { status, uptime, cpu: cpu_time(), resident_bytes: resident_bytes() };
        for Gauge { description, read } in GAUGES {
            let metric = |(label, value)| Metric { description: *description, label, value: Value::Number(value) };
            metrics.extend(read(&moment).into_iter().map(metric));
        }
        metrics
    }
}

/// All declarations there are.
#[cfg(test)]
pub(crate) fn descriptions() -> Vec<Description> {
    let gauges = GAUGES.iter().map(|gauge| gauge.description).collect();
    [fuse::Meter::descriptions(), file::metrics(), gauges].concat()
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// 0 where /proc is not to be had.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or_default();
    pages * u64::from(fuse::page_bytes())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::descriptions;
    use crate::exposition;

    #[test]
    fn names_are_distinct_and_speak_for_themselves() {
        let mut names = BTreeSet::new();
        for description in descriptions() {
            let name = description.prometheus();
            assert!(
                name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_' || byte.is_ascii_digit()),
                "{name}"
            );
            assert!(!description.help.is_empty() && !description.help.ends_with('.'), "{name}");
            assert!(names.insert(name.clone()), "{name} is declared twice");
            // What Prometheus makes of a histogram must not meet another metric either.
            let family = ["_bucket", "_count", "_sum"].map(|end| format!("{name}{end}"));
            assert!(family.iter().all(|name| !names.contains(name)), "{name}");
        }
    }

    /// `cargo xtask tidy --update-metrics` sets the variable.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a document is the outside")]
    fn the_metrics_reference_is_up_to_date() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
        let expected = exposition::reference(&descriptions());
        if std::env::var_os("HYDRAFS_UPDATE_METRICS_REFERENCE").is_some() {
            std::fs::write(&path, &expected).expect("the document can be written");
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == expected,
            "docs/metrics.md is not what the code declares: run `cargo xtask tidy --update-metrics`"
        );
    }
}
