//! Layout upkeep: the small files of a directory are written next to each other where they lie scattered, in the order in which it is listed.
//!
//! Files that were written one at a time lie where the disks were at that time. Nothing of a file changes by this but where its chunks lie,
//! so nobody is kept from anything, and a crash leaves some of them here and some there.
//!
//! I-125 No pass of reclaim is at work while chunks move (L-7).
//!
//! Not here: the moving (`store::rewrite`); when it is worth it for all files (who asks).

use base::id::{ChunkAddress, FileId};

use super::read::Look;
use super::walk::Named;
use crate::attributes::{Kind, Node};
use crate::extent::Extent;
use crate::failure::FileError;
use crate::system::FileSystem;

/// Content that is looked at together, and moved so if it is worth it.
const TOGETHER_BYTES: u64 = 64 << 20;
/// It is worth it where so many times the least number of runs is read, or more.
const SCATTERED: u64 = 3;

/// How files are written next to each other.
#[derive(Clone, Copy)]
pub struct BatchOptimize<'a> {
    /// Only files of at most so many bytes: others are read fast wherever they lie.
    pub small_bytes: u64,
    /// Hears of how many files were looked at, and how many bytes were written. `false`: it is to end.
    pub tell: &'a (dyn Fn(u64, u64) -> bool + Sync),
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchOptimizeReport {
    /// Small files that were looked at.
    pub files: u64,
    /// Runs by which what was moved is read, before and after.
    pub runs_before: u64,
    /// See there.
    pub runs_after: u64,
    /// Bytes that were written, as stored.
    pub bytes: u64,
    /// Whether all was looked at.
    pub is_done: bool,
}

/// Chunks that are to lie together.
#[derive(Default)]
struct Together {
    addresses: Vec<ChunkAddress>,
    bytes: u64,
}

impl FileSystem {
    /// Has the small files of a directory and of those below it lie next to each other, in the order in which they are listed, where they
    /// lie scattered. Content that is in no chunk yet is left alone.
    ///
    /// # Errors
    /// `NotDirectory`, `NoEntry`, `NoSpace`, or the store's. What was done by then stays.
    pub async fn batch_optimize(
        &self,
        directory: FileId,
        how: &BatchOptimize<'_>,
    ) -> Result<BatchOptimizeReport, FileError> {
        let directory = Node::live(directory);
        if self.attributes(directory).await?.kind != Kind::Directory {
            return Err(FileError::NotDirectory);
        }
        let (mut report, mut together) = (BatchOptimizeReport::default(), Together::default());
        let mut directories = vec![directory];
        while let Some(directory) = directories.pop() {
            let mut next = Some(0);
            while let Some(after) = next {
                let listed = self.list_names(directory, after).await;
                // What cannot be listed is another's to tell of.
                let (named, more) = listed.unwrap_or_default();
                next = more;
                directories.extend(self.collect(&named, how, &mut together, &mut report).await);
                if together.bytes >= TOGETHER_BYTES {
                    self.bring_together(std::mem::take(&mut together), &mut report).await?;
                }
                if self.is_ending() || !(how.tell)(report.files, report.bytes) {
                    return Ok(report);
                }
            }
        }
        self.bring_together(together, &mut report).await?;
        report.is_done = true;
        Ok(report)
    }

    /// Takes the chunks of small files of a listing, in its order. Gives the directories in it.
    async fn collect(
        &self,
        named: &[Named],
        how: &BatchOptimize<'_>,
        together: &mut Together,
        report: &mut BatchOptimizeReport,
    ) -> Vec<Node> {
        let Some((_, first, _)) = named.first() else { return Vec::new() };
        let mut order: Vec<usize> = (0..named.len()).collect();
        order.sort_unstable_by_key(|number| named[*number].1);
        let nodes: Vec<Node> = order.iter().map(|number| named[*number].1).collect();
        let _use = self.grace.enter(first.file.number);
        let found = self.look_together(&nodes, how.small_bytes).await;
        let mut looks: Vec<Option<Look>> = named.iter().map(|_| None).collect();
        order.iter().zip(found).for_each(|(number, look)| looks[*number] = Some(look));
        let mut directories = Vec::new();
        for ((_, node, _), look) in named.iter().zip(looks) {
            match look {
                Some(Look::Known { attributes, tree, mut settled, gaps, .. }) => {
                    if self.settle_gaps(&tree, gaps, &mut settled).await.is_err() {
                        continue;
                    }
                    report.files += 1;
                    together.bytes += attributes.size;
                    let chunks = settled.into_iter().filter_map(|(_, extent)| match extent {
                        Extent::Chunk { address, .. } => Some(address),
                        _ => None,
                    });
                    together.addresses.extend(chunks);
                }
                Some(Look::Failed(FileError::IsDirectory)) => directories.push(*node),
                _ => {}
            }
        }
        directories
    }

    /// Moves them if they lie scattered.
    async fn bring_together(&self, together: Together, report: &mut BatchOptimizeReport) -> Result<(), FileError> {
        let before = self.store.scatter(&together.addresses);
        if before.runs < SCATTERED * before.runs_min() || before.runs < SCATTERED {
            return Ok(());
        }
        let bytes = {
            let _no_pass = self.reclaiming.lock().await;
            self.store.rewrite(&together.addresses).await?
        };
        report.runs_before += before.runs;
        report.runs_after += self.store.scatter(&together.addresses).runs;
        report.bytes += bytes;
        // What lies twice now is given back once.
        self.note_dropped(bytes);
        Ok(())
    }
}
