//! Repair of trees: whatever chunk of them is lost, the rest is there, and says one consistent thing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::id::FileId;
use store::{Depth, Remedy};

use super::{Machine, create, find, list, read_all, tree_chunks};
use crate::namespace::Removal;
use crate::{AttributeChange, FileError, FileSystem, Kind, Node, XattrMode};

const DIRECTORIES: usize = 4;
const FILES: usize = 60;

/// What can be read of each file.
type Contents = BTreeMap<FileId, Vec<u8>>;

/// A node with some directories of files, closed, and all of its files.
fn node(seed: u64) -> (Machine, Vec<FileId>) {
    let machine = Machine::new(seed);
    let system = machine.open();
    let files = machine.run(async {
        let mut files = vec![FileId::ROOT];
        for directory in 0..DIRECTORIES {
            let top = create(&system, FileId::ROOT, &format!("d{directory}"), Kind::Directory).await.file;
            let below = create(&system, top, "below", Kind::Directory).await.file;
            files.extend([top, below]);
            for number in 0..FILES {
                let parent = if number % 3 == 0 { below } else { top };
                let name = format!("file number {number} of directory {directory}");
                let file = create(&system, parent, &name, Kind::Regular).await.file;
                system.write(file, 0, format!("content of {file}").as_bytes(), false).await.unwrap();
                files.push(file);
            }
            let large = vec![7; 3000 + directory];
            system.set_xattr(top, b"user.large", &large, XattrMode::Set, false).await.unwrap();
        }
        system.commit().await.unwrap();
        system.close().await.unwrap();
        files
    });
    drop(system);
    machine.world.restart();
    (machine, files)
}

fn readable(machine: &Machine, system: &Arc<FileSystem>, files: &[FileId]) -> Contents {
    machine.run(async {
        let mut contents = Contents::new();
        for &file in files {
            let node = Node::live(file);
            let Ok(attributes) = system.attributes(node).await else { continue };
            let mut bytes = vec![0; 100];
            match attributes.kind {
                Kind::Regular if system.read(node, 0, &mut bytes).await.is_ok() => contents.insert(file, bytes),
                Kind::Directory => contents.insert(file, Vec::new()),
                _ => None,
            };
        }
        contents
    })
}

/// Every file that a name leads to.
fn named(machine: &Machine, system: &Arc<FileSystem>) -> BTreeSet<FileId> {
    machine.run(async {
        let (mut found, mut waiting) = (BTreeSet::new(), vec![FileId::ROOT]);
        while let Some(file) = waiting.pop() {
            if !found.insert(file) || system.attributes(Node::live(file)).await.unwrap().kind != Kind::Directory {
                continue;
            }
            let mut after = 0;
            loop {
                let entries = system.read_directory(Node::live(file), after, 100).await.unwrap();
                let Some(last) = entries.last() else { break };
                after = last.cookie;
                waiting.extend(entries.iter().map(|entry| entry.node.file));
            }
        }
        found
    })
}

fn remedies(machine: &Machine, system: &Arc<FileSystem>) -> BTreeSet<Remedy> {
    machine.run(async {
        let store = system.check_store(Depth::Deep, &|_, _| {}).await;
        let files = system.check_files(&|_| {}).await.unwrap();
        store.problems.iter().filter_map(|problem| problem.remedy).chain(files.remedies).collect()
    })
}

/// What the store can do about it.
fn repair_store(machine: &Machine, system: &Arc<FileSystem>) {
    for remedy in remedies(machine, system).into_iter().filter(|remedy| !matches!(remedy, Remedy::Trees { .. })) {
        machine.run(system.repair_store(remedy)).unwrap();
    }
}

fn damaged(seed: u64, number: usize) -> Option<(Machine, Vec<FileId>)> {
    let (machine, files) = node(seed);
    let (path, at) = tree_chunks(&machine).get(number)?.clone();
    machine.disk.flip_bit(&path, at + 60, 1);
    Some((machine, files))
}

#[test]
fn whatever_chunk_of_the_trees_is_lost_the_rest_has_names() {
    let (mut number, mut given_up, mut lost_files, mut homes) = (0, 0, 0, 0);
    while let Some((machine, files)) = damaged(1, number) {
        let system = machine.open();
        let before = readable(&machine, &system, &files);
        repair_store(&machine, &system);
        let planned = remedies(&machine, &system);
        machine.run(system.repair_files(false, (0, 0))).unwrap();
        assert_eq!(readable(&machine, &system, &files), before, "chunk {number}: nothing is given up yet");
        let done = machine.run(system.repair_files(true, (0, 0))).unwrap();
        given_up += usize::from(planned.contains(&Remedy::Trees { gives_up: true }));
        assert_eq!(planned.is_empty(), done.is_empty(), "chunk {number}: {planned:?}, {done:?}");
        for life in 0..2 {
            let system = if life == 0 { system.clone() } else { machine.power_cycle(system.clone()) };
            let after = readable(&machine, &system, &files);
            let kept = before.iter().filter(|(file, _)| **file != FileId::ROOT || after.contains_key(*file));
            assert!(
                kept.clone().all(|(file, content)| after.get(file) == Some(content)),
                "chunk {number}, life {life}"
            );
            let named = named(&machine, &system);
            assert!(before.keys().all(|file| named.contains(file)), "chunk {number}, life {life}: all have names");
            assert_eq!(remedies(&machine, &system), BTreeSet::new(), "chunk {number}, life {life}");
            assert_eq!(
                machine.run(system.repair_files(true, (0, 0))).unwrap(),
                Vec::<String>::new(),
                "nothing is left to do"
            );
            if life == 1 {
                lost_files += files.len() - before.len();
                homes += usize::from(machine.run(find(&system, "lost+found")).is_ok());
                machine.run(async {
                    create(&system, FileId::ROOT, "after", Kind::Regular).await;
                    system.close().await.unwrap();
                });
            }
        }
        number += 1;
    }
    assert!(number > 10 && given_up > 4 && lost_files > 20 && homes > 1, "{number} {given_up} {lost_files} {homes}");
}

