//! Small files that are brought together: nothing changes but where they lie.

use base::id::FileId;

use super::batch_read::{read, reopen, small_files};
use super::content::pattern;
use super::{Machine, create};
use crate::{BatchOptimize, BatchOptimizeReport, FileError, FileSystem, Kind, Node, Options, Reclaim};

const BYTES: usize = 3000;
const MEMORY: u64 = 64 << 20;
const ALL: BatchOptimize<'_> = BatchOptimize { small_bytes: 64 << 10, tell: &|_, _| true };

async fn optimize(system: &FileSystem) -> Result<BatchOptimizeReport, FileError> {
    system.batch_optimize(FileId::ROOT, &ALL).await
}

async fn expect_all(system: &FileSystem, nodes: &[Node]) {
    let (report, fates) = read(system, nodes, MEMORY).await;
    assert!(report.is_done);
    for (index, fate) in fates {
        assert!(fate.unwrap().1 == pattern(BYTES, nodes[index].file.number), "{index}");
    }
}

/// Small files with large ones in between, so that they lie far from each other.
async fn scattered(machine: &Machine, system: &FileSystem, count: u64) -> Vec<Node> {
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
