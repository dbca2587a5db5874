//! A restart: the daemon brings itself to a stand and goes on in another process, or takes everything back.
//!
//! What can be refused is refused before anybody waits; from the moment at which the session is parked until somebody serves it, programs that
//! use the mount do. The way back is as long as the way on: nothing that was accepted is given up by any step of either.
//!
//! Not here: what goes from process to process (`handover`), when it happens (`life`).

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Weak};
use std::time::Duration;

use file::{FileError, FileSystem};
use fuse::Parked;
use platform::real::block_on;

use super::{EXTENSION_US, Event, House, Life, PATIENCE, Plan, Planned, flush, stalled_at_most};
use crate::daemon;
use crate::failure::Failure;
use crate::front::{Answer, Control};
use crate::handover::{self, Handover};
use crate::node_folder::NodeFolder;
use crate::opening;

/// How long requests may take that are under way when the daemon is to restart. Others wait meanwhile.
const PARK_PATIENCE: Duration = Duration::from_secs(20);
/// How long background tasks may still use a file system that was closed.
const RELEASE_PATIENCE: Duration = Duration::from_secs(10);
/// Why it is waited for.
const IN_USE: &str = "something still uses the file system that was closed";

impl Life<'_> {
    /// What can be refused at once; then has what was accepted flushed, beside the daemon's life: what is flushed now is not waited for
    /// later. `Flushed` says that it was, and that the node could be opened again.
    pub(super) fn prepare_restart(
        &self,
        house: &House,
        program: Option<PathBuf>,
        answer: &Answer,
    ) -> Result<Plan, Failure> {
        let program = program.or_else(|| self.program.clone()).ok_or_else(|| self.cannot("/proc is not mounted"))?;
        let cannot_run =
            |error: io::Error| self.cannot(format!("the program {} cannot be run: {error}", program.display()));
        let program = program.canonicalize().map_err(cannot_run)?;
        rustix::fs::access(&program, rustix::fs::Access::EXEC_OK).map_err(|error| cannot_run(error.into()))?;
        // Who starts it would wait for the mount, which waits for it.
        if house.unmounter().map_or(Ok(false), |unmounter| unmounter.has(&program)).map_err(cannot_run)? {
            let why = format!("the program {} lies on the mount itself", program.display());
            return Err(as_before(self.refusal(why).mend("copy it elsewhere")));
        }
        may_pass_on(std::process::id()).map_err(|failure| as_before(failure.at(&self.folder.path)))?;
        answer.progress("flushing");
        let folder = self.folder.clone();
        let number = self.flush_beside(house, answer, move |system, answer| {
            let explain = |error: FileError| opening::explain("cannot restart", &folder, &error);
            // A disk that hangs is to be met here, and not when it is closed: programs would wait for it then.
            let flushed = flush(system, std::slice::from_ref(answer), async {
                system.sync_all().await?;
                system.commit_everywhere().await
            });
            flushed.map_err(explain)?;
            refuse_what_cannot_be_opened(&folder, system)
        });
        let number = number.map_err(|error| self.cannot(error))?;
        Ok(Plan { number, what: Planned::Restart(program, answer.clone()) })
    }

    /// What is under way on a disk that does not answer keeps it from being opened by another process (B-5), and programs would wait for that.
    pub(super) fn refuse_silent(&self, house: &House) -> Result<(), Failure> {
        let disks = house.system.status().store.disks;
        let Some(disk) = disks.iter().find(|disk| disk.is_silent && !disk.is_missing) else { return Ok(()) };
        let silent = self.refusal(format!("disk {} does not answer", disk.number)).at(Path::new(&disk.path));
        Err(as_before(silent.mend("see the system's log, and try again when it answers or the node goes without it")))
    }

    /// Brings the daemon to a stand. `later`: what comes for it meanwhile. The control that answered is still told what goes behind.
    pub(super) fn park(
        &self,
        house: &House,
        inbox: &Receiver<Event>,
        later: &mut VecDeque<Event>,
    ) -> Result<(Option<Parked>, Arc<Control>), Failure> {
        let Some(control) = self.desk.close(PATIENCE) else {
            let busy = self.refusal("somebody else's request (a check, mostly) is under way");
            return Err(as_before(busy.mend("wait for it, or end it")));
        };
        let Some(serving) = &house.serving else { return Ok((None, control)) };
        if let Err(error) = serving.parker.park(PARK_PATIENCE) {
            self.desk.open(control);
            return Err(self.cannot(error));
        }
        loop {
            match inbox.recv() {
                Ok(Event::Ended(Ok(Some(parked)))) => return Ok((Some(parked), control)),
                Ok(Event::Ended(result)) => {
                    // It ended after all: the end is for who asks next.
                    let _ = self.send.send(Event::Ended(result));
                    return Err(self.refusal("the mount has gone"));
                }
                Ok(other) => later.push_back(other),
                Err(_) => return Err(self.refusal("the daemon is ending")),
            }
        }
    }

    fn cannot(&self, why: impl std::fmt::Display) -> Failure {
        as_before(self.refusal(why))
    }

    /// As `cannot`, where nothing is said about what the daemon does now.
    fn refusal(&self, why: impl std::fmt::Display) -> Failure {
        Failure::new("cannot restart", why).at(&self.folder.path)
    }

    /// Closes the house and gives what it stood for to a new process; takes it back if that one is not ready. An error: nobody can go
    /// on, and the mount is dead.
    pub(super) fn pass_on(
        &mut self,
        house: House,
        parked: (Option<Parked>, Arc<Control>),
        program: &Path,
        answer: &Answer,
    ) -> Result<Passed, Failure> {
        let unmounter = house.unmounter().cloned();
        let passed = self.try_to_pass_on(house, parked, program, answer);
        if passed.is_err()
            && let Some(unmounter) = unmounter
            // Else its number may be another's by now.
            && unmounter.is_mounted().unwrap_or(false)
            && let Err(error) = unmounter.disconnect()
        {
            // Its calls fail when the last process that has it open ends, which a disk may keep from ending.
            tracing::warn!("cannot end the dead mount's connection: {error}");
        }
        passed
    }

    fn try_to_pass_on(
        &mut self,
        house: House,
        (parked, control): (Option<Parked>, Arc<Control>),
        program: &Path,
        answer: &Answer,
    ) -> Result<Passed, Failure> {
        answer.progress("the mount waits; flushing the rest");
        // What cannot be made local only an open file system has; once all is, closing can lose no more than a commit.
        if let Err(error) = flush(&house.system, std::slice::from_ref(answer), house.system.sync_all()) {
            let failure = opening::explain("cannot restart", self.folder, &error);
            drop(control);
            let next = Box::new(self.stay(house, parked)?);
            return Ok(Passed::Back { failure: as_before(failure), next });
        }
        let numbers = house.serving.as_ref().map(|serving| serving.kernel.nodes().known()).unwrap_or_default();
        let references = house.system.references();
        let closed = self.close(&house, std::slice::from_ref(answer));
        let system = Arc::downgrade(&house.system);
        drop((house, control));
        let passed = closed.and_then(|_| {
            if !self.wait_released(&system)? {
                return Err(Failure::new("cannot restart", IN_USE));
            }
            answer.progress("starting the new process");
            let lock = self.lock.descriptor().map_err(|error| Failure::new("cannot restart", error))?;
            let duplicate =
                |parked: &Parked| Ok::<(OwnedFd, Vec<u8>), io::Error>((parked.device().try_clone()?, parked.encode()));
            let session = parked.as_ref().map(duplicate).transpose();
            let session = session.map_err(|error| Failure::new("cannot restart", error))?;
            let handover = Handover { lock, references: references.clone(), numbers: numbers.clone(), session };
            // Also the next may have to go without a disk that does not answer.
            handover::pass_on(
                program,
                (&self.folder.path, self.folder.goes_without_disks),
                &handover,
                stalled_at_most(),
            )
        });
        let failure = match passed {
            Ok((process, words)) => return Ok(Passed::On { process, words }),
            Err(failure) => as_before(failure),
        };
        // Also after a failure to close: all that was accepted is local, and what no commit has the journal has.
        let begin = self.platform.clock.elapsed();
        while !self.wait_released(&system)? {
            if self.platform.clock.elapsed().saturating_sub(begin) > stalled_at_most() {
                return Err(failure);
            }
            tracing::warn!("{IN_USE}; the mount waits for it");
            daemon::busy(IN_USE, EXTENSION_US);
        }
        let next = self.resume(self.open(&references)?, parked, numbers)?;
        Ok(Passed::Back { failure, next: Box::new(self.reopen(next)?) })
    }

    /// Goes on with a house that was not closed.
    fn stay(&self, house: House, parked: Option<Parked>) -> Result<House, Failure> {
        let House { system, serving } = house;
        let kernel = serving.map(|serving| serving.kernel);
        let next = self.house(Arc::clone(&system), parked.zip(kernel)).and_then(|next| self.reopen(next));
        next.inspect_err(|_| {
            // As much as can be.
            let house = House { system, serving: None };
            if let Err(failure) = self.close(&house, &[]) {
                tracing::error!("{failure}");
            }
        })
    }

    /// A house that was taken back is asked and serves again.
    fn reopen(&self, mut house: House) -> Result<House, Failure> {
        self.open_desk(&house);
        self.ready(&mut house)?.go();
        Ok(house)
    }

    /// Waits until nobody has the file system any more and its disks are free: for tasks that end by themselves. False: they take long.
    fn wait_released(&self, system: &Weak<FileSystem>) -> Result<bool, Failure> {
        let end = self.platform.clock.elapsed() + RELEASE_PATIENCE;
        // Where there is no disk (any more) there is nobody.
        let disks = self.folder_now()?.disks_there();
        // Whoever had it last may still be at dropping it.
        while system.strong_count() > 0 || !file::are_free(&disks) {
            if self.platform.clock.elapsed() > end {
                return Ok(false);
            }
            block_on(self.platform.tasks.sleep(Duration::from_millis(1)));
        }
        Ok(true)
    }
}

