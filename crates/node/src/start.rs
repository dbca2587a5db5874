//! What a daemon and the commands need to start: a node opened for one command's work, a mount made and taken away.
//!
//! Not here: the daemon's life (`life`), what is answered (`front`), going to the background (`daemon`).

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use file::FileSystem;
use fuse::{Negotiated, Session, Unmounter};
use platform::Platform;
use platform::real::block_on;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;

use crate::config::{Config, Transport};
use crate::control::client::Daemon;
use crate::control::server::{Brought, Handler};
use crate::control::wire::Request;
use crate::daemon;
use crate::failure::Failure;
use crate::front::{Control, Kernel};
use crate::node_folder::{Lock, NodeFolder, Stage};
use crate::{mounts, opening};

/// Processes that a message names when a mount is in use.
pub(crate) const USERS_MAX: usize = 5;

/// How long programs that keep a mount from being taken away may take to have their pages written.
const SYNC_PATIENCE: Duration = Duration::from_secs(60);

/// How long unmounting waits for who looks at the mount and has nothing open in it, and how often it tries.
const LOOKING_MAX: Duration = Duration::from_secs(2);
const LOOKING_INTERVAL: Duration = Duration::from_millis(5);

/// How to mount, beyond the settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MountOptions {
    pub(crate) read_only: bool,
    pub(crate) no_set_id: bool,
    pub(crate) no_devices: bool,
    pub(crate) no_execute: bool,
    /// Reading moves no access times, whatever the setting.
    pub(crate) no_access_times: bool,
    /// Overrides the setting.
    pub(crate) allow_other: Option<bool>,
    /// Sets the options of the mount that is there.
    pub(crate) remount: bool,
    /// Not of the mount: the node goes without disks that are missing.
    pub(crate) degraded: bool,
}

/// Asks the node's daemon; where none runs, opens the node, does what is asked, and closes it.
pub(crate) fn ask(folder: &NodeFolder, request: Request, progress: impl FnMut(&str)) -> Result<Value, Failure> {
    let access = Access::open(folder, None)?;
    let answer = access.ask(request, progress);
    let closed = access.close();
    answer.and_then(|answer| closed.map(|()| answer))
}

/// Somebody who answers for a node: its daemon, or this process, which has opened it.
pub(crate) struct Access<'a> {
    folder: &'a NodeFolder,
    own: Option<(Control, Arc<FileSystem>, Lock)>,
    /// What was given up to open the node.
    pub(crate) given_up: Option<String>,
    /// What was put right to open the node, in words.
    pub(crate) mended: Vec<String>,
}

