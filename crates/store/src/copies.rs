//! Copies: bringing packs onto as many disks as they should be on, after a disk failed, is gone, or turned out to lie; and having those of
//! a k+m level be in fragments.
//!
//! F-5   What is copied was verified chunk by chunk. It is a file of another name until it is whole and durable, and only then takes the place
//!       of what was there, or becomes one more of the pack's disks: a crash leaves what was there before.
//! F-6   A pack that reclaim or a repair took out of the catalog meanwhile is not brought back: whether it is there still and that it is on one
//!       disk more is one step.
//! F-7   A pack leaves a disk that is drained when it is on enough others, or on all of them: first nobody counts on its being there, then its
//!       file goes.
//!
//! F-8   One at a time writes copies (`copy_work`): the name of a copy is that of its pack, and whoever comes second looks again at what is lacking.
//!
//! Not here: writing fragments (`fragmenting`), what is wrong (`check`), packs of which a chunk is good nowhere: whether anybody needs it
//! (`reclaim`), and if so (`repair`).

use platform::disk::{DiskErrorKind, Open};

use crate::check::{Check, Depth};
use crate::disks::DiskSet;
use crate::failure::{StoreError, corrupt, refused};
use crate::format::{
    ChunkHeader, Cut, INDEX_FILE, PACK_VERSION, PACKS, PackHeader, Place, copy_path, encode_directory, pack_path,
};
use crate::level::Erasure;
use crate::pace::{Pace, Share};
use crate::pack::{PackKnown, PackState};
use crate::pool::Part;
use crate::store::Store;

/// Bytes that are read and written at a time.
const STEP_BYTES: usize = 1 << 20;
/// What a check says of the file of a pack: not of the index, nor of how many there are.
const OF_A_FILE: [&str; 6] = ["HF0004", "HF0005", "HF0006", "HF0007", "HF0009", "HF0016"];
/// Chunks of a pack that waits that are stored once more in one step.
const HELD_STEP: usize = 64;

/// What [`Store::restore_copies`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopiesReport {
    /// Packs that were on too few disks, or suspect on one.
    pub packs: u64,
    /// Files written.
    pub written: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Packs that are on too few disks still.
    pub lacking: u64,
    /// Whether the index was made again on another disk, for its own had failed or lied.
    pub is_index_moved: bool,
    /// Why, in words.
    pub problems: Vec<String>,
}

/// What has to be done with a pack.
enum Due {
    /// It is whole, and is to be on more disks, on others, or whole again.
    Copies(Copies),
    /// It is whole, and is to be in fragments.
    Cut(Erasure),
    /// Fragments are gone, damaged, or not where they should be.
    Mend,
    /// It is in fragments, and is to be whole on so many disks: more is asked for than they survive, or too few disks are left for them.
    Whole(usize),
    /// It is whole on enough disks, and in fragments that are in the way.
    Drop,
    /// It lacks its directory, and keeps a drained disk from being empty: a person has to have it repaired.
    Repair,
}

/// One pack that has to be written somewhere.
struct Copies {
    pack: u64,
    known: PackKnown,
    /// Where it has to be written again.
    suspect: DiskSet,
    /// On how many disks more it should be.
    lacking: usize,
    /// Where it should not be: P-6.
    leaving: DiskSet,
}

