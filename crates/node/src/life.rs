//! The daemon's life: it opens a node, mounts it, answers, and ends cleanly, or goes on in a new process.
//!
//! ```text
//! lock → open → mount → control socket → ready   ...   unmount → answer what is left → flush, commit, close → unlock
//!                                                \
//!                                                 flush, commit → park → flush → commit, close → hand over → go, end
//!                                                                   ↑      | no room       | the new process is not ready
//!                                                                   |<-----'               |
//!                                                                   '--- open, resume  <---'
//! ```
//!
//! It ends when it is told to (a signal, or `stop` on the control socket) or when its mount is taken away by somebody else.
//! Whoever asked it to end hears of it after everything is on the disks.
//!
//! H-8  While the file system is closed nobody is told that something was accepted: its mount has gone, or is parked, or its connection was
//!      ended before. (Who may not end it, without root and where fusectl is not mounted, is told so by the log.) Where nobody sees who keeps
//!      the mount, its connection is ended too, a few seconds after the mount was taken away by force.
//!
//! A restart may fail at every step up to the last, and the daemon goes on where it stopped: it takes its own hand-over back. From
//! the moment at which the session is parked until somebody serves it, programs that use the mount wait. What was accepted is given up
//! by no step: until all of it is local the file system stays open.
//!
//! Not here: the steps of a restart (`life/restart`), what goes from process to process (`handover`), what is answered (`front`), going to the background (`daemon`).

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use base::id::FileId;
use base::units::Bytes;
use file::{FileError, FileSystem, Node};
use fuse::{Notifier, Parked, Parker, Session, Unmounter};
use platform::Platform;
use platform::real::{block_on, patience};
use serde_json::{Value, json};

use crate::config::Config;
use crate::control::server::{self, Server};
use crate::daemon::{self, Verdict};
use crate::failure::Failure;
use crate::front::{Answer, Asked, Control, Desk, Kernel, Mounted, Nodes, Wish};
use crate::handover::{self, Handover};
use crate::mounts;
use crate::node_folder::{Lock, NodeFolder, Stage};
use crate::opening;
use crate::start::{self, MountOptions, take_away};

use self::restart::{Passed, as_before, forward};

mod restart;
#[cfg(test)]
mod tests;

/// How long those who asked something may take to read their answers when the daemon ends, and to be answered before it restarts; and how
/// long a mount that was taken away by force may go on.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often somebody who waits for the end hears how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// What the service manager is asked for at each such step (microseconds): a flush that goes on is no daemon that hangs.
const EXTENSION_US: u32 = 30_000_000;

/// Runs the daemon of a node, mounted or not, until it is told to end.
pub(crate) fn run(folder: &NodeFolder, mount: Option<(&Path, MountOptions)>) -> Result<(), Failure> {
    let mut config = folder.config()?;
    config.access_times &= !mount.is_some_and(|(_, options)| options.no_access_times);
    daemon::log(config.log_level, &folder.path);
    let lock = folder.lock_when_ended(|text| tracing::info!("{text}"))?;
    describe(&lock, mount.map(|(point, _)| (point, None)));
    let (life, inbox) = Life::new(folder, config, lock);
    let system = life.open(&[])?;
    let serve = || {
        let serving = mount.map(|mount| {
            let (session, kernel) = start::mount(folder, &life.config, (&life.platform, &system), mount)?;
            Ok(Serving::new(session, kernel))
        });
        serving.transpose()
    };
    // From the moment on at which somebody can write. Before, there is nothing that an opening would miss.
    let begun = life.hear_signals().and_then(|()| serve()).and_then(|serving| {
        let mut house = House { system: Arc::clone(&system), serving };
        // A mount that nobody could end is worse than none: a session that is dropped ends by force.
        let (server, ready) = life.begin(&mut house).inspect_err(|_| house.serving = None)?;
        Ok((house, server, ready))
    });
    match begun {
        Ok((house, server, ready)) => {
            describe_serving(&life.lock, &house);
            ready.go();
            tracing::info!("{}", life.words(&house));
            daemon::ready(&life.words(&house));
            drop(system);
            life.live(house, server, &inbox)
        }
        Err(failure) => {
            let closed = block_on(system.close());
            closed.map_err(|error| opening::explain("cannot close the node", folder, &error))?;
            Err(failure)
        }
    }
}

