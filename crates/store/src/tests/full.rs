//! Disks that fill up.

use base::id::Position;
use bytes::Bytes;
use platform::sim::each_seed;

use super::{Machine, content};
use crate::pack::{PackKnown, PackState};
use crate::{Class, Depth, Options, Store, StoreError};

/// Chunks that do not compress.
fn dense(numbers: std::ops::Range<u64>, length: usize) -> Vec<Bytes> {
    numbers.map(|number| content(number * 2, length)).collect()
}

#[test]
fn a_full_disk_loses_nothing_and_works_again_when_there_is_room() {
    each_seed(0..8, |seed| {
        let machine = Machine::new(seed, 1 + usize::try_from(seed % 2).unwrap(), 40 << 20);
        let (store, _) = machine.open();
        let mut kept = Vec::new();
        machine.run(async {
            let failure = loop {
                let contents = dense(kept.len() as u64..kept.len() as u64 + 10, 90_000);
                match store.put_many(Class::Data, contents.clone()).await {
                    Ok(addresses) => kept.extend(addresses.into_iter().zip(contents)),
                    Err(error) => break error,
                }
                assert!(kept.len() < 2000, "it never fills");
            };
            assert!(matches!(failure, StoreError::Full { .. }), "{failure}");
            // What was accepted can be made durable, and the reserve is enough for metadata, frames and commits.
            store.settle(store.moment()).await.unwrap();
            for round in 0..20_u64 {
                store.put_many(Class::Metadata, dense(5000 + round * 4..5004 + round * 4, 4_000)).await.unwrap();
                let position = store.log(&vec![1; 3_000]);
                store.sync_log(position).await.unwrap();
                store.commit(store.moment(), format!("round {round}").as_bytes(), position).await.unwrap();
            }
            for (address, content) in &kept {
                assert_eq!(store.get(Class::Data, address).await.unwrap(), content);
            }
        });
        drop(store);
        machine.world.restart();
        let (store, recovered) = machine.open();
        assert_eq!(recovered.roots, b"round 19");
        assert_eq!(recovered.report.problems, Vec::<String>::new());
        machine.disks.iter().for_each(|disk| disk.set_capacity(60 << 20));
        machine.run(async {
            for (address, content) in &kept {
                assert_eq!(store.get(Class::Data, address).await.unwrap(), content);
            }
            store.put_many(Class::Data, dense(3000..3050, 90_000)).await.unwrap();
            store.settle(store.moment()).await.unwrap();
            store.commit(store.moment(), b"roomy", store.last_logged()).await.unwrap();
        });
    });
}

/// Nothing that has chunks stays open: reclaim looks at sealed packs alone.
async fn expect_all_sealed(store: &Store) {
    store.packs.seal_all().await;
    let known = store.packs.known();
    let is_left = |known: &&PackKnown| matches!(&known.state, PackState::Open(open) if open.summary().count > 0);
    assert_eq!(known.values().filter(is_left).count(), 0);
}

/// An opening on a full disk leaves a pack as it is, and it is sealed when there is room.
#[test]
fn a_directory_that_found_no_room_at_the_opening_is_written_when_there_is_some() {
    let machine = Machine::new(3, 1, 64 << 20);
    // So many that their directory takes blocks of its own.
    let contents = dense(0..400, 300);
    let (store, _) = machine.open();
    machine.run(async {
        store.put_many(Class::Data, contents.clone()).await.unwrap();
        store.settle(store.moment()).await.unwrap();
    });
    drop(store);
    machine.world.crash();
    machine.world.restart();
    for round in 0..2 {
        let space = machine.disks[0].disk().space().unwrap();
        machine.disks[0].set_capacity(if round == 0 { space.total - space.free } else { 64 << 20 });
        let (store, recovered) = machine.open();
        assert_eq!(recovered.report.packs_cut, 0, "in round {round}");
        // Its room comes while the store is open.
        machine.disks[0].set_capacity(64 << 20);
        machine.run(async {
            for content in &contents {
                assert_eq!(store.get(Class::Data, &store.key().address(content)).await.unwrap(), content);
            }
            assert_eq!(store.check(Depth::Deep, &|_, _| {}).await.problems, Vec::new());
            expect_all_sealed(&store).await;
        });
        drop(store);
        machine.world.restart();
    }
}

