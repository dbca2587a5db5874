//! Reclaim: which chunks does anybody still need?
//!
//! First branches are pruned (`prune`). Then the order is everything, for writers go on meanwhile:
//!
//! 1. From now on the store keeps whatever is put or found to be there already ([`Store::begin_mark`]).
//! 2. Wait for operations that put chunks before 1 and have not named them yet: they do, or drop them.
//! 3. Between two commits, take the roots and what the journal names beyond them; make that journal durable.
//! 4. Wait for operations that use roots older than these.
//! 5. Mark: walk the trees of the present and of all snapshots, leaf by leaf, so that little is in memory at a time.
//! 6. What is not marked, not named by the journal, and not kept since 1, nobody can reach: the store gives it back.
//!
//! I-95  A chunk that a durable root, a record or a running operation names is never given back.
//! I-96  Damage ends the pass before anything is given back: what cannot be read cannot be marked.
//!
//! [`Store::begin_mark`]: store::Store::begin_mark
//! Not here: how packs are emptied and removed, and where marks are kept (`store`).

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::codec::Reader;
use base::id::ChunkAddress;
use bytes::Bytes;
use foldhash::fast::FixedState;
use platform::task::{First, first};
use store::{Marks, Pace, ReclaimReport, Share, Sweep};
use tokio::sync::MutexGuard;

use crate::admission::VAIN_BYTES;
use crate::extent::Extent;
use crate::failure::FileError;
use crate::format::Root;
use crate::names::TreeOf;
use crate::snapshot::decode_listed;
use crate::system::{FileSystem, undecodable};
use crate::waiting::KeptOff;

/// Dropped bytes after which a pass runs by itself.
const DROPPED_BYTES_MIN: u64 = 1 << 30;

/// Tree nodes that a pass remembers to have walked, for each inode that memory may hold: a sixth of the memory that those take.
const NODES_PER_INODE: usize = 4;

/// After so long somebody who wants room looks whether he waits for a pass, or for who keeps passes off; then there is none for him, and for whoever comes
/// until that ends. A check may take hours, and who waits for a write cannot be told to come back.
pub(crate) const KEPT_OFF_MAX: Duration = Duration::from_secs(30);
const KEPT_OFF: &str = "a check, a repair, a stream that is received or an optimize keeps passes of reclaim off";

/// Files after which a walk tells how far it is.
const FILES_PER_TELLING: u64 = 1000;

/// How a pass goes about it. By default it does all that it can, as fast as it can, and tells nobody.
#[derive(Clone, Copy)]
pub struct Reclaim<'a> {
    /// It only finds out what it would do.
    pub is_rehearsal: bool,
    /// Every chunk that nobody needs goes, if all others of its pack have to be copied.
    pub is_thorough: bool,
    /// It ends when it has given back so many bytes.
    pub wanted_bytes: Option<u64>,
    /// The share of the time that it takes, unless somebody waits for room.
    pub share: Share,
    /// Hears how far it is.
    pub tell: &'a (dyn Fn(ReclaimProgress) + Sync),
}

impl Default for Reclaim<'_> {
    fn default() -> Self {
        Reclaim { is_rehearsal: false, is_thorough: false, wanted_bytes: None, share: Share::FULL, tell: &|_| {} }
    }
}

/// How far a pass is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimProgress {
    /// It finds out what is needed, and has walked so many files, of snapshots too.
    Marked {
        /// Files.
        files: u64,
    },
    /// It gives room back.
    Swept {
        /// Packs that were looked at.
        packs: u64,
        /// Packs in all.
        all_packs: u64,
    },
}

/// A walk over all trees.
struct Walk<'a> {
    marks: Marks<'a>,
    /// Tree nodes that were walked, in full: a node that was taken for another would leave chunks unmarked.
    walked: HashSet<ChunkAddress, FixedState>,
    walked_max: usize,
    pace: &'a Pace<'a>,
    tell: &'a (dyn Fn(ReclaimProgress) + Sync),
    files: u64,
}

/// Passes of reclaim are kept off.
#[must_use]
pub(crate) struct NoPasses<'a> {
    kept_off: &'a KeptOff,
    _one: MutexGuard<'a, ()>,
}

impl Drop for NoPasses<'_> {
    fn drop(&mut self) {
        self.kept_off.end();
    }
}

impl Walk<'_> {
    /// Notes a tree node; `false`: it was walked before, with everything below it.
    fn add_node(&mut self, address: &ChunkAddress) -> bool {
        self.marks.add(address);
        if self.walked.len() >= self.walked_max {
            // What is forgotten is walked again where another tree shares it.
            self.walked.clear();
        }
        self.walked.insert(*address)
    }
}

