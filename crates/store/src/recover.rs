//! Opening: from whatever a crash left to a store that works.
//!
//! O-1   Everything that can be refused is looked at before the first byte is changed: identities, locks, superblocks, the
//!       journal, formats of packs.
//! O-2   What is damaged and not needed to open is reported and left alone. A chunk in a damaged pack is an error when someone
//!       asks for it, and the rest of the store works.
//! O-3   What was found and is to be relied upon is written again and synced (journal, superblock, open packs): after a failed
//!       sync, a page cache that outlived its process may show what the disk does not hold.
//! O-4   The index covers exactly the packs in its own table; every other pack is read here. Without an index that is all of
//!       them, by their directories.
//! O-5   Of two copies of a chunk the index names one that verifies. A pack that is read here may be one that reclaim emptied and had no
//!       time to remove, with a copy that rotted; or it may hold what was put again because the copy that the index names had rotted.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::id::{ChunkAddress, Position};
use base::units;
use bytes::Bytes;
use platform::Platform;
use platform::disk::{Disk, DiskErrorKind};

use crate::counters::Counters;
use crate::failure::StoreError;
use crate::format::{DAMAGED_SUFFIX, INDEX_NEW, Identity, PACK_SUFFIX, PACKS, Place, Superblock, number_of, pack_path};
use crate::identity;
use crate::index::{Change, Index, IndexFile, Opened, STEP_ENTRIES, SealedPack};
use crate::journal::{Journal, replay, segment_size};
use crate::options::Options;
use crate::pack::scan::{self, Recovered as PackRecovered};
use crate::pack::{FoundPacks, PackKnown, PackState, Packs, Sizes};
use crate::pool::Pool;
use crate::store::{Parts, Store};
use crate::superblock::{self, LEFT_OUT};

/// What an open found.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// As given to the newest commit.
    pub roots: Vec<u8>,
    /// As given to the newest commit.
    pub covered: Position,
    /// All durable frames after `covered`, in order and without gaps.
    pub frames: Vec<(Position, Bytes)>,
    /// What there was to mend.
    pub report: RecoveryReport,
}

/// What an open had to mend, for the log and for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Packs that the index covered.
    pub packs_covered: u64,
    /// Packs that the index covers and that are on no disk, while one is missing.
    pub packs_missing: u64,
    /// Sealed packs that the index did not cover.
    pub packs_found: u64,
    /// Open packs that were cut behind their last good chunk and sealed.
    pub packs_cut: u64,
    /// Open packs without a good chunk that were removed, or set aside as `.damaged`.
    pub packs_removed: u64,
    /// Bytes in open packs that were no good chunks.
    pub bytes_cut: u64,
    /// Frames replayed.
    pub frames: u64,
    /// Valid frames behind the end of the journal that were dropped: one before them was never durable.
    pub frames_cut: u64,
    /// Why the index was made again, if it was.
    pub index_made_again: Option<String>,
    /// What is wrong with the store and was left alone, in words.
    pub problems: Vec<String>,
}

