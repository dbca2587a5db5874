//! Trees: sorted maps from 64-bit keys to bytes, stored as content-addressed chunks.
//!
//! One kind of tree serves the catalog (FileId → inode), directories (cookie → entry), files (offset → extent) and the
//! lists of snapshots and orphans. A tree is never changed: an update writes the nodes that differ and gives a new root.
//!
//! Where a node ends is decided by its keys and the sizes of its values alone, so equal content gives equal nodes whatever its
//! history, and two trees are compared by walking only what differs. After a change the cutting meets the old borders again
//! within about one node.
//!
//! I-20  A separator in a parent equals the first key of its child, and all keys of the child lie below the next separator. Checked
//!       wherever a child is followed: so no child is below two parents, and a tree has no more leaves than it has chunks.
//! I-21  The level of a child is one less than its parent's: no loop can be followed.
//! I-22  Children are in the store before the parent that names them.
//!
//! Not here: what keys and values mean; caching (the store's); when an update runs (`commit`).

mod checked;
mod format;

mod bulk;
mod difference;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::id::ChunkAddress;
use bytes::Bytes;
use store::{Class, Store, StoreError};

use crate::format::Root;
use checked::Checked;
pub(crate) use difference::{Difference, Step};
use format::{ChildValue, Node, NodeBuilder};

/// Nodes are put into the store in groups of this many, so that hashing and compression use all cores.
const NODES_PER_PUT: usize = 64;

/// One step of an update: the new value of a key, or its removal.
pub(crate) type Edits = BTreeMap<u64, Option<Vec<u8>>>;

/// A node on the way, with the key that its parent has for it and where the next node of its level begins.
struct Located {
    separator: u64,
    node: Node,
    next: Option<u64>,
}

/// Where a node stands among the keys, as its parents say.
struct Place {
    /// Its first key; `None`: any, for a top node.
    first: Option<u64>,
    /// The first key behind it, if there is one.
    next: Option<u64>,
}

impl Place {
    const TOP: Place = Place { first: None, next: None };

    fn of_child(&self, node: &Node, index: usize) -> Place {
        let next = if index + 1 < node.count() { Some(node.key(index + 1)) } else { self.next };
        Place { first: Some(node.key(index)), next }
    }
}

/// Where a range of entries begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// At the first key that was asked for, or the next.
    AtOrAbove,
    /// At the first key that was asked for, or the one before, whose entry may reach into the range.
    AtOrBelow,
}

/// A stretch of keys that cannot be read.
pub(crate) struct Gap {
    pub(crate) error: StoreError,
    /// Where it ends; `None`: with the tree.
    pub(crate) next: Option<u64>,
}

/// Trees of one store.
#[derive(Clone)]
pub(crate) struct Trees {
    store: Arc<Store>,
    checked: Checked,
    /// Bytes of nodes that were put.
    written_bytes: Arc<AtomicU64>,
}

impl Trees {
    pub(crate) fn new(store: Arc<Store>) -> Trees {
        Trees { store, checked: Checked::new(), written_bytes: Arc::default() }
    }

    /// Bytes of nodes that were put since it was asked last.
    pub(crate) fn take_written(&self) -> u64 {
        self.written_bytes.swap(0, Ordering::Relaxed)
    }

    /// The value of `key`.
    pub(crate) async fn get(&self, root: &Root, key: u64) -> Result<Option<Bytes>, StoreError> {
        let Some(located) = self.locate(root, key, 0).await? else { return Ok(None) };
        Ok(located.node.find(key).ok().map(|index| located.node.value(index)))
    }

    /// The values of those of `keys` (ascending) that are there. Each leaf is looked up once.
    pub(crate) async fn get_many(&self, root: &Root, keys: &[u64]) -> Result<Vec<(u64, Bytes)>, StoreError> {
        let mut found = Vec::with_capacity(keys.len());
        let mut leaf: Option<Located> = None;
        for &key in keys {
            if leaf.as_ref().is_none_or(|leaf| leaf.next.is_some_and(|next| next <= key)) {
                leaf = self.locate(root, key, 0).await?;
            }
            let Some(Located { node, .. }) = &leaf else { break };
            found.extend(node.find(key).ok().map(|index| (key, node.value(index))));
        }
        Ok(found)
    }

