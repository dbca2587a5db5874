//! What was once wrong when two things happened at the same time, or one of them stopped halfway. Each test is a race that an
//! attack on the design won, played step by step.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use base::id::FileId;
use platform::sim::World;

use super::batch_write::file;
use super::content::pattern;
use super::{Machine, create, find, read_all};
use crate::{Allocate, AttributeChange, BatchWrite, FileSystem, Kind, Node, Options, XattrMode};

type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Polls once: whether it is still pending.
async fn starts<T>(future: &mut Pending<'_, T>) -> bool {
    let mut future = pin!(future);
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

/// Whether it ends within two hours of the simulated clock.
fn ends<T>(world: &World, future: impl Future<Output = T>) -> bool {
    let tasks = world.platform().tasks;
    let limit = tasks.sleep(Duration::from_secs(7200));
    world
        .run_until(platform::task::first(future, limit))
        .is_ok_and(|first| matches!(first, platform::task::First::Left(_)))
}

#[test]
fn a_commit_that_is_dropped_halfway_loses_nothing() {
    let machine = Machine::new(20);
    let mut system = machine.open();
    machine.run(async {
        let directory = create(&system, FileId::ROOT, "d", Kind::Directory).await.file;
        let file = create(&system, directory, "synced", Kind::Regular).await.file;
        system.sync(file).await.unwrap();
        let mut commit: Pending<'_, _> = Box::pin(system.commit());
        assert!(starts(&mut commit).await);
        drop(commit);
        // Its superblock covers the frames of the one that was dropped.
        create(&system, FileId::ROOT, "other", Kind::Regular).await;
        system.commit().await.unwrap();
    });
    system = machine.power_cycle(system);
    machine.run(find(&system, "d/synced")).unwrap();
    machine.check(&system);
}

#[test]
fn a_flush_that_is_dropped_halfway_loses_nothing() {
    let machine = Machine::new(21);
    let mut system = machine.open();
    let bytes = pattern(3_000_000, 1);
    machine.run(async {
        let file = create(&system, FileId::ROOT, "f", Kind::Regular).await.file;
        system.write(file, 0, &bytes, false).await.unwrap();
        let mut sync: Pending<'_, _> = Box::pin(system.sync_all());
        assert!(starts(&mut sync).await);
        drop(sync);
        system.sync(file).await.unwrap();
    });
    system = machine.power_cycle(system);
    assert!(machine.run(async { read_all(&system, find(&system, "f").await.unwrap()).await }) == bytes);
    machine.check(&system);
}

#[test]
fn more_extents_than_a_frame_holds_go_into_several() {
    let machine = Machine::new(22);
    let mut system = machine.open();
    let (holes, copied) = machine.run(async {
        let holes = create(&system, FileId::ROOT, "holes", Kind::Regular).await.file;
        for index in 0..20_000 {
            system.write(holes, index * 4096, b"x", false).await.unwrap();
        }
        system.allocate(holes, Allocate::Reserve { keep_size: false }, 0, 20_000 * 4096).await.unwrap();
        // Small extents in the tree, more than one record takes: the copy goes on where it stopped.
        let source = create(&system, FileId::ROOT, "source", Kind::Regular).await.file;
        for index in 0..17_000_u64 {
            system.write(source, index * 2, &index.to_le_bytes()[..1], false).await.unwrap();
        }
        system.sync_all().await.unwrap();
        let copy = create(&system, FileId::ROOT, "copy", Kind::Regular).await.file;
        let (mut copied, size) = (0, 33_999);
        while copied < size {
            copied += system.copy_range(Node::live(source), copied, copy, copied, size - copied).await.unwrap();
        }
        let mode = AttributeChange { mode: Some(0o600), ..AttributeChange::default() };
        system.set_attributes(holes, &mode).await.unwrap();
        system.sync(copy).await.unwrap();
        (holes, read_all(&system, Node::live(source)).await)
    });
    system = machine.power_cycle(system);
    machine.run(async {
        assert_eq!(system.attributes(Node::live(holes)).await.unwrap().allocated, 20_000 * 4096);
        assert!(read_all(&system, find(&system, "copy").await.unwrap()).await == copied);
    });
    machine.check(&system);
}

/// Units were admitted and find no room on the disks; another one stands in line for the records that they hold.
#[test]
fn a_removal_waits_for_nobody_who_waits_for_its_room() {
    const FILES: usize = 64;
    for is_in_line_before in [false, true] {
        let machine = Machine::with(33, 1 << 30, Options { uncommitted_files_max: FILES, ..Options::default() });
        let system = machine.open();
        assert!(ends(&machine.world, async {
            let top = create(&system, FileId::ROOT, "t", Kind::Directory).await.file;
            for number in 0..2000 {
                create(&system, top, &format!("n{number}"), Kind::Fifo).await;
            }
            let not_yet = system.removals.work.lock().await;
            system.batch_remove(FileId::ROOT, b"t").await.unwrap();
            system.commit().await.unwrap();
            let unit = || system.admit_unit((0, 0), (1000, FILES as u64));
            let admitted = [unit().await.unwrap(), unit().await.unwrap()];
            let mut next: Pending<'_, _> = Box::pin(unit());
            assert!(starts(&mut next).await, "those before it have all records");
            drop(not_yet);
            if is_in_line_before {
                machine.world.platform().tasks.sleep(Duration::from_secs(1)).await;
                assert_eq!((system.changes_waiting(), system.removing()), (2, 1));
            }
            // What each of the two does.
            system.make_room().await.unwrap();
            assert_eq!(system.removing(), 0);
            drop(admitted);
            drop(next.await.unwrap());
        }));
        machine.check(&system);
    }
}

#[test]
fn changes_never_wait_for_a_commit_that_has_nothing_to_do() {
    let mut machine = Machine::new(23);
    machine.options.commit_journal_bytes = 1 << 20;
    let system = machine.open();
    let file = machine.run(create(&system, FileId::ROOT, "f", Kind::Regular)).file;
    let value = vec![7; 60_000];
    assert!(ends(&machine.world, async {
        for index in 0..300_u32 {
            let name = format!("user.{}", index % 4);
            system.set_xattr(file, name.as_bytes(), &value, XattrMode::Set, false).await.unwrap();
        }
    }));
    machine.check(&system);
}

#[test]
fn temporary_files_never_fill_the_disk() {
    let machine = Machine::new(24);
    machine.disk.set_capacity(200 << 20);
    let mut system = machine.open();
    machine.run(async {
        for round in 0..40 {
            let file = create(&system, FileId::ROOT, "temporary", Kind::Regular).await.file;
            for part in 0..8 {
                system.write(file, part << 20, &pattern(1 << 20, 100 * round + part), false).await.unwrap();
            }
            system.sync(file).await.unwrap();
            system.remove_file(FileId::ROOT, b"temporary").await.unwrap();
        }
    });
    machine.run(system.close()).unwrap();
    system = machine.power_cycle(system);
    machine.run(async {
        let file = create(&system, FileId::ROOT, "next", Kind::Regular).await.file;
        system.write(file, 0, &[1; 4096], false).await.unwrap();
        system.sync(file).await.unwrap();
    });
    machine.check(&system);
}

#[test]
fn a_count_of_blocks_that_is_out_of_date_is_not_kept() {
    let machine = Machine::new(25);
    let mut system = machine.open();
    let file = machine.run(async {
        let file = create(&system, FileId::ROOT, "f", Kind::Regular).await.file;
        system.write(file, 0, &pattern(3_000_000, 1), false).await.unwrap();
        system.write(file, 8_000_000, &pattern(3_000_000, 2), false).await.unwrap();
        system.sync_all().await.unwrap();
        system.commit().await.unwrap();
        file
    });
    system = machine.power_cycle(system);
    machine.run(async {
        let node = Node::live(file);
        system.write(file, 5_000_000, &[1; 4096], false).await.unwrap();
        let mut stat: Pending<'_, _> = Box::pin(system.attributes(node));
        assert!(starts(&mut stat).await);
        system.allocate(file, Allocate::Punch, 5_000_000, 4096).await.unwrap();
        stat.await.unwrap();
        assert_eq!(system.attributes(node).await.unwrap().allocated, 6_000_000);
    });
    machine.check(&system);
}

/// Files that fit into one batch, each small enough for the journal (more data goes through packs, whose locks a batch that is
/// not polled holds).
async fn small_files(system: &FileSystem) -> Vec<(FileId, Vec<u8>)> {
    let mut files = Vec::new();
    for number in 0..5 {
        let file = create(system, FileId::ROOT, &format!("f{number}"), Kind::Regular).await.file;
        let bytes = pattern(10_000 + 10_000 * number, number as u64);
        system.write(file, 0, &bytes, false).await.unwrap();
        files.push((file, bytes));
    }
    files
}

#[test]
fn a_sync_does_not_wait_for_a_batch_that_has_its_file() {
    let machine = Machine::new(26);
    let mut system = machine.open();
    let files = machine.run(small_files(&system));
    {
        let mut batch: Pending<'_, _> = Box::pin(system.sync_all());
        assert!(machine.run(starts(&mut batch)));
        for (file, _) in &files {
            assert!(ends(&machine.world, async { system.sync(*file).await.unwrap() }), "nobody moves the batch");
        }
    }
    assert_eq!(system.counters.flushes_overtaken.value(), 5);
    system = machine.power_cycle(system);
    for (file, bytes) in &files {
        assert!(machine.run(read_all(&system, Node::live(*file))) == *bytes);
    }
    machine.check(&system);
}

#[test]
fn what_a_cut_takes_out_of_a_batch_is_local_when_the_batch_is() {
    let machine = Machine::new(27);
    let mut system = machine.open();
    let files = machine.run(small_files(&system));
    let cut = AttributeChange { size: Some(8_000), ..AttributeChange::default() };
    {
        let mut batch: Pending<'_, _> = Box::pin(system.sync_all());
        assert!(machine.run(starts(&mut batch)));
        for (file, bytes) in &files {
            assert!(ends(&machine.world, async { system.set_attributes(*file, &cut).await.unwrap() }));
            assert!(machine.run(read_all(&system, Node::live(*file))) == bytes[..8_000]);
        }
        machine.run(batch).unwrap();
    }
    system = machine.power_cycle(system);
    for (file, bytes) in &files {
        assert!(machine.run(read_all(&system, Node::live(*file))) == bytes[..8_000]);
    }
    machine.check(&system);
}

#[test]
fn a_reservation_behind_lost_data_is_counted_once() {
    let machine = Machine::new(28);
    let mut system = machine.open();
    let file = machine.run(async {
        let file = create(&system, FileId::ROOT, "f", Kind::Regular).await.file;
        system.write(file, 7476, &pattern(1830, 1), false).await.unwrap();
        system.allocate(file, Allocate::Reserve { keep_size: false }, 10_551, 3328).await.unwrap();
        system.sync(FileId::ROOT).await.unwrap();
        file
    });
    // The data is lost, and with it the size; the reservation is not.
    system = machine.power_cycle(system);
    let allocated = machine.run(async {
        assert_eq!(system.attributes(Node::live(file)).await.unwrap().size, 7476);
        system.write(file, 7476, &pattern(10_000, 2), false).await.unwrap();
        let allocated = system.attributes(Node::live(file)).await.unwrap().allocated;
        system.sync(file).await.unwrap();
        system.commit().await.unwrap();
        allocated
    });
    assert_eq!(allocated, 10_000);
    system = machine.power_cycle(system);
    assert_eq!(machine.run(system.attributes(Node::live(file))).unwrap().allocated, 10_000);
    machine.check(&system);
}

/// A repair took the commit lock and waited for a pass of reclaim, which waited for the commit lock.
#[test]
fn a_repair_beside_a_pass_of_reclaim_ends() {
    let machine = Machine::new(30);
    let system = machine.open();
    machine.run(create(&system, FileId::ROOT, "f", Kind::Regular));
    assert!(ends(&machine.world, async {
        // An operation that the pass waits for, before it asks for the commit lock.
        let operation = system.grace.enter(0);
        let how = crate::Reclaim::default();
        let mut reclaim: Pending<'_, _> = Box::pin(system.reclaim(&how));
        assert!(starts(&mut reclaim).await);
        let mut repair: Pending<'_, _> = Box::pin(system.repair_files(false, (0, 0)));
        let soon = machine.world.platform().tasks.sleep(Duration::from_secs(10));
        let _ = platform::task::first(&mut repair, soon).await;
        drop(operation);
        reclaim.await.unwrap();
        repair.await.unwrap();
    }));
    machine.check(&system);
}

/// What is accepted while a flush is under way may begin within the size that was synced, behind the content that is flushed.
#[test]
fn a_sync_keeps_the_size_that_it_found() {
    let machine = Machine::new(29);
    let mut system = machine.open();
    machine.run(async {
        let file = create(&system, FileId::ROOT, "f", Kind::Regular).await.file;
        system.write(file, 0, &pattern(200_000, 1), false).await.unwrap();
        let grow = AttributeChange { size: Some(300_000), ..AttributeChange::default() };
        system.set_attributes(file, &grow).await.unwrap();
        let mut sync: Pending<'_, _> = Box::pin(system.sync_all());
        assert!(starts(&mut sync).await);
        system.write(file, 100_000, &pattern(300_000, 2), false).await.unwrap();
        sync.await.unwrap();
    });
    system = machine.power_cycle(system);
    let bytes = machine.run(async { read_all(&system, find(&system, "f").await.unwrap()).await });
    let expected = [pattern(200_000, 1), vec![0; 100_000]].concat();
    assert!(bytes == expected, "{} bytes", bytes.len());
    machine.check(&system);
}

/// While the content of a unit is stored, somebody makes the directory that one of its files had nowhere to go to.
#[test]
fn a_file_of_a_unit_whose_directory_comes_late_has_its_content() {
    let machine = Machine::new(30);
    let mut system = machine.open();
    let (first, second) = (pattern(300_000, 1), pattern(5000, 2));
    let unit = vec![file("first", &first), file("late/second", &second)];
    machine.run(async {
        let how = BatchWrite::default();
        let mut write: Pending<'_, _> = Box::pin(system.batch_write(FileId::ROOT, unit, &how));
        assert!(starts(&mut write).await);
        create(&system, FileId::ROOT, "late", Kind::Directory).await;
        let report = write.await.unwrap();
        assert!(report.fates.iter().all(Result::is_ok), "{:?}", report.fates);
        system.sync_all().await.unwrap();
    });
    system = machine.power_cycle(system);
    machine.run(async {
        assert!(read_all(&system, find(&system, "late/second").await.unwrap()).await == second);
        assert!(read_all(&system, find(&system, "first").await.unwrap()).await == first);
    });
    machine.check(&system);
}

/// A log is truncated by who rotates it while it is copied.
#[test]
fn what_is_cut_off_a_file_while_it_is_copied_is_no_hole_in_the_copy() {
    let machine = Machine::new(70);
    let system = machine.open();
    machine.run(async {
        // In memory, and in chunks.
        let cuts = [(60_000, 40_000), (60_000, 1000), (60_000, 0), (300_000, 200_000), (300_000, 1000), (300_000, 0)];
        for (number, (length, left)) in cuts.into_iter().enumerate() {
            let bytes = pattern(length, 1);
            let [source, copy] = ["source", "copy"].map(|name| format!("{name}{number}"));
            let source = create(&system, FileId::ROOT, &source, Kind::Regular).await.file;
            let copy = create(&system, FileId::ROOT, &copy, Kind::Regular).await.file;
            system.write(source, 0, &bytes, false).await.unwrap();
            if length > 60_000 {
                system.sync_all().await.unwrap();
            }
            // Whoever works on the target keeps the copy waiting when it knows how much there is.
            let target = system.live(copy).await.unwrap();
            let operation = target.operation.lock().await;
            let mut copying: Pending<'_, _> =
                Box::pin(system.copy_range(Node::live(source), 500, copy, 500, length as u64 - 500));
            assert!(starts(&mut copying).await);
            let smaller = AttributeChange { size: Some(left), ..AttributeChange::default() };
            system.set_attributes(source, &smaller).await.unwrap();
            drop(operation);
            let end = copying.await.unwrap() + 500;
            assert_eq!(end, left.max(500));
            let read = read_all(&system, Node::live(copy)).await;
            assert_eq!(read.len() as u64, if left > 500 { left } else { 0 });
            assert!(read.get(500..).is_none_or(|read| *read == bytes[500..end as usize]));
        }
    });
    machine.check(&system);
}
