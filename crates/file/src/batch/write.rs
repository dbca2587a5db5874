//! Writing a unit (BFOw of BFO, MSST'19): all content as one run, then everything else by one journal frame.
//!
//! 1. Without locks: which directories does it go to? Its content becomes chunks, and these durable.
//! 2. With the operation locks of those directories: what comes of each entry? The records of what is new are made.
//! 3. One transaction: what is new becomes known, and last of all the names in directories that were there.
//!
//! I-116 A unit is one frame: after a crash all of it is there, or none. Whatever can fail of it is looked at before anything is recorded;
//!       what was stored for a unit that fails has no name, and the next pass of reclaim gives it back.
//! I-117 Between the storing of its content and its records a unit waits for locks, so it is not known to run then (I-90): with the locks
//!       held it runs again, asks for each chunk (I-95), and begins anew where one has gone, or where an entry has a place only now. What went
//!       and was stored again by somebody else is made durable first.
//! I-118 The operation locks of all directories that were there and that a path of the unit goes through are held, in the order of their
//!       ids: none of them goes or moves, but for the directory that the unit is written to, which is looked at under the namespace lock.
//! I-119 What a unit changes of files that were there stays locked until its frame is logged: else who changes one of them alone could log
//!       the next version of it first, and replay would refuse that. What is new has no name that a reader could come by before all of it
//!       is there.
//!
//! Not here: what a unit comes to (`plan`), content that is there already (`copy`).

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use base::id::FileId;
use base::limits::FRAME_BYTES_MAX;
use base::time::Timestamp;
use parking_lot::MutexGuard;

use super::plan::{Born, Directory, Plan, Relinked, Target};
use super::put::Stored;
use super::unit::{BatchBudget, BatchEntry, BatchWrite, BatchWriteReport};
use crate::admission::UnitAdmitted;
use crate::attributes::Attributes;
use crate::directory::expect_directory;
use crate::extent::Extent;
use crate::failure::{FileError, is_loss};
use crate::format::{Change, Content, Entry};
use crate::inode::{Inode, State};
use crate::namespace::counted;
use crate::system::{FileSystem, Transaction, Unborn};

/// A record of attributes, a link count less, and the end of a file.
const RELINK_BYTES: usize = 256;
/// The records of a small file, about.
const BORN_BYTES: usize = 400;
/// A record of attributes.
const ATTRIBUTES_BYTES: usize = 192;
/// A record of a name, without it.
const NAME_BYTES: usize = 96;

/// A unit whose content is stored, and that has no names yet.
pub struct BatchUnit {
    parent: FileId,
    entries: Vec<BatchEntry>,
    how: BatchWrite,
    bytes: u64,
    looked: Looked,
    began: Duration,
    _room: UnitAdmitted,
}

/// What is known of a unit before its directories are locked.
pub(super) struct Looked {
    /// The directories that were there.
    pub(super) directories: BTreeMap<FileId, Arc<Inode>>,
    /// Of each entry.
    pub(super) stored: Vec<Stored>,
}

impl Looked {
    fn has_chunks(&self) -> bool {
        self.stored.iter().flat_map(|stored| &stored.content).any(|(_, content)| address(content).is_some())
    }
}

impl FileSystem {
    /// Writes a unit of files, directories and names, paths seen from `parent`; what is in a directory comes after it. Accepted when it
    /// returns, local after a [`FileSystem::sync`] of anything; after a crash all of it is there, or none. What fails of an entry is in the
    /// report: `Exists` where something is that is not to be replaced, `NoEntry` and `NotDirectory` where its path leads nowhere.
    ///
    /// # Errors
    /// `Invalid` for a unit beyond [`BatchBudget`], `NotDirectory` and `NoEntry` of `parent`, `NoSpace`, or the store's: nothing was done then.
    pub async fn batch_write(
        &self,
        parent: FileId,
        unit: Vec<BatchEntry>,
        how: &BatchWrite,
    ) -> Result<BatchWriteReport, FileError> {
        let unit = self.batch_begin(parent, unit, how).await?;
        self.batch_finish(unit).await
    }

