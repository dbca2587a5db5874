//! Grace: waiting until nobody uses what was to be seen before.
//!
//! Operations read trees and chunks without locks: they take a root, and what it names stays. Reclaim must not take chunks away
//! from under an operation that began when they were still named. So each operation notes that it runs, and
//! [`Grace::wait`] returns when all that ran at its beginning have ended (a grace period, as in RCU: McKenney, 1998).
//!
//! I-90  Whoever uses a root, or chunks that no root names yet, holds a [`Use`] from before taking it until after the use, and
//!       waits meanwhile for disks only: neither for locks nor for room in the file layer. (The store's own line waits for disks.)

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Counters of their own for each CPU, about: operations of different files seldom meet.
const SHARDS: usize = 16;

#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    users: [AtomicUsize; 2],
}

/// Who is running, in two epochs that take turns.
#[derive(Debug, Default)]
pub(crate) struct Grace {
    epoch: AtomicUsize,
    shards: [Shard; SHARDS],
    is_waiting: AtomicBool,
    ended: Notify,
}

/// Proof that an operation is known to run.
#[derive(Debug)]
#[must_use]
pub(crate) struct Use<'a> {
    grace: &'a Grace,
    users: &'a AtomicUsize,
}

impl Grace {
    /// Notes an operation on something with this number.
    pub(crate) fn enter(&self, number: u64) -> Use<'_> {
        let shard = &self.shards[(number ^ (number >> 6)) as usize % SHARDS];
        loop {
            let epoch = self.epoch.load(Ordering::SeqCst);
            let users = &shard.users[epoch % 2];
            users.fetch_add(1, Ordering::SeqCst);
            let entered = Use { grace: self, users };
            // Counted in an epoch that somebody may have looked at already: once more.
            if self.epoch.load(Ordering::SeqCst) == epoch {
                return entered;
            }
        }
    }

    /// Whether somebody waits for what is running.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.is_waiting.load(Ordering::SeqCst)
    }

    /// Waits for every operation that is running now. One caller at a time.
    pub(crate) async fn wait(&self) {
        self.is_waiting.store(true, Ordering::SeqCst);
        let old = self.epoch.fetch_add(1, Ordering::SeqCst) % 2;
        loop {
            let ended = self.ended.notified();
            let mut ended = std::pin::pin!(ended);
            ended.as_mut().enable();
            if self.shards.iter().all(|shard| shard.users[old].load(Ordering::SeqCst) == 0) {
                break;
            }
            ended.await;
        }
        self.is_waiting.store(false, Ordering::SeqCst);
    }
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        if self.users.fetch_sub(1, Ordering::SeqCst) == 1 && self.grace.is_waiting.load(Ordering::SeqCst) {
            self.grace.ended.notify_waiters();
        }
    }
}
