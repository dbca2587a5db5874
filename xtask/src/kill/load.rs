//! What all loads have in common: they run until the mount dies, know what they did, and can judge what is left.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::ValueEnum;

use super::cargo::Cargo;
use super::git::Git;
use super::names::{self, Names};
use super::postgres::{self, Postgres};
use super::rsync::Rsync;
use super::sqlite::{Journal, Sqlite};
use super::streams::{Append, Overwrite, Replace};
use crate::random::Random;
use crate::tools;

/// Threads of operations on names.
const NAMES_THREADS: u64 = 3;

/// What runs in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Names, appends, overwrites, replacements and SQLite, all at once.
    Mixed,
    /// Two databases with a write-ahead log.
    SqliteWal,
    /// Three databases with rollback journals: DELETE, TRUNCATE, PERSIST.
    SqliteRollback,
    /// pgbench and two clients that count.
    Postgres,
    /// Commits and repacks.
    Git,
    /// rsync --fsync of files that change.
    Rsync,
    /// Edits and builds.
    Cargo,
}

impl Kind {
    /// By turns, half of them the mixed one.
    pub(crate) const TURNS: [Kind; 12] = [
        Kind::Mixed,
        Kind::SqliteWal,
        Kind::Mixed,
        Kind::Postgres,
        Kind::Mixed,
        Kind::SqliteRollback,
        Kind::Mixed,
        Kind::Git,
        Kind::Mixed,
        Kind::Rsync,
        Kind::Mixed,
        Kind::Cargo,
    ];

    /// How many milliseconds a round of it runs: long enough for its programs to get going, and no longer.
    pub(super) fn milliseconds(self) -> (u64, u64) {
        match self {
            Kind::Mixed => (200, 4000),
            Kind::Cargo => (200, 2500),
            _ => (100, 1200),
        }
    }

    /// The program that is needed for it and not here.
    pub(crate) fn lacks(self) -> Option<&'static str> {
        let needed = match self {
            Kind::Mixed | Kind::SqliteWal | Kind::SqliteRollback => "sqlite3",
            Kind::Postgres => return postgres::programs().is_none().then_some("initdb"),
            Kind::Git => "git",
            Kind::Rsync => "rsync",
            Kind::Cargo => "cc",
        };
        (!tools::has(needed)).then_some(needed)
    }

    pub(crate) fn words(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

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
    fn cut(&self) -> Result<Option<names::Cut>> {
        Ok(None)
    }
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

/// Loads of a round.
const THREADS: usize = NAMES_THREADS as usize + 4;

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
        (!self.is_killing.load(Ordering::SeqCst)).then(|| format!("{error:#}"))
    }
}

/// All loads of a round, each with its folder made.
pub(super) fn all(kind: Kind, round: &Round) -> Result<Vec<Box<dyn Load>>> {
    if let Some(program) = kind.lacks() {
        bail!("the program {program} is not here; `scripts/setup soak` installs it");
    }
    std::fs::create_dir(&round.folder)?;
    let mut loads: Vec<Box<dyn Load>> = Vec::new();
    match kind {
        Kind::Mixed => {
            for thread in 0..NAMES_THREADS {
                loads.push(Box::new(Names::new(round, thread)?));
            }
            loads.push(Box::new(Append::new(round, NAMES_THREADS)?));
            loads.push(Box::new(Overwrite::new(round, NAMES_THREADS + 1)?));
            loads.push(Box::new(Replace::new(round, NAMES_THREADS + 2)?));
            loads.push(Box::new(Sqlite::new(round, NAMES_THREADS + 3, Journal::Wal)?));
        }
        Kind::SqliteWal => {
            for thread in 0..2 {
                loads.push(Box::new(Sqlite::new(round, thread, Journal::Wal)?));
            }
        }
        Kind::SqliteRollback => {
            for (thread, journal) in (0..).zip(Journal::ROLLBACK) {
                loads.push(Box::new(Sqlite::new(round, thread, journal)?));
            }
        }
        Kind::Postgres => loads.push(Box::new(Postgres::new(round)?)),
        Kind::Git => {
            for thread in 0..2 {
                loads.push(Box::new(Git::new(round, thread)?));
            }
        }
        Kind::Rsync => loads.push(Box::new(Rsync::new(round, 0)?)),
        Kind::Cargo => loads.push(Box::new(Cargo::new(round, 0)?)),
    }
    Ok(loads)
}

/// V-3 among threads: no operation is there that began after one ended that is not.
pub(super) fn one_order(loads: &[Box<dyn Load>]) -> Result<()> {
    let cuts = loads.iter().map(|load| load.cut().map(|cut| cut.map(|cut| (load.name(), cut))));
    let cuts: Vec<(&str, names::Cut)> = cuts.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
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

#[cfg(test)]
mod tests;
