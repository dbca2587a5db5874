//! Streams through the file layer beside the raw store (HydraFS, FAST'10: 82 to 100 % of the raw store).
//!
//! The raw store is driven by the published loop: chunks are submitted until it is busy, and again when it calls back; there are no trees, no
//! records, no files. The chunks are cut before the clock runs, so the file layer cuts, and the raw store does not; a third side cuts
//! as well. All hash, look for duplicates, compress and write the same bytes to the same disk, and end with all of them durable.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::id::{ChunkAddress, FileId, NodeNumber};
use base::metric::{Metric, Unit, Value};
use bytes::Bytes;
use file::{FileSystem, Kind, NewFile, Node, Options, WriteHow, format_node};
use platform::Platform;
use platform::disk::Disk;
use platform::real::{Directory, block_on};
use store::{Class, Resilience, Store};
use tokio::sync::oneshot;

type Outcome<T> = Result<T, Box<dyn Error>>;

const MIB: usize = 1 << 20;
/// A run of content that is new, or a duplicate.
const PIECE_BYTES: usize = 4 * MIB;
/// What is submitted at once.
const GROUP_BYTES: usize = MIB;
/// Chunks that the raw reader asks for at once, and how often it asks before it waits.
const GROUP_CHUNKS: usize = 16;
const READS_AHEAD: usize = 8;

pub(crate) fn run(folder: &Path, stream_bytes: u64, duplicates: &[u64], fill: Fill, sides: &[Side]) -> Outcome<()> {
    let platform = platform::real::platform();
    let stream_bytes = usize::try_from(stream_bytes)?;
    for (number, share) in duplicates.iter().enumerate() {
        let content = Content::with(&platform, stream_bytes, *share, fill);
        // A B, B A: a disk that gets slower with time is no side's.
        let mut sides = sides.to_vec();
        if number % 2 == 1 {
            sides.reverse();
        }
        for side in sides {
            let place = folder.join(format!("node-{}", side.name()));
            std::fs::create_dir_all(&place)?;
            let measured = measure(&platform, &place, side, &content);
            std::fs::remove_dir_all(&place)?;
            let Measured { written, read, seconds } = measured?;
            let rate = |time: Duration| stream_bytes as f64 / 1e6 / time.as_secs_f64();
            let result = serde_json::json!({
                "experiment": "stream", "fill": fill.name(), "side": side.name(), "duplicates": share,
                "write_megabytes_per_second": rate(written), "read_megabytes_per_second": rate(read),
                "seconds": seconds,
            });
            println!("{result}");
        }
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Side {
    /// Chunks that were cut before the clock runs.
    Raw,
    /// As `Raw`, and every MiB is cut by the task that submits it: one pass of cutting, hashing and compressing on all cores.
    RawCut,
    /// One file, written by one caller.
    File,
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Side::Raw => "raw",
            Side::RawCut => "raw-cut",
            Side::File => "file",
        }
    }
}

/// What streams are made of.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Fill {
    /// Bytes by chance: nothing of them compresses.
    Random,
    /// Words by chance, some of them often: about half of them can be saved.
    Words,
}

impl Fill {
    fn name(self) -> &'static str {
        match self {
            Fill::Random => "random",
            Fill::Words => "words",
        }
    }

    /// New content.
    fn fresh(self, platform: &Platform, count: usize) -> Vec<u8> {
        match self {
            Fill::Random => by_chance(platform, count),
            Fill::Words => words(platform, count),
        }
    }
}

fn by_chance(platform: &Platform, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    bytes.chunks_mut(MIB).for_each(|part| platform.chance.fill(part));
    bytes
}

const WORDS: usize = 4096;
const LONGEST_WORD: usize = 12;

/// Of some thousand words those that come first are the most frequent, as in texts. Each stretch has its own words.
fn words(platform: &Platform, count: usize) -> Vec<u8> {
    let known: Vec<Vec<u8>> = by_chance(platform, WORDS * LONGEST_WORD)
        .chunks(LONGEST_WORD)
        .map(|letters| {
            let length = 2 + usize::from(letters[0]) % (LONGEST_WORD - 2);
            let mut word: Vec<u8> = letters[..length].iter().map(|letter| b'a' + letter % 26).collect();
            word.push(b' ');
            word
        })
        .collect();
    let mut text = Vec::with_capacity(count + LONGEST_WORD);
    while text.len() < count {
        for picks in by_chance(platform, MIB).chunks_exact(4) {
            let pick = |at: usize| usize::from(u16::from_le_bytes([picks[at], picks[at + 1]])) % WORDS;
            text.extend_from_slice(&known[pick(0).min(pick(2))]);
            if text.len() >= count {
                break;
            }
        }
    }
    text.truncate(count);
    text
}

