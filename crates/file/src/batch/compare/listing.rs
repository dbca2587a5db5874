//! Two directories side by side: what of their names is the same.
//!
//! Both have the cookies of a name from one hash of it, so names come in one order, but for those that share a hash: a *group*, whose
//! cookies differ in their last byte. So groups are taken together, and within one names are compared.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use base::id::FileId;

use crate::attributes::Node;
use crate::directory::{COLLISIONS_MAX, group_of};
use crate::failure::FileError;
use crate::format::Entry;
use crate::inode::Inode;
use crate::system::FileSystem;
use crate::tree::{Difference, Step};

use super::super::stat::TOGETHER;
use super::known::Known;

/// Groups that are looked at at a time.
const GROUPS_TOGETHER: usize = 128;
// So a listing of all names comes to the end of a group.
const _: () = assert!(TOGETHER as u64 > COLLISIONS_MAX);

/// A name, and the file that it leads to on either side.
pub(super) struct Pair {
    group: u64,
    pub(super) name: Box<[u8]>,
    pub(super) before: Option<Node>,
    pub(super) after: Option<Node>,
}

/// Two directories on the way.
pub(super) struct Level {
    pub(super) before: Node,
    pub(super) after: Node,
    /// Bytes of the path up to here.
    pub(super) path_bytes: usize,
    /// Whether it is known what differs below.
    pub(super) is_known: bool,
    /// The groups in which something does; `None`: all are looked at.
    pub(super) some: Option<Vec<u64>>,
    pub(super) listed: VecDeque<Pair>,
    /// The cookie at which listing goes on, the first of a group; `None`: all was listed.
    from: Option<u64>,
}

impl Level {
    pub(super) fn new(before: Node, after: Node, path_bytes: usize) -> Level {
        let (is_known, some, listed) = (false, None, VecDeque::new());
        Level { before, after, path_bytes, is_known, some, listed, from: Some(0) }
    }

    pub(super) fn is_listed(&self) -> bool {
        self.from.is_none()
    }

    /// Lets go of what it has to tell, but for the group that it is in: it is listed again.
    fn forget(&mut self) {
        let Some(group) = self.listed.front().map(|pair| pair.group) else { return };
        let kept = self.listed.partition_point(|pair| pair.group == group);
        if let Some(next) = self.listed.get(kept) {
            self.from = Some(next.group);
            self.listed.truncate(kept);
        }
    }
}

/// Keeps what is kept of the directories on the way within its bound.
pub(super) fn let_go(levels: &mut [Level], pairs_max: usize) {
    let mut kept: usize = levels.iter().map(|level| level.listed.len()).sum();
    for level in levels {
        if kept <= pairs_max {
            return;
        }
        kept -= level.listed.len();
        level.forget();
        kept += level.listed.len();
    }
}

/// A group, and a name in it.
type Place = (u64, Box<[u8]>);

/// Names of both sides, with the files that they lead to.
#[derive(Default)]
struct Names(BTreeMap<Place, [Option<FileId>; 2]>);

impl Names {
    fn add(&mut self, side: usize, group: u64, Entry { file, name, .. }: Entry) {
        self.0.entry((group, name)).or_default()[side] = Some(file);
    }
}

impl FileSystem {
    /// Lists more of two directories, without what is known to be equal. After an error it goes on behind what cannot be read.
    pub(super) async fn list_pairs(&self, level: &mut Level, known: Option<&Known>) -> Result<(), FileError> {
        let Some(from) = level.from.take() else { return Ok(()) };
        let (before, after) = (self.inode(level.before).await?, self.inode(level.after).await?);
        let names = match &level.some {
            Some(groups) => match self.list_groups(&before, &after, groups, from).await {
                Ok((names, next)) => {
                    level.from = next;
                    names
                }
                // Whoever lists all of them finds out how far it cannot be read.
                Err(_) => {
                    (level.some, level.from) = (None, Some(from));
                    return Ok(());
                }
            },
            None => {
                let (names, next) = self.list_all(&before, &after, from).await;
                level.from = next;
                names?
            }
        };
        let (before, after) = (level.before.view, level.after.view);
        let node = |view, file: Option<FileId>| file.map(|file| Node { view, file });
        let pairs = names.0.into_iter().map(|((group, name), [first, second])| {
            let (before, after) = (node(before, first), node(after, second));
            Pair { group, name, before, after }
        });
        let is_equal = |pair: &Pair| match (pair.before, pair.after) {
            (Some(before), Some(after)) => before == after || known.is_some_and(|known| known.is_equal(before, after)),
            _ => false,
        };
        level.listed.extend(pairs.filter(|pair| !is_equal(pair)));
        for side in [|pair: &Pair| pair.before, |pair: &Pair| pair.after] {
            let nodes: Vec<Node> = level.listed.iter().filter_map(side).collect();
            self.load_together(&nodes).await;
        }
        Ok(())
    }

