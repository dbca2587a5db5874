//! Admission: who may change something now, who waits, and who is refused.
//!
//! A write is refused while the disks could not take what the buffer holds, and what was admitted and has not arrived, so what was accepted always fits.
//!
//! A-5   Who waits for the buffer holds nothing of the records: a stream that waits for its flush keeps nobody from changing names.
//! A-6   Who waits hears of what keeps room from being made. Want of room on the disks keeps nobody from removing.
//! A-7   Small writes have a part of the buffer to themselves: who makes and syncs them does not wait for a stream's flush.
//! A-8   What fills our own buffers goes no further ahead of its file's flush than all that is under way needs, so the same buffers come round
//!       again. It waits for that before it asks for room, and stands in nobody's way meanwhile.
//! A-9   Who removes trees stands in no line once somebody waits for the room that this makes: who waits has records that the line waits for.
//!
//! Not here: the pools (`room`); how room is made (`flush`, `commit`, `reclaim`).

use std::sync::atomic::Ordering;
use std::time::Duration;

use platform::pools::Reservation;
use platform::task::{First, first};
use store::Resilience;

use crate::failure::FileError;
use crate::inode::Inode;
use crate::room::{ASKING, BYTES, CHANGE_FILES, Claim, FAILING_COMMITS_AHEAD, LARGE, MODEST, SMALL};
use crate::system::FileSystem;

/// What a change logs at most, about, but for what callers add to it.
pub(crate) const CHANGE_BYTES: u64 = 4 << 10;
/// A file's last chunk is small: what it takes beyond its bytes, with header and entries.
const CHUNK_OVERHEAD_BYTES: u64 = 256;
/// After a pass of reclaim that met something lost, or where nothing was dropped since, nobody who wants room begins another one for so long.
const PASS_AGAIN: Duration = Duration::from_secs(10);
///
const FILLED_AHEAD_BYTES: u64 = 60 << 20;
/// A pass that gives less was in vain.
pub(crate) const VAIN_BYTES: u64 = 1 << 20;
/// Beyond what is lacking, for as many bytes what is needed is copied.
const THOROUGH_BYTES: u64 = 64 << 20;
/// Space that data may not use up: commits and deletions need it.
const SPACE_MARGIN_BYTES: u64 = 16 << 20;

/// The right to change something.
#[must_use]
pub(crate) struct Admitted {
    _records: Reservation<2, 2>,
}

/// The right to accept data.
#[must_use]
pub(crate) struct WriteAdmitted {
    buffer: Reservation<2, 2>,
    _records: Admitted,
    _claim: Claim,
}

/// The right to write a unit.
#[must_use]
pub(crate) struct UnitAdmitted {
    _buffer: Option<Reservation<2, 2>>,
    _records: Admitted,
}

impl WriteAdmitted {
    /// So many bytes were accepted. Gives how many there are in all.
    pub(crate) fn accept(&mut self, bytes: u64) -> u64 {
        self.buffer.allocate(BYTES, bytes)
    }
}

impl FileSystem {
    /// Waits for room in the write buffer and checks that the disks could take what it holds. What is rare in it is boxed, or every request
    /// would carry the state of a commit.
    pub(crate) async fn admit(&self, bytes: u64) -> Result<WriteAdmitted, FileError> {
        let buffer = self.admit_to_buffer(bytes).await?;
        let records = self.admit_records(CHANGE_BYTES).await?;
        let claim = self.ask_for_space(bytes).await?;
        Ok(WriteAdmitted { buffer, _records: records, _claim: claim })
    }

