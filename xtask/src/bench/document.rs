//! What a report looks like: tables and plots, for the terminal, beside the results, and as docs/bench.md.
//!
//! Each line stands beside others of its own session alone; where there are several, each says of which it is. A plot or a section of which nothing
//! was measured is left out, and what did not run is named.
//!
//! Not here: the figures, and which session's count ([`report`](super::report)).

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::report::{Asked, Curve, Places, Report, Spread, entry};
use super::{Side, plot};
use crate::text::{Table, short};

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

/// Points of a panel at most: more cannot be told apart.
const POINTS_MAX: usize = 800;

/// Tables and what is missing from them, for the terminal.
pub(super) fn text(report: &Report) -> String {
    let tables: Vec<String> = tables(report).iter().chain(&asked_tables(report)).map(Table::text).collect();
    format!("{}\n{}", tables.join("\n"), missing_lines(report))
}

/// Writes the plots beside the results' JSON file.
pub(super) fn save_plots(report: &Report, file: &Path) -> Result<()> {
    let plots = [("svg", Some(plot_ratios(report))), ("accesses.svg", plot_accesses(report))];
    let curves = Curve::ALL.map(|curve| (curve.look().file, plot_curve(report, curve)));
    for (suffix, plot) in plots.into_iter().chain(curves).filter_map(|(suffix, plot)| Some((suffix, plot?))) {
        fs::write(file.with_extension(suffix), plot).with_context(|| format!("cannot write {suffix}"))?;
    }
    Ok(())
}

/// Writes docs/bench.md and its plots.
pub(super) fn write(report: &Report, project: &Path) -> Result<()> {
    let mut curves = String::new();
    for curve in Curve::ALL {
        let Look { file, title, .. } = curve.look();
        if let Some(plot) = plot_curve(report, curve) {
            fs::write(project.join("docs").join(file), plot)?;
            curves += &format!("\n![{title}]({file})\n");
        }
    }
    let text = format!(
        "# How fast\n\n\
         Written by `cargo xtask bench --document`. Each figure is the median of as many runs as its session made of each workload, with the least \
         and the most beside it; all sides did the same work, by turns, on the same disk, in the same session.\n\n{}\n{}\n\
         \"Synced at the end\": the time includes syncfs on ext4 and `hydrafs sync` here, so that everything is on the disk. \
         \"Cold\": HydraFS was mounted anew and the kernel's caches were dropped, on all sides.\n\n{}\n\
         {}\n![times as fast as ext4](bench.svg)\n{}{}",
        sessions_table(report).markdown(),
        machine_table(report).markdown(),
        tables(report).iter().map(Table::markdown).collect::<Vec<_>>().join("\n"),
        missing_lines(report),
        curves,
        asked_words(report, project)?,
    );
    fs::create_dir_all(project.join("docs"))?;
    fs::write(project.join("docs/bench.md"), text)?;
    fs::write(project.join("docs/bench.svg"), plot_ratios(report))?;
    println!("wrote docs/bench.md and docs/bench.svg");
    Ok(())
}

/// What is told of each session by itself.
const OF_A_SESSION: [&str; 2] = ["code", "load average at the start"];

/// When each session was, and of what code.
fn sessions_table(report: &Report) -> Table {
    let headings: Vec<&str> = ["session", "date", "runs of each"].into_iter().chain(OF_A_SESSION).collect();
    let mut table = Table::new(2, &headings);
    for (number, session) in report.sessions.iter().enumerate() {
        let date = session.date.split('T').next().unwrap_or_default().to_owned();
        let told = OF_A_SESSION.map(|name| {
            let told = session.machine.iter().find(|(known, _)| known == name);
            told.map(|(_, value)| value.clone()).unwrap_or_default()
        });
        table.row([(number + 1).to_string(), date, session.runs.to_string()].into_iter().chain(told));
    }
    table
}

