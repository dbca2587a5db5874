//! Clones: the same tree twice, and from then on two trees.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::id::FileId;
use platform::sim::Faults;
use platform::task::first;
use store::{Pace, Share};

use super::content::pattern;
use super::{Machine, create, find, list, read_all};
use crate::attributes::{AttributeChange, View};
use crate::format::{BranchValue, Root};
use crate::{Attributes, FileError, FileSystem, Kind, Node, Options, Reclaim, RenameMode};

/// Enough files that their catalog has many nodes.
const FILES: u64 = 300;

async fn write(system: &FileSystem, file: FileId, seed: u64) {
    system.write(file, 0, &pattern(3000, seed), false).await.unwrap();
}

/// `/source` with a directory of files, one of them with two names, and a large file.
async fn source(system: &FileSystem) -> FileId {
    let top = create(system, FileId::ROOT, "source", Kind::Directory).await.file;
    let inner = create(system, top, "inner", Kind::Directory).await.file;
    for number in 0..FILES {
        let file = create(system, inner, &format!("f{number}"), Kind::Regular).await.file;
        write(system, file, number).await;
    }
    let large = create(system, top, "large", Kind::Regular).await.file;
    system.write(large, 0, &pattern(1 << 20, 1000), false).await.unwrap();
    system.set_xattr(large, b"user.colour", b"blue", crate::XattrMode::Set, false).await.unwrap();
    system.link(large, inner, b"again").await.unwrap();
    top
}

async fn clone(system: &FileSystem, from: &str, name: &str) -> Result<Attributes, FileError> {
    let source = find(system, from).await.unwrap();
    system.clone_tree(source, FileId::ROOT, name.as_bytes()).await
}

async fn expect_source(system: &FileSystem, path: &str) {
    for number in [0, 7, FILES - 1] {
        let node = find(system, &format!("{path}/inner/f{number}")).await.unwrap();
        assert!(read_all(system, node).await == pattern(3000, number), "{path}: f{number}");
    }
    for name in ["large", "inner/again"] {
        let node = find(system, &format!("{path}/{name}")).await.unwrap();
        assert!(read_all(system, node).await == pattern(1 << 20, 1000), "{path}/{name}");
        assert_eq!(system.attributes(node).await.unwrap().links, 2);
        assert_eq!(system.xattr(node, b"user.colour").await.unwrap(), "blue");
    }
    assert_eq!(list(system, find(system, &format!("{path}/inner")).await.unwrap(), 50).await.len() as u64, FILES + 1);
}

#[test]
fn a_clone_is_the_same_and_goes_its_own_way() {
    let machine = Machine::new(1);
    let system = machine.open();
    machine.run(async {
        source(&system).await;
        let made = clone(&system, "source", "clone").await.unwrap();
        assert_eq!((made.parent, made.links, made.size), (FileId::ROOT, 3, 2));
        expect_source(&system, "clone").await;

        // What changes in one of them does not in the other, and a file with two names is one file in each.
        let file = find(&system, "clone/inner/f1").await.unwrap().file;
        write(&system, file, 5000).await;
        system.write(find(&system, "clone/large").await.unwrap().file, 0, &pattern(10, 5001), false).await.unwrap();
        let both = [find(&system, "clone/large").await.unwrap(), find(&system, "clone/inner/again").await.unwrap()];
        assert_eq!(both[0], both[1]);
        system.remove_file(find(&system, "clone/inner").await.unwrap().file, b"f0").await.unwrap();
        let new = create(&system, find(&system, "clone/inner").await.unwrap().file, "new", Kind::Regular).await.file;
        write(&system, new, 5002).await;
        expect_source(&system, "source").await;
        let inner = find(&system, "source/inner").await.unwrap().file;
        system.remove_file(inner, b"f2").await.unwrap();
        assert!(read_all(&system, find(&system, "clone/inner/f2").await.unwrap()).await == pattern(3000, 2));
    });
    let expect = |system: &FileSystem| {
        machine.run(async {
            assert!(read_all(system, find(system, "clone/inner/f1").await.unwrap()).await == pattern(3000, 5000));
            assert!(read_all(system, find(system, "clone/inner/new").await.unwrap()).await == pattern(3000, 5002));
            assert!(matches!(find(system, "clone/inner/f0").await, Err(FileError::NoEntry)));
            assert!(read_all(system, find(system, "source/inner/f0").await.unwrap()).await == pattern(3000, 0));
            assert!(read_all(system, find(system, "source/inner/f1").await.unwrap()).await == pattern(3000, 1));
            let large = read_all(system, find(system, "clone/large").await.unwrap()).await;
            assert!(large[..10] == pattern(10, 5001) && large[10..] == pattern(1 << 20, 1000)[10..]);
        });
    };
    expect(&system);
    machine.check(&system);
    // After a crash, from the journal; after a commit, from the trees; after a reclaim, from what is left.
    machine.run(system.sync_all()).unwrap();
    let system = machine.power_cycle(system);
    expect(&system);
    machine.run(system.commit()).unwrap();
    (0..3).for_each(|_| drop(machine.run(system.reclaim(&Reclaim::default())).unwrap()));
    let system = machine.power_cycle(system);
    expect(&system);
    machine.check(&system);
}

