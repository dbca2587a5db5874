//! Policies: what was asked for before content followed is known, and done by somebody.

use std::sync::Arc;
use std::time::Duration;

use base::id::FileId;
use platform::sim::{Faults, SimDisk};
use store::Resilience;

use super::content::pattern;
use super::transfer::{chunk_of, disks_of};
use super::{Machine, create, find, read_all};
use crate::{FileError, FileSystem, Kind, Options, StoreOptions};

const TWO: Resilience = Resilience::Copies(2);
const NAMES: [&str; 3] = ["first", "second", "third"];
/// A chunk each.
const BYTES: usize = 10_000;

/// A directory with files whose content lies on one of two disks.
fn machine(seed: u64) -> (Machine, Arc<FileSystem>) {
    let machine = Machine::on(seed, 2, 1 << 30, Options::default());
    let system = machine.open();
    machine.run(async {
        let directory = create(&system, FileId::ROOT, "d", Kind::Directory).await.file;
        for (number, name) in (0..).zip(NAMES) {
            let file = create(&system, directory, name, Kind::Regular).await.file;
            system.write(file, 0, &pattern(BYTES, number), false).await.unwrap();
        }
        system.sync_all().await.unwrap();
        system.commit().await.unwrap();
    });
    (machine, system)
}

fn disks(machine: &Machine) -> Vec<SimDisk> {
    [&machine.disk].into_iter().chain(&machine.more).cloned().collect()
}

/// On how many disks the content of each file lies.
async fn lie(machine: &Machine, system: &FileSystem) -> Vec<usize> {
    let disks = disks(machine);
    let mut lie = Vec::new();
    for name in NAMES {
        lie.push(disks_of(&disks, system, &format!("d/{name}")).await);
    }
    lie
}

/// The mender looks a few times.
async fn mend(machine: &Machine) {
    machine.world.platform().tasks.sleep(Duration::from_secs(400)).await;
}

/// A bit of the only chunk of a file flips, wherever it lies.
async fn rot(machine: &Machine, system: &FileSystem, path: &str) {
    let address = chunk_of(system, path).await;
    for disk in disks(machine) {
        for (file, bytes) in disk.durable_files() {
            // A header has the address behind a magic and a length.
            let headers = bytes.windows(48).enumerate();
            let at = headers.filter(|(_, header)| header.starts_with(b"Chnk") && header[16..48] == address.0);
            at.for_each(|(at, _)| disk.flip_bit(&file, at as u64 + 100, 2));
        }
    }
}

/// The process dies between the records of a policy and the content.
#[test]
fn what_a_crash_left_on_too_few_disks_is_brought_to_more() {
    let (machine, system) = machine(170);
    machine.run(async {
        let directory = find(&system, "d").await.unwrap().file;
        assert_eq!(lie(&machine, &system).await, [1; 3]);
        let raise = system.begin_raise().await.unwrap();
        for name in NAMES {
            system.set_policy(find(&system, &format!("d/{name}")).await.unwrap().file, TWO).await.unwrap();
        }
        system.set_policy(directory, TWO).await.unwrap();
        system.sync_all().await.unwrap();
        std::mem::forget(raise);
    });
    let system = machine.power_cycle(system);
    machine.run(async {
        assert_eq!(lie(&machine, &system).await, [1; 3], "nobody has been there");
        assert!(system.status().raising.is_some(), "and that is known");
        mend(&machine).await;
        assert_eq!(lie(&machine, &system).await, [2; 3]);
        assert_eq!(system.status().raising, None);
    });
    let system = machine.power_cycle(system);
    assert_eq!(system.status().raising, None, "durable");
    machine.check(&system);
}

/// The disks go after so many files, and then the power: in the end all content has followed.
#[test]
fn whenever_the_power_goes_content_follows_what_is_asked_for() {
    let mut interrupted = 0;
    for files_done in 1..=NAMES.len() as u64 + 2 {
        let (machine, system) = machine(171);
        machine.run(async {
            let directory = find(&system, "d").await.unwrap().file;
            let disks = disks(&machine);
            let fail = |files| {
                if files == files_done {
                    let faults = Faults { is_dead: true, ..Faults::default() };
                    disks.iter().for_each(|disk| disk.set_faults(faults.clone()));
                }
            };
            let set = system.set_policy_below(directory, TWO, true, &fail).await;
            interrupted += usize::from(set.is_err() || set.is_ok_and(|report| report.failed > 0));
            disks.iter().for_each(|disk| disk.set_faults(Faults::default()));
        });
        let system = machine.power_cycle(system);
        machine.run(async {
            mend(&machine).await;
            assert_eq!(lie(&machine, &system).await, [2; 3], "after {files_done} files");
            assert_eq!(system.status().raising, None);
        });
        machine.check(&system);
    }
    assert_eq!(interrupted, NAMES.len() + 1, "all but the last, which nothing interrupts");
}

