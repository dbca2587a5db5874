//! A node at work: as a daemon that mounts it, answers, and ends cleanly; or for one command, where no daemon runs.
//!
//! ```text
//! lock → open → mount → control socket → ready   ...   unmount → answer what is left → flush, commit, close → unlock
//! ```
//!
//! The daemon ends when it is told to (a signal, or `stop` on the control socket) or when its mount is taken away by somebody
//! else. Whoever asked it to end hears of it after everything is on the disks.
//!
//! Not here: what is answered (`front`); going to the background (`daemon`).

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use file::FileSystem;
use fuse::{Negotiated, Session, Unmounter};
use platform::Platform;
use platform::real::block_on;
use rustix::mount::UnmountFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::config::{Config, Transport};
use crate::control::client::Daemon;
use crate::control::server::{self, Handler};
use crate::control::wire::Request;
use crate::daemon;
use crate::failure::Failure;
use crate::front::{Control, Kernel, Mounted, Stop};
use crate::node_folder::NodeFolder;
use crate::{mounts, opening};

/// How long those who asked something may take to read their answers when the daemon ends.
const PATIENCE: Duration = Duration::from_secs(5);
/// Processes that a message names when a mount is in use.
const USERS_MAX: usize = 5;

/// How to mount, beyond the settings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MountOptions {
    pub(crate) read_only: bool,
    pub(crate) no_set_id: bool,
    pub(crate) no_devices: bool,
    pub(crate) no_execute: bool,
    /// Overrides the setting.
    pub(crate) allow_other: Option<bool>,
}

/// Runs the daemon of a node, mounted or not, until it is told to end.
pub(crate) fn run(folder: &NodeFolder, mount: Option<(&Path, MountOptions)>) -> Result<(), Failure> {
    let config = folder.config()?;
    daemon::log(config.log_level);
    let mut lock = folder.lock()?;
    let at = mount.map(|(point, _)| format!(", mounted at {}", point.display())).unwrap_or_default();
    lock.describe(&format!("its daemon (process {}{at})", std::process::id()));
    raise_open_files();
    let platform = platform::real::platform();
    let (system, report) = opening::open(folder, &config, &platform)?;
    opening::log(&report);

    let (send, inbox) = channel();
    let daemon = Running { folder, config: &config, platform: &platform, system: &system };
    let ended = daemon.serve(mount, send, &inbox);
    daemon::stopping();
    let closed = block_on(system.close());
    let closed = closed.map_err(|error| opening::explain("cannot make everything local", folder, &error));
    if let Err(failure) = &closed {
        tracing::error!("{failure}");
    }
    let (server, stops) = ended?;
    for stop in stops {
        // Who asked may have left.
        let _ = stop.answer.send(closed.clone().map(|()| json!({})));
    }
    server.close(PATIENCE);
    tracing::info!("ended");
    closed
}

/// Asks the node's daemon; where none runs, opens the node, does what is asked, and closes it.
pub(crate) fn ask(folder: &NodeFolder, request: Request, mut progress: impl FnMut(&str)) -> Result<Value, Failure> {
    if let Some(daemon) = Daemon::reach(&folder.path)? {
        return daemon.ask(&request, progress);
    }
    daemon::log_of_tool();
    let config = folder.config()?;
    let mut lock = folder.lock()?;
    lock.describe(&format!("a command (process {})", std::process::id()));
    let platform = platform::real::platform();
    let (system, report) = opening::open(folder, &config, &platform)?;
    opening::log(&report);
    let control = Control::new(folder, &platform, &system);
    let answer = control.handle(request, &mut progress);
    let closed = block_on(system.close()).map_err(|error| opening::explain("cannot close the node", folder, &error));
    answer.and_then(|answer| closed.map(|()| answer))
}

/// Takes a mount away whose daemon is gone. Of ours only: the caller looked.
pub(crate) fn unmount(point: &Path, detach: bool) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        let flags = if detach { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        return Ok(rustix::mount::unmount(point, flags | UnmountFlags::NOFOLLOW)?);
    }
    let flags: &[&str] = if detach { &["-u", "-z"] } else { &["-u"] };
    let output = Command::new("fusermount3").args(flags).arg("--").arg(point).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// What happens to a daemon.
