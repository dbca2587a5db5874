//! Repair: what a check finds is mended, what is good stays, and the power may go at any moment.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::id::Position;
use bytes::Bytes;
use platform::disk::Open;
use platform::sim::{Faults, SimDisk, each_seed};

use super::check::{node_of, pack};
use super::{Machine, options};
use crate::format::pack_path;
use crate::{CheckReport, Class, Depth, Options, Recovered, Remedy, Store, StoreError};

type Spoil<'a> = (&'a str, &'a dyn Fn(&SimDisk));

/// Everything that can be mended, and how it is spoilt while the store is open or before it is opened.
const SPOILS: [Spoil<'_>; 13] = [
    ("HF0001", &|disk| disk.flip_bit("superblock", 4096 + 50, 1)),
    ("HF0001", &|disk| disk.truncate("superblock", 5000)),
    ("HF0001", &|disk| assert!(disk.remove("superblock"))),
    ("HF0003", &|disk| disk.flip_bit("disk", 60, 0)),
    ("HF0003", &|disk| disk.truncate("disk", 0)),
    ("HF0018", &|disk| disk.flip_bit("disk.copy", 9, 0)),
    ("HF0004", &|disk| disk.flip_bit(&pack(disk).0, 20, 0)),
    ("HF0005", &|disk| disk.flip_bit(&pack(disk).0, pack(disk).1.len() as u64 - 9, 0)),
    ("HF0006", &|disk| disk.flip_bit(&pack(disk).0, pack(disk).1.len() as u64 - 100, 0)),
    ("HF0007", &|disk| disk.flip_bit(&pack(disk).0, 5000, 7)),
    ("HF0005", &|disk| disk.truncate(&pack(disk).0, pack(disk).1.len() as u64 / 2)),
    ("HF0008", &|disk| disk.install("packs/00000000000000aa.pack", &[7; 5000])),
    ("HF0009", &|disk| assert!(disk.remove(&pack(disk).0))),
];

fn node(seed: u64) -> (Machine, Vec<Bytes>) {
    node_of(seed, 20, 6000)
}

fn check(machine: &Machine, store: &Store) -> CheckReport {
    machine.run(store.check(Depth::Deep, &|_, _| {}))
}

fn plan(report: &CheckReport) -> BTreeSet<Remedy> {
    report.problems.iter().filter_map(|problem| problem.remedy).collect()
}

/// Repairs until there is nothing left to do. Tells what was done.
fn repair(machine: &Machine, store: &Store) -> Result<Vec<Remedy>, StoreError> {
    let mut done = Vec::new();
    for _ in 0..4 {
        let remedies = plan(&check(machine, store));
        for remedy in &remedies {
            machine.run(store.repair(*remedy))?;
        }
        if remedies.is_empty() {
            return Ok(done);
        }
        done.extend(remedies);
    }
    panic!("there is no end to it: {:?}", check(machine, store).problems);
}

/// How many of the chunks can be read. None of them is wrong.
fn readable(machine: &Machine, store: &Arc<Store>, contents: &[Bytes]) -> usize {
    let read = async |content: &Bytes| match store.read(&store.key().address(content)).await {
        Ok(found) => {
            assert_eq!(&found, content);
            true
        }
        Err(_) => false,
    };
    machine.run(async {
        let mut count = 0;
        for content in contents {
            count += usize::from(read(content).await);
        }
        count
    })
}

fn put_again(machine: &Machine, store: &Arc<Store>, contents: &[Bytes]) {
    machine.run(async {
        store.put_many(Class::Data, contents.to_vec()).await.unwrap();
        store.settle(store.moment()).await.unwrap();
    });
    assert_eq!(readable(machine, store, contents), contents.len(), "a backup brings everything back");
}

