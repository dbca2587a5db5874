//! Packs on several disks: any one of those may fail, lie or go, and nothing is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base::id::ChunkAddress;
use bytes::Bytes;
use parking_lot::Mutex;
use platform::disk::DiskErrorKind;
use platform::sim::{Faults, each_seed};
use platform::task::{First, first};

use super::{Machine, content, hurried, options, reclaim};
use crate::format::{PACK_SUFFIX, PackFooter, number_of, pack_path};
use crate::{Class, CopiesReport, Depth, MissingStatus, Options, Pace, Recovered, Share, Store, StoreError};

fn contents(numbers: std::ops::Range<u64>) -> Vec<Bytes> {
    numbers.map(|number| content(number, 30_000)).collect()
}

fn two_copies() -> Options {
    Options { copies: 2, goes_without_disks: true, ..options() }
}

fn try_open(machine: &Machine) -> Result<(Arc<Store>, Recovered), StoreError> {
    machine.run(Store::open(&machine.world.platform(), &machine.handles(), two_copies()))
}

fn open(machine: &Machine) -> Arc<Store> {
    let (store, recovered) = try_open(machine).unwrap();
    assert_eq!(recovered.report.problems, Vec::<String>::new());
    store
}

fn close(machine: &Machine, store: Arc<Store>) {
    machine.run(store.close()).unwrap();
    drop(store);
    machine.world.crash();
    machine.world.restart();
}

/// Three disks with chunks, closed.
fn node(seed: u64) -> (Machine, Vec<Bytes>) {
    let machine = Machine::new(seed, 3, 64 << 20);
    let contents = contents(0..120);
    let store = open(&machine);
    machine.run(async {
        store.put_many(Class::Data, contents.clone()).await.unwrap();
        store.put(Class::Metadata, b"a node of a tree").await.unwrap();
        let last = store.log(b"frame");
        store.commit(store.moment(), b"second", last).await.unwrap();
    });
    close(&machine, store);
    (machine, contents)
}

fn expect_all(machine: &Machine, store: &Arc<Store>, contents: &[Bytes]) {
    machine.run(async {
        for content in contents {
            assert_eq!(store.get(Class::Data, &store.key().address(content)).await.unwrap(), content);
        }
    });
}

/// By pack: the files of that number, by disk.
fn packs(machine: &Machine) -> BTreeMap<u64, BTreeMap<usize, Vec<u8>>> {
    let mut packs: BTreeMap<u64, BTreeMap<usize, Vec<u8>>> = BTreeMap::new();
    for (disk, sim) in machine.disks.iter().enumerate() {
        for (path, bytes) in sim.durable_files() {
            if let Some(pack) = path.strip_prefix("packs/").and_then(|name| number_of(name, PACK_SUFFIX)) {
                packs.entry(pack).or_default().insert(disk, bytes);
            }
        }
    }
    packs
}

fn expect_two_of_each(machine: &Machine) {
    let packs = packs(machine);
    assert!(packs.len() > 3, "{}", packs.len());
    for (pack, files) in packs {
        let all: Vec<&Vec<u8>> = files.values().collect();
        assert_eq!(all.len(), 2, "pack {pack} is on {:?}", files.keys());
        assert!(all[0] == all[1], "pack {pack} differs");
    }
}

fn restore(machine: &Machine, store: &Store) -> CopiesReport {
    machine.run(store.restore_copies(&hurried(store), &|_, _| {}))
}

fn expect_sound(machine: &Machine, store: &Store) {
    let report = machine.run(store.check(Depth::Deep, &|_, _| {}));
    assert_eq!(report.problems, Vec::new());
    assert_eq!(report.chunks_verified > 0, store.status().chunks() > 0);
}

#[test]
fn a_pack_lies_on_two_disks_byte_for_byte() {
    let (machine, contents) = node(1);
    expect_two_of_each(&machine);
    let pairs: std::collections::BTreeSet<Vec<usize>> =
        packs(&machine).into_values().map(|files| files.into_keys().collect()).collect();
    assert_eq!(pairs.len(), 3, "every two disks share a pack: {pairs:?}");
    let store = open(&machine);
    expect_all(&machine, &store, &contents);
    expect_sound(&machine, &store);
    assert!(!store.lacks_copies());
}

/// K-8 and F-5: whatever is wrong with what a disk has, the others have it, and it is written again.
#[test]
fn what_one_disk_has_wrong_is_read_from_others_and_written_again() {
    for (disk, harm) in (0..3).flat_map(|disk| (0..4).map(move |harm| (disk, harm))) {
        let (machine, contents) = node(2);
        let on = &machine.disks[disk];
        for (pack, files) in packs(&machine) {
            let Some(bytes) = files.get(&disk) else { continue };
            let path = crate::format::pack_path(pack);
            let length = bytes.len() as u64;
            match harm {
                0 => (0..length).step_by(5000).for_each(|at| on.flip_bit(&path, at, 3)),
                1 => on.set_unreadable(&path, 0..length),
                2 => assert!(on.remove(&path)),
                _ => on.truncate(&path, length / 2),
            }
        }
        let (store, _) = try_open(&machine).unwrap();
        expect_all(&machine, &store, &contents);
        assert!(store.lacks_copies(), "disk {disk}, harm {harm}");
        assert!(harm >= 2 || store.counters().reads_of_copies.value() > 0);
        // What nobody read shows when it is looked at.
        let found = machine.run(store.check(Depth::Deep, &|_, _| {}));
        assert!(!found.problems.is_empty());
        machine.run(async {
            for remedy in found.problems.iter().filter_map(|problem| problem.remedy) {
                store.repair(remedy).await.unwrap();
            }
        });
        expect_sound(&machine, &store);
        close(&machine, store);
        expect_two_of_each(&machine);
    }
}

