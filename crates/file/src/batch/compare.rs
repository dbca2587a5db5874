//! Comparing two trees: what is only in one of them, and what differs, without a look at what they share.
//!
//! Both are walked together, names that are the same side by side. Two things make the walk short:
//!
//! - Where both are states of the same files (snapshots, the present, a clone and its source), the two catalogs tell which inodes differ, and
//!   are read only where they do (`known`). A directory in which and below which nothing differs is not entered, and of one that is entered
//!   only those entries are looked at that differ, or lead to something that does. So the cost is that of the change, and not of the trees.
//! - Content is chunks, and equal chunks have equal addresses: of two files nothing is read but where their extents name different ones
//!   (`content`).
//!
//! Two trees that have nothing to do with each other, one the copy of the other, are walked in full; their content is compared by its
//! addresses all the same.
//!
//! What is told is what a look at both trees would have told at the call; changes beside it are seen, or not. Nothing grows with the trees but
//! what `known` has, which has a bound: where more differs, the walk is a full one.
//!
//! Of times only that of the last change of content counts, and not of directories: there it says that names were made or removed, which is told
//! by itself. Neither do counts of links and places on disks.
//!
//! I-150 What is passed by as equal is equal: its inode is not among those that differ, nor is that of anything below it, of which both
//!       views have the same names.
//!
//! Not here: who may see what, and how it is shown (`node`).

mod content;
mod known;
mod listing;

use std::collections::{HashMap, HashSet};

use base::id::FileId;
use foldhash::fast::FixedState;

use self::known::{Catalogs, Known};
use self::listing::{Level, Pair};
use super::walk::{Walked, is_removal};
use crate::attributes::{Attributes, Kind, Node, View};
use crate::failure::FileError;
use crate::format::Xattrs;
use crate::system::{FileSystem, SNAPSHOTS, untrue};

/// How trees are compared.
#[derive(Clone, Copy)]
pub struct BatchCompare<'a> {
    /// Only kinds, content, link targets and device numbers count.
    pub content_only: bool,
    /// Bytes that it may take, about, however large the trees are. Where more differs than can be known at a time, they are walked in full.
    pub memory: u64,
    /// Hears how many files were looked at on both sides; `false`: no more.
    pub progress: &'a (dyn Fn(u64) -> bool + Sync),
}

/// What may be in memory.
#[derive(Clone, Copy)]
struct Limits {
    /// Files that are known to differ, of some 100 bytes each.
    changed: usize,
    /// Names of one directory that are looked at one by one; of more of them all are. They are kept for each directory on the way.
    groups: usize,
    /// Pairs of names that are kept of directories that are not at their turn.
    pairs: usize,
}

impl Limits {
    fn of(memory: u64) -> Limits {
        let part = |bytes: u64| usize::try_from(memory / bytes).unwrap_or(usize::MAX);
        Limits { changed: part(128), groups: part(8192).min(GROUPS_MAX), pairs: part(2048) }
    }
}

/// A directory in which more differs is soon read as a whole.
const GROUPS_MAX: usize = 4096;
/// Pairs of catalogs of which it is kept what differs, beside those that the walk is in.
const KNOWN_MAX: usize = 16;

/// What of two files can differ. The numbers are those of bits on the control socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Aspect {
    /// One is a file and the other a directory, or the like: nothing else of them is compared.
    Kind = 0,
    /// The bytes of a file.
    Content = 1,
    /// What a symbolic link leads to.
    Target = 2,
    /// The number of a device.
    Device = 3,
    /// Permission, set-id and sticky bits.
    Mode = 4,
    /// Owner or group.
    Owner = 5,
    /// When content changed last, but of a directory.
    Time = 6,
    /// Extended attributes, access lists among them.
    Xattrs = 7,
}

impl Aspect {
    /// All of them.
    pub const ALL: [Aspect; 8] = [
        Aspect::Kind,
        Aspect::Content,
        Aspect::Target,
        Aspect::Device,
        Aspect::Mode,
        Aspect::Owner,
        Aspect::Time,
        Aspect::Xattrs,
    ];
}

