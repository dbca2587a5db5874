//! Batches by the API: ten thousand files are written, listed, found, read in the order in which they lie, copied and removed, each by a few calls.
//!
//! ```text
//! cargo run --release -p file --example batch -- FOLDER
//! ```
//!
//! FOLDER must not be there yet; a node is made in it. Other processes do the same to a mount over its daemon's socket: `hydrafs cp`, `tar`,
//! `walk`, `rm`.

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::id::{FileId, NodeNumber};
use base::time::Timestamp;
use bytes::Bytes;
use file::{
    Attributes, BatchBudget, BatchContent, BatchCopy, BatchEntry, BatchFate, BatchRead, BatchSink, BatchWrite,
    FileError, FileSystem, Kind, Node, Options, Taken, format_node,
};
use platform::Clock;
use platform::real::{Directory, block_on};

const FILES: u32 = 10_000;
const FILE_BYTES: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from).ok_or("say the folder that a node is to be made in")?;
    std::fs::create_dir(&folder)?;
    let platform = platform::real::platform();
    let disks = [Directory::create(&folder.join("disk"))?];
    block_on(async {
        format_node(&platform, &disks, NodeNumber(1), 0, 0).await?;
        let (system, _) = FileSystem::open(&platform, &disks, Options::default()).await?;
        all(&system, &*platform.clock).await?;
        system.close().await
    })?;
    Ok(())
}

async fn all(system: &FileSystem, clock: &dyn Clock) -> Result<(), FileError> {
    let told = |what: &str, count: u64, since: Duration| println!("{what}: {count} in {:?}", clock.elapsed() - since);

    let began = clock.elapsed();
    let made = write(system).await?;
    told("written, durable", made, began);

    // Names and attributes of all, from the trees.
    let (mut files, began) = (Vec::new(), clock.elapsed());
    let mut tell = |step: Result<file::Walked<'_>, (&[u8], FileError)>| {
        if let Ok(walked) = step
            && walked.attributes.kind == Kind::Regular
        {
            files.push(walked.node);
        }
        true
    };
    system.batch_walk(Node::live(FileId::ROOT), &mut tell).await?;
    told("walked", files.len() as u64, began);

    // A tenth of them by their paths, as a list has them.
    let began = clock.elapsed();
    let paths: Vec<String> = (0..FILES).step_by(10).map(|number| format!("d/{number}")).collect();
    let found = system.batch_find(Node::live(FileId::ROOT), &paths).await;
    told("found by path", found.iter().flatten().count() as u64, began);

    let (sum, began) = (Sum::default(), clock.elapsed());
    let report = system.batch_read(&files, &BatchRead { memory: 64 << 20, sink: &sum }).await;
    told("read", report.files, began);
    println!("  {} bytes, by {} runs", sum.0.load(Ordering::Relaxed), report.ordered.runs);

    let began = clock.elapsed();
    let (from, _) = system.lookup(Node::live(FileId::ROOT), b"d").await?;
    let how = BatchCopy { anew: None, tell: &|_, _| true, written: &|_, _| {} };
    let report = system.batch_copy(Node::live(from.file), FileId::ROOT, b"copy", &how).await?;
    told("copied, content shared", report.files, began);

    let began = clock.elapsed();
    system.batch_remove(FileId::ROOT, b"d").await?;
    told("removed", u64::from(FILES), began);
    Ok(())
}

/// In units: each is there as a whole after a crash, or not at all.
async fn write(system: &FileSystem) -> Result<u64, FileError> {
    let (mut unit, mut budget, mut made) = (Vec::new(), BatchBudget::default(), 0);
    let how = BatchWrite { preserve: true, ..BatchWrite::default() };
    let entries = std::iter::once(entry("d".into(), Kind::Directory, BatchContent::None)).chain((0..FILES).map(file));
    for entry in entries {
        if !budget.take(&entry) {
            made += system.batch_write(FileId::ROOT, std::mem::take(&mut unit), &how).await?.made;
            budget = BatchBudget::default();
            assert!(budget.take(&entry), "a file of a page fits any unit");
        }
        unit.push(entry);
    }
    made += system.batch_write(FileId::ROOT, unit, &how).await?.made;
    system.sync(FileId::ROOT).await?;
    Ok(made)
}

fn file(number: u32) -> BatchEntry {
    let mut content = vec![0; FILE_BYTES];
    content[..4].copy_from_slice(&number.to_le_bytes());
    let content = BatchContent::Data(vec![(0, Bytes::from(content))], FILE_BYTES as u64);
    entry(format!("d/{number}"), Kind::Regular, content)
}

fn entry(path: String, kind: Kind, content: BatchContent) -> BatchEntry {
    let mode = if kind == Kind::Directory { 0o755 } else { 0o644 };
    let now = Timestamp::new(1_000_000_000, 0);
    let (path, xattrs) = (path.into_bytes(), Vec::new());
    BatchEntry { path, kind, mode, uid: 0, gid: 0, modified: now, accessed: now, device: 0, xattrs, content }
}

/// Takes what is read, and adds it up.
#[derive(Default)]
struct Sum(AtomicU64);

impl BatchSink for Sum {
    fn begin(&self, _index: usize, _attributes: &Attributes) {}

    fn piece(&self, _index: usize, _offset: u64, content: Bytes) -> Taken<'_> {
        self.0.fetch_add(content.len() as u64, Ordering::Relaxed);
        Box::pin(std::future::ready(true))
    }

    fn done(&self, index: usize, fate: BatchFate) {
        match fate {
            BatchFate::Whole(_) => {}
            BatchFate::Torn(_) => eprintln!("file {index} was written to each time that it was read"),
            BatchFate::Failed(error) => eprintln!("file {index} cannot be read: {error}"),
        }
    }
}
