//! Packs: chunks appended in arrival order, then sealed by a directory and a footer.
//!
//! The directory comes last so that a pack is written in one pass. Every disk has one open pack per class (a *lane*); lanes
//! are filled by turns, [`TURN_BYTES`] each, so that what arrives together lies together and all disks work.
//!
//! K-1   A sealed pack never changes.
//! K-2   The footer is written after the chunks were synced, and a pack counts as sealed after the footer was synced too. So
//!       a valid footer vouches for the chunks before it.
//! K-3   `settled` counts only chunks that are durable: those of open packs were written and synced, those of a lane whose
//!       disk failed or filled were moved to another disk first ([`Packs::settle`]), or settle fails, again and again.
//! K-4   A chunk is named in the index (`recent`) only after its bytes are readable, in a buffer or in the file.
//! K-5   Pack numbers rise and are used once, over all disks. On a missing disk may lie packs that no superblock knows of: so an opening
//!       without a disk leaves out [`LEFT_OUT`](crate::superblock::LEFT_OUT) numbers, and its first superblock says so before a pack is
//!       made, for the next time another disk may be missing.
//! K-6   A pack of the index that is on no disk, while one is missing, stays in the catalog and in the index. Nobody counts on it: what
//!       is put is stored anew although it lies there, so that it can be read; what is asked for there, or nowhere else, is unknown and
//!       not lost; reclaim and repair leave it alone.
//!
//! Not here: what is compressed how (`chunk`), what a crash left (`scan`), whether a pack is still needed (`reclaim`).

mod neighbours;
mod open;
mod read;
pub(crate) mod scan;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use base::hash::DomainKey;
use base::id::ChunkAddress;
use base::limits::CHUNK_BYTES_MAX;
use parking_lot::{Mutex, RwLock};
use platform::disk::{DiskErrorKind, File, Open};

use crate::ages::{Ages, Checked};
use crate::chunk::Packed;
use crate::counters::Counters;
use crate::failure::StoreError;
use crate::format::{
    ChunkHeader, Class, Entry, PACK_VERSION, PACKS, PackHeader, Place, Summary, encode_directory, pack_path,
};
use crate::group::Group;
use crate::index::{AddressHash, AddressSet, Index, SealedPack};
use crate::pool::Pool;

pub(crate) use open::OpenPack;
use open::Writer;

/// Appended bytes after which the next lane takes its turn: what arrives together lies together, whatever memory there is, and a disk that
/// is lost costs few files.
const TURN_BYTES: usize = 1 << 20;
/// Least and most buffered bytes that are written at once.
const RUN_BYTES: RangeInclusive<usize> = 64 << 10..=1 << 20;
/// Sealed packs that wait for the index file at most, beside what their chunks say ([`Packs::is_much_waiting`]).
const SEALED_WAITING_MAX: usize = 16;
/// Open files of sealed packs that are kept for reading. The process may have 20,000 (measured).
const FILES_KEPT: usize = 256;

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
    /// Of those that are missing the first, where the pack is: nobody knows on which.
    pub(crate) disk: usize,
    pub(crate) state: PackState,
    pub(crate) summary: Summary,
}

impl PackKnown {
    /// Its header and its chunks as stored; of an open one what was appended so far.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.state {
            PackState::Open(open) => open.bytes(),
            PackState::Sealed | PackState::Missing => u64::from(self.summary.data_bytes),
        }
    }
}

#[derive(Default)]
struct Lane {
    writer: Option<Writer>,
    /// Bytes appended in this turn.
    turn_bytes: usize,
}

