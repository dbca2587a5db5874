//! What the workloads work on, made once from what this machine has: a tree of sources, the same as a tar, a repository.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::dedup;
use crate::posix::git;
use crate::program::Program;

#[derive(Debug)]
pub(super) struct Inputs {
    /// A tree of sources.
    pub(super) tree: PathBuf,
    /// The same as one file.
    pub(super) tar: PathBuf,
    /// A bare repository.
    pub(super) repository: PathBuf,
    /// Where more inputs may be made.
    pub(super) root: PathBuf,
    pub(super) log: PathBuf,
    pub(super) words: String,
}

impl Inputs {
    pub(super) fn prepare(root: &Path, is_quick: bool) -> Result<Inputs> {
        let root = root.join(if is_quick { "quick" } else { "whole" });
        fs::create_dir_all(&root)?;
        let log = root.join("log");
        let (tree, tar, repository) = (root.join("tree"), root.join("tree.tar"), root.join("repository.git"));
        let (commits, bytes) = if is_quick { (20, 20 << 20) } else { (400, 300 << 20) };
        git::repository(&repository, commits, bytes, &log).context("cannot make the repository")?;
        if !tar.exists() {
            println!("preparing a tree of sources (once)");
            if tree.exists() {
                fs::remove_dir_all(&tree)?;
            }
            for (number, (from, name)) in git::source_files(bytes)?.into_iter().enumerate() {
                let to = tree.join(format!("part-{}", number / 5000)).join(name);
                fs::create_dir_all(to.parent().expect("below the tree"))?;
                fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
            }
            let unfinished = tar.with_extension("unfinished");
            Program::new("tar").arg("-cf").arg(&unfinished).arg("-C").arg(&tree).arg(".").output()?;
            fs::rename(unfinished, &tar)?;
        }
        let words =
            format!("sources of this machine: {}; a repository of {commits} commits of them", super::described(&tree)?);
        Ok(Inputs { tree, tar, repository, root, log, words })
    }

    /// Reads the input once, so that it is cached on both sides' turns.
    pub(super) fn warm(&self, path: &Path) -> Result<()> {
        // Not tar to /dev/null: it knows that file, and opens none of ours.
        dedup::read(path)
    }
}
