//! The client's end of a batch: fills windows while the daemon empties others.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use serde_json::Value;

use super::memory::{Filling, Memory};
use super::wire::{Entry, PIECE_HEAD_BYTES, Record, Records, piece_head};
use crate::control::client::{Daemon, Talk};
use crate::control::wire::{
    Answer, BatchComparing, BatchReading, BatchWriting, Emptied, Filled, LIST_BYTES_MAX, Listing, Request, Turn,
};
use crate::failure::Failure;

/// Windows of a batch that is written: one or two are filled while the daemon has the others.
const WINDOWS: u32 = 4;
/// Bytes of each: what becomes one unit.
const WINDOW_BYTES: u32 = 16 << 20;
/// Windows of a batch that is read.
const READ_WINDOWS: u32 = 8;
/// Bytes of each: small, so that the client works soon, and on what the processor's cache still has.
const READ_WINDOW_BYTES: u32 = 2 << 20;
const _: () = assert!(LIST_BYTES_MAX <= READ_WINDOW_BYTES, "a list lies in one window");
/// Content of a file from which on a batch gains nothing.
const BATCHED_BYTES_MAX: u64 = 1 << 20;

/// How a batch is written.
#[derive(Clone, Copy, Debug)]
pub struct Writing {
    /// `st_ino` of the directory that paths begin in. Somebody has it open, so that the daemon knows the number.
    pub parent: u64,
    /// A file that is there is replaced.
    pub replace: bool,
    /// Modes, owners and times are as entries say.
    pub preserve: bool,
    /// So are access lists, also where an entry has none.
    pub lists: bool,
    /// Bits to take away from modes otherwise.
    pub umask: u32,
}

/// How a batch is read.
#[derive(Clone, Debug)]
pub struct Reading {
    /// `st_ino` of each file or directory, at most [`ROOTS_MAX`](crate::control::wire::ROOTS_MAX). Somebody has them open, so that the daemon
    /// knows the numbers. Paths begin with the place in this list (`wire::split_root`).
    pub roots: Vec<u64>,
    /// Content too.
    pub content: bool,
    /// Extended attributes too.
    pub xattrs: bool,
    /// Of the one root only what is listed, with everything below that.
    pub list: Option<PathList>,
}

/// Paths below a root, names with a slash between them: as many as one batch reads.
#[derive(Clone, Debug)]
pub struct PathList {
    records: Vec<u8>,
    /// The directories that lead to them are told of too, each before what is in it.
    parents: bool,
}

impl PathList {
    /// Of nothing yet.
    #[must_use]
    pub fn new(parents: bool) -> PathList {
        PathList { records: Vec::new(), parents }
    }

