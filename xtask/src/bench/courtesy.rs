//! What who uses a node notices of work that nobody waits for: room that is given back, and a scrub.
//!
//! One program reads at random and appends with a sync after each piece, as fast as it is answered: alone, then beside the beginning of
//! `hydrafs gc` with packs that are half dead; and when that has ended, alone and beside the beginning of `hydrafs scrub`. Both have the
//! share of the time that the settings give them. That by turns, some times over: a machine that others use is slower at one minute
//! than at the next, by more than what is to be seen here. So each figure stands beside that of the seconds before it.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::direct::{self, PAGE, Page};
use super::{Line, Run, Side, Unit};
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

const TERMS: &str =
    "99 of 100 are faster; 4 KiB at random past the kernel's cache, and appends of 4 KiB with fdatasync; default share";
const fn line(name: &'static str) -> Line {
    Line { name, unit: Unit::Microseconds, terms: TERMS }
}
/// Of reads and of appends.
const BESIDE_GC: [Line; 2] = [line("a read beside gc"), line("an append beside gc")];
const BESIDE_SCRUB: [Line; 2] = [line("a read beside scrub"), line("an append beside scrub")];

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
        load.alone(WARM)?;
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

    fn alone(&mut self, time: Duration) -> Result<Times> {
        let (started, mut times) = (Instant::now(), Times::default());
        self.work(&mut times, || started.elapsed() < time)?;
        Ok(times)
    }

    /// Beside a command, from its beginning to its end, or as long as it is looked at.
    fn beside(&mut self, run: &mut Run<'_>, verb: &str) -> Result<(Times, Child)> {
        let mut times = Times::default();
        let mut command = run.sides.volume().maintain(verb).start(Stdio::null(), Stdio::null(), Stdio::inherit())?;
        let started = Instant::now();
        while started.elapsed() < BESIDE_MAX && !command.has_ended()? {
            let slice = Instant::now();
            self.work(&mut times, || slice.elapsed() < SLICE)?;
        }
        Ok((times, command))
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
    for churn in churns {
        let mut load = Load::begin(run, bytes)?;
        let alone = load.alone(ALONE)?;
        for number in (0..files / TURNS).step_by(2) {
            fs::remove_file(churn.join(format!("file-{number}")))?;
        }
        run.sync()?;
        let (beside, mut command) = load.beside(run, "gc")?;
        // To its end: else it went on beside who is to be alone.
        command.wait()?;
        record(run, &BESIDE_GC, beside, alone)?;
        let alone = load.alone(ALONE)?;
        let (beside, mut command) = load.beside(run, "scrub")?;
        // On the next fresh mount nothing of it goes on.
        command.kill();
        record(run, &BESIDE_SCRUB, beside, alone)?;
    }
    Ok(())
}

fn record(run: &mut Run<'_>, [reads, appends]: &[Line; 2], beside: Times, alone: Times) -> Result<()> {
    for (times, side) in [(beside, run.side), (alone, Side::Alone)] {
        run.report.record(reads, side, late(times.reads)?);
        run.report.record(appends, side, late(times.appends)?);
    }
    Ok(())
}

/// What 99 of 100 are below.
fn late(mut times: Vec<f64>) -> Result<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() * 99 / 100).copied().context("no operation was timed")
}
