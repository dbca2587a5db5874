//! Reading directories ahead of who walks a tree: he lists one directory of a parent after the other, in whatever order. What [`Siblings`]
//! foresee of files they foresee of directories too.
//!
//! A guess: it changes what is in memory, never what is listed. A walk that asks for some directories looks at a bounded number of entries.
//!
//! Not here: whose walk is believed, and for how many directories (`siblings`); files (`batch::ahead`).
//!
//! [`Siblings`]: crate::siblings::Siblings

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::id::{ChunkAddress, FileId};
use store::Class;

use crate::attributes::{Kind, Node};
use crate::format::Root;
use crate::inode::Inode;
use crate::siblings::Wish;
use crate::system::FileSystem;

/// What a directory counts, in bytes: of its tree the top node is read, which is all of it where it has some hundred entries.
const DIRECTORY_BYTES: u64 = 8 << 10;
/// Entries of the parent that are looked at together.
const TOGETHER: usize = 256;
/// Entries that are passed over for each directory that may be read ahead: where few are directories, the listing goes on at the next wish.
const PASSED: u64 = 16;

/// Directories of a parent that are to be read ahead.
#[derive(Default)]
struct Ahead {
    /// By number, with their bytes.
    directories: Vec<(u64, u64)>,
    addresses: Vec<ChunkAddress>,
    /// Those that were looked at, with what is in memory; and entries of any kind.
    looked_at: u64,
    passed: u64,
}

impl FileSystem {
    /// Notes that a directory is listed from its beginning, and begins to read others of its parent, beside who lists it.
    pub(crate) fn walk_ahead(&self, node: Node, inode: &Inode) {
        if !self.walks.is_on() || node.file == FileId::ROOT {
            return;
        }
        let parent = {
            let state = inode.state.lock();
            // What lies in the inode is read with it.
            if !matches!(state.base.tree, Root::Node { .. }) {
                return;
            }
            Node { view: node.view, file: state.attributes.parent }
        };
        let permit = Arc::clone(&self.prefetchers).try_acquire_owned().ok();
        let noted = self.walks.note(parent, node.file.number, permit.is_some());
        self.counters.walks_used.add(u64::from(noted.was_ahead));
        self.counters.walks_wasted.add(noted.wasted);
        if let (Some(wish), Some(permit)) = (noted.wish, permit) {
            self.begin_ahead(permit, move |system| async move { system.prefetch_walk(parent, &wish).await });
        }
    }

    async fn prefetch_walk(&self, parent: Node, wish: &Wish) {
        let goes_on = || !self.is_ending() && !wish.is_cancelled.load(Ordering::Relaxed);
        let (mut ahead, mut next) = (Ahead::default(), Some(wish.after));
        let is_patient = |ahead: &Ahead| ahead.passed < wish.files * PASSED;
        while let Some(after) = next.filter(|_| ahead.has_room(wish) && is_patient(&ahead) && goes_on()) {
            // Whoever comes to what cannot be listed hears of it.
            next = self.choose_directories(parent, after, wish, &mut ahead).await;
        }
        let Ahead { directories, addresses, .. } = ahead;
        self.counters.walks_ahead.add(directories.len() as u64);
        self.walks.asked(parent, wish, directories.into_iter(), next);
        // What lies there is found by its address, or is not: no root is in use.
        self.store.prefetch_in_order(Class::Metadata, &addresses, &goes_on).await;
    }

    /// Takes of some entries of a directory those directories that are to be read. Where to go on, if that was not the end.
    async fn choose_directories(&self, parent: Node, after: u64, wish: &Wish, ahead: &mut Ahead) -> Option<u64> {
        let inode = self.inode(parent).await.ok()?;
        let (entries, end) = self.list_range(&inode, after, TOGETHER).await.ok()?;
        ahead.passed += entries.len() as u64;
        let directories = entries.iter().filter(|(_, entry)| entry.kind == Kind::Directory);
        let found: Vec<(u64, FileId)> = directories.map(|(cookie, entry)| (*cookie, entry.file)).collect();
        let files: Vec<FileId> = found.iter().map(|(_, file)| *file).collect();
        self.load_neighbours(parent.view, &files).await;
        for (cookie, file) in found {
            ahead.looked_at += 1;
            let known = self.table.find(Node { view: parent.view, file });
            let tree = known.map(|inode| inode.state.lock().base.tree.clone());
            if let Some(Root::Node { address, .. }) = tree
                && !self.store.is_cached(&address)
            {
                ahead.directories.push((file.number, DIRECTORY_BYTES));
                ahead.addresses.push(address);
            }
            if !ahead.has_room(wish) {
                return Some(cookie);
            }
        }
        (end != u64::MAX).then_some(end)
    }
}

impl Ahead {
    fn has_room(&self, wish: &Wish) -> bool {
        self.looked_at < wish.files && (self.directories.len() as u64 + 1) * DIRECTORY_BYTES <= wish.bytes
    }
}
