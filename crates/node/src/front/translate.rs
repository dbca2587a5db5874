//! What files are, in the kernel's words: attributes, times, changes, errors. Pure.

use std::time::Duration;

use base::time::Timestamp;
use file::{Allocate, AttributeChange, Attributes, FileError, Kind, Node, RenameMode, TimeChange};
use fuse::{Errno, SetAttr, SetTime, StatX, Time};

use super::nodes::inode_number;

/// What programs are told to read and write at a time: buffers of C's and Python's streams have this size, and each one that is full is a
/// request. Larger ones would make who seeks and reads a little read too much.
const BLOCK_BYTES: u32 = 32 << 10;

/// The errno of each failure. The one place that knows them.
pub(crate) fn errno(error: &FileError) -> Errno {
    match error {
        FileError::NoEntry => Errno::ENOENT,
        FileError::Exists => Errno::EEXIST,
        FileError::NotDirectory => Errno::ENOTDIR,
        FileError::IsDirectory => Errno::EISDIR,
        FileError::NotEmpty => Errno::ENOTEMPTY,
        FileError::NameTooLong => Errno::ENAMETOOLONG,
        FileError::Invalid(_) => Errno::EINVAL,
        FileError::NotPermitted(_) => Errno::EPERM,
        FileError::NoAttribute => Errno::NO_XATTR,
        // setxattr(2): "insufficient space remaining to store the extended attribute".
        FileError::AttributeTooLarge | FileError::NoSpace => Errno::ENOSPC,
        FileError::FileTooLarge => Errno::EFBIG,
        FileError::NoSuchOffset => Errno::ENXIO,
        FileError::TooManyLinks => Errno::EMLINK,
        FileError::ReadOnly => Errno::EROFS,
        FileError::NotSupported(_) => Errno::EOPNOTSUPP,
        FileError::CrossView => Errno::EXDEV,
        FileError::Stale => Errno::ESTALE,
        FileError::Busy(_) => Errno::EBUSY,
        FileError::Store(_) => Errno::EIO,
    }
}

pub(crate) fn attributes(node: Node, from: &Attributes) -> fuse::Attributes {
    fuse::Attributes {
        node: inode_number(node),
        size: from.size,
        blocks: from.allocated.div_ceil(512),
        atime: time(from.accessed),
        mtime: time(from.modified),
        ctime: time(from.changed),
        mode: from.kind.mode_bits() | from.mode,
        links: from.links,
        uid: from.uid,
        gid: from.gid,
        device: from.device,
        block_bytes: BLOCK_BYTES,
        flags: 0,
    }
}

/// The answer to STATX: all that stat knows, and the birth time.
pub(crate) fn statx(node: Node, from: &Attributes) -> StatX {
    let mask = rustix::fs::StatxFlags::BASIC_STATS | rustix::fs::StatxFlags::BTIME;
    StatX { attributes: attributes(node, from), btime: time(from.born), mask: mask.bits(), ..StatX::default() }
}

pub(crate) fn entry(node: Node, number: u64, from: &Attributes, valid: Duration) -> fuse::Entry {
    fuse::Entry {
        node: number,
        // Ids are never used again.
        generation: 0,
        attributes: attributes(node, from),
        entry_valid: valid,
        attribute_valid: valid,
    }
}

/// An answer that there is no such name.
pub(crate) fn no_entry(valid: Duration) -> fuse::Entry {
    fuse::Entry { entry_valid: valid, ..fuse::Entry::default() }
}

pub(crate) fn change(from: &SetAttr) -> AttributeChange {
    let time = |change: SetTime| match change {
        SetTime::Now => TimeChange::Now,
        SetTime::At(time) => TimeChange::At(Timestamp::new(time.seconds, time.nanoseconds)),
    };
    AttributeChange {
        mode: from.mode.map(|mode| mode & file::MODE_MASK),
        uid: from.uid,
        gid: from.gid,
        size: from.size,
        accessed: from.atime.map(time),
        modified: from.mtime.map(time),
        clear_set_id: from.kill_suidgid,
    }
}

/// The kind in the upper bits of a mode; a mode without one is a regular file, as for mknod(2).
pub(crate) fn kind(mode: u32) -> Result<Kind, Errno> {
    match mode >> 12 & 0o17 {
        0 => Ok(Kind::Regular),
        bits => u8::try_from(bits).ok().and_then(Kind::from_number).ok_or(Errno::EINVAL),
    }
}

pub(crate) fn rename_mode(flags: u32) -> Result<RenameMode, Errno> {
    match flags {
        0 => Ok(RenameMode::Replace),
        libc::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        libc::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        _ => Err(Errno::EINVAL),
    }
}

pub(crate) fn allocation(mode: u32) -> Result<Allocate, Errno> {
    use rustix::fs::FallocateFlags as Flags;
    let flags = Flags::from_bits_retain(mode);
    let keep_size = flags.contains(Flags::KEEP_SIZE);
    match flags.difference(Flags::KEEP_SIZE) {
        rest if rest.is_empty() => Ok(Allocate::Reserve { keep_size }),
        Flags::PUNCH_HOLE if keep_size => Ok(Allocate::Punch),
        Flags::ZERO_RANGE => Ok(Allocate::Zero { keep_size }),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

fn time(from: Timestamp) -> Time {
    Time { seconds: from.seconds, nanoseconds: from.nanos }
}

#[cfg(test)]
mod tests {
    use file::{Allocate, Kind, RenameMode};
    use fuse::Errno;

    use super::{allocation, kind, rename_mode};

    #[test]
    fn modes_of_calls_are_understood_or_refused() {
        assert_eq!(allocation(0).ok(), Some(Allocate::Reserve { keep_size: false }));
        assert_eq!(allocation(1).ok(), Some(Allocate::Reserve { keep_size: true }));
        assert_eq!(allocation(3).ok(), Some(Allocate::Punch));
        assert_eq!(allocation(0x10).ok(), Some(Allocate::Zero { keep_size: false }));
        assert_eq!(allocation(0x11).ok(), Some(Allocate::Zero { keep_size: true }));
        for wrong in [2, 8, 0x20, 0x13, 1 << 31] {
            assert_eq!(allocation(wrong).err(), Some(Errno::EOPNOTSUPP), "{wrong:#x}");
        }
        assert_eq!(rename_mode(2).ok(), Some(RenameMode::Exchange));
        assert_eq!(rename_mode(3).err(), Some(Errno::EINVAL));
        assert_eq!((kind(0o644).ok(), kind(0o010_644).ok()), (Some(Kind::Regular), Some(Kind::Fifo)));
        assert_eq!(kind(0o170_000).err(), Some(Errno::EINVAL));
    }
}