/// Somebody else fills the disk to the last block: even the reserve is gone.
#[test]
fn a_disk_that_others_fill_keeps_what_is_on_it() {
    each_seed(0..20, |seed| {
        let machine = Machine::new(seed, 1, 64 << 20);
        let (store, _) = machine.open();
        let contents = dense(0..40, 60_000);
        machine.run(async {
            store.put_many(Class::Data, contents[..20].to_vec()).await.unwrap();
            store.log(b"one");
            store.commit(store.moment(), b"before", Position(1)).await.unwrap();
            let taken = store.space().total - machine.disks[0].disk().space().unwrap().free;
            machine.disks[0].set_capacity(taken + machine.world.below(100_000));
            // Some of these fail, at the append or when they are settled; none may be forgotten if it was accepted.
            let accepted = store.put_many(Class::Metadata, contents[20..].to_vec()).await.is_ok();
            let settled = store.settle(store.moment()).await.is_ok();
            store.log(&vec![2; 100_000]);
            let synced = store.sync_log(Position(2)).await;
            assert!(!matches!(synced, Err(StoreError::ReadOnly { .. })), "full is not broken");
            let _ = store.commit(store.moment(), b"maybe", Position(1)).await;
            machine.disks[0].set_capacity(64 << 20);
            store.settle(store.moment()).await.unwrap();
            store.sync_log(Position(2)).await.unwrap();
            store.commit(store.moment(), b"after", Position(1)).await.unwrap();
            let there = if accepted || settled { 40 } else { 20 };
            for content in &contents[..if accepted { there } else { 20 }] {
                assert_eq!(store.get(Class::Data, &store.key().address(content)).await.unwrap(), content);
            }
            for content in &contents {
                store.put(Class::Data, content).await.unwrap();
            }
            store.settle(store.moment()).await.unwrap();
            expect_all_sealed(&store).await;
        });
        drop(store);
        machine.world.restart();
        let (store, recovered) = machine.open();
        assert_eq!(recovered.roots, b"after");
        assert_eq!(recovered.frames.len(), 1);
        machine.run(async {
            for content in &contents {
                assert_eq!(store.get(Class::Data, &store.key().address(content)).await.unwrap(), content);
            }
        });
    });
}

/// One of two disks fills to the last block while a pack of it is being filled: what it could not take goes to the other, and the pack
/// is sealed with what was durable.
#[test]
fn the_rest_of_a_pack_goes_to_another_disk_and_the_pack_is_sealed() {
    for has_durable in [true, false] {
        let machine = Machine::new(4, 2, 64 << 20);
        let (store, _) = machine.open();
        // Both in one pack.
        let (durable, rest) = (dense(0..5, 60_000), dense(100..105, 60_000));
        machine.run(async {
            if has_durable {
                store.put_many(Class::Data, durable.clone()).await.unwrap();
                store.settle(store.moment()).await.unwrap();
            }
            store.put_many(Class::Data, rest.clone()).await.unwrap();
            let filled = &machine.disks[0];
            let space = filled.disk().space().unwrap();
            filled.set_capacity(space.total - space.free);
            let open_there = |known: &PackKnown| matches!(&known.state, PackState::Open(_)) && known.disks().has(0);
            assert!(store.packs.known().values().any(open_there), "it has something in hand");
            let before = store.counters().chunks_dropped.value();
            store.settle(store.moment()).await.unwrap();
            assert_eq!(store.counters().chunks_dropped.value(), before);
            let stopped: Vec<_> = store.packs.known().into_iter().filter(|(_, known)| open_there(known)).collect();
            assert_eq!(stopped.len(), usize::from(has_durable), "without anything durable it goes");
            for content in &rest {
                let older = store.packs.index.older(&store.key().address(content));
                assert!(older.is_empty(), "what is cut off is nowhere to go back to: {older:?}");
            }
            filled.set_capacity(64 << 20);
            expect_all_sealed(&store).await;
            for (pack, _) in stopped {
                assert!(store.packs.known_pack(pack).unwrap().summary.count > 0, "with what was durable");
            }
            assert_eq!(store.check(Depth::Deep, &|_, _| {}).await.problems, Vec::new());
            store.commit(store.moment(), b"after", store.last_logged()).await.unwrap();
        });
        drop(store);
        machine.world.restart();
        let (store, recovered) = machine.open();
        assert_eq!(recovered.report.problems, Vec::<String>::new());
        machine.run(async {
            for content in durable.iter().filter(|_| has_durable).chain(&rest) {
                assert_eq!(store.get(Class::Data, &store.key().address(content)).await.unwrap(), content);
            }
            assert_eq!(store.check(Depth::Deep, &|_, _| {}).await.problems, Vec::new());
        });
    }
}

