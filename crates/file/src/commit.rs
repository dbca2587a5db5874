//! The commit server: folds journaled records into trees and switches the superblock, beside the callers' path.
//!
//! A commit takes a moment T between two frames, by the gate. What was recorded up to T is frozen file by file; then extents,
//! entries and attributes become new trees, children before parents, then the catalog, then the superblock. Now `frozen` is
//! part of `base`, and the journal up to T is free (Ungureanu et al., FAST 2010, the commit server; its three timestamp cases
//! are here: records before T are in `frozen`, those after T in `active`, and a file without records is not touched).
//!
//! I-70  The superblock of time T names trees that hold exactly the records up to T, but for what I-106 leaves out.
//! I-71  The new roots are current before any inode is cleaned: who loads an inode that left memory finds it there.
//! I-72  A commit that fails changes nothing but that `frozen` is `active` again.
//! I-73  `allocated` of a committed inode is exact: the bytes that its extents cover.
//! I-106 A file whose tree cannot be read stops no other: a commit leaves what was recorded for that tree out, and had it logged anew
//!       behind T, durable before the superblock. Until then nothing of it is given up, and the file takes no more changes of its tree.
//! I-166 Frames that are on no disk any more that works, for the last home of the journal failed, are committed at the next look for a commit that is
//!       due: until both superblocks cover them only memory has what was acknowledged.
//!
//! Not here: what the store does at a superblock (`store`), recovery (`open`), what is left out (`left_out`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::codec::Writer;
use base::id::{FileId, Position};
use base::interval::IntervalMap;
use bytes::Bytes;
use platform::task::first;
use store::{Class, Moment, Resilience, StoreError};

use crate::attributes::{Attributes, Node};
use crate::directory::encode_entry;
use crate::extent::{Extent, Overlay, covered_ranges};
use crate::failure::FileError;
use crate::format::{
    Base, BranchValue, INLINE_BYTES_MAX, InodeValue, Root, Roots, SnapshotValue, XattrPlace, encode_extent,
    encode_xattrs,
};
use crate::inode::{Frozen, InodeSet};
use crate::left_out::{LoggedAnew, Unreadable, Whole};
use crate::system::FileSystem;
use crate::tree::Edits;

/// Bytes of the journal that become chunks together.
const PUT_BYTES: usize = 8 << 20;
/// Extents that lie below what was recorded are looked at so many at a time, and those that a long run of it hides are taken out before: memory holds
/// no more of a file of millions, which a few records cover. A shorter run hides no more than that.
const HIDDEN_EXTENTS_MAX: usize = 16 << 10;
const HIDING_BYTES_MIN: u64 = 64 << 20;
/// Looks for a commit that is due, in parts of the commit interval.
const ROUNDS_PER_INTERVAL: u32 = 10;

/// Why a commit did not happen.
enum NotCommitted {
    /// The trees of these files cannot be read.
    Unreadable(BTreeMap<FileId, Unreadable>),
    /// Anything else.
    Failed(FileError),
}

impl<E: Into<FileError>> From<E> for NotCommitted {
    fn from(error: E) -> NotCommitted {
        NotCommitted::Failed(error.into())
    }
}

/// A change of the roots that goes with a commit.
#[derive(Clone, Debug)]
pub(crate) enum RootsChange {
    /// The catalog of this commit gets a name.
    Add {
        /// The name.
        name: String,
        /// The directory that it shows.
        root: FileId,
    },
    /// What came from another node, and was found to be here since a moment, gets a place in the list.
    Receive(Moment, Box<SnapshotValue>),
    /// A view goes.
    Remove {
        /// Which.
        view: u32,
    },
    /// A branch has another catalog, of what its top leads to alone, and of what commits have changed since that was made.
    Prune {
        /// Which.
        branch: u32,
        /// That catalog.
        catalog: Root,
        /// Before it was made.
        since: Moment,
    },
    /// Whether content may lie on fewer disks than its file asks for (`raising`).
    Raise(bool),
}

