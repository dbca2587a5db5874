//! `hydrafs fsck`: checks everything that a node stores, and repairs what can be repaired.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget};
use serde_json::{Value, json};

use super::{number, text};
use crate::control::wire::Request;
use crate::failure::Failure;
use crate::node_folder::NodeFolder;
use crate::start::Access;

/// Exit code when the check could not be made, to tell it from problems that it found.
const CANNOT_CHECK: u8 = 2;

/// Check everything that a node stores: files, directories, snapshots, packs, index, journal. Repairs only when told to.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs fsck ./node                        mounted or not\n  \
    hydrafs fsck --deep ./node                 read and verify every byte\n  \
    hydrafs fsck --deep --repair --dry-run ./node   say what a repair would do\n  \
    hydrafs fsck --deep --repair ./node        do it, and check again\n\n\
    A node that no daemon has open is opened for the check, as a mount opens it: what a crash left is brought into order.\n\
    What is lost is never replaced by zeroes or anything else: such files read as errors until a backup brings them back.\n\n\
    Exit code: 0 if all is well, or well after the repair; 1 if there are problems, or some are left; 2 if it could not be checked.")]
pub(super) struct Arguments {
    /// The node's folder.
    node: PathBuf,
    /// Read the content of every chunk too; takes as long as reading all packs.
    #[arg(long)]
    deep: bool,
    /// Print the plan of a repair, carry it out, and check again.
    #[arg(long)]
    repair: bool,
    /// Give up what cannot be read: frames of the journal and what follows them, names and inodes whose trees have rotted. The plan
    /// says what that is; without this option the rest is repaired. Not beside a daemon.
    #[arg(long, requires = "repair", conflicts_with = "dry_run")]
    accept_loss: bool,
    /// Check although disks are missing, if one that has the journal is there: tells which files need what lies there. Nothing is repaired then.
    #[arg(long, conflicts_with_all = ["repair", "accept_loss"])]
    degraded: bool,
    /// Only print the plan.
    #[arg(long, requires = "repair")]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let folder =
        NodeFolder::open(&arguments.node).map_err(|failure| failure.code(CANNOT_CHECK))?.degraded(arguments.degraded);
    let report = check(arguments, &folder).map_err(|failure| failure.code(CANNOT_CHECK))?;
    if arguments.json {
        super::say_json(&report);
    }
    let is_clean = report["clean"] == Value::Bool(true);
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Checks, repairs, and tells a person about it as it goes. Gives what was found last.
fn check(arguments: &Arguments, folder: &NodeFolder) -> Result<Value, Failure> {
    let say = |lines: Vec<String>| lines.iter().filter(|_| !arguments.json).for_each(super::say);
    let deep = arguments.deep;
    let access = Access::open(folder, arguments.accept_loss)?;
    if let Some(what) = &access.given_up {
        super::remark(&format!("given up: {what}"));
    }
    let ask = |request| {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let answer = access.ask(request, |progress| bar.set_message(progress.to_owned()));
        bar.finish_and_clear();
        answer
    };
    let work = || {
        let found = ask(Request::Fsck { deep })?;
        say(lines(&found));
        if !arguments.repair {
            return Ok(found);
        }
        if found["degraded"] == Value::Bool(true) {
            return Err(Failure::new(
                "cannot repair the node",
                "a disk is missing, and what seems to be lost may lie there",
            )
            .at(&folder.path)
            .mend("mount the disk again, `hydrafs restart`, and repair then; nothing was changed"));
        }
        say(plan(&found));
        if arguments.dry_run || list(&found, "plan").is_empty() {
            return Ok(found);
        }
        let mut left = ask(Request::Repair { deep, accept_loss: arguments.accept_loss })?;
        say(list(&left, "steps").iter().map(step).collect());
        say(vec!["after the repair:".to_owned()]);
        say(lines(&left));
        left["before"] = json!({ "problems": found["problems"], "plan": found["plan"] });
        Ok(left)
    };
    let mut report = work();
    if let (Ok(report), Some(what)) = (&mut report, &access.given_up) {
        report["given_up"] = json!(what);
    }
    let closed = access.close();
    report.and_then(|report| closed.map(|()| report))
}

fn list<'a>(report: &'a Value, name: &str) -> &'a [Value] {
    report[name].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn plan(report: &Value) -> Vec<String> {
    let plan = list(report, "plan");
    if plan.is_empty() {
        return vec!["there is nothing that a repair could do".to_owned()];
    }
    let steps = plan.iter().zip(1..).map(|(step, number)| format!("  {number}. {}", step.as_str().unwrap_or_default()));
    std::iter::once(format!("the plan, in {} steps:", plan.len())).chain(steps).collect()
}

fn step(step: &Value) -> String {
    let how = if step["done"] == Value::Bool(true) { "done" } else { "FAILED" };
    format!("{how}: {}: {}", text(step, "/remedy"), text(step, "/outcome"))
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
    let problems = list(report, "problems");
    for problem in problems {
        lines.push(format!(
            "{} {}: {} at {}; expected {}, found {}",
            text(problem, "/code"),
            text(problem, "/what"),
            text(problem, "/place"),
            number(problem, "/offset"),
            text(problem, "/expected"),
            text(problem, "/found")
        ));
        lines.push(match problem["remedy"].as_str() {
            Some(remedy) => format!("    repair: {remedy}"),
            None => format!("    no repair: {}", text(problem, "/advice")),
        });
    }
    if let further @ 1.. = number(report, "/further") {
        lines.push(format!("and {further} more of that kind"));
    }
    lines.push(match problems.len() {
        0 => "all is well".to_owned(),
        1 => "1 problem; docs/format.md says what its number means".to_owned(),
        count => format!("{count} problems; docs/format.md says what their numbers mean"),
    });
    lines
}
