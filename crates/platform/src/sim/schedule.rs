//! Tasks, one at a time.
//!
//! One thread polls one task at a time. The next is drawn from all that are ready; when none is, the clock jumps to the
//! earliest timer; when there is no timer either, nothing can ever happen again and the run ends with [`Halt::Deadlock`].
//!
//! Nothing of the schedule is locked while a task is polled or dropped, because both call back: they wake, spawn and sleep.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use base::hash::checksum;
use parking_lot::Mutex;

use super::power::Power;
use super::random::Random;
use super::timeline::Timeline;
use crate::task::{Boxed, Tasks};
use crate::{Chance, Clock};

/// What a run came to.
pub type Outcome<T> = Result<T, Halt>;

/// Why a run ended before its future did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Halt {
    /// Everything waits for something else, and no timer is set.
    Deadlock {
        /// Names of the spawned tasks that wait, besides the future of the run itself.
        waiting: Vec<String>,
    },
    /// It went on for too long: probably in a circle.
    StepLimit {
        /// The limit.
        steps: u64,
    },
}

impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Halt::Deadlock { waiting } => {
                write!(f, "deadlock: nothing is ready and no timer is set; waiting tasks besides the root: {waiting:?}")
            }
            Halt::StepLimit { steps } => write!(f, "not finished after {steps} steps"),
        }
    }
}

impl std::error::Error for Halt {}

/// The future of a run; spawned tasks count from 1.
const ROOT: u64 = 0;
const STEP_LIMIT: u64 = 20_000_000;

/// Everything of a world but its disks.
pub(super) struct Machine {
    pub(super) seed: u64,
    pub(super) power: Power,
    pub(super) timeline: Arc<Timeline>,
    ready: Arc<Ready>,
    schedule: Mutex<Schedule>,
    trace: Mutex<u64>,
}

struct Schedule {
    step_limit: u64,
    tasks: BTreeMap<u64, Task>,
    task_last: u64,
    order: Random,
    chance: Random,
    is_running: bool,
    /// While tasks are being dropped: what they spawn dies with them.
    is_dying: bool,
}

struct Task {
    name: String,
    /// `None` while it is being polled.
    future: Option<Boxed<()>>,
    waker: Waker,
}

impl Machine {
    pub(super) fn new(seed: u64) -> Arc<Machine> {
        Arc::new(Machine {
            seed,
            power: Power::new(),
            timeline: Timeline::new(),
            ready: Arc::new(Ready(Mutex::new(BTreeSet::new()))),
            schedule: Mutex::new(Schedule {
                step_limit: STEP_LIMIT,
                tasks: BTreeMap::new(),
                task_last: ROOT,
                order: Random::stream(seed, "order"),
                chance: Random::stream(seed, "chance"),
                is_running: false,
                is_dying: false,
            }),
            trace: Mutex::new(seed),
        })
    }

    pub(super) fn run<T>(&self, future: impl Future<Output = T>) -> Outcome<T> {
        let mut value = None;
        self.drive(pin!(async { value = Some(future.await) }))?;
        Ok(value.expect("it came to its end"))
    }

    /// Compiled once, and not for each of the hundreds of tests that run something.
    fn drive(&self, mut root: Pin<&mut dyn Future<Output = ()>>) -> Outcome<()> {
        let _running = Running::begin(self);
        let steps = self.schedule.lock().step_limit;
        let waker = self.ready.waker(ROOT);
        let mut context = Context::from_waker(&waker);
        waker.wake_by_ref();
        for _ in 0..steps {
            match self.pick() {
                Some(ROOT) => {
                    if root.as_mut().poll(&mut context).is_ready() {
                        return Ok(());
                    }
                }
                Some(number) => self.step(number),
                None if self.timeline.advance() => {}
                None => return Err(Halt::Deadlock { waiting: self.names() }),
            }
        }
        Err(Halt::StepLimit { steps })
    }

    /// Drops all tasks. A task that is being polled is dropped when its poll returns.
    pub(super) fn drop_tasks(&self) {
        let tasks = {
            let mut schedule = self.schedule.lock();
            schedule.is_dying = true;
            std::mem::take(&mut schedule.tasks)
        };
        drop(tasks);
        self.schedule.lock().is_dying = false;
    }

