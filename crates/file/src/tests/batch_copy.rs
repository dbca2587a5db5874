//! Trees that are copied within the file system.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use base::id::FileId;
use base::time::Timestamp;
use parking_lot::Mutex;
use platform::task::{First, all, first};

use super::batch_read::data_chunk_place;
use super::content::pattern;
use super::{Machine, create, find, list, read_all};
use crate::format::Root;
use crate::{
    Anew, AttributeChange, BatchCopy, BatchCopyReport, BatchEntry, BatchWriteReport, FileError, FileSystem, Kind,
    NewFile, Node, Options, Reclaim, RenameMode, TimeChange, XattrMode,
};

const AS_IT_IS: BatchCopy<'_> = BatchCopy { anew: None, tell: &|_, _| true, written: &|_, _| {} };

/// Files of each kind in three directories, some accepted only, with links within the tree and out of it.
async fn source(system: &FileSystem) {
    let top = create(system, FileId::ROOT, "s", Kind::Directory).await.file;
    let below = create(system, top, "below", Kind::Directory).await.file;
    let deep = create(system, below, "deep", Kind::Directory).await.file;
    for (directory, count) in [(top, 3), (below, 60), (deep, 3)] {
        for number in 0..count {
            let file = create(system, directory, &format!("f{number}"), Kind::Regular).await.file;
            system.write(file, 0, &pattern(2000 + 100 * number, number as u64), false).await.unwrap();
        }
    }
    let large = create(system, deep, "large", Kind::Regular).await.file;
    system.write(large, 0, &pattern(900_000, 77), false).await.unwrap();
    system.write(large, 2 << 20, b"behind a hole", false).await.unwrap();
    system.link(large, top, b"again").await.unwrap();
    system.link(large, FileId::ROOT, b"outside").await.unwrap();
    let target = NewFile { target: b"below/deep", ..super::new(Kind::Symlink) };
    system.create_file(top, b"link", &target).await.unwrap();
    create(system, deep, "pipe", Kind::Fifo).await;
    system.set_xattr(large, b"user.tag", b"value", XattrMode::Set, false).await.unwrap();
    let owner = AttributeChange { mode: Some(0o4751), uid: Some(5), gid: Some(6), ..AttributeChange::default() };
    system.set_attributes(large, &owner).await.unwrap();
    system.sync_all().await.unwrap();
    let accepted = find(system, "s/f1").await.unwrap().file;
    system.write(accepted, 100, b"accepted", false).await.unwrap();
    for (number, file) in [deep, below, top].into_iter().enumerate() {
        let time = Some(TimeChange::At(Timestamp::new(5000 + number as i64, 1)));
        let times = AttributeChange { modified: time, accessed: time, ..AttributeChange::default() };
        system.set_attributes(file, &times).await.unwrap();
    }
}

async fn expect_copy(system: &FileSystem, top: &str) {
    let at = |path: &str| format!("{top}{path}");
    for (directory, count) in [("", 3), ("/below", 60), ("/below/deep", 3)] {
        for number in 0..count {
            let file = find(system, &at(&format!("{directory}/f{number}"))).await.unwrap();
            let mut expected = pattern(2000 + 100 * number, number as u64);
            if directory.is_empty() && number == 1 {
                expected[100..108].copy_from_slice(b"accepted");
            }
            assert!(read_all(system, file).await == expected, "{top}{directory}/f{number}");
        }
    }
    let (large, again) =
        (find(system, &at("/below/deep/large")).await.unwrap(), find(system, &at("/again")).await.unwrap());
    assert_eq!(large, again);
    let attributes = system.attributes(large).await.unwrap();
    assert_eq!((attributes.mode, attributes.uid, attributes.gid, attributes.links), (0o4751, 5, 6, 2));
    assert_eq!((attributes.size, attributes.allocated), ((2 << 20) + 13, 900_013));
    let bytes = read_all(system, large).await;
    assert!(bytes[..900_000] == pattern(900_000, 77) && bytes[2 << 20..] == *b"behind a hole");
    assert_eq!(system.xattr(large, b"user.tag").await.unwrap()[..], *b"value");
    let link = find(system, &at("/link")).await.unwrap();
    assert_eq!(&system.read_link(link).await.unwrap()[..], b"below/deep");
    for (number, path) in ["/below/deep", "/below", ""].iter().enumerate() {
        let found = system.attributes(find(system, &at(path)).await.unwrap()).await.unwrap();
        assert_eq!(found.modified, Timestamp::new(5000 + number as i64, 1), "{path}");
    }
    assert_eq!(list(system, find(system, top).await.unwrap(), 3).await.len(), 6);
}

