//! Two trees, entry by entry. One thread walks, several read content: a file of a fresh mount is mostly waiting.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;

use super::{Size, join, names};
use crate::interrupt;

/// Threads that read.
const READERS: usize = 4;
/// Differences that are kept in words; the others are counted.
const DIFFERENCES_MAX: usize = 20;

/// What to compare beyond names, kinds, content and modes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Comparison {
    /// Owners and groups.
    pub(crate) owners: bool,
    /// Extended attributes, access lists among them.
    pub(crate) attributes: bool,
    /// Which names are one file.
    pub(crate) hard_links: bool,
    /// Modification times.
    pub(crate) times: bool,
}

impl Comparison {
    /// All of it.
    pub(crate) const FULL: Comparison = Comparison { owners: true, attributes: true, hard_links: true, times: true };
    /// For trees that were made twice, at two times and by programs that keep less.
    pub(crate) const CONTENT: Comparison =
        Comparison { owners: false, attributes: false, hard_links: false, times: false };
}

struct Work<'a> {
    left: &'a Path,
    right: &'a Path,
    bytes: AtomicU64,
    count: AtomicU64,
    differences: Mutex<Vec<String>>,
    bar: &'a ProgressBar,
}

/// Compares; the first differences are the error.
pub(crate) fn compare(left: &Path, right: &Path, what: Comparison, bar: &ProgressBar) -> Result<Size> {
    let work =
        Work { left, right, bytes: AtomicU64::new(0), count: AtomicU64::new(0), differences: Mutex::default(), bar };
    let (send, inbox) = sync_channel::<PathBuf>(1000);
    let inbox = Mutex::new(inbox);
    let walked = std::thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| work.read(&inbox));
        }
        // Moved, so that readers see the end.
        let send = send;
        work.walk(what, |relative| send.send(relative).context("no reader is left"))
    });
    let mut size = walked?;
    interrupt::check()?;
    size.bytes = work.bytes.into_inner();
    match work.count.into_inner() {
        0 => Ok(size),
        count => {
            let differences = work.differences.into_inner().expect("no reader panicked");
            bail!("{} and {} differ in {count} places:\n{}", left.display(), right.display(), differences.join("\n"));
        }
    }
}

