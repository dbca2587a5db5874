//! Reading many files (BFOr of BFO, MSST'19).
//!
//! 1. What do they want? The inodes of many are looked up together, past the table, then where their content lies.
//! 2. All chunks are read in the order in which they lie ([`Store::read_in_order`]), and a file is handed out when the last of its chunks
//!    came. Files are handed out one after the other, each whole.
//!    A larger file lies in several runs, on all disks, and between them lie runs of its neighbours: so these are read some files at a time, as many as
//!    memory holds whole, the next ones while those before are handed out. Each run is long enough to cost little.
//!
//! A batch whose list would not fit its memory goes in parts, each a pass over the disks. Read by themselves, after a part, are: large files, which
//! are fast so; files with content that no chunk has yet; files that changed since 1 and those that lost a chunk meanwhile; and those
//! that would have to be kept too long.
//!
//! I-122 The content of a file is of one moment of the batch, but for one that changes each time it is read, which is told as torn: chunks never
//!       change, and whatever changed between 1 and handing it out is read again.
//! I-123 While a batch waits for who takes the files it is not known to run (I-90). So a pass of reclaim may take a chunk that it has not read
//!       yet, and no file has any more: it is absent then, and the file is looked up again (I-95).
//! I-124 A batch takes no more memory than it reserved, whatever its size: for its list a quarter, and the rest for content.
//!
//! [`Store::read_in_order`]: store::Store::read_in_order
//! Not here: names (`walk`), who may read what (`node`). Access times stay as they are.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

use base::id::Version;
use bytes::Bytes;
use store::{Class, Ordered, OrderedReport, StoreError};
use tokio::sync::SemaphorePermit;

use super::order::{Came, Part, Piece, Wanted};
use super::stat::TOGETHER;
use crate::attributes::{Attributes, Node, View};
use crate::failure::FileError;
use crate::format::{InodeValue, Root, Roots};
use crate::inode::State;
use crate::read::{Settled, expect_regular, gather};
use crate::system::{BATCH_BYTES_MIN, FileSystem, batch_units, corrupt};

/// What a file is read by at a time that is read by itself.
const WINDOW_BYTES: u64 = 2 << 20;
/// How often such a file is read because it changed meanwhile.
const TRIES: usize = 3;
/// Files of more bytes than this are read some at a time: a disk's run is as long.
const SCATTERED_BYTES_MIN: u64 = 1 << 20;

/// Ready when there is room for more; `false`: nothing more is wanted.
pub type Taken<'a> = Pin<Box<dyn Future<Output = bool> + Send + 'a>>;

/// Who takes what a batch reads. Files come one after the other, in whatever order.
pub trait BatchSink: Sync {
    /// The content of a file comes next, all of it before that of another. If this comes a second time, the file has changed, and what came
    /// of it before counts for nothing.
    fn begin(&self, index: usize, attributes: &Attributes);
    /// Content of that file, behind what came of it before. What lies in between, and behind the last of it up to the size, are zeroes.
    fn piece(&self, index: usize, offset: u64, content: Bytes) -> Taken<'_>;
    /// That was all of it; or why it cannot be read, all of it or the rest.
    fn done(&self, index: usize, fate: BatchFate);
}

/// What came of a file that was to be read.
#[derive(Clone, Debug)]
pub enum BatchFate {
    /// All of it came, of one moment.
    Whole(Attributes),
    /// All of it came, and it was written to each time that it was read: parts may be older than others. The attributes are of before.
    Torn(Attributes),
    /// It cannot be read.
    Failed(FileError),
}

impl From<FileError> for BatchFate {
    fn from(error: FileError) -> BatchFate {
        BatchFate::Failed(error)
    }
}

/// How a batch is read.
#[derive(Clone, Copy)]
pub struct BatchRead<'a> {
    /// Memory that it may take, in bytes.
    pub memory: u64,
    /// Who takes it.
    pub sink: &'a dyn BatchSink,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchReadReport {
    /// Files that were handed out whole.
    pub files: u64,
    /// Files that cannot be read.
    pub failed: u64,
    /// Files that came torn.
    pub torn: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Parts that it went in, each a pass over the disks.
    pub parts: u64,
    /// Files that were read by themselves, for whatever reason.
    pub alone: u64,
    /// Times that a file was read again because it had changed.
    pub reread: u64,
    /// What was read in the order in which it lies.
    pub ordered: OrderedReport,
    /// Whether every file has met its fate. `false`: nothing more was wanted, or the file system is being closed.
    pub is_done: bool,
}

