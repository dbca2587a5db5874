//! What an opening finds of packs in fragments, where the index, blocks of them or whole disks are gone, and what becomes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use platform::sim::Faults;

use super::{
    DISKS, contents, cut_all, end, expect_all, expect_sound, four_two, node, open, open_some, paths_of_fragments, put,
    reclaim, restore, without,
};
use crate::tests::Machine;
use crate::{Class, Depth, Erasure, Options, Remedy, Store};

/// E-6. A disk fails while a pack is filled, and the pack goes on without it, is sealed and cut. Nobody removed what the disk had of it, and
/// then the index is lost (seed 20000039 of plan `liars`). `are_away`: and most fragments cannot be read when it is made anew.
fn with_a_stale_file(seed: u64, are_away: bool) -> (Machine, Vec<Bytes>) {
    let machine = Machine::new(seed, DISKS, 64 << 20);
    let contents = contents(0..200);
    let store = open(&machine);
    let mut early = Vec::new();
    machine.run(async {
        put(&store, &contents[..20]).await.unwrap();
        let packs = |(path, _): &(String, Vec<u8>)| path.starts_with("packs/");
        let on = |disk: &platform::sim::SimDisk| disk.snapshot_files().into_iter().filter(packs).collect::<Vec<_>>();
        early = machine.disks.iter().map(on).collect();
        put(&store, &contents[20..]).await.unwrap();
        assert_eq!(cut_all(&store).await.lacking, 0);
    });
    end(&machine, store);
    let mut away = Vec::new();
    for (number, (disk, files)) in machine.disks.iter().zip(early).enumerate() {
        let fragments = disk.snapshot_files().into_iter().filter(|(path, _)| path.starts_with("packs/"));
        if are_away && number < 3 {
            away.extend(fragments.map(|(path, bytes)| (number, path, bytes)));
        }
        files.iter().for_each(|(path, bytes)| disk.install(path, bytes));
        disk.remove("index");
    }
    away.iter().for_each(|(disk, path, _)| assert!(machine.disks[*disk].remove(path)));
    if are_away {
        end(&machine, open(&machine));
        away.iter().for_each(|(disk, path, bytes)| machine.disks[*disk].install(path, bytes));
    }
    (machine, contents)
}

#[test]
fn what_a_disk_had_of_a_pack_is_not_taken_for_the_pack_where_fragments_are() {
    for are_away in [false, true] {
        let (machine, contents) = with_a_stale_file(77, are_away);
        for life in 0..2 {
            let store = open(&machine);
            expect_all(&machine, &store, &contents);
            if life == 1 {
                restore(&machine, &store);
                expect_sound(&machine, &store);
            }
            end(&machine, store);
        }
    }
}

/// O-2, O-6 and E-2: the disk with the index is gone, and a block of a fragment has rotted, also the one with the directory: that costs what
/// lies there, and no later opening more.
#[test]
fn a_bad_block_costs_no_pack_where_the_index_is_made_again() {
    a_block_rots(|length| length / 2);
    a_block_rots(|length| length - 1);
}

fn two_one() -> Options {
    Options { fragments: Erasure::new(2, 1), ..four_two() }
}

/// A node on three disks, closed; each fragment on the disk behind the index's has a wrong bit. And the number of the disk with the index.
fn rotten(at: impl Fn(u64) -> u64) -> (Machine, Vec<Bytes>, usize) {
    let machine = Machine::new(17, 3, 64 << 20);
    let contents = contents(0..120);
    let (store, _) = open_some(&machine, &machine.handles(), two_one()).unwrap();
    machine.run(async {
        put(&store, &contents).await.unwrap();
        cut_all(&store).await;
    });
    let gone = store.pool.index_disk();
    end(&machine, store);
    let rotten = (gone + 1) % 3;
    for (path, length) in paths_of_fragments(&machine, rotten) {
        machine.disks[rotten].flip_bit(&path, at(length), 3);
    }
    (machine, contents, gone)
}

fn a_block_rots(at: impl Fn(u64) -> u64) {
    let (machine, contents, gone) = rotten(at);
    // Of the journal and the trees there are two copies.
    for life in 0..4 {
        let (store, _) = open_some(&machine, &without(&machine, &[gone]), two_one()).unwrap();
        let read = |content: &&Bytes| machine.run(store.get(Class::Data, &store.key().address(content))).is_ok();
        let count = || contents.iter().filter(read).count();
        let before = count();
        assert!(before > contents.len() * 2 / 3, "in life {life}: {before}");
        if life == 1 {
            machine.run(async {
                let covered = store.last_logged();
                store.commit(store.moment(), b"third", covered).await.unwrap();
                store.commit(store.moment(), b"third", covered).await.unwrap();
                store.remove_disk(gone as u64, true).await.unwrap();
            });
        }
        if life == 2 {
            let found = machine.run(store.check(Depth::Deep, &|_, _| {})).problems;
            let packs: BTreeSet<Remedy> = found
                .iter()
                .filter_map(|problem| problem.remedy)
                .filter(|it| matches!(it, Remedy::Pack { .. }))
                .collect();
            assert!(!packs.is_empty(), "{found:?}");
            for remedy in packs {
                machine.run(store.repair(remedy)).unwrap();
            }
            assert!(count() >= before);
        }
        end(&machine, store);
    }
}

