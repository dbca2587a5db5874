//! redb's storage on a file of the platform, real or simulated, with a checksum for each page.
//!
//! redb believes the bytes that it reads (it checks pages only when it repairs) and panics over those that make no sense, now and then where
//! nobody can catch it: in a destructor, while another panic unwinds. So no damaged byte may reach it.
//!
//! X-6   redb gets a page's bytes only if they match the checksum that was kept for the page when it was written. The header page is left to
//!       redb, which has checksums of its own there and writes it in place.
//!
//! Pages are written many at a time, and at the latest before each sync: each request of a disk may have to be waited for on another thread.
//!
//! Checksums are written before each sync. After a power cut a page that was not synced may not match; redb's tree does not lead there,
//! because it is shadow-paged: what a durable root names was synced with its checksum before, and is not written again while it is named.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use platform::disk::{DiskError, DiskErrorKind, File};
use redb::StorageBackend;

use super::format::IndexSums;

const PAGE: usize = IndexSums::PAGE_BYTES;
const PAGES: u64 = IndexSums::PAGES as u64;
/// redb's header.
const HEADER: u64 = 0;
/// Reading a page by itself takes about as long as reading so many bytes in order (as a gap between chunks, before a disk is measured).
const READ_WORTH: u64 = 128 << 10;
/// As much of the file is asked for at once: more than this is likely to push out what is read next.
const AHEAD_BYTES_MAX: u64 = 256 << 20;
/// So many pages wait to be written.
const UNWRITTEN_MAX: usize = (1 << 20) / PAGE;
/// So many reads are counted before the file is looked at.
const READS_COUNTED: u64 = 8;

/// The first failure of the file since it was opened: redb's errors keep only its words.
pub(super) type Failure = Arc<Mutex<Option<DiskError>>>;

/// The adapter. redb cannot wait, so it uses the blocking file beneath.
pub(super) struct Backend {
    file: File,
    failure: Failure,
    /// Of the groups of pages that were used, by number.
    groups: Mutex<HashMap<u64, Group>>,
    /// Pages that are not in the file yet, by number; never the header.
    unwritten: Mutex<BTreeMap<u64, Bytes>>,
    /// Reads since all of the file was asked for.
    reads: AtomicU64,
    /// Bytes of the file; unknown before somebody asked.
    length: OnceLock<AtomicU64>,
}

struct Group {
    sums: IndexSums,
    /// Whether the file has others.
    is_new: bool,
}

impl Backend {
    pub(super) fn new(file: File, failure: Failure) -> Backend {
        let (groups, unwritten, reads, length) = Default::default();
        Backend { file, failure, groups, unwritten, reads, length }
    }

    /// Look-ups come by hash, from everywhere in the file. When reading it page by page has taken as long as all of it in order would, all of it
    /// is asked for: whoever has many to do waits at most twice as long as if that had been known before, and who has few reads little.
    fn note_read(&self) {
        let reads = self.reads.fetch_add(1, Ordering::Relaxed) + 1;
        if !reads.is_multiple_of(READS_COUNTED) {
            return;
        }
        let worth = reads.saturating_mul(READ_WORTH).min(AHEAD_BYTES_MAX);
        if let Ok(length) = self.length()
            && length <= worth
        {
            self.reads.store(0, Ordering::Relaxed);
            self.file.will_read(0, length);
        }
    }

    /// Bytes of the file: asked for once, for nobody else changes it.
    fn length(&self) -> Result<u64, DiskError> {
        if let Some(length) = self.length.get() {
            return Ok(length.load(Ordering::SeqCst));
        }
        let length = self.file.length()?;
        Ok(self.length.get_or_init(|| AtomicU64::new(length)).load(Ordering::SeqCst))
    }

    fn noted<T>(&self, result: Result<T, DiskError>) -> Result<T, io::Error> {
        result.map_err(|error| {
            self.failure.lock().get_or_insert_with(|| error.clone());
            io_error(error)
        })
    }

