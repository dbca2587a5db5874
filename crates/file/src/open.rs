//! Formatting, opening and closing: from disks to a file system and back.
//!
//! Opening reads the superblock's roots and replays the journal behind them, through the same [`State::apply`] that live
//! operations use. So its time is that of the journal suffix, whatever the size of the file system.
//!
//! I-80  Each replayed record continues its file's version: sequence and chain. What does not is damage, and nothing is opened until somebody
//!       gives it up.
//! I-81  After a crash nobody has a file open: unlinked files end here.
//! I-82  Who goes on where another process stopped brings its references: what they count does not end.
//! I-83  What the check can judge and the repair can mend does not keep the file system from being opened; only records that cannot be
//!       applied do, until somebody gives them up: those of their file from there on, or, where one cannot be read, all that follow it. The
//!       next commit covers what was given up, also if there is nothing else.
//! I-161 A record of a clone that the superblock knew of (a number is given once, and rises), and that is not in its list, is of one that had gone:
//!       who had a file of it in hand changed that while the commit took the clone out of the list. It is passed over, if all of the list was read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use base::codec::Reader;
use base::id::{FileId, NodeNumber, Position};
use bytes::Bytes;
use platform::Platform;
use platform::disk::Disk;
use store::{Domain, RecoveryReport, Store, StoreError};

use crate::attributes::{Attributes, Node};
use crate::failure::{FileError, is_loss};
use crate::format::{BranchValue, Change, Record, Root, Roots, Xattrs, decode_record};
use crate::inode::Inode;
use crate::namespace::has_entries;
use crate::system::{FileSystem, Options, RECEIVES_MAX, SENDS_MAX, Transaction, batch_units, corrupt, untrue};
use crate::tree::Gap;

/// Flusher, committer, reclaimer, mender, raiser, scrubber, measurer, layout upkeep, remover.
const BACKGROUND_TASKS: u32 = 9;

/// What opening did.
#[derive(Clone, Debug)]
pub struct OpenReport {
    /// Frames that the journal had behind the superblock.
    pub frames: u64,
    /// Records in them.
    pub records: u64,
    /// Of these, those of clones that had gone before (I-161).
    pub passed_over: u64,
    /// Unlinked files that nobody has open any more, ended now.
    pub orphans: u64,
    /// What could not be read, and was done without.
    pub problems: Vec<String>,
    /// Files whose records were given up ([`Options::gives_up_records`]).
    pub given_up: BTreeSet<FileId>,
    /// From where on the rest of the journal was, if it was.
    pub rest_given_up: Option<String>,
    /// What the store did.
    pub store: RecoveryReport,
}

/// Makes a node of empty disks: identities, superblock, and a root directory with this owner.
///
/// # Errors
/// The store's, among them `Refused` for disks that hold something.
pub async fn format_node(
    platform: &Platform,
    disks: &[Disk],
    node: NodeNumber,
    uid: u32,
    gid: u32,
) -> Result<(), FileError> {
    Store::create(platform, disks, node, &Roots::default().encode()).await?;
    make_root(platform, disks, (uid, gid)).await
}

/// The same, as a node of a dedup domain that there is.
///
/// # Errors
/// As there.
pub async fn format_node_in(
    domain: &Domain,
    platform: &Platform,
    disks: &[Disk],
    node: NodeNumber,
    owner: (u32, u32),
) -> Result<(), FileError> {
    Store::create_in(domain, platform, disks, node, &Roots::default().encode()).await?;
    make_root(platform, disks, owner).await
}

