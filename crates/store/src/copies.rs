//! Copies: bringing packs onto as many disks as they should be on, after a disk failed, is gone, or turned out to lie.
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
//! Not here: what is wrong (`check`), packs of which a chunk is good nowhere: whether anybody needs it (`reclaim`), and if so (`repair`).

use platform::disk::{DiskErrorKind, Open};

use crate::check::{Check, Depth};
use crate::disks::DiskSet;
use crate::failure::{StoreError, refused};
use crate::format::{
    ChunkHeader, INDEX_FILE, PACK_VERSION, PACKS, PackHeader, Place, copy_path, encode_directory, pack_path,
};
use crate::pace::{Pace, Share};
use crate::pack::{PackKnown, PackState};
use crate::pool::Part;
use crate::remedy::Remedy;
use crate::store::Store;

/// Bytes that are read and written at a time.
const STEP_BYTES: usize = 1 << 20;

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
    /// Whether the index was made again on another disk, for its own had failed.
    pub is_index_moved: bool,
    /// Why, in words.
    pub problems: Vec<String>,
}

/// One pack that has to be written somewhere.
struct Due {
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
        self.packs.seal_lacking().await;
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
                    report.is_index_moved = true;
                    // It says where the index is.
                    if self.renew_root().await.is_ok() && self.pool.drained().has(before) {
                        let _ = self.pool.disks[before].disk.remove(INDEX_FILE);
                    }
                }
                Err(error) => report.problems.push(format!("the index cannot be made on another disk: {error}")),
            }
        }
        self.copy_due(pace, tell, &mut report).await;
        // Where everything else went there may be room for a directory now.
        if self.packs.seal_unsealed().await {
            self.copy_due(pace, tell, &mut report).await;
        }
        report
    }

    async fn copy_due(&self, pace: &Pace<'_>, tell: &(dyn Fn(u64, u64) + Sync), report: &mut CopiesReport) {
        let due = self.due_copies();
        let bytes = |due: &Due| due.known.summary.file_bytes() * (due.suspect.count() + due.lacking) as u64;
        let (total, mut done) = (due.iter().map(bytes).sum(), 0);
        for due in due {
            tell(done, total);
            if !pace.step().await {
                break;
            }
            report.packs += 1;
            let bytes = bytes(&due);
            // Somebody else may have done it meanwhile.
            let work = self.copy_work.lock().await;
            let due = self.packs.known_pack(due.pack).and_then(|known| self.due_copy(due.pack, known));
            let Some(due) = due else {
                done += bytes;
                continue;
            };
            let brought = self.bring(&due, pace, report).await;
            drop(work);
            match brought {
                Ok(()) => {}
                // It went meanwhile, and nothing of it is lacking.
                Err(_) if !self.packs.has(due.pack) => {}
                Err(error) => {
                    report.lacking += 1;
                    report.problems.push(format!("{}: {error}", pack_path(due.pack)));
                }
            }
            done += bytes;
        }
        tell(done, total);
    }

    /// Whether there is anything for [`Store::restore_copies`] to do, as far as disks for it are there.
    #[must_use]
    pub fn lacks_copies(&self) -> bool {
        let drained = self.pool.drained();
        let is_on_drained = |known: &PackKnown| !known.disks().both(drained).is_empty();
        (!drained.is_empty() && self.packs.known().values().any(is_on_drained))
            || self.journal.wants_homes()
            || self.packs.is_open_lacking()
            || !self.due_copies().is_empty()
            || self.is_index_due()
    }

    /// Whether there are packs that [`Store::restore_copies`] could not copy, for something in them is good nowhere, and that a pass of reclaim
    /// may do without (L-6).
    #[must_use]
    pub fn wants_reclaim(&self) -> bool {
        self.packs.are_rotten_untried()
    }

    fn is_index_due(&self) -> bool {
        !self.pool.for_index().takes() && !self.pool.takers().is_empty()
    }

    fn due_copies(&self) -> Vec<Due> {
        self.packs.known().into_iter().filter_map(|(pack, known)| self.due_copy(pack, known)).collect()
    }

    /// What has to be done with a pack, if anything.
    fn due_copy(&self, pack: u64, known: PackKnown) -> Option<Due> {
        if !matches!(known.state, PackState::Sealed) {
            return None;
        }
        let (takers, drained) = (self.pool.takers(), self.pool.drained());
        let disks = known.disks();
        let sound = disks.both(takers).count();
        let suspect = self.packs.suspect_on(pack).both(takers);
        let others = suspect.iter().filter(|disk| !disks.has(*disk)).count();
        let wanted = self.packs.wanted(&known.summary).min(takers.count());
        let lacking = wanted.saturating_sub(sound + others);
        // Where nothing takes anything it stays.
        let leaving = if takers.is_empty() { DiskSet::NONE } else { disks.both(drained) };
        let is_due = lacking > 0 || !suspect.is_empty() || !leaving.is_empty();
        is_due.then_some(Due { pack, known, suspect, lacking, leaving })
    }

    /// The same for one pack, at once.
    pub(crate) async fn restore_pack(&self, pack: u64) -> Result<String, StoreError> {
        let mut report = CopiesReport::default();
        let _work = self.copy_work.lock().await;
        let Some(due) = self.packs.known_pack(pack).and_then(|known| self.due_copy(pack, known)) else {
            return Ok("no disk for it is there, or it is on enough".to_owned());
        };
        self.bring(&due, &Pace::new(&self.platform, &|| Share::FULL, &|| true), &mut report).await?;
        Ok(format!("{} written", report.written))
    }

    async fn bring(&self, due: &Due, pace: &Pace<'_>, report: &mut CopiesReport) -> Result<(), StoreError> {
        let Due { pack, known, suspect, lacking, leaving } = due;
        let bytes = known.summary.file_bytes();
        let class = known.summary.class;
        let taken: DiskSet = suspect.iter().chain(known.disks().iter()).collect();
        let others = self.pool.candidates(class, bytes, usize::try_from(*pack).unwrap_or(0));
        let others: Vec<usize> = others.into_iter().filter(|disk| !taken.has(*disk)).take(*lacking).collect();
        for disk in suspect.iter().chain(others.iter().copied()) {
            self.copy_pack(*pack, disk, pace).await?;
            report.written += 1;
            report.bytes += bytes;
        }
        if others.len() < *lacking {
            return Err(self.pool.full("a copy of a pack", bytes));
        }
        if !leaving.is_empty() && others.is_empty() {
            // The last one that is known to be whole does not go.
            let mut check = Check::of_pack(self, Depth::Deep, pace);
            check.sealed(*pack, known).await;
            for disk in check.report.problems.iter().filter_map(|problem| match problem.remedy {
                Some(Remedy::Copy { disk, .. }) => Some(disk),
                _ => None,
            }) {
                if self.pool.disks[disk].takes() {
                    self.packs.suspects.lock().insert((*pack, disk));
                    self.copy_pack(*pack, disk, pace).await?;
                    report.written += 1;
                    report.bytes += bytes;
                }
            }
        }
        leaving.iter().try_for_each(|disk| self.leave(*pack, disk))
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
            let chunk = read.inspect_err(|_| self.packs.note_rotten(pack))?;
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
    async fn header_of(&self, pack: u64, known: &PackKnown) -> Vec<u8> {
        for disk in known.disks().iter() {
            let mut bytes = vec![0; PackHeader::BYTES];
            if let Ok(file) = self.pool.disks[disk].disk.open(&pack_path(pack), Open::Read)
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
