//! Disks: a directory of files with positioned reads, writes and an explicit sync.
//!
//! *Written is not durable*: data is safe after [`File::sync`], names after [`Disk::sync_directory`]. One implementation is a
//! real directory, the other a simulated one that forgets what was not synced. The raw traits are blocking; the wrappers
//! add the pause that a simulated device takes in virtual time, which a real one does not need, and let a real one be waited for
//! elsewhere by a thread that has other things to do.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

pub use crate::meter::Counters as DiskCounters;
use crate::task::{Boxed, all};

/// What went wrong on a disk, in words for a person and in a kind for the program.
#[derive(Clone, Debug)]
pub struct DiskError {
    /// What the caller can do about it.
    pub kind: DiskErrorKind,
    /// The operation, as a verb.
    pub operation: &'static str,
    /// The path, as the user knows it.
    pub path: String,
    /// The system's words.
    pub detail: String,
}

/// Kinds of [`DiskError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskErrorKind {
    /// No such file.
    Absent,
    /// It exists already.
    Exists,
    /// The disk is full.
    Full,
    /// The disk or its mount is read-only.
    ReadOnly,
    /// The system refuses access.
    Denied,
    /// Somebody else holds the lock.
    Locked,
    /// The file ends before what was asked for.
    Short,
    /// The device did not answer in time. What was to be done may be done yet.
    Silent,
    /// Anything else: the medium failed. Nothing is known about what was written.
    Failed,
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}: {}", self.operation, self.path, self.detail)
    }
}

impl std::error::Error for DiskError {}

/// Bytes of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Space {
    /// All of it.
    pub total: u64,
    /// What can still be written.
    pub free: u64,
    /// The device: disks of the same device share total and free.
    pub device: u64,
    /// The device does not answer: this is what it said last.
    pub is_late: bool,
}

/// How [`Disk::open`] opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// An existing file, for reading.
    Read,
    /// An existing file, for reading and writing.
    Write,
    /// A file that must not exist yet, readable by its owner only.
    Create,
}

/// Where a device takes bytes from memory as they are: their address and their place in the file are multiples of this, in bytes.
pub const RUN_ALIGN: usize = 4096;

/// What [`RawFile::read_or_wait`] did.
pub enum Read {
    /// As [`RawFile::read_at`].
    Done(usize),
    /// So many bytes are read; the others come with this future, as far as the file reaches.
    Waits(usize, Boxed<Result<Vec<u8>, DiskError>>),
}

/// One open file, blocking. Implemented by `real` and `sim`.
pub trait RawFile: Send + Sync {
    /// Reads up to `buffer.len()` bytes; fewer only at the end of the file.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError>;
    /// As [`RawFile::read_at`]; but a thread that has other things to do does not wait for the device.
    fn read_or_wait(&self, offset: u64, buffer: &mut [u8]) -> Result<Read, DiskError> {
        self.read_at(offset, buffer).map(Read::Done)
    }
    /// Reads up to as many bytes as the buffer has, and gives it back with those, begun; what is returned waits for it. `None` where it is not
    /// to be begun but done.
    fn begin_read(&self, _offset: u64, _buffer: &mut Vec<u8>) -> Option<Boxed<Result<Vec<u8>, DiskError>>> {
        None
    }
    /// Writes all of `bytes`.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError>;
    /// Writes several pieces, in order, as [`RawFile::write_at`].
    fn write_many(&self, pieces: Vec<(u64, Bytes)>) -> Result<(), DiskError> {
        pieces.iter().try_for_each(|(offset, bytes)| self.write_at(*offset, bytes))
    }
    /// As [`RawFile::write_at`], begun; what is returned waits for it. `None` where it is not to be begun but done.
    fn begin_write(&self, _offset: u64, _bytes: &Bytes) -> Option<Boxed<Result<(), DiskError>>> {
        None
    }
    /// The same, of a long run that nobody is likely to read soon: the device may begin at once, and no memory need keep it. Cheapest where
    /// `bytes` and `offset` lie alike relative to [`RUN_ALIGN`].
    fn begin_run(&self, offset: u64, bytes: &Bytes) -> Option<Boxed<Result<(), DiskError>>> {
        self.begin_write(offset, bytes)
    }
    /// Says that these bytes are likely to be read soon: the device may begin at once. Nothing depends on it.
    fn will_read(&self, _offset: u64, _bytes: u64) {}
    /// Says that what memory keeps of these bytes may be wrong: the next read asks the device, where nothing waits to be written.
    fn forget(&self, offset: u64, bytes: u64);
    /// Makes what was written, and the length, durable.
    fn sync(&self) -> Result<(), DiskError>;
    /// The same, begun or done; what is returned waits for it. What came of it settles the doubt, also where nobody waits any more.
    fn begin_sync(&self, doubt: Doubt) -> Boxed<Result<(), DiskError>> {
        Box::pin(std::future::ready(doubt.settle(|| self.sync())))
    }
    /// Bytes in the file.
    fn length(&self) -> Result<u64, DiskError>;
    /// Cuts or extends with zeroes.
    fn set_length(&self, length: u64) -> Result<(), DiskError>;
    /// The pause before an operation; `None` where the device itself takes the time.
    fn pause(&self, access: Access) -> Option<Boxed<()>>;
    /// The file's path in messages.
    fn path(&self) -> &str;
}

