//! Creating, linking, removing and renaming.
//!
//! Each operation: lock the directories, read what decides (this may wait for a disk), then in one [`Transaction`] check
//! what may have changed meanwhile, record, and log. The frame makes it atomic after a crash, the transaction in memory.
//!
//! I-55  A rename over a file logs the new file's accepted data before the rename.
//! I-56  An unlinked file stays until its last reference goes; then it is `Gone`. After a crash nobody has one.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::id::FileId;
use base::limits::{LINK_TARGET_BYTES_MAX, LINKS_MAX};
use base::time::Timestamp;
use bytes::Bytes;

use crate::acl;
use crate::admission::CHANGE_BYTES;
use crate::attributes::{Attributes, Kind, MODE_MASK, NewFile, Node, SET_GID, View};
use crate::directory::{check_name, expect_directory};
use crate::failure::FileError;
use crate::format::{Change, Entry};
use crate::inode::{Inode, State};
use crate::system::{FileSystem, SNAPSHOTS, SNAPSHOTS_NAME, Transaction, untrue};

/// A record that a file is no more, about.
const END_BYTES: u64 = 100;

/// What a rename does with a target that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces it.
    Replace,
    /// Fails with `Exists`.
    NoReplace,
    /// Swaps the two.
    Exchange,
}

/// What may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    /// Anything but a directory.
    File,
    /// An empty directory.
    Directory,
    /// Anything, with what is below it.
    Tree,
}

/// A new file's attributes and extended attributes, once its directory has had its say.
struct Birth {
    attributes: Attributes,
    target: Bytes,
    xattrs: Vec<(&'static [u8], Vec<u8>)>,
}

impl FileSystem {
    /// Makes a file of any kind.
    ///
    /// # Errors
    /// `Exists`, `NoEntry`, `NotDirectory`, `NameTooLong`, `NoSpace`, or the store's.
    pub async fn create_file(&self, parent: FileId, name: &[u8], new: &NewFile<'_>) -> Result<Attributes, FileError> {
        self.check_new_name(parent, name)?;
        let _room = self.admit_metadata(CHANGE_BYTES).await?;
        let directory = self.live(parent).await?;
        self.refuse_left_out(&directory)?;
        self.refuse_removed(&directory).await?;
        let _operation = directory.operation.lock().await;
        let cookie = self.free_cookie(&directory, name).await?;
        let default_acl = self.default_acl(&directory).await?;

        let mut transaction = Transaction::begin(self);
        let mut state = directory.state.lock();
        expect_directory(&state)?;
        let birth = self.birth(&mut state, new, default_acl.as_deref(), transaction.now)?;
        let (inode, attributes) = self.bear(&mut transaction, birth);
        let entry = Entry { file: inode.file, kind: new.kind, name: name.into() };
        transaction.record(&directory, &mut state, Change::Insert { cookie, entry });
        let subdirectories = i64::from(new.kind == Kind::Directory);
        change_directory(&mut transaction, &directory, &mut state, 1, subdirectories);
        transaction.log();
        self.counters.namespace_changes.add(1);
        Ok(attributes)
    }

    /// Makes a regular file without a name (O_TMPFILE). It goes with its last reference unless it is linked.
    ///
    /// # Errors
    /// As [`FileSystem::create_file`].
    pub async fn create_unnamed(&self, parent: FileId, new: &NewFile<'_>) -> Result<Attributes, FileError> {
        let directory = self.live(parent).await?;
        self.refuse_removed(&directory).await?;
        let default_acl = self.default_acl(&directory).await?;
        let _room = self.admit_metadata(CHANGE_BYTES).await?;
        let mut transaction = Transaction::begin(self);
        let mut state = directory.state.lock();
        expect_directory(&state)?;
        let mut birth = self.birth(&mut state, new, default_acl.as_deref(), transaction.now)?;
        birth.attributes.links = 0;
        let (_, attributes) = self.bear(&mut transaction, birth);
        transaction.log();
        Ok(attributes)
    }

