//! Another build of the daemon takes over beside programs, and ours after it, by turns: a test of `node`, with a daemon of some commits ago.
//!
//! Not here: the take-over by the same build, which every test run has.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};

use crate::program::Program;
use crate::tally::{Counts, End};
use crate::tools;
use crate::volume;

/// So many commits of code before this one: what was built then lacks some of today's structures, or has them in another form.
const COMMITS_AGO: u32 = 20;
/// A daemon of another build that is there already.
const FORMER: &str = "HYDRAFS_FORMER";
const TEST: &str = "restart::programs_see_no_error_while_another_build_takes_over";

/// `home` is its own folder, outside of every mount.
pub(super) fn upgrade(home: &Path) -> Result<End> {
    let (former, words) = match tools::named(FORMER)? {
        Some(former) => (former, format!("{FORMER} and ours by turns")),
        None => match commit()? {
            Some(commit) => (build(home, &commit)?, format!("the daemon of {commit:.10} and ours by turns")),
            None => return Ok(End::Skipped(format!("the history has not {COMMITS_AGO} commits of code"))),
        },
    };
    let test = tools::cargo().args(["test", "--quiet", "--package", "node", "--test", "it", "--", "--exact", TEST]);
    let mut counts = Counts::default();
    let left_out = home.join("left-out.txt");
    fs::write(&left_out, "")?;
    let test = test.env("TESTS_SKIPPED", &left_out);
    let status = test.env(FORMER, former).limit(Duration::from_secs(1800)).watch(|line| {
        if let Some(found) = Counts::of_line(line) {
            counts.add(found);
        }
    })?;
    if !status.success() || counts.passed != 1 {
        bail!("`cargo test … {TEST}` ended with {status}, and {} tests passed", counts.passed);
    }
    match fs::read_to_string(&left_out)?.lines().next() {
        Some(why) => Ok(End::Skipped(why.to_owned())),
        None => Ok(End::Passed(words)),
    }
}

fn git() -> Program {
    Program::new("git").arg("-C").arg(tools::project())
}

/// The commit whose daemon is the other one, where the history goes back so far.
fn commit() -> Result<Option<String>> {
    let skip = format!("--skip={COMMITS_AGO}");
    let (status, found, _) = git().args(["rev-list", "--max-count=1", &skip, "HEAD", "--", "crates"]).outcome()?;
    let commit = found.trim().to_owned();
    Ok(Some(commit).filter(|commit| status.success() && !commit.is_empty()))
}

/// Builds the daemon of a commit, in a work tree of its own that goes again.
fn build(home: &Path, commit: &str) -> Result<PathBuf> {
    let (tree, built) = (home.join("tree"), home.join("built"));
    let remove = || -> Result<()> {
        volume::clear(&tree)?;
        git().args(["worktree", "prune"]).run()
    };
    remove()?;
    git().args(["worktree", "add", "--quiet", "--detach"]).arg(&tree).arg(commit).run()?;
    let cargo = tools::cargo().dir(&tree).env("CARGO_TARGET_DIR", &built);
    let made = cargo.args(["build", "--quiet", "--release", "--package", "node"]).run();
    made.and(remove())?;
    Ok(built.join("release/hydrafs"))
}
