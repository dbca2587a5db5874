//! The front: what the kernel and the command line ask becomes calls of the `file` crate.
//!
//! ```text
//! kernel    one request of the kernel, answered            (fuse → file)
//! control   one request of the command line, answered      (control::wire → file)
//! ```
//!
//! Nothing is decided here that another front end would have to decide again: permissions are the kernel's, everything else the
//! file layer's.

mod errands;
mod failures;
mod nodes;
mod translate;

mod control;
mod kernel;

#[cfg(test)]
pub(crate) use control::descriptions;
pub(crate) use control::{Control, Mounted, Stop};
pub(crate) use kernel::Kernel;
