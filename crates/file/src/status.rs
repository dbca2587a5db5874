//! What the file system is doing: numbers for `status` and `stats`, and the inside of one file for `info`.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use base::id::{FileId, Version};
use base::metric::{Description as MetricDescription, Metric};
use platform::disk::DiskCounters;
use store::{Resilience, StoreStatus};

use crate::attributes::{Attributes, Kind, Node};
use crate::counters::Counters;
use crate::extent::Extent;
use crate::failure::FileError;
use crate::raising::PolicyReport;
use crate::system::FileSystem;

/// The file layer and the store at one moment.
#[derive(Clone, Debug)]
pub struct Status {
    /// Bytes accepted that are in no chunk and no record.
    pub dirty_bytes: u64,
    /// Where writers begin to wait.
    pub dirty_bytes_max: u64,
    /// Writers that wait for room in the buffer.
    pub writers_waiting: u64,
    /// Changes that wait for room in the journal and for commits.
    pub changes_waiting: u64,
    /// Writes, changes and background tasks that wait for room on the disks.
    pub room_waiting: u64,
    /// Files with accepted data that is not logged.
    pub unlogged_files: u64,
    /// Files whose records wait for a commit.
    pub uncommitted_files: u64,
    /// Inodes in memory.
    pub inodes: u64,
    /// Snapshots.
    pub snapshots: u64,
    /// Clones that are there.
    pub clones: u64,
    /// Why the last flush failed, if it did.
    pub flush_failure: Option<String>,
    /// Why the last commit failed, if it did. When commits have been due for long, nothing new is accepted.
    pub commit_failure: Option<String>,
    /// Files that commits leave out because their trees cannot be read, and why: what was recorded for them stays in the journal.
    pub left_out: Vec<(FileId, String)>,
    /// Directories that were removed and still have something, which goes in the background.
    pub removing: u64,
    /// Those of them that cannot be read, and why: they are tried again when the node is opened.
    pub not_removed: Vec<(FileId, String)>,
    /// Content may lie on fewer disks than its file asks for, and is brought there in the background: what could be done about it last.
    pub raising: Option<PolicyReport>,
    /// Why the last pass of reclaim failed, if it did. No room comes back then.
    pub reclaim_failure: Option<String>,
    /// Why nothing new is accepted, if so.
    pub journal_failure: Option<String>,
    /// The store.
    pub store: StoreStatus,
    /// What both layers measured, and the disks.
    pub metrics: Vec<Metric>,
}

/// What the file layer, the store and its disks measure.
#[must_use]
pub fn metrics() -> Vec<MetricDescription> {
    [Counters::DESCRIPTIONS, store::Counters::DESCRIPTIONS, DiskCounters::DESCRIPTIONS].concat()
}

/// Room on the disks of this node, the store's reserve taken off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes in all.
    pub total: u64,
    /// Bytes free.
    pub free: u64,
    /// Files that were ever made: an upper bound of those that are.
    pub files: u64,
    /// Files that there is room for, at least.
    pub files_free: u64,
}

/// The inside of a file.
#[derive(Clone, Debug)]
pub struct Description {
    /// What `stat` shows.
    pub attributes: Attributes,
    /// Its version.
    pub version: Version,
    /// Extents of a regular file, entries of a directory.
    pub parts: u64,
    /// Distinct chunks of a regular file.
    pub chunks: u64,
    /// Bytes of those chunks, each counted once, before compression.
    pub chunk_bytes: u64,
    /// Bytes accepted that are not local.
    pub dirty_bytes: u64,
    /// Whether records wait for a commit.
    pub is_uncommitted: bool,
}

