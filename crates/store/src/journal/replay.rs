//! Replay: which frames a crash left.
//!
//! R-1   Frames are taken in order from the position after the superblock's, each from the segment that J-3 names, and the first
//!       one that is missing ends it: what comes after was never acknowledged before it.
//! R-2   That end is a torn tail only if nobody ever knew the missing frame to be durable. A frame that is valid and says so,
//!       or the superblock saying so, turns it into damage, and the store refuses to open rather than drop what was promised.
//!       A superblock that says that the store was closed (S-5) saves looking for frames, unless a segment begins behind it.
//! R-3   Reading changes nothing. [`make_durable`] comes later, when nothing can be refused any more.
//! R-5   The journal is the same on each of its homes. A frame that is whole on one of them is there; what any of them lacks of it is written
//!       there again. Where a home cannot be read, what other disks have stands for it only if one of them is a home too (J-11).
//! R-4   Frames are given up only where somebody said so. What is left of them is erased, and then the superblock's claim: until both
//!       are done, the next open refuses again. So what remains is a prefix of the history, and stays one. A segment in which nobody can
//!       tell frames from what looks like them counts as frames that are lost, and is erased whole.
//! R-6   What a torn tail left behind its gap is erased as well, before anything is logged, where it was read: no later opening can take it
//!       for history, should the segment that J-3 names be gone. Such a frame may be the only one to know that those before the gap are durable,
//!       so a superblock says that first. A disk that does not take this has failed; only a full one may keep it.
//!
//! R-7   Where no home of the journal is there, and its frames were given up (D-4), no frame of any disk counts, and all that follow what the
//!       superblock covers are erased: they may be of a history that was given up before.

use std::collections::{BTreeMap, VecDeque};

use base::id::Position;
use bytes::Bytes;
use platform::disk::{DiskErrorKind, File, Open};

use super::segments::SPARES_MAX;
use super::{Live, Resume};
use crate::counters::Counters;
use crate::disks::DiskSet;
use crate::failure::{StoreError, refused};
use crate::format::{
    FrameHeader, Homes, JOURNAL, NUMBER_OPENED_MAX, NUMBERS_AHEAD_MAX, SegmentHeader, Superblock, number_of,
    segment_path,
};
use crate::identity::unfit_error;
use crate::pack::scan::read_whole;
use crate::pool::{Pool, PoolDisk};

/// Longest segment that is read: many times what is sensible, and it fits into memory.
pub(super) const SEGMENT_BYTES_MAX: u64 = 1 << 30;
/// How often all of a segment may be read in vain for what looks like frames: a tail that was torn costs a frame or two.
const WASTED_MAX: usize = 64;

/// What replay found.
pub(crate) struct Replayed {
    pub(crate) frames: Vec<(Position, Bytes)>,
    pub(crate) resume: Resume,
    /// Valid frames behind the end that were cut off because one before them is missing.
    pub(crate) cut_frames: u64,
    /// Durable frames that are lost; set only if they may be.
    pub(crate) lost: Option<StoreError>,
    /// Files that are no segments, whatever they are called: of each disk the first.
    pub(crate) strangers: Vec<String>,
    /// Frames behind the end, by segment.
    behind: Vec<Behind>,
    /// What was taken, as stretches of segments.
    used: Vec<Run>,
}

/// Consecutive frames in one segment that were taken, with what is between them.
struct Run {
    header: SegmentHeader,
    start: usize,
    bytes: Bytes,
}

/// A stretch of frames in one segment that do not count.
struct Behind {
    segment: u64,
    disks: DiskSet,
    start: usize,
    end: usize,
}

/// One valid frame in a segment.
struct Found {
    offset: usize,
    header: FrameHeader,
    payload: Bytes,
}

impl Found {
    fn end(&self) -> usize {
        self.offset + FrameHeader::frame_bytes(self.payload.len())
    }
}

/// A segment's frames by position, and what is known of its header.
struct Segment {
    number: u64,
    disks: DiskSet,
    /// Those of them that gave it.
    are_read: DiskSet,
    first: Option<Position>,
    length: u64,
    /// It has no header of its own, and no frame: it was being made, or about to be used.
    is_void: bool,
    /// Empty where nothing in it can be needed.
    bytes: Bytes,
    frames: BTreeMap<Position, Found>,
    /// Frames cannot be told in it from what looks like them.
    is_muddled: bool,
}

