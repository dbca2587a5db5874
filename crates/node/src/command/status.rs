//! `hydrafs status`: what a node stores, and how its daemon is.

use std::path::PathBuf;
use std::process::ExitCode;

use base::units::Bytes;
use clap::Args;
use serde_json::{Value, json};

use super::mount::is_abandoned;
use super::{number, text};
use crate::control::client::Daemon;
use crate::control::wire::Request;
use crate::failure::Failure;
use crate::moment;
use crate::mounts;
use crate::node_folder::NodeFolder;

/// Show what a node stores and how its daemon is.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs status ./node\n  \
    hydrafs status --json ./node | jq .data.stored_bytes")]
pub(super) struct Arguments {
    /// The node's folder.
    node: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let status = of(&NodeFolder::open(&arguments.node)?)?;
    if arguments.json {
        super::say_json(&status);
    } else {
        lines(&status).iter().for_each(super::say);
    }
    Ok(ExitCode::SUCCESS)
}

/// What the daemon says, or the folder alone where none runs.
pub(super) fn of(folder: &NodeFolder) -> Result<Value, Failure> {
    match Daemon::reach(&folder.path)? {
        Some(daemon) => daemon.ask(&Request::Status {}, super::remark),
        None => Ok(asleep(folder)),
    }
}

/// What the folder alone says: a status changes nothing, so the node is not opened for it.
fn asleep(folder: &NodeFolder) -> Value {
    let disk = |path: PathBuf| {
        let present = path.is_dir();
        let health = if present { "present" } else { "there is no such directory" };
        json!({ "path": path.display().to_string(), "good": present, "health": health })
    };
    let is_dead = |mount: &mounts::Mount| mount.source == folder.path && is_abandoned(mount);
    let dead: Vec<String> = mounts::read()
        .unwrap_or_default()
        .iter()
        .filter(|mount| is_dead(mount))
        .map(|mount| mount.point.display().to_string())
        .collect();
    let disks: Vec<Value> = folder.disk_paths().into_iter().map(disk).collect();
    json!({
        "node": {
            "folder": folder.path.display().to_string(),
            "number": folder.identity.number,
            "uuid": folder.identity.uuid,
        },
        "running": false,
        "dead_mounts": dead,
        "disks": disks,
    })
}

fn lines(status: &Value) -> Vec<String> {
    let mut lines =
        vec![format!("node      {} (number {})", text(status, "/node/folder"), number(status, "/node/number"))];
    if status["running"] == json!(true) {
        let up = moment::span(number(status, "/uptime_seconds"));
        lines.push(format!("daemon    process {}, up for {up}", number(status, "/process")));
        lines.push(match &status["mount"] {
            Value::Null => "mount     none".to_owned(),
            mount => format!("mount     {} ({})", text(mount, "/point"), text(mount, "/transport")),
        });
        lines.extend(stored(status));
        lines.extend(fragments(&status["fragments"]));
    } else {
        lines.push("daemon    none runs: `hydrafs mount` or `hydrafs serve` starts one".to_owned());
    }
    for point in status["dead_mounts"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let node = text(status, "/node/folder");
        lines.push(format!(
            "mount     {point} is dead: its daemon has died; mend it with `hydrafs mount {node} {point}`"
        ));
    }
    for disk in status["disks"].as_array().into_iter().flatten() {
        let packs = match number(disk, "/packs") {
            0 => String::new(),
            packs => format!(", {packs} packs with {}", bytes(disk, "/pack_bytes")),
        };
        let fragments = match number(disk, "/fragments") {
            0 => String::new(),
            fragments => format!(", {fragments} fragments with {}", bytes(disk, "/fragment_bytes")),
        };
        let free = match number(disk, "/total_bytes") {
            0 => String::new(),
            _ => format!(", {} of {} free", bytes(disk, "/free_bytes"), bytes(disk, "/total_bytes")),
        };
        lines.push(format!("disk      {}: {}{free}{packs}{fragments}", text(disk, "/path"), text(disk, "/health")));
        lines.extend(at_risk(&disk["at_risk"]));
    }
    let lacking = &status["lacking"];
    if lacking.is_object() {
        let mending = match (lacking["bytes_done"].as_u64(), lacking["bytes_in_all"].as_u64()) {
            (Some(done), Some(total)) => {
                let left = lacking["seconds_left"].as_u64().map(|left| format!(", about {} left", moment::span(left)));
                format!("{} of {} are copied{}", Bytes(done), Bytes(total), left.unwrap_or_default())
            }
            _ => {
                lacking["problems"][0].as_str().unwrap_or("to be copied soon, if another disk takes writes").to_owned()
            }
        };
        lines.push(format!(
            "LACKING   {} packs with {} lie on fewer disks than they should; {mending}",
            number(lacking, "/packs"),
            bytes(lacking, "/stored_bytes")
        ));
    }
    let raising = &status["raising"];
    if raising.is_object() {
        let why = match number(raising, "/failed") {
            0 => "it is being brought there".to_owned(),
            failed => {
                format!("of {failed} files it cannot be: {}", raising["problems"][0].as_str().unwrap_or_default())
            }
        };
        lines.push(format!("RAISING   content may lie on fewer disks than its files ask for; {why}"));
    }
    for failure in status["failures"].as_array().into_iter().flatten() {
        lines.push(format!("FAILURE   {}", failure.as_str().unwrap_or_default()));
    }
    lines
}

