//! Masses of small files, file by file, by the usual tools, and as batches: the experiment of BFO (Yang et al., MSST 2019).
//!
//! Sets of equal total size, of files of 4 KiB to 4 MiB with random content, 200 to a directory; on this machine's disk, on one that does 150
//! requests a second, as a hard disk seeks, and on one of 10,000 and 500 MB, as an SSD. All caches are cold before each measured part, and each ends with
//! everything on the disk (syncfs on ext4, `hydrafs sync` here).
//!
//! "At random" and "in order" are of calls that take one file after the other: the set is *created* in that order over all its directories,
//! *read* in another one of that kind, and *overwritten* in place in a third. Tools and batches have no such order to keep; they get
//! a set that was created in the order that the line names, file by file, so that it lies on the disk as it would. What they write comes from
//! memory (a tmpfs, and for tar an archive there), and what they read goes to memory. Creating needs no seek for each file on any
//! file system that allocates when it writes back; overwriting is what the published random writes can be compared with (204 files
//! a second on a hard disk).
//!
//! The same on a simulated disk that turns, where the time is the disk's alone ([`turning`]), beside the published figures.
//!
//! What was read and written is compared afterwards, beside the clock.

mod beside;
mod copies;
mod names;
mod set;
mod tools;
mod turning;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;

pub(super) use self::beside::{beside, beside_on_seeks};
pub(super) use self::copies::{here as copies_here, on_seeks as copies_on_seeks, on_ssd as copies_on_ssd};
pub(super) use self::names::names;
pub(super) use self::tools::has_verb;
pub(super) use self::turning::turning;

use self::set::{Order, Set};
use super::device::{self, seeks};
use super::loops::Mount;
use super::report::Asked;
use super::{Line, Run, Side, Unit};
use crate::{interrupt, text};

const SIZES: [(u64, &str); 6] = [
    (4 << 10, "4 KiB"),
    (16 << 10, "16 KiB"),
    (64 << 10, "64 KiB"),
    (256 << 10, "256 KiB"),
    (1 << 20, "1 MiB"),
    (4 << 20, "4 MiB"),
];

/// Bytes of a set. One by one, the smallest files take a minute of the slow device.
const HERE_BYTES: u64 = 400 << 20;
const SEEK_BYTES: u64 = 32 << 20;
const SSD_BYTES: u64 = 256 << 20;
const LARGE_BYTES: u64 = 256 << 20;
const LARGE_SSD_BYTES: u64 = 512 << 20;

/// How long a tool may take for a set.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Contents of the set as it is created, of what is created beside it, and of what it is overwritten with.
const FIRST: u64 = 1;
const BESIDE: u64 = 2;
const LATER: u64 = 3;

pub(super) fn here(run: &mut Run<'_>) -> Result<()> {
    all(run, &SIZES, HERE_BYTES, "this machine's disk")
}

pub(super) fn on_seeks(run: &mut Run<'_>) -> Result<()> {
    all(run, &SIZES, SEEK_BYTES, device::SEEK.name)
}

pub(super) fn on_ssd(run: &mut Run<'_>) -> Result<()> {
    all(run, &SIZES, SSD_BYTES, device::SSD.name)
}

/// The largest files alone, in a set in which what a batch costs once, whatever is in it, is a small part.
pub(super) fn large_on_seeks(run: &mut Run<'_>) -> Result<()> {
    all(run, &SIZES[SIZES.len() - 1..], LARGE_BYTES, device::SEEK.name)
}

pub(super) fn large_on_ssd(run: &mut Run<'_>) -> Result<()> {
    all(run, &SIZES[SIZES.len() - 1..], LARGE_SSD_BYTES, device::SSD.name)
}

fn all(run: &mut Run<'_>, sizes: &[(u64, &'static str)], bytes: u64, place: &'static str) -> Result<()> {
    let bytes = run.scaled(bytes);
    let memory = Mount::make("tmpfs", Path::new("none"), &run.inputs.root.join("memory"))?;
    for &(file_bytes, size) in sizes {
        for order in [Order::Random, Order::Listed] {
            interrupt::check()?;
            let set = Set { files: (bytes / file_bytes).max(1), file_bytes, order };
            let mut trial = Trial { run, memory: memory.point().to_owned(), set, size, place };
            trial.all()?;
        }
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Read,
    Create,
    Overwrite,
}