impl Segment {
    /// Stretches of frames from `missing` on; everything, where nobody can tell frames in it.
    fn behind(&self, missing: Position) -> Vec<(usize, usize)> {
        let frames: Vec<&Found> = self.frames.range(missing..).map(|(_, found)| found).collect();
        let stretches = frames.chunk_by(|one, next| one.end() == next.offset);
        let ends = stretches.filter_map(|frames| Some((frames.first()?.offset, frames.last()?.end())));
        ends.chain(self.is_muddled.then_some((0, self.bytes.len()))).collect()
    }
}

/// What of the journal is wanted.
pub(crate) struct Suffix<'a> {
    /// The one that counts.
    pub(crate) superblock: &'a Superblock,
    /// No superblock needs frames up to this.
    pub(crate) covered_by_all: Position,
    pub(crate) gives_up_frames: bool,
}

/// Reads the journal after `superblock.covered`.
pub(crate) async fn replay(
    pool: &Pool,
    suffix: Suffix<'_>,
    is_spare: &(dyn Fn(u64) -> bool + Sync),
) -> Result<Replayed, StoreError> {
    let Suffix { superblock, covered_by_all, gives_up_frames } = suffix;
    let covered = superblock.covered;
    let mut segments = read_segments(pool, superblock).await?;
    // What would follow an empty file with an endless number could not be read.
    let last = segments.iter().filter(|segment| !segment.is_void).map(|segment| segment.number).max().unwrap_or(0);
    let is_far = |segment: &mut Segment| segment.is_void && segment.number > last.saturating_add(NUMBERS_AHEAD_MAX);
    let strangers: Vec<Segment> = segments.extract_if(.., is_far).collect();
    if let Some(segment) = segments.iter().find(|segment| segment.number > NUMBER_OPENED_MAX) {
        let disk = segment.disks.first().map_or("the node", |disk| pool.disks[disk].disk.path());
        let path = format!("{disk}/{}", segment_path(segment.number));
        let why = format!("no segment of a journal comes near its number: expected at most {NUMBER_OPENED_MAX:016x}.");
        return Err(refused(&path, why, "HydraFS did not write this: restore the disks from a copy."));
    }
    let mut replayed = take_frames(if is_home_there(pool, superblock) { &segments } else { &[] }, superblock);
    let missing = Position(replayed.resume.last.0 + 1);
    if let Some(lost) = find_lost(pool, &segments, missing, superblock) {
        if !gives_up_frames {
            return Err(lost);
        }
        replayed.lost = Some(lost);
    }
    for segment in &segments {
        replayed.cut_frames += segment.frames.range(missing..).count() as u64;
        // Whoever gave frames up said so of all disks.
        let disks = if replayed.lost.is_some() { segment.disks } else { segment.are_read };
        replayed.behind.extend(segment.behind(missing).into_iter().map(|(start, end)| Behind {
            segment: segment.number,
            disks,
            start,
            end,
        }));
    }
    replayed.strangers = name_strangers(pool, &strangers);
    replayed.resume.next_segment = segments.iter().map(|segment| segment.number).max().unwrap_or(0) + 1;
    let needed = owner(&segments, Position(covered_by_all.0 + 1)).map_or(0, |segment| segment.number);
    for segment in &segments {
        // J-4: what no superblock needs was free, and waited to be used again.
        let is_free = segment.is_void || (segment.number < needed && replayed.lost.is_none());
        if !is_free {
            let last = segment.frames.keys().next_back().copied();
            let last = last.max(segment.first.map(|first| Position(first.0.saturating_sub(1)))).unwrap_or(covered);
            // What is behind the end counts no more.
            let last = last.min(replayed.resume.last);
            let (disks, whole) = (segment.disks, segment.disks);
            replayed.resume.live.push_back(Live { segment: segment.number, disks, whole, last });
        } else if is_spare(segment.length)
            // J-12: of one that was not used yet only a clean end says that all of it was written.
            && (superblock.is_closed || segment.first.is_some())
            && replayed.resume.spare.len() < SPARES_MAX
        {
            replayed.resume.spare.push((segment.number, segment.disks));
        } else {
            replayed.resume.needless.push((segment.number, segment.disks));
        }
    }
    Ok(replayed)
}