/// Whether a sync that was to be made succeeded is not known yet. A flag tells of it: set from now on until the sync has succeeded, or is known
/// not to have been begun. So it stays set after one that failed, and one whose answer never came.
pub struct Doubt {
    flag: Arc<AtomicBool>,
    /// The flag stays as it is.
    stays: bool,
}

impl Doubt {
    /// Of a sync that is to be begun.
    #[must_use]
    pub fn of(flag: &Arc<AtomicBool>) -> Doubt {
        let stays = flag.swap(true, Ordering::SeqCst);
        Doubt { flag: Arc::clone(flag), stays }
    }

    /// Syncs.
    ///
    /// # Errors
    /// As `sync`.
    pub fn settle<E>(mut self, sync: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let stays = std::mem::replace(&mut self.stays, true);
        let synced = sync();
        self.stays = stays || synced.is_err();
        if synced.is_err() {
            // One before it may have been late, and have ended its own doubt.
            self.flag.store(true, Ordering::SeqCst);
        }
        synced
    }
}

impl Drop for Doubt {
    fn drop(&mut self) {
        if !self.stays {
            self.flag.store(false, Ordering::SeqCst);
        }
    }
}

/// What an operation asks of the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// From this offset of the file, so many bytes.
    Read(u64, u64),
    /// To this offset of the file, so many bytes.
    Write(u64, u64),
    /// That what was written is there to stay.
    Sync,
}

/// What [`RawDisk::open_or_wait`] did.
pub enum Opening {
    /// It is open.
    Done(Arc<dyn RawFile>),
    /// It will be.
    Waits(Boxed<Result<Arc<dyn RawFile>, DiskError>>),
}

/// What [`RawDisk::length_or_wait`] did.
pub enum Length {
    /// So many bytes.
    Done(u64),
    /// It will be known.
    Waits(Boxed<Result<u64, DiskError>>),
}

/// One directory tree on one device, blocking. Paths are relative, `/`-separated.
pub trait RawDisk: Send + Sync {
    /// Opens a file.
    fn open(&self, path: &str, how: Open) -> Result<Arc<dyn RawFile>, DiskError>;
    /// Opens an existing file for reading; a thread that has other things to do is given what to wait for.
    fn open_or_wait(&self, path: &str) -> Result<Opening, DiskError> {
        self.open(path, Open::Read).map(Opening::Done)
    }
    /// Bytes of a file, by its name; a thread that has other things to do is given what to wait for.
    fn length_or_wait(&self, path: &str) -> Result<Length, DiskError> {
        self.open(path, Open::Read)?.length().map(Length::Done)
    }
    /// Removes a file.
    fn remove(&self, path: &str) -> Result<(), DiskError>;
    /// Renames a file over whatever is at `to`.
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError>;
    /// Names in a directory, sorted.
    fn list(&self, path: &str) -> Result<Vec<String>, DiskError>;
    /// Makes a directory, readable by its owner only. An existing one is fine.
    fn make_directory(&self, path: &str) -> Result<(), DiskError>;
    /// Makes the names in a directory durable.
    fn sync_directory(&self, path: &str) -> Result<(), DiskError>;
    /// Sizes. Never waits long.
    fn space(&self) -> Result<Space, DiskError>;
    /// Whether it owes an answer that somebody waited for in vain.
    fn is_silent(&self) -> bool {
        false
    }
    /// What it was asked for, and how long that took. `None` where that is not measured.
    fn counters(&self) -> Option<&DiskCounters> {
        None
    }
    /// Takes the lock file at `path` until the returned value is dropped; `Locked` if somebody has it.
    fn lock(&self, path: &str) -> Result<Box<dyn Send + Sync>, DiskError>;
    /// The disk's path in messages.
    fn path(&self) -> &str;
}

