//! What is refused, and that refusing changes nothing; what is mended.

use std::sync::Arc;

use std::collections::BTreeMap;

use base::id::{NodeNumber, Position};
use bytes::Bytes;
use platform::disk::Disk;
use platform::sim::{Faults, SimDisk, World};

use super::repair::cut_while_superblocks_are_written;
use super::{Machine, content, options};
use crate::format::{PackHeader, SegmentHeader, Superblock};
use crate::{Class, Depth, Store, StoreError};

type Files = Vec<BTreeMap<String, Vec<u8>>>;

fn files(disks: &[SimDisk]) -> Files {
    disks.iter().map(SimDisk::snapshot_files).collect()
}

/// A node with some chunks, two commits and a frame, closed.
fn node(seed: u64, disks: usize) -> (Machine, Vec<Bytes>) {
    let machine = Machine::new(seed, disks, 64 << 20);
    let contents: Vec<Bytes> = (0..90).map(|number| content(number, 40_000)).collect();
    let (store, _) = machine.open();
    machine.run(async {
        store.put_many(Class::Data, contents.clone()).await.unwrap();
        store.log(b"one");
        store.commit(store.moment(), b"second", Position(1)).await.unwrap();
        store.log(b"two");
        store.sync_log(Position(2)).await.unwrap();
        store.log(b"three");
        store.close().await.unwrap();
    });
    drop(store);
    machine.world.restart();
    (machine, contents)
}

/// Opening these is refused with all of these words, and changes nothing.
fn refuses(machine: &Machine, handles: &[Disk], words: &[&str]) {
    let before = files(&machine.disks);
    let opened = machine.run(Store::open(&machine.world.platform(), handles, options()));
    let message = opened.err().expect("it must be refused").to_string();
    for word in words {
        assert!(message.contains(word), "\"{word}\" is not in: {message}");
    }
    assert!(files(&machine.disks) == before, "something was changed");
}

#[test]
fn what_is_no_node_is_refused() {
    let world = World::new(1);
    let empty = world.disk("/empty", 1 << 20);
    let opened = world.run_until(Store::open(&world.platform(), &[empty.disk()], options())).unwrap();
    let message = opened.err().unwrap().to_string();
    assert!(message.contains("/empty: it is not a disk of a HydraFS node"), "{message}");
    assert!(empty.snapshot_files().is_empty());
    let none = world.run_until(Store::open(&world.platform(), &[], options())).unwrap();
    assert!(matches!(none, Err(StoreError::Refused { .. })));
}

#[test]
fn missing_foreign_and_doubled_disks_are_refused() {
    let (machine, _) = node(2, 3);
    let handles = machine.handles();
    refuses(
        &machine,
        &handles[..2],
        &["disk 2 of this node is missing", "expected 3", "found 2", "Nothing was changed"],
    );
    refuses(&machine, &handles[1..], &["disk 0 of this node is missing"]);
    let doubled = [handles[0].clone(), handles[1].clone(), handles[1].clone(), handles[2].clone()];
    refuses(&machine, &doubled, &["it is disk 1 of the node, and so is /d1"]);
    let other = machine.world.disk("/other", 64 << 20);
    machine.run(Store::create(&machine.world.platform(), &[other.disk()], NodeNumber(9), b"")).unwrap();
    let foreign = [handles[0].clone(), handles[1].clone(), handles[2].clone(), other.disk()];
    refuses(&machine, &foreign, &["it belongs to another node", "node 7", "node 9"]);
    // In any order they are the node.
    let turned = [handles[2].clone(), handles[0].clone(), handles[1].clone()];
    machine.run(Store::open(&machine.world.platform(), &turned, options())).unwrap();
}

/// Gives a structure another version, and the checksum that belongs to it.
pub(super) fn set_version(disk: &SimDisk, path: &str, (at, bytes): (u64, usize), seed: u64, version: u32) {
    let start = usize::try_from(at).unwrap();
    let mut structure = disk.snapshot_files()[path][start..start + bytes].to_vec();
    structure[8..12].copy_from_slice(&version.to_le_bytes());
    let sum = base::hash::checksum(seed, &structure[..bytes - 8]);
    structure[bytes - 8..].copy_from_slice(&sum.to_le_bytes());
    disk.corrupt(path, at, &structure);
}

