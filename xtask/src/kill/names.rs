//! Operations on names, each recorded: create (with content, at times fsynced), rename, rename over, link, symlink, mkdir, rmdir,
//! unlink. Afterwards the folder must be what some prefix of the record makes, not shorter than the last fsync.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::content::{self, Key};
use super::load::{Cut, Load, Round, Verified};
use crate::random::Random;

/// Names at a time; more are removed.
const NAMES_MAX: usize = 60;

/// What a name leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    File(Key),
    Symlink(String),
    Directory,
}

#[derive(Clone, Debug)]
enum Change {
    /// Of a file with so many bytes.
    Create(String, Key, u64),
    Mkdir(String),
    Symlink(String, String),
    Link(String, String),
    /// Over the target, if there is one.
    Rename(String, String),
    Unlink(String),
    Rmdir(String),
}

#[derive(Clone, Debug)]
struct Operation {
    change: Change,
    began: Duration,
    /// `None`: it never returned, and may or may not be there.
    ended: Option<Duration>,
    /// It fsynced the file that it made, or the folder.
    is_synced: bool,
}

type Names_ = BTreeMap<String, Entry>;

/// The load.
#[derive(Debug)]
pub(super) struct Names {
    round: Round,
    thread: u64,
    name: String,
    folder: PathBuf,
    record: Vec<Operation>,
}

impl Names {
    pub(super) fn new(round: &Round, thread: u64) -> Result<Names> {
        let name = format!("names-{thread}");
        let folder = round.folder.join(&name);
        fs::create_dir(&folder)?;
        Ok(Names { round: round.clone(), thread, name, folder, record: Vec::new() })
    }

    fn choose(&self, random: &mut Random, names: &Names_) -> (Change, bool) {
        let number = self.record.len() as u64;
        let is =
            |wanted: fn(&Entry) -> bool| names.iter().filter(move |(_, entry)| wanted(entry)).map(|(name, _)| name);
        let files: Vec<&String> = is(|entry| matches!(entry, Entry::File(_))).collect();
        let any: Vec<&String> = names.keys().collect();
        let mut pick = |from: &[&String]| from[random.below(from.len() as u64) as usize].clone();
        let fresh = format!("n{number}");
        let kind = if names.len() > NAMES_MAX { 8 } else { self.kind(number) };
        let change = match kind {
            4 if !files.is_empty() => Change::Rename(pick(&files), fresh),
            // Renaming a name of a file over another of the same file does nothing, as POSIX has it: no way to see it.
            5 if files.len() > 1 => match (pick(&files), pick(&files)) {
                (from, to) if names[&from] != names[&to] => Change::Rename(from, to),
                (from, _) => Change::Rename(from, fresh),
            },
            6 if !files.is_empty() => Change::Link(pick(&files), fresh),
            7 => match number % 2 {
                0 => Change::Mkdir(fresh),
                _ => Change::Symlink(format!("to-{number}"), fresh),
            },
            8 if !any.is_empty() => {
                let name = pick(&any);
                if names[&name] == Entry::Directory { Change::Rmdir(name) } else { Change::Unlink(name) }
            }
            _ => {
                let bytes = [0, 100, 5000, 40_000, 200_000][random.below(5) as usize];
                Change::Create(fresh, Key::new(self.round.number, self.thread, number), random.below(bytes + 1))
            }
        };
        let is_synced = random.one_in(4) && matches!(change, Change::Create(..)) || random.one_in(25);
        (change, is_synced)
    }

    fn kind(&self, number: u64) -> u64 {
        Random::new(self.round.seed ^ number << 8 ^ self.thread).below(9)
    }

    fn apply(&self, change: &Change, is_synced: bool) -> io::Result<()> {
        let path = |name: &String| self.folder.join(name);
        match change {
            Change::Create(name, key, bytes) => {
                let mut file = File::create_new(path(name))?;
                // In pieces, so that a crash may come between them.
                for offset in (0..*bytes).step_by(30_000) {
                    file.write_all(&content::make(*key, offset, (bytes - offset).min(30_000) as usize))?;
                }
                if is_synced {
                    return file.sync_all();
                }
            }
            Change::Mkdir(name) => fs::create_dir(path(name))?,
            Change::Symlink(target, name) => std::os::unix::fs::symlink(target, path(name))?,
            Change::Link(from, to) => fs::hard_link(path(from), path(to))?,
            Change::Rename(from, to) => fs::rename(path(from), path(to))?,
            Change::Unlink(name) => fs::remove_file(path(name))?,
            Change::Rmdir(name) => fs::remove_dir(path(name))?,
        }
        if is_synced { File::open(&self.folder)?.sync_all() } else { Ok(()) }
    }

