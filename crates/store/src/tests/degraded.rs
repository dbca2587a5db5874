//! A node goes without a disk, and takes it in again: what was on it is unknown meanwhile, and never lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::id::{ChunkAddress, NodeNumber};
use bytes::Bytes;
use platform::disk::{Disk, DiskErrorKind};
use platform::sim::{Faults, SimDisk, each_seed};

use super::{Machine, content, options, reclaim};
use crate::format::{PACK_SUFFIX, number_of};
use crate::superblock::LEFT_OUT;
use crate::{Class, Depth, Options, Recovered, Remedy, Store, StoreError};

fn contents(numbers: std::ops::Range<u64>) -> Vec<Bytes> {
    numbers.map(|number| content(number * 2, 30_000)).collect()
}

fn try_open(machine: &Machine, handles: &[Disk], goes_without: bool) -> Result<(Arc<Store>, Recovered), StoreError> {
    let options = Options { goes_without_disks: goes_without, ..options() };
    machine.run(Store::open(&machine.world.platform(), handles, options))
}

fn without(machine: &Machine, gone: usize) -> Vec<Disk> {
    let there = machine.disks.iter().enumerate().filter(|(number, _)| *number != gone);
    there.map(|(_, disk)| disk.disk()).collect()
}

fn open_without(machine: &Machine, gone: usize) -> (Arc<Store>, Recovered) {
    try_open(machine, &without(machine, gone), true).unwrap()
}

/// A closed node on three disks with chunks on each of them, and those of disk 1.
fn node(seed: u64) -> (Machine, Vec<Bytes>, Vec<Bytes>) {
    let machine = Machine::new(seed, 3, 64 << 20);
    let contents = contents(0..150);
    let (store, _) = machine.open();
    machine.run(async {
        store.put_many(Class::Data, contents.clone()).await.unwrap();
        let last = store.log(b"frame");
        store.commit(store.moment(), b"second", last).await.unwrap();
        store.close().await.unwrap();
    });
    let on_one = on_disk(&store, &contents, 1);
    assert!(on_one.len() > 10 && on_one.len() < contents.len() - 10, "{}", on_one.len());
    end(&machine, store);
    (machine, contents, on_one)
}

/// What the index has on a disk.
fn on_disk(store: &Store, contents: &[Bytes], disk: usize) -> Vec<Bytes> {
    let known = store.packs.known();
    let lies_there = |content: &&Bytes| {
        let place = store.packs.index.lookup(&store.key().address(content), &store.counters).unwrap().unwrap();
        known[&place.pack].disks().has(disk)
    };
    contents.iter().filter(lies_there).cloned().collect()
}

fn end(machine: &Machine, store: Arc<Store>) {
    drop(store);
    machine.world.restart();
}

/// These can be read, and those give no answer.
fn reads(machine: &Machine, store: &Arc<Store>, contents: &[Bytes], unknown: &[Bytes]) {
    machine.run(async {
        for content in contents {
            let found = store.get(Class::Data, &store.key().address(content)).await;
            if unknown.contains(content) {
                let error = found.map(drop).expect_err("its disk is missing");
                assert!(matches!(&error, StoreError::Disk(error) if error.kind == DiskErrorKind::Failed), "{error}");
                assert!(error.to_string().contains("disk 1 (disk 1) is missing"), "{error}");
            } else {
                assert_eq!(found.unwrap(), content);
            }
        }
    });
}

fn codes(machine: &Machine, store: &Store) -> Vec<&'static str> {
    let report = machine.run(store.check(Depth::Deep, &|_, _| {}));
    report.problems.iter().map(|problem| problem.code).collect()
}

/// With all disks everything is there, nothing is wrong, and no pack number was used twice.
fn is_whole_again(machine: &Machine, contents: &[Bytes]) -> (Arc<Store>, Recovered) {
    let (store, recovered) = machine.open();
    assert_eq!(recovered.report.problems, Vec::<String>::new());
    reads(machine, &store, contents, &[]);
    assert_eq!(codes(machine, &store), Vec::<&str>::new());
    assert!(!store.is_degraded() && store.status().missing.packs == 0);
    (store, recovered)
}

