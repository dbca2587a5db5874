//! Packs in fragments: any m of their k+m disks may fail, lie or go, at any moment, and nothing is lost.

mod found;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use platform::disk::Disk;
use platform::sim::{Faults, each_seed};

use super::{Machine, content, hurried, options, reclaim};
use crate::format::FragmentName;
use crate::{Class, CopiesReport, Depth, Erasure, Options, Recovered, Resilience, Store, StoreError};

const DISKS: usize = 6;

fn contents(numbers: std::ops::Range<u64>) -> Vec<Bytes> {
    numbers.map(|number| content(number * 2, 30_000)).collect()
}

fn four_two() -> Options {
    Options { fragments: Erasure::new(4, 2), goes_without_disks: true, ..options() }
}

fn open_some(machine: &Machine, handles: &[Disk], options: Options) -> Result<(Arc<Store>, Recovered), StoreError> {
    machine.run(Store::open(&machine.world.platform(), handles, options))
}

fn open(machine: &Machine) -> Arc<Store> {
    open_some(machine, &machine.handles(), four_two()).unwrap().0
}

fn without(machine: &Machine, gone: &[usize]) -> Vec<Disk> {
    (0..machine.disks.len()).filter(|disk| !gone.contains(disk)).map(|disk| machine.disks[disk].disk()).collect()
}

fn end(machine: &Machine, store: Arc<Store>) {
    machine.run(store.close()).unwrap();
    drop(store);
    machine.world.crash();
    machine.world.restart();
}

async fn put(store: &Arc<Store>, contents: &[Bytes]) -> Result<(), StoreError> {
    store.put_many(Class::Data, contents.to_vec()).await?;
    store.put(Class::Metadata, b"a node of a tree").await?;
    let last = store.log(b"frame");
    store.commit(store.moment(), b"second", last).await
}

fn restore(machine: &Machine, store: &Store) -> CopiesReport {
    machine.run(store.restore_copies(&hurried(store), &|_, _| {}))
}

/// Everything sealed, known to the index, and cut.
pub(super) async fn cut_all(store: &Store) -> CopiesReport {
    store.packs.seal_all().await;
    // Where its disk failed it is made on another one first.
    let report = store.restore_copies(&hurried(store), &|_, _| {}).await;
    if store.take_into_index().await.is_err() {
        return report;
    }
    store.restore_copies(&hurried(store), &|_, _| {}).await
}

/// A node on six disks (or so many) with chunks in fragments, closed.
fn node(seed: u64, disks: usize) -> (Machine, Vec<Bytes>) {
    let machine = Machine::new(seed, disks, 64 << 20);
    let contents = contents(0..200);
    let store = open(&machine);
    machine.run(async {
        put(&store, &contents).await.unwrap();
        let report = cut_all(&store).await;
        assert_eq!((report.lacking, &report.problems), (0, &Vec::new()));
    });
    assert!(!store.lacks_copies());
    end(&machine, store);
    (machine, contents)
}

fn expect_all(machine: &Machine, store: &Arc<Store>, contents: &[Bytes]) {
    machine.run(async {
        for content in contents {
            assert_eq!(store.get(Class::Data, &store.key().address(content)).await.unwrap(), content);
        }
    });
}

fn expect_sound(machine: &Machine, store: &Store) {
    assert_eq!(machine.run(store.check(Depth::Deep, &|_, _| {})).problems, Vec::new());
}

/// By pack: which disk has which fragment, durably.
fn fragments(machine: &Machine) -> BTreeMap<u64, BTreeSet<(u8, usize)>> {
    let mut fragments: BTreeMap<u64, BTreeSet<(u8, usize)>> = BTreeMap::new();
    for (disk, sim) in machine.disks.iter().enumerate() {
        for path in sim.durable_files().into_keys() {
            if let Some(name) = path.strip_prefix("packs/").and_then(FragmentName::of) {
                fragments.entry(name.pack).or_default().insert((name.index, disk));
            }
        }
    }
    fragments
}

fn expect_whole_classes(machine: &Machine) {
    let fragments = fragments(machine);
    assert!(fragments.len() > 3, "{fragments:?}");
    for (pack, places) in fragments {
        let indices: Vec<u8> = places.iter().map(|(index, _)| *index).collect();
        let disks: BTreeSet<usize> = places.iter().map(|(_, disk)| *disk).collect();
        assert_eq!(indices, [0, 1, 2, 3, 4, 5], "pack {pack}");
        assert_eq!(disks.len(), 6, "pack {pack} is on {disks:?}");
    }
}

pub(super) fn paths_of_fragments(machine: &Machine, disk: usize) -> Vec<(String, u64)> {
    let files = machine.disks[disk].durable_files().into_iter();
    files.filter(|(path, _)| path.ends_with(".fragment")).map(|(path, bytes)| (path, bytes.len() as u64)).collect()
}

fn pairs() -> impl Iterator<Item = [usize; 2]> {
    (0..DISKS).flat_map(|one| (one + 1..DISKS).map(move |other| [one, other]))
}