    /// The first part of it: the unit's content is on its way to the disks. While [`FileSystem::batch_finish`] waits for those, that of the next
    /// can follow; what has no place yet, because the unit that makes it is not finished, has one then.
    ///
    /// # Errors
    /// As there.
    pub async fn batch_begin(
        &self,
        parent: FileId,
        entries: Vec<BatchEntry>,
        how: &BatchWrite,
    ) -> Result<BatchUnit, FileError> {
        let mut budget = BatchBudget::default();
        if !entries.iter().all(|entry| budget.take(entry)) {
            return Err(FileError::Invalid("a unit of more than a frame or 64 MiB of content: write it as several"));
        }
        let began = self.platform.clock.elapsed();
        let bytes = entries.iter().map(BatchEntry::content_bytes).sum();
        let count = entries.len() as u64;
        let (room, claim) = self.admit_unit((bytes, count), (budget.taken_of_frame(), count)).await?;
        let looked = self.store_with_room(parent, &entries, how).await?;
        // Its content is on the disks, and what is free was measured.
        drop(claim);
        Ok(BatchUnit { parent, entries, how: *how, bytes, looked, began, _room: room })
    }

    /// The second part of [`FileSystem::batch_write`]. Whoever begins several units finishes them in that order: one may wait for the room
    /// that another has.
    ///
    /// # Errors
    /// As there.
    pub async fn batch_finish(&self, unit: BatchUnit) -> Result<BatchWriteReport, FileError> {
        let BatchUnit { parent, entries, how, bytes, mut looked, began, _room } = unit;
        let report = loop {
            if looked.has_chunks() {
                // What came of it nobody needs otherwise.
                self.settle_with_room().await.inspect_err(|_| self.note_dropped(bytes))?;
            }
            match self.write_unit(parent, &entries, looked, &how).await? {
                ControlFlow::Break(report) => break report,
                ControlFlow::Continue(_) => looked = self.store_with_room(parent, &entries, &how).await?,
            }
        };
        self.counters.batch_bytes.add(bytes);
        self.counters.batch_write.record_time(self.platform.clock.elapsed().saturating_sub(began));
        Ok(report)
    }

    /// Makes what was stored durable, and tries once more if the disks are full of what nobody needs. What of it is lost (K-12)
    /// [`FileSystem::hold_content`] finds.
    async fn settle_with_room(&self) -> Result<(), FileError> {
        let settle = async || match self.store.settle(self.store.moment()).await.map_err(FileError::from) {
            Err(error) if error.is_dropped() => Ok(()),
            settled => settled,
        };
        match settle().await {
            Err(FileError::NoSpace) if Box::pin(self.make_room()).await? => settle().await,
            settled => settled,
        }
    }

    /// Step 1, and once more if the disks are full of what nobody needs.
    async fn store_with_room(
        &self,
        parent: FileId,
        unit: &[BatchEntry],
        how: &BatchWrite,
    ) -> Result<Looked, FileError> {
        let mut looked = self.store_unit(parent, unit, how).await;
        // Who asks for room next asks this.
        self.measure_space();
        if matches!(looked, Err(FileError::NoSpace)) && Box::pin(self.make_room()).await? {
            looked = self.store_unit(parent, unit, how).await;
            self.measure_space();
        }
        looked
    }

    /// Step 1.
    async fn store_unit(&self, parent: FileId, unit: &[BatchEntry], how: &BatchWrite) -> Result<Looked, FileError> {
        let _use = self.grace.enter(parent.number);
        let mut plan = Plan::begin(self, self.live(parent).await?, how).await?;
        let mut resilience = Vec::with_capacity(unit.len());
        for (number, entry) in unit.iter().enumerate() {
            resilience.push(plan.look(number, entry).await);
        }
        let stored = self.put_unit(unit, &resilience).await;
        if stored.is_err() {
            // What came of it nobody needs.
            self.note_dropped(unit.iter().map(BatchEntry::content_bytes).sum());
        }
        Ok(Looked { directories: directories_of(&plan), stored: stored? })
    }

