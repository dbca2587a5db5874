//! Reclaim: giving back the room of chunks that nobody needs any more.

use base::id::ChunkAddress;

use crate::failure::StoreError;
use crate::store::Store;

/// What [`crate::Store::reclaim`] did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReclaimReport {
    /// Packs that were examined.
    pub packs_examined: u64,
    /// Packs without a chunk that is needed.
    pub packs_dead: u64,
    /// Packs whose few needed chunks were copied to other packs.
    pub packs_sparse: u64,
    /// Pack files removed by this call.
    pub packs_deleted: u64,
    /// Packs that wait for the next superblocks before they may be removed.
    pub packs_waiting: u64,
    /// Bytes of files removed by this call.
    pub bytes_freed: u64,
    /// Bytes that the waiting ones will give back.
    pub bytes_waiting: u64,
    /// Bytes copied out of sparse packs.
    pub bytes_copied: u64,
    /// Packs left alone because they could not be read, in words.
    pub problems: Vec<String>,
}

impl Store {
    /// Keeps every chunk that is put, or asked for with `contains`, from now until [`Store::reclaim`] returns.
    pub fn begin_mark(&self) {
        self.packs.index.begin_mark();
    }

    /// Not yet.
    ///
    /// # Errors
    /// Never.
    pub async fn reclaim(
        &self,
        _is_live: &(dyn Fn(&ChunkAddress) -> bool + Sync),
        _dry_run: bool,
    ) -> Result<ReclaimReport, StoreError> {
        self.packs.index.end_mark();
        Ok(ReclaimReport::default())
    }
}
