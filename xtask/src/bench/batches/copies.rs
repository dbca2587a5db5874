//! A tree of sources, copied within a file system and to one on another device: `cp -r` on ext4, `hydrafs cp -r` on ours. Published: 46.6 % less time.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use super::super::device;
use super::super::ground::{self, Sides};
use super::super::{Line, Run, Side, Unit};
use super::tools;
use crate::program::Program;
use crate::tree;

/// All sources of this machine that were collected.
pub(in super::super) fn here(run: &mut Run<'_>) -> Result<()> {
    let tree = run.inputs.tree.clone();
    prepare(run, &tree)?;
    within(run, "sources", "this machine's disk; cold, synced at the end")
}

/// As many of them as do not take all day.
pub(in super::super) fn on_seeks(run: &mut Run<'_>) -> Result<()> {
    let part = run.inputs.tree.join("part-0");
    prepare(run, &part)?;
    let terms = "150 requests a second; cold, synced at the end";
    within(run, "5,000 sources", terms)?;
    between(run, device::SEEK, "5,000 sources", terms)
}

pub(in super::super) fn on_ssd(run: &mut Run<'_>) -> Result<()> {
    let tree = run.inputs.tree.clone();
    prepare(run, &tree)?;
    let terms = "10,000 requests and 500 MB a second; cold, synced at the end";
    within(run, "sources", terms)?;
    between(run, device::SSD, "sources", terms)
}

/// Puts the tree there.
fn prepare(run: &mut Run<'_>, tree: &Path) -> Result<()> {
    Program::new("cp").arg("-a").arg(tree).arg(run.dir.join("tree")).limit(super::PATIENCE).output()?;
    run.sync()
}

fn within(run: &mut Run<'_>, what: &str, terms: &'static str) -> Result<()> {
    let target = run.dir.join("copy");
    fs::create_dir(&target)?;
    run.cool()?;
    let sides = &*run.sides;
    let seconds = sides.limited_work(|| copy(run.side, sides, &run.dir.join("tree"), &target, sides))?;
    compare(&run.dir.join("tree"), &target.join("tree"))?;
    run.record(&line(format!("copy of {what}, within"), terms), seconds);
    Ok(())
}

fn between(run: &mut Run<'_>, limit: device::Limit, what: &str, terms: &'static str) -> Result<()> {
    let place = run.inputs.root.join("second");
    let second = Sides::limited(run.sides.binary(), &place, limit)?;
    let target = second.dir(run.side).join("copy");
    fs::create_dir(&target)?;
    second.settle()?;
    run.cool()?;
    let sides = &*run.sides;
    let both = || second.limited_work(|| copy(run.side, sides, &run.dir.join("tree"), &target, &second));
    let seconds = sides.limited_work(both)?;
    compare(&run.dir.join("tree"), &target.join("tree"))?;
    drop(second);
    ground::take_away(&place)?;
    run.record(&line(format!("copy of {what}, to another device"), terms), seconds);
    Ok(())
}

/// Copies, until it is on the disk there: seconds.
fn copy(side: Side, from: &Sides, tree: &Path, target: &Path, to: &Sides) -> Result<f64> {
    let tool = if side == Side::Ext4 { Side::Copy } else { side };
    let started = Instant::now();
    tools::copier(tool, from.binary())?.arg(tree).arg(target).output()?;
    to.sync(side)?;
    Ok(started.elapsed().as_secs_f64())
}

/// As many files, and as many bytes.
fn compare(tree: &Path, copy: &Path) -> Result<()> {
    let (size, copied) = (tree::size(tree)?, tree::size(copy)?);
    anyhow::ensure!(size.files == copied.files && size.bytes == copied.bytes, "copied {copied:?} of {size:?}");
    Ok(())
}

/// Lines are few; their names last as long as the program.
fn line(name: String, terms: &'static str) -> Line {
    Line { name: name.leak(), unit: Unit::Seconds, terms }
}