/// What content takes on all disks, in bytes for each byte.
fn stored(machine: &Machine, content: u64) -> f64 {
    let of_packs = |path: &str| path.starts_with("packs/");
    let files = machine.disks.iter().flat_map(|disk| disk.durable_files());
    let bytes: u64 = files.filter(|(path, _)| of_packs(path)).map(|(_, bytes)| bytes.len() as u64).sum();
    bytes as f64 / content as f64
}

#[test]
fn fragments_survive_as_much_as_three_copies_and_take_half_the_room() {
    let (machine, contents) = node(1, DISKS);
    expect_whole_classes(&machine);
    let bytes: u64 = contents.iter().map(|content| content.len() as u64).sum();
    let in_fragments = stored(&machine, bytes);
    let copies = Machine::new(1, DISKS, 64 << 20);
    let (store, _) = open_some(&copies, &copies.handles(), Options { copies: 3, ..options() }).unwrap();
    copies.run(put(&store, &contents)).unwrap();
    end(&copies, store);
    let in_copies = stored(&copies, bytes);
    println!("bytes stored for each byte of content: 4+2 {in_fragments:.3}, 3 copies {in_copies:.3}");
    assert!((1.5..1.6).contains(&in_fragments) && (3.0..3.1).contains(&in_copies), "{in_fragments} {in_copies}");
    let store = open(&machine);
    expect_all(&machine, &store, &contents);
    assert_eq!(store.counters().reads_made.value(), 0, "a chunk is read where it lies");
    expect_sound(&machine, &store);
    let status = store.status();
    assert!(status.cut.packs > 3 && status.cut.fragments == 6 * status.cut.packs, "{status:?}");
    assert_eq!(status.lacking.packs, 0);
}

/// Gone as a disk that is not mounted is, and what was written meanwhile survives the same again.
#[test]
fn any_two_of_six_disks_may_be_missing() {
    let (machine, contents) = node(2, DISKS);
    for gone in pairs() {
        let (store, recovered) = open_some(&machine, &without(&machine, &gone), four_two()).unwrap();
        assert_eq!(recovered.roots, b"second", "without {gone:?}");
        expect_all(&machine, &store, &contents);
        assert!(store.counters().reads_made.value() > 0);
        drop(store);
        machine.world.restart();
    }
}

/// With the index gone too: it is made again from fragments.
#[test]
fn the_index_is_made_again_from_fragments() {
    let (machine, contents) = node(3, DISKS);
    for gone in [vec![], vec![1, 4]] {
        for disk in &machine.disks {
            disk.remove("index");
        }
        let (store, recovered) = open_some(&machine, &without(&machine, &gone), four_two()).unwrap();
        assert!(recovered.report.index_made_again.is_some(), "{:?}", recovered.report);
        expect_all(&machine, &store, &contents);
        drop(store);
        machine.world.restart();
    }
    let store = open(&machine);
    machine.run(store.remake_index(&|| true)).unwrap();
    expect_all(&machine, &store, &contents);
    expect_sound(&machine, &store);
}

/// K-10: whatever two disks have wrong is found by who reads it, or by scrub, and made again.
#[test]
fn what_two_disks_have_wrong_is_made_of_the_others_and_written_again() {
    for (round, gone) in pairs().enumerate() {
        let (machine, contents) = node(4, DISKS);
        for disk in gone {
            let on = &machine.disks[disk];
            for (path, length) in paths_of_fragments(&machine, disk) {
                match (round + disk) % 4 {
                    0 => (0..length).step_by(5000).for_each(|at| on.flip_bit(&path, at, 3)),
                    1 => on.set_unreadable(&path, 0..length),
                    2 => assert!(on.remove(&path)),
                    _ => on.truncate(&path, length / 2),
                }
            }
        }
        let store = open(&machine);
        expect_all(&machine, &store, &contents);
        assert!(store.counters().reads_made.value() > 0, "{gone:?}");
        let found = machine.run(store.check(Depth::Deep, &|_, _| {})).problems;
        assert!(found.iter().all(|problem| ["HF0020", "HF0021"].contains(&problem.code)), "{found:?}");
        assert!(!found.is_empty(), "{gone:?}");
        if round % 2 == 0 {
            machine.run(async {
                for remedy in found.iter().filter_map(|problem| problem.remedy) {
                    store.repair(remedy).await.unwrap();
                }
            });
        } else {
            machine.run(store.scrub(std::time::Duration::ZERO, &hurried(&store), &|_, _| {}));
            let report = restore(&machine, &store);
            assert_eq!((report.lacking, &report.problems), (0, &Vec::new()));
        }
        assert!(!store.lacks_copies(), "{gone:?}");
        expect_sound(&machine, &store);
        end(&machine, store);
        expect_whole_classes(&machine);
        let store = open(&machine);
        expect_all(&machine, &store, &contents);
        assert_eq!(store.counters().reads_made.value(), 0, "{gone:?}");
    }
}

