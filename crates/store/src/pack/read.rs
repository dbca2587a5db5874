//! Reading chunks back, from the buffer of an open pack or from a file.

use std::ops::Range;

use base::id::ChunkAddress;
use bytes::Bytes;
use platform::disk::{DiskErrorKind, File};

use super::{PackState, Packs};
use crate::chunk::{Packed, groups_of, mended, place_of_group, unpack, unpack_group};
use crate::failure::{StoreError, corrupt};
use crate::format::{ChunkHeader, Class, Codec, Place, pack_path};

impl Packs {
    /// The content of the chunk at `place`, verified.
    pub(crate) async fn read(&self, address: &ChunkAddress, place: &Place) -> Result<Bytes, StoreError> {
        let payload = self.read_payload(address, place).await?;
        self.unpack(&place.header(*address), place, payload)
    }

    /// P-4: this failed again, and is not of what the system ran out of.
    pub(crate) fn note_failed_read(&self, place: &Place, error: &StoreError) {
        let is_disks = match error {
            StoreError::Corrupt { .. } => true,
            StoreError::Disk(error) => {
                error.operation == "read" && matches!(error.kind, DiskErrorKind::Failed | DiskErrorKind::Silent)
            }
            _ => false,
        };
        let known = self.catalog.read().get(&place.pack).map(|known| (known.disk, known.state.clone()));
        // Where the pack is gone, or its disk is missing, nobody failed.
        if let Some((disk, PackState::Open(_) | PackState::Sealed)) = known
            && is_disks
        {
            self.counters.disk_reads_failed.add(1);
            self.pool.disks[disk].note_failed_read();
        }
    }

    /// The chunk as it is stored at `place`, verified: to be copied.
    pub(crate) async fn read_packed(&self, address: &ChunkAddress, place: &Place) -> Result<Packed, StoreError> {
        let (header, payload) = (place.header(*address), self.read_payload(address, place).await?);
        self.unpack(&header, place, payload.clone())?;
        Ok(Packed { header, table: Bytes::new(), payload: mended(&self.key, &header, payload) })
    }

    /// The hashes of the groups of the chunk at `place`, verified. The disk is asked for the group that will be wanted next meanwhile.
    pub(crate) async fn read_groups(
        &self,
        address: &ChunkAddress,
        place: &Place,
        next: usize,
    ) -> Result<Bytes, StoreError> {
        let header = place.header(*address);
        let within = place_of_group(&header, next);
        let start = u64::from(place.offset) + (ChunkHeader::BYTES + within.start) as u64;
        self.file_of(place.pack).await?.will_read(start, within.len() as u64);
        let length = ChunkHeader::BYTES + header.codec.table_bytes(header.raw) as usize;
        let bytes = self.read_stored(place, 0..length).await?;
        let payload = self.payload(address, place, &bytes)?;
        groups_of(&self.key, &header, &payload).map_err(|found| self.corrupt_chunk(address, place, found))?;
        Ok(payload)
    }

    /// The group with this number of the chunk at `place`, verified against the hashes of its groups.
    pub(crate) async fn read_group(
        &self,
        address: &ChunkAddress,
        place: &Place,
        groups: &[u8],
        number: usize,
    ) -> Result<Bytes, StoreError> {
        let within = place_of_group(&place.header(*address), number);
        let range = ChunkHeader::BYTES + within.start..ChunkHeader::BYTES + within.end;
        let bytes = self.read_stored(place, range).await?;
        let (groups, _) = groups.as_chunks();
        unpack_group(&self.key, groups, number, bytes).map_err(|found| self.corrupt_chunk(address, place, found))
    }

    /// Bytes of a stored chunk, header and all.
    async fn read_stored(&self, place: &Place, range: Range<usize>) -> Result<Bytes, StoreError> {
        let from = Place { offset: place.offset + range.start as u32, ..*place };
        match self.buffered(&from, range.len()) {
            Some(bytes) => Ok(bytes),
            None => self.read_bytes(place.pack, u64::from(place.offset) + range.start as u64, range.len()).await,
        }
    }

