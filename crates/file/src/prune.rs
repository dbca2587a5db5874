//! Pruning: a branch lets go of what its top does not lead to.
//!
//! A branch begins with the whole catalog that its source was looked up in, which is why it begins at once. So it holds what the rest of
//! the file system was at that moment, counts names of its files that nobody can come to, and is checked in full. Before a pass of reclaim
//! looks at what is needed, branches that were not pruned get a catalog of what is below their top alone: made beside the work from
//! the catalog of one moment, and taken by one commit, which adds what other commits have changed meanwhile.
//!
//! What lies beside the top never comes below it (I-109), so what a walk at one moment does not meet can go at a later one. But for a file
//! that has lost its names below the top, has some beside it, and is still open: it loses those too, and goes with its last user.
//!
//! I-112 In a pruned branch every file but the top's own has as many links as names, and is below the top, or without links in the list of those.
//!
//! Not here: when a pass runs (`reclaim`), how the catalog is switched (`commit`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::codec::Reader;
use base::id::FileId;
use store::Pace;

use crate::admission::CHANGE_BYTES;
use crate::attributes::{Attributes, Kind, Node};
use crate::commit::RootsChange;
use crate::failure::FileError;
use crate::format::{BranchValue, Change, Entry, INLINE_BYTES_MAX, InodeValue, Root};
use crate::inode::Inode;
use crate::left_out::Whole;
use crate::system::{FileSystem, Pruning, Transaction, undecodable};
use crate::tree::Edits;

/// Branches that a pass prunes, the oldest first: a thousand clones are a thousand catalogs to be read. What they keep of all others is given back by
/// one of the next passes. Where somebody waits for room, and where all is looked at, it prunes them all.
const BRANCHES_PER_PASS: usize = 16;
/// Entries of a catalog or directory that are looked at in one step.
const STEP_ENTRIES: usize = 1024;

/// Nobody prunes any more, also when the pass is dropped halfway.
struct Ends<'a>(&'a FileSystem);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        *self.0.pruning.lock() = None;
    }
}

/// Numbers of files, a bit each: those of one directory are neighbours.
#[derive(Default)]
pub(crate) struct Numbers(BTreeMap<u64, u64>);

