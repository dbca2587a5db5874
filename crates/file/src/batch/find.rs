//! Finding many files by their paths (phase 1 of BFO, MSST'19, for who has a list): what is wanted of a directory is looked up together, in the order of
//! its tree, so that each of its leaves is read once.
//!
//! No symbolic link is followed, so there are no loops of them; `.` and `..` are names like others, which no file has.
//!
//! Not here: whole trees (`walk`).

use std::ops::Range;

use base::id::FileId;
use base::limits::NAME_BYTES_MAX;

use super::stat::TOGETHER;
use crate::attributes::{Attributes, Kind, Node};
use crate::failure::FileError;
use crate::system::{FileSystem, SNAPSHOTS, SNAPSHOTS_NAME};

/// What is wanted of a directory and of those below it: the part of the sorted paths that leads through it, and where its name ends in them.
struct Below {
    directory: Node,
    begin: usize,
    paths: Range<usize>,
}

/// Where a file was found.
#[derive(Clone, Copy)]
struct Place {
    directory: Node,
    node: Node,
}

impl FileSystem {
    /// The files at many paths below `root`, names with a slash between them, in the order of `paths`; an empty one is `root` itself. Of each what a
    /// lookup of one name after the other would give at some moment of the call.
    pub async fn batch_find<P: AsRef<[u8]> + Sync>(
        &self,
        root: Node,
        paths: &[P],
    ) -> Vec<Result<(Node, Attributes), FileError>> {
        self.counters.batch_finds.add(paths.len() as u64);
        let mut order: Vec<usize> = (0..paths.len()).collect();
        order.sort_by(|a, b| names(paths[*a].as_ref()).cmp(names(paths[*b].as_ref())));
        let sorted: Vec<&[u8]> = order.iter().map(|place| paths[*place].as_ref()).collect();
        let places = self.find_places(root, &sorted).await;
        let nodes: Vec<Node> = places.iter().flatten().map(|place| place.node).collect();
        let mut stats = self.batch_stat(&nodes).await.into_iter();
        let mut fates = vec![None; paths.len()];
        for ((at, path), place) in order.into_iter().zip(sorted).zip(places) {
            fates[at] = Some(match place {
                Err(error) => Err(error),
                Ok(place) => match stats.next().expect("one for each that was found") {
                    Ok(attributes) => Ok((place.node, attributes)),
                    // Of what was put in its place meanwhile the name never was free.
                    Err(FileError::NoEntry) if !path.is_empty() => self.lookup(place.directory, last_name(path)).await,
                    Err(error) => Err(error),
                },
            });
        }
        fates.into_iter().map(|fate| fate.expect("each has its place")).collect()
    }

    /// Where they are, of paths in the order of their names.
    async fn find_places(&self, root: Node, paths: &[&[u8]]) -> Vec<Result<Place, FileError>> {
        let mut places = vec![Err(FileError::NoEntry); paths.len()];
        let own = paths.iter().take_while(|path| path.is_empty()).count();
        places[..own].fill(Ok(Place { directory: root, node: root }));
        let mut waiting = vec![Below { directory: root, begin: 0, paths: own..paths.len() }];
        while let Some(Below { directory, begin, paths: range }) = waiting.pop() {
            let (mut groups, mut at) = (Vec::new(), range.start);
            for group in paths[range].chunk_by(|a, b| next_name(a, begin) == next_name(b, begin)) {
                groups.push((*self.cookies(next_name(group[0], begin)).start(), at, group));
                at += group.len();
            }
            groups.sort_unstable_by_key(|(cookie, _, _)| *cookie);
            for some in groups.chunks(TOGETHER) {
                self.leaves_ahead(directory, some.iter().map(|(cookie, _, _)| *cookie).collect()).await;
                for (_, at, group) in some {
                    let (name, rest) = (next_name(group[0], begin), at + group.len());
                    let found = self.entry(directory, name).await;
                    let end = begin + name.len();
                    let below = at + group.partition_point(|path| path.len() == end);
                    places[*at..below]
                        .fill(found.as_ref().map(|(node, _)| Place { directory, node: *node }).map_err(Clone::clone));
                    match found {
                        Ok((node, Kind::Directory)) if below < rest => {
                            waiting.push(Below { directory: node, begin: end + 1, paths: below..rest });
                        }
                        Ok(_) => places[below..rest].fill(Err(FileError::NotDirectory)),
                        Err(error) => places[below..rest].fill(Err(error)),
                    }
                }
            }
        }
        places
    }

    /// The node and kind of a name.
    async fn entry(&self, directory: Node, name: &[u8]) -> Result<(Node, Kind), FileError> {
        if name.len() > NAME_BYTES_MAX {
            return Err(FileError::NameTooLong);
        }
        if directory == Node::live(SNAPSHOTS) {
            return self.find_snapshot(name).map(|node| (node, Kind::Directory)).ok_or(FileError::NoEntry);
        }
        if directory == Node::live(FileId::ROOT) && name == SNAPSHOTS_NAME {
            return Ok((Node::live(SNAPSHOTS), Kind::Directory));
        }
        let slots = self.slots(&self.inode(directory).await?, name).await?;
        let (_, entry) = slots.find(name).ok_or(FileError::NoEntry)?;
        Ok((Node { view: directory.view, file: entry.file }, entry.kind))
    }

    /// Reads the leaves that have names of these first cookies, in this order: a guess, and what cannot be read is left to who looks a name up.
    async fn leaves_ahead(&self, directory: Node, cookies: Vec<u64>) {
        if cookies.len() < 2 || directory == Node::live(SNAPSHOTS) {
            return;
        }
        let Ok(inode) = self.inode(directory).await else { return };
        let _use = self.grace.enter(directory.file.number);
        let tree = inode.state.lock().base.tree.clone();
        drop(self.trees.each(&tree, &cookies, &mut |_, _| ()).await);
    }
}

fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/')
}

/// The name of a path that begins there.
fn next_name(path: &[u8], begin: usize) -> &[u8] {
    names(&path[begin..]).next().unwrap_or_default()
}

fn last_name(path: &[u8]) -> &[u8] {
    names(path).last().unwrap_or_default()
}