/// What a disk that failed means.
fn at_risk(risk: &Value) -> Vec<String> {
    if !risk.is_object() {
        return Vec::new();
    }
    let is_on_it = match (risk["journal"] == json!(true), risk["index"] == json!(true)) {
        (true, true) => "; the journal is on no other, and the index is on it",
        (true, false) => "; the journal is on no other",
        (false, true) => "; the index is on it",
        (false, false) => "",
    };
    let alone = match risk["missing"] == json!(true) {
        true => "lie on no disk that is there",
        false => "lie on no other disk that works",
    };
    vec![
        format!(
            "  at risk {} packs with {} chunks ({} of content) {alone}{is_on_it}",
            number(risk, "/packs"),
            number(risk, "/chunks"),
            bytes(risk, "/content_bytes")
        ),
        format!("          {} good disks have the superblock", number(risk, "/good_superblocks")),
        format!("  works   {}", text(risk, "/works")),
        format!("  to do   {}", text(risk, "/advice")),
    ]
}

/// What is in fragments, if anything is or should be.
fn fragments(fragments: &Value) -> Option<String> {
    let asked = fragments["asked"].as_str().unwrap_or_default();
    let lacking = match number(fragments, "/disks_lacking") {
        0 => String::new(),
        more => format!("; {asked} takes {more} disks more, until then content lies in copies that survive as much"),
    };
    let (packs, stored) = (number(fragments, "/packs"), number(fragments, "/fragment_bytes"));
    (packs > 0 || !asked.is_empty()).then(|| {
        let whole = bytes(fragments, "/stored_bytes");
        format!("fragments {packs} packs with {whole}, in {}{lacking}", Bytes(stored))
    })
}

