//! The journal: frames in order, made durable in groups.
//!
//! Frames gather in memory ([`Journal::log`]). Who wants them durable waits ([`Journal::sync`]), and a leader, a task beside the
//! callers, writes and syncs all of them at once, again and again while somebody waits. So nobody's thread waits for the disk, and while
//! one sync is under way the next group gathers by itself. Segments are files of one size that were filled with zeroes when made and are
//! used again under a new number, so that a sync has no metadata of the file system to write.
//!
//! J-1   Positions count from 1 without gaps. A frame's place is decided when it is written, its position when it is logged.
//! J-2   Frame p+1 is written only after p, or together with p. What is written to a new segment comes after everything in the
//!       old one was synced.
//! J-3   The frame at position p is found in one segment only: the one with the highest number among those that begin at or
//!       before p. Numbers rise with each use, and after a recovery a new segment is begun, so leftovers of a tail that
//!       was cut never count again. So the newest one stays until a frame is durable in a newer one: without it an older
//!       one would be asked (seed 1150010060 of plan power).
//! J-4   A segment is used again, or removed, only when the superblock before the newest one covers all of it: should the
//!       newest superblock be unreadable, the one before still finds its frames. An opening that can read every superblock takes as free what
//!       none of them needs (seed 14487).
//! J-5   A close, or a write or sync that failed on the last disk that could have the journal, ends it until the store is opened again: nothing is written after that. A full
//!       disk, met before anything was written, leaves the frames where they are for another try.
//! J-6   At most one leader. Who waits is on the list before a leader is sought, and a leader goes only when it has seen the list empty, so
//!       nobody waits without one. It answers after the frame is durable, or the try has failed; should it end in another way, the list is
//!       dropped, and that is an error too.
//! J-7   A group begins at a page of its own, so no write but an opening's touches a sector that holds durable frames, and a device takes it
//!       past the page cache.
//! J-8   A superblock covers frames of this life only when one of them is durable: from then on a segment of this life is the one that J-3
//!       names. Else what a torn group of the life before left behind its gap would follow what the superblock covers (seed 50132).
//!
//! J-9   A frame is durable when it is so on every home of the journal (P-5). A home that fails is left, and counts no more: the next group begins
//!       a segment on as many homes as there should be. Where it was the last one, the group itself is written again, to a new segment on others. So each
//!       acknowledged frame is on all homes of its segment that did not fail later.
//!
//! J-10  An opening without a disk begins a segment before anybody reads what it found: what that disk has of frames that no other had does not
//!       follow on it when it is back (J-3; seed 3418 of plan copies). It leaves out as many numbers of segments as of packs and generations (S-4).
//!
//! J-11  Whoever may open the node by what some superblock says of homes has every frame that was acknowledged, unless all disks that are there had failed
//!       before: those hear of nothing that comes later. So a group that is not on all
//!       disks that it says each have every frame (one failed, or the journal moved) is acknowledged when both slots say something else: those
//!       disks of which each has every frame that it does not cover, or, where there is none, some that have them together.
//! J-12  All blocks of a segment exist before a frame goes there, so that no frame meets a full disk. After a crash a file of full length that was
//!       never used may have holes: it goes.
//!
//! Not here: the files (`segments`), what a crash left (`replay`), what frames mean.

mod named;
pub(crate) mod replay;
mod segments;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use base::id::Position;
use base::limits::FRAME_BYTES_MAX;
use bytes::Bytes;
use parking_lot::Mutex;
use platform::disk::{DiskError, DiskErrorKind, File, RUN_ALIGN};
use platform::task::{Boxed, Tasks, all, yield_now};
use tokio::sync::oneshot;

#[cfg(test)]
pub(crate) use self::segments::SEGMENT_BYTES_MIN;
pub(crate) use self::segments::{make_homes, segment_size};
use crate::counters::Counters;
use crate::disks::DiskSet;
use crate::failure::StoreError;
use crate::format::{FrameHeader, Homes, SegmentHeader, Superblock};
use crate::options::Options;
use crate::pool::Pool;
use crate::run::Run;

const _: () = assert!(FrameHeader::GROUP_ALIGN.is_multiple_of(RUN_ALIGN));

