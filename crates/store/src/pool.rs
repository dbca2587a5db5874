//! The pool: the disks of the node, their health and their room.
//!
//! P-1   A disk that failed a write or a sync takes no more writes until the store is opened again: nobody knows what it
//!       holds. It is still read, because every read is verified.
//! P-2   Data never takes the last `reserve_bytes` of a disk: they belong to metadata, the journal and the index, so that
//!       deleting and committing still work on a full disk.
//! P-3   A missing disk (D-4) keeps its number. It failed from the start, and every operation on it fails as `Failed`: what lies there is
//!       unknown, and not lost. Whoever goes over all disks by what they hold leaves it out.
//! P-4   A disk that failed to give back what it has, or gave something else, takes nothing new while another has room, until the store
//!       is opened again: who fails to read is about to fail, and what it takes it has alone.
//!
//! P-5   The journal is on some disks, its homes, and the index on one. Which ones the superblock says. Those that are homes stay so as long as
//!       they take writes; where they do not, others take their place, as long as there are any.
//! P-6   A disk that is drained, or that no superblock names yet, takes nothing new but superblocks. What lies on one that is drained is
//!       brought to others before it goes there (`copies`).
//! P-7   The last part of a reserve is for what no chunk is: the index, which has to take note of packs that go, and the journal. Nothing could be
//!       given back on a disk without it.
//!
//! Not here: what is written (`pack`, `journal`), who the disks are (`identity`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use platform::Clock;
use platform::disk::{Disk, DiskError, DiskErrorKind, Open, Space};

use crate::counters::Counters;
use crate::disks::{DISKS_MAX, DiskSet};
use crate::failure::StoreError;
use crate::format::{Class, Identity};
use crate::identity::{Lock, Member};
use crate::speed::DiskSpeed;

/// How a disk does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Reads and writes.
    Good,
    /// Takes no writes because of this.
    Failed(String),
}

/// Which part of the work a disk has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Superblocks: none names it yet.
    Joining,
    /// Everything.
    Whole,
    /// Superblocks, and what it has is read: P-6.
    Drained,
    /// Nothing: the node does without it. Whoever still has it in hand finds that it takes no writes.
    Removed,
}

/// One disk of the pool.
pub(crate) struct PoolDisk {
    pub(crate) disk: Disk,
    pub(crate) uuid: [u8; 16],
    /// As it was read, or as its copy says.
    pub(crate) identity: Identity,
    /// P-3.
    pub(crate) is_missing: bool,
    health: Mutex<Health>,
    part: Mutex<Part>,
    /// Free bytes at the last look, less what was given out since.
    free: AtomicU64,
    /// Bytes in buffers, and of directories to come: given out and not on the disk yet.
    promised: AtomicU64,
    /// P-4.
    reads_failed: AtomicU64,
    speed: Mutex<Option<DiskSpeed>>,
    /// Counts the packs that began here and have copies, for whose turn it is to have them.
    turn: AtomicUsize,
    /// P-2.
    pub(crate) reserve_bytes: u64,
    /// D-3: the disk is ours until the last who may write to it is gone.
    lock: Mutex<Option<Lock>>,
}

impl PoolDisk {
    fn new(
        Member { disk, identity, missing, lock }: Member,
        part: Part,
        reserve_bytes: u64,
    ) -> Result<PoolDisk, DiskError> {
        let space = if missing.is_some() { Space::default() } else { disk.space()? };
        Ok(PoolDisk {
            disk,
            uuid: identity.disk_uuid,
            identity,
            is_missing: missing.is_some(),
            health: Mutex::new(missing.map_or(Health::Good, |why| Health::Failed(format!("missing: {why}")))),
            part: Mutex::new(part),
            free: AtomicU64::new(space.free),
            promised: AtomicU64::new(0),
            reads_failed: AtomicU64::new(0),
            speed: Mutex::default(),
            turn: AtomicUsize::new(0),
            reserve_bytes: reserve_bytes.min(space.total / RESERVE_PART),
            lock: Mutex::new(lock),
        })
    }

    /// Whether it takes something new: P-6.
    pub(crate) fn takes(&self) -> bool {
        self.is_good() && self.part() == Part::Whole
    }

