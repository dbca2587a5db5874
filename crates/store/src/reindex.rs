//! The index made again while the store works.
//!
//! redb checks its pages only when it repairs, and a damaged branch page sends a search astray: it ends at nothing. So neither an error
//! nor a "none" of an index that was not made in this life is believed when somebody needs the chunk.
//!
//! X-4   What the index says of a chunk that is needed is believed when it names a place where the chunk is (X-2 checks that), or when it
//!       was made again from the packs in this life of the store, and since the last repair that made it forget a chunk that was lost where
//!       it named it, for that may lie elsewhere too; else it is made again first, once. A chunk is lost only where that could be done,
//!       every pack could be read, and no disk is missing: otherwise nobody knows, and the disk's error says so.
//!
//! X-10  Where the disk of the index failed, packs that cannot be read are left out, for the old file serves nobody: what lies there is not lost,
//!       and nobody knows what it is; the file says that it lacks packs, and until they are in one those are neither cut nor
//!       reclaimed. So are they of the files that are made after that. Otherwise a disk that gives no answer ends the making.
//!
//! The new file is made beside the old one, which serves meanwhile, and takes its place when it is complete.
//!
//! Not here: making it again while opening (`recover`).

use std::collections::{BTreeMap, BTreeSet};

use platform::disk::{DiskError, DiskErrorKind};

use crate::failure::StoreError;
use crate::format::{INDEX_NEW, Summary, pack_path};
use crate::index::{Change, IndexFile, STEP_ENTRIES, SealedPack};
use crate::pack::scan::{self, Found};
use crate::pack::{PackKnown, PackState, Packs};

/// A new index file on its way.
pub(crate) struct NewIndex<'a> {
    packs: &'a Packs,
    /// Where it is made.
    disk: usize,
    /// `None` before it is made, and when it is given away.
    file: Option<IndexFile>,
    taken: BTreeSet<u64>,
    ///
    goes_without: bool,
    unread: BTreeMap<u64, StoreError>,
    is_in_place: bool,
}