#[test]
fn what_is_found_is_mended_and_what_is_good_stays() {
    for (number, (code, spoil)) in SPOILS.iter().enumerate() {
        let (machine, contents) = node(2);
        let (store, recovered) = machine.open();
        assert!(recovered.report.problems.is_empty());
        spoil(&machine.disks[0]);
        let found = check(&machine, &store);
        assert!(found.problems.iter().any(|problem| problem.code == *code), "{number}: {:?}", found.problems);
        let before = readable(&machine, &store, &contents);
        assert_ne!(repair(&machine, &store).unwrap(), [], "{number}, {code}");
        let left = check(&machine, &store).problems;
        assert!(left.iter().all(|problem| problem.code == "HF0017"), "{number}: {left:?}");
        assert_eq!(readable(&machine, &store, &contents), before, "{number}, {code}");
        put_again(&machine, &store, &contents);
        drop(store);
        machine.world.restart();
        let (store, recovered) = machine.open();
        assert_eq!(recovered.report.problems, Vec::<String>::new(), "{number}, {code}");
        assert_eq!(recovered.frames.len(), 1);
        assert_eq!(readable(&machine, &store, &contents), contents.len());
        let left = check(&machine, &store).problems;
        assert!(left.iter().all(|problem| problem.code == "HF0017"), "{number}: {left:?}");
    }
}

/// M-8, F-1: a check and a repair while bits flip on their way into memory take nothing away from anybody.
#[test]
fn a_repair_believes_no_single_reading() {
    let (mut proposed, mut replaced) = (0, 0);
    for flips in [0.02, 0.2, 1.0] {
        each_seed(0..8, |seed| {
            let (machine, contents) = node(seed);
            let (store, _) = machine.open();
            let flip = |flip_read| machine.disks[0].set_faults(Faults { flip_read, ..Faults::default() });
            flip(flips);
            for _ in 0..3 {
                let report = check(&machine, &store);
                assert!(flips > 0.1 || report.problems.iter().all(|problem| problem.code != "HF0007"), "{report:?}");
                for remedy in plan(&report) {
                    let done = machine.run(store.repair(remedy));
                    proposed += 1;
                    replaced += u32::from(matches!(remedy, Remedy::Pack { .. }) && done.is_ok());
                }
            }
            flip(0.0);
            assert_eq!(readable(&machine, &store, &contents), contents.len(), "{flips} seed {seed}");
            drop(store);
            machine.world.restart();
            let (store, _) = machine.open();
            assert_eq!(readable(&machine, &store, &contents), contents.len(), "{flips} seed {seed}, opened again");
            repair(&machine, &store).unwrap();
            assert_eq!(readable(&machine, &store, &contents), contents.len(), "{flips} seed {seed}, repaired");
        });
    }
    assert!(
        proposed > 10 && replaced > 2,
        "{proposed} were proposed, {replaced} packs replaced: the test shows nothing"
    );
}

/// What is lost is exactly what was damaged, and a pack of which nothing is lost leaves no file behind.
#[test]
fn a_pack_loses_no_more_than_what_is_damaged() {
    for (spoilt, lost, left) in [(20, 0, 0), (5000, 1, 1)] {
        let (machine, contents) = node(5);
        let (store, _) = machine.open();
        let (path, _) = pack(&machine.disks[0]);
        machine.disks[0].flip_bit(&path, spoilt, 3);
        let done = repair(&machine, &store).unwrap();
        assert!(matches!(done[..], [Remedy::Pack { .. }]), "{done:?}");
        assert_eq!(readable(&machine, &store, &contents), contents.len() - lost);
        let files = machine.disks[0].snapshot_files();
        assert!(!files.contains_key(&path));
        assert_eq!(files.keys().filter(|path| path.ends_with(".damaged")).count(), left);
    }
}

