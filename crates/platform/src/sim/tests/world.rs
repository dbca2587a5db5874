//! Schedule, clocks and the death of tasks.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::disk::Open;
use crate::sim::{Halt, World, each_seed};
use crate::task::{First, first, yield_now};

const MILLISECOND: Duration = Duration::from_millis(1);

#[test]
fn sleeps_end_in_the_order_of_their_deadlines() {
    each_seed(0..20, |seed| {
        let world = World::new(seed);
        let platform = world.platform();
        let woken = Arc::new(Mutex::new(Vec::new()));
        for length in [30_u32, 10, 20] {
            let (woken, sleep) = (woken.clone(), platform.tasks.sleep(MILLISECOND * length));
            platform.tasks.spawn(
                "sleeper",
                Box::pin(async move {
                    sleep.await;
                    woken.lock().push(length);
                }),
            );
        }
        world.run_for(Duration::from_secs(1)).unwrap();
        assert_eq!(*woken.lock(), [10, 20, 30]);
        assert_eq!(world.elapsed(), Duration::from_secs(1));
    });
}

#[test]
fn a_dropped_sleep_does_not_move_the_clock() {
    let world = World::new(1);
    let tasks = world.platform().tasks;
    let won = world.run_until(first(tasks.sleep(MILLISECOND), tasks.sleep(Duration::from_secs(3600)))).unwrap();
    assert!(matches!(won, First::Left(())));
    assert_eq!(world.elapsed(), MILLISECOND);
    assert!(matches!(world.run_until(std::future::pending::<()>()), Err(Halt::Deadlock { .. })));
    assert_eq!(world.elapsed(), MILLISECOND);
}

#[test]
fn a_deadlock_is_reported_with_those_who_wait() {
    let world = World::new(1);
    let (never, bell) = oneshot::channel::<()>();
    world.platform().tasks.spawn("keeper", Box::pin(async move { bell.await.expect("the sender lives") }));
    let outcome = world.run_until(Notify::new().notified());
    assert_eq!(outcome, Err(Halt::Deadlock { waiting: vec!["keeper".to_owned()] }));
    // The tasks are still there and go on when there is something to do.
    never.send(()).expect("the receiver lives");
    world.run_for(MILLISECOND).unwrap();
    assert_eq!(
        world.run_until(std::future::pending::<()>()),
        Err(Halt::Deadlock { waiting: Vec::new() }),
        "the keeper is done"
    );
}

#[test]
fn a_circle_ends_at_the_step_limit() {
    let world = World::new(1);
    world.set_step_limit(1000);
    let circle = async {
        loop {
            yield_now().await;
        }
    };
    assert_eq!(world.run_until(circle), Err::<(), _>(Halt::StepLimit { steps: 1000 }));
}

#[test]
fn other_seeds_are_other_schedules() {
    let order_of = |seed| {
        let world = World::new(seed);
        let order = Arc::new(Mutex::new(Vec::new()));
        for number in 0..5 {
            let order = order.clone();
            let task = async move {
                yield_now().await;
                order.lock().push(number);
            };
            world.platform().tasks.spawn("racer", Box::pin(task));
        }
        world.run_for(MILLISECOND).unwrap();
        order.lock().clone()
    };
    let orders: std::collections::BTreeSet<Vec<i32>> = (0..50).map(order_of).collect();
    assert!(orders.len() > 20, "only {} orders in 50 seeds", orders.len());
}

#[test]
fn the_same_seed_makes_the_same_trace() {
    let trace_of = |seed| {
        let world = World::new(seed);
        let disk = world.disk("d", 1 << 20);
        let platform = world.platform();
        for number in 0..4_u8 {
            let (disk, chance) = (disk.disk(), platform.chance.clone());
            let task = async move {
                let file = disk.open(&format!("{number}"), Open::Create).unwrap();
                for round in 0..10_u64 {
                    let mut bytes = [0; 100];
                    chance.fill(&mut bytes);
                    file.write_at(round * 77, &bytes).await.unwrap();
                    file.sync().await.unwrap();
                }
            };
            platform.tasks.spawn("writer", Box::pin(task));
        }
        world.run_for(Duration::from_secs(1)).unwrap();
        world.restart();
        (world.trace(), disk.snapshot_files(), world.operations())
    };
    each_seed(0..10, |seed| {
        assert_eq!(trace_of(seed), trace_of(seed));
        assert_ne!(trace_of(seed).0, trace_of(seed + 1).0);
    });
}

#[test]
fn the_wall_clock_steps_and_elapsed_does_not() {
    let world = World::new(1);
    let clock = world.platform().clock;
    world.run_for(MILLISECOND).unwrap();
    let before = clock.now();
    world.step_clock(-2_000_000_000);
    assert_eq!((before.seconds - clock.now().seconds, clock.now().nanos), (2, before.nanos));
    assert_eq!(clock.elapsed(), MILLISECOND);
    world.step_clock(-1_000_001);
    assert_eq!(clock.now().nanos, 999_999_999, "seconds round to the past");
}

#[test]
fn a_crash_drops_tasks_and_destructors_reach_no_disk() {
    struct Parting(crate::disk::Disk, Arc<dyn crate::task::Tasks>);
    impl Drop for Parting {
        fn drop(&mut self) {
            assert!(self.0.open("late", Open::Create).is_err());
            self.1.spawn("ghost", Box::pin(async { panic!("spawned by the dead") }));
        }
    }
    let world = World::new(1);
    let disk = world.disk("d", 1 << 20);
    let tasks = world.platform().tasks;
    let parting = Parting(disk.disk(), tasks.clone());
    let task = async move {
        std::future::pending::<()>().await;
        drop(parting);
    };
    tasks.spawn("doomed", Box::pin(task));
    world.run_for(MILLISECOND).unwrap();
    world.crash();
    assert!(world.is_powered());
    world.run_for(MILLISECOND).unwrap();
    assert!(disk.snapshot_files().is_empty());
}

#[test]
fn compute_runs_every_job() {
    let world = World::new(3);
    let squares = crate::task::parallel(&world.platform().tasks, (0..100_u64).collect(), |n| n * n);
    assert_eq!(squares, (0..100).map(|n| n * n).collect::<Vec<u64>>());
}