/// What was made on damaged trees may not fit into them: neither check nor repair ran then, and it was never committed.
#[test]
fn what_cannot_be_committed_keeps_nobody_from_a_repair() {
    let (mut number, mut stuck) = (0, 0);
    while let Some((machine, _)) = damaged(1, number) {
        let system = machine.open();
        let new = machine.run(system.create_file(FileId::ROOT, b"new", &super::new(Kind::Regular)));
        let new = new.ok().map(|attributes| Node::live(attributes.file));
        stuck += usize::from(machine.run(system.commit()).is_err());
        repair_store(&machine, &system);
        machine.run(system.repair_files(true, (0, 0))).unwrap();
        assert_eq!(remedies(&machine, &system), BTreeSet::new(), "chunk {number}");
        let system = machine.power_cycle(system);
        if let Some(new) = new {
            assert_eq!(machine.run(find(&system, "new")).unwrap(), new, "chunk {number}");
        }
        assert_eq!(remedies(&machine, &system), BTreeSet::new(), "chunk {number}, after a restart");
        number += 1;
    }
    assert!(stuck > 0, "of {number} chunks");
}

/// Whatever is lost of the trees of a clone, or of the list of clones: after a repair every change is committed again, and what does not
/// need it is as it was.
#[test]
fn a_damaged_clone_stops_nobody_for_ever() {
    let (mut number, mut stuck, mut homes) = (0, 0, 0);
    loop {
        let (machine, files) = node(2);
        let system = machine.open();
        machine.run(async {
            for directory in 0..DIRECTORIES {
                let source = find(&system, &format!("d{directory}")).await.unwrap();
                let name = format!("clone {directory}");
                let top = system.clone_tree(source, FileId::ROOT, name.as_bytes()).await.unwrap().file;
                // Every leaf of its catalog is its own.
                for entry in system.read_directory(Node::live(top), 0, 100).await.unwrap() {
                    let change = AttributeChange { mode: Some(0o600), ..AttributeChange::default() };
                    system.set_attributes(entry.node.file, &change).await.unwrap();
                }
            }
            system.close().await.unwrap();
        });
        drop(system);
        machine.world.restart();
        let Some((path, at)) = tree_chunks(&machine).get(number).cloned() else { break };
        machine.disk.flip_bit(&path, at + 60, 1);
        let system = machine.open();
        let before = readable(&machine, &system, &files);
        machine.run(async {
            for directory in 0..DIRECTORIES {
                if let Ok(top) = find(&system, &format!("clone {directory}")).await {
                    let _ = system.create_file(top.file, b"new", &super::new(Kind::Regular)).await;
                }
            }
            stuck += usize::from(system.commit().await.is_err());
        });
        repair_store(&machine, &system);
        machine.run(system.repair_files(true, (0, 0))).unwrap();
        for life in 0..2 {
            let system = if life == 0 { system.clone() } else { machine.power_cycle(system.clone()) };
            let after = readable(&machine, &system, &files);
            assert!(
                before.iter().all(|(file, content)| after.get(file) == Some(content)),
                "chunk {number}, life {life}"
            );
            homes += usize::from(machine.run(find(&system, "lost+found")).is_ok());
            assert_eq!(remedies(&machine, &system), BTreeSet::new(), "chunk {number}, life {life}");
            machine.run(async {
                create(&system, FileId::ROOT, &format!("after {life}"), Kind::Regular).await;
                system.commit().await.unwrap();
                if life == 1 {
                    remove_clones(&system).await;
                    assert_eq!(system.clones(), 0, "chunk {number}");
                    system
                        .reclaim(&crate::Reclaim::default())
                        .await
                        .unwrap_or_else(|error| panic!("{number}: {error}"));
                }
            });
        }
        number += 1;
    }
    assert!(number > 20 && stuck > 0 && homes > 0, "{number} {stuck} {homes}");
}

/// Removes every clone that has a name in the root or in `/lost+found`, with what it has.
async fn remove_clones(system: &FileSystem) {
    let found = find(system, "lost+found").await.map(|node| node.file);
    for directory in [FileId::ROOT].into_iter().chain(found) {
        for entry in system.read_directory(Node::live(directory), 0, 1000).await.unwrap() {
            if entry.node.file.branch != 0 {
                system.remove(directory, &entry.name, Removal::Tree).await.unwrap();
            }
        }
    }
    system.finish_removals().await.unwrap();
    system.commit().await.unwrap();
}

