//! Members: which disks the node has, changed while it works (D-5, P-6).
//!
//! A disk comes in two steps, so that whoever keeps a list of the node's disks can note it between them: formatted, then taken in. It goes in
//! two as well: drained by `copies`, then removed. A disk that failed or is missing is removed at once, if nothing lies there alone.
//!
//! Not here: moving what is on a disk (`copies`), who the disks are when a store is opened (`identity`).

use std::sync::Arc;

use platform::disk::{Disk, Open};

use crate::disks::{DISKS_MAX, DiskSet};
use crate::failure::{StoreError, refused};
use crate::format::{Class, FragmentName, Identity, PACK_SUFFIX, PACKS, number_of, pack_path};
use crate::identity::{self, Member};
use crate::pack::{PackKnown, PackState};
use crate::pool::{Part, Pool};
use crate::store::Store;

/// What draining a disk would do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainPlan {
    /// Packs on the disk.
    pub packs: u64,
    /// Bytes of those that have to be written to other disks.
    pub bytes: u64,
    /// Room that the others have for them.
    pub room_bytes: u64,
    /// On how many disks something is to be that lies there, at most.
    pub copies: usize,
    /// Disks that would take something then.
    pub disks_left: usize,
}

impl DrainPlan {
    /// Whether something would be on fewer disks than was asked for.
    #[must_use]
    pub fn lowers(&self) -> bool {
        self.copies > self.disks_left
    }
}

/// A disk that the node does without.
pub struct Gone {
    pool: Arc<Pool>,
    disk: usize,
}

impl Gone {
    /// Where it is, or should be.
    #[must_use]
    pub fn path(&self) -> &str {
        self.pool.disks[self.disk].disk.path()
    }

    /// Makes it an empty directory, but for packs that are needed nowhere, when nobody takes it for a disk of the node any more.
    ///
    /// # Errors
    /// The disk's. No opening takes it for a disk of the node, wiped or not.
    pub fn wipe(self) -> Result<(), StoreError> {
        let on = &self.pool.disks[self.disk];
        let wiped = if on.is_missing { Ok(()) } else { identity::wipe(&on.disk) };
        on.unlock();
        Ok(wiped?)
    }
}

impl Store {
    /// Formats an empty directory as one more disk, of which the node knows nothing before [`Store::take_in_disk`].
    ///
    /// # Errors
    /// `Refused` for what is no empty directory, or if there are too many disks; a disk's error.
    pub async fn format_disk(&self, disk: &Disk) -> Result<(), StoreError> {
        let _work = self.disk_work.lock().await;
        self.refuse_degraded()?;
        let Some(number) = self.pool.free_number() else {
            let why = format!("the node has {DISKS_MAX} disks, or has had so many since its daemon was started.");
            return Err(refused(disk.path(), why, "Restart the daemon if some of them were removed, and try again."));
        };
        let mut disk_uuid = [0; 16];
        self.platform.chance.fill(&mut disk_uuid);
        let disk_count = u16::try_from(self.pool.disks.iter().count() + 1).expect("at most DISKS_MAX");
        let number = u16::try_from(number).expect("below DISKS_MAX");
        let created = self.platform.clock.now();
        let identity = Identity { disk: number, disk_count, disk_uuid, created, ..self.identity.clone() };
        identity::format_more(disk, &identity, &self.pool.table()).await
    }

