//! Calls of the system that may never return, for a device may never answer.
//!
//! A thread that made one cannot be had back. So it is made by a thread that has nothing on its stack which anybody else wants, and who wants
//! the answer waits elsewhere, until the patience ends ([`watch`](super::watch)); then he hears that the device is silent.
//!
//! B-1   Nobody waits for an answer longer than the patience. A device that was given up has a part of it, until it has answered quickly once.
//! B-2   While a device owes the answer to a change, of which somebody was told that it will not come, it is asked for nothing, and who asks hears
//!       so at once. So what was given up, and is done after all, is done before anything that is asked later. While it owes the answer to
//!       something else it is not read, and everything else has its own time: one bad sector takes no disk out.
//! B-3   What changes a disk and is not wanted any more (its future was dropped) was not begun, or is waited for: nothing is under way of
//!       which nobody knows.
//! B-4   A call owns what it uses: who gave it up may go.
//! B-5   While a change is under way, the lock of the disk is held, whoever let go of it: nobody opens the store on that disk before it has
//!       ended. Who hears of its end finds that it holds the lock no more.
//!
//! Not here: which thread makes a call (`aside`), when patience ends (`watch`).

use std::fs::File;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::disk::{DiskCounters, DiskError, DiskErrorKind};

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Something that others can see.
    Change,
    /// Nothing, for somebody who has another way if the device is known to be silent.
    Read,
    /// Nothing.
    Look,
}

/// What is known of a device by all who ask it.
#[derive(Default)]
pub(super) struct Device {
    changes: Answers,
    others: Answers,
    /// Calls that are under way for a tick at least.
    slow: AtomicUsize,
    /// The lock of the disk, as long as somebody holds it.
    lock: Mutex<Weak<File>>,
    pub(super) counters: DiskCounters,
}

#[derive(Default)]
struct Answers {
    /// Those that were waited for in vain and have not come yet.
    owed: AtomicUsize,
    /// One was given up, and none has come quickly since.
    are_doubted: AtomicBool,
}

impl Answers {
    fn are_owed(&self) -> bool {
        self.owed.load(Ordering::SeqCst) > 0
    }
}

impl Device {
    fn answers(&self, effect: Effect) -> &Answers {
        match effect {
            Effect::Change => &self.changes,
            Effect::Read | Effect::Look => &self.others,
        }
    }

    /// B-2.
    fn refuses(&self, effect: Effect) -> bool {
        self.changes.are_owed() || (effect == Effect::Read && self.others.are_owed())
    }

    /// Whether it owes an answer.
    pub(super) fn is_silent(&self) -> bool {
        self.changes.are_owed() || self.others.are_owed()
    }

    /// Whether nobody should ask it who cannot wait, although it mostly answers at once.
    pub(super) fn is_slow(&self) -> bool {
        self.slow.load(Ordering::SeqCst) > 0 || self.is_silent()
    }

    /// B-5: from now on changes hold it.
    pub(super) fn lock_with(&self, lock: &Arc<File>) {
        *self.lock.lock() = Arc::downgrade(lock);
    }
}

/// What a thread can make without knowing what it is.
pub(super) trait Blocking: Send + Sync {
    /// Makes it, unless nobody wants it any more. May never return.
    fn run(&self);
    /// It is not made: no thread can be had for it.
    fn refuse(&self);
    /// It is under way for so many ticks of the watch. Whether it has been given up: who waits has been told.
    fn waits(&self, ticks: u32, patience: Patience) -> bool;
}

/// Ticks that are enough.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) usual: u32,
    /// With a device that was given up.
    pub(super) short: u32,
}

type Work<T> = Box<dyn FnOnce() -> Result<T, DiskError> + Send>;

/// One call.
pub(super) struct Call<T> {
    state: Mutex<State<T>>,
    ended: Condvar,
    effect: Effect,
    silent: DiskError,
    device: Arc<Device>,
}

struct State<T> {
    /// Until it is made.
    work: Option<Work<T>>,
    is_under_way: bool,
    is_slow: bool,
    /// It was given up and is still under way.
    is_owed: bool,
    outcome: Option<Result<T, DiskError>>,
    waker: Option<Waker>,
    /// B-5.
    lock: Option<Arc<File>>,
}

