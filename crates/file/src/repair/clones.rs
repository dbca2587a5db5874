//! Repair of clones: which names lead to one, which clones have none, and the list of them.
//!
//! The catalog of a clone stays as it is, but for the directory that its top says it lies in; and is a new one where nothing can be read
//! of it. A clone that lay in another one, and whose name is lost with that, goes to `/lost+found` as any other.
//!
//! Not here: names and inodes of the main branch (`repair`).

use std::collections::BTreeMap;

use base::codec::Reader;
use base::id::FileId;
use bytes::Bytes;

use super::{Survey, lost};
use crate::failure::FileError;
use crate::format::{BranchValue, Entry, INLINE_BYTES_MAX, Root};
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
        for (&branch, value) in branches.iter().filter(|(_, value)| value.top != 0) {
            let top = FileId { branch, number: value.top };
            if survey.places.contains_key(&top) || branches.get(&value.above.branch).is_some_and(BranchValue::is_going)
            {
                continue;
            }
            // One that was removed goes to its end, unless it can be found again: `removals` could not read it then.
            let takes_unread = accepts_loss && value.above != FileId::NONE;
            let is_nameless = match self.has_lost_its_name(top, value, &branches).await {
                Ok(is_nameless) => is_nameless,
                Err(FileError::Store(error)) => lost(error).map(|()| takes_unread)?,
                Err(error) => return Err(error),
            };
            nameless.extend(is_nameless.then_some(top));
        }
        Ok(nameless)
    }

    /// Whether a clone that no name leads to has none for sure, and can be given one without anything being given up.
    pub(crate) async fn is_surely_nameless(
        &self,
        branch: u32,
        value: &BranchValue,
        branches: &BTreeMap<u32, BranchValue>,
    ) -> bool {
        let top = FileId { branch, number: value.top };
        self.has_lost_its_name(top, value, branches).await.unwrap_or(false)
    }

    /// Whether a clone that the main branch has no name for has none in the clone that it says it lies in either.
    async fn has_lost_its_name(
        &self,
        top: FileId,
        value: &BranchValue,
        branches: &BTreeMap<u32, BranchValue>,
    ) -> Result<bool, FileError> {
        // One that cannot be read may be another day's.
        self.load(&value.catalog, top).await?;
        let Some(home) = branches.get(&value.above.branch) else { return Ok(true) };
        let Some(directory) = self.load(&home.catalog, value.above).await? else { return Ok(true) };
        let (mut gap, mut from) = (None, Some(0));
        while let Some(at) = from {
            let (entries, next) = match self.trees.scan_past(&directory.base.tree, at, 1024).await {
                Ok(scanned) => scanned,
                Err(error) => {
                    from = error.next;
                    gap = Some(error.error);
                    continue;
                }
            };
            let leads_there = |bytes: &Bytes| {
                Entry::decode(value.above.branch, &mut Reader::new(bytes)).is_ok_and(|entry| entry.file == top)
            };
            if entries.iter().any(|(_, bytes)| leads_there(bytes)) {
                return Ok(false);
            }
            from = next;
        }
        gap.map_or(Ok(true), |gap| Err(gap.into()))
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
            let top = FileId { branch, number: value.top };
            let named_in = survey.places.get(&top).and_then(|places| places.first()).map(|place| place.directory);
            let above = named_in.unwrap_or(value.above);
            if accepts_loss && value.top != 0 && self.is_nothing_left(&value.catalog).await? {
                survey.done.push(format!("nothing can be read of clone {branch}: it is an empty directory now"));
                moved.insert(branch, self.emptied(branch, BranchValue { above, ..value }, owner).await?);
            } else if above != value.above {
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
    async fn emptied(&self, branch: u32, value: BranchValue, owner: (u32, u32)) -> Result<BranchValue, FileError> {
        let top = FileId { branch, number: value.top };
        let mut inode = self.new_directory(top, 0o755, owner);
        inode.attributes.parent = value.above;
        let edits = Edits::from([(top.number, Some(inode.encode()))]);
        let catalog = self.trees.update(&Root::Empty, edits, INLINE_BYTES_MAX).await?;
        Ok(BranchValue { catalog, orphans: Root::Empty, root: value.top, ..value })
    }

    /// A branch whose top has its name in another directory.
    async fn moved(&self, top: FileId, value: BranchValue, above: FileId) -> Result<BranchValue, FileError> {
        let mut inode = match self.load(&value.catalog, top).await {
            Ok(Some(inode)) => inode,
            // Its name leads there all the same: it can be removed.
            Ok(None) => return Ok(BranchValue { above, ..value }),
            Err(FileError::Store(error)) => return Ok(lost(error).map(|()| BranchValue { above, ..value })?),
            Err(error) => return Err(error),
        };
        inode.attributes.parent = above;
        let edits = Edits::from([(top.number, Some(inode.encode()))]);
        let catalog = self.trees.update(&value.catalog, edits, INLINE_BYTES_MAX).await?;
        Ok(BranchValue { catalog, above, ..value })
    }
}