/// A difference.
#[derive(Clone, Copy, Debug)]
pub enum Compared<'a> {
    /// Only the first tree has it. What is below a directory comes by itself.
    OnlyBefore(Walked<'a>),
    /// Only the second has it.
    OnlyAfter(Walked<'a>),
    /// Both have it, and it differs.
    Changed {
        /// Its path in both.
        path: &'a [u8],
        /// As the first has it.
        before: &'a Attributes,
        /// As the second has it.
        after: &'a Attributes,
        /// In what, in order; at least one.
        what: &'a [Aspect],
    },
}

/// Hears of each difference, or of a path that cannot be compared; `false`: no more.
pub type CompareTell<'a> = dyn FnMut(Result<Compared<'_>, (&[u8], FileError)>) -> bool + Send + 'a;

/// What a comparison took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchCompareReport {
    /// Files and directories that were looked at on both sides.
    pub looked_at: u64,
    /// Names that were read in search of files that catalogs had told of: those of many directories, where a file does not say in which
    /// it lies.
    pub searched: u64,
}

/// A tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Before,
    After,
}

/// What is known of pairs of catalogs; `None`: too much differs, or they cannot be read.
type AllKnown = HashMap<Catalogs, Option<Known>, FixedState>;

/// A comparison on its way.
struct Compare<'a, 'b> {
    system: &'a FileSystem,
    how: BatchCompare<'a>,
    limits: Limits,
    /// Files of the present of which memory had something newer than the catalogs when it began.
    in_memory: HashSet<FileId, FixedState>,
    known: AllKnown,
    levels: Vec<Level>,
    path: Vec<u8>,
    report: BatchCompareReport,
    tell: &'a mut CompareTell<'b>,
}

impl FileSystem {
    /// Tells in what two trees, or two files, differ: `before` is called the first. A directory comes before what is in it, and what is in it
    /// in no particular order. What cannot be read is told of, and the rest goes on. Whoever waits, waits for room first, as batches that are
    /// read do.
    ///
    /// # Errors
    /// Of the two themselves: `NoEntry`, `Stale`, or the store's; `NotSupported` for the list of snapshots.
    pub async fn batch_compare(
        &self,
        before: Node,
        after: Node,
        how: &BatchCompare<'_>,
        tell: &mut CompareTell<'_>,
    ) -> Result<BatchCompareReport, FileError> {
        if before.file == SNAPSHOTS || after.file == SNAPSHOTS {
            return Err(FileError::NotSupported("the list of snapshots is no tree to compare: name one of them"));
        }
        let (_room, memory) = self.batch_room(how.memory).await;
        let how = BatchCompare { memory: how.memory.min(memory), ..*how };
        let in_memory = self.newer_in_memory(before, after).await?;
        let (known, levels, report) = (HashMap::default(), Vec::new(), BatchCompareReport::default());
        let limits = Limits::of(how.memory);
        let mut compare =
            Compare { system: self, how, limits, in_memory, known, levels, path: Vec::new(), report, tell };
        // What they are is asked first: an error of one of these is that of the call.
        self.attributes(before).await?;
        self.attributes(after).await?;
        let mut goes_on = compare.both(before, after).await;
        while goes_on && !compare.levels.is_empty() {
            goes_on = compare.step().await;
            if self.is_ending() {
                return Err(FileError::Busy("the node is being closed"));
            }
        }
        Ok(compare.report)
    }

    /// Files of the present that catalogs do not have as they are. What was accepted before has records then.
    async fn newer_in_memory(&self, before: Node, after: Node) -> Result<HashSet<FileId, FixedState>, FileError> {
        if before.view != View::LIVE && after.view != View::LIVE {
            return Ok(HashSet::default());
        }
        self.sync_all().await?;
        // What a commit has in hand is in no list.
        let _commit = self.commit.lock().await;
        let mut newer: HashSet<FileId, FixedState> = self.touched.lock().keys().copied().collect();
        newer.extend(self.unlogged.lock().keys());
        newer.extend(self.left_out.lock().keys());
        Ok(newer)
    }
}