    pub(crate) fn check_new_name(&self, parent: FileId, name: &[u8]) -> Result<(), FileError> {
        check_name(name)?;
        if is_of_snapshots(parent, name) { Err(FileError::Exists) } else { Ok(()) }
    }

    async fn default_acl(&self, directory: &Arc<Inode>) -> Result<Option<Vec<u8>>, FileError> {
        self.load_xattrs(directory).await?;
        let state = directory.state.lock();
        Ok(state.xattrs.as_ref().and_then(|xattrs| xattrs.get(acl::DEFAULT)).cloned())
    }

    /// What a new file will be.
    fn birth(
        &self,
        directory: &mut State,
        new: &NewFile<'_>,
        default_acl: Option<&[u8]>,
        now: Timestamp,
    ) -> Result<Birth, FileError> {
        let Inherited { mode, gid, xattrs } = inherited(&directory.attributes, new, default_acl)?;
        let is_directory = new.kind == Kind::Directory;
        let attributes = Attributes {
            file: self.new_file(directory)?,
            kind: new.kind,
            mode,
            uid: new.uid,
            gid,
            links: if is_directory { 2 } else { 1 },
            device: new.device,
            size: new.target.len() as u64,
            allocated: 0,
            accessed: now,
            modified: now,
            changed: now,
            born: now,
            parent: directory.attributes.file,
            is_preallocated: false,
            resilience: directory.attributes.resilience,
        };
        Ok(Birth { attributes, target: Bytes::copy_from_slice(new.target), xattrs })
    }