/// Frames that are logged and not written.
struct Buffer {
    run: Run,
    frames: u64,
    /// The position of the next frame.
    next: u64,
    /// What the last group was written from, for the next one: fresh memory costs as much as filling it (measured).
    spare: Run,
}

/// Room in a new buffer.
const BUFFER_BYTES: usize = 64 << 10;
/// A larger buffer is not kept: it may be of large pages, a group that took long is rarely followed by another, and a small budget would notice.
const SPARE_BYTES_MAX: usize = 1 << 20;

/// A segment that holds frames which some superblock may still need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Live {
    pub(crate) segment: u64,
    /// Those that have a file of it.
    pub(crate) disks: DiskSet,
    /// Those that have every frame of it that was acknowledged.
    pub(crate) whole: DiskSet,
    pub(crate) last: Position,
}

struct Current {
    segment: u64,
    life: u64,
    files: Vec<(usize, File)>,
    end: u64,
}

struct Segments {
    current: Option<Current>,
    next_number: u64,
    live: VecDeque<Live>,
    /// What both superblocks cover, as far as that was told.
    covered: Position,
    /// Segments of the right size that nobody needs.
    spare: Vec<(u64, DiskSet)>,
    /// They take room for nothing.
    needless: Vec<(u64, DiskSet)>,
}

/// What of a group is written and synced.
#[derive(Default)]
struct Written {
    bytes: usize,
    last: Position,
    /// The last frame of each run, and its disks.
    runs: Vec<(Position, DiskSet)>,
}

type Answer = Result<(), StoreError>;

/// Writes a superblock that says where the journal is. Takes locks that are held while this journal is asked.
pub(crate) type Namer = Box<dyn Fn() -> Boxed<Answer> + Send + Sync>;

/// Who waits for which frame.
#[derive(Default)]
struct Waiting {
    /// Whether there is a leader, or one is on its way.
    is_led: bool,
    list: Vec<(Position, oneshot::Sender<Answer>)>,
}

/// The journal of the node.
pub(crate) struct Journal {
    tasks: Arc<dyn Tasks>,
    pool: Arc<Pool>,
    counters: Arc<Counters>,
    segment_bytes: u64,
    /// On how many disks it should be.
    copies: AtomicUsize,
    buffer: Mutex<Buffer>,
    /// The last frame of the lives before.
    resumed: Position,
    durable: AtomicU64,
    waiting: Mutex<Waiting>,
    segments: tokio::sync::Mutex<Segments>,
    /// What superblocks that an opening may find cover, and say of homes: the newest, the one before, and those of which nobody knows.
    named: Mutex<Vec<(Position, Homes)>>,
    namer: OnceLock<Namer>,
    /// Segment files, for `status`.
    segment_count: AtomicU64,
    failure: Mutex<Option<Box<str>>>,
    /// Last position and bytes of each group since the newest superblock.
    sizes: Mutex<VecDeque<(Position, u64)>>,
}

/// Where a journal goes on after replay.
pub(crate) struct Resume {
    pub(crate) last: Position,
    pub(crate) next_segment: u64,
    pub(crate) live: VecDeque<Live>,
    pub(crate) spare: Vec<(u64, DiskSet)>,
    /// Segments that nobody needs, and parts of one that was being made when the power went.
    pub(crate) needless: Vec<(u64, DiskSet)>,
    /// Bytes of the frames that were replayed.
    pub(crate) bytes: u64,
}

impl Journal {
    pub(crate) fn new(
        tasks: Arc<dyn Tasks>,
        pool: Arc<Pool>,
        counters: Arc<Counters>,
        (options, floor): (&Options, u8),
        resume: Resume,
    ) -> Journal {
        Journal {
            tasks,
            pool,
            counters,
            segment_bytes: segment_size(options.segment_bytes),
            copies: AtomicUsize::new(usize::from(options.level().copies().max(floor))),
            segment_count: AtomicU64::new((resume.live.len() + resume.spare.len()) as u64),
            buffer: Mutex::new(Buffer {
                run: Run::default().begin(0, BUFFER_BYTES),
                frames: 0,
                next: resume.last.0 + 1,
                spare: Run::default(),
            }),
            resumed: resume.last,
            durable: AtomicU64::new(resume.last.0),
            waiting: Mutex::default(),
            segments: tokio::sync::Mutex::new(Segments {
                current: None,
                next_number: resume.next_segment,
                live: resume.live,
                covered: Position(0),
                spare: resume.spare,
                needless: resume.needless,
            }),
            named: Mutex::default(),
            namer: OnceLock::new(),
            failure: Mutex::new(None),
            sizes: Mutex::new(VecDeque::from([(resume.last, resume.bytes)])),
        }
    }