#[test]
fn a_copy_has_all_of_its_source_and_shares_the_content() {
    let machine = Machine::with(70, 1 << 30, Options { access_times: false, ..Options::default() });
    let mut system = machine.open();
    machine.run(async {
        source(&system).await;
        let before = system.store.counters().new_bytes.value();
        let told = AtomicU64::new(0);
        let from = find(&system, "s").await.unwrap();
        let tell = |files, _| {
            told.store(files, Ordering::Relaxed);
            true
        };
        let report = system.batch_copy(from, FileId::ROOT, b"t", &BatchCopy { tell: &tell, ..AS_IT_IS }).await.unwrap();
        assert!(report.failed.is_empty(), "{:?}", report.failed);
        assert_eq!((report.files, told.load(Ordering::Relaxed)), (72, 72));
        assert_eq!(system.store.counters().new_bytes.value(), before, "nothing is stored anew");
        expect_copy(&system, "t").await;
        // Of a snapshot, into a directory of the copy; and what changes in one changes in no other.
        system.snapshot("moment").await.unwrap();
        let of_snapshot = find(&system, ".snapshots/moment/s").await.unwrap();
        let into = find(&system, "t/below").await.unwrap().file;
        system.batch_remove(FileId::ROOT, b"s").await.unwrap();
        system.batch_copy(of_snapshot, into, b"u", &AS_IT_IS).await.unwrap();
        system.delete_snapshot("moment").await.unwrap();
        system.finish_removals().await.unwrap();
        system.commit().await.unwrap();
        system.reclaim(&Reclaim { is_thorough: true, ..Reclaim::default() }).await.unwrap();
        expect_copy(&system, "t/below/u").await;
        system.sync_all().await.unwrap();
    });
    machine.check(&system);
    system = machine.power_cycle(system);
    machine.run(expect_copy(&system, "t/below/u"));
    machine.check(&system);
}

#[test]
fn a_copy_is_refused_where_it_cannot_be() {
    let machine = Machine::new(71);
    let system = machine.open();
    machine.run(async {
        source(&system).await;
        let (from, below) = (find(&system, "s").await.unwrap(), find(&system, "s/below").await.unwrap());
        let into = system.batch_copy(from, below.file, b"x", &AS_IT_IS).await;
        assert!(matches!(into, Err(FileError::Invalid(_))), "{into:?}");
        let there = system.batch_copy(below, FileId::ROOT, b"s", &AS_IT_IS).await;
        assert!(matches!(there, Err(FileError::Exists)));
        let root = system.batch_copy(Node::live(FileId::ROOT), FileId::ROOT, b"x", &AS_IT_IS).await;
        assert!(matches!(root, Err(FileError::Invalid(_))));
        let file = find(&system, "s/f2").await.unwrap();
        let report = system.batch_copy(file, FileId::ROOT, b"one", &AS_IT_IS).await.unwrap();
        assert_eq!((report.files, report.bytes), (1, 2200));
        assert!(read_all(&system, find(&system, "one").await.unwrap()).await == pattern(2200, 2));
        assert!(matches!(find(&system, "x").await, Err(FileError::NoEntry)));
    });
    machine.check(&system);
}

/// Somebody moves the directory that it goes to into what is copied.
#[test]
fn a_copy_that_comes_upon_itself_ends() {
    let machine = Machine::new(79);
    let system = machine.open();
    machine.run(async {
        let top = create(&system, FileId::ROOT, "s", Kind::Directory).await.file;
        for number in 0..6000 {
            create(&system, top, &format!("n{number}"), Kind::Fifo).await;
        }
        let to = create(&system, FileId::ROOT, "to", Kind::Directory).await.file;
        // Which comes late in a listing.
        let names = (0..20_000).map(|number| format!("to{number}"));
        let name = names.max_by_key(|name| *system.cookies(name.as_bytes()).start()).unwrap();
        let moved = AtomicU64::new(0);
        // The first unit is written, and not everything was listed.
        let tell = |_: u64, _: u64| {
            if moved.fetch_add(1, Ordering::SeqCst) == 0 {
                let mut moving =
                    Box::pin(system.rename(FileId::ROOT, b"to", top, name.as_bytes(), RenameMode::Replace));
                let polled = moving.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                assert!(matches!(polled, Poll::Ready(Ok(()))), "nothing is in its way");
            }
            true
        };
        let how = BatchCopy { tell: &tell, ..AS_IT_IS };
        let report = system.batch_copy(Node::live(top), to, b"copy", &how).await.unwrap();
        let path = format!("copy/{name}").into_bytes();
        assert!(matches!(&report.failed[..], [(failed, FileError::Invalid(_))] if *failed == path), "{report:?}");
        let inside = find(&system, &format!("s/{name}/copy/{name}")).await;
        assert!(matches!(inside, Err(FileError::NoEntry)), "{inside:?}");
    });
    machine.check(&system);
}

