//! Tests of the whole store on a simulated world.
//!
//! - `bundles`: small chunks that are compressed together
//! - `open`: what is refused, and that refusing changes nothing
//! - `life`: everyday use, without faults
//! - `calls`: each call to a disk fails once, by itself
//! - `crash`: random operations, a power cut at a random one, and what must be there afterwards
//! - `degraded`: a disk is missing, and comes back
//! - `faults`: disks that err, flip and lose
//! - `fragments`: packs in fragments, any of which may fail, lie or go
//! - `full`: disks that fill up
//! - `check`: damage is found and named
//! - `levels`: what asks for more or fewer copies than the rest
//! - `members`: disks come and go while the node works
//! - `hostile`: a structure lies, with a checksum that is right
//! - `ordered`: masses of chunks in the order in which they lie
//! - `parcels`: chunks on their way to another node
//! - `parts`: parts of chunks, read and verified by themselves
//! - `reclaim`: what nobody needs goes, what somebody needs stays
//! - `reindex`: an index that is damaged while the store works
//! - `repair`: what is found is mended, also when the power goes meanwhile
//! - `trees`: trees lie on two disks, and want of the second stops nobody

mod bundles;
mod calls;
mod check;
mod copies;
mod crash;
mod degraded;
mod faults;
mod fragments;
mod full;
mod hostile;
mod levels;
mod life;
mod members;
mod open;
mod ordered;
mod parcels;
mod parts;
mod reclaim;
mod reindex;
mod repair;
mod scrub;
mod speed;
mod trees;
mod upkeep;

use std::sync::Arc;

use base::id::{ChunkAddress, NodeNumber};
use bytes::Bytes;
use platform::disk::Disk;
use platform::sim::{SimDisk, World};

use crate::{Compression, Marks, Options, Pace, ReclaimReport, Recovered, Share, Store, StoreError, Sweep};

/// Small packs and caches, so that little data makes much happen.
pub(crate) fn options() -> Options {
    Options {
        cache_bytes: 64 << 10,
        cache_weights: crate::Weights::WEIGHTED,
        ahead_bytes_max: 1 << 20,
        gap_bytes: Some(128 << 10),
        put_bytes_max: 8 << 20,
        index_cache_bytes: 256 << 10,
        pack_bytes: 0,
        pack_chunks_max: 64 << 10,
        run_bytes: 1 << 20,
        segment_bytes: 0,
        copies: 1,
        fragments: None,
        compression: Compression::Zstd(1),
        reserve_bytes: 8 << 20,
        gives_up_frames: false,
        goes_without_disks: false,
    }
}

/// A machine with a formatted node on `count` disks.
pub(crate) struct Machine {
    pub(crate) world: World,
    pub(crate) disks: Vec<SimDisk>,
}

impl Machine {
    pub(crate) fn new(seed: u64, count: usize, capacity: u64) -> Machine {
        let world = World::new(seed);
        let disks: Vec<SimDisk> = (0..count).map(|number| world.disk(&format!("/d{number}"), capacity)).collect();
        let machine = Machine { world, disks };
        machine.run(Store::create(&machine.world.platform(), &machine.handles(), NodeNumber(7), b"first")).unwrap();
        machine
    }

    pub(crate) fn handles(&self) -> Vec<Disk> {
        self.disks.iter().map(SimDisk::disk).collect()
    }

    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.world.run_until(future).unwrap()
    }

    pub(crate) fn try_open(&self) -> Result<(Arc<Store>, Recovered), StoreError> {
        self.run(Store::open(&self.world.platform(), &self.handles(), options()))
    }

    pub(crate) fn open(&self) -> (Arc<Store>, Recovered) {
        self.try_open().unwrap()
    }
}

/// A pass that keeps what `is_live` says.
pub(crate) async fn reclaim(
    store: &Store,
    is_live: &(dyn Fn(&ChunkAddress) -> bool + Sync),
) -> Result<ReclaimReport, StoreError> {
    let mut marks = store.begin_mark(false).await?;
    marks.keep(is_live, &hurried(store)).await;
    sweep(store, marks, &|| true).await
}

/// No pauses, to the end.
pub(crate) fn hurried(store: &Store) -> Pace<'_> {
    Pace::new(&store.platform, &|| Share::FULL, &|| true)
}

/// What follows the marks, as fast as it can.
pub(crate) async fn sweep(
    store: &Store,
    marks: Marks<'_>,
    goes_on: &(dyn Fn() -> bool + Sync),
) -> Result<ReclaimReport, StoreError> {
    let pace = Pace::new(&store.platform, &|| Share::FULL, goes_on);
    store.reclaim(marks, &Sweep { pace: &pace, is_thorough: false, wanted_bytes: None, tell: &|_, _| {} }).await
}

/// Content that is told apart by `number`; every other one compresses.
pub(crate) fn content(number: u64, length: usize) -> Bytes {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    bytes.extend_from_slice(&number.to_le_bytes());
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let fresh = if number.is_multiple_of(2) { state } else { state & 0x0303 };
        bytes.extend_from_slice(&fresh.to_le_bytes());
    }
    bytes.truncate(length.max(8));
    Bytes::from(bytes)
}