/// Whatever chunk of a clone's trees is lost, what can be read of its files has names after a repair, and reclaim leaves it.
#[test]
fn what_can_be_read_of_a_clone_stays() {
    whatever_is_lost_of_a_clone(false);
    whatever_is_lost_of_a_clone(true);
}

fn whatever_is_lost_of_a_clone(is_pruned: bool) {
    let (mut number, mut made_anew, mut mended) = (0, 0, 0);
    loop {
        let (machine, files) = node(4);
        let system = machine.open();
        // All of d0 but itself.
        let below = machine.run(async {
            let source = find(&system, "d0").await.unwrap();
            let clone = system.clone_tree(source, FileId::ROOT, b"clone").await.unwrap().file;
            let below: Vec<FileId> =
                files[2..].iter().take(FILES + 1).map(|file| FileId { branch: clone.branch, ..*file }).collect();
            for file in &below {
                let change = AttributeChange { mode: Some(0o700), ..AttributeChange::default() };
                system.set_attributes(*file, &change).await.unwrap();
            }
            // Some have their names elsewhere than where they were made.
            let (top, inner) = (clone, below[0]);
            for number in (0..FILES).step_by(9) {
                let name = format!("file number {number} of directory 0");
                let file = below[number + 1];
                system.link(file, top, format!("moved {number}").as_bytes()).await.unwrap();
                system.remove(inner, name.as_bytes(), Removal::File).await.unwrap();
            }
            if is_pruned {
                system.commit().await.unwrap();
                system.reclaim(&crate::Reclaim::default()).await.unwrap();
                assert!(system.branches.lock()[&clone.branch].is_pruned());
            }
            system.close().await.unwrap();
            below
        });
        drop(system);
        machine.world.restart();
        let Some((path, at)) = tree_chunks(&machine).get(number).cloned() else { break };
        machine.disk.flip_bit(&path, at + 60, 1);
        let system = machine.open();
        let before = readable(&machine, &system, &below);
        let had_names = named_readable(&machine, &system).is_superset(&before.keys().copied().collect());
        repair_store(&machine, &system);
        let done = machine.run(system.repair_files(true, (0, 0))).unwrap();
        let is_anew = done.iter().any(|done| done.contains("made anew with"));
        made_anew += usize::from(is_anew && !before.is_empty());
        assert_eq!(remedies(&machine, &system), BTreeSet::new(), "chunk {number}");
        let again = machine.run(system.repair_files(true, (0, 0))).unwrap();
        assert_eq!(again, Vec::<String>::new(), "chunk {number}: nothing is left to do after {done:?}");
        mended += usize::from(!is_anew && !had_names);
        for _ in 0..2 {
            machine.run(system.reclaim(&crate::Reclaim::default())).unwrap_or_else(|error| panic!("{number}: {error}"));
        }
        let system = machine.power_cycle(system);
        assert_eq!(readable(&machine, &system, &below), before, "chunk {number}: {done:?}");
        let names = named_readable(&machine, &system);
        let nameless: Vec<_> = before.keys().filter(|file| !names.contains(*file)).collect();
        assert_eq!(nameless, Vec::<&FileId>::new(), "chunk {number}: {done:?}");
        number += 1;
    }
    assert!(made_anew > 0 && mended > 0, "{made_anew} and {mended} of {number}");
}

/// Every file that a name leads to, through directories that can be read.
fn named_readable(machine: &Machine, system: &Arc<FileSystem>) -> BTreeSet<FileId> {
    machine.run(async {
        let (mut found, mut waiting) = (BTreeSet::new(), vec![FileId::ROOT]);
        while let Some(directory) = waiting.pop() {
            let entries = system.read_directory(Node::live(directory), 0, 1000).await.unwrap_or_default();
            for entry in entries {
                if found.insert(entry.node.file) && entry.kind == Kind::Directory {
                    waiting.push(entry.node.file);
                }
            }
        }
        found
    })
}

/// A clone in a clone, closed. Gives their tops, and a file of the inner one.
fn nested_clones() -> (Machine, [FileId; 2], FileId) {
    let machine = Machine::new(3);
    let system = machine.open();
    let (tops, file) = machine.run(async {
        let source = create(&system, FileId::ROOT, "source", Kind::Directory).await.file;
        let file = create(&system, source, "file", Kind::Regular).await.file;
        system.write(file, 0, b"content", false).await.unwrap();
        let (mut home, mut tops) = (FileId::ROOT, Vec::new());
        for name in ["outer", "inner"] {
            home = system.clone_tree(Node::live(source), home, name.as_bytes()).await.unwrap().file;
            tops.push(home);
            // Its catalog is its own.
            create(&system, home, "new", Kind::Regular).await;
            system.commit().await.unwrap();
        }
        let file = find(&system, "outer/inner/file").await.unwrap().file;
        system.close().await.unwrap();
        ([tops[0], tops[1]], file)
    });
    drop(system);
    machine.world.restart();
    (machine, tops, file)
}

