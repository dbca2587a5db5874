//! A node under test: its folder, its disks and its mount.
//!
//! Whatever happens, dropping a [`Volume`] takes its mount away and ends its daemon, by their own ids: asked first, then by force.
//! What a run left that was itself killed is taken away by the next one ([`clear`]).

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;

use crate::machine;
use crate::program::Program;

/// How long a command of `hydrafs` may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A node, mounted or not.
#[derive(Debug)]
pub(crate) struct Volume {
    binary: PathBuf,
    pub(crate) node: PathBuf,
    pub(crate) point: PathBuf,
    settings: Vec<(String, String)>,
    daemon: Option<Daemon>,
    /// A mount point to be removed.
    short: Option<PathBuf>,
}

/// A running daemon. The descriptor names the process for good; its number may be given to another one day.
#[derive(Debug)]
struct Daemon {
    pid: i32,
    process: OwnedFd,
}

impl Volume {
    /// A fresh node `root/node` on two disks `root/disk-*`, to be mounted at `root/mnt`. What `root` held is removed.
    pub(crate) fn fresh(binary: &Path, root: &Path) -> Result<Volume> {
        clear(root)?;
        Volume::over(binary, root, &[root.join("disk-0"), root.join("disk-1")])
    }

    /// A node `root/node` on these disks, to be mounted at `root/mnt`; made if it is not there.
    pub(crate) fn over(binary: &Path, root: &Path, disks: &[PathBuf]) -> Result<Volume> {
        fs::create_dir_all(root.join("mnt")).with_context(|| format!("cannot make {}", root.display()))?;
        let root = root.canonicalize()?;
        let (node, point) = (root.join("node"), root.join("mnt"));
        let volume = Volume { binary: binary.to_owned(), node, point, settings: Vec::new(), daemon: None, short: None };
        if !volume.node.exists() {
            let init = volume.program("init").arg(&volume.node);
            disks.iter().fold(init, |init, disk| init.arg("--disk").arg(disk)).output()?;
        }
        Ok(volume)
    }

    /// Mounts at a path of few letters from now on: the address of a socket has 108 bytes, and suites make long names. The
    /// directory goes when this is dropped.
    pub(crate) fn mount_short(&mut self) -> Result<()> {
        let point = std::env::temp_dir().canonicalize()?.join(format!("hydrafs-{}", std::process::id()));
        fs::create_dir_all(&point).with_context(|| format!("cannot make {}", point.display()))?;
        self.point.clone_from(&point);
        self.short = Some(point);
        Ok(())
    }

    /// Sets `section.key` for the mounts to come.
    pub(crate) fn set(&mut self, section: &str, key: &str, value: &str) {
        let name = format!("HYDRAFS_{}_{}", section.to_uppercase(), key.to_uppercase());
        self.settings.retain(|(known, _)| *known != name);
        self.settings.push((name, value.to_owned()));
    }

    fn program(&self, verb: &str) -> Program {
        let program = Program::new(&self.binary).arg(verb).limit(PATIENCE);
        self.settings.iter().fold(program, |program, (name, value)| program.env(name, value))
    }

    /// Mounts; returns when the mount is usable.
    pub(crate) fn mount(&mut self) -> Result<()> {
        self.program("mount").arg(&self.node).arg(&self.point).output()?;
        self.adopt()
    }

    /// Mounts, and looks at a name in it: how long until it was answered.
    pub(crate) fn mount_until_stat(&mut self, name: &str) -> Result<Duration> {
        let started = Instant::now();
        self.program("mount").arg(&self.node).arg(&self.point).output()?;
        let path = self.point.join(name);
        fs::symlink_metadata(&path).with_context(|| format!("cannot look at {}", path.display()))?;
        let time = started.elapsed();
        self.adopt()?;
        Ok(time)
    }

    /// The daemon's process, while it runs.
    pub(crate) fn process(&self) -> Option<i32> {
        self.daemon.as_ref().map(|daemon| daemon.pid)
    }

    /// Takes over the daemon that runs.
    pub(crate) fn adopt(&mut self) -> Result<()> {
        let status = self.status()?;
        let pid = status["process"].as_i64().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let pid = pid.context("`hydrafs status` names no process")?;
        let process = pidfd_open(pid, PidfdFlags::empty()).context("cannot name the daemon's process")?;
        self.daemon = Some(Daemon { pid: pid.as_raw_nonzero().get(), process });
        Ok(())
    }

    /// Gives the mount up as it is: it stays when this is dropped.
    pub(crate) fn leave(&mut self) {
        self.daemon = None;
    }

