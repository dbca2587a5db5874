//! The index: chunk address to place.
//!
//! Two parts. *Recent* is a map in memory of every chunk that was appended and is not in the file yet. The *file* is a redb
//! database with a bounded cache; it takes whole packs, sealed and synced, in one durable transaction each time.
//!
//! X-1   The file names a chunk only if its pack takes no more and is durable (sealed, or one for whose directory an opening found
//!       no room), and the table `packs` names the pack in the same transaction. So the file itself says which packs it covers, and
//!       recovery indexes exactly the others. (No number in the superblock could say it as well: packs are sealed out of order.)
//! X-2   The index is never the truth. A place is a hint that the chunk's header and content must confirm; the whole file can
//!       be deleted and is made again from the packs.
//! X-3   An entry leaves `recent` only after the transaction that holds it is durable and visible to look-ups.
//! X-5   Of each chunk that the directory of a pack in `packs` names, the file names a place, needed or not; of one that lies in several
//!       packs the other places too, apart: a read goes there where the named copy does not verify. When the pack goes that holds the
//!       named one, another that verifies takes its place in the same transaction; where none does, one on a missing disk (K-6). Only
//!       where there is neither, the chunk is named no more: `check` tells of it as long as a pack has it.
//!
//! X-8   A file that was made in this life and is damaged lies on a disk that lies: the next one is made on another disk, if there is one. So
//!       whoever needs a chunk waits for at most as many new files as there are disks.
//! X-9   A file that is made again says that it lacks packs, until every pack that was found is in it and no disk is missing: what it does not
//!       have while it says so may be there all the same, whoever died in between (E-2 and O-6 go by that). What is taken out meanwhile is
//!       noted, and is none of it.
//!
//! Not here: reading packs (`pack`), deciding what to delete (`reclaim`).

mod backend;
mod file;
mod filter;
mod format;
#[cfg(test)]
mod fuzz;
mod pins;

use core::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::id::ChunkAddress;
use hashbrown::{HashMap, HashSet};
use parking_lot::{Mutex, RwLock};
use platform::disk::{Disk, DiskError};

use crate::ages::Checked;
use crate::counters::Counters;
use crate::disks::DiskSet;
use crate::failure::StoreError;
use crate::format::{Codec, Entry, INDEX_FILE, INDEX_NEW, Place, Summary};

pub(crate) use file::{IndexFile, Opened};
pub(crate) use filter::Filter;
#[cfg(test)]
pub(crate) use format::IndexSums;
use pins::Pins;

/// Entries that go into the file in one step while it is made from the packs: bounds memory.
pub(crate) const STEP_ENTRIES: usize = 200_000;

/// A sealed pack on its way into the file.
#[derive(Clone)]
pub(crate) struct SealedPack {
    pub(crate) pack: u64,
    pub(crate) summary: Summary,
    pub(crate) entries: Vec<Entry>,
    /// Its other chunks: of each another pack has the copy that is named, and the place here is a further one.
    pub(crate) others: Vec<Entry>,
}

impl SealedPack {
    pub(crate) fn new(pack: u64, summary: Summary, entries: Vec<Entry>) -> SealedPack {
        SealedPack { pack, summary, entries, others: Vec::new() }
    }
}

/// One durable change of the file.
#[derive(Default)]
pub(crate) struct Change {
    pub(crate) added: Vec<SealedPack>,
    /// Packs to forget, with the chunks that may still be named as lying there.
    pub(crate) removed: Vec<(u64, Vec<ChunkAddress>)>,
    /// Places outside of those packs, for chunks that are named in them.
    pub(crate) heirs: Vec<(ChunkAddress, Place)>,
    /// When packs were checked.
    pub(crate) checked: Checked,
}

/// Addresses are keyed hashes already: their first bytes are as good as any hash of them, and the same in each run.
#[derive(Clone, Copy, Default)]
pub(crate) struct AddressHash(u64);

impl BuildHasher for AddressHash {
    type Hasher = AddressHash;
    fn build_hasher(&self) -> AddressHash {
        AddressHash(0)
    }
}

