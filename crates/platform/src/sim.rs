//! The simulated platform: one machine with its disks, its clock and its tasks, all of it a function of one seed.
//!
//! A [`World`] runs futures in one thread on virtual time. Which ready task runs next is drawn from the seed, so another seed
//! is another interleaving; time moves only when nothing is ready. The same program with the same seed makes
//! the same steps: [`World::trace`] is a hash of all of them, and two runs that differ have found a hidden input.
//!
//! The machine can die in two ways. [`World::crash`] is the death of the process: its tasks, locks and open files are gone,
//! and what it wrote is still there. [`World::restart`] is a power cycle: what was not synced is at the mercy of
//! the seed. [`World::cut_power_at`] takes the power away at a numbered operation, whichever code does it; a test runs once
//! unharmed, asks [`World::operations`] for the count, and then dies at each of them in turn.
//!
//! The fault model of a disk, which is what a correct store must survive:
//!
//! M-1  What was written is read back at once, synced or not.
//! M-2  A file's sync makes its bytes and length durable, and not its name. A directory's sync makes the names in it durable, and
//!      not the directory's own name in its parent.
//! M-3  At a power loss each write since the last sync is kept, dropped, or torn, independently of the others: a later one may
//!      survive an earlier one. A change of length likewise. A file may have grown without its data: zeroes.
//! M-4  A sector of 512 bytes is never torn. It holds what it held after one of the writes to it.
//! M-5  Names that were not synced survive as a prefix, in order of time, as on a journaling file system; a rename is one change.
//! M-6  The operation in flight when the power goes fails, and may have happened. After it nothing changes.
//! M-7  After a failed write any part of it may be there. After a failed sync the data may still be waiting, be gone, or be visible
//!      and never become durable although the next sync succeeds ("fsyncgate", Rebello et al., ATC 2020).
//! M-8  A bit that flips on its way into memory stays there, as in a page cache: whoever reads it sees it, until it is overwritten or
//!      forgotten ([`File::forget`](crate::disk::File::forget)), or the power goes.
//! M-9  [`World::fail_at`] has the operation with a number fail, whichever it is, with an error that such an operation may meet: what changes nothing
//!      fails, or gives no answer; what changes something may also find no room, or a file system that has become read-only, and was done
//!      in part as after any failed write (M-7). Where a change gives no answer the disk refuses what comes next, for a while: the change
//!      has happened, or not, before the next one that is done (B-2 of `real`).
//!
//! Time is drawn from the seed, or, with a [`Platter`], that of a disk that turns.
//!
//! [`Faults`] adds what a broken disk does beyond that: errors, flipped bits, writes that are lost or go elsewhere.
//!
//! Not here: the network and several nodes (crate `sim`, with the cluster); oracles.

mod random;

mod power;
mod timeline;

mod schedule;

mod blocks;
mod content;
mod names;
mod platter;

mod elevator;

mod disk;
mod faults;
mod files;

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use base::time::Timestamp;
use parking_lot::Mutex;

use crate::disk::DiskErrorKind;
use crate::{Clock, Platform};

pub use disk::SimDisk;
pub use faults::Faults;
pub use platter::{Placed, Platter, Spindle};
pub use schedule::{Halt, Outcome};

use random::Random;
use schedule::Machine;

/// A simulated machine. Dropping it drops its tasks.
pub struct World {
    machine: Arc<Machine>,
    disks: Mutex<Vec<SimDisk>>,
    /// For the test's own decisions, apart from the streams that the machine draws from.
    random: Mutex<Random>,
}

impl World {
    /// A machine without disks, switched on.
    #[must_use]
    pub fn new(seed: u64) -> World {
        World {
            machine: Machine::new(seed),
            disks: Mutex::new(Vec::new()),
            random: Mutex::new(Random::stream(seed, "test")),
        }
    }

    /// Clock, randomness and tasks of this machine.
    #[must_use]
    pub fn platform(&self) -> Platform {
        Platform { clock: self.machine.timeline.clone(), chance: self.machine.clone(), tasks: self.machine.clone() }
    }

    /// Adds an empty disk without faults. `name` is its path in messages, `capacity` its size in bytes, counted in
    /// blocks of 4 KiB.
    #[must_use]
    pub fn disk(&self, name: &str, capacity: u64) -> SimDisk {
        let disk = SimDisk::new(&self.machine, name, capacity);
        self.disks.lock().push(disk.clone());
        disk
    }

