//! Staying awake for an answer that is about to come.
//!
//! A CPU that has nothing to do sleeps, and wakes late: in a virtual machine by some 20 us, at each step of an I/O that ends with an interrupt. An
//! fdatasync has two of these. So a queue's thread of which a request waits stays awake for it, as long as such requests usually take and no longer.
//! What guests of KVM do with `guest_halt_poll_ns`, for the moments alone in which somebody waits.
//!
//! It has given way meanwhile (`courtesy`): who gets something to do on its CPU has it at once, or, if he is of another group of tasks, after the
//! vigil. Who posts a letter lifts the thread up again (`mailbox`): where its CPU has come to be busy it gets that in its turn, and not last of all. A
//! request lifts nobody. So where its CPU was busy there is no vigil for a while; such a CPU does not sleep anyhow.
//!
//! What it costs is a CPU's power, and half of a core that has two threads. So few queues do it at a time, and none where requests take long.
//! Measured: docs/decisions/0016-vigil.md.
//!
//! - One vigil ends with what came, and `LENGTH_MAX` after the newest request that waits at the latest.
//! - Who watches holds nothing that others want (`queue`).
//!
//! Not here: what is looked at, and what is done about it (`queue`).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Nobody watches for longer.
const LENGTH_MAX: Duration = Duration::from_micros(500);
/// What is thought of requests before any was seen.
const USUAL: Duration = Duration::from_micros(100);
/// A watcher who did not get his CPU for so long had a neighbour.
const GAP_LONG: Duration = Duration::from_millis(1);
/// For how long there is no vigil beside a neighbour, at first and at most.
const REST: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(6);
/// The share of the newest request in what is usual is one of so many.
const MEMORY: u32 = 8;

/// How many of a session's queues watch.
#[derive(Debug)]
pub(super) struct Watchers {
    now: AtomicUsize,
    most: usize,
}

impl Watchers {
    /// Of as many queues.
    pub(super) fn new(queues: usize) -> Watchers {
        Watchers { now: AtomicUsize::new(0), most: (queues / 4).max(1) }
    }

    /// `None`: enough do.
    pub(super) fn join(&self) -> Option<Watcher<'_>> {
        let is_one = self.now.fetch_add(1, Ordering::Relaxed) < self.most;
        let watcher = Watcher(self);
        is_one.then_some(watcher)
    }
}

/// One that watches, until it is dropped.
pub(super) struct Watcher<'a>(&'a Watchers);

impl Drop for Watcher<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What one queue knows of requests that wait.
#[derive(Debug)]
pub(super) struct Vigil {
    usual: Duration,
    /// When the last one came that had to wait.
    newest: Option<Instant>,
    /// The end of its rest.
    rests: Option<Instant>,
    rest: Duration,
}

impl Vigil {
    pub(super) fn new() -> Vigil {
        Vigil { usual: USUAL, newest: None, rests: None, rest: REST }
    }

    /// A request that came then has to wait.
    pub(super) fn begin(&mut self, arrived: Instant) {
        self.newest = Some(arrived);
    }

    /// One that came then has its answer now.
    pub(super) fn learn(&mut self, arrived: Instant, now: Instant) {
        if self.newest == Some(arrived) {
            // Those before it took longer than usual already, or will have theirs unwatched.
            self.newest = None;
        }
        // A lock that is held for an hour says nothing of disks.
        self.usual = (self.usual * (MEMORY - 1) + (now - arrived).min(LENGTH_MAX * 2)) / MEMORY;
    }

    /// It was watched, and the CPU was away for so long.
    pub(super) fn end(&mut self, now: Instant, gap: Duration) {
        if gap >= GAP_LONG {
            self.rests = Some(now + self.rest);
            self.rest = (self.rest * 2).min(REST_MAX);
        } else {
            self.rest = (self.rest / 2).max(REST);
        }
    }

