//! Whole trees at once: `hydrafs cp` from outside, `clone`, `snapshot` and `rm -r`. Afterwards the trees and the snapshots are those after some
//! prefix of the steps, not shorter than the last that was synced; each tree has all its files, and each snapshot what was there when it was
//! taken.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::content::{self, Key};
use super::load::{Cut, Load, Round, Verified};
use crate::program::Program;
use crate::random::Random;

/// Files of a tree.
const FILES: u64 = 24;
/// Trees and snapshots at a time; more are removed.
const TREES_MAX: usize = 8;
const SNAPSHOTS_MAX: usize = 3;

/// Does what `hydrafs` does.
pub(super) trait Tool: std::fmt::Debug + Send {
    fn copy(&self, from: &Path, to: &Path, is_atomic: bool) -> Result<()>;
    fn clone_tree(&self, from: &Path, to: &Path) -> Result<()>;
    fn remove(&self, path: &Path) -> Result<()>;
    fn take_snapshot(&self, name: &str, of: &Path) -> Result<()>;
    fn forget_snapshot(&self, name: &str) -> Result<()>;
    /// Where snapshots are seen, by name.
    fn snapshots(&self) -> PathBuf;
}

/// The program itself.
#[derive(Clone, Debug)]
pub(super) struct Hydrafs {
    pub(super) binary: PathBuf,
    pub(super) node: PathBuf,
    pub(super) point: PathBuf,
}

/// By name, the number that says what its files have.
type Trees_ = BTreeMap<String, u64>;

#[derive(Clone, Debug)]
enum Change {
    /// With files of this number. `is_atomic`: all at once.
    Copy {
        name: String,
        number: u64,
        is_atomic: bool,
    },
    Clone {
        from: String,
        to: String,
    },
    Remove(String),
    Take(String),
    Forget(String),
}

#[derive(Clone, Debug)]
struct Operation {
    change: Change,
    began: Duration,
    /// `None`: it never returned while the daemon lived, and may or may not be there.
    ended: Option<Duration>,
}

/// What is there, by the record or by looking.
#[derive(Clone, Debug, Default)]
struct State {
    trees: Trees_,
    snapshots: BTreeMap<String, Trees_>,
}

/// The load.
#[derive(Debug)]
pub(super) struct Trees {
    round: Round,
    thread: u64,
    tool: Box<dyn Tool>,
    folder: PathBuf,
    /// What is copied from, outside of the mount.
    source: PathBuf,
    random: Random,
    state: State,
    record: Vec<Operation>,
    synced: u64,
}

impl Trees {
    pub(super) fn new(round: &Round, thread: u64, tool: Box<dyn Tool>) -> Result<Trees> {
        let folder = round.folder.join("trees");
        fs::create_dir(&folder)?;
        let source = round.outside.join("trees");
        fs::create_dir_all(source.join("below"))?;
        let (random, state, record) = (round.random(thread), State::default(), Vec::new());
        Ok(Trees { round: round.clone(), thread, tool, folder, source, random, state, record, synced: 0 })
    }

    fn choose(&mut self) -> Change {
        let (number, random, state) = (self.record.len() as u64, &mut self.random, &self.state);
        let pick = |random: &mut Random| state.trees.keys().nth(random.below(state.trees.len().max(1) as u64) as usize);
        if state.snapshots.len() > SNAPSHOTS_MAX {
            return Change::Forget(state.snapshots.keys().next().expect("several").clone());
        }
        let kind = if state.trees.len() > TREES_MAX { 4 } else { random.below(6) };
        match (kind, pick(random)) {
            (2 | 3, Some(from)) => Change::Clone { from: from.clone(), to: format!("clone-{number}") },
            (4, Some(name)) => Change::Remove(name.clone()),
            (5, Some(_)) => Change::Take(format!("{}{number:05}", prefix(self.round.number))),
            _ => Change::Copy { name: format!("copy-{number}"), number, is_atomic: random.one_in(2) },
        }
    }

    fn apply(&self, change: &Change) -> Result<()> {
        let path = |name: &String| self.folder.join(name);
        match change {
            Change::Copy { name, number, is_atomic } => {
                for file in 0..FILES {
                    fs::write(self.source.join(file_name(file)), self.content(*number, file))?;
                }
                self.tool.copy(&self.source, &path(name), *is_atomic)
            }
            Change::Clone { from, to } => self.tool.clone_tree(&path(from), &path(to)),
            Change::Remove(name) => self.tool.remove(&path(name)),
            Change::Take(name) => self.tool.take_snapshot(name, &self.folder),
            Change::Forget(name) => self.tool.forget_snapshot(name),
        }
    }

