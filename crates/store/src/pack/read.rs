//! Reading chunks back, from the buffer of an open pack, from a file on one of its disks, or from fragments.
//!
//! Not here: which disk is asked, and which is the next where that fails (`tries`).

use std::ops::Range;

use base::hash::GROUP_BYTES;
use base::id::ChunkAddress;
use bytes::{Bytes, BytesMut};
use platform::disk::{DiskError, DiskErrorKind, File};
use platform::task::all;

use super::fragments::{Fragment, Fragments, Joined, PackFile, absent, best};
use super::scan::{READINGS_MAX, unsteady};
use super::tries::Source;
use super::{OF_FRAGMENT, OpenPack, PackKnown, PackState, Packs};
use crate::chunk::{
    Bundle, Named, Packed, groups_of, mended, place_of_group, unpack, unpack_group, unpack_left, verify,
};
use crate::disks::DiskSet;
use crate::failure::{StoreError, corrupt};
use crate::format::{ChunkHeader, Class, Codec, Place, pack_path};

/// The bundle that was opened last: where its header stands, and its content. What lies in it comes together mostly.
#[derive(Default)]
pub(crate) struct Memo(Option<(u64, u64, Bundle)>);

impl Memo {
    /// With the content of the bundle that a chunk lies in, if somebody has that.
    pub(crate) fn new(place: &Place, bundle: Option<Bytes>) -> Memo {
        Memo(bundle.map(|content| (place.pack, place.span().start, Bundle::of(content))))
    }

    /// The content of the bundle.
    pub(crate) fn into_content(self) -> Option<Bytes> {
        self.0.map(|(_, _, bundle)| bundle.into_content())
    }
}

/// A chunk on its way to another pack.
pub(crate) enum Copied {
    /// As it was stored.
    Stored(Packed),
    /// Out of a bundle, to go into another one.
    Content(Class, Named),
}

impl Copied {
    /// What is in memory of it.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Copied::Stored(packed) => packed.payload.len(),
            Copied::Content(_, named) => named.content.len(),
        }
    }

    pub(crate) fn class(&self) -> Class {
        match self {
            Copied::Stored(packed) => packed.header.class,
            Copied::Content(class, _) => *class,
        }
    }
}

impl Packs {
    /// The content of the chunk at `place`, verified.
    pub(crate) async fn read(&self, address: &ChunkAddress, place: &Place) -> Result<Bytes, StoreError> {
        self.read_by(address, place, &mut Memo::default()).await
    }

    /// The same, for who reads one chunk after the other.
    pub(crate) async fn read_by(
        &self,
        address: &ChunkAddress,
        place: &Place,
        memo: &mut Memo,
    ) -> Result<Bytes, StoreError> {
        if let Some(content) = self.content_in(memo, address, place) {
            return Ok(content);
        }
        // C-7.
        if place.codec == Codec::Remains {
            return Err(StoreError::Absent { chunk: *address });
        }
        let mut tries = self.tries(place, place.record())?;
        loop {
            let record = self.read_record(tries.source, address, place).await;
            let content = record.and_then(|record| self.content(memo, address, place, &record));
            if let Some(content) = self.judge(&mut tries, content).await {
                return content;
            }
        }
    }

    /// What lies in the bundle that was opened last.
    fn content_in(&self, memo: &Memo, address: &ChunkAddress, place: &Place) -> Option<Bytes> {
        let (Codec::Bundled(within), Some((pack, start, bundle))) = (place.codec, &memo.0) else { return None };
        let is_it = (*pack, *start) == (place.pack, place.span().start);
        is_it.then(|| bundle.content_of(&self.key, address, place.raw, within).ok())?
    }

