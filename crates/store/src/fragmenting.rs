//! Fragments: cutting sealed packs of a k+m level, and making fragments again that are gone, damaged, or on a disk that is drained.
//!
//! E-1   A pack is whole on as many disks as survive what its fragments will survive, until all of those are durable, names and all. Only
//!       then do the whole ones go: first nobody counts on them, then their files.
//! E-2   A pack is cut only when the index file has it. So fragments that an intact index does not know of, and that are too few or too rotten
//!       to be a pack, are of one that was being removed, or was while their disk was out: an opening removes them. Not where the index lacks
//!       packs.
//! E-3   A fragment is a file of another name until it is whole and durable, as a copy is (F-5), and nothing is ever written in place: there is
//!       no moment at which parity and data do not agree.
//! E-4   What fragments are made of was verified: a pack's file chunk by chunk, other fragments block by block.
//! E-5   Each fragment counts on a disk where no other does. An opening may find two of a pack on one disk (a cut that failed halfway, and a second
//!       one): the second is read where it lies, and counts as lacking until it is on a disk of its own.
//! E-7   Nothing goes for the sake of a fragment that was found and not read since: an opening looks at lengths alone. Before whole files go for
//!       fragments of an earlier attempt, and one of two copies of a fragment for the other, what stays is read, block by block.
//!
//! Not here: which pack is due (`copies`), the code (`erasure`), reading fragments (`pack/fragments`).

use std::ops::Range;
use std::sync::Arc;

use platform::disk::{DiskErrorKind, File, Open};

use crate::check::{Check, Depth};
use crate::disks::DiskSet;
use crate::erasure;
use crate::failure::{StoreError, corrupt, refused};
use crate::format::{
    ChunkHeader, Class, Cut, Entry, FragmentHeader, FragmentName, PACKS, Place, encode_directory, pack_path,
};
use crate::level::Erasure;
use crate::pace::Pace;
use crate::pack::fragments::{Fragments, Joined};
use crate::pack::scan::{self, Found};
use crate::pack::{PackKnown, PackState};
use crate::pool::Part;
use crate::store::Store;

/// Bytes of all fragments of data together that are in hand at a time, about.
const WINDOW_BYTES: u64 = 4 << 20;

/// A pack's file, verified, in any piece of it.
pub(crate) struct Source<'a> {
    store: &'a Store,
    pack: u64,
    header: Vec<u8>,
    entries: Vec<Entry>,
    data_bytes: u64,
    directory: Vec<u8>,
}

/// A fragment that is being written.
struct Unfinished {
    name: FragmentName,
    disk: usize,
    file: File,
    sums: Vec<u8>,
}

/// Where fragments of a pack go: which, and on which disk.
struct Targets {
    found: Vec<(usize, usize)>,
    /// Why there is none for some.
    missing: Option<StoreError>,
}

/// Takes it away that packs are being made of, however that ends.
struct Making<'a>(&'a Store, u64);

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.0.packs.making.lock().remove(&self.1);
    }
}

impl Source<'_> {
    pub(crate) async fn of<'a>(store: &'a Store, pack: u64, known: &PackKnown) -> Result<Source<'a>, StoreError> {
        let (entries, _) = store.directory(pack, known).await?;
        let directory = encode_directory(pack, known.summary.data_bytes, &entries);
        let header = store.header_of(pack, known).await;
        Ok(Source { store, pack, header, entries, data_bytes: u64::from(known.summary.data_bytes), directory })
    }

    /// A range of it, with zeroes behind its end.
    async fn read(&self, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
        let mut bytes = vec![0; usize::try_from(range.end - range.start).expect("a window fits in memory")];
        place(&mut bytes, &range, 0, &self.header);
        let first = self.entries.partition_point(|entry| entry.end() <= range.start);
        for entry in self.entries[first..].iter().take_while(|entry| u64::from(entry.offset) < range.end) {
            let chunk = self.store.packs.read_packed(&entry.header.address, &Place::of(self.pack, entry)).await?;
            let at = u64::from(entry.offset);
            place(&mut bytes, &range, at, &ChunkHeader::encode(&entry.header, self.pack, entry.offset));
            place(&mut bytes, &range, at + ChunkHeader::BYTES as u64, &chunk.payload);
        }
        place(&mut bytes, &range, self.data_bytes, &self.directory);
        Ok(bytes)
    }
}

