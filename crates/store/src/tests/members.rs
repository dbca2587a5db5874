//! Disks come and go while the node works: nothing is lost, whenever the power goes.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::id::NodeNumber;
use bytes::Bytes;
use platform::disk::Disk;
use platform::sim::{Faults, SimDisk};

use super::{Machine, content, hurried, options};
use crate::pack::PackState;
use crate::{Class, CopiesReport, Depth, Options, Recovered, Resilience, Store, StoreError};

fn contents(numbers: std::ops::Range<u64>) -> Vec<Bytes> {
    numbers.map(|number| content(number * 2, 30_000)).collect()
}

/// A node on so many disks with chunks, closed, and one disk more that is empty.
fn node(seed: u64, count: usize, options: &Options) -> (Machine, Vec<Bytes>) {
    let mut machine = Machine::new(seed, count, 64 << 20);
    let contents = contents(0..100);
    let (store, _) = open(&machine, &machine.handles(), options);
    machine.run(put(&store, &contents)).unwrap();
    end(&machine, store);
    let empty = machine.world.disk(&format!("/d{count}"), 64 << 20);
    machine.disks.push(empty);
    (machine, contents)
}

async fn put(store: &Arc<Store>, contents: &[Bytes]) -> Result<(), StoreError> {
    store.put_many(Class::Data, contents.to_vec()).await?;
    store.put(Class::Metadata, b"a node of a tree").await?;
    let last = store.log(b"frame");
    store.commit(store.moment(), b"second", last).await
}

fn some(machine: &Machine, numbers: &[usize]) -> Vec<Disk> {
    numbers.iter().map(|number| machine.disks[*number].disk()).collect()
}

fn try_open(machine: &Machine, handles: &[Disk], options: &Options) -> Result<(Arc<Store>, Recovered), StoreError> {
    machine.run(Store::open(&machine.world.platform(), handles, options.clone()))
}

fn open(machine: &Machine, handles: &[Disk], options: &Options) -> (Arc<Store>, Recovered) {
    try_open(machine, handles, options).unwrap()
}

fn end(machine: &Machine, store: Arc<Store>) {
    machine.run(store.close()).unwrap();
    drop(store);
    machine.world.crash();
    machine.world.restart();
}

fn expect_all(machine: &Machine, store: &Arc<Store>, contents: &[Bytes]) {
    machine.run(async {
        for content in contents {
            assert_eq!(store.get(Class::Data, &store.key().address(content)).await.unwrap(), content);
        }
        assert_eq!(store.check(Depth::Deep, &|_, _| {}).await.problems, Vec::new());
    });
}

fn restore(machine: &Machine, store: &Store) -> CopiesReport {
    machine.run(store.restore_copies(&hurried(store), &|_, _| {}))
}

fn packs(disk: &SimDisk) -> BTreeSet<String> {
    disk.durable_files().into_keys().filter(|path| path.starts_with("packs/")).collect()
}

fn refused<T>(told: Result<T, StoreError>, words: &str) {
    match told {
        Err(StoreError::Refused { why, .. }) => assert!(why.contains(words), "{why}"),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("not refused"),
    }
}

/// Frames of two superblocks, as the caller of [`Store::remove_disk`] has seen to it.
async fn commit_twice(store: &Arc<Store>) -> Result<(), StoreError> {
    store.commit(store.moment(), b"third", store.last_logged()).await?;
    store.renew_root().await
}

#[test]
fn a_disk_is_taken_in_and_needed_from_then_on() {
    let (machine, old) = node(1, 1, &options());
    let (store, _) = open(&machine, &some(&machine, &[0]), &options());
    let new = contents(100..200);
    machine.run(async {
        let disk = machine.disks[1].disk();
        refused(store.take_in_disk(&machine.disks[0].disk()).await, "it is no disk that was formatted for this node");
        store.format_disk(&disk).await.unwrap();
        assert_eq!(store.take_in_disk(&disk).await.unwrap(), 1);
        refused(store.format_disk(&disk).await, "it is a disk of a node already");
        put(&store, &new).await.unwrap();
    });
    assert!(!packs(&machine.disks[1]).is_empty());
    expect_all(&machine, &store, &[&old[..], &new].concat());
    end(&machine, store);
    refused(try_open(&machine, &some(&machine, &[0]), &options()), "disk 1 of this node is missing: expected 2 disks");
    let (store, recovered) = open(&machine, &machine.handles(), &options());
    assert_eq!(recovered.report.problems, Vec::<String>::new());
    expect_all(&machine, &store, &[&old[..], &new].concat());
}

