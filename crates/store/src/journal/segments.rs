//! Segments: the files of the journal, how they are made, taken into use and given up.
//!
//! Keeps J-4, J-12, and of J-9 that a disk which fails while a segment begins is no home of it.
//!
//! Not here: what is written into them (`journal`), what a crash left (`replay`).

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use base::id::Position;
use base::limits::FRAME_BYTES_MAX;
use platform::disk::{Disk, DiskError, DiskErrorKind, File, Open};

use super::replay::SEGMENT_BYTES_MAX;
use super::{Current, Journal, Live, Segments};
use crate::counters::Counters;
use crate::disks::DiskSet;
use crate::failure::StoreError;
use crate::format::{FrameHeader, JOURNAL, SegmentHeader, segment_path};
use crate::pool::Pool;

/// Smallest segment: the largest frame must fit into an empty one.
pub(crate) const SEGMENT_BYTES_MIN: u64 =
    (SegmentHeader::FRAMES_AT + FrameHeader::BYTES + FRAME_BYTES_MAX).next_multiple_of(FrameHeader::GROUP_ALIGN) as u64;
/// Segments kept for use beyond those that hold frames.
pub(super) const SPARES_MAX: usize = 4;
/// Zeroes written at a time when a segment is made.
const ZERO_RUN: usize = 1024 * 1024;

impl Journal {
    /// Does something on each home for the segment that begins. One where it fails is left; one that is full ends it.
    fn on_homes<T>(&self, act: impl Fn(&Disk) -> Result<T, DiskError>) -> Result<Vec<(usize, T)>, StoreError> {
        let mut done = Vec::new();
        let mut failure = None;
        for disk in self.pool.homes().both(self.pool.good()).iter() {
            match act(&self.pool.disks[disk].disk) {
                Ok(what) => done.push((disk, what)),
                Err(error) => failure = Some(self.left(disk, error)?),
            }
        }
        self.unless_none(done.is_empty(), failure).map(|()| done)
    }

    /// A home where something failed for a segment that nothing is in yet: why it is left. One that is full is not left, for it is well (J-9):
    /// the segment is not begun.
    pub(super) fn left(&self, disk: usize, error: DiskError) -> Result<StoreError, StoreError> {
        let is_full = error.kind == DiskErrorKind::Full;
        let failure = self.pool.failed(disk, error, &self.counters);
        if is_full { Err(self.pool.full("the journal", self.segment_bytes)) } else { Ok(failure) }
    }

    /// Takes a spare segment or makes one, and writes its header. Nothing of it is synced yet; the first group does that.
    pub(super) async fn begin_segment(&self, segments: &mut Segments, first: Position) -> Result<Current, StoreError> {
        let segment = segments.next_number;
        let path = segment_path(segment);
        segments.next_number += 1;
        let homes = self.pool.homes();
        let is_fit = |(_, disks): &(u64, DiskSet)| *disks == homes;
        let spare = segments.spare.iter().rposition(is_fit).map(|at| segments.spare.remove(at));
        let mut files = match spare {
            Some((spare, disks)) => {
                let taken = self.on_homes(|disk| {
                    disk.rename(&segment_path(spare), &path)?;
                    disk.sync_directory(JOURNAL)?;
                    disk.open(&path, Open::Write)
                });
                if taken.is_err() {
                    // Of each disk it has the one name or the other.
                    self.forsake(&mut segments.needless, [(segment, disks)]);
                    segments.needless.push((spare, disks));
                }
                let files = taken?;
                self.counters.log_segments_recycled.add(1);
                files
            }
            None => self.make_segment(&path).await?,
        };
        let node_identity = self.pool.node_identity;
        let header = SegmentHeader { segment, node_identity, first }.encode();
        let begun = self.write_part(&mut files, 0, &header).await;
        if begun.is_err() {
            self.forsake(&mut segments.needless, [(segment, homes)]);
        }
        begun?;
        let disks = files.iter().map(|(disk, _)| *disk).collect();
        segments.live.push_back(Live { segment, disks, whole: disks, last: Position(first.0 - 1) });
        let life = FrameHeader::life(segment, &node_identity);
        Ok(Current { segment, life, files, end: SegmentHeader::FRAMES_AT as u64 })
    }

    /// Writes a part of a segment that is not in use yet. As [`Journal::on_homes`].
    async fn write_part(&self, files: &mut Vec<(usize, File)>, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let mut failure = None;
        let mut at = 0;
        while let Some((disk, file)) = files.get(at) {
            match file.write_at(offset, bytes).await {
                Ok(()) => at += 1,
                Err(error) => {
                    failure = Some(self.left(*disk, error)?);
                    files.remove(at);
                }
            }
        }
        self.unless_none(files.is_empty(), failure)
    }

    /// A new file of zeroes on each home, durable with its name.
    async fn make_segment(&self, path: &str) -> Result<Vec<(usize, File)>, StoreError> {
        let made = async {
            let mut files = self.on_homes(|disk| disk.open(path, Open::Create))?;
            let zeroes = vec![0; ZERO_RUN];
            let mut end = 0;
            while end < self.segment_bytes {
                let run = ZERO_RUN.min(usize::try_from(self.segment_bytes - end).unwrap_or(ZERO_RUN));
                self.write_part(&mut files, end, &zeroes[..run]).await?;
                end += run as u64;
            }
            let mut failure = None;
            let mut synced = Vec::new();
            for (disk, file) in files {
                let done = match file.sync().await {
                    Ok(()) => self.pool.disks[disk].disk.sync_directory(JOURNAL),
                    failed => failed,
                };
                match done {
                    Ok(()) => synced.push((disk, file)),
                    Err(error) => failure = Some(self.left(disk, error)?),
                }
            }
            self.unless_none(synced.is_empty(), failure).map(|()| synced)
        };
        let made = made.await;
        if made.is_err() {
            // Half a segment helps nobody, and its room may help somebody.
            for disk in self.pool.homes().iter() {
                let _ = self.pool.disks[disk].disk.remove(path);
            }
        } else {
            self.counters.log_segments_created.add(1);
            self.segment_count.fetch_add(1, Ordering::Relaxed);
        }
        made
    }

