//! Cuts, and chunks packed and unpacked.

use base::hash::DomainKey;
use bytes::Bytes;

use super::{CUT_BYTES_MAX, CUT_BYTES_MIN, Compression, cut_points, pack, unpack};
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
        (random_bytes(4, 100_000), Codec::Raw),
    ] {
        let content = Bytes::from(content);
        let address = key.address(&content);
        let packed = pack(Compression::Zstd(1), Class::Data, address, content.clone());
        assert_eq!(packed.header.codec, codec);
        assert_eq!(unpack(&key, &packed.header, packed.payload.clone()).unwrap(), content);
        assert!(unpack(&DomainKey([6; 32]), &packed.header, packed.payload.clone()).is_err(), "another key");
        for at in (0..packed.payload.len()).step_by(packed.payload.len() / 50 + 1) {
            let mut wrong = packed.payload.to_vec();
            wrong[at] ^= 1;
            if let Ok(found) = unpack(&key, &packed.header, Bytes::from(wrong)) {
                assert_eq!(found, content, "zstd may carry bits that mean nothing");
            }
        }
    }
}