    /// Uses the checksums of a group.
    fn with_group<T>(&self, group: u64, use_it: impl FnOnce(&mut Group) -> T) -> Result<T, io::Error> {
        let mut groups = self.groups.lock();
        if let Some(known) = groups.get_mut(&group) {
            return Ok(use_it(known));
        }
        let mut bytes = [0; PAGE];
        let offset = IndexSums::offset(group);
        let mut read = || -> Result<Option<IndexSums>, io::Error> {
            let count = self.noted(self.file.raw().read_at(offset, &mut bytes))?;
            // At the end of the file there may be none yet.
            bytes[count..].fill(0);
            Ok(IndexSums::decode(group, &bytes))
        };
        let mut sums = read()?;
        if sums.is_none() {
            // A bit that flipped on its way here may be right the next time.
            self.file.forget(offset, PAGE as u64);
            sums = read()?;
        }
        let sums = sums.ok_or_else(|| self.damaged("checksums of pages", offset))?;
        Ok(use_it(groups.entry(group).or_insert(Group { sums, is_new: false })))
    }

    fn damaged(&self, what: &str, offset: u64) -> io::Error {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{what} at {offset} of {} that do not match", self.file.path()),
        )
    }

    /// Takes those of these pages that are not in the file yet. Whether they are all.
    fn take_unwritten(&self, first: u64, out: &mut [u8]) -> bool {
        let unwritten = self.unwritten.lock();
        let pages = (out.len() / PAGE) as u64;
        let mut count = 0;
        for (page, bytes) in unwritten.range(first..first + pages) {
            out[(page - first) as usize * PAGE..][..PAGE].copy_from_slice(bytes);
            count += 1;
        }
        count == pages
    }

    /// Writes what is not in the file yet.
    fn flush(&self) -> Result<(), io::Error> {
        let pages = self.unwritten.lock().clone();
        // Without the lock: look-ups need it.
        self.put(pages.iter().map(|(page, bytes)| (IndexSums::offset_of(*page), bytes.clone())).collect())?;
        self.unwritten.lock().retain(|page, bytes| {
            let written = pages.get(page);
            written.is_none_or(|written| written.as_ptr() != bytes.as_ptr())
        });
        Ok(())
    }

    fn put(&self, pieces: Vec<(u64, Bytes)>) -> Result<(), io::Error> {
        if pieces.is_empty() { Ok(()) } else { self.noted(self.file.raw().write_many(pieces)) }
    }

    /// Reads whole pages of one group, from `page` on, and checks them.
    fn read_pages(&self, page: u64, out: &mut [u8]) -> Result<(), io::Error> {
        if self.take_unwritten(page, out) {
            return Ok(());
        }
        let first = (page % PAGES) as usize;
        let expected =
            self.with_group(page / PAGES, |group| group.sums.sums[first..first + out.len() / PAGE].to_vec())?;
        self.note_read();
        let offset = IndexSums::offset_of(page);
        let mut is_second = false;
        loop {
            if self.noted(self.file.raw().read_at(offset, out))? != out.len() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.take_unwritten(page, out);
            match mismatch(page, out, &expected) {
                None => return Ok(()),
                Some(number) if is_second => {
                    return Err(self.damaged("bytes of a page", IndexSums::offset_of(number)));
                }
                // A bit that flipped on its way here may be right the next time.
                Some(_) => self.file.forget(offset, out.len() as u64),
            }
            is_second = true;
        }
    }

    /// Reads all pages of a group anew and checks them; `false`: there is no such group.
    pub(super) fn verify_group(&self, group: u64) -> Result<bool, io::Error> {
        let first = group * PAGES;
        let pages = self.pages()?.saturating_sub(first).min(PAGES);
        if pages == 0 {
            return Ok(false);
        }
        let bytes = (pages + 1) * PAGE as u64;
        self.file.forget(IndexSums::offset(group), bytes);
        self.groups.lock().remove(&group);
        self.read_pages(first, &mut vec![0; pages as usize * PAGE])?;
        Ok(true)
    }

    /// Writes whole pages of one group, from `page` on.
    fn write_pages(&self, page: u64, bytes: &[u8]) -> Result<(), io::Error> {
        self.with_group(page / PAGES, |group| {
            for (number, bytes) in (page..).zip(bytes.chunks_exact(PAGE)) {
                group.sums.sums[(number % PAGES) as usize] = IndexSums::sum(number, bytes);
            }
            group.is_new = true;
        })?;
        let is_enough = {
            let mut unwritten = self.unwritten.lock();
            unwritten.extend((page..).zip(bytes.chunks_exact(PAGE).map(Bytes::copy_from_slice)));
            unwritten.len() >= UNWRITTEN_MAX
        };
        if is_enough { self.flush() } else { Ok(()) }
    }

    fn pages(&self) -> Result<u64, io::Error> {
        self.noted(self.length()).map(IndexSums::pages_in)
    }
}