impl Store {
    /// Brings every pack onto as many disks as it should be on, and writes it again where it turned out to be damaged. `tell` hears of bytes
    /// done and of bytes in all. After the end of the pace no other pack is begun.
    pub async fn restore_copies(&self, pace: &Pace<'_>, tell: &(dyn Fn(u64, u64) + Sync)) -> CopiesReport {
        let mut report = CopiesReport::default();
        let drained = self.pool.drained();
        self.pool.look();
        self.packs.seal_lacking().await;
        self.copy_held(pace, &mut report).await;
        if !drained.is_empty() {
            self.packs.seal_on(drained).await;
        }
        if self.journal.wants_homes() {
            let before = self.pool.homes();
            if let Err(error) = self.journal.move_homes().await {
                report.problems.push(format!("the journal cannot leave a disk: {error}"));
            }
            if self.pool.homes() != before
                && let Err(error) = self.renew_root().await
            {
                // The next commit says where it is.
                report.problems.push(format!("it cannot be noted where the journal is: {error}"));
            }
        }
        if self.is_index_due() {
            // P-5.
            let before = self.pool.index_disk();
            match self.remake_index(&|| pace.goes_on()).await {
                Ok(()) => {
                    report.is_index_moved = self.pool.index_disk() != before;
                    // It says where the index is.
                    if self.renew_root().await.is_ok() && self.pool.drained().has(before) {
                        let _ = self.pool.disks[before].disk.remove(INDEX_FILE);
                    }
                }
                Err(error) => report.problems.push(format!("the index cannot be made again: {error}")),
            }
        }
        self.copy_due(pace, tell, &mut report).await;
        // Where everything else went there may be room for a directory now.
        if self.packs.seal_unsealed().await {
            self.copy_due(pace, tell, &mut report).await;
        }
        report
    }

    /// Who waits for a disk is not safe (N-4).
    async fn copy_held(&self, pace: &Pace<'_>, report: &mut CopiesReport) {
        let since = self.moment();
        for (pack, entries) in self.packs.held() {
            for some in entries.chunks(HELD_STEP) {
                if !pace.step().await {
                    return;
                }
                if let Err(error) = self.packs.copy_held(&pack, some).await {
                    let path = pack_path(pack.number);
                    report
                        .problems
                        .push(format!("not all that lies in {path}, which waits for a disk, can be copied: {error}"));
                }
            }
        }
        if self.packs.has_left() {
            match self.settle(since).await {
                Ok(()) => self.packs.drop_left(),
                Err(error) => report.problems.push(format!("what was copied is not durable yet: {error}")),
            }
        }
    }

    async fn copy_due(&self, pace: &Pace<'_>, tell: &(dyn Fn(u64, u64) + Sync), report: &mut CopiesReport) {
        let due = self.due_copies();
        let bytes = |(pack, known, due): &(u64, PackKnown, Due)| self.due_bytes(*pack, known, due);
        let (total, mut done) = (due.iter().map(bytes).sum(), 0);
        for one in due {
            tell(done, total);
            if !pace.step().await {
                break;
            }
            report.packs += 1;
            let (bytes, pack) = (bytes(&one), one.0);
            // Somebody else may have done it meanwhile.
            let work = self.copy_work.lock().await;
            let done_now = self.do_due(pack, pace, report).await;
            drop(work);
            match done_now {
                Ok(()) => {}
                // It went meanwhile, and nothing of it is lacking.
                Err(_) if !self.packs.has(pack) => {}
                Err(error) => {
                    report.lacking += 1;
                    report.problems.push(format!("{}: {error}", pack_path(pack)));
                }
            }
            done += bytes;
        }
        tell(done, total);
    }

    /// Whether there is anything for [`Store::restore_copies`] to do, as far as disks for it are there.
    #[must_use]
    pub fn lacks_copies(&self) -> bool {
        // Something may have been deleted since the last look.
        self.pool.look();
        let drained = self.pool.drained();
        let is_on_drained =
            |known: &PackKnown| !known.places().both(drained).is_empty() && !self.packs.is_waiting(&known.state);
        (!drained.is_empty() && self.packs.known().values().any(is_on_drained))
            || self.journal.wants_homes()
            || self.packs.is_open_lacking()
            || self.packs.is_held()
            || !self.due_copies().is_empty()
            || self.is_index_due()
    }

    /// Whether there are packs that [`Store::restore_copies`] could not copy, cut or mend, for something in them is good nowhere, and that a pass of reclaim
    /// may do without (L-6).
    #[must_use]
    pub fn wants_reclaim(&self) -> bool {
        self.packs.are_rotten_untried()
    }

