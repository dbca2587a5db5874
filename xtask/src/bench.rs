//! How fast and how small, beside others on the same disk in the same run: `make bench`.
//!
//! The other is ext4; for names and streams also libfuse's example of a pass-through over it, which is what FUSE itself costs; for
//! what is stored, restic and borg on the same inputs ([`dedup`]). Recovery and memory stand for themselves ([`node`], [`suffix`]).
//!
//! All sides stand on the same ground: HydraFS's disk is a directory of the very ext4 that the other side is a directory of.
//! Where the project's disk is no ext4, a loop device on it is, for both ([`ground`]). Each line does the same work on both sides and
//! ends with the same promise: what is written is on the disk (syncfs there, `hydrafs sync` here), or as durable as the line says.
//! Sides alternate (A B, B A, ...), each begins with nothing left to be written, and the figure is the median, with the least and
//! the most beside it: one run on a machine with neighbours says little.
//!
//! Not here: goals. This only measures.

mod batches;
mod changed;
mod clones;
mod courtesy;
mod dedup;
mod device;
mod direct;
mod document;
mod ground;
mod inputs;
mod io;
mod loops;
mod many;
mod node;
mod plot;
mod programs;
mod report;
mod store;
mod suffix;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use self::device::Limit;
use self::ground::Sides;
use self::inputs::Inputs;
use self::report::Report;
use crate::tools::{self, Profile};
use crate::{interrupt, text, tree, volume};

/// Measure HydraFS beside ext4, a pass-through, restic and borg on the same disk; recovery and memory.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// Runs of each workload on each side.
    #[arg(long, default_value_t = 5)]
    runs: u32,
    /// Only workloads whose name contains this; may be given several times.
    #[arg(long)]
    only: Vec<String>,
    /// A tenth of the work: to try it, not to quote it.
    #[arg(long)]
    quick: bool,
    /// Measure nothing: write docs/bench.md and its plots from the JSON of these runs, of each workload what the newest run has.
    #[arg(long, value_name = "JSON", num_args = 1.., conflicts_with_all = ["runs", "only", "quick"])]
    document: Vec<PathBuf>,
}

/// What a figure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Seconds,
    MegabytesPerSecond,
    PerSecond,
    Microseconds,
    Milliseconds,
    Megabytes,
    Kilobytes,
    Count,
}

impl Unit {
    const ALL: [Unit; 8] = [
        Unit::Seconds,
        Unit::MegabytesPerSecond,
        Unit::PerSecond,
        Unit::Microseconds,
        Unit::Milliseconds,
        Unit::Megabytes,
        Unit::Kilobytes,
        Unit::Count,
    ];

    fn of_words(words: &str) -> Option<Unit> {
        Unit::ALL.into_iter().find(|unit| unit.words() == words)
    }

    fn words(self) -> &'static str {
        match self {
            Unit::Seconds => "s",
            Unit::MegabytesPerSecond => "MB/s",
            Unit::PerSecond => "op/s",
            Unit::Microseconds => "us",
            Unit::Milliseconds => "ms",
            Unit::Megabytes => "MB",
            Unit::Kilobytes => "kB",
            Unit::Count => "count",
        }
    }

    /// What is said of the better side.
    fn praise(self) -> &'static str {
        match self {
            Unit::Megabytes | Unit::Kilobytes => "small",
            Unit::Count => "few",
            _ => "fast",
        }
    }

    fn is_more_better(self) -> bool {
        matches!(self, Unit::MegabytesPerSecond | Unit::PerSecond)
    }
}

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    name: &'static str,
    unit: Unit,
    /// What was promised at the end of the measured time, or how the caches were.
    terms: &'static str,
}

/// Ends with everything on the disk.
const SYNCED: &str = "synced at the end";
const COLD: &str = "cold: fresh mount, caches dropped";
const WARM: &str = "warm";

/// One workload, one side, one run.
struct Run<'a> {
    sides: &'a mut Sides,
    side: Side,
    /// The run's own.
    dir: PathBuf,
    inputs: &'a Inputs,
    number: u32,
    /// How often what is measured is repeated.
    runs: u32,
    is_quick: bool,
    report: &'a mut Report,
}

/// Ours is measured against the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Hydrafs,
    /// By `hydrafs tar`.
    HydrafsTar,
    /// Ours through the mount, file by file.
    HydrafsOneByOne,
    Ext4,
    /// On ext4.
    Copy,
    Tar,
    Rsync,
    /// What a disk takes for files as ext4 lays them out.
    Layout,
    /// What others measured, elsewhere.
    Published,
    PassThrough,
    /// What any store of this kind must do with a stream, without a file system.
    Cutting,
    Restic,
    Borg,
    /// Blocks of one size, each stored once.
    FixedBlocks,
    /// What memory was promised.
    Budget,
    /// The store alone, without files.
    Store,
    /// As before, and the stream is cut in the same time.
    StoreCutting,
    /// What was not there before.
    NewContent,
    /// The same with a hundredth of it.
    Hundredth,
    /// Ours, with nothing beside it.
    Alone,
    /// Ours with parts of the read path switched off.
    WithoutWeights,
    WithoutPrefetch,
    WithoutBoth,
}

