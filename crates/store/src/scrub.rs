//! Scrub: packs are read again, byte by byte, those first whose last check is oldest, while everything else goes on.
//!
//! V-1   A pack counts as checked when all of it was read from its disk and verified in one go, or was written.
//! V-2   Damage is told until the pack is found whole, or gone: it keeps its age, so the next scrub reads it again.
//! V-3   Superblocks, the index, and what says who a disk is are read again too. Others make them good, so they are written again, and that is told.
//!       What is in the journal alone is in memory: the layer above commits before, and nobody needs what rotted there.
//!
//! Not here: what is wrong with a pack, in words (`check`); mending it (`repair`); when to scrub.

use std::time::Duration;

use crate::check::{Check, Depth, PROBLEMS_MAX};
use crate::identity;
use crate::index::Change;
use crate::pace::Pace;
use crate::pack::{PackKnown, PackState};
use crate::pool::Part;
use crate::remedy::{Problem, Remedy};
use crate::store::Store;

/// Packs after which the index file hears of what was checked.
const PACKS_PER_COMMIT: u64 = 64;

/// How old the last check of what is stored is, and what scrub found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubStatus {
    /// Bytes of packs, all together.
    pub bytes: u64,
    /// How long ago the byte was checked, or written, that was so first; to the minute. Of those below nobody knows.
    pub oldest: Duration,
    /// Packs of which nobody knows when they were checked: the index was made again.
    pub packs_unknown: u64,
    /// Bytes in them.
    pub bytes_unknown: u64,
    /// The first thing that is wrong with each damaged pack, as scrub found it.
    pub damaged: Vec<String>,
}

/// What is to be read again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubPlan {
    /// Packs.
    pub packs: u64,
    /// Bytes of headers and chunks in them.
    pub bytes: u64,
}

/// What a scrub did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Packs read.
    pub packs: u64,
    /// Chunks verified.
    pub chunks: u64,
    /// Bytes read.
    pub bytes: u64,
    /// What is wrong with them: of very much that the first.
    pub problems: Vec<Problem>,
    /// How much more there is.
    pub further: u64,
    /// What was wrong with superblocks and with what says who a disk is, and was written again. The index, which is made again, counts for itself.
    pub mended: Vec<Problem>,
    /// Whether it came to its end.
    pub is_complete: bool,
}

impl Store {
    /// What [`Store::scrub`] would read.
    pub fn scrub_plan(&self, older_than: Duration) -> ScrubPlan {
        let due = self.due(older_than);
        ScrubPlan { packs: due.len() as u64, bytes: due.iter().map(|(_, known)| known.bytes()).sum() }
    }

    /// Reads packs again that were last checked as long ago, the oldest first, and before them what V-3 names if that was: of
    /// it nobody knows after an opening. `tell` hears of bytes done and bytes in all.
    pub async fn scrub(&self, older_than: Duration, pace: &Pace<'_>, tell: &(dyn Fn(u64, u64) + Sync)) -> ScrubReport {
        let (now, checked) = (self.platform.clock.elapsed(), *self.index_checked.lock());
        let mut report = ScrubReport::default();
        if checked.is_none_or(|checked| now.saturating_sub(checked) >= older_than) {
            let are_roots_good = self.scrub_roots(pace, &mut report).await;
            // Before the packs, which are compared with it.
            self.scrub_index(pace).await;
            if are_roots_good && pace.goes_on() {
                *self.index_checked.lock() = Some(now);
            }
        }
        let due = self.due(older_than);
        let total: u64 = due.iter().map(|(_, known)| known.bytes()).sum();
        let mut done = 0;
        for (pack, known) in &due {
            tell(done, total);
            if !pace.step().await {
                break;
            }
            self.scrub_pack(*pack, known, pace, &mut report).await;
            done += known.bytes();
            if report.packs.is_multiple_of(PACKS_PER_COMMIT) {
                self.keep_ages().await;
            }
        }
        self.keep_ages().await;
        report.is_complete = pace.goes_on();
        tell(done, total);
        report
    }

    /// The index too has pages that no look-up came to for long. One that is damaged is made again, and serves until the new one is there: it may be
    /// that nothing leads to what is damaged, for a commit or a power cut ended halfway.
    async fn scrub_index(&self, pace: &Pace<'_>) {
        for group in 0.. {
            if !pace.step().await {
                return;
            }
            let work = self.index_work.lock().await;
            match self.packs.index.file().verify_group(group) {
                Ok(true) => {}
                Ok(false) => return,
                Err(_) => {
                    drop(work);
                    let _ = self.remake_index(&|| pace.goes_on()).await;
                    return;
                }
            }
        }
    }