fn pack_numbers(disk: &SimDisk) -> BTreeSet<u64> {
    let files = disk.snapshot_files();
    files.keys().filter_map(|path| number_of(path.strip_prefix("packs/")?, PACK_SUFFIX)).collect()
}

#[test]
fn a_disk_is_let_go_only_when_told_to_and_disk_0_never() {
    let (machine, _, _) = node(1);
    let handles = machine.handles();
    let (empty, other) = (machine.world.disk("/empty", 1 << 20), machine.world.disk("/other", 64 << 20));
    machine.run(Store::create(&machine.world.platform(), &[other.disk()], NodeNumber(9), b"")).unwrap();
    let files = || machine.disks.iter().map(SimDisk::snapshot_files).collect::<Vec<_>>();
    let before = files();
    let refuses = |handles: &[Disk], goes_without: bool, words: &[&str]| {
        let message = try_open(&machine, handles, goes_without).err().expect("refused").to_string();
        words.iter().for_each(|word| assert!(message.contains(word), "\"{word}\" is not in: {message}"));
        assert!(files() == before, "something was changed");
    };
    refuses(&handles[..2], false, &["disk 2 of this node is missing", "`--degraded`", "Nothing was changed"]);
    let unmounted = [handles[0].clone(), empty.disk(), handles[2].clone()];
    refuses(&unmounted, false, &["/empty: it is not a disk of a HydraFS node", "`--degraded`", "Nothing was changed"]);
    for goes_without in [false, true] {
        let words = match goes_without {
            true => [
                "the journal is on disk 0",
                "`hydrafs fsck --degraded --repair --accept-loss` goes on from the last commit",
            ],
            false => ["disk 0 of this node is missing", "Nothing was changed"],
        };
        refuses(&handles[1..], goes_without, &words);
        let foreign = [handles[0].clone(), other.disk(), handles[2].clone()];
        refuses(&foreign, goes_without, &["it belongs to another node"]);
    }
    let no_first = [empty.disk(), handles[1].clone()];
    refuses(&no_first, true, &["the journal is on disk 0", "/empty"]);
    refuses(&[empty.disk()], true, &["every disk of this node is missing", "/empty: it has no file `disk`"]);

    // What is gone may be an empty directory, one that gives no answer, or not there at all; nothing is written to it.
    let (store, recovered) = try_open(&machine, &unmounted, true).unwrap();
    let [problem] = &recovered.report.problems[..] else { panic!("{:?}", recovered.report.problems) };
    assert!(problem.contains("DEGRADED: disk 1 (/empty) is missing: it has no file `disk`"), "{problem}");
    assert!(crate::are_free(&[empty.disk()]));
    assert!(empty.snapshot_files().is_empty());
    end(&machine, store);
    machine.disks[1].set_faults(Faults { is_dead: true, ..Faults::default() });
    assert!(try_open(&machine, &handles, false).is_err());
    let (store, recovered) = try_open(&machine, &handles, true).unwrap();
    assert!(recovered.report.problems[0].contains("disk 1 (/d1) is missing"), "{:?}", recovered.report.problems);
    end(&machine, store);
    machine.disks[1].set_faults(Faults::default());
    let (store, recovered) = try_open(&machine, &handles[..1], true).unwrap();
    assert_eq!(recovered.report.problems.len(), 2);
    end(&machine, store);
    // With all of them it is a node as any other.
    let (store, recovered) = try_open(&machine, &handles, true).unwrap();
    assert!(recovered.report.problems.is_empty() && !store.is_degraded());
}

