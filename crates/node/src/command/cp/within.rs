//! Copies within a mount by its daemon: names and attributes are made anew, and nothing of the content is read or written.
//!
//! Not here: what is merged with what is there; there system calls share content file by file (`plain`).

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::Value;

use super::into::{is_name, parent_of};
use super::plain::{How, Job};
use super::progress::Progress;
use super::source::umask;
use crate::command::info::Held;
use crate::command::sync::mount_of;
use crate::command::tree::write_pages_back;
use crate::control::client::Daemon;
use crate::control::wire::{Anew, Answer, Name, Request};
use crate::failure::Failure;
use crate::mounts;

/// Whether source and target are of one file system.
pub(super) fn is_within(job: &Job) -> bool {
    fs::metadata(parent_of(&job.to)).is_ok_and(|parent| parent.dev() == job.source.dev())
}

/// A copy that the daemon can make, its files held so that the daemon knows them.
pub(super) struct Within {
    daemon: Daemon,
    source: Held,
    parent: Held,
    name: Name,
    anew: Option<Anew>,
}

impl Within {
    /// `None`: system calls are to do it.
    pub(super) fn begin(job: &Job, how: How) -> Option<Within> {
        let is_new = fs::symlink_metadata(&job.to).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
        if how.resume || !is_new || !is_name(&job.to) || job.source.is_symlink() {
            return None;
        }
        let mount = mount_of(&job.from).ok()?;
        let from = job.from.canonicalize().ok()?;
        // What is mounted below is no part of the file system, and would not be copied.
        if mount.has("ro") || mounts::read().ok()?.iter().any(|other| other.point.starts_with(&from)) {
            return None;
        }
        let source = Held::open(&job.from, "cannot copy").ok()?;
        let parent = Held::open(&parent_of(&job.to).canonicalize().ok()?, "cannot copy").ok()?;
        write_pages_back(&mount.point);
        let name = Name::new(job.to.file_name()?.as_bytes());
        Some(Within {
            daemon: Daemon::of(&mount.source, mount.device).ok()?,
            source,
            parent,
            name,
            anew: (!how.archive).then(ours),
        })
    }

    /// Copies; all of it is on the disks then.
    pub(super) fn carry_out(self, job: &Job, progress: &Progress) {
        match self.ask(progress) {
            Ok(answer) => note(&answer, parent_of(&job.to), progress),
            Err(failure) => progress.note(&job.to, Err(failure)),
        }
    }

    fn ask(self, progress: &Progress) -> Result<Value, Failure> {
        let Within { daemon, source, parent, name, anew } = self;
        let request = Request::BatchCopy { source: source.inode, parent: parent.inode, name, anew };
        let (mut talk, mut has_given_up) = (daemon.begin(&request, None)?, false);
        loop {
            match talk.hear()? {
                Answer::Progress(text) => progress.say(&text),
                Answer::Done(answer) => return Ok(answer),
                Answer::Failed(failure) => return Err(failure),
                other => return Err(talk.unexpected(&other)),
            }
            // The daemon says something several times a second.
            if progress.is_interrupted() && !has_given_up {
                talk.give_up()?;
                has_given_up = true;
            }
        }
    }
}

fn ours() -> Anew {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Anew { uid, gid, umask: umask() }
}

fn note(answer: &Value, parent: &Path, progress: &Progress) {
    let count = |field: &str| answer[field].as_u64().unwrap_or_default();
    progress.done(count("files"), count("bytes"));
    progress.units(count("units"));
    if progress.is_interrupted() && !answer["ended"].is_null() {
        // All that is missing is named there, and nobody wants it.
        return;
    }
    let failed: Vec<(Name, String)> = serde_json::from_value(answer["failed"].clone()).unwrap_or_default();
    let unlisted = count("failures").saturating_sub(failed.len() as u64);
    for (path, why) in failed {
        progress.note(&parent.join(OsStr::from_bytes(path.bytes())), Err(why));
    }
    if unlisted > 0 {
        progress.note(parent, Err(format!("and {unlisted} more")));
    }
}
