//! The model: what a client's directory must look like, as simply as it can be said.
//!
//! A model is a value: an operation makes a new one from the old one, or says with which error it must be refused. Nodes are
//! shared between models, so a history of hundreds costs little.
//!
//! Not here: times (looked at by the client right after it set them), what a crash may leave (`oracle`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::id::FileId;
use file::{FileError, Kind, RenameMode};

use crate::content::Content;

/// A node's name within its model, before the file system has given an id.
pub(crate) type Key = u64;
/// A name in a directory.
pub(crate) type Name = Vec<u8>;

/// The client's directory itself.
pub(crate) const TOP: Key = 0;

/// A file or directory.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) gid: u32,
    /// Known once the creation has returned.
    pub(crate) file: Option<FileId>,
    pub(crate) xattrs: BTreeMap<Name, Arc<Vec<u8>>>,
    pub(crate) entries: BTreeMap<Name, Key>,
    /// Names that lead nowhere, and count until the clone is pruned: those beside what was cloned, of a file in a clone.
    pub(crate) hidden: u32,
    pub(crate) target: Vec<u8>,
    pub(crate) content: Arc<Content>,
}

impl Node {
    pub(crate) fn new(kind: Kind, mode: u32, gid: u32, target: &[u8]) -> Node {
        Node {
            kind,
            mode,
            gid,
            file: None,
            xattrs: BTreeMap::new(),
            entries: BTreeMap::new(),
            hidden: 0,
            target: target.to_vec(),
            content: Arc::new(Content::empty()),
        }
    }
}

/// Why an operation is to be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    NoEntry,
    Exists,
    NotDirectory,
    IsDirectory,
    NotEmpty,
    Invalid,
    NotPermitted,
    NoAttribute,
    NameTooLong,
    NotSupported,
    CrossView,
}

impl Refusal {
    /// What the file system says then; the words are its own.
    pub(crate) fn error(self) -> FileError {
        match self {
            Refusal::NoEntry => FileError::NoEntry,
            Refusal::Exists => FileError::Exists,
            Refusal::NotDirectory => FileError::NotDirectory,
            Refusal::IsDirectory => FileError::IsDirectory,
            Refusal::NotEmpty => FileError::NotEmpty,
            Refusal::Invalid => FileError::Invalid("it is to be refused"),
            Refusal::NotPermitted => FileError::NotPermitted("it is to be refused"),
            Refusal::NoAttribute => FileError::NoAttribute,
            Refusal::NameTooLong => FileError::NameTooLong,
            Refusal::NotSupported => FileError::NotSupported("it is to be refused"),
            Refusal::CrossView => FileError::CrossView,
        }
    }

    /// Whether the file system says the same.
    pub(crate) fn matches(self, error: &FileError) -> bool {
        std::mem::discriminant(&self.error()) == std::mem::discriminant(error)
    }
}

/// A new model, or why there is none.
pub(crate) type Change = Result<Model, Refusal>;

/// See the module's head.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) nodes: BTreeMap<Key, Arc<Node>>,
    /// Files that the client keeps open: they outlive their last name.
    pub(crate) held: BTreeSet<Key>,
    next: Key,
}

impl Model {
    /// An empty directory.
    pub(crate) fn new(top: Node) -> Model {
        Model { nodes: BTreeMap::from([(TOP, Arc::new(top))]), held: BTreeSet::new(), next: TOP + 1 }
    }

    /// The node, which must be there.
    pub(crate) fn node(&self, key: Key) -> &Node {
        &self.nodes[&key]
    }

    pub(crate) fn node_mut(&mut self, key: Key) -> &mut Node {
        Arc::make_mut(self.nodes.get_mut(&key).expect("a node of this model"))
    }

    pub(crate) fn content_mut(&mut self, key: Key) -> &mut Content {
        Arc::make_mut(&mut self.node_mut(key).content)
    }