/// T-3: a pack that was being cut when the power went is whole on one disk, where it rotted, and in fragments. Nothing of it is damaged, it is
/// written again, and who asks for it is not told that it is gone (sim, plan fragments, seed 834431310985).
#[test]
fn what_rotted_where_a_pack_is_whole_and_not_in_its_fragments_is_there() {
    for is_repaired in [false, true] {
        let (machine, contents) = node(14, DISKS);
        let store = open(&machine);
        let disk = 2;
        machine.run(async {
            for pack in fragments(&machine).into_keys() {
                store.copy_pack(pack, disk, &hurried(&store)).await.unwrap();
            }
        });
        let files = machine.disks[disk].durable_files().into_iter();
        for (path, bytes) in files.filter(|(path, _)| path.ends_with(".pack")) {
            (5000..bytes.len() as u64).step_by(20_000).for_each(|at| machine.disks[disk].flip_bit(&path, at, 3));
        }
        let expect_there = || {
            let is_there = |content: &Bytes| store.contains(&store.key().address(content));
            assert!(contents.iter().all(is_there));
        };
        if is_repaired {
            let found = machine.run(store.check(Depth::Deep, &|_, _| {})).problems;
            assert!(found.iter().any(|problem| problem.code == "HF0007"), "{found:?}");
            expect_there();
            machine.run(async {
                for remedy in found.iter().filter_map(|problem| problem.remedy) {
                    store.repair(remedy).await.unwrap();
                }
            });
        } else {
            let report = machine.run(store.scrub(std::time::Duration::ZERO, &hurried(&store), &|_, _| {}));
            assert!(!report.problems.is_empty());
            expect_there();
        }
        let report = restore(&machine, &store);
        assert_eq!((report.lacking, &report.problems), (0, &Vec::new()));
        expect_sound(&machine, &store);
        expect_there();
        expect_all(&machine, &store, &contents);
        end(&machine, store);
        expect_whole_classes(&machine);
    }
}

/// T-3: what is good nowhere is damaged, also where it lies on several disks, and is not any more once it is good again.
#[test]
fn what_is_bad_in_every_copy_is_damaged_until_a_check_finds_it_good() {
    let (machine, contents) = node(15, DISKS);
    let store = open(&machine);
    let flip = || {
        for disk in 0..3 {
            for (path, length) in paths_of_fragments(&machine, disk) {
                (4096..length).step_by(20_000).for_each(|at| machine.disks[disk].flip_bit(&path, at, 3));
            }
        }
    };
    let there = || contents.iter().filter(|content| store.contains(&store.key().address(content))).count();
    flip();
    assert!(!machine.run(store.check(Depth::Deep, &|_, _| {})).problems.is_empty());
    assert!(there() < contents.len(), "{}", there());
    flip();
    assert_eq!(machine.run(store.check(Depth::Deep, &|_, _| {})).problems, Vec::new());
    assert_eq!(there(), contents.len());
}

/// Three of six are one more than it survives: each chunk is read or an error, and what lies in what is left is saved.
#[test]
fn of_too_few_fragments_what_lies_in_them_is_read_and_saved() {
    let (machine, contents) = node(5, DISKS);
    for disk in [0, 2, 4] {
        for (path, _) in paths_of_fragments(&machine, disk) {
            assert!(machine.disks[disk].remove(&path));
        }
    }
    let (store, recovered) = open_some(&machine, &machine.handles(), four_two()).unwrap();
    assert!(recovered.report.problems[0].contains("of the 4 that are needed are there"), "{:?}", recovered.report);
    let readable = |store: &Arc<Store>| {
        let read = |content: &&Bytes| match machine.run(store.get(Class::Data, &store.key().address(content))) {
            Ok(read) => read == **content,
            Err(StoreError::Corrupt { .. } | StoreError::Absent { .. }) => false,
            Err(error) => panic!("{error}"),
        };
        contents.iter().filter(read).count()
    };
    let before = readable(&store);
    assert!(before > 40 && before < contents.len(), "{before}");
    machine.run(async {
        for remedy in store.check(Depth::Deep, &|_, _| {}).await.problems.iter().filter_map(|problem| problem.remedy) {
            store.repair(remedy).await.unwrap();
        }
    });
    assert_eq!(readable(&store), before);
    let problems = machine.run(store.check(Depth::Deep, &|_, _| {})).problems;
    assert!(problems.iter().all(|problem| problem.code == "HF0017"), "{problems:?}");
    machine.run(put(&store, &contents)).unwrap();
    expect_all(&machine, &store, &contents);
}