    /// The entry with the greatest key not above `key`.
    pub(crate) async fn floor(&self, root: &Root, key: u64) -> Result<Option<(u64, Bytes)>, StoreError> {
        let Some(located) = self.locate(root, key, 0).await? else { return Ok(None) };
        let index = match located.node.find(key) {
            Ok(index) => index,
            // By I-20 a leaf chosen for `key` begins at or below it, unless `key` is below the whole tree.
            Err(0) => return Ok(None),
            Err(index) => index - 1,
        };
        Ok(Some((located.node.key(index), located.node.value(index))))
    }

    /// Entries from `from` on, about `limit` of them (whole leaves), and the key to go on at; `None`: no more.
    pub(crate) async fn scan(
        &self,
        root: &Root,
        from: u64,
        limit: usize,
    ) -> Result<(Vec<(u64, Bytes)>, Option<u64>), StoreError> {
        self.range(root, from..=u64::MAX, Start::AtOrAbove, limit).await
    }

    /// As [`Trees::scan`], of some keys only: of a leaf nothing is taken that was not asked for.
    pub(crate) async fn range(
        &self,
        root: &Root,
        keys: RangeInclusive<u64>,
        start: Start,
        limit: usize,
    ) -> Result<(Vec<(u64, Bytes)>, Option<u64>), StoreError> {
        let (found, next) = self.range_past(root, keys, start, limit).await.map_err(|gap| gap.error)?;
        if let Some(at) = next.filter(|_| found.len() < limit) {
            // It ended before a gap, whose error this is.
            self.locate(root, at, 0).await?;
        }
        Ok((found, next))
    }

    /// As [`Trees::scan`], for a tree that may be damaged: a gap ends the entries before it, and then comes as an error of its own.
    pub(crate) async fn scan_past(
        &self,
        root: &Root,
        from: u64,
        limit: usize,
    ) -> Result<(Vec<(u64, Bytes)>, Option<u64>), Gap> {
        self.range_past(root, from..=u64::MAX, Start::AtOrAbove, limit).await
    }

    async fn range_past(
        &self,
        root: &Root,
        keys: RangeInclusive<u64>,
        start: Start,
        limit: usize,
    ) -> Result<(Vec<(u64, Bytes)>, Option<u64>), Gap> {
        let (mut found, mut at, last): (Vec<(u64, Bytes)>, u64, u64) = (Vec::new(), *keys.start(), *keys.end());
        loop {
            let Located { node, next, .. } = match self.descend(root, at, 0).await {
                Ok(Some(located)) => located,
                Ok(None) => return Ok((found, None)),
                Err(_) if !found.is_empty() => return Ok((found, Some(at))),
                Err(gap) => return Err(gap),
            };
            let first = match (node.find(at), start) {
                // By I-20 a leaf chosen for a key begins at or below it, unless the key is below the whole tree.
                (Err(above), Start::AtOrBelow) if at == *keys.start() => above.saturating_sub(1),
                (Ok(index) | Err(index), _) => index,
            };
            let end = node.find(last).map_or_else(|above| above, |index| index + 1);
            found.extend((first..end).map(|index| (node.key(index), node.value(index))));
            match next.filter(|next| *next <= last) {
                Some(next) if found.len() < limit => at = next,
                next => return Ok((found, next)),
            }
        }
    }

    /// The addresses of the nodes of a tree, top first; `visit` says whether to go below a node. For marking what is live.
    pub(crate) async fn walk(
        &self,
        root: &Root,
        visit: &mut (dyn FnMut(&ChunkAddress, u8) -> bool + Send),
        leaf: &mut (dyn FnMut(u64, &Bytes) -> Result<(), StoreError> + Send),
    ) -> Result<(), StoreError> {
        let mut waiting: Vec<(ChunkAddress, u8, Place)> = Vec::new();
        match root {
            Root::Empty => {}
            Root::Inline(bytes) => {
                let node = Node::decode(bytes.clone(), 0, None)?;
                (0..node.count()).try_for_each(|index| leaf(node.key(index), &node.value(index)))?;
            }
            Root::Node { address, level } => waiting.push((*address, *level, Place::TOP)),
        }
        while let Some((address, level, place)) = waiting.pop() {
            if !visit(&address, level) {
                continue;
            }
            let node = self.node(&address, level, &place).await?;
            for index in 0..node.count() {
                if level == 0 {
                    leaf(node.key(index), &node.value(index))?;
                } else {
                    waiting.push((node.child(index)?.address, level - 1, place.of_child(&node, index)));
                }
            }
        }
        Ok(())
    }

