//! Units that other processes fill windows with.
//!
//! I-132 A window that was not whole, because who filled it left or lied, changes nothing: a unit is written when all of its entries and
//!       their content were decoded.
//!
//! Not here: what the memory and the lines are (`control::batch`), how units are written and read (`file`).

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use base::id::FileId;
use bytes::Bytes;
use file::{BatchBudget, BatchContent, BatchEntry, BatchWrite, FileError, Node, View};
use platform::real::block_on;
use serde_json::{Value, json};

use super::lost;
use crate::control::batch::memory::Memory;
use crate::control::batch::wire::{Entry, Leads, Record, Records};
use crate::control::server::Brought;
use crate::control::wire::{Answer, BatchWriting, Emptied, Filled, Turn};
use crate::failure::Failure;
use crate::front::control::Control;

/// Directories of a batch that are remembered by path.
const DIRECTORIES_MAX: usize = 64 << 10;

/// What came of a batch.
#[derive(Default)]
struct Totals {
    entries: u64,
    failed: u64,
    bytes: u64,
    units: u64,
}

/// A batch that is being written.
struct Writer<'a> {
    control: &'a Control,
    parent: FileId,
    how: BatchWrite,
    /// The next entry's number.
    next: u64,
    directories: HashMap<Vec<u8>, FileId>,
    totals: Totals,
}

impl Control {
    pub(in crate::front::control) fn batch_write(
        &self,
        how: &BatchWriting,
        brought: Brought<'_, '_>,
    ) -> Result<Value, Failure> {
        let what = "cannot write a batch";
        let (memory, line) = self.memory(what, brought, (how.windows, how.window_bytes))?;
        let parent = self.find(how.parent).filter(|parent| parent.view == View::LIVE);
        let parent = parent.ok_or_else(|| {
            let why = "the daemon knows no directory of the present with this inode number";
            Failure::new(what, why).place(how.parent.to_string()).mend("keep it open meanwhile; nothing was changed")
        })?;
        let BatchWriting { replace, atomic, preserve, umask, .. } = *how;
        let how = BatchWrite { replace, atomic, preserve, umask: umask & 0o777 };
        let room = self.window_room(&memory);
        let lost = |error| lost(what, &error);
        line.say(&Answer::Ready { window_bytes: room }).map_err(lost)?;
        let started = self.platform.clock.elapsed();
        let (directories, totals) = (HashMap::new(), Totals::default());
        let mut writer = Writer { control: self, parent: parent.file, how, next: 0, directories, totals };
        loop {
            match line.hear(&|| self.system.is_ending()).map_err(lost)? {
                Some(Turn::Filled(Filled { window, bytes })) if bytes <= room => {
                    let emptied = writer.window(&memory, window, bytes)?;
                    line.say(&Answer::Emptied(emptied)).map_err(lost)?;
                }
                Some(Turn::End {}) => break,
                Some(turn) => return Err(Failure::new(what, format!("it makes no sense here: {turn:?}"))),
                None => return Err(lost(std::io::ErrorKind::UnexpectedEof.into())),
            }
        }
        block_on(self.system.sync(parent.file)).map_err(self.explain(what))?;
        Ok(writer.totals.to_json(self.platform.clock.elapsed().saturating_sub(started)))
    }
}

