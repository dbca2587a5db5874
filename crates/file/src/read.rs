//! Reading: layer by layer from the newest, then the committed tree, then chunks.
//!
//! The layers are looked at under one state lock together with the root of the tree below them, so a read sees one moment: each
//! write whole or not at all, and never content that a commit is moving twice or not at all.
//!
//! Not here: prefetch, caches of chunks (the store's).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::codec::Reader;
use base::hash::GROUP_BYTES;
use base::interval::cover_all;
use store::Class;

use crate::attributes::{Attributes, Kind, Node};
use crate::extent::Extent;
use crate::failure::FileError;
use crate::format::{Root, decode_tree_extent};
use crate::inode::{Inode, State, cut};
use crate::room::COMMITS_AHEAD;
use crate::system::{FileSystem, corrupt};
use crate::tree::Start;

/// What [`FileSystem::seek`] looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is no hole.
    Data,
    /// The next byte that is in a hole; the end of the file is one.
    Hole,
}

/// Settled content of a range, in file offsets.
pub(crate) type Settled = (Range<u64>, Extent);

/// Of a reader who jumps about and wants no more than this, only the parts of chunks are read that he wants.
const PARTS_BYTES_MAX: usize = 2 * GROUP_BYTES;
/// What a seek looks at first.
const SEEK_BYTES: u64 = 1 << 20;
/// Chunks that one read has in hand at a time: of 2 MiB mostly, and never of more than 8.
const CHUNKS_PER_STEP: usize = 32;
/// Extents are looked up in groups of about this many, so that a file of a million extents needs little memory.
pub(crate) const EXTENTS_PER_STEP: usize = 1024;

impl FileSystem {
    /// Reads into `buffer`; fewer bytes only at the end of the file.
    ///
    /// # Errors
    /// `NoEntry`, `IsDirectory`, or the store's: bytes that cannot be verified are an error, never wrong data.
    pub async fn read(&self, node: Node, offset: u64, buffer: &mut [u8]) -> Result<usize, FileError> {
        self.read_noting(node, offset, buffer, true).await
    }

    /// The same; moves the access time only if `notes_access` (open(2), O_NOATIME).
    ///
    /// # Errors
    /// Those of `read`.
    pub async fn read_noting(
        &self,
        node: Node,
        offset: u64,
        buffer: &mut [u8],
        notes_access: bool,
    ) -> Result<usize, FileError> {
        self.counters.reads.add(1);
        let _use = self.grace.enter(node.file.number);
        let inode = self.inode(node).await?;
        let (count, size, tree, mut settled, gaps) = {
            let mut state = inode.state.lock();
            state.expect_there()?;
            expect_regular(&state.attributes)?;
            let end = state.attributes.size.min(offset.saturating_add(buffer.len() as u64));
            if offset >= end {
                return Ok(0);
            }
            let count = usize::try_from(end - offset).expect("no longer than the buffer");
            buffer[..count].fill(0);
            let mut gaps = vec![offset..end];
            let settled = gather(&state, &mut gaps, &mut |range, bytes| {
                let at = usize::try_from(range.start - offset).expect("inside the buffer");
                buffer[at..at + bytes.len()].copy_from_slice(bytes);
            });
            if notes_access {
                self.note_access(&inode, &mut state, node);
            }
            (count, state.attributes.size, state.base.tree.clone(), settled, gaps)
        };
        let is_settled = !gaps.is_empty() || !settled.is_empty();
        let _time = is_settled.then(|| self.platform.clock.timer(&self.counters.read_stored));
        if is_settled && offset == 0 {
            self.read_siblings_ahead(node, &inode, size);
        }
        let is_jump = is_settled && self.read_ahead(node, &inode, offset..offset + count as u64, size);
        self.settle_gaps(&tree, gaps, &mut settled).await?;
        // In the order of the file, which mostly is that of their packs.
        settled.sort_unstable_by_key(|(range, _)| range.start);
        if is_jump && count <= PARTS_BYTES_MAX {
            self.copy_parts(&settled, offset, self.options.read_ahead_bytes_max > 0, buffer).await?;
        } else if self.copy_chunks(&settled, offset, buffer).await.is_err() {
            // What is wanted may be good where its chunks are not.
            Box::pin(self.copy_parts(&settled, offset, false, buffer)).await?;
        }
        self.counters.read_bytes.add(count as u64);
        Ok(count)
    }

    /// Adds what the tree has in the gaps. Of extents that overlap nobody knows which one holds: they are an error (HF1007).
    pub(crate) async fn settle_gaps(
        &self,
        tree: &Root,
        gaps: Vec<Range<u64>>,
        settled: &mut Vec<Settled>,
    ) -> Result<(), FileError> {
        for gap in gaps {
            let mut covered = gap.start;
            for (range, extent) in self.base_extents(tree, gap.clone(), usize::MAX).await?.0 {
                let inside = range.start.max(gap.start)..range.end.min(gap.end);
                if inside.start < covered {
                    let error = Reader::new(&[]).refuse("extent beside the others");
                    return Err(corrupt("extent", format!("offset {}", range.start), error));
                }
                covered = inside.end;
                settled.push((inside.clone(), cut(&range, &extent, &inside)));
            }
        }
        Ok(())
    }

