//! What is encoded decodes to itself; what is not ours is refused, and nothing panics.

use base::codec::{Reader, Writer};
use base::id::{ChunkAddress, FileId, Version};
use base::time::Timestamp;
use bytes::Bytes;
use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

use crate::attributes::{Attributes, Kind};
use crate::extent::Extent;
use crate::format::{
    Base, Change, Content, Entry, InodeValue, Record, Root, Roots, SnapshotValue, XattrPlace, decode_extent,
    decode_record, decode_xattrs, encode_record,
};

pub(super) fn attributes(file: FileId) -> Attributes {
    Attributes {
        file,
        kind: Kind::Regular,
        mode: 0o4751,
        uid: 1,
        gid: u32::MAX,
        links: 3,
        device: 0,
        size: 1 << 40,
        allocated: 4096,
        accessed: Timestamp::new(-5, 999_999_999),
        modified: Timestamp::new(1 << 35, 1),
        changed: Timestamp::new(0, 0),
        born: Timestamp::new(7, 7),
        parent: FileId(0),
        resilience: store::Resilience::Copies(3),
        is_preallocated: true,
    }
}

pub(super) fn changes() -> Vec<Change> {
    let chunk = Extent::Chunk { address: ChunkAddress([9; 32]), skip: 5, chunk_bytes: 100 };
    let now = Timestamp::new(1, 2);
    vec![
        Change::Create { attributes: attributes(FileId(77)), target: Bytes::from_static(b"../target") },
        Change::Attributes(attributes(FileId(77))),
        Change::Write {
            size: 9,
            mode: 0o600,
            modified: now,
            changed: now,
            content: vec![
                (0, Content::Inline(b"bytes".to_vec())),
                (5, Content::Extent(95, chunk)),
                (100, Content::Extent(u64::MAX - 100, Extent::Hole)),
                (300, Content::Extent(1, Extent::Zero)),
            ],
        },
        Change::Xattr { name: b"user.a".to_vec(), value: Some(vec![0; 300]) },
        Change::Xattr { name: b"user.a".to_vec(), value: None },
        Change::Insert {
            cookie: 300,
            entry: Entry { file: FileId(5), kind: Kind::Symlink, name: b"\xff".as_slice().into() },
        },
        Change::Remove { cookie: u64::MAX },
        Change::Gone,
    ]
}

#[test]
fn records_survive_and_chain() {
    let mut frame = Writer::default();
    let mut version = Version { epoch: 3, sequence: 8, chain: 1 };
    let mut expected = Vec::new();
    for change in changes() {
        let time = Timestamp::new(10, 20);
        version = encode_record(FileId(77), &version, time, &change, &mut frame);
        expected.push(Record { file: FileId(77), version, time, change });
    }
    let mut reader = Reader::new(frame.bytes());
    let mut chain = 1;
    for expected in expected {
        let (record, covered) = decode_record(&mut reader).unwrap();
        chain = base::hash::chain(chain, covered);
        assert_eq!(record.version.chain, chain);
        assert_eq!(record, expected);
    }
    assert_eq!(reader.remaining(), 0);
}

#[test]
fn a_truncated_record_is_refused() {
    for change in changes() {
        let mut frame = Writer::default();
        encode_record(FileId(77), &Version::default(), Timestamp::new(0, 0), &change, &mut frame);
        for length in 0..frame.bytes().len() {
            assert!(decode_record(&mut Reader::new(&frame.bytes()[..length])).is_err(), "{change:?} cut at {length}");
        }
    }
}

#[test]
fn roots_and_inodes_survive() {
    let node = Root::Node { address: ChunkAddress([3; 32]), level: 2 };
    let roots = Roots {
        catalog: node.clone(),
        snapshots: Root::Empty,
        orphans: Root::Inline(Bytes::from_static(b"leaf")),
        next_counter: 1 << 47,
        next_view: 9,
    };
    assert_eq!(Roots::decode(&roots.encode()).unwrap(), roots);
    for xattrs in
        [XattrPlace::None, XattrPlace::Inline(Bytes::from_static(b"x")), XattrPlace::Chunk(ChunkAddress([1; 32]))]
    {
        let base =
            Base { tree: node.clone(), target: Bytes::from_static(b"t"), xattrs, allocated: 4096, is_orphan: false };
        let value = InodeValue { attributes: attributes(FileId(4)), version: Version::default(), base };
        assert_eq!(InodeValue::decode(FileId(4), &value.encode()).unwrap(), value);
    }
    let snapshot = SnapshotValue { taken: Timestamp::new(4, 5), catalog: node, name: "näme".to_owned() };
    assert_eq!(SnapshotValue::decode(&snapshot.encode()).unwrap(), snapshot);
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400), kind in 0..9_u8) {
        let _ = Roots::decode(&bytes);
        let _ = InodeValue::decode(FileId(1), &bytes);
        let _ = SnapshotValue::decode(&bytes);
        let _ = decode_xattrs(&bytes);
        let _ = decode_extent(&mut Reader::new(&bytes));
        let _ = Entry::decode(&mut Reader::new(&bytes));
        let _ = crate::tree::encoded_again(&bytes, 0);
        // A frame whose length and kind are plausible, so that more than the first field is looked at.
        let mut frame = Vec::from(u32::try_from(bytes.len() + 21).unwrap().to_le_bytes());
        frame.push(kind);
        frame.extend_from_slice(&bytes);
        frame.extend_from_slice(&[0; 16]);
        let _ = decode_record(&mut Reader::new(&frame));
    }

    #[test]
    fn a_changed_byte_of_a_record_breaks_its_chain(at in any::<proptest::sample::Index>(), flip in 1..=255_u8, which in 0..8_usize) {
        let mut frame = Writer::default();
        encode_record(FileId(77), &Version::default(), Timestamp::new(0, 0), &changes()[which], &mut frame);
        let mut bytes = frame.bytes().to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        if let Ok((record, covered)) = decode_record(&mut Reader::new(&bytes)) {
            prop_assert!(base::hash::chain(0, covered) != record.version.chain);
        }
        prop_assert_eq!(bytes.len(), frame.bytes().len());
    }
}