    /// The least operation that has to be there, as a count.
    fn synced(&self) -> u64 {
        let own = self.record.iter().rposition(|operation| operation.is_synced && operation.ended.is_some());
        own.map_or(0, |index| index as u64 + 1).max(self.round.covered(self.thread))
    }

    /// The prefixes that have these names, shortest first; at least one.
    fn prefixes(&self, found: &BTreeMap<String, Found>) -> Result<Vec<usize>> {
        let (mut names, mut fitting) = (Names_::new(), Vec::new());
        for count in 0..=self.record.len() {
            if count > 0 {
                replay(&mut names, &self.record[count - 1].change);
            }
            if same(&names, found) {
                fitting.push(count);
            }
        }
        if fitting.is_empty() {
            bail!("the names are no prefix of what was done: {}", self.nearest(found));
        }
        Ok(fitting)
    }

    /// How the names differ from the prefix that they are nearest to.
    fn nearest(&self, found: &BTreeMap<String, Found>) -> String {
        let mut names = Names_::new();
        let differing = |names: &Names_| {
            let wrong = names.iter().filter(|(name, entry)| !found.get(*name).is_some_and(|found| found.fits(entry)));
            let lost: Vec<String> =
                wrong.map(|(name, entry)| format!("{name} ({entry:?}) is missing or another")).collect();
            let extra = found.keys().filter(|name| !names.contains_key(*name)).map(|name| format!("{name} is there"));
            lost.into_iter().chain(extra).collect::<Vec<_>>()
        };
        let mut best = (differing(&names), 0);
        for (index, operation) in self.record.iter().enumerate() {
            replay(&mut names, &operation.change);
            let differences = differing(&names);
            if differences.len() <= best.0.len() {
                best = (differences, index + 1);
            }
        }
        format!(
            "of {} operations, {} synced, the nearest prefix is {}, and then {}",
            self.record.len(),
            self.synced(),
            best.1,
            best.0.join(", ")
        )
    }

    /// The names after so many operations, and the files that must have all their bytes then.
    fn after(&self, present: usize) -> (Names_, BTreeSet<Key>) {
        let covered = self.round.covered(self.thread) as usize;
        let (mut names, mut whole) = (Names_::new(), BTreeSet::new());
        for (index, operation) in self.record.iter().take(present).enumerate() {
            match &operation.change {
                Change::Create(_, key, _) if index < covered || (operation.is_synced && operation.ended.is_some()) => {
                    whole.insert(*key);
                }
                // V-4.
                Change::Rename(from, to) if names.contains_key(to) => {
                    if let Some(Entry::File(key)) = names.get(from) {
                        whole.insert(*key);
                    }
                }
                _ => {}
            }
            replay(&mut names, &operation.change);
        }
        (names, whole)
    }

    /// Whether each file has what its name says, if so many operations are there. By names, for an empty file does not say whose it is.
    fn verify_content(&self, present: usize, found: &BTreeMap<String, Found>) -> Result<u64> {
        let sizes = self.record.iter().filter_map(|operation| match &operation.change {
            Change::Create(_, key, bytes) => Some((*key, *bytes)),
            _ => None,
        });
        let sizes: BTreeMap<Key, u64> = sizes.collect();
        let (names, whole) = self.after(present);
        let mut read = 0;
        for (name, entry) in &names {
            let (Entry::File(key), Some(Found::File(bytes))) = (entry, found.get(name)) else { continue };
            content::check(*key, 0, bytes).with_context(|| name.clone())?;
            let (count, size, is_whole) = (bytes.len() as u64, sizes[key], whole.contains(key));
            if count > size || (is_whole && count < size) {
                let synced = if is_whole { " and synced, or renamed over another file" } else { "" };
                bail!("{name} has {count} bytes, and {size} were written{synced}");
            }
            read += count;
        }
        Ok(read)
    }
}