/// The only file of a directory, with the number in its name.
pub(super) fn only_file(disk: &SimDisk, directory: &str) -> (String, u64) {
    let path = disk.snapshot_files().into_keys().find(|path| path.starts_with(directory)).unwrap();
    let digits = path.split(['/', '.']).nth(1).unwrap();
    let number = u64::from_str_radix(digits, 16).unwrap();
    (path, number)
}

#[test]
fn a_newer_format_is_refused_wherever_it_is_met() {
    let (machine, _) = node(3, 1);
    // Whoever writes a newer one writes the copy first.
    for file in ["disk.copy", "disk"] {
        machine.disks[0].corrupt(file, 8, &2_u32.to_le_bytes());
    }
    refuses(&machine, &machine.handles(), &["newer HydraFS", "expected format version 1", "found version 2", "disk"]);
    for slot in [0, 4096] {
        let (machine, _) = node(3, 1);
        set_version(&machine.disks[0], "superblock", (slot, Superblock::BYTES), slot, 4);
        refuses(&machine, &machine.handles(), &["newer HydraFS", "format version 3", "version 4", "superblock"]);
    }
    let (machine, _) = node(4, 1);
    let (pack, number) = only_file(&machine.disks[0], "packs/");
    machine.disks[0].remove("index");
    set_version(&machine.disks[0], &pack, (0, PackHeader::BYTES), number, 9);
    refuses(&machine, &machine.handles(), &["a pack was written by a newer HydraFS", "found version 9", &pack]);
    let (machine, _) = node(5, 1);
    let (segment, number) = only_file(&machine.disks[0], "journal/");
    set_version(&machine.disks[0], &segment, (0, SegmentHeader::BYTES), number, 3);
    refuses(&machine, &machine.handles(), &["a journal segment was written by a newer HydraFS", &segment]);
}

/// What it says matters only where the node was not closed.
#[test]
fn a_journal_of_an_older_format_is_refused_while_it_may_be_needed() {
    let (machine, _) = node(5, 1);
    let (segment, number) = only_file(&machine.disks[0], "journal/");
    set_version(&machine.disks[0], &segment, (0, SegmentHeader::BYTES), number, 1);
    refuses(&machine, &machine.handles(), &["a journal segment was written by an older HydraFS", &segment]);
    let machine = Machine::new(5, 1, 64 << 20);
    let (store, _) = machine.open();
    machine.run(async {
        store.log(b"one");
        store.commit(store.moment(), b"second", Position(1)).await.unwrap();
        store.close().await.unwrap();
    });
    drop(store);
    machine.world.restart();
    set_version(&machine.disks[0], &segment, (0, SegmentHeader::BYTES), number, 1);
    machine.open();
}

#[test]
fn a_version_that_its_checksum_does_not_vouch_for_is_damage() {
    for slot in [8, 4096 + 8] {
        let (machine, _) = node(3, 1);
        machine.disks[0].corrupt("superblock", slot, &2_u32.to_le_bytes());
        machine.open();
    }
}

#[test]
fn a_second_daemon_and_a_read_only_disk_are_refused() {
    let (machine, _) = node(6, 2);
    let (store, _) = machine.open();
    refuses(&machine, &machine.handles(), &["/d0: it is in use by another HydraFS process"]);
    assert!(!crate::are_free(&machine.handles()));
    drop(store);
    assert!(crate::are_free(&machine.handles()));
    machine.disks[1].set_faults(Faults { is_read_only: true, ..Faults::default() });
    refuses(&machine, &machine.handles(), &["/d1: expected a disk that can be written", "Mount it for writing"]);
    machine.disks[1].set_faults(Faults::default());
    machine.open();
}

#[test]
fn a_node_is_not_formatted_over_another() {
    let (machine, _) = node(7, 2);
    let before = files(&machine.disks);
    let fresh = machine.world.disk("/fresh", 64 << 20);
    let handles = [fresh.disk(), machine.disks[1].disk()];
    let created = machine.run(Store::create(&machine.world.platform(), &handles, NodeNumber(1), b""));
    assert!(created.unwrap_err().to_string().contains("/d1: it is a disk of a node already"));
    assert!(fresh.snapshot_files().is_empty() && files(&machine.disks) == before);
    // Without its identity it is still not free: there are packs.
    machine.disks[1].remove("disk");
    let created = machine.run(Store::create(&machine.world.platform(), &handles, NodeNumber(1), b""));
    assert!(created.unwrap_err().to_string().contains("it holds packs"));
}

