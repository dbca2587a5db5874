//! The file system as a whole: what all operations share, and how a change becomes visible and logged.
//!
//! I-40  A [`Transaction`] applies its records and logs its frame inside one reading of the gate; the commit barrier takes the
//!       gate for writing. So every frame lies wholly before or after a commit's time T, in memory as in the journal.
//! I-41  Order of locks: operation locks (directories first, by id), flush lock, gate, namespace, state, sets.
//!
//! Not here: the operations (`namespace`, `attribute`, `read`, `write`), flushing, committing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::codec::Writer;
use base::id::{FileId, NodeNumber, Position};
use base::limits::FRAME_BYTES_MAX;
use base::time::Timestamp;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use platform::Platform;
use store::{Resilience, Share, Store, StoreError};
use tokio::sync::Notify;

use crate::attributes::{Node, View};
use crate::buffers::Buffers;
use crate::counters::Counters;
use crate::failure::FileError;
use crate::format::{
    BranchValue, Change, FILES_MAX, InodeValue, Record, Root, Roots, SnapshotValue, VIEWS_MAX, encode_record,
};
use crate::grace::Grace;
use crate::inode::{Inode, InodeSet, LeftOut, State};
use crate::mending::Mending;
use crate::raising::Raising;
use crate::readers::Readers;
use crate::receipts::Receipts;
use crate::references::References;
use crate::removals::Removals;
use crate::room::{self, Buffer, CHANGED, Claims, FILES, LOGGED, Records};
use crate::siblings::Siblings;
use crate::table::Table;
use crate::tree::{Gap, Trees};
use crate::upkeep::Upkeep;
use crate::waiting::{KeptOff, Waiting};

/// The virtual directory `.snapshots` of the root. No file gets this id: counters begin behind it.
pub const SNAPSHOTS: FileId = FileId::main(2);
/// Its name.
pub(crate) const SNAPSHOTS_NAME: &[u8] = b".snapshots";
/// Files made in one directory get their ids in runs of this many.
pub(crate) const ID_RUN: u64 = 64;

/// The part of the store's reserve that triggers a commit when the journal has grown by it.
const RESERVE_PARTS: u64 = 8;

/// Sizes and times of the file layer.
#[derive(Clone, Debug)]
pub struct Options {
    /// Accepted data that waits for the store, at most. Writers wait beyond it.
    pub dirty_bytes_max: u64,
    /// Accepted data is local after this time at the latest.
    pub flush_interval: Duration,
    /// A file with so much accepted data is a stream: it is flushed while it is still written.
    pub stream_bytes: u64,
    /// Bytes of a flush that are cut, hashed and compressed together: enough for all cores, little beside what the store takes at a time.
    pub group_bytes: usize,
    /// A commit runs after this time if there is anything to commit.
    pub commit_interval: Duration,
    /// A commit runs when the journal suffix is this long: bounds recovery time and memory.
    pub commit_journal_bytes: u64,
    /// Files with accepted data, at most; writers wait beyond it. Bounds memory where files are small.
    pub unlogged_files_max: usize,
    /// Frames that nobody waits for are made durable when they are so many bytes: bounds memory.
    pub pending_log_bytes: u64,
    /// A commit also runs when so many files have changes that no commit covers: bounds memory.
    pub uncommitted_files_max: usize,
    /// Inodes kept in memory, about.
    pub inodes_max: usize,
    /// An fsync of at most this much data puts it into the journal: one write, one sync.
    pub inline_bytes_max: u64,
    /// Whether reads update access times (relatime).
    pub access_times: bool,
    /// File content that is read ahead of one reader at most, in bytes; 0: nothing is.
    pub read_ahead_bytes_max: u64,
    /// Content of small files that is read ahead of who reads the files of a directory, in bytes, and no more than an eighth of the cache; as
    /// much of directories, of who lists those of a directory one after the other. 0: nothing is.
    pub directory_ahead_bytes_max: u64,
    /// Memory that batches take which are read, all together; who comes then waits.
    pub batch_bytes_max: u64,
    /// What reclaim and scrub take of the time while nobody waits for them.
    pub background_share: Share,
    /// What bringing packs onto as many disks as they should be on takes of the time.
    pub repair_share: Share,
    /// What is stored is read again once in this time; zero: only when somebody says so.
    pub scrub_interval: Duration,
    /// Small files that lie scattered are brought together once in this time; zero: only when somebody says so.
    pub layout_interval: Duration,
    /// What disks take for a request is measured once in this time, if the node is used; zero: only when somebody says so.
    pub speed_interval: Duration,
    /// Opens without the changes that the journal has of files whose inode or attributes cannot be read: they are lost then.
    pub gives_up_records: bool,
    /// The store's options.
    pub store: store::Options,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            dirty_bytes_max: 256 << 20,
            flush_interval: Duration::from_secs(5),
            stream_bytes: 8 << 20,
            group_bytes: 2 << 20,
            commit_interval: Duration::from_secs(30),
            commit_journal_bytes: 64 << 20,
            unlogged_files_max: 100_000,
            pending_log_bytes: 4 << 20,
            uncommitted_files_max: 100_000,
            inodes_max: 100_000,
            inline_bytes_max: 64 << 10,
            access_times: true,
            read_ahead_bytes_max: 8 << 20,
            directory_ahead_bytes_max: 32 << 20,
            batch_bytes_max: 256 << 20,
            background_share: Share::DEFAULT,
            repair_share: Share::FULL,
            scrub_interval: Duration::from_secs(28 * 24 * 3600),
            layout_interval: Duration::ZERO,
            speed_interval: Duration::from_secs(3600),
            gives_up_records: false,
            store: store::Options::default(),
        }
    }
}

