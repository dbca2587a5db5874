//! Duplicates: which copy of a chunk may be relied upon, and on how many disks it is to lie for that.
//!
//! Keeps K-6 and K-9.
//!
//! Not here: where a chunk lies (`index`), what comes of a copy that is damaged (`rotten`), who makes further copies (`copies`).

use std::sync::atomic::Ordering;

use base::id::ChunkAddress;

use super::{PackKnown, Packs};
use crate::disks::DiskSet;
use crate::format::{Class, Codec, Place, Summary};
use crate::level::{Level, Resilience};

impl Packs {
    /// Where a chunk lies that may be relied upon as a duplicate.
    pub(crate) fn duplicate(&self, address: &ChunkAddress, level: Level) -> Option<Place> {
        // An index that fails costs room, not data.
        let place = self.index.lookup_duplicate(address, &self.counters).ok()??;
        // Before the look at what is condemned: L-1.
        self.index.pin(address);
        self.is_reliable(address, &place, level).then_some(place)
    }

    /// Whether a copy of a chunk lies in a pack that is to lie on as many disks as is asked for; seeing to it that it does is the mender's. A further copy
    /// is read, for the one that is named may be that because the other did not verify (O-5), and not only because its pack was short then.
    pub(crate) async fn is_at_level(&self, address: &ChunkAddress, level: Level) -> bool {
        let is_there = |place: &Place| {
            !self.lacks_directory(place.pack) && !self.is_part(place.pack) && self.is_here(address, place, level)
        };
        // Before the look at what is condemned: L-1.
        self.index.pin(address);
        if self.index.lookup(address, &self.counters).is_ok_and(|named| named.is_some_and(|named| is_there(&named))) {
            return true;
        }
        let further = self.index.file().copies_of(address).unwrap_or_default();
        for place in further.iter().chain(&self.index.older(address)) {
            if is_there(place) && self.is_good(address, place).await.is_ok() {
                return true;
            }
        }
        false
    }

    /// K-9, for the level. O-6: of what is gone in a pack without a directory nothing is made again.
    pub(super) fn is_reliable(&self, address: &ChunkAddress, place: &Place, level: Level) -> bool {
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
    pub(super) fn copies_on_good(&self, known: &PackKnown) -> usize {
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

    /// What a pack is for whose header cannot be read (K-15).
    pub(crate) fn lost_level(&self) -> Level {
        Level::lost(self.floor())
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
        let level = |pack| catalog.get(&pack).map(|known| known.summary.level).unwrap_or_default();
        // What was chosen is not left to settings that may change: what lies well by them alone does not stand for it (plan copies, seed 8009).
        let chosen = Some(level(other)).filter(|level| level.is_chosen()).map_or(0, |level| level.copies());
        wanted(pack) < wanted(other) || level(pack).copies() < chosen
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
}