    /// Takes a frame and tells its position.
    pub(crate) fn log(&self, payload: &[u8]) -> Position {
        assert!(
            payload.len() <= FRAME_BYTES_MAX,
            "a frame has {} bytes at most, not {}",
            FRAME_BYTES_MAX,
            payload.len()
        );
        self.counters.log_frames.add(1);
        self.counters.log_bytes.add(FrameHeader::frame_bytes(payload.len()) as u64);
        let (header, padding) = FrameHeader::blank(payload.len());
        let mut buffer = self.buffer.lock();
        [&header[..], payload, padding].iter().for_each(|part| buffer.run.push(part));
        buffer.frames += 1;
        let position = Position(buffer.next);
        buffer.next += 1;
        position
    }

    /// Takes no frames any more, unless one came after `last`: `false`.
    pub(crate) async fn close(&self, last: Position) -> bool {
        // A group is written before this, or not at all.
        let _segments = self.segments.lock().await;
        let buffer = self.buffer.lock();
        let is_last = buffer.next == last.0 + 1;
        if is_last {
            self.end("the store was closed");
        }
        is_last
    }

    pub(crate) fn last_logged(&self) -> Position {
        Position(self.buffer.lock().next - 1)
    }

    pub(crate) fn last_durable(&self) -> Position {
        Position(self.durable.load(Ordering::SeqCst))
    }

    pub(crate) fn pending_bytes(&self) -> u64 {
        self.buffer.lock().run.len() as u64
    }

    /// Bytes of frames since the newest superblock.
    pub(crate) fn bytes(&self) -> u64 {
        self.sizes.lock().iter().map(|(_, bytes)| bytes).sum::<u64>() + self.pending_bytes()
    }

    /// Segments in use and spare ones.
    pub(crate) fn segment_count(&self) -> u64 {
        self.segment_count.load(Ordering::Relaxed)
    }

    /// Why the journal ended, if it did.
    pub(crate) fn failure(&self) -> Option<StoreError> {
        self.failure.lock().clone().map(|cause| StoreError::ReadOnly { cause })
    }

    /// Returns when a superblock may cover frames up to `covered` (J-8).
    pub(crate) async fn begin_for(self: &Arc<Journal>, covered: Position) -> Answer {
        if covered <= self.resumed || self.last_durable() > self.resumed {
            return Ok(());
        }
        self.sync(covered).await
    }

    /// Returns when frame `upto` is durable.
    pub(crate) async fn sync(self: &Arc<Journal>, upto: Position) -> Answer {
        assert!(upto <= self.last_logged(), "only logged frames can be waited for");
        if self.last_durable() >= upto {
            return Ok(());
        }
        let _time = self.pool.clock.timer(&self.counters.log_wait);
        let answer = self.ask(upto)?;
        answer.await.unwrap_or_else(|_| Err(self.end("the task that writes the journal ended")))
    }

    /// Begins to make frame `upto` durable. Nobody hears what comes of it but who waits for it later.
    pub(crate) fn begin_sync(self: &Arc<Journal>, upto: Position) {
        assert!(upto <= self.last_logged(), "only logged frames can be made durable");
        if self.last_durable() < upto {
            // Refused: the journal has ended, and says so to everybody.
            let _ = self.ask(upto);
        }
    }

    /// Puts somebody who waits for frame `upto` on the list, and sees to it that there is a leader.
    fn ask(self: &Arc<Journal>, upto: Position) -> Result<oneshot::Receiver<Answer>, StoreError> {
        let (send, receive) = oneshot::channel();
        let is_led = {
            let mut waiting = self.waiting.lock();
            if let Some(failure) = self.failure() {
                return Err(failure);
            }
            waiting.list.push((upto, send));
            std::mem::replace(&mut waiting.is_led, true)
        };
        if !is_led {
            // On a thread of its own, also for one caller alone: the caller's would keep from the disk those who could share the group.
            self.tasks.aside(Box::pin(Leader { journal: self.clone(), is_over: false }.lead()));
        }
        Ok(receive)
    }

