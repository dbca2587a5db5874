//! Errands: requests that wait for a disk, on threads of their own.
//!
//! A transport's thread serves all requests of its CPU, and an operation runs in the thread that polls it, disk and all. An fsync
//! there would hold up everybody else, and two fsyncs could never share one sync of the journal. So what waits long runs
//! here: a few threads, each of which takes one errand at a time and ends when it has had none for a while.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use platform::real::block_on;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::sync::oneshot;

/// Errands at a time. More wait: a sync of the journal serves all of these at once.
const THREADS_MAX: usize = 16;
/// How long a thread waits for its next errand before it ends.
const PATIENCE: Duration = Duration::from_secs(10);

type Errand = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The threads and what waits for them.
pub(crate) struct Errands {
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
    waiting: VecDeque<Errand>,
    threads: usize,
    idle: usize,
}

impl Errands {
    /// Their threads will run where the calling one may.
    pub(crate) fn new() -> Errands {
        let cpus = sched_getaffinity(None).ok();
        Errands { shared: Arc::new(Shared { cpus, queue: Mutex::default(), arrived: Condvar::new() }) }
    }

    /// Runs a future on a thread of ours and gives its result.
    pub(crate) async fn run<T: Send + 'static>(&self, errand: impl Future<Output = T> + Send + 'static) -> T {
        let (send, receive) = oneshot::channel();
        let errand = async move {
            // Who waited for the result may be gone.
            let _ = send.send(errand.await);
        };
        self.enqueue(Box::pin(errand));
        receive.await.unwrap_or_else(|_| panic!("the errand panicked; its request has been answered"))
    }

    fn enqueue(&self, errand: Errand) {
        let mut queue = self.shared.queue.lock();
        queue.waiting.push_back(errand);
        if queue.waiting.len() <= queue.idle {
            self.shared.arrived.notify_one();
            return;
        }
        if queue.threads < THREADS_MAX {
            queue.threads += 1;
            let shared = Arc::clone(&self.shared);
            let started = std::thread::Builder::new().name("errand".to_owned()).spawn(move || shared.work());
            if let Err(error) = started {
                queue.threads -= 1;
                assert!(queue.threads > 0, "the system starts no thread: {error}");
            }
        }
    }
}

impl Shared {
    fn work(&self) {
        // The thread that started this one may be tied to a CPU, and the tie is inherited. A refusal only costs speed.
        let _ = self.cpus.map(|cpus| sched_setaffinity(None, &cpus));
        let mut queue = self.queue.lock();
        loop {
            if let Some(errand) = queue.waiting.pop_front() {
                drop(queue);
                // A panic ends the one request: dropping its exchange answers it.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| block_on(errand)));
                queue = self.queue.lock();
                continue;
            }
            queue.idle += 1;
            let timeout = self.arrived.wait_for(&mut queue, PATIENCE);
            queue.idle -= 1;
            if timeout.timed_out() && queue.waiting.is_empty() {
                queue.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use platform::real::block_on;
    use tokio::sync::oneshot;

    use super::Errands;

    #[test]
    fn errands_run_beside_each_other() {
        let errands = Errands::new();
        let (send, receive) = oneshot::channel();
        std::thread::scope(|scope| {
            // The first waits for the second: with one thread both would hang.
            let first = scope.spawn(|| block_on(errands.run(async { receive.await.expect("sent") })));
            block_on(errands.run(async move { send.send(7).expect("awaited") }));
            assert_eq!(first.join().expect("no panic"), 7);
        });
    }
}
