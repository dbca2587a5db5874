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
//! O-6   Where no index can tell what is in a pack, and its own directory cannot be read, each chunk that verifies is taken in, of a pack in
//!       fragments as of a whole one.
//! O-7   It takes over no number that the next ones would not read. A file, or a row of the index, that is further beyond those that there
//!       are than any node comes is nobody's, and is left alone; a superblock that is, is refused.
//! O-8   A file of a pack that the index covers, and that was left by a disk before it was durable there, counts where it has the pack's directory, and not
//!       where it is as long as it should be: a sync that failed may have lost what made it so long. Chunks were durable before, on all disks.
//!
//! Not here: packs in fragments that the index does not cover (`fragments`), on which disk the index is opened or made (`index`), which of two
//! copies of a chunk counts (`twice`).

mod fragments;
mod index;
mod twice;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::id::Position;
use base::units;
use bytes::Bytes;
use platform::Platform;
use platform::disk::{Disk, DiskErrorKind, Open};
use platform::task::Tasks;

use crate::counters::Counters;
use crate::disks::DiskSet;
use crate::failure::{StoreError, refused};
use crate::format::{
    COPY_SUFFIX, Cut, DAMAGED_SUFFIX, FragmentHeader, FragmentName, Homes, Identity, NUMBER_OPENED_MAX,
    NUMBERS_AHEAD_MAX, PACK_SUFFIX, PACKS, Summary, Superblock, number_of, pack_path,
};
use crate::identity::{self, Candidate, Member};
use crate::index::{Change, Index, Opened, STEP_ENTRIES, SealedPack};
use crate::journal::{Journal, make_homes, replay, segment_size};
use crate::level::Level;
use crate::options::Options;
use crate::pack::Waits;
use crate::pack::fragments::{Fragments, read_header};
use crate::pack::scan::{self, Ending, Recovered as PackRecovered};
use crate::pack::{FoundPacks, PackKnown, Packs, Sizes};
use crate::pool::Pool;
use crate::remedy::Problem;
use crate::store::{Parts, Store};
use crate::superblock::{self, LEFT_OUT, LEFT_OUT_TIMES};

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
    /// Superblocks, of which a power cut tears the one that is being written, and identities that were written again: as a check would have told of them.
    pub mended: Vec<Problem>,
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
        let opened = superblock::open(&found.candidates).await?;
        let superblock::Opened { is_closed, is_damaged, covered_by_all, other, all_named, .. } = opened;
        let (found_superblock, bad_slots) = (opened.newest, opened.damaged);
        refuse_endless(&found.candidates, &found_superblock)?;
        match other {
            Some(error) if !options.gives_up_frames => return Err(error),
            other => report.problems.extend(other.map(|other| format!("given up: {other}"))),
        }
        let mut superblock = Superblock { is_closed, ..found_superblock.clone() };
        let identity::Whole { members, damaged, strangers } =
            found.whole(&superblock.disks, options.goes_without_disks)?;
        report.problems.extend(strangers.iter().map(|path| {
            format!("{path} is no disk of this node any more, or was never taken in: it was left alone; `hydrafs disk add` takes it in")
        }));
        let are_there = members.iter().filter(|member| member.missing.is_none());
        let there: DiskSet = are_there.clone().map(|member| usize::from(member.identity.disk)).collect();
        let identity = are_there.map(|member| &member.identity).next().expect("one has the superblock").clone();
        if let Err(error) = expect_journal(&members, &superblock, there) {
            if !options.gives_up_frames {
                return Err(error);
            }
            report.problems.push(format!("given up: {error}"));
        }
        let segment_bytes = segment_size(options.segment_bytes);
        let pool = Pool::new(platform.clock.clone(), members, superblock.drained, options.reserve_bytes)?;
        let pool = Arc::new(pool);
        let is_spare = |bytes| bytes == segment_bytes;
        let suffix =
            replay::Suffix { superblock: &superblock, covered_by_all, gives_up_frames: options.gives_up_frames };
        let mut replayed = replay::replay(&pool, suffix, &is_spare).await?;
        let copies = usize::from(options.level().copies().max(superblock.floor));
        let chosen = pool.choose_homes(superblock.homes.disks, copies);
        // One that was made on another disk while this one was out is newer than what lies here.
        let is_index_there = there.has(usize::from(superblock.index));
        if !is_index_there {
            let home = chosen.first().expect("a disk is there");
            superblock.index = u16::try_from(home).expect("below DISKS_MAX");
        }
        pool.set_index_disk(usize::from(superblock.index));
        superblock.without = pool.without();

        let mut recovery = Recovery {
            tasks: &platform.tasks,
            pool: &pool,
            identity: &identity,
            counters: &counters,
            report: &mut report,
            floor: superblock.floor,
            unfinished: Vec::new(),
            unread: BTreeMap::new(),
        };
        let pack_max = superblock.pack_next + NUMBERS_AHEAD_MAX;
        let (found, number_max) = recovery.list_packs(pack_max)?;
        let opened = recovery.open_index(&options, &found, (is_index_there, pack_max)).await?;
        superblock.index = u16::try_from(pool.index_disk()).expect("below DISKS_MAX");
        // One of them may have failed meanwhile.
        if !pool.homes().iter().all(|disk| pool.disks[disk].is_good()) {
            pool.choose_homes(pool.homes(), copies);
        }
        let indexed_max = opened.packs.keys().next_back().copied().unwrap_or(0);
        let mut next = superblock.pack_next.max(number_max.max(indexed_max) + 1);
        // Nothing is refused from here on.
        recovery.mend_identities(damaged).await;
        let mut untried = pool.good();
        let homes = loop {
            let homes = pool.homes();
            make_homes(&pool, homes, &counters);
            let error = match replay::make_durable(&pool, &mut replayed, &counters).await {
                Ok(have_all) => break have_all,
                Err(error) => error,
            };
            // Where none of them takes it another one may.
            untried = homes.iter().fold(untried, DiskSet::without).both(pool.good());
            let (first, takers) = (untried.first(), untried.both(pool.takers()).first());
            let Some(other) = takers.or(first) else { return Err(error) };
            if pool.choose_homes(DiskSet::of(other), 1) != DiskSet::of(other) {
                return Err(error);
            }
        };
        superblock.homes = Homes::each_of(homes);
        let gives_up = replayed.lost.is_some();
        // the superblock's claim is lowered when nothing is left that says more.
        if gives_up {
            replay::erase_behind(&pool, &replayed, &counters).await?;
        }
        // S-1: a tear in the first write harms nothing, for nothing changes; the second one goes to the other slot.
        superblock::write(&pool, &found_superblock, &counters).await?;
        superblock.is_closed = false;
        if gives_up || replayed.has_behind() {
            superblock.durable = replayed.resume.last;
        }
        if pool.missing().is_some() {
            // S-4 and K-5: before a pack is made.
            let left_out = left_out(platform);
            next += left_out;
            superblock.generation += left_out;
            superblock.pack_next = next;
            // J-10: nor does it have one of these numbers, also where it has the journal: they rise with generations or behind them.
            let before = replayed.resume.next_segment.max(found_superblock.generation);
            replayed.resume.next_segment = before + left_out;
        }
        // S-6: those that failed since are among those that it does not go to, and those that fail with it are told by one more.
        superblock.without = pool.without();
        if superblock != found_superblock {
            superblock.generation += 1;
            superblock::write(&pool, &superblock, &counters).await?;
        }
        // its claim was raised to what the erased frames may have been alone to know.
        if !gives_up {
            replay::erase_behind(&pool, &replayed, &counters).await?;
        }
        while superblock.without != pool.without() {
            superblock.without = pool.without();
            superblock.generation += 1;
            superblock::write(&pool, &superblock, &counters).await?;
        }
        if pool.missing().is_some()
            && let Some(failed) = chosen.iter().find(|disk| !pool.disks[*disk].is_good())
        {
            // One of them is there at each opening, to say what was left out.
            return Err(StoreError::ReadOnly { cause: pool.disks[failed].words().into() });
        }
        let packs = recovery.recover_packs(opened, found, (next, superblock.floor), &options).await?;

        report.frames = replayed.frames.len() as u64;
        report.frames_cut = replayed.cut_frames;
        let other_slot_lies = replayed.lost.is_some();
        report.problems.extend(replayed.strangers.iter().map(|path| {
            format!("{path} was left alone: no segment comes near such a number, nobody here wrote it; remove it when you have looked at it")
        }));
        report.problems.extend(replayed.lost.map(|lost| format!("given up: {lost}")));
        let tasks = platform.tasks.clone();
        let journal =
            Journal::new(tasks, pool.clone(), counters.clone(), (&options, superblock.floor), replayed.resume);
        let journal = Arc::new(journal);
        let now = [&superblock, &found_superblock].map(|superblock| (superblock.covered, superblock.homes));
        journal.begin_named(now.into_iter().chain(all_named).collect());
        // A disk that failed was noted, and the first group tries again.
        let _ = journal.prepare().await;
        if pool.missing().is_some() {
            match journal.begin_now().await {
                Err(error @ StoreError::Full { .. }) => {
                    let what = "what the missing disk has of the journal may follow on what is there";
                    report.problems.push(format!("{what}: {error}"));
                }
                begun => begun?,
            }
        }
        let mut recovered =
            Recovered { roots: superblock.roots.clone(), covered: superblock.covered, frames: replayed.frames, report };
        let parts = Parts { platform: platform.clone(), identity, options, pool, counters, packs, journal, superblock };
        let store = Store::assemble(parts);
        let mut is_renewed = true;
        if (is_damaged || other_slot_lies)
            && let Err(error) = store.renew_root().await
        {
            is_renewed = false;
            recovered.report.problems.push(format!("a damaged superblock could not be written again: {error}"));
        }
        for (uuid, slot) in bad_slots {
            match is_renewed && store.pool.disks.iter().any(|(_, disk)| disk.uuid == uuid && disk.is_good()) {
                true => recovered.report.mended.push(slot),
                false => recovered.report.problems.push(slot.to_string()),
            }
        }
        let store = Arc::new(store);
        let named_by = Arc::downgrade(&store);
        store.journal.name_by(Box::new(move || {
            let store = named_by.upgrade();
            Box::pin(async move {
                let closed = || StoreError::ReadOnly { cause: "the store was closed".into() };
                store.ok_or_else(closed)?.renew_root().await
            })
        }));
        store.begin_filter();
        Ok((store, recovered))
    }
}

