//! Packs in fragments that the index does not cover: what is in them, and which are only left over.
//!
//! E-2, E-6, O-6 and X-9 meet here: fragments that no index knows of are of a pack that was taken out, or of one that the index lacks, for it
//! was made again when they could not be read. The first go; of the second every chunk that verifies is taken in.
//!
//! Not here: whole files (`recover`), where a pack is that the index covers (`Recovery::known`), reading fragments (`pack/fragments`).

use std::sync::Arc;

use platform::disk::{DiskErrorKind, File};

use super::{Listed, Read, Recovery};
use crate::disks::DiskSet;
use crate::failure::{StoreError, corrupt};
use crate::format::{Entry, Summary, pack_path};
use crate::index::SealedPack;
use crate::level::Level;
use crate::pack::PackKnown;
use crate::pack::fragments::{Fragments, Joined};
use crate::pack::scan;

impl Recovery<'_> {
    /// What is in a pack, by its fragments: all of it, or where it is news what can be read, and what was found `beside` them. `Err` within: there
    /// are not enough of them, and perhaps why.
    async fn read_fragments(
        &mut self,
        pack: u64,
        listed: &Listed,
        (is_news, beside): (bool, &[Entry]),
    ) -> Result<Result<(SealedPack, Fragments), Option<StoreError>>, StoreError> {
        let mut failure = None;
        for (name, disk) in &listed.fragments {
            let whole_bytes = match self.fragment_header(name, *disk).await {
                Ok(header) => header.cut.whole_bytes,
                Err(error) => {
                    failure = failure.filter(is_silent).or(Some(error));
                    continue;
                }
            };
            let fragments = listed.fragments(whole_bytes).expect("there is one");
            let are_few = !fragments.is_readable_on(fragments.disks());
            if are_few && (!is_news || self.pool.missing().is_some()) {
                break;
            }
            let joined = Joined::open(self.pool, pack, &fragments, DiskSet::NONE);
            // One of which the power left a part when it was being removed may be rotten anywhere.
            let lacks = match joined.are_enough().await {
                Err(error) if error.kind == DiskErrorKind::Absent && !is_news => {
                    failure = Some(error.into());
                    break;
                }
                // Where no index can tell that it went, it is there, but for what cannot be read.
                Err(_) if is_news => true,
                read => {
                    read?;
                    are_few
                }
            };
            let file = joined.into_file();
            let found = scan::read_file(&file, &self.identity.key, pack).await;
            let level = scan::read_level(&file, pack).await;
            // The code says what it was made for, if its header cannot be read.
            let of_code = || Level::of_settings(1, Some(fragments.cut.erasure));
            let level = level.unwrap_or_else(of_code);
            let scanned = match found {
                Ok(scan::Found::Sealed(mut sealed, _)) => {
                    sealed.summary.level = level;
                    // Of what is not there nothing is made again, and nobody relies on it.
                    sealed.summary.lacks_directory = lacks;
                    return Ok(Ok((sealed, fragments)));
                }
                Ok(scan::Found::Open { scanned, .. }) if is_news => scanned,
                // O-6: its directory is among what cannot be read.
                Err(StoreError::Disk(_)) if is_news => {
                    let joined = Joined::open(self.pool, pack, &fragments, DiskSet::NONE);
                    let bytes = joined.read_what_answers().await;
                    if let Some(error) = joined.silent() {
                        // What is not found may be there all the same.
                        self.unread.insert(pack, error.into());
                    }
                    scan::scan(&self.identity.key, pack, &bytes.into())
                }
                Ok(scan::Found::Open { .. }) => {
                    let found = "one that has none, and whose fragments are sound";
                    return Err(corrupt("a pack in fragments", file.path(), 0, "a directory", found));
                }
                Err(error) => return Err(error),
            };
            match self.without_directory(pack, &file, (scanned.entries, beside), (whole_bytes, level)) {
                Ok(sealed) => return Ok(Ok((sealed, fragments))),
                Err(none) => failure = Some(none),
            }
            break;
        }
        Ok(Err(failure))
    }

    /// A pack by the chunks that were found in it, and `beside` it in a whole file that may have what it does not. `Err`: there is none.
    fn without_directory(
        &mut self,
        pack: u64,
        file: &File,
        (mut entries, beside): (Vec<Entry>, &[Entry]),
        (whole_bytes, level): (u64, Level),
    ) -> Result<SealedPack, StoreError> {
        entries.extend_from_slice(beside);
        entries.sort_by_key(|entry| entry.offset);
        entries.dedup_by_key(|entry| entry.offset);
        if entries.is_empty() {
            let none = || corrupt("a pack in fragments", file.path(), 0, "chunks", "none that verifies");
            return Err(self.unread.get(&pack).cloned().unwrap_or_else(none));
        }
        let (count, path) = (entries.len(), file.path());
        self.report.problems.push(format!(
            "{path}: its directory cannot be read; {count} chunks were found without it, and are read where they lie; \
             `hydrafs fsck --repair` stores them anew"
        ));
        Ok(SealedPack::new(pack, Summary::of_scanned(whole_bytes, &entries, level), entries))
    }

    /// E-6. What was cut had been sealed, so a file without a directory is not it, also where there are too few fragments now.
    pub(super) async fn recover_cut(
        &mut self,
        pack: u64,
        listed: &mut Listed,
        (is_news, is_indexed): (bool, bool),
    ) -> Result<Option<Read>, StoreError> {
        let read = self.read_fragments(pack, listed, (false, &[])).await;
        let mut failure = match read {
            Ok(Ok(fragments)) => return Ok(Some(self.found_in(fragments, listed.whole))),
            Ok(Err(failure)) => failure,
            Err(error) => Some(error),
        };
        let (mut sealed, mut beside, mut silent) = (DiskSet::NONE, Vec::new(), None);
        for disk in listed.whole.iter() {
            match scan::read(&self.pool.disks[disk], &self.identity.key, pack).await {
                Ok(scan::Found::Sealed(..)) => sealed = sealed.with(disk),
                Ok(scan::Found::Open { scanned, .. }) => beside.extend(scanned.entries),
                Err(error @ StoreError::Disk(_)) => silent = Some(error),
                Err(_) => {}
            }
        }
        if let Some(error) = &silent {
            self.unread.insert(pack, error.clone());
        }
        if !sealed.is_empty() {
            return self.recover_pack(pack, sealed).await;
        }
        if is_news {
            match self.read_fragments(pack, listed, (true, &beside)).await? {
                Ok(fragments) => return Ok(Some(self.found_in(fragments, listed.whole))),
                Err(other) => failure = failure.filter(is_silent).or(other),
            }
        }
        if let Some(error) = silent {
            return Err(error);
        }
        if let (true, Some(error)) = (is_indexed, &failure) {
            // The index has more of it than can be read now.
            return Err(error.clone());
        }
        // Of what was taken out a part of the pack stayed too: what verifies in that is a pack of its own.
        self.put_away(pack, listed, is_news, failure)?;
        listed.fragments.clear();
        self.recover_pack(pack, listed.whole).await
    }

    fn found_in(&mut self, (sealed, fragments): (SealedPack, Fragments), whole: DiskSet) -> Read {
        self.report.packs_found += 1;
        let known = PackKnown::sealed(whole, Some(Arc::new(fragments)), sealed.summary);
        Read { sealed, known, unsealed: None }
    }

    /// What is in a pack of which only fragments are there; `None` if it is gone.
    pub(super) async fn recover_fragments(
        &mut self,
        pack: u64,
        listed: &Listed,
        is_news: bool,
    ) -> Result<Option<Read>, StoreError> {
        let failure = match self.read_fragments(pack, listed, (is_news, &[])).await? {
            Ok(fragments) => return Ok(Some(self.found_in(fragments, DiskSet::NONE))),
            Err(failure) => failure,
        };
        self.put_away(pack, listed, is_news, failure)?;
        self.report.packs_removed += 1;
        Ok(None)
    }

    /// E-2: what the index does not have was taken out, and these fragments were on a disk that was not there. Where there are enough of them,
    /// and not all can be read, or where the index may not know, it may not have been: a person may look at them.
    fn put_away(
        &mut self,
        pack: u64,
        listed: &Listed,
        is_news: bool,
        failure: Option<StoreError>,
    ) -> Result<(), StoreError> {
        if self.pool.missing().is_some() || failure.as_ref().is_some_and(is_silent) {
            let found = format!("{} files of fragments", listed.fragments.len());
            return Err(
                failure.unwrap_or_else(|| corrupt("a pack", &pack_path(pack), 0, "enough fragments of it", found))
            );
        }
        let are_enough = listed.fragments(0).is_some_and(|fragments| fragments.is_readable_on(fragments.disks()));
        let are_kept = are_enough || is_news;
        for (name, disk) in &listed.fragments {
            let on = &self.pool.disks[*disk].disk;
            let _ = if are_kept { on.rename(&name.path(), &name.damaged_path()) } else { on.remove(&name.path()) };
        }
        if are_kept {
            let found = format!("{} files, which were set aside", listed.fragments.len());
            let cause =
                corrupt("a pack in fragments", &pack_path(pack), 0, "an entry in the index, or none of it", found);
            self.report.problems.push(cause.to_string());
        }
        Ok(())
    }
}

/// Whether a disk gave no answer: what it has nobody knows.
fn is_silent(error: &StoreError) -> bool {
    matches!(error, StoreError::Disk(error) if error.kind != DiskErrorKind::Absent)
}