/// Tasks that read ahead at a time at most.
pub(crate) const PREFETCHERS: usize = 16;

/// The branch that is being pruned, and the files that commits have changed in its catalog since the walk's moment.
#[derive(Debug)]
pub(crate) struct Pruning {
    pub(crate) branch: u32,
    pub(crate) changed: BTreeSet<u64>,
}

/// The least memory of a batch that is read: a few chunks.
pub(crate) const BATCH_BYTES_MIN: u64 = 4 << 20;

/// Memory in the units in which such batches wait for it.
pub(crate) fn batch_units(bytes: u64) -> u32 {
    u32::try_from(bytes.max(BATCH_BYTES_MIN) >> 10).unwrap_or(u32::MAX)
}

/// Snapshots that are sent at a time at most, each with sets of addresses, and received, each with a few MiB.
pub(crate) const SENDS_MAX: u32 = 2;
pub(crate) const RECEIVES_MAX: u32 = 4;

/// A file system on the disks of one node. All methods may be called from many threads.
pub struct FileSystem {
    pub(crate) platform: Platform,
    pub(crate) store: Arc<Store>,
    pub(crate) trees: Trees,
    pub(crate) options: Options,
    pub(crate) counters: Counters,
    pub(crate) table: Table,
    /// Holds the commit generation. Read: log and apply. Write: the commit barrier.
    pub(crate) gate: RwLock<u64>,
    /// Held by who locks the state of more than one inode.
    pub(crate) namespace: Mutex<()>,
    /// Held by renames between directories, over I/O: nobody else moves directories meanwhile.
    pub(crate) rename: tokio::sync::Mutex<()>,
    /// Trees that were removed, and still have something.
    pub(crate) removals: Removals,
    /// As of the last superblock.
    pub(crate) roots: Mutex<Arc<Roots>>,
    /// Snapshots by view.
    pub(crate) snapshots: Mutex<BTreeMap<u32, SnapshotValue>>,
    /// Branches by number: those of the last superblock, and those that were made since.
    pub(crate) branches: Mutex<BTreeMap<u32, BranchValue>>,
    /// Those that are being sent, or that what comes is the difference to, and how often (I-115).
    pub(crate) held_views: Mutex<BTreeMap<View, u32>>,
    /// What came of snapshots that are on their way here.
    pub(crate) receipts: Receipts,
    /// Places for those who send, and who receive; the end waits for them.
    pub(crate) sends: tokio::sync::Semaphore,
    pub(crate) receives: tokio::sync::Semaphore,
    /// Memory for batches that are read, in KiB; the end waits for them.
    pub(crate) batches: tokio::sync::Semaphore,
    /// Those that wait for it.
    pub(crate) batches_waiting: Waiting,
    /// Inodes with records since the last commit barrier.
    pub(crate) touched: Mutex<InodeSet>,
    /// How many they are, and how many a commit has in hand.
    pub(crate) touched_count: AtomicUsize,
    pub(crate) committing_count: AtomicUsize,
    /// Inodes with accepted data that no record has.
    pub(crate) unlogged: Mutex<InodeSet>,
    /// How many they are.
    pub(crate) unlogged_count: AtomicUsize,
    pub(crate) buffers: Arc<Buffers>,
    /// Room for what was accepted, and for what no commit covers.
    pub(crate) buffer: Buffer,
    pub(crate) records: Records,
    /// Why the last flush failed, and what the files asked for; writers hear of it.
    pub(crate) flush_failure: Mutex<Option<(Resilience, FileError)>>,
    /// Why the journal takes nothing more; final until the node is opened again.
    pub(crate) journal_failure: Mutex<Option<FileError>>,
    /// Held by who empties `unlogged` (I-63).
    pub(crate) flush_round: tokio::sync::Mutex<()>,
    pub(crate) rounds_waiting: Waiting,
    /// Something left the write buffer: it became local, or was dropped.
    pub(crate) released: Notify,
    /// The kernel's look-up counts: an unlinked file lives while it has one.
    pub(crate) references: Mutex<References>,
    pub(crate) next_counter: AtomicU64,
    /// Whether a commit is to be made though nothing may be new: records were given up, which the next opening would meet again, or are on no disk that works.
    pub(crate) is_commit_owed: AtomicBool,
    /// The next number of a view or branch.
    pub(crate) next_view: AtomicU32,
    /// Of the branch that is being pruned, if one is.
    pub(crate) pruning: Mutex<Option<Pruning>>,
    pub(crate) commit: tokio::sync::Mutex<()>,
    /// Held by who changes the list of snapshots.
    pub(crate) snapshot_change: tokio::sync::Mutex<()>,
    pub(crate) wants_flush: Notify,
    pub(crate) wants_commit: Notify,
    pub(crate) wants_reclaim: Notify,
    /// How far the mender is, while it is at work.
    pub(crate) mending: Mutex<Option<Mending>>,
    /// What it did last.
    pub(crate) mended: Mutex<store::CopiesReport>,
    /// Content that was asked to survive more.
    pub(crate) raising: Raising,
    /// The raiser is to end.
    pub(crate) wants_raising: Notify,
    /// The mender is to look at once: something is lacking, or it is to end.
    pub(crate) wants_mending: Notify,
    /// The scrubber is to end.
    pub(crate) wants_no_scrub: Notify,
    /// The measurer is to end.
    pub(crate) wants_no_measuring: Notify,
    pub(crate) flush_failed: Notify,
    pub(crate) commit_ended: Notify,
    /// Why the last commit failed.
    pub(crate) commit_failure: Mutex<Option<FileError>>,
    /// Files that commits leave out (I-106), and how many: nobody looks where there is none.
    pub(crate) left_out: Mutex<BTreeMap<FileId, LeftOut>>,
    pub(crate) left_out_count: AtomicUsize,
    /// Why the last pass of reclaim failed, and when.
    pub(crate) reclaim_failure: Mutex<Option<(FileError, Duration)>>,
    pub(crate) is_stopping: AtomicBool,
    pub(crate) stopped: tokio::sync::Semaphore,
    pub(crate) readers: Readers,
    /// Whose files somebody reads, and whose directories somebody lists.
    pub(crate) siblings: Siblings,
    pub(crate) walks: Siblings,
    /// For tasks that nobody waits for. Each of those holds a permit until it has dropped what it made of this.
    pub(crate) me: Weak<FileSystem>,
    pub(crate) prefetchers: Arc<tokio::sync::Semaphore>,
    /// Who uses roots and unnamed chunks (I-90).
    pub(crate) grace: Grace,
    /// Held by a pass of reclaim.
    pub(crate) reclaiming: tokio::sync::Mutex<()>,
    /// Held by who has a thorough pass give room.
    pub(crate) thorough: tokio::sync::Mutex<()>,
    /// Who waits for room on the disks.
    pub(crate) room_wanted: Waiting,
    /// Requests that wait for a pass.
    pub(crate) reclaim_hurried: Waiting,
    /// Who waits for the end of the pass that runs, and wants nothing of it.
    pub(crate) reclaim_awaited: Waiting,
    pub(crate) kept_off: KeptOff,
    pub(crate) scrubbing: tokio::sync::Mutex<()>,
    pub(crate) upkeep: Upkeep,
    /// Held by who warms the cache.
    pub(crate) warming: tokio::sync::Mutex<()>,
    /// Whether the committer has found no room: the reclaimer is to make some.
    pub(crate) commit_lacks_room: AtomicBool,
    /// When the last pass ended, and whether it left packs that another one may empty.
    pub(crate) last_pass: Mutex<Option<Duration>>,
    pub(crate) is_pass_partial: AtomicBool,
    /// Whether it left clones that are to be pruned, and may keep what was dropped elsewhere.
    pub(crate) are_branches_left: AtomicBool,
    /// Whether it gave next to nothing.
    pub(crate) is_pass_in_vain: AtomicBool,
    /// Bytes that nobody needs, which it left among what is needed.
    pub(crate) dead_left_bytes: AtomicU64,
    /// Whether a commit ended since the last pass: without one a pass would find nothing.
    pub(crate) dropped_since_pass: AtomicBool,
    /// Bytes that were logged, as the store counts them, when the frames of the last commit ended; and those that replay found.
    pub(crate) journal_committed: AtomicU64,
    pub(crate) journal_replayed: AtomicU64,
    /// Bytes of content that commits dropped since the last pass.
    pub(crate) dropped_bytes: AtomicU64,
    /// The same of the commit at work, until it is one.
    pub(crate) commit_drops: AtomicU64,
    /// Free bytes as last measured.
    pub(crate) free_bytes: AtomicU64,
    /// The same for what asks for more than most, since then.
    pub(crate) free_of: Mutex<BTreeMap<Resilience, u64>>,
    /// Of the room on the disks.
    pub(crate) claims: Claims,
}

