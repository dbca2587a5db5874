//! Every structure: what was encoded is decoded, every flipped bit and every cut is noticed, hostile bytes never panic.

use base::hash::DomainKey;
use base::id::{ChunkAddress, NodeNumber, Position};
use base::time::Timestamp;

use super::{
    ChunkHeader, Class, Codec, Entry, FrameHeader, Homes, Identity, PACK_VERSION, PackFooter, PackHeader, Place,
    ROOTS_BYTES_MAX, SegmentHeader, Summary, Superblock, decode_directory, encode_directory, number_of, pack_path,
};
use crate::disks::DISKS_MAX;
use crate::disks::DiskSet;
use crate::level::{Level, Resilience};

/// Whether bytes are what they were, as one structure after the other sees it.
type Accepts<'a> = Box<dyn Fn(&[u8]) -> bool + 'a>;

fn address(seed: u8) -> ChunkAddress {
    ChunkAddress([seed; 32])
}

fn chunk_header() -> ChunkHeader {
    ChunkHeader { class: Class::Data, codec: Codec::Zstd, raw: 70_000, stored: 30_000, address: address(9) }
}

fn superblock() -> Superblock {
    Superblock {
        generation: 7,
        is_closed: true,
        node_identity: [1; 16],
        covered: Position(100),
        durable: Position(120),
        pack_next: 33,
        time: Timestamp::new(1_700_000_000, 5),
        disks: vec![[2; 16]; DISKS_MAX],
        without: DiskSet::of(3),
        homes: Homes { disks: DiskSet::of(0).with(63), are_all_needed: true },
        index: 63,
        drained: DiskSet::of(62),
        floor: 8,
        roots: vec![0xab; ROOTS_BYTES_MAX],
    }
}

/// Each structure with its bytes and a decoder that says whether it finds the same again.
fn structures() -> Vec<(&'static str, Vec<u8>, Accepts<'static>)> {
    let identity = Identity {
        node_identity: [1; 16],
        node: NodeNumber(7),
        disk: 1,
        disk_count: 3,
        disk_uuid: [2; 16],
        created: Timestamp::new(1_700_000_000, 999_999_999),
        key: DomainKey([3; 32]),
    };
    let pack = PackHeader {
        version: PACK_VERSION,
        pack: 5,
        node_identity: [1; 16],
        disk_uuid: [2; 16],
        class: Class::Metadata,
        level: Level::of(Resilience::Copies(2), Level::of_node(1)),
    };
    let entries: Vec<Entry> =
        (0..3).map(|number| Entry { offset: 72 + number * 30_056, header: chunk_header() }).collect();
    let data_bytes = u32::try_from(entries[2].end()).unwrap();
    let directory = encode_directory(5, data_bytes, &entries);
    let segment = SegmentHeader { segment: 4, node_identity: [1; 16], first: Position(17) };
    let frame = FrameHeader::stamped(b"thirteen byte", 77, 18, 16);
    let place = Place::of(5, &entries[1]);
    vec![
        ("identity", identity.encode(), Box::new(move |bytes| Identity::decode(bytes).as_ref() == Ok(&identity))),
        (
            "superblock",
            superblock().encode(&[2; 16]),
            Box::new(|bytes| Superblock::decode(bytes, &[2; 16], 4096) == Ok(superblock())),
        ),
        ("pack header", pack.encode(), Box::new(move |bytes| PackHeader::decode(bytes, 5).as_ref() == Ok(&pack))),
        (
            "chunk header",
            chunk_header().encode(5, 72),
            Box::new(|bytes| ChunkHeader::decode(bytes, 5, 72) == Ok(chunk_header())),
        ),
        (
            "directory and footer",
            directory,
            Box::new(move |bytes| {
                let Some((directory, footer)) = bytes.split_last_chunk::<{ PackFooter::BYTES }>() else { return false };
                PackFooter::decode(footer, 5)
                    .is_ok_and(|footer| decode_directory(&footer, directory).as_ref() == Ok(&entries))
            }),
        ),
        (
            "segment header",
            segment.encode(),
            Box::new(move |bytes| SegmentHeader::decode(bytes, 4).as_ref() == Ok(&segment)),
        ),
        (
            "frame",
            frame,
            Box::new(|bytes| {
                FrameHeader::decode(bytes, 77).is_some_and(|(header, payload)| {
                    (header.position, header.durable) == (Position(18), Position(16)) && payload == b"thirteen byte"
                })
            }),
        ),
        (
            "place",
            place.encode(&address(9)).to_vec(),
            Box::new(move |bytes| {
                <&[u8; Place::BYTES]>::try_from(bytes)
                    .is_ok_and(|bytes| Place::decode(&address(9), bytes) == Some(place))
            }),
        ),
    ]
}

