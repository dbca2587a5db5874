//! Units of batches: what comes of each entry, and that all of a unit is there or none.

use std::sync::Arc;

use base::id::FileId;
use base::time::Timestamp;
use bytes::Bytes;

use super::content::pattern;
use super::{Machine, create, find, list, new, read_all};
use crate::{
    BatchBudget, BatchContent, BatchEntry, BatchWrite, BatchWriteReport, FileError, FileSystem, Kind, NewFile, Node,
    Options, Reclaim, SET_GID, XattrMode,
};

const PRESERVE: BatchWrite = BatchWrite { replace: false, atomic: false, preserve: true, lists: false, umask: 0 };
const REPLACE: BatchWrite = BatchWrite { replace: true, ..PRESERVE };
const PLAIN: BatchWrite = BatchWrite { preserve: false, umask: 0o022, ..PRESERVE };

pub(super) fn entry(path: &str, kind: Kind, content: BatchContent) -> BatchEntry {
    BatchEntry {
        path: path.into(),
        kind,
        mode: 0o640,
        uid: 7,
        gid: 8,
        modified: Timestamp::new(1_000, 5),
        accessed: Timestamp::new(2_000, 6),
        device: 0,
        xattrs: Vec::new(),
        content,
    }
}

pub(super) fn directory(path: &str) -> BatchEntry {
    entry(path, Kind::Directory, BatchContent::None)
}

pub(super) fn file(path: &str, content: &[u8]) -> BatchEntry {
    let run = Bytes::copy_from_slice(content);
    entry(path, Kind::Regular, BatchContent::Data(vec![(0, run)], content.len() as u64))
}

fn link(path: &str, first: &str) -> BatchEntry {
    entry(path, Kind::Regular, BatchContent::Link(first.into()))
}

async fn write(system: &FileSystem, parent: FileId, unit: Vec<BatchEntry>, how: BatchWrite) -> BatchWriteReport {
    let report = system.batch_write(parent, unit, &how).await.unwrap();
    assert!(report.is_done);
    report
}

fn expect_all(report: &BatchWriteReport) {
    report.fates.iter().for_each(|fate| assert!(fate.is_ok(), "{fate:?}"));
}

#[test]
fn a_report_says_in_which_directory_each_name_is() {
    let machine = Machine::new(11);
    let system = machine.open();
    machine.run(async {
        let there = create(&system, FileId::ROOT, "there", Kind::Directory).await.file;
        let unit = vec![
            directory("new"),
            directory("new/below"),
            file("new/below/f", b"f"),
            file("there/g", b"g"),
            link("h", "there/g"),
            file("nowhere/i", b"i"),
            directory(""),
        ];
        let report = write(&system, FileId::ROOT, unit, PRESERVE).await;
        let made = |number: usize| report.fates[number].clone().unwrap();
        let expected = [FileId::ROOT, made(0), made(1), there, FileId::ROOT, FileId::NONE, FileId::NONE];
        assert!(report.fates[5].is_err() && report.homes == expected, "{:?} {:?}", report.fates, report.homes);
    });
    machine.check(&system);
}

/// Small and large files in two directories, a link within the unit, and everything that has no content.
fn tree(salt: u64) -> Vec<BatchEntry> {
    let device = BatchEntry { device: 0x0103, ..entry("a/device", Kind::CharacterDevice, BatchContent::None) };
    let tagged = BatchEntry { xattrs: vec![(b"user.tag".to_vec(), vec![1; 40])], ..file("a/tagged", b"tagged") };
    let holes = vec![(4096, Bytes::from_static(b"middle")), (1 << 20, Bytes::from(pattern(100_000, salt + 2)))];
    let mut unit = vec![
        directory("a"),
        file("a/large", &pattern(700_000, salt)),
        directory("a/b"),
        file("a/b/small", &pattern(3000, salt + 1)),
        link("a/b/again", "a/large"),
        entry("a/b/link", Kind::Symlink, BatchContent::Target(Bytes::from_static(b"../large"))),
        entry("a/b/pipe", Kind::Fifo, BatchContent::None),
        device,
        tagged,
        entry("a/holes", Kind::Regular, BatchContent::Data(holes, 2 << 20)),
        entry("a/empty", Kind::Regular, BatchContent::None),
    ];
    unit.extend((0..40).map(|number| file(&format!("a/b/f{number}"), &pattern(500 + number, salt + 10))));
    unit
}

