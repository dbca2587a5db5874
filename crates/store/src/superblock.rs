//! Superblocks: the node's root, switched from one generation to the next.
//!
//! S-1   Generation g lies in slot g mod 2 of every disk. Writing g+1 overwrites g-1 and leaves g alone, so a torn write
//!       costs nothing. What an opening finds it writes again as it is, byte for byte; what it has to say beyond that goes into
//!       the next generation.
//! S-2   The highest valid generation over all disks counts. Disks may lag behind after a crash.
//! S-3   What a superblock names is durable before it is written (`Store::commit`).
//!       What was found on open is written again to every disk before anything rests on it: a sync that failed in a process
//!       before may have left it in the page cache alone.
//! S-4   A generation is used once: the next one is above every valid generation that was found. An opening without a disk leaves out
//!       [`LEFT_OUT`] of them, times a number by chance: the missing disk may hold generations that no other has (those written after the
//!       others had failed), and when it is back what was acknowledged without it counts. By chance, for two disks that were each used
//!       without the other would have packs and segments of the same numbers with other content, and one history is to be given up whole.
//! S-6   A superblock says to which disks it did not go. Two that went to no disk in common are of two histories, unless others are found that
//!       lead from one to the other, each on a disk that has the one before: such a node is refused unless the caller gives one up, for it
//!       would be dropped silently.
//! S-5   That the store was closed is believed when the newest superblock of every disk is of one generation and says so, and no segment
//!       begins behind it (`journal/replay`); of a missing disk nobody knows. The opening writes the next generation without, before a
//!       frame is taken; a disk that lost that write is still found out, because the first frame of an opening begins a segment.

use std::collections::BTreeSet;

use base::id::Position;
use platform::disk::{Disk, DiskError, DiskErrorKind, Open};

use crate::counters::Counters;
use crate::failure::{StoreError, corrupt, refused};
use crate::format::{Homes, SUPERBLOCK_FILE, Superblock, Unfit};
use crate::identity::{Candidate, hex, unfit_error};
use crate::pool::Pool;
use crate::remedy::{Problem, Remedy};

/// Generations, and numbers of packs and segments, that an opening without a disk leaves out at least: more than one life of a store uses.
pub(crate) const LEFT_OUT: u64 = 1 << 32;
/// It leaves out up to so many times as many: two disks that were each used without the other have other numbers then, and that with the higher
/// generation has the higher ones of each kind. Few enough for some hundred thousand such openings.
pub(crate) const LEFT_OUT_TIMES: u64 = 1 << 12;
// S-1: the slots go on by turns.
const _: () = assert!(LEFT_OUT.is_multiple_of(Superblock::SLOTS));

/// One slot of one disk as found.
pub(crate) struct Slot {
    pub(crate) offset: u64,
    /// Nothing but zeroes: nobody wrote it yet.
    pub(crate) is_blank: bool,
    pub(crate) content: Result<Superblock, Unfit>,
}

/// Reads both slots of a disk, each by itself: one that cannot be read is unfit like one that is damaged, and hides no other.
pub(crate) async fn read_slots(disk: &Disk, uuid: &[u8; 16]) -> Result<Vec<Slot>, StoreError> {
    let file = match disk.open(SUPERBLOCK_FILE, Open::Read) {
        // Others have it too.
        Err(error) if error.kind == DiskErrorKind::Absent => Err(error),
        opened => Ok(opened?),
    };
    let mut slots = Vec::new();
    for offset in (0..Superblock::SLOTS).map(Superblock::offset) {
        let mut bytes = [0; Superblock::BYTES];
        let read = match &file {
            Ok(file) => {
                // What the disk has, and not what is in memory of it.
                file.forget(offset, bytes.len() as u64);
                file.read_exact_at(offset, &mut bytes).await
            }
            Err(error) => Err(error.clone()),
        };
        let mut content = match read {
            Ok(()) => Superblock::decode(&bytes, uuid, offset),
            Err(error) => Err(Unfit::new(format!("{} bytes", bytes.len()), error)),
        };
        if let (Err(_), Ok(file)) = (&content, &file) {
            // A bit that flipped on its way here may be right the next time.
            file.forget(offset, bytes.len() as u64);
            if file.read_exact_at(offset, &mut bytes).await.is_ok() {
                content = Superblock::decode(&bytes, uuid, offset);
            }
        }
        slots.push(Slot { offset, is_blank: bytes.iter().all(|byte| *byte == 0) && file.is_ok(), content });
    }
    Ok(slots)
}