    /// Checks the same, for who was admitted, where content asks for more than most does: there may be room for other files alone.
    pub(crate) async fn expect_space(&self, resilience: Resilience) -> Result<(), FileError> {
        if resilience == Resilience::OfNode {
            return Ok(());
        }
        // As of the last time that anybody looked, if that is far from too little.
        let known = self.free_of.lock().get(&resilience).copied();
        if known.is_some_and(|free| free > self.needed_space(self.claims.bytes()) + SPACE_MARGIN_BYTES) {
            return Ok(());
        }
        let measure = || {
            let mut free_of = self.free_of.lock();
            let free = self.store.space_for(resilience).free;
            free_of.insert(resilience, free);
            free
        };
        let is_there = || measure() > self.needed_space(self.claims.bytes());
        if is_there() {
            return Ok(());
        }
        // As [`FileSystem::ask_for_space`].
        let _waits = self.wants_room();
        let _ = Box::pin(self.sync_all()).await;
        if is_there() {
            return Ok(());
        }
        Box::pin(self.make_room_uncounted()).await?;
        if is_there() { Ok(()) } else { Err(self.want_of_room(0)) }
    }

    /// What the disks have to have free for what the buffer holds, what commits have to store, and so many bytes beside.
    fn needed_space(&self, beside: u64) -> u64 {
        let waiting = self.dirty_bytes() + self.journal_ahead() + beside;
        waiting + waiting / 16 + self.unlogged.lock().len() as u64 * CHUNK_OVERHEAD_BYTES + SPACE_MARGIN_BYTES
    }

    /// The same for a unit of so many files, whose content goes to the store at once and waits in no buffer: it is in memory all the same.
    pub(crate) async fn admit_unit(
        &self,
        (bytes, chunks): (u64, u64),
        (log_bytes, files): (u64, u64),
    ) -> Result<(UnitAdmitted, Claim), FileError> {
        let part = bytes.min(self.options.dirty_bytes_max / 2);
        let buffer = if part > 0 { Some(self.admit_to_buffer(part).await?) } else { None };
        self.refuse_without_journal()?;
        let records = self.admit_to_records(ASKING, log_bytes, files).await?;
        let claim = self.ask_for_space(bytes + chunks * CHUNK_OVERHEAD_BYTES + log_bytes).await?;
        Ok((UnitAdmitted { _buffer: buffer, _records: records }, claim))
    }

    /// Claims so many bytes of the disks, beside what the buffer holds and others have claimed.
    pub(crate) async fn ask_for_space(&self, bytes: u64) -> Result<Claim, FileError> {
        let is_known =
            |claimed| self.free_bytes.load(Ordering::Relaxed) > self.needed_space(claimed + bytes) + SPACE_MARGIN_BYTES;
        if let Some(claim) = self.claims.claim(bytes, is_known) {
            return Ok(claim);
        }
        let claim = || self.claims.claim(bytes, |claimed| self.measure_space() > self.needed_space(claimed + bytes));
        if let Some(claim) = claim() {
            return Ok(claim);
        }
        let _waits = self.wants_room();
        // Accepted data is counted as if nothing of it could be shared or compressed: see what it really takes.
        match Box::pin(self.sync_all()).await {
            // There may be room yet, or somebody else asks for more than there is.
            Ok(()) | Err(FileError::NoSpace) => {}
            Err(error) => return Err(error),
        }
        if let Some(claim) = claim() {
            return Ok(claim);
        }
        // And what the journal has.
        if Box::pin(self.commit()).await.is_ok()
            && let Some(claim) = claim()
        {
            return Ok(claim);
        }
        Box::pin(self.make_room_uncounted()).await?;
        if let Some(claim) = claim() {
            return Ok(claim);
        }
        // What is left lies among what is needed. For some more at once: who comes next will want some, too.
        let needed = || self.needed_space(self.claims.bytes() + bytes);
        let lacking = needed().saturating_sub(self.measure_space());
        if self.dead_left_bytes.load(Ordering::Relaxed) > lacking {
            let is_there = || self.measure_space() > needed();
            Box::pin(self.reclaim_thoroughly(lacking + THOROUGH_BYTES, is_there)).await;
        }
        claim().ok_or_else(|| self.want_of_room(bytes))
    }

