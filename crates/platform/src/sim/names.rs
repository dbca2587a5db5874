//! The directory tree of a disk: what is visible, what is durable, and the changes between the two.
//!
//! Names are whole paths from the disk's root, which is "" and always there. Rules M-2 and M-5 of the fault model are here.

use std::collections::{BTreeMap, BTreeSet};

use super::random::Random;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Directory,
    /// A file by its number on the disk.
    File(u64),
}

type Tree = BTreeMap<String, Node>;

/// All names of a disk.
#[derive(Default)]
pub(super) struct Names {
    visible: Tree,
    durable: Tree,
    /// Changes that no sync has covered, in order.
    pending: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Change {
    Link { path: String, node: Node },
    Unlink { path: String },
    Move { from: String, to: String, node: Node },
}

impl Names {
    pub(super) fn get(&self, path: &str) -> Option<Node> {
        if path.is_empty() { Some(Node::Directory) } else { self.visible.get(path).copied() }
    }

    /// Gives a free name in an existing directory to `node`.
    pub(super) fn link(&mut self, path: &str, node: Node) {
        self.change(Change::Link { path: path.to_owned(), node });
    }

    /// Takes an existing name away.
    pub(super) fn unlink(&mut self, path: &str) {
        self.change(Change::Unlink { path: path.to_owned() });
    }

    /// Moves the existing name of a file over what may be at `to`.
    pub(super) fn rename(&mut self, from: &str, to: &str, node: Node) {
        self.change(Change::Move { from: from.to_owned(), to: to.to_owned(), node });
    }

    /// Names directly in a directory, sorted.
    pub(super) fn list(&self, directory: &str) -> Vec<String> {
        let prefix = if directory.is_empty() { String::new() } else { format!("{directory}/") };
        let below = self.visible.range(prefix.clone()..).take_while(|(path, _)| path.starts_with(&prefix));
        let names = below.map(|(path, _)| &path[prefix.len()..]);
        names.filter(|name| !name.contains('/')).map(str::to_owned).collect()
    }

    /// All files with their numbers.
    pub(super) fn files(&self) -> impl Iterator<Item = (&String, u64)> {
        self.visible.iter().filter_map(|(path, node)| match node {
            Node::File(number) => Some((path, *number)),
            Node::Directory => None,
        })
    }

    /// Files that have a name, or may have one after a power loss.
    pub(super) fn reachable(&self) -> BTreeSet<u64> {
        let pending = self.pending.iter().filter_map(|change| match change {
            Change::Link { node, .. } | Change::Move { node, .. } => Some(node),
            Change::Unlink { .. } => None,
        });
        let nodes = self.visible.values().chain(self.durable.values()).chain(pending);
        let files = nodes.filter_map(|node| if let Node::File(number) = node { Some(*number) } else { None });
        files.collect()
    }

    /// Makes the changes in this directory durable. An earlier change elsewhere to a name that one of them needs goes with it,
    /// as a rename from another directory needs the file's creation there.
    pub(super) fn sync(&mut self, directory: &str) {
        let mut needed = BTreeSet::new();
        let mut is_synced = vec![false; self.pending.len()];
        for (change, is_synced) in self.pending.iter().zip(&mut is_synced).rev() {
            if change.paths().any(|path| parent(path) == directory || needed.contains(path)) {
                *is_synced = true;
                needed.extend(change.paths().map(str::to_owned));
            }
        }
        for (change, is_synced) in std::mem::take(&mut self.pending).into_iter().zip(is_synced) {
            if is_synced {
                change.apply(&mut self.durable);
            } else {
                self.pending.push(change);
            }
        }
    }

    /// The power is gone: a prefix of the pending changes survives, and what is in no directory any more is gone.
    pub(super) fn lose(&mut self, random: &mut Random) {
        let survivors = random.index(self.pending.len() + 1);
        self.pending.drain(..).take(survivors).for_each(|change| change.apply(&mut self.durable));
        let directories: BTreeSet<String> =
            self.durable.iter().filter(|(_, node)| **node == Node::Directory).map(|(path, _)| path.clone()).collect();
        self.durable.retain(|path, _| ancestors(path).all(|ancestor| directories.contains(ancestor)));
        self.visible = self.durable.clone();
    }

    /// Makes all changes durable.
    pub(super) fn sync_all(&mut self) {
        std::mem::take(&mut self.pending).iter().for_each(|change| change.apply(&mut self.durable));
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.visible);
        self.pending.push(change);
    }
}

impl Change {
    fn apply(&self, tree: &mut Tree) {
        match self {
            Change::Link { path, node } => drop(tree.insert(path.clone(), *node)),
            Change::Unlink { path } => drop(tree.remove(path)),
            Change::Move { from, to, node } => {
                tree.remove(from);
                tree.insert(to.clone(), *node);
            }
        }
    }

    fn paths(&self) -> impl Iterator<Item = &str> {
        let (one, other) = match self {
            Change::Link { path, .. } | Change::Unlink { path } => (path, None),
            Change::Move { from, to, .. } => (from, Some(to)),
        };
        std::iter::once(one).chain(other).map(String::as_str)
    }
}

/// The directory that a name is in.
pub(super) fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

/// Directories on the way to a name, from the top, without the root.
pub(super) fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at])
}

/// A path as it is kept: no empty parts, no ".".
pub(super) fn clean(path: &str) -> String {
    let parts = path.split('/').filter(|part| !part.is_empty() && *part != ".");
    parts.collect::<Vec<_>>().join("/")
}