/// Puts that part of `piece`, which lies at `at`, into a range's bytes that belongs there.
fn place(bytes: &mut [u8], range: &Range<u64>, at: u64, piece: &[u8]) {
    let (from, to) = (at.max(range.start), (at + piece.len() as u64).min(range.end));
    if from < to {
        let within = |position: u64, start: u64| usize::try_from(position - start).expect("within a window");
        let piece = &piece[within(from, at)..within(to, at)];
        bytes[within(from, range.start)..within(to, range.start)].copy_from_slice(piece);
    }
}

impl Store {
    /// What a pack is to be cut into, if it can be now.
    pub(crate) fn goal(&self, known: &PackKnown) -> Option<Erasure> {
        let (summary, takers) = (&known.summary, self.pool.takers().count());
        let erasure = self.packs.now(summary).erasure().filter(|_| summary.class == Class::Data)?;
        let cut = Cut { erasure, whole_bytes: summary.file_bytes() };
        // One of a few blocks is not worth so many files.
        (takers >= erasure.count() && cut.bytes() >= Cut::BLOCK_BYTES).then_some(erasure)
    }

    /// Cuts a pack that is whole on some disks, or goes on doing so. The caller holds `copy_work`.
    pub(crate) async fn cut_pack(&self, pack: u64, erasure: Erasure, pace: &Pace<'_>) -> Result<u64, StoreError> {
        let Some(known) = self.packs.known_pack(pack).filter(|known| matches!(known.state, PackState::Sealed)) else {
            return Ok(0);
        };
        let cut = Cut { erasure, whole_bytes: known.summary.file_bytes() };
        if known.fragments().is_some_and(|fragments| fragments.cut != cut) {
            self.drop_fragments(pack).await?;
        }
        if let Some(fragments) = known.fragments().filter(|fragments| fragments.cut == cut) {
            let without_needless = self.needless_fragments(pack, fragments).into_iter();
            let left =
                without_needless.fold(Fragments::clone(fragments), |left, (index, disk)| left.without_one(index, disk));
            let lacking: Vec<usize> = left.lacking_on(self.sound(pack)).collect();
            self.targets(pack, &left, &lacking, Class::Metadata).missing.map_or(Ok(()), Err)?;
            // E-7.
            self.look_at(pack, fragments, fragments.each(), pace).await;
            // They are in the way of others.
            for (index, disk) in self.needless_fragments(pack, fragments) {
                self.drop_fragment(pack, cut, index, disk)?;
            }
        }
        let Some(known) = self.packs.known_pack(pack) else { return Ok(0) };
        let before = known.fragments().filter(|fragments| fragments.cut == cut);
        let before = before.map_or_else(|| Fragments::new(cut), |fragments| Fragments::clone(fragments));
        let sound = self.sound(pack);
        let indices: Vec<usize> = before.lacking_on(sound).collect();
        // It gives back more than it takes, so it may have the reserve (P-2).
        let Targets { found: targets, missing } = self.targets(pack, &before, &indices, Class::Metadata);
        missing.map_or(Ok(()), Err)?;
        let written = targets.len() as u64;
        if !targets.is_empty() {
            let source = Source::of(self, pack, &known).await?;
            let data = |blocks: Range<u64>| {
                let (source, content) = (&source, cut.content_of(&blocks));
                async move {
                    let mut data = Vec::with_capacity(cut.erasure.count());
                    for index in 0..u64::from(cut.erasure.data()) {
                        let at = index * cut.bytes();
                        let read = source.read(at + content.start..at + content.end).await;
                        data.push(read.inspect_err(|error| self.packs.note_rotten(pack, error))?);
                    }
                    data.extend(erasure::parity(cut.erasure, &data));
                    Ok(data)
                }
            };
            self.write_fragments(pack, cut, &targets, pace, data).await?;
        }
        self.finish_cut(pack)?;
        Ok(written)
    }