/// Of very many extents, and of more files than a frame takes: each directory has its time in the end.
#[test]
fn what_no_frame_holds_goes_into_several() {
    let machine = Machine::with(72, 1 << 30, Options { access_times: false, ..Options::default() });
    let mut system = machine.open();
    machine.run(async {
        let top = create(&system, FileId::ROOT, "s", Kind::Directory).await.file;
        let pieces = create(&system, top, "pieces", Kind::Regular).await.file;
        for index in 0..5000_u64 {
            system.write(pieces, index * 8192, &index.to_le_bytes(), false).await.unwrap();
        }
        let many = create(&system, top, "many", Kind::Directory).await.file;
        for number in 0..7000 {
            create(&system, many, &format!("{number:0>200}"), Kind::Regular).await;
        }
        system.sync_all().await.unwrap();
        let time = Some(TimeChange::At(Timestamp::new(5000, 1)));
        let times = AttributeChange { modified: time, accessed: time, ..AttributeChange::default() };
        for file in [pieces, many, top] {
            system.set_attributes(file, &times).await.unwrap();
        }
        let report = system.batch_copy(Node::live(top), FileId::ROOT, b"t", &AS_IT_IS).await.unwrap();
        assert!(report.failed.is_empty(), "{:?}", report.failed);
        assert_eq!(report.files, 7003);
        system.sync_all().await.unwrap();
    });
    system = machine.power_cycle(system);
    machine.run(async {
        for path in ["t", "t/many", "t/pieces"] {
            let found = system.attributes(find(&system, path).await.unwrap()).await.unwrap();
            assert_eq!(found.modified, Timestamp::new(5000, 1), "{path}");
        }
        let (pieces, copy) = (find(&system, "s/pieces").await.unwrap(), find(&system, "t/pieces").await.unwrap());
        assert!(read_all(&system, pieces).await == read_all(&system, copy).await);
        assert_eq!(system.attributes(find(&system, "t/many").await.unwrap()).await.unwrap().size, 7000);
    });
    machine.check(&system);
}

/// As `cp -r` makes it: each name a file of its own, of who copies, with the mode that the mask leaves and without what was given to it.
#[test]
fn a_copy_is_made_anew() {
    let machine = Machine::with(73, 1 << 30, Options { access_times: false, ..Options::default() });
    let mut system = machine.open();
    let expect = async |system: &FileSystem| {
        let node = async |path: &str| find(system, &format!("t{path}")).await.unwrap();
        let top = system.attributes(node("").await).await.unwrap();
        assert_eq!((top.uid, top.gid, top.links), (7, 8, 3));
        assert_ne!(top.modified, Timestamp::new(5002, 1));
        let (large, again) = (node("/below/deep/large").await, node("/again").await);
        let attributes = system.attributes(large).await.unwrap();
        assert_eq!((attributes.mode, attributes.uid, attributes.gid, attributes.links), (0o740, 7, 8, 1));
        assert_eq!((attributes.size, attributes.allocated), ((2 << 20) + 13, 900_013));
        assert_ne!(large, again);
        assert!(read_all(system, large).await == read_all(system, again).await);
        assert!(matches!(system.xattr(large, b"user.tag").await, Err(FileError::NoAttribute)));
        assert_eq!(&system.read_link(node("/link").await).await.unwrap()[..], b"below/deep");
        assert_eq!(system.attributes(node("/below/deep/pipe").await).await.unwrap().kind, Kind::Fifo);
        assert_eq!(read_all(system, node("/below/f7").await).await, pattern(2700, 7));
    };
    machine.run(async {
        source(&system).await;
        let from = find(&system, "s").await.unwrap();
        let anew = Some(Anew { uid: 7, gid: 8, umask: 0o017 });
        let report = system.batch_copy(from, FileId::ROOT, b"t", &BatchCopy { anew, ..AS_IT_IS }).await.unwrap();
        assert!(report.failed.is_empty(), "{:?}", report.failed);
        assert_eq!(report.files, 73, "a further name is a file of its own");
        expect(&system).await;
        system.sync_all().await.unwrap();
    });
    system = machine.power_cycle(system);
    machine.run(expect(&system));
    machine.check(&system);
}

