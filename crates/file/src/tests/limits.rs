//! At and over the limits: directories of very many names, attributes, and users that never let go.

use base::id::FileId;
use base::limits::{NAME_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_TOTAL_BYTES_MAX, XATTR_VALUE_BYTES_MAX};

use super::{Machine, create};
use crate::{FileError, FileSystem, Kind, Node, Options, StoreOptions, XattrMode};

/// Of all names of this length two differ in one byte.
fn name(number: usize) -> Vec<u8> {
    const VALUES: usize = 250;
    let (first, rest) = (number / (254 * VALUES), number % (254 * VALUES));
    let mut name = vec![0xff; NAME_BYTES_MAX];
    name[0] = b'A' + u8::try_from(first).expect("few");
    // No zero, no slash, and not the other bytes' value.
    let value = u8::try_from(rest % VALUES).expect("below 250");
    name[1 + rest / VALUES] = if value < 46 { value + 1 } else { value + 5 };
    name
}

/// What 500 look-ups and a listing of a directory of `count` names cost, in chunks asked for, when nothing is in memory.
fn cost(count: usize) -> (u64, u64) {
    let options = Options { inodes_max: 1000, ..Options::default() };
    let machine = Machine::with(1, 4 << 30, options);
    let system = machine.open();
    let directory = machine.run(async {
        let directory = create(&system, FileId::ROOT, "names", Kind::Directory).await.file;
        let file = create(&system, FileId::ROOT, "file", Kind::Regular).await.file;
        for number in 0..count {
            system.link(file, directory, &name(number)).await.unwrap();
        }
        system.close().await.unwrap();
        directory
    });
    let system = machine.crash(system);
    let chunks = |system: &FileSystem| system.store.counters().chunks_read.value();
    machine.run(async {
        let before = chunks(&system);
        for number in (0..count).step_by(count / 500) {
            system.lookup(Node::live(directory), &name(number)).await.unwrap();
        }
        let looked_up = chunks(&system) - before;
        let absent = system.lookup(Node::live(directory), &[b'x'; 255]).await;
        assert!(matches!(absent, Err(FileError::NoEntry)));
        let before = chunks(&system);
        let (mut after, mut listed) = (0, 0);
        loop {
            let entries = system.read_directory(Node::live(directory), after, 1000).await.unwrap();
            let Some(last) = entries.last() else { break };
            (after, listed) = (last.cookie, listed + entries.len());
        }
        assert_eq!(listed, count);
        let listing = chunks(&system) - before;
        system.close().await.unwrap();
        (looked_up, listing)
    })
}

#[test]
fn a_million_names_cost_no_more_each_than_ten_thousand() {
    let (few, many) = (cost(10_000), cost(1_000_000));
    println!("chunks asked for: {few:?} for 10,000 names, {many:?} for 1,000,000");
    // Two levels of nodes against three, of some 8 KiB each.
    assert!(many.0 <= few.0 * 2, "500 look-ups: {} chunks for 10,000 names, {} for 1,000,000", few.0, many.0);
    assert!(many.1 <= few.1 * 200, "a listing: {} chunks for 10,000 names, {} for 1,000,000", few.1, many.1);
    // A node is asked for about once in a listing, with its parents.
    assert!(many.1 <= 3 * 1_000_000 * 300 / 8192, "a listing of 1,000,000: {} chunks", many.1);
}

#[test]
fn attributes_at_and_over_every_limit() {
    let machine = Machine::new(2);
    let system = machine.open();
    machine.run(async {
        let file = create(&system, FileId::ROOT, "file", Kind::Regular).await.file;
        let set = async |name: &[u8], bytes: usize| {
            system.set_xattr(file, name, &vec![7; bytes], XattrMode::Set, false).await
        };
        let name = |bytes: usize| [b"user.".as_slice(), &vec![b'n'; bytes - 5]].concat();
        set(&name(XATTR_NAME_BYTES_MAX), XATTR_VALUE_BYTES_MAX).await.unwrap();
        assert!(matches!(set(&name(XATTR_NAME_BYTES_MAX + 1), 1).await, Err(FileError::Invalid(_))));
        assert!(matches!(set(b"user.a", XATTR_VALUE_BYTES_MAX + 1).await, Err(FileError::AttributeTooLarge)));
        assert!(matches!(set(b"user.", 1).await, Err(FileError::Invalid(_))));
        assert!(matches!(set(b"system.unknown", 1).await, Err(FileError::NotSupported(_))));
        // As many as fit, and one more.
        let mut count = 0_usize;
        while set(format!("user.{count}").as_bytes(), XATTR_VALUE_BYTES_MAX).await.is_ok() {
            count += 1;
        }
        assert_eq!(count, XATTR_TOTAL_BYTES_MAX / XATTR_VALUE_BYTES_MAX - 2, "with names and lengths");
        system.commit().await.unwrap();
    });
    let system = machine.crash(system);
    machine.run(async {
        let file = system.lookup(Node::live(FileId::ROOT), b"file").await.unwrap().0;
        assert_eq!(system.xattrs(file).await.unwrap().len(), XATTR_TOTAL_BYTES_MAX / XATTR_VALUE_BYTES_MAX - 1);
        assert_eq!(system.xattr(file, b"user.1").await.unwrap(), vec![7; XATTR_VALUE_BYTES_MAX]);
    });
    machine.check(&system);
}

