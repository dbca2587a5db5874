//! Masses of small files on a simulated disk that turns: the published experiment (BFO, Yang et al., MSST 2019), without kernel and processors. The
//! time is the disk's alone, and the same in each run.
//!
//! Sides: ours one by one and as batches, and beside them how ext4 lays the same files out ([`layout`]), one by one. "At random" and "in
//! order" are of the calls, and of how the set was created before. The published seconds, of 4 GiB on one SAS disk, are told for as many
//! bytes as there are here.
//!
//! Not here: what the kernel and processors take (`cargo xtask bench --only batches`).

mod layout;

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::id::{FileId, NodeNumber};
use base::time::Timestamp;
use bytes::Bytes;
use file::{
    Attributes, BatchBudget, BatchContent, BatchEntry, BatchFate, BatchRead, BatchSink, BatchWrite, FileError,
    FileSystem, Kind, NewFile, Node, Options, Taken, Walked, format_node,
};
use platform::Platform;
use platform::disk::Disk;
use platform::sim::{Placed, Platter, SimDisk, World};

type Outcome<T> = Result<T, Box<dyn Error>>;

const SEED: u64 = 1;
const HALTS: &str = "nothing halts the machine";
const FILES_PER_DIRECTORY: usize = 200;
/// What a batch of reads may take.
const BATCH_MEMORY: u64 = 64 << 20;
/// Points of a plot: more cannot be told apart.
const POINTS_MAX: usize = 800;

/// File sizes, and what was published of them for one disk: seconds for 4 GiB, reading and writing, at random and in order.
const SIZES: [(usize, [f64; 4]); 6] = [
    (4 << 10, [9704.0, 167.9, 5138.0, 88.7]),
    (16 << 10, [2226.5, 53.7, 930.0, 43.5]),
    (64 << 10, [551.3, 31.1, 225.7, 37.0]),
    (256 << 10, [177.6, 29.4, 146.5, 36.1]),
    (1 << 20, [65.1, 28.9, 68.6, 35.3]),
    (4 << 20, [37.1, 28.2, 56.1, 35.9]),
];
const PUBLISHED_BYTES: f64 = 4_294_967_296.0;

/// In which order files are taken one by one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Random,
    Listed,
}

/// Files of one size.
struct Set {
    files: usize,
    file_bytes: usize,
    order: Order,
    published: [f64; 4],
}

/// What is measured of a set.
#[derive(Clone, Copy)]
enum Operation {
    Create,
    Read,
    Overwrite,
}

pub(crate) fn run(mebibytes: usize) -> Outcome<()> {
    for (file_bytes, published) in SIZES {
        for order in [Order::Random, Order::Listed] {
            let files = ((mebibytes << 20) / file_bytes).max(1);
            let set = Set { files, file_bytes, order, published };
            for operation in [Operation::Create, Operation::Read, Operation::Overwrite] {
                let (time, placed) = layout::one_by_one(&set, operation);
                set.tell(operation, "ext4-layout", time, &placed);
            }
            Trial::prepare(&set)?.all()?;
        }
    }
    Ok(())
}

/// A node on the disk, with a set on it.
struct Trial<'a> {
    set: &'a Set,
    world: World,
    disk: SimDisk,
}

impl Trial<'_> {
    /// An empty node.
    fn prepare(set: &Set) -> Outcome<Trial<'_>> {
        let world = World::new(SEED);
        world.set_step_limit(u64::MAX);
        let disk = world.disk("turning", Platter::SAS_7200.bytes);
        disk.set_platter(Platter::SAS_7200);
        let trial = Trial { set, world, disk };
        let (platform, disks) = trial.place();
        trial.world.run_until(format_node(&platform, &disks, NodeNumber(1), 0, 0)).expect(HALTS)?;
        Ok(trial)
    }

    fn place(&self) -> (Platform, Vec<Disk>) {
        (self.world.platform(), vec![self.disk.disk()])
    }

    fn all(&self) -> Outcome<()> {
        let (platform, set) = (self.world.platform(), self.set);
        self.measure(Operation::Create, "one-by-one", async |system| create(&system, &platform, set).await)?;
        self.measure(Operation::Read, "one-by-one", async |system| read(&system, set).await)?;
        self.measure(Operation::Overwrite, "one-by-one", async |system| overwrite(&system, &platform, set).await)?;
        self.measure(Operation::Read, "batch", async |system| read_batch(&system, set).await)?;
        self.measure(Operation::Create, "batch", async |system| {
            write_batches(&system, &platform, set, b"beside").await
        })?;
        self.measure(Operation::Overwrite, "batch", async |system| {
            write_batches(&system, &platform, set, b"files").await
        })
    }

    /// Some work with nothing cached, and what follows until it is on the disk.
    fn measure(
        &self,
        operation: Operation,
        side: &'static str,
        work: impl AsyncFnOnce(std::sync::Arc<FileSystem>) -> Result<(), FileError>,
    ) -> Outcome<()> {
        let (platform, disks) = self.place();
        let (system, _) =
            self.world.run_until(FileSystem::open(&platform, &disks, Options::default())).expect(HALTS)?;
        drop(self.disk.take_placed());
        let started = platform.clock.elapsed();
        let done = self.world.run_until(async {
            work(system.clone()).await?;
            system.sync_all().await
        });
        done.expect(HALTS)?;
        let time = platform.clock.elapsed() - started;
        self.set.tell(operation, side, time, &self.disk.take_placed());
        // What is committed behind is nobody's time.
        self.world.run_until(system.close()).expect(HALTS)?;
        Ok(())
    }
}

