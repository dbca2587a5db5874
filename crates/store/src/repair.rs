//! Repair: carrying out what a check proposes, one remedy at a time, beside everything else that goes on.
//!
//! Each remedy may be carried out again, and a crash at any point of it leaves a store that opens and has no less than before.
//!
//! F-1   A pack goes only after every good chunk in it, and what is good of the others (C-7), is durable in another pack, and the index knows
//!       it there. Its file goes before the index forgets it: a crash in between leaves names of what was lost, and not a pack whose rotten
//!       chunks hide better ones. Where the disk gives no answer for a chunk, or another at each reading, nobody knows whether it is good: all
//!       others are copied, and the pack stays.
//! F-2   A pack that is repaired is condemned first: from then on a put stores anew what lies there (L-1).
//! F-3   What is adopted never takes the place of what the index names already, and a pack with damaged chunks does not stay: its own
//!       directory, from which an index is made again, names them like good ones.
//! F-4   While a disk is missing nothing is repaired: what cannot be found may lie there, and it comes back.
//!
//! Not here: what is wrong (`check`), what is lost (nothing of it is made up); reclaim, which waits meanwhile.

mod left;

use std::collections::BTreeSet;

use base::id::ChunkAddress;
use platform::disk::{DiskError, DiskErrorKind, Open};

use crate::chunk::{Packed, mended};
use crate::failure::{StoreError, corrupt, refused};
use crate::format::{ChunkHeader, Codec, Entry, PACKS, Place, pack_path};
use crate::identity;
use crate::level::Level;
use crate::pace::{Pace, Share};
use crate::pack::scan::{self, Ending, Found, Recovered};
use crate::pack::{Copied, Memo, Moment, PackKnown, PackState};
use crate::remedy::Remedy;
use crate::store::Store;

use self::left::Left;

/// Bytes of chunks that are copied in one step.
const STEP_BYTES: usize = 8 << 20;

/// What there is to save in a pack.
struct Contents {
    entries: Vec<Entry>,
    /// The pack's own directory told them, so there can be no others.
    is_complete: bool,
    /// Why nobody knows whether there are others.
    error: Option<DiskError>,
}

/// What became of the chunks of a pack.
#[derive(Default)]
struct Saved {
    copied: u64,
    /// Good nowhere, but in part (C-7).
    in_part: u64,
    /// Not even that.
    lost: u64,
    /// Those for which the disk gave no answer.
    silent: u64,
    /// What it said first.
    error: Option<DiskError>,
}

impl Saved {
    /// Why the pack stays, if the disk gave no answer.
    fn answered(&self) -> Result<(), StoreError> {
        let Some(error) = self.error.clone() else { return Ok(()) };
        let Saved { silent, copied, .. } = self;
        let detail = format!(
            "{}; {silent} chunks of it give no answer, so it stays as it is; {copied} were copied to other packs",
            error.detail
        );
        Err(DiskError { detail, ..error }.into())
    }
}

/// Lets a pack go that was condemned in vain.
struct Condemned<'a>(&'a Store, u64);

impl Drop for Condemned<'_> {
    fn drop(&mut self) {
        self.0.packs.condemned.write().remove(&self.1);
    }
}

