//! The kernel's numbers for files.
//!
//! A file of the present has its own number, so nothing is kept for it. A file of a clone has the number of what it was cloned from: there
//! the branch is packed in, behind bit 62, and nothing is kept either: the kernel may know a million of them. A file of a snapshot, and
//! one of a clone that does not fit, gets a number with bit 63 set from this table, as long as the kernel knows it. Inode numbers (`st_ino`)
//! are the same, but for those of the table: there view and branch are mixed in, so that a file keeps its inode number whatever the kernel
//! forgot meanwhile.
//!
//! I-93  A number that the kernel holds means one node; a number is never given again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use base::id::FileId;
use file::{Node, View};
use parking_lot::Mutex;

/// Set in numbers of the table. Ids of files have it clear: nodes are numbered below 2^14.
const TABLE_BIT: u64 = 1 << 63;
/// Set in numbers that say branch, node and counter, as far as they fit.
const PACKED_BIT: u64 = 1 << 62;
const PACKED_NODE_BITS: u32 = 5;
const PACKED_COUNTER_BITS: u32 = 39;
const PACKED_BRANCHES: u32 = 1 << (62 - PACKED_NODE_BITS - PACKED_COUNTER_BITS);

/// Files of snapshots and clones that the kernel knows.
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
        Nodes { known: Mutex::default(), next: AtomicU64::new(TABLE_BIT) }
    }

    /// As another process left off: the next number, and each number with its node and how often the kernel was given it.
    pub(crate) fn resume(next: u64, known: &[(u64, Node, u64)]) -> Nodes {
        let numbers = known.iter().map(|(number, node, _)| (*node, *number)).collect();
        let nodes = known.iter().map(|(number, node, held)| (*number, (*node, *held))).collect();
        Nodes { known: Mutex::new(Known { numbers, nodes }), next: AtomicU64::new(next.max(TABLE_BIT)) }
    }

    /// What [`Nodes::resume`] takes.
    pub(crate) fn known(&self) -> (u64, Vec<(u64, Node, u64)>) {
        let known = self.known.lock();
        let list = known.nodes.iter().map(|(number, (node, held))| (*number, *node, *held)).collect();
        (self.next.load(Ordering::Relaxed), list)
    }

    /// The node with this number; `None` for a number that the kernel no longer holds.
    pub(crate) fn find(&self, number: u64) -> Option<Node> {
        if number & TABLE_BIT == 0 {
            return Some(Node::live(unpacked(number)));
        }
        self.known.lock().nodes.get(&number).map(|(node, _)| *node)
    }

    /// The number of a node that the kernel is about to be given once more. For a file of the present the caller counts, too.
    pub(crate) fn give(&self, node: Node) -> u64 {
        if let Some(number) = packed(node) {
            return number;
        }
        let mut known = self.known.lock();
        let number = *known.numbers.entry(node).or_insert_with(|| self.next.fetch_add(1, Ordering::Relaxed));
        known.nodes.entry(number).or_insert((node, 0)).1 += 1;
        number
    }

    /// The number of a node, if the kernel may hold it.
    pub(crate) fn number_of(&self, node: Node) -> Option<u64> {
        packed(node).or_else(|| self.known.lock().numbers.get(&node).copied())
    }

    /// The kernel gives `count` of its references to a file of a snapshot or clone back.
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
        if inode & TABLE_BIT == 0 {
            return Some(Node::live(unpacked(inode)));
        }
        self.known.lock().numbers.keys().find(|node| inode_number(**node) == inode).copied()
    }
}

/// The number of a file of the present, if nothing has to be kept for it.
fn packed(node: Node) -> Option<u64> {
    let FileId { branch, number } = node.file;
    if node.view != View::LIVE {
        return None;
    }
    if branch == 0 {
        return Some(number);
    }
    let (maker, counter) = (u64::from(node.file.node().0), node.file.counter());
    let fits = branch < PACKED_BRANCHES && maker >> PACKED_NODE_BITS == 0 && counter >> PACKED_COUNTER_BITS == 0;
    let packed = u64::from(branch) << PACKED_NODE_BITS | maker;
    fits.then_some(PACKED_BIT | packed << PACKED_COUNTER_BITS | counter)
}

