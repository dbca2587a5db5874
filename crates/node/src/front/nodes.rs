//! The kernel's numbers for files.
//!
//! A file of the present has its own id as number, so nothing is kept for it. A file of a snapshot has the same id there, so it
//! gets a number with bit 63 set from this table, as long as the kernel knows it. Inode numbers (`st_ino`) are the id too; in a
//! snapshot the view is mixed in, so that the same file keeps the same inode number there whatever the kernel forgot meanwhile.
//!
//! I-93  A number that the kernel holds means one node; a number is never given again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use base::id::FileId;
use file::{Node, View};
use parking_lot::Mutex;

/// Set in the numbers of snapshots' files. Ids of files have it clear: nodes are numbered below 2^15.
const SNAPSHOT_BIT: u64 = 1 << 63;

/// Files of snapshots that the kernel knows.
pub(crate) struct Nodes {
    known: Mutex<Known>,
    next: AtomicU64,
}

#[derive(Default)]
struct Known {
    numbers: HashMap<Node, u64>,
    /// The node, and how often the kernel was given the number.
    nodes: HashMap<u64, (Node, u64)>,
}

impl Nodes {
    pub(crate) fn new() -> Nodes {
        Nodes { known: Mutex::default(), next: AtomicU64::new(SNAPSHOT_BIT) }
    }

    /// As another process left off: the next number, and each number with its node and how often the kernel was given it.
    pub(crate) fn resume(next: u64, known: &[(u64, Node, u64)]) -> Nodes {
        let numbers = known.iter().map(|(number, node, _)| (*node, *number)).collect();
        let nodes = known.iter().map(|(number, node, held)| (*number, (*node, *held))).collect();
        Nodes { known: Mutex::new(Known { numbers, nodes }), next: AtomicU64::new(next.max(SNAPSHOT_BIT)) }
    }

    /// What [`Nodes::resume`] takes.
    pub(crate) fn known(&self) -> (u64, Vec<(u64, Node, u64)>) {
        let known = self.known.lock();
        let list = known.nodes.iter().map(|(number, (node, held))| (*number, *node, *held)).collect();
        (self.next.load(Ordering::Relaxed), list)
    }

    /// The node with this number; `None` for a number that the kernel no longer holds.
    pub(crate) fn find(&self, number: u64) -> Option<Node> {
        if number & SNAPSHOT_BIT == 0 {
            return Some(Node::live(FileId(number)));
        }
        self.known.lock().nodes.get(&number).map(|(node, _)| *node)
    }

    /// The number of a node that the kernel is about to be given once more. For a file of the present the caller counts.
    pub(crate) fn give(&self, node: Node) -> u64 {
        if node.view == View::LIVE {
            return node.file.0;
        }
        let mut known = self.known.lock();
        let number = *known.numbers.entry(node).or_insert_with(|| self.next.fetch_add(1, Ordering::Relaxed));
        known.nodes.entry(number).or_insert((node, 0)).1 += 1;
        number
    }

    /// The kernel gives `count` of its references to a snapshot's file back.
    pub(crate) fn take_back(&self, number: u64, count: u64) {
        let mut known = self.known.lock();
        let Some((node, held)) = known.nodes.get_mut(&number) else { return };
        *held = held.saturating_sub(count);
        if *held == 0 {
            let node = *node;
            known.nodes.remove(&number);
            known.numbers.remove(&node);
        }
    }

    /// The node with this inode number, among those of the present and those that the kernel knows.
    pub(crate) fn find_inode(&self, inode: u64) -> Option<Node> {
        if inode & SNAPSHOT_BIT == 0 {
            return Some(Node::live(FileId(inode)));
        }
        self.known.lock().numbers.keys().find(|node| inode_number(**node) == inode).copied()
    }
}

/// What `st_ino` says. Views are mirrored into the upper bits, away from the counters of files.
pub(crate) fn inode_number(node: Node) -> u64 {
    match node.view {
        View::LIVE => node.file.0,
        View(view) => SNAPSHOT_BIT | (node.file.0 ^ u64::from(view).reverse_bits() >> 1),
    }
}

#[cfg(test)]
mod tests {
    use base::id::FileId;
    use file::{Node, View};

    use super::{Nodes, inode_number};

    #[test]
    fn numbers_of_snapshots_live_as_long_as_the_kernel_holds_them() {
        let nodes = Nodes::new();
        let live = Node::live(FileId(7 << 48 | 5));
        assert_eq!(nodes.find(nodes.give(live)), Some(live));
        assert_eq!(nodes.find_inode(inode_number(live)), Some(live));

        let old = Node { view: View(3), file: live.file };
        let number = nodes.give(old);
        assert_eq!(nodes.give(old), number);
        assert_eq!(nodes.find(number), Some(old));
        assert_eq!(nodes.find_inode(inode_number(old)), Some(old));
        nodes.take_back(number, 1);
        assert_eq!(nodes.find(number), Some(old));
        let (next, known) = nodes.known();
        let nodes = Nodes::resume(next, &known);
        assert_eq!((nodes.find(number), nodes.find_inode(inode_number(old))), (Some(old), Some(old)));
        nodes.take_back(number, 1);
        assert_eq!(nodes.find(number), None);
        assert_ne!(nodes.give(old), number, "a number is never given again");
        nodes.take_back(12345 | 1 << 63, 1);
    }

    #[test]
    fn inode_numbers_of_views_differ() {
        let mut numbers: Vec<u64> = (0..2000)
            .flat_map(|view| (1..20).map(move |counter| Node { view: View(view), file: FileId(1 << 48 | counter) }))
            .map(inode_number)
            .collect();
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count);
    }
}
