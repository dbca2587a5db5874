//! Operations on names and attributes.

use std::sync::Arc;

use base::time::Timestamp;
use file::{AttributeChange, FileError, Kind, NewFile, RenameMode, SET_GID, TimeChange, XattrMode};

use super::{Client, Done};
use crate::model::{Change, Key, Model, Node, Refusal, show};
use crate::plan::Sabotage;
use crate::shared::Stop;

impl Client {
    pub(super) async fn create(&mut self, kind: Kind) -> Done {
        let model = self.model();
        let (parent, name) = (self.any_directory(&model), self.new_name());
        self.create_at(&model, parent, &name, kind).await
    }

    pub(super) async fn create_at(&mut self, model: &Model, parent: Key, name: &[u8], kind: Kind) -> Done {
        let target = if kind == Kind::Symlink { self.new_name() } else { Vec::new() };
        let node = self.new_node(kind, &target);
        let what = format!("create {kind:?} {}", self.place(model, parent, name));
        let (system, directory, key) = (self.system.clone(), self.file(model, parent), model.next_key());
        let new = new_file(&node);
        let change = model.create(parent, name, node.clone());
        let made = self.change(what, change, None, system.create_file(directory, name, &new)).await?;
        if let Some(attributes) = made {
            self.shared.name_file(self.number, key, attributes.file);
            self.expect_attributes(key, &attributes).await?;
        }
        Ok(())
    }

    pub(super) fn new_node(&mut self, kind: Kind, target: &[u8]) -> Node {
        let mode = match kind {
            Kind::Symlink => 0o777,
            Kind::Directory => self.random.pick(&[0o755, 0o700, 0o1777, 0o755 | SET_GID]),
            _ => self.random.pick(&[0o644, 0o600, 0o755]),
        };
        let gid = u32::try_from(self.random.below(3)).unwrap_or(0);
        Node::new(kind, mode, gid, target)
    }

    /// O_TMPFILE, held.
    pub(super) async fn create_unnamed(&mut self) -> Done {
        let model = self.model();
        let parent = self.any_directory(&model);
        let node = self.new_node(Kind::Regular, b"");
        let (system, directory, key) = (self.system.clone(), self.file(&model, parent), model.next_key());
        let new = new_file(&node);
        let change = Ok(model.create_unnamed(parent, node.clone()));
        let call = async {
            let attributes = system.create_unnamed(directory, &new).await?;
            system.retain(file::Node::live(attributes.file));
            Ok(attributes)
        };
        let what = format!("create an unnamed file in {}/", model.path(parent));
        if let Some(attributes) = self.change(what, change, None, call).await? {
            self.shared.name_file(self.number, key, attributes.file);
            self.expect_attributes(key, &attributes).await?;
        }
        Ok(())
    }

    pub(super) async fn link(&mut self) -> Done {
        let model = self.model();
        let key = match self.random.below(8) {
            0 => self.any_directory(&model),
            1 | 2 => match self.unnamed(&model) {
                Some(key) => key,
                None => return Ok(()),
            },
            _ => match self.any_file(&model) {
                Some(key) => key,
                None => return Ok(()),
            },
        };
        let (parent, name) = (self.any_directory(&model), self.new_name());
        if name.len() > 255 {
            return Ok(());
        }
        let what = format!("link {} to {}", model.path(key), self.place(&model, parent, &name));
        let (system, file, directory) = (self.system.clone(), self.file(&model, key), self.file(&model, parent));
        let change = model.link(key, parent, &name);
        self.change(what, change, None, system.link(file, directory, &name)).await?;
        Ok(())
    }

    fn unnamed(&mut self, model: &Model) -> Option<Key> {
        let unnamed: Vec<Key> = model.held.iter().copied().filter(|key| model.names_of(*key).is_empty()).collect();
        self.random.pick_any(&unnamed)
    }

    pub(super) async fn remove(&mut self) -> Done {
        let model = self.model();
        let Some((parent, name)) = self.any_name(&model) else { return Ok(()) };
        self.remove_at(&model, parent, &name).await
    }

