//! One file with several writers at once: no byte is shared, all else is. Two go past the page cache, two have each write synced, and the
//! requests of one write are carried out side by side. Each reads what it wrote. Afterwards each byte is one that its
//! writer wrote there, and not older than what was synced of it.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};
use rustix::fs::OFlags;

use super::content::{self, Key};
use super::load::{Load, Round, Verified};
use crate::random::Random;

const BLOCK: usize = 4096;
/// Blocks that lie together and belong to one writer; the writers take turns along the file.
const PIECE: u64 = 512;
const PIECES: u64 = 2;

/// How each of the writers opens the file.
const WAYS: [OFlags; 4] = [OFlags::empty(), OFlags::DSYNC, OFlags::DIRECT, OFlags::DIRECT.union(OFlags::DSYNC)];
const WRITERS: u64 = WAYS.len() as u64;

/// The load.
#[derive(Debug)]
pub(super) struct Shared {
    round: Round,
    thread: u64,
    path: PathBuf,
    writers: Vec<Writer>,
}

#[derive(Debug)]
struct Writer {
    number: u64,
    random: Random,
    how: OFlags,
    /// The blocks of each write that was begun; all but the last returned.
    writes: Vec<Range<u64>>,
    ended: u64,
    /// Writes up to here are synced.
    synced: u64,
    /// Of each of its blocks the last write that ended, as its number and one more.
    last: Vec<u64>,
}

impl Shared {
    pub(super) fn new(round: &Round, thread: u64) -> Result<Shared> {
        let path = round.folder.join("shared");
        let file = File::create_new(&path)?;
        file.set_len(WRITERS * PIECES * PIECE * BLOCK as u64)?;
        file.sync_all()?;
        let writers = (0..WRITERS).zip(WAYS).map(|(number, how)| Writer {
            number,
            random: Random::new(round.random(thread).next() ^ number),
            how,
            writes: Vec::new(),
            ended: 0,
            synced: 0,
            last: vec![0; (PIECES * PIECE) as usize],
        });
        Ok(Shared { round: round.clone(), thread, path, writers: writers.collect() })
    }

    /// So many steps of each writer, one writer after the other.
    #[cfg(test)]
    pub(super) fn steps(&mut self, count: usize) -> Result<()> {
        let mut memory = Aligned::with(PIECE as usize * BLOCK);
        for writer in &mut self.writers {
            let file = writer.open(&self.path)?;
            (0..count).try_for_each(|_| writer.step(&file, (&self.round, self.thread), &mut memory))?;
        }
        Ok(())
    }
}

/// Where a write's content is made: past the page cache only aligned memory goes.
struct Aligned(Vec<u8>);

impl Aligned {
    fn with(bytes: usize) -> Aligned {
        Aligned(vec![0; bytes + BLOCK])
    }

    fn first(&mut self, bytes: usize) -> &mut [u8] {
        let start = self.0.as_ptr().align_offset(BLOCK);
        &mut self.0[start..start + bytes]
    }
}