/// A batch on its way.
struct Batch<'a> {
    system: &'a FileSystem,
    nodes: &'a [Node],
    sink: &'a dyn BatchSink,
    memory: u64,
    report: BatchReadReport,
}

/// What phase 1 found.
#[derive(Default)]
struct Found {
    /// What is read in one pass over the disks.
    part: Part,
    /// Larger files, some in each, and how much they have in the last.
    groups: Vec<Part>,
    last_bytes: u64,
}

/// What is known of a file before its content is looked for.
pub(super) enum Look {
    /// It is as the tree says in the gaps, and as the journal does elsewhere.
    Known {
        attributes: Attributes,
        version: Version,
        tree: Root,
        settled: Vec<Settled>,
        gaps: Vec<Range<u64>>,
    },
    /// It is read by itself.
    Alone,
    Failed(FileError),
}

impl FileSystem {
    /// Waits for memory for a batch, and says how much: as much as it wants, but no more than half of what is free, so that some whose callers take
    /// nothing for hours keep nobody else from reading.
    pub(crate) async fn batch_room(&self, wanted: u64) -> (SemaphorePermit<'_>, u64) {
        let _time = self.platform.clock.timer(&self.counters.batch_wait);
        loop {
            let free = (self.batches.available_permits() as u64) << 10;
            let memory = wanted.min(free / 2).max(BATCH_BYTES_MIN);
            let units = batch_units(memory);
            match self.batches.try_acquire_many(units) {
                Ok(room) => return (room, memory),
                // Somebody came in between.
                Err(_) if memory > BATCH_BYTES_MIN => {}
                Err(_) => {
                    let _waiting = self.batches_waiting.wait();
                    return (self.batches.acquire_many(units).await.expect("never closed"), memory);
                }
            }
        }
    }

    /// Batches that wait for memory, which others have.
    #[must_use]
    pub fn batches_waiting(&self) -> usize {
        self.batches_waiting.count()
    }

    /// Reads the content of many files, each as of one moment, in the order in which it lies on the disks. Whoever waits, waits for room
    /// first: batches share `batch_bytes_max`.
    pub async fn batch_read(&self, nodes: &[Node], how: &BatchRead<'_>) -> BatchReadReport {
        let (_room, memory) = self.batch_room(how.memory).await;
        let _time = self.platform.clock.timer(&self.counters.batch_read);
        let report = BatchReadReport::default();
        let mut batch = Batch { system: self, nodes, sink: how.sink, memory, report };
        batch.report.is_done = batch.run().await;
        self.counters.batch_read_files.add(batch.report.files + batch.report.torn);
        self.counters.batch_read_bytes.add(batch.report.bytes);
        self.counters.batch_rereads.add(batch.report.reread);
        self.counters.batch_torn.add(batch.report.torn);
        batch.report
    }
}

impl Found {
    /// Bytes that it takes in memory, beside content.
    fn bytes(&self) -> u64 {
        self.part.bytes() + self.groups.iter().map(Part::bytes).sum::<u64>()
    }

    /// The part that a file of this size belongs to, if no group may have more than so many bytes.
    fn part_for(&mut self, size: u64, group_bytes_max: u64) -> &mut Part {
        if size < SCATTERED_BYTES_MIN {
            return &mut self.part;
        }
        self.last_bytes += size;
        if self.groups.is_empty() || self.last_bytes > group_bytes_max {
            self.groups.push(Part::default());
            self.last_bytes = size;
        }
        self.groups.last_mut().expect("one was made")
    }
}

