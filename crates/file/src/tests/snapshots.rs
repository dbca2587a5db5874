//! The list of snapshots, damaged: what only a snapshot has stays until somebody gives it up.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::id::FileId;
use store::Remedy;

use super::content::pattern;
use super::{Machine, chunk_place, create, find, read_all};
use crate::format::{Root, Roots};
use crate::tree::Edits;
use crate::{FileError, FileSystem, Kind, Node};

/// So many that their list is a chunk.
const SNAPSHOTS: u64 = 20;

/// A node whose snapshots have files that nobody else has; and where their list lies.
fn node(seed: u64) -> (Machine, (String, u64)) {
    let machine = Machine::new(seed);
    let system = machine.open();
    machine.run(async {
        // Too many for their catalog to lie inside the list.
        for number in 0..10 {
            create(&system, FileId::ROOT, &format!("file number {number}"), Kind::Regular).await;
        }
        for number in 0..SNAPSHOTS {
            let file = create(&system, FileId::ROOT, "only", Kind::Regular).await.file;
            system.write(file, 0, &pattern(100_000, number), false).await.unwrap();
            system.snapshot(&format!("s{number}")).await.unwrap();
            system.remove_file(FileId::ROOT, b"only").await.unwrap();
        }
        system.close().await.unwrap();
    });
    let Root::Node { address, level: 0 } = system.roots.lock().snapshots else { panic!("one leaf in a chunk") };
    drop(system);
    machine.world.restart();
    let place = chunk_place(&machine, &address);
    (machine, place)
}

fn flip(machine: &Machine, (path, at): &(String, u64)) {
    machine.disk.flip_bit(path, at + 60, 1);
}

fn reclaim_all(machine: &Machine, system: &Arc<FileSystem>) -> Result<(), FileError> {
    for _ in 0..3 {
        machine.run(system.reclaim(&crate::Reclaim::default()))?;
    }
    Ok(())
}

fn expect_whole(machine: &Machine, system: &Arc<FileSystem>, numbers: impl Iterator<Item = u64>) {
    machine.run(async {
        for number in numbers {
            let node = find(system, &format!(".snapshots/s{number}/only")).await.unwrap();
            assert!(read_all(system, node).await == pattern(100_000, number), "s{number}");
        }
    });
}

fn problems(machine: &Machine, system: &Arc<FileSystem>) -> (Vec<&'static str>, BTreeSet<Remedy>) {
    let report = machine.run(system.check_files(&|_| {})).unwrap();
    (report.problems.iter().map(|problem| problem.code).collect(), report.remedies)
}

/// The list could not be read when the node was opened, and can be again.
#[test]
fn what_snapshots_need_stays_though_their_list_was_not_loaded() {
    let (machine, list) = node(1);
    flip(&machine, &list);
    let system = machine.open();
    assert_eq!(system.snapshots().len(), 0);
    flip(&machine, &list);
    reclaim_all(&machine, &system).unwrap();
    let system = machine.power_cycle(system);
    expect_whole(&machine, &system, 0..SNAPSHOTS);
    machine.check(&system);
}

/// What a repair of the store brings back is shown at once.
#[test]
fn a_list_that_comes_back_is_loaded() {
    let (machine, list) = node(2);
    flip(&machine, &list);
    let system = machine.open();
    flip(&machine, &list);
    machine.run(system.repair_store(Remedy::Index)).unwrap();
    expect_whole(&machine, &system, 0..SNAPSHOTS);
}

/// A list of which nothing can be read is given up, and then there are snapshots again.
#[test]
fn a_lost_list_is_told_and_can_be_given_up() {
    let (machine, list) = node(3);
    flip(&machine, &list);
    let system = machine.open();
    assert!(reclaim_all(&machine, &system).is_err_and(|error| error.is_loss()));
    assert!(machine.run(system.snapshot("new")).is_err());
    let gives_up = BTreeSet::from([Remedy::Trees { gives_up: true }]);
    assert_eq!(problems(&machine, &system), (vec!["HF1022"], gives_up));
    machine.run(system.repair_files(false, (0, 0))).unwrap();
    assert_eq!(problems(&machine, &system).0, ["HF1022"], "nothing is given up yet");
    let done = machine.run(system.repair_files(true, (0, 0))).unwrap();
    assert!(!done.is_empty());
    machine.check(&system);
    machine.run(system.snapshot("new")).unwrap();
    reclaim_all(&machine, &system).unwrap();
    let system = machine.power_cycle(system);
    assert_eq!(system.snapshots().len(), 1);
    machine.check(&system);
}

/// One entry of the list makes no sense: the others stay.
#[test]
fn an_entry_that_cannot_be_decoded_ends_the_pass_and_can_be_given_up() {
    for (view, value) in [(7, Some(vec![1, 2, 3])), (0, None), (1 << 40, None)] {
        let (machine, _) = node(4);
        let system = machine.open();
        machine.run(async {
            let roots = system.roots.lock().clone();
            let seventh = system.trees.get(&roots.snapshots, 7).await.unwrap().unwrap().to_vec();
            let edits = Edits::from([(view, Some(value.unwrap_or(seventh)))]);
            let snapshots = system.trees.update(&roots.snapshots, edits, 0).await.unwrap();
            let roots = Roots { snapshots, ..(*roots).clone() };
            system.store.commit(system.store.moment(), &roots.encode(), system.store.last_logged()).await.unwrap();
        });
        let system = machine.power_cycle(system);
        assert!(reclaim_all(&machine, &system).is_err_and(|error| error.is_loss()), "view {view}");
        assert_eq!(problems(&machine, &system).0, ["HF1022"], "view {view}");
        let whole = || (0..SNAPSHOTS).filter(|number| *number != 6 || view != 7);
        expect_whole(&machine, &system, whole());
        machine.run(system.repair_files(true, (0, 0))).unwrap();
        machine.check(&system);
        reclaim_all(&machine, &system).unwrap();
        let system = machine.power_cycle(system);
        expect_whole(&machine, &system, whole());
        assert_eq!(system.snapshots().len(), whole().count());
        assert!(machine.run(system.attributes(Node::live(FileId::ROOT))).is_ok());
        machine.check(&system);
    }
}
