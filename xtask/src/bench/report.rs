//! The outcome: a table, a JSON file, a plot, and docs/bench.md.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::inputs::Inputs;
use super::{Line, Side, plot};
use crate::machine;
use crate::text::{Table, date, short};

/// Figures of one line.
#[derive(Debug)]
struct Figures {
    line: Line,
    ours: Vec<f64>,
    other: Vec<f64>,
}

/// Median, least and most.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

#[derive(Debug)]
pub(super) struct Report {
    runs: u32,
    is_quick: bool,
    date: String,
    machine: Vec<(&'static str, String)>,
    figures: Vec<Figures>,
}

impl Report {
    pub(super) fn new(runs: u32, is_quick: bool, disk: &Path, sides: String, inputs: &Inputs) -> Result<Report> {
        let mut machine = machine::description(disk);
        machine.push(("sides", sides));
        machine.push(("inputs", inputs.words.clone()));
        Ok(Report { runs, is_quick, date: date(), machine, figures: Vec::new() })
    }

    pub(super) fn record(&mut self, line: &Line, side: Side, value: f64) {
        let is_it = |figures: &&mut Figures| figures.line.name == line.name && figures.line.terms == line.terms;
        let figures = match self.figures.iter_mut().find(is_it) {
            Some(figures) => figures,
            None => {
                self.figures.push(Figures { line: *line, ours: Vec::new(), other: Vec::new() });
                self.figures.last_mut().expect("just pushed")
            }
        };
        match side {
            Side::Hydrafs => figures.ours.push(value),
            Side::Ext4 => figures.other.push(value),
        }
    }

    /// Names tell amounts; a quick run did a tenth of them.
    fn name(&self, line: &Line) -> String {
        if self.is_quick { format!("a tenth of: {}", line.name) } else { line.name.to_owned() }
    }

    pub(super) fn heading(&self) -> String {
        let lines: Vec<String> = self.machine.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        let quick = if self.is_quick { "\nQUICK: a tenth of the work; these figures are for trying only" } else { "" };
        format!("{}{quick}", lines.join("\n"))
    }

    pub(super) fn table(&self) -> Table {
        let mut table =
            Table::new(2, &["workload", "terms", "unit", "HydraFS (min-max)", "ext4 (min-max)", "HydraFS is"]);
        for figures in &self.figures {
            let Some((ours, other)) = figures.spreads() else { continue };
            let [terms, unit] = [figures.line.terms, figures.line.unit.words()].map(ToOwned::to_owned);
            let cells = [self.name(&figures.line), terms, unit];
            let ratio = figures.times_better(ours, other);
            table.row(cells.into_iter().chain([ours.words(), other.words(), format!("{} x as fast", short(ratio))]));
        }
        table
    }

    fn to_json(&self) -> Value {
        let spread = |spread: Spread, values: &[f64]| json!({ "median": spread.median, "min": spread.least, "max": spread.most, "values": values });
        let lines = self.figures.iter().filter_map(|figures| {
            let (ours, other) = figures.spreads()?;
            Some(json!({
                "workload": self.name(&figures.line),
                "terms": figures.line.terms,
                "unit": figures.line.unit.words(),
                "more_is_better": figures.line.unit.is_more_better(),
                "hydrafs": spread(ours, &figures.ours),
                "ext4": spread(other, &figures.other),
                "times_as_fast": figures.times_better(ours, other),
            }))
        });
        let machine: serde_json::Map<String, Value> =
            self.machine.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        json!({ "date": self.date, "runs": self.runs, "quick": self.is_quick, "machine": machine, "lines": lines.collect::<Vec<_>>() })
    }

    fn plot(&self) -> String {
        let bars = self.figures.iter().filter_map(|figures| {
            let (ours, other) = figures.spreads()?;
            Some((format!("{} ({})", self.name(&figures.line), figures.line.terms), figures.times_better(ours, other)))
        });
        plot::bars("HydraFS beside ext4 on the same disk: times as fast", &bars.collect::<Vec<_>>())
    }

    /// Writes the JSON file and the plot.
    pub(super) fn save(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let quick = if self.is_quick { "-quick" } else { "" };
        let file = dir.join(format!("{}{quick}.json", self.date));
        fs::write(&file, serde_json::to_string_pretty(&self.to_json())? + "\n")?;
        fs::write(file.with_extension("svg"), self.plot())?;
        println!("wrote bench/results/{}{quick}.json and .svg", self.date);
        Ok(())
    }

    /// Writes docs/bench.md and its plot.
    pub(super) fn write_document(&self, project: &Path) -> Result<()> {
        let mut machine = Table::new(2, &["machine", ""]);
        self.machine.iter().for_each(|(name, value)| machine.row([(*name).to_owned(), value.clone()]));
        let text = format!(
            "# How fast\n\n\
             Written by `cargo xtask bench --write-doc` on {}. Each figure is the median of {} runs, with the least and the most \
             beside it; both sides did the same work, by turns, on the same disk.\n\n{}\n\
             \"Synced at the end\": the time includes syncfs on ext4 and `hydrafs sync` here, so that everything is on the disk. \
             \"Cold\": HydraFS was mounted anew and the kernel's caches were dropped, on both sides.\n\n{}\n\
             ![times as fast as ext4](bench.svg)\n",
            self.date.split('T').next().unwrap_or_default(),
            self.runs,
            machine.markdown(),
            self.table().markdown(),
        );
        fs::create_dir_all(project.join("docs"))?;
        fs::write(project.join("docs/bench.md"), text)?;
        fs::write(project.join("docs/bench.svg"), self.plot())?;
        println!("wrote docs/bench.md and docs/bench.svg");
        Ok(())
    }
}

impl Figures {
    fn spreads(&self) -> Option<(Spread, Spread)> {
        Some((Spread::of(&self.ours)?, Spread::of(&self.other)?))
    }

    /// How many times as fast ours is.
    fn times_better(&self, ours: Spread, other: Spread) -> f64 {
        let (ours, other) = (ours.median.max(1e-9), other.median.max(1e-9));
        if self.line.unit.is_more_better() { ours / other } else { other / ours }
    }
}

impl Spread {
    fn of(values: &[f64]) -> Option<Spread> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Spread { median, least, most })
    }

    fn words(&self) -> String {
        format!("{} ({}-{})", short(self.median), short(self.least), short(self.most))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Line, Unit};
    use super::{Figures, Spread};

    #[test]
    fn medians_and_ratios() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, least: 1.0, most: 3.0 }));
        assert_eq!(Spread::of(&[1.0, 2.0]).map(|spread| spread.median), Some(1.5));
        assert_eq!(Spread::of(&[]), None);
        let ratio = |unit| {
            let figures = Figures { line: Line { name: "x", unit, terms: "" }, ours: vec![2.0], other: vec![8.0] };
            let (ours, other) = figures.spreads().expect("both measured");
            figures.times_better(ours, other)
        };
        assert_eq!(ratio(Unit::Seconds), 4.0);
        assert_eq!(ratio(Unit::PerSecond), 0.25);
    }
}
