//! Reading masses of chunks in the order in which they lie (BFOr of BFO, Yang et al., MSST 2019).
//!
//! 1. Where does each lie? They are looked up by the order of their addresses, as the index has them.
//! 2. The order list: sorted by disk, pack and offset, which is the order in which a disk was written. What lies together becomes a run, over
//!    gaps that cost less than another request.
//! 3. Each disk is read beside the others, a run by one request, some requests at a time; the chunks of a run are verified beside
//!    the next one, and given to who waits.
//!
//! T-5   A chunk that is wanted several times is read once, and one that the cache has is not read.
//! T-6   What is read and not yet taken, the runs that are being read included, stays within what the caller allowed. Who keeps what it was
//!       given keeps the room for it: more than half of it is not to be kept while waiting for more.
//!
//! What does not come right out of its run is read alone, with all that can be done for a chunk (T-4).
//!
//! Not here: which chunks, and what they mean (`file`); what is kept in memory (`cache`): nothing that was read here.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::id::ChunkAddress;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::failure::StoreError;
use crate::format::{Class, Place};
use crate::pack::Memo;
use crate::store::Store;

/// Bytes of a run at most, and of the content in it: a rotating disk gives most of its speed at this length.
pub(crate) const RUN_BYTES_MAX: u64 = 1 << 20;
const CONTENT_BYTES_MAX: u64 = 4 << 20;
/// Bytes that a disk is asked for at a time: so few that who comes meanwhile waits little. As many requests as it does best share them (`probe`).
const DISK_BYTES: u32 = 4 << 20;
/// Room is counted in these.
const ROOM_UNIT: u64 = 1 << 10;
/// What the list has of a chunk, in bytes.
const LIST_BYTES: u64 = (size_of::<ChunkAddress>() + size_of::<Member>() + size_of::<u32>()) as u64;

/// A chunk of the list.
#[derive(Clone, Copy, Debug)]
struct Member {
    place: Place,
    /// Its number among those that were asked for.
    number: u32,
}

impl Member {
    fn end(&self) -> u64 {
        self.place.span().end
    }
}

/// What came of it so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderedReport {
    /// Chunks that were asked for.
    pub chunks: u64,
    /// Of them those that were asked for before.
    pub duplicates: u64,
    /// Of them those that memory had.
    pub cached: u64,
    /// Of them those that were read alone, because they did not come right out of a run or nobody knew where they lie.
    pub alone: u64,
    /// Runs that were read, each by one request.
    pub runs: u64,
    /// Bytes of those.
    pub read_bytes: u64,
    /// Of them those between the chunks, which nobody wanted.
    pub gap_bytes: u64,
}

impl OrderedReport {
    /// Adds what came of another reading.
    pub fn add(&mut self, other: &OrderedReport) {
        self.chunks += other.chunks;
        self.duplicates += other.duplicates;
        self.cached += other.cached;
        self.alone += other.alone;
        self.runs += other.runs;
        self.read_bytes += other.read_bytes;
        self.gap_bytes += other.gap_bytes;
    }
}

/// Room for something that was read; gone when the last of it is dropped.
#[derive(Clone, Debug)]
pub struct OrderedRoom {
    _permit: Arc<OwnedSemaphorePermit>,
}

/// A chunk that was asked for.
#[derive(Debug)]
pub struct Got {
    /// Its number among those that were asked for.
    pub number: usize,
    /// Its content, or why nobody has it.
    pub content: Result<Bytes, StoreError>,
    /// To be kept as long as the content is.
    pub room: OrderedRoom,
}

/// Chunks on their way. Dropping it ends the reading.
#[derive(Debug)]
pub struct Ordered {
    got: UnboundedReceiver<Got>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    is_dropped: AtomicBool,
    report: Mutex<OrderedReport>,
}

impl Ordered {
    /// The next that came, in whatever order; `None`: all have.
    pub async fn next(&mut self) -> Option<Got> {
        self.got.recv().await
    }

    /// What came of it so far.
    #[must_use]
    pub fn report(&self) -> OrderedReport {
        *self.shared.report.lock()
    }

    /// What the list takes in memory for each chunk, beside the contents.
    #[must_use]
    pub const fn list_bytes() -> u64 {
        LIST_BYTES
    }
}

impl Drop for Ordered {
    fn drop(&mut self) {
        self.shared.is_dropped.store(true, Ordering::Relaxed);
    }
}

/// What all tasks of one reading share.
#[derive(Clone)]
struct Reading {
    store: Arc<Store>,
    class: Class,
    addresses: Arc<Vec<ChunkAddress>>,
    /// Room for what is read, in units.
    room: Arc<Semaphore>,
    units: u32,
    send: UnboundedSender<Got>,
    shared: Arc<Shared>,
}

