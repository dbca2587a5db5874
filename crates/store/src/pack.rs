//! Packs: chunks appended in arrival order, then sealed by a directory and a footer.
//!
//! The directory comes last so that a pack is written in one pass. Every disk has one open pack per class (a *lane*), and a pack may lie on
//! several disks, the same bytes at the same places; lanes are filled by turns ([`lanes`]), so that what arrives together lies together and all disks work.
//!
//! K-1   A sealed pack never changes.
//! K-2   The footer is written after the chunks were synced, and a pack counts as sealed after the footer was synced too. So
//!       a valid footer vouches for the chunks before it.
//! K-3   `settled` counts only chunks that are durable: those of open packs were written and synced, those of a lane whose
//!       disk failed or filled were moved to another disk first ([`Packs::settle`]), or settle fails, again and again; but for K-12.
//! K-4   A chunk is named in the index (`recent`) only after its bytes are readable, in a buffer or in the file.
//! K-5   Pack numbers rise and are used once, over all disks. On a missing disk may lie packs that no superblock knows of: so an opening
//!       without a disk leaves out as many numbers as generations (S-4), and its first superblock says so before a pack is made, for
//!       the next time another disk may be missing.
//! K-6   A pack of the index that is on no disk, while one is missing, stays in the catalog and in the index. Nobody counts on it: what
//!       is put is stored anew although it lies there, so that it can be read; what is asked for there, or nowhere else, is unknown and
//!       not lost; reclaim and repair leave it alone. So does one of which there is less than all: what verifies in that is read, and when
//!       the node does without the disk for good it is the pack.
//! K-7   A pack is on several disks as long as so many take writes. What counts as durable is so on every disk that the pack counts as being
//!       on; one that fails is left before the pack goes on, and the pack is sealed soon, so that what follows lies on enough disks.
//! K-9   What lies there is a duplicate of what is put if it is to lie on as many disks as that asks for, and does, as far as so many take
//!       writes; and nothing of a pack of which there is less than all is one. Else it is stored anew, on more; the index names the newer, and
//!       the other one goes with the next pass of reclaim. Copies that nobody asked for (K-14) do not count here.
//!
//! K-11  A chunk of an open pack is whole in memory, or whole in the file. While content streams the file ends with a page, and the chunk that this
//!       divides stays in memory until the rest of it is written. What is made durable is filled up to a page with zeroes, and what comes next
//!       begins there: no page is written twice while a pack is filled. The first chunk of a pack is written whole, or not.
//!
//! K-12  What was accepted and cannot be made durable on any disk, for it can be read back from none, is named no more before anybody hears of it
//!       ([`StoreError::Dropped`]): each settle that goes back to a moment before it. So who took a moment, then put chunks or found them here,
//!       and then settled since that moment, may rely on all of them. What lies elsewhere is named there again.
//!
//! K-13  While a run of an open pack is being written the next one fills. One is under way at a time, nothing else is done to the file before it has
//!       ended, and who has the lane next hears what came of it: who settles, seals, closes the store or takes the writer out waits for it first.
//!
//! K-14  Trees lie on two disks at least where the node has two. A copy that nobody asked for is one that nobody waits for, and it leaves half of
//!       a reserve: where one disk alone takes it they lie there, are told of, and are brought to another one when there is one (decision 0011).
//! K-15  Of a pack none of whose headers can be read nobody knows what was asked for it: it lies on as many disks as any file asks for. A header that is
//!       on a disk that is missing may have said more than the settings do, and an index that was made without it is believed from then on.
//!
//! Not here: what is known of each (`known`), what counts as a duplicate (`duplicates`), how packs are filled (`lanes`), what is compressed how
//! (`chunk`), what a crash left (`scan`), whether a pack is still needed (`reclaim`).

mod buffers;
mod duplicates;
pub(crate) mod fragments;
mod known;
mod lanes;
mod neighbours;
mod open;
mod read;
mod rotten;
pub(crate) mod scan;
mod settle;
mod tries;
mod unsealed;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use base::hash::DomainKey;
use base::limits::CHUNK_BYTES_MAX;
use parking_lot::{Mutex, RwLock};
use platform::disk::{DiskError, File};
use platform::task::Tasks;