impl Compare<'_, '_> {
    /// The next pair of names, or some more of a listing. `false`: no more.
    async fn step(&mut self) -> bool {
        let Some(level) = self.levels.last_mut() else { return false };
        self.path.truncate(level.path_bytes);
        let Some(Pair { name, before, after, .. }) = level.listed.pop_front() else { return self.list().await };
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(&name);
        match (before, after) {
            (Some(before), Some(after)) => self.both(before, after).await,
            (Some(before), None) => self.alone(Side::Before, before, true).await,
            (None, Some(after)) => self.alone(Side::After, after, true).await,
            (None, None) => true,
        }
    }

    /// Lists more of the directories whose turn it is, or leaves them.
    async fn list(&mut self) -> bool {
        if self.levels.pop_if(|level| level.is_listed()).is_some() {
            return true;
        }
        let Some(Level { before, after, .. }) = self.levels.last() else { return false };
        let (before, after) = (*before, *after);
        let is_within = self.is_within(&Catalogs::of(before, after));
        let known = known_in(&self.known, before, after, is_within);
        let level = self.levels.last_mut().expect("it was looked at");
        let listed = self.system.list_pairs(level, known).await;
        match listed {
            Ok(()) => true,
            Err(error) => is_removal(&error, before) || is_removal(&error, after) || self.fail(error),
        }
    }

    /// Compares what has the same path on both sides. `false`: no more.
    async fn both(&mut self, before: Node, after: Node) -> bool {
        if before == after || self.is_equal(before, after) {
            return true;
        }
        self.report.looked_at += 1;
        self.system.counters.batch_compared.add(1);
        if !(self.how.progress)(self.report.looked_at) {
            return false;
        }
        let (seen, what) = match self.system.aspects(before, after, self.how.content_only).await {
            Ok(found) => found,
            Err(error) => return is_removal(&error, before) || is_removal(&error, after) || self.fail(error),
        };
        let [was, is] = &seen;
        let path = &self.path;
        if !what.is_empty() && !(self.tell)(Ok(Compared::Changed { path, before: was, after: is, what: &what })) {
            return false;
        }
        match (was.kind, is.kind) {
            (Kind::Directory, Kind::Directory) => self.enter(before, after).await,
            (Kind::Directory, _) => self.alone(Side::Before, before, false).await,
            (_, Kind::Directory) => self.alone(Side::After, after, false).await,
            _ => true,
        }
    }

    /// Whether two are known to be equal, with everything below (I-150).
    fn is_equal(&self, before: Node, after: Node) -> bool {
        let is_within = self.is_within(&Catalogs::of(before, after));
        known_in(&self.known, before, after, is_within).is_some_and(|known| known.is_equal(before, after))
    }

    /// Whether a directory above was searched for what differs between these catalogs and has no place.
    fn is_within(&self, catalogs: &Catalogs) -> bool {
        let is_it = |level: &Level| level.is_known && Catalogs::of(level.before, level.after) == *catalogs;
        self.levels.iter().any(is_it)
    }

    /// What is in two directories comes next.
    async fn enter(&mut self, before: Node, after: Node) -> bool {
        if self.levels.iter().any(|level| level.before == before || level.after == after) {
            let place = format!("directory {}", after.file);
            let error = untrue("directory entry", place, "a directory below none of its own", &after.file);
            return self.fail(error.into());
        }
        let mut level = Level::new(before, after, self.path.len());
        if before.file.number == after.file.number {
            self.know(before, after).await;
            if let Some(known) = known_in(&self.known, before, after, true) {
                if known.is_equal(before, after) {
                    return true;
                }
                level.is_known = true;
                level.some = self.system.differing(known, before, after, self.limits.groups).await;
            }
        }
        listing::let_go(&mut self.levels, self.limits.pairs);
        self.levels.push(level);
        true
    }

