//! Warming: what is read beforehand stays in memory, and does not push out what was read for the same purpose.
//!
//! Not here: what is wanted (`file`); counting what came in (`cache`).

use std::collections::HashSet;
use std::sync::Arc;

use base::id::ChunkAddress;
use bytes::Bytes;

use crate::cache::{Cache, Origin};
use crate::format::Class;
use crate::index::AddressHash;
use crate::store::Store;

/// Of so many parts of the cache one is left to others.
const PARTS: u64 = 8;

/// The cache while it is being warmed. One at a time: the next one counts anew.
pub struct Warming {
    store: Arc<Store>,
    /// For chunks of this part that have not come, by shard.
    reserved: Vec<u64>,
    /// Of this part those that are to be read.
    wanted: HashSet<ChunkAddress, AddressHash>,
    is_full: bool,
}

impl Store {
    /// Begins to warm the cache: what comes in or is used from now on, by whomever, is what it is to hold.
    #[must_use]
    pub fn begin_warming(self: &Arc<Store>) -> Warming {
        let reserved = vec![0; self.cache.begin_warming()];
        Warming { store: Arc::clone(self), reserved, wanted: HashSet::default(), is_full: false }
    }
}

impl Warming {
    /// Takes in a chunk of so many bytes of content; `false`: there is no room for it.
    pub fn add(&mut self, address: &ChunkAddress, bytes: u32) -> bool {
        if self.wanted.contains(address) || self.store.cache.touch(address) {
            return true;
        }
        let (shard, warm, capacity) = self.store.cache.warmth(address);
        let cost = Cache::cost(bytes);
        if warm + self.reserved[shard] + cost > most(capacity) {
            self.is_full = true;
            return false;
        }
        self.reserved[shard] += cost;
        self.wanted.insert(*address);
        true
    }

    /// What is to be read of what was taken in, in whatever order. The next part begins.
    pub fn take(&mut self) -> Vec<ChunkAddress> {
        self.wanted.drain().collect()
    }

    /// Keeps one of them.
    pub fn keep(&self, address: &ChunkAddress, content: &Bytes) {
        self.store.cache.insert(Class::Data, address, content, Origin::Ahead);
    }

    /// All of a part has come, or will not.
    pub fn end_part(&mut self) {
        self.reserved.fill(0);
    }

    /// Whether there is no room for more: something was refused, or went again for what was read of trees.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let cache = &self.store.cache;
        self.is_full || cache.has_lost_warmth() || cache.shards_warmth().any(|(warm, capacity)| warm > most(capacity))
    }

    /// Bytes that memory holds of it, and that it can hold of anything, with what they cost beyond.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        let all = self.store.cache.shards_warmth();
        all.fold((0, 0), |(bytes, room), (warm, capacity)| (bytes + warm, room + capacity))
    }
}

fn most(capacity: u64) -> u64 {
    capacity - capacity / PARTS
}
