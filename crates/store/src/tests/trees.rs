//! Trees lie on two disks where there are two, whoever asks for one copy; and want of the second stops nobody (K-14).

use std::sync::Arc;

use bytes::Bytes;
use platform::disk::Disk;
use platform::sim::{Faults, each_seed};

use super::{Machine, content, hurried, options, reclaim};
use crate::{Class, Depth, Options, Store, StoreError};

const ROOM: u64 = 64 << 20;
const TREES: std::ops::Range<u64> = 1000..1100;

fn nodes(numbers: std::ops::Range<u64>) -> Vec<Bytes> {
    numbers.map(|number| content(number * 2, 4000)).collect()
}

fn files(numbers: std::ops::Range<u64>) -> Vec<Bytes> {
    numbers.map(|number| content(number * 2, 30_000)).collect()
}

fn open_on(machine: &Machine, disks: &[Disk]) -> Arc<Store> {
    let options = Options { goes_without_disks: true, cache_bytes: 0, ..options() };
    machine.run(Store::open(&machine.world.platform(), disks, options)).unwrap().0
}

async fn put(store: &Arc<Store>, class: Class, contents: &[Bytes]) -> Result<(), StoreError> {
    for content in contents {
        store.put_many(class, vec![content.clone()]).await?;
    }
    store.settle(store.moment()).await
}

fn is_readable(machine: &Machine, store: &Arc<Store>, class: Class, content: &Bytes) -> bool {
    machine.run(store.get(class, &store.key().address(content))).is_ok_and(|read| read == *content)
}

/// On how many disks the fewest of them lies, and the most.
fn copies(store: &Store, contents: &[Bytes]) -> (usize, usize) {
    let of = |content: &Bytes| {
        let place = store.packs.index.lookup(&store.key().address(content), &store.counters).unwrap().unwrap();
        store.packs.known_pack(place.pack).unwrap().disks().count()
    };
    let all: Vec<usize> = contents.iter().map(of).collect();
    (*all.iter().min().unwrap(), *all.iter().max().unwrap())
}

fn restore(machine: &Machine, store: &Store) -> crate::CopiesReport {
    machine.run(store.restore_copies(&hurried(store), &|_, _| {}))
}

#[test]
fn the_loss_of_any_disk_leaves_every_tree() {
    let (mut gone, mut brought) = (0, 0);
    for lost in 0..3 {
        let machine = Machine::new(lost as u64, 3, ROOM);
        let store = open_on(&machine, &machine.handles());
        let (trees, data) = (nodes(TREES), files(0..60));
        machine.run(async {
            put(&store, Class::Metadata, &trees).await.unwrap();
            put(&store, Class::Data, &data).await.unwrap();
        });
        assert_eq!((copies(&store, &trees), copies(&store, &data)), ((2, 2), (1, 1)));
        machine.disks[lost].set_faults(Faults { is_dead: true, ..Faults::default() });
        assert!(trees.iter().all(|node| is_readable(&machine, &store, Class::Metadata, node)));
        let left = data.iter().filter(|content| is_readable(&machine, &store, Class::Data, content)).count();
        gone += data.len() - left;
        // What is put meanwhile goes to the others, and what lay there is brought to them: then another one may die.
        machine.run(async {
            put(&store, Class::Metadata, &nodes(2000..2100)).await.unwrap();
            store.commit(store.moment(), b"second", store.last_logged()).await.unwrap();
        });
        assert!(!store.status().disks[lost].is_good);
        let report = restore(&machine, &store);
        brought += report.written;
        let next = (lost + 1) % 3;
        machine.disks[next].set_faults(Faults { is_dead: true, ..Faults::default() });
        for node in [trees, nodes(2000..2100)].concat() {
            let read = machine.run(store.get(Class::Metadata, &store.key().address(&node)));
            assert_eq!(read.unwrap(), node);
        }
    }
    assert!(gone > 0 && brought > 0, "{gone} chunks of content lay on one of them, {brought} packs of trees");
}

#[test]
fn a_second_disk_gets_the_trees_and_one_that_is_drained_may_leave_one_alone() {
    let mut machine = Machine::new(7, 1, ROOM);
    let (store, _) = machine.open();
    let trees = nodes(TREES);
    machine.run(put(&store, Class::Metadata, &trees)).unwrap();
    assert!(copies(&store, &trees) == (1, 1) && !store.lacks_copies());
    assert_eq!(store.status().lacking, crate::MissingStatus::default());
    let more = machine.world.disk("/d1", ROOM);
    machine.run(async {
        store.format_disk(&more.disk()).await.unwrap();
        store.take_in_disk(&more.disk()).await.unwrap();
    });
    machine.disks.push(more);
    assert!(store.lacks_copies());
    let report = restore(&machine, &store);
    assert!(report.written > 0 && report.problems.is_empty(), "{report:?}");
    assert!(copies(&store, &trees) == (2, 2) && !store.lacks_copies());
    machine.run(store.close()).unwrap();
    drop(store);
    machine.world.restart();
    let store = open_on(&machine, &[machine.disks[0].disk()]);
    assert!(trees.iter().all(|node| is_readable(&machine, &store, Class::Metadata, node)));
    drop(store);
    machine.world.restart();
    let (store, _) = machine.open();
    let plan = store.drain_plan(0).unwrap();
    assert!(!plan.lowers() && plan.bytes == 0, "{plan:?}");
    machine.run(store.drain_disk(0, true)).unwrap();
    restore(&machine, &store);
    assert!(machine.run(store.is_disk_empty(0)).unwrap() && !store.lacks_copies());
    assert_eq!((copies(&store, &trees), store.status().lacking.packs), ((1, 1), 0));
    let fresh = nodes(2000..2010);
    machine.run(put(&store, Class::Metadata, &fresh)).unwrap();
    assert!(copies(&store, &fresh) == (1, 1) && !store.lacks_copies());
}