impl FileSystem {
    pub(crate) fn new(
        me: &Weak<FileSystem>,
        platform: &Platform,
        store: Arc<Store>,
        mut options: Options,
        roots: Roots,
    ) -> FileSystem {
        // A journal that is ahead, the one before it that the older superblock needs, and spare segments fit the reserve.
        options.commit_journal_bytes = options.commit_journal_bytes.min(store.reserve_bytes() / RESERVE_PARTS);
        FileSystem {
            platform: platform.clone(),
            trees: Trees::new(store.clone()),
            counters: Counters::default(),
            table: Table::new(options.inodes_max),
            buffers: Buffers::new(options.dirty_bytes_max),
            buffer: room::buffer(options.dirty_bytes_max, options.unlogged_files_max),
            records: room::records(options.commit_journal_bytes, options.uncommitted_files_max),
            readers: Readers::new(options.read_ahead_bytes_max),
            siblings: Siblings::new(options.directory_ahead_bytes_max.min(options.store.cache_bytes / 8)),
            walks: Siblings::new(options.directory_ahead_bytes_max.min(options.store.cache_bytes / 8)),
            batches: tokio::sync::Semaphore::new(batch_units(options.batch_bytes_max) as usize),
            batches_waiting: Waiting::default(),
            me: me.clone(),
            prefetchers: Arc::new(tokio::sync::Semaphore::new(PREFETCHERS)),
            options,
            gate: RwLock::new(0),
            namespace: Mutex::new(()),
            rename: tokio::sync::Mutex::new(()),
            snapshots: Mutex::new(BTreeMap::new()),
            branches: Mutex::default(),
            pruning: Mutex::default(),
            held_views: Mutex::default(),
            receipts: Receipts::default(),
            sends: tokio::sync::Semaphore::new(SENDS_MAX as usize),
            receives: tokio::sync::Semaphore::new(RECEIVES_MAX as usize),
            touched: Mutex::new(InodeSet::new()),
            touched_count: AtomicUsize::new(0),
            committing_count: AtomicUsize::new(0),
            unlogged: Mutex::new(InodeSet::new()),
            unlogged_count: AtomicUsize::new(0),
            flush_failure: Mutex::new(None),
            journal_failure: Mutex::new(None),
            flush_round: tokio::sync::Mutex::new(()),
            rounds_waiting: Waiting::default(),
            released: Notify::new(),
            references: Mutex::default(),
            removals: Removals::default(),
            is_commit_owed: AtomicBool::new(false),
            next_counter: AtomicU64::new(roots.next_counter.max(SNAPSHOTS.number + 1)),
            next_view: AtomicU32::new(roots.next_view.max(1)),
            raising: Raising::new(roots.is_raising),
            roots: Mutex::new(Arc::new(roots)),
            commit: tokio::sync::Mutex::new(()),
            snapshot_change: tokio::sync::Mutex::new(()),
            wants_flush: Notify::new(),
            wants_commit: Notify::new(),
            wants_reclaim: Notify::new(),
            mending: Mutex::default(),
            mended: Mutex::default(),
            wants_mending: Notify::new(),
            wants_raising: Notify::new(),
            wants_no_scrub: Notify::new(),
            wants_no_measuring: Notify::new(),
            flush_failed: Notify::new(),
            commit_ended: Notify::new(),
            commit_failure: Mutex::new(None),
            left_out: Mutex::default(),
            left_out_count: AtomicUsize::new(0),
            reclaim_failure: Mutex::new(None),
            is_stopping: AtomicBool::new(false),
            stopped: tokio::sync::Semaphore::new(0),
            grace: Grace::default(),
            reclaiming: tokio::sync::Mutex::new(()),
            thorough: tokio::sync::Mutex::new(()),
            room_wanted: Waiting::default(),
            reclaim_hurried: Waiting::default(),
            reclaim_awaited: Waiting::default(),
            kept_off: KeptOff::default(),
            scrubbing: tokio::sync::Mutex::new(()),
            upkeep: Upkeep::default(),
            warming: tokio::sync::Mutex::new(()),
            commit_lacks_room: AtomicBool::new(false),
            last_pass: Mutex::new(None),
            is_pass_in_vain: AtomicBool::new(false),
            is_pass_partial: AtomicBool::new(false),
            are_branches_left: AtomicBool::new(false),
            dead_left_bytes: AtomicU64::new(0),
            dropped_since_pass: AtomicBool::new(true),
            journal_committed: AtomicU64::new(store.counters().log_bytes.value()),
            journal_replayed: AtomicU64::new(store.journal_bytes()),
            dropped_bytes: AtomicU64::new(0),
            commit_drops: AtomicU64::new(0),
            free_bytes: AtomicU64::new(store.space().free),
            free_of: Mutex::default(),
            claims: Claims::default(),
            store,
        }
    }