    async fn admit_to_buffer(&self, bytes: u64) -> Result<Reservation<2, 2>, FileError> {
        let wants = [bytes, 1];
        let line = if bytes <= self.options.inline_bytes_max { SMALL } else { LARGE };
        // While earlier data cannot be stored none is accepted.
        if !self.has_flush_failed()
            && let Some(reservation) = self.buffer.try_reserve(line, wants)
        {
            return Ok(reservation);
        }
        Box::pin(self.wait_for_buffer(line, wants)).await
    }

    async fn wait_for_buffer(&self, line: usize, wants: [u64; 2]) -> Result<Reservation<2, 2>, FileError> {
        let _time = self.platform.clock.timer(&self.counters.write_wait);
        let mut turn = std::pin::pin!(self.buffer.reserve(line, wants));
        let mut least = u64::MAX;
        loop {
            let failed = self.flush_failed.notified();
            let mut failed = std::pin::pin!(failed);
            failed.as_mut().enable();
            let failure = self.flush_failure.lock().clone();
            match failure.filter(|_| self.dirty_bytes() > 0) {
                // What others wrote is stored meanwhile.
                Some((of, _)) if of != Resilience::OfNode && self.dirty_bytes() < least => least = self.dirty_bytes(),
                Some((_, FileError::NoSpace)) if self.make_room().await? => {
                    self.sync_all().await?;
                    continue;
                }
                Some((_, failure)) => return Err(failure),
                None => {}
            }
            self.wants_flush.notify_one();
            if let First::Left(reservation) = first(turn.as_mut(), failed).await {
                // What a flush put back may have made the room.
                let failure = self.flush_failure.lock().clone().filter(|(of, _)| *of == Resilience::OfNode);
                return failure.filter(|_| self.dirty_bytes() > 0).map_or(Ok(reservation), |(_, failure)| Err(failure));
            }
        }
    }

    /// waits until a file that is filled faster than it is stored is no further ahead. Not where flushes fail: who asks for admission hears of that.
    pub(crate) async fn wait_for_flush(&self, inode: &Inode) {
        loop {
            let (released, failed) = (self.released.notified(), self.flush_failed.notified());
            let (mut released, mut failed) = (std::pin::pin!(released), std::pin::pin!(failed));
            released.as_mut().enable();
            failed.as_mut().enable();
            let is_ahead = {
                let state = inode.state.lock();
                !state.is_gone && state.unlogged_bytes() > FILLED_AHEAD_BYTES
            };
            if !is_ahead || self.has_flush_failed() {
                return;
            }
            let _time = self.platform.clock.timer(&self.counters.write_wait);
            self.wants_flush.notify_one();
            first(released, failed).await;
        }
    }

    /// Whether what most files ask for cannot be stored. Where more is asked for, others have room until that fills the buffer.
    pub(crate) fn has_flush_failed(&self) -> bool {
        let failure = self.flush_failure.lock();
        failure.as_ref().is_some_and(|(of, _)| *of == Resilience::OfNode) && self.dirty_bytes() > 0
    }

    /// J-5.
    fn refuse_without_journal(&self) -> Result<(), FileError> {
        self.journal_failure.lock().clone().map_or(Ok(()), Err)
    }

    /// Waits for room for so many bytes of records.
    pub(crate) async fn admit_records(&self, bytes: u64) -> Result<Admitted, FileError> {
        self.refuse_without_journal()?;
        self.admit_to_records(ASKING, bytes, CHANGE_FILES).await
    }

    /// New names need journal and tree space. Removing never asks.
    pub(crate) async fn admit_metadata(&self, bytes: u64) -> Result<Admitted, FileError> {
        let admitted = self.admit_records(bytes).await?;
        if self.free_bytes.load(Ordering::Relaxed) > SPACE_MARGIN_BYTES || self.measure_space() > 0 {
            return Ok(admitted);
        }
        Box::pin(self.make_room()).await?;
        if self.measure_space() > 0 { Ok(admitted) } else { Err(self.want_of_room(bytes)) }
    }