async fn make_root(platform: &Platform, disks: &[Disk], owner: (u32, u32)) -> Result<(), FileError> {
    let options = Options::default();
    let (store, _) = Store::open(platform, disks, options.store.clone()).await?;
    let system = FileSystem::new(&Weak::new(), platform, store, options, Roots::default());
    let attributes = Attributes::empty_directory(FileId::ROOT, FileId::ROOT, 0o755, owner, system.now());
    let root = Arc::new(Inode::unborn(FileId::ROOT));
    system.table.insert(Node::live(FileId::ROOT), root.clone(), || true);
    {
        let mut transaction = Transaction::begin(&system);
        let mut state = root.state.lock();
        transaction.record(&root, &mut state, Change::Create { attributes, target: Bytes::new() });
        drop(state);
        transaction.log();
    }
    system.commit().await?;
    system.store.close().await?;
    Ok(())
}

impl FileSystem {
    /// Opens the file system on the disks of a node and starts its background tasks.
    ///
    /// # Errors
    /// The store's; `Store(Corrupt)` for a journal that does not continue the trees.
    pub async fn open(
        platform: &Platform,
        disks: &[Disk],
        options: Options,
    ) -> Result<(Arc<FileSystem>, OpenReport), FileError> {
        FileSystem::open_in_use(platform, disks, options, &[]).await
    }

    /// Opens it for a front end that has these references, counted in another process ([`FileSystem::references`]).
    ///
    /// # Errors
    /// As `open`.
    pub async fn open_in_use(
        platform: &Platform,
        disks: &[Disk],
        options: Options,
        references: &[(FileId, u32)],
    ) -> Result<(Arc<FileSystem>, OpenReport), FileError> {
        let (store, recovered) = Store::open(platform, disks, options.store.clone()).await?;
        let roots = Roots::decode(&recovered.roots)
            .map_err(|error| corrupt("the file layer's roots", "superblock".to_owned(), error))?;
        let next_view = roots.next_view;
        let system = Arc::new_cyclic(|me| FileSystem::new(me, platform, store, options, roots));
        let mut report = OpenReport {
            frames: recovered.frames.len() as u64,
            records: 0,
            passed_over: 0,
            orphans: 0,
            problems: Vec::new(),
            given_up: BTreeSet::new(),
            rest_given_up: None,
            store: recovered.report,
        };
        report.problems = system.load_snapshots().await?;
        let lost_branches = system.load_branches().await?;
        let known_below = if lost_branches.is_empty() { next_view } else { 0 };
        report.problems.extend(lost_branches);
        let catalog = system.roots.lock().catalog.clone();
        report.problems.extend(system.count_beyond(&catalog).await);
        for (position, frame) in recovered.frames {
            system.replay(position, &frame, known_below, &mut report).await?;
            if report.rest_given_up.is_some() {
                break;
            }
        }
        let gave_up = report.rest_given_up.is_some() || !report.given_up.is_empty();
        system.is_commit_owed.store(gave_up, Ordering::SeqCst);
        references.iter().for_each(|(file, count)| system.references.lock().add(*file, *count));
        system.end_orphans(&mut report).await?;
        system.measure_records();
        platform.tasks.spawn("flusher", Box::pin(system.clone().run_flusher()));
        platform.tasks.spawn("committer", Box::pin(system.clone().run_committer()));
        platform.tasks.spawn("reclaimer", Box::pin(system.clone().run_reclaimer()));
        platform.tasks.spawn("mender", Box::pin(system.clone().run_mender()));
        platform.tasks.spawn("raiser", Box::pin(system.clone().run_raiser()));
        platform.tasks.spawn_behind("scrubber", Box::pin(system.clone().run_scrubber()));
        platform.tasks.spawn_behind("measurer", Box::pin(system.clone().run_measurer()));
        system.begin_upkeep();
        platform.tasks.spawn("remover", Box::pin(system.clone().run_remover()));
        Ok((system, report))
    }

