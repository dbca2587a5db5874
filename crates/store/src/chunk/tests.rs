//! Cuts, and chunks packed and unpacked.

use base::hash::{DomainKey, GROUP_BYTES};
use bytes::Bytes;

use super::{
    CUT_BYTES_MAX, CUT_BYTES_MIN, Compression, Named, cut_points, groups_of, looks_random, mended, pack,
    place_of_group, saved, unpack, unpack_group, unpack_left, verify,
};
use crate::format::{Class, Codec};

fn random_bytes(seed: u64, length: usize) -> Vec<u8> {
    crate::tests::content(seed * 2, length).to_vec()
}

/// Cuts a stream that arrives in calls of these lengths.
fn cut_in_calls(bytes: &[u8], call: usize) -> Vec<usize> {
    let (mut cuts, mut buffer, mut rest) = (Vec::new(), Vec::new(), bytes);
    while !rest.is_empty() {
        let (now, later) = rest.split_at(call.min(rest.len()));
        buffer.extend_from_slice(now);
        rest = later;
        let found = cut_points(&buffer, rest.is_empty());
        buffer.drain(..found.iter().sum::<usize>());
        cuts.extend(found);
        assert!(buffer.len() < CUT_BYTES_MAX, "the tail that the caller keeps is bounded");
    }
    assert!(buffer.is_empty(), "the last call leaves nothing");
    cuts
}

#[test]
fn cuts_do_not_depend_on_calls() {
    for bytes in [random_bytes(1, 3_000_000), vec![0; 1_500_000], random_bytes(2, 100), Vec::new()] {
        let whole = cut_points(&bytes, true);
        assert_eq!(whole.iter().sum::<usize>(), bytes.len());
        let inner = &whole[..whole.len().saturating_sub(1)];
        assert!(inner.iter().all(|length| (CUT_BYTES_MIN..=CUT_BYTES_MAX).contains(length)));
        for call in [1_000_000, 262_144, 262_143, 65_536, 40_001, 4_096] {
            assert_eq!(cut_in_calls(&bytes, call), whole, "calls of {call}");
        }
    }
}

#[test]
fn an_insertion_moves_few_cuts() {
    let bytes = random_bytes(3, 4_000_000);
    let mut changed = bytes.clone();
    changed.splice(2_000_000..2_000_000, [1, 2, 3]);
    let chunks = |bytes: &[u8]| {
        let mut start = 0;
        let mut chunks = std::collections::BTreeSet::new();
        for length in cut_points(bytes, true) {
            chunks.insert(bytes[start..start + length].to_vec());
            start += length;
        }
        chunks
    };
    let (before, after) = (chunks(&bytes), chunks(&changed));
    assert!(before.intersection(&after).count() + 3 >= before.len());
}

#[test]
fn what_was_packed_is_unpacked_and_nothing_else() {
    let key = DomainKey([5; 32]);
    for (content, codec) in [
        (Vec::new(), Codec::Raw),
        (b"short".to_vec(), Codec::Raw),
        (vec![7; 100_000], Codec::Zstd),
        (random_bytes(4, GROUP_BYTES), Codec::Raw),
        (random_bytes(4, 100_000), Codec::Groups),
    ] {
        let content = Bytes::from(content);
        let (address, groups) = key.address_and_groups(&content);
        let packed = pack(Compression::Zstd(1), Class::Data, Named { address, groups, content: content.clone() });
        assert_eq!(packed.header.codec, codec);
        let payload = Bytes::from([packed.table, packed.payload].concat());
        assert_eq!(payload.len(), packed.header.stored as usize);
        assert_eq!(unpack(&key, &packed.header, payload.clone()).unwrap(), content);
        assert_eq!(verify(&key, &packed.header, &payload), Ok(()));
        assert!(unpack(&DomainKey([6; 32]), &packed.header, payload.clone()).is_err(), "another key");
        for at in (0..payload.len()).step_by(payload.len() / 50 + 1) {
            let mut wrong = payload.to_vec();
            wrong[at] ^= 1;
            if let Ok(found) = unpack(&key, &packed.header, Bytes::from(wrong)) {
                assert_eq!(
                    found, content,
                    "bits that mean nothing: of zstd, or of a table that is not needed for the whole"
                );
            }
        }
    }
}

#[test]
fn a_group_is_verified_by_itself_and_a_table_is_mended() {
    let key = DomainKey([5; 32]);
    let content = Bytes::from(random_bytes(4, 5 * GROUP_BYTES + 100));
    let (address, groups) = key.address_and_groups(&content);
    let packed = pack(Compression::Zstd(1), Class::Data, Named { address, groups, content: content.clone() });
    let (header, payload) = (packed.header, Bytes::from([packed.table, packed.payload].concat()));
    let groups = groups_of(&key, &header, &payload).unwrap();
    for (number, group) in content.chunks(GROUP_BYTES).enumerate() {
        let stored = payload.slice(place_of_group(&header, number));
        assert_eq!(unpack_group(&key, &groups, number, stored.clone()).unwrap(), group);
        assert!(unpack_group(&key, &groups, (number + 1) % groups.len(), stored.clone()).is_err(), "another group");
        let mut wrong = stored.to_vec();
        wrong[99] ^= 1;
        assert!(unpack_group(&key, &groups, number, wrong.into()).is_err());
    }
    assert!(unpack_group(&key, &groups, groups.len(), Bytes::new()).is_err());
    assert!(groups_of(&key, &header, &payload[..100]).is_err(), "a part of the table");
    for at in 0..groups.len() * 32 {
        let mut wrong = payload.to_vec();
        wrong[at] ^= 0x40;
        let wrong = Bytes::from(wrong);
        assert!(groups_of(&key, &header, &wrong).is_err() && verify(&key, &header, &wrong).is_err());
        assert_eq!(mended(&key, &header, wrong), payload);
    }
}

