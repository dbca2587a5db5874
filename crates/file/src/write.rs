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
use base::limits::FILE_BYTES_MAX;
use bytes::Bytes;
use store::Class;

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

/// Most that one copy shares: its extents must fit one journal frame even where each is one small chunk.
const COPY_BYTES_MAX: u64 = 64 << 20;
/// Space that data may not use up: commits and deletions need it.
const SPACE_MARGIN_BYTES: u64 = 16 << 20;

impl FileSystem {
    /// Writes `data`. Accepted when it returns.
    ///
    /// # Errors
    /// `FileTooLarge`, `NoSpace`, `IsDirectory`, or why earlier data cannot be stored.
    pub async fn write(&self, file: FileId, offset: u64, data: &[u8], clears_set_id: bool) -> Result<(), FileError> {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(FileError::FileTooLarge)?;
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
            let is_first = state.dirty.is_empty();
            if is_first {
                state.dirty_since = self.platform.clock.elapsed();
            }
            note_allocation(&mut state, offset..end);
            let grown = state.accept(offset, data);
            let now = self.now();
            let attributes = &mut state.attributes;
            attributes.size = attributes.size.max(end);
            (attributes.modified, attributes.changed) = (now, now);
            if clears_set_id {
                attributes.mode = without_set_id(attributes.mode);
            }
            if is_first {
                self.note_unlogged(&inode);
            }
            (grown, state.dirty_bytes >= self.stream_bytes())
        };
        let total = if grown >= 0 {
            self.dirty_bytes.fetch_add(grown.unsigned_abs(), Ordering::Relaxed) + grown.unsigned_abs()
        } else {
            self.dirty_bytes.fetch_sub(grown.unsigned_abs(), Ordering::Relaxed)
        };
        if wants_flush || total > self.options.dirty_bytes_max / 2 {
            self.wants_flush.notify_one();
        }
        Ok(())
    }

    /// A file with this much accepted data is a stream: it is flushed while it is still written.
    pub(crate) fn stream_bytes(&self) -> u64 {
        (8 << 20).min(self.options.dirty_bytes_max / 4)
    }

    /// Waits for room in the write buffer and checks that the disks could take what it holds.
    async fn admit(&self, bytes: u64) -> Result<(), FileError> {
        self.refuse_after_failure()?;
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
        let needed = || self.dirty_bytes.load(Ordering::Relaxed) + bytes + SPACE_MARGIN_BYTES;
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
        if self.dropped_bytes.load(Ordering::Relaxed) > 0 {
            self.reclaim(false).await?;
        }
        if self.measure_space() > needed() { Ok(()) } else { Err(FileError::NoSpace) }
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
    pub(crate) fn admit_metadata(&self) -> Result<(), FileError> {
        self.refuse_after_failure()?;
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
        let keeps_size = matches!(how, Allocate::Punch)
            || matches!(how, Allocate::Reserve { keep_size: true } | Allocate::Zero { keep_size: true });
        loop {
            // A new size must not become durable before the data below it (I-31).
            self.flush_file(&inode, self.options.inline_bytes_max).await?;
            let _flush = inode.flush.lock().await;
            let content = match how {
                Allocate::Punch => vec![(offset, Content::Extent(length, Extent::Hole))],
                Allocate::Zero { .. } => vec![(offset, Content::Extent(length, Extent::Zero))],
                Allocate::Reserve { .. } => self.holes(&inode, offset..end).await?,
            };
            let mut transaction = Transaction::begin(self);
            let mut state = inode.state.lock();
            if state.has_unlogged() {
                continue;
            }
            if state.is_gone {
                return Err(FileError::NoEntry);
            }
            let size = if keeps_size { state.attributes.size } else { state.attributes.size.max(end) };
            let now = transaction.now;
            let mode = without_set_id(state.attributes.mode);
            transaction.record(&inode, &mut state, Change::Write { size, mode, modified: now, changed: now, content });
            state.allocated = None;
            if keeps_size && how != Allocate::Punch && end > state.attributes.size {
                let attributes = Attributes { is_preallocated: true, ..state.attributes.clone() };
                transaction.record(&inode, &mut state, Change::Attributes(attributes));
            }
            transaction.log();
            return Ok(());
        }
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
        if from.view == crate::attributes::View::LIVE {
            self.flush_file(&source, 0).await?;
        }
        let pieces = self.shareable(&source, from_offset..from_end).await?;
        // A chunk that a source shares may be new as well: it must be durable before the record that names it.
        self.store.settle().await?;
        let mut content = vec![(to_offset, Content::Extent(length, Extent::Hole))];
        content.extend(pieces.into_iter().map(|(range, extent)| {
            (range.start - from_offset + to_offset, Content::Extent(range.end - range.start, extent))
        }));

        let _operation = target.operation.lock().await;
        loop {
            self.flush_file(&target, self.options.inline_bytes_max).await?;
            let _flush = target.flush.lock().await;
            let mut transaction = Transaction::begin(self);
            let mut state = target.state.lock();
            if state.has_unlogged() {
                continue;
            }
            if state.is_gone {
                return Err(FileError::NoEntry);
            }
            let size = state.attributes.size.max(to_end);
            let mode = without_set_id(state.attributes.mode);
            let now = transaction.now;
            transaction.record(&target, &mut state, Change::Write { size, mode, modified: now, changed: now, content });
            state.allocated = None;
            transaction.log();
            return Ok(length);
        }
    }

    /// The content of a range as extents; bytes that only the journal has become chunks.
    async fn shareable(&self, inode: &Arc<Inode>, range: Range<u64>) -> Result<Vec<Settled>, FileError> {
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
        for (range, bytes) in memory {
            settled.extend(self.store_run(range.start, &bytes).await?);
        }
        settled.retain(|(_, extent)| extent.is_allocated());
        settled.sort_unstable_by_key(|(range, _)| range.start);
        Ok(settled)
    }

    /// Cuts bytes into chunks and puts them into the store: accepted there, not durable.
    pub(crate) async fn store_run(&self, offset: u64, bytes: &Bytes) -> Result<Vec<Settled>, FileError> {
        let mut pieces = Vec::new();
        let mut start = 0;
        for length in store::cut_points(bytes, true) {
            pieces.push(bytes.slice(start..start + length));
            start += length;
        }
        let addresses = self.store.put_many(Class::Data, pieces.clone()).await?;
        let mut at = offset;
        let settle = |(piece, address): (Bytes, _)| {
            let chunk_bytes = u32::try_from(piece.len()).expect("a chunk is at most 1 MiB");
            let range = at..at + piece.len() as u64;
            at = range.end;
            (range, Extent::Chunk { address, skip: 0, chunk_bytes })
        };
        Ok(pieces.into_iter().zip(addresses).map(settle).collect())
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
