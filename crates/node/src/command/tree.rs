//! A tree of a mount as its daemon reads it, for the commands that go through a whole one.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use file::Kind;

use super::info::Held;
use super::sync::mount_of;
use crate::control::batch::client::{BatchReader, Reading};
use crate::control::batch::wire::Records;
use crate::control::client::Daemon;
use crate::failure::Failure;

/// What of a tree is wanted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    pub(super) content: bool,
    pub(super) xattrs: bool,
}

/// A tree that is being read.
pub(super) struct Tree {
    path: PathBuf,
    _held: Held,
    reader: BatchReader,
}

impl Tree {
    /// Begins to read what is at a path of a mount.
    pub(super) fn open(path: &Path, what: &'static str, wanted: Wanted) -> Result<Tree, Failure> {
        let mount = mount_of(path)?;
        let held = Held::open(path, what)?;
        write_pages_back(&mount.point);
        let Wanted { content, xattrs } = wanted;
        let reading = Reading { root: held.inode, content, xattrs };
        let reader = BatchReader::begin(Daemon::find(&mount.source)?, &reading)?;
        Ok(Tree { path: path.to_owned(), _held: held, reader })
    }

    /// What comes next; `None`: that was all.
    pub(super) fn next_window(&mut self) -> Result<Option<Records>, Failure> {
        self.reader.next_window()
    }

    /// The path of an entry, as one that began at the tree's would be written.
    pub(super) fn path_of(&self, path: &[u8]) -> PathBuf {
        below(&self.path, path)
    }
}

/// The failure of a record that makes no sense.
pub(super) fn garbled(error: base::codec::DecodeError) -> Failure {
    Failure::new("cannot understand the daemon", error).mend("use a command line of the daemon's version")
}

/// A path of a batch, from here on.
pub(super) fn below(top: &Path, path: &[u8]) -> PathBuf {
    if path.is_empty() { top.to_owned() } else { top.join(OsStr::from_bytes(path)) }
}

/// A kind in one word.
pub(super) fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Fifo => "fifo",
        Kind::CharacterDevice => "character device",
        Kind::Directory => "directory",
        Kind::BlockDevice => "block device",
        Kind::Regular => "file",
        Kind::Symlink => "symbolic link",
        Kind::Socket => "socket",
    }
}

/// What was written through mappings lies in the kernel's pages until it is asked for.
#[expect(clippy::disallowed_methods, reason = "a mount is the outside")]
pub(super) fn write_pages_back(point: &Path) {
    // Where it cannot be, the daemon tells what it has.
    if let Ok(point) = std::fs::File::open(point) {
        let _ = rustix::fs::syncfs(point);
    }
}
