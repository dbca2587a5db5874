//! Requests: what the kernel asks, decoded and borrowed from the buffer it arrived in.
//!
//! A request reaches us in two pieces. Over /dev/fuse everything after the header is one piece and the second is
//! empty; over io_uring the fixed arguments are the first and names and data the second. `Reader` takes from the
//! first piece until it is used up and then from the second, so that one decoder serves both.
//!
//! Truths kept here:
//! - Nothing is believed: every length is checked against the bytes that are there, every name must end with a zero
//!   byte inside them. What does not fit answers EIO and never panics (`tests` mutates valid requests to see).
//! - Extensions behind a create (security contexts, supplementary groups) are cut off before decoding. We do not ask
//!   for them, but a kernel that sends them must not confuse us.

use crate::errno::Errno;
use crate::flags::{self, opcode};
use crate::wire;
use zerocopy::{FromBytes, Immutable, KnownLayout};

#[cfg(test)]
mod tests;

/// Who asks, about which node, under which number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Which request it is (`opcode`).
    pub opcode: u32,
    /// The kernel's number of the request; answers carry it.
    pub unique: u64,
    /// The node the request is about.
    pub node: u64,
    /// File system user of the caller.
    pub uid: u32,
    /// File system group of the caller.
    pub gid: u32,
    /// The calling thread, as seen from the pid namespace of the mount; 0 if it has none there.
    pub pid: u32,
}

/// A moment, in seconds since 1970 (negative before) and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Whole seconds.
    pub seconds: i64,
    /// Below a thousand million.
    pub nanoseconds: u32,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The server's present time.
    Now,
    /// This time.
    At(Time),
}

/// What SETATTR changes: whatever is `Some`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// The bits as sent (`flags::setattr`).
    pub valid: u32,
    /// The open file through which the change is made, as by ftruncate(2).
    pub handle: Option<u64>,
    /// Who holds locks, for mandatory locking.
    pub lock_owner: Option<u64>,
    /// New size.
    pub size: Option<u64>,
    /// New mode, with the file type.
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New access time.
    pub atime: Option<SetTime>,
    /// New modification time.
    pub mtime: Option<SetTime>,
    /// New change time; sent only with the writeback cache.
    pub ctime: Option<Time>,
    /// Drop suid, sgid and file capabilities with this change.
    pub kill_suidgid: bool,
}

/// A lock, asked for or reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    /// First byte.
    pub start: u64,
    /// Last byte, included; `i64::MAX` is the end of the file.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: u32,
    /// The process that holds it.
    pub pid: u32,
}

/// What GETLK, SETLK and SETLKW carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// The open file.
    pub handle: u64,
    /// Owner: a process's files for fcntl(2), one open file for flock(2) and open file description locks.
    pub owner: u64,
    /// The range and kind.
    pub lock: Lock,
    /// True for flock(2); false for fcntl(2), where two locks of one process with different owners are open file
    /// description locks.
    pub is_flock: bool,
}

