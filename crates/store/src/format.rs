//! Every byte the store writes to a disk. Described with pictures and reasons in docs/format.md, "Store".
//!
//! Little endian, fixed sizes, explicit padding of zeroes. The first bytes are a magic number; no field that is an enum
//! uses 0, so a block of zeroes is never valid. Checksums are `base::hash::checksum`, seeded by the place where the
//! structure belongs, so that the right bytes in the wrong place (a misdirected write) do not pass.
//!
//! Decoding never panics: it returns what is wrong, in words, and the caller adds path and offset.
//! Not here: reading, writing, meaning.

use std::ops::RangeInclusive;

use base::codec::{DecodeError, Reader, Writer};
use base::hash::{DomainKey, GROUP_BYTES, GroupHash, checksum};
use base::id::{ChunkAddress, NodeNumber, Position};
use base::limits::{CHUNK_BYTES_MAX, FRAME_BYTES_MAX};
use base::time::Timestamp;

use crate::disks::{DISKS_MAX, DiskSet};

/// The version this program writes. A disk with a higher one is refused.
///
/// | version | date | change |
/// |---|---|---|
/// | 1 | 2025-11 | first |
pub(crate) const VERSION: u32 = 1;

/// Most bytes of the opaque payload of a superblock.
pub const ROOTS_BYTES_MAX: usize = 2048;

/// Greatest generation, position, and number of a pack or segment. They rise by ones, so that nothing real comes near; what says more is
/// hostile, and adding to it must not overflow.
const NUMBER_MAX: u64 = 1 << 62;

/// Why bytes are not the structure they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unfit {
    /// What should be there.
    pub(crate) expected: String,
    /// What is there.
    pub(crate) found: String,
    /// Set where the bytes are sound and only newer than this program.
    pub(crate) newer: Option<u32>,
    /// Set where they are sound and older than what this program reads.
    pub(crate) older: Option<u32>,
}

impl Unfit {
    pub(crate) fn new(expected: impl ToString, found: impl ToString) -> Unfit {
        Unfit { expected: expected.to_string(), found: found.to_string(), newer: None, older: None }
    }
}

impl From<DecodeError> for Unfit {
    fn from(error: DecodeError) -> Unfit {
        Unfit::new("a whole structure", error)
    }
}

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, expected: T, found: T) -> Result<(), Unfit> {
    if expected == found { Ok(()) } else { Err(Unfit::new(format!("{what} {expected:?}"), format!("{found:?}"))) }
}

fn expect_magic(expected: [u8; 8], found: [u8; 8]) -> Result<(), Unfit> {
    let name = |magic: [u8; 8]| format!("magic \"{}\"", magic.escape_ascii());
    if expected == found { Ok(()) } else { Err(Unfit::new(name(expected), name(found))) }
}

fn expect_version(ours: u32, found: u32) -> Result<(), Unfit> {
    if found == ours {
        return Ok(());
    }
    Err(Unfit {
        newer: (found > ours).then_some(found),
        older: (1..ours).contains(&found).then_some(found),
        ..Unfit::new(format!("format version {ours}"), format!("version {found}"))
    })
}

/// Splits a trailing 64-bit checksum off and compares it.
fn checked(bytes: &[u8], seed: u64) -> Result<&[u8], Unfit> {
    let Some((body, tail)) = bytes.split_last_chunk::<8>() else {
        return Err(Unfit::new("a checksum", format!("{} bytes", bytes.len())));
    };
    let (expected, found) = (checksum(seed, body), u64::from_le_bytes(*tail));
    if expected == found {
        Ok(body)
    } else {
        Err(Unfit::new(format!("checksum {expected:016x}"), format!("{found:016x}")))
    }
}

/// A structure of fixed size, whose fields have been read, holds nothing else before its checksum.
fn expect_end(reader: &mut Reader<'_>, bytes: usize) -> Result<(), Unfit> {
    expect("length in bytes", bytes, reader.offset() + reader.remaining())?;
    Ok(reader.zeroes("padding", bytes - 8 - reader.offset())?)
}

fn expect_numbers(reader: &Reader<'_>, numbers: &[u64]) -> Result<(), Unfit> {
    if numbers.iter().all(|number| *number <= NUMBER_MAX) {
        Ok(())
    } else {
        Err(reader.refuse("numbers that rise").into())
    }
}

fn seal(mut writer: Writer, bytes: usize, seed: u64) -> Vec<u8> {
    assert!(writer.bytes().len() <= bytes - 8, "the fields of a structure fit into its fixed size");
    let padding = bytes - 8 - writer.bytes().len();
    writer.put(&vec![0; padding]);
    let sum = checksum(seed, writer.bytes());
    writer.u64(sum);
    writer.into_bytes()
}

