//! Copying a tree within the file system: names and attributes are made anew, many files to a frame, and content is shared.
//!
//! The walk reads names, inodes and extents, and no content. What it met becomes units, written as any other; their content is chunks that
//! are there, which [`FileSystem::write_unit`] asks for again when it holds its locks (I-117): what the source has dropped meanwhile is
//! looked up once more.
//!
//! I-134 What a copy has of a file is of one moment, its size apart: a tree that changes meanwhile is copied as `cp` would, file by file.
//!       A file of too many extents for a unit is copied in steps, each of one moment.
//!
//! Such a large file comes when the unit before it is written, so that its directory is there, and has its name when it is whole (I-151).
//! What fails, of a unit or of a large file, is told of each file by its own name, and the rest is copied. What ends a copy before its end (a full
//! disk, a snapshot that went, who wants no more of it) leaves what was written, and names all that is missing: each file that was looked at, and
//! each directory of which not all was.
//!
//! Not here: sharing a part of one file (`write`), a whole tree in constant time (`branch`).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use base::id::FileId;
use base::limits::BATCH_BYTES_MAX;
use foldhash::fast::FixedState;
use store::{Class, Resilience};

use super::put::Stored;
use super::unit::{BatchBudget, BatchContent, BatchEntry, BatchWrite, BatchWriteReport};
use super::walk::is_removal;
use super::write::{Looked, address};
use crate::attributes::{AttributeChange, Attributes, Kind, Node, TimeChange};
use crate::failure::FileError;
use crate::format::Content;
use crate::inode::Inode;
use crate::system::{FileSystem, SNAPSHOTS};
use crate::write::Layers;

/// Entries of a directory that are read at a time.
const LISTED: usize = 1000;
/// Extents of a file that goes into a unit with others, holes among them; one of more is copied by itself.
const EXTENTS_MAX: usize = 4096;

/// What cannot be copied is named by so many paths; all of it is counted.
const FAILED_MAX: usize = 100_000;
/// First names of files that have several, which are remembered: so many bytes of them, and a quarter of the write buffer where that is more.
const LINKED_BYTES_MIN: u64 = 16 << 20;
/// What one takes beside its path.
const LINKED_BYTES: u64 = 100;
/// Most bytes of a path in a copy: a directory waits with its path while those below it are listed, so memory goes by the square of this.
const PATH_BYTES_MAX: usize = 16 << 10;
/// Why a copy would never end.
const INTO_ITSELF: &str = "a directory cannot be copied into itself";
/// Why a file of several names is one of its own in the copy.
const NO_ROOM_FOR_LINKS: &str =
    "memory holds no more first names of files that have several: it was copied as a file of its own";

/// Times that what has gone meanwhile is looked for again.
const TRIES_MAX: u32 = 8;

/// How a copy is made.
#[derive(Clone, Copy)]
pub struct BatchCopy<'a> {
    /// `None`: owners, modes, times, extended attributes and links within the tree stay. Else each name is a new file of this user, as if
    /// it were made by a call of its own.
    pub anew: Option<Anew>,
    /// Hears of files and bytes done; `false`: no more.
    pub tell: &'a (dyn Fn(u64, u64) -> bool + Sync),
    /// Hears of what was written, a unit or a large file at a time: who looks into the copy before its end may have seen less. The copy holds
    /// neither locks nor room then.
    pub written: &'a (dyn Fn(&[BatchEntry], &BatchWriteReport) + Sync),
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
    /// What could not be copied, by path from the parent of the copy, and why: the first of them, [`failures`](Self::failures) counts all.
    pub failed: Vec<(Vec<u8>, FileError)>,
    /// How many could not be copied.
    pub failures: u64,
    /// Units that were written: after a crash each is there, or nothing of it.
    pub units: u64,
    /// What ended it before its end. A directory that is in `failed` for that has only a part of what it should have.
    pub ended: Option<FileError>,
}