    /// Steps 2 and 3. `Continue`: some content of this entry has gone meanwhile.
    pub(super) async fn write_unit(
        &self,
        parent: FileId,
        unit: &[BatchEntry],
        looked: Looked,
        how: &BatchWrite,
    ) -> Result<ControlFlow<BatchWriteReport, usize>, FileError> {
        let Looked { mut directories, stored } = looked;
        loop {
            let mut locks = Vec::with_capacity(directories.len());
            for inode in directories.values() {
                locks.push(inode.operation.lock().await);
            }
            // No lock is waited for from here on (I-90).
            let _use = self.grace.enter(parent.number);
            let mut plan = Plan::begin(self, self.live(parent).await?, how).await?;
            let mut targets = Vec::with_capacity(unit.len());
            for (number, entry) in unit.iter().enumerate() {
                targets.push(plan.add(number, entry).await);
            }
            let found = directories_of(&plan);
            if !found.keys().all(|file| directories.contains_key(file)) {
                // A directory on the way is another one now.
                drop(locks);
                directories = found;
                continue;
            }
            if how.atomic && targets.iter().any(Result::is_err) {
                self.note_dropped(stored.iter().map(Stored::bytes).sum());
                let fates = targets.into_iter().map(|target| target.map(|_| FileId::NONE)).collect();
                let homes = vec![FileId::NONE; unit.len()];
                return Ok(ControlFlow::Break(BatchWriteReport { fates, homes, is_done: false, made: 0 }));
            }
            if let Some(gone) = self.hold_content(&plan, unit, &stored).await? {
                return Ok(ControlFlow::Continue(gone));
            }
            return self.carry_out(&plan, unit, targets, stored).map(ControlFlow::Break);
        }
    }

    /// Sees to it that what is needed of the content stays until it has a name (I-117), and lies on as many disks as it should. The first
    /// entry of which some has gone, or that has a place only now, if there is one.
    async fn hold_content(
        &self,
        plan: &Plan<'_>,
        unit: &[BatchEntry],
        stored: &[Stored],
    ) -> Result<Option<usize>, FileError> {
        let since = self.store.moment();
        // What went meanwhile and came again with somebody else's content was settled by nobody yet.
        let mut waits = None;
        for born in plan.born.iter().filter(|born| born.names > 0) {
            let Stored { content, resilience } = &stored[born.entry];
            let chunks: Vec<_> = content.iter().filter_map(|(_, content)| address(content)).collect();
            // All are asked for: what is, stays.
            let waiting: Vec<_> = chunks.iter().filter(|address| !self.store.is_durable(address)).collect();
            let missing = waiting.iter().filter(|address| !self.store.contains(address)).count();
            waits = waits.or((!waiting.is_empty()).then_some(born.entry));
            // Its directory was not there when content was stored.
            let is_to_come = content.is_empty() && unit[born.entry].content_bytes() > 0;
            if is_to_come || missing > 0 && resilience.is_some() {
                return Ok(Some(born.entry));
            }
            if *resilience != Some(born.attributes.resilience) {
                // What a copy names and cannot be relied upon to be here is read and stored anew, or has gone.
                match self.store.raise(born.attributes.resilience, &chunks).await {
                    Ok(anew) => waits = waits.or((anew > 0).then_some(born.entry)),
                    Err(error) if is_loss(&error) => return Ok(Some(born.entry)),
                    Err(error) => return Err(error.into()),
                }
            }
        }
        let Some(entry) = waits else { return Ok(None) };
        match self.store.settle(since).await.map_err(FileError::from) {
            Err(error) if error.is_dropped() => Ok(Some(entry)),
            settled => settled.map(|()| None),
        }
    }

