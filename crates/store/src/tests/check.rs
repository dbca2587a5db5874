//! Damage is found and named; a store at work shows none.

use std::sync::Mutex;

use base::id::Position;
use bytes::Bytes;
use platform::sim::SimDisk;

use super::{Machine, content, hurried};
use crate::check::PROBLEMS_MAX;
use crate::format::{ChunkHeader, Codec, Entry, Identity, PackFooter, Place, decode_directory, number_of};
use crate::index::{Change, SealedPack};
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
        store.commit(store.moment(), b"second", Position(1)).await.unwrap();
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

#[test]
fn a_superblock_that_lags_behind_has_its_number() {
    let machine = Machine::new(2, 2, 64 << 20);
    let (store, _) = machine.open();
    let commit = || machine.run(store.commit(store.moment(), b"roots", store.last_logged())).unwrap();
    (0..2).for_each(|_| commit());
    let old = machine.disks[1].snapshot_files()["superblock"].clone();
    (0..2).for_each(|_| commit());
    // A disk that said the writes were done.
    machine.disks[1].install("superblock", &old);
    assert_eq!(codes(&machine, &store, Depth::Shallow), ["HF0002"]);
    let problem = machine.run(store.check(Depth::Shallow, &|_, _| {})).problems.remove(0);
    assert!(problem.path.starts_with("/d1/"), "{problem:?}");
    machine.run(store.repair(problem.remedy.unwrap())).unwrap();
    assert_eq!(codes(&machine, &store, Depth::Shallow), Vec::<&str>::new());
}

/// Pages that the opening does not read: what it reads it makes again.
#[test]
fn a_page_of_the_index_that_cannot_be_read_has_its_number() {
    const PAGE: u64 = 4096;
    let (machine, _) = node_of(5, 700, 600);
    let index = machine.disks[0].snapshot_files()["index"].clone();
    let mut found = 0;
    for at in (0..index.len() as u64).step_by(PAGE as usize) {
        machine.disks[0].install("index", &index);
        machine.disks[0].corrupt("index", at, &[0xa5; PAGE as usize]);
        let (store, recovered) = machine.open();
        if recovered.report.index_made_again.is_none() {
            let problems = machine.run(store.check(Depth::Shallow, &|_, _| {})).problems;
            assert!(problems.iter().all(|problem| problem.code == "HF0010"), "page at {at}: {problems:?}");
            if let Some(problem) = problems.first() {
                found += 1;
                machine.run(store.repair(problem.remedy.unwrap())).unwrap();
                assert_eq!(codes(&machine, &store, Depth::Deep), Vec::<&str>::new(), "page at {at}: it is mended");
            }
        }
        drop(store);
        machine.world.restart();
    }
    assert!(found > 3, "{found}");
}

/// An index whose pages are sound and whose entries are not, as an error of ours would leave it.
#[test]
fn each_untruth_of_the_index_has_its_number() {
    for code in ["HF0011", "HF0012", "HF0013", "HF0014"] {
        let (machine, contents) = node(5);
        let (store, _) = machine.open();
        spoil_index(code, &store, &contents[7]);
        let problems = machine.run(store.check(Depth::Shallow, &|_, _| {})).problems;
        assert!(!problems.is_empty() && problems.iter().all(|problem| problem.code == code), "{code}: {problems:?}");
        machine.run(store.repair(problems[0].remedy.unwrap())).unwrap();
        assert_eq!(codes(&machine, &store, Depth::Deep), Vec::<&str>::new(), "{code}: it is mended");
        let read = |content: &Bytes| machine.run(store.get(Class::Data, &store.key().address(content))).unwrap();
        assert!(contents.iter().all(|content| read(content) == *content), "{code}");
    }
}

fn spoil_index(code: &str, store: &Store, content: &Bytes) {
    let (address, stranger) = (store.key().address(content), store.key().address(b"never put"));
    let at = store.packs.index.lookup(&address, &store.counters).unwrap().unwrap();
    let known = store.packs.known().remove(&at.pack).unwrap();
    let header = ChunkHeader { class: Class::Data, codec: Codec::Raw, raw: 100, stored: 100, address: stranger };
    let entry = Entry { offset: at.offset, header };
    let add =
        |pack, entries| Change { added: vec![SealedPack::new(pack, known.summary, entries)], ..Change::default() };
    let remove = |pack, addresses| Change { removed: vec![(pack, addresses)], ..Change::default() };
    let changes = match code {
        // Of no length that a chunk has.
        "HF0011" => {
            let entry = Entry { header: ChunkHeader { raw: u32::MAX, ..header }, ..entry };
            assert_eq!(Place::decode(&stranger, &Place::of(at.pack, &entry).encode(&stranger)), None);
            vec![add(at.pack, vec![entry])]
        }
        "HF0012" => vec![add(0xbb, vec![entry]), remove(0xbb, Vec::new())],
        "HF0013" => vec![add(at.pack, vec![entry])],
        _ => vec![remove(at.pack, vec![address]), add(at.pack, Vec::new())],
    };
    changes.iter().for_each(|change| store.change_index(change).unwrap());
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

/// Very much that is wrong is told by its beginning, and mended as a whole.
#[test]
fn what_is_wrong_throughout_is_counted() {
    let machine = Machine::new(40, 1, 64 << 20);
    let (store, _) = machine.open();
    let contents: Vec<Bytes> = (0..PROBLEMS_MAX as u64 + 500).map(|number| content(2 * number, 100)).collect();
    machine.run(async {
        store.put_many(Class::Data, contents).await.unwrap();
        store.close().await.unwrap();
    });
    drop(store);
    machine.world.crash();
    machine.world.restart();
    let paths: Vec<String> =
        machine.disks[0].durable_files().into_keys().filter(|path| path.ends_with(".pack")).collect();
    let (store, _) = machine.open();
    let mut chunks = 0;
    for path in &paths {
        let bytes = machine.disks[0].snapshot_files().remove(path).unwrap();
        let number = number_of(path.strip_prefix("packs/").unwrap(), ".pack").unwrap();
        let footer = PackFooter::decode(bytes.last_chunk::<{ PackFooter::BYTES }>().unwrap(), number).unwrap();
        let directory = &bytes[footer.data_bytes as usize..bytes.len() - PackFooter::BYTES];
        for entry in decode_directory(&footer, directory).unwrap() {
            machine.disks[0].flip_bit(path, u64::from(entry.offset) + 20, 1);
            chunks += 1;
        }
    }
    assert!(chunks > PROBLEMS_MAX + 100);
    let report = machine.run(store.check(Depth::Deep, &|_, _| {}));
    assert_eq!(report.problems.len(), PROBLEMS_MAX);
    assert_eq!(report.problems.len() as u64 + report.further, chunks as u64);
    assert_eq!(report.remedies.len(), paths.len(), "{:?}", report.remedies);
    let pace = hurried(&store);
    let report = machine.run(store.scrub(std::time::Duration::ZERO, &pace, &|_, _| {}));
    assert_eq!(report.problems.len(), PROBLEMS_MAX);
    assert_eq!(report.problems.len() as u64 + report.further, chunks as u64);
}
