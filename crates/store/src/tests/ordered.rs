//! Masses of chunks, read in the order in which they lie.

use std::sync::Arc;
use std::time::Duration;

use base::id::ChunkAddress;
use bytes::Bytes;
use platform::sim::{Placed, Platter};

use super::{Machine, content, hurried, options};
use crate::format::{ChunkHeader, Entry};
use crate::{Class, Depth, Erasure, Options, Ordered, OrderedReport, Store, StoreError};

const MEMORY_BYTES: u64 = 4 << 20;

/// Chunks of 1 to 9 KiB, in the order in which they were put.
async fn put(store: &Store, count: u64) -> Vec<(ChunkAddress, Bytes)> {
    let mut put = Vec::new();
    for number in 0..count {
        let content = content(number, 1000 + (number as usize * 37) % 8000);
        put.push((store.put(Class::Data, &content).await.unwrap(), content));
    }
    store.settle(store.moment()).await.unwrap();
    put
}

fn shuffle<T>(machine: &Machine, list: &mut [T]) {
    (1..list.len()).for_each(|last| list.swap(last, machine.world.below(last as u64 + 1) as usize));
}

fn reopen(machine: &Machine, store: Arc<Store>, options: Options) -> Arc<Store> {
    machine.run(store.close()).unwrap();
    drop(store);
    machine.world.restart();
    machine.run(Store::open(&machine.world.platform(), &machine.handles(), options)).unwrap().0
}

/// Takes all; the numbers of those that nobody has.
async fn take(mut ordered: Ordered, wanted: &[(ChunkAddress, Bytes)]) -> (OrderedReport, Vec<usize>) {
    let (mut seen, mut lost) = (vec![false; wanted.len()], Vec::new());
    while let Some(got) = ordered.next().await {
        assert!(!std::mem::replace(&mut seen[got.number], true), "{} came twice", got.number);
        match got.content {
            Ok(content) => assert!(content == wanted[got.number].1, "{}", got.number),
            Err(_) => lost.push(got.number),
        }
    }
    assert!(seen.iter().all(|seen| *seen));
    lost.sort_unstable();
    (ordered.report(), lost)
}

fn read(machine: &Machine, store: &Arc<Store>, wanted: &[(ChunkAddress, Bytes)]) -> (OrderedReport, Vec<usize>) {
    let addresses = wanted.iter().map(|(address, _)| *address).collect();
    let ordered = store.read_in_order(Class::Data, addresses, MEMORY_BYTES);
    machine.run(take(ordered, wanted))
}

fn expect_ascending(placed: &[Placed]) {
    for pair in placed.windows(2) {
        assert!(pair[0].address < pair[1].address, "{pair:?}");
    }
}

#[test]
fn masses_of_chunks_are_read_in_order_by_few_requests() {
    const CHUNKS: u64 = 3000;
    let machine = Machine::new(1, 2, 1 << 40);
    let (store, _) = machine.open();
    let mut wanted = machine.run(put(&store, CHUNKS));
    let store = reopen(&machine, store, options());
    machine.disks.iter().for_each(|disk| disk.set_platter(Platter::SAS_7200));
    shuffle(&machine, &mut wanted);
    let stored = store.counters().read_bytes.value();
    let (report, lost) = read(&machine, &store, &wanted);
    assert_eq!(lost, [0_usize; 0]);
    let of_packs = store.counters().read_bytes.value() - stored;
    assert_eq!((report.chunks, report.duplicates, report.alone, report.gap_bytes), (CHUNKS, 0, 0, 0));
    assert_eq!(report.read_bytes, of_packs, "nothing was read besides");
    assert!(report.read_bytes < 3000 * (5000 + ChunkHeader::BYTES as u64));
    // Runs are as long as an eighth of the memory.
    assert!(report.runs <= report.read_bytes / (MEMORY_BYTES / 8) * 5 / 4 + 2 * 4, "{report:?}");
    let mut requests = 0;
    for disk in &machine.disks {
        let reads: Vec<Placed> = disk.take_placed().into_iter().filter(|placed| placed.bytes > 32 << 10).collect();
        assert!(reads.len() > 2);
        expect_ascending(&reads);
        requests += reads.len() as u64;
    }
    assert!(requests <= report.runs, "{requests} requests of {} runs", report.runs);
}