/// What is there before, and the stream.
struct Content {
    before: Bytes,
    stream: Bytes,
}

impl Content {
    /// A stream of which so many percent are duplicates, evenly spread.
    fn with(platform: &Platform, stream_bytes: usize, share: u64, fill: Fill) -> Content {
        let before = fill.fresh(platform, stream_bytes);
        let mut stream = Vec::with_capacity(stream_bytes);
        let mut owed = 0;
        for piece in before.chunks(PIECE_BYTES) {
            owed += share;
            if owed >= 100 {
                owed -= 100;
                stream.extend_from_slice(piece);
            } else {
                stream.extend(fill.fresh(platform, piece.len()));
            }
        }
        Content { before: before.into(), stream: stream.into() }
    }
}

/// Times for the stream.
struct Measured {
    written: Duration,
    read: Duration,
    /// Where the time of writing went, by the layers' own metrics: seconds, of several tasks at a time added up.
    seconds: BTreeMap<String, f64>,
}

/// Sums of all durations that were measured so far.
fn seconds(metrics: Vec<Metric>) -> BTreeMap<String, f64> {
    let sum = |metric: Metric| match metric.value {
        Value::Distribution(times) if metric.description.unit == Unit::Seconds => {
            Some((metric.description.key(), Duration::from_nanos(times.sum()).as_secs_f64()))
        }
        _ => None,
    };
    metrics.into_iter().filter_map(sum).collect()
}

/// What was added since, where that is a millisecond.
fn since(before: &BTreeMap<String, f64>, now: BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let added = now.into_iter().map(|(key, sum)| (key.clone(), sum - before.get(&key).copied().unwrap_or(0.0)));
    added.filter(|(_, sum)| *sum >= 0.001).collect()
}

/// Writes and reads the stream in a fresh node.
fn measure(platform: &Platform, place: &Path, side: Side, content: &Content) -> Outcome<Measured> {
    let disks = vec![Directory::create(place)?];
    block_on(format_node(platform, &disks, NodeNumber(1), 0, 0))?;
    match side {
        Side::Raw => raw(platform, &disks, content, false),
        Side::RawCut => raw(platform, &disks, content, true),
        Side::File => through_files(platform, &disks, content),
    }
}

fn raw(platform: &Platform, disks: &[Disk], content: &Content, is_cut_late: bool) -> Outcome<Measured> {
    let options = Options::default().store;
    let (store, _) = block_on(Store::open(platform, disks, options.clone()))?;
    let groups = |stream| if is_cut_late { parts(stream) } else { groups(stream) };
    block_on(submit(platform, &store, groups(&content.before), is_cut_late))?;
    let stream = groups(&content.stream);
    let before = seconds(store.counters().list());
    let started = platform.clock.elapsed();
    let addresses = block_on(submit(platform, &store, stream, is_cut_late))?;
    let written = platform.clock.elapsed() - started;
    let spent = since(&before, seconds(store.counters().list()));
    block_on(store.close())?;
    drop(store);
    forget_caches()?;
    let (store, _) = block_on(Store::open(platform, disks, options))?;
    let started = platform.clock.elapsed();
    block_on(fetch(platform, &store, &addresses))?;
    let read = platform.clock.elapsed() - started;
    block_on(store.close())?;
    Ok(Measured { written, read, seconds: spent })
}

/// The stream in parts that are still to be cut.
fn parts(stream: &Bytes) -> Vec<Vec<Bytes>> {
    (0..stream.len())
        .step_by(GROUP_BYTES)
        .map(|at| vec![stream.slice(at..stream.len().min(at + GROUP_BYTES))])
        .collect()
}

fn cut(part: &Bytes) -> Vec<Bytes> {
    let mut rest = part.clone();
    store::cut_points(part, true).into_iter().map(|length| rest.split_to(length)).collect()
}

