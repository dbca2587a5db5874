//! Reading chunks back, from the buffer of an open pack or from a file on one of its disks.
//!
//! K-8   What fails on one disk of a pack, or does not verify, is read there once more, and then on the others: only what fails on all of them
//!       fails. The disk is noted (P-4), and what lies there is suspect until it was written again.

use std::ops::Range;

use base::id::ChunkAddress;
use bytes::Bytes;
use platform::disk::{DiskErrorKind, File};

use super::{PackState, Packs};
use crate::chunk::{Packed, groups_of, mended, place_of_group, unpack, unpack_group};
use crate::disks::DiskSet;
use crate::failure::{StoreError, corrupt};
use crate::format::{ChunkHeader, Class, Codec, Place, pack_path};

/// Where a chunk is being read.
struct Tries {
    place: Place,
    range: Range<usize>,
    disks: DiskSet,
    /// The disk whose turn it is.
    disk: usize,
    /// Those that come after it.
    left: DiskSet,
    is_second: bool,
}

impl Packs {
    /// The content of the chunk at `place`, verified.
    pub(crate) async fn read(&self, address: &ChunkAddress, place: &Place) -> Result<Bytes, StoreError> {
        let mut tries = self.tries(place, 0..ChunkHeader::BYTES + place.stored as usize)?;
        loop {
            let payload = self.read_payload(tries.disk, address, place).await;
            let content = payload.and_then(|payload| self.unpack(&place.header(*address), place, payload));
            if let Some(content) = self.judge(&mut tries, content).await {
                return content;
            }
        }
    }

    /// K-8. `range` is what is read of the chunk.
    fn tries(&self, place: &Place, range: Range<usize>) -> Result<Tries, StoreError> {
        let disks = self.disks_of(place.pack)?;
        let disk = self.next_to_read(disks, place.pack);
        Ok(Tries { place: *place, range, disks, disk, left: disks.without(disk), is_second: false })
    }

    /// What came of a try; `None`: it is to be tried again.
    async fn judge<T>(&self, tries: &mut Tries, result: Result<T, StoreError>) -> Option<Result<T, StoreError>> {
        let Err(error) = &result else { return Some(result) };
        let Tries { place, range, disks, disk, left, is_second } = tries;
        if disks.count() == 1 {
            return Some(result);
        }
        if !*is_second && let Ok(file) = self.file_of(place.pack, *disk).await {
            // A bit that flipped on its way here may be right the next time.
            file.forget(u64::from(place.offset) + range.start as u64, range.len() as u64);
            *is_second = true;
            return None;
        }
        if is_the_disks(error) {
            self.counters.disk_reads_failed.add(1);
            self.pool.disks[*disk].note_failed_read();
        }
        self.suspects.lock().insert((place.pack, *disk));
        if left.is_empty() {
            return Some(result);
        }
        self.counters.reads_of_copies.add(1);
        *disk = self.next_to_read(*left, place.pack);
        *left = left.without(*disk);
        *is_second = false;
        None
    }

    /// The disks that a pack is on.
    pub(crate) fn disks_of(&self, pack: u64) -> Result<DiskSet, StoreError> {
        match self.catalog.read().get(&pack) {
            Some(known) => Ok(known.disks()),
            None => {
                let found = "no such pack on any disk";
                Err(corrupt("the index's entry of a chunk", &pack_path(pack), 0, "a pack", found))
            }
        }
    }

    /// Which of some disks a pack is read on first: by turns, so that all disks work, and those last that failed to.
    fn next_to_read(&self, disks: DiskSet, pack: u64) -> usize {
        let is_sound = |disk: &usize| self.pool.disks[*disk].is_good() && self.pool.disks[*disk].reads_failed() == 0;
        let sound: DiskSet = disks.iter().filter(is_sound).collect();
        let best = if sound.is_empty() { disks } else { sound };
        let turn = usize::try_from(pack % best.count() as u64).expect("fewer than there are disks");
        best.iter().nth(turn).expect("less than their count")
    }

