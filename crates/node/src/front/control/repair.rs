//! Checks and repairs: a check proposes, a round of a repair carries out what the last check proposed, and checks again.
//!
//! Whoever asks for a round was told its plan: what a check proposes after a round waits for the next one (decision 0007).
//!
//! Not here: what is wrong and what mends it (the layers below), the words of a report (`report`).

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::os::unix::fs::MetadataExt;

use base::units::Bytes;
use file::{Depth, FileError, Remedy};
use parking_lot::Mutex;
use platform::real::block_on;
use serde_json::Value;

use super::Control;
use super::report::Checked;
use crate::failure::Failure;

/// Steps of one repair. What is not mended then keeps coming back, and somebody has to look at it.
const STEPS_MAX: usize = 1000;
/// How often one step is taken: one that is proposed again then has changed nothing.
const TIMES_MAX: usize = 3;
/// Names and files that the outcome of a step lists.
const WORDS_MAX: usize = 1000;

/// A repair, from the check before it to its last round.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// What the next round does.
    plan: BTreeSet<Remedy>,
    /// How often each step was taken.
    taken: BTreeMap<Remedy, usize>,
    /// What is not done again.
    tried: BTreeSet<Remedy>,
    /// What gave no answer, in words: nothing is known to be lost from then on (I-101).
    unanswered: Option<String>,
}

impl Rounds {
    /// Plans the next round: what a check proposes, but for what was tried. Nothing, once there were too many steps.
    fn plan(&mut self, proposed: &BTreeSet<Remedy>, unanswered: Option<String>) {
        self.unanswered = take(&mut self.unanswered).or(unanswered);
        let is_over = self.taken.values().sum::<usize>() >= STEPS_MAX;
        self.plan = proposed.difference(&self.tried).copied().filter(|_| !is_over).collect();
    }

    fn note(&mut self, remedy: Remedy, outcome: &Result<String, String>) {
        let is_of_trees = matches!(remedy, Remedy::Trees { .. });
        if let (Err(why), false) = (outcome, is_of_trees) {
            self.unanswered.get_or_insert_with(|| format!("cannot {remedy}: {why}"));
        }
        let times = self.taken.entry(remedy).or_default();
        *times += 1;
        // Trees are written again once: what is wrong with them then, another time would not mend. Nor does what was done some times and
        // is proposed again.
        if outcome.is_err() || is_of_trees || *times == TIMES_MAX {
            self.tried.insert(remedy);
        }
    }
}

impl Control {
    /// Checks everything, and plans the first round of a repair.
    pub(super) fn fsck(&self, deep: bool, progress: &mut dyn FnMut(&str)) -> Result<Value, Failure> {
        let checked = self.check(deep, progress)?;
        let mut rounds = Rounds::default();
        rounds.plan(&checked.proposed(), checked.unanswered());
        let report = checked.to_json(&rounds.plan);
        *self.rounds.lock() = rounds;
        Ok(report)
    }

