//! All or nothing: what is copied gets names of its own first, and takes its place when all of it is there.
//!
//! Each source takes its place in one step. Between those of several sources a crash may come. Who interrupts the program (Ctrl-C) has what is there
//! undone, and without `--atomic` what is not whole; who does so twice ends it at once.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::fs::{CWD, Mode, OFlags, RenameFlags, openat};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use super::into::parent_of;
use super::likeness::{hand_on, regular};
use super::plain::Job;
use super::target::aside;
use super::{is_ours, sync};
use crate::failure::Failure;

/// What is on its way to its place.
pub(super) struct Stage(Vec<Staged>);

struct Staged {
    aside: PathBuf,
    to: PathBuf,
    is_directory: bool,
    is_placed: bool,
}

impl Stage {
    /// Has all of a plan go aside.
    pub(super) fn divert(plan: &mut [Job]) -> Result<Stage, Failure> {
        let mut staged = Vec::new();
        for job in plan {
            let is_directory = job.source.is_dir();
            let there = fs::symlink_metadata(&job.to).ok().map(|there| there.file_type());
            if there.is_some_and(|there| is_directory || there.is_dir()) {
                let why = "something is there, and with --atomic a directory is made anew";
                return Err(Failure::new("cannot copy", why).at(&job.to).mend("remove it, or copy to another name"));
            }
            if there.is_some_and(|there| there.is_block_device() || there.is_char_device()) {
                // It is hardly meant to become a file: /dev/null for one.
                let failure = Failure::new("cannot copy", "a device is in the way").at(&job.to);
                return Err(failure.mend("name another target"));
            }
            let aside = aside(&job.to);
            let to = std::mem::replace(&mut job.to, aside.clone());
            staged.push(Staged { aside, to, is_directory, is_placed: false });
        }
        Ok(Stage(staged))
    }

    /// Has all of it on the disks, with where it is. No other FUSE file system hears of it, nor one of ours whose daemon does not answer us.
    pub(super) fn settle(&self) -> Result<(), Failure> {
        let places: BTreeSet<&Path> = self.0.iter().map(|staged| parent_of(&staged.to)).collect();
        places.into_iter().try_for_each(|place| {
            if is_ours(place) {
                return sync(place);
            }
            // Who may make things there may not be one who may list them.
            let there = self.0.iter().filter(|staged| parent_of(&staged.to) == place);
            let mut own = there.map(|staged| if staged.is_placed { &staged.to } else { &staged.aside });
            let opened = open(&place.join("")).or_else(|error| own.find_map(|path| open(path).ok()).ok_or(error));
            let synced = opened.and_then(|file| Ok(rustix::fs::syncfs(file)?));
            synced.map_err(|error| Failure::new("cannot have on the disks what was copied", error).at(place))
        })
    }

    /// All of it is there: each takes its place. What cannot is told. `is_like_source`: its attributes are the source's, and not those of what it
    /// replaces.
    pub(super) fn take_place(&mut self, is_like_source: bool) -> Result<(), Failure> {
        for staged in &mut self.0 {
            staged.take_place(is_like_source).map_err(|error| {
                let failure = Failure::new("cannot bring what was copied to its place", error).at(&staged.to);
                failure.mend("it was undone; what came before it stays")
            })?;
        }
        Ok(())
    }

    /// Takes away what has not taken its place; gives what it could not, and why.
    pub(super) fn undo(&self) -> Vec<(&Path, io::Error)> {
        let aside = self.0.iter().filter(|staged| !staged.is_placed).map(|staged| &*staged.aside);
        aside.filter_map(|aside| Some((aside, remove(aside).err()?))).collect()
    }
}

impl Staged {
    fn take_place(&mut self, is_like_source: bool) -> io::Result<()> {
        if !is_like_source && let (Some(former), Some(ours)) = (regular(&self.to)?, regular(&self.aside)?) {
            hand_on(&former, &ours)?;
        }
        let flags = if self.is_directory { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        rustix::fs::renameat_with(CWD, &self.aside, CWD, &self.to, flags)?;
        self.is_placed = true;
        Ok(())
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

/// Opens what is there itself, and no other that it leads to; with a slash behind it, a directory.
fn open(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
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

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files are what is tested")]
mod tests {
    use std::fs;

    use rustix::fs::{CWD, FileType, Mode};

    use super::super::plain::Job;
    use super::Stage;

    /// Programs of two containers may have one process id, and copy to one place.
    #[test]
    fn what_another_copy_has_aside_is_left_alone() {
        let folder = std::env::temp_dir().join(format!("hydrafs-stage-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a temporary folder");
        let from = folder.join("from");
        fs::write(&from, "content").expect("room");
        let others = folder.join(format!(".hydrafs-cp-{}-0", std::process::id()));
        fs::write(&others, "of another").expect("room");
        let job = Job { from: from.clone(), to: folder.join("to"), source: fs::metadata(&from).expect("there") };
        let mut plans = [vec![job.clone()], vec![job]];
        let [mut first, second] = plans.each_mut().map(|plan| Stage::divert(plan).expect("nothing is there"));
        let [a, b] = plans.map(|plan| plan[0].to.clone());
        assert!(a != b && a != others && b != others);
        for aside in [&a, &b] {
            fs::copy(&from, aside).expect("room");
        }
        first.take_place(true).expect("nothing is there");
        assert!(first.undo().is_empty() && b.exists(), "what has its place stays, and so does the other");
        assert!(second.undo().is_empty() && !b.exists());
        assert_eq!(fs::read(folder.join("to")).expect("it has its place"), b"content");
        assert!(others.exists());
        // A device is in the way, which is hardly meant to become a file.
        let device = folder.join("device");
        let made = rustix::fs::mknodat(CWD, &device, FileType::CharacterDevice, Mode::RUSR, rustix::fs::makedev(1, 3));
        if made.is_ok() {
            let source = fs::metadata(&from).expect("there");
            assert!(Stage::divert(&mut [Job { from, to: device, source }]).is_err());
        }
        fs::remove_dir_all(&folder).expect("our own folder");
    }
}