    /// E-1: the whole files go, if all fragments are there.
    fn finish_cut(&self, pack: u64) -> Result<(), StoreError> {
        let Some(known) = self.packs.known_pack(pack) else { return Ok(()) };
        let are_all = |fragments: &&Arc<Fragments>| fragments.lacking_on(self.sound(pack)).next().is_none();
        let Some(fragments) = known.fragments().filter(are_all).filter(|_| !known.summary.lacks_directory) else {
            return Ok(());
        };
        // Some may be of an opening that came before their names were durable.
        self.sync_names(fragments.disks())?;
        if self.packs.leave_whole(pack).is_empty() {
            return Ok(());
        }
        self.counters.packs_cut.add(1);
        // On each disk: one that had it wrong did not count as having it.
        let mut left = DiskSet::NONE;
        for disk in self.pool.good().iter() {
            match self.pool.disks[disk].disk.remove(&pack_path(pack)) {
                Ok(()) => left = left.with(disk),
                Err(error) if error.kind == DiskErrorKind::Absent => {}
                Err(error) => return Err(self.pool.failed(disk, error, &self.counters)),
            }
            let _ = self.pool.disks[disk].look();
        }
        self.sync_names(left)
    }

    fn sync_names(&self, disks: DiskSet) -> Result<(), StoreError> {
        disks.iter().try_for_each(|disk| {
            let synced = self.pool.disks[disk].disk.sync_directory(PACKS);
            synced.map_err(|error| self.pool.failed(disk, error, &self.counters))
        })
    }

    /// Disks on which what lies of a pack counts.
    pub(crate) fn sound(&self, pack: u64) -> DiskSet {
        let suspect = self.packs.suspect_on(pack);
        self.pool.takers().iter().filter(|disk| !suspect.has(*disk)).collect()
    }

    /// Where fragments are to be written: where one of the same lies that is suspect, those first, or on a disk that has none.
    fn targets(&self, pack: u64, fragments: &Fragments, indices: &[usize], room: Class) -> Targets {
        let (bytes, takers) = (fragments.cut.file_bytes(), self.pool.takers());
        // Something may have been deleted since the last look.
        takers.iter().for_each(|disk| drop(self.pool.disks[disk].look()));
        let others = self.pool.candidates(room, bytes, usize::try_from(pack).unwrap_or(0));
        let others = others.into_iter().filter(|disk| fragments.index_on(*disk).is_none());
        let again = |index: &usize| fragments.counted_at(*index).both(takers).first();
        let mut found: Vec<_> = indices.iter().filter_map(|index| Some((*index, again(index)?))).collect();
        found.extend(indices.iter().copied().filter(|index| again(index).is_none()).zip(others));
        let is_short = found.len() < indices.len();
        let missing = is_short.then(|| {
            let has_none = |disk: &usize| fragments.index_on(*disk).is_none();
            let free = takers.iter().filter(has_none).map(|disk| self.pool.disks[disk].free());
            let without = free.filter(|free| *free < bytes).max();
            let what = "a fragment of a pack, beside its others, each on a disk of its own";
            StoreError::Full { what, needed: bytes, free: without.unwrap_or(0) }
        });
        Targets { found, missing }
    }