/// The file that [`packed`] gave this number.
fn unpacked(number: u64) -> FileId {
    if number & PACKED_BIT == 0 {
        return FileId::main(number);
    }
    let maker = number >> PACKED_COUNTER_BITS & ((1 << PACKED_NODE_BITS) - 1);
    let branch = (number ^ PACKED_BIT) >> (PACKED_NODE_BITS + PACKED_COUNTER_BITS);
    let counter = number & ((1 << PACKED_COUNTER_BITS) - 1);
    let branch = u32::try_from(branch).expect("62 bits less 44");
    FileId { branch, number: maker << FileId::COUNTER_BITS | counter }
}

/// What `st_ino` says. Of the table's: views and branches, which share their numbers, are mirrored into the upper bits, away from the
/// counters of files.
pub(crate) fn inode_number(node: Node) -> u64 {
    if let Some(number) = packed(node) {
        return number;
    }
    let (view, branch) = (u64::from(node.view.0), u64::from(node.file.branch));
    // A clone in a snapshot has both.
    let mixed = view ^ branch ^ (view * branch) << 16;
    TABLE_BIT | (node.file.number ^ mixed.reverse_bits() >> 1)
}

#[cfg(test)]
mod tests {
    use base::id::FileId;
    use file::{Node, View};

    use super::{Nodes, inode_number};

    #[test]
    fn numbers_of_snapshots_live_as_long_as_the_kernel_holds_them() {
        let nodes = Nodes::new();
        let live = Node::live(FileId::main(7 << 48 | 5));
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
    fn numbers_of_clones_are_their_own() {
        let nodes = Nodes::new();
        let files = [1, 1 << 48 | 5, 31 << 48 | ((1 << 39) - 1)].map(FileId::main);
        for main in files {
            for branch in [1, 3, (1 << 18) - 1] {
                let clone = Node::live(FileId { branch, ..main });
                let number = nodes.give(clone);
                assert_eq!((nodes.find(number), nodes.number_of(clone)), (Some(clone), Some(number)));
                assert_eq!(nodes.find_inode(inode_number(clone)), Some(clone));
                // Nothing is kept.
                nodes.take_back(number, 1);
                assert_eq!((nodes.find(number), nodes.known().1), (Some(clone), Vec::new()));
            }
        }
        // What does not fit is in the table, as long as the kernel has it.
        for (branch, number) in [(1 << 18, 1 << 48 | 5), (1, 32 << 48 | 5), (1, 1 << 48 | 1 << 39)] {
            let clone = Node::live(FileId { branch, number });
            let given = nodes.give(clone);
            assert_eq!((nodes.find(given), nodes.number_of(clone)), (Some(clone), Some(given)));
            assert_eq!(nodes.find_inode(inode_number(clone)), Some(clone));
            nodes.take_back(given, 1);
            assert_eq!((nodes.find(given), nodes.number_of(clone)), (None, None));
        }
    }

    #[test]
    fn inode_numbers_of_views_and_clones_differ() {
        // Views and branches have no number in common; some clones are in snapshots too.
        let (views, branches) = ((0..1000).map(|view| (view, 0)), (1000..2000).map(|branch| (0, branch)));
        let both = (1..30).flat_map(|view| (1000..1030).map(move |branch| (view, branch)));
        let mut numbers: Vec<u64> = views
            .chain(branches)
            .chain(both)
            .flat_map(|(view, branch)| {
                let file = move |counter: u64| FileId { branch, number: 1 << 48 | counter };
                (1..20).map(move |counter| Node { view: View(view), file: file(counter) })
            })
            .map(inode_number)
            .collect();
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count);
    }
}