impl RootsChange {
    /// Since when what it names was put or found, where that was before the commit.
    fn since(&self) -> Option<Moment> {
        match self {
            RootsChange::Receive(since, _) | RootsChange::Prune { since, .. } => Some(*since),
            RootsChange::Add { .. } | RootsChange::Remove { .. } | RootsChange::Raise(_) => None,
        }
    }
}

/// New values of the trees of a branch.
#[derive(Default)]
struct BranchEdits {
    catalog: Edits,
    orphans: Edits,
}

/// Runs of bytes that become chunks, by what is asked for them, with their places: file, offset, length.
type Inlined = BTreeMap<Resilience, (Vec<Bytes>, Vec<(FileId, u64, u32)>)>;

impl FileSystem {
    /// Folds everything recorded so far into the committed trees.
    ///
    /// # Errors
    /// The store's; nothing is lost, the journal stays.
    pub async fn commit(&self) -> Result<(), FileError> {
        self.commit_with(None, Whole::AsFarAsRead).await
    }

    /// The same, of everything: no file is left out.
    ///
    /// # Errors
    /// As for [`FileSystem::commit`], and why a tree cannot be read.
    pub(crate) async fn commit_whole(&self) -> Result<(), FileError> {
        self.commit_with(None, Whole::OrNot).await
    }

    /// Commits, and writes the superblock of every disk also if there was nothing to commit: a disk that hangs is met here.
    ///
    /// # Errors
    /// As for [`FileSystem::commit`].
    pub async fn commit_everywhere(&self) -> Result<(), FileError> {
        self.commit().await?;
        Ok(self.store.renew_root().await?)
    }

    pub(crate) async fn commit_with(&self, change: Option<RootsChange>, whole: Whole) -> Result<(), FileError> {
        let _commit = self.commit.lock().await;
        self.try_left_out_again();
        let is_on_its_own = change.as_ref().and_then(RootsChange::since).is_none();
        let mut is_again = false;
        loop {
            match self.commit_once(change.clone(), whole).await {
                Err(NotCommitted::Unreadable(files)) if whole == Whole::AsFarAsRead => self.leave_out(files),
                Err(NotCommitted::Unreadable(files)) => {
                    return Err(files.into_values().next().expect("not without one").error);
                }
                // A disk took chunks of it along: all of it once more, on the others (K-12).
                Err(NotCommitted::Failed(error)) if error.is_dropped() && is_on_its_own && !is_again => is_again = true,
                Err(NotCommitted::Failed(error)) => {
                    *self.commit_failure.lock() = Some(error.clone());
                    self.counters.commit_failures.add(1);
                    self.commit_ended.notify_waiters();
                    return Err(error);
                }
                Ok(()) => {
                    self.is_commit_owed.store(false, Ordering::SeqCst);
                    *self.commit_failure.lock() = None;
                    self.commit_ended.notify_waiters();
                    return Ok(());
                }
            }
        }
    }

