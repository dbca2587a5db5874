//! Packs: header, chunks, directory, footer.
//!
//! Not here: what a chunk's payload is (`chunk`), what a crash left (`pack/scan`).

use base::codec::{Reader, Writer};
use base::hash::{GROUP_BYTES, GroupHash, checksum};
use base::id::ChunkAddress;
use base::limits::CHUNK_BYTES_MAX;

use super::{Unfit, checked, expect, expect_end, expect_magic, expect_version, seal};
use crate::level::Level;

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
    pub(super) fn code(self) -> u8 {
        match self {
            Class::Metadata => 1,
            Class::Data => 2,
        }
    }

    pub(super) fn from_code(code: u8) -> Option<Class> {
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
/// | 4 | 2026-11 | packs that are to be in fragments |
/// | 5 | 2026-11 | bundles of small chunks |
/// | 6 | 2026-11 | remains of damaged chunks |
pub(crate) const PACK_VERSION: u32 = 6;

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
    /// The contents of small chunks, one behind the other, compressed. Nobody refers to it.
    Bundle,
    /// Not here, but in a bundle behind this.
    Bundled(InBundle),
    /// What is left of a damaged chunk: as groups, with the hash of each that is lost in its place, each bit the other way round, over and over. It has a name of its own ([`ChunkHeader::whole`]).
    Remains,
}

/// Where the content of a small chunk lies in a bundle: a chunk of its own, compressed, that is the contents of several, one behind the other
/// (docs/decisions/0015-bundles.md). Their headers come first, without payloads, then the bundle, without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InBundle {
    /// Headers from this one on until the bundle's, this one included.
    pub(crate) ahead: u16,
    /// Where the content begins in the bundle's.
    pub(crate) skip: u16,
    /// Bytes of the bundle's payload.
    pub(crate) stored: u16,
}

impl InBundle {
    /// From the chunk's header to the bundle's, in bytes.
    pub(crate) fn distance(self) -> u32 {
        u32::from(self.ahead) * ChunkHeader::BYTES as u32
    }

    /// Header and payload of the bundle.
    pub(crate) fn record_bytes(self) -> u32 {
        u32::from(self.stored) + ChunkHeader::BYTES as u32
    }
}

impl Codec {
    pub(super) fn code(self) -> u8 {
        match self {
            Codec::Raw => 1,
            Codec::Zstd => 2,
            Codec::Groups => 3,
            Codec::Bundled(_) => 4,
            Codec::Bundle => 5,
            Codec::Remains => 6,
        }
    }

    /// The two words of a header, or of a place, that tell lengths.
    pub(super) fn words(self, raw: u32, stored: u32) -> [u32; 2] {
        match self {
            Codec::Bundled(InBundle { ahead, skip, stored }) => {
                [raw | u32::from(stored) << 16, u32::from(skip) | u32::from(ahead) << 16]
            }
            Codec::Raw | Codec::Zstd | Codec::Groups | Codec::Bundle | Codec::Remains => [raw, stored],
        }
    }

    /// Bytes before the content.
    pub(crate) fn table_bytes(self, raw: u32) -> u32 {
        match self {
            Codec::Groups | Codec::Remains => raw.div_ceil(GROUP_BYTES as u32) * size_of::<GroupHash>() as u32,
            Codec::Raw | Codec::Zstd | Codec::Bundle | Codec::Bundled(_) => 0,
        }
    }

    /// Whether a content of `raw` bytes may be stored in so many.
    pub(super) fn allows(self, raw: u32, stored: u32) -> bool {
        match self {
            Codec::Bundled(within) => {
                let is_inside = raw > 0 && u32::from(within.skip) + raw <= BUNDLE_BYTES_MAX as u32;
                stored == 0 && is_inside && within.ahead > 0 && within.stored > 0
            }
            Codec::Groups | Codec::Remains => raw as usize > GROUP_BYTES && stored == raw + self.table_bytes(raw),
            Codec::Raw | Codec::Zstd => stored <= raw,
            Codec::Bundle => stored <= raw && raw <= BUNDLE_BYTES_MAX as u32,
        }
    }

    /// A codec with the lengths of content and payload, from its code and two words. `None`: there is no such code.
    pub(super) fn decode(code: u8, [first, second]: [u32; 2]) -> Option<(Codec, u32, u32)> {
        let low = |word: u32| (word & 0xffff) as u16;
        match code {
            1 => Some((Codec::Raw, first, second)),
            2 => Some((Codec::Zstd, first, second)),
            3 => Some((Codec::Groups, first, second)),
            5 => Some((Codec::Bundle, first, second)),
            6 => Some((Codec::Remains, first, second)),
            4 => {
                let within = InBundle { ahead: low(second >> 16), skip: low(second), stored: low(first >> 16) };
                Some((Codec::Bundled(within), u32::from(low(first)), 0))
            }
            _ => None,
        }
    }
}

/// Content of a bundle: what is said of it fits 16 bits.
pub(crate) const BUNDLE_BYTES_MAX: usize = (64 << 10) - 1;

/// The first bytes of a pack, the same on each of its disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PackHeader {
    pub(crate) version: u32,
    pub(crate) pack: u64,
    pub(crate) node_identity: [u8; 16],
    /// Where it was written first, or zeroes where nobody knows. It may lie on others now.
    pub(crate) disk_uuid: [u8; 16],
    pub(crate) class: Class,
    /// What it was made for.
    pub(crate) level: Level,
}

