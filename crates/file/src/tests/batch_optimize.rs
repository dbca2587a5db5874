//! Small files that are brought together: nothing changes but where they lie.

use base::id::FileId;
use parking_lot::Mutex;

use super::batch_read::{read, reopen, small_files};
use super::batch_walk::with_damaged_leaf;
use super::content::pattern;
use super::{Machine, create};
use crate::{BatchOptimize, BatchOptimizeReport, FileError, FileSystem, Kind, Node, Options, Reclaim, Share};

const BYTES: usize = 3000;
const MEMORY: u64 = 64 << 20;
const ALL: BatchOptimize<'_> = BatchOptimize {
    small_bytes: 64 << 10,
    is_rehearsal: false,
    share: Share::FULL,
    tell: &|_, _| true,
    fail: &|_, _| (),
};

async fn optimize(system: &FileSystem) -> Result<BatchOptimizeReport, FileError> {
    system.batch_optimize(FileId::ROOT, &ALL).await
}

pub(super) async fn expect_all(system: &FileSystem, nodes: &[Node]) {
    let (report, fates) = read(system, nodes, MEMORY).await;
    assert!(report.is_done);
    for (index, fate) in fates {
        assert!(fate.unwrap().1 == pattern(BYTES, nodes[index].file.number), "{index}");
    }
}

/// Small files with large ones in between, so that they lie far from each other.
pub(super) async fn scattered(machine: &Machine, system: &FileSystem, count: u64) -> Vec<Node> {
    let mut nodes = Vec::new();
    let large = create(system, FileId::ROOT, "large", Kind::Regular).await.file;
    let small = create(system, FileId::ROOT, "small", Kind::Directory).await.file;
    for number in 0..count {
        let file = create(system, small, &format!("f{number}"), Kind::Regular).await.file;
        system.write(file, 0, &pattern(BYTES, file.number), false).await.unwrap();
        system.write(large, number * 300_000, &pattern(300_000, 900_000 + number), false).await.unwrap();
        system.sync_all().await.unwrap();
        nodes.push(Node::live(file));
    }
    system.commit().await.unwrap();
    (1..nodes.len()).for_each(|last| nodes.swap(last, machine.world.below(last as u64 + 1) as usize));
    nodes
}

#[test]
fn small_files_that_lie_scattered_are_brought_together_and_their_old_room_comes_back() {
    let machine = Machine::with(1, 2 << 30, Options::default());
    let system = machine.open();
    let nodes = machine.run(scattered(&machine, &system, 100));
    let system = reopen(&machine, system);
    machine.run(async {
        let (before, _) = read(&system, &nodes, MEMORY).await;
        let report = optimize(&system).await.unwrap();
        assert!(report.is_done && report.runs_before > 60 && report.runs_after <= 2, "{report:?}");
        assert!(report.bytes < 100 * (BYTES as u64 + 100));
        assert_eq!(optimize(&system).await.unwrap().bytes, 0, "once");
        let (after, _) = read(&system, &nodes, MEMORY).await;
        assert!(after.ordered.runs * 20 < before.ordered.runs, "{before:?} {after:?}");
        expect_all(&system, &nodes).await;
    });
    let system = reopen(&machine, system);
    machine.check(&system);
    machine.run(async {
        expect_all(&system, &nodes).await;
        let how = Reclaim { is_thorough: true, ..Reclaim::default() };
        let report = system.reclaim(&how).await.unwrap();
        assert!(report.bytes_freed > 0, "{report:?}");
        expect_all(&system, &nodes).await;
        assert_eq!(optimize(&system).await.unwrap().bytes, 0, "they stay together");
    });
    machine.check(&system);
}

#[test]
fn what_lies_together_is_left_alone_and_who_has_enough_ends_it() {
    let machine = Machine::with(2, 2 << 30, Options::default());
    let system = machine.open();
    machine.run(async {
        small_files(&machine, &system, 500, BYTES).await;
        let report = optimize(&system).await.unwrap();
        assert_eq!((report.files, report.bytes, report.is_done), (500, 0, true));
        let ended = BatchOptimize { tell: &|_, _| false, ..ALL };
        assert!(!system.batch_optimize(FileId::ROOT, &ended).await.unwrap().is_done);
        let file = create(&system, FileId::ROOT, "file", Kind::Regular).await.file;
        assert!(matches!(system.batch_optimize(file, &ALL).await, Err(FileError::NotDirectory)));
    });
}

#[test]
fn a_power_cut_while_files_move_loses_nothing() {
    let mut is_through = false;
    for cut in (0..).step_by(3) {
        let machine = Machine::with(100 + cut, 2 << 30, Options::default());
        let system = machine.open();
        let nodes = machine.run(scattered(&machine, &system, 12));
        machine.world.cut_power_at(machine.world.operations() + cut);
        let done = machine.world.run_until(async {
            optimize(&system).await?;
            system.sync_all().await?;
            system.reclaim(&Reclaim { is_thorough: true, ..Reclaim::default() }).await.map(drop)
        });
        drop(system);
        machine.world.restart();
        let system = machine.open();
        machine.check(&system);
        machine.run(async {
            expect_all(&system, &nodes).await;
            system.reclaim(&Reclaim { is_thorough: true, ..Reclaim::default() }).await.unwrap();
            expect_all(&system, &nodes).await;
        });
        if matches!(done, Ok(Ok(()))) {
            is_through = true;
            break;
        }
    }
    assert!(is_through);
}

