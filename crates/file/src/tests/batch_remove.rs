//! Trees that are removed in one go.

use std::sync::Arc;

use base::id::FileId;
use parking_lot::Mutex;

use super::content::pattern;
use super::{Machine, create, find, list, new, read_all};
use crate::{FileError, FileSystem, Kind, Node, Options, Reclaim, RenameMode, XattrMode};

/// A tree of so many directories below each other, with files in each.
async fn tree(system: &FileSystem, name: &str, depth: usize, files: usize) -> FileId {
    let top = create(system, FileId::ROOT, name, Kind::Directory).await.file;
    let mut at = top;
    for level in 0..depth {
        for number in 0..files {
            let file = create(system, at, &format!("f{number}"), Kind::Regular).await.file;
            system.write(file, 0, &pattern(3000, (level * files + number) as u64), false).await.unwrap();
        }
        create(system, at, "empty", Kind::Directory).await;
        at = create(system, at, "d", Kind::Directory).await.file;
    }
    top
}

/// Of the present: how many inodes there are.
fn inodes(machine: &Machine, system: &FileSystem) -> u64 {
    machine.check(system);
    let report = machine.run(system.check_files(&|_| {})).unwrap();
    report.files
}

fn finish(machine: &Machine, system: &FileSystem) {
    machine.run(async {
        system.finish_removals().await.unwrap();
        assert_eq!(system.removing(), 0);
        system.commit().await.unwrap();
    });
}

#[test]
fn a_tree_is_gone_at_once_and_what_it_had_behind() {
    let machine = Machine::new(60);
    let system = machine.open();
    let none = inodes(&machine, &system);
    machine.run(async {
        tree(&system, "t", 5, 30).await;
        create(&system, FileId::ROOT, "other", Kind::Regular).await;
        system.sync_all().await.unwrap();
        system.batch_remove(FileId::ROOT, b"t").await.unwrap();
        assert!(matches!(find(&system, "t").await, Err(FileError::NoEntry)));
        assert_eq!(list(&system, Node::live(FileId::ROOT), 10).await, ["other"]);
        let root = system.attributes(Node::live(FileId::ROOT)).await.unwrap();
        assert_eq!((root.size, root.links), (1, 2));
        assert!(matches!(system.batch_remove(FileId::ROOT, b"t").await, Err(FileError::NoEntry)));
        // What is no directory goes as ever.
        system.batch_remove(FileId::ROOT, b"other").await.unwrap();
        assert!(system.removing() > 0);
    });
    finish(&machine, &system);
    assert_eq!(inodes(&machine, &system), none);
    machine.run(system.close()).unwrap();
}

#[test]
fn a_power_cut_at_any_moment_leaves_a_tree_or_none_and_nothing_in_the_end() {
    let mut seen = [0, 0];
    for cut in 0.. {
        let machine = Machine::new(600 + cut);
        let system = machine.open();
        let none = inodes(&machine, &system);
        machine.run(async {
            tree(&system, "t", 3, 20).await;
            let shared = find(&system, "t/d/f1").await.unwrap().file;
            system.link(shared, FileId::ROOT, b"kept").await.unwrap();
            system.sync_all().await.unwrap();
        });
        machine.world.cut_power_at(machine.world.operations() + cut);
        let done = machine.world.run_until(async {
            system.batch_remove(FileId::ROOT, b"t").await?;
            system.sync(FileId::ROOT).await?;
            system.commit().await?;
            system.finish_removals().await?;
            system.commit().await?;
            system.reclaim(&Reclaim::default()).await.map(|_| ())
        });
        let is_done = matches!(done, Ok(Ok(())));
        drop(system);
        machine.world.restart();
        let system = machine.open();
        let is_there = machine.run(async {
            assert!(read_all(&system, find(&system, "kept").await.unwrap()).await == pattern(3000, 21));
            find(&system, "t").await.is_ok()
        });
        assert!(!is_there || !is_done);
        seen[usize::from(is_there)] += 1;
        machine.check(&system);
        if !is_there {
            finish(&machine, &system);
            assert_eq!(inodes(&machine, &system), none + 1, "cut at {cut}");
            let kept = machine.run(async { system.attributes(find(&system, "kept").await.unwrap()).await.unwrap() });
            assert_eq!(kept.links, 1);
        }
        if is_done {
            break;
        }
    }
    assert!(seen[0] > 3 && seen[1] > 1, "{seen:?}");
}