/// An open file of a [`Disk`].
#[derive(Clone)]
pub struct File(Arc<dyn RawFile>);

impl File {
    /// Wraps an open file, or what reads like one.
    #[must_use]
    pub fn new(raw: Arc<dyn RawFile>) -> File {
        File(raw)
    }

    /// Reads up to `buffer.len()` bytes; fewer only at the end of the file.
    pub async fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        self.pause(Access::Read(offset, buffer.len() as u64)).await;
        match self.0.read_or_wait(offset, buffer)? {
            Read::Done(count) => Ok(count),
            Read::Waits(count, rest) => {
                let rest = rest.await?;
                buffer[count..count + rest.len()].copy_from_slice(&rest);
                Ok(count + rest.len())
            }
        }
    }

    /// Fills `buffer`; a file that ends before is an error of kind `Short`.
    pub async fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DiskError> {
        let count = self.read_at(offset, buffer).await?;
        self.expect(offset, buffer.len(), count)
    }

    /// The same with a buffer that is given away meanwhile, and comes back unless it fails: of many bytes cheaper, for nothing is copied.
    pub async fn read_long_at(&self, offset: u64, buffer: &mut Vec<u8>) -> Result<(), DiskError> {
        let length = buffer.len();
        let count = match self.0.begin_read(offset, buffer) {
            Some(begun) => {
                *buffer = begun.await?;
                buffer.len()
            }
            None => self.read_at(offset, buffer).await?,
        };
        self.expect(offset, length, count)
    }

    /// Reads so many bytes from the device, for who wants to know how long that takes. `false`: memory has some of them, or the file ends before.
    pub async fn read_fresh(&self, offset: u64, length: usize) -> Result<bool, DiskError> {
        let mut buffer = vec![0; length];
        if let Some(pause) = self.0.pause(Access::Read(offset, length as u64)) {
            pause.await;
            return Ok(self.0.read_at(offset, &mut buffer)? == length);
        }
        match self.0.read_or_wait(offset, &mut buffer)? {
            Read::Waits(0, rest) => Ok(rest.await?.len() == length),
            Read::Waits(..) | Read::Done(_) => Ok(false),
        }
    }

    fn expect(&self, offset: u64, expected: usize, found: usize) -> Result<(), DiskError> {
        if found == expected {
            return Ok(());
        }
        Err(DiskError {
            kind: DiskErrorKind::Short,
            operation: "read",
            path: self.path().to_owned(),
            detail: format!("expected {expected} bytes at offset {offset}, the file ends after {found}"),
        })
    }

    /// Writes all of `bytes`. Not durable before [`File::sync`]. When it returns, or is dropped, nothing of it is under way, unless the device
    /// is silent: then nothing else is asked of that before this has ended.
    pub async fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.write_shared(offset, &Bytes::copy_from_slice(bytes)).await
    }

    /// As [`File::write_at`]; but nothing is copied.
    pub async fn write_shared(&self, offset: u64, bytes: &Bytes) -> Result<(), DiskError> {
        self.pause(Access::Write(offset, bytes.len() as u64)).await;
        match self.0.begin_write(offset, bytes) {
            Some(begun) => begun.await,
            None => self.0.write_at(offset, bytes),
        }
    }

    /// As [`File::write_at`], of a long run that nobody is likely to read soon: the device may begin at once, and no memory need
    /// keep it. Cheapest where `bytes` and `offset` lie alike relative to [`RUN_ALIGN`].
    pub async fn write_run(&self, offset: u64, bytes: &Bytes) -> Result<(), DiskError> {
        self.pause(Access::Write(offset, bytes.len() as u64)).await;
        match self.0.begin_run(offset, bytes) {
            Some(begun) => begun.await,
            None => self.0.write_at(offset, bytes),
        }
    }

    /// Makes what was written durable. As [`File::write_at`] when it is dropped.
    pub async fn sync(&self) -> Result<(), DiskError> {
        self.sync_telling(&Arc::default()).await
    }

    /// The same for several files, side by side, with what came of each.
    pub async fn sync_all(files: &[&File]) -> Vec<Result<(), DiskError>> {
        all(files.iter().map(|file| file.sync())).await
    }

    /// The same; and a flag is set from before until it is known to have succeeded or not to have been begun ([`Doubt`]), also where this is
    /// dropped halfway: the kernel tells a lost write to one sync, and to none that comes later.
    pub async fn sync_telling(&self, flag: &Arc<AtomicBool>) -> Result<(), DiskError> {
        let doubt = Doubt::of(flag);
        self.pause(Access::Sync).await;
        self.0.begin_sync(doubt).await
    }

    /// Says that these bytes are likely to be read soon: the device may begin at once. Nothing depends on it.
    pub fn will_read(&self, offset: u64, bytes: u64) {
        self.0.will_read(offset, bytes);
    }

    /// Says that what memory keeps of these bytes may be wrong: the next read asks the device, where nothing waits to be written. A
    /// bit that flipped on its way into memory stays there for all who read it.
    pub fn forget(&self, offset: u64, bytes: u64) {
        self.0.forget(offset, bytes);
    }

    /// Bytes in the file.
    pub fn length(&self) -> Result<u64, DiskError> {
        self.0.length()
    }

    /// Cuts or extends with zeroes.
    pub fn set_length(&self, length: u64) -> Result<(), DiskError> {
        self.0.set_length(length)
    }

    /// The file's path in messages.
    #[must_use]
    pub fn path(&self) -> &str {
        self.0.path()
    }

    /// The blocking file beneath, for a library that cannot wait (the embedded index).
    #[must_use]
    pub fn raw(&self) -> &Arc<dyn RawFile> {
        &self.0
    }

    async fn pause(&self, access: Access) {
        if let Some(pause) = self.0.pause(access) {
            pause.await;
        }
    }
}

