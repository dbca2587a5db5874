//! Disks that have no room, all of them or one, and have some again: who asks for room is refused while there is none, and what was accepted is stored.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::id::{FileId, NodeNumber};
use platform::disk::Disk;
use platform::sim::{SimDisk, World};
use store::{Options as StoreOptions, Resilience};

use super::batch_write::file;
use super::content::pattern;
use super::{Machine, create, find};
use crate::{Allocate, AttributeChange, BatchWrite, FileError, FileSystem, Kind, Node, Options, format_node};

const ROOT: FileId = FileId::ROOT;

/// Another program leaves so many bytes on a disk.
fn leave(disk: &SimDisk, bytes: u64) {
    disk.set_capacity(u64::MAX >> 1);
    let space = disk.disk().space().unwrap();
    disk.set_capacity(space.total - space.free + bytes);
}

/// Files of content that does not compress, until there is no room; how many.
async fn fill(system: &FileSystem, name: &str, bytes: usize, syncs: bool) -> u64 {
    for number in 0.. {
        assert!(number < 100_000, "it never fills");
        let made = system.create_file(ROOT, format!("{name}{number}").as_bytes(), &super::new(Kind::Regular)).await;
        let written = match made {
            Ok(attributes) => {
                let written = system.write(attributes.file, 0, &pattern(bytes, number + 1), false).await;
                if written.is_ok() && syncs {
                    system.sync(attributes.file).await.unwrap();
                }
                written
            }
            Err(error) => Err(error),
        };
        match written {
            Ok(()) => {}
            Err(FileError::NoSpace) => return number,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!("it returns")
}

/// What was synced lies in the journal alone, and has to become chunks: with a reserve as large as by default that is more than data may leave.
#[test]
fn what_was_synced_by_the_journal_finds_room_when_it_is_committed() {
    let machine = Machine::with(
        41,
        6 << 30,
        Options { commit_interval: std::time::Duration::from_secs(1 << 20), ..Options::default() },
    );
    let system = machine.open();
    // The journal has some, and grows.
    leave(&machine.disk, (512 << 20) + (160 << 20));
    system.measure_space();
    machine.run(async {
        let count = fill(&system, "f", 60_000, true).await;
        assert!(count > 1000, "only {count} files");
        system.commit().await.unwrap();
        for number in 0..count {
            system.remove_file(ROOT, format!("f{number}").as_bytes()).await.unwrap();
        }
        let again = fill(&system, "g", 60_000, true).await;
        assert!(again > count / 2, "{again} files after {count}");
    });
    machine.check(&system);
}

/// Commits that find no room have it made by the pass that they would otherwise have to come before.
#[test]
fn a_commit_that_finds_no_room_has_some_made() {
    let machine = Machine::with(42, 256 << 20, Options::default());
    let system = machine.open();
    machine.run(async {
        let file = create(&system, ROOT, "old", Kind::Regular).await.file;
        system.write(file, 0, &pattern(24 << 20, 1), false).await.unwrap();
        system.sync_all().await.unwrap();
        system.commit().await.unwrap();
        // Too little for a pass of its own.
        system.remove_file(ROOT, b"old").await.unwrap();
        system.commit().await.unwrap();
        for number in 0..64 {
            let file = create(&system, ROOT, &format!("f{number}"), Kind::Regular).await.file;
            system.write(file, 0, &pattern(60_000, number + 2), false).await.unwrap();
            system.sync(file).await.unwrap();
        }
        leave(&machine.disk, 4 << 20);
        system.measure_space();
        assert!(matches!(system.commit().await, Err(FileError::NoSpace)));
        assert!(system.make_room().await.unwrap());
        system.commit().await.unwrap();
    });
    machine.check(&system);
}

/// Who only makes names has room made, too.
#[test]
fn a_removal_makes_room_for_a_name() {
    let machine = Machine::with(43, 256 << 20, Options::default());
    let system = machine.open();
    machine.run(async {
        let count = fill(&system, "f", 1 << 20, false).await;
        system.sync_all().await.unwrap();
        leave(&machine.disk, 16 << 20);
        system.measure_space();
        let new = super::new(Kind::Regular);
        assert!(matches!(system.create_file(ROOT, b"name", &new).await, Err(FileError::NoSpace)));
        for number in 0..count {
            system.remove_file(ROOT, format!("f{number}").as_bytes()).await.unwrap();
        }
        system.create_file(ROOT, b"name", &new).await.unwrap();
    });
    machine.check(&system);
}

/// What would be admitted as a write is as a reservation.
#[test]
fn a_removal_makes_room_for_a_reservation() {
    let machine = Machine::with(45, 256 << 20, Options::default());
    let system = machine.open();
    machine.run(async {
        let count = fill(&system, "f", 1 << 20, false).await;
        system.sync_all().await.unwrap();
        let file = create(&system, ROOT, "reserved", Kind::Regular).await.file;
        let (how, half) = (Allocate::Reserve { keep_size: false }, (count / 2) << 20);
        assert!(matches!(system.allocate(file, how, 0, half).await, Err(FileError::NoSpace)));
        for number in 0..count {
            system.remove_file(ROOT, format!("f{number}").as_bytes()).await.unwrap();
        }
        system.allocate(file, how, 0, half).await.unwrap();
        assert_eq!(system.attributes(Node::live(file)).await.unwrap().allocated, half);
        // What has its room asks for no more of it.
        system.allocate(file, how, 0, half).await.unwrap();
    });
    machine.check(&system);
}

/// Every third of many small files goes: no pack is half empty.
#[test]
fn what_is_removed_here_and_there_makes_room() {
    let machine = Machine::with(44, 256 << 20, Options::default());
    let system = machine.open();
    machine.run(async {
        let count = fill(&system, "f", 100_000, false).await;
        system.sync_all().await.unwrap();
        for number in (0..count).step_by(3) {
            system.remove_file(ROOT, format!("f{number}").as_bytes()).await.unwrap();
        }
        let again = fill(&system, "g", 100_000, false).await;
        assert!(again > count / 6, "{again} files for {} that went", count / 3);
        system.sync_all().await.unwrap();
    });
    machine.check(&system);
}

/// Content that no tree ever named counts as well when it goes.
#[test]
fn content_that_goes_before_it_was_committed_counts_as_dropped() {
    let machine = Machine::new(45);
    let system = machine.open();
    let dropped = || system.dropped_bytes.load(Ordering::Relaxed);
    machine.run(async {
        let file = create(&system, ROOT, "short", Kind::Regular).await.file;
        for round in 1..3 {
            system.write(file, 0, &pattern(8 << 20, round), false).await.unwrap();
            system.sync_all().await.unwrap();
        }
        system.remove_file(ROOT, b"short").await.unwrap();
        system.forget(crate::Node::live(file), 1).await.ok();
        system.commit().await.unwrap();
        assert!(dropped() >= 16 << 20, "{}", dropped());
    });
}

/// As much as if it had been removed.
#[test]
fn what_is_cut_off_from_the_beginning_counts_as_dropped_and_makes_room() {
    let machine = Machine::with(47, 256 << 20, Options::default());
    let system = machine.open();
    let dropped = || system.dropped_bytes.load(Ordering::Relaxed);
    machine.run(async {
        let large = create(&system, ROOT, "large", Kind::Regular).await.file;
        // Whole packs.
        for part in 0..4 {
            system.write(large, part * (24 << 20), &pattern(24 << 20, 10 + part), false).await.unwrap();
        }
        system.sync_all().await.unwrap();
        system.commit().await.unwrap();
        fill(&system, "f", 1 << 20, false).await;
        let before = dropped();
        let empty = AttributeChange { size: Some(0), ..AttributeChange::default() };
        system.set_attributes(large, &empty).await.unwrap();
        system.commit().await.unwrap();
        assert!(dropped() - before >= 96 << 20, "{}", dropped() - before);
        let file = create(&system, ROOT, "new", Kind::Regular).await.file;
        system.write(file, 0, &pattern(4 << 20, 2), false).await.unwrap();
        system.sync_all().await.unwrap();
        system.commit().await.unwrap();
    });
    machine.check(&system);
}

fn two_disks(seed: u64, small: u64, options: &Options) -> (World, Vec<SimDisk>, Arc<FileSystem>) {
    let world = World::new(seed);
    let sims = vec![world.disk("large", 1 << 30), world.disk("small", small)];
    let disks: Vec<Disk> = sims.iter().map(SimDisk::disk).collect();
    let system = world.run_until(async {
        format_node(&world.platform(), &disks, NodeNumber(1), 0, 0).await?;
        FileSystem::open(&world.platform(), &disks, options.clone()).await
    });
    let system = system.unwrap().unwrap().0;
    (world, sims, system)
}

/// With two copies what fits is what the smaller disk takes.
#[test]
fn nothing_is_accepted_that_only_one_of_two_disks_would_take() {
    let options = Options { store: StoreOptions { copies: 2, ..StoreOptions::default() }, ..Options::default() };
    let (world, _sims, system) = two_disks(46, 160 << 20, &options);
    world
        .run_until(async {
            assert!(system.space().free < 160 << 20, "{:?}", system.space());
            let count = fill(&system, "f", 1 << 20, false).await;
            assert!((40..160).contains(&count), "{count} files");
            system.sync_all().await.unwrap();
            system.commit().await.unwrap();
        })
        .unwrap();
}

/// A directory asks for two copies, and one of the two disks is full: that is no matter of the other files.
#[test]
fn who_asks_for_more_copies_than_there_is_room_for_stops_nobody_else() {
    let (world, sims, system) = two_disks(47, 1 << 30, &Options::default());
    world
        .run_until(async {
            let two = create(&system, ROOT, "two", Kind::Directory).await.file;
            system.set_policy(two, Resilience::Copies(2)).await.unwrap();
            let file = create(&system, two, "file", Kind::Regular).await.file;
            let plain = create(&system, ROOT, "plain", Kind::Regular).await.file;
            system.sync_all().await.unwrap();
            system.commit().await.unwrap();
            // Accepted while there is room, and stored when there is none.
            system.write(file, 0, &pattern(2 << 20, 1), false).await.unwrap();
            leave(&sims[1], 130 << 20);
            for round in 1..4 {
                system.write(plain, round << 20, &pattern(1 << 20, round), false).await.unwrap();
                system.sync(plain).await.unwrap();
            }
            assert!(matches!(system.sync_all().await, Err(FileError::NoSpace)));
            assert!(system.status().flush_failure.is_some_and(|why| why.contains("2 copies")));
            assert!(matches!(system.write(file, 4 << 20, &[1; 4096], false).await, Err(FileError::NoSpace)));
            sims[1].set_capacity(1 << 30);
            system.sync_all().await.unwrap();
            assert_eq!(system.status().flush_failure, None);
            system.write(file, 4 << 20, &[1; 4096], false).await.unwrap();
            find(&system, "two/file").await.unwrap();
        })
        .unwrap();
}

/// What was admitted counts before it has arrived: two writes are not let in for the room of one.
#[test]
fn who_was_admitted_has_room_before_the_content_arrives() {
    const BYTES: u64 = 32 << 20;
    let machine = Machine::with(48, 1 << 30, Options::default());
    let system = machine.open();
    leave(&machine.disk, system.store.reserve_bytes() + (64 << 20));
    let free = system.measure_space();
    // Once with the margin, and not twice.
    assert!((56 << 20..80 << 20).contains(&free), "{free} bytes are free");
    machine.run(async {
        let admitted = system.admit(BYTES).await.unwrap();
        assert!(matches!(system.admit(BYTES).await, Err(FileError::NoSpace)));
        assert!(matches!(system.admit_unit((BYTES, 1), (1000, 1)).await, Err(FileError::NoSpace)));
        drop(admitted);
        let admitted = system.admit_unit((BYTES, 1), (1000, 1)).await.unwrap();
        assert!(matches!(system.admit(BYTES).await, Err(FileError::NoSpace)));
        drop(admitted);
        drop(system.admit(BYTES).await.unwrap());
    });
    machine.check(&system);
}

/// What has arrived is claimed no more: it is on the disks, or in the buffer, and counts there.
#[test]
fn what_has_arrived_is_claimed_no_more() {
    let machine = Machine::new(49);
    let system = machine.open();
    machine.run(async {
        let made = create(&system, ROOT, "written", Kind::Regular).await.file;
        let admitted = system.admit(1000).await.unwrap();
        assert_eq!(system.claims.bytes(), 1000);
        drop(admitted);
        system.write(made, 0, &pattern(1000, 1), false).await.unwrap();
        assert_eq!(system.claims.bytes(), 0);
        let unit = vec![file("unit", &pattern(1 << 20, 2))];
        let unit = system.batch_begin(ROOT, unit, &BatchWrite::default()).await.unwrap();
        assert_eq!(system.claims.bytes(), 0, "before it is finished");
        assert!(system.batch_finish(unit).await.unwrap().is_done);
    });
    machine.check(&system);
}