// ---------------------------------------------------------------------------------------------------------------
// Identity of a disk: the file `disk`.

/// Who a disk is and to whom it belongs. Written once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) node_identity: [u8; 16],
    pub(crate) node: NodeNumber,
    /// Counted from 0; disk 0 holds journal and index.
    pub(crate) disk: u16,
    pub(crate) disk_count: u16,
    pub(crate) disk_uuid: [u8; 16],
    pub(crate) created: Timestamp,
    pub(crate) key: DomainKey,
}

impl Identity {
    pub(crate) const BYTES: usize = 256;
    const MAGIC: [u8; 8] = *b"HydrDisk";

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(Self::BYTES);
        writer.put(&Self::MAGIC).u32(VERSION).u16(self.node.0).u16(self.disk).u16(self.disk_count).u16(0);
        writer.timestamp(self.created).put(&self.node_identity).put(&self.disk_uuid).put(&self.key.0);
        seal(writer, Self::BYTES, 0)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Identity, Unfit> {
        let mut reader = Reader::new(bytes);
        expect_magic(Self::MAGIC, reader.array("magic")?)?;
        // Here alone the version comes before the size and the checksum: a newer format may have moved both.
        expect_version(VERSION, reader.u32("version")?)?;
        expect("length in bytes", Self::BYTES, bytes.len())?;
        checked(bytes, 0)?;
        let (node, disk, disk_count) = (reader.u16("node")?, reader.u16("disk")?, reader.u16("disk count")?);
        reader.zeroes("padding", 2)?;
        let identity = Identity {
            node: NodeNumber(node),
            disk,
            disk_count,
            created: reader.timestamp("created")?,
            node_identity: reader.array("node identity")?,
            disk_uuid: reader.array("disk uuid")?,
            key: DomainKey(reader.array("domain key")?),
        };
        expect_end(&mut reader, Self::BYTES)?;
        Ok(identity)
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Superblock: two slots in the file `superblock` of every disk.

/// One generation of the node's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) generation: u64,
    /// The store was closed: no frame follows `covered`.
    pub(crate) is_closed: bool,
    pub(crate) node_identity: [u8; 16],
    /// Journal frames up to here are in the trees that `roots` names.
    pub(crate) covered: Position,
    /// Journal frames up to here were durable when this was written; fewer on open means lost data.
    pub(crate) durable: Position,
    /// Packs begin at this number or above from now on.
    pub(crate) pack_next: u64,
    pub(crate) time: Timestamp,
    /// Uuid of each disk, by number.
    pub(crate) disks: Vec<[u8; 16]>,
    /// Disks that it was not written to: they were missing, or had failed.
    pub(crate) without: DiskSet,
    /// Disks that the journal is on.
    pub(crate) homes: DiskSet,
    /// The disk that the index is on.
    pub(crate) index: u16,
    /// Opaque to the store.
    pub(crate) roots: Vec<u8>,
}

impl Superblock {
    pub(crate) const BYTES: usize = 4096;
    pub(crate) const SLOTS: u64 = 2;
    /// The version that this program writes; it reads the one before too, of a node whose journal and index are on disk 0.
    const VERSION: u32 = 2;
    const MAGIC: [u8; 8] = *b"HydrSupr";
    const FIXED_BYTES: usize = 8 + 4 + 4 + 8 + 16 + 16 + 8 + 8 + 8 + 12 + 2 + 2 + 8 + 8 + 2;

    /// The slot's offset in its file.
    pub(crate) fn offset(generation: u64) -> u64 {
        generation % Self::SLOTS * Self::BYTES as u64
    }

    /// The bytes of the copy that goes to the disk with `home` as uuid.
    pub(crate) fn encode(&self, home: &[u8; 16]) -> Vec<u8> {
        assert!(self.disks.len() <= DISKS_MAX && self.roots.len() <= ROOTS_BYTES_MAX, "checked by the caller");
        let mut writer = Writer::with_capacity(Self::BYTES);
        writer.put(&Self::MAGIC).u32(Self::VERSION).u32(u32::from(self.is_closed)).u64(self.generation);
        writer.put(&self.node_identity).put(home);
        writer.u64(self.covered.0).u64(self.durable.0).u64(self.pack_next).timestamp(self.time);
        let disks = u16::try_from(self.disks.len()).expect("at most DISKS_MAX");
        writer.u16(disks).short_bytes(&self.roots);
        self.disks.iter().for_each(|uuid| {
            writer.put(uuid);
        });
        writer.u64(self.without.bits()).u64(self.homes.bits()).u16(self.index);
        seal(writer, Self::BYTES, Self::offset(self.generation))
    }

