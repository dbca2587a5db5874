//! Looking: reads, listings and attributes compared with the model; and making things durable.

use std::collections::{BTreeMap, BTreeSet};

use base::id::FileId;
use file::{Attributes, FileError, Kind, Node as FileNode, Seek, View};

use super::{Client, Done};
use crate::content::index;
use crate::model::{Key, Model, Name, show};
use crate::oracle::{Floors, Window};
use crate::plan::Sabotage;
use crate::shared::Stop;
use crate::tree::read_tree;

impl Client {
    pub(super) async fn read(&mut self) -> Done {
        let model = self.model();
        let Some(key) = self.any_file(&model) else { return Ok(()) };
        let content = model.node(key).content.clone();
        let (offset, length) = match self.random.below(3) {
            0 => (0, content.size() + 10),
            _ => (self.random.below(content.size() + 10), self.random.length(100_000)),
        };
        let what = format!("read {length} bytes at {offset} of {}", model.path(key));
        self.log(&what);
        let (system, node) = (self.system.clone(), self.node(&model, key));
        let mut buffer = vec![0xee; index(length)];
        let Some(count) = self.look(&what, system.read(node, offset, &mut buffer)).await? else { return Ok(()) };
        let expected = content.slice(offset, length);
        if count != expected.len() {
            return Err(Stop::Wrong(format!("{what}: {} bytes expected, {count} read", expected.len())));
        }
        match expected.iter().zip(&buffer).position(|(expected, found)| expected != found) {
            None => Ok(()),
            Some(at) => Err(Stop::Wrong(format!(
                "{what}: byte {} should be {:#04x}, is {:#04x}",
                offset + at as u64,
                expected[at],
                buffer[at]
            ))),
        }
    }

    pub(super) async fn seek(&mut self) -> Done {
        let model = self.model();
        let Some(key) = self.any_file(&model) else { return Ok(()) };
        let content = model.node(key).content.clone();
        let Some(allocated) = &content.allocated else { return Ok(()) };
        let (size, offset) = (content.size(), self.random.below(content.size() + 2));
        let what = self.random.pick(&[Seek::Data, Seek::Hole]);
        let expected = match what {
            _ if offset >= size => None,
            Seek::Data => allocated.next_inside(offset).filter(|data| *data < size),
            Seek::Hole => Some(allocated.next_outside(offset).min(size)),
        };
        let said = format!("seek {what:?} from {offset} of {} ({size} bytes)", model.path(key));
        self.log(&said);
        let (system, node) = (self.system.clone(), self.node(&model, key));
        let call = async {
            match system.seek(node, offset, what).await {
                Ok(found) => Ok(Some(found)),
                Err(file::FileError::NoSuchOffset) => Ok(None),
                Err(error) => Err(error),
            }
        };
        match self.look(&said, call).await? {
            Some(found) if found != expected => Err(Stop::Wrong(format!(
                "{said}: {found:?}, not {expected:?}; data is at {:?}",
                allocated.within(0..size)
            ))),
            _ => Ok(()),
        }
    }

    /// A whole directory, in small batches.
    pub(super) async fn list(&mut self) -> Done {
        let model = self.model();
        let key = self.any_directory(&model);
        let what = format!("list {}/", model.path(key));
        self.log(&what);
        let Some(found) = self.listing(&model, key, false).await? else { return Ok(()) };
        let expected: BTreeSet<&Name> = model.node(key).entries.keys().collect();
        if found.keys().collect::<BTreeSet<_>>() != expected {
            return Err(Stop::Wrong(format!(
                "{what}: {} expected, {} found",
                show_names(&expected),
                show_names(&found.keys().collect())
            )));
        }
        for (name, (file, kind)) in found {
            let child = model.node(model.node(key).entries[&name]);
            if child.file != Some(file) || child.kind != kind {
                return Err(Stop::Wrong(format!("{what}: {} is {file} {kind:?}, not {child:?}", show(&name))));
            }
        }
        Ok(())
    }

