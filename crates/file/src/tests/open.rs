//! Opening what is damaged: what the check can judge and the repair can mend keeps no node shut (I-83).

use std::collections::BTreeSet;
use std::time::Duration;

use base::id::FileId;
use base::time::Timestamp;
use platform::sim::Faults;

use store::Store;

use super::{Machine, chunk_place, create, new, read_all, tree_chunks};
use crate::format::{FILES_MAX, Roots, VIEWS_MAX, XattrPlace};
use crate::tree::Trees;
use crate::{AttributeChange, FileError, FileSystem, Kind, Node, OpenReport, Share, TimeChange, XattrMode};

/// Whose journal has changes: one file in so many.
const CHANGED: usize = 20;

/// A node whose power failed. It has snapshots and unlinked files in use, more than fit their roots, and frames behind the last
/// commit. Gives the files that those change.
fn node() -> (Machine, BTreeSet<FileId>) {
    let machine = Machine::new(5);
    let system = machine.open();
    let changed = machine.run(async {
        let mut files = Vec::new();
        for number in 0..200 {
            let name = format!("file number {number}");
            files.push(create(&system, FileId::ROOT, &name, Kind::Regular).await.file);
        }
        for number in 0..20 {
            system.snapshot(&format!("snapshot number {number}")).await.unwrap();
        }
        for number in 0..80 {
            let name = format!("unlinked file number {number}");
            let file = create(&system, FileId::ROOT, &name, Kind::Regular).await.file;
            system.retain(Node::live(file));
            system.remove_file(FileId::ROOT, name.as_bytes()).await.unwrap();
        }
        system.commit().await.unwrap();
        let changed: BTreeSet<FileId> = files.into_iter().step_by(CHANGED).collect();
        for file in &changed {
            let time = TimeChange::At(Timestamp::default());
            let change = AttributeChange { modified: Some(time), ..AttributeChange::default() };
            system.set_attributes(*file, &change).await.unwrap();
        }
        system.sync_all().await.unwrap();
        changed
    });
    drop(system);
    machine.world.restart();
    (machine, changed)
}

fn open(machine: &Machine, gives_up_records: bool) -> Result<OpenReport, FileError> {
    let (platform, disks) = (machine.world.platform(), machine.disks());
    let options = crate::Options { gives_up_records, ..machine.options.clone() };
    machine.run(async { FileSystem::open(&platform, &disks, options).await }).map(|(_, report)| report)
}

#[test]
fn no_lost_tree_node_keeps_it_shut() {
    let (machine, changed) = node();
    let whole = open(&machine, false).unwrap();
    assert_eq!((whole.problems.len(), whole.given_up.len(), whole.orphans), (0, 0, 80));
    let (mut refused, mut poorer) = (0, 0);
    for number in 0..tree_chunks(&node().0).len() {
        let (machine, _) = node();
        let (path, at) = tree_chunks(&machine)[number].clone();
        machine.disk.flip_bit(&path, at + 60, 1);
        let opened = open(&machine, false);
        let Err(error) = opened else {
            let report = opened.unwrap();
            assert_eq!(report.given_up, BTreeSet::new());
            assert!(report.orphans == 80 || !report.problems.is_empty(), "chunk {number}");
            poorer += usize::from(!report.problems.is_empty());
            continue;
        };
        refused += 1;
        assert!(error.is_loss(), "chunk {number}: {error}");
        machine.world.restart();
        let report = open(&machine, true).unwrap();
        assert!(!report.given_up.is_empty() && report.given_up.is_subset(&changed), "chunk {number}: {report:?}");
        assert!(!report.problems.is_empty(), "chunk {number}");
    }
    assert!(refused > 0 && poorer > 2, "{refused} {poorer}");
}

/// What a disk does not give is not lost: nothing is given up for it.
#[test]
fn a_disk_that_gives_no_answer_is_no_loss() {
    let (machine, _) = node();
    machine.disk.set_faults(Faults { read_error: 1.0, ..Faults::default() });
    assert!(!open(&machine, true).expect_err("nothing can be read").is_loss());
}

