//! Damaged structures: decoded to what encodes to the same bytes, or refused. Targets of the crate `fuzz`.

use base::hash::{DomainKey, checksum};
use base::id::{ChunkAddress, NodeNumber, Position};
use base::time::Timestamp;
use fuzz::{CASES, Target, expect_canonical, no_repair, repair_tail};

use super::{
    ChunkHeader, Class, Codec, Cut, DomainFile, Entry, FragmentHeader, FragmentName, FrameHeader, Homes, Identity,
    PACK_VERSION, PackFooter, PackHeader, Place, ROOTS_BYTES_MAX, SegmentHeader, Summary, Superblock, Unfit,
    decode_directory, encode_directory,
};
use crate::disks::DISKS_MAX;
use crate::disks::DiskSet;
use crate::level::{Erasure, Level, Resilience};

const PACK: u64 = 5;
const CHUNK_AT: u32 = 72;
const SEGMENT: u64 = 4;
const NODE: [u8; 16] = [1; 16];
const DISK: [u8; 16] = [2; 16];
const ADDRESS: ChunkAddress = ChunkAddress([9; 32]);

fn fragment() -> FragmentName {
    FragmentName::new(PACK, Erasure::new(4, 2).expect("one that there is"), 5)
}

const TARGETS: &[Target] = &[
    Target {
        name: "identity",
        cases: CASES,
        samples: || {
            let identity = Identity {
                node_identity: NODE,
                node: NodeNumber(7),
                disk: 1,
                disk_count: 3,
                disk_uuid: DISK,
                created: Timestamp::new(-1, 999_999_999),
                key: DomainKey([3; 32]),
            };
            vec![identity.encode()]
        },
        repair: |bytes| repair_tail(bytes, 0),
        check: |bytes| {
            expect_canonical(bytes, &Identity::decode(bytes).map_err(words)?.encode());
            Ok(())
        },
    },
    Target {
        name: "domain",
        cases: CASES,
        samples: || vec![DomainFile { key: DomainKey([3; 32]) }.encode()],
        repair: |bytes| repair_tail(bytes, 0),
        check: |bytes| {
            expect_canonical(bytes, &DomainFile::decode(bytes).map_err(words)?.encode());
            Ok(())
        },
    },
    Target {
        name: "summary",
        cases: CASES,
        samples: || {
            let of = |level| Summary { lacks_directory: true, ..Summary::of(900, &[], level) };
            vec![of(Level::of_node(3)).encode().to_vec(), of(Level::default()).encode().to_vec()]
        },
        repair: no_repair,
        check: |bytes| {
            // A wrong number only shows: nothing refuses it, and nothing that is reckoned with it overflows.
            let summary = Summary::decode(bytes.try_into().map_err(|_| "length")?);
            assert!(summary.file_bytes() > u64::from(summary.data_bytes));
            assert_eq!(Summary::decode(&summary.encode()), summary);
            Ok(())
        },
    },
    Target {
        name: "superblock",
        cases: CASES,
        samples: || {
            let superblock = |disks, roots| Superblock {
                generation: 7,
                is_closed: true,
                node_identity: NODE,
                covered: Position(100),
                durable: Position(120),
                pack_next: 33,
                time: Timestamp::new(1_700_000_000, 5),
                disks: vec![DISK; disks],
                without: DiskSet::NONE,
                homes: Homes { disks: DiskSet::of(0).with(disks - 1), are_all_needed: disks > 2 },
                index: 0,
                drained: DiskSet::NONE,
                floor: 1,
                roots: vec![0xab; roots],
            };
            vec![superblock(1, 90).encode(&DISK), superblock(DISKS_MAX, ROOTS_BYTES_MAX).encode(&DISK)]
        },
        repair: |bytes| repair_tail(bytes, 4096),
        check: |bytes| {
            let superblock = Superblock::decode(bytes, &DISK, 4096).map_err(words)?;
            if bytes[8] < 3 {
                // Of a version before: written as this one from now on.
                let again = Superblock::decode(&superblock.encode(&DISK), &DISK, 4096).map_err(words)?;
                assert_eq!(again, superblock);
            } else {
                expect_canonical(bytes, &superblock.encode(&DISK));
            }
            Ok(())
        },
    },
    Target {
        name: "fragment-header",
        cases: CASES,
        samples: || {
            let header = |name: FragmentName, whole_bytes| {
                let cut = Cut { erasure: name.erasure, whole_bytes };
                let header = FragmentHeader { pack: name.pack, node_identity: NODE, cut, index: name.index, sums: 77 };
                header.encode()
            };
            vec![header(fragment(), 1 << 20), header(fragment(), u64::from(u32::MAX))]
        },
        repair: |bytes| repair_tail(bytes, ChunkHeader::seed(PACK, 5)),
        check: |bytes| {
            let header = FragmentHeader::decode(bytes, &fragment()).map_err(words)?;
            expect_canonical(bytes, &header.encode());
            // Nothing of a length that it says overflows.
            assert!(header.cut.file_bytes() >= header.cut.whole_bytes / u64::from(header.cut.erasure.data()));
            Ok(())
        },
    },
    Target {
        name: "pack-header",
        cases: CASES,
        samples: || {
            let header = |class, level| {
                let (node_identity, disk_uuid) = (NODE, DISK);
                let header = PackHeader { version: PACK_VERSION, pack: PACK, node_identity, disk_uuid, class, level };
                header.encode()
            };
            vec![
                header(Class::Metadata, Level::of_node(3)),
                header(Class::Data, Level::of(Resilience::Copies(8), Level::of_node(1))),
                header(Class::Data, Level::of_settings(1, Erasure::new(16, 4))),
            ]
        },
        repair: |bytes| repair_tail(bytes, PACK),
        check: |bytes| {
            expect_canonical(bytes, &PackHeader::decode(bytes, PACK).map_err(words)?.encode());
            Ok(())
        },
    },
    Target {
        name: "chunk-header",
        cases: CASES,
        samples: || {
            let groups = ChunkHeader { codec: Codec::Groups, ..chunk_header(70_000, 70_000 + 5 * 32) };
            let remains = ChunkHeader { codec: Codec::Remains, ..chunk_header(70_000, 70_000 + 5 * 32) };
            let headers = [chunk_header(70_000, 30_000), chunk_header(0, 0), groups, remains];
            headers.map(|header| header.encode(PACK, CHUNK_AT)).to_vec()
        },
        repair: |bytes| repair_tail(bytes, ChunkHeader::seed(PACK, CHUNK_AT)),
        check: |bytes| {
            expect_canonical(bytes, &ChunkHeader::decode(bytes, PACK, CHUNK_AT).map_err(words)?.encode(PACK, CHUNK_AT));
            Ok(())
        },
    },
    Target {
        name: "directory",
        cases: CASES,
        samples: || {
            let directory = |count: u32| {
                let entry = |number| Entry { offset: 72 + number * 30_056, header: chunk_header(70_000, 30_000) };
                encode_directory(PACK, 72 + count * 30_056, &(0..count).map(entry).collect::<Vec<_>>())
            };
            vec![directory(0), directory(1), directory(5)]
        },
        repair: |bytes| {
            if let Some((directory, footer)) = bytes.split_last_chunk_mut::<{ PackFooter::BYTES }>() {
                footer[32..40].copy_from_slice(&checksum(PACK, directory).to_le_bytes());
                repair_tail(footer, PACK);
            }
        },
        check: |bytes| {
            let (directory, end) = bytes.split_last_chunk::<{ PackFooter::BYTES }>().ok_or("short")?;
            let footer = PackFooter::decode(end, PACK).map_err(words)?;
            let entries = decode_directory(&footer, directory).map_err(words)?;
            let again = encode_directory(PACK, footer.data_bytes, &entries);
            expect_canonical(directory, &again[..directory.len()]);
            // Of the version that it is of.
            expect_canonical(end, &footer.encode());
            Ok(())
        },
    },
    Target {
        name: "segment-header",
        cases: CASES,
        samples: || vec![SegmentHeader { segment: SEGMENT, node_identity: NODE, first: Position(17) }.encode()],
        repair: |bytes| repair_tail(bytes, SEGMENT),
        check: |bytes| {
            expect_canonical(bytes, &SegmentHeader::decode(bytes, SEGMENT).map_err(words)?.encode());
            Ok(())
        },
    },
    Target {
        name: "frame",
        cases: CASES,
        samples: || [b"".as_slice(), b"thirteen byte", &[7; 500]].map(|payload| frame(payload, 18, 16)).to_vec(),
        repair: |bytes| repair_frame(bytes, FrameHeader::life(SEGMENT, &NODE)),
        check: |bytes| {
            let life = FrameHeader::life(SEGMENT, &NODE);
            let (header, payload) = FrameHeader::decode(bytes, life).ok_or("no frame")?;
            let again = frame(payload, header.position.0, header.durable.0);
            expect_canonical(&bytes[..again.len()], &again);
            Ok(())
        },
    },
    Target {
        name: "place",
        cases: CASES,
        samples: || {
            let entry = Entry { offset: CHUNK_AT, header: chunk_header(70_000, 30_000) };
            vec![Place::of(PACK, &entry).encode(&ADDRESS).to_vec()]
        },
        repair: |bytes| {
            if let Ok(place) = <&mut [u8; Place::BYTES]>::try_from(bytes) {
                let sum = Place::sum(&ADDRESS, place);
                place[22..].copy_from_slice(&sum);
            }
        },
        check: |bytes| {
            let place = Place::decode(&ADDRESS, bytes.try_into().map_err(|_| "length")?).ok_or("no place")?;
            expect_canonical(bytes, &place.encode(&ADDRESS));
            Ok(())
        },
    },
];

