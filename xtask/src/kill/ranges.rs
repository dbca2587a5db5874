//! Ranges of one file: blocks written, zeroed by a hole, copied within the file, and its end cut and moved out; now and then an fsync.
//! Afterwards each block is what it was at the last sync or became since, and so is the size.
//!
//! Not here: writes through a mapping. The first touch of a mapped page after the kill would be a SIGBUS for this process; fsx writes so
//! (`posix`), and SQLite does.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use rustix::fs::{FallocateFlags, copy_file_range, fallocate};

use super::content::{self, Key};
use super::load::{Load, Round, Verified};
use crate::random::Random;

const BLOCK: usize = 4096;
/// Blocks that the file has at most.
const BLOCKS: u64 = 300;
/// Blocks of a change, at most: some make a whole chunk, most do not.
const SPAN: u64 = 24;

/// Of each block the version that it has; `None`: zeroes.
type Blocks = Vec<Option<u64>>;

#[derive(Clone, Debug)]
enum Change {
    /// From this block on so many, each of a version of its own from the first on.
    Write {
        block: u64,
        count: u64,
        first: u64,
    },
    Punch {
        block: u64,
        count: u64,
    },
    /// Both within the file, and apart.
    Copy {
        from: u64,
        to: u64,
        count: u64,
    },
    Resize {
        blocks: u64,
    },
}

/// The load.
#[derive(Debug)]
pub(super) struct Ranges {
    round: Round,
    thread: u64,
    path: PathBuf,
    random: Random,
    blocks: Blocks,
    /// What was begun; all but the last returned.
    changes: Vec<Change>,
    ended: u64,
    /// Changes up to here are synced.
    synced: u64,
}

impl Ranges {
    pub(super) fn new(round: &Round, thread: u64) -> Result<Ranges> {
        let path = round.folder.join("ranges");
        File::create_new(&path)?.sync_all()?;
        let (random, blocks) = (round.random(thread), Blocks::new());
        Ok(Ranges { round: round.clone(), thread, path, random, blocks, changes: Vec::new(), ended: 0, synced: 0 })
    }

    fn choose(&mut self) -> Change {
        let (size, first) = (self.blocks.len() as u64, self.changes.len() as u64 * SPAN);
        let random = &mut self.random;
        let count = random.between(1, SPAN);
        let within = |random: &mut Random| random.below(size.saturating_sub(count) + 1);
        match random.below(10) {
            0 | 1 if size > 0 => Change::Punch { block: within(random), count: count.min(size) },
            2 | 3 if size > 2 * count => {
                let (from, to) = (within(random), within(random));
                if from.abs_diff(to) >= count {
                    Change::Copy { from, to, count }
                } else {
                    Change::Copy { from: 0, to: size - count, count }
                }
            }
            4 => Change::Resize { blocks: random.below(BLOCKS) },
            // At the end, or behind it.
            5 if size + SPAN < BLOCKS => Change::Write { block: size + random.below(2), count, first },
            _ => Change::Write { block: random.below(BLOCKS - SPAN), count, first },
        }
    }

    fn apply(&self, file: &File, change: &Change) -> io::Result<()> {
        let bytes = |blocks: u64| blocks * BLOCK as u64;
        match *change {
            Change::Write { block, count, first } => {
                let content: Vec<u8> =
                    (first..first + count).flat_map(|version| content::make(self.key(version), 0, BLOCK)).collect();
                file.write_all_at(&content, bytes(block))
            }
            Change::Punch { block, count } => {
                let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                Ok(fallocate(file, how, bytes(block), bytes(count))?)
            }
            Change::Copy { from, to, count } => {
                let (mut from, mut to, mut left) = (bytes(from), bytes(to), bytes(count));
                while left > 0 {
                    let copied = copy_file_range(file, Some(&mut from), file, Some(&mut to), left as usize)?;
                    if copied == 0 {
                        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "copy_file_range copied nothing"));
                    }
                    left -= copied as u64;
                }
                Ok(())
            }
            Change::Resize { blocks } => file.set_len(bytes(blocks)),
        }
    }

    fn key(&self, version: u64) -> Key {
        Key::new(self.round.number, self.thread, version)
    }

    pub(super) fn open(&self) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(&self.path)
    }

    pub(super) fn step(&mut self, file: &File) -> io::Result<()> {
        let change = self.choose();
        self.changes.push(change.clone());
        self.apply(file, &change)?;
        replay(&mut self.blocks, &change);
        self.ended = self.changes.len() as u64;
        self.round.done(self.thread, self.ended);
        if self.random.one_in(25) {
            file.sync_data()?;
            self.synced = self.ended;
        }
        Ok(())
    }
}