/// What streams is written in whole pages, each once: one in part would be a request of its own, twice. What is in memory still is read there.
#[test]
fn what_streams_is_written_in_whole_pages() {
    const PAGE: u64 = 4096;
    const CHUNKS: u64 = 2000;
    const RUN: u64 = 256 << 10;
    let machine = Machine::new(7, 2, 1 << 40);
    let (store, _) = machine.open();
    let store = reopen(&machine, store, Options { pack_bytes: 1 << 30, run_bytes: RUN as usize, ..options() });
    let before = store.counters().stored_bytes.value();
    machine.disks.iter().for_each(|disk| disk.set_platter(Platter::SAS_7200));
    let streamed = async {
        let mut put = Vec::new();
        for number in 0..CHUNKS {
            let content = content(number, 100 + (number as usize * 3701) % 20_000);
            put.push((store.put(Class::Data, &content).await.unwrap(), content));
            // What came last lies in memory, before that in memory and in the file, and before that in the file.
            for back in [0, 1, number % 97] {
                let Some((address, content)) = put.len().checked_sub(1 + back as usize).map(|at| &put[at]) else {
                    continue;
                };
                assert!(store.get(Class::Data, address).await.unwrap() == *content, "{number}, {back} before");
            }
        }
    };
    machine.run(streamed);
    let mut written = 0;
    for placed in machine.disks.iter().flat_map(|disk| disk.take_placed()).filter(|placed| placed.is_write) {
        assert!(placed.address.is_multiple_of(PAGE) && placed.bytes.is_multiple_of(PAGE), "{placed:?}");
        written += placed.bytes;
    }
    let stored = store.counters().stored_bytes.value() - before - CHUNKS * Entry::BYTES as u64;
    let waiting = stored - written;
    // One run is being written, and the next one fills (K-13).
    assert!(written > stored / 2 && waiting < machine.disks.len() as u64 * (2 * RUN + 21_000), "{written} of {stored}");
    // The rest goes when it has to be durable.
    machine.run(store.settle(store.moment())).unwrap();
    let packs = machine.disks.iter().flat_map(|disk| disk.durable_files());
    let durable: u64 = packs.filter(|(path, _)| path.ends_with(".pack")).map(|(_, bytes)| bytes.len() as u64).sum();
    assert!(durable >= stored, "{durable} of {stored}");
}

/// K-13: who appends waits for no disk before the second run is full, and then for the first.
#[test]
fn a_run_is_written_while_the_next_one_fills() {
    const RUN: usize = 256 << 10;
    const CHUNK: usize = 64 << 10;
    let machine = Machine::new(8, 1, 1 << 40);
    let (store, _) = machine.open();
    let store = reopen(&machine, store, Options { pack_bytes: 1 << 30, run_bytes: RUN, ..options() });
    machine.disks[0].set_platter(Platter::SAS_7200);
    let mut number = 0;
    let mut time = |chunks: usize| {
        let start = machine.world.elapsed();
        for _ in 0..chunks {
            // Even numbers do not compress.
            machine.run(store.put(Class::Data, &content(2 * number, CHUNK))).unwrap();
            number += 1;
        }
        machine.world.elapsed() - start
    };
    // The pack is made.
    time(1);
    assert_eq!(time(RUN / CHUNK + 1), Duration::ZERO);
    let waited = time(RUN / CHUNK);
    assert!(waited > Duration::ZERO && waited < 2 * Platter::SAS_7200.turn, "{waited:?}");
    machine.run(store.settle(store.moment())).unwrap();
}

/// K-13: who closes a store, and fails, waits for what is being written all the same: the locks of the disks go next.
#[test]
fn no_run_is_being_written_after_the_last_was_waited_for() {
    const RUN: usize = 256 << 10;
    let machine = Machine::new(10, 1, 1 << 40);
    let (store, _) = machine.open();
    let store = reopen(&machine, store, Options { pack_bytes: 1 << 30, run_bytes: RUN, ..options() });
    let put = |number: u64| machine.run(store.put(Class::Data, &content(2 * number, 64 << 10))).unwrap();
    put(0);
    let latency = Duration::from_secs(5);
    machine.disks[0].set_faults(platform::sim::Faults { latency, ..platform::sim::Faults::default() });
    for number in 1..6 {
        put(number);
    }
    let before = machine.disks[0].snapshot_files();
    machine.run(store.packs.end_writes());
    let written = machine.disks[0].snapshot_files();
    assert!(before != written, "a run was being written");
    machine.world.run_for(2 * latency).unwrap();
    assert!(machine.disks[0].snapshot_files() == written);
}