impl FileSystem {
    /// Gives back the room of chunks that nobody needs. One pass at a time.
    ///
    /// # Errors
    /// The store's; nothing that is needed is lost.
    pub async fn reclaim(&self, how: &Reclaim<'_>) -> Result<ReclaimReport, FileError> {
        let one = self.reclaiming.lock().await;
        self.reclaim_alone(one, how).await
    }

    async fn reclaim_alone(&self, _one: MutexGuard<'_, ()>, how: &Reclaim<'_>) -> Result<ReclaimReport, FileError> {
        let _time = self.platform.clock.timer(&self.counters.reclaim_pass);
        let result = self.pass(how).await;
        self.counters.reclaim_failures.add(u64::from(result.is_err()));
        let failure = result.as_ref().err().cloned();
        *self.reclaim_failure.lock() = failure.map(|failure| (failure, self.platform.clock.elapsed()));
        result
    }

    /// What somebody waits for in want of room: the pass that runs hurries too.
    pub(crate) async fn reclaim_at_once(&self) -> Result<ReclaimReport, FileError> {
        self.hurry(&Reclaim::default()).await
    }

    /// The same, so many bytes among what is needed; nothing where somebody else has seen to it meanwhile.
    pub(crate) async fn reclaim_thoroughly(&self, wanted: u64, is_there: impl Fn() -> bool) {
        let one = self.unless_kept_off(self.thorough.lock()).await;
        if one.is_ok() && !is_there() {
            let how = Reclaim { is_thorough: true, wanted_bytes: Some(wanted), ..Reclaim::default() };
            // Why it failed is told by the status.
            let _ = self.hurry(&how).await;
        }
    }

    async fn hurry(&self, how: &Reclaim<'_>) -> Result<ReclaimReport, FileError> {
        let _hurry = self.reclaim_hurried.wait();
        let one = self.unless_kept_off(self.reclaiming.lock()).await?;
        self.reclaim_alone(one, how).await
    }

    /// Waits for passes, which give room, and not for long for those who keep passes off.
    async fn unless_kept_off<T>(&self, turn: impl Future<Output = T>) -> Result<T, FileError> {
        let mut turn = pin!(turn);
        while !self.kept_off.is_long() {
            match first(turn.as_mut(), self.platform.tasks.sleep(KEPT_OFF_MAX)).await {
                First::Left(turn) => return Ok(turn),
                First::Right(()) => self.kept_off.note_long(),
            }
        }
        Err(FileError::Busy(KEPT_OFF))
    }

