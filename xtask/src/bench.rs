//! How fast, beside ext4 on the same disk in the same run: `make bench`.
//!
//! Both sides stand on the same ground: HydraFS's disks are two directories of the very ext4 that the other side is a directory of.
//! Where the project's disk is no ext4, a loop device on it is, for both ([`ground`]). Each line does the same work on both sides and
//! ends with the same promise: what is written is on the disk (syncfs there, `hydrafs sync` here), or as durable as the line says.
//! Sides alternate (A B, B A, ...), each begins with nothing left to be written, and the figure is the median, with the least and
//! the most beside it: one run on a machine with neighbours says little.
//!
//! Not here: goals. This only measures.

mod ground;
mod inputs;
mod io;
mod plot;
mod programs;
mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use self::ground::Sides;
use self::inputs::Inputs;
use self::report::Report;
use crate::tools::{self, Profile};
use crate::{interrupt, text, tree, volume};

/// Measure HydraFS beside ext4 on the same disk.
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
    /// Write docs/bench.md and its plot from this run.
    #[arg(long)]
    write_doc: bool,
}

/// What a figure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Seconds,
    MegabytesPerSecond,
    PerSecond,
    Microseconds,
}

impl Unit {
    fn words(self) -> &'static str {
        match self {
            Unit::Seconds => "s",
            Unit::MegabytesPerSecond => "MB/s",
            Unit::PerSecond => "op/s",
            Unit::Microseconds => "us",
        }
    }

    fn is_more_better(self) -> bool {
        matches!(self, Unit::MegabytesPerSecond | Unit::PerSecond)
    }
}

/// A line of the table.
#[derive(Clone, Copy, Debug)]
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
    is_quick: bool,
    report: &'a mut Report,
}

/// Ours is measured against the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Hydrafs,
    Ext4,
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

type Workload = (&'static str, fn(&mut Run<'_>) -> Result<()>);

const WORKLOADS: [Workload; 10] = [
    ("untar", programs::untar),
    ("git clone", programs::git_clone),
    ("cargo build", programs::cargo_build),
    ("many files", programs::many_files),
    ("copy twice", programs::copy_twice),
    ("sequential", io::sequential),
    ("random read", io::random_read),
    ("random write", io::random_write),
    ("small files", io::small_files),
    ("fsync latency", io::fsync_latency),
];

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let _claim = tools::claim("bench")?;
    volume::can_mount()?;
    if arguments.write_doc && (arguments.quick || !arguments.only.is_empty()) {
        bail!("--write-doc wants a whole run: without --quick and --only");
    }
    let is_wanted =
        |name: &str| arguments.only.is_empty() || arguments.only.iter().any(|part| name.contains(part.as_str()));
    let workloads: Vec<&Workload> = WORKLOADS.iter().filter(|(name, _)| is_wanted(name)).collect();
    if workloads.is_empty() {
        let names: Vec<&str> = WORKLOADS.iter().map(|(name, _)| *name).collect();
        bail!("no workload is called like that; there are: {}", names.join(", "));
    }
    let binary = tools::hydrafs(Profile::Release)?;
    let root = tools::folder("bench")?;
    let inputs = Inputs::prepare(&root.join("inputs"), arguments.quick)?;
    let mut sides = Sides::make(&binary, &root)?;
    let mut report = Report::new(arguments.runs, arguments.quick, &root, sides.words(), &inputs)?;
    println!("{}", report.heading());
    for (name, workload) in workloads {
        print!("── {name}:");
        let started = Instant::now();
        for number in 0..arguments.runs {
            // A B, B A: a disk that gets slower with time is no side's.
            let order = if number % 2 == 0 { [Side::Hydrafs, Side::Ext4] } else { [Side::Ext4, Side::Hydrafs] };
            for side in order {
                interrupt::check()?;
                once(workload, name, side, number, &mut sides, &inputs, arguments, &mut report)
                    .with_context(|| format!("{name} on {side:?}"))?;
            }
            print!(" {}", number + 1);
            std::io::Write::flush(&mut std::io::stdout())?;
        }
        println!(" ({})", text::span(started.elapsed()));
    }
    drop(sides);
    volume::clear(&root.join("sides"))?;
    println!("\n{}", report.table().text());
    report.save(&tools::project().join("bench/results"))?;
    if arguments.write_doc {
        report.write_document(&tools::project())?;
    }
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::too_many_arguments, reason = "the one place where all of a run comes together")]
fn once(
    workload: &fn(&mut Run<'_>) -> Result<()>,
    name: &str,
    side: Side,
    number: u32,
    sides: &mut Sides,
    inputs: &Inputs,
    arguments: &Arguments,
    report: &mut Report,
) -> Result<()> {
    if side == Side::Hydrafs {
        sides.renew()?;
    }
    let dir = sides.dir(side).join(format!("{}-{number}", name.replace(' ', "-")));
    std::fs::create_dir(&dir)?;
    sides.settle()?;
    let mut run = Run { sides, side, dir: dir.clone(), inputs, number, is_quick: arguments.quick, report };
    workload(&mut run)?;
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
