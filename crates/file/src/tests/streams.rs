//! Streams that are flushed while they are written, by flushes that go on (`flush::roll`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::id::FileId;
use platform::sim::{Faults, each_seed};
use platform::task::Tasks;
use store::Options as StoreOptions;

use super::content::pattern;
use super::{Machine, create, find, read_all};
use crate::{FileError, FileSystem, Kind, Node, Options, WriteHow};

/// Bytes of one write, of which a stream needs several.
const PIECE: usize = 128 << 10;
const PIECES: u64 = 100;
/// Of packs.
const RUN_BYTES: usize = 256 << 10;
/// Before some of the writes, so that a flush and they go on side by side.
const PAUSE: Duration = Duration::from_micros(400);

/// Small enough that a flush has many groups, and is not done before more is accepted.
fn machine(seed: u64) -> Machine {
    let store = StoreOptions { put_bytes_max: 128 << 10, run_bytes: RUN_BYTES, ..StoreOptions::default() };
    let options = Options {
        dirty_bytes_max: 8 << 20,
        stream_bytes: 256 << 10,
        group_bytes: 64 << 10,
        store,
        ..Options::default()
    };
    let machine = Machine::with(seed, 1 << 30, options);
    machine.disk.set_faults(Faults { latency: Duration::from_millis(1), ..Faults::default() });
    machine
}

/// Pieces that are written together, of memory that is not copied.
const TOGETHER: u64 = 8;

/// Writes a stream, as fast as it is taken: by copying, into the system's own buffers, and as memory that it is given.
async fn write_pieces(
    tasks: &Arc<dyn Tasks>,
    system: &FileSystem,
    file: FileId,
    pieces: std::ops::Range<u64>,
) -> Result<(), FileError> {
    let mut next = pieces.start;
    while next < pieces.end {
        let piece = next;
        next += 1;
        tasks.sleep(PAUSE * u32::try_from(piece % 3).expect("less than three")).await;
        let (offset, data) = (piece * PIECE as u64, pattern(PIECE, piece));
        if piece % (2 * TOGETHER) == TOGETHER && piece + TOGETHER <= pieces.end {
            next = piece + TOGETHER;
            let data: Vec<u8> = (piece..next).flat_map(|piece| pattern(PIECE, piece)).collect();
            system.write_bytes(file, offset, data.into(), WriteHow::default()).await?;
        } else if piece.is_multiple_of(3) {
            let fill = |buffer: &mut [u8]| {
                buffer.copy_from_slice(&data);
                data.len()
            };
            system.write_by(file, offset, data.len(), fill).await?;
        } else {
            system.write(file, offset, &data, false).await?;
        }
    }
    Ok(())
}

fn pieces(count: u64) -> Vec<u8> {
    (0..count).flat_map(|piece| pattern(PIECE, piece)).collect()
}

#[test]
fn a_stream_is_whole_while_its_flush_goes_on_and_after_it() {
    let (extensions, beginnings) = (AtomicU64::new(0), AtomicU64::new(0));
    each_seed(60..70, |seed| {
        let machine = machine(seed);
        let mut system = machine.open();
        let (mut expected, tasks) = (pieces(PIECES), machine.world.platform().tasks);
        let file = machine.run(create(&system, FileId::ROOT, "f", Kind::Regular)).file;
        machine.run(async {
            for piece in 0..PIECES {
                write_pieces(&tasks, &system, file, piece..piece + 1).await.unwrap();
                let size = (piece + 1) * PIECE as u64;
                // What was written lately, or long ago, over two borders of pieces.
                let lately = if piece % 8 == 0 { 0 } else { size.saturating_sub(2 << 20) };
                let at = lately + machine.world.below(size - lately);
                let mut read = vec![0; (size - at).min(200_000) as usize];
                let count = system.read(Node::live(file), at, &mut read).await.unwrap();
                assert!(count == read.len() && read[..] == expected[at as usize..][..count], "at {at} of {size}");
                // Newer than what a flush has taken there, also beyond its end.
                for number in 0..piece % 3 {
                    let at = size.saturating_sub(1 + machine.world.below(2 << 20));
                    let over = pattern(machine.world.below(size - at).min(50_000) as usize, 1000 + 3 * piece + number);
                    system.write(file, at, &over, false).await.unwrap();
                    expected[at as usize..][..over.len()].copy_from_slice(&over);
                }
            }
            assert!(read_all(&system, Node::live(file)).await == expected);
            system.sync(file).await.unwrap();
            assert_eq!(system.dirty_bytes(), 0);
            assert!(read_all(&system, Node::live(file)).await == expected);
        });
        extensions.fetch_add(system.counters.flush_extensions.value(), Ordering::SeqCst);
        beginnings.fetch_add(system.counters.flush_beginnings.value(), Ordering::SeqCst);
        system = machine.power_cycle(system);
        assert!(machine.run(async { read_all(&system, find(&system, "f").await.unwrap()).await }) == expected);
        machine.check(&system);
    });
    assert!(extensions.load(Ordering::SeqCst) > 20, "{extensions:?} times a flush went on");
    assert!(beginnings.load(Ordering::SeqCst) > 10, "{beginnings:?} beginnings were published");
}

