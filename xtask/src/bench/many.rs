//! What memory takes when there is a hundred times as much of everything: by `lab`, in processes of its own, as the kernel counted it at most.
//!
//! Not here: a mount through which much passes (`node`).

use anyhow::{Context, Result, bail};

use super::store::results;
use super::{Line, Run, Side, Unit};
use crate::program::Program;
use crate::tools;

const FILES: u64 = 10_000_000;
/// Of an average size they are 1.5 TiB.
const CHUNKS: u64 = 16_384_000;

/// Phases of lab's, and the lines that they are.
type Phases<const N: usize> = [(&'static str, Line); N];

const fn batches(name: &'static str) -> Line {
    Line {
        name,
        unit: Unit::Megabytes,
        terms: "the most memory of the process; caches of 24 MiB, a write buffer of 64 MiB",
    }
}

const fn chunks_line(name: &'static str) -> Line {
    Line {
        name,
        unit: Unit::Megabytes,
        terms: "the most memory of the process; a cache of 8 MiB; tiny chunks, which take the memory of large ones",
    }
}

const OF_FILES: Phases<5> = [
    ("write in units", batches("ten million files written in units")),
    ("walk", batches("ten million files listed")),
    ("read", batches("ten million files read in the order in which they lie")),
    ("remove", batches("ten million files removed with their tree")),
    ("remove behind", batches("what ten million removed files had, given up behind")),
];
const OF_CHUNKS: Phases<3> = [
    ("put", chunks_line("a store of 16 million chunks, 1.5 TiB: they are put")),
    ("mark and reclaim half", chunks_line("a store of 16 million chunks, 1.5 TiB: half of them given back")),
    ("open", chunks_line("a store of 16 million chunks, 1.5 TiB: it is opened")),
];

pub(super) fn files(run: &mut Run<'_>) -> Result<()> {
    compare(run, "masses", FILES, &OF_FILES)
}

pub(super) fn chunks(run: &mut Run<'_>) -> Result<()> {
    compare(run, "chunks", CHUNKS, &OF_CHUNKS)
}

/// So many, and a hundredth of that.
fn compare(run: &mut Run<'_>, experiment: &str, count: u64, phases: &[(&str, Line)]) -> Result<()> {
    let count = run.scaled(count);
    for (side, count) in [(Side::Hundredth, count / 100), (Side::Hydrafs, count)] {
        let program = Program::new(tools::lab()?).args([experiment, "--counts", &count.to_string()]).arg(&run.dir);
        let mut told = 0;
        for result in results(program)? {
            let Some((_, line)) = phases.iter().find(|(phase, _)| result["phase"] == *phase) else { continue };
            let bytes = result["memory_bytes"].as_f64().context("lab tells no memory")?;
            run.report.record(line, side, bytes / 1e6);
            told += 1;
        }
        if told != phases.len() {
            bail!("lab told of {told} of {} phases", phases.len());
        }
    }
    Ok(())
}