    fn bear(&self, transaction: &mut Transaction<'_>, birth: Birth) -> (Arc<Inode>, Attributes) {
        let attributes = birth.attributes.clone();
        let inode = Arc::new(Inode::unborn(attributes.file));
        let bytes = {
            // Nobody else knows the inode: this lock is never waited for.
            let mut state = inode.state.lock();
            let create = Change::Create { attributes: birth.attributes, target: birth.target };
            transaction.record(&inode, &mut state, create);
            for (name, value) in birth.xattrs {
                let change = Change::Xattr { name: name.to_vec(), value: Some(value) };
                transaction.record(&inode, &mut state, change);
            }
            state.xattr_bytes()
        };
        let node = Node::live(attributes.file);
        self.table.insert(node, inode.clone(), || true).expect("a new id is in no table, and nothing can be newer");
        self.table.weigh(node, bytes);
        (inode, attributes)
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// `Exists`, `NoEntry`, `NotPermitted` for a directory, `TooManyLinks`, or the store's.
    pub async fn link(&self, file: FileId, parent: FileId, name: &[u8]) -> Result<Attributes, FileError> {
        self.check_new_name(parent, name)?;
        refuse_between_branches(file, parent)?;
        let _room = self.admit_metadata(CHANGE_BYTES).await?;
        let inode = self.live(file).await?;
        let directory = self.live(parent).await?;
        self.refuse_left_out(&directory)?;
        self.refuse_removed(&directory).await?;
        if inode.state.lock().attributes.kind == Kind::Directory {
            return Err(FileError::NotPermitted("a directory has one name"));
        }
        let _operation = directory.operation.lock().await;
        let cookie = self.free_cookie(&directory, name).await?;

        let mut transaction = Transaction::begin(self);
        let _namespace = self.namespace.lock();
        let mut state = directory.state.lock();
        let mut target = inode.state.lock();
        expect_directory(&state)?;
        if target.is_gone {
            return Err(FileError::NoEntry);
        }
        if target.attributes.links >= LINKS_MAX {
            return Err(FileError::TooManyLinks);
        }
        let entry = Entry { file, kind: target.attributes.kind, name: name.into() };
        transaction.record(&directory, &mut state, Change::Insert { cookie, entry });
        change_directory(&mut transaction, &directory, &mut state, 1, 0);
        change_links(&mut transaction, &inode, &mut target, 1);
        transaction.log();
        self.counters.namespace_changes.add(1);
        Ok(self.show_attributes(&mut target))
    }

    /// Removes a name of a file that is no directory.
    ///
    /// # Errors
    /// `NoEntry`, `IsDirectory`, or the store's.
    pub async fn remove_file(&self, parent: FileId, name: &[u8]) -> Result<(), FileError> {
        self.remove(parent, name, Removal::File).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NoEntry`, `NotDirectory`, `NotEmpty`, or the store's.
    pub async fn remove_directory(&self, parent: FileId, name: &[u8]) -> Result<(), FileError> {
        self.remove(parent, name, Removal::Directory).await
    }

    pub(crate) async fn remove(&self, parent: FileId, name: &[u8], what: Removal) -> Result<(), FileError> {
        if is_of_snapshots(parent, name) {
            return Err(FileError::NotPermitted("snapshots are deleted by `hydrafs snapshot delete`"));
        }
        let _room = self.admit_change(true, CHANGE_BYTES).await?;
        let directory = self.live(parent).await?;
        self.refuse_left_out(&directory)?;
        let _operation = directory.operation.lock().await;
        let slots = self.slots(&directory, name).await?;
        let (cookie, entry) = slots.find(name).ok_or(FileError::NoEntry)?;
        let is_directory = entry.kind == Kind::Directory;
        match (is_directory, what) {
            (true, Removal::File) => return Err(FileError::IsDirectory),
            (false, Removal::Directory) => return Err(FileError::NotDirectory),
            _ => {}
        }
        expect_below(entry, &[parent])?;
        let inode = match self.live(entry.file).await {
            // The name of a clone that a damaged list has lost leads nowhere, and can go.
            Err(FileError::NoEntry | FileError::Stale) if entry.file.branch != parent.branch => {
                let mut transaction = Transaction::begin(self);
                let mut state = directory.state.lock();
                transaction.record(&directory, &mut state, Change::Remove { cookie });
                change_directory(&mut transaction, &directory, &mut state, -1, -1);
                transaction.log();
                return Ok(());
            }
            inode => inode?,
        };

        let mut transaction = Transaction::begin(self);
        let namespace = self.namespace.lock();
        let mut state = directory.state.lock();
        let mut target = inode.state.lock();
        if is_directory && target.attributes.size > 0 {
            if what != Removal::Tree {
                return Err(FileError::NotEmpty);
            }
            if target.attributes.parent != parent {
                let found = target.attributes.parent;
                return Err(
                    untrue("directory", inode.file.to_string(), "one that lies where its name is", &found).into()
                );
            }
            self.counters.removing_trees.add(1);
        }
        transaction.record(&directory, &mut state, Change::Remove { cookie });
        change_directory(&mut transaction, &directory, &mut state, -1, -i64::from(is_directory));
        self.drop_link(&mut transaction, &inode, &mut target);
        transaction.log();
        drop((target, state, namespace));
        self.counters.namespace_changes.add(1);
        if what == Removal::Tree {
            // It came by another way than the kernel's.
            self.tell_if_known(inode.file);
        }
        Ok(())
    }

    /// Takes a name away from a file, and the file itself if that was its last and nobody refers to it. A directory that has something is
    /// removed behind (I-127).
    pub(crate) fn drop_link(&self, transaction: &mut Transaction<'_>, inode: &Arc<Inode>, state: &mut State) {
        if state.attributes.kind == Kind::Directory {
            change_links(transaction, inode, state, -i64::from(state.attributes.links));
        } else {
            change_links(transaction, inode, state, -1);
        }
        if has_entries(state) {
            self.removals.add(inode.file);
            return;
        }
        let is_referenced = self.references.lock().has(inode.file);
        if state.attributes.links == 0 && !is_referenced {
            self.end(transaction, inode, state);
        }
    }

    /// Records that a file is no more and drops what was accepted for it.
    pub(crate) fn end(&self, transaction: &mut Transaction<'_>, inode: &Arc<Inode>, state: &mut State) {
        let dropped = state.discard(0..u64::MAX);
        transaction.record(inode, state, Change::Gone);
        self.release_dirty(dropped);
    }

    /// Renames. Replacing logs the new file's data first.
    ///
    /// # Errors
    /// `NoEntry`, `Exists`, `NotEmpty`, `IsDirectory`, `NotDirectory`, `Invalid` (a directory into itself), or the store's.
    pub async fn rename(
        &self,
        from: FileId,
        from_name: &[u8],
        to: FileId,
        to_name: &[u8],
        mode: RenameMode,
    ) -> Result<(), FileError> {
        check_name(from_name).map_err(|_| FileError::Invalid("a name that cannot be renamed"))?;
        if is_of_snapshots(from, from_name) {
            return Err(FileError::NotPermitted("snapshots are shown where they are"));
        }
        self.check_new_name(to, to_name)?;
        refuse_between_branches(from, to)?;
        let _room = self.admit_change(false, CHANGE_BYTES).await?;
        let _rename = if from == to { None } else { Some(self.rename.lock().await) };
        let source_directory = self.live(from).await?;
        let target_directory = self.live(to).await?;
        self.refuse_left_out(&source_directory)?;
        self.refuse_left_out(&target_directory)?;
        self.refuse_removed(&source_directory).await?;
        self.refuse_removed(&target_directory).await?;
        let (first, second) =
            if from <= to { (&source_directory, &target_directory) } else { (&target_directory, &source_directory) };
        let _first = first.operation.lock().await;
        let _second = if from == to { None } else { Some(second.operation.lock().await) };

        let slots = self.slots(&source_directory, from_name).await?;
        let (from_cookie, moved) = slots.find(from_name).ok_or(FileError::NoEntry)?;
        let target_slots = self.slots(&target_directory, to_name).await?;
        let replaced = target_slots.find(to_name);
        let source = self.live(moved.file).await?;
        match (replaced, mode) {
            (Some(_), RenameMode::NoReplace) => return Err(FileError::Exists),
            (None, RenameMode::Exchange) => return Err(FileError::NoEntry),
            _ => {}
        }
        self.check_no_loop(moved, to).await?;
        if let (Some((_, replaced)), RenameMode::Exchange) = (replaced, mode) {
            self.check_no_loop(replaced, from).await?;
        }
        let victim = match replaced {
            // Two names of one file: POSIX wants nothing done.
            Some((_, replaced)) if replaced.file == moved.file => return Ok(()),
            Some((_, replaced)) => Some(self.live(replaced.file).await?),
            None => None,
        };
        if let (Some((_, replaced)), RenameMode::Replace) = (replaced, mode) {
            match (moved.kind == Kind::Directory, replaced.kind == Kind::Directory) {
                (true, false) => return Err(FileError::NotDirectory),
                (false, true) => return Err(FileError::IsDirectory),
                // Over the directory that holds its name: that one has an entry. Its state would be locked twice below.
                _ if replaced.file == from => return Err(FileError::NotEmpty),
                _ => {}
            }
            self.flush_file(&source, self.options.inline_bytes_max).await?;
        }
        for entry in [Some(moved), replaced.map(|(_, replaced)| replaced)].into_iter().flatten() {
            expect_below(entry, &[from, to])?;
        }
        let to_cookie = match replaced {
            Some((cookie, _)) => cookie,
            None => target_slots.free()?,
        };

        let mut transaction = Transaction::begin(self);
        let _namespace = self.namespace.lock();
        let mut source_state = source_directory.state.lock();
        let mut target_state = if from == to { None } else { Some(target_directory.state.lock()) };
        expect_directory(target_state.as_deref().unwrap_or(&source_state))?;
        let mut moved_state = source.state.lock();
        let mut victim_state = victim.as_ref().map(|victim| victim.state.lock());
        let exchanged = replaced.filter(|_| mode == RenameMode::Exchange).map(|(_, entry)| entry);
        if let Some(victim) = victim_state.as_ref().filter(|_| exchanged.is_none())
            && victim.attributes.kind == Kind::Directory
            && victim.attributes.size > 0
        {
            return Err(FileError::NotEmpty);
        }

        // Entries: the source's goes or becomes the exchanged one; the target's becomes the moved one.
        let source_change = match exchanged {
            Some(entry) => {
                let entry = Entry { name: from_name.into(), ..entry.clone() };
                Change::Insert { cookie: from_cookie, entry }
            }
            None => Change::Remove { cookie: from_cookie },
        };
        transaction.record(&source_directory, &mut source_state, source_change);
        let entry = Entry { name: to_name.into(), ..moved.clone() };
        let target_change = Change::Insert { cookie: to_cookie, entry };
        let target = target_state.as_deref_mut().unwrap_or(&mut source_state);
        transaction.record(&target_directory, target, target_change);

        // Counts of entries and subdirectories of both directories.
        let is_directory = |entry: &Entry| i64::from(entry.kind == Kind::Directory);
        let leaves = (1, is_directory(moved));
        let arrives = match (replaced, exchanged) {
            (_, Some(entry)) => (1, is_directory(entry)),
            _ => (0, 0),
        };
        let falls = replaced.map_or((0, 0), |(_, entry)| (1, is_directory(entry)));
        let source_counts = (arrives.0 - leaves.0, arrives.1 - leaves.1);
        let target_counts = (leaves.0 - falls.0, leaves.1 - falls.1);
        match target_state.as_deref_mut() {
            Some(target) => {
                let (entries, directories) = source_counts;
                change_directory(&mut transaction, &source_directory, &mut source_state, entries, directories);
                let (entries, directories) = target_counts;
                change_directory(&mut transaction, &target_directory, target, entries, directories);
            }
            None => {
                let (entries, directories) = (source_counts.0 + target_counts.0, source_counts.1 + target_counts.1);
                change_directory(&mut transaction, &source_directory, &mut source_state, entries, directories);
            }
        }
        move_to(&mut transaction, &source, &mut moved_state, to);
        if let (Some(victim), Some(state)) = (&victim, victim_state.as_deref_mut()) {
            match exchanged {
                Some(_) => move_to(&mut transaction, victim, state, from),
                None => self.drop_link(&mut transaction, victim, state),
            }
        }
        transaction.log();
        self.counters.namespace_changes.add(1);
        Ok(())
    }

    /// A directory must not go into itself or below.
    async fn check_no_loop(&self, moved: &Entry, into: FileId) -> Result<(), FileError> {
        if moved.kind != Kind::Directory {
            return Ok(());
        }
        let mut at = into;
        let mut passed = BTreeSet::new();
        while at != FileId::ROOT {
            if !passed.insert(at) {
                let found = "parents that lead back here";
                return Err(untrue("directory", at.to_string(), "parents that lead to the root", &found).into());
            }
            if at == moved.file {
                return Err(FileError::Invalid("a directory cannot be moved into itself"));
            }
            at = self.live(at).await?.state.lock().attributes.parent;
        }
        Ok(())
    }

    /// Notes that a front end has handed out a node: an unlinked file stays while its count is above zero. A count that reaches the
    /// top stays there, and the file until the next opening. Files of snapshots are not unlinked, and not counted.
    pub fn retain(&self, node: Node) {
        if node.view == View::LIVE {
            self.references.lock().add(node.file, 1);
        }
    }

    /// The same for a node that was found or made before. Who removes by another way than the front end's may have ended it since: then
    /// nothing is counted. Else it is there for as long as the count is above zero.
    ///
    /// # Errors
    /// `NoEntry`.
    pub async fn retain_found(&self, node: Node) -> Result<(), FileError> {
        self.retain(node);
        if node.view != View::LIVE || node.file == SNAPSHOTS {
            return Ok(());
        }
        // Who ends a file asks for references under the lock of its state: he has ended it by now, or finds this one.
        match self.live(node.file).await {
            Err(FileError::NoEntry | FileError::Stale) => {
                let _ = self.take_back(node, 1);
                Err(FileError::NoEntry)
            }
            // What cannot be read again is there.
            _ => Ok(()),
        }
    }

    /// What was handed out and not taken back: for who goes on in another process.
    #[must_use]
    pub fn references(&self) -> Vec<(FileId, u32)> {
        self.references.lock().all()
    }

    /// In how many parts [`FileSystem::referenced_files`] tells them, so that none takes much memory.
    #[must_use]
    pub fn reference_parts(&self) -> u32 {
        self.references.lock().parts()
    }

    /// The files among them that may have content, those that memory does not know to be anything else: one of so many parts, the same all the time.
    #[must_use]
    pub fn referenced_files(&self, number: u32, parts: u32) -> Vec<FileId> {
        let is_regular = |file: &FileId| {
            let inode = self.table.find(Node::live(*file));
            inode.is_none_or(|inode| inode.state.lock().attributes.kind == Kind::Regular)
        };
        let mut files = self.references.lock().part(number, parts);
        files.retain(is_regular);
        files
    }

    /// Whether a front end was given this file and has not given it back: then it may know of it what is not true any more.
    #[must_use]
    pub fn is_referenced(&self, file: FileId) -> bool {
        file == FileId::ROOT || self.references.lock().has(file)
    }

    /// Takes `count` back. The last one ends an unlinked file.
    ///
    /// # Errors
    /// The store's.
    pub async fn forget(&self, node: Node, count: u64) -> Result<(), FileError> {
        if self.take_back(node, count) { self.end_unused(node).await } else { Ok(()) }
    }

    /// Takes `count` back. Whether it was the last: then [`FileSystem::end_unused`] is to follow, some time.
    #[must_use]
    pub fn take_back(&self, node: Node, count: u64) -> bool {
        node.view == View::LIVE && self.references.lock().take_back(node.file, count)
    }

    /// Ends a file that has neither name nor user, if it is one.
    ///
    /// # Errors
    /// The store's.
    pub async fn end_unused(&self, node: Node) -> Result<(), FileError> {
        // Only an inode that is in memory can be unlinked and uncommitted; a committed orphan is loaded when touched.
        let inode = match self.table.find(node) {
            Some(inode) => inode,
            None => return self.forget_committed(node).await,
        };
        self.end_admitted(&inode).await
    }

    /// What ends is a change as any other: many of them wait for commits.
    async fn end_admitted(&self, inode: &Arc<Inode>) -> Result<(), FileError> {
        if inode.state.lock().attributes.links > 0 {
            return Ok(());
        }
        let _room = self.admit_ending(END_BYTES).await?;
        self.end_if_unused(inode);
        Ok(())
    }

    async fn forget_committed(&self, node: Node) -> Result<(), FileError> {
        // Clean, for it is not in memory: if it has no name, the newest commit has it among the orphans.
        let is_orphan = {
            let _use = self.grace.enter(node.file.number);
            let orphans = match node.file.branch {
                0 => self.roots.lock().orphans.clone(),
                branch => self.branches.lock().get(&branch).map(|branch| branch.orphans.clone()).unwrap_or_default(),
            };
            self.trees.get(&orphans, node.file.number).await?.is_some()
        };
        if !is_orphan {
            return Ok(());
        }
        match self.inode(node).await {
            Ok(inode) => self.end_admitted(&inode).await,
            Err(FileError::NoEntry) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Ends a file that has neither name nor reference.
    pub(crate) fn end_if_unused(&self, inode: &Arc<Inode>) {
        let mut transaction = Transaction::begin(self);
        let mut state = inode.state.lock();
        if state.attributes.links > 0 || state.is_gone || self.references.lock().has(inode.file) {
            return;
        }
        if has_entries(&state) {
            // It ends when they have gone.
            return;
        }
        self.end(&mut transaction, inode, &mut state);
        transaction.log();
    }
}

/// Whether it is the name of the list of snapshots, which no entry has.
pub(crate) fn is_of_snapshots(parent: FileId, name: &[u8]) -> bool {
    parent == FileId::ROOT && name == SNAPSHOTS_NAME
}

/// Whether it is a directory that has something.
pub(crate) fn has_entries(state: &State) -> bool {
    state.attributes.kind == Kind::Directory && state.attributes.size > 0
}

/// An entry leads neither to the root nor to one of the directories at hand, unless it lies: a state would be locked twice.
pub(crate) fn expect_below(entry: &Entry, directories: &[FileId]) -> Result<(), FileError> {
    if entry.file != FileId::ROOT && !directories.contains(&entry.file) {
        return Ok(());
    }
    let found = "the root, or one of the directories at hand";
    Err(untrue("directory entry", entry.file.to_string(), "a file below the directory", &found).into())
}

/// I-109: a file stays in its branch.
fn refuse_between_branches(from: FileId, to: FileId) -> Result<(), FileError> {
    if from.branch == to.branch { Ok(()) } else { Err(FileError::CrossView) }
}

/// What a new file has of its directory.
pub(crate) struct Inherited {
    pub(crate) mode: u32,
    pub(crate) gid: u32,
    pub(crate) xattrs: Vec<(&'static [u8], Vec<u8>)>,
}

/// Set-group-id directories give their group, default ACLs their rights.
pub(crate) fn inherited(
    directory: &Attributes,
    new: &NewFile<'_>,
    default_acl: Option<&[u8]>,
) -> Result<Inherited, FileError> {
    if new.target.len() > LINK_TARGET_BYTES_MAX {
        return Err(FileError::NameTooLong);
    }
    let mut mode = new.mode & MODE_MASK;
    let mut gid = new.gid;
    if directory.mode & SET_GID != 0 {
        gid = directory.gid;
        if new.kind == Kind::Directory {
            mode |= SET_GID;
        }
    }
    let mut xattrs = Vec::new();
    match default_acl.filter(|_| new.kind != Kind::Symlink) {
        Some(default_acl) => {
            let inherited = acl::inherit(default_acl, mode)?;
            mode = inherited.mode;
            xattrs.extend(inherited.access.map(|value| (acl::ACCESS, value)));
            if new.kind == Kind::Directory {
                xattrs.push((acl::DEFAULT, default_acl.to_vec()));
            }
        }
        None if new.kind != Kind::Symlink => mode &= !(new.umask & 0o777),
        None => {}
    }
    Ok(Inherited { mode, gid, xattrs })
}

/// Entry count, subdirectory count and times of a directory whose entries changed.
pub(crate) fn change_directory(
    transaction: &mut Transaction<'_>,
    directory: &Arc<Inode>,
    state: &mut State,
    entries: i64,
    directories: i64,
) {
    let mut attributes = state.attributes.clone();
    attributes.size = attributes.size.saturating_add_signed(entries);
    attributes.links = counted(attributes.links, directories);
    (attributes.modified, attributes.changed) = (transaction.now, transaction.now);
    transaction.record(directory, state, Change::Attributes(attributes));
}

/// Links after a change. What a damaged tree counts wrong (I-51) stays wrong, and the check tells of it.
pub(crate) fn counted(links: u32, change: i64) -> u32 {
    u32::try_from(i64::from(links).saturating_add(change).max(0)).unwrap_or(u32::MAX)
}

fn change_links(transaction: &mut Transaction<'_>, inode: &Arc<Inode>, state: &mut State, links: i64) {
    let mut attributes = state.attributes.clone();
    attributes.links = counted(attributes.links, links);
    attributes.changed = transaction.now;
    transaction.record(inode, state, Change::Attributes(attributes));
}

fn move_to(transaction: &mut Transaction<'_>, inode: &Arc<Inode>, state: &mut State, parent: FileId) {
    let mut attributes = state.attributes.clone();
    attributes.changed = transaction.now;
    attributes.parent = parent;
    transaction.record(inode, state, Change::Attributes(attributes));
}
