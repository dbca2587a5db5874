//! Who watches the threads that wait for devices: what takes longer than the patience is given up, and the task that the thread carried goes on on
//! another one.
//!
//! Time is counted in ticks of the watch itself, and not by a clock: a process that was stopped, or a machine that slept, gives up nothing,
//! for the watch has slept as well.
//!
//! Not here: what giving up means (`call`), the threads (`aside`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::aside::{Aside, Job};
use super::call::{Blocking, Patience};
use super::rank::is_behind;
use super::{aside, aside_behind};
use crate::task::Boxed;

/// The kernel's own limits, with their repetitions, are about as long.
const PATIENCE: Duration = Duration::from_secs(120);
/// Ticks of a patience.
const TICKS: u32 = 16;
/// How long a device that was given up is waited for at least.
const SHORT: Duration = Duration::from_secs(2);

static PATIENCE_MILLIS: AtomicU64 = AtomicU64::new(PATIENCE.as_millis() as u64);

/// Sets how long this process waits for a device that does not answer. To be called first.
pub fn set_patience(patience: Duration) {
    let millis = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
    PATIENCE_MILLIS.store(millis.max(1), Ordering::Relaxed);
}

/// How long that is.
#[must_use]
pub fn patience() -> Duration {
    Duration::from_millis(PATIENCE_MILLIS.load(Ordering::Relaxed))
}

/// What one thread is doing that may take for ever.
#[derive(Default)]
pub(super) struct Post(Mutex<Option<Doing>>);

struct Doing {
    call: Arc<dyn Blocking>,
    /// What the thread goes on with when the call has returned.
    task: Option<Boxed<()>>,
    ticks: u32,
    /// The thread gives way to others, and so will the one that goes on.
    is_behind: bool,
}

impl Post {
    /// Of the calling thread.
    pub(super) fn own() -> Arc<Post> {
        thread_local! {
            static OWN: Arc<Post> = begin(Arc::default());
        }
        OWN.with(Arc::clone)
    }

    /// Makes a call on this thread. Gives the task back, unless that goes on elsewhere because the call took too long.
    pub(super) fn make(&self, call: Arc<dyn Blocking>, task: Option<Boxed<()>>) -> Option<Boxed<()>> {
        let is_behind = is_behind();
        let doing = Doing { call: Arc::clone(&call), task, ticks: 0, is_behind };
        *self.0.lock() = Some(doing);
        call.run();
        self.0.lock().take().and_then(|doing| doing.task)
    }

    /// Time has passed. The task, if it is to go on elsewhere, and there.
    fn tick(&self) -> Option<(&'static Aside, Job)> {
        let mut doing = self.0.lock();
        let doing = doing.as_mut()?;
        doing.ticks = doing.ticks.saturating_add(1);
        let task = if doing.call.waits(doing.ticks, ticks()) { doing.task.take()? } else { return None };
        Some((if doing.is_behind { aside_behind() } else { aside() }, Job::Task(task)))
    }
}

/// The patience in ticks.
fn ticks() -> Patience {
    let tick = (patience() / TICKS).as_millis().max(1);
    let short = u32::try_from(SHORT.as_millis().div_ceil(tick)).unwrap_or(TICKS);
    Patience { usual: TICKS, short: short.clamp(1, TICKS) }
}

static POSTS: Mutex<Vec<Weak<Post>>> = Mutex::new(Vec::new());

/// From now on the watch sees this one.
fn begin(post: Arc<Post>) -> Arc<Post> {
    POSTS.lock().push(Arc::downgrade(&post));
    start();
    post
}

/// Starts the watch, if that was not done before.
pub(super) fn start() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        std::thread::Builder::new().name("disk-watch".to_owned()).spawn(watch).expect("the system starts a thread");
    });
}

fn watch() {
    // For which the system had no thread yet.
    let mut homeless: Vec<(&Aside, Job)> = Vec::new();
    loop {
        std::thread::sleep(patience() / TICKS);
        let mut posts = Vec::new();
        POSTS.lock().retain(|post| post.upgrade().map(|post| posts.push(post)).is_some());
        homeless.extend(posts.iter().filter_map(|post| post.tick()));
        homeless = homeless.into_iter().filter_map(|(to, job)| to.run(job).err().map(|job| (to, job))).collect();
    }
}

#[cfg(test)]
mod tests;
