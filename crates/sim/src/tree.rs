//! What the file system shows of a client's directory: read through the public interface, node by node.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::id::FileId;
use file::{Attributes, FileError, FileSystem, Kind, Node as FileNode, Seek, View};

use crate::content::{Content, Ranges, index};
use crate::model::{self, Key, Model, Name};

/// A node as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) attributes: Attributes,
    pub(crate) xattrs: BTreeMap<Name, Arc<Vec<u8>>>,
    pub(crate) entries: BTreeMap<Name, (FileId, Kind)>,
    pub(crate) target: Vec<u8>,
    /// Of a regular file; `allocated` where it can be seen.
    pub(crate) content: Content,
}

impl Seen {
    /// Whether this file is the directory that is a clone: that lies in another branch.
    pub(crate) fn is_top_of_clone(&self, file: FileId) -> bool {
        self.attributes.parent.branch != file.branch
    }
}

/// A directory with all that is in it.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) top: FileId,
    pub(crate) nodes: BTreeMap<FileId, Seen>,
    /// What could not be read, in words. Empty unless damage is allowed.
    pub(crate) damage: Vec<String>,
}

/// Reads the directory `name` of the root of a view, and everything in it. Damage is noted, not an error, if that is allowed.
pub(crate) async fn read_tree(
    system: &FileSystem,
    view: View,
    name: &[u8],
    allows_damage: bool,
) -> Result<Tree, FileError> {
    let root = FileNode { view, file: FileId::ROOT };
    let (top, _) = system.lookup(root, name).await?;
    let mut tree = Tree { top: top.file, nodes: BTreeMap::new(), damage: Vec::new() };
    let mut waiting = vec![top.file];
    while let Some(file) = waiting.pop() {
        if tree.nodes.contains_key(&file) {
            continue;
        }
        match read_node(system, FileNode { view, file }).await {
            Ok(seen) => {
                waiting.extend(seen.entries.values().map(|(file, _)| *file));
                tree.nodes.insert(file, seen);
            }
            Err(error) if allows_damage => tree.damage.push(format!("{file}: {error}")),
            Err(error) => return Err(error),
        }
    }
    Ok(tree)
}

async fn read_node(system: &FileSystem, node: FileNode) -> Result<Seen, FileError> {
    let attributes = system.attributes(node).await?;
    let mut seen = Seen {
        xattrs: BTreeMap::new(),
        entries: BTreeMap::new(),
        target: Vec::new(),
        content: Content::empty(),
        attributes,
    };
    for name in system.xattrs(node).await? {
        seen.xattrs.insert(name.to_vec(), Arc::new(system.xattr(node, &name).await?.to_vec()));
    }
    match seen.attributes.kind {
        Kind::Directory => seen.entries = read_entries(system, node).await?,
        Kind::Symlink => seen.target = system.read_link(node).await?.to_vec(),
        Kind::Regular => seen.content = read_content(system, node, &seen.attributes).await?,
        _ => {}
    }
    Ok(seen)
}

async fn read_entries(system: &FileSystem, node: FileNode) -> Result<BTreeMap<Name, (FileId, Kind)>, FileError> {
    let (mut entries, mut after) = (BTreeMap::new(), 0);
    loop {
        let batch = system.read_directory(node, after, 7).await?;
        let Some(last) = batch.last() else { return Ok(entries) };
        after = last.cookie;
        entries.extend(batch.into_iter().map(|entry| (entry.name.to_vec(), (entry.node.file, entry.kind))));
    }
}

async fn read_content(system: &FileSystem, node: FileNode, attributes: &Attributes) -> Result<Content, FileError> {
    /// More than any client writes: what claims to be larger fails the comparison, not the allocator.
    const READ_BYTES_MAX: u64 = 64 << 20;
    let mut bytes = vec![0; index(attributes.size.min(READ_BYTES_MAX)) + 1];
    let count = system.read(node, 0, &mut bytes).await?;
    bytes.truncate(count);
    // Where more is allocated than lies below the size, nobody can see where.
    let seen = read_allocated(system, node, attributes.size).await?;
    let is_all = !attributes.is_preallocated && seen.total() == attributes.allocated;
    Ok(Content { bytes, allocated: is_all.then_some(seen) })
}

/// The ranges that are no holes.
async fn read_allocated(system: &FileSystem, node: FileNode, size: u64) -> Result<Ranges, FileError> {
    let (mut ranges, mut at) = (Ranges::default(), 0);
    while at < size {
        let data = match system.seek(node, at, Seek::Data).await {
            Ok(data) => data,
            Err(FileError::NoSuchOffset) => break,
            Err(error) => return Err(error),
        };
        at = system.seek(node, data, Seek::Hole).await?;
        ranges.insert(data..at);
    }
    Ok(ranges)
}