impl Store {
    /// Begins to read chunks by the order in which they lie, in no more than so many bytes of memory beside the list.
    #[must_use]
    pub fn read_in_order(self: &Arc<Store>, class: Class, addresses: Vec<ChunkAddress>, memory_bytes: u64) -> Ordered {
        let (send, got) = unbounded_channel();
        let shared = Arc::new(Shared::default());
        let units = u32::try_from(memory_bytes / ROOM_UNIT).unwrap_or(u32::MAX).max(1);
        let room = Arc::new(Semaphore::new((units as usize).min(Semaphore::MAX_PERMITS)));
        let (store, addresses) = (Arc::clone(self), Arc::new(addresses));
        let reading = Reading { store, class, addresses, room, units, send, shared: Arc::clone(&shared) };
        // The index is looked at for all of them, and its pages may have to be read.
        self.platform.tasks.aside_behind(Box::pin(reading.begin()));
        Ordered { got, shared }
    }
}

impl Reading {
    async fn begin(self) {
        let (lists, others) = self.lists();
        for (disk, list) in lists {
            self.store.platform.tasks.aside_behind(Box::pin(self.clone().read_disk(disk, list)));
        }
        self.read_alone(&others).await;
    }

    fn is_over(&self) -> bool {
        self.shared.is_dropped.load(Ordering::Relaxed)
    }

    fn note(&self, note: impl FnOnce(&mut OrderedReport)) {
        note(&mut self.shared.report.lock());
    }

    /// The order list of each disk, and the numbers of what is not to be read from where it lies.
    fn lists(&self) -> (BTreeMap<usize, Vec<Member>>, Vec<u32>) {
        let (mut members, mut others) = (Vec::with_capacity(self.addresses.len()), Vec::new());
        let mut numbers: Vec<u32> = (0..).take(self.addresses.len()).collect();
        let address = |number: u32| &self.addresses[number as usize];
        numbers.sort_unstable_by_key(|number| address(*number));
        let (store, mut report) = (&self.store, OrderedReport::default());
        store.packs.index.file().expect(numbers.len() as u64, store.gap_bytes(Some(store.pool.index_disk())));
        for same in numbers.chunk_by(|a, b| address(*a) == address(*b)) {
            let is_cached = store.cache.has(address(same[0]));
            let look = || store.packs.index.lookup(address(same[0]), &store.counters).ok().flatten();
            match (!is_cached).then(look).flatten() {
                Some(place) => members.extend(same.iter().map(|number| Member { place, number: *number })),
                None => others.extend(same),
            }
            report.chunks += same.len() as u64;
            report.duplicates += same.len() as u64 - 1;
            report.cached += u64::from(is_cached);
        }
        self.note(|all| *all = report);
        members.sort_unstable_by_key(|member| (member.place.pack, member.place.offset, member.number));
        let mut lists = BTreeMap::<usize, Vec<Member>>::new();
        for of_pack in members.chunk_by(|a, b| a.place.pack == b.place.pack) {
            let disks = store.packs.disks_of(of_pack[0].place.pack, of_pack.iter().map(|member| &member.place));
            for (member, disk) in of_pack.iter().zip(disks) {
                match disk {
                    Some(disk) => lists.entry(disk).or_default().push(*member),
                    None => others.push(member.number),
                }
            }
        }
        (lists, others)
    }

    /// Reads what lies on one disk.
    async fn read_disk(self, disk: usize, list: Vec<Member>) {
        let requests = Arc::new(Semaphore::new(DISK_BYTES as usize));
        let (gap_bytes, request_bytes) = (self.store.gap_bytes(Some(disk)), DISK_BYTES / self.store.depth(disk));
        let mut at = 0;
        while at < list.len() && !self.is_over() {
            let run = run_at(&list, at, (self.run_bytes_max(), self.content_bytes_max()), gap_bytes);
            at = run.end;
            let members = list[run].to_vec();
            let bytes = bytes_of(&members);
            let content: u64 = distinct(&members).map(|member| u64::from(member.place.raw)).sum();
            let cost = u32::try_from(bytes).unwrap_or(DISK_BYTES).clamp(request_bytes, DISK_BYTES);
            let turn = Arc::clone(&requests).acquire_many_owned(cost).await.expect("never closed");
            let room = self.room_for(bytes + content).await;
            let reading = self.clone();
            self.store
                .platform
                .tasks
                .aside_behind(Box::pin(async move { reading.read_run(&members, turn, room).await }));
        }
    }

    /// So that several fit the room.
    fn run_bytes_max(&self) -> u64 {
        RUN_BYTES_MAX.min(u64::from(self.units) * ROOM_UNIT / 8)
    }

    /// So that one always fits beside what is kept (T-6): chunks may have shrunk to little of a run.
    fn content_bytes_max(&self) -> u64 {
        CONTENT_BYTES_MAX.min(u64::from(self.units) * ROOM_UNIT / 4)
    }

    async fn room_for(&self, bytes: u64) -> OwnedSemaphorePermit {
        let units = u32::try_from(bytes.div_ceil(ROOM_UNIT)).unwrap_or(u32::MAX).min(self.units);
        Arc::clone(&self.room).acquire_many_owned(units).await.expect("never closed")
    }