struct Recovery<'a> {
    tasks: &'a Arc<dyn Tasks>,
    pool: &'a Arc<Pool>,
    identity: &'a Identity,
    counters: &'a Arc<Counters>,
    report: &'a mut RecoveryReport,
    /// The most copies that any file asks for.
    floor: u8,
    /// Copies and fragments of packs that were being written: disk and name.
    unfinished: Vec<(usize, String)>,
    /// Packs that some disk did not give in full, and why.
    unread: BTreeMap<u64, StoreError>,
}

/// Files of a pack, as their names say.
#[derive(Default)]
struct Listed {
    whole: DiskSet,
    /// Fragments with their disks.
    fragments: Vec<(FragmentName, usize)>,
}

impl Listed {
    /// Of fragments of different codes those that make a pack, and of these, or where none do, the most; what is left of another is in nobody's way.
    fn fragments(&self, whole_bytes: u64) -> Option<Fragments> {
        let mut by_code = BTreeMap::new();
        for (name, disk) in &self.fragments {
            let cut = Cut { erasure: name.erasure, whole_bytes };
            let fragments = by_code.remove(&name.erasure).unwrap_or_else(|| Fragments::new(cut));
            by_code.insert(name.erasure, fragments.with(usize::from(name.index), *disk));
        }
        by_code.into_values().max_by_key(|fragments| {
            let disks = fragments.disks();
            (fragments.is_readable_on(disks), disks.count())
        })
    }
}