/// A chunk of one file is lost, and that is known: the others are copied, and its name is told.
#[test]
fn what_is_lost_of_a_tree_is_told_and_the_rest_is_copied() {
    let machine = Machine::with(74, 1 << 30, Options { access_times: false, ..Options::default() });
    let mut system = machine.open();
    let bad = machine.run(async {
        let top = create(&system, FileId::ROOT, "s", Kind::Directory).await.file;
        for number in 0..20 {
            let file = create(&system, top, &format!("f{number}"), Kind::Regular).await.file;
            system.write(file, 0, &pattern(20_000, number), false).await.unwrap();
        }
        system.sync_all().await.unwrap();
        system.commit().await.unwrap();
        find(&system, "s/f7").await.unwrap()
    });
    let (path, at) = data_chunk_place(&machine, &system, bad);
    machine.run(system.close()).unwrap();
    drop(system);
    // Behind the hashes of its groups, which could be mended.
    machine.disk.flip_bit(&path, at + 2000, 2);
    machine.world.restart();
    system = machine.open();
    machine.run(async {
        assert!(system.read(bad, 0, &mut [0; 100]).await.is_err_and(|error| error.is_loss()));
        let from = find(&system, "s").await.unwrap();
        let report = system.batch_copy(from, FileId::ROOT, b"t", &AS_IT_IS).await.unwrap();
        assert_eq!(report.files, 20, "the directory and all but one");
        let [(path, error)] = &report.failed[..] else { panic!("{:?}", report.failed) };
        assert!(path == b"t/f7" && error.is_loss(), "{error}");
        assert!(matches!(find(&system, "t/f7").await, Err(FileError::NoEntry)));
        for number in (0..20).filter(|number| *number != 7) {
            let copy = find(&system, &format!("t/f{number}")).await.unwrap();
            assert!(read_all(&system, copy).await == pattern(20_000, number));
        }
    });
}

/// A file of more extents than go into a unit, which is copied in two steps.
async fn pieces(system: &FileSystem, parent: FileId, name: &str, seed: u64) -> FileId {
    let file = create(system, parent, name, Kind::Regular).await.file;
    system.write(file, 0, &pattern(20_000, seed), false).await.unwrap();
    for index in 2..5000_u64 {
        system.write(file, index << 14, &index.to_le_bytes(), false).await.unwrap();
    }
    file
}

/// Copies into a directory where nothing can be written at first: something happens when the copy waits for that.
async fn copy_while(
    system: &FileSystem,
    from: Node,
    into: FileId,
    meanwhile: impl Future<Output = ()>,
) -> Result<BatchCopyReport, FileError> {
    let directory = system.live(into).await.unwrap();
    let lock = directory.operation.lock().await;
    let mut copy = Box::pin(system.batch_copy(from, into, b"t", &AS_IT_IS));
    let soon = system.platform.tasks.sleep(Duration::from_secs(10));
    assert!(matches!(first(&mut copy, soon).await, First::Right(())));
    meanwhile.await;
    drop(lock);
    copy.await
}

fn without_access_times(seed: u64) -> Machine {
    Machine::with(seed, 1 << 30, Options { access_times: false, ..Options::default() })
}

async fn expect_no_orphans(system: &FileSystem) {
    assert!(system.references().is_empty());
    system.commit().await.unwrap();
    assert!(system.roots.lock().orphans == Root::Empty);
}