    /// The caller holds `commit`.
    async fn commit_once(&self, change: Option<RootsChange>, whole: Whole) -> Result<(), NotCommitted> {
        let (generation, covered, logged, inodes) = {
            let mut gate = self.gate.write();
            if change.is_none() && self.has_nothing_new(whole) {
                return Ok(());
            }
            *gate += 1;
            let logged = self.store.counters().log_bytes.value();
            let inodes = std::mem::take(&mut *self.touched.lock());
            // In this order: for a moment too many are counted, and not none.
            self.committing_count.store(inodes.len(), Ordering::Relaxed);
            self.touched_count.store(0, Ordering::Relaxed);
            (*gate, self.store.last_logged(), logged, inodes)
        };
        let _time = self.platform.clock.timer(&self.counters.commit);
        let since = change.as_ref().and_then(RootsChange::since).unwrap_or_else(|| self.store.moment());
        let frozen = Freezing { system: self, inodes };
        let inodes = &frozen.inodes;
        for inode in inodes.values() {
            let mut state = inode.state.lock();
            if state.generation < generation && state.active.is_touched {
                state.freeze(generation);
            }
        }
        let left_out = if whole == Whole::OrNot { BTreeSet::new() } else { self.left_out_of(inodes) };
        // What a try that ended otherwise counted is not dropped.
        self.commit_drops.store(0, Ordering::Relaxed);
        let result = self.write_trees(inodes, &left_out, (since, covered), change).await;
        let result = match result {
            Ok((bases, again)) => {
                self.clean(inodes, bases);
                // No commit is due for what this one logged.
                self.journal_committed.store(logged + again.bytes, Ordering::SeqCst);
                self.forget_left_out(inodes, again);
                self.journal_replayed.store(0, Ordering::Relaxed);
                // Nodes come in the place of others, most often.
                self.note_dropped(self.trees.take_written() + self.commit_drops.swap(0, Ordering::Relaxed));
                self.dropped_since_pass.store(true, Ordering::SeqCst);
                self.counters.commit_inodes.add(inodes.len() as u64);
                frozen.end();
                Ok(())
            }
            Err(NotCommitted::Unreadable(files)) => {
                let files = self.settle_left_out(since, inodes, files).await;
                drop(frozen);
                Err(files.map_or_else(NotCommitted::Failed, NotCommitted::Unreadable))
            }
            Err(error) => {
                drop(frozen);
                Err(error)
            }
        };
        self.measure_space();
        result
    }

