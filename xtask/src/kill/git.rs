//! git that syncs what it writes: after the crash every object is whole, and no acknowledged commit is missing.
//!
//! A commit counts as acknowledged when git has ended and the directory of its branch is synced: git syncs the file of a branch, but
//! not the rename that puts it in its place.

use std::fs::{self, File};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::content::{self, Key};
use super::load::{Load, Round, Verified};
use crate::posix::git::git;
use crate::program::Program;

/// Files of the work tree, each replaced again and again.
const FILES: u64 = 20;
/// Commits between two packings of everything.
const REPACK: u64 = 25;

#[derive(Debug)]
pub(super) struct Git {
    round: Round,
    thread: u64,
    repository: PathBuf,
    attempted: u64,
    acknowledged: u64,
}

impl Git {
    pub(super) fn new(round: &Round, thread: u64) -> Result<Git> {
        let repository = round.folder.join(format!("git-{thread}"));
        let log = round.outside.join("git.log");
        git(&log).args(["init", "--quiet", "--initial-branch=main"]).arg(&repository).run()?;
        let git = Git { round: round.clone(), thread, repository, attempted: 0, acknowledged: 0 };
        for (name, value) in [
            ("core.fsync", "all"),
            ("core.fsyncMethod", "fsync"),
            ("gc.auto", "0"),
            ("user.name", "kill"),
            ("user.email", "kill@localhost"),
        ] {
            git.git().args(["config", name, value]).output()?;
        }
        Ok(git)
    }

    fn git(&self) -> Program {
        git(&self.round.outside.join("git.log")).arg("-C").arg(&self.repository)
    }

    /// For the load: git's walk of a directory that the dead mount does not list any more warns of it for ever (its dir-iterator goes on after an
    /// error of readdir).
    fn git_until_killed(&self) -> Program {
        self.git().until(self.round.when_killing())
    }

    /// The file that commit `number` replaces, and its content.
    fn file(&self, number: u64) -> (String, Vec<u8>) {
        let bytes = 200 + (number * 7919 % 30_000) as usize;
        (format!("file-{}", number % FILES), content::make(Key::new(self.round.number, self.thread, number), 0, bytes))
    }

    pub(super) fn commit(&mut self) -> Result<()> {
        let number = self.attempted + 1;
        self.attempted = number;
        let (name, bytes) = self.file(number);
        fs::write(self.repository.join(&name), bytes)?;
        self.git_until_killed().args(["add", "--", &name]).output()?;
        self.git_until_killed().args(["commit", "--quiet", "--message", &number.to_string()]).output()?;
        if number.is_multiple_of(REPACK) {
            self.git_until_killed().args(["repack", "-a", "-d", "--quiet"]).output()?;
        }
        File::open(self.repository.join(".git/refs/heads"))?.sync_all()?;
        self.acknowledged = number;
        self.round.done(self.thread, number);
        Ok(())
    }
}

impl Load for Git {
    fn name(&self) -> &str {
        "git"
    }

    fn run(&mut self) -> Option<String> {
        let round = self.round.clone();
        round.until_killed(|| self.commit())
    }

    fn done(&self) -> u64 {
        self.acknowledged
    }

    fn verify(&self) -> Result<Verified> {
        // git that dies leaves its locks on any file system; everything else must be as it was.
        self.git().args(["fsck", "--full", "--strict", "--no-dangling"]).output()?;
        let head = self.repository.join(".git/refs/heads/main");
        if !head.exists() && self.acknowledged == 0 {
            return Ok(Verified::default());
        }
        let log = self.git().args(["log", "--format=%s", "main"]).output()?;
        let commits: Vec<&str> = log.lines().collect();
        let last = commits.len() as u64;
        ensure!(
            last >= self.acknowledged && last <= self.attempted,
            "{last} commits; {} were acknowledged, {} attempted",
            self.acknowledged,
            self.attempted
        );
        for (number, message) in (1..=last).rev().zip(commits) {
            ensure!(number.to_string() == message, "commit {number} is missing: {message} comes instead");
        }
        let out = self.round.outside.join(format!("checkout-{}", self.thread));
        fs::create_dir_all(&out)?;
        let (index, lock) = (out.join("index"), self.repository.join(".git/index.lock"));
        if lock.exists() {
            fs::remove_file(lock)?;
        }
        self.git().env("GIT_INDEX_FILE", &index).args(["read-tree", "main"]).output()?;
        let checkout = self.git().env("GIT_INDEX_FILE", &index).args(["checkout-index", "--all"]);
        checkout.arg(format!("--prefix={}/", out.display())).output()?;
        let mut bytes = 0;
        for number in last.saturating_sub(FILES - 1).max(1)..=last {
            let (name, expected) = self.file(number);
            let found = fs::read(out.join(&name)).with_context(|| format!("{name} of commit {number}"))?;
            content::check(Key::new(self.round.number, self.thread, number), 0, &found)?;
            ensure!(found.len() == expected.len(), "{name} has {} bytes of {}", found.len(), expected.len());
            bytes += found.len() as u64;
        }
        fs::remove_dir_all(out)?;
        Ok(Verified { synced: self.acknowledged, present: last, bytes })
    }
}
