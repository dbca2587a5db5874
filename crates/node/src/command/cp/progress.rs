//! How far a copy is, for a person who waits; and what came of it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::units::Bytes;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;
use serde_json::json;

use crate::command::{remark, say_json};
use crate::failure::Failure;

/// Failures that the answer for programs lists; all of them are counted, and named on standard error.
const LISTED_MAX: usize = 100_000;

/// How far a copy is.
pub(super) struct Progress {
    bar: ProgressBar,
    files: AtomicU64,
    skipped: AtomicU64,
    units: AtomicU64,
    one_by_one: Mutex<Option<String>>,
    ended: Mutex<Option<String>>,
    failures: AtomicU64,
    failed: Mutex<Vec<(PathBuf, String)>>,
    interrupted: Arc<AtomicBool>,
    is_undone: AtomicBool,
    is_quiet: bool,
}

impl Progress {
    /// `interrupted` becomes true when nobody wants the copy any more.
    pub(super) fn new(is_quiet: bool, interrupted: Arc<AtomicBool>) -> Progress {
        let draw = if is_quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(0), draw);
        let style = "{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left, {msg}";
        bar.set_style(ProgressStyle::with_template(style).expect("a constant template, tested"));
        bar.enable_steady_tick(Duration::from_millis(200));
        let [files, skipped, units, failures] = std::array::from_fn(|_| AtomicU64::new(0));
        let (failed, one_by_one, ended) = (Mutex::default(), Mutex::default(), Mutex::default());
        let is_undone = AtomicBool::new(false);
        Progress { bar, files, skipped, units, one_by_one, ended, failures, failed, interrupted, is_undone, is_quiet }
    }

    /// Whether nothing more is to be begun.
    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// All is in its place: who interrupts now comes too late to undo it.
    pub(super) fn heed_no_interruption(&mut self) {
        self.interrupted = Arc::default();
    }

    /// So many bytes more are to be copied.
    pub(super) fn expect(&self, bytes: u64) {
        self.bar.inc_length(bytes);
    }

    /// So many bytes more were.
    pub(super) fn copied(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// The same, of a file that is not whole as yet: who is interrupted gives it up.
    pub(super) fn advance(&self, bytes: u64) -> io::Result<()> {
        self.copied(bytes);
        if self.is_interrupted() { Err(io::Error::other("the copy was interrupted")) } else { Ok(()) }
    }

    /// So many files were copied at a time.
    pub(super) fn done(&self, files: u64, bytes: u64) {
        self.files.fetch_add(files, Ordering::Relaxed);
        self.bar.inc(bytes);
    }

    /// So many units were written, each of which is there as a whole.
    pub(super) fn units(&self, units: u64) {
        self.units.fetch_add(units, Ordering::Relaxed);
    }

    /// A daemon that answers us makes no batch of it. It is said once.
    pub(super) fn goes_one_by_one(&self, how: &str, failure: &Failure) {
        let mut why = self.one_by_one.lock();
        if why.is_none() && !self.is_quiet {
            self.bar.suspend(|| remark(&format!("files are {how} one by one, which is slower: {}", failure.why)));
        }
        why.get_or_insert_with(|| failure.why.clone());
    }

    /// What ended the copy before its end: what was not begun by then is not told of.
    pub(super) fn end(&self, failure: &Failure) {
        self.ended.lock().get_or_insert_with(|| failure.why.clone());
    }

    /// What goes on, in words.
    pub(super) fn say(&self, text: &str) {
        self.bar.set_message(text.to_owned());
    }

    /// A file that is there already.
    pub(super) fn skip(&self, bytes: u64) {
        self.skipped.fetch_add(1, Ordering::Relaxed);
        self.bar.inc(bytes);
    }

    pub(super) fn note<E: std::fmt::Display>(&self, place: &Path, result: Result<(), E>) {
        match result {
            Ok(()) => {
                let files = self.files.fetch_add(1, Ordering::Relaxed) + 1;
                if files.is_multiple_of(64) {
                    let rate = files as f64 / self.bar.elapsed().as_secs_f64().max(1e-3);
                    self.bar.set_message(format!("{files} files, {rate:.0}/s"));
                }
            }
            Err(error) => {
                let count = self.failures.fetch_add(1, Ordering::Relaxed);
                self.bar.suspend(|| remark(&format!("cannot copy: {}; {error}", place.display())));
                if count < LISTED_MAX as u64 {
                    self.failed.lock().push((place.to_owned(), error.to_string()));
                }
            }
        }
    }

    /// Nothing of what was copied is there any more.
    pub(super) fn undo(&self) {
        self.is_undone.store(true, Ordering::Relaxed);
        self.files.store(0, Ordering::Relaxed);
        self.bar.set_position(0);
    }

    pub(super) fn has_failures(&self) -> bool {
        self.failures.load(Ordering::Relaxed) > 0
    }

    /// Says what came of it.
    pub(super) fn finish(self, is_quiet: bool, is_json: bool) -> Result<ExitCode, Failure> {
        let (files, failures) = (self.files.into_inner(), self.failures.into_inner());
        let (skipped, units) = (self.skipped.into_inner(), self.units.into_inner());
        let (is_undone, is_interrupted) = (self.is_undone.into_inner(), self.interrupted.load(Ordering::Relaxed));
        let (bytes, elapsed) = (self.bar.position(), self.bar.elapsed().as_secs_f64());
        self.bar.finish_and_clear();
        if is_json {
            let failed = self.failed.into_inner();
            let failed = failed.iter().map(|(path, why)| json!({ "path": path.display().to_string(), "why": why }));
            say_json(&json!({
                "files": files,
                "skipped": skipped,
                "bytes": bytes,
                "seconds": elapsed,
                "units": units,
                "one_by_one": self.one_by_one.into_inner(),
                "ended": self.ended.into_inner(),
                "failures": failures,
                "undone": is_undone,
                "failed": failed.collect::<Vec<_>>(),
            }));
        } else if !is_quiet {
            let rate = (bytes as f64 / elapsed.max(0.001)) as u64;
            let there = if skipped == 0 { String::new() } else { format!("; {skipped} were there already") };
            let by = if units == 0 { String::new() } else { format!("; {units} units") };
            remark(&format!("copied {files} files, {} in {elapsed:.1} s ({}/s){by}{there}", Bytes(bytes), Bytes(rate)));
        }
        if is_interrupted {
            let why = format!("{files} files were copied by then, and nothing is there that is not whole");
            return Err(
                Failure::new("the copy was interrupted", why).mend("copy the rest again; with -a --resume only that")
            );
        }
        if failures == 0 {
            return Ok(ExitCode::SUCCESS);
        }
        if is_undone {
            return Err(Failure::new("nothing was copied", format!("{failures} failed, and the others were undone"))
                .mend("the failed ones are named above; mend what they say, or copy without --atomic"));
        }
        Err(Failure::new("not everything was copied", format!("{failures} failed and {files} were copied"))
            .mend("the failed ones are named above; mend what they say and copy them again"))
    }
}
