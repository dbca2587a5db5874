//! What one tree has and another has not, found by walking both together and leaving out the subtrees that they share.
//!
//! Two cursors go over the keys side by side. Where both stand before a subtree of one address, both go past it; where only keys or levels
//! differ, the one that is behind, or higher, goes on or down. So what is read is what differs, and the way there; and in memory is
//! one node of each level of each tree.

use base::id::ChunkAddress;
use bytes::Bytes;
use store::StoreError;

use super::{Place, Trees};
use crate::format::Root;
use crate::tree::format::Node;

/// What a tree has that the other has not. Everything below a node is told before the node.
pub(crate) enum Step {
    /// The value of a key, and that which the other tree has for it.
    Value { key: u64, value: Bytes, other: Option<Bytes> },
    /// A node.
    Node(ChunkAddress),
}

/// A walk over what one tree has and the other has not.
pub(crate) struct Difference {
    this: Cursor,
    other: Cursor,
}

impl Difference {
    /// Nothing is told where both roots are the same.
    pub(crate) async fn begin(trees: &Trees, this: &Root, other: &Root) -> Result<Difference, StoreError> {
        let (this, other) = if this == other { (&Root::Empty, &Root::Empty) } else { (this, other) };
        Ok(Difference { this: Cursor::at(trees, this).await?, other: Cursor::at(trees, other).await? })
    }

    /// The next; `None`: that was all.
    pub(crate) async fn next(&mut self, trees: &Trees) -> Result<Option<Step>, StoreError> {
        loop {
            if let Some(node) = self.this.leave() {
                if let Some(address) = node {
                    return Ok(Some(Step::Node(address)));
                }
                continue;
            }
            while self.other.leave().is_some() {}
            let (this, other) = (self.this.item()?, self.other.item()?);
            match compare(this.as_ref(), other.as_ref()) {
                Move::End => return Ok(None),
                Move::PastBoth => {
                    self.this.pass();
                    self.other.pass();
                }
                Move::PastOther => self.other.pass(),
                Move::Down { this: is_this, other: is_other } => {
                    if is_this {
                        self.this.descend(trees).await?;
                    }
                    if is_other {
                        self.other.descend(trees).await?;
                    }
                }
                Move::Tell { other: is_other } => {
                    self.this.pass();
                    if is_other {
                        self.other.pass();
                    }
                    let value_of = |item| if let Some(Item::Value { value, .. }) = item { Some(value) } else { None };
                    let key = this.as_ref().map_or(0, Item::key);
                    let other = other.filter(|_| is_other).and_then(|other| value_of(Some(other)));
                    let value = value_of(this).expect("only values are told");
                    return Ok(Some(Step::Value { key, value, other }));
                }
            }
        }
    }
}

/// Where a cursor stands: before a value, or before a whole subtree.
enum Item {
    Value { key: u64, value: Bytes },
    Below { first: u64, next: Option<u64>, address: ChunkAddress, level: u8 },
}

impl Item {
    fn key(&self) -> u64 {
        match self {
            Item::Value { key, .. } => *key,
            Item::Below { first, .. } => *first,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Move {
    End,
    PastBoth,
    PastOther,
    Down { this: bool, other: bool },
    Tell { other: bool },
}

/// The way on.
fn compare(this: Option<&Item>, other: Option<&Item>) -> Move {
    let Some(this) = this else { return Move::End };
    let alone = match this {
        Item::Value { .. } => Move::Tell { other: false },
        Item::Below { .. } => Move::Down { this: true, other: false },
    };
    let Some(other) = other else { return alone };
    match (this.key().cmp(&other.key()), this, other) {
        (std::cmp::Ordering::Less, ..) => alone,
        (std::cmp::Ordering::Greater, _, Item::Below { next, .. }) if next.is_none_or(|next| next > this.key()) => {
            Move::Down { this: false, other: true }
        }
        (std::cmp::Ordering::Greater, ..) => Move::PastOther,
        (_, Item::Value { value, .. }, Item::Value { value: before, .. }) if value == before => Move::PastBoth,
        (_, Item::Value { .. }, Item::Value { .. }) => Move::Tell { other: true },
        (_, Item::Below { .. }, Item::Value { .. }) => Move::Down { this: true, other: false },
        (_, Item::Value { .. }, Item::Below { .. }) => Move::Down { this: false, other: true },
        (_, Item::Below { address, level, .. }, Item::Below { address: before, level: level_before, .. }) => {
            if (address, level) == (before, level_before) {
                Move::PastBoth
            } else {
                Move::Down { this: level >= level_before, other: level_before >= level }
            }
        }
    }
}

/// A place in a tree.
struct Cursor {
    /// The top node until it is entered.
    top: Option<Frame>,
    /// The nodes on the way, the top one first.
    way: Vec<Frame>,
}

struct Frame {
    /// `None`: it lies in its owner.
    address: Option<ChunkAddress>,
    level: u8,
    node: Node,
    place: Place,
    index: usize,
}

impl Cursor {
    async fn at(trees: &Trees, root: &Root) -> Result<Cursor, StoreError> {
        let top = match root {
            Root::Empty => None,
            Root::Inline(bytes) => Some((None, 0, Node::decode(bytes.clone(), 0, None)?)),
            Root::Node { address, level } => {
                Some((Some(*address), *level, trees.node(address, *level, &Place::TOP).await?))
            }
        };
        let frame = |(address, level, node)| Frame { address, level, node, place: Place::TOP, index: 0 };
        let mut cursor = Cursor { top: top.map(frame), way: Vec::new() };
        if cursor.top.as_ref().is_some_and(|top| top.address.is_none()) {
            cursor.way.extend(cursor.top.take());
        }
        Ok(cursor)
    }

    fn item(&self) -> Result<Option<Item>, StoreError> {
        if let Some(Frame { address: Some(address), level, node, .. }) = &self.top {
            return Ok(Some(Item::Below { first: node.key(0), next: None, address: *address, level: *level }));
        }
        let Some(Frame { level, node, place, index, .. }) = self.way.last() else { return Ok(None) };
        let key = node.key(*index);
        if *level == 0 {
            return Ok(Some(Item::Value { key, value: node.value(*index) }));
        }
        let next = place.of_child(node, *index).next;
        Ok(Some(Item::Below { first: key, next, address: node.child(*index)?.address, level: level - 1 }))
    }

    /// Goes past the item.
    fn pass(&mut self) {
        if self.top.take().is_none()
            && let Some(frame) = self.way.last_mut()
        {
            frame.index += 1;
        }
    }

    /// Goes into the subtree that is the item.
    async fn descend(&mut self, trees: &Trees) -> Result<(), StoreError> {
        if let Some(top) = self.top.take() {
            self.way.push(top);
            return Ok(());
        }
        let Some(Frame { level, node, place, index, .. }) = self.way.last() else { return Ok(()) };
        let (address, place, level) = (node.child(*index)?.address, place.of_child(node, *index), level - 1);
        let node = trees.node(&address, level, &place).await?;
        self.way.push(Frame { address: Some(address), level, node, place, index: 0 });
        Ok(())
    }

    /// Goes up from a node that is at its end, and past it. Its address, if it has one.
    fn leave(&mut self) -> Option<Option<ChunkAddress>> {
        let left = self.way.pop_if(|frame| frame.index >= frame.node.count())?;
        if let Some(above) = self.way.last_mut() {
            above.index += 1;
        }
        Some(left.address)
    }
}
