//! Threads for what waits for a disk. Each takes one task at a time and ends when it has had none for a while.
//!
//! An operation runs in the thread that polls it, disk and all. Where that thread serves others too, as a transport's does, waiting for a
//! disk would hold them all up: so reads wait here, and what is told to take long.
//!
//! No task waits for a thread, for one may be what another waits for. Who has many bounds them himself.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::drive;
use crate::task::Boxed;

/// How long a thread waits for its next task before it ends.
const PATIENCE: Duration = Duration::from_secs(10);

/// The threads and what waits for them.
pub(super) struct Aside {
    shared: Arc<Shared>,
}

struct Shared {
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
    /// Their threads will run where the calling one may.
    pub(super) fn new() -> Aside {
        let cpus = sched_getaffinity(None).ok();
        Aside { shared: Arc::new(Shared { cpus, queue: Mutex::default(), arrived: Condvar::new() }) }
    }

    /// Runs a task on a thread of ours; gives it back if the system starts no more of them.
    pub(super) fn run(&self, task: Boxed<()>) -> Result<(), Boxed<()>> {
        let mut queue = self.shared.queue.lock();
        queue.waiting.push_back(task);
        if queue.waiting.len() <= queue.idle {
            self.shared.arrived.notify_one();
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        let started = std::thread::Builder::new().name("aside".to_owned()).spawn(move || shared.work());
        started.map(drop).map_err(|_| queue.waiting.pop_back().expect("pushed above"))
    }
}

/// Runs a task on this thread.
pub(super) fn finish(task: Boxed<()>) {
    // Who waits for the task hears of a panic by its silence.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drive(task)));
}

impl Shared {
    fn work(&self) {
        // The thread that started this one may be tied to a CPU, and the tie is inherited. A refusal only costs speed.
        let _ = self.cpus.map(|cpus| sched_setaffinity(None, &cpus));
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
}
