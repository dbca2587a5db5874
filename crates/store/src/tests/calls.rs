//! Each call to a disk fails once, by itself, whichever it is: M-9.
//!
//! The same work is done again and again, and each time another of its operations fails. Whether the node goes on or has to be opened again: nothing
//! that was promised is lost, and the disks find nothing wrong afterwards.

use std::ops::Range;
use std::panic::catch_unwind;

use platform::disk::DiskErrorKind;
use platform::sim::{each_seed, seeds_asked_for};

use super::crash::Run;
use crate::Depth;

/// Operations of the work.
const OPERATIONS: u64 = 24;

/// An opening, the work, and a close. `fails`: what number fails, and how.
fn work(seed: u64, fails: Option<(u64, DiskErrorKind)>) -> u64 {
    let run = Run::new(seed);
    let world = &run.machine.world;
    let begun = world.operations();
    if let Some((number, kind)) = fails {
        world.fail_at(begun + number, kind);
    }
    if let Ok((store, _)) = run.machine.try_open() {
        run.live(&store, OPERATIONS);
        let _ = run.machine.run(store.close());
    }
    let done = world.operations() - begun;
    // Half of them lose the power too: what a call that failed has left half done may be gone then.
    if fails.is_some_and(|(number, _)| number % 2 == 0) {
        world.restart();
    } else {
        // What has not failed until now is not to fail in what follows.
        world.fail_at(u64::MAX, DiskErrorKind::Failed);
        world.crash();
    }
    let (store, recovered) = run.machine.open();
    run.verify(&store, &recovered);
    run.machine.run(async {
        let report = store.check(Depth::Deep, &|_, _| {}).await;
        // A pack whose only chunks are half written is set aside: nobody can tell that from one that rotted.
        let problems: Vec<_> = report.problems.iter().filter(|problem| problem.code != "HF0017").collect();
        assert!(problems.is_empty(), "{problems:?}");
        store.close().await.unwrap();
    });
    done
}

/// Of these seeds one operation of `step`, each seed others.
fn each_call(kind: DiskErrorKind, seeds: Range<u64>, step: u64) {
    let mut wrong = Vec::new();
    each_seed(seeds, |seed| {
        let count = work(seed, None);
        assert!(count > 100, "{count} operations are no work");
        for number in (1 + seed % step..=count).step_by(usize::try_from(step).unwrap()) {
            // All that go wrong are told, for often they are one.
            if catch_unwind(|| work(seed, Some((number, kind)))).is_err() {
                wrong.push((seed, number));
            }
        }
    });
    assert!(wrong.is_empty(), "{kind:?}, seed and operation: {wrong:?}");
}

#[test]
fn any_call_may_fail() {
    each_call(DiskErrorKind::Failed, 0..3, 7);
}

#[test]
fn any_call_may_find_no_room() {
    each_call(DiskErrorKind::Full, 0..3, 7);
}

#[test]
fn any_call_may_find_that_nothing_can_be_changed() {
    each_call(DiskErrorKind::ReadOnly, 0..3, 7);
}

#[test]
fn any_call_may_give_no_answer() {
    each_call(DiskErrorKind::Silent, 0..3, 7);
}

/// Every call of each seed, by hand.
#[test]
fn put_your_seed_here() {
    for kind in [DiskErrorKind::Failed, DiskErrorKind::Full, DiskErrorKind::ReadOnly, DiskErrorKind::Silent] {
        each_call(kind, seeds_asked_for(), 1);
    }
}
