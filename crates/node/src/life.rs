//! The daemon's life: it opens a node, mounts it, answers, and ends cleanly, or goes on in a new process.
//!
//! ```text
//! lock → open → mount → control socket → ready   ...   unmount → answer what is left → flush, commit, close → unlock
//!                                                \
//!                                                 park → flush, commit, close → hand over → end
//!                                                  ↑                               | the new process is not ready
//!                                                  '---- open, resume, serve  <----'
//! ```
//!
//! It ends when it is told to (a signal, or `stop` on the control socket) or when its mount is taken away by somebody else.
//! Whoever asked it to end hears of it after everything is on the disks.
//!
//! A restart may fail at every step up to the last, and the daemon goes on where it stopped: it takes its own hand-over back. From
//! the moment at which the session is parked until somebody serves it, programs that use the mount wait.
//!
//! Not here: what goes from process to process (`handover`), what is answered (`front`), going to the background (`daemon`).

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::id::FileId;
use base::units::Bytes;
use file::{FileSystem, Node};
use fuse::{Parked, Parker, Session, Unmounter};
use platform::Platform;
use platform::real::block_on;
use serde_json::{Value, json};

use crate::config::Config;
use crate::control::server::{self, Server};
use crate::daemon::{self, Verdict};
use crate::failure::Failure;
use crate::front::{Answer, Asked, Control, Desk, Kernel, Mounted, Nodes, Wish};
use crate::handover::{self, Handover};
use crate::node_folder::{Lock, NodeFolder};
use crate::opening;
use crate::start::{self, MountOptions, take_away};

/// How long those who asked something may take to read their answers when the daemon ends, and to be answered before it restarts.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long requests may take that are under way when the daemon is to restart. Others wait meanwhile.
const PARK_PATIENCE: Duration = Duration::from_secs(20);
/// How long background tasks may still use a file system that was closed.
const RELEASE_PATIENCE: Duration = Duration::from_secs(10);
/// How often somebody who waits for the end hears how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// What the service manager is asked for at each such step (microseconds): a flush that goes on is no daemon that hangs.
const EXTENSION_US: u32 = 30_000_000;

