//! The file layer: files, directories and snapshots on a store of chunks, a journal and a root.
//!
//! A change is *accepted* when its call returns, *local* (it survives a crash of this machine) after [`FileSystem::sync`] or
//! within the flush interval, and in the *trees* after a commit. Reads see what was accepted, at once.
//!
//! Layers, each using those above it only:
//!
//! ```text
//! attributes, failure, extent   what a file is, how operations fail, what lies in a range
//! format                        bytes: roots, inodes, entries, records
//! tree                          copy-on-write maps of chunks
//! habit                         when a file's callers sync it
//! inode, table, references      a file in memory, all of them, and who holds them
//! removals                      trees that have lost their name
//! upkeep                        what is known of layout upkeep
//! mending                       how far a mender is
//! receipts                      what came from other nodes and has no name yet
//! system                        what operations share: transactions, ids, loading
//! admission                     who may change something now, and who waits
//! acl, directory, attribute, read, write, namespace      the operations
//! cut, flush, commit            accepted → local → trees, in the background
//! batch                         many files in one go
//! snapshot, branch, prune, open, status, check, repair, reclaim, scrub, layout, speed, transfer         the whole file system
//! ```
//!
//! Not here: errno, the kernel's protocol and processes (`node`), packs and disks (`store`), other nodes.
#![forbid(unsafe_code)]

mod attributes;
mod extent;
mod failure;

mod format;

mod tree;

mod buffers;
mod counters;
mod grace;
mod habit;
mod waiting;

mod inode;
mod mending;
mod raising;
mod readers;
mod receipts;
mod references;
mod removals;
mod room;
mod siblings;
mod table;
mod upkeep;

mod system;

mod admission;

mod acl;
mod directory;
mod read;

mod prefetch;
mod walk_ahead;

mod write;

mod attribute;

mod cut;
mod flush;
mod namespace;

mod left_out;

mod commit;
mod snapshot;

mod branch;
mod prune;

mod names;
mod policy;
mod raiser;

mod members;
mod reclaim;
mod scrub;

mod batch;

mod layout;
mod speed;

mod transfer;

mod mender;

mod check;
mod open;
mod repair;
mod status;

#[cfg(test)]
mod tests;

pub use attribute::XattrMode;
pub use attributes::{AttributeChange, Attributes, Kind, MODE_MASK, NewFile, Node, SET_GID, SET_UID, TimeChange, View};
pub use batch::{
    Anew, Aspect, BatchBudget, BatchCompare, BatchCompareReport, BatchContent, BatchCopy, BatchCopyReport, BatchEntry,
    BatchFate, BatchOptimize, BatchRead, BatchReadReport, BatchSink, BatchUnit, BatchWarm, BatchWarmReport, BatchWrite,
    BatchWriteReport, CompareTell, Compared, Taken, WalkTell, Walked,
};
pub use check::FilesReport;
pub use directory::DirectoryEntry;
pub use failure::FileError;
pub use format::FORMS;
pub use mending::Mending;
pub use namespace::RenameMode;
pub use open::{OpenReport, format_node, format_node_in};
pub use raising::PolicyReport;
pub use read::Seek;
pub use reclaim::{Reclaim, ReclaimProgress};
pub use snapshot::Snapshot;
pub use status::{Description, Space, Status, metrics};
/// The options of the store below.
pub use store::Options as StoreOptions;
pub use store::{
    COPIES_MAX, CUT_BYTES_MAX, CheckReport, Class, ClassStatus, Compression, Depth, DiskSpeed, DiskStatus, Domain,
    DrainPlan, Erasure, Gone, Health, OrderedReport, Problem, RUN_BYTES, ReclaimReport, RecoveryReport, Remedy,
    Resilience, ScrubStatus, Share, StoreError, StoreStatus, Weights, are_free,
};
pub use system::{FileSystem, Options, SNAPSHOTS};
pub use transfer::{Received, Receiving, Sending, Sent, TransferError};
pub use upkeep::{BatchOptimizeReport, LayoutStatus};
pub use write::{Allocate, WriteHow, Written};