impl Side {
    const ALL: [Side; 23] = [
        Side::Hydrafs,
        Side::HydrafsTar,
        Side::HydrafsOneByOne,
        Side::Ext4,
        Side::Copy,
        Side::Tar,
        Side::Rsync,
        Side::Layout,
        Side::Published,
        Side::PassThrough,
        Side::Cutting,
        Side::Restic,
        Side::Borg,
        Side::FixedBlocks,
        Side::Budget,
        Side::Store,
        Side::StoreCutting,
        Side::NewContent,
        Side::Hundredth,
        Side::Alone,
        Side::WithoutWeights,
        Side::WithoutPrefetch,
        Side::WithoutBoth,
    ];

    fn of_words(words: &str) -> Option<Side> {
        Side::ALL.into_iter().find(|side| side.words() == words)
    }

    fn words(self) -> &'static str {
        match self {
            Side::Hydrafs => "HydraFS",
            Side::HydrafsTar => "hydrafs tar",
            Side::HydrafsOneByOne => "HydraFS one by one",
            Side::Copy => "cp -r on ext4",
            Side::Tar => "tar on ext4",
            Side::Rsync => "rsync on ext4",
            Side::Layout => "ext4's layout",
            Side::Published => "published, of ext4",
            Side::Ext4 => "ext4",
            Side::PassThrough => "pass-through",
            Side::Cutting => "cutting and hashing alone",
            Side::Restic => "restic",
            Side::Borg => "borg",
            Side::FixedBlocks => "blocks of 64 KiB",
            Side::Budget => "the budget",
            Side::Store => "the raw store",
            Side::StoreCutting => "the raw store and cutting",
            Side::NewContent => "new content",
            Side::Hundredth => "a hundredth of it",
            Side::Alone => "alone",
            Side::WithoutWeights => "plain LRU",
            Side::WithoutPrefetch => "no prefetch",
            Side::WithoutBoth => "neither",
        }
    }

    /// Whether it works on our mount.
    fn is_ours(self) -> bool {
        matches!(self, Side::Hydrafs | Side::HydrafsTar | Side::HydrafsOneByOne)
    }

    /// The program that is needed for it.
    fn program(self) -> Option<&'static str> {
        match self {
            Side::Restic => Some("restic"),
            Side::Borg => Some("borg"),
            Side::Rsync => Some("rsync"),
            _ => None,
        }
    }
}

impl Run<'_> {
    /// A number of operations, a tenth of it if quick.
    fn scaled(&self, count: u64) -> u64 {
        if self.is_quick { count / 10 } else { count }
    }

    fn record(&mut self, line: &Line, value: f64) {
        self.report.record(line, self.side, value);
    }

    /// Times some work and the sync after it.
    fn timed(&mut self, line: &Line, work: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let started = Instant::now();
        work(&self.dir)?;
        self.sync()?;
        self.record(line, started.elapsed().as_secs_f64());
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.sides.sync(self.side)
    }

    /// Forgets all that is cached of this side.
    fn cool(&mut self) -> Result<()> {
        self.sides.cool(self.side)
    }
}

/// What is measured, and whose.
struct Workload {
    name: &'static str,
    sides: &'static [Side],
    /// The device it is done on, if not on the project's disk.
    limit: Option<Limit>,
    /// It repeats by itself what is to be repeated.
    is_once: bool,
    work: fn(&mut Run<'_>) -> Result<()>,
}

const fn beside_ext4(name: &'static str, work: fn(&mut Run<'_>) -> Result<()>) -> Workload {
    Workload { name, sides: &[Side::Hydrafs, Side::Ext4], limit: None, is_once: false, work }
}

const fn beside_backups(name: &'static str, work: fn(&mut Run<'_>) -> Result<()>) -> Workload {
    let sides = &[Side::Hydrafs, Side::HydrafsOneByOne, Side::Restic, Side::Borg];
    Workload { name, sides, limit: None, is_once: false, work }
}

const fn alone(name: &'static str, work: fn(&mut Run<'_>) -> Result<()>) -> Workload {
    Workload { name, sides: &[Side::Hydrafs], limit: None, is_once: true, work }
}

/// File by file, by the usual tools, and as batches.
const MASS: [Side; 7] =
    [Side::Hydrafs, Side::HydrafsTar, Side::HydrafsOneByOne, Side::Ext4, Side::Copy, Side::Tar, Side::Rsync];

