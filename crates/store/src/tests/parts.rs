//! Parts of chunks: what they cost, and what becomes of damage.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use base::hash::GROUP_BYTES;
use base::id::ChunkAddress;
use bytes::Bytes;
use platform::sim::SimDisk;

use super::check::pack;
use super::open::{only_file, set_version};
use super::{Machine, content, hurried, options};
use crate::format::{ChunkHeader, PackFooter, PackHeader};
use crate::{Class, Depth, Options, Remedy, Resilience, Store, StoreError, Sweep};

const BYTES: usize = 5 * GROUP_BYTES + 100;
const TABLE_BYTES: u64 = 6 * 32;
/// In a pack: of what is stored for its first chunk, and of that chunk's content.
const PAYLOAD_AT: u64 = (PackHeader::BYTES + ChunkHeader::BYTES) as u64;
const CONTENT_AT: u64 = PAYLOAD_AT + TABLE_BYTES;
/// Of a part: both of its ends are in the second group.
const PART: Range<u32> = 20_000..24_096;

/// A closed node with one chunk that does not shrink, alone in its pack.
fn node(seed: u64) -> (Machine, ChunkAddress, Bytes) {
    node_with(seed, Vec::new())
}

/// The same, with others behind it.
fn node_with(seed: u64, others: Vec<Bytes>) -> (Machine, ChunkAddress, Bytes) {
    let machine = Machine::new(seed, 1, 64 << 20);
    let content = content(2, BYTES);
    let (store, _) = machine.open();
    let address = machine.run(async {
        let addresses = store.put_many(Class::Data, [vec![content.clone()], others].concat()).await.unwrap();
        store.close().await.unwrap();
        addresses[0]
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
    let cost = |part: Range<u32>| {
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
    let (path, _) = pack(&machine.disks[0]);
    // The table: the content does not need it.
    machine.disks[0].flip_bit(&path, PAYLOAD_AT + 40, 3);
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
    machine.disks[0].flip_bit(&path, CONTENT_AT + u64::from(PART.start), 0);
    let (store, _) = machine.open();
    assert!(machine.run(store.get_part(&address, PART, false)).is_err());
    assert_eq!(machine.run(store.get_part(&address, 0..10, false)).unwrap(), content.slice(0..10));
}

/// Spoils a group of the first chunk of a pack.
fn spoil(disk: &SimDisk, path: &str, group: usize) {
    disk.flip_bit(path, CONTENT_AT + (group * GROUP_BYTES) as u64 + 9, 2);
}

/// Carries out what a check proposes, once, and tells what came of it.
fn repair(machine: &Machine, store: &Store) -> Vec<String> {
    let report = machine.run(store.check(Depth::Deep, &|_, _| {}));
    let remedies: BTreeSet<Remedy> = report.problems.iter().filter_map(|problem| problem.remedy).collect();
    let told = remedies.into_iter().map(|remedy| machine.run(store.repair(remedy)).unwrap()).collect();
    let after = machine.run(store.check(Depth::Deep, &|_, _| {})).problems;
    // What was set aside is there for a person to look at.
    assert!(after.iter().all(|problem| problem.code == "HF0017" && problem.remedy.is_none()), "{after:?}");
    told
}

/// Those of the six groups of a chunk that cannot be read.
fn lost_groups(machine: &Machine, store: &Arc<Store>, (address, content): (&ChunkAddress, &Bytes)) -> Vec<usize> {
    let is_lost = |number: &usize| {
        let part = number * GROUP_BYTES..BYTES.min((number + 1) * GROUP_BYTES);
        let found = machine.run(store.get_part(address, part.start as u32..part.end as u32, false));
        found.map(|found| assert_eq!(found, content.slice(part))).is_err()
    };
    (0..6).filter(is_lost).collect()
}

/// All but these groups of a chunk can be read, and it is nobody's duplicate.
fn expect_all_but(lost: &[usize], machine: &Machine, store: &Arc<Store>, (address, content): (&ChunkAddress, &Bytes)) {
    assert_eq!(lost_groups(machine, store, (address, content)), lost);
    // Most of the chunk too, if it is there.
    let most = 2 * GROUP_BYTES..BYTES;
    let found = machine.run(store.get_part(address, most.start as u32..most.end as u32, false));
    assert_eq!(found.is_err(), lost.iter().any(|number| *number >= 2));
    assert!(found.is_err() || found.is_ok_and(|found| found == content.slice(most)));
    assert!(matches!(machine.run(store.get(Class::Data, address)), Err(StoreError::Absent { .. })));
    assert!(!store.contains(address));
    assert_eq!(store.counters().verify_failures.value() + store.counters().disk_reads_failed.value(), 0);
}

/// C-7. Found by seed 34000059 of plan clones: a repair took with a damaged chunk what could be read of it.
#[test]
fn what_is_left_of_a_damaged_chunk_is_kept_and_is_no_duplicate() {
    let (machine, address, content) = node_with(6, vec![content(8, 30_000)]);
    let chunk = (&address, &content);
    let reopen = |store: Arc<Store>| {
        drop(store);
        machine.world.restart();
        machine.open().0
    };
    let (path, _) = pack(&machine.disks[0]);
    spoil(&machine.disks[0], &path, 1);
    let (store, _) = machine.open();
    assert!(machine.run(store.get_part(&address, 0..BYTES as u32, false)).is_err());
    let most = 2 * GROUP_BYTES as u32..BYTES as u32;
    assert!(machine.run(store.get_part(&address, most, false)).is_ok(), "it is good, and the whole is not");
    let told = repair(&machine, &store);
    assert!(told[0].contains("1 are left in part, and 0 are lost"), "{told:?}");
    let store = reopen(store);
    expect_all_but(&[1], &machine, &store, chunk);

    // After reclaim, in a pack without a directory, and in an index made again.
    let sweep = |store: &Arc<Store>, is_live: bool| {
        machine.run(async {
            let mut marks = store.begin_mark(false).await.unwrap();
            marks.keep(&|found| is_live && *found == address, &hurried(store)).await;
            let (pace, tell) = (hurried(store), |_, _| {});
            store
                .reclaim(marks, &Sweep { pace: &pace, is_thorough: true, wanted_bytes: None, tell: &tell })
                .await
                .unwrap()
        })
    };
    assert!(sweep(&store, true).bytes_copied > BYTES as u64 / 2);
    machine.run(store.settle(store.moment())).unwrap();
    let store = reopen(store);
    expect_all_but(&[1], &machine, &store, chunk);
    machine.run(store.close()).unwrap();
    machine.disks[0].remove("index");
    let store = reopen(store);
    expect_all_but(&[1], &machine, &store, chunk);

    // What rots of it goes too, and the rest stays.
    machine.run(store.close()).unwrap();
    let files = machine.disks[0].snapshot_files();
    let mut packs = files.keys().filter(|path| path.ends_with(".pack"));
    let (Some(path), None) = (packs.next(), packs.next()) else { panic!("{:?}", files.keys()) };
    spoil(&machine.disks[0], path, 4);
    let store = reopen(store);
    let told = repair(&machine, &store);
    assert!(told[0].contains("1 are left in part, and 0 are lost"), "{told:?}");
    let store = reopen(store);
    expect_all_but(&[1, 4], &machine, &store, chunk);

    // Who writes the same content relies on none of it.
    machine.run(async {
        store.put(Class::Data, &content).await.unwrap();
        store.settle(store.moment()).await.unwrap();
        assert_eq!(store.get(Class::Data, &address).await.unwrap(), content);
    });
    assert!(store.contains(&address));
    let store = reopen(store);
    assert_eq!(machine.run(store.get(Class::Data, &address)).unwrap(), content);
    assert!(sweep(&store, true).packs_deleted > 0, "the remains");
    assert_eq!(machine.run(store.get(Class::Data, &address)).unwrap(), content);
    assert_eq!(store.status().chunks(), 1);
    sweep(&store, false);
    assert_eq!(store.status().chunks(), 0);
}

#[test]
fn of_two_damaged_copies_of_a_chunk_together_all_may_be_left() {
    let machine = Machine::new(7, 2, 64 << 20);
    let options = Options { copies: 2, ..options() };
    let open = || machine.run(Store::open(&machine.world.platform(), &machine.handles(), options.clone())).unwrap().0;
    let content = content(2, BYTES);
    let store = open();
    let address = machine.run(async {
        let address = store.put(Class::Data, &content).await.unwrap();
        store.close().await.unwrap();
        address
    });
    drop(store);
    machine.world.restart();
    for (disk, group) in machine.disks.iter().zip([1, 4]) {
        spoil(disk, &pack(disk).0, group);
    }
    let store = open();
    assert!(machine.run(store.get(Class::Data, &address)).is_err());
    assert!(machine.run(store.get_part(&address, 0..BYTES as u32, false)).is_ok(), "each group is good somewhere");
    let told = repair(&machine, &store);
    assert!(told.iter().any(|told| told.contains("1 chunks copied, none lost")), "{told:?}");
    assert_eq!(machine.run(store.get(Class::Data, &address)).unwrap(), content);
}

/// What one repair saved is not lost by the next, and counts for what that can save.
#[test]
fn of_two_damaged_packs_the_second_repair_knows_what_the_first_saved() {
    for lost in [None, Some(5)] {
        let (machine, address, content) = node(8);
        let (store, _) = machine.open();
        machine.run(async {
            store.rewrite(&[address], &hurried(&store)).await.unwrap();
            store.close().await.unwrap();
        });
        drop(store);
        machine.world.restart();
        let files = machine.disks[0].snapshot_files();
        let packs: Vec<&String> = files.keys().filter(|path| path.ends_with(".pack")).collect();
        assert_eq!(packs.len(), 2);
        for (path, groups) in packs.into_iter().zip([[Some(4), lost], [Some(1), lost]]) {
            for group in groups.into_iter().flatten() {
                spoil(&machine.disks[0], path, group);
            }
        }
        let (store, _) = machine.open();
        assert_eq!(repair(&machine, &store).len(), 2);
        drop(store);
        machine.world.restart();
        let (store, _) = machine.open();
        match lost {
            Some(group) => expect_all_but(&[group], &machine, &store, (&address, &content)),
            None => assert_eq!(machine.run(store.get(Class::Data, &address)).unwrap(), content),
        }
    }
}

/// F-9, where one copy is to be on two disks and the other on one: what the second repair finds is named, and reclaim takes none of it.
#[test]
fn what_is_saved_of_copies_for_different_levels_is_saved_together() {
    let machine = Machine::new(11, 2, 64 << 20);
    let content = content(2, BYTES);
    let packs = || {
        let mut packs: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (number, disk) in machine.disks.iter().enumerate() {
            let files = disk.snapshot_files();
            files.into_keys().filter(|path| path.ends_with(".pack")).for_each(|path| {
                packs.entry(path).or_default().push(number);
            });
        }
        packs
    };
    for is_second in [false, true] {
        let (store, _) = machine.open();
        machine.run(async {
            match is_second {
                true => drop(store.put_as(Resilience::Copies(2), vec![content.clone()]).await.unwrap()),
                false => drop(store.put(Class::Data, &content).await.unwrap()),
            }
            store.close().await.unwrap();
        });
        drop(store);
        machine.world.restart();
    }
    let address = {
        let (store, _) = machine.open();
        store.key().address(&content)
    };
    machine.world.restart();
    assert_eq!(packs().values().map(Vec::len).collect::<Vec<_>>(), [1, 2]);
    for (path, disks) in packs() {
        for group in if disks.len() == 2 { [4, 5] } else { [1, 5] } {
            disks.iter().for_each(|disk| spoil(&machine.disks[*disk], &path, group));
        }
    }
    let (store, _) = machine.open();
    repair(&machine, &store);
    assert_eq!(lost_groups(&machine, &store, (&address, &content)), [5]);
    machine.run(async {
        let mut marks = store.begin_mark(false).await.unwrap();
        marks.keep(&|found| *found == address, &hurried(&store)).await;
        let (pace, tell) = (hurried(&store), |_, _| {});
        store.reclaim(marks, &Sweep { pace: &pace, is_thorough: true, wanted_bytes: None, tell: &tell }).await.unwrap();
    });
    drop(store);
    machine.world.restart();
    let (store, _) = machine.open();
    expect_all_but(&[5], &machine, &store, (&address, &content));
    assert!(packs().values().any(|disks| disks.len() == 2), "on as many disks as the better of them");
}

/// A pack that stays, for a chunk of it gives no answer, is repaired again and again.
#[test]
fn what_is_left_is_saved_once() {
    let (machine, address, content) = node_with(9, vec![content(8, 30_000)]);
    let (path, bytes) = pack(&machine.disks[0]);
    spoil(&machine.disks[0], &path, 1);
    let (store, _) = machine.open();
    machine.disks[0].set_unreadable(&path, bytes.len() as u64 - 5000..bytes.len() as u64 - 4000);
    let mut chunks = BTreeSet::new();
    for _ in 0..3 {
        for remedy in machine.run(store.check(Depth::Deep, &|_, _| {})).problems.iter().filter_map(|found| found.remedy)
        {
            assert!(matches!(machine.run(store.repair(remedy)), Err(StoreError::Disk(_))));
        }
        chunks.insert(store.status().chunks());
    }
    assert_eq!(chunks, BTreeSet::from([3]), "two, and what is left of one");
    machine.disks[0].set_unreadable(&path, 0..u64::MAX);
    assert_eq!(lost_groups(&machine, &store, (&address, &content)), [1]);
}

/// Found by seed 36000083 of plan calm. An index that is made again, of a pack without a directory, names nothing that does not verify; a
/// repair saves of that what it can all the same.
#[test]
fn of_a_chunk_that_its_pack_ends_in_what_comes_before_is_saved() {
    // In the middle of a group, and right behind one.
    for (is_made_again, cut) in [(false, 5000), (true, 5000), (false, 100), (false, 0)] {
        let (machine, address, content) = node(10);
        let (path, _) = pack(&machine.disks[0]);
        machine.disks[0].truncate(&path, CONTENT_AT + 3 * GROUP_BYTES as u64 + cut);
        let (store, _) = machine.open();
        if is_made_again {
            assert!(machine.run(store.read(&store.key().address(b"never put"))).is_err());
        }
        let lost = lost_groups(&machine, &store, (&address, &content));
        assert!(if is_made_again { lost.len() == 6 } else { lost == [3, 4, 5] }, "{lost:?}");
        let told = repair(&machine, &store);
        assert!(told[0].contains("1 are left in part, and 0 are lost"), "{told:?}");
        drop(store);
        machine.world.restart();
        let (store, _) = machine.open();
        expect_all_but(&[3, 4, 5], &machine, &store, (&address, &content));
    }
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
        store.settle(store.moment()).await.unwrap();
        address
    });
    drop(store);
    machine.world.restart();
    let (path, _) = pack(&machine.disks[0]);
    machine.disks[0].flip_bit(&path, PAYLOAD_AT + 40, 3);
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
