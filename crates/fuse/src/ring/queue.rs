//! One queue: the thread of one CPU, its ring, its entries, and the futures that are not ready.
//!
//! An entry (a *slot*) is a buffer that goes back and forth. The kernel holds it until it has a request; then the
//! file system does, until the answer is committed, which hands the slot back in the same step:
//!
//! ```text
//!  REGISTER -> held by the kernel -> request arrives -> served -> ready -> COMMIT_AND_FETCH -> held by the kernel ...
//!                                                          \-> pending -> woken (mailbox) -> polled again
//! ```
//!
//! Late answers keep their slots. So that they never keep the kernel without any, the queue *grows*: whenever fewer
//! than `reserve` slots are held, more are registered, up to `depth_max`.
//!
//! *The nudge.* A request that comes while no slot is held waits in a queue in the kernel, from which only a COMMIT
//! takes (`fuse_uring_next_fuse_req`); a REGISTER does not look there. If all slots went late at once, the new ones
//! would stay idle beside a waiting request, for as long as the late answers take. And the kernel may have none left while some
//! count as held here: it tells of those that it has given a request when this thread enters. So after growing the
//! queue is *suspect*, and while it is, one statfs(2) after another is made on this CPU by a process for the purpose: it
//! uses a new slot, and committing its answer takes up a waiting request. A COMMIT that comes back without a request
//! has seen the kernel's queue empty, which ends the suspicion.
//!
//! Truths kept here:
//! - The thread sleeps nowhere but in its ring.
//! - While the thread gives way it serves nothing, and takes no lock that others want.
//! - While the kernel holds a slot, its memory is mapped and nobody borrows from it.
//!
//! H-2  A queue has stopped when the kernel holds none of its slots: each has a request, answered by whoever goes on. One whose CPU is off keeps
//!      what the kernel holds: nobody calls from there.

#![expect(unsafe_code, reason = "io_uring submissions; sched_setaffinity(2)")]

use super::Plan;
use super::courtesy::Courtesy;
use super::mailbox::{Letters, Mailbox};
use super::slot::{self, Slot};
use super::vigil::{self, Vigil};
use crate::buffer::Area;
use crate::counters::Tally;
use crate::crew::{self, Crew, Duty, Pending};
use crate::exchange::{Core, Exchange};
use crate::service;
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue, types};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Tag of the completion that says the mailbox wants to be read.
const EVENT: u64 = u64::MAX;
/// After a nudge that could not be made, and after an entry that the kernel refused.
const NUDGE_PAUSE: Duration = Duration::from_millis(10);
/// Commands collected before they have to be submitted.
const SUBMISSIONS: u32 = 64;

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// A queue, on its thread.
pub(super) struct Queue {
    /// First, so that it is closed before the memory of the slots goes.
    ring: Ring,
    slots: Vec<Slot>,
    plan: Arc<Plan>,
    index: u16,
    mailbox: Arc<Mailbox>,
    courtesy: Courtesy,
    vigil: Vigil,
    tally: Arc<Tally>,
    depth: usize,
    /// Slots that have not come back with an error.
    alive: usize,
    /// Slots the kernel holds or will with the next submission.
    held: usize,
    /// COMMITs since the last look at what they fetched.
    commits: usize,
    /// Slots that came back with an error, to be used again.
    buried: Vec<usize>,
    /// Not before then: trying without a pause would keep a CPU busy where the kernel has no memory for another entry.
    grows_at: Option<Instant>,
    is_suspect: bool,
    is_event_armed: bool,
    is_ending: bool,
    /// io_uring itself failed: the connection is being ended by force.
    is_broken: bool,
    batch: Vec<(u64, i32)>,
    nudges: Vec<JoinHandle<()>>,
    /// Nudges that have not come back.
    nudges_out: usize,
    /// The thread runs on the CPU the queue is for.
    is_here: bool,
    /// Slots with a request that nobody serves yet: it came while the session parks.
    parked: Vec<usize>,
    /// Whether the kernel was asked for requests to park.
    has_called: bool,
}