const fn masses(name: &'static str, limit: Option<Limit>, work: fn(&mut Run<'_>) -> Result<()>) -> Workload {
    // A limit leaves little to chance, and takes its time.
    Workload { name, sides: &MASS, limit, is_once: limit.is_some(), work }
}

const fn limited(name: &'static str, limit: Limit, work: fn(&mut Run<'_>) -> Result<()>) -> Workload {
    Workload { name, sides: &[Side::Hydrafs, Side::Ext4], limit: Some(limit), is_once: false, work }
}

const fn copies(name: &'static str, limit: Limit, work: fn(&mut Run<'_>) -> Result<()>) -> Workload {
    Workload { name, sides: &[Side::Hydrafs, Side::Ext4], limit: Some(limit), is_once: true, work }
}

const WORKLOADS: [Workload; 38] = [
    beside_ext4("untar", programs::untar),
    beside_ext4("git clone", programs::git_clone),
    beside_ext4("cargo build", programs::cargo_build),
    beside_ext4("many files", programs::many_files),
    beside_ext4("copy twice", programs::copy_twice),
    Workload {
        name: "sequential",
        sides: &[Side::Hydrafs, Side::Ext4, Side::PassThrough, Side::Cutting],
        limit: None,
        is_once: false,
        work: io::sequential,
    },
    beside_ext4("random read", io::random_read),
    beside_ext4("random write", io::random_write),
    beside_ext4("small files", io::small_files),
    beside_ext4("fsync latency", io::fsync_latency),
    limited("syncs, seek-limited", device::SEEK, io::syncs_on_seeks),
    limited("syncs, SSD-limited", device::SSD, io::syncs_on_ssd),
    Workload {
        name: "pass-through",
        sides: &[Side::Hydrafs, Side::Ext4, Side::PassThrough],
        limit: None,
        is_once: false,
        work: programs::names,
    },
    beside_backups("dedup sources", dedup::sources),
    beside_backups("dedup toolchains", dedup::toolchains),
    beside_backups("dedup image", dedup::image),
    Workload {
        name: "changed file",
        sides: &[Side::Hydrafs, Side::Restic, Side::Borg, Side::FixedBlocks],
        limit: None,
        is_once: false,
        work: changed::changes,
    },
    Workload { name: "raw store", sides: &[Side::Store], limit: None, is_once: false, work: store::streams },
    Workload { name: "far disk", sides: &[Side::Store], limit: None, is_once: true, work: store::far },
    Workload { name: "clones", sides: &[Side::Hydrafs, Side::Ext4], limit: None, is_once: true, work: clones::clones },
    masses("batches, here", None, batches::here),
    masses("batches, seek-limited", Some(device::SEEK), batches::on_seeks),
    masses("batches, large files, seek-limited", Some(device::SEEK), batches::large_on_seeks),
    masses("batches, SSD-limited", Some(device::SSD), batches::on_ssd),
    masses("batches, large files, SSD-limited", Some(device::SSD), batches::large_on_ssd),
    beside_ext4("batches, names", batches::names),
    beside_ext4("batches, copies here", batches::copies_here),
    copies("batches, copies, seek-limited", device::SEEK, batches::copies_on_seeks),
    copies("batches, copies, SSD-limited", device::SSD, batches::copies_on_ssd),
    alone("batches, reader beside", batches::beside),
    Workload {
        name: "batches, reader beside, seek-limited",
        sides: &[Side::Hydrafs],
        limit: Some(device::SEEK),
        is_once: true,
        work: batches::beside_on_seeks,
    },
    Workload {
        name: "batches, simulated disk",
        sides: &[Side::Hydrafs],
        limit: None,
        is_once: true,
        work: batches::turning,
    },
    alone("recovery", node::recovery),
    alone("journal suffix", suffix::recovery),
    alone("beside gc and scrub", courtesy::courtesy),
    alone("memory", node::memory),
    alone("a hundred times the files", many::files),
    alone("a hundred times the chunks", many::chunks),
];

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    if !arguments.document.is_empty() {
        let reports = arguments.document.iter().map(|file| Report::load(file)).collect::<Result<_>>()?;
        document::write(&Report::together(reports)?, &tools::project())?;
        return Ok(ExitCode::SUCCESS);
    }
    let _claim = tools::claim("bench")?;
    volume::can_mount()?;
    let is_wanted =
        |name: &str| arguments.only.is_empty() || arguments.only.iter().any(|part| name.contains(part.as_str()));
    let workloads: Vec<&Workload> = WORKLOADS.iter().filter(|workload| is_wanted(workload.name)).collect();
    if workloads.is_empty() {
        let names: Vec<&str> = WORKLOADS.iter().map(|workload| workload.name).collect();
        bail!("no workload is called like that; there are: {}", names.join(", "));
    }
    let sides_wanted: Vec<Side> = workloads.iter().flat_map(|workload| workload.sides.iter().copied()).collect();
    for program in sides_wanted.iter().filter_map(|side| side.program()) {
        if !tools::has(program) {
            bail!("the program {program} is not here; `scripts/setup bench` installs it");
        }
    }
    let binary = tools::hydrafs(Profile::Release)?;
    let root = tools::folder("bench")?;
    volume::take_away_below(&root)?;
    let inputs = Inputs::prepare(&root.join("inputs"), arguments.quick)?;
    let mut sides = Sides::make(&binary, &root)?;
    if sides_wanted.contains(&Side::PassThrough) {
        sides.pass_through(&tools::pass_through()?)?;
    }
    let mut report = Report::new(arguments.runs, arguments.quick, &root, sides.words(), &inputs)?;
    if sides_wanted.contains(&Side::Restic) {
        report.describe("compared with", dedup::versions()?);
    }
    for workload in WORKLOADS.iter().filter(|workload| !is_wanted(workload.name)) {
        report.did_not_run(workload.name, "left out of this run".to_owned());
    }
    println!("{}", report.heading());
    let mut left = workloads.into_iter();
    let mut name = "";
    let measured = left.try_for_each(|workload| {
        name = workload.name;
        report.begin(name);
        let Some(limit) = workload.limit else {
            return all_sides(workload, &mut sides, &inputs, arguments, &mut report);
        };
        if let Some(why) = device::why_not()? {
            report.did_not_run(workload.name, why);
            return Ok(());
        }
        let place = root.join("limited");
        let mut limited = Sides::limited(&binary, &place, limit)?;
        all_sides(workload, &mut limited, &inputs, arguments, &mut report)?;
        drop(limited);
        ground::take_away(&place)
    });
    // What was measured until then took its time: it is kept.
    if let Err(error) = &measured {
        report.did_not_run(name, format!("all of it: {error:#}"));
        left.for_each(|workload| report.did_not_run(workload.name, "the run ended before".to_owned()));
    }
    drop(sides);
    let taken_away = ground::take_away(&root.join("sides"));
    println!("\n{}", document::text(&report));
    let file = report.save(&tools::project().join("bench/results"))?;
    document::save_plots(&report, &file)?;
    println!("wrote {}, and plots beside it", file.display());
    measured.and(taken_away)?;
    Ok(ExitCode::SUCCESS)
}

