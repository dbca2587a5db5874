//! What nobody needs goes, what somebody needs stays.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::id::ChunkAddress;
use bytes::Bytes;
use platform::sim::each_seed;

use super::{Machine, content, hurried, reclaim, sweep};
use crate::format::{ChunkHeader, PackHeader, pack_path};
use crate::{Class, Depth, Store, StoreError, Sweep};

fn contents() -> Vec<Bytes> {
    (0..150).map(|number| content(number * 2, 30_000)).collect()
}

async fn check_live(store: &Arc<Store>, contents: &[Bytes], live: &BTreeSet<ChunkAddress>) {
    for content in contents {
        let address = store.key().address(content);
        match store.read(&address).await {
            Ok(found) => assert_eq!(found, content),
            Err(error) => assert!(!live.contains(&address) && matches!(error, StoreError::Absent { .. }), "{error}"),
        }
    }
}

#[test]
fn dead_packs_go_and_sparse_ones_are_compacted() {
    let machine = Machine::new(1, 2, 64 << 20);
    let (store, _) = machine.open();
    let contents = contents();
    machine.run(async {
        let addresses = store.put_many(Class::Data, contents.clone()).await.unwrap();
        let tree = store.put(Class::Metadata, b"tree").await.unwrap();
        store.commit(store.moment(), b"roots", store.last_logged()).await.unwrap();
        // Every eighth is needed, and one of those that are not is put again meanwhile.
        let mut live: BTreeSet<_> = addresses.iter().step_by(8).copied().chain([tree]).collect();
        let mut marks = store.begin_mark(true).await.unwrap();
        marks.keep(&|address| live.contains(address), &hurried(&store)).await;
        let plan = sweep(&store, marks, &|| true).await.unwrap();
        assert_eq!((plan.packs_deleted, plan.problems.len()), (0, 0));
        // The packs are brought to their end here.
        let mut marks = store.begin_mark(false).await.unwrap();
        store.put(Class::Data, &contents[1]).await.unwrap();
        live.remove(&addresses[1]);
        for address in &live {
            // Twice, and a few at a time.
            marks.add(address);
            marks.add(address);
            if address.0[0] % 4 == 0 {
                marks.sort_in(&hurried(&store)).await;
            }
        }
        live.insert(addresses[1]);
        let free = store.space().free;
        let report = sweep(&store, marks, &|| true).await.unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        assert!(report.packs_deleted >= 3, "{report:?}");
        assert!(report.bytes_copied >= 15 * 30_000 && report.bytes_freed > 4_000_000, "{report:?}");
        assert!(store.space().free > free + 3_000_000);
        check_live(&store, &contents, &live).await;
        assert_eq!(store.check(Depth::Deep, &|_, _| {}).await.problems, Vec::new());
        // What was dropped is new when it comes again.
        store.put_many(Class::Data, contents.clone()).await.unwrap();
        check_live(&store, &contents, &addresses.iter().copied().collect()).await;
        store.close().await.unwrap();
        assert_eq!(store.check(Depth::Deep, &|_, _| {}).await.problems, Vec::new());
    });
}

#[test]
fn a_power_cut_during_reclaim_costs_nothing() {
    let contents = contents();
    each_seed(0..60, |seed| {
        let machine = Machine::new(seed, 1 + usize::try_from(seed % 2).unwrap(), 64 << 20);
        let (store, _) = machine.open();
        let mut live = BTreeSet::new();
        machine.run(async {
            let addresses = store.put_many(Class::Data, contents.clone()).await.unwrap();
            store.commit(store.moment(), b"roots", store.last_logged()).await.unwrap();
            live.extend(addresses.iter().step_by(7));
            machine.world.cut_power_at(machine.world.operations() + 1 + seed * 2);
            let _ = reclaim(&store, &|address| live.contains(address)).await;
        });
        drop(store);
        machine.world.restart();
        let (store, recovered) = machine.open();
        assert_eq!((&recovered.roots[..], recovered.report.problems.len()), (&b"roots"[..], 0));
        machine.run(async {
            check_live(&store, &contents, &live).await;
            let report = reclaim(&store, &|address| live.contains(address)).await.unwrap();
            assert_eq!(report.problems, Vec::<String>::new());
            check_live(&store, &contents, &live).await;
            store.close().await.unwrap();
            assert_eq!(store.check(Depth::Deep, &|_, _| {}).await.problems, Vec::new());
        });
        let stored = store.status().data.content_bytes;
        assert!(stored < 2 * live.len() as u64 * 30_000, "{stored} bytes for {} chunks", live.len());
    });
}