impl Operation {
    fn words(self) -> &'static str {
        match self {
            Operation::Read => "read",
            Operation::Create => "create",
            Operation::Overwrite => "overwrite",
        }
    }
}

/// One set in one order, on one side.
struct Trial<'a, 'r> {
    run: &'a mut Run<'r>,
    memory: PathBuf,
    set: Set,
    size: &'static str,
    place: &'static str,
}

impl Trial<'_, '_> {
    fn all(&mut self) -> Result<()> {
        let files = self.run.dir.join("files");
        match self.run.side {
            Side::Ext4 | Side::HydrafsOneByOne => self.one_by_one(&files)?,
            side => self.by_tool(side, &files)?,
        }
        self.set.check(&files, LATER)?;
        for part in fs::read_dir(&self.run.dir)? {
            fs::remove_dir_all(part?.path())?;
        }
        Ok(())
    }

    fn one_by_one(&mut self, files: &Path) -> Result<()> {
        let set = self.set;
        self.measure(Operation::Create, || set.write(files, FIRST))?;
        self.measure(Operation::Read, || set.read(files))?;
        self.measure(Operation::Overwrite, || set.write(files, LATER))
    }

    fn by_tool(&mut self, side: Side, files: &Path) -> Result<()> {
        let (set, dir, binary) = (self.set, self.run.dir.clone(), self.run.sides.binary().to_owned());
        set.write(files, FIRST)?;
        let out = self.memory.join("out");
        fs::create_dir(&out)?;
        self.measure(Operation::Read, || tools::read(side, &binary, &dir, &out))?;
        if tools::keeps_what_it_reads(side) {
            set.check(&out.join("files"), FIRST)?;
        }
        fs::remove_dir_all(&out)?;
        let beside = dir.join("beside");
        fs::create_dir(&beside)?;
        let source = tools::source(side, &self.memory, &set, BESIDE)?;
        self.measure(Operation::Create, || tools::write(side, &binary, &source, &beside))?;
        set.check(&beside.join("files"), BESIDE)?;
        let source = tools::source(side, &self.memory, &set, LATER)?;
        self.measure(Operation::Overwrite, || tools::write(side, &binary, &source, &dir))
    }

    /// Some work with cold caches and what follows until it is on the disk: its time, and what the device was asked for.
    fn measure(&mut self, operation: Operation, work: impl FnOnce() -> Result<()>) -> Result<()> {
        self.run.cool()?;
        let sides = &*self.run.sides;
        let before = sides.count()?;
        let trace = sides.device().and_then(device::Device::trace);
        if let Some(trace) = trace {
            trace.begin()?;
        }
        let timed = || {
            let started = Instant::now();
            work()?;
            self.run.sync()?;
            Ok(started.elapsed().as_secs_f64())
        };
        let seconds = sides.limited_work(timed)?;
        let count = sides.count()?.since(before);
        let accesses = trace.map(device::Trace::take).transpose()?;
        let line = self.line(operation);
        self.run.record(&line, seconds);
        let asked = Asked::counted(count, accesses.as_deref().map(seeks));
        self.run.report.asked(&line, self.run.side, asked);
        let (order, name) = (self.set.order, format!("{}, {} at random", self.place, operation.words()));
        if let Some(accesses) = accesses
            && self.place == device::SEEK.name
            && (self.size, order, self.run.number) == (SIZES[0].1, Order::Random, 0)
        {
            self.run.report.places(name, self.run.side, device::places(&accesses));
        }
        Ok(())
    }

    /// Lines are as many as sizes, orders and devices make; their names last as long as the program.
    fn line(&self, operation: Operation) -> Line {
        let name = format!("{} files of {} {}", operation.words(), self.size, self.set.order.words());
        let terms = format!("{} files; {}; cold, synced at the end", text::count(self.set.files), self.place);
        Line { name: name.leak(), unit: Unit::Seconds, terms: terms.leak() }
    }
}
