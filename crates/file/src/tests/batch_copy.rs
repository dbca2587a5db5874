//! Trees that are copied within the file system.

use std::sync::atomic::{AtomicU64, Ordering};

use base::id::FileId;
use base::time::Timestamp;

use super::batch_read::data_chunk_place;
use super::content::pattern;
use super::{Machine, create, find, list, read_all};
use crate::{
    Anew, AttributeChange, BatchCopy, FileError, FileSystem, Kind, NewFile, Node, Options, Reclaim, TimeChange,
    XattrMode,
};

const AS_IT_IS: BatchCopy<'_> = BatchCopy { anew: None, tell: &|_, _| {} };

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
        let tell = |files, _| told.store(files, Ordering::Relaxed);
        let report = system.batch_copy(from, FileId::ROOT, b"t", &BatchCopy { anew: None, tell: &tell }).await.unwrap();
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
