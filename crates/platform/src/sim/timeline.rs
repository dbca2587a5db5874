//! Virtual time: two clocks and the timers that wait for them.
//!
//! `elapsed` moves only when the schedule says so. The wall clock moves with it, plus whatever the test stepped it by.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use base::time::Timestamp;
use parking_lot::Mutex;

use crate::Clock;
use crate::task::Boxed;

/// When the wall clock starts: 2026-01-01 00:00 UTC.
const WALL_START_SECONDS: i64 = 1_767_225_600;
const NANOS: i128 = 1_000_000_000;

/// The time of one machine.
pub(super) struct Timeline(Mutex<State>);

struct State {
    now: Duration,
    wall_shift_nanos: i128,
    /// By deadline, then by a number that makes them distinct.
    timers: BTreeMap<(Duration, u64), Waker>,
    timer_last: u64,
}

impl Timeline {
    pub(super) fn new() -> Arc<Timeline> {
        let timers = BTreeMap::new();
        Arc::new(Timeline(Mutex::new(State { now: Duration::ZERO, wall_shift_nanos: 0, timers, timer_last: 0 })))
    }

    /// Completes after `duration`.
    pub(super) fn sleep(self: &Arc<Self>, duration: Duration) -> Boxed<()> {
        let deadline = self.0.lock().now.saturating_add(duration);
        Box::pin(Sleep { timeline: self.clone(), deadline, timer: None })
    }

    pub(super) fn step_clock(&self, nanos: i64) {
        self.0.lock().wall_shift_nanos += i128::from(nanos);
    }

    /// Moves to the earliest timer and wakes all that are due then; `false` if there is none.
    pub(super) fn advance(&self) -> bool {
        let mut due = Vec::new();
        {
            let mut state = self.0.lock();
            let Some((&(deadline, _), _)) = state.timers.first_key_value() else { return false };
            state.now = state.now.max(deadline);
            while let Some(timer) = state.timers.first_entry().filter(|timer| timer.key().0 <= deadline) {
                due.push(timer.remove());
            }
        }
        // Out of the lock: a waker is foreign code.
        due.into_iter().for_each(Waker::wake);
        true
    }
}

impl Clock for Timeline {
    fn now(&self) -> Timestamp {
        let state = self.0.lock();
        let elapsed = i128::try_from(state.now.as_nanos()).unwrap_or(i128::MAX / 4);
        let nanos = i128::from(WALL_START_SECONDS) * NANOS + elapsed + state.wall_shift_nanos;
        let seconds = i64::try_from(nanos.div_euclid(NANOS)).unwrap_or(i64::MAX);
        Timestamp::new(seconds, u32::try_from(nanos.rem_euclid(NANOS)).expect("a remainder below 10^9"))
    }

    fn elapsed(&self) -> Duration {
        self.0.lock().now
    }
}

/// A sleep. Dropped, it leaves no timer behind: the clock does not move for those who no longer wait.
struct Sleep {
    timeline: Arc<Timeline>,
    deadline: Duration,
    timer: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let timeline = self.timeline.clone();
        let mut state = timeline.0.lock();
        if state.now >= self.deadline {
            return Poll::Ready(());
        }
        let number = *self.timer.get_or_insert_with(|| {
            state.timer_last += 1;
            state.timer_last
        });
        let former = state.timers.insert((self.deadline, number), context.waker().clone());
        drop(state);
        drop(former);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(number) = self.timer {
            let former = self.timeline.0.lock().timers.remove(&(self.deadline, number));
            drop(former);
        }
    }
}