/// Nothing of the source is read again or stored again, and the record alone carries it over a crash.
#[test]
fn a_clone_is_made_by_one_record() {
    let machine = Machine::new(2);
    let system = machine.open();
    machine.run(async {
        source(&system).await;
        system.sync_all().await.unwrap();
        system.commit().await.unwrap();
    });
    let count = || {
        let commits = system.counters.commit.distribution().count();
        (system.store.counters().chunks_put.value(), commits)
    };
    let (puts, commits) = count();
    for number in 0..50 {
        machine.run(clone(&system, "source", &format!("c{number}"))).unwrap();
    }
    // The first has nothing to commit; each one after it commits the one before: a few nodes of trees.
    let (puts_then, commits_then) = count();
    assert_eq!(commits_then - commits, 49);
    assert!(puts_then - puts < 50 * 8, "{puts_then}");
    let system = machine.power_cycle(system);
    assert_eq!(system.clones(), 50);
    machine.run(async {
        for number in [0, 17, 49] {
            expect_source(&system, &format!("c{number}")).await;
        }
    });
    machine.check(&system);
}

#[test]
fn clones_of_clones_and_of_snapshots_are_clones() {
    let machine = Machine::new(3);
    let system = machine.open();
    machine.run(async {
        source(&system).await;
        clone(&system, "source", "one").await.unwrap();
        write(&system, find(&system, "one/inner/f3").await.unwrap().file, 6000).await;
        // A clone is cloned, as it is now; and a part of it into another part.
        clone(&system, "one", "two").await.unwrap();
        let inside = find(&system, "two/inner").await.unwrap();
        let target = find(&system, "two").await.unwrap().file;
        system.clone_tree(inside, target, b"copy").await.unwrap();
        write(&system, find(&system, "two/inner/f3").await.unwrap().file, 6001).await;
        system.snapshot("then").await.unwrap();
        write(&system, find(&system, "two/inner/f4").await.unwrap().file, 6002).await;
        write(&system, find(&system, "two/copy/f4").await.unwrap().file, 6003).await;
        let old = find(&system, ".snapshots/then/one").await.unwrap();
        system.clone_tree(old, FileId::ROOT, b"three").await.unwrap();
        system.delete_snapshot("then").await.unwrap();
        system.sync_all().await.unwrap();
    });
    machine.run(system.commit()).unwrap();
    (0..3).for_each(|_| drop(machine.run(system.reclaim(&Reclaim::default())).unwrap()));
    let system = machine.power_cycle(system);
    machine.run(async {
        let expected = [
            ("source", 3, 3),
            ("one", 3, 6000),
            ("two", 3, 6001),
            ("two", 4, 6002),
            ("three", 3, 6000),
            ("three", 4, 4),
        ];
        for (top, file, seed) in expected {
            let node = find(&system, &format!("{top}/inner/f{file}")).await.unwrap();
            assert!(read_all(&system, node).await == pattern(3000, seed), "{top}: f{file}");
        }
        for (file, seed) in [(3, 6000), (4, 6003)] {
            let node = find(&system, &format!("two/copy/f{file}")).await.unwrap();
            assert!(read_all(&system, node).await == pattern(3000, seed), "copy: f{file}");
        }
    });
    machine.check(&system);
}

/// Snapshots show clones as they were, also those that are gone.
#[test]
fn snapshots_have_the_clones_of_their_moment() {
    let machine = Machine::new(4);
    let system = machine.open();
    machine.run(async {
        source(&system).await;
        clone(&system, "source", "clone").await.unwrap();
        write(&system, find(&system, "clone/inner/f3").await.unwrap().file, 7000).await;
        system.snapshot("then").await.unwrap();
        remove_below(&system, find(&system, "clone").await.unwrap()).await;
        system.remove_directory(FileId::ROOT, b"clone").await.unwrap();
        system.commit().await.unwrap();
        assert_eq!((system.clones(), system.branches.lock().len()), (0, 0));
    });
    (0..3).for_each(|_| drop(machine.run(system.reclaim(&Reclaim::default())).unwrap()));
    let system = machine.power_cycle(system);
    machine.run(async {
        let node = find(&system, ".snapshots/then/clone/inner/f3").await.unwrap();
        assert!(node.view != View::LIVE && read_all(&system, node).await == pattern(3000, 7000));
        let node = find(&system, ".snapshots/then/clone/inner/f4").await.unwrap();
        assert!(read_all(&system, node).await == pattern(3000, 4));
        let parent = system.lookup(find(&system, ".snapshots/then/clone").await.unwrap(), b"..").await.unwrap();
        assert_eq!(parent.0, find(&system, ".snapshots/then").await.unwrap());
    });
    machine.check(&system);
}

