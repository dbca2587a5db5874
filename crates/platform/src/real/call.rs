//! Calls of the system that may never return, for a device may never answer.
//!
//! A thread that made one cannot be had back. So it is made by a thread that has nothing on its stack which anybody else wants, and who wants
//! the answer waits elsewhere, until the patience ends ([`watch`](super::watch)); then he hears that the device is silent.
//!
//! B-1   Nobody waits for an answer longer than the patience, but a thread that said it waits itself (`block_on`), for what it reads.
//! B-2   While a device owes an answer that somebody was told will not come, nothing else is asked of it, and who asks hears so at once. So what was
//!       given up, and is done after all, is done before anything that is asked later.
//! B-3   What changes a disk and is not wanted any more (its future was dropped) was not begun, or is waited for: nothing is under way of
//!       which nobody knows.
//! B-4   A call owns what it uses: who gave it up may go.
//!
//! Not here: which thread makes a call (`aside`), when patience ends (`watch`).

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex};

use crate::disk::{DiskError, DiskErrorKind};

/// Answers of a device that were waited for in vain and have not come yet.
pub(super) type Owed = Arc<AtomicUsize>;

/// What a thread can make without knowing what it is.
pub(super) trait Blocking: Send + Sync {
    /// Makes it, unless nobody wants it any more. May never return.
    fn run(&self);
    /// Tells who waits that the device is silent. False: it has answered.
    fn give_up(&self) -> bool;
}

type Work<T> = Box<dyn FnOnce() -> Result<T, DiskError> + Send>;

/// One call.
pub(super) struct Call<T> {
    state: Mutex<State<T>>,
    ended: Condvar,
    silent: DiskError,
    owed: Owed,
}

struct State<T> {
    /// Until it is made.
    work: Option<Work<T>>,
    is_under_way: bool,
    /// It was given up and is still under way.
    is_owed: bool,
    outcome: Option<Result<T, DiskError>>,
    waker: Option<Waker>,
}

impl<T: Send + 'static> Call<T> {
    /// One to be made. `silent` is what is said when its answer does not come.
    pub(super) fn new(
        owed: &Owed,
        silent: DiskError,
        work: impl FnOnce() -> Result<T, DiskError> + Send + 'static,
    ) -> Arc<Call<T>> {
        // B-2.
        let is_refused = owed.load(Ordering::SeqCst) > 0;
        let state = State {
            work: (!is_refused).then(|| Box::new(work) as Work<T>),
            is_under_way: false,
            is_owed: false,
            outcome: is_refused.then(|| Err(silent.clone())),
            waker: None,
        };
        Arc::new(Call { state: Mutex::new(state), ended: Condvar::new(), silent, owed: Arc::clone(owed) })
    }

    /// Whether somebody has to make it.
    pub(super) fn is_wanted(&self) -> bool {
        self.state.lock().work.is_some()
    }

    /// Waits for the answer, or until it is given up.
    pub(super) fn wait(&self) -> Result<T, DiskError> {
        let mut state = self.state.lock();
        loop {
            if let Some(outcome) = state.outcome.take() {
                return outcome;
            }
            self.ended.wait(&mut state);
        }
    }
}

impl<T: Send + 'static> Blocking for Call<T> {
    fn run(&self) {
        let work = {
            let mut state = self.state.lock();
            let Some(work) = state.work.take() else { return };
            state.is_under_way = true;
            work
        };
        let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
            let detail = "the thread that did it panicked".to_owned();
            Err(DiskError { kind: DiskErrorKind::Failed, detail, ..self.silent.clone() })
        });
        let mut state = self.state.lock();
        state.is_under_way = false;
        if state.is_owed {
            self.owed.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        state.outcome = Some(outcome);
        let waker = state.waker.take();
        drop(state);
        self.ended.notify_all();
        waker.into_iter().for_each(Waker::wake);
    }

    fn give_up(&self) -> bool {
        let mut state = self.state.lock();
        if !state.is_under_way || state.is_owed {
            return false;
        }
        state.is_owed = true;
        self.owed.fetch_add(1, Ordering::SeqCst);
        state.outcome = Some(Err(self.silent.clone()));
        let waker = state.waker.take();
        drop(state);
        self.ended.notify_all();
        waker.into_iter().for_each(Waker::wake);
        true
    }
}

/// Waits for a call that somebody makes.
pub(super) struct Waiting<T: Send + 'static> {
    call: Arc<Call<T>>,
    /// It changes the disk: B-3.
    has_effects: bool,
}

impl<T: Send + 'static> Waiting<T> {
    pub(super) fn new(call: Arc<Call<T>>, has_effects: bool) -> Waiting<T> {
        Waiting { call, has_effects }
    }
}

impl<T: Send + 'static> Future for Waiting<T> {
    type Output = Result<T, DiskError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.call.state.lock();
        match state.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T: Send + 'static> Drop for Waiting<T> {
    fn drop(&mut self) {
        let mut state = self.call.state.lock();
        state.waker = None;
        let is_begun = state.work.take().is_none();
        while is_begun && self.has_effects && state.is_under_way && !state.is_owed {
            self.call.ended.wait(&mut state);
        }
    }
}

#[cfg(test)]
mod tests;