/// K-11: what was made durable is not written again. A page with the end of it and what comes next would be read, and written twice; and while
/// that goes on, what is durable would hang on the device writing it whole.
#[test]
fn what_is_durable_is_not_written_again() {
    const PAGE: u64 = 4096;
    let machine = Machine::new(9, 2, 1 << 40);
    let (store, _) = machine.open();
    let store = reopen(&machine, store, Options { pack_bytes: 1 << 30, run_bytes: 64 << 10, ..options() });
    machine.disks.iter().for_each(|disk| disk.set_platter(Platter::SAS_7200));
    let mut contents = Vec::new();
    let mut written: Vec<Vec<(u64, u64)>> = vec![Vec::new(); machine.disks.len()];
    for round in 0..60_u64 {
        for number in 0..round % 9 {
            let content = content(round * 10 + number, 100 + (round as usize * 3701 + number as usize * 7001) % 60_000);
            machine.run(store.put(Class::Data, &content)).unwrap();
            contents.push(content);
        }
        machine.run(store.settle(store.moment())).unwrap();
        for (disk, written) in machine.disks.iter().zip(&mut written) {
            for placed in disk.take_placed() {
                assert!(placed.is_write, "{placed:?} was read in round {round}");
                assert!(placed.address.is_multiple_of(PAGE) && placed.bytes.is_multiple_of(PAGE), "{placed:?}");
                let end = placed.address + placed.bytes;
                let again = written.iter().find(|(start, until)| placed.address < *until && *start < end);
                assert_eq!(again, None, "{placed:?} in round {round}");
                written.push((placed.address, end));
            }
        }
    }
    // The gaps are as good as no gaps: for who checks, who opens it after a crash, and who counts.
    assert_eq!(machine.run(store.check(Depth::Deep, &|_, _| {})).problems, Vec::new());
    drop(store);
    machine.world.crash();
    machine.world.restart();
    let (store, recovered) = machine.open();
    assert_eq!((recovered.report.bytes_cut, recovered.report.problems), (0, Vec::new()));
    for content in &contents {
        assert!(machine.run(store.get(Class::Data, &store.key().address(content))).unwrap() == *content);
    }
    assert_eq!(machine.run(store.check(Depth::Deep, &|_, _| {})).problems, Vec::new());
}

/// A crash while the first chunk of a pack is under way: a file in which no chunk is whole would look like one that has rotted.
#[test]
fn a_pack_that_was_begun_is_no_damage_after_a_crash() {
    for length in [5000, 100_000, 300_000] {
        let machine = Machine::new(8, 1, 1 << 30);
        let (store, _) = machine.open();
        let store = reopen(&machine, store, Options { pack_bytes: 1 << 30, run_bytes: 64 << 10, ..options() });
        machine.run(store.put(Class::Data, &content(2, length))).unwrap();
        machine.world.crash();
        drop(store);
        let (store, _) = machine.open();
        drop(store);
        let names: Vec<String> = machine.disks[0].snapshot_files().into_keys().collect();
        assert!(names.iter().all(|name| !name.ends_with(".damaged")), "{length}: {names:?}");
    }
}

#[test]
fn gaps_are_read_over_as_far_as_somebody_says() {
    let machine = Machine::new(2, 1, 1 << 30);
    let (mut store, _) = machine.open();
    let all = machine.run(put(&store, 1000));
    let wanted: Vec<_> = all.iter().step_by(10).cloned().collect();
    let mut reports = Vec::new();
    for gap_bytes in [0, 1 << 20] {
        store = reopen(&machine, store, Options { gap_bytes: Some(gap_bytes), ..options() });
        let (report, lost) = read(&machine, &store, &wanted);
        assert!(lost.is_empty());
        reports.push(report);
    }
    assert_eq!((reports[0].runs, reports[0].gap_bytes), (100, 0));
    assert!(reports[1].runs < 12, "{:?}", reports[1]);
    assert_eq!(reports[1].read_bytes - reports[1].gap_bytes, reports[0].read_bytes);
    assert_eq!(store.counters().ordered_gap_bytes.value(), reports[1].gap_bytes);
}

#[test]
fn what_is_wanted_twice_or_is_cached_is_not_read_again() {
    let machine = Machine::new(3, 1, 1 << 30);
    let (store, _) = machine.open();
    let all = machine.run(put(&store, 50));
    let store = reopen(&machine, store, options());
    let mut wanted: Vec<_> = all.iter().chain(&all).chain(&all[..10]).cloned().collect();
    shuffle(&machine, &mut wanted);
    let (report, lost) = read(&machine, &store, &wanted);
    assert!(lost.is_empty());
    assert_eq!((report.chunks, report.duplicates, report.runs), (110, 60, 1));
    // What was read in order is in no cache; what somebody read is.
    machine.run(async { store.get(Class::Data, &all[7].0).await }).unwrap();
    let (report, _) = read(&machine, &store, &all[7..8]);
    assert_eq!((report.cached, report.runs, report.alone), (1, 0, 0));
    // Also what no pack on the disk has yet.
    let fresh = machine.run(async {
        let content = content(99, 5000);
        vec![(store.put(Class::Data, &content).await.unwrap(), content)]
    });
    assert!(read(&machine, &store, &fresh).1.is_empty());
}