/// A disk that answers with what was there before, or with other bits, is found out and left.
#[test]
fn a_disk_that_lies_is_found_and_what_it_says_is_not_believed() {
    for faults in [Faults { flip_read: 1.0, ..Faults::default() }, Faults { stale_read: 1.0, ..Faults::default() }] {
        // The index is on the first: who lies there is found out otherwise.
        for liar in 1..DISKS {
            let (machine, contents) = node(6, DISKS);
            let store = open(&machine);
            machine.disks[liar].set_faults(faults.clone());
            expect_all(&machine, &store, &contents);
            let report = machine.run(store.scrub(std::time::Duration::ZERO, &hurried(&store), &|_, _| {}));
            let is_its = |path: &str| path.starts_with(&format!("/d{liar}/"));
            // A page that was never written over has nothing older.
            if faults.flip_read > 0.0 {
                assert!(!report.problems.is_empty());
                assert!(store.status().disks[liar].reads_failed > 0);
            }
            assert!(report.problems.iter().all(|problem| is_its(&problem.path)), "{:?}", report.problems);
            machine.disks[liar].set_faults(Faults::default());
            restore(&machine, &store);
            assert!(!store.lacks_copies());
            expect_sound(&machine, &store);
        }
    }
}

/// E-3: writes that a disk swallowed or sent elsewhere, while fragments were made.
#[test]
fn what_a_disk_did_not_write_of_its_fragments_is_found_and_written() {
    let faults = [Faults { lost_write: 0.3, ..Faults::default() }, Faults { flip_write: 0.3, ..Faults::default() }];
    for (seed, faults) in (0..4).flat_map(|seed| faults.iter().map(move |faults| (seed, faults))) {
        let machine = Machine::new(700 + seed, DISKS, 64 << 20);
        let contents = contents(0..200);
        let store = open(&machine);
        machine.run(async {
            put(&store, &contents).await.unwrap();
            store.packs.seal_all().await;
            store.take_into_index().await.unwrap();
            machine.disks[0].set_faults(faults.clone());
            machine.disks[3].set_faults(faults.clone());
            store.restore_copies(&hurried(&store), &|_, _| {}).await;
            machine.disks[0].set_faults(Faults::default());
            machine.disks[3].set_faults(Faults::default());
        });
        expect_all(&machine, &store, &contents);
        let found = machine.run(store.scrub(std::time::Duration::ZERO, &hurried(&store), &|_, _| {})).problems;
        assert!(!found.is_empty(), "seed {seed}");
        restore(&machine, &store);
        expect_sound(&machine, &store);
        expect_all(&machine, &store, &contents);
    }
}

/// E-1 to E-3, with the power gone at any operation: all is there, and it comes to an end the next time.
/// N-6, F-1: bits that flip on their way into memory take nothing away, also where of each pack a fragment is gone.
#[test]
fn a_repair_of_fragments_believes_no_single_reading() {
    let mut refused = 0;
    for flip_read in [0.1, 0.5, 1.0] {
        each_seed(0..2, |seed| {
            let (machine, contents) = node(seed, DISKS);
            let store = open(&machine);
            for (path, _) in paths_of_fragments(&machine, 1) {
                assert!(machine.disks[1].remove(&path));
            }
            let flip = |flip_read| {
                machine.disks.iter().for_each(|disk| disk.set_faults(Faults { flip_read, ..Faults::default() }));
            };
            flip(flip_read);
            for _ in 0..2 {
                for remedy in machine.run(store.check(Depth::Deep, &|_, _| {})).remedies {
                    refused += usize::from(machine.run(store.repair(remedy)).is_err());
                }
                restore(&machine, &store);
            }
            flip(0.0);
            end(&machine, store);
            expect_all(&machine, &open(&machine), &contents);
        });
    }
    assert!(refused > 10, "{refused} failed: the test shows nothing");
}

#[test]
fn a_power_cut_at_any_moment_of_cutting_loses_nothing() {
    let contents = contents(0..80);
    for cut in (1..).step_by(7) {
        let machine = Machine::new(800 + cut, DISKS, 64 << 20);
        let store = open(&machine);
        machine.run(put(&store, &contents)).unwrap();
        machine.world.cut_power_at(machine.world.operations() + cut);
        let is_over = machine
            .world
            .run_until(async {
                let report = cut_all(&store).await;
                store.renew_root().await?;
                Ok::<_, StoreError>(report.problems.is_empty())
            })
            .is_ok_and(|done| done.is_ok_and(|is_clean| is_clean));
        drop(store);
        machine.world.restart();
        machine.world.cut_power_at(u64::MAX);
        // Two disks do not come back.
        let (first, step) = (usize::try_from(cut).unwrap(), usize::try_from(cut / 7).unwrap() % 5);
        let gone = [first % 6, (first + 1 + step) % 6];
        let (store, _) = open_some(&machine, &without(&machine, &gone), four_two()).unwrap();
        expect_all(&machine, &store, &contents);
        drop(store);
        machine.world.restart();
        let store = open(&machine);
        machine.run(cut_all(&store));
        assert!(!store.lacks_copies(), "{cut}");
        expect_all(&machine, &store, &contents);
        expect_sound(&machine, &store);
        end(&machine, store);
        expect_whole(&machine, cut);
        if is_over {
            assert!(cut > 60, "{cut}");
            break;
        }
    }
}

