//! The outcome: a table, a JSON file, a plot, and docs/bench.md.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::inputs::Inputs;
use super::{Line, Side, plot};
use crate::machine;
use crate::text::{Table, date, short};

/// Figures of one line, of each side that was measured; ours is the first.
#[derive(Debug)]
struct Figures {
    line: Line,
    values: Vec<(Side, Vec<f64>)>,
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
    /// Recovery times in milliseconds by MiB in the journal, for each amount stored.
    recoveries: Vec<(String, Vec<(f64, f64)>)>,
    /// Workloads that did not run, and why.
    missing: Vec<(&'static str, String)>,
}

impl Report {
    pub(super) fn new(runs: u32, is_quick: bool, disk: &Path, sides: String, inputs: &Inputs) -> Result<Report> {
        let mut machine = machine::description(disk);
        machine.push(("sides", sides));
        machine.push(("inputs", inputs.words.clone()));
        Ok(Report {
            runs,
            is_quick,
            date: date(),
            machine,
            figures: Vec::new(),
            recoveries: Vec::new(),
            missing: Vec::new(),
        })
    }

    pub(super) fn record(&mut self, line: &Line, side: Side, value: f64) {
        let is_it = |figures: &&mut Figures| figures.line.name == line.name && figures.line.terms == line.terms;
        let figures = match self.figures.iter_mut().find(is_it) {
            Some(figures) => figures,
            None => {
                self.figures.push(Figures { line: *line, values: Vec::new() });
                self.figures.last_mut().expect("just pushed")
            }
        };
        match figures.values.iter_mut().find(|(known, _)| *known == side) {
            Some((_, values)) => values.push(value),
            None => figures.values.push((side, vec![value])),
        }
        figures.values.sort_by_key(|(side, _)| *side);
    }

    /// A recovery: with so many MiB in the journal it took so many milliseconds.
    pub(super) fn point(&mut self, series: String, mebibytes: f64, milliseconds: f64) {
        match self.recoveries.iter_mut().find(|(known, _)| *known == series) {
            Some((_, points)) => points.push((mebibytes, milliseconds)),
            None => self.recoveries.push((series, vec![(mebibytes, milliseconds)])),
        }
    }

    /// One more line about what was measured.
    pub(super) fn describe(&mut self, name: &'static str, words: String) {
        self.machine.push((name, words));
    }

