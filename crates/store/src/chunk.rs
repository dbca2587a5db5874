//! Chunks: cutting streams, and turning content into what is stored and back.
//!
//! C-1   What [`unpack`] returns hashes to the address it was asked for; nothing else leaves the store.
//! C-2   Cuts depend only on the bytes from the last cut on, never on how a stream was divided into calls.
//! C-3   What [`unpack_group`] returns hashes to the group's place in the table, and that table ([`groups_of`]) to the address.
//! C-7   What is left of a damaged chunk has a name of its own, which nobody asks for who wants the chunk, and says which of its groups are lost. The
//!       others can be read in parts (C-3).

mod bundle;
mod spares;

use std::io;
use std::ops::Range;

use base::hash::{DomainKey, GROUP_BYTES, GroupHash};
use base::id::ChunkAddress;
use bytes::{Bytes, BytesMut};

pub(crate) use self::bundle::{BUNDLED_BYTES_MAX, Bundle, lots, pack_lot};
use self::spares::Spares;
use crate::format::{ChunkHeader, Class, Codec, Entry, remains_of};

/// How new chunks are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Stored as they are.
    None,
    /// zstd at this level, where it saves at least a sixteenth.
    Zstd(i32),
}

impl Compression {
    /// What is fast and shrinks.
    pub(crate) const FASTEST: Compression = Compression::Zstd(LEVEL_FAST);
}

/// Smallest chunk that [`cut_points`] cuts from a stream, except at its end.
///
/// As much is not looked at after each cut: two thirds of a stream (docs/decisions/0014-cutting.md).
pub const CUT_BYTES_MIN: usize = 64 * 1024;
/// The size that cuts of a stream without repetitions have on average: from the smallest on, one byte in 2^15 is a place to cut.
pub const CUT_BYTES_AVERAGE: usize = CUT_BYTES_MIN + (1 << 15);
/// Largest chunk of a stream.
pub const CUT_BYTES_MAX: usize = 256 * 1024;

/// Below this compression is not tried: the header of a zstd frame eats what it saves.
const COMPRESS_BYTES_MIN: usize = 64;

/// zstd's fastest level that is not a negative one, and the size of its table, as a power of two: 16 KiB, half of what a core has next to it. zstd
/// itself takes twice as much for what is as long as most chunks, is 4 to 11 % slower with it, and stores 1 to 2 % less (measured).
const LEVEL_FAST: i32 = 1;
const HASH_LOG: u32 = 12;

/// Where to cut `bytes`, the continuation of a stream from its last cut on: the lengths of the chunks.
///
/// Unless these are the `last` bytes, what might be cut otherwise if more were known is left out: the caller keeps that
/// tail (less than [`CUT_BYTES_MAX`] bytes) and gives it again with what follows.
#[must_use]
pub fn cut_points(bytes: &[u8], last: bool) -> Vec<usize> {
    let mut cuts = Vec::with_capacity(bytes.len() / CUT_BYTES_AVERAGE + 1);
    let mut rest = bytes;
    while let Some(length) = first_cut(rest, last) {
        cuts.push(length);
        rest = &rest[length..];
    }
    cuts
}

/// The length of the first chunk of `bytes`, by the rules of [`cut_points`]; `None` if more must be known, or there is nothing.
#[must_use]
pub fn first_cut(bytes: &[u8], last: bool) -> Option<usize> {
    let window = &bytes[..bytes.len().min(CUT_BYTES_MAX)];
    let cutter = fastcdc::v2020::FastCDC::new(window, CUT_BYTES_MIN, CUT_BYTES_MIN, CUT_BYTES_MAX);
    let (_, end) = cutter.cut(0, window.len());
    // A cut at the end of what is known is no cut, unless it is the largest chunk that there may be.
    let is_certain = last || end < bytes.len() || end == CUT_BYTES_MAX;
    (end > 0 && is_certain).then_some(end)
}

/// From this size on bytes are counted before compression is tried: so many of them, in four pieces.
const COUNTED_BYTES_MIN: usize = 2 * 1024;
const COUNTED_BYTES: usize = 1024;
/// The sum of the squares of how often each byte occurs in those, at most, where they look random. Of random ones it is 5116, and its standard deviation
/// 90; of 128 symbols that occur equally often it is 8192.
const SQUARES_RANDOM_MAX: u32 = 5600;
/// The same where little can be saved of single bytes: seven bits of each.
const SQUARES_EVEN_MAX: u32 = 8192;

