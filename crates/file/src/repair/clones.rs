//! Repair of clones: which names lead to one, which clones have none, and the list of them.
//!
//! The catalog of a clone stays as it is, but for the directory that its top says it lies in; and is written again, with an empty directory as its
//! top, where that is lost. A clone that lay in another one, and whose name is lost with that, goes to `/lost+found` as any other.
//!
//! Not here: names and inodes of the main branch (`repair`).

use std::collections::BTreeMap;

use base::id::FileId;

use super::Survey;
use crate::check::CloneName;
use crate::failure::{FileError, lost};
use crate::format::{BranchValue, INLINE_BYTES_MAX, Root};
use crate::system::FileSystem;
use crate::tree::Edits;

impl FileSystem {
    /// Whether there is a clone of this branch and top.
    pub(super) fn has_top(&self, branch: u32, top: u64) -> bool {
        self.branches.lock().get(&branch).is_some_and(|branch| branch.top == top)
    }

    /// Clones that no name leads to, as far as that is sure; with `accepts_loss` also those whose name may be in what cannot be read.
    pub(super) async fn nameless_clones(&self, survey: &Survey, accepts_loss: bool) -> Result<Vec<FileId>, FileError> {
        let branches = self.branches.lock().clone();
        let mut nameless = Vec::new();
        // What lies in a clone that is going goes with it.
        let is_going = |branch: &u32| branches.get(branch).is_some_and(BranchValue::is_going);
        for (&branch, value) in branches.iter().filter(|(_, value)| value.top != 0 && !value.is_going()) {
            let top = FileId { branch, number: value.top };
            if survey.places.contains_key(&top) || is_going(&value.above.branch) {
                continue;
            }
            let is_nameless = match self.name_of_clone(top, value, &branches).await? {
                CloneName::There => false,
                CloneName::Gone => true,
                CloneName::Unknown => accepts_loss,
            };
            nameless.extend(is_nameless.then_some(top));
        }
        Ok(nameless)
    }

    /// The list of clones; without what cannot be read if that is accepted, with an empty directory for a clone whose own is lost, and without
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
        for (branch, value) in listed.into_iter().filter(|(_, value)| value.top != 0) {
            let top = FileId { branch, number: value.top };
            let named_in = survey.places.get(&top).and_then(|places| places.first()).map(|place| place.directory);
            let above = named_in.unwrap_or(value.above);
            if accepts_loss && value.is_going() {
                if self.is_stuck(top, &value).await? {
                    survey
                        .done
                        .push(format!("clone {branch} was removed, and goes with all that cannot be read of it"));
                    changed.insert(branch, None);
                }
            } else if accepts_loss && self.is_topless(&value.catalog, top).await? {
                survey.done.push(format!("the directory that is clone {branch} is lost: it is an empty one now"));
                changed.insert(branch, Some(self.emptied(top, BranchValue { above, ..value }, owner).await?));
            } else if above != value.above {
                changed.insert(branch, Some(self.moved(top, value, above).await?));
            }
        }
        let encoded = |value: &Option<BranchValue>| value.as_ref().map(BranchValue::encode);
        let edits = changed.iter().map(|(branch, value)| (u64::from(*branch), encoded(value))).collect();
        Ok((self.trees.update(&list, edits, INLINE_BYTES_MAX).await?, changed))
    }

    /// A branch with an empty directory as its top, for its name to lead to, and so that it can be removed. What lay in the one that is lost
    /// stays as far as it can be read.
    async fn emptied(&self, top: FileId, value: BranchValue, owner: (u32, u32)) -> Result<BranchValue, FileError> {
        let kept = self.without_gaps(&value.catalog).await?;
        let orphans = self.without_gaps(&value.orphans).await?;
        let root = if kept == Root::Empty { value.top } else { value.root };
        let mut inode = self.new_directory(top, 0o755, owner);
        inode.attributes.parent = value.above;
        let edits = Edits::from([(top.number, Some(inode.encode()))]);
        let catalog = self.trees.update(&kept, edits, INLINE_BYTES_MAX).await?;
        Ok(BranchValue { catalog, orphans, root, ..value })
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
