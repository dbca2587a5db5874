//! Noticing that metadata is read about where it lies, and asking the disk for more than was asked of us.
//!
//! A commit writes tree nodes one behind the other, a few KiB each. Who walks a directory tree wants them one after the other, and each
//! wait for a disk costs as much as a hundred KiB. So when a second chunk of a block is read from a file, the rest of the block is asked
//! for too, and where that leads on into the next block, that one and the one behind it. Who reads here and there pays nothing.
//!
//! A guess: it changes what the system has cached, never what is read.
//!
//! Not here: file data, which is read ahead by what a reader of a file will want (`Store::prefetch`).

use std::collections::VecDeque;
use std::ops::Range;

use parking_lot::Mutex;

/// What is asked for together, in bytes.
const BLOCK_BYTES: u64 = 128 << 10;
/// Blocks that are remembered of each kind: some readers in some packs at a time.
const REMEMBERED_MAX: usize = 64;

/// A pack and a block of it.
type Block = (u64, u64);

#[derive(Default)]
pub(super) struct Neighbours {
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    /// One chunk was read here.
    touched: VecDeque<Block>,
    /// They were asked for.
    wanted: VecDeque<Block>,
}

impl Neighbours {
    /// A chunk at this place is about to be read from the file: the bytes of the pack that should be asked for with it.
    pub(super) fn note(&self, pack: u64, offset: u64) -> Option<Range<u64>> {
        let number = offset / BLOCK_BYTES;
        let mut memory = self.memory.lock();
        if memory.wanted.contains(&(pack, number)) {
            return None;
        }
        let leads_on = number.checked_sub(1).is_some_and(|before| memory.wanted.contains(&(pack, before)));
        if !leads_on && !memory.touched.contains(&(pack, number)) {
            remember(&mut memory.touched, (pack, number));
            return None;
        }
        let end = if leads_on { number + 2 } else { number + 1 };
        (number..end).for_each(|number| remember(&mut memory.wanted, (pack, number)));
        Some(number * BLOCK_BYTES..end * BLOCK_BYTES)
    }
}

fn remember(list: &mut VecDeque<Block>, block: Block) {
    if list.len() == REMEMBERED_MAX {
        list.pop_front();
    }
    list.push_back(block);
}

#[cfg(test)]
mod tests {
    use super::{BLOCK_BYTES, Neighbours, REMEMBERED_MAX};

    #[test]
    fn the_second_chunk_of_a_block_wants_it_and_the_next_block_two() {
        let neighbours = Neighbours::default();
        let at = |block: u64| block * BLOCK_BYTES + 100;
        assert_eq!(neighbours.note(7, at(3)), None);
        assert_eq!(neighbours.note(8, at(3)), None, "of another pack");
        assert_eq!(neighbours.note(7, at(3) + 4000), Some(3 * BLOCK_BYTES..4 * BLOCK_BYTES));
        assert_eq!(neighbours.note(7, at(3) + 8000), None, "it was asked for");
        assert_eq!(neighbours.note(7, at(4)), Some(4 * BLOCK_BYTES..6 * BLOCK_BYTES));
        assert_eq!(neighbours.note(7, at(5)), None);
        assert_eq!(neighbours.note(7, at(6)), Some(6 * BLOCK_BYTES..8 * BLOCK_BYTES));
        assert_eq!(neighbours.note(7, at(9)), None, "a block was left out");
    }

    #[test]
    fn who_reads_here_and_there_asks_for_nothing() {
        let neighbours = Neighbours::default();
        for round in 0..3 {
            for block in 0..2 * REMEMBERED_MAX as u64 {
                assert_eq!(neighbours.note(1, 2 * block * BLOCK_BYTES), None, "round {round}");
            }
        }
    }
}
