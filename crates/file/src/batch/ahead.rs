//! Reading the small files of a directory ahead of who reads them one by one, in the order in which they lie: what [`Siblings`] foresee.
//!
//! A guess: it changes what is in memory, never what is read.
//!
//! [`Siblings`]: crate::siblings::Siblings

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::id::ChunkAddress;
use store::Class;

use super::read::Look;
use super::walk::Named;
use crate::attributes::Node;
use crate::extent::Extent;
use crate::inode::Inode;
use crate::siblings::Wish;
use crate::system::FileSystem;

/// Small: reading it takes no longer than coming to it.
const SMALL_BYTES: u64 = 1 << 20;

/// Files of a directory that are to be read ahead.
#[derive(Default)]
struct Ahead {
    /// By number, with their bytes.
    files: Vec<(u64, u64)>,
    bytes: u64,
    addresses: Vec<ChunkAddress>,
}

impl FileSystem {
    /// Notes that a file of `size` bytes is read from its beginning, and begins to read others of its directory, beside the reader.
    pub(crate) fn read_siblings_ahead(&self, node: Node, inode: &Inode, size: u64) {
        let directory = inode.seen_in.load(Ordering::Relaxed);
        if directory == 0 || size > SMALL_BYTES || !self.siblings.is_on() {
            return;
        }
        let directory = Node { view: node.view, file: node.file.beside(directory) };
        let permit = Arc::clone(&self.prefetchers).try_acquire_owned().ok();
        let noted = self.siblings.note(directory, node.file.number, permit.is_some());
        self.counters.siblings_used.add(u64::from(noted.was_ahead));
        self.counters.siblings_wasted.add(noted.wasted);
        if let (Some(wish), Some(permit)) = (noted.wish, permit) {
            self.begin_ahead(permit, move |system| async move { system.prefetch_siblings(directory, &wish).await });
        }
    }

    async fn prefetch_siblings(&self, directory: Node, wish: &Wish) {
        let goes_on = || !self.is_ending() && !wish.is_cancelled.load(Ordering::Relaxed);
        let (mut ahead, mut next) = (Ahead::default(), Some(wish.after));
        while let Some(after) = next.filter(|_| ahead.has_room(wish) && goes_on()) {
            // Whoever comes to what cannot be listed hears of it.
            let Ok((named, more)) = self.list_names(directory, after).await else {
                next = None;
                break;
            };
            let last = self.choose(&named, wish, &mut ahead).await;
            next = last.or(more);
        }
        let Ahead { files, addresses, .. } = ahead;
        self.counters.siblings_ahead.add(files.len() as u64);
        self.siblings.asked(directory, wish, files.into_iter(), next);
        // What lies there is found by its address, or is not: no root is in use.
        self.store.prefetch_in_order(Class::Data, &addresses, &goes_on).await;
    }

    /// Takes of some entries those whose content is to be read. The cookie of the last, if it is not the last of all.
    async fn choose(&self, named: &[Named], wish: &Wish, ahead: &mut Ahead) -> Option<u64> {
        let mut order: Vec<usize> = (0..named.len()).collect();
        order.sort_unstable_by_key(|number| named[*number].1);
        let nodes: Vec<Node> = order.iter().map(|number| named[*number].1).collect();
        let first = nodes.first()?;
        let _use = self.grace.enter(first.file.number);
        let mut looks: Vec<Option<Look>> = named.iter().map(|_| None).collect();
        let found = self.look_together(&nodes, SMALL_BYTES).await;
        self.read_trees_ahead(&found).await;
        order.iter().zip(found).for_each(|(number, look)| looks[*number] = Some(look));
        for ((cookie, node, _), look) in named.iter().zip(looks) {
            let Some(Look::Known { attributes, tree, mut settled, gaps, .. }) = look else { continue };
            if self.settle_gaps(&tree, gaps, &mut settled).await.is_err() {
                continue;
            }
            let address = |(_, extent)| if let Extent::Chunk { address, .. } = extent { Some(address) } else { None };
            let absent = settled.into_iter().filter_map(address).filter(|address| !self.store.is_cached(address));
            let before = ahead.addresses.len();
            ahead.addresses.extend(absent);
            if ahead.addresses.len() > before {
                ahead.files.push((node.file.number, attributes.size));
                ahead.bytes += attributes.size;
            }
            if !ahead.has_room(wish) {
                return Some(*cookie);
            }
        }
        None
    }
}

impl Ahead {
    fn has_room(&self, wish: &Wish) -> bool {
        (self.files.len() as u64) < wish.files && self.bytes < wish.bytes
    }
}