    /// Reads batch after batch; with `is_changing` the directory changes between them. `None`: a fault.
    async fn listing(
        &mut self,
        model: &Model,
        key: Key,
        is_changing: bool,
    ) -> Result<Option<BTreeMap<Name, (FileId, Kind)>>, Stop> {
        let (system, node) = (self.system.clone(), self.node(model, key));
        let (mut found, mut after) = (BTreeMap::new(), 0);
        loop {
            let limit = 1 + self.random.index(5);
            let batch = self.look("list", system.read_directory(node, after, limit)).await?;
            let Some(batch) = batch else { return Ok(None) };
            if batch.is_empty() {
                return Ok(Some(found));
            }
            for entry in batch {
                if entry.cookie <= after {
                    return Err(Stop::Wrong(format!(
                        "cookie {} of {:?} is not after {after}",
                        entry.cookie, entry.name
                    )));
                }
                after = entry.cookie;
                found.insert(entry.name.to_vec(), (entry.node.file, entry.kind));
            }
            if is_changing {
                self.change_entry(key).await?;
            }
        }
    }

    async fn change_entry(&mut self, key: Key) -> Done {
        let model = self.model();
        let files: Vec<Name> = model
            .node(key)
            .entries
            .iter()
            .filter(|(_, child)| model.node(**child).kind != Kind::Directory)
            .map(|(name, _)| name.clone())
            .collect();
        if files.is_empty() || self.random.one_in(2) {
            let name = self.new_name();
            return self.create_at(&model, key, &name, Kind::Regular).await;
        }
        let name = files[self.random.index(files.len())].clone();
        self.remove_at(&model, key, &name).await
    }

    /// What is there from beginning to end must be listed; what never was must not.
    pub(super) async fn list_while_changing(&mut self) -> Done {
        let model = self.model();
        let key = self.any_directory(&model);
        let start = self.shared.state().histories[self.number].last();
        let what = format!("list {}/ while it changes", model.path(key));
        self.log(&what);
        let Some(found) = self.listing(&model, key, true).await? else { return Ok(()) };
        let state = self.shared.state();
        let steps = &state.histories[self.number].steps[start..];
        let has = |step: &crate::history::Step, name: &Name| step.model.node(key).entries.contains_key(name);
        for name in found.keys() {
            if !steps.iter().any(|step| has(step, name)) {
                return Err(Stop::Wrong(format!("{what}: {} was never there", show(name))));
            }
        }
        for name in model.node(key).entries.keys() {
            if steps.iter().all(|step| has(step, name)) && !found.contains_key(name) {
                return Err(Stop::Wrong(format!("{what}: {} was not listed", show(name))));
            }
        }
        Ok(())
    }

    pub(super) async fn look_at_one(&mut self) -> Done {
        let model = self.model();
        let keys = model.keys();
        let key = self.random.pick(&keys);
        self.log(&format!("stat {}", model.path(key)));
        let (system, node) = (self.system.clone(), self.node(&model, key));
        match self.look("stat", system.attributes(node)).await? {
            Some(attributes) => self.expect_attributes(key, &attributes).await,
            None => Ok(()),
        }
    }

    /// Compares attributes with the model of now.
    pub(super) async fn expect_attributes(&self, key: Key, found: &Attributes) -> Done {
        let model = self.model();
        let node = model.node(key);
        let allocated = match (&node.content.allocated, node.kind) {
            (Some(allocated), Kind::Regular) => allocated.total(),
            _ => found.allocated,
        };
        let links = if model.may_have_links(key, found.links) { found.links } else { model.links(key) };
        let expected = (node.kind, node.mode, node.gid, links, model.size(key));
        let is = (found.kind, found.mode, found.gid, found.links, found.size);
        let is_same = expected == is && node.file == Some(found.file);
        if is_same && (allocated == found.allocated || self.could_not_count(found.file, allocated).await) {
            return Ok(());
        }
        let (expected, is) = ((expected, allocated), (is, found.allocated));
        let what = "kind, mode, group, links, size and allocation";
        Err(Stop::Wrong(format!("{what} of {} should be {expected:?}, are {is:?}", model.path(key))))
    }