/// The stream's chunks, a MiB at a time.
fn groups(stream: &Bytes) -> Vec<Vec<Bytes>> {
    let (mut groups, mut group, mut bytes) = (Vec::new(), Vec::new(), 0);
    for chunk in cut(stream) {
        bytes += chunk.len();
        group.push(chunk);
        if bytes >= GROUP_BYTES {
            bytes = 0;
            groups.push(std::mem::take(&mut group));
        }
    }
    groups.push(group);
    groups
}

/// Submits until the store is busy, and again when it has room; then all is settled.
async fn submit(
    platform: &Platform,
    store: &Arc<Store>,
    groups: Vec<Vec<Bytes>>,
    is_cut_late: bool,
) -> Outcome<Vec<ChunkAddress>> {
    let since = store.moment();
    let mut begun = Vec::new();
    for group in groups {
        let bytes = group.iter().map(|chunk| chunk.len() as u64).sum();
        let room = match store.try_room(bytes) {
            Some(room) => room,
            None => store.room(bytes).await,
        };
        let (send, receive) = oneshot::channel();
        let store = Arc::clone(store);
        platform.tasks.aside(Box::pin(async move {
            let group = if is_cut_late { group.iter().flat_map(cut).collect() } else { group };
            let put = store.put_with(room, (Class::Data, Resilience::OfNode), group).await;
            drop(store);
            drop(send.send(put));
        }));
        begun.push(receive);
    }
    let mut addresses = Vec::new();
    for put in begun {
        addresses.extend(put.await??);
    }
    store.settle(since).await?;
    Ok(addresses)
}

/// Reads all chunks, several groups at a time.
async fn fetch(platform: &Platform, store: &Arc<Store>, addresses: &[ChunkAddress]) -> Outcome<()> {
    let mut begun = std::collections::VecDeque::new();
    for group in addresses.chunks(GROUP_CHUNKS) {
        if begun.len() == READS_AHEAD {
            let first: oneshot::Receiver<_> = begun.pop_front().expect("there are several");
            first.await??;
        }
        let (send, receive) = oneshot::channel();
        let (store, group) = (Arc::clone(store), group.to_vec());
        platform.tasks.aside(Box::pin(async move {
            let got = store.get_many(Class::Data, &group).await.map(drop);
            drop(store);
            drop(send.send(got));
        }));
        begun.push_back(receive);
    }
    for got in begun {
        got.await??;
    }
    Ok(())
}

fn through_files(platform: &Platform, disks: &[Disk], content: &Content) -> Outcome<Measured> {
    let (system, _) = block_on(FileSystem::open(platform, disks, Options::default()))?;
    block_on(write(&system, "before", &content.before))?;
    let before = seconds(system.status().metrics);
    let started = platform.clock.elapsed();
    let file = block_on(write(&system, "stream", &content.stream))?;
    let written = platform.clock.elapsed() - started;
    let spent = since(&before, seconds(system.status().metrics));
    block_on(system.close())?;
    drop(system);
    forget_caches()?;
    let (system, _) = block_on(FileSystem::open(platform, disks, Options::default()))?;
    let mut buffer = vec![0; MIB];
    let started = platform.clock.elapsed();
    for part in content.stream.chunks(MIB) {
        let at = part.as_ptr() as u64 - content.stream.as_ptr() as u64;
        let count = block_on(system.read(Node::live(file), at, &mut buffer))?;
        if buffer[..count] != *part {
            return Err(format!("other bytes at {at}").into());
        }
    }
    let read = platform.clock.elapsed() - started;
    block_on(system.close())?;
    Ok(Measured { written, read, seconds: spent })
}

async fn write(system: &FileSystem, name: &str, stream: &Bytes) -> Outcome<FileId> {
    let new = NewFile { kind: Kind::Regular, mode: 0o644, umask: 0, uid: 0, gid: 0, device: 0, target: b"" };
    let file = system.create_file(FileId::ROOT, name.as_bytes(), &new).await?.file;
    // Not copied: the raw store is given its chunks in the same way.
    system.write_bytes(file, 0, stream.clone(), WriteHow::default()).await?;
    system.sync(file).await?;
    Ok(file)
}

/// Has the kernel forget what it cached.
fn forget_caches() -> Outcome<()> {
    #[expect(clippy::disallowed_methods, reason = "a switch of the kernel, and no file of ours")]
    std::fs::write("/proc/sys/vm/drop_caches", "3")
        .map_err(|error| format!("cannot drop the kernel's caches (root may): {error}"))?;
    Ok(())
}