/// Where little can be saved of single bytes, a sample says from this size on whether compression is worth trying.
const SAMPLED_BYTES_MIN: usize = 16 * 1024;
/// Bytes of each of the sample's three pieces.
const SAMPLE_BYTES: usize = 1024;
/// The sample must save one part in so many: it sees less of the repetitions than the whole.
const SAMPLE_SAVES: usize = 32;

/// Less than one part in so many is not worth the time that it takes to read.
const SAVES: usize = 16;

/// A content with what it is called.
pub(crate) struct Named {
    pub(crate) address: ChunkAddress,
    /// Of more than one.
    pub(crate) groups: Vec<GroupHash>,
    pub(crate) content: Bytes,
}

impl Named {
    pub(crate) fn of(key: &DomainKey, class: Class, content: Bytes) -> Named {
        let (address, groups) = match class {
            Class::Data => key.address_and_groups(&content),
            // Of a tree's node nobody wants a part.
            Class::Metadata => (key.address(&content), Vec::new()),
        };
        Named { address, groups, content }
    }
}

/// A chunk ready to be appended to a pack.
pub(crate) struct Packed {
    pub(crate) header: ChunkHeader,
    /// What comes before the payload's rest: hashes of groups.
    pub(crate) table: Bytes,
    pub(crate) payload: Bytes,
    /// What lies in it, if it is a bundle: headers that come before it.
    pub(crate) bundled: Vec<ChunkHeader>,
}

impl Packed {
    /// As it was stored.
    pub(crate) fn stored(header: ChunkHeader, payload: Bytes) -> Packed {
        Packed { header, table: Bytes::new(), payload, bundled: Vec::new() }
    }

    /// Headers in the order in which they lie.
    pub(crate) fn headers(&self) -> impl Iterator<Item = &ChunkHeader> {
        self.bundled.iter().chain([&self.header])
    }

    /// Bytes that it takes in a pack, with those in the pack's directory.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.headers().map(|header| u64::from(header.stored_bytes()) + Entry::BYTES as u64).sum()
    }
}

/// What compresses. The context is half a megabyte, and room for a result that is mostly thrown away would be given
/// back to the system and taken anew each time: making them per chunk would cost more than compressing.
struct Press {
    level: i32,
    compressor: zstd::bulk::Compressor<'static>,
    room: Vec<u8>,
}

static PRESSES: Spares<Press> = Spares::new();
static DECOMPRESSORS: Spares<zstd::bulk::Decompressor<'static>> = Spares::new();

/// Compresses where that pays. What stays as it is can be read in parts: compressing each group by itself instead stored a toolchain in 31 %
/// more bytes (measured).
pub(crate) fn pack(compression: Compression, class: Class, named: Named) -> Packed {
    let Named { address, groups, content } = named;
    let raw = u32::try_from(content.len()).expect("the caller checked CHUNK_BYTES_MAX");
    let compressed = match compression {
        Compression::Zstd(level) if content.len() >= COMPRESS_BYTES_MIN => compress(level, &content, SAVES),
        _ => None,
    };
    let (codec, table, payload) = match compressed {
        Some(compressed) => (Codec::Zstd, Bytes::new(), compressed),
        None if groups.is_empty() => (Codec::Raw, Bytes::new(), content),
        None => (Codec::Groups, Bytes::from(groups.concat()), content),
    };
    let stored = u32::try_from(table.len() + payload.len()).expect("a chunk and a table are small");
    Packed { header: ChunkHeader { class, codec, raw, stored, address }, table, payload, bundled: Vec::new() }
}

// `None` where less than one part in so many is saved: zstd gives up when its output of that size is full. Three KiB of a large chunk tell as
// much for less: hashing and trying took 0.95 s of processor per GiB of random bytes, with the sample 0.5 s (measured). But of a toolchain's chunks
// the sample took a tenth as long as compressing them, and of most a count of bytes says for much less that compression pays (measured).
fn compress(level: i32, content: &[u8], saves: usize) -> Option<Bytes> {
    let is_sampled = content.len() >= SAMPLED_BYTES_MIN;
    if !is_sampled && content.len() >= COUNTED_BYTES_MIN && looks_random(content) {
        return None;
    }
    let mut press = PRESSES.lend(|press| press.level == level, || Press::new(level)).ok()?;
    if is_sampled && squares(content) <= SQUARES_EVEN_MAX {
        let piece = |number: usize| &content[content.len() * number / 4..][..SAMPLE_BYTES];
        press.shrink(&[piece(1), piece(2), piece(3)].concat(), SAMPLE_SAVES)?;
    }
    press.shrink(content, saves).map(Bytes::copy_from_slice)
}