/// Whatever page of the index is damaged: what the check sees of it is gone when the index was made again.
#[test]
fn a_damaged_index_is_made_again() {
    let (machine, contents) = node_of(8, 500, 600);
    let index = machine.disks[0].snapshot_files()["index"].clone();
    let mut made_again = 0;
    for page in 1..index.len() / 4096 {
        machine.disks[0].install("index", &index);
        machine.disks[0].corrupt("index", page as u64 * 4096 + 1000, &[0xa5; 700]);
        let (store, _) = machine.open();
        let done = repair(&machine, &store).unwrap();
        assert!(done.iter().all(|remedy| *remedy == Remedy::Index), "{done:?}");
        made_again += done.len();
        assert_eq!(check(&machine, &store).problems, []);
        assert_eq!(readable(&machine, &store, &contents), contents.len());
        drop(store);
        machine.world.restart();
    }
    assert!(made_again > 3, "{made_again}");
}

/// A write of what lies in a pack that is gone must not be taken for a duplicate for ever.
#[test]
fn a_forgotten_pack_is_no_duplicate_and_comes_back_as_a_stranger() {
    let (machine, contents) = node(6);
    let (store, _) = machine.open();
    let (path, bytes) = pack(&machine.disks[0]);
    assert!(machine.disks[0].remove(&path));
    let address = store.key().address(&contents[0]);
    assert!(store.contains(&address), "nobody knows yet");
    repair(&machine, &store).unwrap();
    assert!(contents.iter().any(|content| !store.contains(&store.key().address(content))));
    let held = readable(&machine, &store, &contents);
    assert!(held < contents.len());
    machine.disks[0].install(&path, &bytes);
    let done = repair(&machine, &store).unwrap();
    assert!(matches!(done[..], [Remedy::Adopt { disk: 0, .. }]), "{done:?}");
    assert_eq!(readable(&machine, &store, &contents), contents.len());
}

/// Frames that vanished from the disk are in memory: a commit makes them unnecessary.
#[test]
fn a_journal_that_lost_frames_is_covered() {
    let (machine, _) = node(7);
    let (store, _) = machine.open();
    machine.run(async {
        store.log(b"three");
        store.sync_log(store.last_logged()).await.unwrap();
    });
    let files = machine.disks[0].snapshot_files();
    let at = |bytes: &[u8]| bytes.windows(5).position(|window| window == b"three");
    let (path, at) = files.iter().find_map(|(path, bytes)| Some((path, at(bytes)?))).unwrap();
    machine.disks[0].flip_bit(path, at as u64, 0);
    assert_eq!(plan(&check(&machine, &store)).into_iter().collect::<Vec<_>>(), [Remedy::Commit]);
    machine.run(async {
        store.commit(store.moment(), b"third", store.last_logged()).await.unwrap();
        store.repair(Remedy::Commit).await.unwrap();
    });
    assert_eq!(check(&machine, &store).problems, []);
    drop(store);
    machine.world.restart();
    let (_, recovered) = machine.open();
    assert_eq!((recovered.roots, recovered.covered), (b"third".to_vec(), Position(3)));
}

/// The power goes at every operation of every repair: the store opens, has no less than before, and can be repaired then.
#[test]
fn a_power_cut_in_the_middle_of_a_repair_costs_nothing() {
    // Without any superblock there is nothing to open: that one has to be repaired before the power goes.
    let mut spoils: Vec<_> = SPOILS.iter().enumerate().filter(|(number, _)| *number != 2).collect();
    spoils.dedup_by_key(|(_, (code, _))| *code);
    for (number, (code, spoil)) in spoils {
        let mut step = 1;
        loop {
            let (machine, contents) = node(100 + step);
            let (store, _) = machine.open();
            spoil(&machine.disks[0]);
            let before = readable(&machine, &store, &contents);
            let remedies = plan(&check(&machine, &store));
            machine.world.cut_power_at(machine.world.operations() + step);
            let repaired = machine.world.run_until(async {
                for remedy in &remedies {
                    store.repair(*remedy).await?;
                }
                Ok::<(), StoreError>(())
            });
            let is_whole = machine.world.is_powered();
            assert!(!is_whole || repaired.unwrap().is_ok(), "{number}, {code}, cut at {step}");
            drop(store);
            machine.world.restart();
            let (store, _) = machine.open();
            assert!(readable(&machine, &store, &contents) >= before, "{number}, {code}, cut at {step}");
            repair(&machine, &store).unwrap();
            assert!(readable(&machine, &store, &contents) >= before, "{number}, {code}, cut at {step}, repaired");
            if step % 5 == 0 {
                put_again(&machine, &store, &contents);
            }
            if is_whole {
                assert!(step > 2, "{number}, {code}: a repair takes more than {step} operations");
                break;
            }
            // Every operation of the short ones, and many of the long ones.
            step += 1 + step / 24;
        }
    }
}