    /// Ends the background tasks, flushes and commits. Nothing is to be changed afterwards, also if it fails.
    ///
    /// # Errors
    /// Why something accepted could not be made local.
    pub async fn close(&self) -> Result<(), FileError> {
        self.is_stopping.store(true, Ordering::SeqCst);
        // Before any wait for others: what was accepted is kept as soon as can be. Whether all is comes out below.
        let _ = self.sync_all().await;
        self.wants_flush.notify_one();
        self.wants_commit.notify_one();
        self.wants_reclaim.notify_one();
        self.wants_no_scrub.notify_one();
        self.wants_no_measuring.notify_one();
        self.upkeep.wants_end.notify_one();
        self.wants_mending.notify_one();
        self.wants_raising.notify_one();
        self.removals.wanted.notify_one();
        // They see that it ends (`is_ending`).
        for (places, most) in [(&self.sends, SENDS_MAX), (&self.receives, RECEIVES_MAX)] {
            places.acquire_many(most).await.expect("never closed").forget();
        }
        let batches = batch_units(self.options.batch_bytes_max);
        self.batches.acquire_many(batches).await.expect("never closed").forget();
        let all = self.stopped.acquire_many(BACKGROUND_TASKS).await.expect("never closed");
        all.forget();
        // Passes of reclaim, checks of the trees, chunks that are moved on request, and scrubs end soon.
        drop(self.reclaiming.lock().await);
        drop(self.scrubbing.lock().await);
        let flushed = self.sync_all().await;
        let committed = self.commit().await;
        // After what somebody waits for.
        self.end_prefetch().await;
        let closed = self.store.close().await.map_err(FileError::from);
        flushed.and(committed).and(closed)
    }

    /// Whether its disks could be opened again from these directories once it is closed.
    ///
    /// # Errors
    /// Which one could not, and why.
    pub async fn could_open_again(&self, disks: &[Disk], goes_without: bool) -> Result<(), FileError> {
        Ok(self.store.could_open_again(disks, goes_without).await?)
    }

    /// Lets go of its disks' locks: the last thing that a process does with it.
    pub fn unlock_disks(&self) {
        self.store.unlock_disks();
    }

