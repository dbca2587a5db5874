//! The oracle: what a client's directory may be after a crash.
//!
//! A client works alone in its directory, one operation after the other; its history has a model after each. With the steps
//! numbered, `names` the last whose names are known to be durable, and `V(f)` the contents of file f in the steps that count:
//!
//! Q-1   *Prefix.* The names, kinds, modes, groups, links (which names are one file, and how many), extended attributes and targets
//!       are those after exactly one step k, `names <= k`. The operation under way at the crash may have happened, or not.
//! Q-2   *One order for all.* Where an operation of one client had returned before an operation of another began, and the second
//!       is there, the first is too.
//! Q-3   *Synced is there.* `names` is at least every step that was acknowledged before a sync of anything began that
//!       succeeded: there is one journal. The content of a file counts from its own last sync, and from the last rename of it
//!       over another that is in the prefix. Truncating or punching promises nothing of the data around it.
//! Q-4   *Nothing unwritten is read.* The size of a file lies between the smallest and the largest in V(f), and each byte is what some
//!       version in V(f) has at its place. V(f) ends at the last step that Q-1 allows, so no data arrives before the
//!       names that were changed before it. A file that was synced and not changed since has one version: it is exact.
//! Q-5   *Bounded loss.* What was acknowledged longer ago than the flush interval (and the time that it takes) is there.
//! Q-6   *Clean ends.* After a close, everything is there to the last attribute.
//! Q-7   *Snapshots.* One that was acknowledged is there and is the same for ever; what is in it follows
//!       with the steps that were acknowledged when it was asked for.
//! Q-8   *Damage.* On disks that lie, whatever can be read follows with no floor: an error, never something else.
//! Q-11  *Nothing dead is left.* Without snapshots, and with all files removed, two passes of reclaim leave no chunk but what the root directory
//!       needs, whatever happened before (`run/between`).
//! Q-12  *Asked is done.* Where everything was mended all content lies on as many disks as its file asks for, whatever came between
//!       the asking and the doing (`run/between`).
//!
//! Not here: reading (`tree`), which floors there are (`history`).

use std::collections::BTreeMap;
use std::sync::Arc;

use base::id::FileId;
use file::Kind;

use crate::content::Content;
use crate::history::{History, Step};
use crate::model::{self, Key, Model};
use crate::tree::Tree;

/// What was found to be true of a client's directory.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    /// The first step that it can be.
    pub(crate) first: usize,
    /// The last.
    pub(crate) last: usize,
    /// What is there, with its content.
    pub(crate) model: Model,
}

/// Which steps something is compared with.
pub(crate) struct Window<'a> {
    pub(crate) history: &'a History,
    /// Names are those of this step, or a later one.
    pub(crate) names: usize,
    /// The content of every file is that of this step, or a later one; the history may know more.
    pub(crate) content: usize,
    /// The last step that may be there.
    pub(crate) last: usize,
    /// What else is known of the content.
    pub(crate) floors: Floors,
}

/// Which floors of a history count for the content of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Floors {
    /// All: the present.
    Synced,
    /// Only that a rename over a file comes after the data: a snapshot, taken before some of the syncs.
    Renamed,
    /// None: disks that lie.
    None,
}

