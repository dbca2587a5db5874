//! What can go wrong in the store, shaped by what the caller can do about it.
//!
//! Every message says what, where, what was expected, what was found, and what to do. Errors are `Clone`, because one
//! failed group write is told to everyone who waited for it.

use std::fmt;

use base::id::ChunkAddress;
use platform::disk::{DiskError, DiskErrorKind};

/// Why an operation of the store failed.
#[derive(Clone, Debug)]
pub enum StoreError {
    /// No disk of this node holds the chunk: ask a peer.
    Absent {
        /// What was asked for.
        chunk: ChunkAddress,
    },
    /// Bytes were found but are not what was written there. Nothing of them was handed out.
    Corrupt {
        /// The structure.
        what: &'static str,
        /// Its file.
        path: Box<str>,
        /// Bytes from the start of the file.
        offset: u64,
        /// What should be there.
        expected: Box<str>,
        /// What is there.
        found: Box<str>,
    },
    /// The journal lacks frames that were durable. Nothing was changed; [`crate::Options::gives_up_frames`] opens without them.
    FramesLost {
        /// The segment where the first of them should be.
        path: Box<str>,
        /// Where it should begin, in bytes.
        offset: u64,
        /// The first of them.
        first: u64,
        /// The last that is known of.
        last: u64,
        /// Of them, those that are still there and of no use without the first.
        behind: u64,
        /// Who knew of them.
        witness: Box<str>,
    },
    /// Two disks, each used without the other: both have what the other has not. Nothing was changed; [`crate::Options::gives_up_frames`] opens
    /// with the newer one and gives up what the other had alone.
    TwoHistories {
        /// The disk whose history is the newer one.
        newer: Box<str>,
        /// The other.
        older: Box<str>,
    },
    /// The journal is on disks that are missing, and on no other. Nothing was changed; [`crate::Options::gives_up_frames`] opens with what was
    /// committed, and gives up what was written after that.
    JournalMissing {
        /// A disk that is there.
        path: Box<str>,
        /// Where the journal is, as a full sentence.
        why: Box<str>,
    },
    /// No healthy disk has room. Nothing was lost; deleting, and a commit afterwards, make room.
    Full {
        /// What needed room.
        what: &'static str,
        /// Bytes that were to be written.
        needed: u64,
        /// Bytes free on the emptiest healthy disk, with the reserve.
        free: u64,
    },
    /// Chunks that were accepted, and not durable yet, went with a disk that failed. What is of that time is to be put again by who has it.
    Dropped {
        /// How many.
        chunks: u64,
        /// The disk, or the pack on it.
        path: Box<str>,
    },
    /// A disk failed.
    Disk(DiskError),
    /// The disks given are not a store that this program may open (or format). Nothing was changed.
    Refused {
        /// What was refused: the disk's path, or the file's.
        path: Box<str>,
        /// Why, as a full sentence with what was expected and found.
        why: Box<str>,
        /// What the user can do.
        advice: &'static str,
    },
    /// An earlier failure made the store read-only until it is opened again.
    ReadOnly {
        /// The first failure, in words.
        cause: Box<str>,
    },
    /// The caller gave more than the format can hold.
    TooLarge {
        /// What.
        what: &'static str,
        /// Its size.
        bytes: u64,
        /// The most there may be.
        limit: u64,
    },
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Absent { chunk } => {
                write!(f, "{chunk} is not on any disk of this node; ask another node, or restore it from a backup")
            }
            StoreError::Corrupt { what, path, offset, expected, found } => write!(
                f,
                "{what} in {path} at byte {offset} is damaged: expected {expected}, found {found}; nothing of it was \
                 used. Run `hydrafs fsck`, and check the disk"
            ),
            StoreError::FramesLost { path, offset, first, last, behind, witness } => write!(
                f,
                "the journal is damaged in {path} at byte {offset}: frame {first} is missing, and {witness} knew it to be durable; \
                 lost are the changes of frames {first} to {last} ({behind} of them can be read, and make no sense without the first). \
                 Check the disk; `hydrafs fsck --repair --accept-loss` goes on with what was before them"
            ),
            StoreError::TwoHistories { newer, older } => write!(
                f,
                "{newer} and {older} were each used without the other, and each has what the other has not. Open the node without one of \
                 them (`--degraded`) to see what it has and to copy it; `hydrafs fsck --repair --accept-loss` goes on with what {newer} has"
            ),
            StoreError::JournalMissing { path, why } => write!(
                f,
                "{path}: {why} Mount the missing disk and name it too. Where it is gone for good, `hydrafs fsck --degraded --repair \
                 --accept-loss` goes on from the last commit, without what was written after it"
            ),
            StoreError::Full { what, needed, free } => write!(
                f,
                "no healthy disk has room for {what} ({needed} bytes; {free} bytes are free, reserve included); delete \
                 files, or add room"
            ),
            StoreError::Dropped { chunks, path } => write!(
                f,
                "{path} failed, and {chunks} chunks that were not durable yet cannot be read back from it; nothing that was synced is among \
                 them. Try again"
            ),
            StoreError::Disk(error) => write!(f, "{error}"),
            StoreError::Refused { path, why, advice } => write!(f, "{path}: {why} {advice} Nothing was changed."),
            StoreError::ReadOnly { cause } => write!(
                f,
                "the store takes no more writes because of an earlier failure ({cause}); check the disks and start again"
            ),
            StoreError::TooLarge { what, bytes, limit } => {
                write!(f, "{what} has {bytes} bytes, more than the {limit} that the format allows")
            }
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StoreError::Disk(error) => Some(error),
            _ => None,
        }
    }
}

impl From<DiskError> for StoreError {
    fn from(error: DiskError) -> StoreError {
        StoreError::Disk(error)
    }
}

/// Shorthand for [`StoreError::Corrupt`].
pub(crate) fn corrupt(
    what: &'static str,
    path: &str,
    offset: u64,
    expected: impl fmt::Display,
    found: impl fmt::Display,
) -> StoreError {
    StoreError::Corrupt {
        what,
        path: path.into(),
        offset,
        expected: expected.to_string().into(),
        found: found.to_string().into(),
    }
}

/// Nobody knows where a chunk is, for what would tell failed. Neither `Absent` nor `Corrupt`, which say that it is lost.
pub(crate) fn unknown(path: &str, cause: &StoreError) -> StoreError {
    let (kind, operation) = (DiskErrorKind::Failed, "find a chunk by");
    StoreError::Disk(DiskError { kind, operation, path: path.to_owned(), detail: cause.to_string() })
}

/// Shorthand for [`StoreError::Refused`].
pub(crate) fn refused(path: &str, why: impl fmt::Display, advice: &'static str) -> StoreError {
    StoreError::Refused { path: path.into(), why: why.to_string().into(), advice }
}