fn directory_name(number: usize) -> Vec<u8> {
    format!("d{}", number / FILES_PER_DIRECTORY).into_bytes()
}

fn file_name(number: usize) -> Vec<u8> {
    format!("file-{number}").into_bytes()
}

fn new(kind: Kind) -> NewFile<'static> {
    NewFile { kind, mode: 0o755, umask: 0, uid: 0, gid: 0, device: 0, target: b"" }
}

async fn create(system: &FileSystem, platform: &Platform, set: &Set) -> Result<(), FileError> {
    let top = system.create_file(FileId::ROOT, b"files", &new(Kind::Directory)).await?.file;
    let mut directories = Vec::new();
    for number in (0..set.files).step_by(FILES_PER_DIRECTORY) {
        directories.push(system.create_file(top, &directory_name(number), &new(Kind::Directory)).await?.file);
    }
    for number in set.order_of(1) {
        let parent = directories[number / FILES_PER_DIRECTORY];
        let file = system.create_file(parent, &file_name(number), &new(Kind::Regular)).await?.file;
        write(system, platform, set, file).await?;
    }
    Ok(())
}

async fn overwrite(system: &FileSystem, platform: &Platform, set: &Set) -> Result<(), FileError> {
    for number in set.order_of(2) {
        let node = find(system, number).await?;
        write(system, platform, set, node.file).await?;
    }
    Ok(())
}

/// New content, as a program writes it: 1 MiB at a time at most.
async fn write(system: &FileSystem, platform: &Platform, set: &Set, file: FileId) -> Result<(), FileError> {
    let content = set.content(platform);
    for (part, at) in content.chunks(1 << 20).zip((0..).step_by(1 << 20)) {
        system.write(file, at, part, false).await?;
    }
    Ok(())
}

async fn read(system: &FileSystem, set: &Set) -> Result<(), FileError> {
    let mut buffer = vec![0; set.file_bytes.min(1 << 20)];
    for number in set.order_of(3) {
        let node = find(system, number).await?;
        for at in (0..set.file_bytes as u64).step_by(buffer.len()) {
            let count = system.read(node, at, &mut buffer).await?;
            assert_eq!(count, buffer.len(), "file {number} is shorter than it was written");
        }
    }
    Ok(())
}

/// Names are looked for in bulk, and then content.
async fn read_batch(system: &FileSystem, set: &Set) -> Result<(), FileError> {
    let (top, _) = system.lookup(Node::live(FileId::ROOT), b"files").await?;
    let (mut nodes, mut failed) = (Vec::new(), None);
    let mut tell = |walked: Result<Walked<'_>, (&[u8], FileError)>| {
        match walked {
            Ok(walked) if walked.attributes.kind == Kind::Regular => nodes.push(walked.node),
            Ok(_) => {}
            Err((_, error)) => failed = Some(error),
        }
        true
    };
    system.batch_walk(top, &mut tell).await?;
    if let Some(error) = failed {
        return Err(error);
    }
    let sink = Counted::default();
    let report = system.batch_read(&nodes, &BatchRead { memory: BATCH_MEMORY, sink: &sink }).await;
    assert_eq!(sink.0.load(Ordering::Relaxed), (set.files * set.file_bytes) as u64, "all is handed out: {report:?}");
    Ok(())
}

/// Takes whatever comes, at once.
#[derive(Default)]
struct Counted(AtomicU64);

impl BatchSink for Counted {
    fn begin(&self, _index: usize, _attributes: &Attributes) {}

