//! Reading ahead, beside the reader: what [`Readers`] foresee, and what of the trees that needs.
//!
//! A guess: it changes what is in memory, never what is read.
//!
//! Not here: what is foreseen (`readers`), what stays in memory (the store's cache).
//!
//! [`Readers`]: crate::readers::Readers

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use store::Class;
use tokio::sync::OwnedSemaphorePermit;

use crate::attributes::Node;
use crate::extent::Extent;
use crate::failure::FileError;
use crate::inode::Inode;
use crate::read::{EXTENTS_PER_STEP, Settled, gather};
use crate::system::{FileSystem, PREFETCHERS};

impl FileSystem {
    /// Notes a read of a file of `size` bytes, and begins to read ahead of the reader, beside him. Whether he jumped there.
    pub(crate) fn read_ahead(&self, node: Node, inode: &Arc<Inode>, read: Range<u64>, size: u64) -> bool {
        // Where so many are at it already, a later read asks.
        let permit = Arc::clone(&self.prefetchers).try_acquire_owned().ok();
        let ahead = self.readers.note(node, read, size, permit.is_some());
        if !(ahead.data.is_empty() && ahead.metadata.is_empty())
            && let Some(permit) = permit
        {
            let inode = Arc::clone(inode);
            self.begin_ahead(permit, move |system| async move {
                // Who wants it hears of what fails.
                let _ = system.prefetch(node, &inode, ahead.data, ahead.metadata).await;
            });
        }
        ahead.is_jump
    }

    /// Begins to read something ahead, beside everybody. The permit is kept until nothing of the work is left.
    pub(crate) fn begin_ahead<W>(&self, permit: OwnedSemaphorePermit, work: impl FnOnce(Arc<FileSystem>) -> W)
    where
        W: Future<Output = ()> + Send + 'static,
    {
        let Some(system) = self.me.upgrade().filter(|_| !self.is_ending()) else { return };
        let work = work(system);
        self.platform.tasks.aside(Box::pin(async move {
            work.await;
            drop(permit);
        }));
    }

    /// Waits until nobody reads ahead. The caller has seen to it that nobody begins.
    pub(crate) async fn end_prefetch(&self) {
        let all = self.prefetchers.acquire_many(PREFETCHERS as u32).await.expect("never closed");
        all.forget();
    }

    async fn prefetch(
        &self,
        node: Node,
        inode: &Arc<Inode>,
        data: Vec<Range<u64>>,
        metadata: Vec<Range<u64>>,
    ) -> Result<(), FileError> {
        for range in data {
            let mut at = Some(range.start);
            while let Some(start) = at.filter(|start| *start < range.end) {
                let (extents, next) = {
                    let _use = self.grace.enter(node.file.number);
                    if !self.is_wanted(node, inode) {
                        return Ok(());
                    }
                    self.extents_from(inode, start..range.end).await?
                };
                let address =
                    |(_, extent)| if let Extent::Chunk { address, .. } = extent { Some(address) } else { None };
                let addresses: Vec<_> = extents.into_iter().filter_map(address).collect();
                // What lies there is found by its address, or is not: no root is in use.
                self.store.prefetch(Class::Data, &addresses).await;
                at = next;
            }
        }
        for range in metadata {
            let mut at = Some(range.start);
            while let Some(start) = at.filter(|start| *start < range.end) {
                let _use = self.grace.enter(node.file.number);
                if !self.is_wanted(node, inode) {
                    return Ok(());
                }
                let tree = inode.state.lock().base.tree.clone();
                at = self.base_extents(&tree, start..range.end, EXTENTS_PER_STEP).await?.1;
            }
        }
        Ok(())
    }

    /// Whether the file is there still, and its tree with it (I-90): this runs some time after somebody asked.
    fn is_wanted(&self, node: Node, inode: &Arc<Inode>) -> bool {
        !self.is_stopping.load(Ordering::SeqCst)
            && self.table.find(node).is_some_and(|known| Arc::ptr_eq(&known, inode))
            && !inode.state.lock().is_gone
    }

    /// What lies in some of a range of a file and is not in memory alone, in order, and where to go on.
    pub(crate) async fn extents_from(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
    ) -> Result<(Vec<Settled>, Option<u64>), FileError> {
        let (tree, mut settled, mut gaps) = {
            let state = inode.state.lock();
            state.expect_there()?;
            let mut gaps = vec![range];
            let settled = gather(&state, &mut gaps, &mut |_, _| ());
            (state.base.tree.clone(), settled, gaps)
        };
        gaps.sort_unstable_by_key(|gap| gap.start);
        let mut next = None;
        for gap in gaps {
            let (found, rest) = self.base_extents(&tree, gap, EXTENTS_PER_STEP).await?;
            settled.extend(found);
            if rest.is_some() {
                next = rest;
                break;
            }
        }
        settled.retain(|(range, _)| next.is_none_or(|next| range.start < next));
        settled.sort_unstable_by_key(|(range, _)| range.start);
        Ok((settled, next))
    }
}
