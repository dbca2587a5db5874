//! The real platform: directories, the system's clock and randomness, a thread per task.
#![expect(clippy::disallowed_methods, reason = "this module is the door that the ban points to")]

mod aside;
mod call;
mod directory;
mod question;
mod rank;
mod watch;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base::time::Timestamp;
use tokio::sync::oneshot;

use aside::{Aside, Before, Job, carry};
pub use directory::Directory;
pub use rank::give_way;
pub use watch::{patience, set_patience};

use crate::task::{Boxed, Tasks};
use crate::{Chance, Clock, Platform};

/// The real platform of this process.
///
/// Called first on a thread that may run everywhere: those that compute, and those for what runs aside, get its CPUs.
#[must_use]
pub fn platform() -> Platform {
    static CORES: Once = Once::new();
    // A program that made them itself has its own wishes. Made here, and not by the first who computes: that may be a thread
    // that is tied to one CPU, and all of them would be.
    CORES.call_once(|| drop(rayon::ThreadPoolBuilder::new().build_global()));
    rank::begin();
    watch::start();
    // Its thread for timers begins with the first of them, and has the rank of who asks for that.
    drop(futures_timer::Delay::new(Duration::ZERO));
    Platform {
        clock: Arc::new(SystemClock { start: Instant::now() }),
        chance: Arc::new(SystemChance),
        tasks: Arc::new(Threads { aside: aside(), behind: aside_behind() }),
    }
}

/// The threads of this process for what waits for a disk.
fn aside() -> &'static Aside {
    static ASIDE: OnceLock<Aside> = OnceLock::new();
    ASIDE.get_or_init(Aside::new)
}

/// Those for work in masses.
fn aside_behind() -> &'static Aside {
    static BEHIND: OnceLock<Aside> = OnceLock::new();
    BEHIND.get_or_init(Aside::behind)
}

/// Those that have the rank of the calling thread.
fn aside_alike() -> &'static Aside {
    if rank::is_behind() { aside_behind() } else { aside() }
}

struct SystemClock {
    start: Instant,
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => Timestamp::new(i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos()),
            // A clock before 1970 is broken; its files read 1970.
            Err(_) => Timestamp::default(),
        }
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

struct SystemChance;

impl Chance for SystemChance {
    fn fill(&self, bytes: &mut [u8]) {
        let mut filled = 0;
        while filled < bytes.len() {
            match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
                Ok(count) => filled += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("the kernel gives no random bytes: {error}"),
            }
        }
    }
}

/// What must not end by a panic: nobody would do its work from then on, and who waits for it would wait for ever. Recovery is sound.
struct Indispensable;

impl Drop for Indispensable {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

struct Threads {
    aside: &'static Aside,
    behind: &'static Aside,
}

impl Threads {
    fn run_aside(aside: &Aside, task: Boxed<()>) {
        if let Err(job) = aside.run(Job::Task(task)) {
            // No more threads in this system: the caller then waits with the others.
            aside::finish(job);
        }
    }
}

impl Tasks for Threads {
    fn spawn(&self, name: &str, task: Boxed<()>) {
        let builder = std::thread::Builder::new().name(name.to_owned());
        // Whichever thread carries it.
        let task = Box::pin(async move {
            let indispensable = Indispensable;
            task.await;
            std::mem::forget(indispensable);
        });
        builder.spawn(move || carry(task)).expect("the system starts a thread");
    }

    fn spawn_behind(&self, name: &str, task: Boxed<()>) {
        self.spawn(
            name,
            Box::pin(async move {
                give_way();
                task.await;
            }),
        );
    }

    fn aside(&self, task: Boxed<()>) {
        Threads::run_aside(self.aside, task);
    }

    fn aside_behind(&self, task: Boxed<()>) {
        Threads::run_aside(self.behind, task);
    }

    fn sleep(&self, duration: Duration) -> Boxed<()> {
        Box::pin(futures_timer::Delay::new(duration))
    }

    fn compute(&self, jobs: Vec<Box<dyn FnOnce() + Send + '_>>) {
        fn begin<'a>(scope: &rayon::Scope<'a>, jobs: Vec<Box<dyn FnOnce() + Send + 'a>>) {
            jobs.into_iter().for_each(|job| scope.spawn(move |_| job()));
        }
        match rank::cores() {
            Some(cores) => cores.scope(|scope| begin(scope, jobs)),
            None => rayon::scope(|scope| begin(scope, jobs)),
        }
    }

    fn compute_beside(&self, job: Box<dyn FnOnce() + Send>) {
        // Who waits for what a job says hears of a panic by its silence; without this it would end the process.
        let run = move || drop(catch_unwind(AssertUnwindSafe(job)));
        match rank::cores() {
            Some(cores) => cores.spawn(run),
            None => rayon::spawn(run),
        }
    }
}

/// Polls a future to completion on this thread, which sleeps while the future waits. Disks are waited for elsewhere, and only so long.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let _before = Before::closed();
    let mut future = std::pin::pin!(future);
    with_waker(|waker| {
        let mut context = Context::from_waker(waker);
        loop {
            match future.as_mut().poll(&mut context) {
                Poll::Ready(value) => {
                    // What it woke for may be the concern of who polls something else further up.
                    waker.wake_by_ref();
                    return value;
                }
                Poll::Pending => sleep(),
            }
        }
    })
}

/// The same for what asks disks for much and need not be this thread's: one that waits for them carries it, without another for each answer.
///
/// # Panics
/// If the future does.
pub fn carry_out<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    let (send, receive) = oneshot::channel();
    let task = Box::pin(async move { drop(send.send(future.await)) });
    if let Err(job) = aside_alike().run(Job::Task(task)) {
        aside::finish(job);
    }
    block_on(receive).expect("it does not panic")
}

/// What wakes a thread. Not its token for parking alone: others take that too, such as a channel on which the thread waits meanwhile.
struct Alarm {
    thread: std::thread::Thread,
    has_rung: AtomicBool,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.has_rung.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

thread_local! {
    static ALARM: Arc<Alarm> = Arc::new(Alarm { thread: std::thread::current(), has_rung: AtomicBool::new(false) });
    static WAKER: Waker = ALARM.with(|alarm| Waker::from(Arc::clone(alarm)));
}

/// Has what wakes this thread used.
fn with_waker<T>(use_it: impl FnOnce(&Waker) -> T) -> T {
    WAKER.with(use_it)
}

/// Sleeps until this thread has been woken since it slept last. Once too often only polls once more.
fn sleep() {
    ALARM.with(|alarm| {
        while !alarm.has_rung.swap(false, Ordering::SeqCst) {
            std::thread::park();
        }
    });
}