use crate::ages::{Ages, Checked};
use crate::chunk::Compression;
use crate::counters::Counters;
use crate::disks::{DISKS_MAX, DiskSet};
use crate::failure::StoreError;
use crate::format::{ChunkHeader, Entry, FragmentName, PACK_SUFFIX, PACKS, PackHeader, Place, Summary, number_of};
use crate::group::Group;
use crate::index::{AddressHash, AddressSet, Index, SealedPack};
use crate::level::Level;
use crate::options::RUN_BYTES;
use crate::pool::{Part, Pool};

pub(crate) use known::{PackKnown, PackState};
use lanes::{LANES, Lane};
use open::Writer;
pub(crate) use open::{Member, OpenPack, Waits};
pub(crate) use read::{Copied, Memo};
use settle::Losses;
pub use settle::Moment;

/// Sealed packs that wait for the index file at most, beside what their chunks say ([`Packs::is_much_waiting`]).
const SEALED_WAITING_MAX: usize = 16;
/// Open files of sealed packs that are kept for reading, on all disks together, and on one. The process may have 20,000 (measured).
const FILES_KEPT: usize = 256;
const FILES_KEPT_MIN: usize = 32;
/// Tells an open fragment from an open pack of the same number.
const OF_FRAGMENT: u64 = 1 << 63;

/// Smallest pack that still holds the largest chunk.
pub(crate) const PACK_BYTES_MIN: u64 = (PackHeader::BYTES + ChunkHeader::BYTES + CHUNK_BYTES_MAX + Entry::BYTES) as u64;
/// Offsets within a pack have 32 bits; the directory must fit behind them.
pub(crate) const PACK_BYTES_MAX: u64 = 2 << 30;

type Files = quick_cache::sync::Cache<u64, File, quick_cache::UnitWeighter, AddressHash>;

/// Packs by the names of files.
#[derive(Default)]
pub(crate) struct PackNames {
    pub(crate) whole: BTreeSet<u64>,
    pub(crate) in_fragments: BTreeSet<u64>,
}

impl PackNames {
    pub(crate) fn has(&self, pack: u64) -> bool {
        self.whole.contains(&pack) || self.in_fragments.contains(&pack)
    }
}

/// What the options say about packs.
pub(crate) struct Sizes {
    pub(crate) pack_bytes: u64,
    pub(crate) pack_chunks_max: usize,
    pub(crate) run_bytes: usize,
    pub(crate) cache_bytes: u64,
    /// What the settings say.
    pub(crate) level: Level,
    /// And of new chunks.
    pub(crate) compression: Compression,
    /// As the superblock says.
    pub(crate) floor: u8,
}

/// What is known of packs when a store is opened.
pub(crate) struct FoundPacks {
    pub(crate) known: BTreeMap<u64, PackKnown>,
    /// The number that the next one will have.
    pub(crate) next: u64,
    /// When they were checked.
    pub(crate) checked: Checked,
}

/// All packs of the node.
pub(crate) struct Packs {
    pub(crate) pool: Arc<Pool>,
    tasks: Arc<dyn Tasks>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) index: Index,
    pub(crate) key: DomainKey,
    compression: Compression,
    pack_bytes: u64,
    pack_chunks_max: usize,
    run_bytes: usize,
    /// What the settings say.
    of_node: Level,
    /// What trees have at least.
    floor: AtomicU8,
    catalog: RwLock<BTreeMap<u64, PackKnown>>,
    /// By number of a disk, also of those that may come, then by class and level.
    lanes: Vec<[tokio::sync::Mutex<Lane>; LANES]>,
    /// Taken out of their lanes with chunks that are accepted and not durable.
    stranded: tokio::sync::Mutex<Vec<Writer>>,
    /// Taken out of their lanes with chunks that are durable, and without a directory, for which there was no room.
    unsealed: Mutex<VecDeque<Writer>>,
    turns: [AtomicUsize; LANES],
    next: AtomicU64,
    /// Sealed, and not in the index file yet.
    sealed: Mutex<Vec<SealedPack>>,
    /// Chunks appended, and how many of them are known durable.
    appended: AtomicU64,
    settled: AtomicU64,
    settling: Group,
    /// K-12.
    losses: Mutex<Losses>,
    /// By disk, then by pack.
    files: Vec<OnceLock<Files>>,
    neighbours: neighbours::Neighbours,
    /// For runs.
    buffers: Arc<buffers::Buffers>,
    pub(crate) ages: Ages,
    /// Packs whose files are being made: the catalog has them when their names are durable.
    pub(crate) making: Mutex<BTreeSet<u64>>,
    /// Packs that reclaim or a repair is about to delete: what lies there is no duplicate to rely on.
    pub(crate) condemned: RwLock<BTreeSet<u64>>,
    /// Packs that could not be read when the store was opened, and why: nobody knows what lies there.
    unread: Mutex<BTreeMap<u64, StoreError>>,
    /// those that the index file was made without.
    left_out: Mutex<BTreeSet<u64>>,
    /// Packs of which all is elsewhere, with files on disks that failed (`drop_left`).
    emptied: Mutex<BTreeSet<u64>>,
    /// Packs on several disks that turned out to be damaged on one of them.
    pub(crate) suspects: Mutex<BTreeSet<(u64, usize)>>,
    /// Packs that cannot be copied, for a chunk of them is good nowhere; and whether reclaim has tried since to do without them (L-6).
    rotten: Mutex<BTreeMap<u64, bool>>,
    /// Chunks whose stored copy turned out to be damaged: putting such content again stores it anew.
    doubted: Mutex<AddressSet>,
}

