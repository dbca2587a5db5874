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
/// Rounds of a repair; four are many. A daemon from before an upgrade goes through all of them at once, and plans what failed again and again.
const ROUNDS_MAX: usize = 16;

/// Check everything that a node stores: files, directories, snapshots, packs, index, journal. Repairs only when told to.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs fsck ./node                        mounted or not\n  \
    hydrafs fsck --deep ./node                 read and verify every byte\n  \
    hydrafs fsck --deep --repair --dry-run ./node   say what a repair would do\n  \
    hydrafs fsck --deep --repair ./node        do it, and check again\n\n\
    A repair goes on while a check after it proposes something new; each plan is shown before it is carried out.\n\
    A node that no daemon has open is opened for the check, as a mount opens it: what a crash left is brought into order, and\n\
    damaged superblocks, identities and the index are written again, which is told on standard error (`mended` of the JSON).\n\
    What is lost is never replaced by zeroes or anything else: such files read as errors until a backup brings them back.\n\n\
    Exit code: 0 if all is well, or well after the repair; 1 if there are problems, or some are left; 2 if it could not be checked.")]
pub(super) struct Arguments {
    /// The node's folder.
    node: PathBuf,
    /// Read the content of every chunk too; takes as long as reading all packs.
    #[arg(long)]
    deep: bool,
    /// Print the plan of a repair, carry it out, check again, and go on while there is something new to do.
    #[arg(long)]
    repair: bool,
    /// Give up what cannot be read: frames of the journal and what follows them, names and inodes whose trees have rotted. The plan
    /// says what that is; without this option the rest is repaired. Not beside a daemon. With --dry-run nothing is given up.
    #[arg(long, requires = "repair")]
    accept_loss: bool,
    /// Check although disks are missing, if one that has the journal is there: tells which files need what lies there. Nothing is repaired then;
    /// but where the journal is gone for good, --repair --accept-loss goes on from the last commit.
    #[arg(long)]
    degraded: bool,
    /// Only print the plan, of the first round. A node that cannot be opened without giving something up is not opened: the error says what that is.
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
    let plan_of_opening = |lost: &str| {
        super::remark(&format!(
            "the plan, before the check: open the node without what is lost of its journal: {lost}"
        ));
    };
    let gives_up: Option<&dyn Fn(&str)> = match arguments.accept_loss && !arguments.dry_run {
        true => Some(&plan_of_opening),
        false => None,
    };
    let access = Access::open(folder, gives_up)?;
    if let Some(what) = &access.given_up {
        super::remark(&format!("given up: {what}"));
    }
    let ask = |request| {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let answer = access.ask(request, |progress| bar.set_message(progress.to_owned()));
        bar.finish_and_clear();
        answer
    };
    // While a disk is missing a repair gives up what the journal had, and that is all.
    let repairs = arguments.repair && !(arguments.degraded && access.given_up.is_some());
    let mut report = rounds(&Arguments { repair: repairs, node: folder.path.clone(), ..*arguments }, ask, say);
    if let Ok(report) = &mut report {
        report["mended"] = json!(access.mended);
        if let Some(what) = &access.given_up {
            report["given_up"] = json!(what);
        }
    }
    let closed = access.close();
    report.and_then(|report| closed.map(|()| report))
}