impl Numbers {
    /// Whether it was not there.
    pub(crate) fn insert(&mut self, number: u64) -> bool {
        let (word, bit) = (self.0.entry(number / 64).or_default(), 1 << (number % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    fn contains(&self, number: u64) -> bool {
        self.0.get(&(number / 64)).is_some_and(|word| word & 1 << (number % 64) != 0)
    }
}

/// Names that lead nowhere, of files below a top and of those that are open and not below it: how many, as of the walk. They are not
/// counted any more at the end.
type Hidden = BTreeMap<u64, u32>;

impl FileSystem {
    /// Prunes branches that are not, all of them if `wants_all`, which may change meanwhile. Whether it left any for the next pass. The caller holds
    /// `reclaiming`.
    pub(crate) async fn prune_branches(
        &self,
        pace: &Pace<'_>,
        wants_all: &(dyn Fn() -> bool + Sync),
    ) -> Result<bool, FileError> {
        // Of a tree that is being removed there the walk would meet nothing, and the list of unlinked files has it.
        let is_due = |(branch, value): &(&u32, &BranchValue)| {
            value.top != 0 && !value.is_pruned() && !self.removals.has_any_of(**branch)
        };
        let due: Vec<u32> = self.branches.lock().iter().filter(is_due).map(|(branch, _)| *branch).collect();
        let mut count = 0;
        for branch in due {
            if count >= BRANCHES_PER_PASS && !wants_all() || !pace.step().await {
                return Ok(true);
            }
            count += usize::from(self.prune(branch, pace).await?);
        }
        Ok(false)
    }

    /// Whether it was pruned.
    pub(crate) async fn prune(&self, branch: u32, pace: &Pace<'_>) -> Result<bool, FileError> {
        // Names and links of before are in its catalog then.
        self.commit_whole().await?;
        let since = self.store.moment();
        let (_ends, value) = {
            let _commit = self.commit.lock().await;
            let Some(value) = self.branches.lock().get(&branch).cloned() else { return Ok(false) };
            *self.pruning.lock() = Some(Pruning { branch, changed: BTreeSet::new() });
            (Ends(self), value)
        };
        if value.top == 0 {
            return Ok(false);
        }
        let top = FileId { branch, number: value.top };
        let Some(unlinked) = self.unlinked(top, &value).await? else { return Ok(false) };
        let below = self.below(top, &value.catalog, pace).await?;
        let mut hidden = self.hidden_names(top, &value.catalog, &below, pace).await?;
        let Some(catalog) = self.pruned(branch, &value.catalog, (&below, &unlinked), &mut hidden, pace).await? else {
            return Ok(false);
        };
        for (number, names) in hidden {
            // Those of whom that is done have none the next time.
            if !pace.step().await {
                return Ok(false);
            }
            let _room = self.admit_remover(CHANGE_BYTES, 1).await?;
            self.drop_hidden(top.beside(number), names).await?;
        }
        self.commit_with(Some(RootsChange::Prune { branch, catalog, since }), Whole::AsFarAsRead).await?;
        self.counters.branches_pruned.add(1);
        Ok(true)
    }

    /// Files that had no link any more at the walk's moment, and end with their last user, or as soon as who removes them comes to it. `None`: a
    /// tree that was removed still had something. Its names are not below the top, and lead nowhere, but they go one by one with the links
    /// that they count: those would be taken twice (plan batches, seed 722).
    async fn unlinked(&self, top: FileId, value: &BranchValue) -> Result<Option<Numbers>, FileError> {
        let (mut listed, mut from) = (Numbers::default(), Some(0));
        while let Some(at) = from {
            let (unlinked, next) = self.trees.scan(&value.orphans, at, STEP_ENTRIES).await?;
            for (number, _) in unlinked {
                let inode = self.load(&value.catalog, top.beside(number)).await?;
                if inode.is_some_and(|InodeValue { attributes, .. }| {
                    attributes.kind == Kind::Directory && attributes.size > 0
                }) {
                    return Ok(None);
                }
                listed.insert(number);
            }
            from = next;
        }
        Ok(Some(listed))
    }

    /// Everything below a directory, and itself.
    async fn below(&self, top: FileId, catalog: &Root, pace: &Pace<'_>) -> Result<Numbers, FileError> {
        let mut below = Numbers::default();
        below.insert(top.number);
        let mut waiting = vec![top.number];
        while let Some(directory) = waiting.pop().filter(|_| pace.goes_on()) {
            let mut note = |entry: &Entry| {
                if below.insert(entry.file.number) && entry.kind == Kind::Directory {
                    waiting.push(entry.file.number);
                }
            };
            self.each_entry(top.beside(directory), catalog, &mut note).await?;
            pace.step().await;
        }
        Ok(below)
    }

    /// The entries of a directory that are of its branch.
    async fn each_entry(
        &self,
        directory: FileId,
        catalog: &Root,
        note: &mut (dyn FnMut(&Entry) + Send),
    ) -> Result<(), FileError> {
        let Some(value) = self.load(catalog, directory).await? else { return Ok(()) };
        let mut from = Some(0).filter(|_| value.attributes.kind == Kind::Directory);
        while let Some(at) = from {
            let (entries, next) = self.trees.scan(&value.base.tree, at, STEP_ENTRIES).await?;
            for (cookie, bytes) in entries {
                let place = || format!("directory {directory}, cookie {cookie}");
                let entry = Entry::decode(directory.branch, &mut Reader::new(&bytes))
                    .map_err(|error| undecodable("directory entry", place(), error))?;
                if entry.file.branch == directory.branch {
                    note(&entry);
                }
            }
            from = next;
        }
        Ok(())
    }

    /// Of files below a top that have names beside it: how many.
    async fn hidden_names(
        &self,
        top: FileId,
        catalog: &Root,
        below: &Numbers,
        pace: &Pace<'_>,
    ) -> Result<Hidden, FileError> {
        let mut links = Hidden::new();
        let mut from = Some(0).filter(|_| pace.goes_on());
        while let Some(at) = from {
            let (inodes, next) = self.trees.scan(catalog, at, STEP_ENTRIES).await?;
            for (number, bytes) in inodes.into_iter().filter(|(number, _)| below.contains(*number)) {
                let Attributes { kind, links: count, .. } = decoded(top.beside(number), &bytes)?.attributes;
                if kind != Kind::Directory && count > 1 {
                    links.insert(number, count);
                }
            }
            from = next.filter(|_| pace.goes_on());
            pace.step().await;
        }
        if links.is_empty() {
            return Ok(links);
        }
        let mut seen = Numbers::default();
        seen.insert(top.number);
        let mut waiting = vec![top.number];
        while let Some(directory) = waiting.pop().filter(|_| pace.goes_on()) {
            let mut note = |entry: &Entry| {
                if let Some(left) = links.get_mut(&entry.file.number) {
                    *left = left.saturating_sub(1);
                } else if entry.kind == Kind::Directory && seen.insert(entry.file.number) {
                    waiting.push(entry.file.number);
                }
            };
            self.each_entry(top.beside(directory), catalog, &mut note).await?;
            pace.step().await;
        }
        links.retain(|_, left| *left > 0);
        Ok(links)
    }

    /// The catalog with nothing but what is below, what somebody uses, and what has no link and has not ended: the list of unlinked files names it
    /// (plan batches, seed 2300004625). `None`: the file system is closed meanwhile.
    async fn pruned(
        &self,
        branch: u32,
        catalog: &Root,
        (below, unlinked): (&Numbers, &Numbers),
        hidden: &mut Hidden,
        pace: &Pace<'_>,
    ) -> Result<Option<Root>, FileError> {
        let (mut pruned, mut from) = (Root::Empty, Some(0));
        while let Some(at) = from {
            if !pace.step().await {
                return Ok(None);
            }
            let (inodes, next) = self.trees.scan(catalog, at, STEP_ENTRIES).await?;
            let mut kept = Edits::new();
            for (number, bytes) in inodes {
                let file = FileId { branch, number };
                let stays = below.contains(number) || unlinked.contains(number);
                if !stays && self.is_in_use(file) {
                    hidden.insert(number, decoded(file, &bytes)?.attributes.links);
                } else if !stays {
                    continue;
                }
                kept.insert(number, Some(bytes.to_vec()));
            }
            pruned = self.trees.update(&pruned, kept, INLINE_BYTES_MAX).await?;
            from = next;
        }
        Ok(pace.goes_on().then_some(pruned))
    }

    /// Whether a file that no name below the top leads to is open, or has something that no commit covers.
    fn is_in_use(&self, file: FileId) -> bool {
        let in_memory = self.table.find(Node::live(file));
        self.references.lock().has(file) || in_memory.is_some_and(|inode| !inode.state.lock().is_clean())
    }

    /// Names of a file that lead nowhere are not counted any more. It is no change that anybody sees but in the count, so times stay.
    async fn drop_hidden(&self, file: FileId, names: u32) -> Result<(), FileError> {
        let inode: Arc<Inode> = match self.inode(Node::live(file)).await {
            Ok(inode) => inode,
            Err(FileError::NoEntry | FileError::Stale) => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut transaction = Transaction::begin(self);
        let mut state = inode.state.lock();
        if state.is_gone || state.attributes.links == 0 || names == 0 {
            return Ok(());
        }
        let links = state.attributes.links.saturating_sub(names);
        let attributes = Attributes { links, ..state.attributes.clone() };
        transaction.record(&inode, &mut state, Change::Attributes(attributes));
        if links == 0 && !self.references.lock().has(file) {
            self.end(&mut transaction, &inode, &mut state);
        }
        transaction.log();
        drop(state);
        self.tell_if_known(file);
        Ok(())
    }
}

fn decoded(file: FileId, bytes: &[u8]) -> Result<InodeValue, FileError> {
    let place = || format!("catalog entry of {file}");
    Ok(InodeValue::decode(file, bytes).map_err(|error| undecodable("inode", place(), error))?)
}