/// Extended attributes that are large are in memory of few files at a time.
#[test]
fn large_attributes_of_many_files_cost_little_memory() {
    const FILES: usize = 300;
    let machine = Machine::with(5, 1 << 30, Options { inodes_max: 100_000, ..Options::default() });
    let value = vec![7; XATTR_VALUE_BYTES_MAX];
    let name = |number: usize| format!("file {number}");
    let system = machine.open();
    machine.run(async {
        for number in 0..FILES {
            let file = create(&system, FileId::ROOT, &name(number), Kind::Regular).await.file;
            system.set_xattr(file, b"user.1", &value, XattrMode::Set, false).await.unwrap();
        }
        system.commit().await.unwrap();
    });
    let read_all = |system: &FileSystem| {
        machine.run(async {
            for number in 0..FILES {
                let (node, _) = system.lookup(Node::live(FileId::ROOT), name(number).as_bytes()).await.unwrap();
                assert_eq!(system.xattrs(node).await.unwrap(), [&b"user.1"[..]]);
                assert_eq!(system.xattr(node, b"user.1").await.unwrap(), value);
            }
        });
    };
    read_all(&system);
    // There is room for all of them where there is for many inodes.
    assert!(system.table.count() > FILES, "{} inodes", system.table.count());
    machine.run(system.close()).unwrap();
    drop(system);
    machine.world.crash();
    let options = Options { inodes_max: 1000, ..Options::default() };
    let (platform, disks) = (machine.world.platform(), machine.disks());
    let (system, _) = machine.run(FileSystem::open(&platform, &disks, options)).unwrap();
    read_all(&system);
    assert!(system.table.count() < 60, "{} inodes", system.table.count());
    machine.check(&system);
}

/// Who opens and never releases holds the files and no more: a commit, a close and others go on, and the next opening ends them.
#[test]
fn users_that_never_let_go_cost_what_they_hold() {
    const FILES: u64 = 3000;
    const UNCOMMITTED_MAX: usize = 100;
    let store = StoreOptions { reserve_bytes: 8 << 20, ..StoreOptions::default() };
    let options = Options { inodes_max: 100, uncommitted_files_max: UNCOMMITTED_MAX, store, ..Options::default() };
    let machine = Machine::with(3, 1 << 30, options);
    let system = machine.open();
    let make = async || {
        let mut files = Vec::new();
        for number in 0..FILES {
            let name = format!("file {number}");
            let file = create(&system, FileId::ROOT, &name, Kind::Regular).await.file;
            system.retain(Node::live(file));
            system.write(file, 0, name.as_bytes(), false).await.unwrap();
            system.remove_file(FileId::ROOT, name.as_bytes()).await.unwrap();
            files.push(Node::live(file));
        }
        files
    };
    let uncommitted = |system: &FileSystem| system.status().uncommitted_files;
    machine.run(async {
        // All at once, as when a program ends.
        let files = make().await;
        system.commit().await.unwrap();
        let mut most = 0;
        for file in files {
            system.forget(file, 1).await.unwrap();
            most = most.max(uncommitted(&system));
        }
        assert!(most <= 4 * UNCOMMITTED_MAX as u64, "{most} wait for a commit");
        make().await;
        system.commit().await.unwrap();
        let other = create(&system, FileId::ROOT, "other", Kind::Regular).await.file;
        system.write(other, 0, b"content", false).await.unwrap();
        system.close().await.unwrap();
    });
    drop(system);
    machine.world.crash();
    let (platform, disks, options) = (machine.world.platform(), machine.disks(), machine.options.clone());
    let (system, report) = machine.run(async { FileSystem::open(&platform, &disks, options).await }).unwrap();
    assert_eq!(report.orphans, FILES);
    assert!(uncommitted(&system) <= 2 * UNCOMMITTED_MAX as u64, "{} wait for a commit", uncommitted(&system));
    machine.check(&system);
    let (_, other) = machine.run(system.lookup(Node::live(FileId::ROOT), b"other")).unwrap();
    assert_eq!((other.size, machine.run(system.attributes(Node::live(FileId::ROOT))).unwrap().size), (7, 1));
}