/// How many names lead to a file, of those that can be read.
async fn names_of(system: &FileSystem, wanted: FileId) -> usize {
    let (mut names, mut waiting, mut seen) = (0, vec![FileId::ROOT], BTreeSet::new());
    while let Some(directory) = waiting.pop().filter(|directory| seen.insert(*directory)) {
        let entries = system.read_directory(Node::live(directory), 0, 1000).await.unwrap_or_default();
        names += entries.iter().filter(|entry| entry.node.file == wanted).count();
        waiting.extend(entries.iter().filter(|entry| entry.kind == Kind::Directory).map(|entry| entry.node.file));
    }
    names
}

/// A clone that lies in another one loses its name with that: it goes to `/lost+found`, or stays where it has a name, and nothing keeps reclaim
/// from its work, whatever two chunks of the trees are lost.
#[test]
fn a_clone_within_a_lost_clone_is_found() {
    let count = tree_chunks(&nested_clones().0).len();
    let (mut homes, mut stayed, mut empty) = (0, 0, 0);
    for (first, second) in (0..count).flat_map(|first| (first..count).map(move |second| (first, second))) {
        let what = format!("chunks {first} and {second} of {count}");
        let (machine, [outer, inner], file) = nested_clones();
        let chunks = tree_chunks(&machine);
        for (path, at) in BTreeSet::from([&chunks[first], &chunks[second]]) {
            machine.disk.flip_bit(path, at + 60, 1);
        }
        let system = machine.open();
        let was_readable = readable(&machine, &system, &[file]).len() == 1;
        let lay_there = machine.run(async { names_of(&system, outer).await * names_of(&system, inner).await == 1 });
        repair_store(&machine, &system);
        for accepts_loss in [false, true] {
            machine.run(system.repair_files(accepts_loss, (0, 0))).unwrap();
            assert_eq!(readable(&machine, &system, &[file]).len() == 1, was_readable, "{what}");
        }
        let system = machine.power_cycle(system);
        assert_eq!(remedies(&machine, &system), BTreeSet::new(), "{what}");
        assert_eq!(readable(&machine, &system, &[file]).len() == 1, was_readable, "{what}");
        machine.run(async {
            assert_eq!(system.check_files(&|_| {}).await.unwrap().problems, [], "{what}");
            system.reclaim(&crate::Reclaim::default()).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            let clones = system.branches.lock().clone();
            for top in [outer, inner] {
                let expected = usize::from(clones.contains_key(&top.branch));
                assert_eq!(names_of(&system, top).await, expected, "{what}: {top}");
            }
            let is_found = find(&system, &format!("lost+found/{}", inner.number)).await.is_ok();
            homes += usize::from(is_found);
            stayed += usize::from(lay_there);
            assert!(!lay_there || !is_found, "{what}: it had a name");
            let has_nothing = list(&system, Node::live(inner), 10).await.is_empty();
            empty += usize::from(has_nothing);
            remove_clones(&system).await;
            assert_eq!(system.clones(), 0, "{what}");
            system.close().await.unwrap();
        });
    }
    assert!(homes > 0 && stayed > 0 && empty > 0, "{homes} {stayed} {empty}");
}

/// A clone that was removed, and whose trees are lost before it has gone: it goes, and what lay in it is found.
#[test]
fn a_clone_that_cannot_go_is_given_up() {
    let mut given_up = 0;
    for number in 0..tree_chunks(&nested_clones().0).len() {
        let (machine, [outer, inner], _) = nested_clones();
        let system = machine.open();
        machine.run(async {
            let _not_yet = system.removals.work.lock().await;
            system.remove(FileId::ROOT, b"outer", Removal::Tree).await.unwrap();
            system.commit().await.unwrap();
        });
        let is_going = |branch| system.branches.lock().get(&branch).is_some_and(crate::format::BranchValue::is_going);
        assert!(is_going(outer.branch));
        let before = tree_chunks(&machine);
        let Some((path, at)) = before.get(number) else { break };
        machine.disk.flip_bit(path, at + 60, 1);
        let system = machine.power_cycle(system);
        let planned = remedies(&machine, &system);
        repair_store(&machine, &system);
        machine.run(system.repair_files(true, (0, 0))).unwrap();
        assert_eq!(remedies(&machine, &system), BTreeSet::new(), "chunk {number}");
        machine.run(async {
            system.finish_removals().await.unwrap();
            system.commit().await.unwrap();
            assert!(!system.branches.lock().contains_key(&outer.branch), "chunk {number}");
            if system.branches.lock().contains_key(&inner.branch) {
                given_up += 1;
                assert_eq!(names_of(&system, inner).await, 1, "chunk {number}: {planned:?}");
            }
            system.reclaim(&crate::Reclaim::default()).await.unwrap_or_else(|error| panic!("{number}: {error}"));
            system.close().await.unwrap();
        });
    }
    assert!(given_up > 0);
}

const BLOCK: usize = 64 << 10;
/// Islands, each an extent of its own.
const ISLAND: usize = 8 << 10;

