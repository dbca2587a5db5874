//! Seeds: those that found something first, then a few hundred more, and the proof that the oracle can fail.
//!
//! - a seed that found a defect is replayed for ever, with a line on what it found
//! - every plan runs on seeds of its own
//! - the same seed makes the same steps
//! - lies are found out: a write, a sync, a removal that did not happen, and a disk that loses writes

use std::sync::Arc;

use platform::task::{Tasks, parallel};
use sim::{Failure, Plan, Sabotage, Summary, run};

/// Seeds that found a defect, by plan. The seed means the same only as long as the workload draws the same: what they found also
/// has a test of its own where it was mended.
const FOUND: &[(&str, u64)] = &[
    // A stream smaller than a chunk was flushed in a circle that cut nothing off: writers waited for ever.
    ("long", 7),
    ("power", 8),
    // Renaming `d/x` over `d` locked the state of `d` twice: the file system stood still.
    ("power", 26),
    ("long", 39),
    // A flush logged a size that the file had never had, when a truncate had cut the end off that was waiting in the buffer.
    ("power", 136),
];

/// Seeds of each plan beyond those; a third for the long one.
const SEEDS_PER_PLAN: u64 = 30;

fn tasks() -> Arc<dyn Tasks> {
    platform::real::platform().tasks
}

fn run_all(runs: Vec<(Plan, u64)>) -> Vec<Result<Summary, Box<Failure>>> {
    parallel(&tasks(), runs, |(plan, seed)| run(seed, &plan, false))
}

fn expect_all(runs: Vec<(Plan, u64)>) {
    let failures: Vec<String> =
        run_all(runs).into_iter().filter_map(Result::err).map(|failure| failure.to_string()).collect();
    assert!(failures.is_empty(), "{} seeds failed:\n\n{}", failures.len(), failures.join("\n\n"));
}

fn plan(name: &str) -> Plan {
    Plan::find(name).unwrap_or_else(|| panic!("no plan {name}"))
}

#[test]
fn seeds_that_found_something_stay_quiet() {
    expect_all(FOUND.iter().map(|(name, seed)| (plan(name), *seed)).collect());
}

#[test]
fn every_plan_keeps_every_promise() {
    let count = |plan: &Plan| if plan.name == "long" { SEEDS_PER_PLAN / 3 } else { SEEDS_PER_PLAN };
    let seeds = |plan: &'static Plan| (1000..1000 + count(plan)).map(|seed| (*plan, seed));
    expect_all(Plan::all().iter().flat_map(seeds).collect());
}

#[test]
fn the_same_seed_makes_the_same_steps() {
    for plan in Plan::all() {
        let runs = run_all(vec![(*plan, 5), (*plan, 5), (*plan, 6)]);
        let summaries: Vec<Summary> = runs.into_iter().map(|run| run.expect("a quiet seed")).collect();
        assert_eq!(summaries[0], summaries[1], "plan {}: a hidden input", plan.name);
        assert_ne!(summaries[0].trace, summaries[2].trace, "plan {}: the seed decides", plan.name);
    }
}

#[test]
fn lies_are_found_out() {
    for sabotage in [Sabotage::ForgetWrites, Sabotage::SkipSyncs, Sabotage::ForgetRemovals, Sabotage::LoseWrites] {
        let lying = Plan { sabotage: Some(sabotage), ..plan("power") };
        let found = run_all((0..24).map(|seed| (lying, seed)).collect()).into_iter().filter(Result::is_err).count();
        assert!(found >= 3, "{sabotage:?}: only {found} of 24 runs noticed");
    }
}
