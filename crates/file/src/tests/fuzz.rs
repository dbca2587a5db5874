//! Damaged structures: decoded to what encodes to the same bytes, or refused. Targets of the crate `fuzz`.

use base::codec::{DecodeError, Reader, Writer};
use base::hash::DomainKey;
use base::id::{ChunkAddress, FileId, Version};
use base::time::Timestamp;
use bytes::Bytes;
use fuzz::{CASES, SLOW_CASES, Target, expect_canonical, no_repair};
use store::{Class, Packing};

use super::format::{attributes, changes};
use crate::acl;
use crate::attributes::Kind;
use crate::extent::Extent;
use crate::format::{
    Base, BranchValue, Entry, InodeValue, Root, Roots, SnapshotValue, XattrPlace, Xattrs, decode_record,
    decode_tree_extent, decode_xattrs, encode_extent, encode_record, encode_xattrs,
};
use crate::transfer::format::{Head, NoHead, Part};

const KEY: DomainKey = DomainKey([7; 32]);
const FILE: FileId = FileId::main(77);
const NODE: Root = Root::Node { address: ChunkAddress([3; 32]), level: 2 };

const TARGETS: &[Target] = &[
    Target {
        name: "roots",
        cases: CASES,
        samples: || {
            let roots = |catalog, orphans, branches| Roots {
                catalog,
                snapshots: NODE,
                orphans,
                next_counter: 9,
                next_view: 4,
                branches,
                is_raising: false,
            };
            let inline = Root::Inline(Bytes::from_static(b"leaf"));
            let plain = roots(NODE, Root::Empty, Root::Empty);
            let raising = Roots { is_raising: true, ..plain.clone() };
            vec![plain.encode(), raising.encode(), roots(inline.clone(), inline, NODE).encode()]
        },
        repair: no_repair,
        check: |bytes| {
            expect_canonical(bytes, &Roots::decode(bytes).map_err(words)?.encode());
            Ok(())
        },
    },
    Target {
        name: "inode",
        cases: CASES,
        samples: || {
            let inode = |tree, target, xattrs| {
                let base = Base { tree, target, xattrs, allocated: 4096, is_orphan: false };
                InodeValue { attributes: attributes(FILE), version: Version::default(), base }.encode()
            };
            vec![
                inode(NODE, Bytes::new(), XattrPlace::Chunk(ChunkAddress([1; 32]))),
                inode(Root::Empty, Bytes::from_static(b"../target"), XattrPlace::Inline(Bytes::from_static(b"xattrs"))),
                inode(Root::Inline(Bytes::from_static(b"leaf")), Bytes::new(), XattrPlace::None),
            ]
        },
        repair: no_repair,
        check: |bytes| {
            expect_canonical(bytes, &InodeValue::decode(FILE, bytes).map_err(words)?.encode());
            Ok(())
        },
    },
    Target {
        name: "branch",
        cases: CASES,
        samples: || {
            let branch = |catalog, orphans, top| BranchValue { catalog, orphans, top, root: 1, above: FILE }.encode();
            vec![branch(NODE, Root::Empty, 5), branch(Root::Inline(Bytes::from_static(b"leaf")), NODE, 0)]
        },
        repair: no_repair,
        check: |bytes| {
            expect_canonical(bytes, &BranchValue::decode(bytes).map_err(words)?.encode());
            Ok(())
        },
    },
    Target {
        name: "snapshot",
        cases: CASES,
        samples: || {
            let snapshot = |catalog, name: &str, root, next_counter, branches| {
                let (taken, name, is_tidy) = (Timestamp::new(-4, 5), name.to_owned(), next_counter > 9);
                SnapshotValue { taken, catalog, name, root, next_counter, branches, is_tidy }.encode()
            };
            // The first as older programs wrote it.
            vec![
                snapshot(NODE, "n\u{e4}me", FileId::ROOT, 0, Root::Empty),
                snapshot(Root::Empty, "x", FileId::ROOT, 9, NODE),
                snapshot(NODE, "y", FILE, 99, Root::Empty),
            ]
        },
        repair: no_repair,
        check: |bytes| {
            expect_canonical(bytes, &SnapshotValue::decode(bytes).map_err(words)?.encode());
            Ok(())
        },
    },
    Target {
        name: "stream-head",
        cases: CASES,
        samples: || {
            let snapshot = |catalog, root, next_counter| {
                let (taken, name) = (Timestamp::new(-4, 5), "n\u{e4}me".to_owned());
                SnapshotValue { taken, catalog, name, root, next_counter, branches: Root::Empty, is_tidy: true }
            };
            let (one, two) = (snapshot(NODE, FileId::ROOT, 9), snapshot(Root::Empty, FILE, 99));
            let all = Head { identity: [1; 32], base: None, first: 0, snapshot: one };
            let rest = Head { identity: [2; 32], base: Some([3; 32]), first: 7, snapshot: two };
            vec![all.encode(&KEY), rest.encode(&KEY)]
        },
        repair: |bytes| {
            if let Some((sealed, seal)) = bytes.split_last_chunk_mut::<32>() {
                *seal = KEY.seal(sealed);
            }
        },
        check: |bytes| {
            let head = Head::decode(bytes, &KEY).map_err(|why| match why {
                NoHead::Damaged(error) => words(error),
                other => format!("{other:?}"),
            })?;
            assert_eq!(Head::bytes(bytes), Ok(bytes.len()));
            expect_canonical(bytes, &head.encode(&KEY));
            Ok(())
        },
    },
    Target {
        name: "stream-part",
        cases: CASES,
        samples: || {
            let chunk = |class, packing, raw, stored| {
                Part::Chunk { class, packing, raw, stored, address: ChunkAddress([3; 32]) }.encode()
            };
            vec![
                chunk(Class::Metadata, Packing::Zstd, 1 << 20, 17),
                chunk(Class::Data, Packing::Raw, 100, 100),
                Part::end(7, b"head", &KEY).encode(),
            ]
        },
        repair: no_repair,
        check: |bytes| {
            let part = Part::decode(bytes).map_err(words)?;
            if let Part::Chunk { raw, stored, .. } = part {
                assert!(stored <= raw && raw <= 1 << 20, "more than a chunk may have");
            }
            expect_canonical(bytes, &part.encode());
            Ok(())
        },
    },
    Target {
        name: "stream",
        cases: SLOW_CASES,
        samples: || vec![super::transfer::sample()],
        repair: super::transfer::seal_again,
        check: super::transfer::check_stream,
    },
    Target {
        name: "xattrs",
        cases: CASES,
        samples: || {
            let one: Xattrs = [(b"user.a".to_vec(), vec![7; 30])].into();
            let many = (0..5_u8).map(|number| (vec![b'u', number], vec![number; 3])).collect();
            vec![encode_xattrs(&Xattrs::new()), encode_xattrs(&one), encode_xattrs(&many)]
        },
        repair: no_repair,
        check: |bytes| {
            expect_canonical(bytes, &encode_xattrs(&decode_xattrs(bytes).map_err(words)?));
            Ok(())
        },
    },
    Target {
        name: "extent",
        cases: CASES,
        samples: || {
            let chunk = Extent::Chunk { address: ChunkAddress([9; 32]), skip: 5, chunk_bytes: 100 };
            [(95, chunk), (1, Extent::Zero), (u64::MAX, Extent::Zero)]
                .map(|(length, extent)| extent_bytes(length, &extent))
                .to_vec()
        },
        repair: no_repair,
        check: |bytes| {
            let (length, extent) = decode_tree_extent(bytes).map_err(words)?;
            if let Extent::Chunk { skip, chunk_bytes, .. } = extent {
                assert!(u128::from(length) + u128::from(skip) <= u128::from(chunk_bytes), "beyond its chunk");
            }
            expect_canonical(bytes, &extent_bytes(length, &extent));
            Ok(())
        },
    },
    Target {
        name: "entry",
        cases: CASES,
        samples: || {
            let entry = |kind, name: &[u8]| entry_bytes(&Entry { file: FILE, kind, name: name.into() });
            let top = Entry { file: FileId { branch: 9, number: 5 }, kind: Kind::Directory, name: b"clone"[..].into() };
            vec![entry(Kind::Directory, b"name"), entry(Kind::Socket, &[0xff; 255]), entry_bytes(&top)]
        },
        repair: no_repair,
        check: |bytes| {
            let mut reader = Reader::new(bytes);
            let entry = Entry::decode(FILE.branch, &mut reader).map_err(words)?;
            expect_canonical(&bytes[..reader.offset()], &entry_bytes(&entry));
            Ok(())
        },
    },
    Target {
        name: "record",
        cases: CASES,
        samples: || {
            changes()
                .iter()
                .map(|change| record_bytes(std::slice::from_ref(change)))
                .chain([record_bytes(&changes())])
                .collect()
        },
        // Replaying compares the chain; decoding a record does not.
        repair: no_repair,
        check: |bytes| {
            let mut reader = Reader::new(bytes);
            while reader.remaining() > 0 {
                let start = reader.offset();
                let (record, covered) = decode_record(&mut reader).map_err(words)?;
                let given = &bytes[start..reader.offset()];
                if record.version.sequence > 0 {
                    let previous = Version { sequence: record.version.sequence - 1, ..record.version };
                    let mut writer = Writer::default();
                    encode_record(record.file, &previous, record.time, &record.change, &mut writer);
                    // The chain goes on from a record that is not here.
                    let body = writer.bytes().len() - 16;
                    expect_canonical(&given[..given.len() - 16], &writer.bytes()[..body]);
                    assert_eq!(covered, &given[4..body]);
                }
            }
            Ok(())
        },
    },
    Target {
        name: "acl",
        cases: CASES,
        samples: || {
            let list = |rules: &[[u8; 2]]| {
                let rule = |[tag, rights]: &[u8; 2]| [*tag, 0, *rights, 0, 7, 0, 0, 0];
                [vec![2, 0, 0, 0], rules.iter().flat_map(rule).collect()].concat()
            };
            // User, group, mask and others; and the rules for one more user.
            vec![list(&[[1, 6], [4, 4], [32, 0]]), list(&[[1, 7], [2, 6], [4, 5], [16, 7], [32, 5]])]
        },
        repair: no_repair,
        check: |bytes| {
            acl::check(bytes).map_err(|error| error.to_string())?;
            let inherited = acl::inherit(bytes, 0o2750).expect("a list that may be stored");
            assert_eq!(inherited.mode & !0o2750, 0, "rights that nobody asked for");
            let (mode, kept) = acl::to_mode(bytes).expect("a list that may be stored");
            assert!(mode <= 0o777);
            let changed = acl::change_mode(bytes, mode).expect("a list that may be stored");
            assert!(changed == bytes, "the mode that it means changes nothing");
            assert!(kept.is_none_or(|kept| kept == bytes));
            Ok(())
        },
    },
    Target {
        name: "leaf",
        cases: CASES,
        samples: || vec![crate::tree::sample(0, 1), crate::tree::sample(0, 9)],
        repair: no_repair,
        check: |bytes| node(bytes, 0),
    },
    Target {
        name: "inner",
        cases: CASES,
        samples: || vec![crate::tree::sample(3, 1), crate::tree::sample(3, 9)],
        repair: no_repair,
        check: |bytes| node(bytes, 3),
    },
];

fn node(bytes: &[u8], level: u8) -> Result<(), String> {
    expect_canonical(bytes, &crate::tree::encoded_again(bytes, level).map_err(|error| error.to_string())?);
    Ok(())
}

fn extent_bytes(length: u64, extent: &Extent) -> Vec<u8> {
    let mut writer = Writer::default();
    encode_extent(length, extent, &mut writer);
    writer.into_bytes()
}

fn entry_bytes(entry: &Entry) -> Vec<u8> {
    let mut writer = Writer::default();
    entry.encode(FILE.branch, &mut writer);
    writer.into_bytes()
}

fn record_bytes(changes: &[crate::format::Change]) -> Vec<u8> {
    let mut writer = Writer::default();
    let mut version = Version { epoch: 3, sequence: 8, chain: 1 };
    for change in changes {
        version = encode_record(FILE, &version, Timestamp::new(10, 20), change, &mut writer);
    }
    writer.into_bytes()
}

fn words(error: DecodeError) -> String {
    error.what.to_owned()
}

#[test]
fn damaged_structures_are_refused_or_mean_what_they_are() {
    fuzz::run(env!("CARGO_MANIFEST_DIR"), TARGETS);
}