impl Store {
    /// Opens a node's disks, given in any order.
    ///
    /// # Errors
    /// `Refused`: not a whole node of this version, or in use; nothing was changed. `Corrupt`: what was promised to be durable is
    /// not there; nothing was changed. A disk's error.
    pub async fn open(
        platform: &Platform,
        disks: &[Disk],
        options: Options,
    ) -> Result<(Arc<Store>, Recovered), StoreError> {
        let counters = Arc::new(Counters::default());
        let mut report = RecoveryReport::default();
        let found = identity::open(disks, options.goes_without_disks).await?;
        let identity::Opened { disks, missing, locks, damaged } = found;
        let identity = disks[0].1.clone();
        let opened = superblock::open(&disks, disks.len() + missing.len()).await?;
        let superblock::Opened { newest: found_superblock, is_closed, is_damaged, covered_by_all } = opened;
        let mut superblock = Superblock { is_closed, ..found_superblock.clone() };
        let disks = identity::members(disks, missing, &superblock.disks);
        let segment_bytes = segment_size(options.segment_bytes);
        let pool = Pool::new(platform.clock.clone(), disks, options.reserve_bytes, locks)?;
        let pool = Arc::new(pool);
        let is_spare = |bytes| bytes == segment_bytes;
        let suffix =
            replay::Suffix { superblock: &superblock, covered_by_all, gives_up_frames: options.gives_up_frames };
        let replayed = replay::replay(&pool.disks[0].disk, suffix, &is_spare).await?;

        let mut recovery = Recovery { pool: &pool, identity: &identity, counters: &counters, report: &mut report };
        let (found, number_max) = recovery.list_packs()?;
        let opened = recovery.open_index(&options, &found).await?;
        let indexed_max = opened.packs.keys().next_back().copied().unwrap_or(0);
        let mut next = superblock.pack_next.max(number_max.max(indexed_max) + 1);
        // Nothing is refused from here on.
        recovery.mend_identities(damaged).await;
        replay::make_durable(&pool.disks[0].disk, &replayed).await?;
        replay::erase_behind(&pool.disks[0].disk, &replayed).await?;
        // S-1: a tear in the first write harms nothing, for nothing changes; the second one goes to the other slot.
        superblock::write(&pool, &found_superblock, &counters).await?;
        superblock.is_closed = false;
        if replayed.lost.is_some() {
            superblock.durable = replayed.resume.last;
        }
        if pool.missing().is_some() {
            // S-4 and K-5: before a pack is made.
            next += LEFT_OUT;
            superblock.generation += LEFT_OUT;
            superblock.pack_next = next;
        }
        if superblock != found_superblock {
            superblock.generation += 1;
            superblock::write(&pool, &superblock, &counters).await?;
        }
        if pool.missing().is_some() && !pool.disks[0].is_good() {
            // It alone is there at each opening, to say what was left out.
            return Err(StoreError::ReadOnly { cause: pool.disks[0].words().into() });
        }
        let packs = recovery.recover_packs(opened, found, next, &options).await?;

        report.frames = replayed.frames.len() as u64;
        report.frames_cut = replayed.cut_frames;
        let other_slot_lies = replayed.lost.is_some();
        report.problems.extend(replayed.lost.map(|lost| format!("given up: {lost}")));
        let tasks = platform.tasks.clone();
        let journal = Journal::new(tasks, pool.clone(), counters.clone(), options.segment_bytes, replayed.resume);
        let journal = Arc::new(journal);
        if let Err(error) = journal.prepare().await {
            let _ = pool.failed(0, error, &counters);
        }
        let mut recovered =
            Recovered { roots: superblock.roots.clone(), covered: superblock.covered, frames: replayed.frames, report };
        let parts = Parts { platform: platform.clone(), identity, options, pool, counters, packs, journal, superblock };
        let store = Store::assemble(parts);
        if (is_damaged || other_slot_lies)
            && let Err(error) = store.renew_root().await
        {
            recovered.report.problems.push(format!("a damaged superblock could not be written again: {error}"));
        }
        Ok((Arc::new(store), recovered))
    }
}

struct Recovery<'a> {
    pool: &'a Arc<Pool>,
    identity: &'a Identity,
    counters: &'a Arc<Counters>,
    report: &'a mut RecoveryReport,
}

