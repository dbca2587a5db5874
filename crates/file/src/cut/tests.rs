//! Where content is cut, whatever it came in.

use std::collections::VecDeque;

use base::interval::IntervalMap;
use bytes::Bytes;

use super::{AHEAD_BYTES_MIN, Cuts, Run};

/// Bytes without a pattern (SplitMix64).
fn noise(length: usize) -> Vec<u8> {
    let mut state = 7_u64;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ (z >> 27)) as u8
    };
    (0..length).map(|_| next()).collect()
}

fn runs(bytes: &[u8], start: u64, lengths: &[usize]) -> IntervalMap<Run> {
    let (mut runs, mut at) = (IntervalMap::default(), 0);
    for length in lengths.iter().cycle() {
        if at == bytes.len() {
            break;
        }
        let end = bytes.len().min(at + length);
        runs.insert(start + at as u64..start + end as u64, Run(Bytes::copy_from_slice(&bytes[at..end])));
        at = end;
    }
    runs
}

#[test]
fn cuts_depend_on_the_bytes_and_not_on_the_runs_they_came_in() {
    let bytes = noise(3_000_000);
    let expected = store::cut_points(&bytes, true);
    for lengths in [&[3_000_000][..], &[1 << 20], &[100_000, 7], &[4096], &[1_500_000, 1, 16_384, 300_000]] {
        let mut cuts = Cuts::new(&runs(&bytes, 5000, lengths), false);
        let (mut found, mut at) = (Vec::new(), 5000);
        while let Some((offset, piece)) = cuts.next() {
            assert_eq!(offset, at, "no gap");
            assert_eq!(piece[..], bytes[(at - 5000) as usize..][..piece.len()]);
            at += piece.len() as u64;
            found.push(piece.len());
        }
        assert_eq!(found, expected, "runs of {lengths:?}");
        assert_eq!(cuts.tail(), None);
    }
}

/// FastCDC looks at bytes in pairs, so a cut before the last known byte may show only with the byte behind it.
#[test]
fn a_border_one_byte_behind_a_cut_changes_nothing() {
    let bytes = noise(3_000_000);
    let expected = store::cut_points(&bytes, true);
    for step in [1, 2, 3] {
        let mut lengths = Vec::new();
        let (mut cut, mut last) = (0, 0);
        for length in &expected[..expected.len() - 2] {
            cut += length;
            lengths.push(cut + step - last);
            last = cut + step;
        }
        lengths.push(bytes.len() - last);
        let mut cuts = Cuts::new(&runs(&bytes, 0, &lengths), false);
        let found: Vec<usize> = std::iter::from_fn(|| cuts.next()).map(|(_, piece)| piece.len()).collect();
        assert_eq!(found, expected, "{step} behind");
    }
}

#[test]
fn a_kept_tail_is_what_more_bytes_might_cut_otherwise() {
    let bytes = noise(1_000_000);
    let certain = store::cut_points(&bytes, false);
    let mut cuts = Cuts::new(&runs(&bytes, 0, &[70_000]), true);
    let found: Vec<usize> = std::iter::from_fn(|| cuts.next()).map(|(_, piece)| piece.len()).collect();
    assert_eq!(found, certain);
    let (offset, tail) = cuts.tail().expect("the last bytes are hardly ever a border");
    assert_eq!(offset as usize, certain.iter().sum::<usize>());
    assert_eq!(tail[..], bytes[offset as usize..]);
}

#[test]
fn a_gap_ends_a_chunk_and_only_the_last_piece_keeps_a_tail() {
    let (first, second) = (noise(20_000), noise(30_000));
    let mut apart = runs(&first, 0, &[20_000]);
    apart.insert(100_000..130_000, Run(Bytes::from(second.clone())));
    let mut cuts = Cuts::new(&apart, true);
    assert_eq!(cuts.next(), Some((0, Bytes::from(first))));
    assert_eq!(cuts.next(), None);
    assert_eq!(cuts.tail(), Some((100_000, Bytes::from(second))));
}

#[test]
fn what_other_cores_cut_ahead_changes_no_cut() {
    let bytes = noise(6_000_000);
    let expected = store::cut_points(&bytes, true);
    // At once, when the run was reached, and never.
    for delay in [0, 5, 60, usize::MAX] {
        for lengths in [&[1 << 20][..], &[AHEAD_BYTES_MIN, 7, 600_001]] {
            let mut cuts = Cuts::new(&runs(&bytes, 0, lengths), false);
            let (mut found, mut begun) = (Vec::new(), VecDeque::new());
            loop {
                begun.extend(cuts.next_ahead().map(|job| (found.len(), job)));
                while let Some((_, (ahead, run))) =
                    begun.pop_front_if(|(at, _)| found.len() >= delay.saturating_add(*at))
                {
                    ahead.look(&run);
                }
                let Some((_, piece)) = cuts.next() else { break };
                found.push(piece.len());
            }
            assert_eq!(found, expected, "{delay} later, runs of {lengths:?}");
        }
    }
}

#[test]
fn a_cut_that_is_known_is_not_looked_for() {
    let mut cuts = Cuts::new(&runs(&noise(AHEAD_BYTES_MIN), 0, &[AHEAD_BYTES_MIN]), false);
    let (ahead, _) = cuts.next_ahead().next().expect("the run is long");
    // Not where the content says: only who believes them cuts here.
    ahead.cuts.set(vec![0, 777, 1000]).expect("nobody looked");
    let found: Vec<usize> = std::iter::from_fn(|| cuts.next()).map(|(_, piece)| piece.len()).take(2).collect();
    assert_eq!(found, [777, 223]);
    assert_eq!(cuts.next_ahead().count(), 0);
}