/// Where a pack is, and the disks that have less of it than they should. `Err`: the same of what there is, where that is not all of it.
type Known = Result<(PackKnown, DiskSet), (PackKnown, DiskSet)>;

/// A pack that an opening has read.
struct Read {
    sealed: SealedPack,
    known: PackKnown,
    /// It has no directory.
    unsealed: Option<Left>,
}

/// Why a pack was left as it is.
struct Left {
    waits: Waits,
    /// Why it could not be read on some disk.
    failure: Option<StoreError>,
}

impl Recovery<'_> {
    /// Writes identities again that are damaged, or have no copy.
    async fn mend_identities(&mut self, damaged: Vec<(usize, identity::Damage)>) {
        for (number, what) in damaged {
            let on = &self.pool.disks[number];
            match identity::write_again(&on.disk, &on.identity).await {
                Ok(()) => self.report.mended.extend(what),
                Err(error) => {
                    let failure = self.pool.failed(number, error, self.counters);
                    self.report.problems.extend(what.map(|what| what.to_string()));
                    self.report
                        .problems
                        .push(format!("the identity of disk {number} could not be written again: {failure}"));
                }
            }
        }
    }

    /// Pack numbers with the disks that have a file of that name, and the highest number in use. None is above `pack_max`.
    fn list_packs(&mut self, pack_max: u64) -> Result<(BTreeMap<u64, Listed>, u64), StoreError> {
        let (mut found, mut max) = (BTreeMap::<u64, Listed>::new(), 0);
        for (disk, on) in self.pool.there() {
            let (mut strangers, mut first) = (0, None);
            for name in on.disk.list(PACKS)? {
                if pack_in(&name).is_some_and(|pack| pack > pack_max) {
                    strangers += 1;
                    first.get_or_insert(name);
                    continue;
                }
                max = max.max(number_of(&name, DAMAGED_SUFFIX).unwrap_or(0));
                max = max.max(FragmentName::of_damaged(&name).map_or(0, |name| name.pack));
                if number_of(&name, COPY_SUFFIX).is_some() || FragmentName::of_unfinished(&name).is_some() {
                    self.unfinished.push((disk, name));
                } else if let Some(pack) = number_of(&name, PACK_SUFFIX) {
                    max = max.max(pack);
                    let listed = found.entry(pack).or_default();
                    listed.whole = listed.whole.with(disk);
                } else if let Some(name) = FragmentName::of(&name) {
                    max = max.max(name.pack);
                    found.entry(name.pack).or_default().fragments.push((name, disk));
                }
            }
            self.report.problems.extend(first.map(|first| {
                format!(
                    "{}/{PACKS}/{first} was left alone, and {} more: no pack comes near such a number, nobody here wrote it; remove it when \
                     you have looked at it",
                    on.disk.path(),
                    strangers - 1
                )
            }));
        }
        Ok((found, max))
    }

    /// Reads every pack that the index does not cover, and brings it into order.
    async fn recover_packs(
        &mut self,
        opened: Opened,
        found: BTreeMap<u64, Listed>,
        (next, floor): (u64, u8),
        options: &Options,
    ) -> Result<Packs, StoreError> {
        for (disk, name) in &self.unfinished {
            // They take room for nothing; what is left of one is written over by the next.
            let _ = self.pool.disks[*disk].disk.remove(&format!("{PACKS}/{name}"));
        }
        let (mut known, mut chunks, mut bytes) = (BTreeMap::new(), 0, 0);
        let mut suspects = BTreeSet::new();
        for (pack, summary) in &opened.packs {
            let rest = match found.get(pack) {
                Some(listed) => Some(self.known(*pack, listed, summary).await?),
                None => None,
            };
            match (rest, self.pool.missing()) {
                (Some(Ok((is, bad))), _) => {
                    self.report.packs_covered += 1;
                    suspects.extend(bad.iter().map(|disk| (*pack, disk)));
                    known.insert(*pack, is);
                }
                // K-6.
                (rest, Some(disk)) => {
                    self.report.packs_missing += 1;
                    chunks += u64::from(summary.count);
                    bytes += summary.raw_bytes;
                    let (rest, bad) = rest.and_then(Result::err).unzip();
                    suspects.extend(bad.unwrap_or(DiskSet::NONE).iter().map(|disk| (*pack, disk)));
                    known.insert(*pack, PackKnown::missing(disk, rest, *summary));
                }
                (_, None) => self.report.problems.push(format!(
                    "{} is in the index and on no disk: its {} chunks cannot be read; restore the file, or the chunks from \
                     a backup",
                    pack_path(*pack),
                    summary.count
                )),
            }
        }
        self.tell_missing(chunks, units::Bytes(bytes));
        let (index, key) = (Index::new(opened.file), self.identity.key.clone());
        let Options { pack_bytes, pack_chunks_max, run_bytes, cache_bytes, .. } = *options;
        let (level, compression) = (options.level(), options.compression);
        let sizes = Sizes { pack_bytes, pack_chunks_max, run_bytes, cache_bytes, level, compression, floor };
        let found_packs = FoundPacks { known, next, checked: opened.checked };
        let packs = Packs::new((self.tasks, self.pool.clone()), self.counters.clone(), index, key, sizes, found_packs);
        let (mut step_entries, mut unsealed, mut are_all) = (0, Vec::new(), self.pool.missing().is_none());
        *packs.suspects.lock() = suspects;
        let is_covered = |pack: &u64| opened.packs.get(pack).is_some_and(|summary| !summary.lacks_directory);
        for (pack, mut listed) in found.into_iter().filter(|(pack, _)| !is_covered(pack)) {
            // the index was made when this could not be read, or in the middle of its making.
            let file = packs.index.file();
            let is_indexed = opened.packs.contains_key(&pack);
            let is_news = file.lacks_packs() && !file.is_gone(pack) || is_indexed;
            let read = match (listed.whole.is_empty(), listed.fragments.is_empty()) {
                (false, true) => self.recover_pack(pack, listed.whole).await,
                (false, false) => self.recover_cut(pack, &mut listed, (is_news, is_indexed)).await,
                (true, _) => self.recover_fragments(pack, &listed, is_news).await,
            };
            let Read { sealed, known, unsealed: is_left } = match read {
                Ok(Some(recovered)) => recovered,
                Ok(None) => {
                    // One that the index has was noted.
                    packs.drop_pack(pack);
                    continue;
                }
                Err(error) => {
                    self.report.problems.push(format!("{} was left alone: {error}", pack_path(pack)));
                    if matches!(&error, StoreError::Disk(error) if error.kind != DiskErrorKind::Absent) {
                        self.unread.insert(pack, error);
                    }
                    are_all = false;
                    continue;
                }
            };
            if let Some(Left { waits, failure }) = is_left {
                if let Some(error) = failure {
                    self.report.problems.push(format!("{} stays as it is: {error}", pack_path(pack)));
                    self.unread.insert(pack, error);
                }
                unsealed.push((sealed, known, waits));
                continue;
            }
            let disks = known.disks();
            let bad = listed.whole.iter().filter(|disk| !disks.has(*disk));
            packs.suspects.lock().extend(bad.map(|disk| (pack, disk)));
            let known = match self.known(pack, &Listed { whole: disks, ..listed }, &known.summary).await? {
                Ok((known, bad)) => {
                    packs.suspects.lock().extend(bad.iter().map(|disk| (pack, disk)));
                    known
                }
                Err((part, _)) => {
                    let mut known = known;
                    known.is_part = part.is_part;
                    known
                }
            };
            step_entries += sealed.entries.len();
            twice::take_in(&packs, sealed, known).await;
            if step_entries >= STEP_ENTRIES {
                self.index_packs(&packs);
                step_entries = 0;
            }
        }
        self.index_packs(&packs);
        for (mut sealed, known, waits) in unsealed {
            let disks = known.disks();
            packs.note_sealed_at(sealed.pack, known);
            twice::sort_out(&packs, &mut sealed, waits != Waits::Room).await;
            packs.note_unsealed(sealed, disks, waits);
        }
        packs.note_unread(std::mem::take(&mut self.unread));
        let file = packs.index.file();
        if file.lacks_packs() && are_all && packs.sealed_waiting().is_empty() {
            // Where that fails the next opening looks as closely as this one.
            let _ = file.note_complete(&self.pool.for_index().disk);
        }
        if opened.is_new {
            packs.index.note_made_again(Ok(()));
        }
        Ok(packs)
    }

    /// One line for each disk, whatever lies there.
    fn tell_missing(&mut self, chunks: u64, bytes: units::Bytes) {
        let missing: Vec<_> = self.pool.disks.iter().filter(|(_, disk)| disk.is_missing).collect();
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

    /// Where a sealed pack is, and the disks that have less of it than they should: one that failed, and is back, may. `Err`: the same of what
    /// there is, where that is not all of it, which may be on a disk that is missing (K-6).
    async fn known(&mut self, pack: u64, listed: &Listed, summary: &Summary) -> Result<Known, StoreError> {
        let fragments = listed.fragments(summary.file_bytes());
        // One that should lie on one disk, and does, is not looked at.
        let is_alone = listed.whole.count() < 2
            && fragments.is_none()
            && summary.level.copies() < 2
            && self.pool.missing().is_none();
        let full = if is_alone { listed.whole } else { self.full_on(pack, listed.whole, summary).await? };
        // Where it is short everywhere, what is there of it counts.
        let whole = if full.is_empty() { listed.whole } else { full };
        let short = match &fragments {
            Some(fragments) => self.short_fragments(pack, fragments).await?,
            None => DiskSet::NONE,
        };
        let sound: DiskSet = self.pool.there().map(|(disk, _)| disk).filter(|disk| !short.has(*disk)).collect();
        let is_readable = |fragments: &Fragments| fragments.is_readable_on(sound);
        let is_whole = !full.is_empty() || fragments.as_ref().is_some_and(is_readable);
        let is_elsewhere = !is_whole && self.pool.missing().is_some();
        if let (false, false, true, Some(fragments)) = (is_elsewhere, is_whole, whole.is_empty(), &fragments) {
            let (k, there) = (fragments.cut.erasure.data(), fragments.disks().count() - short.count());
            self.report.problems.push(format!(
                "{} is in {} fragments, and {there} of the {k} that are needed are there: what lies in the others cannot be read; \
                 `hydrafs fsck --repair` saves what can be",
                pack_path(pack),
                fragments.cut.erasure
            ));
        }
        // One that is short beside what makes the pack is what a disk had of it once: nothing relies on it, and the mender takes it away.
        let has_more = is_whole || fragments.is_some();
        let bad = listed.whole.iter().filter(|disk| has_more && !full.has(*disk)).chain(short.iter()).collect();
        let mut known = PackKnown::sealed(whole, fragments.map(Arc::new), *summary);
        known.is_part = !is_whole;
        if !full.is_empty() {
            known = known.beside(listed.whole.iter().filter(|disk| !full.has(*disk)).collect());
        }
        Ok(if is_elsewhere { Err((known, bad)) } else { Ok((known, bad)) })
    }

    async fn short_fragments(&self, pack: u64, fragments: &Fragments) -> Result<DiskSet, StoreError> {
        let mut short = DiskSet::NONE;
        for (index, disk) in fragments.each() {
            let name = fragments.name(pack, index).path();
            if !self.is_so_long(disk, &name, fragments.cut.file_bytes()).await? {
                short = short.with(disk);
            }
        }
        Ok(short)
    }

    /// Whether a file has so many bytes. An error: nobody knows, for the disk does not answer.
    async fn is_so_long(&self, disk: usize, path: &str, bytes: u64) -> Result<bool, StoreError> {
        match self.pool.disks[disk].disk.length_of(path).await {
            Err(error) if error.kind == DiskErrorKind::Silent => Err(error.into()),
            length => Ok(length.is_ok_and(|length| length == bytes)),
        }
    }

    /// O-8. Where the disk does not answer nobody knows, and relies on nothing.
    async fn has_directory(&self, disk: usize, pack: u64, summary: &Summary) -> bool {
        scan::has_directory(&self.pool.disks[disk], pack, summary).await.unwrap_or(false)
    }

    async fn fragment_header(&self, name: &FragmentName, disk: usize) -> Result<FragmentHeader, StoreError> {
        let file = self.pool.disks[disk].disk.open(&name.path(), Open::Read)?;
        read_header(&file, name).await
    }

    /// Of the disks that a sealed pack is on those where its file is as long as it should be: one that failed, and is back, may have less. And where
    /// it has its directory, if it may lack that (O-8).
    async fn full_on(&self, pack: u64, disks: DiskSet, summary: &Summary) -> Result<DiskSet, StoreError> {
        let mut full = DiskSet::NONE;
        for disk in disks.iter() {
            let is_full = self.is_so_long(disk, &pack_path(pack), summary.file_bytes()).await?
                && (!summary.was_left || self.has_directory(disk, pack, summary).await);
            if is_full {
                full = full.with(disk);
            }
        }
        Ok(full)
    }

    /// What is good in a pack, and where; `None` if there is nothing.
    async fn recover_pack(&mut self, pack: u64, disks: DiskSet) -> Result<Option<Read>, StoreError> {
        let (mut found, mut failure) = (Vec::new(), None);
        for disk in disks.iter() {
            match scan::read(&self.pool.disks[disk], &self.identity.key, pack).await {
                Ok(mut read) => {
                    // Mostly they are the same, and then one of them is enough.
                    if let (Some((_, scan::Found::Open { bytes: known, .. })), scan::Found::Open { bytes, .. }) =
                        (found.last(), &mut read)
                        && bytes == known
                    {
                        *bytes = known.clone();
                    }
                    found.push((disk, read));
                }
                Err(error) => failure = Some(error),
            }
        }
        // K-15.
        let level = found
            .iter()
            .filter_map(|(_, found)| found.level(pack))
            .max_by_key(|level| (level.is_chosen(), level.copies()))
            .unwrap_or(Level::lost(self.floor));
        let of_sealed = found.iter_mut().filter_map(|(_, found)| match found {
            scan::Found::Sealed(sealed, _) => Some(&mut sealed.summary.level),
            scan::Found::Open { .. } => None,
        });
        of_sealed.for_each(|of_sealed| *of_sealed = level);
        let (mut sealed, mut unsealed, mut removed) = (None, None, None);
        let key = &self.identity.key;
        // N-4.
        let is_sealed = found.iter().any(|(_, found)| matches!(found, scan::Found::Sealed(..)));
        let levels = found.iter().filter_map(|(_, found)| found.level_of_open(pack));
        let is_of_several = levels.map(Level::copies).max().is_none_or(|copies| copies > 1);
        let waits = match is_sealed || !is_of_several {
            false if failure.is_some() => Waits::Opening,
            false if !self.pool.without().is_empty() => Waits::Disks,
            _ => Waits::Room,
        };
        let ending = if waits == Waits::Room { Ending::Directory } else { Ending::None };
        for (disk, found) in scan::agree(self.pool, key, pack, found).await? {
            let on = &self.pool.disks[disk];
            let put = scan::put_in_order(on, self.pool.node_identity, (pack, level), found, ending).await;
            let (kind, pack) = match put {
                Err(error) => {
                    failure = Some(self.pool.failed(disk, error, self.counters));
                    continue;
                }
                Ok(PackRecovered::Removed { bad_bytes }) => {
                    removed.get_or_insert(bad_bytes);
                    continue;
                }
                Ok(PackRecovered::Sealed(pack)) => (&mut sealed, (pack, None)),
                Ok(PackRecovered::Cut { sealed: pack, bad_bytes }) => (&mut sealed, (pack, Some(bad_bytes))),
                Ok(PackRecovered::Unsealed { sealed: pack }) => (&mut unsealed, (pack, None)),
            };
            let (_, disks) = kind.get_or_insert((pack, DiskSet::NONE));
            *disks = disks.with(disk);
        }
        let (has_failed, of_all) = (failure.is_some(), disks);
        let read = |mut sealed: SealedPack, disks: DiskSet, unsealed| {
            // O-8.
            sealed.summary.was_left = has_failed || disks != of_all;
            let known = PackKnown::sealed(disks, None, sealed.summary);
            Ok(Some(Read { sealed, known, unsealed }))
        };
        match (sealed, unsealed, removed, failure) {
            (Some(((pack, None), disks)), ..) => {
                self.report.packs_found += 1;
                read(pack, disks, None)
            }
            (Some(((pack, Some(bad_bytes)), disks)), ..) => {
                self.report.packs_cut += 1;
                self.report.bytes_cut += bad_bytes;
                read(pack, disks, None)
            }
            (None, Some(((pack, _), disks)), _, failure) => read(pack, disks, Some(Left { waits, failure })),
            // Where another disk did not answer nobody knows.
            (None, None, _, Some(error)) => Err(error),
            (None, None, Some(bad_bytes), None) => {
                self.report.packs_removed += 1;
                self.report.bytes_cut += bad_bytes;
                Ok(None)
            }
            (None, None, None, None) => Ok(None),
        }
    }

    /// Puts packs that were taken in into the index file; where that fails they stay in memory.
    fn index_packs(&mut self, packs: &Packs) {
        let change = Change { added: packs.sealed_waiting(), ..Change::default() };
        match packs.index.commit(&self.pool.for_index().disk, &change, self.counters) {
            Ok(()) => packs.forget_sealed(&change.added),
            Err(error) => {
                if let StoreError::Corrupt { .. } = error {
                    let number = self.pool.index_disk();
                    packs.index.doubt(number, &self.pool.disks[number].disk, &packs.index.file());
                }
                self.report.problems.push(format!("the index does not take packs, they are kept in memory: {error}"));
            }
        }
    }
}