    /// Unmounts cleanly, and waits for the daemon's end.
    pub(crate) fn unmount(&mut self) -> Result<()> {
        self.program("umount").arg(&self.point).output()?;
        if let Some(daemon) = self.daemon.take()
            && !daemon.ended_within(Duration::from_secs(30))
        {
            let pid = daemon.pid;
            self.daemon = Some(daemon);
            bail!("`hydrafs umount` returned, and the daemon (process {pid}) still runs 30 s later");
        }
        Ok(())
    }

    /// Has a signal sent to the daemon.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let daemon = self.daemon.as_ref().context("no daemon runs")?;
        pidfd_send_signal(&daemon.process, signal).context("cannot send the daemon a signal")
    }

    /// Waits until the daemon, whose mount was taken from it, has ended.
    pub(crate) fn has_ended(&mut self, limit: Duration) -> Result<()> {
        let daemon = self.daemon.take().context("no daemon runs")?;
        if !daemon.ended_within(limit) {
            let pid = daemon.pid;
            self.daemon = Some(daemon);
            bail!("the daemon (process {pid}) lost its mount and still runs {} s later", limit.as_secs());
        }
        Ok(())
    }

    /// Kills the daemon as a crash does, and takes the dead mount away.
    pub(crate) fn kill(&mut self) -> Result<()> {
        let daemon = self.daemon.take().context("no daemon runs that could be killed")?;
        daemon.kill();
        if !daemon.ended_within(Duration::from_secs(30)) {
            let pid = daemon.pid;
            self.daemon = Some(daemon);
            bail!("the daemon (process {pid}) does not die of SIGKILL");
        }
        take_away(&self.point)
    }

    /// Removes what lies at the mount point while nothing is mounted there.
    pub(crate) fn clear_point(&self) -> Result<()> {
        if let Some(mounted) = machine::mounted_at(&self.point)? {
            bail!("{} is still mounted at {}", mounted.source.display(), self.point.display());
        }
        for name in crate::tree::names(&self.point)? {
            let path = self.point.join(name);
            fs::remove_dir_all(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        Ok(())
    }

    /// Whether the daemon runs.
    pub(crate) fn is_alive(&self) -> bool {
        self.daemon.as_ref().is_some_and(|daemon| !daemon.ended_within(Duration::ZERO))
    }

    pub(crate) fn status(&self) -> Result<Value> {
        let text = self.program("status").arg("--json").arg(&self.node).output()?;
        serde_json::from_str(&text).context("`hydrafs status --json` printed no JSON")
    }

    /// Everything written is local when it returns.
    pub(crate) fn sync(&self) -> Result<()> {
        self.program("sync").arg(&self.point).output().map(drop)
    }

    /// Has the daemon measure what its disks take for requests.
    pub(crate) fn measure_disks(&self) -> Result<()> {
        self.program("disk").arg("measure").arg(&self.node).output().map(drop)
    }

    /// Clones a directory of the mount.
    pub(crate) fn clone_tree(&self, from: &Path, to: &Path) -> Result<()> {
        self.program("clone").arg(from).arg(to).output().map(drop)
    }

    /// Takes a snapshot of a directory in the mount.
    pub(crate) fn snapshot(&self, name: &str, of: &Path) -> Result<()> {
        self.program("snapshot").arg("create").arg(&self.node).args([name, "--of"]).arg(of).output().map(drop)
    }

    /// `hydrafs gc` or `hydrafs scrub`.
    pub(crate) fn maintain(&self, verb: &str) -> Program {
        self.program(verb).arg(&self.node).limit(PATIENCE * 10)
    }

    /// Checks the node; what it found wrong is the error.
    pub(crate) fn fsck(&self, deep: bool) -> Result<Value> {
        let program = self.program("fsck").arg("--json").args(deep.then_some("--deep")).arg(&self.node);
        let (status, output, errors) = program.limit(PATIENCE * 5).outcome()?;
        let report: Value = serde_json::from_str(&output)
            .map_err(|_| anyhow::anyhow!("`hydrafs fsck` ended with {status}: {}", errors.trim()))?;
        if report["clean"] != Value::Bool(true) || !status.success() {
            let problems = report["problems"].as_array().map(Vec::as_slice).unwrap_or_default();
            let first: Vec<String> = problems.iter().take(3).map(Value::to_string).collect();
            bail!("fsck found {} problems: {}", problems.len(), first.join("; "));
        }
        Ok(report)
    }

    /// The transport that the mount uses.
    pub(crate) fn transport(&self) -> Result<String> {
        Ok(self.status()?["mount"]["transport"].as_str().unwrap_or("none").to_owned())
    }

    /// Kills the daemon unless the guard is dropped in time: whoever hangs in the mount gets an error.
    pub(crate) fn watchdog(&self, limit: Duration) -> Result<Watchdog> {
        let daemon = self.daemon.as_ref().context("no daemon runs")?;
        let process = daemon.process.try_clone()?;
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let expired = stopped.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
            if expired {
                eprintln!("xtask: the mount did not answer within {} s; killing its daemon", limit.as_secs());
                let _ = pidfd_send_signal(&process, Signal::KILL);
            }
        });
        Ok(Watchdog { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.end();
        if let Some(point) = &self.short {
            // Not empty if something is still mounted there, and then it was said.
            let _ = fs::remove_dir(point);
        }
    }
}

impl Volume {
    fn end(&mut self) {
        let Some(daemon) = &self.daemon else { return };
        // Ctrl-C ends programs of ours too; then the daemon is asked by a signal.
        let asked = daemon.signal(Signal::TERM);
        if !asked || !daemon.ended_within(Duration::from_secs(20)) {
            eprintln!("xtask: the daemon (process {}) does not end; killing it", daemon.pid);
            daemon.kill();
            daemon.ended_within(Duration::from_secs(10));
        }
        if let Err(error) = take_away(&self.point) {
            eprintln!("xtask: {error:#}");
        }
    }
}

impl Daemon {
    fn signal(&self, signal: Signal) -> bool {
        pidfd_send_signal(&self.process, signal).is_ok()
    }

    fn kill(&self) {
        // It fails only for a process that has ended.
        self.signal(Signal::KILL);
    }

    fn ended_within(&self, patience: Duration) -> bool {
        let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
        // The descriptor can be read from when the process has ended.
        let mut descriptors = [PollFd::new(&self.process, PollFlags::IN)];
        poll(&mut descriptors, Some(&timeout)).is_ok_and(|ready| ready > 0)
    }
}

/// Ends when dropped.
#[derive(Debug)]
pub(crate) struct Watchdog {
    stop: Option<std::sync::mpsc::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// Takes away what is mounted at `point`, all layers of it; nothing is fine.
pub(crate) fn take_away(point: &Path) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while machine::mounted_at(point)?.is_some() {
        // Lazily: programs of ours may still be about to leave it.
        let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        let failed = match rustix::mount::unmount(point, flags) {
            Ok(()) => continue,
            Err(_) if !machine::is_root() => {
                Program::new("fusermount3").args(["-u", "-z", "--"]).arg(point).output().err()
            }
            Err(error) => Some(error.into()),
        };
        if let Some(error) = failed
            && Instant::now() > deadline
        {
            return Err(error
                .context(format!("cannot take away the mount at {0}; do it with `umount -l {0}`", point.display())));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Takes away what is mounted below a folder of ours, the last mounted first, and with that the daemons.
pub(crate) fn take_away_below(root: &Path) -> Result<()> {
    let Ok(root) = root.canonicalize() else { return Ok(()) };
    // By point or by node: the point may be a short one elsewhere.
    let is_ours = |mount: &&machine::Mounted| mount.point.starts_with(&root) || mount.source.starts_with(&root);
    for mount in machine::mounts()?.iter().rev().filter(is_ours) {
        println!("   taking away what an earlier run left at {}", mount.point.display());
        take_away(&mount.point)?;
    }
    Ok(())
}

/// Removes a folder of ours with all that is in it. Mounts below it are taken away first, and their daemons with them.
pub(crate) fn clear(root: &Path) -> Result<()> {
    let Ok(root) = root.canonicalize() else { return Ok(()) };
    take_away_below(&root)?;
    // A daemon whose mount was taken away writes its last things and ends.
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match fs::remove_dir_all(&root) {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("cannot remove {}", root.display()));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

/// Whether FUSE file systems can be mounted here; what to do, if not.
pub(crate) fn can_mount() -> Result<()> {
    let device = Path::new("/dev/fuse");
    if let Err(error) = fs::File::options().read(true).write(true).open(device) {
        let mend = match error.kind() {
            std::io::ErrorKind::NotFound => "as root: modprobe fuse; in a container pass it in (--device /dev/fuse)",
            _ => "run as root, or as root: chmod 666 /dev/fuse",
        };
        bail!("cannot mount: /dev/fuse: {error}; {mend}");
    }
    if !machine::is_root() && !crate::tools::has("fusermount3") {
        bail!("cannot mount: fusermount3 is not installed; `scripts/setup run` does it");
    }
    Ok(())
}