    fn piece(&self, _index: usize, _offset: u64, content: Bytes) -> Taken<'_> {
        self.0.fetch_add(content.len() as u64, Ordering::Relaxed);
        Box::pin(std::future::ready(true))
    }

    fn done(&self, _index: usize, _fate: BatchFate) {}
}

async fn find(system: &FileSystem, number: usize) -> Result<Node, FileError> {
    let (top, _) = system.lookup(Node::live(FileId::ROOT), b"files").await?;
    let (directory, _) = system.lookup(top, &directory_name(number)).await?;
    Ok(system.lookup(directory, &file_name(number)).await?.0)
}

/// All files in units, each as large as one may be.
async fn write_batches(system: &FileSystem, platform: &Platform, set: &Set, top: &[u8]) -> Result<(), FileError> {
    let how = BatchWrite { replace: true, ..BatchWrite::default() };
    let mut unit = vec![entry(top.to_vec(), Kind::Directory, BatchContent::None)];
    let mut budget = BatchBudget::default();
    assert!(budget.take(&unit[0]), "a directory fits");
    for number in 0..set.files {
        let directory = [top, b"/", &directory_name(number)].concat();
        let path = [directory.as_slice(), b"/", &file_name(number)].concat();
        let content = Bytes::from(set.content(platform));
        let file = entry(path, Kind::Regular, BatchContent::Data(vec![(0, content)], set.file_bytes as u64));
        let mut entries = vec![file];
        if number.is_multiple_of(FILES_PER_DIRECTORY) {
            entries.insert(0, entry(directory, Kind::Directory, BatchContent::None));
        }
        for entry in entries {
            if !budget.take(&entry) {
                flush(system, std::mem::take(&mut unit), &how).await?;
                budget = BatchBudget::default();
                assert!(budget.take(&entry), "any of these files fits a unit");
            }
            unit.push(entry);
        }
    }
    flush(system, unit, &how).await
}

async fn flush(system: &FileSystem, unit: Vec<BatchEntry>, how: &BatchWrite) -> Result<(), FileError> {
    let report = system.batch_write(FileId::ROOT, unit, how).await?;
    report.fates.into_iter().try_for_each(|fate| fate.map(drop))
}

fn entry(path: Vec<u8>, kind: Kind, content: BatchContent) -> BatchEntry {
    let now = Timestamp::new(0, 0);
    let (mode, xattrs) = (0o755, Vec::new());
    BatchEntry { path, kind, mode, uid: 0, gid: 0, modified: now, accessed: now, device: 0, xattrs, content }
}

impl Set {
    /// Numbers of all files in this order; another one for each seed.
    fn order_of(&self, seed: u64) -> Vec<usize> {
        let mut numbers: Vec<usize> = (0..self.files).collect();
        if self.order == Order::Random {
            let world = World::new(seed);
            (1..numbers.len()).rev().for_each(|last| numbers.swap(last, world.below(last as u64 + 1) as usize));
        }
        numbers
    }

    fn content(&self, platform: &Platform) -> Vec<u8> {
        let mut content = vec![0; self.file_bytes];
        platform.chance.fill(&mut content);
        content
    }

    /// A line of JSON.
    fn tell(&self, operation: Operation, side: &str, time: Duration, placed: &[Placed]) {
        let bytes = (self.files * self.file_bytes) as f64;
        let index = usize::from(self.order == Order::Listed);
        let published = match operation {
            Operation::Read => Some(self.published[index]),
            Operation::Overwrite => Some(self.published[2 + index]),
            // Theirs are of files that were there: at random they took as long as a seek for each.
            Operation::Create => None,
        };
        let begun = placed.first().map_or(Duration::ZERO, |placed| placed.begun);
        let point =
            |placed: &Placed| (((placed.begun - begun).as_secs_f64()), placed.address as f64 / f64::from(1 << 20));
        let step = placed.len().div_ceil(POINTS_MAX).max(1);
        let line = serde_json::json!({
            "experiment": "batches", "side": side,
            "operation": match operation {
                Operation::Create => "create",
                Operation::Read => "read",
                Operation::Overwrite => "overwrite",
            },
            "order": if self.order == Order::Random { "random" } else { "in order" },
            "file_bytes": self.file_bytes, "files": self.files,
            "seconds": time.as_secs_f64(),
            "published_seconds": published.map(|seconds| seconds * bytes / PUBLISHED_BYTES),
            "requests": placed.len(), "seeks": placed.iter().filter(|placed| placed.is_sought).count(),
            "bytes": placed.iter().map(|placed| placed.bytes).sum::<u64>(),
            "seconds_and_mebibytes": placed.iter().step_by(step).map(point).collect::<Vec<_>>(),
        });
        println!("{line}");
    }
}