impl<'a> Access<'a> {
    /// Reaches the daemon, or opens the node; with `gives_up`, which hears what is lost before it is given up, also one whose journal lost
    /// what was durable.
    pub(crate) fn open(folder: &'a NodeFolder, gives_up: Option<&dyn Fn(&str)>) -> Result<Access<'a>, Failure> {
        if Daemon::reach(&folder.path)?.is_some() {
            return Ok(Access { folder, own: None, given_up: None, mended: Vec::new() });
        }
        daemon::log_of_tool();
        let config = folder.config()?;
        let lock = folder.lock_when_ended(|text| tracing::warn!("{text}"))?;
        // A mount whose daemon has died is still that daemon's.
        let mount = lock.noted_mount();
        lock.describe(&format!("a command (process {})", std::process::id()), Stage::Working, mount.as_deref());
        let platform = platform::real::platform();
        let (system, report, given_up) = match gives_up {
            Some(plan) => opening::open_with_loss(folder, &config, &platform, plan)?,
            None => opening::open(folder, &config, &platform, &[]).map(|(system, report)| (system, report, None))?,
        };
        opening::log(&report);
        let mended = opening::mended(&report);
        Ok(Access { folder, own: Some((Control::new(folder, &platform, &system), system, lock)), given_up, mended })
    }

    pub(crate) fn ask(&self, request: Request, progress: impl FnMut(&str)) -> Result<Value, Failure> {
        self.ask_with(request, None, progress)
    }

    fn ask_with(
        &self,
        request: Request,
        descriptor: Option<OwnedFd>,
        mut progress: impl FnMut(&str),
    ) -> Result<Value, Failure> {
        match &self.own {
            Some((control, ..)) => control.handle(request, Brought::descriptor(descriptor), &mut progress),
            None => Daemon::find(&self.folder.path)?.ask_with(&request, descriptor, progress),
        }
    }

    /// Closes what was opened.
    pub(crate) fn close(self) -> Result<(), Failure> {
        let Some((_, system, _lock)) = &self.own else { return Ok(()) };
        block_on(system.close()).map_err(|error| opening::explain("cannot close the node", self.folder, &error))
    }
}

/// Asks for a stream that goes into `out`. A daemon writes it into a pipe of ours: when this process ends it hears of it.
pub(crate) fn send_to(
    access: &Access<'_>,
    request: Request,
    out: OwnedFd,
    progress: impl FnMut(&str),
) -> Result<Value, Failure> {
    if access.own.is_some() {
        return access.ask_with(request, Some(out), progress);
    }
    let cannot = |error: io::Error| Failure::new("cannot write the stream", error);
    let (mut ours, theirs) = io::pipe().map_err(cannot)?;
    let copy = move || io::copy(&mut ours, &mut File::from(out));
    let copier = std::thread::Builder::new().name("stream".to_owned()).spawn(copy).map_err(cannot)?;
    let answer = access.ask_with(request, Some(theirs.into()), progress);
    let copied = copier.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    match copied {
        // What it met explains why the daemon could not go on.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(cannot(error)),
        _ => answer,
    }
}

/// Asks to read a stream out of `source`, likewise.
pub(crate) fn receive_from(
    access: &Access<'_>,
    request: Request,
    source: OwnedFd,
    progress: impl FnMut(&str),
) -> Result<Value, Failure> {
    if access.own.is_some() {
        return access.ask_with(request, Some(source), progress);
    }
    let cannot = |error: io::Error| Failure::new("cannot read the stream", error);
    let (theirs, mut ours) = io::pipe().map_err(cannot)?;
    // Not waited for: it may wait for more where the daemon has enough. What it cannot read ends the pipe, and so the stream.
    let copy = move || drop(io::copy(&mut File::from(source), &mut ours));
    std::thread::Builder::new().name("stream".to_owned()).spawn(copy).map_err(cannot)?;
    access.ask_with(request, Some(theirs.into()), progress)
}

/// How a mount is taken away by who does not serve it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// If nobody uses it.
    Gently,
    /// Even if it is in use.
    Detached,
    /// Its daemon has died. Who still waits for an answer of it gets an error: nothing else ends such a call where something has kept
    /// the connection open.
    Abandoned,
}

/// Takes a mount away that this process does not serve. Of ours only: the caller looked. Nothing here waits for its daemon.
pub(crate) fn unmount(point: &Path, how: How) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        let flags = match how {
            How::Gently => UnmountFlags::empty(),
            How::Detached => UnmountFlags::DETACH,
            How::Abandoned => UnmountFlags::DETACH | UnmountFlags::FORCE,
        };
        return Ok(rustix::mount::unmount(point, flags | UnmountFlags::NOFOLLOW)?);
    }
    // It forces nothing: the connection ends when the last who has it open lets go of it.
    let flags: &[&str] = if how == How::Gently { &["-u"] } else { &["-u", "-z"] };
    let output = Command::new("fusermount3").args(flags).arg("--").arg(point).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// Mounts a file system. What it gives serves already.
pub(crate) fn mount(
    folder: &NodeFolder,
    config: &Config,
    (platform, system): (&Platform, &Arc<FileSystem>),
    (point, options): (&Path, MountOptions),
) -> Result<(Session, Arc<Kernel>), Failure> {
    let cannot = |error: io::Error| {
        let failure = Failure::new("cannot mount", &error).at(point);
        failure.mend("`hydrafs doctor` says what this machine lacks; nothing was changed")
    };
    let source = folder.path.to_str().ok_or_else(|| {
        Failure::new("cannot mount", "the node's path is not UTF-8").at(&folder.path).mend("rename its folder")
    })?;
    let words = [
        (options.no_set_id, "nosuid"),
        (options.no_devices, "nodev"),
        (options.no_execute, "noexec"),
        // The mount table keeps it for a process that takes over.
        (!config.access_times, "noatime"),
    ];
    let options = fuse::MountOptions {
        source: source.to_owned(),
        subtype: "hydrafs".to_owned(),
        allow_other: options.allow_other.unwrap_or_else(|| config.allow_other && may_allow_other()),
        default_permissions: true,
        read_only: options.read_only,
        extra: words.iter().filter(|(is_set, _)| *is_set).map(|(_, word)| (*word).to_owned()).collect(),
    };
    let kernel = Arc::new(Kernel::new(Arc::clone(system), platform, config.cache_time));
    let mount = fuse::mount(point, &options).map_err(cannot)?;
    let session = Session::start(mount, Arc::clone(&kernel), &settings(config), |notifier| kernel.serves(notifier));
    let session = session.map_err(cannot)?;
    // Without it reading is slower, and that is all.
    if let Err(error) = set_read_ahead(point, config.read_ahead_bytes) {
        tracing::info!("the kernel reads ahead as it does by itself: {error}");
    }
    Ok((session, kernel))
}

