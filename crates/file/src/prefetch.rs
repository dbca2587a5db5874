//! Reading ahead, beside the reader: what [`Readers`] foresee, and what of the trees that needs.
//!
//! A guess: it changes what is in memory, never what is read.
//!
//! Not here: what is foreseen (`readers`), what stays in memory (the store's cache).
//!
//! [`Readers`]: crate::readers::Readers

use std::sync::Arc;
use std::sync::atomic::Ordering;

use store::Class;

use crate::extent::Extent;
use crate::failure::FileError;
use crate::inode::Inode;
use crate::read::gather;
use crate::readers::Ahead;
use crate::system::{FileSystem, PREFETCHERS};

impl FileSystem {
    /// Begins to read ahead, beside the caller.
    pub(crate) fn read_ahead(&self, inode: &Arc<Inode>, ahead: Ahead) {
        if ahead.data.is_empty() && ahead.metadata.is_empty() {
            return;
        }
        // Where so many are at it already, the reader is ahead of them.
        let Ok(permit) = Arc::clone(&self.prefetchers).try_acquire_owned() else { return };
        let Some(system) = self.me.upgrade().filter(|_| !self.is_stopping.load(Ordering::SeqCst)) else { return };
        let inode = Arc::clone(inode);
        self.platform.tasks.aside(Box::pin(async move {
            // Who wants it hears of what fails.
            let _ = system.prefetch(&inode, ahead).await;
            drop((inode, system));
            drop(permit);
        }));
    }

    /// Waits until nobody reads ahead. The caller has seen to it that nobody begins.
    pub(crate) async fn end_prefetch(&self) {
        let all = self.prefetchers.acquire_many(PREFETCHERS as u32).await.expect("never closed");
        all.forget();
    }

    async fn prefetch(&self, inode: &Arc<Inode>, ahead: Ahead) -> Result<(), FileError> {
        let _use = self.grace.enter(inode.file.0);
        for range in ahead.data {
            let (tree, mut settled, gaps) = {
                let state = inode.state.lock();
                let mut gaps = vec![range];
                let settled = gather(&state, &mut gaps, &mut |_, _| ());
                (state.base.tree.clone(), settled, gaps)
            };
            for gap in gaps {
                settled.extend(self.base_extents(&tree, gap, usize::MAX).await?.0);
            }
            settled.sort_unstable_by_key(|(range, _)| range.start);
            let address = |(_, extent)| if let Extent::Chunk { address, .. } = extent { Some(address) } else { None };
            let addresses: Vec<_> = settled.into_iter().filter_map(address).collect();
            self.store.prefetch(Class::Data, &addresses).await;
        }
        for range in ahead.metadata {
            let tree = inode.state.lock().base.tree.clone();
            self.base_extents(&tree, range, usize::MAX).await?;
        }
        Ok(())
    }
}
