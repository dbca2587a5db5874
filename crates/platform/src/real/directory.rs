//! A disk that is a directory of a mounted file system.
//!
//! Positioned I/O; `fdatasync` for data, `fsync` for directories. Long runs go past the page cache where the file system has direct I/O: a
//! copy, and pages to find and to write back, were a quarter of what a stream cost (measured).
//!
//! What may wait for the device is a `call`, so that nobody waits for ever. What the system has in memory is read at once.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, IoSliceMut};
use std::mem;
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use base::metric::Histogram;
use bytes::Bytes;
use parking_lot::Mutex;
use rustix::fs::OFlags;
use rustix::io::ReadWriteFlags;

use super::aside::{ask, begin, elsewhere};
use super::call::{Call, Device, Effect};
use super::question::Question;
use crate::disk::{
    Access, Disk, DiskCounters, DiskError, DiskErrorKind, Doubt, Length, Open, Opening, RUN_ALIGN, RawDisk, RawFile,
    Read, Space,
};
use crate::task::Boxed;

/// A directory as a disk.
pub struct Directory {
    root: PathBuf,
    shown: String,
    /// How much room there is.
    space: Question<Result<Space, DiskError>>,
    /// What was last heard of it.
    heard: Arc<Mutex<Option<Space>>>,
    device: Arc<Device>,
}

