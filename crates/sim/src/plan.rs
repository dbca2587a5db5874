//! Plans: what kind of misfortune a run is about, and the sizes that the seed draws for it.

use std::time::Duration;

use file::{Compression, Erasure, Options, Share, StoreOptions, Weights};
use platform::sim::Faults;

use crate::random::Random;

/// What is wrong with the disks, beyond what every disk may do at a power loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing.
    None,
    /// Reads, writes and syncs fail now and then.
    Errors,
    /// Small disks, and others who take their room.
    Full,
    /// Bits flip, writes are lost or go elsewhere; also at rest.
    Rot,
}

/// A lie that the oracle must find out. For the test of the oracle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Some writes are acknowledged and not done.
    ForgetWrites,
    /// Some fsyncs are acknowledged and not done.
    SkipSyncs,
    /// Some removals are acknowledged and not done.
    ForgetRemovals,
    /// Some units of a batch are written as two.
    TearUnits,
    /// A disk loses writes, and the oracle is told that it is a good one.
    LoseWrites,
    /// The last passes of reclaim are left out.
    KeepDead,
}

/// See the module's head.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is about.
    pub about: &'static str,
    /// What is wrong with the disks.
    pub trouble: Trouble,
    /// Whether lives end with a power cut as well as with the death of the process.
    pub cuts_power: bool,
    /// Whether the wall clock is set.
    pub steps_clock: bool,
    /// Whether a disk is slow.
    pub is_slow: bool,
    /// Whether reclaim runs nearly all the time.
    pub reclaims_often: bool,
    /// Whether flushes go in many small steps.
    pub flushes_in_steps: bool,
    /// Whether files grow large, by many writes in a row that a flush goes on with.
    pub streams: bool,
    /// Disks that are bad at a time, and others have what lies on them: each fails, is gone, or rots.
    pub bad_disks: usize,
    /// Whether a bad disk may also lie, while it works, and rots everywhere, not in its packs alone.
    pub disks_lie: bool,
    /// Whether clients clone directories.
    pub clones: bool,
    /// Whether clients write, copy and remove many files in one go.
    pub batches: bool,
    /// Whether the next batch that is written begins while the one before it waits for the disks.
    pub overlaps_units: bool,
    /// What content is cut into, as fragments of data and of parity, if it is.
    pub fragments: Option<(u8, u8)>,
    /// Whether small files are brought together nearly all the time.
    pub keeps_layout: bool,
    /// Whether disks are drained and take part again, and any one is missing at an opening now and then.
    pub drains: bool,
    /// Whether a node without more disks than it can do without is opened between two lives, the index is lost, and what is bad stays so
    /// for several lives.
    pub absences: bool,
    /// Most operations of a client in one life.
    pub operations: u64,
    /// Most lives.
    pub lives: u64,
    /// Further lives follow until so much simulated time has passed, and everybody pauses for seconds and minutes.
    pub lasts: Duration,
    /// What to lie about.
    pub sabotage: Option<Sabotage>,
}

const BASE: Plan = Plan {
    name: "calm",
    about: "no faults: clean ends and deaths of the process",
    trouble: Trouble::None,
    cuts_power: false,
    steps_clock: false,
    is_slow: false,
    reclaims_often: false,
    flushes_in_steps: false,
    streams: false,
    bad_disks: 0,
    disks_lie: false,
    clones: false,
    batches: false,
    overlaps_units: false,
    fragments: None,
    keeps_layout: false,
    drains: false,
    absences: false,
    operations: 160,
    lives: 3,
    lasts: Duration::ZERO,
    sabotage: None,
};

