//! The interval map against a plain array of bytes, by random operation lists.

use super::{IntervalMap, cover, cover_all};

/// A small deterministic generator (SplitMix64), so that a failure replays from its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

const SIZE: u64 = 64;

fn flatten(map: &IntervalMap<Vec<u8>>) -> Vec<Option<u8>> {
    let mut flat = vec![None; SIZE as usize];
    let mut last = 0;
    for (range, piece) in map.iter() {
        assert!(range.start < range.end && range.start >= last, "ordered, not empty, not overlapping");
        assert_eq!(range.end - range.start, piece.len() as u64);
        last = range.end;
        for (at, byte) in range.zip(piece) {
            flat[at as usize] = Some(*byte);
        }
    }
    flat
}

#[test]
fn behaves_like_an_array() {
    let (mut lists, mut trees) = (0, 0);
    for seed in 0..300 {
        let mut random = Random(seed);
        let mut map = IntervalMap::<Vec<u8>>::default();
        let mut model = vec![None; SIZE as usize];
        for step in 0..60 {
            let start = random.below(SIZE - 1);
            let end = start + 1 + random.below(SIZE - start - 1);
            match random.below(4) {
                0 | 1 => {
                    let piece: Vec<u8> = (start..end).map(|at| (at + step) as u8).collect();
                    model[start as usize..end as usize]
                        .copy_from_slice(&piece.iter().map(|b| Some(*b)).collect::<Vec<_>>());
                    map.insert(start..end, piece);
                }
                2 => {
                    let removed: u64 = map.remove(start..end).iter().map(|(range, _)| range.end - range.start).sum();
                    let expected = model[start as usize..end as usize].iter().flatten().count() as u64;
                    assert_eq!(removed, expected, "seed {seed}");
                    model[start as usize..end as usize].fill(None);
                }
                _ => {
                    let free = (end..SIZE).take_while(|at| model[*at as usize].is_none()).count() as u64;
                    let grown = map.extend_ending_at(end, |_, piece| {
                        piece.extend((0..free).map(|_| 7));
                        (free > 0).then_some(end + free)
                    });
                    if grown {
                        model[end as usize..(end + free) as usize].fill(Some(7));
                    }
                }
            }
            assert_eq!(flatten(&map), model, "seed {seed} step {step}");
            let seen: Vec<u64> = map.overlapping(start..end).map(|(range, _)| range.start).collect();
            let expected: Vec<u64> =
                map.iter().filter(|(r, _)| r.start < end && r.end > start).map(|(r, _)| r.start).collect();
            assert_eq!(seen, expected, "seed {seed}");
            let around = map.iter().find(|(r, _)| r.start <= start && r.end >= end).map(|(r, _)| r);
            assert_eq!(map.containing_mut(start..end).map(|(r, _)| r), around, "seed {seed}");
            assert_eq!(map.end(), map.iter().last().map_or(0, |(r, _)| r.end), "seed {seed}");
            assert!(map.few.is_empty() || map.many.is_empty(), "seed {seed}: a list, or a tree");
            lists += usize::from(map.few.len() > 1);
            trees += usize::from(!map.many.is_empty());
        }
    }
    assert!(lists > 1000 && trees > 1000, "both were met: {lists} and {trees} times");
}

#[test]
fn covering_takes_from_gaps_what_it_hits() {
    let mut gaps = vec![0..10, 20..30];
    assert_eq!(cover(&mut gaps, &(5..25)), vec![5..10, 20..25]);
    assert_eq!(gaps, vec![0..5, 25..30]);
    assert_eq!(cover(&mut gaps, &(10..20)), vec![]);
    assert_eq!(cover(&mut gaps, &(0..100)), vec![0..5, 25..30]);
    assert!(gaps.is_empty());
}

#[test]
fn covering_in_one_pass_is_covering_piece_by_piece() {
    // Every placement of two gaps and two pieces on a line of nine points.
    let ranges = |a: u64, b: u64, c: u64, d: u64| vec![a..b, c..d];
    for bits in 0..9_u64.pow(4) {
        let point = |index: u32| bits / 9_u64.pow(index) % 9;
        let (a, b, c, d) = (point(0), point(1), point(2), point(3));
        if !(a < b && b <= c && c < d) {
            continue;
        }
        for shift in 0..5 {
            let mut gaps = ranges(a, b, c, d);
            let mut expected = gaps.clone();
            let pieces = ranges(shift, shift + 2, shift + 3, shift + 5);
            let mut hits = Vec::new();
            cover_all(&mut gaps, pieces.iter().map(|piece| (piece.clone(), ())), |hit, _, ()| hits.push(hit));
            let expected_hits: Vec<_> = pieces.iter().flat_map(|piece| cover(&mut expected, piece)).collect();
            assert_eq!((gaps, hits), (expected, expected_hits), "{a} {b} {c} {d} {shift}");
        }
    }
}

/// A run of a MiB that was cut to a byte kept its MiB, while it counted as one byte of accepted data.
#[test]
fn what_is_cut_keeps_no_memory_that_it_does_not_need() {
    let mut map = IntervalMap::default();
    map.insert(0..1 << 20, vec![7_u8; 1 << 20]);
    map.remove(1..1 << 20);
    let (range, piece) = map.iter().next().unwrap();
    assert_eq!((range, &piece[..]), (0..1, &[7][..]));
    assert!(piece.capacity() < 100, "{}", piece.capacity());
}