    pub(crate) fn part(&self) -> Part {
        *self.part.lock()
    }

    /// Gives the part that it had.
    pub(crate) fn set_part(&self, part: Part) -> Part {
        std::mem::replace(&mut *self.part.lock(), part)
    }

    /// Another process may have it.
    pub(crate) fn unlock(&self) {
        *self.lock.lock() = None;
    }

    pub(crate) fn is_good(&self) -> bool {
        self.part() != Part::Removed && *self.health.lock() == Health::Good
    }

    pub(crate) fn health(&self) -> Health {
        self.health.lock().clone()
    }

    /// How it does, in words.
    pub(crate) fn words(&self) -> String {
        match self.health() {
            Health::Good => "good".to_owned(),
            Health::Failed(cause) => cause,
        }
    }

    /// Reads that it failed, or answered with wrong bytes.
    pub(crate) fn reads_failed(&self) -> u64 {
        self.reads_failed.load(Ordering::Relaxed)
    }

    /// Notes such a read.
    pub(crate) fn note_failed_read(&self) {
        self.reads_failed.fetch_add(1, Ordering::Relaxed);
    }

    /// As it was measured last.
    pub(crate) fn speed(&self) -> Option<DiskSpeed> {
        *self.speed.lock()
    }

    pub(crate) fn set_speed(&self, speed: DiskSpeed) {
        *self.speed.lock() = Some(speed);
    }

    pub(crate) fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// Asks the disk anew.
    pub(crate) fn look(&self) -> Result<(), DiskError> {
        let space = self.disk.space()?;
        let promised = self.promised.load(Ordering::Relaxed);
        self.free.store(space.free.saturating_sub(promised), Ordering::Relaxed);
        Ok(())
    }

    /// The promise was kept, or is void: the next look sees what became of it.
    pub(crate) fn settle_promise(&self, bytes: u64) {
        let less = |promised: u64| Some(promised.saturating_sub(bytes));
        let _ = self.promised.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Promises room for bytes that will be written.
    pub(crate) fn promise(&self, bytes: u64) {
        self.promised.fetch_add(bytes, Ordering::Relaxed);
        let _ = self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| Some(free.saturating_sub(bytes)));
    }

    /// Notes that the disk said it is full.
    pub(crate) fn note_full(&self) {
        self.free.store(0, Ordering::Relaxed);
    }
}

/// The disks by number. A number is taken once in the life of a store.
pub(crate) struct Disks([OnceLock<PoolDisk>; DISKS_MAX]);

impl Disks {
    /// All disks of the node, those that are missing included.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &PoolDisk)> {
        let known = self.0.iter().enumerate().filter_map(|(number, slot)| Some((number, slot.get()?)));
        known.filter(|(_, disk)| disk.part() != Part::Removed)
    }

    /// Numbers of disks are below this.
    pub(crate) fn end(&self) -> usize {
        self.0.iter().rposition(|slot| slot.get().is_some()).map_or(0, |last| last + 1)
    }

    /// A number for one more.
    fn free(&self) -> Option<usize> {
        self.0.iter().position(|slot| slot.get().is_none())
    }
}

impl std::ops::Index<usize> for Disks {
    type Output = PoolDisk;

    fn index(&self, number: usize) -> &PoolDisk {
        self.0[number].get().expect("numbers of disks come from the pool")
    }
}

/// All disks.
pub(crate) struct Pool {
    /// For measuring.
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) disks: Disks,
    pub(crate) node_identity: [u8; 16],
    /// What data leaves free on each disk, as far as it is not more than its part of it.
    reserve_bytes: u64,
    /// P-5.
    homes: Mutex<DiskSet>,
    index: AtomicUsize,
}

/// A reserve never takes more than this part of a disk.
const RESERVE_PART: u64 = 8;
/// K-14: this part of the reserve.
const UNASKED_PART: u64 = 2;
/// P-7: this part of the reserve.
const LAST_PART: u64 = 16;