/// A ring with the shape FUSE wants, for the calling thread.
pub(super) fn new_ring() -> io::Result<Ring> {
    build_ring(64)
}

fn build_ring(completions: u32) -> io::Result<Ring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_cqsize(completions)
        .build(SUBMISSIONS)
}

/// An error if a policy of the machine keeps commands from the device (`security_uring_cmd`). FUSE would not hear of the entries that are
/// refused so, and every request would wait for them. Asked with a command that is too short, which FUSE refuses at any time and does nothing.
pub(super) fn reach(device: &OwnedFd) -> io::Result<()> {
    let mut ring = IoUring::new(1)?;
    let command = opcode::UringCmd16::new(types::Fd(device.as_raw_fd()), slot::REGISTER).build();
    // SAFETY: the command points to nothing, and the queue is ours.
    unsafe { ring.submission().push(&command) }.map_err(io::Error::other)?;
    ring.submit()?;
    match ring.completion().next().map_or(0, |entry| -entry.result()) {
        number @ (libc::EACCES | libc::EPERM) => {
            let error = io::Error::from_raw_os_error(number);
            let text = format!("io_uring commands to /dev/fuse are forbidden on this machine: {error}");
            Err(io::Error::new(error.kind(), text))
        }
        _ => Ok(()),
    }
}

/// Ties the calling thread to a CPU. False where that CPU is off or not ours: nobody will call from it either.
pub(super) fn pin_thread(cpu: u16) -> bool {
    // SAFETY: a CPU set may be all zeros; CPU_SET ignores numbers beyond it; the call reads the set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(usize::from(cpu), &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) == 0
    }
}

/// Why the kernel refused the last of so many commands, if it refused all.
fn refused_all(completions: &[(u64, i32)], commands: usize) -> Option<i32> {
    let mut refused = completions.iter().filter(|(_, result)| *result < 0);
    if refused.clone().count() < commands { None } else { refused.next_back().map(|(_, result)| -result) }
}

impl Queue {
    /// Makes the ring, on the thread that will serve it. `is_here`: the thread runs on the CPU the queue is for. `areas`: slots with requests that another process
    /// parked.
    pub(super) fn new(
        plan: Arc<Plan>,
        index: u16,
        mailbox: Arc<Mailbox>,
        is_here: bool,
        areas: Vec<Area>,
    ) -> io::Result<Queue> {
        // Every slot has at most one completion under way, and so has the event: none can overflow.
        let completions = (plan.depth_max + 64).next_power_of_two();
        let mut queue = Queue {
            ring: build_ring(u32::try_from(completions).map_err(io::Error::other)?)?,
            slots: Vec::new(),
            tally: plan.crew.meter.tally(),
            depth: if is_here { plan.depth } else { 1 },
            plan,
            index,
            mailbox,
            courtesy: Courtesy::new(),
            vigil: Vigil::new(),
            alive: 0,
            held: 0,
            commits: 0,
            buried: Vec::new(),
            grows_at: None,
            // Requests may wait between the first entry's registration and the last's.
            is_suspect: true,
            is_event_armed: false,
            is_ending: false,
            is_broken: false,
            batch: Vec::new(),
            nudges: Vec::new(),
            nudges_out: 0,
            is_here,
            parked: (0..areas.len()).collect(),
            has_called: false,
        };
        queue.alive = areas.len();
        let fresh = if areas.is_empty() { queue.depth } else { 0 };
        for _ in 0..fresh {
            queue.add_slot()?;
        }
        for area in areas {
            let number = queue.slots.len() as u32;
            queue.slots.push(Slot::new(&queue.mailbox, number, area));
        }
        Ok(queue)
    }

