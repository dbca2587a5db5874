//! What becomes a run.

use proptest::prelude::*;

use super::{CONTENT_BYTES_MAX, Member, bytes_of, distinct, run_at};
use crate::format::{ChunkHeader, Class, Codec, Place};

fn member(pack: u64, offset: u64, stored: u32, number: u32) -> Member {
    let offset = u32::try_from(offset).unwrap();
    Member { place: Place { pack, offset, stored, raw: stored, class: Class::Data, codec: Codec::Raw }, number }
}

#[test]
fn neighbours_are_one_run_and_far_ones_are_not() {
    let header = ChunkHeader::BYTES as u64;
    let first = member(1, 100, 1000, 0);
    let touching = member(1, first.end(), 1000, 1);
    let same = Member { number: 2, ..touching };
    let near = member(1, touching.end() + 500, 1000, 3);
    let far = member(1, near.end() + 501, 1000, 4);
    let elsewhere = member(2, near.end(), 1000, 5);
    let list = [first, touching, same, near, far, elsewhere];
    assert_eq!(run_at(&list, 0, (1 << 20, CONTENT_BYTES_MAX), 500), 0..4);
    assert_eq!(run_at(&list, 4, (1 << 20, CONTENT_BYTES_MAX), 500), 4..5);
    assert_eq!(run_at(&list, 5, (1 << 20, CONTENT_BYTES_MAX), 500), 5..6);
    assert_eq!(bytes_of(&list[..4]), 3 * (1000 + header) + 500);
    assert_eq!(distinct(&list[..4]).count(), 3);
    assert_eq!(run_at(&list, 0, (2 * (1000 + header), CONTENT_BYTES_MAX), 500), 0..3, "no longer than that");
    assert_eq!(run_at(&list, 0, (1 << 20, 2500), 500), 0..3, "and no more content");
}

proptest! {
    #[test]
    fn runs_cover_a_list_in_order(
        gaps in proptest::collection::vec((0_u64..3000, 1_u32..5000), 1..200),
        bytes_max in 1_u64..20_000,
        gap_bytes in 0_u64..3000,
    ) {
        let (mut list, mut at) = (Vec::new(), 0);
        for (number, (gap, stored)) in gaps.into_iter().enumerate() {
            list.push(member(at / 50_000, at % 50_000 + gap, stored, number as u32));
            at += gap + u64::from(stored) + ChunkHeader::BYTES as u64;
        }
        let mut end = 0;
        while end < list.len() {
            let run = run_at(&list, end, (bytes_max, CONTENT_BYTES_MAX), gap_bytes);
            prop_assert!(run.start == end && run.end > end);
            let members = &list[run.clone()];
            prop_assert!(members.iter().all(|member| member.place.pack == members[0].place.pack));
            prop_assert!(members.len() == 1 || bytes_of(members) <= bytes_max);
            for pair in members.windows(2) {
                prop_assert!(u64::from(pair[1].place.offset).saturating_sub(pair[0].end()) <= gap_bytes);
            }
            end = run.end;
        }
    }
}