#[test]
fn the_rest_is_served_and_what_is_put_again_is_stored_anew() {
    let (machine, contents, on_one) = node(2);
    let (store, recovered) = open_without(&machine, 1);
    assert_eq!(recovered.roots, b"second");
    let [problem] = &recovered.report.problems[..] else { panic!("{:?}", recovered.report.problems) };
    assert!(problem.contains(&format!("with {} chunks", on_one.len())), "{problem}");
    reads(&machine, &store, &contents, &on_one);
    assert!(on_one.iter().all(|content| !store.contains(&store.key().address(content))));
    let status = store.status();
    assert_eq!((status.missing.chunks, status.chunks()), (on_one.len() as u64, contents.len() as u64));
    assert_eq!(status.disks.iter().map(|disk| disk.is_missing).collect::<Vec<_>>(), [false, true, false]);
    assert!(!status.disks[1].is_good && status.disks[1].health.starts_with("missing: "), "{:?}", status.disks[1]);
    assert_eq!(codes(&machine, &store), ["HF0019"]);
    let packs: Vec<u64> = store.packs.known().into_keys().collect();
    for remedy in
        [Remedy::Index, Remedy::Superblock, Remedy::Forget { pack: packs[0] }, Remedy::Pack { pack: packs[1] }]
    {
        let error = machine.run(store.repair(remedy)).expect_err("nothing is repaired now");
        assert!(error.to_string().contains("is missing"), "{error}");
    }
    let fresh = self::contents(1000..1010);
    let all = [&contents[..], &fresh].concat();
    machine.run(async {
        store.put_many(Class::Data, on_one.iter().chain(&fresh).cloned().collect()).await.unwrap();
        store.settle(store.moment()).await.unwrap();
    });
    reads(&machine, &store, &all, &[]);
    // A crash, and an end.
    end(&machine, store);
    let (store, _) = open_without(&machine, 1);
    reads(&machine, &store, &all, &[]);
    machine.run(async {
        let last = store.log(b"without disk 1");
        store.commit(store.moment(), b"third", last).await.unwrap();
        store.close().await.unwrap();
    });
    end(&machine, store);
    let (store, recovered) = open_without(&machine, 1);
    assert_eq!(recovered.roots, b"third");
    reads(&machine, &store, &all, &[]);
    machine.run(store.close()).unwrap();
    end(&machine, store);
    let (store, recovered) = is_whole_again(&machine, &all);
    assert_eq!(recovered.roots, b"third");
    end(&machine, store);
}

#[test]
fn reclaim_leaves_alone_what_it_cannot_see() {
    let (machine, contents, on_one) = node(3);
    let (store, _) = open_without(&machine, 1);
    let live: BTreeSet<ChunkAddress> = contents.iter().step_by(8).map(|content| store.key().address(content)).collect();
    let kept: Vec<Bytes> = contents.iter().step_by(8).cloned().collect();
    let unknown: Vec<Bytes> = kept.iter().filter(|content| on_one.contains(content)).cloned().collect();
    assert!(!unknown.is_empty());
    let indexed = store.packs.index.file().packs().unwrap();
    let missing: BTreeMap<u64, _> = {
        let there: BTreeSet<u64> = [0, 2].iter().flat_map(|disk| pack_numbers(&machine.disks[*disk])).collect();
        indexed.into_iter().filter(|(pack, _)| !there.contains(pack)).collect()
    };
    let mut deleted = 0;
    for _ in 0..2 {
        machine.run(async {
            let report = reclaim(&store, &|address| live.contains(address)).await.unwrap();
            assert_eq!(report.problems, Vec::<String>::new());
            deleted += report.packs_deleted;
            store.commit(store.moment(), b"third", store.last_logged()).await.unwrap();
        });
        reads(&machine, &store, &kept, &unknown);
    }
    assert!(deleted > 0, "those that it can see are emptied");
    let indexed = store.packs.index.file().packs().unwrap();
    assert!(missing.iter().all(|(pack, summary)| indexed.get(pack) == Some(summary)));
    machine.run(store.close()).unwrap();
    end(&machine, store);
    let (store, _) = is_whole_again(&machine, &kept);
    // All of disk 1 is there, needed or not.
    reads(&machine, &store, &on_one, &[]);
    machine.run(async {
        let report = reclaim(&store, &|address| live.contains(address)).await.unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
    });
    reads(&machine, &store, &kept, &[]);
    assert_eq!(codes(&machine, &store), Vec::<&str>::new());
}

