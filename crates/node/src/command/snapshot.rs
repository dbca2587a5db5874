//! `hydrafs snapshot`: takes, lists and deletes snapshots of the whole file system.

use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;

use super::text;
use crate::control::wire::Request;
use crate::failure::Failure;
use crate::node_folder::NodeFolder;
use crate::{moment, mounts, start};
use clap::{Args, Subcommand};

/// Take, list and delete snapshots of the whole file system. They are browsable below .snapshots in the mount's root.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs snapshot create ./node before-upgrade\n  \
    hydrafs snapshot create ./node                 named after the moment\n  \
    hydrafs snapshot list ./node\n  \
    ls /mnt/.snapshots/before-upgrade\n  \
    cp -a /mnt/.snapshots/before-upgrade/etc /mnt/etc\n  \
    hydrafs snapshot delete ./node before-upgrade")]
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
        Verb::Create { node, name } => create(&NodeFolder::open(node)?, name.as_deref())?,
        Verb::List { node, json } => list(&NodeFolder::open(node)?, *json)?,
        Verb::Delete { node, name } => {
            let request = Request::SnapshotDelete { name: name.clone() };
            start::ask(&NodeFolder::open(node)?, request, super::remark)?;
            super::say(format!("deleted the snapshot {name}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn create(folder: &NodeFolder, name: Option<&str>) -> Result<(), Failure> {
    let now = || moment::utc_name(platform::real::platform().clock.now());
    let name = name.map_or_else(now, ToOwned::to_owned);
    write_pages_back(folder)?;
    let snapshot = start::ask(folder, Request::SnapshotCreate { name }, super::remark)?;
    super::say(format!("took the snapshot {} at {}", text(&snapshot, "/name"), text(&snapshot, "/taken")));
    Ok(())
}

fn list(folder: &NodeFolder, json: bool) -> Result<(), Failure> {
    let answer = start::ask(folder, Request::SnapshotList {}, super::remark)?;
    if json {
        super::say_json(&answer);
        return Ok(());
    }
    let snapshots = answer["snapshots"].as_array().map(Vec::as_slice).unwrap_or_default();
    for snapshot in snapshots {
        super::say(format!("{}  {}", text(snapshot, "/taken"), text(snapshot, "/name")));
    }
    if snapshots.is_empty() {
        super::remark("there are no snapshots");
    }
    Ok(())
}

/// What was written through mappings lies in the kernel's pages until it is asked for (`sync`).
#[expect(clippy::disallowed_methods, reason = "a mount is the outside")]
fn write_pages_back(folder: &NodeFolder) -> Result<(), Failure> {
    let ours = mounts::read()?.into_iter().filter(|mount| mount.is_hydrafs() && mount.source == folder.path);
    for mount in ours {
        let synced = File::open(&mount.point).and_then(|root| Ok(rustix::fs::syncfs(root)?));
        synced.map_err(|error| Failure::new("cannot take the snapshot", error).at(&mount.point))?;
    }
    Ok(())
}