/// D-5: formatted, noted by the caller, and then the power went.
#[test]
fn a_disk_that_was_not_taken_in_is_left_alone_and_can_be_added_again() {
    let (machine, contents) = node(2, 2, &options());
    let (store, _) = open(&machine, &some(&machine, &[0, 1]), &options());
    machine.run(store.format_disk(&machine.disks[2].disk())).unwrap();
    drop(store);
    machine.world.restart();
    let (store, recovered) = open(&machine, &machine.handles(), &options());
    assert!(recovered.report.problems[0].starts_with("/d2 is no disk of this node"), "{:?}", recovered.report);
    machine.run(async {
        store.format_disk(&machine.disks[2].disk()).await.unwrap();
        assert_eq!(store.take_in_disk(&machine.disks[2].disk()).await.unwrap(), 2);
    });
    end(&machine, store);
    let (store, recovered) = open(&machine, &machine.handles(), &options());
    assert_eq!(recovered.report.problems, Vec::<String>::new());
    expect_all(&machine, &store, &contents);
}

#[test]
fn what_is_no_empty_directory_or_another_nodes_is_refused() {
    let (machine, _) = node(3, 1, &options());
    let (store, _) = open(&machine, &some(&machine, &[0]), &options());
    let foreign = machine.disks[1].disk();
    machine.run(async {
        Store::create(&machine.world.platform(), std::slice::from_ref(&foreign), NodeNumber(8), b"").await.unwrap();
        refused(store.format_disk(&foreign).await, "it is a disk of a node already");
        refused(store.take_in_disk(&foreign).await, "it is no disk that was formatted for this node");
        refused(store.drain_disk(7, true).await, "the node has no disk 7");
        refused(store.drain_disk(0, true).await, "no other disk takes what lies there");
        refused(store.remove_disk(0, true).await, "it is the last disk");
    });
}

/// P-6 and F-7, with the journal and the index on the disk that goes.
#[test]
fn a_drained_disk_ends_up_empty_and_is_a_disk_no_more() {
    for copies in [1, 2] {
        let options = Options { copies, ..options() };
        let (machine, old) = node(4, 3, &options);
        let (store, _) = open(&machine, &some(&machine, &[0, 1, 2]), &options);
        let new = contents(100..130);
        machine.run(async {
            put(&store, &new).await.unwrap();
            let plan = store.drain_plan(0).unwrap();
            assert!(plan.packs > 0 && plan.bytes > 0 && plan.room_bytes > plan.bytes, "{plan:?}");
            refused(store.remove_disk(0, true).await, "it takes part in everything");
            store.drain_disk(0, true).await.unwrap();
            refused(store.remove_disk(0, true).await, "is there, and on no other disk");
            // It takes nothing new.
            let before = packs(&machine.disks[0]);
            put(&store, &contents(200..290)).await.unwrap();
            assert!(packs(&machine.disks[0]).is_subset(&before));
        });
        let report = restore(&machine, &store);
        assert_eq!((report.lacking, &report.problems), (0, &Vec::new()));
        assert!(report.is_index_moved);
        machine.run(async {
            commit_twice(&store).await.unwrap();
            assert!(store.is_disk_empty(0).await.unwrap());
            store.remove_disk(0, false).await.unwrap().wipe().unwrap();
            put(&store, &contents(300..330)).await.unwrap();
        });
        let all = [&old[..], &new, &contents(200..290), &contents(300..330)].concat();
        expect_all(&machine, &store, &all);
        assert!(!store.lacks_copies());
        assert_eq!(store.status().disks.len(), 2);
        end(&machine, store);
        let left: Vec<String> = machine.disks[0].durable_files().into_keys().collect();
        assert_eq!(left, ["lock"], "it can be formatted again");
        let (store, recovered) = open(&machine, &some(&machine, &[1, 2]), &options);
        assert_eq!(recovered.report.problems, Vec::<String>::new());
        expect_all(&machine, &store, &all);
        // Its number is free, and so is the directory.
        machine.run(async {
            store.format_disk(&machine.disks[0].disk()).await.unwrap();
            assert_eq!(store.take_in_disk(&machine.disks[0].disk()).await.unwrap(), 0);
        });
        end(&machine, store);
        let (store, _) = open(&machine, &some(&machine, &[0, 1, 2]), &options);
        expect_all(&machine, &store, &all);
    }
}