    /// Takes the records of a frame into memory. Of branches whose numbers are below `known_below` the superblock's list has all that there were.
    async fn replay(
        &self,
        position: Position,
        frame: &[u8],
        known_below: u32,
        report: &mut OpenReport,
    ) -> Result<(), FileError> {
        let mut reader = Reader::new(frame);
        let mut count = 0;
        while reader.remaining() > 0 {
            count += 1;
            report.records += 1;
            let place = || format!("frame {}, record {count}", position.0);
            let (record, covered) = match decode_record(&mut reader) {
                Ok(decoded) => decoded,
                Err(error) => {
                    let error = corrupt("journal record", place(), error);
                    if !self.options.gives_up_records {
                        return Err(error);
                    }
                    // Nobody knows where the next one begins, or of which files they are.
                    report.problems.push(format!("all changes from {} on are given up: {error}", place()));
                    report.rest_given_up = Some(place());
                    return Ok(());
                }
            };
            // Also of what is given up: others may name it.
            if record.file.node() == self.store.node() {
                self.next_counter.fetch_max(record.file.counter() + 1, Ordering::SeqCst);
            }
            if report.given_up.contains(&record.file) {
                continue;
            }
            let branch = record.file.branch;
            if (1..known_below).contains(&branch) && !self.branches.lock().contains_key(&branch) {
                report.passed_over += 1;
                continue;
            }
            let inode = match self.replayed_inode(&record, report).await {
                Ok(inode) => inode,
                Err(error) if self.options.gives_up_records && error.is_loss() => {
                    report.problems.push(format!("changes of file {} are given up: {error}", record.file));
                    report.given_up.insert(record.file);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let mut state = inode.state.lock();
            let expected = base::hash::chain(state.version.chain, covered);
            if record.version.sequence != state.version.sequence + 1 || record.version.chain != expected {
                let place = format!("{}, {}", place(), record.file);
                let found = format!("version {} after {}", record.version.sequence, state.version.sequence);
                let error = untrue("journal record", place, "the next version of its file", &found);
                if !self.options.gives_up_records {
                    return Err(error.into());
                }
                report.problems.push(format!("changes of file {} are given up: {error}", record.file));
                report.given_up.insert(record.file);
                let is_branch = matches!(record.change, Change::Branch { .. });
                let is_begun = is_branch || state.version.sequence == 0;
                drop(state);
                // Of what begins with it nothing may stay.
                if is_branch {
                    self.branches.lock().remove(&record.file.branch);
                }
                if is_begun {
                    self.table.remove(Node::live(record.file));
                }
                continue;
            }
            self.touch(&inode, &mut state, 0);
            if matches!(record.change, Change::Write { .. }) {
                state.allocated = None;
            }
            state.apply(record);
        }
        Ok(())
    }

    async fn replayed_inode(&self, record: &Record, report: &mut OpenReport) -> Result<Arc<Inode>, FileError> {
        let node = Node::live(record.file);
        let branch = record.file.branch;
        if let Change::Branch { catalog, root, attributes } = &record.change {
            if self.branches.lock().contains_key(&branch) {
                let place = record.file.to_string();
                return Err(untrue("journal record", place, "a branch that is new", &"one that exists").into());
            }
            // Of a snapshot that came from another node.
            report.problems.extend(self.count_beyond(catalog).await);
            self.begin_branch(record.file, catalog.clone(), *root, attributes.parent);
            let loaded = self.inode(node).await;
            if loaded.is_err() {
                self.branches.lock().remove(&branch);
            }
            return loaded;
        }
        if branch != 0 && !self.branches.lock().contains_key(&branch) {
            let found = "no clone that it could be of";
            return Err(untrue("journal record", record.file.to_string(), "a file that exists", &found).into());
        }
        if let Change::Create { .. } = record.change
            && self.table.find(node).is_none()
        {
            let unborn = Arc::new(Inode::unborn(record.file));
            return Ok(self.table.insert(node, unborn, || true).expect("nothing else runs"));
        }
        let inode = self.inode(node).await.map_err(|error| match error {
            FileError::NoEntry => {
                untrue("journal record", record.file.to_string(), "a file that exists", &"none in the catalog").into()
            }
            error => error,
        })?;
        if matches!(record.change, Change::Xattr { .. }) {
            match self.load_xattrs(&inode).await {
                Err(error) if self.options.gives_up_records && error.is_loss() => {
                    // They are lost, and nothing else of the file: this record begins a new list.
                    inode.state.lock().xattrs = Some(Xattrs::new());
                    let file = record.file;
                    report.problems.push(format!("the extended attributes of file {file} are given up: {error}"));
                }
                loaded => loaded?,
            }
        }
        Ok(inode)
    }

    /// Ends files that had lost their last name but not their last user, and goes on removing trees (I-127).
    async fn end_orphans(&self, report: &mut OpenReport) -> Result<(), FileError> {
        // What the journal changed is as it says; of what it did not the lists know.
        let touched: BTreeMap<FileId, bool> = {
            let touched = self.touched.lock();
            let is_orphan = |inode: &Arc<Inode>| {
                let state = inode.state.lock();
                !state.is_gone && state.attributes.links == 0
            };
            touched.iter().map(|(file, inode)| (*file, is_orphan(inode))).collect()
        };
        let is_known = |file: &FileId| touched.contains_key(file);
        let of_journal = || touched.iter().filter(|(_, is_orphan)| **is_orphan).map(|(file, _)| *file);
        let lists = self.lists_of_orphans();
        let mut lost = Lost::default();
        // Trees first: a commit that fails keeps none of them from being removed.
        for what in [Ends::Trees, Ends::Others] {
            let mut goes_on = self.end_some(of_journal(), what, &mut lost, report).await?;
            for (none, list) in &lists {
                let mut from = Some(0).filter(|_| goes_on);
                while let Some(at) = from {
                    let (numbers, next) = self.some_orphans(list, at, &mut lost).await?;
                    let files = numbers.into_iter().map(|number| none.beside(number)).filter(|file| !is_known(file));
                    goes_on = self.end_some(files, what, &mut lost, report).await?;
                    from = next.filter(|_| goes_on);
                }
            }
            // The second time the same is met.
            lost.is_told = true;
        }
        report.problems.append(&mut lost.words);
        if let further @ 1.. = lost.count.saturating_sub(1) {
            report.problems.push(format!("{further} further unlinked files cannot be ended"));
        }
        Ok(())
    }

    /// The lists of unlinked files, each with an id of its branch. They may be long.
    fn lists_of_orphans(&self) -> Vec<(FileId, Root)> {
        let mut lists = vec![(FileId::NONE, self.roots.lock().orphans.clone())];
        let of_branch =
            |(branch, value): (&u32, &BranchValue)| (FileId { branch: *branch, number: 0 }, value.orphans.clone());
        lists.extend(self.branches.lock().iter().map(of_branch));
        lists
    }

    /// What can be read of a part of a list, and where the next one begins.
    async fn some_orphans(&self, list: &Root, at: u64, lost: &mut Lost) -> Result<(Vec<u64>, Option<u64>), FileError> {
        match self.trees.scan_past(list, at, 1000).await {
            Ok((entries, next)) => Ok((entries.into_iter().map(|(number, _)| number).collect(), next)),
            Err(Gap { error, next }) if is_loss(&error) => {
                lost.note_gap(&error);
                Ok((Vec::new(), next))
            }
            Err(Gap { error, .. }) => Err(error.into()),
        }
    }

    /// Ends those of these files that have lost their last name and nobody uses. `false`: that has to wait for the next opening.
    async fn end_some(
        &self,
        files: impl Iterator<Item = FileId>,
        what: Ends,
        lost: &mut Lost,
        report: &mut OpenReport,
    ) -> Result<bool, FileError> {
        for file in files {
            let inode = match self.inode(Node::live(file)).await {
                Ok(inode) => inode,
                // It takes room until the repair; nothing else.
                Err(error) if error.is_loss() || matches!(error, FileError::NoEntry | FileError::Stale) => {
                    lost.note(file, &error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let is_tree = {
                let state = inode.state.lock();
                if state.is_gone || state.attributes.links > 0 {
                    continue;
                }
                has_entries(&state)
            };
            match what {
                Ends::Trees if is_tree => self.removals.add(file),
                Ends::Others if !is_tree && !self.references.lock().has(file) => {
                    self.end_if_unused(&inode);
                    report.orphans += 1;
                    let is_much = self.touched.lock().len() > self.options.uncommitted_files_max;
                    // Nobody commits beside us yet, and they are in memory until then.
                    if is_much && let Err(error) = self.commit().await {
                        report.problems.push(format!("the next opening ends further unlinked files: {error}"));
                        return Ok(false);
                    }
                }
                Ends::Trees | Ends::Others => {}
            }
        }
        Ok(true)
    }
}

/// Which unlinked files are ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// Removed trees wait to be emptied.
    Trees,
    /// Everything else is no more.
    Others,
}

/// Unlinked files that cannot be ended. There may be as many as a list that lies has room for.
#[derive(Default)]
struct Lost {
    is_told: bool,
    count: u64,
    /// Of the first one, and of what cannot be read of the lists.
    words: Vec<String>,
}

impl Lost {
    fn note(&mut self, file: FileId, error: &FileError) {
        self.count += u64::from(!self.is_told);
        if !self.is_told && self.count == 1 {
            self.words.push(format!("the unlinked file {file} cannot be ended: {error}"));
        }
    }

    fn note_gap(&mut self, error: &StoreError) {
        if !self.is_told {
            self.words.push(format!("the list of unlinked files: {error}"));
        }
    }
}