    /// Takes in a disk that [`Store::format_disk`] has formatted; its number. From now on the node needs it.
    ///
    /// # Errors
    /// `Refused` if it is none; a disk's error. The node goes on without it then.
    pub async fn take_in_disk(&self, disk: &Disk) -> Result<u64, StoreError> {
        let _work = self.disk_work.lock().await;
        self.refuse_degraded()?;
        let (identity, _) = identity::read(disk).await?;
        let number = usize::from(identity.disk);
        let is_ours = identity.node_identity == self.pool.node_identity;
        if !is_ours || self.pool.table().contains(&identity.disk_uuid) || self.pool.free_number() != Some(number) {
            let why = "it is no disk that was formatted for this node and not taken in yet.";
            return Err(refused(disk.path(), why, "Name an empty directory."));
        }
        let member = Member { disk: disk.clone(), identity, missing: None, lock: Some(identity::lock(disk)?) };
        let good = self.pool.good();
        // P-6: it takes nothing before a superblock names it.
        self.pool.add(member, Part::Joining)?;
        let added = &self.pool.disks[number];
        let mut named = self.renew_root().await;
        if let (Ok(()), lost @ 1..) =
            (&named, good.with(number).iter().filter(|disk| !self.pool.good().has(*disk)).count())
        {
            let cause = format!("{lost} disks failed while it was taken in");
            named = Err(StoreError::ReadOnly { cause: cause.into() });
        }
        if let Err(error) = named {
            added.set_part(Part::Removed);
            // What the superblocks say now nobody knows; the next one says what is.
            let _ = self.renew_root().await;
            added.unlock();
            return Err(error);
        }
        added.set_part(Part::Whole);
        Ok(number as u64)
    }

    /// What [`Store::drain_disk`] would do.
    ///
    /// # Errors
    /// `Refused` for a disk that the node does not have.
    pub fn drain_plan(&self, number: u64) -> Result<DrainPlan, StoreError> {
        let disk = self.member(number)?;
        let takers = self.pool.takers().without(disk);
        // Also where nothing lies yet.
        let of_trees = usize::from(self.packs.asked_of_trees());
        let mut plan = DrainPlan { copies: of_trees, disks_left: takers.count(), ..DrainPlan::default() };
        for known in self.packs.known().into_values().filter(|known| known.places().has(disk)) {
            plan.packs += 1;
            // What nobody asked for keeps no disk.
            let wanted = self.packs.asked_copies((known.summary.class, self.packs.now(&known.summary)));
            plan.copies = plan.copies.max(wanted);
            if let Some(fragments) = known.fragments().filter(|_| known.is_cut()) {
                plan.bytes += match takers.count() < fragments.cut.erasure.count() {
                    // It is made whole again.
                    true => known.bytes() * u64::from(fragments.cut.erasure.copies()),
                    false => fragments.cut.file_bytes(),
                };
            } else if known.disks().both(takers).count() < wanted.min(takers.count()) {
                plan.bytes += known.bytes();
            }
        }
        let room = |disk: usize| {
            let _ = self.pool.disks[disk].look();
            self.pool.room(disk, Class::Data)
        };
        plan.room_bytes = takers.iter().map(room).sum();
        Ok(plan)
    }

    /// Has a disk take nothing new, and what lies there be brought to others by [`Store::restore_copies`]; or, not `is_drained`, has it take
    /// part again.
    ///
    /// # Errors
    /// `Refused` for a disk that the node does not have, that is missing or failed, or that the others have no room for; why it could not be
    /// noted.
    pub async fn drain_disk(&self, number: u64, is_drained: bool) -> Result<(), StoreError> {
        let _work = self.disk_work.lock().await;
        let disk = self.member(number)?;
        let on = &self.pool.disks[disk];
        if is_drained {
            if !on.is_good() {
                let why = format!("disk {number} takes no writes ({}).", on.words());
                return Err(refused(
                    on.disk.path(),
                    why,
                    "What was on it is on others, or cannot be brought there: remove it.",
                ));
            }
            if self.pool.takers().without(disk).is_empty() {
                let why = "no other disk takes what lies there.";
                return Err(refused(on.disk.path(), why, "Add a disk first."));
            }
            let plan = self.drain_plan(number)?;
            if plan.bytes > plan.room_bytes {
                let (needed, room) = (base::units::Bytes(plan.bytes), base::units::Bytes(plan.room_bytes));
                let why =
                    format!("the other disks have no room for what lies there: {needed} are needed, they have {room}.");
                return Err(refused(on.disk.path(), why, "Add a disk first, or make room."));
            }
        }
        let before = on.set_part(if is_drained { Part::Drained } else { Part::Whole });
        let noted = self.renew_root().await;
        if noted.is_err() {
            on.set_part(before);
        }
        noted
    }