#[test]
fn a_full_disk_has_room_again() {
    let machine = Machine::new(3, 1, 40 << 20);
    let (store, _) = machine.open();
    machine.run(async {
        let mut count = 0;
        while store.put(Class::Data, &content(count * 2, 100_000)).await.is_ok() {
            count += 1;
        }
        let kept = store.key().address(&content(0, 100_000));
        let report = reclaim(&store, &|address| *address == kept).await.unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        for number in 0..count - 20 {
            store.put(Class::Data, &content(number * 2, 100_000)).await.unwrap();
        }
        store.settle(store.moment()).await.unwrap();
    });
}

/// L-4: the older copy of a chunk stays when the pack that the index names is missing.
#[test]
fn a_copy_is_not_given_up_for_one_that_is_missing() {
    let machine = Machine::new(4, 1, 64 << 20);
    let contents = contents();
    let (store, _) = machine.open();
    let needed = store.key().address(&contents[0]);
    let place = |store: &Store| store.packs.index.lookup(&needed, &store.counters).unwrap().unwrap().pack;
    let first = machine.run(async {
        store.put_many(Class::Data, contents[..20].to_vec()).await.unwrap();
        store.commit(store.moment(), b"roots", store.last_logged()).await.unwrap();
        store.packs.seal_all().await;
        let first = place(&store);
        // It could not be read for a moment: the same content is stored anew.
        store.packs.doubt(needed);
        store.put(Class::Data, &contents[0]).await.unwrap();
        store.close().await.unwrap();
        first
    });
    let named = place(&store);
    assert_ne!(named, first);
    drop(store);
    machine.world.restart();
    assert!(machine.disks[0].remove(&crate::format::pack_path(named)));
    let (store, _) = machine.open();
    machine.run(async {
        reclaim(&store, &|address| *address == needed).await.unwrap();
        assert_eq!(store.get(Class::Data, &needed).await.unwrap(), contents[0]);
    });
}

/// A node whose first pack was full, and where one chunk of it was put again later: the contents, the chunk, and the pack that the index
/// names for it, and the one of old.
pub(super) fn put_twice(seed: u64) -> (Machine, Vec<Bytes>, u64, u64) {
    let machine = Machine::new(seed, 1, 64 << 20);
    let contents = contents();
    let (store, _) = machine.open();
    let needed = store.key().address(&contents[0]);
    let place = || store.packs.index.lookup(&needed, &store.counters).unwrap().unwrap().pack;
    let (first, second) = machine.run(async {
        store.put_many(Class::Data, contents[..20].to_vec()).await.unwrap();
        store.commit(store.moment(), b"roots", store.last_logged()).await.unwrap();
        store.packs.seal_all().await;
        let first = place();
        store.packs.doubt(needed);
        store.put(Class::Data, &contents[0]).await.unwrap();
        store.close().await.unwrap();
        (first, place())
    });
    assert_ne!(first, second);
    drop(store);
    machine.world.restart();
    (machine, contents, second, first)
}

/// One byte of the first chunk of a pack rots, its header does not.
pub(super) fn rot_first_chunk(machine: &Machine, pack: u64) {
    let at = PackHeader::BYTES + ChunkHeader::BYTES + 100;
    machine.disks[0].flip_bit(&pack_path(pack), at as u64, 0);
}

/// L-4: the older copy of a chunk stays when the one that the index names has rotted.
#[test]
fn a_copy_is_not_given_up_for_one_that_rotted() {
    let (machine, contents, named, _) = put_twice(4);
    rot_first_chunk(&machine, named);
    let (store, _) = machine.open();
    let needed = store.key().address(&contents[0]);
    machine.run(async {
        reclaim(&store, &|address| *address == needed).await.unwrap();
        assert_eq!(store.get(Class::Data, &needed).await.unwrap(), contents[0]);
    });
}