/// K-6 and F-5: without a disk all is there, and is soon on two disks again.
#[test]
fn a_disk_that_is_gone_is_made_up_for_by_the_others() {
    for gone in 0..3 {
        let (machine, contents) = node(3);
        let there: Vec<_> = (0..3).filter(|disk| *disk != gone).map(|disk| machine.disks[disk].disk()).collect();
        let (store, recovered) = machine.run(Store::open(&machine.world.platform(), &there, two_copies())).unwrap();
        assert_eq!(recovered.report.packs_missing, 0);
        expect_all(&machine, &store, &contents);
        let lacking = store.status().lacking.packs;
        assert!(lacking > 0);
        let report = restore(&machine, &store);
        assert_eq!((report.written, report.lacking, report.problems), (lacking, 0, vec![]));
        assert_eq!(store.status().lacking.packs, 0);
        let more = contents_beyond(&contents);
        machine.run(async {
            store.put_many(Class::Data, more.clone()).await.unwrap();
            store.settle(store.moment()).await.unwrap();
        });
        close(&machine, store);
        let mut packs = packs(&machine);
        packs.values_mut().for_each(|files| drop(files.remove(&gone)));
        assert!(packs.values().all(|files| files.len() == 2), "of what was there and of what came");
        // It is back, with what it had.
        let store = open(&machine);
        expect_all(&machine, &store, &contents);
        expect_all(&machine, &store, &more);
        expect_sound(&machine, &store);
    }
}

/// O-8: what a failed sync left of a pack on a disk may be as long as the pack.
#[test]
fn a_file_that_is_long_enough_and_lacks_its_directory_is_no_copy() {
    let machine = Machine::new(9, 2, 64 << 20);
    let store = open(&machine);
    let contents = contents(0..40);
    machine.run(async {
        store.put_many(Class::Data, contents.clone()).await.unwrap();
        store.settle(store.moment()).await.unwrap();
    });
    // While its packs are sealed.
    machine.disks[1].set_faults(Faults { sync_error: 1.0, ..Faults::default() });
    close(&machine, store);
    machine.disks[1].set_faults(Faults::default());
    let mut torn = 0;
    for (pack, files) in packs(&machine) {
        if files.get(&0) != files.get(&1) {
            let mut bytes = files[&0].clone();
            let footer = bytes.len() - PackFooter::BYTES;
            bytes[footer..].fill(0);
            machine.disks[1].install(&pack_path(pack), &bytes);
            torn += 1;
        }
    }
    assert!(torn > 0, "a seal failed");
    let (store, recovered) = try_open(&machine).unwrap();
    assert!(recovered.report.packs_covered >= torn, "the index has them");
    assert!(store.lacks_copies());
    expect_all(&machine, &store, &contents);
    assert_eq!(restore(&machine, &store).lacking, 0);
    expect_sound(&machine, &store);
    assert!(!store.lacks_copies());
}

/// Who mends takes as much of the time as it was told to, and tells how far it is.
#[test]
fn who_makes_up_for_a_disk_takes_its_share_of_the_time() {
    let time_with = |share: Share| {
        let (machine, _) = node(3);
        let store = open(&machine);
        machine.run(store.put_many(Class::Data, contents(200..700))).unwrap();
        close(&machine, store);
        let there: Vec<_> = machine.disks[..2].iter().map(|disk| disk.disk()).collect();
        let (store, _) = machine.run(Store::open(&machine.world.platform(), &there, two_copies())).unwrap();
        for disk in &machine.disks {
            disk.set_faults(Faults { latency: Duration::from_millis(5), ..Faults::default() });
        }
        let (began, told) = (store.platform.clock.elapsed(), Mutex::new(Vec::new()));
        let report = machine.run(async {
            let (share, goes_on) = (|| share, || true);
            let pace = Pace::new(&store.platform, &share, &goes_on);
            store.restore_copies(&pace, &|done, all| told.lock().push((done, all))).await
        });
        assert!(report.packs >= 5 && report.lacking == 0, "{report:?}");
        let told = told.into_inner();
        assert!(told.is_sorted() && told.first() < told.last(), "{told:?}");
        assert!(told.iter().all(|(done, all)| done <= all), "{told:?}");
        store.platform.clock.elapsed().saturating_sub(began)
    };
    let (whole, tenth) = (time_with(Share::FULL), time_with(Share::DEFAULT));
    // After the last step nobody has to pause.
    assert!((5 * whole..=11 * whole).contains(&tenth), "{whole:?} with all of the time, {tenth:?} with a tenth");
}

fn contents_beyond(contents: &[Bytes]) -> Vec<Bytes> {
    (0..40).map(|number| content(number + contents.len() as u64, 30_000)).collect()
}

