//! Batches: many files in one go (BFO, MSST'19), for who copies, unpacks, or removes trees.
//!
//! - `unit`: what is to be written, and how much goes at a time
//! - `plan`: what a unit comes to in the directories that are there
//! - `put`: its content becomes chunks, as one run
//! - `write`: one frame makes all of it
//! - `nameless`: what no frame holds takes its name when it is whole
//! - `copy`: the same of a tree that is there, whose content is shared
//! - `stat`, `find`, `walk`: attributes of many files, of those at many paths, and of all below a directory
//! - `remove`: a tree is gone at once, and what it had behind
//! - `compare`: in what two trees differ
//! - `order`, `read`: content of many files, in the order in which it lies
//! - `ahead`: the same for who reads the files of a directory one by one
//! - `optimize`: small files are written next to each other
//! - `warm`: trees and content are read into memory
//!
//! Not here: who asks for it (`node`).

mod unit;

mod plan;
mod put;

mod write;

mod nameless;

mod stat;

mod copy;
mod find;
mod remove;
mod walk;

mod compare;

mod order;

mod read;

mod ahead;

mod optimize;
mod warm;

pub use compare::{Aspect, BatchCompare, BatchCompareReport, CompareTell, Compared};
pub use copy::{Anew, BatchCopy, BatchCopyReport};
pub use optimize::BatchOptimize;
pub use read::{BatchFate, BatchRead, BatchReadReport, BatchSink, Taken};
pub use unit::{BatchBudget, BatchContent, BatchEntry, BatchWrite, BatchWriteReport};
pub use walk::{WalkTell, Walked};
pub use warm::{BatchWarm, BatchWarmReport};
pub use write::BatchUnit;