/// No pack is there whole and cut, and none in part.
fn expect_whole(machine: &Machine, cut: u64) {
    for (pack, places) in fragments(machine) {
        assert_eq!(places.len(), 6, "{cut}: pack {pack} is on {places:?}");
        let path = crate::format::pack_path(pack);
        assert!(machine.disks.iter().all(|disk| !disk.durable_files().contains_key(&path)), "{cut}: {path}");
    }
    let is_left = |path: &String| path.ends_with(".new") && path.starts_with("packs/");
    assert!(!machine.disks.iter().any(|disk| disk.durable_files().keys().any(is_left)));
}

/// Under a writer that goes on, with the mender beside it.
#[test]
fn two_disks_die_under_a_writer_at_any_moment() {
    each_seed(0..40, |seed| {
        let machine = Machine::new(900 + seed, DISKS, 96 << 20);
        let store = open(&machine);
        let all = contents(0..240);
        machine.run(async {
            for (round, some) in all.chunks(40).enumerate() {
                let dies = [seed as usize % 6, (seed as usize / 6 + 1 + seed as usize % 6) % 6];
                if round == 2 + seed as usize % 2 {
                    machine.disks[dies[0]].set_faults(Faults { is_dead: true, ..Faults::default() });
                }
                if round == 3 {
                    let how = if seed % 2 == 0 {
                        Faults { is_dead: true, ..Faults::default() }
                    } else {
                        Faults { flip_read: 1.0, ..Faults::default() }
                    };
                    machine.disks[dies[1]].set_faults(how);
                }
                put(&store, some).await.unwrap();
                cut_all(&store).await;
            }
        });
        expect_all(&machine, &store, &all);
        for disk in &machine.disks {
            disk.set_faults(Faults::default());
        }
        drop(store);
        machine.world.crash();
        machine.world.restart();
        let store = open(&machine);
        expect_all(&machine, &store, &all);
        machine.run(cut_all(&store));
        machine.run(store.scrub(std::time::Duration::ZERO, &hurried(&store), &|_, _| {}));
        machine.run(cut_all(&store));
        assert!(!store.lacks_copies(), "seed {seed}");
        expect_sound(&machine, &store);
    });
}

/// A disk of seven goes: its fragments come onto the others. Of six there is none to take them: it is told, and a new one gets them.
#[test]
fn fragments_of_a_disk_that_is_gone_are_made_again_where_there_is_a_disk() {
    let (machine, contents) = node(10, 7);
    let (store, _) = open_some(&machine, &without(&machine, &[3]), four_two()).unwrap();
    expect_all(&machine, &store, &contents);
    assert!(store.lacks_copies());
    let report = restore(&machine, &store);
    assert_eq!((report.lacking, &report.problems), (0, &Vec::new()));
    assert!(report.written > 0 && report.bytes > 0);
    expect_all(&machine, &store, &contents);
    machine.run(store.remove_disk(3, false)).unwrap().wipe().unwrap();
    end(&machine, store);
    let (store, _) = open_some(&machine, &without(&machine, &[3]), four_two()).unwrap();
    expect_sound(&machine, &store);
    assert_eq!(store.status().lacking.packs, 0);
    // A second one: nobody has room for its fragments, and nothing is lost.
    end(&machine, store);
    let (store, _) = open_some(&machine, &without(&machine, &[3, 5]), four_two()).unwrap();
    assert!(store.status().lacking.packs > 0);
    restore(&machine, &store);
    assert!(store.status().lacking.packs > 0, "there are five");
    machine.run(async {
        store.remove_disk(5, false).await.unwrap().wipe().unwrap();
        put(&store, &self::contents(300..380)).await.unwrap();
        let fresh = machine.world.disk("/fresh", 64 << 20).disk();
        store.format_disk(&fresh).await.unwrap();
        store.take_in_disk(&fresh).await.unwrap();
        store.renew_root().await.unwrap();
        cut_all(&store).await;
    });
    assert_eq!(store.status().lacking.packs, 0);
    expect_all(&machine, &store, &[&contents[..], &self::contents(300..380)].concat());
    expect_sound(&machine, &store);
}

/// Two disks go and two come, one of them full: each pack gets back what fits, and so survives the next.
#[test]
fn a_disk_without_room_keeps_no_fragment_from_another() {
    let (machine, contents) = node(24, DISKS);
    let (store, _) = open_some(&machine, &without(&machine, &[0, 1]), four_two()).unwrap();
    let fresh = ["/roomy", "/full"].map(|name| machine.world.disk(name, 64 << 20));
    machine.run(async {
        for gone in [0, 1] {
            store.remove_disk(gone, true).await.unwrap().wipe().unwrap();
        }
        for disk in &fresh {
            store.format_disk(&disk.disk()).await.unwrap();
            store.take_in_disk(&disk.disk()).await.unwrap();
        }
        store.renew_root().await.unwrap();
    });
    let space = fresh[1].disk().space().unwrap();
    fresh[1].set_capacity(space.total - space.free + (8 << 10));
    let report = restore(&machine, &store);
    assert!(report.lacking > 0 && report.problems.iter().all(|problem| problem.contains("has room for a fragment")));
    assert!(report.written > 0, "{report:?}");
    end(&machine, store);
    let mut handles = without(&machine, &[0, 1, 2]);
    handles.extend(fresh.map(|disk| disk.disk()));
    let (store, _) = open_some(&machine, &handles, four_two()).unwrap();
    expect_all(&machine, &store, &contents);
}

