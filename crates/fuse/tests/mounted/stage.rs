//! Mounting for a test, and cleaning up whatever happens.

use crate::memory::Memory;
use fuse::{MountOptions, Parked, Parker, Session, Settings, Transport, Unmounter};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// A case that takes longer than this hangs: its mount is ended by force, and its calls fail.
const PATIENCE: Duration = Duration::from_secs(60);

/// A mounted file system and its session.
pub(crate) struct Stage {
    pub(crate) service: Arc<Memory>,
    pub(crate) notifier: fuse::Notifier,
    pub(crate) unmounter: Unmounter,
    parker: Parker,
    settings: Settings,
    directory: PathBuf,
    session: Option<JoinHandle<io::Result<Option<Parked>>>>,
    /// Dropped when the stage is: the watchdog goes home.
    _alarm: mpsc::Sender<()>,
}

/// Runs a case over /dev/fuse.
pub(crate) fn on_device(case: fn(&mut Stage)) {
    run(Transport::Device, case);
}

/// Runs a case over io_uring, switched on for the time of the case.
pub(crate) fn on_ring(case: fn(&mut Stage)) {
    match Switch::on() {
        Ok(_switch) => run(Transport::Ring, case),
        Err(reason) => skipped::because(format_args!("{reason}")),
    }
}

fn run(transport: Transport, case: fn(&mut Stage)) {
    match Stage::new(transport) {
        Ok(mut stage) => {
            case(&mut stage);
            stage.service.gate.open();
            stage.service.locks.open();
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
            skipped::because(format_args!("FUSE cannot be mounted here: {error}"));
        }
        Err(error) => panic!("mounting over {transport:?}: {error}"),
    }
}

impl Stage {
    fn new(transport: Transport) -> io::Result<Stage> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("hydrafs-fuse-{}-{number}", std::process::id()));
        std::fs::create_dir(&directory)?;
        let started = start(&directory, transport).inspect_err(|_| drop(std::fs::remove_dir(&directory)));
        let (service, settings, session) = started?;
        let (notifier, unmounter, parker) = (session.notifier(), session.unmounter(), session.parker());
        let (alarm, silence) = mpsc::channel();
        watch(unmounter.clone(), silence)?;
        let session = std::thread::Builder::new().name("session".to_owned()).spawn(move || session.run())?;
        let session = Some(session);
        Ok(Stage { service, notifier, unmounter, parker, settings, directory, session, _alarm: alarm })
    }

    /// Brings the session to a stand.
    pub(crate) fn park(&mut self, patience: Duration) -> io::Result<Parked> {
        self.parker.park(patience)?;
        let session = self.session.take().expect("it runs").join().expect("the session does not panic");
        Ok(session?.expect("it is parked"))
    }

    /// Goes on with it, as another process would: nothing is left but a descriptor and bytes.
    pub(crate) fn resume(&mut self, parked: Parked) -> io::Result<()> {
        let (device, bytes) = (parked.device().try_clone()?, parked.encode());
        drop(parked);
        let session = Session::resume(Parked::decode(device, &bytes)?, self.service.clone(), &self.settings)?;
        (self.notifier, self.unmounter, self.parker) = (session.notifier(), session.unmounter(), session.parker());
        let run = std::thread::Builder::new().name("session".to_owned()).spawn(move || session.run())?;
        self.session = Some(run);
        Ok(())
    }

    /// A path in the mount.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Waits until the session has ended.
    pub(crate) fn join(&mut self) -> io::Result<()> {
        self.session.take().expect("joined once").join().expect("the session does not panic").map(drop)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.service.gate.open();
        self.service.locks.open();
        // By the mount's own number, so that nothing else can be hit.
        drop(self.unmounter.abort());
        if let Some(session) = self.session.take() {
            drop(session.join());
        }
        drop(std::fs::remove_dir(&self.directory));
    }
}

fn start(directory: &Path, transport: Transport) -> io::Result<(Arc<Memory>, Settings, Session)> {
    let options = MountOptions { source: "a source".to_owned(), allow_other: true, ..Default::default() };
    let mount = fuse::mount(directory, &options)?;
    let service = Memory::new(false);
    let mut settings = Settings { transport, threads: 2, ring_depth: 2, ..Default::default() };
    settings.features.posix_locks = true;
    settings.grace = Duration::from_millis(200);
    let session = Session::start(mount, service.clone(), &settings, drop)?;
    assert_eq!(session.negotiated().transport, transport);
    Ok((service, settings, session))
}

fn watch(unmounter: Unmounter, silence: mpsc::Receiver<()>) -> io::Result<()> {
    let watch = move || {
        if silence.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("a case hangs: its mount is ended by force");
            drop(unmounter.abort());
        }
    };
    std::thread::Builder::new().name("watchdog".to_owned()).spawn(watch).map(drop)
}

/// FUSE over io_uring switched on; the last one to go puts the kernel's parameter back.
struct Switch;

static USERS: Mutex<(usize, bool)> = Mutex::new((0, false));
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

impl Switch {
    fn on() -> Result<Switch, String> {
        let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
        if users.0 == 0 {
            users.1 = match fuse::ring_support() {
                fuse::RingSupport::Available => false,
                fuse::RingSupport::Missing => return Err("this kernel has no FUSE over io_uring".to_owned()),
                fuse::RingSupport::Disabled => {
                    fuse::enable_ring().map_err(|error| format!("fuse.enable_uring is N and stays N: {error}"))?;
                    true
                }
            };
        }
        users.0 += 1;
        Ok(Switch)
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
        users.0 -= 1;
        if users.0 == 0 && users.1 {
            drop(std::fs::write(PARAMETER, "N"));
        }
    }
}