/// Packs are replaced while others put what lies in them.
#[test]
fn puts_of_the_same_content_meanwhile_are_not_lost() {
    for seed in 0..20 {
        let (machine, contents) = node(200 + seed);
        let (store, _) = machine.open();
        let (path, _) = pack(&machine.disks[0]);
        machine.disks[0].flip_bit(&path, 20, 0);
        machine.disks[0].flip_bit(&path, 5000, 0);
        let remedies = plan(&check(&machine, &store));
        let (other, again) = (store.clone(), contents.clone());
        let tasks = machine.world.platform().tasks;
        tasks.spawn(
            "puts",
            Box::pin(async move {
                for content in again {
                    other.put(Class::Data, &content).await.unwrap();
                    other.settle(other.moment()).await.unwrap();
                }
            }),
        );
        machine.run(async {
            for remedy in remedies {
                store.repair(remedy).await.unwrap();
            }
        });
        machine.world.run_for(std::time::Duration::from_secs(60)).unwrap();
        assert_eq!(readable(&machine, &store, &contents), contents.len());
        drop(store);
        machine.world.restart();
        let (store, _) = machine.open();
        assert_eq!(readable(&machine, &store, &contents), contents.len(), "seed {seed}");
    }
}

/// A node whose journal lost frame 5 of 10, all of which were synced.
fn node_without_a_frame(seed: u64) -> Machine {
    let machine = Machine::new(seed, 2, 64 << 20);
    let (store, _) = machine.open();
    machine.run(async {
        for number in 1..=10 {
            store.log(format!("frame-{number:02}").as_bytes());
            store.sync_log(store.last_logged()).await.unwrap();
        }
    });
    drop(store);
    machine.world.restart();
    let files = machine.disks[0].snapshot_files();
    let at = |bytes: &[u8]| bytes.windows(8).position(|window| window == b"frame-05");
    let (path, at) = files.iter().find_map(|(path, bytes)| Some((path, at(bytes)?))).unwrap();
    machine.disks[0].flip_bit(path, at as u64, 2);
    machine
}

fn open_without(machine: &Machine) -> Result<(Arc<Store>, Recovered), StoreError> {
    let options = Options { gives_up_frames: true, ..options() };
    machine.world.run_until(Store::open(&machine.world.platform(), &machine.handles(), options)).unwrap()
}

fn frames(recovered: &Recovered) -> Vec<String> {
    recovered.frames.iter().map(|(_, frame)| String::from_utf8_lossy(frame).into_owned()).collect()
}

/// what is given up never comes back, whatever happens meanwhile.
#[test]
fn frames_are_given_up_only_when_told_and_for_good() {
    let prefix = ["frame-01", "frame-02", "frame-03", "frame-04"];
    let mut step = 1;
    loop {
        let machine = node_without_a_frame(300 + step);
        let before = machine.disks[0].snapshot_files();
        match machine.try_open().map(|_| ()) {
            Err(StoreError::FramesLost { first: 5, last: 10, behind: 5, .. }) => {}
            other => panic!("{other:?}"),
        }
        assert!(machine.disks[0].snapshot_files() == before, "a refused opening changes nothing");
        machine.world.cut_power_at(machine.world.operations() + step);
        let opened = open_without(&machine);
        let is_whole = machine.world.is_powered();
        if let Ok((_, recovered)) = &opened {
            assert_eq!(frames(recovered), prefix);
            assert!(recovered.report.problems[0].contains("given up"), "{:?}", recovered.report.problems);
        }
        drop(opened);
        machine.world.restart();
        let (store, recovered) = open_without(&machine).unwrap();
        assert_eq!(frames(&recovered), prefix, "cut at {step}");
        machine.run(async {
            assert_eq!(store.log(b"after"), Position(5));
            store.sync_log(Position(5)).await.unwrap();
        });
        assert_eq!(check(&machine, &store).problems, []);
        drop(store);
        machine.world.restart();
        let (_, recovered) = machine.open();
        assert_eq!(frames(&recovered), [&prefix[..], &["after"]].concat(), "cut at {step}");
        assert_eq!(recovered.report.problems, Vec::<String>::new());
        if is_whole {
            assert!(step > 5);
            break;
        }
        step += 1;
    }
}