    fn corrupt_chunk(&self, address: &ChunkAddress, place: &Place, found: String) -> StoreError {
        let expected = format!("content of {address}");
        corrupt("a chunk", &self.path_of(place.pack), u64::from(place.offset), expected, found)
    }

    /// The bytes of chunks of one pack that lie near each other, in the order of their places, by one read; `None` if they cannot be had.
    pub(crate) async fn read_run(&self, members: &[(Place, ChunkAddress)]) -> Option<Bytes> {
        let ((first, _), (last, _)) = (members.first()?, members.last()?);
        let length = last.offset.checked_sub(first.offset)? as usize + ChunkHeader::BYTES + last.stored as usize;
        match self.buffered(first, length) {
            Some(bytes) => Some(bytes),
            None => self.read_bytes(first.pack, u64::from(first.offset), length).await.ok(),
        }
    }

    /// The content of one of them, verified, from bytes that begin with the first. What is not right is `None`: who wants it reads it alone, and
    /// hears why.
    pub(crate) fn content_of(
        &self,
        run: &Bytes,
        first: &Place,
        place: &Place,
        address: &ChunkAddress,
    ) -> Option<Bytes> {
        let at = place.offset.checked_sub(first.offset)? as usize;
        let end = at + ChunkHeader::BYTES + place.stored as usize;
        let stored = (end <= run.len()).then(|| run.slice(at..end))?;
        let payload = self.payload(address, place, &stored).ok()?;
        let content = self.unpack(&place.header(*address), place, payload).ok()?;
        // What is stored as it is is a part of the run: a copy of it does not keep the whole.
        Some(if place.codec == Codec::Zstd { content } else { Bytes::copy_from_slice(&content) })
    }

    async fn read_bytes(&self, pack: u64, offset: u64, length: usize) -> Result<Bytes, StoreError> {
        let file = self.file_of(pack).await?;
        let mut bytes = vec![0; length];
        self.counters.read_bytes.add(length as u64);
        file.read_exact_at(offset, &mut bytes).await?;
        Ok(Bytes::from(bytes))
    }

    fn unpack(&self, header: &ChunkHeader, place: &Place, payload: Bytes) -> Result<Bytes, StoreError> {
        unpack(&self.key, header, payload).map_err(|found| self.corrupt_chunk(&header.address, place, found))
    }