    fn is_index_due(&self) -> bool {
        (!self.pool.for_index().takes() || self.packs.index.is_doubted()) && !self.pool.takers().is_empty()
    }

    fn due_copies(&self) -> Vec<(u64, PackKnown, Due)> {
        // E-2.
        let waiting = self.packs.unindexed();
        let due =
            |(pack, known)| Some((pack, PackKnown::clone(&known), self.due_of(pack, known, waiting.contains(&pack))?));
        self.packs.known().into_iter().filter_map(due).collect()
    }

    /// What has to be done with a pack, if anything.
    fn due_of(&self, pack: u64, known: PackKnown, is_waiting: bool) -> Option<Due> {
        if !matches!(known.state, PackState::Sealed) {
            return None;
        }
        if known.summary.lacks_directory {
            // O-6: what is in it is for a repair to say.
            let keeps_a_disk = !known.places().both(self.pool.drained()).is_empty();
            return keeps_a_disk.then_some(Due::Repair);
        }
        if let Some(fragments) = known.fragments().filter(|_| known.is_cut()) {
            let (takers, wanted) = (self.pool.takers(), self.packs.wanted(&known.summary));
            let survives = usize::from(fragments.cut.erasure.copies());
            let is_stuck = takers.count() < fragments.cut.erasure.count()
                && !fragments.disks().both(self.pool.drained()).is_empty();
            if (wanted > survives && takers.count() > survives) || (is_stuck && !takers.is_empty()) {
                return Some(Due::Whole(wanted.max(survives).min(takers.count())));
            }
            let is_due = !self.lacking_fragments(pack, fragments).is_empty()
                || !self.needless_fragments(pack, fragments).is_empty();
            return is_due.then_some(Due::Mend);
        }
        let goal = self.goal(&known).filter(|_| !is_waiting);
        // E-1: fragments of another code go when there are as many copies as survive as much.
        let of_another = known.fragments().filter(|fragments| goal != Some(fragments.cut.erasure));
        if let Some(erasure) = goal.filter(|_| of_another.is_none()) {
            return Some(Due::Cut(erasure));
        }
        let is_in_the_way = known.fragments().is_some() && !is_waiting;
        self.due_copy(pack, known).map(Due::Copies).or_else(|| is_in_the_way.then_some(Due::Drop))
    }

    /// Bytes that it writes, about.
    fn due_bytes(&self, pack: u64, known: &PackKnown, due: &Due) -> u64 {
        let whole_bytes = known.summary.file_bytes();
        match due {
            Due::Copies(copies) => whole_bytes * (copies.suspect.count() + copies.lacking) as u64,
            Due::Cut(erasure) => Cut { erasure: *erasure, whole_bytes }.all_bytes(),
            Due::Mend => known.fragments().map_or(0, |fragments| {
                fragments.cut.file_bytes() * self.lacking_fragments(pack, fragments).len() as u64
            }),
            Due::Whole(copies) => whole_bytes * *copies as u64,
            Due::Drop | Due::Repair => 0,
        }
    }

