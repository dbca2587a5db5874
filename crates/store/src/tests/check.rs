//! Damage is found and named; a store at work shows none.

use std::sync::Mutex;

use base::id::Position;
use bytes::Bytes;
use platform::sim::SimDisk;

use super::{Machine, content};
use crate::format::Identity;
use crate::{Class, Depth, Store};

pub(super) fn codes(machine: &Machine, store: &Store, depth: Depth) -> Vec<&'static str> {
    let report = machine.run(store.check(depth, &|_, _| {}));
    let mut codes: Vec<_> = report.problems.iter().map(|problem| problem.code).collect();
    codes.dedup();
    codes
}

fn node(seed: u64) -> (Machine, Vec<Bytes>) {
    node_of(seed, 60, 30_000)
}

/// A node with so many chunks of so many bytes.
pub(super) fn node_of(seed: u64, count: u64, bytes: usize) -> (Machine, Vec<Bytes>) {
    let machine = Machine::new(seed, 1, 64 << 20);
    let contents: Vec<Bytes> = (0..count).map(|number| content(number, bytes)).collect();
    let (store, _) = machine.open();
    machine.run(async {
        store.put_many(Class::Data, contents.clone()).await.unwrap();
        store.log(b"one");
        store.commit(b"second", Position(1)).await.unwrap();
        store.log(b"two");
        store.close().await.unwrap();
    });
    drop(store);
    machine.world.restart();
    (machine, contents)
}

pub(super) fn pack(disk: &SimDisk) -> (String, Vec<u8>) {
    disk.snapshot_files().into_iter().find(|(path, _)| path.starts_with("packs/")).unwrap()
}

#[test]
fn a_sound_store_has_no_problems_and_progress_ends() {
    let (machine, contents) = node(1);
    let (store, _) = machine.open();
    let last = Mutex::new((0, 0));
    let progress = |done, total| {
        let mut last = last.lock().unwrap();
        assert!(done >= last.0 && done <= total, "progress goes forward");
        *last = (done, total);
    };
    let report = machine.run(store.check(Depth::Deep, &progress));
    assert_eq!(report.problems, Vec::new());
    assert_eq!((report.chunks, report.chunks_verified), (60, 60));
    assert_eq!((report.superblocks, report.index_entries, report.frames), (2, 60, 1));
    let (done, total) = *last.lock().unwrap();
    assert!(done == total && total > 0);
    // And in the middle of work.
    machine.run(async {
        store.put_many(Class::Data, (100..150).map(|number| content(number, 30_000)).collect()).await.unwrap();
        assert!(contents.iter().all(|content| store.contains(&store.key().address(content))));
    });
    assert_eq!(codes(&machine, &store, Depth::Deep), Vec::<&str>::new());
}

#[test]
fn each_damage_has_its_number() {
    type Spoil<'a> = &'a dyn Fn(&SimDisk);
    let damage: [(&str, Depth, Spoil<'_>); 10] = [
        ("HF0001", Depth::Shallow, &|disk| disk.flip_bit("superblock", 4096 + 50, 1)),
        ("HF0003", Depth::Shallow, &|disk| disk.flip_bit("disk", 60, 0)),
        ("HF0004", Depth::Shallow, &|disk| disk.flip_bit(&pack(disk).0, 20, 0)),
        ("HF0005", Depth::Shallow, &|disk| disk.flip_bit(&pack(disk).0, pack(disk).1.len() as u64 - 9, 0)),
        ("HF0006", Depth::Shallow, &|disk| disk.flip_bit(&pack(disk).0, pack(disk).1.len() as u64 - 100, 0)),
        ("HF0007", Depth::Deep, &|disk| disk.flip_bit(&pack(disk).0, 5000, 7)),
        ("HF0008", Depth::Shallow, &|disk| disk.install("packs/00000000000000aa.pack", b"what is this")),
        ("HF0009", Depth::Shallow, &|disk| assert!(disk.remove(&pack(disk).0))),
        ("HF0018", Depth::Shallow, &|disk| assert!(disk.remove("disk.copy"))),
        ("HF0017", Depth::Shallow, &|disk| disk.install("packs/00000000000000aa.pack.damaged", b"rot")),
    ];
    for (code, depth, spoil) in damage {
        let (machine, _) = node(2);
        let (store, _) = machine.open();
        // Damage that comes while the store is open; opening would mend or refuse some of it.
        spoil(&machine.disks[0]);
        assert_eq!(codes(&machine, &store, depth), [code]);
    }
}

/// On a slow disk a pack's file is there long before the store knows it, or after.
#[test]
fn a_pack_that_is_being_made_or_removed_is_no_stranger() {
    let (machine, _) = node(2);
    let (store, _) = machine.open();
    machine.disks[0].install("packs/00000000000000aa.pack", b"its header is still to be written");
    store.packs.making.lock().insert(0xaa);
    assert_eq!(codes(&machine, &store, Depth::Shallow), Vec::<&str>::new());
    store.packs.making.lock().remove(&0xaa);
    store.packs.condemned.write().insert(0xaa);
    assert_eq!(codes(&machine, &store, Depth::Shallow), Vec::<&str>::new());
    store.packs.condemned.write().remove(&0xaa);
    assert_eq!(codes(&machine, &store, Depth::Shallow), ["HF0008"]);
}

/// Another's identity is told by what is different about it.
#[test]
fn a_foreign_identity_is_told_apart() {
    let changes: [&dyn Fn(&mut Identity); 4] = [
        &|identity| identity.disk_uuid[0] ^= 1,
        &|identity| identity.node.0 += 1,
        &|identity| identity.disk_count += 1,
        &|identity| identity.key.0[0] ^= 1,
    ];
    for change in changes {
        let (machine, _) = node(2);
        let (store, _) = machine.open();
        let mut identity = Identity::decode(&machine.disks[0].snapshot_files()["disk"]).unwrap();
        change(&mut identity);
        machine.disks[0].install("disk", &identity.encode());
        let problems = machine.run(store.check(Depth::Shallow, &|_, _| {})).problems;
        assert_eq!((problems.len(), problems[0].code, problems[0].remedy), (1, "HF0003", None));
        assert_ne!(problems[0].expected, problems[0].found);
    }
}

#[test]
fn a_deep_check_finds_every_flipped_bit_of_every_pack() {
    let (machine, _) = node(3);
    let (path, bytes) = pack(&machine.disks[0]);
    let (store, _) = machine.open();
    for _ in 0..200 {
        let (at, bit) = (machine.world.below(bytes.len() as u64), u32::try_from(machine.world.below(8)).unwrap());
        machine.disks[0].flip_bit(&path, at, bit);
        assert_ne!(codes(&machine, &store, Depth::Deep), Vec::<&str>::new(), "byte {at} bit {bit}");
        machine.disks[0].flip_bit(&path, at, bit);
    }
    assert_eq!(codes(&machine, &store, Depth::Deep), Vec::<&str>::new());
}

#[test]
fn frames_that_vanish_are_found() {
    let (machine, _) = node(4);
    let (store, _) = machine.open();
    machine.run(async {
        store.log(b"three");
        store.sync_log(store.last_logged()).await.unwrap();
    });
    let files = machine.disks[0].snapshot_files();
    let (path, at) = files
        .iter()
        .find_map(|(path, bytes)| Some((path, bytes.windows(5).position(|window| window == b"three")?)))
        .unwrap();
    machine.disks[0].flip_bit(path, at as u64, 0);
    assert_eq!(codes(&machine, &store, Depth::Shallow), ["HF0015"]);
}