impl Packs {
    pub(crate) fn new(
        (tasks, pool): (&Arc<dyn Tasks>, Arc<Pool>),
        counters: Arc<Counters>,
        index: Index,
        key: DomainKey,
        sizes: Sizes,
        found: FoundPacks,
    ) -> Packs {
        let clock = pool.clock.clone();
        Packs {
            files: (0..DISKS_MAX).map(|_| OnceLock::new()).collect(),
            lanes: (0..DISKS_MAX).map(|_| Default::default()).collect(),
            tasks: Arc::clone(tasks),
            pool,
            counters,
            index,
            key,
            compression: sizes.compression,
            pack_bytes: sizes.pack_bytes.clamp(PACK_BYTES_MIN, PACK_BYTES_MAX),
            pack_chunks_max: sizes.pack_chunks_max.max(1),
            run_bytes: sizes.run_bytes.clamp(*RUN_BYTES.start(), *RUN_BYTES.end()),
            of_node: sizes.level,
            floor: AtomicU8::new(sizes.floor),
            catalog: RwLock::new(found.known),
            stranded: tokio::sync::Mutex::new(Vec::new()),
            unsealed: Mutex::default(),
            turns: Default::default(),
            next: AtomicU64::new(found.next),
            sealed: Mutex::new(Vec::new()),
            appended: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            settling: Group::default(),
            losses: Mutex::default(),
            neighbours: neighbours::Neighbours::default(),
            buffers: buffers::Buffers::new(sizes.cache_bytes),
            ages: Ages::new(clock, found.checked),
            making: Mutex::default(),
            condemned: RwLock::new(BTreeSet::new()),
            unread: Mutex::default(),
            left_out: Mutex::default(),
            emptied: Mutex::default(),
            suspects: Mutex::default(),
            rotten: Mutex::default(),
            doubted: Mutex::default(),
        }
    }

    /// The number that the next pack will have.
    pub(crate) fn next(&self) -> u64 {
        self.next.load(Ordering::SeqCst)
    }

    /// All packs, by number.
    pub(crate) fn known(&self) -> BTreeMap<u64, PackKnown> {
        self.catalog.read().clone()
    }

    /// What is known of a pack.
    pub(crate) fn known_pack(&self, pack: u64) -> Option<PackKnown> {
        self.catalog.read().get(&pack).cloned()
    }

    /// Disks on which a pack turned out to be damaged, while it is on others too.
    pub(crate) fn suspect_on(&self, pack: u64) -> DiskSet {
        self.suspects.lock().range((pack, 0)..(pack, DISKS_MAX)).map(|(_, disk)| *disk).collect()
    }

    /// Whether there is less than all of it.
    pub(crate) fn is_part(&self, pack: u64) -> bool {
        self.catalog.read().get(&pack).is_some_and(|known| known.is_part)
    }

    /// Whether it is an open one that is not sealed for now (N-4).
    pub(crate) fn is_waiting(&self, state: &PackState) -> bool {
        matches!(state, PackState::Open(open) if self.may_be_elsewhere(open))
    }

