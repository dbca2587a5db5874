//! Warming up: who reads next what was read waits for no disk.

use std::sync::Arc;

use base::id::FileId;
use parking_lot::Mutex;
use platform::sim::Platter;

use super::batch_read::{data_chunk_place, reopen, small_files};
use super::content::pattern;
use super::{Machine, create, find, list, new, read_all};
use crate::{BatchWarm, BatchWarmReport, FileError, FileSystem, Kind, NewFile, Node, Options, StoreOptions, View};

const ROOT: Node = Node { view: View::LIVE, file: FileId::ROOT };

type Failed = Vec<(usize, String, FileError)>;

async fn warm(system: &FileSystem, roots: &[Node], is_metadata_only: bool) -> (BatchWarmReport, Failed) {
    let failed = Mutex::new(Vec::new());
    let fail = |root: usize, path: &[u8], error: FileError| {
        failed.lock().push((root, String::from_utf8_lossy(path).into_owned(), error));
    };
    let how = BatchWarm { is_metadata_only, tell: &|_, _| true, fail: &fail };
    let report = system.batch_warm(roots, &how).await.unwrap();
    assert_eq!(report.failed, failed.lock().len() as u64);
    assert!(report.held_bytes <= report.room_bytes, "{report:?}");
    (report, failed.into_inner())
}

/// Reads of the disk, by its own account, while this is done.
async fn reads_of<T>(machine: &Machine, work: impl Future<Output = T>) -> (usize, T) {
    drop(machine.disk.take_placed());
    let done = work.await;
    (machine.disk.take_placed().iter().filter(|placed| !placed.is_write).count(), done)
}

/// Looks at every name below a directory, and reads every file where that is wanted. How many.
async fn read_tree(system: &FileSystem, top: Node, content: bool) -> u64 {
    let (mut names, mut directories) = (0, vec![top]);
    while let Some(directory) = directories.pop() {
        for name in list(system, directory, 100).await {
            let (node, attributes) = system.lookup(directory, name.as_bytes()).await.unwrap();
            match attributes.kind {
                Kind::Directory => directories.push(node),
                Kind::Regular if content => drop(read_all(system, node).await),
                Kind::Symlink => drop(system.read_link(node).await.unwrap()),
                _ => {}
            }
            names += 1;
        }
    }
    names
}

/// Small files, a large one, one with a hole, a link, the same content many times; and a snapshot of them, of which some is no more.
async fn tree(machine: &Machine, system: &FileSystem) {
    small_files(machine, system, 600, 3000).await;
    let large = create(system, FileId::ROOT, "large", Kind::Regular).await.file;
    for at in 0..6 {
        system.write(large, at << 20, &pattern(1 << 20, at), false).await.unwrap();
    }
    let sparse = create(system, FileId::ROOT, "sparse", Kind::Regular).await.file;
    system.write(sparse, 30 << 20, b"behind a hole", false).await.unwrap();
    let link = NewFile { target: b"elsewhere", ..new(Kind::Symlink) };
    system.create_file(FileId::ROOT, b"link", &link).await.unwrap();
    for number in 0..20 {
        let file = create(system, FileId::ROOT, &format!("same{number}"), Kind::Regular).await.file;
        system.write(file, 0, &pattern(40_000, 5), false).await.unwrap();
    }
    system.sync_all().await.unwrap();
    system.commit().await.unwrap();
    system.snapshot("then").await.unwrap();
    let directory = find(system, "d0").await.unwrap().file;
    for number in 0..50 {
        system.remove_file(directory, format!("f{number}").as_bytes()).await.unwrap();
    }
    system.sync_all().await.unwrap();
    system.commit().await.unwrap();
}

#[test]
fn after_a_warm_up_reading_everything_again_asks_no_disk() {
    for (seed, inodes_max) in [(1, 16), (2, 100_000)] {
        let machine = Machine::with(seed, 1 << 40, Options { inodes_max, access_times: false, ..Options::default() });
        let mut system = machine.open();
        machine.run(tree(&machine, &system));
        machine.disk.set_platter(Platter::SAS_7200);
        for (path, files) in [("", 572), (".snapshots/then", 622)] {
            for is_metadata_only in [true, false] {
                system = reopen(&machine, system);
                machine.run(async {
                    let top = if path.is_empty() { ROOT } else { find(&system, path).await.unwrap() };
                    let (reads, (report, failed)) = reads_of(&machine, warm(&system, &[top], is_metadata_only)).await;
                    assert!(report.is_done && !report.is_full && failed.is_empty(), "{report:?} {failed:?}");
                    assert_eq!((report.files, report.others, report.directories), (files, 1, 7));
                    assert!(reads > 0, "it was cold");
                    let (reads, names) = reads_of(&machine, read_tree(&system, top, !is_metadata_only)).await;
                    assert!(reads == 0 && names > files, "{path} {is_metadata_only}: {reads} reads for {names} names");
                });
            }
        }
    }
}