/// Names that are removed together: some hundred by one frame, and what is no file as ever.
#[test]
fn names_of_a_directory_go_together() {
    let machine = Machine::new(611);
    let system = machine.open();
    let none = inodes(&machine, &system);
    let names: Vec<String> = (0..700).map(|number| format!("f{number}")).collect();
    machine.run(async {
        tree(&system, "t", 2, 3).await;
        for name in &names {
            create(&system, FileId::ROOT, name, Kind::Regular).await;
        }
        let file = async |name: &str| find(&system, name).await.unwrap();
        let (linked, open) = (file("f3").await, file("f4").await);
        system.link(linked.file, find(&system, "t/d").await.unwrap().file, b"kept").await.unwrap();
        system.link(linked.file, FileId::ROOT, b"twice").await.unwrap();
        system.write(open.file, 0, b"open", false).await.unwrap();
        system.retain(open);
        let frames = system.store.last_logged().0;
        let all: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
        let removed = system.batch_remove_names(FileId::ROOT, &all, false).await;
        assert!(removed.len() == names.len() && removed.iter().all(Result::is_ok), "{removed:?}");
        assert_eq!(system.store.last_logged().0 - frames, 2, "512 and 188");
        assert_eq!(list(&system, Node::live(FileId::ROOT), 10).await, ["t", "twice"]);
        assert_eq!(system.attributes(linked).await.unwrap().links, 2);
        assert_eq!(read_all(&system, open).await, b"open");
        system.forget(open, 1).await.unwrap();

        // Two names of one file, and a directory that nobody meant.
        let linked_twice = create(&system, FileId::ROOT, "one", Kind::Regular).await.file;
        system.link(linked_twice, FileId::ROOT, b"other").await.unwrap();
        let removed = system.batch_remove_names(FileId::ROOT, &[b"one", b"t", b"other"], false).await;
        assert!(removed[0].is_ok() && removed[2].is_ok(), "{removed:?}");
        assert!(matches!(removed[1], Err(FileError::IsDirectory)), "{removed:?}");

        let mixed: [&[u8]; 7] = [b"t", b"twice", b"f1", b"twice", b"t", b".snapshots", b"t"];
        let removed = system.batch_remove_names(FileId::ROOT, &mixed, true).await;
        assert!(removed[0].is_ok() && removed[1].is_ok(), "{removed:?}");
        for place in [2, 3, 4, 6] {
            assert!(matches!(removed[place], Err(FileError::NoEntry)), "{place}: {removed:?}");
        }
        assert!(matches!(removed[5], Err(FileError::NotPermitted(_))), "{removed:?}");
        assert!(list(&system, Node::live(FileId::ROOT), 10).await.is_empty());
        let nowhere = system.batch_remove_names(open.file, &[b"a", b"b"], true).await;
        assert!(nowhere.iter().all(Result::is_err) && nowhere.len() == 2, "{nowhere:?}");
    });
    finish(&machine, &system);
    assert_eq!(inodes(&machine, &system), none);
    machine.run(system.close()).unwrap();
}