    /// Whether it waits and is on fewer disks than it should be: nothing is safe there.
    pub(crate) fn is_held_on_few(&self, pack: u64) -> bool {
        match self.catalog.read().get(&pack).map(|known| &known.state) {
            Some(PackState::Open(open)) => self.may_be_elsewhere(open) && self.is_on_few(open),
            _ => false,
        }
    }

    /// Packs of which a file lies on some disk that is there: a whole one, or a fragment.
    pub(crate) fn listed(&self) -> Result<PackNames, DiskError> {
        let mut listed = PackNames::default();
        for (_, on) in self.pool.there() {
            for name in on.disk.list(PACKS)? {
                listed.whole.extend(number_of(&name, PACK_SUFFIX));
                listed.in_fragments.extend(FragmentName::of(&name).map(|name| name.pack));
            }
        }
        Ok(listed)
    }

    /// O-6.
    pub(crate) fn lacks_directory(&self, pack: u64) -> bool {
        self.catalog.read().get(&pack).is_some_and(|known| known.summary.lacks_directory)
    }

    /// Open files of packs on a disk.
    fn files(&self, disk: usize) -> &Files {
        self.files[disk].get_or_init(|| {
            let kept = (FILES_KEPT / self.pool.disks.end()).max(FILES_KEPT_MIN);
            let (weights, hash) = (quick_cache::UnitWeighter, AddressHash::default());
            let lifecycle = quick_cache::sync::DefaultLifecycle::default();
            quick_cache::sync::Cache::with(kept, kept as u64, weights, hash, lifecycle)
        })
    }

    fn note_sealed(&self, sealed: SealedPack, disks: DiskSet) {
        self.counters.packs_sealed.add(1);
        // Both at once: who finds it sealed and not waiting takes the index to have it (E-2), and no index is made without it meanwhile.
        let mut waiting = self.sealed.lock();
        self.note_known(sealed.pack, disks, sealed.summary);
        waiting.push(sealed);
    }

    /// Notes that a pack is on some disks, and takes no chunks.
    pub(crate) fn note_known(&self, pack: u64, disks: DiskSet, summary: Summary) {
        self.note_sealed_at(pack, PackKnown::sealed(disks, None, summary));
    }

    /// The same for one that may be in fragments.
    pub(crate) fn note_sealed_at(&self, pack: u64, known: PackKnown) {
        self.catalog.write().insert(pack, known);
    }

    fn is_sealed(&self, pack: u64) -> bool {
        matches!(self.catalog.read().get(&pack), Some(known) if matches!(known.state, PackState::Sealed))
    }

    /// Packs that wait to be taken into the index file.
    pub(crate) fn sealed_waiting(&self) -> Vec<SealedPack> {
        self.sealed.lock().clone()
    }

    /// Whether any waits.
    pub(crate) fn is_sealed_waiting(&self) -> bool {
        !self.sealed.lock().is_empty()
    }

    /// Whether so much waits that the index file should not wait for a commit: it is all in memory.
    pub(crate) fn is_much_waiting(&self) -> bool {
        let sealed = self.sealed.lock();
        sealed.len() >= SEALED_WAITING_MAX
            || sealed.iter().map(|sealed| sealed.entries.len()).sum::<usize>() >= self.pack_chunks_max
    }

    /// Drops packs from that list once the index file has them.
    pub(crate) fn forget_sealed(&self, taken: &[SealedPack]) {
        self.sealed.lock().retain(|sealed| taken.iter().all(|other| other.pack != sealed.pack));
    }

    /// Why some pack could not be read when the store was opened, if there is one: a chunk that is nowhere else may lie there, or on a
    /// disk that is missing.
    pub(crate) fn unread(&self) -> Option<StoreError> {
        let unread = self.unread.lock().values().next().cloned();
        unread.or_else(|| self.pool.missing_error(PACKS).map(StoreError::Disk))
    }

    /// Notes packs that could not be read.
    pub(crate) fn note_unread(&self, packs: BTreeMap<u64, StoreError>) {
        self.unread.lock().extend(packs);
    }

    /// notes what a new index file is made without, and why. What the one before was made without is in it, then.
    pub(crate) fn note_left_out(&self, packs: BTreeMap<u64, StoreError>) {
        let before = std::mem::replace(&mut *self.left_out.lock(), packs.keys().copied().collect());
        before.iter().filter(|pack| !packs.contains_key(pack)).for_each(|pack| self.note_read(*pack));
        self.note_unread(packs);
    }