/// Files of one directory lie between those of another; or each directory lies together, far from the next.
#[test]
fn directories_are_brought_together_each_and_one_after_the_other() {
    for (seed, directories, files, bytes) in [(5, 2, 40, 200_000), (6, 40, 3, 2000)] {
        let machine = Machine::with(seed, 2 << 30, Options::default());
        let system = machine.open();
        let (count, report) = machine.run(async {
            let top = create(&system, FileId::ROOT, "top", Kind::Directory).await.file;
            let large = create(&system, FileId::ROOT, "large", Kind::Regular).await.file;
            let mut all = Vec::new();
            for number in 0..directories {
                all.push(create(&system, top, &format!("d{number}"), Kind::Directory).await.file);
            }
            let names = (0..files).flat_map(|file| (0..directories).map(move |directory| (directory, file)));
            let mut names: Vec<(usize, u64)> = names.collect();
            if directories > files as usize {
                names.sort_unstable();
            }
            let mut last = 0;
            for (directory, number) in names {
                if directory != last && directories > files as usize {
                    system.write(large, directory as u64 * 300_000, &pattern(300_000, number), false).await.unwrap();
                }
                last = directory;
                let file = create(&system, all[directory], &format!("f{number}"), Kind::Regular).await.file;
                system.write(file, 0, &pattern(bytes, file.number), false).await.unwrap();
                system.sync_all().await.unwrap();
            }
            system.commit().await.unwrap();
            let how = BatchOptimize { small_bytes: 1 << 20, is_rehearsal: true, ..ALL };
            let plan = system.batch_optimize(top, &how).await.unwrap();
            assert_eq!((plan.runs_after, plan.is_done), (plan.runs_before, true));
            assert_eq!(system.store.counters().rewritten_bytes.value(), 0, "a rehearsal");
            let how = BatchOptimize { is_rehearsal: false, ..how };
            let done = system.batch_optimize(top, &how).await.unwrap();
            assert_eq!((done.runs_before, done.runs_min, done.bytes), (plan.runs_before, plan.runs_min, plan.bytes));
            assert_eq!(system.batch_optimize(top, &how).await.unwrap().bytes, 0, "once (I-140)");
            (directories as u64 * files, done)
        });
        assert_eq!((report.files, report.failed), (count, 0));
        assert!(report.runs_before >= 20 && report.runs_after <= report.runs_min + 4, "{report:?}");
    }
}

/// A few files that were added to a directory beside much that lies together.
#[test]
fn few_files_among_much_that_lies_together_are_brought_together() {
    let machine = Machine::with(8, 2 << 30, Options::default());
    let system = machine.open();
    machine.run(async {
        let beside = create(&system, FileId::ROOT, "beside", Kind::Directory).await.file;
        for number in 0..60 {
            let file = create(&system, beside, &format!("f{number}"), Kind::Regular).await.file;
            system.write(file, 0, &pattern(200_000, 800 + number), false).await.unwrap();
        }
        system.sync_all().await.unwrap();
        scattered(&machine, &system, 5).await;
        let how = BatchOptimize { small_bytes: 1 << 20, ..ALL };
        let report = system.batch_optimize(FileId::ROOT, &how).await.unwrap();
        assert!((5 * BYTES as u64..100_000).contains(&report.bytes), "nothing but those: {report:?}");
        assert_eq!(system.batch_optimize(FileId::ROOT, &how).await.unwrap().bytes, 0, "once (I-140)");
    });
}

#[test]
fn damaged_content_is_left_where_it_lies_and_the_rest_goes_on() {
    let machine = Machine::with(7, 2 << 30, Options::default());
    let system = machine.open();
    let nodes = machine.run(scattered(&machine, &system, 60));
    let bad = super::batch_read::data_chunk_place(&machine, &system, nodes[5]);
    machine.run(system.close()).unwrap();
    drop(system);
    machine.disk.flip_bit(&bad.0, bad.1 + 100, 1);
    machine.world.restart();
    let system = machine.open();
    machine.run(async {
        let report = optimize(&system).await.unwrap();
        assert_eq!((report.files, report.is_done), (60, true), "where content lies is known without reading it");
        assert!(report.bytes > 0 && report.runs_after <= 3, "{report:?}");
        let (_, fates) = read(&system, &nodes, MEMORY).await;
        assert!(fates.iter().all(|(index, fate)| fate.is_err() == (*index == 5)));
    });
}

#[test]
fn what_cannot_be_read_is_named_and_the_rest_goes_on() {
    let machine = Machine::new(12);
    let (system, _) = with_damaged_leaf(&machine);
    let failed = Mutex::new(Vec::new());
    let fail = |path: &[u8], error: FileError| failed.lock().push((String::from_utf8(path.to_vec()), error.is_loss()));
    let report = machine.run(system.batch_optimize(FileId::ROOT, &BatchOptimize { fail: &fail, ..ALL })).unwrap();
    assert!(report.is_done && report.failed == 1 && (2400..3000).contains(&report.files), "{report:?}");
    assert_eq!(*failed.lock(), [(Ok("d1".to_owned()), true)]);
}
