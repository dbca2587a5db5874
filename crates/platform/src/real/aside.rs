//! Threads for what waits for a disk. Each takes one task at a time and ends when it has had none for a while.
//!
//! An operation runs in the thread that polls it, disk and all. Where that thread serves others too, as a transport's does, waiting for a
//! disk would hold them all up: so reads wait here, and what is told to take long.
//!
//! Those for work in masses are threads of their own, which give way (`rank`). An ordinary one has been started by one that never did, whoever
//! gave it its task.
//!
//! No task waits for a thread, for one may be what another waits for. Who has many bounds them himself.
//!
//! A task that asks a disk for something on one of these threads, or on one that was spawned for it, lets go of the thread first: the call is made
//! there with nothing on the stack, when the task has been polled. So it costs no second thread, and where the call does not return the
//! task goes on elsewhere ([`carry`], `watch`).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem::replace;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::call::{Blocking, Call, Waiting};
use super::rank::{give_way, is_behind};
use super::watch::Post;
use super::{aside_alike, sleep, with_waker};
use crate::task::Boxed;

/// How long a thread waits for its next task before it ends.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a thread does.
pub(super) enum Job {
    /// Carries it to its end.
    Task(Boxed<()>),
    /// Makes it.
    Call(Arc<dyn Blocking>),
}

/// The threads and what waits for them.
pub(super) struct Aside {
    shared: Arc<Shared>,
    /// `None`: who gives a task starts a thread for it.
    starter: Option<Starter>,
}

struct Shared {
    name: &'static str,
    gives_way: bool,
    /// Where the threads may run.
    cpus: Option<CpuSet>,
    queue: Mutex<Queue>,
    arrived: Condvar,
}

#[derive(Default)]
struct Queue {
    /// With the number of each.
    waiting: VecDeque<(u64, Job)>,
    last: u64,
    idle: usize,
}

impl Aside {
    /// Their threads will run where the calling one may, and have its rank.
    pub(super) fn new() -> Aside {
        Aside { shared: Arc::new(Shared::new("aside", false)), starter: Starter::new() }
    }

    /// Their threads will run where the calling one may, and give way.
    pub(super) fn behind() -> Aside {
        Aside { shared: Arc::new(Shared::new("aside-behind", true)), starter: None }
    }

    /// Does it on a thread of ours; gives it back if the system starts no more of them.
    pub(super) fn run(&self, job: Job) -> Result<(), Job> {
        let mut queue = self.shared.queue.lock();
        queue.last += 1;
        let number = queue.last;
        queue.waiting.push_back((number, job));
        if queue.waiting.len() <= queue.idle {
            self.shared.arrived.notify_one();
            return Ok(());
        }
        drop(queue);
        let is_started = match &self.starter {
            Some(starter) if is_behind() => starter.start(Arc::clone(&self.shared)),
            _ => self.shared.start(),
        };
        if is_started {
            return Ok(());
        }
        let mut queue = self.shared.queue.lock();
        let at = queue.waiting.iter().position(|(waiting, _)| *waiting == number);
        // Not there: it found a thread meanwhile.
        at.and_then(|at| queue.waiting.remove(at)).map_or(Ok(()), |(_, job)| Err(job))
    }
}

/// A thread that starts threads for those that gave way: what they start has their rank, and to take up again takes a right.
struct Starter {
    orders: Mutex<Sender<(Arc<Shared>, Sender<bool>)>>,
}

impl Starter {
    /// Of the calling thread's rank. `None`: the system starts no more.
    fn new() -> Option<Starter> {
        let (orders, arrived) = channel::<(Arc<Shared>, Sender<bool>)>();
        let work = move || {
            for (shared, answer) in arrived {
                // Who asked waits.
                let _ = answer.send(shared.start());
            }
        };
        std::thread::Builder::new().name("aside-starter".to_owned()).spawn(work).ok()?;
        Some(Starter { orders: Mutex::new(orders) })
    }

    fn start(&self, shared: Arc<Shared>) -> bool {
        let (answer, answered) = channel();
        self.orders.lock().send((shared, answer)).is_ok() && answered.recv().unwrap_or(false)
    }
}

/// Does it on this thread.
pub(super) fn finish(job: Job) {
    match job {
        // Who waits for the task hears of a panic by its silence.
        Job::Task(task) => {
            drop(catch_unwind(AssertUnwindSafe(|| carry(task))));
            // What rang meanwhile may be the concern of who polls something else further up.
            with_waker(Waker::wake_by_ref);
        }
        Job::Call(call) => drop(Post::own().make(call, None)),
    }
}

/// What a call finds on the thread where it is asked for.
enum Here {
    /// Something that must not be kept waiting for ever.
    Closed,
    /// A task that is polled, and nothing else.
    Open,
    /// The same, and what this thread does when it was polled.
    Next(Arc<dyn Blocking>),
}

thread_local! {
    static HERE: RefCell<Here> = const { RefCell::new(Here::Closed) };
}

/// Puts back what there was, also when what came between panics.
pub(super) struct Before(Option<Here>);

impl Before {
    fn set(here: Here) -> Before {
        Before(Some(HERE.replace(here)))
    }