#[test]
fn a_power_cut_leaves_all_names_of_a_frame_or_none() {
    const FILES: usize = 40;
    // What a cut leaves of what was not synced goes by the seed.
    const SEEDS: u64 = 4;
    let mut seen = [0, 0];
    for number in 0.. {
        let (cut, is_last) = (number / SEEDS, number % SEEDS + 1 == SEEDS);
        let machine = Machine::new(6200 + number);
        let system = machine.open();
        let names: Vec<String> = (0..FILES).map(|number| format!("f{number}")).collect();
        machine.run(async {
            for name in &names {
                create(&system, FileId::ROOT, name, Kind::Regular).await;
            }
            system.sync_all().await.unwrap();
        });
        machine.world.cut_power_at(machine.world.operations() + cut);
        let done = machine.world.run_until(async {
            let all: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
            system.batch_remove_names(FileId::ROOT, &all, false).await.into_iter().collect::<Result<(), _>>()?;
            system.sync(FileId::ROOT).await?;
            system.commit().await
        });
        let is_done = matches!(done, Ok(Ok(())));
        drop(system);
        machine.world.restart();
        let system = machine.open();
        let left = machine.run(async { list(&system, Node::live(FileId::ROOT), 100).await.len() });
        assert!(left == 0 || left == FILES && !is_done, "cut at {cut}: {left} are left");
        seen[usize::from(left == 0)] += 1;
        machine.check(&system);
        if is_done && is_last {
            break;
        }
    }
    assert!(seen[0] > 1 && seen[1] > 1, "{seen:?}");
}

#[test]
fn what_is_open_or_has_a_name_elsewhere_stays_and_nothing_new_is_made() {
    let machine = Machine::new(61);
    let mut system = machine.open();
    let none = inodes(&machine, &system);
    machine.run(async {
        let top = tree(&system, "t", 3, 3).await;
        let deep = find(&system, "t/d/d").await.unwrap();
        let open = find(&system, "t/d/f0").await.unwrap();
        let linked = find(&system, "t/d/d/f2").await.unwrap();
        system.link(linked.file, FileId::ROOT, b"linked").await.unwrap();
        [Node::live(top), deep, open].iter().for_each(|node| system.retain(*node));
        system.batch_remove(FileId::ROOT, b"t").await.unwrap();
        for directory in [top, deep.file] {
            let made = system.create_file(directory, b"x", &new(Kind::Regular)).await;
            assert!(matches!(made, Err(FileError::NoEntry)), "{made:?}");
            let unnamed = system.create_unnamed(directory, &new(Kind::Regular)).await;
            assert!(matches!(unnamed, Err(FileError::NoEntry)));
            let link = system.link(linked.file, directory, b"x").await;
            assert!(matches!(link, Err(FileError::NoEntry)));
            let moved = system.rename(FileId::ROOT, b"linked", directory, b"x", RenameMode::Replace).await;
            assert!(matches!(moved, Err(FileError::NoEntry)));
            let out = system.rename(directory, b"f0", FileId::ROOT, b"x", RenameMode::Replace).await;
            assert!(matches!(out, Err(FileError::NoEntry)));
        }
        // Elsewhere everything goes on.
        create(&system, FileId::ROOT, "t", Kind::Directory).await;
        system.write(open.file, 0, b"still", false).await.unwrap();
        system.set_xattr(open.file, b"user.a", b"b", XattrMode::Set, false).await.unwrap();
        system.finish_removals().await.unwrap();
        assert_eq!(read_all(&system, open).await[..5], *b"still");
        for node in [Node::live(top), deep] {
            let gone = system.attributes(node).await.unwrap();
            assert_eq!((gone.links, gone.size), (0, 0));
            assert!(list(&system, node, 10).await.is_empty());
            let made = system.create_file(node.file, b"x", &new(Kind::Regular)).await;
            assert!(matches!(made, Err(FileError::NoEntry)));
        }
        for node in [Node::live(top), deep, open] {
            system.forget(node, 1).await.unwrap();
            assert!(matches!(system.attributes(node).await, Err(FileError::NoEntry)));
        }
        assert_eq!(system.attributes(linked).await.unwrap().links, 1);
    });
    assert_eq!(inodes(&machine, &system), none + 2);
    // Who closes before the turn of the tree has come leaves it to the remover; a crash does the same.
    machine.run(async {
        let top = tree(&system, "again", 3, 3).await;
        system.retain(Node::live(top));
        system.batch_remove(FileId::ROOT, b"again").await.unwrap();
        system.forget(Node::live(top), 1).await.unwrap();
        system.sync_all().await.unwrap();
    });
    system = machine.power_cycle(system);
    finish(&machine, &system);
    assert_eq!(inodes(&machine, &system), none + 2);
}

