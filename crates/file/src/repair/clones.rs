//! Repair of clones: which names lead to one, which clones have none, and the list of them.
//!
//! Each clone's catalog is surveyed as the main one is, and has a `lost+found` of its own. Of one that was not pruned nobody can tell which files
//! without a name lay below its top: where something of it is lost, and that is accepted, what has fewer names than it should counts as below,
//! and what else the top does not lead to goes (I-112). A catalog is written with a new directory as its top
//! where that is lost. A clone that lay in another one, and whose name is lost with that, goes to `/lost+found` as any other.
//!
//! Not here: names and inodes of the main branch (`repair`).

use std::collections::{BTreeMap, BTreeSet};

use base::codec::Reader;
use base::id::FileId;

use super::survey::{Known, Survey};
use crate::attributes::{Attributes, Kind};
use crate::check::CloneName;
use crate::directory::encode_entry;
use crate::failure::{FileError, lost};
use crate::format::{BranchValue, Entry, INLINE_BYTES_MAX, InodeValue, Root};
use crate::system::FileSystem;
use crate::tree::Edits;

impl FileSystem {
    /// Whether it is the top of a clone that may have its name in this directory: in one of the main branch any may, in one of a clone those that
    /// say so.
    pub(super) fn is_top_in(&self, top: FileId, directory: FileId) -> bool {
        self.branches
            .lock()
            .get(&top.branch)
            .is_some_and(|branch| branch.top == top.number && (directory.branch == 0 || branch.above == directory))
    }

    /// Clones that no name leads to, as far as that is sure; with `accepts_loss` also those whose name may be in what cannot be read.
    pub(super) async fn nameless_clones(&self, survey: &Survey, accepts_loss: bool) -> Result<Vec<FileId>, FileError> {
        let branches = self.branches.lock().clone();
        let mut nameless = Vec::new();
        for (&branch, value) in branches.iter().filter(|(_, value)| value.top != 0 && !value.is_going()) {
            let top = FileId { branch, number: value.top };
            let is_given_up = survey.stuck.contains(&value.above.branch);
            // What lies in a clone that is going goes with it.
            let goes_with_it = branches.get(&value.above.branch).is_some_and(BranchValue::is_going);
            if survey.places.contains_key(&top) || goes_with_it && !is_given_up {
                continue;
            }
            let is_nameless = match self.name_of_clone(top, value, &branches).await? {
                CloneName::There => is_given_up,
                CloneName::Gone => true,
                CloneName::Unknown => accepts_loss,
            };
            nameless.extend(is_nameless.then_some(top));
        }
        Ok(nameless)
    }

    /// The list of clones; without what cannot be read if that is accepted, with a new directory for a clone whose own is lost, and without
    /// those that were removed and cannot go. And what has changed: a clone, or `None` where there is none any more.
    pub(super) async fn repaired_branches(
        &self,
        list: &Root,
        (accepts_loss, owner): (bool, (u32, u32)),
        survey: &mut Survey,
    ) -> Result<(Root, BTreeMap<u32, Option<BranchValue>>), FileError> {
        let (listed, gone) = self.scan_branches(list).await;
        let mut list = list.clone();
        if !gone.is_empty() && accepts_loss {
            let count = gone.len();
            gone.into_iter().try_for_each(|(_, error)| lost(error))?;
            let edits = listed.iter().map(|(branch, value)| (u64::from(*branch), Some(value.encode()))).collect();
            survey.done.push(format!(
                "the list of clones is written again with the {} that can be read; {count} parts of it are lost",
                listed.len()
            ));
            list = self.trees.update(&Root::Empty, edits, INLINE_BYTES_MAX).await?;
        }
        let mut changed = BTreeMap::new();
        for (branch, value) in listed {
            if survey.stuck.contains(&branch) {
                survey.done.push(format!("clone {branch} was removed, and goes with all that cannot be read of it"));
                changed.insert(branch, None);
                continue;
            }
            let top = FileId { branch, number: value.top };
            let named_in = survey.places.get(&top).and_then(|places| places.first()).map(|place| place.directory);
            let above = named_in.unwrap_or(value.above);
            if value.top == 0 || value.is_going() {
                continue;
            }
            let mut now = value.clone();
            let is_topless = self.is_topless(&value.catalog, top).await?;
            if is_topless {
                if !accepts_loss {
                    continue;
                }
                let (anew, count) = self.made_anew(top, BranchValue { above, ..value.clone() }, owner).await?;
                survey.done.push(format!(
                    "the directory that is clone {branch} is lost, and made anew with {count} of what lay in it, under their numbers"
                ));
                now = anew;
            } else if above != value.above {
                now = self.moved(top, now, above).await?;
            }
            now = self.repaired_catalog((top, is_topless), now, (accepts_loss, owner), survey).await?;
            if now != value {
                changed.insert(branch, Some(now));
            }
        }
        let encoded = |value: &Option<BranchValue>| value.as_ref().map(BranchValue::encode);
        let edits = changed.iter().map(|(branch, value)| (u64::from(*branch), encoded(value))).collect();
        Ok((self.trees.update(&list, edits, INLINE_BYTES_MAX).await?, changed))
    }

