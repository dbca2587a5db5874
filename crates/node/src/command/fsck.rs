//! `hydrafs fsck`: checks everything that a node stores.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget};
use serde_json::Value;

use super::{number, text};
use crate::control::wire::Request;
use crate::failure::Failure;
use crate::node_folder::NodeFolder;
use crate::start;

/// Exit code when the check could not be made, to tell it from problems that it found.
const CANNOT_CHECK: u8 = 2;

/// Check everything that a node stores: files, directories, snapshots, packs, index, journal. Repairs nothing.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs fsck ./node           mounted or not\n  \
    hydrafs fsck --deep ./node    read and verify every byte\n\n\
    Exit code: 0 if all is well, 1 if there are problems, 2 if it could not be checked.")]
pub(super) struct Arguments {
    /// The node's folder.
    node: PathBuf,
    /// Read the content of every chunk too; takes as long as reading all packs.
    #[arg(long)]
    deep: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let unchecked = |failure: Failure| failure.code(CANNOT_CHECK);
    let folder = NodeFolder::open(&arguments.node).map_err(unchecked)?;
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let request = Request::Fsck { deep: arguments.deep };
    let report = start::ask(&folder, request, |progress| bar.set_message(progress.to_owned()));
    bar.finish_and_clear();
    let report = report.map_err(unchecked)?;
    if arguments.json {
        super::say_json(&report);
    } else {
        lines(&report).iter().for_each(super::say);
    }
    let is_clean = report["clean"] == Value::Bool(true);
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn lines(report: &Value) -> Vec<String> {
    let mut lines = vec![format!(
        "checked {} files ({} directories, {} entries, {} extents), {} packs with {} chunks{}",
        number(report, "/files"),
        number(report, "/directories"),
        number(report, "/entries"),
        number(report, "/extents"),
        number(report, "/packs"),
        number(report, "/chunks"),
        if report["deep"] == Value::Bool(true) { ", every byte" } else { "" }
    )];
    let problems = report["problems"].as_array().map(Vec::as_slice).unwrap_or_default();
    for problem in problems {
        let mends = if problem["repairable"] == Value::Bool(true) { " (mends itself)" } else { "" };
        lines.push(format!(
            "{} {}: {} at {}; expected {}, found {}{mends}",
            text(problem, "/code"),
            text(problem, "/what"),
            text(problem, "/place"),
            number(problem, "/offset"),
            text(problem, "/expected"),
            text(problem, "/found")
        ));
    }
    lines.push(match problems.len() {
        0 => "all is well".to_owned(),
        1 => "1 problem; docs/format.md says what its number means".to_owned(),
        count => format!("{count} problems; docs/format.md says what their numbers mean"),
    });
    lines
}