/// Has the kernel read ahead so far in our mount at `point`. What the protocol agrees on can only be less than what the kernel has set
/// for the mount by itself (`process_init_reply` in fs/fuse/inode.c), and that is 128 KiB.
#[expect(clippy::disallowed_methods, reason = "sysfs is the outside")]
fn set_read_ahead(point: &Path, bytes: u64) -> Result<(), Failure> {
    let mounts = mounts::read()?;
    let cannot = |why: String| Failure::new("cannot set how far the kernel reads ahead", why).at(point);
    let mount = mounts::at(&mounts, point).filter(|mount| mount.is_hydrafs());
    let (major, minor) = mount.ok_or_else(|| cannot("it is no mount of ours".to_owned()))?.device;
    let file = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    std::fs::write(&file, (bytes >> 10).to_string()).map_err(|error| cannot(format!("{file}: {error}")))
}

/// Whether fusermount3 lets this user open a mount to others. The setting is a wish: without this right the mount is for its
/// owner alone, which `hydrafs doctor` says too.
fn may_allow_other() -> bool {
    let allows = |text: String| text.lines().any(|line| line.trim() == "user_allow_other");
    let may = rustix::process::geteuid().is_root() || std::fs::read_to_string("/etc/fuse.conf").is_ok_and(allows);
    if !may {
        tracing::warn!("only you can use the mount: user_allow_other is not set in /etc/fuse.conf");
    }
    may
}

/// Gives the mount at `point` other options. Access times are kept as before until the daemon is restarted.
pub(crate) fn remount(folder: &NodeFolder, point: &Path, options: MountOptions) -> Result<(), Failure> {
    let cannot = |why: String| Failure::new("cannot remount", why).at(point);
    let point = point.canonicalize().map_err(|error| cannot(error.to_string()))?;
    let table = mounts::read()?;
    let mount = mounts::at(&table, &point).filter(|mount| mount.is_hydrafs() && mount.source == folder.path);
    let Some(mount) = mount else {
        return Err(cannot(format!("{} is not mounted there", folder.path.display()))
            .mend("see the mounts of HydraFS with `findmnt -t fuse.hydrafs`"));
    };
    let flags = [
        (options.read_only, MountFlags::RDONLY),
        (options.no_set_id, MountFlags::NOSUID),
        (options.no_devices, MountFlags::NODEV),
        (options.no_execute, MountFlags::NOEXEC),
        (options.no_access_times, MountFlags::NOATIME),
    ];
    let flags = flags.iter().filter(|(is_set, _)| *is_set).fold(MountFlags::empty(), |all, (_, flag)| all | *flag);
    rustix::mount::mount_remount(&mount.point, flags, "").map_err(|error| match error {
        rustix::io::Errno::BUSY => {
            cannot("files in it are open for writing".to_owned()).mend("end who writes; nothing was changed")
        }
        error => cannot(error.to_string()),
    })
}

/// Unmounts; with `detach` even while it is in use, and whoever uses it gets errors from then on.
#[expect(clippy::disallowed_methods, reason = "waits for other processes")]
pub(crate) fn take_away(unmounter: &Unmounter, detach: bool) -> Result<(), Failure> {
    let point = unmounter.mountpoint();
    let cannot = |why: String| Failure::new("cannot unmount", why).at(point);
    // What is flushed afterwards is lost where the service manager does not wait for it.
    let extension_us = u32::try_from((SYNC_PATIENCE + Duration::from_secs(30)).as_micros()).unwrap_or(u32::MAX);
    let is_waited_for = || daemon::busy("taking the mount away", extension_us);
    // Before the connection ends with them. And so that the kernel has hardly anything to ask us for while a thread of ours unmounts:
    // killed then, it would wait for an answer of its own, for ever.
    is_waited_for();
    if let Err(error) = unmounter.write_pages_back(|sync| daemon::run_within(sync, SYNC_PATIENCE)) {
        tracing::warn!("pages changed through mappings may be lost: {error}");
    }
    if detach {
        // Who uses it may have changed pages, and those are not waited for above. A mount that is not in use has none. By a process of
        // its own, for the same reason.
        is_waited_for();
        if let Err(error) = daemon::run_beside(&["sync".as_ref(), "--".as_ref(), point.as_ref()], SYNC_PATIENCE) {
            tracing::warn!("pages changed through mappings may be lost: `hydrafs sync {}`: {error}", point.display());
        }
        return unmounter.abort().map_err(|error| cannot(error.to_string()));
    }
    let begin = Instant::now();
    let waits = || {
        std::thread::sleep(LOOKING_INTERVAL);
        begin.elapsed() < LOOKING_MAX
    };
    unmount_from_under(&|| unmounter.unmount(), &|| mounts::users(point, USERS_MAX), &waits).map_err(
        |(error, users)| {
            if error.raw_os_error() != Some(libc::EBUSY) {
                return cannot(error.to_string());
            }
            let users = if users.is_empty() { "something in it is open".to_owned() } else { users.join(", ") };
            cannot(format!("it is in use: {users}"))
                .mend("end them, or take it away with --lazy: they get errors from then on; nothing was changed")
        },
    )
}

