//! A disk that keeps its power: names, space, locks, and each fault.

use crate::disk::{Disk, DiskError, DiskErrorKind, Open};
use crate::sim::{Faults, SimDisk, World, each_seed};

fn disk(world: &World) -> (SimDisk, Disk) {
    let sim = world.disk("d", 1 << 20);
    let disk = sim.disk();
    (sim, disk)
}

fn kind<T>(result: Result<T, DiskError>) -> DiskErrorKind {
    result.err().expect("it fails").kind
}

#[test]
fn what_was_written_is_read_at_once() {
    let world = World::new(1);
    let (sim, disk) = disk(&world);
    let file = disk.open("f", Open::Create).unwrap();
    let other = disk.open("f", Open::Read).unwrap();
    world
        .run_until(async {
            file.write_at(10_000, b"far").await.unwrap();
            file.write_at(2, b"near").await.unwrap();
            let mut buffer = [7; 8];
            assert_eq!(other.read_at(0, &mut buffer).await.unwrap(), 8);
            assert_eq!(&buffer, b"\0\0near\0\0");
            assert_eq!(other.read_at(10_001, &mut buffer).await.unwrap(), 2);
            assert_eq!(other.read_at(10_003, &mut buffer).await.unwrap(), 0);
            assert_eq!(kind(other.read_exact_at(10_001, &mut buffer).await), DiskErrorKind::Short);
            assert_eq!(kind(other.write_at(0, b"x").await), DiskErrorKind::Denied);
        })
        .unwrap();
    file.set_length(4).unwrap();
    file.set_length(6).unwrap();
    assert_eq!(sim.snapshot_files()["f"], b"\0\0ne\0\0", "a cut and extended file has zeroes there");
    assert_eq!(sim.durable_files()["f"], b"");
    assert!(world.elapsed().as_micros() > 0, "operations take virtual time");
}

#[test]
fn names_behave_as_in_a_directory() {
    let world = World::new(1);
    let (_, disk) = disk(&world);
    assert_eq!(kind(disk.open("a/f", Open::Create)), DiskErrorKind::Absent, "no directory");
    disk.make_directory("a/b").unwrap();
    disk.make_directory("a").unwrap();
    disk.open("a/f", Open::Create).unwrap();
    disk.open("a/b/g", Open::Create).unwrap();
    disk.open("a-", Open::Create).unwrap();
    assert_eq!(kind(disk.open("a/f", Open::Create)), DiskErrorKind::Exists);
    assert_eq!(kind(disk.open("a/x", Open::Write)), DiskErrorKind::Absent);
    assert_eq!(kind(disk.remove("a/x")), DiskErrorKind::Absent);
    assert_eq!(disk.list("").unwrap(), ["a", "a-"]);
    assert_eq!(disk.list("a/").unwrap(), ["b", "f"]);
    assert_eq!(kind(disk.list("x")), DiskErrorKind::Absent);
    disk.rename("a/b/g", "a/f").unwrap();
    assert_eq!(disk.list("a").unwrap(), ["b", "f"]);
    assert!(disk.list("a/b").unwrap().is_empty());
    disk.rename("a/f", "a/f").unwrap();
    disk.remove("a/f").unwrap();
    assert_eq!(disk.list("a").unwrap(), ["b"]);
}

#[test]
fn a_full_disk_says_so_and_gets_room_from_removal() {
    let world = World::new(1);
    let sim = world.disk("d", 16 << 10);
    let disk = sim.disk();
    let file = disk.open("f", Open::Create).unwrap();
    file.raw().write_at(0, &[1; 12 << 10]).unwrap();
    assert_eq!((disk.space().unwrap().total, disk.space().unwrap().free), (16 << 10, 4 << 10));
    assert_eq!(kind(file.raw().write_at(12 << 10, &[1; 4097])), DiskErrorKind::Full);
    assert_eq!(file.length().unwrap(), 12 << 10, "a refused write changes nothing");
    file.raw().write_at(12 << 10, &[1; 4096]).unwrap();
    file.raw().write_at(0, &[2; 16 << 10]).expect("overwriting takes no room");
    assert_eq!(kind(disk.open("g", Open::Create)), DiskErrorKind::Full);
    file.set_length(1 << 40).expect("holes take no room");
    disk.remove("f").unwrap();
    assert_eq!(disk.space().unwrap().free, 0, "an open file keeps its room");
    drop(file);
    assert_eq!(disk.space().unwrap().free, 16 << 10);
    disk.open("g", Open::Create).unwrap();
}

