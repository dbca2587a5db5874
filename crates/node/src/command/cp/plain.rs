//! Copies by system calls, a file at a time: what works everywhere.
//!
//! One walker makes directories and finds work; several workers copy files, because a small file is mostly waiting. Names that
//! depend on others' work come last: hard links, then the attributes of directories from the deepest up.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use parking_lot::Mutex;

use super::content::Copier;
use super::filler::Filler;
use super::likeness::{Likeness, attributes_of, hand_on, kind_of, make_special, take_bits};
use super::progress::Progress;
use super::target::{self, Target};
use crate::command::whole::Whole;

/// Files that wait for a worker.
const QUEUE_COUNT_MAX: usize = 256;

/// Something to copy: from, to, and what `from` is.
#[derive(Clone)]
pub(super) struct Job {
    pub(super) from: PathBuf,
    pub(super) to: PathBuf,
    pub(super) source: Metadata,
}

/// How to copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub(super) archive: bool,
    /// What is there with the same size and time is left as it is.
    pub(super) resume: bool,
    /// What is not whole in the end is undone.
    pub(super) atomic: bool,
    /// Files at a time.
    pub(super) jobs: u16,
}

impl How {
    /// What to make something with whose source has this mode. With --archive it is its owner's alone before its mode is known to be right: without
    /// the access list that may belong to it, the mode grants more.
    pub(super) fn mode(self, source: u32, closed: u32) -> u32 {
        if self.archive { closed } else { source & 0o777 }
    }
}

/// A copy under way.
pub(super) struct Plain<'a> {
    how: How,
    progress: &'a Progress,
    /// Where the first name of a file with several went, by device and inode.
    linked: Mutex<HashMap<(u64, u64), PathBuf>>,
    /// Names to make when all files are there: existing, new.
    links: Mutex<Vec<(PathBuf, PathBuf)>>,
    /// Places of files that could not be copied: what is there has no further names to get.
    lost: Mutex<HashSet<PathBuf>>,
    /// Directories whose attributes come last, parents first; whether each was made here.
    directories: Mutex<Vec<(Job, bool)>>,
}