/// A small disk beside a large one: when the small one is full the node is not.
#[test]
fn where_one_disk_alone_has_room_trees_lie_there_and_are_told_of() {
    let mut machine = Machine::new(9, 1, ROOM);
    let large = machine.world.disk("/d1", 4 * ROOM);
    let (store, _) = machine.open();
    machine.run(async {
        store.format_disk(&large.disk()).await.unwrap();
        store.take_in_disk(&large.disk()).await.unwrap();
    });
    machine.disks.push(large);
    let before = nodes(TREES);
    machine.run(put(&store, Class::Metadata, &before)).unwrap();
    // Something else fills the small disk to the last byte.
    machine.disks[0].set_capacity(ROOM - machine.disks[0].disk().space().unwrap().free);
    let after: Vec<Bytes> = nodes(2000..6000);
    machine.run(put(&store, Class::Metadata, &after)).unwrap();
    assert_eq!(copies(&store, &before), (2, 2));
    assert_eq!(copies(&store, &after[2000..]), (1, 1));
    assert!(store.space().free > 0, "what the large disk has");
    // A duplicate is one: nothing is stored over and over for want of a second copy.
    let stored = store.status().metadata.chunks;
    machine.run(put(&store, Class::Metadata, &after[2000..2100])).unwrap();
    assert_eq!(store.status().metadata.chunks, stored);
    // Packs are not sealed one after the other for want of a second disk.
    let packs = store.status().metadata.packs;
    assert!(packs < 30, "{packs} packs for {} MiB", (after.len() * 4000) >> 20);
    // That is told, and nobody tries what cannot be.
    assert!(!store.lacks_copies() && store.status().lacking.packs > 0);
    let report = restore(&machine, &store);
    assert!(report.written == 0 && report.problems.is_empty(), "{report:?}");
    assert!(packs == store.status().metadata.packs);
    // Reclaim works meanwhile, and nothing goes that is needed.
    let live: Vec<_> = before.iter().chain(after.iter().step_by(3)).map(|node| store.key().address(node)).collect();
    let live: std::collections::BTreeSet<_> = live.into_iter().collect();
    machine.run(reclaim(&store, &|address| live.contains(address))).unwrap();
    assert!(after.iter().step_by(3).all(|node| is_readable(&machine, &store, Class::Metadata, node)));
    machine.disks[0].set_capacity(ROOM);
    assert!(store.lacks_copies());
    let report = restore(&machine, &store);
    assert!(report.problems.is_empty() && !store.lacks_copies(), "{report:?}");
    assert_eq!(copies(&store, &after.iter().step_by(3).cloned().collect::<Vec<_>>()), (2, 2));
    machine.run(async {
        // The new disk gets its second superblock.
        store.commit(store.moment(), b"second", store.last_logged()).await.unwrap();
        store.renew_root().await.unwrap();
        assert_eq!(store.check(Depth::Deep, &|_, _| {}).await.problems, Vec::new());
    });
}

/// F-7: a second copy that nobody asked for cannot be made, the one that is to stay has rotted, and nobody has read it.
#[test]
fn the_last_whole_copy_of_a_tree_does_not_go_with_its_disk() {
    let mut shown = 0;
    each_seed(0..8, |seed| {
        let machine = Machine::new(seed, 3, ROOM);
        let store = open_on(&machine, &machine.handles());
        let trees = nodes(TREES);
        machine.run(async {
            // Where they begin goes by turns.
            put(&store, Class::Data, &files(0..10 * seed)).await.unwrap();
            put(&store, Class::Metadata, &trees).await.unwrap();
            store.close().await.unwrap();
        });
        drop(store);
        machine.world.restart();
        let has_trees = |disk: &usize| {
            let files = machine.disks[*disk].durable_files();
            // Byte 12 of a pack is its class: 1.
            files.into_iter().find(|(path, bytes)| path.starts_with("packs/") && bytes[12] == 1).map(|(path, _)| path)
        };
        // The journal and the index are on disk 0: nothing else is written to the third one before the copy is.
        let (Some(pack), Some(drained)) = (has_trees(&0), [1, 2].into_iter().find(|disk| has_trees(disk).is_some()))
        else {
            return;
        };
        machine.disks[0].flip_bit(&pack, 5000, 3);
        let store = open_on(&machine, &machine.handles());
        machine.run(store.drain_disk(drained as u64, true)).unwrap();
        let third = 3 - drained;
        machine.disks[third].set_faults(Faults { write_error: 1.0, ..Faults::default() });
        restore(&machine, &store);
        restore(&machine, &store);
        assert!(!store.status().disks[third].is_good && has_trees(&drained).is_none());
        assert!(trees.iter().all(|node| is_readable(&machine, &store, Class::Metadata, node)), "seed {seed}");
        shown += 1;
    });
    assert!(shown > 1, "{shown} of 8");
}