impl Batch<'_> {
    /// Whether all of it was done.
    async fn run(&mut self) -> bool {
        // Files are in the order of their numbers mostly as they were made, and lie so.
        let together = usize::try_from(self.memory / 32).expect("it is of memory");
        for start in (0..self.nodes.len()).step_by(together) {
            let end = self.nodes.len().min(start + together);
            let mut indexes: Vec<u32> =
                (start..end).map(|index| u32::try_from(index).expect("no list is so long")).collect();
            indexes.sort_unstable_by_key(|index| self.nodes[*index as usize]);
            let mut at = 0;
            while at < indexes.len() {
                let roots = self.system.roots.lock().clone();
                let mut found = Found::default();
                at += self.look_for(&indexes[at..], &mut found).await;
                self.report.parts += 1;
                if !self.read(found, &roots).await {
                    return false;
                }
            }
        }
        true
    }

    /// Phase 1: a part of some files, as many as its list may have. How many.
    async fn look_for(&self, indexes: &[u32], found: &mut Found) -> usize {
        let mut at = 0;
        while at < indexes.len() && found.bytes() < self.memory / 4 {
            let group = &indexes[at..indexes.len().min(at + TOGETHER)];
            at += self.look_at(group, found).await;
        }
        at
    }

    async fn look_at(&self, group: &[u32], found: &mut Found) -> usize {
        let nodes: Vec<Node> = group.iter().map(|index| self.nodes[*index as usize]).collect();
        let _use = self.system.grace.enter(nodes[0].file.number);
        let looks = self.system.look_together(&nodes, self.memory / 8).await;
        self.system.read_trees_ahead(&looks).await;
        for ((number, index), look) in group.iter().enumerate().zip(looks) {
            if found.bytes() >= self.memory / 4 && number > 0 {
                return number;
            }
            match look {
                Look::Known { attributes, version, tree, mut settled, gaps } => {
                    match self.system.settle_gaps(&tree, gaps, &mut settled).await {
                        Ok(()) => {
                            let part = found.part_for(attributes.size, self.memory / 8);
                            part.add(*index, nodes[number], (attributes, version), settled);
                        }
                        Err(error) => found.part.failed.push((*index, error)),
                    }
                }
                Look::Alone => found.part.alone.push(*index),
                Look::Failed(error) => found.part.failed.push((*index, error)),
            }
        }
        group.len()
    }

    /// Phase 2. Whether it goes on.
    async fn read(&mut self, found: Found, roots: &Arc<Roots>) -> bool {
        let mut groups = found.groups.into_iter();
        let mut next = Some(self.begin(found.part, self.memory / 2));
        while let Some((part, ordered, memory)) = next {
            next = groups.next().map(|group| self.begin(group, self.memory / 4));
            if !self.read_part(part, ordered, memory, roots).await {
                return false;
            }
        }
        true
    }

    /// Begins to read a part, in so much memory.
    fn begin(&self, mut part: Part, memory: u64) -> (Part, Ordered, u64) {
        let ordered = self.system.store.read_in_order(Class::Data, part.take_addresses(), memory);
        (part, ordered, memory)
    }

    /// Hands a part out. Whether it goes on.
    async fn read_part(&mut self, mut part: Part, mut ordered: Ordered, memory: u64, roots: &Arc<Roots>) -> bool {
        while let Some(got) = ordered.next().await {
            let came = part.came(got.number, got.content, got.room, memory / 2);
            if let Came::Whole(file, pieces) = came
                && !self.hand_out(&file, pieces, roots, &mut part.alone).await
            {
                return false;
            }
        }
        self.report.ordered.add(&ordered.report());
        for file in std::mem::take(&mut part.empty) {
            if !self.hand_out(&file, Ok(Vec::new()), roots, &mut part.alone).await {
                return false;
            }
        }
        for (index, error) in std::mem::take(&mut part.failed) {
            self.done(index, error.into());
        }
        part.alone.sort_unstable();
        for index in part.alone {
            self.report.alone += 1;
            if !self.read_alone(index).await {
                return false;
            }
        }
        true
    }

    /// Hands out a file whose content is there; or puts it to those that are read by themselves. Whether it goes on.
    async fn hand_out(
        &mut self,
        file: &Wanted,
        pieces: Result<Vec<Piece>, FileError>,
        roots: &Arc<Roots>,
        alone: &mut Vec<u32>,
    ) -> bool {
        let is_gone = matches!(pieces, Err(FileError::Store(StoreError::Absent { .. })));
        if is_gone || !self.system.is_as_looked_at(file, roots).await {
            self.report.reread += 1;
            alone.push(file.index);
            return true;
        }
        let pieces = match pieces {
            Ok(pieces) => pieces,
            Err(error) => {
                self.done(file.index, error.into());
                return true;
            }
        };
        self.sink.begin(file.index as usize, &file.attributes);
        for Piece { offset, content, .. } in pieces {
            if !self.give(file.index, offset, content).await {
                return false;
            }
        }
        self.done(file.index, BatchFate::Whole(file.attributes.clone()));
        true
    }

    async fn give(&mut self, index: u32, offset: u64, content: Bytes) -> bool {
        self.report.bytes += content.len() as u64;
        self.sink.piece(index as usize, offset, content).await && !self.system.is_ending()
    }

    fn done(&mut self, index: u32, fate: BatchFate) {
        match fate {
            BatchFate::Whole(_) => self.report.files += 1,
            BatchFate::Torn(_) => self.report.torn += 1,
            BatchFate::Failed(_) => self.report.failed += 1,
        }
        self.sink.done(index as usize, fate);
    }

    /// Reads a file window by window, and again if it changed meanwhile. Whether the batch goes on.
    async fn read_alone(&mut self, index: u32) -> bool {
        match self.read_steadily(index, self.nodes[index as usize]).await {
            Ok(Some(fate)) => self.done(index, fate),
            Ok(None) => return false,
            Err(error) => self.done(index, error.into()),
        }
        true
    }

    /// `None`: nothing more is wanted.
    async fn read_steadily(&mut self, index: u32, node: Node) -> Result<Option<BatchFate>, FileError> {
        let mut tries = TRIES;
        loop {
            let before = self.begin_alone(index, node).await?;
            if !self.read_windows(index, node, before.size).await? {
                return Ok(None);
            }
            // An error also for one that is no more: nobody knows whether it changed before that.
            let now = self.system.attributes(node).await?;
            let is_torn = (now.size, now.changed) != (before.size, before.changed);
            tries -= 1;
            match is_torn {
                false => return Ok(Some(BatchFate::Whole(before))),
                true if tries == 0 => return Ok(Some(BatchFate::Torn(before))),
                true => self.report.reread += 1,
            }
        }
    }

    async fn begin_alone(&self, index: u32, node: Node) -> Result<Attributes, FileError> {
        let attributes = self.system.attributes(node).await?;
        expect_regular(&attributes)?;
        self.sink.begin(index as usize, &attributes);
        Ok(attributes)
    }

    async fn read_windows(&mut self, index: u32, node: Node, size: u64) -> Result<bool, FileError> {
        let mut at = 0;
        while at < size {
            let window = at..size.min(at + WINDOW_BYTES);
            let (ranges, end) = match size {
                // By one read, and so of one moment.
                0..=WINDOW_BYTES => (vec![window], size),
                _ => {
                    let inode = self.system.inode(node).await?;
                    self.system.allocated_ranges(&inode, window).await?
                }
            };
            for range in ranges {
                if !self.read_range(index, node, range).await? {
                    return Ok(false);
                }
            }
            at = end.max(at + 1);
        }
        Ok(true)
    }

    async fn read_range(&mut self, index: u32, node: Node, range: Range<u64>) -> Result<bool, FileError> {
        let mut bytes = vec![0; usize::try_from(range.end - range.start).expect("within a window")];
        let count = self.system.read_noting(node, range.start, &mut bytes, false).await?;
        bytes.truncate(count);
        Ok(self.give(index, range.start, Bytes::from(bytes)).await)
    }
}