    /// A branch whose catalog says one consistent thing. `is_anew`: its top was lost.
    async fn repaired_catalog(
        &self,
        (top, is_anew): (FileId, bool),
        value: BranchValue,
        (accepts_loss, owner): (bool, (u32, u32)),
        main: &mut Survey,
    ) -> Result<BranchValue, FileError> {
        if !accepts_loss && !value.is_pruned() {
            return Ok(value);
        }
        let catalog = &value.catalog;
        let mut survey = Survey::of(top);
        self.survey_catalog(catalog, &mut survey).await?;
        self.survey_directories(catalog, accepts_loss && value.is_pruned(), &mut survey).await?;
        let mut beside = Vec::new();
        if !value.is_pruned() {
            // Names that lead nowhere are nothing that is lost (I-112).
            let root = top.beside(value.root());
            let has_orphans = self.first_gap(&value.orphans).await?.is_none();
            if survey.known.contains_key(&root) && !survey.has_losses() && !is_anew && has_orphans {
                return Ok(value);
            }
            beside = self.survey_below(catalog, (root, is_anew), &mut survey).await?;
        }
        let (mut inodes, judges_names) = self.judge(catalog, (accepts_loss, owner), &mut survey).await?;
        inodes.extend(beside.into_iter().map(|file| (file, None)));
        let catalog = self.written_catalog(catalog, accepts_loss, &survey, inodes).await?;
        if judges_names && self.first_gap(&value.orphans).await?.is_some() {
            survey.done.push("the list of unlinked files is made anew".to_owned());
        }
        main.done.extend(top.branch, survey.done);
        let (orphans, root) = match judges_names {
            true => (Root::Empty, top.number),
            false => (value.orphans, value.root),
        };
        Ok(BranchValue { catalog, orphans, root, ..value })
    }

    /// Surveys the names below the top of a clone that was not pruned, and below what has lost a name; gives the files beside, which are known no
    /// more.
    async fn survey_below(
        &self,
        catalog: &Root,
        (root_before, is_anew): (FileId, bool),
        survey: &mut Survey,
    ) -> Result<Vec<FileId>, FileError> {
        let (root, known) = (survey.root, std::mem::take(&mut survey.known));
        let (undecodable, lost_content) =
            (std::mem::take(&mut survey.undecodable), std::mem::take(&mut survey.lost_content));
        let catalog_has_gaps = survey.catalog_has_gaps;
        let fresh = Survey { known, undecodable, lost_content, catalog_has_gaps, ..Survey::of(root) };
        // All names of the catalog that can be read, also of what lies beside.
        let Survey { names, places, .. } = std::mem::replace(survey, fresh);
        let mut below = BTreeSet::new();
        self.follow(catalog, vec![survey.root], &mut below, survey).await?;
        let is_lost = |(file, known): &(&FileId, &Known)| {
            let lacks_name = match known.kind {
                Kind::Directory => **file != root_before && !places.contains_key(file),
                _ => names.get(file).is_none_or(|names| *names < known.links),
            };
            !below.contains(*file) && known.links > 0 && lacks_name
        };
        // Where all of what is below can be read, what has no name lay beside, and is others'.
        let is_whole_below = survey.gaps.is_empty() && !survey.catalog_has_gaps && survey.undecodable.is_empty();
        if !is_whole_below || is_anew {
            let lost = survey.known.iter().filter(is_lost).map(|(file, _)| *file).collect();
            self.follow(catalog, lost, &mut below, survey).await?;
        }
        let (kept, beside) = std::mem::take(&mut survey.known).into_iter().partition(|(file, _)| below.contains(file));
        survey.known = kept;
        survey.lost_content.retain(|file| below.contains(file));
        Ok(BTreeMap::<FileId, Known>::into_keys(beside).collect())
    }

    /// Surveys directories, and what names lead to from there.
    async fn follow(
        &self,
        catalog: &Root,
        mut waiting: Vec<FileId>,
        below: &mut BTreeSet<FileId>,
        survey: &mut Survey,
    ) -> Result<(), FileError> {
        while let Some(file) = waiting.pop() {
            if survey.known.contains_key(&file) && below.insert(file) && survey.known[&file].kind == Kind::Directory {
                self.survey_directory(catalog, file, true, survey).await?;
                waiting.append(&mut survey.met);
            }
        }
        Ok(())
    }