/// On each disk the first of them.
fn name_strangers(pool: &Pool, strangers: &[Segment]) -> Vec<String> {
    let first = |(disk, on): (usize, &PoolDisk)| {
        let first = strangers.iter().find(|segment| segment.disks.has(disk))?;
        Some(format!("{}/{}", on.disk.path(), segment_path(first.number)))
    };
    pool.there().filter_map(first).collect()
}

/// The files of one segment, each with its disk, and what their headers say.
#[derive(Default)]
struct Files {
    files: Vec<(usize, File)>,
    first: Option<Position>,
}

async fn read_segments(pool: &Pool, superblock: &Superblock) -> Result<Vec<Segment>, StoreError> {
    let found = list_segments(pool, superblock).await?;
    // Older segments than this hold nothing after `covered`; a file system of any size opens in the time of its suffix.
    let next = Position(superblock.covered.0 + 1);
    let oldest = found.iter().rev().find(|(_, files)| files.first.is_some_and(|first| first <= next));
    let oldest = oldest.map_or(0, |(number, _)| *number);
    let is_closed = superblock.is_closed && found.values().all(|files| files.first.is_none_or(|first| first < next));
    let mut segments = Vec::new();
    for (number, Files { files, first }) in found {
        let is_needless = is_closed || number < oldest;
        let life = FrameHeader::life(number, &superblock.node_identity);
        let disks: DiskSet = files.iter().map(|(disk, _)| *disk).collect();
        let (mut read, mut are_read, mut failure) = (Vec::new(), DiskSet::NONE, None);
        for (disk, file) in files.iter().filter(|_| !is_needless) {
            match read_whole(file, SEGMENT_BYTES_MAX).await {
                Ok(bytes) => {
                    are_read = are_read.with(*disk);
                    // Mostly they are the same.
                    if !read.contains(&bytes) {
                        read.push(bytes);
                    }
                }
                Err(error) => failure = Some(error),
            }
        }
        // J-11: of a disk that was left the file may end before what was acknowledged.
        let homes = Homes { disks: superblock.homes.disks.both(disks), ..superblock.homes };
        let is_enough = !read.is_empty() && (homes.disks.is_empty() || homes.are_among(are_read));
        if let (false, Some(error)) = (is_enough, failure) {
            return Err(error);
        }
        // A header that has rotted: the first frame says the same.
        let opening = |at: &[u8]| FrameHeader::decode(at, life).map(|(header, _)| header.position);
        let first =
            first.or_else(|| read.iter().find_map(|bytes| bytes.get(SegmentHeader::FRAMES_AT..).and_then(opening)));
        let (bytes, frames) = whole_of(read, life, first);
        let (is_muddled, frames) = (frames.is_none(), frames.unwrap_or_default());
        // Of one that was not read nobody knows, but that after a clean end no frame is needed.
        let is_void = first.is_none() && (is_closed || (!is_needless && !is_muddled && frames.is_empty()));
        let bytes = if is_void { Bytes::new() } else { bytes };
        // Of the shortest, for it may be used again; that of a file that does not tell is none.
        let length = files.iter().map(|(_, file)| file.length().unwrap_or(0)).min().unwrap_or(0);
        segments.push(Segment { number, disks, are_read, first, length, is_void, bytes, frames, is_muddled });
    }
    Ok(segments)
}

