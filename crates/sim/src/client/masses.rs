//! Looking at many files at once: all content as a batch, all names and attributes by a walk; and having small files lie together.

use std::collections::BTreeMap;
use std::future::ready;

use bytes::Bytes;
use file::{
    Attributes, BatchFate, BatchOptimize, BatchRead, BatchSink, BatchWarm, FileError, Kind, Node as FileNode, Share,
    Taken, Walked,
};
use parking_lot::Mutex;

use super::{Client, Done};
use crate::content::index;
use crate::model::{Key, Model, Name, TOP, show};
use crate::shared::Stop;

/// As little as a batch takes, so that it goes in parts.
const MEMORY: u64 = 0;
const OPTIMIZE: BatchOptimize<'_> = BatchOptimize {
    small_bytes: 32 << 10,
    is_rehearsal: false,
    share: Share::FULL,
    tell: &|_, _| true,
    fail: &|_, _| (),
};

type Fates = BTreeMap<usize, Result<Vec<u8>, FileError>>;

/// Takes what a batch reads.
#[derive(Default)]
struct Basket {
    now: Mutex<Vec<u8>>,
    fates: Mutex<Fates>,
}

impl BatchSink for Basket {
    fn begin(&self, _index: usize, _attributes: &Attributes) {
        self.now.lock().clear();
    }

    fn piece(&self, _index: usize, offset: u64, content: Bytes) -> Taken<'_> {
        let mut now = self.now.lock();
        now.resize(index(offset), 0);
        now.extend_from_slice(&content);
        Box::pin(async { true })
    }

    fn done(&self, number: usize, fate: BatchFate) {
        let mut bytes = std::mem::take(&mut *self.now.lock());
        let fate = match fate {
            BatchFate::Whole(attributes) => {
                bytes.resize(index(attributes.size), 0);
                Ok(bytes)
            }
            BatchFate::Torn(_) => unreachable!("nobody writes meanwhile"),
            BatchFate::Failed(error) => Err(error),
        };
        self.fates.lock().insert(number, fate);
    }
}

impl Client {
    pub(super) async fn look_at_masses(&mut self) -> Done {
        let model = self.model();
        self.walk_all(&model).await?;
        if self.random.one_in(3) && !self.is_tight() {
            self.log("bring small files together");
            let (system, top) = (self.system.clone(), self.file(&model, TOP));
            let optimized = system.batch_optimize(top, &OPTIMIZE).await;
            if self.look("bring small files together", ready(optimized)).await?.is_none() {
                return Ok(());
            }
        }
        if self.shared.plan.keeps_layout && self.random.one_in(2) && !self.warm_up(&model).await? {
            return Ok(());
        }
        self.read_all(&model).await
    }

    /// Reads everything into memory, as much as fits: what cannot be read is told by its path.
    async fn warm_up(&mut self, model: &Model) -> Result<bool, Stop> {
        self.log("warm up");
        let failed = Mutex::new(Vec::new());
        let fail = |_, path: &[u8], error| failed.lock().push((show(path), error));
        let how = BatchWarm { is_metadata_only: self.random.one_in(4), tell: &|_, _| true, fail: &fail };
        let (system, root) = (self.system.clone(), self.node(model, TOP));
        let warmed = system.batch_warm(&[root], &how).await.map_err(|(_, error)| error);
        let Some(report) = self.look("warm up", ready(warmed)).await? else { return Ok(false) };
        if !report.is_done && !report.is_full {
            return Err(Stop::Wrong(format!("a warm-up came to no end: {report:?}")));
        }
        for (path, error) in failed.into_inner() {
            self.look::<()>(&format!("warm {path} up"), ready(Err(error))).await?;
        }
        Ok(true)
    }

    /// The content of all files of the directory.
    async fn read_all(&mut self, model: &Model) -> Done {
        self.log("read everything as a batch");
        let files = model.regular_files();
        let nodes: Vec<FileNode> = files.iter().map(|key| self.node(model, *key)).collect();
        let basket = Basket::default();
        let report = self.system.clone().batch_read(&nodes, &BatchRead { memory: MEMORY, sink: &basket }).await;
        let fates = basket.fates.into_inner();
        if !report.is_done || fates.len() != nodes.len() {
            return Err(Stop::Wrong(format!("a batch of {} files: {report:?}, {} fates", nodes.len(), fates.len())));
        }
        for (number, fate) in fates {
            let what = format!("{} in a batch", model.path(files[number]));
            let Some(found) = self.look(&what, ready(fate)).await? else { continue };
            let content = &model.node(files[number]).content;
            if content.slice(0, content.size()) != found {
                return Err(Stop::Wrong(format!("{what} is not what was written")));
            }
        }
        Ok(())
    }

    /// All names, and what they lead to.
    async fn walk_all(&mut self, model: &Model) -> Done {
        self.log("walk everything");
        let mut found: BTreeMap<Name, (FileNode, Kind)> = BTreeMap::new();
        let mut failed = Vec::new();
        let mut tell = |walked: Result<Walked<'_>, (&[u8], FileError)>| {
            match walked {
                Ok(Walked { path, node, attributes }) => found.extend([(path.to_vec(), (node, attributes.kind))]),
                Err((path, error)) => failed.push((show(path), error)),
            }
            true
        };
        let (system, root) = (self.system.clone(), self.node(model, TOP));
        let walked = system.batch_walk(root, &mut tell).await;
        if self.look("walk everything", ready(walked)).await?.is_none() {
            return Ok(());
        }
        let is_whole = failed.is_empty();
        for (path, error) in failed {
            self.look::<()>(&format!("walk to {path}"), ready(Err(error))).await?;
        }
        let mut expected = BTreeMap::new();
        self.paths(model, TOP, Vec::new(), &mut expected);
        if is_whole && found != expected {
            let paths = |of: &BTreeMap<Name, _>| of.keys().map(|path| show(path)).collect::<Vec<_>>().join(", ");
            return Err(Stop::Wrong(format!("a walk told {}, expected {}", paths(&found), paths(&expected))));
        }
        Ok(())
    }

    fn paths(&self, model: &Model, key: Key, path: Name, paths: &mut BTreeMap<Name, (FileNode, Kind)>) {
        for (name, child) in &model.node(key).entries {
            let path = if path.is_empty() { name.clone() } else { [&path[..], name].join(&b'/') };
            self.paths(model, *child, path, paths);
        }
        paths.insert(path, (self.node(model, key), model.node(key).kind));
    }
}
