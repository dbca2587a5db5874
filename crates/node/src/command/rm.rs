//! `hydrafs rm`: removes trees at once; their room comes back behind.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use base::units::Bytes;
use clap::Args;
use serde_json::{Value, json};

use super::info::Held;
use super::sync::{mount_of, sync};
use super::{is_dot, number};
use crate::control::wire::{Name, Request};
use crate::failure::Failure;
use crate::mounts;

/// Remove files and whole directories of a mount. A directory is gone when this returns, whatever it holds; its room comes back behind.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs rm -r /mnt/build              gone in milliseconds, whatever its size\n  \
    hydrafs rm -r --dry-run /mnt/old      say what would go\n\n\
    What a process has open it keeps until it closes it. Snapshots keep what they show. It needs the daemon's socket: root, or who runs it.\n\
    Exit code: 0, or 1 if something was not removed; each is named on standard error.")]
pub(super) struct Arguments {
    /// What to remove.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Directories too, with everything below them.
    #[arg(short = 'r', short_alias = 'R', long)]
    recursive: bool,
    /// What is not there is no failure.
    #[arg(short, long)]
    force: bool,
    /// Only say what would be removed.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const WHAT: &str = "cannot remove";

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (mut removed, mut failures, mut mounts) = (Vec::new(), Vec::new(), BTreeSet::new());
    for path in &arguments.paths {
        match remove(arguments, path) {
            Ok(Some((mount, answer))) => {
                mounts.insert(mount);
                removed.push((path, answer));
            }
            Ok(None) => {}
            Err(failure) => {
                super::remark(&failure.to_string());
                failures.push((path.as_path(), failure));
            }
        }
    }
    if arguments.dry_run {
        for (path, usage) in removed.iter().filter(|(_, usage)| number(usage, "/failed") > 0) {
            let why = format!("{} of what lies below it could not be read", number(usage, "/failed"));
            let failure = Failure::new("not all of it was counted", why).at(path).mend("see `hydrafs fsck`");
            super::remark(&failure.to_string());
            failures.push((path.as_path(), failure));
        }
    } else {
        for mount in &mounts {
            if let Err(failure) = sync(mount) {
                super::remark(&format!("a crash may bring back what was removed: {failure}"));
                failures.push((mount.as_path(), failure));
            }
        }
    }
    if arguments.json {
        let path = |path: &Path| json!(path.display().to_string());
        let failed = failures.iter().map(|(at, failure)| json!({ "path": path(at), "why": failure.why }));
        super::say_json(&json!({
            "dry_run": arguments.dry_run,
            "removed": removed.iter().map(|(at, answer)| json!({ "path": path(at), "usage": answer })).collect::<Vec<_>>(),
            "failed": failed.collect::<Vec<_>>(),
        }));
    } else if arguments.dry_run {
        removed.iter().for_each(|(path, usage)| super::say(words(path, usage)));
    }
    match failures.len() {
        0 => Ok(ExitCode::SUCCESS),
        count => Err(Failure::new("not everything was removed", format!("{count} failed and {} went", removed.len()))
            .mend("the failed ones are named above")),
    }
}

/// The mount that it lies in, and what would go, where that was asked; `None`: it is not there.
fn remove(arguments: &Arguments, path: &Path) -> Result<Option<(PathBuf, Value)>, Failure> {
    let refuse = |why: &str| Failure::new(WHAT, why).at(path);
    let found = match fs::symlink_metadata(path) {
        Err(error) if arguments.force && matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        found => found.map_err(|error| refuse(&error.to_string()))?,
    };
    if is_dot(path) {
        return Err(refuse("it is named by `.` or `..`").mend("name it by its path"));
    }
    let name = path.file_name().ok_or_else(|| refuse("it has no name of its own").mend("name it by its path"))?;
    if found.is_dir() && !arguments.recursive {
        return Err(refuse("it is a directory").mend("remove it with everything below it with -r"));
    }
    let directory = parent_of(path).canonicalize().map_err(|error| refuse(&error.to_string()))?;
    let whole = directory.join(name);
    if found.is_dir() && fs::symlink_metadata(&whole).is_ok_and(|found| found.is_symlink()) {
        let refused = refuse("it is a symbolic link, named with a slash: that is the directory it leads to");
        return Err(refused.mend("name it without the slash, or the directory by its own path"));
    }
    let mount = mount_of(&directory)?;
    if mount.has("ro") {
        return Err(refuse("it is mounted read-only"));
    }
    if mounts::read()?.iter().any(|other| other.point.starts_with(&whole)) {
        return Err(refuse("something is mounted there").mend("unmount that first"));
    }
    if arguments.dry_run {
        let held = Held::of(&whole, WHAT, &mount)?;
        let usage = held.ask(&Request::Usage { inode: held.inode }, |_| {})?;
        return Ok(Some((mount.point, usage)));
    }
    let held = Held::open(&directory, WHAT)?;
    let request = Request::BatchRemove { parent: held.inode, name: Name::new(name.as_bytes()) };
    let answer = held.ask(&request, super::remark)?;
    Ok(Some((mount.point, answer)))
}

fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."))
}

fn words(path: &Path, usage: &Value) -> String {
    let count = |pointer: &str| number(usage, pointer);
    let (files, directories) = (count("/files") + count("/others"), count("/directories"));
    format!("{}: {files} files and {directories} directories, {}", path.display(), Bytes(count("/bytes")))
}