    /// The stored bytes at `place`; the header is checked, the content is not.
    async fn read_payload(&self, address: &ChunkAddress, place: &Place) -> Result<Bytes, StoreError> {
        let length = ChunkHeader::BYTES + place.stored as usize;
        let offset = u64::from(place.offset);
        let bytes = match self.buffered(place, length) {
            Some(bytes) => bytes,
            None => {
                let file = self.file_of(place.pack).await?;
                let mut bytes = vec![0; length];
                self.counters.read_bytes.add(length as u64);
                if place.header(*address).class == Class::Metadata
                    && let Some(range) = self.neighbours.note(place.pack, offset)
                {
                    self.counters.prefetched_bytes.add(range.end - range.start);
                    file.will_read(range.start, range.end - range.start);
                }
                match file.read_exact_at(offset, &mut bytes).await {
                    Ok(()) => Bytes::from(bytes),
                    Err(error) if error.kind == DiskErrorKind::Short => {
                        let found = error.detail;
                        return Err(corrupt("a chunk", file.path(), offset, format_args!("{address}"), found));
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        };
        self.payload(address, place, &bytes)
    }

    /// What is behind the header of a stored chunk, which is checked; the content is not.
    fn payload(&self, address: &ChunkAddress, place: &Place, bytes: &Bytes) -> Result<Bytes, StoreError> {
        let (expected, offset) = (place.header(*address), u64::from(place.offset));
        match ChunkHeader::decode(&bytes[..ChunkHeader::BYTES], place.pack, place.offset) {
            Ok(header) if header == expected => Ok(bytes.slice(ChunkHeader::BYTES..)),
            Ok(header) => {
                let expected = format!("{expected:?}");
                Err(corrupt("a chunk header", &self.path_of(place.pack), offset, expected, format!("{header:?}")))
            }
            Err(unfit) => {
                let expected = format!("the header of {address} ({})", unfit.expected);
                Err(corrupt("a chunk header", &self.path_of(place.pack), offset, expected, unfit.found))
            }
        }
    }

    /// Has the next reading of a place ask the disk.
    pub(crate) async fn forget_read(&self, place: &Place) {
        if let Ok(file) = self.file_of(place.pack).await {
            file.forget(u64::from(place.offset), (ChunkHeader::BYTES + place.stored as usize) as u64);
        }
    }

    /// Whether the header at `place` names the chunk. Says nothing of its content.
    pub(crate) async fn is_named_at(&self, address: &ChunkAddress, place: &Place) -> Result<bool, StoreError> {
        let header = match self.buffered(place, ChunkHeader::BYTES) {
            Some(bytes) => bytes,
            None if !self.has(place.pack) => return Ok(false),
            None => {
                let mut bytes = vec![0; ChunkHeader::BYTES];
                match self.file_of(place.pack).await?.read_exact_at(u64::from(place.offset), &mut bytes).await {
                    Err(error) if error.kind == DiskErrorKind::Short => return Ok(false),
                    read => read?,
                }
                Bytes::from(bytes)
            }
        };
        let found = ChunkHeader::decode(&header, place.pack, place.offset);
        Ok(found.is_ok_and(|found| found == place.header(*address)))
    }

    fn buffered(&self, place: &Place, length: usize) -> Option<Bytes> {
        match &self.catalog.read().get(&place.pack)?.state {
            PackState::Open(pack) => pack.buffered(u64::from(place.offset), length),
            PackState::Sealed | PackState::Missing => None,
        }
    }

    /// The open file of a pack, kept for the next reader.
    async fn file_of(&self, pack: u64) -> Result<File, StoreError> {
        let disk = match self.catalog.read().get(&pack) {
            Some(known) => match &known.state {
                PackState::Open(open) => return Ok(open.file().clone()),
                PackState::Sealed => known.disk,
                PackState::Missing => {
                    let error = self.pool.missing_error(&pack_path(pack));
                    return Err(error.expect("K-6: no pack is missing where no disk is").into());
                }
            },
            None => {
                let found = "no such pack on any disk";
                return Err(corrupt("the index's entry of a chunk", &pack_path(pack), 0, "a pack", found));
            }
        };
        if let Some(file) = self.files.get(&pack) {
            return Ok(file);
        }
        let file = self.pool.disks[disk].disk.open_to_read(&pack_path(pack)).await?;
        self.files.insert(pack, file.clone());
        // It may have been dropped while it was being opened, and nobody would close it.
        if !self.has(pack) {
            self.files.remove(&pack);
        }
        Ok(file)
    }

    pub(crate) fn path_of(&self, pack: u64) -> String {
        match self.catalog.read().get(&pack) {
            Some(known) => format!("{}/{}", self.pool.disks[known.disk].disk.path(), pack_path(pack)),
            None => pack_path(pack),
        }
    }

    /// Whether the node has this pack.
    pub(crate) fn has(&self, pack: u64) -> bool {
        self.catalog.read().contains_key(&pack)
    }

    /// Whether it is on a disk that is missing.
    pub(crate) fn is_missing(&self, pack: u64) -> bool {
        self.catalog.read().get(&pack).is_some_and(|known| matches!(known.state, PackState::Missing))
    }

    /// Whether it has it on this disk.
    pub(crate) fn is_on(&self, pack: u64, disk: usize) -> bool {
        self.catalog.read().get(&pack).is_some_and(|known| known.disk == disk)
    }

    /// Whether the file of a pack is being made, or about to be removed: on the disk and not in the catalog, or the other way round.
    pub(crate) fn is_passing(&self, pack: u64) -> bool {
        self.making.lock().contains(&pack) || self.condemned.read().contains(&pack)
    }

    /// Takes a pack out of the catalog, so that its file can be removed.
    pub(crate) fn drop_pack(&self, pack: u64) {
        self.catalog.write().remove(&pack);
        self.files.remove(&pack);
        self.ages.forget(pack);
    }
}
