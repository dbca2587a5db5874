//! The answers of the control socket, as JSON. Names and units are an interface: programs read them (`--json`).

use std::collections::BTreeSet;

use base::metric::{self, Metric, Unit};
use file::{CheckReport, Description, FilesReport, Kind, Node, Problem, Remedy, StoreStatus, View};
use serde_json::{Map, Value, json};

use super::{Control, layout, maintain};
use crate::failure::Failure;
use crate::moment;

impl Control {
    pub(super) fn status(&self) -> Value {
        let status = self.system.status();
        let space = self.system.space();
        let store = &status.store;
        let uptime = self.platform.clock.elapsed().saturating_sub(self.started);
        let mount = self.mount.as_ref().map(|mount| {
            json!({
                "point": mount.point.display().to_string(),
                "transport": mount.transport,
                "requests": mount.meter.requests(),
            })
        });
        json!({
            "node": {
                "folder": self.folder.path.display().to_string(),
                "number": self.folder.identity.number,
                "uuid": self.folder.identity.uuid,
            },
            "running": self.is_daemon,
            "process": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "uptime_seconds": uptime.as_secs(),
            "mount": mount,
            "space": { "total_bytes": space.total, "free_bytes": space.free },
            "files": {
                "made": self.system.files_made(),
                "in_memory": status.inodes,
                "unlogged": status.unlogged_files,
                "uncommitted": status.uncommitted_files,
            },
            "buffer": { "dirty_bytes": status.dirty_bytes, "dirty_bytes_max": status.dirty_bytes_max },
            "waiting": {
                "writers": status.writers_waiting,
                "changes": status.changes_waiting,
                "room": status.room_waiting,
            },
            "snapshots": status.snapshots,
            "clones": status.clones,
            "data": class(&store.data),
            "metadata": class(&store.metadata),
            "index": { "entries": store.index_entries, "recent_entries": store.recent_entries },
            "journal": {
                "bytes": store.journal_bytes,
                "segments": store.journal_segments,
                "last_logged": store.last_logged,
                "last_durable": store.last_durable,
            },
            "commit": { "generation": store.generation, "covered": store.covered },
            "scrub": maintain::status(&store.scrub),
            "layout": layout::status(&self.system.layout_status()),
            "cache_bytes": store.cache_bytes,
            "disks": disks(store),
            "missing": missing(store),
            "lacking": self.lacking(store),
            "raising": super::policy::raising(&status),
            "fragments": {
                "asked": store.cut.asked.map(|erasure| erasure.to_string()),
                "disks_lacking": store.cut.disks_lacking,
                "packs": store.cut.packs,
                "stored_bytes": store.cut.pack_bytes,
                "fragments": store.cut.fragments,
                "fragment_bytes": store.cut.fragment_bytes,
            },
            "metrics": self.published.get().and_then(|served| served.as_ref().ok()).map(|served| served.address.to_string()),
            "failures": failures(&status, self.published.get().and_then(|served| served.as_ref().err())),
        })
    }

    /// What lies on fewer disks than it should, and how far the mender is; null where nothing does.
    fn lacking(&self, store: &StoreStatus) -> Value {
        let lacking = &store.lacking;
        if lacking.packs == 0 {
            return Value::Null;
        }
        let (progress, last) = self.system.mending();
        json!({
            "packs": lacking.packs,
            "chunks": lacking.chunks,
            "content_bytes": lacking.content_bytes,
            "stored_bytes": lacking.pack_bytes,
            "bytes_done": progress.map(|progress| progress.bytes_done),
            "bytes_in_all": progress.map(|progress| progress.bytes_in_all),
            "seconds_left": progress.and_then(|progress| progress.time_left).map(|left| left.as_secs()),
            "problems": last.problems,
        })
    }