impl Pool {
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        disks: Vec<Member>,
        drained: DiskSet,
        reserve_bytes: u64,
    ) -> Result<Pool, StoreError> {
        let node_identity = disks[0].identity.node_identity;
        let pool = Pool {
            clock,
            disks: Disks([const { OnceLock::new() }; DISKS_MAX]),
            node_identity,
            reserve_bytes,
            homes: Mutex::new(DiskSet::of(0)),
            index: AtomicUsize::new(0),
        };
        for member in disks {
            let is_drained = drained.has(usize::from(member.identity.disk));
            pool.add(member, if is_drained { Part::Drained } else { Part::Whole })?;
        }
        Ok(pool)
    }

    /// Takes in one disk more.
    pub(crate) fn add(&self, member: Member, part: Part) -> Result<(), StoreError> {
        let number = usize::from(member.identity.disk);
        let disk = PoolDisk::new(member, part, self.reserve_bytes)?;
        assert!(self.disks.0[number].set(disk).is_ok(), "its number is free: who asked has looked");
        Ok(())
    }

    /// A number for one more disk.
    pub(crate) fn free_number(&self) -> Option<usize> {
        self.disks.free()
    }

    /// Uuids by number, as a superblock names them: zeroes where there is no disk.
    pub(crate) fn table(&self) -> Vec<[u8; 16]> {
        let mut table = vec![[0; 16]; self.disks.iter().last().map_or(0, |(last, _)| last + 1)];
        self.disks.iter().for_each(|(number, disk)| table[number] = disk.uuid);
        table
    }

    /// Those that are drained.
    pub(crate) fn drained(&self) -> DiskSet {
        self.disks.iter().filter(|(_, disk)| disk.part() == Part::Drained).map(|(number, _)| number).collect()
    }

    /// Those that take something new.
    pub(crate) fn takers(&self) -> DiskSet {
        self.disks.iter().filter(|(_, disk)| disk.takes()).map(|(number, _)| number).collect()
    }

    /// How many belong to the node and are not drained, those that failed or are missing among them.
    pub(crate) fn whole(&self) -> usize {
        self.disks.iter().filter(|(_, disk)| disk.part() == Part::Whole).count()
    }

    /// Whether a disk has room for `bytes` that nobody asked for (K-14).
    pub(crate) fn is_roomy(&self, disk: usize, bytes: u64) -> bool {
        let disk = &self.disks[disk];
        disk.takes() && disk.free() >= bytes.saturating_add(disk.reserve_bytes / UNASKED_PART)
    }

    /// Those that take no writes.
    pub(crate) fn without(&self) -> DiskSet {
        self.disks.iter().filter(|(_, disk)| !disk.is_good()).map(|(number, _)| number).collect()
    }

    /// Disks that are there, with their numbers. Not all of them need be good.
    pub(crate) fn there(&self) -> impl Iterator<Item = (usize, &PoolDisk)> {
        self.disks.iter().filter(|(_, disk)| !disk.is_missing)
    }

    /// Those that take writes.
    pub(crate) fn good(&self) -> DiskSet {
        self.disks.iter().filter(|(_, disk)| disk.is_good()).map(|(number, _)| number).collect()
    }

    /// The homes of the journal.
    pub(crate) fn homes(&self) -> DiskSet {
        *self.homes.lock()
    }

    /// Has so many good disks be homes, those of `known` first, as far as there are any.
    pub(crate) fn choose_homes(&self, known: DiskSet, count: usize) -> DiskSet {
        let (good, takers) = (self.good(), self.takers());
        // One that is drained is better than none.
        let from = if takers.is_empty() { good } else { takers };
        let others = from.iter().filter(|disk| !known.has(*disk));
        let homes: DiskSet = known.both(from).iter().chain(others).take(count.max(1)).collect();
        *self.homes.lock() = homes;
        homes
    }

    /// The number of the disk that the index is on.
    pub(crate) fn index_disk(&self) -> usize {
        self.index.load(Ordering::SeqCst)
    }

    pub(crate) fn set_index_disk(&self, disk: usize) {
        self.index.store(disk, Ordering::SeqCst);
    }

    /// The disk that the index is on.
    pub(crate) fn for_index(&self) -> &PoolDisk {
        &self.disks[self.index_disk()]
    }

    /// The first disk that is missing.
    pub(crate) fn missing(&self) -> Option<usize> {
        self.disks.iter().find(|(_, disk)| disk.is_missing).map(|(number, _)| number)
    }

    /// Why nobody knows of something that is on no disk that is there, if one is missing.
    pub(crate) fn missing_error(&self, path: &str) -> Option<DiskError> {
        self.missing()?;
        let missing = self.disks.iter().filter(|(_, disk)| disk.is_missing);
        let names: Vec<String> = missing.map(|(number, disk)| format!("{number} ({})", disk.disk.path())).collect();
        let detail = format!(
            "it is on no disk that is there, and disk {} is missing; mount what is missing again and restart the daemon",
            names.join(" and disk ")
        );
        Some(DiskError { kind: DiskErrorKind::Failed, operation: "find", path: path.to_owned(), detail })
    }

    /// Takes a disk out, or only notes that it is full. Returns the error for the caller.
    pub(crate) fn failed(&self, disk: usize, error: DiskError, counters: &Counters) -> StoreError {
        if error.kind == DiskErrorKind::Full {
            self.disks[disk].note_full();
            return StoreError::Disk(error);
        }
        let mut health = self.disks[disk].health.lock();
        if *health == Health::Good {
            counters.disk_failures.add(1);
            *health = Health::Failed(error.to_string());
        }
        StoreError::Disk(error)
    }

    /// Room that `class` may use on a disk.
    pub(crate) fn room(&self, disk: usize, class: Class) -> u64 {
        let disk = &self.disks[disk];
        match (disk.takes(), class) {
            (false, _) => 0,
            // P-7.
            (true, Class::Metadata) => disk.free().saturating_sub(disk.reserve_bytes / LAST_PART),
            (true, Class::Data) => disk.free().saturating_sub(disk.reserve_bytes),
        }
    }

    /// The disks that a chunk of `bytes` may go to, best first: in rotation from `turn`, among those that have at least
    /// half the room of the roomiest (so that disks fill evenly and still all work), then the rest, then those that failed to read (P-4).
    pub(crate) fn candidates(&self, class: Class, bytes: u64, turn: usize) -> Vec<usize> {
        let takers = self.takers();
        let count = self.disks.end();
        let rotated = (0..count).map(|step| (turn + step) % count).filter(|disk| takers.has(*disk));
        let with_room: Vec<(usize, u64)> =
            rotated.map(|disk| (disk, self.room(disk, class))).filter(|(_, room)| *room >= bytes).collect();
        let (sound, failing): (Vec<_>, Vec<_>) =
            with_room.into_iter().partition(|(disk, _)| self.disks[*disk].reads_failed() == 0);
        let roomiest_first = |disks: Vec<(usize, u64)>| {
            let most = disks.iter().map(|(_, room)| *room).max().unwrap_or(0);
            let (roomy, tight): (Vec<_>, Vec<_>) = disks.into_iter().partition(|(_, room)| *room >= most / 2);
            roomy.into_iter().chain(tight).map(|(disk, _)| disk)
        };
        roomiest_first(sound).chain(roomiest_first(failing)).collect()
    }

    /// Asks all that take something how much room they have.
    pub(crate) fn look(&self) {
        self.takers().iter().for_each(|disk| drop(self.disks[disk].look()));
    }

    /// Promises room on each of some disks.
    pub(crate) fn promise(&self, disks: DiskSet, bytes: u64) {
        disks.iter().for_each(|disk| self.disks[disk].promise(bytes));
    }

    /// So many disks for a pack that begins with `bytes`, `first` one of them; `None` where not so many have room; and more that nobody asked
    /// for, as far as they have (K-14). Which ones goes by turns, so that those of one disk have their copies on all others.
    pub(crate) fn disks_for(
        &self,
        first: usize,
        class: Class,
        bytes: u64,
        (asked, more): (usize, usize),
    ) -> Option<DiskSet> {
        if self.room(first, class) < bytes {
            return None;
        }
        let others = self.disks.end().saturating_sub(1).max(1);
        let turn = if asked + more > 1 { self.disks[first].turn.fetch_add(1, Ordering::Relaxed) % others } else { 0 };
        let turn = first + 1 + turn;
        let others = self.candidates(class, bytes, turn).into_iter().filter(|disk| *disk != first);
        let disks: DiskSet = others.take(asked - 1).chain([first]).collect();
        if disks.count() < asked {
            return None;
        }
        let others = if more > 0 { self.candidates(Class::Metadata, bytes, turn) } else { Vec::new() };
        let others = others.into_iter().filter(|disk| !disks.has(*disk) && self.is_roomy(*disk, bytes));
        Some(others.take(more).chain(disks.iter()).collect())
    }

    /// The error when no disk has room.
    pub(crate) fn full(&self, what: &'static str, needed: u64) -> StoreError {
        let free = self.disks.iter().filter(|(_, disk)| disk.takes()).map(|(_, disk)| disk.free()).max();
        match free {
            Some(free) => StoreError::Full { what, needed, free },
            None => StoreError::ReadOnly {
                cause: match self.there().map(|(_, disk)| disk.health()).next() {
                    Some(Health::Failed(cause)) => cause.into(),
                    Some(Health::Good) | None => "every disk failed".into(),
                },
            },
        }
    }

    /// Room on each disk that takes something, the reserves taken off. Disks on the same device share its room.
    pub(crate) fn rooms(&self) -> Rooms {
        let mut devices: BTreeMap<u64, (Space, u64)> = BTreeMap::new();
        for (_, disk) in self.disks.iter().filter(|(_, disk)| disk.takes()) {
            if let Ok(space) = disk.disk.space() {
                let (device, disks) = devices.entry(space.device).or_insert((space, 0));
                device.free = device.free.saturating_sub(disk.reserve_bytes);
                *disks += 1;
            }
        }
        let share = |(space, disks): &(Space, u64)| vec![(space.total / disks, space.free / disks); *disks as usize];
        Rooms(devices.values().flat_map(share).collect())
    }

    /// Writes a small file's block in place and syncs.
    pub(crate) async fn write_block(
        &self,
        disk: usize,
        path: &str,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), DiskError> {
        let file = self.disks[disk].disk.open(path, Open::Write)?;
        file.write_at(offset, bytes).await?;
        file.sync().await
    }
}

