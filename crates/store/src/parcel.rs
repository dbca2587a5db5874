//! Parcels: chunks on their way to another node of the dedup domain, in the form in which they are stored.
//!
//! C-4   A parcel is believed when its content hashes to its address, and not before: nothing of one that does not is stored.
//!
//! Not here: how parcels travel, and which (`file`).

use std::sync::Arc;

use base::id::ChunkAddress;
use base::limits::CHUNK_BYTES_MAX;
use bytes::Bytes;
use platform::task::parallel;

use crate::chunk::{BUNDLED_BYTES_MAX, Compression, Named, Packed, lots, pack, pack_lot, unpack};
use crate::failure::{StoreError, corrupt};
use crate::format::{ChunkHeader, Class, Codec};
use crate::index::AddressSet;
use crate::level::Resilience;
use crate::store::Store;

/// What the payload of a parcel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// The content.
    Raw,
    /// The content, compressed.
    Zstd,
}

/// A chunk on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parcel {
    /// What kind of thing it holds.
    pub class: Class,
    /// What the payload is.
    pub packing: Packing,
    /// Bytes of content.
    pub raw: u32,
    /// What it is called.
    pub address: ChunkAddress,
    /// Its bytes.
    pub payload: Bytes,
}

/// A parcel whose content was verified.
enum Opened {
    /// Stored as it came.
    Packed(Packed),
    /// Packed anew: here more or less may be compressed than there, and what is small lies in other bundles.
    Content(Named),
}

impl Opened {
    fn address(&self) -> ChunkAddress {
        match self {
            Opened::Packed(packed) => packed.header.address,
            Opened::Content(named) => named.address,
        }
    }

    fn content_bytes(&self) -> u64 {
        match self {
            Opened::Packed(packed) => u64::from(packed.header.raw),
            Opened::Content(named) => named.content.len() as u64,
        }
    }
}

