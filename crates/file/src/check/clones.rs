//! The check of clones: the list of them, which names lead to one, and what keeps one from going.
//!
//! A name in what cannot be read may be there still: only where all of it was read has a clone none for sure (I-101).
//!
//! Not here: what a catalog has (`check`).

use std::collections::{BTreeMap, BTreeSet};

use base::codec::Reader;
use base::id::FileId;
use store::{Remedy, StoreError};

use super::{Findings, Scope};
use crate::attributes::Kind;
use crate::failure::{FileError, lost};
use crate::format::{BranchValue, Entry, Root};
use crate::system::FileSystem;

/// What has become of the name of a clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloneName {
    There,
    /// It can have another one.
    Gone,
    /// It may be in what cannot be read, or the clone cannot have another one before its own directory is made anew.
    Unknown,
}

impl FileSystem {
    /// The branches of the present or of a snapshot, as far as they can be read; names may lead to them from now on.
    pub(super) async fn listed_branches(
        &self,
        view: &str,
        list: &Root,
        found: &mut Findings,
    ) -> BTreeMap<u32, BranchValue> {
        let (listed, lost) = self.scan_branches(list).await;
        for (branch, error) in lost {
            found.note_at("HF1025", "list of clones", format!("{view}/"), branch, "a list that can be read", &error);
        }
        found.tops = listed.iter().map(|(branch, value)| (*branch, (value.top, value.above))).collect();
        found.clone_names.clear();
        listed
    }

