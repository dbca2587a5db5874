//! Real `kill -9` of the daemon under load: what was synced is there and right, nothing is read that was not written, the
//! namespace is a prefix of what was done, and the node checks clean.
//!
//! A round: mount, load ([`kind`]: calls of our own, databases, or programs), kill at a moment that the seed chooses, mount
//! again (and at times be killed in the middle of that), judge each thread's outcome against its own record, check the node. The
//! node lives on through all rounds; what a round left is compared once more after the next one's crash.
//!
//! V-1  What an fsync or a `hydrafs sync` covered is there, whole.
//! V-2  Every byte that is read was written there by us: no zeroes, no other file's bytes, no bytes of another time.
//! V-3  If an operation on names is there, all that ended before it began are: in its thread, and in the others.
//! V-4  A file that was renamed over another has all its data.
//! V-5  A kill counts only if there was load: a mount that stands still would survive any.
//!
//! Not here: power loss, which drops what the disk had not synced (`sim` simulates it): the kernel survives the kill of a process.

mod attributes;
mod cargo;
mod client;
mod content;
mod git;
mod kind;
mod load;
mod names;
mod postgres;
mod ranges;
mod rsync;
mod shared;
mod sqlite;
mod streams;
mod trees;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use indicatif::ProgressBar;

pub(crate) use self::kind::Kind;
use self::load::{Load, Round, Tally, Verified};
use self::trees::Hydrafs;
use crate::random::Random;
use crate::text::{count, span};
use crate::tools::{self, Profile};
use crate::tree::{Comparison, compare};
use crate::volume::{self, Volume};
use crate::{interrupt, machine, program::Program};

/// How long a mount may take to answer while its outcome is judged.
const PATIENCE: Duration = Duration::from_secs(180);

/// A load that does nothing for so long stands still: far more than any flush of a full buffer takes.
const STILL: Duration = Duration::from_secs(30);

/// How long all rounds must have run until each load must have done and synced something.
const RUN_MIN: Duration = Duration::from_secs(20);

/// Kill the daemon under load again and again, and check what is left.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// What runs in the mount.
    #[arg(long, value_enum, default_value_t = Kind::Mixed)]
    load: Kind,
    /// Rounds; 0: until told to stop.
    #[arg(long, default_value_t = 50)]
    rounds: u32,
    /// Repeats a run's choices (its timing is the machine's own).
    #[arg(long)]
    seed: Option<u64>,
    /// How hydrafs is compiled.
    #[arg(long, value_enum, default_value_t = Profile::Release)]
    profile: Profile,
}

/// Rounds that were survived.
#[derive(Debug, Default)]
pub(crate) struct Survived {
    pub(crate) rounds: u32,
    done: u64,
    verified: Verified,
    recovery_max: Duration,
}

