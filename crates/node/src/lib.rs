//! The `hydrafs` binary: daemon, FUSE front end, control socket, command line, settings.
//!
//! ```text
//! command/<verb>   one file per verb of the command line
//!    │ starts, or asks over the control socket
//! life             the daemon: opens a node, mounts it, answers, ends cleanly, or goes on in a new process (handover)
//! start            what both need: one command's work without a daemon, mounts made and taken away
//!    │
//! front/           the kernel's requests (fuse) and the command line's (control) become calls of the `file` crate
//! ```
//!
//! Not here: what a file is (`file`), where bytes lie (`store`), the kernel's protocol (`fuse`).

pub mod failure;

mod exposition;
mod scrape;

pub mod config;
pub mod moment;
pub mod mounts;
pub mod node_folder;

pub mod daemon;

pub mod control;

mod handover;

mod opening;

mod front;

mod start;

mod life;

pub mod command;

#[cfg(test)]
mod fuzz;