impl Work<'_> {
    fn differ(&self, relative: &Path, words: String) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut differences = self.differences.lock().expect("no reader panicked");
        if differences.len() < DIFFERENCES_MAX {
            differences.push(format!("  {}: {words}", relative.display()));
        }
    }

    fn walk(&self, what: Comparison, mut content: impl FnMut(PathBuf) -> Result<()>) -> Result<Size> {
        let mut size = Size::default();
        // The first name of each file with several, on both sides.
        let mut first: [HashMap<(u64, u64), PathBuf>; 2] = Default::default();
        super::walk(self.left, |relative, left| {
            let path = join(self.right, relative);
            let right = match fs::symlink_metadata(&path) {
                Ok(right) => right,
                Err(error) => {
                    self.differ(relative, format!("the copy: {error}"));
                    return Ok(());
                }
            };
            self.metadata(relative, left, &right, what);
            if what.attributes {
                self.attributes(relative);
            }
            if left.is_dir() {
                size.directories += 1;
                if right.is_dir() {
                    self.names(relative)?;
                }
                return Ok(());
            }
            if what.hard_links && (left.nlink() > 1 || right.nlink() > 1) {
                let mut linked = |side: usize, metadata: &Metadata| {
                    first[side].entry((metadata.dev(), metadata.ino())).or_insert_with(|| relative.to_owned()).clone()
                };
                let (left, right) = (linked(0, left), linked(1, &right));
                if left != right {
                    let (left, right) = (left.display(), right.display());
                    self.differ(relative, format!("is one file with {left}, and in the copy with {right}"));
                }
            }
            if left.is_file() {
                size.files += 1;
                if right.is_file() {
                    content(relative.to_owned())?
                }
            } else {
                size.others += 1;
                self.bar.inc(1);
            }
            Ok(())
        })?;
        Ok(size)
    }

    fn metadata(&self, relative: &Path, left: &Metadata, right: &Metadata, what: Comparison) {
        let kind = |metadata: &Metadata| {
            let kind = metadata.file_type();
            [kind.is_dir(), kind.is_file(), kind.is_symlink(), kind.is_fifo(), kind.is_socket(), kind.is_block_device()]
        };
        if kind(left) != kind(right) {
            self.differ(relative, format!("kind {:?}, the copy {:?}", left.file_type(), right.file_type()));
            return;
        }
        if what.times && (left.mtime(), left.mtime_nsec()) != (right.mtime(), right.mtime_nsec()) {
            let time = |metadata: &Metadata| format!("{}.{:09}", metadata.mtime(), metadata.mtime_nsec());
            self.differ(relative, format!("modified {}, the copy {}", time(left), time(right)));
        }
        let unequal = |name: &str, left: u64, right: u64| {
            if left != right {
                self.differ(relative, format!("{name} {left}, the copy {right}"));
            }
        };
        if left.mode() != right.mode() {
            self.differ(relative, format!("mode {:o}, the copy {:o}", left.mode(), right.mode()));
        }
        if !left.is_dir() {
            unequal("size", left.size(), right.size());
            unequal("device", left.rdev(), right.rdev());
        }
        if what.owners {
            unequal("owner", left.uid().into(), right.uid().into());
            unequal("group", left.gid().into(), right.gid().into());
        }
        if left.is_symlink() {
            let target = |root| fs::read_link(join(root, relative)).ok();
            let (left, right) = (target(self.left), target(self.right));
            if left != right {
                self.differ(relative, format!("leads to {left:?}, the copy to {right:?}"));
            }
        }
    }

    fn names(&self, relative: &Path) -> Result<()> {
        let left = names(&join(self.left, relative))?;
        for name in names(&join(self.right, relative))? {
            if left.binary_search(&name).is_err() {
                self.differ(&relative.join(name), "is in the copy only".to_owned());
            }
        }
        Ok(())
    }

    fn attributes(&self, relative: &Path) {
        let (left, right) = (attributes(&join(self.left, relative)), attributes(&join(self.right, relative)));
        if left != right {
            self.differ(relative, format!("attributes {left:?}, the copy {right:?}"));
        }
    }

    fn read(&self, inbox: &Mutex<Receiver<PathBuf>>) {
        loop {
            let next = inbox.lock().expect("no reader panics with the lock").recv();
            let Ok(relative) = next else { return };
            // After Ctrl-C the queue is emptied without work, so that the walker is not stuck in it.
            if interrupt::is_asked() {
                continue;
            }
            match self.content(&relative) {
                Ok(bytes) => {
                    self.bytes.fetch_add(bytes, Ordering::Relaxed);
                }
                Err(error) => self.differ(&relative, error.to_string()),
            }
            self.bar.inc(1);
        }
    }

    /// Bytes compared.
    fn content(&self, relative: &Path) -> Result<u64> {
        let open = |root: &Path| {
            File::open(join(root, relative)).with_context(|| format!("cannot open it in {}", root.display()))
        };
        let (mut left, mut right) = (open(self.left)?, open(self.right)?);
        let (mut expected, mut found) = (vec![0; 256 * 1024], vec![0; 256 * 1024]);
        let mut offset = 0;
        loop {
            let count = fill(&mut left, &mut expected).context("cannot read the original")?;
            let copied =
                fill(&mut right, &mut found).with_context(|| format!("cannot read the copy after byte {offset}"))?;
            if expected[..count] != found[..copied] {
                let same = expected
                    .iter()
                    .zip(&found)
                    .take(count.min(copied))
                    .take_while(|(left, right)| left == right)
                    .count();
                bail!("content differs from byte {} on", offset + same as u64);
            }
            if count == 0 {
                return Ok(offset);
            }
            offset += count as u64;
        }
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut count = 0;
    while count < buffer.len() {
        match file.read(&mut buffer[count..])? {
            0 => break,
            read => count += read,
        }
    }
    Ok(count)
}

