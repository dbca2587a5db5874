//! Room: what nobody needs is given back, what anybody needs stays, and a full disk loses nothing.

use std::sync::atomic::Ordering;
use std::time::Duration;

use base::id::FileId;
use platform::sim::Faults;

use super::content::pattern;
use super::{Machine, chunk_place, create, find, read_all};
use crate::reclaim::KEPT_OFF_MAX;
use crate::{AttributeChange, FileError, Kind, Node, Share};

#[test]
fn what_is_dropped_comes_back_and_nothing_else_goes() {
    let machine = Machine::new(11);
    let mut system = machine.open();
    let kept = pattern(3_000_000, 20);
    machine.run(async {
        let root = FileId::ROOT;
        let dropped = create(&system, root, "dropped", Kind::Regular).await.file;
        let held = create(&system, root, "held", Kind::Regular).await.file;
        let stays = create(&system, root, "stays", Kind::Regular).await.file;
        system.write(dropped, 0, &pattern(8_000_000, 21), false).await.unwrap();
        system.write(held, 0, &pattern(14_000_000, 22), false).await.unwrap();
        system.write(stays, 0, &kept, false).await.unwrap();
        system.snapshot("moment").await.unwrap();
        system.remove_file(root, b"held").await.unwrap();
        system.delete_snapshot("moment").await.unwrap();
        system.snapshot("later").await.unwrap();
        system.remove_file(root, b"dropped").await.unwrap();
        system.commit().await.unwrap();
        // Journaled and accepted, in no tree yet.
        let fresh = create(&system, root, "fresh", Kind::Regular).await.file;
        system.write(fresh, 0, &pattern(1_000_000, 23), false).await.unwrap();
        system.sync(fresh).await.unwrap();

        let rehearsal = system.reclaim(&crate::Reclaim { is_rehearsal: true, ..Default::default() }).await.unwrap();
        let done = system.reclaim(&crate::Reclaim::default()).await.unwrap();
        assert_eq!(rehearsal.packs_dead, done.packs_dead);
        // "held" is in no view any more; "dropped" is in the snapshot.
        let freed = system.reclaim(&crate::Reclaim::default()).await.unwrap().bytes_freed + done.bytes_freed;
        assert!(freed > 0, "{done:?}");
        assert_eq!(
            read_all(&system, find(&system, ".snapshots/later/dropped").await.unwrap()).await,
            pattern(8_000_000, 21)
        );
    });
    for _ in 0..2 {
        machine.run(async {
            assert!(read_all(&system, find(&system, "stays").await.unwrap()).await == kept);
            assert!(read_all(&system, find(&system, "fresh").await.unwrap()).await == pattern(1_000_000, 23));
        });
        machine.check(&system);
        system = machine.power_cycle(system);
    }
}

/// A crash may take the record that dropped a chunk, and leave the one that names it.
#[test]
fn what_only_a_durable_record_names_stays_until_its_end_is_durable() {
    let machine = Machine::new(14);
    let mut system = machine.open();
    machine.run(async {
        let file = create(&system, FileId::ROOT, "f", Kind::Regular).await.file;
        system.write(file, 0, &pattern(3_000_000, 24), false).await.unwrap();
        system.sync(file).await.unwrap();
        let nothing = AttributeChange { size: Some(0), ..AttributeChange::default() };
        system.set_attributes(file, &nothing).await.unwrap();
        assert!(system.reclaim(&crate::Reclaim::default()).await.unwrap().packs_deleted > 0);
    });
    system = machine.power_cycle(system);
    machine.run(async {
        let found = read_all(&system, find(&system, "f").await.unwrap()).await;
        assert!(found.is_empty() || found == pattern(3_000_000, 24));
    });
    machine.check(&system);
}