/// Of packs that wait for room each is tried, whichever disk has some first.
#[test]
fn packs_that_wait_on_a_full_disk_keep_none_on_another_from_its_room() {
    for first in 0..2 {
        let machine = Machine::new(6, 3, 64 << 20);
        let options = Options { pack_bytes: 32 << 20, ..super::options() };
        let (store, _) = machine.run(Store::open(&machine.world.platform(), &machine.handles(), options)).unwrap();
        let contents = dense(0..140, 60_000);
        let waits_on = |disk| {
            let waits = |known: &PackKnown| matches!(&known.state, PackState::Open(open) if open.is_found());
            store.packs.known().values().filter(|known| waits(known) && known.disks().has(disk)).count()
        };
        machine.run(async {
            store.put_many(Class::Data, contents[..70].to_vec()).await.unwrap();
            store.settle(store.moment()).await.unwrap();
            store.put_many(Class::Data, contents[70..].to_vec()).await.unwrap();
            for filled in &machine.disks[..2] {
                let space = filled.disk().space().unwrap();
                filled.set_capacity(space.total - space.free);
            }
            store.settle(store.moment()).await.unwrap();
            assert_eq!([waits_on(0), waits_on(1), waits_on(2)], [1, 1, 0]);
            machine.disks[first].set_capacity(64 << 20);
            // What the cut frees is no room there.
            machine.disks[1 - first].set_capacity(1 << 20);
            assert!(store.packs.seal_unsealed().await);
            assert_eq!([waits_on(first), waits_on(1 - first)], [0, 1]);
            machine.disks[1 - first].set_capacity(64 << 20);
            expect_all_sealed(&store).await;
            for content in &contents {
                assert_eq!(store.get(Class::Data, &store.key().address(content)).await.unwrap(), content);
            }
        });
    }
}

/// A pack that stopped when the disk was full goes on when there is room: nobody has to settle first.
#[test]
fn what_is_put_after_others_made_room_is_taken() {
    each_seed(20..60, |seed| {
        let machine = Machine::new(seed, 1 + usize::try_from(seed % 2).unwrap(), 64 << 20);
        let (store, _) = machine.open();
        machine.run(async {
            store.put_many(Class::Data, dense(0..20, 60_000)).await.unwrap();
            store.settle(store.moment()).await.unwrap();
            for disk in &machine.disks {
                let space = disk.disk().space().unwrap();
                disk.set_capacity(space.total - space.free + machine.world.below(300_000));
            }
            // Into the reserve, of which there is less than the store thinks.
            let contents = dense(100..200, 60_000);
            let mut failed = false;
            for some in contents.chunks(10) {
                failed |= store.put_many(Class::Metadata, some.to_vec()).await.is_err();
            }
            assert!(failed, "it fits");
            machine.disks.iter().for_each(|disk| disk.set_capacity(64 << 20));
            let addresses = store.put_many(Class::Metadata, contents.clone()).await.unwrap();
            store.settle(store.moment()).await.unwrap();
            for (address, content) in addresses.iter().zip(&contents) {
                assert_eq!(store.get(Class::Metadata, address).await.unwrap(), content);
            }
        });
    });
}

/// Another program fills one of the two disks that each pack needs, and makes room again: nobody has to restart anything.
#[test]
fn a_disk_that_said_it_is_full_is_looked_at_again() {
    let machine = Machine::new(21, 2, 64 << 20);
    let options = Options { copies: 2, ..super::options() };
    let (store, _) = machine.run(Store::open(&machine.world.platform(), &machine.handles(), options)).unwrap();
    machine.run(async {
        store.put_many(Class::Data, dense(0..10, 60_000)).await.unwrap();
        store.settle(store.moment()).await.unwrap();
        let space = machine.disks[0].disk().space().unwrap();
        machine.disks[0].set_capacity(space.total - space.free);
        let mut failed = false;
        for round in 0..40 {
            failed |= store.put_many(Class::Data, dense(10 + round..11 + round, 200_000)).await.is_err();
            failed |= store.put_many(Class::Metadata, dense(200 + round..201 + round, 50_000)).await.is_err();
            failed |= store.settle(store.moment()).await.is_err();
        }
        assert!(failed, "it has no room");
        assert!(matches!(store.put_many(Class::Data, dense(100..101, 60_000)).await, Err(StoreError::Full { .. })));
        machine.disks[0].set_capacity(64 << 20);
        store.put_many(Class::Data, dense(101..110, 60_000)).await.unwrap();
        store.put_many(Class::Metadata, dense(300..310, 6_000)).await.unwrap();
        store.settle(store.moment()).await.unwrap();
    });
}

/// Where writing in place takes room, the disk that has none did not take the superblock, and must not seem to have it.
#[test]
fn a_disk_without_room_for_its_superblock_has_failed() {
    let machine = Machine::new(22, 2, 64 << 20);
    let options = Options { copies: 2, ..super::options() };
    let (store, _) = machine.run(Store::open(&machine.world.platform(), &machine.handles(), options)).unwrap();
    machine.disks[1].truncate("superblock", 0);
    let space = machine.disks[1].disk().space().unwrap();
    machine.disks[1].set_capacity(space.total - space.free);
    machine.run(async {
        store.commit(store.moment(), b"without it", Position(0)).await.unwrap();
        let status = store.status();
        assert_eq!(status.disks[0].health, "good");
        assert!(status.disks[1].health != "good", "it has the old one");
    });
}
