//! Who waits for a disk that turns, and who is next: upwards from where the head is, and from the lowest again, as the kernel's schedulers and
//! drives with a queue do it. So requests that come together are done in the order of their places, whichever task was first.
//!
//! Who cannot wait, as the embedded index, takes its time from those who come after: the drive is busy for as long ([`Elevator::charge`]).
//!
//! A sync waits until it is the oldest; reads may pass it, writes that came after it do not.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use super::platter::{Placed, Platter, Spindle};
use super::timeline::Timeline;
use crate::Clock;
use crate::disk::Access;
use crate::task::Boxed;

/// A drive and its queue.
pub(super) struct Elevator {
    timeline: Arc<Timeline>,
    state: Mutex<State>,
}

struct State {
    spindle: Spindle,
    waiting: BTreeMap<u64, Request>,
    ticket_last: u64,
    /// Whose turn it is, and when it is done.
    served: Option<(u64, Duration)>,
    /// What was waited for and is done now.
    paid: Vec<(u64, Access)>,
}

struct Request {
    file: u64,
    access: Access,
    /// Of its first byte.
    address: u64,
    waker: Option<Waker>,
}

impl Elevator {
    pub(super) fn new(timeline: &Arc<Timeline>, platter: Platter) -> Elevator {
        let (spindle, waiting) = (Spindle::new(platter), BTreeMap::new());
        let state = Mutex::new(State { spindle, waiting, ticket_last: 0, served: None, paid: Vec::new() });
        Elevator { timeline: timeline.clone(), state }
    }

    pub(super) fn take(&self) -> Vec<Placed> {
        self.state.lock().spindle.take()
    }

    /// Those who waited are gone: it is free.
    pub(super) fn abandon(&self) {
        let mut state = self.state.lock();
        state.spindle.abandon(self.timeline.elapsed());
        state.paid.clear();
    }

    /// Completes when the drive has done it.
    pub(super) fn request(self: &Arc<Self>, file: u64, access: Access) -> Boxed<()> {
        let mut state = self.state.lock();
        state.ticket_last += 1;
        let ticket = state.ticket_last;
        let address = match access {
            Access::Read(offset, _) | Access::Write(offset, _) => state.spindle.address(file, offset),
            Access::Sync => 0,
        };
        state.waiting.insert(ticket, Request { file, access, address, waker: None });
        Box::pin(Turn { elevator: self.clone(), ticket, asked: (file, access), rest: None })
    }

    /// An operation happens: one that was not waited for keeps the drive busy.
    pub(super) fn charge(&self, file: u64, access: Access) {
        let mut state = self.state.lock();
        if let Some(index) = state.paid.iter().position(|paid| *paid == (file, access)) {
            state.paid.swap_remove(index);
        } else {
            state.serve(self.timeline.elapsed(), file, access);
        }
    }

    /// Gives the drive to the next, and wakes it.
    fn next(&self, state: &mut State) {
        if state.served.is_some() {
            return;
        }
        let Some(ticket) = state.chosen() else { return };
        let request = state.waiting.remove(&ticket).expect("chosen among them");
        let done = state.serve(self.timeline.elapsed(), request.file, request.access);
        state.served = Some((ticket, done));
        request.waker.into_iter().for_each(Waker::wake);
    }
}

impl State {
    /// When it is done.
    fn serve(&mut self, now: Duration, file: u64, access: Access) -> Duration {
        match access {
            Access::Read(offset, bytes) => self.spindle.file_request(now, file, offset, bytes, false),
            Access::Write(offset, bytes) => self.spindle.file_request(now, file, offset, bytes, true),
            Access::Sync => self.spindle.sync(now),
        }
    }

    fn chosen(&self) -> Option<u64> {
        let (oldest, request) = self.waiting.first_key_value()?;
        if request.access == Access::Sync {
            return Some(*oldest);
        }
        let sync = self.waiting.iter().find(|(_, request)| request.access == Access::Sync).map(|(ticket, _)| *ticket);
        let may_pass = |(ticket, request): &(&u64, &Request)| match request.access {
            Access::Read(..) => true,
            Access::Write(..) => sync.is_none_or(|sync| **ticket < sync),
            Access::Sync => false,
        };
        let head = self.spindle.address_now();
        let candidates = self.waiting.iter().filter(may_pass);
        candidates
            .min_by_key(|(ticket, request)| (request.address < head, request.address, **ticket))
            .map(|(ticket, _)| *ticket)
    }
}

/// A request that waits, or is done.
struct Turn {
    elevator: Arc<Elevator>,
    ticket: u64,
    asked: (u64, Access),
    /// Until it is done, once it is its turn.
    rest: Option<Boxed<()>>,
}

impl Future for Turn {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.rest.is_none() {
            let elevator = self.elevator.clone();
            let mut state = elevator.state.lock();
            elevator.next(&mut state);
            match state.served {
                Some((ticket, done)) if ticket == self.ticket => {
                    self.rest = Some(elevator.timeline.sleep(done.saturating_sub(elevator.timeline.elapsed())));
                }
                _ => {
                    let request = state.waiting.get_mut(&self.ticket).expect("it waits until it is served");
                    request.waker = Some(context.waker().clone());
                    return Poll::Pending;
                }
            }
        }
        // What follows is begun when this is dropped.
        let done = self.rest.as_mut().expect("set above").as_mut().poll(context);
        if done.is_ready() {
            self.elevator.state.lock().paid.push(self.asked);
        }
        done
    }
}

impl Drop for Turn {
    /// It is done, or nobody waits for it any more: the next.
    fn drop(&mut self) {
        let mut state = self.elevator.state.lock();
        state.waiting.remove(&self.ticket);
        if state.served.is_some_and(|(ticket, _)| ticket == self.ticket) {
            state.served = None;
        }
        self.elevator.next(&mut state);
    }
}
