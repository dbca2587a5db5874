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

    /// Waits for every operation that is running now. One caller at a time; who gives up leaves to the next one what runs.
    pub(crate) async fn wait(&self) {
        /// Until dropped, also halfway.
        struct Waiting<'a>(&'a AtomicBool);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.store(false, Ordering::SeqCst);
            }
        }
        self.is_waiting.store(true, Ordering::SeqCst);
        let _waiting = Waiting(&self.is_waiting);
        let epoch = self.epoch.load(Ordering::SeqCst);
        // Of the epoch before nobody is left, unless somebody gave up waiting for that.
        self.wait_for(epoch.wrapping_sub(1) % 2).await;
        self.epoch.fetch_add(1, Ordering::SeqCst);
        self.wait_for(epoch % 2).await;
    }

    async fn wait_for(&self, old: usize) {
        loop {
            let ended = self.ended.notified();
            let mut ended = std::pin::pin!(ended);
            ended.as_mut().enable();
            if self.shards.iter().all(|shard| shard.users[old].load(Ordering::SeqCst) == 0) {
                break;
            }
            ended.await;
        }
    }
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        if self.users.fetch_sub(1, Ordering::SeqCst) == 1 && self.grace.is_waiting.load(Ordering::SeqCst) {
            self.grace.ended.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::Grace;

    fn is_pending(future: std::pin::Pin<&mut impl Future>) -> bool {
        future.poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    #[test]
    fn who_waits_after_one_who_gave_up_waits_for_all_that_ran_before() {
        let grace = Grace::default();
        for _ in 0..3 {
            let entered = grace.enter(7);
            {
                let given_up = pin!(grace.wait());
                assert!(is_pending(given_up) && grace.is_waited_for());
            }
            assert!(!grace.is_waited_for(), "nobody waits any more");
            let later = grace.enter(8);
            let mut wait = pin!(grace.wait());
            assert!(is_pending(wait.as_mut()), "one runs that began before");
            drop(entered);
            assert!(is_pending(wait.as_mut()), "another one does");
            let new = grace.enter(9);
            drop(later);
            assert!(!is_pending(wait.as_mut()), "who began since is not waited for");
            drop(new);
        }
    }
}
