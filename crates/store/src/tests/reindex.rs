//! An index that is damaged while the store works.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use platform::sim::{Faults, SimDisk};

use super::{Machine, content, options, reclaim};
use crate::{Class, Depth, Options, Remedy, Store, StoreError};

const PAGE: usize = 4096;

/// A node with enough chunks of so many bytes that the index is a tree, and what is in it.
fn node(bytes: usize) -> (Machine, Vec<Bytes>) {
    let machine = Machine::new(11, 2, 64 << 20);
    let (store, _) = machine.open();
    let contents: Vec<Bytes> = (0..700).map(|number| content(number, bytes)).collect();
    machine.run(async {
        for some in contents.chunks(100) {
            store.put_many(Class::Data, some.to_vec()).await.unwrap();
            store.commit(store.moment(), b"roots", store.last_logged()).await.unwrap();
        }
        store.close().await.unwrap();
    });
    drop(store);
    machine.world.restart();
    (machine, contents)
}

fn damaged(page: &[u8], how: usize) -> Vec<u8> {
    let mut damaged = page.to_vec();
    match how {
        0 => damaged.fill(0xa5),
        1 => damaged[PAGE / 4..].iter_mut().step_by(97).for_each(|byte| *byte ^= 0x10),
        _ => damaged[64..96].fill(0xff),
    }
    damaged
}

/// X-4, for every page of the file and for some ways to be damaged.
#[test]
fn whatever_page_of_the_index_is_damaged_no_chunk_is_lost() {
    let (machine, contents) = node(600);
    let index = machine.disks[0].snapshot_files()["index"].clone();
    // With bundles.
    let known = machine.open().0.status().index_entries;
    machine.world.restart();
    assert!((700..720).contains(&known), "{known}");
    let mut made_again = 0;
    for (number, page) in index.chunks(PAGE).enumerate() {
        if page.iter().all(|byte| *byte == 0) {
            continue;
        }
        for how in 0..3_usize {
            machine.disks[0].install("index", &index);
            machine.disks[0].corrupt("index", (number * PAGE) as u64, &damaged(page, how));
            let (store, _) = machine.open();
            machine.run(async {
                for content in &contents {
                    let found = store.get(Class::Data, &store.key().address(content)).await;
                    assert_eq!(&found.unwrap(), content, "page {number}, damage {how}");
                }
                let absent = store.key().address(b"never put");
                assert!(matches!(store.get(Class::Data, &absent).await, Err(StoreError::Absent { .. })));
                store.put(Class::Data, b"after").await.unwrap();
                store.commit(store.moment(), b"roots", store.last_logged()).await.unwrap();
            });
            assert!(!store.is_index_doubted());
            made_again += store.counters().index_made_again.value();
            drop(store);
            machine.world.restart();
            let (store, recovered) = machine.open();
            assert_eq!(recovered.report.index_made_again, None, "page {number}, damage {how}: it is whole on disk");
            assert_eq!(store.status().index_entries + store.status().recent_entries, known + 1);
            drop(store);
            machine.world.restart();
        }
    }
    assert!(made_again > 10, "{made_again}");
}

/// A page that a lost write left as it was: places of old are no places.
#[test]
fn an_older_version_of_a_page_of_the_index_loses_nothing() {
    let machine = Machine::new(12, 1, 64 << 20);
    let contents: Vec<Bytes> = (0..700).map(|number| content(number, 6000)).collect();
    let mut versions = Vec::new();
    for _ in 0..2 {
        let (store, _) = machine.open();
        machine.run(async {
            for some in contents.chunks(100) {
                store.put_many(Class::Data, some.to_vec()).await.unwrap();
                store.commit(store.moment(), b"roots", store.last_logged()).await.unwrap();
            }
            store.close().await.unwrap();
            versions.push(machine.disks[0].snapshot_files()["index"].clone());
            // The first chunks are needed: packs go, and what is needed of them moves.
            let live: BTreeSet<_> = contents.iter().step_by(3).map(|content| store.key().address(content)).collect();
            reclaim(&store, &|address| live.contains(address)).await.unwrap();
            store.close().await.unwrap();
        });
        versions.push(machine.disks[0].snapshot_files()["index"].clone());
        drop(store);
        machine.world.restart();
    }
    let newest = versions.pop().unwrap();
    let mut made_again = 0;
    for (number, page) in newest.chunks(PAGE).enumerate() {
        let at = number * PAGE;
        for older in versions.iter().filter_map(|older| older.get(at..at + PAGE)).filter(|older| *older != page) {
            machine.disks[0].install("index", &newest);
            machine.disks[0].corrupt("index", at as u64, older);
            let (store, _) = machine.open();
            machine.run(async {
                for content in contents.iter().step_by(3) {
                    let found = store.get(Class::Data, &store.key().address(content)).await;
                    assert_eq!(&found.unwrap(), content, "page {number}");
                }
            });
            made_again += store.counters().index_made_again.value();
            drop(store);
            machine.world.restart();
        }
    }
    assert!(made_again > 0);
}