    /// As `copy_chunks`, for who wants little of each chunk.
    async fn copy_parts(
        &self,
        settled: &[Settled],
        offset: u64,
        reads_more: bool,
        buffer: &mut [u8],
    ) -> Result<(), FileError> {
        for (range, extent) in settled {
            let Extent::Chunk { address, skip, .. } = *extent else { continue };
            let at = usize::try_from(range.start - offset).expect("inside the buffer");
            let length = usize::try_from(range.end - range.start).expect("inside the buffer");
            let part = skip..skip.saturating_add(length as u32);
            let content = self.store.get_part(&address, part, reads_more).await?;
            if content.len() != length {
                let error = Reader::new(&content).refuse("extent within its chunk");
                return Err(corrupt("extent", address.to_string(), error));
            }
            buffer[at..at + length].copy_from_slice(&content);
        }
        Ok(())
    }

    /// Copies settled content to where it belongs in a buffer that begins at `offset`.
    async fn copy_chunks(&self, settled: &[Settled], offset: u64, buffer: &mut [u8]) -> Result<(), FileError> {
        let (mut addresses, mut numbers) = (Vec::new(), BTreeMap::new());
        let mut pieces: Vec<(usize, usize, Range<u64>)> = Vec::new();
        for (range, extent) in settled {
            if let Extent::Chunk { address, skip, .. } = *extent {
                let number = *numbers.entry(address).or_insert(addresses.len());
                if number == addresses.len() {
                    addresses.push(address);
                }
                pieces.push((number, skip as usize, range.clone()));
            }
        }
        // Of a chunk in several pieces all are copied at once.
        pieces.sort_by_key(|(number, _, _)| *number);
        let mut pieces = pieces.into_iter().peekable();
        for (step, addresses) in addresses.chunks(CHUNKS_PER_STEP).enumerate() {
            let contents = self.store.get_many(Class::Data, addresses).await?;
            for (index, content) in contents.iter().enumerate() {
                while let Some((_, skip, range)) =
                    pieces.next_if(|(number, _, _)| *number == step * CHUNKS_PER_STEP + index)
                {
                    let at = usize::try_from(range.start - offset).expect("inside the buffer");
                    let length = usize::try_from(range.end - range.start).expect("inside the buffer");
                    let source = content.get(skip..skip + length).ok_or_else(|| {
                        let error = Reader::new(content).refuse("extent within its chunk");
                        corrupt("extent", addresses[index].to_string(), error)
                    })?;
                    buffer[at..at + length].copy_from_slice(source);
                }
            }
        }
        Ok(())
    }

    /// Extents of a committed tree that overlap `range`, whole, about `limit` of them, and where to go on (`None`: done).
    pub(crate) async fn base_extents(
        &self,
        tree: &Root,
        range: Range<u64>,
        limit: usize,
    ) -> Result<(Vec<Settled>, Option<u64>), FileError> {
        let decode = |key: u64, bytes: &[u8]| {
            let wrong = |error| corrupt("extent", format!("offset {key}"), error);
            let (length, extent) = decode_tree_extent(bytes).map_err(wrong)?;
            Ok::<Settled, FileError>((key..key.saturating_add(length), extent))
        };
        let Some(last) = range.end.checked_sub(1).filter(|last| range.start <= *last) else {
            return Ok((Vec::new(), None));
        };
        let (entries, next) = self.trees.range(tree, range.start..=last, Start::AtOrBelow, limit).await?;
        let decoded = entries.into_iter().map(|(key, bytes)| decode(key, &bytes));
        // The first may end before the range begins.
        let found = decoded.filter(|found| !found.as_ref().is_ok_and(|(extent, _)| extent.end <= range.start));
        Ok((found.collect::<Result<_, _>>()?, next))
    }

    /// Tells of all of them, and holds some at a time.
    pub(crate) async fn each_base_extent(
        &self,
        tree: &Root,
        range: Range<u64>,
        tell: &mut (dyn FnMut(Range<u64>, Extent) + Send),
    ) -> Result<(), FileError> {
        let mut at = Some(range.start);
        while let Some(start) = at {
            let (found, next) = self.base_extents(tree, start..range.end, EXTENTS_PER_STEP).await?;
            found.into_iter().for_each(|(range, extent)| tell(range, extent));
            at = next;
        }
        Ok(())
    }