impl Window<'_> {
    /// Compares a directory with the steps.
    pub(crate) fn verify(&self, tree: &Tree) -> Result<Verdict, String> {
        let steps = &self.history.steps;
        let known = known_files(steps);
        let fits = |step: &usize| {
            let pairs = tree.compare(&steps[*step].model, 1).ok();
            pairs.is_some_and(|pairs| pairs.iter().all(|(key, file)| known.get(file).is_none_or(|known| known == key)))
        };
        let matching: Vec<usize> = (self.names..=self.last).filter(fits).collect();
        let (Some(first), Some(last)) = (matching.first().copied(), matching.last().copied()) else {
            return Err(self.explain(tree));
        };
        let pairs = tree.compare(&steps[last].model, 1).map_err(|differences| differences.join("; "))?;
        let mut exact = Vec::new();
        for (key, file) in &pairs {
            if steps[last].model.node(*key).kind == Kind::Regular
                && self.verify_content(*key, *file, first, last, tree)?
            {
                exact.push((*key, *file));
            }
        }
        let mut model = tree.to_model();
        // Where only one content was possible the model knows the allocation better than can be seen.
        for (key, file) in exact {
            let known = steps[last].model.node(key).content.clone();
            let keys = model.nodes.iter().filter(|(_, node)| node.file == Some(file));
            for key in keys.map(|(key, _)| *key).collect::<Vec<Key>>() {
                model.node_mut(key).content = known.clone();
            }
        }
        Ok(Verdict { first, last, model })
    }

    /// Compares the content of a file. `true`: it could be only this.
    fn verify_content(&self, key: Key, file: FileId, first: usize, last: usize, tree: &Tree) -> Result<bool, String> {
        let Some(seen) = tree.nodes.get(&file) else { return Ok(false) };
        let floor = match self.floors {
            Floors::Synced => self.history.synced_floor_of(key).max(self.history.renamed_floor_of(key, first)),
            Floors::Renamed => self.history.renamed_floor_of(key, first),
            Floors::None => 0,
        };
        let floor = floor.max(self.content).min(last);
        let steps = &self.history.steps;
        let versions = versions(&steps[floor..=last], key);
        let at_least = &steps[floor].what;
        let path = || {
            format!(
                "{} ({file}, from step {floor} ({at_least}) to {last}, names from {first})",
                steps[last].model.path(key)
            )
        };
        verify_bytes(&seen.content.bytes, &versions).map_err(|what| format!("{}: {what}", path()))?;
        let is_single = versions.len() == 1;
        if is_single && let Some(allocated) = &versions[0].allocated {
            let (expected, found) = (allocated.total(), seen.attributes.allocated);
            if expected != found {
                return Err(format!("{}: {expected} bytes should be allocated, {found} are", path()));
            }
            if let Some(ranges) = &seen.content.allocated {
                let size = seen.attributes.size;
                let (expected, found) = (allocated.within(0..size), ranges.within(0..size));
                if expected != found {
                    return Err(format!("{}: data should be at {expected:?}, is at {found:?}", path()));
                }
            }
        }
        Ok(is_single)
    }

    /// The step that fits best, and what does not fit.
    fn explain(&self, tree: &Tree) -> String {
        let steps = &self.history.steps;
        let differences = |step: usize| tree.compare(&steps[step].model, usize::MAX).err().unwrap_or_default();
        let allowed = (self.names..=self.last).map(|step| (differences(step), step));
        let (differs, nearest) = allowed.min_by_key(|(differences, _)| differences.len()).unwrap_or_default();
        let earlier = (0..self.names).rev().find(|step| tree.compare(&steps[*step].model, 1).is_ok());
        let lost = match earlier {
            Some(step) => format!("; it is what was there after step {step}: what was durable is lost"),
            None => String::new(),
        };
        let shown = &differs[..differs.len().min(12)];
        format!(
            "the names are not those after any of the steps {} to {}{lost}. Nearest is step {nearest} ({}): {}",
            self.names,
            self.last,
            steps[nearest].what,
            shown.join("; ")
        )
    }
}

/// Who is who, as far as an answer said so: what was under way at the crash has no id, and is none of these.
fn known_files(steps: &[Step]) -> BTreeMap<FileId, Key> {
    let nodes = steps.iter().flat_map(|step| &step.model.nodes);
    nodes.filter_map(|(key, node)| Some((node.file?, *key))).collect()
}

/// The distinct contents of a file in these steps.
pub(crate) fn versions(steps: &[Step], key: Key) -> Vec<Arc<Content>> {
    let mut versions: Vec<Arc<Content>> = Vec::new();
    for node in steps.iter().filter_map(|step| step.model.nodes.get(&key)) {
        if versions.last().is_none_or(|last| !Arc::ptr_eq(last, &node.content)) {
            versions.push(node.content.clone());
        }
    }
    versions
}

