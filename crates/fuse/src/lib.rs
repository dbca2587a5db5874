//! The kernel's FUSE protocol, spoken by ourselves over io_uring and over /dev/fuse.
//!
//! A file system implements `Service`: one call per request, answered now or later, from any thread. The rest of a
//! daemon's life is four steps:
//!
//! ```text
//! mount(path, options) -> Mount -> Session::start(mount, service, ...) -> Session::run() ... Unmounter::unmount()
//!                                  INIT is done, the mount is usable           returns when the mount has gone
//! ```
//!
//! Modules, each knowing only those before it:
//!
//! - `wire`, `flags`, `errno`: the kernel's structures and numbers;
//! - `request`, `answer`: the same as Rust types; `buffer`, `exchange`, `directory`: one request and its answer;
//! - `settings`, `service`: what is agreed with the kernel and with the file system;
//! - `counters`, `interrupt`, `park`, `late`, `crew`: what is counted, cancelled, stopped, answered later, and shared by all;
//! - `mount`, `notify`, `pages`: the mount table, messages to the kernel, and what lies in its pages;
//! - `device`, `ring`: the two transports; `session`: brings them together; `parked`: a session on its way to another process.
//!
//! Truths kept by all of it:
//!
//! - Every request is answered exactly once, whatever the file system does: late, never, or with a panic.
//! - No request waits behind another that is answered late.
//! - Nothing the kernel sends can make us panic or read outside the request.
//!
//! Not here: what a file is (`file`), when a mount is made (`node`), permissions (the kernel checks them).

#![allow(clippy::disallowed_methods, reason = "the transport is the outside: its own threads, deadlines and sysfs")]

mod buffer;
mod errno;
pub mod flags;
mod lock;
mod mount;
mod wire;

mod counters;
mod request;

mod answer;
mod settings;

mod directory;
mod exchange;

mod service;

mod interrupt;
mod park;

mod late;

mod crew;
mod notify;
mod pages;

mod device;
mod parked;
mod ring;

mod session;

#[cfg(test)]
mod fuzz;

pub use answer::{Attributes, Entry, StatFs, StatX};
pub use counters::Meter;
pub use directory::DirectoryWriter;
pub use errno::Errno;
pub use exchange::Exchange;
pub use mount::{Mount, MountOptions, Unmounter, mount, page_bytes};
pub use notify::{Notice, Notifier};
pub use pages::bring_pages;
pub use parked::Parked;
pub use request::{Header, Lock, LockRequest, Request, SetAttr, SetTime, Time};
pub use ring::{RingSupport, enable_ring, ring_support};
pub use service::Service;
pub use session::{Parker, Session};
pub use settings::{Features, Negotiated, Settings, Transport};