impl Ranges {
    /// Each byte is what one of these versions has there.
    fn verify_block(&self, block: &[u8], may: &BTreeSet<Option<u64>>) -> Result<()> {
        let content = |version: &Option<u64>| match version {
            Some(version) => content::make(self.key(*version), 0, BLOCK),
            None => vec![0; BLOCK],
        };
        let mut is_right = vec![false; block.len()];
        for content in may.iter().map(content) {
            for (is_right, (byte, expected)) in is_right.iter_mut().zip(block.iter().zip(&content)) {
                *is_right |= byte == expected;
            }
        }
        let Some(at) = is_right.iter().position(|is_right| !is_right) else { return Ok(()) };
        // What is there instead.
        let found = content::check(self.key(may.iter().flatten().next().copied().unwrap_or(0)), 0, block);
        found.with_context(|| {
            format!("byte {at} is of no version that it had since the last sync ({may:?}; None: zeroes)")
        })
    }
}

impl Load for Ranges {
    fn name(&self) -> &str {
        "ranges"
    }

    fn run(&mut self) -> Option<String> {
        let round = self.round.clone();
        match self.open() {
            Ok(file) => round.until_killed(|| Ok(self.step(&file)?)),
            Err(error) => round.judge(&error),
        }
    }

    fn done(&self) -> u64 {
        self.ended
    }

    fn verify(&self) -> Result<Verified> {
        let bytes = std::fs::read(&self.path).with_context(|| format!("cannot read {}", self.path.display()))?;
        let synced = self.synced.max(self.round.covered(self.thread));
        let (mut blocks, mut sizes, mut may) = (Blocks::new(), BTreeSet::new(), Vec::<BTreeSet<Option<u64>>>::new());
        for number in 0..=self.changes.len() {
            if let Some(last) = number.checked_sub(1) {
                replay(&mut blocks, &self.changes[last]);
            }
            if number as u64 >= synced {
                sizes.insert(blocks.len() * BLOCK);
                may.resize_with(may.len().max(blocks.len()), BTreeSet::new);
                for (may, version) in may.iter_mut().zip(&blocks) {
                    may.insert(*version);
                }
            }
        }
        // What is not synced is there as far as it got: a size between those, and content of a change up to any byte of it.
        let (least, most) = (sizes.first().expect("one at least"), sizes.last().expect("one at least"));
        if !(*least..=*most).contains(&bytes.len()) {
            bail!("it has {} bytes; since the last sync it had {least} to {most}", bytes.len());
        }
        for (number, (block, may)) in bytes.chunks(BLOCK).zip(&may).enumerate() {
            self.verify_block(block, may)
                .with_context(|| format!("block {number} of {}", bytes.len().div_ceil(BLOCK)))?;
        }
        Ok(Verified { synced, present: self.ended, bytes: bytes.len() as u64 })
    }
}

fn replay(blocks: &mut Blocks, change: &Change) {
    let place = |block: u64, count: u64| block as usize..(block + count) as usize;
    match *change {
        Change::Write { block, count, first } => {
            blocks.resize(blocks.len().max((block + count) as usize), None);
            blocks[place(block, count)].iter_mut().zip(first..).for_each(|(block, version)| *block = Some(version));
        }
        Change::Punch { block, count } => blocks[place(block, count)].fill(None),
        Change::Copy { from, to, count } => blocks.copy_within(place(from, count), to as usize),
        Change::Resize { blocks: count } => blocks.resize(count as usize, None),
    }
}