#[test]
fn what_is_damaged_or_unknown_is_an_error_of_its_own() {
    let machine = Machine::new(4, 1, 1 << 30);
    let (store, _) = machine.open();
    let mut wanted = machine.run(put(&store, 300));
    let store = reopen(&machine, store, options());
    let places: Vec<_> = [50, 51, 200]
        .map(|number| store.packs.index.lookup(&wanted[number].0, store.counters()).unwrap().unwrap())
        .into();
    for place in places {
        let path = crate::format::pack_path(place.pack);
        machine.disks[0].flip_bit(&path, u64::from(place.offset) + ChunkHeader::BYTES as u64 + 3, 1);
    }
    wanted.push((ChunkAddress([9; ChunkAddress::BYTES]), Bytes::new()));
    let (report, lost) = read(&machine, &store, &wanted);
    assert_eq!(lost, [50, 51, 200, 300]);
    assert_eq!(report.alone, 4);
    let ordered = store.read_in_order(Class::Data, vec![wanted[50].0], MEMORY_BYTES);
    let mut ordered = ordered;
    let got = machine.run(ordered.next()).unwrap();
    assert!(matches!(got.content, Err(StoreError::Corrupt { .. })), "{:?}", got.content);
}

/// The other copy is read where one is bad, and what is in fragments from where it lies, or made of others.
#[test]
fn copies_and_fragments_are_read_also_where_disks_fail() {
    let erasure = Erasure::new(2, 1).unwrap();
    for (copies, fragments) in [(2, None), (1, Some(erasure))] {
        let machine = Machine::new(5, 4, 1 << 30);
        let options = Options { copies, fragments, ..options() };
        let (platform, disks) = (machine.world.platform(), machine.handles());
        let (store, _) = machine.run(Store::open(&platform, &disks, options.clone())).unwrap();
        let mut wanted = machine.run(put(&store, 800));
        let store = reopen(&machine, store, options.clone());
        machine.run(store.restore_copies(&hurried(&store), &|_, _| {}));
        shuffle(&machine, &mut wanted);
        let (report, lost) = read(&machine, &store, &wanted);
        assert!(lost.is_empty() && report.alone == 0, "{report:?}");
        assert!(report.runs < 60, "{report:?}");
        let store = reopen(&machine, store, options.clone());
        let faults = platform::sim::Faults { is_dead: true, ..platform::sim::Faults::default() };
        machine.disks[1].set_faults(faults);
        let (_, lost) = read(&machine, &store, &wanted);
        assert!(lost.is_empty(), "copies {copies}: {lost:?}");
    }
}

/// However slowly they are taken, no more is in memory than was said.
#[test]
fn what_is_not_taken_stays_within_the_memory() {
    let machine = Machine::new(6, 1, 1 << 30);
    let (store, _) = machine.open();
    let wanted = machine.run(put(&store, 2000));
    let store = reopen(&machine, store, options());
    let read_before = store.counters().read_bytes.value();
    let addresses = wanted.iter().map(|(address, _)| *address).collect();
    let memory_bytes = 256 << 10;
    let mut ordered = store.read_in_order(Class::Data, addresses, memory_bytes);
    let mut taken = 0;
    let mut last = 0;
    machine.run(async {
        while let Some(got) = ordered.next().await {
            // Long enough for whatever may be read ahead.
            store.platform.tasks.sleep(std::time::Duration::from_secs(1)).await;
            let read = store.counters().read_bytes.value() - read_before;
            assert!(read <= taken + memory_bytes + (64 << 10), "{read} read, {taken} taken");
            last = got.number;
            taken += got.content.unwrap().len() as u64;
        }
    });
    assert!(taken > 20 * memory_bytes && last < 2000);
    // Who drops it ends it.
    let addresses = wanted.iter().map(|(address, _)| *address).collect();
    let read_before = store.counters().read_bytes.value();
    let mut ordered = store.read_in_order(Class::Data, addresses, memory_bytes);
    machine.run(async {
        ordered.next().await.unwrap();
        drop(ordered);
        store.platform.tasks.sleep(std::time::Duration::from_secs(60)).await;
    });
    assert!(store.counters().read_bytes.value() - read_before < 2 * memory_bytes);
}