    /// The ranges in `range` that are no holes, in order, up to some end (the second value) that is `range.end` at the latest.
    pub(crate) async fn allocated_ranges(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
    ) -> Result<(Vec<Range<u64>>, u64), FileError> {
        let _use = self.grace.enter(inode.file.number);
        let mut allocated = Vec::new();
        let (tree, settled, mut gaps) = {
            let state = inode.state.lock();
            state.expect_there()?;
            let mut gaps = vec![range.clone()];
            let settled = gather(&state, &mut gaps, &mut |range, _| allocated.push(range));
            (state.base.tree.clone(), settled, gaps)
        };
        allocated.extend(settled.into_iter().filter(|(_, extent)| extent.is_allocated()).map(|(range, _)| range));
        let mut end = range.end;
        gaps.sort_unstable_by_key(|gap| gap.start);
        for gap in gaps {
            let (found, next) = self.base_extents(&tree, gap.clone(), EXTENTS_PER_STEP).await?;
            let inside = |range: &Range<u64>| range.start.max(gap.start)..range.end.min(gap.end);
            allocated.extend(found.iter().filter(|(_, extent)| extent.is_allocated()).map(|(range, _)| inside(range)));
            if let Some(next) = next {
                end = next;
                break;
            }
        }
        allocated.retain(|range| range.start < end);
        allocated.sort_unstable_by_key(|range| range.start);
        Ok((allocated, end))
    }

    /// The next data or hole at or after `offset`.
    ///
    /// # Errors
    /// `NoEntry`, or `NoSuchOffset` at or beyond the end, and where no data follows.
    pub async fn seek(&self, node: Node, offset: u64, what: Seek) -> Result<u64, FileError> {
        let inode = self.inode(node).await?;
        let size = {
            let state = inode.state.lock();
            state.expect_there()?;
            expect_regular(&state.attributes)?;
            state.attributes.size
        };
        if offset >= size {
            return Err(FileError::NoSuchOffset);
        }
        let mut at = offset;
        let mut window = SEEK_BYTES;
        while at < size {
            // The answer is near, mostly: look at little first.
            let (ranges, end) = self.allocated_ranges(&inode, at..size.min(at.saturating_add(window))).await?;
            window = window.saturating_mul(4);
            for range in ranges {
                match what {
                    Seek::Data => return Ok(range.start.max(offset)),
                    Seek::Hole if range.start > at => return Ok(at),
                    Seek::Hole => at = at.max(range.end),
                }
            }
            if what == Seek::Hole && at < end {
                return Ok(at);
            }
            at = end.max(at);
        }
        if what == Seek::Hole { Ok(size) } else { Err(FileError::NoSuchOffset) }
    }

    /// relatime: a read moves the access time when it is not newer than the last change, or a day old. Where readers are faster than what
    /// becomes of that, it is left to the next read: readers do not wait for commits.
    fn note_access(&self, inode: &Arc<Inode>, state: &mut State, node: Node) {
        const DAY: i64 = 24 * 60 * 60;
        if !self.options.access_times || node.view != crate::attributes::View::LIVE {
            return;
        }
        let now = self.now();
        let attributes = &mut state.attributes;
        let accessed = attributes.accessed;
        let is_old = accessed <= attributes.modified
            || accessed <= attributes.changed
            || now.seconds.saturating_sub(accessed.seconds) >= DAY;
        let is_much = || {
            self.unlogged_count.load(Ordering::Relaxed) > self.options.unlogged_files_max
                || self.is_commit_late(COMMITS_AHEAD)
        };
        if is_old && accessed != now && !is_much() {
            attributes.accessed = now;
            state.is_access_dirty = true;
            self.note_unlogged(inode);
        }
    }
}

pub(crate) fn expect_regular(attributes: &Attributes) -> Result<(), FileError> {
    match attributes.kind {
        Kind::Regular => Ok(()),
        Kind::Directory => Err(FileError::IsDirectory),
        _ => Err(FileError::Invalid("not a regular file")),
    }
}

/// Takes from the layers, newest first, what they have for `gaps`: bytes in memory go to `memory`, settled content is
/// returned, and what no layer has stays in `gaps`.
pub(crate) fn gather(
    state: &State,
    gaps: &mut Vec<Range<u64>>,
    memory: &mut dyn FnMut(Range<u64>, &[u8]),
) -> Vec<Settled> {
    let mut settled = Vec::new();
    let Some(whole) = gaps.first().map(|gap| gap.start..gaps[gaps.len() - 1].end) else { return settled };
    let mut bytes_of = |hit: Range<u64>, range: &Range<u64>, bytes: &[u8]| {
        let slice = |at: u64| usize::try_from(at - range.start).expect("a piece in memory is addressable");
        memory(hit.clone(), &bytes[slice(hit.start)..slice(hit.end)]);
    };
    cover_all(gaps, state.dirty.overlapping(whole.clone()), |hit, range, run| bytes_of(hit, range, run));
    if let Some(flushing) = &state.flushing {
        cover_all(gaps, flushing.runs.overlapping(whole.clone()), |hit, range, run| bytes_of(hit, range, &run.0));
    }
    for overlay in state.overlays() {
        cover_all(gaps, overlay.inlined.overlapping(whole.clone()), |hit, range, run| bytes_of(hit, range, run));
        cover_all(gaps, overlay.extents.overlapping(whole.clone()), |hit, range, extent| {
            let piece = cut(range, extent, &hit);
            settled.push((hit, piece));
        });
    }
    settled
}
