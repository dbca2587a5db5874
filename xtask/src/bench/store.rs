//! The layers below the kernel, by `lab`: streams through the file layer beside the raw store, and what the read path's two measures are worth.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{Line, Run, Side, Unit};
use crate::program::Program;
use crate::tools;

const TERMS: &str = "in one process, without the kernel; all durable at the end";
const COLD_TERMS: &str = "in one process, without the kernel; cold";
const FAR_TERMS: &str = "cold, from a simulated disk of 5 ms";

/// Lines by percent of duplicates.
const WRITES: [(u64, &str); 5] = [
    (0, "write a stream without duplicates"),
    (25, "write a stream, a quarter of it duplicates"),
    (50, "write a stream, half of it duplicates"),
    (75, "write a stream, three quarters of it duplicates"),
    (100, "write a stream of duplicates"),
];
const READS: [(u64, &str); 5] = [
    (0, "read a stream without duplicates"),
    (25, "read a stream, a quarter of it duplicates"),
    (50, "read a stream, half of it duplicates"),
    (75, "read a stream, three quarters of it duplicates"),
    (100, "read a stream of duplicates"),
];

pub(super) fn streams(run: &mut Run<'_>) -> Result<()> {
    let mebibytes = run.scaled(1000).to_string();
    let program = Program::new(tools::lab()?).args(["stream", "--mebibytes", &mebibytes]).arg(&run.dir);
    for result in results(program)? {
        let side = match result["side"].as_str() {
            Some("raw") => Side::Store,
            Some("raw-cut") => Side::StoreCutting,
            Some("file") => Side::Hydrafs,
            _ => bail!("lab said something else: {result}"),
        };
        let share = result["duplicates"].as_u64().context("lab tells no share")?;
        for (lines, field, terms) in
            [(&WRITES, "write_megabytes_per_second", TERMS), (&READS, "read_megabytes_per_second", COLD_TERMS)]
        {
            let (_, name) = lines.iter().find(|(known, _)| *known == share).context("a share without a line")?;
            let line = Line { name, unit: Unit::MegabytesPerSecond, terms };
            run.report.record(&line, side, result[field].as_f64().context("lab tells no rate")?);
        }
    }
    Ok(())
}

/// Lines by pattern: name, unit, field.
type FarLines = [(&'static str, Unit, &'static str); 4];
const FAR: [(&str, FarLines); 2] = [
    (
        "stream",
        [
            ("read a stream: rate", Unit::MegabytesPerSecond, "megabytes_per_second"),
            ("read a stream: accesses of the cache", Unit::Count, "accesses"),
            ("read a stream: misses of data", Unit::Count, "data_misses"),
            ("read a stream: misses of metadata", Unit::Count, "metadata_misses"),
        ],
    ),
    (
        "random",
        [
            ("read at random: rate", Unit::MegabytesPerSecond, "megabytes_per_second"),
            ("read at random: accesses of the cache", Unit::Count, "accesses"),
            ("read at random: misses of data", Unit::Count, "data_misses"),
            ("read at random: misses of metadata", Unit::Count, "metadata_misses"),
        ],
    ),
];

/// The sides are settings here: with both measures, with one, without.
pub(super) fn far(run: &mut Run<'_>) -> Result<()> {
    for result in results(Program::new(tools::lab()?).arg("far"))? {
        let side = match (result["reads_ahead"].as_bool(), result["weighted"].as_bool()) {
            (Some(true), Some(true)) => Side::Hydrafs,
            (Some(true), _) => Side::WithoutWeights,
            (_, Some(true)) => Side::WithoutPrefetch,
            _ => Side::WithoutBoth,
        };
        let (_, lines) =
            FAR.iter().find(|(known, _)| result["pattern"] == *known).context("a pattern without lines")?;
        for (name, unit, field) in *lines {
            let line = Line { name, unit, terms: FAR_TERMS };
            run.report.record(&line, side, result[field].as_f64().context("lab tells no figure")?);
        }
    }
    Ok(())
}

/// What lab prints.
pub(super) fn results(program: Program) -> Result<Vec<Value>> {
    let text = program.output()?;
    text.lines().map(|line| serde_json::from_str(line).with_context(|| format!("lab said {line}"))).collect()
}