/// The superblock that counts.
pub(crate) struct Opened {
    /// As it is on its disk.
    pub(crate) newest: Superblock,
    /// Whether it says that the store was closed, and is to be believed.
    pub(crate) is_closed: bool,
    /// Whether a slot is to be written again.
    pub(crate) is_damaged: bool,
    /// Those of them that somebody wrote, with their disks: a power cut tears the one that is being written.
    pub(crate) damaged: Vec<([u8; 16], Problem)>,
    /// No superblock that anybody may come back to needs frames up to this.
    pub(crate) covered_by_all: Position,
    /// S-6: that there is another history.
    pub(crate) other: Option<StoreError>,
    /// What each superblock that was found covers, and says of homes (J-11).
    pub(crate) all_named: BTreeSet<(Position, Homes)>,
}

/// Finds the newest superblock on the disks that are there.
pub(crate) async fn open(candidates: &[Candidate]) -> Result<Opened, StoreError> {
    let mut newest: Option<Superblock> = None;
    let (mut found, mut damaged) = (Vec::new(), Vec::new());
    for Candidate { disk, identity, .. } in candidates {
        let mut slots = Vec::new();
        for Slot { offset, is_blank, content } in read_slots(disk, &identity.disk_uuid).await? {
            match content {
                Ok(slot) if slot.node_identity == identity.node_identity => slots.push(slot),
                Ok(slot) => {
                    let (expected, found) = (hex(&identity.node_identity), hex(&slot.node_identity));
                    let why = format!("its superblock is of another node: expected {expected}, found {found}.");
                    return Err(refused(disk.path(), why, "Name the original disk."));
                }
                Err(unfit) if unfit.newer.is_some() => {
                    return Err(unfit_error("a superblock", disk.path(), SUPERBLOCK_FILE, offset, unfit));
                }
                Err(unfit) => damaged.push((identity.disk_uuid, disk.path(), (offset, is_blank), unfit)),
            }
        }
        newest = newest
            .into_iter()
            .chain(slots.iter().cloned())
            .reduce(|first, next| if first.generation < next.generation { next } else { first });
        found.push((disk, identity.disk_uuid, slots));
    }
    let Some(newest) = newest else {
        let (_, path, (offset, _), unfit) = damaged.pop().expect("each disk has two slots");
        let path = format!("{path}/{SUPERBLOCK_FILE}");
        return Err(corrupt("every superblock of the node, the last read", &path, offset, unfit.expected, unfit.found));
    };
    // D-5.
    found.retain(|(_, uuid, _)| newest.disks.contains(uuid));
    damaged.retain(|(uuid, ..)| newest.disks.contains(uuid));
    let count = newest.disks.iter().filter(|uuid| **uuid != [0; 16]).count();
    let lasts: Vec<(&Disk, Superblock)> = found
        .iter()
        .filter_map(|(disk, _, slots)| Some((*disk, slots.iter().max_by_key(|slot| slot.generation)?.clone())))
        .collect();
    let is_newest = |(_, last): &(&Disk, Superblock)| (last.generation, last.is_closed) == (newest.generation, true);
    let is_closed = lasts.len() == count && lasts.iter().all(is_newest);
    let all: Vec<&Superblock> = found.iter().flat_map(|(_, _, slots)| slots).collect();
    let other = other_history(&lasts, &newest, &all);
    // What cannot be read may say less.
    let is_all_read = damaged.is_empty() && found.len() == count;
    let covered_by_all = found.iter().flat_map(|(_, _, slots)| slots).map(|slot| slot.covered).min();
    let covered_by_all = covered_by_all.filter(|_| is_all_read).unwrap_or_default();
    let all_named = found.iter().flat_map(|(_, _, slots)| slots).map(|slot| (slot.covered, slot.homes)).collect();
    // A fresh node has one slot that nobody wrote yet.
    let is_damaged = !damaged.is_empty() && newest.generation > 1;
    damaged.retain(|(_, _, (_, is_blank), _)| !is_blank);
    let damaged = damaged.into_iter().map(|(uuid, path, (offset, _), unfit)| (uuid, bad_slot(path, offset, &unfit)));
    let damaged = damaged.collect();
    Ok(Opened { newest, is_closed, is_damaged, damaged, covered_by_all, other, all_named })
}