    /// Whether all that the node needs is on other disks.
    ///
    /// # Errors
    /// `Refused` for a disk that the node does not have; the disk's.
    pub async fn is_disk_empty(&self, number: u64) -> Result<bool, StoreError> {
        let disk = self.member(number)?;
        Ok(self.what_is_on(disk).await?.is_none())
    }

    /// The node does without a disk from now on: one that was drained, or one that failed or is missing, of which nothing is needed or, with
    /// `accepts_loss`, whatever is. The caller has committed all frames, twice.
    ///
    /// # Errors
    /// `Refused`, and then nothing was changed; why it could not be noted.
    pub async fn remove_disk(&self, number: u64, accepts_loss: bool) -> Result<Gone, StoreError> {
        let _work = self.disk_work.lock().await;
        let disk = self.member(number)?;
        let on = &self.pool.disks[disk];
        let path = on.disk.path();
        if self.pool.disks.iter().filter(|(_, other)| other.is_good()).all(|(other, _)| other == disk) {
            return Err(refused(path, "it is the last disk that the node has.", "Add another one first."));
        }
        if on.takes() {
            return Err(refused(path, "it takes part in everything.", "Drain it first (`hydrafs disk drain`)."));
        }
        if !on.is_good() {
            // Writers that are on it leave it.
            self.packs.settle_appended().await?;
        }
        // From here on nothing comes to it: no pack is begun there (P-6), no copy is written, no index made.
        self.packs.seal_on(DiskSet::of(disk)).await;
        let _copies = self.copy_work.lock().await;
        let _index = self.reclaim_work.lock().await;
        // Where the journal takes nothing more it cannot move; `needs` says so.
        let _ = self.journal.move_homes().await;
        let needed = self.what_is_on(disk).await?;
        if let Some(needed) = &needed
            && (on.is_good() || !accepts_loss)
        {
            let advice = match (on.is_good(), on.is_missing) {
                (true, _) => "Drain it first (`hydrafs disk drain`).",
                (false, true) => "Mount it again, or go on without what was there (`--accept-loss`).",
                (false, false) => {
                    "Restart the daemon, so that it is tried again, or go on without what is there (`--accept-loss`)."
                }
            };
            return Err(refused(path, format!("{needed}."), advice));
        }
        if self.pool.homes().has(disk) {
            let cause = "the journal takes nothing more, and no other disk has it";
            return Err(StoreError::ReadOnly { cause: cause.into() });
        }
        let before = on.set_part(Part::Removed);
        // Twice: the slot before would ask for it.
        let mut noted = self.renew_root().await;
        if noted.is_ok() {
            noted = self.renew_root().await;
        }
        if let Err(error) = noted {
            on.set_part(before);
            return Err(error);
        }
        self.packs.forget_disk(disk, self.pool.missing());
        // What waited for it waits no more (N-4), and is seen to be on too few disks.
        self.packs.seal_unsealed().await;
        Ok(Gone { pool: self.pool.clone(), disk })
    }

    fn member(&self, number: u64) -> Result<usize, StoreError> {
        let found = self.pool.disks.iter().find(|(disk, _)| *disk as u64 == number);
        found.map(|(disk, _)| disk).ok_or_else(|| {
            let why = format!("the node has no disk {number}.");
            refused("the node", why, "See `hydrafs disk list`.")
        })
    }

