//! How other threads reach a queue's thread, which sleeps in its ring: letters, and an eventfd to wake it.
//!
//! A wake-up across CPUs is the dearest thing on the way (measured), so the eventfd is written only
//! when the owner sleeps: `is_awake` is true from the moment it is woken until it has found the box empty.

#![expect(unsafe_code, reason = "eventfd(2) has no safe wrapper in std; a test asks for a policy")]

use super::courtesy::Thread;
use crate::exchange::{Core, Home};
use crate::interrupt::Cancel;
use crate::lock::lock;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Wake;
use zerocopy::IntoBytes;

/// The box of one queue.
pub(crate) struct Mailbox {
    event: File,
    is_awake: AtomicBool,
    /// Something came since the letters were taken: a hint for an owner that looks again and again.
    is_new: AtomicBool,
    letters: Mutex<Letters>,
}

/// What has come.
#[derive(Default)]
pub(crate) struct Letters {
    /// Slots whose futures may go on.
    pub(crate) woken: Vec<u32>,
    /// Exchanges that were answered elsewhere, or dropped.
    #[expect(clippy::vec_box, reason = "an exchange is a box; passing one on must not move its inside")]
    pub(crate) answered: Vec<Box<Core>>,
    /// Requests whose callers were interrupted.
    pub(crate) cancelled: Vec<u64>,
    /// How many nudges have come back (`queue`).
    pub(crate) nudged: usize,
    /// There is something to look at beside the letters.
    is_called: bool,
    /// The connection has ended.
    pub(crate) is_ending: bool,
    /// The queue has gone: what comes now is dropped.
    is_closed: bool,
    /// The owner, while it looks for letters and has given way.
    watcher: Option<Thread>,
}

impl Letters {
    fn is_empty(&self) -> bool {
        let is_called = self.is_called || self.nudged > 0;
        self.woken.is_empty() && self.answered.is_empty() && self.cancelled.is_empty() && !is_called
    }
}

impl Mailbox {
    pub(crate) fn new() -> io::Result<Arc<Mailbox>> {
        // SAFETY: makes a new descriptor and touches no memory of ours.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let event = unsafe { File::from_raw_fd(fd) };
        Ok(Arc::new(Mailbox {
            event,
            is_awake: AtomicBool::new(true),
            is_new: AtomicBool::new(false),
            letters: Mutex::default(),
        }))
    }