async fn expect_tree(system: &FileSystem, top: &str, salt: u64) {
    let read = async |path: &str| read_all(system, find(system, &format!("{top}/{path}")).await.unwrap()).await;
    let stat = async |path: &str| {
        let node = find(system, &format!("{top}/{path}")).await.unwrap();
        system.attributes(node).await.unwrap()
    };
    assert!(read("a/large").await == pattern(700_000, salt));
    assert!(read("a/b/small").await == pattern(3000, salt + 1));
    assert!(read("a/b/again").await == pattern(700_000, salt));
    for number in 0..40 {
        assert!(read(&format!("a/b/f{number}")).await == pattern(500 + number, salt + 10));
    }
    let (large, again) = (stat("a/large").await, stat("a/b/again").await);
    assert_eq!((large.file, large.links), (again.file, 2));
    assert_eq!((large.mode, large.uid, large.gid, large.size), (0o640, 7, 8, 700_000));
    let empty = stat("a/empty").await;
    assert_eq!((empty.modified, empty.accessed), (Timestamp::new(1_000, 5), Timestamp::new(2_000, 6)));
    let holes = stat("a/holes").await;
    assert_eq!((holes.size, holes.allocated), (2 << 20, 100_006));
    let bytes = read("a/holes").await;
    assert!(bytes[..4096].iter().all(|byte| *byte == 0) && &bytes[4096..4102] == b"middle");
    assert!(bytes[1 << 20..(1 << 20) + 100_000] == pattern(100_000, salt + 2));
    let (a, b) = (stat("a").await, stat("a/b").await);
    assert_eq!((a.size, a.links, a.modified, a.kind), (6, 3, Timestamp::new(1_000, 5), Kind::Directory));
    assert_eq!((b.size, b.links, b.parent), (44, 2, a.file));
    assert_eq!(stat("a/device").await.device, 0x0103);
    let link = find(system, &format!("{top}/a/b/link")).await.unwrap();
    assert_eq!(&system.read_link(link).await.unwrap()[..], b"../large");
    let tagged = find(system, &format!("{top}/a/tagged")).await.unwrap();
    assert_eq!(system.xattr(tagged, b"user.tag").await.unwrap()[..], [1; 40]);
}

#[test]
fn a_unit_is_as_its_entries_say_in_every_layer() {
    let machine = Machine::new(40);
    let mut system = machine.open();
    let top = machine.run(async {
        let top = create(&system, FileId::ROOT, "top", Kind::Directory).await.file;
        let report = write(&system, top, tree(1), PRESERVE).await;
        expect_all(&report);
        assert_eq!(report.made, tree(1).len() as u64 - 1);
        expect_tree(&system, "top", 1).await;
        system.sync(top).await.unwrap();
        top
    });
    for _ in 0..2 {
        system = machine.power_cycle(system);
        machine.run(async {
            expect_tree(&system, "top", 1).await;
            assert_eq!(system.attributes(Node::live(top)).await.unwrap().size, 1);
        });
        machine.check(&system);
        machine.run(async { system.reclaim(&Reclaim::default()).await }).unwrap();
    }
    machine.run(expect_tree(&system, "top", 1));
}