impl FileSystem {
    /// What is known of many files, by the order of their nodes (I-120). The caller is known to run.
    pub(super) async fn look_together(&self, nodes: &[Node], large: u64) -> Vec<Look> {
        let mut looks: Vec<Option<Look>> = nodes.iter().map(|node| self.look_in_table(*node, large)).collect();
        let missing: Vec<usize> = (0..nodes.len()).filter(|number| looks[*number].is_none()).collect();
        let roots = self.roots.lock().clone();
        let branch = |number: &usize| (nodes[*number].view, nodes[*number].file.branch);
        for group in missing.chunk_by(|a, b| branch(a) == branch(b)) {
            let first = nodes[group[0]];
            let Ok(catalog) = self.catalog(&roots, first.view, first.file.branch).await else { continue };
            let numbers: Vec<u64> = group.iter().map(|number| nodes[*number].file.number).collect();
            let mut tell = |at: usize, value: Option<&[u8]>| {
                looks[group[at]] = value.map(|value| look_at_value(nodes[group[at]], value, large));
            };
            // What cannot be read so is left to who reads it by itself.
            drop(self.trees.each(&catalog, &numbers, &mut tell).await);
        }
        looks.into_iter().map(|look| look.unwrap_or(Look::Alone)).collect()
    }

    fn look_in_table(&self, node: Node, large: u64) -> Option<Look> {
        let inode = self.table.find(node)?;
        let state = inode.state.lock();
        Some(match expect_regular(&state.attributes) {
            _ if state.is_gone => Look::Failed(FileError::NoEntry),
            Err(error) => Look::Failed(error),
            Ok(()) if has_bytes(&state) || state.attributes.size > large => Look::Alone,
            Ok(()) => {
                let mut gaps = gaps_of(state.attributes.size);
                let settled = gather(&state, &mut gaps, &mut |_, _| ());
                let (attributes, version) = (self.seen_attributes(&state), state.version);
                Look::Known { attributes, version, tree: state.base.tree.clone(), settled, gaps }
            }
        })
    }

