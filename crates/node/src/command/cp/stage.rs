//! All or nothing: what is copied gets names of its own first, and takes its place when all of it is there.
//!
//! Each source takes its place in one step. Between those of several sources a crash may come. Who interrupts the program (Ctrl-C) has what is there
//! undone, and without `--atomic` what is not whole; who does so twice ends it at once.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::fs::{CWD, RenameFlags};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use super::likeness::{hand_on, regular};
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

    /// All of it is there: each takes its place. What cannot is told. `is_like_source`: its attributes are the source's, and not those of what it
    /// replaces.
    pub(super) fn take_place(&self, is_like_source: bool) -> Result<(), Failure> {
        for staged in &self.0 {
            staged.take_place(is_like_source).map_err(|error| {
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

impl Staged {
    fn take_place(&self, is_like_source: bool) -> io::Result<()> {
        if !is_like_source && let (Some(former), Some(ours)) = (regular(&self.to)?, regular(&self.aside)?) {
            hand_on(&former, &ours)?;
        }
        let flags = if self.is_directory { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        Ok(rustix::fs::renameat_with(CWD, &self.aside, CWD, &self.to, flags)?)
    }
}

/// Becomes true when somebody interrupts the program, which goes on then until what it did is undone.
pub(super) fn watch() -> Result<Arc<AtomicBool>, Failure> {
    let interrupted = Arc::default();
    let ignored = ignored();
    let mut signals = [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let watched = signals.try_for_each(|signal| {
        // In this order: the second signal finds it true, and does what it does to any program.
        flag::register_conditional_default(signal, Arc::clone(&interrupted))?;
        flag::register(signal, Arc::clone(&interrupted)).map(drop)
    });
    watched.map_err(|error| Failure::new("cannot watch for signals", error))?;
    Ok(interrupted)
}

/// The signals that this program was begun to ignore, as by nohup(1), a bit each.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
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