/// a chunk that nobody needs lies in a pack that stays, and in one that goes, where the index names it.
#[test]
fn a_copy_in_a_pack_that_stays_is_named_when_the_named_one_goes() {
    for how in ["as it was written", "made again by an opening", "made again beside the work"] {
        let (machine, contents, second, first) = put_twice(7);
        if how == "made again by an opening" {
            machine.disks[0].remove("index");
        }
        let (store, _) = machine.open();
        let twice = store.key().address(&contents[0]);
        let place = |store: &Store| store.packs.index.lookup(&twice, &store.counters).unwrap().unwrap().pack;
        machine.run(async {
            if how == "made again beside the work" {
                store.remake_index(&|| true).await.unwrap();
            }
            assert_eq!(place(&store), second, "{how}");
            let live: BTreeSet<_> = contents[1..20].iter().map(|content| store.key().address(content)).collect();
            let report = reclaim(&store, &|address| live.contains(address)).await.unwrap();
            assert_eq!((report.packs_deleted, report.problems.len()), (1, 0), "{how}");
            assert_eq!(place(&store), first, "{how}");
            store.close().await.unwrap();
        });
        drop(store);
        machine.world.restart();
        let (store, _) = machine.open();
        machine.run(async {
            assert_eq!(store.check(Depth::Deep, &|_, _| {}).await.problems, Vec::new(), "{how}");
            store.put(Class::Data, &contents[0]).await.unwrap();
            assert_eq!(store.counters().chunks_duplicate.value(), 1, "{how}: it is not stored again");
            assert_eq!(store.get(Class::Data, &twice).await.unwrap(), contents[0], "{how}");
        });
    }
}

/// a copy that rotted is no heir, for the next put would rely on it.
#[test]
fn a_rotten_copy_is_not_named_when_the_named_one_goes() {
    let (machine, contents, _, first) = put_twice(8);
    rot_first_chunk(&machine, first);
    let (store, _) = machine.open();
    machine.run(async {
        let live: BTreeSet<_> = contents[1..20].iter().map(|content| store.key().address(content)).collect();
        let report = reclaim(&store, &|address| live.contains(address)).await.unwrap();
        assert_eq!((report.packs_deleted, report.problems.len()), (1, 0));
        let address = store.put(Class::Data, &contents[0]).await.unwrap();
        assert_eq!(store.get(Class::Data, &address).await.unwrap(), contents[0]);
    });
}

/// X-5, O-5: a copy that could not be read when its pack was taken in is no worse than others later.
#[test]
fn a_copy_that_was_not_to_be_named_is_not_forgotten() {
    let machine = Machine::new(9, 1, 64 << 20);
    let contents = contents();
    let (store, _) = machine.open();
    let twice = store.key().address(&contents[0]);
    machine.run(async {
        store.put(Class::Data, &contents[0]).await.unwrap();
        store.commit(store.moment(), b"roots", store.last_logged()).await.unwrap();
        store.packs.seal_all().await;
        store.packs.doubt(twice);
        store.put_many(Class::Data, contents[..20].to_vec()).await.unwrap();
        store.close().await.unwrap();
    });
    let place = |store: &Store| store.packs.index.lookup(&twice, &store.counters).unwrap().unwrap().pack;
    let second = place(&store);
    drop(store);
    machine.world.restart();
    machine.disks[0].remove("index");
    rot_first_chunk(&machine, second);
    let (store, _) = machine.open();
    // A bit that flips back is what a cable does.
    rot_first_chunk(&machine, second);
    let first = place(&store);
    assert_ne!(first, second);
    machine.run(async {
        let live: BTreeSet<_> = contents[1..20].iter().map(|content| store.key().address(content)).collect();
        let report = reclaim(&store, &|address| live.contains(address)).await.unwrap();
        assert_eq!((report.packs_deleted, report.problems.len()), (1, 0));
        assert_eq!(place(&store), second);
        assert_eq!(store.check(Depth::Deep, &|_, _| {}).await.problems, Vec::new());
    });
}

/// O-5: a pack that reclaim emptied and had no time to remove holds a rotten copy of what lies elsewhere.
#[test]
fn a_rotten_copy_that_comes_back_hides_no_better_one() {
    for step in 1.. {
        let (machine, contents, _, old) = put_twice(5);
        rot_first_chunk(&machine, old);
        let (store, _) = machine.open();
        let needed = store.key().address(&contents[0]);
        let live = |address: &ChunkAddress| *address == needed;
        machine.run(async {
            machine.world.cut_power_at(machine.world.operations() + step);
            let _ = reclaim(&store, &live).await;
        });
        let is_whole = machine.world.is_powered();
        drop(store);
        machine.world.restart();
        let (store, _) = machine.open();
        machine.run(async {
            assert_eq!(store.get(Class::Data, &needed).await.unwrap(), contents[0], "cut at {step}");
            let report = reclaim(&store, &live).await.unwrap();
            assert_eq!(report.problems, Vec::<String>::new(), "cut at {step}");
            assert_eq!(store.get(Class::Data, &needed).await.unwrap(), contents[0], "cut at {step}, reclaimed");
        });
        if is_whole {
            assert!(step > 10, "{step}");
            break;
        }
    }
}