impl<'a> Plain<'a> {
    pub(super) fn new(how: How, progress: &'a Progress) -> Plain<'a> {
        let (linked, links, lost) = (Mutex::default(), Mutex::default(), Mutex::default());
        Plain { how, progress, linked, links, lost, directories: Mutex::default() }
    }

    /// Copies these, with all they hold.
    pub(super) fn all(&self, plan: Vec<Job>) {
        if plan.is_empty() {
            // No threads for nothing: most copies go by batches.
            return;
        }
        let (send, receive) = sync_channel(QUEUE_COUNT_MAX);
        let receive = Mutex::new(receive);
        std::thread::scope(|scope| {
            for _ in 0..self.how.jobs {
                scope.spawn(|| self.work(&receive));
            }
            for job in plan {
                self.walk(job, &send);
            }
            drop(send);
        });
        for (existing, new) in self.links.lock().drain(..).take_while(|_| !self.progress.is_interrupted()) {
            let made = match self.lost.lock().contains(&existing) {
                true => Err(without_first(&existing)),
                false => target::link(&existing, &new),
            };
            self.progress.note(&new, made);
        }
        // The deepest first: setting a directory's times comes after everything in it.
        for (directory, is_new) in self.directories.lock().drain(..).rev() {
            let done = self.finish_directory(&directory, is_new);
            self.progress.note(&directory.to, done);
        }
    }

    /// Copies large regular files to places at and below a directory of a mount; the directories that they go into are there.
    pub(super) fn files(&self, top: &Path, filler: &Filler, plan: Vec<(Job, Vec<u8>)>) -> Vec<Metadata> {
        let queue = Mutex::new(plan.into_iter());
        let failed = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..self.how.jobs {
                scope.spawn(|| {
                    let mut copier = Copier::new(Some(filler));
                    loop {
                        let job = queue.lock().next().filter(|_| !self.progress.is_interrupted());
                        let Some((job, path)) = job else { return };
                        let copied = self.copy_whole(&mut copier, &job, top, &path).unwrap_or_else(|error| {
                            failed.lock().push(job.source);
                            Err(error)
                        });
                        self.progress.note(&job.from, copied);
                    }
                });
            }
        });
        failed.into_inner()
    }

    fn work(&self, queue: &Mutex<Receiver<Job>>) {
        let mut copier = Copier::new(None);
        loop {
            let job = queue.lock().recv();
            let Ok(job) = job else { return };
            if self.progress.is_interrupted() {
                // Until the walker has seen it too.
                continue;
            }
            if self.how.resume && is_there(&job.to, &job.source) {
                self.progress.skip(job.source.len());
                continue;
            }
            let copied = self.copy_file(&mut copier, &job);
            self.progress.note(&job.from, copied);
        }
    }

    /// Copies what is cheap at once and hands files to the workers.
    fn walk(&self, job: Job, workers: &SyncSender<Job>) {
        let kind = job.source.file_type();
        if kind.is_dir() {
            return self.walk_directory(job, workers);
        }
        if self.how.archive && job.source.nlink() > 1 {
            let key = (job.source.dev(), job.source.ino());
            let first = self.linked.lock().entry(key).or_insert_with(|| job.to.clone()).clone();
            if first != job.to {
                self.links.lock().push((first, job.to));
                return;
            }
        }
        if kind.is_file() {
            self.progress.expect(job.source.len());
            workers.send(job).expect("workers live until the sender is dropped");
        } else {
            let made = self.make_other(&job);
            if made.is_err() {
                self.lost.lock().insert(job.to);
            }
            self.progress.note(&job.from, made);
        }
    }

    fn walk_directory(&self, job: Job, workers: &SyncSender<Job>) {
        let is_new = match make_directory(&job.to, self.how.mode(job.source.mode(), 0o700)) {
            Ok(is_new) => is_new,
            Err(error) => return self.progress.note(&job.to, Err(error)),
        };
        let (from, to) = (job.from.clone(), job.to.clone());
        self.directories.lock().push((job, is_new));
        let entries = match fs::read_dir(&from) {
            Ok(entries) => entries,
            Err(error) => return self.progress.note(&from, Err(error)),
        };
        for entry in entries.take_while(|_| !self.progress.is_interrupted()) {
            let (name, path) = match entry {
                Ok(entry) => (entry.file_name(), entry.path()),
                Err(error) => {
                    self.progress.note(&from, Err(error));
                    continue;
                }
            };
            match fs::symlink_metadata(&path) {
                Ok(source) => self.walk(Job { from: path, to: to.join(name), source }, workers),
                Err(error) => self.progress.note(&path, Err(error)),
            }
        }
    }

    /// What is whole stays, also where it cannot be made like its source: no owners are on a FAT.
    fn copy_file(&self, copier: &mut Copier<'_>, job: &Job) -> io::Result<()> {
        let copied = Source::open(job).and_then(|source| Ok((self.copy_content(copier, job, &source)?, source)));
        match copied {
            Ok((there, source)) => {
                if self.how.archive {
                    source.likeness()?.put_on(&there)?;
                }
                source.expect_unchanged()
            }
            Err(error) => {
                self.lost.lock().insert(job.to.clone());
                Err(error)
            }
        }
    }

    fn copy_content(&self, copier: &mut Copier<'_>, job: &Job, source: &Source<'_>) -> io::Result<File> {
        let is_source = |found: Metadata| (found.dev(), found.ino()) == (source.found.dev(), source.found.ino());
        if fs::symlink_metadata(&job.to).is_ok_and(is_source) {
            return Err(io::Error::other("source and target are the same file"));
        }
        let target = Target::begin(&job.to, self.how.mode(source.found.mode(), 0o600), source.found.len())?;
        self.copy_into(copier, source, target.file())?;
        target.take_place(self.how.archive)
    }

    /// The same, to a path below a directory of a mount. Gives what is wrong with what has the name now; an error: something else has it.
    fn copy_whole(&self, copier: &mut Copier<'_>, job: &Job, top: &Path, path: &[u8]) -> io::Result<io::Result<()>> {
        let source = Source::open(job)?;
        let whole = Whole::begin(top, path, self.how.mode(source.found.mode(), 0o600))?;
        self.copy_into(copier, &source, whole.file())?;
        let mut described = Ok(());
        whole.finish(|file, former| {
            described = match former {
                _ if self.how.archive => source.likeness().and_then(|likeness| likeness.put_on(file)),
                Some(former) => hand_on(former, file),
                None => Ok(()),
            };
            Ok(())
        })?;
        Ok(described.and_then(|()| source.expect_unchanged()))
    }

    fn copy_into(&self, copier: &mut Copier<'_>, source: &Source<'_>, to: &File) -> io::Result<()> {
        let can_share = to.metadata()?.dev() == source.found.dev();
        copier.copy(&source.file, to, can_share, &|bytes| self.progress.advance(bytes)).map(drop)
    }

    /// A symbolic link, FIFO, socket or device. The device that is there already is the one.
    fn make_other(&self, job: &Job) -> io::Result<()> {
        let kind = job.source.file_type();
        let is_same = |found: Metadata| found.file_type() == kind && found.rdev() == job.source.rdev();
        if (kind.is_char_device() || kind.is_block_device()) && fs::symlink_metadata(&job.to).is_ok_and(is_same) {
            return if self.how.archive { take_over(job) } else { Ok(()) };
        }
        remove_other(&job.to)?;
        if job.source.file_type().is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&job.from)?, &job.to)?;
        } else {
            make_special(&job.to, kind_of(&job.source), job.source.mode(), job.source.rdev())?;
        }
        if self.how.archive { take_over(job) } else { Ok(()) }
    }

    fn finish_directory(&self, job: &Job, is_new: bool) -> io::Result<()> {
        let missing = 0o700 & !job.source.mode();
        match self.how.archive {
            true => take_over(job),
            false if is_new && missing != 0 => take_bits(&job.to, missing),
            false => Ok(()),
        }
    }
}