impl Store {
    /// A chunk as a parcel, verified.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub async fn parcel(self: &Arc<Store>, class: Class, address: &ChunkAddress) -> Result<Parcel, StoreError> {
        if let Some(parcel) = self.parcel_as_stored(class, address).await {
            return Ok(parcel);
        }
        // Also where that cannot be read: here all that can be done for a chunk is done.
        let content = self.read(address).await?;
        let raw = u32::try_from(content.len()).expect("a chunk is at most 1 MiB");
        let parcel = |packing, payload| Parcel { class, packing, raw, address: *address, payload };
        if content.len() > BUNDLED_BYTES_MAX {
            return Ok(parcel(Packing::Raw, content));
        }
        // What lies in a bundle goes without the others.
        let named = Named { address: *address, groups: Vec::new(), content: content.clone() };
        let packed = pack(self.options.compression, class, named);
        Ok(match packed.header.codec {
            Codec::Zstd => parcel(Packing::Zstd, packed.payload),
            Codec::Raw | Codec::Groups | Codec::Bundle | Codec::Bundled(_) | Codec::Remains => {
                parcel(Packing::Raw, content)
            }
        })
    }

    async fn parcel_as_stored(self: &Arc<Store>, class: Class, address: &ChunkAddress) -> Option<Parcel> {
        let place = self.packs.index.lookup(address, &self.counters).ok()??;
        if place.codec != Codec::Zstd {
            return None;
        }
        let Packed { header, payload, .. } = self.packs.read_packed(address, &place).await.ok()?;
        Some(Parcel { class, packing: Packing::Zstd, raw: header.raw, address: *address, payload })
    }

    /// Bytes that the payload of a chunk's parcel would have, as far as the index knows it; nothing of it is read.
    #[must_use]
    pub fn parcel_bytes(&self, address: &ChunkAddress) -> Option<u64> {
        let place = self.packs.index.lookup(address, &self.counters).ok()??;
        Some(u64::from(if place.codec == Codec::Zstd { place.stored } else { place.raw }))
    }

    /// Accepts what came in parcels, as [`Store::put_many`] accepts content; how many were not there yet. They get no room of the
    /// disks' reserves, whatever they hold.
    ///
    /// # Errors
    /// `Corrupt` or `TooLarge` for a parcel that is not what it says: nothing of any is stored. `Full`, `ReadOnly`.
    pub async fn put_parcels(&self, parcels: Vec<Parcel>) -> Result<u64, StoreError> {
        self.counters.chunks_put.add(parcels.len() as u64);
        let opened = parallel(&self.platform.tasks, parcels, |parcel| (parcel.class, self.opened(parcel)));
        let (mut metadata, mut data) = (Vec::new(), Vec::new());
        for (class, opened) in opened {
            match class {
                Class::Metadata => metadata.push(opened?),
                Class::Data => data.push(opened?),
            }
        }
        Ok(self.put_opened(Class::Data, data).await? + self.put_opened(Class::Metadata, metadata).await?)
    }

    fn opened(&self, parcel: Parcel) -> Result<Opened, StoreError> {
        let Parcel { class, packing, raw, address, payload } = parcel;
        let wrong = |found: String| {
            corrupt("a chunk that was sent", "the stream", 0, format_args!("content of {address}"), found)
        };
        if payload.len() > raw as usize || raw as usize > CHUNK_BYTES_MAX {
            let (bytes, limit) = (u64::from(raw).max(payload.len() as u64), CHUNK_BYTES_MAX as u64);
            return Err(StoreError::TooLarge { what: "a chunk that was sent", bytes, limit });
        }
        match packing {
            Packing::Zstd => {
                let stored = u32::try_from(payload.len()).expect("no more than raw");
                let header = ChunkHeader { class, codec: Codec::Zstd, raw, stored, address };
                let content = unpack(self.key(), &header, payload.clone()).map_err(wrong)?;
                let is_small = class == Class::Data && content.len() <= BUNDLED_BYTES_MAX;
                Ok(match is_small && self.options.compression != Compression::None {
                    // It came without those that it is to lie with.
                    true => Opened::Content(self.named(class, content)),
                    false => Opened::Packed(Packed::stored(header, payload)),
                })
            }
            Packing::Raw => {
                let named = self.named(class, payload);
                match named.address == address && named.content.len() == raw as usize {
                    true => Ok(Opened::Content(named)),
                    false => Err(wrong(format!("{} bytes of content of {}", named.content.len(), named.address))),
                }
            }
        }
    }

    async fn put_opened(&self, class: Class, opened: Vec<Opened>) -> Result<u64, StoreError> {
        if opened.is_empty() {
            return Ok(0);
        }
        let bytes = opened.iter().map(Opened::content_bytes).sum();
        self.counters.put_bytes.add(bytes);
        let _room = self.room(bytes).await;
        let level = self.packs.level(class, Resilience::OfNode);
        let (mut seen, count) = (AddressSet::default(), opened.len());
        let is_new =
            |opened: &Opened| seen.insert(opened.address()) && self.packs.duplicate(&opened.address(), level).is_none();
        let new: Vec<Opened> = opened.into_iter().filter(is_new).collect();
        let new_count = new.len() as u64;
        self.counters.chunks_duplicate.add(count as u64 - new_count);
        self.counters.new_bytes.add(new.iter().map(Opened::content_bytes).sum());
        let (mut packed, mut contents) = (Vec::new(), Vec::new());
        for opened in new {
            match opened {
                Opened::Packed(one) => packed.push(one),
                Opened::Content(named) => contents.push(named),
            }
        }
        let (lots, compression) = (lots(self.options.compression, class, contents), self.options.compression);
        let anew = parallel(&self.platform.tasks, lots, |lot| pack_lot(self.key(), compression, class, lot));
        packed.extend(anew.into_iter().flatten());
        self.append((class, level), Class::Data, packed).await?;
        if self.packs.is_much_waiting() {
            self.keep_index().await;
        }
        Ok(new_count)
    }
}