impl Survived {
    pub(crate) fn words(&self) -> String {
        format!(
            "{} kills survived: {} operations done, {} of them synced and verified, {} present in all, {} MB read and right; longest recovery {}",
            self.rounds,
            count(self.done),
            count(self.verified.synced),
            count(self.verified.present),
            self.verified.bytes / 1_000_000,
            span(self.recovery_max),
        )
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let binary = tools::hydrafs(arguments.profile)?;
    let seed = arguments.seed.unwrap_or_else(Random::fresh_seed);
    println!("kill: load {}, seed {seed}", arguments.load.words());
    let survived = torture(&binary, arguments.load, arguments.rounds, seed)?;
    println!("kill: {}", survived.words());
    Ok(ExitCode::SUCCESS)
}

/// Runs so many rounds, or until told to stop (0).
pub(crate) fn torture(binary: &Path, kind: Kind, rounds: u32, seed: u64) -> Result<Survived> {
    let _claim = tools::claim("kill")?;
    let root = tools::folder("kill")?;
    let mut volume = Volume::fresh(binary, &root)?;
    if kind == Kind::Postgres {
        // Another user runs it, who may not be let into the project's folder.
        volume.mount_short()?;
    }
    let hydrafs = Hydrafs { binary: binary.to_owned(), node: volume.node.clone(), point: volume.point.clone() };
    let mut torture = Torture {
        volume,
        hydrafs,
        kind,
        random: Random::new(seed),
        root: root.clone(),
        settled: None,
        tallies: Vec::new(),
        lived: Duration::ZERO,
        survived: Survived::default(),
    };
    while rounds == 0 || torture.survived.rounds < rounds {
        if rounds == 0 && interrupt::is_asked() {
            break;
        }
        let round = torture.survived.rounds + 1;
        let outcome = torture.round(round);
        if rounds == 0 && interrupt::is_asked() {
            break;
        }
        outcome.with_context(|| {
            format!("round {round} with seed {seed}; the node, its log and the disks are kept in {}", root.display())
        })?;
    }
    if torture.lived >= RUN_MIN {
        load::none_idle(&torture.tallies)?;
    }
    if !interrupt::is_asked() {
        torture.volume.mount()?;
        torture.volume.unmount()?;
        torture.volume.fsck(true).context("after the last round, everything read and checked")?;
    }
    let Torture { volume, survived, .. } = torture;
    drop(volume);
    volume::clear(&root)?;
    Ok(survived)
}

struct Torture {
    volume: Volume,
    hydrafs: Hydrafs,
    kind: Kind,
    random: Random,
    root: PathBuf,
    /// The last round's folder in the mount, and a copy outside of what it must hold.
    settled: Option<(PathBuf, PathBuf)>,
    /// Of each load, in the order of the kind.
    tallies: Vec<Tally>,
    /// Under load, in all rounds.
    lived: Duration,
    survived: Survived,
}

impl Torture {
    fn round(&mut self, number: u32) -> Result<()> {
        interrupt::check()?;
        let settings = self.choose();
        self.volume.mount().context("cannot mount")?;
        let folder = self.volume.point.join(format!("round-{number}"));
        let outside = self.root.join("outside");
        std::fs::create_dir_all(&outside)?;
        let round = Round::new(u64::from(number), folder.clone(), outside, self.random.next());
        let mut loads = kind::all(self.kind, &round, &self.hydrafs)?;
        self.volume.sync().context("cannot sync before the load")?;
        let (least, most) = self.kind.milliseconds();
        let lived = Duration::from_millis(self.random.between(least, most));
        let outdated = self.outdated(number);
        let is_synced = self.random.one_in(2);
        let killed = self.live(&mut loads, &round, lived, is_synced, outdated.as_deref());
        killed?;

        let recovery = self.recover()?;
        let watchdog = self.volume.watchdog(PATIENCE)?;
        let mut verified = Verified::default();
        self.tallies.resize_with(loads.len(), Tally::default);
        for (load, tally) in loads.iter().zip(&mut self.tallies) {
            let what = || format!("{} after {} of load ({settings})", load.name(), span(lived));
            let right = load.verify().with_context(what)?;
            tally.add(load.as_ref(), right);
            verified.add(right);
        }
        load::one_order(&loads).with_context(|| settings.clone())?;
        self.compare_settled()?;
        self.settle(&folder, number)?;
        self.volume.fsck(false)?;
        drop(watchdog);
        self.volume.unmount()?;

        let done: u64 = loads.iter().map(|load| load.done()).sum();
        println!(
            "   round {number}: killed after {}, {} operations, {} synced, {} present, recovered in {} ({settings})",
            span(lived),
            count(done),
            count(verified.synced),
            count(verified.present),
            span(recovery),
        );
        self.lived += lived;
        self.survived.rounds = number;
        self.survived.done += done;
        self.survived.verified.add(verified);
        self.survived.recovery_max = self.survived.recovery_max.max(recovery);
        Ok(())
    }

    /// Settings of a round: crashes shall meet flushes and commits, full buffers, and both transports.
    fn choose(&mut self) -> String {
        let random = &mut self.random;
        let flush = random.between(50, 1500);
        let commit = random.between(100, 4000);
        let memory = if random.one_in(2) { "64 MiB" } else { "auto" };
        let transport = if machine::ring_support().is_ok() && random.one_in(2) { "ring" } else { "device" };
        self.volume.set("durability", "flush_interval", &format!("{flush} ms"));
        self.volume.set("durability", "commit_interval", &format!("{commit} ms"));
        self.volume.set("memory", "budget", memory);
        self.volume.set("mount", "transport", transport);
        format!("flush {flush} ms, commit {commit} ms, memory {memory}, {transport}")
    }