    fn content(&self, number: u64, file: u64) -> Vec<u8> {
        let size = 1 + (number * 31 + file * file * 397) % 30_000;
        content::make(Key::new(self.round.number, self.thread, number * FILES + file), 0, size as usize)
    }

    pub(super) fn step(&mut self) -> Result<()> {
        let change = self.choose();
        self.record.push(Operation { change: change.clone(), began: self.round.now(), ended: None });
        self.apply(&change).with_context(|| format!("{change:?}"))?;
        if self.round.is_killing() {
            // A command that found no daemon may have done it without one, after the crash.
            bail!("the daemon is killed");
        }
        replay(&mut self.state, &change);
        self.record.last_mut().expect("just pushed").ended = Some(self.round.now());
        let count = self.record.len() as u64;
        if matches!(change, Change::Copy { .. }) {
            // Such a copy is on the disks when the command ends, and all before it.
            self.synced = count;
        }
        self.round.done(self.thread, count);
        Ok(())
    }

    /// Our snapshots, and where each is seen.
    fn snapshots(&self) -> Result<BTreeMap<String, PathBuf>> {
        let folder = self.tool.snapshots();
        let names = list(&folder)?.into_iter().filter(|name| name.starts_with(&prefix(self.round.number)));
        Ok(names.map(|name| (name.clone(), folder.join(name))).collect())
    }

    /// The prefixes that have these names, shortest first; at least one.
    fn prefixes(&self, trees: &[String], snapshots: &[String]) -> Result<Vec<usize>> {
        let (mut state, mut fitting) = (State::default(), Vec::new());
        for count in 0..=self.record.len() {
            if let Some(last) = count.checked_sub(1) {
                replay(&mut state, &self.record[last].change);
            }
            if state.trees.keys().eq(trees) && state.snapshots.keys().eq(snapshots) {
                fitting.push(count);
            }
        }
        if fitting.is_empty() {
            bail!(
                "the trees {trees:?} and snapshots {snapshots:?} are no prefix of {} steps, which end with {:?} and leave {:?}",
                self.record.len(),
                self.record.iter().rev().take(3).map(|operation| &operation.change).collect::<Vec<_>>(),
                (state.trees.keys(), state.snapshots.keys())
            );
        }
        Ok(fitting)
    }

    fn found(&self) -> Result<(Vec<usize>, BTreeMap<String, PathBuf>)> {
        let (trees, snapshots) = (list(&self.folder)?, self.snapshots()?);
        let names: Vec<String> = snapshots.keys().cloned().collect();
        Ok((self.prefixes(&trees, &names)?, snapshots))
    }

    /// Whether a tree has its files, all of them unless it `may_lack` some; how many bytes that were.
    fn verify_tree(&self, path: &Path, number: u64, may_lack: bool) -> Result<u64> {
        let mut read = 0;
        for file in 0..FILES {
            let path = path.join(file_name(file));
            match fs::read(&path) {
                Ok(bytes) if bytes == self.content(number, file) => read += bytes.len() as u64,
                Ok(bytes) => {
                    let key = Key::new(self.round.number, self.thread, number * FILES + file);
                    content::check(key, 0, &bytes).with_context(|| path.display().to_string())?;
                    bail!("{} has {} bytes of {}", path.display(), bytes.len(), self.content(number, file).len());
                }
                Err(error) if may_lack && error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
            }
        }
        Ok(read)
    }

    fn verify_trees(&self, at: &Path, trees: &Trees_, lacking: Option<&str>) -> Result<u64> {
        trees.iter().map(|(name, number)| self.verify_tree(&at.join(name), *number, lacking == Some(name))).sum()
    }
}

impl Load for Trees {
    fn name(&self) -> &str {
        "trees"
    }

    fn run(&mut self) -> Option<String> {
        let round = self.round.clone();
        round.until_killed(|| self.step())
    }

    fn done(&self) -> u64 {
        self.record.iter().filter(|operation| operation.ended.is_some()).count() as u64
    }