/// X-5, K-6: what was stored anew and is not needed any more goes; the copy on the missing disk is named again, for it comes back.
#[test]
fn what_was_stored_anew_and_went_is_named_where_it_was() {
    let (machine, all, on_one) = node(8);
    let (store, _) = open_without(&machine, 1);
    let needed: BTreeSet<ChunkAddress> =
        all.iter().filter(|content| !on_one.contains(content)).map(|content| store.key().address(content)).collect();
    machine.run(async {
        store.put_many(Class::Data, on_one.clone()).await.unwrap();
        store.commit(store.moment(), b"third", store.last_logged()).await.unwrap();
        store.packs.seal_all().await;
        store.commit(store.moment(), b"fourth", store.last_logged()).await.unwrap();
        let report = reclaim(&store, &|address| needed.contains(address)).await.unwrap();
        assert!(report.packs_deleted > 0 && report.problems.is_empty(), "{report:?}");
    });
    reads(&machine, &store, &all, &on_one);
    end(&machine, store);
    // Before anything is read: what the index does not name is a reason to make it again.
    let (store, _) = machine.open();
    assert_eq!(codes(&machine, &store), Vec::<&str>::new());
    reads(&machine, &store, &all, &[]);
}

/// K-5: packs that no superblock and no index knows of, on a disk that is missing, and then on another one.
#[test]
fn no_number_of_a_pack_is_used_twice() {
    let machine = Machine::new(4, 3, 64 << 20);
    let mut all = contents(0..110);
    let (store, _) = machine.open();
    machine.run(async {
        store.put_many(Class::Data, all.clone()).await.unwrap();
        store.settle(store.moment()).await.unwrap();
    });
    let on_one = on_disk(&store, &all, 1);
    assert!(!on_one.is_empty());
    end(&machine, store);
    let before: Vec<_> = machine.disks.iter().map(pack_numbers).collect();

    // What lay in an open pack on disk 1 nobody knows of now: that is no proof that it is lost.
    let (store, _) = open_without(&machine, 1);
    reads(&machine, &store, &all, &on_one);
    let mut put = |store: &Arc<Store>, numbers: std::ops::Range<u64>| {
        let more = contents(numbers);
        machine.run(async {
            store.put_many(Class::Data, more.clone()).await.unwrap();
            store.settle(store.moment()).await.unwrap();
        });
        all.extend(more);
    };
    put(&store, 200..310);
    // A crash before any commit; the next time another disk is missing, and then none.
    end(&machine, store);
    let (store, _) = open_without(&machine, 2);
    put(&store, 400..510);
    end(&machine, store);
    let (store, _) = open_without(&machine, 1);
    put(&store, 600..710);
    end(&machine, store);
    let after: Vec<_> = machine.disks.iter().map(pack_numbers).collect();
    for (before, after) in before.iter().zip(&after) {
        assert!(after.difference(before).all(|pack| *pack > LEFT_OUT), "{after:x?}");
    }
    let count: usize = after.iter().map(BTreeSet::len).sum();
    assert_eq!(after.iter().flatten().collect::<BTreeSet<_>>().len(), count, "{after:x?}");
    is_whole_again(&machine, &all);
}

#[test]
fn an_index_that_is_lost_meanwhile_costs_nothing_in_the_end() {
    let (machine, contents, on_one) = node(5);
    let (store, _) = open_without(&machine, 1);
    // It is not made again without what it knows of the missing disk.
    let error = machine.run(store.remake_index(&|| true)).expect_err("nobody knows what lies there");
    assert!(matches!(&error, StoreError::Disk(error) if error.kind == DiskErrorKind::Failed), "{error}");
    machine.run(store.close()).unwrap();
    end(&machine, store);
    machine.disks[0].remove("index");
    let (store, _) = open_without(&machine, 1);
    reads(&machine, &store, &contents, &on_one);
    machine.run(async {
        store.put(Class::Data, &on_one[0]).await.unwrap();
        store.close().await.unwrap();
    });
    reads(&machine, &store, &contents, &on_one[1..]);
    end(&machine, store);
    is_whole_again(&machine, &contents);
}