/// Every plan.
const PLANS: &[Plan] = &[
    BASE,
    Plan { name: "power", about: "the power goes at any operation, also while recovering", cuts_power: true, ..BASE },
    Plan {
        name: "errors",
        about: "reads, writes and syncs fail",
        trouble: Trouble::Errors,
        cuts_power: true,
        operations: 120,
        ..BASE
    },
    Plan {
        name: "full",
        about: "disks fill up, get room again, and the power goes",
        trouble: Trouble::Full,
        cuts_power: true,
        operations: 300,
        ..BASE
    },
    Plan {
        name: "rot",
        about: "bits flip, writes are lost or go elsewhere, at work and at rest",
        trouble: Trouble::Rot,
        lives: 1,
        ..BASE
    },
    Plan {
        name: "clock",
        about: "the wall clock is set forward and back",
        steps_clock: true,
        cuts_power: true,
        ..BASE
    },
    Plan {
        name: "slow",
        about: "a disk that takes very long, and power cuts",
        is_slow: true,
        cuts_power: true,
        ..BASE
    },
    Plan {
        name: "space",
        about: "room is reclaimed all the time, on slow disks, and the power goes",
        is_slow: true,
        reclaims_often: true,
        cuts_power: true,
        ..BASE
    },
    Plan {
        name: "steps",
        about: "data is cut, hashed and written in many small steps, and the power goes",
        flushes_in_steps: true,
        cuts_power: true,
        ..BASE
    },
    Plan {
        name: "copies",
        about: "everything is on two disks; one at a time fails, is gone for a life, or rots at rest, and the power goes",
        bad_disks: 1,
        cuts_power: true,
        lives: 6,
        ..BASE
    },
    Plan {
        name: "clones",
        about: "directories are cloned, room is reclaimed all the time, and the power goes",
        clones: true,
        reclaims_often: true,
        cuts_power: true,
        operations: 240,
        lives: 4,
        ..BASE
    },
    Plan { name: "long", about: "many operations and lives", cuts_power: true, operations: 600, lives: 5, ..BASE },
    Plan {
        name: "fragments",
        about: "as copies, with content in 2+1 fragments on three disks or more",
        bad_disks: 1,
        fragments: Some((2, 1)),
        cuts_power: true,
        lives: 6,
        ..BASE
    },
    Plan {
        name: "batches",
        about: "many files are written, copied and removed in one go, among clones, and the power goes",
        batches: true,
        clones: true,
        reclaims_often: true,
        cuts_power: true,
        operations: 200,
        lives: 4,
        ..BASE
    },
    Plan {
        name: "layout",
        about: "small files are brought together all the time, beside writers and reclaim, and the power goes",
        batches: true,
        reclaims_often: true,
        keeps_layout: true,
        cuts_power: true,
        operations: 240,
        lives: 4,
        ..BASE
    },
    Plan {
        name: "liars",
        about: "content in 4+2 fragments on six disks or more; two at a time fail, lie, are gone or rot, and the power goes",
        bad_disks: 2,
        disks_lie: true,
        fragments: Some((4, 2)),
        cuts_power: true,
        lives: 6,
        ..BASE
    },
    Plan {
        name: "units",
        about: "as batches, and each begins while the one before it waits for the disks",
        batches: true,
        overlaps_units: true,
        reclaims_often: true,
        cuts_power: true,
        operations: 200,
        lives: 4,
        ..BASE
    },
    Plan {
        name: "liar",
        about: "as copies, and the bad disk may also lie, and rots everywhere",
        bad_disks: 1,
        disks_lie: true,
        cuts_power: true,
        lives: 6,
        ..BASE
    },
    Plan {
        name: "drains",
        about: "disks are drained and take part again, the power goes, and a node without one of them is looked at now and then",
        drains: true,
        cuts_power: true,
        lives: 6,
        ..BASE
    },
    Plan {
        name: "streams",
        about: "as steps, on slow disks, and files grow by megabytes that are flushed while they are written",
        is_slow: true,
        flushes_in_steps: true,
        streams: true,
        cuts_power: true,
        operations: 80,
        ..BASE
    },
    Plan {
        name: "absences",
        about: "as fragments, or copies; more disks than one are gone for a look, the index is lost, and what is bad stays so for several lives",
        bad_disks: 1,
        fragments: Some((2, 1)),
        absences: true,
        cuts_power: true,
        lives: 8,
        ..BASE
    },
    Plan {
        name: "hours",
        about: "room is reclaimed beside writers for an hour of simulated time and more, in as many lives as there are crashes and power cuts",
        reclaims_often: true,
        clones: true,
        cuts_power: true,
        lasts: Duration::from_secs(3600),
        ..BASE
    },
];