/// Goes on for the process at the other end of the socket.
pub(crate) fn take_over(folder: &NodeFolder, socket: &UnixStream) -> Result<(), Failure> {
    let prepare = || -> Result<_, Failure> {
        let Handover { lock, references, numbers, session } = Handover::receive(socket)?;
        let mut config = folder.config()?;
        daemon::log(config.log_level, &folder.path);
        let table = mounts::read()?;
        let is_ours = |mount: &&mounts::Mount| mount.is_hydrafs() && mount.source == folder.path;
        config.access_times &= !table.iter().find(is_ours).is_some_and(|mount| mount.has("noatime"));
        let (life, inbox) = Life::new(folder, config, Lock::handed_over(lock));
        let parked = session.map(|(device, bytes)| Parked::decode(device, &bytes));
        let parked = parked.transpose().map_err(|error| Failure::new("cannot take the mount over", error))?;
        let system = life.open(&references)?;
        let mut house = life.resume(system, parked, numbers)?;
        let (server, ready) = life.begin(&mut house)?;
        life.hear_signals()?;
        Ok((life, inbox, house, server, ready))
    };
    let (life, inbox, house, server, ready) = prepare().inspect_err(|failure| {
        handover::tell(socket, &Verdict::Failed(failure.clone()));
    })?;
    // From now on signals are ours.
    let words = life.words(&house);
    handover::tell(socket, &Verdict::Ready(words.clone()));
    handover::wait_for_go(socket)?;
    ready.go();
    describe_serving(&life.lock, &house);
    tracing::info!("{words}, taken over");
    life.live(house, server, &inbox)
}

/// Notes in the lock file that this daemon has the node, and its mount.
fn describe_serving(lock: &Lock, house: &House) {
    describe(lock, house.unmounter().map(|unmounter| (unmounter.mountpoint(), Some(unmounter.device()))));
}

/// Notes in the lock file that this daemon has the node, with its mount's place and device number as soon as there is one. Until then that of a
/// daemon that died stays: its mount may be there.
fn describe(lock: &Lock, mount: Option<(&Path, Option<&str>)>) {
    let process = std::process::id();
    match mount {
        Some((point, device)) => {
            let name = format!("its daemon (process {process}, mounted at {})", point.display());
            lock.describe(&name, Stage::Mounted, device.map(str::to_owned).or_else(|| lock.noted_mount()).as_deref());
        }
        None => {
            lock.describe(&format!("its daemon (process {process})"), Stage::Working, lock.noted_mount().as_deref())
        }
    }
}

/// How the mount was taken away, while the session has not ended yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unmounting {
    /// If nobody used it.
    Gently,
    /// Whoever uses it.
    ByForce,
    /// The same, and the connection that somebody else's mount of it kept was ended.
    Disconnected,
}

/// Refuses if the mount, taken away where it was made, is still elsewhere: the kernel goes on with it then.
fn kept_elsewhere(source: &Path, unmounter: &Unmounter) -> Result<(), Failure> {
    let keepers = mounts::elsewhere(source, unmounter.device(), start::USERS_MAX);
    if keepers.is_empty() {
        return Ok(());
    }
    let why = format!("it is gone here and goes on {}", keepers.join(", "));
    Err(Failure::new("cannot end the mount", why).at(unmounter.mountpoint()).mend(
        "the daemon ends with the last of these; or use `hydrafs stop --lazy NODE`: programs get errors from then on",
    ))
}

/// What happens to a daemon.
enum Event {
    Signal(i32),
    Asked(Asked),
    /// What was accepted before this plan was made is local, or cannot be.
    Flushed(u64, Result<(), Failure>),
    /// The mount has gone and its last request is answered; or its session is parked.
    Ended(io::Result<Option<Parked>>),
}