/// S-4 and S-6: what the missing disk alone has of the history is older than what was acknowledged without it, and given up only if told to.
#[test]
fn a_disk_that_returns_with_a_newer_generation_does_not_win() {
    let (machine, contents, _) = node(6);
    let (store, _) = machine.open();
    machine.run(async {
        machine.disks[0].set_faults(Faults { sync_error: 1.0, ..Faults::default() });
        machine.disks[2].set_faults(Faults { sync_error: 1.0, ..Faults::default() });
        for roots in [b"lost 1", b"lost 2", b"lost 3"] {
            store.commit(store.moment(), roots, store.last_durable()).await.unwrap();
        }
    });
    [0, 2].iter().for_each(|disk: &usize| machine.disks[*disk].set_faults(Faults::default()));
    end(&machine, store);
    let (store, _) = open_without(&machine, 1);
    machine.run(async {
        store.commit(store.moment(), b"acknowledged", store.last_logged()).await.unwrap();
        store.close().await.unwrap();
    });
    end(&machine, store);
    let told = machine.try_open().err().expect("there are two histories");
    assert!(
        matches!(&told, StoreError::TwoHistories { newer, older } if **newer == *"/d0" && **older == *"/d1"),
        "{told}"
    );
    let given_up = Options { gives_up_frames: true, ..options() };
    let (store, recovered) = machine.run(Store::open(&machine.world.platform(), &machine.handles(), given_up)).unwrap();
    assert_eq!(recovered.roots, b"acknowledged");
    end(&machine, store);
    let (store, recovered) = machine.open();
    assert_eq!(recovered.roots, b"acknowledged");
    reads(&machine, &store, &contents, &[]);
}

/// S-6: the node is opened without one disk after the other, and each time with one that has what was written before. The first and the last
/// went to no disk in common, and are of one history all the same.
#[test]
fn disks_that_come_and_go_by_turns_have_one_history() {
    let machine = Machine::new(92, 3, 64 << 20);
    let two = || Options { copies: 2, goes_without_disks: true, ..options() };
    let some = |gone: &[usize]| -> Vec<_> {
        (0..3).filter(|disk| !gone.contains(disk)).map(|disk| machine.disks[disk].disk()).collect()
    };
    let open = |gone: &[usize]| machine.run(Store::open(&machine.world.platform(), &some(gone), two()));
    end(&machine, open(&[]).unwrap().0);
    for (gone, roots) in [(&[2][..], b"by 0, 1"), (&[0], b"by 1, 2"), (&[0, 1], b"by 2   ")] {
        let (store, _) = open(gone).unwrap();
        machine.run(store.commit(store.moment(), roots, store.last_logged())).unwrap();
        end(&machine, store);
    }
    // Nobody can tell where the one in the middle is not there.
    assert!(matches!(open(&[1]), Err(StoreError::TwoHistories { .. })));
    machine.world.crash();
    machine.world.restart();
    let (_, recovered) = open(&[]).unwrap();
    assert_eq!(recovered.roots, b"by 2   ");
}

#[test]
fn a_power_cut_at_any_moment_without_a_disk_loses_nothing() {
    for cut in (1..).step_by(7) {
        let (machine, contents, on_one) = node(7);
        machine.world.cut_power_at(machine.world.operations() + cut);
        let acknowledged = machine.world.run_until(async {
            let options = Options { goes_without_disks: true, ..options() };
            let (store, _) = Store::open(&machine.world.platform(), &without(&machine, 1), options).await?;
            store.put_many(Class::Data, on_one[..20].to_vec()).await?;
            let last = store.log(b"third");
            store.commit(store.moment(), b"third", last).await?;
            let live: BTreeSet<_> = contents.iter().map(|content| store.key().address(content)).collect();
            reclaim(&store, &|address| live.contains(address)).await?;
            store.close().await
        });
        let is_done = acknowledged.unwrap().is_ok();
        machine.world.restart();
        let (store, recovered) = open_without(&machine, 1);
        assert!(!is_done || recovered.roots == b"third", "after {cut} operations");
        // What was on its way is there or not.
        let is_in_force = recovered.roots == b"third";
        let certain = |content: &&Bytes| is_in_force || !on_one[..20].contains(content);
        let certain: Vec<Bytes> = contents.iter().filter(certain).cloned().collect();
        reads(&machine, &store, &certain, &on_one[20..]);
        end(&machine, store);
        is_whole_again(&machine, &contents);
        if is_done {
            return;
        }
    }
}

