//! Threads for what waits for a disk. Each takes one task at a time and ends when it has had none for a while.
//!
//! An operation runs in the thread that polls it, disk and all. Where that thread serves others too, as a transport's does, waiting for a
//! disk would hold them all up: so reads wait here, and what is told to take long.
//!
//! Those for work in masses are threads of their own, which give way (`rank`). An ordinary one has been started by one that never did, whoever
//! gave it its task.
//!
//! No task waits for a thread, for one may be what another waits for. Who has many bounds them himself.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::drive;
use super::rank::{give_way, is_behind};
use crate::task::Boxed;

/// How long a thread waits for its next task before it ends.
const PATIENCE: Duration = Duration::from_secs(10);

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
    waiting: VecDeque<Boxed<()>>,
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

    /// Runs a task on a thread of ours; gives one back if the system starts no more of them.
    pub(super) fn run(&self, task: Boxed<()>) -> Result<(), Boxed<()>> {
        let mut queue = self.shared.queue.lock();
        queue.waiting.push_back(task);
        if queue.waiting.len() <= queue.idle {
            self.shared.arrived.notify_one();
            return Ok(());
        }
        drop(queue);
        let is_started = match &self.starter {
            Some(starter) if is_behind() => starter.start(Arc::clone(&self.shared)),
            _ => self.shared.start(),
        };
        match is_started {
            true => Ok(()),
            // Ours, or another: each is run. None: they all found a thread meanwhile.
            false => self.shared.queue.lock().waiting.pop_back().map_or(Ok(()), Err),
        }
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

/// Runs a task on this thread.
pub(super) fn finish(task: Boxed<()>) {
    // Who waits for the task hears of a panic by its silence.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drive(task)));
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
            if let Some(task) = queue.waiting.pop_front() {
                drop(queue);
                finish(task);
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

    use super::super::rank::give_way;
    use super::super::rank::tests::own;
    use super::{Aside, drive};

    #[test]
    fn tasks_run_beside_each_other_and_a_panic_ends_one() {
        let aside = Aside::new();
        let ((send, receive), (done, is_done)) = (oneshot::channel(), oneshot::channel());
        let run = |task| assert!(aside.run(task).is_ok(), "the system starts a thread");
        run(Box::pin(async { panic!("this one alone") }));
        // The first waits for the second: with one thread both would hang.
        run(Box::pin(async move { done.send(receive.await.expect("sent")).expect("awaited") }));
        run(Box::pin(async move { send.send(7).expect("awaited") }));
        assert_eq!(drive(is_done), Ok(7));
    }

    #[test]
    fn a_thread_has_the_rank_of_its_kind_whoever_starts_it() {
        let (ordinary, behind) = (Aside::new(), Aside::behind());
        let rank_on = move |aside: &Aside| {
            let (send, receive) = oneshot::channel();
            let tell = Box::pin(async move { send.send(own()).expect("awaited") });
            assert!(aside.run(tell).is_ok(), "the system starts a thread");
            drive(receive).expect("told")
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
