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
//!
//! Not here: how packs are filled (`lanes`), what is compressed how (`chunk`), what a crash left (`scan`), whether a pack is still needed (`reclaim`).

mod buffers;
pub(crate) mod fragments;
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
use base::id::ChunkAddress;
use base::limits::CHUNK_BYTES_MAX;
use parking_lot::{Mutex, RwLock};
use platform::disk::{DiskError, File};
use platform::task::Tasks;

use crate::ages::{Ages, Checked};
use crate::chunk::Compression;
use crate::counters::Counters;
use crate::disks::{DISKS_MAX, DiskSet};
use crate::failure::StoreError;
use crate::format::{
    ChunkHeader, Class, Codec, Entry, FragmentName, PACK_SUFFIX, PACKS, PackHeader, Place, Summary, number_of,
};
use crate::group::Group;
use crate::index::{AddressHash, AddressSet, Index, SealedPack};
use crate::level::{Level, Resilience};
use crate::options::RUN_BYTES;
use crate::pool::{Part, Pool};

use fragments::{Fragments, PackFile};
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

/// A pack of the node.
#[derive(Clone)]
pub(crate) enum PackState {
    /// Takes chunks, or stopped taking them without being sealed (its disk filled or failed).
    Open(Arc<OpenPack>),
    /// Complete.
    Sealed,
    /// Complete, and on a disk that is missing, as far as anybody knows.
    Missing,
}

#[derive(Clone)]
pub(crate) struct PackKnown {
    /// Where all of it is. Of one that is missing: the first disk that is, for nobody knows more.
    disks: DiskSet,
    /// Of one that was cut, or is about to be.
    fragments: Option<Arc<Fragments>>,
    /// Of one that is missing: what there is of it all the same, as one that is sealed (K-6).
    rest: Option<Arc<PackKnown>>,
    /// Disks with files that are shorter than it, beside what has all of it: read where nothing else verifies (K-8).
    short: DiskSet,
    /// Less than all of it is there, as far as an opening could see: nobody relies on it (K-9).
    pub(crate) is_part: bool,
    pub(crate) state: PackState,
    pub(crate) summary: Summary,
}

impl PackKnown {
    pub(crate) fn new(disks: DiskSet, state: PackState, summary: Summary) -> PackKnown {
        PackKnown { disks, fragments: None, rest: None, short: DiskSet::NONE, is_part: false, state, summary }
    }

    /// Sealed, in fragments too.
    pub(crate) fn sealed(disks: DiskSet, fragments: Option<Arc<Fragments>>, summary: Summary) -> PackKnown {
        PackKnown { fragments, ..PackKnown::new(disks, PackState::Sealed, summary) }
    }

    /// On a disk that is missing, and the rest of it on others: shorter files, too few fragments.
    pub(crate) fn missing(disk: usize, rest: Option<PackKnown>, summary: Summary) -> PackKnown {
        let rest = rest.filter(|rest| !rest.places().is_empty()).map(Arc::new);
        PackKnown { rest, ..PackKnown::new(DiskSet::of(disk), PackState::Missing, summary) }
    }

    /// Without what this disk has of it, of one that is not taking chunks.
    fn without(&self, disk: usize) -> PackKnown {
        let fragments = self.fragments.as_ref().map(|fragments| match fragments.index_on(disk) {
            Some(_) => Arc::new(Fragments::clone(fragments).without(disk)),
            None => fragments.clone(),
        });
        let fragments = fragments.filter(|fragments| !fragments.disks().is_empty());
        PackKnown { disks: self.disks.without(disk), fragments, short: self.short.without(disk), ..self.clone() }
    }

    /// With files beside it that are shorter.
    pub(crate) fn beside(self, short: DiskSet) -> PackKnown {
        PackKnown { short, ..self }
    }

    /// Whether its fragments make it.
    fn is_made(&self) -> bool {
        self.fragments().is_some_and(|fragments| fragments.is_readable_on(fragments.disks()))
    }