/// What the options say about packs.
pub(crate) struct Sizes {
    pub(crate) pack_bytes: u64,
    pub(crate) pack_chunks_max: usize,
    pub(crate) run_bytes: usize,
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
    pub(crate) counters: Arc<Counters>,
    pub(crate) index: Index,
    pub(crate) key: DomainKey,
    pack_bytes: u64,
    pack_chunks_max: usize,
    run_bytes: usize,
    catalog: RwLock<BTreeMap<u64, PackKnown>>,
    /// By disk, then by class.
    lanes: Vec<[tokio::sync::Mutex<Lane>; 2]>,
    /// Taken out of their lanes with chunks that are accepted and not durable.
    stranded: tokio::sync::Mutex<Vec<Writer>>,
    turns: [AtomicUsize; 2],
    next: AtomicU64,
    /// Sealed, and not in the index file yet.
    sealed: Mutex<Vec<SealedPack>>,
    /// Chunks appended, and how many of them are known durable.
    appended: AtomicU64,
    settled: AtomicU64,
    settling: Group,
    files: quick_cache::sync::Cache<u64, File, quick_cache::UnitWeighter, AddressHash>,
    neighbours: neighbours::Neighbours,
    pub(crate) ages: Ages,
    /// Packs whose files are being made: the catalog has them when their names are durable.
    pub(crate) making: Mutex<BTreeSet<u64>>,
    /// Packs that reclaim or a repair is about to delete: what lies there is no duplicate to rely on.
    pub(crate) condemned: RwLock<BTreeSet<u64>>,
    /// Packs that could not be read when the store was opened, and why: nobody knows what lies there.
    unread: Mutex<BTreeMap<u64, StoreError>>,
    /// Chunks whose stored copy turned out to be damaged: putting such content again stores it anew.
    doubted: Mutex<AddressSet>,
}

