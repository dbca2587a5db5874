//! Folders, processes and mounts that are gone when a test ends, however it ends.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal};

/// How long anything may take that a test waits for.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder of its own for a test; removed at the end.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("hydrafs-it-{}-{count}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("a temporary folder");
        Folder(path.canonicalize().expect("it is there"))
    }

    pub(crate) fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    /// A directory in it.
    pub(crate) fn make(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        fs::create_dir_all(&path).expect("room");
        path
    }

    /// A node in it, with one disk.
    pub(crate) fn node(&self, name: &str) -> PathBuf {
        let node = self.join(name);
        succeed(&[OsStr::new("init"), node.as_os_str(), OsStr::new("--disk"), node.join("disk").as_os_str()]);
        node
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A program that is no daemon.
pub(crate) fn script(folder: &Folder, name: &str, text: &str) -> PathBuf {
    let (path, aside) = (folder.join(name), folder.join(format!("{name}.text")));
    fs::write(&aside, format!("#!/bin/sh\n{text}\n")).expect("room");
    fs::set_permissions(&aside, fs::Permissions::from_mode(0o755)).expect("ours");
    // Written by another process: nobody who is just being started here has it open for writing, and so it can be run.
    assert!(run(Command::new("cp").arg("-p").arg(aside).arg(&path)).status.success());
    path
}

/// Held by who starts a process. Until that runs its program it has what this one has open: files in other tests' mounts too, which
/// then cannot be unmounted.
static STARTING: RwLock<()> = RwLock::new(());

/// Starts a process; returns when it has nothing open of what this one has. All that a test starts is started by this, or by `run`.
///
/// That a file is to be closed when a program begins is not enough: the kernel lets us go on first, and lets go of the file after that.
#[expect(unsafe_code, reason = "close_range(2) in the child")]
pub(crate) fn spawn(command: &mut Command) -> io::Result<Child> {
    let _starting = STARTING.read().unwrap_or_else(PoisonError::into_inner);
    let (mut begins, kept) = io::pipe()?;
    let number = kept.as_raw_fd().cast_unsigned();
    let close_others = move || {
        // SAFETY: closes descriptors of the child alone, in which nothing runs but this and the program that it becomes.
        unsafe {
            libc::close_range(3, number - 1, 0);
            libc::close_range(number + 1, libc::c_uint::MAX, 0);
        }
        Ok(())
    };
    // SAFETY: it makes two system calls and touches no memory.
    let child = unsafe { command.pre_exec(close_others) }.spawn()?;
    drop(kept);
    assert_eq!(begins.read(&mut [0])?, 0, "nobody writes, and the last who could has become its program");
    Ok(child)
}

/// A process with a mount table of its own, which keeps this mount of ours. `None` where that is not allowed.
pub(crate) fn keeper(point: &Path) -> Option<Child> {
    // Other tests' mounts are not to be kept, and are not taken away before it has let go of them.
    let _starting = STARTING.write().unwrap_or_else(PoisonError::into_inner);
    let script = "while read -r _ _ _ _ at rest; do case $at,$rest in $0,*) ;; *fuse.hydrafs*) umount -i -l $at;; esac; done \
                  < /proc/self/mountinfo; echo; read line";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]).arg(point);
    let mut keeper = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("util-linux is here");
    let mut line = [0];
    let is_there = keeper.stdout.as_mut().expect("a pipe").read_exact(&mut line).is_ok();
    if !is_there {
        skipped::because("no mount namespace can be made here");
        keeper.wait().expect("our child");
    }
    is_there.then_some(keeper)
}

/// Runs a program to its end.
pub(crate) fn run(command: &mut Command) -> Output {
    let child = spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    child.and_then(Child::wait_with_output).expect("the program starts")
}

/// Runs hydrafs.
pub(crate) fn hydrafs<A: AsRef<OsStr>>(arguments: &[A]) -> Output {
    run(Command::new(env!("CARGO_BIN_EXE_hydrafs")).args(arguments))
}

/// Runs hydrafs, which must succeed. Gives its output.
#[track_caller]
pub(crate) fn succeed<A: AsRef<OsStr>>(arguments: &[A]) -> String {
    let output = hydrafs(arguments);
    let shown: Vec<_> = arguments.iter().map(|argument| argument.as_ref().display().to_string()).collect();
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output.status.success(), "hydrafs {}: {said}{}", shown.join(" "), String::from_utf8_lossy(&output.stderr));
    said
}

