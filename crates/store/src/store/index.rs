//! How a store keeps its index: what it takes in, what it forgets, and how it is made again when it turns out to be damaged.
//!
//! The file changes under `index_work` alone, so what is found damaged is the current one. It is made again under `reclaim_work`: a pass decides by
//! what the index names.
//!
//! Not here: the file and its pages (`index`), how a new one is filled (`reindex`), which packs go (`reclaim`).

use std::collections::BTreeMap;
use std::sync::Arc;

use base::id::ChunkAddress;

use super::Store;
use crate::disks::DiskSet;
use crate::failure::StoreError;
use crate::format::{Codec, Place};
use crate::index::{Change, IndexFile};
use crate::reindex::NewIndex;

impl Store {
    /// Returns when the index was made again in this life of the store, or could not be. Whoever comes second waits for the first.
    pub(crate) async fn make_index_again(self: &Arc<Store>) {
        let making = self.index_making.clone().lock_owned().await;
        if self.packs.index.made_again().is_some() {
            return;
        }
        let store = self.clone();
        // Beside the caller, whose thread may serve others too: it takes as long as to read every directory.
        self.platform.tasks.aside(Box::pin(async move {
            // For nobody it is not made.
            let made = store.remake_index(&|| Arc::strong_count(&store) > 1).await;
            // That it could be done was noted at once: a repair may have come since.
            if made.is_err() {
                store.packs.index.note_made_again(made);
            }
            drop(making);
        }));
        drop(self.index_making.lock().await);
    }

    /// Makes the index again, whatever was made before.
    pub(crate) async fn remake_index(&self, goes_on: &(dyn Fn() -> bool + Sync)) -> Result<(), StoreError> {
        // No reclaim meanwhile, for it decides by what the index names.
        let _no_reclaim = self.reclaim_work.lock().await;
        self.remake_held_index(goes_on).await
    }

    /// The same; the caller holds `reclaim_work`.
    pub(crate) async fn remake_held_index(&self, goes_on: &(dyn Fn() -> bool + Sync)) -> Result<(), StoreError> {
        loop {
            let disk = self.disk_for_index()?;
            let made = self.make_index_on(disk, goes_on).await;
            if let Err(StoreError::Corrupt { .. }) = &made {
                self.packs.index.note_liar(disk);
            }
            if made.is_ok() || self.disk_for_index().is_ok_and(|next| next == disk) || !goes_on() {
                return made;
            }
        }
    }

    /// Where the index is to be made: where it is, or on another disk where that takes nothing (P-5) or lies.
    fn disk_for_index(&self) -> Result<usize, StoreError> {
        let (now, takers, liars) = (self.pool.index_disk(), self.pool.takers(), self.packs.index.liars());
        let honest: DiskSet = takers.iter().filter(|disk| !liars.has(*disk)).collect();
        let choose = |from: DiskSet| Some(now).filter(|now| from.has(*now)).or(from.first());
        choose(honest).or_else(|| choose(takers)).ok_or_else(|| self.pool.full("the index", 0))
    }

    async fn make_index_on(&self, disk: usize, goes_on: &(dyn Fn() -> bool + Sync)) -> Result<(), StoreError> {
        let mut new = NewIndex::begin(&self.packs, disk)?;
        new.take_packs(goes_on).await?;
        let _work = self.index_work.lock().await;
        // Those that the old one took in meanwhile.
        new.take_packs(goes_on).await?;
        new.put_in_place()?;
        self.counters.index_made_again.add(1);
        self.packs.index.note_made_again(Ok(()));
        Ok(())
    }

    /// Gives sealed packs to the index file. A failure is no loss: the entries stay in memory, and the packs know them.
    pub(crate) async fn keep_index(&self) {
        let _ = self.take_into_index().await;
    }

    /// Gives the index file all packs that are sealed by now.
    pub(crate) async fn take_into_index(&self) -> Result<(), StoreError> {
        let _work = self.index_work.lock().await;
        if !self.packs.is_sealed_waiting() {
            return Ok(());
        }
        self.refuse_index()?;
        let change =
            Change { added: self.packs.sealed_waiting(), checked: self.packs.ages.changed(), ..Change::default() };
        self.change_index(&change)?;
        self.packs.forget_sealed(&change.added);
        self.packs.ages.note_kept(&change.checked);
        Ok(())
    }

