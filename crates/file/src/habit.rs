//! When the callers of a file sync it: who did so after the same number of writes again and again will do it again.
//!
//! A database writes the end of its log and syncs it, a mail server a message. Between the two calls the way from the answer of the one to the
//! request of the other passes, in which the disk could be at work already. So the sync is begun with the write after which it always came
//! ([decision 0019](../../../docs/decisions/0019-habit.md)). To make something durable early is never wrong; where nobody asks for it, it was a write of the
//! journal too many, and the habit is forgotten: at most one for [`TIMES`] syncs that were asked for.
//!
//! Not here: how a sync is begun (`flush`).

/// So many times after the same number of writes, and it is a habit.
const TIMES: u8 = 4;

/// What a file's callers do between two syncs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Habit {
    /// Writes since the last sync.
    writes: u8,
    /// Writes before the last sync.
    usual: u8,
    /// How many times in a row it was as many.
    times: u8,
}

/// What mostly comes after a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Nothing,
    /// A sync.
    Sync,
    /// A sync should have come before it, and did not.
    Otherwise,
}

impl Habit {
    /// Notes a write.
    pub(crate) fn note_write(&mut self) -> Expected {
        let is_habit = self.times >= TIMES;
        let is_late = self.writes >= self.usual;
        self.writes = self.writes.saturating_add(1);
        if is_habit && is_late {
            self.times = 0;
            Expected::Otherwise
        } else if is_habit && self.writes == self.usual {
            Expected::Sync
        } else {
            Expected::Nothing
        }
    }

    /// Notes a sync. One with no write before it says nothing.
    pub(crate) fn note_sync(&mut self) {
        match self.writes {
            0 => return,
            u8::MAX => self.times = 0,
            writes if writes == self.usual => self.times = self.times.saturating_add(1),
            writes => (self.usual, self.times) = (writes, 1),
        }
        self.writes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::{Expected, Habit, TIMES};

    /// What is expected after each of so many writes, and then they are synced.
    fn round(habit: &mut Habit, writes: usize) -> Vec<Expected> {
        let expected = (0..writes).map(|_| habit.note_write()).collect();
        habit.note_sync();
        expected
    }

    #[test]
    fn a_sync_is_expected_after_as_many_writes_as_ever() {
        for writes in [1, 3, 254] {
            let mut habit = Habit::default();
            for _ in 0..TIMES {
                assert!(round(&mut habit, writes).iter().all(|expected| *expected == Expected::Nothing));
            }
            for _ in 0..300 {
                let expected = round(&mut habit, writes);
                assert_eq!(expected.iter().position(|expected| *expected == Expected::Sync), Some(writes - 1));
                habit.note_sync();
            }
        }
    }

    #[test]
    fn who_writes_on_is_believed_again_only_after_as_many_times() {
        let mut habit = Habit::default();
        for _ in 0..TIMES {
            round(&mut habit, 1);
        }
        assert_eq!(round(&mut habit, 3), [Expected::Sync, Expected::Otherwise, Expected::Nothing]);
        for _ in 0..TIMES {
            assert_eq!(round(&mut habit, 1), [Expected::Nothing]);
        }
        assert_eq!(round(&mut habit, 1), [Expected::Sync]);
    }

    #[test]
    fn writes_without_end_are_no_habit() {
        let mut habit = Habit::default();
        for _ in 0..2 * TIMES {
            assert!(round(&mut habit, 300).iter().all(|expected| *expected == Expected::Nothing));
        }
    }
}