    /// The disks that have shorter files of it.
    pub(crate) fn short(&self) -> DiskSet {
        self.short
    }

    /// As it is when the node does without `disk`, of one that takes no chunks; `missing`: another that is. `None`: nothing is left.
    fn left_without(&self, disk: usize, missing: Option<usize>) -> Option<PackKnown> {
        let left = match &self.state {
            PackState::Missing => self.rest.as_ref().map(|rest| rest.without(disk)),
            PackState::Open(_) | PackState::Sealed => {
                let left = self.without(disk);
                match left.disks.is_empty() && !left.is_made() && !left.short.is_empty() {
                    true => Some(PackKnown { disks: left.short, short: DiskSet::NONE, is_part: true, ..left }),
                    false => Some(left),
                }
            }
        };
        let is_whole = left.as_ref().is_some_and(|left| !left.is_part && (!left.disks.is_empty() || left.is_made()));
        match (missing, left) {
            // K-6: the other may have it.
            (Some(other), left) if !is_whole => Some(PackKnown::missing(other, left, self.summary)),
            (_, left) => {
                let left = left.filter(|left| !left.places().is_empty())?;
                Some(PackKnown { is_part: !is_whole, ..left })
            }
        }
    }

    /// What can be read of it, if it is missing: of its rest.
    pub(crate) fn to_read(&self) -> &PackKnown {
        self.rest.as_deref().unwrap_or(self)
    }

    /// What there is of it in fragments.
    pub(crate) fn fragments(&self) -> Option<&Arc<Fragments>> {
        self.fragments.as_ref()
    }

    /// The disks that any of it is on.
    pub(crate) fn places(&self) -> DiskSet {
        let fragments = self.fragments().map_or(DiskSet::NONE, |fragments| fragments.disks());
        DiskSet::from_bits(self.disks().bits() | fragments.bits())
    }

    /// Its files.
    pub(crate) fn files(&self, pack: u64) -> Vec<PackFile> {
        let bytes = self.summary.file_bytes();
        let whole = DiskSet::from_bits(self.disks().bits() | self.short().bits());
        let whole = whole.iter().map(|disk| PackFile { disk, name: None, pack, bytes });
        let fragments = self.fragments().into_iter().flat_map(|fragments| {
            let bytes = fragments.cut.file_bytes();
            let file = move |(index, disk)| PackFile { disk, name: Some(fragments.name(pack, index)), pack, bytes };
            fragments.each().map(file)
        });
        whole.chain(fragments).collect()
    }

    /// Whether it lies as it did.
    pub(crate) fn is_where(&self, other: &PackKnown) -> bool {
        self.disks() == other.disks() && self.fragments == other.fragments
    }

    /// Whether only fragments of it are there.
    pub(crate) fn is_cut(&self) -> bool {
        self.fragments.is_some() && self.disks().is_empty()
    }

    /// The disks that all of it is on, as far as anybody knows.
    pub(crate) fn disks(&self) -> DiskSet {
        match &self.state {
            PackState::Open(open) => open.disks(),
            PackState::Sealed | PackState::Missing => self.disks,
        }
    }