    /// Clones that were removed and cannot go.
    pub(super) async fn stuck_clones(&self) -> Result<BTreeSet<u32>, FileError> {
        let branches = self.branches.lock().clone();
        let mut stuck = BTreeSet::new();
        for (branch, value) in branches {
            if self.is_stuck(branch, &value).await?.is_some() {
                stuck.insert(branch);
            }
        }
        Ok(stuck)
    }

    /// A branch whose top is made anew, without what cannot be read of its catalog; and how much the new top has: under its number, what lay in
    /// the one that is lost, as far as that can be told. Of a branch that has nothing beside its top that is all that has no name; of another one
    /// what lies or was made in it, or in a directory that is lost as well.
    async fn made_anew(
        &self,
        top: FileId,
        value: BranchValue,
        owner: (u32, u32),
    ) -> Result<(BranchValue, usize), FileError> {
        let kept = self.without_gaps(&value.catalog).await?;
        let (mut inodes, mut named, mut edits) = (BTreeMap::new(), BTreeSet::new(), Edits::new());
        let mut from = Some(0);
        while let Some(at) = from {
            let (found, next) = self.trees.scan(&kept, at, 256).await?;
            for (number, bytes) in found {
                let file = top.beside(number);
                match InodeValue::decode(file, &bytes) {
                    Ok(inode) if inode.attributes.links > 0 => {
                        let Attributes { kind, parent, .. } = inode.attributes;
                        if kind == Kind::Directory {
                            self.note_names(file, &inode.base.tree, &mut named).await?;
                        }
                        inodes.insert(number, (kind, parent));
                    }
                    // It was unlinked, and nobody uses it; or nobody knows what it was.
                    _ => drop(edits.insert(number, None)),
                }
            }
            from = next;
        }
        let has_nothing_beside = value.root() == value.top;
        let lay_there = |(number, (_, parent)): &(u64, (Kind, FileId))| {
            let is_nobodys = *number != value.root() && !named.contains(number);
            is_nobodys && (has_nothing_beside || *parent == top || !inodes.contains_key(&parent.number))
        };
        let (mut entries, mut subdirectories) = (Edits::new(), 0);
        let found: Vec<_> = inodes.iter().map(|(number, known)| (*number, *known)).filter(lay_there).collect();
        for (number, (kind, _)) in found {
            let (file, name) = (top.beside(number), number.to_string());
            let Some(mut inode) = self.load(&kept, file).await? else { continue };
            if kind == Kind::Directory {
                inode.attributes.parent = top;
                subdirectories += 1;
            } else {
                inode.attributes.links = 1;
            }
            edits.insert(number, Some(inode.encode()));
            let free = self.cookies(name.as_bytes()).find(|cookie| !entries.contains_key(cookie));
            let entry = Entry { file, kind, name: name.as_bytes().into() };
            entries.insert(free.expect("few share a hash"), Some(encode_entry(&entry, top.branch)));
        }
        let count = entries.len();
        let mut inode = self.new_directory(top, 0o700, owner);
        (inode.attributes.parent, inode.attributes.links) = (value.above, 2 + subdirectories);
        inode.attributes.size = count as u64;
        inode.base.tree = self.trees.update(&Root::Empty, entries, INLINE_BYTES_MAX).await?;
        edits.insert(top.number, Some(inode.encode()));
        let catalog = self.trees.update(&kept, edits, INLINE_BYTES_MAX).await?;
        let root = if kept == Root::Empty { value.top } else { value.root };
        Ok((BranchValue { catalog, orphans: Root::Empty, root, ..value }, count))
    }

    /// Notes the files of its own branch that a directory has names for, as far as it can be read.
    async fn note_names(&self, directory: FileId, tree: &Root, named: &mut BTreeSet<u64>) -> Result<(), FileError> {
        let mut from = Some(0);
        while let Some(at) = from {
            match self.trees.scan_past(tree, at, 1024).await {
                Ok((entries, next)) => {
                    let entries =
                        entries.iter().map(|(_, bytes)| Entry::decode(directory.branch, &mut Reader::new(bytes)));
                    let own = entries.flatten().filter(|entry| entry.file.branch == directory.branch);
                    named.extend(own.map(|entry| entry.file.number));
                    from = next;
                }
                Err(gap) => from = lost(gap.error).map(|()| gap.next)?,
            }
        }
        Ok(())
    }

    /// A branch whose top has its name in another directory.
    async fn moved(&self, top: FileId, value: BranchValue, above: FileId) -> Result<BranchValue, FileError> {
        let Some(mut inode) = self.load(&value.catalog, top).await? else { return Ok(value) };
        inode.attributes.parent = above;
        let edits = Edits::from([(top.number, Some(inode.encode()))]);
        let catalog = self.trees.update(&value.catalog, edits, INLINE_BYTES_MAX).await?;
        Ok(BranchValue { catalog, above, ..value })
    }
}