    /// Writes fragments of a pack, each to its disk, and makes them count. `data` gives a window of all of them.
    async fn write_fragments<F: Future<Output = Result<Vec<Vec<u8>>, StoreError>>>(
        &self,
        pack: u64,
        cut: Cut,
        targets: &[(usize, usize)],
        pace: &Pace<'_>,
        data: impl Fn(Range<u64>) -> F,
    ) -> Result<(), StoreError> {
        self.packs.making.lock().insert(pack);
        let _making = Making(self, pack);
        let mut unfinished = Vec::new();
        let placed = async {
            for (index, disk) in targets {
                unfinished.push(self.begin_fragment(FragmentName::new(pack, cut.erasure, *index), *disk)?);
            }
            let step = (WINDOW_BYTES / u64::from(cut.erasure.data()) / Cut::BLOCK_BYTES).max(1);
            for start in (0..cut.blocks()).step_by(usize::try_from(step).expect("some blocks")) {
                pace.step().await;
                let blocks = start..(start + step).min(cut.blocks());
                let data = data(blocks.clone()).await?;
                for fragment in &mut unfinished {
                    self.extend_fragment(fragment, &cut, blocks.clone(), &data[usize::from(fragment.name.index)])
                        .await?;
                }
            }
            for fragment in &unfinished {
                self.end_fragment(fragment, &cut).await?;
            }
            for Unfinished { name, disk, .. } in &unfinished {
                let on = &self.pool.disks[*disk].disk;
                let placed = on.rename(&name.unfinished_path(), &name.path());
                placed.map_err(|error| self.pool.failed(*disk, error, &self.counters))?;
            }
            self.sync_names(targets.iter().map(|(_, disk)| *disk).collect())
        };
        let placed = placed.await;
        let is_known = placed.is_ok()
            && self.packs.set_fragments(pack, cut, |fragments| {
                targets.iter().fold(fragments, |fragments, (index, disk)| fragments.with(*index, *disk))
            });
        if is_known {
            self.packs.forget_rotten(pack);
            for (_, disk) in targets {
                self.packs.suspects.lock().remove(&(pack, *disk));
                self.counters.fragments_written.add(1);
                self.counters.fragment_bytes.add(cut.file_bytes());
                let _ = self.pool.disks[*disk].look();
            }
            return Ok(());
        }
        // F-6, or what could not be written: those that took their place already are as good as they were before, or strangers that go.
        let known = self.packs.known_pack(pack);
        for Unfinished { name, disk, .. } in &unfinished {
            let on = &self.pool.disks[*disk].disk;
            let _ = on.remove(&name.unfinished_path());
            let is_of_pack =
                |fragments: &Arc<Fragments>| fragments.cut == cut && fragments.at(usize::from(name.index)).has(*disk);
            if !known.as_ref().and_then(PackKnown::fragments).is_some_and(is_of_pack) {
                let _ = on.remove(&name.path());
            }
        }
        placed
    }

    fn begin_fragment(&self, name: FragmentName, disk: usize) -> Result<Unfinished, StoreError> {
        let on = &self.pool.disks[disk];
        if on.part() == Part::Removed {
            return Err(refused(on.disk.path(), "it is no disk of this node any more.", "Check again."));
        }
        let failed = |error| self.pool.failed(disk, error, &self.counters);
        match on.disk.remove(&name.unfinished_path()) {
            Err(error) if error.kind != DiskErrorKind::Absent => return Err(failed(error)),
            _ => {}
        }
        let file = on.disk.open(&name.unfinished_path(), Open::Create).map_err(failed)?;
        Ok(Unfinished { name, disk, file, sums: Vec::new() })
    }

    async fn extend_fragment(
        &self,
        fragment: &mut Unfinished,
        cut: &Cut,
        blocks: Range<u64>,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        let Unfinished { name, disk, file, sums } = fragment;
        let content = cut.content_of(&blocks);
        for (block, bytes) in blocks.zip(bytes.chunks(Cut::BLOCK_BYTES as usize)) {
            let sum = FragmentHeader::sum(name.pack, usize::from(name.index), block, bytes);
            sums.extend_from_slice(&sum.to_le_bytes());
        }
        let written = file.write_at(cut.content_at() + content.start, bytes).await;
        written.map_err(|error| self.pool.failed(*disk, error, &self.counters))
    }