/// All runs of a workload, by turns.
fn all_sides(
    workload: &Workload,
    sides: &mut Sides,
    inputs: &Inputs,
    arguments: &Arguments,
    report: &mut Report,
) -> Result<()> {
    print!("── {}:", workload.name);
    let started = Instant::now();
    let mut order = workload.sides.to_vec();
    order.retain(|side| *side != Side::HydrafsTar || batches::has_verb(sides.binary(), "tar"));
    for number in 0..if workload.is_once { 1 } else { arguments.runs } {
        for side in &order {
            interrupt::check()?;
            once(workload, *side, number, sides, inputs, arguments, report)
                .with_context(|| format!("{} on {}", workload.name, side.words()))?;
        }
        // A B, B A: a disk that gets slower with time is no side's.
        order.reverse();
        print!(" {}", number + 1);
        std::io::Write::flush(&mut std::io::stdout())?;
    }
    println!(" ({})", text::span(started.elapsed()));
    Ok(())
}

fn once(
    workload: &Workload,
    side: Side,
    number: u32,
    sides: &mut Sides,
    inputs: &Inputs,
    arguments: &Arguments,
    report: &mut Report,
) -> Result<()> {
    if side.is_ours() {
        sides.renew()?;
    }
    let dir = sides.dir(side).join(format!("{}-{number}", workload.name.replace(' ', "-")));
    // A side that is gone leaves an empty directory of the disk below, where everything works, and fast.
    let in_place =
        |sides: &Sides| if sides.is_in_place(side)? { Ok(()) } else { bail!("{} is not mounted", side.words()) };
    in_place(sides)?;
    std::fs::create_dir(&dir)?;
    sides.settle()?;
    let (runs, is_quick) = (arguments.runs, arguments.quick);
    let mut run = Run { sides, side, dir: dir.clone(), inputs, number, runs, is_quick, report };
    (workload.work)(&mut run)?;
    in_place(sides)?;
    if dir.exists() {
        std::fs::remove_dir_all(&dir)?;
    }
    sides.settle()
}

/// Seconds for so many bytes, as a rate.
fn megabytes(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e6 / time.as_secs_f64().max(1e-9)
}

/// So many operations in this time, as a rate.
fn per_second(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64().max(1e-9)
}

/// How many files a tree has, for its description.
fn described(path: &Path) -> Result<String> {
    let size = tree::size(path)?;
    Ok(format!("{} files, {}", text::count(size.files), text::bytes(size.bytes)))
}
