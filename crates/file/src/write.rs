//! Writing: data goes into the write buffer and is accepted. Also what changes extents without data: allocate, punch, copy.
//!
//! I-65  A file with extents beyond its logged size is marked `is_preallocated` in the same frame: appending to it, or making
//!       it larger, says nothing about what is allocated.
//!
//! Not here: who may write now, and who waits (`admission`); how accepted data becomes local (`flush`).

use std::ops::Range;
use std::sync::Arc;

use base::id::{ChunkAddress, FileId};
use base::interval::cover;
use base::limits::FILE_BYTES_MAX;
use bytes::Bytes;
use store::Resilience;

use crate::admission::{CHANGE_BYTES, WriteAdmitted};
use crate::attributes::{Attributes, Node, without_set_id};
use crate::buffers::Incoming;
use crate::extent::Extent;
use crate::failure::FileError;
use crate::format::{Change, Content};
use crate::habit::Expected;
use crate::inode::{Inode, State, cut};
use crate::read::{Settled, expect_regular, gather};
use crate::system::{FileSystem, Transaction};

/// What a write does beside its content.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteHow {
    /// Set-id bits go.
    pub clears_set_id: bool,
    /// Callers' caches do not see it: who was given attributes has to be told that they are old.
    pub is_around_caches: bool,
}

/// What has to be told of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Set-id bits have gone.
    pub cleared_set_id: bool,
    /// It went around caches, and somebody may have attributes of before it: they were given since the last such write.
    pub outdated_attributes: bool,
}

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
    /// Holes, zeroes, chunks that are durable, bytes for the journal. No more than fit a frame.
    pub(crate) content: Vec<(u64, Content)>,
}

/// What a range of a file has at a moment.
pub(crate) struct Layers {
    /// Extents that are no holes.
    pub(crate) settled: Vec<Settled>,
    /// Bytes that are in no chunk yet.
    pub(crate) memory: Vec<(Range<u64>, Bytes)>,
    /// The file's size, which the range may go beyond.
    pub(crate) size: u64,
}

/// What came of a try to copy.
enum Tried {
    /// So many bytes are copied.
    Copied(u64),
    /// Accepted data of the target has to be logged first: chunks beyond a size that waits for other data would show when a crash took that data and
    /// the file then grew.
    Early,
    /// The source is no longer than this any more.
    Shorter(u64),
}

/// Most that one copy shares: its extents must fit one journal frame even where each is one small chunk.
const COPY_BYTES_MAX: u64 = 64 << 20;
/// Extents of one record: half a frame.
pub(crate) const RECORD_EXTENTS: usize = 16 * 1024;
/// Chunks of what is copied are at least as large, most often.
const COPIED_CHUNK_BYTES: u64 = 16 << 10;
/// An extent in a record.
const EXTENT_BYTES: u64 = 64;

impl FileSystem {
    /// Writes `data`. Accepted when it returns.
    ///
    /// # Errors
    /// `FileTooLarge`, `NoSpace`, `IsDirectory`, or why earlier data cannot be stored.
    pub async fn write(&self, file: FileId, offset: u64, data: &[u8], clears_set_id: bool) -> Result<(), FileError> {
        let how = WriteHow { clears_set_id, ..WriteHow::default() };
        self.write_telling(file, offset, data, how).await.map(drop)
    }

    /// The same, and what of it others have to be told.
    ///
    /// # Errors
    /// As of [`write`](FileSystem::write).
    pub async fn write_telling(
        &self,
        file: FileId,
        offset: u64,
        data: &[u8],
        how: WriteHow,
    ) -> Result<Written, FileError> {
        if data.is_empty() {
            return Ok(Written::default());
        }
        let (room, inode) = self.admit_write(file, offset, data.len() as u64).await?;
        self.accept_write(room, &inode, (offset, Incoming::Borrowed(data)), how)
    }

    /// How much [`write_by`](FileSystem::write_by) is best given at a time of so much.
    #[must_use]
    pub fn write_by_bytes(&self, left: u64) -> usize {
        self.buffers.run_bytes(left)
    }

