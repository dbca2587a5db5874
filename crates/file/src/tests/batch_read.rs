//! Batches that are read: each file whole, as of one moment, in the order in which it lies.

use std::collections::BTreeMap;

use base::hash::checksum;
use base::id::FileId;
use bytes::Bytes;
use parking_lot::Mutex;
use platform::sim::{Placed, Platter};
use platform::task::{First, first};

use super::content::pattern;
use super::{Machine, create, find, new, read_all};
use crate::extent::Extent;
use crate::{
    AttributeChange, Attributes, BatchFate, BatchRead, BatchReadReport, BatchSink, FileError, FileSystem, Kind,
    NewFile, Node, Options, Reclaim, Taken,
};

const MEMORY: u64 = 64 << 20;

pub(super) type Fates = BTreeMap<usize, Result<(Attributes, Vec<u8>), FileError>>;

/// Takes what comes, and holds it to what was promised.
#[derive(Default)]
struct Basket {
    now: Mutex<Option<(usize, Vec<u8>)>>,
    fates: Mutex<Fates>,
    torn: Mutex<Vec<usize>>,
    begun: Mutex<Vec<usize>>,
}

impl BatchSink for Basket {
    fn begin(&self, index: usize, attributes: &Attributes) {
        let mut now = self.now.lock();
        assert!(now.as_ref().is_none_or(|(other, _)| *other == index), "one after the other");
        *now = Some((index, Vec::with_capacity(attributes.size as usize)));
        self.begun.lock().push(index);
    }

    fn piece(&self, index: usize, offset: u64, content: Bytes) -> Taken<'_> {
        let mut now = self.now.lock();
        let (of, bytes) = now.as_mut().expect("it has begun");
        assert!(*of == index && offset as usize >= bytes.len(), "{index}: {offset} after {}", bytes.len());
        bytes.resize(offset as usize, 0);
        bytes.extend_from_slice(&content);
        Box::pin(async { true })
    }

    fn done(&self, index: usize, fate: BatchFate) {
        let now = self.now.lock().take_if(|(of, _)| *of == index);
        let fate = match fate {
            BatchFate::Whole(attributes) | BatchFate::Torn(attributes) => {
                let (_, mut bytes) = now.expect("it has begun");
                assert!(bytes.len() as u64 <= attributes.size);
                bytes.resize(attributes.size as usize, 0);
                Ok((attributes, bytes))
            }
            BatchFate::Failed(error) => Err(error),
        };
        assert!(self.fates.lock().insert(index, fate).is_none(), "{index} is done twice");
    }
}

pub(super) async fn read(system: &FileSystem, nodes: &[Node], memory: u64) -> (BatchReadReport, Fates) {
    let basket = Basket::default();
    let report = system.batch_read(nodes, &BatchRead { memory, sink: &basket }).await;
    let fates = std::mem::take(&mut *basket.fates.lock());
    if report.is_done {
        assert!(fates.keys().copied().eq(0..nodes.len()), "each has met its fate");
        assert_eq!(report.files + report.failed, nodes.len() as u64);
        assert_eq!(report.torn, 0, "nobody writes meanwhile");
        let good: u64 = fates.values().flatten().map(|(_, bytes)| bytes.len() as u64).sum();
        assert!(report.bytes <= good || report.reread > 0, "{report:?}");
    }
    (report, fates)
}

/// The same as one read after the other.
async fn expect_same(system: &FileSystem, nodes: &[Node], memory: u64) -> BatchReadReport {
    let (report, fates) = read(system, nodes, memory).await;
    for (node, (index, fate)) in nodes.iter().zip(fates) {
        match (system.attributes(*node).await, fate) {
            (Ok(expected), Ok((attributes, bytes))) => {
                assert_eq!(attributes, expected);
                assert!(bytes == read_all(system, *node).await, "{index}: {node:?}");
            }
            (Ok(expected), Err(FileError::IsDirectory)) => assert_eq!(expected.kind, Kind::Directory),
            (Ok(expected), Err(FileError::Invalid(_))) => assert_eq!(expected.kind, Kind::Symlink),
            (Err(FileError::NoEntry), Err(FileError::NoEntry)) => {}
            (expected, fate) => panic!("{index}: {expected:?}, {fate:?}"),
        }
    }
    report
}

fn shuffle<T>(machine: &Machine, list: &mut [T]) {
    (1..list.len()).for_each(|last| list.swap(last, machine.world.below(last as u64 + 1) as usize));
}

