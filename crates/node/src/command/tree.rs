//! Trees of a mount as its daemon reads them, for the commands that go through a whole one.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use file::Kind;
use serde_json::{Value, json};

use super::info::Held;
use super::number;
use super::sync::{itself, mount_above, mount_of};
use crate::control::batch::client::{BatchReader, PathList, Reading};
use crate::control::batch::wire::{Records, split_root};
use crate::control::client::Daemon;
use crate::control::wire::{Name, ROOTS_MAX};
use crate::failure::Failure;

/// What of a tree is wanted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    pub(super) content: bool,
    pub(super) xattrs: bool,
}

/// Files and trees of one mount that are being read together.
pub(super) struct Tree {
    paths: Paths,
    _held: Vec<Held>,
    reader: BatchReader,
}

/// What is read together, by its place in the list.
pub(super) struct Paths(Vec<PathBuf>);

impl Paths {
    pub(super) fn new(paths: Vec<PathBuf>) -> Paths {
        Paths(paths)
    }

    /// The path of an entry, as one that began at what was named would be written; `None`: it is of nothing that was named, or leads away from it.
    /// Files are made at what comes of it, and what a daemon says is not to choose where (I-159).
    pub(super) fn of(&self, path: &[u8]) -> Option<PathBuf> {
        let (root, rest) = split_root(path)?;
        let leads_on = |name: &[u8]| !matches!(name, b"" | b"." | b"..");
        // Of what was named itself there is nothing behind its number.
        let is_below = !path.contains(&b'/') || rest.split(|byte| *byte == b'/').all(leads_on);
        is_below.then(|| Some(below(self.0.get(root)?, rest)))?
    }
}

impl Tree {
    /// Begins to read what is at a path of a mount.
    pub(super) fn open(path: &Path, what: &'static str, wanted: Wanted) -> Result<Tree, Failure> {
        Tree::open_several(&[path.to_owned()], what, wanted).map(|(tree, _)| tree)
    }

    /// Begins to read the first of some, and as many of those behind it as can be read with it; tells how many.
    pub(super) fn open_several(
        paths: &[PathBuf],
        what: &'static str,
        wanted: Wanted,
    ) -> Result<(Tree, usize), Failure> {
        let mount = mount_of(itself(&paths[0]))?;
        let mut held = vec![Held::of(&paths[0], what, &mount)?];
        for path in paths.iter().take(roots_max()).skip(1) {
            // What is wrong with it is told when it comes first.
            match mount_above(itself(path)).and_then(|its| Ok((its.id == mount.id, Held::of(path, what, &its)?))) {
                Ok((true, one)) => held.push(one),
                _ => break,
            }
        }
        write_pages_back(&mount.point);
        let Wanted { content, xattrs } = wanted;
        let reading = Reading { roots: held.iter().map(|held| held.inode).collect(), content, xattrs, list: None };
        let reader = BatchReader::begin(Daemon::of(&mount.source, mount.device)?, &reading)?;
        let count = held.len();
        Ok((Tree { paths: Paths::new(paths[..count].to_vec()), _held: held, reader }, count))
    }

    /// Begins to read what is listed below a directory.
    pub(super) fn open_listed(
        directory: &Path,
        list: PathList,
        what: &'static str,
        wanted: Wanted,
    ) -> Result<Tree, Failure> {
        // Who names a link to a directory means that.
        let place = directory.join(".");
        let mount = mount_of(&place)?;
        let held = Held::of(&place, what, &mount)?;
        write_pages_back(&mount.point);
        let Wanted { content, xattrs } = wanted;
        let reading = Reading { roots: vec![held.inode], content, xattrs, list: Some(list) };
        let reader = BatchReader::begin(Daemon::of(&mount.source, mount.device)?, &reading)?;
        Ok(Tree { paths: Paths::new(vec![directory.to_owned()]), _held: vec![held], reader })
    }

    /// What comes next; `None`: that was all.
    pub(super) fn next_window(&mut self) -> Result<Option<Records>, Failure> {
        self.reader.next_window()
    }

