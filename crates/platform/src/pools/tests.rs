use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use proptest::prelude::*;

use super::{Amounts, Pools, Reservation};

type Waiting<'a, const N: usize> = Pin<Box<dyn Future<Output = Reservation<N>> + 'a>>;

/// Joins the line.
fn begin<const N: usize>(pools: &Arc<Pools<N>>, wants: Amounts<N>) -> Waiting<'_, N> {
    let mut waiting: Waiting<'_, N> = Box::pin(pools.reserve(0, wants));
    match poll(&mut waiting) {
        Some(reservation) => Box::pin(std::future::ready(reservation)),
        None => waiting,
    }
}

fn poll<const N: usize>(waiting: &mut Waiting<'_, N>) -> Option<Reservation<N>> {
    match waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reservation) => Some(reservation),
        Poll::Pending => None,
    }
}

fn used<const N: usize>(pools: &Pools<N>, pool: usize) -> u64 {
    let state = pools.state.lock();
    state.reserved[pool] + state.allocated[pool]
}

/// The published example: a pool of 10 and four events.
#[test]
fn the_four_events_of_the_paper_are_admitted_as_published() {
    let pools = Pools::new([[10]]);
    let counts = |reserved, allocated| {
        let state = pools.state.lock();
        assert_eq!((state.reserved[0], state.allocated[0]), (reserved, allocated));
    };
    let mut one = poll(&mut begin(&pools, [4])).expect("4 + 0 + 0 <= 10");
    one.allocate(0, 4);
    counts(4, 4);
    drop(one);
    counts(0, 4);
    let mut two = poll(&mut begin(&pools, [3])).expect("3 + 0 + 4 <= 10");
    two.allocate(0, 2);
    counts(3, 6);
    let mut three = begin(&pools, [3]);
    let mut four = begin(&pools, [1]);
    assert!(poll(&mut three).is_none(), "3 + 3 + 6 > 10");
    assert!(poll(&mut four).is_none(), "it would fit, but the third is before it");
    pools.free(0, 2);
    let three = poll(&mut three).expect("3 + 3 + 4 <= 10");
    counts(6, 4);
    assert!(poll(&mut four).is_none(), "1 + 6 + 4 > 10");
    drop(two);
    let four = poll(&mut four).expect("1 + 3 + 4 <= 10");
    counts(4, 4);
    drop((three, four));
    counts(0, 4);
}

#[test]
fn all_pools_of_an_event_must_have_room() {
    let pools = Pools::new([[10, 2]]);
    let one = poll(&mut begin(&pools, [1, 2])).expect("room in both");
    let mut two = begin(&pools, [1, 1]);
    assert!(poll(&mut two).is_none(), "the second pool is full");
    assert!(pools.try_reserve(0, [1, 0]).is_none(), "nobody goes before who waits");
    drop(one);
    assert!(poll(&mut two).is_some());
    assert!(pools.try_reserve(0, [10, 0]).is_some());
}

#[test]
fn who_wants_more_than_there_is_gets_all_of_it() {
    let pools = Pools::new([[10]]);
    let one = pools.try_reserve(0, [1]).unwrap();
    let mut large = begin(&pools, [11]);
    assert!(poll(&mut large).is_none());
    drop(one);
    let mut large = poll(&mut large).expect("nothing is in use");
    large.allocate(0, 11);
    drop(large);
    assert!(pools.try_reserve(0, [1]).is_none());
    pools.free(0, 11);
    assert!(pools.try_reserve(0, [1]).is_some());
}

#[test]
fn who_leaves_the_line_leaves_nothing() {
    let pools = Pools::new([[10]]);
    let one = pools.try_reserve(0, [8]).unwrap();
    let large = begin(&pools, [9]);
    let mut small = begin(&pools, [2]);
    assert!(poll(&mut small).is_none());
    drop(large);
    drop(poll(&mut small).expect("nobody is before it any more"));
    let admitted = begin(&pools, [4]);
    drop(one);
    assert_eq!(used(&pools, 0), 4, "admitted, and not polled since");
    drop(admitted);
    assert_eq!((used(&pools, 0), pools.waiting(0)), (0, 0));
}

#[test]
fn a_line_with_larger_totals_goes_on_when_another_stands() {
    let pools: Arc<Pools<1, 2>> = Pools::new([[10], [15]]);
    let mut level = 10;
    pools.measure(|allocated| allocated[0] = level);
    assert!(pools.try_reserve(0, [1]).is_none());
    let mut first = Box::pin(pools.reserve(0, [1]));
    let mut context = Context::from_waker(Waker::noop());
    assert!(first.as_mut().poll(&mut context).is_pending());
    drop(pools.try_reserve(1, [3]).expect("another line"));
    assert!(pools.try_reserve(1, [3]).is_none(), "it has passed by 3 of 5 already");
    drop(pools.try_reserve(1, [2]).expect("5 of 5"));
    assert!(pools.try_reserve(1, [1]).is_none());
    let forced = pools.force([6]);
    level = 4;
    pools.measure(|allocated| allocated[0] = level);
    assert!(first.as_mut().poll(&mut context).is_pending(), "1 + 6 + 4 > 10");
    drop(forced);
    assert!(first.as_mut().poll(&mut context).is_ready());
}

proptest! {
    /// Against the rules read off the paper, over every list of steps: what is admitted, and when.
    #[test]
    fn a_line_is_served_as_the_rules_say(steps in proptest::collection::vec((0_u8..4, 0_u64..12, 0_u64..12), 1..80)) {
        const TOTALS: Amounts<2> = [10, 6];
        let pools = Pools::new([TOTALS]);
        let mut waiting: Vec<(Amounts<2>, Waiting<'_, 2>)> = Vec::new();
        let mut running: Vec<Reservation<2>> = Vec::new();
        let mut allocated = [0_u64; 2];
        for (kind, first, second) in steps {
            match kind {
                0 => {
                    let wants = [first, second];
                    waiting.push((wants, begin(&pools, wants)));
                }
                1 if !running.is_empty() => drop(running.remove(first as usize % running.len())),
                2 if !running.is_empty() => {
                    let number = first as usize % running.len();
                    let event = &mut running[number];
                    for (pool, allocated) in allocated.iter_mut().enumerate() {
                        let amount = second.min(event.amounts[pool]);
                        event.allocate(pool, amount);
                        *allocated += amount;
                    }
                }
                3 if !waiting.is_empty() && first > 8 => drop(waiting.remove(second as usize % waiting.len())),
                3 => {
                    let pool = first as usize % 2;
                    let amount = second.min(allocated[pool]);
                    allocated[pool] -= amount;
                    pools.free(pool, amount);
                }
                _ => {}
            }
            // The model: from the front, as long as there is room.
            let mut reserved: Amounts<2> = [0; 2];
            running.iter().for_each(|event| (0..2).for_each(|pool| reserved[pool] += event.amounts[pool]));
            while let Some((wants, _)) = waiting.first() {
                let fits = (0..2).all(|pool| {
                    let used = reserved[pool] + allocated[pool];
                    wants[pool] == 0 || used == 0 || wants[pool] + used <= TOTALS[pool]
                });
                if !fits {
                    break;
                }
                let (wants, mut event) = waiting.remove(0);
                (0..2).for_each(|pool| reserved[pool] += wants[pool]);
                running.push(poll(&mut event).expect("its turn has come"));
            }
            for (_, event) in &mut waiting {
                prop_assert!(poll(event).is_none(), "not before its turn");
            }
            for pool in 0..2 {
                prop_assert_eq!(used(&pools, pool), reserved[pool] + allocated[pool]);
            }
        }
    }
}