/// A file that lost its extended attributes and nothing else keeps what was written and synced since.
#[test]
fn lost_attributes_cost_no_content() {
    let machine = Machine::new(9);
    let system = machine.open();
    let (file, place) = machine.run(async {
        let file = create(&system, FileId::ROOT, "file", Kind::Regular).await.file;
        system.set_xattr(file, b"user.large", &[7; 3000], XattrMode::Set, false).await.unwrap();
        system.commit().await.unwrap();
        let roots = system.roots.lock().clone();
        let XattrPlace::Chunk(address) = system.load(&roots.catalog, file).await.unwrap().unwrap().base.xattrs else {
            panic!("large ones have a chunk")
        };
        system.write(file, 0, b"before", false).await.unwrap();
        system.sync(file).await.unwrap();
        system.set_xattr(file, b"user.small", b"since", XattrMode::Set, false).await.unwrap();
        system.write(file, 6, b" and after", false).await.unwrap();
        system.sync(file).await.unwrap();
        (file, address)
    });
    drop(system);
    machine.world.restart();
    // The pack is sealed by an opening.
    drop(machine.open());
    machine.world.restart();
    let (path, at) = chunk_place(&machine, &place);
    machine.disk.flip_bit(&path, at + 60, 1);
    assert!(open(&machine, false).expect_err("attributes are lost").is_loss());
    machine.world.restart();
    let (platform, disks) = (machine.world.platform(), machine.disks());
    let options = crate::Options { gives_up_records: true, ..machine.options.clone() };
    let (system, report) = machine.run(async { FileSystem::open(&platform, &disks, options).await }).unwrap();
    assert_eq!(report.given_up, BTreeSet::new());
    assert!(report.problems.iter().any(|problem| problem.contains("extended attributes")), "{:?}", report.problems);
    machine.run(async { system.commit().await.unwrap() });
    let system = machine.power_cycle(system);
    assert_eq!(machine.run(read_all(&system, Node::live(file))), b"before and after");
    assert_eq!(&machine.run(system.xattr(Node::live(file), b"user.small")).unwrap()[..], b"since");
    machine.check(&system);
}

/// A node with changes of two files behind its last commit; their frames.
fn with_frames() -> (Machine, [FileId; 2]) {
    let machine = Machine::new(10);
    let system = machine.open();
    let files = machine.run(async {
        let files = [
            create(&system, FileId::ROOT, "one", Kind::Regular).await,
            create(&system, FileId::ROOT, "two", Kind::Regular).await,
        ];
        let files = files.map(|attributes| attributes.file);
        system.commit().await.unwrap();
        for file in files {
            for round in 0..3 {
                system.write(file, round * 4, b"data", false).await.unwrap();
                system.sync(file).await.unwrap();
            }
        }
        files
    });
    drop(system);
    machine.world.restart();
    (machine, files)
}

/// Has something else stand in the place of the journal's frames.
fn relog(machine: &Machine, change: impl FnOnce(&mut Vec<Vec<u8>>)) {
    let (platform, disks) = (machine.world.platform(), machine.disks());
    machine.run(async {
        let (store, found) = Store::open(&platform, &disks, machine.options.store.clone()).await.unwrap();
        let mut frames: Vec<Vec<u8>> = found.frames.into_iter().map(|(_, frame)| frame.to_vec()).collect();
        change(&mut frames);
        store.commit(store.moment(), &found.roots, store.last_logged()).await.unwrap();
        for frame in &frames {
            store.log(frame);
        }
        store.sync_log(store.last_logged()).await.unwrap();
    });
    machine.world.restart();
}

/// I-83: records that cannot be applied keep it shut until they are given up, and never again.
#[test]
fn records_that_cannot_be_applied_are_given_up_once() {
    // The second change of the first file lacks; then all that is read from there on.
    for is_lacking in [true, false] {
        let (machine, [one, two]) = with_frames();
        relog(&machine, |frames| {
            assert_eq!(frames.len(), 6);
            if is_lacking {
                frames.remove(1);
            } else {
                frames[1][4] = 99;
            }
        });
        assert!(open(&machine, false).expect_err("a record cannot be applied").is_loss());
        machine.world.restart();
        let (platform, disks) = (machine.world.platform(), machine.disks());
        let options = crate::Options { gives_up_records: true, ..machine.options.clone() };
        let (system, report) = machine.run(async { FileSystem::open(&platform, &disks, options).await }).unwrap();
        assert_eq!(report.given_up, is_lacking.then_some(one).into_iter().collect());
        assert_eq!(report.rest_given_up.is_some(), !is_lacking);
        assert!(report.problems.iter().any(|problem| problem.contains("given up")), "{:?}", report.problems);
        // Nothing else was changed: the clean end covers it all the same.
        machine.run(system.close()).unwrap();
        drop(system);
        machine.world.restart();
        let system = machine.open();
        assert_eq!(machine.run(read_all(&system, Node::live(one))), b"data");
        let left: &[u8] = if is_lacking { b"datadatadata" } else { b"" };
        assert_eq!(machine.run(read_all(&system, Node::live(two))), left);
        machine.check(&system);
    }
}