    /// Their catalogs, which have everything that the catalogs had that they began with.
    pub(super) async fn check_branches(
        &self,
        view: &str,
        branches: BTreeMap<u32, BranchValue>,
        found: &mut Findings,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(), FileError> {
        let main_has_gaps = found.has_gaps;
        let may_go = view.is_empty();
        // Clones that no name leads to: nobody looks into them before they have one.
        let mut nameless = BTreeSet::new();
        for (branch, value) in &branches {
            self.refuse_if_ending()?;
            let top = FileId { branch: *branch, number: value.top };
            let place = || format!("{view}/ (clone {branch})");
            // It was removed, and nobody looks into that either.
            if value.top == 0 || value.is_going() {
                let stuck = if may_go { self.is_stuck(*branch, value).await.unwrap_or(None) } else { None };
                if let Some(why) = stuck {
                    found.note_at("HF1001", "catalog", place(), 0, "a clone that goes", &why);
                    found.offer("HF1001", Some(Remedy::Trees { gives_up: true }));
                }
                // In a snapshot it goes with that, which a pass of reclaim walks until then.
                if !may_go && let Some(error) = self.first_gap(&value.catalog).await? {
                    found.note_at("HF1001", "catalog", place(), 0, "a readable tree", &error);
                }
                continue;
            }
            // Which files should be in it nobody can tell: a clone begins with those that were open where it was made.
            if let Some(error) = self.first_gap(&value.orphans).await? {
                found.note_at("HF1014", "list of unlinked files", place(), 0, "a readable tree", &error);
                let gives_up = !value.is_pruned();
                found.offer("HF1014", Some(Remedy::Trees { gives_up }).filter(|_| may_go));
            }
            let name = found.clone_names.get(branch).cloned();
            if let Some((_, directory)) = name.as_ref().filter(|(_, directory)| *directory != value.above) {
                found.note_at("HF1017", "clone", place(), 0, &directory.to_string(), &value.above);
                // Where a clone lies its top says, too, which a repair has to read for that.
                let is_topless = self.is_topless(&value.catalog, top).await;
                let remedy = is_topless.map(|is_topless| Remedy::Trees { gives_up: is_topless || main_has_gaps });
                found.offer("HF1017", remedy.ok().filter(|_| may_go));
            }
            // What lies in a clone that has lost its name goes with it, behind, and nobody looks into that.
            let goes_with_it = branches.get(&value.above.branch).is_some_and(BranchValue::is_going);
            let Some(name) = name.map(|(name, _)| name).or_else(|| goes_with_it.then(String::new)) else {
                if nameless.contains(&value.above.branch) {
                    nameless.insert(*branch);
                    continue;
                }
                nameless.insert(*branch);
                found.note_at("HF1026", "clone", place(), 0, "a name that leads to it", &"none");
                let remedy = match self.name_of_clone(top, value, &branches).await {
                    Ok(CloneName::Gone) => Some(Remedy::Trees { gives_up: main_has_gaps }),
                    Ok(CloneName::Unknown) => Some(Remedy::Trees { gives_up: true }),
                    Ok(CloneName::There) | Err(_) => None,
                };
                // A snapshot never changes.
                found.offer("HF1026", remedy.filter(|_| may_go));
                continue;
            };
            let view = format!("{view}/…/{name} (clone {branch})");
            let root = FileId { branch: *branch, number: value.root() };
            let (is_pruned, catalog) = (value.is_pruned(), &value.catalog);
            // In a snapshot it goes with that.
            let scope = Scope { view, root, top: Some(top), is_pruned, may_go, catalog, orphans: None };
            self.check_catalog(scope, found, progress).await?;
        }
        // What was not found out of the last one for that alone is no finding.
        self.refuse_if_ending()
    }

    /// What has become of the name of a clone that the main branch has none for: it may be in the clone that it says it lies in.
    ///
    /// # Errors
    /// Disks that give no answer, which is no loss (I-101).
    pub(crate) async fn name_of_clone(
        &self,
        top: FileId,
        value: &BranchValue,
        branches: &BTreeMap<u32, BranchValue>,
    ) -> Result<CloneName, FileError> {
        let home = branches.get(&value.above.branch);
        let is_there = match home.filter(|home| home.top != 0) {
            Some(home) => self.has_name_for(&home.catalog, value.above, top).await?,
            // Of a list that was lost in part nobody knows what else it had.
            None if value.above.branch != 0 && home.is_none() => None,
            None => Some(false),
        };
        Ok(match is_there {
            Some(true) => CloneName::There,
            // The directory that it lies in is written into its top.
            Some(false) if !self.is_topless(&value.catalog, top).await? => CloneName::Gone,
            _ => CloneName::Unknown,
        })
    }

    /// Whether a directory has a name for the top of a clone; `None`: not in what can be read of it.
    async fn has_name_for(&self, catalog: &Root, directory: FileId, top: FileId) -> Result<Option<bool>, FileError> {
        let tree = match self.load(catalog, directory).await {
            Ok(Some(value)) => value.base.tree,
            Ok(None) => return Ok(Some(false)),
            Err(FileError::Store(error)) => return Ok(lost(error).map(|()| None)?),
            Err(error) => return Err(error),
        };
        let (mut is_whole, mut from) = (true, Some(0));
        while let Some(at) = from {
            self.refuse_if_ending()?;
            let (entries, next) = match self.trees.scan_past(&tree, at, 1024).await {
                Ok(scanned) => scanned,
                Err(gap) => {
                    is_whole = false;
                    from = lost(gap.error).map(|()| gap.next)?;
                    continue;
                }
            };
            for (_, bytes) in entries {
                match Entry::decode(directory.branch, &mut Reader::new(&bytes)) {
                    Ok(entry) if entry.file == top && entry.kind == Kind::Directory => return Ok(Some(true)),
                    Ok(_) => {}
                    Err(_) => is_whole = false,
                }
            }
            from = next;
        }
        Ok(is_whole.then_some(false))
    }

    /// Whether the directory that is a clone cannot be read, or is not there, so that nobody can come to what it has.
    pub(crate) async fn is_topless(&self, catalog: &Root, top: FileId) -> Result<bool, FileError> {
        match self.load(catalog, top).await {
            Ok(inode) => Ok(inode.is_none()),
            Err(FileError::Store(error)) => Ok(lost(error).map(|()| true)?),
            Err(error) => Err(error),
        }
    }

    /// Why a clone that was removed cannot go, where what has to be read for that is lost.
    pub(crate) async fn is_stuck(&self, branch: u32, value: &BranchValue) -> Result<Option<String>, FileError> {
        if value.top != 0 && !value.is_going() {
            return Ok(None);
        }
        if self.removals.has_lost(branch) {
            return Ok(Some("a directory of it cannot be read".to_owned()));
        }
        match value.top {
            0 => self.lost_orphan(branch, value).await,
            top => {
                let top = FileId { branch, number: top };
                let is_lost = self.is_topless(&value.catalog, top).await?;
                Ok(is_lost.then(|| format!("its own directory {top} cannot be read")))
            }
        }
    }

    /// Which of the files that were unlinked in a branch while they were open is lost, or their list: the branch would end with the last of them.
    async fn lost_orphan(&self, branch: u32, value: &BranchValue) -> Result<Option<String>, FileError> {
        let mut from = Some(0);
        while let Some(at) = from {
            self.refuse_if_ending()?;
            let (files, next) = match self.trees.scan_past(&value.orphans, at, 1024).await {
                Ok(scanned) => scanned,
                Err(gap) => {
                    let words = format!("its list of unlinked files cannot be read: {}", gap.error);
                    return Ok(lost(gap.error).map(|()| Some(words))?);
                }
            };
            for (number, _) in files {
                // What a catalog does not have is as lost as the directory that a clone is.
                let file = FileId { branch, number };
                if self.is_topless(&value.catalog, file).await? {
                    return Ok(Some(format!("{file}, which was unlinked while it was open, cannot be read")));
                }
            }
            from = next;
        }
        Ok(None)
    }

    /// The first part of a tree that cannot be read, if there is one.
    ///
    /// # Errors
    /// Disks that give no answer, which is no loss (I-101).
    pub(crate) async fn first_gap(&self, tree: &Root) -> Result<Option<StoreError>, FileError> {
        let mut from = Some(0);
        while let Some(at) = from {
            self.refuse_if_ending()?;
            match self.trees.scan_past(tree, at, 1024).await {
                Ok((_, next)) => from = next,
                Err(gap) => return Ok(lost(gap.error.clone()).map(|()| Some(gap.error))?),
            }
        }
        Ok(None)
    }
}
