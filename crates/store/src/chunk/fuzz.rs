//! Stored chunks that are damaged: what comes of them has the address that was asked for, or nothing does. Targets of the crate `fuzz`.

use base::hash::DomainKey;
use bytes::Bytes;
use fuzz::{CASES, Target, repair_tail};

use super::{
    Bundle, Compression, Named, Packed, groups_of, lots, mended, pack, pack_lot, place_of_group, saved, unpack,
    unpack_group, unpack_left, verify,
};
use crate::format::{ChunkHeader, Class, Codec};

const KEY: DomainKey = DomainKey([3; 32]);
const PACK: u64 = 5;
const AT: u32 = 72;

const TARGETS: &[Target] = &[
    Target { name: "chunk", cases: CASES, samples: chunks, repair: repair_header, check: chunk },
    Target { name: "bundle", cases: CASES, samples: bundles, repair: repair_header, check: bundle },
];

fn text(length: usize) -> Bytes {
    (0..length).map(|at| b"one small file after the other "[at % 31] ^ u8::from(at % 977 == 0)).collect()
}

fn noise(length: usize) -> Bytes {
    let mut state = 1_u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..length).map(next).collect()
}

fn packed(class: Class, content: Bytes) -> Packed {
    pack(Compression::Zstd(1), class, Named::of(&KEY, class, content))
}

/// A header, and what it is the header of.
fn bytes_of(header: &ChunkHeader, packed: &Packed) -> Vec<u8> {
    [&header.encode(PACK, AT)[..], &packed.table, &packed.payload].concat()
}

/// Stored as it is, compressed, in groups, and what is left of such a one.
fn chunks() -> Vec<Vec<u8>> {
    let groups = packed(Class::Data, noise(40_000));
    assert_eq!(groups.header.codec, Codec::Groups);
    let mut damaged = [&groups.table[..], &groups.payload].concat();
    damaged[place_of_group(&groups.header, 1)].fill(7);
    let remains = saved(&KEY, &groups.header, &[damaged.into()]).expect("most of it is good");
    assert_eq!(remains.header.codec, Codec::Remains);
    let small = [
        (Class::Data, noise(300)),
        (Class::Data, Bytes::new()),
        (Class::Metadata, text(900)),
        (Class::Data, text(3000)),
    ];
    let small = small.map(|(class, content)| packed(class, content));
    small.iter().chain([&groups, &remains]).map(|packed| bytes_of(&packed.header, packed)).collect()
}

fn lot() -> Packed {
    let contents = (1..9).map(|number| Named::of(&KEY, Class::Data, text(40 * number))).collect();
    let lot = lots(Compression::Zstd(1), Class::Data, contents).pop().expect("one lot");
    pack_lot(&KEY, Compression::Zstd(1), Class::Data, lot).pop().expect("a bundle")
}

/// For each chunk of a bundle its header, and then the bundle.
fn bundles() -> Vec<Vec<u8>> {
    let lot = lot();
    assert_eq!(lot.header.codec, Codec::Bundle);
    lot.bundled.iter().map(|inner| [&inner.encode(PACK, AT)[..], &bytes_of(&lot.header, &lot)].concat()).collect()
}

fn repair_header(bytes: &mut [u8]) {
    for header in bytes.chunks_exact_mut(ChunkHeader::BYTES).take(2) {
        // What comes second is a header where there is a bundle.
        if header.starts_with(&ChunkHeader::MAGIC) {
            repair_tail(header, ChunkHeader::seed(PACK, AT));
        }
    }
}

fn header_of(bytes: &[u8]) -> Result<(ChunkHeader, Bytes), String> {
    let (header, rest) = bytes.split_at_checked(ChunkHeader::BYTES).ok_or("short")?;
    let header = ChunkHeader::decode(header, PACK, AT).map_err(|unfit| unfit.expected)?;
    Ok((header, Bytes::copy_from_slice(rest)))
}

/// C-1, C-3, C-7: whole, by groups, and what is left.
fn chunk(bytes: &[u8]) -> Result<(), String> {
    let (header, payload) = header_of(bytes)?;
    let content = match header.codec {
        Codec::Remains => None,
        _ => Some(unpack(&KEY, &header, payload.clone())?),
    };
    if let Some(content) = &content {
        assert_eq!(content.len(), header.raw as usize);
        assert_eq!(KEY.address(content), header.address, "content of another address");
        // Whatever its table says, it can be stored again.
        verify(&KEY, &header, &mended(&KEY, &header, payload.clone())).expect("mended");
    }
    if matches!(header.codec, Codec::Groups | Codec::Remains) {
        let groups = groups_of(&KEY, &header, &payload)?;
        for number in 0..groups.len() {
            let within = place_of_group(&header, number);
            let found = payload.slice_ref(payload.get(within).ok_or("short of a group")?);
            let found = match header.codec {
                Codec::Remains => unpack_left(&KEY, &groups, number, found)?,
                _ => Some(unpack_group(&KEY, &groups, number, found)?),
            };
            if let Some(found) = found {
                assert_eq!(KEY.group_hash(number, &found), groups[number]);
            }
        }
    }
    verify(&KEY, &header, &payload)
}

/// C-5.
fn bundle(bytes: &[u8]) -> Result<(), String> {
    let (inner, rest) = header_of(bytes)?;
    let (header, payload) = header_of(&rest)?;
    let bundle = Bundle::open(&header, &payload)?;
    let Codec::Bundled(within) = inner.codec else { return Err("a chunk that lies by itself".to_owned()) };
    let content = bundle.content_of(&KEY, &inner.address, inner.raw, within)?;
    assert_eq!(KEY.address(&content), inner.address, "content of another address");
    bundle.holds(&KEY, &inner)
}

#[test]
fn damaged_chunks_are_refused_or_have_their_address() {
    fuzz::run(env!("CARGO_MANIFEST_DIR"), TARGETS);
}
