//! Pages that programs changed through mappings, brought from the kernel by another process than the daemon.
//!
//! They are the kernel's until somebody asks for them. sync(1) and syncfs(2) do not wait for those of a FUSE file system: 6.18.21 and later
//! only wake who writes them, and before 6.16 a page counted as written when it was on its way to the daemon. What waits, in all of them, is
//! the end of an open file (`fuse_flush` in fs/fuse/file.c): it has the file's pages written, whoever changed them, and waits for our answers.
//! So each file that the kernel holds is opened by its number, without a look-up, and closed: no request of its own comes to us for it.
//!
//! Not here: which files the kernel holds (the file system knows), durability (the file system's too).

#![expect(unsafe_code, reason = "open_by_handle_at(2) and the result of close(2) have no safe wrapper in std")]

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::path::Path;

/// `FILEID_INO64_GEN` of include/linux/exportfs.h: what FUSE calls a file by.
const HANDLE_KIND: i32 = 0x81;

/// `struct file_handle` with what FUSE puts into it (`fuse_encode_fh` in fs/fuse/inode.c).
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    number_high: u32,
    number_low: u32,
    /// The file system of this crate gives none.
    generation: u32,
}

impl Handle {
    fn of(number: u64) -> Handle {
        let bytes = size_of::<Handle>() - offset_of!(Handle, number_high);
        Handle {
            bytes: u32::try_from(bytes).expect("twelve"),
            kind: HANDLE_KIND,
            number_high: (number >> 32) as u32,
            number_low: number as u32,
            generation: 0,
        }
    }
}

/// Has the kernel give the daemon what was changed through mappings of these files (node numbers), and returns when the daemon has accepted
/// it. A file that the kernel has let go meanwhile has no such page.
///
/// # Errors
/// `PermissionDenied` without CAP_DAC_READ_SEARCH; the first error of a file whose pages the daemon did not accept. The others are
/// brought all the same.
///
/// # Panics
/// Never. Not to be called by the daemon itself: killed meanwhile, it would wait for an answer of its own, for ever.
pub fn bring_pages(mountpoint: &Path, numbers: impl IntoIterator<Item = u64>) -> io::Result<()> {
    let mount = File::open(mountpoint)?;
    let mut result = Ok(());
    for number in numbers {
        let brought = bring(&mount, number);
        match &brought {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return brought,
            // Nobody holds it any more.
            Err(error) if error.raw_os_error() == Some(libc::ESTALE) => {}
            _ => result = result.and(brought),
        }
    }
    result
}

fn bring(mount: &File, number: u64) -> io::Result<()> {
    // Only what has content: to open a device does something.
    let found = File::from(open(mount, number, libc::O_PATH)?);
    if !is_regular(&found)? {
        return Ok(());
    }
    let file = open(mount, number, libc::O_RDONLY)?;
    // SAFETY: the descriptor is ours, and nobody uses it afterwards.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// By what the kernel knows, without asking the daemon.
fn is_regular(file: &File) -> io::Result<bool> {
    // SAFETY: an all-zero `statx` is one; the call gets a descriptor and an empty path, and writes the structure, which lives during it.
    let (result, found) = unsafe {
        let mut found: libc::statx = std::mem::zeroed();
        let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
        (libc::statx(file.as_raw_fd(), c"".as_ptr(), flags, libc::STATX_TYPE, &raw mut found), found)
    };
    match result {
        0 => Ok(u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFREG),
        _ => Err(io::Error::last_os_error()),
    }
}

fn open(mount: &File, number: u64, flags: i32) -> io::Result<OwnedFd> {
    let mut handle = Handle::of(number);
    // SAFETY: the kernel reads a handle and the bytes that it says it has, which live during the call.
    let opened =
        unsafe { libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut handle).cast(), flags | libc::O_CLOEXEC) };
    match opened {
        // SAFETY: it was just opened, for us.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(opened) }),
        _ => Err(io::Error::last_os_error()),
    }
}
