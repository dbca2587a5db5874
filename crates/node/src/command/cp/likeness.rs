//! What a copy takes over from its source besides content, with `--archive`: owner, mode, extended attributes, times.
//!
//! The order matters: a change of owner clears set-id bits, so the mode follows it; everything changes times, so they come last.
//! What only root may do, others leave out silently, as cp(1) does.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use base::time::Timestamp;
use file::Kind;
use rustix::fs::{AtFlags, CWD, Gid, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::control::batch::wire::Entry;

/// What a copy is to be like.
pub(in crate::command) struct Likeness {
    pub(in crate::command) mode: u32,
    pub(in crate::command) uid: u32,
    pub(in crate::command) gid: u32,
    pub(in crate::command) is_symlink: bool,
    pub(in crate::command) accessed: Timespec,
    pub(in crate::command) modified: Timespec,
    pub(in crate::command) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Makes `to` like `from` was when `source` was read.
pub(super) fn take_over(from: &Path, to: &Path, source: &Metadata) -> io::Result<()> {
    let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let likeness = Likeness {
        mode: source.mode() & 0o7777,
        uid: source.uid(),
        gid: source.gid(),
        is_symlink: source.file_type().is_symlink(),
        accessed: time(source.atime(), source.atime_nsec()),
        modified: time(source.mtime(), source.mtime_nsec()),
        xattrs: xattrs(from, None)?,
    };
    likeness.put_on(to)
}

impl Likeness {
    /// Of an entry of a batch.
    pub(in crate::command) fn of(entry: &Entry) -> Likeness {
        let time = |of: Timestamp| Timespec { tv_sec: of.seconds, tv_nsec: of.nanos.into() };
        Likeness {
            mode: entry.mode,
            uid: entry.uid,
            gid: entry.gid,
            is_symlink: entry.kind == Kind::Symlink,
            accessed: time(entry.accessed),
            modified: time(entry.modified),
            xattrs: entry.xattrs.clone(),
        }
    }

    /// Makes a file so.
    pub(in crate::command) fn put_on(&self, to: &Path) -> io::Result<()> {
        let is_root = rustix::process::geteuid().is_root();
        let mut mode = self.mode;
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        match rustix::fs::chownat(CWD, to, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(()) => {}
            // Set-id bits belong to an owner: without him they would give away the copier's rights.
            Err(Errno::PERM) if !is_root => mode &= !0o6000,
            Err(error) => return Err(error.into()),
        }
        if !self.is_symlink {
            std::fs::set_permissions(to, std::fs::Permissions::from_mode(mode))?;
        }
        put_xattrs(&self.xattrs, to, is_root)?;
        let times = Timestamps { last_access: self.accessed, last_modification: self.modified };
        rustix::fs::utimensat(CWD, to, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }
}

/// Gives a file what the one that it is to replace has, as if that had been written into. Who may not give it away keeps it, without bits that would
/// give away his own rights.
pub(super) fn hand_on(former: &Path, to: &Path) -> io::Result<()> {
    let found = std::fs::symlink_metadata(former)?;
    if !found.is_file() {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(found.uid()), Gid::from_raw(found.gid()));
    let mode = match rustix::fs::chownat(CWD, to, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(()) => found.mode() & 0o7777,
        Err(Errno::PERM) => found.mode() & 0o1777,
        Err(error) => return Err(error.into()),
    };
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(mode))?;
    let mut xattrs = xattrs(former, None)?;
    // Capabilities and the like were of the former content.
    xattrs.retain(|(name, _)| !name.starts_with(b"security."));
    put_xattrs(&xattrs, to, rustix::process::geteuid().is_root())
}

/// Makes a FIFO, socket or device.
pub(in crate::command) fn make_special(to: &Path, kind: Kind, mode: u32, device: u64) -> io::Result<()> {
    use rustix::fs::{FileType, Mode};
    let (kind, device) = match kind {
        Kind::Fifo => (FileType::Fifo, 0),
        Kind::Socket => (FileType::Socket, 0),
        Kind::CharacterDevice => (FileType::CharacterDevice, device),
        Kind::BlockDevice => (FileType::BlockDevice, device),
        Kind::Regular | Kind::Directory | Kind::Symlink => {
            return Err(io::Error::other("it is no FIFO, socket or device"));
        }
    };
    rustix::fs::mknodat(CWD, to, kind, Mode::from_raw_mode(mode & 0o777), device)?;
    Ok(())
}

/// The kind of a file.
pub(super) fn kind_of(source: &Metadata) -> Kind {
    let kind = source.file_type();
    if kind.is_dir() {
        Kind::Directory
    } else if kind.is_symlink() {
        Kind::Symlink
    } else if kind.is_fifo() {
        Kind::Fifo
    } else if kind.is_socket() {
        Kind::Socket
    } else if kind.is_char_device() {
        Kind::CharacterDevice
    } else if kind.is_block_device() {
        Kind::BlockDevice
    } else {
        Kind::Regular
    }
}

/// All extended attributes that can be read of what is at `from`; `open`: the same, where it is open, which spares the way along the path.
pub(super) fn xattrs(from: &Path, open: Option<&File>) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let list = |buffer: &mut [u8]| match open {
        Some(file) => rustix::fs::flistxattr(file, buffer),
        None => rustix::fs::llistxattr(from, buffer),
    };
    // Most have none, and to learn that takes no buffer; one without room is told that there are none.
    let names = match open.map_or_else(|| rustix::fs::llistxattr_query(from), rustix::fs::flistxattr_query) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Ok(_) => sized(list)?,
        Err(error) => return Err(error.into()),
    };
    let mut found = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let value = sized(|buffer| match open {
            Some(file) => rustix::fs::fgetxattr(file, name, buffer),
            None => rustix::fs::lgetxattr(from, name, buffer),
        });
        match value {
            Ok(value) => found.push((name.to_vec(), value)),
            // It went meanwhile, or is not for us.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

/// What only root may set others leave out.
fn put_xattrs(xattrs: &[(Vec<u8>, Vec<u8>)], to: &Path, is_root: bool) -> io::Result<()> {
    for (name, value) in xattrs {
        match rustix::fs::lsetxattr(to, name.as_slice(), value, XattrFlags::empty()) {
            Ok(()) => {}
            Err(Errno::PERM | Errno::ACCESS) if !is_root && !name.starts_with(b"user.") => {}
            Err(error) => {
                let why = format!("extended attribute {}: {}", String::from_utf8_lossy(name), io::Error::from(error));
                return Err(io::Error::other(why));
            }
        }
    }
    Ok(())
}

/// Asks with a buffer that grows until the answer fits.
fn sized(ask: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut buffer = vec![0; 4096];
    loop {
        match ask(&mut buffer[..]) {
            Ok(count) => {
                buffer.truncate(count);
                return Ok(buffer);
            }
            // XATTR_LIST_MAX and XATTR_SIZE_MAX are 64 KiB.
            Err(Errno::RANGE) if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 4, 0),
            Err(error) => return Err(error),
        }
    }
}