    /// The content of a chunk, verified, of the record that it is made of.
    fn content(
        &self,
        memo: &mut Memo,
        address: &ChunkAddress,
        place: &Place,
        record: &Bytes,
    ) -> Result<Bytes, StoreError> {
        let Codec::Bundled(within) = place.codec else {
            let payload = self.payload(address, place, record)?;
            return self.unpack(&place.header(*address), place, payload);
        };
        let wrong = |found| self.corrupt_chunk(address, place, found);
        let span = place.span();
        let offset = u32::try_from(span.start).map_err(|_| wrong("a place beyond any pack".to_owned()))?;
        let header = ChunkHeader::decode(&record[..ChunkHeader::BYTES], place.pack, offset);
        let header = header.map_err(|unfit| wrong(format!("a bundle with {}", unfit.found)))?;
        if header.stored != u32::from(within.stored) {
            return Err(wrong(format!("a bundle of {} bytes instead of {}", header.stored, within.stored)));
        }
        let bundle = Bundle::open(&header, &record[ChunkHeader::BYTES..]).map_err(wrong)?;
        let content = bundle.content_of(&self.key, address, place.raw, within).map_err(wrong)?;
        memo.0 = Some((place.pack, span.start, bundle));
        Ok(content)
    }

    /// Says something to the files that a part of a chunk is read from; whether they could be opened.
    pub(super) async fn tell(
        &self,
        source: Source,
        place: &Place,
        range: Range<usize>,
        say: impl Fn(&File, u64, u64),
    ) -> bool {
        let (start, length) = (u64::from(place.offset) + range.start as u64, range.len() as u64);
        match source {
            Source::Whole(disk) => match self.file_of(place.pack, disk).await {
                Ok(file) => say(&file, start, length),
                Err(_) => return false,
            },
            Source::Lying => match self.pieces(place.pack, start, length).await {
                Ok(pieces) => pieces.iter().for_each(|(file, at, bytes)| say(file, *at, *bytes as u64)),
                Err(_) => return false,
            },
            Source::Made => {}
        }
        true
    }

    /// Where a pack is, or of one that is missing the rest.
    pub(super) fn place_of(&self, pack: u64) -> Result<PackKnown, StoreError> {
        match self.catalog.read().get(&pack) {
            Some(known) => Ok(known.to_read().clone()),
            None => {
                let found = "no such pack on any disk";
                Err(corrupt("the index's entry of a chunk", &pack_path(pack), 0, "a pack", found))
            }
        }
    }

    /// The chunk as it is stored at `place`, verified: to be copied to the same place of another file. Of one that lies in a bundle there is nothing
    /// but the header.
    pub(crate) async fn read_packed(&self, address: &ChunkAddress, place: &Place) -> Result<Packed, StoreError> {
        let header = place.header(*address);
        if matches!(header.codec, Codec::Bundled(_)) {
            return Ok(Packed::stored(header, Bytes::new()));
        }
        let mut tries = self.tries(place, place.record())?;
        let payload = loop {
            let record = self.read_record(tries.source, address, place).await;
            let read = record.and_then(|record| self.payload(address, place, &record));
            let read = read.and_then(|payload| self.is_right(&header, place, &payload).map(|()| payload));
            if let Some(payload) = self.judge(&mut tries, read).await {
                break payload?;
            }
        };
        Ok(Packed::stored(header, mended(&self.key, &header, payload)))
    }

    /// The chunk at `place`, verified: to be brought elsewhere.
    pub(crate) async fn read_copy(
        &self,
        address: &ChunkAddress,
        place: &Place,
        memo: &mut Memo,
    ) -> Result<Copied, StoreError> {
        match place.codec {
            // C-6.
            Codec::Bundled(_) | Codec::Bundle => {
                let content = self.read_by(address, place, memo).await?;
                Ok(Copied::Content(place.class, Named::of(&self.key, place.class, content)))
            }
            Codec::Raw | Codec::Zstd | Codec::Groups | Codec::Remains => {
                self.read_packed(address, place).await.map(Copied::Stored)
            }
        }
    }

