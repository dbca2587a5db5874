//! Transfer: a snapshot goes to another node of the dedup domain, as a stream of the chunks that it needs there.
//!
//! ```text
//! sender                                              receiver
//!   walks the snapshot and the one before together,     reads the head: domain, the one before, the name
//!   and past every subtree that both have               verifies each chunk, puts it, notes it in a receipt
//!   head, chunk, chunk, …, end                    →     at the end walks the snapshot too: is all of it here?
//!                                                       and only then makes it one
//! ```
//!
//! Chunks come before those that name them, and memory holds one chunk and two sets of addresses that have a bound. Because what is equal is
//! called equal, nobody keeps a list of what the other has.
//!
//! I-114 A snapshot that came is made when its stream ended as the sender says, and when everything that it names was found here, while no
//!       reclaim ran. Until then nothing but unnamed chunks has changed.
//!       What its files ask for against the loss of disks is done before it is made, where there are disks for it; else it says how many go without.
//! I-115 A snapshot that is being sent, or that what comes is the difference to, is not deleted.
//!
//! Not here: where a stream comes from and goes (`node`).

pub(crate) mod format;
mod levels;
mod receive;
mod send;
mod surplus;

pub use receive::{Received, Receiving};
pub use send::{Sending, Sent};

use std::fmt;
use std::io;

use base::codec::Writer;
use base::hash::DomainKey;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::attributes::View;
use crate::failure::FileError;
use crate::format::SnapshotValue;
use crate::system::FileSystem;

/// Why a snapshot was not sent or received.
#[derive(Debug)]
pub enum TransferError {
    /// No snapshot of this node has this name.
    NoSnapshot(String),
    /// There is no such place in this stream to go on at.
    NoSuchPlace(String),
    /// The stream takes nothing more.
    Output(io::Error),
    /// What comes is no stream that this program knows: why.
    NoStream(String),
    /// It is of another dedup domain: theirs and ours, in short.
    OtherDomain([String; 2]),
    /// It is the difference to a snapshot that is not here.
    NoBase,
    /// It ended, or could not be read on, before its end.
    Cut {
        /// Why.
        why: String,
        /// Chunks that came by now.
        chunks: u64,
        /// Where a stream is to go on, if what came is kept.
        token: String,
    },
    /// It came to its end, and chunks that it does not have are not here.
    Incomplete(String),
    /// The node failed, or the name cannot be had.
    File(FileError),
}

impl fmt::Display for TransferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TransferError::NoSnapshot(name) => write!(f, "there is no snapshot {name}"),
            TransferError::NoSuchPlace(token) => write!(f, "{token} is no place in this stream"),
            TransferError::Output(error) => write!(f, "the stream cannot be written: {error}"),
            TransferError::NoStream(why) => write!(f, "{why}"),
            TransferError::OtherDomain([theirs, ours]) => {
                write!(f, "the stream is of dedup domain {theirs}, this node of {ours}")
            }
            TransferError::NoBase => f.write_str("the stream is the difference to a snapshot that is not here"),
            TransferError::Cut { why, chunks, .. } => write!(f, "the stream was cut after {chunks} chunks: {why}"),
            TransferError::Incomplete(what) => write!(f, "the stream ended, and {what} is not here"),
            TransferError::File(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TransferError {}

impl<E: Into<FileError>> From<E> for TransferError {
    fn from(error: E) -> TransferError {
        TransferError::File(error.into())
    }
}

/// What the trees of a snapshot are called: two with one identity hold the same files.
fn identity(snapshot: &SnapshotValue, key: &DomainKey) -> [u8; 32] {
    let mut writer = Writer::default();
    writer.put(b"trees of a snapshot");
    snapshot.trees().iter().for_each(|(_, root)| root.encode(&mut writer));
    key.seal(writer.bytes())
}

/// What a stream from one snapshot to another is called, wherever it begins.
fn stream_of(identity: &[u8; 32], base: Option<&[u8; 32]>, key: &DomainKey) -> [u8; 32] {
    key.seal(&[b"stream", &identity[..], &base.copied().unwrap_or_default()].concat())
}

/// The place in a stream after so many chunks, in words that a person can copy.
fn token(stream: &[u8; 32], count: u64) -> String {
    let head: String = stream[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{count}-{head}")
}

/// The count in a token of this stream.
fn count_of(token_text: &str, stream: &[u8; 32]) -> Option<u64> {
    let count = token_text.split_once('-')?.0.parse().ok()?;
    (token(stream, count) == token_text).then_some(count)
}

/// The place of one more in `places`. Refused, and not waited for: who waits for a place may be who is read by one that has it.
fn place(places: &Semaphore) -> Result<SemaphorePermit<'_>, FileError> {
    places.try_acquire().map_err(|_| {
        FileError::Busy("as many snapshots as can be are being sent or received, or the node is being closed")
    })
}

/// A snapshot that nobody deletes meanwhile.
struct Held<'a> {
    system: &'a FileSystem,
    view: u32,
    value: SnapshotValue,
}

impl FileSystem {
    /// Holds the snapshot of which `is_it` says so.
    async fn hold(&self, is_it: impl Fn(&SnapshotValue) -> bool) -> Option<Held<'_>> {
        // One that is being deleted is still listed.
        let _change = self.snapshot_change.lock().await;
        let snapshots = self.snapshots.lock();
        let (view, value) = snapshots.iter().find(|(_, value)| is_it(value))?;
        *self.held_views.lock().entry(View(*view)).or_default() += 1;
        Some(Held { system: self, view: *view, value: value.clone() })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut held = self.system.held_views.lock();
        if let Some(count) = held.get_mut(&View(self.view)) {
            *count -= 1;
            if *count == 0 {
                held.remove(&View(self.view));
            }
        }
    }
}