/// What a daemon has, whatever it serves at the moment.
struct Life<'a> {
    folder: &'a NodeFolder,
    config: Config,
    platform: Platform,
    lock: Lock,
    desk: Arc<Desk>,
    send: Sender<Event>,
    /// The program as it was called when it started: after an upgrade a new one is there.
    program: Option<PathBuf>,
    /// How many plans there were.
    plans: Cell<u64>,
}

/// The open file system, and who serves it.
struct House {
    system: Arc<FileSystem>,
    serving: Option<Serving>,
}

/// A mount.
struct Serving {
    /// Until a thread has it.
    session: Option<Session>,
    kernel: Arc<Kernel>,
    parker: Parker,
    unmounter: Unmounter,
    notifier: Notifier,
    transport: &'static str,
}

/// The session's thread, which waits. Dropped, it never serves.
struct Ready(Sender<()>);

impl Ready {
    /// Lets it serve.
    fn go(self) {
        // Without a mount there is no thread.
        let _ = self.0.send(());
    }
}

/// What waits for its flush. One that was given up concerns nobody.
struct Plan {
    /// Of all plans of this daemon.
    number: u64,
    what: Planned,
}

enum Planned {
    Restart(PathBuf, Answer),
    /// Gently: who asks hears of it while the mount is still there, if what was accepted has no room.
    Stop(Vec<Answer>),
}

/// Why the daemon stops serving.
enum End {
    /// For good; these want to hear of it.
    Stop(Vec<Answer>),
    /// To go on in another process. The control that answered stays until then.
    Restart { program: PathBuf, answer: Answer, parked: Option<Parked>, control: Arc<Control>, later: VecDeque<Event> },
}

impl Serving {
    fn new(session: Session, kernel: Arc<Kernel>) -> Serving {
        let (parker, unmounter, notifier) = (session.parker(), session.unmounter(), session.notifier());
        let transport = start::transport_name(session.negotiated());
        Serving { session: Some(session), kernel, parker, unmounter, notifier, transport }
    }
}

impl House {
    fn unmounter(&self) -> Option<&Unmounter> {
        self.serving.as_ref().map(|serving| &serving.unmounter)
    }

    /// Whether the kernel may still send requests.
    fn is_connected(&self) -> bool {
        self.serving.as_ref().is_some_and(|serving| serving.notifier.is_connected())
    }
}

impl<'a> Life<'a> {
    fn new(folder: &'a NodeFolder, config: Config, lock: Lock) -> (Life<'a>, Receiver<Event>) {
        start::raise_open_files();
        let (send, inbox) = channel();
        let asked = send.clone();
        let desk = Arc::new(Desk::new(Box::new(move |wish| asked.send(Event::Asked(wish)).is_ok())));
        let program = std::env::current_exe().ok();
        let platform = platform::real::platform();
        (Life { folder, config, platform, lock, desk, send, program, plans: Cell::new(0) }, inbox)
    }

    /// With the disks that the node has by now.
    fn folder_now(&self) -> Result<NodeFolder, Failure> {
        Ok(NodeFolder::open(&self.folder.path)?.degraded(self.folder.goes_without_disks))
    }

    fn open(&self, references: &[(FileId, u32)]) -> Result<Arc<FileSystem>, Failure> {
        let (system, report) = opening::open(&self.folder_now()?, &self.config, &self.platform, references)?;
        opening::log(&report);
        Ok(system)
    }

    /// From here on signals are events.
    fn hear_signals(&self) -> Result<(), Failure> {
        let signals = self.send.clone();
        daemon::watch_signals(move |signal| signals.send(Event::Signal(signal)).is_ok())
    }

    /// Lets a new process's house be asked. What can be refused by this machine has been when it returns; a session that was resumed takes no
    /// request before `go`.
    fn begin(&self, house: &mut House) -> Result<(Server, Ready), Failure> {
        let server = server::serve(&self.folder.path, self.desk.clone())?;
        self.open_desk(house);
        Ok((server, self.ready(house)?))
    }