/// J-11 and D-4: the journal has moved, and then the power goes before a commit. Who opens the node without a disk has every frame that was
/// acknowledged, or is refused.
#[test]
fn what_was_acknowledged_where_the_journal_moved_to_is_not_gone_without() {
    let mut refused = [0; 2];
    each_seed(0..60, |seed| {
        let machine = Machine::new(700 + seed, 3, 64 << 20);
        let (store, _) = machine.open();
        let drains = seed % 2 == 0;
        let below = |count: u64| machine.world.below(count);
        let (mut acknowledged, mut failed) = (Vec::new(), Vec::new());
        let log = async |frames: &mut Vec<Vec<u8>>| {
            let frame = format!("frame {}", frames.len()).into_bytes();
            let position = store.log(&frame);
            if store.sync_log(position).await.is_ok() {
                frames.push(frame);
            }
        };
        machine.run(async {
            for _ in 0..below(3) {
                log(&mut acknowledged).await;
            }
            if below(2) == 0 {
                store.commit(store.moment(), &acknowledged.concat(), store.last_logged()).await.unwrap();
            }
            let before = acknowledged.len();
            for _ in 0..=below(2) {
                let home = store.pool.homes().first().unwrap();
                if drains {
                    store.drain_disk(home as u64, true).await.unwrap();
                } else {
                    machine.disks[home].set_faults(Faults { is_dead: true, ..Faults::default() });
                    failed.push(home);
                    // A pack may meet it first.
                    if below(2) == 0 {
                        let _ = store.put_many(Class::Data, contents(0..40)).await;
                        let _ = store.settle(store.moment()).await;
                    }
                }
                log(&mut acknowledged).await;
            }
            assert!(acknowledged.len() > before, "seed {seed}: the journal moves");
        });
        let is_moved = store.counters().log_homes_named.value() > 0;
        assert!(is_moved, "seed {seed}");
        drop(store);
        machine.disks.iter().for_each(|disk| disk.set_faults(Faults::default()));
        machine.world.crash();
        machine.world.restart();
        let has_all = |(_, recovered): &(Arc<Store>, Recovered)| {
            let frames: Vec<u8> = recovered.frames.iter().flat_map(|(_, frame)| frame.to_vec()).collect();
            let roots = if recovered.roots == b"first" { &[][..] } else { &recovered.roots };
            [roots, &frames].concat() == acknowledged.concat()
        };
        let images: Vec<_> = machine.disks.iter().map(SimDisk::durable_files).collect();
        for gone in 0..3 {
            // Those that failed hear of nothing that comes later: one has to be there that did not.
            if (0..3).all(|disk| disk == gone || failed.contains(&disk)) {
                continue;
            }
            match try_open(&machine, &without(&machine, gone), true) {
                Ok(opened) => {
                    assert!(has_all(&opened), "seed {seed}: without {gone}, {:?}", opened.1.frames)
                }
                Err(StoreError::JournalMissing { .. }) => refused[usize::from(drains)] += 1,
                Err(error) => panic!("seed {seed}: without {gone}: {error}"),
            }
            machine.world.restart();
            for (disk, image) in machine.disks.iter().zip(&images) {
                for path in disk.durable_files().keys().filter(|path| !image.contains_key(*path)) {
                    disk.remove(path);
                }
                image.iter().for_each(|(path, bytes)| disk.install(path, bytes));
            }
        }
        let opened = try_open(&machine, &machine.handles(), false).unwrap();
        assert!(has_all(&opened), "seed {seed}: {:?}", opened.1.frames);
    });
    assert!(refused[0] > 10 && refused[1] > 10, "{refused:?}");
}

/// A node on some disks with two copies, of which one disk is away, and what others have of the packs there is half as long as it was. With what
/// was stored, and the disk that is away.
fn with_short_files(disks: usize) -> (Machine, Vec<Bytes>, usize) {
    let machine = Machine::new(91, disks, 64 << 20);
    let contents = contents(0..150);
    let (store, _) = machine.run(Store::open(&machine.world.platform(), &machine.handles(), two())).unwrap();
    machine.run(async {
        store.put_many(Class::Data, contents.clone()).await.unwrap();
        let last = store.log(b"frame");
        store.commit(store.moment(), b"second", last).await.unwrap();
        store.close().await.unwrap();
    });
    let gone = (store.pool.index_disk() + 1) % disks;
    let mut shortened = 0;
    for (pack, known) in store.packs.known() {
        let Some(other) = known.disks().without(gone).first().filter(|_| known.disks().has(gone)) else { continue };
        let path = crate::format::pack_path(pack);
        let bytes = machine.disks[other].snapshot_files()[&path].clone();
        machine.disks[other].install(&path, &bytes[..bytes.len() / 2]);
        shortened += 1;
    }
    assert!(shortened > 0);
    end(&machine, store);
    (machine, contents, gone)
}