/// The header of a segment says nothing that its first frame does not say.
#[test]
fn a_segment_whose_header_rots_loses_nothing() {
    let machine = Machine::new(9, 1, 64 << 20);
    let (store, _) = machine.open();
    machine.run(async {
        store.log(b"one");
        store.log(b"two");
        store.sync_log(Position(2)).await.unwrap();
    });
    drop(store);
    machine.world.restart();
    let files = machine.disks[0].snapshot_files();
    let (path, _) = files.iter().find(|(_, bytes)| bytes.windows(3).any(|window| window == b"two")).unwrap();
    machine.disks[0].flip_bit(path, 41, 1);
    let (store, recovered) = machine.open();
    assert_eq!(frames(&recovered), ["one", "two"]);
    drop(store);
    machine.world.restart();
    assert_eq!(frames(&machine.open().1), ["one", "two"]);
}

/// P-2: where content has no room, there is none for copies of it either, and nothing is lost by that.
#[test]
fn copies_of_content_leave_the_reserve_alone() {
    let machine = Machine::new(13, 1, 40 << 20);
    let (store, _) = machine.open();
    let mut contents = Vec::new();
    machine.run(async {
        loop {
            let next = super::content(contents.len() as u64 * 2, 90_000);
            if store.put(Class::Data, &next).await.is_err() {
                break;
            }
            contents.push(next);
        }
        store.commit(store.moment(), b"full", store.last_logged()).await.unwrap();
    });
    machine.disks[0].flip_bit(&pack(&machine.disks[0]).0, 20, 0);
    let remedies: Vec<_> = plan(&check(&machine, &store)).into_iter().collect();
    assert!(matches!(remedies[..], [Remedy::Pack { .. }]), "{remedies:?}");
    assert!(matches!(machine.run(store.repair(remedies[0])), Err(StoreError::Full { .. })));
    assert_eq!(readable(&machine, &store, &contents), contents.len());
    machine.disks[0].set_capacity(50 << 20);
    assert_eq!(repair(&machine, &store).unwrap(), remedies);
    assert_eq!(readable(&machine, &store, &contents), contents.len());
}

/// F-3: a stranger's rotten copy of a chunk does not take the place of the good one, however the index is made.
#[test]
fn an_adopted_pack_hides_no_better_copy() {
    // The same seed is the same node.
    let (other, machine) = (Machine::new(14, 1, 64 << 20), Machine::new(14, 1, 64 << 20));
    let contents: Vec<Bytes> = (0..60).map(|number| super::content(number * 2, 90_000)).collect();
    let (store, _) = other.open();
    other.run(async {
        store.put_many(Class::Data, contents.clone()).await.unwrap();
        store.close().await.unwrap();
    });
    let wanted = &contents[40];
    let at = |bytes: &[u8]| bytes.windows(64).position(|window| *window == wanted[1000..1064]);
    let files = other.disks[0].snapshot_files();
    let (path, at) = files.iter().find_map(|(path, bytes)| Some((path, at(bytes)?))).unwrap();
    let (store, _) = machine.open();
    machine.run(async {
        store.put(Class::Data, wanted).await.unwrap();
        store.packs.seal_all().await;
        store.commit(store.moment(), b"roots", store.last_logged()).await.unwrap();
    });
    machine.disks[0].install(path, &files[path]);
    machine.disks[0].flip_bit(path, at as u64, 0);
    let done = repair(&machine, &store).unwrap();
    assert!(matches!(done[..], [Remedy::Adopt { .. }]), "{done:?}");
    machine.run(store.repair(Remedy::Index)).unwrap();
    assert_eq!(readable(&machine, &store, std::slice::from_ref(wanted)), 1);
    assert!(readable(&machine, &store, &contents) > 5, "what was good in it was taken in");
    drop(store);
    machine.world.restart();
    machine.disks[0].remove("index");
    let (store, _) = machine.open();
    assert_eq!(readable(&machine, &store, std::slice::from_ref(wanted)), 1);
}

