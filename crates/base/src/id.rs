//! Names of things: files, nodes, chunks, journal positions, versions.

use std::fmt;

/// A file, for ever. Its number is 16 bits of the node that created it and 48 bits of that node's counter, and is never used twice. A file
/// of a clone has the number of the file that it was cloned from, in a branch of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// The catalog that the number is looked up in: 0 is the main one, each clone has one more.
    pub branch: u32,
    /// Which file.
    pub number: u64,
}

impl FileId {
    /// The root directory.
    pub const ROOT: FileId = FileId::main(1);
    /// No file.
    pub const NONE: FileId = FileId::main(0);
    /// Bits of the per-node counter.
    pub const COUNTER_BITS: u32 = 48;

    /// A file of the main branch.
    #[must_use]
    pub const fn main(number: u64) -> FileId {
        FileId { branch: 0, number }
    }

    /// The id that `node` gives to its file number `counter`, in the main branch; `None` when the 48 bits are used up.
    #[must_use]
    pub fn new(node: NodeNumber, counter: u64) -> Option<FileId> {
        let number = u64::from(node.0) << Self::COUNTER_BITS | counter;
        (counter >> Self::COUNTER_BITS == 0).then_some(FileId::main(number))
    }

    /// The file with another number in the same branch.
    #[must_use]
    pub fn beside(self, number: u64) -> FileId {
        FileId { branch: self.branch, number }
    }

    /// The node that created the file.
    #[must_use]
    pub fn node(self) -> NodeNumber {
        NodeNumber(u16::try_from(self.number >> Self::COUNTER_BITS).expect("a shift by 48 leaves 16 bits"))
    }

    /// The creating node's counter.
    #[must_use]
    pub fn counter(self) -> u64 {
        self.number & ((1 << Self::COUNTER_BITS) - 1)
    }
}

impl fmt::Debug for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file {}:{}", self.node().0, self.counter())?;
        if self.branch > 0 { write!(f, " of clone {}", self.branch) } else { Ok(()) }
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
