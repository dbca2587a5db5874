//! What was measured, in one run of the bench or in several: figures by line and side, kept as JSON. What it looks like is in [`document`](super::document).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

use super::device::Count;
use super::inputs::Inputs;
use super::{Line, Side, Unit, WORKLOADS};
use crate::{machine, text, tools};

/// Figures of one line, of each side that was measured; ours is the first.
#[derive(Debug)]
pub(super) struct Figures {
    /// The workload that it is of, as [`WORKLOADS`] calls it.
    pub(super) of: String,
    pub(super) name: String,
    pub(super) terms: String,
    pub(super) unit: Unit,
    pub(super) values: BySide<Vec<f64>>,
    /// What the device was asked for, in each run.
    pub(super) asked: BySide<Vec<Asked>>,
    /// Which of the report's sessions measured it.
    pub(super) session: usize,
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

pub(super) type BySide<T> = Vec<(Side, T)>;

/// Median, least and most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

/// One run of the bench.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Session {
    /// As a file's name: sorts by time.
    pub(super) date: String,
    /// Runs of each workload.
    pub(super) runs: u64,
    pub(super) is_quick: bool,
    /// What the machine and the inputs are, by name.
    pub(super) machine: Vec<(String, String)>,
}

/// What is plotted by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Curve {
    /// Recovery times in milliseconds by MiB in the journal, for each amount stored.
    Recovery,
    /// MB/s of streams written by percent of duplicates, for each side.
    Written,
    /// The same of streams read.
    Read,
}

impl Curve {
    pub(super) const ALL: [Curve; 3] = [Curve::Recovery, Curve::Written, Curve::Read];

    /// In the JSON file.
    fn key(self) -> &'static str {
        match self {
            Curve::Recovery => "recovery_milliseconds_by_journal_mebibytes",
            Curve::Written => "written_megabytes_per_second_by_percent_of_duplicates",
            Curve::Read => "read_megabytes_per_second_by_percent_of_duplicates",
        }
    }
}

#[derive(Debug)]
pub(super) struct Report {
    /// One, but for several that were put together.
    pub(super) sessions: Vec<Session>,
    pub(super) figures: Vec<Figures>,
    /// One figure by another, by series.
    pub(super) curves: Vec<((Curve, String), Places)>,
    /// Where the device was asked, by what was done and by side.
    pub(super) accesses: Vec<(String, BySide<Places>)>,
    /// Workloads that did not run, and why.
    pub(super) missing: Vec<(String, String)>,
    /// The workload that is measured now.
    workload: &'static str,
}

impl Report {
    pub(super) fn new(runs: u32, is_quick: bool, disk: &Path, sides: String, inputs: &Inputs) -> Result<Report> {
        let mut machine = machine::description(disk);
        machine.push(("sides", sides));
        machine.push(("inputs", inputs.words.clone()));
        machine.extend(code().map(|code| ("code", code)));
        let machine = machine.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let session = Session { date: text::date(), runs: runs.into(), is_quick, machine };
        Ok(Report::of(session))
    }

    fn of(session: Session) -> Report {
        Report {
            sessions: vec![session],
            figures: Vec::new(),
            curves: Vec::new(),
            accesses: Vec::new(),
            missing: Vec::new(),
            workload: "",
        }
    }

    /// What is recorded from now on is of this workload.
    pub(super) fn begin(&mut self, workload: &'static str) {
        self.workload = workload;
    }

    pub(super) fn record(&mut self, line: &Line, side: Side, value: f64) {
        let figures = self.figures_of(line);
        entry(&mut figures.values, &side).push(value);
        figures.values.sort_by_key(|(side, _)| *side);
    }

    /// What the device was asked for in a run.
    pub(super) fn asked(&mut self, line: &Line, side: Side, asked: Asked) {
        let figures = self.figures_of(line);
        entry(&mut figures.asked, &side).push(asked);
        figures.asked.sort_by_key(|(side, _)| *side);
    }

