//! Parts of chunks: what they cost, and what becomes of damage.

use base::hash::GROUP_BYTES;
use base::id::ChunkAddress;
use bytes::Bytes;

use super::check::pack;
use super::open::{only_file, set_version};
use super::{Machine, content, options};
use crate::format::{ChunkHeader, PackFooter, PackHeader};
use crate::{Class, Depth, Options, Remedy, Store};

const BYTES: usize = 5 * GROUP_BYTES + 100;
const TABLE_BYTES: u64 = 6 * 32;
/// Of a part: both of its ends are in the second group.
const PART: std::ops::Range<u32> = 20_000..24_096;

/// A closed node with one chunk that does not shrink, alone in its pack.
fn node(seed: u64) -> (Machine, ChunkAddress, Bytes) {
    let machine = Machine::new(seed, 1, 64 << 20);
    let content = content(2, BYTES);
    let (store, _) = machine.open();
    let address = machine.run(async {
        let address = store.put(Class::Data, &content).await.unwrap();
        store.close().await.unwrap();
        address
    });
    drop(store);
    machine.world.restart();
    (machine, address, content)
}

fn expected(content: &Bytes) -> Bytes {
    content.slice(PART.start as usize..PART.end as usize)
}

#[test]
fn a_part_costs_the_groups_that_have_it() {
    let (machine, address, content) = node(1);
    let options = Options { cache_bytes: 1 << 20, ..options() };
    let (store, _) =
        machine.run(Store::open(&machine.world.platform(), &machine.handles(), options)).expect("it was closed");
    let cost = |part: std::ops::Range<u32>| {
        let before = store.counters().read_bytes.value();
        let found = machine.run(store.get_part(&address, part.clone(), false)).unwrap();
        assert_eq!(found, content.slice(part.start as usize..part.end.min(BYTES as u32) as usize));
        store.counters().read_bytes.value() - before
    };
    let (header, group) = (ChunkHeader::BYTES as u64, GROUP_BYTES as u64);
    assert_eq!(cost(PART), header + TABLE_BYTES + group);
    assert_eq!(cost(PART.start - 1000..PART.end + 1000), 0, "the same group, from memory");
    assert_eq!(cost(2 * group as u32 - 1..2 * group as u32 + 1), group, "one more of two");
    assert_eq!(store.counters().groups_read.value(), 2);
    assert_eq!(cost(BYTES as u32 - 50..BYTES as u32), 100, "the last is short");
    assert_eq!(cost(0..BYTES as u32), header + TABLE_BYTES + BYTES as u64, "most of it is all of it");
    assert_eq!(cost(PART.start..BYTES as u32 + 1), 0, "and then all of it is in memory; it ends where it ends");
}

#[test]
fn where_memory_has_room_to_spare_the_whole_is_read() {
    let (machine, address, content) = node(4);
    for (cache_bytes, groups) in [(4 << 20, 0), (64 << 10, 1)] {
        let options = Options { cache_bytes, ..options() };
        let (store, _) = machine.run(Store::open(&machine.world.platform(), &machine.handles(), options)).unwrap();
        machine.run(async {
            for number in 0..20 {
                // Of what is in memory already there is more than half.
                let address = store.put(Class::Metadata, &super::content(2 * number, 4000)).await.unwrap();
                store.get(Class::Metadata, &address).await.unwrap();
            }
        });
        assert_eq!(machine.run(store.get_part(&address, PART, true)).unwrap(), expected(&content));
        assert_eq!(store.counters().groups_read.value(), groups, "{cache_bytes}");
        drop(store);
        machine.world.restart();
    }
}

#[test]
fn what_is_wrong_with_a_part_is_found_and_mended() {
    let (machine, address, content) = node(2);
    let payload = (PackHeader::BYTES + ChunkHeader::BYTES) as u64;
    let (path, _) = pack(&machine.disks[0]);
    // The table: the content does not need it.
    machine.disks[0].flip_bit(&path, payload + 40, 3);
    let (store, _) = machine.open();
    assert_eq!(machine.run(store.get_part(&address, PART, false)).unwrap(), expected(&content));
    assert_eq!(store.counters().groups_read.value(), 0, "the whole was read");
    let report = machine.run(store.check(Depth::Deep, &|_, _| {}));
    let found: Vec<_> = report.problems.iter().map(|problem| (problem.code, problem.remedy)).collect();
    let [("HF0007", Some(remedy @ Remedy::Pack { .. }))] = found[..] else { panic!("{found:?}") };
    machine.run(store.repair(remedy)).unwrap();
    assert_eq!(machine.run(store.check(Depth::Deep, &|_, _| {})).problems, Vec::new());
    drop(store);
    machine.world.restart();
    let (store, _) = machine.open();
    assert_eq!(machine.run(store.get_part(&address, PART, false)).unwrap(), expected(&content));
    assert_eq!(store.counters().groups_read.value(), 1, "it is what it should be again");
    drop(store);
    machine.world.restart();
    // A group: it is lost, and so is the whole, but not the others.
    let (path, _) = pack(&machine.disks[0]);
    machine.disks[0].flip_bit(&path, payload + TABLE_BYTES + u64::from(PART.start), 0);
    let (store, _) = machine.open();
    assert!(machine.run(store.get_part(&address, PART, false)).is_err());
    assert_eq!(machine.run(store.get_part(&address, 0..10, false)).unwrap(), content.slice(0..10));
}

/// Found by seed 3420 of plan clones: a power cut tore the table off a chunk that nobody had settled, its content was whole, and the opening
/// sealed it as it was.
#[test]
fn a_table_that_was_lost_before_its_pack_was_sealed_is_made_again() {
    let machine = Machine::new(5, 1, 64 << 20);
    let content = content(2, BYTES);
    let (store, _) = machine.open();
    let address = machine.run(async {
        let address = store.put(Class::Data, &content).await.unwrap();
        store.settle().await.unwrap();
        address
    });
    drop(store);
    machine.world.restart();
    let (path, _) = pack(&machine.disks[0]);
    machine.disks[0].flip_bit(&path, (PackHeader::BYTES + ChunkHeader::BYTES) as u64 + 40, 3);
    let (store, _) = machine.open();
    assert_eq!(machine.run(store.check(Depth::Deep, &|_, _| {})).problems, Vec::new());
    assert_eq!(machine.run(store.get_part(&address, PART, false)).unwrap(), expected(&content));
    assert_eq!(store.counters().groups_read.value(), 1, "the whole was not needed");
}

#[test]
fn packs_of_the_version_before_are_read() {
    let (machine, address, content) = node(3);
    let (path, number) = only_file(&machine.disks[0], "packs/");
    let length = machine.disks[0].snapshot_files()[&path].len();
    // Where there are the copies now was padding.
    machine.disks[0].corrupt(&path, 13, &[0]);
    set_version(&machine.disks[0], &path, (0, PackHeader::BYTES), number, 1);
    set_version(&machine.disks[0], &path, ((length - PackFooter::BYTES) as u64, PackFooter::BYTES), number, 1);
    machine.disks[0].remove("index");
    let (store, _) = machine.open();
    assert_eq!(machine.run(store.get(Class::Data, &address)).unwrap(), content);
    assert_eq!(machine.run(store.check(Depth::Deep, &|_, _| {})).problems, Vec::new());
}