    /// What the owner polls while it sleeps.
    pub(crate) fn event(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    /// The owner was woken by the event.
    pub(crate) fn clear_event(&self) {
        // EAGAIN: it had been cleared already.
        let _ = (&self.event).read(&mut [0; 8]);
    }

    /// The owner wants to sleep. False if there are letters: it must stay awake.
    pub(crate) fn may_sleep(&self, has_seen_end: bool) -> bool {
        self.is_awake.store(false, Ordering::SeqCst);
        let is_quiet = {
            let letters = lock(&self.letters);
            letters.is_empty() && letters.is_ending == has_seen_end
        };
        if !is_quiet {
            self.is_awake.store(true, Ordering::SeqCst);
        }
        is_quiet
    }

    /// The owner is awake again, for whatever reason.
    pub(crate) fn wakes(&self) {
        self.is_awake.store(true, Ordering::SeqCst);
    }

    /// The owner is about to look for letters, as one that gives way. False if there are some.
    pub(super) fn begin_watch(&self, owner: Thread) -> bool {
        let mut letters = lock(&self.letters);
        let is_quiet = !self.has_news();
        letters.watcher = is_quiet.then_some(owner);
        is_quiet
    }

    /// It has looked, and is as before. It lives until this has returned, so nobody else is lifted in its place.
    pub(super) fn end_watch(&self) {
        lock(&self.letters).watcher = None;
    }

    /// Something came since the letters were taken.
    pub(crate) fn has_news(&self) -> bool {
        self.is_new.load(Ordering::Acquire)
    }

    /// Takes all letters.
    pub(crate) fn take(&self) -> Letters {
        let mut letters = lock(&self.letters);
        self.is_new.store(false, Ordering::Relaxed);
        let Letters { is_ending, is_closed, watcher, .. } = *letters;
        let empty = Letters { is_ending, is_closed, watcher, ..Default::default() };
        std::mem::replace(&mut letters, empty)
    }

    /// The connection has ended.
    pub(crate) fn end(&self) {
        self.post(|letters| letters.is_ending = true);
    }

    /// The owner is to look at the park.
    pub(crate) fn call(&self) {
        self.post(|letters| letters.is_called = true);
    }

    /// A nudge has come back.
    pub(crate) fn nudged(&self) {
        self.post(|letters| letters.nudged += 1);
    }

    /// The owner goes; returns what is left.
    pub(crate) fn close(&self) -> Letters {
        lock(&self.letters).is_closed = true;
        self.take()
    }

    fn post(&self, write: impl FnOnce(&mut Letters)) {
        {
            let mut letters = lock(&self.letters);
            if letters.is_closed {
                return;
            }
            write(&mut letters);
            self.is_new.store(true, Ordering::Release);
            // Beside a busy neighbour it would not see them for long.
            letters.watcher.take().inspect(|owner| owner.lift());
        }
        if !self.is_awake.swap(true, Ordering::SeqCst) {
            // An eventfd refuses only when its counter is full, and then the owner is about to wake.
            let _ = (&self.event).write(1_u64.as_bytes());
        }
    }
}

impl Home for Mailbox {
    fn answer(&self, core: Box<Core>) {
        let mut core = Some(core);
        self.post(|letters| letters.answered.extend(core.take()));
        // With the box closed the core ends here, outside the lock.
    }
}

impl Cancel for Mailbox {
    fn cancel(self: Arc<Self>, unique: u64) {
        self.post(|letters| letters.cancelled.push(unique));
    }
}

/// Wakes the future of one slot. One per slot for its whole life: a wake meant for an earlier request of the slot only
/// polls once too often.
pub(crate) struct SlotWaker {
    mailbox: Arc<Mailbox>,
    slot: u32,
    is_posted: AtomicBool,
}

impl SlotWaker {
    pub(crate) fn new(mailbox: Arc<Mailbox>, slot: u32) -> Arc<SlotWaker> {
        Arc::new(SlotWaker { mailbox, slot, is_posted: AtomicBool::new(false) })
    }

    /// The owner is about to poll: later wakes count again.
    pub(crate) fn arm(&self) {
        self.is_posted.store(false, Ordering::SeqCst);
    }
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_posted.swap(true, Ordering::SeqCst) {
            self.mailbox.post(|letters| letters.woken.push(self.slot));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::courtesy::Courtesy;
    use super::Mailbox;
    use std::sync::Arc;

    #[test]
    fn who_posts_lifts_a_watcher_up_and_nobody_else() {
        // Of threads of its own: their policies are changed.
        let test = std::thread::spawn(|| {
            // SAFETY: it only reads.
            let policy = || unsafe { libc::sched_getscheduler(0) };
            let (mailbox, before) = (Mailbox::new().expect("an eventfd"), policy());
            let post = |mailbox: &Arc<Mailbox>| {
                let mailbox = mailbox.clone();
                std::thread::spawn(move || mailbox.call()).join().expect("no panic");
            };
            let mut courtesy = Courtesy::new();
            let Some(thread) = courtesy.thread() else { return };
            assert!(mailbox.begin_watch(thread));
            assert!(courtesy.give_way());
            assert_eq!(policy(), libc::SCHED_IDLE);
            post(&mailbox);
            assert_eq!(policy(), before);
            assert!(mailbox.has_news());
            courtesy.take_up(true);
            mailbox.end_watch();
            assert!(!mailbox.begin_watch(thread), "there is a letter");
            drop(mailbox.take());
            // One that came before the thread was down lifts nobody, and is seen. Another courtesy: that one may have found the CPU busy.
            let mut courtesy = Courtesy::new();
            assert!(mailbox.begin_watch(thread));
            post(&mailbox);
            assert!(courtesy.give_way() && mailbox.has_news());
            courtesy.take_up(true);
            assert_eq!(policy(), before);
            mailbox.end_watch();
            drop(mailbox.take());
            // Who does not watch is left alone.
            assert!(Courtesy::new().give_way());
            post(&mailbox);
            assert_eq!(policy(), libc::SCHED_IDLE);
        });
        test.join().expect("no panic");
    }
}