/// However the pieces come, a pack is written in runs, one behind the other, and not chunk by chunk: a disk that turns does not turn for each.
#[test]
fn a_stream_goes_to_its_packs_in_runs() {
    for seed in 75..80 {
        let machine = machine(seed);
        let system = machine.open();
        let (chunks, writes) = machine.run(async {
            let tasks = machine.world.platform().tasks;
            let file = create(&system, FileId::ROOT, "stream", Kind::Regular).await.file;
            let counters = system.store.counters();
            let (chunks, writes) = (counters.chunks_put.value(), counters.pack_writes.value());
            write_pieces(&tasks, &system, file, 0..PIECES).await.unwrap();
            system.sync(file).await.unwrap();
            (counters.chunks_put.value() - chunks, counters.pack_writes.value() - writes)
        });
        let runs = PIECES * PIECE as u64 / RUN_BYTES as u64;
        assert!(chunks > runs + runs / 2, "{chunks} chunks would be as many writes");
        // The last one is as long as what is left, and a round of the flusher may end in the middle of one.
        assert!((runs / 2..=runs + runs / 4).contains(&writes), "seed {seed}: {writes} writes for {runs} runs");
    }
}

/// What is cut out of the write buffer does not depend on the order in which it came, and none of it but an end goes through the journal.
#[test]
fn pieces_may_arrive_in_any_order() {
    each_seed(150..154, |seed| {
        let options = Options { dirty_bytes_max: 64 << 20, stream_bytes: 32 << 20, ..Options::default() };
        let machine = Machine::with(seed, 1 << 30, options);
        let system = machine.open();
        machine.run(async {
            let write = async |name: &str, order: &[u64]| {
                let file = create(&system, FileId::ROOT, name, Kind::Regular).await.file;
                for piece in order {
                    let (offset, data) = (piece * PIECE as u64, pattern(PIECE, *piece));
                    system.write(file, offset, &data, false).await.unwrap();
                }
                system.sync(file).await.unwrap();
                assert!(read_all(&system, Node::live(file)).await == pieces(PIECES), "{name}");
            };
            let mut order: Vec<u64> = (0..PIECES).collect();
            write("in order", &order).await;
            let new_bytes = || system.store.counters().new_bytes.value();
            let stored = new_bytes();
            assert!(stored > (PIECES - 1) * PIECE as u64, "{stored} bytes are new");
            for last in (1..order.len()).rev() {
                order.swap(last, machine.world.below(last as u64 + 1) as usize);
            }
            // Some of them twice.
            order.extend_from_within(..10);
            write("as they came", &order).await;
            assert_eq!(new_bytes(), stored, "cut elsewhere");
            let inlined = system.counters.inlined_bytes.value();
            assert!(inlined <= 2 * system.options.inline_bytes_max, "{inlined} bytes went through the journal");
        });
    });
}

#[test]
fn a_crash_leaves_a_beginning_of_a_stream() {
    let (extensions, longest) = (AtomicU64::new(0), AtomicU64::new(0));
    each_seed(70..110, |seed| {
        let machine = machine(seed);
        let mut system = machine.open();
        let file = machine.run(create(&system, FileId::ROOT, "f", Kind::Regular)).file;
        machine.run(system.sync(FileId::ROOT)).unwrap();
        machine.world.cut_power_at(machine.world.operations() + machine.world.below(400));
        let (synced, tasks) = (AtomicU64::new(0), machine.world.platform().tasks);
        let _ = machine.world.run_until(async {
            write_pieces(&tasks, &system, file, 0..30).await?;
            system.sync(file).await?;
            synced.store(30, Ordering::SeqCst);
            write_pieces(&tasks, &system, file, 30..60).await?;
            // A round ends, and what it published becomes durable.
            tasks.sleep(Duration::from_millis(100)).await;
            write_pieces(&tasks, &system, file, 60..PIECES).await
        });
        let is_cut = !machine.world.is_powered();
        extensions.fetch_add(system.counters.flush_extensions.value(), Ordering::SeqCst);
        system = machine.power_cycle(system);
        let found = machine.run(async { read_all(&system, find(&system, "f").await.unwrap()).await });
        assert!(found.len() as u64 >= synced.load(Ordering::SeqCst) * PIECE as u64);
        assert!(found[..] == pieces(PIECES)[..found.len()]);
        longest.fetch_max(if is_cut { found.len() as u64 } else { 0 }, Ordering::SeqCst);
        machine.check(&system);
    });
    assert!(extensions.load(Ordering::SeqCst) > 20, "{extensions:?} times a flush went on");
    assert!(longest.load(Ordering::SeqCst) > 40 * PIECE as u64, "{longest:?} bytes were left of the longest");
}