/// K-7: who puts and settles does not hear of it.
#[test]
fn a_disk_that_fails_is_left_and_made_up_for() {
    for (fails, counts) in [(0, 3), (1, 3), (2, 3), (0, 2), (1, 2)] {
        let machine = Machine::new(4, counts, 64 << 20);
        let store = open(&machine);
        let contents = contents(0..400);
        machine.run(async {
            for (number, some) in contents.chunks(40).enumerate() {
                if number == 5 {
                    machine.disks[fails].set_faults(Faults { write_error: 1.0, sync_error: 1.0, ..Faults::default() });
                }
                store.put_many(Class::Data, some.to_vec()).await.unwrap();
                store.settle(store.moment()).await.unwrap();
            }
        });
        assert!(!store.status().disks[fails].is_good && store.counters().pack_disks_left.value() > 0);
        expect_all(&machine, &store, &contents);
        machine.run(store.close()).unwrap();
        // What is left with one copy is told; nothing is on the disk that failed alone.
        let with_one = || {
            let known = store.packs.known();
            let left = |files: &BTreeMap<usize, Vec<u8>>| files.keys().filter(|disk| **disk != fails).count();
            let of_store = packs(&machine).into_iter().filter(|(pack, _)| known.contains_key(pack));
            of_store.filter(|(_, files)| left(files) < 2).count() as u64
        };
        let status = store.status();
        assert_eq!(status.disks[fails].alone, MissingStatus::default());
        assert_eq!(status.lacking.packs, with_one());
        assert!(status.lacking.chunks > 0);
        let report = restore(&machine, &store);
        // Of two disks one is left: nothing can be done.
        assert_eq!(report.written, if counts == 3 { status.lacking.packs } else { 0 }, "{report:?}");
        assert_eq!(report.problems, Vec::<String>::new());
        assert_eq!(store.status().lacking.packs, with_one());
        assert_eq!(with_one() == 0, counts == 3);
        // The index, too.
        expect_sound_but_for(&machine, &store, fails, counts);
        drop(store);
        machine.world.crash();
        machine.world.restart();
        machine.disks[fails].set_faults(Faults::default());
        // And it may be gone altogether.
        let there: Vec<_> = (0..counts).filter(|disk| *disk != fails).map(|disk| machine.disks[disk].disk()).collect();
        let (store, _) = machine.run(Store::open(&machine.world.platform(), &there, two_copies())).unwrap();
        expect_all(&machine, &store, &contents);
    }
}

/// What only disks have that failed together is at risk on each of them: without one of them the others are no help.
#[test]
fn what_lies_on_disks_that_failed_together_is_at_risk_on_both() {
    let machine = Machine::new(4, 3, 64 << 20);
    let (store, contents) = (open(&machine), contents(0..200));
    machine.run(store.put_many(Class::Data, contents.clone())).unwrap();
    close(&machine, store);
    machine.world.restart();
    // It is in no cache.
    let store = open(&machine);
    let fail = |faults: Faults| machine.disks[..2].iter().for_each(|disk| disk.set_faults(faults.clone()));
    assert!(store.status().disks.iter().all(|disk| disk.alone == MissingStatus::default()));
    fail(Faults { write_error: 1.0, sync_error: 1.0, ..Faults::default() });
    machine.run(async {
        store.put_many(Class::Data, contents_beyond(&contents)).await.unwrap();
        store.commit(store.moment(), b"roots", store.last_logged()).await.unwrap();
    });
    let status = store.status();
    assert_eq!(status.disks.iter().map(|disk| disk.is_good).collect::<Vec<_>>(), [false, false, true]);
    assert!(status.disks[0].alone.packs > 0 && status.disks[0].alone == status.disks[1].alone, "{:?}", status.disks);
    fail(Faults { is_dead: true, ..Faults::default() });
    let mut unreadable = 0;
    machine.run(async {
        for content in &contents {
            let read = store.get(Class::Data, &store.key().address(content)).await;
            unreadable += u64::from(read.is_err());
        }
    });
    assert_eq!(status.disks[0].alone.chunks, unreadable);
}

/// K-3: a settle answers only for what was synced after a disk was left, also where somebody who appends has a pack leave it before the settle
/// has looked. The power goes at any moment afterwards.
#[test]
fn what_is_settled_while_a_disk_fails_is_there_after_a_power_cut() {
    each_seed(0..100, |seed| {
        let machine = Machine::new(seed, 2, 64 << 20);
        let store = open(&machine);
        let (world, now) = (&machine.world, machine.world.operations());
        let fails = now + 1 + world.below(60);
        world.fail_at(fails, DiskErrorKind::Failed);
        world.cut_power_at(fails + 1 + world.below(30));
        let settled = Arc::new(Mutex::new(Vec::new()));
        for writer in 0..4 {
            let (store, settled) = (store.clone(), settled.clone());
            let task = async move {
                for number in 0..20 {
                    let content = content(writer * 100 + number, 3_000);
                    let put = store.put_many(Class::Data, vec![content.clone()]).await;
                    if put.is_ok() && store.settle(store.moment()).await.is_ok() {
                        settled.lock().push(content);
                    }
                }
            };
            world.platform().tasks.spawn("writer", Box::pin(task));
        }
        world.run_for(Duration::from_secs(600)).unwrap();
        drop(store);
        world.crash();
        world.restart();
        let store = open(&machine);
        expect_all(&machine, &store, &settled.lock());
    });
}