    /// No pass begins until this is dropped. One that runs does not pause meanwhile: who checks everything waits for it.
    pub(crate) async fn without_passes(&self) -> NoPasses<'_> {
        let _awaited = self.reclaim_awaited.wait();
        self.between_passes().await
    }

    /// The same, for who has time.
    pub(crate) async fn between_passes(&self) -> NoPasses<'_> {
        let one = self.reclaiming.lock().await;
        self.kept_off.begin();
        NoPasses { kept_off: &self.kept_off, _one: one }
    }

    /// How much of the time work takes that others may come to wait for.
    pub(crate) fn share_now(&self, share: Share) -> Share {
        if self.reclaim_hurried.are_any() || self.reclaim_awaited.are_any() { Share::FULL } else { share }
    }

    async fn pass(&self, how: &Reclaim<'_>) -> Result<ReclaimReport, FileError> {
        let dropped = self.dropped_bytes.swap(0, Ordering::Relaxed);
        self.dropped_since_pass.store(false, Ordering::SeqCst);
        let result = self.mark_and_reclaim(how).await;
        self.measure_space();
        match &result {
            Ok(Some(report)) if !how.is_rehearsal => {
                let are_branches_left = self.are_branches_left.load(Ordering::SeqCst);
                self.is_pass_partial.store(report.packs_left > 0 || are_branches_left, Ordering::SeqCst);
                let given = report.bytes_freed.saturating_sub(report.bytes_copied);
                self.is_pass_in_vain.store(given < VAIN_BYTES && !are_branches_left, Ordering::SeqCst);
                if are_branches_left {
                    // They keep what others have dropped.
                    self.note_dropped(dropped.saturating_sub(report.bytes_freed));
                }
                self.dead_left_bytes.store(report.bytes_dead_left, Ordering::Relaxed);
            }
            _ => {
                self.is_pass_in_vain.store(result.is_err(), Ordering::SeqCst);
                self.dropped_bytes.fetch_add(dropped, Ordering::Relaxed);
                self.dropped_since_pass.store(true, Ordering::SeqCst);
            }
        }
        if !how.is_rehearsal {
            *self.last_pass.lock() = Some(self.platform.clock.elapsed());
        }
        result.map(Option::unwrap_or_default)
    }

    /// `None`: the file system is closed meanwhile, which waits for nobody's marks.
    async fn mark_and_reclaim(&self, how: &Reclaim<'_>) -> Result<Option<ReclaimReport>, FileError> {
        let is_hurried = || self.reclaim_hurried.are_any();
        let share = || self.share_now(how.share);
        let goes_on = || self.goes_on();
        let calls = || self.calls();
        let pace = Pace::new(&self.platform, &share, &goes_on).beside(&calls);
        if !how.is_rehearsal {
            // Without room for it the pass goes on with what there is.
            let wants_all = || how.is_thorough || is_hurried();
            // A pass that fails asks for no other.
            self.are_branches_left.store(false, Ordering::SeqCst);
            let are_left = match self.prune_branches(&pace, &wants_all).await {
                Err(FileError::NoSpace) => false,
                pruned => pruned?,
            };
            self.are_branches_left.store(are_left, Ordering::SeqCst);
        }
        let marks = self.store.begin_mark(how.is_rehearsal).await?;
        let walked_max = self.options.inodes_max.saturating_mul(NODES_PER_INODE);
        let mut walk = Walk { marks, walked: HashSet::default(), walked_max, pace: &pace, tell: how.tell, files: 0 };
        self.mark(&mut walk).await?;
        if !self.goes_on() {
            return Ok(None);
        }
        let tell = |packs, all_packs| (how.tell)(ReclaimProgress::Swept { packs, all_packs });
        let sweep = Sweep { pace: &pace, is_thorough: how.is_thorough, wanted_bytes: how.wanted_bytes, tell: &tell };
        Ok(Some(self.store.reclaim(walk.marks, &sweep).await?))
    }

    /// Steps 2 to 5.
    async fn mark(&self, walk: &mut Walk<'_>) -> Result<(), FileError> {
        self.grace.wait().await;
        let receipts;
        let (roots, branches) = {
            let _between = self.commit.lock().await;
            let touched = self.touched.lock().clone();
            for inode in touched.values() {
                let state = inode.state.lock();
                let extents = state.overlays().flat_map(|overlay| overlay.extents.iter());
                extents.for_each(|(_, extent)| add_extent(&mut walk.marks, extent));
            }
            // Before the next commit can name what they name: one of both is seen.
            receipts = self.receipts.trees(self.platform.clock.elapsed());
            (self.roots.lock().clone(), self.branches.lock().clone())
        };
        // What memory lacks, a record dropped. Should a crash take that record, those before it name what it dropped.
        self.sync_journal().await?;
        self.grace.wait().await;
        self.new_leaves(&roots.orphans, walk).await?;
        for receipt in &receipts {
            self.mark_receipt(receipt, walk).await?;
        }
        // As the tree has them: what could not be read when the list was loaded is needed all the same (I-95, I-96).
        let mut trees = vec![(TreeOf::Inodes(0), roots.catalog.clone()), (TreeOf::Branches, roots.branches.clone())];
        // Those too that the journal alone has.
        for (branch, value) in branches {
            trees.extend([(TreeOf::Inodes(branch), value.catalog), (TreeOf::Nothing, value.orphans)]);
        }
        for leaf in self.new_leaves(&roots.snapshots, walk).await? {
            for (view, bytes) in self.values(&leaf).await? {
                trees.extend(decode_listed(view, &bytes)?.1.trees());
            }
        }
        while let Some((of, tree)) = trees.pop() {
            for leaf in self.new_leaves(&tree, walk).await? {
                if !walk.pace.step().await {
                    return Ok(());
                }
                match of {
                    TreeOf::Branches => {
                        for (branch, bytes) in self.values(&leaf).await? {
                            trees.extend(of.names(branch, &bytes)?.trees);
                        }
                    }
                    _ => self.mark_files(of, &leaf, walk).await?,
                }
            }
        }
        Ok(())
    }

    /// The files of one leaf of a catalog.
    async fn mark_files(&self, of: TreeOf, leaf: &Root, walk: &mut Walk<'_>) -> Result<(), FileError> {
        for (file, bytes) in self.values(leaf).await? {
            walk.files += 1;
            if walk.files.is_multiple_of(FILES_PER_TELLING) {
                (walk.tell)(ReclaimProgress::Marked { files: walk.files });
            }
            let named = of.names(file, &bytes)?;
            named.chunks.iter().for_each(|(_, address)| walk.marks.add(address));
            for (of, tree) in &named.trees {
                self.mark_content(*of, tree, walk).await?;
            }
        }
        if walk.marks.is_full() {
            walk.marks.sort_in(walk.pace).await;
        }
        Ok(())
    }

    /// What came and has no name yet (I-113).
    async fn mark_receipt(&self, arrivals: &Root, walk: &mut Walk<'_>) -> Result<(), FileError> {
        for leaf in self.new_leaves(arrivals, walk).await? {
            for (number, bytes) in self.values(&leaf).await? {
                let wrong = |error| undecodable("receipt", format!("chunk {number}"), error);
                walk.marks.add(&Reader::new(&bytes).address("address").map_err(wrong)?);
            }
            if walk.marks.is_full() {
                walk.marks.sort_in(walk.pace).await;
            }
        }
        Ok(())
    }

    /// What belongs to one file.
    async fn mark_content(&self, of: TreeOf, tree: &Root, walk: &mut Walk<'_>) -> Result<(), FileError> {
        for leaf in self.new_leaves(tree, walk).await? {
            if of == TreeOf::Nothing {
                break;
            }
            for (key, bytes) in self.values(&leaf).await? {
                of.names(key, &bytes)?.chunks.iter().for_each(|(_, address)| walk.marks.add(address));
            }
            walk.pace.step().await;
            if walk.marks.is_full() {
                walk.marks.sort_in(walk.pace).await;
            }
        }
        Ok(())
    }

    /// Marks the nodes of a tree. Gives its leaves that were not walked before, each as a tree of its own.
    async fn new_leaves(&self, tree: &Root, walk: &mut Walk<'_>) -> Result<Vec<Root>, FileError> {
        let mut leaves = Vec::new();
        if let Root::Inline(_) = tree {
            leaves.push(tree.clone());
            return Ok(leaves);
        }
        let mut visit = |address: &ChunkAddress, level| {
            let is_new = self.goes_on() && walk.add_node(address);
            if is_new && level == 0 {
                leaves.push(Root::Node { address: *address, level });
            }
            is_new && level > 0
        };
        self.trees.walk(tree, &mut visit, &mut |_, _| Ok(())).await?;
        Ok(leaves)
    }

    /// What a leaf holds.
    async fn values(&self, leaf: &Root) -> Result<Vec<(u64, Bytes)>, FileError> {
        let mut values = Vec::new();
        let mut keep = |key, value: &Bytes| {
            values.push((key, value.clone()));
            Ok(())
        };
        self.trees.walk(leaf, &mut |_, _| true, &mut keep).await?;
        Ok(values)
    }

    fn goes_on(&self) -> bool {
        !self.is_ending()
    }

    /// Whether somebody closes it: who does long work ends that.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.is_stopping.load(Ordering::SeqCst)
    }

    /// Who closes waits for long work, however much it has to look at.
    pub(crate) fn refuse_if_ending(&self) -> Result<(), FileError> {
        if self.is_ending() { Err(FileError::Busy("the node is being closed")) } else { Ok(()) }
    }

    /// The background task that gives room back, beside the commits. A pass that fails is told of by the status, and tried again after
    /// the next commit.
    pub(crate) async fn run_reclaimer(self: Arc<Self>) {
        while self.goes_on() {
            self.wants_reclaim.notified().await;
            let is_needed = self.commit_lacks_room.swap(false, Ordering::SeqCst) && !self.has_passed_lately();
            // L-6: what keeps packs from being copied may be what nobody needs.
            let is_rotten = self.store.wants_reclaim();
            if self.goes_on() && (is_needed || is_rotten || self.is_reclaim_worthwhile()) {
                let share = if is_rotten { self.options.repair_share } else { self.options.background_share };
                let passed = self.reclaim(&Reclaim { share, ..Reclaim::default() }).await;
                if is_rotten && passed.is_ok() {
                    self.wants_mending.notify_one();
                }
                if self.are_branches_left.load(Ordering::SeqCst) {
                    self.wants_reclaim.notify_one();
                }
            }
        }
        self.stopped.add_permits(1);
    }

    /// Whether enough was dropped since the last pass.
    pub(crate) fn is_reclaim_worthwhile(&self) -> bool {
        if self.left_out_count.load(Ordering::Relaxed) > 0 {
            // It would end at the tree that cannot be read (I-96), after a walk over all before it.
            return false;
        }
        let space = self.store.space();
        let used = space.total.saturating_sub(space.free);
        let is_scarce = space.free < space.total / 5;
        let enough = DROPPED_BYTES_MIN.min(space.total / 16);
        let enough = if is_scarce { enough } else { enough.max(used / 10) };
        self.dropped_bytes.load(Ordering::Relaxed) > enough
    }
}

fn add_extent(marks: &mut Marks<'_>, extent: &Extent) {
    if let Extent::Chunk { address, .. } = extent {
        marks.add(address);
    }
}