    /// The session of another process, or of our own past, on a file system that was opened for it.
    fn resume(
        &self,
        system: Arc<FileSystem>,
        parked: Option<Parked>,
        (next, known): (u64, Vec<(u64, Node, u64)>),
    ) -> Result<House, Failure> {
        let nodes = Nodes::resume(next, &known);
        let kernel = Arc::new(Kernel::resume(Arc::clone(&system), &self.platform, self.config.cache_time, nodes));
        self.house(system, parked.map(|parked| (parked, kernel)))
    }

    fn house(&self, system: Arc<FileSystem>, parked: Option<(Parked, Arc<Kernel>)>) -> Result<House, Failure> {
        let serving = parked.map(|(parked, kernel)| {
            let session = Session::resume(parked, Arc::clone(&kernel), &start::settings(&self.config))
                .map_err(|error| Failure::new("cannot go on with the mount", error))?;
            kernel.serves(session.notifier());
            Ok(Serving::new(session, kernel))
        });
        Ok(House { system, serving: serving.transpose()? })
    }

    /// Whoever asks is answered from this house.
    fn open_desk(&self, house: &House) {
        let mounted = house.serving.as_ref().and_then(|serving| {
            let session = serving.session.as_ref()?;
            Some(Mounted {
                point: serving.unmounter.mountpoint().to_owned(),
                device: serving.unmounter.device().to_owned(),
                transport: serving.transport,
                kernel: Arc::clone(&serving.kernel),
                notifier: session.notifier(),
                meter: session.meter(),
            })
        });
        let control = Arc::new(Control::new(self.folder, &self.platform, &house.system).of_daemon(mounted));
        control.hear_of_links();
        if let Some(address) = self.config.metrics_listen {
            control.publish_metrics(address);
        }
        self.desk.open(control);
    }

    /// Makes the thread that will serve the house's session.
    fn ready(&self, house: &mut House) -> Result<Ready, Failure> {
        let (go, start) = channel();
        let Some(session) = house.serving.as_mut().and_then(|serving| serving.session.take()) else {
            return Ok(Ready(go));
        };
        let send = self.send.clone();
        let wait = move || {
            if start.recv().is_ok() {
                let result = session.run();
                // Nobody listens any more if the daemon ended for another reason.
                let _ = send.send(Event::Ended(result));
            }
        };
        let started = std::thread::Builder::new().name("session".to_owned()).spawn(wait);
        started.map(|_| Ready(go)).map_err(|error| Failure::new("cannot serve the mount", error))
    }

    fn words(&self, house: &House) -> String {
        let folder = self.folder.path.display();
        let missing = missing(&house.system);
        match &house.serving {
            Some(Serving { unmounter, transport, .. }) => {
                format!("{folder} is mounted at {} ({transport}){missing}", unmounter.mountpoint().display())
            }
            None => format!("{folder} is open, without a mount{missing}"),
        }
    }

    fn live(mut self, mut house: House, mut server: Server, inbox: &Receiver<Event>) -> Result<(), Failure> {
        let mut later = VecDeque::new();
        let mut failed = Ok(());
        loop {
            match self.until_end(&house, inbox, later) {
                End::Stop(answers) => return self.end(house, server, &answers).and(failed),
                End::Restart { program, answer, parked, control, later: waiting } => {
                    match self.pass_on(house, (parked, control), &program, &answer) {
                        Ok(Passed::On { process, words }) => {
                            daemon::main_process_is(process, &words);
                            forward(process, waiting, inbox);
                            answer.done(Ok(json!({ "process": process, "words": words })));
                            server.leave(PATIENCE);
                            // Also what came until now.
                            forward(process, VecDeque::new(), inbox);
                            tracing::info!("ended: process {process} goes on");
                            return Ok(());
                        }
                        Ok(Passed::Back { failure, next }) => {
                            (house, later) = (*next, waiting);
                            daemon::status(&self.words(&house));
                            tracing::error!("{failure}");
                            answer.done(Err(failure));
                            if !server.is_in_place() {
                                match server::serve(&self.folder.path, self.desk.clone()) {
                                    Ok(anew) => server = anew,
                                    // A mount that nobody could end is worse than none.
                                    Err(failure) => {
                                        failed = Err(failure);
                                        later.push_front(Event::Signal(libc::SIGTERM));
                                    }
                                }
                            }
                        }
                        Err(failure) => {
                            tracing::error!("{failure}");
                            answer.done(Err(failure.clone()));
                            server.close(PATIENCE);
                            return Err(failure);
                        }
                    }
                }
            }
        }
    }