#[test]
fn a_lock_has_one_holder_until_drop_crash_or_power_loss() {
    let world = World::new(1);
    let (sim, disk) = disk(&world);
    let held = disk.lock("lock").unwrap();
    assert_eq!(disk.lock("lock").err().map(|error| error.kind), Some(DiskErrorKind::Locked));
    drop(held);
    let of_the_dead = disk.lock("lock").unwrap();
    world.crash();
    let held = disk.lock("lock").unwrap();
    drop(of_the_dead);
    assert!(disk.lock("lock").is_err(), "a guard of an earlier boot frees nothing");
    sim.power_loss();
    let _held_again = disk.lock("lock").unwrap();
    drop(held);
    assert!(disk.lock("lock").is_err());
}

#[test]
fn a_crash_of_the_process_keeps_what_was_written() {
    let world = World::new(1);
    let (sim, disk) = disk(&world);
    let file = disk.open("f", Open::Create).unwrap();
    file.raw().write_at(0, b"bytes").unwrap();
    world.crash();
    assert_eq!(sim.snapshot_files()["f"], b"bytes");
    assert_eq!(kind(file.raw().write_at(0, b"later")), DiskErrorKind::Failed);
    assert_eq!(kind(file.length()), DiskErrorKind::Failed);
    disk.open("f", Open::Write).unwrap().raw().write_at(0, b"later").unwrap();
}

#[test]
fn sick_disks_fail_as_told() {
    let world = World::new(1);
    let (sim, disk) = disk(&world);
    let file = disk.open("f", Open::Create).unwrap();
    file.raw().write_at(0, &[1; 2048]).unwrap();
    sim.set_faults(Faults { is_read_only: true, ..Faults::default() });
    assert_eq!(kind(file.raw().write_at(0, b"x")), DiskErrorKind::ReadOnly);
    assert_eq!(kind(disk.remove("f")), DiskErrorKind::ReadOnly);
    disk.open("f", Open::Read).unwrap();
    sim.set_faults(Faults { is_dead: true, ..Faults::default() });
    assert_eq!(kind(file.raw().read_at(0, &mut [0; 4])), DiskErrorKind::Failed);
    assert_eq!(kind(disk.space()), DiskErrorKind::Failed);
    sim.set_faults(Faults { read_error: 1.0, write_error: 1.0, sync_error: 1.0, ..Faults::default() });
    assert_eq!(kind(file.raw().read_at(0, &mut [0; 4])), DiskErrorKind::Failed);
    assert_eq!(kind(file.raw().write_at(0, &[2; 1])), DiskErrorKind::Failed);
    assert_eq!(kind(file.raw().sync()), DiskErrorKind::Failed);
    assert_eq!(kind(disk.sync_directory("")), DiskErrorKind::Failed);
    sim.set_faults(Faults { read_error: 0.5, ..Faults::default() });
    let failed = (0..1000).filter(|_| file.raw().read_at(0, &mut [0; 4]).is_err()).count();
    assert!((400..600).contains(&failed), "{failed} of 1000 reads failed");
}