impl Hasher for AddressHash {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(head) = bytes.first_chunk::<8>() {
            self.0 = u64::from_le_bytes(*head);
        }
    }
    // The length prefix of arrays and slices adds nothing.
    fn write_usize(&mut self, _length: usize) {}
    fn finish(&self) -> u64 {
        self.0
    }
}

/// The first bytes of an address: as good as the whole where two that share them may be taken for each other.
pub(crate) fn head(address: &ChunkAddress) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = address.0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// A set of addresses with the same order in each run.
pub(crate) type AddressSet = HashSet<ChunkAddress, AddressHash>;
type Shard = HashMap<ChunkAddress, Place, AddressHash>;
const SHARDS: usize = 16;

/// Both parts together.
pub(crate) struct Index {
    recent: Vec<Mutex<Shard>>,
    /// Of chunks that `recent` names anew, where it named them before, as far as that is still there (K-12).
    older: Mutex<HashMap<ChunkAddress, Vec<Place>, AddressHash>>,
    file: RwLock<Arc<IndexFile>>,
    /// What both parts name, about.
    filter: RwLock<Option<Arc<Filter>>>,
    /// What was found as a duplicate since a mark began, for `reclaim`; `None` while no mark runs.
    pinned: Mutex<Option<Pins>>,
    is_marking: AtomicBool,
    is_doubted: AtomicBool,
    /// Disks that gave other bytes than those of a file that was made in this life.
    liars: Mutex<DiskSet>,
    /// Held by who gives the file's name on the disk to another, or takes it away.
    name: Mutex<()>,
    made_again: Mutex<MadeAgain>,
}

/// What came of making the file again in this life of the store; `None` where nobody tried.
pub(crate) type MadeAgain = Option<Result<(), StoreError>>;

impl Index {
    pub(crate) fn new(file: IndexFile) -> Index {
        Index {
            recent: (0..SHARDS).map(|_| Mutex::default()).collect(),
            older: Mutex::default(),
            file: RwLock::new(Arc::new(file)),
            filter: RwLock::new(None),
            pinned: Mutex::new(None),
            is_marking: AtomicBool::new(false),
            is_doubted: AtomicBool::new(false),
            liars: Mutex::new(DiskSet::NONE),
            name: Mutex::new(()),
            made_again: Mutex::new(None),
        }
    }

    /// The file as it is now.
    pub(crate) fn file(&self) -> Arc<IndexFile> {
        self.file.read().clone()
    }

    fn shard(&self, address: &ChunkAddress) -> &Mutex<Shard> {
        // Not the byte that the map itself hashes by first.
        &self.recent[usize::from(address.0[31]) % SHARDS]
    }

    pub(crate) fn recent(&self, address: &ChunkAddress) -> Option<Place> {
        self.shard(address).lock().get(address).copied()
    }