/// Disks that the file system has, and that could not be opened again: neither the next process could go on then, nor this one. Nothing is
/// changed.
fn refuse_what_cannot_be_opened(folder: &NodeFolder, system: &FileSystem) -> Result<(), Failure> {
    let folder = NodeFolder::open(&folder.path)?.degraded(folder.goes_without_disks);
    let disks = folder.disks()?;
    block_on(system.could_open_again(&disks, folder.goes_without_disks))
        .map_err(|error| opening::explain("cannot restart", &folder, &error))
}

/// A restart that failed: after what can be done about it, that nothing else has changed.
pub(super) fn as_before(failure: Failure) -> Failure {
    const GOES_ON: &str = "the daemon goes on as before";
    let mend = if failure.mend.is_empty() { GOES_ON.to_owned() } else { format!("{}; {GOES_ON}", failure.mend) };
    failure.mend(mend)
}

/// Whether a process may end and leave its mount to another: when the first one of a container ends, the kernel ends all others.
pub(super) fn may_pass_on(process: u32) -> Result<(), Failure> {
    if process != 1 {
        return Ok(());
    }
    let why = "the daemon is the first process of its container, which ends with it";
    Err(Failure::new("cannot restart", why)
        .mend("run it below an init (`docker run --init`), or stop it and mount again"))
}

/// What became of a restart.
pub(super) enum Passed {
    On { process: u32, words: String },
    Back { failure: Failure, next: Box<House> },
}

/// What came for the daemon meanwhile is for the next process: signals. Who asked something hears that it has to ask again.
pub(super) fn forward(process: u32, waiting: VecDeque<Event>, inbox: &Receiver<Event>) {
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
            Event::Flushed(..) | Event::Ended(_) => {}
        }
    }
}
