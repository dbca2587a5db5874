//! Each call to a disk fails once, by itself, whichever it is (M-9), under work that has a bit of everything.
//!
//! The same work is done again and again, and each time another of its disk operations fails. Every call of the work does what it should or fails
//! as a disk fails, and then it has happened or not. In the end the power goes, or the process dies, or all is closed; the next opening
//! has what was promised (Q-1, Q-3, Q-4 and Q-7 of the oracle in crate `sim`), byte for byte, and the check finds nothing.
//!
//! Not here: several callers at a time (crate `sim`), the calls of the store alone (its own `calls`).

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use base::id::FileId;
use platform::disk::DiskErrorKind;
use platform::sim::{each_seed, seeds_asked_for};
use store::{Depth, StoreError};

use super::batch_write::{directory, file};
use super::content::pattern;
use super::{Machine, find, new};
use crate::{
    AttributeChange, BatchWrite, FileError, FileSystem, Kind, Node, OpenReport, Options, Reclaim, RenameMode, Share,
    StoreOptions,
};

/// One call of the work. Paths are from the root; offsets and lengths are in bytes.
#[derive(Clone, Copy, Debug)]
enum Step {
    Directory(&'static str),
    File(&'static str),
    Write(&'static str, usize, usize),
    Resize(&'static str, usize),
    Link(&'static str, &'static str),
    Rename(&'static str, &'static str),
    Remove(&'static str),
    RemoveTree(&'static str),
    /// A directory with two files, at once.
    Unit(&'static str),
    Clone(&'static str, &'static str),
    Snapshot(&'static str),
    DeleteSnapshot(&'static str),
    Sync(&'static str),
    SyncAll,
    Commit,
    Reclaim,
    /// Everything, also of snapshots.
    Read,
}

const WORK: [Step; 51] = [
    Step::Directory("d"),
    Step::File("d/small"),
    Step::Write("d/small", 0, 3_000),
    Step::Sync("d/small"),
    // A habit: with the last one its sync begins.
    Step::Write("d/small", 10, 20),
    Step::Sync("d/small"),
    Step::Write("d/small", 20, 20),
    Step::Sync("d/small"),
    Step::Write("d/small", 30, 20),
    Step::Sync("d/small"),
    Step::Write("d/small", 40, 20),
    Step::Read,
    Step::Sync("d/small"),
    Step::File("large"),
    Step::Write("large", 0, 400_000),
    Step::Sync("large"),
    Step::Commit,
    Step::File("d/other"),
    Step::Write("d/other", 0, 100_000),
    Step::Link("d/small", "small too"),
    Step::SyncAll,
    Step::Write("large", 150_000, 5_000),
    Step::Write("d/small", 2_900, 400),
    Step::Sync("d/small"),
    Step::Read,
    Step::Snapshot("one"),
    Step::Unit("unit"),
    Step::Write("large", 500_000, 80_000),
    Step::Rename("d/other", "unit/second"),
    Step::Sync("small too"),
    Step::Resize("large", 120_000),
    Step::Write("large", 300_000, 60_000),
    Step::Clone("d", "clone"),
    Step::Write("clone/small", 0, 2_000),
    Step::Commit,
    Step::Remove("d/small"),
    Step::Sync("large"),
    Step::RemoveTree("unit"),
    Step::DeleteSnapshot("one"),
    Step::File("d/again"),
    Step::Write("d/again", 0, 200_000),
    Step::SyncAll,
    Step::Commit,
    Step::Commit,
    Step::Reclaim,
    Step::Read,
    Step::Snapshot("two"),
    Step::File("last"),
    Step::Write("last", 0, 150_000),
    Step::Sync("d/again"),
    Step::Write("last", 50_000, 30_000),
];

/// An opening is so many operations at most.
const OPENING_MAX: u64 = 100;
/// More than a disk refuses.
const LOOKS_MAX: usize = 100;

/// Names, and what they lead to.
#[derive(Clone, Debug, Default)]
struct Tree {
    /// By path; two of the same number are one file.
    names: BTreeMap<String, usize>,
    /// By number; a directory has none.
    contents: BTreeMap<usize, Arc<Vec<u8>>>,
}

impl Tree {
    /// After this step; `None` where it makes no sense, because one before it did not happen. `number` tells it from all others.
    fn after(&self, step: Step, number: usize) -> Option<Tree> {
        let mut tree = self.clone();
        let at = |path: &str| self.names.get(path).copied();
        match step {
            Step::Directory(path) | Step::File(path) | Step::Unit(path) if at(path).is_some() => return None,
            Step::Directory(path) => drop(tree.names.insert(path.to_owned(), number)),
            Step::File(path) => {
                tree.parent_of(path)?;
                tree.names.insert(path.to_owned(), number);
                tree.contents.insert(number, Arc::default());
            }
            Step::Unit(path) => {
                tree.names.insert(path.to_owned(), number);
                for (place, (name, content)) in unit(number).into_iter().enumerate() {
                    tree.names.insert(format!("{path}/{name}"), number + 1000 * (place + 1));
                    tree.contents.insert(number + 1000 * (place + 1), Arc::new(content));
                }
            }
            Step::Write(path, offset, length) => {
                let content = Arc::make_mut(tree.contents.get_mut(&at(path)?)?);
                content.resize(content.len().max(offset + length), 0);
                content[offset..offset + length].copy_from_slice(&written(number, length));
            }
            Step::Resize(path, length) => Arc::make_mut(tree.contents.get_mut(&at(path)?)?).resize(length, 0),
            Step::Link(from, to) => drop(tree.names.insert(to.to_owned(), at(from)?)),
            Step::Rename(from, to) => {
                tree.parent_of(to)?;
                tree.names.remove(from)?;
                tree.names.insert(to.to_owned(), at(from)?);
            }
            Step::Remove(path) => drop(tree.names.remove(path)?),
            Step::RemoveTree(path) => {
                at(path)?;
                tree.names.retain(|name, _| name != path && !name.starts_with(&format!("{path}/")));
            }
            Step::Clone(from, to) => {
                at(from)?;
                let below = self.names.iter().filter_map(|(name, file)| Some((name.strip_prefix(from)?, file)));
                for (rest, file) in below {
                    let clone = file + 100_000;
                    tree.names.insert(format!("{to}{rest}"), clone);
                    tree.contents.extend(self.contents.get(file).map(|content| (clone, content.clone())));
                }
            }
            Step::Sync(path) => drop(at(path)?),
            Step::Snapshot(_) | Step::DeleteSnapshot(_) => {}
            Step::SyncAll | Step::Commit | Step::Reclaim | Step::Read => {}
        }
        Some(tree)
    }

    fn parent_of(&self, path: &str) -> Option<()> {
        path.rsplit_once('/').is_none_or(|(parent, _)| self.names.contains_key(parent)).then_some(())
    }

    /// Each name, whether it is a directory, and the first name of the same file.
    fn names(&self) -> Vec<(&str, bool, &str)> {
        let first = |file: usize| self.names.iter().find(|(_, other)| **other == file).map_or("", |(name, _)| name);
        let names = self.names.iter();
        names.map(|(name, file)| (&name[..], !self.contents.contains_key(file), first(*file))).collect()
    }

    fn content(&self, name: &str) -> Option<&Arc<Vec<u8>>> {
        self.contents.get(self.names.get(name)?)
    }

    fn is_like(&self, other: &Tree) -> bool {
        self.names() == other.names() && self.names.keys().all(|name| self.content(name) == other.content(name))
    }

    /// What is below a directory of a file system.
    async fn read(system: &FileSystem, top: Node) -> Result<Tree, FileError> {
        let (mut tree, mut files) = (Tree::default(), BTreeMap::new());
        let mut waiting = vec![(String::new(), top)];
        while let Some((path, directory)) = waiting.pop() {
            let mut after = 0;
            loop {
                let entries = system.read_directory(directory, after, 100).await?;
                let Some(last) = entries.last() else { break };
                after = last.cookie;
                for entry in entries {
                    let path = format!("{path}{}", std::str::from_utf8(&entry.name).expect("a name of this test"));
                    let count = files.len();
                    let number = *files.entry(entry.node.file).or_insert(count);
                    tree.names.insert(path.clone(), number);
                    if entry.kind == Kind::Directory {
                        waiting.push((format!("{path}/"), entry.node));
                    } else {
                        tree.contents.insert(number, Arc::new(content(system, entry.node).await?));
                    }
                }
            }
        }
        Ok(tree)
    }
}

/// What there is after a call that failed. A disk that gave no answer refuses what comes next, for a while (M-9).
async fn look(system: &FileSystem, kind: DiskErrorKind, step: Step) -> Tree {
    for _ in 0..LOOKS_MAX {
        match Tree::read(system, Node::live(FileId::ROOT)).await {
            Ok(tree) => return tree,
            Err(error) if kind == DiskErrorKind::Silent => expect_excused(&error, kind, step),
            Err(error) => panic!("only one call fails, and after {step:?} {error}"),
        }
    }
    panic!("the disk is silent for ever after {step:?}");
}

async fn content(system: &FileSystem, node: Node) -> Result<Vec<u8>, FileError> {
    let size = usize::try_from(system.attributes(node).await?.size).unwrap();
    let mut bytes = vec![0xAA; size];
    assert_eq!(system.read(node, 0, &mut bytes).await?, size);
    Ok(bytes)
}

fn written(number: usize, length: usize) -> Vec<u8> {
    pattern(length, number as u64 + 1)
}

/// The files of a unit.
fn unit(number: usize) -> [(&'static str, Vec<u8>); 2] {
    [("first", written(number, 90_000)), ("second", written(number + 1000, 700))]
}

/// What was promised, and what may be.
#[derive(Default)]
struct History {
    /// Before the first call that was made, and after each.
    states: Vec<Tree>,
    /// Names are those of this state, or of a later one.
    names: usize,
    /// Where names are those of `.1` or of a later state, this file's content is that of `.2` or a later one.
    contents: Vec<(usize, usize, usize)>,
    /// What they show, and whether they were promised.
    snapshots: BTreeMap<&'static str, (Tree, bool)>,
    /// Calls that failed, and how the last of them did.
    failed: usize,
    why: String,
    /// Openings and passes of reclaim among them. The index is on one disk alone, and who asks for a pass hears of it; an opening is refused where
    /// it cannot list what a disk has that is there.
    not_at_work: usize,
}

impl History {
    fn last(&self) -> &Tree {
        self.states.last().expect("there is one before the first call")
    }

    /// A call that makes sense.
    async fn make(&mut self, system: &Arc<FileSystem>, step: Step, number: usize, kind: DiskErrorKind) {
        let Some(after) = self.last().after(step, number) else { return };
        match call(system, step, number, self).await {
            Ok(()) => {
                self.promise(step, &after);
                self.states.push(after);
            }
            Err(error) => {
                expect_excused(&error, kind, step);
                self.failed += 1;
                self.why = format!("{step:?}: {error}");
                self.not_at_work += usize::from(matches!(step, Step::Reclaim));
                let is = look(system, kind, step).await;
                let happened = after.is_like(&is);
                assert!(happened || self.last().is_like(&is), "{step:?} has happened in part: {error}");
                self.states.extend(happened.then_some(after));
            }
        }
    }

    /// What came of something that changes no file, if it succeeded.
    fn excuse<T>(&mut self, result: Result<T, FileError>, kind: DiskErrorKind, what: &str) -> Option<T> {
        let error = match result {
            Ok(done) => return Some(done),
            Err(error) => error,
        };
        expect_excused(&error, kind, what);
        self.failed += 1;
        self.not_at_work += usize::from(what == "open");
        self.why = format!("{what}: {error}");
        None
    }

    /// What a call promises that has succeeded; `after` comes next.
    fn promise(&mut self, step: Step, after: &Tree) {
        let at = self.states.len();
        match step {
            Step::Sync(path) => {
                self.names = at;
                self.contents.push((after.names[path], 0, at));
            }
            Step::SyncAll => self.promise_all(after, at),
            Step::Snapshot(_) | Step::Clone(..) => self.names = at,
            // I-55.
            Step::Rename(_, to) if self.last().names.contains_key(to) => {
                self.contents.push((after.names[to], at, at - 1));
            }
            _ => {}
        }
    }

    fn promise_all(&mut self, all: &Tree, at: usize) {
        self.names = at;
        self.contents.extend(all.contents.keys().map(|file| (*file, 0, at)));
    }

    ///
    async fn verify(&self, system: &FileSystem) {
        let found = Tree::read(system, Node::live(FileId::ROOT)).await.unwrap();
        let fits = |at: &usize| self.states[*at].names() == found.names();
        let fitting: Vec<usize> = (self.names..self.states.len()).filter(fits).collect();
        let [first, .., last] = [&fitting[..], &fitting[..]].concat()[..] else {
            panic!("{:?} are no names since {}, at last {:?}", found.names(), self.names, self.last().names());
        };
        for (name, file) in &self.states[last].names {
            let Some(bytes) = found.content(name) else { continue };
            let floors = self.contents.iter().filter(|(of, since, _)| of == file && *since <= first);
            let floor = floors.map(|(_, _, floor)| *floor).max().unwrap_or(0);
            let states = &self.states[floor.min(last)..=last];
            let versions: Vec<&Arc<Vec<u8>>> = states.iter().filter_map(|state| state.contents.get(file)).collect();
            let sizes = versions.iter().map(|version| version.len());
            let (least, most) = (sizes.clone().min().unwrap(), sizes.max().unwrap());
            assert!((least..=most).contains(&bytes.len()), "{name}: {} bytes, not {least} to {most}", bytes.len());
            let is_known = |at: usize| versions.iter().any(|version| version.get(at) == Some(&bytes[at]));
            if let Some(at) = (0..bytes.len()).find(|at| !is_known(*at)) {
                panic!("{name}: byte {at} was never so since {floor} of {last}: {:#04x}", bytes[at]);
            }
        }
        for (name, (tree, is_promised)) in &self.snapshots {
            match system.find_snapshot(name.as_bytes()) {
                Some(node) => assert!(Tree::read(system, node).await.unwrap().is_like(tree), "snapshot {name}"),
                None => assert!(!is_promised, "snapshot {name} is lost"),
            }
        }
    }
}

/// The parent of a path, and its name in there.
async fn place<'a>(system: &FileSystem, path: &'a str) -> Result<(FileId, &'a [u8]), FileError> {
    match path.rsplit_once('/') {
        Some((parent, name)) => Ok((find(system, parent).await?.file, name.as_bytes())),
        None => Ok((FileId::ROOT, path.as_bytes())),
    }
}

async fn call(system: &Arc<FileSystem>, step: Step, number: usize, history: &mut History) -> Result<(), FileError> {
    let file_at = async |path| Ok::<FileId, FileError>(find(system, path).await?.file);
    match step {
        Step::Directory(path) | Step::File(path) => {
            let kind = if matches!(step, Step::File(_)) { Kind::Regular } else { Kind::Directory };
            let (parent, name) = place(system, path).await?;
            system.create_file(parent, name, &new(kind)).await.map(drop)
        }
        Step::Write(path, offset, length) => {
            system.write(file_at(path).await?, offset as u64, &written(number, length), false).await
        }
        Step::Resize(path, length) => {
            let change = AttributeChange { size: Some(length as u64), ..AttributeChange::default() };
            system.set_attributes(file_at(path).await?, &change).await.map(drop)
        }
        Step::Link(from, to) => {
            let (parent, name) = place(system, to).await?;
            system.link(file_at(from).await?, parent, name).await.map(drop)
        }
        Step::Rename(from, to) => {
            let ((from, name), (to, new_name)) = (place(system, from).await?, place(system, to).await?);
            system.rename(from, name, to, new_name, RenameMode::Replace).await
        }
        Step::Remove(path) => {
            let (parent, name) = place(system, path).await?;
            system.remove_file(parent, name).await
        }
        Step::RemoveTree(path) => {
            let (parent, name) = place(system, path).await?;
            system.batch_remove(parent, name).await
        }
        Step::Unit(path) => {
            let files = unit(number).map(|(name, content)| file(&format!("{path}/{name}"), &content));
            let entries = [directory(path)].into_iter().chain(files).collect();
            let how = BatchWrite { atomic: true, ..BatchWrite::default() };
            let report = system.batch_write(FileId::ROOT, entries, &how).await?;
            report.fates.into_iter().try_for_each(|fate| fate.map(drop))
        }
        Step::Clone(from, to) => {
            let (parent, name) = place(system, to).await?;
            system.clone_tree(Node::live(file_at(from).await?), parent, name).await.map(drop)
        }
        Step::Snapshot(name) => {
            history.snapshots.insert(name, (history.last().clone(), false));
            system.snapshot(name).await?;
            history.snapshots.entry(name).and_modify(|(_, is_promised)| *is_promised = true);
            Ok(())
        }
        Step::DeleteSnapshot(name) => {
            let Some((_, is_promised)) = history.snapshots.get_mut(name).filter(|(_, promised)| *promised) else {
                return Ok(());
            };
            *is_promised = false;
            system.delete_snapshot(name).await
        }
        Step::Sync(path) => system.sync(file_at(path).await?).await,
        Step::SyncAll => system.sync_all().await,
        Step::Commit => system.commit().await,
        Step::Reclaim => system.reclaim(&Reclaim { is_thorough: true, ..Reclaim::default() }).await.map(drop),
        Step::Read => {
            let live = Tree::read(system, Node::live(FileId::ROOT)).await?;
            assert!(live.is_like(history.last()), "{:?} and not {:?}", live.names(), history.last().names());
            for (name, (tree, _)) in &history.snapshots {
                if let Some(node) = system.find_snapshot(name.as_bytes()) {
                    assert!(Tree::read(system, node).await?.is_like(tree), "snapshot {name}");
                }
            }
            Ok(())
        }
    }
}

/// What a caller may hear because a disk failed so: EIO, ENOSPC or EROFS, and never that something is damaged or gone.
pub(super) fn expect_excused(error: &FileError, kind: DiskErrorKind, step: impl std::fmt::Debug) {
    let is_excused = match error {
        FileError::Store(StoreError::Disk(_) | StoreError::Dropped { .. } | StoreError::ReadOnly { .. }) => true,
        FileError::NoSpace => kind == DiskErrorKind::Full,
        FileError::ReadOnly => kind == DiskErrorKind::ReadOnly,
        _ => false,
    };
    assert!(is_excused, "{step:?}: {error:?} because of {kind:?}");
}

/// Little memory, so that content is read from the disk.
pub(super) fn options() -> Options {
    let store = StoreOptions {
        cache_bytes: 64 << 10,
        index_cache_bytes: 256 << 10,
        pack_bytes: 1 << 20,
        segment_bytes: 4 << 20,
        reserve_bytes: 8 << 20,
        ..StoreOptions::default()
    };
    Options { dirty_bytes_max: 4 << 20, store, ..Options::default() }
}

/// The work on one disk.
fn work(seed: u64, fails: Option<(u64, DiskErrorKind)>) -> (u64, usize) {
    work_on(&Machine::with(seed, 128 << 20, options()), fails)
}

/// The work on two disks, each pack on one of them.
fn work_on_two(seed: u64, fails: Option<(u64, DiskErrorKind)>) -> (u64, usize) {
    work_on(&Machine::on(seed, 2, 128 << 20, options()), fails)
}

/// The work on two disks, everything on both.
fn work_on_copies(seed: u64, fails: Option<(u64, DiskErrorKind)>) -> (u64, usize) {
    let store = StoreOptions { copies: 2, goes_without_disks: true, ..options().store };
    let machine = Machine::on(seed, 2, 128 << 20, Options { store, ..options() });
    // The journal is on one disk until the first opening.
    let (system, _) = open(&machine).unwrap();
    machine.run(system.close()).unwrap();
    drop(system);
    machine.world.restart();
    let (done, history) = history_on(&machine, fails);
    let heard = history.failed - history.not_at_work;
    let of_openings =
        fails.is_none_or(|(number, _)| number < OPENING_MAX || history.not_at_work == 0 || history.states.len() > 1);
    assert!(of_openings, "{fails:?}: refused, though it is open: {}", history.why);
    if heard > 0 {
        eprintln!("{fails:?}: {}", history.why);
    }
    (done, heard)
}

/// An opening, the work, and an end of it. `fails`: which disk operation of these fails, and how. Gives how many there were, and how many calls failed.
fn work_on(machine: &Machine, fails: Option<(u64, DiskErrorKind)>) -> (u64, usize) {
    let (done, history) = history_on(machine, fails);
    (done, history.failed)
}

fn history_on(machine: &Machine, fails: Option<(u64, DiskErrorKind)>) -> (u64, History) {
    let world = &machine.world;
    let begun = world.operations();
    let (number, kind) = fails.unwrap_or((0, DiskErrorKind::Failed));
    if fails.is_some() {
        world.fail_at(begun + number, kind);
    }
    let mut history = History { states: vec![Tree::default()], ..History::default() };
    if let Some((system, _)) = history.excuse(open(machine), kind, "open") {
        machine.run(async {
            for (number, step) in WORK.into_iter().enumerate() {
                history.make(&system, step, number + 1, kind).await;
            }
            if number % 3 == 0 && history.excuse(system.close().await, kind, "close").is_some() {
                history.promise_all(&history.last().clone(), history.states.len() - 1);
            }
        });
    }
    let done = world.operations() - begun;
    end(machine, number % 3 != 1);
    verify(machine, &history);
    (done, history)
}

/// The work, a death without a close, and an opening of what that leaves with a commit behind it. `fails`: which disk operation of these two fails, and
/// how. Another opening has everything. Gives as above.
fn recovery(seed: u64, fails: Option<(u64, DiskErrorKind)>) -> (u64, usize) {
    let machine = Machine::with(seed, 128 << 20, options());
    let world = &machine.world;
    let (number, kind) = fails.unwrap_or((0, DiskErrorKind::Failed));
    let mut history = History { states: vec![Tree::default()], ..History::default() };
    let (system, _) = open(&machine).unwrap();
    machine.run(async {
        // Some of them end before the last commits: a removed tree, a clone and a snapshot are in the journal alone.
        let last = WORK.len() - usize::try_from(seed % 3).unwrap() * 10;
        for (number, step) in WORK.into_iter().take(last).enumerate() {
            history.make(&system, step, number + 1, kind).await;
        }
    });
    assert_eq!(history.failed, 0);
    drop(system);
    end(&machine, seed.is_multiple_of(2));
    let begun = world.operations();
    if fails.is_some() {
        world.fail_at(begun + number, kind);
    }
    if let Some((system, _)) = history.excuse(open(&machine), kind, "open") {
        history.excuse(machine.run(system.commit()), kind, "commit");
    }
    let done = world.operations() - begun;
    end(&machine, number % 3 != 1);
    verify(&machine, &history);
    (done, history.failed)
}

fn open(machine: &Machine) -> Result<(Arc<FileSystem>, OpenReport), FileError> {
    machine.run(FileSystem::open(&machine.world.platform(), &machine.disks(), machine.options.clone()))
}

/// The process dies, or the power goes.
fn end(machine: &Machine, keeps_power: bool) {
    // What has not failed until now is not to fail in what follows.
    machine.world.fail_at(u64::MAX, DiskErrorKind::Failed);
    if keeps_power { machine.world.restart() } else { machine.world.crash() }
}

fn verify(machine: &Machine, history: &History) {
    let (system, report) = open(machine).unwrap();
    assert!(report.problems.is_empty() && report.store.problems.is_empty(), "{report:?}");
    machine.run(history.verify(&system));
    if !machine.more.is_empty() {
        machine.run(restore(&system));
        machine.run(history.verify(&system));
    }
    machine.check(&system);
    machine.run(async {
        let report = system.check_store(Depth::Deep, &|_, _| {}).await;
        // A pack whose only chunks are half written is set aside: nobody can tell that from one that rotted.
        let problems: Vec<_> = report.problems.iter().filter(|problem| problem.code != "HF0017").collect();
        assert!(problems.is_empty(), "{problems:?}");
        system.close().await.unwrap();
    });
}

/// A disk that was left behind is in order again.
async fn restore(system: &FileSystem) {
    for _ in 0..3 {
        for remedy in system.check_store(Depth::Deep, &|_, _| {}).await.remedies {
            system.repair_store(remedy).await.unwrap();
        }
        system.restore_copies(Share::FULL, &|_, _| {}).await;
    }
}

/// What is done with a seed, and which of its operations fails, if any: how many there were, and how many calls failed.
type Work = fn(u64, Option<(u64, DiskErrorKind)>) -> (u64, usize);

/// Of each seed `count` of the disk operations, evenly spread and beginning with number `first`; all, where there is no count.
fn each_call(of: (Work, u64), kind: DiskErrorKind, seeds: std::ops::Range<u64>, first: u64, count: Option<u64>) {
    let (told, tried) = try_each_call(of, kind, seeds, first, count);
    assert!(tried == 0 || 0 < told && told < tried, "{told} of {tried} were noticed: the test shows nothing");
}

/// As `each_call`: how many calls were heard of by who worked, and how many were tried.
fn try_each_call(
    (work, least): (Work, u64),
    kind: DiskErrorKind,
    seeds: std::ops::Range<u64>,
    first: u64,
    count: Option<u64>,
) -> (u64, u64) {
    let (mut wrong, mut told, mut tried) = (Vec::new(), 0, 0);
    each_seed(seeds, |seed| {
        let (all, failed) = work(seed, None);
        assert!(all > least && failed == 0, "{all} operations are no work, {failed} calls failed");
        let step = count.map_or(1, |count| all.div_ceil(count));
        for number in (first..=all).step_by(usize::try_from(step).unwrap()) {
            tried += 1;
            // All that go wrong are told, for often they are one.
            match catch_unwind(AssertUnwindSafe(|| work(seed, Some((number, kind))))) {
                Ok((_, failed)) => told += u64::from(failed > 0),
                Err(_) => wrong.push((seed, number)),
            }
        }
        assert!(wrong.is_empty(), "{kind:?}, seed and operation: {wrong:?}");
    });
    (told, tried)
}

const WHOLE: (Work, u64) = (work, 200);
const RECOVERY: (Work, u64) = (recovery, 40);
pub(super) const KINDS: [DiskErrorKind; 4] =
    [DiskErrorKind::Failed, DiskErrorKind::Full, DiskErrorKind::ReadOnly, DiskErrorKind::Silent];

#[test]
fn any_call_may_fail() {
    each_call(WHOLE, DiskErrorKind::Failed, 0..1, 1, Some(40));
}

#[test]
fn any_call_may_find_no_room() {
    each_call(WHOLE, DiskErrorKind::Full, 1..2, 2, Some(40));
}

#[test]
fn any_call_may_find_a_disk_that_takes_no_writes_or_does_not_answer() {
    each_call(WHOLE, DiskErrorKind::ReadOnly, 2..3, 3, Some(40));
    each_call(WHOLE, DiskErrorKind::Silent, 3..4, 4, Some(40));
}

#[test]
fn any_call_on_two_disks_may_fail() {
    for (kind, seed) in KINDS.into_iter().zip(4..) {
        // Another disk takes what one does not: who works need not hear of it.
        let (told, tried) = try_each_call((work_on_two, 200), kind, seed..seed + 1, seed, Some(20));
        assert!(told < tried && tried > 15, "{kind:?}: {told} of {tried} were heard of");
    }
}

/// One disk fails, and nobody hears of it.
#[test]
fn no_call_on_two_copies_is_heard_of_when_it_fails() {
    for (kind, seed) in KINDS.into_iter().zip(8..) {
        let (told, tried) = try_each_call((work_on_copies, 300), kind, seed..seed + 1, seed, Some(20));
        assert!(told == 0 && tried > 15, "{kind:?}: {told} of {tried} were heard of");
    }
}

#[test]
fn any_call_of_a_recovery_may_fail() {
    for (kind, seed) in KINDS.into_iter().zip(0..) {
        each_call(RECOVERY, kind, seed..seed + 1, 1, Some(40));
    }
}

/// Every call of each seed, by hand.
#[test]
fn put_your_seed_here() {
    for kind in KINDS {
        each_call(WHOLE, kind, seeds_asked_for(), 1, None);
        each_call(RECOVERY, kind, seeds_asked_for(), 1, None);
    }
}
