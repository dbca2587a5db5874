//! Names: collisions of many, renames, listings under change, unlinked files, snapshots.

use std::collections::BTreeSet;

use base::id::FileId;
use platform::sim::Faults;

use super::{Machine, create, find, list, new, read_all};
use crate::{FileError, FileSystem, Kind, Node, RenameMode};

#[test]
fn a_listing_goes_on_where_it_was_whatever_changes() {
    let machine = Machine::new(7);
    let system = machine.open();
    machine.run(async {
        for number in 0..3000 {
            create(&system, FileId::ROOT, &format!("file {number}"), Kind::Fifo).await;
            if number == 1500 {
                system.commit().await.unwrap();
            }
        }
        let root = Node::live(FileId::ROOT);
        let (mut seen, mut after, mut round) = (Vec::new(), 0, 0);
        loop {
            let entries = system.read_directory(root, after, 100).await.unwrap();
            let Some(last) = entries.last() else { break };
            after = last.cookie;
            for entry in &entries {
                seen.push(entry.name.clone());
                // What was listed goes, and others come: neither may hide or repeat what stays.
                if entry.name.starts_with(b"file") {
                    system.remove_file(FileId::ROOT, &entry.name).await.unwrap();
                }
            }
            create(&system, FileId::ROOT, &format!("new {round}"), Kind::Fifo).await;
            round += 1;
            if round % 7 == 0 {
                system.commit().await.unwrap();
            }
        }
        let old: BTreeSet<_> = seen.iter().filter(|name| name.starts_with(b"file")).collect();
        assert_eq!(old.len(), 3000);
        assert_eq!(seen.len(), seen.iter().collect::<BTreeSet<_>>().len());
        assert_eq!(list(&system, root, 10).await.len(), round);
    });
    machine.check(&system);
}

#[test]
fn renames_keep_the_tree_whole() {
    let machine = Machine::new(8);
    let mut system = machine.open();
    machine.run(async {
        let (root, modes) = (FileId::ROOT, RenameMode::Replace);
        let a = create(&system, root, "a", Kind::Directory).await.file;
        let b = create(&system, a, "b", Kind::Directory).await.file;
        let file = create(&system, b, "file", Kind::Regular).await.file;
        system.write(file, 0, b"content", false).await.unwrap();
        assert!(matches!(system.rename(root, b"a", b, b"x", modes).await, Err(FileError::Invalid(_))));
        create(&system, root, "victim", Kind::Regular).await;
        system.rename(b, b"file", root, b"victim", modes).await.unwrap();
        assert_eq!(find(&system, "victim").await.unwrap(), Node::live(file));
        assert!(matches!(
            system.rename(root, b"victim", root, b"a", RenameMode::NoReplace).await,
            Err(FileError::Exists)
        ));
        system.rename(root, b"victim", root, b"a", RenameMode::Exchange).await.unwrap();
        assert_eq!(read_all(&system, find(&system, "a").await.unwrap()).await, b"content");
        assert_eq!(find(&system, "victim/b").await.unwrap(), Node::live(b));
        system.rename(a, b"b", root, b"b", modes).await.unwrap();
        assert_eq!(system.attributes(Node::live(root)).await.unwrap().links, 4);
        assert_eq!(system.attributes(Node::live(a)).await.unwrap().links, 2);
        assert!(matches!(system.remove_directory(root, b"a").await, Err(FileError::NotDirectory)));
        system.remove_directory(root, b"victim").await.unwrap();
        system.sync(file).await.unwrap();
    });
    machine.check(&system);
    system = machine.power_cycle(system);
    assert_eq!(machine.run(list(&system, Node::live(FileId::ROOT), 10)).len(), 2);
    machine.check(&system);
}

#[test]
fn an_unlinked_file_lives_as_long_as_somebody_has_it() {
    let machine = Machine::new(9);
    let mut system = machine.open();
    let node = machine.run(async {
        let file = create(&system, FileId::ROOT, "f", Kind::Regular).await.file;
        let node = Node::live(file);
        system.retain(node);
        system.write(file, 0, b"still here", false).await.unwrap();
        system.remove_file(FileId::ROOT, b"f").await.unwrap();
        system.sync_all().await.unwrap();
        system.commit().await.unwrap();
        assert_eq!(read_all(&system, node).await, b"still here");
        node
    });
    machine.check(&system);
    // A crash takes the users with it.
    system = machine.crash(system);
    assert!(matches!(machine.run(system.attributes(node)), Err(FileError::NoEntry)));
    machine.run(async {
        let unnamed = system.create_unnamed(FileId::ROOT, &new(Kind::Regular)).await.unwrap().file;
        system.retain(Node::live(unnamed));
        system.write(unnamed, 0, b"named late", false).await.unwrap();
        system.link(unnamed, FileId::ROOT, b"late").await.unwrap();
        system.forget(Node::live(unnamed), 1).await.unwrap();
        assert_eq!(read_all(&system, find(&system, "late").await.unwrap()).await, b"named late");
    });
    machine.check(&system);
}