    fn figures_of(&mut self, line: &Line) -> &mut Figures {
        // Names tell amounts; a quick run did a tenth of them.
        let is_quick = self.sessions[0].is_quick;
        let name = if is_quick { format!("a tenth of: {}", line.name) } else { line.name.to_owned() };
        let is_it =
            |figures: &Figures| figures.name == name && figures.terms == line.terms && figures.unit == line.unit;
        let place = self.figures.iter().position(is_it).unwrap_or_else(|| {
            self.figures.push(Figures {
                of: self.workload.to_owned(),
                name,
                terms: line.terms.to_owned(),
                unit: line.unit,
                values: Vec::new(),
                asked: Vec::new(),
                session: 0,
            });
            self.figures.len() - 1
        });
        &mut self.figures[place]
    }

    /// A point of a curve.
    pub(super) fn point(&mut self, curve: Curve, series: &str, x: f64, y: f64) {
        entry(&mut self.curves, &(curve, series.to_owned())).push((x, y));
    }

    /// The series of a curve.
    pub(super) fn series(&self, curve: Curve) -> Vec<(String, Places)> {
        let of_it = self.curves.iter().filter(|((of, _), _)| *of == curve);
        of_it.map(|((_, series), points)| (series.clone(), points.clone())).collect()
    }

    /// Where the device was asked, one request after the other.
    pub(super) fn places(&mut self, what: String, side: Side, places: Places) {
        *entry(entry(&mut self.accesses, &what), &side) = places;
    }

    /// One more line about what was measured.
    pub(super) fn describe(&mut self, name: &str, words: String) {
        self.sessions[0].machine.push((name.to_owned(), words));
    }

    /// A workload that cannot run here.
    pub(super) fn did_not_run(&mut self, name: &str, why: String) {
        self.missing.push((name.to_owned(), why));
    }

    pub(super) fn heading(&self) -> String {
        let session = &self.sessions[0];
        let lines: Vec<String> = session.machine.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        let is_quick = session.is_quick;
        let quick = if is_quick { "\nQUICK: a tenth of the work; these figures are for trying only" } else { "" };
        format!("{}{quick}", lines.join("\n"))
    }

    /// All of several reports; of a workload that several measured what the newest has of it, whole.
    ///
    /// # Errors
    /// There is none, or a quick one.
    pub(super) fn together(mut reports: Vec<Report>) -> Result<Report> {
        reports.sort_by(|one, other| one.sessions[0].date.cmp(&other.sessions[0].date));
        let mut reports = reports.into_iter().rev();
        let mut all = reports.next().context("no results were named")?;
        for mut older in reports {
            let is_known = |of: &str| all.figures.iter().any(|figures| figures.of == of);
            let known: Vec<&str> =
                WORKLOADS.iter().map(|workload| workload.name).filter(|name| is_known(name)).collect();
            older.figures.retain(|figures| !known.contains(&figures.of.as_str()));
            if older.figures.is_empty() {
                continue;
            }
            let session = all.sessions.len();
            older.figures.iter_mut().for_each(|figures| figures.session = session);
            all.figures.append(&mut older.figures);
            all.sessions.append(&mut older.sessions);
            all.missing.append(&mut older.missing);
            // Points are of one workload each.
            add_new(&mut all.curves, older.curves);
            add_new(&mut all.accesses, older.accesses);
        }
        if all.sessions.iter().any(|session| session.is_quick) {
            bail!("a quick run did a tenth of the work: its figures go into no document");
        }
        let place = |of: &str| WORKLOADS.iter().position(|workload| workload.name == of);
        // Stable: lines of a workload stay as they were.
        all.figures.sort_by_key(|figures| place(&figures.of));
        let missing = std::mem::take(&mut all.missing);
        for workload in WORKLOADS.iter().filter(|workload| all.figures.iter().all(|of| of.of != workload.name)) {
            let why = missing.iter().find(|(name, _)| name == workload.name);
            all.missing.push((workload.name.to_owned(), why.map_or("in no run".to_owned(), |(_, why)| why.clone())));
        }
        Ok(all)
    }