/// Entries that go together.
#[derive(Default)]
struct Unit {
    entries: Vec<BatchEntry>,
    /// Of each entry, if it has content.
    sources: Vec<Option<Node>>,
    stored: Vec<Stored>,
    /// Further names of those that come next: they follow them.
    behind: Vec<BatchEntry>,
    /// Files that have become too large for a unit since they were added.
    grown: Vec<(Node, BatchEntry)>,
    bytes: u64,
    budget: BatchBudget,
    /// Whether its entries are directories that have their names already.
    is_named: bool,
}

impl Unit {
    fn push(&mut self, entry: BatchEntry, source: Option<Node>, stored: Stored) {
        self.entries.push(entry);
        self.sources.push(source);
        self.stored.push(stored);
    }
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

/// The first name of a file that has several.
struct First {
    path: Vec<u8>,
    /// Names that are still to come, as far as it is known.
    further: u32,
}

/// First names, of files whose further ones may come.
#[derive(Default)]
struct Linked {
    names: HashMap<FileId, First, FixedState>,
    bytes: u64,
    bytes_max: u64,
}

impl Linked {
    /// The first name, for a further one.
    fn first_of(&mut self, file: FileId) -> Option<Vec<u8>> {
        let first = self.names.get_mut(&file)?;
        first.further -= 1;
        if first.further > 0 {
            return Some(first.path.clone());
        }
        let First { path, .. } = self.names.remove(&file)?;
        self.bytes -= path.len() as u64 + LINKED_BYTES;
        Some(path)
    }

    /// Remembers one of so many names; `false`: there is no room for it.
    fn remember(&mut self, file: FileId, path: &[u8], links: u32) -> bool {
        let bytes = path.len() as u64 + LINKED_BYTES;
        let has_room = self.bytes + bytes <= self.bytes_max;
        if has_room && links > 1 {
            self.bytes += bytes;
            self.names.insert(file, First { path: path.to_vec(), further: links - 1 });
        }
        has_room
    }
}

/// A copy under way.
struct Copy<'a> {
    system: &'a FileSystem,
    to: Arc<Inode>,
    unit: Unit,
    /// How many were written, or not.
    units: u64,
    waiting: Vec<Waiting>,
    linked: Linked,
    /// Directories that could not be made.
    unmade: HashSet<Vec<u8>, FixedState>,
    /// Nobody wants more of it.
    is_stopped: bool,
    /// Directories that later units put something in: their times come once more, at the end.
    again: BTreeMap<Vec<u8>, BatchEntry>,
    report: BatchCopyReport,
    how: BatchCopy<'a>,
}