    /// The key that the next new node gets.
    pub(crate) fn next_key(&self) -> Key {
        self.next
    }

    /// Adds a node without a name.
    pub(crate) fn add(&mut self, node: Node) -> Key {
        let key = self.next;
        self.next += 1;
        self.nodes.insert(key, Arc::new(node));
        key
    }

    /// The branch that a node is of; one that is not made yet will be of that of its directory.
    fn branch(&self, key: Key) -> u32 {
        match (self.node(key).file, self.parent(key)) {
            (Some(file), _) => file.branch,
            (None, Some(parent)) => self.branch(parent),
            (None, None) => 0,
        }
    }

    /// Names that lead to a node.
    pub(crate) fn names_of(&self, key: Key) -> Vec<(Key, Name)> {
        let named = self.nodes.iter().flat_map(|(parent, node)| {
            node.entries.iter().filter(|(_, child)| **child == key).map(|(name, _)| (*parent, name.clone()))
        });
        named.collect()
    }

    /// As `stat` counts.
    pub(crate) fn links(&self, key: Key) -> u32 {
        let node = self.node(key);
        let count = match node.kind {
            Kind::Directory => {
                2 + node.entries.values().filter(|child| self.node(**child).kind == Kind::Directory).count()
            }
            _ => node.hidden as usize + self.names_of(key).len(),
        };
        u32::try_from(count).expect("few nodes")
    }

    /// Whether `stat` may count so many: hidden names as long as the clone, and what it was cloned from, are not pruned.
    pub(crate) fn may_have_links(&self, key: Key, links: u32) -> bool {
        let all = self.links(key);
        (all - self.node(key).hidden..=all).contains(&links)
    }

    /// As `stat` says.
    pub(crate) fn size(&self, key: Key) -> u64 {
        let node = self.node(key);
        match node.kind {
            Kind::Directory => node.entries.len() as u64,
            Kind::Regular => node.content.size(),
            _ => node.target.len() as u64,
        }
    }

    /// The directory that holds a directory's name.
    pub(crate) fn parent(&self, key: Key) -> Option<Key> {
        self.names_of(key).first().map(|(parent, _)| *parent)
    }

    pub(crate) fn directories(&self) -> Vec<Key> {
        self.nodes.iter().filter(|(_, node)| node.kind == Kind::Directory).map(|(key, _)| *key).collect()
    }

    /// Regular files, with and without names.
    pub(crate) fn regular_files(&self) -> Vec<Key> {
        self.nodes.iter().filter(|(_, node)| node.kind == Kind::Regular).map(|(key, _)| *key).collect()
    }

    /// Everything whose id is known.
    pub(crate) fn keys(&self) -> Vec<Key> {
        self.nodes.keys().copied().collect()
    }

    /// All names below the top, of anything.
    pub(crate) fn names(&self) -> Vec<(Key, Name)> {
        let names = |(parent, node): (&Key, &Arc<Node>)| {
            node.entries.keys().map(|name| (*parent, name.clone())).collect::<Vec<_>>()
        };
        self.nodes.iter().flat_map(names).collect()
    }

    pub(crate) fn lookup(&self, parent: Key, name: &[u8]) -> Option<Key> {
        self.node(parent).entries.get(name).copied()
    }

    /// Where a node is, for people.
    pub(crate) fn path(&self, key: Key) -> String {
        if key == TOP {
            return String::new();
        }
        match self.names_of(key).first() {
            Some((parent, name)) => format!("{}/{}", self.path(*parent), show(name)),
            None => format!("<unnamed {key}>"),
        }
    }

    // -------------------------------------------------------------------------------------------------------------
    // Operations.

    pub(crate) fn create(&self, parent: Key, name: &[u8], mut node: Node) -> Change {
        if name.len() > base::limits::NAME_BYTES_MAX {
            return Err(Refusal::NameTooLong);
        }
        if self.lookup(parent, name).is_some() {
            return Err(Refusal::Exists);
        }
        let mut model = self.clone();
        self.inherit(parent, &mut node);
        let key = model.add(node);
        model.node_mut(parent).entries.insert(name.to_vec(), key);
        Ok(model)
    }

