//! Policies: what is asked for files against the loss of disks, set by people, inherited by what is made in a directory.
//!
//! I-108 A policy is in force for what is written when it is recorded, and trees and the journal are written to as many disks before
//!       ([`store::Store::raise_floor`]). What was written before follows, content by [`FileSystem::apply_policy`], trees as what lies on
//!       too few disks does (`mender`).
//!
//! Not here: how content is kept so (`store`).

use base::id::FileId;
use store::Resilience;

use crate::attributes::{Attributes, Kind, Node};
use crate::failure::FileError;
use crate::format::Change;
use crate::system::{FileSystem, SNAPSHOTS, Transaction};
use crate::write::{Layers, chunks_of};

/// A change of attributes in the journal, about.
const CHANGE_BYTES: u64 = 512;
/// Bytes of a file that are looked at while it is held.
const WINDOW_BYTES: u64 = 16 << 20;
/// Entries of a directory that are read at a time.
const LISTED: usize = 1000;

/// What [`FileSystem::set_policy_below`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyReport {
    /// Files and directories.
    pub files: u64,
    /// Chunks that were stored anew.
    pub raised: u64,
}

impl FileSystem {
    /// Asks for this from now on; local after [`FileSystem::sync_all`].
    ///
    /// # Errors
    /// `Refused` where there are too few disks for it; `ReadOnly` for what is no file of the present; the store's.
    pub async fn set_policy(&self, file: FileId, resilience: Resilience) -> Result<(), FileError> {
        if file == SNAPSHOTS {
            return Err(FileError::ReadOnly);
        }
        let inode = self.live(file).await?;
        if self.store.raise_floor(resilience).await? {
            self.wants_mending.notify_one();
        }
        let _room = self.admit_change(false, CHANGE_BYTES).await?;
        let _operation = inode.operation.lock().await;
        let mut transaction = Transaction::begin(self);
        let mut state = inode.state.lock();
        if state.is_gone {
            return Err(FileError::NoEntry);
        }
        let attributes = Attributes { resilience, changed: transaction.now, ..state.attributes.clone() };
        transaction.record(&inode, &mut state, Change::Attributes(attributes));
        transaction.log();
        drop(state);
        self.tell_if_known(file);
        Ok(())
    }

    /// Has the content that a file has already lie as its policy says, but for what a commit has in hand that began before it was set; how
    /// many chunks were stored anew for it. What is on more disks than it needs to be stays there.
    ///
    /// # Errors
    /// The store's; what was raised before stays so.
    pub async fn apply_policy(&self, file: FileId) -> Result<u64, FileError> {
        let inode = self.live(file).await?;
        let since = self.store.moment();
        let mut raised = 0;
        let mut start = 0;
        loop {
            // So that nothing of it goes meanwhile.
            let _operation = inode.operation.lock().await;
            let _flush = self.lock_flush(&inode).await;
            let _use = self.grace.enter(file.number);
            let Attributes { size, resilience, kind, .. } = inode.state.lock().attributes.clone();
            if start >= size || kind != Kind::Regular {
                break;
            }
            let end = (start + WINDOW_BYTES).min(size);
            // What is in memory is put as the policy says.
            let Layers { settled, .. } = self.layers(&inode, start..end).await?;
            let chunks: Vec<_> = chunks_of(&settled).collect();
            raised += self.store.raise(resilience, &chunks).await?;
            start = end;
        }
        self.store.settle(since).await?;
        Ok(raised)
    }

    /// Both, for a file or directory and, if `is_recursive`, everything below it; local when it returns. `tell` hears of files done.
    ///
    /// # Errors
    /// As for both; what was done before stays done.
    pub async fn set_policy_below(
        &self,
        file: FileId,
        resilience: Resilience,
        is_recursive: bool,
        tell: &(dyn Fn(u64) + Sync),
    ) -> Result<PolicyReport, FileError> {
        let mut report = PolicyReport::default();
        let (mut waiting, mut set) = (vec![file], Vec::new());
        while let Some(file) = waiting.pop() {
            match self.set_policy_of(file, resilience, is_recursive).await {
                // It went meanwhile.
                Err(FileError::NoEntry) if !set.is_empty() => continue,
                entries => waiting.extend(entries?),
            }
            set.push(file);
        }
        self.sync_all().await?;
        // A commit that has content in hand puts it as was asked before.
        self.commit().await?;
        for file in set {
            match self.apply_policy(file).await {
                Err(FileError::NoEntry) => {}
                raised => report.raised += raised?,
            }
            report.files += 1;
            tell(report.files);
        }
        Ok(report)
    }

    /// Sets it for one; gives what is in a directory, if that is wanted.
    async fn set_policy_of(
        &self,
        file: FileId,
        resilience: Resilience,
        is_recursive: bool,
    ) -> Result<Vec<FileId>, FileError> {
        self.set_policy(file, resilience).await?;
        let (node, mut entries) = (Node::live(file), Vec::new());
        if is_recursive && self.attributes(node).await?.kind == Kind::Directory {
            let mut after = 0;
            loop {
                let listed = self.read_directory(node, after, LISTED).await?;
                let Some(last) = listed.last() else { break };
                after = last.cookie;
                entries.extend(listed.iter().map(|entry| entry.node.file).filter(|file| *file != SNAPSHOTS));
            }
        }
        Ok(entries)
    }
}
