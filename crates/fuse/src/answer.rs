//! Answers: what a file system says about nodes, and how it is written for the kernel.
//!
//! Times and sizes pass unchanged; a validity longer than the kernel can count is the longest it can.

use crate::request::{Lock, Time};
use crate::wire;
use std::time::Duration;

/// What stat(2) tells about a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The node, as inode number.
    pub node: u64,
    /// Length in bytes.
    pub size: u64,
    /// Blocks of 512 bytes in use.
    pub blocks: u64,
    /// Last read.
    pub atime: Time,
    /// Last change of the data.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
    /// File type and permissions.
    pub mode: u32,
    /// Names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, as the kernel encodes it.
    pub device: u32,
    /// Preferred size of I/O.
    pub block_bytes: u32,
    /// `flags::attribute`.
    pub flags: u32,
}

/// A node found or made under a name. Each answer with one adds 1 to the node's count, which FORGET takes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The node; 0 says that there is no such name, and may be cached for `entry_valid`.
    pub node: u64,
    /// Tells nodes with a reused number apart.
    pub generation: u64,
    /// The node's attributes.
    pub attributes: Attributes,
    /// How long the kernel may believe the name.
    pub entry_valid: Duration,
    /// How long the kernel may believe the attributes.
    pub attribute_valid: Duration,
}

/// What statfs(2) tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "statfs(2)")]
pub struct StatFs {
    pub blocks: u64,
    pub blocks_free: u64,
    pub blocks_available: u64,
    pub files: u64,
    pub files_free: u64,
    pub block_bytes: u32,
    pub fragment_bytes: u32,
    pub name_bytes_max: u32,
}

/// What statx(2) tells beyond stat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatX {
    /// The part stat knows too.
    pub attributes: Attributes,
    /// When the node was made.
    pub btime: Time,
    /// `STATX_` bits of what is filled in.
    pub mask: u32,
    /// `STATX_ATTR_` bits.
    pub attribute_bits: u64,
    /// Which `STATX_ATTR_` bits mean something here.
    pub attribute_bits_known: u64,
}

impl From<&Attributes> for wire::Attr {
    fn from(from: &Attributes) -> wire::Attr {
        wire::Attr {
            node: from.node,
            size: from.size,
            blocks: from.blocks,
            atime: from.atime.seconds.cast_unsigned(),
            mtime: from.mtime.seconds.cast_unsigned(),
            ctime: from.ctime.seconds.cast_unsigned(),
            atime_ns: from.atime.nanoseconds,
            mtime_ns: from.mtime.nanoseconds,
            ctime_ns: from.ctime.nanoseconds,
            mode: from.mode,
            links: from.links,
            uid: from.uid,
            gid: from.gid,
            device: from.device,
            block_bytes: from.block_bytes,
            flags: from.flags,
        }
    }
}

impl From<&Entry> for wire::EntryOut {
    fn from(from: &Entry) -> wire::EntryOut {
        wire::EntryOut {
            node: from.node,
            generation: from.generation,
            entry_valid: from.entry_valid.as_secs(),
            attr_valid: from.attribute_valid.as_secs(),
            entry_valid_ns: from.entry_valid.subsec_nanos(),
            attr_valid_ns: from.attribute_valid.subsec_nanos(),
            attr: (&from.attributes).into(),
        }
    }
}

impl From<&StatFs> for wire::StatFsOut {
    fn from(from: &StatFs) -> wire::StatFsOut {
        wire::StatFsOut {
            blocks: from.blocks,
            blocks_free: from.blocks_free,
            blocks_available: from.blocks_available,
            files: from.files,
            files_free: from.files_free,
            block_bytes: from.block_bytes,
            name_bytes_max: from.name_bytes_max,
            fragment_bytes: from.fragment_bytes,
            ..Default::default()
        }
    }
}

impl From<&Lock> for wire::FileLock {
    fn from(from: &Lock) -> wire::FileLock {
        wire::FileLock { start: from.start, end: from.end, kind: from.kind, pid: from.pid }
    }
}

impl From<&StatX> for wire::StatX {
    fn from(from: &StatX) -> wire::StatX {
        let moment = |time: Time| wire::StatXTime { seconds: time.seconds, nanoseconds: time.nanoseconds, reserved: 0 };
        let node = &from.attributes;
        // The kernel's own encoding of device numbers in 32 bits: 12 bits major in the middle, minor around them.
        let (major, minor) = ((node.device >> 8) & 0xfff, (node.device & 0xff) | ((node.device >> 12) & 0xf_ff00));
        wire::StatX {
            mask: from.mask,
            block_bytes: node.block_bytes,
            attributes: from.attribute_bits,
            links: node.links,
            uid: node.uid,
            gid: node.gid,
            // File type and permissions are the low 16 bits.
            mode: (node.mode & 0xffff) as u16,
            node: node.node,
            size: node.size,
            blocks: node.blocks,
            attributes_mask: from.attribute_bits_known,
            atime: moment(node.atime),
            btime: moment(from.btime),
            ctime: moment(node.ctime),
            mtime: moment(node.mtime),
            device_major: major,
            device_minor: minor,
            ..Default::default()
        }
    }
}