impl Load for Names {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(&mut self) -> Option<String> {
        let mut random = self.round.random(self.thread);
        let mut names = Names_::new();
        loop {
            let (change, is_synced) = self.choose(&mut random, &names);
            let began = self.round.now();
            self.record.push(Operation { change: change.clone(), began, ended: None, is_synced });
            if let Err(error) = self.apply(&change, is_synced) {
                return self.round.judge(&error).map(|words| format!("{change:?}: {words}"));
            }
            replay(&mut names, &change);
            self.record.last_mut().expect("just pushed").ended = Some(self.round.now());
            self.round.done(self.thread, self.record.len() as u64);
        }
    }

    fn done(&self) -> u64 {
        self.record.iter().filter(|operation| operation.ended.is_some()).count() as u64
    }

    fn verify(&self) -> Result<Verified> {
        let found = list(&self.folder)?;
        let fitting = self.prefixes(&found)?;
        let (synced, last) = (self.synced(), fitting[fitting.len() - 1]);
        if (last as u64) < synced {
            bail!("{synced} operations were synced, and only {last} are there");
        }
        // Where several prefixes have these names, one must have the content too.
        let mut failure = None;
        for present in fitting.into_iter().rev().take_while(|count| *count as u64 >= synced) {
            match self.verify_content(present, &found) {
                Ok(bytes) => return Ok(Verified { synced, present: present as u64, bytes }),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        Err(failure.expect("the last one is long enough"))
    }

    fn cut(&self) -> Result<Option<Cut>> {
        let fitting = self.prefixes(&list(&self.folder)?)?;
        let (least, most) = (fitting[0], fitting[fitting.len() - 1]);
        let first_lost_ended = self.record.get(most).and_then(|operation| operation.ended);
        let last_kept_began = least.checked_sub(1).map(|last| self.record[last].began);
        Ok(Some(Cut { first_lost_ended, last_kept_began }))
    }
}

fn replay(names: &mut Names_, change: &Change) {
    match change {
        Change::Create(name, key, _) => names.insert(name.clone(), Entry::File(*key)),
        Change::Mkdir(name) => names.insert(name.clone(), Entry::Directory),
        Change::Symlink(target, name) => names.insert(name.clone(), Entry::Symlink(target.clone())),
        Change::Link(from, to) => names.get(from).cloned().and_then(|entry| names.insert(to.clone(), entry)),
        Change::Rename(from, to) => names.remove(from).and_then(|entry| names.insert(to.clone(), entry)),
        Change::Unlink(name) | Change::Rmdir(name) => names.remove(name),
    };
}

/// What a name was found to lead to.
#[derive(Debug)]
enum Found {
    File(Vec<u8>),
    Symlink(String),
    Directory,
}

impl Found {
    fn fits(&self, entry: &Entry) -> bool {
        match (self, entry) {
            // An empty file does not say whose it is; its name does.
            (Found::File(bytes), Entry::File(key)) => content::owner(bytes).is_none_or(|owner| owner == *key),
            (Found::Symlink(found), Entry::Symlink(target)) => found == target,
            (Found::Directory, Entry::Directory) => true,
            _ => false,
        }
    }
}

fn same(names: &Names_, found: &BTreeMap<String, Found>) -> bool {
    names.len() == found.len()
        && names.iter().all(|(name, entry)| found.get(name).is_some_and(|found| found.fits(entry)))
}

fn list(folder: &Path) -> Result<BTreeMap<String, Found>> {
    let mut found = BTreeMap::new();
    for name in crate::tree::names(folder)? {
        let path = folder.join(&name);
        let cannot = || format!("cannot read {}", path.display());
        let kind = fs::symlink_metadata(&path).with_context(cannot)?.file_type();
        let entry = if kind.is_dir() {
            Found::Directory
        } else if kind.is_symlink() {
            Found::Symlink(fs::read_link(&path).with_context(cannot)?.to_string_lossy().into_owned())
        } else {
            Found::File(fs::read(&path).with_context(cannot)?)
        };
        found.insert(name.to_string_lossy().into_owned(), entry);
    }
    Ok(found)
}