async fn remove_below(system: &FileSystem, directory: Node) {
    for entry in system.read_directory(directory, 0, 10_000).await.unwrap() {
        if entry.kind == Kind::Directory {
            Box::pin(remove_below(system, entry.node)).await;
            system.remove_directory(directory.file, &entry.name).await.unwrap();
        } else {
            system.remove_file(directory.file, &entry.name).await.unwrap();
        }
    }
}

/// What only a clone holds comes back when it has gone, and not before the last of its files is closed.
#[test]
fn a_clone_that_is_removed_gives_its_room_back() {
    let machine = Machine::new(5);
    let system = machine.open();
    let used = |system: &FileSystem| {
        machine.run(system.commit()).unwrap();
        (0..3).for_each(|_| {
            drop(machine.run(system.reclaim(&Reclaim { is_thorough: true, ..Reclaim::default() })).unwrap())
        });
        let status = system.status().store;
        status.data.stored_bytes + status.metadata.stored_bytes
    };
    // More than the pages that whatever is stored ends with.
    machine.run(async {
        source(&system).await;
        let large = find(&system, "source/large").await.unwrap();
        system.write(large.file, 0, &pattern(1 << 20, 9000), false).await.unwrap();
        system.sync_all().await.unwrap();
    });
    let before = used(&system);
    let open = machine.run(async {
        clone(&system, "source", "clone").await.unwrap();
        let large = find(&system, "clone/large").await.unwrap();
        system.write(large.file, 0, &pattern(4 << 20, 8000), false).await.unwrap();
        system.sync_all().await.unwrap();
        system.retain(large);
        remove_below(&system, find(&system, "source").await.unwrap()).await;
        remove_below(&system, find(&system, "clone").await.unwrap()).await;
        system.remove_directory(FileId::ROOT, b"clone").await.unwrap();
        large
    });
    assert!(used(&system) > (4 << 20), "an open file has its content");
    machine.check(&system);
    machine.run(async {
        assert!(read_all(&system, open).await == pattern(4 << 20, 8000));
        system.write(open.file, 10, b"still", false).await.unwrap();
        system.forget(open, 1).await.unwrap();
        system.commit().await.unwrap();
    });
    assert_eq!(system.branches.lock().len(), 0);
    let after = used(&system);
    assert!(after < before / 4, "{after} of {before}");
    machine.check(&system);
}

/// One that was open when the power went ends with the next opening.
#[test]
fn orphans_of_clones_end_after_a_crash() {
    let machine = Machine::new(6);
    let system = machine.open();
    machine.run(async {
        source(&system).await;
        clone(&system, "source", "clone").await.unwrap();
        let inner = find(&system, "clone/inner").await.unwrap().file;
        for name in ["f1", "f2"] {
            system.retain(find(&system, &format!("clone/inner/{name}")).await.unwrap());
            system.remove_file(inner, name.as_bytes()).await.unwrap();
            // One of them is committed as open, the other one is in the journal alone.
            if name == "f1" {
                system.commit().await.unwrap();
            }
        }
        system.sync_all().await.unwrap();
        assert_ne!(system.branches.lock().values().next().unwrap().orphans, crate::format::Root::Empty);
    });
    let system = machine.power_cycle(system);
    machine.run(system.commit()).unwrap();
    assert_eq!(system.branches.lock().values().next().unwrap().orphans, crate::format::Root::Empty);
    machine.check(&system);
}

/// The opening commits in the middle of many unlinked files: what the journal says is gone is asked for by nobody then, and a clone may be
/// gone with its branch.
#[test]
fn an_opening_commits_between_the_files_that_it_ends() {
    let machine = Machine::new(39);
    let system = machine.open();
    machine.run(async {
        let held = create(&system, FileId::ROOT, "held", Kind::Regular).await.file;
        system.retain(Node::live(held));
        source(&system).await;
        clone(&system, "source", "copy").await.unwrap();
        let name = |number: usize| format!("file {number}");
        for number in 0..30 {
            create(&system, FileId::ROOT, &name(number), Kind::Regular).await;
        }
        system.commit().await.unwrap();
        system.remove_file(FileId::ROOT, b"held").await.unwrap();
        for number in 0..30 {
            system.remove_file(FileId::ROOT, name(number).as_bytes()).await.unwrap();
        }
        system.batch_remove(FileId::ROOT, b"copy").await.unwrap();
        system.finish_removals().await.unwrap();
        system.sync_all().await.unwrap();
    });
    drop(system);
    machine.world.crash();
    let options = Options { uncommitted_files_max: 10, ..machine.options.clone() };
    let (platform, disks) = (machine.world.platform(), machine.disks());
    let (system, report) = machine.run(FileSystem::open(&platform, &disks, options)).unwrap();
    assert_eq!((report.orphans, report.problems.len()), (1, 0), "{:?}", report.problems);
    machine.run(expect_source(&system, "source"));
    machine.check(&system);
}