    /// Makes one spare segment in advance, where there is none: the first group then need not wait for it. First goes what nobody needs: on a
    /// full disk there is no room for both.
    pub(crate) async fn prepare(&self) -> Result<(), StoreError> {
        let mut segments = self.segments.lock().await;
        self.remove_unfit(&mut segments, self.pool.homes());
        if segments.current.is_none() && segments.spare.is_empty() {
            let segment = segments.next_number;
            segments.next_number += 1;
            let made = self.make_segment(&segment_path(segment)).await?;
            segments.spare.push((segment, made.iter().map(|(disk, _)| *disk).collect()));
        }
        Ok(())
    }

    /// Spare segments that lie on other disks than `homes` are used by nobody: they would keep others from being kept, and on a full disk their
    /// room is missing.
    pub(super) fn remove_unfit(&self, segments: &mut Segments, homes: DiskSet) {
        let (spare, others) = std::mem::take(&mut segments.spare).into_iter().partition(|(_, disks)| *disks == homes);
        segments.spare = spare;
        self.forsake(&mut segments.needless, others);
        let needless = std::mem::take(&mut segments.needless);
        self.remove(&needless);
    }

    /// Segments that hold nothing that anybody needs, and are none any more. Their files go when there is time.
    pub(super) fn forsake(&self, needless: &mut Vec<(u64, DiskSet)>, others: impl IntoIterator<Item = (u64, DiskSet)>) {
        let before = needless.len();
        needless.extend(others);
        self.segment_count.fetch_sub((needless.len() - before) as u64, Ordering::Relaxed);
    }

    /// Removes the files of segments. Their names are gone for good, else a power cut brings them back, and on a full disk their room is missing
    /// until the next commit but one (seed 14487).
    fn remove(&self, segments: &[(u64, DiskSet)]) {
        let disks: DiskSet = segments.iter().flat_map(|(_, disks)| disks.iter()).collect();
        for number in disks.both(self.pool.good()).iter() {
            let disk = &self.pool.disks[number].disk;
            let mut here = segments.iter().filter(|(_, disks)| disks.has(number));
            let removed = here.try_for_each(|(segment, _)| match disk.remove(&segment_path(*segment)) {
                Err(error) if error.kind != DiskErrorKind::Absent => Err(error),
                _ => Ok(()),
            });
            if let Err(error) = removed.and_then(|()| disk.sync_directory(JOURNAL)) {
                let _ = self.pool.failed(number, error, &self.counters);
            }
        }
    }

    /// A superblock covers frames up to `covered`, the one before it up to `before`: forgets sizes, frees segments (J-4). All of it, or nothing where it is
    /// dropped.
    pub(crate) async fn covered(&self, covered: Position, before: Position) {
        let mut segments = self.segments.lock().await;
        self.sizes.lock().retain(|(last, _)| *last > covered);
        // J-3: the newest of which a frame is durable stays, and what came after it.
        let begun = segments.current.as_ref().filter(|current| current.end == SegmentHeader::FRAMES_AT as u64);
        let begun = begun.map(|current| current.segment);
        let newest = segments.live.iter().rev().map(|live| live.segment).find(|segment| Some(*segment) != begun);
        let is_older = |live: &Live| newest.is_some_and(|newest| live.segment < newest);
        let (free, live) = segments.live.iter().partition(|live| live.last <= before && is_older(live));
        (segments.live, segments.covered) = (live, before);
        let free: VecDeque<Live> = free;
        let homes = self.pool.homes();
        for Live { segment, disks, .. } in free {
            let is_whole = |disk: usize| {
                let file = self.pool.disks[disk].disk.open(&segment_path(segment), Open::Read);
                file.and_then(|file| file.length()).is_ok_and(|length| length == self.segment_bytes)
            };
            if disks == homes && disks.iter().all(is_whole) && segments.spare.len() < SPARES_MAX {
                segments.spare.push((segment, disks));
            } else {
                self.forsake(&mut segments.needless, [(segment, disks)]);
            }
        }
        self.remove_unfit(&mut segments, homes);
    }
}

/// A disk that is to have the journal has a place for it: one that was formatted before disks had it may not.
pub(crate) fn make_homes(pool: &Pool, homes: DiskSet, counters: &Counters) {
    for number in homes.iter() {
        let disk = &pool.disks[number].disk;
        if disk.list(JOURNAL).is_err()
            && let Err(error) = disk.make_directory(JOURNAL).and_then(|()| disk.sync_directory(""))
        {
            let _ = pool.failed(number, error, counters);
        }
    }
}

/// The size of segments where `wanted` was asked for.
pub(crate) fn segment_size(wanted: u64) -> u64 {
    wanted.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX).next_multiple_of(FrameHeader::GROUP_ALIGN as u64)
}
