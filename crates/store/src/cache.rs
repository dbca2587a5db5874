//! Verified chunks in memory: a weighted LRU cache (HydraFS, FAST'10, section 4.4).
//!
//! A chunk comes in with the weight of its class. A hit gives it that weight again, and makes it the newest of those that have it. Where
//! room is needed, chunks of weight 0 go, the oldest first; when there are none left, all weights go down by one. The lists of chunks by
//! weight stand in a ring whose base turns, so that this takes one step however many chunks there are.
//!
//! W-1   A cache never holds more than its capacity, and nothing that is larger than a shard of it.
//! W-2   What a reader still has in hand does not go: it would free nothing. Where everything is in hand, what is new stays out.
//! W-3   Of many that want the same absent chunk at once one reads it, and the others get what it read, or read in turn if it failed.
//! W-4   What was read ahead does not go before its first use while something else can, once.
//! W-5   From when a warm-up began the cache knows how much it holds of what came in or was used since, each entry counted once, and whether any
//!       of that has gone: while it and what is to come stay within the capacity, what is older goes first.
//!
//! Not here: who reads (`store`), and what is read ahead (`file`).

use std::collections::HashMap;
use std::sync::Arc;

use base::id::ChunkAddress;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::counters::Counters;
use crate::format::Class;
use crate::index::AddressHash;

/// What a cached chunk costs beyond its bytes: an entry, its place in the map, and what the allocator adds.
const ENTRY_BYTES: u64 = 160;
/// Bytes that a shard of a large cache has at least, so that no chunk is too large for one.
const SHARD_BYTES_MIN: u64 = 8 << 20;
const SHARDS_MAX: u64 = 16;
/// Weights go from 0 to this.
const WEIGHT_MAX: u8 = 3;
const LISTS: usize = WEIGHT_MAX as usize + 1;
/// No entry.
const NONE: u32 = u32::MAX;

/// What chunks weigh when they come in or are hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    /// Of metadata. At most 3.
    pub metadata: u8,
    /// Of file content. At most 3.
    pub data: u8,
}

impl Weights {
    /// As published: a tree's node is needed for many chunks of data.
    pub const WEIGHTED: Weights = Weights { metadata: WEIGHT_MAX, data: 1 };
    /// Plain LRU.
    pub const EQUAL: Weights = Weights { metadata: 0, data: 0 };

    fn of(self, class: Class) -> u8 {
        match class {
            Class::Metadata => self.metadata.min(WEIGHT_MAX),
            Class::Data => self.data.min(WEIGHT_MAX),
        }
    }
}

/// Why a chunk comes into the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Somebody wanted it.
    Wanted,
    /// Somebody is likely to.
    Ahead,
}

/// Whether an entry was used since it was read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Used,
    /// Not yet.
    Unused,
    /// Not yet, and it was let off once (W-4).
    Spared,
}

struct Entry {
    address: ChunkAddress,
    content: Bytes,
    class: Class,
    usage: Use,
    /// The warm-up in which it came in or was used last (W-5).
    warmed: u32,
    /// Its place in the ring.
    list: u8,
    older: u32,
    newer: u32,
}

#[derive(Clone, Copy)]
struct List {
    oldest: u32,
    newest: u32,
}

const EMPTY: List = List { oldest: NONE, newest: NONE };

/// A chunk that some want and nobody has.
#[derive(Default)]
struct Reading {
    /// Held by who reads it, and left with what was read: the cache may not take it.
    lock: Arc<tokio::sync::Mutex<Option<Bytes>>>,
    /// How many want it.
    users: usize,
}

/// A part of the cache under a lock of its own. Pure.
struct Shard {
    capacity: u64,
    weights: Weights,
    bytes: u64,
    entries: Vec<Entry>,
    free: Vec<u32>,
    places: HashMap<ChunkAddress, u32, AddressHash>,
    ring: [List; LISTS],
    /// Where in the ring the list of weight 0 is.
    base: u8,
    /// Number of the last warm-up, and bytes of what it counts (W-5).
    warming: u32,
    warm_bytes: u64,
    /// Some of it has gone, or did not come in.
    has_lost: bool,
    /// Of those that are being read.
    reading: HashMap<ChunkAddress, Reading, AddressHash>,
}