fn islands() -> Vec<u8> {
    let mut content = vec![0; 600 * ISLAND];
    content
        .chunks_mut(ISLAND)
        .zip(1_u32..)
        .for_each(|(island, number)| island[..4].copy_from_slice(&number.to_le_bytes()));
    content
}

/// A node with a file of islands, of which one chunk of the trees is lost.
fn spoilt(content: &[u8], number: usize) -> Option<(Machine, FileId)> {
    let machine = Machine::new(7);
    let system = machine.open();
    let file = machine.run(async {
        let file = create(&system, FileId::ROOT, "file", Kind::Regular).await.file;
        for offset in (0..content.len()).step_by(ISLAND) {
            system.write(file, offset as u64, &content[offset..offset + 4], false).await.unwrap();
        }
        let change = AttributeChange { size: Some(content.len() as u64), ..AttributeChange::default() };
        system.set_attributes(file, &change).await.unwrap();
        system.close().await.unwrap();
        file
    });
    drop(system);
    machine.world.restart();
    let (path, at) = tree_chunks(&machine).get(number)?.clone();
    machine.disk.flip_bit(&path, at + 60, 1);
    Some((machine, file))
}

/// The blocks that can be read, all of them right.
fn blocks(machine: &Machine, system: &Arc<FileSystem>, file: FileId, expected: &[u8]) -> BTreeSet<usize> {
    let mut read = BTreeSet::new();
    for (block, expected) in expected.chunks(BLOCK).enumerate() {
        let mut bytes = vec![0; expected.len()];
        if machine.run(system.read(Node::live(file), (block * BLOCK) as u64, &mut bytes)).is_ok() {
            assert!(bytes == expected, "block {block}: wrong bytes");
            read.insert(block);
        }
    }
    read
}

/// A file that nobody changed since it lost extents: after the repair any change of it can be committed, room comes back, and what is
/// lost goes on to be an error.
#[test]
fn a_file_that_lost_extents_takes_what_is_written_later() {
    let content = islands();
    let (mut number, mut poorer) = (0, 0);
    while let Some((machine, file)) = spoilt(&content, number) {
        number += 1;
        let system = machine.open();
        let before = blocks(&machine, &system, file, &content);
        let is_poorer = (1..content.len().div_ceil(BLOCK)).contains(&before.len());
        poorer += usize::from(is_poorer);
        repair_store(&machine, &system);
        machine.run(system.repair_files(true, (0, 0))).unwrap();
        assert_eq!(remedies(&machine, &system), BTreeSet::new(), "chunk {number}");
        assert_eq!(blocks(&machine, &system, file, &content), before, "chunk {number}: neither more nor less");
        assert_eq!(
            machine.run(system.repair_files(true, (0, 0))).unwrap(),
            Vec::<String>::new(),
            "nothing is left to do"
        );
        if machine.run(system.attributes(Node::live(file))).is_err() {
            continue;
        }
        let mut expected = content.clone();
        for offset in (0..content.len()).step_by(100_000) {
            machine.run(async {
                system.write(file, offset as u64, b"later", false).await.unwrap();
                system.sync(file).await.unwrap();
                system.commit().await.unwrap();
            });
            expected[offset..offset + 5].copy_from_slice(b"later");
        }
        machine.run(system.reclaim(&crate::Reclaim::default())).unwrap();
        let system = machine.power_cycle(system);
        assert_eq!(blocks(&machine, &system, file, &expected), before, "chunk {number}");
        machine.run(async {
            let change = AttributeChange { size: Some(content.len() as u64 / 3), ..AttributeChange::default() };
            system.set_attributes(file, &change).await.unwrap();
            system.commit().await.unwrap();
        });
        assert_eq!(remedies(&machine, &system), BTreeSet::new(), "chunk {number}");
    }
    assert!(poorer > 2, "{poorer} of {number} chunks");
}

/// An extent that makes no sense is content that is lost, up to the next one.
#[test]
fn an_extent_that_cannot_be_decoded_becomes_lost_content() {
    for is_written in [false, true] {
        let content = islands();
        let (machine, file) = spoilt(&content, 0).expect("there are trees");
        let (path, at) = tree_chunks(&machine)[0].clone();
        machine.disk.flip_bit(&path, at + 60, 1);
        let system = machine.open();
        machine.run(async {
            let roots = system.roots.lock().clone();
            let mut inode = system.load(&roots.catalog, file).await.unwrap().unwrap();
            for island in [5, 6, 300, 599] {
                let edits = crate::tree::Edits::from([(island * ISLAND as u64, Some(vec![9; 9]))]);
                inode.base.tree = system.trees.update(&inode.base.tree, edits, 0).await.unwrap();
            }
            let edits = crate::tree::Edits::from([(file.number, Some(inode.encode()))]);
            let catalog = system.trees.update(&roots.catalog, edits, 0).await.unwrap();
            let roots = crate::format::Roots { catalog, ..(*roots).clone() };
            system.store.commit(system.store.moment(), &roots.encode(), system.store.last_logged()).await.unwrap();
        });
        let system = machine.power_cycle(system);
        let before = blocks(&machine, &system, file, &content);
        assert!(before.len() < content.len() / BLOCK);
        if is_written {
            machine.run(async {
                system.write(file, 300 * ISLAND as u64, b"since", false).await.unwrap();
                system.sync(file).await.unwrap();
            });
            // A commit leaves the file out.
            machine.run(system.commit()).unwrap();
            assert!(machine.run(system.commit_whole()).is_err());
        }
        machine.run(system.repair_files(true, (0, 0))).unwrap();
        assert_eq!(remedies(&machine, &system), BTreeSet::new());
        let mut expected = content.clone();
        if is_written {
            expected[300 * ISLAND..][..5].copy_from_slice(b"since");
        }
        assert_eq!(blocks(&machine, &system, file, &expected), before);
        machine.run(system.reclaim(&crate::Reclaim::default())).unwrap();
    }
}