/// One request. Names come without their zero byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields are the arguments of the system call the variant names")]
#[non_exhaustive]
pub enum Request<'a> {
    Lookup {
        name: &'a [u8],
    },
    GetAttr {
        handle: Option<u64>,
    },
    SetAttr(SetAttr),
    ReadLink,
    SymLink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MkNod {
        name: &'a [u8],
        mode: u32,
        device: u32,
        umask: u32,
    },
    MkDir {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RmDir {
        name: &'a [u8],
    },
    /// `flags`: `RENAME_NOREPLACE`, `RENAME_EXCHANGE`, `RENAME_WHITEOUT`.
    Rename {
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    /// The header's node is the new parent, `node` the existing file.
    Link {
        node: u64,
        new_name: &'a [u8],
    },
    /// `open_flags`: `flags::open`.
    Open {
        flags: u32,
        open_flags: u32,
    },
    Read {
        handle: u64,
        offset: u64,
        size: u32,
        flags: u32,
        lock_owner: Option<u64>,
    },
    /// `write_flags`: `flags::write`. `data` is page aligned on both transports.
    Write {
        handle: u64,
        offset: u64,
        data: &'a [u8],
        write_flags: u32,
        flags: u32,
        lock_owner: Option<u64>,
    },
    StatFs,
    /// `release_flags`: `flags::release`.
    Release {
        handle: u64,
        flags: u32,
        release_flags: u32,
        lock_owner: u64,
    },
    FSync {
        handle: u64,
        data_only: bool,
    },
    /// `flags`: `XATTR_CREATE`, `XATTR_REPLACE`; `setxattr_flags`: `flags::setxattr`.
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
        setxattr_flags: u32,
    },
    /// `size` 0 asks how long the value is (`Exchange::answer_xattr_size`).
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    /// `size` 0 asks how long the list is.
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Flush {
        handle: u64,
        lock_owner: u64,
    },
    OpenDir {
        flags: u32,
        open_flags: u32,
    },
    ReadDir {
        handle: u64,
        offset: u64,
        size: u32,
    },
    ReadDirPlus {
        handle: u64,
        offset: u64,
        size: u32,
    },
    ReleaseDir {
        handle: u64,
        flags: u32,
        release_flags: u32,
    },
    FSyncDir {
        handle: u64,
        data_only: bool,
    },
    GetLk(LockRequest),
    SetLk(LockRequest),
    /// May answer late; is given up with EINTR when the caller is interrupted.
    SetLkW(LockRequest),
    Access {
        mask: u32,
    },
    Create {
        name: &'a [u8],
        flags: u32,
        mode: u32,
        umask: u32,
        open_flags: u32,
    },
    /// Create a file without a name below the header's node, and open it.
    TmpFile {
        flags: u32,
        mode: u32,
        umask: u32,
        open_flags: u32,
    },
    BMap {
        block: u64,
        block_bytes: u32,
    },
    Ioctl {
        handle: u64,
        flags: u32,
        command: u32,
        argument: u64,
        data: &'a [u8],
        out_bytes: u32,
    },
    Poll {
        handle: u64,
        kernel_handle: u64,
        flags: u32,
        events: u32,
    },
    FAllocate {
        handle: u64,
        offset: u64,
        length: u64,
        mode: u32,
    },
    Lseek {
        handle: u64,
        offset: u64,
        whence: u32,
    },
    /// Answered by `Exchange::answer_copied`, whichever of the two opcodes it was.
    CopyFileRange {
        handle: u64,
        offset: u64,
        node_out: u64,
        handle_out: u64,
        offset_out: u64,
        bytes: u64,
        flags: u64,
    },
    SyncFs,
    StatX {
        handle: Option<u64>,
        flags: u32,
        mask: u32,
    },
    /// The mount is going away.
    Destroy,
}

/// What was negotiated, as far as decoding depends on it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dialect {
    /// `fuse_setxattr_in` has its second half.
    pub(crate) setxattr_ext: bool,
}

