//! `hydrafs disk`: lists the disks of a node, adds one, drains one, removes one, or puts one in another's place.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use base::units::Bytes;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::init::resolve;
use super::{check_share, number, text, with_bar};
use crate::control::wire::Request;
use crate::failure::Failure;
use crate::node_folder::{self, NodeFolder};
use crate::start;

/// List, add, drain, remove and replace the disks of a node, while it is in use.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs disk list ./node\n  \
    hydrafs disk measure ./node                   what a request takes on each, now\n  \
    hydrafs disk add ./node /disks/c              one more; what is new goes there too from now on\n  \
    hydrafs disk drain --dry-run ./node 1         say how much lies there, and whether the others have room for it\n  \
    hydrafs disk drain ./node /disks/b            bring everything from there to the others\n  \
    hydrafs disk remove ./node /disks/b           do without it; it must be empty, or failed with nothing on it alone\n  \
    hydrafs disk replace ./node /disks/b /disks/d all of this in one\n\n\
    A disk is named by its number or by its path, both as `list` shows them. Whatever is interrupted can be begun again.")]
pub(super) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// List the disks: how they do, how full they are, what lies there.
    List {
        /// The node's folder.
        node: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Measure what a request takes on each disk, and how many at a time it does best; masses of files are read by that. A node that is used does it
    /// once in an hour by itself.
    Measure {
        /// The node's folder.
        node: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Take in one more disk, an empty directory.
    Add {
        /// The node's folder.
        node: PathBuf,
        /// The directory; made if it does not exist.
        dir: PathBuf,
    },
    /// Bring what lies on a disk to the others. It takes nothing new meanwhile, nor afterwards.
    Drain {
        /// The node's folder.
        node: PathBuf,
        /// Its number or path.
        disk: String,
        /// Only say what would be done.
        #[arg(long)]
        dry_run: bool,
        /// Call it off: the disk takes part again.
        #[arg(long, conflicts_with_all = ["dry_run", "share"])]
        stop: bool,
        /// Percentage of the time that it may take; the rest belongs to who uses the node. Default: `storage.repair_share`.
        #[arg(long, value_name = "PERCENT")]
        share: Option<u8>,
        /// Do it although something will be on fewer disks than was asked for, by the settings or a policy.
        #[arg(long)]
        accept_fewer_copies: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Do without a disk from now on: one that was drained, or that failed or is missing.
    Remove(Remove),
    /// Put an empty directory in a disk's place: add the one, drain the other if it can be read, and remove it.
    Replace {
        #[command(flatten)]
        old: Remove,
        /// The directory; made if it does not exist.
        dir: PathBuf,
        /// As for `drain`.
        #[arg(long, value_name = "PERCENT")]
        share: Option<u8>,
    },
}

#[derive(Args, Debug)]
struct Remove {
    /// The node's folder.
    node: PathBuf,
    /// Number or path of the disk that goes.
    disk: String,
    /// Open the node although the disk is missing, where no daemon has it open.
    #[arg(long)]
    degraded: bool,
    /// Give up what lies on it alone, if it takes no writes: `status` says how much that is.
    #[arg(long)]
    accept_loss: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.verb {
        Verb::List { node, json } => list(&NodeFolder::open(node)?, *json)?,
        Verb::Measure { node, json } => measure(&NodeFolder::open(node)?, *json)?,
        Verb::Add { node, dir } => add(&NodeFolder::open(node)?, dir)?,
        Verb::Drain { node, disk, dry_run, stop, share, accept_fewer_copies, json } => {
            check_share(*share, "cannot drain the disk")?;
            let folder = NodeFolder::open(node)?;
            let (disk, _) = find(&folder, disk)?;
            let (dry_run, stop, share, accept_fewer) = (*dry_run, *stop, *share, *accept_fewer_copies);
            let request = Request::DiskDrain { disk, dry_run, stop, share, accept_fewer };
            let answer = with_bar(&folder, request)?;
            if *json { super::say_json(&answer) } else { super::say(drained(&answer)) }
        }
        Verb::Remove(old) => {
            let folder = NodeFolder::open(&old.node)?.degraded(old.degraded);
            let (disk, _) = find(&folder, &old.disk)?;
            remove(&folder, disk, old.accept_loss)?;
        }
        Verb::Replace { old, dir, share } => {
            check_share(*share, "cannot replace the disk")?;
            replace(old, dir, *share)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(folder: &NodeFolder, json: bool) -> Result<(), Failure> {
    let status = super::status::of(folder)?;
    if json {
        super::say_json(&status["disks"]);
        return Ok(());
    }
    for disk in status["disks"].as_array().into_iter().flatten() {
        super::say(line(disk));
    }
    Ok(())
}

fn measure(folder: &NodeFolder, json: bool) -> Result<(), Failure> {
    let answer = with_bar(folder, Request::DiskMeasure {})?;
    if answer["all"] != json!(true) {
        super::remark(
            "some disks have too little in packs that is not in memory, or failed: they keep what is known of them",
        );
    }
    list(folder, json)
}

fn line(disk: &Value) -> String {
    let state = match (disk["missing"] == json!(true), disk["drained"] == json!(true)) {
        (true, _) => "missing",
        (_, true) => "drained",
        _ if disk["good"] == json!(true) => "good",
        _ => "FAILED",
    };
    let Some(shown) = disk["number"].as_u64() else {
        // No daemon has asked it.
        return format!("{}  {}", text(disk, "/health"), text(disk, "/path"));
    };
    let bytes = |name: &str| Bytes(number(disk, name));
    let mut also = Vec::new();
    for (name, word) in [("journal", "the journal"), ("index", "the index")] {
        if disk[name] == json!(true) {
            also.push(word);
        }
    }
    let also = if also.is_empty() { String::new() } else { format!(", {}", also.join(", ")) };
    let health = if state == "good" && text(disk, "/health") != "good" || state == "FAILED" {
        text(disk, "/health")
    } else {
        ""
    };
    let health = if health.is_empty() { String::new() } else { format!("; {health}") };
    let speed = speed(disk).map_or_else(String::new, |speed| format!("\n    {speed}"));
    format!(
        "{shown}  {state:<7}  {} packs with {}{also}; {} of {} free  {}{health}{speed}",
        number(disk, "/packs"),
        bytes("/pack_bytes"),
        bytes("/free_bytes"),
        bytes("/total_bytes"),
        text(disk, "/path")
    )
}

/// What a request takes there, if that was measured.
fn speed(disk: &Value) -> Option<String> {
    let milliseconds = |name: &str| Some(disk.pointer(name)?.as_f64()? * 1000.0);
    Some(format!(
        "a small read takes {:.3} ms alone, and {:.3} ms where {} are under way; long ones {} a second; gaps of {} are read over",
        milliseconds("/speed/alone_seconds")?,
        milliseconds("/speed/request_seconds")?,
        number(disk, "/speed/depth"),
        Bytes(number(disk, "/speed/bytes_per_second")),
        Bytes(number(disk, "/speed/gap_bytes")),
    ))
}

/// Number and state of a disk that a person named.
fn find(folder: &NodeFolder, named: &str) -> Result<(u64, Value), Failure> {
    let status = start::ask(folder, Request::Status {}, super::remark)?;
    let has_number = |disk: &&Value| disk["number"].as_u64().is_some_and(|number| number.to_string() == named);
    let found = disks(&status).find(has_number).or_else(|| at_path(&status, Path::new(named)));
    found.map(|disk| (number(disk, "/number"), disk.clone())).ok_or_else(|| {
        Failure::new("cannot find the disk", "the node has none of this number or path")
            .place(named)
            .mend("see `hydrafs disk list`; nothing was changed")
    })
}

fn disks(status: &Value) -> impl Iterator<Item = &Value> {
    status["disks"].as_array().into_iter().flatten()
}

/// The disk of the node that lies there.
fn at_path<'a>(status: &'a Value, path: &Path) -> Option<&'a Value> {
    let path = std::path::absolute(path).ok()?;
    let path = path.canonicalize().unwrap_or(path);
    disks(status).find(|disk| Path::new(text(disk, "/path")) == path)
}

/// The folder of a disk that is to be added; made if it is not there.
fn place(folder: &NodeFolder, dir: &Path) -> Result<PathBuf, Failure> {
    let what = "cannot add the disk";
    let cannot = |error: std::io::Error| Failure::new(what, error).at(dir);
    let path = resolve(dir).map_err(cannot)?;
    let refuse = |why: &str| Err(Failure::new(what, why).at(&path).mend("name another directory; nothing was changed"));
    if path.to_str().is_none() {
        return refuse("the path is not UTF-8, which the node's file needs");
    }
    if folder.path.starts_with(&path) {
        return refuse("the node's folder would lie in this disk");
    }
    let others: Vec<PathBuf> = folder.disk_paths().iter().filter_map(|disk| disk.canonicalize().ok()).collect();
    if others.iter().any(|other| *other != path && (path.starts_with(other) || other.starts_with(&path))) {
        return refuse("one disk would lie in another");
    }
    node_folder::make_folder(&path).map_err(cannot)?;
    Ok(path)
}

fn add(folder: &NodeFolder, dir: &Path) -> Result<(), Failure> {
    let path = place(folder, dir)?;
    let answer = with_bar(folder, Request::DiskAdd { path })?;
    super::say(format!("added disk {}, {}", number(&answer, "/number"), text(&answer, "/path")));
    Ok(())
}

fn drained(answer: &Value) -> String {
    let disk = number(answer, "/number");
    if answer["dry_run"] == json!(true) {
        let (bytes, room) = (Bytes(number(answer, "/bytes")), Bytes(number(answer, "/room_bytes")));
        let packs = number(answer, "/packs");
        let (copies, left) = (number(answer, "/copies"), number(answer, "/disks_left"));
        let lowered = match copies > left {
            true => format!("; something there is to be on {copies} disks, and {left} would be left"),
            false => String::new(),
        };
        return format!(
            "would bring {bytes} to other disks, which have room for {room}; {packs} packs lie on disk {disk}{lowered}"
        );
    }
    if answer["drained"] != json!(true) {
        return format!("disk {disk} takes part again");
    }
    let (bytes, packs) = (Bytes(number(answer, "/bytes_written")), number(answer, "/packs_written"));
    let seconds = answer["seconds"].as_f64().unwrap_or_default();
    format!("disk {disk} is empty: {bytes} in {packs} packs were written to others in {seconds:.1} s")
}

fn remove(folder: &NodeFolder, disk: u64, accept_loss: bool) -> Result<(), Failure> {
    let answer = with_bar(folder, Request::DiskRemove { disk, accept_loss })?;
    super::say(format!("removed disk {disk}, {}", text(&answer, "/path")));
    if let Some(why) = answer["not_wiped"].as_str() {
        super::remark(&format!("what was on it is there still, and nobody takes it for a disk of the node: {why}"));
    }
    Ok(())
}

fn replace(old: &Remove, dir: &Path, share: Option<u8>) -> Result<(), Failure> {
    // Each step changes the list of disks that the folder has.
    let folder = || Ok::<_, Failure>(NodeFolder::open(&old.node)?.degraded(old.degraded));
    let (disk, state) = find(&folder()?, &old.disk).map_err(|failure| match failure.place == old.disk {
        true => failure.mend(
            "see `hydrafs disk list`; where a replacement of it was interrupted `hydrafs disk add` puts the new one in. Nothing was changed",
        ),
        false => failure,
    })?;
    if state["good"] == json!(true) {
        // A replacement that was interrupted may have added it already. The folder notes a disk before the node takes it in, so the node is asked.
        let status = start::ask(&folder()?, Request::Status {}, super::remark)?;
        let is_there = match at_path(&status, dir) {
            Some(there) if number(there, "/number") == disk => {
                return Err(Failure::new("cannot replace the disk", "it would take its own place")
                    .at(dir)
                    .mend("name the directory that is to take its place; nothing was changed"));
            }
            there => there.is_some(),
        };
        if !is_there {
            add(&folder()?, dir)?;
        }
        // One that was added now leaves as many as before. Another may be one that everything else counts on, unless this was seen to before.
        let accept_fewer = !is_there || state["drained"] == json!(true);
        let request = Request::DiskDrain { disk, dry_run: false, stop: false, share, accept_fewer };
        let answer = with_bar(&folder()?, request).map_err(|failure| match is_there {
            true => failure.mend(
                "the node has that disk already; if it does not take this one's place, name an empty directory; if it does, `hydrafs disk drain --accept-fewer-copies` and then `hydrafs disk remove` take this one out",
            ),
            false => failure,
        })?;
        super::say(drained(&answer));
        return remove(&folder()?, disk, false);
    }
    // While a disk is missing none is added: first it has to be known what the node has. But the old one does not go for one that cannot be added.
    let path = place(&folder()?, dir)?;
    let cannot = |error: std::io::Error| Failure::new("cannot replace the disk", error).at(&path);
    if fs::read_dir(&path).map_err(cannot)?.next().is_some() {
        return Err(Failure::new(
            "cannot replace the disk",
            "the directory that is to take its place has something in it",
        )
        .at(&path)
        .mend("name an empty directory; nothing was changed"));
    }
    remove(&folder()?, disk, old.accept_loss)?;
    add(&folder()?, dir).map_err(|failure| {
        let mend = format!("{}. The old disk was removed: `hydrafs disk add` finishes the replacement", failure.mend);
        failure.mend(mend)
    })
}