/// A regular file that is read.
struct Source<'a> {
    from: &'a Path,
    file: File,
    /// Before its content was read: what is written meanwhile makes it newer than its copy.
    found: Metadata,
}

impl<'a> Source<'a> {
    /// No symbolic link that came in its place meanwhile leads to another: its owner would get the content of that.
    fn open(job: &'a Job) -> io::Result<Source<'a>> {
        let file = File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(&job.from)?;
        let found = file.metadata()?;
        match found.is_file() {
            true => Ok(Source { from: &job.from, file, found }),
            false => Err(io::Error::other("it was another kind of file a moment ago")),
        }
    }

    /// An error where it was written to since it was opened. Its copy stays, as that of `cp` would, and has the time of before: who resumes the copy
    /// does not take it for the file.
    fn expect_unchanged(&self) -> io::Result<()> {
        let state = |of: &Metadata| (of.len(), of.mtime(), of.mtime_nsec());
        match state(&self.found) == state(&self.file.metadata()?) {
            true => Ok(()),
            false => Err(io::Error::other(
                "it was written to while it was read, and parts of its copy may be older than others",
            )),
        }
    }

    fn likeness(&self) -> io::Result<Likeness> {
        Likeness::of_source(self.from, Some(&self.file), &self.found)
    }
}

/// Makes what is no regular file like its source.
fn take_over(job: &Job) -> io::Result<()> {
    let there = attributes_of(&job.to, kind_of(&job.source))?;
    Likeness::of_source(&job.from, None, &job.source)?.put_on(&there)
}

/// Whether a file is there already, as an earlier run left it: a copy gets its time when all of it is there.
pub(super) fn is_there(to: &Path, source: &Metadata) -> bool {
    let like = |found: &Metadata| (found.len(), found.mtime(), found.mtime_nsec());
    fs::symlink_metadata(to).is_ok_and(|found| found.is_file() && like(&found) == like(source))
}

/// Makes the directory unless it is there; a symbolic link to one is none, as in a batch: whose it is would have all of this elsewhere. Its owner may
/// always write while it is filled. Gives whether it was made here.
pub(super) fn make_directory(to: &Path, mode: u32) -> io::Result<bool> {
    match fs::DirBuilder::new().mode(mode & 0o777 | 0o700).create(to) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match fs::symlink_metadata(to)?.is_dir() {
            true => Ok(false),
            false => Err(io::Error::from(io::ErrorKind::NotADirectory)),
        },
        made => made.map(|()| true),
    }
}

/// Why a file gets no further name.
pub(super) fn without_first(first: &Path) -> io::Error {
    io::Error::other(format!("its first name, {}, could not be copied", first.display()))
}

/// Takes away what is in the way of a new name, if it may go.
pub(in crate::command) fn remove_other(path: &Path) -> io::Result<()> {
    if may_go(path)? { fs::remove_file(path) } else { Ok(()) }
}

/// Refuses to have a directory go for a new name, or a device, which is most likely not meant: /dev/null for one. Whether anything is there.
pub(in crate::command) fn may_go(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => Err(io::Error::from(io::ErrorKind::IsADirectory)),
        Ok(found) if found.file_type().is_block_device() || found.file_type().is_char_device() => {
            Err(io::Error::other("a device is in the way"))
        }
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files are what is tested")]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::FileExt;

    use super::{Job, Source};

    #[test]
    fn what_is_written_to_while_it_is_read_is_told() {
        let from = std::env::temp_dir().join(format!("hydrafs-written-{}", std::process::id()));
        let file = File::create(&from).expect("room");
        let job = Job { to: from.clone(), source: file.metadata().expect("open"), from };
        let source = Source::open(&job).expect("it is there");
        source.expect_unchanged().expect("nobody wrote to it");
        file.write_all_at(b"x", 0).expect("room");
        assert!(source.expect_unchanged().is_err());
        Source::open(&job).expect("it is there").expect_unchanged().expect("nobody did since");
        fs::remove_file(&job.from).expect("ours");
    }
}