    /// The inode of a node, from memory or the catalog. `NoEntry` if there is none.
    pub(crate) async fn inode(&self, node: Node) -> Result<Arc<Inode>, FileError> {
        if let Some(inode) = self.table.find(node) {
            return Ok(inode);
        }
        let _use = self.grace.enter(node.file.number);
        loop {
            if let Some(inode) = self.table.find(node) {
                return Ok(inode);
            }
            let roots = self.roots.lock().clone();
            let _time = self.platform.clock.timer(&self.counters.load);
            let catalog = self.catalog(&roots, node.view, node.file.branch).await?;
            self.counters.inode_loads.add(1);
            let value = self.load(&catalog, node.file).await?.ok_or(FileError::NoEntry)?;
            let inode = Arc::new(Inode::load(value));
            let is_current = || Arc::ptr_eq(&roots, &self.roots.lock());
            if let Some(inode) = self.table.insert(node, inode, is_current) {
                return Ok(inode);
            }
        }
    }

    /// Brings the inodes of files of one view into memory, neighbours in the catalog by one look-up. What cannot be had so is left
    /// to who asks for it.
    pub(crate) async fn load_neighbours(&self, view: View, files: &[FileId]) {
        let Some(&first) = files.first() else { return };
        let node = |number: u64| Node { view, file: first.beside(number) };
        let neighbours = files.iter().filter(|file| file.branch == first.branch).map(|file| file.number);
        let mut missing: Vec<u64> = neighbours.filter(|number| self.table.find(node(*number)).is_none()).collect();
        if missing.is_empty() {
            return;
        }
        missing.sort_unstable();
        let _use = self.grace.enter(first.number);
        let roots = self.roots.lock().clone();
        let _time = self.platform.clock.timer(&self.counters.load);
        let Ok(catalog) = self.catalog(&roots, view, first.branch).await else { return };
        let Ok(found) = self.trees.get_many(&catalog, &missing).await else { return };
        self.counters.inode_loads.add(found.len() as u64);
        for (file, bytes) in found {
            let Ok(value) = InodeValue::decode(first.beside(file), &bytes) else { continue };
            let is_current = || Arc::ptr_eq(&roots, &self.roots.lock());
            self.table.insert(node(file), Arc::new(Inode::load(value)), is_current);
        }
    }