fn packs(disk: &SimDisk) -> Vec<String> {
    disk.snapshot_files().into_keys().filter(|path| path.starts_with("packs/")).collect()
}

/// What a read of content comes to that was never put, or is lost.
fn absent(machine: &Machine, store: &Arc<Store>) -> StoreError {
    machine.run(store.get(Class::Data, &store.key().address(b"never put"))).unwrap_err()
}

fn are_there(machine: &Machine, store: &Arc<Store>, contents: &[Bytes]) {
    machine.run(async {
        for content in contents {
            assert_eq!(&store.get(Class::Data, &store.key().address(content)).await.unwrap(), content);
        }
    });
}

/// a pack that gives no answer while the index is made again is no loss, and the old index serves on.
#[test]
fn a_disk_that_gives_no_answer_is_no_loss() {
    let (machine, contents) = node(5000);
    let (store, _) = machine.open();
    let pack = packs(&machine.disks[1]).remove(0);
    machine.disks[1].set_unreadable(&pack, 0..u64::MAX);
    assert!(matches!(absent(&machine, &store), StoreError::Disk(_)));
    machine.disks[1].set_unreadable(&pack, 0..0);
    are_there(&machine, &store, &contents);
    assert!(store.status().disks.iter().all(|disk| disk.is_good), "a read that fails takes no disk out");
    assert!(!store.is_index_doubted());
    assert!(matches!(absent(&machine, &store), StoreError::Disk(_)), "it is made again once");
    machine.run(store.repair(Remedy::Index)).unwrap();
    assert!(matches!(absent(&machine, &store), StoreError::Absent { .. }));
    are_there(&machine, &store, &contents);
}

/// The same while the store is opened: what lies in the pack is unknown until it can be read.
#[test]
fn a_pack_that_an_opening_cannot_read_is_no_loss() {
    let (machine, contents) = node(5000);
    let pack = packs(&machine.disks[1]).remove(0);
    machine.disks[0].remove("index");
    machine.disks[1].set_unreadable(&pack, 0..u64::MAX);
    let (store, recovered) = machine.open();
    assert_eq!(recovered.report.problems.len(), 1, "{:?}", recovered.report.problems);
    let unknown = machine.run(async {
        let mut unknown = 0;
        for content in &contents {
            match store.get(Class::Data, &store.key().address(content)).await {
                Ok(found) => assert_eq!(&found, content),
                Err(StoreError::Disk(_)) => unknown += 1,
                Err(error) => panic!("{error}"),
            }
        }
        unknown
    });
    assert!(unknown > 0);
    machine.disks[1].set_unreadable(&pack, 0..0);
    let number = u64::from_str_radix(&pack["packs/".len()..][..16], 16).unwrap();
    machine.run(store.repair(Remedy::Adopt { disk: 1, pack: number })).unwrap();
    are_there(&machine, &store, &contents);
    assert!(matches!(absent(&machine, &store), StoreError::Absent { .. }));
}

/// No room for another index beside it: the one that there is stays, and works.
#[test]
fn without_room_for_a_new_index_the_old_one_stays() {
    [0, 8 << 10, 40 << 10].into_iter().for_each(the_old_index_stays);
}