/// The segments on all disks that are there, by number. A disk that cannot be read is left out if another home of the journal can be.
async fn list_segments(pool: &Pool, superblock: &Superblock) -> Result<BTreeMap<u64, Files>, StoreError> {
    let (mut found, mut are_read, mut failure) = (BTreeMap::<u64, Files>::new(), DiskSet::NONE, None);
    for (disk, _) in pool.there() {
        match list_disk(pool, disk, superblock).await {
            Ok(segments) => {
                are_read = are_read.with(disk);
                for (number, first, file) in segments {
                    let files = found.entry(number).or_default();
                    files.files.push((disk, file));
                    files.first = files.first.or(first);
                }
            }
            Err(error @ StoreError::Refused { .. }) => return Err(error),
            // It never had any.
            Err(StoreError::Disk(error))
                if error.kind == DiskErrorKind::Absent && !superblock.homes.disks.has(disk) => {}
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    match failure {
        Some(error) if !superblock.homes.are_among(are_read) => Err(error),
        _ => Ok(found),
    }
}

async fn list_disk(
    pool: &Pool,
    disk: usize,
    superblock: &Superblock,
) -> Result<Vec<(u64, Option<Position>, File)>, StoreError> {
    let disk = &pool.disks[disk].disk;
    let mut segments = Vec::new();
    for name in disk.list(JOURNAL)? {
        let Some(number) = number_of(&name, ".segment") else { continue };
        let file = disk.open(&segment_path(number), Open::Read)?;
        let mut bytes = [0; SegmentHeader::BYTES];
        let is_whole = file.read_at(0, &mut bytes).await? == bytes.len();
        let first = match SegmentHeader::decode(&bytes, number) {
            Ok(header) if is_whole && header.node_identity == superblock.node_identity => Some(header.first),
            // After a clean end nobody needs what an older program left.
            Err(unfit) if unfit.newer.is_some() || (unfit.older.is_some() && !superblock.is_closed) => {
                return Err(unfit_error("a journal segment", disk.path(), &segment_path(number), 0, unfit));
            }
            _ => None,
        };
        segments.push((number, first, file));
    }
    Ok(segments)
}

/// All that is whole in any file of a segment, and the frames of it; none where nobody can tell them in any.
fn whole_of(read: Vec<Bytes>, life: u64, first: Option<Position>) -> (Bytes, Option<BTreeMap<Position, Found>>) {
    let mut whole: Option<(Bytes, BTreeMap<Position, Found>)> = None;
    let mut muddled = None;
    for bytes in read {
        let Some(frames) = find_frames(&bytes, life, first) else {
            muddled = Some(bytes);
            continue;
        };
        let Some((known_bytes, known)) = &mut whole else {
            whole = Some((bytes, frames));
            continue;
        };
        let lacking: Vec<&Found> =
            frames.iter().filter(|(position, _)| !known.contains_key(position)).map(|(_, found)| found).collect();
        if !lacking.is_empty() {
            let mut all = known_bytes.to_vec();
            all.resize(all.len().max(bytes.len()), 0);
            for found in lacking {
                all[found.offset..found.end()].copy_from_slice(&bytes[found.offset..found.end()]);
            }
            *known_bytes = Bytes::from(all);
            *known = find_frames(known_bytes, life, first).unwrap_or_default();
        }
    }
    match (whole, muddled) {
        (Some((bytes, frames)), _) => (bytes, Some(frames)),
        (None, Some(bytes)) => (bytes, None),
        (None, None) => (Bytes::new(), Some(BTreeMap::new())),
    }
}

/// Every valid frame of a segment that begins with `first`, also behind damage; `None` if that takes too long. What users write into
/// files lies here too, and what an earlier use of the segment left of it may look like the beginnings of frames, each as long as a frame
/// can be: a glance tells them apart, for nobody outside knows the life. Should the segment's header and its first frame have rotted too,
/// the positions tell less, and there is an end to believing.
fn find_frames(bytes: &Bytes, life: u64, first: Option<Position>) -> Option<BTreeMap<Position, Found>> {
    let count_max = (bytes.len() / FrameHeader::BYTES) as u64;
    let positions = first.map_or(0..=u64::MAX, |first| first.0..=first.0.saturating_add(count_max));
    let mut wasted = 0;
    let mut frames = BTreeMap::new();
    let mut offset = SegmentHeader::BYTES;
    while offset + FrameHeader::BYTES <= bytes.len() {
        // Most of a segment is zeroes: a glance at the magic goes first.
        let (words, _) = bytes[offset..].as_chunks::<{ FrameHeader::ALIGN }>();
        let Some(skipped) = words.iter().position(|word| word[..4] == FrameHeader::MAGIC) else { break };
        offset += skipped * FrameHeader::ALIGN;
        let Some(length) = FrameHeader::glance(&bytes[offset..], life, &positions) else {
            offset += FrameHeader::ALIGN;
            continue;
        };
        match FrameHeader::decode(&bytes[offset..], life) {
            Some((header, payload)) => {
                let found = Found { offset, header, payload: bytes.slice_ref(payload) };
                offset += FrameHeader::frame_bytes(payload.len());
                frames.entry(header.position).or_insert(found);
            }
            None => {
                offset += FrameHeader::ALIGN;
                wasted += length;
                if wasted / WASTED_MAX > bytes.len() {
                    return None;
                }
            }
        }
    }
    Some(frames)
}

/// The segment that holds position `p`, if any does: J-3.
fn owner(segments: &[Segment], position: Position) -> Option<&Segment> {
    segments.iter().rev().find(|segment| segment.first.is_some_and(|first| first <= position))
}

fn take_frames(segments: &[Segment], superblock: &Superblock) -> Replayed {
    let covered = superblock.covered;
    let mut replayed = Replayed {
        frames: Vec::new(),
        resume: Resume {
            last: covered,
            next_segment: 0,
            live: VecDeque::new(),
            spare: Vec::new(),
            needless: Vec::new(),
            bytes: 0,
        },
        cut_frames: 0,
        lost: None,
        strangers: Vec::new(),
        behind: Vec::new(),
        used: Vec::new(),
    };
    loop {
        let next = Position(replayed.resume.last.0 + 1);
        let Some(segment) = owner(segments, next) else { break };
        let Some(found) = segment.frames.get(&next) else { break };
        replayed.frames.push((next, found.payload.clone()));
        replayed.resume.last = next;
        // Between two groups lies what pads the first one to a page.
        let follows =
            |run: &&mut Run| run.header.segment == segment.number && run.start + run.bytes.len() <= found.offset;
        match replayed.used.last_mut().filter(follows) {
            Some(run) => run.bytes = segment.bytes.slice(run.start..found.end()),
            None => replayed.used.push(Run {
                header: SegmentHeader {
                    segment: segment.number,
                    node_identity: superblock.node_identity,
                    first: segment.first.expect("the owner of a position has a header"),
                },
                start: found.offset,
                bytes: segment.bytes.slice(found.offset..found.end()),
            }),
        }
    }
    replayed.resume.bytes = replayed.used.iter().map(|run| run.bytes.len() as u64).sum();
    replayed
}

/// where none is there no disk has what was written last, and what any has may be of a history that was given up.
fn is_home_there(pool: &Pool, superblock: &Superblock) -> bool {
    pool.there().any(|(disk, _)| superblock.homes.disks.has(disk))
}

fn find_lost(pool: &Pool, segments: &[Segment], missing: Position, superblock: &Superblock) -> Option<StoreError> {
    let place = owner(segments, missing);
    let there: DiskSet = pool.there().map(|(disk, _)| disk).collect();
    let home = place.and_then(|at| at.disks.first()).or(superblock.homes.disks.both(there).first()).or(there.first());
    let disk = home.map_or("the node", |home| pool.disks[home].disk.path());
    let path = format!("{disk}/{}", place.map_or_else(|| JOURNAL.to_owned(), |at| segment_path(at.number)));
    // The missing frame should begin where the one before it ends, or at the next page.
    let before = place.and_then(|at| at.frames.range(..missing).next_back());
    let offset = before.map_or(SegmentHeader::FRAMES_AT, |(_, found)| found.end()) as u64;
    let knew = |segment: &Segment| {
        let witness = segment.frames.values().find(|found| found.header.durable >= missing)?;
        Some(format!("frame {} in {}", witness.header.position.0, segment_path(segment.number)))
    };
    let superblock_knew = || (superblock.durable >= missing).then(|| "the superblock".to_owned());
    // What is in it, nobody knows: it may have been durable.
    let may_know = || {
        let muddled = segments.iter().find(|segment| segment.is_muddled)?;
        Some(format!("for all anybody can tell {}, damaged throughout,", segment_path(muddled.number)))
    };
    // they go before a superblock names other homes.
    let is_given_up = || {
        let is_behind = segments.iter().any(|segment| segment.frames.range(missing..).next().is_some());
        (is_behind && !is_home_there(pool, superblock))
            .then(|| "for all anybody can tell the missing journal".to_owned())
    };
    let witness = segments.iter().find_map(knew).or_else(superblock_knew).or_else(may_know).or_else(is_given_up)?;
    let headers = segments.iter().flat_map(|segment| segment.frames.values()).map(|found| &found.header);
    let last = headers.map(|header| header.durable.max(header.position)).max();
    let behind = segments.iter().map(|segment| segment.frames.range(missing..).count() as u64).sum();
    Some(StoreError::FramesLost {
        path: path.into(),
        offset,
        first: missing.0,
        last: last.max(Some(superblock.durable)).map_or(missing.0, |last| last.0),
        behind,
        witness: witness.into(),
    })
}

impl Replayed {
    /// Whether there is something to erase.
    pub(crate) fn has_behind(&self) -> bool {
        !self.behind.is_empty()
    }
}

/// Erases the frames behind the end, so that no later open takes them for a witness, or for history.
///
/// # Errors
/// A disk's, where frames were given up: as long as one has what is left of them the store is not opened without somebody saying so.
pub(crate) async fn erase_behind(pool: &Pool, replayed: &Replayed, counters: &Counters) -> Result<(), StoreError> {
    for of_segment in replayed.behind.chunk_by(|one, other| one.segment == other.segment) {
        let Behind { segment, disks, .. } = of_segment[0];
        for disk in disks.iter().filter(|disk| replayed.lost.is_some() || pool.disks[*disk].is_good()) {
            let erase = async {
                let file = pool.disks[disk].disk.open(&segment_path(segment), Open::Write)?;
                // One that was being made does not get longer: its length says that it is whole (J-12).
                let length = usize::try_from(file.length()?).unwrap_or(usize::MAX);
                for Behind { start, end, .. } in of_segment {
                    let end = length.min(*end);
                    if *start < end {
                        file.write_at(*start as u64, &vec![0; end - start]).await?;
                    }
                }
                file.sync().await
            };
            match erase.await {
                Err(error) if replayed.lost.is_some() => return Err(error.into()),
                Err(error) => drop(pool.failed(disk, error, counters)),
                Ok(()) => {}
            }
        }
    }
    Ok(())
}

/// Writes the frames that were taken once more and syncs them: a process that died may have left them in the page cache only,
/// and if its last sync failed that cache may believe them written. From now on they count as durable, on every home, also on one that was
/// missing when they were logged. Gives the homes that have them all; one that takes no writes has failed, and a full one has not got them.
///
/// # Errors
/// Why none of them has.
pub(crate) async fn make_durable(
    pool: &Pool,
    replayed: &mut Replayed,
    counters: &Counters,
) -> Result<DiskSet, StoreError> {
    let (mut have_all, mut failure) = (DiskSet::NONE, None);
    for home in pool.homes().iter() {
        let disk = &pool.disks[home].disk;
        let write = async {
            for Run { header, start, bytes } in &replayed.used {
                let path = segment_path(header.segment);
                let file = match disk.open(&path, Open::Write) {
                    Err(error) if error.kind == DiskErrorKind::Absent => disk.open(&path, Open::Create),
                    opened => opened,
                }?;
                file.write_at(0, &header.encode()).await?;
                file.write_shared(*start as u64, bytes).await?;
                file.sync().await?;
            }
            if replayed.used.is_empty() { Ok(()) } else { disk.sync_directory(JOURNAL) }
        };
        match write.await {
            Ok(()) => have_all = have_all.with(home),
            Err(error) => failure = Some(pool.failed(home, error, counters)),
        }
    }
    for live in &mut replayed.resume.live {
        if replayed.used.iter().any(|run| run.header.segment == live.segment) {
            live.disks = have_all.iter().fold(live.disks, DiskSet::with);
            live.whole = have_all;
        }
    }
    match failure {
        Some(error) if have_all.is_empty() => Err(error),
        _ => Ok(have_all),
    }
}