/// A request may be given up while it syncs, as at the end of a mount. What its sync came to is known nevertheless.
#[test]
fn a_settle_that_is_dropped_halfway_fails_no_disk() {
    let machine = Machine::new(5, 2, 64 << 20);
    let store = open(&machine);
    let (tasks, contents) = (machine.world.platform().tasks, contents(0..100));
    let dropped = machine.run(async {
        let mut dropped = 0;
        for (number, content) in contents.iter().enumerate() {
            store.put_many(Class::Data, vec![content.clone()]).await.unwrap();
            let limit = tasks.sleep(Duration::from_micros(10 * number as u64));
            dropped += u64::from(matches!(first(store.settle(store.moment()), limit).await, First::Right(())));
        }
        store.settle(store.moment()).await.unwrap();
        dropped
    });
    assert!(dropped > 10, "{dropped} were dropped");
    assert!(store.status().disks.iter().all(|disk| disk.is_good));
    assert_eq!(store.counters().pack_disks_left.value(), 0);
    expect_all(&machine, &store, &contents);
    close(&machine, store);
    expect_all(&machine, &open(&machine), &contents);
}

/// N-3: whatever each of the disks has of a pack that was open when the power went, afterwards both have all of it.
#[test]
fn what_a_crash_left_of_a_pack_is_the_same_on_all_its_disks_afterwards() {
    each_seed(0..60, |seed| {
        let machine = Machine::new(seed, 3, 64 << 20);
        let store = open(&machine);
        let cut = machine.world.below(400) + machine.world.operations();
        machine.world.cut_power_at(cut);
        let contents = contents(0..100);
        let mut promised = 0;
        machine.run(async {
            for (number, some) in contents.chunks(5).enumerate() {
                let put = store.put_many(Class::Data, some.to_vec()).await;
                if number % 3 == 0 && put.is_ok() && store.settle(store.moment()).await.is_ok() {
                    promised = 5 * (number + 1);
                }
            }
        });
        drop(store);
        machine.world.crash();
        machine.world.restart();
        let store = open(&machine);
        expect_all(&machine, &store, &contents[..promised]);
        machine.run(store.close()).unwrap();
        for (pack, files) in packs(&machine) {
            let all: Vec<&Vec<u8>> = files.values().collect();
            assert!(all.windows(2).all(|two| two[0] == two[1]), "seed {seed}: pack {pack} differs");
        }
        // A file may not have been made on the second disk when the power went.
        assert_eq!(restore(&machine, &store).problems, Vec::<String>::new());
        expect_sound(&machine, &store);
        drop(store);
        for (pack, files) in packs(&machine) {
            assert_eq!(files.len(), 2, "seed {seed}: pack {pack}");
        }
    });
}

/// N-3, where the power went between the directory on one disk and on the other: what was settled ends with a page (K-11), and the last chunk
/// before that.
#[test]
fn a_pack_that_was_sealed_on_one_disk_is_the_same_on_both_afterwards() {
    for last in [false, true] {
        let machine = Machine::new(31, 2, 64 << 20);
        let store = open(&machine);
        let contents = contents(0..20);
        machine.run(async {
            for some in contents.chunks(3) {
                store.put_many(Class::Data, some.to_vec()).await.unwrap();
                store.settle(store.moment()).await.unwrap();
            }
            store.packs.seal_all().await;
        });
        drop(store);
        machine.world.crash();
        machine.world.restart();
        for (pack, files) in packs(&machine) {
            let (disk, bytes) = if last { files.last_key_value() } else { files.first_key_value() }.unwrap();
            let data_bytes = PackFooter::decode(&bytes[bytes.len() - PackFooter::BYTES..], pack).unwrap().data_bytes;
            assert!(data_bytes.is_multiple_of(4096), "{data_bytes}");
            machine.disks[*disk].truncate(&pack_path(pack), u64::from(data_bytes));
        }
        let store = open(&machine);
        assert!(!store.lacks_copies());
        expect_all(&machine, &store, &contents);
        expect_sound(&machine, &store);
        close(&machine, store);
        for (pack, files) in packs(&machine) {
            let all: Vec<&Vec<u8>> = files.values().collect();
            assert!(all.len() == 2 && all[0] == all[1], "pack {pack} differs");
        }
    }
}

/// N-4: a disk that failed and is back has less of a pack than another, which is missing now. What is there is used, and the rest is not given up.
#[test]
fn what_a_missing_disk_may_have_more_of_is_not_sealed_without_it() {
    for (of_its_disks, closes) in (0..2).flat_map(|disk| [false, true].map(|closes| (disk, closes))) {
        let machine = Machine::new(32, 3, 64 << 20);
        let store = open(&machine);
        let contents = contents(0..60);
        machine.run(async {
            for some in contents.chunks(5) {
                store.put_many(Class::Data, some.to_vec()).await.unwrap();
                store.settle(store.moment()).await.unwrap();
            }
        });
        drop(store);
        machine.world.crash();
        machine.world.restart();
        let packs_before = packs(&machine);
        let missing = *packs_before[&1].keys().nth(of_its_disks).unwrap();
        for (pack, files) in packs_before.iter().filter(|(_, files)| files.contains_key(&missing)) {
            for (disk, bytes) in files.iter().filter(|(disk, _)| **disk != missing) {
                machine.disks[*disk].truncate(&pack_path(*pack), bytes.len() as u64 / 2);
            }
        }
        let there: Vec<_> = (0..3).filter(|disk| *disk != missing).map(|disk| machine.disks[disk].disk()).collect();
        for _ in 0..2 {
            let (store, _) = machine.run(Store::open(&machine.world.platform(), &there, two_copies())).unwrap();
            let is_read = |content: &&Bytes| machine.run(store.get(Class::Data, &store.key().address(content))).is_ok();
            let count = contents.iter().filter(is_read).count();
            assert!(count > 0 && count < contents.len(), "{count}");
            let found = machine.run(store.check(Depth::Deep, &|_, _| {})).problems;
            // That a disk is missing, and that packs are on one alone.
            assert!(found.iter().all(|problem| ["HF0019", "HF0020"].contains(&problem.code)), "{found:?}");
            assert_eq!(restore(&machine, &store).problems, Vec::<String>::new());
            machine.run(reclaim(&store, &|_| true)).unwrap();
            if closes {
                machine.run(store.close()).unwrap();
            }
            drop(store);
            machine.world.crash();
            machine.world.restart();
        }
        let store = open(&machine);
        expect_all(&machine, &store, &contents);
        assert_eq!(restore(&machine, &store).problems, Vec::<String>::new());
        expect_sound(&machine, &store);
        expect_all(&machine, &store, &contents);
        close(&machine, store);
        for (pack, files) in packs(&machine) {
            let all: Vec<&Vec<u8>> = files.values().collect();
            assert!(all.len() == 2 && all[0] == all[1], "pack {pack} differs");
        }
    }
}