#[test]
fn a_full_disk_refuses_and_a_deletion_makes_room() {
    let machine = Machine::new(12);
    machine.disk.set_capacity(160 << 20);
    let mut system = machine.open();
    let root = FileId::ROOT;
    let mut accepted = 0;
    machine.run(async {
        let file = create(&system, root, "big", Kind::Regular).await.file;
        loop {
            match system.write(file, accepted, &pattern(1 << 20, accepted + 1), false).await {
                Ok(()) => accepted += 1 << 20,
                Err(FileError::NoSpace) => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(accepted > 32 << 20, "only {accepted} bytes");
        // All that was accepted fits.
        system.sync(file).await.unwrap();
    });
    system = machine.power_cycle(system);
    machine.run(async {
        let node = find(&system, "big").await.unwrap();
        for offset in (0..accepted).step_by(1 << 20) {
            let mut bytes = vec![0; 1 << 20];
            assert_eq!(system.read(node, offset, &mut bytes).await.unwrap(), 1 << 20);
            assert!(bytes == pattern(1 << 20, offset + 1), "at {offset}");
        }
        system.remove_file(root, b"big").await.unwrap();
        let file = create(&system, root, "next", Kind::Regular).await.file;
        for offset in (0..accepted / 2).step_by(1 << 20) {
            system.write(file, offset, &pattern(1 << 20, offset + 2), false).await.unwrap();
        }
        system.sync(file).await.unwrap();
        assert!(matches!(system.attributes(node).await, Err(FileError::NoEntry)));
        assert_eq!(system.attributes(Node::live(file)).await.unwrap().size, (accepted / 2).next_multiple_of(1 << 20));
    });
    machine.check(&system);
}

/// A pass that fails halfway is tried again, and told of meanwhile.
#[test]
fn a_pass_that_fails_is_still_due() {
    let machine = Machine::new(14);
    let system = machine.open();
    machine.run(async {
        let file = create(&system, FileId::ROOT, "file", Kind::Regular).await.file;
        system.write(file, 0, &pattern(8_000_000, 30), false).await.unwrap();
        system.sync_all().await.unwrap();
        system.commit().await.unwrap();
        system.remove_file(FileId::ROOT, b"file").await.unwrap();
        system.commit().await.unwrap();
    });
    let system = machine.power_cycle(system);
    machine.run(async {
        let file = create(&system, FileId::ROOT, "more", Kind::Regular).await.file;
        system.write(file, 0, &pattern(1_000_000, 31), false).await.unwrap();
        system.sync_all().await.unwrap();
        system.commit().await.unwrap();
        system.remove_file(FileId::ROOT, b"more").await.unwrap();
        system.commit().await.unwrap();
    });
    let dropped = system.dropped_bytes.load(Ordering::Relaxed);
    assert!(dropped > 0);
    machine.disk.set_faults(Faults { write_error: 1.0, ..Faults::default() });
    assert!(machine.run(system.reclaim(&crate::Reclaim::default())).is_err());
    assert_eq!(system.dropped_bytes.load(Ordering::Relaxed), dropped);
    assert!(system.dropped_since_pass.load(Ordering::SeqCst));
}

/// On a full disk a write to a file that is well hears that there is no room, whatever keeps reclaim from going on; and does not have everything
/// walked again each time.
#[test]
fn who_wants_room_does_not_hear_of_what_is_lost_elsewhere() {
    let machine = Machine::new(15);
    machine.disk.set_capacity(160 << 20);
    let system = machine.open();
    let leaf = machine.run(async {
        for number in 0..300 {
            create(&system, FileId::ROOT, &format!("file number {number}"), Kind::Regular).await;
        }
        let kept = create(&system, FileId::ROOT, "kept", Kind::Regular).await.file;
        system.write(kept, 0, &pattern(1 << 20, 1), false).await.unwrap();
        system.snapshot("kept").await.unwrap();
        let snapshot = system.snapshots.lock().values().next().unwrap().clone();
        let mut leaves = Vec::new();
        let mut visit = |address: &_, level| {
            leaves.extend((level == 0).then_some(*address));
            true
        };
        system.trees.walk(&snapshot.catalog, &mut visit, &mut |_, _| Ok(())).await.unwrap();
        // All of them are other ones from now on.
        for number in 0..300 {
            system.remove_file(FileId::ROOT, format!("file number {number}").as_bytes()).await.unwrap();
        }
        system.close().await.unwrap();
        leaves[0]
    });
    drop(system);
    let (path, at) = chunk_place(&machine, &leaf);
    machine.disk.flip_bit(&path, at + 60, 1);
    machine.world.restart();
    let system = machine.open();
    machine.run(async {
        let file = create(&system, FileId::ROOT, "more", Kind::Regular).await.file;
        let (mut refused, mut number) = (0, 0);
        while refused < 20 {
            assert!(number < 1000, "the disk does not fill");
            number += 1;
            match system.write(file, (number % 40) << 20, &pattern(1 << 20, number), false).await {
                Ok(()) => {}
                Err(FileError::NoSpace) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        let failures = system.counters.reclaim_failures.value();
        assert!((1..5).contains(&failures), "{failures} passes");
        assert!(system.status().reclaim_failure.is_some());
    });
}

/// A check of everything may take hours, and keeps passes off meanwhile: who wants room hears that there is none, and has some made afterwards.
#[test]
fn who_wants_room_waits_for_no_check() {
    let machine = Machine::with(72, 192 << 20, crate::Options::default());
    let system = machine.open();
    machine.run(async {
        let root = FileId::ROOT;
        let dropped = create(&system, root, "dropped", Kind::Regular).await.file;
        system.write(dropped, 0, &pattern(40 << 20, 1), false).await.unwrap();
        system.sync_all().await.unwrap();
        system.commit().await.unwrap();
        let kept_off = system.without_passes().await;
        system.remove_file(root, b"dropped").await.unwrap();
        system.commit().await.unwrap();
        let file = create(&system, root, "file", Kind::Regular).await.file;
        let fill = async |from: u64| {
            for number in from..1000 {
                match system.write(file, number << 20, &pattern(1 << 20, number), false).await {
                    Ok(()) => {}
                    Err(FileError::NoSpace) => return number,
                    Err(error) => panic!("{error}"),
                }
            }
            panic!("the disk does not fill")
        };
        let begun = system.platform.clock.elapsed();
        let written = fill(0).await;
        let took = system.platform.clock.elapsed().saturating_sub(begun);
        assert!(KEPT_OFF_MAX < took && took < KEPT_OFF_MAX * 10, "{took:?}");
        assert!(system.counters.room_wait.distribution().count() > 0);
        drop(kept_off);
        assert!(fill(written).await > written + 20, "what was dropped has come back");
        system.sync_all().await.unwrap();
    });
    machine.check(&system);
}

/// Who closes does not wait until everything is checked.
#[test]
fn a_check_ends_when_the_node_is_closed() {
    let machine = Machine::new(73);
    let system = machine.open();
    machine.run(async {
        for number in 0..3000 {
            create(&system, FileId::ROOT, &format!("file {number}"), Kind::Regular).await;
        }
        let last = std::sync::atomic::AtomicU64::new(0);
        let closes = |files| {
            last.store(files, Ordering::SeqCst);
            system.is_stopping.store(true, Ordering::SeqCst);
        };
        let checked = system.check_files(&closes).await;
        assert!(matches!(checked, Err(FileError::Busy(_))), "{checked:?}");
        assert_eq!(last.into_inner(), 1024);
        system.close().await.unwrap();
    });
    machine.check(&machine.power_cycle(system));
}

/// A pass takes a share of the time, and a check waits for its end: not nine times as long as it works.
#[test]
fn a_pass_that_a_check_waits_for_takes_all_the_time() {
    let machine = Machine::new(71);
    let system = machine.open();
    let share = Share::percent(1).expect("a share");
    machine.run(async {
        create(&system, FileId::ROOT, "f", Kind::Regular).await;
        let pass = system.reclaiming.lock().await;
        assert_eq!(system.share_now(share), share);
        let tell = |_| {};
        let mut check = std::pin::pin!(system.check_files(&tell));
        for _ in 0..1000 {
            if system.reclaim_awaited.are_any() {
                break;
            }
            let poll = std::future::poll_fn(|context| std::task::Poll::Ready(check.as_mut().poll(context)));
            assert!(poll.await.is_pending(), "it came between");
            // Others work as well.
            system.platform.tasks.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(system.share_now(share), Share::FULL);
        drop(pass);
        assert_eq!(check.await.unwrap().problems, Vec::new());
        assert_eq!(system.share_now(share), share);
    });
}