    /// Reads the slot at `offset` of the disk with `home` as uuid.
    pub(crate) fn decode(bytes: &[u8], home: &[u8; 16], offset: u64) -> Result<Superblock, Unfit> {
        let mut reader = Reader::new(bytes);
        expect_magic(Self::MAGIC, reader.array("magic")?)?;
        checked(bytes, offset)?;
        let version = reader.u32("version")?;
        if version != 1 {
            expect_version(Self::VERSION, version)?;
        }
        let is_closed = match reader.u32("flags")? {
            0 => false,
            1 => true,
            _ => return Err(reader.refuse("flags").into()),
        };
        let generation = reader.u64("generation")?;
        expect("slot offset", Self::offset(generation), offset)?;
        let node_identity = reader.array("node identity")?;
        expect("home disk", *home, reader.array("home disk")?)?;
        let (covered, durable) = (Position(reader.u64("covered")?), Position(reader.u64("durable")?));
        let (pack_next, time) = (reader.u64("next pack")?, reader.timestamp("time")?);
        expect_numbers(&reader, &[generation, covered.0, durable.0, pack_next])?;
        let disk_count = usize::from(reader.u16("disk count")?);
        let roots = reader.short_bytes("roots")?.to_vec();
        if disk_count > DISKS_MAX || roots.len() > ROOTS_BYTES_MAX {
            return Err(reader.refuse("counts").into());
        }
        let disks = (0..disk_count).map(|_| reader.array("disk uuid")).collect::<Result<_, _>>()?;
        let (mut without, mut homes, mut index) = (DiskSet::NONE, DiskSet::of(0), 0);
        if version > 1 {
            without = DiskSet::from_bits(reader.u64("disks without")?);
            homes = DiskSet::from_bits(reader.u64("disks of the journal")?);
            index = reader.u16("disk of the index")?;
        }
        let is_known = |disk: usize| disk < disk_count;
        if homes.is_empty() || !without.iter().chain(homes.iter()).chain([usize::from(index)]).all(is_known) {
            return Err(reader.refuse("numbers of disks").into());
        }
        expect_end(&mut reader, Self::BYTES)?;
        Ok(Superblock {
            generation,
            is_closed,
            node_identity,
            covered,
            durable,
            pack_next,
            time,
            disks,
            roots,
            without,
            homes,
            index,
        })
    }
}

const _: () = assert!(Superblock::FIXED_BYTES + DISKS_MAX * 16 + ROOTS_BYTES_MAX + 8 <= Superblock::BYTES);

// ---------------------------------------------------------------------------------------------------------------
// Packs: the files packs/<16 hex digits>.pack.

/// What kind of thing a chunk holds. Kept apart on disk and in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Nodes of trees. May use the reserve of the disks.
    Metadata,
    /// Content of files.
    Data,
}

impl Class {
    pub(crate) fn index(self) -> usize {
        match self {
            Class::Metadata => 0,
            Class::Data => 1,
        }
    }

    fn code(self) -> u8 {
        match self {
            Class::Metadata => 1,
            Class::Data => 2,
        }
    }

    fn from_code(code: u8) -> Option<Class> {
        match code {
            1 => Some(Class::Metadata),
            2 => Some(Class::Data),
            _ => None,
        }
    }
}

/// The version of packs that this program writes; it reads older ones too.
///
/// | version | date | change |
/// |---|---|---|
/// | 1 | 2025-11 | first |
/// | 2 | 2026-11 | chunks with the hashes of their groups |
/// | 3 | 2026-11 | packs on several disks |
pub(crate) const PACK_VERSION: u32 = 3;

fn expect_pack_version(found: u32) -> Result<u32, Unfit> {
    if !(1..PACK_VERSION).contains(&found) {
        expect_version(PACK_VERSION, found)?;
    }
    Ok(found)
}

/// How a chunk's bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    /// The content.
    Raw,
    /// The content, compressed.
    Zstd,
    /// The hashes of the content's groups, then the content: a part can be read and verified by itself.
    Groups,
}

impl Codec {
    fn code(self) -> u8 {
        match self {
            Codec::Raw => 1,
            Codec::Zstd => 2,
            Codec::Groups => 3,
        }
    }

    /// Bytes before the content.
    pub(crate) fn table_bytes(self, raw: u32) -> u32 {
        match self {
            Codec::Groups => raw.div_ceil(GROUP_BYTES as u32) * size_of::<GroupHash>() as u32,
            Codec::Raw | Codec::Zstd => 0,
        }
    }