    /// Does what has to be done with a pack. The caller holds `copy_work`.
    async fn do_due(&self, pack: u64, pace: &Pace<'_>, report: &mut CopiesReport) -> Result<(), StoreError> {
        let is_waiting = self.packs.unindexed().contains(&pack);
        let Some(known) = self.packs.known_pack(pack) else { return Ok(()) };
        let Some(due) = self.due_of(pack, known.clone(), is_waiting) else { return Ok(()) };
        let mut wrote = |count: u64, bytes: u64| {
            report.written += count;
            report.bytes += count * bytes;
        };
        match due {
            Due::Copies(copies) => self.bring(&copies, pace, report).await,
            Due::Cut(erasure) => match self.cut_pack(pack, erasure, pace).await {
                Ok(count) => {
                    wrote(count, Cut { erasure, whole_bytes: known.summary.file_bytes() }.file_bytes());
                    Ok(())
                }
                Err(error) => {
                    // Until it can be cut it is to be on as many disks as survive as much.
                    if let Some(copies) = self.packs.known_pack(pack).and_then(|known| self.due_copy(pack, known)) {
                        self.bring(&copies, pace, report).await?;
                    }
                    Err(error)
                }
            },
            Due::Mend => {
                let bytes = known.fragments().map_or(0, |fragments| fragments.cut.file_bytes());
                self.mend_fragments(pack, pace, &mut || wrote(1, bytes)).await
            }
            Due::Whole(copies) => {
                let bytes = known.summary.file_bytes();
                let disks = self.pool.candidates(known.summary.class, bytes, usize::try_from(pack).unwrap_or(0));
                if disks.len() < copies {
                    return Err(self.pool.full("a copy of a pack", bytes));
                }
                for disk in disks.into_iter().take(copies) {
                    self.copy_pack(pack, disk, pace).await?;
                    wrote(1, bytes);
                }
                self.drop_fragments(pack).await
            }
            Due::Drop => self.drop_fragments(pack).await,
            Due::Repair => {
                // Which says so.
                self.directory(pack, &known).await.map(|_| ())
            }
        }
    }

    /// What has to be done with a pack that is whole, for it to be so on as many disks as it should, if anything.
    fn due_copy(&self, pack: u64, known: PackKnown) -> Option<Copies> {
        if !matches!(known.state, PackState::Sealed) || known.disks().is_empty() {
            return None;
        }
        let (takers, drained) = (self.pool.takers(), self.pool.drained());
        let disks = known.disks();
        let sound = disks.both(takers).count();
        // What is suspect where only a fragment lies is that.
        let only_fragment =
            |disk: &usize| known.fragments().is_some_and(|fragments| fragments.index_on(*disk).is_some());
        let suspect: DiskSet = self
            .packs
            .suspect_on(pack)
            .both(takers)
            .iter()
            .filter(|disk| disks.has(*disk) || !only_fragment(disk))
            .collect();
        let others = suspect.iter().filter(|disk| !disks.has(*disk)).count();
        let kind = (known.summary.class, self.packs.now(&known.summary));
        let wanted = self.packs.copies_now(kind, disks, known.summary.file_bytes());
        let lacking = wanted.saturating_sub(sound + others);
        // Where nothing takes anything it stays.
        let leaving = if takers.is_empty() { DiskSet::NONE } else { disks.both(drained) };
        let is_due = lacking > 0 || !suspect.is_empty() || !leaving.is_empty();
        is_due.then_some(Copies { pack, known, suspect, lacking, leaving })
    }

    /// The same for one pack, at once.
    pub(crate) async fn restore_pack(&self, pack: u64) -> Result<String, StoreError> {
        let mut report = CopiesReport::default();
        let _work = self.copy_work.lock().await;
        self.do_due(pack, &Pace::new(&self.platform, &|| Share::FULL, &|| true), &mut report).await?;
        if report.written == 0 {
            return Ok("no disk for it is there, or it is on enough".to_owned());
        }
        Ok(format!("{} written", report.written))
    }