#[test]
fn a_format_that_was_cut_short_is_no_node_and_can_be_done_again() {
    for cut in 1.. {
        let world = World::new(cut);
        let disks: Vec<SimDisk> = (0..2).map(|number| world.disk(&format!("/d{number}"), 64 << 20)).collect();
        let handles: Vec<Disk> = disks.iter().map(SimDisk::disk).collect();
        world.cut_power_at(cut);
        let created = world.run_until(Store::create(&world.platform(), &handles, NodeNumber(1), b"r")).unwrap();
        world.restart();
        let opened = world.run_until(Store::open(&world.platform(), &handles, options())).unwrap();
        if created.is_ok() {
            opened.unwrap();
            return;
        }
        if opened.is_err() && disks.iter().all(|disk| !disk.snapshot_files().contains_key("disk")) {
            world.run_until(Store::create(&world.platform(), &handles, NodeNumber(1), b"r")).unwrap().unwrap();
            world.run_until(Store::open(&world.platform(), &handles, options())).unwrap().unwrap();
        }
    }
}

/// All chunks are there, or damaged ones are errors; how many are damaged.
fn damaged(machine: &Machine, store: &Arc<Store>, contents: &[Bytes]) -> usize {
    machine.run(async {
        let mut count = 0;
        for content in contents {
            match store.get(Class::Data, &store.key().address(content)).await {
                Ok(found) => assert_eq!(found, content),
                Err(_) => count += 1,
            }
        }
        count
    })
}

#[test]
fn a_missing_or_damaged_index_is_made_again() {
    for seed in 0..12 {
        let (machine, contents) = node(100 + seed, 2);
        let length = machine.disks[0].snapshot_files()["index"].len() as u64;
        match seed {
            0 => assert!(machine.disks[0].remove("index")),
            1 => machine.disks[0].truncate("index", 0),
            2 => machine.disks[0].truncate("index", length / 2),
            3 => machine.disks[0].corrupt("index", 0, &[0; 512]),
            4 => machine.disks[0].corrupt("index", 0, &[0xff; 8192]),
            _ => {
                let at = machine.world.below(length - 4096);
                machine.disks[0].corrupt("index", at, &[0xa5; 4096]);
            }
        }
        let (store, recovered) = machine.open();
        // Damage that redb does not see when it opens shows with the first look-up, and is mended then (X-4).
        assert_eq!(damaged(&machine, &store, &contents), 0, "{seed}");
        assert!(seed > 1 || recovered.report.index_made_again.is_some());
    }
}

#[test]
fn a_truncated_pack_is_reported_and_the_rest_works() {
    let (machine, contents) = node(8, 1);
    let snapshot = machine.disks[0].snapshot_files();
    let (path, bytes) = snapshot.iter().find(|(path, _)| path.starts_with("packs/")).unwrap();
    machine.disks[0].truncate(path, bytes.len() as u64 / 2);
    let (store, _) = machine.open();
    let lost = damaged(&machine, &store, &contents);
    assert!(lost > 0 && lost < contents.len(), "{lost} of {}", contents.len());
    let report = machine.run(store.check(Depth::Shallow, &|_, _| {}));
    assert_eq!(report.problems.iter().map(|problem| problem.code).collect::<Vec<_>>(), ["HF0005"]);
    // Putting the content again mends it, for good.
    machine.run(async {
        store.put_many(Class::Data, contents.clone()).await.unwrap();
        store.close().await.unwrap();
    });
    assert_eq!(damaged(&machine, &store, &contents), 0);
    drop(store);
    let (store, _) = machine.open();
    assert_eq!(damaged(&machine, &store, &contents), 0);
    // A pack that is gone altogether is reported too, and costs what was in it alone.
    drop(store);
    machine.disks[0].remove(path);
    let (store, recovered) = machine.open();
    assert!(recovered.report.problems[0].contains("on no disk"), "{:?}", recovered.report.problems);
    assert!(damaged(&machine, &store, &contents) > 0);
    machine.run(async {
        store.put_many(Class::Data, contents.clone()).await.unwrap();
    });
    assert_eq!(damaged(&machine, &store, &contents), 0);
}