    /// The catalog of a branch in a view. Those of the present's branches are replaced before `roots` is: who finds the same roots
    /// afterwards had the newest.
    pub(crate) async fn catalog(&self, roots: &Roots, view: View, branch: u32) -> Result<Root, FileError> {
        if let Some(branch) = self.branch(view, branch).await? {
            return Ok(branch.catalog);
        }
        match view {
            View::LIVE => Ok(roots.catalog.clone()),
            View(view) => Ok(self.snapshots.lock().get(&view).ok_or(FileError::Stale)?.catalog.clone()),
        }
    }

    /// A branch as a view has it; `None`: the main one.
    pub(crate) async fn branch(&self, view: View, branch: u32) -> Result<Option<BranchValue>, FileError> {
        if branch == 0 {
            return Ok(None);
        }
        let list = match view {
            View::LIVE => return self.branches.lock().get(&branch).cloned().map(Some).ok_or(FileError::Stale),
            View(view) => self.snapshots.lock().get(&view).ok_or(FileError::Stale)?.branches.clone(),
        };
        let bytes = self.trees.get(&list, u64::from(branch)).await?.ok_or(FileError::Stale)?;
        Ok(Some(decode_branch(u64::from(branch), &bytes)?.1))
    }

    /// The live inode of a file that still has a name or a user.
    pub(crate) async fn live(&self, file: FileId) -> Result<Arc<Inode>, FileError> {
        let inode = self.inode(Node::live(file)).await?;
        if inode.state.lock().is_gone { Err(FileError::NoEntry) } else { Ok(inode) }
    }

