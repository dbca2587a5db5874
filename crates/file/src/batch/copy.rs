//! Copying a tree within the file system: names and attributes are made anew, many files to a frame, and content is shared.
//!
//! The walk reads names, inodes and extents, and no content. What it met becomes units, written as any other; their content is chunks that
//! are there, which [`FileSystem::write_unit`] asks for again when it holds its locks (I-117): what the source has dropped meanwhile is
//! looked up once more.
//!
//! I-134 What a copy has of a file is of one moment, its size apart: a tree that changes meanwhile is copied as `cp` would, file by file.
//!
//! Not here: sharing a part of one file (`write`), a whole tree in constant time (`branch`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;

use base::id::FileId;
use foldhash::fast::FixedState;
use store::Class;

use super::put::Stored;
use super::unit::{BatchBudget, BatchContent, BatchEntry, BatchWrite, BatchWriteReport};
use super::write::{Looked, address};
use crate::attributes::{AttributeChange, Attributes, Kind, Node, TimeChange};
use crate::failure::FileError;
use crate::format::Content;
use crate::inode::Inode;
use crate::system::{FileSystem, SNAPSHOTS};

/// Entries of a directory that are read at a time.
const LISTED: usize = 1000;
/// Extents of a file that goes into a unit with others; one of more is made empty, and gets its content range by range.
const EXTENTS_MAX: usize = 4096;

/// Times that what has gone meanwhile is looked for again.
const TRIES_MAX: u32 = 8;

/// How a copy is made.
#[derive(Clone, Copy)]
pub struct BatchCopy<'a> {
    /// `None`: owners, modes, times, extended attributes and links within the tree stay. Else each name is a new file of this user, as if
    /// it were made by a call of its own.
    pub anew: Option<Anew>,
    /// Hears of files and bytes done.
    pub tell: &'a (dyn Fn(u64, u64) + Sync),
}

/// Whose the files of a copy are that does not keep what its source has.
#[derive(Clone, Copy, Debug)]
pub struct Anew {
    /// Owner.
    pub uid: u32,
    /// Group, where the directory gives none.
    pub gid: u32,
    /// Bits to take away from modes, where the directory has no default access list.
    pub umask: u32,
}

/// What a copy came to.
#[derive(Clone, Debug, Default)]
pub struct BatchCopyReport {
    /// Files and directories that were made.
    pub files: u64,
    /// Bytes of their content, all of it shared.
    pub bytes: u64,
    /// What could not be copied, by path from the parent of the copy, and why.
    pub failed: Vec<(Vec<u8>, FileError)>,
}

/// Entries that go together.
#[derive(Default)]
struct Unit {
    entries: Vec<BatchEntry>,
    /// Of each entry, if it has content.
    sources: Vec<Option<Node>>,
    stored: Vec<Stored>,
    /// Files that get their content later, by entry.
    large: Vec<(usize, Node)>,
    bytes: u64,
    budget: BatchBudget,
}

/// A directory whose entries are to come.
struct Waiting {
    node: Node,
    /// Of the copy.
    path: Vec<u8>,
    /// Where to go on.
    after: u64,
    /// The unit that made it.
    made_in: u64,
}

/// A copy under way.
struct Copy<'a> {
    system: &'a FileSystem,
    to: Arc<Inode>,
    unit: Unit,
    /// How many were written.
    units: u64,
    waiting: Vec<Waiting>,
    /// The first name of each file that has several.
    linked: HashMap<FileId, Vec<u8>, FixedState>,
    /// Directories that later units put something in: their times come once more, at the end.
    again: BTreeMap<Vec<u8>, BatchEntry>,
    report: BatchCopyReport,
    how: BatchCopy<'a>,
}

