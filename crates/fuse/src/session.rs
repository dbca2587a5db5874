//! A session: from INIT until the mount has gone.
//!
//! ```text
//! start   read INIT, prepare the rings, answer INIT, register the rings -> or fall back -> started -> readers
//! run     readers end (ENODEV) -> rings end -> late answers have their grace -> destroyed
//!         or parked: all stop, nothing is under way -> `Parked` -> `resume`, here or in another process -> run
//! ```
//!
//! Truths kept here:
//! - When `start` returns an error there is no mount and no thread left behind that would keep one.
//! - When `run` returns, no request is being served, and the mount is out of the tree, whatever ended the session; or it is parked.
//!
//! H-3  A session that was resumed takes no request before `run`; dropped before, it has changed nothing.
//! H-9  When a session is parked the kernel has done what it was told by notices that were posted: none is left for the next process.

#![expect(unsafe_code, reason = "read(2) from a descriptor that is shared")]

use crate::counters::Meter;
use crate::crew::{Crew, vital};
use crate::device::{self, Line};
use crate::mount::{Mount, Unmounter, clone_device};
use crate::notify::{Notifier, write_answer};
use crate::parked::Parked;
use crate::ring::{self, Mailbox, Plan, RingSupport, Rings};
use crate::service::{Served, Service};
use crate::settings::{self, Negotiated, Settings, Transport};
use crate::wire;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of the buffer INIT is read into; the kernel refuses to fill a smaller one.
const INIT_BYTES: usize = 8192;

/// A mount being served. Dropped, it is ended by force.
pub struct Session {
    negotiated: Negotiated,
    crew: Arc<Crew>,
    notifier: Notifier,
    unmounter: Unmounter,
    device: Arc<OwnedFd>,
    grace: Duration,
    /// Says whether the readers begin, once it is known.
    start: Arc<OnceLock<bool>>,
    parker: Parker,
    threads: Option<Threads>,
}

/// Brings a session to a stand, from any thread.
#[derive(Clone)]
pub struct Parker {
    crew: Arc<Crew>,
    notifier: Notifier,
    unmounter: Unmounter,
    readers: usize,
    mailboxes: Vec<Arc<Mailbox>>,
    /// Wakes the one reader beside rings.
    bell: Option<Bell>,
}

type Bell = (Arc<PipeReader>, Arc<PipeWriter>);

struct Threads {
    readers: Vec<JoinHandle<io::Result<()>>>,
    rings: Option<Rings>,
    /// Finishing late answers, and sending notices.
    helpers: Vec<JoinHandle<()>>,
}

impl Session {
    /// Agrees with the kernel on how to talk, and starts serving. When it returns, the mount is usable. `meet` has the session's notifier before
    /// the first request is served.
    pub fn start<S: Service>(
        mount: Mount,
        service: Arc<S>,
        settings: &Settings,
        meet: impl FnOnce(Notifier),
    ) -> io::Result<Session> {
        let unmounter = mount.unmounter();
        let result = start(mount, service, settings, meet);
        if result.is_err() {
            // By force, or whoever is inside already waits for ever.
            let _ = unmounter.abort();
        }
        result
    }

    /// Prepares to go on with a session that stands still; `run` does. What was agreed with the kernel stays; the settings say how
    /// many threads serve.
    pub fn resume<S: Service>(parked: Parked, service: Arc<S>, settings: &Settings) -> io::Result<Session> {
        let Parked { device, negotiated, unmounter, slots } = parked;
        let crew = Arc::new(Crew::new(Box::new(Served(service)), negotiated.payload_bytes, negotiated.dialect));
        let rings = match negotiated.transport {
            Transport::Ring => {
                let plan = Plan::new(crew.clone(), device.clone(), settings, unmounter.clone());
                Some(Rings::prepare(plan, slots)?)
            }
            _ => None,
        };
        assemble(negotiated, crew, device, unmounter, settings, rings)
    }

    /// What was agreed with the kernel.
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// Tells the kernel to forget what it caches.
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Ends the session, from any thread.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// What the session measures; can be read as long as one likes.
    pub fn meter(&self) -> Meter {
        self.crew.meter.clone()
    }