    /// Its header and its chunks as stored; of an open one what was appended so far.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.state {
            PackState::Open(open) => open.bytes(),
            PackState::Sealed | PackState::Missing => u64::from(self.summary.data_bytes),
        }
    }
}

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

    /// Where a chunk lies that may be relied upon as a duplicate.
    pub(crate) fn duplicate(&self, address: &ChunkAddress, level: Level) -> Option<Place> {
        // An index that fails costs room, not data.
        let place = self.index.lookup_duplicate(address, &self.counters).ok()??;
        // Before the look at what is condemned: L-1.
        self.index.pin(address);
        self.is_reliable(address, &place, level).then_some(place)
    }

    /// K-9, for the level. O-6: of what is gone in a pack without a directory nothing is made again.
    fn is_reliable(&self, address: &ChunkAddress, place: &Place, level: Level) -> bool {
        !self.lacks_directory(place.pack)
            && !self.is_part(place.pack)
            && self.is_here(address, place, level)
            && self.lies_well_enough(place.pack, level)
    }

    /// Whether a pack survives as many disks as what is stored now for the level would.
    fn lies_well_enough(&self, pack: u64, level: Level) -> bool {
        let Some(known) = self.known_pack(pack) else { return false };
        let there = self.copies_on_good(&known);
        there >= self.asked_copies((known.summary.class, level)) || there >= self.pool.takers().count()
    }

    /// Of how many disks one more than it survives, with those that fail at this time left out: copies of it, or as good as that.
    fn copies_on_good(&self, known: &PackKnown) -> usize {
        let good = self.pool.good();
        let fragments = known.fragments().map_or(0, |fragments| {
            let count = fragments.cut.erasure.count() - fragments.lacking_on(good).count();
            (count + 1).saturating_sub(usize::from(fragments.cut.erasure.data()))
        });
        known.disks().both(good).count().max(fragments)
    }

    /// Whether a chunk that verifies in pack `at` may let the one in pack `here` go (N-4, O-6, K-6, K-9).
    pub(crate) fn stands_for(&self, at: u64, here: u64) -> bool {
        !self.is_held_on_few(at)
            && !self.lacks_directory(at)
            && !self.is_missing(at)
            && !self.is_part(at)
            && !self.is_lower(at, here)
            && !self.lies_better(here, at)
    }

    /// K-9: whether another pack is on fewer disks than it should be, and this one on more, or on one that the other is not on: both together
    /// survive what the other would not.
    pub(crate) fn lies_better(&self, pack: u64, other: u64) -> bool {
        let (Some(known), Some(of_other)) = (self.known_pack(pack), self.known_pack(other)) else { return false };
        let (there, at_other) = (self.copies_on_good(&known), self.copies_on_good(&of_other));
        let good = self.pool.good();
        let has_another = there > 0 && known.places().both(good).iter().any(|disk| !of_other.places().has(disk));
        (there > at_other || has_another) && at_other < self.wanted(&of_other.summary).min(self.pool.takers().count())
    }

    /// Whether there is less than all of it.
    pub(crate) fn is_part(&self, pack: u64) -> bool {
        self.catalog.read().get(&pack).is_some_and(|known| known.is_part)
    }

    /// Whether a chunk is here, be it where nobody should rely on it.
    pub(crate) async fn has_chunk(&self, address: &ChunkAddress) -> bool {
        let place = self.index.lookup(address, &self.counters).ok().flatten();
        let Some(place) = place.filter(|place| self.is_here(address, place, Level::default())) else { return false };
        // An earlier opening may have found more there.
        !(self.lacks_directory(place.pack) || self.is_part(place.pack)) || self.is_good(address, &place).await.is_ok()
    }

    fn is_here(&self, address: &ChunkAddress, place: &Place, level: Level) -> bool {
        // What was chosen is not left to settings that may change.
        let of_pack = |summary: &Summary| match level.is_chosen() {
            true => usize::from(summary.level.copies()),
            false => self.wanted(summary),
        };
        let of_pack = self.catalog.read().get(&place.pack).map(|known| of_pack(&known.summary));
        of_pack.is_some_and(|of_pack| of_pack >= usize::from(level.copies()))
            // C-6, C-7.
            && !matches!(place.codec, Codec::Bundle | Codec::Remains)
            && !self.is_missing(place.pack)
            && !self.is_held_on_few(place.pack)
            && !self.condemned.read().contains(&place.pack)
            && !self.doubted.lock().contains(address)
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

    /// What is asked for a chunk whose copy is damaged, where that lies.
    pub(crate) fn doubted_level(&self, address: &ChunkAddress) -> Option<Level> {
        if !self.doubted.lock().contains(address) {
            return None;
        }
        let place = self.index.lookup(address, &self.counters).ok()??;
        Some(self.level_now(place.pack))
    }

    /// Notes that the copy of a chunk is damaged.
    pub(crate) fn doubt(&self, address: ChunkAddress) {
        self.doubted.lock().insert(address);
    }

    /// Takes that back: what lies at a place is good, and is what the index names.
    pub(crate) fn trust(&self, address: &ChunkAddress, place: &Place) {
        let is_doubted = self.doubted.lock().contains(address);
        if is_doubted && matches!(self.index.lookup(address, &self.counters), Ok(Some(named)) if named == *place) {
            self.doubted.lock().remove(address);
        }
    }

    /// What is asked for content of a class.
    pub(crate) fn level(&self, class: Class, resilience: Resilience) -> Level {
        match class {
            Class::Metadata => self.of_trees(),
            Class::Data => Level::of(resilience, self.of_node),
        }
    }

    /// Trees survive as much as anything in them, and one disk where there are two (K-14). They are never cut into fragments: they are small, and
    /// read in small pieces.
    fn of_trees(&self) -> Level {
        Level::of_trees(self.asked_of_trees(), self.pool.whole())
    }

    /// The most copies that the settings or any file ask for.
    pub(crate) fn asked_of_trees(&self) -> u8 {
        self.of_node.copies().max(self.floor())
    }

    /// Copies that somebody asked for, and waits for (K-14).
    pub(crate) fn asked_copies(&self, (class, level): (Class, Level)) -> usize {
        usize::from(match class {
            Class::Metadata => level.asked_of_trees(self.asked_of_trees()),
            Class::Data => level.copies(),
        })
    }

    /// On how many disks what lies on `disks`, or on none yet, is to be now, as far as there are disks that take it.
    pub(crate) fn copies_now(&self, kind: (Class, Level), disks: DiskSet, bytes: u64) -> usize {
        let (takers, asked) = (self.pool.takers(), self.asked_now(kind));
        let wanted = usize::from(kind.1.copies()).min(takers.count());
        if wanted <= asked {
            return asked;
        }
        let can = |disk: &usize| disks.has(*disk) || self.pool.is_roomy(*disk, bytes);
        takers.iter().filter(can).count().clamp(asked, wanted)
    }

    /// Of those the ones that somebody asked for.
    pub(crate) fn asked_now(&self, kind: (Class, Level)) -> usize {
        self.asked_copies(kind).min(self.pool.takers().count()).max(1)
    }

    pub(crate) fn floor(&self) -> u8 {
        self.floor.load(Ordering::SeqCst)
    }

    pub(crate) fn set_floor(&self, copies: u8) {
        self.floor.store(copies, Ordering::SeqCst);
    }

    /// What is asked now for what lies in a pack.
    pub(crate) fn level_now(&self, pack: u64) -> Level {
        let summary = self.catalog.read().get(&pack).map(|known| known.summary);
        summary.map_or_else(Level::default, |summary| self.now(&summary))
    }

    /// What is asked now for a pack.
    pub(crate) fn now(&self, summary: &Summary) -> Level {
        match summary.class {
            Class::Metadata => summary.level.now_of_trees(self.of_trees()),
            Class::Data => summary.level.now(self.of_node),
        }
    }

    /// Whether what lies in `pack` is to lie on fewer disks than what lies in `other`: it is not to be relied upon in its place.
    pub(crate) fn is_lower(&self, pack: u64, other: u64) -> bool {
        let catalog = self.catalog.read();
        let wanted = |pack| catalog.get(&pack).map_or(0, |known| self.wanted(&known.summary));
        wanted(pack) < wanted(other)
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

    /// Whether a pack is on fewer disks than it should be, or there is less of it in fragments.
    pub(crate) fn is_short(&self, known: &PackKnown, summary: &Summary) -> bool {
        let good = self.pool.good();
        known.disks().both(good).count() < self.wanted(summary)
            && known.fragments().is_none_or(|fragments| fragments.lacking_on(good).next().is_some())
    }

    /// On how many disks a pack should be: what was asked for when it was made, or is now.
    pub(crate) fn wanted(&self, summary: &Summary) -> usize {
        usize::from(self.now(summary).copies())
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