    /// Runs this future and the spawned tasks until this future is complete. Tasks that remain go on in the next call.
    pub fn run_until<T>(&self, future: impl Future<Output = T>) -> Outcome<T> {
        self.machine.run(future)
    }

    /// Lets the spawned tasks run for this much virtual time.
    pub fn run_for(&self, duration: Duration) -> Outcome<()> {
        let sleep = self.platform().tasks.sleep(duration);
        self.run_until(sleep)
    }

    /// Polls of one [`World::run_until`] before it gives up. 20 million if not set: about ten seconds.
    pub fn set_step_limit(&self, steps: u64) {
        self.machine.set_step_limit(steps);
    }

    /// Virtual time since the world began.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.machine.timeline.elapsed()
    }

    /// The wall clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.machine.timeline.now()
    }

    /// Sets the wall clock forward, or back, as an operator or a time server does. `elapsed` does not notice.
    pub fn step_clock(&self, nanos: i64) {
        self.machine.timeline.step_clock(nanos);
    }

    /// A number below `bound` for a decision of the test. The machine's own choices do not depend on how often this is asked.
    #[must_use]
    pub fn below(&self, bound: u64) -> u64 {
        self.random.lock().below(bound)
    }

    /// Operations that all disks were asked for so far, whether they succeeded or not. `space` and `length` are not counted:
    /// they touch no medium.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.machine.power.operations()
    }

    /// The power goes during operation number `operation` (the next one, if that is past), counted as in [`World::operations`] from 1. From then on every operation on
    /// every disk fails, until [`World::restart`].
    pub fn cut_power_at(&self, operation: u64) {
        self.machine.power.cut_at(operation);
    }

    /// Operation number `operation` (the next one, if that is past), counted as in [`World::operations`] from 1, fails with an error of this kind,
    /// whichever it is, and whatever [`Faults`] say: M-9. Those after it work again. Forgotten by [`World::restart`].
    pub fn fail_at(&self, operation: u64, kind: DiskErrorKind) {
        self.machine.power.fail_at(operation, kind);
    }

    /// The power goes now, between two operations.
    pub fn cut_power(&self) {
        self.machine.power.switch(false);
    }

    /// Whether the disks work.
    #[must_use]
    pub fn is_powered(&self) -> bool {
        self.machine.power.is_on()
    }

    /// The process dies: its tasks are dropped, its open files fail from now on, its locks are free. All that was written stays,
    /// synced or not, and destructors of the dead reach no disk, however late they run.
    pub fn crash(&self) {
        let was_on = self.machine.power.switch(false);
        self.machine.drop_tasks();
        self.disks.lock().iter().for_each(SimDisk::close_all);
        self.machine.power.switch(was_on);
    }

    /// A power cycle: the power goes if it has not, tasks are dropped, each disk loses what the seed takes ([`SimDisk::power_loss`]), and
    /// the power is back; a cut that was ordered and has not come is forgotten. Faults, capacities and the count of operations stay.
    pub fn restart(&self) {
        self.machine.power.switch(false);
        self.machine.drop_tasks();
        self.disks.lock().iter().for_each(SimDisk::power_loss);
        self.machine.power.restore();
    }

    /// A hash of every step of every task and every operation of every disk so far.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.machine.trace()
    }
}

impl Drop for World {
    /// Tasks hold the platform, which holds the tasks: without this a world would never be freed.
    fn drop(&mut self) {
        self.machine.power.switch(false);
        self.machine.drop_tasks();
    }
}

/// Runs a test once per seed and says which seed it was when one panics.
pub fn each_seed(seeds: Range<u64>, mut test: impl FnMut(u64)) {
    struct Blame(u64);
    impl Drop for Blame {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("failed with seed {}", self.0);
            }
        }
    }
    for seed in seeds {
        let _blame = Blame(seed);
        test(seed);
    }
}

/// The seeds that somebody wants to have tried besides those of a test: `SEED=7` in the environment asks for one, `SEED=1000..2000` for many.
#[must_use]
pub fn seeds_asked_for() -> Range<u64> {
    let asked = std::env::var("SEED").unwrap_or_default();
    let (first, end) = asked.split_once("..").unwrap_or((&asked, ""));
    let Ok(first) = first.parse() else { return 0..0 };
    first..end.parse().unwrap_or(first + 1)
}
