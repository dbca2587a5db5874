//! What a tree of many files takes to be counted and removed: `du` and `rm`, and what we have in their place.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use super::super::{COLD, Line, Run, SYNCED, Side, Unit, WARM};
use super::set::{Order, Set};
use super::{PATIENCE, has_verb};
use crate::program::Program;

const FILES: u64 = 100_000;

const DU: Line = Line { name: "du of 100,000 files", unit: Unit::Milliseconds, terms: COLD };
const RM: Line = Line { name: "rm -r of 100,000 files", unit: Unit::Seconds, terms: "until it returns" };

pub(in super::super) fn names(run: &mut Run<'_>) -> Result<()> {
    let files = run.dir.join("files");
    Set { files: run.scaled(FILES), file_bytes: 4 << 10, order: Order::Listed }.write(&files, super::FIRST)?;
    run.cool()?;
    if let Some(du) = tool(run, "du", "-s", &files) {
        let line = Line { terms: WARM, ..DU };
        for (line, du) in [(DU, du), (line, tool(run, "du", "-s", &files).expect("it was there"))] {
            let started = Instant::now();
            du.output()?;
            run.record(&line, started.elapsed().as_secs_f64() * 1e3);
        }
    }
    run.cool()?;
    if let Some(rm) = tool(run, "rm", "-r", &files) {
        let started = Instant::now();
        rm.output()?;
        run.record(&RM, started.elapsed().as_secs_f64());
        run.sync()?;
        run.record(&Line { terms: SYNCED, ..RM }, started.elapsed().as_secs_f64());
    }
    Ok(())
}

/// The usual tool, or ours of the same name, if this `hydrafs` has it.
fn tool(run: &mut Run<'_>, name: &'static str, option: &str, path: &Path) -> Option<Program> {
    if run.side == Side::Ext4 {
        return Some(Program::new(name).arg(option).arg(path).limit(PATIENCE));
    }
    if !has_verb(run.sides.binary(), name) {
        run.report.did_not_run(name, "this hydrafs has no such verb".to_owned());
        return None;
    }
    // Ours of `du` gives sums without being asked.
    let option = (name == "rm").then_some(option);
    Some(Program::new(run.sides.binary()).arg(name).args(option).arg(path).limit(PATIENCE))
}
