//! Repair of clones: which names lead to one, which clones have none, and the list of them.
//!
//! The catalog of a clone is not looked at, and stays as it is, but for the directory that its top says it lies in.
//!
//! Not here: names and inodes of the main branch (`repair`).

use std::collections::BTreeMap;

use base::id::FileId;

use super::{Survey, lost};
use crate::failure::FileError;
use crate::format::{BranchValue, INLINE_BYTES_MAX, Root};
use crate::system::FileSystem;
use crate::tree::Edits;

impl FileSystem {
    /// Whether there is a clone of this branch and top.
    pub(super) fn has_top(&self, branch: u32, top: u64) -> bool {
        self.branches.lock().get(&branch).is_some_and(|branch| branch.top == top)
    }

    /// Clones that no name leads to. Those in clones are not looked for: the names of another branch are not looked at.
    pub(super) async fn nameless_clones(&self, survey: &Survey) -> Result<Vec<FileId>, FileError> {
        let branches = self.branches.lock().clone();
        let mut nameless = Vec::new();
        for (branch, value) in branches.into_iter().filter(|(_, value)| value.top != 0) {
            let top = FileId { branch, number: value.top };
            if survey.places.contains_key(&top) {
                continue;
            }
            match self.load(&value.catalog, top).await {
                Ok(found) => nameless.extend(found.filter(|found| found.attributes.parent.branch == 0).map(|_| top)),
                Err(FileError::Store(error)) => lost(error)?,
                Err(error) => return Err(error),
            }
        }
        Ok(nameless)
    }

    /// The list of clones; without what cannot be read if that is accepted, and with an empty directory for a clone of which nothing can. And those that have a name in another directory now.
    pub(super) async fn repaired_branches(
        &self,
        list: &Root,
        (accepts_loss, owner): (bool, (u32, u32)),
        survey: &mut Survey,
    ) -> Result<(Root, BTreeMap<u32, BranchValue>), FileError> {
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
        let mut moved = BTreeMap::new();
        for (branch, value) in listed {
            if accepts_loss && value.top != 0 && self.is_nothing_left(&value.catalog).await? {
                survey.done.push(format!("nothing can be read of clone {branch}: it is an empty directory now"));
                moved.insert(branch, self.emptied(branch, &value, owner).await?);
                continue;
            }
            let top = FileId { branch, number: value.top };
            let named_in = survey.places.get(&top).and_then(|places| places.first()).map(|place| place.directory);
            if let Some(above) = named_in.filter(|above| *above != value.above) {
                moved.insert(branch, self.moved(top, value, above).await?);
            }
        }
        let edits = moved.iter().map(|(branch, value)| (u64::from(*branch), Some(value.encode()))).collect();
        Ok((self.trees.update(&list, edits, INLINE_BYTES_MAX).await?, moved))
    }

    /// Whether not one inode of a catalog can be read.
    async fn is_nothing_left(&self, catalog: &Root) -> Result<bool, FileError> {
        let mut from = Some(0);
        while let Some(at) = from {
            from = match self.trees.scan_past(catalog, at, 1).await {
                Ok((inodes, _)) if !inodes.is_empty() => return Ok(false),
                Ok((_, next)) => next,
                Err(gap) => lost(gap.error).map(|()| gap.next)?,
            };
        }
        Ok(true)
    }

    /// A branch with its top alone, for its name to lead to.
    async fn emptied(&self, branch: u32, value: &BranchValue, owner: (u32, u32)) -> Result<BranchValue, FileError> {
        let top = FileId { branch, number: value.top };
        let mut inode = self.new_directory(top, 0o755, owner);
        inode.attributes.parent = value.above;
        let edits = Edits::from([(top.number, Some(inode.encode()))]);
        let catalog = self.trees.update(&Root::Empty, edits, INLINE_BYTES_MAX).await?;
        Ok(BranchValue { catalog, orphans: Root::Empty, root: value.top, ..value.clone() })
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
