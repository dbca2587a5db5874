//! The mount table: making a FUSE mount, finding it again, taking it away.
//!
//! Root mounts by mount(2); anybody else asks fusermount3, which is set-uid root and hands the open /dev/fuse back
//! through a socket. In the mount table the type is `fuse.SUBTYPE`, the first column `source`.
//!
//! Truths kept here:
//! - We only ever unmount our own: the topmost mount at the path must have the device number and the unique number
//!   ours had, so that a daemon on its way out leaves its successor's mount alone.
//! - A mount that fails half-way is taken away again.
//!
//! Not here: whether the mount point makes sense (`node`), who serves it (`session`).

#![expect(
    unsafe_code,
    reason = "mount(2), fsmount(2), statx(2), syncfs(2), ioctl(2) and recvmsg(2) have no safe wrapper in std"
)]

use std::ffi::{CString, OsStr};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, RwLock, TryLockError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

/// `FUSE_DEV_IOC_CLONE`: `_IOR(229, 0, uint32_t)`.
const DEVICE_CLONE: libc::Ioctl = 0x8004_e500_u32 as libc::Ioctl;

/// How long unmounting waits for our own look at the mount to end, and how often it tries.
const LOOKING_MAX: Duration = Duration::from_secs(1);
const LOOKING_INTERVAL: Duration = Duration::from_millis(5);

/// How a file system is mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// First column of the mount table.
    pub source: String,
    /// The type in the mount table is `fuse.` and this.
    pub subtype: String,
    /// Users other than the one who mounts may enter.
    pub allow_other: bool,
    /// The kernel checks permissions by owner, mode and ACL.
    pub default_permissions: bool,
    /// No writing.
    pub read_only: bool,
    /// More options as `mount -o` takes them (`noatime`, `nosuid`, `max_read=65536`); unknown ones are refused.
    pub extra: Vec<String>,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            source: "hydrafs".to_owned(),
            subtype: "hydrafs".to_owned(),
            allow_other: false,
            default_permissions: true,
            read_only: false,
            extra: Vec::new(),
        }
    }
}

/// A mount that nobody serves yet. Dropped, it is unmounted.
pub struct Mount {
    device: Option<Arc<OwnedFd>>,
    unmounter: Unmounter,
}

/// Takes a mount away, from any thread. Clones are about the same mount.
#[derive(Clone, Debug)]
pub struct Unmounter {
    place: Arc<Place>,
    /// Held for reading by who has the kernel look at the mount: that keeps it in use.
    looking: Arc<RwLock<()>>,
}

/// Where a mount is, and how it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) mountpoint: PathBuf,
    /// `major:minor` of the mount in the mount table; may come again once the mount has gone.
    pub(crate) device: String,
    /// The kernel's number of the mount, which never comes again. `None` before Linux 6.8.
    pub(crate) unique: Option<u64>,
    pub(crate) by_helper: bool,
}

/// Mounts at `mountpoint`, a directory. Calls on the mount wait until a `Session` serves it.
pub fn mount(mountpoint: &Path, options: &MountOptions) -> io::Result<Mount> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", mountpoint.display()));
    let mountpoint = mountpoint.canonicalize().map_err(named)?;
    if !mountpoint.is_dir() {
        return Err(io::Error::new(io::ErrorKind::NotADirectory, format!("{} is no directory", mountpoint.display())));
    }
    let parsed = Parsed::new(options)?;
    // SAFETY: geteuid only reads.
    let by_helper = unsafe { libc::geteuid() } != 0;
    let device = if by_helper {
        mount_by_helper(&mountpoint, options, &parsed)?
    } else {
        mount_directly(&mountpoint, options, &parsed).map_err(named)?
    };
    // Where the table cannot be read, the last that came there is taken for ours.
    let found = topmost(&mountpoint).inspect_err(|_| undo(&mountpoint, by_helper))?;
    let Some(found) = found.filter(|found| found.kind == format!("fuse.{}", options.subtype)) else {
        let text = "another mount came over ours at once, which stays below it and answers nobody: unmount both";
        return Err(io::Error::other(format!("{}: {text}", mountpoint.display())));
    };
    let unique = unique_number(&mountpoint);
    let place = Place { mountpoint, device: found.device, unique, by_helper };
    Ok(Mount { device: Some(Arc::new(device)), unmounter: Unmounter::of(place) })
}

