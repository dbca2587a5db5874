//! Batches over the control socket: many files by one request, with what is in them in shared memory.
//!
//! ```text
//! client                                           daemon
//!   a sealed memfd, in windows
//!   {"do":"batch-write", ...} and the memfd   →
//!                                             ←   {"ready":{"window_bytes":N}}
//!   fills window 0   {"filled":{"window":0,...}} →  reads it, writes a unit
//!   fills window 1 meanwhile                  ←   {"emptied":{"window":0,"failed":[[3,"file exists"]],...}}
//!   {"end":{}}                                →
//!                                             ←   {"done":{...}}
//! ```
//!
//! Reading is the same the other way: all windows are the daemon's at first, it fills them, and the client gives each back
//! (`{"given":{"window":0}}`). What lies in a window: `wire`. Content never goes through the socket.
//!
//! I-130 The daemon reads and writes the memory by pread and pwrite, and maps none of it: a client who changes it meanwhile can
//!       falsify what it sent, and nothing else. It is sealed against growing and shrinking.
//! I-131 What the daemon has in memory for a client is bounded by what it said it takes at a time, whatever the client says.

pub mod wire;

pub mod memory;

pub mod client;