#[test]
fn draining_is_called_off_and_outlives_a_restart() {
    let (machine, contents) = node(5, 2, &options());
    let (store, _) = open(&machine, &some(&machine, &[0, 1]), &options());
    machine.run(store.drain_disk(1, true)).unwrap();
    end(&machine, store);
    let (store, _) = open(&machine, &some(&machine, &[0, 1]), &options());
    assert!(store.status().disks[1].is_drained && store.lacks_copies());
    machine.run(store.drain_disk(1, false)).unwrap();
    assert!(!store.status().disks[1].is_drained && !store.lacks_copies());
    expect_all(&machine, &store, &contents);
}

#[test]
fn a_disk_is_not_drained_into_others_that_have_no_room() {
    let (machine, contents) = node(6, 2, &options());
    let (store, _) = open(&machine, &some(&machine, &[0, 1]), &options());
    let space = machine.disks[1].disk().space().unwrap();
    machine.disks[1].set_capacity(space.total - space.free + (1 << 20));
    machine.run(async {
        refused(store.drain_disk(0, true).await, "the other disks have no room");
    });
    expect_all(&machine, &store, &contents);
}

/// Whoever has copies loses nothing by it; whoever has none is asked.
#[test]
fn a_disk_that_is_gone_is_removed_when_nothing_is_on_it_alone() {
    for copies in [2, 1] {
        let options = Options { copies, goes_without_disks: true, ..options() };
        let (machine, contents) = node(7, 3, &options);
        let (store, _) = open(&machine, &some(&machine, &[0, 1]), &options);
        if copies == 1 {
            refused(machine.run(store.remove_disk(2, false)), "and on no other disk");
        }
        machine.run(store.remove_disk(2, copies == 1)).unwrap().wipe().unwrap();
        assert!(!store.is_degraded());
        let report = restore(&machine, &store);
        assert_eq!((report.lacking, &report.problems), (0, &Vec::new()));
        if copies == 2 {
            expect_all(&machine, &store, &contents);
        } else {
            // What was there is put again.
            let codes = machine.run(store.check(Depth::Deep, &|_, _| {})).problems;
            assert!(codes.iter().all(|problem| problem.code == "HF0009") && !codes.is_empty(), "{codes:?}");
            machine.run(async {
                for remedy in codes.into_iter().filter_map(|problem| problem.remedy) {
                    store.repair(remedy).await.unwrap();
                }
                put(&store, &contents).await.unwrap();
            });
            expect_all(&machine, &store, &contents);
        }
        end(&machine, store);
        let options = Options { goes_without_disks: false, ..options };
        // It is back, and nobody takes it for one of the node's.
        let (store, recovered) = open(&machine, &some(&machine, &[0, 1, 2]), &options);
        assert!(recovered.report.problems[0].starts_with("/d2 is no disk of this node"), "{:?}", recovered.report);
        expect_all(&machine, &store, &contents);
    }
}

#[test]
fn a_disk_that_failed_is_removed_under_the_writers() {
    let options = Options { copies: 2, ..options() };
    let (machine, old) = node(8, 3, &options);
    let (store, _) = open(&machine, &some(&machine, &[0, 1, 2]), &options);
    machine.disks[0].set_faults(Faults { is_dead: true, ..Faults::default() });
    let new = contents(100..130);
    machine.run(async {
        put(&store, &new).await.unwrap();
        store.remove_disk(0, false).await.unwrap().wipe().unwrap_err();
    });
    let report = restore(&machine, &store);
    assert_eq!((report.lacking, &report.problems), (0, &Vec::new()));
    machine.run(put(&store, &contents(200..290))).unwrap();
    end(&machine, store);
    let (store, recovered) = open(&machine, &some(&machine, &[1, 2]), &options);
    assert_eq!(recovered.report.problems, Vec::<String>::new());
    expect_all(&machine, &store, &[&old[..], &new, &contents(200..290)].concat());
}

