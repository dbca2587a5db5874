//! The kernel's structures, byte for byte (`include/uapi/linux/fuse.h`, protocol 7.45).
//!
//! Everything here is in the byte order of the machine, because both ends share it. Sizes are asserted at compile
//! time against the kernel's; every structure is made of integers without hidden padding, so that reading one from
//! any bytes is sound and writing one leaks nothing. Constants live in `flags`.
//!
//! Older kernels: we speak to 7.23 and newer (Linux 3.15). Since then only three layouts grew: `fuse_init_in`
//! (16 bytes before 7.36), `fuse_setxattr_in` (8 bytes unless `SETXATTR_EXT` is negotiated) and `fuse_init_out`,
//! which older kernels read as far as they know it.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Declares a structure of the protocol together with the size the kernel gives it.
macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident = $size:literal { $($(#[$note:meta])* $field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub(crate) struct $name { $($(#[$note])* pub(crate) $field: $type),* }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

wire! {
    /// `fuse_in_header`: in front of every request.
    InHeader = 40 {
        bytes: u32, opcode: u32, unique: u64, node: u64, uid: u32, gid: u32, pid: u32,
        /// Length of the extensions at the end of the request, in units of 8 bytes.
        extension_words: u16, padding: u16,
    }
    /// `fuse_out_header`: in front of every answer and notification.
    OutHeader = 16 { bytes: u32, error: i32, unique: u64 }

    /// `fuse_attr`.
    Attr = 88 {
        node: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64,
        atime_ns: u32, mtime_ns: u32, ctime_ns: u32,
        mode: u32, links: u32, uid: u32, gid: u32, device: u32, block_bytes: u32, flags: u32,
    }
    /// `fuse_entry_out`.
    EntryOut = 128 {
        node: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_ns: u32, attr_valid_ns: u32,
        attr: Attr,
    }
    /// `fuse_attr_out`.
    AttrOut = 104 { attr_valid: u64, attr_valid_ns: u32, padding: u32, attr: Attr }
    /// `fuse_open_out`.
    OpenOut = 16 { handle: u64, flags: u32, backing: i32 }
    /// The answer to CREATE and TMPFILE: an entry, then an open file.
    CreateOut = 144 { entry: EntryOut, open: OpenOut }
    /// `fuse_write_out`.
    WriteOut = 8 { size: u32, padding: u32 }
    /// `fuse_statfs_out`.
    StatFsOut = 80 {
        blocks: u64, blocks_free: u64, blocks_available: u64, files: u64, files_free: u64,
        block_bytes: u32, name_bytes_max: u32, fragment_bytes: u32, padding: u32, spare: [u32; 6],
    }
    /// `fuse_getxattr_out`: how long the value is.
    GetXattrOut = 8 { size: u32, padding: u32 }
    /// `fuse_lk_out`, also `fuse_file_lock`.
    FileLock = 24 { start: u64, end: u64, kind: u32, pid: u32 }
    /// `fuse_bmap_out`.
    BMapOut = 8 { block: u64 }
    /// `fuse_ioctl_out`.
    IoctlOut = 16 { result: i32, flags: u32, in_iovecs: u32, out_iovecs: u32 }
    /// `fuse_poll_out`.
    PollOut = 8 { events: u32, padding: u32 }
    /// `fuse_lseek_out`.
    LseekOut = 8 { offset: u64 }
    /// `fuse_copy_file_range_out`, the answer to `COPY_FILE_RANGE_64`.
    CopyOut = 8 { bytes: u64 }
    /// `fuse_sx_time`.
    StatXTime = 16 { seconds: i64, nanoseconds: u32, reserved: i32 }
    /// `fuse_statx`.
    StatX = 256 {
        mask: u32, block_bytes: u32, attributes: u64, links: u32, uid: u32, gid: u32, mode: u16, spare: u16,
        node: u64, size: u64, blocks: u64, attributes_mask: u64,
        atime: StatXTime, btime: StatXTime, ctime: StatXTime, mtime: StatXTime,
        device_major: u32, device_minor: u32, fs_major: u32, fs_minor: u32, spare_words: [u64; 14],
    }
    /// `fuse_statx_out`.
    StatXOut = 288 { attr_valid: u64, attr_valid_ns: u32, flags: u32, spare: [u64; 2], stat: StatX }
    /// `fuse_dirent` without its name.
    Dirent = 24 { node: u64, cookie: u64, name_bytes: u32, kind: u32 }

    /// `fuse_getattr_in`.
    GetAttrIn = 16 { flags: u32, padding: u32, handle: u64 }
    /// `fuse_setattr_in`.
    SetAttrIn = 88 {
        valid: u32, padding: u32, handle: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atime_ns: u32, mtime_ns: u32, ctime_ns: u32, mode: u32, unused: u32, uid: u32, gid: u32, unused_too: u32,
    }
    /// `fuse_mknod_in`.
    MkNodIn = 16 { mode: u32, device: u32, umask: u32, padding: u32 }
    /// `fuse_mkdir_in`.
    MkDirIn = 8 { mode: u32, umask: u32 }
    /// `fuse_rename_in`.
    RenameIn = 8 { parent: u64 }
    /// `fuse_rename2_in`.
    Rename2In = 16 { parent: u64, flags: u32, padding: u32 }
    /// `fuse_link_in`.
    LinkIn = 8 { node: u64 }
    /// `fuse_open_in`.
    OpenIn = 8 { flags: u32, open_flags: u32 }
    /// `fuse_create_in`.
    CreateIn = 16 { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    /// `fuse_read_in`.
    ReadIn = 40 { handle: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    /// `fuse_write_in`.
    WriteIn = 40 { handle: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    /// `fuse_release_in`.
    ReleaseIn = 24 { handle: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    /// `fuse_fsync_in`.
    FSyncIn = 16 { handle: u64, flags: u32, padding: u32 }
    /// `fuse_setxattr_in` as every kernel knows it.
    SetXattrIn = 8 { size: u32, flags: u32 }
    /// What `SETXATTR_EXT` adds to `fuse_setxattr_in`.
    SetXattrExtIn = 8 { setxattr_flags: u32, padding: u32 }
    /// `fuse_getxattr_in`.
    GetXattrIn = 8 { size: u32, padding: u32 }
    /// `fuse_flush_in`.
    FlushIn = 24 { handle: u64, unused: u32, padding: u32, lock_owner: u64 }
    /// `fuse_lk_in`.
    LockIn = 48 { handle: u64, owner: u64, lock: FileLock, lock_flags: u32, padding: u32 }
    /// `fuse_access_in`.
    AccessIn = 8 { mask: u32, padding: u32 }
    /// `fuse_interrupt_in`.
    InterruptIn = 8 { unique: u64 }
    /// `fuse_bmap_in`.
    BMapIn = 16 { block: u64, block_bytes: u32, padding: u32 }
    /// `fuse_ioctl_in`.
    IoctlIn = 32 { handle: u64, flags: u32, command: u32, argument: u64, in_bytes: u32, out_bytes: u32 }
    /// `fuse_poll_in`.
    PollIn = 24 { handle: u64, kernel_handle: u64, flags: u32, events: u32 }
    /// `fuse_fallocate_in`.
    FAllocateIn = 32 { handle: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    /// `fuse_lseek_in`.
    LseekIn = 24 { handle: u64, offset: u64, whence: u32, padding: u32 }
    /// `fuse_copy_file_range_in`.
    CopyIn = 56 {
        handle_in: u64, offset_in: u64, node_out: u64, handle_out: u64, offset_out: u64, bytes: u64, flags: u64,
    }
    /// `fuse_syncfs_in`.
    SyncFsIn = 8 { padding: u64 }
    /// `fuse_statx_in`.
    StatXIn = 24 { flags: u32, reserved: u32, handle: u64, statx_flags: u32, mask: u32 }
    /// `fuse_forget_in`.
    ForgetIn = 8 { count: u64 }
    /// `fuse_batch_forget_in`, followed by `count` times `ForgetOne`.
    BatchForgetIn = 8 { count: u32, padding: u32 }
    /// `fuse_forget_one`.
    ForgetOne = 16 { node: u64, count: u64 }

    /// The part of `fuse_init_in` every kernel sends.
    InitIn = 16 { major: u32, minor: u32, readahead_bytes_max: u32, flags: u32 }
    /// What kernels since 7.36 add to it.
    InitExtIn = 48 { flags2: u32, unused: [u32; 11] }
    /// `fuse_init_out`.
    InitOut = 64 {
        major: u32, minor: u32, readahead_bytes_max: u32, flags: u32, background_max: u16, congestion: u16,
        write_bytes_max: u32, time_granularity_ns: u32, pages_max: u16, map_alignment: u16, flags2: u32,
        stack_depth_max: u32, request_timeout_s: u16, unused: [u16; 11],
    }

    /// `fuse_notify_inval_inode_out`.
    InvalidateInode = 24 { node: u64, offset: i64, bytes: i64 }
    /// `fuse_notify_inval_entry_out`, followed by the name and a zero byte.
    InvalidateEntry = 16 { parent: u64, name_bytes: u32, flags: u32 }
    /// `fuse_notify_delete_out`, followed by the name and a zero byte.
    DeleteEntry = 24 { parent: u64, child: u64, name_bytes: u32, padding: u32 }
    /// `fuse_notify_store_out`, followed by the data.
    Store = 24 { node: u64, offset: u64, size: u32, padding: u32 }
    /// `fuse_notify_poll_wakeup_out`.
    PollWakeup = 8 { kernel_handle: u64 }
    /// `fuse_notify_prune_out`, followed by node numbers.
    Prune = 16 { count: u32, padding: u32, spare: u64 }

    /// `fuse_uring_ent_in_out`: the third part of a ring entry's header.
    RingEntry = 32 { flags: u64, commit_id: u64, payload_bytes: u32, padding: u32, reserved: u64 }
    /// `fuse_uring_cmd_req`: the command area of an SQE.
    RingCommand = 24 { flags: u64, commit_id: u64, queue: u16, padding: [u8; 6] }
}

/// Bytes of `fuse_uring_req_header`: the header, the fixed arguments, `RingEntry`.
pub(crate) const RING_HEADER_BYTES: usize = 288;
/// Where the fixed arguments of a ring entry lie, and how many bytes they have.
pub(crate) const RING_ARGUMENTS_AT: usize = 128;
/// Room for the fixed arguments of a ring entry.
pub(crate) const RING_ARGUMENTS_BYTES: usize = 128;
/// Where `RingEntry` lies.
pub(crate) const RING_ENTRY_AT: usize = 256;
const _: () = assert!(RING_ENTRY_AT + size_of::<RingEntry>() == RING_HEADER_BYTES);
const _: () = assert!(RING_ARGUMENTS_AT + RING_ARGUMENTS_BYTES == RING_ENTRY_AT);

// The device reads a WRITE so that its fixed part ends at a page boundary (`buffer`); READ has the same size, so that
// its answer starts right there.
const _: () = assert!(size_of::<WriteIn>() == size_of::<ReadIn>());