/// Takes away a mount of ours of which nothing else is known. There is nobody to tell that it stays.
fn undo(mountpoint: &Path, by_helper: bool) {
    if by_helper {
        let _ = run_helper(Command::new("fusermount3").args(["-u", "-z"]).arg("--").arg(mountpoint));
    } else if let Ok(target) = c_string(mountpoint.as_os_str()) {
        // SAFETY: a zero-terminated path that lives during the call.
        unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) };
    }
}

/// Bytes of a page of memory.
pub fn page_bytes() -> u32 {
    // SAFETY: sysconf only reads.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u32::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(4096)
}

impl Mount {
    /// Takes this mount away again.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// The open /dev/fuse; from now on the session answers for the mount.
    pub(crate) fn into_device(mut self) -> Arc<OwnedFd> {
        self.device.take().expect("a mount has its device until it is served")
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.device.take().is_some() {
            // Nobody is there to tell; a mount that stays answers ENOTCONN, as its device is closed.
            let _ = self.unmounter.detach();
        }
    }
}

impl Unmounter {
    /// Of a mount that another process made.
    pub(crate) fn of(place: Place) -> Unmounter {
        Unmounter { place: Arc::new(place), looking: Arc::default() }
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Where the mount is.
    pub fn mountpoint(&self) -> &Path {
        &self.place.mountpoint
    }

    /// `major:minor` of the mount in mount tables.
    pub fn device(&self) -> &str {
        &self.place.device
    }

    /// Whether our mount is still the topmost at its place.
    pub fn is_mounted(&self) -> io::Result<bool> {
        let place = &self.place;
        let is_device = topmost(&place.mountpoint)?.is_some_and(|found| found.device == place.device);
        let is_unique = || match (place.unique, unique_number(&place.mountpoint)) {
            (Some(ours), Some(found)) => ours == found,
            _ => true,
        };
        Ok(is_device && is_unique())
    }

    /// Unmounts. EBUSY while a file or directory of the mount is in use; nothing to do if it has gone.
    pub fn unmount(&self) -> io::Result<()> {
        // Who looks is answered soon. Not on a disk that hangs: then the mount is in use, and who unmounts hears so.
        let begin = Instant::now();
        let _nobody_looks = loop {
            match self.looking.try_write() {
                Err(TryLockError::WouldBlock) if begin.elapsed() < LOOKING_MAX => std::thread::sleep(LOOKING_INTERVAL),
                result => break result.ok(),
            }
        };
        self.remove(0, &["-u"])
    }

    /// Takes the mount out of the tree now; it ends when the last file in it is closed.
    pub fn detach(&self) -> io::Result<()> {
        self.remove(libc::MNT_DETACH, &["-u", "-z"])
    }

    /// Ends the connection: all calls fail, whoever is in the mount. Without root this needs fusectl to be mounted where
    /// it always is; else it is the same as `detach`.
    pub fn abort(&self) -> io::Result<()> {
        if self.place.by_helper && self.is_mounted()? {
            // Best effort: the file belongs to whoever mounted.
            let _ = self.disconnect();
        }
        self.remove(libc::MNT_FORCE | libc::MNT_DETACH, &["-u", "-z"])
    }

    /// Ends the connection and leaves the mount where it is: all calls fail (ENOTCONN), until somebody takes it away. Without root this
    /// needs fusectl to be mounted where it always is.
    pub fn disconnect(&self) -> io::Result<()> {
        let minor = self.place.device.split_once(':').map_or("", |(_, minor)| minor);
        let end = |connections: &str| std::fs::write(format!("{connections}/{minor}/abort"), "1");
        end("/sys/fs/fuse/connections").or_else(|error| {
            // In containers it is hardly ever there, or not to be written to.
            let own = connections().map_err(|_| error)?;
            end(&format!("/proc/self/fd/{}", own.as_raw_fd()))
        })
    }

    /// Whether an absolute path leads into the file system that is mounted, or through it.
    pub fn has(&self, path: &Path) -> io::Result<bool> {
        for path in path.ancestors() {
            let device = std::fs::metadata(path)?.dev();
            if format!("{}:{}", libc::major(device), libc::minor(device)) == self.place.device {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Has the kernel hand over the pages that were changed through mappings: they would be lost with the connection. By sync(1), for the
    /// reason that `provoke` gives, and `run` says how long that may take; without it by a thread of ours, which may then hang after a crash, and
    /// loses nothing.
    pub fn write_pages_back(&self, run: impl FnOnce(&mut Command) -> io::Result<()>) -> io::Result<()> {
        if !self.is_mounted()? {
            return Ok(());
        }
        let path = &self.place.mountpoint;
        if let Ok(mut sync) = core_program("sync") {
            match run(sync.args(["-f", "--"]).arg(path)) {
                // It could not be started.
                Err(error) if !matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::Other) => {}
                done => return done,
            }
        }
        let root = File::open(path)?;
        // SAFETY: the descriptor is open during the call.
        match unsafe { libc::syncfs(root.as_raw_fd()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Makes the kernel send us a request (STATFS, which it never answers from memory), by stat(1) on this CPU. The thread that it gives
    /// ends when the answer has come, or tells why nobody asks.
    ///
    /// No thread of ours may wait for ourselves. Who waits for an answer that is under way does so even when it is killed, and keeps its
    /// memory until then: ours is mapped to the rings, their entries keep /dev/fuse open, and that keeps the connection, which nobody
    /// would ever answer. A process of its own has none of it, and gets its error when the daemon has died.
    pub(crate) fn provoke(&self) -> io::Result<JoinHandle<io::Result<()>>> {
        let mut stat = core_program("stat")?;
        stat.args(["-f", "-c", "%i", "--"]).arg(&self.place.mountpoint);
        let looking = Arc::clone(&self.looking);
        Builder::new().name("fuse-provoke".to_owned()).spawn(move || {
            let _looks = looking.read();
            let status = stat.status()?;
            if status.success() { Ok(()) } else { Err(io::Error::other(format!("stat(1) ended with {status}"))) }
        })
    }

    fn remove(&self, flags: i32, helper_flags: &[&str]) -> io::Result<()> {
        if !self.is_mounted()? {
            return Ok(());
        }
        let path = &self.place.mountpoint;
        if self.place.by_helper {
            return run_helper(Command::new("fusermount3").args(helper_flags).arg("--").arg(path));
        }
        let target = c_string(path.as_os_str())?;
        // SAFETY: a zero-terminated path that lives during the call.
        match unsafe { libc::umount2(target.as_ptr(), flags | libc::UMOUNT_NOFOLLOW) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// The root of fusectl, which has a directory for each connection, in nobody's tree. Needs root.
fn connections() -> io::Result<OwnedFd> {
    // Of linux/mount.h: `FSOPEN_CLOEXEC` and `FSMOUNT_CLOEXEC`, `FSCONFIG_CMD_CREATE`.
    const CLOEXEC: libc::c_uint = 1;
    const CREATE: libc::c_uint = 6;
    let opened = |result: libc::c_long| match RawFd::try_from(result) {
        // SAFETY: the system call made the descriptor, for us alone.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: a zero-terminated name that lives for ever.
    let context = opened(unsafe { libc::syscall(libc::SYS_fsopen, c"fusectl".as_ptr(), CLOEXEC) })?;
    let nothing = std::ptr::null::<libc::c_char>();
    // SAFETY: the descriptor is open during the call, and this command takes neither name nor value.
    if unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), CREATE, nothing, nothing, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open during the call.
    opened(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), CLOEXEC, 0) })
}

/// A program of the coreutils, wherever the path of this process leads, silent and with nothing of ours.
pub(crate) fn core_program(name: &str) -> io::Result<Command> {
    let places = ["/usr/bin", "/bin", "/run/current-system/sw/bin"];
    let found = places.iter().map(|place| Path::new(place).join(name)).find(|path| path.exists());
    let path = found.ok_or_else(|| {
        let text = format!("{name} (package coreutils) is needed, in {}", places.join(" or "));
        io::Error::new(io::ErrorKind::NotFound, text)
    })?;
    let mut command = Command::new(path);
    command.env_clear().current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}

/// Another descriptor of the same connection, with a queue of answers of its own. With `O_NONBLOCK` among the flags a read waits for nothing.
pub(crate) fn clone_device(device: &OwnedFd, flags: i32) -> io::Result<OwnedFd> {
    let clone = open_device(flags)?;
    let source = u32::try_from(device.as_raw_fd()).map_err(io::Error::other)?;
    // SAFETY: the ioctl reads the 32 bits behind the pointer, which live during the call.
    match unsafe { libc::ioctl(clone.as_raw_fd(), DEVICE_CLONE, &raw const source) } {
        0 => Ok(clone),
        _ => Err(io::Error::last_os_error()),
    }
}

fn open_device(flags: i32) -> io::Result<OwnedFd> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open("/dev/fuse")
        .map(OwnedFd::from)
        .map_err(|error| io::Error::new(error.kind(), format!("/dev/fuse: {error}")))
}

/// Options in the two shapes they are needed in: bits for mount(2), words for the kernel and for fusermount3.
struct Parsed {
    flags: libc::c_ulong,
    /// For both.
    words: Vec<String>,
    /// What the bits say, in words, for fusermount3.
    flag_words: Vec<String>,
}

impl Parsed {
    fn new(options: &MountOptions) -> io::Result<Parsed> {
        let mut parsed = Parsed { flags: 0, words: Vec::new(), flag_words: Vec::new() };
        let own = [
            (options.allow_other, "allow_other"),
            (options.default_permissions, "default_permissions"),
            (options.read_only, "ro"),
        ];
        for (_, word) in own.iter().filter(|(is_set, _)| *is_set) {
            parsed.add(word)?;
        }
        for word in options.extra.iter().flat_map(|words| words.split(',')).filter(|word| !word.is_empty()) {
            parsed.add(word)?;
        }
        Ok(parsed)
    }

    fn add(&mut self, word: &str) -> io::Result<()> {
        if let Some((_, set, clear)) = FLAG_WORDS.iter().find(|(name, ..)| *name == word) {
            self.flags = (self.flags & !clear) | set;
            self.flag_words.push(word.to_owned());
        } else if word == "allow_other" || word == "default_permissions" || word.starts_with("max_read=") {
            if !self.words.iter().any(|known| known == word) {
                self.words.push(word.to_owned());
            }
        } else if !is_for_others(word) {
            let kind = io::ErrorKind::InvalidInput;
            return Err(io::Error::new(kind, format!("unknown mount option \"{word}\"")));
        }
        Ok(())
    }
}

/// Options mount(2) takes as bits: name, bits set, bits cleared.
const FLAG_WORDS: [(&str, libc::c_ulong, libc::c_ulong); 16] = [
    ("ro", libc::MS_RDONLY, 0),
    ("rw", 0, libc::MS_RDONLY),
    ("nosuid", libc::MS_NOSUID, 0),
    ("suid", 0, libc::MS_NOSUID),
    ("nodev", libc::MS_NODEV, 0),
    ("dev", 0, libc::MS_NODEV),
    ("noexec", libc::MS_NOEXEC, 0),
    ("exec", 0, libc::MS_NOEXEC),
    ("noatime", libc::MS_NOATIME, 0),
    ("atime", 0, libc::MS_NOATIME),
    ("nodiratime", libc::MS_NODIRATIME, 0),
    ("relatime", libc::MS_RELATIME, libc::MS_STRICTATIME),
    ("strictatime", libc::MS_STRICTATIME, libc::MS_RELATIME),
    ("sync", libc::MS_SYNCHRONOUS, 0),
    ("async", 0, libc::MS_SYNCHRONOUS),
    ("dirsync", libc::MS_DIRSYNC, 0),
];

/// Options of fstab that mount(8) and systemd act on, not a file system.
fn is_for_others(word: &str) -> bool {
    let known = ["defaults", "auto", "noauto", "nofail", "user", "nouser", "users", "owner", "group", "_netdev"];
    known.contains(&word) || word.starts_with("x-") || word.starts_with("X-") || word.starts_with("comment=")
}

fn mount_directly(mountpoint: &Path, options: &MountOptions, parsed: &Parsed) -> io::Result<OwnedFd> {
    let device = open_device(0)?;
    // SAFETY: both only read.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    let mut words = vec![format!("fd={},rootmode=40000,user_id={uid},group_id={gid}", device.as_raw_fd())];
    words.extend(parsed.words.iter().cloned());
    let source = c_string(OsStr::new(&options.source))?;
    let kind = c_string(OsStr::new(&format!("fuse.{}", options.subtype)))?;
    let target = c_string(mountpoint.as_os_str())?;
    let data = c_string(OsStr::new(&words.join(",")))?;
    // SAFETY: five zero-terminated strings that live during the call.
    let result =
        unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), parsed.flags, data.as_ptr().cast()) };
    match result {
        0 => Ok(device),
        _ => Err(io::Error::last_os_error()),
    }
}

fn mount_by_helper(mountpoint: &Path, options: &MountOptions, parsed: &Parsed) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    // fusermount3 splits at commas and takes a backslash for an escape.
    let escaped = |text: &str| text.replace('\\', "\\\\").replace(',', "\\,");
    let mut words = vec![format!("fsname={}", escaped(&options.source)), format!("subtype={}", options.subtype)];
    words.extend(parsed.words.iter().chain(&parsed.flag_words).cloned());
    let mut command = Command::new("fusermount3");
    command.arg("-o").arg(words.join(",")).arg("--").arg(mountpoint);
    // The socket goes in as descriptor 0, which needs no care about inheritance.
    command.env("_FUSE_COMMFD", "0").stdin(Stdio::from(OwnedFd::from(theirs)));
    run_helper(&mut command)?;
    receive_device(&ours).inspect_err(|_| undo(mountpoint, true))
}

fn run_helper(command: &mut Command) -> io::Result<()> {
    let output = command.output().map_err(|error| {
        io::Error::new(error.kind(), format!("fusermount3 (package fuse3) is needed to mount without root: {error}"))
    })?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

/// The descriptor fusermount3 sent.
fn receive_device(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0_u8; 1];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // Eight-byte words, for the alignment of the control header; one descriptor needs 24 bytes.
    let mut control = [0_u64; 8];
    // SAFETY: all fields of `msghdr` may be zero.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the message points at live buffers of the lengths it states.
    if unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: recvmsg filled the message in; the macro stays inside `msg_controllen`.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    let none = || io::Error::other("fusermount3 sent no descriptor");
    // SAFETY: a header the macro returned lies inside `control`.
    let header = unsafe { header.as_ref() }.ok_or_else(none)?;
    if header.cmsg_level != libc::SOL_SOCKET || header.cmsg_type != libc::SCM_RIGHTS {
        return Err(none());
    }
    // SAFETY: the data of SCM_RIGHTS starts with a descriptor, which is now ours alone.
    unsafe {
        let fd = libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned();
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// One line of the mount table.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    device: String,
    mountpoint: Vec<u8>,
    kind: String,
}

/// The mount one sees at this path: the last one in the table.
fn topmost(mountpoint: &Path) -> io::Result<Option<Line>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    let mut lines = table.rsplit(|byte| *byte == b'\n').filter_map(parse_line);
    Ok(lines.find(|line| line.mountpoint == mountpoint.as_os_str().as_bytes()))
}

/// The unique number of the mount one sees at this path. Asks the kernel alone, not who serves the mount.
fn unique_number(mountpoint: &Path) -> Option<u64> {
    /// `STATX_MNT_ID_UNIQUE`, Linux 6.8.
    const UNIQUE: u32 = 0x4000;
    let path = c_string(mountpoint.as_os_str()).ok()?;
    let flags = libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
    // SAFETY: a `statx` may be all zeros; the call reads the path and fills the structure in.
    let (result, answer) = unsafe {
        let mut answer: libc::statx = std::mem::zeroed();
        (libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, UNIQUE, &raw mut answer), answer)
    };
    (result == 0 && answer.stx_mask & UNIQUE != 0).then_some(answer.stx_mnt_id)
}

/// See proc_pid_mountinfo(5).
fn parse_line(line: &[u8]) -> Option<Line> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = String::from_utf8(fields.nth(2)?.to_vec()).ok()?;
    let mountpoint = unescape(fields.nth(1)?);
    let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
    Some(Line { device, mountpoint, kind: String::from_utf8_lossy(kind).into_owned() })
}

/// Undoes the mount table's octal escapes.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = (*first == b'\\').then(|| std::str::from_utf8(after.get(..3)?).ok()).flatten();
        let byte = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        text.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[3..] } else { after };
    }
    text
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes()).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "zero byte in a name"))
}