#[test]
fn a_large_file_that_vanishes_is_told_and_the_next_is_copied() {
    let machine = without_access_times(75);
    let system = machine.open();
    machine.run(async {
        let top = create(&system, FileId::ROOT, "s", Kind::Directory).await.file;
        for (seed, name) in ["one", "two", "three"].iter().enumerate() {
            pieces(&system, top, name, seed as u64).await;
        }
        create(&system, top, "small", Kind::Regular).await;
        let into = create(&system, FileId::ROOT, "into", Kind::Directory).await.file;
        system.sync_all().await.unwrap();
        let names = list(&system, Node::live(top), 10).await;
        let gone = names.iter().find(|name| *name != "small").unwrap();
        let meanwhile = async { system.remove_file(top, gone.as_bytes()).await.unwrap() };
        let report = copy_while(&system, Node::live(top), into, meanwhile).await.unwrap();
        let [(path, error)] = &report.failed[..] else { panic!("{:?}", report.failed) };
        assert!(*path == format!("t/{gone}").into_bytes() && matches!(error, FileError::NoEntry), "{error}");
        assert_eq!(report.files, 4, "the directory and all but one");
        let copied = list(&system, find(&system, "into/t").await.unwrap(), 10).await;
        assert!(copied.iter().eq(names.iter().filter(|name| *name != gone)), "{copied:?}");
        for name in &copied {
            let (source, copy) = (format!("s/{name}"), format!("into/t/{name}"));
            let (source, copy) = (find(&system, &source).await.unwrap(), find(&system, &copy).await.unwrap());
            assert!(read_all(&system, source).await == read_all(&system, copy).await, "{name}");
        }
        expect_no_orphans(&system).await;
    });
    machine.check(&system);
}

/// Whenever the source goes: its copy is whole, or has no name.
#[test]
fn a_large_file_that_vanishes_has_no_half_a_copy() {
    let machine = without_access_times(76);
    let mut system = machine.open();
    let (kept, expected) = machine.run(async {
        let kept = pieces(&system, FileId::ROOT, "kept", 1).await;
        system.sync_all().await.unwrap();
        (kept, read_all(&system, Node::live(kept)).await)
    });
    let (mut round, mut told, mut delay) = (0, 0, Duration::from_micros(500));
    let mut is_first = true;
    while is_first {
        let (from, to) = (format!("s{round}"), format!("t{round}"));
        let top = machine.run(async {
            let top = create(&system, FileId::ROOT, &from, Kind::Directory).await.file;
            let file = create(&system, top, "large", Kind::Regular).await.file;
            let mut at = 0;
            while at < expected.len() as u64 {
                at += system.copy_range(Node::live(kept), at, file, at, u64::MAX - at).await.unwrap();
            }
            system.commit().await.unwrap();
            top
        });
        system = machine.power_cycle(system);
        machine.run(async {
            let mut copy = Box::pin(system.batch_copy(Node::live(top), FileId::ROOT, to.as_bytes(), &AS_IT_IS));
            let early = first(&mut copy, system.platform.tasks.sleep(delay)).await;
            system.remove_file(top, b"large").await.unwrap();
            let report = match early {
                First::Left(report) => {
                    is_first = false;
                    report.unwrap()
                }
                First::Right(()) => copy.await.unwrap(),
            };
            let path = format!("{to}/large");
            match find(&system, &path).await {
                Ok(copy) => assert!(read_all(&system, copy).await == expected && report.failed.is_empty()),
                Err(error) => {
                    assert!(matches!(error, FileError::NoEntry));
                    assert_eq!(report.files, 1);
                    // None before it was looked at.
                    assert!(report.failed.iter().all(|(failed, _)| *failed == path.as_bytes()), "{:?}", report.failed);
                    told += report.failed.len();
                }
            }
            expect_no_orphans(&system).await;
        });
        (round, delay) = (round + 1, delay + delay / 4);
    }
    assert!(told > 0, "of {round}");
    machine.check(&system);
}

#[test]
fn a_crash_leaves_no_half_of_a_large_file() {
    let machine = without_access_times(77);
    let mut system = machine.open();
    let (source, expected) = machine.run(async {
        let source = create(&system, FileId::ROOT, "s", Kind::Directory).await.file;
        let large = pieces(&system, source, "large", 1).await;
        system.sync_all().await.unwrap();
        system.commit().await.unwrap();
        (Node::live(source), read_all(&system, Node::live(large)).await)
    });
    let (mut round, mut halfway, mut delay) = (0, 0, Duration::from_micros(500));
    let mut is_whole = false;
    while !is_whole {
        system = machine.power_cycle(system);
        let to = format!("t{round}");
        halfway += machine.run(async {
            let mut copy = Box::pin(system.batch_copy(source, FileId::ROOT, to.as_bytes(), &AS_IT_IS));
            let _ = first(&mut copy, system.platform.tasks.sleep(delay)).await;
            let halfway = system.references().len();
            system.sync(FileId::ROOT).await.unwrap();
            halfway
        });
        system = machine.power_cycle(system);
        is_whole = machine.run(async {
            let found = find(&system, &format!("{to}/large")).await;
            expect_no_orphans(&system).await;
            let Ok(copy) = found else { return false };
            assert!(read_all(&system, copy).await == expected, "after {delay:?}");
            true
        });
        (round, delay) = (round + 1, delay + delay / 4);
    }
    assert!(halfway > 0, "of {round}");
    machine.check(&system);
}

