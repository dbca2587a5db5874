//! What is left of damaged chunks: looked for on all disks of a pack, and stored once.
//!
//! F-9   What is saved of a chunk has every group that was saved of it before, and lies on no fewer disks: of several remains the one that was stored
//!       last is as good as all of them.
//!
//! Not here: the form of remains (`chunk`), who reads them (`reading`), when they go (`reclaim`).

use base::id::ChunkAddress;
use bytes::Bytes;

use crate::chunk::{Packed, pack, saved};
use crate::failure::StoreError;
use crate::format::{ChunkHeader, Codec, Entry, Place, remains_of};
use crate::level::Level;
use crate::pack::Copied;
use crate::store::Store;

/// What is left of a chunk that cannot be read.
pub(super) enum Left {
    /// All of it.
    Whole(Copied),
    /// What verifies of it, and what it is to be stored for.
    Part(Packed, Level),
    /// No more than was saved before.
    NoMore,
    Nothing,
    /// It is remains of a chunk that is whole again.
    Needless,
}

impl Store {
    /// What is left of a chunk of a pack that cannot be read there, or of which there is nothing but remains. `entries`: all of the pack.
    ///
    /// # Errors
    /// `Disk`: a disk gave no answer, so that nobody knows.
    pub(super) async fn what_is_left(&self, number: u64, entries: &[Entry], entry: &Entry) -> Result<Left, StoreError> {
        let whole = entry.header.whole();
        if self.is_whole_again(&entry.header).await? {
            return Ok(Left::Needless);
        }
        if let Some(content) = self.good_copy_of(&whole.address, |place| place.pack != number).await {
            // That one may be on fewer disks.
            let named = self.named(whole.class, content);
            return Ok(Left::Whole(Copied::Stored(pack(self.options.compression, whole.class, named))));
        }
        if matches!(whole.codec, Codec::Bundled(_) | Codec::Bundle) {
            return Ok(Left::Nothing);
        }
        let mut payloads = Vec::new();
        for entry in entries.iter().filter(|entry| entry.header.whole().address == whole.address) {
            payloads.extend(self.packs.payloads(&Place::of(number, entry)).await?);
        }
        let name = remains_of(&whole.address);
        let is_other = |place: &Place| place.pack != number && place.codec == Codec::Remains;
        let named = self.packs.index.lookup(&name, &self.counters)?.filter(is_other);
        let mut before = None;
        if let Some(place) = &named {
            before = self.good_remains(&name, place).await?;
            match &before {
                Some(payload) => payloads.push(payload.clone()),
                None => payloads.extend(self.packs.payloads(place).await?),
            }
        }
        for place in self.packs.index.file().copies_of(&name)?.iter().filter(|place| is_other(place)) {
            payloads.extend(self.good_remains(&name, place).await.ok().flatten());
        }
        let now = match saved(self.key(), &whole, &payloads) {
            None => return Ok(Left::Nothing),
            Some(now) if now.header.codec != Codec::Remains => return Ok(Left::Whole(Copied::Stored(now))),
            Some(now) => now,
        };
        let (here, there) = (self.packs.level_now(number), named.map(|place| self.packs.level_now(place.pack)));
        match there {
            Some(there) if there.copies() >= here.copies() && before == Some(now.payload.clone()) => Ok(Left::NoMore),
            Some(there) if there.copies() > here.copies() => Ok(Left::Part(now, there)),
            _ => Ok(Left::Part(now, here)),
        }
    }

    /// The payload of remains that are as they should be.
    async fn good_remains(&self, name: &ChunkAddress, place: &Place) -> Result<Option<Bytes>, StoreError> {
        match self.packs.read_packed(name, place).await {
            Ok(packed) => Ok(Some(packed.payload)),
            Err(error @ StoreError::Disk(_)) => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Whether these are remains of a chunk that was put again since (C-7).
    pub(crate) async fn is_whole_again(&self, header: &ChunkHeader) -> Result<bool, StoreError> {
        if header.codec != Codec::Remains {
            return Ok(false);
        }
        let address = header.whole().address;
        match self.packs.index.lookup(&address, &self.counters)? {
            // K-6.
            Some(at) if !self.packs.is_missing(at.pack) && !self.packs.is_part(at.pack) => {
                Ok(self.packs.read(&address, &at).await.is_ok())
            }
            _ => Ok(false),
        }
    }
}