    /// Registers the slots made so far. The kernel says nothing about entries it takes, only about those it refuses: they are gone, and
    /// the queue grows again when it needs to. An error if that is all of them.
    pub(super) fn register(&mut self) -> io::Result<()> {
        if !self.parked.is_empty() {
            // The kernel knows them. Their first COMMIT makes them ours.
            return Ok(());
        }
        for slot in 0..self.slots.len() {
            self.push_register(slot);
        }
        while !self.is_broken && !self.ring.submission().is_empty() {
            self.enter(0);
        }
        // Whatever has come is for `receive`.
        self.batch.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
        let refused = if self.is_broken { Some(libc::EIO) } else { refused_all(&self.batch, self.alive) };
        refused.map_or(Ok(()), |number| {
            let (error, index) = (io::Error::from_raw_os_error(number), self.index);
            let text = format!("the kernel takes no entry of the io_uring queue of CPU {index}: {error}");
            Err(io::Error::new(error.kind(), text))
        })
    }

    /// Serves until the connection has ended and the kernel has given every slot back, or until the session is parked.
    pub(super) fn run(&mut self) {
        self.serve_parked();
        loop {
            self.receive();
            self.read_letters();
            if self.park() {
                return;
            }
            let has_grown = self.grow();
            if self.is_broken || (self.is_ending && self.held == 0) {
                return;
            }
            self.look(has_grown);
            self.sleep();
        }
    }

    // ---- Parking ----

    /// While the session is to park: sees to it that every slot has a request that stays in it (H-2), and stops. True if the
    /// queue is to end.
    ///
    /// A slot that the kernel holds cannot be asked back, and one that is given up with its ring may have a request on its way,
    /// which would fail (`fuse_uring_send_in_task` with `IO_URING_F_TASK_DEAD`). So we make as many requests on this
    /// CPU as there are slots. What else comes waits in the kernel's queue until a COMMIT takes it, which may be of another
    /// process: the kernel finds an entry by its queue and the request's number, whoever commits it (`fuse_uring_commit_fetch`).
    fn park(&mut self) -> bool {
        if self.is_ending || !self.crew().park.is_wanted() {
            self.has_called = false;
            // Also of an attempt that began and ended since this was last asked: `receive` saw it.
            if !self.parked.is_empty() {
                self.serve_parked();
            }
            return false;
        }
        if !std::mem::replace(&mut self.has_called, true) {
            // A CPU may have come since, or have gone; this thread runs elsewhere since then.
            self.is_here = pin_thread(self.index);
            let count = if self.is_here { self.alive } else { 0 };
            for _ in 0..count {
                // Without its thread the slot stays with the kernel, and the attempt ends in time.
                let _ = self.plan.unmounter.provoke();
            }
        }
        // A CPU that is off keeps its slots, and calls nobody.
        let kept = if self.is_here { 0 } else { self.held };
        if self.parked.len() + kept < self.alive {
            return false;
        }
        if self.crew().park.stop() {
            return true;
        }
        self.has_called = false;
        self.serve_parked();
        false
    }

    fn serve_parked(&mut self) {
        // Measured from now on: what they waited is the restart's time.
        let arrived = Instant::now();
        for slot in std::mem::take(&mut self.parked) {
            self.serve(slot, arrived);
        }
    }

    /// The memory of the slots that are parked, for who serves them next.
    pub(super) fn take_parked(&mut self) -> Vec<Area> {
        let cores = self.parked.drain(..).filter_map(|slot| self.slots[slot].core.take());
        cores.map(|core| core.area).collect()
    }

    /// Ends the queue. Futures that are not ready have the session's grace to finish, though nobody waits for them.
    pub(super) fn leave(mut self) {
        drop(self.mailbox.close());
        if self.crew().park.is_taken() {
            // Nudges may be among the requests that the next process answers.
            return;
        }
        for slot in &mut self.slots {
            if let Some(Pending { future, interruptible }) = slot.pending.take() {
                self.plan.crew.late.adopt(future, interruptible);
            }
        }
        for nudge in self.nudges.drain(..) {
            // It only waits for a process that has its answer, or its error.
            let _ = nudge.join();
        }
    }

    fn crew(&self) -> &Crew {
        &self.plan.crew
    }

    // ---- From the kernel ----

    fn receive(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        batch.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
        self.held -= batch.iter().filter(|(tag, _)| *tag != EVENT).count();
        // Of all: the second of a batch waits for the first.
        let arrived = Instant::now();
        for &(tag, result) in &batch {
            match tag {
                EVENT => {
                    self.is_event_armed = false;
                    self.mailbox.clear_event();
                }
                slot if result < 0 => self.bury(slot),
                slot if self.plan.crew.park.is_wanted() => self.parked.push(slot as usize),
                slot => self.serve(slot as usize, arrived),
            }
        }
        batch.clear();
        self.batch = batch;
    }

