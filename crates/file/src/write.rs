//! Writing: data goes into the write buffer and is accepted. Also what changes extents without data: allocate, punch, copy.
//!
//! Admission: a write waits while the buffer is full, and is refused while the disks could not take what the buffer holds.
//! So what was accepted always fits.
//!
//! Not here: how accepted data becomes local (`flush`).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::id::FileId;
use base::interval::cover;
use base::limits::FILE_BYTES_MAX;
use bytes::Bytes;

use crate::attribute::without_set_id;
use crate::attributes::{Attributes, Node};
use crate::extent::Extent;
use crate::failure::FileError;
use crate::format::{Change, Content};
use crate::inode::{Inode, State, cut};
use crate::read::{Settled, expect_regular, gather};
use crate::system::{FileSystem, Transaction};

/// What [`FileSystem::allocate`] does to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Counts the range as allocated; its content stays, and reads as zeroes where it was a hole.
    Reserve {
        /// Whether the size stays as it is.
        keep_size: bool,
    },
    /// Makes the range a hole. The size stays.
    Punch,
    /// Makes the range allocated zeroes.
    Zero {
        /// Whether the size stays as it is.
        keep_size: bool,
    },
}

/// New content of a file, for [`FileSystem::replace_content`].
pub(crate) struct Replacement {
    /// The size from now on.
    pub(crate) size: u64,
    /// Whether set-id bits go.
    pub(crate) clears_set_id: bool,
    /// Whether `content` goes below what was accepted.
    pub(crate) is_below: bool,
    /// Settled content: holes, zeroes, chunks that are durable.
    pub(crate) content: Vec<(u64, Content)>,
    /// Bytes to accept.
    pub(crate) accepted: Vec<(u64, Bytes)>,
}

/// Most that one copy shares: its extents must fit one journal frame even where each is one small chunk.
const COPY_BYTES_MAX: u64 = 64 << 20;
/// A file's last chunk is small: what it takes beyond its bytes, with header and entries.
const CHUNK_OVERHEAD_BYTES: u64 = 256;
/// Commit thresholds that the journal may hold before changes wait.
const JOURNAL_AHEAD: u64 = 2;
/// Space that data may not use up: commits and deletions need it.
const SPACE_MARGIN_BYTES: u64 = 16 << 20;

