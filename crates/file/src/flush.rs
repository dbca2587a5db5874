//! Flushing: accepted data becomes local. Data goes into chunks, chunks are settled, then records name them in the journal.
//!
//! Two ways. An fsync of little data puts the bytes themselves into the journal: one write, one sync; the commit makes chunks
//! of them. Everything else goes in batches of many files: cut, put, one settle for all, a record for each.
//!
//! I-60  A record that names a chunk is logged after the chunk was settled (I-31).
//! I-61  Content is visible all the time: it leaves `flushing` in the same moment in which it enters `active`.
//! I-62  A flush that fails puts everything back under what was accepted since; writers hear of it, nothing is dropped. One of which a disk took
//!       chunks with it puts them once more (K-12).
//! I-63  Who empties `unlogged` holds the round lock, so that `sync_all` waits for what another round has taken.
//! I-64  Nobody waits for other files' data: the flush lock of a file is held over I/O by a flush of this file alone. What a
//!       batch took of a file belongs to the batch only while `flushing` is what it took; [`FileSystem::lock_flush`] takes it
//!       back, and the round flushes the file alone after the batch.
//!
//! Not here: how the flush of a stream goes on (`roll`), when data is accepted (`write`), when records become trees (`commit`).

pub(crate) mod roll;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::id::{ChunkAddress, FileId};
use base::interval::{IntervalMap, cover};
use bytes::Bytes;
use platform::task::first;
use store::{Class, Moment, Resilience, Room, StoreError};
use tokio::sync::{OwnedMutexGuard, oneshot};

use self::roll::Roll;
use crate::attributes::{Attributes, Node};
use crate::buffers::Buffer;
use crate::cut::{Cutter, Pieces, Places, ToCut};
use crate::extent::Extent;
use crate::failure::FileError;
use crate::format::{Change, Content};
use crate::inode::{Flushing, Inode, InodeSet, Run, State};
use crate::system::{FileSystem, Transaction};
use crate::write::RECORD_EXTENTS;

/// Bytes that share one settle.
const BATCH_BYTES: u64 = 64 << 20;
/// A round takes more of streams for so long at most.
const ROLL_MAX: Duration = Duration::from_secs(1);
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
    /// As the file asked for when its content was taken.
    resilience: Resilience,
    /// Whether the end of the stream stays behind until more of it is there.
    keeps_tail: bool,
    /// Until when more of it is taken meanwhile. It is the only one of its batch then, and locked.
    rolls: Option<Duration>,
    /// That end.
    tail: Option<(u64, Bytes)>,
    /// Where the chunks went.
    content: Vec<(u64, Content)>,
    /// A file that is flushed alone stays locked.
    _flush: Option<OwnedMutexGuard<()>>,
}

impl Taken {
    fn to_cut(&self) -> ToCut {
        ToCut { inode: self.inode.clone(), flushing: self.flushing.clone(), keeps_tail: self.keeps_tail }
    }