/// Roots that are files, one twice, and files of which something is in memory alone.
#[test]
fn roots_may_be_files_and_what_is_in_memory_alone_stays_there() {
    let machine = Machine::with(3, 1 << 40, Options { access_times: false, ..Options::default() });
    let mut system = machine.open();
    machine.run(tree(&machine, &system));
    machine.disk.set_platter(Platter::SAS_7200);
    system = reopen(&machine, system);
    machine.run(async {
        let (large, same) = (find(&system, "large").await.unwrap(), find(&system, "same1").await.unwrap());
        system.write(large.file, 2 << 20, b"changed", false).await.unwrap();
        system.write(same.file, 100, b"journaled", false).await.unwrap();
        system.sync(same.file).await.unwrap();
        let (report, failed) = warm(&system, &[large, same, large], false).await;
        assert!(report.is_done && failed.is_empty());
        assert_eq!((report.files, report.directories), (3, 0));
        let (reads, bytes) =
            reads_of(&machine, async { (read_all(&system, large).await, read_all(&system, same).await) }).await;
        assert_eq!(reads, 0);
        assert!(bytes.0[2 << 20..].starts_with(b"changed") && bytes.1[100..].starts_with(b"journaled"));
    });
}

#[test]
fn it_ends_when_memory_is_full_and_what_it_has_read_stays() {
    const CACHE: u64 = 4 << 20;
    let store = StoreOptions { cache_bytes: CACHE, ..StoreOptions::default() };
    let machine = Machine::with(4, 1 << 40, Options { access_times: false, store, ..Options::default() });
    let mut system = machine.open();
    machine.run(async {
        for directory in ["a", "b"] {
            let parent = create(&system, FileId::ROOT, directory, Kind::Directory).await.file;
            for number in 0..700_u64 {
                let file = create(&system, parent, &format!("f{number}"), Kind::Regular).await.file;
                system.write(file, 0, &pattern(10_000, file.number), false).await.unwrap();
            }
        }
        system.sync_all().await.unwrap();
        system.commit().await.unwrap();
    });
    machine.disk.set_platter(Platter::SAS_7200);
    system = reopen(&machine, system);
    machine.run(async {
        let (a, b) = (find(&system, "a").await.unwrap(), find(&system, "b").await.unwrap());
        for top in [a, b, a] {
            let (first, _) = warm(&system, &[top], false).await;
            assert!(first.is_full && !first.is_done, "{first:?}");
            assert!((300..360).contains(&first.files), "{first:?}");
            let (reads, (second, _)) = reads_of(&machine, warm(&system, &[top], false)).await;
            assert!(second.files >= first.files && second.is_full);
            assert_eq!(reads, 0, "all of it was there: {first:?} {second:?}");
        }
        let (reads, (report, _)) = reads_of(&machine, warm(&system, &[ROOT], true)).await;
        assert!(report.is_done && report.files == 1400, "{reads} {report:?}");
    });
    let store = StoreOptions { cache_bytes: 16 << 10, ..StoreOptions::default() };
    let machine = Machine { options: Options { store, ..machine.options.clone() }, ..machine };
    system = reopen(&machine, system);
    machine.run(async {
        let (report, _) = warm(&system, &[ROOT], true).await;
        assert!(report.is_full && !report.is_done, "trees alone fill it: {report:?}");
    });
}

#[test]
fn what_cannot_be_read_is_named_and_the_rest_is_read() {
    let machine = Machine::with(5, 1 << 40, Options { access_times: false, ..Options::default() });
    let system = machine.open();
    let nodes = machine.run(small_files(&machine, &system, 300, 5000));
    let places: Vec<_> = [7, 200].map(|number| data_chunk_place(&machine, &system, nodes[number])).into();
    machine.run(system.close()).unwrap();
    drop(system);
    places.iter().for_each(|(path, at)| machine.disk.flip_bit(path, at + 100, 2));
    machine.world.restart();
    let system = machine.open();
    machine.disk.set_platter(Platter::SAS_7200);
    machine.run(async {
        let (report, failed) = warm(&system, &[ROOT], false).await;
        assert_eq!((report.files, report.is_done), (298, true));
        for (root, path, error) in failed {
            let node = find(&system, &path).await.unwrap();
            assert!(root == 0 && error.is_loss() && (node == nodes[7] || node == nodes[200]), "{path}: {error}");
        }
        let gone = Node::live(FileId::main(1 << 40));
        let how = BatchWarm { is_metadata_only: false, tell: &|_, _| true, fail: &|_, _, _| () };
        let refused = system.batch_warm(&[ROOT, gone], &how).await;
        assert!(matches!(refused, Err((1, FileError::NoEntry))), "{refused:?}");
        let ended = BatchWarm { tell: &|_, _| false, ..how };
        let report = system.batch_warm(&[ROOT], &ended).await.unwrap();
        assert!(!report.is_done && !report.is_full);
    });
}

/// The end waits for it, and it for nobody.
#[test]
fn it_ends_with_the_file_system() {
    let machine = Machine::with(6, 1 << 40, Options::default());
    let system = machine.open();
    machine.run(small_files(&machine, &system, 2000, 3000));
    let system = reopen(&machine, system);
    machine.disk.set_platter(Platter::SAS_7200);
    let report = Arc::new(Mutex::new(None));
    let (warming, told) = (Arc::clone(&system), Arc::clone(&report));
    machine.world.platform().tasks.spawn(
        "warm",
        Box::pin(async move {
            let (done, _) = warm(&warming, &[ROOT], false).await;
            drop(warming);
            *told.lock() = Some(done);
        }),
    );
    machine.run(async {
        machine.world.platform().tasks.sleep(std::time::Duration::from_millis(50)).await;
        system.close().await.unwrap();
    });
    let report = report.lock().expect("it has ended");
    assert!(!report.is_done, "{report:?}");
}
