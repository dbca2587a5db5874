//! Flushing: accepted data becomes local. Data goes into chunks, chunks are settled, then records name them in the journal.
//!
//! Two ways. An fsync of little data puts the bytes themselves into the journal: one write, one sync; the commit makes chunks
//! of them. Everything else goes in batches of many files: cut, put, one settle for all, a record for each.
//!
//! I-60  A record that names a chunk is logged after the chunk was settled (I-31).
//! I-61  Content is visible all the time: it leaves `flushing` in the same moment in which it enters `active`.
//! I-62  A flush that fails puts everything back under what was accepted since; writers hear of it, nothing is dropped.
//! I-63  Who empties `unlogged` holds the round lock, so that `sync_all` waits for what another round has taken.
//! I-64  Nobody waits for other files' data: the flush lock of a file is held over I/O by a flush of this file alone. What a
//!       batch took of a file belongs to the batch only while `flushing` is what it took; [`FileSystem::lock_flush`] takes it
//!       back, and the round flushes the file alone after the batch.
//!
//! Not here: when data is accepted (`write`), when records become trees (`commit`).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::id::FileId;
use base::interval::{IntervalMap, cover};
use bytes::Bytes;
use platform::task::first;
use store::Class;
use tokio::sync::{OwnedMutexGuard, oneshot};

use crate::attributes::{Attributes, Node};
use crate::extent::Extent;
use crate::failure::FileError;
use crate::format::{Change, Content};
use crate::inode::{Flushing, Inode, InodeSet, Run, State};
use crate::system::{FileSystem, Transaction};
use crate::write::RECORD_EXTENTS;

/// Bytes that share one settle.
const BATCH_BYTES: u64 = 64 << 20;
/// A file with as much is flushed alone: whoever syncs it waits for its own data only, and nothing is cut twice.
const ALONE_BYTES: u64 = 8 << 20;
/// How often the flusher looks for data that is due.
const ROUNDS_PER_INTERVAL: u32 = 5;

/// Which files a round takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Take {
    /// All, to the last byte.
    All,
    /// What was accepted this long ago, and streams as far as they can be cut.
    Due(Duration),
}

/// A file of a flush, with its content taken.
struct Taken {
    inode: Arc<Inode>,
    flushing: Arc<Flushing>,
    /// Whether the end of the stream stays behind until more of it is there.
    keeps_tail: bool,
    /// That end.
    tail: Option<(u64, Bytes)>,
    /// Where the chunks went.
    content: Vec<(u64, Content)>,
    /// A file that is flushed alone stays locked.
    _flush: Option<OwnedMutexGuard<()>>,
}

impl Taken {
    /// Whether nobody took the content back (I-64).
    fn is_ours(&self, state: &State) -> bool {
        is_flushing(state, &self.flushing)
    }
}

fn is_flushing(state: &State, taken: &Arc<Flushing>) -> bool {
    state.flushing.as_ref().is_some_and(|flushing| Arc::ptr_eq(flushing, taken))
}

/// What a batch took, and gives back unless it is published: a flush may fail, or be dropped halfway with the request it ran in.
struct Batch<'a> {
    system: &'a FileSystem,
    files: Vec<Taken>,
}

impl<'a> Batch<'a> {
    fn new(system: &'a FileSystem) -> Batch<'a> {
        Batch { system, files: Vec::new() }
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        for taken in &self.files {
            let mut state = taken.inode.state.lock();
            if taken.is_ours(&state) {
                state.flushing = None;
                self.system.put_back(&taken.inode, &mut state, &taken.flushing);
            }
        }
    }
}

/// The files that a round has not come to; they wait for the next one.
struct Rest<'a> {
    system: &'a FileSystem,
    files: InodeSet,
}

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        let mut unlogged = self.system.unlogged.lock();
        unlogged.append(&mut self.files);
        self.system.unlogged_count.store(unlogged.len(), Ordering::Relaxed);
        drop(unlogged);
        self.system.measure_buffer();
    }
}

