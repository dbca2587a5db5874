//! Warming up: what of trees and content later reads will want is read into memory, masses of it in the order in which it lies.
//!
//! 1. A walk: names and attributes lie in the nodes of trees that it reads, and those stay in memory. So do those of extents.
//! 2. The content of many files at a time is read by their order list (`store::ordered`), and kept.
//!
//! I-143 Nothing that a warm-up read goes for what it reads later: it ends when memory has no more room (W-5), and says so.
//!
//! Not here: what stays in memory afterwards (the store's cache); what the kernel keeps.

use std::collections::HashMap;

use base::id::ChunkAddress;
use foldhash::fast::FixedState;
use parking_lot::Mutex;
use store::{Class, Ordered, StoreError, Warming};

use super::read::Look;
use super::stat::TOGETHER;
use super::walk::{Walk, Walked};
use crate::attributes::{Kind, Node};
use crate::extent::Extent;
use crate::failure::FileError;
use crate::system::FileSystem;

/// Of the memory of all batches a warm-up takes this part at most.
const MEMORY_PARTS: u64 = 4;
/// Files up to this size are looked up together.
const TOGETHER_BYTES: u64 = 4 << 20;

/// How memory is warmed.
#[derive(Clone, Copy)]
pub struct BatchWarm<'a> {
    /// Names and attributes only.
    pub is_metadata_only: bool,
    /// Hears of how many files it is through with, and how many bytes of content they have. `false`: it is to end.
    pub tell: &'a (dyn Fn(u64, u64) -> bool + Sync),
    /// Hears of what cannot be read: of which root, at which path below it, and why.
    pub fail: &'a (dyn Fn(usize, &[u8], FileError) + Sync),
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchWarmReport {
    /// Regular files whose content is in memory; or whose attributes are, where that was all.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Names of other kinds.
    pub others: u64,
    /// Bytes of content of the files, holes included.
    pub bytes: u64,
    /// Of what cannot be read.
    pub failed: u64,
    /// Bytes that memory holds of what was read or used meanwhile, and that it may hold.
    pub held_bytes: u64,
    /// See there.
    pub room_bytes: u64,
    /// Whether it ended because there was no room for more.
    pub is_full: bool,
    /// Whether all of it is in memory, but for what cannot be read.
    pub is_done: bool,
}

/// A file that a walk found.
struct Found {
    root: usize,
    path: Box<[u8]>,
    node: Node,
    bytes: u64,
}

/// What came of a step of a walk.
enum Step {
    File(Found),
    Directory,
    Other,
    Failed(Box<[u8]>, FileError),
}

/// Files whose content is read together.
#[derive(Default)]
struct Part {
    files: Vec<Found>,
    /// Which chunks they have, each with the file's number.
    chunks: Vec<(ChunkAddress, u32)>,
    /// Files that are read by themselves.
    alone: Vec<Found>,
    path_bytes: u64,
}

impl Part {
    /// Bytes that it takes in memory, with the lists that reading it takes.
    fn bytes(&self) -> u64 {
        let lists = 2 * size_of::<ChunkAddress>() as u64 + Ordered::list_bytes();
        let of_chunk = size_of::<(ChunkAddress, u32)>() as u64 + lists;
        let files = (self.files.len() + self.alone.len()) * size_of::<Found>();
        files as u64 + self.path_bytes + self.chunks.len() as u64 * of_chunk
    }
}

/// A warm-up on its way.
struct Warm<'a> {
    system: &'a FileSystem,
    how: &'a BatchWarm<'a>,
    warming: Warming,
    memory: u64,
    part: Part,
    report: BatchWarmReport,
}