/// I-116: content that went while its unit waited for a lock, and came again with somebody else's, is durable before the unit names it.
#[test]
fn a_unit_relies_on_nothing_that_is_not_durable() {
    let machine = Machine::new(44);
    let system = machine.open();
    let content = pattern(300_000, 7);
    let (mut chunks, mut rest) = (Vec::new(), &content[..]);
    for length in store::cut_points(&content, true) {
        chunks.push(Bytes::copy_from_slice(rest.split_off(..length).unwrap()));
    }
    machine.run(async {
        let top = create(&system, FileId::ROOT, "top", Kind::Directory).await.file;
        system.sync_all().await.unwrap();
        system.commit().await.unwrap();
        let unit = system.batch_begin(top, vec![file("new", &content)], &PRESERVE).await.unwrap();
        let inode = system.live(top).await.unwrap();
        let lock = inode.operation.lock().await;
        let (send, receive) = tokio::sync::oneshot::channel();
        let other = Arc::clone(&system);
        let finish = async move { drop(send.send(other.batch_finish(unit).await)) };
        system.platform.tasks.spawn("finish", Box::pin(finish));
        // Nobody names it, so it goes.
        let contains_all = || {
            chunks.iter().filter(|chunk| system.store.contains(&system.store.key().address(chunk))).count()
                == chunks.len()
        };
        assert!(contains_all());
        let how = Reclaim { is_thorough: true, ..Reclaim::default() };
        system.reclaim(&how).await.unwrap();
        assert!(!contains_all());
        system.store.put_many(store::Class::Data, chunks.clone()).await.unwrap();
        drop(lock);
        expect_all(&receive.await.unwrap().unwrap());
        system.sync(top).await.unwrap();
    });
    let system = machine.power_cycle(system);
    machine.run(async { assert_eq!(read_all(&system, find(&system, "top/new").await.unwrap()).await, content) });
}

#[test]
fn a_unit_is_one_frame_and_a_power_cut_leaves_all_or_none() {
    let mut seen = [0, 0];
    for cut in 0.. {
        let machine = Machine::new(400 + cut);
        let system = machine.open();
        let top = machine.run(async {
            let top = create(&system, FileId::ROOT, "top", Kind::Directory).await.file;
            // What the unit replaces, and links to.
            expect_all(&write(&system, top, vec![file("old", b"old"), file("kept", b"kept")], PRESERVE).await);
            system.sync_all().await.unwrap();
            top
        });
        machine.world.cut_power_at(machine.world.operations() + cut);
        let done = machine.world.run_until(async {
            let mut unit = tree(3);
            unit.extend([file("old", &pattern(5000, 9)), link("more", "kept")]);
            let report = system.batch_write(top, unit, &REPLACE).await?;
            expect_all(&report);
            system.sync(top).await?;
            system.commit().await
        });
        let is_done = matches!(done, Ok(Ok(())));
        drop(system);
        machine.world.restart();
        let system = machine.open();
        machine.run(async {
            let is_there = find(&system, "top/a").await.is_ok();
            seen[usize::from(is_there)] += 1;
            assert!(is_there || !is_done);
            let old = read_all(&system, find(&system, "top/old").await.unwrap()).await;
            let kept = system.attributes(find(&system, "top/kept").await.unwrap()).await.unwrap();
            if is_there {
                assert!(old == pattern(5000, 9));
                assert_eq!(kept.links, 2);
                expect_tree(&system, "top", 3).await;
            } else {
                assert!(old == b"old");
                assert_eq!(kept.links, 1);
                assert_eq!(list(&system, Node::live(top), 10).await.len(), 2);
            }
        });
        machine.check(&system);
        if is_done {
            break;
        }
    }
    assert!(seen[0] > 3 && seen[1] > 1, "{seen:?}");
}

