//! Units that other processes fill windows with.
//!
//! Three threads: one has the content of units stored, one makes their names, so that the disks are not waited for between units
//! (`FileSystem::batch_begin`), and one tells the kernel and answers.
//!
//! I-160 Who finishes units waits for nothing of the kernel's. It would for a lock of a directory, or for a page, whose holder has made a request; and that
//!       may wait for the room that units have which were begun.
//! I-132 A window that was not whole, because who filled it left or lied, changes nothing: a unit is written when all of its entries and
//!       their content were decoded. Windows before it are written.
//!
//! Not here: what the memory and the lines are (`control::batch`), how units are written and read (`file`).

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use base::id::FileId;
use bytes::Bytes;
use file::{BatchBudget, BatchContent, BatchEntry, BatchUnit, BatchWrite, BatchWriteReport, FileError, View};
use platform::real::block_on;
use serde_json::{Value, json};

use super::{lost, name_of};
use crate::control::batch::memory::Memory;
use crate::control::batch::wire::{Entry, Leads, Record, Records};
use crate::control::server::{Brought, Mouth};
use crate::control::wire::{Answer, BatchWriting, Emptied, Filled, Turn};
use crate::failure::Failure;
use crate::front::control::Control;

/// Windows that are read before the first of them is written: on a slow disk one settle then covers several. Each is a part of what may wait to be
/// stored (`BUFFER_PARTS`), and one part is left to others.
const WINDOWS_AHEAD: usize = 3;

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
    /// The next entry's number.
    next: u64,
    totals: Totals,
}

/// Who tells of what was written.
struct Teller<'a> {
    control: &'a Control,
}

/// What there is to tell, in order.
enum Told {
    /// The name of each entry of a unit, and what came of it.
    Unit(Vec<Vec<u8>>, BatchWriteReport),
    /// All of a window.
    Window(Emptied),
}

/// Why an entry was not written, by its number.
type Failed = (u64, String);

/// Entries of a window, with the number of the first.
type Window = (u64, Vec<BatchEntry>);

/// What comes of a window, in order.
enum Step {
    Unit(Begun),
    /// An entry that fits no unit.
    TooLarge(u64),
    End,
}

/// A unit whose content is stored.
struct Begun {
    /// The number of its first entry.
    first: u64,
    /// The name of each.
    names: Vec<Vec<u8>>,
    bytes: u64,
    unit: Result<BatchUnit, FileError>,
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
        let BatchWriting { replace, atomic, preserve, lists, umask, .. } = *how;
        let how = BatchWrite { replace, atomic, preserve, lists, umask: umask & 0o777 };
        let room = self.window_room(&memory);
        let lost = |error| lost(what, &error);
        line.say(&Answer::Ready { window_bytes: room }).map_err(lost)?;
        let started = self.platform.clock.elapsed();
        let mut writer = Writer { control: self, next: 0, totals: Totals::default() };
        let teller = Teller { control: self };
        let mouth = line.mouth();
        let telling = std::thread::scope(|scope| {
            let (send, windows) = channel();
            let (begun, steps) = channel();
            let (tell, told) = channel();
            scope.spawn(move || self.begin_units(parent.file, &how, &windows, &begun));
            let telling = scope.spawn(move || teller.tell(&told, &mouth));
            let mut away = VecDeque::new();
            let mut take = || -> Result<(), Failure> {
                loop {
                    // Who waits for us is not waited for.
                    while away.len() == WINDOWS_AHEAD || !away.is_empty() && !line.has_more().map_err(lost)? {
                        let window = away.pop_front().expect("there is one");
                        writer.finish(window, &steps, &tell);
                    }
                    match line.hear(&|| self.is_closed()).map_err(lost)? {
                        Some(Turn::Filled(Filled { window, bytes })) if bytes <= room => {
                            let entries = writer.window(&memory, window, bytes)?;
                            send.send(entries).expect("the thread lives as long as this end");
                            away.push_back(window);
                        }
                        Some(Turn::End {}) => return Ok(()),
                        Some(turn) => return Err(Failure::new(what, format!("it makes no sense here: {turn:?}"))),
                        None => return Err(lost(io::ErrorKind::UnexpectedEof.into())),
                    }
                }
            };
            let taken = take();
            // Also what was whole before something that was not; but of a file system that is being closed nothing is changed any more.
            for window in away.into_iter().take_while(|_| self.is_closed().is_none()) {
                writer.finish(window, &steps, &tell);
            }
            drop(tell);
            let telling = telling.join().expect("it does not panic");
            taken.and(telling.map_err(lost))
        });
        telling?;
        self.platform.tasks.aside(Box::pin(async move { drop(memory) }));
        block_on(self.system.sync(parent.file)).map_err(self.explain(what))?;
        Ok(writer.totals.to_json(self.platform.clock.elapsed().saturating_sub(started)))
    }

    /// Has the content of windows stored, unit by unit, until nobody waits for it.
    fn begin_units(&self, parent: FileId, how: &BatchWrite, windows: &Receiver<Window>, begun: &Sender<Step>) {
        for (mut first, entries) in windows {
            let mut entries = entries.into_iter().peekable();
            while entries.peek().is_some() {
                let (mut budget, mut unit) = (BatchBudget::default(), Vec::new());
                while let Some(entry) = entries.next_if(|entry| budget.take(entry)) {
                    unit.push(entry);
                }
                let count = unit.len() as u64;
                let step = if unit.is_empty() {
                    entries.next();
                    Step::TooLarge(first)
                } else {
                    let names = unit.iter().map(|entry| name_of(&entry.path).to_vec()).collect();
                    let bytes = unit.iter().map(BatchEntry::content_bytes).sum();
                    let unit = block_on(self.system.batch_begin(parent, unit, how));
                    Step::Unit(Begun { first, names, bytes, unit })
                };
                first += count.max(1);
                if begun.send(step).is_err() {
                    return;
                }
            }
            if begun.send(Step::End).is_err() {
                return;
            }
        }
    }
}