    /// Writes what `read` puts into a buffer of so many bytes, no more than [`write_by_bytes`](FileSystem::write_by_bytes) ever says, and tells the
    /// length of: who has content elsewhere brings it where it is cut from, and it is copied no more. Gives how much that was; it is accepted then.
    /// Set-id bits go.
    ///
    /// # Errors
    /// As of [`write`](FileSystem::write).
    ///
    /// # Panics
    /// For more bytes.
    pub async fn write_by(
        &self,
        file: FileId,
        offset: u64,
        bytes: usize,
        read: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<usize, FileError> {
        assert!(bytes <= self.buffers.run_bytes_max(), "{bytes} bytes at a time");
        if let Some(inode) = self.table.find(Node::live(file)) {
            self.wait_for_flush(&inode).await;
        }
        let (room, inode) = self.admit_write(file, offset, bytes as u64).await?;
        let mut run = self.buffers.filled(bytes);
        let read = read(&mut run);
        run.truncate(read);
        self.counters.filled_bytes.add(read as u64);
        if read > 0 {
            let how = WriteHow { clears_set_id: true, ..WriteHow::default() };
            self.accept_write(room, &inode, (offset, Incoming::Owned(run)), how)?;
        }
        Ok(read)
    }

    /// Writes without copying, as far as `data` is long: its memory, which is the caller's, is kept until it is in chunks. Long data is accepted part
    /// by part: after a failure some of it may be.
    ///
    /// # Errors
    /// As of [`write`](FileSystem::write).
    pub async fn write_bytes(
        &self,
        file: FileId,
        offset: u64,
        data: Bytes,
        how: WriteHow,
    ) -> Result<Written, FileError> {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_BYTES_MAX);
        end.ok_or(FileError::FileTooLarge)?;
        let (mut at, mut rest, mut written) = (offset, data, Written::default());
        while !rest.is_empty() {
            let part = rest.split_to(rest.len().min(self.buffers.run_bytes_max()));
            let (room, inode) = self.admit_write(file, at, part.len() as u64).await?;
            let incoming = self.buffers.shared(part.clone()).map_or(Incoming::Borrowed(&part[..]), Incoming::Owned);
            let told = self.accept_write(room, &inode, (at, incoming), how)?;
            written.cleared_set_id |= told.cleared_set_id;
            written.outdated_attributes |= told.outdated_attributes;
            at += part.len() as u64;
        }
        Ok(written)
    }

    async fn admit_write(
        &self,
        file: FileId,
        offset: u64,
        bytes: u64,
    ) -> Result<(WriteAdmitted, Arc<Inode>), FileError> {
        let end = offset.checked_add(bytes).filter(|end| *end <= FILE_BYTES_MAX);
        end.ok_or(FileError::FileTooLarge)?;
        let room = self.admit(bytes).await?;
        let inode = self.live(file).await?;
        self.refuse_left_out(&inode)?;
        let resilience = inode.state.lock().attributes.resilience;
        self.expect_space(resilience).await?;
        Ok((room, inode))
    }