/// A repair that meets a disk which gives no answer changes nothing, in memory or on disk, also where it had to make room for changes
/// that cannot be committed.
#[test]
fn a_repair_that_fails_leaves_the_trees_as_they_were() {
    let (mut failed, mut done) = (0, 0);
    let count = tree_chunks(&node(1).0).len();
    for (number, silent) in (0..count).flat_map(|number| (0..count).step_by(3).map(move |silent| (number, silent))) {
        let (mut machine, _) = damaged(1, number).expect("one of them");
        machine.options.store.cache_bytes = 0;
        let system = machine.open();
        let made = machine.run(system.create_file(FileId::ROOT, b"new", &super::new(Kind::Regular)));
        if made.is_err() || machine.run(system.commit_whole()).is_ok() {
            continue;
        }
        let before = system.roots.lock().clone();
        let (path, at) = &tree_chunks(&machine)[silent];
        machine.disk.set_unreadable(path, *at..at + 60);
        if machine.run(system.repair_files(true, (0, 0))).is_ok() {
            done += 1;
            continue;
        }
        failed += 1;
        assert_eq!(*system.roots.lock(), before, "chunk {number}, no answer at {silent}");
        machine.disk.set_unreadable(path, 0..0);
        assert!(machine.run(system.commit_whole()).is_err(), "chunk {number}, no answer at {silent}");
        let system = machine.power_cycle(system);
        machine.run(system.repair_files(true, (0, 0))).unwrap();
        assert_eq!(machine.run(find(&system, "new")).unwrap(), Node::live(made.unwrap().file));
    }
    assert!(failed > 5 && done > 0, "{failed} {done}");
}

/// A file whose extents are lost in part, and that was written since: what was written is committed by a repair, what is lost goes on to
/// be an error, and the rest of the node works.
#[test]
fn a_file_that_lost_extents_takes_what_was_written_since() {
    let content = islands();
    let (mut number, mut stuck) = (0, 0);
    while let Some((machine, file)) = spoilt(&content, number) {
        number += 1;
        let system = machine.open();
        let written = machine.run(async {
            system.write(file, content.len() as u64 / 2, b"written since", false).await?;
            system.sync(file).await
        });
        // The inode itself may be lost.
        let Ok(()) = written else { continue };
        if number % 2 == 0 {
            // It may leave the file out, or fail where the catalog itself is lost.
            let _ = machine.run(system.commit());
        }
        let is_stuck = machine.run(system.commit_whole()).is_err();
        stuck += usize::from(is_stuck);
        let report = machine.run(system.check_files(&|_| {})).unwrap();
        let is_told = report.problems.iter().any(|problem| problem.code == "HF1021");
        assert_eq!(is_told, is_stuck, "chunk {number}");
        assert!(!is_stuck || report.remedies.contains(&Remedy::Trees { gives_up: true }), "chunk {number}");
        repair_store(&machine, &system);
        machine.run(system.repair_files(true, (0, 0))).unwrap();
        let mut expected = content.clone();
        expected[content.len() / 2..][..13].copy_from_slice(b"written since");
        let mut system = system;
        for life in 0..2 {
            assert_eq!(remedies(&machine, &system), BTreeSet::new(), "chunk {number}, life {life}");
            let mut read = 0;
            for (block, expected) in expected.chunks(BLOCK).enumerate() {
                let mut bytes = vec![0; expected.len()];
                if machine.run(system.read(Node::live(file), (block * BLOCK) as u64, &mut bytes)).is_ok() {
                    assert!(bytes == expected, "chunk {number}, life {life}, block {block}: wrong bytes");
                    read += 1;
                }
            }
            assert!(is_stuck || read > 0);
            system = machine.power_cycle(system);
        }
        let mut since = [0; 13];
        machine.run(system.read(Node::live(file), content.len() as u64 / 2, &mut since)).unwrap();
        assert_eq!(&since, b"written since", "chunk {number}");
        machine.run(system.remove_file(FileId::ROOT, b"file")).unwrap();
        machine.run(system.commit()).unwrap();
        machine.check(&system);
    }
    assert!(stuck > 1, "{stuck} of {number} chunks");
}

