//! An inode in memory: what callers see, what the journal knows, and what the committed tree holds.
//!
//! Content lies in layers, newest first: `dirty` (accepted) over `flushing` (on its way to the store) over `active` (in the journal) over
//! `frozen` (being committed) over `base` (the committed tree). Reads look from the top; a flush moves content from
//! `flushing` to `active`; a commit moves `frozen` to `base`.
//!
//! I-30  `logged` and `active` are what replaying the journal gives: they change only through [`State::apply`], which live
//!       operations and recovery share.
//! I-31  A size or an extent enters `logged` and `active` only when its data is durable or in the same frame.
//! I-32  `active` holds records of one generation only; what is older was frozen before.
//! I-105 `vacant` names cookies that no entry has while the version is the one beside it: a change of entries raises the version, and a
//!       commit changes none. Who replaces `base` otherwise forgets it, and nobody notes what another `base` told.
//! I-33  A state lock is held over no I/O. Who needs two of them holds the namespace lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use base::id::{FileId, Version};
use base::interval::IntervalMap;
use base::time::Timestamp;
use bytes::Bytes;
use parking_lot::Mutex;
use store::Resilience;

use crate::attributes::{Attributes, Kind};
use crate::buffers::{Buffer, Buffers, Incoming};
use crate::extent::{Extent, Overlay};
use crate::failure::FileError;
use crate::format::{Base, Change, Content, Entry, InodeValue, Record, XattrPlace, Xattrs};
use crate::habit::Habit;
use crate::waiting::Waiting;

/// A file that somebody uses or that has something to commit.
#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) file: FileId,
    /// Taken by operations that change entries or attributes, over I/O. Directories before files, lower ids first.
    pub(crate) operation: tokio::sync::Mutex<()>,
    /// Taken by whoever moves content from `dirty` to the journal or changes extents directly, through `lock_flush` (I-64).
    /// After `operation`.
    pub(crate) flush: Arc<tokio::sync::Mutex<()>>,
    pub(crate) flush_waiting: Waiting,
    pub(crate) state: Mutex<State>,
    /// The number of the directory that it was found in last; 0: nobody knows.
    pub(crate) seen_in: AtomicU64,
}

/// Journaled changes that the committed tree does not have yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layer {
    pub(crate) content: Overlay,
    /// Cookie → entry, or `None`: removed.
    pub(crate) entries: BTreeMap<u64, Option<Entry>>,
    /// Whether any record is in here, content or not.
    pub(crate) is_touched: bool,
    /// Whether the extended attributes changed.
    pub(crate) has_xattrs: bool,
}

/// A layer as the committer takes it, with the attributes of that moment.
#[derive(Debug)]
pub(crate) struct Frozen {
    pub(crate) layer: Layer,
    pub(crate) attributes: Attributes,
    pub(crate) version: Version,
    /// The whole set, if it changed.
    pub(crate) xattrs: Option<Xattrs>,
    pub(crate) is_gone: bool,
}

/// Everything about an inode that changes.
#[derive(Debug)]
pub(crate) struct State {
    /// As callers see it: `logged` and what was accepted since.
    pub(crate) attributes: Attributes,
    /// As the journal has it.
    pub(crate) logged: Attributes,
    pub(crate) version: Version,
    pub(crate) base: Base,
    pub(crate) frozen: Option<Arc<Frozen>>,
    pub(crate) active: Layer,
    /// The commit generation of `active`.
    pub(crate) generation: u64,
    pub(crate) flushing: Option<Arc<Flushing>>,
    pub(crate) dirty: IntervalMap<Buffer>,
    /// Bytes in `dirty`.
    pub(crate) dirty_bytes: u64,
    /// Since when `dirty` is not empty, by the monotonic clock; for the bounded flush.
    pub(crate) dirty_since: std::time::Duration,
    /// When its callers sync it.
    pub(crate) habit: Habit,
    /// The extended attributes, once somebody asked.
    pub(crate) xattrs: Option<Xattrs>,
    /// `st_blocks` in bytes; `None`: to be counted (a write into a file with holes).
    pub(crate) allocated: Option<u64>,
    /// An access time that no record has yet.
    pub(crate) is_access_dirty: bool,
    /// Ids set aside for new files of this directory, so that they lie together in the catalog.
    pub(crate) ids: std::ops::Range<u64>,
    /// The first of the cookies of a name that was looked up in vain, and when that was: mostly the name is made next.
    pub(crate) vacant: Option<(u64, Version)>,
    /// Removed for good (or not born yet): no name, no user.
    pub(crate) is_gone: bool,
    /// Whether a caller may hold its attributes: given since a write around caches that said so, or before it was loaded.
    pub(crate) is_shown: bool,
}