/// C-7.
#[test]
fn what_is_left_of_a_damaged_chunk_is_what_verifies_and_no_more() {
    let key = DomainKey([5; 32]);
    let mut content = random_bytes(4, 9 * GROUP_BYTES + 100);
    // A group of zeroes.
    content[5 * GROUP_BYTES..6 * GROUP_BYTES].fill(0);
    let content = Bytes::from(content);
    let (address, groups) = key.address_and_groups(&content);
    let packed = pack(Compression::None, Class::Data, Named { address, groups, content: content.clone() });
    let (header, payload) = (packed.header, Bytes::from([packed.table, packed.payload].concat()));
    let damaged = |groups: &[usize]| {
        let mut bytes = payload.to_vec();
        groups.iter().for_each(|number| bytes[place_of_group(&header, *number).start + 7] ^= 4);
        Bytes::from(bytes)
    };
    let save = |payloads: &[Bytes]| saved(&key, &header, payloads).map(|packed| (packed.header, packed.payload));
    // All of it, where what is lost of one copy is there in another, and where it was the table.
    assert_eq!(save(&[damaged(&[0, 1, 2, 3, 4]), damaged(&[5, 6, 7, 8, 9])]), Some((header, payload.clone())));
    let without_table = Bytes::from([vec![0; 320], payload[320..].to_vec()].concat());
    assert_eq!(save(&[damaged(&[3]), without_table.clone()]), Some((header, payload.clone())));
    // Nothing.
    assert_eq!(save(&[]), None);
    assert_eq!(save(&[damaged(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9])]), None);
    let of_table = Bytes::from([&without_table[..320], &damaged(&[3])[320..]].concat());
    assert_eq!(save(&[of_table]), None, "nobody knows what the groups should be");

    let (left, bytes) = save(&[damaged(&[0, 9]), damaged(&[0, 9, 4])]).unwrap();
    assert_eq!((left.codec, left.stored as usize, left.whole()), (Codec::Remains, bytes.len(), header));
    assert!(unpack(&key, &left, bytes.clone()).is_err() && unpack(&key, &header, bytes.clone()).is_err());
    assert_eq!(verify(&key, &left, &bytes), Ok(()));
    let groups = groups_of(&key, &left, &bytes).unwrap();
    for (number, group) in content.chunks(GROUP_BYTES).enumerate() {
        let is_lost = number == 0 || number == 9;
        let stored = bytes.slice(place_of_group(&left, number));
        let found = unpack_left(&key, &groups, number, stored.clone());
        assert_eq!(found, Ok((!is_lost).then(|| Bytes::copy_from_slice(group))));
        let zeroes = unpack_left(&key, &groups, number, Bytes::from(vec![0; stored.len()]));
        assert_eq!(zeroes.is_ok(), number == 5, "a disk that forgot it is no loss that was told before");
    }
    assert_eq!(save(&[bytes.clone(), damaged(&[4])]), Some((header, payload.clone())), "with another copy");
    // What rots of them is found, and what is left then can be saved again.
    for at in (0..bytes.len()).step_by(997).chain(310..325) {
        let mut wrong = bytes.to_vec();
        wrong[at] ^= 0x10;
        let wrong = Bytes::from(wrong);
        assert!(verify(&key, &left, &wrong).is_err(), "{at}");
        let again = save(&[wrong]);
        assert_eq!(again.is_some(), at >= 320, "{at}");
        let Some((again, bytes)) = again else { continue };
        assert_eq!(verify(&key, &again, &bytes), Ok(()));
    }
}

#[test]
fn what_looks_random_is_not_tried_and_everything_else_is() {
    for seed in 0..2000 {
        assert!(looks_random(&random_bytes(seed, 2048 + seed as usize)), "{seed}");
    }
    for seed in 0..200 {
        let random = random_bytes(seed, 4096);
        // Seven bits, as of UTF-16 or numbers of little range; and text in one of the four places.
        let seven_bits: Vec<u8> = random.iter().map(|byte| byte & 0x7f).collect();
        let mut with_text = random.clone();
        with_text[..256].iter_mut().for_each(|byte| *byte = b"etaoin shrdlu"[usize::from(*byte) % 13]);
        assert!(!looks_random(&seven_bits) && !looks_random(&with_text), "{seed}");
    }
    assert!(!looks_random(&[0; 4096]));
}