#[test]
fn snapshots_and_clones_keep_theirs_and_a_clone_goes_whole() {
    let machine = Machine::new(62);
    let mut system = machine.open();
    machine.run(async {
        tree(&system, "t", 4, 10).await;
        system.snapshot("before").await.unwrap();
        system.clone_tree(find(&system, "t").await.unwrap(), FileId::ROOT, b"clone").await.unwrap();
        let outer = create(&system, FileId::ROOT, "outer", Kind::Directory).await.file;
        system.clone_tree(find(&system, "t").await.unwrap(), outer, b"inner").await.unwrap();
        system.batch_remove(FileId::ROOT, b"t").await.unwrap();
        system.finish_removals().await.unwrap();
        for top in [".snapshots/before/t", "clone", "outer/inner"] {
            let file = find(&system, &format!("{top}/d/d/f3")).await.unwrap();
            assert!(read_all(&system, file).await == pattern(3000, 23), "{top}");
        }
    });
    machine.check(&system);
    machine.run(async {
        // A clone in a clone has to be looked for; the others end as they are.
        let clone = find(&system, "clone/d").await.unwrap().file;
        system.clone_tree(find(&system, "outer/inner/d").await.unwrap(), clone, b"nested").await.unwrap();
        let held = find(&system, "clone").await.unwrap();
        system.retain(held);
        let open = find(&system, "outer/inner/d/f1").await.unwrap();
        let above = find(&system, "outer/inner/d").await.unwrap().file;
        system.retain(open);
        assert_eq!(system.clones(), 3);
        system.batch_remove(FileId::ROOT, b"clone").await.unwrap();
        system.batch_remove(FileId::ROOT, b"outer").await.unwrap();
        system.finish_removals().await.unwrap();
        system.commit().await.unwrap();
        assert!(read_all(&system, open).await == pattern(3000, 11));
        let inside = system.inode(open).await.unwrap().state.lock().attributes.parent;
        // Where it lay, which is no more.
        assert_eq!(inside, above);
        system.forget(open, 1).await.unwrap();
        assert_eq!(system.attributes(held).await.unwrap().size, 0);
        system.forget(held, 1).await.unwrap();
        create(&system, FileId::ROOT, "last", Kind::Regular).await;
        // The access time of what was open, too.
        system.sync_all().await.unwrap();
        system.commit().await.unwrap();
        assert_eq!(system.branches.lock().len(), 0);
    });
    machine.check(&system);
    system = machine.power_cycle(system);
    machine.run(async {
        assert_eq!(list(&system, Node::live(FileId::ROOT), 10).await, ["last"]);
        assert_eq!(system.branches.lock().len(), 0);
        let kept = find(&system, ".snapshots/before/t/d/f2").await.unwrap();
        assert!(read_all(&system, kept).await == pattern(3000, 12));
    });
    machine.check(&system);
}

