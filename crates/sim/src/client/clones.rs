//! Cloning directories.

use base::id::FileId;
use file::{FileError, FileSystem, Kind, Node as FileNode, View};

use super::{Client, Done};
use crate::model::{Key, Model, show};

/// Nodes that a directory has at most that is cloned: else there is soon nothing but clones.
const NODES_MAX: usize = 25;

impl Client {
    /// A directory of the present, or what is none.
    pub(super) async fn clone_tree(&mut self) -> Done {
        let model = self.model();
        let top = match self.random.below(12) {
            0 => match self.any_file(&model).filter(|key| model.links(*key) > 0) {
                Some(key) => key,
                None => return Ok(()),
            },
            _ => self.any_directory(&model),
        };
        self.clone_of(View::LIVE, &model, top, &model.path(top)).await
    }

    pub(super) async fn clone_from_snapshot(&mut self) -> Done {
        let Some((name, old)) = self.any_snapshot() else { return Ok(()) };
        let top = self.any_directory(&old);
        let Some(FileNode { view, .. }) = self.system.find_snapshot(name.as_bytes()) else { return Ok(()) };
        self.clone_of(view, &old, top, &format!(".snapshots/{name}{}", old.path(top))).await
    }

    async fn clone_of(&mut self, view: View, source: &Model, top: Key, shown: &str) -> Done {
        let model = self.model();
        let keys = model.clone_keys(source, top);
        let (parent, name) = (self.any_directory(&model), self.new_name());
        if keys.len() > NODES_MAX {
            return Ok(());
        }
        let what = format!("clone {shown} to {}/{}", model.path(parent), show(&name));
        let change = model.clone_tree(source, top, parent, &name);
        let (system, directory) = (self.system.clone(), self.file(&model, parent));
        let from = FileNode { view, file: self.file(source, top) };
        let before = self.shared.acknowledged();
        let refusal = change.as_ref().err().copied();
        let call = async {
            match system.clone_tree(from, directory, &name).await {
                // The keeper deleted the snapshot meanwhile: as if there had been no room, or as refused as it was to be.
                Err(FileError::Stale | FileError::NoEntry) if is_gone(&system, view) => {
                    refusal.map_or(Ok(None), |refusal| Err(refusal.error()))
                }
                made => made.map(Some),
            }
        };
        let Some(made) = self.change(what, change, None, call).await? else { return Ok(()) };
        let Some(made) = made else {
            self.shared.withdraw(self.number);
            return Ok(());
        };
        let of_clone = |key: Key| FileId { branch: made.file.branch, number: self.file(source, key).number };
        self.shared.name_files(self.number, keys.iter().map(|(key, new)| (*new, of_clone(*key))));
        self.expect_attributes(keys[&top], &made).await?;
        // What was there before was made local for it, and so are its name and the content of its files.
        self.shared.synced(&before, None, view == View::LIVE);
        let mut with_clone = before;
        with_clone[self.number] = self.shared.acknowledged()[self.number];
        for (key, new) in keys {
            let content = (source.node(key).kind == Kind::Regular).then_some((self.number, new));
            self.shared.synced(&with_clone, content, false);
        }
        Ok(())
    }
}

/// Whether a snapshot is there no more.
fn is_gone(system: &FileSystem, view: View) -> bool {
    view != View::LIVE && system.snapshots().iter().all(|snapshot| snapshot.view != view)
}
