//! The `hydrafs` binary: daemon, FUSE front end, control socket, command line, settings.
//!
//! ```text
//! command/<verb>   one file per verb of the command line
//!    │ starts, or asks over the control socket
//! start            the daemon: opens a node, mounts it, answers, ends cleanly; or one command's work without a daemon
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

pub mod control;
pub mod daemon;

mod opening;

mod front;

mod start;

pub mod command;