fn chunk_header(raw: u32, stored: u32) -> ChunkHeader {
    ChunkHeader { class: Class::Data, codec: Codec::Zstd, raw, stored, address: ADDRESS }
}

fn frame(payload: &[u8], position: u64, durable: u64) -> Vec<u8> {
    FrameHeader::stamped(payload, FrameHeader::life(SEGMENT, &NODE), position, durable)
}

/// Makes the checksum of the frame at the head of `bytes` right, as far as there is one.
pub(crate) fn repair_frame(bytes: &mut [u8], life: u64) {
    let Some(length) = bytes.get(4..8).and_then(|length| <[u8; 4]>::try_from(length).ok()) else { return };
    let end = FrameHeader::frame_bytes(u32::from_le_bytes(length) as usize).min(bytes.len());
    if end >= FrameHeader::BYTES {
        let sum = FrameHeader::sum(&bytes[..end], life);
        bytes[8..16].copy_from_slice(&sum.to_le_bytes());
    }
}

fn words(unfit: Unfit) -> String {
    // What was found has too many forms to tell refusals apart by it, unless it is what could not be read.
    if unfit.found.starts_with("cannot read") { unfit.found } else { unfit.expected }
}

#[test]
fn damaged_structures_are_refused_or_mean_what_they_are() {
    fuzz::run(env!("CARGO_MANIFEST_DIR"), TARGETS);
}