/// I-62.
#[test]
fn a_flush_that_fails_while_it_goes_on_loses_nothing() {
    let (failures, went_on) = (AtomicU64::new(0), AtomicU64::new(0));
    each_seed(110..150, |seed| {
        let machine = machine(seed);
        let mut system = machine.open();
        let file = machine.run(create(&system, FileId::ROOT, "f", Kind::Regular)).file;
        let tasks = machine.world.platform().tasks;
        let used = || machine.disk.snapshot_files().values().map(|bytes| bytes.len() as u64).sum::<u64>();
        // Somebody else fills the disk in the middle of a flush, or the disk fails for good when it is to be synced.
        let fills = seed % 2 == 0;
        let accepted = machine.run(async {
            for piece in 0..PIECES {
                if piece == 70 && fills {
                    machine.disk.set_capacity(used() + machine.world.below(600_000));
                } else if piece == 70 {
                    machine.disk.set_faults(Faults { sync_error: 1.0, ..machine.disk.faults() });
                }
                if write_pieces(&tasks, &system, file, piece..piece + 1).await.is_err() {
                    return piece;
                }
            }
            PIECES
        });
        let counters = &system.counters;
        failures.fetch_add(counters.flush_failures.value(), Ordering::SeqCst);
        let beginnings = counters.flush_beginnings.value();
        went_on.fetch_add(u64::from(beginnings > 0 && counters.flush_extensions.value() > 0), Ordering::SeqCst);
        assert!(machine.run(read_all(&system, Node::live(file))) == pieces(accepted), "{accepted} pieces");
        machine.disk.set_capacity(1 << 30);
        machine.disk.set_faults(Faults::default());
        if fills {
            machine.run(system.sync_all()).unwrap();
            assert_eq!(system.dirty_bytes(), 0);
        }
        system = machine.power_cycle(system);
        let found = machine.run(async { read_all(&system, find(&system, "f").await.unwrap()).await });
        assert!(found == pieces(accepted)[..found.len()], "{} bytes of {accepted} pieces", found.len());
        assert!(!fills || found.len() as u64 == accepted * PIECE as u64);
        machine.check(&system);
    });
    assert!(failures.load(Ordering::SeqCst) > 20, "{failures:?} flushes failed");
    assert!(went_on.load(Ordering::SeqCst) > 10, "{went_on:?} streams were flushed by flushes that went on");
}

/// I-153.
#[test]
fn nobody_waits_for_a_stream_that_has_no_end() {
    let mut machine = machine(131);
    // A flush has two hundred seconds, and goes on as long as nobody waits.
    machine.options.flush_interval = Duration::from_secs(1000);
    let system = machine.open();
    let file = machine.run(create(&system, FileId::ROOT, "stream", Kind::Regular)).file;
    let ends = Arc::new(AtomicBool::new(false));
    let (writer, is_over, tasks) = (Arc::clone(&system), Arc::clone(&ends), machine.world.platform().tasks);
    machine.world.platform().tasks.spawn(
        "stream",
        Box::pin(async move {
            for piece in 0.. {
                if is_over.load(Ordering::SeqCst) {
                    break;
                }
                write_pieces(&tasks, &writer, file, piece..piece + 1).await.unwrap();
            }
        }),
    );
    machine.run(async {
        let platform = machine.world.platform();
        while system.counters.flush_extensions.value() < 100 {
            platform.tasks.sleep(Duration::from_millis(10)).await;
        }
        for number in 0..10 {
            let begun = platform.clock.elapsed();
            match number % 3 {
                0 => system.sync(file).await.unwrap(),
                1 => system.sync_all().await.unwrap(),
                _ => {
                    let change = crate::AttributeChange { size: Some(1 << 40), ..crate::AttributeChange::default() };
                    system.set_attributes(file, &change).await.unwrap();
                }
            }
            let waited = platform.clock.elapsed() - begun;
            assert!(waited < Duration::from_secs(10), "{waited:?} for {number}");
            let before = system.counters.flush_extensions.value();
            while system.counters.flush_extensions.value() < before + 30 {
                platform.tasks.sleep(Duration::from_millis(10)).await;
            }
        }
        ends.store(true, Ordering::SeqCst);
    });
    machine.disk.set_faults(Faults::default());
    machine.run(system.close()).unwrap();
}