    /// A command came back with an error: the kernel has done with the slot. Mostly the connection has ended.
    fn bury(&mut self, slot: u64) {
        self.alive -= 1;
        self.slots[slot as usize].core = None;
        self.buried.push(slot as usize);
        self.grows_at = Some(Instant::now() + NUDGE_PAUSE);
    }

    fn serve(&mut self, slot: usize, arrived: Instant) {
        let mut core = self.slots[slot].core.take().expect("a slot the kernel held has its core");
        slot::begin(&mut core, self.crew().dialect);
        let duty = self.crew().take(&core, &self.tally);
        core.arrived = matches!(duty, Duty::Serve).then_some(arrived);
        let interruptible = crew::interruptible(&core);
        let mut exchange = Exchange::new(core);
        if !matches!(duty, Duty::Serve) {
            exchange.answer_empty();
            return self.commit(exchange.into_core());
        }
        // A panic has answered already, through the mailbox.
        let Some(future) = service::begin(self.crew().handler.as_ref(), exchange) else { return };
        let is_pending = self.poll(slot, Pending { future, interruptible });
        if is_pending {
            self.tally.counters.late.add(1);
            self.slots[slot].since = arrived;
            self.vigil.begin(arrived);
            if let Some(unique) = interruptible {
                self.crew().interrupts.wait(unique, self.mailbox.clone());
            }
        }
    }

    /// Polls a future of this slot; keeps it there if it is pending.
    fn poll(&mut self, slot: usize, mut pending: Pending) -> bool {
        match service::poll(&mut pending.future, &mut Context::from_waker(&self.slots[slot].waker)) {
            Poll::Pending => {
                self.slots[slot].pending = Some(pending);
                return true;
            }
            Poll::Ready(exchange) => {
                self.end_wait(&pending);
                drop(pending);
                if let Some(exchange) = exchange {
                    self.accept(exchange);
                }
            }
        }
        false
    }

    fn end_wait(&self, pending: &Pending) {
        if let Some(unique) = pending.interruptible {
            self.crew().interrupts.end(unique);
        }
    }

    // ---- From other threads ----

    fn read_letters(&mut self) {
        let Letters { woken, answered, cancelled, nudged, is_ending, .. } = self.mailbox.take();
        self.is_ending |= is_ending;
        self.nudges_out -= nudged;
        for slot in woken {
            let slot = slot as usize;
            self.slots[slot].arm.arm();
            if let Some(pending) = self.slots[slot].pending.take()
                && !self.poll(slot, pending)
            {
                self.vigil.learn(self.slots[slot].since, Instant::now());
            }
        }
        for unique in cancelled {
            let is_it = |slot: &Slot| slot.pending.as_ref().is_some_and(|one| one.interruptible == Some(unique));
            if let Some(slot) = self.slots.iter().position(is_it) {
                // Dropping the future drops its exchange, which answers by letter.
                drop(self.slots[slot].pending.take());
            }
        }
        for core in answered {
            self.commit(core);
        }
    }

    // ---- To the kernel ----

    /// Takes an answer; it may be to a request of another queue.
    fn accept(&mut self, exchange: Exchange) {
        if exchange.is_from(&*self.mailbox) { self.commit(exchange.into_core()) } else { exchange.send() }
    }

    /// Answers, and hands the slot back to the kernel.
    fn commit(&mut self, mut core: Box<Core>) {
        let slot = core.slot as usize;
        let commit_id = slot::finish(&mut core);
        if let Some(arrived) = core.arrived.take() {
            self.tally.answered(core.header.opcode, arrived);
        }
        // An exchange can be answered while the future it was given to goes on: that one needs another place.
        if let Some(Pending { future, interruptible }) = self.slots[slot].pending.take() {
            self.crew().late.adopt(future, interruptible);
        }
        self.slots[slot].core = Some(core);
        self.held += 1;
        self.commits += 1;
        let entry = slot::commit(self.device(), self.index, commit_id);
        self.push(&entry.user_data(slot as u64));
    }