    /// Waits until the daemon is to end and its mount has gone, or its session is parked.
    fn until_end(&self, house: &House, inbox: &Receiver<Event>, mut later: VecDeque<Event>) -> End {
        let unmounter = house.unmounter();
        let mut stops = Vec::new();
        let mut unmounting = None;
        let mut waited = Duration::ZERO;
        let mut plan: Option<Plan> = None;
        let ending = || Failure::new("cannot restart", "the daemon is ending");
        loop {
            let event = match (later.pop_front(), unmounting) {
                (Some(event), _) => Ok(event),
                (None, Some(_)) => inbox.recv_timeout(PROGRESS_INTERVAL),
                (None, None) => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let event = match event {
                Ok(event) => event,
                Err(RecvTimeoutError::Disconnected) => return End::Stop(stops),
                Err(RecvTimeoutError::Timeout) => {
                    let kept = unmounter.map_or(Ok(()), |unmounter| kept_elsewhere(&self.folder.path, unmounter));
                    waited += PROGRESS_INTERVAL;
                    match (kept, unmounting) {
                        (_, Some(Unmounting::Disconnected)) => {}
                        // Their calls fail from now on: what they write while the file system is closed would be acknowledged and lost. Somebody
                        // may have it whom /proc does not show us, from outside of a container; then it has not gone after a while.
                        (kept, Some(Unmounting::ByForce))
                            if kept.is_err() || (waited >= PATIENCE && house.is_connected()) =>
                        {
                            match unmounter.map_or(Ok(()), Unmounter::disconnect) {
                                Ok(()) => {
                                    tracing::info!("disconnected: the mount was taken away here and went on elsewhere");
                                    unmounting = Some(Unmounting::Disconnected);
                                }
                                Err(error) => {
                                    tracing::error!("what programs write from now on may be lost: {error}");
                                    return End::Stop(stops);
                                }
                            }
                        }
                        // Some request still has to end.
                        (Ok(()), _) => {}
                        (Err(failure), _) => {
                            (unmounting, waited) = (None, Duration::ZERO);
                            stops.drain(..).for_each(|answer: Answer| answer.done(Ok(json!({ "kept": failure }))));
                        }
                    }
                    continue;
                }
            };
            let is_unmounting = unmounting.is_some();
            match event {
                Event::Ended(result) => {
                    if let Err(error) = result {
                        tracing::warn!("the mount ended: {error}");
                    }
                    if let Some(Plan { what: Planned::Stop(answers), .. }) = plan {
                        stops.extend(answers);
                    }
                    return End::Stop(stops);
                }
                Event::Asked(Asked { wish: Wish::Restart { .. }, answer }) if is_unmounting => {
                    answer.done(Err(ending()));
                }
                Event::Asked(Asked { wish: Wish::Restart { program }, answer }) => match &plan {
                    None => match self.prepare_restart(house, program, &answer) {
                        Ok(made) => plan = Some(made),
                        Err(failure) => answer.done(Err(failure)),
                    },
                    Some(Plan { what: Planned::Restart(..), .. }) => {
                        answer.done(Err(Failure::new("cannot restart", "a restart is under way")));
                    }
                    Some(Plan { what: Planned::Stop(_), .. }) => answer.done(Err(ending())),
                },
                Event::Flushed(number, flushed) => match plan
                    .take_if(|plan| plan.number == number)
                    .map(|plan| plan.what)
                {
                    Some(Planned::Restart(program, answer)) => {
                        let ready = flushed.map_err(as_before).and_then(|()| self.refuse_silent(house));
                        match ready.and_then(|()| self.park(house, inbox, &mut later)) {
                            Ok((parked, control)) => return End::Restart { program, answer, parked, control, later },
                            Err(failure) => {
                                daemon::status(&self.words(house));
                                answer.done(Err(failure));
                            }
                        }
                    }
                    Some(Planned::Stop(answers)) => {
                        let take_away = || unmounter.map_or(Ok(()), |unmounter| take_away(unmounter, false));
                        match flushed.and_then(|()| take_away()) {
                            Ok(()) => {
                                stops.extend(answers);
                                unmounting = Some(Unmounting::Gently);
                            }
                            Err(failure) => {
                                daemon::status(&self.words(house));
                                answers.iter().for_each(|answer| answer.done(Err(failure.clone())));
                            }
                        }
                    }
                    None => {}
                },
                Event::Asked(Asked { wish: Wish::Stop { detach }, answer })
                    if unmounting.is_some_and(|how| how != Unmounting::Gently || !detach) =>
                {
                    stops.push(answer);
                }
                Event::Asked(Asked { wish: Wish::Stop { detach: true }, answer }) => {
                    match unmounter.map_or(Ok(()), |unmounter| take_away(unmounter, true)) {
                        Ok(()) => {
                            stops.push(answer);
                            (unmounting, waited) = (Some(Unmounting::ByForce), Duration::ZERO);
                        }
                        Err(failure) => answer.done(Err(failure)),
                    }
                }
                Event::Asked(Asked { wish: Wish::Stop { detach: false }, answer }) => match &mut plan {
                    Some(Plan { what: Planned::Stop(answers), .. }) => answers.push(answer),
                    _ => match self.prepare_stop(house, &answer) {
                        Ok(made) => {
                            if let Some(Plan { what: Planned::Restart(_, given_up), .. }) = plan.replace(made) {
                                given_up.done(Err(Failure::new("cannot restart", "somebody asked the daemon to end")));
                            }
                        }
                        Err(failure) => answer.done(Err(failure)),
                    },
                },
                Event::Signal(signal) if is_unmounting => {
                    tracing::info!("signal {signal}: ending already");
                    if unmounting == Some(Unmounting::Gently) {
                        (unmounting, waited) = (Some(Unmounting::ByForce), Duration::ZERO);
                    }
                }
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
                    unmounting = Some(Unmounting::ByForce);
                }
            }
            let is_unmounting = unmounting.is_some();
            match plan.take_if(|_| is_unmounting).map(|plan| plan.what) {
                Some(Planned::Restart(_, answer)) => answer.done(Err(ending())),
                Some(Planned::Stop(answers)) => stops.extend(answers),
                None => {}
            }
            if is_unmounting && unmounter.is_none() {
                return End::Stop(stops);
            }
        }
    }