impl FileSystem {
    /// fsync: what was accepted for the file, and everything that was changed before, is local when it returns.
    ///
    /// # Errors
    /// Why it cannot be made local.
    pub async fn sync(&self, file: FileId) -> Result<(), FileError> {
        let _time = self.platform.clock.timer(&self.counters.sync);
        // Not in memory: nothing was accepted that is not logged (I-34).
        if let Some(inode) = self.table.find(Node::live(file)) {
            self.flush_file(&inode, self.options.inline_bytes_max).await?;
        }
        self.sync_journal().await
    }

    /// Whether a sync of the file, with so many more bytes accepted for it, would need the journal alone, as it looks now.
    #[must_use]
    pub fn syncs_by_journal(&self, file: FileId, more: u64) -> bool {
        let inode = self.table.find(Node::live(file));
        inode.is_none_or(|inode| inode.state.lock().dirty_bytes + more <= self.options.inline_bytes_max)
    }

    /// Everything that was accepted or changed before is local when it returns.
    ///
    /// # Errors
    /// Why some of it cannot be.
    pub async fn sync_all(&self) -> Result<(), FileError> {
        self.flush_round(Take::All).await?;
        self.sync_journal().await
    }

    /// Logs what was accepted for one file: at most `inline_bytes_max` bytes within the journal, more through chunks.
    pub(crate) async fn flush_file(&self, inode: &Arc<Inode>, inline_bytes_max: u64) -> Result<(), FileError> {
        let flush = self.lock_flush(inode).await;
        let is_small = {
            let state = inode.state.lock();
            if !state.has_unlogged() && !state.is_access_dirty {
                return Ok(());
            }
            state.dirty_bytes <= inline_bytes_max
        };
        if is_small && self.log_inline(inode, inline_bytes_max) {
            return Ok(());
        }
        let Some(taken) = self.take(inode.clone(), Some(flush), false) else { return Ok(()) };
        self.flush_batch(Batch { system: self, files: vec![taken] }).await.map(drop)
    }

    /// Takes a file's flush lock; all that is not logged of it is in `dirty` then.
    pub(crate) async fn lock_flush(&self, inode: &Arc<Inode>) -> OwnedMutexGuard<()> {
        let guard = inode.flush.clone().lock_owned().await;
        let mut state = inode.state.lock();
        if let Some(flushing) = state.flushing.take() {
            self.counters.flushes_overtaken.add(1);
            self.put_back(inode, &mut state, &flushing);
        }
        drop(state);
        guard
    }

    /// `false`: more was accepted meanwhile.
    fn log_inline(&self, inode: &Arc<Inode>, inline_bytes_max: u64) -> bool {
        let expected = inode.state.lock().dirty_bytes.min(inline_bytes_max);
        let mut transaction = Transaction::begin_large(self, usize::try_from(expected).unwrap_or(0));
        let mut state = inode.state.lock();
        if state.dirty_bytes > inline_bytes_max {
            return false;
        }
        if state.is_gone {
            return true;
        }
        let bytes = std::mem::take(&mut state.dirty_bytes);
        let inline = |(range, mut run): (Range<u64>, Vec<u8>)| {
            // It stays until the commit, and nobody counts what it has room for: a stream's buffer that was cut short has a lot.
            run.shrink_to_fit();
            (range.start, Content::Inline(run))
        };
        let content = state.dirty.take().map(inline).collect::<Vec<_>>();
        if !content.is_empty() {
            record_write(&mut transaction, inode, &mut state, content, 0);
        }
        log_access_time(&mut transaction, inode, &mut state);
        transaction.log();
        drop(state);
        self.counters.inlined_bytes.add(bytes);
        self.release_dirty(bytes);
        true
    }

