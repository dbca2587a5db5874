//! Settling: what was appended becomes durable, on the disks it was written to or, where those fail or fill, on others (K-3); or it is told to be
//! lost (K-12).
//!
//! Not here: the bytes of one pack and their sync (`open`), leaving one of several disks (`leave_failed`), sealing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::id::ChunkAddress;
use platform::disk::DiskErrorKind;
use platform::task::all;

use super::read::Memo;
use super::{Lane, OpenPack, Packs, Writer};
use crate::failure::StoreError;
use crate::format::{Class, Codec, Place};
use crate::level::COPIES_MAX;

/// Of a disk that failed so many records are asked for in vain, one after the other: each may take as long as its driver tries.
const UNANSWERED_MAX: usize = 8;

/// A point in the life of a store, from which on somebody relies on what he puts or finds there (K-12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

/// What was accepted and is lost.
#[derive(Default)]
pub(super) struct Losses {
    count: u64,
    /// What is told of the last.
    last: Option<StoreError>,
}

/// A lane that cannot write what it holds.
struct Unwritten;

impl Packs {
    /// This moment.
    pub(crate) fn moment(&self) -> Moment {
        Moment(self.losses.lock().count)
    }

    /// Makes durable what every append that returned before this call accepted, and answers for what was accepted or found since a moment.
    pub(crate) async fn settle(&self, since: Moment) -> Result<(), StoreError> {
        self.settle_appended().await?;
        let losses = self.losses.lock();
        match &losses.last {
            Some(last) if losses.count != since.0 => Err(last.clone()),
            _ => Ok(()),
        }
    }

    /// Makes durable what every append that returned before this call accepted, but for what is lost.
    pub(crate) async fn settle_appended(&self) -> Result<(), StoreError> {
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
        // Each round either ends, or takes a lane of a disk, or that disk as one of a lane's, out of the game.
        for _ in 0..=2 * self.pool.disks.end() * (1 + usize::from(COPIES_MAX)) {
            let is_all = self.flush_and_sync().await;
            if self.strand().await {
                continue;
            }
            if !self.stranded.lock().await.is_empty() {
                self.rescue().await?;
            } else if is_all {
                self.settled.fetch_max(target, Ordering::SeqCst);
                return Ok(());
            }
        }
        Err(self.pool.full("chunks that were accepted", 0))
    }

    /// Writes and syncs every lane on a good disk. They are synced side by side: each waits for its own disk, and those that lie on one file
    /// system may share a commit of its journal. Failures are left on the writers. Whether all was written and synced: who appends may have
    /// a writer go on, as if nothing had been, before anybody looks at what was left on it.
    async fn flush_and_sync(&self) -> bool {
        let flushed = all(self.lanes().map(|lane| self.flush_lane(lane))).await;
        let is_written = flushed.iter().all(Result::is_ok);
        let unsynced: Vec<_> = flushed.into_iter().filter_map(Result::ok).flatten().collect();
        // Not under the lanes' locks: appends go on meanwhile.
        let packs: Vec<&OpenPack> = unsynced.iter().map(|pack| &**pack).collect();
        let failures = OpenPack::sync_all(&packs, &self.counters).await;
        let is_synced = failures.is_empty();
        for (disk, error) in failures {
            let _ = self.pool.failed(disk, error, &self.counters);
        }
        is_written && is_synced
    }

    /// Writes what a lane has in memory; its pack, if there is anything to sync.
    async fn flush_lane(&self, lane: &tokio::sync::Mutex<Lane>) -> Result<Option<Arc<OpenPack>>, Unwritten> {
        let mut lane = lane.lock().await;
        let Some(writer) = &mut lane.writer else { return Ok(None) };
        let is_good = |disk: usize| self.pool.disks[disk].is_good();
        self.end_writing(writer).await;
        if !writer.is_stuck && writer.pack.disks().iter().all(is_good) && writer.pack.buffered_bytes() > 0 {
            self.flush_all(writer).await;
        }
        if writer.is_stuck || !writer.pack.disks().iter().all(is_good) {
            return Err(Unwritten);
        }
        Ok((!writer.pack.is_synced()).then(|| writer.pack.clone()))
    }

    /// Takes writers that cannot write any more out of their lanes. Whether one goes on without a disk that failed: it was not synced.
    async fn strand(&self) -> bool {
        let mut goes_on = false;
        for lane in self.lanes() {
            let mut lane = lane.lock().await;
            let Some(writer) = &mut lane.writer else { continue };
            self.end_writing(writer).await;
            let is_bad = |disk: usize| !self.pool.disks[disk].is_good();
            if writer.is_stuck || writer.pack.has_failed() || writer.pack.disks().iter().any(is_bad) {
                if self.leave_failed(writer) {
                    goes_on = true;
                } else {
                    let writer = lane.writer.take().expect("looked at");
                    self.stranded.lock().await.push(writer);
                }
            }
        }
        goes_on
    }

