//! The client's end of a batch: fills windows while the daemon empties others.

use std::collections::VecDeque;

use serde_json::Value;

use super::memory::{Filling, Memory};
use super::wire::{Entry, PIECE_HEAD_BYTES, Record, Records, piece_head};
use crate::control::client::{Daemon, Talk};
use crate::control::wire::{Answer, BatchComparing, BatchReading, BatchWriting, Emptied, Filled, Request, Turn};
use crate::failure::Failure;

/// Windows of a batch that is written: one or two are filled while the daemon has the others.
const WINDOWS: u32 = 4;
/// Bytes of each: what becomes one unit.
const WINDOW_BYTES: u32 = 16 << 20;
/// Windows of a batch that is read.
const READ_WINDOWS: u32 = 8;
/// Bytes of each: small, so that the client works soon, and on what the processor's cache still has.
const READ_WINDOW_BYTES: u32 = 2 << 20;
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
    failed: Vec<Failed>,
}

impl BatchWriter {
    /// Begins.
    pub fn begin(daemon: Daemon, how: &Writing) -> Result<BatchWriter, Failure> {
        let cannot = |error: std::io::Error| Failure::new("cannot share memory with the daemon", error);
        let memory = Memory::make(WINDOWS, WINDOW_BYTES).map_err(cannot)?;
        let Writing { parent, replace, preserve, umask } = *how;
        let (windows, window_bytes) = (memory.windows(), memory.window_bytes());
        let how = BatchWriting { parent, windows, window_bytes, replace, atomic: false, preserve, umask };
        let mut talk = daemon.begin(&Request::BatchWrite(how), Some(memory.share().map_err(cannot)?))?;
        let room = match talk.hear()? {
            Answer::Ready { window_bytes } => window_bytes.min(memory.window_bytes()),
            Answer::Failed(failure) => return Err(failure),
            other => return Err(talk.unexpected(&other)),
        };
        let free = (0..memory.windows()).collect();
        let (filling, away, failed) = (None, VecDeque::new(), Vec::new());
        Ok(BatchWriter { talk, memory, room, free, filling, away, next: 0, settled: 0, failed })
    }

    /// The most content that an entry has in a batch: beyond it a file goes by system calls. What a daemon with little memory takes of a window at
    /// a time is small, and the entry itself has to fit too.
    #[must_use]
    pub fn content_bytes_max(&self) -> u64 {
        BATCHED_BYTES_MAX.min(u64::from(self.room / 2))
    }

    /// Writes an entry with its content, runs of bytes by offset; gives its number.
    ///
    /// # Errors
    /// What ends the batch.
    pub fn put(&mut self, entry: &Entry, content: &[(u64, &[u8])]) -> Result<u64, Failure> {
        let head = Record::Entry(Box::new(entry.clone())).encode();
        let content_bytes: usize = content.iter().map(|(_, run)| PIECE_HEAD_BYTES + run.len()).sum();
        let bytes = u32::try_from(head.len() + content_bytes).ok().filter(|bytes| *bytes <= self.room);
        let bytes = bytes.ok_or_else(|| Failure::new("cannot write a batch", "an entry is larger than a window"))?;
        if self.filling.as_ref().is_some_and(|filling| self.room - filling.bytes() < bytes) {
            self.hand_over()?;
        }
        let mut filling = match self.filling.take() {
            Some(filling) => filling,
            None => Filling::begin(self.free_window()?),
        };
        let mut put = |bytes: &[u8]| filling.put(&self.memory, bytes).map_err(unwritable);
        put(&head)?;
        for (offset, run) in content {
            put(&piece_head(self.next, *offset, run.len()))?;
            put(run)?;
        }
        self.filling = Some(filling);
        self.next += 1;
        Ok(self.next - 1)
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
            Answer::Emptied(Emptied { window, failed, .. })
                if self.away.front().is_some_and(|(first, _)| *first == window) =>
            {
                let (_, settled) = self.away.pop_front().expect("it was looked at");
                self.free.push_back(window);
                self.settled = settled;
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
        BatchReader::ask(daemon, &|(windows, window_bytes)| {
            let roots = how.roots.clone();
            Request::BatchRead(BatchReading { roots, windows, window_bytes, content, xattrs })
        })
    }

    /// Begins to read what differs: records that are changes, or lost.
    pub fn compare(daemon: Daemon, how: &Comparing) -> Result<BatchReader, Failure> {
        let Comparing { before, after, content_only } = *how;
        BatchReader::ask(daemon, &|(windows, window_bytes)| {
            Request::BatchCompare(BatchComparing { before, after, windows, window_bytes, content_only })
        })
    }

    fn ask(daemon: Daemon, request: &dyn Fn((u32, u32)) -> Request) -> Result<BatchReader, Failure> {
        let cannot = |error: std::io::Error| Failure::new("cannot share memory with the daemon", error);
        let memory = Memory::make(READ_WINDOWS, READ_WINDOW_BYTES).map_err(cannot)?;
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