/// The number of a pack that a name has, whatever the file is.
fn pack_in(name: &str) -> Option<u64> {
    let whole = [PACK_SUFFIX, DAMAGED_SUFFIX].into_iter().find_map(|suffix| number_of(name, suffix));
    whole.or_else(|| Some(FragmentName::of(name).or_else(|| FragmentName::of_damaged(name))?.pack))
}

/// S-4: how many numbers this opening leaves out.
fn left_out(platform: &Platform) -> u64 {
    let mut bytes = [0; 8];
    platform.chance.fill(&mut bytes);
    LEFT_OUT * (1 + u64::from_le_bytes(bytes) % LEFT_OUT_TIMES)
}

/// Numbers that nothing real comes near: this life would write some that the next ones do not read.
fn refuse_endless(candidates: &[Candidate], superblock: &Superblock) -> Result<(), StoreError> {
    let Superblock { generation, covered, durable, pack_next, .. } = superblock;
    let numbers =
        [("generation", generation), ("covered", &covered.0), ("durable", &durable.0), ("next pack", pack_next)];
    let Some((what, number)) = numbers.into_iter().find(|(_, number)| **number > NUMBER_OPENED_MAX) else {
        return Ok(());
    };
    let path = candidates.first().map_or("the node", |candidate| candidate.disk.path());
    let why = format!(
        "no node comes near what its superblock says: expected {what} at most {NUMBER_OPENED_MAX}, found {number}."
    );
    Err(refused(path, why, "HydraFS did not write this: restore the disks from a copy."))
}