    async fn end_fragment(&self, fragment: &Unfinished, cut: &Cut) -> Result<(), StoreError> {
        let Unfinished { name, disk, file, sums } = fragment;
        let (pack, index, node_identity) = (name.pack, name.index, self.pool.node_identity);
        let sum_of_sums = FragmentHeader::sum_of_sums(pack, index, sums);
        let mut head = FragmentHeader { pack, node_identity, cut: *cut, index, sums: sum_of_sums }.encode();
        head.extend_from_slice(sums);
        let written = async {
            file.write_at(0, &head).await?;
            file.sync().await
        };
        written.await.map_err(|error| self.pool.failed(*disk, error, &self.counters))
    }

    /// Which fragments of a pack have to be written somewhere, as far as there are disks for them.
    pub(crate) fn lacking_fragments(&self, pack: u64, fragments: &Fragments) -> Vec<usize> {
        let takers = self.pool.takers();
        let mut free = takers.iter().filter(|disk| fragments.index_on(*disk).is_none()).count();
        let lacking = fragments.lacking_on(self.sound(pack));
        let has_disk = |index: &usize| {
            let again = !fragments.counted_at(*index).both(takers).is_empty();
            again || free.checked_sub(1).inspect(|left| free = *left).is_some()
        };
        lacking.filter(has_disk).collect()
    }

    /// Files of fragments that are not needed where they lie: on a disk that is drained, or twice, one of them perhaps damaged.
    pub(crate) fn needless_fragments(&self, pack: u64, fragments: &Fragments) -> Vec<(usize, usize)> {
        let (sound, takers) = (self.sound(pack), self.pool.takers());
        let is_needless = |(index, disk): &(usize, usize)| {
            let best = fragments.counted_at(*index).both(sound).first();
            best.is_some_and(|best| best != *disk)
                && (takers.has(*disk) || self.pool.disks[*disk].part() == Part::Drained)
        };
        fragments.each().filter(is_needless).collect()
    }

    /// Makes fragments again that are lacking, of the others, and tells of each. Want of room for one keeps no other from its disk, and is told
    /// at the end. The caller holds `copy_work`.
    pub(crate) async fn mend_fragments(
        &self,
        pack: u64,
        pace: &Pace<'_>,
        wrote: &mut (dyn FnMut() + Send),
    ) -> Result<(), StoreError> {
        let Some(known) = self.packs.known_pack(pack) else { return Ok(()) };
        let Some(fragments) = known.fragments() else { return Ok(()) };
        let (cut, indices) = (fragments.cut, self.lacking_fragments(pack, fragments));
        let Targets { found: targets, missing } = self.targets(pack, fragments, &indices, Class::Data);
        // One after the other: what is there of one is not made of others.
        for (index, disk) in &targets {
            let joined = Joined::open(&self.pool, pack, fragments, self.packs.suspect_on(pack));
            let data = |blocks: Range<u64>| {
                let joined = &joined;
                async move {
                    let mut data = vec![Vec::new(); cut.erasure.count()];
                    let blocks = joined.blocks(*index, blocks).await.map_err(|error| match error.kind {
                        DiskErrorKind::Absent => {
                            corrupt("a pack", &error.path, 0, "enough fragments of it", &error.detail)
                        }
                        _ => error.into(),
                    });
                    data[*index] = blocks.inspect_err(|error| {
                        // What is missing may come back.
                        if self.pool.missing().is_none() {
                            self.packs.note_rotten(pack, error);
                        }
                    })?;
                    Ok(data)
                }
            };
            let written = self.write_fragments(pack, cut, &[(*index, *disk)], pace, data).await;
            let bad = joined.bad();
            self.packs.suspects.lock().extend(bad.iter().filter(|bad| bad != disk).map(|disk| (pack, disk)));
            written?;
            wrote();
        }
        let known = self.packs.known_pack(pack);
        if let Some(fragments) = known.as_ref().and_then(PackKnown::fragments) {
            for (index, disk) in self.needless_fragments(pack, fragments) {
                // E-7.
                let stays = fragments.counted_at(index).both(self.sound(pack)).first().filter(|stays| *stays != disk);
                let stays = stays.map(|stays| (index, stays));
                self.look_at(pack, fragments, stays.into_iter(), pace).await;
                if stays.is_some_and(|(_, stays)| self.sound(pack).has(stays)) {
                    self.drop_fragment(pack, cut, index, disk)?;
                }
            }
        }
        missing.map_or(Ok(()), Err)
    }