impl FileSystem {
    /// Writes `data`. Accepted when it returns.
    ///
    /// # Errors
    /// `FileTooLarge`, `NoSpace`, `IsDirectory`, or why earlier data cannot be stored.
    pub async fn write(&self, file: FileId, offset: u64, data: &[u8], clears_set_id: bool) -> Result<(), FileError> {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_BYTES_MAX);
        end.ok_or(FileError::FileTooLarge)?;
        if data.is_empty() {
            return Ok(());
        }
        self.counters.writes.add(1);
        self.counters.write_bytes.add(data.len() as u64);
        self.admit(data.len() as u64).await?;
        let inode = self.live(file).await?;
        let (grown, wants_flush) = {
            let mut state = inode.state.lock();
            expect_regular(&state.attributes)?;
            if state.is_gone {
                return Err(FileError::NoEntry);
            }
            let grown = self.accept(&inode, &mut state, offset, data);
            let now = self.now();
            let attributes = &mut state.attributes;
            (attributes.modified, attributes.changed) = (now, now);
            if clears_set_id {
                attributes.mode = without_set_id(attributes.mode);
            }
            (grown, state.dirty_bytes >= self.stream_bytes())
        };
        let total = self.dirty_bytes.fetch_add(grown, Ordering::Relaxed) + grown;
        if wants_flush || total > self.options.dirty_bytes_max / 2 {
            self.wants_flush.notify_one();
        }
        Ok(())
    }

    /// Puts data on top of a file. Gives the bytes by which the write buffer grew; the caller counts them.
    fn accept(&self, inode: &Arc<Inode>, state: &mut State, offset: u64, data: &[u8]) -> u64 {
        let end = offset + data.len() as u64;
        if state.dirty.is_empty() {
            state.dirty_since = self.platform.clock.elapsed();
            self.note_unlogged(inode);
        }
        note_allocation(state, offset..end);
        state.attributes.size = state.attributes.size.max(end);
        state.accept(offset, data)
    }

    /// A file with this much accepted data is a stream: it is flushed while it is still written. At least a whole chunk, so that
    /// something can be cut off: a flush that only keeps tails gives no room, and writers would wait for it in a circle.
    pub(crate) fn stream_bytes(&self) -> u64 {
        (8 << 20).min(self.options.dirty_bytes_max / 4).max(store::CUT_BYTES_MAX as u64)
    }

    /// Waits for room in the write buffer and checks that the disks could take what it holds.
    async fn admit(&self, bytes: u64) -> Result<(), FileError> {
        self.admit_records().await?;
        let mut has_waited = false;
        loop {
            let room = self.has_room.notified();
            let mut room = std::pin::pin!(room);
            room.as_mut().enable();
            let dirty = self.dirty_bytes.load(Ordering::Relaxed);
            if let Some(failure) = self.flush_failure.lock().clone()
                && dirty > 0
            {
                return Err(failure);
            }
            if dirty == 0 || dirty + bytes <= self.options.dirty_bytes_max {
                break;
            }
            if !std::mem::replace(&mut has_waited, true) {
                self.counters.write_waits.add(1);
            }
            self.wants_flush.notify_one();
            room.await;
        }
        let needed = || {
            let dirty = self.dirty_bytes.load(Ordering::Relaxed) + bytes;
            dirty + dirty / 16 + self.unlogged.lock().len() as u64 * CHUNK_OVERHEAD_BYTES + SPACE_MARGIN_BYTES
        };
        if self.free_bytes.load(Ordering::Relaxed) > needed() + SPACE_MARGIN_BYTES {
            return Ok(());
        }
        if self.measure_space() > needed() {
            return Ok(());
        }
        // Accepted data is counted as if nothing of it could be shared or compressed: see what it really takes.
        self.sync_all().await?;
        if self.measure_space() > needed() {
            return Ok(());
        }
        self.commit().await?;
        if self.dropped_bytes.load(Ordering::Relaxed) > 0 {
            self.reclaim(false).await?;
        }
        if self.measure_space() > needed() { Ok(()) } else { Err(FileError::NoSpace) }
    }

    /// Waits while the journal is far ahead of the commits: what they have not done takes memory, and room in the reserve.
    async fn admit_records(&self) -> Result<(), FileError> {
        self.refuse_after_failure()?;
        while self.store.journal_bytes() > JOURNAL_AHEAD * self.options.commit_journal_bytes {
            let ended = self.commit_ended.notified();
            let mut ended = std::pin::pin!(ended);
            ended.as_mut().enable();
            if let Some(failure) = self.commit_failure.lock().clone() {
                return Err(failure);
            }
            if self.is_stopping.load(Ordering::SeqCst) {
                return Ok(());
            }
            self.counters.record_waits.add(1);
            self.wants_commit.notify_one();
            ended.await;
        }
        Ok(())
    }

    fn refuse_after_failure(&self) -> Result<(), FileError> {
        self.journal_failure.lock().clone().map_or(Ok(()), Err)
    }

    pub(crate) fn measure_space(&self) -> u64 {
        let free = self.store.space().free;
        self.free_bytes.store(free, Ordering::Relaxed);
        free
    }

    /// New names need journal and tree space. Removing never asks.
    pub(crate) async fn admit_metadata(&self) -> Result<(), FileError> {
        self.admit_records().await?;
        if self.free_bytes.load(Ordering::Relaxed) > SPACE_MARGIN_BYTES || self.measure_space() > 0 {
            Ok(())
        } else {
            Err(FileError::NoSpace)
        }
    }

    /// Gives room in the write buffer back.
    pub(crate) fn release_dirty(&self, bytes: u64) {
        if bytes > 0 {
            self.dirty_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        self.has_room.notify_waiters();
    }

    /// fallocate.
    ///
    /// # Errors
    /// `FileTooLarge`, `Invalid`, `NoSpace`, or the store's.
    pub async fn allocate(&self, file: FileId, how: Allocate, offset: u64, length: u64) -> Result<(), FileError> {
        let end = offset.checked_add(length).filter(|end| *end <= FILE_BYTES_MAX).ok_or(FileError::FileTooLarge)?;
        if length == 0 {
            return Err(FileError::Invalid("an empty range"));
        }
        let inode = self.live(file).await?;
        let _operation = inode.operation.lock().await;
        expect_regular(&inode.state.lock().attributes)?;
        if matches!(how, Allocate::Reserve { .. }) && length > self.measure_space() {
            return Err(FileError::NoSpace);
        }
        let keeps_size =
            matches!(how, Allocate::Punch | Allocate::Reserve { keep_size: true } | Allocate::Zero { keep_size: true });
        let _flush = inode.flush.lock().await;
        let content = match how {
            Allocate::Punch => vec![(offset, Content::Extent(length, Extent::Hole))],
            Allocate::Zero { .. } => vec![(offset, Content::Extent(length, Extent::Zero))],
            Allocate::Reserve { .. } => self.holes(&inode, offset..end).await?,
        };
        let mut transaction = Transaction::begin(self);
        let mut state = inode.state.lock();
        if state.is_gone {
            return Err(FileError::NoEntry);
        }
        let old = state.attributes.size;
        let size = if keeps_size { old } else { old.max(end) };
        // A reservation goes below what was accepted, also since the holes were looked for.
        let is_below = matches!(how, Allocate::Reserve { .. });
        let replacement = Replacement { size, clears_set_id: true, is_below, content, accepted: Vec::new() };
        self.replace_content(&mut transaction, &inode, &mut state, replacement);
        state.allocated = None;
        if keeps_size && how != Allocate::Punch && end > old {
            let attributes = Attributes { is_preallocated: true, ..state.attributes.clone() };
            transaction.record(&inode, &mut state, Change::Attributes(attributes));
        }
        transaction.log();
        Ok(())
    }

    /// Records settled content and takes accepted content, with a new size. Data that was accepted before is dropped where settled
    /// content replaces it and beyond the size. What is accepted elsewhere stays, and then the size becomes local only with it
    /// (I-31). The flush lock is held.
    pub(crate) fn replace_content(
        &self,
        transaction: &mut Transaction<'_>,
        inode: &Arc<Inode>,
        state: &mut State,
        replacement: Replacement,
    ) {
        let Replacement { size, clears_set_id, is_below, content, accepted } = replacement;
        let mut dropped = state.discard(size..u64::MAX);
        if !is_below {
            for (offset, piece) in &content {
                dropped += state.discard(*offset..offset.saturating_add(piece.length()));
            }
        }
        let mut grown = 0;
        for (offset, bytes) in accepted {
            grown += self.accept(inode, state, offset, &bytes);
        }
        self.dirty_bytes.fetch_add(grown, Ordering::Relaxed);
        let now = transaction.now;
        let attributes = &mut state.attributes;
        (attributes.size, attributes.modified, attributes.changed) = (size, now, now);
        if clears_set_id {
            attributes.mode = without_set_id(attributes.mode);
        }
        let mode = attributes.mode;
        let size = state.local_size(size.min(state.logged.size));
        transaction.record(inode, state, Change::Write { size, mode, modified: now, changed: now, content });
        self.release_dirty(dropped);
    }

    /// The holes in a range as allocated zeroes.
    async fn holes(&self, inode: &Arc<Inode>, range: Range<u64>) -> Result<Vec<(u64, Content)>, FileError> {
        let mut content = Vec::new();
        let mut at = range.start;
        let fill = |content: &mut Vec<(u64, Content)>, from: u64, to: u64| {
            if from < to {
                content.push((from, Content::Extent(to - from, Extent::Zero)));
            }
        };
        while at < range.end {
            let (allocated, end) = self.allocated_ranges(inode, at..range.end).await?;
            for present in allocated {
                fill(&mut content, at, present.start.min(end));
                at = at.max(present.end);
            }
            fill(&mut content, at, end);
            at = at.max(end);
        }
        Ok(content)
    }

    /// Copies a range by sharing its chunks. Gives the bytes copied: fewer at the end of the source or in a long copy.
    ///
    /// # Errors
    /// `FileTooLarge`, `IsDirectory`, `Invalid` for overlapping ranges of one file, or the store's.
    pub async fn copy_range(
        &self,
        from: Node,
        from_offset: u64,
        to: FileId,
        to_offset: u64,
        length: u64,
    ) -> Result<u64, FileError> {
        let _use = self.grace.enter(to.0);
        let source = self.inode(from).await?;
        let target = self.live(to).await?;
        expect_regular(&target.state.lock().attributes)?;
        let size = {
            let state = source.state.lock();
            expect_regular(&state.attributes)?;
            state.attributes.size
        };
        let length = length.min(size.saturating_sub(from_offset)).min(COPY_BYTES_MAX);
        if length == 0 {
            return Ok(0);
        }
        let (from_end, to_end) = (from_offset + length, to_offset.checked_add(length));
        let to_end = to_end.filter(|end| *end <= FILE_BYTES_MAX).ok_or(FileError::FileTooLarge)?;
        if from == Node::live(to) && from_offset < to_end && to_offset < from_end {
            return Err(FileError::Invalid("source and target overlap"));
        }
        self.refuse_after_failure()?;
        let _operation = target.operation.lock().await;
        let _flush = loop {
            let flush = target.flush.lock().await;
            let hides_chunks = {
                let state = target.state.lock();
                state.has_unlogged() && to_end > state.logged.size
            };
            // Chunks beyond a size that waits for other data would show when a crash took the data and the file then grew.
            if !hides_chunks {
                break flush;
            }
            drop(flush);
            self.flush_file(&target, self.options.inline_bytes_max).await?;
        };
        let (settled, memory) = self.layers(&source, from_offset..from_end).await?;
        let moved = |range: Range<u64>| range.start - from_offset + to_offset..range.end - from_offset + to_offset;
        // Where bytes are accepted on top, what the journal has stays: a crash leaves the old or the new, and no zeroes.
        let mut gaps = vec![from_offset..from_end];
        memory.iter().for_each(|(range, _)| drop(cover(&mut gaps, range)));
        let holes = gaps.into_iter().map(|gap| (gap, Extent::Hole));
        let content = holes.chain(settled).map(|(range, extent)| {
            let range = moved(range);
            (range.start, Content::Extent(range.end - range.start, extent))
        });
        let content = content.collect();
        let accepted = memory.into_iter().map(|(range, bytes)| (moved(range).start, bytes)).collect();

        let mut transaction = Transaction::begin(self);
        let mut state = target.state.lock();
        if state.is_gone {
            return Err(FileError::NoEntry);
        }
        let size = state.attributes.size.max(to_end);
        let replacement = Replacement { size, clears_set_id: true, is_below: false, content, accepted };
        self.replace_content(&mut transaction, &target, &mut state, replacement);
        state.allocated = None;
        transaction.log();
        Ok(length)
    }

    /// The content of a range: settled extents that are no holes, and bytes that are in no chunk yet.
    async fn layers(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
    ) -> Result<(Vec<Settled>, Vec<(Range<u64>, Bytes)>), FileError> {
        let mut memory: Vec<(Range<u64>, Bytes)> = Vec::new();
        let (tree, mut settled, gaps) = {
            let state = inode.state.lock();
            let mut gaps = vec![range];
            let settled = gather(&state, &mut gaps, &mut |range, bytes| {
                memory.push((range, Bytes::copy_from_slice(bytes)));
            });
            (state.base.tree.clone(), settled, gaps)
        };
        for gap in gaps {
            for (range, extent) in self.base_extents(&tree, gap.clone(), usize::MAX).await?.0 {
                let inside = range.start.max(gap.start)..range.end.min(gap.end);
                settled.push((inside.clone(), cut(&range, &extent, &inside)));
            }
        }
        settled.retain(|(_, extent)| extent.is_allocated());
        settled.sort_unstable_by_key(|(range, _)| range.start);
        Ok((settled, memory))
    }
}

/// Keeps `allocated` exact where that needs no look at the extents: appending, and overwriting a file without holes.
fn note_allocation(state: &mut State, range: Range<u64>) {
    let size = state.attributes.size;
    state.allocated = match state.allocated {
        _ if state.attributes.is_preallocated => None,
        Some(allocated) if range.start >= size => Some(allocated + (range.end - range.start)),
        Some(allocated) if allocated == size => Some(allocated.max(range.end)),
        _ => None,
    };
}