    /// Makes the trees and the superblock. Gives what each inode is now based on, and what was logged anew.
    async fn write_trees(
        &self,
        inodes: &InodeSet,
        left_out: &BTreeSet<FileId>,
        (since, covered): (Moment, Position),
        change: Option<RootsChange>,
    ) -> Result<(BTreeMap<FileId, Base>, LoggedAnew), NotCommitted> {
        let old = self.roots.lock().clone();
        let mut overlays = self.settle_inlined(inodes, left_out).await?;
        let mut changed: BTreeMap<u32, BranchEdits> = BTreeMap::from([(0, BranchEdits::default())]);
        let (mut bases, mut unreadable) = (BTreeMap::new(), BTreeMap::new());
        for (file, inode) in inodes {
            let (frozen, base) = {
                let state = inode.state.lock();
                (state.frozen.clone().expect("frozen above, under the commit lock"), state.base.clone())
            };
            let BranchEdits { catalog, orphans } = changed.entry(file.branch).or_default();
            let was_orphan = base.is_orphan;
            let is_orphan = !frozen.is_gone && frozen.attributes.links == 0;
            if frozen.is_gone {
                self.commit_drops.fetch_add(base.allocated, Ordering::Relaxed);
                catalog.insert(file.number, None);
            } else {
                let content = overlays.remove(file);
                let tree = match left_out.contains(file) {
                    true => Ok((base.tree.clone(), base.allocated)),
                    false => self.new_tree(&frozen, &base, content.as_ref()).await,
                };
                let (tree, allocated) = match tree {
                    Ok(tree) => tree,
                    Err(error) if error.is_unreadable() => {
                        unreadable.insert(*file, Unreadable { error: of_file(*file, error), content });
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                };
                let xattrs = self.new_xattrs(&frozen, base.xattrs).await?;
                let base = Base { tree, target: base.target, xattrs, allocated, is_orphan };
                let attributes = Attributes { allocated: base.allocated, ..frozen.attributes.clone() };
                let value = InodeValue { attributes, version: frozen.version, base: base.clone() };
                catalog.insert(file.number, Some(value.encode()));
                bases.insert(*file, base);
            }
            if is_orphan != was_orphan {
                orphans.insert(file.number, is_orphan.then(Vec::new));
            }
        }
        if !unreadable.is_empty() {
            return Err(NotCommitted::Unreadable(unreadable));
        }
        let BranchEdits { catalog, orphans } = changed.remove(&0).expect("entered above");
        let catalog = self.trees.update(&old.catalog, catalog, INLINE_BYTES_MAX).await?;
        let orphans = self.trees.update(&old.orphans, orphans, INLINE_BYTES_MAX).await?;
        let mut roots = Roots { catalog, orphans, ..(*old).clone() };
        let branches = self.change_branches(&mut roots, changed, change.as_ref()).await?;
        if let Some(RootsChange::Raise(is_raising)) = change {
            roots.is_raising = is_raising;
        }
        roots.next_counter = self.next_counter.load(Ordering::SeqCst);
        roots.next_view = self.next_view.load(Ordering::SeqCst);
        let snapshots = self.change_snapshots(&mut roots, change).await?;
        let mut again = LoggedAnew::default();
        if !left_out.is_empty() {
            // A journal that takes nothing more would be given the same at each try.
            self.sync_journal().await?;
            again = self.log_left_out(inodes, left_out);
            self.sync_journal().await?;
        }
        self.store.commit(since, &roots.encode(), covered).await?;
        let gone = self.replace_branches(branches);
        // Before `roots`, as the branches: who finds the same roots afterwards had the newest of both.
        if let Some(snapshots) = snapshots {
            *self.snapshots.lock() = snapshots;
        }
        *self.roots.lock() = Arc::new(roots);
        self.end_branches(&gone);
        Ok((bases, again))
    }

    /// Makes chunks of what only the journal had. Gives the content of each file that changed, without inlined bytes.
    async fn settle_inlined(
        &self,
        inodes: &InodeSet,
        left_out: &BTreeSet<FileId>,
    ) -> Result<BTreeMap<FileId, IntervalMap<Extent>>, FileError> {
        let mut settled = BTreeMap::new();
        let (mut runs, mut bytes) = (Inlined::new(), 0);
        for (file, inode) in inodes {
            let frozen = inode.state.lock().frozen.clone().expect("frozen above, under the commit lock");
            let Overlay { extents, inlined, .. } = &frozen.layer.content;
            if frozen.is_gone || left_out.contains(file) || (extents.is_empty() && inlined.is_empty()) {
                continue;
            }
            settled.insert(*file, extents.clone());
            let (chunks, places) = runs.entry(frozen.attributes.resilience).or_default();
            for (offset, run) in touching(inlined) {
                let mut start = 0;
                for length in store::cut_points(&run, true) {
                    let length_u32 = u32::try_from(length).expect("a chunk is at most 1 MiB");
                    places.push((*file, offset + start as u64, length_u32));
                    chunks.push(run.slice(start..start + length));
                    start += length;
                }
                bytes += run.len();
            }
            if bytes >= PUT_BYTES {
                bytes = 0;
                self.put_inlined(&mut settled, std::mem::take(&mut runs)).await?;
            }
        }
        self.put_inlined(&mut settled, runs).await?;
        Ok(settled)
    }

    async fn put_inlined(
        &self,
        settled: &mut BTreeMap<FileId, IntervalMap<Extent>>,
        runs: Inlined,
    ) -> Result<(), FileError> {
        for (resilience, (chunks, places)) in runs {
            let addresses = self.store.put_accepted(resilience, chunks).await?;
            for (address, (file, offset, chunk_bytes)) in addresses.into_iter().zip(places) {
                let extents = settled.get_mut(&file).expect("entered before its runs");
                let extent = Extent::Chunk { address, skip: 0, chunk_bytes };
                extents.insert(offset..offset + u64::from(chunk_bytes), extent);
            }
        }
        Ok(())
    }

    /// The tree of a file with what was recorded for it, and the bytes that its extents cover.
    async fn new_tree(
        &self,
        frozen: &Frozen,
        base: &Base,
        content: Option<&IntervalMap<Extent>>,
    ) -> Result<(Root, u64), FileError> {
        let (tree, allocated) = match content {
            Some(content) => self.update_extents(base.tree.clone(), base.allocated, content).await?,
            None => (base.tree.clone(), base.allocated),
        };
        let entries = frozen.layer.entries.iter();
        let edits: Edits = entries
            .map(|(cookie, entry)| {
                (*cookie, entry.as_ref().map(|entry| encode_entry(entry, frozen.attributes.file.branch)))
            })
            .collect();
        Ok((self.trees.update(&tree, edits, INLINE_BYTES_MAX).await?, allocated))
    }

    async fn new_xattrs(&self, frozen: &Frozen, before: XattrPlace) -> Result<XattrPlace, FileError> {
        let Some(set) = &frozen.xattrs else { return Ok(before) };
        if set.is_empty() {
            return Ok(XattrPlace::None);
        }
        let bytes = encode_xattrs(set);
        Ok(if bytes.len() <= INLINE_BYTES_MAX {
            XattrPlace::Inline(Bytes::from(bytes))
        } else {
            XattrPlace::Chunk(self.store.put(Class::Metadata, &bytes).await?)
        })
    }

    /// Puts new content over the extents of a tree, some of its ranges at a time (see [`HIDDEN_EXTENTS_MAX`]).
    async fn update_extents(
        &self,
        tree: Root,
        allocated: u64,
        content: &IntervalMap<Extent>,
    ) -> Result<(Root, u64), FileError> {
        let ranges = covered_ranges(content);
        // Cut off and written anew: no need to look at what was there.
        let (tree, allocated) = match &ranges[..] {
            [whole] if *whole == (0..u64::MAX) => {
                self.commit_drops.fetch_add(allocated, Ordering::Relaxed);
                (Root::Empty, 0)
            }
            _ => (tree, allocated),
        };
        let (mut tree, mut allocated) = self.without_hidden(tree, allocated, &ranges).await?;
        let bytes =
            |range: &Range<u64>, extent: &Extent| if extent.is_allocated() { range.end - range.start } else { 0 };
        let count = |extents: &IntervalMap<Extent>| extents.iter().map(|(range, extent)| bytes(&range, extent)).sum();
        let (mut ranges, mut content) = (ranges.into_iter().peekable(), content.iter().peekable());
        while ranges.peek().is_some() {
            let (mut old, mut end) = (IntervalMap::default(), 0);
            while let Some(range) = ranges.next_if(|_| old.count() < HIDDEN_EXTENTS_MAX) {
                end = range.end;
                for (below, extent) in self.base_extents(&tree, range, usize::MAX).await?.0 {
                    old.insert(below, extent);
                }
            }
            let (mut new, mut added) = (old.clone(), 0);
            while let Some((range, extent)) = content.next_if(|(range, _)| range.start < end) {
                added += bytes(&range, extent);
                new.insert(range, *extent);
            }
            let (before, after): (u64, u64) = (count(&old), count(&new));
            self.commit_drops.fetch_add((before + added).saturating_sub(after), Ordering::Relaxed);
            allocated = allocated.saturating_sub(before) + after;
            let mut edits: Edits = old.iter().map(|(range, _)| (range.start, None)).collect();
            for (range, extent) in joined(&new) {
                let mut writer = Writer::with_capacity(64);
                encode_extent(range.end - range.start, &extent, &mut writer);
                edits.insert(range.start, Some(writer.into_bytes()));
            }
            tree = self.trees.update(&tree, edits, INLINE_BYTES_MAX).await?;
        }
        Ok((tree, allocated))
    }

    /// Takes out what long ranges hide while there is more of it than memory should hold: a large file that is cut, or written anew, has millions of
    /// extents.
    async fn without_hidden(
        &self,
        mut tree: Root,
        mut allocated: u64,
        covered: &[Range<u64>],
    ) -> Result<(Root, u64), FileError> {
        for above in covered.iter().filter(|range| range.end - range.start > HIDING_BYTES_MIN) {
            loop {
                let (found, next) = self.base_extents(&tree, above.clone(), HIDDEN_EXTENTS_MAX).await?;
                let hidden = found.iter().filter(|(range, _)| above.start <= range.start && range.end <= above.end);
                let edits: Edits = hidden.clone().map(|(range, _)| (range.start, None)).collect();
                if next.is_none() || edits.is_empty() {
                    break;
                }
                let allocating = hidden.filter(|(_, extent)| extent.is_allocated());
                let bytes = allocating.map(|(range, _)| range.end - range.start).sum();
                self.commit_drops.fetch_add(bytes, Ordering::Relaxed);
                allocated = allocated.saturating_sub(bytes);
                tree = self.trees.update(&tree, edits, INLINE_BYTES_MAX).await?;
            }
        }
        Ok((tree, allocated))
    }

    /// Makes the catalogs of branches that changed, and the list that has them. Gives what each is now; `None`: it is no more (I-110).
    async fn change_branches(
        &self,
        roots: &mut Roots,
        mut changed: BTreeMap<u32, BranchEdits>,
        change: Option<&RootsChange>,
    ) -> Result<BTreeMap<u32, Option<BranchValue>>, FileError> {
        let pruned = match change {
            Some(RootsChange::Prune { branch, catalog, .. }) => Some((*branch, catalog.clone())),
            _ => None,
        };
        // Those that were removed, and were in use then.
        for (branch, _) in self.branches.lock().iter().filter(|(_, value)| value.top == 0) {
            changed.entry(*branch).or_default();
        }
        if let Some((branch, _)) = pruned.as_ref().filter(|(branch, _)| self.branches.lock().contains_key(branch)) {
            changed.entry(*branch).or_default();
        }
        let (mut new, mut edits) = (BTreeMap::new(), Edits::new());
        for (branch, BranchEdits { catalog, orphans }) in changed {
            // Of a branch that is no more nobody can come to anything (I-110).
            let Some(mut old) = self.branches.lock().get(&branch).cloned() else { continue };
            if let Some((_, pruned)) = pruned.as_ref().filter(|(pruned, _)| *pruned == branch) {
                let since = self.changed_since(branch, &old.catalog).await?;
                old.catalog = self.trees.update(pruned, since, INLINE_BYTES_MAX).await?;
                old.root = old.top;
            }
            self.note_changed(branch, catalog.keys().copied());
            let (top, above) = match catalog.get(&old.top) {
                Some(Some(bytes)) => (old.top, above(FileId { branch, number: old.top }, bytes)),
                Some(None) => (0, FileId::NONE),
                None => (old.top, old.above),
            };
            let orphans = self.trees.update(&old.orphans, orphans, INLINE_BYTES_MAX).await?;
            if top == 0 && orphans == Root::Empty && !self.is_branch_in_use(branch) {
                edits.insert(u64::from(branch), None);
                new.insert(branch, None);
                continue;
            }
            let catalog = self.trees.update(&old.catalog, catalog, INLINE_BYTES_MAX).await?;
            let value = BranchValue { catalog, orphans, top, root: old.root, above };
            edits.insert(u64::from(branch), Some(value.encode()));
            new.insert(branch, Some(value));
        }
        roots.branches = self.trees.update(&roots.branches, edits, INLINE_BYTES_MAX).await?;
        Ok(new)
    }

    /// A commit has changed these in the catalog of a branch.
    pub(crate) fn note_changed(&self, branch: u32, numbers: impl Iterator<Item = u64>) {
        if let Some(pruning) = self.pruning.lock().as_mut().filter(|pruning| pruning.branch == branch) {
            pruning.changed.extend(numbers);
        }
    }

    /// What commits have changed since in the catalog of the branch that is pruned, as it is there now.
    pub(crate) async fn changed_since(&self, branch: u32, catalog: &Root) -> Result<Edits, FileError> {
        let numbers: Vec<u64> = match &*self.pruning.lock() {
            Some(pruning) if pruning.branch == branch => pruning.changed.iter().copied().collect(),
            _ => Vec::new(),
        };
        let mut edits: Edits = numbers.iter().map(|number| (*number, None)).collect();
        let found = self.trees.get_many(catalog, &numbers).await?;
        edits.extend(found.into_iter().map(|(number, bytes)| (number, Some(bytes.to_vec()))));
        Ok(edits)
    }

    /// The new catalogs of branches are in force. Gives those that are no more.
    pub(crate) fn replace_branches(&self, new: BTreeMap<u32, Option<BranchValue>>) -> BTreeSet<u32> {
        let mut gone = BTreeSet::new();
        let mut branches = self.branches.lock();
        for (branch, value) in new {
            if let Some(value) = value {
                branches.insert(branch, value);
            } else {
                branches.remove(&branch);
                gone.insert(branch);
            }
        }
        gone
    }

    /// Takes the files of branches that are no more out of memory. The roots are switched, so none comes back (I-35), and who has one in hand
    /// finds that it is gone.
    pub(crate) fn end_branches(&self, gone: &BTreeSet<u32>) {
        if gone.is_empty() {
            return;
        }
        for inode in self.table.of_branches(gone) {
            let mut state = inode.state.lock();
            let dropped = state.discard(0..u64::MAX);
            state.is_gone = true;
            self.release_dirty(dropped);
        }
        self.table.remove_branches(gone);
        // How much they held alone only a pass can tell.
        self.dropped_bytes.fetch_add(1 << 50, Ordering::Relaxed);
    }

    /// Whether a file of a branch whose top has gone is open, or has something that no commit covers: one that still has links has names
    /// that nobody can come to, beside what was cloned.
    fn is_branch_in_use(&self, branch: u32) -> bool {
        self.references.lock().has_any_of(branch) || self.table.has_unclean(branch)
    }

    /// Applies a change of the snapshot list to `roots`; gives the new list.
    async fn change_snapshots(
        &self,
        roots: &mut Roots,
        change: Option<RootsChange>,
    ) -> Result<Option<BTreeMap<u32, SnapshotValue>>, FileError> {
        let mut snapshots = self.snapshots.lock().clone();
        let added = match change {
            None | Some(RootsChange::Prune { .. } | RootsChange::Raise(_)) => return Ok(None),
            Some(RootsChange::Add { name, root }) => {
                let (catalog, branches) = (roots.catalog.clone(), roots.branches.clone());
                let (taken, next_counter) = (self.now(), roots.next_counter);
                let is_tidy = roots.orphans == Root::Empty;
                Ok(SnapshotValue { taken, catalog, name, root, next_counter, branches, is_tidy })
            }
            Some(RootsChange::Receive(_, value)) => Ok(*value),
            Some(RootsChange::Remove { view }) => Err(view),
        };
        let edit = match added {
            Ok(value) => {
                let view = self.new_view()?;
                roots.next_view = roots.next_view.max(view + 1);
                let bytes = value.encode();
                snapshots.insert(view, value);
                (u64::from(view), Some(bytes))
            }
            Err(removed) => {
                snapshots.remove(&removed);
                (u64::from(removed), None)
            }
        };
        let edits = Edits::from([edit]);
        roots.snapshots = self.trees.update(&roots.snapshots, edits, INLINE_BYTES_MAX).await?;
        Ok(Some(snapshots))
    }

    /// The committed inodes stand on their new base.
    fn clean(&self, inodes: &InodeSet, mut bases: BTreeMap<FileId, Base>) {
        for (file, inode) in inodes {
            let is_gone = {
                let mut state = inode.state.lock();
                if let Some(frozen) = state.frozen.take() {
                    self.note_dropped(frozen.layer.content.dropped_bytes);
                }
                if let Some(base) = bases.remove(file) {
                    state.base = base;
                }
                state.is_gone && !state.active.is_touched
            };
            if is_gone {
                self.table.remove(Node::live(*file));
            }
        }
    }

    /// I-166.
    async fn cover_lost_frames(&self) -> Result<(), FileError> {
        self.counters.commits_of_lost_frames.add(1);
        // Superblocks name the disks that it chooses, whether they have room for spare segments or not.
        let _ = self.store.move_journal().await;
        self.is_commit_owed.store(true, Ordering::SeqCst);
        self.commit_everywhere().await
    }

    /// The background task that keeps the journal short.
    pub(crate) async fn run_committer(self: Arc<Self>) {
        let pause = self.options.commit_interval / ROUNDS_PER_INTERVAL;
        let (mut last, mut has_failed) = (self.platform.clock.elapsed(), false);
        while !self.is_stopping.load(Ordering::SeqCst) {
            let sleep = self.platform.tasks.sleep(pause);
            first(self.wants_commit.notified(), sleep).await;
            let now = self.platform.clock.elapsed();
            let is_old = now.saturating_sub(last) >= self.options.commit_interval;
            let lacks_frames = (is_old || !has_failed) && self.store.lacks_frames().await;
            if !is_old && !lacks_frames && !self.is_commit_due() {
                continue;
            }
            last = now;
            // A failed flush has been counted and keeps its data; what is recorded can be committed all the same.
            let done = if lacks_frames { self.cover_lost_frames().await } else { self.commit().await };
            has_failed = done.is_err();
            match done {
                Ok(()) if self.is_reclaim_worthwhile() => self.wants_reclaim.notify_one(),
                Ok(()) => {}
                Err(error) => {
                    if matches!(error, FileError::NoSpace) {
                        // What somebody removed gives room by a commit alone, and that finds none.
                        self.commit_lacks_room.store(true, Ordering::SeqCst);
                        self.wants_reclaim.notify_one();
                    }
                    self.platform.tasks.sleep(pause).await;
                }
            }
        }
        self.stopped.add_permits(1);
    }
}

/// Whose tree it is that cannot be read: an address alone tells nobody which file to remove or to repair.
fn of_file(file: FileId, error: FileError) -> FileError {
    match error {
        FileError::Store(StoreError::Corrupt { what, path, offset, expected, found }) => {
            let path = format!("{path} (of {file})").into();
            FileError::Store(StoreError::Corrupt { what, path, offset, expected, found })
        }
        FileError::Store(StoreError::Absent { chunk }) => FileError::Store(StoreError::Corrupt {
            what: "tree node",
            path: format!("{chunk} (of {file})").into(),
            offset: 0,
            expected: "a chunk".into(),
            found: "none on any disk".into(),
        }),
        error => error,
    }
}

/// The directory that a clone's top says it lies in; none, if it has no name any more.
fn above(top: FileId, bytes: &[u8]) -> FileId {
    match InodeValue::decode(top, bytes) {
        Ok(value) if value.attributes.links > 0 => value.attributes.parent,
        _ => FileId::NONE,
    }
}

/// The inodes of a commit. Unless it ends well their layers are active again (I-72): it may fail, or be dropped halfway with the
/// request it ran in.
struct Freezing<'a> {
    system: &'a FileSystem,
    inodes: InodeSet,
}