    fn device(&self) -> types::Fd {
        types::Fd(self.plan.device.as_raw_fd())
    }

    /// Makes a slot, to be registered. Gives its number.
    fn add_slot(&mut self) -> io::Result<usize> {
        let area = Area::steady(self.crew().payload_bytes)?;
        let number = self.buried.pop().unwrap_or(self.slots.len());
        let slot = Slot::new(&self.mailbox, number as u32, area);
        match self.slots.get_mut(number) {
            Some(buried) => *buried = slot,
            None => self.slots.push(slot),
        }
        Ok(number)
    }

    fn push_register(&mut self, slot: usize) {
        self.alive += 1;
        self.held += 1;
        let entry = self.slots[slot].register(self.device(), self.index);
        self.push(&entry.user_data(slot as u64));
    }

    /// Registers more slots if too few are held. True if it did.
    fn grow(&mut self) -> bool {
        let reserve = (self.depth / 2).max(1);
        if self.is_ending || self.has_called || self.held >= reserve || self.alive >= self.plan.depth_max {
            return false;
        }
        if self.grows_at.is_some_and(|time| Instant::now() < time) {
            return false;
        }
        // The kernel takes a slot when it has a request for it, and tells of it when this thread enters: it may have had none left, and
        // gives what waits to a slot that commits, never to one that is new.
        self.is_suspect = true;
        let count = (reserve - self.held).min(self.plan.depth_max - self.alive);
        for grown in 0..count {
            let Ok(slot) = self.add_slot() else {
                // No memory now; the next round tries again.
                return grown > 0;
            };
            self.push_register(slot);
            self.tally.counters.ring_grown.add(1);
        }
        true
    }

    /// While suspect: submits, looks whether a COMMIT found the kernel's queue empty, and nudges if it may not be.
    fn look(&mut self, has_grown: bool) {
        let commits = std::mem::take(&mut self.commits);
        if !self.is_suspect {
            return;
        }
        // Without GETEVENTS nothing but the commands themselves completes in this call.
        let count = self.ring.submission().len() as u32;
        // SAFETY: as in `enter`.
        let result = unsafe { self.ring.submitter().enter::<libc::sigset_t>(count, 0, 0, None) };
        self.check(result.map(drop));
        // A COMMIT that was before the new slots says nothing of them.
        if !has_grown && self.ring.submission().is_empty() && self.ring.completion().len() < commits {
            self.is_suspect = false;
            return;
        }
        let has_late = self.alive > self.held;
        if has_late && !self.is_ending && (has_grown || self.nudges_out == 0) {
            self.nudge();
        }
    }

    fn nudge(&mut self) {
        self.tally.counters.ring_starved.add(1);
        self.nudges.retain(|nudge| !nudge.is_finished());
        let (index, mailbox) = (self.index, self.mailbox.clone());
        let unmounter = self.plan.unmounter.clone();
        let nudge = Builder::new().name(format!("fuse-nudge-{index}")).spawn(move || {
            let ask = || unmounter.provoke()?.join().unwrap_or(Ok(()));
            let can_reach_us = pin_thread(index) && unmounter.is_mounted().unwrap_or(false);
            if !can_reach_us || ask().is_err() {
                // That may change; trying without a pause would keep a CPU busy.
                std::thread::sleep(NUDGE_PAUSE);
            }
            // The queue looks again.
            mailbox.nudged();
        });
        self.nudges_out += usize::from(nudge.is_ok());
        self.nudges.extend(nudge);
    }

    /// Submits, and waits for something to happen unless there are letters.
    fn sleep(&mut self) {
        let has_answers = !self.ring.submission().is_empty();
        if !self.is_event_armed {
            let event = types::Fd(self.mailbox.event());
            let entry = opcode::PollAdd::new(event, libc::POLLIN as u32).build().user_data(EVENT);
            self.push(&entry.into());
            self.is_event_armed = true;
        }
        if self.watch(has_answers) {
            return;
        }
        let may_sleep = self.mailbox.may_sleep(self.is_ending);
        if may_sleep && !self.ring.submission().is_empty() {
            self.courtesy.give_way();
        }
        self.enter(usize::from(may_sleep));
        self.take_up(true);
        self.mailbox.wakes();
    }