#[test]
fn what_cannot_be_cloned_is_refused() {
    let machine = Machine::new(7);
    let system = machine.open();
    machine.run(async {
        source(&system).await;
        let refused = |result: Result<Attributes, FileError>| format!("{}", result.unwrap_err());
        assert!(matches!(clone(&system, "source/large", "x").await, Err(FileError::NotDirectory)));
        assert!(matches!(clone(&system, "source", "source").await, Err(FileError::Exists)));
        assert!(matches!(clone(&system, "source", ".snapshots").await, Err(FileError::Exists)));
        let list = find(&system, ".snapshots").await.unwrap();
        assert!(refused(system.clone_tree(list, FileId::ROOT, b"x").await).contains("clone one of them"));

        // Nothing crosses the border of a clone but by copying.
        clone(&system, "source", "clone").await.unwrap();
        let file = find(&system, "clone/large").await.unwrap().file;
        assert!(matches!(system.link(file, FileId::ROOT, b"x").await, Err(FileError::CrossView)));
        let (from, to) = (find(&system, "clone").await.unwrap().file, FileId::ROOT);
        for (from, name, to) in [(from, &b"large"[..], to), (to, b"source", from)] {
            let moved = system.rename(from, name, to, b"x", RenameMode::Replace).await;
            assert!(matches!(moved, Err(FileError::CrossView)));
        }
        let copy = create(&system, FileId::ROOT, "copy", Kind::Regular).await.file;
        let copied = system.copy_range(Node::live(file), 0, copy, 0, 1 << 20).await.unwrap();
        assert_eq!(copied, 1 << 20);
        assert!(read_all(&system, Node::live(copy)).await == pattern(1 << 20, 1000));

        // The clone itself can be moved, and what it lies in then has a clone below it.
        let box_ = create(&system, FileId::ROOT, "box", Kind::Directory).await.file;
        let deep = create(&system, box_, "deep", Kind::Directory).await.file;
        system.rename(FileId::ROOT, b"clone", deep, b"moved", RenameMode::Replace).await.unwrap();
        assert!(refused(clone(&system, "box", "x").await).contains("a clone below it"));
        assert!(clone(&system, "box/deep/moved", "y").await.is_ok());
        let below = find(&system, "box/deep/moved/inner").await.unwrap().file;
        let looped = system.rename(FileId::ROOT, b"box", below, b"z", RenameMode::Replace).await;
        assert!(matches!(looped, Err(FileError::CrossView)));
        system.snapshot("s").await.unwrap();
        assert!(refused(clone(&system, ".snapshots/s/box", "x").await).contains("a clone below it"));
        assert!(clone(&system, ".snapshots/s/source", "z").await.is_ok());
    });
    machine.check(&system);
}

/// A clone that was made is there after a power cut, whole; one that was not, is not.
#[test]
fn a_power_cut_leaves_a_clone_or_none() {
    let mut seen = [0, 0];
    for cut in 0.. {
        let machine = Machine::new(100 + cut);
        let system = machine.open();
        machine.run(async {
            source(&system).await;
            system.sync_all().await.unwrap();
        });
        machine.world.cut_power_at(machine.world.operations() + cut);
        let made = machine.world.run_until(async {
            let made = clone(&system, "source", "clone").await?;
            let inner = system.lookup(Node::live(made.file), b"inner").await?.0.file;
            system.remove_file(inner, b"f0").await?;
            system.commit().await?;
            Ok::<(), FileError>(())
        });
        let is_done = matches!(made, Ok(Ok(())));
        drop(system);
        machine.world.restart();
        let system = machine.open();
        machine.run(async {
            let is_there = find(&system, "clone").await.is_ok();
            seen[usize::from(is_there)] += 1;
            assert!(is_there || !is_done);
            if is_there && find(&system, "clone/inner/f0").await.is_ok() {
                expect_source(&system, "clone").await;
            }
            expect_source(&system, "source").await;
        });
        machine.check(&system);
        if is_done {
            break;
        }
    }
    assert!(seen[0] > 3 && seen[1] > 3, "{seen:?}");
}