    fn to_json(&self) -> Value {
        let session = &self.sessions[0];
        let lines = self.figures.iter().map(|figures| {
            let sides = figures.spreads().into_iter().map(|(side, spread, values)| {
                let words =
                    json!({ "median": spread.median, "min": spread.least, "max": spread.most, "values": values });
                (side.words().to_owned(), words)
            });
            let ratios = figures.ratios().into_iter().map(|(side, ratio)| (side.words().to_owned(), json!(ratio)));
            let asked = figures.asked.iter();
            let asked =
                asked.map(|(side, runs)| (side.words().to_owned(), runs.iter().map(|asked| asked.to_json()).collect()));
            json!({
                "of": figures.of,
                "workload": figures.name,
                "terms": figures.terms,
                "unit": figures.unit.words(),
                "more_is_better": figures.unit.is_more_better(),
                "sides": sides.collect::<Map<String, Value>>(),
                "times_better_than": ratios.collect::<Map<String, Value>>(),
                "device": asked.collect::<Map<String, Value>>(),
            })
        });
        let accesses: Vec<Value> = self
            .accesses
            .iter()
            .flat_map(|(what, sides)| sides.iter().map(move |(side, places)| (what, side, places)))
            .map(|(what, side, places)| json!({ "what": what, "side": side.words(), "points": places }))
            .collect();
        let curves = Curve::ALL.map(|curve| (curve.key().to_owned(), json!(self.series(curve))));
        json!({
            "date": session.date,
            "runs": session.runs,
            "quick": session.is_quick,
            "machine": session.machine,
            "lines": lines.collect::<Vec<_>>(),
            "curves": curves.into_iter().collect::<Map<String, Value>>(),
            "accesses_seconds_and_mebibytes": accesses,
            "did_not_run": self.missing,
        })
    }

    /// What [`Report::save`] wrote.
    ///
    /// # Errors
    /// It cannot be read, or is of another version of this program.
    pub(super) fn load(file: &Path) -> Result<Report> {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let value = serde_json::from_str(&text).with_context(|| format!("{} is no JSON", file.display()))?;
        let report = Report::from_json(&value);
        report.with_context(|| format!("{} is no result of this version of the bench", file.display()))
    }

    fn from_json(value: &Value) -> Option<Report> {
        let string = |value: &Value| value.as_str().map(ToOwned::to_owned);
        let pairs = |value: &Value| {
            let pair = |pair: &Value| Some((string(&pair[0])?, string(&pair[1])?));
            value.as_array()?.iter().map(pair).collect::<Option<Vec<_>>>()
        };
        let points = |value: &Value| {
            let point = |point: &Value| Some((point[0].as_f64()?, point[1].as_f64()?));
            value.as_array()?.iter().map(point).collect::<Option<Places>>()
        };
        let mut report = Report::of(Session {
            date: string(&value["date"])?,
            runs: value["runs"].as_u64()?,
            is_quick: value["quick"].as_bool()?,
            machine: pairs(&value["machine"])?,
        });
        for line in value["lines"].as_array()? {
            let mut figures = Figures {
                of: string(&line["of"])?,
                name: string(&line["workload"])?,
                terms: string(&line["terms"])?,
                unit: Unit::of_words(line["unit"].as_str()?)?,
                values: Vec::new(),
                asked: Vec::new(),
                session: 0,
            };
            for (side, spread) in line["sides"].as_object()? {
                let values = spread["values"].as_array()?.iter().map(Value::as_f64).collect::<Option<_>>()?;
                figures.values.push((Side::of_words(side)?, values));
            }
            for (side, runs) in line["device"].as_object()? {
                let asked = runs.as_array()?.iter().map(Asked::from_json).collect::<Option<_>>()?;
                figures.asked.push((Side::of_words(side)?, asked));
            }
            figures.values.sort_by_key(|(side, _)| *side);
            figures.asked.sort_by_key(|(side, _)| *side);
            report.figures.push(figures);
        }
        for curve in Curve::ALL {
            // Results before there were others have the one by its key alone.
            let of_it = value["curves"].get(curve.key()).unwrap_or(&value[curve.key()]);
            for series in of_it.as_array().into_iter().flatten() {
                report.curves.push(((curve, string(&series[0])?), points(&series[1])?));
            }
        }
        for places in value["accesses_seconds_and_mebibytes"].as_array()? {
            report.places(
                string(&places["what"])?,
                Side::of_words(places["side"].as_str()?)?,
                points(&places["points"])?,
            );
        }
        report.missing = pairs(&value["did_not_run"])?;
        Some(report)
    }

