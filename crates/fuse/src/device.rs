//! The transport every kernel has: read(2) a request from /dev/fuse, write(2) its answer.
//!
//! Each reader thread has a descriptor of its own (`FUSE_DEV_IOC_CLONE`), and the kernel wants an answer on the
//! descriptor its request was read from: the `Line`. A reader polls the file system once and, if the answer is not
//! ready, puts the future aside (`late`) and reads on with another buffer.
//!
//! A reader that is to park is woken by a request that the session makes itself (`session::Parker`); it serves it, and stops.
//!
//! With io_uring one reader stays, because FORGET, INTERRUPT and the end of the session still come this way. A bell wakes that one.

#![expect(unsafe_code, reason = "read(2) into a mapping shared with no one; poll(2)")]

use crate::buffer::{Area, DEVICE_AT, ROOM_AT};
use crate::counters::Tally;
use crate::crew::{self, Crew, Duty};
use crate::exchange::{Core, Exchange, Home};
use crate::late::Task;
use crate::lock::lock;
use crate::notify::write_answer;
use crate::service;
use crate::wire;
use std::io::{self, PipeReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// Buffers a line keeps for later. More are made when many answers are late, and given back when they are done.
const SPARE_COUNT_MAX: usize = 16;
/// Late answers a reader finishes before it reads on.
const HELP_COUNT: usize = 16;
/// Bytes of a request's header.
const HEADER_BYTES: usize = size_of::<wire::InHeader>();

/// A descriptor of the connection, and buffers for the requests read from it.
pub(crate) struct Line {
    device: Arc<OwnedFd>,
    tally: Arc<Tally>,
    /// Readable when the reader is to look at the park. Only where the line is alone and seldom read: a wait for both costs one
    /// more call, and wakes all readers. Then the device does not block: what it was readable for may have gone before it is read
    /// (as an INTERRUPT does when its request is answered over a ring), and who sleeps in read(2) hears no bell.
    bell: Option<Arc<PipeReader>>,
    /// Cores at rest; without a home, or line and core would keep each other alive.
    #[expect(clippy::vec_box, reason = "an exchange is a box; taking one out must not move its inside")]
    spare: Mutex<Vec<Box<Core>>>,
}

impl Home for Line {
    fn answer(&self, mut core: Box<Core>) {
        write_answer(&self.device, core.header.unique, core.error(), core.body());
        if let Some(arrived) = core.arrived.take() {
            self.tally.answered(core.header.opcode, arrived);
        }
        core.home = None;
        self.keep(core);
    }
}

impl Line {
    pub(crate) fn new(device: Arc<OwnedFd>, tally: Arc<Tally>, bell: Option<Arc<PipeReader>>) -> Arc<Line> {
        Arc::new(Line { device, tally, bell, spare: Mutex::default() })
    }

    fn keep(&self, core: Box<Core>) {
        let mut spare = lock(&self.spare);
        if spare.len() < SPARE_COUNT_MAX {
            spare.push(core);
        }
    }

    fn core(&self, payload_bytes: usize) -> io::Result<Box<Core>> {
        match lock(&self.spare).pop() {
            Some(core) => Ok(core),
            None => Ok(Box::new(Core::new(Area::new(payload_bytes)?, None, 0))),
        }
    }
}

/// Serves requests from `line` until the session ends or is parked. An error is one no session survives.
pub(crate) fn run(crew: &Crew, line: &Arc<Line>) -> io::Result<()> {
    let mut task = crew.late.task();
    loop {
        crew.late.help(HELP_COUNT);
        if crew.park.is_wanted() && crew.park.stop() {
            return Ok(());
        }
        if let Some(bell) = &line.bell
            && !wait(&line.device, bell)
        {
            continue;
        }
        let mut core = line.core(crew.payload_bytes)?;
        let bytes = match read(&line.device, &mut core.area, crew.payload_bytes) {
            Ok(bytes) => bytes,
            Err(error) => match error.raw_os_error() {
                // Unmounted, or ended by force.
                Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(()),
                // A signal; nothing there after all; the request was given up while it was being read.
                Some(libc::EINTR | libc::EAGAIN | libc::ENOENT) => {
                    line.keep(core);
                    continue;
                }
                _ => return Err(error),
            },
        };
        let arrived = Instant::now();
        if bytes < HEADER_BYTES {
            return Err(io::Error::other(format!("a request of {bytes} bytes from /dev/fuse")));
        }
        core.begin(DEVICE_AT, DEVICE_AT + HEADER_BYTES..DEVICE_AT + bytes, ROOM_AT..ROOM_AT, crew.dialect);
        match crew.take(&core, &line.tally) {
            Duty::Nothing => line.keep(core),
            Duty::Agree => write_answer(&line.device, core.header.unique, 0, (&[], &[])),
            Duty::Serve => {
                core.home = Some(line.clone());
                core.arrived = Some(arrived);
                serve(crew, core, &mut task, &line.tally);
            }
        }
    }
}

/// Serves one request as far as it gets without waiting.
fn serve(crew: &Crew, core: Box<Core>, task: &mut Arc<Task>, tally: &Tally) {
    if !Task::reset(task) {
        *task = crew.late.task();
    }
    let interruptible = crew::interruptible(&core);
    let Some(mut future) = service::begin(crew.handler.as_ref(), Exchange::new(core)) else { return };
    let waker = Waker::from(task.clone());
    match service::poll(&mut future, &mut Context::from_waker(&waker)) {
        Poll::Ready(Some(exchange)) => exchange.send(),
        Poll::Ready(None) => {}
        Poll::Pending => {
            tally.counters.late.add(1);
            task.clone().park(future, interruptible);
        }
    }
}

/// Waits for a request or the bell. False: there is no request yet.
fn wait(device: &OwnedFd, bell: &PipeReader) -> bool {
    let wanted = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut waited = [wanted(device.as_raw_fd()), wanted(bell.as_raw_fd())];
    // SAFETY: two structures that live during the call, which fills in what has come.
    let result = unsafe { libc::poll(waited.as_mut_ptr(), 2, -1) };
    // An error is met again by the read.
    (result < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted) || waited[0].revents != 0
}

/// Reads one request into the area, so that the data of a WRITE starts at `ROOM_AT`.
fn read(device: &OwnedFd, area: &mut Area, payload_bytes: usize) -> io::Result<usize> {
    let bytes = ROOM_AT - DEVICE_AT + payload_bytes;
    assert!(DEVICE_AT + bytes <= area.len(), "an area has a page and the payload");
    // SAFETY: `bytes` bytes from there on lie inside the area (asserted), which `&mut` makes ours for the call.
    let result = unsafe { libc::read(device.as_raw_fd(), area.address(DEVICE_AT).cast(), bytes) };
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