impl<T: Send + 'static> Call<T> {
    /// One to be made. `silent` is what is said when its answer does not come.
    pub(super) fn new(
        device: &Arc<Device>,
        effect: Effect,
        silent: DiskError,
        work: impl FnOnce() -> Result<T, DiskError> + Send + 'static,
    ) -> Arc<Call<T>> {
        // B-2.
        let is_refused = device.refuses(effect);
        let state = State {
            work: (!is_refused).then(|| Box::new(work) as Work<T>),
            is_under_way: false,
            is_slow: false,
            is_owed: false,
            outcome: is_refused.then(|| Err(silent.clone())),
            waker: None,
            lock: (effect == Effect::Change).then(|| device.lock.lock().upgrade()).flatten(),
        };
        let device = Arc::clone(device);
        Arc::new(Call { state: Mutex::new(state), ended: Condvar::new(), effect, silent, device })
    }

    /// Whether somebody has to make it.
    pub(super) fn is_wanted(&self) -> bool {
        self.state.lock().work.is_some()
    }

    fn end(&self, mut state: MutexGuard<'_, State<T>>, outcome: Result<T, DiskError>) {
        state.outcome = Some(outcome);
        let waker = state.waker.take();
        drop(state);
        self.ended.notify_all();
        waker.into_iter().for_each(Waker::wake);
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
        // Before anybody hears of the end, who may open the store again. It may be the last that holds the lock, and to let go of that is a call
        // too: not while the watch waits for the state.
        let lock = self.state.lock().lock.take();
        drop(lock);
        let mut state = self.state.lock();
        state.is_under_way = false;
        let answers = self.device.answers(self.effect);
        if state.is_slow {
            self.device.slow.fetch_sub(1, Ordering::SeqCst);
        } else {
            answers.are_doubted.store(false, Ordering::SeqCst);
        }
        if state.is_owed {
            drop(state);
            // Before anybody asks again: it may be the lock.
            drop(outcome);
            answers.owed.fetch_sub(1, Ordering::SeqCst);
        } else {
            self.end(state, outcome);
        }
    }

    fn refuse(&self) {
        let mut state = self.state.lock();
        if state.work.take().is_some() {
            let detail = "the system starts no more threads".to_owned();
            self.end(state, Err(DiskError { kind: DiskErrorKind::Failed, detail, ..self.silent.clone() }));
        }
    }

    fn waits(&self, ticks: u32, patience: Patience) -> bool {
        let mut state = self.state.lock();
        // The first tick comes at once, or a whole tick later.
        if !state.is_under_way || state.is_owed || ticks <= 1 {
            return state.is_owed;
        }
        if !std::mem::replace(&mut state.is_slow, true) {
            self.device.slow.fetch_add(1, Ordering::SeqCst);
        }
        let answers = self.device.answers(self.effect);
        let are_doubted = answers.are_doubted.load(Ordering::SeqCst);
        if ticks <= if are_doubted { patience.short } else { patience.usual } {
            return false;
        }
        state.is_owed = true;
        answers.owed.fetch_add(1, Ordering::SeqCst);
        answers.are_doubted.store(true, Ordering::SeqCst);
        self.end(state, Err(self.silent.clone()));
        true
    }
}

/// Waits for a call that somebody makes.
pub(super) struct Waiting<T: Send + 'static>(Arc<Call<T>>);

impl<T: Send + 'static> Waiting<T> {
    pub(super) fn new(call: Arc<Call<T>>) -> Waiting<T> {
        Waiting(call)
    }
}

impl<T: Send + 'static> Future for Waiting<T> {
    type Output = Result<T, DiskError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.state.lock();
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
        let mut state = self.0.state.lock();
        state.waker = None;
        let is_begun = state.work.take().is_none();
        // B-3.
        while is_begun && self.0.effect == Effect::Change && state.is_under_way && !state.is_owed {
            self.0.ended.wait(&mut state);
        }
    }
}

#[cfg(test)]
mod tests;
