//! What it costs to have a large tree once more, a thousand times more, and as it was.
//!
//! Ours is `hydrafs clone`, timed as a whole process, from a tree that is all on the disk; ext4's is `cp -a`, once. Then, ours alone: a
//! thousand clones, each listed, a program run from each, each changed by one small file, and what all of that took on the disks.
//!
//! Not here: how fast files are made (`programs`).

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

use super::{Line, Run, SYNCED, Side, Unit};
use crate::interrupt;
use crate::program::Program;

const FILES: u64 = 1_000_000;
const FILES_PER_DIRECTORY: u64 = 1000;
const CLONES: u64 = 1000;
/// A program that does nothing, and its name in the tree.
const PROGRAM: &str = "/bin/true";
const PROGRAM_NAME: &str = "program";

const ONCE: Line = Line { name: "a tree of a million files once more", unit: Unit::Milliseconds, terms: SYNCED };
const AGAIN: Line = Line {
    name: "each of a thousand clones of it more",
    unit: Unit::Milliseconds,
    terms: "synced at the end; the whole command, with as many before it",
};
const LISTED: Line = Line {
    name: "a directory of 1000 files listed, in each of a thousand clones",
    unit: Unit::Milliseconds,
    terms: "the first time",
};
/// Files, and the line.
const SNAPSHOTS: [(u64, Line); 4] = [
    (1000, snapshot("a snapshot of a directory of 1000 files")),
    (10_000, snapshot("a snapshot of a tree of 10,000 files")),
    (100_000, snapshot("a snapshot of a tree of 100,000 files")),
    (1_000_000, snapshot("a snapshot of a tree of a million files")),
];
const fn snapshot(name: &'static str) -> Line {
    Line {
        name,
        unit: Unit::Milliseconds,
        terms: "all but one small change was committed; the whole command, with the commit of that",
    }
}
const RUN: Line = Line {
    name: "a program run from each of a thousand clones",
    unit: Unit::Milliseconds,
    terms: "the first time; a copy of true(1), from its start to its end",
};
const STORED: Line = Line {
    name: "stored for each of a thousand clones",
    unit: Unit::Kilobytes,
    terms: "unmounted; nothing was changed in them",
};
const CHANGED: Line = Line {
    name: "stored for one file of 4 kB written in each",
    unit: Unit::Kilobytes,
    terms: "unmounted; incompressible content",
};
const OPENED: Line = Line {
    name: "opening with a thousand clones: mount until the first stat",
    unit: Unit::Milliseconds,
    terms: "after a clean unmount; caches dropped",
};

pub(super) fn clones(run: &mut Run<'_>) -> Result<()> {
    let tree = run.dir.join("tree");
    for number in 0..run.scaled(FILES) {
        let directory = tree.join(format!("d{}", number / FILES_PER_DIRECTORY));
        if number % FILES_PER_DIRECTORY == 0 {
            interrupt::check()?;
            fs::create_dir_all(&directory)?;
        }
        fs::write(directory.join(format!("f{number}")), format!("file {number}"))?;
    }
    fs::copy(PROGRAM, tree.join(PROGRAM_NAME)).with_context(|| format!("cannot copy {PROGRAM}"))?;
    run.sync()?;
    if run.side == Side::Ext4 {
        let target = run.dir.join("copy");
        let started = Instant::now();
        Program::new("cp").arg("-a").arg(&tree).arg(&target).run()?;
        run.sync()?;
        run.record(&ONCE, started.elapsed().as_secs_f64() * 1e3);
        return Ok(());
    }
    for (count, line) in &SNAPSHOTS {
        let part = run.dir.join(format!("part-{count}"));
        fs::create_dir(&part)?;
        for number in 0..run.scaled(*count) {
            if number % FILES_PER_DIRECTORY == 0 {
                fs::create_dir(part.join(format!("d{}", number / FILES_PER_DIRECTORY)))?;
            }
            fs::write(part.join(format!("d{}/f{number}", number / FILES_PER_DIRECTORY)), b"")?;
        }
        run.sync()?;
        // It commits what the journal has.
        run.sides.volume().snapshot(&format!("of-{count}"), &part)?;
        for number in 0..run.runs {
            fs::write(part.join("d0/f0"), number.to_string())?;
            let started = Instant::now();
            run.sides.volume().snapshot(&format!("of-{count}-{number}"), &part)?;
            run.record(line, started.elapsed().as_secs_f64() * 1e3);
        }
    }
    for number in 0..run.runs {
        let time = clone(run, &tree, &format!("once-{number}"))?;
        run.record(&ONCE, time);
    }
    let before = stored(run)?;
    for number in 0..CLONES {
        interrupt::check()?;
        let time = clone(run, &tree, &format!("clone-{number}"))?;
        run.record(&AGAIN, time);
    }
    let cloned = stored(run)?;
    run.record(&STORED, cloned.saturating_sub(before) as f64 / 1e3 / CLONES as f64);
    for number in 0..CLONES {
        let directory = run.dir.join(format!("clone-{number}/d{}", number % (run.scaled(FILES) / FILES_PER_DIRECTORY)));
        let started = Instant::now();
        anyhow::ensure!(fs::read_dir(&directory)?.count() as u64 == FILES_PER_DIRECTORY, "a clone lacks names");
        run.record(&LISTED, started.elapsed().as_secs_f64() * 1e3);
    }
    for number in 0..CLONES {
        let program = Program::new(run.dir.join(format!("clone-{number}")).join(PROGRAM_NAME));
        let started = Instant::now();
        program.run()?;
        run.record(&RUN, started.elapsed().as_secs_f64() * 1e3);
    }
    let listed = stored(run)?;
    let mut random = crate::random::Random::new(12);
    let mut content = [0; 4096];
    for number in 0..CLONES {
        random.fill(&mut content);
        fs::write(run.dir.join(format!("clone-{number}/d0/new")), content)?;
    }
    let changed = stored(run)?;
    run.record(&CHANGED, changed.saturating_sub(listed) as f64 / 1e3 / CLONES as f64);
    let name = run.dir.file_name().context("the run's folder has a name")?.to_string_lossy().into_owned();
    run.sides.volume().unmount()?;
    run.sides.drop_caches()?;
    let time = run.sides.volume().mount_until_stat(&name)?;
    run.record(&OPENED, time.as_secs_f64() * 1e3);
    // A thousand times a million names are not removed one by one.
    run.sides.renew()?;
    Ok(())
}

/// The time of the whole command, in milliseconds.
fn clone(run: &mut Run<'_>, tree: &Path, name: &str) -> Result<f64> {
    let target = run.dir.join(name);
    let started = Instant::now();
    run.sides.volume().clone_tree(tree, &target)?;
    Ok(started.elapsed().as_secs_f64() * 1e3)
}

/// All that is stored, in bytes; ended cleanly, so that the trees are stored too, and not only in the journal.
fn stored(run: &mut Run<'_>) -> Result<u64> {
    run.sides.volume().unmount()?;
    run.sides.volume().mount()?;
    let status = run.sides.volume().status()?;
    let bytes = |class: &str| status[class]["stored_bytes"].as_u64().context("`status` tells no stored bytes");
    Ok(bytes("data")? + bytes("metadata")?)
}