    /// A file without a name, held.
    pub(crate) fn create_unnamed(&self, parent: Key, mut node: Node) -> Model {
        let mut model = self.clone();
        self.inherit(parent, &mut node);
        let key = model.add(node);
        model.held.insert(key);
        model
    }

    /// A directory with set-group-id gives its group.
    fn inherit(&self, parent: Key, node: &mut Node) {
        let directory = self.node(parent);
        if directory.mode & file::SET_GID != 0 {
            node.gid = directory.gid;
            if node.kind == Kind::Directory {
                node.mode |= file::SET_GID;
            }
        }
    }

    /// Everything below a directory of a model, itself first.
    pub(crate) fn below(&self, top: Key) -> Vec<Key> {
        let (mut found, mut at) = (vec![top], 0);
        while at < found.len() {
            let children: BTreeSet<Key> = self.node(found[at]).entries.values().copied().collect();
            for child in children {
                if !found.contains(&child) {
                    found.push(child);
                }
            }
            at += 1;
        }
        found
    }

    /// What of `source` becomes which new node of `self` when it is cloned.
    pub(crate) fn clone_keys(&self, source: &Model, top: Key) -> BTreeMap<Key, Key> {
        source.below(top).into_iter().zip(self.next..).collect()
    }

    /// A directory of `source`, which may be an old model of the same client, with everything below it once more.
    pub(crate) fn clone_tree(&self, source: &Model, top: Key, parent: Key, name: &[u8]) -> Change {
        if name.len() > base::limits::NAME_BYTES_MAX {
            return Err(Refusal::NameTooLong);
        }
        if self.lookup(parent, name).is_some() {
            return Err(Refusal::Exists);
        }
        if source.node(top).kind != Kind::Directory {
            return Err(Refusal::NotDirectory);
        }
        let keys = self.clone_keys(source, top);
        if keys.keys().any(|key| source.branch(*key) != source.branch(top)) {
            return Err(Refusal::NotSupported);
        }
        let mut model = self.clone();
        for key in source.below(top) {
            let mut node = source.node(key).clone();
            node.file = None;
            if node.kind != Kind::Directory {
                let within = source.names_of(key).iter().filter(|(parent, _)| keys.contains_key(parent)).count();
                node.hidden = source.links(key) - u32::try_from(within).expect("few names");
            }
            node.entries.values_mut().for_each(|child| *child = keys[child]);
            assert_eq!(model.add(node), keys[&key]);
        }
        model.node_mut(parent).entries.insert(name.to_vec(), keys[&top]);
        Ok(model)
    }

    pub(crate) fn link(&self, key: Key, parent: Key, name: &[u8]) -> Change {
        if self.branch(key) != self.branch(parent) {
            return Err(Refusal::CrossView);
        }
        if self.node(key).kind == Kind::Directory {
            return Err(Refusal::NotPermitted);
        }
        if self.lookup(parent, name).is_some() {
            return Err(Refusal::Exists);
        }
        let mut model = self.clone();
        model.node_mut(parent).entries.insert(name.to_vec(), key);
        Ok(model)
    }

    pub(crate) fn remove(&self, parent: Key, name: &[u8], is_directory: bool) -> Change {
        let key = self.lookup(parent, name).ok_or(Refusal::NoEntry)?;
        match (self.node(key).kind == Kind::Directory, is_directory) {
            (true, false) => return Err(Refusal::IsDirectory),
            (false, true) => return Err(Refusal::NotDirectory),
            (true, true) if !self.node(key).entries.is_empty() => return Err(Refusal::NotEmpty),
            _ => {}
        }
        let mut model = self.clone();
        model.node_mut(parent).entries.remove(name);
        model.drop_unused(key);
        Ok(model)
    }