/// Names by the thousand, some of which come while the tree goes: and it is found again after a crash in the middle.
#[test]
fn a_large_directory_goes_in_many_frames() {
    let options = Options { inodes_max: 100, uncommitted_files_max: 300, ..Options::default() };
    let machine = Machine::with(63, 1 << 30, options);
    let mut system = machine.open();
    let none = inodes(&machine, &system);
    machine.run(async {
        let top = create(&system, FileId::ROOT, "t", Kind::Directory).await.file;
        for number in 0..3000 {
            let kind = if number % 3 == 0 { Kind::Directory } else { Kind::Regular };
            let made = create(&system, top, &format!("n{number}"), kind).await.file;
            if number % 6 == 0 {
                create(&system, made, "below", Kind::Fifo).await;
            }
        }
        system.batch_remove(FileId::ROOT, b"t").await.unwrap();
        system.sync(FileId::ROOT).await.unwrap();
    });
    let mut rounds = 0;
    while machine.run(async {
        // A little longer each time: in a life that is too short to read what must be read nothing goes.
        system.platform.tasks.sleep(std::time::Duration::from_micros(300 + 100 * rounds)).await;
        system.sync(FileId::ROOT).await.unwrap();
        system.removing() > 0
    }) {
        rounds += 1;
        machine.check(&system);
        system = machine.power_cycle(system);
    }
    assert!(rounds > 1, "{rounds}");
    assert_eq!(inodes(&machine, &system), none);
    assert!(system.roots.lock().orphans == crate::format::Root::Empty);
}

/// Once every name was looked at again and again until a commit, because those that had gone were met once more.
#[test]
fn each_name_is_met_once() {
    let machine = Machine::new(66);
    let system = machine.open();
    machine.run(async {
        let top = create(&system, FileId::ROOT, "t", Kind::Directory).await.file;
        for number in 0..1500 {
            create(&system, top, &format!("n{number}"), Kind::Fifo).await;
        }
        system.commit().await.unwrap();
        system.batch_remove(FileId::ROOT, b"t").await.unwrap();
        let mut steps = 0;
        while system.removing() > 0 {
            let after = system.removals.next().unwrap().1;
            match system.remove_some(top, after).await.unwrap() {
                Some(after) => system.removals.go_on(top, after),
                None => system.removals.end(top),
            }
            steps += 1;
        }
        assert!(steps < 10, "{steps}");
        assert_eq!(system.counters.removing_entries.value(), 1500);
    });
}

#[test]
fn a_full_disk_gets_the_room_of_a_tree_when_somebody_needs_it() {
    let machine = Machine::with(64, 80 << 20, Options { dirty_bytes_max: 8 << 20, ..Options::default() });
    let system = machine.open();
    machine.run(async {
        let fill = async |name: &str| {
            let top = create(&system, FileId::ROOT, name, Kind::Directory).await.file;
            let mut number = 0;
            loop {
                let Ok(made) = system.create_file(top, format!("{number}").as_bytes(), &new(Kind::Regular)).await
                else {
                    break number;
                };
                let content = pattern(1 << 20, number + 100 * name.len() as u64);
                if system.write(made.file, 0, &content, false).await.is_err() {
                    break number;
                }
                number += 1;
            }
        };
        let first = fill("t").await;
        assert!(first > 10, "{first}");
        system.batch_remove(FileId::ROOT, b"t").await.unwrap();
        let second = fill("other").await;
        assert!(second + 4 > first, "{second} after {first}");
    });
    machine.check(&system);
}

#[test]
fn a_repair_finishes_what_was_removed_and_finds_nothing_again() {
    let machine = Machine::new(65);
    let system = machine.open();
    machine.run(async {
        tree(&system, "t", 3, 5).await;
        create(&system, FileId::ROOT, "kept", Kind::Regular).await;
        system.batch_remove(FileId::ROOT, b"t").await.unwrap();
        system.repair_files(false, (0, 0)).await.unwrap();
        assert_eq!(list(&system, Node::live(FileId::ROOT), 10).await, ["kept"]);
        assert_eq!(system.removing(), 0);
    });
    machine.check(&system);
}