    /// Until when to watch, if at all: what takes long is not watched for, nor what waits for longer than usual, nor beside a neighbour.
    pub(super) fn until(&self, now: Instant) -> Option<Instant> {
        let length = self.usual * 2;
        let until = self.newest? + length;
        let rests = self.rests.is_some_and(|end| now < end);
        (length <= LENGTH_MAX && now < until && !rests).then_some(until)
    }
}

/// Looks whether something came, from `began` until it did or it is time to sleep. Whether it did, and the longest time in which nobody looked.
pub(super) fn watch(began: Instant, until: Instant, mut has_come: impl FnMut() -> bool) -> (bool, Duration) {
    let (mut last, mut gap) = (began, Duration::ZERO);
    loop {
        let now = Instant::now();
        gap = gap.max(now - last);
        last = now;
        if has_come() {
            return (true, gap);
        }
        if now >= until {
            return (false, gap);
        }
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{GAP_LONG, LENGTH_MAX, REST, REST_MAX, USUAL, Vigil, Watchers, watch};

    #[test]
    fn who_learns_that_requests_take_long_watches_no_more_until_they_do_not() {
        let (mut vigil, now) = (Vigil::new(), Instant::now());
        assert_eq!(vigil.until(now), None, "nothing waits");
        vigil.begin(now);
        assert_eq!(vigil.until(now), Some(now + USUAL * 2));
        assert_eq!(vigil.until(now + USUAL * 2), None, "it waits for longer than usual");
        let mut learn = |took| (0..100).for_each(|_| vigil.learn(now, now + took));
        learn(Duration::from_millis(10));
        learn(Duration::from_micros(80));
        assert_eq!(vigil.until(now), None, "it has its answer");
        vigil.begin(now);
        let length = vigil.until(now).expect("they are short again") - now;
        assert!((Duration::from_micros(150)..Duration::from_micros(200)).contains(&length), "{length:?}");
        // One that is held for long is forgotten soon, and what comes later is waited for from then on.
        vigil.learn(now - Duration::from_secs(3600), now);
        let later = now + LENGTH_MAX;
        vigil.begin(later);
        assert!(vigil.until(later).is_some_and(|until| until > later && until <= later + LENGTH_MAX));
        (0..100).for_each(|_| vigil.learn(now, now + Duration::from_millis(10)));
        assert_eq!(vigil.until(later), None, "they take long");
    }

    #[test]
    fn beside_a_neighbour_there_is_no_vigil_for_longer_and_longer() {
        let (mut vigil, mut now, mut rest) = (Vigil::new(), Instant::now(), REST);
        for _ in 0..20 {
            vigil.end(now, GAP_LONG);
            vigil.begin(now + rest - USUAL);
            assert_eq!(vigil.until(now + rest - USUAL), None);
            assert!(vigil.until(now + rest).is_some());
            now += rest;
            rest = (rest * 2).min(REST_MAX);
        }
        for _ in 0..20 {
            vigil.end(now, GAP_LONG / 2);
        }
        vigil.end(now, GAP_LONG);
        vigil.begin(now + REST);
        assert!(vigil.until(now + REST).is_some(), "forgiven");
    }

    #[test]
    fn a_vigil_ends_with_what_came_or_in_time_and_tells_of_gaps() {
        let mut looks = 0;
        let come = || {
            looks += 1;
            looks == 1000
        };
        let now = Instant::now();
        assert!(watch(now, now + Duration::from_secs(3600), come).0);
        assert_eq!(looks, 1000);
        let (has_come, gap) = watch(now - GAP_LONG, now, || false);
        assert!(!has_come && gap >= GAP_LONG);
    }

    #[test]
    fn few_watch_at_a_time() {
        let watchers = Watchers::new(8);
        let (first, second) = (watchers.join(), watchers.join());
        assert!(first.is_some() && second.is_some() && watchers.join().is_none());
        drop(first);
        assert!(watchers.join().is_some(), "who was refused does not count");
        assert!(Watchers::new(1).join().is_some());
    }
}
