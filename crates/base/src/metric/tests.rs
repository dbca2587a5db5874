//! A histogram forgets little: every answer is within a bucket of the truth, and sums are exact.

use std::time::Duration;

use proptest::prelude::*;

use super::{BUCKETS, Distribution, Histogram, Kind, Unit, VALUE_MAX, Value, border, bucket};

fn recorded(values: &[u64]) -> Distribution {
    let histogram = Histogram::default();
    values.iter().for_each(|value| histogram.record(*value));
    histogram.distribution()
}

#[test]
fn borders_and_buckets_agree() {
    for number in 0..BUCKETS {
        assert_eq!(bucket(border(number)), number, "a border belongs to the bucket below");
        assert_eq!(bucket(border(number) + 1), number + 1);
    }
    assert_eq!(border(BUCKETS - 1), VALUE_MAX);
    assert_eq!((bucket(0), bucket(1), bucket(2)), (0, 0, 1));
}

#[test]
fn the_extremes_are_recorded_without_overflow() {
    let found = recorded(&[0, u64::MAX, u64::MAX, VALUE_MAX, 1]);
    assert_eq!((found.count(), found.sum()), (5, 3 * VALUE_MAX + 1));
    assert_eq!((found.max(), found.quantile(0.0)), (VALUE_MAX, 1));
    let histogram = Histogram::default();
    histogram.record_time(Duration::MAX);
    assert_eq!(histogram.distribution().max(), VALUE_MAX);

    let full = Distribution::of(u64::MAX, [(3, u64::MAX), (BUCKETS - 1, u64::MAX), (BUCKETS, 1), (usize::MAX, 1)]);
    let mut sum = full.clone();
    sum.merge(&full);
    assert_eq!((sum.count(), sum.sum(), sum.count_to(u64::MAX)), (u64::MAX, u64::MAX, u64::MAX));
    assert_eq!(recorded(&[4]).since(&full), Distribution::default(), "never below nothing");
    assert_eq!((full.max(), full.quantile(f64::NAN), full.quantile(-1.0)), (border(3), border(3), border(3)));
}

#[test]
fn nothing_recorded_is_zero() {
    let none = Distribution::default();
    assert_eq!((none.count(), none.sum(), none.max(), none.quantile(0.5), none.count_to(u64::MAX)), (0, 0, 0, 0, 0));
}

mod declared {
    #![expect(unreachable_pub, reason = "what crates declare is public")]
    crate::metrics! {
        /// For the test below.
        part:
        things: Counter, Count, "things";
        read_bytes: Counter, Bytes, "bytes";
        wait: Histogram, Seconds, "waits";
    }
}
use declared::Counters;

#[test]
fn a_declaration_is_all_there_is_to_say() {
    let counters = Counters::default();
    counters.read_bytes.add(3);
    counters.wait.record(5);
    let list = counters.list();
    let names: Vec<_> = list.iter().map(|metric| metric.description.prometheus()).collect();
    assert_eq!(names, ["hydrafs_part_things_total", "hydrafs_part_read_bytes_total", "hydrafs_part_wait_seconds"]);
    assert_eq!(list[1].description, Counters::DESCRIPTIONS[1]);
    assert_eq!((list[2].description.kind, list[2].description.unit), (Kind::Histogram, Unit::Seconds));
    assert!(matches!(list[1].value, Value::Number(3)));
    let mut value = list[2].value.clone();
    value.merge(&list[2].value);
    assert!(matches!(value, Value::Distribution(sum) if sum.count() == 2 && sum.sum() == 10));
}

proptest! {
    #[test]
    fn a_quantile_is_within_its_bucket(
        // Of all magnitudes, not mostly huge.
        values in prop::collection::vec(
            (0_u32..49, any::<u64>()).prop_map(|(bits, value)| value & ((1 << bits) - 1)),
            1..200,
        ),
        share in 0.0..=1.0_f64,
    ) {
        let found = recorded(&values);
        let mut sorted = values.clone();
        sorted.sort_unstable();
        let rank = ((values.len() as f64 * share).ceil() as usize).max(1);
        let truths = [sorted[rank - 1], sorted[values.len() - 1]].map(|truth| truth.max(1));
        for (told, truth) in [found.quantile(share), found.max()].into_iter().zip(truths) {
            prop_assert!(told >= truth && told - truth <= truth / 8, "{told} for {truth}");
        }
        prop_assert_eq!(found.sum(), values.iter().sum::<u64>());
        for bits in 0..49 {
            let bound = 1 << bits;
            let truth = values.iter().filter(|value| **value <= bound).count() as u64;
            prop_assert_eq!(found.count_to(bound), truth, "up to {}", bound);
        }
    }

    #[test]
    fn parts_make_the_whole(
        first in prop::collection::vec(any::<u64>(), 0..50),
        second in prop::collection::vec(any::<u64>(), 0..50),
    ) {
        let whole = recorded(&[first.clone(), second.clone()].concat());
        let (first, second) = (recorded(&first), recorded(&second));
        let mut sum = first.clone();
        sum.merge(&second);
        prop_assert_eq!(&sum, &whole);
        prop_assert_eq!(&whole.since(&first), &second);
        prop_assert_eq!(&Distribution::of(whole.sum(), whole.filled()), &whole);
    }
}
