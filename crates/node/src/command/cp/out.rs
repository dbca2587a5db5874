//! Copies out of a mount by batches: the daemon reads the content of many files in the order in which it lies on its disks, and hands it over
//! in shared memory.
//!
//! One thread goes through what comes and makes directories; several make files, each of them the same ones, so that the pieces of a file
//! come in order.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use bytes::Bytes;
use file::Kind;
use parking_lot::Mutex;

use super::likeness::{Likeness, attributes_of, make_special, take_bits};
use super::plain::{How, Job, make_directory, remove_other, without_first};
use super::progress::Progress;
use super::target::{self, Target};
use crate::command::tree::{Paths, garbled};
use crate::control::batch::client::BatchReader;
use crate::control::batch::wire::{Entry, Leads, Record};
use crate::failure::Failure;

/// Windows whose files wait for a thread that makes files, beside that which it is at.
const QUEUE_COUNT_MAX: usize = 1;

/// Where things are copied from, and to.
struct Places {
    from: Paths,
    to: Paths,
}

impl Places {
    fn from(&self, path: &[u8]) -> PathBuf {
        self.from.of(path).expect("what comes is looked at first")
    }

    fn to(&self, path: &[u8]) -> PathBuf {
        self.to.of(path).expect("what comes is looked at first")
    }

    /// Refuses what is of none of the sources.
    fn expect(&self, path: &[u8]) -> Result<(), Failure> {
        self.from.of(path).map(drop).ok_or_else(|| garbled("a path of nothing that was asked for"))
    }
}

/// Places of files that could not be copied.
type Lost = Mutex<HashSet<PathBuf>>;

/// A copy under way.
pub(super) struct Out<'a> {
    how: How,
    progress: &'a Progress,
    /// Where the sources are, and where each goes.
    places: Arc<Places>,
    /// Names to make when all files are there: existing, new.
    links: Vec<(PathBuf, PathBuf)>,
    /// Directories whose attributes come last, parents first; whether each was made here.
    directories: Vec<(PathBuf, Entry, bool)>,
    /// The places of all of them: what is in the way of another may be a link, which would have what lies below it elsewhere.
    made: HashSet<PathBuf>,
    /// Where the first name of a file with several went, by inode number, for those that come in another part; `None`: there is but one, and the
    /// daemon tells of them.
    firsts: Option<HashMap<u64, PathBuf>>,
    lost: Lost,
    /// Of the entry that comes next.
    next: u64,
}

/// What a thread that makes files is told.
enum Step {
    File(u64, Box<Entry>),
    Begin(u64),
    Piece(u64, u64, Bytes),
    End(u64, Ended),
}

/// What came of a file that is read.
enum Ended {
    /// All of it came, so many bytes.
    Whole(u64),
    /// The same, and parts may be older than others.
    Torn(u64, String),
    Failed(String),
}

impl Ended {
    fn of(size: u64, why: String) -> Ended {
        match size {
            _ if why.is_empty() => Ended::Whole(size),
            0 => Ended::Failed(why),
            _ => Ended::Torn(size, why),
        }
    }
}

impl<'a> Out<'a> {
    /// Copies these, which are read at once, or in parts.
    pub(super) fn new(how: How, progress: &'a Progress, jobs: &[Job]) -> Out<'a> {
        let paths = |of: fn(&Job) -> &PathBuf| Paths::new(jobs.iter().map(|job| of(job).clone()).collect());
        let places = Arc::new(Places { from: paths(|job| &job.from), to: paths(|job| &job.to) });
        let (links, directories, made, firsts) = (Vec::new(), Vec::new(), HashSet::new(), None);
        Out { how, progress, places, links, directories, made, firsts, lost: Mutex::default(), next: 0 }
    }

    /// The same, of a list that may come in several parts.
    pub(super) fn in_parts(self) -> Out<'a> {
        Out { firsts: Some(HashMap::new()), ..self }
    }

    /// Copies what is read, and nothing more.
    pub(super) fn all(mut self, mut reader: BatchReader) -> Result<(), Failure> {
        let read = self.part(&mut reader);
        self.finish();
        read
    }