/// Journal and index were on it, and its number is the highest: no superblock may ask for it afterwards.
#[test]
fn a_disk_that_failed_with_everything_on_it_leaves_a_node_that_opens() {
    let options = Options { copies: 2, ..options() };
    let (machine, old) = node(9, 2, &options);
    let (store, _) = open(&machine, &some(&machine, &[0, 1]), &options);
    machine.run(store.drain_disk(0, true)).unwrap();
    restore(&machine, &store);
    machine.run(store.drain_disk(0, false)).unwrap();
    restore(&machine, &store);
    assert!(store.status().disks[1].has_index && store.status().disks[1].has_journal);
    machine.disks[1].set_faults(Faults { is_dead: true, ..Faults::default() });
    machine.run(async {
        // Who removes it is the first who meets the failure.
        commit_twice(&store).await.unwrap();
        store.remove_disk(1, false).await.unwrap();
        put(&store, &contents(200..230)).await.unwrap();
    });
    end(&machine, store);
    let (store, _) = open(&machine, &some(&machine, &[0]), &options);
    machine.run(async {
        for content in [&old[..], &contents(200..230)].concat() {
            assert_eq!(store.get(Class::Data, &store.key().address(&content)).await.unwrap(), content);
        }
        // There is one disk, and two copies were asked for.
        let problems = store.check(Depth::Deep, &|_, _| {}).await.problems;
        assert!(problems.iter().all(|problem| problem.code == "HF0020"), "{problems:?}");
    });
}