    /// What can be read of a list by numbers, and where the rest would be and why it cannot be read.
    pub(crate) async fn scan_list<T: Send>(
        &self,
        list: &Root,
        decode: fn(u64, &[u8]) -> Listed<T>,
    ) -> (BTreeMap<u32, T>, Vec<(u64, StoreError)>) {
        let (mut listed, mut lost, mut from) = (BTreeMap::new(), Vec::new(), Some(0));
        while let Some(at) = from {
            from = match self.trees.scan_past(list, at, 1000).await {
                Ok((entries, next)) => {
                    for (number, bytes) in entries {
                        match decode(number, &bytes) {
                            Ok((number, value)) => drop(listed.insert(number, value)),
                            Err(error) => lost.push((number, error)),
                        }
                    }
                    next
                }
                Err(Gap { error, next }) => {
                    lost.push((at, error));
                    next
                }
            };
        }
        (listed, lost)
    }

    pub(crate) async fn load(&self, catalog: &Root, file: FileId) -> Result<Option<InodeValue>, FileError> {
        let Some(bytes) = self.trees.get(catalog, file.number).await? else { return Ok(None) };
        let value = InodeValue::decode(file, &bytes)
            .map_err(|error| corrupt("inode", format!("catalog entry of {file}"), error))?;
        Ok(Some(value))
    }

    /// Bytes of frames that no commit covers.
    pub(crate) fn journal_ahead(&self) -> u64 {
        let committed = self.journal_committed.load(Ordering::SeqCst);
        let logged = self.store.counters().log_bytes.value();
        logged.saturating_sub(committed) + self.journal_replayed.load(Ordering::Relaxed)
    }

    /// Files with records that no commit covers, of those that a commit would help.
    pub(crate) fn uncommitted_files(&self) -> usize {
        let files = self.touched_count.load(Ordering::Relaxed) + self.committing_count.load(Ordering::Relaxed);
        self.helped_files(files)
    }

    /// Of so many files those that a commit would help.
    fn helped_files(&self, files: usize) -> usize {
        files.saturating_sub(self.left_out_count.load(Ordering::Relaxed))
    }

    /// Whether there is enough to commit.
    pub(crate) fn is_commit_due(&self) -> bool {
        self.journal_ahead() > self.options.commit_journal_bytes
            || self.helped_files(self.touched_count.load(Ordering::Relaxed)) > self.options.uncommitted_files_max
    }

    /// Whether so many commits are due that changes must wait for them.
    pub(crate) fn is_commit_late(&self, commits_ahead: u64) -> bool {
        let files = self.uncommitted_files();
        self.journal_ahead() > commits_ahead * self.options.commit_journal_bytes
            || files as u64 > commits_ahead * self.options.uncommitted_files_max as u64
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.platform.clock.now()
    }

