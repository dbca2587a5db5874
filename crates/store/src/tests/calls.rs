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
    end(&run, fails.is_some_and(|(number, _)| number % 2 == 0));
    verify(&run);
    done
}

/// The work, a death, and an opening of what that leaves; `fails`: what number of the opening fails, and how. Another opening has everything.
fn recovery(seed: u64, fails: Option<(u64, DiskErrorKind)>) -> u64 {
    let run = Run::new(seed);
    let world = &run.machine.world;
    let (store, _) = run.machine.open();
    run.live(&store, OPERATIONS);
    drop(store);
    end(&run, seed.is_multiple_of(2));
    let begun = world.operations();
    if let Some((number, kind)) = fails {
        world.fail_at(begun + number, kind);
    }
    drop(run.machine.try_open());
    let done = world.operations() - begun;
    end(&run, fails.is_some_and(|(number, _)| number % 2 == 0));
    verify(&run);
    done
}

/// The process ends; half of them lose the power too: what a call that failed has left half done may be gone then.
fn end(run: &Run, keeps_power: bool) {
    let world = &run.machine.world;
    // What has not failed until now is not to fail in what follows.
    world.fail_at(u64::MAX, DiskErrorKind::Failed);
    if keeps_power { world.restart() } else { world.crash() }
}

fn verify(run: &Run) {
    let (store, recovered) = run.machine.open();
    run.verify(&store, &recovered);
    run.machine.run(async {
        let report = store.check(Depth::Deep, &|_, _| {}).await;
        // A pack whose only chunks are half written is set aside: nobody can tell that from one that rotted.
        let problems: Vec<_> = report.problems.iter().filter(|problem| problem.code != "HF0017").collect();
        assert!(problems.is_empty(), "{problems:?}");
        store.close().await.unwrap();
    });
}

/// What is done with a seed, and which of its operations fails, if any: how many there were.
pub(super) type Work = fn(u64, Option<(u64, DiskErrorKind)>) -> u64;

/// Of these seeds one operation of `step`, each seed others. `least`: with fewer operations the test would show nothing.
pub(super) fn each_call((work, least): (Work, u64), kind: DiskErrorKind, seeds: Range<u64>, step: u64) {
    let mut wrong = Vec::new();
    each_seed(seeds, |seed| {
        let count = work(seed, None);
        assert!(count > least, "{count} operations are no work");
        for number in (1 + seed % step..=count).step_by(usize::try_from(step).unwrap()) {
            // All that go wrong are told, for often they are one.
            if catch_unwind(|| work(seed, Some((number, kind)))).is_err() {
                wrong.push((seed, number));
            }
        }
    });
    assert!(wrong.is_empty(), "{kind:?}, seed and operation: {wrong:?}");
}

const WORK: (Work, u64) = (work, 100);
const RECOVERY: (Work, u64) = (recovery, 30);
pub(super) const KINDS: [DiskErrorKind; 4] =
    [DiskErrorKind::Failed, DiskErrorKind::Full, DiskErrorKind::ReadOnly, DiskErrorKind::Silent];

#[test]
fn any_call_may_fail() {
    each_call(WORK, DiskErrorKind::Failed, 0..3, 7);
}

#[test]
fn any_call_may_find_no_room() {
    each_call(WORK, DiskErrorKind::Full, 0..3, 7);
}

#[test]
fn any_call_may_find_that_nothing_can_be_changed() {
    each_call(WORK, DiskErrorKind::ReadOnly, 0..3, 7);
}

#[test]
fn any_call_may_give_no_answer() {
    each_call(WORK, DiskErrorKind::Silent, 0..3, 7);
}

/// Each of them, whatever it is.
#[test]
fn any_call_of_a_recovery_may_fail() {
    for (kind, seed) in KINDS.into_iter().zip(0..) {
        each_call(RECOVERY, kind, seed..seed + 2, 1);
    }
}

/// Every call of each seed, by hand.
#[test]
fn put_your_seed_here() {
    for kind in KINDS {
        each_call(WORK, kind, seeds_asked_for(), 1);
        each_call(RECOVERY, kind, seeds_asked_for(), 1);
    }
}