    pub(super) async fn remove_at(&mut self, model: &Model, parent: Key, name: &[u8]) -> Done {
        let what = format!("remove {}", self.place(model, parent, name));
        let (system, directory) = (self.system.clone(), self.file(model, parent));
        let change = model.remove(parent, name, false);
        let lies = change.is_ok() && self.lies(Sabotage::ForgetRemovals);
        let call = async { if lies { Ok(()) } else { deletes(system.remove_file(directory, name).await) } };
        self.change(what, change, None, call).await?;
        Ok(())
    }

    pub(super) async fn remove_directory(&mut self) -> Done {
        let model = self.model();
        let Some((parent, name)) = self.any_name(&model) else { return Ok(()) };
        let what = format!("remove directory {}", self.place(&model, parent, &name));
        let (system, directory) = (self.system.clone(), self.file(&model, parent));
        let change = model.remove(parent, &name, true);
        self.change(what, change, None, async { deletes(system.remove_directory(directory, &name).await) }).await?;
        Ok(())
    }

    /// Opens a file and keeps it open.
    pub(super) async fn hold(&mut self) -> Done {
        let model = self.model();
        let Some(key) = self.any_file(&model).filter(|key| !model.held.contains(key)) else { return Ok(()) };
        let node = self.node(&model, key);
        let mut held = model.clone();
        held.held.insert(key);
        let system = self.system.clone();
        let what = format!("open {}", model.path(key));
        let call = async {
            system.retain(node);
            Ok::<_, FileError>(())
        };
        self.change(what, Ok(held), None, call).await?;
        Ok(())
    }

    /// Closes a file.
    pub(super) async fn forget(&mut self) -> Done {
        let model = self.model();
        let held: Vec<Key> = model.held.iter().copied().collect();
        let Some(key) = self.random.pick_any(&held) else { return Ok(()) };
        let (system, node) = (self.system.clone(), self.node(&model, key));
        let what = format!("close {}", model.path(key));
        self.change(what, Ok(model.forget(key)), None, async { deletes(system.forget(node, 1).await) }).await?;
        if model.links(key) == 0 {
            let gone = self.system.attributes(node).await;
            if !matches!(gone, Err(FileError::NoEntry)) && self.shared.is_powered() && !self.shared.plan.may_err() {
                return Err(Stop::Wrong(format!("{} lives on after its last close: {gone:?}", node.file)));
            }
        }
        Ok(())
    }

    pub(super) async fn rename(&mut self) -> Done {
        let model = self.model();
        let Some((from, from_name)) = self.any_name(&model) else { return Ok(()) };
        let mode = self.random.pick(&[
            RenameMode::Replace,
            RenameMode::Replace,
            RenameMode::Replace,
            RenameMode::NoReplace,
            RenameMode::Exchange,
        ]);
        let (to, to_name) = match self.random.below(3) {
            0 => (self.any_directory(&model), self.new_name()),
            _ => self.any_name(&model).unwrap_or((from, from_name.clone())),
        };
        if to_name.len() > 255 {
            return Ok(());
        }
        let what = format!(
            "rename {} to {} ({mode:?})",
            self.place(&model, from, &from_name),
            self.place(&model, to, &to_name)
        );
        let change = model.rename(from, &from_name, to, &to_name, mode);
        let moved = model.lookup(from, &from_name);
        let replaced = model.lookup(to, &to_name).filter(|replaced| Some(*replaced) != moved);
        let logs = moved.filter(|_| replaced.is_some() && mode == RenameMode::Replace);
        let (system, source, target) = (self.system.clone(), self.file(&model, from), self.file(&model, to));
        self.change(what, change, logs, system.rename(source, &from_name, target, &to_name, mode)).await?;
        Ok(())
    }

    pub(super) async fn change_mode(&mut self) -> Done {
        let model = self.model();
        let keys = model.keys();
        let key = self.random.pick(&keys);
        let mode = match model.node(key).kind {
            Kind::Directory => self.random.pick(&[0o711, 0o755, 0o2755, 0o1700]),
            Kind::Symlink => return Ok(()),
            _ => self.random.pick(&[0o400, 0o644, 0o1666, 0o751]),
        };
        let gid = u32::try_from(self.random.below(3)).unwrap_or(0);
        let mut changed = model.clone();
        (changed.node_mut(key).mode, changed.node_mut(key).gid) = (mode, gid);
        let what = format!("set mode {mode:o} and group {gid} of {}", model.path(key));
        let (system, file) = (self.system.clone(), self.file(&model, key));
        let change = AttributeChange { mode: Some(mode), gid: Some(gid), ..AttributeChange::default() };
        if let Some(attributes) = self.change(what, Ok(changed), None, system.set_attributes(file, &change)).await? {
            self.expect_attributes(key, &attributes).await?;
        }
        Ok(())
    }