    /// Takes the files that are due and flushes them in batches.
    async fn flush_round(&self, what: Take) -> Result<(), FileError> {
        let _round = self.flush_round.lock().await;
        let are_many = self.are_many_unlogged();
        let files = {
            let mut unlogged = self.unlogged.lock();
            self.unlogged_count.store(0, Ordering::Relaxed);
            std::mem::take(&mut *unlogged)
        };
        if are_many {
            // All of them are taken. Where none would be, who waits would ask for another round at once, for ever.
            self.measure_buffer();
        }
        let mut rest = Rest { system: self, files };
        let mut result = Ok(());
        let (mut batch, mut batch_bytes) = (Batch::new(self), 0);
        let mut not_due = InodeSet::new();
        while let Some(first) = rest.files.first_entry() {
            let inode = first.get().clone();
            let Some(keeps_tail) = self.is_due(&inode, what, are_many) else {
                not_due.extend(rest.files.pop_first());
                continue;
            };
            let flush = self.lock_flush(&inode).await;
            rest.files.pop_first();
            let is_alone = inode.state.lock().dirty_bytes >= ALONE_BYTES;
            match self.take(inode.clone(), Some(flush).filter(|_| is_alone), keeps_tail) {
                Some(taken) if is_alone => {
                    result = self.flush_batch(Batch { system: self, files: vec![taken] }).await.map(drop);
                }
                Some(taken) => {
                    batch_bytes += taken.flushing.bytes;
                    batch.files.push(taken);
                }
                None => self.flush_access_time(&inode),
            }
            if batch_bytes >= BATCH_BYTES {
                batch_bytes = 0;
                result = result.and(self.flush_shared(std::mem::replace(&mut batch, Batch::new(self))).await);
            }
            if result.is_err() {
                break;
            }
        }
        rest.files.extend(not_due);
        drop(rest);
        let last = self.flush_shared(batch).await;
        if self.dirty_bytes() == 0 {
            // What could not be stored is gone.
            *self.flush_failure.lock() = None;
        }
        result.and(last)
    }

    /// Whether a round takes a file, and then whether it leaves the uncut end of a stream. Of many files none is left: a round that leaves
    /// their ends gives no room, and writers would wait for it in a circle.
    fn is_due(&self, inode: &Inode, what: Take, are_many: bool) -> Option<bool> {
        let Take::Due(age) = what else { return Some(false) };
        if are_many {
            return Some(false);
        }
        let pressure = self.writers_waiting() > 0 || self.dirty_bytes() > self.options.dirty_bytes_max / 2;
        let state = inode.state.lock();
        let is_old = self.platform.clock.elapsed().saturating_sub(state.dirty_since) >= age;
        let is_stream = state.dirty_bytes >= self.stream_bytes();
        (is_old || is_stream || pressure).then_some(is_stream && !is_old)
    }

    /// Flushes a batch whose files are not locked, and after it, alone, those that were taken back.
    async fn flush_shared(&self, batch: Batch<'_>) -> Result<(), FileError> {
        for inode in self.flush_batch(batch).await? {
            self.flush_file(&inode, self.options.inline_bytes_max).await?;
        }
        Ok(())
    }

    /// Puts, settles and logs what was taken; gives the files that were taken back meanwhile. On failure all of it goes back.
    async fn flush_batch(&self, mut batch: Batch<'_>) -> Result<Vec<Arc<Inode>>, FileError> {
        if batch.files.is_empty() {
            return Ok(Vec::new());
        }
        let _time = self.platform.clock.timer(&self.counters.flush);
        // Its chunks have no name until they are published.
        let _use = self.grace.enter(batch.files[0].inode.file.0);
        let result = self.put_batch(&mut batch.files).await;
        // Before the room in the buffer is given back: admission counts what is in neither.
        self.measure_space();
        match result {
            Ok(()) => {
                *self.flush_failure.lock() = None;
                let files = std::mem::take(&mut batch.files).into_iter();
                Ok(files.filter_map(|taken| self.publish(taken)).collect())
            }
            Err(error) => {
                self.counters.flush_failures.add(1);
                *self.flush_failure.lock() = Some(error.clone());
                drop(batch);
                // Writers that wait for room hear of the failure.
                self.flush_failed.notify_waiters();
                Err(error)
            }
        }
    }

    /// Cuts everything that was taken into chunks and makes them durable. A group is cut while the one before it is hashed, compressed
    /// and written: cutting is work for one core.
    async fn put_batch(&self, batch: &mut [Taken]) -> Result<(), FileError> {
        let mut cutter = Cutter::new(batch, self.options.group_bytes);
        let time = self.platform.clock.timer(&self.counters.flush_cut);
        let mut group = cutter.next();
        drop(time);
        while let Some(pieces) = group {
            if cutter.is_done() {
                self.put_pieces(batch, pieces).await?;
                break;
            }
            let (send, cut) = oneshot::channel();
            self.platform.tasks.compute_beside(Box::new(move || {
                let group = cutter.next();
                // A flush that failed, or was dropped, takes no more.
                let _ = send.send((cutter, group));
            }));
            self.put_pieces(batch, pieces).await?;
            let _time = self.platform.clock.timer(&self.counters.flush_cut);
            (cutter, group) = cut.await.unwrap_or_else(|_| panic!("cutting ended early"));
        }
        for (number, tail) in cutter.tails {
            batch[number].tail = Some(tail);
        }
        self.store.settle().await?;
        Ok(())
    }

