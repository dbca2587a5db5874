//! Reclaim: which chunks does anybody still need?
//!
//! The order is everything, for writers go on meanwhile:
//!
//! 1. From now on the store keeps whatever is put or found to be there already ([`Store::begin_mark`]).
//! 2. Wait for operations that put chunks before 1 and have not named them yet: they do, or drop them.
//! 3. Between two commits, take the roots and what the journal names beyond them; make that journal durable.
//! 4. Wait for operations that use roots older than these.
//! 5. Mark: walk the trees of the present and of all snapshots.
//! 6. What is not marked, not named by the journal, and not kept since 1, nobody can reach: the store gives it back.
//!
//! I-95  A chunk that a durable root, a record or a running operation names is never given back.
//! I-96  Damage ends the pass before anything is given back: what cannot be read cannot be marked.
//!
//! Marks are the first 8 bytes of addresses, sorted: 8 bytes a chunk. Two chunks that share them keep each other; nothing worse.
//!
//! [`Store::begin_mark`]: store::Store::begin_mark
//! Not here: how packs are emptied and removed (`store`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::codec::Reader;
use base::id::{ChunkAddress, FileId};
use bytes::Bytes;
use store::{ReclaimReport, StoreError};

use crate::attributes::Kind;
use crate::extent::Extent;
use crate::failure::FileError;
use crate::format::{InodeValue, Root, XattrPlace, decode_extent};
use crate::snapshot::decode_listed;
use crate::system::{FileSystem, undecodable};

/// Dropped bytes after which a pass runs by itself.
const DROPPED_BYTES_MIN: u64 = 1 << 30;

/// Chunks that are needed.
#[derive(Default)]
struct Marks {
    /// First bytes of the addresses; sorted by [`Marks::finish`].
    heads: Vec<u64>,
    /// Tree nodes that were walked, in full: a node that was taken for another would leave chunks unmarked.
    nodes: BTreeSet<ChunkAddress>,
}

impl Marks {
    fn head(address: &ChunkAddress) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = address.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    fn add(&mut self, address: &ChunkAddress) {
        self.heads.push(Marks::head(address));
    }

    fn add_extent(&mut self, extent: &Extent) {
        if let Extent::Chunk { address, .. } = extent {
            self.add(address);
        }
    }

    /// Notes a tree node; `false`: it was walked before, with everything below it.
    fn add_node(&mut self, address: &ChunkAddress) -> bool {
        self.add(address);
        self.nodes.insert(*address)
    }

    fn finish(&mut self) {
        self.heads.sort_unstable();
        self.heads.dedup();
        self.nodes.clear();
    }

    fn has(&self, address: &ChunkAddress) -> bool {
        self.heads.binary_search(&Marks::head(address)).is_ok()
    }
}

impl FileSystem {
    /// Gives back the room of chunks that nobody needs. `is_rehearsal`: only says what it would do.
    ///
    /// # Errors
    /// The store's; nothing that is needed is lost.
    pub async fn reclaim(&self, is_rehearsal: bool) -> Result<ReclaimReport, FileError> {
        let _one = self.reclaiming.lock().await;
        let result = self.pass(is_rehearsal).await;
        *self.reclaim_failure.lock() = result.as_ref().err().cloned();
        result
    }

    async fn pass(&self, is_rehearsal: bool) -> Result<ReclaimReport, FileError> {
        let dropped = self.dropped_bytes.swap(0, Ordering::Relaxed);
        self.dropped_since_pass.store(false, Ordering::SeqCst);
        self.store.begin_mark();
        let result = match self.mark().await {
            Ok(Some(marks)) => {
                let is_live = |address: &_| marks.has(address);
                let report = self.store.reclaim(&is_live, is_rehearsal, &|| self.goes_on()).await;
                self.measure_space();
                report.map(Some).map_err(FileError::from)
            }
            unfinished => {
                self.store.end_mark();
                unfinished.map(|_| None)
            }
        };
        if is_rehearsal || !matches!(result, Ok(Some(_))) {
            self.dropped_bytes.fetch_add(dropped, Ordering::Relaxed);
            self.dropped_since_pass.store(true, Ordering::SeqCst);
        }
        result.map(Option::unwrap_or_default)
    }