    pub(super) fn set_step_limit(&self, steps: u64) {
        self.schedule.lock().step_limit = steps;
    }

    pub(super) fn trace(&self) -> u64 {
        *self.trace.lock()
    }

    /// Adds an event to the trace.
    pub(super) fn note(&self, what: &str, name: &str, numbers: &[u64]) {
        let mut trace = self.trace.lock();
        *trace = checksum(checksum(*trace, what.as_bytes()), name.as_bytes());
        for number in numbers {
            *trace = checksum(*trace, &number.to_le_bytes());
        }
    }

    fn pick(&self) -> Option<u64> {
        let mut ready = self.ready.0.lock();
        let mut schedule = self.schedule.lock();
        if ready.is_empty() {
            return None;
        }
        let index = schedule.order.index(ready.len());
        let number = *ready.iter().nth(index).expect("an index below the count");
        ready.remove(&number);
        drop(schedule);
        let nanos = u64::try_from(self.timeline.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.note("step", "", &[number, nanos]);
        Some(number)
    }

    fn step(&self, number: u64) {
        let taken = self.schedule.lock().tasks.get_mut(&number).and_then(|task| {
            // A waker of a task that is complete, or was dropped, wakes nobody.
            Some((task.future.take()?, task.waker.clone()))
        });
        let Some((mut future, waker)) = taken else { return };
        let poll = future.as_mut().poll(&mut Context::from_waker(&waker));
        let mut schedule = self.schedule.lock();
        match schedule.tasks.get_mut(&number) {
            Some(task) if poll.is_pending() => {
                task.future = Some(future);
                return;
            }
            Some(_) => drop(schedule.tasks.remove(&number)),
            None => {}
        }
        // Out of the lock, the future is dropped.
        drop(schedule);
        drop(future);
    }

    fn names(&self) -> Vec<String> {
        self.schedule.lock().tasks.values().map(|task| task.name.clone()).collect()
    }
}

impl Tasks for Machine {
    fn spawn(&self, name: &str, task: Boxed<()>) {
        let mut schedule = self.schedule.lock();
        if schedule.is_dying {
            drop(schedule);
            drop(task);
            return;
        }
        schedule.task_last += 1;
        let number = schedule.task_last;
        let waker = self.ready.waker(number);
        let entry = Task { name: name.to_owned(), future: Some(task), waker: waker.clone() };
        schedule.tasks.insert(number, entry);
        drop(schedule);
        self.note("spawn", name, &[number]);
        waker.wake();
    }

    fn aside(&self, task: Boxed<()>) {
        self.spawn("aside", task);
    }

    fn sleep(&self, duration: Duration) -> Boxed<()> {
        self.timeline.sleep(duration)
    }

    /// In a random order: no result may depend on it.
    fn compute(&self, mut jobs: Vec<Box<dyn FnOnce() + Send + '_>>) {
        self.schedule.lock().order.shuffle(&mut jobs);
        jobs.into_iter().for_each(|job| job());
    }

    fn compute_beside(&self, job: Box<dyn FnOnce() + Send>) {
        job();
    }
}

impl Chance for Machine {
    fn fill(&self, bytes: &mut [u8]) {
        self.schedule.lock().chance.fill(bytes);
    }
}

/// Tasks to poll. Apart from the schedule, so that a waker kept anywhere keeps no task alive.
struct Ready(Mutex<BTreeSet<u64>>);

impl Ready {
    fn waker(self: &Arc<Self>, number: u64) -> Waker {
        Waker::from(Arc::new(Bell { ready: self.clone(), number }))
    }
}

struct Bell {
    ready: Arc<Ready>,
    number: u64,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.0.lock().insert(self.number);
    }
}

/// Holds the rule that a world runs one run at a time, also when a task panics.
struct Running<'a>(&'a Machine);

impl Running<'_> {
    fn begin(machine: &Machine) -> Running<'_> {
        let was_running = std::mem::replace(&mut machine.schedule.lock().is_running, true);
        assert!(!was_running, "run_until inside run_until: spawn a task instead");
        Running(machine)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.schedule.lock().is_running = false;
    }
}