    /// All metrics. One that has labels is an object of the values by label.
    pub(super) fn counters(&self) -> Value {
        let mut sections = ["counters", "gauges", "histograms"].map(|name| (name, Map::new()));
        for Metric { description, label, value } in self.metrics() {
            let value = match value {
                metric::Value::Number(number) => json!(number),
                metric::Value::Distribution(values) => json!({
                    "unit": if description.unit == Unit::Seconds { "nanoseconds" } else { "count" },
                    "sum": values.sum(),
                    "buckets": values.filled().collect::<Vec<_>>(),
                }),
            };
            let section = &mut sections[description.kind as usize].1;
            let place = section.entry(description.key()).or_insert_with(|| json!({}));
            match label {
                Some((_, label)) => place[label] = value,
                None => *place = value,
            }
        }
        let elapsed = self.platform.clock.elapsed().saturating_sub(self.started);
        let head = [("elapsed_seconds", json!(elapsed.as_secs_f64())), ("process", json!(std::process::id()))];
        let sections = sections.into_iter().map(|(name, section)| (name, Value::Object(section)));
        head.into_iter().chain(sections).map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

fn class(class: &file::ClassStatus) -> Value {
    json!({
        "packs": class.packs,
        "packs_open": class.packs_open,
        "chunks": class.chunks,
        "content_bytes": class.content_bytes,
        "stored_bytes": class.stored_bytes,
    })
}

fn disks(store: &StoreStatus) -> Vec<Value> {
    let disk = |disk: &file::DiskStatus| {
        json!({
            "number": disk.number,
            "path": disk.path,
            "uuid": disk.uuid,
            "good": disk.is_good,
            "missing": disk.is_missing,
            "drained": disk.is_drained,
            "silent": disk.is_silent,
            "health": disk.health,
            "reads_failed": disk.reads_failed,
            "speed": disk.speed.as_ref().map(speed),
            "total_bytes": disk.total_bytes,
            "free_bytes": disk.free_bytes,
            "packs": disk.packs,
            "pack_bytes": disk.pack_bytes,
            "fragments": disk.fragments,
            "fragment_bytes": disk.fragment_bytes,
            "journal": disk.has_journal,
            "index": disk.has_index,
            "at_risk": at_risk(disk, store),
        })
    };
    store.disks.iter().map(disk).collect()
}

fn speed(speed: &file::DiskSpeed) -> Value {
    json!({
        "alone_seconds": speed.alone.as_secs_f64(),
        "depth": speed.depth,
        "request_seconds": speed.request.as_secs_f64(),
        "bytes_per_second": speed.bytes_per_second,
        "gap_bytes": speed.gap_bytes(),
    })
}

/// Of a disk that failed, or failed to read: what lies there alone, what goes on without it, and what to do.
fn at_risk(disk: &file::DiskStatus, store: &StoreStatus) -> Value {
    if disk.is_good && disk.reads_failed == 0 {
        return Value::Null;
    }
    let superblocks = store.disks.iter().filter(|disk| disk.is_good).count();
    let is_elsewhere = store.disks.iter().any(|other| other.number != disk.number && other.has_journal);
    if disk.is_missing {
        let lost = &store.missing;
        return json!({
            "missing": true,
            "packs": lost.packs,
            "chunks": lost.chunks,
            "content_bytes": lost.content_bytes,
            "stored_bytes": lost.pack_bytes,
            "journal": false,
            "index": false,
            "good_superblocks": superblocks,
            "works": "reading and writing, except of what lies on this disk alone: that is an error, and is not lost",
            "advice": "mount it again, then `hydrafs restart` takes it in; `hydrafs fsck` says which files need it; what is written \
                       anew is readable at once",
        });
    }
    let works = match (superblocks, store.journal_failure.is_some()) {
        _ if disk.is_good => {
            "reading, of this disk as far as it answers; writing, to the other disks while they have room"
        }
        (0, _) => "reading, as far as the disk answers; nothing can be written",
        (_, true) => "reading, as far as the disk answers; nothing new is accepted, for the journal is on it",
        (_, false) => "reading, of this disk as far as it answers; writing, to the other disks",
    };
    let advice = "copy what you need away first; then check cable, power and `dmesg`; a restart of the daemon tries the disk again, and \
                  `hydrafs fsck --deep` says what is lost";
    json!({
        "packs": disk.alone.packs,
        "chunks": disk.alone.chunks,
        "content_bytes": disk.alone.content_bytes,
        "stored_bytes": disk.alone.pack_bytes,
        "journal": disk.has_journal && !is_elsewhere,
        "index": disk.has_index,
        "good_superblocks": superblocks,
        "works": works,
        "advice": advice,
    })
}

/// What lies on disks that are missing, if there are any.
fn missing(store: &StoreStatus) -> Value {
    let disks: Vec<u64> = store.disks.iter().filter(|disk| disk.is_missing).map(|disk| disk.number).collect();
    if disks.is_empty() {
        return Value::Null;
    }
    let missing = &store.missing;
    json!({
        "disks": disks,
        "packs": missing.packs,
        "chunks": missing.chunks,
        "content_bytes": missing.content_bytes,
        "stored_bytes": missing.pack_bytes,
    })
}

/// Files that are named of those that commits leave out.
const LEFT_OUT_SHOWN: usize = 10;

/// What somebody has to look at.
fn failures(status: &file::Status, unpublished: Option<&Failure>) -> Vec<String> {
    let layers = [
        ("the journal takes no more frames", &status.journal_failure),
        ("the last flush failed", &status.flush_failure),
        ("the last commit failed", &status.commit_failure),
        ("no room comes back: the last pass of reclaim failed", &status.reclaim_failure),
        ("the journal failed", &status.store.journal_failure),
    ];
    let mut failures: Vec<String> =
        layers.iter().filter_map(|(what, why)| why.as_ref().map(|why| format!("{what}: {why}"))).collect();
    let left_out = |(file, why): &(base::id::FileId, String)| {
        format!("changes of {file} stay in the journal: its tree cannot be read: {why}; `hydrafs fsck` names it")
    };
    failures.extend(status.left_out.iter().take(LEFT_OUT_SHOWN).map(left_out));
    if let Some(more) = status.left_out.len().checked_sub(LEFT_OUT_SHOWN).filter(|more| *more > 0) {
        failures.push(format!("and of {more} more files"));
    }
    let disks = status.store.disks.iter().filter(|disk| !disk.is_good);
    failures.extend(disks.map(|disk| format!("disk {} is out: {}", disk.path, disk.health)));
    let damaged = &status.store.scrub.damaged;
    failures.extend(
        damaged
            .iter()
            .take(LEFT_OUT_SHOWN)
            .map(|what| format!("{what}; `hydrafs fsck --deep --repair` says what can be done")),
    );
    if let Some(more) = damaged.len().checked_sub(LEFT_OUT_SHOWN).filter(|more| *more > 0) {
        failures.push(format!("and {more} more damaged packs"));
    }
    failures.extend(unpublished.map(Failure::to_string));
    failures
}

pub(super) fn description(node: Node, from: &Description) -> Value {
    let attributes = &from.attributes;
    let kind = match attributes.kind {
        Kind::Fifo => "fifo",
        Kind::CharacterDevice => "character device",
        Kind::Directory => "directory",
        Kind::BlockDevice => "block device",
        Kind::Regular => "regular file",
        Kind::Symlink => "symbolic link",
        Kind::Socket => "socket",
    };
    json!({
        "file": attributes.file.number,
        "made_by_node": attributes.file.node().0,
        "clone": if attributes.file.branch == 0 { Value::Null } else { json!(attributes.file.branch) },
        "snapshot_view": if node.view == View::LIVE { Value::Null } else { json!(node.view.0) },
        "kind": kind,
        "mode": format!("{:04o}", attributes.mode),
        "uid": attributes.uid,
        "gid": attributes.gid,
        "links": attributes.links,
        "size": attributes.size,
        "allocated_bytes": attributes.allocated,
        "copies": super::policy::copies(attributes.resilience),
        "fragments": super::policy::fragments(attributes.resilience),
        "parts": from.parts,
        "chunks": from.chunks,
        "chunk_bytes": from.chunk_bytes,
        "dirty_bytes": from.dirty_bytes,
        "committed": !from.is_uncommitted && from.dirty_bytes == 0,
        "version": {
            "epoch": from.version.epoch,
            "sequence": from.version.sequence,
            "chain": format!("{:032x}", from.version.chain),
        },
        "born": moment::utc(attributes.born),
        "modified": moment::utc(attributes.modified),
        "changed": moment::utc(attributes.changed),
    })
}

/// What a check came to.
pub(super) struct Checked {
    pub(super) deep: bool,
    /// A disk is missing.
    pub(super) is_degraded: bool,
    pub(super) files: FilesReport,
    pub(super) store: CheckReport,
}

impl Checked {
    fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.store.problems.iter().chain(&self.files.problems)
    }

    /// What could be done, in order. While a disk is missing that is nothing: what seems to be lost may lie there.
    pub(super) fn proposed(&self) -> BTreeSet<Remedy> {
        if self.is_degraded {
            return BTreeSet::new();
        }
        self.store.remedies.union(&self.files.remedies).copied().collect()
    }

    /// Packs and files of the store that cannot be read, and for which there is no remedy: the first of them, in words.
    pub(super) fn unanswered(&self) -> Option<String> {
        let is_unanswered =
            |problem: &&Problem| matches!(problem.code, "HF0008" | "HF0016") && problem.remedy.is_none();
        let words = |Problem { code, what, path, found, .. }: &Problem| format!("{code} {what}: {path}: {found}");
        self.store.problems.iter().find(is_unanswered).map(words)
    }

    /// `plan`: what a repair would do next.
    pub(super) fn to_json(&self, plan: &BTreeSet<Remedy>) -> Value {
        let problems: Vec<Value> = self.problems().map(|found| problem(found, self.is_degraded)).collect();
        let plan: Vec<String> = plan.iter().map(ToString::to_string).collect();
        json!({
            "clean": problems.is_empty(),
            "deep": self.deep,
            "degraded": self.is_degraded,
            "files": self.files.files,
            "directories": self.files.directories,
            "entries": self.files.entries,
            "extents": self.files.extents,
            "packs": self.store.packs,
            "chunks": self.store.chunks,
            "bytes_read": self.store.bytes,
            "frames": self.store.frames,
            "problems": problems,
            "further": self.store.further,
            "plan": plan,
        })
    }

    /// The same after these steps of a repair.
    pub(super) fn after(&self, steps: &[(Remedy, Result<String, String>)], plan: &BTreeSet<Remedy>) -> Value {
        let step = |(remedy, outcome): &(Remedy, Result<String, String>)| {
            let (Ok(words) | Err(words)) = outcome;
            json!({ "remedy": remedy.to_string(), "done": outcome.is_ok(), "outcome": words })
        };
        let mut report = self.to_json(plan);
        report["steps"] = steps.iter().map(step).collect();
        report
    }
}

fn problem(problem: &Problem, is_degraded: bool) -> Value {
    let remedy = problem.remedy.filter(|_| !is_degraded);
    let advice = match is_degraded {
        true => "a disk is missing: mount it again, `hydrafs restart`, and check again",
        false => advice(problem.code),
    };
    json!({
        "code": problem.code,
        "what": problem.what,
        "place": problem.path,
        "offset": problem.offset,
        "expected": problem.expected,
        "found": problem.found,
        "repairable": remedy.is_some(),
        "remedy": remedy.map(|remedy| remedy.to_string()),
        "advice": remedy.is_none().then_some(advice),
    })
}

/// What a person can do about that for which there is no remedy.
fn advice(code: &str) -> &'static str {
    match code {
        "HF0003" | "HF0018" => "another disk lies there, or one that takes no writes: mount the right one",
        "HF0008" => "another pack has its number: remove the one that is the copy",
        "HF0017" => "look at the file, and remove it when you need it no more",
        "HF0001" | "HF0002" | "HF0004" | "HF0005" | "HF0006" | "HF0007" => {
            "its disk takes no writes: mend the disk, start again, and repair then"
        }
        "HF0009" | "HF0016" => "check the disk and its connection, and check again",
        "HF1001" | "HF1002" | "HF1005" | "HF1006" | "HF1010" => {
            "it is in a snapshot, which never changes: delete the snapshot when you need it no more; until then no space comes back, \
             whatever is deleted, for nobody can tell what the snapshot needs"
        }
        "HF1023" => {
            "more of its content is lost than can be noted: bring the file back from a backup, or remove it; until then it takes no \
             changes, and no space comes back"
        }
        "HF1007" | "HF1008" => {
            "content is lost: reading it is an error; bring the file back from a backup, which mends every file with the same content"
        }
        // All others of the file layer have a remedy in the present.
        code if code.starts_with("HF10") => {
            "it is in a snapshot, which never changes: delete the snapshot when you need it no more"
        }
        _ => "bring it back from a backup",
    }
}

