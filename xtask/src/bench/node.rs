//! What a node is like in itself: how soon it is there again after a crash, whatever it stores, and how much memory it takes.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, Result};

use super::{Line, Run, Side, Unit};
use crate::random::Random;
use crate::{interrupt, machine};

const MIB: usize = 1 << 20;
const GIB: u64 = 1 << 30;

const fn milliseconds(name: &'static str, terms: &'static str) -> Line {
    Line { name, unit: Unit::Milliseconds, terms }
}

const CRASHED: &str = "kill -9 under load, what was synced is there; caches dropped";
const CLEAN: &str = "after a clean unmount; caches dropped";

/// What is stored, and the lines for it.
const SIZES: [(u64, Line, Line); 2] = [
    (
        1,
        milliseconds("recovery with 1 GiB stored: mount until the first stat", CRASHED),
        milliseconds("opening with 1 GiB stored: mount until the first stat", CLEAN),
    ),
    (
        20,
        milliseconds("recovery with 20 GiB stored: mount until the first stat", CRASHED),
        milliseconds("opening with 20 GiB stored: mount until the first stat", CLEAN),
    ),
];

/// The same node grows from the one size to the other.
pub(super) fn recovery(run: &mut Run<'_>) -> Result<()> {
    let name = run.dir.file_name().context("the run's folder has a name")?.to_string_lossy().into_owned();
    let (dir, mut random, mut stored) = (run.dir.clone(), Random::new(Random::fresh_seed()), 0);
    for (gibibytes, crashed, clean) in &SIZES {
        let wanted = run.scaled(gibibytes * GIB) / MIB as u64;
        while stored < wanted {
            fs::write(dir.join(format!("file-{stored}")), fresh(&mut random, MIB))?;
            stored += 1;
        }
        for number in 0..run.runs {
            interrupt::check()?;
            let load = dir.join(format!("load-{number}"));
            restart(run)?;
            write_load(&load, &mut random)?;
            run.sides.volume().kill()?;
            run.sides.drop_caches()?;
            let time = run.sides.volume().mount_until_stat(&name)?;
            run.record(crashed, time.as_secs_f64() * 1e3);
            fs::remove_dir_all(&load)?;
            run.sides.volume().unmount()?;
            run.sides.drop_caches()?;
            let time = run.sides.volume().mount_until_stat(&name)?;
            run.record(clean, time.as_secs_f64() * 1e3);
        }
    }
    Ok(())
}

/// The load of each kill begins with an empty journal, however long the filling was ago.
pub(super) fn restart(run: &mut Run<'_>) -> Result<()> {
    run.sides.volume().unmount()?;
    run.sides.volume().mount()
}

/// Small files, some of them synced, and a stream that is not: what a recovery finds in the journal.
fn write_load(dir: &Path, random: &mut Random) -> Result<()> {
    fs::create_dir(dir)?;
    for number in 0..4000 {
        let mut file = File::create(dir.join(format!("small-{number}")))?;
        file.write_all(&fresh(random, 4096))?;
        if number % 50 == 0 {
            file.sync_all()?;
        }
    }
    let mut stream = File::create(dir.join("stream"))?;
    for _ in 0..64 {
        stream.write_all(&fresh(random, MIB))?;
    }
    Ok(())
}

pub(super) fn fresh(random: &mut Random, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    random.fill(&mut bytes);
    bytes
}

/// Settings, and the names of their lines.
const BUDGETS: [(&str, &str); 2] =
    [("64 MiB", "resident memory with a budget of 64 MiB"), ("auto", "resident memory with the default budget")];

/// The terms of a line of memory: when it was looked at.
const MADE: &str = "when a million small files were made";
const STREAMED: &str = "when 20 GiB more were written and read";
const READ: &str = "when the small files were read";
const REMOVED: &str = "when everything was synced and removed";
const MOST: &str = "the most at any time";

pub(super) fn memory(run: &mut Run<'_>) -> Result<()> {
    for (setting, name) in BUDGETS {
        run.sides.renew_with(&[("memory", "budget", setting)])?;
        fs::create_dir(&run.dir)?;
        let (pid, promised) = (run.sides.volume().process().context("no daemon runs")?, budget(setting)? as f64 / 1e6);
        let look = |run: &mut Run<'_>, field, terms| -> Result<()> {
            let line = Line { name, unit: Unit::Megabytes, terms };
            run.record(&line, resident(pid, field)? as f64 / 1e6);
            run.report.record(&line, Side::Budget, promised);
            Ok(())
        };
        pass_through(run, |run, terms| look(run, "VmRSS:", terms))?;
        look(run, "VmHWM:", MOST)?;
    }
    Ok(())
}

/// Many small files made, many large ones written, read and removed, the small ones read and removed. Nobody syncs before the end.
fn pass_through<'a>(run: &mut Run<'a>, mut look: impl FnMut(&mut Run<'a>, &'static str) -> Result<()>) -> Result<()> {
    let (count, mut random) = (run.scaled(1_000_000), Random::new(Random::fresh_seed()));
    let small = run.dir.join("small");
    let named = |number: u64| small.join(format!("{}", number / 1000)).join(format!("file-{number}"));
    for number in 0..count {
        if number % 1000 == 0 {
            interrupt::check()?;
            fs::create_dir_all(small.join(format!("{}", number / 1000)))?;
        }
        let bytes = random.between(1, 2000);
        fs::write(named(number), fresh(&mut random, bytes as usize))?;
    }
    look(run, MADE)?;
    // A tenth of the work is a tenth of each file.
    let pieces = run.scaled(GIB) / MIB as u64;
    let mut buffer = vec![0; MIB];
    for number in 0..20_u64 {
        interrupt::check()?;
        let path = run.dir.join(format!("stream-{number}"));
        let mut file = File::create(&path)?;
        for _ in 0..pieces {
            file.write_all(&fresh(&mut random, MIB))?;
        }
        let mut file = File::open(path)?;
        while file.read(&mut buffer)? > 0 {}
        // Four are there at a time.
        if let Some(old) = number.checked_sub(4) {
            fs::remove_file(run.dir.join(format!("stream-{old}")))?;
        }
    }
    look(run, STREAMED)?;
    for number in 0..count {
        fs::read(named(number))?;
    }
    look(run, READ)?;
    run.sync()?;
    fs::remove_dir_all(&run.dir)?;
    run.sync()?;
    look(run, REMOVED)
}

/// Bytes of a field of proc_pid_status(5).
fn resident(pid: i32, field: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let kibibytes =
        text.lines().find_map(|line| line.strip_prefix(field)?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kibibytes.with_context(|| format!("{path} has no {field}"))? * 1024)
}

/// Bytes that a setting of the budget means: "auto" is a quarter of RAM, at most 4 GiB.
fn budget(setting: &str) -> Result<u64> {
    if setting == "auto" {
        let memory = machine::memory_bytes().context("/proc/meminfo tells no total")?;
        return Ok((memory / 4).min(4 * GIB));
    }
    let mebibytes = setting.strip_suffix(" MiB").and_then(|count| count.parse::<u64>().ok());
    Ok(mebibytes.with_context(|| format!("{setting} is no budget"))? * MIB as u64)
}