impl FileSystem {
    /// Copies a file, or a directory with everything below it, of the present or of a snapshot: content is shared. Accepted when it returns.
    ///
    /// # Errors
    /// `Exists` and what else a new name can meet, `Invalid` for a directory that is to go below itself, or the store's. What cannot be
    /// copied of a tree is in the report.
    pub async fn batch_copy(
        &self,
        from: Node,
        to_parent: FileId,
        to_name: &[u8],
        how: &BatchCopy<'_>,
    ) -> Result<BatchCopyReport, FileError> {
        if from.file == SNAPSHOTS {
            return Err(FileError::NotSupported("the list of snapshots is no directory to copy: copy one of them"));
        }
        self.check_new_name(to_parent, to_name)?;
        let to = self.live(to_parent).await?;
        self.free_cookie(&to, to_name).await?;
        self.refuse_into_itself(from, to_parent).await?;
        let mut copy = Copy {
            system: self,
            to,
            unit: Unit::default(),
            units: 0,
            waiting: Vec::new(),
            linked: HashMap::default(),
            again: BTreeMap::new(),
            report: BatchCopyReport::default(),
            how: *how,
        };
        copy.add(from, to_name.to_vec()).await?;
        while let Some(waiting) = copy.waiting.pop() {
            if self.is_ending() {
                return Err(FileError::Busy("the node is being closed"));
            }
            copy.go_on(waiting).await?;
        }
        copy.write().await?;
        copy.set_times().await?;
        Ok(copy.report)
    }

    /// What would never end.
    async fn refuse_into_itself(&self, from: Node, to: FileId) -> Result<(), FileError> {
        let (mut at, mut passed) = (to, BTreeSet::new());
        while from == Node::live(from.file) && passed.insert(at) {
            if at == from.file {
                return Err(FileError::Invalid("a directory cannot be copied into itself"));
            }
            at = self.live(at).await?.state.lock().attributes.parent;
        }
        Ok(())
    }

    /// The extents of a file, and what memory has of it as chunks or bytes. The caller is known to run (I-90).
    async fn content_of(&self, node: Node, to: &Attributes) -> Result<Stored, FileError> {
        let inode = self.inode(node).await?;
        let size = inode.state.lock().attributes.size;
        let (settled, memory) = self.layers(&inode, 0..size).await?;
        let mut content = self.settle_memory(to.resilience, memory).await?;
        content.extend(
            settled.into_iter().map(|(range, extent)| (range.start, Content::Extent(range.end - range.start, extent))),
        );
        content.sort_unstable_by_key(|(offset, _)| *offset);
        Ok(Stored { content, resilience: None })
    }

    /// The same of a file whose content may have gone: what is not to be found is read, and so is all of it if it `is_suspect`. An error
    /// tells of what is lost.
    async fn content_again(&self, node: Node, to: &Attributes, is_suspect: bool) -> Result<Stored, FileError> {
        let stored = self.content_of(node, to).await?;
        for address in stored.content.iter().filter_map(|(_, content)| address(content)) {
            if is_suspect || !self.store.contains(&address) {
                self.store.get(Class::Data, &address).await?;
            }
        }
        Ok(stored)
    }
}