    /// Whether what lies at `place` is what it should be: the chunk, or what is left of it.
    pub(crate) async fn is_good(&self, address: &ChunkAddress, place: &Place) -> Result<(), StoreError> {
        match place.codec {
            Codec::Remains => self.read_packed(address, place).await.map(drop),
            _ => self.read(address, place).await.map(drop),
        }
    }

    /// What lies behind the header of the chunk at `place`, as it is on each of its disks.
    ///
    /// # Errors
    /// `Disk`: a disk gave no answer, so that nobody knows.
    pub(crate) async fn payloads(&self, place: &Place) -> Result<Vec<Bytes>, StoreError> {
        let is_end = |error: &DiskError| matches!(error.kind, DiskErrorKind::Absent | DiskErrorKind::Short);
        // What can be verified by itself is read by itself: the file may end within the chunk.
        let (header, mut parts) = (place.header(ChunkAddress::NONE), Vec::new());
        match place.codec.table_bytes(place.raw) as usize {
            0 => parts.push(0..place.stored as usize),
            table => {
                parts.push(0..table);
                let count = (place.raw as usize).div_ceil(GROUP_BYTES);
                parts.extend((0..count).map(|number| place_of_group(&header, number)));
            }
        }
        let mut payloads = Vec::new();
        for source in self.sources(place.pack) {
            let (mut payload, mut has_any) = (BytesMut::zeroed(place.stored as usize), false);
            for part in &parts {
                let record = ChunkHeader::BYTES + part.start..ChunkHeader::BYTES + part.end;
                match self.read_stored(source, place, record).await {
                    Ok(bytes) => payload[part.clone()].copy_from_slice(&bytes),
                    Err(StoreError::Disk(error)) if !is_end(&error) => return Err(error.into()),
                    Err(_) => continue,
                }
                has_any = true;
            }
            payloads.extend(has_any.then(|| payload.freeze()));
        }
        Ok(payloads)
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
        let next = ChunkHeader::BYTES + within.start..ChunkHeader::BYTES + within.end;
        let length = ChunkHeader::BYTES + header.codec.table_bytes(header.raw) as usize;
        let mut tries = self.tries(place, 0..length)?;
        loop {
            self.tell(tries.source, place, next.clone(), |file, at, bytes| file.will_read(at, bytes)).await;
            let bytes = self.read_stored(tries.source, place, 0..length).await;
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

    /// The group with this number of the chunk at `place`, verified against the hashes of its groups. `None`: of what is left of a chunk, one that
    /// is lost.
    pub(crate) async fn read_group(
        &self,
        address: &ChunkAddress,
        place: &Place,
        groups: &[u8],
        number: usize,
    ) -> Result<Option<Bytes>, StoreError> {
        let within = place_of_group(&place.header(*address), number);
        let range = ChunkHeader::BYTES + within.start..ChunkHeader::BYTES + within.end;
        let (groups, _) = groups.as_chunks();
        let mut tries = self.tries(place, range.clone())?;
        loop {
            let bytes = self.read_stored(tries.source, place, range.clone()).await;
            let group = bytes.and_then(|bytes| {
                let unpacked = match place.codec {
                    Codec::Remains => unpack_left(&self.key, groups, number, bytes),
                    _ => unpack_group(&self.key, groups, number, bytes).map(Some),
                };
                unpacked.map_err(|found| self.corrupt_chunk(address, place, found))
            });
            if let Some(group) = self.judge(&mut tries, group).await {
                return group;
            }
        }
    }

    /// Bytes of a stored chunk, header and all.
    async fn read_stored(&self, source: Source, place: &Place, range: Range<usize>) -> Result<Bytes, StoreError> {
        let offset = u64::from(place.offset) + range.start as u64;
        match self.buffered(place.pack, offset, range.len()) {
            Some(bytes) => Ok(bytes),
            None => self.read_bytes(source, place.pack, offset, range.len()).await,
        }
    }

    fn corrupt_chunk(&self, address: &ChunkAddress, place: &Place, found: String) -> StoreError {
        let expected = format!("content of {address}");
        corrupt("a chunk", &self.path_of(place.pack), u64::from(place.offset), expected, found)
    }

    /// The bytes of chunks of one pack that lie near each other, in the order of their places, by one read; `None` if they cannot be had.
    pub(crate) async fn read_run(&self, members: &[(Place, ChunkAddress)]) -> Option<Bytes> {
        let ((first, _), (last, _)) = (members.first()?, members.last()?);
        let length = usize::try_from(last.span().end.checked_sub(u64::from(first.offset))?).ok()?;
        match self.buffered(first.pack, u64::from(first.offset), length) {
            Some(bytes) => Some(bytes),
            None => {
                let (source, _) = self.first_source(&self.place_of(first.pack).ok()?, first, &(0..length));
                let mut buffer = self.buffers.lend(length);
                self.read_into(source, first.pack, u64::from(first.offset), buffer.bytes()).await.ok()?;
                Some(buffer.into_bytes())
            }
        }
    }

    /// The content of one of them, verified, from bytes that begin with the first. What is not right is `None`: who wants it reads it alone, and
    /// hears why. `memo`: for the next of them.
    pub(crate) fn content_of(
        &self,
        run: &Bytes,
        first: &Place,
        place: &Place,
        address: &ChunkAddress,
        memo: &mut Memo,
    ) -> Option<Bytes> {
        if let Some(content) = self.content_in(memo, address, place) {
            return Some(content);
        }
        let (at, record) = (place.offset.checked_sub(first.offset)? as usize, place.record());
        let (start, end) = (at + record.start, at + record.end);
        let record = (end <= run.len()).then(|| run.slice(start..end))?;
        let content = self.content(memo, address, place, &record).ok()?;
        Some(match place.codec {
            Codec::Zstd | Codec::Bundle | Codec::Bundled(_) => content,
            // What is stored as it is is a part of the run: a copy of it does not keep the whole.
            Codec::Raw | Codec::Groups | Codec::Remains => Bytes::copy_from_slice(&content),
        })
    }

    async fn read_bytes(&self, source: Source, pack: u64, offset: u64, length: usize) -> Result<Bytes, StoreError> {
        let mut bytes = vec![0; length];
        self.read_into(source, pack, offset, &mut bytes).await?;
        Ok(Bytes::from(bytes))
    }

    async fn read_into(&self, source: Source, pack: u64, offset: u64, bytes: &mut [u8]) -> Result<(), StoreError> {
        let length = bytes.len();
        self.counters.read_bytes.add(length as u64);
        match source {
            Source::Whole(disk) => self.file_of(pack, disk).await?.read_exact_at(offset, bytes).await?,
            Source::Lying => {
                let mut rest = bytes;
                for (file, at, length) in self.pieces(pack, offset, length as u64).await? {
                    let (piece, behind) = rest.split_at_mut(length);
                    file.read_exact_at(at, piece).await?;
                    rest = behind;
                }
                if !rest.is_empty() {
                    return Err(corrupt("a pack", &self.path_of(pack), offset, "what the index says", "its end"));
                }
            }
            Source::Made => {
                let made = self.make_bytes(pack, offset, length).await?;
                bytes.copy_from_slice(&made);
            }
        }
        Ok(())
    }

    /// Where bytes lie in fragments: files, and where in them.
    async fn pieces(&self, pack: u64, offset: u64, length: u64) -> Result<Vec<(File, u64, usize)>, StoreError> {
        let known = self.place_of(pack)?;
        let Some(fragments) = known.fragments() else {
            return Err(corrupt("a pack", &pack_path(pack), offset, "fragments of it", "none"));
        };
        let mut pieces = Vec::with_capacity(2);
        for (index, range) in fragments.cut.pieces(offset..offset + length) {
            let fragment = self.fragment(pack, fragments, index).await?;
            let length = usize::try_from(range.end - range.start).expect("a part of a chunk");
            pieces.push((fragment.file, fragments.cut.content_at() + range.start, length));
        }
        Ok(pieces)
    }

    /// An open fragment, kept for the next reader.
    async fn fragment(&self, pack: u64, fragments: &Fragments, index: usize) -> Result<Fragment, DiskError> {
        let name = fragments.name(pack, index);
        let disk = self.lies_well(pack, fragments, index);
        let disk = disk.or_else(|| best(fragments.at(index), DiskSet::NONE)).ok_or_else(|| absent(&name))?;
        let (files, key) = (self.files(disk), pack | OF_FRAGMENT);
        // Of two on one disk that which counts is kept (E-5).
        let is_kept = fragments.index_on(disk) == Some(index);
        if let Some(file) = files.get(&key).filter(|_| is_kept) {
            return Ok(Fragment { disk, file });
        }
        let file = self.pool.disks[disk].disk.open_to_read(&name.path()).await?;
        if !is_kept {
            return Ok(Fragment { disk, file });
        }
        files.insert(key, file.clone());
        // As for whole packs.
        if self.known_pack(pack).is_none_or(|now| now.fragments().is_none_or(|now| !now.at(index).has(disk))) {
            files.remove(&key);
        }
        Ok(Fragment { disk, file })
    }

    /// K-10: what is bad or gone is made of others. Disks with something bad are noted.
    async fn make_bytes(&self, pack: u64, offset: u64, length: usize) -> Result<Bytes, StoreError> {
        let known = self.place_of(pack)?;
        let Some(fragments) = known.fragments() else {
            return Err(corrupt("a pack", &pack_path(pack), offset, "fragments of it", "none"));
        };
        let open = (0..fragments.cut.erasure.count()).map(|index| self.fragment(pack, fragments, index));
        let members = all(open).await;
        let unopened: Vec<bool> = members.iter().map(Result::is_err).collect();
        let joined = Joined::new(pack, fragments.cut, members);
        let read = joined.read(offset, length as u64).await;
        let bad = joined.bad();
        for disk in bad.iter() {
            self.counters.disk_reads_failed.add(1);
            self.pool.disks[disk].note_failed_read();
        }
        let gone =
            (0..).zip(unopened).filter(|(_, is_gone)| *is_gone).flat_map(|(index, _)| fragments.at(index).iter());
        let still = self.known_pack(pack).and_then(|known| known.fragments().cloned());
        let is_there = |disk: &usize| still.as_ref().is_some_and(|still| still.index_on(*disk).is_some());
        self.suspects.lock().extend(bad.iter().chain(gone).filter(is_there).map(|disk| (pack, disk)));
        match read {
            Ok(bytes) if bytes.len() == length => {
                self.counters.reads_made.add(1);
                Ok(Bytes::from(bytes))
            }
            Ok(_) => Err(corrupt("a pack", &self.path_of(pack), offset, "what the index says", "its end")),
            Err(error) if error.kind == DiskErrorKind::Absent => {
                Err(corrupt("a pack", &self.path_of(pack), offset, "enough fragments of it", error.detail))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a chunk may be copied as it is, but for the hashes of its groups.
    fn is_right(&self, header: &ChunkHeader, place: &Place, payload: &Bytes) -> Result<(), StoreError> {
        if header.codec != Codec::Remains {
            return self.unpack(header, place, payload.clone()).map(drop);
        }
        verify(&self.key, header, payload).map_err(|found| self.corrupt_chunk(&header.address, place, found))
    }

    fn unpack(&self, header: &ChunkHeader, place: &Place, payload: Bytes) -> Result<Bytes, StoreError> {
        unpack(&self.key, header, payload).map_err(|found| self.corrupt_chunk(&header.address, place, found))
    }

    /// The bytes that the content of the chunk at `place` is made of, header and payload, as they are.
    async fn read_record(&self, source: Source, address: &ChunkAddress, place: &Place) -> Result<Bytes, StoreError> {
        let (offset, length) = (place.span().start, place.record().len());
        if let Some(bytes) = self.buffered(place.pack, offset, length) {
            return Ok(bytes);
        }
        if let Source::Whole(disk) = source
            && place.class == Class::Metadata
        {
            let file = self.file_of(place.pack, disk).await?;
            if let Some(range) = self.neighbours.note(place.pack, offset) {
                self.counters.prefetched_bytes.add(range.end - range.start);
                file.will_read(range.start, range.end - range.start);
            }
        }
        match self.read_bytes(source, place.pack, offset, length).await {
            Err(StoreError::Disk(error)) if error.kind == DiskErrorKind::Short => {
                Err(corrupt("a chunk", &error.path, offset, format_args!("{address}"), error.detail))
            }
            read => read,
        }
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

    /// N-6: what it comes to that the chunk at `place` could not be read, when each place where it lies is asked again until two readings agree; `None`:
    /// it can be read.
    pub(crate) async fn look_closely(
        &self,
        address: &ChunkAddress,
        place: &Place,
        error: StoreError,
    ) -> Option<StoreError> {
        match &error {
            StoreError::Corrupt { .. } => {}
            // A silent one was waited for.
            StoreError::Disk(error) if error.kind != DiskErrorKind::Silent => {}
            _ => return Some(error),
        }
        let short = self.place_of(place.pack).map_or(DiskSet::NONE, |known| known.short());
        let mut unknown = None;
        for source in self.sources(place.pack).into_iter().chain(short.iter().map(Source::Whole)) {
            match self.is_right_there(source, address, place).await {
                Ok(true) => return None,
                Ok(false) => {}
                Err(error) => drop(unknown.get_or_insert(error)),
            }
        }
        Some(unknown.map_or(error, StoreError::Disk))
    }

    /// Whether a chunk lies well in one place, as two readings in a row agree.
    ///
    /// # Errors
    /// Why nobody knows.
    async fn is_right_there(&self, source: Source, address: &ChunkAddress, place: &Place) -> Result<bool, DiskError> {
        let mut before = None;
        for _ in 0..READINGS_MAX {
            let record = match self.read_record(source, address, place).await {
                Ok(record) => record,
                // Where a fragment is gone it is made, or cannot be. What is made was read as often as it takes.
                Err(StoreError::Disk(error)) if source != Source::Lying && error.kind != DiskErrorKind::Absent => {
                    return Err(error);
                }
                Err(_) => return Ok(false),
            };
            let verified = match place.codec {
                Codec::Bundled(_) => self.content(&mut Memo::default(), address, place, &record).map(drop),
                _ => {
                    let payload = self.payload(address, place, &record);
                    payload.and_then(|payload| self.is_right(&place.header(*address), place, &payload))
                }
            };
            if verified.is_ok() {
                return Ok(true);
            }
            if before.replace(record.clone()) == Some(record) {
                return Ok(false);
            }
            // From the device, or it would be the same reading.
            self.tell(source, place, place.record(), |file, at, bytes| file.forget(at, bytes)).await;
        }
        Err(unsteady(&self.path_of(place.pack), place.span().start))
    }

    /// Has the next reading of a place ask the disk.
    pub(crate) async fn forget_read(&self, place: &Place) {
        for source in self.sources(place.pack) {
            self.tell(source, place, place.record(), |file, at, bytes| file.forget(at, bytes)).await;
        }
    }

    /// All from which a pack can be read.
    fn sources(&self, pack: u64) -> Vec<Source> {
        let Ok(known) = self.place_of(pack) else { return Vec::new() };
        let fragments = known.fragments().map(|_| [Source::Lying, Source::Made]);
        known.disks().iter().map(Source::Whole).chain(fragments.into_iter().flatten()).collect()
    }

    /// Whether the header at `place` names the chunk. Says nothing of its content.
    pub(crate) async fn is_named_at(&self, address: &ChunkAddress, place: &Place) -> Result<bool, StoreError> {
        let is_named = |header: &[u8]| {
            let found = ChunkHeader::decode(header, place.pack, place.offset);
            found.is_ok_and(|found| found == place.header(*address))
        };
        if let Some(header) = self.buffered(place.pack, u64::from(place.offset), ChunkHeader::BYTES) {
            return Ok(is_named(&header));
        }
        // Of a pack that is nowhere, on none.
        let mut failure = None;
        for source in self.sources(place.pack) {
            match self.read_bytes(source, place.pack, u64::from(place.offset), ChunkHeader::BYTES).await {
                Ok(header) if is_named(&header) => return Ok(true),
                // Where a fragment is gone it is made, or cannot be.
                Err(StoreError::Disk(error)) if source != Source::Lying && error.kind != DiskErrorKind::Short => {
                    failure = Some(error);
                }
                _ => {}
            }
        }
        let missing = self.is_missing(place.pack).then(|| self.pool.missing_error(&pack_path(place.pack))).flatten();
        missing.or(failure).map_or(Ok(false), |error| Err(error.into()))
    }

    pub(super) fn buffered(&self, pack: u64, offset: u64, length: usize) -> Option<Bytes> {
        match &self.catalog.read().get(&pack)?.state {
            PackState::Open(pack) => pack.buffered(offset, length),
            PackState::Sealed | PackState::Missing => None,
        }
    }

    /// The open file of a pack on one of its disks, kept for the next reader.
    async fn file_of(&self, pack: u64, disk: usize) -> Result<File, StoreError> {
        match self.catalog.read().get(&pack).map(|known| &known.state) {
            Some(PackState::Missing) if self.pool.disks[disk].is_missing => {
                // Where it is being removed it is missing no more.
                if let Some(error) = self.pool.missing_error(&pack_path(pack)) {
                    return Err(error.into());
                }
            }
            Some(PackState::Open(open)) => {
                if let Some(member) = open.members().iter().find(|member| member.disk == disk) {
                    return Ok(member.file.clone());
                }
            }
            Some(PackState::Sealed | PackState::Missing) | None => {}
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
                let fragment = known.fragments().and_then(|fragments| {
                    let (index, disk) = fragments.each().next()?;
                    Some((disk, fragments.name(pack, index).path()))
                });
                let whole = known.disks().first().map(|disk| (disk, pack_path(pack)));
                match whole.or(fragment) {
                    Some((disk, path)) => format!("{}/{path}", self.pool.disks[disk].disk.path()),
                    None => pack_path(pack),
                }
            }
            None => pack_path(pack),
        }
    }

    /// Whether what lies there survives a crash.
    pub(crate) fn is_durable(&self, place: &Place) -> bool {
        match self.catalog.read().get(&place.pack).map(|known| &known.state) {
            Some(PackState::Open(pack)) => place.span().end <= pack.synced(),
            Some(PackState::Sealed | PackState::Missing) => true,
            None => false,
        }
    }

    /// Whether an open pack is still the one that is known by its number: it may be sealed by now, or be cut off.
    pub(crate) fn is_open(&self, open: &OpenPack) -> bool {
        let catalog = self.catalog.read();
        let now = catalog.get(&open.number).map(|known| &known.state);
        matches!(now, Some(PackState::Open(now)) if std::ptr::eq(&raw const **now, open))
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

    /// Takes a pack out of the catalog, so that its files can be removed.
    pub(crate) fn drop_pack(&self, pack: u64) -> Vec<PackFile> {
        let known = self.catalog.write().remove(&pack);
        for files in self.files.iter().filter_map(std::sync::OnceLock::get) {
            files.remove(&pack);
            files.remove(&(pack | OF_FRAGMENT));
        }
        self.ages.forget(pack);
        self.suspects.lock().retain(|(suspect, _)| *suspect != pack);
        self.rotten.lock().remove(&pack);
        self.note_read(pack);
        self.left_out.lock().remove(&pack);
        known.map(|known| known.files(pack)).unwrap_or_default()
    }
}