    /// P-4: this failed again, and is not of what the system ran out of.
    pub(crate) fn note_failed_read(&self, place: &Place, error: &StoreError) {
        let known = self.catalog.read().get(&place.pack).map(|known| (known.disks(), known.state.clone()));
        // Where the pack is gone, or its disk is missing, nobody failed. Of several disks those that failed were noted.
        if let Some((disks, PackState::Open(_) | PackState::Sealed)) = known
            && disks.count() == 1
            && is_the_disks(error)
        {
            self.counters.disk_reads_failed.add(1);
            disks.iter().for_each(|disk| self.pool.disks[disk].note_failed_read());
        }
    }

    /// The chunk as it is stored at `place`, verified: to be copied.
    pub(crate) async fn read_packed(&self, address: &ChunkAddress, place: &Place) -> Result<Packed, StoreError> {
        let header = place.header(*address);
        let mut tries = self.tries(place, 0..ChunkHeader::BYTES + place.stored as usize)?;
        let payload = loop {
            let read = self.read_payload(tries.disk, address, place).await;
            let read = read.and_then(|payload| self.unpack(&header, place, payload.clone()).map(|_| payload));
            if let Some(payload) = self.judge(&mut tries, read).await {
                break payload?;
            }
        };
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
        let length = ChunkHeader::BYTES + header.codec.table_bytes(header.raw) as usize;
        let mut tries = self.tries(place, 0..length)?;
        loop {
            if let Ok(file) = self.file_of(place.pack, tries.disk).await {
                file.will_read(start, within.len() as u64);
            }
            let bytes = self.read_stored(tries.disk, place, 0..length).await;
            let payload = bytes.and_then(|bytes| self.payload(address, place, &bytes));
            let payload = payload.and_then(|payload| match groups_of(&self.key, &header, &payload) {
                Ok(_) => Ok(payload),
                Err(found) => Err(self.corrupt_chunk(address, place, found)),
            });
            if let Some(payload) = self.judge(&mut tries, payload).await {
                return payload;
            }
        }
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
        let (groups, _) = groups.as_chunks();
        let mut tries = self.tries(place, range.clone())?;
        loop {
            let bytes = self.read_stored(tries.disk, place, range.clone()).await;
            let group = bytes.and_then(|bytes| {
                unpack_group(&self.key, groups, number, bytes)
                    .map_err(|found| self.corrupt_chunk(address, place, found))
            });
            if let Some(group) = self.judge(&mut tries, group).await {
                return group;
            }
        }
    }

