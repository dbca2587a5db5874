//! A disk that is a directory of a mounted file system.
//!
//! Blocking positioned I/O in the calling thread; `fdatasync` for data, `fsync` for directories. Long runs go past the page cache
//! where the file system has direct I/O: a copy, and pages to find and to write back, were a quarter of what a stream cost (measured).
//!
//! A thread that serves others reads what the system has in memory; for the rest it asks a thread aside to wait for the device.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_timer::Delay;
use parking_lot::Mutex;
use rustix::fs::OFlags;
use rustix::io::ReadWriteFlags;
use tokio::sync::oneshot;

use super::question::Question;
use super::{aside, aside_alike, is_waiting};
use crate::disk::{
    Access, Begun, Disk, DiskError, DiskErrorKind, Open, Opening, RUN_ALIGN, RawDisk, RawFile, Read, Space,
};
use crate::task::{Boxed, First, first};

/// How long a read waits for a device that does not answer. The kernel's own limits, with their repetitions, are about as long.
const PATIENCE: Duration = Duration::from_secs(120);

/// A directory as a disk.
pub struct Directory {
    root: PathBuf,
    shown: String,
    /// How much room there is.
    space: Question<Result<Space, DiskError>>,
    /// What was last heard of it.
    heard: Arc<Mutex<Option<Space>>>,
    overdue: Overdue,
}

/// Answers of a device that were waited for in vain and have not come yet. While there are any, nobody else waits.
type Overdue = Arc<AtomicUsize>;

impl Directory {
    /// An existing directory.
    pub fn open(root: &Path) -> Result<Disk, DiskError> {
        let shown = root.display().to_string();
        let failed = |error| describe("open", &shown, &error);
        let metadata = fs::metadata(root).map_err(failed)?;
        if !metadata.is_dir() {
            return Err(failed(io::Error::from(io::ErrorKind::NotADirectory)));
        }
        Ok(Disk::new(Arc::new(Directory {
            root: root.to_owned(),
            shown,
            space: Question::new(),
            heard: Arc::default(),
            overdue: Overdue::default(),
        })))
    }

    /// A directory, made with its parents where it does not exist, open to its owner only.
    pub fn create(root: &Path) -> Result<Disk, DiskError> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(root).map_err(|error| describe("make directory", &root.display().to_string(), &error))?;
        Directory::open(root)
    }

    fn join(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn failed(&self, operation: &'static str, path: &str) -> impl Fn(io::Error) -> DiskError {
        let shown = self.join(path).display().to_string();
        move |error| describe(operation, &shown, &error)
    }
}

fn describe(operation: &'static str, path: &str, error: &io::Error) -> DiskError {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => DiskErrorKind::Absent,
        io::ErrorKind::AlreadyExists => DiskErrorKind::Exists,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => DiskErrorKind::Full,
        io::ErrorKind::ReadOnlyFilesystem => DiskErrorKind::ReadOnly,
        io::ErrorKind::PermissionDenied => DiskErrorKind::Denied,
        io::ErrorKind::WouldBlock => DiskErrorKind::Locked,
        _ => DiskErrorKind::Failed,
    };
    DiskError { kind, operation, path: path.to_owned(), detail: error.to_string() }
}

fn open(options: &OpenOptions, path: &Path, overdue: &Overdue) -> Result<Arc<dyn RawFile>, DiskError> {
    let shown: Arc<str> = path.display().to_string().into();
    let file = options.open(path).map_err(|error| describe("open", &shown, &error))?;
    Ok(Arc::new(DirectoryFile { file: Arc::new(file), direct: OnceLock::new(), shown, overdue: Arc::clone(overdue) }))
}

fn measure(root: &Path, shown: &str) -> Result<Space, DiskError> {
    let failed = |error: rustix::io::Errno| describe("measure the space of", shown, &error.into());
    let status = rustix::fs::statvfs(root).map_err(failed)?;
    Ok(Space {
        // As df reckons: what is kept for root is neither used nor free.
        total: (status.f_blocks - status.f_bfree.min(status.f_blocks))
            .saturating_add(status.f_bavail)
            .saturating_mul(status.f_frsize),
        free: status.f_bavail.saturating_mul(status.f_frsize),
        device: rustix::fs::stat(root).map_err(failed)?.st_dev,
        is_late: false,
    })
}

/// What is said of a device that does not answer.
fn silent(operation: &'static str, path: &str) -> DiskError {
    let detail = "the device does not answer".to_owned();
    DiskError { kind: DiskErrorKind::Silent, operation, path: path.to_owned(), detail }
}

