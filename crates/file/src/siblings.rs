//! Who reads the small files of a directory one after the other, and which of them he is about to want. Pure.
//!
//! Where a file lies on the disk has little to do with the order in which a program reads the files of a directory: that of the listing, that
//! of names, or none. So when some of a directory were read, others are read ahead, those that come next in the listing, by the order in
//! which they lie: so many for each that was read that a guess which turns out to be wrong has cost little, and soon all of them.
//!
//! A directory is given up when few of what was read ahead was what was read. Where much was in vain it takes more files of the next one before
//! anybody believes it, up to a bound, until guesses come true again.
//!
//! A tree that is walked is foreseen in the same way: what is a file here is then a directory, and what is read of it the names that it has.
//!
//! Not here: the reading (`batch::ahead`, `walk_ahead`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::attributes::Node;

/// Files of a directory that are read before any is read ahead: at first, and after many that were in vain.
const READ_MIN: u64 = 4;
const PATIENCE_MAX: u64 = 256;
/// Files that may be read ahead for each that was read.
const TRUST: u64 = 64;
/// A directory is forgotten after so many reads of others.
const READS_MAX: u64 = 256;
/// Directories that are remembered.
const DIRECTORIES: usize = 8;
/// Files that a directory is judged by, and the part of them that must have been read ahead.
const JUDGED: u64 = 64;
const USED_PART: u64 = 8;

/// What should be read ahead.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    /// From the files behind this cookie.
    pub(crate) after: u64,
    /// So many at most, and so many bytes.
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// It is wanted no more.
    pub(crate) is_cancelled: Arc<AtomicBool>,
}

/// What came of a read.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    pub(crate) wish: Option<Wish>,
    /// Whether the file was read ahead.
    pub(crate) was_ahead: bool,
    /// Files that were read ahead in vain.
    pub(crate) wasted: u64,
}

/// A directory whose files are read.
#[derive(Debug)]
struct Watched {
    directory: Node,
    /// When it was read last, in reads.
    last: u64,
    /// Files of it that were read, and the last few.
    reads: u64,
    recent: VecDeque<u64>,
    /// What was read ahead and not read, in bytes.
    ahead: BTreeMap<u64, u64>,
    ahead_bytes: u64,
    /// Files that were asked for, and where the listing goes on; `None`: all were.
    asked: u64,
    next: Option<u64>,
    /// Of those that were read since it was asked for the last time.
    used: u64,
    missed: u64,
    is_asking: bool,
    is_given_up: bool,
    is_cancelled: Arc<AtomicBool>,
}

impl Watched {
    fn new(directory: Node) -> Watched {
        Watched {
            directory,
            last: 0,
            reads: 0,
            recent: VecDeque::new(),
            ahead: BTreeMap::new(),
            ahead_bytes: 0,
            asked: 0,
            next: Some(0),
            used: 0,
            missed: 0,
            is_asking: false,
            is_given_up: false,
            is_cancelled: Arc::default(),
        }
    }

    fn note(&mut self, file: u64, may_ask: bool, patience: u64, bytes_max: u64) -> Noted {
        let mut noted = Noted::default();
        if self.recent.contains(&file) {
            return noted;
        }
        if self.recent.len() as u64 == READ_MIN {
            self.recent.pop_front();
        }
        self.recent.push_back(file);
        self.reads += 1;
        if let Some(bytes) = self.ahead.remove(&file) {
            self.ahead_bytes -= bytes;
            self.used += 1;
            noted.was_ahead = true;
        } else {
            self.missed += u64::from(self.asked > 0);
        }
        let judged = self.used + self.missed;
        if judged >= JUDGED && self.used * USED_PART < judged && !self.is_asking {
            noted.wasted = self.give_up();
            self.is_given_up = true;
        }
        noted.wish = self.wish(patience, bytes_max).filter(|_| may_ask);
        self.is_asking |= noted.wish.is_some();
        noted
    }