impl PackHeader {
    pub(crate) const BYTES: usize = 72;
    const MAGIC: [u8; 8] = *b"HydrPack";

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(Self::BYTES);
        // Older ones had padding there.
        let level = if self.version < 3 { 0 } else { self.level.code() };
        writer.put(&Self::MAGIC).u32(self.version).u8(self.class.code()).u8(level).put(&[0; 2]).u64(self.pack);
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
        let level = match (version, reader.u8("level")?) {
            (1 | 2, 0) => Some(Level::default()),
            (1 | 2, _) => None,
            (3, level) => Level::from_code(level).filter(|level| level.erasure().is_none()),
            (4.., level) => Level::from_code(level),
            (0, _) => None,
        };
        let level = level.ok_or_else(|| reader.refuse("level"))?;
        reader.zeroes("padding", 2)?;
        expect("pack number", pack, reader.u64("pack")?)?;
        let (node_identity, disk_uuid) = (reader.array("node identity")?, reader.array("disk uuid")?);
        expect_end(&mut reader, Self::BYTES)?;
        Ok(PackHeader { version, pack, class, level, node_identity, disk_uuid })
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

    /// Content that the payload is made of: none where that lies in a bundle, which counts for itself.
    pub(crate) fn own_bytes(&self) -> u64 {
        if matches!(self.codec, Codec::Bundled(_)) { 0 } else { u64::from(self.raw) }
    }

    /// The header of the chunk that these are remains of; otherwise this one.
    pub(crate) fn whole(&self) -> ChunkHeader {
        match self.codec {
            Codec::Remains => ChunkHeader { codec: Codec::Groups, address: remains_of(&self.address), ..*self },
            Codec::Raw | Codec::Zstd | Codec::Groups | Codec::Bundle | Codec::Bundled(_) => *self,
        }
    }

    /// Header and payload in a pack.
    pub(crate) fn stored_bytes(&self) -> u32 {
        self.stored + Self::BYTES as u32
    }

    pub(crate) fn encode(&self, pack: u64, offset: u32) -> Vec<u8> {
        let mut writer = Writer::with_capacity(Self::BYTES);
        let [first, second] = self.codec.words(self.raw, self.stored);
        writer.put(&Self::MAGIC).u8(self.class.code()).u8(self.codec.code()).u16(0);
        writer.u32(first).u32(second).address(&self.address);
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
        let code = reader.u8("codec")?;
        reader.zeroes("padding", 2)?;
        let words = [reader.u32("raw length")?, reader.u32("stored length")?];
        let (codec, raw, stored) = Codec::decode(code, words).ok_or_else(|| reader.refuse("codec"))?;
        if raw as usize > CHUNK_BYTES_MAX || !codec.allows(raw, stored) {
            return Err(reader.refuse("lengths").into());
        }
        Ok(ChunkHeader { class, codec, raw, stored, address: reader.address("address")? })
    }
}

/// What the remains of a chunk are called, and the other way round: no chunk's address, as far as addresses are random. So nobody takes them for
/// the chunk.
pub(crate) fn remains_of(address: &ChunkAddress) -> ChunkAddress {
    let mut name = *address;
    name.0[16..].iter_mut().for_each(|byte| *byte = !*byte);
    name
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

    /// Where all ends that its content is made of: for what lies in a bundle the end of that.
    pub(crate) fn content_end(&self) -> u64 {
        match self.header.codec {
            Codec::Bundled(within) => {
                u64::from(self.offset) + u64::from(within.distance()) + u64::from(within.record_bytes())
            }
            Codec::Raw | Codec::Zstd | Codec::Groups | Codec::Bundle | Codec::Remains => self.end(),
        }
    }
}

/// Entries by what is verified together: one, or a bundle with what lies in it, as far as that is there.
pub(crate) fn lots_of(entries: &[Entry]) -> impl Iterator<Item = &[Entry]> {
    let mut rest = entries;
    std::iter::from_fn(move || {
        let bundle = bundle_of(rest.first()?);
        let bundled = match bundle {
            None => 0,
            Some(_) => rest.iter().take_while(|entry| bundle_of(entry) == bundle).count(),
        };
        let is_whole = rest.get(bundled).is_some_and(|last| {
            last.header.codec == Codec::Bundle && bundle == Some((u64::from(last.offset), last.header.stored))
        });
        // What lies in a bundle that is not there lies nowhere.
        let (lot, others) = rest.split_at(if is_whole { bundled + 1 } else { 1 });
        rest = others;
        Some(lot)
    })
}

/// Where the bundle is that something lies in, and how long its payload.
fn bundle_of(entry: &Entry) -> Option<(u64, u32)> {
    let Codec::Bundled(within) = entry.header.codec else { return None };
    Some((u64::from(entry.offset) + u64::from(within.distance()), u32::from(within.stored)))
}

/// The directory and the footer of a pack whose chunks end at `data_bytes`.
pub(crate) fn encode_directory(pack: u64, data_bytes: u32, entries: &[Entry]) -> Vec<u8> {
    let mut writer = Writer::with_capacity(entries.len() * Entry::BYTES + PackFooter::BYTES);
    for Entry { offset, header } in entries {
        let [first, second] = header.codec.words(header.raw, header.stored);
        writer.u32(*offset).u32(0).u8(header.class.code()).u8(header.codec.code()).u16(0);
        writer.u32(first).u32(second).address(&header.address).u32(0);
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

    pub(super) fn encode(&self) -> Vec<u8> {
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
