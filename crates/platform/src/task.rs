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
    /// Starts a task that runs until it returns. Real: a thread of that name that polls it. Simulated: an entry of the schedule.
    fn spawn(&self, name: &str, task: Boxed<()>);
    /// Completes after `duration`.
    fn sleep(&self, duration: Duration) -> Boxed<()>;
    /// Runs the jobs of one batch on all cores and returns when all are done. They only compute: no I/O, no locks held across.
    fn compute(&self, jobs: Vec<Box<dyn FnOnce() + Send + '_>>);
}

/// Applies `function` to all items on all cores, keeping their order.
pub fn parallel<T: Send, R: Send>(tasks: &Arc<dyn Tasks>, items: Vec<T>, function: impl Fn(T) -> R + Sync) -> Vec<R> {
    if items.len() <= 1 {
        return items.into_iter().map(function).collect();
    }
    let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
    let function = &function;
    let jobs = items.into_iter().zip(results.iter_mut());
    tasks.compute(
        jobs.map(|(item, slot)| Box::new(move || *slot = Some(function(item))) as Box<dyn FnOnce() + Send + '_>)
            .collect(),
    );
    results.into_iter().map(|slot| slot.expect("compute returns when every job has run")).collect()
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

/// Lets everything else that is ready run first.
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