/// N-4: of a pack that waits for a disk nothing lies on one disk alone for long, what is put again is on two, and when the disk is given up
/// the pack is sealed, with whatever a crash left behind its chunks.
#[test]
fn a_pack_that_waits_for_a_disk_is_made_up_for_and_sealed_without_it() {
    for of_its_disks in 0..2 {
        let machine = Machine::new(33, 4, 64 << 20);
        let store = open(&machine);
        let contents = contents(0..60);
        machine.run(async {
            store.put_many(Class::Data, contents.clone()).await.unwrap();
            store.settle(store.moment()).await.unwrap();
            let last = store.log(b"frame");
            store.commit(store.moment(), b"second", last).await.unwrap();
        });
        drop(store);
        machine.world.crash();
        machine.world.restart();
        let (pack, files) = packs(&machine).pop_first().unwrap();
        let missing = *files.keys().nth(of_its_disks).unwrap();
        let there: Vec<_> = (0..4).filter(|disk| *disk != missing).map(|disk| machine.disks[disk].disk()).collect();
        let reopen = || machine.run(Store::open(&machine.world.platform(), &there, two_copies()));
        let (store, _) = match reopen() {
            Ok(opened) => opened,
            Err(StoreError::Refused { .. }) if missing == 0 => continue,
            Err(error) => panic!("{error}"),
        };
        let place = |store: &Store, content: &Bytes| {
            store.packs.index.lookup(&store.key().address(content), &store.packs.counters).unwrap().unwrap()
        };
        let waits = |store: &Store| contents.iter().find(|content| place(store, content).pack == pack).cloned();
        let one = waits(&store).expect("it has a chunk");
        assert!(store.lacks_copies());
        machine.run(async {
            store.put(Class::Data, &one).await.unwrap();
            store.settle(store.moment()).await.unwrap();
        });
        assert_ne!(place(&store, &one).pack, pack, "it is put where there are two");
        assert_eq!(restore(&machine, &store).problems, Vec::<String>::new());
        assert_eq!(waits(&store), None);
        assert!(!store.lacks_copies());
        expect_all(&machine, &store, &contents);
        machine.run(async {
            let covered = store.last_logged();
            store.commit(store.moment(), b"third", covered).await.unwrap();
            store.commit(store.moment(), b"third", covered).await.unwrap();
            // Nobody knows what it has of that pack.
            let refused = store.remove_disk(missing as u64, false).await;
            assert!(matches!(refused, Err(StoreError::Refused { .. })), "{:?}", refused.map(drop));
            store.remove_disk(missing as u64, true).await.unwrap();
        });
        assert_eq!(restore(&machine, &store).problems, Vec::<String>::new());
        assert!(!store.lacks_copies());
        expect_sound(&machine, &store);
        close(&machine, store);
        let (store, _) = reopen().unwrap();
        expect_all(&machine, &store, &contents);
        expect_sound(&machine, &store);
    }
}

/// N-4 and X-4: a disk that answers, and cannot read what it has of a pack, may have more of it than another.
#[test]
fn what_a_disk_cannot_read_of_an_open_pack_is_not_given_up() {
    let machine = Machine::new(34, 3, 64 << 20);
    let store = open(&machine);
    let contents = contents(0..60);
    machine.run(async {
        store.put_many(Class::Data, contents.clone()).await.unwrap();
        store.settle(store.moment()).await.unwrap();
    });
    drop(store);
    machine.world.crash();
    machine.world.restart();
    let mut unreadable = Vec::new();
    for (pack, files) in packs(&machine) {
        let (less, more) = (files.first_key_value().unwrap(), files.last_key_value().unwrap());
        machine.disks[*less.0].truncate(&pack_path(pack), less.1.len() as u64 / 2);
        machine.disks[*more.0].set_faults(Faults { read_error: 0.3, ..Faults::default() });
        unreadable.push(*more.0);
    }
    for _ in 0..4 {
        let Ok((store, _)) = try_open(&machine) else { continue };
        restore(&machine, &store);
        for content in &contents {
            let read = machine.run(store.get(Class::Data, &store.key().address(content)));
            assert!(!matches!(read, Err(StoreError::Absent { .. })), "nobody knows");
        }
        drop(store);
        machine.world.crash();
        machine.world.restart();
    }
    unreadable.iter().for_each(|disk| machine.disks[*disk].set_faults(Faults::default()));
    let store = open(&machine);
    expect_all(&machine, &store, &contents);
}

