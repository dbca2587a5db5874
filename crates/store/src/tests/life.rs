//! Everyday use, without faults.

use std::time::Duration;

use base::id::Position;
use platform::sim::Faults;
use platform::task::{First, first};

use super::{Machine, content};
use crate::{Class, StoreError};

#[test]
fn what_was_put_logged_and_committed_is_there_after_a_restart() {
    let machine = Machine::new(1, 3, 64 << 20);
    let (store, recovered) = machine.open();
    assert_eq!((&recovered.roots[..], recovered.covered), (&b"first"[..], Position(0)));
    let contents: Vec<_> = (0..200).map(|number| content(number, 20_000)).collect();
    let addresses = machine.run(async {
        let addresses = store.put_many(Class::Data, contents.clone()).await.unwrap();
        assert_eq!(store.put(Class::Metadata, b"tree").await.unwrap(), store.key().address(b"tree"));
        store.settle(store.moment()).await.unwrap();
        store.log(b"one");
        store.log(b"two");
        store.sync_log(store.last_logged()).await.unwrap();
        store.commit(store.moment(), b"second", Position(1)).await.unwrap();
        store.log(b"three");
        store.close().await.unwrap();
        addresses
    });
    let (status, bundles) = (store.status(), store.counters().bundles.value());
    assert!((32..=40).contains(&bundles), "{bundles}: three of a hundred that compress fit one");
    assert_eq!((status.generation, status.covered, status.chunks()), (2, 1, 201 + bundles));
    assert_eq!(status.metadata.chunks, 1);
    assert_eq!(status.index_entries, 201 + bundles, "close gives everything to the index");
    drop(store);
    machine.world.restart();

    let (store, recovered) = machine.open();
    assert_eq!((&recovered.roots[..], recovered.covered), (&b"second"[..], Position(1)));
    let frames: Vec<_> = recovered.frames.iter().map(|(at, frame)| (at.0, &frame[..])).collect();
    assert_eq!(frames, [(2, &b"two"[..]), (3, &b"three"[..])]);
    assert_eq!(recovered.report.problems, Vec::<String>::new());
    assert_eq!(recovered.report.packs_found, 0);
    machine.run(async {
        for (address, content) in addresses.iter().zip(&contents) {
            assert_eq!(store.get(Class::Data, address).await.unwrap(), content);
        }
        assert!(store.contains(&addresses[0]));
        let absent = store.key().address(b"never put");
        assert!(matches!(store.get(Class::Data, &absent).await, Err(StoreError::Absent { .. })));
        assert!(!store.contains(&absent));
    });
}

/// T-2, and L-2 relies on it: who was dropped at a commit goes by the roots before, and so does the next superblock, also where that of the commit was
/// written and its frames were not freed yet.
#[test]
fn the_roots_of_a_commit_that_was_dropped_are_not_in_force() {
    let mut steps = 0;
    while !is_committed_within(Duration::from_micros(200 * steps)) {
        steps += 1;
    }
    assert!(steps > 20, "{steps}");
}

/// Beside somebody who keeps the journal busy.
fn is_committed_within(time: Duration) -> bool {
    let machine = Machine::new(6, 1, 64 << 20);
    let (store, _) = machine.open();
    machine.disks[0].set_faults(Faults { latency: Duration::from_millis(3), ..Faults::default() });
    let is_committed = machine.run(async {
        let logs = async {
            loop {
                store.sync_log(store.log(b"frame")).await.unwrap();
            }
        };
        let commit = first(store.commit(store.moment(), b"second", Position(0)), Box::pin(logs));
        let is_committed = match first(commit, store.platform.tasks.sleep(time)).await {
            First::Left(First::Left(committed)) => committed.is_ok(),
            First::Left(First::Right(never)) => never,
            First::Right(()) => false,
        };
        store.renew_root().await.unwrap();
        is_committed
    });
    drop(store);
    machine.world.restart();
    let (_, recovered) = machine.open();
    let expected: &[u8] = if is_committed { b"second" } else { b"first" };
    assert_eq!(recovered.roots, expected, "dropped after {time:?}");
    is_committed
}

#[test]
fn equal_content_is_stored_once() {
    let machine = Machine::new(2, 2, 64 << 20);
    let (store, _) = machine.open();
    let contents: Vec<_> = (0..100).map(|number| content(number % 50, 9_000)).collect();
    machine.run(async {
        // First what lies on both disks: to who asks for one it is there.
        store.put_many(Class::Metadata, contents.clone()).await.unwrap();
        store.close().await.unwrap();
        store.put_many(Class::Metadata, contents.clone()).await.unwrap();
        store.put_many(Class::Data, contents.clone()).await.unwrap();
    });
    assert_eq!(store.status().chunks(), 50 + store.counters().bundles.value());
    assert_eq!(store.counters().chunks_duplicate.value(), 250);
    assert_eq!(store.counters().new_bytes.value(), 50 * 9_000);
    assert!(store.counters().stored_bytes.value() < 40 * 9_000, "half of them compress");
}

#[test]
fn too_large_is_refused() {
    let machine = Machine::new(3, 1, 64 << 20);
    let (store, _) = machine.open();
    machine.run(async {
        let large = vec![0; base::limits::CHUNK_BYTES_MAX + 1];
        assert!(matches!(store.put(Class::Data, &large).await, Err(StoreError::TooLarge { .. })));
        store.put(Class::Data, &large[1..]).await.unwrap();
        let roots = vec![0; crate::ROOTS_BYTES_MAX + 1];
        assert!(matches!(store.commit(store.moment(), &roots, Position(0)).await, Err(StoreError::TooLarge { .. })));
        store.commit(store.moment(), &roots[1..], Position(0)).await.unwrap();
    });
}

#[test]
fn many_tasks_share_one_sync() {
    let machine = Machine::new(4, 1, 64 << 20);
    let (store, _) = machine.open();
    let done = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    for _ in 0..50 {
        let (store, done) = (store.clone(), done.clone());
        let task = async move {
            let position = store.log(b"frame");
            store.sync_log(position).await.unwrap();
            assert!(store.last_durable() >= position);
            done.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        };
        machine.world.platform().tasks.spawn("logger", Box::pin(task));
    }
    machine.world.run_for(std::time::Duration::from_secs(1)).unwrap();
    assert_eq!(done.load(std::sync::atomic::Ordering::SeqCst), 50);
    let syncs = store.counters().log_sync_frames.distribution().count();
    assert!(syncs <= 5, "{syncs} syncs for 50 frames");
}

/// Of new content a store knows without the index file that it is new, also of what lies in the file since before it was opened; and it
/// finds every duplicate, those that are put while the filter is being filled too.
#[test]
fn what_is_new_is_known_without_the_index_file() {
    let machine = Machine::new(90, 1, 1 << 30);
    let group = |from: u64| (from..from + 500).map(|number| content(number, 300)).collect::<Vec<_>>();
    for life in 0..4 {
        let (store, _) = machine.open();
        machine.run(async {
            let before = store.counters().new_bytes.value();
            for of in 0..=life {
                store.put_many(Class::Data, group(of * 500)).await.unwrap();
            }
            assert_eq!(store.counters().new_bytes.value() - before, 500 * 300, "the last group alone is new");
            // Whoever fills it has done so, or has gone.
            machine.world.platform().tasks.sleep(Duration::from_secs(60)).await;
            let looked = store.counters().index_lookups.value();
            store.put_many(Class::Data, group(1_000_000 + life * 500)).await.unwrap();
            let looked = store.counters().index_lookups.value() - looked;
            assert!(looked < 50, "{looked} of 500");
            store.close().await.unwrap();
        });
    }
}