    /// The folder of two rounds ago, which is removed under load.
    fn outdated(&self, number: u32) -> Option<PathBuf> {
        let path = self.volume.point.join(format!("round-{}", number.checked_sub(2)?));
        path.exists().then_some(path)
    }

    /// Lets the load run, and kills the daemon.
    fn live(
        &mut self,
        loads: &mut [Box<dyn Load>],
        round: &Round,
        lived: Duration,
        is_synced: bool,
        outdated: Option<&Path>,
    ) -> Result<()> {
        let (volume, kind) = (&mut self.volume, self.kind);
        let names: Vec<String> = loads.iter().map(|load| load.name().to_owned()).collect();
        std::thread::scope(|scope| -> Result<()> {
            let run = |load: &mut Box<dyn Load>| load.run().map(|words| format!("{}: {words}", load.name()));
            let running: Vec<_> = loads.iter_mut().map(|load| scope.spawn(move || run(load))).collect();
            if let Some(path) = outdated {
                // It ends when the mount dies, if not before; nothing is said about its outcome.
                scope.spawn(move || Program::new("rm").arg("-rf").arg(path).outcome());
            }
            let slept = interrupt::sleep(lived / 2).and_then(|()| {
                let half = round.progress();
                if is_synced {
                    volume.sync().context("cannot sync under load")?;
                    round.all_synced(&half);
                }
                interrupt::sleep(lived / 2)?;
                match kind.must_move_since(lived, half) {
                    Some(then) => {
                        let has_ended = || running.iter().any(|load| load.is_finished());
                        moved(volume, round, &names, &then, has_ended)
                    }
                    None => Ok(()),
                }
            });
            round.killing();
            let killed = volume.kill();
            // A load that failed before the kill is the news, and not that the kill found nobody.
            for load in running {
                if let Some(words) = load.join().expect("it returns what it said") {
                    bail!(words);
                }
            }
            slept.and(killed)
        })?;
        // A program that outlived the mount by a moment may have made folders in its place.
        volume.clear_point()
    }

    /// Mounts again; at times it is killed again in the middle. How long the last recovery took.
    fn recover(&mut self) -> Result<Duration> {
        while self.random.one_in(4) {
            self.volume.mount().context("cannot mount after the kill")?;
            interrupt::sleep(Duration::from_millis(self.random.below(300)))?;
            self.volume.kill()?;
        }
        let started = Instant::now();
        self.volume.mount().context("cannot mount after the kill")?;
        Ok(started.elapsed())
    }

    /// What the round before left is as it was then.
    fn compare_settled(&mut self) -> Result<()> {
        if let Some((folder, copy)) = self.settled.take() {
            let bar = ProgressBar::hidden();
            compare(&copy, &folder, Comparison { attributes: false, ..Comparison::FULL }, &bar)
                .map_err(|error| anyhow!("what the round before left has changed: {error:#}"))?;
            std::fs::remove_dir_all(&copy)?;
        }
        Ok(())
    }

    /// Keeps a copy of a judged round for the next one.
    fn settle(&mut self, folder: &Path, number: u32) -> Result<()> {
        let copy = self.root.join(format!("copy-{number}"));
        Program::new("cp").args(["-a", "--"]).arg(folder).arg(&copy).output()?;
        self.settled = Some((folder.to_owned(), copy));
        Ok(())
    }
}

/// Waits until each load has done something since `then`, or one has ended. Slow is not still: it waits for long.
fn moved(volume: &Volume, round: &Round, names: &[String], then: &[u64], has_ended: impl Fn() -> bool) -> Result<()> {
    let asked = Instant::now();
    while let Some(still) = round.still(&then[..names.len()]) {
        if has_ended() {
            return Ok(());
        }
        if asked.elapsed() > STILL {
            let state = volume.status().map_or_else(|error| format!("unknown: {error:#}"), |status| status.to_string());
            bail!(
                "{} stood still: it did nothing since the load was at {} of its own units, and then not in {} either; the daemon's status: {state}",
                names[still],
                then[still],
                span(STILL)
            );
        }
        interrupt::sleep(Duration::from_millis(20))?;
    }
    Ok(())
}