/// Files of all kinds and layers; what a list may name.
async fn mixture(system: &FileSystem) -> Vec<Node> {
    let top = create(system, FileId::ROOT, "top", Kind::Directory).await.file;
    let mut nodes = vec![Node::live(top)];
    for number in 0..120_u64 {
        let file = create(system, top, &format!("f{number}"), Kind::Regular).await.file;
        nodes.push(Node::live(file));
        let size = [0, 10, 3000, 5000, 40_000, 300_000][number as usize % 6];
        // Every tenth is a duplicate of another.
        system.write(file, 0, &pattern(size, number % 90), false).await.unwrap();
        match number % 12 {
            5 => system.write(file, 2_000_000, b"behind a hole", false).await.unwrap(),
            7 => system.sync(file).await.unwrap(),
            _ => {}
        }
        if number == 60 {
            system.sync_all().await.unwrap();
            system.commit().await.unwrap();
        }
    }
    let large = create(system, top, "large", Kind::Regular).await.file;
    for at in 0..20 {
        system.write(large, at << 20, &pattern(1 << 20, at), false).await.unwrap();
    }
    let link = NewFile { target: b"elsewhere", ..new(Kind::Symlink) };
    let link = system.create_file(top, b"link", &link).await.unwrap().file;
    let removed = create(system, top, "removed", Kind::Regular).await.file;
    system.remove_file(top, b"removed").await.unwrap();
    nodes.extend([large, link, removed].map(Node::live));
    // Lists name things twice.
    nodes.extend_from_within(10..30);
    nodes
}

#[test]
fn a_batch_is_read_as_each_file_is_in_every_layer() {
    for seed in 0..4 {
        let inodes_max = if seed % 2 == 0 { 16 } else { 100_000 };
        let options = Options { inodes_max, access_times: false, ..Options::default() };
        let machine = Machine::with(seed, 2 << 30, options);
        let mut system = machine.open();
        let mut nodes = machine.run(mixture(&system));
        shuffle(&machine, &mut nodes);
        machine.run(async {
            expect_same(&system, &nodes, MEMORY).await;
            // Journaled inline over chunks, and accepted on top of that.
            for node in &nodes[..20] {
                if system.write(node.file, 1000, b"journaled", false).await.is_ok() {
                    system.sync(node.file).await.unwrap();
                }
                drop(system.write(node.file, 1005, b"accepted", false).await);
            }
            expect_same(&system, &nodes, MEMORY).await;
            system.sync_all().await.unwrap();
            expect_same(&system, &nodes, MEMORY).await;
            system.snapshot("s").await.unwrap();
            expect_same(&system, &nodes, MEMORY).await;
        });
        system = machine.power_cycle(system);
        machine.run(async {
            let report = expect_same(&system, &nodes, MEMORY).await;
            assert!(report.ordered.duplicates > 10 && report.alone < 10, "{report:?}");
            let source = find(&system, "top").await.unwrap();
            let clone = system.clone_tree(source, FileId::ROOT, b"clone").await.unwrap().file;
            let view = find(&system, ".snapshots/s/top").await.unwrap().view;
            for node in &nodes {
                drop(system.write(node.file, 3, b"changed", false).await);
            }
            let others = nodes.iter().map(|node| Node { view, file: node.file });
            let cloned = nodes.iter().map(|node| Node::live(clone.beside(node.file.number)));
            let all: Vec<Node> = nodes.iter().copied().chain(others).chain(cloned).collect();
            expect_same(&system, &all, MEMORY).await;
            expect_same(&system, &all, 0).await;
        });
    }
}

/// So many files of so many bytes, made and written in an order that is neither that of their names nor of their numbers.
pub(super) async fn small_files(machine: &Machine, system: &FileSystem, count: u64, bytes: usize) -> Vec<Node> {
    let mut files = Vec::new();
    for directory in 0..count.div_ceil(100) {
        let parent = create(system, FileId::ROOT, &format!("d{directory}"), Kind::Directory).await.file;
        for number in 0..100.min(count - 100 * directory) {
            files.push(create(system, parent, &format!("f{number}"), Kind::Regular).await.file);
        }
    }
    shuffle(machine, &mut files);
    for file in &files {
        system.write(*file, 0, &pattern(bytes, file.number), false).await.unwrap();
    }
    system.sync_all().await.unwrap();
    system.commit().await.unwrap();
    shuffle(machine, &mut files);
    files.into_iter().map(Node::live).collect()
}

