//! Many files in one go.

use std::sync::Arc;

use base::time::Timestamp;
use bytes::Bytes;
use file::{
    BatchContent, BatchCopy, BatchEntry, BatchUnit, BatchWrite, BatchWriteReport, FileError, Kind, Node as FileNode,
    View,
};

use tokio::sync::oneshot;

use super::names::deletes;
use super::{Client, Done};
use crate::content::Content;
use crate::model::{Key, Model, Name, Node, Refusal, TOP, show};
use crate::plan::Sabotage;
use crate::shared::Stop;

/// Entries of a unit at most.
const ENTRIES_MAX: u64 = 14;

/// Nodes that a tree has at most that is copied: few enough for one frame, so that a copy is one step.
const COPIED_MAX: usize = 25;

/// A unit, and what is to come of it.
struct Unit {
    how: BatchWrite,
    entries: Vec<BatchEntry>,
    fates: Vec<Result<Key, Refusal>>,
    model: Model,
}

impl Unit {
    fn is_done(&self) -> bool {
        !self.how.atomic || self.fates.iter().all(Result::is_ok)
    }
}

impl Client {
    /// New directories, files of all kinds and other names, below one directory; some of them in the way of each other.
    pub(super) async fn batch_write(&mut self) -> Done {
        let model = self.model();
        let parent = self.any_directory(&model);
        let Some(unit) = self.unit(&model, parent) else { return Ok(()) };
        if unit.is_done() && unit.entries.len() > 1 && self.lies(Sabotage::TearUnits) {
            let torn = self.torn(&model, parent, &unit);
            return self.settle(&model, parent, unit, torn).await.map(drop);
        }
        let begun = self.begin(&model, parent, &unit).await;
        if !self.shared.plan.overlaps_units || self.random.one_in(3) {
            return self.finish(&model, parent, unit, begun).await.map(drop);
        }
        // The next begins while this one waits for the disks, and goes through what this one makes. Beside it: it may wait for its room.
        let Some(mut next) = self.unit(&unit.model, parent) else {
            return self.finish(&model, parent, unit, begun).await.map(drop);
        };
        let (send, receive) = oneshot::channel();
        let begin = self.begin(&model, parent, &next);
        self.shared.platform.tasks.spawn(
            "the next unit",
            Box::pin(async move {
                // Nobody waits for it where the unit before came to nothing.
                drop(send.send(begin.await));
            }),
        );
        if !self.finish(&model, parent, unit, begun).await? {
            return Ok(());
        }
        let Ok(begun) = receive.await else { return Err(Stop::Over) };
        let model = self.model();
        // What the one before it made has ids now.
        for (key, node) in model.nodes.iter().filter(|(_, node)| node.file.is_some()) {
            if next.model.nodes.contains_key(key) {
                next.model.node_mut(*key).file = node.file;
            }
        }
        self.finish(&model, parent, next, begun).await.map(drop)
    }

    /// A unit to a directory, and what is to come of it.
    fn unit(&mut self, model: &Model, parent: Key) -> Option<Unit> {
        let how = BatchWrite {
            replace: self.random.one_in(2),
            atomic: self.random.one_in(4),
            preserve: self.random.one_in(2),
            lists: false,
            umask: 0,
        };
        let mut unit = Unit { how, entries: Vec::new(), fates: Vec::new(), model: model.clone() };
        for _ in 0..1 + self.random.below(ENTRIES_MAX) {
            if unit.model.nodes.len() < super::NODES_MAX + 10 {
                self.add_entry(&mut unit, parent, how);
            }
        }
        if !unit.is_done() {
            unit.model = model.clone();
        }
        (!unit.entries.is_empty()).then_some(unit)
    }

    /// Its content is on its way.
    fn begin(
        &self,
        model: &Model,
        parent: Key,
        unit: &Unit,
    ) -> impl Future<Output = Result<BatchUnit, FileError>> + Send + use<> {
        let (system, directory) = (self.system.clone(), self.file(model, parent));
        let (entries, how) = (unit.entries.clone(), unit.how);
        async move { system.batch_begin(directory, entries, &how).await }
    }

    /// Its names are made; whether it happened.
    async fn finish(
        &mut self,
        model: &Model,
        parent: Key,
        unit: Unit,
        begun: Result<BatchUnit, FileError>,
    ) -> Result<bool, Stop> {
        let system = self.system.clone();
        self.settle(model, parent, unit, async move { system.batch_finish(begun?).await }).await
    }

    /// A unit as two, with everything durable in between.
    fn torn(
        &self,
        model: &Model,
        parent: Key,
        unit: &Unit,
    ) -> impl Future<Output = Result<BatchWriteReport, FileError>> + Send + use<> {
        let (system, directory) = (self.system.clone(), self.file(model, parent));
        let (mut entries, how) = (unit.entries.clone(), unit.how);
        async move {
            let rest = entries.split_off(entries.len() / 2);
            let mut report = system.batch_write(directory, entries, &how).await?;
            system.sync_all().await?;
            let further = system.batch_write(directory, rest, &how).await?;
            report.fates.extend(further.fates);
            report.is_done &= further.is_done;
            Ok(report)
        }
    }

