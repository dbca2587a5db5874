//! Reading again what is stored: what is found, what was checked when, and what is remembered of it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;

use super::check::{node_of, pack};
use super::{Machine, content};
use crate::format::{SUPERBLOCK_FILE, Superblock};
use crate::{Class, Depth, Pace, Remedy, ScrubReport, Share, Store};

const HOUR: Duration = Duration::from_secs(3600);

fn scrub(machine: &Machine, store: &Store, older_than: Duration) -> ScrubReport {
    let pace = Pace::new(&store.platform, &|| Share::FULL, &|| true);
    machine.run(store.scrub(older_than, &pace, &|done, total| assert!(done <= total)))
}

fn sleep(machine: &Machine, store: &Store, time: Duration) {
    machine.run(store.platform.tasks.sleep(time));
}

#[test]
fn what_was_read_is_young_again_and_a_restart_remembers_it() {
    let (machine, _) = node_of(5, 60, 30_000);
    let (store, _) = machine.open();
    sleep(&machine, &store, 10 * HOUR);
    let bytes = store.scrub_status().bytes;
    assert!(bytes > 500_000, "{bytes}");
    assert_eq!(store.scrub_status().oldest, 10 * HOUR);
    assert_eq!(store.scrub_plan(11 * HOUR).packs, 0);
    assert_eq!(scrub(&machine, &store, 11 * HOUR).packs, 0);
    let plan = store.scrub_plan(9 * HOUR);
    let report = scrub(&machine, &store, 9 * HOUR);
    assert_eq!((report.packs, report.chunks, report.is_complete), (plan.packs, 60, true));
    assert_eq!(plan.bytes, bytes);
    assert_eq!(store.scrub_status().oldest, Duration::ZERO);
    // Nothing else was changed since, and no end that is clean.
    drop(store);
    machine.world.crash();
    machine.world.restart();
    let (store, _) = machine.open();
    sleep(&machine, &store, HOUR);
    let status = store.scrub_status();
    assert_eq!((status.oldest, status.packs_unknown), (HOUR, 0));
}

#[test]
fn an_index_that_is_made_again_knows_of_no_check_and_scrub_begins_there() {
    let (machine, _) = node_of(6, 60, 30_000);
    machine.disks[0].install("index", b"rot");
    let (store, _) = machine.open();
    let status = store.scrub_status();
    assert_eq!((status.packs_unknown, status.bytes_unknown), (1, status.bytes));
    assert_eq!(scrub(&machine, &store, 1000 * HOUR).packs, 1, "older than anything");
    assert_eq!(store.scrub_status().packs_unknown, 0);
}

#[test]
fn a_rotten_byte_is_told_until_it_is_mended() {
    let (machine, contents) = node_of(7, 60, 30_000);
    let (store, _) = machine.open();
    machine.disks[0].flip_bit(&pack(&machine.disks[0]).0, 5000, 7);
    sleep(&machine, &store, HOUR);
    let report = scrub(&machine, &store, HOUR);
    assert_eq!(report.problems.len(), 1);
    assert_eq!(report.problems[0].code, "HF0007");
    assert_eq!(store.scrub_status().damaged.len(), 1);
    assert_eq!(store.scrub_status().oldest, HOUR, "V-2");
    assert_eq!(scrub(&machine, &store, HOUR).problems.len(), 1, "V-2");
    let Some(Remedy::Pack { pack }) = report.problems[0].remedy else { panic!("{report:?}") };
    machine.run(async {
        // Who has the content brings it back.
        store.put_many(Class::Data, contents.clone()).await.unwrap();
        store.repair(Remedy::Pack { pack }).await.unwrap();
    });
    assert_eq!(store.scrub_status().damaged, Vec::<String>::new());
    assert_eq!(scrub(&machine, &store, Duration::ZERO).problems, Vec::new());
    assert_eq!(machine.run(store.check(Depth::Deep, &|_, _| {})).problems, Vec::new());
}

