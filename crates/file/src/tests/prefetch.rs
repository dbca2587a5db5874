//! Reading ahead, and what stays in memory, on a disk that is far away.

use std::time::Duration;

use base::hash::GROUP_BYTES;
use base::id::FileId;
use platform::sim::Faults;
use store::Weights;

use super::content::pattern;
use super::{Machine, create};
use crate::{Kind, Node, Options};

const PIECE: u64 = 128 << 10;
const BYTES: u64 = 96 << 20;
const LATENCY: Duration = Duration::from_millis(5);

/// What reading a file cold took.
#[derive(Clone, Copy, Debug)]
struct Run {
    time: Duration,
    data_misses: u64,
    #[expect(dead_code, reason = "it is printed")]
    metadata_misses: u64,
    unused: u64,
}

/// Reads the whole file at these offsets, with one of the settings.
fn read(machine: &mut Machine, file: FileId, offsets: &[u64], reads_ahead: bool, is_weighted: bool) -> Run {
    machine.options.read_ahead_bytes_max = if reads_ahead { 4 << 20 } else { 0 };
    machine.options.store.cache_weights = if is_weighted { Weights::WEIGHTED } else { Weights::EQUAL };
    machine.options.store.cache_bytes = 16 << 20;
    machine.world.restart();
    let system = machine.open();
    machine.disk.set_faults(Faults { latency: LATENCY, ..Faults::default() });
    let clock = machine.world.platform().clock;
    let started = clock.elapsed();
    machine.run(async {
        let mut buffer = vec![0; PIECE as usize];
        for offset in offsets {
            assert_eq!(system.read(Node::live(file), *offset, &mut buffer).await.unwrap() as u64, PIECE);
            assert!(buffer == pattern(PIECE as usize, offset + 1), "at {offset}");
        }
    });
    let time = clock.elapsed() - started;
    machine.disk.set_faults(Faults::default());
    let counters = system.store.counters();
    let run = Run {
        time,
        data_misses: counters.cache_data_misses.value(),
        metadata_misses: counters.cache_metadata_misses.value(),
        unused: counters.prefetched_unused.value(),
    };
    machine.run(system.close()).unwrap();
    run
}

fn written() -> (Machine, FileId) {
    let machine = Machine::with(21, 2 << 30, Options { dirty_bytes_max: 16 << 20, ..Options::default() });
    let system = machine.open();
    let file = machine.run(async {
        let file = create(&system, FileId::ROOT, "file", Kind::Regular).await.file;
        for offset in (0..BYTES).step_by(PIECE as usize) {
            system.write(file, offset, &pattern(PIECE as usize, offset + 1), false).await.unwrap();
        }
        system.sync_all().await.unwrap();
        file
    });
    machine.run(system.close()).unwrap();
    drop(system);
    (machine, file)
}

/// The read path's experiment of the HydraFS paper (FAST'10, section 5.4): both measures together make a cold stream at least 1.36 times
/// as fast, with fewer misses of data.
#[test]
fn a_cold_stream_from_far_away_is_read_ahead() {
    let (mut machine, file) = written();
    let forward: Vec<u64> = (0..BYTES).step_by(PIECE as usize).collect();
    let mut runs = Vec::new();
    for (reads_ahead, is_weighted) in [(false, false), (false, true), (true, false), (true, true)] {
        let run = read(&mut machine, file, &forward, reads_ahead, is_weighted);
        eprintln!("reads ahead {reads_ahead}, weighted {is_weighted}: {run:?}");
        runs.push(run);
    }
    let (neither, both) = (runs[0], runs[3]);
    assert!(both.time.as_secs_f64() * 1.36 < neither.time.as_secs_f64());
    assert!(both.data_misses * 2 < neither.data_misses);
    assert_eq!(both.unused, 0, "what was read ahead stayed until it was used");
}

/// A read of 4 KiB costs a group at most, and the hashes of the groups of its chunk once.
#[test]
fn who_jumps_about_reads_no_more_than_groups() {
    const READS: u64 = 200;
    const TREE_BYTES: u64 = 256 << 10;
    let (mut machine, file) = written();
    machine.options.read_ahead_bytes_max = 0;
    let system = machine.open();
    machine.run(async {
        let mut buffer = vec![0; 4096];
        for _ in 0..READS {
            let at = machine.world.below(BYTES / 4096) * 4096;
            assert_eq!(system.read(Node::live(file), at, &mut buffer).await.unwrap(), 4096);
            let piece = at / PIECE * PIECE;
            let within = (at - piece) as usize;
            assert!(buffer == pattern(PIECE as usize, piece + 1)[within..within + 4096], "at {at}");
        }
    });
    let counters = system.store.counters();
    let (bytes, groups) = (counters.read_bytes.value(), counters.groups_read.value());
    // Two where a border of groups is in between, a chunk of little more than one as a whole, and of each chunk 16 hashes at most.
    assert!((READS / 2..=READS * 3 / 2).contains(&groups), "{groups}");
    let whole = READS.saturating_sub(groups) * 2 * GROUP_BYTES as u64;
    let bound = groups * GROUP_BYTES as u64 + whole + READS * 600 + TREE_BYTES;
    assert!(bytes < bound, "{bytes} of {bound}");
    machine.run(system.close()).unwrap();
}

#[test]
fn streams_backwards_and_in_steps_are_read_ahead_and_random_ones_pay_nothing() {
    let (mut machine, file) = written();
    let all: Vec<u64> = (0..BYTES).step_by(PIECE as usize).collect();
    let backward: Vec<u64> = all.iter().rev().copied().collect();
    let steps: Vec<u64> = all.iter().step_by(5).copied().collect();
    let mut random = all.clone();
    (1..random.len()).for_each(|last| random.swap(last, machine.world.below(last as u64 + 1) as usize));
    for (name, offsets, is_faster) in [("backward", backward, true), ("steps", steps, true), ("random", random, false)]
    {
        let [without, with] = [false, true].map(|ahead| read(&mut machine, file, &offsets, ahead, true));
        eprintln!("{name}: {without:?}, {with:?}");
        if is_faster {
            assert!(with.time * 3 < without.time * 2, "{name}");
        } else {
            assert!(with.time <= without.time * 11 / 10, "{name}");
        }
    }
}