    /// Submits, and stays awake for a while, where a request waits that is usually answered soon (`vigil`). True if something came.
    fn watch(&mut self, has_answers: bool) -> bool {
        let has_late = self.alive > self.held && !self.is_ending;
        let began = Instant::now();
        let Some(until) = self.vigil.until(began).filter(|_| has_late) else { return false };
        let Some(thread) = self.courtesy.thread() else { return false };
        let plan = self.plan.clone();
        let Some(_watcher) = plan.watchers.join() else { return false };
        if !self.mailbox.begin_watch(thread) {
            return false;
        }
        let has_come = self.courtesy.give_way() && self.look_out(began, until);
        // First: who has given way holds nothing that others want, as the box.
        self.take_up(has_come || has_answers);
        self.mailbox.end_watch();
        has_come
    }

    /// The vigil itself.
    fn look_out(&mut self, began: Instant, until: Instant) -> bool {
        self.tally.counters.ring_watches.add(1);
        if !self.ring.submission().is_empty() {
            self.enter(0);
        }
        // What is there now is seen now: nothing completes while nobody enters. The kernel says that it wants that, and now and then when it
        // has nothing.
        if self.ring.completion().is_empty() {
            let (ring, mailbox) = (self.ring.submission(), &self.mailbox);
            let (is_called, gap) = vigil::watch(began, until, || ring.taskrun() || mailbox.has_news());
            drop(ring);
            self.vigil.end(Instant::now(), gap);
            if is_called && !self.mailbox.has_news() {
                self.enter(0);
            }
        }
        let has_come = self.mailbox.has_news() || !self.ring.completion().is_empty();
        self.tally.counters.ring_watches_vain.add(u64::from(!has_come));
        has_come
    }

    fn take_up(&mut self, was_wanted: bool) {
        if self.courtesy.take_up(was_wanted) {
            self.tally.counters.ring_delayed.add(1);
        }
    }

    fn push(&mut self, entry: &squeue::Entry128) {
        // SAFETY: what a command points to (the parts of a slot, the slot's memory) lives until the kernel has given
        // the slot back: slots are never removed, and `drop` keeps the memory of those that are held.
        while !self.is_broken && unsafe { self.ring.submission().push(entry) }.is_err() {
            self.enter(0);
        }
    }

    /// Enters the ring, which also lets the kernel hand over requests.
    fn enter(&mut self, want: usize) {
        let count = self.ring.submission().len();
        let flags = EnterFlags::GETEVENTS.bits();
        // SAFETY: submits what `push` put there and waits; no further argument is passed.
        let result = unsafe { self.ring.submitter().enter::<libc::sigset_t>(count as u32, want as u32, flags, None) };
        self.check(result.map(drop));
    }

    fn check(&mut self, result: io::Result<()>) {
        let Err(error) = result else { return };
        // A signal; no memory for the moment; completions to be read first.
        if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) {
            return;
        }
        // Nothing more will come through this ring. Callers on this CPU must not wait for ever.
        self.is_broken = true;
        let _ = self.plan.unmounter.abort();
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.held > 0 {
            // A broken ring or a panic: the kernel may still write into slots it holds, so their memory stays.
            self.slots.iter_mut().filter_map(|slot| slot.core.take()).for_each(std::mem::forget);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::refused_all;

    #[test]
    fn a_queue_is_without_entries_when_all_were_refused() {
        assert_eq!(refused_all(&[], 2), None, "the kernel says nothing of those it takes");
        assert_eq!(refused_all(&[(1, -12)], 2), None, "one is left");
        assert_eq!(refused_all(&[(1, -12), (0, 0)], 2), None, "one has a request already");
        assert_eq!(refused_all(&[(0, -12), (1, -22)], 2), Some(22));
    }
}