    /// Changes that ask for no room wait longer, and go on for a while when commits fail. `gives_room`: they are removals, and want of room
    /// keeps nobody from those (seed 219 of plan `full`); what they leave to do is bounded by what is there. Where the journal has ended nothing of it
    /// would ever be local.
    pub(crate) async fn admit_change(&self, gives_room: bool, bytes: u64) -> Result<Admitted, FileError> {
        self.refuse_without_journal()?;
        match self.admit_to_records(MODEST, bytes, CHANGE_FILES).await {
            Err(FileError::NoSpace) if gives_room => Ok(self.let_in(bytes)),
            Err(failure) if self.is_commit_late(FAILING_COMMITS_AHEAD) => Err(failure),
            Err(_) => Ok(self.let_in(bytes)),
            Ok(admitted) => Ok(admitted),
        }
    }

    /// The same for a frame of so many removals, of which nobody waits for one.
    pub(crate) async fn admit_removals(&self, bytes: u64, files: u64) -> Result<Admitted, FileError> {
        self.refuse_without_journal()?;
        match self.admit_to_records(MODEST, bytes, files).await {
            Err(FileError::NoSpace) => Ok(Admitted { _records: self.records.force(self.wanted_records(bytes, files)) }),
            admitted => admitted,
        }
    }

