//! `hydrafs snapshot`: takes, lists and deletes snapshots of the file system, or of one directory.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::info::Held;
use super::sync::mount_of;
use super::text;
use crate::control::wire::Request;
use crate::failure::Failure;
use crate::node_folder::NodeFolder;
use crate::{moment, mounts, start};
use clap::{Args, Subcommand};
use serde_json::Value;

/// Take, list and delete snapshots of the file system or of a directory. They are browsable below .snapshots in the mount's root.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs snapshot create ./node before-upgrade\n  \
    hydrafs snapshot create ./node                 named after the moment\n  \
    hydrafs snapshot create ./node photos --of /mnt/photos\n  \
    hydrafs snapshot list ./node\n  \
    ls /mnt/.snapshots/before-upgrade\n  \
    cp -a /mnt/.snapshots/before-upgrade/etc /mnt/etc\n  \
    hydrafs snapshot delete ./node before-upgrade\n\n\
    A snapshot of a directory shows that directory alone. Whatever it is of, it is taken at once, and keeps the room of all files of its\n\
    moment until it is deleted.")]
pub(super) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Take a snapshot: what was written before is in it.
    Create {
        /// The node's folder.
        node: PathBuf,
        /// Its name; the time (UTC) where none is given.
        name: Option<String>,
        /// A directory in the mount: the snapshot shows it instead of everything.
        #[arg(long, value_name = "PATH")]
        of: Option<PathBuf>,
    },
    /// List snapshots, the oldest first.
    List {
        /// The node's folder.
        node: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Delete a snapshot. What only it held is given back to the disks later.
    Delete {
        /// The node's folder.
        node: PathBuf,
        /// Its name.
        name: String,
    },
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.verb {
        Verb::Create { node, name, of } => create(&NodeFolder::open(node)?, name.as_deref(), of.as_deref())?,
        Verb::List { node, json } => list(&NodeFolder::open(node)?, *json)?,
        Verb::Delete { node, name } => {
            let request = Request::SnapshotDelete { name: name.clone() };
            start::ask(&NodeFolder::open(node)?, request, super::remark)?;
            super::say(format!("deleted the snapshot {name}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn create(folder: &NodeFolder, name: Option<&str>, of: Option<&Path>) -> Result<(), Failure> {
    let now = || moment::utc_name(platform::real::platform().clock.now());
    let name = name.map_or_else(now, ToOwned::to_owned);
    // Held until the daemon has answered.
    let held = of.map(|path| held_in(folder, path)).transpose()?;
    write_pages_back(folder)?;
    let of = held.as_ref().map(|held| held.inode);
    let snapshot = start::ask(folder, Request::SnapshotCreate { name, of }, super::remark)?;
    let (name, taken) = (text(&snapshot, "/name"), text(&snapshot, "/taken"));
    super::say(format!("took the snapshot {name} at {taken}{}", words_of(&snapshot)));
    Ok(())
}

/// A directory of the node's mount.
fn held_in(folder: &NodeFolder, path: &Path) -> Result<Held, Failure> {
    const WHAT: &str = "cannot take the snapshot";
    let refuse = |why: &str| Failure::new(WHAT, why).at(path).mend("nothing was changed");
    if mount_of(path)?.source != folder.path {
        return Err(refuse("it is in the mount of another node"));
    }
    if !std::fs::metadata(path).map_err(|error| Failure::new(WHAT, error).at(path))?.is_dir() {
        return Err(refuse("it is not a directory"));
    }
    Held::open(path, WHAT)
}

/// What a snapshot is of, unless it is of everything.
fn words_of(snapshot: &Value) -> String {
    match text(snapshot, "/of") {
        "/" | "" => String::new(),
        path => format!("  of {path}"),
    }
}

fn list(folder: &NodeFolder, json: bool) -> Result<(), Failure> {
    let answer = start::ask(folder, Request::SnapshotList {}, super::remark)?;
    if json {
        super::say_json(&answer);
        return Ok(());
    }
    let snapshots = answer["snapshots"].as_array().map(Vec::as_slice).unwrap_or_default();
    for snapshot in snapshots {
        super::say(format!("{}  {}{}", text(snapshot, "/taken"), text(snapshot, "/name"), words_of(snapshot)));
    }
    if snapshots.is_empty() {
        super::remark("there are no snapshots");
    }
    Ok(())
}

/// What was written through mappings lies in the kernel's pages until it is asked for. What is on its way when the snapshot is taken is not in
/// it: who wants it there has it written first (msync(2), `hydrafs sync`), which takes longer with each file that is cached.
#[expect(clippy::disallowed_methods, reason = "a mount is the outside")]
fn write_pages_back(folder: &NodeFolder) -> Result<(), Failure> {
    let ours = mounts::read()?.into_iter().filter(|mount| mount.is_hydrafs() && mount.source == folder.path);
    for mount in ours {
        let synced = File::open(&mount.point).and_then(|root| Ok(rustix::fs::syncfs(root)?));
        synced.map_err(|error| Failure::new("cannot take the snapshot", error).at(&mount.point))?;
    }
    Ok(())
}