/// The power goes at one operation after the other: the trees are those of before, or those of after.
#[test]
fn a_power_cut_in_the_middle_leaves_the_old_trees_or_the_new() {
    let count = tree_chunks(&node(2).0).len();
    for number in (0..count).step_by(7) {
        let mut step = 1;
        loop {
            let (machine, files) = damaged(2, number).unwrap();
            let system = machine.open();
            repair_store(&machine, &system);
            let before = readable(&machine, &system, &files);
            machine.world.cut_power_at(machine.world.operations() + step);
            let repaired = machine.world.run_until(system.repair_files(true, (0, 0)));
            let is_whole = machine.world.is_powered();
            assert!(!is_whole || repaired.unwrap().is_ok());
            let system = machine.power_cycle(system);
            machine.run(system.repair_files(true, (0, 0))).unwrap();
            let named = named(&machine, &system);
            assert!(before.keys().all(|file| named.contains(file)), "chunk {number}, cut at {step}");
            assert_eq!(remedies(&machine, &system), BTreeSet::new(), "chunk {number}, cut at {step}");
            if is_whole {
                break;
            }
            step += 1 + step / 4;
        }
    }
}

/// A disk that does not answer is no loss.
#[test]
fn a_disk_that_gives_no_answer_costs_no_names() {
    let (machine, files) = node(3);
    let system = machine.open();
    machine.disk.set_faults(platform::sim::Faults { read_error: 1.0, ..platform::sim::Faults::default() });
    assert!(matches!(machine.run(system.repair_files(true, (0, 0))), Err(FileError::Store(_))));
    machine.disk.set_faults(platform::sim::Faults::default());
    let system = machine.power_cycle(system);
    assert_eq!(named(&machine, &system).len(), files.len());
    machine.check(&system);
}

/// A node with a file, and in the middle of what is stored of its content a bit that flipped.
fn with_a_bad_bit(seed: u64, content: &[u8]) -> (Machine, Arc<FileSystem>, FileId) {
    let machine = Machine::new(seed);
    let system = machine.open();
    let file = machine.run(async {
        let file = create(&system, FileId::ROOT, "file", Kind::Regular).await.file;
        system.write(file, 0, content, false).await.unwrap();
        system.close().await.unwrap();
        file
    });
    let files = machine.disk.snapshot_files();
    let (data, bytes) = files.iter().find(|(path, bytes)| path.starts_with("packs/") && bytes[12] == 2).unwrap();
    machine.disk.flip_bit(data, bytes.len() as u64 / 2, 0);
    let system = machine.power_cycle(system);
    (machine, system, file)
}

/// Content that is lost stays an error, until the same bytes come again under whatever name.
#[test]
fn lost_content_is_mended_by_putting_it_again() {
    let content: Vec<u8> = (0..50_000_u32).flat_map(|number| number.wrapping_mul(number).to_le_bytes()).collect();
    let (machine, system, file) = with_a_bad_bit(4, &content);
    repair_store(&machine, &system);
    machine.run(system.repair_files(true, (0, 0))).unwrap();
    machine.run(async {
        let report = system.check_files(&|_| {}).await.unwrap();
        assert!(report.problems.iter().all(|problem| problem.code == "HF1008" && problem.path.starts_with("/file (")));
        assert!(!report.problems.is_empty());
        let mut bytes = vec![0; content.len()];
        assert!(matches!(system.read(Node::live(file), 0, &mut bytes).await, Err(FileError::Store(_))), "no zeroes");
        let backup = create(&system, FileId::ROOT, "backup", Kind::Regular).await.file;
        system.write(backup, 0, &content, false).await.unwrap();
        system.sync_all().await.unwrap();
        system.commit().await.unwrap();
    });
    assert_eq!(machine.run(read_all(&system, Node::live(file))), content);
    machine.check(&system);
    assert_eq!(machine.run(list(&system, Node::live(FileId::ROOT), 10)).len(), 2);
}

/// A bit of a file costs no more than sixteen KiB of it, whoever reads it how, before a repair and after (C-7).
#[test]
fn a_bad_group_of_a_chunk_costs_no_more() {
    const PAGE: usize = 4096;
    // It does not shrink.
    let mut state = 1_u64;
    let mut content = vec![0_u8; 60 * PAGE];
    for word in content.as_chunks_mut::<8>().0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *word = state.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    }
    let (machine, mut system, file) = with_a_bad_bit(14, &content);
    for is_repaired in [false, true] {
        for pages in [1, 3, 4, 20] {
            let lost = machine.run(async {
                let mut lost = Vec::new();
                for (number, expected) in content.chunks(pages * PAGE).enumerate() {
                    let mut bytes = vec![0; expected.len()];
                    match system.read(Node::live(file), (number * pages * PAGE) as u64, &mut bytes).await {
                        Ok(_) => assert!(bytes == expected),
                        Err(_) => lost.push(number),
                    }
                }
                lost
            });
            // Groups do not begin where pages do.
            assert!((1..=4_usize.div_ceil(pages) + 1).contains(&lost.len()), "{pages}: {lost:?}, {is_repaired}");
        }
        let problems = machine.run(system.check_files(&|_| {})).unwrap().problems;
        assert_eq!(problems.iter().map(|problem| problem.code).collect::<BTreeSet<_>>(), BTreeSet::from(["HF1008"]));
        repair_store(&machine, &system);
        system = machine.power_cycle(system);
    }
}