/// Unmounts, also where somebody looks at the mount, as df(1) does at all of them: he has nothing of it a moment later, and only the kernel has
/// seen him. Who has something open in it is named. `waits` says whether to try once more.
fn unmount_from_under(
    unmount: &dyn Fn() -> io::Result<()>,
    users: &dyn Fn() -> Vec<String>,
    waits: &dyn Fn() -> bool,
) -> Result<(), (io::Error, Vec<String>)> {
    loop {
        let Err(error) = unmount() else { return Ok(()) };
        if error.raw_os_error() != Some(libc::EBUSY) {
            return Err((error, Vec::new()));
        }
        let users = users();
        if !users.is_empty() || !waits() {
            return Err((error, users));
        }
    }
}

pub(crate) fn settings(config: &Config) -> fuse::Settings {
    let mut settings = fuse::Settings {
        transport: match config.transport {
            Transport::Auto => fuse::Transport::Auto,
            Transport::Ring => fuse::Transport::Ring,
            Transport::Device => fuse::Transport::Device,
        },
        threads: config.threads as usize,
        ring_depth: config.queue_depth as usize,
        write_bytes_max: config.request_bytes(opening::ram_bytes(), opening::cpus()),
        request_patience: Some(config.request_patience).filter(|patience| !patience.is_zero()),
        ..fuse::Settings::default()
    };
    let features = &mut settings.features;
    // Opens are silent (`front::kernel`): truncation must come as a SETATTR of its own.
    features.atomic_o_trunc = false;
    // All changes go through this kernel. It sees new times after each of its own writes and must not drop its pages for that.
    features.auto_inval_data = false;
    features.explicit_inval_data = true;
    settings
}

pub(crate) fn transport_name(negotiated: &Negotiated) -> &'static str {
    match negotiated.transport {
        fuse::Transport::Ring => "io_uring",
        _ => "/dev/fuse",
    }
}

/// Packs and journals are files: as many as the system lets us.
pub(crate) fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io;

    use super::unmount_from_under;

    /// What unmounting gives, which is busy so many times, with these users, and how often it was tried.
    fn tried(busy: u32, users: &[&str], waits: u32) -> (Result<(), Vec<String>>, u32) {
        let (tries, waited) = (Cell::new(0), Cell::new(0));
        let unmount = || {
            tries.set(tries.get() + 1);
            if tries.get() > busy { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EBUSY)) }
        };
        let users = || users.iter().map(|&user| user.to_owned()).collect();
        let waits = || {
            waited.set(waited.get() + 1);
            waited.get() <= waits
        };
        (unmount_from_under(&unmount, &users, &waits).map_err(|(_, users)| users), tries.get())
    }

    #[test]
    fn who_only_looks_at_a_mount_does_not_keep_it() {
        assert_eq!(tried(0, &[], 9), (Ok(()), 1));
        assert_eq!(tried(3, &[], 9), (Ok(()), 4));
        assert_eq!(tried(3, &["7 (vi)"], 9), (Err(vec!["7 (vi)".to_owned()]), 1));
        assert_eq!(tried(30, &[], 9), (Err(Vec::new()), 10));
    }

    #[test]
    fn what_has_another_cause_is_not_tried_again() {
        let gone = || Err(io::Error::from_raw_os_error(libc::EINVAL));
        let (error, users) =
            unmount_from_under(&gone, &|| panic!("not asked"), &|| panic!("not waited for")).unwrap_err();
        assert_eq!((error.raw_os_error(), users), (Some(libc::EINVAL), Vec::new()));
    }
}