    /// Whether the room that a file takes was told as it last was, because its extents could not be read: then they still cannot, or the room is
    /// right now, and the disk gave other bytes before. Without power they cannot, and nobody sees what is told.
    async fn could_not_count(&self, file: FileId, allocated: u64) -> bool {
        if !self.shared.is_powered() {
            return true;
        }
        self.shared.plan.may_lose()
            && match self.system.describe(FileNode::live(file)).await {
                Ok(now) => now.attributes.allocated == allocated,
                Err(error) => matches!(error, FileError::Store(_)),
            }
    }

    pub(super) async fn look_up(&mut self) -> Done {
        let model = self.model();
        let parent = self.any_directory(&model);
        let name = if self.random.one_in(3) { self.new_name() } else { self.any_name(&model).unwrap_or_default().1 };
        if name.is_empty() || name.len() > 255 {
            return Ok(());
        }
        let what = format!("look up {}", self.place(&model, parent, &name));
        let (system, node) = (self.system.clone(), self.node(&model, parent));
        let call = async {
            match system.lookup(node, &name).await {
                Ok((node, _)) => Ok(Some(node.file)),
                Err(FileError::NoEntry) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let expected = model.lookup(parent, &name).and_then(|key| model.node(key).file);
        match self.look(&what, call).await? {
            Some(found) if found != expected => Err(Stop::Wrong(format!("{what}: {found:?}, not {expected:?}"))),
            _ => Ok(()),
        }
    }

    /// The whole directory with all content: exactly the model.
    pub(super) async fn look_at_all(&mut self) -> Done {
        if self.shared.plan.batches {
            self.look_at_masses().await?;
        }
        self.log("compare everything");
        let (system, directory) = (self.system.clone(), Client::directory(self.number));
        let call = read_tree(&system, View::LIVE, &directory, false);
        let Some(tree) = self.look("compare everything", call).await? else { return Ok(()) };
        let history = self.shared.state().histories[self.number].clone();
        let last = history.last();
        let window = Window { history: &history, names: last, content: last, last, floors: Floors::Synced };
        window.verify(&tree).map(|_| ()).map_err(Stop::Wrong)
    }

    pub(super) async fn sync_file(&mut self) -> Done {
        let model = self.model();
        let Some(key) = self.any_file(&model) else { return Ok(()) };
        self.sync_one(&model, key).await
    }

    pub(super) async fn sync_directory(&mut self) -> Done {
        let model = self.model();
        let key = self.any_directory(&model);
        self.sync_one(&model, key).await
    }

    async fn sync_one(&mut self, model: &Model, key: Key) -> Done {
        let what = format!("fsync {}", model.path(key));
        self.log(&what);
        let acknowledged = self.shared.acknowledged();
        let (system, file) = (self.system.clone(), self.file(model, key));
        let result = if self.lies(Sabotage::SkipSyncs) { Ok(()) } else { system.sync(file).await };
        match result {
            Ok(()) => self.shared.synced(&acknowledged, Some((self.number, key)), false),
            Err(error) => self.judge(&what, &error)?,
        }
        Ok(())
    }

    pub(super) async fn sync_all(&mut self) -> Done {
        self.log("sync everything");
        let acknowledged = self.shared.acknowledged();
        match self.system.clone().sync_all().await {
            Ok(()) => self.shared.synced(&acknowledged, None, true),
            Err(error) => self.judge("sync everything", &error)?,
        }
        Ok(())
    }

    pub(super) async fn commit(&mut self) -> Done {
        self.log("commit");
        let acknowledged = self.shared.acknowledged();
        match self.system.clone().commit().await {
            Ok(()) => self.shared.synced(&acknowledged, None, false),
            Err(error) => self.judge("commit", &error)?,
        }
        Ok(())
    }
}

fn show_names(names: &BTreeSet<&Name>) -> String {
    names.iter().map(|name| show(name)).collect::<Vec<_>>().join(" ")
}