impl Directory {
    /// An existing directory.
    pub fn open(root: &Path) -> Result<Disk, DiskError> {
        let shown = root.display().to_string();
        let (device, heard) = Default::default();
        let disk = Directory { root: root.to_owned(), shown, space: Question::new(), heard, device };
        disk.ask("open", "", Effect::Look, |path| match fs::metadata(path)?.is_dir() {
            true => Ok(()),
            false => Err(io::ErrorKind::NotADirectory.into()),
        })?;
        Ok(Disk::new(Arc::new(disk)))
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

    /// Has the system do something to a path, and waits for it.
    fn ask<T: Send + 'static>(
        &self,
        operation: &'static str,
        path: &str,
        effect: Effect,
        act: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, DiskError> {
        ask(self.call(operation, path, effect, act))
    }

    fn call<T: Send + 'static>(
        &self,
        operation: &'static str,
        path: &str,
        effect: Effect,
        act: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Arc<Call<T>> {
        let path = self.join(path);
        let shown = path.display().to_string();
        let silent = silent(operation, &shown);
        let work = move || act(&path).map_err(|error| describe(operation, &shown, &error));
        Call::new(&self.device, effect, silent, work)
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

fn open(options: &OpenOptions, path: &Path, device: Arc<Device>) -> io::Result<Arc<dyn RawFile>> {
    let shown = path.display().to_string();
    let inner = Arc::new(Inner { file: options.open(path)?, direct: OnceLock::new(), shown });
    Ok(Arc::new(DirectoryFile { inner, device }))
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

impl RawDisk for Directory {
    fn open(&self, path: &str, how: Open) -> Result<Arc<dyn RawFile>, DiskError> {
        let mut options = OpenOptions::new();
        options.read(true).write(how != Open::Read).create_new(how == Open::Create).mode(0o600);
        let device = Arc::clone(&self.device);
        let effect = if how == Open::Create { Effect::Change } else { Effect::Look };
        self.ask("open", path, effect, move |path| open(&options, path, device))
    }

    fn open_or_wait(&self, path: &str) -> Result<Opening, DiskError> {
        let device = Arc::clone(&self.device);
        let opened = move |path: &Path| open(OpenOptions::new().read(true), path, device);
        Ok(Opening::Waits(Box::pin(begin(self.call("open", path, Effect::Read, opened)))))
    }

    fn remove(&self, path: &str) -> Result<(), DiskError> {
        self.ask("remove", path, Effect::Change, |path| fs::remove_file(path))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        let to = self.join(to);
        self.ask("rename", from, Effect::Change, move |from| fs::rename(from, to))
    }

    fn list(&self, path: &str) -> Result<Vec<String>, DiskError> {
        self.ask("list", path, Effect::Look, |path| {
            let mut names = Vec::new();
            for entry in fs::read_dir(path)? {
                // Our own names are ASCII; a foreign one is none of ours.
                names.extend(OsStr::to_str(&entry?.file_name()).map(str::to_owned));
            }
            names.sort_unstable();
            Ok(names)
        })
    }

    fn make_directory(&self, path: &str) -> Result<(), DiskError> {
        self.ask("make directory", path, Effect::Change, |path| {
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true).mode(0o700);
            builder.create(path)
        })
    }

    fn sync_directory(&self, path: &str) -> Result<(), DiskError> {
        self.ask("sync directory", path, Effect::Change, |path| fs::File::open(path)?.sync_all())
    }

    fn space(&self) -> Result<Space, DiskError> {
        let (root, shown, heard) = (self.root.clone(), self.shown.clone(), Arc::clone(&self.heard));
        let measure = move || measure(&root, &shown).inspect(|space| *heard.lock() = Some(*space));
        let Some(before) = *self.heard.lock() else {
            // What is not known at all has to be waited for.
            return ask(Call::new(&self.device, Effect::Look, silent("measure the space of", &self.shown), measure));
        };
        if self.device.is_silent() {
            return Ok(Space { is_late: true, ..before });
        }
        self.space.ask(measure).unwrap_or(Ok(Space { is_late: true, ..before }))
    }

    fn is_silent(&self) -> bool {
        self.device.is_silent()
    }

    fn counters(&self) -> Option<&DiskCounters> {
        Some(&self.device.counters)
    }

    fn length_or_wait(&self, path: &str) -> Result<Length, DiskError> {
        let measured = |path: &Path| Ok(fs::metadata(path)?.len());
        Ok(Length::Waits(Box::pin(begin(self.call("measure", path, Effect::Read, measured)))))
    }

    fn lock(&self, path: &str) -> Result<Box<dyn Send + Sync>, DiskError> {
        let lock = self.ask("lock", path, Effect::Look, |path| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let file = options.open(path)?;
            rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
            Ok(Arc::new(file))
        })?;
        self.device.lock_with(&lock);
        Ok(Box::new(lock))
    }

    fn path(&self) -> &str {
        &self.shown
    }
}

struct DirectoryFile {
    inner: Arc<Inner>,
    device: Arc<Device>,
}

/// What calls need of an open file.
struct Inner {
    file: fs::File,
    /// For direct I/O, once it was wanted; `None` where there is none.
    direct: OnceLock<Option<fs::File>>,
    shown: String,
}

impl Inner {
    /// Fills `buffer` as far as the file reaches.
    fn fill(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.file.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    /// As much of it as the system has in memory. What is not there is read ahead by this, which says so, as it does where a file system cannot
    /// tell. Errors are the other's to tell.
    fn fill_now(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let now = rustix::io::preadv2(&self.file, &mut [IoSliceMut::new(buffer)], offset, ReadWriteFlags::NOWAIT);
        now.unwrap_or(0)
    }

    /// What lies from an offset on, as much of it as the buffer has room for.
    fn rest(&self, offset: u64, mut rest: Vec<u8>) -> io::Result<Vec<u8>> {
        let count = self.fill(offset, &mut rest)?;
        rest.truncate(count);
        Ok(rest)
    }

    /// The same file, past the page cache.
    fn direct(&self) -> Option<&fs::File> {
        let open = || {
            let mut options = OpenOptions::new();
            options.write(true).custom_flags(OFlags::DIRECT.bits().cast_signed());
            options.open(format!("/proc/self/fd/{}", self.file.as_raw_fd())).ok()
        };
        self.direct.get_or_init(open).as_ref()
    }

    fn write_run(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        // Whole aligned pages go directly. What is before them shares its page with the run before, and stays for that. A run that ends within
        // a page goes by the cache as a whole: the device is asked once that way, and not for its last page once more.
        let skipped = bytes.as_ptr().align_offset(RUN_ALIGN).min(bytes.len());
        let (head, pages) = bytes.split_at(skipped);
        let begin = offset + head.len() as u64;
        let is_direct = begin.is_multiple_of(RUN_ALIGN as u64)
            && pages.len().is_multiple_of(RUN_ALIGN)
            && self.direct().is_some_and(|direct| direct.write_all_at(pages, begin).is_ok());
        if is_direct {
            return self.file.write_all_at(head, offset);
        }
        // Whatever kept it from being direct: here it is told, or does not matter.
        self.file.write_all_at(bytes, offset)?;
        // Linux writes the dirty pages of a range that it is told will not be needed, before it lets go of them (mm/fadvise.c): a sync has less to
        // wait for, and what its file system notes of several files goes with one of them. A failure of that writing is told to the
        // next sync, like any other.
        let length = NonZeroU64::new(bytes.len() as u64);
        let _ = rustix::fs::fadvise(&self.file, offset, length, rustix::fs::Advice::DontNeed);
        Ok(())
    }
}

impl DirectoryFile {
    /// A call for this file.
    fn call<T: Send + 'static>(
        &self,
        operation: &'static str,
        effect: Effect,
        act: impl FnOnce(&Inner) -> io::Result<T> + Send + 'static,
    ) -> Arc<Call<T>> {
        let inner = Arc::clone(&self.inner);
        let work = move || act(&inner).map_err(|error| describe(operation, &inner.shown, &error));
        Call::new(&self.device, effect, silent(operation, &self.inner.shown), work)
    }

    /// The same, and measured.
    fn measured<T: Send + 'static>(
        &self,
        operation: &'static str,
        effect: Effect,
        times: fn(&DiskCounters) -> &Histogram,
        act: impl FnOnce(&Inner) -> io::Result<T> + Send + 'static,
    ) -> Arc<Call<T>> {
        let device = Arc::clone(&self.device);
        self.call(operation, effect, move |inner| {
            let began = Instant::now();
            let outcome = act(inner);
            times(&device.counters).record_time(began.elapsed());
            outcome
        })
    }

    /// What `rest` has of it is read.
    fn read(&self, effect: Effect, offset: u64, rest: Vec<u8>) -> Arc<Call<Vec<u8>>> {
        self.measured("read", effect, |counters| &counters.read, move |inner| inner.rest(offset, rest))
    }

    /// As much as the system has in memory, as long as the device answers.
    fn read_now(&self, offset: u64, buffer: &mut [u8]) -> usize {
        // What is not there is read ahead by this, and may have to wait for its turn.
        if self.device.is_slow() { 0 } else { self.inner.fill_now(offset, buffer) }
    }

    /// Has something written.
    fn write(&self, act: impl FnOnce(&Inner) -> io::Result<()> + Send + 'static) -> Arc<Call<()>> {
        self.measured("write", Effect::Change, |counters| &counters.write, act)
    }

    /// Has what was written made durable.
    fn make_durable(&self, act: impl FnOnce(&Inner) -> io::Result<()> + Send + 'static) -> Arc<Call<()>> {
        self.measured("sync", Effect::Change, |counters| &counters.sync, act)
    }
}

impl RawFile for DirectoryFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        let now = self.read_now(offset, buffer);
        let (at, length) = (offset + now as u64, buffer.len() - now);
        if length == 0 {
            return Ok(now);
        }
        let rest = ask(self.read(Effect::Look, at, vec![0; length]))?;
        buffer[now..][..rest.len()].copy_from_slice(&rest);
        Ok(now + rest.len())
    }

    fn read_or_wait(&self, offset: u64, buffer: &mut [u8]) -> Result<Read, DiskError> {
        let now = self.read_now(offset, buffer);
        let (at, length) = (offset + now as u64, buffer.len() - now);
        if length == 0 {
            return Ok(Read::Done(now));
        }
        let rest = self.read(Effect::Read, at, vec![0; length]);
        Ok(Read::Waits(now, Box::pin(begin(rest))))
    }

    fn begin_read(&self, offset: u64, buffer: &mut Vec<u8>) -> Option<Boxed<Result<Vec<u8>, DiskError>>> {
        let buffer = mem::take(buffer);
        Some(Box::pin(begin(self.read(Effect::Read, offset, buffer))))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.write_many(vec![(offset, Bytes::copy_from_slice(bytes))])
    }

    fn write_many(&self, pieces: Vec<(u64, Bytes)>) -> Result<(), DiskError> {
        ask(self
            .write(move |inner| pieces.iter().try_for_each(|(offset, bytes)| inner.file.write_all_at(bytes, *offset))))
    }

    fn begin_write(&self, offset: u64, bytes: &Bytes) -> Option<Boxed<Result<(), DiskError>>> {
        let bytes = bytes.clone();
        Some(Box::pin(begin(self.write(move |inner| inner.file.write_all_at(&bytes, offset)))))
    }

    fn begin_run(&self, offset: u64, bytes: &Bytes) -> Option<Boxed<Result<(), DiskError>>> {
        let bytes = bytes.clone();
        Some(Box::pin(begin(self.write(move |inner| inner.write_run(offset, &bytes)))))
    }

    fn will_read(&self, offset: u64, bytes: u64) {
        // Linux takes no more of one call than the device takes at once, or its read-ahead (mm/readahead.c), and nothing beyond the end.
        const CALL_BYTES: u64 = 128 << 10;
        // A queue of the device takes about so much at a time.
        const AT_ONCE_BYTES: u64 = 16 << 20;
        let advise = move |inner: &Inner| {
            let end = offset.saturating_add(bytes);
            for begin in (offset..end).step_by(CALL_BYTES as usize) {
                let length = NonZeroU64::new(CALL_BYTES.min(end - begin));
                let _ = rustix::fs::fadvise(&inner.file, begin, length, rustix::fs::Advice::WillNeed);
            }
            Ok(())
        };
        match self.device.is_slow() {
            true => {}
            false if bytes <= AT_ONCE_BYTES => drop(advise(&self.inner)),
            false => elsewhere(self.call("read ahead", Effect::Read, advise)),
        }
    }

    fn forget(&self, offset: u64, bytes: u64) {
        // Linux lets go of whole clean folios alone (mm/truncate.c), and none is larger.
        const FOLIO: u64 = 2 << 20;
        let begin = offset - offset % FOLIO;
        let end = offset.saturating_add(bytes).checked_next_multiple_of(FOLIO).unwrap_or(u64::MAX);
        let forget = move |inner: &Inner| {
            let _ = rustix::fs::fadvise(&inner.file, begin, NonZeroU64::new(end - begin), rustix::fs::Advice::DontNeed);
            Ok(())
        };
        // What waits to be written is begun to be written.
        match self.device.is_slow() {
            true => drop(ask(self.call("forget", Effect::Look, forget))),
            false => drop(forget(&self.inner)),
        }
    }

    fn sync(&self) -> Result<(), DiskError> {
        ask(self.make_durable(|inner| inner.file.sync_data()))
    }

    fn begin_sync(&self, doubt: Doubt) -> Boxed<Result<(), DiskError>> {
        Box::pin(begin(self.make_durable(move |inner| doubt.settle(|| inner.file.sync_data()))))
    }

    fn length(&self) -> Result<u64, DiskError> {
        ask(self.call("measure", Effect::Look, |inner| inner.file.metadata().map(|metadata| metadata.len())))
    }

    fn set_length(&self, length: u64) -> Result<(), DiskError> {
        ask(self.call("resize", Effect::Change, move |inner| inner.file.set_len(length)))
    }

    fn pause(&self, _access: Access) -> Option<Boxed<()>> {
        None
    }

    fn path(&self) -> &str {
        &self.inner.shown
    }
}

#[cfg(test)]
mod tests;