    /// Steps 2 to 5. `None`: the file system is closed meanwhile, which waits for nobody's marks.
    async fn mark(&self) -> Result<Option<Marks>, FileError> {
        self.grace.wait().await;
        let mut marks = Marks::default();
        let roots = {
            let _between = self.commit.lock().await;
            let touched = self.touched.lock().clone();
            for inode in touched.values() {
                let state = inode.state.lock();
                state
                    .overlays()
                    .flat_map(|overlay| overlay.extents.iter())
                    .for_each(|(_, extent)| marks.add_extent(extent));
            }
            self.roots.lock().clone()
        };
        // What memory lacks, a record dropped. Should a crash take that record, those before it name what it dropped.
        self.sync_journal().await?;
        self.grace.wait().await;
        self.trees
            .walk(&roots.orphans, &mut |address, _| self.goes_on() && marks.add_node(address), &mut |_, _| Ok(()))
            .await?;
        // As the tree has them: what could not be read when the list was loaded is needed all the same (I-95, I-96).
        let mut catalogs = vec![roots.catalog.clone()];
        self.trees
            .walk(&roots.snapshots, &mut |address, _| self.goes_on() && marks.add_node(address), &mut |view, bytes| {
                catalogs.push(decode_listed(view, bytes)?.1.catalog);
                Ok(())
            })
            .await?;
        for catalog in &catalogs {
            self.mark_catalog(catalog, &mut marks).await?;
        }
        marks.finish();
        Ok(self.goes_on().then_some(marks))
    }

    fn goes_on(&self) -> bool {
        !self.is_stopping.load(Ordering::SeqCst)
    }

    /// The background task that gives room back, beside the commits. A pass that fails is told of by the status, and tried again after
    /// the next commit.
    pub(crate) async fn run_reclaimer(self: Arc<Self>) {
        while self.goes_on() {
            self.wants_reclaim.notified().await;
            if self.goes_on() && self.is_reclaim_worthwhile() {
                let _ = self.reclaim(false).await;
            }
        }
        self.stopped.add_permits(1);
    }

    /// Whether enough was dropped since the last pass.
    pub(crate) fn is_reclaim_worthwhile(&self) -> bool {
        if self.left_out_count.load(Ordering::Relaxed) > 0 {
            // It would end at the tree that cannot be read (I-96), after a walk over all before it.
            return false;
        }
        let space = self.store.space();
        let used = space.total.saturating_sub(space.free);
        let is_scarce = space.free < space.total / 5;
        let enough = DROPPED_BYTES_MIN.min(space.total / 16);
        let enough = if is_scarce { enough } else { enough.max(used / 10) };
        self.dropped_bytes.load(Ordering::Relaxed) > enough
    }

    async fn mark_catalog(&self, catalog: &Root, marks: &mut Marks) -> Result<(), FileError> {
        // Trees that are nodes of their own are walked after their catalog.
        let mut trees: Vec<(Kind, Root)> = Vec::new();
        let mut found: Vec<ChunkAddress> = Vec::new();
        self.trees
            .walk(catalog, &mut |address, _| self.goes_on() && marks.add_node(address), &mut |file, bytes| {
                let file = FileId(file);
                let value = InodeValue::decode(file, bytes)
                    .map_err(|error| undecodable("inode", format!("catalog entry of {file}"), error))?;
                if let XattrPlace::Chunk(address) = value.base.xattrs {
                    found.push(address);
                }
                trees.push((value.attributes.kind, value.base.tree));
                Ok(())
            })
            .await?;
        found.iter().for_each(|address| marks.add(address));
        for (kind, tree) in trees {
            if !self.goes_on() {
                break;
            }
            let mut extents: Vec<ChunkAddress> = Vec::new();
            let mut leaf = |offset: u64, bytes: &Bytes| -> Result<(), StoreError> {
                if kind == Kind::Regular
                    && let Extent::Chunk { address, .. } = decoded_extent(offset, bytes)?
                {
                    extents.push(address);
                }
                Ok(())
            };
            self.trees.walk(&tree, &mut |address, _| marks.add_node(address), &mut leaf).await?;
            extents.iter().for_each(|address| marks.add(address));
        }
        Ok(())
    }
}

fn decoded_extent(offset: u64, bytes: &Bytes) -> Result<Extent, StoreError> {
    let wrong = |error| undecodable("extent", format!("offset {offset}"), error);
    decode_extent(&mut Reader::new(bytes)).map(|(_, extent)| extent).map_err(wrong)
}