    /// Bytes of a stored chunk, header and all.
    async fn read_stored(&self, disk: usize, place: &Place, range: Range<usize>) -> Result<Bytes, StoreError> {
        let from = Place { offset: place.offset + range.start as u32, ..*place };
        match self.buffered(&from, range.len()) {
            Some(bytes) => Ok(bytes),
            None => self.read_bytes(disk, place.pack, u64::from(place.offset) + range.start as u64, range.len()).await,
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
            None => {
                let disk = self.next_to_read(self.disks_of(first.pack).ok()?, first.pack);
                self.read_bytes(disk, first.pack, u64::from(first.offset), length).await.ok()
            }
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

    async fn read_bytes(&self, disk: usize, pack: u64, offset: u64, length: usize) -> Result<Bytes, StoreError> {
        let file = self.file_of(pack, disk).await?;
        let mut bytes = vec![0; length];
        self.counters.read_bytes.add(length as u64);
        file.read_exact_at(offset, &mut bytes).await?;
        Ok(Bytes::from(bytes))
    }

    fn unpack(&self, header: &ChunkHeader, place: &Place, payload: Bytes) -> Result<Bytes, StoreError> {
        unpack(&self.key, header, payload).map_err(|found| self.corrupt_chunk(&header.address, place, found))
    }

    /// The stored bytes at `place`; the header is checked, the content is not.
    async fn read_payload(&self, disk: usize, address: &ChunkAddress, place: &Place) -> Result<Bytes, StoreError> {
        let length = ChunkHeader::BYTES + place.stored as usize;
        let offset = u64::from(place.offset);
        let bytes = match self.buffered(place, length) {
            Some(bytes) => bytes,
            None => {
                let file = self.file_of(place.pack, disk).await?;
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
        for disk in self.disks_of(place.pack).unwrap_or_default().iter() {
            if let Ok(file) = self.file_of(place.pack, disk).await {
                file.forget(u64::from(place.offset), (ChunkHeader::BYTES + place.stored as usize) as u64);
            }
        }
    }

    /// Whether the header at `place` names the chunk. Says nothing of its content.
    pub(crate) async fn is_named_at(&self, address: &ChunkAddress, place: &Place) -> Result<bool, StoreError> {
        let is_named = |header: &[u8]| {
            let found = ChunkHeader::decode(header, place.pack, place.offset);
            found.is_ok_and(|found| found == place.header(*address))
        };
        if let Some(header) = self.buffered(place, ChunkHeader::BYTES) {
            return Ok(is_named(&header));
        }
        // Of a pack that is nowhere, on none.
        let mut failure = None;
        for disk in self.disks_of(place.pack).unwrap_or_default().iter() {
            let mut header = [0; ChunkHeader::BYTES];
            match self.file_of(place.pack, disk).await?.read_exact_at(u64::from(place.offset), &mut header).await {
                Ok(()) if is_named(&header) => return Ok(true),
                Err(error) if error.kind != DiskErrorKind::Short => failure = Some(error),
                _ => {}
            }
        }
        failure.map_or(Ok(false), |error| Err(error.into()))
    }

    fn buffered(&self, place: &Place, length: usize) -> Option<Bytes> {
        match &self.catalog.read().get(&place.pack)?.state {
            PackState::Open(pack) => pack.buffered(u64::from(place.offset), length),
            PackState::Sealed | PackState::Missing => None,
        }
    }

    /// The open file of a pack on one of its disks, kept for the next reader.
    async fn file_of(&self, pack: u64, disk: usize) -> Result<File, StoreError> {
        match self.catalog.read().get(&pack).map(|known| &known.state) {
            Some(PackState::Missing) => {
                let error = self.pool.missing_error(&pack_path(pack));
                return Err(error.expect("K-6: no pack is missing where no disk is").into());
            }
            Some(PackState::Open(open)) => {
                if let Some(member) = open.members().iter().find(|member| member.disk == disk) {
                    return Ok(member.file.clone());
                }
            }
            Some(PackState::Sealed) | None => {}
        }
        let files = self.files(disk);
        if let Some(file) = files.get(&pack) {
            return Ok(file);
        }
        let file = self.pool.disks[disk].disk.open_to_read(&pack_path(pack)).await?;
        files.insert(pack, file.clone());
        // It may have been dropped while it was being opened, and nobody would close it.
        if !self.is_on(pack, disk) {
            files.remove(&pack);
        }
        Ok(file)
    }

    pub(crate) fn path_of(&self, pack: u64) -> String {
        match self.catalog.read().get(&pack) {
            Some(known) => {
                let disk = known.disks().first().expect("a pack is somewhere");
                format!("{}/{}", self.pool.disks[disk].disk.path(), pack_path(pack))
            }
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
        self.catalog.read().get(&pack).is_some_and(|known| known.disks().has(disk))
    }

    /// Whether the file of a pack is being made, or about to be removed: on the disk and not in the catalog, or the other way round.
    pub(crate) fn is_passing(&self, pack: u64) -> bool {
        self.making.lock().contains(&pack) || self.condemned.read().contains(&pack)
    }

    /// Takes a pack out of the catalog, so that its file can be removed.
    /// Gives the disks that it is on.
    pub(crate) fn drop_pack(&self, pack: u64) -> DiskSet {
        let known = self.catalog.write().remove(&pack);
        self.files.iter().filter_map(std::sync::OnceLock::get).for_each(|files| drop(files.remove(&pack)));
        self.ages.forget(pack);
        self.suspects.lock().retain(|(suspect, _)| *suspect != pack);
        self.rotten.lock().remove(&pack);
        known.map(|known| known.disks()).unwrap_or_default()
    }
}

/// Whether it was the disk that failed, or gave something else than it was given.
fn is_the_disks(error: &StoreError) -> bool {
    match error {
        StoreError::Corrupt { .. } => true,
        StoreError::Disk(error) => {
            error.operation == "read" && matches!(error.kind, DiskErrorKind::Failed | DiskErrorKind::Silent)
        }
        _ => false,
    }
}