    fn accept_write(
        &self,
        mut room: WriteAdmitted,
        inode: &Arc<Inode>,
        (offset, data): (u64, Incoming<'_>),
        how: WriteHow,
    ) -> Result<Written, FileError> {
        self.counters.writes.add(1);
        self.counters.write_bytes.add(data.len() as u64);
        let mut written = Written::default();
        let (total, wants_flush, expected) = {
            let mut state = inode.state.lock();
            expect_regular(&state.attributes)?;
            if state.is_gone {
                return Err(FileError::NoEntry);
            }
            let grown = self.accept(inode, &mut state, offset, data);
            let now = self.now();
            let attributes = &mut state.attributes;
            (attributes.modified, attributes.changed) = (now, now);
            if how.clears_set_id {
                let mode = without_set_id(attributes.mode);
                written.cleared_set_id = mode != attributes.mode;
                attributes.mode = mode;
            }
            if how.is_around_caches {
                written.outdated_attributes = std::mem::take(&mut state.is_shown);
            }
            // Under the lock: whoever flushes these bytes frees them.
            let total = room.accept(grown);
            (total, state.dirty_bytes >= self.stream_bytes(), state.habit.note_write())
        };
        match expected {
            Expected::Nothing => {}
            Expected::Sync => self.begin_sync(inode),
            Expected::Otherwise => self.counters.syncs_begun_vain.add(1),
        }
        if wants_flush || total > self.options.dirty_bytes_max / 2 {
            self.wants_flush.notify_one();
        }
        Ok(written)
    }

    /// Puts data on top of a file. Gives the bytes by which the write buffer grew; the caller counts them.
    fn accept(&self, inode: &Arc<Inode>, state: &mut State, offset: u64, data: Incoming<'_>) -> u64 {
        let end = offset + data.len() as u64;
        if state.dirty.is_empty() {
            state.dirty_since = self.platform.clock.elapsed();
            self.note_unlogged(inode);
        }
        note_allocation(state, offset..end);
        state.attributes.size = state.attributes.size.max(end);
        state.accept(offset, data, &self.buffers)
    }

    /// A file with this much accepted data is a stream: it is flushed while it is still written. At least a whole chunk, so that
    /// something can be cut off: a flush that only keeps tails gives no room, and writers would wait for it in a circle.
    pub(crate) fn stream_bytes(&self) -> u64 {
        self.options.stream_bytes.min(self.options.dirty_bytes_max / 4).max(store::CUT_BYTES_MAX as u64)
    }

    /// fallocate. Set-id bits are the caller's to take away before.
    ///
    /// # Errors
    /// `FileTooLarge`, `Invalid`, `NoSpace`, or the store's.
    pub async fn allocate(&self, file: FileId, how: Allocate, offset: u64, length: u64) -> Result<(), FileError> {
        let end = offset.checked_add(length).filter(|end| *end <= FILE_BYTES_MAX).ok_or(FileError::FileTooLarge)?;
        if length == 0 {
            return Err(FileError::Invalid("an empty range"));
        }
        let _room = self.admit_change(matches!(how, Allocate::Punch), CHANGE_BYTES).await?;
        let inode = self.live(file).await?;
        self.refuse_left_out(&inode)?;
        expect_regular(&inode.state.lock().attributes)?;
        if matches!(how, Allocate::Reserve { .. }) {
            // Before anything is locked that it waits for.
            self.expect_room_for_holes(&inode, offset..end).await?;
        }
        let _operation = inode.operation.lock().await;
        let keeps_size =
            matches!(how, Allocate::Punch | Allocate::Reserve { keep_size: true } | Allocate::Zero { keep_size: true });
        let _flush = self.lock_flush(&inode).await;
        let mut content = match how {
            Allocate::Punch => vec![(offset, Content::Extent(length, Extent::Hole))],
            Allocate::Zero { .. } => vec![(offset, Content::Extent(length, Extent::Zero))],
            Allocate::Reserve { .. } => self.holes(&inode, offset..end).await?,
        };
        // One frame holds so many; the size grows with them.
        while content.len() > RECORD_EXTENTS {
            let rest = content.split_off(RECORD_EXTENTS);
            let group = std::mem::replace(&mut content, rest);
            self.allocate_extents(&inode, how, end_of(&group).filter(|_| !keeps_size), group)?;
        }
        self.allocate_extents(&inode, how, Some(end).filter(|_| !keeps_size), content)
    }

    /// Checks that there is room for the holes of a file in a range, as there has to be for writing there, and has some made where what was removed
    /// would give it. No claim stays: a reservation keeps no room, and others are not to be refused for it.
    async fn expect_room_for_holes(&self, inode: &Arc<Inode>, range: Range<u64>) -> Result<(), FileError> {
        let resilience = inode.state.lock().attributes.resilience;
        let bytes = self.holes(inode, range).await?.iter().map(|(_, hole)| hole.length()).sum();
        let space = self.store.space_for(resilience);
        if bytes <= space.free {
            return Ok(());
        }
        // Whatever goes, there will never be as much.
        if bytes > space.total {
            return Err(self.want_of_room(bytes));
        }
        drop(self.ask_for_space(bytes).await?);
        if bytes <= self.store.space_for(resilience).free { Ok(()) } else { Err(self.want_of_room(bytes)) }
    }

    fn allocate_extents(
        &self,
        inode: &Arc<Inode>,
        how: Allocate,
        end: Option<u64>,
        content: Vec<(u64, Content)>,
    ) -> Result<(), FileError> {
        let mut transaction = Transaction::begin(self);
        let mut state = inode.state.lock();
        if state.is_gone {
            return Err(FileError::NoEntry);
        }
        let size = state.attributes.size.max(end.unwrap_or(0));
        // A reservation goes below what was accepted, also since the holes were looked for.
        let is_below = matches!(how, Allocate::Reserve { .. });
        let reach = end_of(&content).filter(|_| how != Allocate::Punch).unwrap_or(0);
        let replacement = Replacement { size, clears_set_id: false, is_below, content };
        self.replace_content(&mut transaction, inode, &mut state, replacement);
        // Beyond the size for good, or until accepted data is local: a crash before that leaves it there (I-65).
        if reach > state.logged.size && !state.attributes.is_preallocated {
            let attributes = Attributes { is_preallocated: true, ..state.attributes.clone() };
            transaction.record(inode, &mut state, Change::Attributes(attributes));
        }
        state.allocated = None;
        transaction.log();
        Ok(())
    }

    /// Records settled content and a new size. Data that was accepted before is dropped where it is replaced and beyond the size. What is accepted elsewhere stays, and then the size becomes local only with it
    /// (I-31). The flush lock is held.
    pub(crate) fn replace_content(
        &self,
        transaction: &mut Transaction<'_>,
        inode: &Arc<Inode>,
        state: &mut State,
        replacement: Replacement,
    ) {
        let Replacement { size, clears_set_id, is_below, content } = replacement;
        let mut dropped = state.discard(size..u64::MAX);
        if !is_below {
            for (offset, piece) in &content {
                dropped += state.discard(*offset..offset.saturating_add(piece.length()));
            }
        }
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

    /// Copies a range by sharing its chunks. Gives the bytes copied: fewer at the end of the source or in a long copy. Set-id bits are the
    /// caller's to take away before.
    ///
    /// # Errors
    /// `NoEntry`, `FileTooLarge`, `IsDirectory`, `Invalid` for overlapping ranges of one file, or the store's.
    pub async fn copy_range(
        &self,
        from: Node,
        from_offset: u64,
        to: FileId,
        to_offset: u64,
        length: u64,
    ) -> Result<u64, FileError> {
        let source = self.inode(from).await?;
        let target = self.live(to).await?;
        self.refuse_left_out(&target)?;
        expect_regular(&target.state.lock().attributes)?;
        let size = {
            let state = source.state.lock();
            state.expect_there()?;
            expect_regular(&state.attributes)?;
            state.attributes.size
        };
        let length = length.min(size.saturating_sub(from_offset)).min(COPY_BYTES_MAX);
        if length == 0 {
            return Ok(0);
        }
        let to_end =
            to_offset.checked_add(length).filter(|end| *end <= FILE_BYTES_MAX).ok_or(FileError::FileTooLarge)?;
        if from == Node::live(to) && from_offset < to_end && to_offset < from_offset + length {
            return Err(FileError::Invalid("source and target overlap"));
        }
        let waits = source.state.lock().unlogged_bytes();
        if length.min(waits) > self.options.inline_bytes_max {
            // Chunks are shared; what is in none yet would be taken into memory once more for each copy of it, and hashed again. Where it cannot be
            // stored as the source asks it may be as the target does.
            let _ = self.flush_file(&source, self.options.inline_bytes_max).await;
        }
        let _room = self.admit_records(length / COPIED_CHUNK_BYTES * EXTENT_BYTES + CHANGE_BYTES).await?;
        let _operation = target.operation.lock().await;
        let mut range = from_offset..from_offset + length;
        while !range.is_empty() {
            match self.try_copy(&source, range.clone(), &target, to_offset).await? {
                Tried::Copied(bytes) => return Ok(bytes),
                Tried::Early => self.flush_file(&target, self.options.inline_bytes_max).await?,
                Tried::Shorter(size) => range.end = size,
            }
        }
        Ok(0)
    }

    async fn try_copy(
        &self,
        source: &Arc<Inode>,
        range: Range<u64>,
        target: &Arc<Inode>,
        to_offset: u64,
    ) -> Result<Tried, FileError> {
        let _flush = self.lock_flush(target).await;
        // No lock is waited for from here on (I-90).
        let _use = self.grace.enter(target.file.number);
        let since = self.store.moment();
        let Layers { settled, memory, size } = self.layers(source, range.clone()).await?;
        // What is gone since it was asked for is no hole that anybody could have read.
        if size < range.end {
            return Ok(Tried::Shorter(size));
        }
        // The source may drop these chunks before the record below names them again, a snapshot by being deleted. A pass of reclaim
        // that has looked at the records already keeps only what is put or asked for (I-95).
        let chunks: Vec<ChunkAddress> = chunks_of(&settled).collect();
        let waiting = chunks.iter().filter(|address| !self.store.is_durable(address)).count();
        let resilience = target.state.lock().attributes.resilience;
        if self.store.raise(resilience, &chunks).await? > 0 || waiting > 0 {
            self.store.settle(since).await?;
        }
        let mut pieces = self.settle_memory(resilience, memory).await?;
        let mut gaps = vec![range.clone()];
        for (present, extent) in settled {
            cover(&mut gaps, &present);
            pieces.push((present.start, Content::Extent(present.end - present.start, extent)));
        }
        for (start, piece) in &pieces {
            cover(&mut gaps, &(*start..start + piece.length()));
        }
        pieces.extend(gaps.into_iter().map(|gap| (gap.start, Content::Extent(gap.end - gap.start, Extent::Hole))));
        pieces.sort_unstable_by_key(|(start, _)| *start);
        pieces.truncate(RECORD_EXTENTS);
        let copied = pieces.last().map_or(0, |(start, piece)| start + piece.length() - range.start);
        let content = pieces.into_iter().map(|(start, piece)| (start - range.start + to_offset, piece)).collect();

        let mut transaction = Transaction::begin(self);
        let mut state = target.state.lock();
        if state.is_gone {
            return Err(FileError::NoEntry);
        }
        let size = state.attributes.size.max(to_offset + copied);
        if state.has_unlogged() && size > state.logged.size {
            return Ok(Tried::Early);
        }
        let replacement = Replacement { size, clears_set_id: false, is_below: false, content };
        self.replace_content(&mut transaction, target, &mut state, replacement);
        state.allocated = None;
        transaction.log();
        Ok(Tried::Copied(copied))
    }

    /// Bytes that are in no chunk yet, as content of a record: few go into the journal, more become chunks.
    pub(crate) async fn settle_memory(
        &self,
        resilience: Resilience,
        memory: Vec<(Range<u64>, Bytes)>,
    ) -> Result<Vec<(u64, Content)>, FileError> {
        let bytes: u64 = memory.iter().map(|(range, _)| range.end - range.start).sum();
        if bytes <= self.options.inline_bytes_max {
            return Ok(memory
                .into_iter()
                .map(|(range, bytes)| (range.start, Content::Inline(bytes.to_vec())))
                .collect());
        }
        let (mut places, mut chunks) = (Vec::new(), Vec::new());
        for (range, bytes) in memory {
            let mut start = 0;
            for length in store::cut_points(&bytes, true) {
                places.push((range.start + start as u64, length as u64));
                chunks.push(bytes.slice(start..start + length));
                start += length;
            }
        }
        let since = self.store.moment();
        let addresses = self.store.put_as(resilience, chunks).await?;
        self.store.settle(since).await?;
        let content = |((offset, length), address)| {
            let chunk_bytes = u32::try_from(length).expect("a chunk is at most 1 MiB");
            (offset, Content::Extent(length, Extent::Chunk { address, skip: 0, chunk_bytes }))
        };
        Ok(places.into_iter().zip(addresses).map(content).collect())
    }

    /// The content of a range.
    pub(crate) async fn layers(&self, inode: &Arc<Inode>, range: Range<u64>) -> Result<Layers, FileError> {
        Ok(self.layers_within(inode, range, (usize::MAX, u64::MAX)).await?.expect("there is no limit"))
    }

    /// The same of a range that has no more than so many pieces, holes among them, and bytes that are in no chunk yet. It looks no further
    /// than that.
    pub(crate) async fn layers_within(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
        (pieces_max, bytes_max): (usize, u64),
    ) -> Result<Option<Layers>, FileError> {
        let mut memory: Vec<(Range<u64>, Bytes)> = Vec::new();
        let (mut pieces, mut bytes_left, mut is_within) = (0, bytes_max, true);
        let (tree, mut settled, gaps, size) = {
            let state = inode.state.lock();
            state.expect_there()?;
            let mut gaps = vec![range];
            let settled = gather(&state, &mut gaps, &mut |range, bytes| {
                pieces += 1;
                match bytes_left.checked_sub(bytes.len() as u64).filter(|_| pieces <= pieces_max) {
                    Some(left) => {
                        bytes_left = left;
                        memory.push((range, Bytes::copy_from_slice(bytes)));
                    }
                    None => is_within = false,
                }
            });
            (state.base.tree.clone(), settled, gaps, state.attributes.size)
        };
        pieces += settled.len();
        for gap in gaps {
            let Some(left) = pieces_max.checked_sub(pieces).filter(|_| is_within) else { return Ok(None) };
            let (found, next) = self.base_extents(&tree, gap.clone(), left.saturating_add(1)).await?;
            pieces += found.len();
            is_within = next.is_none();
            for (range, extent) in found {
                let inside = range.start.max(gap.start)..range.end.min(gap.end);
                settled.push((inside.clone(), cut(&range, &extent, &inside)));
            }
        }
        if !is_within || pieces > pieces_max {
            return Ok(None);
        }
        settled.retain(|(_, extent)| extent.is_allocated());
        settled.sort_unstable_by_key(|(range, _)| range.start);
        Ok(Some(Layers { settled, memory, size }))
    }
}

/// The chunks that extents name.
pub(crate) fn chunks_of(settled: &[Settled]) -> impl Iterator<Item = ChunkAddress> {
    settled.iter().filter_map(|(_, extent)| match extent {
        Extent::Chunk { address, .. } => Some(*address),
        Extent::Hole | Extent::Zero => None,
    })
}

/// Where content that is in order ends.
fn end_of(content: &[(u64, Content)]) -> Option<u64> {
    content.last().map(|(offset, content)| offset + content.length())
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
