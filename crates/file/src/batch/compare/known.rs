//! What two catalogs tell of the difference between two states of the same files.
//!
//! A file has one number in all of its states, and all that there is to know of it is in the value of that number: attributes, and the root of
//! its entries or extents. So the values that differ, which are found without reading what the two catalogs share, are all files that differ
//! and have a name in both; what has one in one of them only, its directory tells. Of the present what memory has comes on top.
//!
//! What differs is to be found by its path. A directory says which one it lies in, so the way to it is known at once. Another file says
//! where it was made or moved to last; that is a hint, for it may have several names, and files of older programs have none: that
//! directory is read, and if the file is not there, or has more names, all directories below the one that is compared are, until all are found.
//! Names only: no inode but those of directories.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::Ordering;

use base::id::FileId;
use foldhash::fast::FixedState;

use crate::attributes::{Attributes, Kind, Node, View};
use crate::failure::FileError;
use crate::format::InodeValue;
use crate::prune::Numbers;
use crate::system::{FileSystem, undecodable};
use crate::tree::{Difference, Step};

use super::super::stat::TOGETHER;

/// Two catalogs, each of a branch in a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Catalogs {
    before: (View, u32),
    after: (View, u32),
}

impl Catalogs {
    /// In which two files are looked up.
    pub(super) fn of(before: Node, after: Node) -> Catalogs {
        let catalog = |node: Node| (node.view, node.file.branch);
        Catalogs { before: catalog(before), after: catalog(after) }
    }

    fn after(&self, number: u64) -> Node {
        Node { view: self.after.0, file: FileId { branch: self.after.1, number } }
    }
}

/// What differs.
pub(super) struct Known {
    catalogs: Catalogs,
    /// Files in both whose inodes differ.
    changed: HashSet<u64, FixedState>,
    /// Of a directory those entries, by the numbers of their files, that differ or have something below that does. Of all directories but
    /// those that have one of `unplaced`.
    below: HashMap<u64, HashSet<u64, FixedState>, FixedState>,
    /// Files that differ and have names that were not found: how many.
    unplaced: HashMap<u64, u32, FixedState>,
    /// Directories whose names were read.
    looked_in: Numbers,
    searched: u64,
}

/// A file that differs, as the second catalog has it.
struct Changed {
    number: u64,
    kind: Kind,
    links: u32,
    /// The directory that it lies in, or may.
    parent: FileId,
}

impl Changed {
    fn of(attributes: &Attributes) -> Changed {
        let Attributes { file, kind, links, parent, .. } = *attributes;
        Changed { number: file.number, kind, links, parent }
    }
}