/// T-3: of two files one has bad chunks, and the other a bad footer.
#[test]
fn what_can_be_read_from_some_file_is_not_damaged() {
    let (machine, contents) = node(12);
    for (pack, files) in packs(&machine) {
        let ends = [files.first_key_value(), files.last_key_value()].map(|file| file.unwrap());
        let [(one, _), (other, bytes)] = ends;
        (5000..bytes.len() as u64 / 2)
            .step_by(9000)
            .for_each(|at| machine.disks[*one].flip_bit(&pack_path(pack), at, 1));
        machine.disks[*other].flip_bit(&pack_path(pack), bytes.len() as u64 - 20, 1);
    }
    let store = open(&machine);
    let found = machine.run(store.check(Depth::Deep, &|_, _| {})).problems;
    let is_there = |code| found.iter().any(|problem| problem.code == code);
    assert!(is_there("HF0007") && is_there("HF0005"), "{found:?}");
    assert!(contents.iter().all(|content| store.contains(&store.key().address(content))));
}

/// What reclaim removes is gone from every disk.
#[test]
fn a_dead_pack_goes_from_all_its_disks() {
    let (machine, contents) = node(6);
    let store = open(&machine);
    let kept: std::collections::BTreeSet<_> =
        contents[..20].iter().map(|content| store.key().address(content)).collect();
    let report = machine.run(reclaim(&store, &|address| kept.contains(address))).unwrap();
    assert!(report.packs_deleted > 0);
    expect_all(&machine, &store, &contents[..20]);
    close(&machine, store);
    expect_twice(&machine);
}

/// The same chunks in two packs on the same disks, closed; their numbers, and the chunks.
fn stored_twice(machine: &Machine, contents: &[Bytes]) -> ([u64; 2], BTreeSet<ChunkAddress>) {
    let store = open(machine);
    let needed: BTreeSet<_> = contents.iter().map(|content| store.key().address(content)).collect();
    let places = [(); 2].map(|()| {
        machine.run(async {
            store.put_many(Class::Data, contents.to_vec()).await.unwrap();
            store.commit(store.moment(), b"roots", store.last_logged()).await.unwrap();
            store.packs.seal_all().await;
        });
        // All of it is stored anew.
        needed.iter().for_each(|address| store.packs.doubt(*address));
        named(&store, &needed)
    });
    assert_ne!(places[0], places[1]);
    close(machine, store);
    (places, needed)
}

/// The pack that the index names for chunks that lie together.
fn named(store: &Store, chunks: &BTreeSet<ChunkAddress>) -> u64 {
    let lookup = |address| store.packs.index.lookup(address, &store.counters).unwrap().unwrap().pack;
    let packs: BTreeSet<u64> = chunks.iter().map(lookup).collect();
    assert_eq!(packs.len(), 1, "{packs:?}");
    packs.into_iter().next().expect("one")
}

/// O-5: a disk that comes back with a pack that went without it is not named for what lies on two (seed 1750008623 of plan `absences`).
#[test]
fn what_lies_on_two_disks_is_named_and_not_what_is_on_one() {
    for (alone, gone) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let machine = Machine::new(28, 2, 64 << 20);
        let contents = contents(0..20);
        let (places, needed) = stored_twice(&machine, &contents);
        // As after a life without the one disk, in which that pack went, and the index lost since.
        assert!(machine.disks[gone].remove(&pack_path(places[alone])));
        assert!(machine.disks.iter().any(|disk| disk.remove("index")));
        let store = open(&machine);
        assert_eq!(named(&store, &needed), places[1 - alone], "without disk {gone}, pack {alone}");
        machine.run(reclaim(&store, &|address| needed.contains(address))).unwrap();
        close(&machine, store);
        let there = [machine.disks[gone].disk()];
        let (store, _) = machine.run(Store::open(&machine.world.platform(), &there, two_copies())).unwrap();
        expect_all(&machine, &store, &contents);
    }
}

/// L-4: two packs with the same chunks, each on a disk that the other is not on, survive together what neither would: what is on one disk alone
/// lets the other go only when it is on two (seed 181240220657 of plan `absences`).
#[test]
fn what_lies_on_one_disk_alone_lets_no_copy_on_another_go() {
    let machine = Machine::new(27, 2, 64 << 20);
    let contents = contents(0..20);
    let (places, needed) = stored_twice(&machine, &contents);
    // As after a life without the one disk, in which what was there was copied and went, and the index lost since.
    assert!(machine.disks[0].remove(&pack_path(places[1])) && machine.disks[1].remove(&pack_path(places[0])));
    assert!(machine.disks.iter().any(|disk| disk.remove("index")));
    let store = open(&machine);
    let copies = || packs(&machine).into_iter().filter(|(pack, _)| places.contains(pack)).collect::<BTreeMap<_, _>>();
    let reclaim = || machine.run(reclaim(&store, &|address| needed.contains(address))).unwrap();
    reclaim();
    assert_eq!(copies().len(), 2, "one on each disk");
    assert_eq!(restore(&machine, &store).problems, Vec::<String>::new());
    reclaim();
    reclaim();
    let left = copies();
    assert!(left.len() == 1 && left.values().all(|files| files.len() == 2), "{:?}", left.keys());
    expect_all(&machine, &store, &contents);
    expect_sound(&machine, &store);
}

