//! The list of who reads some of a tree: its paths come in the first window, and are found together, directory by directory.
//!
//! Each is told once, however often it is in the list, and what is below a directory of the list comes with that.

use base::id::FileId;
use file::{FileError, Kind, Node, WalkTell, Walked};
use platform::real::block_on;

use super::CLOSED;
use crate::control::batch::memory::Memory;
use crate::control::batch::wire::{Record, Records};
use crate::control::wire::{LIST_BYTES_MAX, Listing};
use crate::failure::Failure;
use crate::front::control::Control;

/// Paths that are found together, and what they come to.
const TOGETHER: usize = 4 << 10;
const TOGETHER_BYTES: usize = 256 << 10;
const SNAPSHOTS_NAME: &[u8] = b".snapshots";

/// What is wanted, in the order of names: what is below a directory comes right behind it.
pub(super) struct List {
    paths: Vec<Vec<u8>>,
    /// The directories that lead to them are told of too.
    parents: bool,
}

/// A path, and whether it is only on the way to one that is wanted.
type Step<'a> = (&'a [u8], bool);

impl List {
    /// What lies in the first window.
    pub(super) fn read(memory: &Memory, listing: &Listing, what: &str) -> Result<List, Failure> {
        let refuse = |why: String| Failure::new(what, why).mend("see docs/format.md");
        if listing.bytes > LIST_BYTES_MAX {
            return Err(refuse(format!("a list has at most {LIST_BYTES_MAX} bytes, not {}", listing.bytes)));
        }
        let read = memory.read(0, listing.bytes).map_err(|error| refuse(error.to_string()))?;
        let mut paths = Vec::new();
        for record in Records::new(read) {
            match record {
                Ok(Record::Path(path)) => paths.push(path),
                Ok(_) => return Err(refuse("what is no path makes no sense in a list".to_owned())),
                Err(error) => return Err(refuse(error.to_string())),
            }
        }
        Ok(List::of(paths, listing.parents))
    }

    fn of(mut paths: Vec<Vec<u8>>, parents: bool) -> List {
        paths.sort_unstable_by(|a, b| names(a).cmp(names(b)));
        paths.dedup();
        List { paths, parents }
    }

    /// Each path, and before it those that lead to it, if these are wanted and were not among those before.
    fn steps(&self) -> impl Iterator<Item = Step<'_>> {
        let before = std::iter::once(None).chain(self.paths.iter().map(Some));
        self.paths.iter().zip(before).flat_map(move |(path, before)| {
            let leading = leading(path).filter(move |above| {
                let is_told = |before: &Vec<u8>| before.as_slice() == *above || is_below(before, above);
                self.parents && !before.is_some_and(is_told)
            });
            leading.map(|above| (above, true)).chain(std::iter::once((path.as_slice(), false)))
        })
    }
}

fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/')
}

/// The paths of the directories that lead to one, from the root's on.
fn leading(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let root = (!path.is_empty()).then_some(&path[..0]);
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    root.into_iter().chain(ends.map(|(end, _)| &path[..end]))
}

/// Whether a path leads through a directory.
fn is_below(path: &[u8], above: &[u8]) -> bool {
    above.is_empty() && !path.is_empty() || path.strip_prefix(above).is_some_and(|rest| rest.starts_with(b"/"))
}

