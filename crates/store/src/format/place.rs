//! What the index says of chunks and packs.
//!
//! Not here: tables and pages (`index`).

use std::ops::Range;

use base::codec::Reader;
use base::hash::checksum;
use base::id::ChunkAddress;
use base::limits::CHUNK_BYTES_MAX;

use crate::level::Level;

use super::{ChunkHeader, Class, Codec, Entry, PackFooter, PackHeader};

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

    /// The bytes that its content is made of, header and payload, from `offset` on: those of the bundle where it lies in one.
    pub(crate) fn record(&self) -> Range<usize> {
        match self.codec {
            Codec::Bundled(within) => {
                let start = within.distance() as usize;
                start..start + within.record_bytes() as usize
            }
            Codec::Raw | Codec::Zstd | Codec::Groups | Codec::Bundle | Codec::Remains => {
                0..ChunkHeader::BYTES + self.stored as usize
            }
        }
    }

    /// Where they begin and end in the pack.
    pub(crate) fn span(&self) -> Range<u64> {
        let (offset, record) = (u64::from(self.offset), self.record());
        offset + record.start as u64..offset + record.end as u64
    }

    pub(crate) fn encode(&self, address: &ChunkAddress) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let [first, second] = self.codec.words(self.raw, self.stored);
        bytes[0..8].copy_from_slice(&self.pack.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.offset.to_le_bytes());
        bytes[12..16].copy_from_slice(&second.to_le_bytes());
        bytes[16..20].copy_from_slice(&first.to_le_bytes());
        bytes[20] = self.class.code();
        bytes[21] = self.codec.code();
        let sum = Self::sum(address, &bytes);
        bytes[22..24].copy_from_slice(&sum);
        bytes
    }

    /// `None` for an entry that does not belong to the address or has rotted (redb checks its pages only after a crash).
    pub(crate) fn decode(address: &ChunkAddress, bytes: &[u8; Self::BYTES]) -> Option<Place> {
        let mut reader = Reader::new(bytes);
        let (pack, offset) = (reader.u64("pack").ok()?, reader.u32("offset").ok()?);
        let (second, first) = (reader.u32("stored").ok()?, reader.u32("raw").ok()?);
        let class = Class::from_code(reader.u8("class").ok()?)?;
        let (codec, raw, stored) = Codec::decode(reader.u8("codec").ok()?, [first, second])?;
        let place = Place { pack, offset, stored, raw, class, codec };
        let fits = place.raw as usize <= CHUNK_BYTES_MAX && place.codec.allows(place.raw, place.stored);
        (fits && bytes[22..24] == Self::sum(address, bytes)).then_some(place)
    }

    pub(super) fn sum(address: &ChunkAddress, bytes: &[u8; Self::BYTES]) -> [u8; 2] {
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
    /// What it was made for.
    pub(crate) level: Level,
    /// It is in fragments, and its directory, or parts of it, could not be read when the index was made: this is of the chunks that were found
    /// all the same (O-6).
    pub(crate) lacks_directory: bool,
    /// A disk left it before it was sealed, or an opening could not put it in order on each of its disks: what such a disk has of it may lack the
    /// directory, however long it is (O-8).
    pub(crate) was_left: bool,
}

impl Summary {
    pub(crate) const BYTES: usize = 24;

    /// Bytes of its file.
    pub(crate) fn file_bytes(&self) -> u64 {
        u64::from(self.data_bytes) + u64::from(self.count) * Entry::BYTES as u64 + PackFooter::BYTES as u64
    }

    pub(crate) fn empty(class: Class, level: Level) -> Summary {
        Summary {
            class,
            count: 0,
            data_bytes: PackHeader::BYTES as u32,
            raw_bytes: 0,
            level,
            lacks_directory: false,
            was_left: false,
        }
    }

    pub(crate) fn of(data_bytes: u32, entries: &[Entry], level: Level) -> Summary {
        Summary {
            class: entries.first().map_or(Class::Data, |entry| entry.header.class),
            count: u32::try_from(entries.len()).expect("a pack below 4 GiB has fewer chunks"),
            data_bytes,
            raw_bytes: entries.iter().map(|entry| entry.header.own_bytes()).sum(),
            level,
            lacks_directory: false,
            was_left: false,
        }
    }

    /// Of a file of so many bytes whose directory cannot be read, by the chunks that were found in it: what is not the directory of
    /// those counts as data.
    pub(crate) fn of_scanned(file_bytes: u64, entries: &[Entry], level: Level) -> Summary {
        let without_data = Summary::of(0, entries, level).file_bytes();
        let data_bytes = u32::try_from(file_bytes.saturating_sub(without_data)).unwrap_or(u32::MAX);
        Summary { lacks_directory: true, ..Summary::of(data_bytes, entries, level) }
    }

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..4].copy_from_slice(&self.count.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.data_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.raw_bytes.to_le_bytes());
        bytes[16] = self.class.code();
        bytes[17] = self.level.code();
        bytes[18] = u8::from(self.lacks_directory);
        bytes[19] = u8::from(self.was_left);
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
            level: reader.u8("level").ok().and_then(Level::from_code).unwrap_or_default(),
            lacks_directory: reader.u8("whether it lacks its directory").is_ok_and(|lacks| lacks != 0),
            was_left: reader.u8("whether a disk left it").is_ok_and(|left| left != 0),
        }
    }
}
