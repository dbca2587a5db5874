//! Copies into a mount by batches: sources are walked and read in the order in which their file system has them, and units of many
//! files go to the daemon through shared memory.
//!
//! A sweep at a time: first the names and attributes of many files, then their content in the order of their inodes, while those of the next are found. Large files (of more than a MiB, or
//! of a part of what a daemon with little memory takes) go by system calls (`plain`), and have their names when they are whole (`whole`).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};

use parking_lot::Mutex;

use super::filler::Filler;
use super::is_merged;
use super::likeness::take_bits;
use super::plain::{How, Job, Plain, is_there};
use super::progress::Progress;
use super::source::{Content, Opener, Taken, Taker};
use crate::control::batch::client::{BatchWriter, Put};
use crate::control::batch::wire::{Entry, Leads};
use crate::failure::Failure;

/// Files of one sweep: enough that their inodes lie together, and a few MiB of paths. The first have fewer, so that there is something to read soon.
const SWEEP_FILES: usize = 16 << 10;
const FIRST_SWEEP_FILES: usize = 1 << 10;

/// What a thread has read goes on its way from so many bytes or files on: little enough for the processor's cache, and enough that threads
/// seldom meet.
const GATHERED_BYTES: usize = 256 << 10;
const GATHERED_FILES: usize = 128;

/// A copy under way.
pub(super) struct Into<'a> {
    how: How,
    /// The directory that the batch has.
    top: &'a Path,
    filler: &'a Filler,
    progress: &'a Progress,
    taker: Taker,
    shared: Mutex<Shared>,
}

/// Finds what is to be copied, while what it found before is read.
struct Walker<'a> {
    into: &'a Into<'a>,
    /// Where the first name of a file with several went, by device and inode.
    linked: HashMap<(u64, u64), (PathBuf, Vec<u8>)>,
    /// Directories whose attributes come last.
    directories: Vec<Directory>,
    sweep: Sweep,
    /// So many files make a sweep now.
    files_max: usize,
    sweeps: SyncSender<Sweep>,
}

/// Files that are read together.
#[derive(Default)]
struct Sweep {
    files: Vec<Found>,
    /// Further names of files of this sweep, or of one before, and the first name of each.
    links: Vec<(Found, Vec<u8>)>,
}

/// Files that are too large for a batch, with their paths in it.
type Large = Mutex<Vec<(Job, Vec<u8>)>>;

/// What the threads that read share.
struct Shared {
    writer: BatchWriter,
    /// What is on its way, by number.
    away: BTreeMap<u64, Away>,
    /// Names of files whose first name could not be made: these are copied themselves.
    alone: Vec<Found>,
    /// Those files: what has the first name is another one.
    lost: HashSet<Identity>,
    /// From this number on entries only say what is already there.
    finishing: u64,
    /// What ended the batch.
    ended: Option<Failure>,
}

/// What is on its way.
enum Away {
    /// From here.
    File(PathBuf, About),
    /// The same, and it was written to while it was read.
    Torn(PathBuf, About),
    /// One more name.
    Link(Box<Found>),
}

/// A file on its way.
#[derive(Clone, Copy, Default)]
struct About {
    bytes: u64,
    /// If it has several names.
    identity: Option<Identity>,
}

/// Device and inode.
type Identity = (u64, u64);

/// Who a file with several names is.
fn identity_of(source: &Metadata) -> Option<Identity> {
    (!source.is_dir() && source.nlink() > 1).then(|| (source.dev(), source.ino()))
}

/// A directory whose attributes come last.
enum Directory {
    /// It becomes like its source.
    Like(Box<Found>),
    /// It was made here, and its owner loses these bits.
    Closed(PathBuf, u32),
}

/// A source.
struct Found {
    from: PathBuf,
    to: PathBuf,
    /// Its path in the batch.
    path: Vec<u8>,
    source: Metadata,
}