impl Freezing<'_> {
    fn end(mut self) {
        self.inodes.clear();
    }
}

impl Drop for Freezing<'_> {
    fn drop(&mut self) {
        for inode in self.inodes.values() {
            inode.state.lock().thaw();
        }
        let mut touched = self.system.touched.lock();
        touched.append(&mut self.inodes);
        self.system.touched_count.store(touched.len(), Ordering::Relaxed);
        self.system.committing_count.store(0, Ordering::Relaxed);
        drop(touched);
        self.system.measure_records();
    }
}

/// Runs that touch, as one: what an application wrote in small steps is one chunk.
fn touching(inlined: &IntervalMap<Vec<u8>>) -> Vec<(u64, Bytes)> {
    let mut joined: Vec<(u64, Vec<u8>)> = Vec::new();
    for (range, run) in inlined.iter() {
        match joined.last_mut() {
            Some((offset, bytes)) if *offset + bytes.len() as u64 == range.start => bytes.extend_from_slice(run),
            _ => joined.push((range.start, run.clone())),
        }
    }
    joined.into_iter().map(|(offset, bytes)| (offset, Bytes::from(bytes))).collect()
}

/// The extents that a tree keeps: no holes, and neighbours that go on in the same chunk as one.
fn joined(extents: &IntervalMap<Extent>) -> Vec<(Range<u64>, Extent)> {
    let mut kept: Vec<(Range<u64>, Extent)> = Vec::new();
    for (range, extent) in extents.iter().filter(|(_, extent)| extent.is_allocated()) {
        match kept.last_mut() {
            Some((last, before))
                if last.end == range.start && before.advanced_within(last.end - last.start) == Some(*extent) =>
            {
                last.end = range.end;
            }
            _ => kept.push((range, *extent)),
        }
    }
    kept
}
