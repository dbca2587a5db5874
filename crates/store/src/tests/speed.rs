//! What disks take for requests, measured.

use std::sync::Arc;
use std::time::Duration;

use base::id::ChunkAddress;
use platform::sim::{Faults, Platter};

use super::{Machine, content, options};
use crate::{Class, Options, Store};

const CHUNK_BYTES: usize = 128 << 10;
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A store that measures, with so many MiB in packs.
fn filled(machine: &Machine, mebibytes: u64) -> (Arc<Store>, Vec<ChunkAddress>) {
    let options = Options { gap_bytes: None, pack_bytes: 8 << 20, ..options() };
    let open = || machine.run(Store::open(&machine.world.platform(), &machine.handles(), options.clone())).unwrap().0;
    let store = open();
    let mut addresses = Vec::new();
    for number in 0..mebibytes * (1 << 20) / CHUNK_BYTES as u64 {
        // Even numbers do not compress.
        addresses.push(machine.run(store.put(Class::Data, &content(2 * number, CHUNK_BYTES))).unwrap());
    }
    machine.run(store.close()).unwrap();
    drop(store);
    (open(), addresses)
}

fn measure(machine: &Machine, store: &Arc<Store>) -> bool {
    machine.run(store.measure_speeds(DAY))
}

#[test]
fn a_disk_that_turns_is_measured_as_what_it_is() {
    let machine = Machine::new(1, 1, 1 << 40);
    let (store, _) = filled(&machine, 64);
    machine.disks[0].set_platter(Platter::SAS_7200);
    assert!(measure(&machine, &store));
    let speed = store.status().disks[0].speed.unwrap();
    // Seeks over so little are short; then half a turn.
    let turn = Platter::SAS_7200.turn;
    assert!(speed.alone > turn / 4 && speed.alone < turn * 3 / 2, "{speed:?}");
    assert!(speed.depth <= 4 && speed.request <= speed.alone, "{speed:?}");
    let passes = Platter::SAS_7200.bytes_per_second;
    assert!((passes / 2..passes * 2).contains(&speed.bytes_per_second), "{speed:?}");
    // What passes in the time of a request.
    assert!((256 << 10..=1 << 20).contains(&speed.gap_bytes()), "{speed:?}");
    assert_eq!(store.counters().speeds_measured.value(), 1);
}

#[test]
fn a_disk_that_does_not_turn_takes_many_requests_and_has_small_gaps() {
    let machine = Machine::new(2, 1, 1 << 40);
    let (store, addresses) = filled(&machine, 64);
    // Far apart beside what a request costs here, and near beside what is taken of a disk that nobody knows.
    let wanted: Vec<_> = addresses.iter().copied().step_by(2).collect();
    let runs = |store: &Arc<Store>| {
        let mut ordered = store.read_in_order(Class::Data, wanted.clone(), 8 << 20);
        machine.run(async {
            while let Some(got) = ordered.next().await {
                assert!(got.content.is_ok());
            }
        });
        ordered.report().runs
    };
    assert!(store.gap_bytes(Some(0)) >= CHUNK_BYTES as u64, "as long as nobody knows");
    assert!(measure(&machine, &store));
    let speed = store.status().disks[0].speed.unwrap();
    assert!(store.depth(0) == speed.depth && speed.depth >= 8, "{speed:?}");
    assert!(store.gap_bytes(Some(0)) == speed.gap_bytes() && speed.gap_bytes() < CHUNK_BYTES as u64, "{speed:?}");
    assert_eq!(runs(&store), wanted.len() as u64, "each alone");
}

#[test]
fn a_measurement_is_made_once_in_its_time() {
    let machine = Machine::new(3, 2, 1 << 40);
    let (store, _) = filled(&machine, 96);
    let count = || store.counters().speeds_measured.value();
    assert!(measure(&machine, &store) && measure(&machine, &store));
    assert_eq!(count(), 2);
    machine.world.run_for(DAY).unwrap();
    assert!(measure(&machine, &store));
    assert_eq!(count(), 4);
}

#[test]
fn nothing_is_measured_where_there_is_little_or_a_read_fails() {
    let machine = Machine::new(4, 1, 1 << 40);
    let (little, _) = filled(&machine, 8);
    assert!(!measure(&machine, &little));
    drop(little);
    let (store, _) = filled(&machine, 32);
    machine.disks[0].set_faults(Faults { read_error: 0.5, ..Faults::default() });
    assert!(!measure(&machine, &store));
    assert_eq!(store.status().disks[0].speed, None);
    assert!(store.status().disks[0].is_good, "who measures says nothing of a disk");
}
