//! What the actors of a life share: histories, snapshots, the log, and how an error is judged.

use std::collections::VecDeque;
use std::sync::Arc;

use base::id::FileId;
use file::{Attributes, FileError};
use parking_lot::{Mutex, MutexGuard};
use platform::Platform;
use platform::disk::Disk;

use crate::failure::Summary;
use crate::history::{History, Step};
use crate::model::{Change, Key, Model};
use crate::plan::{Plan, Trouble};

/// Lines of the log that are kept.
const LOG_LINES_MAX: usize = 1000;
/// Lines of the log that a failure shows.
const LOG_LINES_SHOWN: usize = 40;

/// Why an actor stops.
#[derive(Clone, Debug)]
pub(crate) enum Stop {
    /// A fault, or the power is gone: nothing more can be learned in this life.
    Over,
    /// A promise was not kept.
    Wrong(String),
}

/// What an error means for the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// The disks are full: the operation did not happen, and another may succeed.
    NotDone,
    /// A fault: the operation may have happened.
    Trouble,
    /// There was no reason to fail.
    Wrong,
}

/// A snapshot that was acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) name: String,
    /// What each client's directory holds in it, to the last byte.
    pub(crate) models: Vec<Model>,
    /// Whether its deletion was asked for and not acknowledged.
    pub(crate) is_leaving: bool,
}

/// A snapshot that was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) name: String,
    /// For each client the step that was acknowledged then.
    pub(crate) floors: Vec<usize>,
}

/// See the module's head.
pub(crate) struct State {
    pub(crate) histories: Vec<History>,
    pub(crate) snapshots: Vec<Kept>,
    pub(crate) asked: Option<Asked>,
    pub(crate) snapshot_count: u64,
    /// After a clean close: everything as `stat` showed it.
    pub(crate) closed: Vec<(FileId, Attributes)>,
    pub(crate) summary: Summary,
    pub(crate) failure: Option<String>,
    /// Who, and what.
    log: VecDeque<(String, String)>,
    calls: u64,
    /// Clients at work.
    pub(crate) working: usize,
    pub(crate) is_failing: bool,
    /// The index was lost, perhaps while a disk was out.
    pub(crate) lost_index: bool,
}

/// See the module's head.
pub(crate) struct Shared {
    pub(crate) plan: Plan,
    pub(crate) platform: Platform,
    disk: Disk,
    is_verbose: bool,
    state: Mutex<State>,
}

impl Shared {
    pub(crate) fn new(plan: Plan, platform: Platform, disk: Disk, is_verbose: bool) -> Arc<Shared> {
        let state = State {
            histories: Vec::new(),
            is_failing: false,
            lost_index: false,
            snapshots: Vec::new(),
            asked: None,
            snapshot_count: 0,
            closed: Vec::new(),
            summary: Summary::default(),
            failure: None,
            log: VecDeque::new(),
            calls: 0,
            working: 0,
        };
        Arc::new(Shared { plan, platform, disk, is_verbose, state: Mutex::new(state) })
    }

    /// Never held over an await.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Adds a line to the log.
    pub(crate) fn log(&self, who: &str, what: &str) {
        let line = format!("{:>12.6} {who}: {what}", self.platform.clock.elapsed().as_secs_f64());
        if self.is_verbose {
            println!("{line}");
        }
        let mut state = self.state();
        if state.log.len() == LOG_LINES_MAX {
            state.log.pop_front();
        }
        state.log.push_back((who.to_owned(), line));
    }

    /// The last lines of the log: those of the client that a failure is about, if it is about one, and those of no client.
    pub(crate) fn log_about(&self, failure: &str) -> Vec<String> {
        let state = self.state();
        let is_client = |who: &str| who.starts_with("client ");
        let blamed = state.log.iter().map(|(who, _)| who).find(|who| is_client(who) && failure.contains(who.as_str()));
        let is_of_interest = |who: &str| !is_client(who) || blamed.is_none_or(|blamed| blamed == who);
        let lines = state.log.iter().filter(|(who, _)| is_of_interest(who)).map(|(_, line)| line.clone());
        let mut shown: Vec<String> = lines.rev().take(LOG_LINES_SHOWN).collect();
        shown.reverse();
        shown
    }