impl NewIndex<'_> {
    pub(crate) fn begin(packs: &Packs, disk: usize) -> Result<NewIndex<'_>, StoreError> {
        let goes_without = !packs.pool.for_index().is_good();
        let (taken, unread) = (BTreeSet::new(), BTreeMap::new());
        let mut new = NewIndex { packs, disk, file: None, taken, goes_without, unread, is_in_place: false };
        let file = packs.index.file().new_beside(&packs.pool.disks[disk].disk);
        new.file = Some(new.told(file)?);
        Ok(new)
    }

    /// Takes in all sealed packs that it does not have, but those that wait to be taken in by whichever index there is. The set of packs
    /// only grows meanwhile: the caller sees to that. A pack that is damaged or gone is left out, as by an opening; a disk that gives no
    /// answer ends it all, for nobody knows what lies there, but for X-10.
    pub(crate) async fn take_packs(&mut self, goes_on: &(dyn Fn() -> bool + Sync)) -> Result<(), StoreError> {
        let waiting: BTreeSet<u64> = self.packs.sealed_waiting().iter().map(|sealed| sealed.pack).collect();
        let mut step = Vec::new();
        let mut entries = 0;
        for (pack, known) in self.packs.known() {
            let is_done = self.taken.contains(&pack) || self.unread.contains_key(&pack);
            if matches!(known.state, PackState::Open(_)) || waiting.contains(&pack) || is_done {
                continue;
            }
            if !goes_on() {
                return Err(StoreError::ReadOnly { cause: "the store is being closed".into() });
            }
            if let (PackState::Missing, Some(error)) = (&known.state, self.packs.pool.missing_error(&pack_path(pack))) {
                self.leave_out(pack, &known, error.into())?;
                continue;
            }
            let mut known = known;
            let sealed = loop {
                match self.read(pack, &known).await {
                    Ok(Some(sealed)) => break Some(sealed),
                    Ok(None) => {}
                    Err(error) => {
                        self.leave_out(pack, &known, error)?;
                        break None;
                    }
                }
                // It may have left a disk that is drained, for others, or been cut into fragments, since the list was made.
                match self.packs.known_pack(pack).filter(|now| !now.is_where(&known)) {
                    Some(now) => known = now,
                    None => break None,
                }
            };
            if !self.unread.contains_key(&pack) {
                self.taken.insert(pack);
            }
            let Some(sealed) = sealed else { continue };
            entries += sealed.entries.len();
            step.push(sealed);
            if entries >= STEP_ENTRIES {
                self.write(std::mem::take(&mut step))?;
                entries = 0;
            }
        }
        self.write(step)
    }

    /// X-10, or why there can be no new file.
    fn leave_out(&mut self, pack: u64, known: &PackKnown, error: StoreError) -> Result<(), StoreError> {
        let goes_without = self.goes_without || self.packs.is_left_out(pack);
        // A good disk that is silent now may answer the next time.
        let is_on_good = !known.places().both(self.packs.pool.good()).is_empty();
        let may_answer = |error: &DiskError| error.kind == DiskErrorKind::Silent && is_on_good;
        match error {
            StoreError::Disk(error) if goes_without && !may_answer(&error) => {
                self.unread.insert(pack, error.into());
                Ok(())
            }
            error => Err(error),
        }
    }

    /// What is in a pack, by its directory on any of its disks, or else by a scan; `None` if it is gone.
    async fn read(&self, pack: u64, known: &PackKnown) -> Result<Option<SealedPack>, StoreError> {
        let (mut scan_found, mut failure) = (None, None);
        for file in self.packs.to_read(pack, known) {
            let read = match file {
                Ok(file) => scan::read_file(&file, &self.packs.key, pack).await,
                Err(error) => Err(error.into()),
            };
            match read {
                Ok(Found::Sealed(mut sealed, _)) => {
                    // Its header may be lost.
                    sealed.summary.level = known.summary.level;
                    sealed.summary.was_left = known.summary.was_left;
                    return Ok(Some(sealed));
                }
                Ok(Found::Open { scanned, .. }) => {
                    scan_found = Some(SealedPack::new(pack, known.summary, scanned.entries));
                }
                Err(StoreError::Disk(error)) if error.kind != DiskErrorKind::Absent => failure = Some(error),
                Err(_) => {}
            }
        }
        if scan_found.is_none()
            && failure.is_none()
            && let Some((scanned, silent)) = self.packs.scan_fragments(pack, known).await
        {
            failure = silent;
            // O-6: it may have more.
            let summary = Summary { lacks_directory: true, ..known.summary };
            scan_found = Some(SealedPack::new(pack, summary, scanned.entries));
        }
        // Where no disk has it whole, and one does not answer, nobody knows.
        failure.map_or(Ok(scan_found), |error| Err(error.into()))
    }

    fn write(&self, added: Vec<SealedPack>) -> Result<(), StoreError> {
        let file = self.file.as_ref().expect("not in its place yet");
        let checked = self.packs.ages.of(added.iter().map(|sealed| sealed.pack));
        self.told(file.commit(&self.packs.pool.disks[self.disk].disk, &Change { added, checked, ..Change::default() }))
    }

    /// Puts it in the place of the old one. The caller keeps changes of the index away since before the last packs were taken in.
    pub(crate) fn put_in_place(mut self) -> Result<(), StoreError> {
        let file = self.file.take().expect("not in its place yet");
        let disk = &self.packs.pool.disks[self.disk].disk;
        // One of which a disk was removed may be in no catalog, and still on others.
        let before = self.packs.index.file();
        let has_all = before.packs().is_ok_and(|packs| packs.keys().all(|pack| self.taken.contains(pack)));
        if has_all && !before.lacks_packs() && self.unread.is_empty() {
            self.told(file.note_complete(disk))?;
        }
        // Before anybody asks the new file for what lies there.
        self.packs.note_left_out(std::mem::take(&mut self.unread));
        let placed = self.packs.index.replace_file(disk, file).map_err(StoreError::from);
        self.told(placed)?;
        self.packs.pool.set_index_disk(self.disk);
        self.is_in_place = true;
        Ok(())
    }

    /// A failure of the disk that the index is on counts.
    fn told<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        result.map_err(|error| match error {
            StoreError::Disk(error) => self.packs.pool.failed(self.disk, error, &self.packs.counters),
            error => error,
        })
    }
}

impl Drop for NewIndex<'_> {
    fn drop(&mut self) {
        // One that is not complete is of no use, and its room may be.
        if !self.is_in_place {
            drop(self.file.take());
            let _ = self.packs.pool.disks[self.disk].disk.remove(INDEX_NEW);
        }
    }
}
