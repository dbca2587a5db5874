//! What a copy takes over from its source besides content, with `--archive`: owner, mode, extended attributes, times.
//!
//! The order matters: a change of owner clears set-id bits, so the mode follows it; everything changes times, so they come last.
//! What only root may do, others leave out silently, as cp(1) does.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Gid, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

/// Makes `to` like `from` was when `source` was read.
pub(super) fn take_over(from: &Path, to: &Path, source: &Metadata) -> io::Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    let mut mode = source.mode() & 0o7777;
    let (uid, gid) = (Uid::from_raw(source.uid()), Gid::from_raw(source.gid()));
    match rustix::fs::chownat(CWD, to, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(()) => {}
        // Set-id bits belong to an owner: without him they would give away the copier's rights.
        Err(Errno::PERM) if !is_root => mode &= !0o6000,
        Err(error) => return Err(error.into()),
    }
    if !source.file_type().is_symlink() {
        std::fs::set_permissions(to, std::fs::Permissions::from_mode(mode))?;
    }
    copy_xattrs(from, to, is_root)?;
    let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps {
        last_access: time(source.atime(), source.atime_nsec()),
        last_modification: time(source.mtime(), source.mtime_nsec()),
    };
    rustix::fs::utimensat(CWD, to, &times, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(())
}

/// Makes a FIFO, socket or device like `source`.
pub(super) fn make_special(to: &Path, source: &Metadata) -> io::Result<()> {
    use rustix::fs::{FileType, Mode};
    let kind = source.file_type();
    let (kind, device) = if kind.is_fifo() {
        (FileType::Fifo, 0)
    } else if kind.is_socket() {
        (FileType::Socket, 0)
    } else if kind.is_char_device() {
        (FileType::CharacterDevice, source.rdev())
    } else {
        (FileType::BlockDevice, source.rdev())
    };
    let mode = Mode::from_raw_mode(source.mode() & 0o777);
    rustix::fs::mknodat(CWD, to, kind, mode, device)?;
    Ok(())
}

/// All extended attributes that can be read.
pub(super) fn xattrs(from: &Path) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let names = match sized(|buffer| rustix::fs::llistxattr(from, buffer)) {
        Ok(names) => names,
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut found = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        match sized(|buffer| rustix::fs::lgetxattr(from, name, buffer)) {
            Ok(value) => found.push((name.to_vec(), value)),
            // It went meanwhile, or is not for us.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

fn copy_xattrs(from: &Path, to: &Path, is_root: bool) -> io::Result<()> {
    for (name, value) in xattrs(from)? {
        match rustix::fs::lsetxattr(to, name.as_slice(), &value, XattrFlags::empty()) {
            Ok(()) => {}
            Err(Errno::PERM | Errno::ACCESS) if !is_root && !name.starts_with(b"user.") => {}
            Err(error) => {
                let why = format!("extended attribute {}: {}", String::from_utf8_lossy(&name), io::Error::from(error));
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