    /// Applies edits and gives the new root. A result of one leaf of at most `inline_bytes_max` bytes becomes an inline root.
    pub(crate) async fn update(&self, root: &Root, edits: Edits, inline_bytes_max: usize) -> Result<Root, StoreError> {
        if edits.is_empty() {
            return Ok(root.clone());
        }
        let top = match root {
            Root::Node { level, .. } => *level,
            _ => 0,
        };
        let mut edits = edits;
        for level in 0..top {
            let (removed, built) = self.rewrite(root, level, edits).await?;
            let children = self.put_all(built).await?;
            edits = removed.into_iter().map(|separator| (separator, None)).collect();
            edits.extend(children.into_iter().map(|(key, child)| (key, Some(child.encode()))));
        }
        let (_, mut built) = self.rewrite(root, top, edits).await?;
        let mut level = top;
        loop {
            match built.len() {
                0 => return Ok(Root::Empty),
                1 if level == 0 && built[0].1.len() <= inline_bytes_max => {
                    return Ok(Root::Inline(built.remove(0).1));
                }
                1 => return self.collapse(built.remove(0).1, level).await,
                _ => {}
            }
            let mut builder = NodeBuilder::new(level + 1);
            let mut parents = Vec::new();
            for (key, child) in self.put_all(built).await? {
                parents.extend(builder.push(key, &child.encode()));
            }
            parents.extend(builder.finish());
            built = parents;
            level += 1;
        }
    }

    /// Stores a top node, or takes its only child instead, as often as it has only one.
    async fn collapse(&self, bytes: Bytes, level: u8) -> Result<Root, StoreError> {
        let mut node = Node::decode(bytes.clone(), level, None)?;
        if level == 0 || node.count() > 1 {
            let address = self.store.put(Class::Metadata, &bytes).await?;
            self.written_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            return Ok(Root::Node { address, level });
        }
        let mut level = level;
        loop {
            let address = node.child(0)?.address;
            level -= 1;
            node = self.node(&address, level, &Place::TOP.of_child(&node, 0)).await?;
            if level == 0 || node.count() > 1 {
                return Ok(Root::Node { address, level });
            }
        }
    }

    /// Merges `edits` into the nodes of one level that they touch. Gives the separators of the nodes that fell away and the
    /// nodes that stand in their place, in order of key.
    async fn rewrite(&self, root: &Root, level: u8, edits: Edits) -> Result<(Vec<u64>, Vec<(u64, Bytes)>), StoreError> {
        let mut removed = Vec::new();
        let mut built = Vec::new();
        let mut edits = edits.into_iter().peekable();
        while let Some((key, _)) = edits.peek() {
            let mut builder = NodeBuilder::new(level);
            let mut at = self.locate(root, *key, level).await?;
            loop {
                let next = at.as_ref().and_then(|located| located.next);
                if let Some(located) = &at {
                    removed.push(located.separator);
                    let node = &located.node;
                    for index in 0..node.count() {
                        let key = node.key(index);
                        while let Some((edited, value)) = edits.next_if(|(edited, _)| *edited < key) {
                            built.extend(value.and_then(|value| builder.push(edited, &value)));
                        }
                        match edits.next_if(|(edited, _)| *edited == key) {
                            Some((_, value)) => built.extend(value.and_then(|value| builder.push(key, &value))),
                            None => built.extend(builder.push(key, &node.value(index))),
                        }
                    }
                }
                while let Some((edited, value)) = edits.next_if(|(edited, _)| next.is_none_or(|next| *edited < next)) {
                    built.extend(value.and_then(|value| builder.push(edited, &value)));
                }
                match next {
                    // The new cutting meets an old border: what follows stays as it is.
                    Some(_) if builder.is_empty() => break,
                    Some(next) => at = self.locate(root, next, level).await?,
                    None => {
                        built.extend(builder.finish());
                        break;
                    }
                }
            }
        }
        Ok((removed, built))
    }