/// A slot that cannot be read, of the disk at `path`.
fn bad_slot(path: &str, offset: u64, unfit: &Unfit) -> Problem {
    Problem {
        code: "HF0001",
        what: "a superblock",
        path: format!("{path}/{SUPERBLOCK_FILE}"),
        offset,
        expected: unfit.expected.clone(),
        found: unfit.found.clone(),
        remedy: Some(Remedy::Superblock),
    }
}

/// The newest superblock of an open node.
pub(crate) async fn open_one(pool: &Pool) -> Result<Superblock, StoreError> {
    let mut newest: Option<Superblock> = None;
    for (_, disk) in pool.there() {
        for slot in read_slots(&disk.disk, &disk.uuid).await? {
            let found = slot.content.ok();
            newest = newest.into_iter().chain(found).max_by_key(|superblock| superblock.generation);
        }
    }
    let first = pool.there().next().map_or("", |(_, disk)| disk.disk.path());
    let path = format!("{first}/{SUPERBLOCK_FILE}");
    newest.ok_or_else(|| corrupt("every superblock of the node, the first", &path, 0, "a superblock", "none"))
}

/// S-6.
fn other_history(lasts: &[(&Disk, Superblock)], newest: &Superblock, all: &[&Superblock]) -> Option<StoreError> {
    let mut all = all.to_vec();
    all.sort_by_key(|superblock| superblock.generation);
    let is_other = |last: &Superblock| !last.without.is_empty() && !leads_to(last, newest, &all);
    let (older, _) = lasts.iter().find(|(_, last)| is_other(last))?;
    let (newer, _) = lasts.iter().find(|(_, last)| last.generation == newest.generation)?;
    Some(StoreError::TwoHistories { newer: newer.path().into(), older: older.path().into() })
}

/// Whether `newest` goes on with `first`: by itself, or by others between them, each of which went to a disk that has the one before it. Who
/// wrote it had seen that one there.
fn leads_to(first: &Superblock, newest: &Superblock, by_generation: &[&Superblock]) -> bool {
    let with = |superblock: &Superblock| -> BTreeSet<[u8; 16]> {
        let disks = superblock.disks.iter().enumerate();
        disks
            .filter(|(disk, uuid)| **uuid != [0; 16] && !superblock.without.has(*disk))
            .map(|(_, uuid)| *uuid)
            .collect()
    };
    let mut reached = with(first);
    for next in by_generation.iter().filter(|next| next.generation > first.generation) {
        let next = with(next);
        if !next.is_disjoint(&reached) {
            reached.extend(next);
        }
    }
    !with(newest).is_disjoint(&reached)
}

/// Writes a generation to every good disk and syncs. Succeeds if at least one disk holds it. One that has no room for it then, where writing in
/// place takes some, has failed like any other that did not take it: nobody may open by what it has.
pub(crate) async fn write(pool: &Pool, superblock: &Superblock, counters: &Counters) -> Result<(), StoreError> {
    let offset = Superblock::offset(superblock.generation);
    let mut held = false;
    let (mut failure, mut full) = (None, Vec::new());
    for (number, disk) in pool.disks.iter() {
        if !disk.is_good() {
            continue;
        }
        match write_slot(pool, number, offset, &superblock.encode(&disk.uuid)).await {
            Ok(()) => held = true,
            Err(error) => {
                if error.kind == DiskErrorKind::Full {
                    full.push((number, error.clone()));
                }
                failure = Some(pool.failed(number, error, counters));
            }
        }
    }
    for (number, error) in full.into_iter().filter(|_| held) {
        let _ = pool.failed(number, DiskError { kind: DiskErrorKind::Failed, ..error }, counters);
    }
    if held { Ok(()) } else { Err(failure.unwrap_or_else(|| pool.full("a superblock", 0))) }
}

async fn write_slot(pool: &Pool, disk: usize, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
    match pool.write_block(disk, SUPERBLOCK_FILE, offset, bytes).await {
        // Somebody removed it.
        Err(error) if error.kind == DiskErrorKind::Absent => {
            pool.disks[disk].disk.write_durably(SUPERBLOCK_FILE, &[0; Superblock::BYTES * 2]).await?;
            pool.write_block(disk, SUPERBLOCK_FILE, offset, bytes).await
        }
        written => written,
    }
}