    /// Whether nobody took the content back (I-64).
    fn is_ours(&self, state: &State) -> bool {
        state.is_flushing(&self.flushing)
    }
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
            inode.state.lock().habit.note_sync();
            self.flush_file(&inode, self.options.inline_bytes_max).await?;
        }
        self.sync_journal().await
    }

    /// Begins the sync that mostly follows what was just accepted for the file ([`Habit`]), beside the caller, who is on his way to ask for it. Nothing
    /// where somebody flushes the file, or it is not for the journal alone.
    pub(crate) fn begin_sync(&self, inode: &Arc<Inode>) {
        let Ok(_flush) = inode.flush.try_lock() else { return };
        let is_small = {
            let state = inode.state.lock();
            state.flushing.is_none() && state.dirty_bytes <= self.options.inline_bytes_max
        };
        if is_small && self.log_inline(inode, self.options.inline_bytes_max) {
            self.counters.syncs_begun.add(1);
            self.store.begin_sync_log(self.store.last_logged());
        }
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
        let Some(taken) = self.take(inode.clone(), flush, (true, false, None)) else { return Ok(()) };
        self.flush_batch(Batch { system: self, files: vec![taken] }).await.map(drop)
    }

    /// Takes a file's flush lock; all that is not logged of it is in `dirty` then.
    pub(crate) async fn lock_flush(&self, inode: &Arc<Inode>) -> OwnedMutexGuard<()> {
        let waits = inode.flush_waiting.wait();
        let guard = inode.flush.clone().lock_owned().await;
        drop(waits);
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
        // It stays until the commit, and nobody counts what a run has room for: a stream's buffer that was cut short has a lot.
        let inline = |(range, run): (Range<u64>, Buffer)| (range.start, Content::Inline(run.into_vec()));
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
        let waits = self.rounds_waiting.wait();
        let _round = self.flush_round.lock().await;
        drop(waits);
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
        let until = self.platform.clock.elapsed() + (self.options.flush_interval / ROUNDS_PER_INTERVAL).min(ROLL_MAX);
        while let Some(first) = rest.files.first_entry() {
            let inode = first.get().clone();
            let Some(keeps_tail) = self.is_due(&inode, what, are_many) else {
                not_due.extend(rest.files.pop_first());
                continue;
            };
            let flush = self.lock_flush(&inode).await;
            rest.files.pop_first();
            // With as much, whoever syncs it waits for its own data only, and nothing is cut twice.
            let is_alone = inode.state.lock().dirty_bytes >= self.stream_bytes();
            let rolls = (keeps_tail && is_alone).then_some(until);
            let mut step = Ok(());
            match self.take(inode.clone(), flush, (is_alone, keeps_tail, rolls)) {
                Some(taken) if is_alone => {
                    if rolls.is_some() {
                        // What is due does not wait for a stream.
                        batch_bytes = 0;
                        let due = std::mem::replace(&mut batch, Batch::new(self));
                        step = self.flush_shared(due).await;
                    }
                    let alone = Batch { system: self, files: vec![taken] };
                    step = step.and(self.flush_batch(alone).await.map(drop));
                }
                Some(taken) => {
                    batch_bytes += taken.flushing.bytes;
                    batch.files.push(taken);
                }
                None => self.flush_access_time(&inode),
            }
            if batch_bytes >= BATCH_BYTES {
                batch_bytes = 0;
                step = step.and(self.flush_shared(std::mem::replace(&mut batch, Batch::new(self))).await);
            }
            // Where it is more than most files ask for that cannot be had, the others are flushed.
            let is_over = step.is_err() && self.has_flush_failed();
            result = result.and(step);
            if is_over {
                break;
            }
        }
        rest.files.extend(not_due);
        drop(rest);
        let result = result.and(self.flush_shared(batch).await);
        if self.dirty_bytes() == 0 {
            self.buffers.rest();
        }
        if self.dirty_bytes() == 0 || result.is_ok() {
            // What could not be stored is gone.
            *self.flush_failure.lock() = None;
        }
        result
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

    /// Flushes a batch whose files are not locked, and after it, alone, those that were taken back. What asks for the same is one batch: there may
    /// be no room for what asks for more.
    async fn flush_shared(&self, mut batch: Batch<'_>) -> Result<(), FileError> {
        let mut result = Ok(());
        batch.files.sort_by_key(|taken| std::cmp::Reverse(taken.resilience));
        while let Some(resilience) = batch.files.last().map(|taken| taken.resilience) {
            let first = batch.files.partition_point(|taken| taken.resilience > resilience);
            let part = Batch { system: self, files: batch.files.split_off(first) };
            result = result.and(self.flush_alike(part).await);
        }
        result
    }

    async fn flush_alike(&self, batch: Batch<'_>) -> Result<(), FileError> {
        for inode in self.flush_batch(batch).await? {
            self.flush_file(&inode, self.options.inline_bytes_max).await?;
        }
        Ok(())
    }

    /// Puts, settles and logs what was taken, all of which asks for the same; gives the files that were taken back meanwhile. On failure all of it goes
    /// back.
    async fn flush_batch(&self, mut batch: Batch<'_>) -> Result<Vec<Arc<Inode>>, FileError> {
        if batch.files.is_empty() {
            return Ok(Vec::new());
        }
        let _time = self.platform.clock.timer(&self.counters.flush);
        let resilience = batch.files[0].resilience;
        // Its chunks have no name until they are published.
        let _use = self.grace.enter(batch.files[0].inode.file.number);
        let result = self.put_batch(&mut batch.files).await;
        // Before the room in the buffer is given back: admission counts what is in neither.
        self.measure_space();
        match result {
            Ok(()) => {
                let _ = self.flush_failure.lock().take_if(|(of, _)| *of == resilience);
                let files = std::mem::take(&mut batch.files).into_iter();
                Ok(files.filter_map(|taken| self.publish(taken)).collect())
            }
            Err(error) => {
                self.counters.flush_failures.add(1);
                *self.flush_failure.lock() = Some((resilience, error.clone()));
                drop(batch);
                // Writers that wait for room hear of the failure.
                self.flush_failed.notify_waiters();
                Err(error)
            }
        }
    }

    /// Cuts everything that was taken into chunks and makes them durable. Once more where a disk took some of them with it: what it was of is
    /// still here.
    async fn put_batch(&self, batch: &mut [Taken]) -> Result<(), FileError> {
        match self.put_once(batch).await {
            Err(error) if error.is_dropped() => {
                self.counters.flushes_again.add(1);
                for taken in &mut *batch {
                    taken.content.clear();
                    taken.tail = None;
                }
                self.put_once(batch).await
            }
            put => put,
        }
    }

    async fn put_once(&self, batch: &mut [Taken]) -> Result<(), FileError> {
        let since = self.store.moment();
        self.put_chunks(since, batch).await?;
        Ok(self.store.settle(since).await?)
    }

    /// Cuts it into chunks and puts them. As the published writer does (HydraFS, FAST'10), it
    /// submits one group after the other until the store is busy, and goes on when there is room: while one is cut, those
    /// before it are hashed, compressed and written.
    async fn put_chunks(&self, since: Moment, batch: &mut [Taken]) -> Result<(), FileError> {
        let resilience = batch[0].resilience;
        let mut cutter = Cutter::new(&self.platform.tasks, batch.iter().map(Taken::to_cut), self.options.group_bytes);
        let mut roll = batch[0].rolls.map(|until| Roll::new(self, since, until));
        let mut put = Submitted::default();
        let mut result = Ok(());
        let time = self.platform.clock.timer(&self.counters.flush_cut);
        let mut group = cutter.next();
        drop(time);
        while let Some(Pieces { chunks, places, bytes }) = group {
            if cutter.is_done() {
                // Here: what is small is put without a hand-over.
                let last = self.store.put_as(resilience, chunks).await;
                result = put.take_all(batch).await;
                match last {
                    Ok(addresses) => Submitted::note(batch, &places, addresses),
                    Err(error) => result = Err(error),
                }
                break;
            }
            let room = self.store.room(bytes as u64).await;
            put.begin(self, (room, resilience), chunks, places);
            result = put.take_done(batch);
            if let (Ok(()), Some(roll)) = (&result, &mut roll) {
                result = roll.go_on(&mut batch[0], &mut cutter);
            }
            if result.is_err() {
                break;
            }
            let (send, cut) = oneshot::channel();
            // On a thread of its own: behind the hashing of the groups before it would come last, and all wait for it.
            self.platform.tasks.aside(Box::pin(async move {
                let group = cutter.next();
                // A flush that failed, or was dropped, takes no more.
                let _ = send.send((cutter, group));
            }));
            let _time = self.platform.clock.timer(&self.counters.flush_cut);
            (cutter, group) = cut.await.unwrap_or_else(|_| panic!("cutting ended early"));
        }
        // All are waited for, also after a failure: none works for nobody.
        let result = result.and(put.take_all(batch).await);
        match roll {
            Some(roll) => result.and(roll.end().await)?,
            None => result?,
        }
        for (number, tail) in cutter.tails {
            batch[number].tail = Some(tail);
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

    /// Moves a file's accepted content to `flushing`. `None`: there is none. Nobody else takes any before that is seen there: what he overwrote would be
    /// lost. So the file stays locked until then, and longer if it is flushed alone.
    fn take(
        &self,
        inode: Arc<Inode>,
        flush: OwnedMutexGuard<()>,
        (is_alone, keeps_tail, rolls): (bool, bool, Option<Duration>),
    ) -> Option<Taken> {
        let (flushing, resilience) = {
            let mut state = inode.state.lock();
            if state.is_gone || state.dirty.is_empty() {
                return None;
            }
            assert!(state.flushing.is_none(), "who locks a file takes back what is being flushed of it (I-64)");
            let mut runs = IntervalMap::default();
            for (range, run) in state.dirty.take() {
                runs.insert(range, Run(self.buffers.lend(run)));
            }
            let bytes = std::mem::take(&mut state.dirty_bytes);
            let flushing = Arc::new(Flushing { runs, bytes, since: state.dirty_since, size: state.attributes.size });
            state.flushing = Some(flushing.clone());
            (flushing, state.attributes.resilience)
        };
        Some(Taken {
            inode,
            flushing,
            resilience,
            keeps_tail,
            rolls,
            tail: None,
            content: Vec::new(),
            _flush: is_alone.then_some(flush),
        })
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
                let rest = run[slice(gap.start)..slice(gap.end)].to_vec();
                state.dirty.insert(gap.clone(), Buffer::Own(rest));
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

/// What came of a group that was put.
type PutResult = Result<Vec<ChunkAddress>, StoreError>;

/// Groups that the store has, in their order.
#[derive(Default)]
struct Submitted(VecDeque<(Places, oneshot::Receiver<PutResult>)>);

impl Submitted {
    /// Begins to put a group, beside the caller.
    fn begin(
        &mut self,
        system: &FileSystem,
        (room, resilience): (Room, Resilience),
        chunks: Vec<Bytes>,
        places: Places,
    ) {
        let (send, receive) = oneshot::channel();
        let store = Arc::clone(&system.store);
        system.platform.tasks.aside(Box::pin(async move {
            let put = store.put_with(room, (Class::Data, resilience), chunks).await;
            // Before it says so: who hears of the last may be the last to hold the store.
            drop(store);
            drop(send.send(put));
        }));
        self.0.push_back((places, receive));
    }

    /// Takes what is there of those that came first.
    fn take_done(&mut self, batch: &mut [Taken]) -> Result<(), StoreError> {
        while let Some((places, mut put)) = self.0.pop_front() {
            match put.try_recv() {
                Ok(addresses) => Submitted::note(batch, &places, addresses?),
                Err(oneshot::error::TryRecvError::Empty) => {
                    self.0.push_front((places, put));
                    break;
                }
                Err(oneshot::error::TryRecvError::Closed) => panic!("a put ended early"),
            }
        }
        Ok(())
    }

    /// Waits for all.
    async fn take_all(&mut self, batch: &mut [Taken]) -> Result<(), StoreError> {
        let mut result = Ok(());
        while let Some((places, put)) = self.0.pop_front() {
            match put.await.expect("a panic there is one here") {
                Ok(addresses) => Submitted::note(batch, &places, addresses),
                Err(error) => result = Err(error),
            }
        }
        result
    }

    fn note(batch: &mut [Taken], places: &Places, addresses: Vec<ChunkAddress>) {
        for (address, (number, offset, chunk_bytes)) in addresses.into_iter().zip(places) {
            let extent = Extent::Chunk { address, skip: 0, chunk_bytes: *chunk_bytes };
            batch[*number].content.push((*offset, Content::Extent(u64::from(*chunk_bytes), extent)));
        }
    }
}