    async fn put_pieces(&self, batch: &mut [Taken], pieces: Pieces) -> Result<(), FileError> {
        let addresses = self.store.put_many(Class::Data, pieces.chunks).await?;
        for (address, (number, offset, chunk_bytes)) in addresses.into_iter().zip(pieces.places) {
            let extent = Extent::Chunk { address, skip: 0, chunk_bytes };
            batch[number].content.push((offset, Content::Extent(u64::from(chunk_bytes), extent)));
        }
        Ok(())
    }

    /// Logs a file's new extents. What was accepted meanwhile stays on top. Gives the file if it was taken back (I-64).
    fn publish(&self, mut taken: Taken) -> Option<Arc<Inode>> {
        let content = std::mem::take(&mut taken.content);
        let mut groups = content.chunks(RECORD_EXTENTS).peekable();
        let mut size_taken = 0;
        loop {
            let group = groups.next();
            let mut transaction = Transaction::begin(self);
            let mut state = taken.inode.state.lock();
            if !taken.is_ours(&state) {
                drop(state);
                return Some(taken.inode);
            }
            let is_last = groups.peek().is_none() || state.is_gone;
            if is_last {
                state.flushing = None;
                let tail = taken.tail.take();
                size_taken = tail.as_ref().map_or(taken.flushing.size, |(offset, _)| *offset);
                let tail_bytes = tail.as_ref().map_or(0, |(_, tail)| tail.len() as u64);
                self.counters.flushed_bytes.add(taken.flushing.bytes - tail_bytes);
                self.accept_below(&taken.inode, &mut state, taken.flushing.bytes, tail);
            }
            if let Some(group) = group.filter(|_| !state.is_gone) {
                record_write(&mut transaction, &taken.inode, &mut state, group.to_vec(), size_taken);
                log_access_time(&mut transaction, &taken.inode, &mut state);
                transaction.log();
            }
            if is_last {
                return None;
            }
        }
    }

    /// Moves a file's accepted content to `flushing`. `None`: there is none.
    fn take(&self, inode: Arc<Inode>, flush: Option<OwnedMutexGuard<()>>, keeps_tail: bool) -> Option<Taken> {
        let flushing = {
            let mut state = inode.state.lock();
            if state.is_gone || state.dirty.is_empty() {
                return None;
            }
            let mut runs = IntervalMap::default();
            for (range, run) in state.dirty.take() {
                runs.insert(range, Run(self.buffers.lend(run)));
            }
            let bytes = std::mem::take(&mut state.dirty_bytes);
            let flushing = Arc::new(Flushing { runs, bytes, since: state.dirty_since, size: state.attributes.size });
            state.flushing = Some(flushing.clone());
            flushing
        };
        Some(Taken { inode, flushing, keeps_tail, tail: None, content: Vec::new(), _flush: flush })
    }

    /// Makes what was being flushed dirty again; it is as old as it was.
    fn put_back(&self, inode: &Arc<Inode>, state: &mut State, flushing: &Flushing) {
        state.dirty_since = state.dirty_since.min(flushing.since);
        let runs = flushing.runs.iter().map(|(range, run)| (range.start, run.0.clone()));
        self.accept_below(inode, state, flushing.bytes, runs);
    }