    /// A unit is written; whether it happened.
    async fn settle(
        &mut self,
        model: &Model,
        parent: Key,
        unit: Unit,
        written: impl Future<Output = Result<BatchWriteReport, FileError>>,
    ) -> Result<bool, Stop> {
        let is_done = unit.is_done();
        let Unit { how, entries, fates, model: after } = unit;
        let shown: Vec<String> = entries.iter().map(|entry| show(&entry.path)).collect();
        let what = format!("batch to {}/ ({how:?}): {}", model.path(parent), shown.join(", "));
        let call = async {
            let report = written.await?;
            // A disk that gives no answer keeps an entry from being what it should: a fault like any other.
            let fault = report.fates.iter().find_map(|fate| fate.as_ref().err().filter(|error| is_fault(error)));
            fault.cloned().map_or(Ok(report), Err)
        };
        let Some(report) = self.change(what.clone(), Ok(after.clone()), None, call).await? else { return Ok(false) };
        if report.is_done != is_done {
            return Err(Stop::Wrong(format!("{what}: done is {}, should be {is_done}", report.is_done)));
        }
        compare(&report, &fates).map_err(|error| Stop::Wrong(format!("{what}: {error}")))?;
        if is_done {
            let made = fates.iter().zip(&report.fates);
            let made = made.filter_map(|(key, file)| Some((*key.as_ref().ok()?, *file.as_ref().ok()?)));
            self.shared.name_files(self.number, made.filter(|(key, _)| after.nodes.contains_key(key)));
        }
        Ok(true)
    }

    /// `rm -r` of anything that has a name.
    pub(super) async fn batch_remove(&mut self) -> Done {
        let model = self.model();
        let (parent, name) = match self.random.below(10) {
            0 => (self.any_directory(&model), self.new_name()),
            _ => match self.any_name(&model) {
                Some(name) => name,
                None => return Ok(()),
            },
        };
        // Else there is soon nothing.
        if model.lookup(parent, &name).is_some_and(|key| model.below(key).len() > model.nodes.len() / 2) {
            return Ok(());
        }
        let what = format!("remove tree {}", self.place(&model, parent, &name));
        let (system, directory) = (self.system.clone(), self.file(&model, parent));
        let change = model.remove_tree(parent, &name);
        self.change(what, change, None, async { deletes(system.batch_remove(directory, &name).await) }).await?;
        Ok(())
    }

    /// `cp -a` within the file system, of the present or of a snapshot.
    pub(super) async fn batch_copy(&mut self) -> Done {
        let model = self.model();
        let snapshot = if self.random.one_in(3) { self.any_snapshot() } else { None };
        let (source, view) = match &snapshot {
            Some((name, old)) => match self.system.find_snapshot(name.as_bytes()) {
                Some(node) => (old, node.view),
                None => return Ok(()),
            },
            None => (&model, View::LIVE),
        };
        let top = self.random.pick(&source.keys());
        let is_named = top == TOP || !source.names_of(top).is_empty();
        if !is_named || source.below(top).len() > COPIED_MAX {
            return Ok(());
        }
        let (parent, name) = (self.any_directory(&model), self.new_name());
        let change = model.copy_tree((source, view != View::LIVE), top, parent, &name);
        let (change, new) = match change {
            Ok((after, new)) => (Ok(after.clone()), Some((after, new))),
            Err(refusal) => (Err(refusal), None),
        };
        let what = format!("copy {} (view {}) to {}", source.path(top), view.0, self.place(&model, parent, &name));
        let (system, directory) = (self.system.clone(), self.file(&model, parent));
        let from = FileNode { view, file: self.file(source, top) };
        let how = BatchCopy { anew: None, tell: &|_, _| true, written: &|_, _| {} };
        let call = async {
            let report = match system.batch_copy(from, directory, &name, &how).await {
                // The keeper deleted the snapshot meanwhile: as if there had been no room.
                Err(FileError::Stale | FileError::NoEntry) if view != View::LIVE => return Ok(None),
                report => report?,
            };
            if matches!(report.ended, Some(FileError::Stale)) {
                return Ok(None);
            }
            if let Some((_, error)) = report.failed.into_iter().next() {
                return Err(if is_fault(&error) { error } else { FileError::Invalid("a copy lacks something") });
            }
            let Some((after, top)) = &new else { return Ok(Some(Vec::new())) };
            let (file, _) = system.lookup(FileNode::live(directory), &name).await?;
            let (mut files, mut at) = (vec![(*top, file.file)], 0);
            while at < files.len() {
                let (key, file) = files[at];
                for (name, child) in &after.node(key).entries {
                    files.push((*child, system.lookup(FileNode::live(file), name).await?.0.file));
                }
                at += 1;
            }
            Ok(Some(files))
        };
        let Some(made) = self.change(what, change, None, call).await? else { return Ok(()) };
        match made {
            Some(files) => self.shared.name_files(self.number, files.into_iter()),
            None => self.shared.withdraw(self.number),
        }
        Ok(())
    }