/// Stands where a disk should be: every operation fails with the same reason.
struct Missing {
    path: String,
    why: String,
}

impl Missing {
    fn fail<T>(&self, operation: &'static str, path: &str) -> Result<T, DiskError> {
        let path = format!("{}/{path}", self.path);
        Err(DiskError { kind: DiskErrorKind::Failed, operation, path, detail: self.why.clone() })
    }
}

impl RawDisk for Missing {
    fn open(&self, path: &str, _how: Open) -> Result<Arc<dyn RawFile>, DiskError> {
        self.fail("open", path)
    }
    fn remove(&self, path: &str) -> Result<(), DiskError> {
        self.fail("remove", path)
    }
    fn rename(&self, from: &str, _to: &str) -> Result<(), DiskError> {
        self.fail("rename", from)
    }
    fn list(&self, path: &str) -> Result<Vec<String>, DiskError> {
        self.fail("list", path)
    }
    fn make_directory(&self, path: &str) -> Result<(), DiskError> {
        self.fail("make directory", path)
    }
    fn sync_directory(&self, path: &str) -> Result<(), DiskError> {
        self.fail("sync", path)
    }
    fn space(&self) -> Result<Space, DiskError> {
        self.fail("ask for the space of", "")
    }
    fn lock(&self, path: &str) -> Result<Box<dyn Send + Sync>, DiskError> {
        self.fail("lock", path)
    }
    fn path(&self) -> &str {
        &self.path
    }
}

/// A directory tree on one device. Cheap to clone.
#[derive(Clone)]
pub struct Disk(Arc<dyn RawDisk>);

impl Disk {
    /// Wraps a device.
    #[must_use]
    pub fn new(raw: Arc<dyn RawDisk>) -> Disk {
        Disk(raw)
    }

    /// One that is not there: every operation fails, as `Failed`, with this reason. Nothing is touched at the path.
    #[must_use]
    pub fn missing(path: impl Into<String>, why: impl Into<String>) -> Disk {
        Disk(Arc::new(Missing { path: path.into(), why: why.into() }))
    }