/// The first of these pages that is not what its checksum says.
fn mismatch(first: u64, pages: &[u8], expected: &[u64]) -> Option<u64> {
    let numbered = (first..).zip(pages.chunks_exact(PAGE)).zip(expected);
    let mut wrong = numbered.filter(|((number, bytes), expected)| match expected {
        _ if *number == HEADER => false,
        0 => bytes.iter().any(|byte| *byte != 0),
        expected => IndexSums::sum(*number, bytes) != **expected,
    });
    wrong.next().map(|((number, _), _)| number)
}

/// Cuts a range of bytes where pages and groups end: the page, where in it, and where in the range, how many bytes. Whole pages of a group come
/// together, and the header alone.
fn parts(offset: u64, bytes: usize) -> Vec<(u64, usize, std::ops::Range<usize>)> {
    let (mut parts, mut done) = (Vec::new(), 0);
    while done < bytes {
        let at = offset + done as u64;
        let (page, skip) = (at / PAGE as u64, (at % PAGE as u64) as usize);
        let whole = ((bytes - done) / PAGE).min((PAGES - page % PAGES) as usize);
        let length =
            if skip != 0 || whole == 0 || page == HEADER { (PAGE - skip).min(bytes - done) } else { whole * PAGE };
        parts.push((page, skip, done..done + length));
        done += length;
    }
    parts
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "index on {}", self.file.path())
    }
}