    fn add_entry(&mut self, unit: &mut Unit, parent: Key, how: BatchWrite) {
        let below = unit.model.below(parent);
        let directories: Vec<Key> =
            below.iter().copied().filter(|key| unit.model.node(*key).kind == Kind::Directory).collect();
        let home = self.random.pick(&directories);
        let names: Vec<Name> = unit.model.node(home).entries.keys().cloned().collect();
        let name = match names.is_empty() || self.random.one_in(2) {
            true => self.new_name(),
            false => names[self.random.index(names.len())].clone(),
        };
        let path = join(path_below(&unit.model, parent, home), &name);
        let place = (home, &name[..]);
        let kind = match self.random.below(10) {
            0..=5 => Kind::Regular,
            6 => Kind::Symlink,
            7..=8 => Kind::Directory,
            _ => {
                let key = self.random.pick(&below);
                let first = path_below(&unit.model, parent, key);
                if first.is_empty() {
                    return;
                }
                unit.fates.push(unit.model.batch_link(place, key, how.replace));
                unit.entries.push(entry(path, &Node::new(Kind::Regular, 0, 0, b""), BatchContent::Link(first)));
                return;
            }
        };
        let target = if kind == Kind::Symlink { self.new_name() } else { Vec::new() };
        let mut node = self.new_node(kind, &target);
        if self.random.one_in(5) {
            let value = self.random.content(300);
            node.xattrs.insert(format!("user.a{}", self.random.below(4)).into_bytes(), Arc::new(value));
        }
        let content = match kind {
            Kind::Regular => self.batch_content(Arc::make_mut(&mut node.content)),
            Kind::Symlink => BatchContent::Target(Bytes::from(target)),
            _ => BatchContent::None,
        };
        unit.entries.push(entry(path, &node, content));
        unit.fates.push(unit.model.batch_entry(place, node, (how.replace, how.preserve)));
    }

    fn batch_content(&mut self, content: &mut Content) -> BatchContent {
        let (mut runs, mut at) = (Vec::new(), 0);
        for _ in 0..self.random.below(3) {
            at += if self.random.one_in(2) { 0 } else { self.random.below(20_000) };
            let most = self.random.pick(&[300, 5000, 90_000]);
            let length = self.random.length(most);
            let data = self.random.content(length);
            content.write(at, &data);
            runs.push((at, Bytes::from(data)));
            at += length;
        }
        let size = if self.random.one_in(5) { at + self.random.below(9000) } else { at };
        content.truncate(size);
        BatchContent::Data(runs, size)
    }
}

fn is_fault(error: &FileError) -> bool {
    matches!(error, FileError::Store(_) | FileError::ReadOnly)
}

fn entry(path: Vec<u8>, node: &Node, content: BatchContent) -> BatchEntry {
    let time = Timestamp::new(1_000_000, 0);
    let xattrs = node.xattrs.iter().map(|(name, value)| (name.clone(), value.to_vec())).collect();
    let (kind, mode, gid) = (node.kind, node.mode, node.gid);
    BatchEntry { path, kind, mode, uid: 0, gid, modified: time, accessed: time, device: 0, xattrs, content }
}

fn join(mut above: Vec<u8>, name: &[u8]) -> Vec<u8> {
    if !above.is_empty() {
        above.push(b'/');
    }
    above.extend_from_slice(name);
    above
}

/// Where a node is, seen from a directory above it.
fn path_below(model: &Model, top: Key, key: Key) -> Vec<u8> {
    let mut names: Vec<Name> = Vec::new();
    let mut at = key;
    while at != top {
        // Of several names one that leads down from the top.
        let within = model.names_of(at).into_iter().find(|(parent, _)| *parent == top || is_below(model, *parent, top));
        let (parent, name) = within.expect("below the top");
        names.push(name);
        at = parent;
    }
    names.reverse();
    names.join(&b'/')
}

fn is_below(model: &Model, key: Key, top: Key) -> bool {
    model.parent(key).is_some_and(|parent| parent == top || is_below(model, parent, top))
}

fn compare(report: &BatchWriteReport, fates: &[Result<Key, Refusal>]) -> Result<(), String> {
    for (number, (found, expected)) in report.fates.iter().zip(fates).enumerate() {
        let agree = match (found, expected) {
            (Ok(_), Ok(_)) => true,
            (Err(error), Err(refusal)) => refusal.matches(error),
            (Ok(_), Err(_)) | (Err(_), Ok(_)) => false,
        };
        if !agree {
            let found: Result<_, &FileError> = found.as_ref();
            return Err(format!("entry {number} should be {expected:?}, is {found:?}"));
        }
    }
    Ok(())
}