/// What machine it was: what differs between sessions is told of each, by its number.
fn machine_table(report: &Report) -> Table {
    let told = report.sessions.iter().flat_map(|session| &session.machine).map(|(name, _)| name.as_str());
    let mut names: Vec<&str> = Vec::new();
    for name in told.filter(|name| !OF_A_SESSION.contains(name)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let mut table = Table::new(2, &["machine", ""]);
    for name in names {
        let mut values: Vec<(&str, Vec<String>)> = Vec::new();
        for (number, session) in report.sessions.iter().enumerate() {
            for (_, value) in session.machine.iter().filter(|(known, _)| known == name) {
                entry(&mut values, &value.as_str()).push((number + 1).to_string());
            }
        }
        let words: Vec<String> = match values.as_slice() {
            [(value, _)] => vec![(*value).to_owned()],
            several => several.iter().map(|(value, sessions)| format!("{}: {value}", sessions.join(", "))).collect(),
        };
        table.row([name.to_owned(), words.join("; ")]);
    }
    table
}

/// A table for each set of sides.
fn tables(report: &Report) -> Vec<Table> {
    let are_several = report.sessions.len() > 1;
    let mut tables: Vec<(Vec<Side>, Table)> = Vec::new();
    for figures in &report.figures {
        let sides: Vec<Side> = figures.values.iter().map(|(side, _)| *side).collect();
        let table = table_of(&mut tables, &sides, || {
            let columns = sides.iter().map(|side| format!("{} (min-max)", side.words()));
            let beside = sides.iter().skip(1).filter(|side| !side.is_ours());
            let beside = beside.map(|side| format!("HydraFS beside {}", side.words()));
            let headings = ["workload", "terms", "unit"].map(ToOwned::to_owned).into_iter().chain(columns);
            headings.chain(beside).chain(are_several.then(|| "session".to_owned())).collect()
        });
        let cells = [figures.name.clone(), figures.terms.clone(), figures.unit.words().to_owned()];
        let spreads = figures.spreads().into_iter().map(|(_, spread, _)| words(spread));
        let ratios = figures.ratios().into_iter();
        let ratios = ratios.map(|(_, ratio)| format!("{} x as {}", short(ratio), figures.unit.praise()));
        let session = are_several.then(|| (figures.session + 1).to_string());
        table.row(cells.into_iter().chain(spreads).chain(ratios).chain(session));
    }
    tables.into_iter().map(|(_, table)| table).collect()
}

/// Requests to the device and their size, a table for each set of sides; the last run of each.
fn asked_tables(report: &Report) -> Vec<Table> {
    let mut tables: Vec<(Vec<Side>, Table)> = Vec::new();
    for figures in report.figures.iter().filter(|figures| !figures.asked.is_empty()) {
        let sides: Vec<Side> = figures.asked.iter().map(|(side, _)| *side).collect();
        let cells = figures.asked.iter().map(|(_, runs)| runs.last().map(Asked::words).unwrap_or_default());
        let row = [figures.name.clone(), figures.terms.clone()].into_iter().chain(cells);
        let headings = sides.iter().map(|side| side.words());
        let table = table_of(&mut tables, &sides, || {
            ["requests to the device", "terms"].into_iter().chain(headings).map(ToOwned::to_owned).collect()
        });
        table.row(row);
    }
    tables.into_iter().map(|(_, table)| table).collect()
}

/// The table for a set of sides; new, with these headings, if there is none yet.
fn table_of<'a>(
    tables: &'a mut Vec<(Vec<Side>, Table)>,
    sides: &[Side],
    headings: impl FnOnce() -> Vec<String>,
) -> &'a mut Table {
    let place = tables.iter().position(|(known, _)| known == sides).unwrap_or_else(|| {
        let headings = headings();
        let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
        tables.push((sides.to_vec(), Table::new(2, &headings)));
        tables.len() - 1
    });
    &mut tables[place].1
}

fn missing_lines(report: &Report) -> String {
    report.missing.iter().map(|(name, why)| format!("- did not run: {name}: {why}\n")).collect()
}

fn plot_ratios(report: &Report) -> String {
    let bars = report.figures.iter().flat_map(|figures| {
        let name = format!("{} ({})", figures.name, figures.terms);
        figures.ratios().into_iter().map(move |(side, ratio)| {
            let beside = if side == Side::Ext4 { String::new() } else { format!(", beside {}", side.words()) };
            (format!("{name}{beside}"), ratio)
        })
    });
    plot::bars("HydraFS beside ext4 or another on the same disk: times as fast, or as small", &bars.collect::<Vec<_>>())
}

/// How a curve is shown.
struct Look {
    file: &'static str,
    title: &'static str,
    axes: (&'static str, &'static str),
}

impl Curve {
    fn look(self) -> Look {
        let duplicates = ("percent of duplicates", "MB/s");
        match self {
            Curve::Recovery => Look {
                file: "recovery.svg",
                title: "Time of a recovery by the length of the journal",
                axes: ("MiB in the journal", "milliseconds"),
            },
            Curve::Written => {
                Look { file: "written.svg", title: "Streams written, by their share of duplicates", axes: duplicates }
            }
            Curve::Read => {
                Look { file: "read.svg", title: "Streams read, by their share of duplicates", axes: duplicates }
            }
        }
    }
}

/// The plot of a curve, if there are points of it.
fn plot_curve(report: &Report, curve: Curve) -> Option<String> {
    let (series, Look { title, axes, .. }) = (report.series(curve), curve.look());
    (!series.is_empty()).then(|| plot::points(title, axes, &series))
}

/// Where the device was asked, one by one on ext4 and by our batches, if it was looked at.
fn plot_accesses(report: &Report) -> Option<String> {
    let panels = report.accesses.iter().flat_map(|(what, sides)| {
        let mut sorted: Vec<_> = sides.iter().collect();
        sorted.sort_by_key(|(side, _)| std::cmp::Reverse(*side));
        let wanted = sorted.into_iter().filter(|(side, _)| matches!(side, Side::Ext4 | Side::Layout | Side::Hydrafs));
        wanted.map(move |(side, places)| (format!("{what}: {}", side.words()), thinned(places)))
    });
    let panels: Vec<(String, Places)> = panels.collect();
    let title = "Requests to the device: files of 4 KiB, before (one by one on ext4) and after (a batch)";
    (!panels.is_empty()).then(|| plot::panels(title, ("seconds", "MiB of the device"), &panels))
}

/// How batches were measured, what the devices were asked for, and where; nothing if no batch was measured.
fn asked_words(report: &Report, project: &Path) -> Result<String> {
    let tables = asked_tables(report);
    if tables.is_empty() {
        return Ok(String::new());
    }
    let mut plot = "";
    if let Some(accesses) = plot_accesses(report) {
        fs::write(project.join("docs/accesses.svg"), accesses)?;
        plot = "\n![where the device was asked, over time](accesses.svg)\n";
    }
    let tables: Vec<String> = tables.iter().map(Table::markdown).collect();
    Ok(format!("\n{ASKED}\n{}{plot}", tables.join("\n")))
}

/// Every so-manyth point.
fn thinned(places: &Places) -> Places {
    places.iter().step_by(places.len().div_ceil(POINTS_MAX).max(1)).copied().collect()
}

fn words(spread: Spread) -> String {
    format!("{} ({}-{})", short(spread.median), short(spread.least), short(spread.most))
}
