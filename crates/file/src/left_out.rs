//! Files that commits leave out because their trees cannot be read (I-106): one that rots, or lies on a disk that is gone, stops no other.
//!
//! What was recorded for such a tree stays in the journal: each commit has it logged anew, behind what its superblock covers. The file
//! takes no more changes of its tree, so that this stays as much as it was; attributes go on. From time to time a commit tries again, for
//! the disk may be back. Removing the file, or truncating it to nothing, needs no tree and ends it; a repair does too.
//!
//! Not here: the commit itself (`commit`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::codec::Writer;
use base::id::{FileId, Version};
use base::interval::IntervalMap;
use base::time::Timestamp;
use store::Moment;

use crate::extent::{Extent, Overlay, covered_ranges};
use crate::failure::FileError;
use crate::format::{Change, Content, Record, encode_record};
use crate::inode::{Frozen, Inode, InodeSet, LeftOut, State};
use crate::system::FileSystem;
use crate::write::RECORD_EXTENTS;

/// When a commit tries such a tree again.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a frame that is full: a record more is below the largest.
const FRAME_BYTES: usize = 1 << 20;

/// What a commit does about files whose trees cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whole {
    /// It leaves them out (I-106).
    AsFarAsRead,
    /// It fails.
    OrNot,
}

/// A file whose tree cannot be read, as a commit met it.
pub(crate) struct Unreadable {
    pub(crate) error: FileError,
    /// What was to be added to its content.
    pub(crate) content: Option<IntervalMap<Extent>>,
}

impl FileSystem {
    /// Refuses a change of the tree of a file that commits leave out.
    pub(crate) fn refuse_left_out(&self, inode: &Inode) -> Result<(), FileError> {
        if self.left_out_count.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        self.left_out.lock().get(&inode.file).map_or(Ok(()), |left_out| Err(left_out.error.clone()))
    }

    /// Whether commits leave it out.
    pub(crate) fn is_left_out(&self, inode: &Inode) -> bool {
        self.refuse_left_out(inode).is_err()
    }

    /// The files that commits leave out, and why.
    pub(crate) fn left_out_files(&self) -> Vec<(FileId, String)> {
        self.left_out.lock().iter().map(|(file, left_out)| (*file, left_out.error.to_string())).collect()
    }

    /// Of a commit's files those that cannot be added to: what the journal has of their content is in chunks by now, and as such it is
    /// little to be logged anew.
    pub(crate) async fn settle_left_out(
        &self,
        since: Moment,
        inodes: &InodeSet,
        mut files: BTreeMap<FileId, Unreadable>,
    ) -> Result<BTreeMap<FileId, Unreadable>, FileError> {
        // I-60.
        self.store.settle(since).await?;
        for (file, unreadable) in &mut files {
            if let Some(content) = unreadable.content.take() {
                inodes[file].state.lock().settle_frozen(content);
            }
        }
        Ok(files)
    }

    /// Leaves these out from now on.
    pub(crate) fn leave_out(&self, files: BTreeMap<FileId, Unreadable>) {
        self.counters.files_left_out.add(files.len() as u64);
        let since = self.platform.clock.elapsed();
        let mut left_out = self.left_out.lock();
        let new =
            files.into_iter().map(|(file, Unreadable { error, .. })| (file, LeftOut { error, since, version: None }));
        left_out.extend(new);
        self.left_out_count.store(left_out.len(), Ordering::Relaxed);
        drop(left_out);
        self.measure_records();
    }

    /// Lets the next commit try those that were left out long enough.
    pub(crate) fn try_left_out_again(&self) {
        let now = self.platform.clock.elapsed();
        let mut left_out = self.left_out.lock();
        left_out.retain(|_, left_out| now.saturating_sub(left_out.since) < PATIENCE);
        self.left_out_count.store(left_out.len(), Ordering::Relaxed);
        drop(left_out);
        self.measure_records();
    }