/// F-1: while the index takes nothing, no pack goes.
#[test]
fn no_pack_goes_while_the_index_takes_nothing() {
    let (machine, contents) = node(15);
    let (store, _) = machine.open();
    let (path, _) = pack(&machine.disks[0]);
    machine.disks[0].flip_bit(&path, 20, 0);
    let remedies = plan(&check(&machine, &store));
    store.packs.index.doubt(0, &machine.handles()[0], &store.packs.index.file());
    machine.run(async {
        for remedy in remedies {
            assert!(store.repair(remedy).await.is_err());
        }
    });
    assert!(machine.disks[0].snapshot_files().contains_key(&path));
    assert_eq!(readable(&machine, &store, &contents), contents.len());
}

/// A sector that cannot be read now is no loss: its pack is not set aside, and nothing is forgotten.
#[test]
fn a_pack_that_gives_no_answer_stays() {
    let (machine, contents) = node(2);
    let (store, _) = machine.open();
    let (path, _) = pack(&machine.disks[0]);
    machine.disks[0].flip_bit(&path, 5000, 7);
    let rotten = readable(&machine, &store, &contents);
    assert_eq!(rotten, contents.len() - 1);
    machine.disks[0].set_unreadable(&path, 30_000..40_000);
    let silent = readable(&machine, &store, &contents);
    assert!(silent < rotten);
    let told = repair(&machine, &store).unwrap_err();
    assert!(matches!(told, StoreError::Disk(_)), "{told}");
    let (copied, left) = (silent, contents.len() - silent - 1);
    assert!(told.to_string().contains(&format!("{left} chunks of it give no answer")), "{told}");
    assert!(told.to_string().contains(&format!("{copied} were copied")), "{told}");
    // Whatever becomes of its file: what could be read is safe.
    machine.disks[0].set_unreadable(&path, 0..u64::MAX);
    assert_eq!(readable(&machine, &store, &contents), silent);
    machine.disks[0].set_unreadable(&path, 0..0);
    assert_eq!(readable(&machine, &store, &contents), rotten, "nothing was forgotten");
    repair(&machine, &store).unwrap();
    assert_eq!(readable(&machine, &store, &contents), rotten);
}

/// The same where it is the footer that cannot be read. Nobody needs the header.
#[test]
fn a_pack_whose_ends_give_no_answer_is_copied() {
    for is_footer in [false, true] {
        let (machine, contents) = node(2);
        let (store, _) = machine.open();
        let (path, bytes) = pack(&machine.disks[0]);
        let at = if is_footer { bytes.len() as u64 - 1 } else { 0 };
        machine.disks[0].set_unreadable(&path, at..at + 1);
        assert_eq!(check(&machine, &store).problems[0].code, "HF0016");
        let repaired = repair(&machine, &store);
        assert!(if is_footer { matches!(repaired, Err(StoreError::Disk(_))) } else { repaired.is_ok() });
        assert_eq!(machine.disks[0].snapshot_files().contains_key(&path), is_footer);
        if is_footer {
            machine.disks[0].set_unreadable(&path, 0..u64::MAX);
        }
        assert_eq!(readable(&machine, &store, &contents), contents.len());
    }
}

