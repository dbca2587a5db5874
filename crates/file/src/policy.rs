//! Policies: what is asked for files against the loss of disks, set by people, inherited by what is made in a directory.
//!
//! I-108 A policy is in force for what is written when it is recorded, and trees and the journal are written to as many disks before
//!       ([`store::Store::raise_floor`]). What was written before follows, content by [`FileSystem::set_policy_below`], trees as what lies
//!       on too few disks does (`mender`).
//!
//! Not here: how content is kept so (`store`), and how it is brought there (`raiser`).

use base::id::FileId;
use store::{Pace, Resilience, Share, StoreError};

use crate::attributes::{Attributes, Kind, Node, View};
use crate::failure::FileError;
use crate::format::Change;
use crate::raising::PolicyReport;
use crate::system::{FileSystem, SNAPSHOTS, Transaction};

/// A change of attributes in the journal, about.
const CHANGE_BYTES: u64 = 512;
/// Entries of a directory that are read at a time.
const LISTED: usize = 1000;

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

    /// The same for a file or directory and, if `is_recursive`, everything below it, and has the content that they have already lie so, but for what is on
    /// more disks; local when it returns. `tell` hears of files done. What
    /// cannot be brought to as many disks is told, stops nothing else, and is tried again in the background (I-167).
    ///
    /// # Errors
    /// As for setting it, and what keeps content of all files where it is. What was done before stays done.
    pub async fn set_policy_below(
        &self,
        file: FileId,
        resilience: Resilience,
        is_recursive: bool,
        tell: &(dyn Fn(u64) + Sync),
    ) -> Result<PolicyReport, FileError> {
        let raise = self.begin_raise().await?;
        let mut report = PolicyReport::default();
        let (mut waiting, mut set) = (vec![file], Vec::new());
        while let Some(file) = waiting.pop() {
            self.refuse_if_ending()?;
            match self.set_policy_of(file, resilience, is_recursive).await {
                // It went meanwhile.
                Err(FileError::NoEntry) if !set.is_empty() => continue,
                // Nothing was changed.
                Err(error @ FileError::Store(StoreError::Refused { .. })) if set.is_empty() => {
                    let _ = self.end_raise(raise).await;
                    return Err(error);
                }
                entries => waiting.extend(entries?),
            }
            set.push(file);
        }
        self.sync_all().await?;
        // A commit that has content in hand puts it as was asked before.
        self.commit().await?;
        self.tell_left_out(&mut report);
        let (goes_on, of_time) = (|| !self.is_ending(), || Share::FULL);
        let pace = Pace::new(&self.platform, &of_time, &goes_on);
        let since = self.store.moment();
        for file in set {
            self.raise_file((View::LIVE, file.branch), file.number, &pace, false, &mut report).await?;
            tell(report.files);
        }
        self.store.settle(since).await?;
        if report.failed == 0 {
            self.end_raise(raise).await?;
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