    /// Whether a content of `raw` bytes may be stored in so many.
    fn allows(self, raw: u32, stored: u32) -> bool {
        match self {
            Codec::Groups => raw as usize > GROUP_BYTES && stored == raw + self.table_bytes(raw),
            Codec::Raw | Codec::Zstd => stored <= raw,
        }
    }

    fn from_code(code: u8) -> Option<Codec> {
        match code {
            1 => Some(Codec::Raw),
            2 => Some(Codec::Zstd),
            3 => Some(Codec::Groups),
            _ => None,
        }
    }
}

/// The first bytes of a pack, the same on each of its disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PackHeader {
    pub(crate) version: u32,
    pub(crate) pack: u64,
    pub(crate) node_identity: [u8; 16],
    /// Where it was written first, or zeroes where nobody knows. It may lie on others now.
    pub(crate) disk_uuid: [u8; 16],
    pub(crate) class: Class,
    /// On how many disks it should be.
    pub(crate) copies: u8,
}

impl PackHeader {
    pub(crate) const BYTES: usize = 72;
    const MAGIC: [u8; 8] = *b"HydrPack";

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(Self::BYTES);
        // Older ones had padding there.
        let copies = if self.version < 3 { 0 } else { self.copies };
        writer.put(&Self::MAGIC).u32(self.version).u8(self.class.code()).u8(copies).put(&[0; 2]).u64(self.pack);
        writer.put(&self.node_identity).put(&self.disk_uuid);
        seal(writer, Self::BYTES, self.pack)
    }

    /// Reads the header of the file that should be pack number `pack`.
    pub(crate) fn decode(bytes: &[u8], pack: u64) -> Result<PackHeader, Unfit> {
        let mut reader = Reader::new(bytes);
        expect_magic(Self::MAGIC, reader.array("magic")?)?;
        checked(bytes, pack)?;
        let version = expect_pack_version(reader.u32("version")?)?;
        let class = Class::from_code(reader.u8("class")?).ok_or_else(|| reader.refuse("class"))?;
        let copies = match (version, reader.u8("copies")?) {
            (1 | 2, 0) => 1,
            (3.., copies) if (1..=DISKS_MAX).contains(&usize::from(copies)) => copies,
            _ => return Err(reader.refuse("copies").into()),
        };
        reader.zeroes("padding", 2)?;
        expect("pack number", pack, reader.u64("pack")?)?;
        let (node_identity, disk_uuid) = (reader.array("node identity")?, reader.array("disk uuid")?);
        expect_end(&mut reader, Self::BYTES)?;
        Ok(PackHeader { version, pack, class, copies, node_identity, disk_uuid })
    }
}

/// What stands before each chunk in a pack, and, without the magic, in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkHeader {
    pub(crate) class: Class,
    pub(crate) codec: Codec,
    /// Bytes of the content.
    pub(crate) raw: u32,
    /// Bytes of the payload that follows.
    pub(crate) stored: u32,
    pub(crate) address: ChunkAddress,
}

impl ChunkHeader {
    pub(crate) const BYTES: usize = 56;
    pub(crate) const MAGIC: [u8; 4] = *b"Chnk";

    pub(crate) fn seed(pack: u64, offset: u32) -> u64 {
        // The odd multiplier spreads pack numbers over all bits, so that no two places of a store share a seed by
        // simple arithmetic.
        pack.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(offset)
    }

    /// Header and payload in a pack.
    pub(crate) fn stored_bytes(&self) -> u32 {
        self.stored + Self::BYTES as u32
    }

    pub(crate) fn encode(&self, pack: u64, offset: u32) -> Vec<u8> {
        let mut writer = Writer::with_capacity(Self::BYTES);
        writer.put(&Self::MAGIC).u8(self.class.code()).u8(self.codec.code()).u16(0);
        writer.u32(self.raw).u32(self.stored).address(&self.address);
        seal(writer, Self::BYTES, Self::seed(pack, offset))
    }

    pub(crate) fn decode(bytes: &[u8], pack: u64, offset: u32) -> Result<ChunkHeader, Unfit> {
        let mut reader = Reader::new(bytes);
        expect("chunk magic", Self::MAGIC, reader.array("magic")?)?;
        checked(bytes, Self::seed(pack, offset))?;
        let header = Self::fields(&mut reader)?;
        expect_end(&mut reader, Self::BYTES)?;
        Ok(header)
    }

