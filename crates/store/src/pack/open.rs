//! One open pack: a buffer that is written in large runs, to a file on each of its disks, and read meanwhile.

use std::borrow::Borrow;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use platform::disk::{DiskError, DiskErrorKind, File, RUN_ALIGN};
use platform::task::all;
use tokio::sync::oneshot;

use crate::chunk::{CUT_BYTES_MAX, Packed};
use crate::counters::Counters;
use crate::disks::DiskSet;
use crate::format::{ChunkHeader, Class, Entry, PackHeader, Summary};
use crate::options::RUN_BYTES;
use crate::run::Run;

/// The file of an open pack on one disk.
pub(crate) struct Member {
    pub(crate) disk: usize,
    pub(crate) file: File,
    /// A sync of it failed.
    has_failed: AtomicBool,
    /// One is under way, or was dropped halfway and has not succeeded.
    is_in_doubt: Arc<AtomicBool>,
}

impl Member {
    pub(super) fn new(disk: usize, file: File) -> Member {
        Member { disk, file, has_failed: AtomicBool::new(false), is_in_doubt: Arc::default() }
    }

    fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::SeqCst) || self.is_in_doubt.load(Ordering::SeqCst)
    }

    /// The same file, of which what was synced before that is to be believed.
    pub(super) fn of_what_was_synced(&self) -> Member {
        Member::new(self.disk, self.file.clone())
    }

    /// Syncs their files side by side, with what came of each. The caller holds the gates of their packs.
    async fn sync_all(members: &[&Member]) -> Vec<Result<(), DiskError>> {
        all(members.iter().map(|member| member.sync())).await
    }

    async fn sync(&self) -> Result<(), DiskError> {
        let synced = self.file.sync_telling(&self.is_in_doubt).await;
        self.has_failed.fetch_or(synced.is_err(), Ordering::SeqCst);
        synced
    }
}

type Members = Arc<[Arc<Member>]>;

/// What is done to all members alike.
#[derive(Clone, Copy)]
enum Step<'a> {
    /// Bytes to an offset, past the page cache where the device can.
    Run(u64, &'a Bytes),
    Bytes(u64, &'a [u8]),
}

impl Step<'_> {
    async fn take(self, member: &Member) -> Result<(), DiskError> {
        match self {
            Step::Run(offset, bytes) => member.file.write_run(offset, bytes).await,
            Step::Bytes(offset, bytes) => member.file.write_at(offset, bytes).await,
        }
    }
}

/// Bytes on their way into the files of an open pack.
pub(super) struct Write {
    members: Members,
    start: u64,
    bytes: Bytes,
    is_run: bool,
}

impl Write {
    /// Writes them to all members side by side; the first failure, with its disk. Nothing of them is held when it returns.
    pub(super) async fn make(self) -> Written {
        let Write { members, start, bytes, is_run } = self;
        let step = if is_run { Step::Run(start, &bytes) } else { Step::Bytes(start, &bytes) };
        OpenPack::take(&members, step).await
    }
}

/// What came of it.
pub(super) type Written = Result<(), (usize, DiskError)>;

/// Until when an open pack that takes no more is not sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// There is room for its directory.
    Room,
    /// All disks answer (N-4).
    Disks,
    /// The next opening: a disk that answers could not read it (N-4).
    Opening,
}

/// The part of an open pack that readers share with its writer.
pub(crate) struct OpenPack {
    pub(crate) number: u64,
    pub(crate) class: Class,
    run_bytes: usize,
    /// It takes no more: an opening found it, or its disk had no room for its rest, which is elsewhere.
    pub(super) found: Option<Waits>,
    /// At least one. Each has the same bytes.
    members: RwLock<Members>,
    tail: Mutex<Tail>,
    summary: Mutex<Summary>,
    /// Bytes of each file known durable.
    synced: AtomicU64,
    /// Only one sync at a time: the kernel reports a lost write to one sync only, and a second one beside it would
    /// wrongly succeed.
    gate: tokio::sync::Mutex<()>,
}

/// Bytes in memory, of which the first may be in the file already (K-11).
#[derive(Clone)]
struct Held<R> {
    /// Where they begin in the file, with a chunk.
    start: u64,
    run: R,
}