#[test]
fn what_fails_of_an_entry_is_its_fate_alone_unless_the_unit_is_atomic() {
    let machine = Machine::new(41);
    let system = machine.open();
    machine.run(async {
        let top = create(&system, FileId::ROOT, "top", Kind::Directory).await.file;
        expect_all(&write(&system, top, vec![file("f", b"f"), directory("d"), file("d/in", b"in")], PRESERVE).await);
        let unit = || {
            vec![
                file("f", b"second"),
                file("f/below", b"x"),
                file("nowhere/x", b"x"),
                directory("d"),
                file("d/new", b"new"),
                file("d", b"x"),
                directory("f"),
                file("d/../up", b"x"),
                file(&"n".repeat(256), b"x"),
                entry("t", Kind::Symlink, BatchContent::None),
                link("l", "nowhere/x"),
                link("l", "d"),
                link("d/other", "f"),
                file("twice", b"1"),
                file("twice", b"2"),
                file("/top", b"x"),
            ]
        };
        let atomic = BatchWrite { atomic: true, ..PRESERVE };
        let refused = system.batch_write(top, unit(), &atomic).await.unwrap();
        assert!(!refused.is_done);
        assert_eq!(list(&system, Node::live(top), 10).await.len(), 2);

        let report = write(&system, top, unit(), PRESERVE).await;
        let shown: Vec<String> =
            report.fates.iter().map(|fate| fate.as_ref().err().map_or("ok".into(), ToString::to_string)).collect();
        assert_eq!(
            shown,
            [
                "file exists",
                "not a directory",
                "no such file or directory",
                "ok",
                "ok",
                "file exists",
                "file exists",
                "invalid argument: a path with a name that cannot be",
                "name too long",
                "invalid argument: a symbolic link without a target",
                "no such file or directory",
                "not permitted: a directory has one name",
                "ok",
                "ok",
                "file exists",
                "invalid argument: a path that begins with a slash",
            ]
        );
        assert_eq!(read_all(&system, find(&system, "top/f").await.unwrap()).await, b"f");
        assert_eq!(read_all(&system, find(&system, "top/d/other").await.unwrap()).await, b"f");
        assert_eq!(read_all(&system, find(&system, "top/twice").await.unwrap()).await, b"1");
        assert_eq!(system.attributes(find(&system, "top/d").await.unwrap()).await.unwrap().size, 3);
        let snapshots = system.batch_write(FileId::ROOT, vec![directory(".snapshots")], &PRESERVE).await.unwrap();
        assert!(matches!(snapshots.fates[0], Err(FileError::Exists)));
        let below = system.batch_write(report.fates[12].clone().unwrap(), vec![directory("x")], &PRESERVE).await;
        assert!(matches!(below, Err(FileError::NotDirectory)));
    });
    machine.check(&system);
}

#[test]
fn a_replaced_file_stays_for_who_has_it_open_and_goes_with_him() {
    let machine = Machine::new(42);
    let system = machine.open();
    machine.run(async {
        let top = create(&system, FileId::ROOT, "top", Kind::Directory).await.file;
        expect_all(&write(&system, top, vec![file("open", b"old"), file("linked", b"two")], PRESERVE).await);
        system.link(find(&system, "top/linked").await.unwrap().file, top, b"other").await.unwrap();
        let open = find(&system, "top/open").await.unwrap();
        system.retain(open);
        system.write(open.file, 0, b"accepted", false).await.unwrap();
        let unit = vec![
            file("open", b"new"),
            file("linked", b"new two"),
            file("thrice", b"1"),
            file("thrice", b"2"),
            link("thrice", "open"),
            link("thrice", "thrice"),
        ];
        let report = write(&system, top, unit, REPLACE).await;
        expect_all(&report);
        assert_eq!(report.made, 2);
        assert_eq!(read_all(&system, open).await, b"accepted");
        assert_eq!(system.attributes(open).await.unwrap().links, 0);
        let replaced = find(&system, "top/open").await.unwrap();
        assert_ne!(replaced, open);
        assert_eq!(system.attributes(replaced).await.unwrap().links, 2);
        assert_eq!(read_all(&system, find(&system, "top/thrice").await.unwrap()).await, b"new");
        assert_eq!(read_all(&system, find(&system, "top/other").await.unwrap()).await, b"two");
        system.forget(open, 1).await.unwrap();
        assert!(matches!(system.attributes(open).await, Err(FileError::NoEntry)));
        assert_eq!(system.attributes(Node::live(top)).await.unwrap().size, 4);
    });
    machine.check(&system);
}

/// user::rwx, user:5:rwx, group::r-x, mask::rwx, other::---
fn access_list() -> Vec<u8> {
    let rules: [(u16, u16, u32); 5] =
        [(1, 7, u32::MAX), (2, 7, 5), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)];
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in rules {
        acl.extend([&tag.to_le_bytes()[..], &rights.to_le_bytes()[..], &id.to_le_bytes()[..]].concat());
    }
    acl
}