    /// Whether nothing was recorded since the last commit but what that one logged anew, and none is owed. The caller holds the gate.
    pub(crate) fn has_nothing_new(&self, whole: Whole) -> bool {
        if self.is_commit_owed.load(Ordering::SeqCst) {
            return false;
        }
        if whole == Whole::OrNot || self.left_out_count.load(Ordering::Relaxed) == 0 {
            return self.touched.lock().is_empty();
        }
        let touched = self.touched.lock().clone();
        let left_out = self.left_out.lock();
        touched.iter().all(|(file, inode)| {
            let known = left_out.get(file).and_then(|left_out| left_out.version.as_ref());
            known.is_some_and(|known| *known == inode.state.lock().version)
        })
    }

    /// Those of a commit's files that it leaves out.
    pub(crate) fn left_out_of(&self, inodes: &InodeSet) -> BTreeSet<FileId> {
        let known: Vec<FileId> = self.left_out.lock().keys().copied().collect();
        let needs = |file: &FileId| {
            let frozen = inodes.get(file).and_then(|inode| inode.state.lock().frozen.clone());
            frozen.is_some_and(|frozen| needs_tree(&frozen))
        };
        known.into_iter().filter(needs).collect()
    }

    /// Logs anew what was recorded for the trees of files that a commit leaves out, up to this moment.
    pub(crate) fn log_left_out(&self, inodes: &InodeSet, left_out: &BTreeSet<FileId>) -> LoggedAnew {
        // Nobody records anything meanwhile, so these are the newest records of their files.
        let _gate = self.gate.write();
        let before = self.store.counters().log_bytes.value();
        let mut versions = BTreeMap::new();
        for file in left_out {
            let inode = &inodes[file];
            let mut state = inode.state.lock();
            // It may have ended since the commit began: that is logged, and all that there is to say.
            if !state.is_gone {
                self.log_anew(inode, &mut state);
            }
            versions.insert(*file, state.version);
            let mut touched = self.touched.lock();
            touched.insert(*file, inode.clone());
            self.touched_count.store(touched.len(), Ordering::Relaxed);
        }
        self.measure_records();
        LoggedAnew { versions, bytes: self.store.counters().log_bytes.value() - before }
    }

    fn log_anew(&self, inode: &Inode, state: &mut State) {
        let mut frames = Frames { system: self, file: inode.file, now: self.now(), frame: Writer::default() };
        let frozen = state.frozen.clone().expect("frozen by the commit that leaves it out");
        let mut overlay = frozen.layer.content.clone();
        overlay.cover_with(state.active.content.clone());
        let mut content = pieces(overlay);
        while !content.is_empty() {
            let (mut count, mut bytes) = (0, 0);
            while count < content.len().min(RECORD_EXTENTS) && bytes < FRAME_BYTES {
                bytes += if let Content::Inline(run) = &content[count].1 { run.len() } else { 0 };
                count += 1;
            }
            let rest = content.split_off(count);
            let (size, mode) = (state.logged.size, state.logged.mode);
            let (modified, changed) = (state.logged.modified, state.logged.changed);
            let content = std::mem::replace(&mut content, rest);
            frames.record(state, Change::Write { size, mode, modified, changed, content });
        }
        let mut entries = frozen.layer.entries.clone();
        entries.extend(state.active.entries.clone());
        for (cookie, entry) in entries {
            let change = match entry {
                Some(entry) => Change::Insert { cookie, entry },
                None => Change::Remove { cookie },
            };
            frames.record(state, change);
        }
        frames.log();
    }

    /// After a commit: what it did not leave out of these is committed.
    pub(crate) fn forget_left_out(&self, inodes: &InodeSet, mut again: LoggedAnew) {
        let mut left_out = self.left_out.lock();
        left_out.retain(|file, left_out| {
            let version = again.versions.remove(file);
            let stays = version.is_some() || !inodes.contains_key(file);
            left_out.version = version.or(left_out.version.take());
            stays
        });
        self.left_out_count.store(left_out.len(), Ordering::Relaxed);
        drop(left_out);
        self.measure_records();
    }
}