    async fn bring(&self, due: &Copies, pace: &Pace<'_>, report: &mut CopiesReport) -> Result<(), StoreError> {
        let Copies { pack, known, suspect, lacking, leaving } = due;
        let bytes = known.summary.file_bytes();
        let class = known.summary.class;
        let kind = (class, self.packs.now(&known.summary));
        let is_asked = known.disks().both(self.pool.takers()).count() < self.packs.asked_now(kind);
        let taken: DiskSet = suspect.iter().chain(known.disks().iter()).collect();
        let others = self.pool.candidates(class, bytes, usize::try_from(*pack).unwrap_or(0));
        let others =
            others.into_iter().filter(|disk| !taken.has(*disk) && (is_asked || self.pool.is_roomy(*disk, bytes)));
        let others: Vec<usize> = others.take(*lacking).collect();
        let mut failure = None;
        // First where nothing is yet. Want of room on one keeps no other from its copy.
        for disk in others.iter().copied().chain(suspect.iter()) {
            match self.copy_pack(*pack, disk, pace).await {
                Ok(()) => {
                    report.written += 1;
                    report.bytes += bytes;
                }
                Err(error) => drop(failure.get_or_insert(error)),
            }
        }
        if failure.is_none() && others.len() < *lacking {
            failure = Some(self.pool.full("a copy of a pack", bytes));
        }
        // What nobody asked for keeps nothing on a disk that is drained (K-14).
        let staying =
            leaving.iter().chain(suspect.iter()).fold(known.disks().both(self.pool.takers()), DiskSet::without);
        let may_leave = !leaving.is_empty() && staying.count() >= self.packs.asked_now(kind);
        let is_new_one_there = failure.is_none() && !others.is_empty();
        if let Some(error) = failure
            && !may_leave
        {
            return Err(error);
        }
        if !leaving.is_empty() && !is_new_one_there {
            // The last one that is known to be whole does not go.
            let mut bad = self.not_whole_on(*pack, known, pace).await;
            let rewritten: DiskSet = bad.iter().filter(|disk| self.pool.disks[*disk].takes()).collect();
            let mut not_rewritten = None;
            for disk in rewritten.iter() {
                self.packs.suspects.lock().insert((*pack, disk));
                match self.copy_pack(*pack, disk, pace).await {
                    Ok(()) => {
                        report.written += 1;
                        report.bytes += bytes;
                    }
                    Err(error) if may_leave => not_rewritten = Some(error),
                    Err(error) => return Err(error),
                }
            }
            let Some(known) = self.packs.known_pack(*pack) else { return Ok(()) };
            if !rewritten.is_empty() {
                bad = self.not_whole_on(*pack, &known, pace).await;
            }
            let staying = leaving.iter().fold(known.disks(), DiskSet::without);
            let whole = staying.iter().filter(|disk| self.pool.disks[*disk].takes() && !bad.has(*disk)).count();
            if let Some(error) = not_rewritten.filter(|_| whole < self.packs.asked_now(kind)) {
                return Err(error);
            }
            if whole == 0 {
                let found = "none that is whole and on a disk that takes part";
                return Err(corrupt(
                    "a pack on a disk that is drained",
                    &pack_path(*pack),
                    0,
                    "another copy of it",
                    found,
                ));
            }
        }
        leaving.iter().try_for_each(|disk| self.leave(*pack, disk))
    }

    /// Disks of a pack on which its file is not what it should be, or gives no answer.
    async fn not_whole_on(&self, pack: u64, known: &PackKnown, pace: &Pace<'_>) -> DiskSet {
        let mut check = Check::of_pack(self, Depth::Deep, pace);
        check.sealed(pack, known).await;
        let problems = &check.report.problems;
        let is_there = |disk: &usize| {
            let path = format!("{}/{}", self.pool.disks[*disk].disk.path(), pack_path(pack));
            problems.iter().any(|problem| problem.path == path && OF_A_FILE.contains(&problem.code))
        };
        known.disks().iter().filter(is_there).collect()
    }

    /// F-7.
    fn leave(&self, pack: u64, disk: usize) -> Result<(), StoreError> {
        if self.packs.leave_disk(pack, disk) {
            let on = &self.pool.disks[disk].disk;
            let removed = on.remove(&pack_path(pack)).and_then(|()| on.sync_directory(PACKS));
            removed.map_err(|error| self.pool.failed(disk, error, &self.counters))?;
        }
        Ok(())
    }

