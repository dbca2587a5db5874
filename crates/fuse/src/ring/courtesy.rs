//! Giving way: who asked goes on on the CPU on which it is answered.
//!
//! An answer wakes the caller while the queue's thread still has the CPU. The scheduler takes that CPU for busy and wakes the caller on
//! another one, which is idle and slow to start: half of what a request cost. A CPU whose thread is of policy SCHED_IDLE counts as free
//! (`sched_idle_cpu` in kernel/sched/fair.c). So a queue's thread has that policy within the call that answers and waits, and while it only
//! looks whether something came (`vigil`), and nowhere else: what it holds, what it starts and what our code does for a request are ordinary. What the kernel does for an answer (it copies
//! the data, and fetches the next request) is not.
//!
//! The price: on a CPU that others keep busy it gets its turn late. `Judge` watches that; after a long wait the thread is ordinary for a
//! while. Measured, and what else was tried: docs/decisions/0008-courtesy.md.

#![expect(unsafe_code, reason = "sched_setscheduler(2) has no safe wrapper in std")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// A wait for the CPU of this length is long. Also of a call: a shorter one cannot hide one.
const LONG: Duration = Duration::from_millis(1);
/// How long a thread is ordinary after a long wait, at first and at most.
const REST: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(6);

/// The courtesy of one thread, kept by it.
pub(super) struct Courtesy {
    thread: Thread,
    /// Tells what the thread waited for its CPU. `None`: it gives way to nobody.
    waits: Option<File>,
    judge: Judge,
    /// When it gave way, while it does.
    since: Option<Instant>,
}

impl Courtesy {
    /// Of the calling thread. Without the right to take up again, with another policy than the usual, or without schedstat it never
    /// gives way.
    pub(super) fn new() -> Courtesy {
        let waits = File::open("/proc/thread-self/schedstat").ok();
        let waits = waits.filter(|waits| waited(waits).is_some() && can_take_up());
        Courtesy { thread: Thread::calling(), waits, judge: Judge::new(), since: None }
    }

    /// Whose it is. `None`: it gives way to nobody.
    pub(super) fn thread(&self) -> Option<Thread> {
        self.waits.as_ref().map(|_| self.thread)
    }

    /// Before a call that answers and waits, or a vigil. Whether it gives way now.
    pub(super) fn give_way(&mut self) -> bool {
        let Some(waits) = &self.waits else { return false };
        let now = Instant::now();
        if self.judge.rests(now, || waited(waits).unwrap_or_default()) {
            return false;
        }
        if self.thread.set_policy(libc::SCHED_IDLE) {
            self.since = Some(now);
        }
        self.since.is_some()
    }

    /// After it. `was_wanted`: there was something to do; what a thread waits that only looked does not matter. True if the thread got its CPU
    /// late and rests.
    pub(super) fn take_up(&mut self, was_wanted: bool) -> bool {
        let (Some(since), Some(waits)) = (self.since.take(), &self.waits) else { return false };
        let now = Instant::now();
        let is_late = if was_wanted || now - since < LONG {
            self.judge.returned(now, now - since, || waited(waits).unwrap_or_default())
        } else {
            self.judge.last = None;
            false
        };
        if !self.thread.set_policy(libc::SCHED_OTHER) {
            // It could at the beginning (`can_take_up`). What it is now it stays; it does not ask for it again.
            self.waits = None;
        }
        is_late
    }
}

/// Whether a thread's waits are short enough to go on.
struct Judge {
    /// What the thread had waited in all when that was read last.
    total: Duration,
    /// What it may have waited since, unread.
    unread: Duration,
    /// The end of the last call that it judged.
    last: Option<Instant>,
    /// The end of its rest.
    until: Option<Instant>,
    rest: Duration,
}

impl Judge {
    fn new() -> Judge {
        Judge { total: Duration::ZERO, unread: Duration::ZERO, last: None, until: None, rest: REST }
    }

    /// Before a call. What it waited since the last one, as an ordinary thread, does not count.
    fn rests(&mut self, now: Instant, total: impl FnOnce() -> Duration) -> bool {
        if self.until.is_some_and(|until| now < until) {
            return true;
        }
        self.until = None;
        match self.last.map(|last| now - last) {
            Some(between) if between < LONG => self.unread += between,
            _ => (self.total, self.unread) = (total(), Duration::ZERO),
        }
        false
    }

    /// A call took so long. What is read is read only where it can tell something.
    fn returned(&mut self, now: Instant, took: Duration, total: impl FnOnce() -> Duration) -> bool {
        self.last = Some(now);
        if took < LONG {
            self.unread = self.unread.saturating_add(took);
            return false;
        }
        let before = self.total.saturating_add(self.unread);
        (self.total, self.unread) = (total(), Duration::ZERO);
        let is_late = self.total.saturating_sub(before) >= LONG;
        if is_late {
            (self.until, self.last) = (Some(now + self.rest), None);
            self.rest = (self.rest * 2).min(REST_MAX);
        } else {
            self.rest = (self.rest / 2).max(REST);
        }
        is_late
    }
}