impl FileSystem {
    /// Copies a file, or a directory with everything below it, of the present or of a snapshot: content is shared. Accepted when it returns.
    ///
    /// # Errors
    /// `Exists` and what else a new name can meet, `Invalid` for a directory that is to go below itself, or the store's: nothing was made. What
    /// cannot be copied of a tree is in the report, and so is what ended it when some of it was there.
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
            linked: Linked { bytes_max: LINKED_BYTES_MIN.max(self.options.dirty_bytes_max / 4), ..Linked::default() },
            unmade: HashSet::default(),
            is_stopped: false,
            again: BTreeMap::new(),
            report: BatchCopyReport::default(),
            how: *how,
        };
        match copy.all(from, to_name).await {
            Ok(()) => {}
            Err(error) if copy.report.files == 0 => return Err(error),
            Err(error) => copy.end(error).await,
        }
        Ok(copy.report)
    }

    /// What would never end.
    async fn refuse_into_itself(&self, from: Node, to: FileId) -> Result<(), FileError> {
        let (mut at, mut passed) = (to, BTreeSet::new());
        while from == Node::live(from.file) && passed.insert(at) {
            if at == from.file {
                return Err(FileError::Invalid(INTO_ITSELF));
            }
            at = self.live(at).await?.state.lock().attributes.parent;
        }
        Ok(())
    }

    /// The extents of a file, and what memory has of it as chunks or bytes; `None` if it is too large for a unit. No further than the copy will be long:
    /// what was appended since would be there when that grows. The caller is known to run (I-90).
    async fn content_of(&self, node: Node, (as_of, size): (Resilience, u64)) -> Result<Option<Stored>, FileError> {
        let inode = self.inode(node).await?;
        let size = inode.state.lock().attributes.size.min(size);
        let layers = self.layers_within(&inode, 0..size, (EXTENTS_MAX, BATCH_BYTES_MAX)).await?;
        let Some(Layers { settled, memory, .. }) = layers else { return Ok(None) };
        let mut content = self.settle_memory(as_of, memory).await?;
        content.extend(
            settled.into_iter().map(|(range, extent)| (range.start, Content::Extent(range.end - range.start, extent))),
        );
        content.sort_unstable_by_key(|(offset, _)| *offset);
        Ok(Some(Stored { content, resilience: None }).filter(|stored| stored.content.len() <= EXTENTS_MAX))
    }

    /// The same of a file whose content may have gone: what is not to be found is read, and so is all of it if it `is_suspect`. An error
    /// tells of what is lost.
    async fn content_again(
        &self,
        node: Node,
        to: (Resilience, u64),
        is_suspect: bool,
    ) -> Result<Option<Stored>, FileError> {
        let stored = self.content_of(node, to).await?;
        let content = stored.iter().flat_map(|stored| &stored.content);
        for address in content.filter_map(|(_, content)| address(content)) {
            if is_suspect || !self.store.contains(&address) {
                self.store.get(Class::Data, &address).await?;
            }
        }
        Ok(stored)
    }

    /// The content of a large file, step by step; its bytes.
    async fn copy_content(&self, from: Node, to: FileId) -> Result<u64, FileError> {
        let mut at = 0;
        loop {
            if self.is_ending() {
                return Err(FileError::Busy("the node is being closed"));
            }
            let copied = self.copy_range(from, at, to, at, u64::MAX - at).await?;
            at += copied;
            if copied == 0 {
                return Ok(at);
            }
        }
    }
}

/// Whether it is the end of everything else, too. Stale: the snapshot went.
fn is_end(error: &FileError) -> bool {
    matches!(error, FileError::NoSpace | FileError::ReadOnly | FileError::Stale)
}