/// O-5: whichever of two copies rotted, an index that is made from the packs names the other.
#[test]
fn an_opening_names_the_copy_that_is_good() {
    for is_older in [false, true] {
        let (machine, contents, new, old) = put_twice(6);
        rot_first_chunk(&machine, if is_older { old } else { new });
        machine.disks[0].remove("index");
        let (store, _) = machine.open();
        let needed = store.key().address(&contents[0]);
        assert_eq!(machine.run(store.get(Class::Data, &needed)).unwrap(), contents[0], "{is_older}");
    }
}

/// a copy is as good as the one that is named, and is read where that one rotted.
#[test]
fn a_rotten_chunk_is_read_where_another_copy_lies() {
    for is_older in [false, true] {
        let (machine, contents, new, old) = put_twice(10);
        rot_first_chunk(&machine, if is_older { old } else { new });
        let (store, _) = machine.open();
        let needed = store.key().address(&contents[0]);
        assert_eq!(machine.run(store.get(Class::Data, &needed)).unwrap(), contents[0], "{is_older}");
        assert_eq!(store.counters.other_copies.value(), u64::from(!is_older));
        // It is no duplicate (T-3): what is put again is named, and read.
        machine.run(async {
            store.put(Class::Data, &contents[0]).await.unwrap();
            assert_eq!(store.get(Class::Data, &needed).await.unwrap(), contents[0], "{is_older}");
        });
    }
}

/// A pack that leaves the index goes a moment later: who looks in between tells nothing.
#[test]
fn a_check_between_the_index_and_the_pack_tells_nothing() {
    let machine = Machine::new(11, 1, 64 << 20);
    let (store, _) = machine.open();
    machine.run(async {
        let addresses = store.put_many(Class::Data, contents()).await.unwrap();
        store.commit(store.moment(), b"roots", store.last_logged()).await.unwrap();
        store.packs.seal_all().await;
        store.commit(store.moment(), b"again", store.last_logged()).await.unwrap();
        let place = store.packs.index.lookup(&addresses[0], &store.counters).unwrap().unwrap();
        store.packs.condemned.write().insert(place.pack);
        store.forget_in_index(vec![(place.pack, addresses)]).await.unwrap();
        assert_eq!(store.check(Depth::Deep, &|_, _| {}).await.problems, Vec::new());
        store.packs.condemned.write().clear();
        assert!(!store.check(Depth::Deep, &|_, _| {}).await.problems.is_empty());
    });
}

/// A store that is about to stop does not wait for the whole pass.
#[test]
fn a_pass_ends_early_when_told() {
    let machine = Machine::new(6, 1, 64 << 20);
    let (store, _) = machine.open();
    machine.run(async {
        store.put_many(Class::Data, contents()).await.unwrap();
        store.commit(store.moment(), b"roots", store.last_logged()).await.unwrap();
        let asked = AtomicU64::new(0);
        let marks = store.begin_mark(false).await.unwrap();
        let report = sweep(&store, marks, &|| asked.fetch_add(1, Ordering::SeqCst) < 2).await.unwrap();
        assert_eq!((report.packs_examined, report.packs_deleted), (2, 2));
        let report = reclaim(&store, &|_| false).await.unwrap();
        assert!(report.packs_deleted > 1, "{report:?}");
    });
}

/// However little of a pack is dead: after one thorough pass and a second none of it is left.
#[test]
fn no_dead_chunk_outlives_two_thorough_passes() {
    for seed in 0..20 {
        let machine = Machine::new(700 + seed, 2, 64 << 20);
        let (store, _) = machine.open();
        let contents = contents();
        machine.run(async {
            let addresses = store.put_many(Class::Data, contents.clone()).await.unwrap();
            store.commit(store.moment(), b"roots", store.last_logged()).await.unwrap();
            // Of most packs nearly all is needed.
            let live: BTreeSet<_> = addresses.iter().filter(|address| address.0[0] % 16 != 0).copied().collect();
            assert!(live.len() < addresses.len());
            let thorough = async || {
                let mut marks = store.begin_mark(false).await.unwrap();
                marks.keep(&|address| live.contains(address), &hurried(&store)).await;
                let sweep = Sweep { pace: &hurried(&store), is_thorough: true, wanted_bytes: None, tell: &|_, _| {} };
                store.reclaim(marks, &sweep).await.unwrap()
            };
            assert!(thorough().await.bytes_freed > 0);
            let again = thorough().await;
            assert_eq!((again.bytes_dead_left, again.packs_dead + again.packs_sparse), (0, 0), "{again:?}");
            assert_eq!(store.status().chunks(), live.len() as u64);
            check_live(&store, &contents, &live).await;
        });
    }
}