fn two() -> Options {
    Options { copies: 2, goes_without_disks: true, ..options() }
}

/// For good.
fn go_on_without(machine: &Machine, store: &Arc<Store>, gone: usize) {
    machine.run(async {
        assert!(store.remove_disk(gone as u64, false).await.is_err());
        store.commit(store.moment(), b"third", store.last_logged()).await.unwrap();
        store.remove_disk(gone as u64, true).await.unwrap();
    });
}

/// K-6: a shorter file is no copy of a pack that is whole only on the disk that is missing. So nothing there counts as a duplicate; but what is
/// in it can be read, and still can when the node does without the disk for good.
#[test]
fn a_short_file_is_read_and_does_not_stand_for_the_one_on_a_missing_disk() {
    let (machine, contents, gone) = with_short_files(3);
    let (store, _) = machine.run(Store::open(&machine.world.platform(), &without(&machine, gone), two())).unwrap();
    let (mut unknown, mut saved) = (0, Vec::new());
    machine.run(async {
        for content in &contents {
            let address = store.key().address(content);
            // Who reads it first finds that out.
            let is_duplicate = store.contains(&address);
            match store.get(Class::Data, &address).await {
                Ok(found) => {
                    assert_eq!(found, content);
                    saved.extend((!is_duplicate).then_some(content));
                }
                Err(error) => {
                    unknown += 1;
                    assert!(!is_duplicate && matches!(error, StoreError::Disk(_)), "{error}");
                }
            }
        }
    });
    assert!(unknown > 0 && saved.len() > 10, "{unknown} {}", saved.len());
    go_on_without(&machine, &store, gone);
    let all_read = |store: &Arc<Store>| {
        for content in &saved {
            let address = store.key().address(content);
            assert_eq!(machine.run(store.get(Class::Data, &address)).unwrap(), *content);
        }
    };
    all_read(&store);
    end(&machine, store);
    let (store, _) = machine.run(Store::open(&machine.world.platform(), &without(&machine, gone), two())).unwrap();
    all_read(&store);
}

/// K-9: what is put again of what is lost is stored, whatever the index says of it, and nobody read it before.
#[test]
fn what_is_lost_with_a_disk_and_put_again_is_stored() {
    for (disks, is_opened_again) in [(2, false), (2, true), (3, false), (3, true)] {
        let (machine, contents, gone) = with_short_files(disks);
        let open = || machine.run(Store::open(&machine.world.platform(), &without(&machine, gone), two())).unwrap().0;
        let mut store = open();
        go_on_without(&machine, &store, gone);
        if is_opened_again {
            end(&machine, store);
            store = open();
        }
        machine.run(async {
            for content in &contents {
                store.put(Class::Data, content).await.unwrap();
            }
            store.commit(store.moment(), b"fourth", store.last_logged()).await.unwrap();
            for content in &contents {
                assert_eq!(store.get(Class::Data, &store.key().address(content)).await.unwrap(), content);
            }
        });
    }
}

/// K-8: what has rotted in the only file that has all of a pack is read in one that has less.
#[test]
fn a_short_file_is_read_where_the_whole_one_has_rotted() {
    let (machine, contents, whole) = with_short_files(3);
    let files = machine.disks[whole].durable_files();
    let large: Vec<_> =
        files.iter().filter(|(path, bytes)| path.starts_with("packs/") && bytes.len() > 250_000).collect();
    assert!(!large.is_empty());
    for (path, bytes) in large {
        for part in 1..4 {
            machine.disks[whole].flip_bit(path, bytes.len() as u64 * part / 10, 3);
        }
    }
    let (store, _) = machine.run(Store::open(&machine.world.platform(), &machine.handles(), two())).unwrap();
    let all_read = || {
        for content in &contents {
            let address = store.key().address(content);
            assert_eq!(machine.run(store.get(Class::Data, &address)).unwrap(), content);
        }
    };
    all_read();
    let report = machine.run(store.restore_copies(&crate::tests::hurried(&store), &|_, _| {}));
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!(machine.run(store.check(Depth::Deep, &|_, _| {})).problems, Vec::new());
    all_read();
}

