//! How often a front end was given each file and has not given it back.
//!
//! The kernel keeps as many files as its memory holds, millions, and most of them once. So counts lie in runs of neighbouring ids, a
//! byte each; a count that needs more has its place apart.
//!
//! I-107 A count that reached the top stays there: nobody knows any more when the last one is given back.
//!
//! Not here: what ends with the last reference (`namespace`).

use std::collections::HashMap;

use base::id::FileId;
use foldhash::fast::FixedState;

/// Counts of so many neighbouring ids lie together. Ids of one directory are given in runs of 64, but most directories have fewer files.
const RUN: usize = 16;
/// Runs of which a part is, about: of some ten thousand files.
const PART_RUNS: usize = 1024;
/// The count is in `large`.
const LARGE: u8 = u8::MAX;

/// Counts by file. Its maps have no random key: the same in each run of a simulation.
#[derive(Default)]
pub(crate) struct References {
    /// By id, a run each.
    runs: HashMap<FileId, [u8; RUN], FixedState>,
    large: HashMap<FileId, u32, FixedState>,
}

impl References {
    pub(crate) fn has(&self, file: FileId) -> bool {
        self.count(file) > 0
    }

    fn count(&self, file: FileId) -> u32 {
        let (run, place) = place_of(file);
        match self.runs.get(&run).map_or(0, |counts| counts[place]) {
            LARGE => self.large[&file],
            small => u32::from(small),
        }
    }

    fn set(&mut self, file: FileId, count: u32) {
        let (run, place) = place_of(file);
        let counts = self.runs.entry(run).or_default();
        let is_large = counts[place] == LARGE;
        counts[place] = u8::try_from(count).unwrap_or(LARGE);
        let is_empty = *counts == [0; RUN];
        if counts[place] == LARGE {
            self.large.insert(file, count);
        } else if is_large {
            self.large.remove(&file);
        }
        if is_empty {
            self.runs.remove(&run);
            if self.runs.len() < self.runs.capacity() / 8 {
                self.runs.shrink_to_fit();
            }
        }
    }

    /// So many more.
    pub(crate) fn add(&mut self, file: FileId, count: u32) {
        self.set(file, self.count(file).saturating_add(count));
    }

    /// Takes `count` back; whether the last one went with it.
    pub(crate) fn take_back(&mut self, file: FileId, count: u64) -> bool {
        let before = self.count(file);
        if before == 0 || before == u32::MAX {
            return false;
        }
        let left = before.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
        self.set(file, left);
        left == 0
    }

    /// Whether any file of a branch was given. Looks at all of them.
    pub(crate) fn has_any_of(&self, branch: u32) -> bool {
        self.runs.keys().any(|run| run.branch == branch)
    }

    /// All of them, in no order.
    pub(crate) fn all(&self) -> Vec<(FileId, u32)> {
        let files = self.runs.keys().flat_map(|run| (0..RUN as u64).map(move |place| run.beside(run.number + place)));
        files.map(|file| (file, self.count(file))).filter(|(_, count)| *count > 0).collect()
    }

    /// In how many parts all of them are told, so that none takes much memory.
    pub(crate) fn parts(&self) -> u32 {
        u32::try_from(self.runs.len() / PART_RUNS + 1).unwrap_or(u32::MAX)
    }

    /// Those of one of so many parts, in no order. A file is of the same one all the time.
    pub(crate) fn part(&self, number: u32, parts: u32) -> Vec<FileId> {
        let parts = u64::from(parts.max(1));
        let runs = self.runs.iter().filter(|(run, _)| run.number / RUN as u64 % parts == u64::from(number));
        let files = runs.flat_map(|(run, counts)| {
            let given = counts.iter().enumerate().filter(|(_, count)| **count > 0);
            given.map(|(place, _)| run.beside(run.number + place as u64))
        });
        files.collect()
    }
}

/// The first id of a file's run, and its place there.
fn place_of(file: FileId) -> (FileId, usize) {
    let place = file.number % RUN as u64;
    (file.beside(file.number - place), place as usize)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use base::id::FileId;
    use proptest::prelude::*;

    use super::{PART_RUNS, RUN, References};

    #[test]
    fn parts_are_all_of_them_and_each_is_a_few() {
        let mut references = References::default();
        assert_eq!((references.parts(), references.part(0, 1)), (1, Vec::new()));
        for file in 0..100_000 {
            references.add(FileId::main(1 + 3 * file), 1);
        }
        let parts = references.parts();
        let mut files = Vec::new();
        for number in 0..parts {
            let part = references.part(number, parts);
            assert!(part.len() <= 2 * RUN * PART_RUNS, "{}", part.len());
            files.extend(part);
        }
        files.sort_unstable();
        assert_eq!(files, (0..100_000).map(|file| FileId::main(1 + 3 * file)).collect::<Vec<_>>());
        assert_eq!(references.part(0, 1).len(), 100_000, "in one");
    }

    proptest! {
        #[test]
        fn counts_are_those_of_a_plain_map(
            steps in prop::collection::vec((0..40_u64, any::<bool>(), prop_oneof![1..4_u32, 250..260_u32, Just(u32::MAX)]), 0..200),
        ) {
            let (mut references, mut model) = (References::default(), BTreeMap::<u64, u32>::new());
            for (file, gives, count) in steps {
                let before = model.get(&file).copied().unwrap_or(0);
                if gives {
                    references.add(FileId::main(file), count);
                    model.insert(file, before.saturating_add(count));
                } else {
                    let is_last = references.take_back(FileId::main(file), u64::from(count));
                    prop_assert_eq!(is_last, before > 0 && before < u32::MAX && before <= count);
                    if before < u32::MAX {
                        model.insert(file, before.saturating_sub(count));
                    }
                }
                model.retain(|_, count| *count > 0);
                prop_assert_eq!(references.has(FileId::main(file)), model.contains_key(&file));
            }
            let mut all: Vec<(u64, u32)> = references.all().into_iter().map(|(file, count)| (file.number, count)).collect();
            all.sort_unstable();
            prop_assert_eq!(all, model.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn neighbours_take_little_and_what_is_given_back_leaves_nothing() {
        let mut references = References::default();
        (0..1_000_000).for_each(|file| references.add(FileId::main(file), 1));
        assert!(references.runs.capacity() * 25 < 4 << 20, "{} runs", references.runs.capacity());
        (0..1_000_000).for_each(|file| assert!(references.take_back(FileId::main(file), 1)));
        assert!(references.runs.capacity() < 1024 && references.large.is_empty());
    }
}