    /// Writes the JSON file; where it is.
    pub(super) fn save(&self, dir: &Path) -> Result<PathBuf> {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let Session { date, is_quick, .. } = &self.sessions[0];
        let file = dir.join(format!("{date}{}.json", if *is_quick { "-quick" } else { "" }));
        fs::write(&file, serde_json::to_string_pretty(&self.to_json())? + "\n")?;
        Ok(file)
    }
}

/// The commit that is measured, if git knows.
fn code() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(tools::project()).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=10", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changes.is_empty() { commit } else { format!("{commit}, and changes") })
}

impl Asked {
    pub(super) fn counted(count: Count, seeks: Option<u64>) -> Asked {
        let bytes = (count.sectors_read + count.sectors_written) * 512;
        Asked { requests: count.reads + count.writes, bytes, seeks, count: Some(count) }
    }

    /// `4,123 of 4.1 KiB, 4,120 seeks`.
    pub(super) fn words(&self) -> String {
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

    /// Without the kernel's own count, of which no table tells.
    fn from_json(value: &Value) -> Option<Asked> {
        let (requests, bytes) = (value["requests"].as_u64()?, value["bytes"].as_u64()?);
        Some(Asked { requests, bytes, seeks: value["seeks"].as_u64(), count: None })
    }
}

/// What is kept under a key; new if there is nothing yet.
pub(super) fn entry<'a, K: PartialEq + Clone, V: Default>(entries: &'a mut Vec<(K, V)>, key: &K) -> &'a mut V {
    let index = entries.iter().position(|(known, _)| known == key).unwrap_or_else(|| {
        entries.push((key.clone(), V::default()));
        entries.len() - 1
    });
    &mut entries[index].1
}

impl Figures {
    /// Each side with its spread and its values.
    pub(super) fn spreads(&self) -> Vec<(Side, Spread, &[f64])> {
        self.values.iter().filter_map(|(side, values)| Some((*side, Spread::of(values)?, values.as_slice()))).collect()
    }

    /// How many times better ours is than each other side.
    pub(super) fn ratios(&self) -> Vec<(Side, f64)> {
        let spreads = self.spreads();
        let Some((Side::Hydrafs, ours, _)) = spreads.first() else { return Vec::new() };
        let others = spreads.iter().filter(|(side, ..)| !side.is_ours());
        others.map(|(side, other, _)| (*side, self.times_better(*ours, *other))).collect()
    }

    fn times_better(&self, ours: Spread, other: Spread) -> f64 {
        let (ours, other) = (ours.median.max(1e-9), other.median.max(1e-9));
        if self.unit.is_more_better() { ours / other } else { other / ours }
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
}

/// What an older session has under names that no newer one has.
fn add_new<K: PartialEq + Clone, V>(all: &mut Vec<(K, V)>, older: Vec<(K, V)>) {
    let known: Vec<K> = all.iter().map(|(name, _)| name.clone()).collect();
    all.extend(older.into_iter().filter(|(name, _)| !known.contains(name)));
}

#[cfg(test)]
mod tests {
    use super::super::{Line, Side, Unit};
    use super::{Asked, Curve, Figures, Report, Session, Spread};