/// Disks, each with its bytes and those that are free.
pub(crate) struct Rooms(Vec<(u64, u64)>);

impl Rooms {
    /// For what goes to `count` of the disks, each piece to other ones.
    pub(crate) fn for_copies(&self, count: usize) -> Space {
        let of = |part: fn(&(u64, u64)) -> u64| room_for(&self.0.iter().map(part).collect::<Vec<_>>(), count as u64);
        Space { total: of(|(total, _)| *total), free: of(|(_, free)| *free), ..Space::default() }
    }
}

/// Most bytes that can lie on `count` of some disks each, any piece of them on other ones: as long as the small disks have room all share the
/// load, and then as many of the large ones as there are.
fn room_for(rooms: &[u64], count: u64) -> u64 {
    let fits = |bytes: u64| {
        let taken: u128 = rooms.iter().map(|room| u128::from((*room).min(bytes))).sum();
        taken >= u128::from(bytes) * u128::from(count)
    };
    let all: u128 = rooms.iter().copied().map(u128::from).sum();
    let most = u64::try_from(all / u128::from(count.max(1))).unwrap_or(u64::MAX);
    let (mut least, mut beyond) = (0, most.saturating_add(1));
    while beyond - least > 1 {
        let middle = least + (beyond - least) / 2;
        *(if fits(middle) { &mut least } else { &mut beyond }) = middle;
    }
    least
}

#[cfg(test)]
mod tests {
    use super::room_for;

    #[test]
    fn content_fits_as_far_as_each_piece_finds_enough_disks() {
        for (rooms, count, expected) in [
            (&[100, 100][..], 1, 200),
            (&[100, 100], 2, 100),
            (&[100, 1000], 2, 100),
            (&[100, 1000], 1, 1100),
            (&[100, 100, 100], 2, 150),
            (&[10, 100, 100], 2, 105),
            (&[10, 20, 1000], 2, 30),
            (&[100], 2, 0),
            (&[], 1, 0),
            (&[u64::MAX, u64::MAX], 2, u64::MAX - 1),
        ] {
            assert_eq!(room_for(rooms, count), expected, "{rooms:?} for {count}");
        }
    }
}