    /// Calls are made elsewhere from now on.
    pub(super) fn closed() -> Before {
        Before::set(Here::Closed)
    }

    /// What there is now.
    fn end(mut self) -> Here {
        HERE.replace(self.0.take().expect("taken once"))
    }
}

impl Drop for Before {
    fn drop(&mut self) {
        if let Some(before) = self.0.take() {
            HERE.set(before);
        }
    }
}

/// Carries a task to its end on this thread, which makes the calls that it asks for, one at a time. Where one takes too long another thread
/// has the task, and this one returns when the call does.
pub(super) fn carry(mut task: Boxed<()>) {
    let post = Post::own();
    loop {
        let before = Before::set(Here::Open);
        let polled = with_waker(|waker| task.as_mut().poll(&mut Context::from_waker(waker)));
        match (polled, before.end()) {
            // A call that is left over was asked for and then not wanted.
            (Poll::Ready(()), _) => return,
            (Poll::Pending, Here::Next(call)) => match post.make(call, Some(task)) {
                Some(back) => task = back,
                None => return,
            },
            (Poll::Pending, _) => sleep(),
        }
    }
}

/// Has a call made: by this thread, when the task that asks is pending, or by another.
pub(super) fn begin<T: Send + 'static>(call: Arc<Call<T>>) -> Waiting<T> {
    if call.is_wanted() {
        let is_ours = HERE.with_borrow_mut(|here| {
            let is_free = matches!(here, Here::Open);
            if is_free {
                let _ = replace(here, Here::Next(Arc::clone(&call) as Arc<dyn Blocking>));
            }
            is_free
        });
        if !is_ours {
            elsewhere(Arc::clone(&call));
        }
    }
    Waiting::new(call)
}

/// Has a call made by another thread and waits for it in this one, which therefore waits no longer than the patience.
pub(super) fn ask<T: Send + 'static>(call: Arc<Call<T>>) -> Result<T, crate::disk::DiskError> {
    if call.is_wanted() {
        elsewhere(Arc::clone(&call));
    }
    call.wait()
}

/// Has a call made by another thread, whoever waits for it.
pub(super) fn elsewhere<T: Send + 'static>(call: Arc<Call<T>>) {
    // This thread must not wait for ever.
    if let Err(Job::Call(call)) = aside_alike().run(Job::Call(call)) {
        call.refuse();
    }
}

impl Shared {
    fn new(name: &'static str, gives_way: bool) -> Shared {
        let cpus = sched_getaffinity(None).ok();
        Shared { name, gives_way, cpus, queue: Mutex::default(), arrived: Condvar::new() }
    }

    /// Starts a thread. False: the system starts no more.
    fn start(self: &Arc<Shared>) -> bool {
        let shared = Arc::clone(self);
        std::thread::Builder::new().name(self.name.to_owned()).spawn(move || shared.work()).is_ok()
    }

    fn work(&self) {
        // The thread that started this one may be tied to a CPU, and the tie is inherited. A refusal only costs speed.
        let _ = self.cpus.map(|cpus| sched_setaffinity(None, &cpus));
        if self.gives_way {
            give_way();
        }
        let mut queue = self.queue.lock();
        loop {
            if let Some((_, job)) = queue.waiting.pop_front() {
                drop(queue);
                finish(job);
                queue = self.queue.lock();
                continue;
            }
            queue.idle += 1;
            let timeout = self.arrived.wait_for(&mut queue, PATIENCE);
            queue.idle -= 1;
            if timeout.timed_out() && queue.waiting.is_empty() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::super::block_on;
    use super::super::rank::give_way;
    use super::super::rank::tests::own;
    use super::{Aside, Job};

    #[test]
    fn tasks_run_beside_each_other_and_a_panic_ends_one() {
        let aside = Aside::new();
        let ((send, receive), (done, is_done)) = (oneshot::channel(), oneshot::channel());
        let run = |task| assert!(aside.run(Job::Task(task)).is_ok(), "the system starts a thread");
        run(Box::pin(async { panic!("this one alone") }));
        // The first waits for the second: with one thread both would hang.
        run(Box::pin(async move { done.send(receive.await.expect("sent")).expect("awaited") }));
        run(Box::pin(async move { send.send(7).expect("awaited") }));
        assert_eq!(block_on(is_done), Ok(7));
    }

    #[test]
    fn a_thread_has_the_rank_of_its_kind_whoever_starts_it() {
        let (ordinary, behind) = (Aside::new(), Aside::behind());
        let rank_on = move |aside: &Aside| {
            let (send, receive) = oneshot::channel();
            let tell = Box::pin(async move { send.send(own()).expect("awaited") });
            assert!(aside.run(Job::Task(tell)).is_ok(), "the system starts a thread");
            block_on(receive).expect("told")
        };
        // On a thread of its own, for it stays so. It is the first to use them.
        let usual = own();
        let test = std::thread::spawn(move || {
            give_way();
            assert_eq!(rank_on(&ordinary), usual);
            assert_eq!(rank_on(&behind), own());
            own()
        });
        let behind = test.join().expect("no panic");
        assert_eq!(rank_on(&Aside::new()), usual);
        assert_eq!(rank_on(&Aside::behind()), behind);
    }
}