impl Store {
    /// Carries out a remedy; tells in words what came of it. For [`Remedy::Commit`] the caller commits first: here the other slot
    /// follows. [`Remedy::Trees`] is wholly the caller's.
    ///
    /// # Errors
    /// Why it could not be done. Nothing is lost then, and another try is welcome.
    pub async fn repair(&self, remedy: Remedy) -> Result<String, StoreError> {
        self.refuse_degraded()?;
        match remedy {
            Remedy::Identity { disk } => {
                let on = &self.pool.disks[disk];
                let written = identity::write_again(&on.disk, &on.identity).await;
                written.map_err(|error| self.pool.failed(disk, error, &self.counters))?;
                Ok("written".to_owned())
            }
            Remedy::Superblock => {
                self.renew_root().await?;
                self.renew_root().await?;
                Ok("written".to_owned())
            }
            Remedy::Commit => {
                self.renew_root().await?;
                Ok("committed".to_owned())
            }
            Remedy::Index => {
                self.remake_index(&|| true).await?;
                Ok("made again".to_owned())
            }
            Remedy::Adopt { disk, pack } => match self.adopt(disk, pack).await? {
                (told, true) => Ok(told),
                (told, false) => Ok(format!("{told}; {}", self.replace_pack(pack).await?)),
            },
            Remedy::Copy { disk, pack } => {
                let work = self.copy_work.lock().await;
                let written = self.write_again(pack, disk, &Pace::new(&self.platform, &|| Share::FULL, &|| true)).await;
                drop(work);
                match written {
                    Ok(()) => Ok("written".to_owned()),
                    // Not all of it is good on any disk: what is good somewhere is saved.
                    Err(StoreError::Corrupt { .. }) => self.replace_pack(pack).await,
                    Err(error) => Err(error),
                }
            }
            Remedy::Copies { pack } if self.packs.lacks_directory(pack) => self.replace_pack(pack).await,
            Remedy::Copies { pack } => match self.restore_pack(pack).await {
                Err(StoreError::Corrupt { .. }) => self.replace_pack(pack).await,
                restored => restored,
            },
            Remedy::Pack { pack } => self.replace_pack(pack).await,
            Remedy::Forget { pack } => self.forget_pack(pack).await,
            Remedy::Trees { .. } => Ok("nothing to do in the store".to_owned()),
        }
    }

    /// F-4.
    ///
    /// # Errors
    /// Which disk is missing, if one is.
    pub fn refuse_degraded(&self) -> Result<(), StoreError> {
        let Some(number) = self.pool.missing() else { return Ok(()) };
        let why = format!("disk {number} is missing, and what a repair would take for lost may lie there.");
        Err(refused(
            self.pool.disks[number].disk.path(),
            why,
            "Mount it again and restart the daemon, and repair then.",
        ))
    }

    /// What came of it, and whether the pack may stay: one with damaged chunks may not (F-3).
    async fn adopt(&self, disk: usize, pack: u64) -> Result<(String, bool), StoreError> {
        let _no_reclaim = self.reclaim_work.lock().await;
        if self.packs.has(pack) {
            return Ok(("it is known already".to_owned(), true));
        }
        let on = &self.pool.disks[disk];
        scan::refuse_newer(on, pack).await?;
        let mut found = match scan::read(on, self.key(), pack).await {
            Err(StoreError::Disk(error)) if error.kind != DiskErrorKind::Absent => {
                let copied = self.copy_what_answers(disk, pack).await?;
                let detail =
                    format!("{}; it stays as it is; {copied} chunks of it were copied to other packs", error.detail);
                return Err(DiskError { detail, ..error }.into());
            }
            found => found?,
        };
        if matches!(found, Found::Open { .. }) && self.packs.listed()?.in_fragments.contains(&pack) {
            // E-6.
            let (expected, found) = ("fragments of it, and no other file", "one without a directory beside them");
            return Err(corrupt("a pack", &pack_path(pack), 0, expected, found));
        }
        let unsound = match &found {
            Found::Sealed(sealed, _) => scan::unsound(on, self.key(), sealed).await?,
            // The scan has looked.
            Found::Open { .. } => None,
        };
        let of_known = self.packs.known_pack(pack).map(|known| known.summary.level);
        let level = of_known.or(found.level(pack)).unwrap_or(self.packs.lost_level());
        if let Found::Sealed(sealed, _) = &mut found {
            sealed.summary.level = level;
        }
        let recovered = scan::put_in_order(on, self.pool.node_identity, (pack, level), found, Ending::Directory).await;
        let recovered = recovered.map_err(|error| self.pool.failed(disk, error, &self.counters))?;
        let mut sealed = match recovered {
            Recovered::Sealed(sealed) | Recovered::Cut { sealed, .. } | Recovered::Unsealed { sealed } => sealed,
            Recovered::Removed { .. } => {
                self.packs.note_read(pack);
                return Ok(("there was no chunk in it".to_owned(), true));
            }
        };
        // Somebody may have brought it back just now.
        on.disk.sync_directory(PACKS).map_err(|error| self.pool.failed(disk, error, &self.counters))?;
        let count = sealed.entries.len();
        // F-3.
        let is_named = |entry: &Entry| match self.packs.index.lookup(&entry.header.address, &self.counters) {
            // C-6.
            Ok(Some(place)) => {
                place.pack != pack && (place.codec != Codec::Bundle || entry.header.codec == Codec::Bundle)
            }
            _ => false,
        };
        (sealed.others, sealed.entries) = std::mem::take(&mut sealed.entries).into_iter().partition(is_named);
        let new = sealed.entries.len();
        // Before somebody finds them: who stores one of them now stores it anew (T-3).
        unsound.iter().flatten().for_each(|address| self.packs.doubt(*address));
        self.packs.adopt(sealed, disk);
        // Only now, for until now nobody found what lies in it.
        self.packs.note_read(pack);
        self.keep_index().await;
        Ok((format!("{count} chunks, {new} of them known nowhere else"), unsound.is_none()))
    }