#[test]
fn what_is_lost_of_a_large_file_is_its_fate_alone() {
    let machine = without_access_times(78);
    let mut system = machine.open();
    let names = ["one", "two", "three"];
    let bad = machine.run(async {
        let top = create(&system, FileId::ROOT, "s", Kind::Directory).await.file;
        for (seed, name) in names.iter().enumerate() {
            pieces(&system, top, name, seed as u64).await;
        }
        system.sync_all().await.unwrap();
        system.commit().await.unwrap();
        // The first that is met.
        list(&system, Node::live(top), 10).await.swap_remove(0)
    });
    let node = machine.run(find(&system, &format!("s/{bad}"))).unwrap();
    let (path, at) = data_chunk_place(&machine, &system, node);
    machine.run(system.close()).unwrap();
    drop(system);
    machine.disk.flip_bit(&path, at + 2000, 2);
    machine.world.restart();
    system = machine.open();
    machine.run(async {
        assert!(system.read(node, 0, &mut [0; 100]).await.is_err_and(|error| error.is_loss()));
        let from = find(&system, "s").await.unwrap();
        let report = system.batch_copy(from, FileId::ROOT, b"t", &AS_IT_IS).await.unwrap();
        let [(path, error)] = &report.failed[..] else { panic!("{:?}", report.failed) };
        assert!(*path == format!("t/{bad}").into_bytes() && error.is_loss(), "{error}");
        assert_eq!(report.files, 3, "the directory and all but one");
        assert!(matches!(find(&system, &format!("t/{bad}")).await, Err(FileError::NoEntry)));
        for name in names.iter().filter(|name| **name != bad) {
            let (source, copy) = (format!("s/{name}"), format!("t/{name}"));
            let (source, copy) = (find(&system, &source).await.unwrap(), find(&system, &copy).await.unwrap());
            assert!(read_all(&system, source).await == read_all(&system, copy).await, "{name}");
        }
        expect_no_orphans(&system).await;
    });
}

/// It has what was kept of its source, and else what is its own.
#[test]
fn a_large_file_is_described_as_any_other() {
    let machine = without_access_times(79);
    let mut system = machine.open();
    let expect = async |system: &FileSystem| {
        let (kept, again) = (find(system, "t/large").await.unwrap(), find(system, "t/again").await.unwrap());
        assert_eq!(kept, again);
        let attributes = system.attributes(kept).await.unwrap();
        assert_eq!((attributes.mode, attributes.uid, attributes.gid, attributes.links), (0o4751, 5, 6, 2));
        assert_eq!((attributes.modified, attributes.accessed), (Timestamp::new(5000, 1), Timestamp::new(5000, 1)));
        assert_eq!(attributes.allocated, 20_000 + 4998 * 8);
        assert_eq!(system.xattr(kept, b"user.tag").await.unwrap()[..], *b"value");
        let (anew, other) = (find(system, "u/large").await.unwrap(), find(system, "u/again").await.unwrap());
        assert_ne!(anew, other);
        let attributes = system.attributes(anew).await.unwrap();
        assert_eq!((attributes.mode, attributes.uid, attributes.gid, attributes.links), (0o740, 7, 8, 1));
        assert!(attributes.modified != Timestamp::new(5000, 1) && attributes.accessed != Timestamp::new(5000, 1));
        assert!(matches!(system.xattr(anew, b"user.tag").await, Err(FileError::NoAttribute)));
        assert!(read_all(system, kept).await == read_all(system, anew).await);
    };
    machine.run(async {
        let top = create(&system, FileId::ROOT, "s", Kind::Directory).await.file;
        let large = pieces(&system, top, "large", 1).await;
        system.link(large, top, b"again").await.unwrap();
        system.set_xattr(large, b"user.tag", b"value", XattrMode::Set, false).await.unwrap();
        system.sync_all().await.unwrap();
        let time = Some(TimeChange::At(Timestamp::new(5000, 1)));
        let change = AttributeChange {
            mode: Some(0o4751),
            uid: Some(5),
            gid: Some(6),
            modified: time,
            accessed: time,
            ..AttributeChange::default()
        };
        system.set_attributes(large, &change).await.unwrap();
        let anew = Some(Anew { uid: 7, gid: 8, umask: 0o017 });
        for (to, how, files) in [("t", AS_IT_IS, 2), ("u", BatchCopy { anew, ..AS_IT_IS }, 3)] {
            let report = system.batch_copy(Node::live(top), FileId::ROOT, to.as_bytes(), &how).await.unwrap();
            assert!(report.failed.is_empty(), "{:?}", report.failed);
            assert_eq!(report.files, files);
        }
        expect(&system).await;
        system.sync_all().await.unwrap();
    });
    system = machine.power_cycle(system);
    machine.run(expect(&system));
    machine.check(&system);
}