impl<'a> Into<'a> {
    /// `top`: the directory that the writer's paths begin in; `filler`: of its mount.
    pub(super) fn new(
        how: How,
        progress: &'a Progress,
        (top, filler): (&'a Path, &'a Filler),
        writer: BatchWriter,
    ) -> Into<'a> {
        let (away, alone, lost) = (BTreeMap::new(), Vec::new(), HashSet::new());
        let shared = Shared { writer, away, alone, lost, finishing: u64::MAX, ended: None };
        Into { how, top, filler, progress, taker: Taker::new(how.archive), shared: Mutex::new(shared) }
    }

    /// Copies these; all of them go into the directory that the batch has. Where the batch ends before its end, what was on its way is
    /// named.
    pub(super) fn all(self, plan: Vec<Job>) -> Result<(), Failure> {
        let (copied, how) = (self.copy(plan), self.how);
        let Shared { writer, away, finishing, .. } = self.shared.into_inner();
        self.progress.units(writer.units());
        if let Err(failure) = copied {
            // Nobody needs to know of what is undone.
            for (number, away) in away.into_iter().filter(|_| !how.atomic) {
                let path = match away {
                    Away::File(path, _) | Away::Torn(path, _) => path,
                    Away::Link(found) => found.from,
                };
                // What is put once more is there, and counted.
                let what = if number < finishing { "it" } else { "its mode, owner and times" };
                let why = format!("the batch ended, and {what} may be there or not: {}", failure.why);
                self.progress.note(&path, Err(why));
            }
            return Err(failure);
        }
        let (_, failed) = writer.finish()?;
        assert!(failed.is_empty(), "what was settled has been told");
        Ok(())
    }

    fn copy(&self, plan: Vec<Job>) -> Result<(), Failure> {
        let directories = std::thread::scope(|scope| {
            let (send, sweeps) = sync_channel::<Sweep>(1);
            let sweeping = scope.spawn(|| sweeps.into_iter().try_for_each(|sweep| self.sweep(sweep)));
            let mut walker = Walker::new(self, send);
            let walked = plan.into_iter().try_for_each(|job| walker.begin(job));
            let directories = walker.end();
            sweeping.join().expect("it does not panic").and(walked).map(|()| directories)
        })?;
        self.settle()?;
        let mut last = Sweep::default();
        for found in std::mem::take(&mut self.shared.lock().alone) {
            match found.source.is_file() {
                true => last.files.push(found),
                false => self.put_described(&found)?,
            }
        }
        self.sweep(last)?;
        self.finish_directories(directories)
    }

    /// What is in a directory, in the order of inodes, in which most file systems have them.
    fn list(&self, directory: &Found) -> Vec<Found> {
        let entries = match fs::read_dir(&directory.from) {
            Ok(entries) => entries,
            Err(error) => {
                self.progress.note(&directory.from, Err(error));
                return Vec::new();
            }
        };
        let mut named = Vec::new();
        for entry in entries {
            match entry {
                Ok(entry) => named.push(entry),
                Err(error) => self.progress.note(&directory.from, Err(error)),
            }
        }
        named.sort_by_cached_key(|entry| (entry.ino(), entry.file_name()));
        let below = |entry: fs::DirEntry| {
            let name = entry.file_name();
            let from = directory.from.join(&name);
            // By the open directory, which spares the way along the path.
            match entry.metadata() {
                Ok(source) => {
                    let path = match directory.path.is_empty() {
                        true => name.as_bytes().to_vec(),
                        false => [&directory.path[..], name.as_bytes()].join(&b'/'),
                    };
                    Some(Found { from, to: directory.to.join(&name), path, source })
                }
                Err(error) => {
                    self.progress.note(&from, Err(error));
                    None
                }
            }
        };
        named.into_iter().filter_map(below).collect()
    }

    /// Puts a directory that is to be filled: its owner, who makes large files there by system calls, may always write until then.
    fn put_open(&self, found: &Found) -> Result<(), Failure> {
        let open = |mut entry: Entry| {
            if entry.mode & 0o700 != 0o700 {
                // An access list says the same of its owner, and comes with the rest; until then nobody whom it keeps away has what its mask has.
                let is_list = |name: &[u8]| name == b"system.posix_acl_access";
                let before = entry.xattrs.len();
                entry.xattrs.retain(|(name, _)| !is_list(name));
                entry.mode &= if entry.xattrs.len() < before { !0o070 } else { !0 };
            }
            Entry { mode: entry.mode | 0o700, ..entry }
        };
        self.put_with(found, open)
    }

    /// Puts what has no content.
    fn put_described(&self, found: &Found) -> Result<(), Failure> {
        self.put_with(found, |entry| entry)
    }

    fn put_with(&self, found: &Found, change: impl FnOnce(Entry) -> Entry) -> Result<(), Failure> {
        match self.taker.entry(&found.from, None, found.path.clone(), &found.source).map(change) {
            Ok(entry) => {
                let about = About { bytes: entry.size, identity: identity_of(&found.source) };
                self.put_as(Away::File(found.from.clone(), about), &entry)
            }
            Err(error) => {
                self.lose(&found.source);
                self.progress.note(&found.from, Err(error));
                Ok(())
            }
        }
    }

    /// Notes a file that could not be copied under its first name.
    fn lose(&self, source: &Metadata) {
        self.shared.lock().lost.extend(identity_of(source));
    }

    fn put_as(&self, away: Away, entry: &Entry) -> Result<(), Failure> {
        self.put_all(&[Put { entry, content: Vec::new() }], [away].into_iter())
    }

    /// Puts some entries, of each of which this is on its way then.
    fn put_all(&self, puts: &[Put<'_>], away: impl Iterator<Item = Away>) -> Result<(), Failure> {
        let mut shared = self.shared.lock();
        if let Some(failure) = &shared.ended {
            return Err(failure.clone());
        }
        let first = shared.writer.next();
        let put = shared.writer.put_all(puts).map(drop);
        // Of those that did not all go what went is on its way.
        let numbers = first..shared.writer.next();
        shared.away.extend(numbers.zip(away));
        self.tell_settled(&mut shared);
        if let Err(failure) = &put {
            shared.ended = Some(failure.clone());
        }
        put
    }

    fn tell_settled(&self, shared: &mut Shared) {
        let failed: HashMap<u64, String> = shared.writer.take_failed().into_iter().collect();
        let settled = shared.writer.settled();
        while let Some(entry) = shared.away.first_entry().filter(|entry| *entry.key() < settled) {
            let (number, away) = entry.remove_entry();
            let is_torn = matches!(away, Away::Torn(..));
            let (path, About { bytes, identity }) = match (away, failed.contains_key(&number)) {
                (Away::Link(found), true) => {
                    self.progress.expect(found.source.len());
                    shared.alone.push(*found);
                    continue;
                }
                (Away::Link(found), false) => (found.from, About::default()),
                (Away::File(path, about) | Away::Torn(path, about), _) => (path, about),
            };
            match failed.get(&number) {
                Some(why) => {
                    shared.lost.extend(identity);
                    self.progress.note(&path, Err(why));
                }
                None if number >= shared.finishing => {}
                None if is_torn => {
                    self.progress.copied(bytes);
                    let why = "it was written to each time it was read, and parts of its copy may be older than others";
                    self.progress.note(&path, Err(why));
                }
                None => {
                    self.progress.copied(bytes);
                    self.progress.note(&path, Ok::<(), String>(()));
                }
            }
        }
    }

    /// Reads and writes the files of a sweep.
    fn sweep(&self, Sweep { mut files, links }: Sweep) -> Result<(), Failure> {
        files.sort_unstable_by_key(|found| (found.source.dev(), found.source.ino()));
        let (next, large) = (AtomicUsize::new(0), Large::default());
        std::thread::scope(|scope| {
            let work = || self.read(&files, &next, &large);
            let jobs = usize::from(self.how.jobs).min(files.len());
            let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
        })?;
        let large = large.into_inner();
        if !large.is_empty() {
            // The directories that they go into must be there.
            self.settle()?;
            Plain::new(self.how, self.progress)
                .files(self.top, self.filler, large)
                .iter()
                .for_each(|source| self.lose(source));
        }
        if !links.is_empty() {
            // What the first name of a file has that could not be copied is what was there before.
            self.settle()?;
        }
        // Nor has the first name of one that was not copied yet what it should.
        let links = links.into_iter().take_while(|_| !self.progress.is_interrupted());
        links.into_iter().try_for_each(|(found, first)| self.put_link(found, first))
    }

    /// One of several threads that read.
    fn read(&self, files: &[Found], next: &AtomicUsize, large: &Large) -> Result<(), Failure> {
        let (mut opener, mut content, mut read) = (Opener::default(), Content::default(), Vec::new());
        let bytes_max = self.shared.lock().writer.content_bytes_max();
        let next = || files.get(next.fetch_add(1, Ordering::Relaxed)).filter(|_| !self.progress.is_interrupted());
        while let Some(found) = next() {
            match self.taker.file(&mut opener, (&found.from, found.path.clone()), bytes_max, &mut content) {
                Ok(Some(taken)) => {
                    read.push((found, taken));
                    if content.bytes() >= GATHERED_BYTES || read.len() == GATHERED_FILES {
                        self.put_read(&mut read, &mut content)?;
                    }
                }
                Ok(None) => {
                    let Found { from, to, path, source } = found;
                    let job = Job { from: from.clone(), to: to.clone(), source: source.clone() };
                    large.lock().push((job, path.clone()));
                }
                Err(error) => {
                    self.lose(&found.source);
                    self.progress.note(&found.from, Err(error));
                }
            }
        }
        self.put_read(&mut read, &mut content)
    }

    /// Puts what one thread has read.
    fn put_read(&self, read: &mut Vec<(&Found, Taken)>, content: &mut Content) -> Result<(), Failure> {
        let put = read.iter().map(|(_, taken)| Put { entry: &taken.entry, content: content.of(&taken.runs) });
        let puts: Vec<Put<'_>> = put.collect();
        let away = |(found, taken): &(&Found, Taken)| {
            let away = if taken.is_torn { Away::Torn } else { Away::File };
            away(found.from.clone(), About { bytes: taken.entry.size, identity: identity_of(&found.source) })
        };
        let put = self.put_all(&puts, read.iter().map(away));
        read.clear();
        content.clear();
        put
    }

    /// One more name of a file that was put before, or went by system calls.
    fn put_link(&self, found: Found, first: Vec<u8>) -> Result<(), Failure> {
        if identity_of(&found.source).is_some_and(|identity| self.shared.lock().lost.contains(&identity)) {
            self.progress.expect(found.source.len());
            self.shared.lock().alone.push(found);
            return Ok(());
        }
        match self.taker.entry(&found.from, None, found.path.clone(), &found.source) {
            Ok(entry) => {
                let entry = Entry { leads: Leads::Link(first), size: 0, ..entry };
                self.put_as(Away::Link(Box::new(found)), &entry)
            }
            Err(error) => {
                self.progress.note(&found.from, Err(error));
                Ok(())
            }
        }
    }

    fn settle(&self) -> Result<(), Failure> {
        let mut shared = self.shared.lock();
        let settled = shared.writer.settle();
        self.tell_settled(&mut shared);
        settled
    }

    /// What was put into directories has changed their times, and a mode would have been in the way.
    fn finish_directories(&self, directories: Vec<Directory>) -> Result<(), Failure> {
        self.settle()?;
        let mut shared = self.shared.lock();
        shared.finishing = shared.writer.next();
        drop(shared);
        // The deepest first: no way leads to what is below one that its owner may not search.
        for directory in directories.into_iter().rev() {
            match directory {
                Directory::Like(found) => self.put_described(&found)?,
                Directory::Closed(to, bits) => match take_bits(&to, bits) {
                    // Why it could not be made was told.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => self.progress.note(&to, Err(error)),
                    Ok(()) => {}
                },
            }
        }
        self.settle()
    }
}