impl Tree {
    /// What differs between a model and this in names, kinds, modes, links, attributes and targets: everything but content. If
    /// nothing does, which file is which node. Stops after about `limit` differences.
    pub(crate) fn compare(&self, model: &Model, limit: usize) -> Result<BTreeMap<Key, FileId>, Vec<String>> {
        let (mut differences, mut pairs) = (Vec::new(), BTreeMap::new());
        let mut waiting = vec![(model::TOP, self.top)];
        while let Some((key, file)) = waiting.pop() {
            if differences.len() >= limit {
                break;
            }
            if let Some(before) = pairs.insert(key, file) {
                if before != file {
                    differences.push(format!("{}: two names lead to {before} and {file}", model.path(key)));
                }
                continue;
            }
            let Some(seen) = self.nodes.get(&file) else { continue };
            self.compare_node(model, key, file, seen, &mut differences);
            let node = model.node(key);
            for (name, child) in &node.entries {
                match seen.entries.get(name) {
                    Some((file, kind)) => {
                        waiting.push((*child, *file));
                        if *kind != model.node(*child).kind {
                            differences.push(format!("{}/{}: entry says {kind:?}", model.path(key), model::show(name)));
                        }
                    }
                    None => differences.push(format!("{}/{} is missing", model.path(key), model::show(name))),
                }
            }
            let extra = seen.entries.keys().filter(|name| !node.entries.contains_key(*name));
            differences.extend(extra.map(|name| format!("{}/{} should not be", model.path(key), model::show(name))));
        }
        let distinct: std::collections::BTreeSet<FileId> = pairs.values().copied().collect();
        if distinct.len() != pairs.len() {
            differences.push("one file stands for two".to_owned());
        }
        if differences.is_empty() { Ok(pairs) } else { Err(differences) }
    }

    fn compare_node(&self, model: &Model, key: Key, file: FileId, seen: &Seen, differences: &mut Vec<String>) {
        let node = model.node(key);
        let attributes = &seen.attributes;
        let mut expect = |what: &str, expected: u64, found: u64| {
            if expected != found {
                differences.push(format!("{}: {what} should be {expected}, is {found}", model.path(key)));
            }
        };
        expect("kind", node.kind as u64, attributes.kind as u64);
        expect("mode", u64::from(node.mode), u64::from(attributes.mode));
        expect("group", u64::from(node.gid), u64::from(attributes.gid));
        if !model.may_have_links(key, attributes.links) {
            expect("link count", u64::from(model.links(key)), u64::from(attributes.links));
        }
        expect("id", node.file.unwrap_or(file).number, file.number);
        expect("branch", u64::from(node.file.unwrap_or(file).branch), u64::from(file.branch));
        expect("own id", file.number, attributes.file.number);
        match node.kind {
            Kind::Regular => expect("count of bytes that can be read", attributes.size, seen.content.size()),
            _ => expect("size", model.size(key), attributes.size),
        }
        if node.kind == Kind::Directory
            && let Some(parent) = model.parent(key).and_then(|parent| model.node(parent).file)
        {
            expect("parent", parent.number, attributes.parent.number);
        }
        if node.xattrs != seen.xattrs {
            let (expected, found) = (show_xattrs(&node.xattrs), show_xattrs(&seen.xattrs));
            differences.push(format!("{}: attributes should be {expected}, are {found}", model.path(key)));
        }
        if node.target != seen.target {
            let (expected, found) = (model::show(&node.target), model::show(&seen.target));
            differences.push(format!("{}: target should be {expected}, is {found}", model.path(key)));
        }
    }

    /// A model of what was read.
    pub(crate) fn to_model(&self) -> Model {
        let top = &self.nodes[&self.top];
        let mut model = Model::new(to_node(top));
        let mut keys = BTreeMap::from([(self.top, model::TOP)]);
        for (file, seen) in self.nodes.iter().filter(|(file, _)| **file != self.top) {
            keys.insert(*file, model.add(to_node(seen)));
        }
        for (file, seen) in &self.nodes {
            let entries = seen.entries.iter().filter_map(|(name, (file, _))| Some((name.clone(), *keys.get(file)?)));
            model.node_mut(keys[file]).entries = entries.collect();
        }
        for (file, seen) in self.nodes.iter().filter(|(_, seen)| seen.attributes.kind != Kind::Directory) {
            let names = u32::try_from(model.names_of(keys[file]).len()).expect("few names");
            model.node_mut(keys[file]).hidden = seen.attributes.links.saturating_sub(names);
        }
        model
    }
}

fn to_node(seen: &Seen) -> model::Node {
    model::Node {
        kind: seen.attributes.kind,
        mode: seen.attributes.mode,
        gid: seen.attributes.gid,
        file: Some(seen.attributes.file),
        xattrs: seen.xattrs.clone(),
        entries: BTreeMap::new(),
        hidden: 0,
        target: seen.target.clone(),
        content: Arc::new(seen.content.clone()),
    }
}

fn show_xattrs(xattrs: &BTreeMap<Name, Arc<Vec<u8>>>) -> String {
    let shown: Vec<String> =
        xattrs.iter().map(|(name, value)| format!("{}={} bytes", model::show(name), value.len())).collect();
    format!("{{{}}}", shown.join(", "))
}