    /// Times are no part of the model: the client looks right after it set them.
    pub(super) async fn change_times(&mut self) -> Done {
        let model = self.model();
        let keys = model.keys();
        let key = self.random.pick(&keys);
        let seconds = i64::try_from(self.random.below(1 << 34)).unwrap_or(0) - (1 << 33);
        let time = Timestamp::new(seconds, u32::try_from(self.random.below(1_000_000_000)).unwrap_or(0));
        let change = AttributeChange {
            accessed: Some(TimeChange::At(time)),
            modified: Some(TimeChange::At(time)),
            ..AttributeChange::default()
        };
        let what = format!("set the times of {}", model.path(key));
        let (system, node) = (self.system.clone(), self.node(&model, key));
        let set = self.change(what, Ok(model.clone()), None, system.set_attributes(node.file, &change)).await?;
        let Some(set) = set else { return Ok(()) };
        let Some(found) = self.look("stat", system.attributes(node)).await? else { return Ok(()) };
        for attributes in [&set, &found] {
            if attributes.accessed != time || attributes.modified != time {
                return Err(Stop::Wrong(format!("times of {} should be {time:?}: {attributes:?}", model.path(key))));
            }
        }
        Ok(())
    }

    pub(super) async fn set_xattr(&mut self) -> Done {
        let model = self.model();
        let keys = model.keys();
        let key = self.random.pick(&keys);
        let name = self.xattr_name();
        let length = self.random.length(20_000) - 1;
        let value = self.random.content(length);
        let mode = self.random.pick(&[XattrMode::Set, XattrMode::Set, XattrMode::Create, XattrMode::Replace]);
        let change = set_xattr(&model, key, &name, &value, mode);
        let what = format!("set attribute {} of {} to {length} bytes ({mode:?})", show(&name), model.path(key));
        let (system, file) = (self.system.clone(), self.file(&model, key));
        self.change(what, change, None, system.set_xattr(file, &name, &value, mode, false)).await?;
        Ok(())
    }

    pub(super) async fn remove_xattr(&mut self) -> Done {
        let model = self.model();
        let keys = model.keys();
        let key = self.random.pick(&keys);
        let name = self.xattr_name();
        let mut changed = model.clone();
        let change = match changed.node_mut(key).xattrs.remove(&name) {
            _ if !name.starts_with(b"user.") => Err(Refusal::NotSupported),
            Some(_) => Ok(changed),
            None => Err(Refusal::NoAttribute),
        };
        let what = format!("remove attribute {} of {}", show(&name), model.path(key));
        let (system, file) = (self.system.clone(), self.file(&model, key));
        self.change(what, change, None, system.remove_xattr(file, &name)).await?;
        Ok(())
    }

    fn xattr_name(&mut self) -> Vec<u8> {
        if self.random.one_in(20) {
            b"other.a".to_vec()
        } else {
            format!("user.a{}", self.random.below(4)).into_bytes()
        }
    }
}

fn set_xattr(model: &Model, key: Key, name: &[u8], value: &[u8], mode: XattrMode) -> Change {
    if !name.starts_with(b"user.") {
        return Err(Refusal::NotSupported);
    }
    match (model.node(key).xattrs.contains_key(name), mode) {
        (true, XattrMode::Create) => return Err(Refusal::Exists),
        (false, XattrMode::Replace) => return Err(Refusal::NoAttribute),
        _ => {}
    }
    let mut changed = model.clone();
    changed.node_mut(key).xattrs.insert(name.to_vec(), Arc::new(value.to_vec()));
    Ok(changed)
}

fn new_file(node: &Node) -> NewFile<'_> {
    let Node { kind, mode, gid, target, .. } = node;
    NewFile { kind: *kind, mode: *mode, umask: 0, uid: 0, gid: *gid, device: 0, target }
}

/// Removing works on a full disk: want of room is no excuse.
pub(super) fn deletes<T>(result: Result<T, FileError>) -> Result<T, FileError> {
    result.map_err(|error| match error {
        FileError::NoSpace => FileError::Invalid("no room to remove something"),
        error => error,
    })
}