    /// Why the index file takes no changes, if it takes none.
    fn refuse_index(&self) -> Result<(), StoreError> {
        if self.pool.for_index().is_good() && !self.packs.index.is_doubted() {
            return Ok(());
        }
        self.counters.index_failures.add(1);
        let cause = "the disk of the index failed, or the index is damaged";
        Err(StoreError::ReadOnly { cause: cause.into() })
    }

    /// Changes the index file. The caller holds `index_work`.
    pub(crate) fn change_index(&self, change: &Change) -> Result<(), StoreError> {
        self.refuse_index()?;
        let disk = self.pool.for_index();
        match self.packs.index.commit(&disk.disk, change, &self.counters) {
            Err(StoreError::Disk(error)) => {
                let failure = self.pool.failed(self.pool.index_disk(), error, &self.counters);
                if !disk.is_good() {
                    // What a failed sync left in the page cache may look whole to the next process, and not be.
                    self.doubt_index();
                }
                Err(failure)
            }
            Err(error) => {
                self.doubt_index();
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    /// Takes packs that go out of the index file, with the chunks in them. The caller holds `index_work` and, so that the packs of heirs
    /// stay, `reclaim_work`.
    pub(crate) async fn forget_in_index(&self, removed: Vec<(u64, Vec<ChunkAddress>)>) -> Result<(), StoreError> {
        self.refuse_index()?;
        let heirs = match self.heirs(&removed).await {
            Err(error @ StoreError::Corrupt { .. }) => {
                self.doubt_index();
                return Err(error);
            }
            heirs => heirs?,
        };
        self.change_index(&Change { removed, heirs, ..Change::default() })
    }

    /// Places in packs that stay, for chunks that the index names in packs that go: X-5. What does not verify is no heir: the next put of
    /// such a chunk would rely on it. Nobody relies on what lies on a missing disk (K-6), so that is one where there is no better.
    async fn heirs(&self, removed: &[(u64, Vec<ChunkAddress>)]) -> Result<Vec<(ChunkAddress, Place)>, StoreError> {
        let gone = |place: &Place| removed.iter().any(|(pack, _)| *pack == place.pack);
        let addresses = removed.iter().flat_map(|(_, addresses)| addresses).copied().collect();
        let copies = self.packs.index.file().copies(&self.pool.for_index().disk, &addresses)?;
        let (mut heirs, mut missing) = (BTreeMap::new(), BTreeMap::new());
        for of_chunk in copies.chunk_by(|(a, _), (b, _)| a == b) {
            let address = of_chunk[0].0;
            // Once for all of them: there may be thousands.
            if !self.packs.index.lookup(&address, &self.counters)?.is_some_and(|named| gone(&named)) {
                continue;
            }
            let stays = |place: &&Place| !gone(place) && self.packs.has(place.pack);
            // C-6: bundles last.
            let is_bundle = |place: &Place| place.codec == Codec::Bundle;
            let (bundles, others): (Vec<&Place>, Vec<&Place>) =
                of_chunk.iter().map(|(_, place)| place).filter(stays).partition(|place| is_bundle(place));
            for place in others.into_iter().chain(bundles) {
                if self.packs.is_missing(place.pack) {
                    missing.insert(address, *place);
                } else if self.is_sound(&address, place).await {
                    heirs.insert(address, *place);
                    break;
                }
            }
        }
        missing.extend(heirs);
        Ok(missing.into_iter().collect())
    }

    async fn is_sound(&self, address: &ChunkAddress, place: &Place) -> bool {
        if self.packs.is_good(address, place).await.is_ok() {
            return true;
        }
        // A bit that flipped on its way here may be right the next time.
        self.packs.forget_read(place).await;
        self.packs.is_good(address, place).await.is_ok()
    }

    /// Whether the index turned out to be damaged. It is made again by the next opening.
    #[must_use]
    pub fn is_index_doubted(&self) -> bool {
        self.packs.index.is_doubted()
    }

    /// The caller holds `index_work`: the file that it found damaged is the current one.
    fn doubt_index(&self) {
        self.doubt_index_file(&self.packs.index.file());
    }

    /// This file was found damaged, which another may have replaced since.
    pub(crate) fn doubt_index_file(&self, file: &Arc<IndexFile>) {
        let number = self.pool.index_disk();
        self.packs.index.doubt(number, &self.pool.disks[number].disk, file);
    }
}