impl<R: Borrow<Run>> Held<R> {
    fn end(&self) -> u64 {
        self.start + self.run.borrow().len() as u64
    }

    /// Where it has what the file has from one offset to another.
    fn range(&self, from: u64, to: u64) -> Option<Range<usize>> {
        let from = usize::try_from(from.checked_sub(self.start)?).ok()?;
        Some(from..usize::try_from(to.checked_sub(self.start)?).ok()?)
    }

    /// What is here of the file from one offset to another.
    fn part(&self, from: u64, to: u64) -> Option<&[u8]> {
        self.run.borrow().content().get(self.range(from, to)?)
    }
}

/// What is not in the file yet.
struct Tail {
    /// Where the file's written bytes end.
    written: u64,
    /// Being written up to here, or left over from a write that failed. Comes before `pending`.
    flushing: Option<(Held<Arc<Run>>, u64)>,
    pending: Held<Run>,
    /// What was written last, for the next one: fresh memory costs as much as filling it (measured).
    spare: Run,
}

impl Tail {
    /// Where the next byte goes.
    fn end(&self) -> u64 {
        self.pending.end()
    }

    /// Where the chunks in memory begin, and those end that are whole in the file.
    fn memory_start(&self) -> u64 {
        self.flushing.as_ref().map_or(self.pending.start, |(held, _)| held.start)
    }

    /// What to write next, and where to stop: all of it, or the whole pages, where `kept` is the begin of the chunk in which these end.
    fn next_write(&mut self, pages: Option<Pages>, room: usize) -> Option<(Held<Arc<Run>>, u64)> {
        if self.flushing.is_none() {
            let end = self.end();
            let pages = pages.unwrap_or(Pages { end, kept: end });
            if pages.end <= self.written {
                return None;
            }
            let mut run = std::mem::take(&mut self.spare).begin(pages.kept, room);
            run.push(
                self.pending.part(pages.kept, end).expect("whole in memory, like every chunk that is not in the file"),
            );
            let Held { start, run } = std::mem::replace(&mut self.pending, Held { start: pages.kept, run });
            self.flushing = Some((Held { start, run: Arc::new(run) }, pages.end));
        }
        self.flushing.clone()
    }
}

/// Whole pages of a buffer, to be written while what shares a page with the next chunks waits for them.
#[derive(Clone, Copy)]
pub(super) struct Pages {
    /// Where they end.
    end: u64,
    /// Where the chunk begins that they end in, which stays in memory.
    kept: u64,
}

/// Bytes of memory for a run: before it may lie a chunk that is written in part, and beyond it goes the one that completes it.
fn room(run_bytes: usize) -> usize {
    run_bytes + 2 * (ChunkHeader::BYTES + CUT_BYTES_MAX)
}

impl OpenPack {
    pub(super) fn new(header: &PackHeader, members: Vec<Member>, run_bytes: usize) -> OpenPack {
        let PackHeader { pack: number, class, level, .. } = *header;
        let mut pending = Run::default().begin(0, room(run_bytes));
        pending.push(&header.encode());
        OpenPack {
            number,
            class,
            run_bytes,
            found: None,
            members: RwLock::new(members.into_iter().map(Arc::new).collect()),
            tail: Mutex::new(Tail {
                written: 0,
                flushing: None,
                pending: Held { start: 0, run: pending },
                spare: Run::default(),
            }),
            summary: Mutex::new(Summary::empty(class, level)),
            synced: AtomicU64::new(0),
            gate: tokio::sync::Mutex::new(()),
        }
    }

    /// One that an opening found, or what is durable of one whose disk is full: nothing more comes to what lies there.
    pub(super) fn found(number: u64, members: Vec<Member>, summary: Summary, waits: Waits) -> OpenPack {
        let end = u64::from(summary.data_bytes);
        OpenPack {
            number,
            class: summary.class,
            run_bytes: 0,
            found: Some(waits),
            members: RwLock::new(members.into_iter().map(Arc::new).collect()),
            tail: Mutex::new(Tail {
                written: end,
                flushing: None,
                pending: Held { start: end, run: Run::default() },
                spare: Run::default(),
            }),
            summary: Mutex::new(summary),
            synced: AtomicU64::new(end),
            gate: tokio::sync::Mutex::new(()),
        }
    }