    /// Reads fragments; those that are not what they should be, or give no answer, are suspect from now on.
    async fn look_at(
        &self,
        pack: u64,
        fragments: &Fragments,
        which: impl Iterator<Item = (usize, usize)>,
        pace: &Pace<'_>,
    ) {
        let check = Check::of_pack(self, Depth::Deep, pace);
        for (index, disk) in which {
            if check.fragment(&fragments.name(pack, index), fragments, disk).await.is_err() {
                self.packs.suspects.lock().insert((pack, disk));
            }
        }
    }

    /// Writes what a disk has of a pack again: its file, or its fragment. The caller holds `copy_work`.
    pub(crate) async fn write_again(&self, pack: u64, disk: usize, pace: &Pace<'_>) -> Result<(), StoreError> {
        let known = self.packs.known_pack(pack);
        match known.filter(|known| !known.disks().has(disk)).as_ref().and_then(PackKnown::fragments) {
            Some(fragments) if fragments.index_on(disk).is_some() => {
                self.packs.suspects.lock().insert((pack, disk));
                self.mend_fragments(pack, pace, &mut || ()).await
            }
            _ => self.copy_pack(pack, disk, pace).await,
        }
    }

    /// Nobody counts on it, and then its file goes: as F-7.
    fn drop_fragment(&self, pack: u64, cut: Cut, index: usize, disk: usize) -> Result<(), StoreError> {
        self.packs.set_fragments(pack, cut, |fragments| fragments.without_one(index, disk));
        let known = self.packs.known_pack(pack);
        if known.as_ref().and_then(PackKnown::fragments).is_none_or(|left| left.index_on(disk).is_none()) {
            self.packs.suspects.lock().remove(&(pack, disk));
        }
        let on = &self.pool.disks[disk].disk;
        match on.remove(&FragmentName::new(pack, cut.erasure, index).path()) {
            Err(error) if error.kind != DiskErrorKind::Absent => Err(self.pool.failed(disk, error, &self.counters)),
            _ => self.sync_names(DiskSet::of(disk)),
        }
    }

    /// Has a pack that is whole on enough disks not be in fragments any more. The caller holds `copy_work`.
    ///
    /// A file that is there may be what a disk had of the pack when that went on without it (E-6): all of it is read first.
    pub(crate) async fn drop_fragments(&self, pack: u64) -> Result<(), StoreError> {
        let Some(known) = self.packs.known_pack(pack).filter(|known| !known.disks().is_empty()) else { return Ok(()) };
        let Some(fragments) = known.fragments() else { return Ok(()) };
        if !self.is_whole_somewhere(pack, &known).await {
            let (expected, found) = ("all of it on some disk, before its fragments go", "none that is whole");
            return Err(corrupt("a pack", &self.packs.path_of(pack), 0, expected, found));
        }
        fragments.each().try_for_each(|(index, disk)| self.drop_fragment(pack, fragments.cut, index, disk))
    }

    async fn is_whole_somewhere(&self, pack: u64, known: &PackKnown) -> bool {
        for disk in known.disks().iter() {
            let on = &self.pool.disks[disk];
            if let Ok(Found::Sealed(sealed, _)) = scan::read(on, self.key(), pack).await
                && (sealed.summary.data_bytes, sealed.summary.count) == (known.summary.data_bytes, known.summary.count)
                && scan::unsound(on, self.key(), &sealed).await.is_ok_and(|unsound| unsound.is_none())
            {
                return true;
            }
        }
        false
    }
}