    /// Copies what is read; more may come.
    pub(super) fn part(&mut self, reader: &mut BatchReader) -> Result<(), Failure> {
        let (how, progress) = (self.how, self.progress);
        let (places, lost) = (Arc::clone(&self.places), std::mem::take(&mut self.lost));
        self.next = 0;
        let first_link = self.links.len();
        let read = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for _ in 0..how.jobs {
                let (send, receive) = sync_channel(QUEUE_COUNT_MAX);
                let (places, lost) = (&*places, &lost);
                scope.spawn(move || Files { how, progress, places, lost, files: BTreeMap::new() }.work(&receive));
                threads.push(send);
            }
            self.read(reader, &threads, &lost)
        });
        if read.is_err() {
            // What did not come was not told one by one.
            lost.lock().extend(self.links[first_link..].iter().map(|(existing, _)| existing.clone()));
        }
        self.lost = lost;
        read
    }

    /// Nothing more comes: what depends on all of it is done.
    pub(super) fn finish(mut self) {
        let (how, progress) = (self.how, self.progress);
        let (links, lost) = (std::mem::take(&mut self.links), std::mem::take(&mut self.lost).into_inner());
        for (existing, new) in links.into_iter().take_while(|_| !progress.is_interrupted()) {
            let made = match how.archive {
                _ if lost.contains(&existing) => Err(without_first(&existing)),
                true => target::link(&existing, &new),
                false => again(&existing, &new),
            };
            progress.note(&new, made);
        }
        // The deepest first: setting a directory's times comes after everything in it.
        for (to, entry, is_new) in std::mem::take(&mut self.directories).into_iter().rev() {
            let done = self.finish_directory(&to, &entry, is_new);
            progress.note(&to, done);
        }
    }

    fn read(
        &mut self,
        reader: &mut BatchReader,
        threads: &[SyncSender<Vec<Step>>],
        lost: &Lost,
    ) -> Result<(), Failure> {
        let thread = |number: u64| (number % threads.len() as u64) as usize;
        let mut steps: Vec<Vec<Step>> = threads.iter().map(|_| Vec::new()).collect();
        while let Some(records) = reader.next_window()?.filter(|_| !self.progress.is_interrupted()) {
            for record in records {
                let record = record.map_err(|error| Failure::new("cannot understand the daemon", error))?;
                let (number, step) = match record {
                    Record::Entry(entry) => {
                        let number = self.next;
                        self.next += 1;
                        self.places.expect(&entry.path)?;
                        let Some(entry) = self.meet(*entry, lost)? else { continue };
                        (number, Step::File(number, Box::new(entry)))
                    }
                    Record::Begin { number, .. } => (number, Step::Begin(number)),
                    Record::Piece { number, offset, content } => (number, Step::Piece(number, offset, content)),
                    Record::End { number, size, why } => (number, Step::End(number, Ended::of(size, why))),
                    Record::Lost { path, why } => {
                        self.places.expect(&path)?;
                        lost.lock().insert(self.places.to(&path));
                        self.progress.note(&self.places.from(&path), Err(why));
                        continue;
                    }
                    // Of comparisons, and from who reads.
                    Record::Change(_) | Record::Path(_) => continue,
                };
                steps[thread(number)].push(step);
            }
            for (thread, steps) in threads.iter().zip(&mut steps).filter(|(_, steps)| !steps.is_empty()) {
                thread.send(std::mem::take(steps)).expect("threads live until they are told of the end");
            }
        }
        Ok(())
    }

    /// Makes what is no regular file; gives what is one.
    fn meet(&mut self, entry: Entry, lost: &Lost) -> Result<Option<Entry>, Failure> {
        let to = self.places.to(&entry.path);
        let is_named = !entry.path.contains(&b'/');
        if let Some(above) = to.parent().filter(|above| !is_named && !self.made.contains(*above)) {
            let why = format!("its directory, {}, could not be made", above.display());
            self.progress.note(&self.places.from(&entry.path), Err(why));
            lost.lock().insert(to);
            return Ok(None);
        }
        // Without `archive` each name is made anew; only what is behind it can have to be taken from the first.
        if let Leads::Link(first) = &entry.leads
            && (self.how.archive || matches!(entry.kind, Kind::Regular | Kind::Symlink))
        {
            self.places.expect(first)?;
            self.links.push((self.places.to(first), to));
            return Ok(None);
        }
        if entry.kind == Kind::Regular {
            if let Some(firsts) = self.firsts.as_mut().filter(|_| self.how.archive && entry.links > 1) {
                let first = firsts.entry(entry.inode).or_insert_with(|| to.clone());
                if *first != to {
                    self.links.push((first.clone(), to));
                    return Ok(None);
                }
            }
            self.progress.expect(entry.size);
            return Ok(Some(entry));
        }
        if entry.kind == Kind::Directory {
            // One that leads to what comes may have come with what came before.
            if !self.made.contains(&to) {
                match make_directory(&to, self.how.mode(entry.mode, 0o700)) {
                    Ok(is_new) => {
                        self.made.insert(to.clone());
                        self.directories.push((to, entry, is_new));
                    }
                    Err(error) => self.progress.note(&to, Err(error)),
                }
            }
            return Ok(None);
        }
        let made = self.make(&entry, &to);
        if made.is_err() {
            lost.lock().insert(to);
        }
        self.progress.note(&self.places.from(&entry.path), made);
        Ok(None)
    }

    fn make(&self, entry: &Entry, to: &Path) -> io::Result<()> {
        remove_other(to)?;
        match &entry.leads {
            Leads::Target(target) => std::os::unix::fs::symlink(OsStr::from_bytes(target), to)?,
            _ => make_special(to, entry.kind, entry.mode, entry.device.into())?,
        }
        if self.how.archive { Likeness::of(entry).put_on(&attributes_of(to, entry.kind)?) } else { Ok(()) }
    }

    fn finish_directory(&self, to: &Path, entry: &Entry, is_new: bool) -> io::Result<()> {
        let missing = 0o700 & !entry.mode;
        match self.how.archive {
            true => Likeness::of(entry).put_on(&attributes_of(to, Kind::Directory)?),
            false if is_new && missing != 0 => take_bits(to, missing),
            false => Ok(()),
        }
    }
}