impl Recovery<'_> {
    /// Writes identities again that are damaged, or have no copy.
    async fn mend_identities(&mut self, damaged: Vec<(usize, Option<String>)>) {
        for (number, what) in damaged {
            let on = &self.pool.disks[number];
            self.report.problems.extend(what.map(|what| format!("{what}; it is written again")));
            if let Err(error) = identity::write_again(&on.disk, &on.identity).await {
                let failure = self.pool.failed(number, error, self.counters);
                self.report
                    .problems
                    .push(format!("the identity of disk {number} could not be written again: {failure}"));
            }
        }
    }

    /// Pack numbers with their disks, and the highest number in use.
    fn list_packs(&mut self) -> Result<(BTreeMap<u64, usize>, u64), StoreError> {
        let (mut found, mut max) = (BTreeMap::new(), 0);
        for (disk, on) in self.pool.there() {
            for name in on.disk.list(PACKS)? {
                max = max.max(number_of(&name, DAMAGED_SUFFIX).unwrap_or(0));
                let Some(pack) = number_of(&name, PACK_SUFFIX) else { continue };
                max = max.max(pack);
                if let Some(other) = found.insert(pack, disk) {
                    let (one, two) = (self.pool.disks[other].disk.path(), on.disk.path());
                    self.report.problems.push(format!(
                        "pack {pack:016x} is on two disks, {one} and {two}: the second is used; remove the copy"
                    ));
                }
            }
        }
        Ok((found, max))
    }

    /// Opens the index, or makes an empty one where there is none that works.
    async fn open_index(&mut self, options: &Options, found: &BTreeMap<u64, usize>) -> Result<Opened, StoreError> {
        let disk = &self.pool.disks[0].disk;
        let opened = IndexFile::open(disk, options.index_cache_bytes, self.pool.node_identity);
        let covered = opened.as_ref().map(|opened| opened.packs.clone()).unwrap_or_default();
        for (pack, number) in found.iter().filter(|(pack, _)| !covered.contains_key(pack)) {
            // Whatever else there is to say is said when the pack is read.
            if let Err(error @ StoreError::Refused { .. }) = scan::refuse_newer(&self.pool.disks[*number], *pack).await
            {
                return Err(error);
            }
        }
        // One that was not complete when its maker died.
        let _ = disk.remove(INDEX_NEW);
        opened.or_else(|error| {
            let is_first =
                found.is_empty() && matches!(&error, StoreError::Disk(error) if error.kind == DiskErrorKind::Absent);
            if !is_first {
                self.report.index_made_again = Some(error.to_string());
            }
            IndexFile::make_again(disk, options.index_cache_bytes, self.pool.node_identity)
        })
    }

    /// Reads every pack that the index does not cover, and brings it into order.
    async fn recover_packs(
        &mut self,
        opened: Opened,
        found: BTreeMap<u64, usize>,
        next: u64,
        options: &Options,
    ) -> Result<Packs, StoreError> {
        let (mut known, mut chunks, mut bytes) = (BTreeMap::new(), 0, 0);
        for (pack, summary) in &opened.packs {
            match (found.get(pack), self.pool.missing()) {
                (Some(disk), _) => {
                    self.report.packs_covered += 1;
                    known.insert(*pack, PackKnown { disk: *disk, state: PackState::Sealed, summary: *summary });
                }
                // K-6.
                (None, Some(disk)) => {
                    self.report.packs_missing += 1;
                    chunks += u64::from(summary.count);
                    bytes += summary.raw_bytes;
                    known.insert(*pack, PackKnown { disk, state: PackState::Missing, summary: *summary });
                }
                (None, None) => self.report.problems.push(format!(
                    "{} is in the index and on no disk: its {} chunks cannot be read; restore the file, or the chunks from \
                     a backup",
                    pack_path(*pack),
                    summary.count
                )),
            }
        }
        self.tell_missing(chunks, units::Bytes(bytes));
        let (index, key) = (Index::new(opened.file), self.identity.key.clone());
        let Options { pack_bytes, pack_chunks_max, run_bytes, .. } = *options;
        let sizes = Sizes { pack_bytes, pack_chunks_max, run_bytes };
        let found_packs = FoundPacks { known, next, checked: opened.checked };
        let packs = Packs::new(self.pool.clone(), self.counters.clone(), index, key, sizes, found_packs);
        let (mut step_entries, mut unsealed, mut unread) = (0, Vec::new(), BTreeMap::new());
        for (pack, disk) in found.into_iter().filter(|(pack, _)| !opened.packs.contains_key(pack)) {
            let (sealed, is_sealed) = match self.recover_pack(pack, disk).await {
                Ok(Some(recovered)) => recovered,
                Ok(None) => continue,
                Err(error) => {
                    self.report.problems.push(format!("{} was left alone: {error}", pack_path(pack)));
                    if matches!(&error, StoreError::Disk(error) if error.kind != DiskErrorKind::Absent) {
                        unread.insert(pack, error);
                    }
                    continue;
                }
            };
            if !is_sealed {
                unsealed.push((sealed, disk));
                continue;
            }
            step_entries += sealed.entries.len();
            take_in(&packs, sealed, disk).await;
            if step_entries >= STEP_ENTRIES {
                self.index_packs(&packs);
                step_entries = 0;
            }
        }
        self.index_packs(&packs);
        for (sealed, disk) in unsealed {
            take_in(&packs, sealed, disk).await;
        }
        packs.note_unread(unread);
        if opened.is_new {
            packs.index.note_made_again(Ok(()));
        }
        Ok(packs)
    }

    /// One line for each disk, whatever lies there.
    fn tell_missing(&mut self, chunks: u64, bytes: units::Bytes) {
        let missing: Vec<_> = self.pool.disks.iter().enumerate().filter(|(_, disk)| disk.is_missing).collect();
        let whose = if missing.len() == 1 { "of it" } else { "of the missing disks together" };
        let packs = self.report.packs_missing;
        let lines = missing.iter().map(|(number, disk)| {
            let (path, health) = (disk.disk.path(), disk.words());
            format!(
                "DEGRADED: disk {number} ({path}) is {health}; the index knows {packs} packs {whose}, with {chunks} chunks ({bytes} of \
                 content) that cannot be read; mount it again and restart the daemon"
            )
        });
        self.report.problems.extend(lines);
    }

    /// What is good in a pack, and whether it is sealed; `None` if there is nothing.
    async fn recover_pack(&mut self, pack: u64, disk: usize) -> Result<Option<(SealedPack, bool)>, StoreError> {
        let on = &self.pool.disks[disk];
        let found = scan::read(on, &self.identity.key, pack).await?;
        let recovered = scan::put_in_order(on, self.pool.node_identity, pack, found).await;
        Ok(match recovered.map_err(|error| self.pool.failed(disk, error, self.counters))? {
            PackRecovered::Sealed(sealed) => {
                self.report.packs_found += 1;
                Some((sealed, true))
            }
            PackRecovered::Cut { sealed, bad_bytes } => {
                self.report.packs_cut += 1;
                self.report.bytes_cut += bad_bytes;
                Some((sealed, true))
            }
            PackRecovered::Unsealed { sealed } => Some((sealed, false)),
            PackRecovered::Removed { bad_bytes } => {
                self.report.packs_removed += 1;
                self.report.bytes_cut += bad_bytes;
                None
            }
        })
    }

    /// Puts packs that were taken in into the index file; where that fails they stay in memory.
    fn index_packs(&mut self, packs: &Packs) {
        let change = Change { added: packs.sealed_waiting(), ..Change::default() };
        match packs.index.commit(&self.pool.disks[0].disk, &change, self.counters) {
            Ok(()) => packs.forget_sealed(&change.added),
            Err(error) => {
                self.report.problems.push(format!("the index does not take packs, they are kept in memory: {error}"));
            }
        }
    }
}

