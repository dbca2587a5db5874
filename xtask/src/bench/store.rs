//! The layers below the kernel, by `lab`: streams through the file layer beside the raw store, and what the read path's two measures are worth.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::report::Curve;
use super::{Line, Run, Side, Unit};
use crate::program::Program;
use crate::tools;

const TERMS: &str = "in one process, without the kernel; all durable at the end";
const COLD_TERMS: &str = "in one process, without the kernel; cold";
const FAR_TERMS: &str = "cold, from a simulated disk of 5 ms";

/// A stream by its content and percent of duplicates: how its lines are called.
struct Stream {
    fill: &'static str,
    duplicates: u64,
    written: &'static str,
    read: &'static str,
}

const fn stream(fill: &'static str, duplicates: u64, written: &'static str, read: &'static str) -> Stream {
    Stream { fill, duplicates, written, read }
}

const STREAMS: [Stream; 7] = [
    stream("random", 0, "write a stream without duplicates", "read a stream without duplicates"),
    stream("random", 25, "write a stream, a quarter of it duplicates", "read a stream, a quarter of it duplicates"),
    stream("random", 50, "write a stream, half of it duplicates", "read a stream, half of it duplicates"),
    stream(
        "random",
        75,
        "write a stream, three quarters of it duplicates",
        "read a stream, three quarters of it duplicates",
    ),
    stream("random", 100, "write a stream of duplicates", "read a stream of duplicates"),
    stream("words", 0, "write a stream of words without duplicates", "read a stream of words without duplicates"),
    stream("words", 100, "write a stream of words, all duplicates", "read a stream of words, all duplicates"),
];

/// Duplicates beside new content, by what both are made of.
const FILLS: [(&str, &str); 2] =
    [("random", "write a stream: duplicates"), ("words", "write a stream of words: duplicates")];

pub(super) fn streams(run: &mut Run<'_>) -> Result<()> {
    let mebibytes = run.scaled(1000).to_string();
    for (fill, beside) in FILLS {
        let wanted: Vec<&Stream> = STREAMS.iter().filter(|stream| stream.fill == fill).collect();
        let shares: Vec<String> = wanted.iter().map(|stream| stream.duplicates.to_string()).collect();
        let program = Program::new(tools::lab()?)
            .args(["stream", "--mebibytes", &mebibytes, "--fill", fill, "--duplicates", &shares.join(",")])
            .arg(&run.dir);
        for result in results(program)? {
            let side = match result["side"].as_str() {
                Some("raw") => Side::Store,
                Some("raw-cut") => Side::StoreCutting,
                Some("file") => Side::Hydrafs,
                _ => bail!("lab said something else: {result}"),
            };
            let is_it = |stream: &&&Stream| result["duplicates"] == stream.duplicates;
            let stream = wanted.iter().find(is_it).context("a share without a line")?;
            let rate = |field: &str| result[field].as_f64().context("lab tells no rate");
            let written = rate("write_megabytes_per_second")?;
            let line = |name, terms| Line { name, unit: Unit::MegabytesPerSecond, terms };
            run.report.record(&line(stream.written, TERMS), side, written);
            let read = rate("read_megabytes_per_second")?;
            run.report.record(&line(stream.read, COLD_TERMS), side, read);
            if fill == FILLS[0].0 {
                run.report.point(Curve::Written, side.words(), stream.duplicates as f64, written);
                run.report.point(Curve::Read, side.words(), stream.duplicates as f64, read);
            }
            match (side, stream.duplicates) {
                (Side::Hydrafs, 0) => run.report.record(&line(beside, TERMS), Side::NewContent, written),
                (Side::Hydrafs, 100) => run.report.record(&line(beside, TERMS), Side::Hydrafs, written),
                _ => {}
            }
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
