//! A unit: entries that are written together, all or none after a crash.

use base::id::FileId;
use base::limits::{BATCH_BYTES_MAX, FILE_BYTES_MAX, FRAME_BYTES_MAX, LINK_TARGET_BYTES_MAX};
use base::time::Timestamp;
use bytes::Bytes;

use crate::attributes::Kind;
use crate::failure::FileError;
use crate::format::Content;

/// Records of one entry at most, without what is counted apart: that it is made, has content, has a name, that its directory changed, and
/// that one of before has a name less and is no more.
const RECORDS_BYTES: u64 = 168 + 104 + 88 + 172 + 232;
/// An extent in a record.
const EXTENT_BYTES: u64 = 64;
/// An extended attribute, beyond its name and value.
const XATTR_BYTES: u64 = 80;
/// What the frame has beside the records of entries.
const FRAME_MARGIN_BYTES: u64 = 4 << 10;

/// One file, directory, or name to be written.
#[derive(Clone, Debug)]
pub struct BatchEntry {
    /// Where, seen from the directory that the unit is written to: names with a slash between them. Empty: that directory itself.
    pub path: Vec<u8>,
    /// What it is. Of another name of a file it does not count.
    pub kind: Kind,
    /// Permission, set-id and sticky bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of content; counts where [`BatchWrite::preserve`] is said.
    pub modified: Timestamp,
    /// Last read; counts where [`BatchWrite::preserve`] is said.
    pub accessed: Timestamp,
    /// Device number of a device file.
    pub device: u32,
    /// Extended attributes.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// What is in it.
    pub content: BatchContent,
}

/// What is in a [`BatchEntry`].
#[derive(Clone, Debug)]
pub enum BatchContent {
    /// Runs of bytes in order, with the offset of each, and the size. What lies between is a hole.
    Data(Vec<(u64, Bytes)>, u64),
    /// The target of a symbolic link.
    Target(Bytes),
    /// Nothing: an empty file, a directory, a device.
    None,
    /// The path of another name of the file: in the same unit, or there before.
    Link(Vec<u8>),
}

/// How a unit is written.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchWrite {
    /// A file that is there is replaced, as renaming over it would; else it is that entry's failure. Without `preserve` a regular file in the place
    /// of another has its mode, owner and access list, as if that had been written to.
    pub replace: bool,
    /// What fails of one entry fails the unit, and nothing is done; else the others are written.
    pub atomic: bool,
    /// Modes, owners and times are as the entries say, also of directories that are there. Else they are as if each were made by a call of
    /// its own: the directory's group and default access list are inherited, `umask` is taken away, and times are now.
    pub preserve: bool,
    /// With `preserve`: so are access lists, also where an entry has none. Else the list of a directory that is there follows the mode.
    pub lists: bool,
    /// Bits to take away where the directory has no default access list.
    pub umask: u32,
}

/// What came of a unit.
#[derive(Clone, Debug)]
pub struct BatchWriteReport {
    /// What each entry is now, in the order of the unit, or why it is not.
    pub fates: Vec<Result<FileId, FileError>>,
    /// The directory of each name, where it is. Nothing of an entry that failed, and of the unit's own directory.
    pub homes: Vec<FileId>,
    /// Whether what did not fail was written. `false`: something failed of a unit that is written whole or not at all.
    pub is_done: bool,
    /// Files and directories that were made.
    pub made: u64,
}

impl BatchEntry {
    /// Bytes of content.
    #[must_use]
    pub fn content_bytes(&self) -> u64 {
        match &self.content {
            BatchContent::Data(runs, _) => runs.iter().map(|(_, run)| run.len() as u64).sum(),
            BatchContent::Target(_) | BatchContent::None | BatchContent::Link(_) => 0,
        }
    }

    /// What it takes of a frame, at most.
    fn frame_bytes(&self) -> u64 {
        let (runs, target) = match &self.content {
            BatchContent::Data(runs, _) => (runs.len() as u64, 0),
            BatchContent::Target(target) => (0, target.len() as u64),
            BatchContent::None | BatchContent::Link(_) => (0, 0),
        };
        let extents = runs + self.content_bytes() / store::CUT_BYTES_MIN as u64;
        let xattrs: u64 = self.xattrs.iter().map(|(name, value)| XATTR_BYTES + (name.len() + value.len()) as u64).sum();
        // The name is the end of the path.
        RECORDS_BYTES + self.path.len() as u64 + target + xattrs + extents * EXTENT_BYTES
    }

    /// Whether its content is of its kind and possible.
    pub(super) fn check(&self) -> Result<(), FileError> {
        match (self.kind, &self.content) {
            (_, BatchContent::Link(_)) | (Kind::Regular, BatchContent::None) => Ok(()),
            (Kind::Regular, BatchContent::Data(runs, size)) => check_runs(runs, *size),
            (Kind::Symlink, BatchContent::Target(target)) if target.len() > LINK_TARGET_BYTES_MAX => {
                Err(FileError::NameTooLong)
            }
            (Kind::Symlink, BatchContent::Target(_)) => Ok(()),
            (Kind::Symlink, _) => Err(FileError::Invalid("a symbolic link without a target")),
            (_, BatchContent::None) => Ok(()),
            _ => Err(FileError::Invalid("content that is not of this kind of file")),
        }
    }
}

fn check_runs(runs: &[(u64, Bytes)], size: u64) -> Result<(), FileError> {
    if size > FILE_BYTES_MAX {
        return Err(FileError::FileTooLarge);
    }
    let mut at = 0;
    for (offset, run) in runs {
        let end = offset.checked_add(run.len() as u64).filter(|end| *end <= size && *offset >= at);
        at = end.ok_or(FileError::Invalid("runs of content out of order, one over another, or beyond the size"))?;
    }
    Ok(())
}

/// How much more fits a unit.
#[derive(Clone, Copy, Debug)]
pub struct BatchBudget {
    frame_bytes: u64,
    content_bytes: u64,
}

impl Default for BatchBudget {
    fn default() -> BatchBudget {
        BatchBudget { frame_bytes: FRAME_BYTES_MAX as u64 - FRAME_MARGIN_BYTES, content_bytes: BATCH_BYTES_MAX }
    }
}

impl BatchBudget {
    /// Whether an entry still fits; then it is counted. One that does not fit an empty unit is too large for any: such a file is made
    /// empty and written to.
    pub fn take(&mut self, entry: &BatchEntry) -> bool {
        let frame_bytes = self.frame_bytes.checked_sub(entry.frame_bytes());
        let content_bytes = self.content_bytes.checked_sub(entry.content_bytes());
        let (Some(frame_bytes), Some(content_bytes)) = (frame_bytes, content_bytes) else { return false };
        *self = BatchBudget { frame_bytes, content_bytes };
        true
    }

    /// The same for an entry whose content is there.
    pub(super) fn take_stored(&mut self, entry: &BatchEntry, content: &[(u64, Content)]) -> bool {
        let bytes = |content: &Content| match content {
            Content::Extent(..) => EXTENT_BYTES,
            Content::Inline(bytes) => EXTENT_BYTES + bytes.len() as u64,
        };
        let more: u64 = content.iter().map(|(_, content)| bytes(content)).sum();
        match self.frame_bytes.checked_sub(entry.frame_bytes() + more) {
            Some(frame_bytes) => {
                self.frame_bytes = frame_bytes;
                true
            }
            None => false,
        }
    }

    /// What was counted of a frame.
    pub(super) fn taken_of_frame(&self) -> u64 {
        BatchBudget::default().frame_bytes - self.frame_bytes
    }
}