    /// One round: does what was planned, looks again, and plans the next.
    pub(super) fn repair(
        &self,
        deep: bool,
        accept_loss: bool,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Value, Failure> {
        self.system.refuse_degraded().map_err(self.explain("cannot repair the node"))?;
        // Who asks beside this one finds nothing to do.
        let mut rounds = take(&mut *self.rounds.lock());
        let plan = take(&mut rounds.plan);
        let mut steps = Vec::new();
        for (number, remedy) in plan.iter().enumerate() {
            progress(&format!("step {} of {}: {remedy}", number + 1, plan.len()));
            let outcome = self.carry_out(*remedy, accept_loss, rounds.unanswered.as_deref());
            rounds.note(*remedy, &outcome);
            steps.push((*remedy, outcome));
        }
        let checked = self.check(deep, progress)?;
        rounds.plan(&checked.proposed(), checked.unanswered());
        let report = checked.after(&steps, &rounds.plan);
        *self.rounds.lock() = rounds;
        Ok(report)
    }

    fn check(&self, deep: bool, progress: &mut dyn FnMut(&str)) -> Result<Checked, Failure> {
        let cannot = self.explain("cannot check the node");
        let (send, receive) = std::sync::mpsc::channel::<String>();
        let check = || {
            let send = Mutex::new(send);
            let tell = |text: String| drop(send.lock().send(text));
            let depth = if deep { Depth::Deep } else { Depth::Shallow };
            // The store first: which files need the chunks that are damaged is seen after it.
            let store = block_on(self.system.check_store(depth, &|done, total| {
                tell(format!("looked at {} of {}", Bytes(done), Bytes(total)));
            }));
            let files = block_on(self.system.check_files(&|count| tell(format!("looked at {count} files"))))?;
            let is_degraded = self.system.refuse_degraded().is_err();
            Ok(Checked { deep, is_degraded, files, store })
        };
        let checked = std::thread::scope(|scope| {
            let worker = scope.spawn(check);
            receive.iter().for_each(|text| progress(&text));
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        checked.map_err(cannot)
    }

    fn carry_out(&self, remedy: Remedy, accept_loss: bool, unanswered: Option<&str>) -> Result<String, String> {
        let words = |error: FileError| error.to_string();
        let Remedy::Trees { gives_up } = remedy else {
            return block_on(self.system.repair_store(remedy)).map_err(words);
        };
        if self.is_daemon {
            return Err(
                "not while a daemon has the node open: end it (`hydrafs umount` or `hydrafs stop`), and repair then"
                    .into(),
            );
        }
        if gives_up && !accept_loss {
            return Err("not without --accept-loss, for what cannot be read now is lost then".into());
        }
        if let Some(unanswered) = unanswered.filter(|_| gives_up) {
            return Err(format!(
                "not while a part of the store gives no answer, for what is missing may lie there ({unanswered}): mend the disk, and \
                 repair again. If it cannot be mended, take away the file that cannot be read, once a repair has copied what can be \
                 read of it (`fsck --repair --deep` tells how much that is)"
            ));
        }
        let folder = std::fs::metadata(&self.folder.path).map_err(|error| error.to_string())?;
        let done = block_on(self.system.repair_files(gives_up, (folder.uid(), folder.gid()))).map_err(words)?;
        let shown = done.iter().take(WORDS_MAX).cloned().collect::<Vec<_>>().join("; ");
        let more = done.len().saturating_sub(WORDS_MAX);
        Ok(match (done.is_empty(), more) {
            (true, _) => "there was nothing to do any more".to_owned(),
            (_, 0) => shown,
            _ => format!("{shown}; and {more} more"),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use file::Remedy;

    use super::{Rounds, STEPS_MAX, TIMES_MAX};

    const DONE: Result<String, String> = Ok(String::new());

    fn planned(rounds: &mut Rounds, proposed: &[Remedy]) -> Vec<Remedy> {
        rounds.plan(&proposed.iter().copied().collect(), None);
        rounds.plan.iter().copied().collect()
    }

    /// What a round uncovers is planned, what failed or does not help is not done for ever.
    #[test]
    fn a_repair_goes_on_while_there_is_something_new_to_do() {
        let (index, pack, trees) = (Remedy::Index, Remedy::Pack { pack: 1 }, Remedy::Trees { gives_up: false });
        let mut rounds = Rounds::default();
        assert_eq!(planned(&mut rounds, &[index, trees]), [index, trees]);
        rounds.note(index, &DONE);
        rounds.note(trees, &DONE);
        assert_eq!(planned(&mut rounds, &[index, pack, trees]), [index, pack], "trees are written once");
        rounds.note(pack, &Err("the disk is full".to_owned()));
        (1..TIMES_MAX).for_each(|_| rounds.note(index, &DONE));
        assert_eq!(planned(&mut rounds, &[index, pack, trees]), []);
        assert_eq!(rounds.unanswered.as_deref(), Some(&*format!("cannot {pack}: the disk is full")));
    }

    #[test]
    fn what_gave_no_answer_once_is_remembered() {
        let mut rounds = Rounds::default();
        rounds.plan(&BTreeSet::new(), Some("a pack".to_owned()));
        rounds.plan(&BTreeSet::new(), None);
        assert_eq!(rounds.unanswered.as_deref(), Some("a pack"));
    }

    #[test]
    fn a_repair_has_an_end() {
        let mut rounds = Rounds::default();
        (0..STEPS_MAX as u64).for_each(|pack| rounds.note(Remedy::Pack { pack }, &DONE));
        assert_eq!(planned(&mut rounds, &[Remedy::Index]), []);
    }
}
