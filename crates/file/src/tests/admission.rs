//! Pools that are far smaller than the load, and a disk that is slow for seconds: nobody fails, nobody starves, and what is in memory is bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::id::FileId;
use platform::sim::Faults;
use store::Options as StoreOptions;

use super::content::pattern;
use super::{Machine, create, read_all};
use crate::{Kind, Node, Options};

const WRITERS: u64 = 16;
const WRITES: u64 = 64;
const WRITE_BYTES: u64 = 32 << 10;
/// A hundredth of the load, about.
const BUFFER_BYTES: u64 = WRITERS * WRITES * WRITE_BYTES / 100;
/// What a busy store takes at a time.
const GROUP_BYTES: u64 = 32 << 10;

fn options() -> Options {
    let store = StoreOptions { pack_bytes: 4 << 20, cache_bytes: 1 << 20, ..StoreOptions::default() };
    Options {
        dirty_bytes_max: BUFFER_BYTES,
        unlogged_files_max: 8,
        commit_journal_bytes: 16 << 10,
        uncommitted_files_max: 4,
        store,
        ..Options::default()
    }
}

/// Writers side by side, each of a file of its own; gives the most bytes that were in the buffer, by how many writes one was ever behind another, and
/// how often the store was busy.
fn write_side_by_side(machine: &Machine, latency: Duration) -> (u64, u64, u64) {
    let system = machine.open();
    machine.disk.set_faults(Faults { latency, ..Faults::default() });
    let progress: Arc<Vec<AtomicU64>> = Arc::new((0..WRITERS).map(|_| AtomicU64::new(0)).collect());
    let spread = Arc::new(AtomicU64::new(0));
    let most = Arc::new(AtomicU64::new(0));
    let is_failed = Arc::new(AtomicBool::new(false));
    let files: Vec<FileId> = machine.run(async {
        let mut files = Vec::new();
        for number in 0..WRITERS {
            files.push(create(&system, FileId::ROOT, &format!("f{number}"), Kind::Regular).await.file);
        }
        files
    });
    for (number, file) in files.iter().copied().enumerate() {
        let (system, progress, spread) = (Arc::clone(&system), Arc::clone(&progress), Arc::clone(&spread));
        let (most, is_failed) = (Arc::clone(&most), Arc::clone(&is_failed));
        let writer = async move {
            for write in 0..WRITES {
                let bytes = pattern(WRITE_BYTES as usize, number as u64 * WRITES + write);
                let written = system.write(file, write * WRITE_BYTES, &bytes, false).await;
                is_failed.fetch_or(written.is_err(), Ordering::SeqCst);
                most.fetch_max(system.status().dirty_bytes, Ordering::SeqCst);
                progress[number].store(write + 1, Ordering::SeqCst);
                // Of those that still write.
                let going =
                    progress.iter().map(|writes| writes.load(Ordering::SeqCst)).filter(|writes| *writes < WRITES);
                let least = going.min().unwrap_or(WRITES);
                spread.fetch_max((write + 1).saturating_sub(least), Ordering::SeqCst);
            }
        };
        machine.world.platform().tasks.spawn("writer", Box::pin(writer));
    }
    machine.run(async {
        let tasks = machine.world.platform().tasks;
        while progress.iter().any(|writes| writes.load(Ordering::SeqCst) < WRITES) {
            tasks.sleep(Duration::from_millis(100)).await;
        }
        system.sync_all().await.unwrap();
        for (number, file) in files.iter().enumerate() {
            let content: Vec<u8> =
                (0..WRITES).flat_map(|write| pattern(WRITE_BYTES as usize, number as u64 * WRITES + write)).collect();
            assert!(read_all(&system, Node::live(*file)).await == content, "file {number}");
        }
    });
    machine.disk.set_faults(Faults::default());
    assert!(!is_failed.load(Ordering::SeqCst));
    machine.check(&system);
    let busy = system.store.counters().put_busy.value();
    machine.run(system.close()).unwrap();
    (most.load(Ordering::SeqCst), spread.load(Ordering::SeqCst), busy)
}