    /// Whether it takes no more, as one that an opening found.
    pub(crate) fn is_found(&self) -> bool {
        self.found.is_some()
    }

    pub(crate) fn members(&self) -> Members {
        self.members.read().clone()
    }

    pub(crate) fn disks(&self) -> DiskSet {
        self.members().iter().map(|member| member.disk).collect()
    }

    /// Goes on without some of its disks; `false`, and nothing changes, where it would lie nowhere then.
    pub(super) fn leave(&self, disks: DiskSet) -> bool {
        let mut members = self.members.write();
        let stay: Members = members.iter().filter(|member| !disks.has(member.disk)).cloned().collect();
        let is_left = !stay.is_empty();
        if is_left {
            *members = stay;
            drop(members);
            // O-8.
            self.summary.lock().was_left = true;
        }
        is_left
    }

    /// Members whose file nobody knows the content of, for a sync failed. One that is under way has not.
    pub(super) fn failed_disks(&self) -> DiskSet {
        let gate = self.gate.try_lock();
        let has_failed = |member: &Member| match gate {
            Ok(_) => member.has_failed(),
            Err(_) => member.has_failed.load(Ordering::SeqCst),
        };
        self.members().iter().filter(|member| has_failed(member)).map(|member| member.disk).collect()
    }

    /// The same to all members side by side; the first failure, with its disk.
    async fn take(members: &Members, step: Step<'_>) -> Result<(), (usize, DiskError)> {
        let one = async |member: &Member| step.take(member).await.map_err(|error| (member.disk, error));
        match &**members {
            [member] => one(member).await,
            members => all(members.iter().map(|member| one(member))).await.into_iter().collect(),
        }
    }

    /// What lies in it so far.
    pub(crate) fn summary(&self) -> Summary {
        *self.summary.lock()
    }

    /// Where the chunks end that are whole in the file, unless nobody knows.
    pub(crate) fn written(&self) -> Option<u64> {
        self.failed_disks().is_empty().then(|| self.tail.lock().memory_start())
    }