    fn fields(reader: &mut Reader<'_>) -> Result<ChunkHeader, Unfit> {
        let class = Class::from_code(reader.u8("class")?).ok_or_else(|| reader.refuse("class"))?;
        let codec = Codec::from_code(reader.u8("codec")?).ok_or_else(|| reader.refuse("codec"))?;
        reader.zeroes("padding", 2)?;
        let (raw, stored) = (reader.u32("raw length")?, reader.u32("stored length")?);
        if raw as usize > CHUNK_BYTES_MAX || !codec.allows(raw, stored) {
            return Err(reader.refuse("lengths").into());
        }
        Ok(ChunkHeader { class, codec, raw, stored, address: reader.address("address")? })
    }
}

/// One chunk in the directory of a sealed pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Where the chunk's header begins.
    pub(crate) offset: u32,
    pub(crate) header: ChunkHeader,
}

impl Entry {
    pub(crate) const BYTES: usize = 56;

    pub(crate) fn end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.header.stored_bytes())
    }
}

/// The directory and the footer of a pack whose chunks end at `data_bytes`.
pub(crate) fn encode_directory(pack: u64, data_bytes: u32, entries: &[Entry]) -> Vec<u8> {
    let mut writer = Writer::with_capacity(entries.len() * Entry::BYTES + PackFooter::BYTES);
    for Entry { offset, header } in entries {
        writer.u32(*offset).u32(0).u8(header.class.code()).u8(header.codec.code()).u16(0);
        writer.u32(header.raw).u32(header.stored).address(&header.address).u32(0);
    }
    let footer = PackFooter {
        version: PACK_VERSION,
        pack,
        data_bytes,
        count: u32::try_from(entries.len()).expect("a pack below 4 GiB has fewer chunks"),
        directory: checksum(pack, writer.bytes()),
    };
    writer.put(&footer.encode());
    writer.into_bytes()
}

/// The entries of a directory whose footer was read.
pub(crate) fn decode_directory(footer: &PackFooter, bytes: &[u8]) -> Result<Vec<Entry>, Unfit> {
    expect("directory checksum", footer.directory, checksum(footer.pack, bytes))?;
    let mut reader = Reader::new(bytes);
    let mut entries = Vec::new();
    let mut end = PackHeader::BYTES as u64;
    for _ in 0..footer.count {
        let offset = reader.u32("offset")?;
        reader.zeroes("padding", 4)?;
        let header = ChunkHeader::fields(&mut reader)?;
        reader.zeroes("padding", 4)?;
        let entry = Entry { offset, header };
        if u64::from(offset) < end || entry.end() > u64::from(footer.data_bytes) {
            return Err(reader.refuse("chunks in order within the pack").into());
        }
        end = entry.end();
        entries.push(entry);
    }
    reader.finish("end of directory")?;
    Ok(entries)
}

/// The last bytes of every sealed pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PackFooter {
    pub(crate) version: u32,
    /// The pack it was meant for. Another number on read is a misdirected write.
    pub(crate) pack: u64,
    /// Bytes of header and chunks; the directory begins here.
    pub(crate) data_bytes: u32,
    /// Chunks named by the directory.
    pub(crate) count: u32,
    /// Checksum of the directory.
    pub(crate) directory: u64,
}

impl PackFooter {
    pub(crate) const BYTES: usize = 48;
    const MAGIC: [u8; 8] = *b"HydrSeal";

    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(Self::BYTES);
        writer.put(&Self::MAGIC).u32(self.version).u32(self.count).u64(self.pack).u32(self.data_bytes).u32(0);
        writer.u64(self.directory);
        seal(writer, Self::BYTES, self.pack)
    }

    pub(crate) fn decode(bytes: &[u8], pack: u64) -> Result<PackFooter, Unfit> {
        let mut reader = Reader::new(bytes);
        expect_magic(Self::MAGIC, reader.array("magic")?)?;
        checked(bytes, pack)?;
        let version = expect_pack_version(reader.u32("version")?)?;
        let count = reader.u32("count")?;
        expect("pack number", pack, reader.u64("pack")?)?;
        let data_bytes = reader.u32("data bytes")?;
        reader.zeroes("padding", 4)?;
        let directory = reader.u64("directory checksum")?;
        expect_end(&mut reader, Self::BYTES)?;
        // Also bounds what is read of a directory.
        if u64::from(count) * ChunkHeader::BYTES as u64 > u64::from(data_bytes) {
            return Err(reader.refuse("no more chunks than there is room for").into());
        }
        Ok(PackFooter { version, pack, data_bytes, count, directory })
    }

    /// Bytes of the directory before it.
    pub(crate) fn directory_bytes(&self) -> u64 {
        u64::from(self.count) * Entry::BYTES as u64
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Index: values of the tables in the file `index`. Its pages are redb's, their checksums in `index/format.rs`.

/// Where a chunk lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) pack: u64,
    pub(crate) offset: u32,
    pub(crate) stored: u32,
    pub(crate) raw: u32,
    pub(crate) class: Class,
    pub(crate) codec: Codec,
}