/// Content that is put, and packs that reclaim removes, while they are read again.
#[test]
fn writers_and_reclaim_beside_it_are_no_problem() {
    for seed in 0..20 {
        let (machine, _) = node_of(100 + seed, 60, 30_000);
        let (store, _) = machine.open();
        let told = Mutex::new(0);
        let report = machine.run(async {
            let pace = Pace::new(&store.platform, &|| Share::DEFAULT, &|| true);
            let tell = |_, _| *told.lock() += 1;
            let mut scrub = pin!(store.scrub(Duration::ZERO, &pace, &tell));
            let mut work = pin!(async {
                for number in 0..40 {
                    store.put(Class::Data, &content(1000 + number, 30_000)).await.unwrap();
                    if number % 8 == 0 {
                        store.settle(store.moment()).await.unwrap();
                        store.commit(store.moment(), b"roots", store.last_logged()).await.unwrap();
                        super::reclaim(&store, &|address| address.0[0] % 3 == 0).await.unwrap();
                    }
                }
            });
            let (mut report, mut is_worked) = (None, false);
            poll_fn(|context| {
                if report.is_none()
                    && let Poll::Ready(done) = scrub.as_mut().poll(context)
                {
                    report = Some(done);
                }
                is_worked = is_worked || work.as_mut().poll(context).is_ready();
                if is_worked && report.is_some() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            report.expect("it is over")
        });
        assert_eq!(report.problems, Vec::new(), "seed {seed}");
        assert!(*told.lock() > 0);
        assert_eq!(store.scrub_status().damaged, Vec::<String>::new());
    }
}

/// V-3, for every page of the index that is in use and a few that are not.
#[test]
fn what_rotted_in_the_index_is_found_and_it_is_made_again() {
    let (machine, contents) = node_of(12, 700, 600);
    let index = machine.disks[0].snapshot_files()["index"].clone();
    for (number, page) in index.chunks(4096).enumerate().skip(2) {
        machine.disks[0].install("index", &index);
        let (store, recovered) = machine.open();
        assert_eq!(recovered.report.index_made_again, None);
        let is_written = page.iter().any(|byte| *byte != 0);
        machine.disks[0].flip_bit("index", number as u64 * 4096 + 1000, 3);
        assert_eq!(scrub(&machine, &store, Duration::ZERO).problems, Vec::new());
        assert_eq!(store.counters().index_made_again.value(), 1, "page {number}, written: {is_written}");
        assert!(!store.is_index_doubted() && !store.lacks_copies());
        machine.run(async {
            for content in &contents {
                assert_eq!(store.get(Class::Data, &store.key().address(content)).await.unwrap(), content);
            }
        });
        assert_eq!(machine.run(store.check(Depth::Deep, &|_, _| {})).problems, Vec::new());
        drop(store);
        machine.world.restart();
    }
}

/// The codes of what a scrub mended.
fn mended(machine: &Machine, store: &Store) -> Vec<&'static str> {
    let report = scrub(machine, store, Duration::ZERO);
    assert_eq!(report.problems, Vec::new());
    report.mended.iter().map(|problem| problem.code).collect()
}

#[test]
fn who_a_disk_is_is_written_again_where_it_rotted() {
    for (path, code) in [("disk", "HF0003"), ("disk.copy", "HF0018")] {
        let (machine, _) = node_of(13, 60, 30_000);
        let (store, _) = machine.open();
        let before = machine.disks[0].durable_files()[path].clone();
        machine.disks[0].flip_bit(path, 33, 2);
        assert_eq!(mended(&machine, &store), [code]);
        assert_eq!(machine.disks[0].durable_files()[path], before);
        assert_eq!(mended(&machine, &store), Vec::<&str>::new());
    }
}

#[test]
fn superblocks_are_written_again_where_they_rotted() {
    for slots in [&[0][..], &[1], &[0, 1]] {
        let (machine, _) = node_of(14, 60, 30_000);
        let (store, _) = machine.open();
        for slot in slots {
            machine.disks[0].flip_bit(SUPERBLOCK_FILE, Superblock::offset(*slot) + 40, 2);
        }
        let found = mended(&machine, &store);
        // The slot before the newest one is behind, too.
        let count = found.iter().filter(|code| **code == "HF0001").count();
        assert!(count == slots.len() && found.iter().all(|code| ["HF0001", "HF0002"].contains(code)), "{found:?}");
        assert_eq!(machine.run(store.check(Depth::Shallow, &|_, _| {})).problems, Vec::new());
        assert_eq!(store.counters().scrub_mended.value(), found.len() as u64);
        drop(store);
        machine.world.crash();
        machine.world.restart();
        let (store, recovered) = machine.open();
        assert_eq!((recovered.report.mended, mended(&machine, &store)), (Vec::new(), Vec::new()));
    }
}

/// Where another disk is mounted in the place of one of ours nothing is written, and that is told.
#[test]
fn another_disk_in_the_place_of_one_is_left_alone() {
    let [(machine, _), (other, _)] = [16, 17].map(|seed| node_of(seed, 60, 30_000));
    let (store, _) = machine.open();
    let files = other.disks[0].durable_files();
    for path in ["disk", "disk.copy", SUPERBLOCK_FILE] {
        machine.disks[0].install(path, &files[path]);
    }
    let report = scrub(&machine, &store, Duration::ZERO);
    assert_eq!(report.mended, Vec::new());
    let codes: Vec<&str> = report.problems.iter().map(|problem| problem.code).collect();
    assert_eq!(codes[..2], ["HF0003", "HF0018"]);
    for path in ["disk", "disk.copy", SUPERBLOCK_FILE] {
        assert!(machine.disks[0].durable_files()[path] == files[path], "{path}");
    }
}