impl Packs {
    pub(crate) fn new(
        pool: Arc<Pool>,
        counters: Arc<Counters>,
        index: Index,
        key: DomainKey,
        sizes: Sizes,
        found: FoundPacks,
    ) -> Packs {
        let clock = pool.clock.clone();
        Packs {
            lanes: pool.disks.iter().map(|_| Default::default()).collect(),
            pool,
            counters,
            index,
            key,
            pack_bytes: sizes.pack_bytes.clamp(PACK_BYTES_MIN, PACK_BYTES_MAX),
            pack_chunks_max: sizes.pack_chunks_max.max(1),
            run_bytes: sizes.run_bytes.clamp(*RUN_BYTES.start(), *RUN_BYTES.end()),
            catalog: RwLock::new(found.known),
            stranded: tokio::sync::Mutex::new(Vec::new()),
            turns: Default::default(),
            next: AtomicU64::new(found.next),
            sealed: Mutex::new(Vec::new()),
            appended: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            settling: Group::default(),
            neighbours: neighbours::Neighbours::default(),
            ages: Ages::new(clock, found.checked),
            files: quick_cache::sync::Cache::with(
                FILES_KEPT,
                FILES_KEPT as u64,
                quick_cache::UnitWeighter,
                AddressHash::default(),
                quick_cache::sync::DefaultLifecycle::default(),
            ),
            making: Mutex::default(),
            condemned: RwLock::new(BTreeSet::new()),
            unread: Mutex::default(),
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

    /// Where a chunk lies that may be relied upon as a duplicate.
    pub(crate) fn duplicate(&self, address: &ChunkAddress) -> Option<Place> {
        // An index that fails costs room, not data.
        let place = self.index.lookup(address, &self.counters).ok()??;
        // Before the look at what is condemned: L-1.
        self.index.pin(address);
        self.is_reliable(address, &place).then_some(place)
    }

    fn is_reliable(&self, address: &ChunkAddress, place: &Place) -> bool {
        self.has(place.pack)
            && !self.is_missing(place.pack)
            && !self.condemned.read().contains(&place.pack)
            && !self.doubted.lock().contains(address)
    }

    /// Notes that the copy of a chunk is damaged.
    pub(crate) fn doubt(&self, address: ChunkAddress) {
        self.doubted.lock().insert(address);
    }

    /// Appends chunks in order and names them in the index. Accepted, not durable.
    pub(crate) async fn append(&self, class: Class, chunks: Vec<Packed>) -> Result<(), StoreError> {
        self.append_to_any(class, class, chunks, false).await
    }

    /// `room` is whose room is used: chunks that were accepted already may go into the reserve. `moves` appends even what
    /// the index knows, and names the new place.
    pub(crate) async fn append_to_any(
        &self,
        class: Class,
        room: Class,
        chunks: Vec<Packed>,
        moves: bool,
    ) -> Result<(), StoreError> {
        let mut queue = chunks.into_iter().peekable();
        while let Some(next) = queue.peek() {
            let needed = u64::from(next.header.stored_bytes()) + Entry::BYTES as u64 + PackHeader::BYTES as u64;
            let mut is_placed = false;
            for disk in self.candidates(room, needed, self.turns[class.index()].load(Ordering::Relaxed)) {
                if self.append_run(disk, class, room, &mut queue, moves).await > 0 {
                    is_placed = true;
                    break;
                }
            }
            if !is_placed {
                return Err(self.pool.full("a chunk", needed));
            }
        }
        Ok(())
    }

    fn candidates(&self, room: Class, needed: u64, turn: usize) -> Vec<usize> {
        let candidates = self.pool.candidates(room, needed, turn);
        if !candidates.is_empty() {
            return candidates;
        }
        // Something may have been deleted since the last look.
        self.pool.disks.iter().filter(|disk| disk.is_good()).for_each(|disk| drop(disk.look()));
        self.pool.candidates(room, needed, turn)
    }

    /// Appends from the queue to one lane until its turn is over; how many chunks were taken. None: this disk cannot.
    async fn append_run(
        &self,
        disk: usize,
        class: Class,
        room: Class,
        queue: &mut std::iter::Peekable<std::vec::IntoIter<Packed>>,
        moves: bool,
    ) -> usize {
        let mut lane = self.lanes[disk][class.index()].lock().await;
        let mut taken = 0;
        while let Some(next) = queue.peek() {
            let bytes = u64::from(next.header.stored_bytes()) + Entry::BYTES as u64;
            if self.pool.room(disk, room) < bytes || !self.ready_writer(&mut lane, disk, class, bytes).await {
                break;
            }
            let chunk = queue.next().expect("peeked");
            taken += 1;
            let address = chunk.header.address;
            if !moves && self.index.recent(&address).is_some_and(|place| self.is_reliable(&address, &place)) {
                // Another caller was faster since our look-up.
                self.counters.chunks_duplicate.add(1);
                continue;
            }
            let writer = lane.writer.as_mut().expect("ready");
            let entry = writer.push(&chunk);
            self.pool.disks[disk].promise(bytes);
            self.counters.stored_bytes.add(bytes);
            // Before the index names it: whoever finds it there and settles waits for this count.
            self.appended.fetch_add(1, Ordering::SeqCst);
            self.index.insert_recent(address, Place::of(writer.pack.number, &entry));
            self.doubted.lock().remove(&address);
            if writer.pack.buffered_bytes() >= self.run_bytes {
                self.flush(writer).await;
            }
            lane.turn_bytes += chunk.header.stored as usize;
            if lane.turn_bytes >= TURN_BYTES {
                lane.turn_bytes = 0;
                self.turns[class.index()].fetch_add(1, Ordering::Relaxed);
                break;
            }
        }
        taken
    }

    /// Makes the lane have an open pack with room for `bytes`; `false` if the disk cannot.
    async fn ready_writer(&self, lane: &mut Lane, disk: usize, class: Class, bytes: u64) -> bool {
        if let Some(writer) = &lane.writer {
            if writer.is_stuck {
                return false;
            }
            if writer.end() + bytes <= self.pack_bytes && writer.entries.len() < self.pack_chunks_max {
                return true;
            }
            if !self.seal(lane).await {
                return false;
            }
        }
        match self.create(disk, class) {
            Ok(writer) => {
                lane.writer = Some(writer);
                true
            }
            Err(error) => {
                let _ = self.pool.failed(disk, error, &self.counters);
                false
            }
        }
    }

    fn create(&self, disk: usize, class: Class) -> Result<Writer, platform::disk::DiskError> {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        self.making.lock().insert(number);
        let made = self.make(number, disk, class);
        self.making.lock().remove(&number);
        made
    }

    fn make(&self, number: u64, disk: usize, class: Class) -> Result<Writer, platform::disk::DiskError> {
        let on = &self.pool.disks[disk];
        let file = on.disk.open(&pack_path(number), Open::Create)?;
        // The name is durable before anything that is in it is relied upon.
        on.disk.sync_directory(PACKS)?;
        let node_identity = self.pool.node_identity;
        let header = PackHeader { version: PACK_VERSION, pack: number, node_identity, disk_uuid: on.uuid, class };
        let pack = Arc::new(OpenPack::new(number, disk, class, file, &header.encode(), self.run_bytes));
        let state = PackState::Open(pack.clone());
        self.catalog.write().insert(number, PackKnown { disk, state, summary: Summary::empty(class) });
        self.ages.note(number);
        self.counters.packs_created.add(1);
        Ok(Writer::new(pack))
    }

    /// Writes the buffer; on failure the writer is stuck and keeps what it has.
    async fn flush(&self, writer: &mut Writer) {
        let disk = writer.pack.disk;
        match writer.pack.flush(&self.counters).await {
            Ok(count) => {
                self.pool.disks[disk].settle_promise(count);
                if let Err(error) = self.pool.disks[disk].look() {
                    let _ = self.pool.failed(disk, error, &self.counters);
                }
            }
            Err(error) => {
                writer.is_stuck = true;
                let _ = self.pool.failed(disk, error, &self.counters);
            }
        }
    }

    /// Seals the lane's pack; `false` if the disk could not, and then the lane is stuck or empty.
    async fn seal(&self, lane: &mut Lane) -> bool {
        let Some(writer) = &mut lane.writer else { return true };
        self.flush(writer).await;
        if writer.is_stuck {
            return false;
        }
        let (pack, disk) = (writer.pack.clone(), writer.pack.disk);
        if let Err(error) = pack.sync(&self.counters).await {
            writer.is_stuck = true;
            let _ = self.pool.failed(disk, error, &self.counters);
            return false;
        }
        let data_bytes = u32::try_from(writer.end()).expect("at most PACK_BYTES_MAX");
        let directory = encode_directory(pack.number, data_bytes, &writer.entries);
        let writer = lane.writer.take().expect("looked at above");
        self.pool.disks[disk].settle_promise((writer.entries.len() * Entry::BYTES) as u64);
        match pack.append_directory(writer.end(), &directory, &self.counters).await {
            Ok(()) => {
                let summary = Summary::of(data_bytes, &writer.entries);
                self.note_sealed(SealedPack::new(pack.number, summary, writer.entries), disk);
                true
            }
            Err(error) => {
                // All its chunks are durable (the sync above); it stays unsealed until the next open finds it.
                let is_full = error.kind == DiskErrorKind::Full;
                let _ = self.pool.failed(disk, error, &self.counters);
                is_full
            }
        }
    }

    fn note_sealed(&self, sealed: SealedPack, disk: usize) {
        self.counters.packs_sealed.add(1);
        self.note_known(sealed.pack, disk, sealed.summary);
        self.sealed.lock().push(sealed);
    }

    /// Notes that a pack is on a disk, and takes no chunks.
    pub(crate) fn note_known(&self, pack: u64, disk: usize, summary: Summary) {
        self.catalog.write().insert(pack, PackKnown { disk, state: PackState::Sealed, summary });
    }

    /// Seals every open pack, for a clean close and before reclaim. Whether all of them are sealed.
    pub(crate) async fn seal_all(&self) -> bool {
        let mut is_all = true;
        for lane in self.lanes.iter().flatten() {
            let mut lane = lane.lock().await;
            let pack =
                lane.writer.as_ref().filter(|writer| !writer.entries.is_empty()).map(|writer| writer.pack.number);
            if let Some(pack) = pack {
                self.seal(&mut lane).await;
                is_all &=
                    matches!(self.catalog.read().get(&pack), Some(known) if matches!(known.state, PackState::Sealed));
            }
        }
        is_all
    }

    /// Makes durable what every append that returned before this call accepted.
    pub(crate) async fn settle(&self) -> Result<(), StoreError> {
        let target = self.appended.load(Ordering::SeqCst);
        let is_settled = || self.settled.load(Ordering::SeqCst) >= target;
        while !is_settled() {
            if let Some(_lead) = self.settling.lead_or_wait(is_settled).await {
                self.settle_as_leader().await?;
            }
        }
        Ok(())
    }

    async fn settle_as_leader(&self) -> Result<(), StoreError> {
        let target = self.appended.load(Ordering::SeqCst);
        let _time = self.pool.clock.timer(&self.counters.settle);
        // Each round either ends or takes at least one lane of one disk out of the game.
        for _ in 0..=2 * self.lanes.len() {
            self.flush_and_sync().await;
            self.strand().await;
            if self.stranded.lock().await.is_empty() {
                self.settled.fetch_max(target, Ordering::SeqCst);
                return Ok(());
            }
            self.rescue().await?;
        }
        Err(self.pool.full("chunks that were accepted", 0))
    }

    /// Writes and syncs every lane on a good disk. Failures are left on the writers.
    async fn flush_and_sync(&self) {
        let mut unsynced = Vec::new();
        for lane in self.lanes.iter().flatten() {
            let mut lane = lane.lock().await;
            if let Some(writer) = &mut lane.writer
                && !writer.is_stuck
                && self.pool.disks[writer.pack.disk].is_good()
            {
                if writer.pack.buffered_bytes() > 0 {
                    self.flush(writer).await;
                }
                unsynced.push(writer.pack.clone());
            }
        }
        // Not under the lanes' locks: appends go on meanwhile.
        for pack in unsynced {
            if let Err(error) = pack.sync(&self.counters).await {
                let _ = self.pool.failed(pack.disk, error, &self.counters);
            }
        }
    }

    /// Takes writers that cannot write any more out of their lanes.
    async fn strand(&self) {
        for (disk, lanes) in self.lanes.iter().enumerate() {
            for lane in lanes {
                let mut lane = lane.lock().await;
                let is_stuck =
                    |writer: &Writer| writer.is_stuck || writer.pack.has_failed() || !self.pool.disks[disk].is_good();
                if lane.writer.as_ref().is_some_and(is_stuck) {
                    let writer = lane.writer.take().expect("looked at");
                    self.stranded.lock().await.push(writer);
                }
            }
        }
    }

    /// Brings what stranded writers hold into lanes of other disks, or onto their own disk if it has room again.
    async fn rescue(&self) -> Result<(), StoreError> {
        let mut stranded = self.stranded.lock().await;
        while let Some(writer) = stranded.last() {
            let on = &self.pool.disks[writer.pack.disk];
            if on.is_good() && !writer.pack.has_failed() {
                if writer.pack.flush(&self.counters).await.is_ok() && writer.pack.sync(&self.counters).await.is_ok() {
                    on.settle_promise(writer.promised());
                    stranded.pop();
                    continue;
                }
                on.note_full();
            }
            let durable = writer.pack.synced();
            let mut chunks = Vec::new();
            for entry in writer.entries.iter().filter(|entry| entry.end() > durable) {
                let (address, place) = (entry.header.address, Place::of(writer.pack.number, entry));
                // An earlier try that stopped halfway may have moved it.
                if self.index.recent(&address) == Some(place) {
                    // What comes back from a disk that failed is believed only if it is what its address says.
                    chunks.push(self.read_packed(&address, &place).await?);
                }
            }
            self.append_to_any(writer.pack.class, Class::Metadata, chunks, true).await?;
            on.settle_promise(writer.promised());
            stranded.pop();
        }
        Ok(())
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
        *self.unread.lock() = packs;
    }

    /// Notes that a pack could be read after all.
    pub(crate) fn note_read(&self, pack: u64) {
        self.unread.lock().remove(&pack);
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
        self.note_known(sealed.pack, disk, sealed.summary);
        self.note_found(vec![sealed]);
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