/// P-6 and F-7, for fragments: with a disk to spare they move, with none the pack is whole again.
#[test]
fn a_drained_disk_ends_up_empty() {
    for disks in [7, DISKS] {
        let (machine, contents) = node(11, disks);
        let store = open(&machine);
        machine.run(async {
            let plan = store.drain_plan(2).unwrap();
            assert!(plan.packs > 0 && plan.bytes > 0, "{plan:?}");
            store.drain_disk(2, true).await.unwrap();
            let report = cut_all(&store).await;
            assert_eq!((report.lacking, &report.problems), (0, &Vec::new()));
            store.commit(store.moment(), b"third", store.last_logged()).await.unwrap();
            store.renew_root().await.unwrap();
            store.remove_disk(2, false).await.unwrap().wipe().unwrap();
        });
        assert_eq!(store.status().cut.packs > 0, disks == 7);
        assert!(!store.lacks_copies());
        expect_all(&machine, &store, &contents);
        end(&machine, store);
        for gone in [0, 4] {
            let (store, _) = open_some(&machine, &without(&machine, &[2, gone]), four_two()).unwrap();
            expect_all(&machine, &store, &contents);
            drop(store);
            machine.world.restart();
        }
    }
}

/// A disk that is full while fragments are made: it is said, the copies stay, and it goes on when there is room.
#[test]
fn a_full_disk_while_fragments_are_made_costs_nothing_but_room() {
    let machine = Machine::new(12, DISKS, 64 << 20);
    let contents = contents(0..200);
    let store = open(&machine);
    machine.run(put(&store, &contents)).unwrap();
    let space = machine.disks[1].disk().space().unwrap();
    machine.disks[1].set_capacity(space.total - space.free + (100 << 10));
    let report = machine.run(cut_all(&store));
    assert!(
        report.lacking > 0 && report.problems.iter().all(|problem| problem.contains("has room for a fragment")),
        "{report:?}"
    );
    expect_all(&machine, &store, &contents);
    expect_sound(&machine, &store);
    machine.disks[1].set_capacity(space.total);
    machine.run(store.settle(store.moment())).unwrap();
    let report = machine.run(cut_all(&store));
    assert_eq!((report.lacking, &report.problems), (0, &Vec::new()));
    end(&machine, store);
    expect_whole_classes(&machine);
    // And while they are made again.
    let paths = paths_of_fragments(&machine, 1);
    paths.iter().for_each(|(path, _)| assert!(machine.disks[1].remove(path)));
    let space = machine.disks[1].disk().space().unwrap();
    machine.disks[1].set_capacity(space.total - space.free + (600 << 10));
    let store = open(&machine);
    let report = restore(&machine, &store);
    assert!(
        report.lacking > 0 && report.problems.iter().all(|problem| problem.contains("has room for a fragment")),
        "{report:?}"
    );
    expect_all(&machine, &store, &contents);
    machine.disks[1].set_capacity(space.total);
    machine.run(store.settle(store.moment())).unwrap();
    let report = restore(&machine, &store);
    assert_eq!((report.lacking, &report.problems), (0, &Vec::new()));
    expect_sound(&machine, &store);
}

/// What nobody needs goes, and what a disk still has of it when it comes back goes too (E-2).
#[test]
fn reclaim_gives_back_fragments_also_those_of_a_disk_that_was_away() {
    let (machine, contents) = node(13, DISKS);
    let (store, _) = open_some(&machine, &without(&machine, &[5]), four_two()).unwrap();
    let live: Vec<_> = contents[..20].iter().map(|content| store.key().address(content)).collect();
    let report = machine.run(reclaim(&store, &|address| live.contains(address))).unwrap();
    assert!(report.packs_deleted > 2, "{report:?}");
    expect_all(&machine, &store, &contents[..20]);
    end(&machine, store);
    assert!(!paths_of_fragments(&machine, 5).is_empty());
    let store = open(&machine);
    expect_all(&machine, &store, &contents[..20]);
    // Whole packs of which it had a copy are there again, until the next pass.
    restore(&machine, &store);
    expect_sound(&machine, &store);
    let packs: BTreeSet<u64> = store.packs.known().into_keys().collect();
    assert!(fragments(&machine).keys().all(|pack| packs.contains(pack)));
}

/// A disk comes back whose fragments were made again on another: one of the two is enough.
#[test]
fn a_fragment_that_lies_twice_goes_once() {
    let (machine, contents) = node(14, 7);
    let (store, _) = open_some(&machine, &without(&machine, &[3]), four_two()).unwrap();
    restore(&machine, &store);
    end(&machine, store);
    let store = open(&machine);
    assert!(store.lacks_copies());
    expect_all(&machine, &store, &contents);
    restore(&machine, &store);
    assert!(!store.lacks_copies());
    expect_sound(&machine, &store);
    end(&machine, store);
    expect_whole_classes(&machine);
}