/// Runs `work`, which waits for a device, on a thread aside, and waits for it until the patience ends.
fn beside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, DiskError> + Send + 'static,
    overdue: &Overdue,
    silent: DiskError,
    patience: impl Future<Output = ()> + Send + 'static,
) -> Boxed<Result<T, DiskError>> {
    const ANSWERED: u8 = 1;
    const OVERDUE: u8 = 2;
    if overdue.load(Ordering::SeqCst) > 0 {
        return Box::pin(async { Err(silent) });
    }
    let (send, receive) = oneshot::channel();
    let state = Arc::new(AtomicU8::new(0));
    let (noted, owed) = (Arc::clone(&state), Arc::clone(overdue));
    let task = Box::pin(async move {
        let result = work();
        if noted.swap(ANSWERED, Ordering::SeqCst) == OVERDUE {
            owed.fetch_sub(1, Ordering::SeqCst);
        }
        // Who asked may have gone.
        drop(send.send(result));
    });
    if aside_alike().run(task).is_err() {
        let detail = "the system starts no more threads".to_owned();
        return Box::pin(async move { Err(DiskError { kind: DiskErrorKind::Failed, detail, ..silent }) });
    }
    let owed = Arc::clone(overdue);
    Box::pin(async move {
        match first(receive, patience).await {
            First::Left(Ok(result)) => result,
            First::Left(Err(_)) => Err(silent),
            First::Right(()) => {
                owed.fetch_add(1, Ordering::SeqCst);
                if state.swap(OVERDUE, Ordering::SeqCst) == ANSWERED {
                    owed.fetch_sub(1, Ordering::SeqCst);
                }
                Err(silent)
            }
        }
    })
}

impl RawDisk for Directory {
    fn open(&self, path: &str, how: Open) -> Result<Arc<dyn RawFile>, DiskError> {
        let mut options = OpenOptions::new();
        options.read(true).write(how != Open::Read).create_new(how == Open::Create).mode(0o600);
        open(&options, &self.join(path), &self.overdue)
    }

    fn open_or_wait(&self, path: &str) -> Result<Opening, DiskError> {
        if is_waiting() {
            return self.open(path, Open::Read).map(Opening::Done);
        }
        let path = self.join(path);
        let silent = silent("open", &path.display().to_string());
        let overdue = Arc::clone(&self.overdue);
        let opened = move || open(OpenOptions::new().read(true), &path, &overdue);
        Ok(Opening::Waits(beside(opened, &self.overdue, silent, Delay::new(PATIENCE))))
    }

    fn remove(&self, path: &str) -> Result<(), DiskError> {
        fs::remove_file(self.join(path)).map_err(self.failed("remove", path))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        fs::rename(self.join(from), self.join(to)).map_err(self.failed("rename", from))
    }

    fn list(&self, path: &str) -> Result<Vec<String>, DiskError> {
        let failed = self.failed("list", path);
        let mut names = Vec::new();
        for entry in fs::read_dir(self.join(path)).map_err(&failed)? {
            let name = entry.map_err(&failed)?.file_name();
            // Our own names are ASCII; a foreign one is none of ours.
            names.extend(OsStr::to_str(&name).map(str::to_owned));
        }
        names.sort_unstable();
        Ok(names)
    }

    fn make_directory(&self, path: &str) -> Result<(), DiskError> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(self.join(path)).map_err(self.failed("make directory", path))
    }

    fn sync_directory(&self, path: &str) -> Result<(), DiskError> {
        let failed = self.failed("sync directory", path);
        fs::File::open(self.join(path)).and_then(|directory| directory.sync_all()).map_err(failed)
    }

    fn space(&self) -> Result<Space, DiskError> {
        let (root, shown, heard) = (self.root.clone(), self.shown.clone(), Arc::clone(&self.heard));
        let measure = move || measure(&root, &shown).inspect(|space| *heard.lock() = Some(*space));
        // What is not known at all has to be waited for.
        let Some(before) = *self.heard.lock() else { return measure() };
        self.space.ask(measure).unwrap_or(Ok(Space { is_late: true, ..before }))
    }

    fn lock(&self, path: &str) -> Result<Box<dyn Send + Sync>, DiskError> {
        let failed = self.failed("lock", path);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(self.join(path)).map_err(&failed)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| failed(io::Error::from(error)))?;
        Ok(Box::new(file))
    }

    fn path(&self) -> &str {
        &self.shown
    }
}

struct DirectoryFile {
    file: Arc<fs::File>,
    /// For direct I/O, once it was wanted; `None` where there is none.
    direct: OnceLock<Option<fs::File>>,
    shown: Arc<str>,
    overdue: Overdue,
}

/// Fills `buffer` as far as the file reaches.
fn fill(file: &fs::File, shown: &str, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(describe("read", shown, &error)),
        }
    }
    Ok(filled)
}

impl DirectoryFile {
    /// The same file, past the page cache.
    fn direct(&self) -> Option<&fs::File> {
        let open = || {
            let mut options = OpenOptions::new();
            options.write(true).custom_flags(OFlags::DIRECT.bits().cast_signed());
            options.open(format!("/proc/self/fd/{}", self.file.as_raw_fd())).ok()
        };
        self.direct.get_or_init(open).as_ref()
    }