/// A file that commits leave out (I-106).
#[derive(Debug)]
pub(crate) struct LeftOut {
    /// Why its tree cannot be read.
    pub(crate) error: FileError,
    /// Since when, by the monotonic clock.
    pub(crate) since: std::time::Duration,
    /// As of the last commit that left it out, once there was one.
    pub(crate) version: Option<Version>,
}

/// Content on its way to the store.
#[derive(Debug)]
pub(crate) struct Flushing {
    pub(crate) runs: IntervalMap<Run>,
    /// Bytes in `runs`.
    pub(crate) bytes: u64,
    /// Since when there was any of it, by the monotonic clock.
    pub(crate) since: std::time::Duration,
    /// The size that callers saw when it was taken.
    pub(crate) size: u64,
}

/// Bytes that can be cut without copying.
#[derive(Clone, Debug)]
pub(crate) struct Run(pub(crate) Bytes);

impl base::interval::Piece for Run {
    fn split_off(&mut self, at: u64) -> Run {
        Run(self.0.split_off(usize::try_from(at).expect("a piece in memory is addressable")))
    }
}

impl Inode {
    /// From the catalog.
    pub(crate) fn load(value: InodeValue) -> Inode {
        let InodeValue { attributes, version, base } = value;
        let xattrs = matches!(base.xattrs, XattrPlace::None).then(Xattrs::new);
        Inode::with_state(State::new(attributes, version, base, xattrs))
    }

    /// A file that does not exist before its `Create` record is applied.
    pub(crate) fn unborn(file: FileId) -> Inode {
        let attributes = Attributes {
            file,
            kind: Kind::Regular,
            mode: 0,
            uid: 0,
            gid: 0,
            links: 0,
            device: 0,
            size: 0,
            allocated: 0,
            accessed: Timestamp::default(),
            modified: Timestamp::default(),
            changed: Timestamp::default(),
            born: Timestamp::default(),
            parent: FileId::NONE,
            is_preallocated: false,
            resilience: Resilience::OfNode,
        };
        let mut state = State::new(attributes, Version::default(), Base::default(), Some(Xattrs::new()));
        state.is_gone = true;
        Inode::with_state(state)
    }

    fn with_state(state: State) -> Inode {
        Inode {
            file: state.attributes.file,
            operation: tokio::sync::Mutex::new(()),
            flush: Arc::default(),
            flush_waiting: Waiting::default(),
            state: Mutex::new(state),
            seen_in: AtomicU64::new(0),
        }
    }
}

impl State {
    fn new(attributes: Attributes, version: Version, base: Base, xattrs: Option<Xattrs>) -> State {
        State {
            allocated: Some(attributes.allocated),
            logged: attributes.clone(),
            attributes,
            version,
            base,
            frozen: None,
            active: Layer::default(),
            generation: 0,
            flushing: None,
            dirty: IntervalMap::default(),
            dirty_bytes: 0,
            dirty_since: std::time::Duration::ZERO,
            habit: Habit::default(),
            xattrs,
            is_access_dirty: false,
            ids: 0..0,
            vacant: None,
            is_gone: false,
            is_shown: true,
        }
    }

    /// Whose layers are looked at is there still: of a file that is no more they are gone, and holes or what was committed would show in their place.
    ///
    /// # Errors
    /// `NoEntry`.
    pub(crate) fn expect_there(&self) -> Result<(), FileError> {
        if self.is_gone { Err(FileError::NoEntry) } else { Ok(()) }
    }

    /// Whether content was accepted that the journal does not have.
    pub(crate) fn has_unlogged(&self) -> bool {
        self.flushing.is_some() || !self.dirty.is_empty()
    }

    /// Bytes that were accepted and that the journal does not have.
    pub(crate) fn unlogged_bytes(&self) -> u64 {
        self.dirty_bytes + self.flushing.as_ref().map_or(0, |flushing| flushing.bytes)
    }

    /// Whether this is what a flush has taken, and nobody took it back (I-64).
    pub(crate) fn is_flushing(&self, taken: &Arc<Flushing>) -> bool {
        self.flushing.as_ref().is_some_and(|flushing| Arc::ptr_eq(flushing, taken))
    }

