//! What a run came to.

use std::fmt;
use std::time::Duration;

/// Numbers of a run that found nothing wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Openings.
    pub lives: u64,
    /// Changes of clients that were acknowledged.
    pub changes: u64,
    /// Reads, listings and other looks that were compared.
    pub looks: u64,
    /// Syncs and commits that succeeded.
    pub syncs: u64,
    /// Snapshots taken.
    pub snapshots: u64,
    /// Passes of reclaim that came to their end.
    pub reclaims: u64,
    /// Packs that reclaim removed.
    pub packs_deleted: u64,
    /// Clean ends.
    pub closes: u64,
    /// Deaths of the process.
    pub crashes: u64,
    /// Power cuts, those during a recovery included.
    pub power_cuts: u64,
    /// Operations that failed because of a fault or a full disk.
    pub refused: u64,
    /// Openings that were refused after damage.
    pub openings_refused: u64,
    /// Operations that all disks were asked for.
    pub disk_operations: u64,
    /// How long all of it took in the simulated world.
    pub simulated: Duration,
    /// Hash of every step of the world: equal for equal seeds.
    pub trace: u64,
}

impl Summary {
    /// Adds the numbers of another run.
    pub fn add(&mut self, other: &Summary) {
        self.lives += other.lives;
        self.changes += other.changes;
        self.looks += other.looks;
        self.syncs += other.syncs;
        self.snapshots += other.snapshots;
        self.reclaims += other.reclaims;
        self.packs_deleted += other.packs_deleted;
        self.closes += other.closes;
        self.crashes += other.crashes;
        self.power_cuts += other.power_cuts;
        self.refused += other.refused;
        self.openings_refused += other.openings_refused;
        self.disk_operations += other.disk_operations;
        self.simulated += other.simulated;
        self.trace ^= other.trace;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} lives ({} closed, {} crashes, {} power cuts), {} changes, {} looks, {} syncs, {} snapshots, {} packs reclaimed in {} passes, {} refused, \
             {} openings refused, {} disk operations, {:.1} simulated hours, trace {:016x}",
            self.lives,
            self.closes,
            self.crashes,
            self.power_cuts,
            self.changes,
            self.looks,
            self.syncs,
            self.snapshots,
            self.packs_deleted,
            self.reclaims,
            self.refused,
            self.openings_refused,
            self.disk_operations,
            self.simulated.as_secs_f64() / 3600.0,
            self.trace
        )
    }
}

/// A promise that was not kept, with what is needed to find out why.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed that shows it.
    pub seed: u64,
    /// The plan that it ran under.
    pub plan: &'static str,
    /// Which opening, from 1.
    pub life: u64,
    /// What was expected and what was found.
    pub what: String,
    /// The last things that happened, oldest first.
    pub history: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {} of plan {} failed in life {}: {}", self.seed, self.plan, self.life, self.what)?;
        writeln!(f, "What happened before:")?;
        for line in &self.history {
            writeln!(f, "  {line}")?;
        }
        write!(f, "Replay: cargo run -p sim -- --plan {} --seed {} --verbose", self.plan, self.seed)
    }
}

impl std::error::Error for Failure {}