#[test]
fn silent_faults_change_bytes_and_nothing_else() {
    each_seed(0..50, |seed| {
        let world = World::new(seed);
        let (sim, disk) = disk(&world);
        let file = disk.open("f", Open::Create).unwrap();
        file.raw().write_at(0, &[1; 2048]).unwrap();
        let differences = || sim.snapshot_files()["f"].iter().filter(|byte| **byte != 1).count();
        let set = |faults| sim.set_faults(faults);

        set(Faults { flip_read: 1.0, ..Faults::default() });
        let mut buffer = [0; 2048];
        file.raw().read_at(0, &mut buffer).unwrap();
        let flipped: u32 = buffer.iter().map(|byte| (byte ^ 1).count_ones()).sum();
        assert_eq!((flipped, differences()), (1, 0));
        set(Faults::default());
        let mut again = [0; 2048];
        file.raw().read_at(0, &mut again).unwrap();
        assert_eq!(again, buffer, "it is kept");
        file.forget(0, 2048);
        file.raw().read_at(0, &mut again).unwrap();
        assert_eq!(again, [1; 2048]);

        set(Faults { lost_write: 1.0, ..Faults::default() });
        file.raw().write_at(1024, &[1; 2048]).unwrap();
        assert_eq!((file.length().unwrap(), differences()), (3072, 1024), "grown, without the bytes");
        file.set_length(2048).unwrap();

        set(Faults { flip_write: 1.0, ..Faults::default() });
        file.raw().write_at(0, &[1; 2048]).unwrap();
        assert_eq!(differences(), 1);

        set(Faults::default());
        file.raw().write_at(0, &[1; 2048]).unwrap();
        set(Faults { misdirected_write: 1.0, ..Faults::default() });
        file.raw().write_at(0, &[3; 512]).unwrap();
        let bytes = &sim.snapshot_files()["f"];
        let landed = bytes.chunks(512).filter(|sector| sector.iter().all(|byte| *byte == 3)).count();
        assert_eq!((bytes.len(), landed, differences()), (2048, 1, 512));
    });
}

#[test]
fn a_stale_page_is_what_the_last_sync_replaced_until_it_is_forgotten() {
    let world = World::new(1);
    let (sim, disk) = disk(&world);
    let file = disk.open("f", Open::Create).unwrap();
    for byte in [1, 2, 3] {
        file.raw().write_at(0, &[byte; 8192]).unwrap();
        file.raw().sync().unwrap();
    }
    let read = || {
        let mut buffer = [0; 4096];
        file.raw().read_at(0, &mut buffer).unwrap();
        buffer
    };
    sim.set_faults(Faults { stale_read: 1.0, ..Faults::default() });
    assert_eq!(read(), [2; 4096]);
    sim.set_faults(Faults::default());
    assert_eq!(read(), [2; 4096], "it is kept");
    file.raw().write_at(100, &[4; 10]).unwrap();
    assert_eq!((read()[99], read()[100], read()[110]), (2, 4, 2));
    file.forget(0, 8192);
    assert_eq!((read()[99], read()[100], read()[110]), (3, 4, 3));
    sim.misread("f", 5, 0);
    assert_eq!(read()[5], 2);
    world.restart();
    assert_eq!(sim.snapshot_files()["f"][5], 3);
}

#[test]
fn damage_by_hand_outlives_a_sync() {
    let world = World::new(1);
    let (sim, disk) = disk(&world);
    let file = disk.open("f", Open::Create).unwrap();
    file.raw().write_at(0, &[0; 1000]).unwrap();
    sim.flip_bit("f", 999, 7);
    sim.corrupt("f", 1, &[9, 9]);
    file.raw().sync().unwrap();
    disk.sync_directory("").unwrap();
    world.restart();
    let bytes = sim.snapshot_files()["f"].clone();
    assert_eq!((bytes.len(), bytes[999], &bytes[..4]), (1000, 128, &[0, 9, 9, 0][..]));
    sim.truncate("f", 2);
    sim.install("new/file", b"by hand");
    assert!(sim.remove("f") && !sim.remove("f"));
    world.restart();
    assert_eq!(sim.snapshot_files().into_iter().collect::<Vec<_>>(), [("new/file".to_owned(), b"by hand".to_vec())]);
}

#[test]
fn a_slow_disk_takes_its_time() {
    let time_of = |slowness| {
        let world = World::new(1);
        let (sim, disk) = disk(&world);
        sim.set_faults(Faults { slowness, ..Faults::default() });
        let file = disk.open("f", Open::Create).unwrap();
        world.run_until(file.write_at(0, &[0; 100_000])).unwrap().unwrap();
        world.elapsed()
    };
    assert!(time_of(1).as_micros() >= 120);
    assert_eq!(time_of(50), time_of(1) * 50);
}