    /// The size that a record may have that makes everything below `settled` local: the size that callers see, if no accepted data
    /// lies between; else as far as there is none (I-31). A size that stopped at `settled` would be one that the file never had.
    pub(crate) fn local_size(&self, settled: u64) -> u64 {
        let beyond = settled..u64::MAX;
        let dirty = self.dirty.overlapping(beyond.clone()).next().map(|(range, _)| range.start);
        let flushing = self.flushing.iter().filter_map(|flushing| flushing.runs.overlapping(beyond.clone()).next());
        let unlogged = flushing.map(|(range, _)| range.start).chain(dirty).min().unwrap_or(u64::MAX);
        self.attributes.size.min(unlogged).max(settled)
    }

    /// Whether forgetting this inode would lose nothing.
    pub(crate) fn is_clean(&self) -> bool {
        !self.has_unlogged() && !self.active.is_touched && self.frozen.is_none() && !self.is_access_dirty
    }

    /// Whether there is something of it that the commit at work does not have.
    pub(crate) fn goes_on_after_commit(&self) -> bool {
        !self.is_gone && (self.has_unlogged() || self.active.is_touched || self.is_access_dirty)
    }

    /// Takes a record into `logged` and `active`, and into what callers see. The caller has seen to I-32, and that the
    /// extended attributes are loaded before an `Xattr` change.
    pub(crate) fn apply(&mut self, record: Record) {
        self.version = record.version;
        self.active.is_touched = true;
        match record.change {
            Change::Create { attributes, target } => {
                self.allocated = Some(attributes.allocated);
                self.logged = attributes.clone();
                self.attributes = attributes;
                self.base.target = target;
                self.is_gone = false;
            }
            Change::Attributes(attributes) => self.apply_attributes(&attributes),
            Change::Write { size, mode, modified, changed, content } => {
                for (offset, content) in content {
                    match content {
                        Content::Extent(length, extent) => self.active.content.insert_extent(offset, length, extent),
                        Content::Inline(bytes) => self.active.content.insert_inline(offset, bytes),
                    }
                }
                let logged = &mut self.logged;
                (logged.size, logged.mode, logged.modified, logged.changed) = (size, mode, modified, changed);
                if !self.has_unlogged() {
                    self.attributes = Attributes { accessed: self.attributes.accessed, ..self.logged.clone() };
                }
            }
            Change::Xattr { name, value } => {
                let xattrs = self.xattrs.as_mut().expect("attributes are loaded before one changes");
                match value {
                    Some(value) => xattrs.insert(name, value),
                    None => xattrs.remove(&name),
                };
                self.active.has_xattrs = true;
            }
            Change::Insert { cookie, entry } => {
                self.active.entries.insert(cookie, Some(entry));
            }
            Change::Remove { cookie } => {
                self.active.entries.insert(cookie, None);
            }
            // The rest of it was loaded from the branch's catalog.
            Change::Branch { attributes, .. } => {
                self.logged = attributes.clone();
                self.attributes = attributes;
            }
            Change::Gone => {
                self.is_gone = true;
                self.logged.links = 0;
                self.attributes.links = 0;
                self.dirty = IntervalMap::default();
                self.active.content.clear();
                self.active.entries.clear();
            }
        }
    }

    fn apply_attributes(&mut self, new: &Attributes) {
        let keeps_size = self.attributes.kind == Kind::Regular;
        for old in [&mut self.logged, &mut self.attributes] {
            let size = if keeps_size { old.size } else { new.size };
            *old = Attributes { size, ..new.clone() };
        }
        self.is_access_dirty = false;
    }

    /// What the extended attributes take, where somebody asked for them.
    pub(crate) fn xattr_bytes(&self) -> usize {
        self.xattrs.iter().flatten().map(|(name, value)| name.len() + value.len()).sum()
    }

    /// Sets `active` aside for the commit and begins the next generation.
    pub(crate) fn freeze(&mut self, next_generation: u64) {
        assert!(self.frozen.is_none(), "one commit at a time (I-32)");
        let layer = std::mem::take(&mut self.active);
        let xattrs = if layer.has_xattrs { self.xattrs.clone() } else { None };
        self.frozen = Some(Arc::new(Frozen {
            layer,
            attributes: self.logged.clone(),
            version: self.version,
            xattrs,
            is_gone: self.is_gone,
        }));
        self.generation = next_generation;
    }

    /// Content of the frozen layer that was bytes has become chunks: this is all of it.
    pub(crate) fn settle_frozen(&mut self, extents: IntervalMap<Extent>) {
        let Some(frozen) = &self.frozen else { return };
        let dropped_bytes = frozen.layer.content.dropped_bytes;
        let content = Overlay { extents, dropped_bytes, ..Overlay::default() };
        let layer = Layer { content, ..frozen.layer.clone() };
        let (attributes, xattrs) = (frozen.attributes.clone(), frozen.xattrs.clone());
        let (version, is_gone) = (frozen.version, frozen.is_gone);
        self.frozen = Some(Arc::new(Frozen { layer, attributes, version, xattrs, is_gone }));
    }

