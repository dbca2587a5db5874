//! Late answers: futures that were pending when first polled over /dev/fuse, and the thread that finishes them.
//!
//! A reader must read on, so it puts a pending future aside here. Its waker queues it; the session's completion thread
//! polls what is queued, and readers lend a hand before they read again. However many requests wait, none of them holds
//! a thread. Rings keep their pending futures themselves and hand them over only when they end.
//!
//! A task is in one of five states; each change is one atomic operation, so a wake is never lost and a task never
//! queued twice:
//!
//! ```text
//! Idle -wake-> Queued -taken-> Running -pending-> Idle
//!                                 | wake            ready -> Done
//!                                 v
//!                               Woken -pending-> Queued
//! ```

use crate::interrupt::{Cancel, Interrupts};
use crate::lock::lock;
use crate::service::{self, Boxed};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

const IDLE: u8 = 0;
const QUEUED: u8 = 1;
const RUNNING: u8 = 2;
const WOKEN: u8 = 3;
const DONE: u8 = 4;

/// All late answers of a session.
pub(crate) struct Late {
    state: Mutex<State>,
    changed: Condvar,
    ready_count: AtomicUsize,
    interrupts: Arc<Interrupts>,
}

#[derive(Default)]
struct State {
    ready: VecDeque<Arc<Task>>,
    pending: BTreeMap<u64, Arc<Task>>,
    next: u64,
    closing: bool,
}

/// A future and what wakes it. A reader makes one before the first poll and uses it again if the future was ready.
pub(crate) struct Task {
    late: Arc<Late>,
    future: Mutex<Option<Parked>>,
    state: AtomicU8,
    cancelled: AtomicBool,
}

struct Parked {
    future: Boxed,
    key: u64,
    /// The request's number if it can be interrupted.
    interruptible: Option<u64>,
}

impl Late {
    pub(crate) fn new(interrupts: Arc<Interrupts>) -> Arc<Late> {
        let (state, changed, ready_count) = (Mutex::default(), Condvar::new(), AtomicUsize::new(0));
        Arc::new(Late { state, changed, ready_count, interrupts })
    }

    /// A task for a future about to be polled for the first time.
    pub(crate) fn task(self: &Arc<Late>) -> Arc<Task> {
        let (future, state, cancelled) = (Mutex::new(None), AtomicU8::new(RUNNING), AtomicBool::new(false));
        Arc::new(Task { late: self.clone(), future, state, cancelled })
    }

    /// Takes over a future that has not been polled with one of our tasks.
    pub(crate) fn adopt(self: &Arc<Late>, future: Boxed, interruptible: Option<u64>) {
        let task = self.task();
        task.wake_by_ref();
        task.park(future, interruptible);
    }

    /// Polls what is ready, at most `count` tasks. Cheap when there is nothing.
    pub(crate) fn help(&self, count: usize) {
        for _ in 0..count {
            if self.ready_count.load(Ordering::Relaxed) == 0 {
                return;
            }
            let Some(task) = self.pop(&mut lock(&self.state)) else { return };
            task.run();
        }
    }

    /// Polls tasks as they become ready until `close`.
    pub(crate) fn run(&self) {
        loop {
            let task = {
                let mut state = lock(&self.state);
                loop {
                    match self.pop(&mut state) {
                        Some(task) => break task,
                        None if state.closing => return,
                        None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                    }
                }
            };
            task.run();
        }
    }

    /// Whether no future is pending before the deadline.
    pub(crate) fn has_finished(&self, deadline: Instant) -> bool {
        let mut state = lock(&self.state);
        while !state.pending.is_empty() {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return false };
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Waits for pending futures, at most `grace`, then ends `run` and drops what is left.
    pub(crate) fn close(&self, grace: Duration) {
        self.interrupts.interrupt_all();
        let deadline = Instant::now() + grace;
        let mut state = lock(&self.state);
        while !state.pending.is_empty() {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { break };
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.closing = true;
        let (pending, ready) = (std::mem::take(&mut state.pending), std::mem::take(&mut state.ready));
        drop(state);
        self.changed.notify_all();
        for task in pending.into_values().chain(ready) {
            task.state.store(DONE, Ordering::SeqCst);
            let parked = lock(&task.future).take();
            drop(parked);
        }
    }

    fn pop(&self, state: &mut State) -> Option<Arc<Task>> {
        let task = state.ready.pop_front()?;
        self.ready_count.fetch_sub(1, Ordering::Relaxed);
        Some(task)
    }

    fn push(&self, task: Arc<Task>) {
        lock(&self.state).ready.push_back(task);
        self.ready_count.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_all();
    }
}

impl Task {
    /// Puts a pending future aside.
    pub(crate) fn park(self: Arc<Task>, future: Boxed, interruptible: Option<u64>) {
        let key = {
            let mut state = lock(&self.late.state);
            state.next += 1;
            let key = state.next;
            state.pending.insert(key, self.clone());
            key
        };
        *lock(&self.future) = Some(Parked { future, key, interruptible });
        if let Some(unique) = interruptible {
            self.late.interrupts.wait(unique, self.clone());
        }
        self.rest();
    }

    /// Whether the task may serve another request: nobody else can wake it.
    pub(crate) fn reset(task: &mut Arc<Task>) -> bool {
        match Arc::get_mut(task) {
            Some(alone) => {
                *alone.state.get_mut() = RUNNING;
                *alone.cancelled.get_mut() = false;
                true
            }
            None => false,
        }
    }

    fn run(self: Arc<Task>) {
        if self.state.compare_exchange(QUEUED, RUNNING, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return;
        }
        let waker = Waker::from(self.clone());
        let mut place = lock(&self.future);
        let Some(parked) = place.as_mut() else { return };
        if !self.cancelled.load(Ordering::SeqCst) {
            match service::poll(&mut parked.future, &mut Context::from_waker(&waker)) {
                Poll::Pending => {
                    drop(place);
                    return self.rest();
                }
                Poll::Ready(exchange) => {
                    if let Some(core) = exchange.map(crate::exchange::Exchange::into_core)
                        && let Some(home) = core.home.clone()
                    {
                        home.answer(core);
                    }
                }
            }
        }
        self.state.store(DONE, Ordering::SeqCst);
        let Parked { future, key, interruptible } = place.take().expect("parked above");
        drop(place);
        // Dropping a cancelled future drops its exchange, which answers.
        drop(future);
        if let Some(unique) = interruptible {
            self.late.interrupts.end(unique);
        }
        lock(&self.late.state).pending.remove(&key);
        self.late.changed.notify_all();
    }

    /// After a poll that was pending: wait for a wake, or be queued at once if it came meanwhile.
    fn rest(self: Arc<Task>) {
        if self.state.compare_exchange(RUNNING, IDLE, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            return;
        }
        if self.state.compare_exchange(WOKEN, QUEUED, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.late.clone().push(self);
        }
    }
}

impl Wake for Task {
    fn wake(self: Arc<Task>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Task>) {
        loop {
            let (from, to) = match self.state.load(Ordering::SeqCst) {
                IDLE => (IDLE, QUEUED),
                RUNNING => (RUNNING, WOKEN),
                _ => return,
            };
            if self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                if to == QUEUED {
                    self.late.push(self.clone());
                }
                return;
            }
        }
    }
}

impl Cancel for Task {
    fn cancel(self: Arc<Self>, _unique: u64) {
        self.cancelled.store(true, Ordering::SeqCst);
        self.wake_by_ref();
    }
}
