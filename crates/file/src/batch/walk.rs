//! Walking a tree: entries from the leaves of directories, attributes from those of the catalog, many at a time.
//!
//! What a walk tells is what a listing of each directory and a look at each entry would have told at some moment of the walk: changes beside
//! it are seen, or not yet. What memory holds of it does not grow with the tree: of the directories on the way the entries that come are kept
//! while they are few, and listed again else.
//!
//! I-121 No directory is walked within itself, whatever a damaged tree says: the walk ends.
//!
//! Not here: who may see what (`node`); content (`read`).

use crate::attributes::{Attributes, Kind, Node, View};
use crate::failure::FileError;
use crate::format::Entry;
use crate::inode::Inode;
use crate::system::{FileSystem, SNAPSHOTS, untrue};

use super::stat::TOGETHER;

/// Entries that are kept of directories that are not at their turn, of some hundred bytes each.
const KEPT_MAX: usize = 16 * TOGETHER;

/// What a walk tells of one entry.
#[derive(Clone, Copy, Debug)]
pub struct Walked<'a> {
    /// Its path, seen from where the walk began, which is `b""`.
    pub path: &'a [u8],
    /// The file.
    pub node: Node,
    /// Of it. A file of several links comes once for each: its id tells.
    pub attributes: &'a Attributes,
}

/// Hears of each entry, or of a path whose attributes or entries cannot be read; `false`: no more.
pub type WalkTell<'a> = dyn FnMut(Result<Walked<'_>, (&[u8], FileError)>) -> bool + Send + 'a;

/// An entry that is listed and not told yet.
struct Listed {
    cookie: u64,
    name: Box<[u8]>,
    node: Node,
    attributes: Result<Attributes, FileError>,
}

/// Its cookie, file and name.
pub(super) type Named = (u64, Node, Box<[u8]>);

/// A directory on the way.
struct Level {
    node: Node,
    /// Bytes of the path up to here.
    path_bytes: usize,
    /// Where its listing goes on; `None`: all was listed.
    after: Option<u64>,
    listed: std::vec::IntoIter<Listed>,
}

impl Level {
    fn new(node: Node, path_bytes: usize) -> Level {
        Level { node, path_bytes, after: Some(0), listed: Vec::new().into_iter() }
    }

    /// Lets go of what it has to tell: it is listed again.
    fn forget(&mut self) {
        if let Some(next) = self.listed.next() {
            self.after = Some(next.cookie - 1);
            self.listed = Vec::new().into_iter();
        }
    }
}

/// A walk on its way.
pub(super) struct Walk<'a, 'b> {
    system: &'a FileSystem,
    levels: Vec<Level>,
    path: Vec<u8>,
    tell: &'a mut WalkTell<'b>,
}

impl FileSystem {
    /// Tells of `root` and of everything below it: a directory before what is in it, what is in it by the order of its tree, and what is in
    /// each of those before the next. The list of snapshots is entered only as `root`. What cannot be read is told of, and the rest goes on.
    ///
    /// # Errors
    /// Of `root`: `NoEntry`, `Stale`, or the store's.
    pub async fn batch_walk(&self, root: Node, tell: &mut WalkTell<'_>) -> Result<(), FileError> {
        let _time = self.platform.clock.timer(&self.counters.batch_walk);
        let mut walk = Walk::begin(self, root, tell).await?;
        while walk.step().await {}
        Ok(())
    }
}

impl<'a, 'b> Walk<'a, 'b> {
    /// Tells of `root`.
    pub(super) async fn begin(
        system: &'a FileSystem,
        root: Node,
        tell: &'a mut WalkTell<'b>,
    ) -> Result<Walk<'a, 'b>, FileError> {
        let attributes = system.attributes(root).await?;
        let mut walk = Walk { system, levels: Vec::new(), path: Vec::new(), tell };
        if !walk.enter(root, &attributes) {
            walk.levels.clear();
        }
        Ok(walk)
    }

    /// Tells of what is at the path now; if it is a directory, what is in it comes next. `false`: no more.
    fn enter(&mut self, node: Node, attributes: &Attributes) -> bool {
        if !(self.tell)(Ok(Walked { path: &self.path, node, attributes })) {
            return false;
        }
        if attributes.kind != Kind::Directory {
            return true;
        }
        if self.levels.iter().any(|level| level.node == node) {
            return self.fail(within_itself(node));
        }
        self.let_go();
        self.levels.push(Level::new(node, self.path.len()));
        true
    }

