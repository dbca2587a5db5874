//! What everybody in HydraFS means by a file id, a chunk address, a checksum, a byte.
//!
//! Pure: no I/O, no clock, no randomness, no `unsafe`. Everything here can be tested with values alone.
//! Not here: layouts of bytes on disk (each crate's `format.rs`), errors of an operation (beside the operation).
#![forbid(unsafe_code)]

pub mod limits;
pub mod units;

pub mod id;
pub mod time;

pub mod hash;

pub mod codec;
pub mod interval;
pub mod metric;