fn io_error(error: DiskError) -> io::Error {
    let kind = match error.kind {
        DiskErrorKind::Short => io::ErrorKind::UnexpectedEof,
        DiskErrorKind::Full => io::ErrorKind::StorageFull,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

impl StorageBackend for Backend {
    fn len(&self) -> Result<u64, io::Error> {
        Ok(self.pages()? * PAGE as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        for (page, skip, range) in parts(offset, out.len()) {
            if skip == 0 && range.len().is_multiple_of(PAGE) {
                self.read_pages(page, &mut out[range])?;
            } else {
                let mut whole = [0; PAGE];
                self.read_pages(page, &mut whole)?;
                let length = range.len();
                out[range].copy_from_slice(&whole[skip..skip + length]);
            }
        }
        Ok(())
    }

    fn set_len(&self, length: u64) -> Result<(), io::Error> {
        let (before, pages) = (self.pages()?, length.div_ceil(PAGE as u64));
        // What is cut off comes again as zeroes.
        for page in pages..before {
            self.with_group(page / PAGES, |group| {
                group.sums.sums[(page % PAGES) as usize] = 0;
                group.is_new = true;
            })?;
        }
        self.groups.lock().retain(|group, _| group * PAGES < pages);
        self.unwritten.lock().retain(|page, _| *page < pages);
        let length = IndexSums::file_bytes(pages);
        self.noted(self.file.set_length(length))?;
        self.length.get_or_init(AtomicU64::default).store(length, Ordering::SeqCst);
        Ok(())
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        self.flush()?;
        // redb uses nothing any more of a file that it could not write.
        let new = |(number, group): (&u64, &mut Group)| {
            let bytes = std::mem::take(&mut group.is_new).then(|| group.sums.encode(*number))?;
            Some((IndexSums::offset(*number), Bytes::from_owner(bytes)))
        };
        let new = self.groups.lock().iter_mut().filter_map(new).collect();
        self.put(new)?;
        self.noted(self.file.raw().sync())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        for (page, skip, range) in parts(offset, data.len()) {
            if page == HEADER {
                // In place, and as much as redb says: what a power cut leaves of it redb can tell.
                self.noted(self.file.raw().write_at(IndexSums::offset_of(page) + skip as u64, &data[range]))?;
            } else if skip == 0 && range.len().is_multiple_of(PAGE) {
                self.write_pages(page, &data[range])?;
            } else {
                let mut whole = [0; PAGE];
                self.read_pages(page, &mut whole)?;
                whole[skip..skip + range.len()].copy_from_slice(&data[range]);
                self.write_pages(page, &whole)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use platform::disk::Open;
    use platform::sim::{SimDisk, World};

    use super::{Backend, IndexSums, PAGE, PAGES, StorageBackend};

    const NAME: &str = "index";

    fn backend(disk: &SimDisk) -> Backend {
        Backend::new(disk.disk().open(NAME, Open::Write).expect("it is there"), super::Failure::default())
    }

    /// An index with so many pages of redb's, each filled with its number.
    fn filled(pages: u64) -> (World, SimDisk) {
        let world = World::new(1);
        let disk = world.disk("a", 1 << 30);
        disk.disk().open(NAME, Open::Create).expect("room");
        let backend = backend(&disk);
        backend.set_len(pages * PAGE as u64).expect("room");
        assert_eq!(backend.len().expect("open"), pages * PAGE as u64);
        let bytes: Vec<u8> = (0..pages).flat_map(|page| [page as u8; PAGE]).collect();
        backend.write(0, &bytes).and_then(|()| backend.sync_data()).expect("room");
        (world, disk)
    }

    fn read(backend: &Backend, page: u64) -> Option<u8> {
        let mut bytes = [0; PAGE];
        backend.read(page * PAGE as u64, &mut bytes).ok()?;
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        Some(bytes[0])
    }

    #[test]
    fn pages_lie_one_after_another_between_the_checksums_of_their_groups() {
        assert_eq!((IndexSums::offset(0), IndexSums::offset_of(0)), (0, PAGE as u64));
        assert_eq!(IndexSums::offset_of(PAGES - 1), PAGES * PAGE as u64);
        assert_eq!((IndexSums::offset(1), IndexSums::offset_of(PAGES)), (2 << 20, (2 << 20) + PAGE as u64));
        for pages in [0, 1, 2, PAGES - 1, PAGES, PAGES + 1, 5 * PAGES, 5 * PAGES + 7] {
            assert_eq!(IndexSums::pages_in(IndexSums::file_bytes(pages)), pages);
        }
    }

    #[test]
    fn what_was_written_is_read_whatever_its_borders() {
        let pages = 2 * PAGES + 5;
        let (_world, disk) = filled(pages);
        let fresh = backend(&disk);
        assert_eq!(fresh.len().expect("open"), pages * PAGE as u64);
        let mut all = vec![0; pages as usize * PAGE];
        fresh.read(0, &mut all).expect("whole");
        assert!((0..pages).zip(all.chunks_exact(PAGE)).all(|(page, bytes)| bytes == [page as u8; PAGE]));
        let at = PAGES * PAGE as u64 - 10;
        fresh.write(at, &[7; 20]).and_then(|()| fresh.sync_data()).expect("room");
        let mut around = [0; 22];
        backend(&disk).read(at - 1, &mut around).expect("whole");
        assert_eq!(around[1..21], [7; 20]);
        assert_eq!((around[0], around[21]), ((PAGES - 1) as u8, PAGES as u8));
    }

    #[test]
    fn no_damaged_byte_is_given_away() {
        let (_world, disk) = filled(PAGES + 3);
        disk.flip_bit(NAME, IndexSums::offset_of(5) + 100, 3);
        // Another page's bytes, whole.
        disk.corrupt(NAME, IndexSums::offset_of(8), &[9; PAGE]);
        // The checksum of page 11.
        disk.flip_bit(NAME, IndexSums::offset(0) + 8 + 11 * 8, 0);
        disk.flip_bit(NAME, IndexSums::offset(1), 0);
        let backend = backend(&disk);
        for page in 0..PAGES + 3 {
            let is_damaged = [5, 8, 11].contains(&page) || page >= PAGES;
            assert_eq!(read(&backend, page), (!is_damaged).then_some(page as u8), "page {page}");
        }
        let mut all = vec![0; 16 * PAGE];
        backend.read(PAGE as u64, &mut all).expect_err("one of them is damaged");
        // Whoever writes a whole page need not know what it was.
        backend.write(5 * PAGE as u64, &[1; PAGE]).expect("room");
        backend.write(8 * PAGE as u64 + 1, &[1; 9]).expect_err("the rest of the page is damaged");
        assert_eq!(read(&backend, 5), Some(1));
    }

    #[test]
    fn what_is_cut_off_comes_again_as_zeroes() {
        let (_world, disk) = filled(PAGES + 3);
        let first = backend(&disk);
        first.set_len(4 * PAGE as u64).and_then(|()| first.sync_data()).expect("room");
        let again = backend(&disk);
        again.set_len((PAGES + 3) * PAGE as u64).and_then(|()| again.sync_data()).expect("room");
        let fresh = backend(&disk);
        for page in 0..PAGES + 3 {
            assert_eq!(read(&fresh, page), Some(if page < 4 { page as u8 } else { 0 }), "page {page}");
        }
        disk.flip_bit(NAME, IndexSums::offset_of(PAGES + 1) + 9, 1);
        assert_eq!(read(&fresh, PAGES + 1), None, "a page that nobody wrote is all zeroes");
    }
}
