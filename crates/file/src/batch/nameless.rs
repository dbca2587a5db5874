//! A file of a batch that no frame holds: it is made without a name, is filled step by step, and takes its name when it is whole.
//!
//! I-151 A file of more content than a frame has no name before all of it is logged: after a crash it is whole under its name, or nowhere.
//!       Who fills it refers to it until then, so that no prune takes it; if he gives up, it is no more.
//!
//! Not here: what it is filled with (`copy`).

use std::sync::Arc;

use base::id::FileId;
use bytes::Bytes;

use super::plan::{Conceived, Plan, split};
use super::unit::{BatchBudget, BatchEntry, BatchWrite, BatchWriteReport};
use crate::attributes::{Attributes, Node};
use crate::directory::expect_directory;
use crate::failure::FileError;
use crate::format::Change;
use crate::inode::Inode;
use crate::system::{FileSystem, Transaction, Unborn};

/// A file on its way.
pub(super) struct Nameless<'a> {
    system: &'a FileSystem,
    inode: Arc<Inode>,
    directory: FileId,
}

impl FileSystem {
    /// Makes the file of an entry, without content yet, and without its name. The directory is there.
    ///
    /// # Errors
    /// Those of the entry in a unit.
    pub(super) async fn bear_nameless(
        &self,
        parent: FileId,
        entry: &BatchEntry,
        how: &BatchWrite,
    ) -> Result<Nameless<'_>, FileError> {
        let mut budget = BatchBudget::default();
        if !budget.take_stored(entry, &[]) {
            return Err(FileError::Invalid("more than a frame of one file"));
        }
        let _room = self.admit_unit((0, 0), (budget.taken_of_frame(), 1)).await?;
        let mut plan = Plan::begin(self, self.live(parent).await?, how).await?;
        let Conceived { directory, attributes, xattrs } = plan.conceive(entry).await?;
        let file = FileId { branch: directory.file.branch, ..self.new_files(1)? };
        let attributes = Attributes { file, parent: directory.file, size: 0, ..attributes };
        let mut unborn = Unborn::new(self.now(), 0);
        let create = Change::Create { attributes, target: Bytes::new() };
        let xattrs = xattrs.into_iter().map(|(name, value)| Change::Xattr { name, value: Some(value) });
        let inode = unborn.bear(file, [create].into_iter().chain(xattrs));
        inode.state.lock().allocated = Some(0);

        let mut transaction = Transaction::begin(self);
        expect_directory(&directory.state.lock())?;
        transaction.adopt(unborn);
        transaction.log();
        self.retain(Node::live(file));
        Ok(Nameless { system: self, inode, directory: directory.file })
    }
}

impl Nameless<'_> {
    /// What its content goes to.
    pub(super) fn file(&self) -> FileId {
        self.inode.file
    }

    /// All of it is there: it takes the name of its entry.
    pub(super) async fn finish(self, entry: &BatchEntry) -> Result<BatchWriteReport, FileError> {
        self.system.link(self.file(), self.directory, split(&entry.path).1).await?;
        let (fates, homes) = (vec![Ok(self.file())], vec![self.directory]);
        Ok(BatchWriteReport { fates, homes, is_done: true, made: 1 })
    }
}

impl Drop for Nameless<'_> {
    fn drop(&mut self) {
        if self.system.references.lock().take_back(self.file(), 1) {
            self.system.end_if_unused(&self.inode);
        }
    }
}