/// with one copy, what was on it alone is out of reach, and the rest of the node goes on.
#[test]
fn the_index_is_made_again_without_what_a_failed_disk_alone_has() {
    let options = Options { goes_without_disks: true, ..options() };
    for moves_first in [false, true] {
        let (machine, old) = node(13, 2, &options);
        let (store, _) = open(&machine, &some(&machine, &[0, 1]), &options);
        if moves_first {
            machine.run(store.drain_disk(0, true)).unwrap();
            restore(&machine, &store);
            machine.run(store.drain_disk(0, false)).unwrap();
            machine.run(put(&store, &contents(300..330))).unwrap();
        }
        let dead = usize::from(moves_first);
        assert!(store.status().disks[dead].has_index);
        machine.run(store.close()).unwrap();
        drop(store);
        let (store, _) = open(&machine, &some(&machine, &[0, 1]), &options);
        machine.disks[dead].set_faults(Faults { is_dead: true, ..Faults::default() });
        let new = contents(200..230);
        machine.run(put(&store, &new)).unwrap();
        restore(&machine, &store);
        assert!(store.status().disks[1 - dead].has_index);
        let found = async |content: &Bytes| store.get(Class::Data, &store.key().address(content)).await;
        let (mut there, mut unknown) = (Vec::new(), 0);
        for content in &old {
            match machine.run(found(content)) {
                Ok(_) => there.push(content.clone()),
                Err(StoreError::Disk(_)) => unknown += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(unknown > 0 && there.is_empty() == moves_first, "{} there, {unknown} unknown", there.len());
        let never = machine.run(found(&content(9999, 100)));
        assert!(matches!(never, Err(StoreError::Disk(_))), "{never:?}");
        machine.run(async {
            for content in [&there[..], &new].concat() {
                assert_eq!(found(&content).await.unwrap(), content);
            }
            assert_eq!(
                store.get(Class::Metadata, &store.key().address(b"a node of a tree")).await.unwrap(),
                &b"a node of a tree"[..]
            );
            store.take_into_index().await.unwrap();
        });
        assert!(!store.packs.is_sealed_waiting());
        machine.run(super::reclaim(&store, &|_| true)).unwrap();
        drop(store);
        machine.world.crash();
        machine.world.restart();
        let (store, _) = open(&machine, &some(&machine, &[1 - dead]), &options);
        machine.run(async {
            for content in [&there[..], &new].concat() {
                assert_eq!(store.get(Class::Data, &store.key().address(&content)).await.unwrap(), content);
            }
        });
        end(&machine, store);
        // It was a cable.
        machine.disks[dead].set_faults(Faults::default());
        let (store, _) = open(&machine, &some(&machine, &[0, 1]), &options);
        machine.run(async {
            for content in [&old[..], &new].concat() {
                assert_eq!(store.get(Class::Data, &store.key().address(&content)).await.unwrap(), content);
            }
        });
    }
}

/// an index that cannot be opened for writing, nor made again where it was, is made again elsewhere.
#[test]
fn an_index_whose_disk_takes_nothing_is_made_on_another_one() {
    let faults = [
        Faults { write_error: 1.0, ..Faults::default() },
        Faults { sync_error: 1.0, ..Faults::default() },
        Faults { write_error: 1.0, sync_error: 1.0, ..Faults::default() },
    ];
    for (faults, (copies, all)) in
        faults.into_iter().flat_map(|faults| [(faults.clone(), (2, &[0, 1, 2][..])), (faults, (1, &[0, 1]))])
    {
        let options = Options { copies, ..options() };
        let (machine, old) = node(14, all.len(), &options);
        let (store, _) = open(&machine, &some(&machine, all), &options);
        let at = store.status().disks.iter().position(|disk| disk.has_index).unwrap();
        end(&machine, store);
        machine.disks[at].set_faults(faults);
        let (store, _) = open(&machine, &some(&machine, all), &options);
        let disk = &store.status().disks[at];
        assert!(!disk.has_index && !disk.is_good && !disk.has_journal);
        let new = contents(200..230);
        machine.run(async {
            put(&store, &new).await.unwrap();
            for content in [&old[..], &new].concat() {
                match store.get(Class::Data, &store.key().address(&content)).await {
                    Ok(found) => assert_eq!(found, content),
                    // A pack that no index covers is brought into order before it counts, which its disk does not take.
                    Err(error) => assert!(copies == 1 && matches!(error, StoreError::Disk(_)), "{error}"),
                }
            }
        });
        end(&machine, store);
        machine.disks[at].set_faults(Faults::default());
        let (store, _) = open(&machine, &some(&machine, all), &options);
        assert!(!store.status().disks[at].has_index);
        restore(&machine, &store);
        expect_all(&machine, &store, &[&old[..], &new].concat());
    }
}

/// S-4 and K-5: one of the histories is given up later, and nothing of it is to pass for a part of the other one.
#[test]
fn disks_that_were_used_without_each_other_have_packs_of_other_numbers() {
    let options = Options { copies: 2, goes_without_disks: true, ..options() };
    let (machine, _) = node(15, 2, &options);
    let before = packs(&machine.disks[0]);
    let alone = [0, 1].map(|alone| {
        let (store, _) = open(&machine, &some(&machine, &[alone]), &options);
        machine.run(put(&store, &contents(500..530))).unwrap();
        end(&machine, store);
        &packs(&machine.disks[alone]) - &before
    });
    assert!(alone.iter().all(|packs| !packs.is_empty()) && alone[0].is_disjoint(&alone[1]), "{alone:?}");
}

/// F-7: the copy that stays has rotted, or is gone, and nobody has read it.
#[test]
fn the_last_whole_copy_does_not_go_with_its_disk() {
    let options = Options { copies: 2, ..options() };
    for is_gone in [false, true] {
        let (machine, contents) = node(11, 2, &options);
        if !is_gone {
            packs(&machine.disks[1]).iter().for_each(|path| machine.disks[1].flip_bit(path, 100, 3));
        }
        let (store, _) = open(&machine, &some(&machine, &[0, 1]), &options);
        if is_gone {
            packs(&machine.disks[1]).iter().for_each(|path| assert!(machine.disks[1].remove(path)));
        }
        machine.run(store.drain_disk(0, true)).unwrap();
        let report = restore(&machine, &store);
        assert!(report.written > 0 && report.problems.is_empty(), "{report:?}");
        machine.run(async {
            commit_twice(&store).await.unwrap();
            store.remove_disk(0, false).await.unwrap().wipe().unwrap();
        });
        end(&machine, store);
        let (store, _) = open(&machine, &some(&machine, &[1]), &options);
        machine.run(async {
            for content in &contents {
                assert_eq!(store.get(Class::Data, &store.key().address(content)).await.unwrap(), content);
            }
        });
    }
}

/// What the index does not say nobody knows, and it went with the disk.
#[test]
fn what_lies_on_one_missing_disk_alone_is_not_given_up_unasked() {
    let options = Options { goes_without_disks: true, ..options() };
    let (machine, _) = node(10, 2, &options);
    // The index was on it too.
    let (store, _) = open(&machine, &some(&machine, &[0, 1]), &options);
    machine.run(async {
        store.drain_disk(0, true).await.unwrap();
        store.restore_copies(&hurried(&store), &|_, _| {}).await;
        commit_twice(&store).await.unwrap();
        store.drain_disk(0, false).await.unwrap();
        store.raise_floor(Resilience::Copies(2)).await.unwrap();
        store.restore_copies(&hurried(&store), &|_, _| {}).await;
        commit_twice(&store).await.unwrap();
    });
    end(&machine, store);
    let (store, _) = open(&machine, &some(&machine, &[0]), &options);
    assert!(store.is_degraded());
    refused(machine.run(store.remove_disk(1, false)), "nobody can tell any more what is on it alone");
    machine.run(store.remove_disk(1, true)).unwrap();
}

/// the same where everything that the index knows has two copies, in each later life too.
#[test]
fn what_an_index_that_was_made_without_a_disk_cannot_know_is_not_given_up_later() {
    let copies = Options { copies: 2, ..options() };
    let options = Options { goes_without_disks: true, ..copies.clone() };
    let (machine, contents) = node(12, 3, &copies);
    // Disk 2 goes, and what it shared with disk 0 is there alone; the index too.
    let (store, _) = open(&machine, &some(&machine, &[0, 1]), &options);
    assert!(store.status().disks[0].has_index);
    machine.run(store.remove_disk(2, true)).unwrap();
    end(&machine, store);
    let mut lives = 0;
    let store = loop {
        let (store, recovered) = open(&machine, &some(&machine, &[1]), &options);
        refused(machine.run(store.remove_disk(0, false)), "nobody can tell any more what is on it alone");
        if lives == 2 {
            assert_eq!(recovered.report.index_made_again, None, "it is that of an earlier life");
            break store;
        }
        lives += 1;
        end(&machine, store);
    };
    end(&machine, store);
    let (store, _) = open(&machine, &some(&machine, &[0, 1]), &options);
    restore(&machine, &store);
    expect_all(&machine, &store, &contents);
}

/// What a node folder is to the node: the disks by number that its user named.
struct Exchange {
    named: Vec<usize>,
    is_over: bool,
}

/// Adds disk 2, drains disk 0, removes it, each where it is still to be done.
async fn exchange(machine: &Machine, state: &mut Exchange, options: &Options) -> Result<(), StoreError> {
    let handles = some(machine, &state.named);
    let (store, _) = Store::open(&machine.world.platform(), &handles, options.clone()).await?;
    let has = |number| store.status().disks.iter().any(|disk| disk.path == format!("/d{number}"));
    if !has(2) && !state.is_over {
        store.format_disk(&machine.disks[2].disk()).await?;
        if !state.named.contains(&2) {
            state.named.push(2);
        }
        store.take_in_disk(&machine.disks[2].disk()).await?;
    }
    put(&store, &contents(100..120)).await?;
    if has(0) {
        store.drain_disk(0, true).await?;
        store.restore_copies(&hurried(&store), &|_, _| {}).await;
        commit_twice(&store).await?;
        let gone = store.remove_disk(0, false).await?;
        state.named.retain(|number| *number != 0);
        gone.wipe()?;
    }
    state.named.retain(|number| *number != 0);
    state.is_over = true;
    put(&store, &contents(200..220)).await?;
    store.close().await
}

#[test]
fn a_power_cut_at_any_moment_of_an_exchange_loses_nothing() {
    for copies in [1, 2] {
        let options = Options { copies, ..options() };
        for cut in (1..).step_by(11) {
            let (machine, old) = node(cut, 2, &options);
            let mut state = Exchange { named: vec![0, 1], is_over: false };
            machine.world.cut_power_at(machine.world.operations() + cut);
            let first = machine.world.run_until(exchange(&machine, &mut state, &options));
            let is_over = first.is_ok_and(|done| done.is_ok());
            machine.world.restart();
            machine.world.cut_power_at(u64::MAX);
            machine.run(exchange(&machine, &mut state, &options)).unwrap_or_else(|error| panic!("{cut}: {error}"));
            machine.world.restart();
            let (store, _) = open(&machine, &some(&machine, &[1, 2]), &options);
            expect_all(&machine, &store, &[&old[..], &contents(100..120), &contents(200..220)].concat());
            assert!(!store.lacks_copies(), "{cut}");
            if is_over {
                assert!(cut > 100, "{cut}");
                break;
            }
        }
    }
}

/// Its directory had no room; when everything else has left the disk there is some.
#[test]
fn a_full_disk_is_emptied_to_the_last_pack() {
    let (machine, old) = node(12, 2, &options());
    let (store, _) = open(&machine, &some(&machine, &[0, 1]), &options());
    let new = contents(100..160);
    machine.run(async {
        put(&store, &new).await.unwrap();
        let full = &machine.disks[1];
        let space = full.disk().space().unwrap();
        full.set_capacity(space.total - space.free);
        store.drain_disk(1, true).await.unwrap();
    });
    let report = restore(&machine, &store);
    machine.run(async {
        commit_twice(&store).await.unwrap();
        assert!(store.is_disk_empty(1).await.unwrap(), "{report:?}");
    });
    assert_eq!(packs(&machine.disks[1]), BTreeSet::new());
    expect_all(&machine, &store, &[&old[..], &new].concat());
    end(&machine, store);
    let (store, _) = open(&machine, &some(&machine, &[0, 1]), &options());
    expect_all(&machine, &store, &[&old[..], &new].concat());
}

/// K-7: what a disk took last, in a pack that nobody can seal there any more, is copied away like all before; then the disk can go.
#[test]
fn what_an_open_pack_has_on_a_disk_that_fails_is_copied_away() {
    for fails in 0..2 {
        let machine = Machine::new(41 + fails as u64, 2, 64 << 20);
        let (store, _) = open(&machine, &machine.handles(), &options());
        let contents = contents(0..60);
        let on_it = |store: &Arc<Store>| {
            let known = store.packs.known();
            let open = known.values().filter_map(|known| match &known.state {
                PackState::Open(open) if known.places().has(fails) => Some(open.summary().count),
                _ => None,
            });
            open.sum::<u32>()
        };
        machine.run(async {
            put(&store, &contents[..40]).await.unwrap();
            store.put_many(Class::Data, contents[40..].to_vec()).await.unwrap();
            store.settle(store.moment()).await.unwrap();
        });
        assert!(on_it(&store) > 0, "an open pack has something there");
        let faults = Faults { write_error: 1.0, sync_error: 1.0, ..Faults::default() };
        machine.disks[fails].set_faults(faults);
        let later: Vec<Bytes> = (200..240).map(|number| content(number * 2, 30_000)).collect();
        machine.run(async {
            store.put_many(Class::Data, later.clone()).await.unwrap();
            let last = store.log(b"frame");
            store.commit(store.moment(), b"third", last).await.unwrap();
        });
        assert!(!store.pool.disks[fails].is_good(), "nothing went to it");
        let report = restore(&machine, &store);
        assert_eq!(report.problems, Vec::<String>::new());
        assert_eq!(on_it(&store), 0);
        assert!(!store.lacks_copies());
        machine.run(async {
            store.remove_disk(fails as u64, false).await.unwrap();
            for content in contents.iter().chain(&later) {
                assert_eq!(store.get(Class::Data, &store.key().address(content)).await.unwrap(), content);
            }
        });
    }
}
