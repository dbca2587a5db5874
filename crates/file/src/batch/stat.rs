//! Attributes of many files: catalog leaves are read once each, in order, and nothing enters the table of inodes.
//!
//! I-120 What the table has of a file is newer than any catalog, or the same. It is asked first, and the roots are taken then: what it does not
//!       have was clean at that moment (I-34), so the catalog of these roots has all of it (I-71).
//!
//! Not here: entries (`walk`).

use base::codec::Reader;
use base::id::FileId;

use crate::attributes::{Attributes, Node};
use crate::failure::FileError;
use crate::format::{InodeValue, Roots};
use crate::system::{FileSystem, SNAPSHOTS, corrupt};

/// Files that are looked up together: no use of roots lasts longer.
pub(super) const TOGETHER: usize = 1024;

/// What came of each; `None`: not known yet.
type Stats = [Option<Result<Attributes, FileError>>];

impl FileSystem {
    /// The attributes of many files, in the order of `nodes`; of each what [`FileSystem::attributes`] would give.
    pub async fn batch_stat(&self, nodes: &[Node]) -> Vec<Result<Attributes, FileError>> {
        let mut all = Vec::with_capacity(nodes.len());
        for some in nodes.chunks(TOGETHER) {
            let mut stats = vec![None; some.len()];
            self.stat_together(some, &mut stats).await;
            all.extend(stats.into_iter().map(|stat| stat.expect("each is known now")));
        }
        all
    }

    /// Finds out what is not known of `stats` yet.
    pub(super) async fn stat_together(&self, nodes: &[Node], stats: &mut Stats) {
        self.stat_in_table(nodes, stats);
        let mut missing: Vec<usize> = (0..nodes.len()).filter(|number| stats[*number].is_none()).collect();
        missing.sort_unstable_by_key(|number| nodes[*number]);
        if let Some(first) = missing.first().map(|number| nodes[*number]) {
            let _use = self.grace.enter(first.file.number);
            let roots = self.roots.lock().clone();
            let is_together = |a: &usize, b: &usize| {
                let (a, b) = (nodes[*a], nodes[*b]);
                (a.view, a.file.branch) == (b.view, b.file.branch)
            };
            for group in missing.chunk_by(is_together) {
                self.stat_in_catalog(&roots, nodes, group, stats).await;
            }
        }
        for (node, stat) in nodes.iter().zip(stats).filter(|(_, stat)| stat.is_none()) {
            *stat = Some(self.attributes(*node).await);
        }
    }

    /// What memory has; but for files whose allocation is to be counted.
    fn stat_in_table(&self, nodes: &[Node], stats: &mut Stats) {
        for (node, stat) in nodes.iter().zip(stats).filter(|(_, stat)| stat.is_none()) {
            let Some(inode) = self.table.find(*node) else { continue };
            let state = inode.state.lock();
            *stat = match state.allocated {
                _ if state.is_gone => Some(Err(FileError::NoEntry)),
                Some(_) => Some(Ok(self.seen_attributes(&state))),
                None => None,
            };
        }
    }

    /// What a catalog has of files of one branch, by the order of their numbers. What cannot be read is left to who asks for each.
    async fn stat_in_catalog(&self, roots: &Roots, nodes: &[Node], group: &[usize], stats: &mut Stats) {
        let first = nodes[group[0]];
        let asked: Vec<usize> = group.iter().copied().filter(|number| self.is_catalogued(nodes[*number])).collect();
        let Ok(catalog) = self.catalog(roots, first.view, first.file.branch).await else { return };
        let numbers: Vec<u64> = asked.iter().map(|number| nodes[*number].file.number).collect();
        let mut loaded = 0;
        let mut tell = |index: usize, value: Option<&[u8]>| {
            let number = asked[index];
            loaded += 1;
            stats[number] = Some(value.map_or(Err(FileError::NoEntry), |value| decode(nodes[number].file, value)));
        };
        // An error leaves the rest unknown.
        drop(self.trees.each(&catalog, &numbers, &mut tell).await);
        self.counters.batch_stats.add(loaded);
    }

    /// Whether a catalog has a file that the table lacks: the directory of snapshots is in none, and what the table has of what is missing
    /// is not all that there is to know of it.
    fn is_catalogued(&self, node: Node) -> bool {
        node != Node::live(SNAPSHOTS) && self.table.find(node).is_none()
    }
}

fn decode(file: FileId, value: &[u8]) -> Result<Attributes, FileError> {
    let mut reader = Reader::new(value);
    let wrong = |error| corrupt("inode", format!("catalog entry of {file}"), error);
    InodeValue::decode_attributes(file, &mut reader).map_err(wrong)
}