    /// The next entry, or some more of a listing. `false`: no more.
    pub(super) async fn step(&mut self) -> bool {
        let Some(level) = self.levels.last_mut() else { return false };
        self.path.truncate(level.path_bytes);
        let Some(listed) = level.listed.next() else { return self.list().await };
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(&listed.name);
        match listed.attributes {
            Ok(attributes) => self.enter(listed.node, &attributes),
            Err(error) => {
                let (system, directory) = (self.system, level.node);
                let was_removed =
                    is_removal(&error, listed.node) && !system.is_named(directory, listed.node, &listed.name).await;
                was_removed || self.fail(error)
            }
        }
    }

    /// Lists more of the directory whose turn it is, or leaves it.
    async fn list(&mut self) -> bool {
        let Some(level) = self.levels.last_mut() else { return false };
        let Some(after) = level.after else {
            self.levels.pop();
            return true;
        };
        match self.system.list_together(level.node, after).await {
            Ok((listed, after)) => {
                (level.listed, level.after) = (listed.into_iter(), after);
                true
            }
            Err((error, after)) => {
                level.after = after;
                is_removal(&error, level.node) || self.fail(error)
            }
        }
    }

    /// Tells that what is at the path now cannot be read.
    fn fail(&mut self, error: FileError) -> bool {
        (self.tell)(Err((&self.path, error)))
    }

    /// Keeps what is kept of the directories above within its bound.
    fn let_go(&mut self) {
        let mut kept: usize = self.levels.iter().map(|level| level.listed.len()).sum();
        for level in &mut self.levels {
            if kept <= KEPT_MAX {
                return;
            }
            kept -= level.listed.len();
            level.forget();
        }
    }
}

impl FileSystem {
    /// Entries of a directory after a cookie, with their attributes, and where to go on; with an error also, if there is more behind it.
    async fn list_together(
        &self,
        node: Node,
        after: u64,
    ) -> Result<(Vec<Listed>, Option<u64>), (FileError, Option<u64>)> {
        let (entries, after) = self.list_names(node, after).await?;
        let nodes: Vec<Node> = entries.iter().map(|(_, node, _)| *node).collect();
        let attributes = self.batch_stat(&nodes).await;
        let listed = entries.into_iter().zip(attributes);
        let listed = listed.map(|((cookie, node, name), attributes)| Listed { cookie, name, node, attributes });
        Ok((listed.collect(), after))
    }

    /// The same without attributes.
    pub(super) async fn list_names(
        &self,
        node: Node,
        after: u64,
    ) -> Result<(Vec<Named>, Option<u64>), (FileError, Option<u64>)> {
        if node == Node::live(SNAPSHOTS) {
            let listed = self.list_snapshots(after).into_iter();
            return Ok((listed.map(|entry| (entry.cookie, entry.node, entry.name[..].into())).collect(), None));
        }
        let more = |end| (end != u64::MAX).then_some(end);
        let directory = self.inode(node).await.map_err(|error| (error, None))?;
        self.list_ahead(&directory, after).await;
        let listed = self.list_past(&directory, after, TOGETHER).await;
        let (entries, end) = listed.map_err(|(error, end)| (error, more(end)))?;
        let named = |(cookie, Entry { file, name, .. })| (cookie, Node { view: node.view, file }, name);
        Ok((entries.into_iter().map(named).collect(), more(end)))
    }

    /// Whether a directory has this entry still.
    pub(super) async fn is_named(&self, directory: Node, node: Node, name: &[u8]) -> bool {
        if directory == Node::live(SNAPSHOTS) {
            return self.find_snapshot(name) == Some(node);
        }
        let Ok(directory) = self.inode(directory).await else { return false };
        let slots = self.slots(&directory, name).await;
        slots.is_ok_and(|slots| slots.find(name).is_some_and(|(_, entry)| entry.file == node.file))
    }

    /// Begins to read the leaves that a listing needs next.
    async fn list_ahead(&self, directory: &Inode, after: u64) {
        let _use = self.grace.enter(directory.file.number);
        let tree = directory.state.lock().base.tree.clone();
        self.trees.scan_ahead(&tree, after..=u64::MAX).await;
    }
}

/// Why a directory is not entered (I-121).
pub(super) fn within_itself(node: Node) -> FileError {
    let place = format!("directory {}", node.file);
    untrue("directory entry", place, "a directory below none of its own", &node.file).into()
}

/// Whether a file of the present is no more, as far as this error tells. A snapshot's go with it: who walks it hears of that.
pub(super) fn is_removal(error: &FileError, node: Node) -> bool {
    node.view == View::LIVE && matches!(error, FileError::NoEntry | FileError::Stale)
}