/// So many files that several units are written.
async fn many(system: &FileSystem) -> (FileId, FileId) {
    let top = create(system, FileId::ROOT, "s", Kind::Directory).await.file;
    for number in 0..7000 {
        create(system, top, &format!("{number:0>200}"), Kind::Regular).await;
    }
    (top, create(system, FileId::ROOT, "into", Kind::Directory).await.file)
}

/// Each name comes once, with the directory that it is in; a directory that has its name already is told of without it.
#[test]
fn what_is_written_is_told_unit_by_unit() {
    let machine = without_access_times(84);
    let system = machine.open();
    machine.run(async {
        let (top, into) = many(&system).await;
        pieces(&system, top, "large", 1).await;
        let told = Mutex::new(Vec::new());
        let written = |entries: &[BatchEntry], report: &BatchWriteReport| {
            let unit = entries.iter().zip(&report.fates).zip(&report.homes);
            let unit = unit.map(|((entry, fate), home)| (entry.path.clone(), *fate.as_ref().unwrap(), *home));
            told.lock().push(unit.collect::<Vec<_>>());
        };
        let how = BatchCopy { written: &written, ..AS_IT_IS };
        let report = system.batch_copy(Node::live(top), into, b"t", &how).await.unwrap();
        assert_eq!(report.files, 7002);
        let copy = find(&system, "into/t").await.unwrap().file;
        let mut told = told.into_inner();
        assert_eq!(told.pop().unwrap(), [(b"t".to_vec(), copy, FileId::NONE)], "its times, once more");
        assert!(told.len() > 2, "{} units", told.len());
        let told: Vec<_> = told.concat();
        assert_eq!(told.len(), 7002);
        let paths: BTreeSet<_> = told.iter().map(|(path, _, _)| path).collect();
        assert_eq!(paths.len(), 7002);
        for (path, file, home) in &told {
            let (above, name) = if path == b"t" { (into, &path[..]) } else { (copy, &path[2..]) };
            let found = system.lookup(Node::live(above), name).await.unwrap().0;
            assert_eq!((found.file, above), (*file, *home));
        }
    });
}

#[test]
fn what_fails_of_a_unit_is_told_of_each_of_its_files() {
    let machine = without_access_times(80);
    let system = machine.open();
    machine.run(async {
        let (top, into) = many(&system).await;
        let meanwhile = async { system.remove_directory(FileId::ROOT, b"into").await.unwrap() };
        let report = copy_while(&system, Node::live(top), into, meanwhile).await.unwrap();
        assert!(report.failed.iter().all(|(_, error)| matches!(error, FileError::NoEntry)));
        let told: BTreeSet<_> = report.failed.iter().map(|(path, _)| path).collect();
        assert_eq!((told.len(), report.failed.len(), report.files), (7001, 7001, 0));
    });
    machine.check(&system);
}

#[test]
fn a_directory_that_vanishes_ends_no_copy() {
    let machine = without_access_times(81);
    let system = machine.open();
    machine.run(async {
        let (top, into) = many(&system).await;
        create(&system, top, "below", Kind::Directory).await;
        let meanwhile = async {
            system.batch_remove(FileId::ROOT, b"s").await.unwrap();
            system.finish_removals().await.unwrap();
        };
        let report = copy_while(&system, Node::live(top), into, meanwhile).await.unwrap();
        assert!(report.failed.is_empty(), "{:?}", report.failed);
        assert!(report.files > 1000);
    });
    machine.check(&system);
}