    /// Opens a file.
    pub fn open(&self, path: &str, how: Open) -> Result<File, DiskError> {
        self.0.open(path, how).map(File)
    }

    /// Opens a file that exists, to be read.
    pub async fn open_to_read(&self, path: &str) -> Result<File, DiskError> {
        match self.0.open_or_wait(path)? {
            Opening::Done(file) => Ok(File(file)),
            Opening::Waits(file) => file.await.map(File),
        }
    }

    /// Bytes of a file, by its name.
    pub async fn length_of(&self, path: &str) -> Result<u64, DiskError> {
        match self.0.length_or_wait(path)? {
            Length::Done(length) => Ok(length),
            Length::Waits(length) => length.await,
        }
    }

    /// Whether it owes an answer that somebody waited for in vain.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.0.is_silent()
    }

    /// What it was asked for, and how long that took. `None` where that is not measured.
    #[must_use]
    pub fn counters(&self) -> Option<&DiskCounters> {
        self.0.counters()
    }

    /// Reads a small file; of one that is longer than 1 MiB only so much, for it may be longer than memory.
    pub async fn read(&self, path: &str) -> Result<Vec<u8>, DiskError> {
        const SMALL_BYTES_MAX: u64 = 1 << 20;
        let file = self.open(path, Open::Read)?;
        let length = file.length()?.min(SMALL_BYTES_MAX);
        let mut bytes = vec![0; usize::try_from(length).expect("at most 1 MiB")];
        file.read_exact_at(0, &mut bytes).await?;
        Ok(bytes)
    }

    /// Makes a new file with these bytes, durable with its name: written aside, synced, renamed.
    pub async fn write_durably(&self, path: &str, bytes: &[u8]) -> Result<(), DiskError> {
        let aside = format!("{path}.new");
        match self.remove(&aside) {
            Ok(()) => {}
            Err(error) if error.kind == DiskErrorKind::Absent => {}
            Err(error) => return Err(error),
        }
        let file = self.open(&aside, Open::Create)?;
        file.write_at(0, bytes).await?;
        file.sync().await?;
        self.rename(&aside, path)?;
        self.sync_directory(path.rsplit_once('/').map_or("", |(directory, _)| directory))
    }

    /// Removes a file.
    pub fn remove(&self, path: &str) -> Result<(), DiskError> {
        self.0.remove(path)
    }

    /// Renames a file over whatever is at `to`.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.0.rename(from, to)
    }

    /// Names in a directory, sorted.
    pub fn list(&self, path: &str) -> Result<Vec<String>, DiskError> {
        self.0.list(path)
    }

    /// Makes a directory.
    pub fn make_directory(&self, path: &str) -> Result<(), DiskError> {
        self.0.make_directory(path)
    }

    /// Makes the names in a directory durable.
    pub fn sync_directory(&self, path: &str) -> Result<(), DiskError> {
        self.0.sync_directory(path)
    }

    /// Sizes. Never waits long.
    pub fn space(&self) -> Result<Space, DiskError> {
        self.0.space()
    }

    /// Takes a lock file until the returned value is dropped.
    pub fn lock(&self, path: &str) -> Result<Box<dyn Send + Sync>, DiskError> {
        self.0.lock(path)
    }

    /// The disk's path in messages.
    #[must_use]
    pub fn path(&self) -> &str {
        self.0.path()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::Doubt;

    #[test]
    fn a_doubt_ends_with_a_sync_that_succeeds_or_was_not_begun() {
        let flag = Arc::new(AtomicBool::new(false));
        let is_set = || flag.load(Ordering::SeqCst);
        let doubt = Doubt::of(&flag);
        assert!(is_set());
        drop(doubt);
        assert!(!is_set(), "it was not begun");
        let synced = Doubt::of(&flag).settle(|| if is_set() { Ok(()) } else { Err("it is not set meanwhile") });
        assert_eq!(synced, Ok(()));
        assert!(!is_set());
        assert_eq!(Doubt::of(&flag).settle(|| Err(1)), Err(1));
        assert!(is_set());
        drop(Doubt::of(&flag));
        assert_eq!(Doubt::of(&flag).settle(|| Ok::<(), ()>(())), Ok(()));
        assert!(is_set(), "what failed once is lost");
    }
}
