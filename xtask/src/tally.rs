//! Named steps with their time and outcome, a table of them, and one closing line as test runners print it.
//!
//! A step that panics has failed. A step that did not run is skipped, with its reason in the table, and counts as ignored.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::interrupt;
use crate::text::{Table, span};

/// Letters of an outcome in the table; all of them were printed before.
const WORDS_MAX: usize = 110;

/// Tests that passed, failed, were not run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

/// How a step ended that did not fail.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// It passed; in words, what was done.
    Passed(String),
    /// It is a test runner itself, which counted. Failed if its count says so.
    Counted(Counts, String),
    /// It was not run, for this reason.
    Skipped(String),
}

#[derive(Debug)]
struct Step {
    name: String,
    time: Duration,
    counts: Counts,
    words: String,
}

/// Steps that were run.
#[derive(Debug)]
pub(crate) struct Tally {
    started: Instant,
    steps: Vec<Step>,
}

impl Counts {
    pub(crate) fn add(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    /// Reads `test result: ok. 3 passed; 0 failed; 1 ignored; ...`, as test runners of cargo print it.
    pub(crate) fn of_line(line: &str) -> Option<Counts> {
        let (_, rest) = line.split_once("test result: ")?;
        let (_, numbers) = rest.split_once(". ")?;
        let mut counts = Counts::default();
        for part in numbers.split("; ") {
            match part.split_once(' ') {
                Some((number, "passed")) => counts.passed = number.parse().ok()?,
                Some((number, "failed")) => counts.failed = number.parse().ok()?,
                Some((number, "ignored")) => counts.ignored = number.parse().ok()?,
                _ => {}
            }
        }
        Some(counts)
    }
}

impl Tally {
    pub(crate) fn new() -> Tally {
        Tally { started: Instant::now(), steps: Vec::new() }
    }

    /// Runs a step, unless somebody wants an end. True if it did not fail.
    pub(crate) fn step(&mut self, name: &str, run: impl FnOnce() -> Result<End>) -> bool {
        let started = Instant::now();
        if interrupt::is_asked() {
            self.note(
                name,
                Duration::ZERO,
                Counts { ignored: 1, ..Counts::default() },
                "SKIPPED: interrupted".to_owned(),
            );
            return false;
        }
        println!("── {name}");
        let end = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|cause| {
            let words = cause.downcast_ref::<String>().cloned();
            let words = words.or_else(|| cause.downcast_ref::<&str>().map(|words| (*words).to_owned()));
            Err(anyhow::anyhow!("panicked: {}", words.unwrap_or_default()))
        });
        let one = Counts::default();
        let (counts, words) = match end {
            Ok(End::Passed(words)) => (Counts { passed: 1, ..one }, format!("ok: {words}")),
            Ok(End::Counted(counts, words)) if counts.failed == 0 => (counts, format!("ok: {words}")),
            Ok(End::Counted(counts, words)) => (counts, format!("FAILED: {words}")),
            Ok(End::Skipped(why)) => (Counts { ignored: 1, ..one }, format!("SKIPPED: {why}")),
            Err(error) => (Counts { failed: 1, ..one }, format!("FAILED: {error:#}")),
        };
        println!("   {words} ({})", span(started.elapsed()));
        self.note(name, started.elapsed(), counts, words);
        counts.failed == 0
    }

    fn note(&mut self, name: &str, time: Duration, counts: Counts, words: String) {
        self.steps.push(Step { name: name.to_owned(), time, counts, words });
    }

    /// Takes over the steps of another, with `prefix` before their names.
    pub(crate) fn take(&mut self, prefix: &str, other: Tally) {
        let renamed = other.steps.into_iter().map(|step| Step { name: format!("{prefix}{}", step.name), ..step });
        self.steps.extend(renamed);
    }

    pub(crate) fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        self.steps.iter().for_each(|step| sum.add(step.counts));
        sum
    }

    pub(crate) fn is_ok(&self) -> bool {
        self.counts().failed == 0 && !interrupt::is_asked()
    }

    /// Prints the table and the closing line. The exit code.
    pub(crate) fn close(&self) -> std::process::ExitCode {
        let mut table = Table::new(3, &["step", "time", "outcome"]);
        for step in &self.steps {
            let mut first: String = step.words.lines().next().unwrap_or_default().to_owned();
            if let Some((at, _)) = first.char_indices().nth(WORDS_MAX) {
                first.replace_range(at.., "...");
            }
            table.row([step.name.clone(), format!("{:>12}", span(step.time)), first]);
        }
        println!("\n{}", table.text());
        println!("{}", self.closing_line());
        if self.is_ok() { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
    }

    fn closing_line(&self) -> String {
        let Counts { passed, failed, ignored } = self.counts();
        let word = if self.is_ok() && passed > 0 { "ok" } else { "FAILED" };
        let time = self.started.elapsed().as_secs_f64();
        format!(
            "test result: {word}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; 0 filtered out; finished in {time:.2}s"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{Counts, End, Tally};

    #[test]
    fn lines_of_test_runners_are_read() {
        let line = "test result: FAILED. 12 passed; 1 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        assert_eq!(Counts::of_line(line), Some(Counts { passed: 12, failed: 1, ignored: 3 }));
        assert_eq!(Counts::of_line("test tally::tests::x ... ok"), None);
    }

    #[test]
    fn the_closing_line_sums_and_fails_with_any_step() {
        let mut tally = Tally::new();
        assert!(tally.step("a", || Ok(End::Passed(String::new()))));
        assert!(tally.step("b", || Ok(End::Counted(Counts { passed: 5, failed: 0, ignored: 2 }, String::new()))));
        assert!(tally.step("c", || Ok(End::Skipped("no disk".to_owned()))));
        assert!(tally.is_ok());
        assert!(!tally.step("d", || anyhow::bail!("wrong")));
        assert!(!tally.step("e", || panic!("worse")));
        assert_eq!(Counts::of_line(&tally.closing_line()), Some(Counts { passed: 6, failed: 2, ignored: 3 }));
        assert!(tally.closing_line().contains("FAILED"));
    }
}
