//! `hydrafs info`: the inside of one file of a mount.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use base::units::Bytes;
use clap::Args;
use rustix::fs::{AtFlags, CWD, StatxFlags};
use serde_json::Value;

use super::sync::{itself, mount_of};
use super::{number, text};
use crate::control::client::Daemon;
use crate::control::wire::Request;
use crate::failure::Failure;
use crate::mounts::Mount;

/// Show how a file of a mount is stored: size, chunks, version, what is not on the disks yet.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs info /mnt/file\n  \
    hydrafs info --json /mnt/.snapshots/monday/file")]
pub(super) struct Arguments {
    /// A file or directory in a mount.
    path: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mount = mount_of(itself(&arguments.path))?;
    let held = Held::of(&arguments.path, "cannot describe the file", &mount)?;
    let info = held.ask(&Request::Info { inode: held.inode }, super::remark)?;
    if arguments.json {
        super::say_json(&info);
    } else {
        lines(&info).iter().for_each(super::say);
    }
    Ok(ExitCode::SUCCESS)
}

/// A file of a mount, held, so that the daemon knows what its number means while it is asked.
pub(super) struct Held {
    /// Keeps it so.
    pub(super) file: OwnedFd,
    pub(super) inode: u64,
    /// The folder of its node.
    node: PathBuf,
    /// The device that it is on.
    device: (u32, u32),
}

impl Held {
    pub(super) fn open(path: &Path, what: &'static str) -> Result<Held, Failure> {
        Held::of(path, what, &mount_of(path)?)
    }

    /// The same, in a mount that is known.
    pub(super) fn of(path: &Path, what: &'static str, mount: &Mount) -> Result<Held, Failure> {
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC;
        let cannot = |error: rustix::io::Errno| Failure::new(what, error).at(path);
        let file = rustix::fs::openat(CWD, path, flags, rustix::fs::Mode::empty()).map_err(cannot)?;
        let found =
            rustix::fs::statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::INO | StatxFlags::MNT_ID).map_err(cannot)?;
        if found.stx_mask & StatxFlags::MNT_ID.bits() != 0 && found.stx_mnt_id != mount.id {
            // Its number would be that of another file there.
            let why = format!("it is a symbolic link that leads to {}", mount.point.display());
            return Err(Failure::new(what, why).at(path).mend("name what it leads to"));
        }
        let device = (found.stx_dev_major, found.stx_dev_minor);
        Ok(Held { file, inode: found.stx_ino, node: mount.source.clone(), device })
    }

    /// Asks the daemon of its mount.
    pub(super) fn ask(&self, request: &Request, progress: impl FnMut(&str)) -> Result<Value, Failure> {
        Daemon::of(&self.node, self.device)?.ask(request, progress)
    }
}

fn lines(info: &Value) -> Vec<String> {
    let bytes = |pointer: &str| Bytes(number(info, pointer));
    let kind = text(info, "/kind");
    let view = match &info["snapshot_view"] {
        Value::Null => String::new(),
        view => format!(", of snapshot {view}"),
    };
    let clone = match &info["clone"] {
        Value::Null => String::new(),
        clone => format!(", of clone {clone}"),
    };
    let mut lines = vec![
        format!("kind      {kind}{clone}{view}"),
        format!("file id   {} (made by node {})", number(info, "/file"), number(info, "/made_by_node")),
        format!(
            "mode      {}, owner {}, group {}, {} links",
            text(info, "/mode"),
            number(info, "/uid"),
            number(info, "/gid"),
            number(info, "/links")
        ),
    ];
    match kind {
        "directory" => lines.push(format!("entries   {}", number(info, "/parts"))),
        "regular file" => {
            lines.push(format!("size      {} ({} bytes)", bytes("/size"), number(info, "/size")));
            lines.push(format!("allocated {} in {} extents", bytes("/allocated_bytes"), number(info, "/parts")));
            lines.push(format!(
                "chunks    {} different, {} of content",
                number(info, "/chunks"),
                bytes("/chunk_bytes")
            ));
        }
        _ => {}
    }
    let state = match (info["committed"] == Value::Bool(true), number(info, "/dirty_bytes")) {
        (true, _) => "committed to the trees".to_owned(),
        (false, 0) => "in the journal, waits for a commit".to_owned(),
        (false, _) => format!("{} in memory, waits to be flushed", bytes("/dirty_bytes")),
    };
    let version = format!("{}.{}", number(info, "/version/epoch"), number(info, "/version/sequence"));
    lines.push(format!("state     {state}"));
    lines.push(format!("policy    {}", super::policy::words(info)));
    lines.push(format!("version   {version}, chain {}", text(info, "/version/chain")));
    lines.push(format!("born      {}, modified {}", text(info, "/born"), text(info, "/modified")));
    lines
}