    /// Bytes appended so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.tail.lock().end()
    }

    pub(super) fn synced(&self) -> u64 {
        self.synced.load(Ordering::SeqCst)
    }

    /// Whether there is nothing to sync.
    pub(super) fn is_synced(&self) -> bool {
        let written = self.tail.lock().written;
        !self.has_failed() && self.synced() >= written
    }

    pub(super) fn has_failed(&self) -> bool {
        self.members().iter().any(|member| member.has_failed())
    }

    /// Whether nobody has heard yet what came of a sync of one of its files: one that follows could succeed in its place.
    pub(super) fn is_sync_unknown(&self) -> bool {
        self.members().iter().any(|member| member.has_failed() && !member.has_failed.load(Ordering::SeqCst))
    }

    /// Bytes that are not in the file.
    pub(super) fn buffered_bytes(&self) -> u64 {
        let tail = self.tail.lock();
        tail.end() - tail.written
    }

    /// Of them those that are not being written either.
    pub(super) fn waiting_bytes(&self) -> u64 {
        let tail = self.tail.lock();
        tail.end() - tail.flushing.as_ref().map_or(tail.written, |(_, end)| *end)
    }

    /// Bytes from the buffer; `None` if they are in the file.
    pub(super) fn buffered(&self, offset: u64, length: usize) -> Option<Bytes> {
        let tail = self.tail.lock();
        let end = offset + length as u64;
        let of_flushing = tail.flushing.as_ref().and_then(|(held, _)| held.part(offset, end));
        of_flushing.or_else(|| tail.pending.part(offset, end)).map(Bytes::copy_from_slice)
    }

    /// Writes the buffer to the file, all of it or the whole pages of it. `written` hears of each part how much that was. A failure, or being dropped
    /// halfway, leaves the rest for the next try.
    ///
    /// A page that is written in part is written twice, each time by a request of its own: as many of these as runs, and a device that
    /// seeks does no more of them than of large ones. So what streams is written up to a page, and all of it when it has to be durable.
    pub(super) async fn flush(
        &self,
        pages: Option<Pages>,
        counters: &Counters,
        written: &(dyn Fn(u64) + Sync),
    ) -> Result<(), (usize, DiskError)> {
        while let Some(write) = self.begin_write(pages, counters) {
            write.make().await?;
            written(self.end_write());
        }
        Ok(())
    }

    /// What is to be written next, if anything is. It stays in memory until [`OpenPack::end_write`].
    pub(super) fn begin_write(&self, pages: Option<Pages>, counters: &Counters) -> Option<Write> {
        let (start, held, end) = {
            let mut tail = self.tail.lock();
            let (held, end) = tail.next_write(pages, room(self.run_bytes))?;
            (tail.written, held, end)
        };
        counters.pack_writes.add(1);
        let bytes = held.run.part(held.range(start, end).expect("in memory until they are written"));
        let is_run = pages.is_some() || bytes.len() >= *RUN_BYTES.start();
        Some(Write { members: self.members(), start, bytes, is_run })
    }

    /// What was begun is in the files; how many bytes that are.
    pub(super) fn end_write(&self) -> u64 {
        let mut tail = self.tail.lock();
        let (held, end) = tail.flushing.take().expect("a write was begun");
        tail.spare = Arc::into_inner(held.run).unwrap_or_default();
        end - std::mem::replace(&mut tail.written, end)
    }

    /// Makes durable what was written. After one failure it fails for ever: the kernel may have dropped the pages.
    pub(super) async fn sync(&self, counters: &Counters) -> Result<(), (usize, DiskError)> {
        OpenPack::sync_all(&[self], counters).await.into_iter().next().map_or(Ok(()), Err)
    }

    /// The same for several, side by side; the failures, each with its disk.
    pub(super) async fn sync_all(packs: &[&OpenPack], counters: &Counters) -> Vec<(usize, DiskError)> {
        let (mut failures, mut under_way) = (Vec::new(), Vec::new());
        for pack in packs {
            // Who has another one's waits for nothing but its disk.
            let gate = pack.gate.lock().await;
            let (written, members) = (pack.tail.lock().written, pack.members());
            if let Some(member) = members.iter().find(|member| member.has_failed()) {
                let error = DiskError {
                    kind: DiskErrorKind::Failed,
                    operation: "sync",
                    path: member.file.path().to_owned(),
                    detail: "an earlier sync of this file failed".to_owned(),
                };
                failures.push((member.disk, error));
            } else if pack.synced() < written {
                counters.pack_syncs.add(1);
                under_way.push((pack, gate, written, members));
            }
        }
        let all: Vec<&Member> =
            under_way.iter().flat_map(|(.., members)| members.iter().map(|member| &**member)).collect();
        let mut synced = Member::sync_all(&all).await.into_iter();
        for (pack, _gate, written, members) in &under_way {
            let before = failures.len();
            let here = members.iter().zip(&mut synced);
            failures.extend(here.filter_map(|(member, synced)| Some((member.disk, synced.err()?))));
            if failures.len() == before {
                pack.synced.fetch_max(*written, Ordering::SeqCst);
            }
        }
        failures
    }

    /// Writes directory and footer behind everything, and syncs.
    pub(super) async fn append_directory(
        &self,
        end: u64,
        directory: &[u8],
        counters: &Counters,
    ) -> Result<(), (usize, DiskError)> {
        let written = self.tail.lock().written;
        assert_eq!(written, end, "a pack is flushed before it is sealed");
        assert!(self.synced() >= end, "a pack is synced before its footer is written (K-2)");
        let members = self.members();
        if self.is_found() {
            // What a crash left behind its chunks, or what its disk had no room for.
            let cut = |member: &Arc<Member>| member.file.set_length(end).map_err(|error| (member.disk, error));
            members.iter().try_for_each(cut)?;
        }
        OpenPack::take(&members, Step::Bytes(end, directory)).await?;
        let _gate = self.gate.lock().await;
        counters.pack_syncs.add(1);
        let all: Vec<&Member> = members.iter().map(|member| &**member).collect();
        let synced = Member::sync_all(&all).await;
        members.iter().zip(synced).try_for_each(|(member, synced)| synced.map_err(|error| (member.disk, error)))
    }
}