/// The two pieces of a request.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    first: &'a [u8],
    second: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads a request without its last `extension_words * 8` bytes.
    pub(crate) fn new(first: &'a [u8], second: &'a [u8], extension_words: u16) -> Result<Reader<'a>, Errno> {
        let mut reader = Reader { first, second };
        let last = if second.is_empty() { &mut reader.first } else { &mut reader.second };
        let kept = last.len().checked_sub(usize::from(extension_words) * 8).ok_or(Errno::EIO)?;
        *last = &last[..kept];
        Ok(reader)
    }

    fn piece(&mut self) -> &mut &'a [u8] {
        if self.first.is_empty() { &mut self.second } else { &mut self.first }
    }

    /// Takes a structure.
    pub(crate) fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Result<T, Errno> {
        let piece = self.piece();
        let (value, rest) = T::read_from_prefix(piece).map_err(|_| Errno::EIO)?;
        *piece = rest;
        Ok(value)
    }

    fn bytes(&mut self, count: u32) -> Result<&'a [u8], Errno> {
        if count == 0 {
            return Ok(&[]);
        }
        let piece = self.piece();
        let (bytes, rest) = piece.split_at_checked(count as usize).ok_or(Errno::EIO)?;
        *piece = rest;
        Ok(bytes)
    }

    /// Takes bytes up to a zero byte.
    fn text(&mut self) -> Result<&'a [u8], Errno> {
        let piece = self.piece();
        let end = piece.iter().position(|byte| *byte == 0).ok_or(Errno::EIO)?;
        let text = &piece[..end];
        *piece = &piece[end + 1..];
        Ok(text)
    }

    /// A name inside a directory or of an attribute: not empty.
    fn name(&mut self) -> Result<&'a [u8], Errno> {
        self.text().and_then(|name| if name.is_empty() { Err(Errno::EINVAL) } else { Ok(name) })
    }
}

/// How many bytes the answer to this request may have; `None` for answers of fixed form.
pub(crate) fn answer_limit(request: &Request<'_>) -> Option<u32> {
    match *request {
        Request::Read { size, .. }
        | Request::ReadDir { size, .. }
        | Request::ReadDirPlus { size, .. }
        | Request::GetXattr { size, .. }
        | Request::ListXattr { size } => Some(size),
        Request::Ioctl { out_bytes, .. } => Some(out_bytes),
        // The kernel offers one page less a zero byte.
        Request::ReadLink => Some(4095),
        _ => None,
    }
}