/// the power goes while an index is made again, in which a pack cannot be read by its directory: the next opening looks as closely.
#[test]
fn a_power_cut_while_the_index_is_made_again_costs_no_pack() {
    let mut cuts = 0;
    // Each makes a node of its own.
    for cut in (1..).step_by(29) {
        let (machine, contents, gone) = rotten(|length| length - 1);
        machine.world.cut_power_at(machine.world.operations() + cut);
        let some = without(&machine, &[gone]);
        let opened = machine.world.run_until(Store::open(&machine.world.platform(), &some, two_one()));
        let is_over = matches!(opened, Ok(Ok(_)));
        drop(opened);
        machine.world.restart();
        machine.world.cut_power_at(u64::MAX);
        let (store, _) = open_some(&machine, &some, two_one()).unwrap();
        let read = |content: &&Bytes| machine.run(store.get(Class::Data, &store.key().address(content))).is_ok();
        let count = contents.iter().filter(read).count();
        assert!(count > contents.len() * 2 / 3, "{cut}: {count}");
        if is_over {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 3, "{cuts}");
}

/// X-9 and E-2: of packs in too few fragments what lies in those is read and saved, also where the index was made again without them.
#[test]
fn too_few_fragments_are_kept_where_the_index_is_made_again() {
    let mut tried = 0;
    for gone in (1..DISKS).flat_map(|one| (one + 1..DISKS).map(move |other| [0, one, other])) {
        let (machine, contents) = node(90, DISKS);
        let Ok((store, _)) = open_some(&machine, &without(&machine, &gone), four_two()) else {
            // The journal's homes.
            continue;
        };
        tried += 1;
        let count = |store: &Arc<Store>| {
            let read = |content: &&Bytes| machine.run(store.get(Class::Data, &store.key().address(content))).is_ok();
            contents.iter().filter(read).count()
        };
        machine.run(async {
            let covered = store.last_logged();
            store.commit(store.moment(), b"third", covered).await.unwrap();
            store.commit(store.moment(), b"third", covered).await.unwrap();
            for disk in gone {
                store.remove_disk(disk as u64, true).await.unwrap();
            }
        });
        let found = machine.run(store.check(Depth::Shallow, &|_, _| {})).problems;
        assert!(!found.iter().any(|problem| matches!(problem.remedy, Some(Remedy::Forget { .. }))), "{found:?}");
        end(&machine, store);
        let mut before = 0;
        for life in 0..3 {
            let (store, _) = open_some(&machine, &without(&machine, &gone), four_two()).unwrap();
            let now = count(&store);
            assert!(now >= before.max(contents.len() / 4), "without {gone:?}, in life {life}: {now}");
            before = now;
            if life == 1 {
                let found = machine.run(store.check(Depth::Deep, &|_, _| {})).problems;
                for remedy in found.iter().filter_map(|problem| problem.remedy).collect::<BTreeSet<Remedy>>() {
                    let _ = machine.run(store.repair(remedy));
                }
                assert!(count(&store) >= before);
            }
            end(&machine, store);
        }
    }
    assert!(tried > 2, "{tried}");
}

/// E-7: fragments that rotted while the disk was away that still has the pack whole. Nothing tells of it but reading them.
#[test]
fn a_whole_file_does_not_go_for_fragments_that_nobody_has_read() {
    let machine = Machine::new(79, DISKS, 64 << 20);
    let contents = contents(0..200);
    let store = open(&machine);
    let mut whole = Vec::new();
    machine.run(async {
        put(&store, &contents).await.unwrap();
        store.packs.seal_all().await;
        let files = machine.disks[1].snapshot_files().into_iter();
        whole = files.filter(|(path, _)| path.starts_with("packs/")).collect();
        assert_eq!(cut_all(&store).await.lacking, 0);
    });
    end(&machine, store);
    whole.retain(|(path, _)| !machine.disks[1].durable_files().contains_key(path));
    assert!(!whole.is_empty());
    whole.iter().for_each(|(path, bytes)| machine.disks[1].install(path, bytes));
    for disk in 3..DISKS {
        for (path, length) in paths_of_fragments(&machine, disk) {
            machine.disks[disk].flip_bit(&path, length / 2, 3);
        }
    }
    let store = open(&machine);
    let read = |content: &&Bytes| machine.run(store.get(Class::Data, &store.key().address(content))).is_ok();
    let before: Vec<&Bytes> = contents.iter().filter(read).collect();
    assert!(before.len() > contents.len() / 2);
    for _ in 0..3 {
        restore(&machine, &store);
    }
    assert_eq!(contents.iter().filter(read).count(), before.len());
}

/// A closed node with packs in fragments, what it has, and what disk 1 had of packs while they were filled.
fn with_early_files() -> (Machine, Vec<Bytes>, BTreeMap<String, Vec<u8>>) {
    let machine = Machine::new(78, DISKS, 64 << 20);
    let contents = contents(0..200);
    let store = open(&machine);
    let mut early = BTreeMap::new();
    machine.run(async {
        put(&store, &contents[..20]).await.unwrap();
        early = machine.disks[1].snapshot_files().into_iter().filter(|(path, _)| path.starts_with("packs/")).collect();
        put(&store, &contents[20..]).await.unwrap();
        assert_eq!(cut_all(&store).await.lacking, 0);
    });
    end(&machine, store);
    (machine, contents, early)
}

/// E-6: what a disk had of a pack once is short, lies beside its fragments, and counts for nothing; it goes.
#[test]
fn a_short_file_beside_the_fragments_of_a_pack_is_no_copy_of_it() {
    let (machine, contents, mut early) = with_early_files();
    let is_cut = |path: &str| !machine.disks[1].snapshot_files().contains_key(path);
    early.retain(|path, _| is_cut(path));
    assert!(!early.is_empty());
    early.iter().for_each(|(path, bytes)| machine.disks[1].install(path, bytes));
    let left = || early.keys().filter(|path| machine.disks[1].durable_files().contains_key(*path)).count();
    // Four are needed, and four are there.
    let (store, _) = open_some(&machine, &without(&machine, &[4, 5]), four_two()).unwrap();
    machine.disks[3].set_faults(Faults { is_dead: true, ..Faults::default() });
    let told = machine.run(async {
        // Who is the first to write to it meets the failure.
        store.commit(store.moment(), b"third", store.last_logged()).await.unwrap();
        assert!(!store.pool.disks[3].is_good());
        store.remove_disk(3, false).await.err().expect("it is needed").to_string()
    });
    let cut = store.packs.known().values().filter(|known| known.fragments().is_some()).count();
    assert!(told.contains(&format!("in {cut} packs is there, and on no other disk")), "{cut}: {told}");
    machine.disks[3].set_faults(Faults::default());
    drop(store);
    machine.world.crash();
    machine.world.restart();
    assert_eq!(left(), early.len());
    let store = open(&machine);
    expect_all(&machine, &store, &contents);
    assert_eq!(restore(&machine, &store).lacking, 0);
    end(&machine, store);
    assert_eq!(left(), 0);
    let store = open(&machine);
    expect_all(&machine, &store, &contents);
    expect_sound(&machine, &store);
}

/// E-2 and E-6: while a disk was out packs went of which it has a fragment, and what it had of them once. Nobody has to look at that.
#[test]
fn what_a_disk_has_of_packs_that_went_while_it_was_out_goes_too() {
    let (machine, contents, mut early) = with_early_files();
    let has_fragment = |path: &str| {
        let name = path.strip_suffix(".pack").unwrap_or(path);
        paths_of_fragments(&machine, 1).iter().any(|(path, _)| path.starts_with(name))
    };
    early.retain(|path, _| has_fragment(path));
    assert!(!early.is_empty());
    early.iter().for_each(|(path, bytes)| machine.disks[1].install(path, bytes));
    let (store, _) = open_some(&machine, &without(&machine, &[1]), four_two()).unwrap();
    let live: Vec<_> = contents[150..].iter().map(|content| store.key().address(content)).collect();
    let report = machine.run(reclaim(&store, &|address| live.contains(address))).unwrap();
    assert!(report.packs_deleted > 2, "{report:?}");
    end(&machine, store);
    let (store, recovered) = open_some(&machine, &machine.handles(), four_two()).unwrap();
    assert_eq!(recovered.report.problems, Vec::<String>::new());
    expect_all(&machine, &store, &contents[150..]);
    let found = machine.run(store.check(Depth::Deep, &|_, _| {})).problems;
    assert!(found.iter().all(|problem| problem.code == "HF0020"), "{found:?}");
    restore(&machine, &store);
    expect_sound(&machine, &store);
}

/// E-6: a short file beside the fragments of a pack goes with it, also where the mender was there first, and no disk fails over that.
#[test]
fn a_short_file_goes_with_the_pack_that_it_lies_beside() {
    for is_mended in [false, true] {
        let (machine, _, mut early) = with_early_files();
        early.retain(|path, _| !machine.disks[1].snapshot_files().contains_key(path));
        assert!(!early.is_empty());
        early.iter().for_each(|(path, bytes)| machine.disks[1].install(path, bytes));
        let store = open(&machine);
        if is_mended {
            restore(&machine, &store);
        }
        machine.run(async {
            store.commit(store.moment(), b"third", store.last_logged()).await.unwrap();
            store.commit(store.moment(), b"fourth", store.last_logged()).await.unwrap();
        });
        let report = machine.run(reclaim(&store, &|_| false)).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        assert!(early.keys().all(|path| !machine.disks[1].snapshot_files().contains_key(path)));
        assert!((0..DISKS).all(|disk| store.pool.disks[disk].is_good()));
    }
}