#[test]
fn what_was_encoded_is_decoded() {
    for (name, bytes, accepts) in structures() {
        assert!(accepts(&bytes), "{name}");
    }
    let summary = Summary {
        lacks_directory: true,
        was_left: true,
        class: Class::Metadata,
        count: 3,
        data_bytes: 4,
        raw_bytes: 1 << 40,
        level: Level::of(Resilience::Copies(2), Level::of_node(1)),
    };
    assert_eq!(Summary::decode(&summary.encode()), summary);
}

#[test]
fn every_flipped_bit_and_every_cut_is_noticed() {
    for (name, bytes, accepts) in structures() {
        let mut bytes = bytes;
        for at in 0..bytes.len() {
            for bit in 0..8 {
                bytes[at] ^= 1 << bit;
                // Sixteen bits of check let one in 65,536 pass; the chunk's own header is the next to look.
                assert!(!accepts(&bytes), "{name}: byte {at} bit {bit}");
                bytes[at] ^= 1 << bit;
            }
            assert!(!accepts(&bytes[..at]), "{name}: cut at {at}");
        }
    }
}

#[test]
fn the_right_bytes_in_the_wrong_place_do_not_pass() {
    let bytes = superblock().encode(&[2; 16]);
    assert!(Superblock::decode(&bytes, &[2; 16], 0).is_err(), "the other slot");
    assert!(Superblock::decode(&bytes, &[3; 16], 4096).is_err(), "another disk");
    let bytes = chunk_header().encode(5, 72);
    assert!(ChunkHeader::decode(&bytes, 5, 73).is_err() && ChunkHeader::decode(&bytes, 6, 72).is_err());
    let frame = FrameHeader::stamped(b"frame", 77, 18, 16);
    assert!(FrameHeader::decode(&frame, 78).is_none(), "an earlier life of the segment");
    assert_ne!(FrameHeader::life(1, &[1; 16]), FrameHeader::life(2, &[1; 16]));
    let place = Place { pack: 1, offset: 72, stored: 1, raw: 1, class: Class::Data, codec: Codec::Raw };
    assert_eq!(Place::decode(&address(2), &place.encode(&address(1))), None);
}

#[test]
fn zeroes_and_hostile_bytes_are_nothing_and_never_panic() {
    let decode_all = |bytes: &[u8]| {
        for (name, _, accepts) in structures() {
            assert!(!accepts(bytes), "{name}");
        }
    };
    decode_all(&[0; 8192]);
    decode_all(&[0xff; 8192]);
    let mut state = 1_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..200 {
        let length = usize::try_from(random() % 5000).unwrap();
        let bytes: Vec<u8> = (0..length).map(|_| random().to_le_bytes()[0]).collect();
        decode_all(&bytes);
        // Behind a sound beginning, and with a sound checksum over nonsense.
        for (_, good, accepts) in structures() {
            let keep = usize::try_from(random()).unwrap_or(7) % good.len();
            let mixed: Vec<u8> = good[..keep].iter().chain(&bytes).copied().collect();
            accepts(&mixed);
        }
        let footer = PackFooter {
            version: PACK_VERSION,
            pack: 5,
            data_bytes: u32::try_from(random() >> 40).unwrap(),
            count: u32::try_from(random() % 100).unwrap(),
            directory: base::hash::checksum(5, &bytes),
        };
        assert!(decode_directory(&footer, &bytes).is_err(), "random bytes are no directory");
    }
}

#[test]
fn names_are_ours_or_not() {
    assert_eq!(pack_path(255), "packs/00000000000000ff.pack");
    assert_eq!(number_of("00000000000000ff.pack", ".pack"), Some(255));
    for name in ["ff.pack", "00000000000000FF.pack", "00000000000000ff.pack.damaged", "+0000000000000ff.pack", ""] {
        assert_eq!(number_of(name, ".pack"), None, "{name}");
    }
}