    /// What is needed and, as far as anybody knows, whole on no other disk that works.
    async fn what_is_on(&self, disk: usize) -> Result<Option<String>, StoreError> {
        let on = &self.pool.disks[disk];
        let others = self.pool.good().without(disk);
        let is_needed = |pack: u64, known: &PackKnown| match &known.state {
            PackState::Missing => on.is_missing,
            // What the disk has of it, which nobody knows, is asked for below.
            PackState::Open(_) if self.packs.is_waiting(&known.state) && !known.places().has(disk) => false,
            // One that takes writes is left by all.
            PackState::Open(_) | PackState::Sealed if on.is_good() => known.places().has(disk),
            // O-6: what it lacks may be there.
            PackState::Sealed if on.is_missing && known.summary.lacks_directory => true,
            PackState::Open(_) | PackState::Sealed => {
                let suspect = self.packs.suspect_on(pack);
                let sound: DiskSet = others.iter().filter(|other| !suspect.has(*other)).collect();
                let is_made = known.fragments().is_some_and(|fragments| fragments.is_readable_on(sound));
                known.places().has(disk) && known.disks().both(sound).is_empty() && !is_made
            }
        };
        let (mut packs, mut bytes) = (0, 0);
        let known = self.packs.known();
        // K-6: what there is of it may be all that ever will be.
        let is_rest =
            |known: &&PackKnown| matches!(known.state, PackState::Missing) && known.to_read().places().has(disk);
        let rests = known.values().filter(is_rest).count();
        if !on.is_missing && rests > 0 {
            return Ok(Some(format!(
                "parts of {rests} packs are there, and the rest of them on a disk that is missing: mount that again, or \
                 remove it first"
            )));
        }
        for (_, known) in known.iter().filter(|(pack, known)| is_needed(**pack, known)) {
            packs += 1;
            bytes += known.bytes();
        }
        if packs > 0 {
            let bytes = base::units::Bytes(bytes);
            return Ok(Some(format!("content of {bytes} in {packs} packs is there, and on no other disk")));
        }
        // N-4: nobody knows what the disk that a pack waits for has of it.
        let waits_for_it = |(pack, known): (&u64, &PackKnown)| {
            self.packs.is_waiting(&known.state)
                && !known.places().has(disk)
                && (!on.is_good() || on.disk.open(&pack_path(*pack), Open::Read).is_ok())
        };
        if known.iter().any(waits_for_it) {
            return Ok(Some("nobody can tell any more what is on it alone".to_owned()));
        }
        if on.is_missing {
            // What the index has not heard of yet, or an index that was there too, would have said more: whether this opening made one or an earlier
            // one did.
            let has_copies =
                known.values().all(|known| known.summary.level.copies() > 1) && self.options.level().copies() > 1;
            let index = &self.packs.index;
            if !has_copies || index.made_again().is_some() || index.file().lacks_packs() {
                return Ok(Some("nobody can tell any more what is on it alone".to_owned()));
            }
        } else {
            match on.disk.list(PACKS) {
                Ok(names) => {
                    let packs = names.iter().filter_map(|name| number_of(name, PACK_SUFFIX));
                    let fragments = names.iter().filter_map(|name| FragmentName::of(name)).map(|name| name.pack);
                    let is_unknown = |pack: &u64| !known.contains_key(pack) && !self.packs.is_emptied(*pack);
                    let unknown = packs.chain(fragments).filter(is_unknown).count();
                    if unknown > 0 {
                        let why = format!("{unknown} packs are there that the node does not know (see `hydrafs fsck`)");
                        return Ok(Some(why));
                    }
                }
                // One that failed may give no answer.
                Err(error) if on.is_good() => return Err(error.into()),
                Err(_) => {}
            }
        }
        if self.pool.index_disk() == disk && on.is_good() {
            return Ok(Some("the index is there".to_owned()));
        }
        let needs_journal = self.journal.needs(disk).await;
        Ok(needs_journal.then(|| "the journal is there, and on no other disk".to_owned()))
    }
}