/// What is stored, and what waits to be.
fn stored(status: &Value) -> Vec<String> {
    let class = |name: &str, path: &str| {
        let part = &status[path];
        let (content, stored) = (number(part, "/content_bytes"), number(part, "/stored_bytes"));
        let ratio = content as f64 / stored.max(1) as f64;
        let chunks = number(part, "/chunks");
        format!("{name:<9} {chunks} chunks, {} in {} on disk ({ratio:.2}:1)", Bytes(content), Bytes(stored))
    };
    let waits = [("unlogged", "with data in memory"), ("uncommitted", "in the journal")];
    let mut waits =
        waits.map(|(key, what)| format!("{} files {what}", number(&status["files"], &format!("/{key}")))).to_vec();
    for (key, what) in [
        ("writers", "writers for room in memory"),
        ("changes", "changes for a commit"),
        ("room", "for room on the disks"),
    ] {
        let count = number(&status["waiting"], &format!("/{key}"));
        waits.extend((count > 0).then(|| format!("{count} {what}")));
    }
    let mut lines = vec![
        format!("space     {} of {} free", bytes(status, "/space/free_bytes"), bytes(status, "/space/total_bytes")),
        class("data", "data"),
        class("trees", "metadata"),
        format!("snapshots {}, clones {}", number(status, "/snapshots"), number(status, "/clones")),
        format!("checked   {}", super::scrub::age(&status["scrub"])),
        format!(
            "waiting   {} to be flushed, journal {}; {}",
            bytes(status, "/buffer/dirty_bytes"),
            bytes(status, "/journal/bytes"),
            waits.join(", ")
        ),
        format!(
            "memory    {} of chunks cached, {} inodes",
            bytes(status, "/cache_bytes"),
            number(status, "/files/in_memory")
        ),
    ];
    lines.extend(layout(&status["layout"]));
    lines
}

/// Layout upkeep in the background, where it is wanted.
fn layout(layout: &Value) -> Option<String> {
    let interval = number(layout, "/interval_seconds");
    if interval == 0 {
        return None;
    }
    let last = match (&layout["last"], layout["last"]["failure"].as_str()) {
        (Value::Null, _) => "not gone through since the start".to_owned(),
        (_, Some(failure)) => format!("the last pass failed: {failure}"),
        (last, None) => format!(
            "{} small files in {} runs, {} before, {} ago; {} were written",
            number(last, "/files"),
            number(last, "/runs_after"),
            number(last, "/runs_before"),
            moment::span(number(last, "/ended_seconds")),
            bytes(last, "/bytes")
        ),
    };
    let now = match (layout["obstacle"].as_str(), layout["now"]["files"].as_u64()) {
        (Some(obstacle), _) => format!("; waits: {obstacle}"),
        (None, Some(files)) => format!("; at work, {files} files looked at"),
        (None, None) => String::new(),
    };
    Some(format!("layout    {last}{now}; every {}", moment::span(interval)))
}

fn bytes(value: &Value, pointer: &str) -> Bytes {
    Bytes(number(value, pointer))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::lines;

    #[test]
    fn layout_upkeep_is_told_of_where_it_is_wanted() {
        let mut layout = json!({ "interval_seconds": 0 });
        assert_eq!(super::layout(&layout), None);
        layout["interval_seconds"] = json!(86_400);
        assert!(super::layout(&layout).unwrap().starts_with("layout    not gone through since the start; every "));
        layout["last"] = json!({ "ended_seconds": 60, "files": 9, "runs_before": 8, "runs_after": 2, "bytes": 4096 });
        layout["obstacle"] = json!("room is scarce");
        let text = super::layout(&layout).unwrap();
        for part in
            ["9 small files in 2 runs, 8 before, ", "; 4.00 KiB were written", "; waits: room is scarce; every "]
        {
            assert!(text.contains(part), "{text}");
        }
        layout["last"]["failure"] = json!("a disk is full");
        assert!(super::layout(&layout).unwrap().contains("the last pass failed: a disk is full"));
    }

    #[test]
    fn a_disk_that_failed_is_explained() {
        let risk = json!({
            "packs": 3, "chunks": 41, "content_bytes": 2048, "journal": true, "good_superblocks": 1,
            "works": "reading", "advice": "copy what you need",
        });
        let disks = json!([{ "path": "/a", "health": "good", "at_risk": null }, { "path": "/b", "health": "EIO", "at_risk": risk }]);
        let text = lines(&json!({ "disks": disks })).join("\n");
        for part in [
            "/b: EIO",
            "3 packs with 41 chunks (",
            "that works; the journal is on no other",
            "works   reading",
            "to do   copy",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert_eq!(text.matches("at risk").count(), 1);
    }
}
