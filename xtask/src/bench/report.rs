//! The outcome: a table, a JSON file, a plot, and docs/bench.md.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::device::Count;
use super::inputs::Inputs;
use super::{Line, Side, plot};
use crate::machine;
use crate::text::{self, Table, date, short};

/// Figures of one line, of each side that was measured; ours is the first.
#[derive(Debug)]
struct Figures {
    line: Line,
    values: Vec<(Side, Vec<f64>)>,
}

/// What a device was asked for in the measured time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// Reads and writes.
    pub(super) requests: u64,
    pub(super) bytes: u64,
    /// Requests that did not begin where the one before ended, where each was looked at.
    pub(super) seeks: Option<u64>,
    /// The kernel's count, if it was a device of the kernel's.
    pub(super) count: Option<Count>,
}

/// Seconds and mebibytes from the beginning of the device, of each request.
pub(super) type Places = Vec<(f64, f64)>;

type BySide<T> = Vec<(Side, T)>;

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
    /// What the device was asked for, by line and side, in each run.
    asked: Vec<(Line, BySide<Vec<Asked>>)>,
    /// Where the device was asked, by what was done and by side.
    accesses: Vec<(String, BySide<Places>)>,
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
            asked: Vec::new(),
            accesses: Vec::new(),
            missing: Vec::new(),
        })
    }

    pub(super) fn record(&mut self, line: &Line, side: Side, value: f64) {
        let figures = match self.figures.iter_mut().find(|figures| figures.line == *line) {
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

    /// What the device was asked for in a run.
    pub(super) fn asked(&mut self, line: &Line, side: Side, asked: Asked) {
        let sides = entry(&mut self.asked, line);
        entry(sides, &side).push(asked);
        sides.sort_by_key(|(side, _)| *side);
    }

    /// Where the device was asked, one request after the other.
    pub(super) fn places(&mut self, what: String, side: Side, places: Places) {
        *entry(entry(&mut self.accesses, &what), &side) = places;
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
                    let beside = sides.iter().skip(1).filter(|side| !side.is_ours());
                    let beside = beside.map(|side| format!("HydraFS beside {}", side.words()));
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

    /// Requests to the device and their size, a table for each set of sides; the last run of each.
    fn asked_tables(&self) -> Vec<Table> {
        let mut tables: Vec<(Vec<Side>, Table)> = Vec::new();
        for (line, sides) in &self.asked {
            let columns: Vec<Side> = sides.iter().map(|(side, _)| *side).collect();
            let cells = sides.iter().map(|(_, runs)| runs.last().map(Asked::words).unwrap_or_default());
            let row = [self.name(line), line.terms.to_owned()].into_iter().chain(cells);
            let table = match tables.iter_mut().find(|(known, _)| *known == columns) {
                Some((_, table)) => table,
                None => {
                    let headings = columns.iter().map(|side| side.words());
                    let headings: Vec<&str> = ["requests to the device", "terms"].into_iter().chain(headings).collect();
                    tables.push((columns, Table::new(2, &headings)));
                    &mut tables.last_mut().expect("just pushed").1
                }
            };
            table.row(row);
        }
        tables.into_iter().map(|(_, table)| table).collect()
    }

    /// Tables and what is missing from them, for the terminal.
    pub(super) fn text(&self) -> String {
        let tables: Vec<String> = self.tables().iter().chain(&self.asked_tables()).map(Table::text).collect();
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
            let asked = self.asked.iter().find(|(line, _)| *line == figures.line);
            let asked = asked.into_iter().flat_map(|(_, sides)| sides);
            let asked =
                asked.map(|(side, runs)| (side.words().to_owned(), runs.iter().map(|asked| asked.to_json()).collect()));
            json!({
                "workload": self.name(&figures.line),
                "terms": figures.line.terms,
                "unit": figures.line.unit.words(),
                "more_is_better": figures.line.unit.is_more_better(),
                "sides": sides.collect::<serde_json::Map<String, Value>>(),
                "times_better_than": ratios.collect::<serde_json::Map<String, Value>>(),
                "device": asked.collect::<serde_json::Map<String, Value>>(),
            })
        });
        let machine: serde_json::Map<String, Value> =
            self.machine.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let accesses: Vec<Value> = self
            .accesses
            .iter()
            .flat_map(|(what, sides)| sides.iter().map(move |(side, places)| (what, side, places)))
            .map(|(what, side, places)| json!({ "what": what, "side": side.words(), "points": places }))
            .collect();
        json!({ "date": self.date, "runs": self.runs, "quick": self.is_quick, "machine": machine, "lines": lines.collect::<Vec<_>>(), "recovery_milliseconds_by_journal_mebibytes": self.recoveries, "accesses_seconds_and_mebibytes": accesses, "did_not_run": self.missing })
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

    /// Where the device was asked, one by one on ext4 and by our batches, if it was looked at.
    fn plot_accesses(&self) -> Option<String> {
        let panels = self.accesses.iter().flat_map(|(what, sides)| {
            let mut sorted: Vec<_> = sides.iter().collect();
            sorted.sort_by_key(|(side, _)| std::cmp::Reverse(*side));
            let wanted =
                sorted.into_iter().filter(|(side, _)| matches!(side, Side::Ext4 | Side::Layout | Side::Hydrafs));
            wanted.map(move |(side, places)| (format!("{what}: {}", side.words()), thinned(places)))
        });
        let panels: Vec<(String, Places)> = panels.collect();
        let title = "Requests to the device: files of 4 KiB, before (one by one on ext4) and after (a batch)";
        (!panels.is_empty()).then(|| plot::panels(title, ("seconds", "MiB of the device"), &panels))
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
        if let Some(plot) = self.plot_accesses() {
            fs::write(file.with_extension("accesses.svg"), plot)?;
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
        let asked = self.asked_words(project)?;
        let text = format!(
            "# How fast\n\n\
             Written by `cargo xtask bench --write-doc` on {}. Each figure is the median of {} runs, with the least and the most \
             beside it; all sides did the same work, by turns, on the same disk.\n\n{}\n\
             \"Synced at the end\": the time includes syncfs on ext4 and `hydrafs sync` here, so that everything is on the disk. \
             \"Cold\": HydraFS was mounted anew and the kernel's caches were dropped, on all sides.\n\n{}\n\
             {}\n![times as fast as ext4](bench.svg)\n{}{}",
            self.date.split('T').next().unwrap_or_default(),
            self.runs,
            machine.markdown(),
            self.tables().iter().map(Table::markdown).collect::<Vec<_>>().join("\n"),
            self.missing_lines(),
            recovery,
            asked,
        );
        fs::create_dir_all(project.join("docs"))?;
        fs::write(project.join("docs/bench.md"), text)?;
        fs::write(project.join("docs/bench.svg"), self.plot())?;
        println!("wrote docs/bench.md and docs/bench.svg");
        Ok(())
    }

    /// How batches were measured, what the devices were asked for, and where; nothing if no batch was measured.
    fn asked_words(&self, project: &Path) -> Result<String> {
        let tables = self.asked_tables();
        if tables.is_empty() {
            return Ok(String::new());
        }
        let mut plot = "";
        if let Some(accesses) = self.plot_accesses() {
            fs::write(project.join("docs/accesses.svg"), accesses)?;
            plot = "\n![where the device was asked, over time](accesses.svg)\n";
        }
        let tables: Vec<String> = tables.iter().map(Table::markdown).collect();
        Ok(format!("\n{ASKED}\n{}{plot}", tables.join("\n")))
    }
}

const ASKED: &str = "## Masses of small files\n\n\
    Sets of equal total size, of files of one size with random content, 200 to a directory. \"HydraFS\" and \"hydrafs tar\" are batches, \
    `hydrafs cp` and `hydrafs tar`; \"ext4\" and \"HydraFS one by one\" open, read or write, and close one file after the other, in the order \
    that the line names. Tools and batches get a set that was created one by one in that order. Overwriting is in place where it is one by \
    one, and as each tool does it elsewhere. What tools write comes from memory, and what they read goes there.\n\n\
    The devices: this machine's disk, and two pairs of loop devices on it that do no more than so many reads and as many writes a \
    second, whoever asks. The upper device of a pair merges what file systems submit, with the scheduler of hard disks, and each request that \
    comes out of it, of 512 KiB at most, is one for the lower one, which has the limit (cgroup v1, blkio.throttle, of the root group). It works in \
    slices of 0.1 s, so times of less than half a second say little there. The pair does \
    not know that a request which begins where the last one ended needs no seek. The simulated disk does: 7200 turns a minute, the arm's time by \
    the distance, one turn to wait for what has passed (crates/platform/src/sim/platter.rs). There our layers below the kernel are measured, \
    beside the requests that files need as ext4 lays them out, and what was published of ext4 on one such disk (Yang et al., MSST 2019, of 4 GiB, \
    told for as many bytes); theirs of writing are of files that are there. The time there is the disk's alone.\n\n\
    The devices' own counters, of the last run: requests, reads and writes together, with their average size; and seeks, where each \
    request was looked at (tracepoint block_rq_issue): requests that did not begin where the one before ended. This machine's \
    disk counts what neighbours ask, too.\n";

impl Asked {
    pub(super) fn counted(count: Count, seeks: Option<u64>) -> Asked {
        let bytes = (count.sectors_read + count.sectors_written) * 512;
        Asked { requests: count.reads + count.writes, bytes, seeks, count: Some(count) }
    }

    /// `4,123 of 4.1 KiB, 4,120 seeks`.
    fn words(&self) -> String {
        let size = self.bytes.checked_div(self.requests).map(text::bytes);
        let size = size.map(|size| format!(" of {size}")).unwrap_or_default();
        let seeks = self.seeks.map(|seeks| format!(", {} seeks", text::count(seeks))).unwrap_or_default();
        format!("{}{size}{seeks}", text::count(self.requests))
    }

    fn to_json(self) -> Value {
        let count = self.count.map(|count| {
            json!({
                "reads": count.reads, "reads_merged": count.reads_merged, "bytes_read": count.sectors_read * 512,
                "writes": count.writes, "writes_merged": count.writes_merged, "bytes_written": count.sectors_written * 512,
                "flushes": count.flushes,
            })
        });
        json!({ "requests": self.requests, "bytes": self.bytes, "seeks": self.seeks, "counters": count })
    }
}

/// What is kept under a key; new if there is nothing yet.
fn entry<'a, K: PartialEq + Clone, V: Default>(entries: &'a mut Vec<(K, V)>, key: &K) -> &'a mut V {
    let index = entries.iter().position(|(known, _)| known == key).unwrap_or_else(|| {
        entries.push((key.clone(), V::default()));
        entries.len() - 1
    });
    &mut entries[index].1
}

/// Points of a panel at most: more cannot be told apart.
const POINTS_MAX: usize = 800;

/// Every so-manyth point.
fn thinned(places: &Places) -> Places {
    places.iter().step_by(places.len().div_ceil(POINTS_MAX).max(1)).copied().collect()
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
        let others = spreads.iter().filter(|(side, ..)| !side.is_ours());
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
