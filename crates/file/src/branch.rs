//! Clones: a directory with everything below it, once more, to be changed by itself.
//!
//! A tree is never changed, so a catalog can go on in two ways. A clone is a directory whose files are looked up in a catalog of their
//! own, a *branch*, which begins as the catalog that the source was looked up in: nothing is copied, whatever the size. Its files keep
//! the numbers of those that they were cloned from. One record makes it, so it is there after a crash, or not.
//!
//! I-109 A file stays in its branch: no name of one branch leads to a file of another but a clone's own. So what lies below a directory
//!       is of its branch, and a clone needs nothing but its catalog.
//! I-110 A branch is in the list as long as its top has a name, or a file of it is open or has something that no commit covers. It is in
//!       `branches` before anybody knows of it.
//! I-111 Between the choice of the catalog and the record that names it there is no commit and no pass of reclaim that took its roots
//!       in between: the pass finds the branch, or what the branch needs in the roots that it took.
//! I-162 Whether a clone that lost its name goes whole (I-129), and whether a place for a new one is in a tree that was removed, is decided under
//!       `commit`, and done there: so a clone whose place goes either is not made, or is found there.
//!
//! Not here: what a commit makes of a branch (`commit`), which of its chunks are needed (`reclaim`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::id::FileId;
use store::StoreError;

use crate::admission::CHANGE_BYTES;
use crate::attributes::{Attributes, Kind, Node, View};
use crate::directory::expect_directory;
use crate::failure::{FileError, is_loss};
use crate::format::{BranchValue, Change, Entry, FILES_MAX, InodeValue, Root, Roots};
use crate::inode::Inode;
use crate::namespace::change_directory;
use crate::system::{FileSystem, SNAPSHOTS, Transaction, decode_branch};

impl FileSystem {
    /// Clones a directory of the present or of a snapshot, as it is when this is called: `name` in `parent` is a directory with
    /// everything that the source has, and what changes in one of them does not in the other. The time is that of committing what no commit
    /// has yet, whatever the size of the source; local when it returns.
    ///
    /// # Errors
    /// `NotDirectory` for a source that is none, `NotSupported` for one that has a clone below it, `Exists` and what else a new name can
    /// meet, or the store's.
    pub async fn clone_tree(&self, source: Node, parent: FileId, name: &[u8]) -> Result<Attributes, FileError> {
        self.check_new_name(parent, name)?;
        if source.file == SNAPSHOTS {
            return Err(FileError::NotSupported("the list of snapshots is no directory to clone: clone one of them"));
        }
        let _room = self.admit_metadata(CHANGE_BYTES).await?;
        if source.view == View::LIVE {
            self.sync_all().await?;
            self.commit_whole().await?;
        }
        let directory = self.live(parent).await?;
        self.refuse_left_out(&directory)?;
        self.refuse_removed(&directory).await?;
        let _operation = directory.operation.lock().await;
        let cookie = self.free_cookie(&directory, name).await?;
        // I-111.
        let _commit = self.commit.lock().await;
        // I-162.
        self.refuse_removed(&directory).await?;
        if let Some(left_out) = self.left_out.lock().values().next() {
            // A catalog that lacks what was recorded for a file is no copy.
            return Err(left_out.error.clone());
        }
        let (catalog, root, inode) = self.branch_off(source).await?;
        // Of a snapshot that came from another node.
        let _ = self.count_beyond(&catalog).await;

        let attributes = {
            let mut transaction = Transaction::begin(self);
            let mut state = directory.state.lock();
            expect_directory(&state)?;
            self.begin_branch(inode.file, catalog.clone(), root, parent);
            let mut top = inode.state.lock();
            let attributes = Attributes { parent, changed: transaction.now, ..top.attributes.clone() };
            let change = Change::Branch { catalog, root, attributes: attributes.clone() };
            transaction.record(&inode, &mut top, change);
            let entry = Entry { file: inode.file, kind: Kind::Directory, name: name.into() };
            transaction.record(&directory, &mut state, Change::Insert { cookie, entry });
            change_directory(&mut transaction, &directory, &mut state, 1, 1);
            // In the table before anybody can find the name.
            let node = Node::live(inode.file);
            self.table.insert(node, inode.clone(), || true).expect("a new branch is in no table");
            transaction.log();
            attributes
        };
        drop(_commit);
        self.counters.namespace_changes.add(1);
        self.counters.clones_made.add(1);
        self.sync_journal().await?;
        Ok(attributes)
    }