    /// Writes and syncs what was logged, and acknowledges it.
    async fn write_group(&self) -> Answer {
        let mut written = Written::default();
        let result = self.write_logged(&mut written).await;
        if written.runs.is_empty() {
            return result;
        }
        // One superblock for each slot, and one that may have begun before.
        for _ in 0..=Superblock::SLOTS {
            let Some(namer) = self.namer.get().filter(|_| !self.is_named(&written)) else { break };
            self.counters.log_homes_named.add(1);
            if let Err(error) = namer().await {
                return Err(self.end(&format!("it cannot be noted where the journal is: {error}")));
            }
        }
        if self.namer.get().is_some() && !self.is_named(&written) {
            return Err(self.end("its disks fail faster than it can be noted where it is"));
        }
        self.durable.store(written.last.0, Ordering::SeqCst);
        result
    }

    /// Writes and syncs what was logged.
    async fn write_logged(&self, written: &mut Written) -> Answer {
        let mut segments = self.segments.lock().await;
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        self.look_at_homes(&mut segments);
        if self.pool.homes().is_empty() {
            return Err(self.end("every disk failed that could have the journal"));
        }
        let (mut group, first) = {
            let mut buffer = self.buffer.lock();
            let frames = std::mem::take(&mut buffer.frames);
            // Wherever it will be written, that is the beginning of a page (J-7).
            let next = std::mem::take(&mut buffer.spare).begin(0, BUFFER_BYTES);
            (std::mem::replace(&mut buffer.run, next), buffer.next - frames)
        };
        // From here to the end of the last write the frames are in `group` alone: whoever drops this future ends the journal.
        let mut guard = Abandoned { journal: self, is_armed: true };
        let length = group.len();
        group.pad(FrameHeader::GROUP_ALIGN);
        written.last = Position(first - 1);
        let result = self.write_frames(&mut segments, &mut group, length, written).await;
        guard.is_armed = false;
        match result {
            Ok(()) => {
                if group.capacity() <= SPARE_BYTES_MAX {
                    self.buffer.lock().spare = group;
                }
                Ok(())
            }
            Err(StoreError::Full { .. }) => {
                // J-5: nothing of the rest was written.
                let mut rest = Run::default().begin(0, BUFFER_BYTES);
                rest.push(&group.content()[written.bytes..length]);
                let mut buffer = self.buffer.lock();
                rest.push(buffer.run.content());
                buffer.run = rest;
                buffer.frames = buffer.next - 1 - written.last.0;
                drop(buffer);
                Err(self.pool.full("the journal", self.segment_bytes))
            }
            Err(failure) => Err(self.end(&failure.to_string())),
        }
    }

    fn end(&self, cause: &str) -> StoreError {
        let mut failure = self.failure.lock();
        let cause = failure.get_or_insert_with(|| cause.into()).clone();
        StoreError::ReadOnly { cause }
    }

    /// Writes all frames, a run into each segment: `length` bytes of `group`, which goes on with zeroes to the end of a page. What fails on the last
    /// home that a segment has goes to a new one on others, as long as there are any (J-9).
    async fn write_frames(
        &self,
        segments: &mut Segments,
        group: &mut Run,
        length: usize,
        written: &mut Written,
    ) -> Result<(), StoreError> {
        while written.bytes < length {
            match self.write_run(segments, group, length, written).await {
                Err(error) if !matches!(error, StoreError::Full { .. }) && self.wants_homes() => {
                    self.look_at_homes(segments);
                    if self.pool.homes().is_empty() {
                        return Err(error);
                    }
                }
                tried => tried?,
            }
        }
        Ok(())
    }