impl Copy<'_> {
    async fn all(&mut self, from: Node, to_name: &[u8]) -> Result<(), FileError> {
        self.add(from, to_name.to_vec()).await?;
        while let Some(waiting) = self.waiting.pop() {
            let end = match () {
                () if self.system.is_ending() => Some("the node is being closed"),
                () if self.is_stopped => Some("the copy was stopped"),
                () => None,
            };
            if let Some(why) = end {
                self.waiting.push(waiting);
                return Err(FileError::Busy(why));
            }
            self.go_on(waiting).await?;
        }
        while !self.unit.entries.is_empty() {
            self.write().await?;
        }
        self.set_times().await
    }

    /// Names what is missing when not all was copied.
    async fn end(&mut self, error: FileError) {
        for entry in std::mem::take(&mut self.unit).entries {
            self.note_failed(entry.path, entry.kind, error.clone());
        }
        for waiting in std::mem::take(&mut self.waiting) {
            // It was made, and lacks some of what should be in it.
            self.note_failed(waiting.path, Kind::Regular, error.clone());
        }
        // What is there is like its source, if that can be had.
        if !self.system.is_ending() {
            let _ = self.set_times().await;
        }
        self.report.ended = Some(error);
    }

    /// The next entries of a directory.
    async fn go_on(&mut self, mut waiting: Waiting) -> Result<(), FileError> {
        let listed = match self.system.read_directory(waiting.node, waiting.after, LISTED).await {
            Ok(listed) => listed,
            Err(error) if is_removal(&error, waiting.node) => return Ok(()),
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
            // Somebody has moved it here since: what is copied next would be the copy.
            if entry.node == Node::live(self.to.file) {
                self.fail(child, FileError::Invalid(INTO_ITSELF))?;
                continue;
            }
            let Err(error) = self.add(entry.node, child.clone()).await else { continue };
            // What went before it was copied was not there. What has its name still is missed.
            let may_have_gone = is_removal(&error, entry.node);
            if !may_have_gone || self.system.is_named(node, entry.node, &entry.name).await {
                self.fail(child, error)?;
            }
        }
        let is_again = self.again.contains_key(&path) || self.unmade.contains(&path);
        if self.how.anew.is_none() && made_in < self.units && !is_again {
            match self.entry(node, path.clone()).await {
                Ok((entry, _)) => drop(self.again.insert(path, entry)),
                // It has gone since it was listed.
                Err(error) if is_removal(&error, node) => {}
                Err(error) => self.fail(path, error)?,
            }
        }
        Ok(())
    }

    /// What cannot be read or written of a tree is told, and the rest goes on, unless nothing can any more.
    fn fail(&mut self, path: Vec<u8>, error: FileError) -> Result<(), FileError> {
        let is_end = is_end(&error);
        self.note_failed(path, Kind::Regular, error.clone());
        if is_end { Err(error) } else { Ok(()) }
    }

    /// Counts and names what failed. Of kind `Directory`: one that was not made, which gets no times in the end.
    fn note_failed(&mut self, path: Vec<u8>, kind: Kind, error: FileError) {
        if kind == Kind::Directory {
            self.again.remove(&path);
            self.unmade.insert(path.clone());
        }
        self.report.failures += 1;
        if self.report.failed.len() < FAILED_MAX {
            self.report.failed.push((path, error));
        }
    }

    fn tell(&mut self) {
        self.is_stopped |= !(self.how.tell)(self.report.files, self.report.bytes);
    }

    /// Adds something to the unit; writes that before if it is full. An error is of what is added, or ends the copy.
    async fn add(&mut self, node: Node, path: Vec<u8>) -> Result<(), FileError> {
        if path.len() > PATH_BYTES_MAX {
            return Err(FileError::NameTooLong);
        }
        let (mut entry, attributes) = self.entry(node, path.clone()).await?;
        let has_several = self.how.anew.is_none() && attributes.kind != Kind::Directory && attributes.links > 1;
        let first = if has_several { self.linked.first_of(node.file) } else { None };
        let first_of = if has_several && first.is_none() { attributes.links } else { 0 };
        if let Some(first) = first {
            entry.content = BatchContent::Link(first);
        }
        let has_content = matches!(&entry.content, BatchContent::Data(_, size) if *size > 0);
        let mut stored = Stored::default();
        if has_content {
            let found = {
                let _use = self.system.grace.enter(node.file.number);
                self.system.content_of(node, (attributes.resilience, attributes.size)).await?
            };
            match found {
                Some(found) => stored = found,
                None => {
                    self.write().await?;
                    return self.add_large(node, entry, first_of).await;
                }
            }
        }
        while !self.unit.budget.take_stored(&entry, &stored.content) {
            // What follows the one that is written may be in the next.
            if self.unit.entries.is_empty() {
                return Err(FileError::Invalid("more than a frame of one file"));
            }
            self.write().await?;
        }
        if has_content {
            self.unit.bytes += attributes.size;
        }
        self.remember(node, &path, first_of);
        if attributes.kind == Kind::Directory {
            self.waiting.push(Waiting { node, path, after: 0, made_in: self.units });
        }
        self.unit.push(entry, Some(node).filter(|_| has_content), stored);
        Ok(())
    }

    /// Remembers the first of so many names; of none, or one, there is nothing to remember.
    fn remember(&mut self, node: Node, path: &[u8], first_of: u32) {
        if first_of > 1 && !self.linked.remember(node.file, path, first_of) {
            self.note_failed(path.to_vec(), Kind::Regular, FileError::NotSupported(NO_ROOM_FOR_LINKS));
        }
    }

    /// Copies a file that is too large for a unit; the first of so many names. If it fails, the next one is.
    async fn add_large(&mut self, node: Node, entry: BatchEntry, first_of: u32) -> Result<(), FileError> {
        match self.copy_large(node, &entry).await {
            Ok(bytes) => {
                self.report.files += 1;
                self.report.bytes += bytes;
                self.remember(node, &entry.path, first_of);
                self.tell();
                Ok(())
            }
            Err(error) => self.fail(entry.path, error),
        }
    }

    /// Its bytes. It has its name when all of it is there, and what it keeps of its source; nothing remains of one that fails.
    async fn copy_large(&self, from: Node, entry: &BatchEntry) -> Result<u64, FileError> {
        let system = self.system;
        let to = system.bear_nameless(self.to.file, entry, &self.written_as()).await?;
        let bytes = system.copy_content(from, to.file()).await?;
        if self.how.anew.is_none() {
            let (modified, accessed) = (Some(TimeChange::At(entry.modified)), Some(TimeChange::At(entry.accessed)));
            let times = AttributeChange { modified, accessed, ..AttributeChange::default() };
            system.set_attributes(to.file(), &times).await?;
        }
        let report = to.finish(entry).await?;
        (self.how.written)(std::slice::from_ref(entry), &report);
        Ok(bytes)
    }

    /// What a file is, as an entry.
    async fn entry(&self, node: Node, path: Vec<u8>) -> Result<(BatchEntry, Attributes), FileError> {
        let inode = self.system.inode(node).await?;
        if self.how.anew.is_none() {
            self.system.load_xattrs_of(node, &inode).await?;
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

    /// Writes the unit, and tells what fails of it. An error ends the copy.
    async fn write(&mut self) -> Result<(), FileError> {
        let mut unit = std::mem::take(&mut self.unit);
        if unit.entries.is_empty() {
            return Ok(());
        }
        let written = self.write_unit(&mut unit).await;
        self.units += 1;
        match written {
            Ok(mut report) => {
                // One that was moved away meanwhile is made anew, and has a name that nobody heard of.
                if unit.is_named && report.made == 0 {
                    report.homes.fill(FileId::NONE);
                }
                (self.how.written)(&unit.entries, &report);
                self.note(&unit.entries, &report);
                self.report.units += 1;
                self.report.bytes += unit.bytes;
            }
            Err(error) => {
                let grown = unit.grown.iter().filter(|_| is_end(&error)).map(|(_, entry)| entry.clone());
                let failed: Vec<_> = unit.entries.into_iter().chain(unit.behind.drain(..)).chain(grown).collect();
                failed.into_iter().for_each(|entry| self.note_failed(entry.path, entry.kind, error.clone()));
                if is_end(&error) {
                    return Err(error);
                }
            }
        }
        self.tell();
        let mut grown = unit.grown.into_iter();
        while let Some((node, entry)) = grown.next() {
            if let Err(error) = self.add_large(node, entry, 0).await {
                let behind = unit.behind.into_iter();
                let failed = grown.map(|(_, entry)| entry).chain(behind);
                failed.for_each(|entry| self.note_failed(entry.path, entry.kind, error.clone()));
                return Err(error);
            }
        }
        // With the next unit, which they begin.
        for entry in unit.behind {
            let has_room = self.unit.budget.take_stored(&entry, &[]);
            assert!(has_room, "they were a part of one");
            self.unit.push(entry, None, Stored::default());
        }
        Ok(())
    }

    async fn write_unit(&mut self, unit: &mut Unit) -> Result<BatchWriteReport, FileError> {
        let system = self.system;
        let count = unit.entries.len() as u64;
        let _room = system.admit_unit((0, 0), (unit.budget.taken_of_frame(), count)).await?;
        let how = self.written_as();
        let mut tries = 0;
        while tries < TRIES_MAX {
            let (count, stored) = (unit.entries.len(), std::mem::take(&mut unit.stored));
            let looked = Looked { directories: BTreeMap::from([(self.to.file, self.to.clone())]), stored };
            match system.write_unit(self.to.file, &unit.entries, looked, &how).await? {
                ControlFlow::Break(report) => return Ok(report),
                ControlFlow::Continue(gone) => self.look_again(unit, gone).await?,
            }
            tries += u32::from(unit.entries.len() == count);
        }
        Err(FileError::Busy("what is copied changes all the time"))
    }

    fn written_as(&self) -> BatchWrite {
        let how = BatchWrite { preserve: true, ..BatchWrite::default() };
        self.how.anew.map_or(how, |Anew { umask, .. }| BatchWrite { preserve: false, umask, ..how })
    }

    /// Gives the unit the content that its files have now, where some of one has gone; takes out what is no more, and what is lost.
    async fn look_again(&mut self, unit: &mut Unit, gone: usize) -> Result<(), FileError> {
        let resilience = self.to.state.lock().attributes.resilience;
        let system = self.system;
        let _use = system.grace.enter(self.to.file.number);
        let entries = std::mem::take(&mut unit.entries).into_iter().zip(std::mem::take(&mut unit.sources));
        for (number, (entry, source)) in entries.enumerate() {
            let Some(node) = source else {
                match &entry.content {
                    BatchContent::Link(first) if unit.grown.iter().any(|(_, grown)| grown.path == *first) => {
                        unit.behind.push(entry);
                    }
                    _ => unit.push(entry, None, Stored::default()),
                }
                continue;
            };
            let size = if let BatchContent::Data(_, size) = entry.content { size } else { 0 };
            let found = system.content_again(node, (resilience, size), number == gone).await;
            if let Ok(Some(stored)) = found {
                unit.push(entry, source, stored);
                continue;
            }
            if let BatchContent::Data(_, size) = entry.content {
                unit.bytes = unit.bytes.saturating_sub(size);
            }
            match found {
                Ok(_) => unit.grown.push((node, entry)),
                // What went meanwhile, and was not of a snapshot, was not there.
                Err(error) if is_removal(&error, node) => {}
                Err(error) => self.fail(entry.path, error)?,
            }
        }
        Ok(())
    }

    fn note(&mut self, entries: &[BatchEntry], report: &BatchWriteReport) {
        self.report.files += report.made;
        for (entry, fate) in entries.iter().zip(&report.fates) {
            if let Err(error) = fate {
                self.note_failed(entry.path.clone(), entry.kind, error.clone());
            }
        }
    }

    /// Of directories that got something after they were made.
    async fn set_times(&mut self) -> Result<(), FileError> {
        let files = self.report.files;
        for (_, entry) in std::mem::take(&mut self.again) {
            if !self.unit.budget.take_stored(&entry, &[]) {
                self.write().await?;
                let _ = self.unit.budget.take_stored(&entry, &[]);
            }
            self.unit.is_named = true;
            self.unit.push(entry, None, Stored::default());
        }
        self.write().await?;
        self.report.files = files;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use base::id::FileId;

    use super::{LINKED_BYTES, Linked};

    #[test]
    fn first_names_are_remembered_until_the_last_one_came_and_no_more_than_there_is_room_for() {
        let file = |number| FileId { number, ..FileId::ROOT };
        let mut linked = Linked { bytes_max: 2 * (LINKED_BYTES + 1), ..Linked::default() };
        assert!(linked.remember(file(1), b"a", 3) && linked.remember(file(2), b"b", 2));
        assert!(!linked.remember(file(3), b"c", 2), "there is no room");
        assert_eq!(linked.first_of(file(3)), None);
        assert_eq!(linked.first_of(file(1)).as_deref(), Some(&b"a"[..]));
        assert_eq!(linked.first_of(file(2)).as_deref(), Some(&b"b"[..]));
        assert_eq!(linked.first_of(file(2)), None, "all of its names came");
        assert!(linked.remember(file(3), b"c", 2));
        assert_eq!(linked.first_of(file(1)).as_deref(), Some(&b"a"[..]));
        assert_eq!(linked.first_of(file(3)).as_deref(), Some(&b"c"[..]));
        assert!(linked.names.is_empty() && linked.bytes == 0);
    }
}
