//! Check: is every byte of the store what it should be?
//!
//! Works on an open store, beside everything else that goes on, and changes nothing. What looks wrong is looked at again before it is
//! reported, because the store moves meanwhile. The numbers of problems are permanent: one that is gone is not given out again.
//!
//! | number | what |
//! |---|---|
//! | HF0001 | a superblock slot cannot be read |
//! | HF0002 | a disk's superblocks lag behind |
//! | HF0003 | a disk's identity is damaged, or another's |
//! | HF0004 | a pack's header is damaged, or another's |
//! | HF0005 | a sealed pack has no sound footer |
//! | HF0006 | a pack's directory is damaged |
//! | HF0007 | a chunk is damaged |
//! | HF0008 | a pack file that the store does not know |
//! | HF0009 | a pack is missing |
//! | HF0010 | the index cannot be read |
//! | HF0011 | an index entry is damaged |
//! | HF0012 | an index entry names a pack that is not there |
//! | HF0013 | the index and a pack's directory differ |
//! | HF0014 | a chunk is missing in the index |
//! | HF0015 | the journal lacks frames that were durable |
//! | HF0016 | a disk, or a file on it, cannot be read |
//! | HF0017 | a pack was set aside: nothing good was found in it, or the rest of it was saved |
//! | HF0018 | the copy of a disk's identity is missing or damaged |
//! | HF0020 | a pack is on fewer disks than somebody asked for |
//! | HF0019 | a disk is missing: nothing is known of what lies there |
//! | HF0021 | a fragment of a pack is damaged or missing |
//!
//! Not here: mending (`repair`). Much mends itself, too: superblocks by the next commit, open packs and the index by the next
//! open, a chunk by being put again.

mod index;
mod packs;

use std::collections::{BTreeMap, BTreeSet};

use base::id::{ChunkAddress, Position};
use platform::disk::{DiskErrorKind, Open};

use crate::failure::StoreError;
use crate::format::{IDENTITY_COPY, IDENTITY_FILE, Identity, JOURNAL, Place, SUPERBLOCK_FILE, Unfit};
use crate::identity;
use crate::index::AddressSet;
use crate::journal::replay;
use crate::pace::Pace;
use crate::pool::PoolDisk;
use crate::remedy::{Problem, Remedy};
use crate::store::Store;
use crate::superblock::{self, Slot};

/// Tries before what looks wrong in a journal that is being written is believed to be wrong.
const JOURNAL_TRIES: usize = 3;

/// Problems that are kept with their words: no more help somebody.
pub(crate) const PROBLEMS_MAX: usize = 10_000;

/// How thorough a check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Superblocks, headers and directories of packs, index, journal.
    Shallow,
    /// Every chunk's content too.
    Deep,
}

/// What a check came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// What is wrong: of very much that the first, and of each kind for which there is no remedy at least one.
    pub problems: Vec<Problem>,
    /// How much more there is.
    pub further: u64,
    /// What can be done about all of it.
    pub remedies: BTreeSet<Remedy>,
    /// Superblock slots read.
    pub superblocks: u64,
    /// Packs read.
    pub packs: u64,
    /// Chunks in them.
    pub chunks: u64,
    /// Chunks whose content was verified.
    pub chunks_verified: u64,
    /// Bytes of packs read.
    pub bytes: u64,
    /// Entries of the index compared.
    pub index_entries: u64,
    /// Journal frames read.
    pub frames: u64,
}

/// One run over the store.
pub(crate) struct Check<'a> {
    store: &'a Store,
    depth: Depth,
    progress: &'a (dyn Fn(u64, u64) + Sync),
    /// Of whom nobody waits for.
    pace: Option<&'a Pace<'a>>,
    pub(crate) report: CheckReport,
    total_bytes: u64,
    /// What the directories of sealed packs say, by pack: for comparing with the index.
    named: BTreeMap<u64, Fingerprint>,
    /// Chunks that are bad in a file of the pack that is being read.
    bad: AddressSet,
}

/// A sum over entries that does not depend on their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fingerprint {
    count: u64,
    sum: u64,
}

impl Fingerprint {
    fn add(&mut self, address: &ChunkAddress, place: &Place) {
        self.count += 1;
        let seed = u64::from(place.offset) << 32 | u64::from(place.stored);
        self.sum = self.sum.wrapping_add(base::hash::checksum(seed, &address.0));
    }
}