#[test]
fn the_superblock_before_still_finds_its_frames() {
    for disks in [1, 2] {
        let (machine, contents) = node(9, disks);
        for disk in &machine.disks {
            // Generation 2 lies in slot 0.
            disk.corrupt("superblock", 100, &[0xee; 8]);
        }
        let (store, recovered) = machine.open();
        assert_eq!(recovered.roots, b"first");
        let frames: Vec<_> = recovered.frames.iter().map(|(_, frame)| &frame[..]).collect();
        assert_eq!(frames, [&b"one"[..], b"two", b"three"]);
        assert_eq!(damaged(&machine, &store, &contents), 0);
    }
    let (machine, _) = node(10, 2);
    machine.disks.iter().for_each(|disk| disk.corrupt("superblock", 0, &[0xee; 8192]));
    refuses(&machine, &machine.handles(), &["every superblock of the node", "superblock", "expected", "found"]);
}

#[test]
fn a_frame_that_was_durable_and_is_damaged_is_an_error_not_a_shorter_journal() {
    let (machine, _) = node(11, 1);
    let snapshot = machine.disks[0].snapshot_files();
    let (path, bytes) = snapshot.iter().find(|(path, _)| path.starts_with("journal/")).unwrap();
    let at = bytes.windows(3).position(|window| window == b"two").unwrap() as u64;
    machine.disks[0].flip_bit(path, at, 3);
    refuses(&machine, &machine.handles(), &["the journal", path, "frame 2 is missing", "knew it to be durable"]);
}

/// S-5: after a clean end nothing of the journal is needed, nor looked at.
#[test]
fn a_store_that_was_closed_opens_without_its_frames() {
    let operations = |is_closed: bool| {
        let machine = Machine::new(21, 2, 64 << 20);
        let (store, _) = machine.open();
        machine.run(async {
            let at = store.log(b"one");
            store.sync_log(at).await.unwrap();
            store.commit(store.moment(), b"second", at).await.unwrap();
            if is_closed {
                store.close().await.unwrap();
                assert!(matches!(store.sync_log(store.log(b"too late")).await, Err(StoreError::ReadOnly { .. })));
            }
        });
        drop(store);
        machine.world.restart();
        let before = machine.world.operations();
        let (_, recovered) = machine.open();
        assert_eq!((&recovered.roots[..], recovered.frames.len()), (&b"second"[..], 0));
        machine.world.operations() - before
    };
    let (closed, crashed) = (operations(true), operations(false));
    let pieces = crate::journal::SEGMENT_BYTES_MIN / (1 << 20);
    // To write the next generation takes three on each disk: open, write, sync.
    assert!(closed - 2 * 3 + pieces <= crashed, "{closed} operations, {crashed} after a crash");
}

/// S-5: what a disk says of the end of an earlier life costs no frame of a later one.
#[test]
fn an_old_word_of_a_clean_end_is_not_believed() {
    for disks_that_lag in [vec![0], vec![1], vec![0, 1]] {
        let machine = Machine::new(22, 2, 64 << 20);
        let (store, _) = machine.open();
        machine.run(async {
            let at = store.log(b"one");
            store.commit(store.moment(), b"second", at).await.unwrap();
            store.close().await.unwrap();
        });
        drop(store);
        let closed: Vec<_> = machine.disks.iter().map(|disk| disk.snapshot_files()["superblock"].clone()).collect();
        machine.world.restart();
        let (store, _) = machine.open();
        machine.run(async { store.sync_log(store.log(b"two")).await.unwrap() });
        drop(store);
        machine.world.restart();
        for number in disks_that_lag {
            machine.disks[number].install("superblock", &closed[number]);
        }
        let (_, recovered) = machine.open();
        let frames: Vec<_> = recovered.frames.iter().map(|(at, frame)| (at.0, &frame[..])).collect();
        assert_eq!(frames, [(2, &b"two"[..])]);
    }
}