    /// Puts what a flush of so many bytes leaves under what was accepted since.
    fn accept_below(
        &self,
        inode: &Arc<Inode>,
        state: &mut State,
        bytes: u64,
        rest: impl IntoIterator<Item = (u64, Bytes)>,
    ) {
        let mut kept = 0;
        for (offset, run) in rest.into_iter().filter(|_| !state.is_gone) {
            let mut gaps = vec![offset..offset + run.len() as u64];
            for (newer, _) in state.dirty.overlapping(gaps[0].clone()) {
                cover(&mut gaps, &newer);
            }
            for gap in gaps {
                let slice = |at: u64| usize::try_from(at - offset).expect("a run is in memory");
                state.dirty.insert(gap.clone(), run[slice(gap.start)..slice(gap.end)].to_vec());
                kept += gap.end - gap.start;
            }
        }
        state.dirty_bytes += kept;
        if kept > 0 {
            self.note_unlogged(inode);
        }
        self.release_dirty(bytes - kept);
    }

    /// Logs an access time where no data is to be flushed.
    fn flush_access_time(&self, inode: &Arc<Inode>) {
        let mut transaction = Transaction::begin(self);
        let mut state = inode.state.lock();
        log_access_time(&mut transaction, inode, &mut state);
        transaction.log();
        drop(state);
    }

    /// Syncs the journal up to now. A failure other than a full disk is final for the store: nothing new is accepted then.
    pub(crate) async fn sync_journal(&self) -> Result<(), FileError> {
        let result = self.store.sync_log(self.store.last_logged()).await;
        result.map_err(|error| match FileError::from(error) {
            // The frames wait for room; what was promised of them is nothing yet.
            FileError::NoSpace => FileError::NoSpace,
            error => self.journal_failure.lock().get_or_insert(error).clone(),
        })
    }

    /// The background task that keeps the promise of the flush interval.
    pub(crate) async fn run_flusher(self: Arc<Self>) {
        let interval = self.options.flush_interval;
        let pause = interval / ROUNDS_PER_INTERVAL;
        // Found due at this age at the latest one pause later, a round has another pause to be done.
        let age = pause * (ROUNDS_PER_INTERVAL - 2);
        while !self.is_stopping.load(Ordering::SeqCst) {
            let sleep = self.platform.tasks.sleep(pause);
            first(self.wants_flush.notified(), sleep).await;
            let before = self.dirty_bytes();
            let flushed = self.flush_round(Take::Due(age)).await;
            if self.writers_waiting() > 0 && self.dirty_bytes() < before {
                // It gave room, and not enough.
                self.wants_flush.notify_one();
            }
            let synced =
                if self.store.last_durable() < self.store.last_logged() { self.sync_journal().await } else { Ok(()) };
            if flushed.and(synced).is_err() {
                // The failure is kept where writers and `status` see it; a broken disk is not asked all the time.
                self.platform.tasks.sleep(pause).await;
            }
        }
        self.stopped.add_permits(1);
    }
}

/// Records content that became local, with the size and times that go with it. The size that callers see becomes local with
/// the last of the accepted data (`replace_content` relies on it). `size_taken`: what they saw when all of it was taken, for what was
/// accepted since may begin within that size, and lie on what is beyond the content: a hole, or zeroes.
fn record_write(
    transaction: &mut Transaction<'_>,
    inode: &Arc<Inode>,
    state: &mut State,
    content: Vec<(u64, Content)>,
    size_taken: u64,
) {
    let end = content.iter().map(|(offset, content)| offset + content.length()).max().unwrap_or(0);
    let size = state.local_size(state.logged.size.max(end).max(size_taken.min(state.attributes.size)));
    let Attributes { mode, modified, changed, .. } = state.attributes;
    transaction.record(inode, state, Change::Write { size, mode, modified, changed, content });
}

fn log_access_time(transaction: &mut Transaction<'_>, inode: &Arc<Inode>, state: &mut State) {
    if state.is_access_dirty && !state.is_gone {
        let attributes = state.attributes.clone();
        transaction.record(inode, state, Change::Attributes(attributes));
    }
}

/// Chunks on their way into the store.
#[derive(Default)]
struct Pieces {
    chunks: Vec<Bytes>,
    /// File of the batch, offset, length.
    places: Vec<(usize, u64, u32)>,
    bytes: usize,
}

impl Pieces {
    fn push(&mut self, number: usize, offset: u64, piece: Bytes) {
        self.places.push((number, offset, u32::try_from(piece.len()).expect("a chunk is at most 1 MiB")));
        self.bytes += piece.len();
        self.chunks.push(piece);
    }
}