/// As `create_file` does it, unless the entries say what is to be.
#[test]
fn groups_and_access_lists_are_inherited_unless_attributes_are_preserved() {
    let machine = Machine::new(43);
    let system = machine.open();
    let acl = access_list();
    let default = b"system.posix_acl_default";
    machine.run(async {
        let of_group = NewFile { mode: 0o2775, gid: 99, ..new(Kind::Directory) };
        let top = system.create_file(FileId::ROOT, b"top", &of_group).await.unwrap().file;
        let stat = async |path: &str| system.attributes(find(&system, path).await.unwrap()).await.unwrap();
        let unit =
            || vec![BatchEntry { mode: 0o777, ..directory("d") }, BatchEntry { mode: 0o666, ..file("d/f", b"") }];
        expect_all(&write(&system, top, unit(), PLAIN).await);
        let (d, f) = (stat("top/d").await, stat("top/d/f").await);
        assert_eq!((d.mode, d.gid, f.mode, f.gid), (0o755 | SET_GID, 99, 0o644, 99));
        assert!(d.modified > Timestamp::new(1_000, 5));

        system.set_xattr(top, default, &acl, XattrMode::Set, false).await.unwrap();
        let one = system
            .create_file(top, b"one", &NewFile { mode: 0o666, umask: 0o022, ..new(Kind::Regular) })
            .await
            .unwrap();
        let unit = vec![directory("e"), BatchEntry { mode: 0o666, ..file("e/f", b"") }];
        expect_all(&write(&system, top, unit, PLAIN).await);
        let f = find(&system, "top/e/f").await.unwrap();
        assert_eq!(stat("top/e/f").await.mode, one.mode);
        let access = b"system.posix_acl_access";
        let of_one = system.xattr(Node::live(one.file), access).await.unwrap();
        assert_eq!(system.xattr(f, access).await.unwrap(), of_one);
        assert_eq!(system.xattr(find(&system, "top/e").await.unwrap(), default).await.unwrap(), acl);

        // A directory that is there becomes what is said, and so does what is new.
        let said = BatchEntry { mode: 0o700, xattrs: vec![(b"user.a".to_vec(), b"b".to_vec())], ..directory("d") };
        expect_all(&write(&system, top, vec![said, file("d/p", b"")], PRESERVE).await);
        let (d, p) = (stat("top/d").await, stat("top/d/p").await);
        assert_eq!((d.mode, d.gid, d.uid, d.modified), (0o700, 8, 7, Timestamp::new(1_000, 5)));
        assert_eq!((p.mode, p.gid, d.size), (0o640, 8, 2));
        assert_eq!(system.xattr(Node::live(d.file), b"user.a").await.unwrap()[..], *b"b");
        assert!(system.xattrs(Node::live(p.file)).await.unwrap().is_empty());
        // The list that a directory has follows its mode.
        expect_all(&write(&system, top, vec![BatchEntry { mode: 0o750, ..directory("") }], PRESERVE).await);
        assert_eq!(stat("top").await.mode, 0o750);
        assert!(system.batch_write(top, vec![file("", b"x")], &PRESERVE).await.unwrap().fates[0].is_err());
    });
    machine.check(&system);
}

#[test]
fn a_full_disk_refuses_a_unit_whole_and_room_comes_back() {
    let machine = Machine::with(44, 80 << 20, Options { dirty_bytes_max: 16 << 20, ..Options::default() });
    let system = machine.open();
    machine.run(async {
        let mut written = 0;
        let refused = loop {
            let content = pattern(6 << 20, written);
            let unit = (0..6).map(|part| file(&format!("u{written}-{part}"), &content[part << 20..(part + 1) << 20]));
            match system.batch_write(FileId::ROOT, unit.collect(), &PRESERVE).await {
                Ok(report) => expect_all(&report),
                Err(error) => break error,
            }
            written += 1;
        };
        assert!(matches!(refused, FileError::NoSpace), "{refused}");
        assert!(written > 2, "{written}");
        assert_eq!(list(&system, Node::live(FileId::ROOT), 10).await.len() as u64, written * 6);
        for unit in 0..written {
            for part in 0..6 {
                system.remove_file(FileId::ROOT, format!("u{unit}-{part}").as_bytes()).await.unwrap();
            }
        }
        let content = pattern(6 << 20, 1000);
        expect_all(&write(&system, FileId::ROOT, vec![file("after", &content)], PRESERVE).await);
        assert!(read_all(&system, find(&system, "after").await.unwrap()).await == content);
    });
    machine.check(&system);
}