    /// The same for who removes trees behind. Once somebody waits for the room it is let in, and does itself what else it would wait for: it commits
    /// what is due, so what commits have to do is bounded all the same.
    pub(crate) async fn admit_remover(&self, bytes: u64, files: u64) -> Result<Admitted, FileError> {
        let admitted = first(self.admit_removals(bytes, files), self.removals.until_hurried()).await;
        if let First::Left(admitted) = admitted {
            return admitted;
        }
        if self.is_commit_due() {
            match Box::pin(self.commit()).await {
                // As above: want of room keeps nobody from removing.
                Ok(()) | Err(FileError::NoSpace) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Admitted { _records: self.records.force(self.wanted_records(bytes, files)) })
    }

    /// The same for one that nobody asked for, and nobody would ask for again: where commits fail it is let in all the same.
    pub(crate) async fn admit_ending(&self, bytes: u64) -> Result<Admitted, FileError> {
        self.refuse_without_journal()?;
        Ok(self.admit_removals(bytes, 1).await.unwrap_or_else(|_| self.let_in(bytes)))
    }

    fn let_in(&self, bytes: u64) -> Admitted {
        Admitted { _records: self.records.force(self.wanted_records(bytes, CHANGE_FILES)) }
    }

    fn wanted_records(&self, bytes: u64, files: u64) -> [u64; 2] {
        // More than a commit leaves over would wait for a moment in which nothing is logged at all.
        let files_max = (self.options.uncommitted_files_max as u64).max(CHANGE_FILES);
        [bytes.min(self.options.commit_journal_bytes), files.min(files_max)]
    }

    /// Waits while so many commits are due: what they have not done takes memory, and room in the reserve.
    async fn admit_to_records(&self, line: usize, bytes: u64, files: u64) -> Result<Admitted, FileError> {
        let wants = self.wanted_records(bytes, files);
        match self.records.try_reserve(line, wants) {
            Some(records) => Ok(Admitted { _records: records }),
            None => Box::pin(self.wait_for_records(line, wants)).await,
        }
    }

    async fn wait_for_records(&self, line: usize, wants: [u64; 2]) -> Result<Admitted, FileError> {
        let _time = self.platform.clock.timer(&self.counters.record_wait);
        let mut turn = std::pin::pin!(self.records.reserve(line, wants));
        loop {
            let failed = self.commit_ended.notified();
            let mut failed = std::pin::pin!(failed);
            failed.as_mut().enable();
            if let Some(failure) = self.commit_failure.lock().clone() {
                return Err(failure);
            }
            if self.is_stopping.load(Ordering::SeqCst) {
                return Ok(Admitted { _records: self.records.force(wants) });
            }
            self.wants_commit.notify_one();
            if let First::Left(records) = first(turn.as_mut(), failed).await {
                return Ok(Admitted { _records: records });
            }
        }
    }

    /// Gives what nobody needs any more back to the disks, if that may be anything. Whether it did: what keeps a pass from it is told by the status, and
    /// who wants room hears that there is none.
    pub(crate) async fn make_room(&self) -> Result<bool, FileError> {
        let _waits = self.wants_room();
        self.make_room_uncounted().await
    }

    /// Counts the caller among those who wait for room on the disks, and his time, as long as he keeps this.
    fn wants_room(&self) -> impl Sized {
        (self.room_wanted.wait(), self.platform.clock.timer(&self.counters.room_wait))
    }

    async fn make_room_uncounted(&self) -> Result<bool, FileError> {
        // What fails there is told by who removes; there may be room for all that.
        let _ = self.finish_removals().await;
        // A commit may itself lack what a pass would give it.
        let lacks_room = match self.commit().await {
            Ok(()) => false,
            Err(FileError::NoSpace) => true,
            Err(error) => return Err(error),
        };
        let is_vain = self.is_pass_in_vain.load(Ordering::SeqCst)
            && self.has_passed_lately()
            && self.dropped_bytes.load(Ordering::Relaxed) < VAIN_BYTES;
        let is_new = self.dropped_since_pass.load(Ordering::SeqCst) && !self.has_met_loss_lately() && !is_vain;
        let is_again = (lacks_room || self.is_pass_partial.load(Ordering::SeqCst)) && !self.has_passed_lately();
        if !is_new && !is_again {
            return if lacks_room { Err(FileError::NoSpace) } else { Ok(false) };
        }
        let mut is_done = self.reclaim_at_once().await.is_ok();
        if lacks_room {
            // Only now is it known what was dropped.
            self.commit().await?;
            is_done |= self.reclaim_at_once().await.is_ok();
        }
        Ok(is_done)
    }

    /// Whether the last pass ended at something that is lost (I-96), and so would another one.
    fn has_met_loss_lately(&self) -> bool {
        let failure = self.reclaim_failure.lock();
        failure.as_ref().is_some_and(|(failure, when)| failure.is_loss() && self.is_just_now(*when))
    }

    pub(crate) fn has_passed_lately(&self) -> bool {
        self.last_pass.lock().is_some_and(|when| self.is_just_now(when))
    }

    fn is_just_now(&self, when: Duration) -> bool {
        self.platform.clock.elapsed().saturating_sub(when) < PASS_AGAIN
    }

    /// So many bytes in the store have no name any more, or never had one.
    pub(crate) fn note_dropped(&self, bytes: u64) {
        if bytes > 0 {
            self.dropped_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.dropped_since_pass.store(true, Ordering::SeqCst);
        }
    }

    /// `NoSpace`; but where all disks have failed nobody is told to remove something.
    pub(crate) fn want_of_room(&self, bytes: u64) -> FileError {
        self.store.want_of_room(bytes).into()
    }

    pub(crate) fn measure_space(&self) -> u64 {
        // Held from the look on: what was seen later is not replaced by what was seen before.
        let mut free_of = self.free_of.lock();
        let free = self.store.space().free;
        self.free_bytes.store(free, Ordering::Relaxed);
        free_of.clear();
        free
    }

    /// Bytes accepted and not in the store.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.buffer.allocated(BYTES)
    }

    /// Writers that wait for room in the buffer.
    pub(crate) fn writers_waiting(&self) -> usize {
        self.buffer.waiting(LARGE) + self.buffer.waiting(SMALL)
    }

    /// Changes that wait for commits.
    pub(crate) fn changes_waiting(&self) -> usize {
        self.records.waiting(ASKING) + self.records.waiting(MODEST)
    }

    /// Gives room in the write buffer back.
    pub(crate) fn release_dirty(&self, bytes: u64) {
        if bytes > 0 {
            self.buffer.free(BYTES, bytes);
            self.released.notify_waiters();
        }
    }
}