impl FileSystem {
    /// Numbers of the moment.
    #[must_use]
    pub fn status(&self) -> Status {
        let mut metrics = self.counters.list();
        metrics.extend(self.store.counters().list());
        metrics.extend(self.store.disk_metrics());
        Status {
            dirty_bytes: self.dirty_bytes(),
            dirty_bytes_max: self.options.dirty_bytes_max,
            writers_waiting: self.writers_waiting() as u64,
            changes_waiting: self.changes_waiting() as u64,
            room_waiting: self.room_wanted.count() as u64,
            unlogged_files: self.unlogged.lock().len() as u64,
            uncommitted_files: self.touched.lock().len() as u64,
            inodes: self.table.count() as u64,
            snapshots: self.snapshots.lock().len() as u64,
            clones: self.clones(),
            flush_failure: self.flush_failure.lock().as_ref().map(|(of, failure)| match of {
                Resilience::OfNode => failure.to_string(),
                Resilience::Copies(copies) => format!("{failure}, for files that ask for {copies} copies"),
                Resilience::Fragments(erasure) => format!("{failure}, for files that ask for {erasure} fragments"),
            }),
            commit_failure: self.commit_failure.lock().as_ref().map(FileError::to_string),
            left_out: self.left_out_files(),
            removing: self.removing(),
            not_removed: self.removals.failures(),
            raising: self.raising(),
            reclaim_failure: self.reclaim_failure.lock().as_ref().map(|(failure, _)| failure.to_string()),
            journal_failure: self.journal_failure.lock().as_ref().map(FileError::to_string),
            store: self.store.status(),
            metrics,
        }
    }

    /// Room for content and files.
    #[must_use]
    pub fn space(&self) -> Space {
        /// What a small file takes at least: an inode, an entry, and a chunk with its header.
        const FILE_BYTES_MIN: u64 = 512;
        let store::Space { total, free, .. } = self.store.space();
        Space { total, free, files: self.files_made(), files_free: free / FILE_BYTES_MIN }
    }

    /// Checks packs, index, journal and superblocks. `progress` hears of bytes done and bytes in all.
    pub async fn check_store(&self, depth: store::Depth, progress: &(dyn Fn(u64, u64) + Sync)) -> store::CheckReport {
        self.store.check(depth, progress).await
    }

    /// # Errors
    /// Which disk is missing, if one is: nothing is repaired then.
    pub fn refuse_degraded(&self) -> Result<(), FileError> {
        Ok(self.store.refuse_degraded()?)
    }

    /// Carries out a remedy that the check of the store proposed; tells in words what came of it.
    ///
    /// # Errors
    /// Why it could not be done; nothing is lost then.
    pub async fn repair_store(&self, remedy: store::Remedy) -> Result<String, FileError> {
        if remedy == store::Remedy::Commit {
            self.commit_whole().await?;
        }
        let done = self.store.repair(remedy).await?;
        // It may be what could not be read when the node was opened.
        self.load_snapshots().await?;
        self.load_branches().await?;
        Ok(done)
    }

    /// Files that were ever made on this node: an upper bound of those that exist.
    #[must_use]
    pub fn files_made(&self) -> u64 {
        FileId::main(self.next_counter.load(Ordering::Relaxed)).counter()
    }

    /// The inside of a file.
    ///
    /// # Errors
    /// `NoEntry`, or the store's.
    pub async fn describe(&self, node: Node) -> Result<Description, FileError> {
        let attributes = self.attributes(node).await?;
        if node == Node::live(crate::system::SNAPSHOTS) {
            let version = Version::default();
            let parts = attributes.size;
            return Ok(Description {
                attributes,
                version,
                parts,
                chunks: 0,
                chunk_bytes: 0,
                dirty_bytes: 0,
                is_uncommitted: false,
            });
        }
        let _use = self.grace.enter(node.file.number);
        let inode = self.inode(node).await?;
        let (version, dirty_bytes, is_uncommitted, tree, overlay) = {
            let state = inode.state.lock();
            let overlay: Vec<Extent> =
                state.overlays().flat_map(|overlay| overlay.extents.iter().map(|(_, extent)| *extent)).collect();
            let is_uncommitted = state.active.is_touched || state.frozen.is_some();
            (state.version, state.dirty_bytes, is_uncommitted, state.base.tree.clone(), overlay)
        };
        let (mut parts, mut chunks, mut chunk_bytes) = (0, BTreeSet::new(), 0);
        if attributes.kind == Kind::Regular {
            let base = self.base_extents(&tree, 0..u64::MAX, usize::MAX).await?.0;
            for extent in overlay.into_iter().chain(base.into_iter().map(|(_, extent)| extent)) {
                parts += 1;
                if let Extent::Chunk { address, chunk_bytes: bytes, .. } = extent
                    && chunks.insert(address)
                {
                    chunk_bytes += u64::from(bytes);
                }
            }
        } else if attributes.kind == Kind::Directory {
            parts = attributes.size;
        }
        let chunks = chunks.len() as u64;
        Ok(Description { attributes, version, parts, chunks, chunk_bytes, dirty_bytes, is_uncommitted })
    }
}