/// What the thread of this file has waited for its CPU in all: the second of three numbers, in nanoseconds (proc_pid_schedstat(5)).
fn waited(schedstat: &File) -> Option<Duration> {
    let mut bytes = [0; 96];
    let count = schedstat.read_at(&mut bytes, 0).ok()?;
    let text = std::str::from_utf8(&bytes[..count]).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

/// A thread, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thread(libc::pid_t);

impl Thread {
    pub(super) fn calling() -> Thread {
        // SAFETY: it only reads.
        Thread(unsafe { libc::gettid() })
    }

    /// Lifts one up that gave way and is still there.
    pub(super) fn lift(self) {
        // What it may not do here it may not do itself, and then it has not given way (`can_take_up`).
        let _ = self.set_policy(libc::SCHED_OTHER);
    }

    /// Gives it a policy, at the nice value it has.
    fn set_policy(self, policy: i32) -> bool {
        // SAFETY: a `sched_param` may be all zeros, and has to be for these policies; the call reads it.
        unsafe {
            let param: libc::sched_param = std::mem::zeroed();
            libc::sched_setscheduler(self.0, policy, &raw const param) == 0
        }
    }
}

/// Whether a thread with the usual policy that has given way may take up again: not everybody may (RLIMIT_NICE, sched(7)).
fn can_take_up() -> bool {
    // SAFETY: it only reads.
    let is_usual = || unsafe { libc::sched_getscheduler(0) } == libc::SCHED_OTHER;
    // Tried by a thread that does nothing else afterwards.
    let trial = std::thread::Builder::new().spawn(move || {
        let set_policy = |policy| Thread::calling().set_policy(policy);
        is_usual() && set_policy(libc::SCHED_IDLE) && set_policy(libc::SCHED_OTHER)
    });
    trial.is_ok_and(|trial| trial.join().unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::{Courtesy, Judge, LONG, REST, REST_MAX};
    use std::time::{Duration, Instant};

    const SHORT: Duration = Duration::from_micros(20);

    fn unread() -> Duration {
        panic!("nothing can be learned from it")
    }

    #[test]
    fn short_calls_ask_for_nothing_and_hide_nothing() {
        let (mut judge, now) = (Judge::new(), Instant::now());
        assert!(!judge.rests(now, || LONG * 100), "what was before it is none of ours");
        for _ in 0..1000 {
            assert!(!judge.returned(now, SHORT, unread));
            assert!(!judge.rests(now, unread));
        }
        // They may have waited all their time: nobody knows. The next long call begins anew.
        assert!(!judge.returned(now, LONG * 30, || LONG * 100 + SHORT * 1000));
        assert!(!judge.rests(now, unread));
        assert!(!judge.returned(now, LONG * 30, || LONG * 101 - SHORT + SHORT * 1000), "it slept");
        assert!(!judge.rests(now, unread));
        assert!(judge.returned(now, LONG * 30, || LONG * 102 + SHORT * 1000), "it was ready, and had no CPU");
    }

    #[test]
    fn what_an_ordinary_thread_waits_does_not_count() {
        let (mut judge, now) = (Judge::new(), Instant::now());
        assert!(!judge.rests(now, || LONG));
        assert!(!judge.returned(now, SHORT, unread));
        // It served for long, and had no CPU for most of that.
        assert!(!judge.rests(now + LONG * 50, || LONG * 49));
        assert!(!judge.returned(now + LONG * 60, LONG * 10, || LONG * 49 + SHORT));
        // It served for a little, all of it without a CPU.
        assert!(!judge.rests(now + LONG * 60 + SHORT, unread));
        assert!(!judge.returned(now + LONG * 70, LONG * 10, || LONG * 50 + SHORT));
    }

    #[test]
    fn who_waits_long_again_and_again_rests_longer() {
        let (mut judge, mut now, mut total) = (Judge::new(), Instant::now(), Duration::ZERO);
        assert!(!judge.rests(now, || total));
        let mut rest = REST;
        for _ in 0..10 {
            total += LONG;
            assert!(judge.returned(now, LONG, || total));
            assert!(judge.rests(now + rest - SHORT, unread));
            now += rest;
            // What it waited in its rest does not count.
            total += LONG * 7;
            assert!(!judge.rests(now, || total));
            rest = (rest * 2).min(REST_MAX);
        }
        for _ in 0..10 {
            assert!(!judge.returned(now, LONG * 9, || total));
            assert!(!judge.rests(now, unread));
        }
        assert!(judge.returned(now, LONG, || total + LONG));
        assert!(!judge.rests(now + REST, || total + LONG), "forgiven");
    }

    #[test]
    fn what_a_thread_waited_that_only_looked_does_not_count() {
        let test = std::thread::spawn(|| {
            let mut courtesy = Courtesy::new();
            if courtesy.give_way() {
                courtesy.since = Some(Instant::now() - LONG * 2);
                courtesy.judge.last = Some(Instant::now());
                assert!(!courtesy.take_up(false));
                assert_eq!(courtesy.judge.last, None, "what it waited in all is read before the next call");
            }
        });
        test.join().expect("no panic");
    }

    #[test]
    fn a_thread_is_as_before_after_each_call() {
        // A thread of its own: its policy is changed.
        let test = std::thread::spawn(|| {
            let mut courtesy = Courtesy::new();
            // SAFETY: it only reads.
            let policy = || unsafe { libc::sched_getscheduler(0) };
            let before = policy();
            for _ in 0..3 {
                let has_given_way = courtesy.give_way();
                // Where it may not take up again it has not given way.
                assert_eq!(policy() == libc::SCHED_IDLE, has_given_way);
                courtesy.take_up(true);
                assert_eq!(policy(), before);
            }
        });
        test.join().expect("no panic");
    }
}