    fn verify(&self) -> Result<Verified> {
        let (fitting, snapshots) = self.found()?;
        let synced = self.synced.max(self.round.covered(self.thread));
        let last = fitting[fitting.len() - 1];
        if (last as u64) < synced {
            bail!("{synced} steps were synced, and only {last} are there");
        }
        let (mut state, mut lacking, mut unsure) = (State::default(), None, None);
        for operation in &self.record[..last] {
            replay(&mut state, &operation.change);
            match &operation.change {
                Change::Copy { name, is_atomic: false, .. } if operation.ended.is_none() => {
                    lacking = Some(name.as_str())
                }
                Change::Take(name) if operation.ended.is_none() => unsure = Some(name),
                _ => {}
            }
        }
        let mut bytes = self.verify_trees(&self.folder, &state.trees, lacking)?;
        for (name, path) in &snapshots {
            let (mut trees, found) = (state.snapshots[name].clone(), list(path)?);
            if unsure == Some(name) {
                // If it was taken by the command alone, after the crash, it shows what that left.
                trees.retain(|tree, _| found.contains(tree));
            }
            if !trees.keys().eq(&found) {
                bail!("the snapshot {name} shows {found:?}; it was taken of {:?}", trees.keys());
            }
            bytes += self.verify_trees(path, &trees, None).with_context(|| format!("snapshot {name}"))?;
            self.tool.forget_snapshot(name)?;
        }
        Ok(Verified { synced, present: last as u64, bytes })
    }

    fn cut(&self) -> Result<Option<Cut>> {
        // The snapshots were deleted by the look at them, so only what trees say counts.
        let (trees, mut state, mut fitting) = (list(&self.folder)?, State::default(), Vec::new());
        for count in 0..=self.record.len() {
            if let Some(last) = count.checked_sub(1) {
                replay(&mut state, &self.record[last].change);
            }
            if state.trees.keys().eq(&trees) {
                fitting.push(count);
            }
        }
        let (Some(least), Some(most)) = (fitting.first().copied(), fitting.last().copied()) else { return Ok(None) };
        let first_lost_ended = self.record.get(most).and_then(|operation| operation.ended);
        let last_kept_began = least.checked_sub(1).map(|last| self.record[last].began);
        Ok(Some(Cut { first_lost_ended, last_kept_began }))
    }
}

fn replay(state: &mut State, change: &Change) {
    match change {
        Change::Copy { name, number, .. } => drop(state.trees.insert(name.clone(), *number)),
        Change::Clone { from, to } => {
            if let Some(number) = state.trees.get(from).copied() {
                state.trees.insert(to.clone(), number);
            }
        }
        Change::Remove(name) => drop(state.trees.remove(name)),
        Change::Take(name) => drop(state.snapshots.insert(name.clone(), state.trees.clone())),
        Change::Forget(name) => drop(state.snapshots.remove(name)),
    }
}

/// How the names of a round's snapshots begin.
fn prefix(round: u64) -> String {
    format!("kill-{round}-")
}

fn file_name(file: u64) -> String {
    if file.is_multiple_of(3) { format!("below/{file}") } else { file.to_string() }
}

/// Names in a folder, sorted; not those of what a copy that was killed had set aside.
fn list(folder: &Path) -> Result<Vec<String>> {
    let names = crate::tree::names(folder)?.into_iter().map(|name| name.to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    Ok(names)
}

impl Hydrafs {
    fn run(&self, verb: &str, arguments: impl FnOnce(Program) -> Program) -> Result<()> {
        arguments(Program::new(&self.binary).arg(verb)).limit(Duration::from_secs(120)).output().map(drop)
    }
}

impl Tool for Hydrafs {
    fn copy(&self, from: &Path, to: &Path, is_atomic: bool) -> Result<()> {
        let how = ["-a", "-q"].into_iter().chain(is_atomic.then_some("--atomic"));
        self.run("cp", |program| program.args(how).arg(from).arg(to))
    }

    fn clone_tree(&self, from: &Path, to: &Path) -> Result<()> {
        self.run("clone", |program| program.arg(from).arg(to))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.run("rm", |program| program.arg("-r").arg(path))
    }

    fn take_snapshot(&self, name: &str, of: &Path) -> Result<()> {
        self.run("snapshot", |program| program.arg("create").arg(&self.node).arg(name).arg("--of").arg(of))
    }

    fn forget_snapshot(&self, name: &str) -> Result<()> {
        self.run("snapshot", |program| program.arg("delete").arg(&self.node).arg(name))
    }

    fn snapshots(&self) -> PathBuf {
        self.point.join(".snapshots")
    }
}