/// S-1: the only superblock that is left is not lost by an opening that the power cuts short.
#[test]
fn an_opening_harms_no_superblock_that_it_found() {
    let node = |seed: u64| {
        let machine = Machine::new(30 + seed, 1, 64 << 20);
        let (store, _) = machine.open();
        machine.run(async {
            let at = store.log(b"one");
            store.sync_log(at).await.unwrap();
            store.commit(store.moment(), b"second", at).await.unwrap();
            store.close().await.unwrap();
        });
        let (newest, _) = store.newest_superblock();
        drop(store);
        machine.world.restart();
        machine.disks[0].corrupt("superblock", Superblock::offset(newest + 1), &[0xee; Superblock::BYTES]);
        machine
    };
    cut_while_superblocks_are_written(&node, &|machine| {
        let (_, recovered) = machine.open();
        assert_eq!((&recovered.roots[..], recovered.frames.len()), (&b"second"[..], 0));
    });
}

/// A bit that flips in either file of an identity costs nothing, in both at once the node.
#[test]
fn an_identity_survives_the_loss_of_one_of_its_files() {
    type Spoil<'a> = &'a dyn Fn(&SimDisk, &str);
    let spoils: [Spoil<'_>; 4] = [
        &|disk, file| disk.flip_bit(file, 70, 3),
        &|disk, file| disk.corrupt(file, 8, &2_u32.to_le_bytes()),
        &|disk, file| disk.truncate(file, 100),
        &|disk, file| disk.install(file, &[]),
    ];
    for (file, spoil) in ["disk", "disk.copy"].into_iter().flat_map(|file| spoils.map(|spoil| (file, spoil))) {
        let (machine, _) = node(6, 2);
        let whole = machine.disks[1].snapshot_files();
        spoil(&machine.disks[1], file);
        let (store, recovered) = machine.open();
        let [mended] = &recovered.report.mended[..] else { panic!("{:?}", recovered.report) };
        let code = if file == "disk" { "HF0003" } else { "HF0018" };
        assert!(mended.code == code && mended.path.ends_with(file), "{mended}");
        let now = machine.disks[1].snapshot_files();
        assert!(["disk", "disk.copy"].iter().all(|file| now[*file] == whole[*file]), "{file}");
        drop(store);
        machine.world.restart();
        let report = machine.open().1.report;
        assert_eq!((report.mended, report.problems), (Vec::new(), Vec::new()));
        machine.world.restart();

        for file in ["disk", "disk.copy"] {
            spoil(&machine.disks[1], file);
        }
        assert!(machine.try_open().is_err());
        assert_ne!(machine.disks[1].snapshot_files()["disk"], whole["disk"], "a refused opening changes nothing");
    }
    // A node of a time when there were no copies.
    let (machine, _) = node(6, 1);
    machine.disks[0].remove("disk.copy");
    assert_eq!(machine.open().1.report.problems, Vec::<String>::new());
    assert!(machine.disks[0].snapshot_files().contains_key("disk.copy"));
}

/// A sector that gives no answer, where there is another copy.
#[test]
fn what_cannot_be_read_and_is_there_twice_refuses_nothing() {
    for (path, bytes) in [("superblock", 0..1), ("superblock", 4096..4097), ("disk", 0..1), ("disk.copy", 0..1)] {
        let machine = Machine::new(3, 1, 64 << 20);
        for round in 0..2_u64 {
            let (store, _) = machine.open();
            machine.run(async {
                store.log(&round.to_le_bytes());
                store.sync_log(Position(round + 1)).await.unwrap();
                store.commit(store.moment(), &round.to_le_bytes(), Position(round + 1)).await.unwrap();
            });
            drop(store);
            machine.world.restart();
        }
        machine.disks[0].set_unreadable(path, bytes.clone());
        let (store, recovered) = machine.open();
        // Where it was the newest superblock, the one before it and the journal say the same.
        let newest = recovered.frames.last().map_or(recovered.covered, |(position, _)| *position);
        assert_eq!(newest, Position(2), "{path} {bytes:?}");
        drop(store);
        machine.world.restart();
        machine.disks[0].set_unreadable(path, 0..0);
        let (store, _) = machine.open();
        assert_eq!(machine.run(store.check(Depth::Deep, &|_, _| {})).problems, [], "{path} {bytes:?}");
    }
}