/// Whether some of the bytes are spread as evenly as random ones. What then repeats itself all the same is stored as it is.
fn looks_random(content: &[u8]) -> bool {
    squares(content) <= SQUARES_RANDOM_MAX
}

/// The sum of the squares of how often each byte occurs in four pieces: the less, the more evenly they are spread.
fn squares(content: &[u8]) -> u32 {
    const PIECE: usize = COUNTED_BYTES / 4;
    let mut counts = [0_u32; 256];
    for number in 0..4 {
        let place = (content.len() - PIECE) * number / 3;
        content[place..][..PIECE].iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    }
    counts.iter().map(|count| count * count).sum()
}

impl Press {
    fn new(level: i32) -> io::Result<Press> {
        let mut compressor = zstd::bulk::Compressor::new(level)?;
        if level == LEVEL_FAST {
            compressor.set_parameter(zstd::zstd_safe::CParameter::HashLog(HASH_LOG))?;
        }
        Ok(Press { level, compressor, room: Vec::new() })
    }

    /// The compressed bytes, if at least one part in so many is saved.
    fn shrink(&mut self, content: &[u8], saves: usize) -> Option<&[u8]> {
        let bytes = content.len() - content.len() / saves;
        if self.room.len() < bytes {
            self.room.resize(bytes, 0);
        }
        let room = &mut self.room[..bytes];
        let length = self.compressor.compress_to_buffer(content, room).ok()?;
        Some(&self.room[..length])
    }
}

/// The content of a stored chunk, verified against its address; the error says what was found instead.
pub(crate) fn unpack(key: &DomainKey, header: &ChunkHeader, payload: Bytes) -> Result<Bytes, String> {
    let content = match header.codec {
        Codec::Raw => payload,
        Codec::Zstd | Codec::Bundle => decompress(&payload, header.raw as usize)?,
        // Its groups' hashes are not needed for the whole.
        Codec::Groups if payload.len() == header.stored as usize => payload.slice(table_bytes(header)..),
        Codec::Groups => return Err(format!("{} bytes instead of {}", payload.len(), header.stored)),
        Codec::Bundled(_) => return Err("no content, for that lies in a bundle".to_owned()),
        Codec::Remains => return Err("what is left of it".to_owned()),
    };
    if content.len() != header.raw as usize {
        return Err(format!("{} bytes instead of {}", content.len(), header.raw));
    }
    let found = key.address(&content);
    if found == header.address { Ok(content) } else { Err(format!("content of {found}")) }
}

fn table_bytes(header: &ChunkHeader) -> usize {
    header.codec.table_bytes(header.raw) as usize
}

/// The hashes of the groups of a stored chunk, from the beginning of its payload, verified against its address.
pub(crate) fn groups_of(key: &DomainKey, header: &ChunkHeader, payload: &[u8]) -> Result<Vec<GroupHash>, String> {
    let table = payload.get(..table_bytes(header)).ok_or("no table of groups")?;
    let (groups, _) = table.as_chunks::<{ size_of::<GroupHash>() }>();
    let found = key.address_of(groups);
    if found == Some(header.whole().address) {
        Ok(groups.to_vec())
    } else {
        Err("hashes of groups of something else".to_owned())
    }
}

/// A group of a stored chunk, verified against the hashes that [`groups_of`] gave.
pub(crate) fn unpack_group(
    key: &DomainKey,
    groups: &[GroupHash],
    number: usize,
    bytes: Bytes,
) -> Result<Bytes, String> {
    let is_right = groups.get(number).is_some_and(|hash| *hash == key.group_hash(number, &bytes));
    if is_right { Ok(bytes) } else { Err(format!("other bytes in group {number}")) }
}

