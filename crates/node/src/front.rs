//! The front: what the kernel and the command line ask becomes calls of the `file` crate.
//!
//! ```text
//! kernel    one request of the kernel, answered            (fuse → file)
//! control   one request of the command line, answered      (control::wire → file)
//! desk      who answers the command line, while file systems come and go
//! ```
//!
//! Nothing is decided here that another front end would have to decide again: permissions are the kernel's, everything else the
//! file layer's.

mod around;
mod errands;
mod failures;
mod listers;
mod nodes;
mod translate;
mod unused;

mod control;
mod desk;
mod kernel;

#[cfg(test)]
pub(crate) use control::descriptions;
pub(crate) use control::{Control, Mounted};
pub(crate) use desk::{Answer, Asked, Desk, Wish};
pub(crate) use kernel::Kernel;
pub(crate) use nodes::Nodes;
