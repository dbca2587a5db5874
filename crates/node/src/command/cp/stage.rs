//! All or nothing: what is copied gets names of its own first, and takes its place when all of it is there.
//!
//! Each source takes its place in one step. Between those of several sources a crash may come.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags};

use super::plain::Job;
use crate::failure::Failure;

/// What is on its way to its place.
pub(super) struct Stage(Vec<Staged>);

struct Staged {
    aside: PathBuf,
    to: PathBuf,
    is_directory: bool,
}

impl Stage {
    /// Has all of a plan go aside.
    pub(super) fn divert(plan: &mut [Job]) -> Result<Stage, Failure> {
        let mut staged = Vec::new();
        for (index, job) in plan.iter_mut().enumerate() {
            let is_directory = job.source.is_dir();
            let there = fs::symlink_metadata(&job.to).ok();
            if there.is_some_and(|there| is_directory || there.is_dir()) {
                let why = "something is there, and with --atomic a directory is made anew";
                return Err(Failure::new("cannot copy", why).at(&job.to).mend("remove it, or copy to another name"));
            }
            let aside = job.to.with_file_name(format!(".hydrafs-cp-{}-{index}", std::process::id()));
            remove(&aside).map_err(|error| Failure::new("cannot copy", error).at(&aside))?;
            staged.push(Staged { to: std::mem::replace(&mut job.to, aside.clone()), aside, is_directory });
        }
        Ok(Stage(staged))
    }

    /// All of it is there: each takes its place. What cannot is told.
    pub(super) fn take_place(&self) -> Result<(), Failure> {
        for staged in &self.0 {
            let flags = if staged.is_directory { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
            let renamed = rustix::fs::renameat_with(CWD, &staged.aside, CWD, &staged.to, flags);
            renamed.map_err(|error| {
                let failure = Failure::new("cannot bring what was copied to its place", error).at(&staged.to);
                failure.mend("it was undone; what came before it stays")
            })?;
        }
        Ok(())
    }

    /// Takes away what has not taken its place.
    pub(super) fn undo(&self) -> io::Result<()> {
        self.0.iter().try_for_each(|staged| remove(&staged.aside))
    }
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