    /// Copies what can be read of a pack of which nobody knows what is in it, and that is not good elsewhere: how much that was.
    async fn copy_what_answers(&self, disk: usize, pack: u64) -> Result<u64, StoreError> {
        let since = self.moment();
        let bytes = scan::read_what_answers(&self.pool.disks[disk], pack).await?;
        let level = scan::level_in(pack, &bytes).unwrap_or(self.packs.lost_level());
        let mut copies = Vec::new();
        for entry in scan::scan(self.key(), pack, &bytes).entries {
            // Of a bundle what lies in it is copied (C-6).
            if entry.header.codec == Codec::Bundle || self.is_good_elsewhere(pack, &entry.header.address).await {
                continue;
            }
            copies.push(match scan::bundled(self.key(), pack, &bytes, &entry) {
                Some(content) => Copied::Content(entry.header.class, self.named(entry.header.class, content)),
                None => {
                    let end = usize::try_from(entry.end()).expect("within the bytes that were scanned");
                    let payload = bytes.slice(entry.offset as usize + ChunkHeader::BYTES..end);
                    let payload = mended(self.key(), &entry.header, payload);
                    Copied::Stored(Packed::stored(entry.header, payload))
                }
            });
        }
        let copied = self.append_copies(level, copies).await?;
        self.settle_into_index(since).await?;
        Ok(copied)
    }

    /// F-1, step by step.
    async fn replace_pack(&self, pack: u64) -> Result<String, StoreError> {
        // Its files are the same ones until they are gone.
        let _no_copies = self.copy_work.lock().await;
        let _no_reclaim = self.reclaim_work.lock().await;
        let since = self.moment();
        self.settle_into_index(since).await?;
        let Some(known) = self.packs.known_pack(pack) else { return Ok("it is gone already".to_owned()) };
        let is_waiting = self.packs.sealed_waiting().iter().any(|sealed| sealed.pack == pack);
        if is_waiting || matches!(known.state, PackState::Open(_)) {
            let cause = format!("{} cannot be sealed, or the index does not take it", self.packs.path_of(pack));
            return Err(StoreError::ReadOnly { cause: cause.into() });
        }
        self.packs.condemned.write().insert(pack);
        let _condemned = Condemned(self, pack);
        let contents = self.contents(pack, &known).await?;
        let mut saved = self.save(pack, &contents.entries).await?;
        saved.error = saved.error.or(contents.error);
        self.settle_into_index(since).await?;
        saved.answered()?;
        let Saved { copied, in_part, lost, .. } = saved;
        let is_lossy = lost + in_part > 0;
        self.take_away(pack, &known, !is_lossy && contents.is_complete)?;
        let addresses = contents.entries.iter().map(|entry| entry.header.address).collect();
        self.forget(pack, addresses, is_lossy).await?;
        Ok(match (in_part, lost) {
            (0, 0) => format!("{copied} chunks copied, none lost"),
            _ => format!(
                "{copied} chunks copied; {in_part} are left in part, and {lost} are lost: what is not there of their files reads as an error \
                 until a backup brings it back"
            ),
        })
    }