    /// Ends for good, and says so.
    fn end(self, house: House, server: Server, answers: &[Answer]) -> Result<(), Failure> {
        daemon::stopping();
        let noted = self.lock.noted_mount().filter(|_| house.serving.is_none());
        self.lock.describe(&format!("its daemon (process {})", std::process::id()), Stage::Ending, noted.as_deref());
        let closed = self.close(&house, answers);
        if let Err(failure) = &closed {
            tracing::error!("{failure}");
        }
        for answer in answers {
            answer.done(closed.clone());
        }
        server.close(PATIENCE);
        // A process that a call to one disk keeps from ending must keep no other one (B-5).
        house.system.unlock_disks();
        tracing::info!("ended");
        closed.map(drop)
    }

    /// Makes everything local and closes the file system. Gives what there was to do.
    fn close(&self, house: &House, answers: &[Answer]) -> Result<Value, Failure> {
        let before = house.system.status();
        let begin = self.platform.clock.elapsed();
        let closed = flush(&house.system, answers, house.system.close());
        let seconds = self.platform.clock.elapsed().saturating_sub(begin).as_secs_f64();
        closed.map_err(|error| opening::explain("cannot make everything local", self.folder, &error))?;
        let (bytes, files) = (before.dirty_bytes, before.unlogged_files);
        let committed = before.uncommitted_files.max(files);
        tracing::info!("flushed {} of {files} files, committed {committed}, in {seconds:.2} s", Bytes(bytes));
        Ok(json!({
            "flushed_bytes": bytes,
            "flushed_files": files,
            "committed_files": committed,
            "seconds": seconds,
        }))
    }