impl Plan {
    /// All plans.
    #[must_use]
    pub fn all() -> &'static [Plan] {
        PLANS
    }

    /// The plan of this name.
    #[must_use]
    pub fn find(name: &str) -> Option<Plan> {
        PLANS.iter().find(|plan| plan.name == name).copied()
    }

    /// The plan that a seed has where none is named: a quarter of all seeds cut the power, in the others all plans take turns.
    #[must_use]
    pub fn of(seed: u64) -> Plan {
        let count = PLANS.len() as u64;
        let number = if seed.is_multiple_of(4) { 1 } else { (seed - seed / 4) % count };
        PLANS[usize::try_from(number).expect("few plans")]
    }

    /// What content is cut into.
    pub(crate) fn erasure(&self) -> Option<Erasure> {
        self.fragments.and_then(|(data, parity)| Erasure::new(data, parity))
    }

    /// Disks that everything can lie on as it should, all of them good.
    pub(crate) fn disks_min(&self) -> u64 {
        let whole = if self.drains { 3 } else { 1 + self.bad_disks as u64 };
        self.fragments.map_or(whole, |(data, parity)| u64::from(data + parity))
    }

    /// Most milliseconds of a client's pause.
    pub(crate) fn pauses(&self) -> &'static [u64] {
        if self.is_short() { &[1, 30, 400, 2500] } else { &[30, 2500, 20_000, 60_000] }
    }

    /// Most milliseconds until a life ends at some time.
    pub(crate) fn ends(&self) -> &'static [u64] {
        if self.is_short() { &[30, 1000, 20_000] } else { &[20_000, 600_000, 1_800_000] }
    }

    /// Whether operations alone tell how long it goes on, most of them within seconds.
    pub(crate) fn is_short(&self) -> bool {
        self.lasts.is_zero()
    }

    /// Whether a disk may err on its own, so that any operation may fail.
    pub(crate) fn may_err(&self) -> bool {
        matches!(self.trouble, Trouble::Errors | Trouble::Rot)
    }

    /// Whether what a disk took may be gone.
    pub(crate) fn may_lose(&self) -> bool {
        self.trouble == Trouble::Rot
    }

    /// Largest file.
    pub(crate) fn file_bytes_max(&self) -> u64 {
        match self.trouble {
            Trouble::Full => 2 << 20,
            _ if self.streams => 6 << 20,
            _ => 500_000,
        }
    }

    /// Bytes of a disk.
    pub(crate) fn capacity(&self, random: &mut Random) -> u64 {
        match self.trouble {
            Trouble::Full => (36 << 20) + random.below(20 << 20),
            _ => 4 << 30,
        }
    }

    /// Small limits of the layers, so that every path is taken by little work.
    pub(crate) fn options(&self, random: &mut Random) -> Options {
        let mut options = Options {
            dirty_bytes_max: random.pick(&[64 << 10, 256 << 10, 1 << 20, 4 << 20]),
            flush_interval: Duration::from_millis(random.pick(&[20, 300, 5000])),
            stream_bytes: if self.streams { 256 << 10 } else { 8 << 20 },
            group_bytes: if self.flushes_in_steps { 8 << 10 } else { 8 << 20 },
            commit_interval: Duration::from_millis(random.pick(&[50, 1000, 30_000])),
            commit_journal_bytes: random.pick(&[16 << 10, 256 << 10, 64 << 20]),
            unlogged_files_max: 100_000,
            pending_log_bytes: 4 << 20,
            uncommitted_files_max: 100_000,
            inodes_max: random.pick(&[1, 100_000]),
            inline_bytes_max: random.pick(&[0, 4 << 10, 64 << 10]),
            access_times: random.one_in(2),
            read_ahead_bytes_max: 0,
            directory_ahead_bytes_max: 0,
            batch_bytes_max: 8 << 20,
            background_share: Share::DEFAULT,
            scrub_interval: Duration::from_secs(3600),
            layout_interval: Duration::ZERO,
            speed_interval: Duration::ZERO,
            repair_share: Share::DEFAULT,
            gives_up_records: false,
            store: StoreOptions {
                cache_bytes: random.pick(&[0, 64 << 10, 16 << 20]),
                index_cache_bytes: 256 << 10,
                pack_bytes: random.pick(&[0, 0, 4 << 20]),
                copies: 1,
                segment_bytes: random.pick(&[0, 0, 6 << 20]),
                compression: random.pick(&[Compression::Zstd(1), Compression::None]),
                reserve_bytes: random.pick(&[1 << 20, 4 << 20]),
                // Busy most of the time.
                put_bytes_max: if self.flushes_in_steps { 32 << 10 } else { 32 << 20 },
                ..StoreOptions::default()
            },
        };
        if self.streams {
            options.dirty_bytes_max = options.dirty_bytes_max.max(1 << 20) * 2;
        }
        if !self.is_short() {
            // Timers that come round all the time would be most of what happens.
            options.flush_interval = options.flush_interval.max(Duration::from_millis(500));
            options.commit_interval = options.commit_interval.max(Duration::from_millis(1000));
        }
        if self.bad_disks > 0 {
            options.store.copies = 2;
            options.store.goes_without_disks = true;
        }
        if self.drains {
            options.store.copies = random.pick(&[1, 1, 2]);
            options.store.goes_without_disks = true;
        }
        options.store.fragments = self.erasure();
        if self.keeps_layout {
            options.layout_interval = Duration::from_millis(random.pick(&[500, 5000]));
            options.background_share = Share::FULL;
            // Next to nothing lies together.
            options.store.gap_bytes = Some(0);
        }
        // By what was drawn already: the plans of known seeds stay as they are.
        if options.access_times {
            options.read_ahead_bytes_max = 256 << 10;
            options.directory_ahead_bytes_max = 1 << 20;
        }
        if options.store.compression == Compression::None {
            options.store.cache_weights = Weights::EQUAL;
        }
        if options.inodes_max == 1 {
            options.uncommitted_files_max = 8;
            options.unlogged_files_max = 4;
            options.pending_log_bytes = 4 << 10;
            options.store.run_bytes = 0;
            options.store.pack_chunks_max = 20;
        }
        options
    }

    /// What is wrong with a bad disk while it is worked with, where others have the same.
    pub(crate) fn faults_of_bad(&self, random: &mut Random) -> Faults {
        let rates = [0.0, 0.02, 0.5];
        let mut rate = || random.pick(&rates);
        let faults = Faults { read_error: rate(), write_error: rate(), sync_error: rate(), ..Faults::default() };
        if !self.disks_lie || random.one_in(2) {
            return faults;
        }
        let mut rate = || random.pick(&rates);
        Faults {
            flip_read: rate(),
            stale_read: rate(),
            flip_write: rate(),
            lost_write: rate(),
            misdirected_write: rate(),
            ..Faults::default()
        }
    }

    /// What is wrong with one disk while it is worked with.
    pub(crate) fn faults(&self, random: &mut Random) -> Faults {
        let mut faults = Faults::default();
        let mut often = |one_in: u64, scale: f64| if random.one_in(one_in) { scale } else { 0.0 };
        match self.trouble {
            Trouble::Errors => {
                faults.read_error = often(2, 0.03);
                faults.write_error = often(3, 0.01);
                faults.sync_error = often(3, 0.02);
            }
            Trouble::Rot => {
                faults.flip_read = often(2, 0.05);
                faults.stale_read = often(3, 0.03);
                faults.flip_write = often(2, 0.03);
                faults.lost_write = often(3, 0.03);
                faults.misdirected_write = often(3, 0.03);
            }
            Trouble::None | Trouble::Full => {}
        }
        if self.sabotage == Some(Sabotage::LoseWrites) {
            faults.lost_write = 0.05;
        }
        if self.is_slow && random.one_in(2) {
            faults.slowness = random.pick(&[3, 30, 200]);
        }
        faults
    }
}