/// L-6: of a pack that has rotted on all its disks nothing is told any more when nobody needs that; else all of it is on two disks but that.
#[test]
fn what_has_rotted_everywhere_is_let_go_unless_somebody_needs_it() {
    for is_needed in [false, true] {
        let (machine, contents) = node(11);
        let store = open(&machine);
        let lost = store.key().address(&contents[30]);
        let at = store.packs.index.lookup(&lost, &store.packs.counters).unwrap().unwrap();
        close(&machine, store);
        let path = crate::format::pack_path(at.pack);
        for disk in packs(&machine)[&at.pack].keys() {
            machine.disks[*disk].corrupt(&path, u64::from(at.offset) + 100, &[7; 500]);
        }
        let store = open(&machine);
        machine.run(store.scrub(std::time::Duration::ZERO, &hurried(&store), &|_, _| {}));
        let report = restore(&machine, &store);
        assert_eq!((report.lacking, report.problems.len(), store.wants_reclaim()), (1, 1, true), "{report:?}");
        let report = machine.run(reclaim(&store, &|address| is_needed || *address != lost)).unwrap();
        assert_eq!((report.problems.len(), report.packs_deleted), if is_needed { (1, 0) } else { (0, 1) });
        let report = restore(&machine, &store);
        assert_eq!(report.problems.len(), usize::from(is_needed), "{report:?}");
        assert!(!store.wants_reclaim(), "once");
        let others: Vec<Bytes> = [&contents[..30], &contents[31..]].concat();
        expect_all(&machine, &store, &others);
        let found = machine.run(store.check(Depth::Deep, &|_, _| {})).problems;
        let is_told = |problem: &crate::Problem| problem.expected.contains(&lost.to_string());
        assert!(found.iter().all(is_told) && found.is_empty() != is_needed, "{found:?}");
        // Nothing else is copied by the passes after that.
        machine.run(reclaim(&store, &|address| is_needed || *address != lost)).unwrap();
        let copied = store.counters().reclaim_copied_bytes.value();
        let stored = store.space().free;
        machine.run(reclaim(&store, &|address| is_needed || *address != lost)).unwrap();
        assert_eq!(store.counters().reclaim_copied_bytes.value(), copied);
        assert!(store.space().free >= stored);
        close(&machine, store);
        // Whichever disk goes.
        for gone in 0..3 {
            let there: Vec<_> = (0..3).filter(|disk| *disk != gone).map(|disk| machine.disks[disk].disk()).collect();
            let (store, _) = machine.run(Store::open(&machine.world.platform(), &there, two_copies())).unwrap();
            expect_all(&machine, &store, &others);
            close(&machine, store);
        }
    }
}

fn expect_twice(machine: &Machine) {
    for (pack, files) in packs(machine) {
        assert_eq!(files.len(), 2, "pack {pack}");
    }
}

fn expect_sound_but_for(machine: &Machine, store: &Store, fails: usize, counts: usize) {
    let report = machine.run(store.check(Depth::Deep, &|_, _| {}));
    // Of a disk that takes no writes the superblocks lag, and on one disk alone there can be no copies.
    let is_known = |problem: &crate::Problem| {
        problem.path.starts_with(&format!("/d{fails}/")) || (counts == 2 && problem.code == "HF0020")
    };
    assert!(report.problems.iter().all(is_known), "{:?}", report.problems);
}

/// J-9 and R-5: whichever disk goes at whatever moment, no frame that was synced is missing, nor a commit.
#[test]
fn the_journal_outlives_any_disk() {
    let mut homes_changed = 0;
    each_seed(40..110, |seed| {
        let count = 2 + (seed % 2) as usize;
        let machine = Machine::new(seed, count, 64 << 20);
        let any = || machine.world.below(count as u64) as usize;
        let mut promised: Vec<Vec<u8>> = Vec::new();
        let mut logged = 0_u64;
        for life in 0..6 {
            // One at a time is what two copies stand: one is gone, or fails while the node works, and all are there in the next life.
            let gone = (life % 2 == 1).then(any);
            let there = (0..count).filter(|disk| Some(*disk) != gone).map(|disk| machine.disks[disk].disk());
            let there: Vec<_> = there.collect();
            let (store, recovered) = machine
                .run(Store::open(&machine.world.platform(), &there, two_copies()))
                .unwrap_or_else(|error| panic!("seed {seed}, life {life} without {gone:?}: {error}"));
            let mut history = history_of(&recovered);
            let (found, expected) = (history.len(), promised.len());
            assert!(history.starts_with(&promised), "seed {seed}, life {life} without {gone:?}: {found} of {expected}");
            promised.clone_from(&history);
            let fails = (gone.is_none() && any() == 0).then(any);
            let fault = Faults { write_error: 1.0, sync_error: 1.0, ..Faults::default() };
            machine.run(async {
                for round in 0..8 {
                    if let Some(fails) = fails.filter(|_| round == 3) {
                        machine.disks[fails].set_faults(fault.clone());
                    }
                    for _ in 0..3 {
                        logged += 1;
                        let mut frame = logged.to_le_bytes().to_vec();
                        history.push(frame.clone());
                        frame.resize(8 + machine.world.below(200_000) as usize, 7);
                        store.log(&frame);
                    }
                    if machine.world.below(2) == 0 {
                        store.sync_log(store.last_logged()).await.unwrap();
                        promised.clone_from(&history);
                    }
                    if machine.world.below(4) == 0 {
                        store.commit(store.moment(), &history.concat(), store.last_logged()).await.unwrap();
                        promised.clone_from(&history);
                    }
                }
            });
            homes_changed += store.counters().log_homes_changed.value();
            drop(store);
            machine.world.restart();
            if let Some(fails) = fails {
                machine.disks[fails].set_faults(Faults::default());
                let (store, recovered) = try_open(&machine).unwrap();
                let history = history_of(&recovered);
                assert!(history.starts_with(&promised), "seed {seed}, life {life} after {fails} failed");
                // What was on one disk alone meanwhile is on two when a superblock covers it.
                machine.run(store.commit(store.moment(), &history.concat(), store.last_logged())).unwrap();
                promised = history;
                drop(store);
                machine.world.restart();
            }
        }
    });
    assert!(homes_changed > 10, "{homes_changed}");
}

