//! Trees of files: walked, measured, and compared down to the last byte, mode, time, link and attribute.
//!
//! The comparison is our own and reads with plain system calls, so that neither the copying program nor the checking one is
//! the judge of itself.

mod compare;

use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub(crate) use compare::{Comparison, compare};

use crate::interrupt;

/// What a tree holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) files: u64,
    pub(crate) directories: u64,
    /// Symbolic links and special files.
    pub(crate) others: u64,
    /// Content of regular files, each inode once.
    pub(crate) bytes: u64,
}

impl Size {
    pub(crate) fn entries(&self) -> u64 {
        self.files + self.directories + self.others
    }
}

/// Calls `visit` with each entry below `root`, parents before children, names in order; `root` itself is the empty path.
pub(crate) fn walk(root: &Path, mut visit: impl FnMut(&Path, &Metadata) -> Result<()>) -> Result<()> {
    let mut waiting = vec![PathBuf::new()];
    while let Some(relative) = waiting.pop() {
        interrupt::check()?;
        let path = join(root, &relative);
        let metadata = fs::symlink_metadata(&path).with_context(|| format!("cannot look at {}", path.display()))?;
        visit(&relative, &metadata)?;
        if metadata.is_dir() {
            let mut names = names(&path)?;
            names.reverse();
            waiting.extend(names.into_iter().map(|name| relative.join(name)));
        }
    }
    Ok(())
}

/// Names in a directory, in order.
pub(crate) fn names(dir: &Path) -> Result<Vec<std::ffi::OsString>> {
    let cannot = || format!("cannot list {}", dir.display());
    let entries: std::io::Result<Vec<_>> =
        fs::read_dir(dir).with_context(cannot)?.map(|entry| Ok(entry?.file_name())).collect();
    let mut names = entries.with_context(cannot)?;
    names.sort();
    Ok(names)
}

/// Measures a tree.
pub(crate) fn size(root: &Path) -> Result<Size> {
    let (mut size, mut seen) = (Size::default(), HashSet::new());
    walk(root, |_, metadata| {
        if metadata.is_dir() {
            size.directories += 1;
        } else if !metadata.is_file() {
            size.others += 1;
        } else {
            size.files += 1;
            if metadata.nlink() == 1 || seen.insert((metadata.dev(), metadata.ino())) {
                size.bytes += metadata.len();
            }
        }
        Ok(())
    })?;
    Ok(size)
}

/// `root` itself for the empty path: `join` would append a slash.
fn join(root: &Path, relative: &Path) -> PathBuf {
    if relative.as_os_str().is_empty() { root.to_owned() } else { root.join(relative) }
}
