//! Content of large files that the daemon reads itself, by a descriptor of somebody who opened them: from the file system where they lie it comes
//! straight to where it is cut, past the asker's memory and the mount.
//!
//! I-137 A file is read in this way only where reading it ends: on a disk of this machine. One on a network, in a mount (ours, too, which would
//!       wait for itself), or of the kernel's own is refused; who asked reads it himself.
//!
//! Not here: which files, and what is copied besides content (`command::cp`).

use std::os::fd::OwnedFd;

use base::id::FileId;
use file::View;
use platform::real::block_on;
use rustix::fs::{FileType, fstat, fstatfs};
use rustix::io::{Errno, pread};
use serde_json::{Value, json};

use super::Control;
use crate::failure::Failure;

const WHAT: &str = "cannot read the content of a file";

/// File systems of disks of this machine, and of its memory, by their magic numbers (statfs(2)).
const LOCAL: [u64; 8] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0xf2f5_2010, // F2FS
    0x2fc1_2fc1, // ZFS
    0xca45_1a4e, // bcachefs
    0x0102_1994, // tmpfs
    0x7371_7368, // squashfs
];

impl Control {
    /// I-137. Gives how much there was.
    pub(super) fn fill(
        &self,
        inode: u64,
        (offset, length): (u64, u64),
        source: Option<OwnedFd>,
    ) -> Result<Value, Failure> {
        let refuse = |why: &str| Failure::new(WHAT, why).mend("write it through the mount; nothing was changed");
        let source = source.ok_or_else(|| refuse("no descriptor came with the request"))?;
        let target = self.find(inode).filter(|node| node.view == View::LIVE);
        let target = target.ok_or_else(|| refuse("the daemon knows no file of the present with this inode number"))?;
        let cannot = |error: Errno| Failure::new(WHAT, error);
        if FileType::from_raw_mode(fstat(&source).map_err(cannot)?.st_mode) != FileType::RegularFile {
            return Err(refuse("what came with the request is no regular file"));
        }
        if !is_local(fstatfs(&source).map_err(cannot)?.f_type) {
            return Err(refuse("it lies on no disk of this machine, as far as can be told"));
        }
        let filled = self.fill_from(target.file, (offset, length), &source);
        // Also where it ended early: what was written by then is there.
        self.file_changed(target.file);
        Ok(json!({ "bytes": filled? }))
    }

    /// Gives how much there was.
    fn fill_from(&self, target: FileId, (offset, length): (u64, u64), source: &OwnedFd) -> Result<u64, Failure> {
        let mut done = 0;
        while done < length {
            let wanted = self.system.write_by_bytes(length - done);
            let mut failed = None;
            let read = |buffer: &mut [u8]| {
                let (count, error) = read_to(source, offset + done, buffer);
                failed = error;
                count
            };
            let written = block_on(self.system.write_by(target, offset + done, wanted, read));
            let count = written.map_err(self.explain(WHAT))?;
            done += count as u64;
            if let Some(error) = failed {
                return Err(Failure::new(WHAT, error));
            }
            if count < wanted || self.system.is_ending() {
                break;
            }
        }
        Ok(done)
    }
}

/// Whether reading a file there ends.
fn is_local(magic: rustix::fs::FsWord) -> bool {
    u64::try_from(magic).is_ok_and(|magic| LOCAL.contains(&magic))
}

/// Fills a buffer, or reads what there is up to the end of the file, or up to an error: how much that was.
fn read_to(source: &OwnedFd, offset: u64, buffer: &mut [u8]) -> (usize, Option<Errno>) {
    let mut count = 0;
    while count < buffer.len() {
        match pread(source, &mut buffer[count..], offset + count as u64) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(Errno::INTR) => {}
            Err(error) => return (count, Some(error)),
        }
    }
    (count, None)
}