/// Checks, and as long as a repair is wanted and there is a plan: shows it, has it carried out, and shows what came of it.
fn rounds(
    arguments: &Arguments,
    ask: impl Fn(Request) -> Result<Value, Failure>,
    say: impl Fn(Vec<String>),
) -> Result<Value, Failure> {
    let &Arguments { deep, repair, accept_loss, dry_run, .. } = arguments;
    let found = ask(Request::Fsck { deep })?;
    say(lines(&found));
    if !repair {
        return Ok(found);
    }
    if found["degraded"] == Value::Bool(true) {
        return Err(Failure::new(
            "cannot repair the node",
            "a disk is missing, and what seems to be lost may lie there",
        )
        .at(&arguments.node)
        .mend("mount the disk again, `hydrafs restart`, and repair then; nothing was changed"));
    }
    say(plan(&found));
    if dry_run || list(&found, "plan").is_empty() {
        return Ok(found);
    }
    let (mut left, mut steps) = (found.clone(), Vec::new());
    for _ in 0..ROUNDS_MAX {
        if list(&left, "plan").is_empty() {
            break;
        }
        if !steps.is_empty() {
            say(plan(&left));
        }
        left = ask(Request::Repair { deep, accept_loss })?;
        say(list(&left, "steps").iter().map(step).collect());
        say(vec!["after the repair:".to_owned()]);
        say(lines(&left));
        steps.extend_from_slice(list(&left, "steps"));
    }
    left["steps"] = json!(steps);
    left["before"] = json!({ "problems": found["problems"], "plan": found["plan"] });
    Ok(left)
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::PathBuf;

    use serde_json::{Value, json};

    use super::{Arguments, ROUNDS_MAX, rounds};
    use crate::control::wire::Request;

    fn arguments(dry_run: bool) -> Arguments {
        let (node, degraded, json) = (PathBuf::new(), false, false);
        Arguments { node, deep: true, repair: true, accept_loss: true, degraded, dry_run, json }
    }

    /// A repair of two rounds, the second uncovered by the first: what was said and asked, in order, and the report.
    fn repair_of_two_rounds(dry_run: bool) -> (Vec<String>, Value) {
        let said = RefCell::new(Vec::new());
        let answers = RefCell::new(vec![
            json!({ "plan": [], "steps": [{ "remedy": "take in", "done": true, "outcome": "two" }], "clean": true }),
            json!({ "plan": ["take in"], "steps": [{ "remedy": "make again", "done": true, "outcome": "one" }] }),
            json!({ "plan": ["make again"], "problems": [] }),
        ]);
        let ask = |request| {
            let name = match request {
                Request::Fsck { deep: true } => "asked for a check",
                Request::Repair { deep: true, accept_loss: true } => "asked for a round",
                request => panic!("{request:?}"),
            };
            said.borrow_mut().push(name.to_owned());
            Ok(answers.borrow_mut().pop().expect("no round without a plan"))
        };
        let report = rounds(&arguments(dry_run), ask, |lines| said.borrow_mut().extend(lines)).expect("answered");
        (said.into_inner(), report)
    }

    /// Whoever reads along sees each step before it is taken.
    #[test]
    fn no_step_is_taken_that_was_not_shown() {
        let (said, report) = repair_of_two_rounds(false);
        let at = |text: &str| said.iter().position(|line| line.contains(text)).expect(text);
        let rounds: Vec<usize> = (0..said.len()).filter(|&line| said[line] == "asked for a round").collect();
        assert!(at("asked for a check") < at("  1. make again") && at("  1. make again") < rounds[0], "{said:#?}");
        assert!(rounds[0] < at("done: make again: one") && at("done: make again") < at("  1. take in"), "{said:#?}");
        assert!(at("  1. take in") < rounds[1] && rounds[1] < at("done: take in: two"), "{said:#?}");
        assert_eq!(report["before"]["plan"], json!(["make again"]));
        let remedies: Vec<&Value> =
            report["steps"].as_array().expect("a list").iter().map(|step| &step["remedy"]).collect();
        assert!(report["clean"] == true && remedies == [&json!("make again"), &json!("take in")], "{report}");
    }

    #[test]
    fn a_plan_that_never_ends_is_left() {
        let asked = RefCell::new(0);
        let ask = |_| {
            *asked.borrow_mut() += 1;
            Ok(json!({ "plan": ["again"], "steps": [{ "remedy": "again", "done": false, "outcome": "no" }] }))
        };
        let report = rounds(&arguments(false), ask, drop).expect("answered");
        assert_eq!((asked.into_inner(), &report["plan"]), (1 + ROUNDS_MAX, &json!(["again"])));
    }

    #[test]
    fn a_dry_run_takes_no_step() {
        let (said, report) = repair_of_two_rounds(true);
        assert!(
            said.iter().any(|line| line == "  1. make again") && !said.iter().any(|line| line == "asked for a round")
        );
        assert_eq!(report["plan"], json!(["make again"]));
    }
}