    /// Has what was accepted flushed before the mount is taken away: what has no room is lost with the mount, and who asks can still make room.
    fn prepare_stop(&self, house: &House, answer: &Answer) -> Result<Plan, Failure> {
        const WHAT: &str = "cannot end the daemon";
        let folder = self.folder.clone();
        let number = self.flush_beside(house, answer, move |system, answer| {
            match flush(system, std::slice::from_ref(answer), system.sync_all()) {
                Err(FileError::NoSpace) => {
                    let why = "the disks have no room for what was accepted and is not local yet";
                    let mend = format!(
                        "make room on them, and try again; or end it without that, which is lost then: `hydrafs stop --lazy {}`",
                        folder.path.display()
                    );
                    Err(Failure::new(WHAT, why).at(&folder.path).mend(mend))
                }
                // What cannot be had by waiting is told at the end.
                Ok(()) | Err(_) => Ok(()),
            }
        });
        let number = number.map_err(|error| Failure::new(WHAT, error).at(&self.folder.path))?;
        Ok(Plan { number, what: Planned::Stop(vec![answer.clone()]) })
    }

    /// Has this done beside the daemon's life. `Flushed` says how it went, with this number.
    fn flush_beside(
        &self,
        house: &House,
        answer: &Answer,
        work: impl FnOnce(&FileSystem, &Answer) -> Result<(), Failure> + Send + 'static,
    ) -> io::Result<u64> {
        let number = self.plans.get() + 1;
        self.plans.set(number);
        let (system, answer, send) = (Arc::clone(&house.system), answer.clone(), self.send.clone());
        let work = move || {
            let flushed = work(&system, &answer);
            // Before the file system is closed.
            drop(system);
            let _ = send.send(Event::Flushed(number, flushed));
        };
        std::thread::Builder::new().name("flush".to_owned()).spawn(work).map(|_| number)
    }
}

/// What a person must not overlook: which disks are missing.
fn missing(system: &FileSystem) -> String {
    let disks = system.status().store.disks;
    let missing: Vec<String> =
        disks.iter().filter(|disk| disk.is_missing).map(|disk| format!("{} ({})", disk.number, disk.path)).collect();
    if missing.is_empty() {
        return String::new();
    }
    format!(
        ", DEGRADED: disk {} is missing, and what lies there cannot be read; `hydrafs status` says how much that is",
        missing.join(" and disk ")
    )
}

/// All that the file system and its disks have done, to see whether they do anything.
fn done(status: &file::Status) -> String {
    format!("{} {} {:?}", status.dirty_bytes, status.uncommitted_files, status.metrics)
}

/// How long nothing may move while a disk is waited for: one call may begin when another has been given up, and what it was for takes
/// another way then.
fn stalled_at_most() -> Duration {
    2 * patience() + Duration::from_secs(60)
}

/// Waits for work that makes data local. Those who wait with us, and the service manager, hear how far it is; while nothing moves for
/// longer than a disk may take, the service manager is asked for no more time, so that its limit ends a stop that hangs.
fn flush<T>(system: &FileSystem, answers: &[Answer], work: impl Future<Output = T>) -> T {
    let before = system.status();
    let (mut most, mut known) = (before.dirty_bytes, done(&before));
    let (ended, end) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut stalled = Duration::ZERO;
            while end.recv_timeout(PROGRESS_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let status = system.status();
                let (left, now) = (status.dirty_bytes, done(&status));
                most = most.max(left);
                let text = format!("flushing: {} of {} left", Bytes(left), Bytes(most));
                stalled = if now == known { stalled + PROGRESS_INTERVAL } else { Duration::ZERO };
                if stalled > stalled_at_most() {
                    daemon::status(&text);
                } else {
                    daemon::busy(&text, EXTENSION_US);
                }
                known = now;
                answers.iter().for_each(|answer| answer.progress(text.as_str()));
            }
        });
        let done = block_on(work);
        drop(ended);
        done
    })
}