/// Where a group lies in the payload of a stored chunk.
pub(crate) fn place_of_group(header: &ChunkHeader, number: usize) -> Range<usize> {
    let start = number * GROUP_BYTES;
    let length = (header.raw as usize).saturating_sub(start).min(GROUP_BYTES);
    table_bytes(header) + start..table_bytes(header) + start + length
}

/// Whether a stored chunk is right in all its parts.
pub(crate) fn verify(key: &DomainKey, header: &ChunkHeader, payload: &Bytes) -> Result<(), String> {
    if header.codec == Codec::Remains {
        return verify_remains(key, header, payload);
    }
    unpack(key, header, payload.clone())?;
    if header.codec == Codec::Groups { groups_of(key, header, payload).map(drop) } else { Ok(()) }
}

// C-7.
fn verify_remains(key: &DomainKey, header: &ChunkHeader, payload: &Bytes) -> Result<(), String> {
    let groups = groups_of(key, header, payload)?;
    for number in 0..groups.len() {
        let group = payload.get(place_of_group(header, number)).ok_or("fewer groups than it should have")?;
        unpack_left(key, &groups, number, payload.slice_ref(group))?;
    }
    Ok(())
}

/// As [`unpack_group`], of remains; `None`: it is lost.
pub(crate) fn unpack_left(
    key: &DomainKey,
    groups: &[GroupHash],
    number: usize,
    bytes: Bytes,
) -> Result<Option<Bytes>, String> {
    let is_blank = groups.get(number).is_some_and(|hash| bytes.iter().copied().eq(blank(hash, bytes.len())));
    match unpack_group(key, groups, number, bytes) {
        Err(_) if is_blank => Ok(None),
        unpacked => unpacked.map(Some),
    }
}

/// What stands where a group is lost: nothing that was there, nor what a disk makes of it.
fn blank(hash: &GroupHash, length: usize) -> impl Iterator<Item = u8> {
    hash.iter().map(|byte| !byte).cycle().take(length)
}

/// What can be saved of a chunk with this header, from payloads of it and of its remains, of which none need be right: all of it, or what verifies
/// of its groups (C-7). `None` if that is nothing.
pub(crate) fn saved(key: &DomainKey, header: &ChunkHeader, payloads: &[Bytes]) -> Option<Packed> {
    if let Some(payload) = payloads.iter().find(|payload| unpack(key, header, Bytes::clone(payload)).is_ok()) {
        return Some(Packed::stored(*header, mended(key, header, payload.clone())));
    }
    if header.codec != Codec::Groups {
        return None;
    }
    let groups = payloads.iter().find_map(|payload| groups_of(key, header, payload).ok())?;
    let (mut content, mut count) = (Vec::with_capacity(header.raw as usize), 0);
    for (number, hash) in groups.iter().enumerate() {
        let within = place_of_group(header, number);
        let mut found = payloads.iter().filter_map(|payload| payload.get(within.clone()));
        match found.find(|group| key.group_hash(number, group) == *hash) {
            Some(group) => {
                content.extend_from_slice(group);
                count += 1;
            }
            None => content.extend(blank(hash, within.len())),
        }
    }
    let header = match groups.len() - count {
        0 => *header,
        _ if count == 0 => return None,
        _ => ChunkHeader { codec: Codec::Remains, address: remains_of(&header.address), ..*header },
    };
    Some(Packed::stored(header, Bytes::from([groups.as_flattened(), &content].concat())))
}

/// A payload as it should be, of a chunk whose content was verified: its table may have rotted, which nobody saw who read it whole.
pub(crate) fn mended(key: &DomainKey, header: &ChunkHeader, payload: Bytes) -> Bytes {
    if header.codec != Codec::Groups || groups_of(key, header, &payload).is_ok() {
        return payload;
    }
    let content = payload.slice(table_bytes(header)..);
    let mut mended = BytesMut::from(key.address_and_groups(&content).1.concat().as_slice());
    mended.extend_from_slice(&content);
    mended.freeze()
}

fn decompress(payload: &[u8], raw: usize) -> Result<Bytes, String> {
    let lent = DECOMPRESSORS.lend(|_| true, zstd::bulk::Decompressor::new);
    let mut decompressor = lent.map_err(|error| format!("no decompressor: {error}"))?;
    let output = decompressor.decompress(payload, raw).map_err(|error| format!("bytes that zstd refuses: {error}"))?;
    Ok(Bytes::from(output))
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