/// Whether bytes may be read of a file that has had these contents.
pub(crate) fn verify_bytes(bytes: &[u8], versions: &[Arc<Content>]) -> Result<(), String> {
    if versions.iter().any(|version| version.bytes == bytes) {
        return Ok(());
    }
    let sizes = versions.iter().map(|version| version.bytes.len());
    let (least, most) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
    if bytes.len() < least || bytes.len() > most {
        return Err(format!("{} bytes, not between {least} and {most}", bytes.len()));
    }
    let is_known = |offset: usize| versions.iter().any(|version| version.bytes.get(offset) == Some(&bytes[offset]));
    let Some(wrong) = (0..bytes.len()).find(|offset| !is_known(*offset)) else { return Ok(()) };
    let count = (wrong..bytes.len()).filter(|offset| !is_known(*offset)).count();
    let expected: Vec<Option<u8>> =
        versions.iter().map(|version| version.bytes.get(wrong).copied()).rev().take(4).collect();
    Err(format!(
        "{count} of {} bytes were never there, from offset {wrong} on: {:#04x}, the newest of {} versions have {expected:02x?}",
        bytes.len(),
        bytes[wrong],
        versions.len()
    ))
}

/// Checks that no client lost what another had seen done before it began.
pub(crate) fn verify_order(clients: &[(&History, &Verdict)]) -> Result<(), String> {
    for (number, (history, verdict)) in clients.iter().enumerate() {
        let begun = history.steps[verdict.first].begun;
        for (other, (others, found)) in clients.iter().enumerate().filter(|(other, _)| *other != number) {
            let Some(lost) = others.steps.get(found.last + 1) else { continue };
            if lost.ended.is_some_and(|ended| ended < begun) {
                return Err(format!(
                    "client {number} has its step {} ({}), but client {other} lost step {} ({}), which had returned before",
                    verdict.first,
                    history.steps[verdict.first].what,
                    found.last + 1,
                    lost.what
                ));
            }
        }
    }
    Ok(())
}

/// On damaged disks: whatever could be read must have been written. Where all can be read, it is what was there after the step
/// `floor`, or later.
pub(crate) fn verify_damaged(history: &History, floor: usize, tree: &Tree) -> Result<(), String> {
    if tree.damage.is_empty() {
        let window = Window { history, names: floor, content: floor, last: history.last(), floors: Floors::None };
        return window.verify(tree).map(|_| ());
    }
    let keys = known_files(&history.steps);
    for (file, seen) in &tree.nodes {
        // A creation that was under way has no id here.
        let Some(key) = keys.get(file) else { continue };
        if seen.attributes.kind == Kind::Regular {
            let versions = versions(&history.steps, *key);
            verify_bytes(&seen.content.bytes, &versions).map_err(|what| format!("{file}: {what}"))?;
        }
        let is_known = |name: &model::Name| {
            history
                .steps
                .iter()
                .any(|step| step.model.nodes.get(key).is_some_and(|node| node.entries.contains_key(name)))
        };
        // A repair names by its number what lay in the directory of a clone that was lost and is made anew.
        let is_number = |name: &model::Name, file: &FileId| *name == file.number.to_string().into_bytes();
        // And it puts what has no name into a directory of the clone.
        let is_home = |name: &model::Name| seen.is_top_of_clone(*file) && name[..] == *b"lost+found";
        let is_of_repair = |name: &model::Name, file: &FileId| is_number(name, file) || is_home(name);
        let mut unknown = seen.entries.iter().filter(|(name, (file, _))| !is_known(name) && !is_of_repair(name, file));
        if let Some((name, _)) = unknown.next() {
            return Err(format!("{file}: {} was never there", model::show(name)));
        }
    }
    Ok(())
}