    async fn read_run(&self, members: &[Member], turn: OwnedSemaphorePermit, mut room: OwnedSemaphorePermit) {
        let placed: Vec<(Place, ChunkAddress)> =
            distinct(members).map(|member| (member.place, self.addresses[member.number as usize])).collect();
        let run = self.store.packs.read_run(&placed).await;
        drop(turn);
        // What lies in one bundle has the same end.
        let (mut wanted, mut end) = (0, 0);
        for member in distinct(members) {
            wanted += member.end().saturating_sub(end.max(u64::from(member.place.offset)));
            end = end.max(member.end());
        }
        let (read, gaps) = (bytes_of(members), bytes_of(members).saturating_sub(wanted));
        self.note(|report| {
            report.runs += 1;
            report.read_bytes += read;
            report.gap_bytes += gaps;
        });
        self.store.counters.ordered_runs.add(1);
        self.store.counters.ordered_gap_bytes.add(gaps);
        let (mut placed, mut memo) = (placed.iter().enumerate(), Memo::default());
        for same in members.chunk_by(|a, b| a.place == b.place) {
            let (_, (place, address)) = placed.next().expect("one for each place");
            let first = &members[0].place;
            let content =
                run.as_ref().and_then(|run| self.store.packs.content_of(run, first, place, address, &mut memo));
            let content = match content {
                Some(content) => Ok(content),
                None => self.get(address).await,
            };
            let units = u64::from(place.raw).div_ceil(ROOM_UNIT) as usize;
            let part = room.split(units.min(room.num_permits())).expect("no more than there are");
            self.give(same.iter().map(|member| member.number), &content, part);
        }
    }

    /// What memory has, or what is not known to lie anywhere.
    async fn read_alone(&self, numbers: &[u32]) {
        let address = |number: u32| &self.addresses[number as usize];
        for same in numbers.chunk_by(|a, b| address(*a) == address(*b)) {
            if self.is_over() {
                return;
            }
            let content = match self.store.cache.hit(self.class, address(same[0])) {
                Some(content) => Ok(content),
                None => self.get(address(same[0])).await,
            };
            // How long it is nobody knew.
            let room = self.room_for(content.as_ref().map_or(0, |content| content.len() as u64)).await;
            self.give(same.iter().copied(), &content, room);
        }
    }

    async fn get(&self, address: &ChunkAddress) -> Result<Bytes, StoreError> {
        self.note(|report| report.alone += 1);
        self.store.counters.ordered_alone.add(1);
        self.store.get(self.class, address).await
    }

    fn give(
        &self,
        numbers: impl Iterator<Item = u32>,
        content: &Result<Bytes, StoreError>,
        room: OwnedSemaphorePermit,
    ) {
        let room = OrderedRoom { _permit: Arc::new(room) };
        for number in numbers {
            // Who asked may have gone.
            drop(self.send.send(Got { number: number as usize, content: content.clone(), room: room.clone() }));
        }
    }
}

/// The run that begins at a member. Of places in any order what lies before the end of the run is in it.
fn run_at(list: &[Member], at: usize, (bytes_max, content_bytes_max): (u64, u64), gap_bytes: u64) -> Range<usize> {
    let (first, mut content, mut end) = (&list[at].place, u64::from(list[at].place.raw), at + 1);
    let mut run_end = list[at].end();
    while let Some(next) = list.get(end) {
        if next.place != list[end - 1].place {
            content += u64::from(next.place.raw);
        }
        let is_near = next.place.pack == first.pack
            && next.place.offset >= first.offset
            && u64::from(next.place.offset).saturating_sub(run_end) <= gap_bytes
            && next.end() - u64::from(first.offset) <= bytes_max
            && content <= content_bytes_max;
        if !is_near {
            break;
        }
        run_end = run_end.max(next.end());
        end += 1;
    }
    at..end
}

/// How many runs some places come to, which are read in this order.
pub(crate) fn runs(places: &[Place], gap_bytes: impl Fn(u64) -> u64) -> u64 {
    let list: Vec<Member> = places.iter().map(|place| Member { place: *place, number: 0 }).collect();
    let (mut at, mut runs) = (0, 0);
    while at < list.len() {
        let gap_bytes = gap_bytes(list[at].place.pack);
        at = run_at(&list, at, (RUN_BYTES_MAX, CONTENT_BYTES_MAX), gap_bytes).end;
        runs += 1;
    }
    runs
}

/// From the beginning of the first to the end of the last.
fn bytes_of(members: &[Member]) -> u64 {
    members.last().map_or(0, Member::end) - u64::from(members[0].place.offset)
}

/// One of those that want the same.
fn distinct(members: &[Member]) -> impl Iterator<Item = &Member> {
    members.chunk_by(|a, b| a.place == b.place).map(|same| &same[0])
}

#[cfg(test)]
mod tests;