#[test]
fn an_unlinked_file_goes_on_with_its_users() {
    let machine = Machine::new(10);
    let system = machine.open();
    let files = machine.run(async {
        let mut files = Vec::new();
        for name in ["kept", "left"] {
            let file = create(&system, FileId::ROOT, name, Kind::Regular).await.file;
            system.retain(Node::live(file));
            system.write(file, 0, name.as_bytes(), false).await.unwrap();
            system.remove_file(FileId::ROOT, name.as_bytes()).await.unwrap();
            files.push(Node::live(file));
        }
        system.close().await.unwrap();
        files
    });
    let mut references = system.references();
    references.retain(|(file, _)| *file == files[0].file);
    assert_eq!(references, [(files[0].file, 1)]);
    drop(system);

    let (platform, disks, options) = (machine.world.platform(), machine.disks(), machine.options.clone());
    let opened = machine.run(async { FileSystem::open_in_use(&platform, &disks, options, &references).await });
    let (system, report) = opened.unwrap();
    assert_eq!(report.orphans, 1, "the one that nobody has open");
    machine.run(async {
        assert_eq!(read_all(&system, files[0]).await, b"kept");
        assert!(matches!(system.attributes(files[1]).await, Err(FileError::NoEntry)));
        system.forget(files[0], 1).await.unwrap();
        assert!(matches!(system.attributes(files[0]).await, Err(FileError::NoEntry)));
    });
    machine.check(&system);
}

#[test]
fn a_snapshot_shows_its_moment() {
    let machine = Machine::new(10);
    let mut system = machine.open();
    machine.run(async {
        let directory = create(&system, FileId::ROOT, "d", Kind::Directory).await.file;
        let file = create(&system, directory, "f", Kind::Regular).await.file;
        system.write(file, 0, b"before", false).await.unwrap();
        system.snapshot("one").await.unwrap();
        assert!(matches!(system.snapshot("one").await, Err(FileError::Exists)));
        assert!(matches!(system.snapshot("a/b").await, Err(FileError::Invalid(_))));
        system.write(file, 0, b"after!", false).await.unwrap();
        system.remove_file(directory, b"f").await.unwrap();
    });
    for _ in 0..2 {
        machine.run(async {
            let node = find(&system, ".snapshots/one/d/f").await.unwrap();
            assert_eq!(read_all(&system, node).await, b"before");
            let snapshots = find(&system, ".snapshots").await.unwrap();
            assert_eq!(list(&system, snapshots, 10).await, ["one"]);
            let moved = system.rename(FileId::ROOT, b".snapshots", FileId::ROOT, b"x", RenameMode::Replace).await;
            assert!(matches!(moved, Err(FileError::NotPermitted(_))), "{moved:?}");
        });
        machine.check(&system);
        system = machine.power_cycle(system);
    }
    machine.run(async {
        system.delete_snapshot("one").await.unwrap();
        assert!(matches!(find(&system, ".snapshots/one").await, Err(FileError::NoEntry)));
    });
    machine.check(&system);
}

/// What the journal cannot take is lost with the next crash, so nobody is told that it was done.
#[test]
fn where_the_journal_has_ended_no_name_changes() {
    let machine = Machine::new(7);
    let system = machine.open();
    machine.run(async {
        for name in ["a", "b"] {
            create(&system, FileId::ROOT, name, Kind::Fifo).await;
        }
        system.sync_all().await.unwrap();
        create(&system, FileId::ROOT, "c", Kind::Fifo).await;
        machine.disk.set_faults(Faults { sync_error: 1.0, ..Faults::default() });
        system.sync_all().await.unwrap_err();
        let removed = system.remove_file(FileId::ROOT, b"a").await;
        assert!(matches!(removed, Err(FileError::Store(_))), "{removed:?}");
        system.rename(FileId::ROOT, b"b", FileId::ROOT, b"d", RenameMode::Replace).await.unwrap_err();
        system.batch_remove(FileId::ROOT, b"b").await.unwrap_err();
        system.create_file(FileId::ROOT, b"e", &new(Kind::Fifo)).await.unwrap_err();
        let names = list(&system, Node::live(FileId::ROOT), 10).await;
        assert_eq!(names.len(), 3, "{names:?}");
    });
}

/// What was moved out of a directory that is no more since is not listed there, although the newest commit has it there.
#[test]
fn a_directory_that_is_no_more_lists_nothing() {
    let machine = Machine::new(31);
    let system = machine.open();
    machine.run(async {
        let directory = create(&system, FileId::ROOT, "d", Kind::Directory).await.file;
        create(&system, directory, "f", Kind::Regular).await;
        system.commit().await.unwrap();
        system.rename(directory, b"f", FileId::ROOT, b"f", RenameMode::NoReplace).await.unwrap();
        system.remove_directory(FileId::ROOT, b"d").await.unwrap();
        assert!(matches!(system.read_directory(Node::live(directory), 0, 10).await, Err(FileError::NoEntry)));
    });
    machine.check(&system);
}