    /// Begins to read the top nodes of the trees that will be looked at.
    pub(super) async fn read_trees_ahead(&self, looks: &[Look]) {
        let top = |look: &Look| match look {
            Look::Known { tree: Root::Node { address, .. }, gaps, .. } if !gaps.is_empty() => Some(*address),
            _ => None,
        };
        let tops: Vec<_> = looks.iter().filter_map(top).collect();
        if tops.len() > 1 {
            self.store.prefetch(Class::Metadata, &tops).await;
        }
    }

    /// Whether a file is as it was when it was looked at, with these roots.
    async fn is_as_looked_at(&self, file: &Wanted, roots: &Arc<Roots>) -> bool {
        if file.node.view != View::LIVE {
            return true;
        }
        let _use = self.grace.enter(file.node.file.number);
        if let Some(inode) = self.table.find(file.node) {
            let state = inode.state.lock();
            return !state.is_gone && state.version == file.version && !state.has_unlogged();
        }
        let now = self.roots.lock().clone();
        // What changed since, and is not in the table, was committed since.
        Arc::ptr_eq(&now, roots) || self.is_catalogued_as(file, &now).await
    }

    async fn is_catalogued_as(&self, file: &Wanted, roots: &Roots) -> bool {
        let Ok(catalog) = self.catalog(roots, View::LIVE, file.node.file.branch).await else { return false };
        let value = self.load(&catalog, file.node.file).await;
        value.is_ok_and(|value| value.is_some_and(|value| value.version == file.version))
    }
}

/// Whether it has content that is in no chunk.
fn has_bytes(state: &State) -> bool {
    state.has_unlogged() || state.overlays().any(|overlay| !overlay.inlined.is_empty())
}

/// All of a file.
fn gaps_of(size: u64) -> Vec<Range<u64>> {
    if size > 0 { vec![0..size] } else { Vec::new() }
}

/// What a catalog has of a file.
fn look_at_value(node: Node, value: &[u8], large: u64) -> Look {
    let wrong = |error| corrupt("inode", format!("catalog entry of {}", node.file), error);
    let InodeValue { attributes, version, base } = match InodeValue::decode(node.file, value).map_err(wrong) {
        Ok(value) => value,
        Err(error) => return Look::Failed(error),
    };
    match expect_regular(&attributes) {
        Err(error) => Look::Failed(error),
        Ok(()) if attributes.size > large => Look::Alone,
        Ok(()) => {
            let gaps = gaps_of(attributes.size);
            Look::Known { attributes, version, tree: base.tree, settled: Vec::new(), gaps }
        }
    }
}
