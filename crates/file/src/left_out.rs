//! Files that commits leave out because their trees cannot be read (I-106): one that rots, or lies on a disk that is gone, stops no other.
//!
//! What was recorded for such a tree stays in the journal: each commit has it logged anew, behind what its superblock covers. The file
//! takes no more changes of its tree, so that this stays as much as it was; attributes go on. From time to time a commit tries again, for
//! the disk may be back. Removing the file, or truncating it to nothing, needs no tree and ends it; a repair does too.
//!
//! Not here: the commit itself (`commit`).

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::codec::Writer;
use base::id::{FileId, Version};
use base::time::Timestamp;

use crate::extent::covered_ranges;
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

impl FileSystem {
    /// Refuses a change of the tree of a file that commits leave out.
    pub(crate) fn refuse_left_out(&self, inode: &Inode) -> Result<(), FileError> {
        if self.left_out_count.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        self.left_out.lock().get(&inode.file).map_or(Ok(()), |left_out| Err(left_out.error.clone()))
    }

    pub(crate) fn is_left_out(&self, inode: &Inode) -> bool {
        self.refuse_left_out(inode).is_err()
    }

    /// The files that commits leave out, and why.
    pub(crate) fn left_out_files(&self) -> Vec<(FileId, String)> {
        self.left_out.lock().iter().map(|(file, left_out)| (*file, left_out.error.to_string())).collect()
    }

    /// Leaves these out from now on.
    pub(crate) fn leave_out(&self, files: BTreeMap<FileId, FileError>) {
        self.counters.files_left_out.add(files.len() as u64);
        let since = self.platform.clock.elapsed();
        let mut left_out = self.left_out.lock();
        left_out.extend(files.into_iter().map(|(file, error)| (file, LeftOut { error, since, version: None })));
        self.left_out_count.store(left_out.len(), Ordering::Relaxed);
    }

    /// Lets the next commit try those that were left out long enough.
    pub(crate) fn try_left_out_again(&self) {
        let now = self.platform.clock.elapsed();
        let mut left_out = self.left_out.lock();
        left_out.retain(|_, left_out| now.saturating_sub(left_out.since) < PATIENCE);
        self.left_out_count.store(left_out.len(), Ordering::Relaxed);
    }

    /// Whether nothing was recorded since the last commit but what that one logged anew. The caller holds the gate.
    pub(crate) fn has_nothing_new(&self, whole: Whole) -> bool {
        let touched = self.touched.lock().clone();
        if whole == Whole::OrNot {
            return touched.is_empty();
        }
        let left_out = self.left_out.lock();
        touched.iter().all(|(file, inode)| {
            let known = left_out.get(file).and_then(|left_out| left_out.version.as_ref());
            known.is_some_and(|known| *known == inode.state.lock().version)
        })
    }

    /// Logs anew what was recorded for the trees of those of a commit's files that are left out. Gives their versions after it. The caller
    /// holds the gate, so that nothing comes between.
    pub(crate) fn log_left_out(&self, inodes: &InodeSet, generation: u64, whole: Whole) -> BTreeMap<FileId, Version> {
        let mut logged = BTreeMap::new();
        if whole == Whole::OrNot {
            return logged;
        }
        let left_out: Vec<FileId> = self.left_out.lock().keys().copied().collect();
        for inode in left_out.iter().filter_map(|file| inodes.get(file)) {
            let mut state = inode.state.lock();
            if state.generation < generation && state.active.is_touched {
                state.freeze(generation);
            }
            let frozen = state.frozen.clone().expect("it is touched");
            if !needs_tree(&frozen) {
                continue;
            }
            self.log_anew(inode, &mut state, &frozen);
            logged.insert(inode.file, state.version);
            let mut touched = self.touched.lock();
            touched.insert(inode.file, inode.clone());
            self.touched_count.store(touched.len(), Ordering::Relaxed);
        }
        logged
    }

    fn log_anew(&self, inode: &Inode, state: &mut State, frozen: &Frozen) {
        let mut frames = Frames { system: self, file: inode.file, now: self.now(), frame: Writer::default() };
        let overlay = &frozen.layer.content;
        let extents = overlay.extents.iter();
        let extents = extents.map(|(range, extent)| (range.start, Content::Extent(range.end - range.start, *extent)));
        let inlined = overlay.inlined.iter().map(|(range, bytes)| (range.start, Content::Inline(bytes.clone())));
        // In this order, as in the layer: bytes lie over extents.
        let mut content: Vec<(u64, Content)> = extents.chain(inlined).collect();
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
        for (cookie, entry) in &frozen.layer.entries {
            let cookie = *cookie;
            frames.record(
                state,
                match entry.clone() {
                    Some(entry) => Change::Insert { cookie, entry },
                    None => Change::Remove { cookie },
                },
            );
        }
        frames.log();
    }

    /// After a commit: what it did not leave out of these is committed.
    pub(crate) fn forget_left_out(&self, inodes: &InodeSet, mut versions: BTreeMap<FileId, Version>) {
        let mut left_out = self.left_out.lock();
        left_out.retain(|file, left_out| {
            let version = versions.remove(file);
            let stays = version.is_some() || !inodes.contains_key(file);
            left_out.version = version.or(left_out.version.take());
            stays
        });
        self.left_out_count.store(left_out.len(), Ordering::Relaxed);
    }
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
