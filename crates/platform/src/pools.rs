//! Fixed pools and who may draw on them: memory is bounded by admission, not by luck (HydraFS, FAST'10: resource management).
//!
//! An event says before it begins how much of each pool it may need, and waits until `wants + reserved + allocated <= total` holds for all of
//! them. What it reserved counts until it ends, and what it allocates counts beside that, until somebody frees it: an event that runs is
//! counted twice, and nothing that was admitted ever lacks room.
//!
//! A-1   The sum holds at each admission, but for A-3 and who is let in by force. Nobody allocates more than was reserved for it.
//! A-2   First come, first served: nobody is admitted before one who has waited longer in the same line, however little they want. A line passes
//!       the first one, while that stands, by no more than its totals are larger: nobody starves.
//! A-3   Who wants more of a pool than it ever has is admitted when nothing of it is in use.
//! A-4   Lines are looked at when something is freed, when a reservation ends, and when somebody leaves a line. Who leaves, also by being dropped in
//!       the moment of the admission, leaves nothing reserved.
//!
//! Not here: what the pools are of, and what makes room.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// So much of each of `N` pools.
pub type Amounts<const N: usize> = [u64; N];

/// `N` pools of fixed size with `L` lines before them. Each line has totals of its own: where one has larger ones than the first, it goes on for a
/// while when that one stands.
pub struct Pools<const N: usize, const L: usize = 1> {
    totals: [Amounts<N>; L],
    state: Mutex<State<N, L>>,
    /// As in the state, for who only looks.
    allocated: [AtomicU64; N],
    waiting: [AtomicUsize; L],
}

struct State<const N: usize, const L: usize> {
    reserved: Amounts<N>,
    allocated: Amounts<N>,
    /// The next to be served in front.
    lines: [VecDeque<Waiter<N>>; L],
    /// What each line was given since the first one stands.
    passed: [Amounts<N>; L],
    next_number: u64,
}

struct Waiter<const N: usize> {
    number: u64,
    wants: Amounts<N>,
    admitted: oneshot::Sender<()>,
}

/// Those who were admitted, to be told when the lock is free.
#[must_use]
struct Admitted(Vec<oneshot::Sender<()>>);

impl Admitted {
    fn tell(self) {
        // Who went in this moment gives it back: its place says so.
        for waiter in self.0 {
            let _ = waiter.send(());
        }
    }
}

/// What an event may draw; given back when it is dropped. What was allocated stays so.
#[must_use]
pub struct Reservation<const N: usize, const L: usize = 1> {
    pools: Arc<Pools<N, L>>,
    amounts: Amounts<N>,
}

/// A place in a line.
struct Place<const N: usize, const L: usize> {
    pools: Arc<Pools<N, L>>,
    line: usize,
    number: u64,
    wants: Amounts<N>,
    /// Whether the reservation is somebody's.
    is_served: bool,
}

impl<const N: usize, const L: usize> Pools<N, L> {
    /// Pools with these totals, for each line. Those of the first are the least.
    #[must_use]
    pub fn new(totals: [Amounts<N>; L]) -> Arc<Pools<N, L>> {
        let (reserved, allocated, passed) = ([0; N], [0; N], [[0; N]; L]);
        let lines = [const { VecDeque::new() }; L];
        Arc::new(Pools {
            totals,
            state: Mutex::new(State { reserved, allocated, lines, passed, next_number: 0 }),
            allocated: [const { AtomicU64::new(0) }; N],
            waiting: [const { AtomicUsize::new(0) }; L],
        })
    }

    /// Admits an event that may need so much, if nobody is before it in its line and there is as much.
    pub fn try_reserve(self: &Arc<Self>, line: usize, wants: Amounts<N>) -> Option<Reservation<N, L>> {
        let mut state = self.state.lock();
        if !state.lines[line].is_empty() || !self.has_room(&state, line, &wants) {
            return None;
        }
        self.take(&mut state, line, &wants);
        Some(Reservation { pools: Arc::clone(self), amounts: wants })
    }

    /// Admits an event that may need so much when its turn has come. The line is joined at the first poll.
    pub async fn reserve(self: &Arc<Self>, line: usize, wants: Amounts<N>) -> Reservation<N, L> {
        let (send, admitted) = oneshot::channel();
        let place = {
            let mut state = self.state.lock();
            let number = state.next_number;
            state.next_number += 1;
            state.lines[line].push_back(Waiter { number, wants, admitted: send });
            let served = self.admit(&mut state);
            drop(state);
            served.tell();
            Place { pools: Arc::clone(self), line, number, wants, is_served: false }
        };
        admitted.await.expect("who takes a waiter out of its line admits it, or is the waiter");
        place.become_reservation()
    }

    /// Admits an event whatever there is: one that must not wait.
    pub fn force(self: &Arc<Self>, wants: Amounts<N>) -> Reservation<N, L> {
        add(&mut self.state.lock().reserved, &wants);
        Reservation { pools: Arc::clone(self), amounts: wants }
    }