    pub(crate) fn recent_count(&self) -> usize {
        self.recent.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Names a chunk that was just appended, replacing an older place.
    pub(crate) fn insert_recent(&self, address: ChunkAddress, place: Place) {
        if let Some(filter) = &*self.filter.read() {
            filter.add(&address);
        }
        let mut shard = self.shard(&address).lock();
        if place.codec == Codec::Bundle {
            // C-6: it takes nobody's name, but another bundle's.
            let named = shard.entry(address).or_insert(place);
            if named.codec == Codec::Bundle {
                *named = place;
            }
        } else if let Some(older) = shard.insert(address, place) {
            self.older.lock().entry(address).or_default().push(older);
        }
    }

    /// Where else a chunk was named before, the latest last, as far as the file may not know it.
    pub(crate) fn older(&self, address: &ChunkAddress) -> Vec<Place> {
        self.older.lock().get(address).cloned().unwrap_or_default()
    }

    /// A chunk that was appended is lost where it is named, if it still is: `other` is named, if there is one. `also`: in the same moment.
    pub(crate) fn forget_lost(
        &self,
        address: &ChunkAddress,
        lost: &Place,
        other: Option<Place>,
        also: impl FnOnce(),
    ) -> bool {
        let mut shard = self.shard(address).lock();
        if shard.get(address) != Some(lost) {
            return false;
        }
        also();
        match other {
            Some(other) => shard.insert(*address, other),
            None => shard.remove(address),
        };
        let mut all_older = self.older.lock();
        if let Some(older) = all_older.get_mut(address) {
            older.retain(|place| Some(*place) != other);
            if older.is_empty() {
                all_older.remove(address);
            }
        }
        true
    }

    /// Drops older places that are no more.
    pub(crate) fn forget_older(&self, stays: impl Fn(&Place) -> bool) {
        self.older.lock().retain(|_, places| {
            places.retain(&stays);
            !places.is_empty()
        });
    }

    /// Drops what lies in a pack that is gone.
    pub(crate) fn forget_recent(&self, pack: u64) {
        self.forget_behind(pack, 0);
    }

    /// Drops what lies, in part at least, behind this offset of a pack: that is cut off, or is gone. Where a chunk was named before it is
    /// named again.
    pub(crate) fn forget_behind(&self, pack: u64, end: u64) {
        let stays = |place: &Place| place.pack != pack || place.span().end <= end;
        self.forget_older(stays);
        for shard in &self.recent {
            shard.lock().retain(|address, place| {
                if stays(place) {
                    return true;
                }
                let mut all_older = self.older.lock();
                let older = all_older.get_mut(address).and_then(Vec::pop);
                if all_older.get(address).is_some_and(Vec::is_empty) {
                    all_older.remove(address);
                }
                // A place that was named meanwhile replaces one that is no more.
                older.is_some_and(|older| {
                    stays(&older) && {
                        *place = older;
                        true
                    }
                })
            });
        }
    }

    /// Where a chunk lies.
    pub(crate) fn lookup(&self, address: &ChunkAddress, counters: &Counters) -> Result<Option<Place>, StoreError> {
        // C-6: a bundle counts where nothing else does.
        let is_chunk = |place: &Place| place.codec != Codec::Bundle;
        let recent = self.recent(address);
        if recent.as_ref().is_some_and(is_chunk) {
            return Ok(recent);
        }
        counters.index_lookups.add(1);
        let found = self.file().lookup(address)?;
        // Between the two looks the entry may have moved from the file to `recent` (reclaim), never the other way unseen:
        // X-3 removes it from `recent` after the file has it.
        Ok(self.recent(address).filter(is_chunk).or(found).or(recent))
    }

    /// The same for who would store it otherwise: of what is new it says so without a look into the file.
    pub(crate) fn lookup_duplicate(
        &self,
        address: &ChunkAddress,
        counters: &Counters,
    ) -> Result<Option<Place>, StoreError> {
        if let Some(place) = self.recent(address).filter(|place| place.codec != Codec::Bundle) {
            return Ok(Some(place));
        }
        if self.filter.read().as_ref().is_some_and(|filter| !filter.may_have(address)) {
            counters.index_lookups_spared.add(1);
            return Ok(None);
        }
        self.lookup(address, counters)
    }

    /// Begins a filter, of no more than so many bytes. `None`: there is to be none.
    pub(crate) fn begin_filter(&self, bytes_max: u64) -> Option<Arc<Filter>> {
        let file = self.file();
        if !file.is_small() {
            return None;
        }
        let filter = Arc::new(Filter::for_chunks(file.count(), bytes_max)?);
        *self.filter.write() = Some(Arc::clone(&filter));
        Some(filter)
    }

    /// Takes in what was there before it began; it is whole then. A file that cannot be read leaves it as it is.
    pub(crate) fn fill_filter(&self, filter: &Filter) {
        for shard in &self.recent {
            shard.lock().keys().for_each(|address| filter.add(address));
        }
        // What left memory since is in this file.
        let filled = self.file().walk_while(&mut |address| {
            filter.add(&address);
            !filter.is_over()
        });
        if filled.is_ok_and(|is_all| is_all) {
            filter.note_whole();
        }
    }

    /// Who fills a filter is to end.
    pub(crate) fn end_filter(&self) {
        if let Some(filter) = &*self.filter.read() {
            filter.end();
        }
    }

    /// Makes a change durable and visible, then drops from `recent` what the file has now.
    pub(crate) fn commit(&self, disk: &Disk, change: &Change, counters: &Counters) -> Result<(), StoreError> {
        if change.added.is_empty() && change.removed.is_empty() && change.checked.is_empty() {
            return Ok(());
        }
        self.file().commit(disk, change).inspect_err(|_| counters.index_failures.add(1))?;
        counters.index_commits.add(1);
        for sealed in &change.added {
            counters.index_entries.add(sealed.entries.len() as u64);
            for entry in sealed.entries.iter().chain(&sealed.others) {
                let mut shard = self.shard(&entry.header.address).lock();
                if shard.get(&entry.header.address) == Some(&Place::of(sealed.pack, entry)) {
                    shard.remove(&entry.header.address);
                    self.older.lock().remove(&entry.header.address);
                }
            }
        }
        Ok(())
    }

    /// Whether the file is known to be damaged.
    pub(crate) fn is_doubted(&self) -> bool {
        self.is_doubted.load(Ordering::SeqCst)
    }

    /// Notes that this file on disk `number` is damaged, unless another is in its place by now. It is used as far as it goes, until it is made
    /// again from the packs: by whoever needs a chunk and does not find it, by the mender, or by the next opening.
    pub(crate) fn doubt(&self, number: usize, disk: &Disk, file: &Arc<IndexFile>) {
        let _name = self.name.lock();
        if Arc::ptr_eq(file, &self.file()) && !self.is_doubted.swap(true, Ordering::SeqCst) {
            if file.is_made() {
                self.note_liar(number);
            }
            // Where this fails too the next opening meets the same damage.
            let _ = disk.remove(INDEX_FILE);
        }
    }

    /// Notes that a disk did not give back what was written to it in this life. The first time what was made there counts as never made.
    pub(crate) fn note_liar(&self, disk: usize) {
        let mut liars = self.liars.lock();
        if !liars.has(disk) {
            *liars = liars.with(disk);
            *self.made_again.lock() = None;
        }
    }

    /// Disks that the file is not made on again as long as there are others.
    pub(crate) fn liars(&self) -> DiskSet {
        *self.liars.lock()
    }

    /// Puts a file that was made beside the current one in its place, on the disk too. The caller holds off other changes.
    pub(crate) fn replace_file(&self, disk: &Disk, file: IndexFile) -> Result<(), DiskError> {
        {
            let _name = self.name.lock();
            disk.rename(INDEX_NEW, INDEX_FILE)?;
            *self.file.write() = Arc::new(file.in_place(disk));
            // The file before may have lacked what this one has.
            *self.filter.write() = None;
            self.is_doubted.store(false, Ordering::SeqCst);
        }
        disk.sync_directory("")
    }

    /// What came of making the file again, if that was tried.
    pub(crate) fn made_again(&self) -> MadeAgain {
        self.made_again.lock().clone()
    }

    /// Notes what came of making the file again. One that was made stays made.
    pub(crate) fn note_made_again(&self, made: Result<(), StoreError>) {
        let mut noted = self.made_again.lock();
        if !matches!(*noted, Some(Ok(()))) {
            *noted = Some(made);
        }
    }

    /// Notes that the file is about to forget chunks that are lost where it names them: of one that lies elsewhere too it knows nothing,
    /// until it is made again. Comes before the change.
    pub(crate) fn note_loss(&self) {
        *self.made_again.lock() = None;
    }

    /// From now on every address that is pinned is kept, in about so much memory.
    pub(crate) fn begin_mark(&self, pins_bytes: u64) {
        *self.pinned.lock() = Some(Pins::new(pins_bytes / 2));
        self.is_marking.store(true, Ordering::SeqCst);
    }

    pub(crate) fn end_mark(&self) {
        self.is_marking.store(false, Ordering::SeqCst);
        *self.pinned.lock() = None;
    }

    /// Keeps an address if a mark runs.
    pub(crate) fn pin(&self, address: &ChunkAddress) {
        if self.is_marking.load(Ordering::SeqCst)
            && let Some(pinned) = self.pinned.lock().as_mut()
        {
            pinned.add(address);
        }
    }

    pub(crate) fn is_pinned(&self, address: &ChunkAddress) -> bool {
        self.pinned.lock().as_ref().is_some_and(|pinned| pinned.may_have(address))
    }
}