    /// Everything that was put lies in sealed packs, and the index knows them.
    async fn settle_into_index(&self, since: Moment) -> Result<(), StoreError> {
        self.settle(since).await?;
        if !self.packs.seal_all().await {
            let is_full = self.pool.disks.iter().all(|(_, disk)| disk.is_good());
            let failed = || StoreError::ReadOnly { cause: "a pack cannot be sealed, for its disk failed".into() };
            return Err(if is_full { self.pool.full("the directory of a pack", 0) } else { failed() });
        }
        self.take_into_index().await
    }

    /// What a pack should hold: its directory says it, or else a scan and the index.
    async fn contents(&self, pack: u64, known: &PackKnown) -> Result<Contents, StoreError> {
        let (mut entries, mut error) = (Vec::<Entry>::new(), None);
        for file in self.packs.to_read(pack, known) {
            let read = match file {
                Ok(file) => scan::read_file(&file, self.key(), pack).await,
                Err(error) => Err(error.into()),
            };
            match read {
                Ok(Found::Sealed(sealed, _)) => {
                    return Ok(Contents { entries: sealed.entries, is_complete: true, error: None });
                }
                Ok(Found::Open { scanned, .. }) => entries.extend(scanned.entries.into_iter().chain(scanned.damaged)),
                // What can be read of it is read chunk by chunk.
                Err(StoreError::Disk(failure)) if failure.kind != DiskErrorKind::Absent => error = Some(failure),
                Err(_) => {}
            }
        }
        if let Some((scanned, silent)) = self.packs.scan_fragments(pack, known).await {
            error = error.or(silent);
            entries.extend(scanned.entries.into_iter().chain(scanned.damaged));
        }
        entries.sort_by_key(|entry| entry.offset);
        entries.dedup_by_key(|entry| entry.offset);
        let scanned: BTreeSet<u32> = entries.iter().map(|entry| entry.offset).collect();
        let indexed = self.indexed(pack)?;
        let others = indexed.into_iter().filter(|(_, place)| !scanned.contains(&place.offset));
        entries.extend(others.map(|(address, place)| Entry { offset: place.offset, header: place.header(address) }));
        Ok(Contents { entries, is_complete: false, error })
    }

    /// What the index file names in a pack.
    fn indexed(&self, pack: u64) -> Result<Vec<(ChunkAddress, Place)>, StoreError> {
        let mut indexed = Vec::new();
        self.packs.index.file().walk(&mut |address, place| {
            indexed.extend(place.filter(|place| place.pack == pack).map(|place| (address, place)));
        })?;
        Ok(indexed)
    }

