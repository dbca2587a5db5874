//! Removing a directory with everything below it: at once for who asks, and behind for what is in it.
//!
//! I-127 A directory without links that has entries is a tree that was removed: it is in the list of unlinked files, and waits among the
//!       removals, from the record that took its name on, and after each opening until it is empty. Nothing is made in it or below any more.
//! I-128 What a removed tree has goes name by name, each with the link that it counts, so that what has a name elsewhere stays, and what is
//!       open until it is closed. A directory goes with a tree only if it says itself that it lies there.
//! I-129 A clone is its branch: without a name, and where no other clone lies in it, its entries go without a look at what they lead to, and
//!       with its top the whole branch (I-110).
//!
//! Not here: which trees wait (`removals`), that a name goes (`namespace`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base::id::FileId;
use platform::task::first;
use store::{Pace, Share};

use crate::attributes::{Kind, Node, View};
use crate::failure::FileError;
use crate::format::{Change, Entry};
use crate::inode::Inode;
use crate::namespace::{Removal, change_directory, expect_below, is_of_snapshots};
use crate::removals::HearOfLinks;
use crate::system::{FileSystem, Transaction};

/// Names that go by one frame, about.
const STEP: usize = 512;
/// A name that goes, and its file with it.
const NAME_BYTES: u64 = 300;
/// Until it is tried again what failed, for want of commits mostly.
const PAUSE: Duration = Duration::from_secs(1);
/// Half of the time, where nobody else wants it.
const SHARE_PERCENT: u8 = 50;

/// A name, and what it leads to if that can be had.
type Named = (u64, Entry, Option<Arc<Inode>>);

impl FileSystem {
    /// Removes a name and everything below it. It is gone when this returns, whatever the size, and local after a [`FileSystem::sync`] of
    /// anything; what it took comes back behind. Files that have names elsewhere, or are open, stay as long as that.
    ///
    /// # Errors
    /// `NoEntry`, `NotPermitted` for snapshots, or the store's.
    pub async fn batch_remove(&self, parent: FileId, name: &[u8]) -> Result<(), FileError> {
        self.remove(parent, name, Removal::Tree).await
    }

    /// The same of several names of one directory, directories only if they are meant; what came of each, by its place. Those of files go some
    /// hundred by one frame, of which a crash leaves all or none.
    pub async fn batch_remove_names(
        &self,
        parent: FileId,
        names: &[&[u8]],
        directories_too: bool,
    ) -> Vec<Result<(), FileError>> {
        let what = if directories_too { Removal::Tree } else { Removal::File };
        let mut removed = Vec::with_capacity(names.len());
        for names in names.chunks(STEP) {
            let together = self.remove_files(parent, names).await;
            for (place, name) in names.iter().enumerate() {
                removed.push(match together.as_ref().map(|together| together[place].clone()) {
                    Ok(Some(result)) => result,
                    // What is no file, and where commits fail.
                    Ok(None) | Err(_) => self.remove(parent, name, what).await,
                });
            }
        }
        removed
    }

    /// Removes those of the names that lead to files, by one frame. What came of each; `None`: it leads to something else, and is still there.
    async fn remove_files(
        &self,
        parent: FileId,
        names: &[&[u8]],
    ) -> Result<Vec<Option<Result<(), FileError>>>, FileError> {
        let count = names.len() as u64;
        let _room = self.admit_removals(count * NAME_BYTES, count).await?;
        let directory = self.live(parent).await?;
        self.refuse_left_out(&directory)?;
        let _operation = directory.operation.lock().await;
        let mut removed = Vec::with_capacity(names.len());
        let (mut places, mut files, mut taken) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (place, name) in names.iter().enumerate() {
            let slots = self.slots(&directory, name).await?;
            removed.push(match slots.find(name) {
                // The list of snapshots has no entry.
                None => (!is_of_snapshots(parent, name)).then_some(Err(FileError::NoEntry)),
                Some((cookie, _)) if !taken.insert(cookie) => Some(Err(FileError::NoEntry)),
                Some((cookie, entry)) if is_of_file(entry, parent) => {
                    files.push(entry.file);
                    places.push((place, cookie, entry.clone()));
                    Some(Ok(()))
                }
                Some(_) => None,
            });
        }
        self.load_neighbours(View::LIVE, &files).await;
        let mut named: Vec<Named> = Vec::with_capacity(places.len());
        for (place, cookie, entry) in places {
            match self.live(entry.file).await {
                Ok(inode) => named.push((cookie, entry, Some(inode))),
                Err(error) => removed[place] = Some(Err(error)),
            }
        }
        if !named.is_empty() {
            self.take_names(&directory, &named);
            self.counters.namespace_changes.add(named.len() as u64);
        }
        Ok(removed)
    }

