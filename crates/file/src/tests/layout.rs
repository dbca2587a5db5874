//! Layout upkeep in the background: what lies scattered comes together by itself, beside everything else.

use std::sync::Arc;
use std::time::Duration;

use base::id::FileId;
use parking_lot::Mutex;

use super::batch_optimize::{expect_all, scattered};
use super::batch_read::{read, reopen};
use super::{Machine, create, read_all};
use crate::{BatchOptimize, FileSystem, Kind, Node, Options, Reclaim};

const MEMORY: u64 = 64 << 20;
const DAY: Duration = Duration::from_secs(24 * 3600);

fn options() -> Options {
    Options { layout_interval: DAY, ..Options::default() }
}

/// Waits until a pass has ended, or the power is gone.
async fn pass(machine: &Machine, system: &FileSystem) {
    let platform = machine.world.platform();
    let before = system.counters.layout_passes.value();
    while system.counters.layout_passes.value() == before && machine.world.is_powered() {
        platform.tasks.sleep(Duration::from_secs(1)).await;
    }
}

#[test]
fn scattered_files_are_together_after_a_pass_and_the_next_one_writes_nothing() {
    let machine = Machine::with(1, 2 << 30, options());
    let system = machine.open();
    let nodes = machine.run(scattered(&machine, &system, 100));
    let system = reopen(&machine, system);
    machine.run(async {
        let (before, _) = read(&system, &nodes, MEMORY).await;
        let from = machine.world.elapsed();
        pass(&machine, &system).await;
        assert!(machine.world.elapsed() - from < Duration::from_secs(2 * 3600), "soon after the start");
        let status = system.layout_status();
        assert!(status.report.runs_before > 60 && status.report.runs_after <= 3, "{status:?}");
        assert_eq!((status.report.files, status.report.failed, status.report.is_done), (100, 0, true));
        let (after, _) = read(&system, &nodes, MEMORY).await;
        assert!(after.ordered.runs * 20 < before.ordered.runs, "{before:?} {after:?}");
        let written = system.store.counters().rewritten_bytes.value();
        pass(&machine, &system).await;
        assert!(system.layout_status().ended.unwrap() < Duration::from_secs(3600));
        assert_eq!(system.store.counters().rewritten_bytes.value(), written);
        expect_all(&system, &nodes).await;
    });
    let system = reopen(&machine, system);
    machine.check(&system);
}

#[test]
fn nothing_moves_where_nobody_asked_or_room_is_scarce() {
    let machine = Machine::with(2, 2 << 30, Options::default());
    let system = machine.open();
    machine.run(scattered(&machine, &system, 30));
    machine.world.run_for(3 * DAY).unwrap();
    assert_eq!(system.store.counters().rewritten_bytes.value(), 0, "the interval is not set");
    machine.run(system.close()).unwrap();

    let machine = Machine::with(3, 2 << 30, options());
    let system = machine.open();
    machine.run(scattered(&machine, &system, 30));
    machine.disk.set_capacity(330 << 20);
    machine.world.run_for(Duration::from_secs(4 * 3600)).unwrap();
    let status = system.layout_status();
    assert_eq!((system.store.counters().rewritten_bytes.value(), status.ended), (0, None), "{status:?}");
    assert_eq!(status.obstacle, Some("room is scarce"));
    // It is tried again before a day has gone by.
    machine.disk.set_capacity(2 << 30);
    machine.run(pass(&machine, &system));
    assert!(system.layout_status().report.bytes > 0 && system.layout_status().obstacle.is_none());
    machine.run(system.close()).unwrap();
}

/// Changes of all kinds beside a pass. What the files are to be.
async fn work(system: &FileSystem, small: FileId, from: u64) -> Vec<(FileId, Vec<u8>)> {
    let mut files = Vec::new();
    for number in from..from + 20 {
        let name = format!("new{number}");
        let file = create(system, small, &name, Kind::Regular).await.file;
        let bytes = super::content::pattern(2000 + number as usize, 7000 + number);
        system.write(file, 0, &bytes, false).await.unwrap();
        match number % 4 {
            0 => system.sync(file).await.unwrap(),
            1 => system.sync_all().await.unwrap(),
            2 => {
                system.remove_file(small, name.as_bytes()).await.unwrap();
                continue;
            }
            _ => {}
        }
        files.push((file, bytes));
    }
    files
}

#[test]
fn writers_and_reclaim_beside_a_pass_lose_nothing() {
    for seed in 10..16 {
        let machine = Machine::with(seed, 2 << 30, options());
        let system = machine.open();
        let nodes = machine.run(scattered(&machine, &system, 60));
        let platform = machine.world.platform();
        let files = machine.run(async {
            let small = system.lookup(Node::live(FileId::ROOT), b"small").await.unwrap().0.file;
            let passes = Arc::clone(&system);
            platform.tasks.spawn(
                "reclaim",
                Box::pin(async move {
                    for _ in 0..20 {
                        passes.reclaim(&Reclaim { is_thorough: true, ..Reclaim::default() }).await.unwrap();
                    }
                }),
            );
            let report = Arc::new(Mutex::new(None));
            let (optimizing, told) = (Arc::clone(&system), Arc::clone(&report));
            platform.tasks.spawn(
                "optimize",
                Box::pin(async move {
                    let done = optimizing.batch_optimize(FileId::ROOT, &BatchOptimize::default()).await;
                    *told.lock() = Some(done.unwrap());
                }),
            );
            let (mut files, mut from) = (Vec::new(), 0);
            while report.lock().is_none() {
                files.extend(work(&system, small, from).await);
                from += 20;
            }
            let report = report.lock().take().unwrap();
            assert!(report.is_done && report.bytes > 0, "{report:?}");
            files
        });
        machine.run(async {
            expect_all(&system, &nodes).await;
            system.reclaim(&Reclaim { is_thorough: true, ..Reclaim::default() }).await.unwrap();
            for (file, bytes) in &files {
                assert!(read_all(&system, Node::live(*file)).await == *bytes);
            }
            expect_all(&system, &nodes).await;
        });
        machine.check(&system);
        machine.run(system.close()).unwrap();
    }
}

#[test]
fn a_power_cut_beside_a_pass_loses_nothing() {
    for cut in 0.. {
        let mut machine = Machine::with(200 + cut, 2 << 30, Options::default());
        let system = machine.open();
        let nodes = machine.run(scattered(&machine, &system, 20));
        // It begins when this much has gone by. In the hour that people have the disk is measured, over and over, and most cuts would be there.
        machine.options.layout_interval = Duration::from_secs(10);
        let system = reopen(&machine, system);
        machine.world.cut_power_at(machine.world.operations() + cut);
        machine.run(pass(&machine, &system));
        let (is_through, rewritten) = (machine.world.is_powered(), system.store.counters().rewritten_bytes.value());
        drop(system);
        machine.world.restart();
        let system = machine.open();
        machine.check(&system);
        machine.run(async {
            expect_all(&system, &nodes).await;
            system.reclaim(&Reclaim { is_thorough: true, ..Reclaim::default() }).await.unwrap();
            expect_all(&system, &nodes).await;
        });
        if is_through {
            assert!(rewritten > 0 && cut > 20, "there was nothing to lose");
            return;
        }
    }
}
