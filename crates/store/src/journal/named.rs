//! Where superblocks say the journal is (J-11), for who writes them, and for the leader, who acknowledges nothing that they do not lead to.
//!
//! Kept in memory is what those say that an opening may find: of both slots, and of one that may have been written or not.
//!
//! Not here: which disks the journal goes to (`pool`), what an opening makes of it (`recover`).

use base::id::Position;

use super::{Journal, Namer, Written};
use crate::disks::DiskSet;
use crate::format::Homes;

impl Journal {
    /// Who writes superblocks; before there is one nothing is named.
    pub(crate) fn name_by(&self, namer: Namer) {
        // Called once, when the store is open.
        let _ = self.namer.set(namer);
    }

    /// What superblocks say at the opening, the newest first.
    pub(crate) fn begin_named(&self, named: Vec<(Position, Homes)>) {
        *self.named.lock() = named;
    }

    /// What a superblock that covers frames up to `covered` is to say of homes. From here on an opening may find it.
    pub(crate) async fn begin_naming(&self, covered: Position) -> Homes {
        let segments = self.segments.lock().await;
        let now = self.pool.homes().both(self.pool.good());
        let members: DiskSet = self.pool.disks.iter().map(|(disk, _)| disk).collect();
        let needed = segments.live.iter().filter(|live| live.last > covered).map(|live| live.whole.both(members));
        // What was on disks alone that were removed was given up with them.
        let needed: Vec<DiskSet> = needed.filter(|disks| !disks.is_empty()).collect();
        let best = |disks: DiskSet| {
            let best = [disks.both(now), disks.both(self.pool.good())];
            best.into_iter().find(|best| !best.is_empty()).unwrap_or(disks)
        };
        let homes = match needed.iter().copied().reduce(DiskSet::both) {
            None => Homes::each_of(if now.is_empty() { self.pool.homes() } else { now }),
            Some(have_all) if !have_all.is_empty() => Homes::each_of(best(have_all)),
            Some(_) => {
                let disks = needed.iter().filter_map(|disks| best(*disks).first()).collect();
                Homes { disks, are_all_needed: true }
            }
        };
        self.named.lock().push((covered, homes));
        homes
    }

    /// The superblock that covers so much and says so is on the disks, in the place of the one before the newest.
    pub(crate) fn note_named(&self, covered: Position, homes: Homes) {
        let mut named = self.named.lock();
        *named = std::iter::once((covered, homes)).chain(named.first().copied()).collect();
    }

    /// J-11.
    pub(super) fn is_named(&self, written: &Written) -> bool {
        let is_met = |(covered, homes): &(Position, Homes)| {
            let mut runs = written.runs.iter();
            runs.all(|(last, disks)| last <= covered || homes.lead_to(*disks))
        };
        self.named.lock().iter().all(is_met)
    }
}
