//! Fixed pools and who may draw on them: memory is bounded by admission, not by luck (HydraFS, FAST'10: resource management).
//!
//! An event says before it begins how much of each pool it may need, and waits until `wants + reserved + allocated <= total` holds for all of
//! them. What it reserved counts until it ends, and what it allocates counts beside that, until somebody frees it: an event that runs is
//! counted twice, and nothing that was admitted ever lacks room.
//!
//! A-1   The sum holds at each admission, but for A-3 and who is let in by force. Nobody allocates more than was reserved for it.
//! A-2   First come, first served: nobody is admitted before one who has waited longer in the same line, however little they want.
//! A-3   Who wants more of a pool than it ever has is admitted when nothing of it is in use.
//! A-4   Lines are looked at when something is freed, when a reservation ends, and when somebody leaves a line. Who leaves, also by being dropped in
//!       the moment of the admission, leaves nothing reserved.
//!
//! Not here: what the pools are of, and what makes room.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// So much of each of `N` pools.
pub type Amounts<const N: usize> = [u64; N];

/// `N` pools of fixed size with `L` lines before them. Each line has totals of its own: where one has larger ones, it goes on for a while when
/// others stand.
pub struct Pools<const N: usize, const L: usize = 1> {
    totals: [Amounts<N>; L],
    state: Mutex<State<N, L>>,
}

struct State<const N: usize, const L: usize> {
    reserved: Amounts<N>,
    allocated: Amounts<N>,
    /// The next to be served in front.
    lines: [VecDeque<Waiter<N>>; L],
    next_number: u64,
}

struct Waiter<const N: usize> {
    number: u64,
    wants: Amounts<N>,
    admitted: oneshot::Sender<()>,
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
    /// Pools with these totals, for each line.
    #[must_use]
    pub fn new(totals: [Amounts<N>; L]) -> Arc<Pools<N, L>> {
        let lines = [const { VecDeque::new() }; L];
        let state = State { reserved: [0; N], allocated: [0; N], lines, next_number: 0 };
        Arc::new(Pools { totals, state: Mutex::new(state) })
    }

    /// Admits an event that may need so much, if nobody is before it in its line and there is as much.
    pub fn try_reserve(self: &Arc<Self>, line: usize, wants: Amounts<N>) -> Option<Reservation<N, L>> {
        let mut state = self.state.lock();
        if !state.lines[line].is_empty() || !self.has_room(&state, line, &wants) {
            return None;
        }
        state.reserve(&wants);
        Some(Reservation { pools: Arc::clone(self), amounts: wants })
    }

    /// Admits an event that may need so much when its turn has come. The line is joined at the first poll.
    pub async fn reserve(self: &Arc<Self>, line: usize, wants: Amounts<N>) -> Reservation<N, L> {
        let (place, admitted) = {
            let mut state = self.state.lock();
            let (send, admitted) = oneshot::channel();
            let number = state.next_number;
            state.next_number += 1;
            state.lines[line].push_back(Waiter { number, wants, admitted: send });
            self.admit(&mut state);
            (Place { pools: Arc::clone(self), line, number, wants, is_served: false }, admitted)
        };
        admitted.await.expect("who takes a waiter out of its line admits it, or is the waiter");
        place.become_reservation()
    }

    /// Admits an event whatever there is: one that must not wait.
    pub fn force(self: &Arc<Self>, wants: Amounts<N>) -> Reservation<N, L> {
        self.state.lock().reserve(&wants);
        Reservation { pools: Arc::clone(self), amounts: wants }
    }

    /// Gives back what was allocated.
    pub fn free(&self, pool: usize, amount: u64) {
        let mut state = self.state.lock();
        let allocated = &mut state.allocated[pool];
        *allocated = allocated.checked_sub(amount).expect("no more is freed than was allocated");
        self.admit(&mut state);
    }

    /// Has `measure` say how much is allocated, for pools whose use is known elsewhere. It is called under the lock, so that of two at once the
    /// later one sees what the earlier one saw.
    pub fn measure(&self, measure: impl FnOnce(&mut Amounts<N>)) {
        let mut state = self.state.lock();
        measure(&mut state.allocated);
        self.admit(&mut state);
    }

    /// How much of a pool is allocated.
    #[must_use]
    pub fn allocated(&self, pool: usize) -> u64 {
        self.state.lock().allocated[pool]
    }

    /// How many wait in a line.
    #[must_use]
    pub fn waiting(&self, line: usize) -> usize {
        self.state.lock().lines[line].len()
    }

    fn has_room(&self, state: &State<N, L>, line: usize, wants: &Amounts<N>) -> bool {
        (0..N).all(|pool| {
            let used = state.reserved[pool] + state.allocated[pool];
            wants[pool] == 0 || used == 0 || wants[pool] + used <= self.totals[line][pool]
        })
    }

    /// Serves the lines as far as there is room.
    fn admit(&self, state: &mut State<N, L>) {
        for line in 0..L {
            while let Some(waiter) = state.lines[line].front() {
                if !self.has_room(state, line, &waiter.wants) {
                    break;
                }
                let Waiter { wants, admitted, .. } = state.lines[line].pop_front().expect("seen above");
                state.reserve(&wants);
                // Who goes in this moment gives it back: its place says so.
                let _ = admitted.send(());
            }
        }
    }

    fn release(&self, state: &mut State<N, L>, amounts: &Amounts<N>) {
        for (reserved, amount) in state.reserved.iter_mut().zip(amounts) {
            *reserved -= amount;
        }
        self.admit(state);
    }
}

impl<const N: usize, const L: usize> State<N, L> {
    fn reserve(&mut self, wants: &Amounts<N>) {
        for (reserved, more) in self.reserved.iter_mut().zip(wants) {
            *reserved += more;
        }
    }
}

impl<const N: usize, const L: usize> Reservation<N, L> {
    /// Takes so much of a pool, until it is freed. In all no more than was reserved.
    pub fn allocate(&mut self, pool: usize, amount: u64) {
        debug_assert!(amount <= self.amounts[pool], "{amount} of pool {pool}, of {} reserved", self.amounts[pool]);
        self.pools.state.lock().allocated[pool] += amount;
    }
}

impl<const N: usize, const L: usize> Drop for Reservation<N, L> {
    fn drop(&mut self) {
        let mut state = self.pools.state.lock();
        self.pools.release(&mut state, &self.amounts);
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
        let mut state = self.pools.state.lock();
        match state.lines[self.line].iter().position(|waiter| waiter.number == self.number) {
            Some(place) => {
                state.lines[self.line].remove(place);
                self.pools.admit(&mut state);
            }
            None => self.pools.release(&mut state, &self.wants),
        }
    }
}

#[cfg(test)]
mod tests;