    pub(crate) fn rename(&self, from: Key, from_name: &[u8], to: Key, to_name: &[u8], mode: RenameMode) -> Change {
        if self.branch(from) != self.branch(to) {
            return Err(Refusal::CrossView);
        }
        let moved = self.lookup(from, from_name).ok_or(Refusal::NoEntry)?;
        let replaced = self.lookup(to, to_name);
        match (replaced, mode) {
            (Some(_), RenameMode::NoReplace) => return Err(Refusal::Exists),
            (None, RenameMode::Exchange) => return Err(Refusal::NoEntry),
            _ => {}
        }
        if self.is_below(to, moved) {
            return Err(Refusal::Invalid);
        }
        if mode == RenameMode::Exchange && replaced.is_some_and(|replaced| self.is_below(from, replaced)) {
            return Err(Refusal::Invalid);
        }
        let mut model = self.clone();
        if replaced == Some(moved) {
            return Ok(model);
        }
        let is_directory = |key: Key| self.node(key).kind == Kind::Directory;
        if let (Some(replaced), RenameMode::Replace) = (replaced, mode) {
            match (is_directory(moved), is_directory(replaced)) {
                (true, false) => return Err(Refusal::NotDirectory),
                (false, true) => return Err(Refusal::IsDirectory),
                (true, true) if !self.node(replaced).entries.is_empty() => return Err(Refusal::NotEmpty),
                _ => {}
            }
        }
        model.node_mut(from).entries.remove(from_name);
        model.node_mut(to).entries.insert(to_name.to_vec(), moved);
        match (replaced, mode) {
            (Some(replaced), RenameMode::Exchange) => {
                model.node_mut(from).entries.insert(from_name.to_vec(), replaced);
            }
            (Some(replaced), _) => model.drop_unused(replaced),
            _ => {}
        }
        Ok(model)
    }

    /// Whether `key` is `above` or lies below it.
    fn is_below(&self, key: Key, above: Key) -> bool {
        let mut at = Some(key);
        while let Some(key) = at {
            if key == above {
                return true;
            }
            at = self.parent(key);
        }
        false
    }

    /// An entry of a batch; the node that its name leads to then.
    pub(crate) fn batch_entry(
        &mut self,
        (parent, name): (Key, &[u8]),
        mut node: Node,
        (replaces, preserves): (bool, bool),
    ) -> Result<Key, Refusal> {
        if name.len() > base::limits::NAME_BYTES_MAX {
            return Err(Refusal::NameTooLong);
        }
        let found = self.lookup(parent, name);
        let is_directory = node.kind == Kind::Directory;
        if let Some(found) = found.filter(|found| is_directory && self.node(*found).kind == Kind::Directory) {
            if preserves {
                let there = self.node_mut(found);
                (there.mode, there.gid) = (node.mode, node.gid);
                there.xattrs.extend(node.xattrs);
            }
            return Ok(found);
        }
        self.batch_replaces(found, is_directory, replaces)?;
        if !preserves {
            self.inherit(parent, &mut node);
            if let Some(found) =
                found.filter(|found| (node.kind, self.node(*found).kind) == (Kind::Regular, Kind::Regular))
            {
                (node.mode, node.gid) = (self.node(found).mode, self.node(found).gid);
            }
        }
        let key = self.add(node);
        self.batch_name((parent, name), found, key);
        Ok(key)
    }

    /// Another name of a file, by a batch.
    pub(crate) fn batch_link(
        &mut self,
        (parent, name): (Key, &[u8]),
        key: Key,
        replaces: bool,
    ) -> Result<Key, Refusal> {
        if name.len() > base::limits::NAME_BYTES_MAX {
            return Err(Refusal::NameTooLong);
        }
        if self.node(key).kind == Kind::Directory {
            return Err(Refusal::NotPermitted);
        }
        if self.branch(key) != self.branch(parent) {
            return Err(Refusal::CrossView);
        }
        let found = self.lookup(parent, name);
        if found != Some(key) {
            self.batch_replaces(found, false, replaces)?;
            self.batch_name((parent, name), found, key);
        }
        Ok(key)
    }