impl Place {
    pub(crate) const BYTES: usize = 24;

    pub(crate) fn of(pack: u64, entry: &Entry) -> Place {
        let Entry { offset, header } = *entry;
        Place { pack, offset, stored: header.stored, raw: header.raw, class: header.class, codec: header.codec }
    }

    /// The header that must stand at this place.
    pub(crate) fn header(&self, address: ChunkAddress) -> ChunkHeader {
        ChunkHeader { class: self.class, codec: self.codec, raw: self.raw, stored: self.stored, address }
    }

    pub(crate) fn encode(&self, address: &ChunkAddress) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..8].copy_from_slice(&self.pack.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.offset.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.stored.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.raw.to_le_bytes());
        bytes[20] = self.class.code();
        bytes[21] = self.codec.code();
        let sum = Self::sum(address, &bytes);
        bytes[22..24].copy_from_slice(&sum);
        bytes
    }

    /// `None` for an entry that does not belong to the address or has rotted (redb checks its pages only after a crash).
    pub(crate) fn decode(address: &ChunkAddress, bytes: &[u8; Self::BYTES]) -> Option<Place> {
        let mut reader = Reader::new(bytes);
        let place = Place {
            pack: reader.u64("pack").ok()?,
            offset: reader.u32("offset").ok()?,
            stored: reader.u32("stored").ok()?,
            raw: reader.u32("raw").ok()?,
            class: Class::from_code(reader.u8("class").ok()?)?,
            codec: Codec::from_code(reader.u8("codec").ok()?)?,
        };
        let fits = place.raw as usize <= CHUNK_BYTES_MAX && place.codec.allows(place.raw, place.stored);
        (fits && bytes[22..24] == Self::sum(address, bytes)).then_some(place)
    }

    fn sum(address: &ChunkAddress, bytes: &[u8; Self::BYTES]) -> [u8; 2] {
        let mut seed = [0; 8];
        seed.copy_from_slice(&address.0[24..]);
        let sum = checksum(u64::from_le_bytes(seed), &bytes[..22]).to_le_bytes();
        [sum[0], sum[1]]
    }
}

/// What the table `packs` of the index knows of a pack whose chunks are all in the table `chunks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) class: Class,
    /// Chunks in its directory.
    pub(crate) count: u32,
    /// Header and chunks as stored.
    pub(crate) data_bytes: u32,
    /// Content of its chunks.
    pub(crate) raw_bytes: u64,
    /// On how many disks it should be.
    pub(crate) copies: u8,
}

impl Summary {
    pub(crate) const BYTES: usize = 24;

    /// Bytes of its file.
    pub(crate) fn file_bytes(&self) -> u64 {
        u64::from(self.data_bytes) + u64::from(self.count) * Entry::BYTES as u64 + PackFooter::BYTES as u64
    }

    pub(crate) fn empty(class: Class, copies: u8) -> Summary {
        Summary { class, count: 0, data_bytes: PackHeader::BYTES as u32, raw_bytes: 0, copies }
    }