    /// An id for a new file of the directory whose state this is.
    pub(crate) fn new_file(&self, directory: &mut State) -> Result<FileId, FileError> {
        if directory.ids.is_empty() {
            let start = self.new_files(ID_RUN)?.counter();
            directory.ids = start..start + ID_RUN;
        }
        let counter = directory.ids.start;
        directory.ids.start += 1;
        let number = FileId::new(self.node(), counter).expect("below FILES_MAX").number;
        Ok(directory.attributes.file.beside(number))
    }

    /// The first of so many ids for new files, of the main branch, that follow each other.
    ///
    /// # Errors
    /// `NoSpace` where the roots would say more than an opening believes: centuries of files, or somebody else's lie.
    pub(crate) fn new_files(&self, count: u64) -> Result<FileId, FileError> {
        let more = |next: u64| next.checked_add(count).filter(|next| *next <= FILES_MAX);
        let start = self.next_counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        let start = start.map_err(|_| FileError::NoSpace)?;
        Ok(FileId::new(self.node(), start).expect("below FILES_MAX"))
    }

    /// A number for a new snapshot or clone.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn new_view(&self) -> Result<u32, FileError> {
        let more = |next: u32| next.checked_add(1).filter(|next| *next <= VIEWS_MAX);
        let view = self.next_view.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        view.map_err(|_| FileError::NoSpace)
    }

    fn node(&self) -> NodeNumber {
        self.store.node()
    }

    /// Notes that a file has accepted data or an access time that no record has.
    pub(crate) fn note_unlogged(&self, inode: &Arc<Inode>) {
        let mut unlogged = self.unlogged.lock();
        unlogged.insert(inode.file, inode.clone());
        self.unlogged_count.store(unlogged.len(), Ordering::Relaxed);
        drop(unlogged);
        self.measure_buffer();
        if self.are_many_unlogged() {
            self.wants_flush.notify_one();
        }
    }

    /// Called after each change of `unlogged_count`.
    pub(crate) fn measure_buffer(&self) {
        self.buffer.measure(|allocated| allocated[FILES] = self.unlogged_count.load(Ordering::Relaxed) as u64);
    }

    /// Called after each change of what no commit covers.
    pub(crate) fn measure_records(&self) {
        self.records.measure(|allocated| {
            allocated[LOGGED] = self.journal_ahead();
            allocated[CHANGED] = self.uncommitted_files() as u64;
        });
    }

    /// Whether the flusher takes them all, due or not: long before writers have to wait.
    pub(crate) fn are_many_unlogged(&self) -> bool {
        self.unlogged_count.load(Ordering::Relaxed) > self.options.unlogged_files_max / 2
    }
}

/// Bytes of ours that make no sense although their checksum is right.
pub(crate) fn undecodable(what: &'static str, place: String, error: base::codec::DecodeError) -> StoreError {
    StoreError::Corrupt {
        what,
        path: place.into(),
        offset: error.offset as u64,
        expected: error.what.into(),
        found: "bytes that cannot be decoded".into(),
    }
}

/// The same as an error of this layer.
pub(crate) fn corrupt(what: &'static str, place: String, error: base::codec::DecodeError) -> FileError {
    FileError::Store(undecodable(what, place, error))
}

/// An entry of a list by numbers: its number, and what it is.
pub(crate) type Listed<T> = Result<(u32, T), StoreError>;

/// An entry of a list of branches: its number, which is never the main branch's, and what it is.
pub(crate) fn decode_branch(branch: u64, bytes: &[u8]) -> Listed<BranchValue> {
    let place = || format!("branch {branch}");
    let value = BranchValue::decode(bytes).map_err(|error| undecodable("branch", place(), error))?;
    match u32::try_from(branch) {
        Ok(number) if (1..VIEWS_MAX).contains(&number) => Ok((number, value)),
        _ => Err(untrue("branch", place(), "the number of a branch that a clone has", &branch)),
    }
}

/// What was decoded and cannot be true.
pub(crate) fn untrue(
    what: &'static str,
    place: String,
    expected: &'static str,
    found: &dyn std::fmt::Display,
) -> StoreError {
    StoreError::Corrupt {
        what,
        path: place.into(),
        offset: 0,
        expected: expected.into(),
        found: found.to_string().into(),
    }
}

/// A change of one or more files that takes effect whole or not at all: one journal frame.
///
/// Take it first, then the state locks; record; log. No waiting in between: the gate is held.
pub(crate) struct Transaction<'a> {
    system: &'a FileSystem,
    generation: RwLockReadGuard<'a, u64>,
    pub(crate) now: Timestamp,
    frame: Writer,
}