#[test]
fn pools_a_hundredth_of_the_load_are_never_overdrawn_and_nobody_starves() {
    for (seed, latency) in [(31, Duration::ZERO), (32, Duration::from_millis(5)), (33, Duration::from_secs(2))] {
        let machine = Machine::with(seed, 1 << 30, options());
        let (most, spread, _) = write_side_by_side(&machine, latency);
        assert!(most <= BUFFER_BYTES, "{most} of {BUFFER_BYTES} at {latency:?}");
        // Who is admitted may still be slow: the schedule is random. Were the last to come the first to be served, it would be 64.
        assert!(spread <= WRITES / 8, "one is {spread} writes ahead of another at {latency:?}");
    }
}

/// A store that takes one group at a time, and seconds for each, says that it is busy to every other.
#[test]
fn a_store_that_is_busy_for_seconds_lets_nobody_fail() {
    for seed in 36..38 {
        let store = StoreOptions { put_bytes_max: GROUP_BYTES, ..options().store };
        let options = Options { group_bytes: GROUP_BYTES as usize, store, ..options() };
        let machine = Machine::with(seed, 1 << 30, options);
        let (most, spread, busy) = write_side_by_side(&machine, Duration::from_secs(2));
        assert!(most <= BUFFER_BYTES, "{most} of {BUFFER_BYTES}");
        assert!(spread <= WRITES / 8, "one is {spread} writes ahead of another");
        assert!(busy > WRITES, "the store was busy {busy} times");
    }
}

///
#[test]
fn a_stream_that_waits_for_its_flush_keeps_nobody_from_changing_names() {
    let machine = Machine::with(34, 1 << 30, Options { dirty_bytes_max: BUFFER_BYTES, ..Options::default() });
    let system = machine.open();
    let file = machine.run(create(&system, FileId::ROOT, "stream", Kind::Regular)).file;
    machine.disk.set_faults(Faults { latency: Duration::from_secs(5), ..Faults::default() });
    let stream = Arc::clone(&system);
    machine.world.platform().tasks.spawn(
        "stream",
        Box::pin(async move {
            for write in 0..100 {
                stream.write(file, write * WRITE_BYTES, &pattern(WRITE_BYTES as usize, write), false).await.unwrap();
            }
        }),
    );
    machine.run(async {
        let platform = machine.world.platform();
        while system.status().writers_waiting == 0 {
            platform.tasks.sleep(Duration::from_millis(1)).await;
        }
        let before = platform.clock.elapsed();
        for number in 0..10 {
            create(&system, FileId::ROOT, &format!("f{number}"), Kind::Regular).await;
        }
        assert!(platform.clock.elapsed() - before < Duration::from_secs(1));
        assert!(system.status().writers_waiting > 0, "it still waits");
    });
    machine.disk.set_faults(Faults::default());
    machine.run(system.close()).unwrap();
}

///
#[test]
fn who_syncs_little_does_not_wait_for_a_streams_flush() {
    const LARGE_BYTES: u64 = 128 << 10;
    const SYNCS: u64 = 200;
    let machine = Machine::with(35, 1 << 30, Options { dirty_bytes_max: 1 << 20, ..Options::default() });
    let system = machine.open();
    let (stream, log) = machine.run(async {
        let stream = create(&system, FileId::ROOT, "stream", Kind::Regular).await.file;
        (stream, create(&system, FileId::ROOT, "log", Kind::Regular).await.file)
    });
    let writer = Arc::clone(&system);
    let written = Arc::new(AtomicU64::new(0));
    let progress = Arc::clone(&written);
    machine.world.platform().tasks.spawn(
        "stream",
        Box::pin(async move {
            // Until the machine is gone.
            for write in 0_u64.. {
                let bytes = pattern(LARGE_BYTES as usize, write);
                writer.write(stream, write % 1000 * LARGE_BYTES, &bytes, false).await.unwrap();
                progress.store(write + 1, Ordering::SeqCst);
            }
        }),
    );
    let mut late = 0;
    machine.run(async {
        let tasks = machine.world.platform().tasks;
        for write in 0..SYNCS {
            while system.status().writers_waiting == 0 {
                tasks.sleep(Duration::from_micros(50)).await;
            }
            let before = written.load(Ordering::SeqCst);
            system.write(log, write * 4096, &pattern(4096, write), false).await.unwrap();
            late += u64::from(written.load(Ordering::SeqCst) > before);
            system.sync(log).await.unwrap();
        }
    });
    assert!(late < SYNCS / 10, "{late} of {SYNCS} small writes had to wait until the stream went on");
}
