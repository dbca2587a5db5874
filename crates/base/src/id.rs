//! Names of things: files, nodes, chunks, journal positions, versions.

use std::fmt;

/// A file, for ever: 16 bits of the node that created it, 48 bits of that node's counter. Never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

impl FileId {
    /// The root directory.
    pub const ROOT: FileId = FileId(1);
    /// Bits of the per-node counter.
    pub const COUNTER_BITS: u32 = 48;

    /// The id that `node` gives to its file number `counter`; `None` when the 48 bits are used up.
    #[must_use]
    pub fn new(node: NodeNumber, counter: u64) -> Option<FileId> {
        (counter >> Self::COUNTER_BITS == 0).then_some(FileId(u64::from(node.0) << Self::COUNTER_BITS | counter))
    }

    /// The node that created the file.
    #[must_use]
    pub fn node(self) -> NodeNumber {
        NodeNumber(u16::try_from(self.0 >> Self::COUNTER_BITS).expect("a shift by 48 leaves 16 bits"))
    }

    /// The creating node's counter.
    #[must_use]
    pub fn counter(self) -> u64 {
        self.0 & ((1 << Self::COUNTER_BITS) - 1)
    }
}

impl fmt::Debug for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file {}:{}", self.node().0, self.counter())
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A node of the cluster. Node 0 exists in no cluster: its only file is the root directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeNumber(pub u16);

/// What a chunk is called: the keyed BLAKE3 hash of its uncompressed content. The key belongs to the dedup domain,
/// so an address says nothing to who does not hold the key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkAddress(pub [u8; 32]);

impl ChunkAddress {
    /// Length on disk and wire.
    pub const BYTES: usize = 32;
    /// No content has it: what names it is lost.
    pub const NONE: ChunkAddress = ChunkAddress([0; ChunkAddress::BYTES]);
}

impl fmt::Debug for ChunkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("chunk ")?;
        self.0.iter().take(8).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for ChunkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The number of a journal frame on its node, counted from 1 without gaps. The time T of a superblock is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position(pub u64);

/// The version of a file: two copies agree on a prefix of its records exactly when `chain` agrees at the same
/// `(epoch, sequence)`. Length alone is no version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Version {
    /// Raised by each election of a primary.
    pub epoch: u32,
    /// Number of records of this file so far.
    pub sequence: u64,
    /// Hash of the record onto the previous chain value.
    pub chain: u128,
}
