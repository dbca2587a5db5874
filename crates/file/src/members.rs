//! Which disks the node has, for who changes it: what the store needs from the trees above it.
//!
//! Not here: how a disk comes and goes (`store`), what goes on in the background (`mender`).

use platform::disk::Disk;
use store::{CopiesReport, DrainPlan, Gone, Share};

use crate::failure::FileError;
use crate::system::FileSystem;

impl FileSystem {
    /// As [`store::Store::format_disk`].
    ///
    /// # Errors
    /// As there.
    pub async fn format_disk(&self, disk: &Disk) -> Result<(), FileError> {
        Ok(self.store.format_disk(disk).await?)
    }

    /// As [`store::Store::take_in_disk`].
    ///
    /// # Errors
    /// As there.
    pub async fn take_in_disk(&self, disk: &Disk) -> Result<u64, FileError> {
        Ok(self.store.take_in_disk(disk).await?)
    }

    /// What [`FileSystem::drain_disk`] would do.
    ///
    /// # Errors
    /// As [`store::Store::drain_plan`].
    pub fn drain_plan(&self, number: u64) -> Result<DrainPlan, FileError> {
        Ok(self.store.drain_plan(number)?)
    }

    /// Has a disk take nothing new, or take part again. What lies there goes to others in the background, or by
    /// [`FileSystem::empty_disk`].
    ///
    /// # Errors
    /// As [`store::Store::drain_disk`].
    pub async fn drain_disk(&self, number: u64, is_drained: bool) -> Result<(), FileError> {
        Ok(self.store.drain_disk(number, is_drained).await?)
    }

    /// Brings everything from a disk that is drained to others; whether nothing is there afterwards, and what was done. `tell` hears of bytes
    /// done, and of bytes in all.
    ///
    /// # Errors
    /// Why a commit failed: the journal is needed as long as frames are in it.
    pub async fn empty_disk(
        &self,
        number: u64,
        share: Share,
        tell: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<(bool, CopiesReport), FileError> {
        let report = self.restore_copies(share, tell).await;
        self.commit_everywhere().await?;
        Ok((self.store.is_disk_empty(number).await?, report))
    }

    /// The node does without a disk from now on: as [`store::Store::remove_disk`].
    ///
    /// # Errors
    /// As there, and why a commit failed.
    pub async fn remove_disk(&self, number: u64, accepts_loss: bool) -> Result<Gone, FileError> {
        self.commit_everywhere().await?;
        Ok(self.store.remove_disk(number, accepts_loss).await?)
    }
}