/// Takes in a pack that the index does not cover. Of its chunks those are named there that have no better copy (O-5).
async fn take_in(packs: &Packs, mut sealed: SealedPack, disk: usize) {
    packs.note_known(sealed.pack, disk, sealed.summary);
    let mut entries = Vec::with_capacity(sealed.entries.len());
    for entry in std::mem::take(&mut sealed.entries) {
        let (address, here) = (entry.header.address, Place::of(sealed.pack, &entry));
        let is_better = match packs.index.lookup(&address, &packs.counters) {
            Ok(Some(other)) if other.pack != sealed.pack => is_better(packs, &address, &other, &here).await,
            _ => false,
        };
        if is_better { &mut sealed.others } else { &mut entries }.push(entry);
    }
    sealed.entries = entries;
    packs.note_found(vec![sealed]);
}

/// Whether the chunk at `other` verifies and the one at `here` does not, or nobody knows. Few chunks lie in two places, so few are read.
/// Of two that verify the newcomer's counts: mostly reclaim copied it there, and then the other pack goes, with what the index has of it.
async fn is_better(packs: &Packs, address: &ChunkAddress, other: &Place, here: &Place) -> bool {
    let grade = async |place: &Place| match packs.read(address, place).await {
        Ok(_) => 3,
        // Nobody knows.
        Err(StoreError::Disk(_)) => 2,
        Err(_) => 1,
    };
    let here = grade(here).await;
    here < 3 && grade(other).await > here
}