fn the_old_index_stays(room: u64) {
    let (machine, contents) = node(600);
    let (store, _) = machine.open();
    let space = machine.disks[0].disk().space().unwrap();
    machine.disks[0].set_capacity(space.total - space.free + room);
    assert!(matches!(absent(&machine, &store), StoreError::Disk(_)));
    let files = machine.disks[0].snapshot_files();
    assert!(files.contains_key("index") && !files.contains_key("index.new"));
    are_there(&machine, &store, &contents);
    machine.disks[0].set_capacity(space.total);
    machine.run(async {
        store.put_many(Class::Data, vec![content(5000, 600)]).await.unwrap();
        store.close().await.unwrap();
    });
    assert!(!store.is_index_doubted());
    assert_eq!(store.status().recent_entries, 0, "the index took it");
    drop(store);
    machine.world.restart();
    let (store, recovered) = machine.open();
    assert_eq!(recovered.report.index_made_again, None);
    are_there(&machine, &store, &contents);
}

/// A damaged index that cannot be made again tells of no loss.
#[test]
fn a_damaged_index_that_cannot_be_made_again_is_no_loss() {
    let (machine, contents) = node(600);
    let index = machine.disks[0].snapshot_files()["index"].clone();
    let mut unknown = 0;
    for (number, page) in index.chunks(PAGE).enumerate() {
        machine.disks[0].install("index", &index);
        machine.disks[0].corrupt("index", (number * PAGE) as u64, &damaged(page, number % 3));
        let (store, _) = machine.open();
        let space = machine.disks[0].disk().space().unwrap();
        machine.disks[0].set_capacity(space.total - space.free);
        machine.run(async {
            for content in &contents {
                match store.get(Class::Data, &store.key().address(content)).await {
                    Ok(found) => assert_eq!(&found, content),
                    Err(StoreError::Disk(_)) => unknown += 1,
                    Err(error) => panic!("page {number}: {error}"),
                }
            }
        });
        machine.disks[0].set_capacity(space.total);
        drop(store);
        machine.world.restart();
    }
    assert!(unknown > 0);
}

/// A read that failed under a look-up is no damage: the next change finds the file as it is, whoever else looked at it in between.
#[test]
fn a_look_up_that_could_not_read_leaves_the_index_to_be_changed() {
    for between in [
        |_: &Store| {},
        |store: &Store| drop(store.packs.index.file().verify_group(0)),
        |store: &Store| {
            drop(store.packs.index.file().packs());
        },
    ] {
        let (machine, contents) = node(600);
        let uncached = Options { index_cache_bytes: 0, ..options() };
        let (store, _) = machine.run(Store::open(&machine.world.platform(), &machine.handles(), uncached)).unwrap();
        let address = store.key().address(&contents[0]);
        machine.disks[0].set_faults(Faults { read_error: 1.0, ..Faults::default() });
        assert!(!store.contains(&address), "nobody can tell");
        machine.disks[0].set_faults(Faults::default());
        between(&store);
        machine.run(async {
            store.put_many(Class::Data, vec![content(9001, 600)]).await.unwrap();
            assert!(store.packs.seal_all().await);
            store.take_into_index().await.unwrap();
        });
        assert!(!store.is_index_doubted());
        assert_eq!(store.counters().index_failures.value(), 0);
        assert!(store.contains(&address));
    }
}