/// Decodes the request with this number. ENOSYS for numbers we do not know.
pub(crate) fn decode<'a>(number: u32, mut reader: Reader<'a>, dialect: Dialect) -> Result<Request<'a>, Errno> {
    let r = &mut reader;
    Ok(match number {
        opcode::LOOKUP => Request::Lookup { name: r.name()? },
        opcode::GETATTR => {
            let wire::GetAttrIn { flags, handle, .. } = r.take()?;
            Request::GetAttr { handle: (flags & flags::GETATTR_HANDLE != 0).then_some(handle) }
        }
        opcode::SETATTR => Request::SetAttr(changes(&r.take()?)),
        opcode::READLINK => Request::ReadLink,
        opcode::SYMLINK => Request::SymLink { name: r.name()?, target: r.text()? },
        opcode::MKNOD => {
            let wire::MkNodIn { mode, device, umask, .. } = r.take()?;
            Request::MkNod { name: r.name()?, mode, device, umask }
        }
        opcode::MKDIR => {
            let wire::MkDirIn { mode, umask } = r.take()?;
            Request::MkDir { name: r.name()?, mode, umask }
        }
        opcode::UNLINK => Request::Unlink { name: r.name()? },
        opcode::RMDIR => Request::RmDir { name: r.name()? },
        opcode::RENAME => {
            let wire::RenameIn { parent } = r.take()?;
            Request::Rename { name: r.name()?, new_parent: parent, new_name: r.name()?, flags: 0 }
        }
        opcode::RENAME2 => {
            let wire::Rename2In { parent, flags, .. } = r.take()?;
            Request::Rename { name: r.name()?, new_parent: parent, new_name: r.name()?, flags }
        }
        opcode::LINK => {
            let wire::LinkIn { node } = r.take()?;
            Request::Link { node, new_name: r.name()? }
        }
        opcode::OPEN | opcode::OPENDIR => {
            let wire::OpenIn { flags, open_flags } = r.take()?;
            match number {
                opcode::OPEN => Request::Open { flags, open_flags },
                _ => Request::OpenDir { flags, open_flags },
            }
        }
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS => reading(number, &r.take()?),
        opcode::WRITE => {
            let wire::WriteIn { handle, offset, size, write_flags, lock_owner, flags, .. } = r.take()?;
            let lock_owner = (write_flags & flags::write::LOCK_OWNER != 0).then_some(lock_owner);
            Request::Write { handle, offset, data: r.bytes(size)?, write_flags, flags, lock_owner }
        }
        opcode::STATFS => Request::StatFs,
        opcode::RELEASE | opcode::RELEASEDIR => {
            let wire::ReleaseIn { handle, flags, release_flags, lock_owner } = r.take()?;
            match number {
                opcode::RELEASE => Request::Release { handle, flags, release_flags, lock_owner },
                _ => Request::ReleaseDir { handle, flags, release_flags },
            }
        }
        opcode::FSYNC | opcode::FSYNCDIR => {
            let wire::FSyncIn { handle, flags, .. } = r.take()?;
            let data_only = flags & flags::FSYNC_DATA != 0;
            match number {
                opcode::FSYNC => Request::FSync { handle, data_only },
                _ => Request::FSyncDir { handle, data_only },
            }
        }
        opcode::SETXATTR => {
            let wire::SetXattrIn { size, flags } = r.take()?;
            let extension: wire::SetXattrExtIn = if dialect.setxattr_ext { r.take()? } else { Default::default() };
            let name = r.name()?;
            Request::SetXattr { name, value: r.bytes(size)?, flags, setxattr_flags: extension.setxattr_flags }
        }
        opcode::GETXATTR => {
            let wire::GetXattrIn { size, .. } = r.take()?;
            Request::GetXattr { name: r.name()?, size }
        }
        opcode::LISTXATTR => Request::ListXattr { size: r.take::<wire::GetXattrIn>()?.size },
        opcode::REMOVEXATTR => Request::RemoveXattr { name: r.name()? },
        opcode::FLUSH => {
            let wire::FlushIn { handle, lock_owner, .. } = r.take()?;
            Request::Flush { handle, lock_owner }
        }
        opcode::GETLK => Request::GetLk(locking(&r.take()?)),
        opcode::SETLK => Request::SetLk(locking(&r.take()?)),
        opcode::SETLKW => Request::SetLkW(locking(&r.take()?)),
        opcode::ACCESS => Request::Access { mask: r.take::<wire::AccessIn>()?.mask },
        opcode::CREATE => {
            let wire::CreateIn { flags, mode, umask, open_flags } = r.take()?;
            Request::Create { name: r.name()?, flags, mode, umask, open_flags }
        }
        // The kernel sends a name here too, always "/": it means nothing.
        opcode::TMPFILE => {
            let wire::CreateIn { flags, mode, umask, open_flags } = r.take()?;
            Request::TmpFile { flags, mode, umask, open_flags }
        }
        opcode::BMAP => {
            let wire::BMapIn { block, block_bytes, .. } = r.take()?;
            Request::BMap { block, block_bytes }
        }
        opcode::IOCTL => {
            let wire::IoctlIn { handle, flags, command, argument, in_bytes, out_bytes } = r.take()?;
            Request::Ioctl { handle, flags, command, argument, data: r.bytes(in_bytes)?, out_bytes }
        }
        opcode::POLL => {
            let wire::PollIn { handle, kernel_handle, flags, events } = r.take()?;
            Request::Poll { handle, kernel_handle, flags, events }
        }
        opcode::FALLOCATE => {
            let wire::FAllocateIn { handle, offset, length, mode, .. } = r.take()?;
            Request::FAllocate { handle, offset, length, mode }
        }
        opcode::LSEEK => {
            let wire::LseekIn { handle, offset, whence, .. } = r.take()?;
            Request::Lseek { handle, offset, whence }
        }
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => copying(&r.take()?),
        opcode::SYNCFS => {
            let wire::SyncFsIn { .. } = r.take()?;
            Request::SyncFs
        }
        opcode::STATX => {
            let wire::StatXIn { flags, handle, statx_flags, mask, .. } = r.take()?;
            let handle = (flags & flags::GETATTR_HANDLE != 0).then_some(handle);
            Request::StatX { handle, flags: statx_flags, mask }
        }
        opcode::DESTROY => Request::Destroy,
        _ => return Err(Errno::ENOSYS),
    })
}