    /// Whether the index file was made without it.
    pub(crate) fn is_left_out(&self, pack: u64) -> bool {
        self.left_out.lock().contains(&pack)
    }

    /// Packs that the index file does not have: it was not given them yet, or was made without them.
    pub(crate) fn unindexed(&self) -> BTreeSet<u64> {
        let mut packs: BTreeSet<u64> = self.sealed.lock().iter().map(|sealed| sealed.pack).collect();
        packs.extend(&*self.left_out.lock());
        packs
    }

    /// Notes that a pack could be read after all, or is gone.
    pub(crate) fn note_read(&self, pack: u64) {
        self.unread.lock().remove(&pack);
    }

    /// Notes that a pack is on one disk more, or sound there again, unless it is gone: `false`.
    pub(crate) fn add_disk(&self, pack: u64, disk: usize) -> bool {
        let mut catalog = self.catalog.write();
        let Some(known) = catalog.get_mut(&pack) else { return false };
        if self.pool.disks[disk].part() == Part::Removed {
            return false;
        }
        known.disks = known.disks.with(disk);
        known.is_part = false;
        known.short = known.short.without(disk);
        // Whoever read what was there before reads no more of it.
        self.files(disk).remove(&pack);
        self.suspects.lock().remove(&(pack, disk));
        self.rotten.lock().remove(&pack);
        true
    }

    /// Notes that a pack is not on this disk any more, unless it is on no other: `false`.
    pub(crate) fn leave_disk(&self, pack: u64, disk: usize) -> bool {
        let mut catalog = self.catalog.write();
        let Some(known) = catalog.get_mut(&pack) else { return false };
        let others = known.disks.without(disk);
        if others.is_empty() || !matches!(known.state, PackState::Sealed) {
            return false;
        }
        known.disks = others;
        self.files(disk).remove(&pack);
        self.suspects.lock().remove(&(pack, disk));
        true
    }

    /// The node does without a disk. What lay there alone is in no catalog any more, unless it may be on another disk that is missing.
    pub(crate) fn forget_disk(&self, disk: usize, missing: Option<usize>) {
        let (mut dropped, mut gone) = (Vec::new(), BTreeSet::new());
        self.catalog.write().retain(|pack, known| match &known.state {
            PackState::Missing | PackState::Sealed => {
                let left = known.left_without(disk, missing);
                let stays = left.map(|left| *known = left).is_some();
                gone.extend((!stays).then_some(*pack));
                stays
            }
            PackState::Open(open) => {
                let stays = open.leave(DiskSet::of(disk));
                dropped.extend((!stays).then_some(*pack));
                stays
            }
        });
        self.index.forget_older(|place| !gone.contains(&place.pack));
        for pack in gone.iter().chain(&dropped) {
            // What was given up is lost, and not unknown.
            self.note_read(*pack);
            self.left_out.lock().remove(pack);
        }
        // Those too that the index file has not heard of.
        let is_gone = |sealed: &mut SealedPack| gone.contains(&sealed.pack);
        dropped.extend(self.sealed.lock().extract_if(.., is_gone).map(|sealed| sealed.pack));
        dropped.into_iter().for_each(|pack| self.index.forget_recent(pack));
        self.suspects.lock().retain(|(_, other)| *other != disk);
    }

    /// Takes a pack out whose file is gone.
    pub(crate) fn forget(&self, pack: u64) {
        self.drop_pack(pack);
        self.index.forget_recent(pack);
        self.sealed.lock().retain(|sealed| sealed.pack != pack);
    }

    /// Takes in a pack that was found while the store works.
    pub(crate) fn adopt(&self, sealed: SealedPack, disk: usize) {
        self.next.fetch_max(sealed.pack + 1, Ordering::SeqCst);
        let (pack, summary) = (sealed.pack, sealed.summary);
        // First: who finds it sealed and not waiting takes the index to have it (E-2).
        self.note_found(vec![sealed]);
        self.note_known(pack, DiskSet::of(disk), summary);
    }

    /// Packs found sealed on open that the index file does not cover yet.
    pub(crate) fn note_found(&self, sealed: Vec<SealedPack>) {
        for pack in &sealed {
            for entry in &pack.entries {
                self.index.insert_recent(entry.header.address, Place::of(pack.pack, entry));
            }
        }
        self.sealed.lock().extend(sealed);
    }
}