    /// Has somebody hear of files that are in use and have a name less, because a tree that it was in goes behind: also of those since the
    /// opening that nobody has heard of. Of several who want to the last does; one that is not there any more gives false.
    pub fn hear_of_links(&self, hear: impl Fn(FileId) -> bool + Send + Sync + 'static) {
        let missed = {
            let mut hearing = self.removals.hear.lock();
            hearing.hear = Some(Arc::new(hear));
            std::mem::take(&mut hearing.missed)
        };
        missed.into_iter().for_each(|file| self.tell_of_links(file));
    }

    /// [`FileSystem::tell_of_links`] for one that somebody may know.
    pub(crate) fn tell_if_known(&self, file: FileId) {
        if self.is_referenced(file) {
            self.tell_of_links(file);
        }
    }

    /// Has those hear who want to that a file's count of names, or what else of its attributes, has changed by another way than theirs.
    pub(crate) fn tell_of_links(&self, file: FileId) {
        let mut asked: Option<HearOfLinks> = None;
        loop {
            let hear = {
                let mut hearing = self.removals.hear.lock();
                match &hearing.hear {
                    Some(hear) if !asked.as_ref().is_some_and(|asked| Arc::ptr_eq(asked, hear)) => Arc::clone(hear),
                    // Nobody is there, or any more.
                    _ => {
                        if self.is_referenced(file) {
                            hearing.missed.insert(file);
                        }
                        return;
                    }
                }
            };
            // The kernel may take its time: who comes to hear meanwhile does not wait for that.
            if hear(file) {
                return;
            }
            asked = Some(hear);
        }
    }

    /// Directories of removed trees that still have something.
    #[must_use]
    pub fn removing(&self) -> u64 {
        self.removals.waiting() as u64
    }

    /// Removes what waits, without pauses: somebody needs the room, or the trees without it.
    ///
    /// # Errors
    /// Why commits fail, or the store's.
    pub async fn finish_removals(&self) -> Result<(), FileError> {
        if self.removing() == 0 {
            return Ok(());
        }
        let _hurry = self.removals.hurry();
        self.remove_behind().await
    }

    /// The background task that removes what has lost its name.
    pub(crate) async fn run_remover(self: Arc<Self>) {
        while !self.is_ending() {
            self.removals.wanted.notified().await;
            while !self.is_ending() && self.remove_behind().await.is_err() {
                first(self.removals.wanted.notified(), self.platform.tasks.sleep(PAUSE)).await;
            }
        }
        self.stopped.add_permits(1);
    }

