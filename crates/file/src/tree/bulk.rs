//! Many keys of a tree at once: each node is read once, in order, and leaves that are not in memory are read ahead of their turn, those that
//! lie together by one read.

use std::ops::RangeInclusive;

use base::id::ChunkAddress;
use store::{Class, StoreError};

use super::format::Node;
use super::{Located, Place, Trees};
use crate::format::Root;

/// Leaves that are read ahead at a time: of 8 KiB mostly.
const LEAVES_AHEAD: usize = 64;

impl Trees {
    /// Tells of each of `keys` (ascending) its number among them and its value, `None` where there is none.
    pub(crate) async fn each(
        &self,
        root: &Root,
        keys: &[u64],
        tell: &mut (dyn FnMut(usize, Option<&[u8]>) + Send),
    ) -> Result<(), StoreError> {
        let mut at = 0;
        while at < keys.len() {
            let Some((parent, level)) = self.above_leaves(root, keys[at]).await? else {
                (at..keys.len()).for_each(|number| tell(number, None));
                return Ok(());
            };
            let end = end_of(keys, at, parent.next);
            if level == 0 {
                tell_of(&parent.node, keys, at..end, tell);
            } else {
                self.each_below(&parent, keys, at..end, tell).await?;
            }
            at = end;
        }
        Ok(())
    }

    /// The same, of keys whose leaves are below one node.
    async fn each_below(
        &self,
        parent: &Located,
        keys: &[u64],
        range: std::ops::Range<usize>,
        tell: &mut (dyn FnMut(usize, Option<&[u8]>) + Send),
    ) -> Result<(), StoreError> {
        let (node, place) = (&parent.node, Place { first: None, next: parent.next });
        let (mut children, mut at) = (Vec::new(), range.start);
        while at < range.end {
            let index = child_of(node, keys[at]);
            let end = end_of(keys, at, place.of_child(node, index).next).min(range.end);
            children.push((index, at..end));
            at = end;
        }
        for some in children.chunks(LEAVES_AHEAD) {
            let addresses = some.iter().map(|(index, _)| Ok(node.child(*index)?.address));
            self.read_ahead(&addresses.collect::<Result<Vec<_>, StoreError>>()?).await;
            for (index, range) in some {
                let leaf = self.node(&node.child(*index)?.address, 0, &place.of_child(node, *index)).await?;
                tell_of(&leaf, keys, range.clone(), tell);
            }
        }
        Ok(())
    }

    /// Begins to read leaves that have some of these keys, for who scans them next. A guess: what cannot be read is left to him.
    pub(crate) async fn scan_ahead(&self, root: &Root, keys: RangeInclusive<u64>) {
        let Ok(Some((parent, 1))) = self.above_leaves(root, *keys.start()).await else { return };
        let (first, last) = (child_of(&parent.node, *keys.start()), child_of(&parent.node, *keys.end()));
        let leaves = (first..=last).take(LEAVES_AHEAD).map_while(|index| parent.node.child(index).ok());
        self.read_ahead(&leaves.map(|child| child.address).collect::<Vec<_>>()).await;
    }

    async fn read_ahead(&self, addresses: &[ChunkAddress]) {
        // One alone is read by who wants it.
        if addresses.len() > 1 {
            self.store.prefetch(Class::Metadata, addresses).await;
        }
    }

    /// The parent of the leaf that a key would be in, or that leaf if it has none, and its level; `None` for an empty tree.
    async fn above_leaves(&self, root: &Root, key: u64) -> Result<Option<(Located, u8)>, StoreError> {
        let level = match root {
            Root::Node { level, .. } => (*level).min(1),
            Root::Empty | Root::Inline(_) => 0,
        };
        Ok(self.locate(root, key, level).await?.map(|located| (located, level)))
    }
}

/// The child that a key would be in.
fn child_of(node: &Node, key: u64) -> usize {
    node.find(key).unwrap_or_else(|index| index.saturating_sub(1))
}

/// Where those of the keys from `at` on end that lie before the next node.
fn end_of(keys: &[u64], at: usize, next: Option<u64>) -> usize {
    next.map_or(keys.len(), |next| at + keys[at..].partition_point(|key| *key < next))
}

fn tell_of(
    leaf: &Node,
    keys: &[u64],
    range: std::ops::Range<usize>,
    tell: &mut (dyn FnMut(usize, Option<&[u8]>) + Send),
) {
    for number in range {
        tell(number, leaf.find(keys[number]).ok().map(|index| leaf.bytes_of(index)));
    }
}