impl FileSystem {
    /// What differs between two catalogs; `None`: too much.
    pub(super) async fn known(
        &self,
        catalogs: &Catalogs,
        in_memory: &HashSet<FileId, FixedState>,
        changed_max: usize,
    ) -> Result<Option<Known>, FileError> {
        let Some(mut found) = self.changed_inodes(catalogs, changed_max).await? else { return Ok(None) };
        self.add_changed_in_memory(catalogs, in_memory, &mut found).await;
        if found.len() > changed_max {
            return Ok(None);
        }
        let mut known = Known {
            catalogs: *catalogs,
            changed: found.iter().map(|changed| changed.number).collect(),
            below: HashMap::default(),
            unplaced: HashMap::default(),
            looked_in: Numbers::default(),
            searched: 0,
        };
        let (directories, files): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|changed| changed.kind == Kind::Directory);
        let mut entered: BTreeSet<u64> = directories.iter().map(|changed| changed.number).collect();
        entered.extend(known.place_by_hints(self, files).await?);
        for (above, top) in self.clones_in(catalogs).await? {
            known.note(above, top);
            entered.insert(above);
        }
        known.place(self, entered).await?;
        Ok(Some(known))
    }

    /// Files of both catalogs whose values differ in what counts.
    async fn changed_inodes(&self, catalogs: &Catalogs, changed_max: usize) -> Result<Option<Vec<Changed>>, FileError> {
        let _use = self.grace.enter(u64::from(catalogs.after.1));
        let roots = self.roots.lock().clone();
        let (view, branch) = catalogs.before;
        let before = self.catalog(&roots, view, branch).await?;
        let (view, branch) = catalogs.after;
        let after = self.catalog(&roots, view, branch).await?;
        let mut difference = Difference::begin(&self.trees, &after, &before).await?;
        let mut found = Vec::new();
        while let Some(step) = difference.next(&self.trees).await? {
            let Step::Value { key, value, other: Some(other) } = step else { continue };
            let decode = |branch, bytes| {
                let file = FileId { branch, number: key };
                let wrong = |error| undecodable("inode", format!("catalog entry of {file}"), error);
                InodeValue::decode(file, bytes).map_err(wrong)
            };
            let (is, was) = (decode(catalogs.after.1, &value)?, decode(catalogs.before.1, &other)?);
            if counts(&was, &is) {
                found.push(Changed::of(&is.attributes));
            }
            if found.len() > changed_max {
                return Ok(None);
            }
            if self.is_ending() {
                return Err(FileError::Busy("the node is being closed"));
            }
        }
        Ok(Some(found))
    }

    /// Those that memory has something newer of, on one side or both, and that the second has.
    async fn add_changed_in_memory(
        &self,
        catalogs: &Catalogs,
        in_memory: &HashSet<FileId, FixedState>,
        found: &mut Vec<Changed>,
    ) {
        let sides = [catalogs.before, catalogs.after].map(|(view, branch)| (view == View::LIVE).then_some(branch));
        let is_of_one = |file: &&FileId| sides.contains(&Some(file.branch));
        let numbers: BTreeSet<u64> = in_memory.iter().filter(is_of_one).map(|file| file.number).collect();
        let nodes: Vec<Node> = numbers.into_iter().map(|number| catalogs.after(number)).collect();
        // What is not there has no name there either.
        found.extend(self.batch_stat(&nodes).await.iter().flatten().map(Changed::of));
    }

    /// Clones in directories of the second catalog: each has one of its own. The directory's number, and that of the clone.
    async fn clones_in(&self, catalogs: &Catalogs) -> Result<Vec<(u64, u64)>, FileError> {
        let (view, home) = catalogs.after;
        let branches = if view == View::LIVE {
            self.branches.lock().clone()
        } else {
            let list = self.snapshots.lock().get(&view.0).ok_or(FileError::Stale)?.branches.clone();
            let (listed, lost) = self.scan_branches(&list).await;
            match lost.into_iter().next() {
                Some((_, error)) => return Err(error.into()),
                None => listed,
            }
        };
        // One that was renamed since the last commit has a directory that has changed, and comes by itself if that is another one.
        let tops = branches.values().filter(|value| value.top != 0 && value.above.branch == home);
        Ok(tops.map(|value| (value.above.number, value.top)).collect())
    }
}

/// Whether two inodes differ in anything that is compared.
fn counts(was: &InodeValue, is: &InodeValue) -> bool {
    let seen = |value: &InodeValue| {
        let Attributes { kind, mode, uid, gid, device, size, modified, .. } = value.attributes;
        (kind, mode, uid, gid, device, size, (kind != Kind::Directory).then_some(modified))
    };
    seen(was) != seen(is) || {
        let (was, is) = (&was.base, &is.base);
        (&was.tree, &was.target, &was.xattrs) != (&is.tree, &is.target, &is.xattrs)
    }
}

impl Known {
    /// Whether two files are equal, with everything below them, where it was searched if not all have a place.
    pub(super) fn is_equal(&self, before: Node, after: Node) -> bool {
        let number = after.file.number;
        let is_same = before.file.number == number && Catalogs::of(before, after) == self.catalogs;
        is_same && !self.changed.contains(&number) && !self.below.contains_key(&number)
    }

    pub(super) fn is_changed(&self, number: u64) -> bool {
        self.changed.contains(&number)
    }

    /// The entries of a directory that are to be looked at beside those that differ, if there are any: by the numbers of their files.
    pub(super) fn below(&self, number: u64) -> Option<&HashSet<u64, FixedState>> {
        self.below.get(&number)
    }

    /// Whether all that differ have a place.
    pub(super) fn is_complete(&self) -> bool {
        self.unplaced.is_empty()
    }

    /// Names that were read in search since the last call.
    pub(super) fn take_searched(&mut self) -> u64 {
        std::mem::take(&mut self.searched)
    }