/// A large file lies in the branch of its directory, and no prune takes it while it has no name.
#[test]
fn a_large_file_is_copied_into_a_clone_that_is_pruned() {
    let machine = without_access_times(82);
    let mut system = machine.open();
    let (source, clone, expected) = machine.run(async {
        let source = create(&system, FileId::ROOT, "s", Kind::Directory).await.file;
        let large = pieces(&system, source, "large", 1).await;
        system.sync_all().await.unwrap();
        system.commit().await.unwrap();
        let clone = system.clone_tree(Node::live(source), FileId::ROOT, b"clone").await.unwrap().file;
        system.commit().await.unwrap();
        (Node::live(source), clone, read_all(&system, Node::live(large)).await)
    });
    system = machine.power_cycle(system);
    machine.run(async {
        let copy = async {
            assert!(system.batch_copy(source, clone, b"t", &AS_IT_IS).await.unwrap().failed.is_empty());
        };
        let pruned = async {
            while system.references().is_empty() {
                system.platform.tasks.sleep(Duration::from_micros(20)).await;
            }
            let [(nameless, 1)] = system.references()[..] else { panic!("one file") };
            assert_eq!(nameless.branch, clone.branch);
            let inode = system.live(nameless).await.unwrap();
            // Between its two steps.
            let _operation = inode.operation.lock().await;
            // What is clean is in the catalog that the prune makes, or nowhere.
            system.commit().await.unwrap();
            system.reclaim(&Reclaim { is_thorough: true, ..Reclaim::default() }).await.unwrap();
            assert!(system.counters.branches_pruned.value() > 0);
            assert!(system.references() == [(nameless, 1)] && find(&system, "clone/t/large").await.is_err());
        };
        let both: [Pin<Box<dyn Future<Output = ()>>>; 2] = [Box::pin(copy), Box::pin(pruned)];
        all(both).await;
        let copied = find(&system, "clone/t/large").await.unwrap();
        assert!(read_all(&system, copied).await == expected);
        system.sync_all().await.unwrap();
    });
    system = machine.power_cycle(system);
    machine.run(async {
        assert!(read_all(&system, find(&system, "clone/t/large").await.unwrap()).await == expected);
    });
    machine.check(&system);
}

#[test]
fn of_a_large_file_no_more_is_looked_at_than_goes_into_a_unit() {
    let machine = without_access_times(83);
    let system = machine.open();
    machine.run(async {
        let file = pieces(&system, FileId::ROOT, "large", 1).await;
        let inode = system.live(file).await.unwrap();
        let size = system.attributes(Node::live(file)).await.unwrap().size;
        let looks = async |limit| system.layers_within(&inode, 0..size, limit).await.unwrap();
        for bytes in [59_983, 0] {
            // Accepted, and then in the tree.
            assert!(looks((4998, u64::MAX)).await.is_none());
            assert!(bytes == 0 || looks((10_000, bytes)).await.is_none());
            let some = looks((10_000, bytes + 1)).await.unwrap();
            let all = system.layers(&inode, 0..size).await.unwrap();
            assert_eq!((some.settled.len(), some.memory.len()), (all.settled.len(), all.memory.len()));
            system.sync_all().await.unwrap();
            system.commit().await.unwrap();
        }
    });
}

/// Paths of a copy that are not there, and of which neither they nor a directory above was told.
async fn untold(system: &FileSystem, paths: &[String], report: &BatchCopyReport) -> Vec<String> {
    let told: BTreeSet<&[u8]> = report.failed.iter().map(|(path, _)| &path[..]).collect();
    let mut untold = Vec::new();
    for path in paths {
        let mut above = path.as_bytes().split(|byte| *byte == b'/').scan(Vec::new(), |names, name| {
            names.push(name);
            Some(names.join(&b'/'))
        });
        if find(system, path).await.is_err() && !above.any(|path| told.contains(&path[..])) {
            untold.push(path.clone());
        }
    }
    untold
}

#[test]
fn who_wants_no_more_of_a_copy_hears_what_is_missing() {
    let machine = without_access_times(86);
    let system = machine.open();
    machine.run(async {
        let (top, into) = many(&system).await;
        let how = BatchCopy { tell: &|_, _| false, ..AS_IT_IS };
        let report = system.batch_copy(Node::live(top), into, b"t", &how).await.unwrap();
        assert!(matches!(report.ended, Some(FileError::Busy(_))), "{:?}", report.ended);
        assert!(0 < report.files && report.files < 7000, "{}", report.files);
        let paths: Vec<String> = (0..7000).map(|number| format!("into/t/{number:0>200}")).collect();
        let failed = report.failed.into_iter().map(|(path, error)| ([b"into/", &path[..]].concat(), error)).collect();
        let report = BatchCopyReport { failed, ..report };
        assert_eq!(untold(&system, &paths, &report).await, Vec::<String>::new());
    });
    machine.check(&system);
}