    /// Step 3, and the records before.
    fn carry_out(
        &self,
        plan: &Plan<'_>,
        unit: &[BatchEntry],
        targets: Vec<Result<Target, FileError>>,
        mut stored: Vec<Stored>,
    ) -> Result<BatchWriteReport, FileError> {
        let files = self.number(plan)?;
        let unborn = self.bear_unit(plan, &files, &mut stored);
        // Of entries that failed, or made room for others of the unit.
        self.note_dropped(stored.iter().map(Stored::bytes).sum());
        if unborn.frame_bytes() + frame_bytes(plan) > FRAME_BYTES_MAX {
            return Err(FileError::Invalid(
                "a unit of more than a frame, with what its files inherit: write it as several",
            ));
        }
        let made = plan.born.iter().filter(|born| born.names > 0).count() as u64;
        let mut transaction = Transaction::begin(self);
        let namespace = self.namespace.lock();
        // The one whose name no lock of ours holds (I-118).
        let top = plan.directories[0].inode.as_ref().expect("it is there");
        expect_directory(&top.state.lock())?;
        transaction.adopt(unborn);
        // Nobody finds a name of what is no more, or has no link yet.
        let (more, fewer): (Vec<_>, Vec<_>) = plan.relinked.values().partition(|relinked| relinked.names > 0);
        let mut held = Vec::new();
        held.extend(more.into_iter().map(|relinked| self.relink(&mut transaction, relinked)));
        held.extend(plan.directories.iter().filter_map(|directory| change_there(&mut transaction, directory, &files)));
        held.extend(fewer.into_iter().map(|relinked| self.relink(&mut transaction, relinked)));
        transaction.log();
        drop(held);
        drop(namespace);
        plan.relinked.keys().for_each(|file| self.tell_of_links(*file));
        let file = |target: Target| match target {
            Target::Born(born) => files[born],
            Target::There(file, _) => file,
        };
        let fates: Vec<_> = targets.into_iter().map(|target| target.map(file)).collect();
        let home = |(entry, fate): (&BatchEntry, &Result<FileId, FileError>)| {
            let home = fate.as_ref().ok().and_then(|_| plan.home(&entry.path));
            home.map_or(FileId::NONE, |home| plan.file(home, &files))
        };
        let homes = unit.iter().zip(&fates).map(home).collect();
        let done = fates.iter().filter(|fate| fate.is_ok()).count() as u64;
        self.counters.batch_entries.add(done);
        self.counters.namespace_changes.add(done);
        Ok(BatchWriteReport { fates, homes, is_done: true, made })
    }

    /// The ids of what is made: those of one directory together.
    fn number(&self, plan: &Plan<'_>) -> Result<Vec<FileId>, FileError> {
        let mut by_home: Vec<usize> = (0..plan.born.len()).collect();
        by_home.sort_by_key(|born| plan.born[*born].home);
        let mut next = self.new_files(by_home.len() as u64)?;
        let mut files = vec![FileId::NONE; by_home.len()];
        for born in by_home {
            let branch = plan.branch(&plan.born[born]);
            files[born] = FileId { branch, ..next };
            next.number += 1;
        }
        Ok(files)
    }

    /// Everything that is made, with all that is in it.
    fn bear_unit(&self, plan: &Plan<'_>, files: &[FileId], stored: &mut [Stored]) -> Unborn {
        let mut unborn = Unborn::new(self.now(), plan.born.len() * BORN_BYTES);
        for (place, born) in plan.born.iter().enumerate().filter(|(_, born)| born.names > 0) {
            let content = std::mem::take(&mut stored[born.entry].content);
            let directory = born.directory.map(|directory| &plan.directories[directory]);
            let parent = plan.file(born.home, files);
            let allocated = content.iter().map(|(_, content)| content.length()).sum();
            let attributes = Attributes {
                file: files[place],
                parent,
                links: links(born, directory),
                size: directory.map_or(born.attributes.size, |directory| directory.names.len() as u64),
                ..born.attributes.clone()
            };
            let inode = unborn.bear(files[place], changes(born, attributes, directory, content, files));
            inode.state.lock().allocated = Some(allocated);
        }
        unborn
    }

    /// A file that was there has names more or less, and may end. Its state is to be held until the frame is logged.
    fn relink<'a>(&self, transaction: &mut Transaction<'_>, relinked: &'a Relinked) -> MutexGuard<'a, State> {
        let Relinked { inode, names } = relinked;
        let mut state = inode.state.lock();
        if state.is_gone {
            return state;
        }
        let links = counted(state.attributes.links, *names);
        let attributes = Attributes { links, changed: transaction.now, ..state.attributes.clone() };
        transaction.record(inode, &mut state, Change::Attributes(attributes));
        if links == 0 && !self.references.lock().has(inode.file) {
            self.end(transaction, inode, &mut state);
        }
        state
    }
}