/// One file cannot be read. It stops no other, is named, and is tried again for as long as it is there.
#[test]
fn a_file_that_cannot_be_read_keeps_no_other_where_it_is() {
    let (machine, system) = machine(172);
    let system = {
        machine.run(rot(&machine, &system, "d/second"));
        // Nothing is in memory.
        machine.power_cycle(system)
    };
    machine.run(async {
        let directory = find(&system, "d").await.unwrap().file;
        let second = find(&system, "d/second").await.unwrap();
        let report = system.set_policy_below(directory, TWO, true, &|_| {}).await.unwrap();
        assert_eq!((report.files, report.raised, report.failed), (4, 2, 1), "{report:?}");
        assert!(report.problems[0].contains(&second.file.to_string()), "{report:?}");
        assert_eq!(lie(&machine, &system).await, [2, 1, 2]);
        mend(&machine).await;
        let left = system.status().raising.expect("the file is there");
        assert_eq!(left.failed, 1, "{left:?}");
        // Somebody else's success is not taken for this one's.
        let first = find(&system, "d/first").await.unwrap();
        assert_eq!(system.set_policy_below(first.file, TWO, false, &|_| {}).await.unwrap().failed, 0);
        assert!(system.status().raising.is_some());
        system.remove_file(directory, b"second").await.unwrap();
        mend(&machine).await;
        assert_eq!(system.status().raising, None);
        assert_eq!(read_all(&system, first).await, pattern(BYTES, 0));
    });
}

/// What cannot be is refused, and leaves nothing to do.
#[test]
fn a_policy_that_is_refused_leaves_nothing_behind() {
    let (machine, system) = machine(173);
    machine.run(async {
        let directory = find(&system, "d").await.unwrap().file;
        let refused = system.set_policy_below(directory, Resilience::Copies(3), true, &|_| {}).await;
        assert!(matches!(refused, Err(FileError::Store(store::StoreError::Refused { .. }))), "{refused:?}");
        assert_eq!(system.status().raising, None);
        assert_eq!(lie(&machine, &system).await, [1; 3]);
    });
}

/// A clone's files are looked at too, as far as they are not the files that were cloned.
#[test]
fn what_a_crash_left_in_a_clone_is_brought_to_more_disks() {
    let (machine, system) = machine(174);
    machine.run(async {
        let directory = find(&system, "d").await.unwrap();
        system.clone_tree(directory, FileId::ROOT, b"clone").await.unwrap();
        let first = find(&system, "clone/first").await.unwrap().file;
        let raise = system.begin_raise().await.unwrap();
        system.set_policy(first, TWO).await.unwrap();
        system.sync_all().await.unwrap();
        std::mem::forget(raise);
    });
    let system = machine.power_cycle(system);
    machine.run(async {
        mend(&machine).await;
        assert_eq!(lie(&machine, &system).await, [2, 1, 1], "they share it");
        assert_eq!(system.status().raising, None);
    });
}

/// Between the asking and the doing somebody takes a snapshot, and then the content changes: what the snapshot has is brought to more disks too.
#[test]
fn what_a_snapshot_took_along_is_brought_to_more_disks() {
    let (machine, system) = machine(175);
    machine.run(async {
        let first = find(&system, "d/first").await.unwrap().file;
        let raise = system.begin_raise().await.unwrap();
        system.set_policy(first, TWO).await.unwrap();
        system.snapshot("between").await.unwrap();
        system.write(first, 0, &pattern(BYTES, 77), false).await.unwrap();
        system.sync_all().await.unwrap();
        system.commit().await.unwrap();
        system.end_raise(raise).await.unwrap();
        assert_eq!(lie(&machine, &system).await, [2, 1, 1], "what is new lies as is asked");
        assert!(system.status().raising.is_some());
        mend(&machine).await;
        assert_eq!(disks_of(&disks(&machine), &system, ".snapshots/between/d/first").await, 2);
        assert_eq!(system.status().raising, None);
    });
}

/// As many copies as the settings say are more than the one that was asked for.
#[test]
fn content_follows_the_settings_again_where_that_is_interrupted() {
    let options = Options { store: StoreOptions { copies: 2, ..StoreOptions::default() }, ..Options::default() };
    let machine = Machine::on(176, 2, 1 << 30, options);
    let system = machine.open();
    machine.run(async {
        let directory = create(&system, FileId::ROOT, "d", Kind::Directory).await.file;
        system.set_policy_below(directory, Resilience::Copies(1), false, &|_| {}).await.unwrap();
        for (number, name) in (0..).zip(NAMES) {
            let file = create(&system, directory, name, Kind::Regular).await.file;
            system.write(file, 0, &pattern(BYTES, number), false).await.unwrap();
        }
        system.sync_all().await.unwrap();
        system.commit().await.unwrap();
        assert_eq!(lie(&machine, &system).await, [1; 3]);
        let raise = system.begin_raise().await.unwrap();
        for name in NAMES {
            let file = find(&system, &format!("d/{name}")).await.unwrap().file;
            system.set_policy(file, Resilience::OfNode).await.unwrap();
        }
        system.sync_all().await.unwrap();
        std::mem::forget(raise);
    });
    let system = machine.power_cycle(system);
    machine.run(async {
        mend(&machine).await;
        assert_eq!(lie(&machine, &system).await, [2; 3]);
    });
}