pub(super) fn reopen(machine: &Machine, system: std::sync::Arc<FileSystem>) -> std::sync::Arc<FileSystem> {
    machine.run(system.close()).unwrap();
    drop(system);
    machine.world.restart();
    machine.open()
}

/// Place and order of requests are the drive's own account.
#[test]
fn small_files_in_random_order_are_read_in_the_order_of_the_disk_and_much_faster() {
    const FILES: u64 = 3000;
    let machine = Machine::with(1, 1 << 40, Options { read_ahead_bytes_max: 0, ..Options::default() });
    let system = machine.open();
    let nodes = machine.run(small_files(&machine, &system, FILES, 4096));
    let mut system = reopen(&machine, system);
    machine.disk.set_platter(Platter::SAS_7200);
    let clock = machine.world.platform().clock;
    let begun = clock.elapsed();
    let (report, fates) = machine.run(read(&system, &nodes, MEMORY));
    let as_batch = clock.elapsed() - begun;
    for (index, fate) in fates {
        assert!(fate.unwrap().1 == pattern(4096, nodes[index].file.number));
    }
    assert_eq!((report.files, report.parts, report.alone, report.reread), (FILES, 1, 0, 0));
    assert!(report.ordered.runs < 20, "{report:?}");
    // Those of content are long; trees come before.
    let reads: Vec<Placed> = machine.disk.take_placed();
    let content: Vec<Placed> = reads.iter().rev().take(report.ordered.runs as usize).copied().collect();
    // From where the arm was, and then from the beginning.
    let turns = content.windows(2).filter(|pair| pair[0].address < pair[1].address).count();
    assert!(turns <= 1, "{content:?}");
    assert!(reads.len() < 100, "{} requests for {FILES} files", reads.len());

    system = reopen(&machine, system);
    let begun = clock.elapsed();
    machine.run(async {
        for node in &nodes {
            read_all(&system, *node).await;
        }
    });
    let one_by_one = clock.elapsed() - begun;
    eprintln!("as a batch {as_batch:?}, one by one {one_by_one:?}, {} requests", reads.len());
    assert!(one_by_one > 20 * as_batch, "{one_by_one:?}, {as_batch:?}");
}

#[test]
fn a_batch_beyond_its_memory_goes_in_parts() {
    const FILES: u64 = 6000;
    let machine = Machine::with(2, 2 << 30, Options::default());
    let system = machine.open();
    let nodes = machine.run(small_files(&machine, &system, FILES, 2000));
    let system = reopen(&machine, system);
    let (report, fates) = machine.run(read(&system, &nodes, 0));
    for (index, fate) in fates {
        assert!(fate.unwrap().1 == pattern(2000, nodes[index].file.number));
    }
    assert!((2..12).contains(&report.parts), "{report:?}");
    assert_eq!((report.alone, report.reread), (0, 0));
}

/// Callers that take nothing of what their batches read hold memory, and keep nobody else from reading.
#[test]
fn slow_callers_leave_memory_to_others() {
    let options = Options { batch_bytes_max: 128 << 20, ..Options::default() };
    let machine = Machine::with(7, 2 << 30, options);
    let system = machine.open();
    let nodes = machine.run(small_files(&machine, &system, 100, 5000));
    machine.run(async {
        let mut rooms = Vec::new();
        for mebibytes in [64, 32, 16, 8, 4] {
            let (room, memory) = system.batch_room(MEMORY).await;
            assert_eq!(memory, mebibytes << 20);
            rooms.push(room);
        }
        assert_eq!(expect_same(&system, &nodes, MEMORY).await.files, 100);
        drop(rooms.pop());
        // One that was there before is not kept waiting by who comes.
        assert_eq!(system.batch_room(MEMORY).await.1, 4 << 20);
    });
}

/// Who has memory and is waited for can be told.
#[test]
fn who_waits_for_memory_is_counted() {
    let machine = Machine::with(8, 1 << 30, Options { batch_bytes_max: 4 << 20, ..Options::default() });
    let system = machine.open();
    machine.run(async {
        let (room, _) = system.batch_room(MEMORY).await;
        assert_eq!(system.batches_waiting(), 0);
        let mut second = std::pin::pin!(system.batch_room(MEMORY));
        assert!(matches!(first(second.as_mut(), std::future::ready(())).await, First::Right(())));
        assert_eq!(system.batches_waiting(), 1);
        drop(room);
        drop(second.await);
        assert_eq!(system.batches_waiting(), 0);
    });
}