    /// Copies good chunks to other packs, in steps.
    async fn save(&self, pack: u64, entries: &[Entry]) -> Result<Saved, StoreError> {
        let level = self.packs.level_now(pack);
        let mut saved = Saved::default();
        let (mut step, mut bytes, mut memo, mut tried) = (Vec::new(), 0, Memo::default(), BTreeSet::new());
        for entry in entries {
            let is_remains = entry.header.codec == Codec::Remains;
            // Of a bundle what lies in it is copied (C-6).
            if entry.header.codec == Codec::Bundle
                || !is_remains && self.is_good_elsewhere(pack, &entry.header.address).await
            {
                continue;
            }
            let copy = self.good_copy(pack, entry, &mut memo).await;
            let is_bad = copy.is_err();
            let left = match copy {
                // Together with what else there is of their chunk: F-9.
                Ok(copy) if !is_remains => Ok(Left::Whole(copy)),
                Err(error @ StoreError::Disk(_)) => Err(error),
                _ if !tried.insert(entry.header.whole().address) => continue,
                _ => self.what_is_left(pack, entries, entry).await,
            };
            match left {
                Ok(Left::Whole(copy)) => {
                    bytes += copy.bytes();
                    step.push(copy);
                }
                Ok(Left::Part(part, level)) => {
                    saved.in_part += u64::from(is_bad);
                    self.append_copies(level, vec![Copied::Stored(part)]).await?;
                }
                Ok(Left::NoMore) => saved.in_part += u64::from(is_bad),
                Ok(Left::Nothing) => saved.lost += 1,
                Ok(Left::Needless) => {}
                // No answer is no loss, and costs nothing of what lies behind.
                Err(StoreError::Disk(error)) => {
                    saved.silent += 1;
                    saved.error.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
            if bytes >= STEP_BYTES {
                bytes = 0;
                saved.copied += self.append_copies(level, std::mem::take(&mut step)).await?;
            }
        }
        saved.copied += self.append_copies(level, step).await?;
        Ok(saved)
    }

    async fn is_good_elsewhere(&self, pack: u64, address: &ChunkAddress) -> bool {
        match self.packs.index.lookup(address, &self.counters) {
            Ok(Some(place)) if place.pack != pack && place.codec != Codec::Bundle => {
                self.packs.stands_for(place.pack, pack) && self.packs.is_good(address, &place).await.is_ok()
            }
            _ => false,
        }
    }

    async fn good_copy(&self, pack: u64, entry: &Entry, memo: &mut Memo) -> Result<Copied, StoreError> {
        let (address, place) = (entry.header.address, Place::of(pack, entry));
        for _ in 0..scan::READINGS_MAX {
            let error = match self.packs.read_copy(&address, &place, memo).await {
                Ok(copy) => return Ok(copy),
                Err(error) => error,
            };
            // A bit that flipped on its way here may be right the next time.
            if let Some(error) = self.packs.look_closely(&address, &place, error).await {
                return Err(error);
            }
        }
        Err(scan::unsteady(&self.packs.path_of(pack), u64::from(place.offset)).into())
    }

    async fn append_copies(&self, level: Level, copies: Vec<Copied>) -> Result<u64, StoreError> {
        let count = copies.len() as u64;
        if let Some(class) = copies.first().map(Copied::class) {
            // P-2: unlike reclaim, repair gives back no more than it takes, so it has no claim on the reserve.
            self.packs.append_copies((class, level), class, copies).await?;
        }
        Ok(count)
    }

    /// Removes the files of a pack, or sets them aside for a person.
    fn take_away(&self, pack: u64, known: &PackKnown, is_saved: bool) -> Result<(), StoreError> {
        for file in known.files(pack) {
            let on = &self.pool.disks[file.disk].disk;
            let gone = match is_saved {
                true => on.remove(&file.path()),
                false => on.rename(&file.path(), &file.damaged_path()),
            };
            match gone.and_then(|()| on.sync_directory(PACKS)) {
                // It may be what was wrong with it, and no disk has failed.
                Err(error) if error.kind == DiskErrorKind::Absent => {}
                gone => gone.map_err(|error| self.pool.failed(file.disk, error, &self.counters))?,
            }
        }
        Ok(())
    }

    async fn forget_pack(&self, pack: u64) -> Result<String, StoreError> {
        let _no_reclaim = self.reclaim_work.lock().await;
        if let Some(known) = self.packs.known().get(&pack) {
            for file in known.files(pack) {
                match self.pool.disks[file.disk].disk.open(&file.path(), Open::Read) {
                    Ok(_) => return Ok("it is there again".to_owned()),
                    Err(error) if error.kind == DiskErrorKind::Absent => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        if self.packs.listed()?.has(pack) {
            return Ok("some of it is on a disk that is there: restart the daemon, which takes it in".to_owned());
        }
        let addresses: Vec<ChunkAddress> = self.indexed(pack)?.into_iter().map(|(address, _)| address).collect();
        let count = addresses.len();
        self.forget(pack, addresses, count > 0).await?;
        Ok(format!("{count} chunks are known to be lost now"))
    }

    /// Takes a pack whose file is gone out of catalog and index.
    async fn forget(&self, pack: u64, addresses: Vec<ChunkAddress>, is_lossy: bool) -> Result<(), StoreError> {
        let _work = self.index_work.lock().await;
        if is_lossy {
            self.packs.index.note_loss();
        }
        self.packs.forget(pack);
        self.forget_in_index(vec![(pack, addresses)]).await
    }
}
