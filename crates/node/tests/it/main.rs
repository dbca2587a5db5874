//! The program as a user meets it: real processes, real folders, real mounts.
//!
//! - `batch`: many files by one request, into mounts and out of them.
//! - `cached`: looks that cost no request, and changes made elsewhere that are seen all the same.
//! - `cli`: bad input. What each message says, the exit code, and that nothing was changed.
//! - `clones`: a tree twice, under programs and over restarts and crashes.
//! - `copy`: `hydrafs cp` from folder to folder.
//! - `diff`: in what two trees differ, as `hydrafs diff` says it.
//! - `disks`: disks come, go and fail under a mount.
//! - `full`: a disk without room under programs.
//! - `handover`: restarts in the middle of which somebody dies, or is told to end.
//! - `hung`: a disk that does not answer, and who need not wait for it.
//! - `layout`: small files that come together, and what is read beforehand.
//! - `likeness`: what copies take over, hand on and grant, and where they do not go.
//! - `limits`: names, attributes and open files at and over their limits.
//! - `lists`: lists of system calls beside a local folder.
//! - `maintain`: room that comes back, and what is stored read again, when somebody says so.
//! - `metrics`: what is measured of a mount, over HTTP and by `stats` and `profile`; hostile clients.
//! - `mount`: a mount over each transport, all operations, persistence, crashes.
//! - `path_lists`: what a list of paths names, copied, archived and removed.
//! - `restart`: daemons that go on in new processes, under load; new processes that cannot.
//! - `transfer`: snapshots that go from node to node.
//! - `trees`: commands that go through a whole tree of a mount.
//! - `unit`: the systemd unit, and a daemon under what it forbids.
//! - `without`: a disk that is missing for a while, or for good.
//!
//! Mounts need root (or fusermount3) and /dev/fuse: without them those tests say so and pass.
#![expect(clippy::disallowed_methods, reason = "the outside is what is tested")]

mod batch;
mod cached;
mod cli;
mod clones;
mod copy;
mod diff;
mod disks;
mod full;
mod handover;
mod hung;
mod layout;
mod likeness;
mod limits;
mod lists;
mod maintain;
mod metrics;
mod mount;
mod path_lists;
mod restart;
mod support;
mod transfer;
mod trees;
mod unit;
mod without;