/// All extended attributes that can be read, by name. None where the file system has none.
fn attributes(path: &Path) -> Vec<(OsString, Vec<u8>)> {
    // Linux: a list has at most 64 KiB, and a value too (xattr(7)).
    let mut list = vec![0; 64 * 1024];
    let Ok(count) = rustix::fs::llistxattr(path, &mut list) else { return Vec::new() };
    let mut value = vec![0; 64 * 1024];
    let mut attributes: Vec<(OsString, Vec<u8>)> = list[..count]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| OsString::from_vec(name.to_vec()))
        .filter_map(|name| {
            let count = rustix::fs::lgetxattr(path, &name, &mut value).ok()?;
            Some((name, value[..count].to_vec()))
        })
        .collect();
    attributes.sort();
    attributes
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use indicatif::ProgressBar;

    use super::{Comparison, compare};
    use crate::program::Program;

    /// What the comparison says, and what brings it about.
    type Change = (&'static str, Box<dyn Fn()>);

    fn tree(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("xtask-compare-{name}-{}", std::process::id()));
        let left = root.join("left");
        fs::create_dir_all(left.join("dir/sub")).expect("room");
        fs::write(left.join("dir/a"), vec![7; 300_000]).expect("room");
        fs::write(left.join("empty"), "").expect("room");
        fs::hard_link(left.join("dir/a"), left.join("linked")).expect("one file system");
        std::os::unix::fs::symlink("dir/a", left.join("soft")).expect("room");
        Program::new("cp").arg("-a").arg(&left).arg(root.join("right")).output().expect("cp runs");
        root
    }

    #[test]
    fn equal_trees_are_equal_and_each_difference_is_seen() {
        let root = tree("each");
        let (left, right) = (root.join("left"), root.join("right"));
        let outcome = || compare(&left, &right, Comparison::FULL, &ProgressBar::hidden());
        let size = outcome().expect("a copy");
        assert_eq!((size.files, size.directories, size.others, size.bytes), (3, 3, 1, 600_000));
        let mut changes: Vec<Change> = Vec::new();
        let path = |name: &str| right.join(name);
        let (file, extra, linked, soft) = (path("dir/a"), path("dir/extra"), path("linked"), path("soft"));
        changes.push((
            "content differs from byte 299999",
            Box::new(move || {
                let times = fs::metadata(&file).expect("there").modified().expect("known");
                let mut content = vec![7; 300_000];
                content[299_999] = 8;
                fs::write(&file, content).expect("room");
                fs::File::options().write(true).open(&file).and_then(|file| file.set_modified(times)).expect("ours");
            }),
        ));
        changes.push(("is in the copy only", Box::new(move || fs::write(&extra, "").expect("room"))));
        changes.push((
            "is one file with",
            Box::new(move || {
                fs::remove_file(&linked).expect("there");
                fs::write(&linked, vec![7; 300_000]).expect("room");
            }),
        ));
        changes.push((
            "leads to",
            Box::new(move || {
                fs::remove_file(&soft).expect("there");
                std::os::unix::fs::symlink("dir/b", &soft).expect("room");
            }),
        ));
        for (words, change) in changes {
            change();
            let error = outcome().expect_err(words).to_string();
            assert!(error.contains(words), "{words}: {error}");
        }
        fs::remove_dir_all(root).expect("ours");
    }

    #[test]
    fn a_single_file_is_a_tree_too() {
        let root = tree("single");
        let (left, right) = (root.join("left/dir/a"), root.join("right/dir/a"));
        let outcome = || compare(&left, &right, Comparison::CONTENT, &ProgressBar::hidden());
        assert_eq!(outcome().expect("a copy").bytes, 300_000);
        fs::write(&right, vec![8; 300_000]).expect("room");
        let error = outcome().expect_err("content was changed").to_string();
        assert!(error.contains("content differs from byte 0"), "{error}");
        fs::remove_dir_all(root).expect("ours");
    }
}
