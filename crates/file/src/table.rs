//! The inodes in memory, by node; bounded by count, clean ones give way. Those with large extended attributes are bounded by what these take.
//!
//! I-34  An inode that is not clean is in the table. So who finds none may load it from the catalog.
//! I-35  What was loaded from a catalog enters the table only while that catalog is the current one.

use std::collections::hash_map::{Entry, HashMap};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use foldhash::fast::FixedState;
use parking_lot::Mutex;

use crate::attributes::{Node, View};
use crate::inode::Inode;

/// Locks of their own, so that two CPUs seldom meet.
const SHARDS: usize = 16;
/// How many candidates an insertion looks at before it lets the shard grow.
const EVICTION_TRIES: usize = 16;

/// Attributes that are smaller count with their inode.
const WEIGHED_BYTES_MIN: usize = 1024;
/// What is allowed for them, for each inode that may be here, and at least in each shard.
const WEIGHED_BYTES_EACH: usize = 1024;
const WEIGHED_BYTES: usize = 64 << 10;

/// A map whose hash has no random key: only looked up, never walked, and the same in each run of a simulation.
type Map<V> = HashMap<Node, V, FixedState>;

#[derive(Default)]
struct Shard {
    inodes: Map<Arc<Inode>>,
    order: VecDeque<Node>,
    /// Of inodes with large attributes, what these take at most. Some may have gone, or have been loaded anew since.
    weights: Map<usize>,
    /// Those, the oldest first.
    weighed: VecDeque<Node>,
    /// Sum of their weights.
    weighed_bytes: usize,
}

/// See the module's head.
pub(crate) struct Table {
    shards: Vec<Mutex<Shard>>,
    shard_count_max: usize,
}

impl Table {
    pub(crate) fn new(inodes_max: usize) -> Table {
        Table {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            shard_count_max: (inodes_max / SHARDS).max(16),
        }
    }

    fn shard(&self, node: Node) -> &Mutex<Shard> {
        // Ids are given in runs of 64: the next bits spread directories, the low bits files.
        let mixed = (u64::from(node.file.branch) ^ node.file.number ^ (node.file.number >> 6)) as usize;
        &self.shards[mixed % SHARDS]
    }

    pub(crate) fn find(&self, node: Node) -> Option<Arc<Inode>> {
        self.shard(node).lock().inodes.get(&node).cloned()
    }

    /// Puts `inode` in unless one is there already, or `is_current` says that it was loaded too late (`None`).
    pub(crate) fn insert(
        &self,
        node: Node,
        inode: Arc<Inode>,
        is_current: impl FnOnce() -> bool,
    ) -> Option<Arc<Inode>> {
        let mut shard = self.shard(node).lock();
        if let Some(found) = shard.inodes.get(&node) {
            return Some(found.clone());
        }
        if !is_current() {
            return None;
        }
        if shard.inodes.len() >= self.shard_count_max {
            shard.make_room();
        }
        shard.order.push_back(node);
        shard.inodes.insert(node, inode.clone());
        Some(inode)
    }

    /// Takes an inode out that is no more.
    pub(crate) fn remove(&self, node: Node) {
        let mut shard = self.shard(node).lock();
        shard.inodes.remove(&node);
        shard.forget_removed();
    }

    /// Takes every inode of a view out.
    pub(crate) fn remove_view(&self, view: View) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.inodes.retain(|node, _| node.view != view);
            shard.forget_removed();
        }
    }

    /// Takes every inode of these branches out.
    pub(crate) fn remove_branches(&self, branches: &BTreeSet<u32>) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.inodes.retain(|node, _| node.view != View::LIVE || !branches.contains(&node.file.branch));
            shard.forget_removed();
        }
    }

    /// The inodes of these branches that are here. Their states are not looked at under the lock of a shard: who has one may wait for that.
    pub(crate) fn of_branches(&self, branches: &BTreeSet<u32>) -> Vec<Arc<Inode>> {
        let is_of_them = |node: &Node| node.view == View::LIVE && branches.contains(&node.file.branch);
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let of_them = shard.inodes.iter().filter(|(node, _)| is_of_them(node));
            found.extend(of_them.map(|(_, inode)| Arc::clone(inode)));
        }
        found
    }

    /// Whether an inode of a branch is here that is not clean, but for what the commit at work takes of it.
    pub(crate) fn has_unclean(&self, branch: u32) -> bool {
        self.of_branches(&BTreeSet::from([branch])).iter().any(|inode| inode.state.lock().goes_on_after_commit())
    }

    /// An inode has so many bytes of extended attributes in memory. The caller holds it, but not its state.
    pub(crate) fn weigh(&self, node: Node, bytes: usize) {
        if bytes >= WEIGHED_BYTES_MIN {
            let most = (self.shard_count_max * WEIGHED_BYTES_EACH).max(WEIGHED_BYTES);
            self.shard(node).lock().weigh(node, bytes, most);
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().inodes.len()).sum()
    }
}

impl Shard {
    /// Shortens the order when most of it is of inodes that are no more.
    fn forget_removed(&mut self) {
        if self.order.len() > 2 * self.inodes.len() + 64 {
            let inodes = &self.inodes;
            self.order.retain(|node| inodes.contains_key(node));
        }
    }

    fn make_room(&mut self) {
        for _ in 0..EVICTION_TRIES {
            let Some(node) = self.order.pop_front() else { return };
            match self.inodes.entry(node) {
                Entry::Vacant(_) => {}
                Entry::Occupied(found) => {
                    if may_go(found.get()) {
                        found.remove();
                        return;
                    }
                    self.order.push_back(node);
                }
            }
        }
    }

    /// Has those go that have had large attributes for longest, until what they have is no more than `most`.
    fn weigh(&mut self, node: Node, bytes: usize, most: usize) {
        let (weights, weighed) = (&mut self.weights, &mut self.weighed);
        let weight = weights.entry(node).or_insert_with(|| {
            weighed.push_back(node);
            0
        });
        // The most that it has had.
        let more = bytes.saturating_sub(*weight);
        *weight += more;
        self.weighed_bytes += more;
        for _ in 0..EVICTION_TRIES {
            if self.weighed_bytes <= most {
                break;
            }
            let Some(node) = self.weighed.pop_front() else { break };
            match self.inodes.entry(node) {
                Entry::Occupied(found) if !may_go(found.get()) => self.weighed.push_back(node),
                found => {
                    self.weighed_bytes -= self.weights.remove(&node).unwrap_or(0);
                    if let Entry::Occupied(found) = found {
                        found.remove();
                    }
                }
            }
        }
        self.forget_removed();
    }
}

/// Whether nobody else holds it, and nobody can get it while the shard is locked.
fn may_go(inode: &Arc<Inode>) -> bool {
    Arc::strong_count(inode) == 1 && inode.state.lock().is_clean()
}

#[cfg(test)]
mod tests {
    use base::id::FileId;

    use super::Table;
    use crate::attributes::Node;

    #[test]
    fn what_is_set_again_and_again_is_weighed_once() {
        let table = Table::new(100);
        let nodes = [1, 17, 33].map(|number| Node::live(FileId::main(number << 6)));
        for _ in 0..1000 {
            nodes.iter().for_each(|node| table.weigh(*node, 2000));
        }
        for shard in &table.shards {
            let shard = shard.lock();
            assert!(shard.weighed.len() <= nodes.len() && shard.weights.len() == shard.weighed.len());
            assert_eq!(shard.weights.values().sum::<usize>(), shard.weighed_bytes);
            assert!(shard.weighed_bytes <= nodes.len() * 2000);
        }
    }
}