    fn wish(&self, patience: u64, bytes_max: u64) -> Option<Wish> {
        let is_believed = self.asked > 0 || self.reads >= patience;
        let after = self.next.filter(|_| is_believed && !self.is_asking && !self.is_given_up)?;
        let allowed = self.reads * TRUST;
        // By doubling, and where there is room for as much again.
        let is_due = allowed >= 2 * self.asked && 2 * self.ahead_bytes <= bytes_max;
        is_due.then(|| Wish {
            after,
            files: allowed - self.asked,
            bytes: bytes_max - self.ahead_bytes,
            is_cancelled: Arc::clone(&self.is_cancelled),
        })
    }

    /// How much of what was read ahead nobody read.
    fn forgotten(mut self) -> u64 {
        self.give_up()
    }

    /// Forgets what was read ahead. How much that was.
    fn give_up(&mut self) -> u64 {
        self.is_cancelled.store(true, Ordering::Relaxed);
        self.ahead_bytes = 0;
        std::mem::take(&mut self.ahead).len() as u64
    }
}

/// The directories whose files are read, the one that was read last at the end.
struct Memory {
    watched: VecDeque<Watched>,
    /// Reads so far.
    reads: u64,
    /// Files of a directory that are read before any is read ahead, and those since that were read ahead and used.
    patience: u64,
    used: u64,
}

impl Memory {
    /// Takes out what is known of a directory, unless it is too old; and makes room for one. Files that were read ahead in vain.
    fn take(&mut self, directory: Node) -> (Watched, u64) {
        let place = self.watched.iter().position(|watched| watched.directory == directory);
        let mut found = place.and_then(|place| self.watched.remove(place));
        let mut wasted = 0;
        if let Some(old) = found.take_if(|found| self.reads - found.last > READS_MAX) {
            wasted += old.forgotten();
        }
        if self.watched.len() == DIRECTORIES {
            wasted += self.watched.pop_front().map_or(0, Watched::forgotten);
        }
        (found.unwrap_or_else(|| Watched::new(directory)), wasted)
    }

    fn judge(&mut self, noted: &Noted) {
        self.used += u64::from(noted.was_ahead);
        if noted.wasted > self.used + JUDGED / 4 {
            (self.patience, self.used) = ((2 * self.patience).min(PATIENCE_MAX), 0);
        } else if self.used >= JUDGED {
            (self.patience, self.used) = (READ_MIN, 0);
        }
    }
}

/// The directories whose files are read.
pub(crate) struct Siblings {
    memory: Mutex<Memory>,
    bytes_max: u64,
}

impl Siblings {
    /// `bytes_max`: of what is read ahead of a directory and not used yet; 0: nothing is.
    pub(crate) fn new(bytes_max: u64) -> Siblings {
        let memory = Memory { watched: VecDeque::new(), reads: 0, patience: READ_MIN, used: 0 };
        Siblings { memory: Mutex::new(memory), bytes_max }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.bytes_max > 0
    }

    /// A small file of a directory is read. Unless one `may_ask`, nothing is wished for.
    pub(crate) fn note(&self, directory: Node, file: u64, may_ask: bool) -> Noted {
        let mut memory = self.memory.lock();
        memory.reads += 1;
        let (mut found, wasted) = memory.take(directory);
        found.last = memory.reads;
        let mut noted = found.note(file, may_ask, memory.patience, self.bytes_max);
        noted.wasted += wasted;
        memory.judge(&noted);
        memory.watched.push_back(found);
        noted
    }

    /// A wish comes true: these files, with their bytes, are about to be read ahead, and the listing goes on there.
    pub(crate) fn asked(
        &self,
        directory: Node,
        wish: &Wish,
        files: impl Iterator<Item = (u64, u64)>,
        next: Option<u64>,
    ) {
        let mut memory = self.memory.lock();
        let is_it = |watched: &&mut Watched| {
            watched.directory == directory && Arc::ptr_eq(&watched.is_cancelled, &wish.is_cancelled)
        };
        let Some(watched) = memory.watched.iter_mut().find(is_it) else { return };
        for (file, bytes) in files {
            watched.asked += 1;
            watched.ahead_bytes += bytes - watched.ahead.insert(file, bytes).unwrap_or(0).min(bytes);
        }
        (watched.used, watched.missed, watched.next, watched.is_asking) = (0, 0, next, false);
    }
}

#[cfg(test)]
mod tests;
