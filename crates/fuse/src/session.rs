//! A session: from INIT until the mount has gone.
//!
//! ```text
//! start   read INIT, prepare the rings, answer INIT, register the rings -> or fall back -> started -> readers
//! run     readers end (ENODEV) -> rings end -> late answers have their grace -> destroyed
//! ```
//!
//! Truths kept here:
//! - When `start` returns an error there is no mount and no thread left behind that would keep one.
//! - When `run` returns, no request is being served, and the mount is out of the tree, whatever ended the session.

#![expect(unsafe_code, reason = "read(2) from a descriptor that is shared")]

use crate::counters::Meter;
use crate::crew::Crew;
use crate::device::{self, Line};
use crate::mount::{Mount, Unmounter, clone_device};
use crate::notify::{Notifier, write_answer};
use crate::ring::{self, Plan, RingSupport, Rings};
use crate::service::{Served, Service};
use crate::settings::{self, Negotiated, Settings, Transport};
use crate::wire;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of the buffer INIT is read into; the kernel refuses to fill a smaller one.
const INIT_BYTES: usize = 8192;

/// A mount being served. Dropped, it is ended by force.
pub struct Session {
    negotiated: Negotiated,
    crew: Arc<Crew>,
    notifier: Notifier,
    unmounter: Unmounter,
    grace: Duration,
    threads: Option<Threads>,
}

struct Threads {
    readers: Vec<JoinHandle<io::Result<()>>>,
    rings: Option<Rings>,
    /// Finishing late answers, and sending notices.
    helpers: Vec<JoinHandle<()>>,
}

impl Session {
    /// Agrees with the kernel on how to talk, and starts serving. When it returns, the mount is usable.
    pub fn start<S: Service>(mount: Mount, service: Arc<S>, settings: &Settings) -> io::Result<Session> {
        let unmounter = mount.unmounter();
        let result = start(mount, service, settings);
        if result.is_err() {
            // By force, or whoever is inside already waits for ever.
            let _ = unmounter.abort();
        }
        result
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

    /// Waits until the mount has gone and all requests are answered or their grace is over. An error says what broke
    /// the connection; the session is over all the same.
    pub fn run(mut self) -> io::Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> io::Result<()> {
        let Some(Threads { readers, rings, helpers }) = self.threads.take() else { return Ok(()) };
        let mut result = Ok(());
        for reader in readers {
            result = result.and(reader.join().unwrap_or_else(|_| Err(io::Error::other("a reader panicked"))));
        }
        if let Some(rings) = rings {
            rings.finish();
        }
        self.notifier.close();
        self.crew.late.close(self.grace);
        for helper in helpers {
            let _ = helper.join();
        }
        // After an abort the mount is still in the tree, and answers ENOTCONN.
        let _ = self.unmounter.detach();
        self.crew.handler.destroyed();
        result
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.threads.is_some() {
            let _ = self.unmounter.abort();
            let _ = self.finish();
        }
    }
}

fn start<S: Service>(mount: Mount, service: Arc<S>, settings: &Settings) -> io::Result<Session> {
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
        match Rings::prepare(plan) {
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
    crew.handler.started(&negotiated);

    let notifier = Notifier::new(device.clone());
    let spawned = Threads::spawn(&crew, &notifier, &device, &unmounter, reader_count(&negotiated, settings));
    let threads = spawned.inspect_err(|_| {
        notifier.close();
        crew.late.close(Duration::ZERO);
    })?;
    if let Some(rings) = rings.as_ref().filter(|_| negotiated.transport == Transport::Ring) {
        rings.serve();
    }
    let threads = Some(Threads { rings, ..threads });
    Ok(Session { negotiated, crew, notifier, unmounter, grace: settings.grace, threads })
}

impl Threads {
    fn spawn(
        crew: &Arc<Crew>,
        notifier: &Notifier,
        device: &Arc<OwnedFd>,
        unmounter: &Unmounter,
        readers: usize,
    ) -> io::Result<Threads> {
        let (late, notices) = (crew.late.clone(), notifier.clone());
        let helpers = vec![
            Builder::new().name("fuse-late".to_owned()).spawn(move || late.run())?,
            Builder::new().name("fuse-notify".to_owned()).spawn(move || notices.run())?,
        ];
        let reader = |number: usize| {
            // Where descriptors run out, sharing the first is slower, not wrong.
            let own = if number == 0 { None } else { clone_device(device).ok().map(Arc::new) };
            let line = Line::new(own.unwrap_or_else(|| device.clone()), crew.meter.tally());
            let (crew, unmounter) = (crew.clone(), unmounter.clone());
            Builder::new().name(format!("fuse-read-{number}")).spawn(move || {
                // Nobody must wait for a request that will not be answered: one reader's failure ends all.
                device::run(&crew, &line).inspect_err(|_| drop(unmounter.abort()))
            })
        };
        let readers = (0..readers).map(reader).collect::<io::Result<_>>()?;
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