    /// Brings the session to a stand: `run` returns with it.
    pub fn parker(&self) -> Parker {
        self.parker.clone()
    }

    /// Serves until the mount has gone and all requests are answered or their grace is over (`None`), or until the session is
    /// parked. An error says what broke the connection; the session is over all the same.
    pub fn run(mut self) -> io::Result<Option<Parked>> {
        self.begin()?;
        self.finish()
    }

    /// Lets everybody begin.
    fn begin(&self) -> io::Result<()> {
        let is_first = self.start.set(true).is_ok();
        if let Some(rings) = self.threads.as_ref().and_then(|threads| threads.rings.as_ref()).filter(|_| is_first) {
            // Those of a resumed session: a new one's are at work.
            rings.register()?;
            rings.serve();
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<Option<Parked>> {
        let Some(Threads { readers, rings, helpers }) = self.threads.take() else { return Ok(None) };
        let mut result = Ok(());
        for reader in readers {
            result = result.and(reader.join().unwrap_or_else(|_| Err(io::Error::other("a reader panicked"))));
        }
        let slots = rings.map(Rings::finish).unwrap_or_default();
        self.notifier.close();
        self.crew.late.close(self.grace);
        for helper in helpers {
            let _ = helper.join();
        }
        if self.crew.park.is_taken() {
            let (device, unmounter) = (self.device.clone(), self.unmounter.clone());
            return Ok(Some(Parked { device, negotiated: self.negotiated, unmounter, slots }));
        }
        // After an abort the mount is still in the tree, and answers ENOTCONN.
        let _ = self.unmounter.detach();
        self.crew.handler.destroyed();
        result.map(|()| None)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Some(threads) = &mut self.threads else { return };
        if self.start.set(false).is_ok() {
            // It never began: readers go home, rings hear that no orders will come, and the mount waits for somebody else.
            drop(threads.rings.take());
            self.notifier.close();
            self.crew.late.close(Duration::ZERO);
            return;
        }
        let _ = self.unmounter.abort();
        let _ = self.finish();
    }
}

impl Parker {
    /// Lets requests wait in the kernel, and those that were taken be answered. Then `Session::run` returns. If that takes longer
    /// than `patience` the session goes on as if nothing had been, and the error says why.
    pub fn park(&self, patience: Duration) -> io::Result<()> {
        if !self.unmounter.is_mounted()? {
            let text =
                format!("the mount at {} is covered by another or detached", self.unmounter.mountpoint().display());
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
        }
        if !self.mailboxes.is_empty() && !ring::has_all_cpus() {
            let text = "the daemon may not run on every CPU, so the io_uring queues of the others cannot be stopped";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let deadline = Instant::now() + patience;
        let late = |what: &str| Err(io::Error::new(io::ErrorKind::TimedOut, format!("{what} in time")));
        // While requests are answered: it may wait for one of them.
        if !self.notifier.has_sent(deadline) {
            return late("the kernel has not done what it was told");
        }
        self.crew.park.want();
        let woken = self.wake();
        let has_rung = woken.is_ok();
        let result = woken.and_then(|()| match self.crew.park.have_all_stopped(deadline) {
            true if self.crew.late.has_finished(deadline) => match self.notifier.has_sent(deadline) {
                true => Ok(()),
                false => late("the kernel has not done what it was told"),
            },
            _ => late("a request was not answered"),
        });
        let is_taken = self.crew.park.decide(result.is_ok());
        self.mailboxes.iter().for_each(|mailbox| mailbox.call());
        if is_taken {
            return Ok(());
        }
        if let Some((bell, _)) = self.bell.as_ref().filter(|_| has_rung) {
            // Silent again. That it rang was the only byte.
            let _ = (&**bell).read(&mut [0]);
        }
        result.and(Err(io::Error::new(io::ErrorKind::NotConnected, "the mount has gone")))
    }

    fn wake(&self) -> io::Result<()> {
        self.mailboxes.iter().for_each(|mailbox| mailbox.call());
        match &self.bell {
            Some((_, bell)) => (&**bell).write_all(&[1]),
            // A reader that sleeps in read(2) is woken by a request: each stops after one.
            None => (0..self.readers).try_for_each(|_| self.unmounter.provoke().map(drop)),
        }
    }
}

fn start<S: Service>(
    mount: Mount,
    service: Arc<S>,
    settings: &Settings,
    meet: impl FnOnce(Notifier),
) -> io::Result<Session> {
    let unmounter = mount.unmounter();
    let device = mount.into_device();
    let greeting = Greeting::read(&device)?;

    let is_ring_wanted = match settings.transport {
        Transport::Device => false,
        Transport::Ring => true,
        Transport::Auto => ring::ring_support() == RingSupport::Available,
    };
    let (mut answer, mut negotiated) = greeting.negotiate(settings, is_ring_wanted);
    let handler = Box::new(Served(service));
    let crew = Arc::new(Crew::new(handler, negotiated.payload_bytes, negotiated.dialect));

    let mut rings = None;
    if negotiated.transport == Transport::Ring {
        let plan = Plan::new(crew.clone(), device.clone(), settings, unmounter.clone());
        match Rings::prepare(plan, Vec::new()) {
            Ok(prepared) => rings = Some(prepared),
            Err(error) if settings.transport == Transport::Ring => return Err(error),
            Err(_) => (answer, negotiated) = greeting.negotiate(settings, false),
        }
    } else if settings.transport == Transport::Ring {
        let text = "the kernel does not offer FUSE over io_uring (module parameter fuse.enable_uring)";
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }

    write_answer(&device, greeting.unique, 0, (answer.as_bytes(), &[]));
    if let Some(prepared) = &rings
        && let Err(error) = prepared.register()
    {
        if settings.transport == Transport::Ring {
            return Err(error);
        }
        // The kernel has given up on the ring too.
        negotiated.transport = Transport::Device;
    }
    let rings = rings.filter(|_| negotiated.transport == Transport::Ring);
    let session = assemble(negotiated, crew, device, unmounter, settings, rings)?;
    meet(session.notifier());
    let _ = session.start.set(true);
    if let Some(rings) = session.threads.as_ref().and_then(|threads| threads.rings.as_ref()) {
        rings.serve();
    }
    Ok(session)
}

/// A session whose threads wait for the start.
fn assemble(
    negotiated: Negotiated,
    crew: Arc<Crew>,
    device: Arc<OwnedFd>,
    unmounter: Unmounter,
    settings: &Settings,
    rings: Option<Rings>,
) -> io::Result<Session> {
    crew.handler.started(&negotiated);
    let notifier = Notifier::new(device.clone());
    let start = Arc::<OnceLock<bool>>::default();
    let bell = match &rings {
        Some(_) => io::pipe().map(|(reader, writer)| Some((Arc::new(reader), Arc::new(writer))))?,
        None => None,
    };
    let readers = reader_count(&negotiated, settings);
    let mailboxes = rings.as_ref().map(Rings::mailboxes).unwrap_or_default();
    crew.park.enroll(readers + mailboxes.len());
    let parker = Parker {
        crew: crew.clone(),
        notifier: notifier.clone(),
        unmounter: unmounter.clone(),
        readers,
        mailboxes,
        bell,
    };
    let spawned = Threads::spawn(&parker, &notifier, &device, &start);
    let threads = spawned.inspect_err(|_| {
        let _ = start.set(false);
        notifier.close();
        crew.late.close(Duration::ZERO);
    })?;
    let threads = Some(Threads { rings, ..threads });
    Ok(Session { negotiated, crew, notifier, unmounter, device, grace: settings.grace, start, parker, threads })
}

impl Threads {
    fn spawn(
        parker: &Parker,
        notifier: &Notifier,
        device: &Arc<OwnedFd>,
        start: &Arc<OnceLock<bool>>,
    ) -> io::Result<Threads> {
        let Parker { crew, unmounter, readers, bell, .. } = parker;
        let (late, notices) = (crew.late.clone(), notifier.clone());
        let helpers = vec![
            Builder::new().name("fuse-late".to_owned()).spawn(move || late.run())?,
            Builder::new().name("fuse-notify".to_owned()).spawn(move || notices.run())?,
        ];
        let reader = |number: usize| {
            let own = match bell {
                Some(_) => Some(clone_device(device, libc::O_NONBLOCK)?),
                None if number == 0 => None,
                // Where descriptors run out, sharing the first is slower, not wrong.
                None => clone_device(device, 0).ok(),
            };
            let own = own.map(Arc::new);
            let bell = bell.as_ref().map(|(bell, _)| bell.clone());
            let line = Line::new(own.unwrap_or_else(|| device.clone()), crew.meter.tally(), bell);
            let (crew, unmounter, start) = (crew.clone(), unmounter.clone(), start.clone());
            Builder::new().name(format!("fuse-read-{number}")).spawn(move || {
                if !start.wait() {
                    return Ok(());
                }
                // Nobody must wait for a request that will not be answered: one reader's failure ends all.
                let result = vital(|| device::run(&crew, &line)).inspect_err(|_| drop(unmounter.abort()));
                crew.park.leave();
                result
            })
        };
        let readers = (0..*readers).map(reader).collect::<io::Result<_>>()?;
        Ok(Threads { readers, rings: None, helpers })
    }
}

/// How many threads read /dev/fuse. One stays for what the rings do not carry.
fn reader_count(negotiated: &Negotiated, settings: &Settings) -> usize {
    match (negotiated.transport, settings.threads) {
        (Transport::Ring, _) => 1,
        (_, 0) => std::thread::available_parallelism().map_or(2, usize::from).max(2),
        (_, threads) => threads,
    }
}

/// The kernel's INIT.
struct Greeting {
    unique: u64,
    sent: wire::InitIn,
    extension: wire::InitExtIn,
}

impl Greeting {
    fn read(device: &OwnedFd) -> io::Result<Greeting> {
        let mut buffer = vec![0; INIT_BYTES];
        loop {
            let bytes = read(device, &mut buffer)?;
            let (unique, sent, extension) = Greeting::parse(&buffer[..bytes])
                .ok_or_else(|| io::Error::other("the first request from /dev/fuse is no INIT"))?;
            let greeting = Greeting { unique, sent, extension };
            match greeting.sent.major {
                7 if greeting.sent.minor >= settings::MINOR_MIN => return Ok(greeting),
                // A newer kernel hears which version we speak, and begins again with that.
                8.. => {
                    let answer = wire::InitOut { major: 7, ..Default::default() };
                    write_answer(device, greeting.unique, 0, (answer.as_bytes(), &[]));
                }
                major => {
                    let minor = greeting.sent.minor;
                    let text = format!("the kernel speaks FUSE {major}.{minor}; 7.{} is needed", settings::MINOR_MIN);
                    write_answer(device, greeting.unique, -libc::EPROTO, (&[], &[]));
                    return Err(io::Error::new(io::ErrorKind::Unsupported, text));
                }
            }
        }
    }

    fn parse(bytes: &[u8]) -> Option<(u64, wire::InitIn, wire::InitExtIn)> {
        let (header, rest) = wire::InHeader::read_from_prefix(bytes).ok()?;
        let (sent, rest) = wire::InitIn::read_from_prefix(rest).ok()?;
        // Kernels before 7.36 send no more.
        let extension = wire::InitExtIn::read_from_prefix(rest).map(|(extension, _)| extension).unwrap_or_default();
        (header.opcode == crate::flags::opcode::INIT).then_some((header.unique, sent, extension))
    }

    fn negotiate(&self, settings: &Settings, ring: bool) -> (wire::InitOut, Negotiated) {
        settings::negotiate(&self.sent, &self.extension, settings, ring)
    }
}

fn read(device: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        // SAFETY: the buffer is ours for the call and as long as stated.
        let result = unsafe { libc::read(device.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
        match usize::try_from(result) {
            Ok(bytes) => return Ok(bytes),
            Err(_) => {
                let error = io::Error::last_os_error();
                if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) {
                    return Err(error);
                }
            }
        }
    }
}
