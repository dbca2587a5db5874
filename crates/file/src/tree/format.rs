//! The bytes of a tree node (docs/format.md, "Tree node"), and where nodes end.

use base::codec::{Reader, Writer};
use base::id::ChunkAddress;
use base::limits::TREE_LEVELS_MAX;
use bytes::Bytes;
use store::StoreError;

const MAGIC: u32 = u32::from_le_bytes(*b"HTN1");
/// Magic, level, three bytes of padding, count, four bytes of padding.
const HEADER_BYTES: usize = 16;
/// Where the count is.
const COUNT_AT: usize = 8;
/// Key, end of the value in the heap.
const SLOT_BYTES: usize = 12;
/// A node is not ended below this, so that tiny nodes do not drown the index.
const NODE_BYTES_MIN: usize = 2 * 1024;
/// Bytes beyond the minimum after which a node ends on average. 8 KiB in all: one look-up decompresses little, and a
/// chunk header of 64 bytes stays below one percent.
const NODE_BYTES_MORE: u64 = 6 * 1024;
/// A node always ends above this, whatever its keys.
const NODE_BYTES_MAX: usize = 32 * 1024;

/// What an inner node keeps of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChildValue {
    pub(super) address: ChunkAddress,
}

impl ChildValue {
    pub(super) fn encode(&self) -> Vec<u8> {
        self.address.0.to_vec()
    }
}

/// A node as read: the bytes, checked once, and looked into in place.
#[derive(Clone, Debug)]
pub(super) struct Node {
    bytes: Bytes,
    count: usize,
}

impl Node {
    /// Checks everything that later look-ups rely on. `address` is for the message.
    pub(super) fn decode(bytes: Bytes, level: u8, address: Option<&ChunkAddress>) -> Result<Node, StoreError> {
        let corrupt = |expected: &str, found: String| StoreError::Corrupt {
            what: "tree node",
            path: address.map_or_else(|| "an inode".into(), |address| address.to_string().into()),
            offset: 0,
            expected: expected.into(),
            found: found.into(),
        };
        let header = || -> Result<_, base::codec::DecodeError> {
            let mut reader = Reader::new(&bytes);
            let magic = reader.u32("node magic")?;
            let found = reader.u8("node level")?;
            reader.zeroes("padding", 3)?;
            let count = reader.u32("node count")?;
            reader.zeroes("padding", 4)?;
            Ok((magic, found, count as usize))
        };
        let (magic, found_level, count) = header().map_err(|error| corrupt("a node", error.to_string()))?;
        if magic != MAGIC || found_level != level || level > TREE_LEVELS_MAX {
            return Err(corrupt(
                &format!("magic {MAGIC:#x} at level {level}"),
                format!("magic {magic:#x} at level {found_level}"),
            ));
        }
        let slots = count.checked_mul(SLOT_BYTES).and_then(|slots| slots.checked_add(HEADER_BYTES));
        let heap = slots.filter(|end| *end <= bytes.len()).map(|end| bytes.len() - end);
        let Some(heap) = heap.filter(|_| count > 0) else {
            return Err(corrupt("a count of entries that fits", format!("{count} in {} bytes", bytes.len())));
        };
        let node = Node { bytes, count };
        let (mut previous_key, mut previous_end) = (None, 0);
        for index in 0..count {
            let (key, end) = (node.key(index), node.end(index));
            let is_value = level == 0 || end - previous_end.min(end) == ChunkAddress::BYTES;
            if previous_key.is_some_and(|previous| previous >= key) || end < previous_end || end > heap || !is_value {
                return Err(corrupt("ascending keys with values in bounds", format!("entry {index} of {count}")));
            }
            (previous_key, previous_end) = (Some(key), end);
        }
        if previous_end != heap {
            return Err(corrupt("values up to the end", format!("{previous_end} of {heap} bytes")));
        }
        Ok(node)
    }