    fn figures(unit: Unit, values: Vec<(Side, Vec<f64>)>) -> Figures {
        let [of, name, terms] = ["untar", "x", ""].map(str::to_owned);
        Figures { of, name, terms, unit, values, asked: Vec::new(), session: 0 }
    }

    #[test]
    fn medians_and_ratios() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, least: 1.0, most: 3.0 }));
        assert_eq!(Spread::of(&[1.0, 2.0]).map(|spread| spread.median), Some(1.5));
        assert_eq!(Spread::of(&[]), None);
        let ratio = |unit| {
            let values = vec![(Side::Hydrafs, vec![2.0]), (Side::Ext4, vec![8.0]), (Side::Restic, vec![2.0])];
            figures(unit, values).ratios()
        };
        assert_eq!(ratio(Unit::Seconds), [(Side::Ext4, 4.0), (Side::Restic, 1.0)]);
        assert_eq!(ratio(Unit::PerSecond), [(Side::Ext4, 0.25), (Side::Restic, 1.0)]);
    }

    fn report(date: &str, is_quick: bool) -> Report {
        let machine = vec![("memory".to_owned(), "1 GiB".to_owned())];
        Report::of(Session { date: date.to_owned(), runs: 3, is_quick, machine })
    }

    const LINE: Line = Line { name: "a line", unit: Unit::Milliseconds, terms: "cold" };

    fn measured(date: &str, workload: &'static str, value: f64) -> Report {
        let mut report = report(date, false);
        report.begin(workload);
        report.record(&Line { name: workload, ..LINE }, Side::Hydrafs, value);
        report
    }

    #[test]
    fn json_tells_all_that_a_document_does() {
        let mut report = measured("2026-01-01", "untar", 2.5);
        for side in Side::ALL.into_iter().rev() {
            report.record(&LINE, side, 1.0);
        }
        report.asked(&LINE, Side::Ext4, Asked { requests: 7, bytes: 4096, seeks: Some(3), count: None });
        report.point(Curve::Recovery, "1 GiB", 2.0, 30.0);
        report.point(Curve::Written, "HydraFS", 25.0, 900.0);
        report.places("reading".to_owned(), Side::Ext4, vec![(0.5, 1.0), (0.75, 2.0)]);
        report.did_not_run("memory", "no time".to_owned());
        let json = report.to_json();
        let read = Report::from_json(&json).expect("it was written by this program");
        assert_eq!(format!("{:?}", Report { workload: "untar", ..read }), format!("{report:?}"));
        let mut other = json.clone();
        other["lines"][0]["unit"] = "parsecs".into();
        assert!(Report::from_json(&other).is_none());
    }

    #[test]
    fn the_newest_figures_of_each_workload_are_told() {
        let mut newest = measured("2026-01-03", "git clone", 3.0);
        newest.did_not_run("untar", "left out of this run".to_owned());
        let both = || {
            let mut older = measured("2026-01-02", "untar", 2.0);
            older.begin("git clone");
            older.record(&Line { name: "git clone", ..LINE }, Side::Hydrafs, 9.0);
            older
        };
        let oldest = measured("2026-01-01", "untar", 1.0);
        let all = Report::together(vec![oldest, both(), newest]).expect("none is quick");
        let told: Vec<_> =
            all.figures.iter().map(|line| (line.of.as_str(), line.values[0].1[0], line.session)).collect();
        assert_eq!(told, [("untar", 2.0, 1), ("git clone", 3.0, 0)], "in the bench's order");
        assert_eq!(
            all.sessions.iter().map(|session| session.date.as_str()).collect::<Vec<_>>(),
            ["2026-01-03", "2026-01-02"]
        );
        let missing = |name: &str| all.missing.iter().any(|(missing, _)| missing == name);
        assert!(!missing("untar") && !missing("git clone") && missing("memory"));
        assert!(Report::together(vec![both(), report("2026-01-04", true)]).is_err());
        assert!(Report::together(Vec::new()).is_err());
    }
}