    /// The next run of them. Each try that fails costs a home.
    async fn write_run(
        &self,
        segments: &mut Segments,
        group: &mut Run,
        length: usize,
        written: &mut Written,
    ) -> Result<(), StoreError> {
        let (start, first) = (written.bytes, written.last.0 + 1);
        let head = FrameHeader::own_frame_bytes(&group.content()[start..]) as u64;
        if segments.current.as_ref().is_none_or(|current| current.end + head > self.segment_bytes) {
            segments.current = None;
            let next = self.begin_segment(segments, Position(first)).await?;
            segments.current = Some(next);
        }
        let current = segments.current.as_mut().expect("begun above");
        let room = usize::try_from(self.segment_bytes - current.end).unwrap_or(usize::MAX);
        let frames = &mut group.content_mut()[start..length];
        let (run, count) = stamp_run(frames, room, current.life, first, self.last_durable());
        // The last page whole, if what comes then is not for the next segment.
        let end = if start + run == length { group.len() } else { start + run };
        let time = self.pool.clock.timer(&self.counters.log_sync);
        let shared = Arc::new(std::mem::take(group));
        let written_to_all = self.write_to_all(current, &shared.part(start..end)).await;
        *group = shared.unshare();
        if current.end == SegmentHeader::FRAMES_AT as u64 && written_to_all.is_err() {
            // It holds no frame that anybody needs.
            if let Some(live) = segments.live.pop_back() {
                self.forsake(&mut segments.needless, [(live.segment, live.disks)]);
            }
        }
        written_to_all?;
        drop(time);
        self.counters.log_sync_frames.record(count);
        let taken = (run as u64).next_multiple_of(FrameHeader::GROUP_ALIGN as u64);
        current.end += taken;
        written.bytes += run;
        written.last = Position(written.last.0 + count);
        let live = segments.live.back_mut().expect("the current segment is live");
        live.last = written.last;
        live.whole = current.files.iter().map(|(disk, _)| *disk).collect();
        written.runs.push((written.last, live.whole));
        self.sizes.lock().push_back((written.last, taken));
        Ok(())
    }

    /// Writes and syncs a run at the end of the current segment, on all its homes; on those that remain, when some fail (J-9).
    async fn write_to_all(&self, current: &mut Current, run: &Bytes) -> Result<(), StoreError> {
        let end = current.end;
        let files = current.files.iter().map(|(_, file)| file);
        let written = all(files.clone().map(|file| file.write_run(end, run))).await;
        let to_sync: Vec<&File> =
            files.zip(&written).filter(|(_, written)| written.is_ok()).map(|(file, _)| file).collect();
        let mut synced = File::sync_all(&to_sync).await.into_iter();
        let mut done = written.into_iter().map(|written| written.and_then(|()| synced.next().expect("it was written")));
        let mut failure = None;
        current.files.retain(|(disk, _)| match done.next().expect("one for each") {
            Ok(()) => true,
            // A full disk cannot be met here, the segment's blocks exist; should a file system say so all the same, it is
            // a failure like any other, for part of the run may have been written.
            Err(error) => {
                let error = DiskError { kind: DiskErrorKind::Failed, ..error };
                failure = Some(self.pool.failed(*disk, error, &self.counters));
                false
            }
        });
        self.unless_none(current.files.is_empty(), failure)
    }

    /// J-9: where a home failed, or there should be more of them, others take its place, and the next frame begins a segment there.
    fn look_at_homes(&self, segments: &mut Segments) {
        if self.wants_homes() {
            let homes = self.pool.choose_homes(self.pool.homes(), self.copies.load(Ordering::SeqCst));
            self.counters.log_homes_changed.add(1);
            make_homes(&self.pool, homes, &self.counters);
            segments.current = None;
            self.remove_unfit(segments, homes);
        }
    }

    /// J-10.
    pub(crate) async fn begin_now(&self) -> Result<(), StoreError> {
        let mut segments = self.segments.lock().await;
        let first = Position(self.buffer.lock().next);
        let mut current = self.begin_segment(&mut segments, first).await?;
        let (mut synced, mut failure) = (Vec::new(), None);
        for (disk, file) in current.files.drain(..) {
            match file.sync().await {
                Ok(()) => synced.push((disk, file)),
                Err(error) => failure = Some(self.left(disk, error)?),
            }
        }
        self.unless_none(synced.is_empty(), failure)?;
        current.files = synced;
        segments.current = Some(current);
        Ok(())
    }

    /// Whether it should be on other disks than it is.
    pub(crate) fn wants_homes(&self) -> bool {
        let (homes, takers) = (self.pool.homes(), self.pool.takers());
        let copies = self.copies.load(Ordering::SeqCst);
        let are_better = homes.both(takers) != homes || homes.count() < copies.min(takers.count());
        are_better && (!takers.is_empty() || homes.both(self.pool.good()) != homes)
    }