/// X-4, beside the work: who needs a chunk waits for the new index, and nobody else does.
#[test]
fn the_store_works_while_the_index_is_made_again() {
    for seed in 0..10 {
        let (machine, contents) = node(5000 + seed);
        let (store, _) = machine.open();
        // A disk so slow that others finish much meanwhile.
        machine.disks[1].set_faults(Faults { slowness: 10_000, ..Faults::default() });
        let (wanted, is_over) = (store.clone(), Arc::new(AtomicBool::new(false)));
        let over = is_over.clone();
        let search = Box::pin(async move {
            let address = wanted.key().address(b"never put");
            assert!(matches!(wanted.get(Class::Data, &address).await, Err(StoreError::Absent { .. })));
            over.store(true, Ordering::SeqCst);
        });
        let tasks = machine.world.platform().tasks;
        tasks.spawn("search", search);
        machine.run(async {
            tasks.sleep(Duration::from_millis(1)).await;
            machine.disks[1].set_faults(Faults::default());
            for number in 0..4 {
                let new = (0..60).map(|chunk| content(10_000 + number * 100 + chunk * 2, 20_000)).collect();
                store.put_many(Class::Data, new).await.unwrap();
                store.commit(store.moment(), b"meanwhile", store.last_logged()).await.unwrap();
            }
            assert!(!is_over.load(Ordering::SeqCst), "the others did not wait for it");
        });
        machine.world.run_for(Duration::from_secs(3600)).unwrap();
        assert!(is_over.load(Ordering::SeqCst));
        assert_eq!(store.counters().index_made_again.value(), 1);
        are_there(&machine, &store, &contents);
        machine.run(async {
            for number in (0..4).flat_map(|number| (0..60).map(move |chunk| 10_000 + number * 100 + chunk * 2)) {
                let content = content(number, 20_000);
                assert_eq!(store.get(Class::Data, &store.key().address(&content)).await.unwrap(), content);
            }
            store.close().await.unwrap();
        });
        assert_eq!(machine.run(store.check(Depth::Shallow, &|_, _| {})).problems, []);
    }
}

/// A pack that is really gone costs its own chunks, and one search; none, where the opening made the index.
#[test]
fn what_is_lost_is_looked_for_once() {
    for (has_index, searches) in [(true, 1), (false, 0)] {
        look_for_what_is_lost(has_index, searches);
    }
}

fn look_for_what_is_lost(has_index: bool, searches: u64) {
    let (machine, contents) = node(5000);
    machine.disks[0].remove(&packs(&machine.disks[0])[0]);
    if !has_index {
        machine.disks[0].remove("index");
    }
    let (store, _) = machine.open();
    let lost = machine.run(async {
        let mut lost = 0;
        for content in &contents {
            match store.get(Class::Data, &store.key().address(content)).await {
                Ok(found) => assert_eq!(&found, content),
                Err(StoreError::Absent { .. }) => lost += 1,
                Err(error) => panic!("{error}"),
            }
        }
        store.put_many(Class::Data, contents.clone()).await.unwrap();
        store.commit(store.moment(), b"roots", store.last_logged()).await.unwrap();
        lost
    });
    assert!(lost > 0 && lost < contents.len());
    assert_eq!(store.counters().index_made_again.value(), searches);
    assert!(!store.is_index_doubted());
}

/// a disk that gives other bytes at every read loses the index to another, and who reads does not hear of it.
#[test]
fn a_disk_that_lies_loses_the_index_to_another() {
    let machine = Machine::new(12, 3, 64 << 20);
    let open = || {
        let two = Options { copies: 2, ..options() };
        machine.run(Store::open(&machine.world.platform(), &machine.handles(), two)).unwrap().0
    };
    let store = open();
    let contents: Vec<Bytes> = (0..700).map(|number| content(number, 600)).collect();
    machine.run(async {
        store.put_many(Class::Data, contents.clone()).await.unwrap();
        store.commit(store.moment(), b"roots", store.last_logged()).await.unwrap();
        store.close().await.unwrap();
    });
    drop(store);
    machine.world.restart();
    let store = open();
    assert_eq!(store.pool.index_disk(), 0);
    machine.disks[0].set_faults(Faults { flip_read: 1.0, ..Faults::default() });
    are_there(&machine, &store, &contents);
    assert_ne!(store.pool.index_disk(), 0);
    assert!((1..=3).contains(&store.counters().index_made_again.value()));
    machine.disks[0].set_faults(Faults::default());
    machine.run(store.close()).unwrap();
    drop(store);
    machine.world.restart();
    let store = open();
    assert_ne!(store.pool.index_disk(), 0, "the superblock says where it is");
    are_there(&machine, &store, &contents);
    assert_eq!(store.counters().index_made_again.value(), 0);
}
