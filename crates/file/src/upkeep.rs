//! What is known of layout upkeep: what came of it, and what the background task is at.
//!
//! Not here: the work (`batch/optimize`), when it is done (`layout`).

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::failure::FileError;

/// What came of bringing small files together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchOptimizeReport {
    /// Small files that were looked at.
    pub files: u64,
    /// Files and directories that cannot be read: they stay as they lie.
    pub failed: u64,
    /// Runs by which who reads one directory after the other read what was looked at, before and now.
    pub runs_before: u64,
    /// See there.
    pub runs_after: u64,
    /// The fewest that it could be read by.
    pub runs_min: u64,
    /// Bytes that were written, as stored; in a rehearsal those that would be.
    pub bytes: u64,
    /// Whether all was looked at.
    pub is_done: bool,
}

/// What layout upkeep in the background does and did since the node was opened.
#[derive(Clone, Debug, Default)]
pub struct LayoutStatus {
    /// How often everything is gone through; zero: never.
    pub interval: Duration,
    /// Files that the pass at work has looked at, and bytes that it has moved.
    pub now: Option<(u64, u64)>,
    /// How long ago the last pass ended.
    pub ended: Option<Duration>,
    /// What came of it.
    pub report: BatchOptimizeReport,
    /// Why it failed, if it did.
    pub failure: Option<String>,
    /// Why the last one was not begun or came to no end.
    pub obstacle: Option<&'static str>,
}

/// The background task.
#[derive(Default)]
pub(crate) struct Upkeep {
    /// It is to end.
    pub(crate) wants_end: Notify,
    pub(crate) state: Mutex<State>,
}

/// What it does and did.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) now: Option<(u64, u64)>,
    /// The last pass, with the time of its end.
    pub(crate) last: Option<(Duration, Result<BatchOptimizeReport, FileError>)>,
    pub(crate) obstacle: Option<&'static str>,
}