/// K-9: files ask for fragments, on a node that keeps one copy; and who asks for more than they survive gets it.
#[test]
fn what_asks_for_fragments_gets_them_and_the_rest_does_not() {
    let machine = Machine::new(15, DISKS, 64 << 20);
    let plain = Options { goes_without_disks: true, ..options() };
    let (store, _) = open_some(&machine, &machine.handles(), plain.clone()).unwrap();
    let (scratch, kept) = (contents(0..80), contents(100..200));
    let fragments = Resilience::Fragments(Erasure::new(4, 2).unwrap());
    machine.run(async {
        let told = store.raise_floor(Resilience::Fragments(Erasure::new(5, 2).unwrap())).await;
        assert!(
            matches!(&told, Err(StoreError::Refused { why, .. }) if why.contains("7 disks are needed")),
            "{told:?}"
        );
        assert!(store.raise_floor(fragments).await.unwrap());
        store.put_many(Class::Data, [&scratch[..], &kept].concat()).await.unwrap();
        let addresses: Vec<_> = kept.iter().map(|content| store.key().address(content)).collect();
        assert_eq!(store.raise(fragments, &addresses).await.unwrap(), 100);
        assert_eq!(store.raise(fragments, &addresses).await.unwrap(), 0);
        let last = store.log(b"frame");
        store.commit(store.moment(), b"second", last).await.unwrap();
        cut_all(&store).await;
        // Three copies survive as much, four do not.
        assert_eq!(store.raise(Resilience::Copies(3), &addresses).await.unwrap(), 0);
        assert_eq!(store.raise(Resilience::Copies(4), &addresses[..10]).await.unwrap(), 10);
        store.commit(store.moment(), b"third", last).await.unwrap();
    });
    end(&machine, store);
    let mut lost = 0;
    for gone in pairs() {
        let (store, recovered) = open_some(&machine, &without(&machine, &gone), plain.clone()).unwrap();
        assert_eq!(recovered.roots, b"third");
        expect_all(&machine, &store, &kept);
        let is_lost = |content: &&Bytes| machine.run(store.get(Class::Data, &store.key().address(content))).is_err();
        lost += scratch.iter().filter(is_lost).count();
        drop(store);
        machine.world.restart();
    }
    assert!(lost > 0, "what asks for nothing lies once");
}

/// The settings say something else: what lies in copies is cut, what is to survive more is whole again.
#[test]
fn settings_that_change_change_what_is_stored() {
    let machine = Machine::new(16, DISKS, 96 << 20);
    let contents = contents(0..120);
    let steps: [(u8, Option<Erasure>, bool); 4] =
        [(3, None, false), (1, Erasure::new(4, 2), true), (4, None, false), (1, Erasure::new(3, 3), true)];
    for (copies, fragments, is_cut) in steps {
        let options = Options { copies, fragments, goes_without_disks: true, ..options() };
        let (store, _) = open_some(&machine, &machine.handles(), options).unwrap();
        machine.run(async {
            put(&store, &contents).await.unwrap();
            cut_all(&store).await;
        });
        assert!(!store.lacks_copies(), "{copies} {fragments:?}");
        assert_eq!(store.status().cut.packs > 0, is_cut, "{copies} {fragments:?}");
        assert_eq!(store.status().lacking.packs, 0);
        expect_all(&machine, &store, &contents);
        expect_sound(&machine, &store);
        end(&machine, store);
    }
}

/// E-1: from one code to another, and it stops after a copy of a pack. One disk may be lost, as before, at each moment of what goes on then.
#[test]
fn between_two_codes_a_pack_is_as_safe_as_with_the_first() {
    let contents = contents(0..60);
    for cut in (0..).step_by(9) {
        let machine = Machine::new(900 + cut, DISKS, 64 << 20);
        let two_one = Options { fragments: Erasure::new(2, 1), ..four_two() };
        let (store, _) = open_some(&machine, &machine.handles(), two_one).unwrap();
        machine.run(async {
            put(&store, &contents).await.unwrap();
            cut_all(&store).await;
        });
        end(&machine, store);
        let store = open(&machine);
        // One copy is all that each pack got.
        let whole = machine.run(async {
            let cut: Vec<u64> =
                store.packs.known().iter().filter(|(_, known)| known.is_cut()).map(|(pack, _)| *pack).collect();
            for pack in &cut {
                store.copy_pack(*pack, 5, &hurried(&store)).await.unwrap();
            }
            cut
        });
        assert!(!whole.is_empty());
        machine.world.cut_power_at(machine.world.operations() + 1 + cut);
        let is_over = machine.world.run_until(async {
            let report = cut_all(&store).await;
            store.renew_root().await?;
            Ok::<_, StoreError>(report.problems.is_empty())
        });
        let is_over = is_over.is_ok_and(|done| done.is_ok_and(|is_clean| is_clean));
        drop(store);
        machine.world.restart();
        machine.world.cut_power_at(u64::MAX);
        let (store, _) = open_some(&machine, &without(&machine, &[5]), four_two()).unwrap();
        expect_all(&machine, &store, &contents);
        if is_over {
            assert!(cut > 100, "{cut}");
            break;
        }
    }
}

