//! What is encoded decodes to itself; what is not ours is refused, and nothing panics.

use base::codec::{Reader, Writer};
use base::id::{ChunkAddress, FileId, Version};
use base::time::Timestamp;
use bytes::Bytes;
use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

use crate::attributes::{Attributes, Kind};
use crate::extent::Extent;
use crate::format::{
    Base, BranchValue, Change, Content, Entry, InodeValue, Record, Root, Roots, SnapshotValue, XattrPlace,
    decode_record, decode_tree_extent, decode_xattrs, encode_record,
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
        parent: FileId::main(0),
        resilience: store::Resilience::Copies(3),
        is_preallocated: true,
    }
}

fn fragments(data: u8, parity: u8) -> store::Resilience {
    store::Resilience::Fragments(store::Erasure::new(data, parity).unwrap())
}

pub(super) fn changes() -> Vec<Change> {
    let chunk = Extent::Chunk { address: ChunkAddress([9; 32]), skip: 5, chunk_bytes: 100 };
    let now = Timestamp::new(1, 2);
    vec![
        Change::Create { attributes: attributes(FileId::main(77)), target: Bytes::from_static(b"../target") },
        Change::Attributes(attributes(FileId::main(77))),
        Change::Attributes(Attributes { resilience: fragments(16, 4), ..attributes(FileId::main(77)) }),
        Change::Attributes(Attributes {
            resilience: fragments(2, 1),
            is_preallocated: false,
            ..attributes(FileId::main(77))
        }),
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
            entry: Entry { file: FileId::main(5), kind: Kind::Symlink, name: b"\xff".as_slice().into() },
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
        version = encode_record(FileId::main(77), &version, time, &change, &mut frame);
        expected.push(Record { file: FileId::main(77), version, time, change });
    }
    let top = FileId { branch: 9, number: 77 };
    let attributes = Attributes { kind: Kind::Directory, parent: FileId::main(3), ..attributes(top) };
    for catalog in [Root::Inline(Bytes::from_static(b"leaf")), Root::Node { address: ChunkAddress([3; 32]), level: 1 }]
    {
        let (time, change) =
            (Timestamp::new(10, 20), Change::Branch { catalog, root: 1, attributes: attributes.clone() });
        version = encode_record(top, &version, time, &change, &mut frame);
        expected.push(Record { file: top, version, time, change });
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
        encode_record(FileId::main(77), &Version::default(), Timestamp::new(0, 0), &change, &mut frame);
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
        branches: Root::Node { address: ChunkAddress([4; 32]), level: 0 },
        is_raising: false,
    };
    for branches in [roots.branches.clone(), Root::Empty] {
        for is_raising in [false, true] {
            let roots = Roots { branches: branches.clone(), is_raising, ..roots.clone() };
            assert_eq!(Roots::decode(&roots.encode()).unwrap(), roots);
        }
    }
    let nothing_follows = [&Roots::default().encode()[..], &[0]].concat();
    assert!(Roots::decode(&nothing_follows).is_err(), "no branches are said by saying nothing");
    for xattrs in
        [XattrPlace::None, XattrPlace::Inline(Bytes::from_static(b"x")), XattrPlace::Chunk(ChunkAddress([1; 32]))]
    {
        let base =
            Base { tree: node.clone(), target: Bytes::from_static(b"t"), xattrs, allocated: 4096, is_orphan: false };
        let value = InodeValue { attributes: attributes(FileId::main(4)), version: Version::default(), base };
        assert_eq!(InodeValue::decode(FileId::main(4), &value.encode()).unwrap(), value);
    }
    for branches in [Root::Empty, Root::Inline(Bytes::from_static(b"leaf"))] {
        let (catalog, name) = (node.clone(), "näme".to_owned());
        let (taken, root) = (Timestamp::new(4, 5), FileId { branch: 3, number: 77 });
        let is_tidy = branches == Root::Empty;
        let snapshot = SnapshotValue { taken, catalog, name, root, next_counter: 78, branches, is_tidy };
        assert_eq!(SnapshotValue::decode(&snapshot.encode()).unwrap(), snapshot);
        for name in ["", ".", "..", "a/b", "a\0"] {
            let nameless = SnapshotValue { name: name.to_owned(), ..snapshot.clone() };
            assert!(SnapshotValue::decode(&nameless.encode()).is_err(), "{name:?}");
        }
    }
    let branch = BranchValue { catalog: node, orphans: Root::Empty, top: 77, root: 1, above: FileId::main(9) };
    assert_eq!(BranchValue::decode(&branch.encode()).unwrap(), branch);
}

/// What a directory of a branch names is of that branch, whoever wrote it; but for the top of a clone.
#[test]
fn files_are_of_the_branch_that_names_them() {
    let encoded = |entry: &Entry, home| {
        let mut writer = Writer::default();
        entry.encode(home, &mut writer);
        writer.into_bytes()
    };
    let entry = |file| Entry { file, kind: Kind::Directory, name: b"name"[..].into() };
    let inherited = encoded(&entry(FileId::main(9)), 0);
    let file = |bytes: &[u8], home| Entry::decode(home, &mut Reader::new(bytes)).unwrap().file;
    assert_eq!(file(&inherited, 5), FileId { branch: 5, number: 9 });
    for top in [FileId { branch: 7, number: 9 }, FileId::main(9)] {
        assert_eq!(file(&encoded(&entry(top), 5), 5), top);
    }

    let top = FileId { branch: 7, number: 9 };
    let base = || Base {
        tree: Root::Empty,
        target: Bytes::new(),
        xattrs: XattrPlace::None,
        allocated: 4096,
        is_orphan: false,
    };
    for parent in [FileId::NONE, FileId::main(3), FileId { branch: 7, number: 3 }] {
        let attributes = Attributes { parent, ..attributes(top) };
        let value = InodeValue { attributes, version: Version::default(), base: base() };
        assert_eq!(InodeValue::decode(top, &value.encode()).unwrap(), value);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400), kind in 0..10_u8) {
        let _ = Roots::decode(&bytes);
        let _ = InodeValue::decode(FileId::main(1), &bytes);
        let _ = SnapshotValue::decode(&bytes);
        let _ = decode_xattrs(&bytes);
        let _ = decode_tree_extent(&bytes);
        let _ = Entry::decode(5, &mut Reader::new(&bytes));
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
        encode_record(FileId::main(77), &Version::default(), Timestamp::new(0, 0), &changes()[which], &mut frame);
        let mut bytes = frame.bytes().to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        if let Ok((record, covered)) = decode_record(&mut Reader::new(&bytes)) {
            prop_assert!(base::hash::chain(0, covered) != record.version.chain);
        }
        prop_assert_eq!(bytes.len(), frame.bytes().len());
    }
}