/// Many times what the disk holds, each removed before the next, by nothing but batches: what they take is seen, and comes back.
#[test]
fn what_batches_leave_behind_makes_room_for_batches() {
    let machine = Machine::with(44, 128 << 20, Options::default());
    let system = machine.open();
    machine.run(async {
        for round in 0..60 {
            let name = format!("r{round}");
            let content = pattern(8 << 20, 1000 + round);
            let unit = vec![directory(&name), file(&format!("{name}/f"), &content)];
            expect_all(&write(&system, FileId::ROOT, unit, PRESERVE).await);
            assert!(read_all(&system, find(&system, &format!("{name}/f")).await.unwrap()).await == content, "{round}");
            system.batch_remove(FileId::ROOT, name.as_bytes()).await.unwrap();
        }
    });
    machine.check(&system);
}

#[test]
fn a_budget_says_what_fits_a_frame() {
    let machine = Machine::new(45);
    let mut system = machine.open();
    let name = |number: usize| format!("{:0>255}", number);
    let mut budget = BatchBudget::default();
    let tag = || vec![(b"user.tag".to_vec(), vec![7; 100])];
    let unit: Vec<BatchEntry> = (0..)
        .map(|number| BatchEntry { xattrs: tag(), ..file(&name(number), &number.to_le_bytes()) })
        .take_while(|entry| budget.take(entry))
        .collect();
    let count = unit.len();
    assert!(count > 3000, "{count}");
    machine.run(async {
        let mut over = unit.clone();
        over.push(file("one more", &[1; 1000]));
        over.extend((0..20).map(|number| file(&format!("{}", number), b"")));
        assert!(matches!(system.batch_write(FileId::ROOT, over, &PRESERVE).await, Err(FileError::Invalid(_))));
        expect_all(&write(&system, FileId::ROOT, unit.clone(), REPLACE).await);
        // All of them once more: each has one to replace, too.
        expect_all(&write(&system, FileId::ROOT, unit, REPLACE).await);
        system.sync(FileId::ROOT).await.unwrap();
    });
    system = machine.power_cycle(system);
    machine.run(async {
        assert_eq!(system.attributes(Node::live(FileId::ROOT)).await.unwrap().size, count as u64);
        let last = find(&system, &name(count - 1)).await.unwrap();
        assert_eq!(read_all(&system, last).await, (count - 1).to_le_bytes());
    });
    machine.check(&system);
}

/// As if it had been written to; what else it was is gone, as its other names know.
#[test]
fn what_is_replaced_gives_its_mode_owner_and_access_list_unless_attributes_are_preserved() {
    let machine = Machine::new(13);
    let system = machine.open();
    machine.run(async {
        let made = NewFile { mode: 0o750, uid: 70, gid: 80, ..new(Kind::Regular) };
        let before = system.create_file(FileId::ROOT, b"file", &made).await.unwrap().file;
        let access = access_list();
        system.set_xattr(before, b"system.posix_acl_access", &access, XattrMode::Set, false).await.unwrap();
        let replace = BatchWrite { replace: true, ..PLAIN };
        expect_all(&write(&system, FileId::ROOT, vec![file("file", b"new"), file("other", b"new")], replace).await);
        let now = find(&system, "file").await.unwrap();
        assert_eq!(read_all(&system, now).await, b"new");
        let seen = system.attributes(now).await.unwrap();
        // What a list says of a group is in its mask.
        assert_eq!((seen.mode, seen.uid, seen.gid), (0o770, 70, 80));
        assert_eq!(system.xattr(now, b"system.posix_acl_access").await.unwrap(), access);
        let other = system.attributes(find(&system, "other").await.unwrap()).await.unwrap();
        assert_eq!((other.mode, other.uid), (0o640, 7));
        expect_all(&write(&system, FileId::ROOT, vec![file("file", b"newer")], REPLACE).await);
        let seen = system.attributes(find(&system, "file").await.unwrap()).await.unwrap();
        assert_eq!((seen.mode, seen.uid, seen.gid), (0o640, 7, 8));
    });
    machine.check(&system);
}
