//! Where a part of a chunk is read: one place after the other, until what was read verifies.
//!
//! K-8   What fails on one disk of a pack, or does not verify, is read there once more, and then on the others, at last in files that are shorter
//!       than the pack: only what fails on all of them fails. The disk is noted (P-4), and what lies there is suspect until it was written again.
//!
//! Not here: how the bytes are read there, and what is verified (`read`).

use std::ops::Range;

use platform::disk::DiskErrorKind;

use super::fragments::Fragments;
use super::{PackKnown, PackState, Packs};
use crate::disks::DiskSet;
use crate::failure::StoreError;
use crate::format::{Place, pack_path};

/// From where bytes of a pack are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The file on one disk that has all of it.
    Whole(usize),
    /// The fragments that they lie in, as they are.
    Lying,
    /// The same block by block, verified, or made of other fragments: K-10.
    Made,
}

/// Where a chunk is being read.
pub(super) struct Tries {
    place: Place,
    range: Range<usize>,
    /// As the pack lay when this began.
    known: PackKnown,
    /// Whose turn it is.
    pub(super) source: Source,
    /// Disks with all of it that come after it.
    left: DiskSet,
    /// Disks with less than all of it, after everything else.
    short: DiskSet,
    was_made: bool,
    has_lain: bool,
    is_second: bool,
    /// Why it could not be made.
    error: Option<StoreError>,
}

impl Packs {
    /// K-8. `range` is what is read of the chunk.
    pub(super) fn tries(&self, place: &Place, range: Range<usize>) -> Result<Tries, StoreError> {
        let known = self.place_of(place.pack)?;
        let (source, left) = self.first_source(&known, place, &range);
        let (was_made, has_lain) = (source == Source::Made, source == Source::Lying);
        let short = known.short();
        Ok(Tries {
            place: *place,
            range,
            known,
            source,
            left,
            short,
            was_made,
            has_lain,
            is_second: false,
            error: None,
        })
    }

    pub(super) fn first_source(&self, known: &PackKnown, place: &Place, range: &Range<usize>) -> (Source, DiskSet) {
        let disks = known.disks();
        // E-6: what is suspect beside fragments comes last.
        let sound = if known.fragments().is_some() { self.sound_of(disks, place.pack) } else { disks };
        let Some(fragments) = known.fragments().filter(|_| sound.is_empty()) else {
            let disk = self.next_to_read(sound, place.pack);
            return (Source::Whole(disk), disks.without(disk));
        };
        let start = u64::from(place.offset) + range.start as u64;
        let mut pieces = fragments.cut.pieces(start..start + range.len() as u64);
        let is_there = |(index, _)| self.lies_well(place.pack, fragments, index).is_some();
        (if pieces.all(is_there) { Source::Lying } else { Source::Made }, disks)
    }

    fn sound_of(&self, disks: DiskSet, pack: u64) -> DiskSet {
        let suspect = self.suspect_on(pack);
        disks.iter().filter(|disk| !suspect.has(*disk)).collect()
    }