/// J-11: a disk that is home again has every frame, or is not named as one that has: full, or failing, when the node is opened.
#[test]
fn a_home_that_could_not_be_given_what_it_lacks_is_not_named() {
    for is_full in [false, true] {
        let machine = Machine::new(35, 2, 64 << 20);
        close(&machine, open(&machine));
        let alone = |disk: usize| {
            machine.run(Store::open(&machine.world.platform(), &[machine.disks[disk].disk()], two_copies()))
        };
        let (store, _) = alone(1).unwrap();
        machine.run(async {
            for _ in 0..20 {
                store.sync_log(store.log(b"acknowledged")).await.unwrap();
            }
        });
        drop(store);
        machine.world.crash();
        machine.world.restart();
        if is_full {
            let space = machine.disks[0].disk().space().unwrap();
            machine.disks[0].set_capacity(space.total - space.free);
        } else {
            machine.disks[0].set_faults(Faults { sync_error: 1.0, ..Faults::default() });
        }
        let (store, recovered) = try_open(&machine).unwrap();
        assert_eq!(recovered.frames.len(), 20);
        drop(store);
        machine.world.crash();
        machine.world.restart();
        machine.disks[0].set_faults(Faults::default());
        machine.disks[0].set_capacity(64 << 20);
        let was_used = match alone(0) {
            Ok((_, recovered)) => {
                assert_eq!(recovered.frames.len(), 20, "full: {is_full}");
                true
            }
            Err(error) => {
                assert!(matches!(error, StoreError::JournalMissing { .. }), "{error}");
                false
            }
        };
        machine.world.restart();
        match try_open(&machine) {
            Ok((_, recovered)) => {
                assert!(!was_used, "full: {is_full}");
                assert_eq!(recovered.frames.len(), 20, "full: {is_full}");
            }
            // S-6: the one was used while the other failed, and that without the one.
            Err(error) => assert!(was_used && matches!(error, StoreError::TwoHistories { .. }), "{error}"),
        }
    }
}

/// J-11: what a disk has that was left stands for no home, neither when it ends early nor when it was never begun.
#[test]
fn a_home_that_cannot_be_read_is_not_made_up_for_by_a_disk_that_was_left() {
    for (left, is_void) in [(0, false), (1, false), (0, true), (1, true)] {
        let machine = Machine::new(36, 2, 64 << 20);
        let store = open(&machine);
        let fault = Faults { write_error: 1.0, sync_error: 1.0, ..Faults::default() };
        machine.run(async {
            for round in 0..2 {
                if round == usize::from(!is_void) {
                    machine.disks[left].set_faults(fault.clone());
                }
                store.sync_log(store.log(&[7; 5000])).await.unwrap();
            }
        });
        let logged = store.last_logged().0;
        drop(store);
        machine.world.crash();
        machine.world.restart();
        machine.disks[left].set_faults(Faults::default());
        let home = &machine.disks[1 - left];
        let segments: Vec<String> =
            home.durable_files().into_keys().filter(|path| path.starts_with("journal/")).collect();
        for path in &segments {
            home.set_unreadable(path, 4096..8192);
        }
        let told = try_open(&machine).err().expect("nobody knows what was acknowledged");
        assert!(matches!(told, StoreError::Disk(_)), "{told}");
        for path in &segments {
            home.set_unreadable(path, 0..0);
        }
        let (_, recovered) = try_open(&machine).unwrap();
        assert_eq!(recovered.frames.len() as u64, logged, "disk {left} was left, void: {is_void}");
    }
}

/// The numbers of all frames, the committed ones first.
fn history_of(recovered: &Recovered) -> Vec<Vec<u8>> {
    let committed = if recovered.roots == b"first" { &[][..] } else { &recovered.roots[..] };
    let after = recovered.frames.iter().map(|(_, frame)| &frame[..8]);
    committed.chunks(8).chain(after).map(<[u8]>::to_vec).collect()
}

/// S-6: neither is dropped silently.
#[test]
fn disks_that_were_used_without_each_other_are_two_histories() {
    let machine = Machine::new(9, 2, 64 << 20);
    close(&machine, open(&machine));
    for alone in [0, 1] {
        let there = [machine.disks[alone].disk()];
        let (store, _) = machine.run(Store::open(&machine.world.platform(), &there, two_copies())).unwrap();
        machine.run(async {
            store.log(b"alone");
            store.commit(store.moment(), b"alone", store.last_logged()).await.unwrap();
        });
        close(&machine, store);
    }
    let told = try_open(&machine).err().expect("they differ");
    assert!(matches!(told, StoreError::TwoHistories { .. }), "{told}");
}