impl Store {
    /// Reads the store and lists everything that is wrong. `progress` hears of bytes done and of bytes in all.
    pub async fn check(&self, depth: Depth, progress: &(dyn Fn(u64, u64) + Sync)) -> CheckReport {
        let mut check = Check::new(self, depth, progress, None);
        let strangers = check.strangers();
        check.disks(&|_| true).await;
        check.packs().await;
        check.tell_strangers(strangers);
        check.index().await;
        check.journal().await;
        check.keep(PROBLEMS_MAX);
        let remedies = check.report.problems.iter().filter_map(|problem| problem.remedy);
        check.report.remedies.extend(remedies);
        check.report
    }
}

impl<'a> Check<'a> {
    fn new(
        store: &'a Store,
        depth: Depth,
        progress: &'a (dyn Fn(u64, u64) + Sync),
        pace: Option<&'a Pace<'a>>,
    ) -> Check<'a> {
        let (report, named) = (CheckReport::default(), BTreeMap::new());
        Check { store, depth, progress, pace, report, total_bytes: 0, named, bad: AddressSet::default() }
    }

    /// For single packs.
    pub(crate) fn of_pack(store: &'a Store, depth: Depth, pace: &'a Pace<'a>) -> Check<'a> {
        Check::new(store, depth, &|_, _| {}, Some(pace))
    }

    fn problem(
        &mut self,
        code: &'static str,
        what: &'static str,
        at: (String, u64),
        (expected, found): (impl ToString, impl ToString),
        remedy: Option<Remedy>,
    ) {
        let (path, offset) = at;
        // Of one file that is wrong throughout.
        let is_told = |last: &Problem| (last.code, &last.path, last.remedy) == (code, &path, remedy);
        if self.report.problems.len() >= PROBLEMS_MAX && self.report.problems.last().is_some_and(is_told) {
            self.report.further += 1;
            return;
        }
        let (expected, found) = (expected.to_string(), found.to_string());
        self.report.problems.push(Problem { code, what, path, offset, expected, found, remedy });
    }

    /// What was found so far, for [`Check::forget_since`].
    fn found(&self) -> (usize, u64) {
        (self.report.problems.len(), self.report.further)
    }

    /// What was found since then is wrong no more, or is told anew.
    fn forget_since(&mut self, (problems, further): (usize, u64)) {
        self.report.problems.truncate(problems);
        self.report.further = further;
    }

    /// Keeps so many of the problems, with the remedies of all.
    fn keep(&mut self, count: usize) {
        let CheckReport { problems, further, remedies, .. } = &mut self.report;
        let beyond = problems.split_off(count.min(problems.len()));
        for problem in beyond {
            let is_new = |kept: &Problem| kept.code != problem.code || kept.remedy.is_some();
            if problem.remedy.is_none() && problems.iter().all(is_new) {
                problems.push(problem);
            } else {
                *further += 1;
                remedies.extend(problem.remedy);
            }
        }
    }

    /// An error as a problem of its own: damage keeps `code`, a disk that does not answer is HF0016.
    fn failed(&mut self, code: &'static str, path: String, error: StoreError, remedy: Option<Remedy>) {
        match error {
            StoreError::Corrupt { what, path, offset, expected, found } => {
                self.problem(code, what, (path.into(), offset), (expected, found), remedy);
            }
            error => self.problem("HF0016", "a file", (path, 0), ("to read it", error), None),
        }
    }

    /// Who the disks are, and their superblocks; of those for which `is_wanted`.
    pub(crate) async fn disks(&mut self, is_wanted: &(dyn Fn(&PoolDisk) -> bool + Sync)) {
        let store = self.store;
        // No commit meanwhile: both slots of every disk rest.
        let _root = store.root.lock().await;
        let (newest, _) = store.newest_superblock();
        for (number, disk) in store.pool.disks.iter().filter(|(_, disk)| is_wanted(disk)) {
            if disk.is_missing {
                let words = (format!("disk {number}, {}", identity::hex(&disk.uuid)), disk.words());
                self.problem("HF0019", "a disk", (disk.disk.path().to_owned(), 0), words, None);
                continue;
            }
            let path = |file: &str| format!("{}/{file}", disk.disk.path());
            let written_again = |remedy| disk.is_good().then_some(remedy);
            let remedy = written_again(Remedy::Identity { disk: number });
            let mut is_another = false;
            for (code, file) in [("HF0003", IDENTITY_FILE), ("HF0018", IDENTITY_COPY)] {
                if let Ok(opened) = disk.disk.open(file, Open::Read) {
                    // What the disk has, and not what is in memory of it.
                    opened.forget(0, Identity::BYTES as u64);
                }
                let bytes = match disk.disk.read(file).await {
                    Err(error) if error.kind == DiskErrorKind::Absent => Vec::new(),
                    Err(error) => {
                        self.problem("HF0016", "a file", (path(file), 0), ("to read it", error), remedy);
                        continue;
                    }
                    Ok(bytes) => bytes,
                };
                match Identity::decode(&bytes) {
                    Ok(found) if found == disk.identity => {}
                    Ok(found) => {
                        // Another disk, mounted in its place: nothing may be written there.
                        is_another = true;
                        let words = (identity::words(&disk.identity), identity::difference(&disk.identity, &found));
                        self.problem(code, "the identity", (path(file), 0), words, None);
                    }
                    Err(Unfit { expected, found, .. }) => {
                        self.problem(code, "the identity", (path(file), 0), (expected, found), remedy);
                    }
                }
            }
            let remedy = written_again(Remedy::Superblock).filter(|_| !is_another);
            match superblock::read_slots(&disk.disk, &disk.uuid).await {
                Ok(slots) => self.slots(&slots, newest, path(SUPERBLOCK_FILE), remedy),
                Err(error) => self.failed("HF0001", path(SUPERBLOCK_FILE), error, remedy),
            }
        }
    }

    fn slots(&mut self, slots: &[Slot], newest: u64, path: String, remedy: Option<Remedy>) {
        let generations = slots.iter().filter_map(|slot| slot.content.as_ref().ok()).map(|found| found.generation);
        let best = generations.max();
        for Slot { offset, content, .. } in slots {
            self.report.superblocks += 1;
            match content {
                // The first commit has yet to write the other slot.
                Err(_) if newest == 1 && *offset != crate::format::Superblock::offset(1) => {}
                Err(unfit) => {
                    let words = (&unfit.expected, &unfit.found);
                    self.problem("HF0001", "a superblock", (path.clone(), *offset), words, remedy);
                }
                Ok(_) => {}
            }
        }
        if let Some(best) = best.filter(|best| *best < newest) {
            let words = (format!("generation {newest}"), best);
            self.problem("HF0002", "the newest superblock", (path, 0), words, remedy);
        }
    }

    async fn journal(&mut self) {
        let store = self.store;
        let home = store.pool.homes().first().unwrap_or(0);
        let path = format!("{}/{JOURNAL}", store.pool.disks[home].disk.path());
        // No commit meanwhile: no segment goes away.
        let _root = store.root.lock().await;
        let durable = store.last_durable();
        let remedy = Some(Remedy::Commit);
        for is_last in (0..JOURNAL_TRIES).map(|attempt| attempt + 1 == JOURNAL_TRIES) {
            let newest = superblock::open_one(&store.pool).await;
            let superblock = match newest {
                Ok(superblock) => superblock,
                // Told by `disks` already.
                Err(_) => return,
            };
            let suffix =
                replay::Suffix { superblock: &superblock, covered_by_all: Position(0), gives_up_frames: false };
            match replay::replay(&store.pool, suffix, &|_| false).await {
                Ok(replayed) if replayed.resume.last >= durable => {
                    self.report.frames = replayed.frames.len() as u64;
                    return;
                }
                Ok(replayed) if is_last => {
                    let words = (format!("frames up to {}", durable.0), format!("up to {}", replayed.resume.last.0));
                    self.problem("HF0015", "the journal", (path.clone(), 0), words, remedy);
                }
                Err(StoreError::Disk(error)) if is_last && error.kind == DiskErrorKind::Absent => {}
                Err(StoreError::FramesLost { path, offset, first, last, witness, .. }) if is_last => {
                    let words =
                        (format!("frames {first} to {last}, of which {witness} knows"), "none that can be read");
                    self.problem("HF0015", "the journal", (path.into(), offset), words, remedy);
                }
                Err(error) if is_last => self.failed("HF0015", path.clone(), error, remedy),
                _ => {}
            }
        }
    }
}
