//! The same on a simulated disk that turns, by `lab batches`: the published table, re-made.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::super::report::{Asked, Places};
use super::super::{Line, Run, Side, Unit, store};
use crate::program::Program;
use crate::{text, tools};

const MEBIBYTES: u64 = 256;

pub(in super::super) fn turning(run: &mut Run<'_>) -> Result<()> {
    let mebibytes = run.scaled(MEBIBYTES).to_string();
    let lab = Program::new(tools::lab()?).args(["batches", "--mebibytes", &mebibytes]).limit(super::PATIENCE);
    for result in store::results(lab)? {
        let (side, line) = (side(&result)?, line(&result)?);
        run.report.record(&line, side, result["seconds"].as_f64().context("lab tells no time")?);
        if side == Side::Layout
            && let Some(seconds) = result["published_seconds"].as_f64()
        {
            run.report.record(&line, Side::Published, seconds);
        }
        run.report.asked(&line, side, asked(&result)?);
        if result["file_bytes"] == 4096 && result["order"] == "random" {
            let name = format!("a disk that turns, {} at random", result["operation"].as_str().unwrap_or_default());
            run.report.places(name, side, places(&result)?);
        }
    }
    Ok(())
}

fn side(result: &Value) -> Result<Side> {
    Ok(match result["side"].as_str() {
        Some("batch") => Side::Hydrafs,
        Some("one-by-one") => Side::HydrafsOneByOne,
        Some("ext4-layout") => Side::Layout,
        _ => bail!("lab said something else: {result}"),
    })
}

fn line(result: &Value) -> Result<Line> {
    let number = |field: &str| result[field].as_u64().with_context(|| format!("lab tells no {field}"));
    let (operation, order) = (result["operation"].as_str(), result["order"].as_str());
    let (operation, order) = operation.zip(order).context("lab tells not what it did")?;
    let order = if order == "random" { "at random" } else { order };
    let bytes = number("file_bytes")?;
    let (_, size) = super::SIZES.iter().find(|(known, _)| *known == bytes).context("lab tells of another size")?;
    let name = format!("{operation} files of {size} {order}");
    let terms =
        format!("{} files; simulated disk that turns; cold, the disk's time alone", text::count(number("files")?));
    Ok(Line { name: name.leak(), unit: Unit::Seconds, terms: terms.leak() })
}

fn asked(result: &Value) -> Result<Asked> {
    let number = |field: &str| result[field].as_u64().with_context(|| format!("lab tells no {field}"));
    Ok(Asked { requests: number("requests")?, bytes: number("bytes")?, seeks: Some(number("seeks")?), count: None })
}

fn places(result: &Value) -> Result<Places> {
    let points = result["seconds_and_mebibytes"].as_array().context("lab tells no places")?;
    points.iter().map(|point| point[0].as_f64().zip(point[1].as_f64()).context("a place has two numbers")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::Side;
    use super::{asked, line, places, side};

    #[test]
    fn lines_of_lab_are_read() {
        let result = json!({
            "side": "batch", "operation": "read", "order": "random", "file_bytes": 4096, "files": 16_384,
            "requests": 3, "bytes": 8192, "seeks": 2, "seconds_and_mebibytes": [[0.0, 1.5], [0.25, 7.0]],
        });
        assert_eq!(side(&result).ok(), Some(Side::Hydrafs));
        let line = line(&result).expect("whole");
        assert_eq!(line.name, "read files of 4 KiB at random");
        assert!(line.terms.starts_with("16,384 files"), "{}", line.terms);
        assert_eq!(places(&result).expect("whole"), [(0.0, 1.5), (0.25, 7.0)]);
        let asked = asked(&result).expect("whole");
        assert_eq!((asked.requests, asked.bytes, asked.seeks), (3, 8192, Some(2)));
        assert!(side(&json!({ "side": "another" })).is_err());
        assert!(super::asked(&json!({})).is_err());
    }
}