enum Event {
    Signal(i32),
    Stop(Stop),
    /// The mount has gone and its last request is answered.
    Unmounted(io::Result<()>),
}

struct Running<'a> {
    folder: &'a NodeFolder,
    config: &'a Config,
    platform: &'a Platform,
    system: &'a Arc<FileSystem>,
}

impl Running<'_> {
    /// Mounts, says that it is ready, and waits for the end. Gives the control socket and those who wait for the outcome.
    fn serve(
        &self,
        mount: Option<(&Path, MountOptions)>,
        send: Sender<Event>,
        inbox: &Receiver<Event>,
    ) -> Result<(server::Server, Vec<Stop>), Failure> {
        let mounted = mount.map(|(point, options)| self.mount(point, options, &send)).transpose()?;
        let unmounter = mounted.as_ref().map(|(_, unmounter)| unmounter.clone());
        let words = self.words(mounted.as_ref().map(|(mounted, _)| mounted));
        let begun = self.listen(mounted.map(|(mounted, _)| mounted), send);
        let server = match begun {
            Ok(server) => server,
            Err(failure) => {
                // A mount that nobody could end is worse than none.
                if let Some(unmounter) = unmounter {
                    let _ = unmounter.abort();
                    wait_for_unmount(inbox);
                }
                return Err(failure);
            }
        };
        tracing::info!("{words}");
        daemon::ready(&words);
        Ok((server, self.until_end(unmounter.as_ref(), inbox)))
    }

    fn listen(&self, mounted: Option<Mounted>, send: Sender<Event>) -> Result<server::Server, Failure> {
        let signals = send.clone();
        daemon::watch_signals(move |signal| signals.send(Event::Signal(signal)).is_ok())?;
        let control = Control::new(self.folder, self.platform, self.system);
        let tell = move |stop| send.send(Event::Stop(stop)).is_ok();
        let control = Arc::new(control.of_daemon(mounted, Box::new(tell)));
        if let Some(address) = self.config.metrics_listen {
            control.publish_metrics(address);
        }
        server::serve(&self.folder.path, control)
    }

    fn words(&self, mounted: Option<&Mounted>) -> String {
        let folder = self.folder.path.display();
        match mounted {
            Some(mounted) => format!("{folder} is mounted at {} ({})", mounted.point.display(), mounted.transport),
            None => format!("{folder} is open, without a mount"),
        }
    }

    fn mount(
        &self,
        point: &Path,
        options: MountOptions,
        send: &Sender<Event>,
    ) -> Result<(Mounted, Unmounter), Failure> {
        let cannot = |error: io::Error| {
            let failure = Failure::new("cannot mount", &error).at(point);
            failure.mend("`hydrafs doctor` says what this machine lacks; nothing was changed")
        };
        let source = self.folder.path.to_str().ok_or_else(|| {
            Failure::new("cannot mount", "the node's path is not UTF-8").at(&self.folder.path).mend("rename its folder")
        })?;
        let words = [(options.no_set_id, "nosuid"), (options.no_devices, "nodev"), (options.no_execute, "noexec")];
        let options = fuse::MountOptions {
            source: source.to_owned(),
            subtype: "hydrafs".to_owned(),
            allow_other: options.allow_other.unwrap_or_else(|| self.config.allow_other && may_allow_other()),
            default_permissions: true,
            read_only: options.read_only,
            extra: words.iter().filter(|(is_set, _)| *is_set).map(|(_, word)| (*word).to_owned()).collect(),
        };
        let kernel = Arc::new(Kernel::new(Arc::clone(self.system), self.platform, self.config.cache_time));
        let mount = fuse::mount(point, &options).map_err(cannot)?;
        let session = Session::start(mount, Arc::clone(&kernel), &settings(self.config)).map_err(cannot)?;
        let transport = transport_name(session.negotiated());
        let (notifier, unmounter, meter) = (session.notifier(), session.unmounter(), session.meter());
        let send = send.clone();
        let wait = move || {
            let result = session.run();
            // Nobody listens any more if the daemon ended for another reason.
            let _ = send.send(Event::Unmounted(result));
        };
        std::thread::Builder::new().name("session".to_owned()).spawn(wait).map_err(cannot)?;
        Ok((Mounted { point: point.to_owned(), transport, kernel, notifier, meter }, unmounter))
    }

    /// Waits until the daemon is to end and its mount has gone. Gives those who wait for the outcome.
    fn until_end(&self, unmounter: Option<&Unmounter>, inbox: &Receiver<Event>) -> Vec<Stop> {
        let mut stops = Vec::new();
        let mut is_unmounting = false;
        while let Ok(event) = inbox.recv() {
            match event {
                Event::Unmounted(result) => {
                    if let Err(error) = result {
                        tracing::warn!("the mount ended: {error}");
                    }
                    return stops;
                }
                Event::Stop(stop) if is_unmounting => stops.push(stop),
                Event::Stop(stop) => match unmounter.map_or(Ok(()), |unmounter| take_away(unmounter, stop.detach)) {
                    Ok(()) => {
                        stops.push(stop);
                        is_unmounting = true;
                    }
                    Err(failure) => drop(stop.answer.send(Err(failure))),
                },
                Event::Signal(signal) if is_unmounting => tracing::info!("signal {signal}: ending already"),
                Event::Signal(signal) => {
                    tracing::info!("signal {signal}: ending");
                    let taken = unmounter.map_or(Ok(()), |unmounter| {
                        take_away(unmounter, false).or_else(|failure| {
                            tracing::warn!("{failure}; it is taken away all the same");
                            take_away(unmounter, true)
                        })
                    });
                    if let Err(failure) = taken {
                        tracing::error!("{failure}");
                    }
                    is_unmounting = true;
                }
            }
            if is_unmounting && unmounter.is_none() {
                return stops;
            }
        }
        stops
    }
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