/// What shrinks to little: a run of it would be more content than the room of a small batch, beside the beginning of a file that is kept.
#[test]
fn what_shrinks_much_is_read_in_little_memory() {
    const STRIDE: usize = 20;
    let machine = Machine::with(8, 2 << 30, Options { batch_bytes_max: 4 << 20, ..Options::default() });
    let system = machine.open();
    let nodes = machine.run(async {
        let mut nodes = Vec::new();
        for number in 0..60_u64 {
            let file = create(&system, FileId::ROOT, &format!("f{number}"), Kind::Regular).await.file;
            // One byte of some says something.
            let spread = |byte| std::iter::once(byte).chain(std::iter::repeat_n(0, STRIDE - 1));
            let bytes: Vec<u8> = pattern(448_000 / STRIDE, number).into_iter().flat_map(spread).collect();
            system.write(file, 0, &bytes, false).await.unwrap();
            nodes.push(Node::live(file));
        }
        system.sync_all().await.unwrap();
        system.commit().await.unwrap();
        nodes
    });
    let system = reopen(&machine, system);
    let report = machine.run(expect_same(&system, &nodes, 0));
    assert_eq!(report.files, 60);
    assert!(report.ordered.read_bytes * 5 < report.bytes, "{report:?}");
}

/// Files whose halves lie far from each other.
async fn halves_apart(system: &FileSystem, files: u64, half_bytes: usize) -> Vec<Node> {
    let mut nodes = Vec::new();
    for half in 0..2 {
        for number in 0..files {
            if half == 0 {
                let made = create(system, FileId::ROOT, &format!("f{number}"), Kind::Regular).await;
                nodes.push(Node::live(made.file));
            }
            let bytes = pattern(half_bytes, 2 * number + half);
            system.write(nodes[number as usize].file, half * half_bytes as u64, &bytes, false).await.unwrap();
        }
        system.sync_all().await.unwrap();
        system.commit().await.unwrap();
    }
    nodes
}

/// In one pass they would have to be kept, each until its second half comes.
#[test]
fn what_would_be_kept_too_long_is_read_by_itself() {
    let machine = Machine::with(3, 2 << 30, Options::default());
    let system = machine.open();
    let nodes = machine.run(halves_apart(&system, 60, 100_000));
    let system = reopen(&machine, system);
    machine.run(async {
        let report = expect_same(&system, &nodes, 0).await;
        assert!((20..60).contains(&report.alone), "{report:?}");
    });
    let system = reopen(&machine, system);
    assert_eq!(machine.run(expect_same(&system, &nodes, MEMORY)).alone, 0);
}

/// Where they are larger than a disk's run, those that memory holds are read together, each chunk once.
#[test]
fn large_files_that_lie_scattered_are_read_once() {
    const HALF_BYTES: usize = 1 << 20;
    let options = Options { read_ahead_bytes_max: 0, ..Options::default() };
    let machine = Machine::with(4, 2 << 30, options);
    let system = machine.open();
    let nodes = machine.run(halves_apart(&system, 30, HALF_BYTES));
    let system = reopen(&machine, system);
    let report = machine.run(expect_same(&system, &nodes, 32 << 20));
    assert_eq!((report.files, report.alone, report.reread), (30, 0, 0), "{report:?}");
    let whole = 60 * HALF_BYTES as u64;
    assert!((whole..whole + whole / 50).contains(&report.ordered.read_bytes), "{report:?}");
}

/// Where the first chunk of a file lies on the disk: file and offset.
pub(super) fn data_chunk_place(machine: &Machine, system: &FileSystem, node: Node) -> (String, u64) {
    let address = machine.run(async {
        let inode = system.inode(node).await.unwrap();
        let tree = inode.state.lock().base.tree.clone();
        let (extents, _) = system.base_extents(&tree, 0..5000, 10).await.unwrap();
        let Extent::Chunk { address, .. } = extents[0].1 else { panic!("{extents:?}") };
        address
    });
    let files = machine.disk.snapshot_files();
    let packs = files.iter().filter(|(path, _)| path.starts_with("packs/"));
    let mut found = packs.flat_map(|(path, bytes)| {
        let chunks = bytes.windows(4).enumerate().filter(|(_, window)| window == b"Chnk");
        let of_it = chunks.filter(|(at, _)| bytes[at + 16..].starts_with(&address.0));
        of_it.map(|(at, _)| (path.clone(), at as u64)).collect::<Vec<_>>()
    });
    found.next().unwrap()
}