    /// Gives back what was allocated.
    pub fn free(&self, pool: usize, amount: u64) {
        self.change(|state| {
            let allocated = &mut state.allocated[pool];
            *allocated = allocated.checked_sub(amount).expect("no more is freed than was allocated");
        });
    }

    /// Has `measure` say how much is allocated, for pools whose use is known elsewhere. It is called under the lock, so that of two at once the
    /// later one sees what the earlier one saw.
    pub fn measure(&self, measure: impl FnOnce(&mut Amounts<N>)) {
        self.change(|state| measure(&mut state.allocated));
    }

    /// How much of a pool is allocated, at a glance.
    #[must_use]
    pub fn allocated(&self, pool: usize) -> u64 {
        self.allocated[pool].load(Ordering::Relaxed)
    }

    /// How many wait in a line, at a glance.
    #[must_use]
    pub fn waiting(&self, line: usize) -> usize {
        self.waiting[line].load(Ordering::Relaxed)
    }

    /// Changes the state, and serves whom that gives room.
    fn change(&self, change: impl FnOnce(&mut State<N, L>)) {
        let mut state = self.state.lock();
        change(&mut state);
        let served = self.admit(&mut state);
        for (seen, allocated) in self.allocated.iter().zip(state.allocated) {
            seen.store(allocated, Ordering::Relaxed);
        }
        drop(state);
        served.tell();
    }

    fn has_room(&self, state: &State<N, L>, line: usize, wants: &Amounts<N>) -> bool {
        let may_pass = line == 0 || state.lines[0].is_empty();
        (0..N).all(|pool| {
            let (used, total) = (state.reserved[pool] + state.allocated[pool], self.totals[line][pool]);
            let passes = || state.passed[line][pool] + wants[pool] + self.totals[0][pool] <= total;
            wants[pool] == 0 || (used == 0 && may_pass) || (wants[pool] + used <= total && (may_pass || passes()))
        })
    }

    /// Reserves for one of a line.
    fn take(&self, state: &mut State<N, L>, line: usize, wants: &Amounts<N>) {
        add(&mut state.reserved, wants);
        if line == 0 || state.lines[0].is_empty() {
            state.passed = [[0; N]; L];
        } else {
            add(&mut state.passed[line], wants);
        }
    }

    /// Serves the lines as far as there is room.
    fn admit(&self, state: &mut State<N, L>) -> Admitted {
        let mut served = Vec::new();
        for line in 0..L {
            while let Some(waiter) = state.lines[line].front() {
                if !self.has_room(state, line, &waiter.wants) {
                    break;
                }
                let Waiter { wants, admitted, .. } = state.lines[line].pop_front().expect("seen above");
                self.take(state, line, &wants);
                served.push(admitted);
            }
            self.waiting[line].store(state.lines[line].len(), Ordering::Relaxed);
        }
        Admitted(served)
    }
}

fn add<const N: usize>(amounts: &mut Amounts<N>, more: &Amounts<N>) {
    for (amount, more) in amounts.iter_mut().zip(more) {
        *amount += more;
    }
}

fn subtract<const N: usize>(amounts: &mut Amounts<N>, less: &Amounts<N>) {
    for (amount, less) in amounts.iter_mut().zip(less) {
        *amount -= less;
    }
}

impl<const N: usize, const L: usize> Reservation<N, L> {
    /// Takes so much of a pool, until it is freed: in all no more than was reserved. Gives what is allocated of it then.
    pub fn allocate(&mut self, pool: usize, amount: u64) -> u64 {
        debug_assert!(amount <= self.amounts[pool], "{amount} of pool {pool}, of {} reserved", self.amounts[pool]);
        let mut state = self.pools.state.lock();
        state.allocated[pool] += amount;
        self.pools.allocated[pool].store(state.allocated[pool], Ordering::Relaxed);
        state.allocated[pool]
    }
}

impl<const N: usize, const L: usize> Drop for Reservation<N, L> {
    fn drop(&mut self) {
        self.pools.change(|state| subtract(&mut state.reserved, &self.amounts));
    }
}

impl<const N: usize, const L: usize> Place<N, L> {
    fn become_reservation(mut self) -> Reservation<N, L> {
        self.is_served = true;
        Reservation { pools: Arc::clone(&self.pools), amounts: self.wants }
    }
}

impl<const N: usize, const L: usize> Drop for Place<N, L> {
    fn drop(&mut self) {
        if self.is_served {
            return;
        }
        let mut left = None;
        self.pools.change(|state| {
            let line = &mut state.lines[self.line];
            match line.iter().position(|waiter| waiter.number == self.number) {
                Some(place) => left = line.remove(place),
                None => subtract(&mut state.reserved, &self.wants),
            }
        });
        // With its waker, when the lock is free.
        drop(left);
    }
}

#[cfg(test)]
mod tests;
