//! Parking: all who take requests of a session stop at a point where none is under way, to go on in another process.
//!
//! ```text
//! Serving -- park --> Wanted -- all members stopped, nothing late --> Taken: they end
//!    ^                   |
//!    +-- not in time ----+   they go on as if nothing had been
//! ```
//!
//! Members are the readers of /dev/fuse and the queues of io_uring. Meanwhile requests wait in the kernel.
//!
//! H-1  A member stops only between requests: what it has taken it has answered, or (a queue) keeps unserved in its slot.
//!
//! Not here: how a member that sleeps in the kernel is woken (`session`, `ring::queue`), what goes to the next process (`parked`).

use crate::lock::lock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

/// Where all members of a session meet.
#[derive(Default)]
pub(crate) struct Park {
    is_wanted: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    phase: Phase,
    /// Counts attempts, so that who sleeps through the end of one does not take the next for it.
    attempt: u64,
    members: usize,
    parked: usize,
    /// A member ended by itself: the connection is over.
    is_over: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Serving,
    Wanted,
    Taken,
}

impl Park {
    /// There are so many more members.
    pub(crate) fn enroll(&self, members: usize) {
        lock(&self.state).members += members;
    }

    /// Whether members are to stop. Cheap.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::SeqCst)
    }

    /// A member has stopped; waits for what becomes of it. True: it ends. False: it goes on.
    pub(crate) fn stop(&self) -> bool {
        let mut state = lock(&self.state);
        let attempt = state.attempt;
        if state.phase == Phase::Wanted {
            state.parked += 1;
            self.changed.notify_all();
        }
        while state.phase == Phase::Wanted && state.attempt == attempt && !state.is_over {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.phase == Phase::Taken
    }

    /// A member has ended, whatever the reason.
    pub(crate) fn leave(&self) {
        let mut state = lock(&self.state);
        state.is_over |= state.phase != Phase::Taken;
        self.changed.notify_all();
    }

    pub(crate) fn is_taken(&self) -> bool {
        lock(&self.state).phase == Phase::Taken
    }

    /// Members are to stop.
    pub(crate) fn want(&self) {
        let mut state = lock(&self.state);
        (state.phase, state.parked) = (Phase::Wanted, 0);
        state.attempt += 1;
        self.is_wanted.store(true, Ordering::SeqCst);
    }

    /// Whether all have stopped before the deadline. False too when the connection is over.
    pub(crate) fn have_all_stopped(&self, deadline: Instant) -> bool {
        let mut state = lock(&self.state);
        while state.parked < state.members && !state.is_over {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return false };
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        !state.is_over
    }

    /// Ends the attempt: members end, or go on. False if the connection was over before.
    pub(crate) fn decide(&self, is_taken: bool) -> bool {
        let mut state = lock(&self.state);
        let is_taken = is_taken && !state.is_over;
        state.phase = if is_taken { Phase::Taken } else { Phase::Serving };
        self.is_wanted.store(is_taken, Ordering::SeqCst);
        self.changed.notify_all();
        is_taken
    }
}

#[cfg(test)]
mod tests {
    use super::Park;
    use std::time::{Duration, Instant};

    #[test]
    fn members_end_together_or_go_on() {
        let park = Park::default();
        park.enroll(2);
        let soon = || Instant::now() + Duration::from_secs(60);
        for is_taken in [false, true] {
            park.want();
            assert!(!park.have_all_stopped(Instant::now()), "nobody has stopped yet");
            std::thread::scope(|scope| {
                let members = [scope.spawn(|| park.stop()), scope.spawn(|| park.stop())];
                assert!(park.have_all_stopped(soon()));
                assert_eq!(park.decide(is_taken), is_taken);
                for member in members {
                    assert_eq!(member.join().expect("no panic"), is_taken);
                }
            });
            assert_eq!((park.is_wanted(), park.is_taken()), (is_taken, is_taken));
        }
    }

    #[test]
    fn the_end_of_the_connection_ends_an_attempt() {
        let park = Park::default();
        park.enroll(2);
        park.want();
        std::thread::scope(|scope| {
            let stopped = scope.spawn(|| park.stop());
            park.leave();
            assert!(!park.have_all_stopped(Instant::now() + Duration::from_secs(60)));
            assert!(!stopped.join().expect("no panic"));
        });
        assert!(!park.decide(true), "there is nothing to take");
    }
}