/// The same of a pack that an opening could not read, so that nobody knows what lies in it: what can be read of it is copied, it stays
/// unknown, and may be adopted when it answers.
#[test]
fn what_can_be_read_of_a_stranger_that_gives_no_answer_is_copied() {
    let (machine, contents) = node(2);
    let (path, bytes) = pack(&machine.disks[0]);
    machine.disks[0].remove("index");
    machine.disks[0].set_unreadable(&path, bytes.len() as u64 - 100..bytes.len() as u64);
    let (store, _) = machine.open();
    assert!(readable(&machine, &store, &contents) < contents.len());
    assert!(matches!(repair(&machine, &store), Err(StoreError::Disk(_))));
    let answered = readable(&machine, &store, &contents);
    assert!(answered >= contents.len() - 2, "{answered}");
    let lost = machine.run(store.read(&store.key().address(b"never put"))).unwrap_err();
    assert!(matches!(lost, StoreError::Disk(_)), "nobody knows what else was in it");
    machine.disks[0].set_unreadable(&path, 0..0);
    repair(&machine, &store).unwrap();
    assert_eq!(readable(&machine, &store, &contents), contents.len());
}

/// an index that was made again names one copy of a chunk. When the pack of that one goes, the other one is found.
#[test]
fn another_copy_is_found_when_the_one_that_the_index_names_is_lost() {
    for is_gone in [false, true] {
        let (machine, contents, named, _) = super::reclaim::put_twice(7);
        let (store, _) = machine.open();
        machine.run(store.repair(Remedy::Index)).unwrap();
        let remedy = if is_gone {
            assert!(machine.disks[0].remove(&pack_path(named)));
            Remedy::Forget { pack: named }
        } else {
            super::reclaim::rot_first_chunk(&machine, named);
            Remedy::Pack { pack: named }
        };
        machine.run(store.repair(remedy)).unwrap();
        assert_eq!(readable(&machine, &store, &contents[..1]), 1, "{is_gone}");
    }
}

/// A pack that somebody brought back a moment ago is relied upon from now on: its name is durable too.
#[test]
fn an_adopted_pack_survives_a_power_cut() {
    for seed in 0..12 {
        let (machine, contents) = node(20 + seed);
        let (store, _) = machine.open();
        let (path, bytes) = pack(&machine.disks[0]);
        assert!(machine.disks[0].remove(&path));
        repair(&machine, &store).unwrap();
        machine.run(async {
            let file = machine.handles()[0].open(&path, Open::Create).unwrap();
            file.write_at(0, &bytes).await.unwrap();
        });
        let done = repair(&machine, &store).unwrap();
        assert!(matches!(done[..], [Remedy::Adopt { disk: 0, .. }]), "{done:?}");
        drop(store);
        machine.world.restart();
        let (store, _) = machine.open();
        assert_eq!(readable(&machine, &store, &contents), contents.len(), "seed {seed}");
    }
}

/// P-1: on a disk that takes no writes no stranger is taken in.
#[test]
fn a_disk_that_failed_adopts_nothing() {
    let (machine, _) = node(6);
    let (store, _) = machine.open();
    machine.disks[0].install("packs/00000000000000aa.pack", &[7; 5000]);
    assert_eq!(plan(&check(&machine, &store)).len(), 1);
    let _ = store.pool.failed(0, store.pool.disks[0].disk.open("none", Open::Write).err().unwrap(), &store.counters);
    assert_eq!(plan(&check(&machine, &store)), BTreeSet::new());
}

/// A pack that is there and gives no answer is neither gone nor well.
#[test]
fn a_pack_that_cannot_be_opened_is_not_forgotten() {
    let (machine, contents) = node(6);
    let (store, _) = machine.open();
    let (path, _) = pack(&machine.disks[0]);
    let number = crate::format::number_of(path.strip_prefix("packs/").unwrap(), ".pack").unwrap();
    machine.disks[0].set_faults(Faults { is_dead: true, ..Faults::default() });
    let told = machine.run(store.repair(Remedy::Forget { pack: number }));
    assert!(matches!(told, Err(StoreError::Disk(_))), "{told:?}");
    machine.disks[0].set_faults(Faults::default());
    assert_eq!(machine.run(store.repair(Remedy::Forget { pack: number })).unwrap(), "it is there again");
    assert_eq!(readable(&machine, &store, &contents), contents.len());
}