#[cfg(test)]
mod tests {
    use file::{DiskStatus, StoreStatus};
    use serde_json::Value;

    use super::{advice, disks};

    /// What lies alone on a disk that failed is told of that one, and of no other.
    #[test]
    fn a_disk_that_failed_tells_what_is_at_risk() {
        let disk = |number, is_good| {
            let mut disk = DiskStatus { number, is_good, has_journal: true, ..DiskStatus::default() };
            (disk.alone.packs, disk.alone.chunks) = (3 + number, 41);
            (disk.alone.content_bytes, disk.alone.pack_bytes) = (2048, 1024);
            disk
        };
        let store = StoreStatus { disks: vec![disk(0, true), disk(1, false)], ..StoreStatus::default() };
        let told = disks(&store);
        assert_eq!((&told[0]["at_risk"], &told[1]["good"]), (&Value::Null, &Value::Bool(false)));
        let risk = &told[1]["at_risk"];
        let numbers = ["packs", "chunks", "content_bytes", "stored_bytes", "good_superblocks"];
        assert_eq!(numbers.map(|name| risk[name].as_u64()), [4, 41, 2048, 1024, 1].map(Some), "{risk}");
        // The other disk has the journal too.
        assert_eq!((&risk["journal"], &risk["index"]), (&Value::Bool(false), &Value::Bool(false)));
        assert!(risk["works"].as_str().unwrap().contains("writing, to the other disks"), "{risk}");
    }

    #[test]
    fn what_a_snapshot_keeps_is_told_from_lost_content() {
        for code in ["HF1001", "HF1004", "HF1005", "HF1009", "HF1010", "HF1019", "HF1020", "HF1021"] {
            assert!(advice(code).starts_with("it is in a snapshot"), "{code}");
        }
        for code in ["HF1007", "HF1008"] {
            assert!(advice(code).starts_with("content is lost"), "{code}");
        }
    }
}
