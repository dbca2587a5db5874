//! What who uses a node notices of work that nobody waits for: room that is given back, and a scrub.
//!
//! One program reads at random and appends with a sync after each piece, as fast as it is answered: alone, then beside the beginning of
//! `hydrafs gc` with packs that are half dead; and when that has ended, alone and beside the beginning of `hydrafs scrub`. Both have the
//! share of the time that the settings give them. That by turns, some times over: a machine that others use is slower at one minute
//! than at the next, by more than what is to be seen here.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::direct::{self, PAGE, Page};
use super::{Line, Run, Unit};
use crate::interrupt;
use crate::program::Child;
use crate::random::Random;

const MIB: usize = 1 << 20;
/// A file of this size does not fit what is cached with the default budget.
const READ_BYTES: u64 = 2 << 30;
/// What is stored beside it, in files of 1 MiB of which every other goes.
const CHURN_FILES: u64 = 6 << 10;
/// How often all is done.
const TURNS: u64 = 3;
/// How long the program works until what is asked for first is in memory.
const WARM: Duration = Duration::from_secs(15);
/// How long the program works alone each time.
const ALONE: Duration = Duration::from_secs(10);
/// How often it is looked whether a command has ended.
const SLICE: Duration = Duration::from_millis(200);
/// How long beside others at most.
const BESIDE_MAX: Duration = Duration::from_secs(20);
/// Pages read between two appends.
const READS: usize = 4;

const TERMS: &str = "4 KiB at random past the kernel's cache, and appends of 4 KiB with fdatasync; default share";

/// What was timed in one condition, in microseconds.
#[derive(Default)]
struct Times {
    reads: Vec<f64>,
    appends: Vec<f64>,
}

struct Load {
    data: File,
    pages: u64,
    log: File,
    random: Random,
    page: Box<Page>,
}

impl Load {
    /// On a fresh mount, when what is asked for first is in memory.
    fn begin(run: &mut Run<'_>, bytes: u64) -> Result<Load> {
        run.cool()?;
        let data = direct::open(&run.dir.join("data"))?;
        let log = File::options().append(true).create(true).open(run.dir.join("log"))?;
        let random = Random::new(Random::fresh_seed());
        let mut load = Load { data, pages: bytes / PAGE as u64, log, random, page: Page::new() };
        load.alone(WARM, &mut Times::default())?;
        Ok(load)
    }

    fn work(&mut self, times: &mut Times, goes_on: impl Fn() -> bool) -> Result<()> {
        while goes_on() {
            for _ in 0..READS {
                let at = self.random.below(self.pages) * PAGE as u64;
                let started = Instant::now();
                self.data.read_exact_at(&mut self.page.0, at)?;
                times.reads.push(started.elapsed().as_secs_f64() * 1e6);
            }
            self.random.fill(&mut self.page.0);
            let started = Instant::now();
            self.log.write_all(&self.page.0)?;
            self.log.sync_data()?;
            times.appends.push(started.elapsed().as_secs_f64() * 1e6);
        }
        interrupt::check()
    }

    fn alone(&mut self, time: Duration, times: &mut Times) -> Result<()> {
        let started = Instant::now();
        self.work(times, || started.elapsed() < time)
    }

    /// Beside a command, from its beginning to its end, or as long as it is looked at.
    fn beside(&mut self, run: &mut Run<'_>, verb: &str, times: &mut Times) -> Result<Child> {
        let mut command = run.sides.volume().maintain(verb).start(Stdio::null(), Stdio::null(), Stdio::inherit())?;
        let started = Instant::now();
        while started.elapsed() < BESIDE_MAX && !command.has_ended()? {
            let slice = Instant::now();
            self.work(times, || slice.elapsed() < SLICE)?;
        }
        Ok(command)
    }
}

pub(super) fn courtesy(run: &mut Run<'_>) -> Result<()> {
    let (bytes, files) = (run.scaled(READ_BYTES / MIB as u64) * MIB as u64, run.scaled(CHURN_FILES));
    let mut random = Random::new(Random::fresh_seed());
    let mut piece = vec![0; MIB];
    let path = run.dir.join("data");
    let mut data = File::create(&path)?;
    for _ in 0..bytes / MIB as u64 {
        random.fill(&mut piece);
        data.write_all(&piece)?;
    }
    drop(data);
    let churn = |turn: u64| run.dir.join(format!("churn-{turn}"));
    for turn in 0..TURNS {
        fs::create_dir(churn(turn))?;
        for number in 0..files / TURNS {
            random.fill(&mut piece);
            fs::write(churn(turn).join(format!("file-{number}")), &piece)?;
        }
    }
    let churns: Vec<PathBuf> = (0..TURNS).map(churn).collect();
    run.sync()?;
    let (mut alone, mut beside_gc, mut beside_scrub) = (Times::default(), Times::default(), Times::default());
    for churn in churns {
        let mut load = Load::begin(run, bytes)?;
        load.alone(ALONE, &mut alone)?;
        for number in (0..files / TURNS).step_by(2) {
            fs::remove_file(churn.join(format!("file-{number}")))?;
        }
        run.sync()?;
        // To its end: else it went on beside who is to be alone.
        load.beside(run, "gc", &mut beside_gc)?.wait()?;
        load.alone(ALONE, &mut alone)?;
        // On the next fresh mount nothing of it goes on.
        load.beside(run, "scrub", &mut beside_scrub)?.kill();
    }
    for (condition, times) in [(0, alone), (1, beside_gc), (2, beside_scrub)] {
        for (times, names) in [(times.reads, READ_NAMES), (times.appends, APPEND_NAMES)] {
            let line = Line { name: names[condition], unit: Unit::Microseconds, terms: TERMS };
            run.record(&line, late(times)?);
        }
    }
    Ok(())
}

const READ_NAMES: [&str; 3] = [
    "a read, 99 of 100 are faster: alone",
    "a read, 99 of 100 are faster: beside gc",
    "a read, 99 of 100 are faster: beside scrub",
];
const APPEND_NAMES: [&str; 3] = [
    "an append, 99 of 100 are faster: alone",
    "an append, 99 of 100 are faster: beside gc",
    "an append, 99 of 100 are faster: beside scrub",
];

/// What 99 of 100 are below.
fn late(mut times: Vec<f64>) -> Result<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() * 99 / 100).copied().context("no operation was timed")
}