impl<'a> Transaction<'a> {
    pub(crate) fn begin(system: &'a FileSystem) -> Transaction<'a> {
        Transaction::begin_large(system, 0)
    }

    /// For records that carry about so many bytes of content.
    pub(crate) fn begin_large(system: &'a FileSystem, bytes: usize) -> Transaction<'a> {
        let generation = system.gate.read();
        Transaction { system, generation, now: system.now(), frame: Writer::with_capacity(512 + bytes) }
    }

    /// Files that nobody knew become known to who looks for their ids, and to the committer. The frame begins with their records.
    pub(crate) fn adopt(&mut self, unborn: Unborn) {
        assert!(self.frame.bytes().is_empty(), "what nobody knew comes first");
        self.frame = unborn.frame;
        for inode in &unborn.inodes {
            let bytes = {
                let mut state = inode.state.lock();
                state.generation = *self.generation;
                state.xattr_bytes()
            };
            let (node, table) = (Node::live(inode.file), &self.system.table);
            let inserted = table.insert(node, Arc::clone(inode), || true);
            inserted.expect("a new id is in no table, and nothing can be newer");
            table.weigh(node, bytes);
        }
        // Not over the locks of shards: who has one of those may wait for a state, and who has that for this set. No commit comes in between.
        let mut touched = self.system.touched.lock();
        touched.extend(unborn.inodes.into_iter().map(|inode| (inode.file, inode)));
        self.system.touched_count.store(touched.len(), Ordering::Relaxed);
    }

    /// Applies a change to a file and puts its record into the frame.
    pub(crate) fn record(&mut self, inode: &Arc<Inode>, state: &mut State, change: Change) {
        let version = encode_record(inode.file, &state.version, self.now, &change, &mut self.frame);
        self.system.touch(inode, state, *self.generation);
        state.apply(Record { file: inode.file, version, time: self.now, change });
    }

    /// Hands the frame to the journal. It is accepted now, local after a `sync_log` of the position.
    pub(crate) fn log(self) -> Position {
        assert!(self.frame.bytes().len() <= FRAME_BYTES_MAX, "an operation's records fit one frame");
        let system = self.system;
        if self.frame.bytes().is_empty() {
            return system.store.last_logged();
        }
        let position = system.store.log(self.frame.bytes());
        drop(self.generation);
        system.measure_records();
        if system.store.pending_log_bytes() > system.options.pending_log_bytes {
            // Its promise is kept, and memory with it.
            system.wants_flush.notify_one();
        }
        if system.is_commit_due() {
            system.wants_commit.notify_one();
        }
        position
    }
}

/// Files that nobody knows yet, with the records that make them: what a large transaction can do before it holds the gate.
pub(crate) struct Unborn {
    now: Timestamp,
    frame: Writer,
    inodes: Vec<Arc<Inode>>,
}

impl Unborn {
    pub(crate) fn new(now: Timestamp, bytes: usize) -> Unborn {
        Unborn { now, frame: Writer::with_capacity(bytes), inodes: Vec::new() }
    }

    /// Bytes of their records.
    pub(crate) fn frame_bytes(&self) -> usize {
        self.frame.bytes().len()
    }

    /// A new file comes into being by these changes.
    pub(crate) fn bear(&mut self, file: FileId, changes: impl IntoIterator<Item = Change>) -> Arc<Inode> {
        let inode = Arc::new(Inode::unborn(file));
        let mut state = inode.state.lock();
        for change in changes {
            let version = encode_record(file, &state.version, self.now, &change, &mut self.frame);
            state.apply(Record { file, version, time: self.now, change });
        }
        drop(state);
        self.inodes.push(inode.clone());
        inode
    }
}

impl FileSystem {
    /// Sees to it that the records of `generation` alone go into `active` (I-32), and that the committer knows the inode.
    pub(crate) fn touch(&self, inode: &Arc<Inode>, state: &mut State, generation: u64) {
        if state.generation != generation {
            if state.active.is_touched {
                state.freeze(generation);
            }
            state.generation = generation;
        }
        if !state.active.is_touched {
            let mut touched = self.touched.lock();
            touched.insert(inode.file, inode.clone());
            self.touched_count.store(touched.len(), Ordering::Relaxed);
        }
    }
}
