//! The store: chunks of bytes named by what they hold, a journal of frames, and a root that is switched atomically.
//!
//! What a caller may rely on, and how it stays true over any crash:
//!
//! - [`Store::put`] accepts a chunk; [`Store::settle`] makes all accepted chunks durable. Equal content is stored once.
//! - [`Store::log`] accepts a frame; [`Store::sync_log`] makes it durable, together with all that wait at the same moment.
//! - [`Store::commit`] settles, then writes a superblock with the caller's roots, then frees the journal up to `covered`.
//! - [`Store::open`] gives the newest roots and all durable frames after `covered`, in order.
//! - What [`Store::get`] returns was checked against its address. Damaged bytes are an error, never a result.
//!
//! The caller in turn settles chunks before it logs a frame that names them. Layers, from the ground up: `failure`, `level` and `format`;
//! `identity`, `domain`, `speed`, `pool`, `run`, `superblock`; `chunk`, `index`, `pack`; `journal`; `store`, `probe`, `reading`, `ordered`, `warm`, `parcel`, `recover`; and what keeps it well: `check`, `scrub`, `repair`,
//! `copies` and `members`, `mark` and `reclaim`, `rewrite`. Every byte on disk: docs/format.md. Every numbered truth: docs/invariants.md.
//!
//! Not here: what chunks, frames and roots mean; which chunks are still needed; other nodes.
#![forbid(unsafe_code)]

mod counters;
mod disks;
mod failure;
mod level;
mod remedy;

mod format;

mod erasure;

mod identity;

mod domain;
mod speed;

mod pool;
mod run;
mod superblock;

mod ages;
mod chunk;
mod group;
mod index;

mod cache;

mod options;

mod pack;
mod reindex;

mod pace;

mod journal;

mod store;

mod probe;

mod reading;

mod ordered;

mod warm;

mod parcel;

mod recover;

mod check;
mod copies;
mod fragmenting;
mod mark;
mod members;
mod reclaim;
mod repair;
mod rewrite;
mod scrub;
mod status;

pub use cache::Weights;
pub use check::{CheckReport, Depth};
pub use chunk::{CUT_BYTES_AVERAGE, CUT_BYTES_MAX, CUT_BYTES_MIN, Compression, cut_points, first_cut};
pub use copies::CopiesReport;
pub use counters::Counters;
pub use disks::DISKS_MAX;
pub use domain::Domain;
pub use failure::StoreError;
pub use format::{Class, FORMS, ROOTS_BYTES_MAX};
pub use identity::are_free;
pub use level::{COPIES_MAX, Erasure, Resilience};
pub use mark::Marks;
pub use members::{DrainPlan, Gone};
pub use options::{Options, RUN_BYTES};
pub use ordered::{Got, Ordered, OrderedReport, OrderedRoom};
pub use pace::{Pace, Share};
pub use pack::Moment;
pub use parcel::{Packing, Parcel};
pub use platform::disk::Space;
pub use pool::Health;
pub use reclaim::{ReclaimReport, Sweep};
pub use recover::{Recovered, RecoveryReport};
pub use remedy::{Problem, Remedy};
pub use rewrite::Scatter;
pub use scrub::{ScrubPlan, ScrubReport, ScrubStatus};
pub use speed::DiskSpeed;
pub use status::{ClassStatus, CutStatus, DiskStatus, MissingStatus, StoreStatus};
pub use store::{Room, Store};
pub use warm::Warming;

#[cfg(test)]
mod tests;