    /// Bytes that `decode` has accepted before.
    pub(super) fn decoded_before(bytes: Bytes) -> Node {
        let mut node = Node { bytes, count: 0 };
        node.count = u32::from_le_bytes(node.field(COUNT_AT)) as usize;
        node
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    fn field<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut field = [0; N];
        field.copy_from_slice(&self.bytes[at..at + N]);
        field
    }

    pub(super) fn key(&self, index: usize) -> u64 {
        u64::from_le_bytes(self.field(HEADER_BYTES + index * SLOT_BYTES))
    }

    fn end(&self, index: usize) -> usize {
        u32::from_le_bytes(self.field(HEADER_BYTES + index * SLOT_BYTES + 8)) as usize
    }

    pub(super) fn value(&self, index: usize) -> Bytes {
        self.bytes.slice(self.range_of(index))
    }

    /// The same, while the node is there.
    pub(super) fn bytes_of(&self, index: usize) -> &[u8] {
        &self.bytes[self.range_of(index)]
    }

    fn range_of(&self, index: usize) -> std::ops::Range<usize> {
        let heap = HEADER_BYTES + self.count * SLOT_BYTES;
        let start = if index == 0 { 0 } else { self.end(index - 1) };
        heap + start..heap + self.end(index)
    }

    pub(super) fn child(&self, index: usize) -> Result<ChildValue, StoreError> {
        let mut address = [0; ChunkAddress::BYTES];
        address.copy_from_slice(&self.value(index));
        Ok(ChildValue { address: ChunkAddress(address) })
    }

    /// The index of `key`, or where it would be.
    pub(super) fn find(&self, key: u64) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.midpoint(high);
            match self.key(middle).cmp(&key) {
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }
}

/// Collects entries and says where nodes end.
pub(super) struct NodeBuilder {
    level: u8,
    slots: Vec<(u64, u32)>,
    heap: Vec<u8>,
}

impl NodeBuilder {
    pub(super) fn new(level: u8) -> NodeBuilder {
        NodeBuilder { level, slots: Vec::new(), heap: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Adds the next entry; gives the finished node when the entry is its last.
    pub(super) fn push(&mut self, key: u64, value: &[u8]) -> Option<(u64, Bytes)> {
        self.add(key, value);
        let bytes = HEADER_BYTES + self.slots.len() * SLOT_BYTES + self.heap.len();
        let is_border = bytes >= NODE_BYTES_MIN && is_border(key, value.len() + SLOT_BYTES);
        if is_border || bytes >= NODE_BYTES_MAX { self.finish() } else { None }
    }

    /// Adds the next entry, wherever the node is to end.
    pub(super) fn add(&mut self, key: u64, value: &[u8]) {
        self.heap.extend_from_slice(value);
        self.slots.push((key, u32::try_from(self.heap.len()).expect("a node is small")));
    }

    /// The node of what was collected, with its first key; `None` if there is nothing.
    pub(super) fn finish(&mut self) -> Option<(u64, Bytes)> {
        let first = self.slots.first()?.0;
        let mut writer = Writer::with_capacity(HEADER_BYTES + self.slots.len() * SLOT_BYTES + self.heap.len());
        writer.u32(MAGIC).u8(self.level).put(&[0; 3]);
        writer.u32(u32::try_from(self.slots.len()).expect("a node is small")).u32(0);
        for (key, end) in self.slots.drain(..) {
            writer.u64(key).u32(end);
        }
        writer.put(&self.heap);
        self.heap.clear();
        Some((first, Bytes::from(writer.into_bytes())))
    }
}

/// Whether an entry of this many bytes ends its node: with a chance of its share of `NODE_BYTES_MORE`, drawn from
/// its key.
fn is_border(key: u64, bytes: usize) -> bool {
    // SplitMix64's finaliser: consecutive keys draw independently.
    let mut z = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) < (u64::MAX / NODE_BYTES_MORE).saturating_mul(bytes as u64)
}