impl Writer<'_> {
    /// What a window holds.
    fn window(&mut self, memory: &Memory, window: u32, bytes: u32) -> Result<Window, Failure> {
        let refuse = |why: String| {
            let mend = "what came before is written, and nothing of this window";
            Failure::new("cannot write a batch", why).place(format!("window {window}")).mend(mend)
        };
        let bytes = memory.read(window, bytes).map_err(|error| refuse(error.to_string()))?;
        let entries = self.decode(bytes).map_err(refuse)?;
        let first = self.next;
        self.next += entries.len() as u64;
        Ok((first, entries))
    }

    /// Writes what came of a window. Who tells may have nobody to tell any more: that is heard of at the end.
    fn finish(&mut self, window: u32, steps: &Receiver<Step>, tell: &Sender<Told>) {
        let (mut failed, mut units) = (Vec::new(), 0);
        loop {
            match steps.recv().expect("each window has an end") {
                Step::Unit(begun) => match self.unit(begun, tell) {
                    Ok(of_it) => {
                        failed.extend(of_it);
                        units += 1;
                    }
                    Err(all) => failed.extend(all),
                },
                Step::TooLarge(number) => {
                    failed.push((number, "it is larger than what is written at a time".to_owned()))
                }
                Step::End => break,
            }
        }
        self.totals.units += units;
        self.totals.failed += failed.len() as u64;
        let _ = tell.send(Told::Window(Emptied { window, failed, units }));
    }

    /// Writes a unit; gives what failed of it, by number. `Err`: all of it failed.
    fn unit(&mut self, begun: Begun, tell: &Sender<Told>) -> Result<Vec<Failed>, Vec<Failed>> {
        let Begun { first, names, bytes, unit } = begun;
        let system = &self.control.system;
        self.totals.bytes += bytes;
        let report = match unit.and_then(|unit| block_on(system.batch_finish(unit))) {
            Ok(report) => report,
            Err(error) => return Err((first..).zip(&names).map(|(number, _)| (number, error.to_string())).collect()),
        };
        let mut failed = Vec::new();
        for (number, fate) in (first..).zip(&report.fates) {
            match fate {
                Ok(_) => self.totals.entries += 1,
                Err(error) => failed.push((number, error.to_string())),
            }
        }
        let _ = tell.send(Told::Unit(names, report));
        Ok(failed)
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
                Record::Begin { .. }
                | Record::End { .. }
                | Record::Lost { .. }
                | Record::Path(_)
                | Record::Change(_) => {
                    return Err("what only the daemon says of files that are read".to_owned());
                }
            }
        }
        Ok(entries)
    }
}

impl Teller<'_> {
    fn tell(&self, told: &Receiver<Told>, mouth: &Mouth<'_>) -> io::Result<()> {
        let mut said = Ok(());
        for told in told {
            match told {
                Told::Unit(names, report) => self.control.unit_written(names.iter().map(Vec::as_slice), &report),
                // Also where nobody hears it any more the kernel is told of the units that are still written. Who was not heard to the end of
                // a line would wait for the rest of it, and we for him.
                Told::Window(emptied) if said.is_ok() => {
                    said = mouth.say(&Answer::Emptied(emptied)).inspect_err(|_| mouth.hang_up());
                }
                Told::Window(_) => {}
            }
        }
        said
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
