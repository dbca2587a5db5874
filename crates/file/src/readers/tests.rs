//! Readers of each kind, and what is foreseen for them.

use std::collections::BTreeSet;
use std::ops::Range;

use base::id::FileId;
use proptest::prelude::*;

use super::{Ahead, METADATA_WINDOWS, PLACES, Readers, WINDOW_BYTES_MIN};
use crate::attributes::{Node, View};

const MAX: u64 = 8 << 20;
const SIZE: u64 = 1 << 40;
const NODE: Node = Node { view: View::LIVE, file: FileId::main(77) };

/// Reads one after the other; what was asked for in all of them.
fn read_all(reads: impl IntoIterator<Item = Range<u64>>) -> (Vec<Ahead>, Readers) {
    let readers = Readers::new(MAX);
    (reads.into_iter().map(|read| readers.note(NODE, read, SIZE, true)).collect(), readers)
}

fn pieces(starts: impl IntoIterator<Item = u64>, length: u64) -> impl Iterator<Item = Range<u64>> {
    starts.into_iter().map(move |start| start..start + length)
}

fn is_nothing(ahead: &Ahead) -> bool {
    ahead.data.is_empty() && ahead.metadata.is_empty()
}

#[test]
fn a_stream_is_ahead_by_a_window_that_doubles_and_its_metadata_by_four() {
    let length = 128 << 10;
    let (found, _) = read_all(pieces((0..200).map(|number| number * length), length));
    assert_eq!(found[0], Ahead::default(), "one read says nothing");
    assert_eq!(found[1].data, [2 * length..2 * length + WINDOW_BYTES_MIN]);
    assert_eq!(found[1].metadata, [2 * length..2 * length + METADATA_WINDOWS * WINDOW_BYTES_MIN]);
    let mut data_end = 2 * length;
    let mut metadata_end = data_end;
    for (number, Ahead { data, metadata, .. }) in found.iter().enumerate().skip(1) {
        let at = (number as u64 + 1) * length;
        for range in data {
            assert_eq!(range.start, data_end, "no gap, and nothing twice");
            data_end = range.end;
        }
        for range in metadata {
            assert_eq!(range.start, metadata_end);
            metadata_end = range.end;
        }
        assert!(data_end <= at + MAX && metadata_end <= at + METADATA_WINDOWS * MAX);
        if number > 20 {
            assert!(data_end >= at + MAX / 2 && metadata_end >= at + METADATA_WINDOWS * MAX / 2);
        }
    }
    let asked: usize = found.iter().map(|ahead| ahead.data.len()).sum();
    assert!(asked < 20, "asked {asked} times for 200 reads");
}

#[test]
fn a_stream_backwards_is_foreseen_to_the_beginning() {
    let length = 64 << 10;
    let (found, _) = read_all(pieces((0..400).rev().map(|number| number * length), length));
    // Two steps back, for one is what requests do that changed places.
    let mut edge = 397 * length;
    for range in found.iter().flat_map(|ahead| &ahead.data) {
        assert_eq!(range.end, edge);
        edge = range.start;
    }
    assert_eq!(edge, 0);
}

#[test]
fn equal_steps_are_foreseen_in_both_directions() {
    for (start, step) in [(0, 5 << 20), (2000 << 20, -(7 << 20))] {
        let at = |number: u64| (start as u64).saturating_add_signed(number.cast_signed() * step);
        let (found, _) = read_all(pieces((0..50).map(at), 4096));
        assert!(found[..2].iter().all(is_nothing), "two reads have one distance");
        let asked: BTreeSet<u64> = found.iter().flat_map(|ahead| &ahead.data).map(|range| range.start).collect();
        assert!((3..50).all(|number| asked.contains(&at(number))), "step {step}");
        let all = found.iter().flat_map(|ahead| &ahead.data).count();
        assert_eq!(all, asked.len(), "nothing twice");
        assert!(found.iter().flat_map(|ahead| &ahead.data).all(|range| range.end - range.start == 4096));
    }
}

#[test]
fn who_reads_here_and_there_gets_nothing_and_a_stream_that_jumps_begins_again() {
    let mut random = 1_u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) * 4096
    };
    let (found, readers) = read_all(pieces((0..500).map(|_| next()), 4096));
    assert!(found.iter().all(is_nothing));
    assert!(found[1..].iter().all(|ahead| ahead.is_jump));
    let far = 1 << 39;
    assert!(is_nothing(&readers.note(NODE, far..far + 4096, SIZE, true)));
    let ahead = readers.note(NODE, far + 4096..far + 8192, SIZE, true);
    assert_eq!(ahead.data, [far + 8192..far + 8192 + WINDOW_BYTES_MIN]);
}

/// A kernel's read-ahead has two requests under way.
#[test]
fn two_reads_that_changed_places_are_a_stream_all_the_same() {
    let length = 256 << 10;
    let swapped: Vec<u64> = (0..100_u64).map(|number| number ^ 1).collect();
    let (found, _) = read_all(pieces(swapped.iter().map(|number| number * length), length));
    let asked: Vec<_> = found.iter().flat_map(|ahead| &ahead.data).collect();
    for (ahead, number) in found.iter().zip(&swapped) {
        assert!(ahead.data.iter().all(|range| range.start >= number * length), "behind the reader");
    }
    assert!(asked.windows(2).all(|pair| pair[0].end == pair[1].start), "no gap, and nothing twice");
    assert!(asked[0].start <= 8 * length && asked[asked.len() - 1].end >= 100 * length);
}

#[test]
fn files_that_share_a_place_and_views_are_told_apart() {
    let readers = Readers::new(MAX);
    let other = Node::live(FileId::main(77 + PLACES as u64));
    readers.note(NODE, 0..4096, SIZE, true);
    readers.note(other, 0..4096, SIZE, true);
    assert!(is_nothing(&readers.note(NODE, 4096..8192, SIZE, true)));
    assert_eq!(Readers::new(0).note(NODE, 0..4096, SIZE, true), Ahead::default());
}

proptest! {
    #[test]
    fn what_is_foreseen_lies_in_the_file_and_is_bounded(
        reads in prop::collection::vec((0..2000_u64, 1..300_u64), 1..200),
        size in 1..5000_u64,
    ) {
        let readers = Readers::new(1 << 20);
        for (start, length) in reads {
            let (start, end) = (start.min(size - 1) * 4096, (start + length).min(size) * 4096);
            if start >= end {
                continue;
            }
            let Ahead { data, metadata, .. } = readers.note(NODE, start..end, size * 4096, true);
            for range in data.iter().chain(&metadata) {
                prop_assert!(range.start < range.end && range.end <= size * 4096, "{range:?}");
            }
            let bytes: u64 = data.iter().map(|range| range.end - range.start).sum();
            prop_assert!(bytes <= 2 * (1 << 20_u64).max(end - start), "{bytes} bytes");
        }
    }
}

#[test]
fn what_may_not_be_asked_for_is_asked_for_later() {
    let readers = Readers::new(MAX);
    let length = 128 << 10;
    for number in 0..20 {
        assert!(is_nothing(&readers.note(NODE, number * length..(number + 1) * length, SIZE, false)));
    }
    let ahead = readers.note(NODE, 20 * length..21 * length, SIZE, true);
    assert_eq!(ahead.data[0].start, 21 * length);
}
