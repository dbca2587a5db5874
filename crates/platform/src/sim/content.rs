//! One file's content: what is visible, what is durable, and the changes between the two.
//!
//! A pending write keeps an image of the whole sectors it touched, as they were just after it. When a later write survives
//! and an earlier one to the same sector does not, the sector still holds both, because it went to the medium in one piece.
//!
//! This is where rules M-1, M-3, M-4 and M-7 of the fault model are.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::blocks::{BLOCK_BYTES, Block, Blocks};
use super::random::Random;

/// The unit that a disk writes all or nothing.
pub(super) const SECTOR_BYTES: usize = 512;
const SECTOR: u64 = SECTOR_BYTES as u64;

/// Content of one file.
#[derive(Default)]
pub(super) struct Content {
    visible: Blocks,
    durable: Blocks,
    /// Since the last sync, in order.
    pending: Vec<Change>,
    /// Blocks that a sync changed, as they were before the last that did.
    older: BTreeMap<u64, Block>,
}

enum Change {
    Write {
        /// Where the image starts: the start of a sector.
        start: u64,
        image: Vec<u8>,
        /// Where the write itself ended. The image may go on to the end of the sector.
        end: u64,
    },
    Length(u64),
}

impl Content {
    pub(super) fn visible(&self) -> &Blocks {
        &self.visible
    }

    pub(super) fn durable(&self) -> &Blocks {
        &self.durable
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.visible.write(offset, bytes);
        let (start, end) = (offset - offset % SECTOR, offset + bytes.len() as u64);
        let count = usize::try_from(end.next_multiple_of(SECTOR) - start).expect("two sectors more than the bytes");
        let image = self.visible.slice(start, count);
        self.pending.push(Change::Write { start, image, end });
    }

    pub(super) fn set_length(&mut self, length: u64) {
        self.visible.set_length(length);
        self.pending.push(Change::Length(length));
    }

    /// What a lost write leaves: the file system thinks that it happened.
    pub(super) fn grow(&mut self, length: u64) {
        if length > self.visible.length() {
            self.set_length(length);
        }
    }

    /// A block as it was before the last sync that changed it.
    pub(super) fn older(&self, number: u64) -> Option<&Block> {
        self.older.get(&number)
    }

    pub(super) fn sync(&mut self) {
        for number in self.pending.iter().flat_map(Change::blocks).collect::<BTreeSet<_>>() {
            self.older.insert(number, self.durable.block(number));
        }
        for change in std::mem::take(&mut self.pending) {
            change.apply_all(&mut self.durable);
        }
    }

    /// A sync that failed. The kernel reports it once and may then call the pages clean.
    pub(super) fn fail_sync(&mut self, random: &mut Random) {
        match random.below(3) {
            // Still waiting: the next sync writes it.
            0 => {}
            // Evicted: what is on the medium shows again.
            1 => {
                self.settle(random);
                self.visible = self.durable.clone();
            }
            // In the cache, clean, and never written again.
            _ => self.settle(random),
        }
    }

    /// The power is gone: what was pending is kept, dropped or torn, and what is left is all there is.
    pub(super) fn lose(&mut self, random: &mut Random) {
        self.settle(random);
        self.visible = self.durable.clone();
    }

    /// Changes bytes where they rest, on the medium and in every copy of them: no sync mends it.
    pub(super) fn alter(&mut self, offset: u64, count: usize, change: impl Fn(usize, &mut u8)) {
        for blocks in [&mut self.visible, &mut self.durable] {
            let mut bytes = blocks.slice(offset, count);
            bytes.iter_mut().enumerate().for_each(|(at, byte)| change(at, byte));
            blocks.write(offset, &bytes);
        }
        for pending in &mut self.pending {
            if let Change::Write { start, image, .. } = pending {
                for (at, byte) in image.iter_mut().enumerate() {
                    let position = (*start + at as u64).checked_sub(offset).and_then(|at| usize::try_from(at).ok());
                    position
                        .filter(|position| *position < count)
                        .into_iter()
                        .for_each(|position| change(position, byte));
                }
            }
        }
    }

    /// Replaces everything, durably.
    pub(super) fn replace(&mut self, content: Blocks) {
        self.pending.clear();
        self.durable = content.clone();
        self.visible = content;
    }

    /// By a mood for the whole file, so that "all" and "nothing" are as likely as a mixture, whatever the number of changes.
    fn settle(&mut self, random: &mut Random) {
        let mood = random.below(4);
        for change in std::mem::take(&mut self.pending) {
            match mood {
                0 => {}
                1 => change.apply_all(&mut self.durable),
                _ => change.survive(&mut self.durable, random),
            }
        }
    }
}

impl Change {
    /// The blocks that it writes to.
    fn blocks(&self) -> Range<u64> {
        match self {
            Change::Length(_) => 0..0,
            Change::Write { start, image, .. } => {
                start / BLOCK_BYTES as u64..(start + image.len() as u64).div_ceil(BLOCK_BYTES as u64)
            }
        }
    }

    fn apply_all(&self, target: &mut Blocks) {
        match self {
            Change::Length(length) => target.set_length(*length),
            Change::Write { start, image, end } => write(target, *start, image, target.length().max(*end)),
        }
    }

    /// Writes some of the sectors of a write.
    fn apply_some(&self, target: &mut Blocks, random: &mut Random) {
        let Change::Write { start, image, end } = self else { return };
        let limit = target.length().max(*end);
        for (index, sector) in image.chunks(SECTOR_BYTES).enumerate() {
            if random.coin() {
                write(target, start + index as u64 * SECTOR, sector, limit);
            }
        }
    }

    fn survive(&self, target: &mut Blocks, random: &mut Random) {
        match random.below(3) {
            0 => {}
            1 => return self.apply_all(target),
            _ => self.apply_some(target, random),
        }
        // The journal may have the new length without the data.
        if let Change::Write { end, .. } = self
            && *end > target.length()
            && random.coin()
        {
            target.set_length(*end);
        }
    }
}

/// Bytes of the last sector that belong to other writes go with it, but do not make the file longer.
fn write(target: &mut Blocks, offset: u64, sectors: &[u8], limit: u64) {
    let count = usize::try_from(limit - offset).unwrap_or(usize::MAX).min(sectors.len());
    target.write(offset, &sectors[..count]);
}