/// Everything below a folder that a command could have changed: names, kinds, sizes, modes, content. Not what a lock or a log leaves.
pub(crate) fn content(folder: &Path) -> BTreeMap<PathBuf, (u32, u64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(&at).into_iter().flatten().flatten() {
            let path = entry.path();
            let metadata = fs::symlink_metadata(&path).expect("it is there");
            let name = entry.file_name();
            if name == "lock" || name == "hydrafs.log" {
                continue;
            }
            let bytes = if metadata.is_file() { fs::read(&path).expect("readable") } else { Vec::new() };
            if metadata.is_dir() {
                folders.push(path.clone());
            }
            found.insert(path, (metadata.mode(), metadata.len(), bytes));
        }
    }
    found
}

/// An argument.
pub(crate) fn os(text: &str) -> &OsStr {
    OsStr::new(text)
}

/// Runs hydrafs, which must fail; gives what it says.
#[track_caller]
pub(crate) fn refusal(arguments: &[&OsStr]) -> String {
    let output = hydrafs(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    said
}

/// Bytes that no compressor shrinks.
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + size_of::<u64>());
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// A tmpfs, to have disks that are small or cannot be written. `None` where we may not mount.
pub(crate) struct Tmpfs(pub(crate) PathBuf);

impl Tmpfs {
    pub(crate) fn mount(at: &Path, bytes: u64) -> Option<Tmpfs> {
        let options = std::ffi::CString::new(format!("size={bytes},mode=700")).expect("no zero");
        rustix::mount::mount("hydrafs-test", at, "tmpfs", MountFlags::empty(), options.as_c_str()).ok()?;
        Some(Tmpfs(at.to_owned()))
    }

    pub(crate) fn make_read_only(&self) {
        rustix::mount::mount_remount(&self.0, MountFlags::RDONLY, "").expect("our own mount");
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// A mounted node: unmounted and its daemon ended when it is dropped.
pub(crate) struct Mounted {
    pub(crate) node: PathBuf,
    pub(crate) point: PathBuf,
    pub(crate) pid: i32,
    daemon: OwnedFd,
}

impl Mounted {
    /// Mounts with these settings from the environment; `None` where this machine cannot mount.
    pub(crate) fn start(node: &Path, point: &Path, settings: &[(&str, &str)]) -> Option<Mounted> {
        if fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err() {
            skipped::because("/dev/fuse cannot be opened here");
            return None;
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_hydrafs"));
        command.arg("mount").arg(node).arg(point).envs(settings.iter().copied());
        let output = run(&mut command);
        assert!(output.status.success(), "mount: {}", String::from_utf8_lossy(&output.stderr));
        Some(Mounted::running(node, point))
    }

    /// The mount that a command of ours has made.
    pub(crate) fn running(node: &Path, point: &Path) -> Mounted {
        let (pid, daemon) = daemon_of(node);
        Mounted { node: node.to_owned(), point: point.to_owned(), pid, daemon }
    }

    /// Has the daemon go on in a new process; returns when the former has ended.
    pub(crate) fn restart(&mut self) {
        succeed(&[OsStr::new("restart"), self.node.as_os_str()]);
        self.wait();
        let former = self.pid;
        self.follow();
        assert_ne!(self.pid, former);
    }

    /// Mounts again where the daemon died.
    pub(crate) fn mend(&mut self) {
        succeed(&[OsStr::new("mount"), self.node.as_os_str(), self.point.as_os_str()]);
        self.follow();
    }

    /// Another process is the daemon now.
    pub(crate) fn follow(&mut self) {
        (self.pid, self.daemon) = daemon_of(&self.node);
    }

    /// Ends it as a user would.
    pub(crate) fn umount(self) {
        // Nobody else's process has a file of this mount any more.
        drop(STARTING.write());
        let umount = hydrafs(&[OsStr::new("umount"), self.point.as_os_str()]);
        // It is silent, unless it gives the wait up.
        assert!(umount.status.success() && self.has_ended(), "umount returns when the daemon has ended: {umount:?}");
    }

    /// Takes the mount away as root's plain `umount` does: the daemon ends some time later.
    pub(crate) fn take_away(&self) {
        drop(STARTING.write());
        rustix::mount::unmount(&self.point, UnmountFlags::empty()).expect("nobody uses it");
    }

    /// Ends the daemon without warning, as a crash would, and waits for its end.
    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
        self.wait();
    }

    /// The most memory that the daemon had at a time, in bytes.
    pub(crate) fn most_memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).expect("our own daemon");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux has it");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::pidfd_send_signal(&self.daemon, signal).expect("our own daemon");
    }