    /// Brings what stranded writers hold into lanes of other disks, or onto their own disk if it has room again.
    async fn rescue(&self) -> Result<(), StoreError> {
        let mut stranded = self.stranded.lock().await;
        // Last, for they may have in memory what others lose: those whose disks are good, and full.
        let is_well = |writer: &Writer| writer.pack.disks().iter().all(|disk| self.pool.disks[disk].is_good());
        stranded.sort_by_key(|writer| !is_well(writer));
        while let Some(writer) = stranded.last_mut() {
            if self.leave_failed(writer) {
                continue;
            }
            let disks = writer.pack.disks();
            let give_back = |bytes| disks.iter().for_each(|disk| self.pool.disks[disk].settle_promise(bytes));
            if disks.iter().all(|disk| self.pool.disks[disk].is_good()) && !writer.pack.has_failed() {
                let mut done = writer.pack.flush(None, &self.counters, &give_back).await;
                if done.is_ok() {
                    done = writer.pack.sync(&self.counters).await;
                }
                let Err((disk, error)) = done else {
                    give_back(writer.promised());
                    // It takes no more, and is sealed with those for whose directory there was no room.
                    self.unsealed.lock().extend(stranded.pop());
                    continue;
                };
                let _ = self.pool.failed(disk, error, &self.counters);
                if self.leave_failed(writer) {
                    continue;
                }
            }
            let durable = writer.pack.synced();
            let (mut copies, mut lost, mut memo) = (Vec::new(), Vec::new(), Memo::default());
            let (is_good, mut unanswered) = (disks.iter().all(|disk| self.pool.disks[disk].is_good()), BTreeSet::new());
            for entry in writer.entries.iter().filter(|entry| entry.content_end() > durable) {
                let (address, place) = (entry.header.address, Place::of(writer.pack.number, entry));
                // An earlier try that stopped halfway may have moved it.
                if self.index.recent(&address) != Some(place) {
                    continue;
                }
                let (start, length) = (place.span().start, place.record().len());
                let is_in_memory = || self.buffered(place.pack, start, length).is_some();
                if !is_good && unanswered.len() >= UNANSWERED_MAX && !is_in_memory() {
                    lost.push((address, place));
                    continue;
                }
                // What comes back from a disk that failed is believed only if it is what its address says. Of a bundle what lies in it counts.
                match self.read_copy(&address, &place, &mut memo).await {
                    Ok(copy) => {
                        unanswered.clear();
                        copies.extend(Some(copy).filter(|_| place.codec != Codec::Bundle));
                    }
                    // It will answer, or fail.
                    Err(StoreError::Disk(error)) if is_good && error.kind == DiskErrorKind::Silent => {
                        return Err(error.into());
                    }
                    Err(error) => {
                        // What lies in one bundle is one record.
                        unanswered.extend(matches!(error, StoreError::Disk(_)).then_some(start));
                        lost.push((address, place));
                    }
                }
            }
            // Before anything that may fail, or that this may be dropped at: who comes next finds nothing more of it.
            self.give_up(&lost, self.path_of(writer.pack.number));
            let kind = (writer.pack.class, writer.pack.summary().level);
            self.append_copies(kind, Class::Metadata, copies).await?;
            give_back(writer.promised());
            // On disks that failed too: from there it is copied away (K-7).
            stranded.pop().into_iter().for_each(|writer| self.leave_what_is_durable(&writer));
        }
        Ok(())
    }

    /// K-12. What is named elsewhere by now stays so.
    fn give_up(&self, lost: &[(ChunkAddress, Place)], path: String) {
        let mut chunks = 0;
        for (address, place) in lost {
            // As before it was stored here, which may have been because it had rotted there: so nobody relies on that.
            let older = self.index.older(address);
            let other = older.iter().rfind(|place| self.is_durable(place)).or(older.last()).copied();
            // What lay in a bundle is lost by itself.
            let is_chunk = place.codec != Codec::Bundle;
            let also = || {
                if is_chunk {
                    self.doubt(*address);
                }
            };
            chunks += u64::from(self.index.forget_lost(address, place, other, also) && is_chunk);
        }
        if chunks > 0 {
            self.counters.chunks_dropped.add(chunks);
            let mut losses = self.losses.lock();
            losses.count += 1;
            losses.last = Some(StoreError::Dropped { chunks, path: path.into() });
        }
    }
}