/// Cuts the files of a batch, a group of pieces at a time.
struct Cutter {
    group_bytes: usize,
    /// The files that come next, the last one first.
    files: Vec<(usize, Arc<Inode>, Arc<Flushing>, bool)>,
    current: Option<(usize, Cuts)>,
    /// The ends of streams that stay behind, by file.
    tails: Vec<(usize, (u64, Bytes))>,
}

impl Cutter {
    fn new(batch: &[Taken], group_bytes: usize) -> Cutter {
        let file =
            |(number, taken): (usize, &Taken)| (number, taken.inode.clone(), taken.flushing.clone(), taken.keeps_tail);
        let files = batch.iter().enumerate().map(file).rev().collect();
        Cutter { group_bytes: group_bytes.max(1), files, current: None, tails: Vec::new() }
    }

    fn is_done(&self) -> bool {
        self.files.is_empty() && self.current.is_none()
    }

    /// The next pieces, a whole group if there are as many. What was taken back meanwhile is left out.
    fn next(&mut self) -> Option<Pieces> {
        let mut pieces = Pieces::default();
        while pieces.bytes < self.group_bytes {
            let Some((number, cuts)) = &mut self.current else {
                let Some((number, inode, flushing, keeps_tail)) = self.files.pop() else { break };
                if is_flushing(&inode.state.lock(), &flushing) {
                    self.current = Some((number, Cuts::new(&flushing.runs, keeps_tail)));
                }
                continue;
            };
            match cuts.next() {
                Some((offset, piece)) => pieces.push(*number, offset, piece),
                None => {
                    let tail = cuts.tail().map(|tail| (*number, tail));
                    self.tails.extend(tail);
                    self.current = None;
                }
            }
        }
        (!pieces.chunks.is_empty()).then_some(pieces)
    }
}

/// Cuts runs into chunks, across the borders of runs that touch. Chunks are slices of their runs; only one that lies across a
/// border is copied together.
struct Cuts {
    /// Offset and bytes.
    runs: VecDeque<(u64, Bytes)>,
    keeps_tail: bool,
    /// What was not cut yet, and where it begins.
    offset: u64,
    rest: Bytes,
}

impl Cuts {
    fn new(runs: &IntervalMap<Run>, keeps_tail: bool) -> Cuts {
        let runs = runs.iter().map(|(range, run)| (range.start, run.0.clone())).collect();
        Cuts { runs, keeps_tail, offset: 0, rest: Bytes::new() }
    }

    fn next(&mut self) -> Option<(u64, Bytes)> {
        loop {
            if let Some(length) = store::first_cut(&self.rest, false) {
                return Some(self.give(length));
            }
            let known = self.rest.len();
            let border = self.offset + known as u64;
            let Some((start, run)) = self.runs.pop_front_if(|(start, _)| known == 0 || *start == border) else {
                let is_end = !self.runs.is_empty() || !self.keeps_tail;
                return store::first_cut(&self.rest, true).filter(|_| is_end).map(|length| self.give(length));
            };
            if known == 0 {
                (self.offset, self.rest) = (start, run);
                continue;
            }
            // A chunk that begins before the border ends within the largest chunk behind it, or needs still more runs.
            let head = &run[..run.len().min(store::CUT_BYTES_MAX)];
            self.rest = Bytes::from([&self.rest[..], head].concat());
            if let Some(length) = store::first_cut(&self.rest, false) {
                let chunk = self.give(length);
                if length < known {
                    // FastCDC looks at bytes in pairs: a cut before the last byte may show only when that has a partner.
                    self.rest.truncate(known - length);
                    self.runs.push_front((start, run));
                } else {
                    self.rest = run.slice(length - known..);
                }
                return Some(chunk);
            }
        }
    }

    fn give(&mut self, length: usize) -> (u64, Bytes) {
        let offset = self.offset;
        self.offset += length as u64;
        (offset, self.rest.split_to(length))
    }

    /// The end of the stream, where it is kept.
    fn tail(&mut self) -> Option<(u64, Bytes)> {
        (!self.rest.is_empty()).then(|| (self.offset, std::mem::take(&mut self.rest)))
    }
}

#[cfg(test)]
mod tests;