/// What a commit logged anew.
#[derive(Default)]
pub(crate) struct LoggedAnew {
    /// What each file is at then.
    versions: BTreeMap<FileId, Version>,
    /// Bytes of frames.
    pub(crate) bytes: u64,
}

/// The content of an overlay, no piece over another: a power cut may leave the first of the frames that they go to, behind the records that
/// they come from, and so each of them must say by itself what is there.
fn pieces(overlay: Overlay) -> Vec<(u64, Content)> {
    let Overlay { mut extents, mut inlined, .. } = overlay;
    for (range, _) in inlined.iter() {
        extents.remove(range);
    }
    let extents = extents.take().map(|(range, extent)| (range.start, Content::Extent(range.end - range.start, extent)));
    extents.chain(inlined.take().map(|(range, bytes)| (range.start, Content::Inline(bytes)))).collect()
}

/// Whether what was recorded can only be committed on the tree that is there.
fn needs_tree(frozen: &Frozen) -> bool {
    let content = &frozen.layer.content;
    let is_all_new = matches!(&covered_ranges(&content.extents)[..], [whole] if *whole == (0..u64::MAX));
    !frozen.is_gone && !is_all_new
}

/// Frames of records of one file.
struct Frames<'a> {
    system: &'a FileSystem,
    file: FileId,
    now: Timestamp,
    frame: Writer,
}

impl Frames<'_> {
    fn record(&mut self, state: &mut State, change: Change) {
        let version = encode_record(self.file, &state.version, self.now, &change, &mut self.frame);
        state.apply(Record { file: self.file, version, time: self.now, change });
        if self.frame.bytes().len() >= FRAME_BYTES {
            self.log();
        }
    }

    fn log(&mut self) {
        let frame = std::mem::take(&mut self.frame);
        if !frame.bytes().is_empty() {
            self.system.store.log(frame.bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use base::id::ChunkAddress;

    use super::{Content, Extent, Overlay, pieces};

    fn apply(overlay: &mut Overlay, piece: (u64, Content)) {
        match piece.1 {
            Content::Extent(length, extent) => overlay.insert_extent(piece.0, length, extent),
            Content::Inline(bytes) => overlay.insert_inline(piece.0, bytes),
        }
    }

    /// What is on top, byte by byte.
    fn seen(overlay: &Overlay) -> Vec<Option<String>> {
        let at = |offset: u64| {
            let inline = overlay.inlined.overlapping(offset..offset + 1).next();
            let inline = inline.map(|(range, bytes)| format!("{}", bytes[(offset - range.start) as usize]));
            let extent = || overlay.extents.overlapping(offset..offset + 1).next();
            inline.or_else(|| {
                extent().map(|(range, extent)| format!("{:?}", extent.advanced_within(offset - range.start)))
            })
        };
        (0..200).map(at).collect()
    }

    /// Whatever part of the new records a power cut leaves behind the old ones.
    #[test]
    fn no_part_of_the_pieces_changes_what_is_there() {
        let mut state = 1_u64;
        let mut below = |limit: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % limit
        };
        for _ in 0..200 {
            let mut overlay = Overlay::default();
            for _ in 0..20 {
                let (offset, length) = (below(180), 1 + below(20));
                let address = ChunkAddress([below(256) as u8; 32]);
                let extent = Extent::Chunk { address, skip: 0, chunk_bytes: 20 };
                let piece = match below(3) {
                    0 => Content::Extent(length, extent),
                    1 => Content::Extent(length, Extent::Hole),
                    _ => Content::Inline(vec![below(256) as u8; length as usize]),
                };
                apply(&mut overlay, (offset, piece));
            }
            let before = seen(&overlay);
            let mut again = overlay.clone();
            for piece in pieces(overlay) {
                apply(&mut again, piece);
                assert_eq!(seen(&again), before);
            }
        }
    }
}