    /// The path of an entry, as one that began at what was named would be written.
    pub(super) fn path_of(&self, path: &[u8]) -> Result<PathBuf, Failure> {
        self.paths.of(path).ok_or_else(|| garbled("a path of nothing that was asked for"))
    }
}

/// Files and directories that are read together at most: each is held open, and others are opened meanwhile.
pub(super) fn roots_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(ROOTS_MAX, |limit| usize::try_from(limit / 4).unwrap_or(ROOTS_MAX)).clamp(1, ROOTS_MAX)
}

/// The failure of a record that makes no sense.
pub(super) fn garbled(error: impl std::fmt::Display) -> Failure {
    Failure::new("cannot understand the daemon", error).mend("use a command line of the daemon's version")
}

/// A path of a batch, from here on.
pub(super) fn below(top: &Path, path: &[u8]) -> PathBuf {
    if path.is_empty() { top.to_owned() } else { top.join(OsStr::from_bytes(path)) }
}

/// Names what an answer says could not be read below a path, on standard error, and in the answer by whole paths. How many that is: of very many
/// not all are named.
pub(super) fn tell_failed(top: &Path, answer: &mut Value) -> u64 {
    let count = number(answer, "/failed");
    let Some(answer) = answer.as_object_mut() else { return count };
    // A daemon of before names none.
    let named = answer.remove("unreadable").and_then(|named| serde_json::from_value(named).ok());
    let named: Vec<(Name, String)> = named.unwrap_or_default();
    let tell = |(name, why): (Name, String)| {
        let path = below(top, name.bytes());
        super::remark(&format!("cannot read: {}; {why}", path.display()));
        json!({ "path": path.display().to_string(), "why": why })
    };
    answer.insert("unreadable".to_owned(), named.into_iter().map(tell).collect());
    count
}

/// A kind in one word.
pub(super) fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Fifo => "fifo",
        Kind::CharacterDevice => "character device",
        Kind::Directory => "directory",
        Kind::BlockDevice => "block device",
        Kind::Regular => "file",
        Kind::Symlink => "symbolic link",
        Kind::Socket => "socket",
    }
}

/// What was written through mappings lies in the kernel's pages until it is asked for. What is on its way then is not waited for: `sync` does.
#[expect(clippy::disallowed_methods, reason = "a mount is the outside")]
pub(super) fn write_pages_back(point: &Path) {
    // Where it cannot be, the daemon tells what it has.
    if let Ok(point) = std::fs::File::open(point) {
        let _ = rustix::fs::syncfs(point);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::{Paths, tell_failed};

    #[test]
    fn what_failed_is_named_by_its_path_and_counted() {
        let mut answer = json!({ "failed": 3, "unreadable": [["a/b", "damaged"], [[255], "odd"]] });
        assert_eq!(tell_failed(Path::new("/m"), &mut answer), 3);
        assert_eq!(
            answer["unreadable"],
            json!([{ "path": "/m/a/b", "why": "damaged" }, { "path": "/m/\u{fffd}", "why": "odd" }])
        );
        let mut of_before = json!({ "failed": 2 });
        assert_eq!((tell_failed(Path::new("/m"), &mut of_before), &of_before["unreadable"]), (2, &json!([])));
        assert_eq!(tell_failed(Path::new("/m"), &mut json!(7)), 0);
    }

    #[test]
    fn no_path_of_a_daemon_leads_away_from_what_was_named() {
        let paths = Paths::new(vec!["/a".into(), "b".into()]);
        let of = |path: &str| paths.of(path.as_bytes());
        assert_eq!((of("0").as_deref(), of("1/c/..d").as_deref()), (Some(Path::new("/a")), Some(Path::new("b/c/..d"))));
        for path in [
            "0/",
            "0//etc/x",
            "0/..",
            "0/../../x",
            "0/c/../d",
            "0/./c",
            "0/c/",
            "0/c//d",
            "1/.",
            "2/c",
            "",
            "/etc/x",
            "x/c",
            "-1/c",
        ] {
            assert_eq!(of(path), None, "{path:?}");
        }
    }
}