    fn failed(&self, operation: &'static str) -> impl Fn(io::Error) -> DiskError + '_ {
        move |error| describe(operation, &self.shown, &error)
    }
}

impl RawFile for DirectoryFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        fill(&self.file, &self.shown, offset, buffer)
    }

    fn read_or_wait(&self, offset: u64, buffer: &mut [u8]) -> Result<Read, DiskError> {
        if is_waiting() {
            return self.read_at(offset, buffer).map(Read::Done);
        }
        // What is not in memory is read ahead by this, which says so, as it does where a file system cannot tell. Errors are the
        // other's to tell.
        let now = rustix::io::preadv2(&self.file, &mut [IoSliceMut::new(buffer)], offset, ReadWriteFlags::NOWAIT);
        let count = now.unwrap_or(0);
        if count == buffer.len() {
            return Ok(Read::Done(count));
        }
        let (file, shown, length) = (Arc::clone(&self.file), Arc::clone(&self.shown), buffer.len() - count);
        let silent = silent("read", &shown);
        let read = move || {
            let mut rest = vec![0; length];
            let count = fill(&file, &shown, offset + count as u64, &mut rest)?;
            rest.truncate(count);
            Ok(rest)
        };
        Ok(Read::Waits(count, beside(read, &self.overdue, silent, Delay::new(PATIENCE))))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.file.write_all_at(bytes, offset).map_err(self.failed("write"))
    }

    fn write_run(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        // Whole aligned pages go directly. What is before them shares its page with the run before, and stays for that. A run that ends within
        // a page goes by the cache as a whole: the device is asked once that way, and not for its last page once more.
        let skipped = bytes.as_ptr().align_offset(RUN_ALIGN).min(bytes.len());
        let (head, pages) = bytes.split_at(skipped);
        let begin = offset + head.len() as u64;
        let is_direct = begin.is_multiple_of(RUN_ALIGN as u64)
            && pages.len().is_multiple_of(RUN_ALIGN)
            && self.direct().is_some_and(|direct| direct.write_all_at(pages, begin).is_ok());
        if is_direct {
            return self.write_at(offset, head);
        }
        // Whatever kept it from being direct: here it is told, or does not matter.
        self.write_at(offset, bytes)?;
        // Linux writes the dirty pages of a range that it is told will not be needed, before it lets go of them (mm/fadvise.c): a sync has less to
        // wait for, and what its file system notes of several files goes with one of them. A failure of that writing is told to the
        // next sync, like any other.
        let length = NonZeroU64::new(bytes.len() as u64);
        let _ = rustix::fs::fadvise(&self.file, offset, length, rustix::fs::Advice::DontNeed);
        Ok(())
    }

    fn will_read(&self, offset: u64, bytes: u64) {
        // Linux takes no more of one call than the device takes at once, or its read-ahead (mm/readahead.c).
        const CALL_BYTES: u64 = 128 << 10;
        let end = self.length().map_or(0, |length| length.min(offset.saturating_add(bytes)));
        for begin in (offset..end).step_by(CALL_BYTES as usize) {
            let length = NonZeroU64::new(CALL_BYTES.min(end - begin));
            let _ = rustix::fs::fadvise(&self.file, begin, length, rustix::fs::Advice::WillNeed);
        }
    }

    fn forget(&self, offset: u64, bytes: u64) {
        // Linux lets go of whole clean folios alone (mm/truncate.c), and none is larger.
        const FOLIO: u64 = 2 << 20;
        let begin = offset - offset % FOLIO;
        let end = offset.saturating_add(bytes).checked_next_multiple_of(FOLIO).unwrap_or(u64::MAX);
        let _ = rustix::fs::fadvise(&self.file, begin, NonZeroU64::new(end - begin), rustix::fs::Advice::DontNeed);
    }

    fn sync(&self) -> Result<(), DiskError> {
        self.file.sync_data().map_err(self.failed("sync"))
    }

    fn begin_sync(&self) -> Option<Begun> {
        let (file, shown) = (Arc::clone(&self.file), Arc::clone(&self.shown));
        let (send, receive) = channel();
        let task = Box::pin(async move {
            let synced = file.sync_data().map_err(|error| describe("sync", &shown, &error));
            let _ = send.send(synced);
        });
        // Where the system starts no more threads this one does it.
        aside().run(task).ok()?;
        let gone = self.failed("sync")(io::Error::other("the thread that did it ended early"));
        Some(Box::new(move || receive.recv().unwrap_or(Err(gone))))
    }

    fn length(&self) -> Result<u64, DiskError> {
        self.file.metadata().map(|metadata| metadata.len()).map_err(self.failed("measure"))
    }

    fn set_length(&self, length: u64) -> Result<(), DiskError> {
        self.file.set_len(length).map_err(self.failed("resize"))
    }

    fn pause(&self, _access: Access) -> Option<Boxed<()>> {
        None
    }

    fn path(&self) -> &str {
        &self.shown
    }
}

#[cfg(test)]
mod tests;