    /// The names of some groups from a cookie on, and where to go on.
    async fn list_groups(
        &self,
        before: &Arc<Inode>,
        after: &Arc<Inode>,
        groups: &[u64],
        from: u64,
    ) -> Result<(Names, Option<u64>), FileError> {
        let groups = &groups[groups.partition_point(|group| *group < from)..];
        let (now, later) = groups.split_at(groups.len().min(GROUPS_TOGETHER));
        let mut names = Names::default();
        for group in now {
            for (side, directory) in [before, after].into_iter().enumerate() {
                let slots = self.slots_of(directory, *group).await?;
                slots.into_entries().for_each(|entry| names.add(side, *group, entry));
            }
        }
        Ok((names, later.first().copied()))
    }

    /// The names of all groups from a cookie on, as many as are read together, and where to go on, also behind an error.
    async fn list_all(
        &self,
        before: &Arc<Inode>,
        after: &Arc<Inode>,
        from: u64,
    ) -> (Result<Names, FileError>, Option<u64>) {
        let behind = |end: u64| group_of(end).checked_add(COLLISIONS_MAX);
        let (mut sides, mut end) = (Vec::new(), u64::MAX);
        for directory in [before, after] {
            match self.list_past(directory, from.saturating_sub(1), TOGETHER).await {
                Ok((entries, last)) => {
                    sides.push(entries);
                    end = end.min(last);
                }
                Err((error, last)) => return (Err(error), behind(last)),
            }
        }
        // The last group may be there in part.
        let border = (end != u64::MAX).then(|| group_of(end.saturating_add(1)));
        let mut names = Names::default();
        for (side, entries) in sides.into_iter().enumerate() {
            for (cookie, entry) in
                entries.into_iter().filter(|(cookie, _)| border.is_none_or(|border| *cookie < border))
            {
                names.add(side, group_of(cookie), entry);
            }
        }
        (Ok(names), border)
    }

    /// The groups of two states of a directory in which a name or what it leads to differs; `None`: too many, or it cannot be read.
    pub(super) async fn differing(
        &self,
        known: &Known,
        before: Node,
        after: Node,
        groups_max: usize,
    ) -> Option<Vec<u64>> {
        let mut groups = BTreeSet::new();
        if known.is_changed(after.file.number) {
            self.add_changed(before, after, groups_max, &mut groups).await.ok()?;
        }
        if let Some(below) = known.below(after.file.number) {
            let directory = self.inode(after).await.ok()?;
            let mut at = 0;
            while at != u64::MAX && groups.len() <= groups_max {
                let (entries, end) = self.list_past(&directory, at, TOGETHER).await.ok()?;
                let some = entries.iter().filter(|(_, entry)| below.contains(&entry.file.number));
                groups.extend(some.map(|(cookie, _)| group_of(*cookie)));
                at = end;
            }
        }
        (groups.len() <= groups_max).then(|| groups.into_iter().collect())
    }

    /// Groups of which the two have other entries, up to some more than are of use.
    async fn add_changed(
        &self,
        before: Node,
        after: Node,
        groups_max: usize,
        groups: &mut BTreeSet<u64>,
    ) -> Result<(), FileError> {
        let (before, after) = (self.inode(before).await?, self.inode(after).await?);
        let _use = self.grace.enter(after.file.number);
        let mut tree_of = |directory: &Inode| {
            let state = directory.state.lock();
            let layers = state.frozen.iter().map(|frozen| &frozen.layer.entries).chain([&state.active.entries]);
            groups.extend(layers.flat_map(|entries| entries.keys().map(|cookie| group_of(*cookie))));
            state.base.tree.clone()
        };
        let (before, after) = (tree_of(&before), tree_of(&after));
        for (this, other) in [(&after, &before), (&before, &after)] {
            let mut difference = Difference::begin(&self.trees, this, other).await?;
            while let Some(step) = difference.next(&self.trees).await?
                && groups.len() <= groups_max
            {
                if let Step::Value { key, .. } = step {
                    groups.insert(group_of(key));
                }
            }
        }
        Ok(())
    }
}
