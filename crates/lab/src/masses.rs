//! Does a batch of a hundred times as many entries take more memory? Files are written in units, walked, read in the order in which they lie, and
//! removed with their tree; each phase tells the most memory that it took, as the kernel counted it, beside what was reserved for it.
//!
//! Files share few contents: the index has few chunks then (what many take `chunks` tells), and what is left is the batch's own.
//!
//! Not here: how fast it is (`batches`, and `cargo xtask bench`).

use std::error::Error;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use base::id::{FileId, NodeNumber};
use base::time::Timestamp;
use bytes::Bytes;
use file::{
    Attributes, BatchBudget, BatchContent, BatchEntry, BatchFate, BatchRead, BatchSink, BatchWrite, FileError,
    FileSystem, Kind, Node, Options, StoreOptions, Taken, Walked, format_node,
};
use platform::real::{Directory, block_on};

use crate::chunks::{forget_most_memory, most_memory};

type Outcome<T> = Result<T, Box<dyn Error>>;

const FILES_PER_DIRECTORY: u64 = 1000;
const CONTENTS: u64 = 1000;
const FILE_BYTES: usize = 1000;
/// Files whose content is read together, and what that may take.
const GROUP: usize = 32 << 10;
const READ_MEMORY: u64 = 32 << 20;
const TOP: &[u8] = b"masses";

pub(crate) fn run(folder: &Path, counts: &[u64]) -> Outcome<()> {
    for count in counts {
        let place = folder.join(format!("masses-{count}"));
        std::fs::create_dir_all(&place)?;
        let measured = measure(&place, *count);
        std::fs::remove_dir_all(&place)?;
        for (phase, most_bytes, seconds) in measured? {
            let result = serde_json::json!({
                "experiment": "masses", "entries": count, "phase": phase, "memory_bytes": most_bytes, "seconds": seconds,
            });
            println!("{result}");
        }
    }
    Ok(())
}

/// The most memory of each phase, and its seconds.
fn measure(place: &Path, count: u64) -> Outcome<Vec<(&'static str, u64, f64)>> {
    let platform = platform::real::platform();
    let disks = vec![Directory::create(place)?];
    block_on(format_node(&platform, &disks, NodeNumber(1), 0, 0))?;
    // As of a budget of some hundred MiB: larger caches would hide the rest.
    let store = StoreOptions { cache_bytes: 16 << 20, index_cache_bytes: 8 << 20, ..StoreOptions::default() };
    let options = Options { store, dirty_bytes_max: 64 << 20, ..Options::default() };
    let mut phases = Vec::new();
    block_on(async {
        let (system, _) = FileSystem::open(&platform, &disks, options).await?;
        let mut begun = platform.clock.elapsed();
        let mut phase = |name| -> Outcome<()> {
            let now = platform.clock.elapsed();
            phases.push((name, most_memory()?, (now - begun).as_secs_f64()));
            begun = now;
            forget_most_memory()
        };
        phase("open an empty node")?;
        write(&system, count).await?;
        system.sync_all().await?;
        phase("write in units")?;
        expect(walk(&system, &mut |_| {}).await?, count)?;
        phase("walk")?;
        expect(read(&system).await?, count)?;
        phase("read")?;
        system.batch_remove(FileId::ROOT, TOP).await?;
        phase("remove")?;
        system.finish_removals().await?;
        phase("remove behind")?;
        system.close().await?;
        Ok::<_, Box<dyn Error>>(())
    })?;
    Ok(phases)
}

fn expect(found: u64, count: u64) -> Outcome<()> {
    if found == count { Ok(()) } else { Err(format!("{found} files instead of {count}").into()) }
}

async fn write(system: &FileSystem, count: u64) -> Result<(), FileError> {
    let how = BatchWrite { preserve: true, ..BatchWrite::default() };
    let (mut unit, mut budget) =
        (vec![entry(TOP.to_vec(), Kind::Directory, BatchContent::None)], BatchBudget::default());
    assert!(budget.take(&unit[0]), "a directory fits");
    for number in 0..count {
        let directory = [TOP, format!("/{}", number / FILES_PER_DIRECTORY).as_bytes()].concat();
        let path = [&directory[..], format!("/file-{number}").as_bytes()].concat();
        let is_first = number.is_multiple_of(FILES_PER_DIRECTORY);
        let above = is_first.then(|| entry(directory, Kind::Directory, BatchContent::None));
        let mut content = (number % CONTENTS).to_le_bytes().to_vec();
        content.resize(FILE_BYTES, 0);
        let content = BatchContent::Data(vec![(0, Bytes::from(content))], FILE_BYTES as u64);
        for entry in above.into_iter().chain([entry(path, Kind::Regular, content)]) {
            if !budget.take(&entry) {
                system.batch_write(FileId::ROOT, std::mem::take(&mut unit), &how).await?;
                budget = BatchBudget::default();
                assert!(budget.take(&entry), "a small file fits any unit");
            }
            unit.push(entry);
        }
    }
    system.batch_write(FileId::ROOT, unit, &how).await.map(drop)
}

fn entry(path: Vec<u8>, kind: Kind, content: BatchContent) -> BatchEntry {
    let now = Timestamp::new(1_000_000_000, 0);
    let (mode, xattrs) = (0o755, Vec::new());
    BatchEntry { path, kind, mode, uid: 0, gid: 0, modified: now, accessed: now, device: 0, xattrs, content }
}

/// Tells of all files; how many.
async fn walk(system: &FileSystem, tell: &mut (dyn FnMut(Node) + Send)) -> Result<u64, FileError> {
    let mut files = 0;
    let mut step = |step: Result<Walked<'_>, (&[u8], FileError)>| {
        if let Ok(Walked { node, attributes, .. }) = step
            && attributes.kind == Kind::Regular
        {
            files += 1;
            tell(node);
        }
        true
    };
    system.batch_walk(Node::live(FileId::ROOT), &mut step).await?;
    Ok(files)
}

/// Reads all files, as the daemon does: a group is read while the next is found.
async fn read(system: &FileSystem) -> Outcome<u64> {
    let (send, groups) = std::sync::mpsc::sync_channel::<Vec<Node>>(1);
    let sum = Sum::default();
    std::thread::scope(|scope| {
        let walker = scope.spawn(move || {
            let mut group = Vec::with_capacity(GROUP);
            let mut tell = |node| {
                group.push(node);
                if group.len() == GROUP {
                    send.send(std::mem::replace(&mut group, Vec::with_capacity(GROUP))).expect("somebody reads");
                }
            };
            block_on(walk(system, &mut tell))?;
            send.send(group).expect("somebody reads");
            Ok::<_, FileError>(())
        });
        for group in groups {
            block_on(system.batch_read(&group, &BatchRead { memory: READ_MEMORY, sink: &sum }));
        }
        walker.join().expect("it does not panic")
    })?;
    Ok(sum.0.into_inner())
}

/// Counts files that came whole.
#[derive(Default)]
struct Sum(AtomicU64);

impl BatchSink for Sum {
    fn begin(&self, _index: usize, _attributes: &Attributes) {}

    fn piece(&self, _index: usize, _offset: u64, _content: Bytes) -> Taken<'_> {
        Box::pin(std::future::ready(true))
    }

    fn done(&self, _index: usize, fate: BatchFate) {
        self.0.fetch_add(u64::from(matches!(fate, BatchFate::Whole(_))), Ordering::Relaxed);
    }
}