impl Control {
    /// Tells of what is listed, and of everything below those that are directories; of what cannot be found too. `false`: somebody wants no more.
    pub(super) fn walk_list(&self, root: Node, list: &List, tell: &mut WalkTell<'_>) -> Result<bool, FileError> {
        let (mut is_all, mut whole): (bool, Option<&[u8]>) = (false, None);
        let mut steps = list.steps().peekable();
        while steps.peek().is_some() {
            if self.is_closed().is_some() {
                return Err(FileError::Busy(CLOSED));
            }
            let (mut some, mut bytes) = (Vec::new(), 0);
            let has_room = |count, bytes| count < TOGETHER && bytes < TOGETHER_BYTES;
            while let Some(step) = steps.next_if(|_| has_room(some.len(), bytes)) {
                bytes += step.0.len();
                some.push(step);
            }
            let paths: Vec<&[u8]> = some.iter().map(|(path, _)| *path).collect();
            let found = block_on(self.system.batch_find(root, &paths));
            for ((path, leads_on), fate) in some.into_iter().zip(found) {
                // The snapshots are in no listing of the root.
                let is_hidden = root == Node::live(FileId::ROOT) && names(path).next() == Some(SNAPSHOTS_NAME);
                if is_all && !is_hidden || whole.is_some_and(|whole| is_below(path, whole)) {
                    continue;
                }
                let goes_on = match fate {
                    Ok((node, attributes)) if !leads_on && attributes.kind == Kind::Directory => {
                        is_all |= path.is_empty();
                        whole = Some(path).filter(|path| !path.is_empty());
                        self.walk_below(node, path, tell)?
                    }
                    // What leads no further is told of by what it should lead to.
                    Ok((_, attributes)) if leads_on && attributes.kind != Kind::Directory => true,
                    Err(_) if leads_on => true,
                    Ok((node, attributes)) => tell(Ok(Walked { path, node, attributes: &attributes })),
                    Err(error) => tell(Err((path, error))),
                };
                if !goes_on {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Walks a directory, whose path is this one.
    fn walk_below(&self, directory: Node, top: &[u8], tell: &mut WalkTell<'_>) -> Result<bool, FileError> {
        let mut whole = Vec::new();
        let mut tell_from_top = |step: Result<Walked<'_>, (&[u8], FileError)>| {
            let (Ok(Walked { path, .. }) | Err((path, _))) = &step;
            whole.clear();
            whole.extend_from_slice(top);
            whole.extend_from_slice(if top.is_empty() || path.is_empty() { b"" } else { b"/" });
            whole.extend_from_slice(path);
            tell(match step {
                Ok(walked) => Ok(Walked { path: &whole, ..walked }),
                Err((_, error)) => Err((&whole, error)),
            })
        };
        match self.walk(directory, &mut tell_from_top) {
            Err(error) if self.is_closed().is_none() => Ok(tell(Err((top, error)))),
            walked => walked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{List, leading};
    use crate::control::batch::memory::Memory;
    use crate::control::batch::wire::Record;
    use crate::control::wire::{LIST_BYTES_MAX, Listing};

    #[test]
    fn what_is_no_list_is_refused() {
        let memory = Memory::make(1, LIST_BYTES_MAX).expect("memory");
        let read = |records: &[u8], bytes: u32| {
            memory.write(0, 0, records).expect("room");
            List::read(&memory, &Listing { bytes, parents: false }, "what")
        };
        let path = Record::Path(b"a".to_vec()).encode();
        let length = u32::try_from(path.len()).expect("short");
        assert_eq!(read(&path, length).expect("a list").paths, [b"a"]);
        assert!(read(&path, 0).expect("a list of nothing").paths.is_empty());
        let refused = |records: &[u8], bytes| read(records, bytes).err().expect("no list").to_string();
        assert!(refused(&path, length - 1).contains("record"));
        assert!(refused(&path, LIST_BYTES_MAX + 1).contains("at most"));
        let begin = Record::Begin { number: 1, size: 1 }.encode();
        assert!(refused(&begin, u32::try_from(begin.len()).expect("short")).contains("makes no sense"));
        let small = Memory::make(1, 1 << 16).expect("memory");
        let beyond = Listing { bytes: (1 << 16) + 1, parents: false };
        assert!(List::read(&small, &beyond, "what").is_err(), "more than the window");
    }

    fn steps(paths: &[&str], parents: bool) -> Vec<String> {
        let list = List::of(paths.iter().map(|path| path.as_bytes().to_vec()).collect(), parents);
        let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        list.steps().map(|(path, leads_on)| if leads_on { text(path) + ">" } else { text(path) }).collect()
    }

    #[test]
    fn each_comes_once_and_what_leads_to_it_before() {
        // A dot sorts before a slash, and names come before their letters.
        let paths = ["b/c/d", "a.x/y", "a/z", "b/c/d", "a", "b/c/e", "b/f/g"];
        assert_eq!(steps(&paths, false), ["a", "a/z", "a.x/y", "b/c/d", "b/c/e", "b/f/g"]);
        assert_eq!(
            steps(&paths, true),
            [">", "a", "a/z", "a.x>", "a.x/y", "b>", "b/c>", "b/c/d", "b/c/e", "b/f>", "b/f/g"]
        );
        assert_eq!(steps(&["", "a/b"], true), ["", "a>", "a/b"]);
        assert_eq!(steps(&[], true), [""; 0]);
    }

    #[test]
    fn what_leads_to_a_path_is_each_directory_on_the_way() {
        let leading = |path: &str| leading(path.as_bytes()).map(<[u8]>::len).collect::<Vec<_>>();
        assert_eq!((leading("a/bc/d"), leading("a"), leading("")), (vec![0, 1, 4], vec![0], vec![]));
    }
}