/// Roots, and lists, that are about to say more than an opening reads: what is made last is read, and then nothing is made.
#[test]
fn numbers_end_before_what_can_be_read() {
    let machine = Machine::new(11);
    let change = |change: &dyn Fn(&mut Roots)| {
        let (platform, disks) = (machine.world.platform(), machine.disks());
        machine.run(async {
            let (store, found) = Store::open(&platform, &disks, machine.options.store.clone()).await.unwrap();
            let mut roots = Roots::decode(&found.roots).unwrap();
            change(&mut roots);
            store.commit(store.moment(), &roots.encode(), store.last_logged()).await.unwrap();
        });
        machine.world.restart();
    };
    change(&|roots| (roots.next_view, roots.next_counter) = (VIEWS_MAX - 1, FILES_MAX - 100));
    let system = machine.open();
    machine.run(async {
        system.snapshot("last").await.unwrap();
        assert!(matches!(system.snapshot("beyond").await, Err(FileError::NoSpace)));
        let mut made = 0;
        while system.create_file(FileId::ROOT, format!("file {made}").as_bytes(), &new(Kind::Regular)).await.is_ok() {
            made += 1;
        }
        assert_eq!(made, 64);
        system.close().await.unwrap();
    });
    drop(system);
    machine.world.restart();
    let system = machine.open();
    machine.run(async {
        assert!(system.find_snapshot(b"last").is_some());
        system.lookup(Node::live(FileId::ROOT), b"file 63").await.unwrap();
        assert!(matches!(system.snapshot("beyond").await, Err(FileError::NoSpace)));
    });
}

/// A list of unlinked files that names what is not there is told of once.
#[test]
fn unlinked_files_that_are_not_there_are_counted() {
    let machine = Machine::new(12);
    let (platform, disks) = (machine.world.platform(), machine.disks());
    machine.run(async {
        let (store, found) = Store::open(&platform, &disks, machine.options.store.clone()).await.unwrap();
        let mut roots = Roots::decode(&found.roots).unwrap();
        let none: crate::tree::Edits = (1000..4000).map(|number| (number, Some(Vec::new()))).collect();
        roots.orphans = Trees::new(store.clone()).update(&roots.orphans, none, 512).await.unwrap();
        store.commit(store.moment(), &roots.encode(), store.last_logged()).await.unwrap();
    });
    machine.world.restart();
    let report = open(&machine, false).unwrap();
    assert_eq!((report.orphans, report.problems.len()), (0, 2), "{:?}", report.problems);
    assert!(report.problems[1].starts_with("2999 further"), "{:?}", report.problems);
}

/// What was synced is in the journal alone until a commit, and in memory: after a scrub nobody needs what may have rotted there (V-3).
#[test]
fn what_rotted_in_the_journal_is_needless_after_a_scrub() {
    let content = *b"what somebody waited for";
    for scrubs in [true, false] {
        let machine = Machine::new(8);
        let system = machine.open();
        let file = machine.run(async {
            let file = create(&system, FileId::ROOT, "file", Kind::Regular).await.file;
            system.commit().await.unwrap();
            system.write(file, 0, &content, false).await.unwrap();
            system.sync(file).await.unwrap();
            // The next frame knows that the one before it was durable.
            system.sync(create(&system, FileId::ROOT, "next", Kind::Regular).await.file).await.unwrap();
            file
        });
        let files = machine.disk.snapshot_files();
        let place = |(path, bytes): (&String, &Vec<u8>)| {
            let at = bytes.windows(content.len()).position(|window| window == content);
            at.map(|at| (path.clone(), at as u64))
        };
        let (path, at) = files.iter().find_map(place).expect("in a frame");
        machine.disk.flip_bit(&path, at, 0);
        if scrubs {
            let report = machine.run(system.scrub(Duration::ZERO, Share::FULL, &|_, _| {}));
            assert_eq!((report.mended, report.problems), (Vec::new(), Vec::new()));
        }
        drop(system);
        machine.world.crash();
        let (platform, disks, options) = (machine.world.platform(), machine.disks(), machine.options.clone());
        let opened = machine.run(async { FileSystem::open(&platform, &disks, options).await });
        if scrubs {
            let (system, _) = opened.unwrap();
            assert_eq!(machine.run(read_all(&system, Node::live(file))), content);
        } else {
            assert!(opened.is_err(), "what was synced is lost, and that is told");
        }
    }
}