/// A thread that makes files.
struct Files<'a> {
    how: How,
    progress: &'a Progress,
    places: &'a Places,
    lost: &'a Lost,
    /// Those that are not whole, by number.
    files: BTreeMap<u64, Making>,
}

/// A file that is being made.
struct Making {
    entry: Box<Entry>,
    target: Option<Target>,
    /// How far it was written.
    written: u64,
    failure: Option<io::Error>,
}

impl Files<'_> {
    fn work(mut self, steps: &Receiver<Vec<Step>>) {
        for step in steps.iter().flatten() {
            match step {
                Step::File(number, entry) => {
                    self.files.insert(number, Making::new(entry));
                }
                Step::Begin(number) => self.begin(number),
                Step::Piece(number, offset, content) => self.piece(number, offset, &content),
                Step::End(number, ended) => self.end(number, ended),
            }
        }
        for making in self.files.into_values() {
            self.lost.lock().insert(self.places.to(&making.entry.path));
            self.progress.note(&self.places.from(&making.entry.path), Err("the copy ended before it was whole"));
        }
    }

    fn begin(&mut self, number: u64) {
        let Some(making) = self.files.get_mut(&number) else { return };
        let Some(target) = &making.target else { return };
        // It has changed since, and comes again.
        making.failure = target.file().set_len(0).err();
        making.written = 0;
    }

    fn piece(&mut self, number: u64, offset: u64, content: &[u8]) {
        let Some(making) = self.files.get_mut(&number) else { return };
        if making.failure.is_some() {
            return;
        }
        let to = self.places.to(&making.entry.path);
        let written = making.open(&to, self.how).and_then(|file| file.write_all_at(content, offset));
        match written {
            Ok(()) => {
                making.written = offset + content.len() as u64;
                self.progress.copied(content.len() as u64);
            }
            Err(error) => making.failure = Some(error),
        }
    }

    fn end(&mut self, number: u64, ended: Ended) {
        let Some(mut making) = self.files.remove(&number) else { return };
        let (from, to) = (self.places.from(&making.entry.path), self.places.to(&making.entry.path));
        let made = match (making.failure.take(), &ended) {
            (Some(error), _) => Err(error),
            (None, Ended::Failed(why)) => Err(io::Error::other(why.clone())),
            (None, Ended::Whole(size) | Ended::Torn(size, _)) => making.finish(&to, *size, self.how),
        };
        if made.is_err() {
            self.lost.lock().insert(to);
        }
        // What is whole stays, also where it cannot be made like its source; and so does what is torn, with the time of before.
        let put_on = |there| if self.how.archive { Likeness::of(&making.entry).put_on(&there) } else { Ok(()) };
        let steady = |()| match &ended {
            Ended::Torn(_, why) => Err(io::Error::other(why.clone())),
            _ => Ok(()),
        };
        self.progress.note(&from, made.and_then(put_on).and_then(steady));
    }
}

impl Making {
    fn new(entry: Box<Entry>) -> Making {
        Making { entry, target: None, written: 0, failure: None }
    }

    fn open(&mut self, to: &Path, how: How) -> io::Result<&File> {
        let target = match self.target.take() {
            Some(target) => target,
            None => Target::begin(to, how.mode(self.entry.mode, 0o600), self.entry.size)?,
        };
        Ok(self.target.insert(target).file())
    }

    fn finish(&mut self, to: &Path, size: u64, how: How) -> io::Result<File> {
        let written = self.written;
        let file = self.open(to, how)?;
        // A hole at the end has no piece that would set the length.
        if written < size {
            file.set_len(size)?;
        }
        self.target.take().expect("it is open").take_place(how.archive)
    }
}

/// Copies a file of several names once more, or nothing of it; or a symbolic link.
fn again(existing: &Path, new: &Path) -> io::Result<()> {
    if std::fs::symlink_metadata(existing)?.is_symlink() {
        let target = std::fs::read_link(existing)?;
        remove_other(new)?;
        return std::os::unix::fs::symlink(target, new);
    }
    let mut from = File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(existing)?;
    let found = from.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("something else has the name that was copied first"));
    }
    let target = Target::begin(new, found.mode() & 0o777, found.len())?;
    io::copy(&mut from, &mut target.file())?;
    target.take_place(false).map(drop)
}