#[test]
fn what_is_damaged_is_the_fate_of_its_file_alone() {
    let machine = Machine::with(4, 2 << 30, Options::default());
    let system = machine.open();
    let nodes = machine.run(small_files(&machine, &system, 500, 5000));
    let bad = [3, 77, 400];
    let places = bad.map(|number| data_chunk_place(&machine, &system, nodes[number]));
    machine.run(system.close()).unwrap();
    drop(system);
    places.iter().for_each(|(path, at)| machine.disk.flip_bit(path, at + 100, 2));
    machine.world.restart();
    let system = machine.open();
    let (report, fates) = machine.run(read(&system, &nodes, MEMORY));
    assert_eq!((report.files, report.failed), (497, 3));
    for (index, fate) in fates {
        match fate {
            Ok((_, bytes)) => assert!(bytes == pattern(5000, nodes[index].file.number)),
            Err(error) => assert!(bad.contains(&index) && error.is_loss(), "{index}: {error}"),
        }
    }
}

/// A sink that changes what is to come, when it gets its first piece.
struct Meddler<'a> {
    basket: Basket,
    meddle: Mutex<Option<Taken<'a>>>,
}

impl BatchSink for Meddler<'_> {
    fn begin(&self, index: usize, attributes: &Attributes) {
        self.basket.begin(index, attributes);
    }

    fn piece(&self, index: usize, offset: u64, content: Bytes) -> Taken<'_> {
        let taken = self.basket.piece(index, offset, content);
        match self.meddle.lock().take() {
            Some(meddle) => meddle,
            None => taken,
        }
    }

    fn done(&self, index: usize, fate: BatchFate) {
        self.basket.done(index, fate);
    }
}

/// A sink beside somebody who writes to the file whenever something of it came, so often.
struct Beside<'a> {
    basket: Basket,
    system: &'a FileSystem,
    file: FileId,
    writes: Mutex<usize>,
}

impl BatchSink for Beside<'_> {
    fn begin(&self, index: usize, attributes: &Attributes) {
        self.basket.begin(index, attributes);
    }

    fn piece(&self, index: usize, offset: u64, content: Bytes) -> Taken<'_> {
        drop(self.basket.piece(index, offset, content));
        Box::pin(async move {
            let writes = if offset == 0 { std::mem::take(&mut *self.writes.lock()) } else { 0 };
            if writes > 0 {
                *self.writes.lock() = writes - 1;
                // What has the same time as before looks unchanged.
                self.system.platform.tasks.sleep(std::time::Duration::from_millis(1)).await;
                self.system.write(self.file, 1 << 20, b"else", false).await.unwrap();
            }
            true
        })
    }

    fn done(&self, index: usize, fate: BatchFate) {
        if matches!(fate, BatchFate::Torn(_)) {
            self.basket.torn.lock().push(index);
        }
        self.basket.done(index, fate);
    }
}

/// Too large for the memory of a batch: it is read window by window.
async fn large_file(system: &FileSystem) -> Node {
    let file = create(system, FileId::ROOT, "large", Kind::Regular).await.file;
    for at in 0..40 {
        system.write(file, at << 20, &pattern(1 << 20, at), false).await.unwrap();
    }
    system.sync_all().await.unwrap();
    Node::live(file)
}

#[test]
fn a_file_that_is_written_to_each_time_it_is_read_is_told_as_torn() {
    for (writes, rereads, torn) in [(0, 0, 0), (2, 2, 0), (3, 2, 1), (100, 2, 1)] {
        let machine = Machine::new(9);
        let system = machine.open();
        let node = machine.run(large_file(&system));
        let (basket, writes) = (Basket::default(), Mutex::new(writes));
        let beside = Beside { basket, system: &system, file: node.file, writes };
        let report = machine.run(system.batch_read(&[node], &BatchRead { memory: MEMORY, sink: &beside }));
        assert!(report.is_done && report.alone == 1 && report.failed == 0, "{report:?}");
        assert_eq!((report.files, report.torn, report.reread), (1 - torn, torn, rereads));
        assert_eq!(beside.basket.torn.lock().len() as u64, torn);
        // All of it came, one way or the other.
        let fate = beside.basket.fates.lock().remove(&0).expect("it has one");
        assert_eq!(fate.unwrap().1.len(), 40 << 20);
    }
}

