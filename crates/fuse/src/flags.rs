//! Numbers of the protocol a file system may meet: flags of requests and answers, opcodes, INIT bits.
//!
//! Named after the kernel's own names (`FUSE_OPEN_KILL_SUIDGID` is `open::KILL_SUIDGID`) so that they can be looked
//! up. Nothing here is ours.

/// Bits of `SetAttr::valid`.
pub mod setattr {
    #![allow(missing_docs, reason = "the kernel's FATTR_ names")]
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const HANDLE: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const LOCK_OWNER: u32 = 1 << 9;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Bits an answer to OPEN, OPENDIR or CREATE may carry (`FOPEN_`).
pub mod opened {
    #![allow(missing_docs, reason = "the kernel's FOPEN_ names")]
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const NONSEEKABLE: u32 = 1 << 2;
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const STREAM: u32 = 1 << 4;
    pub const NOFLUSH: u32 = 1 << 5;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
    pub const PASSTHROUGH: u32 = 1 << 7;
}

/// Bits of `Open::open_flags` and `Create::open_flags`.
pub mod open {
    /// The file system has to drop suid and sgid because the open truncates.
    pub const KILL_SUIDGID: u32 = 1 << 0;
}

/// Bits of `Write::write_flags`.
pub mod write {
    /// Written back from the page cache; handle and owner are guesses.
    pub const CACHE: u32 = 1 << 0;
    /// `lock_owner` is valid.
    pub const LOCK_OWNER: u32 = 1 << 1;
    /// The file system has to drop suid and sgid.
    pub const KILL_SUIDGID: u32 = 1 << 2;
}

/// Bits of `Release::release_flags`.
pub mod release {
    /// Flush too.
    pub const FLUSH: u32 = 1 << 0;
    /// Drop the flock of this handle.
    pub const FLOCK_UNLOCK: u32 = 1 << 1;
}

/// Bits of `SetXattr::setxattr_flags`.
pub mod setxattr {
    /// Clear sgid when `system.posix_acl_access` is set.
    pub const ACL_KILL_SGID: u32 = 1 << 0;
}

/// Bits of `Ioctl::flags`.
pub mod ioctl {
    #![allow(missing_docs, reason = "the kernel's FUSE_IOCTL_ names")]
    pub const COMPAT: u32 = 1 << 0;
    pub const UNRESTRICTED: u32 = 1 << 1;
    pub const RETRY: u32 = 1 << 2;
    pub const BITS_32: u32 = 1 << 3;
    pub const DIRECTORY: u32 = 1 << 4;
    pub const COMPAT_X32: u32 = 1 << 5;
}

/// Bits of `Poll::flags`.
pub mod poll {
    /// Wake the poller by `Notifier::poll_wakeup` when events happen.
    pub const SCHEDULE_NOTIFY: u32 = 1 << 0;
}

/// Bits of `Attributes::flags`.
pub mod attribute {
    /// The node is the root of a submount.
    pub const SUBMOUNT: u32 = 1 << 0;
    /// The file is in DAX mode.
    pub const DAX: u32 = 1 << 1;
}

/// Numbers of requests.
pub mod opcode {
    #![allow(missing_docs, reason = "the kernel's opcode names")]

    macro_rules! opcodes {
        ($($name:ident = $number:literal,)+) => {
            $(pub const $name: u32 = $number;)+

            /// The kernel's name of an opcode.
            #[must_use]
            pub fn name(number: u32) -> &'static str {
                match number {
                    $($number => stringify!($name),)+
                    _ => "UNKNOWN",
                }
            }
        };
    }

    opcodes! {
        LOOKUP = 1,
        FORGET = 2,
        GETATTR = 3,
        SETATTR = 4,
        READLINK = 5,
        SYMLINK = 6,
        MKNOD = 8,
        MKDIR = 9,
        UNLINK = 10,
        RMDIR = 11,
        RENAME = 12,
        LINK = 13,
        OPEN = 14,
        READ = 15,
        WRITE = 16,
        STATFS = 17,
        RELEASE = 18,
        FSYNC = 20,
        SETXATTR = 21,
        GETXATTR = 22,
        LISTXATTR = 23,
        REMOVEXATTR = 24,
        FLUSH = 25,
        INIT = 26,
        OPENDIR = 27,
        READDIR = 28,
        RELEASEDIR = 29,
        FSYNCDIR = 30,
        GETLK = 31,
        SETLK = 32,
        SETLKW = 33,
        ACCESS = 34,
        CREATE = 35,
        INTERRUPT = 36,
        BMAP = 37,
        DESTROY = 38,
        IOCTL = 39,
        POLL = 40,
        NOTIFY_REPLY = 41,
        BATCH_FORGET = 42,
        FALLOCATE = 43,
        READDIRPLUS = 44,
        RENAME2 = 45,
        LSEEK = 46,
        COPY_FILE_RANGE = 47,
        SYNCFS = 50,
        TMPFILE = 51,
        STATX = 52,
        COPY_FILE_RANGE_64 = 53,
    }
    /// Counters have this many places; higher opcodes are counted in place 0.
    pub const COUNT: usize = 64;
}

/// Bits of INIT.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const POSIX_LOCKS: u64 = 1 << 1;
    pub(crate) const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const FLOCK_LOCKS: u64 = 1 << 10;
    pub(crate) const IOCTL_DIR: u64 = 1 << 11;
    pub(crate) const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const WRITEBACK_CACHE: u64 = 1 << 16;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const ABORT_ERROR: u64 = 1 << 21;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub(crate) const PASSTHROUGH: u64 = 1 << 37;
    pub(crate) const OVER_IO_URING: u64 = 1 << 41;
    pub(crate) const REQUEST_TIMEOUT: u64 = 1 << 42;
}

/// Kinds of notification; they travel in the error field of an answer to nothing.
pub(crate) mod notify {
    pub(crate) const POLL: i32 = 1;
    pub(crate) const INVAL_INODE: i32 = 2;
    pub(crate) const INVAL_ENTRY: i32 = 3;
    pub(crate) const STORE: i32 = 4;
    pub(crate) const DELETE: i32 = 6;
    pub(crate) const INC_EPOCH: i32 = 8;
    pub(crate) const PRUNE: i32 = 9;
    /// Flag of `INVAL_ENTRY`: let the entry expire, keep what is mounted or open below it.
    pub(crate) const EXPIRE_ONLY: u32 = 1 << 0;
}

/// `GetAttr` and `StatX` carry a handle.
pub(crate) const GETATTR_HANDLE: u32 = 1 << 0;
/// The lock comes from flock(2).
pub(crate) const LOCK_FLOCK: u32 = 1 << 0;
/// fdatasync(2): data only.
pub(crate) const FSYNC_DATA: u32 = 1 << 0;
/// `Read` has a valid lock owner.
pub(crate) const READ_LOCK_OWNER: u32 = 1 << 1;
