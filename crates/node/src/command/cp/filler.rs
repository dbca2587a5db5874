//! Content of large files that the daemon of a mount reads itself, by our descriptor of the source: it spares two copies and the mount's requests.
//!
//! Not here: what is read so, and why not everything (`front::control::fill`).

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::control::client::Daemon;
use crate::control::wire::Request;

/// Most that is asked for at a time, so that progress is seen, and an end by who waits heard.
const ASKED_BYTES: usize = 32 << 20;

/// The daemon of the mount that is copied into.
pub(super) struct Filler {
    /// The folder of its node.
    node: PathBuf,
    /// The device number of its files.
    device: (u32, u32),
}

impl Filler {
    pub(super) fn new(node: PathBuf, device: (u32, u32)) -> Filler {
        Filler { node, device }
    }

    /// Has as much of a source go into a file of the mount, at the same place; gives how much there was. `None`: system calls are to do it, and tell
    /// better what is wrong.
    pub(super) fn fill(&self, from: &File, to: &File, at: u64, wanted: usize) -> Option<usize> {
        let inode = to.metadata().ok()?.ino();
        let descriptor = from.as_fd().try_clone_to_owned().ok()?;
        let request = Request::Fill { inode, offset: at, length: wanted.min(ASKED_BYTES) as u64 };
        let answer = Daemon::of(&self.node, self.device).ok()?.ask_with(&request, Some(descriptor), |_| {}).ok()?;
        usize::try_from(answer["bytes"].as_u64()?).ok()
    }
}