impl<'a> Walker<'a> {
    fn new(into: &'a Into<'a>, sweeps: SyncSender<Sweep>) -> Walker<'a> {
        let (linked, directories) = (HashMap::new(), Vec::new());
        Walker { into, linked, directories, sweep: Sweep::default(), files_max: FIRST_SWEEP_FILES, sweeps }
    }

    /// Goes through one of the things to copy.
    fn begin(&mut self, job: Job) -> Result<(), Failure> {
        let name = if is_merged(&job) { None } else { job.to.file_name() };
        let path = name.unwrap_or_default().as_bytes().to_vec();
        let Job { from, to, source } = job;
        self.walk(Found { from, to, path, source })
    }

    /// Has the rest read; gives the directories whose attributes come last.
    fn end(mut self) -> Vec<Directory> {
        self.send();
        self.directories
    }

    /// Goes through a tree, a directory before what is in it.
    fn walk(&mut self, top: Found) -> Result<(), Failure> {
        let mut todo = vec![top];
        while let Some(found) = todo.pop().filter(|_| !self.into.progress.is_interrupted()) {
            if found.source.is_dir() {
                let below = self.into.list(&found);
                let missing = 0o700 & !found.source.mode();
                if self.into.how.archive {
                    self.into.put_open(&found)?;
                    self.directories.push(Directory::Like(Box::new(found)));
                } else {
                    // One that is there stays as it is.
                    if missing != 0 && fs::symlink_metadata(&found.to).is_err() {
                        self.directories.push(Directory::Closed(found.to.clone(), missing));
                    }
                    self.into.put_open(&found)?;
                }
                todo.extend(below.into_iter().rev());
            } else {
                self.meet(found)?;
            }
            if self.sweep.files.len() + self.sweep.links.len() >= self.files_max {
                self.files_max = (4 * self.files_max).min(SWEEP_FILES);
                self.send();
            }
        }
        Ok(())
    }

    /// Who reads has ended with a failure if nobody takes it: he tells.
    fn send(&mut self) {
        let _ = self.sweeps.send(std::mem::take(&mut self.sweep));
    }

    /// Something that is no directory.
    fn meet(&mut self, found: Found) -> Result<(), Failure> {
        let Into { how, progress, .. } = self.into;
        if how.archive && found.source.nlink() > 1 {
            let key = (found.source.dev(), found.source.ino());
            if let Some((_, first)) = self.linked.get(&key) {
                let first = first.clone();
                self.sweep.links.push((found, first));
                return Ok(());
            }
            self.linked.insert(key, (found.to.clone(), found.path.clone()));
        }
        if !found.source.is_file() {
            return self.into.put_described(&found);
        }
        progress.expect(found.source.len());
        if how.resume && is_there(&found.to, &found.source) {
            progress.skip(found.source.len());
        } else {
            self.sweep.files.push(found);
        }
        Ok(())
    }
}

/// The directory that something goes into.
pub(super) fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."))
}

/// Whether a name can be one of a batch: `..` and the like are no names.
pub(super) fn is_name(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name != OsStr::new(".."))
}
