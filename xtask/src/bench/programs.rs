//! Workloads of real programs: tar, git, cargo, ls, find, rm, cp.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::{COLD, Line, Run, SYNCED, Unit, WARM};
use crate::posix::{git, programs};
use crate::program::Program;
use crate::tools;

const fn seconds(name: &'static str, terms: &'static str) -> Line {
    Line { name, unit: Unit::Seconds, terms }
}

pub(super) fn untar(run: &mut Run<'_>) -> Result<()> {
    let inputs = run.inputs;
    inputs.warm(&inputs.tar)?;
    run.timed(&seconds("untar sources", SYNCED), |dir| {
        program("tar", &["-xf"]).arg(&inputs.tar).arg("-C").arg(dir).output().map(drop)
    })
}

pub(super) fn git_clone(run: &mut Run<'_>) -> Result<()> {
    let inputs = run.inputs;
    inputs.warm(&inputs.repository)?;
    run.timed(&seconds("git clone", SYNCED), |dir| {
        // Not by hard links, which only one side could have.
        git::git(&inputs.log)
            .args(["clone", "--quiet", "--no-local"])
            .arg(&inputs.repository)
            .arg(dir.join("clone"))
            .run()
    })
}

pub(super) fn cargo_build(run: &mut Run<'_>) -> Result<()> {
    let log = run.inputs.log.clone();
    programs::copy_project(&run.dir, &log)?;
    run.sync()?;
    let package = if run.is_quick { "base" } else { "store" };
    run.timed(&seconds("cargo build", SYNCED), |dir| {
        let cargo = tools::cargo().dir(dir).args(["build", "--quiet", "--offline", "--package", package]);
        cargo.env("CARGO_TARGET_DIR", dir.join("target")).log(&log).run()
    })
}

/// Files that a pass-through has at most: it keeps each open, and 20,000 are a usual limit.
pub(super) const NAMES: u64 = 15_000;
/// Files in a directory.
const FILES_PER_DIRECTORY: u64 = 100;

pub(super) fn many_files(run: &mut Run<'_>) -> Result<()> {
    let count = run.scaled(100_000);
    run.timed(&seconds("create 100,000 files of 100 bytes", SYNCED), |dir| create(dir, count))?;
    for (cold, warm, name, arguments) in [
        (seconds("ls -lR of 100,000 files", COLD), seconds("ls -lR of 100,000 files", WARM), "ls", ["-lR"].as_slice()),
        (seconds("find in 100,000 files", COLD), seconds("find in 100,000 files", WARM), "find", &[]),
    ] {
        run.cool()?;
        for line in [cold, warm] {
            let time = listed(name, arguments, &run.dir)?;
            run.record(&line, time.as_secs_f64());
        }
    }
    run.sync()?;
    run.timed(&seconds("rm -rf of 100,000 files", SYNCED), |dir| program("rm", &["-rf"]).arg(dir).output().map(drop))
}

fn create(dir: &Path, count: u64) -> Result<()> {
    for number in 0..count {
        if number % FILES_PER_DIRECTORY == 0 {
            fs::create_dir(dir.join(format!("d{}", number / FILES_PER_DIRECTORY)))?;
        }
        fs::write(named(dir, number, "file"), format!("{number:0100}"))?;
    }
    Ok(())
}

fn named(dir: &Path, number: u64, name: &str) -> PathBuf {
    dir.join(format!("d{}", number / FILES_PER_DIRECTORY)).join(format!("{name}-{number}"))
}

/// Calls on names alone, of no more files than a pass-through that keeps each open may have.
pub(super) fn names(run: &mut Run<'_>) -> Result<()> {
    let count = run.scaled(NAMES);
    run.timed(&seconds("create 15,000 files of 100 bytes", SYNCED), |dir| create(dir, count))?;
    let dir = run.dir.clone();
    let stat = || (0..count).try_for_each(|number| fs::symlink_metadata(named(&dir, number, "file")).map(drop));
    run.cool()?;
    for (terms, passes) in [(COLD, 1), ("warm: ten times over", 10)] {
        let started = Instant::now();
        (0..passes).try_for_each(|_| stat())?;
        run.record(&seconds("stat of each of 15,000 files", terms), started.elapsed().as_secs_f64());
    }
    for (line, name, arguments) in
        [("ls -lR of 15,000 files", "ls", ["-lR"].as_slice()), ("find in 15,000 files", "find", &[])]
    {
        run.cool()?;
        for terms in [COLD, WARM] {
            let time = listed(name, arguments, &dir)?;
            run.record(&seconds(line, terms), time.as_secs_f64());
        }
    }
    // `find` had some sides tell what each name means, and others not.
    stat()?;
    run.timed(&seconds("rename of each of 15,000 files", "each was looked at before; synced at the end"), |dir| {
        let rename = |number| fs::rename(named(dir, number, "file"), named(dir, number, "renamed"));
        Ok((0..count).try_for_each(rename)?)
    })?;
    run.timed(&seconds("rm -rf of 15,000 files", SYNCED), |dir| program("rm", &["-rf"]).arg(dir).output().map(drop))
}

/// Time of a program that lists a directory to nowhere.
fn listed(name: &str, arguments: &[&str], dir: &Path) -> Result<Duration> {
    let started = Instant::now();
    let nowhere = fs::File::create("/dev/null")?;
    let status = program(name, arguments).arg(dir).start(Stdio::null(), nowhere.into(), Stdio::inherit())?.wait()?;
    if !status.success() {
        bail!("{name} ended with {status}");
    }
    Ok(started.elapsed())
}

pub(super) fn copy_twice(run: &mut Run<'_>) -> Result<()> {
    let inputs = run.inputs;
    inputs.warm(&inputs.tree)?;
    for (name, line) in [("first", "cp -a of sources"), ("second", "cp -a of the same sources again")] {
        run.timed(&seconds(line, SYNCED), |dir| {
            program("cp", &["-a"]).arg(&inputs.tree).arg(dir.join(name)).output().map(drop)
        })?;
    }
    Ok(())
}

fn program(name: &str, arguments: &[&str]) -> Program {
    Program::new(name).args(arguments).limit(Duration::from_secs(3600))
}