    /// Who each disk is, and superblocks, of which one is enough until it is the one that rots. Whether all of that is good now.
    async fn scrub_roots(&self, pace: &Pace<'_>, report: &mut ScrubReport) -> bool {
        let mut check = Check::of_pack(self, Depth::Shallow, pace);
        // What is wrong with others is known, and nothing is written there.
        check.disks(&|on| on.is_good() && !on.is_missing && matches!(on.part(), Part::Whole | Part::Drained)).await;
        let problems = check.report.problems;
        // A superblock goes to all disks: to none, while something else is mounted where one of them should be.
        let is_another = |problem: &Problem| ["HF0003", "HF0018"].contains(&problem.code) && problem.remedy.is_none();
        let is_slot = |problem: &Problem| problem.remedy == Some(Remedy::Superblock);
        let are_slots_written = problems.iter().any(is_slot)
            && !problems.iter().any(is_another)
            && pace.goes_on()
            && self.repair(Remedy::Superblock).await.is_ok();
        let mut are_all_good = true;
        for problem in problems {
            let is_mended = match problem.remedy {
                Some(Remedy::Identity { disk }) => pace.goes_on() && self.write_identity(disk).await,
                Some(Remedy::Superblock) => are_slots_written,
                _ => false,
            };
            are_all_good &= is_mended;
            if is_mended {
                self.counters.scrub_mended.add(1);
                report.mended.push(problem);
            } else {
                self.counters.scrub_problems.add(1);
                report.problems.push(problem);
            }
        }
        are_all_good
    }

    /// Says again who a disk is, unless it went meanwhile.
    async fn write_identity(&self, number: usize) -> bool {
        let on = &self.pool.disks[number];
        if !on.is_good() || on.part() == Part::Removed {
            return false;
        }
        match identity::write_again(&on.disk, &on.identity).await {
            Ok(()) => true,
            Err(error) => {
                // It counts, and the disk tells of it.
                let _ = self.pool.failed(number, error, &self.counters);
                false
            }
        }
    }

    /// How old what is stored is.
    pub fn scrub_status(&self) -> ScrubStatus {
        let mut status = ScrubStatus::default();
        for (pack, known) in self.packs.known() {
            status.bytes += known.bytes();
            match self.packs.ages.age(pack) {
                Some(age) => status.oldest = status.oldest.max(age),
                None => {
                    status.packs_unknown += 1;
                    status.bytes_unknown += known.bytes();
                }
            }
        }
        let mut damaged = self.damaged.lock();
        damaged.retain(|pack, _| self.packs.has(*pack));
        status.damaged = damaged.values().cloned().collect();
        status
    }

    fn due(&self, older_than: Duration) -> Vec<(u64, PackKnown)> {
        let there = self.packs.known().into_iter().filter(|(_, known)| !matches!(known.state, PackState::Missing));
        // Never checked: before everything else.
        let age = |pack| self.packs.ages.age(pack).unwrap_or(Duration::MAX);
        let mut due: Vec<_> = there.map(|known| (age(known.0), known)).filter(|(age, _)| *age >= older_than).collect();
        due.sort_by_key(|(age, (pack, _))| (std::cmp::Reverse(*age), *pack));
        due.into_iter().map(|(_, known)| known).collect()
    }

    async fn scrub_pack(&self, pack: u64, known: &PackKnown, pace: &Pace<'_>, report: &mut ScrubReport) {
        let mut check = Check::of_pack(self, Depth::Deep, pace);
        match &known.state {
            PackState::Sealed => check.sealed(pack, known).await,
            PackState::Open(open) => check.open(open).await,
            PackState::Missing => return,
        }
        let found = check.report;
        report.packs += 1;
        report.chunks += found.chunks_verified;
        report.bytes += found.bytes;
        self.counters.scrubbed_bytes.add(found.bytes);
        let suspect = |problem: &Problem| match problem.remedy {
            Some(Remedy::Copy { disk, pack }) => Some((pack, disk)),
            _ => None,
        };
        self.packs.suspects.lock().extend(found.problems.iter().filter_map(suspect));
        let mut damaged = self.damaged.lock();
        match found.problems.first() {
            // Reclaim removed it meanwhile, and with it whatever was wrong.
            _ if !self.packs.has(pack) => {}
            None => {
                damaged.remove(&pack);
                self.packs.ages.note(pack);
            }
            Some(first) => {
                damaged.insert(pack, first.to_string());
                self.counters.scrub_problems.add(found.problems.len() as u64 + found.further);
                let kept = found.problems.len().min(PROBLEMS_MAX.saturating_sub(report.problems.len()));
                report.further += found.further + (found.problems.len() - kept) as u64;
                report.problems.extend(found.problems.into_iter().take(kept));
            }
        }
    }

    /// Tells the index file what was checked. A failure costs a check more after the next start.
    async fn keep_ages(&self) {
        let _work = self.index_work.lock().await;
        let checked = self.packs.ages.changed();
        if !checked.is_empty() && self.change_index(&Change { checked: checked.clone(), ..Change::default() }).is_ok() {
            self.packs.ages.note_kept(&checked);
        }
    }
}