/// D-4: the disk with the journal does not come back, and the node goes on from what was committed, whenever the power goes meanwhile. Should the
/// disk be found after all, what it has of the journal is no history any more.
#[test]
fn without_its_journal_a_node_goes_on_from_the_last_commit_when_told_to() {
    let (mut were_cut, mut went_through) = (0, 0);
    each_seed(0..40, |seed| {
        let (machine, contents, _) = node(300 + seed);
        // Each leaves out numbers of segments on the disk that goes later (J-10).
        for _ in 0..5 * (seed % 2) {
            end(&machine, open_without(&machine, 2).0);
        }
        let (store, _) = machine.open();
        machine.run(async {
            store.put(Class::Metadata, b"of the last commit").await.unwrap();
            let last = store.log(b"committed");
            store.commit(store.moment(), b"third", last).await.unwrap();
            for _ in 0..5 {
                store.sync_log(store.log(b"on disk 0 alone")).await.unwrap();
            }
        });
        assert!(store.status().disks[0].has_journal);
        end(&machine, store);
        let told = try_open(&machine, &without(&machine, 0), true).err().expect("what was written last is not there");
        assert!(matches!(&told, StoreError::JournalMissing { .. }), "{told}");
        let options = Options { goes_without_disks: true, gives_up_frames: true, ..options() };
        let go_on = async || Store::open(&machine.world.platform(), &without(&machine, 0), options.clone()).await;
        machine.world.cut_power_at(machine.world.operations() + 1 + seed * 12);
        let opened = machine.world.run_until(go_on());
        match opened {
            Ok(Ok((store, _))) => {
                went_through += 1;
                drop(store);
            }
            Ok(Err(_)) | Err(_) => were_cut += 1,
        }
        machine.world.restart();
        machine.world.cut_power_at(u64::MAX);
        let (store, recovered) = machine.run(go_on()).unwrap();
        assert_eq!((&recovered.roots[..], recovered.frames.len()), (&b"third"[..], 0));
        machine.run(async {
            assert_eq!(
                store.get(Class::Metadata, &store.key().address(b"of the last commit")).await.unwrap(),
                "of the last commit"
            );
            store.sync_log(store.log(b"since then")).await.unwrap();
            if seed % 4 > 1 {
                store.commit(store.moment(), b"fourth", store.last_logged()).await.unwrap();
                store.sync_log(store.log(b"since then")).await.unwrap();
            }
        });
        end(&machine, store);
        let roots: &[u8] = if seed % 4 > 1 { b"fourth" } else { b"third" };
        let is_so = |recovered: &Recovered| {
            assert_eq!(recovered.roots, roots);
            let frames: Vec<_> = recovered.frames.iter().map(|(_, frame)| &frame[..]).collect();
            assert_eq!(frames, [b"since then"]);
        };
        // The journal has another home now.
        let (store, recovered) = open_without(&machine, 0);
        is_so(&recovered);
        end(&machine, store);
        // And the disk was found.
        let (store, recovered) = machine.open();
        is_so(&recovered);
        reads(&machine, &store, &contents, &[]);
        assert_eq!(codes(&machine, &store), Vec::<&str>::new());
        // Then the next home goes, before a commit: what the first one had is not taken for what followed.
        let home = store.status().disks.iter().position(|disk| disk.has_journal).unwrap();
        assert_ne!(home, 0);
        end(&machine, store);
        let (store, recovered) =
            machine.run(Store::open(&machine.world.platform(), &without(&machine, home), options.clone())).unwrap();
        assert_eq!((&recovered.roots[..], recovered.frames.len()), (roots, 0));
        end(&machine, store);
    });
    assert!(were_cut > 5 && went_through > 5, "{were_cut} cut, {went_through} not");
}
