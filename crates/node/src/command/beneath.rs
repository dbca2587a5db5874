//! Where the path of an entry leads, for who makes it by system calls: symbolic links on the way are not followed, as in a batch. An archive
//! that brings one could otherwise write anywhere. Nor does a path lead into what is mounted on the way, where a batch does not go either.
//!
//! Not here: what is made there (`whole`), and what batches follow (`file`).

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// The place of an entry.
pub(super) struct Beneath {
    directory: OwnedFd,
    name: PathBuf,
}

/// The place of `path`, which begins at the directory `top` and has no `..`. The directory that it lies in must be there.
pub(super) fn beneath(top: &Path, path: &[u8]) -> io::Result<Beneath> {
    let (above, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&b"."[..], path),
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = rustix::fs::openat(CWD, top, flags, Mode::empty())?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match rustix::fs::openat2(top.as_fd(), above, flags, Mode::empty(), resolve) {
        Ok(directory) => Ok(Beneath { directory, name: PathBuf::from(OsStr::from_bytes(name)) }),
        Err(Errno::LOOP) => Err(io::Error::other("a symbolic link is where a directory is meant")),
        Err(error) => Err(error.into()),
    }
}

impl Beneath {
    /// A path to it that lasts as long as this.
    pub(super) fn path(&self) -> PathBuf {
        self.directory().join(&self.name)
    }

    /// The same, of its directory.
    pub(super) fn directory(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.directory.as_raw_fd()))
    }
}
