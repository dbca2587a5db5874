//! Layout upkeep: the small files of a directory are written next to each other where they lie scattered, in the order in which it is listed.
//!
//! Files that were written one at a time lie where the disks were at that time. Nothing of a file changes by this but where its chunks lie,
//! so nobody is kept from anything, and a crash leaves some of them here and some there.
//!
//! I-125 No pass of reclaim is at work while chunks move (L-7).
//! I-140 What lies together is not written again: so who does all of it once more, because it was ended or because of a crash, pays for
//!       looking only.
//! I-141 What is in memory does not grow with the tree, but with its depth: of a directory at most one listing of it waits.
//!
//! Not here: the moving (`store::rewrite`); when it is worth it for all files (`layout`, or who asks).

use base::id::{ChunkAddress, FileId};
use store::{Pace, Scatter, Share};

use super::read::Look;
use super::walk::{Named, within_itself};
use crate::attributes::{Kind, Node};
use crate::extent::Extent;
use crate::failure::FileError;
use crate::system::FileSystem;
use crate::upkeep::BatchOptimizeReport;

/// Files up to this size are small, where nobody says otherwise: larger ones are read fast wherever they lie.
const SMALL_BYTES: u64 = 1 << 20;
/// Content that is looked at together, and moved so if it is worth it.
const TOGETHER_BYTES: u64 = 64 << 20;
/// The same of who leaves time to others: reclaim waits no longer than for this.
const LITTLE_BYTES: u64 = 4 << 20;
/// Chunks that are looked at together: most of them where files are tiny.
const CHUNKS_MAX: usize = 64 << 10;
/// It is worth it where so many times the least number of runs is read, or more.
const SCATTERED: u64 = 3;

/// How files are written next to each other.
#[derive(Clone, Copy)]
pub struct BatchOptimize<'a> {
    /// Only files of at most so many bytes.
    pub small_bytes: u64,
    /// It only finds out how they lie.
    pub is_rehearsal: bool,
    /// The share of the time that it takes, unless somebody waits for room.
    pub share: Share,
    /// Hears of how many files were looked at, and how many bytes were written, or would be. `false`: it is to end.
    pub tell: &'a (dyn Fn(u64, u64) -> bool + Sync),
    /// Hears of what cannot be read: at which path below the directory, and why.
    pub fail: &'a (dyn Fn(&[u8], FileError) + Sync),
}

impl Default for BatchOptimize<'_> {
    fn default() -> Self {
        let (small_bytes, share) = (SMALL_BYTES, Share::FULL);
        BatchOptimize { small_bytes, is_rehearsal: false, share, tell: &|_, _| true, fail: &|_, _| () }
    }
}

/// Chunks that are to lie together.
#[derive(Default)]
struct Together {
    addresses: Vec<ChunkAddress>,
    /// Where those of one directory end and those of the next begin.
    ends: Vec<usize>,
    /// The last directory.
    of: Option<Node>,
    bytes: u64,
}

impl Together {
    /// What comes next is of this directory.
    fn begin(&mut self, directory: Node) {
        if self.of.is_some_and(|of| of != directory) {
            self.ends.push(self.addresses.len());
        }
        self.of = Some(directory);
    }
}

/// A directory on the way.
struct Level {
    node: Node,
    /// Bytes of the path up to here.
    path_bytes: usize,
    /// Where its listing goes on; `None`: all was listed.
    after: Option<u64>,
    /// Those of the last listing whose turn has not come, the next one last.
    directories: Vec<(Box<[u8]>, Node)>,
}

impl Level {
    fn new(node: Node, path_bytes: usize) -> Level {
        Level { node, path_bytes, after: Some(0), directories: Vec::new() }
    }
}

/// The work on its way.
struct Work<'a> {
    system: &'a FileSystem,
    how: &'a BatchOptimize<'a>,
    pace: &'a Pace<'a>,
    levels: Vec<Level>,
    path: Vec<u8>,
    together: Together,
    together_bytes: u64,
    report: BatchOptimizeReport,
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
        let share = || self.share_now(how.share);
        let goes_on = || !self.is_ending();
        let calls = || self.calls();
        let pace = Pace::new(&self.platform, &share, &goes_on).beside(&calls);
        let together_bytes = if how.share == Share::FULL { TOGETHER_BYTES } else { LITTLE_BYTES };
        let (levels, path) = (vec![Level::new(directory, 0)], Vec::new());
        let (together, report) = (Together::default(), BatchOptimizeReport::default());
        let mut work = Work { system: self, how, pace: &pace, levels, path, together, together_bytes, report };
        let worked = work.run().await;
        self.counters.layout_files.add(work.report.files);
        worked.map(|()| work.report)
    }
}