/// Who keeps attributes of a file, because it was looked up by another name, hears when the tree takes a link of it.
#[test]
fn who_knows_a_file_by_another_name_hears_that_it_has_a_link_less() {
    let machine = Machine::new(69);
    let system = machine.open();
    let heard: Arc<Mutex<Vec<FileId>>> = Arc::default();
    let hear = Arc::clone(&heard);
    system.hear_of_links(move |file| {
        hear.lock().push(file);
        true
    });
    let known = machine.run(async {
        tree(&system, "t", 2, 5).await;
        let mut files = Vec::new();
        for (from, name) in [("t/f1", "known"), ("t/d/f2", "unknown")] {
            let file = find(&system, from).await.unwrap().file;
            system.link(file, FileId::ROOT, name.as_bytes()).await.unwrap();
            files.push(file);
        }
        system.retain(Node::live(files[0]));
        system.batch_remove(FileId::ROOT, b"t").await.unwrap();
        files[0]
    });
    finish(&machine, &system);
    assert_eq!(*heard.lock(), [known]);
    machine.run(async {
        assert_eq!(system.attributes(Node::live(known)).await.unwrap().links, 1);
    });
}

/// Between the look at a name and the reference that its file is given with.
#[test]
fn what_was_found_and_has_gone_since_is_not_handed_out() {
    let machine = Machine::new(72);
    let system = machine.open();
    machine.run(async {
        tree(&system, "t", 1, 3).await;
        let found = system.lookup(find(&system, "t").await.unwrap(), b"f0").await.unwrap().0;
        let linked = find(&system, "t/f1").await.unwrap();
        system.link(linked.file, FileId::ROOT, b"linked").await.unwrap();
        let held = find(&system, "t/f2").await.unwrap();
        system.retain_found(held).await.unwrap();
        let snapshots = find(&system, ".snapshots").await.unwrap();
        system.batch_remove(FileId::ROOT, b"t").await.unwrap();
        system.finish_removals().await.unwrap();
        // Who has ended is in memory, and then nowhere.
        for _ in 0..2 {
            assert!(matches!(system.retain_found(found).await, Err(FileError::NoEntry)));
            assert!(!system.is_referenced(found.file));
            system.commit().await.unwrap();
        }
        for node in [linked, held, snapshots] {
            system.retain_found(node).await.unwrap();
            assert!(system.is_referenced(node.file));
            system.attributes(node).await.unwrap();
        }
        system.forget(held, 2).await.unwrap();
        assert!(matches!(system.retain_found(held).await, Err(FileError::NoEntry)));
    });
}

/// An opening goes on with what was removed, before somebody is there to hear; and who comes later takes the place of who was there.
#[test]
fn who_comes_later_hears_what_nobody_heard_and_all_that_comes() {
    let machine = Machine::new(71);
    let system = machine.open();
    let heard: [Arc<Mutex<Vec<FileId>>>; 2] = Default::default();
    let hear = |number: usize| {
        let heard = Arc::clone(&heard[number]);
        system.hear_of_links(move |file| {
            // It goes when it has heard twice.
            let is_there = heard.lock().len() < 2;
            if is_there {
                heard.lock().push(file);
            }
            is_there
        });
    };
    let remove = |name: &str| {
        let file = machine.run(async {
            tree(&system, name, 1, 3).await;
            let file = find(&system, &format!("{name}/f1")).await.unwrap().file;
            system.link(file, FileId::ROOT, format!("{name} too").as_bytes()).await.unwrap();
            system.retain(Node::live(file));
            system.batch_remove(FileId::ROOT, name.as_bytes()).await.unwrap();
            file
        });
        finish(&machine, &system);
        file
    };
    let first = remove("a");
    hear(0);
    assert_eq!(*heard[0].lock(), [first]);
    let second = remove("b");
    let third = remove("c");
    assert_eq!((&*heard[0].lock(), &*heard[1].lock()), (&vec![first, second], &vec![]));
    hear(1);
    let fourth = remove("d");
    assert_eq!((&*heard[0].lock(), &*heard[1].lock()), (&vec![first, second], &vec![third, fourth]));
}