impl FileSystem {
    /// Reads trees into memory, so that who reads them next waits for no disk, as far as there is room. One at a time.
    ///
    /// # Errors
    /// Of a root, with its number: `NoEntry`, `Stale`, or the store's.
    pub async fn batch_warm(&self, roots: &[Node], how: &BatchWarm<'_>) -> Result<BatchWarmReport, (usize, FileError)> {
        let _one = self.warming.lock().await;
        let (_room, memory) = self.batch_room(self.options.batch_bytes_max / MEMORY_PARTS).await;
        let (warming, report) = (self.store.begin_warming(), BatchWarmReport::default());
        let mut warm = Warm { system: self, how, warming, memory, part: Part::default(), report };
        let mut goes_on = true;
        for (number, root) in roots.iter().enumerate() {
            goes_on = goes_on && warm.walk(number, *root).await.map_err(|error| (number, error))?;
        }
        // Also of the last part before there was no more room.
        let is_read = warm.read().await;
        let mut report = warm.report;
        report.is_done = goes_on && is_read;
        report.is_full = !report.is_done && warm.warming.is_full();
        (report.held_bytes, report.room_bytes) = warm.warming.bytes();
        self.counters.warmed_files.add(report.files);
        Ok(report)
    }
}

impl Warm<'_> {
    /// Whether it goes on.
    async fn walk(&mut self, root: usize, node: Node) -> Result<bool, FileError> {
        let found = Mutex::new(Vec::new());
        let mut tell = |walked: Result<Walked<'_>, (&[u8], FileError)>| {
            found.lock().push(step_of(root, walked));
            true
        };
        let mut walk = Walk::begin(self.system, node, &mut tell).await?;
        let mut has_more = true;
        while has_more {
            has_more = walk.step().await;
            let is_enough = !has_more || found.lock().len() >= TOGETHER;
            if is_enough {
                let steps = std::mem::take(&mut *found.lock());
                if !self.take(root, steps).await {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn goes_on(&self) -> bool {
        !self.system.is_ending() && (self.how.tell)(self.report.files, self.report.bytes)
    }

    fn fail(&mut self, root: usize, path: &[u8], error: FileError) {
        self.report.failed += 1;
        (self.how.fail)(root, path, error);
    }

    /// Some entries of a walk. Whether it goes on.
    async fn take(&mut self, root: usize, steps: Vec<Step>) -> bool {
        let mut files = Vec::new();
        for step in steps {
            match step {
                Step::File(found) if self.how.is_metadata_only => self.count(&found),
                Step::File(found) => files.push(found),
                Step::Directory => self.report.directories += 1,
                Step::Other => self.report.others += 1,
                Step::Failed(path, error) => self.fail(root, &path, error),
            }
        }
        self.add_files(files).await && !self.warming.is_full() && self.goes_on()
    }

    fn count(&mut self, found: &Found) {
        self.report.files += 1;
        self.report.bytes += found.bytes;
    }

    /// Looks up where the content of files lies. Whether it goes on.
    async fn add_files(&mut self, mut files: Vec<Found>) -> bool {
        files.sort_by_key(|found| found.node);
        let nodes: Vec<Node> = files.iter().map(|found| found.node).collect();
        let extents = self.extents_of(&nodes).await;
        for (found, extents) in files.into_iter().zip(extents) {
            self.part.path_bytes += found.path.len() as u64;
            match extents {
                Ok(Some(extents)) if !self.add(&extents) => return false,
                Ok(Some(_)) => self.part.files.push(found),
                Ok(None) => self.part.alone.push(found),
                Err(error) => self.note_failure(&found, error),
            }
            if self.part.bytes() >= self.memory / 4 && !self.read().await {
                return false;
            }
        }
        true
    }

    /// What removes a file meanwhile is no failure.
    fn note_failure(&mut self, found: &Found, error: FileError) {
        if !matches!(error, FileError::NoEntry | FileError::Stale) {
            self.fail(found.root, &found.path, error);
        }
    }

    /// What small files consist of, by the order of their nodes; `None`: it is read by itself.
    async fn extents_of(&self, nodes: &[Node]) -> Vec<Result<Option<Vec<Extent>>, FileError>> {
        let Some(first) = nodes.first() else { return Vec::new() };
        let system = self.system;
        let _use = system.grace.enter(first.file.number);
        let looks = system.look_together(nodes, TOGETHER_BYTES).await;
        system.read_trees_ahead(&looks).await;
        let mut all = Vec::with_capacity(looks.len());
        for look in looks {
            all.push(match look {
                Look::Known { tree, mut settled, gaps, .. } => {
                    let found = system.settle_gaps(&tree, gaps, &mut settled).await;
                    found.map(|()| Some(settled.into_iter().map(|(_, extent)| extent).collect()))
                }
                Look::Alone => Ok(None),
                Look::Failed(error) => Err(error),
            });
        }
        all
    }

    /// Takes in what the next file consists of; `false`: there is no room for all of it.
    fn add(&mut self, extents: &[Extent]) -> bool {
        let (first, number) = (self.part.chunks.len(), self.part.files.len() as u32);
        for extent in extents {
            let Extent::Chunk { address, chunk_bytes, .. } = extent else { continue };
            if !self.warming.add(address, *chunk_bytes) {
                self.part.chunks.truncate(first);
                return false;
            }
            self.part.chunks.push((*address, number));
        }
        true
    }

    /// Reads the part. Whether it goes on.
    async fn read(&mut self) -> bool {
        let Part { files, chunks, alone, .. } = std::mem::take(&mut self.part);
        let Some(failed) = self.read_wanted().await else { return false };
        let mut again = vec![false; files.len()];
        for (address, number) in &chunks {
            again[*number as usize] |= failed.contains_key(address);
        }
        let mut rest = alone;
        for (found, again) in files.into_iter().zip(again) {
            // It may have changed, and what it had may have been given back.
            if again { rest.push(found) } else { self.count(&found) }
        }
        for found in rest {
            match self.read_alone(&found).await {
                Ok(true) => self.count(&found),
                Ok(false) => return false,
                Err(error) => self.note_failure(&found, error),
            }
        }
        true
    }

    /// Reads what was taken in. What of it cannot be read, and why; `None`: it is to end.
    async fn read_wanted(&mut self) -> Option<HashMap<ChunkAddress, StoreError, FixedState>> {
        let addresses = self.warming.take();
        let mut failed = HashMap::default();
        let mut ordered = self.system.store.read_in_order(Class::Data, addresses.clone(), self.memory / 2);
        while let Some(got) = ordered.next().await {
            let address = &addresses[got.number];
            match got.content {
                Ok(content) => self.warming.keep(address, &content),
                Err(error) => drop(failed.insert(*address, error)),
            }
            drop(got.room);
            if !self.goes_on() {
                return None;
            }
        }
        self.warming.end_part();
        Some(failed)
    }

    /// Reads a file that is large, or of which something is in memory alone. `false`: there is no room for it, or it is to end.
    async fn read_alone(&mut self, found: &Found) -> Result<bool, FileError> {
        let inode = self.system.inode(found.node).await?;
        let mut next = Some(0);
        while let Some(start) = next.filter(|start| *start < found.bytes) {
            let (extents, rest) = {
                let _use = self.system.grace.enter(found.node.file.number);
                self.system.extents_from(&inode, start..found.bytes).await?
            };
            let fits = extents.iter().all(|(_, extent)| match extent {
                Extent::Chunk { address, chunk_bytes, .. } => self.warming.add(address, *chunk_bytes),
                _ => true,
            });
            let Some(failed) = self.read_wanted().await else { return Ok(false) };
            if let Some(error) = failed.into_values().next() {
                return Err(error.into());
            }
            if !fits {
                return Ok(false);
            }
            next = rest;
        }
        Ok(true)
    }
}

fn step_of(root: usize, walked: Result<Walked<'_>, (&[u8], FileError)>) -> Step {
    match walked {
        Ok(Walked { path, node, attributes }) => match attributes.kind {
            Kind::Regular => Step::File(Found { root, path: path.into(), node, bytes: attributes.size }),
            Kind::Directory => Step::Directory,
            _ => Step::Other,
        },
        Err((path, error)) => Step::Failed(path.into(), error),
    }
}