impl Writer {
    fn open(&self, path: &PathBuf) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).custom_flags(self.how.bits().cast_signed()).open(path)
    }

    /// Where a block of this writer lies in the file.
    fn offset(&self, block: u64) -> u64 {
        ((block / PIECE * WRITERS + self.number) * PIECE + block % PIECE) * BLOCK as u64
    }

    /// What a write puts into one of its blocks.
    fn key(&self, (round, thread): (&Round, u64), write: u64) -> Key {
        Key::new(round.number, thread, write * WRITERS + self.number)
    }

    fn step(&mut self, file: &File, of: (&Round, u64), memory: &mut Aligned) -> Result<()> {
        let piece = self.random.below(PIECES) * PIECE;
        let start = self.random.below(PIECE);
        let most = if self.random.one_in(4) { PIECE - start } else { (PIECE - start).min(32) };
        let count = self.random.between(1, most);
        let blocks = piece + start..piece + start + count;
        let (offset, bytes) = (self.offset(blocks.start), count as usize * BLOCK);
        if self.random.one_in(3) {
            let found = memory.first(bytes);
            file.read_exact_at(found, offset)?;
            for (block, found) in blocks.zip(found.chunks(BLOCK)) {
                self.judge(of, block, found, self.last[block as usize]).context("while it ran")?;
            }
            return Ok(());
        }
        let write = self.writes.len() as u64;
        self.writes.push(blocks.clone());
        let key = self.key(of, write);
        memory.first(bytes).copy_from_slice(&content::make(key, offset, bytes));
        file.write_all_at(memory.first(bytes), offset)?;
        self.ended = write + 1;
        blocks.for_each(|block| self.last[block as usize] = self.ended);
        if self.how.contains(OFlags::DSYNC) {
            // What was written without such a flag stays as it was; here nothing was.
            self.synced = self.ended;
        } else if self.random.one_in(20) {
            file.sync_data()?;
            self.synced = self.ended;
        }
        Ok(())
    }

    /// A block is of the write of this number, whole (0: of none, and zeroes).
    fn judge(&self, of: (&Round, u64), block: u64, found: &[u8], last: u64) -> Result<()> {
        let offset = self.offset(block);
        let what = || format!("writer {}, block {block} of its own, at {offset}", self.number);
        match last.checked_sub(1) {
            Some(write) => content::check(self.key(of, write), offset, found).with_context(what),
            None if found.iter().all(|byte| *byte == 0) => Ok(()),
            None => bail!("{}: it is not written yet, and has bytes that are not zero", what()),
        }
    }

    /// All of its blocks: each byte is of the last write that was synced, or of one since: what is not synced is there as far as it got.
    fn verify(&self, of: (&Round, u64), bytes: &[u8]) -> Result<()> {
        let mut may = vec![vec![0]; (PIECES * PIECE) as usize];
        for (number, blocks) in (1..).zip(&self.writes) {
            for block in blocks.clone() {
                let may = &mut may[block as usize];
                if number <= self.synced {
                    may.clear();
                }
                may.push(number);
            }
        }
        for (block, may) in (0..).zip(may) {
            let offset = self.offset(block);
            let found = &bytes[offset as usize..][..BLOCK];
            let mut is_right = vec![false; BLOCK];
            for write in &may {
                let content = match write.checked_sub(1) {
                    Some(write) => content::make(self.key(of, write), offset, BLOCK),
                    None => vec![0; BLOCK],
                };
                let bytes = is_right.iter_mut().zip(found.iter().zip(&content));
                bytes.for_each(|(is_right, (byte, expected))| *is_right |= byte == expected);
            }
            let Some(at) = is_right.iter().position(|is_right| !is_right) else { continue };
            // What is there instead.
            self.judge(of, block, found, may[0]).with_context(|| {
                format!("byte {at} is of no write since the last that was synced ({may:?}; 0: zeroes)")
            })?;
        }
        Ok(())
    }
}

impl Load for Shared {
    fn name(&self) -> &str {
        "shared"
    }

    fn run(&mut self) -> Option<String> {
        let (round, thread, path) = (&self.round, self.thread, &self.path);
        let steps: [AtomicU64; WAYS.len()] = Default::default();
        let run = |writer: &mut Writer| match writer.open(path) {
            Ok(file) => {
                let mut memory = Aligned::with(PIECE as usize * BLOCK);
                round.until_killed(|| {
                    writer.step(&file, (round, thread), &mut memory)?;
                    steps[writer.number as usize].fetch_add(1, Ordering::SeqCst);
                    // One that stands still is seen behind three that do not.
                    let least = steps.iter().map(|steps| steps.load(Ordering::SeqCst)).min();
                    round.done(thread, least.expect("there are some"));
                    Ok(())
                })
            }
            Err(error) => round.judge(&error),
        };
        std::thread::scope(|scope| {
            let running: Vec<_> = self.writers.iter_mut().map(|writer| scope.spawn(|| run(writer))).collect();
            let ended = running.into_iter().map(|writer| writer.join().expect("it returns what it said"));
            ended.fold(None, Option::or)
        })
    }

    fn done(&self) -> u64 {
        self.writers.iter().map(|writer| writer.ended).sum()
    }

    /// A sync of everything is left out: how far each writer was then is not known.
    fn verify(&self) -> Result<Verified> {
        let bytes = std::fs::read(&self.path).with_context(|| format!("cannot read {}", self.path.display()))?;
        let expected = WRITERS * PIECES * PIECE * BLOCK as u64;
        if bytes.len() as u64 != expected {
            bail!("it has {} bytes; it had {expected} from the beginning", bytes.len());
        }
        for writer in &self.writers {
            writer.verify((&self.round, self.thread), &bytes)?;
        }
        let synced = self.writers.iter().map(|writer| writer.synced).sum();
        Ok(Verified { synced, present: synced, bytes: bytes.len() as u64 })
    }
}
