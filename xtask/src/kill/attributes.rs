//! Extended attributes, mode and times of one file, now and then an fsync. Afterwards all of them are those after one of the changes, not before
//! the last sync.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};

use super::content::{self, Key};
use super::load::{Cut, Load, Round, Verified};

/// Names of extended attributes.
const NAMES: u64 = 12;

#[derive(Clone, Debug)]
enum Change {
    Set(String, Vec<u8>),
    Remove(String),
    Mode(u32),
    Modified(SystemTime),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    values: BTreeMap<String, Vec<u8>>,
    mode: u32,
    modified: SystemTime,
}

#[derive(Debug)]
struct Operation {
    change: Change,
    began: Duration,
    /// `None`: it never returned, and may or may not be there.
    ended: Option<Duration>,
}

/// The load.
#[derive(Debug)]
pub(super) struct Attributes {
    round: Round,
    thread: u64,
    path: PathBuf,
    /// Bytes of a value, at most.
    value_max: u64,
    first: State,
    record: Vec<Operation>,
    synced: u64,
}

impl Attributes {
    pub(super) fn new(round: &Round, thread: u64, value_max: u64) -> Result<Attributes> {
        let path = round.folder.join("attributes");
        let first = State { values: BTreeMap::new(), mode: 0o600, modified: at(0) };
        let file = File::create_new(&path)?;
        file.set_permissions(Permissions::from_mode(first.mode))?;
        file.set_modified(first.modified)?;
        file.sync_all()?;
        Ok(Attributes { round: round.clone(), thread, path, value_max, first, record: Vec::new(), synced: 0 })
    }

    fn work(&mut self) -> io::Result<()> {
        let mut random = self.round.random(self.thread);
        let file = File::open(&self.path)?;
        let mut state = self.first.clone();
        loop {
            let number = self.record.len() as u64 + 1;
            let name = format!("user.{}", random.below(NAMES));
            let change = match random.below(6) {
                0 if state.values.contains_key(&name) => Change::Remove(name),
                1 => Change::Mode(0o400 | random.below(0o400) as u32),
                2 => Change::Modified(at(number)),
                _ => {
                    let most = if random.one_in(4) { self.value_max } else { 60 };
                    let key = Key::new(self.round.number, self.thread, number);
                    Change::Set(name, content::make(key, 0, random.below(most) as usize))
                }
            };
            self.record.push(Operation { change: change.clone(), began: self.round.now(), ended: None });
            match &change {
                Change::Set(name, value) => setxattr(&self.path, name.as_str(), value, XattrFlags::empty())?,
                Change::Remove(name) => removexattr(&self.path, name.as_str())?,
                Change::Mode(mode) => fs::set_permissions(&self.path, Permissions::from_mode(*mode))?,
                Change::Modified(time) => file.set_modified(*time)?,
            }
            replay(&mut state, &change);
            self.record.last_mut().expect("just pushed").ended = Some(self.round.now());
            self.round.done(self.thread, number);
            if random.one_in(25) {
                file.sync_all()?;
                self.synced = number;
            }
        }
    }

    /// After how many changes the file has what it has.
    fn prefixes(&self) -> Result<Vec<usize>> {
        let found = look(&self.path)?;
        let differences = |state: &State| {
            let values = state.values.iter().filter(|(name, value)| found.values.get(*name) != Some(value)).count();
            let more = found.values.keys().filter(|name| !state.values.contains_key(*name)).count();
            values + more + usize::from(state.mode != found.mode) + usize::from(state.modified != found.modified)
        };
        let mut state = self.first.clone();
        let mut counts = vec![differences(&state)];
        for operation in &self.record {
            replay(&mut state, &operation.change);
            counts.push(differences(&state));
        }
        let fitting: Vec<usize> = (0..counts.len()).filter(|count| counts[*count] == 0).collect();
        if fitting.is_empty() {
            let nearest = (0..counts.len()).min_by_key(|count| counts[*count]).unwrap_or(0);
            bail!(
                "its attributes were never such: of {} changes the nearest is {nearest}, with {} differences",
                self.record.len(),
                counts[nearest]
            );
        }
        Ok(fitting)
    }
}

fn replay(state: &mut State, change: &Change) {
    match change {
        Change::Set(name, value) => drop(state.values.insert(name.clone(), value.clone())),
        Change::Remove(name) => drop(state.values.remove(name)),
        Change::Mode(mode) => state.mode = *mode,
        Change::Modified(time) => state.modified = *time,
    }
}

fn at(number: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000 + number, 123_456_789)
}

fn look(path: &Path) -> Result<State> {
    let cannot = || format!("cannot look at {}", path.display());
    let metadata = fs::metadata(path).with_context(cannot)?;
    let mut list = vec![0; 64 << 10];
    let count = listxattr(path, &mut list).with_context(cannot)?;
    let mut values = BTreeMap::new();
    for name in list[..count].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 64 << 10];
        let count = getxattr(path, name, &mut value).with_context(cannot)?;
        value.truncate(count);
        values.insert(String::from_utf8_lossy(name).into_owned(), value);
    }
    Ok(State { values, mode: metadata.permissions().mode() & 0o7777, modified: metadata.modified()? })
}

impl Load for Attributes {
    fn name(&self) -> &str {
        "attributes"
    }

    fn run(&mut self) -> Option<String> {
        let outcome = self.work();
        self.round.judge(&outcome.expect_err("a load ends with an error"))
    }

    fn done(&self) -> u64 {
        self.record.iter().filter(|operation| operation.ended.is_some()).count() as u64
    }

    fn verify(&self) -> Result<Verified> {
        let (fitting, synced) = (self.prefixes()?, self.synced.max(self.round.covered(self.thread)));
        let last = fitting[fitting.len() - 1] as u64;
        if last < synced {
            bail!("{synced} changes were synced, and only {last} are there");
        }
        Ok(Verified { synced, present: last, bytes: 0 })
    }

    fn cut(&self) -> Result<Option<Cut>> {
        let fitting = self.prefixes()?;
        let (least, most) = (fitting[0], fitting[fitting.len() - 1]);
        let first_lost_ended = self.record.get(most).and_then(|operation| operation.ended);
        let last_kept_began = least.checked_sub(1).map(|last| self.record[last].began);
        Ok(Some(Cut { first_lost_ended, last_kept_began }))
    }
}