    /// Takes a frozen layer back whose commit failed: below what was logged since.
    pub(crate) fn thaw(&mut self) {
        let Some(frozen) = self.frozen.take() else { return };
        let newer = std::mem::replace(&mut self.active, frozen.layer.clone());
        self.active.content.cover_with(newer.content);
        self.active.entries.extend(newer.entries);
        self.active.is_touched = true;
        self.active.has_xattrs |= newer.has_xattrs;
    }

    /// The layers of journaled content, newest first.
    pub(crate) fn overlays(&self) -> impl Iterator<Item = &Overlay> {
        std::iter::once(&self.active.content).chain(self.frozen.iter().map(|frozen| &frozen.layer.content))
    }

    /// Entries in `cookies` that the journal decides, newest decision each.
    pub(crate) fn decided_entries(&self, cookies: std::ops::RangeInclusive<u64>) -> BTreeMap<u64, Option<Entry>> {
        let frozen = self.frozen.iter().flat_map(|frozen| frozen.layer.entries.range(cookies.clone()));
        let mut decided: BTreeMap<u64, Option<Entry>> =
            frozen.map(|(cookie, entry)| (*cookie, entry.clone())).collect();
        let active = self.active.entries.range(cookies);
        decided.extend(active.map(|(cookie, entry)| (*cookie, entry.clone())));
        decided
    }

    /// Puts accepted data on top; what is owned becomes a run as it is. Gives the growth of `dirty_bytes`.
    pub(crate) fn accept(&mut self, offset: u64, data: Incoming<'_>, buffers: &Buffers) -> u64 {
        let bytes = data.len() as u64;
        let end = offset + bytes;
        if let Some((range, run)) = self.dirty.containing_mut(offset..end) {
            let start = usize::try_from(offset - range.start).expect("a run is in memory");
            run[start..start + data.len()].copy_from_slice(&data);
            return 0;
        }
        let overlapped: u64 = self.dirty.remove(offset..end).iter().map(|(range, _)| range.end - range.start).sum();
        let mut goes_on = false;
        let is_extended = self.dirty.extend_ending_at(offset, |_, run| {
            goes_on = true;
            run.append(&data).then_some(end)
        });
        if !is_extended {
            let run = match data {
                Incoming::Borrowed(data) => buffers.begin(data, goes_on, self.dirty_bytes),
                Incoming::Owned(run) => run,
            };
            self.dirty.insert(offset..end, run);
        }
        let grown = bytes - overlapped;
        self.dirty_bytes += grown;
        grown
    }

    /// Drops accepted data in a range. Gives the bytes that went.
    pub(crate) fn discard(&mut self, range: std::ops::Range<u64>) -> u64 {
        let bytes: u64 = self.dirty.remove(range).iter().map(|(range, _)| range.end - range.start).sum();
        self.dirty_bytes -= bytes;
        bytes
    }

    /// Ranges whose content is not in the tree, painted bottom up, with whether they count as allocated; and the tree below.
    pub(crate) fn allocation_overlay(&self) -> IntervalMap<Allocation> {
        let mut painted = IntervalMap::default();
        let overlays: Vec<&Overlay> = self.overlays().collect();
        for overlay in overlays.into_iter().rev() {
            for (range, extent) in overlay.extents.iter() {
                painted.insert(range, Allocation(extent.is_allocated()));
            }
            overlay.inlined.iter().for_each(|(range, _)| painted.insert(range, Allocation(true)));
        }
        if let Some(flushing) = &self.flushing {
            flushing.runs.iter().for_each(|(range, _)| painted.insert(range, Allocation(true)));
        }
        self.dirty.iter().for_each(|(range, _)| painted.insert(range, Allocation(true)));
        painted
    }
}

/// Whether a range counts as allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocation(pub(crate) bool);

impl base::interval::Piece for Allocation {
    fn split_off(&mut self, _at: u64) -> Allocation {
        *self
    }
}

/// Files whose records wait for the next commit, and the order of FileIds for locks.
pub(crate) type InodeSet = BTreeMap<FileId, Arc<Inode>>;

/// The extent that `Extent::advanced` of a piece cut to `range` is.
pub(crate) fn cut(piece: &std::ops::Range<u64>, extent: &Extent, range: &std::ops::Range<u64>) -> Extent {
    extent.advanced(range.start - piece.start)
}
