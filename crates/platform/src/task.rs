//! Tasks, timers and parallel computing.
//!
//! Locks and signals between tasks come from `tokio::sync`, which needs no runtime and is fair in order of arrival.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A future on the heap.
pub type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Where tasks run.
pub trait Tasks: Send + Sync {
    /// Starts a task that runs until it returns. Real: a thread of that name that polls it; a panic there ends the process, for who waits
    /// for the task would wait for ever. Simulated: an entry of the schedule.
    fn spawn(&self, name: &str, task: Boxed<()>);
    /// The same, for work in masses, where hardly anybody waits for a part. Real: others get a CPU first. Simulated: as `spawn`.
    fn spawn_behind(&self, name: &str, task: Boxed<()>) {
        self.spawn(name, task);
    }
    /// Runs a task that waits for a disk, beside the caller. Real: on a thread that is kept for such, or on a new one, for none waits for
    /// its turn. A panic ends the task alone.
    fn aside(&self, task: Boxed<()>);
    /// The same, for work in masses. Real: others get a CPU first. Simulated: as `aside`.
    fn aside_behind(&self, task: Boxed<()>) {
        self.aside(task);
    }
    /// Completes after `duration`.
    fn sleep(&self, duration: Duration) -> Boxed<()>;
    /// Runs the jobs of one batch on all cores and returns when all are done. They only compute: no I/O, no locks held across.
    fn compute(&self, jobs: Vec<Box<dyn FnOnce() + Send + '_>>);
    /// Runs a job on some core beside the caller. It only computes, and says itself what came of it.
    fn compute_beside(&self, job: Box<dyn FnOnce() + Send>);
}

/// Jobs that [`parallel`] makes at most: enough that cores of different speed end together, few beside thousands of small items.
const JOBS_MAX: usize = 64;

/// Applies `function` to all items on all cores, keeping their order.
pub fn parallel<T: Send, R: Send>(tasks: &Arc<dyn Tasks>, items: Vec<T>, function: impl Fn(T) -> R + Sync) -> Vec<R> {
    if items.len() <= 1 {
        return items.into_iter().map(function).collect();
    }
    let per_job = items.len().div_ceil(JOBS_MAX);
    let mut items: Vec<Option<T>> = items.into_iter().map(Some).collect();
    let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
    let function = &function;
    let job = |(items, results): (&mut [Option<T>], &mut [Option<R>])| {
        for (item, result) in items.iter_mut().zip(results) {
            *result = item.take().map(function);
        }
    };
    let parts = items.chunks_mut(per_job).zip(results.chunks_mut(per_job));
    tasks.compute(parts.map(|part| Box::new(move || job(part)) as Box<dyn FnOnce() + Send + '_>).collect());
    results.into_iter().map(|result| result.expect("compute returns when every job has run")).collect()
}

/// Completes when all have, with what came of each. They go on side by side.
pub async fn all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        let mut is_over = true;
        for (future, output) in &mut futures {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    Poll::Ready(ready) => *output = Some(ready),
                    Poll::Pending => is_over = false,
                }
            }
        }
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    futures.into_iter().map(|(_, output)| output.expect("all are over")).collect()
}

/// What came first of two.
#[derive(Debug)]
pub enum First<A, B> {
    /// The left future.
    Left(A),
    /// The right future.
    Right(B),
}

/// Waits for whichever is ready first; the left one wins a tie. The other is dropped.
pub async fn first<A, B>(left: impl Future<Output = A>, right: impl Future<Output = B>) -> First<A, B> {
    let mut left = std::pin::pin!(left);
    let mut right = std::pin::pin!(right);
    std::future::poll_fn(|context: &mut Context<'_>| {
        if let Poll::Ready(value) = left.as_mut().poll(context) {
            return Poll::Ready(First::Left(value));
        }
        right.as_mut().poll(context).map(First::Right)
    })
    .await
}

/// Lets everything else that is ready in the simulated world run first. On a thread there is nothing else: it is polled again.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
