//! The program as a user meets it: real processes, real folders, real mounts.
//!
//! - `cli`: bad input. What each message says, the exit code, and that nothing was changed.
//! - `copy`: `hydrafs cp` from folder to folder.
//! - `mount`: a mount over each transport, all operations, persistence, crashes.
//!
//! Mounts need root (or fusermount3) and /dev/fuse: without them those tests say so and pass.
#![expect(clippy::disallowed_methods, reason = "the outside is what is tested")]

mod cli;
mod copy;
mod mount;
mod support;