    async fn remove_behind(&self) -> Result<(), FileError> {
        let _one = self.removals.work.lock().await;
        let of_time = || Share::percent(SHARE_PERCENT).filter(|_| !self.removals.are_hurried()).unwrap_or(Share::FULL);
        let goes_on = || !self.is_ending();
        let calls = || self.calls();
        let pace = Pace::new(&self.platform, &of_time, &goes_on).beside(&calls);
        while let Some((directory, after)) = self.removals.next() {
            if !pace.step().await {
                break;
            }
            let _room = self.admit_remover(STEP as u64 * NAME_BYTES, STEP as u64).await?;
            match self.remove_some(directory, after).await {
                Ok(Some(after)) => self.removals.go_on(directory, after),
                Ok(None) => self.removals.end(directory),
                Err(error) if error.is_unreadable() => self.removals.put_aside(directory, error),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes some names off a directory. Gives the cookie to go on after; `None`: there are no more.
    pub(crate) async fn remove_some(&self, file: FileId, after: u64) -> Result<Option<u64>, FileError> {
        let directory = match self.live(file).await {
            Ok(directory) => directory,
            Err(FileError::NoEntry | FileError::Stale) => return Ok(None),
            Err(error) => return Err(error),
        };
        self.refuse_left_out(&directory)?;
        let _operation = directory.operation.lock().await;
        // I-162.
        let commit = if self.is_whole_branch(file) { Some(self.commit.lock().await) } else { None };
        let commit = commit.filter(|_| self.is_whole_branch(file));
        {
            // A repair has found it a name, or who had it open has ended it, also while this waited.
            let state = directory.state.lock();
            if state.is_gone || state.attributes.links > 0 {
                return Ok(None);
            }
        }
        let is_whole_branch = commit.is_some();
        if is_whole_branch {
            self.removals.note_ended();
        }
        if is_whole_branch && !self.references.lock().has(file) {
            self.end_tree(&directory);
            return Ok(None);
        }
        let (entries, end) = self.list_range(&directory, after, STEP).await?;
        let Some(last) = entries.last().map(|(cookie, _)| *cookie) else {
            if end < u64::MAX {
                return Ok(Some(end));
            }
            // Nothing came since it has no link, so what was passed is empty.
            self.end_tree(&directory);
            return Ok(None);
        };
        let files: Vec<FileId> = entries.iter().map(|(_, entry)| entry.file).collect();
        let mut named: Vec<Named> = Vec::with_capacity(entries.len());
        if !is_whole_branch {
            self.load_neighbours(View::LIVE, &files).await;
        }
        for (cookie, entry) in entries {
            let inode = if is_whole_branch { None } else { self.removed_file(entry.file).await? };
            named.push((cookie, entry, inode));
        }
        self.take_names(&directory, &named);
        self.counters.removing_entries.add(named.len() as u64);
        Ok(Some(last))
    }

    /// What a name leads to. What is lost keeps no name from going.
    async fn removed_file(&self, file: FileId) -> Result<Option<Arc<Inode>>, FileError> {
        match self.live(file).await {
            Ok(inode) => Ok(Some(inode)),
            Err(FileError::NoEntry | FileError::Stale) => Ok(None),
            Err(error) if error.is_loss() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// One frame: names go, and links with them. What it changes stays locked until it is logged: else who changes one of these files alone
    /// could log the next version of it first.
    fn take_names(&self, directory: &Arc<Inode>, named: &[Named]) {
        let mut files: BTreeMap<FileId, (&Arc<Inode>, u32)> = BTreeMap::new();
        for inode in named.iter().filter_map(|(_, _, inode)| inode.as_ref()) {
            files.entry(inode.file).or_insert((inode, 0)).1 += 1;
        }
        // Only an entry that lies leads there.
        files.remove(&directory.file);
        files.remove(&FileId::ROOT);
        let changed: Vec<FileId> = files.keys().copied().collect();
        let mut transaction = Transaction::begin(self);
        let namespace = self.namespace.lock();
        let mut held = Vec::with_capacity(files.len());
        for (inode, names) in files.into_values() {
            let mut state = inode.state.lock();
            let is_elsewhere = state.attributes.kind == Kind::Directory && state.attributes.parent != directory.file;
            for _ in 0..names {
                if !is_elsewhere && !state.is_gone {
                    self.drop_link(&mut transaction, inode, &mut state);
                }
            }
            held.push(state);
        }
        let mut state = directory.state.lock();
        for (cookie, _, _) in named {
            transaction.record(directory, &mut state, Change::Remove { cookie: *cookie });
        }
        let subdirectories = named.iter().filter(|(_, entry, _)| entry.kind == Kind::Directory).count();
        change_directory(&mut transaction, directory, &mut state, -(named.len() as i64), -(subdirectories as i64));
        transaction.log();
        drop((state, held, namespace));
        // Who comes to know of one from here on finds it changed.
        changed.into_iter().for_each(|file| self.tell_if_known(file));
    }

    /// A tree has nothing any more, or goes with all that it has; its directory stays while somebody uses it.
    fn end_tree(&self, directory: &Arc<Inode>) {
        let mut transaction = Transaction::begin(self);
        let mut state = directory.state.lock();
        if state.is_gone || state.attributes.links > 0 || self.references.lock().has(directory.file) {
            return;
        }
        self.end(&mut transaction, directory, &mut state);
        transaction.log();
    }

    /// Whether a directory is a clone that no other clone lies in.
    fn is_whole_branch(&self, directory: FileId) -> bool {
        let branches = self.branches.lock().clone();
        let is_top = branches.get(&directory.branch).is_some_and(|branch| branch.top == directory.number);
        let lies_in = |(branch, value): (&u32, &crate::format::BranchValue)| {
            let top = FileId { branch: *branch, number: value.top };
            let inode = self.table.find(Node::live(top)).filter(|_| value.top != 0);
            // Who was moved since the last commit is in memory.
            inode.map_or(value.above, |inode| inode.state.lock().attributes.parent).branch
        };
        is_top && !branches.iter().any(|value| lies_in(value) == directory.branch)
    }
}

/// Whether it goes with its name alone, as far as the entry says.
fn is_of_file(entry: &Entry, parent: FileId) -> bool {
    entry.kind != Kind::Directory && entry.file.branch == parent.branch && expect_below(entry, &[parent]).is_ok()
}
