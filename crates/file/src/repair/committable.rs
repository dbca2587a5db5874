//! What was recorded is committed although trees cannot be read: on what can be read of them (HF1021).
//!
//! Not here: what is mended in the trees themselves, after that (`repair`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::id::FileId;

use super::survey::Survey;
use crate::attributes::Kind;
use crate::failure::FileError;
use crate::format::{Base, BranchValue, Roots};
use crate::inode::Inode;
use crate::system::FileSystem;

/// What the next commit rests on no more, and the roots in whose place it is.
struct Replaced {
    bases: Vec<(Arc<Inode>, Base)>,
    branches: BTreeMap<u32, BranchValue>,
    roots: Arc<Roots>,
    by: Arc<Roots>,
}

impl FileSystem {
    /// Commits what was recorded, on trees without what cannot be read of them: the superblock of that commit is the first that knows
    /// of it. If it fails they are as before.
    pub(super) async fn commit_without_gaps(&self) -> Result<(), FileError> {
        // All that a repair looks at gives an answer before anything is given up (I-101).
        let (old, branches) = (self.roots.lock().clone(), self.branches.lock().clone());
        let clones = branches.iter().filter(|(_, value)| value.top != 0 && !value.is_going());
        let clones = clones.map(|(&branch, value)| (FileId { branch, number: value.top }, &value.catalog));
        for (root, catalog) in std::iter::once((FileId::ROOT, &old.catalog)).chain(clones) {
            let mut survey = Survey::of(root);
            self.survey_catalog(catalog, &mut survey).await?;
            self.survey_directories(catalog, true, &mut survey).await?;
        }
        let before = self.make_committable().await?;
        let committed = self.commit_whole().await;
        if committed.is_err() {
            self.undo(before).await;
        }
        committed
    }

    /// Takes what cannot be read out of the trees that the next commit rests on, in memory alone. All of it, or nothing.
    async fn make_committable(&self) -> Result<Replaced, FileError> {
        let _commit = self.commit.lock().await;
        let since = self.store.moment();
        let touched = self.touched.lock().clone();
        let mut bases = Vec::new();
        for inode in touched.values() {
            let (kind, base, size, is_gone) = {
                let state = inode.state.lock();
                (state.attributes.kind, state.base.clone(), state.attributes.size, state.is_gone)
            };
            let new = match kind {
                // Its tree goes with it.
                _ if is_gone => continue,
                Kind::Directory => Base { tree: self.without_gaps(&base.tree).await?, ..base },
                Kind::Regular => {
                    let (tree, allocated) = self.with_lost_content(inode.file, &base.tree, size).await?;
                    Base { tree, allocated, ..base }
                }
                _ => continue,
            };
            bases.push((inode.clone(), new));
        }
        let old = self.roots.lock().clone();
        let (catalog, orphans) = (self.without_gaps(&old.catalog).await?, self.without_gaps(&old.orphans).await?);
        let list = self.without_gaps(&old.branches).await?;
        let new = Arc::new(Roots { catalog, orphans, branches: list, ..(*old).clone() });
        let changed: BTreeSet<u32> = touched.keys().map(|file| file.branch).collect();
        let branches = self.branches.lock().clone();
        let mut readable = branches.clone();
        for (_, value) in readable.iter_mut().filter(|(branch, _)| changed.contains(branch)) {
            value.catalog = self.without_gaps(&value.catalog).await?;
            value.orphans = self.without_gaps(&value.orphans).await?;
        }
        // The commit that rests on them answers for what it puts itself (K-12).
        self.store.settle(since).await?;
        let mut replaced = Replaced { bases: Vec::new(), branches, roots: old, by: new.clone() };
        for (inode, new) in bases {
            let mut state = inode.state.lock();
            let old = std::mem::replace(&mut state.base, new);
            state.allocated = None;
            drop(state);
            replaced.bases.push((inode, old));
        }
        *self.branches.lock() = readable;
        *self.roots.lock() = new;
        Ok(replaced)
    }

    /// Puts back what [`FileSystem::make_committable`] took out. A commit in between that went well has made it durable.
    async fn undo(&self, replaced: Replaced) {
        let _commit = self.commit.lock().await;
        if !Arc::ptr_eq(&self.roots.lock(), &replaced.by) {
            return;
        }
        *self.branches.lock() = replaced.branches;
        *self.roots.lock() = replaced.roots;
        for (inode, base) in replaced.bases {
            let mut state = inode.state.lock();
            (state.base, state.vacant) = (base, None);
        }
    }
}