    /// Whether it is news that an entry is to be looked at.
    fn note(&mut self, directory: u64, number: u64) -> bool {
        self.below.entry(directory).or_default().insert(number)
    }

    /// Looks for files where they say that they lie, or were seen last. Gives the directories that have some.
    async fn place_by_hints(&mut self, system: &FileSystem, files: Vec<Changed>) -> Result<BTreeSet<u64>, FileError> {
        let mut hints = BTreeSet::new();
        // Those without names are open, and nothing of any tree.
        for Changed { number, links, parent, .. } in files.into_iter().filter(|changed| changed.links > 0) {
            self.unplaced.insert(number, links);
            if parent != FileId::NONE {
                hints.insert(parent.number);
            } else if let Some(inode) = system.table.find(self.catalogs.after(number)) {
                hints.insert(inode.seen_in.load(Ordering::Relaxed));
            }
        }
        let mut having = BTreeSet::new();
        for number in hints.into_iter().filter(|number| *number != 0) {
            match self.look_in(system, number, &mut |_| {}).await {
                Ok(true) => drop(having.insert(number)),
                // It may have gone, or be none.
                Ok(false) | Err(FileError::NoEntry | FileError::NotDirectory) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(having)
    }

    /// Looks through the names of a directory for files that have no place yet; whether it has some. Tells of its directories.
    async fn look_in(
        &mut self,
        system: &FileSystem,
        number: u64,
        tell: &mut (dyn FnMut(u64) + Send),
    ) -> Result<bool, FileError> {
        let is_first = self.looked_in.insert(number);
        let (mut after, mut has_some) = (0, false);
        loop {
            let listed = system.read_directory(self.catalogs.after(number), after, TOGETHER).await?;
            let Some(last) = listed.last() else { return Ok(has_some) };
            after = last.cookie;
            self.searched += listed.len() as u64;
            let branch = self.catalogs.after.1;
            for entry in listed.iter().filter(|entry| entry.node.file.branch == branch) {
                let file = entry.node.file.number;
                if entry.kind == Kind::Directory {
                    tell(file);
                } else if let Some(names) = self.unplaced.get_mut(&file).filter(|_| is_first) {
                    *names = names.saturating_sub(1);
                    if *names == 0 {
                        self.unplaced.remove(&file);
                    }
                    self.note(number, file);
                    has_some = true;
                }
            }
            if system.is_ending() {
                return Err(FileError::Busy("the node is being closed"));
            }
        }
    }

    /// Looks below a directory for files that have no place yet, until all have one.
    pub(super) async fn search(&mut self, system: &FileSystem, top: Node) -> Result<(), FileError> {
        let (mut waiting, mut seen) = (vec![top.file.number], Numbers::default());
        seen.insert(top.file.number);
        let mut having = BTreeSet::new();
        while !self.unplaced.is_empty()
            && let Some(number) = waiting.pop()
        {
            let first = waiting.len();
            let mut note = |directory| {
                if seen.insert(directory) {
                    waiting.push(directory);
                }
            };
            match self.look_in(system, number, &mut note).await {
                Ok(true) => drop(having.insert(number)),
                Ok(false) | Err(FileError::NoEntry) => {}
                Err(error) => return Err(error),
            }
            let found: Vec<Node> = waiting[first..].iter().map(|number| self.catalogs.after(*number)).collect();
            for some in found.chunks(TOGETHER) {
                system.load_together(some).await;
            }
        }
        self.place(system, having).await
    }

    /// Notes the way to directories, up to where all of them lie.
    async fn place(&mut self, system: &FileSystem, directories: BTreeSet<u64>) -> Result<(), FileError> {
        let mut level = directories;
        while !level.is_empty() {
            let nodes: Vec<Node> = level.iter().map(|number| self.catalogs.after(*number)).collect();
            let mut above = BTreeSet::new();
            for attributes in system.batch_stat(&nodes).await {
                let Attributes { file, parent, kind, .. } = match attributes {
                    Ok(attributes) => attributes,
                    Err(FileError::NoEntry) => continue,
                    Err(error) => return Err(error),
                };
                let is_below = kind == Kind::Directory && parent.branch == file.branch && parent != file;
                if is_below && parent != FileId::NONE && self.note(parent.number, file.number) {
                    above.insert(parent.number);
                }
            }
            level = above;
        }
        Ok(())
    }
}