    /// Sees to it that it is known what differs below two directories, if that can be.
    async fn know(&mut self, before: Node, after: Node) {
        let catalogs = Catalogs::of(before, after);
        if self.is_within(&catalogs) {
            return;
        }
        if !self.known.contains_key(&catalogs) {
            // What cannot be read is met by the walk, which tells where.
            let known = self.system.known(&catalogs, &self.in_memory, self.limits.changed).await.unwrap_or_default();
            if self.known.len() >= KNOWN_MAX {
                // Each has its bound, and of a tree with many clones there may be many.
                let mut known = std::mem::take(&mut self.known);
                known.retain(|catalogs, _| self.is_within(catalogs));
                self.known = known;
            }
            self.known.insert(catalogs, known);
        }
        let Some(Some(known)) = self.known.get_mut(&catalogs) else { return };
        let searched = known.search(self.system, after).await;
        self.report.searched += known.take_searched();
        if searched.is_err() {
            self.known.insert(catalogs, None);
        }
    }

    /// Tells of something that only one side has, if `itself`, and of everything below it.
    async fn alone(&mut self, side: Side, node: Node, itself: bool) -> bool {
        let mut goes_on = true;
        let top = self.path.len();
        let (path, tell) = (&mut self.path, &mut self.tell);
        let mut walked = |walked: Result<Walked<'_>, (&[u8], FileError)>| {
            let below = match &walked {
                Ok(walked) => walked.path,
                Err((path, _)) => path,
            };
            if below.is_empty() && !itself && walked.is_ok() {
                return true;
            }
            path.truncate(top);
            if top > 0 && !below.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(below);
            goes_on = tell(match walked {
                Ok(walked) => {
                    let walked = Walked { path, ..walked };
                    Ok(if side == Side::Before { Compared::OnlyBefore(walked) } else { Compared::OnlyAfter(walked) })
                }
                Err((_, error)) => Err((path, error)),
            });
            goes_on
        };
        let walk = self.system.batch_walk(node, &mut walked).await;
        self.path.truncate(top);
        match walk {
            Ok(()) => goes_on,
            Err(error) => is_removal(&error, node) || self.fail(error),
        }
    }

    /// Tells that what is at the path now cannot be compared.
    fn fail(&mut self, error: FileError) -> bool {
        (self.tell)(Err((&self.path, error)))
    }
}

/// What is known of two files and what is below them; what has no place may be anywhere but within a directory that was searched.
fn known_in(known: &AllKnown, before: Node, after: Node, is_within: bool) -> Option<&Known> {
    let known = known.get(&Catalogs::of(before, after))?.as_ref()?;
    (is_within || known.is_complete()).then_some(known)
}

impl FileSystem {
    /// The attributes of two files, and in what they differ.
    async fn aspects(
        &self,
        before: Node,
        after: Node,
        content_only: bool,
    ) -> Result<([Attributes; 2], Vec<Aspect>), FileError> {
        let (was, is) = (self.attributes(before).await?, self.attributes(after).await?);
        let mut what = Vec::new();
        if was.kind != is.kind {
            return Ok(([was, is], vec![Aspect::Kind]));
        }
        let mut note = |aspect, differs: bool| what.extend(differs.then_some(aspect));
        match is.kind {
            Kind::Regular => note(Aspect::Content, self.has_other_content((before, was.size), (after, is.size)).await?),
            Kind::Symlink => note(Aspect::Target, self.read_link(before).await? != self.read_link(after).await?),
            Kind::CharacterDevice | Kind::BlockDevice => note(Aspect::Device, was.device != is.device),
            Kind::Directory | Kind::Fifo | Kind::Socket => {}
        }
        if !content_only {
            note(Aspect::Mode, was.mode != is.mode);
            note(Aspect::Owner, (was.uid, was.gid) != (is.uid, is.gid));
            note(Aspect::Time, is.kind != Kind::Directory && was.modified != is.modified);
            note(Aspect::Xattrs, self.xattrs_of(before).await? != self.xattrs_of(after).await?);
        }
        Ok(([was, is], what))
    }

    async fn xattrs_of(&self, node: Node) -> Result<Xattrs, FileError> {
        let inode = self.inode(node).await?;
        self.load_xattrs_of(node, &inode).await?;
        let state = inode.state.lock();
        Ok(state.xattrs.clone().unwrap_or_default())
    }
}