    pub(crate) fn of(data_bytes: u32, entries: &[Entry], copies: u8) -> Summary {
        Summary {
            class: entries.first().map_or(Class::Data, |entry| entry.header.class),
            count: u32::try_from(entries.len()).expect("a pack below 4 GiB has fewer chunks"),
            data_bytes,
            raw_bytes: entries.iter().map(|entry| u64::from(entry.header.raw)).sum(),
            copies,
        }
    }

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..4].copy_from_slice(&self.count.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.data_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.raw_bytes.to_le_bytes());
        bytes[16] = self.class.code();
        bytes[17] = self.copies;
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Summary {
        let mut reader = Reader::new(bytes);
        // All bytes are there, so none of these fails; a wrong number only shows in `status`.
        Summary {
            count: reader.u32("count").unwrap_or(0),
            data_bytes: reader.u32("data bytes").unwrap_or(0),
            raw_bytes: reader.u64("raw bytes").unwrap_or(0),
            class: reader.u8("class").ok().and_then(Class::from_code).unwrap_or(Class::Data),
            // Zero: written before packs lay on several disks.
            copies: reader.u8("copies").unwrap_or(0).max(1),
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Journal: the files journal/<16 hex digits>.segment on disk 0.

/// The first bytes of a segment that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// Rises with each use of a segment: the life of its frames.
    pub(crate) segment: u64,
    pub(crate) node_identity: [u8; 16],
    /// Position of the first frame.
    pub(crate) first: Position,
}

impl SegmentHeader {
    pub(crate) const BYTES: usize = 64;
    /// 2: frames under the life of their segment, groups at pages.
    const VERSION: u32 = 2;
    /// Where the first frame of a segment begins, in bytes.
    pub(crate) const FRAMES_AT: usize = FrameHeader::GROUP_ALIGN;
    const MAGIC: [u8; 8] = *b"HydrSegm";

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(Self::BYTES);
        writer.put(&Self::MAGIC).u32(Self::VERSION).u32(0).u64(self.segment).put(&self.node_identity).u64(self.first.0);
        seal(writer, Self::BYTES, self.segment)
    }

    pub(crate) fn decode(bytes: &[u8], segment: u64) -> Result<SegmentHeader, Unfit> {
        let mut reader = Reader::new(bytes);
        expect_magic(Self::MAGIC, reader.array("magic")?)?;
        checked(bytes, segment)?;
        expect_version(Self::VERSION, reader.u32("version")?)?;
        reader.zeroes("padding", 4)?;
        expect("segment number", segment, reader.u64("segment")?)?;
        let node_identity = reader.array("node identity")?;
        let first = Position(reader.u64("first position")?);
        expect_numbers(&reader, &[first.0])?;
        expect_end(&mut reader, Self::BYTES)?;
        Ok(SegmentHeader { segment, node_identity, first })
    }
}

/// What stands before each frame of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// Bytes of the payload, without the padding to 8.
    pub(crate) length: u32,
    pub(crate) position: Position,
    /// Last position known durable when this frame was written.
    pub(crate) durable: Position,
}

impl FrameHeader {
    pub(crate) const BYTES: usize = 32;
    /// Frames begin at multiples of this.
    pub(crate) const ALIGN: usize = 8;
    /// Frames that are written together begin at a multiple of this, in bytes: a device takes them past the page cache, and writes no sector
    /// again that holds frames which are durable.
    pub(crate) const GROUP_ALIGN: usize = 4096;
    pub(crate) const MAGIC: [u8; 4] = *b"Fram";

    /// Header, payload and padding.
    pub(crate) fn frame_bytes(payload: usize) -> usize {
        Self::BYTES + payload.next_multiple_of(Self::ALIGN)
    }

    /// What goes before a payload and behind it, for [`FrameHeader::stamp`] to fill in later; only the length is there.
    pub(crate) fn blank(payload: usize) -> ([u8; Self::BYTES], &'static [u8]) {
        let mut header = [0; Self::BYTES];
        header[..4].copy_from_slice(&Self::MAGIC);
        header[4..8].copy_from_slice(&u32::try_from(payload).expect("at most FRAME_BYTES_MAX").to_le_bytes());
        (header, &[0; Self::ALIGN][..Self::frame_bytes(payload) - Self::BYTES - payload])
    }

    /// Bytes of the blank or stamped frame at the head of `bytes`, which we wrote ourselves.
    pub(crate) fn own_frame_bytes(bytes: &[u8]) -> usize {
        let mut length = [0; 4];
        length.copy_from_slice(&bytes[4..8]);
        Self::frame_bytes(u32::from_le_bytes(length) as usize)
    }

    /// What binds frames to one use of one segment of one node. The node identity is random and never leaves the node, so
    /// that user data inside a frame cannot pass for a frame.
    pub(crate) fn life(segment: u64, node_identity: &[u8; 16]) -> u64 {
        checksum(segment, node_identity)
    }

    /// Fills in position, durable and checksum of the frame that `frame` is, padding included.
    pub(crate) fn stamp(frame: &mut [u8], life: u64, position: Position, durable: Position) {
        // Under the life: who does not know it cannot make what looks like a frame (`glance`).
        frame[16..24].copy_from_slice(&(position.0 ^ life).to_le_bytes());
        frame[24..32].copy_from_slice(&(durable.0 ^ life).to_le_bytes());
        let sum = Self::sum(frame, life);
        frame[8..16].copy_from_slice(&sum.to_le_bytes());
    }

    /// A whole frame.
    #[cfg(test)]
    pub(crate) fn stamped(payload: &[u8], life: u64, position: u64, durable: u64) -> Vec<u8> {
        let (header, padding) = Self::blank(payload.len());
        let mut frame = [&header[..], payload, padding].concat();
        Self::stamp(&mut frame, life, Position(position), Position(durable));
        frame
    }