/// E-5: what is on the disk of another goes with that disk, so it is brought to a disk of its own, whether it is elsewhere too or not.
#[test]
fn a_second_fragment_on_a_disk_counts_for_none() {
    for is_elsewhere_too in [false, true] {
        let (machine, contents) = node(21, DISKS);
        for (pack, places) in fragments(&machine) {
            let disk_of = |index: usize| places.iter().find(|(number, _)| usize::from(*number) == index).unwrap().1;
            let index = usize::try_from(pack % 6).unwrap();
            let (from, to) = (disk_of(index), disk_of((index + 1) % 6));
            let path = FragmentName::new(pack, Erasure::new(4, 2).unwrap(), index).path();
            machine.disks[to].install(&path, &machine.disks[from].durable_files()[&path]);
            assert!(is_elsewhere_too || machine.disks[from].remove(&path));
        }
        let store = open(&machine);
        expect_all(&machine, &store, &contents);
        assert!(store.lacks_copies());
        let report = restore(&machine, &store);
        assert_eq!((report.lacking, report.problems), (0, Vec::new()));
        expect_sound(&machine, &store);
        end(&machine, store);
        expect_whole_classes(&machine);
    }
}

/// L-6, for packs in fragments: one that cannot be mended, for a block is bad in more of them than the code survives, is emptied of what is good,
/// and goes unless somebody needs the rest.
#[test]
fn a_pack_that_cannot_be_mended_is_emptied() {
    for is_needed in [false, true] {
        let (machine, contents) = node(97, DISKS);
        let store = open(&machine);
        let address = store.key().address(&contents[30]);
        let at = store.packs.index.lookup(&address, &store.packs.counters).unwrap().unwrap();
        let known = store.packs.known_pack(at.pack).unwrap();
        let fragments = known.fragments().unwrap();
        let within = u64::from(at.offset) + 100;
        let (index, place) = fragments.cut.pieces(within..within + 1).next().unwrap();
        end(&machine, store);
        let file = |index: usize| {
            let disk = fragments.at(index).first().unwrap();
            (&machine.disks[disk], fragments.name(at.pack, index).path())
        };
        // Where the chunk lies, and in one that could stand in for it; the other one that could has gone.
        for (disk, path) in [file(index), file(5)] {
            disk.corrupt(&path, fragments.cut.content_at() + place.start, &[7; 50]);
        }
        let (disk, path) = file(4);
        assert!(disk.remove(&path));
        let store = open(&machine);
        let report = restore(&machine, &store);
        assert_eq!((report.lacking, store.wants_reclaim()), (1, true), "{report:?}");
        let is_lost = async |content: &Bytes| store.get(Class::Data, &store.key().address(content)).await.is_err();
        let mut lost = BTreeSet::new();
        for content in &contents {
            if machine.run(is_lost(content)) {
                lost.insert(store.key().address(content));
            }
        }
        assert!(lost.contains(&address) && lost.len() < 3, "{}", lost.len());
        let report = machine.run(reclaim(&store, &|address| is_needed || !lost.contains(address))).unwrap();
        assert_eq!(report.packs_deleted, u64::from(!is_needed), "{report:?}");
        let report = machine.run(cut_all(&store));
        assert_eq!((report.lacking, store.wants_reclaim()), (u64::from(is_needed), false), "{report:?}");
        let others: Vec<Bytes> =
            contents.iter().filter(|content| !lost.contains(&store.key().address(content))).cloned().collect();
        end(&machine, store);
        // Whichever two disks go.
        let (store, _) = open_some(&machine, &without(&machine, &[0, 3]), four_two()).unwrap();
        expect_all(&machine, &store, &others);
        end(&machine, store);
    }
}

#[test]
fn a_rotten_fragment_that_is_elsewhere_too_goes() {
    let (machine, contents) = node(22, DISKS + 1);
    for (pack, places) in fragments(&machine) {
        let spare = (0..=DISKS).find(|disk| places.iter().all(|(_, other)| other != disk)).unwrap();
        let (index, disk) = *places.first().unwrap();
        let path = FragmentName::new(pack, Erasure::new(4, 2).unwrap(), usize::from(index)).path();
        machine.disks[spare].install(&path, &machine.disks[disk].durable_files()[&path]);
        machine.disks[disk].flip_bit(&path, 5000, 3);
    }
    let store = open(&machine);
    let found = machine.run(store.scrub(Duration::ZERO, &hurried(&store), &|_, _| {})).problems;
    assert!(found.len() > 3 && found.iter().all(|problem| problem.code == "HF0021"), "{found:?}");
    restore(&machine, &store);
    assert!(!store.lacks_copies());
    expect_all(&machine, &store, &contents);
    expect_sound(&machine, &store);
    end(&machine, store);
    expect_whole_classes(&machine);
}