    /// What the daemon has open of /dev/fuse, for this process too.
    pub(crate) fn connections(&self) -> Vec<OwnedFd> {
        let open = fs::read_dir(format!("/proc/{}/fd", self.pid)).expect("our own daemon").flatten();
        let ours =
            open.filter(|entry| fs::read_link(entry.path()).is_ok_and(|target| target == Path::new("/dev/fuse")));
        let number = |entry: fs::DirEntry| entry.file_name().to_str().and_then(|name| name.parse().ok());
        let take = |fd| rustix::process::pidfd_getfd(&self.daemon, fd, PidfdGetfdFlags::empty());
        ours.filter_map(number).map(|fd| take(fd).expect("our own daemon")).collect()
    }

    /// Waits for the daemon's end.
    #[track_caller]
    pub(crate) fn wait(&self) {
        wait_for(&self.daemon, &self.point);
    }

    fn has_ended(&self) -> bool {
        has_ended(&self.daemon, Duration::ZERO)
    }
}

/// A shared mapping of the beginning of a file.
pub(crate) struct Mapping {
    at: *mut u8,
    bytes: usize,
}

#[expect(unsafe_code, reason = "mmap(2)")]
impl Mapping {
    pub(crate) fn new(file: &File, bytes: usize) -> Mapping {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let file = std::os::fd::AsRawFd::as_raw_fd(file);
        // SAFETY: a new mapping at a place of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, file, 0) };
        assert_ne!(at, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        Mapping { at: at.cast(), bytes }
    }

    pub(crate) fn write(&self, at: usize, byte: u8) {
        assert!(at < self.bytes);
        // SAFETY: within the mapping, which lives as long as `self`.
        unsafe { self.at.add(at).write_volatile(byte) };
    }

    pub(crate) fn read(&self, at: usize) -> u8 {
        assert!(at < self.bytes);
        // SAFETY: as above.
        unsafe { self.at.add(at).read_volatile() }
    }
}

#[expect(unsafe_code, reason = "munmap(2)")]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nothing borrows from it.
        unsafe { libc::munmap(self.at.cast(), self.bytes) };
    }
}

/// Waits for the end of a process. One that hangs on a mount fails the test: the mount is ended by force.
#[track_caller]
pub(crate) fn wait_for(process: &OwnedFd, point: &Path) {
    if !has_ended(process, PATIENCE) {
        let _ = rustix::mount::unmount(point, UnmountFlags::FORCE | UnmountFlags::DETACH);
        panic!("the process does not end");
    }
}

fn has_ended(process: &OwnedFd, patience: Duration) -> bool {
    let mut waited = [rustix::event::PollFd::new(process, rustix::event::PollFlags::IN)];
    let patience = rustix::event::Timespec::try_from(patience).expect("short");
    rustix::event::poll(&mut waited, Some(&patience)).expect("a pidfd can be waited for") == 1
}

/// What `work` gives. What never comes fails the test instead of hanging it.
#[track_caller]
pub(crate) fn within<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    within_or(what, || {}, work)
}

/// The same; `rescue` is done before the test fails.
#[track_caller]
pub(crate) fn within_or<T: Send + 'static>(
    what: &str,
    rescue: impl FnOnce(),
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || send.send(work()));
    receive.recv_timeout(PATIENCE).unwrap_or_else(|_| {
        rescue();
        panic!("waited in vain: {what}")
    })
}

/// Whether something is mounted there, dead or alive.
pub(crate) fn is_mounted(point: &Path) -> bool {
    !mounts_at(point).is_empty()
}

/// What the mount table says of a place: a line for each mount.
pub(crate) fn mounts_at(point: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("a mount table");
    let is_there = |line: &&str| line.split(' ').nth(4).is_some_and(|at| Path::new(at) == point);
    table.lines().filter(is_there).map(str::to_owned).collect()
}

/// The process of a node's daemon.
fn daemon_of(node: &Path) -> (i32, OwnedFd) {
    let status = succeed(&[OsStr::new("status"), OsStr::new("--json"), node.as_os_str()]);
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    let pid = i32::try_from(status["process"].as_i64().expect("a number")).expect("a process id");
    let daemon = rustix::process::pidfd_open(Pid::from_raw(pid).expect("not 0"), PidfdFlags::empty());
    (pid, daemon.expect("it runs"))
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ = hydrafs(&[OsStr::new("umount"), OsStr::new("--lazy"), self.point.as_os_str()]);
        }
        if !self.has_ended() {
            let _ = rustix::process::pidfd_send_signal(&self.daemon, Signal::KILL);
            self.wait();
        }
        let _ = rustix::mount::unmount(&self.point, UnmountFlags::DETACH);
    }
}