    /// On which disk each of some chunks of a pack is read first; of fragments the one where it begins. `None`: nobody knows.
    pub(crate) fn disks_of<'a>(&self, pack: u64, places: impl Iterator<Item = &'a Place>) -> Vec<Option<usize>> {
        let known = self.place_of(pack).ok().filter(|known| !known.places().is_empty());
        let disk_of = |known: &PackKnown, place: &Place| {
            match (self.first_source(known, place, &place.record()).0, known.fragments()) {
                (Source::Whole(disk), _) => Some(disk),
                (Source::Lying, Some(fragments)) => {
                    let (index, _) = fragments.cut.pieces(place.span()).next()?;
                    self.lies_well(pack, fragments, index)
                }
                // It is made of what lies on several.
                (_, fragments) => fragments?.disks().first(),
            }
        };
        places.map(|place| disk_of(known.as_ref()?, place)).collect()
    }

    /// A disk that has a fragment, as far as anybody knows a good one.
    pub(super) fn lies_well(&self, pack: u64, fragments: &Fragments, index: usize) -> Option<usize> {
        let suspect = self.suspect_on(pack);
        fragments.at(index).iter().find(|disk| !suspect.has(*disk) && self.pool.disks[*disk].is_good())
    }

    /// What comes after a source that failed: where it is whole, made of fragments, and at last what is suspect. A fragment's bad block may be so
    /// where the chunk is not.
    fn next_source(&self, tries: &mut Tries) -> Option<Source> {
        let is_in_fragments = tries.known.fragments().is_some();
        let sound = if is_in_fragments { self.sound_of(tries.left, tries.place.pack) } else { tries.left };
        if sound.is_empty() && is_in_fragments && !tries.was_made {
            tries.was_made = true;
            return Some(Source::Made);
        }
        let wholes = if sound.is_empty() { tries.left } else { sound };
        if !wholes.is_empty() {
            let disk = self.next_to_read(wholes, tries.place.pack);
            tries.left = tries.left.without(disk);
            return Some(Source::Whole(disk));
        }
        if is_in_fragments && !tries.has_lain {
            tries.has_lain = true;
            return Some(Source::Lying);
        }
        let disk = tries.short.first()?;
        tries.short = tries.short.without(disk);
        Some(Source::Whole(disk))
    }

    /// Begins again where the pack lies elsewhere by now: it was cut into fragments, or left a disk.
    fn follow(&self, tries: &mut Tries) -> bool {
        let now = self.catalog.read().get(&tries.place.pack).map(|known| known.to_read().clone());
        let Some(now) = now.filter(|now| !now.is_where(&tries.known) && !now.places().is_empty()) else { return false };
        (tries.source, tries.left) = self.first_source(&now, &tries.place, &tries.range);
        (tries.was_made, tries.has_lain) = (tries.source == Source::Made, tries.source == Source::Lying);
        tries.short = now.short();
        (tries.known, tries.is_second, tries.error) = (now, false, None);
        true
    }

    /// What came of a try; `None`: it is to be tried again.
    pub(super) async fn judge<T>(
        &self,
        tries: &mut Tries,
        result: Result<T, StoreError>,
    ) -> Option<Result<T, StoreError>> {
        let Err(error) = &result else { return Some(result) };
        let is_alone =
            tries.known.fragments().is_none() && tries.known.disks().count() == 1 && tries.known.short().is_empty();
        if is_alone {
            return if self.follow(tries) { None } else { Some(self.or_missing(tries.place.pack, result)) };
        }
        if !tries.is_second && tries.source != Source::Made {
            let (place, range) = (tries.place, tries.range.clone());
            // A bit that flipped on its way here may be right the next time.
            let is_open = self.tell(tries.source, &place, range, |file, at, bytes| file.forget(at, bytes)).await;
            if is_open {
                tries.is_second = true;
                return None;
            }
        }
        let pack = tries.place.pack;
        if let Source::Whole(disk) = tries.source
            && self.is_on(pack, disk)
        {
            if is_the_disks(error) {
                self.counters.disk_reads_failed.add(1);
                self.pool.disks[disk].note_failed_read();
            }
            self.suspects.lock().insert((pack, disk));
        }
        // A disk that gave no answer may have it: what others lack is not the reason then.
        let is_silent = matches!(error, StoreError::Disk(error)
            if !matches!(error.kind, DiskErrorKind::Absent | DiskErrorKind::Short));
        if tries.source == Source::Made || is_silent {
            tries.error.get_or_insert_with(|| error.clone());
        }
        match self.next_source(tries) {
            Some(source) => {
                self.counters.reads_of_copies.add(1);
                (tries.source, tries.is_second) = (source, false);
                None
            }
            None if self.follow(tries) => None,
            // What was tried behind that was of no great hope.
            None => Some(self.or_missing(tries.place.pack, tries.error.take().map_or(result, Err))),
        }
    }

    /// K-6: what the rest of a missing pack does not have is unknown, and not damaged.
    fn or_missing<T>(&self, pack: u64, result: Result<T, StoreError>) -> Result<T, StoreError> {
        match result {
            Err(error) if self.is_missing(pack) => {
                Err(self.pool.missing_error(&pack_path(pack)).map_or(error, StoreError::Disk))
            }
            result => result,
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