/// Those that were there.
fn directories_of(plan: &Plan<'_>) -> BTreeMap<FileId, Arc<Inode>> {
    plan.directories.iter().filter_map(|directory| directory.inode.clone()).map(|inode| (inode.file, inode)).collect()
}

pub(super) fn address(content: &Content) -> Option<base::id::ChunkAddress> {
    match content {
        Content::Extent(_, Extent::Chunk { address, .. }) => Some(*address),
        Content::Extent(..) | Content::Inline(_) => None,
    }
}

fn links(born: &Born, directory: Option<&Directory>) -> u32 {
    match directory {
        Some(directory) => counted(2, directory.subdirectories),
        None => counted(0, born.names),
    }
}

/// The records of a new file.
fn changes(
    born: &Born,
    attributes: Attributes,
    directory: Option<&Directory>,
    content: Vec<(u64, Content)>,
    files: &[FileId],
) -> Vec<Change> {
    let Attributes { size, mode, modified, changed, .. } = attributes;
    let mut changes = vec![Change::Create { attributes, target: born.target.clone() }];
    if !content.is_empty() {
        changes.push(Change::Write { size, mode, modified, changed, content });
    }
    let xattrs = born.xattrs.iter();
    changes.extend(xattrs.map(|(name, value)| Change::Xattr { name: name.clone(), value: Some(value.clone()) }));
    changes.extend(directory.into_iter().flat_map(|directory| inserts(directory, files)));
    changes
}

/// The records of the names in a directory.
fn inserts<'a>(directory: &'a Directory, files: &'a [FileId]) -> impl Iterator<Item = Change> + 'a {
    directory.names.iter().map(|(cookie, named)| {
        let file = match named.target {
            Target::Born(born) => files[born],
            Target::There(file, _) => file,
        };
        Change::Insert { cookie: *cookie, entry: Entry { file, kind: named.kind, name: named.name.clone() } }
    })
}

/// The records of a directory that was there, and its state, to be held until the frame is logged.
fn change_there<'a>(
    transaction: &mut Transaction<'_>,
    directory: &'a Directory,
    files: &[FileId],
) -> Option<MutexGuard<'a, State>> {
    let inode = directory.inode.as_ref()?;
    if directory.names.is_empty() && directory.set.is_none() {
        return None;
    }
    let mut state = inode.state.lock();
    for change in inserts(directory, files) {
        transaction.record(inode, &mut state, change);
    }
    let attributes = attributes_there(&state, directory, transaction.now);
    for (name, value) in directory.set.iter().flat_map(|set| &set.xattrs) {
        let change = Change::Xattr { name: name.clone(), value: value.clone() };
        transaction.record(inode, &mut state, change);
    }
    transaction.record(inode, &mut state, Change::Attributes(attributes));
    Some(state)
}

fn attributes_there(state: &State, directory: &Directory, now: Timestamp) -> Attributes {
    let mut attributes = state.attributes.clone();
    attributes.size = attributes.size.saturating_add_signed(directory.growth);
    attributes.links = counted(attributes.links, directory.subdirectories);
    attributes.changed = now;
    match &directory.set {
        Some(set) => {
            let Attributes { mode, uid, gid, modified, accessed, .. } = set.attributes;
            Attributes { mode, uid, gid, modified, accessed, ..attributes }
        }
        None => Attributes { modified: now, ..attributes },
    }
}

/// What the records of what was there take of the frame, at most.
fn frame_bytes(plan: &Plan<'_>) -> usize {
    let of_directory = |directory: &Directory| {
        let names: usize = directory.names.values().map(|named| NAME_BYTES + named.name.len()).sum();
        let xattrs = directory.set.iter().flat_map(|set| &set.xattrs);
        ATTRIBUTES_BYTES
            + names
            + xattrs.map(|(name, value)| NAME_BYTES + name.len() + value.as_ref().map_or(0, Vec::len)).sum::<usize>()
    };
    let there = plan.directories.iter().filter(|directory| directory.inode.is_some());
    plan.relinked.len() * RELINK_BYTES + there.map(of_directory).sum::<usize>()
}