/// Runs the daemon of a node, mounted or not, until it is told to end.
pub(crate) fn run(folder: &NodeFolder, mount: Option<(&Path, MountOptions)>) -> Result<(), Failure> {
    let config = folder.config()?;
    daemon::log(config.log_level);
    let mut lock = folder.lock()?;
    let at = mount.map(|(point, _)| format!(", mounted at {}", point.display())).unwrap_or_default();
    lock.describe(&format!("its daemon (process {}{at})", std::process::id()));
    let (life, inbox) = Life::new(folder, config, lock);
    let system = life.open(&[])?;
    let serving = mount.map(|mount| {
        let (session, kernel) = start::mount(folder, &life.config, (&life.platform, &system), mount)?;
        Ok(Serving::new(session, kernel))
    });
    let begun = serving.transpose().and_then(|serving| {
        let mut house = House { system: Arc::clone(&system), serving };
        let server = life.begin(&mut house)?;
        Ok((house, server))
    });
    match begun {
        Ok((house, server)) => {
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
        let config = folder.config()?;
        daemon::log(config.log_level);
        let (life, inbox) = Life::new(folder, config, Lock::handed_over(lock));
        let parked = session.map(|(device, bytes)| Parked::decode(device, &bytes));
        let parked = parked.transpose().map_err(|error| Failure::new("cannot take the mount over", error))?;
        let system = life.open(&references)?;
        let mut house = life.resume(system, parked, numbers)?;
        let server = server::serve(&folder.path, life.desk.clone())?;
        life.open_desk(&mut house);
        Ok((life, inbox, house, server))
    };
    let (mut life, inbox, mut house, server) = prepare().inspect_err(|failure| {
        handover::tell(socket, &Verdict::Failed(failure.clone()));
    })?;
    let words = life.words(&house);
    handover::tell(socket, &Verdict::Ready(words.clone()));
    life.lock.describe(&format!("its daemon (process {}{})", std::process::id(), house.at()));
    tracing::info!("{words}, taken over");
    life.serve(&mut house)?;
    life.live(house, server, &inbox)
}

/// What happens to a daemon.
enum Event {
    Signal(i32),
    Asked(Asked),
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
}

/// The open file system, and who serves it.
struct House {
    system: Arc<FileSystem>,
    serving: Option<Serving>,
}

/// A mount.
struct Serving {
    /// Until it runs.
    session: Option<Session>,
    kernel: Arc<Kernel>,
    parker: Parker,
    unmounter: Unmounter,
    transport: &'static str,
}

/// Why the daemon stops serving.
enum End {
    /// For good; these want to hear of it.
    Stop(Vec<Answer>),
    /// To go on in another process. The control that answered stays until then.
    Restart { program: PathBuf, answer: Answer, parked: Option<Parked>, later: VecDeque<Event> },
}

impl Serving {
    fn new(session: Session, kernel: Arc<Kernel>) -> Serving {
        let (parker, unmounter) = (session.parker(), session.unmounter());
        let transport = start::transport_name(session.negotiated());
        Serving { session: Some(session), kernel, parker, unmounter, transport }
    }
}

impl House {
    fn unmounter(&self) -> Option<&Unmounter> {
        self.serving.as_ref().map(|serving| &serving.unmounter)
    }

    fn at(&self) -> String {
        self.unmounter().map(|at| format!(", mounted at {}", at.mountpoint().display())).unwrap_or_default()
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
        (Life { folder, config, platform, lock, desk, send, program }, inbox)
    }

    fn open(&self, references: &[(FileId, u32)]) -> Result<Arc<FileSystem>, Failure> {
        let (system, report) = opening::open(self.folder, &self.config, &self.platform, references)?;
        opening::log(&report);
        Ok(system)
    }

    /// Lets the first house serve and be asked.
    fn begin(&self, house: &mut House) -> Result<Server, Failure> {
        let result = server::serve(&self.folder.path, self.desk.clone()).and_then(|server| {
            self.open_desk(house);
            self.serve(house)?;
            Ok(server)
        });
        // A mount that nobody could end is worse than none: a session that is dropped ends by force.
        result.inspect_err(|_| house.serving = None)
    }

    /// The session of another process, or of our own past, on a file system that was opened for it.
    fn resume(
        &self,
        system: Arc<FileSystem>,
        parked: Option<Parked>,
        (next, known): (u64, Vec<(u64, Node, u64)>),
    ) -> Result<House, Failure> {
        let Some(parked) = parked else { return Ok(House { system, serving: None }) };
        let nodes = Nodes::resume(next, &known);
        let kernel = Arc::new(Kernel::new(Arc::clone(&system), &self.platform, self.config.cache_time, nodes));
        let session = Session::resume(parked, Arc::clone(&kernel), &start::settings(&self.config))
            .map_err(|error| Failure::new("cannot go on with the mount", error))?;
        Ok(House { system, serving: Some(Serving::new(session, kernel)) })
    }

    /// Whoever asks is answered from this house.
    fn open_desk(&self, house: &mut House) {
        let mounted = house.serving.as_ref().and_then(|serving| {
            let session = serving.session.as_ref()?;
            Some(Mounted {
                point: serving.unmounter.mountpoint().to_owned(),
                transport: serving.transport,
                kernel: Arc::clone(&serving.kernel),
                notifier: session.notifier(),
                meter: session.meter(),
            })
        });
        let control = Arc::new(Control::new(self.folder, &self.platform, &house.system).of_daemon(mounted));
        if let Some(address) = self.config.metrics_listen {
            control.publish_metrics(address);
        }
        self.desk.open(control);
    }

    /// From now on requests are served, and signals heard.
    fn serve(&self, house: &mut House) -> Result<(), Failure> {
        let signals = self.send.clone();
        daemon::watch_signals(move |signal| signals.send(Event::Signal(signal)).is_ok())?;
        self.run_session(house)
    }

    fn run_session(&self, house: &mut House) -> Result<(), Failure> {
        let Some(session) = house.serving.as_mut().and_then(|serving| serving.session.take()) else { return Ok(()) };
        let send = self.send.clone();
        let wait = move || {
            let result = session.run();
            // Nobody listens any more if the daemon ended for another reason.
            let _ = send.send(Event::Ended(result));
        };
        let started = std::thread::Builder::new().name("session".to_owned()).spawn(wait);
        started.map(drop).map_err(|error| Failure::new("cannot serve the mount", error))
    }

    fn words(&self, house: &House) -> String {
        let folder = self.folder.path.display();
        match &house.serving {
            Some(Serving { unmounter, transport, .. }) => {
                format!("{folder} is mounted at {} ({transport})", unmounter.mountpoint().display())
            }
            None => format!("{folder} is open, without a mount"),
        }
    }

    fn live(mut self, mut house: House, mut server: Server, inbox: &Receiver<Event>) -> Result<(), Failure> {
        let mut later = VecDeque::new();
        loop {
            match self.until_end(&house, inbox, later) {
                End::Stop(answers) => return self.end(house, server, &answers),
                End::Restart { program, answer, parked, later: waiting } => {
                    match self.pass_on(house, parked, &program, &answer)? {
                        Passed::On { process, words } => {
                            daemon::main_process_is(process);
                            forward(process, waiting, inbox);
                            answer.done(Ok(json!({ "process": process, "words": words })));
                            server.leave(PATIENCE);
                            tracing::info!("ended: process {process} goes on");
                            return Ok(());
                        }
                        Passed::Back { failure, next } => {
                            house = *next;
                            tracing::error!("{failure}");
                            answer.done(Err(failure));
                            if !server.is_in_place() {
                                server = server::serve(&self.folder.path, self.desk.clone())?;
                            }
                            later = waiting;
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
        let mut is_unmounting = false;
        while let Some(event) = later.pop_front().or_else(|| inbox.recv().ok()) {
            match event {
                Event::Ended(result) => {
                    if let Err(error) = result {
                        tracing::warn!("the mount ended: {error}");
                    }
                    return End::Stop(stops);
                }
                Event::Asked(Asked { wish: Wish::Restart { .. }, answer }) if is_unmounting => {
                    answer.done(Err(Failure::new("cannot restart", "the daemon is ending")));
                }
                Event::Asked(Asked { wish: Wish::Restart { program }, answer }) => {
                    match self.prepare_restart(house, program, &answer, inbox) {
                        Ok((program, parked, later)) => return End::Restart { program, answer, parked, later },
                        Err(failure) => answer.done(Err(failure)),
                    }
                }
                Event::Asked(Asked { wish: Wish::Stop { .. }, answer }) if is_unmounting => stops.push(answer),
                Event::Asked(Asked { wish: Wish::Stop { detach }, answer }) => {
                    match unmounter.map_or(Ok(()), |unmounter| take_away(unmounter, detach)) {
                        Ok(()) => {
                            stops.push(answer);
                            is_unmounting = true;
                        }
                        Err(failure) => answer.done(Err(failure)),
                    }
                }
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
                return End::Stop(stops);
            }
        }
        End::Stop(stops)
    }

    /// Ends for good, and says so.
    fn end(self, house: House, server: Server, answers: &[Answer]) -> Result<(), Failure> {
        daemon::stopping();
        let closed = self.close(&house, answers);
        if let Err(failure) = &closed {
            tracing::error!("{failure}");
        }
        for answer in answers {
            answer.done(closed.clone());
        }
        server.close(PATIENCE);
        tracing::info!("ended");
        closed.map(drop)
    }

    /// Makes everything local and closes the file system. Gives what there was to do.
    fn close(&self, house: &House, answers: &[Answer]) -> Result<Value, Failure> {
        let before = house.system.status();
        let dirty = Bytes(before.dirty_bytes);
        let begin = self.platform.clock.elapsed();
        let (ended, end) = channel::<()>();
        let (system, answers) = (&house.system, answers.to_vec());
        let closed = std::thread::scope(|scope| {
            scope.spawn(move || {
                while end.recv_timeout(PROGRESS_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    let left = Bytes(system.status().dirty_bytes);
                    let text = format!("flushing: {left} of {dirty} left");
                    daemon::busy(&text, EXTENSION_US);
                    answers.iter().for_each(|answer| answer.progress(text.as_str()));
                }
            });
            let closed = block_on(system.close());
            drop(ended);
            closed
        });
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

    // ---- Restart ----

    /// Everything that can be refused while the daemon still serves; then brings it to a stand.
    fn prepare_restart(
        &self,
        house: &House,
        program: Option<PathBuf>,
        answer: &Answer,
        inbox: &Receiver<Event>,
    ) -> Result<(PathBuf, Option<Parked>, VecDeque<Event>), Failure> {
        let cannot = |why: &dyn std::fmt::Display| {
            Failure::new("cannot restart", why).at(&self.folder.path).mend("the daemon goes on as before")
        };
        let program = program.or_else(|| self.program.clone()).ok_or_else(|| cannot(&"/proc is not mounted"))?;
        if let Err(error) = rustix::fs::access(&program, rustix::fs::Access::EXEC_OK) {
            return Err(cannot(&format!("the program {} cannot be run: {error}", program.display())));
        }
        // What is flushed now is not waited for later.
        answer.progress("flushing");
        let synced = block_on(house.system.sync_all());
        synced.map_err(|error| opening::explain("cannot restart", self.folder, &error))?;
        let Some(control) = self.desk.close(PATIENCE) else {
            return Err(
                cannot(&"somebody else's request (a check, mostly) is under way").mend("wait for it, or end it")
            );
        };
        let Some(serving) = &house.serving else { return Ok((program, None, VecDeque::new())) };
        if let Err(error) = serving.parker.park(PARK_PATIENCE) {
            self.desk.open(control);
            return Err(cannot(&error));
        }
        let mut later = VecDeque::new();
        loop {
            match inbox.recv() {
                Ok(Event::Ended(Ok(Some(parked)))) => return Ok((program, Some(parked), later)),
                Ok(Event::Ended(result)) => {
                    // It ended after all: the end is for who asks next.
                    let _ = self.send.send(Event::Ended(result));
                    return Err(cannot(&"the mount has gone"));
                }
                Ok(other) => later.push_back(other),
                Err(_) => return Err(cannot(&"the daemon is ending")),
            }
        }
    }

    /// Closes the house and gives what it stood for to a new process; takes it back if that one is not ready.
    fn pass_on(
        &mut self,
        house: House,
        parked: Option<Parked>,
        program: &Path,
        answer: &Answer,
    ) -> Result<Passed, Failure> {
        answer.progress("the mount waits; flushing the rest");
        let numbers = house.serving.as_ref().map(|serving| serving.kernel.nodes().known()).unwrap_or_default();
        let references = house.system.references();
        let closed = self.close(&house, std::slice::from_ref(answer));
        let system = Arc::downgrade(&house.system);
        drop(house);
        let passed = closed.and_then(|_| {
            self.wait_released(&system)?;
            answer.progress("starting the new process");
            let lock = self.lock.descriptor().map_err(|error| Failure::new("cannot restart", error))?;
            let duplicate =
                |parked: &Parked| Ok::<(OwnedFd, Vec<u8>), io::Error>((parked.device().try_clone()?, parked.encode()));
            let session = parked.as_ref().map(duplicate).transpose();
            let session = session.map_err(|error| Failure::new("cannot restart", error))?;
            let handover = Handover { lock, references: references.clone(), numbers: numbers.clone(), session };
            handover::pass_on(program, self.folder, &handover)
        });
        let failure = match passed {
            Ok((process, words)) => return Ok(Passed::On { process, words }),
            Err(failure) => failure.mend("the daemon goes on as before"),
        };
        // Also after a failure to close: what was local is there, and somebody has to tell the programs about the rest.
        self.wait_released(&system)?;
        let mut next = self.resume(self.open(&references)?, parked, numbers)?;
        self.open_desk(&mut next);
        self.run_session(&mut next)?;
        Ok(Passed::Back { failure, next: Box::new(next) })
    }

    /// Waits until nobody has the file system any more and its disks are free: for tasks that end by themselves.
    fn wait_released(&self, system: &Weak<FileSystem>) -> Result<(), Failure> {
        let end = self.platform.clock.elapsed() + RELEASE_PATIENCE;
        let disks = self.folder.disks()?;
        // Whoever had it last may still be at dropping it.
        while system.strong_count() > 0 || !file::are_free(&disks) {
            if self.platform.clock.elapsed() > end {
                return Err(Failure::new("cannot restart", "something still uses the file system that was closed"));
            }
            block_on(self.platform.tasks.sleep(Duration::from_millis(1)));
        }
        Ok(())
    }
}

/// What became of a restart.
enum Passed {
    On { process: u32, words: String },
    Back { failure: Failure, next: Box<House> },
}

/// What came for the daemon meanwhile is for the next process: signals. Who asked something hears that it has to ask again.
fn forward(process: u32, waiting: VecDeque<Event>, inbox: &Receiver<Event>) {
    for event in waiting.into_iter().chain(inbox.try_iter()) {
        match event {
            Event::Signal(signal) => {
                let process = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw);
                let signal = rustix::process::Signal::from_named_raw(signal);
                if let (Some(process), Some(signal)) = (process, signal) {
                    let _ = rustix::process::kill_process(process, signal);
                }
            }
            Event::Asked(asked) => {
                let failure = Failure::new("cannot ask the daemon", "it has just restarted").mend("try again");
                asked.answer.done(Err(failure));
            }
            Event::Ended(_) => {}
        }
    }
}