/// A file that has a name beside what was cloned is neither gone nor an orphan when it has lost those below.
#[test]
fn files_that_are_linked_from_beside_go_with_their_clone() {
    for is_open in [false, true] {
        let machine = Machine::new(10);
        let system = machine.open();
        let file = machine.run(async {
            let a = create(&system, FileId::ROOT, "a", Kind::Directory).await.file;
            let b = create(&system, FileId::ROOT, "b", Kind::Directory).await.file;
            let file = create(&system, a, "f", Kind::Regular).await.file;
            system.link(file, b, b"f").await.unwrap();
            clone(&system, "a", "c").await.unwrap();
            let file = find(&system, "c/f").await.unwrap();
            if is_open {
                system.retain(file);
            }
            // No commit covers it yet, and nothing is flushed before the next one.
            write(&system, file.file, 1).await;
            system.remove_file(find(&system, "c").await.unwrap().file, b"f").await.unwrap();
            system.remove_directory(FileId::ROOT, b"c").await.unwrap();
            system.commit().await.unwrap();
            system.sync_all().await.unwrap();
            system.commit().await.unwrap();
            file
        });
        if is_open {
            machine.run(async {
                assert!(read_all(&system, file).await == pattern(3000, 1));
                write(&system, file.file, 2).await;
                system.sync_all().await.unwrap();
                assert!(read_all(&system, file).await == pattern(3000, 2));
                system.forget(file, 1).await.unwrap();
                create(&system, FileId::ROOT, "another change", Kind::Regular).await;
                system.commit().await.unwrap();
            });
        }
        let system = machine.power_cycle(system);
        machine.run(async {
            create(&system, FileId::ROOT, "one more", Kind::Regular).await;
            system.commit().await.unwrap();
        });
        assert_eq!(system.branches.lock().len(), 0, "open: {is_open}");
        machine.check(&system);
    }
}