    /// The catalog that a new branch begins with, [`BranchValue::root`], and the branch's top as it is there. The caller holds `commit`.
    async fn branch_off(&self, source: Node) -> Result<(Root, u64, Arc<Inode>), FileError> {
        let _use = self.grace.enter(source.file.number);
        let roots = self.roots.lock().clone();
        let (catalog, root, is_tidy) = match self.branch(source.view, source.file.branch).await? {
            Some(branch) => {
                let is_tidy = branch.is_pruned() && branch.orphans == Root::Empty;
                (branch.catalog.clone(), branch.root(), is_tidy)
            }
            None => {
                let of_snapshot = self.snapshots.lock().get(&source.view.0).map(|snapshot| snapshot.is_tidy);
                let is_tidy = of_snapshot.unwrap_or(roots.orphans == Root::Empty);
                (self.catalog(&roots, source.view, 0).await?, FileId::ROOT.number, is_tidy)
            }
        };
        let value = self.load(&catalog, source.file).await?.ok_or(FileError::NoEntry)?;
        if value.attributes.kind != Kind::Directory {
            return Err(FileError::NotDirectory);
        }
        if value.attributes.links == 0 {
            return Err(FileError::NoEntry);
        }
        self.refuse_clones_below(&roots, source).await?;
        let branch = self.new_view()?;
        let file = FileId { branch, number: source.file.number };
        let mut attributes = Attributes { file, ..value.attributes };
        if attributes.parent.branch == source.file.branch {
            attributes.parent.branch = branch;
        }
        // Of a root too there may be more than it leads to: what was unlinked, and is open or being removed.
        let root = if root == source.file.number && !is_tidy { 0 } else { root };
        Ok((catalog, root, Arc::new(Inode::load(InodeValue { attributes, ..value }))))
    }

    /// I-109: what would be a name of another branch within the clone. Judged by the catalogs, as they are cloned: the present goes on.
    async fn refuse_clones_below(&self, roots: &Roots, source: Node) -> Result<(), FileError> {
        let above: BTreeSet<FileId> = match source.view {
            View::LIVE => self.branches.lock().values().map(|value| value.above).collect(),
            View(view) => {
                let list = self.snapshots.lock().get(&view).ok_or(FileError::Stale)?.branches.clone();
                let (listed, lost) = self.scan_branches(&list).await;
                if let Some((_, error)) = lost.into_iter().next() {
                    return Err(error.into());
                }
                listed.values().map(|value| value.above).collect()
            }
        };
        // The root lies in itself.
        let mut passed = BTreeSet::from([FileId::NONE]);
        for directory in above {
            let mut at = directory;
            while passed.insert(at) {
                if at == source.file {
                    return Err(FileError::NotSupported(
                        "a clone of a directory that has a clone below it: clone the directories beside it, and that one, by themselves",
                    ));
                }
                let catalog = self.catalog(roots, source.view, at.branch).await;
                let found = match catalog {
                    Ok(catalog) => self.load(&catalog, at).await?,
                    // A clone whose list is lost in part: nobody comes to it.
                    Err(FileError::Stale) => None,
                    Err(error) => return Err(error),
                };
                // One without links lies nowhere any more: a tree that was removed, and goes behind.
                let Some(value) = found.filter(|value| value.attributes.links > 0) else { break };
                at = value.attributes.parent;
            }
        }
        Ok(())
    }

    /// Notes a branch that begins with this catalog and whose top is this directory.
    pub(crate) fn begin_branch(&self, top: FileId, catalog: Root, root: u64, above: FileId) {
        let value = BranchValue { catalog, orphans: Root::Empty, top: top.number, root, above };
        self.branches.lock().insert(top.branch, value);
        self.next_view.fetch_max(top.branch + 1, Ordering::SeqCst);
    }

    /// What can be read of a list of branches, and where the rest would be and why it cannot be read.
    pub(crate) async fn scan_branches(&self, list: &Root) -> (BTreeMap<u32, BranchValue>, Vec<(u64, StoreError)>) {
        self.scan_list(list, decode_branch).await
    }

    /// Takes the list of branches into memory. Tells in words what is lost of it: those clones cannot be entered.
    pub(crate) async fn load_branches(&self) -> Result<Vec<String>, FileError> {
        // A commit changes the tree and the memory.
        let _commit = self.commit.lock().await;
        let list = self.roots.lock().branches.clone();
        let (listed, lost) = self.scan_branches(&list).await;
        let mut problems = Vec::new();
        for (_, error) in lost {
            if !is_loss(&error) {
                return Err(error.into());
            }
            problems.push(format!("the list of clones: {error}"));
        }
        // Whatever the roots say: no number is given twice.
        let last = listed.keys().next_back().copied().max(self.snapshots.lock().keys().next_back().copied());
        self.next_view.fetch_max(last.map_or(1, |last| last + 1), Ordering::SeqCst);
        self.branches.lock().extend(listed);
        Ok(problems)
    }

    /// Sees to it that no file gets the id of one that is there, whatever the roots say. A catalog that cannot be read is left to who
    /// needs it. Tells of a file that no node can have made; nor does this one come to its id.
    pub(crate) async fn count_beyond(&self, catalog: &Root) -> Option<String> {
        let node = self.store.node();
        let floor = async |counter| {
            let last = FileId::new(node, counter).expect("a counter that fits");
            let found = self.trees.floor(catalog, last.number).await.ok()??;
            Some(FileId::main(found.0)).filter(|file| file.node() == node)
        };
        if let Some(greatest) = floor(FILES_MAX - 1).await {
            self.next_counter.fetch_max(greatest.counter() + 1, Ordering::SeqCst);
        }
        let beyond = floor((1 << FileId::COUNTER_BITS) - 1).await.filter(|file| file.counter() >= FILES_MAX)?;
        Some(format!(
            "the catalog has a file {beyond}, which no node can have made: it was left alone, and a repair removes it"
        ))
    }

    /// Clones that are there.
    #[must_use]
    pub fn clones(&self) -> u64 {
        self.branches.lock().values().filter(|branch| branch.top != 0).count() as u64
    }
}