/// The nodes to forget in a FORGET or BATCH_FORGET; as many as are really there.
pub(crate) fn forgotten<'a>(
    header: &Header,
    mut reader: Reader<'a>,
) -> Result<impl Iterator<Item = (u64, u64)> + 'a, Errno> {
    let single = (header.opcode == opcode::FORGET).then(|| reader.take::<wire::ForgetIn>()).transpose()?;
    let count = match single {
        Some(_) => 0,
        None => reader.take::<wire::BatchForgetIn>()?.count,
    };
    let node = header.node;
    let batch = (0..count).map_while(move |_| reader.take::<wire::ForgetOne>().ok());
    Ok(single.map(|one| (node, one.count)).into_iter().chain(batch.map(|one| (one.node, one.count))))
}

/// The number of the request an INTERRUPT is about.
pub(crate) fn interrupted(mut reader: Reader<'_>) -> Result<u64, Errno> {
    Ok(reader.take::<wire::InterruptIn>()?.unique)
}

/// A time on the wire: seconds are signed in truth, and nanoseconds are kept below a second whatever was sent.
pub(crate) fn time(seconds: u64, nanoseconds: u32) -> Time {
    Time { seconds: seconds.cast_signed(), nanoseconds: nanoseconds.min(999_999_999) }
}

fn changes(sent: &wire::SetAttrIn) -> SetAttr {
    use flags::setattr as bit;
    let has = |flag: u32| sent.valid & flag != 0;
    let moment = |flag, now, seconds, nanoseconds| {
        has(flag).then(|| if has(now) { SetTime::Now } else { SetTime::At(time(seconds, nanoseconds)) })
    };
    SetAttr {
        valid: sent.valid,
        handle: has(bit::HANDLE).then_some(sent.handle),
        lock_owner: has(bit::LOCK_OWNER).then_some(sent.lock_owner),
        size: has(bit::SIZE).then_some(sent.size),
        mode: has(bit::MODE).then_some(sent.mode),
        uid: has(bit::UID).then_some(sent.uid),
        gid: has(bit::GID).then_some(sent.gid),
        atime: moment(bit::ATIME, bit::ATIME_NOW, sent.atime, sent.atime_ns),
        mtime: moment(bit::MTIME, bit::MTIME_NOW, sent.mtime, sent.mtime_ns),
        ctime: has(bit::CTIME).then(|| time(sent.ctime, sent.ctime_ns)),
        kill_suidgid: has(bit::KILL_SUIDGID),
    }
}

fn reading(number: u32, sent: &wire::ReadIn) -> Request<'static> {
    let wire::ReadIn { handle, offset, size, read_flags, lock_owner, flags, .. } = *sent;
    match number {
        opcode::READ => {
            let lock_owner = (read_flags & flags::READ_LOCK_OWNER != 0).then_some(lock_owner);
            Request::Read { handle, offset, size, flags, lock_owner }
        }
        opcode::READDIR => Request::ReadDir { handle, offset, size },
        _ => Request::ReadDirPlus { handle, offset, size },
    }
}

fn locking(sent: &wire::LockIn) -> LockRequest {
    let wire::FileLock { start, end, kind, pid } = sent.lock;
    LockRequest {
        handle: sent.handle,
        owner: sent.owner,
        lock: Lock { start, end, kind, pid },
        is_flock: sent.lock_flags & flags::LOCK_FLOCK != 0,
    }
}

fn copying(sent: &wire::CopyIn) -> Request<'static> {
    let wire::CopyIn { handle_in, offset_in, node_out, handle_out, offset_out, bytes, flags } = *sent;
    Request::CopyFileRange { handle: handle_in, offset: offset_in, node_out, handle_out, offset_out, bytes, flags }
}