/// Unmounts; with `detach` even while it is in use, and whoever uses it gets errors from then on.
fn take_away(unmounter: &Unmounter, detach: bool) -> Result<(), Failure> {
    let point = unmounter.mountpoint();
    let cannot = |why: String| Failure::new("cannot unmount", why).at(point);
    if detach {
        write_pages_back(point);
        return unmounter.abort().map_err(|error| cannot(error.to_string()));
    }
    unmounter.unmount().map_err(|error| {
        if error.raw_os_error() != Some(libc::EBUSY) {
            return cannot(error.to_string());
        }
        let users = mounts::users(point, USERS_MAX);
        let users = if users.is_empty() { "something in it is open".to_owned() } else { users.join(", ") };
        cannot(format!("it is in use: {users}"))
            .mend("end them, or take it away with --lazy: they get errors from then on; nothing was changed")
    })
}

/// Has the kernel hand over the pages that were changed through mappings: they would be lost with the connection.
#[expect(clippy::disallowed_methods, reason = "a mount is the outside")]
fn write_pages_back(point: &Path) {
    let synced = File::open(point).and_then(|root| Ok(rustix::fs::syncfs(root)?));
    if let Err(error) = synced {
        tracing::warn!("pages changed through mappings may be lost: {error}");
    }
}

fn wait_for_unmount(inbox: &Receiver<Event>) {
    while let Ok(event) = inbox.recv() {
        if matches!(event, Event::Unmounted(_)) {
            return;
        }
    }
}

fn settings(config: &Config) -> fuse::Settings {
    let mut settings = fuse::Settings {
        transport: match config.transport {
            Transport::Auto => fuse::Transport::Auto,
            Transport::Ring => fuse::Transport::Ring,
            Transport::Device => fuse::Transport::Device,
        },
        threads: config.threads as usize,
        ring_depth: config.queue_depth as usize,
        write_bytes_max: config.request_bytes,
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

fn transport_name(negotiated: &Negotiated) -> &'static str {
    match negotiated.transport {
        fuse::Transport::Ring => "io_uring",
        _ => "/dev/fuse",
    }
}

/// Packs and journals are files: as many as the system lets us.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
}