/// Everything is changed, removed or committed when the first piece was handed out, and what it was before is reclaimed.
#[test]
fn what_changed_since_it_was_looked_at_is_read_again() {
    const FILES: u64 = 400;
    for (seed, reclaims) in [(5, false), (6, true)] {
        let options = Options { inodes_max: 16, ..Options::default() };
        let machine = Machine::with(seed, 2 << 30, options);
        let system = machine.open();
        let nodes = machine.run(small_files(&machine, &system, FILES, 3000));
        let system = reopen(&machine, system);
        let meddle = async {
            for (number, node) in nodes.iter().enumerate() {
                match number % 4 {
                    0 => system.write(node.file, 0, &pattern(4000, number as u64 + 9000), false).await.map(drop),
                    1 => system.write(node.file, 100, b"some", false).await.map(drop),
                    2 => {
                        let change = AttributeChange { mode: Some(0o600), ..AttributeChange::default() };
                        system.set_attributes(node.file, &change).await.map(drop)
                    }
                    _ => Ok(()),
                }
                .unwrap();
            }
            if reclaims {
                system.sync_all().await.unwrap();
                system.commit().await.unwrap();
                system.reclaim(&Reclaim { is_thorough: true, ..Reclaim::default() }).await.unwrap();
            }
            true
        };
        let meddler = Meddler { basket: Basket::default(), meddle: Mutex::new(Some(Box::pin(meddle))) };
        let report = machine.run(system.batch_read(&nodes, &BatchRead { memory: MEMORY, sink: &meddler }));
        assert!(report.is_done && report.failed == 0 && report.files == FILES, "{report:?}");
        assert!(report.reread >= FILES / 4 * 3 - 3, "{report:?}");
        let first = meddler.basket.begun.lock()[0];
        let fates = std::mem::take(&mut *meddler.basket.fates.lock());
        drop(meddler);
        machine.run(async {
            for (index, fate) in fates {
                let bytes = fate.unwrap().1;
                let is_new = bytes == read_all(&system, nodes[index]).await;
                assert!(
                    is_new
                        || index == first
                            && checksum(0, &bytes) == checksum(0, &pattern(3000, nodes[index].file.number))
                );
            }
        });
    }
}

/// It is still in the table, and what it had is not.
#[test]
fn a_large_file_that_goes_while_it_is_read_is_no_file_of_zeroes() {
    let machine = Machine::new(8);
    let system = machine.open();
    let node = machine.run(large_file(&system));
    let meddle = async { system.remove_file(FileId::ROOT, b"large").await.is_ok() };
    let meddler = Meddler { basket: Basket::default(), meddle: Mutex::new(Some(Box::pin(meddle))) };
    let report = machine.run(system.batch_read(&[node], &BatchRead { memory: MEMORY, sink: &meddler }));
    assert!(report.is_done && report.alone == 1, "{report:?}");
    let fate = meddler.basket.fates.lock().remove(&0).expect("it has one");
    assert!(matches!(fate, Err(FileError::NoEntry)), "{:?}", fate.map(|(attributes, _)| attributes));
}

#[test]
fn who_wants_no_more_or_closes_ends_it() {
    let machine = Machine::with(7, 2 << 30, Options::default());
    let system = machine.open();
    let nodes = machine.run(small_files(&machine, &system, 300, 3000));
    let system = reopen(&machine, system);
    let enough = async { false };
    let meddler = Meddler { basket: Basket::default(), meddle: Mutex::new(Some(Box::pin(enough))) };
    let report = machine.run(system.batch_read(&nodes, &BatchRead { memory: MEMORY, sink: &meddler }));
    assert!(!report.is_done && report.files == 0, "{report:?}");
    // While it is being closed, too, and closing waits for it.
    let closing = async {
        system.is_stopping.store(true, std::sync::atomic::Ordering::SeqCst);
        true
    };
    let meddler = Meddler { basket: Basket::default(), meddle: Mutex::new(Some(Box::pin(closing))) };
    let report = machine.run(system.batch_read(&nodes, &BatchRead { memory: MEMORY, sink: &meddler }));
    assert!(!report.is_done && report.files == 0, "{report:?}");
    machine.run(system.close()).unwrap();
}

/// Whoever calls these may be a task that moves between threads.
#[expect(dead_code, reason = "it is compiled")]
fn what_a_batch_gives_can_be_sent(
    system: &FileSystem,
    nodes: &[Node],
    how: &BatchRead<'_>,
    tell: &mut crate::WalkTell<'_>,
) {
    fn expect_send<T: Send>(_: T) {}
    expect_send(system.batch_walk(nodes[0], tell));
    expect_send(system.batch_stat(nodes));
    expect_send(system.batch_read(nodes, how));
    expect_send(system.batch_optimize(nodes[0].file, &crate::BatchOptimize::default()));
}