/// A disk that is full is told as one, whatever needed the room.
#[test]
fn a_pack_that_cannot_be_sealed_for_want_of_room_is_told_as_a_full_disk() {
    let (machine, _) = node(16);
    let (store, _) = machine.open();
    machine.disks[0].flip_bit(&pack(&machine.disks[0]).0, 20, 0);
    let remedies: Vec<_> = plan(&check(&machine, &store)).into_iter().collect();
    machine.run(async {
        // So many that their directory takes blocks of its own.
        store.put_many(Class::Data, (1000..1200).map(|number| super::content(number, 100)).collect()).await.unwrap();
        store.settle(store.moment()).await.unwrap();
    });
    let space = machine.disks[0].disk().space().unwrap();
    machine.disks[0].set_capacity(space.total - space.free);
    let told = machine.run(store.repair(remedies[0]));
    assert!(matches!(told, Err(StoreError::Full { .. })), "{told:?}");
}

/// S-1: frames are given up, one that the newest superblock covers has rotted too, and the power goes meanwhile: the newest superblock
/// stays, for the one before it would need that frame.
#[test]
fn giving_up_frames_costs_no_superblock() {
    let node = |seed: u64| {
        let machine = Machine::new(400 + seed, 1, 64 << 20);
        let (store, _) = machine.open();
        machine.run(async {
            for number in 1..=12 {
                store.log(format!("frame-{number:02}").as_bytes());
                store.sync_log(store.last_logged()).await.unwrap();
                if number % 3 == 0 && number < 12 {
                    store
                        .commit(store.moment(), format!("roots {number}").as_bytes(), Position(number - 1))
                        .await
                        .unwrap();
                }
            }
        });
        drop(store);
        machine.world.restart();
        // The first is covered by the newest superblock and not by the one before, the second by none, and the newest knows that it was
        // durable: it is written again with less.
        for frame in [b"frame-07", b"frame-09"] {
            let files = machine.disks[0].snapshot_files();
            let at = |bytes: &[u8]| bytes.windows(8).position(|window| window == frame);
            let (path, at) = files.iter().find_map(|(path, bytes)| Some((path, at(bytes)?))).unwrap();
            machine.disks[0].flip_bit(path, at as u64, 2);
        }
        machine
    };
    cut_while_superblocks_are_written(&node, &|machine| {
        let (_, recovered) = open_without(machine).unwrap();
        assert_eq!((&recovered.roots[..], frames(&recovered).len()), (&b"roots 9"[..], 0));
    });
}

/// Opens a node of one disk with a power cut at each operation; for every seed at those that leave a superblock that may be torn.
pub(super) fn cut_while_superblocks_are_written(node: &dyn Fn(u64) -> Machine, verify: &dyn Fn(&Machine)) {
    let cut = |seed: u64, step: u64| {
        let machine = node(seed);
        machine.world.cut_power_at(machine.world.operations() + step);
        drop(open_without(&machine));
        let (is_whole, disk) = (machine.world.is_powered(), &machine.disks[0]);
        let is_pending = disk.snapshot_files()["superblock"] != disk.durable_files()["superblock"];
        machine.world.restart();
        verify(&machine);
        (is_whole, is_pending)
    };
    let outcomes: Vec<_> = (1..).map(|step| cut(0, step)).take_while(|(is_whole, _)| !is_whole).collect();
    let torn: Vec<u64> =
        (1..).zip(&outcomes).filter(|(_, (_, is_pending))| *is_pending).map(|(step, _)| step).collect();
    assert!(outcomes.len() > 10 && !torn.is_empty(), "{outcomes:?}");
    for seed in 1..40 {
        for step in &torn {
            cut(seed, *step);
        }
    }
}