    /// On how many disks it should be from the next frame on.
    pub(crate) fn set_copies(&self, copies: u8) {
        self.copies.fetch_max(usize::from(copies), Ordering::SeqCst);
    }

    /// Has the next frame go to disks that are no homes yet, where one is drained; segments are made there in advance.
    pub(crate) async fn move_homes(&self) -> Result<(), StoreError> {
        self.look_at_homes(&mut *self.segments.lock().await);
        self.prepare().await
    }

    /// Whether a disk has frames that some superblock may need, and no other home has them.
    pub(crate) async fn needs(&self, disk: usize) -> bool {
        let good = self.pool.good();
        let is_alone = |live: &Live| live.whole.has(disk) && live.whole.without(disk).both(good).is_empty();
        let segments = self.segments.lock().await;
        self.pool.homes().has(disk) || segments.live.iter().any(|live| live.last > segments.covered && is_alone(live))
    }

    /// Whether frames that no superblock covers are on no disk any more that works, and a superblock could be written elsewhere.
    pub(crate) async fn lacks_frames(&self) -> bool {
        let (good, members) = (self.pool.good(), self.pool.disks.iter().map(|(disk, _)| disk).collect());
        let segments = self.segments.lock().await;
        // What was on disks alone that were removed was given up with them.
        let is_lost = |disks: DiskSet| !disks.is_empty() && disks.both(good).is_empty();
        let mut needed = segments.live.iter().filter(|live| live.last > segments.covered);
        !self.pool.takers().is_empty() && needed.any(|live| is_lost(live.whole.both(members)))
    }

    /// What was done on no home was not done: all of them may have failed a moment ago, seen by others (seed 500002).
    fn unless_none(&self, is_none: bool, failure: Option<StoreError>) -> Result<(), StoreError> {
        let gone = || StoreError::ReadOnly { cause: "every disk failed that has the journal".into() };
        if is_none { Err(failure.unwrap_or_else(gone)) } else { Ok(()) }
    }
}

/// Stamps the frames at the head of `bytes` that fit into `room`: their bytes and their count.
fn stamp_run(bytes: &mut [u8], room: usize, life: u64, first: u64, durable: Position) -> (usize, u64) {
    let (mut run, mut count) = (0, 0);
    while run < bytes.len() {
        let length = FrameHeader::own_frame_bytes(&bytes[run..]);
        if run + length > room {
            break;
        }
        FrameHeader::stamp(&mut bytes[run..run + length], life, Position(first + count), durable);
        run += length;
        count += 1;
    }
    (run, count)
}

/// Proof that its holder leads.
struct Leader {
    journal: Arc<Journal>,
    is_over: bool,
}

impl Leader {
    async fn lead(mut self) {
        while !self.is_over {
            // In the simulated world whoever is about to log may join this group. On a thread it costs one more poll.
            yield_now().await;
            self.write().await;
        }
    }

    /// Writes one group and answers all whose frames are durable; after a failed try, all. Where nobody waits any more the lead is over.
    async fn write(&mut self) {
        let result = self.journal.write_group().await;
        let mut waiting = self.journal.waiting.lock();
        let durable = self.journal.last_durable();
        let is_served = |(upto, _): &mut (Position, _)| result.is_err() || *upto <= durable;
        let served: Vec<_> = waiting.list.extract_if(.., is_served).collect();
        self.is_over = waiting.list.is_empty();
        waiting.is_led = !self.is_over;
        drop(waiting);
        for (upto, answer) in served {
            // Who waited may be gone.
            let _ = answer.send(if upto <= durable { Ok(()) } else { result.clone() });
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if !self.is_over {
            let mut waiting = self.journal.waiting.lock();
            waiting.is_led = false;
            waiting.list.clear();
        }
    }
}

/// Ends the journal if the future that writes a group is dropped: nobody would know what it wrote.
struct Abandoned<'a> {
    journal: &'a Journal,
    is_armed: bool,
}

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        if self.is_armed {
            let _ = self.journal.end("a write of the journal was abandoned halfway");
        }
    }
}

#[cfg(test)]
mod tests;
