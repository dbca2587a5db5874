//! The kinds of load: which there are, what each needs, and of what threads it consists.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueEnum;

use super::attributes::Attributes;
use super::cargo::Cargo;
use super::git::Git;
use super::load::{Load, Round, THREADS};
use super::names::Names;
use super::postgres::{self, Postgres};
use super::ranges::Ranges;
use super::rsync::Rsync;
use super::shared::Shared;
use super::sqlite::{Journal, Sqlite};
use super::streams::{Append, Overwrite, Replace};
use super::trees::{Hydrafs, Trees};
use crate::tools;

/// Threads of operations on names.
const NAMES_THREADS: u64 = THREADS as u64 - 8;

/// Bytes of an extended attribute's value, at most: with all of them a file has many times what fits beside an inode.
const XATTR_BYTES_MAX: u64 = 6000;

/// What runs in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Names, appends, overwrites, replacements, ranges, attributes, whole trees, SQLite, and a file with several writers, all at once.
    Mixed,
    /// One file with four writers, some of them past the page cache, some with each write synced.
    Shared,
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
    pub(crate) const TURNS: [Kind; 14] = [
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
        Kind::Mixed,
        Kind::Shared,
    ];

    /// How many milliseconds a round of it runs: long enough for its programs to get going, and no longer.
    pub(super) fn milliseconds(self) -> (u64, u64) {
        match self {
            Kind::Mixed => (200, 4000),
            Kind::Shared => (200, 3000),
            Kind::Cargo => (200, 2500),
            _ => (100, 1200),
        }
    }

    /// Since when each load must have done something when a round has lived so long; `half`: how far they were at half time. Programs
    /// may take longer than a round for one step.
    pub(super) fn must_move_since(self, lived: Duration, half: Vec<u64>) -> Option<Vec<u64>> {
        match (self, lived.as_secs()) {
            (Kind::Mixed | Kind::Shared, 2..) => Some(half),
            (Kind::Mixed | Kind::Shared, 1) => Some(vec![0; half.len()]),
            _ => None,
        }
    }

    /// The program that is needed for it and not here.
    pub(crate) fn lacks(self) -> Option<&'static str> {
        let needed = match self {
            Kind::Mixed | Kind::SqliteWal | Kind::SqliteRollback => "sqlite3",
            Kind::Shared => return None,
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

/// All loads of a round, each with its folder made.
pub(super) fn all(kind: Kind, round: &Round, hydrafs: &Hydrafs) -> Result<Vec<Box<dyn Load>>> {
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
            loads.push(Box::new(Ranges::new(round, NAMES_THREADS + 3)?));
            loads.push(Box::new(Attributes::new(round, NAMES_THREADS + 4, XATTR_BYTES_MAX)?));
            loads.push(Box::new(Trees::new(round, NAMES_THREADS + 5, Box::new(hydrafs.clone()))?));
            loads.push(Box::new(Sqlite::new(round, NAMES_THREADS + 6, Journal::Wal)?));
            loads.push(Box::new(Shared::new(round, NAMES_THREADS + 7)?));
        }
        Kind::Shared => loads.push(Box::new(Shared::new(round, 0)?)),
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

#[cfg(test)]
mod tests;