    /// Writes a sealed pack to a disk, as it is on the others. The caller holds `copy_work`.
    pub(crate) async fn copy_pack(&self, pack: u64, to: usize, pace: &Pace<'_>) -> Result<(), StoreError> {
        let Some(known) = self.packs.known_pack(pack).filter(|known| matches!(known.state, PackState::Sealed)) else {
            return Ok(());
        };
        if self.pool.disks[to].part() == Part::Removed {
            return Err(refused(
                self.pool.disks[to].disk.path(),
                "it is no disk of this node any more.",
                "Check again.",
            ));
        }
        let path = copy_path(pack);
        let written = self.write_copy(pack, &known, to, pace).await;
        let on = &self.pool.disks[to].disk;
        let placed = match written {
            Ok(()) => on.rename(&path, &pack_path(pack)).and_then(|()| on.sync_directory(PACKS)),
            Err(error) => {
                let _ = on.remove(&path);
                return Err(error);
            }
        };
        placed.map_err(|error| self.pool.failed(to, error, &self.counters))?;
        if !self.packs.add_disk(pack, to) {
            // F-6.
            let gone = on.remove(&pack_path(pack)).and_then(|()| on.sync_directory(PACKS));
            gone.map_err(|error| self.pool.failed(to, error, &self.counters))?;
        }
        if !self.packs.suspects.lock().iter().any(|(suspect, _)| *suspect == pack) {
            self.damaged.lock().remove(&pack);
        }
        self.counters.copies_written.add(1);
        self.counters.copied_bytes.add(known.summary.file_bytes());
        let _ = self.pool.disks[to].look();
        Ok(())
    }

    async fn write_copy(&self, pack: u64, known: &PackKnown, to: usize, pace: &Pace<'_>) -> Result<(), StoreError> {
        let on = &self.pool.disks[to];
        let failed = |error| self.pool.failed(to, error, &self.counters);
        let (entries, _) = self.directory(pack, known).await?;
        match on.disk.remove(&copy_path(pack)) {
            Err(error) if error.kind != DiskErrorKind::Absent => return Err(failed(error)),
            _ => {}
        }
        let file = on.disk.open(&copy_path(pack), Open::Create).map_err(failed)?;
        let mut buffer = self.header_of(pack, known).await;
        let mut start = 0;
        for entry in &entries {
            let gap = usize::try_from(u64::from(entry.offset) - start).expect("packs end below 4 GiB");
            // A stretch that was cut out of it when it was recovered.
            buffer.resize(buffer.len().max(gap), 0);
            let read = self.packs.read_packed(&entry.header.address, &Place::of(pack, entry)).await;
            let chunk = read.inspect_err(|error| self.packs.note_rotten(pack, error))?;
            buffer.extend_from_slice(&ChunkHeader::encode(&entry.header, pack, entry.offset));
            buffer.extend_from_slice(&chunk.payload);
            if buffer.len() >= STEP_BYTES {
                file.write_at(start, &buffer).await.map_err(failed)?;
                start += buffer.len() as u64;
                buffer.clear();
                pace.step().await;
            }
        }
        file.write_at(start, &buffer).await.map_err(failed)?;
        // As when it was sealed: K-2.
        file.sync().await.map_err(failed)?;
        let end = u64::from(known.summary.data_bytes);
        let directory = encode_directory(pack, known.summary.data_bytes, &entries);
        file.write_at(end, &directory).await.map_err(failed)?;
        file.sync().await.map_err(failed)
    }

    /// The header of a pack, as it is on one of its disks, or else as it should be.
    pub(crate) async fn header_of(&self, pack: u64, known: &PackKnown) -> Vec<u8> {
        for file in self.packs.to_read(pack, known) {
            let mut bytes = vec![0; PackHeader::BYTES];
            if let Ok(file) = file
                && file.read_exact_at(0, &mut bytes).await.is_ok()
                && PackHeader::decode(&bytes, pack).is_ok()
            {
                return bytes;
            }
        }
        let (node_identity, disk_uuid) = (self.pool.node_identity, [0; 16]);
        let (class, level) = (known.summary.class, known.summary.level);
        PackHeader { version: PACK_VERSION, pack, node_identity, disk_uuid, class, level }.encode()
    }
}
