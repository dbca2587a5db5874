//! `make test`: every check there is, and one closing line over all of them.
//!
//! What fails does not stop the rest: one run shows everything that is wrong.

use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::kill::{self, Kind};
use crate::program::Program;
use crate::random::Random;
use crate::tally::{Counts, End, Tally};
use crate::tools::{self, Profile};
use crate::{posix, volume};

/// Rounds of `kill` in every test run; `make soak` and `cargo xtask kill` do many.
const KILL_ROUNDS: u32 = 4;

/// Run every test: format, lints, unit tests, simulated crashes, and a quick part of posix and kill.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// Without mounts: for a machine that has no FUSE.
    #[arg(long)]
    no_mount: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut tally = Tally::new();
    tally.step("format", || plain(&["fmt", "--all", "--check"], "cargo fmt"));
    let lints = ["clippy", "--quiet", "--workspace", "--all-targets", "--", "--deny", "warnings"];
    tally.step("lints", || plain(&lints, "no warning of clippy"));
    tally.step("cargo test", cargo_test);
    match no_mount(arguments) {
        Some(why) => {
            tally.step("posix (quick)", || Ok(End::Skipped(why.clone())));
            tally.step("kill (quick)", || Ok(End::Skipped(why)));
        }
        None => with_mounts(&mut tally),
    }
    Ok(tally.close())
}

fn with_mounts(tally: &mut Tally) {
    match posix::quick(Profile::Dev) {
        Ok(steps) => tally.take("posix ", steps),
        Err(error) => {
            tally.step("posix (quick)", || Err(error));
        }
    }
    tally.step("kill (quick)", || {
        let seed = Random::fresh_seed();
        println!("   seed {seed}");
        let survived = kill::torture(&tools::hydrafs(Profile::Dev)?, Kind::Mixed, KILL_ROUNDS, seed)?;
        Ok(End::Passed(survived.words()))
    });
}

/// Why nothing can be mounted here, if so.
fn no_mount(arguments: &Arguments) -> Option<String> {
    if arguments.no_mount {
        return Some("asked for with --no-mount".to_owned());
    }
    volume::can_mount().err().map(|why| why.to_string())
}

fn plain(arguments: &[&str], words: &str) -> Result<End> {
    let status = tools::cargo().args(arguments).status()?;
    if !status.success() {
        bail!("`cargo {}` ended with {status}", arguments.join(" "));
    }
    Ok(End::Passed(words.to_owned()))
}

/// All crates, all kinds of tests; what the harnesses count is summed.
fn cargo_test() -> Result<End> {
    let mut counts = Counts::default();
    // Examples are seen by the lints.
    let program: Program = tools::cargo().args(["test", "--workspace", "--tests", "--no-fail-fast"]);
    let left_out = tools::target().join("tests-skipped.txt");
    fs::create_dir_all(tools::target())?;
    fs::write(&left_out, "")?;
    let program = program.env("TESTS_SKIPPED", &left_out);
    let status = program.watch(|line| {
        if let Some(found) = Counts::of_line(line) {
            counts.add(found);
        }
    })?;
    if !status.success() && counts.failed == 0 {
        bail!("`cargo test` ended with {status}: something does not compile, or a test process died");
    }
    let noted = fs::read_to_string(&left_out)?;
    let skipped = skipped(&noted);
    skipped.iter().for_each(|(test, why)| println!("   skipped: {test}: {why}"));
    // A test that left something out has ended well for its runner.
    counts.passed = counts.passed.saturating_sub(skipped.len() as u64);
    counts.ignored += skipped.len() as u64;
    Ok(End::Counted(
        counts,
        format!("{} tests passed, {} failed, {} ignored", counts.passed, counts.failed, counts.ignored),
    ))
}

/// Tests that left something out, each once, and the first reason that it gave (`crates/skipped`).
fn skipped(noted: &str) -> BTreeMap<&str, &str> {
    let mut skipped = BTreeMap::new();
    for (test, why) in noted.lines().filter_map(|line| line.split_once(": ")) {
        skipped.entry(test).or_insert(why);
    }
    skipped
}

#[cfg(test)]
mod tests {
    use super::skipped;

    #[test]
    fn a_test_that_left_something_out_counts_once() {
        let noted = "it mount::a: no ring: off\nit mount::b: no root\nit mount::a: no root\n";
        let found: Vec<_> = skipped(noted).into_iter().collect();
        assert_eq!(found, [("it mount::a", "no ring: off"), ("it mount::b", "no root")]);
    }
}