impl Work<'_> {
    async fn run(&mut self) -> Result<(), FileError> {
        while !self.levels.is_empty() {
            if !self.pace.step().await || !(self.how.tell)(self.report.files, self.report.bytes) {
                return Ok(());
            }
            self.step().await?;
        }
        self.bring_together().await?;
        self.report.is_done = self.pace.goes_on();
        Ok(())
    }

    /// The next directory, or some more of a listing.
    async fn step(&mut self) -> Result<(), FileError> {
        let Some(level) = self.levels.last_mut() else { return Ok(()) };
        self.path.truncate(level.path_bytes);
        if let Some((name, directory)) = level.directories.pop() {
            self.enter(&name, directory);
            return Ok(());
        }
        let (Some(after), node) = (level.after.take(), level.node) else {
            self.levels.pop();
            return Ok(());
        };
        let (named, more) = match self.system.list_names(node, after).await {
            Ok(listed) => listed,
            Err((error, more)) => {
                self.note_failure(b"", error);
                (Vec::new(), more)
            }
        };
        self.together.begin(node);
        let mut directories = self.collect(&named).await;
        directories.reverse();
        if let Some(level) = self.levels.last_mut() {
            (level.after, level.directories) = (more, directories);
        }
        let is_enough = self.together.bytes >= self.together_bytes || self.together.addresses.len() >= CHUNKS_MAX;
        if is_enough { self.bring_together().await } else { Ok(()) }
    }

    fn enter(&mut self, name: &[u8], directory: Node) {
        if self.levels.iter().any(|level| level.node == directory) {
            return self.note_failure(name, within_itself(directory));
        }
        self.path = self.path_to(name);
        self.levels.push(Level::new(directory, self.path.len()));
    }

    /// The path of a name in the directory whose turn it is; of none its own.
    fn path_to(&self, name: &[u8]) -> Vec<u8> {
        let parts = [self.path.as_slice(), name];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(&b'/')
    }

    /// Tells of what cannot be read. What was removed meanwhile is no failure.
    fn note_failure(&mut self, name: &[u8], error: FileError) {
        if !matches!(error, FileError::NoEntry | FileError::Stale) {
            self.report.failed += 1;
            (self.how.fail)(&self.path_to(name), error);
        }
    }

    /// Takes the chunks of small files of a listing, in its order. Gives the directories in it.
    async fn collect(&mut self, named: &[Named]) -> Vec<(Box<[u8]>, Node)> {
        let Some((_, first, _)) = named.first() else { return Vec::new() };
        let system = self.system;
        let mut order: Vec<usize> = (0..named.len()).collect();
        order.sort_unstable_by_key(|number| named[*number].1);
        let nodes: Vec<Node> = order.iter().map(|number| named[*number].1).collect();
        let _use = system.grace.enter(first.file.number);
        let found = system.look_together(&nodes, self.how.small_bytes).await;
        system.read_trees_ahead(&found).await;
        let mut looks: Vec<Option<Look>> = named.iter().map(|_| None).collect();
        order.iter().zip(found).for_each(|(number, look)| looks[*number] = Some(look));
        let mut directories = Vec::new();
        for ((_, node, name), look) in named.iter().zip(looks) {
            match look {
                Some(Look::Known { attributes, tree, mut settled, gaps, .. }) => {
                    match system.settle_gaps(&tree, gaps, &mut settled).await {
                        Ok(()) => self.add(attributes.size, settled.into_iter().map(|(_, extent)| extent)),
                        Err(error) => self.note_failure(name, error),
                    }
                }
                Some(Look::Failed(FileError::IsDirectory)) => directories.push((name.clone(), *node)),
                // Of another kind.
                Some(Look::Failed(FileError::Invalid(_)) | Look::Alone) | None => {}
                Some(Look::Failed(error)) => self.note_failure(name, error),
            }
        }
        directories
    }

    fn add(&mut self, size: u64, extents: impl Iterator<Item = Extent>) {
        self.report.files += 1;
        self.together.bytes += size;
        let chunks = extents.filter_map(|extent| match extent {
            Extent::Chunk { address, .. } => Some(address),
            _ => None,
        });
        self.together.addresses.extend(chunks);
    }

    /// Moves what was collected if it lies scattered, or those directories of it that do: few files among much that lies together count too.
    async fn bring_together(&mut self) -> Result<(), FileError> {
        let (store, together) = (&self.system.store, std::mem::take(&mut self.together));
        let Together { addresses, ends, .. } = &together;
        let before = store.scatter(addresses, ends);
        let moving = if is_scattered(&before) { addresses.clone() } else { self.scattered_directories(&together) };
        let report = &mut self.report;
        report.runs_before += before.runs;
        report.runs_min += before.runs_min();
        if self.how.is_rehearsal || moving.is_empty() {
            report.runs_after += before.runs;
            report.bytes += store.scatter(&moving, &[]).bytes;
        } else {
            report.bytes += self.system.bring_together(&moving, self.pace).await?;
            report.runs_after += store.scatter(addresses, ends).runs;
        }
        Ok(())
    }

    fn scattered_directories(&self, together: &Together) -> Vec<ChunkAddress> {
        let Together { addresses, ends, .. } = together;
        let starts = [0].into_iter().chain(ends.iter().copied());
        let parts =
            starts.zip(ends.iter().copied().chain([addresses.len()])).map(|(start, end)| &addresses[start..end]);
        parts.filter(|part| is_scattered(&self.system.store.scatter(part, &[]))).flatten().copied().collect()
    }
}

fn is_scattered(scatter: &Scatter) -> bool {
    scatter.runs >= SCATTERED * scatter.runs_min().max(1)
}

impl FileSystem {
    /// Writes chunks next to each other. Bytes that were written. The end waits for it.
    async fn bring_together(&self, addresses: &[ChunkAddress], pace: &Pace<'_>) -> Result<u64, FileError> {
        let _no_pass = self.between_passes().await;
        if self.is_ending() {
            return Ok(0);
        }
        let bytes = self.store.rewrite(addresses, pace).await?;
        // What lies twice now is given back once.
        self.note_dropped(bytes);
        Ok(bytes)
    }
}