/// What is cloned is the catalog, so that is what decides whether a clone lies below: not where it was moved since.
#[test]
fn a_clone_that_moves_meanwhile_is_not_in_two_places() {
    let mut seen = [0, 0];
    for step in 0..40 {
        let machine = Machine::new(400 + step);
        let system = machine.open();
        machine.run(async {
            let top = source(&system).await;
            let inner = find(&system, "source/inner").await.unwrap();
            system.clone_tree(inner, top, b"below").await.unwrap();
            // Something for the commit to do.
            write(&system, find(&system, "source/inner/f1").await.unwrap().file, 77).await;
            let (started, is_over) = (machine.world.operations(), Cell::new(false));
            let moved = async {
                while machine.world.operations() < started + step && !is_over.get() {
                    system.platform.tasks.sleep(std::time::Duration::from_micros(20)).await;
                }
                system.rename(top, b"below", FileId::ROOT, b"moved", RenameMode::Replace).await.unwrap();
            };
            let cloned = async {
                match clone(&system, "source", "copy").await {
                    Ok(_) => seen[1] += 1,
                    Err(error) => {
                        assert!(matches!(error, FileError::NotSupported(_)), "{error}");
                        seen[0] += 1;
                    }
                }
                is_over.set(true);
            };
            let both: [Pin<Box<dyn Future<Output = ()>>>; 2] = [Box::pin(cloned), Box::pin(moved)];
            platform::task::all(both).await;
            assert!(matches!(find(&system, "copy/below").await, Err(FileError::NoEntry)));
            assert!(find(&system, "moved/f1").await.is_ok());
            system.reclaim(&Reclaim::default()).await.unwrap();
        });
        machine.check(&system);
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}

async fn drop_source(system: &FileSystem) {
    remove_below(system, find(system, "source").await.unwrap()).await;
    system.remove_directory(FileId::ROOT, b"source").await.unwrap();
    system.sync_all().await.unwrap();
    system.commit().await.unwrap();
}

/// What lay beside what was cloned is let go of, and names that nobody can come to count no more.
#[test]
fn a_clone_holds_what_it_leads_to_and_nothing_else() {
    let machine = Machine::new(9);
    let system = machine.open();
    let used = |system: &FileSystem| {
        for _ in 0..3 {
            machine.run(system.reclaim(&Reclaim { is_thorough: true, ..Reclaim::default() })).unwrap();
        }
        let status = system.status().store;
        status.data.stored_bytes + status.metadata.stored_bytes
    };
    machine.run(async {
        source(&system).await;
        let inner = find(&system, "source/inner").await.unwrap();
        system.clone_tree(inner, FileId::ROOT, b"small").await.unwrap();
        let again = find(&system, "small/again").await.unwrap();
        assert_eq!(system.attributes(again).await.unwrap().links, 2, "one of them is in `source`");
        drop_source(&system).await;
    });
    let file = machine.run(find(&system, "small/again")).unwrap();
    system.retain(file);
    machine.run(async {
        system.write(file.file, 0, b"open", false).await.unwrap();
        system.remove_file(find(&system, "small").await.unwrap().file, b"again").await.unwrap();
        system.sync_all().await.unwrap();
    });
    assert!(used(&system) > 1 << 20, "who has it open reads it");
    machine.check(&system);
    let content = machine.run(read_all(&system, file));
    assert!(content[..4] == *b"open" && content[4..] == pattern(1 << 20, 1000)[4..]);
    assert_eq!(machine.run(system.attributes(file)).unwrap().links, 0);
    machine.run(system.forget(file, 1)).unwrap();
    machine.run(system.commit()).unwrap();
    assert!(used(&system) < 1 << 20, "{} bytes", used(&system));
    let branch = system.branches.lock().values().next().unwrap().clone();
    assert_eq!(branch.top, branch.root);
    let system = machine.power_cycle(system);
    machine.run(async {
        let small = find(&system, "small").await.unwrap();
        assert_eq!(list(&system, small, 50).await.len() as u64, FILES);
        for number in [0, 7, FILES - 1] {
            let node = find(&system, &format!("small/f{number}")).await.unwrap();
            assert!(read_all(&system, node).await == pattern(3000, number));
        }
    });
    machine.check(&system);
}

/// What a root leads to is all of its catalog but what was unlinked, and that goes too: of a snapshot's, and of a clone that was pruned.
#[test]
fn a_clone_of_a_root_holds_nothing_that_was_unlinked() {
    for of_snapshot in [false, true] {
        let machine = Machine::new(10);
        let system = machine.open();
        let large = machine.run(async {
            source(&system).await;
            clone(&system, "source", "first").await.unwrap();
            drop_source(&system).await;
            system.reclaim(&Reclaim::default()).await.unwrap();
            let large = find(&system, "first/large").await.unwrap();
            system.retain(large);
            for (directory, name) in [("first", "large"), ("first/inner", "again")] {
                system.remove_file(find(&system, directory).await.unwrap().file, name.as_bytes()).await.unwrap();
            }
            if of_snapshot {
                let first = find(&system, "first").await.unwrap().file;
                system.snapshot_of("s", first).await.unwrap();
                let shown = system.find_snapshot(b"s").unwrap();
                system.clone_tree(shown, FileId::ROOT, b"second").await.unwrap();
                system.delete_snapshot("s").await.unwrap();
            } else {
                clone(&system, "first", "second").await.unwrap();
            }
            large
        });
        machine.check(&system);
        machine.run(async {
            system.forget(large, 1).await.unwrap();
            system.sync_all().await.unwrap();
            system.commit().await.unwrap();
        });
        for _ in 0..3 {
            machine.run(system.reclaim(&Reclaim { is_thorough: true, ..Reclaim::default() })).unwrap();
        }
        let status = system.status().store;
        let used = status.data.stored_bytes + status.metadata.stored_bytes;
        assert!(used < 1 << 20, "{used} bytes");
        assert!(system.branches.lock().values().all(BranchValue::is_pruned));
        let system = machine.power_cycle(system);
        machine.check(&system);
        for (name, number) in [("first", 7), ("second", 7), ("second", FILES - 1)] {
            let node = machine.run(find(&system, &format!("{name}/inner/f{number}"))).unwrap();
            assert!(machine.run(read_all(&system, node)) == pattern(3000, number));
        }
    }
}

/// While it is found out what a clone leads to, it changes: nothing of that is lost.
#[test]
fn what_changes_beside_the_pruning_is_kept() {
    for step in 0..40 {
        let machine = Machine::new(200 + step);
        let system = machine.open();
        machine.run(async {
            source(&system).await;
            clone(&system, "source", "clone").await.unwrap();
            drop_source(&system).await;
            let inner = find(&system, "clone/inner").await.unwrap().file;
            let top = find(&system, "clone").await.unwrap().file;
            let (started, is_over) = (machine.world.operations(), Cell::new(false));
            let changes = async {
                while machine.world.operations() < started + step && !is_over.get() {
                    system.platform.tasks.sleep(std::time::Duration::from_micros(50)).await;
                }
                let new = create(&system, inner, "new", Kind::Regular).await.file;
                write(&system, new, 9000).await;
                write(&system, find(&system, "clone/inner/f1").await.unwrap().file, 9001).await;
                system.rename(inner, b"f2", top, b"moved", RenameMode::Replace).await.unwrap();
                system.remove_file(inner, b"f3").await.unwrap();
                system.sync_all().await.unwrap();
                system.commit().await.unwrap();
            };
            let prune = async {
                system.reclaim(&Reclaim::default()).await.unwrap();
                is_over.set(true);
            };
            let both: [Pin<Box<dyn Future<Output = ()>>>; 2] = [Box::pin(prune), Box::pin(changes)];
            platform::task::all(both).await;
        });
        let branch = system.branches.lock().values().next().unwrap().clone();
        assert_eq!(branch.top, branch.root, "step {step}");
        let system = machine.power_cycle(system);
        machine.run(async {
            for (name, seed) in [("inner/new", 9000), ("inner/f1", 9001), ("moved", 2), ("inner/f4", 4)] {
                let node = find(&system, &format!("clone/{name}")).await.unwrap();
                assert!(read_all(&system, node).await == pattern(3000, seed), "step {step}: {name}");
            }
            assert!(matches!(find(&system, "clone/inner/f3").await, Err(FileError::NoEntry)));
        });
        machine.check(&system);
    }
}

#[test]
fn a_power_cut_leaves_a_clone_pruned_or_not() {
    let mut seen = [0, 0];
    for cut in 0.. {
        let machine = Machine::new(300 + cut);
        let system = machine.open();
        machine.run(async {
            source(&system).await;
            clone(&system, "source/inner", "clone").await.unwrap();
            system.sync_all().await.unwrap();
            system.commit().await.unwrap();
        });
        machine.world.cut_power_at(machine.world.operations() + cut);
        let done = machine.world.run_until(async {
            system.reclaim(&Reclaim::default()).await?;
            system.sync_all().await
        });
        drop(system);
        machine.world.restart();
        let system = machine.open();
        machine.check(&system);
        let branch = system.branches.lock().values().next().unwrap().clone();
        seen[usize::from(branch.top == branch.root)] += 1;
        machine.run(async {
            expect_source(&system, "source").await;
            let large = find(&system, "clone/again").await.unwrap();
            assert!(read_all(&system, large).await == pattern(1 << 20, 1000));
            system.reclaim(&Reclaim::default()).await.unwrap();
            assert_eq!(system.attributes(large).await.unwrap().links, 1, "cut at {cut}");
        });
        machine.check(&system);
        if matches!(done, Ok(Ok(()))) {
            break;
        }
    }
    assert!(seen[0] > 3 && seen[1] > 0, "{seen:?}");
}

#[test]
fn attributes_of_the_clone_itself_are_its_own() {
    let machine = Machine::new(8);
    let system = machine.open();
    machine.run(async {
        let top = source(&system).await;
        let made = clone(&system, "source", "clone").await.unwrap();
        let change = AttributeChange { mode: Some(0o700), ..AttributeChange::default() };
        assert_eq!(system.set_attributes(made.file, &change).await.unwrap().mode, 0o700);
        assert_eq!(system.attributes(Node::live(top)).await.unwrap().mode, 0o644);
    });
}

/// Who has a file of a clone in hand changes it at each moment of the commit that takes the clone out of the list (I-161).
#[test]
fn a_change_beside_the_end_of_its_clone_keeps_no_node_shut() {
    let (mut passed_over, mut is_over) = (0, false);
    for step in 0.. {
        let machine = Machine::new(61);
        let system = machine.open();
        let file = machine.run(async {
            source(&system).await;
            clone(&system, "source", "clone").await.unwrap();
            let file = find(&system, "clone/inner/f1").await.unwrap().file;
            system.commit().await.unwrap();
            system.batch_remove(FileId::ROOT, b"clone").await.unwrap();
            system.finish_removals().await.unwrap();
            file
        });
        machine.disk.set_faults(Faults { latency: Duration::from_millis(5), ..Faults::default() });
        let has_ended = Arc::new(AtomicBool::new(false));
        let (committing, ends) = (Arc::clone(&system), Arc::clone(&has_ended));
        let tasks = machine.world.platform().tasks;
        let commit = async move {
            committing.commit().await.unwrap();
            ends.store(true, Ordering::SeqCst);
        };
        tasks.spawn("commit", Box::pin(commit));
        machine.run(async {
            tasks.sleep(Duration::from_millis(step)).await;
            is_over = has_ended.load(Ordering::SeqCst);
            let mode = AttributeChange { mode: Some(0o600), ..AttributeChange::default() };
            match system.set_attributes(file, &mode).await {
                Ok(_) => {}
                Err(error) => assert!(matches!(error, FileError::NoEntry | FileError::Stale), "{error}"),
            }
            system.sync_journal().await.unwrap();
            while !has_ended.load(Ordering::SeqCst) {
                tasks.sleep(Duration::from_millis(1)).await;
            }
        });
        drop(system);
        machine.world.restart();
        machine.disk.set_faults(Faults::default());
        let (platform, disks, options) = (machine.world.platform(), machine.disks(), machine.options.clone());
        let (system, report) = machine.run(FileSystem::open(&platform, &disks, options)).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        passed_over += report.passed_over;
        machine.check(&system);
        if is_over {
            break;
        }
    }
    assert!(passed_over > 0, "no change came in between");
}

/// A clone is made in a clone that loses its name meanwhile: it is not made, or goes with that.
#[test]
fn a_clone_in_a_clone_that_is_removed_meanwhile_does_not_stay() {
    let machine = Machine::new(62);
    let system = machine.open();
    machine.run(async {
        source(&system).await;
        create(&system, FileId::ROOT, "small", Kind::Directory).await;
        system.snapshot("s").await.unwrap();
        clone(&system, "source", "clone").await.unwrap();
        let inner = find(&system, "clone/inner").await.unwrap().file;
        let small = find(&system, ".snapshots/s/small").await.unwrap();
        let tasks = machine.world.platform().tasks;
        let committing = system.commit.lock().await;
        let mut cloning = Box::pin(system.clone_tree(small, inner, b"within"));
        // It waits for the commit.
        let _ = first(&mut cloning, tasks.sleep(Duration::from_secs(1))).await;
        system.batch_remove(FileId::ROOT, b"clone").await.unwrap();
        let _ = first(system.finish_removals(), tasks.sleep(Duration::from_secs(1))).await;
        drop(committing);
        assert!(matches!(cloning.await, Err(FileError::NoEntry)));
        system.finish_removals().await.unwrap();
        system.commit().await.unwrap();
    });
    assert_eq!((system.clones(), system.branches.lock().len(), system.removing()), (0, 0, 0));
    machine.check(&system);
}

/// More clones than one pass prunes keep what was dropped beside them: the passes after it give it back, and who waits for room waits for none of them.
#[test]
fn what_many_clones_keep_comes_back() {
    const CLONES: u32 = 40;
    for is_hurried in [false, true] {
        let machine = Machine::new(11);
        let system = machine.open();
        machine.run(async {
            create(&system, FileId::ROOT, "source", Kind::Directory).await;
            let large = create(&system, FileId::ROOT, "large", Kind::Regular).await.file;
            system.write(large, 0, &pattern(8 << 20, 1), false).await.unwrap();
            system.sync_all().await.unwrap();
            for number in 0..CLONES {
                clone(&system, "source", &format!("clone{number}")).await.unwrap();
            }
            system.commit().await.unwrap();
            let stored = || system.status().store.data.stored_bytes;
            assert!(stored() > 8 << 20);
            system.remove_file(FileId::ROOT, b"large").await.unwrap();
            system.commit().await.unwrap();
            let mut passes = 0;
            while stored() > 1 << 20 {
                if is_hurried {
                    assert!(system.make_room().await.unwrap());
                } else {
                    assert!(system.dropped_bytes.load(Ordering::Relaxed) > 7 << 20, "nobody would pass again");
                    system.reclaim(&Reclaim::default()).await.unwrap();
                }
                passes += 1;
                assert!(passes < 10);
            }
            assert_eq!(passes, if is_hurried { 1 } else { 3 });
            assert!(system.branches.lock().values().all(BranchValue::is_pruned));
            assert!(!system.are_branches_left.load(Ordering::Relaxed));
        });
        machine.check(&system);
    }
}

/// A directory that was removed, and is empty by now, is still to end: whoever prunes the clone leaves it. Else who comes to end it finds nothing, and
/// the list of unlinked files has it for ever: the clone never goes (plan batches, seed 2300004625).
#[test]
fn what_was_removed_and_has_not_ended_is_not_pruned() {
    let machine = Machine::new(4625);
    let system = machine.open();
    let share = || Share::FULL;
    let pace = Pace::new(&system.platform, &share, &|| true);
    machine.run(async {
        source(&system).await;
        let top = clone(&system, "source", "clone").await.unwrap().file;
        let inner = find(&system, "clone/inner").await.unwrap();
        let nobody_else = system.removals.work.lock().await;
        system.batch_remove(top, b"inner").await.unwrap();
        while !system.list_range(&system.live(inner.file).await.unwrap(), 0, 1).await.unwrap().0.is_empty() {
            system.remove_some(inner.file, 0).await.unwrap();
        }
        system.commit().await.unwrap();
        system.table.remove(inner);
        let value = system.branches.lock()[&top.branch].clone();
        let kept = system.load(&value.catalog, inner.file).await.unwrap().unwrap().attributes;
        assert_eq!((kept.links, kept.size), (0, 0));
        assert!(system.prune(top.branch, &pace).await.unwrap());
        drop(nobody_else);
        system.finish_removals().await.unwrap();
        system.commit().await.unwrap();
        let value = system.branches.lock()[&top.branch].clone();
        assert!(value.is_pruned() && value.orphans == Root::Empty, "{value:?}");
        system.batch_remove(FileId::ROOT, b"clone").await.unwrap();
        system.finish_removals().await.unwrap();
        system.commit().await.unwrap();
        assert!(system.branches.lock().is_empty());
    });
    machine.check(&system);
    machine.run(system.close()).unwrap();
}