/// D-4: fails where the journal is on no disk that is there.
fn expect_journal(members: &[Member], superblock: &Superblock, there: DiskSet) -> Result<(), StoreError> {
    if superblock.homes.are_among(there) {
        return Ok(());
    }
    let homes = members.iter().filter(|member| superblock.homes.disks.has(usize::from(member.identity.disk)));
    let homes: Vec<String> = homes
        .map(|Member { disk, identity, missing, .. }| {
            format!("disk {} ({}: {})", identity.disk, disk.path(), missing.as_deref().unwrap_or("there"))
        })
        .collect();
    let homes = homes.join(" and ");
    let why = match superblock.homes.are_all_needed {
        false => format!("the journal is on {homes}, which is missing, and what was written last may be there alone."),
        true => format!(
            "the journal was moved, and is on {homes} together: what was written last may be on the missing one alone."
        ),
    };
    let path = members.iter().find(|member| member.missing.is_none()).map_or("the node", |member| member.disk.path());
    Err(StoreError::JournalMissing { path: path.into(), why: why.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::Erasure;

    /// What is left of another code wins no tie: 2+3 makes the pack of two, 4+2 does not.
    #[test]
    fn of_two_codes_the_one_that_makes_the_pack_counts() {
        let (old, new) = (Erasure::new(4, 2).unwrap(), Erasure::new(2, 3).unwrap());
        let named = |erasure, index| FragmentName::new(1, erasure, index);
        let mut listed = Listed::default();
        listed.fragments.extend([(named(new, 0), 0), (named(old, 0), 1), (named(old, 1), 2), (named(new, 3), 3)]);
        assert_eq!(listed.fragments(1 << 20).unwrap().cut.erasure, new);
        // Where neither makes it there is most of that of which there is more.
        listed.fragments.remove(0);
        assert_eq!(listed.fragments(1 << 20).unwrap().cut.erasure, old);
    }
}