/// A directory that says one name thousands of times, never where it belongs: each entry gets a name, and nobody looks through all
/// numbers for each.
#[test]
fn many_entries_of_one_name_get_names_of_their_own() {
    const COUNT: u64 = 3000;
    let machine = Machine::new(6);
    let system = machine.open();
    machine.run(async {
        let directory = create(&system, FileId::ROOT, "d", Kind::Directory).await.file;
        let file = create(&system, directory, "same", Kind::Regular).await.file;
        system.commit().await.unwrap();
        let roots = system.roots.lock().clone();
        let mut inode = system.load(&roots.catalog, directory).await.unwrap().unwrap();
        let entry = crate::format::Entry { file, kind: Kind::Regular, name: b"same".as_slice().into() };
        let entries = (1..COUNT).map(|number| (number << 8, Some(crate::directory::encode_entry(&entry, 0)))).collect();
        inode.base.tree = system.trees.update(&inode.base.tree, entries, 0).await.unwrap();
        let edits = crate::tree::Edits::from([(directory.number, Some(inode.encode()))]);
        let catalog = system.trees.update(&roots.catalog, edits, 0).await.unwrap();
        let roots = crate::format::Roots { catalog, ..(*roots).clone() };
        system.store.commit(system.store.moment(), &roots.encode(), system.store.last_logged()).await.unwrap();
    });
    let system = machine.power_cycle(system);
    machine.run(system.repair_files(false, (0, 0))).unwrap();
    machine.check(&system);
    let names = machine.run(async { list(&system, find(&system, "d").await.unwrap(), 1000).await });
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len() as u64, COUNT);
}

/// Who made the node gets at what a repair made, also where permissions count.
#[test]
fn what_a_repair_makes_belongs_to_the_owner() {
    let (mut number, mut roots, mut homes) = (0, 0, 0);
    while let Some((machine, _)) = damaged(1, number) {
        let system = machine.open();
        let root = Node::live(FileId::ROOT);
        let owner = machine.run(system.attributes(root)).map(|root| (root.uid, root.gid));
        let owner = if number % 2 == 0 && owner.is_ok() {
            let change = AttributeChange { uid: Some(1000), gid: Some(1001), ..AttributeChange::default() };
            machine.run(system.set_attributes(FileId::ROOT, &change)).unwrap();
            (1000, 1001)
        } else {
            owner.unwrap_or((7, 8))
        };
        repair_store(&machine, &system);
        machine.run(system.repair_files(true, (7, 8))).unwrap();
        let owners = |node| {
            let attributes = machine.run(system.attributes(node)).unwrap();
            (attributes.uid, attributes.gid)
        };
        assert_eq!(owners(root), owner, "chunk {number}");
        roots += usize::from(owner == (7, 8));
        if let Ok(home) = machine.run(find(&system, "lost+found")) {
            assert_eq!(owners(home), owner, "chunk {number}");
            homes += usize::from(owner != (0, 0));
        }
        number += 1;
    }
    assert!(roots > 0 && homes > 1, "{roots} {homes}");
}

/// A second repair in which a file of a number loses its name that is in `/lost+found` already, under another name's number.
#[test]
fn lost_and_found_has_no_name_twice() {
    let machine = Machine::new(5);
    let system = machine.open();
    let (file, other) = machine.run(async {
        let directory = create(&system, FileId::ROOT, "d", Kind::Directory).await.file;
        let file = create(&system, directory, "f", Kind::Regular).await.file;
        let home = create(&system, FileId::ROOT, "lost+found", Kind::Directory).await.file;
        let other = create(&system, home, &file.number.to_string(), Kind::Regular).await.file;
        system.set_xattr(directory, b"user.large", &[7; 3000], XattrMode::Set, false).await.unwrap();
        for number in 0..100 {
            let name = format!("{number} {:0>200}", 0);
            system.link(file, directory, name.as_bytes()).await.unwrap();
        }
        system.commit().await.unwrap();
        // All names of the file are lost.
        let roots = system.roots.lock().clone();
        let mut inode = system.load(&roots.catalog, directory).await.unwrap().unwrap();
        inode.base.tree = crate::format::Root::Node { address: base::id::ChunkAddress([9; 32]), level: 0 };
        let edits = crate::tree::Edits::from([(directory.number, Some(inode.encode()))]);
        let catalog = system.trees.update(&roots.catalog, edits, 0).await.unwrap();
        let roots = crate::format::Roots { catalog, ..(*roots).clone() };
        system.store.commit(system.store.moment(), &roots.encode(), system.store.last_logged()).await.unwrap();
        (file, other)
    });
    drop(system);
    machine.world.restart();
    let system = machine.open();
    machine.run(system.repair_files(true, (0, 0))).unwrap();
    for (name, file) in [(file.number.to_string(), other), (format!("{}.1", file.number), file)] {
        let found = machine.run(find(&system, &format!("lost+found/{name}"))).unwrap();
        assert_eq!(found, Node::live(file), "{name}");
    }
    machine.check(&system);
}