    /// Notes the first promise that was not kept.
    pub(crate) fn fail(&self, who: &str, what: String) {
        self.log(who, &format!("WRONG: {what}"));
        self.state().failure.get_or_insert_with(|| format!("{who}: {what}"));
    }

    /// Whether the disks answer.
    pub(crate) fn is_powered(&self) -> bool {
        self.disk.space().is_ok()
    }

    /// What an error means.
    pub(crate) fn judge(&self, error: &FileError) -> Judgement {
        let is_excused = self.plan.may_err() || !self.is_powered();
        match error {
            FileError::NoSpace if is_excused => Judgement::Trouble,
            FileError::NoSpace if self.plan.trouble == Trouble::Full => Judgement::NotDone,
            FileError::Store(_) | FileError::ReadOnly if is_excused => Judgement::Trouble,
            _ => Judgement::Wrong,
        }
    }

    /// Whether one of several disks is wrong in this life, which those who use files do not hear of.
    pub(crate) fn is_failing(&self) -> bool {
        self.state().is_failing
    }

    /// Whether the index was lost. Of what was removed while a disk was out nobody knows that then: what lies there of it looks like what is
    /// left of a pack that is lost, and is told (E-2).
    pub(crate) fn lost_index(&self) -> bool {
        self.state().lost_index
    }

    /// For each client the last acknowledged step.
    pub(crate) fn acknowledged(&self) -> Vec<usize> {
        self.state().histories.iter().map(History::acknowledged).collect()
    }

    /// A client begins a change that leads to `model`.
    pub(crate) fn begin(&self, client: usize, what: String, model: Model, logs: Option<Key>) {
        let mut state = self.state();
        state.calls += 1;
        let begun = state.calls;
        let at = self.platform.clock.elapsed();
        state.histories[client].steps.push(Step { model, what, begun, ended: None, at, logs });
    }

    /// The change that the client began is acknowledged.
    pub(crate) fn acknowledge(&self, client: usize) {
        let mut state = self.state();
        state.calls += 1;
        state.summary.changes += 1;
        let (ended, at) = (state.calls, self.platform.clock.elapsed());
        let step = state.histories[client].steps.last_mut().expect("begun before");
        (step.ended, step.at) = (Some(ended), at);
    }

    /// The change that the client began did not happen.
    pub(crate) fn withdraw(&self, client: usize) {
        self.state().histories[client].steps.pop();
    }

    /// The id of the new node of the last change.
    pub(crate) fn name_file(&self, client: usize, key: Key, file: FileId) {
        self.name_files(client, std::iter::once((key, file)));
    }

    /// The ids of the new nodes of the last change.
    pub(crate) fn name_files(&self, client: usize, files: impl Iterator<Item = (Key, FileId)>) {
        let mut state = self.state();
        let step = state.histories[client].steps.last_mut().expect("just acknowledged");
        files.for_each(|(key, file)| step.model.node_mut(key).file = Some(file));
    }

    /// A sync that began when these steps were acknowledged has succeeded: of everything, or of one file's content.
    pub(crate) fn synced(&self, acknowledged: &[usize], content: Option<(usize, Key)>, is_all: bool) {
        if !self.is_powered() {
            // Nobody hears it: of two disks one had done its part before the power went, and the other looked as if it had failed (seed 1267 of
            // plan copies).
            return;
        }
        let mut state = self.state();
        state.summary.syncs += 1;
        for (history, step) in state.histories.iter_mut().zip(acknowledged) {
            history.names_floor = history.names_floor.max(*step);
            if is_all {
                history.content_floor = history.content_floor.max(*step);
            }
        }
        if let Some((client, key)) = content {
            let floor = state.histories[client].file_floors.entry(key).or_default();
            *floor = acknowledged[client].max(*floor);
        }
    }
}

/// What a call came to, for [`crate::client::Client::change`].
pub(crate) fn describe(change: &Change) -> &'static str {
    if change.is_ok() { "" } else { " (to be refused)" }
}