/// The writer's own part of an open pack.
pub(crate) struct Writer {
    pub(crate) pack: Arc<OpenPack>,
    pub(crate) entries: Vec<Entry>,
    /// Chunks of which another pack has the copy that counts; only of one that takes no more.
    pub(super) others: Vec<Entry>,
    end: u64,
    /// A write failed; only `rescue` deals with it now.
    pub(crate) is_stuck: bool,
    /// Tells what comes of the run that is being written (K-13).
    pub(super) under_way: Option<oneshot::Receiver<Written>>,
}

impl Writer {
    pub(super) fn new(pack: Arc<OpenPack>) -> Writer {
        let end = PackHeader::BYTES as u64;
        Writer { pack, entries: Vec::new(), others: Vec::new(), end, is_stuck: false, under_way: None }
    }

    /// Of one that takes no more.
    pub(super) fn found(pack: Arc<OpenPack>, entries: Vec<Entry>, others: Vec<Entry>) -> Writer {
        let end = pack.bytes();
        Writer { pack, entries, others, end, is_stuck: false, under_way: None }
    }

    /// Bytes of the pack with what is buffered.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Bytes that the disk was promised for it and that are not written.
    pub(super) fn promised(&self) -> u64 {
        self.pack.buffered_bytes() + (self.entries.len() * Entry::BYTES) as u64
    }

    /// A run of what is buffered, up to a page. What came beyond it waits: a request that is a little too long for the device is two.
    ///
    /// The first chunk of a pack is written whole, or not: a file in which none is whole looks like one that has rotted.
    pub(super) fn pages(&self) -> Pages {
        const PAGE: u64 = RUN_ALIGN as u64;
        let run_end = self.pack.tail.lock().written + self.pack.run_bytes as u64;
        let least = self.entries.first().map_or(0, |first| first.content_end().next_multiple_of(PAGE));
        let end = run_end.max(least).min(self.end);
        let end = end - end % PAGE;
        match self.entries.partition_point(|entry| entry.content_end() <= end) {
            0 => Pages { end: 0, kept: 0 },
            whole => {
                let kept = self.entries.get(whole).map_or(self.end, |entry| u64::from(entry.offset));
                Pages { end, kept }
            }
        }
    }

    /// Fills the last page up, before all of the buffer is made durable: so nothing durable is written again (K-11). Tells by how many bytes.
    pub(super) fn pad(&mut self) -> u64 {
        let end = self.end.next_multiple_of(RUN_ALIGN as u64);
        let count = end - self.end;
        let mut tail = self.pack.tail.lock();
        tail.pending.run.push(&[0; RUN_ALIGN][..usize::try_from(count).expect("below a page")]);
        assert_eq!(tail.end(), end, "the buffer ends where the writer thinks");
        drop(tail);
        self.pack.summary.lock().data_bytes = u32::try_from(end).expect("packs end below 4 GiB");
        self.end = end;
        count
    }

    /// Puts a chunk into the buffer, behind what lies in it; gives their entries.
    pub(super) fn push(&mut self, chunk: &Packed) -> &[Entry] {
        let before = self.entries.len();
        for header in chunk.headers() {
            let offset = u32::try_from(self.end).expect("at most PACK_BYTES_MAX");
            let entry = Entry { offset, header: *header };
            self.end = entry.end();
            self.entries.push(entry);
        }
        let new = &self.entries[before..];
        let mut tail = self.pack.tail.lock();
        for Entry { offset, header } in new {
            tail.pending.run.push(&header.encode(self.pack.number, *offset));
        }
        tail.pending.run.push(&chunk.table);
        tail.pending.run.push(&chunk.payload);
        assert_eq!(tail.end(), self.end, "the buffer ends where the writer thinks");
        drop(tail);
        let mut summary = self.pack.summary.lock();
        summary.count += u32::try_from(new.len()).expect("a bundle has few");
        summary.data_bytes = u32::try_from(self.end).expect("packs end below 4 GiB");
        summary.raw_bytes += new.iter().map(|entry| entry.header.own_bytes()).sum::<u64>();
        drop(summary);
        new
    }
}
