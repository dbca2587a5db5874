//! Ages: when every byte of a pack was last known to be what it should be, because it was written then, or read again.
//!
//! Kept to the minute, in memory and in the table `checked` of the index; an index that was made again tells what memory knew. A pack that
//! nobody knows anything of counts as never checked, and so does one of the future: the clock went back.
//!
//! Not here: reading packs again (`scrub`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use platform::Clock;

/// Minutes since 1970, of each pack by number.
pub(crate) type Checked = BTreeMap<u64, u32>;

pub(crate) struct Ages {
    clock: Arc<dyn Clock>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    checked: Checked,
    /// Packs of which the index file has not been told.
    changed: BTreeSet<u64>,
}

impl Ages {
    /// `checked`: as the index file has it.
    pub(crate) fn new(clock: Arc<dyn Clock>, checked: Checked) -> Ages {
        Ages { clock, known: Mutex::new(Known { checked, changed: BTreeSet::new() }) }
    }

    fn now(&self) -> u32 {
        u32::try_from(self.clock.now().seconds / 60).unwrap_or(0)
    }

    /// All of a pack is good now.
    pub(crate) fn note(&self, pack: u64) {
        let now = self.now();
        let mut known = self.known.lock();
        known.checked.insert(pack, now);
        known.changed.insert(pack);
    }

    pub(crate) fn forget(&self, pack: u64) {
        let mut known = self.known.lock();
        known.checked.remove(&pack);
        known.changed.remove(&pack);
    }

    /// How long ago, to the minute; `None`: never, as far as anybody knows.
    pub(crate) fn age(&self, pack: u64) -> Option<Duration> {
        let checked = self.known.lock().checked.get(&pack).copied()?;
        let minutes = self.now().checked_sub(checked)?;
        Some(Duration::from_secs(u64::from(minutes) * 60))
    }

    /// What is known of these packs.
    pub(crate) fn of(&self, packs: impl Iterator<Item = u64>) -> Checked {
        let known = self.known.lock();
        packs.filter_map(|pack| known.checked.get(&pack).map(|at| (pack, *at))).collect()
    }

    /// What the index file does not know yet.
    pub(crate) fn changed(&self) -> Checked {
        let known = self.known.lock();
        known.changed.iter().filter_map(|pack| known.checked.get(pack).map(|at| (*pack, *at))).collect()
    }

    /// The index file knows this.
    pub(crate) fn note_kept(&self, kept: &Checked) {
        let mut known = self.known.lock();
        for (pack, at) in kept {
            if known.checked.get(pack) == Some(at) {
                known.changed.remove(pack);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use platform::sim::World;

    use super::Ages;

    #[test]
    fn an_age_is_counted_from_the_last_check_and_told_once() {
        let world = World::new(3);
        let platform = world.platform();
        let ages = Ages::new(platform.clock.clone(), BTreeMap::from([(7, u32::MAX)]));
        ages.note(1);
        let sleep =
            |minutes: u64| world.run_until(platform.tasks.sleep(Duration::from_secs(60 * minutes))).expect("time");
        sleep(90);
        assert_eq!(ages.age(1), Some(Duration::from_secs(90 * 60)));
        assert_eq!((ages.age(2), ages.age(7)), (None, None), "unknown, and of the future");
        let told = ages.changed();
        sleep(1);
        ages.note(1);
        ages.note_kept(&told);
        assert_eq!(ages.changed().len(), 1, "what was told is not the newest");
        ages.note_kept(&ages.changed());
        assert_eq!(ages.changed().len(), 0);
        ages.forget(1);
        assert_eq!(ages.age(1), None);
    }
}