    /// A name goes, and everything below it. What stays has names elsewhere or is held, and counts those that it lost until their turn comes.
    pub(crate) fn remove_tree(&self, parent: Key, name: &[u8]) -> Change {
        let top = self.lookup(parent, name).ok_or(Refusal::NoEntry)?;
        if self.node(top).kind != Kind::Directory {
            return self.remove(parent, name, false);
        }
        let mut model = self.clone();
        model.node_mut(parent).entries.remove(name);
        let below = self.below(top);
        for key in below.iter().filter(|key| self.node(**key).kind == Kind::Directory) {
            model.nodes.remove(key);
        }
        for key in below.iter().filter(|key| self.node(**key).kind != Kind::Directory) {
            let lost = self.names_of(*key).len() - model.names_of(*key).len();
            model.node_mut(*key).hidden += u32::try_from(lost).expect("few names");
            model.drop_unused(*key);
        }
        Ok(model)
    }

    /// A file or tree of `source`, which may be an old model of the same client, made once more; `is_old`: it is. Gives the new model, and its
    /// top.
    pub(crate) fn copy_tree(
        &self,
        (source, is_old): (&Model, bool),
        top: Key,
        parent: Key,
        name: &[u8],
    ) -> Result<(Model, Key), Refusal> {
        if name.len() > base::limits::NAME_BYTES_MAX {
            return Err(Refusal::NameTooLong);
        }
        if self.lookup(parent, name).is_some() {
            return Err(Refusal::Exists);
        }
        if !is_old && self.is_below(parent, top) {
            return Err(Refusal::Invalid);
        }
        let keys = self.clone_keys(source, top);
        let mut model = self.clone();
        for key in source.below(top) {
            let mut node = source.node(key).clone();
            (node.file, node.hidden) = (None, 0);
            // What was reserved beyond the end is not copied.
            let size = node.content.size();
            Arc::make_mut(&mut node.content).truncate(size);
            node.entries.values_mut().for_each(|child| *child = keys[child]);
            assert_eq!(model.add(node), keys[&key]);
        }
        model.node_mut(parent).entries.insert(name.to_vec(), keys[&top]);
        Ok((model, keys[&top]))
    }

    fn batch_replaces(&self, found: Option<Key>, is_directory: bool, replaces: bool) -> Result<(), Refusal> {
        let Some(found) = found else { return Ok(()) };
        match (replaces, is_directory, self.node(found).kind == Kind::Directory) {
            (false, _, _) => Err(Refusal::Exists),
            (true, true, _) => Err(Refusal::NotDirectory),
            (true, false, true) => Err(Refusal::IsDirectory),
            (true, false, false) => Ok(()),
        }
    }

    fn batch_name(&mut self, (parent, name): (Key, &[u8]), replaced: Option<Key>, key: Key) {
        self.node_mut(parent).entries.insert(name.to_vec(), key);
        if let Some(replaced) = replaced {
            self.drop_unused(replaced);
        }
    }

    /// The client does not use the file any more.
    pub(crate) fn forget(&self, key: Key) -> Model {
        let mut model = self.clone();
        model.held.remove(&key);
        model.drop_unused(key);
        model
    }

    fn drop_unused(&mut self, key: Key) {
        if !self.held.contains(&key) && self.names_of(key).is_empty() {
            self.nodes.remove(&key);
        }
    }
}

/// A name for people.
pub(crate) fn show(name: &[u8]) -> String {
    if name.len() > 40 {
        return format!("{}…({} bytes)", name[..12].escape_ascii(), name.len());
    }
    name.escape_ascii().to_string()
}