    // Everything from byte 16, padding included; the length, which stands before, takes part through the seed.
    fn sum(frame: &[u8], life: u64) -> u64 {
        let mut length = [0; 4];
        length.copy_from_slice(&frame[4..8]);
        let seed = life ^ u64::from(u32::from_le_bytes(length));
        checksum(seed, &frame[16..])
    }

    /// Bytes of the frame that may begin here, by what needs no checksum: a position that can be in this segment, after what was durable.
    pub(crate) fn glance(bytes: &[u8], life: u64, positions: &RangeInclusive<u64>) -> Option<usize> {
        let mut reader = Reader::new(bytes);
        if reader.array("magic").ok()? != Self::MAGIC {
            return None;
        }
        let length = Self::frame_bytes(reader.u32("length").ok()? as usize);
        let _checksum = reader.u64("checksum").ok()?;
        let (position, durable) = (reader.u64("position").ok()? ^ life, reader.u64("durable").ok()? ^ life);
        (positions.contains(&position) && durable < position && length <= bytes.len()).then_some(length)
    }

    /// Reads the frame at the head of `bytes` in the segment use called `life`: header and payload, or `None` where no
    /// valid one begins.
    pub(crate) fn decode(bytes: &[u8], life: u64) -> Option<(FrameHeader, &[u8])> {
        let mut reader = Reader::new(bytes);
        if reader.array("magic").ok()? != Self::MAGIC {
            return None;
        }
        let length = reader.u32("length").ok()?;
        if length as usize > FRAME_BYTES_MAX {
            return None;
        }
        let frame = bytes.get(..Self::frame_bytes(length as usize))?;
        if reader.u64("checksum").ok()? != Self::sum(frame, life) {
            return None;
        }
        let header = FrameHeader {
            length,
            position: Position(reader.u64("position").ok()? ^ life),
            durable: Position(reader.u64("durable").ok()? ^ life),
        };
        let (payload, padding) = frame[Self::BYTES..].split_at(length as usize);
        let fits = padding.iter().all(|byte| *byte == 0) && header.position.0.max(header.durable.0) <= NUMBER_MAX;
        fits.then_some((header, payload))
    }
}

const _: () = assert!(FrameHeader::BYTES.is_multiple_of(FrameHeader::ALIGN));
const _: () = assert!(FrameHeader::GROUP_ALIGN.is_multiple_of(FrameHeader::ALIGN));
const _: () = assert!(SegmentHeader::FRAMES_AT >= SegmentHeader::BYTES);

// ---------------------------------------------------------------------------------------------------------------
// Names.

pub(crate) const IDENTITY_FILE: &str = "disk";
/// The same bytes once more.
pub(crate) const IDENTITY_COPY: &str = "disk.copy";
pub(crate) const LOCK_FILE: &str = "lock";
pub(crate) const SUPERBLOCK_FILE: &str = "superblock";
pub(crate) const INDEX_FILE: &str = "index";
/// The index while it is made again.
pub(crate) const INDEX_NEW: &str = "index.new";
pub(crate) const PACK_SUFFIX: &str = ".pack";
/// Added to the name of a pack that was set aside: nothing good was found in it, or a repair saved what was.
pub(crate) const DAMAGED_SUFFIX: &str = ".pack.damaged";
/// Of a copy of a pack that is not whole yet.
pub(crate) const COPY_SUFFIX: &str = ".copy";
pub(crate) const PACKS: &str = "packs";
pub(crate) const JOURNAL: &str = "journal";

/// The path of a pack on its disk.
pub(crate) fn pack_path(pack: u64) -> String {
    format!("{PACKS}/{pack:016x}.pack")
}

/// Where a further copy of a pack is written until it is whole.
pub(crate) fn copy_path(pack: u64) -> String {
    format!("{PACKS}/{pack:016x}{COPY_SUFFIX}")
}

/// The path of a journal segment on disk 0.
pub(crate) fn segment_path(segment: u64) -> String {
    format!("{JOURNAL}/{segment:016x}.segment")
}

/// The number in a name such as `00000000000000ff.pack`; `None` for names that are not ours.
pub(crate) fn number_of(name: &str, suffix: &str) -> Option<u64> {
    let digits = name.strip_suffix(suffix)?;
    let ours = digits.len() == 16 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let number = if ours { u64::from_str_radix(digits, 16).ok() } else { None };
    number.filter(|number| *number <= NUMBER_MAX)
}

#[cfg(test)]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;