/// What became of a chunk that was to come in.
#[derive(Debug, Default, PartialEq, Eq)]
struct Evicted {
    chunks: u64,
    /// Of them those that were read ahead and never used.
    unused: u64,
}

impl Shard {
    fn new(capacity: u64, weights: Weights) -> Shard {
        Shard {
            capacity,
            weights,
            bytes: 0,
            entries: Vec::new(),
            free: Vec::new(),
            places: HashMap::default(),
            ring: [EMPTY; LISTS],
            base: 0,
            warming: 0,
            warm_bytes: 0,
            has_lost: false,
            reading: HashMap::default(),
        }
    }

    /// The content, if it is here; a use of it.
    fn hit(&mut self, address: &ChunkAddress) -> Option<(Bytes, Use)> {
        let at = *self.places.get(address)?;
        let entry = &mut self.entries[at as usize];
        let (content, before, class) = (entry.content.clone(), entry.usage, entry.class);
        entry.usage = Use::Used;
        self.unlink(at);
        self.link(at, self.weights.of(class));
        self.note_warm(at);
        Some((content, before))
    }

    /// What is here loses its weight, in the order in which it would go, and goes before what comes in now.
    fn begin_warming(&mut self) {
        for weight in 0..LISTS as u8 {
            let mut next = self.ring[usize::from((self.base + weight) % LISTS as u8)].oldest;
            while next != NONE {
                let at = next;
                let entry = &mut self.entries[at as usize];
                next = entry.newer;
                if entry.usage == Use::Unused {
                    entry.usage = Use::Spared;
                }
                if weight > 0 {
                    self.unlink(at);
                    self.link(at, 0);
                }
            }
        }
        // What is older than the last 2^32 of them is not told from what is new.
        self.warming = self.warming.wrapping_add(1).max(1);
        (self.warm_bytes, self.has_lost) = (0, false);
    }

    /// W-5.
    fn note_warm(&mut self, at: u32) {
        let entry = &mut self.entries[at as usize];
        if entry.warmed != self.warming {
            entry.warmed = self.warming;
            self.warm_bytes += cost(&entry.content);
        }
    }

    fn insert(&mut self, class: Class, address: &ChunkAddress, content: &Bytes, origin: Origin) -> Evicted {
        if self.places.contains_key(address) {
            return Evicted::default();
        }
        let bytes = cost(content);
        let mut evicted = Evicted::default();
        if bytes > self.capacity || !self.make_room(self.capacity - bytes, &mut evicted) {
            self.has_lost = true;
            return evicted;
        }
        let usage = if origin == Origin::Ahead { Use::Unused } else { Use::Used };
        let (address, content) = (*address, content.clone());
        let (list, older, newer) = (0, NONE, NONE);
        let entry = Entry { address, content, class, usage, warmed: self.warming, list, older, newer };
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).expect("fewer chunks than 2^32 fit into memory")
            }
        };
        self.places.insert(address, at);
        self.bytes += bytes;
        self.warm_bytes += if self.warming == 0 { 0 } else { bytes };
        self.link(at, self.weights.of(class));
        evicted
    }

    /// Lets chunks go until no more than `limit` bytes are here; `false`: the others are in somebody's hands.
    fn make_room(&mut self, limit: u64, evicted: &mut Evicted) -> bool {
        // Each entry is let off once for each reason at most.
        let mut steps = (LISTS + 2) * self.places.len() + 1;
        while self.bytes > limit {
            let Some(at) = self.oldest() else { return false };
            let Some(rest) = steps.checked_sub(1) else { return false };
            steps = rest;
            let entry = &mut self.entries[at as usize];
            let weight = self.weights.of(entry.class);
            let is_spared = entry.usage == Use::Unused;
            if is_spared || !entry.content.is_unique() {
                entry.usage = if is_spared { Use::Spared } else { entry.usage };
                self.unlink(at);
                self.link(at, weight);
                continue;
            }
            evicted.chunks += 1;
            evicted.unused += u64::from(entry.usage == Use::Spared);
            self.remove(at);
        }
        true
    }

    /// The oldest of those with the least weight, which is 0 from now on.
    fn oldest(&mut self) -> Option<u32> {
        for _ in 0..LISTS {
            let list = self.ring[usize::from(self.base)];
            if list.oldest != NONE {
                return Some(list.oldest);
            }
            // All weights go down by one: the list of weight 0, which is empty, becomes that of the greatest.
            self.base = (self.base + 1) % LISTS as u8;
        }
        None
    }

    fn remove(&mut self, at: u32) {
        self.unlink(at);
        let entry = &mut self.entries[at as usize];
        let content = std::mem::take(&mut entry.content);
        self.bytes -= cost(&content);
        if entry.warmed == self.warming && self.warming > 0 {
            self.warm_bytes -= cost(&content);
            self.has_lost = true;
        }
        self.places.remove(&entry.address);
        self.free.push(at);
    }

    /// Makes an entry the newest of its weight.
    fn link(&mut self, at: u32, weight: u8) {
        let list = (self.base + weight) % LISTS as u8;
        let ends = &mut self.ring[usize::from(list)];
        let older = std::mem::replace(&mut ends.newest, at);
        if older == NONE {
            ends.oldest = at;
        } else {
            self.entries[older as usize].newer = at;
        }
        let entry = &mut self.entries[at as usize];
        (entry.list, entry.older, entry.newer) = (list, older, NONE);
    }

    fn unlink(&mut self, at: u32) {
        let Entry { list, older, newer, .. } = self.entries[at as usize];
        let ends = &mut self.ring[usize::from(list)];
        if older == NONE {
            ends.oldest = newer;
        }
        if newer == NONE {
            ends.newest = older;
        }
        if older != NONE {
            self.entries[older as usize].newer = newer;
        }
        if newer != NONE {
            self.entries[newer as usize].older = older;
        }
    }
}

