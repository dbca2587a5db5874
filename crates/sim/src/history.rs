//! The history of a client since the last opening: one model after each change, and what of it is certain.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::{Key, Model};

/// A change, done or under way.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// After the change.
    pub(crate) model: Model,
    /// In words.
    pub(crate) what: String,
    /// When it began, in calls of all clients.
    pub(crate) begun: u64,
    /// When it was acknowledged; `None`: it was not, and may have happened.
    pub(crate) ended: Option<u64>,
    /// When it was acknowledged, in virtual time.
    pub(crate) at: Duration,
    /// The file whose content up to here is durable when this step is: it was renamed over another.
    pub(crate) logs: Option<Key>,
}

/// See the module's head. Step 0 is what was verified at the opening.
#[derive(Clone, Debug)]
pub(crate) struct History {
    pub(crate) steps: Vec<Step>,
    /// The names of all steps up to this one are durable.
    pub(crate) names_floor: usize,
    /// The content of all files of all steps up to this one is durable.
    pub(crate) content_floor: usize,
    /// The same for single files.
    pub(crate) file_floors: BTreeMap<Key, usize>,
}

impl History {
    /// A history that begins here.
    pub(crate) fn new(model: Model) -> History {
        let first = Step { model, what: "opened".to_owned(), begun: 0, ended: Some(0), at: Duration::ZERO, logs: None };
        History { steps: vec![first], names_floor: 0, content_floor: 0, file_floors: BTreeMap::new() }
    }

    /// The last acknowledged step. Only the last step can be one that is not.
    pub(crate) fn acknowledged(&self) -> usize {
        let last = self.steps.len() - 1;
        if self.steps[last].ended.is_some() { last } else { last - 1 }
    }

    /// The last step, acknowledged or not.
    pub(crate) fn last(&self) -> usize {
        self.steps.len() - 1
    }

    /// The model as the client knows it.
    pub(crate) fn model(&self) -> &Model {
        &self.steps[self.acknowledged()].model
    }

    /// The content of a file must be at least that of this step, for it was synced.
    pub(crate) fn synced_floor_of(&self, key: Key) -> usize {
        self.file_floors.get(&key).copied().unwrap_or(0).max(self.content_floor)
    }

    /// The content of a file must be at least that of this step, if the names of step `names` are there.
    pub(crate) fn renamed_floor_of(&self, key: Key, names: usize) -> usize {
        let mut steps = self.steps[..=names].iter().enumerate().rev();
        steps.find(|(_, step)| step.logs == Some(key)).map_or(0, |(number, _)| number)
    }
}