    /// Takes one more; `false`: it is for the next batch.
    pub fn push(&mut self, path: &[u8]) -> bool {
        let record = Record::Path(path.to_vec()).encode();
        let has_room = self.records.len() + record.len() <= LIST_BYTES_MAX as usize;
        if has_room {
            self.records.extend(record);
        }
        has_room
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

/// What is compared.
#[derive(Clone, Copy, Debug)]
pub struct Comparing {
    /// `st_ino` of the file or directory as it was. Somebody has both open, so that the daemon knows the numbers.
    pub before: u64,
    /// That of what it is compared with.
    pub after: u64,
    /// Only kinds, content, link targets and device numbers count.
    pub content_only: bool,
}

/// Why an entry was not written, by its number.
pub type Failed = (u64, String);

/// An entry, and its content as runs of bytes by offset.
pub struct Put<'a> {
    /// The entry.
    pub entry: &'a Entry,
    /// The runs; none is empty.
    pub content: Vec<(u64, &'a [u8])>,
}

/// As many entries as a window has room for: heads, and between them what is written from where it lies.
struct Gathered<'a> {
    count: usize,
    heads: Vec<u8>,
    /// Each run of bytes with the end of the heads before it.
    runs: Vec<(usize, &'a [u8])>,
}

impl<'a> Gathered<'a> {
    fn of(puts: &[Put<'a>], first: u64, room: usize) -> Gathered<'a> {
        let (mut gathered, mut bytes) = (Gathered { count: 0, heads: Vec::new(), runs: Vec::new() }, 0);
        for (number, Put { entry, content }) in (first..).zip(puts) {
            let head = Record::Entry(Box::new((*entry).clone())).encode();
            bytes += head.len() + content.iter().map(|(_, run)| PIECE_HEAD_BYTES + run.len()).sum::<usize>();
            if bytes > room {
                break;
            }
            gathered.heads.extend_from_slice(&head);
            for (offset, run) in content {
                gathered.heads.extend_from_slice(&piece_head(number, *offset, run.len()));
                gathered.runs.push((gathered.heads.len(), run));
            }
            gathered.count += 1;
        }
        gathered
    }

    fn slices(&self) -> Vec<IoSlice<'_>> {
        let (mut slices, mut at) = (Vec::with_capacity(2 * self.runs.len() + 1), 0);
        for (end, run) in &self.runs {
            slices.push(IoSlice::new(&self.heads[at..*end]));
            slices.push(IoSlice::new(run));
            at = *end;
        }
        if at < self.heads.len() {
            slices.push(IoSlice::new(&self.heads[at..]));
        }
        slices
    }
}

/// Writes files and directories below a directory of a mount, many at a time.
pub struct BatchWriter {
    talk: Talk,
    memory: Memory,
    /// Bytes of a window that may be filled.
    room: u32,
    free: VecDeque<u32>,
    /// The window that is being filled.
    filling: Option<Filling>,
    /// Windows that the daemon has, and the number behind the last entry of each.
    away: VecDeque<(u32, u64)>,
    /// The next entry's number.
    next: u64,
    /// Entries below it are settled.
    settled: u64,
    /// Units that were written.
    units: u64,
    failed: Vec<Failed>,
}

impl BatchWriter {
    /// Begins.
    pub fn begin(daemon: Daemon, how: &Writing) -> Result<BatchWriter, Failure> {
        let cannot = |error: std::io::Error| Failure::new("cannot share memory with the daemon", error);
        let memory = Memory::make(WINDOWS, WINDOW_BYTES).map_err(cannot)?;
        let Writing { parent, replace, preserve, lists, umask } = *how;
        let (windows, window_bytes) = (memory.windows(), memory.window_bytes());
        let how = BatchWriting { parent, windows, window_bytes, replace, atomic: false, preserve, lists, umask };
        let mut talk = daemon.begin(&Request::BatchWrite(how), Some(memory.share().map_err(cannot)?))?;
        let room = match talk.hear()? {
            Answer::Ready { window_bytes } => window_bytes.min(memory.window_bytes()),
            Answer::Failed(failure) => return Err(failure),
            other => return Err(talk.unexpected(&other)),
        };
        let free = (0..memory.windows()).collect();
        let (filling, away, failed) = (None, VecDeque::new(), Vec::new());
        Ok(BatchWriter { talk, memory, room, free, filling, away, next: 0, settled: 0, units: 0, failed })
    }

    /// The most content that an entry has in a batch: beyond it a file goes by system calls. What a daemon with little memory takes of a window at
    /// a time is small, and the entry itself has to fit too.
    #[must_use]
    pub fn content_bytes_max(&self) -> u64 {
        BATCHED_BYTES_MAX.min(u64::from(self.room / 2))
    }

    /// Writes an entry with its content, runs of bytes by offset, of which none is empty; gives its number.
    ///
    /// # Errors
    /// What ends the batch.
    pub fn put(&mut self, entry: &Entry, content: &[(u64, &[u8])]) -> Result<u64, Failure> {
        self.put_all(&[Put { entry, content: content.to_vec() }]).map(|numbers| numbers.start)
    }

    /// Writes entries with their contents, from where they lie; gives their numbers. Spares copies where there are many.
    ///
    /// # Errors
    /// As there.
    pub fn put_all(&mut self, puts: &[Put<'_>]) -> Result<Range<u64>, Failure> {
        let first = self.next;
        let mut rest = puts;
        while !rest.is_empty() {
            let room = match &self.filling {
                Some(filling) => self.room - filling.bytes(),
                None => self.room,
            };
            let gathered = Gathered::of(rest, self.next, room as usize);
            if gathered.count == 0 {
                if self.filling.is_none() {
                    return Err(Failure::new("cannot write a batch", "an entry is larger than a window"));
                }
                self.hand_over()?;
                continue;
            }
            let mut filling = match self.filling.take() {
                Some(filling) => filling,
                None => Filling::begin(self.free_window()?),
            };
            filling.put_gathered(&self.memory, &mut gathered.slices()).map_err(unwritable)?;
            self.filling = Some(filling);
            self.next += gathered.count as u64;
            rest = &rest[gathered.count..];
        }
        Ok(first..self.next)
    }

    /// The next entry's number. Of a call that failed what has a lower one may be there or not.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Units that were written so far: of each all is there, or was told as failed.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.units
    }

    /// Entries with a lower number are settled: there, or among the failed.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.settled
    }

    /// Entries that failed since the last call.
    pub fn take_failed(&mut self) -> Vec<Failed> {
        std::mem::take(&mut self.failed)
    }

    /// Waits until all that was put is settled.
    pub fn settle(&mut self) -> Result<(), Failure> {
        if self.filling.is_some() {
            self.hand_over()?;
        }
        while !self.away.is_empty() {
            self.wait()?;
        }
        Ok(())
    }

    /// Ends the batch. All is settled then, and durable.
    pub fn finish(mut self) -> Result<(Value, Vec<Failed>), Failure> {
        self.settle()?;
        // Who lets go of the memory last waits until all of it is given back: the daemon does so beside others' work.
        drop(self.memory);
        self.talk.say(&Turn::End {})?;
        match self.talk.hear()? {
            Answer::Done(value) => Ok((value, self.failed)),
            Answer::Failed(failure) => Err(failure),
            other => Err(self.talk.unexpected(&other)),
        }
    }

    fn hand_over(&mut self) -> Result<(), Failure> {
        let Some(filling) = self.filling.take() else { return Ok(()) };
        let (window, bytes) = filling.end(&self.memory).map_err(unwritable)?;
        self.talk.say(&Turn::Filled(Filled { window, bytes }))?;
        self.away.push_back((window, self.next));
        Ok(())
    }

    fn free_window(&mut self) -> Result<u32, Failure> {
        loop {
            if let Some(window) = self.free.pop_front() {
                return Ok(window);
            }
            self.wait()?;
        }
    }

    /// Waits until the daemon has emptied a window.
    fn wait(&mut self) -> Result<(), Failure> {
        match self.talk.hear()? {
            Answer::Emptied(Emptied { window, failed, units })
                if self.away.front().is_some_and(|(first, _)| *first == window) =>
            {
                let (_, settled) = self.away.pop_front().expect("it was looked at");
                self.free.push_back(window);
                self.settled = settled;
                self.units += units;
                self.failed.extend(failed);
                Ok(())
            }
            Answer::Progress(_) => Ok(()),
            Answer::Failed(failure) => Err(failure),
            other => Err(self.talk.unexpected(&other)),
        }
    }
}

fn unwritable(error: std::io::Error) -> Failure {
    Failure::new("cannot write to the shared memory", error)
}

/// Reads a file, or a directory with everything below it, or what differs between two.
pub struct BatchReader {
    talk: Talk,
    memory: Memory,
    done: Option<Value>,
}

impl BatchReader {
    /// Begins.
    pub fn begin(daemon: Daemon, how: &Reading) -> Result<BatchReader, Failure> {
        let Reading { content, xattrs, .. } = *how;
        let bytes = how.list.as_ref().map_or(&[][..], |list| &list.records);
        BatchReader::ask(daemon, bytes, &|(windows, window_bytes)| {
            let listing = |list: &PathList| Listing {
                bytes: u32::try_from(list.records.len()).expect("it is bounded"),
                parents: list.parents,
            };
            let (roots, list) = (how.roots.clone(), how.list.as_ref().map(listing));
            Request::BatchRead(BatchReading { roots, windows, window_bytes, content, xattrs, list })
        })
    }

    /// Begins to read what differs: records that are changes, or lost.
    pub fn compare(daemon: Daemon, how: &Comparing) -> Result<BatchReader, Failure> {
        let Comparing { before, after, content_only } = *how;
        BatchReader::ask(daemon, &[], &|(windows, window_bytes)| {
            Request::BatchCompare(BatchComparing { before, after, windows, window_bytes, content_only })
        })
    }

    /// `first`: what lies in the first window.
    fn ask(daemon: Daemon, first: &[u8], request: &dyn Fn((u32, u32)) -> Request) -> Result<BatchReader, Failure> {
        daemon.expect_trusted()?;
        let cannot = |error: std::io::Error| Failure::new("cannot share memory with the daemon", error);
        let memory = Memory::make(READ_WINDOWS, READ_WINDOW_BYTES).map_err(cannot)?;
        memory.write(0, 0, first).map_err(cannot)?;
        let request = request((memory.windows(), memory.window_bytes()));
        let mut talk = daemon.begin(&request, Some(memory.share().map_err(cannot)?))?;
        match talk.hear()? {
            Answer::Ready { .. } => Ok(BatchReader { talk, memory, done: None }),
            Answer::Failed(failure) => Err(failure),
            other => Err(talk.unexpected(&other)),
        }
    }

    /// The records of the next window; `None`: that was all.
    pub fn next_window(&mut self) -> Result<Option<Records>, Failure> {
        self.next_window_telling(&mut |_| {})
    }

    /// The same; `progress` hears what goes on meanwhile.
    pub fn next_window_telling(&mut self, progress: &mut dyn FnMut(&str)) -> Result<Option<Records>, Failure> {
        loop {
            match self.talk.hear()? {
                Answer::Filled(Filled { window, bytes }) => {
                    let read = self.memory.read(window, bytes);
                    let read = read.map_err(|error| Failure::new("cannot read the shared memory", error))?;
                    self.talk.say(&Turn::Given { window })?;
                    return Ok(Some(Records::new(read)));
                }
                Answer::Progress(text) => progress(&text),
                Answer::Done(value) => {
                    self.done = Some(value);
                    return Ok(None);
                }
                Answer::Failed(failure) => return Err(failure),
                other => return Err(self.talk.unexpected(&other)),
            }
        }
    }

    /// What the daemon says of the whole, once all was read.
    #[must_use]
    pub fn summary(&self) -> Option<&Value> {
        self.done.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use file::Kind;

    use super::{Gathered, Put};
    use crate::control::batch::wire::{Entry, Record, Records};

    #[test]
    fn as_many_entries_are_gathered_as_there_is_room_for() {
        let entries: Vec<Entry> =
            (0..5).map(|number| Entry::new(vec![b'a' + number; 1 + usize::from(number)], Kind::Regular)).collect();
        let content: Vec<Vec<u8>> = (0..5_usize).map(|number| vec![number as u8; 1000 * number]).collect();
        let puts: Vec<Put<'_>> = entries
            .iter()
            .zip(&content)
            .map(|(entry, content)| {
                // Of two runs, with a hole between them; the first has none.
                let (first, second) = content.split_at(content.len() / 2);
                let runs = [(0, first), (1 << 20, second)].into_iter().filter(|(_, run)| !run.is_empty());
                Put { entry, content: runs.collect() }
            })
            .collect();
        let written =
            |gathered: &Gathered<'_>| gathered.slices().iter().flat_map(|slice| slice.to_vec()).collect::<Vec<u8>>();
        let all = Gathered::of(&puts, 7, usize::MAX);
        assert_eq!(all.count, 5);
        let ends: Vec<usize> =
            (1..=5).map(|count| written(&Gathered::of(&puts[..count], 7, usize::MAX)).len()).collect();
        for room in 0..=ends[4] {
            let some = Gathered::of(&puts, 7, room);
            assert_eq!(some.count, ends.iter().filter(|end| **end <= room).count(), "{room}");
            assert_eq!(written(&some)[..], written(&all)[..ends[..some.count].last().copied().unwrap_or(0)]);
        }
        let (mut names, mut pieces) = (Vec::new(), Vec::new());
        for record in Records::new(Bytes::from(written(&all))) {
            match record.expect("well-formed") {
                Record::Entry(entry) => names.push(entry.path),
                Record::Piece { number, offset, content } => pieces.push((number, offset, content.len())),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(names, entries.iter().map(|entry| entry.path.clone()).collect::<Vec<_>>());
        let expected = (1..5)
            .flat_map(|number| [(7 + number, 0, 500 * number as usize), (7 + number, 1 << 20, 500 * number as usize)]);
        assert_eq!(pieces, expected.collect::<Vec<_>>());
    }
}