    /// A workload that cannot run here.
    pub(super) fn did_not_run(&mut self, name: &'static str, why: String) {
        self.missing.push((name, why));
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

    /// A table for each set of sides.
    pub(super) fn tables(&self) -> Vec<Table> {
        let mut tables: Vec<(Vec<Side>, Table)> = Vec::new();
        for figures in &self.figures {
            let sides: Vec<Side> = figures.values.iter().map(|(side, _)| *side).collect();
            let table = match tables.iter_mut().find(|(known, _)| *known == sides) {
                Some((_, table)) => table,
                None => {
                    let columns = sides.iter().map(|side| format!("{} (min-max)", side.words()));
                    let beside = sides.iter().skip(1).map(|side| format!("HydraFS beside {}", side.words()));
                    let headings = ["workload", "terms", "unit"].map(ToOwned::to_owned).into_iter().chain(columns);
                    let headings: Vec<String> = headings.chain(beside).collect();
                    tables.push((sides, Table::new(2, &headings.iter().map(String::as_str).collect::<Vec<_>>())));
                    &mut tables.last_mut().expect("just pushed").1
                }
            };
            let cells = [self.name(&figures.line), figures.line.terms.to_owned(), figures.line.unit.words().to_owned()];
            let spreads = figures.spreads().into_iter().map(|(_, spread, _)| spread.words());
            let ratios = figures.ratios().into_iter();
            let ratios = ratios.map(|(_, ratio)| format!("{} x as {}", short(ratio), figures.line.unit.praise()));
            table.row(cells.into_iter().chain(spreads).chain(ratios));
        }
        tables.into_iter().map(|(_, table)| table).collect()
    }

    /// Tables and what is missing from them, for the terminal.
    pub(super) fn text(&self) -> String {
        let tables: Vec<String> = self.tables().iter().map(Table::text).collect();
        format!("{}\n{}", tables.join("\n"), self.missing_lines())
    }

    fn missing_lines(&self) -> String {
        self.missing.iter().map(|(name, why)| format!("- did not run: {name}: {why}\n")).collect()
    }

    fn to_json(&self) -> Value {
        let lines = self.figures.iter().map(|figures| {
            let sides = figures.spreads().into_iter().map(|(side, spread, values)| {
                let words =
                    json!({ "median": spread.median, "min": spread.least, "max": spread.most, "values": values });
                (side.words().to_owned(), words)
            });
            let ratios = figures.ratios().into_iter().map(|(side, ratio)| (side.words().to_owned(), json!(ratio)));
            json!({
                "workload": self.name(&figures.line),
                "terms": figures.line.terms,
                "unit": figures.line.unit.words(),
                "more_is_better": figures.line.unit.is_more_better(),
                "sides": sides.collect::<serde_json::Map<String, Value>>(),
                "times_better_than": ratios.collect::<serde_json::Map<String, Value>>(),
            })
        });
        let machine: serde_json::Map<String, Value> =
            self.machine.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        json!({ "date": self.date, "runs": self.runs, "quick": self.is_quick, "machine": machine, "lines": lines.collect::<Vec<_>>(), "recovery_milliseconds_by_journal_mebibytes": self.recoveries, "did_not_run": self.missing })
    }

    fn plot(&self) -> String {
        let bars = self.figures.iter().flat_map(|figures| {
            let name = format!("{} ({})", self.name(&figures.line), figures.line.terms);
            figures.ratios().into_iter().map(move |(side, ratio)| {
                let beside = if side == Side::Ext4 { String::new() } else { format!(", beside {}", side.words()) };
                (format!("{name}{beside}"), ratio)
            })
        });
        plot::bars(
            "HydraFS beside ext4 or another on the same disk: times as fast, or as small",
            &bars.collect::<Vec<_>>(),
        )
    }

    /// The plot of recoveries, if there were any.
    fn plot_recoveries(&self) -> Option<String> {
        let title = "Time of a recovery by the length of the journal";
        let is_any = !self.recoveries.is_empty();
        is_any.then(|| plot::points(title, ("MiB in the journal", "milliseconds"), &self.recoveries))
    }

    /// Writes the JSON file and the plots.
    pub(super) fn save(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let quick = if self.is_quick { "-quick" } else { "" };
        let file = dir.join(format!("{}{quick}.json", self.date));
        fs::write(&file, serde_json::to_string_pretty(&self.to_json())? + "\n")?;
        fs::write(file.with_extension("svg"), self.plot())?;
        if let Some(plot) = self.plot_recoveries() {
            fs::write(file.with_extension("recovery.svg"), plot)?;
        }
        println!("wrote bench/results/{}{quick}.json and .svg", self.date);
        Ok(())
    }

    /// Writes docs/bench.md and its plots.
    pub(super) fn write_document(&self, project: &Path) -> Result<()> {
        let mut machine = Table::new(2, &["machine", ""]);
        self.machine.iter().for_each(|(name, value)| machine.row([(*name).to_owned(), value.clone()]));
        let mut recovery = "";
        if let Some(plot) = self.plot_recoveries() {
            fs::write(project.join("docs/recovery.svg"), plot)?;
            recovery = "\n![time of a recovery by the length of the journal](recovery.svg)\n";
        }
        let text = format!(
            "# How fast\n\n\
             Written by `cargo xtask bench --write-doc` on {}. Each figure is the median of {} runs, with the least and the most \
             beside it; all sides did the same work, by turns, on the same disk.\n\n{}\n\
             \"Synced at the end\": the time includes syncfs on ext4 and `hydrafs sync` here, so that everything is on the disk. \
             \"Cold\": HydraFS was mounted anew and the kernel's caches were dropped, on all sides.\n\n{}\n\
             {}\n![times as fast as ext4](bench.svg)\n{}",
            self.date.split('T').next().unwrap_or_default(),
            self.runs,
            machine.markdown(),
            self.tables().iter().map(Table::markdown).collect::<Vec<_>>().join("\n"),
            self.missing_lines(),
            recovery,
        );
        fs::create_dir_all(project.join("docs"))?;
        fs::write(project.join("docs/bench.md"), text)?;
        fs::write(project.join("docs/bench.svg"), self.plot())?;
        println!("wrote docs/bench.md and docs/bench.svg");
        Ok(())
    }
}

impl Figures {
    /// Each side with its spread and its values.
    fn spreads(&self) -> Vec<(Side, Spread, &[f64])> {
        self.values.iter().filter_map(|(side, values)| Some((*side, Spread::of(values)?, values.as_slice()))).collect()
    }

    /// How many times better ours is than each other side.
    fn ratios(&self) -> Vec<(Side, f64)> {
        let spreads = self.spreads();
        let Some((Side::Hydrafs, ours, _)) = spreads.first() else { return Vec::new() };
        let others = spreads.iter().skip(1);
        others.map(|(side, other, _)| (*side, self.times_better(*ours, *other))).collect()
    }

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
    use super::super::{Line, Side, Unit};
    use super::{Figures, Spread};

    #[test]
    fn medians_and_ratios() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, least: 1.0, most: 3.0 }));
        assert_eq!(Spread::of(&[1.0, 2.0]).map(|spread| spread.median), Some(1.5));
        assert_eq!(Spread::of(&[]), None);
        let ratio = |unit| {
            let values = vec![(Side::Hydrafs, vec![2.0]), (Side::Ext4, vec![8.0]), (Side::Restic, vec![2.0])];
            Figures { line: Line { name: "x", unit, terms: "" }, values }.ratios()
        };
        assert_eq!(ratio(Unit::Seconds), [(Side::Ext4, 4.0), (Side::Restic, 1.0)]);
        assert_eq!(ratio(Unit::PerSecond), [(Side::Ext4, 0.25), (Side::Restic, 1.0)]);
    }
}