fn cost(content: &Bytes) -> u64 {
    content.len() as u64 + ENTRY_BYTES
}

/// The cache of a store.
pub(crate) struct Cache {
    shards: Vec<Mutex<Shard>>,
    counters: Arc<Counters>,
}

impl Cache {
    pub(crate) fn new(capacity: u64, weights: Weights, counters: &Arc<Counters>) -> Cache {
        let count = (capacity / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        let shard = || Mutex::new(Shard::new(capacity / count, weights));
        Cache { shards: (0..count).map(|_| shard()).collect(), counters: Arc::clone(counters) }
    }

    /// Bytes held, with what they cost beyond.
    pub(crate) fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().bytes).sum()
    }

    /// Whether a chunk is here. No use of it.
    pub(crate) fn has(&self, address: &ChunkAddress) -> bool {
        self.shard(address).lock().places.contains_key(address)
    }

    /// Whether there is room for more about this chunk without anything going, and will be for a while.
    pub(crate) fn has_plenty(&self, address: &ChunkAddress) -> bool {
        let shard = self.shard(address).lock();
        shard.bytes < shard.capacity / 2
    }

    /// A warm-up begins (W-5). Gives the number of shards.
    pub(crate) fn begin_warming(&self) -> usize {
        self.shards.iter().for_each(|shard| shard.lock().begin_warming());
        self.shards.len()
    }

    /// Uses a chunk without reading it; `false`: it is not here.
    pub(crate) fn touch(&self, address: &ChunkAddress) -> bool {
        self.shard(address).lock().hit(address).is_some()
    }

    /// The shard of a chunk, what the last warm-up has in it, and what it can hold.
    pub(crate) fn warmth(&self, address: &ChunkAddress) -> (usize, u64, u64) {
        let number = self.shard_number(address);
        let shard = self.shards[number].lock();
        (number, shard.warm_bytes, shard.capacity)
    }

    /// The same of each shard.
    pub(crate) fn shards_warmth(&self) -> impl Iterator<Item = (u64, u64)> {
        self.shards.iter().map(|shard| {
            let shard = shard.lock();
            (shard.warm_bytes, shard.capacity)
        })
    }

    /// Whether something of it has gone, or did not come in.
    pub(crate) fn has_lost_warmth(&self) -> bool {
        self.shards.iter().any(|shard| shard.lock().has_lost)
    }

    /// What a chunk of so many bytes costs.
    pub(crate) fn cost(bytes: u32) -> u64 {
        u64::from(bytes) + ENTRY_BYTES
    }

    /// Takes a chunk in, if there is room for it.
    pub(crate) fn insert(&self, class: Class, address: &ChunkAddress, content: &Bytes, origin: Origin) {
        let evicted = self.shard(address).lock().insert(class, address, content, origin);
        self.counters.cache_evictions.add(evicted.chunks);
        self.counters.prefetched_unused.add(evicted.unused);
    }

    /// The content of a chunk, if it is here.
    pub(crate) fn hit(&self, class: Class, address: &ChunkAddress) -> Option<Bytes> {
        let content = self.take(address)?;
        self.hits(class).add(1);
        Some(content)
    }

    /// The content of a chunk that was not here, as `read` gives it; or as another reads it meanwhile (W-3).
    pub(crate) async fn read_through<E>(
        &self,
        class: Class,
        address: &ChunkAddress,
        read: impl Future<Output = Result<Bytes, E>>,
    ) -> Result<Bytes, E> {
        self.misses(class).add(1);
        let lock = Cache::join(address, &mut self.shard(address).lock());
        let _turn = Turn { cache: self, address };
        let mut first = lock.lock().await;
        if let Some(content) = self.take(address).or_else(|| first.clone()) {
            return Ok(content);
        }
        let content = read.await?;
        self.insert(class, address, &content, Origin::Wanted);
        *first = Some(content.clone());
        Ok(content)
    }

    /// The right to read a chunk ahead: until it is dropped, who wants the chunk waits. `None`: it is here, or somebody reads it.
    pub(crate) fn claim(self: &Arc<Cache>, address: &ChunkAddress) -> Option<Claim> {
        let mut shard = self.shard(address).lock();
        if shard.places.contains_key(address) || shard.reading.contains_key(address) {
            return None;
        }
        let lock = Cache::join(address, &mut shard);
        let first = Arc::clone(&lock).try_lock_owned().expect("nobody else knows it");
        Some(Claim { first: Some(first), cache: Arc::clone(self), address: *address })
    }

    pub(crate) fn take(&self, address: &ChunkAddress) -> Option<Bytes> {
        let (content, before) = self.shard(address).lock().hit(address)?;
        self.counters.prefetched_used.add(u64::from(before != Use::Used));
        Some(content)
    }

    /// Joins those who want a chunk.
    fn join(address: &ChunkAddress, shard: &mut Shard) -> Arc<tokio::sync::Mutex<Option<Bytes>>> {
        let reading = shard.reading.entry(*address).or_default();
        reading.users += 1;
        Arc::clone(&reading.lock)
    }

    /// Leaves them. The last takes the lock away.
    fn leave(&self, address: &ChunkAddress) {
        let mut shard = self.shard(address).lock();
        let reading = shard.reading.get_mut(address).expect("it is there while somebody is among them");
        reading.users -= 1;
        if reading.users == 0 {
            shard.reading.remove(address);
        }
    }

    fn hits(&self, class: Class) -> &base::metric::Counter {
        match class {
            Class::Metadata => &self.counters.cache_metadata_hits,
            Class::Data => &self.counters.cache_data_hits,
        }
    }

    fn misses(&self, class: Class) -> &base::metric::Counter {
        match class {
            Class::Metadata => &self.counters.cache_metadata_misses,
            Class::Data => &self.counters.cache_data_misses,
        }
    }

    fn shard(&self, address: &ChunkAddress) -> &Mutex<Shard> {
        &self.shards[self.shard_number(address)]
    }

    fn shard_number(&self, address: &ChunkAddress) -> usize {
        // Not the bytes that the maps use.
        usize::from(address.0[ChunkAddress::BYTES - 1]) % self.shards.len()
    }
}

/// Somebody is among those who want a chunk.
struct Turn<'a> {
    cache: &'a Cache,
    address: &'a ChunkAddress,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.cache.leave(self.address);
    }
}

/// Held by who reads a chunk ahead.
pub(crate) struct Claim {
    cache: Arc<Cache>,
    address: ChunkAddress,
    first: Option<tokio::sync::OwnedMutexGuard<Option<Bytes>>>,
}

impl Claim {
    /// The content, for those who wait.
    pub(crate) fn give(mut self, content: Bytes) {
        if let Some(first) = &mut self.first {
            **first = Some(content);
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.first = None;
        self.cache.leave(&self.address);
    }
}

#[cfg(test)]
mod tests;
