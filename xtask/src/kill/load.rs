//! What all loads have in common: they run until the mount dies, know what they did, and can judge what is left.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::random::Random;

/// One thread of load.
pub(super) trait Load: Send {
    fn name(&self) -> &str;
    /// Until the mount dies. What went wrong before that.
    fn run(&mut self) -> Option<String>;
    /// Operations that returned.
    fn done(&self) -> u64;
    /// Judges what is left of it.
    fn verify(&self) -> Result<Verified>;
    /// Which of its operations on names are there, for the order among threads.
    fn cut(&self) -> Result<Option<Cut>> {
        Ok(None)
    }
}

/// Which operations of a thread are there, for the order among threads. Where several prefixes look alike, the kinder one counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) first_lost_ended: Option<Duration>,
    pub(super) last_kept_began: Option<Duration>,
}

/// What was found right.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Verified {
    /// Operations that had to be there.
    pub(super) synced: u64,
    /// Operations that are.
    pub(super) present: u64,
    /// Bytes read and judged.
    pub(super) bytes: u64,
}

impl Verified {
    pub(super) fn add(&mut self, other: Verified) {
        self.synced += other.synced;
        self.present += other.present;
        self.bytes += other.bytes;
    }
}

/// What a load did in all rounds.
#[derive(Debug, Default)]
pub(super) struct Tally {
    name: String,
    done: u64,
    synced: u64,
}

impl Tally {
    pub(super) fn add(&mut self, load: &dyn Load, right: Verified) {
        load.name().clone_into(&mut self.name);
        self.done += load.done();
        self.synced += right.synced;
    }
}

/// V-5 of a run: each load did something, and some of that had to be there.
pub(super) fn none_idle(tallies: &[Tally]) -> Result<()> {
    for Tally { name, done, synced } in tallies {
        if *done == 0 || *synced == 0 {
            bail!("{name} judged nothing: in all rounds it did {done} operations, and {synced} had to be there");
        }
    }
    Ok(())
}

/// A round, as its threads share it.
#[derive(Clone, Debug)]
pub(super) struct Round {
    pub(super) number: u64,
    /// In the mount, the round's own.
    pub(super) folder: PathBuf,
    /// Not in the mount.
    pub(super) outside: PathBuf,
    pub(super) seed: u64,
    started: Instant,
    is_killing: Arc<AtomicBool>,
    /// Of each thread.
    steps: Arc<[Steps; THREADS]>,
}

/// Loads of a round, at most.
pub(super) const THREADS: usize = 11;

/// How far a thread is. Its own units, which only grow: operations, bytes, versions.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// Returned.
    done: AtomicU64,
    /// Covered by a sync of everything.
    all_synced: AtomicU64,
}

impl Round {
    pub(super) fn new(number: u64, folder: PathBuf, outside: PathBuf, seed: u64) -> Round {
        let (started, is_killing, steps) = (Instant::now(), Arc::default(), Arc::default());
        Round { number, folder, outside, seed, started, is_killing, steps }
    }

    /// Where the mount is.
    pub(super) fn point(&self) -> &Path {
        self.folder.parent().expect("a folder in the mount")
    }

    pub(super) fn random(&self, thread: u64) -> Random {
        Random::new(self.seed ^ thread << 48)
    }

    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    pub(super) fn done(&self, thread: u64, count: u64) {
        self.steps[thread as usize].done.store(count, Ordering::SeqCst);
    }

    /// What a sync of everything covered.
    pub(super) fn covered(&self, thread: u64) -> u64 {
        self.steps[thread as usize].all_synced.load(Ordering::SeqCst)
    }

    /// How far all threads are now.
    pub(super) fn progress(&self) -> Vec<u64> {
        self.steps.iter().map(|steps| steps.done.load(Ordering::SeqCst)).collect()
    }

    /// The first thread that has done nothing since `then`.
    pub(super) fn still(&self, then: &[u64]) -> Option<usize> {
        self.progress().iter().zip(then).position(|(now, then)| now <= then)
    }

    /// All that was done then is synced.
    pub(super) fn all_synced(&self, then: &[u64]) {
        for (steps, done) in self.steps.iter().zip(then) {
            steps.all_synced.store(*done, Ordering::SeqCst);
        }
    }

    /// From now on errors are the kill's.
    pub(super) fn killing(&self) {
        self.is_killing.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_killing(&self) -> bool {
        self.is_killing.load(Ordering::SeqCst)
    }

    /// What [`Round::killing`] sets.
    pub(super) fn when_killing(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_killing)
    }

    /// Step after step, until one cannot be done. What went wrong, if the daemon lived.
    pub(super) fn until_killed(&self, mut step: impl FnMut() -> Result<()>) -> Option<String> {
        loop {
            if let Err(error) = step() {
                return self.judge(&error);
            }
        }
    }

    /// An error of a call in the mount: none of the load's if the daemon was about to be killed.
    pub(super) fn judge(&self, error: &impl Display) -> Option<String> {
        (!self.is_killing()).then(|| format!("{error:#}"))
    }
}

/// V-3 among threads: no operation is there that began after one ended that is not.
pub(super) fn one_order(loads: &[Box<dyn Load>]) -> Result<()> {
    let cuts = loads.iter().map(|load| load.cut().map(|cut| cut.map(|cut| (load.name(), cut))));
    let cuts: Vec<(&str, Cut)> = cuts.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
    for (loser, lost) in &cuts {
        for (winner, kept) in &cuts {
            let (Some(ended), Some(began)) = (lost.first_lost_ended, kept.last_kept_began) else { continue };
            if began > ended {
                bail!(
                    "the namespace is no prefix: {winner} has an operation that began at {began:?}, and {loser} lost one that had ended at {ended:?}"
                );
            }
        }
    }
    Ok(())
}