    async fn put_all(&self, built: Vec<(u64, Bytes)>) -> Result<Vec<(u64, ChildValue)>, StoreError> {
        let mut children = Vec::with_capacity(built.len());
        for group in built.chunks(NODES_PER_PUT) {
            let pieces: Vec<Bytes> = group.iter().map(|(_, bytes)| bytes.clone()).collect();
            self.written_bytes.fetch_add(pieces.iter().map(|bytes| bytes.len() as u64).sum(), Ordering::Relaxed);
            let addresses = self.store.put_many(Class::Metadata, pieces).await?;
            children.extend(group.iter().zip(addresses).map(|((key, _), address)| (*key, ChildValue { address })));
        }
        Ok(children)
    }

    /// The node of `level` whose range holds `key`; `None` for an empty tree.
    async fn locate(&self, root: &Root, key: u64, level: u8) -> Result<Option<Located>, StoreError> {
        self.descend(root, key, level).await.map_err(|gap| gap.error)
    }

    /// The same, and what follows behind a node that cannot be read.
    async fn descend(&self, root: &Root, key: u64, level: u8) -> Result<Option<Located>, Gap> {
        let (address, top) = match root {
            Root::Empty => return Ok(None),
            Root::Inline(bytes) => {
                let node = Node::decode(bytes.clone(), 0, None).map_err(|error| Gap { error, next: None })?;
                return Ok(Some(Located { separator: 0, node, next: None }));
            }
            Root::Node { address, level } => (*address, *level),
        };
        let mut place = Place::TOP;
        let mut node = self.node(&address, top, &place).await.map_err(|error| Gap { error, next: None })?;
        let mut current = top;
        while current > level {
            let index = node.find(key).unwrap_or_else(|index| index.saturating_sub(1));
            let below = place.of_child(&node, index);
            current -= 1;
            let child = async { self.node(&node.child(index)?.address, current, &below).await };
            node = child.await.map_err(|error| Gap { error, next: below.next })?;
            place = below;
        }
        Ok(Some(Located { separator: place.first.unwrap_or(0), node, next: place.next }))
    }

    async fn node(&self, address: &ChunkAddress, level: u8, place: &Place) -> Result<Node, StoreError> {
        let bytes = self.store.get(Class::Metadata, address).await?;
        let node = if self.checked.has(address, level) {
            Node::decoded_before(bytes)
        } else {
            let node = Node::decode(bytes, level, Some(address))?;
            self.checked.note(address, level);
            node
        };
        let (first, last) = (node.key(0), node.key(node.count() - 1));
        if place.first.is_some_and(|expected| expected != first) || place.next.is_some_and(|next| next <= last) {
            return Err(StoreError::Corrupt {
                what: "tree node",
                path: address.to_string().into(),
                offset: 0,
                expected: format!("keys from {:?} to below {:?}", place.first, place.next).into(),
                found: format!("keys from {first} to {last}").into(),
            });
        }
        Ok(node)
    }
}

/// For tests of damaged nodes: a node of some entries.
#[cfg(test)]
pub(crate) fn sample(level: u8, count: u64) -> Vec<u8> {
    let mut builder = NodeBuilder::new(level);
    (0..count).for_each(|key| builder.add(key * 1000, &[7; ChunkAddress::BYTES]));
    builder.finish().expect("entries").1.to_vec()
}

/// What bytes that are accepted as a node are encoded to.
#[cfg(test)]
pub(crate) fn encoded_again(bytes: &[u8], level: u8) -> Result<Vec<u8>, StoreError> {
    let node = Node::decode(Bytes::copy_from_slice(bytes), level, None)?;
    let mut builder = NodeBuilder::new(level);
    (0..node.count()).for_each(|index| builder.add(node.key(index), &node.value(index)));
    Ok(builder.finish().expect("entries").1.to_vec())
}