impl Copy<'_> {
    /// The next entries of a directory.
    async fn go_on(&mut self, mut waiting: Waiting) -> Result<(), FileError> {
        let listed = match self.system.read_directory(waiting.node, waiting.after, LISTED).await {
            Ok(listed) => listed,
            Err(error) => return self.fail(waiting.path, error),
        };
        let Some(last) = listed.last() else { return Ok(()) };
        waiting.after = last.cookie;
        let files: Vec<FileId> = listed.iter().map(|entry| entry.node.file).collect();
        self.system.load_neighbours(waiting.node.view, &files).await;
        let (node, path, made_in) = (waiting.node, waiting.path.clone(), waiting.made_in);
        self.waiting.push(waiting);
        for entry in listed.into_iter().filter(|entry| entry.node.file != SNAPSHOTS) {
            let child = [&path[..], b"/", &entry.name].concat();
            if let Err(error) = self.add(entry.node, child.clone()).await {
                self.fail(child, error)?;
            }
        }
        if self.how.anew.is_none() && made_in < self.units && !self.again.contains_key(&path) {
            let entry = self.entry(node, path.clone()).await?.0;
            self.again.insert(path, entry);
        }
        Ok(())
    }

    /// What cannot be read of a tree is told, and the rest goes on.
    fn fail(&mut self, path: Vec<u8>, error: FileError) -> Result<(), FileError> {
        match error {
            // Stale: the snapshot went.
            FileError::NoSpace | FileError::ReadOnly | FileError::Stale => Err(error),
            // It went meanwhile.
            FileError::NoEntry => Ok(()),
            error => {
                self.report.failed.push((path, error));
                Ok(())
            }
        }
    }

    /// Adds something to the unit; writes that before if it is full.
    async fn add(&mut self, node: Node, path: Vec<u8>) -> Result<(), FileError> {
        let (mut entry, attributes) = self.entry(node, path.clone()).await?;
        if self.how.anew.is_none() && attributes.kind != Kind::Directory && attributes.links > 1 {
            if let Some(first) = self.linked.get(&node.file) {
                entry.content = BatchContent::Link(first.clone());
            } else {
                self.linked.insert(node.file, path.clone());
            }
        }
        let has_content = matches!(&entry.content, BatchContent::Data(_, size) if *size > 0);
        let mut stored = Stored::default();
        if has_content {
            let _use = self.system.grace.enter(node.file.number);
            stored = self.system.content_of(node, &attributes).await?;
        }
        let is_large = stored.content.len() > EXTENTS_MAX;
        if is_large {
            (stored, entry.content) = (Stored::default(), BatchContent::None);
        }
        if !self.unit.budget.take_stored(&entry, &stored.content) {
            self.write().await?;
            if !self.unit.budget.take_stored(&entry, &stored.content) {
                return Err(FileError::Invalid("more than a frame of one file"));
            }
        }
        let number = self.unit.entries.len();
        if is_large {
            self.unit.large.push((number, node));
        } else if has_content {
            self.unit.bytes += attributes.size;
        }
        if attributes.kind == Kind::Directory {
            self.waiting.push(Waiting { node, path, after: 0, made_in: self.units });
        }
        self.unit.entries.push(entry);
        self.unit.sources.push(Some(node).filter(|_| has_content && !is_large));
        self.unit.stored.push(stored);
        Ok(())
    }

    /// What a file is, as an entry.
    async fn entry(&self, node: Node, path: Vec<u8>) -> Result<(BatchEntry, Attributes), FileError> {
        let inode = self.system.inode(node).await?;
        if self.how.anew.is_none() {
            self.system.load_xattrs(&inode).await?;
        }
        let state = inode.state.lock();
        if state.is_gone {
            return Err(FileError::NoEntry);
        }
        let attributes = state.attributes.clone();
        let content = match attributes.kind {
            Kind::Regular => BatchContent::Data(Vec::new(), attributes.size),
            Kind::Symlink => BatchContent::Target(state.base.target.clone()),
            _ => BatchContent::None,
        };
        let Attributes { kind, modified, accessed, device, .. } = attributes;
        let (mode, uid, gid, xattrs) = match self.how.anew {
            Some(Anew { uid, gid, .. }) => (attributes.mode & 0o777, uid, gid, Vec::new()),
            None => {
                let xattrs = state.xattrs.iter().flatten().map(|(name, value)| (name.clone(), value.clone()));
                (attributes.mode, attributes.uid, attributes.gid, xattrs.collect())
            }
        };
        Ok((BatchEntry { path, kind, mode, uid, gid, modified, accessed, device, xattrs, content }, attributes))
    }

    /// Writes the unit.
    async fn write(&mut self) -> Result<(), FileError> {
        let mut unit = std::mem::take(&mut self.unit);
        if unit.entries.is_empty() {
            return Ok(());
        }
        let system = self.system;
        let count = unit.entries.len() as u64;
        let _room = system.admit_unit((0, 0), (unit.budget.taken_of_frame(), count)).await?;
        let how = self.written_as();
        let mut tries = 0;
        let report = loop {
            let stored = std::mem::take(&mut unit.stored);
            let looked = Looked { directories: BTreeMap::from([(self.to.file, self.to.clone())]), stored };
            let gone = match system.write_unit(self.to.file, &unit.entries, looked, &how).await? {
                ControlFlow::Break(report) => break report,
                ControlFlow::Continue(gone) => gone,
            };
            let count = unit.entries.len();
            unit = self.look_again(unit, gone).await?;
            tries += u32::from(unit.entries.len() == count);
            if tries == TRIES_MAX {
                return Err(FileError::Busy("what is copied changes all the time"));
            }
        };
        self.units += 1;
        self.note(&unit.entries, &report);
        self.report.bytes += unit.bytes;
        for (number, node) in unit.large {
            if let Ok(file) = report.fates[number] {
                self.copy_large(node, file, &unit.entries[number]).await?;
            }
        }
        (self.how.tell)(self.report.files, self.report.bytes);
        Ok(())
    }

    fn written_as(&self) -> BatchWrite {
        let how = BatchWrite { preserve: true, ..BatchWrite::default() };
        self.how.anew.map_or(how, |Anew { umask, .. }| BatchWrite { preserve: false, umask, ..how })
    }

    /// The unit with the content that its files have now, where some of one has gone; without what is no more, and what is lost.
    async fn look_again(&mut self, unit: Unit, gone: usize) -> Result<Unit, FileError> {
        let to = self.to.state.lock().attributes.clone();
        let system = self.system;
        let _use = system.grace.enter(to.file.number);
        let Unit { entries, sources, large, bytes, budget, .. } = unit;
        let large: BTreeMap<usize, Node> = large.into_iter().collect();
        let mut again = Unit { bytes, budget, ..Unit::default() };
        for (number, (entry, source)) in entries.into_iter().zip(sources).enumerate() {
            let found = match source {
                Some(node) => system.content_again(node, &to, number == gone).await,
                None => Ok(Stored::default()),
            };
            let stored = match found {
                Ok(stored) => stored,
                Err(error) => {
                    if let BatchContent::Data(_, size) = entry.content {
                        again.bytes = again.bytes.saturating_sub(size);
                    }
                    self.fail(entry.path, error)?;
                    continue;
                }
            };
            again.large.extend(large.get(&number).map(|node| (again.entries.len(), *node)));
            again.entries.push(entry);
            again.sources.push(source);
            again.stored.push(stored);
        }
        Ok(again)
    }

    fn note(&mut self, entries: &[BatchEntry], report: &BatchWriteReport) {
        self.report.files += report.made;
        for (entry, fate) in entries.iter().zip(&report.fates) {
            if let Err(error) = fate {
                self.report.failed.push((entry.path.clone(), error.clone()));
            }
        }
    }

    /// The content of a file that was made empty.
    async fn copy_large(&mut self, from: Node, to: FileId, entry: &BatchEntry) -> Result<(), FileError> {
        let mut at = 0;
        loop {
            match self.system.copy_range(from, at, to, at, u64::MAX - at).await? {
                0 => break,
                copied => at += copied,
            }
        }
        self.report.bytes += at;
        let (modified, accessed) = (Some(TimeChange::At(entry.modified)), Some(TimeChange::At(entry.accessed)));
        let times = AttributeChange { modified, accessed, ..AttributeChange::default() };
        self.system.set_attributes(to, &times).await.map(drop)
    }

    /// Of directories that got something after they were made.
    async fn set_times(&mut self) -> Result<(), FileError> {
        let files = self.report.files;
        for (_, entry) in std::mem::take(&mut self.again) {
            if !self.unit.budget.take_stored(&entry, &[]) {
                self.write().await?;
                let _ = self.unit.budget.take_stored(&entry, &[]);
            }
            self.unit.entries.push(entry);
            self.unit.sources.push(None);
            self.unit.stored.push(Stored::default());
        }
        self.write().await?;
        self.report.files = files;
        Ok(())
    }
}