impl Writer<'_> {
    /// Writes what a window holds.
    fn window(&mut self, memory: &Memory, window: u32, bytes: u32) -> Result<Emptied, Failure> {
        let refuse = |why: String| {
            let mend = "what came before is written, and nothing of this window";
            Failure::new("cannot write a batch", why).place(format!("window {window}")).mend(mend)
        };
        let bytes = memory.read(window, bytes).map_err(|error| refuse(error.to_string()))?;
        let entries = self.decode(bytes).map_err(refuse)?;
        let first = self.next;
        self.next += entries.len() as u64;
        let (mut failed, mut units) = (Vec::new(), 0);
        let mut numbered = (first..).zip(entries).peekable();
        while numbered.peek().is_some() {
            let (mut budget, mut unit) = (BatchBudget::default(), Vec::new());
            while let Some((_, entry)) = numbered.next_if(|(_, entry)| budget.take(entry)) {
                unit.push(entry);
            }
            if unit.is_empty() {
                let (number, _) = numbered.next().expect("it was peeked at");
                failed.push((number, "it is larger than what is written at a time".to_owned()));
                continue;
            }
            let begin = numbered.peek().map_or(self.next, |(number, _)| *number) - unit.len() as u64;
            failed.extend(self.unit(begin, unit));
            units += 1;
        }
        self.totals.units += units;
        self.totals.failed += failed.len() as u64;
        Ok(Emptied { window, failed, units })
    }

    /// Writes a unit; gives what failed, by number.
    fn unit(&mut self, begin: u64, unit: Vec<BatchEntry>) -> Vec<(u64, String)> {
        let names: Vec<(Vec<u8>, bool)> =
            unit.iter().map(|entry| (entry.path.clone(), entry.kind == file::Kind::Directory)).collect();
        let bytes: u64 = unit.iter().map(BatchEntry::content_bytes).sum();
        let written = block_on(self.control.system.batch_write(self.parent, unit, &self.how));
        let fates = match written {
            Ok(report) => report.fates,
            Err(error) => vec![Err(error); names.len()],
        };
        self.note_directories(&names, &fates);
        self.tell_kernel(&names, &fates);
        let mut failed = Vec::new();
        for (number, fate) in (begin..).zip(&fates) {
            match fate {
                Ok(_) => self.totals.entries += 1,
                Err(error) => failed.push((number, error.to_string())),
            }
        }
        self.totals.bytes += bytes;
        failed
    }

    /// I-133.
    fn tell_kernel(&mut self, names: &[(Vec<u8>, bool)], fates: &[Result<FileId, FileError>]) {
        let mut changed: BTreeMap<FileId, Vec<&[u8]>> = BTreeMap::new();
        for ((path, _), fate) in names.iter().zip(fates) {
            let Ok(file) = fate else { continue };
            self.control.file_changed(*file);
            let (above, name) = split(path);
            if let Some(directory) = self.directory(above) {
                changed.entry(directory).or_default().push(name);
            }
        }
        for (directory, names) in changed {
            self.control.names_changed(Node::live(directory), names);
        }
    }

    /// The directory with this path.
    fn directory(&mut self, path: &[u8]) -> Option<FileId> {
        if path.is_empty() {
            return Some(self.parent);
        }
        if let Some(found) = self.directories.get(path) {
            return Some(*found);
        }
        let (above, name) = split(path);
        let above = self.directory(above)?;
        let (found, _) = block_on(self.control.system.lookup(Node::live(above), name)).ok()?;
        self.directories.insert(path.to_vec(), found.file);
        Some(found.file)
    }

    fn note_directories(&mut self, names: &[(Vec<u8>, bool)], fates: &[Result<FileId, FileError>]) {
        if self.directories.len() > DIRECTORIES_MAX {
            self.directories.clear();
        }
        for ((path, is_directory), fate) in names.iter().zip(fates) {
            if let (true, Ok(file)) = (is_directory, fate) {
                self.directories.insert(path.clone(), *file);
            }
        }
    }

    /// The entries of a window, with their content; or what is wrong with it.
    fn decode(&self, bytes: Bytes) -> Result<Vec<BatchEntry>, String> {
        let mut entries: Vec<BatchEntry> = Vec::new();
        for record in Records::new(bytes) {
            match record.map_err(|error| error.to_string())? {
                Record::Entry(entry) => entries.push(to_write(*entry)),
                Record::Piece { number, offset, content } => {
                    let last = self.next + entries.len() as u64;
                    match entries.last_mut().map(|entry| &mut entry.content) {
                        Some(BatchContent::Data(runs, _)) if number + 1 == last => runs.push((offset, content)),
                        _ => return Err(format!("content of entry {number} at a place where there is none")),
                    }
                }
                Record::Begin { .. } | Record::End { .. } | Record::Lost { .. } => {
                    return Err("what only the daemon says of files that are read".to_owned());
                }
            }
        }
        Ok(entries)
    }
}

/// An entry as the file layer takes it, without content as yet.
fn to_write(entry: Entry) -> BatchEntry {
    let content = match entry.leads {
        Leads::Link(path) => BatchContent::Link(path),
        Leads::Target(target) => BatchContent::Target(Bytes::from(target)),
        Leads::Nothing if entry.kind == file::Kind::Regular => BatchContent::Data(Vec::new(), entry.size),
        Leads::Nothing => BatchContent::None,
    };
    let Entry { path, kind, mode, uid, gid, device, modified, accessed, xattrs, .. } = entry;
    BatchEntry { path, kind, mode, uid, gid, modified, accessed, device, xattrs, content }
}

/// The path of the directory that a path lies in, and its name there.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    }
}

impl Totals {
    fn to_json(&self, took: Duration) -> Value {
        json!({
            "entries": self.entries,
            "failed": self.failed,
            "bytes": self.bytes,
            "units": self.units,
            "seconds": took.as_secs_f64(),
        })
    }
}
