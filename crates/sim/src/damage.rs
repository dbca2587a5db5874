//! Damage: a whole node is built, then one thing on its disks is damaged at a time, and what a fresh machine finds there is compared
//! with what an undamaged copy shows.
//!
//! Q-9  What is not as it was is reported: by the opening, by the read, or by the check, and nothing panics. A superblock, an index
//!      or a journal that another copy stands in for makes no difference, and then nothing has to be said. Where everything is on two disks, or in
//!      fragments of which one may be missing, no damage makes a difference.
//! Q-10 After a repair, and after the next opening, everything that could be read can be read and is the same, what was written just
//!      before the repair is there, and nothing is left for which there is a remedy. The check can always be made. Then everything works:
//!      changes, commits, snapshots, reclaim unless a snapshot that cannot be read keeps all room, and a clean end.
//!
//! What is read must follow Q-8, too, also after frames of the journal were given up; then, what the trees had is there.
//!
//! Not here: damage while the file system works (plan "rot").

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use base::id::FileId;
use base::time::Timestamp;
use file::{Attributes, Depth, FileError, FileSystem, Kind, NewFile, Node, Remedy, StoreError, View};
use platform::disk::Disk;
use platform::sim::{SimDisk, World};

use crate::client::Client;
use crate::model::Name;
use crate::oracle::verify_damaged;
use crate::plan::Plan;
use crate::random::Random;
use crate::remedies::{open_remedies, repair};
use crate::run::{Image, Run};
use crate::tree::{Seen, Tree, read_tree};

/// Damages of one image.
const PER_IMAGE: u64 = 50;
/// Directories of a disk, which an image does not have while they are empty.
const DIRECTORIES: [&str; 2] = ["packs", "journal"];
/// Steps of a world in which everything is read.
const STEPS_MAX: u64 = 20_000_000;

/// What became of the damage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Things that were damaged.
    pub damaged: u64,
    /// Openings that were refused.
    pub refused: u64,
    /// Something is gone, and a report says so.
    pub lost: u64,
    /// Everything is there, and a report tells of the damage.
    pub mended: u64,
    /// Everything is there, and nothing was said: bytes that nobody needs.
    pub harmless: u64,
    /// Of all these, how many there was something to repair of.
    pub repaired: u64,
    /// By kind of file.
    pub by_place: BTreeMap<String, u64>,
    /// What went against.
    pub failures: Vec<String>,
}

impl Findings {
    /// Adds those of another image.
    pub fn add(&mut self, other: Findings) {
        self.damaged += other.damaged;
        self.refused += other.refused;
        self.lost += other.lost;
        self.mended += other.mended;
        self.harmless += other.harmless;
        self.repaired += other.repaired;
        for (place, count) in other.by_place {
            *self.by_place.entry(place).or_default() += count;
        }
        self.failures.extend(other.failures);
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Findings { damaged, refused, lost, mended, harmless, repaired, by_place, failures } = self;
        let places: Vec<String> = by_place.iter().map(|(place, count)| format!("{place} {count}")).collect();
        write!(
            f,
            "{damaged} damaged ({}): {refused} refused, {lost} with a reported loss, {mended} reported and whole, {harmless} without \
             effect; {repaired} repaired; {} failed",
            places.join(", "),
            failures.len()
        )
    }
}

/// One thing that is done to a disk.
#[derive(Clone, Debug)]
struct Damage {
    disk: usize,
    path: String,
    how: How,
}

#[derive(Clone, Debug)]
enum How {
    Flip { offset: u64, bit: u32 },
    Overwrite { offset: u64, bytes: Vec<u8> },
    Truncate { length: u64 },
    Remove,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage { disk, path, how } = self;
        match how {
            How::Flip { offset, bit } => write!(f, "bit {bit} at {offset} of {path} on disk {disk}"),
            How::Overwrite { offset, bytes } => {
                write!(f, "{} other bytes at {offset} of {path} on disk {disk}", bytes.len())
            }
            How::Truncate { length } => write!(f, "{path} on disk {disk} cut to {length} bytes"),
            How::Remove => write!(f, "{path} on disk {disk} removed"),
        }
    }
}

/// By snapshot (the present has no name) and client.
type Trees = BTreeMap<(String, usize), Result<Tree, FileError>>;

/// What a fresh machine finds.
struct Found {
    trees: Trees,
    /// What opening and reading had to say.
    told: Vec<String>,
    /// What the check had to say.
    checked: Vec<String>,
    /// What a repair did.
    remedies: Vec<Remedy>,
    /// After the repair, and after another opening: what can be read, and what should have been mended.
    later: Vec<(&'static str, Trees, Vec<String>)>,
}

/// An opening that was refused.
struct Refused {
    error: FileError,
    /// What was there after frames of the journal, or records in them, were given up, and after the next opening, and what did not
    /// work; or why not.
    later: Vec<Result<(Trees, Vec<String>), FileError>>,
}

impl From<FileError> for Refused {
    fn from(error: FileError) -> Refused {
        Refused { error, later: Vec::new() }
    }
}

/// The plan that makes the image of a seed where nobody says which.
#[must_use]
pub fn plan_of(seed: u64) -> &'static str {
    ["clones", "calm", "copies", "clones", "calm", "fragments"][usize::try_from(seed % 6).unwrap_or(0)]
}

/// Damages the image that a plan makes of a seed, one thing at a time.
///
/// # Errors
/// Why there is no image to damage.
pub fn damage((seed, name): (u64, &'static str)) -> Result<Findings, String> {
    let plan = Plan { operations: 80, lives: 1, ..Plan::find(name).expect("it is one of ours") };
    // What one disk has alone is made again, as the index, or the others do without it.
    let survives_one = plan.bad_disks > 0;
    let image = Run::new(seed, plan, false).image()?;
    let whole = look(&image, seed, None)?;
    let whole = whole.map_err(|refused| format!("the whole image was refused: {}", refused.error))?;
    if !whole.told.is_empty() || !whole.checked.is_empty() {
        return Err(format!("the whole image has problems: {:?}, {:?}", whole.told, whole.checked));
    }
    let mut random = Random::stream(seed, "damage");
    let mut findings = Findings::default();
    for _ in 0..PER_IMAGE {
        let Some(damage) = choose(&image, &mut random) else { continue };
        findings.damaged += 1;
        *findings.by_place.entry(place(&damage.path).to_owned()).or_default() += 1;
        let looked = catch_unwind(AssertUnwindSafe(|| look(&image, seed, Some(&damage))));
        let failure = match looked {
            Err(panic) => Some(format!("panic: {}", crate::words(panic.as_ref()))),
            Ok(Err(what)) => Some(what),
            Ok(Ok(Err(Refused { error, later }))) => {
                findings.refused += 1;
                findings.repaired += u64::from(!later.is_empty());
                let judged = later.iter().try_for_each(|later| match later {
                    Ok((trees, left)) => judge_damaged(&image, trees, left, damage.may_refuse()),
                    Err(error) => Err(format!("refused: {error}")),
                });
                let stood_in = survives_one || damage.has_a_stand_in() || later.is_empty() && !damage.may_refuse();
                let stood_in = stood_in.then(|| format!("refused, but the store must do without it: {error}"));
                stood_in.or(judged.err().map(|what| format!("after something was given up: {what}")))
            }
            Ok(Ok(Ok(found))) => {
                judge(&image, &whole, &found, survives_one || damage.has_a_stand_in(), &mut findings).err()
            }
        };
        findings.failures.extend(failure.map(|what| format!("seed {seed} of plan {name}, {damage}: {what}")));
    }
    Ok(findings)
}

/// Opens a copy, reads everything and checks it.
fn look(image: &Image, seed: u64, damage: Option<&Damage>) -> Result<Result<Found, Refused>, String> {
    let world = World::new(seed);
    world.set_step_limit(STEPS_MAX);
    let disks: Vec<SimDisk> = image.disks.iter().map(|(name, _)| world.disk(name, 4 << 30)).collect();
    for (disk, (_, files)) in disks.iter().zip(&image.disks) {
        files.iter().for_each(|(path, bytes)| disk.install(path, bytes));
    }
    if let Some(Damage { disk, path, how }) = damage {
        let disk = &disks[*disk];
        match how {
            How::Flip { offset, bit } => disk.flip_bit(path, *offset, *bit),
            How::Overwrite { offset, bytes } => disk.corrupt(path, *offset, bytes),
            How::Truncate { length } => disk.truncate(path, *length),
            How::Remove => drop(disk.remove(path)),
        }
    }
    let handles: Vec<Disk> = disks.iter().map(SimDisk::disk).collect();
    for directory in handles.iter().flat_map(|disk| DIRECTORIES.map(|directory| disk.make_directory(directory))) {
        directory.map_err(|error| error.to_string())?;
    }
    let platform = world.platform();
    let outcome = world.run_until(async {
        let clients = image.histories.len();
        let opened = FileSystem::open(&platform, &handles, image.options.clone()).await;
        let lacks_frames = matches!(opened, Err(FileError::Store(StoreError::FramesLost { .. })));
        // Changes of files that cannot be read any more.
        let lacks_files = !lacks_frames && damage.is_some_and(|damage| !damage.may_refuse());
        if let Err(error) = opened.as_ref().map(drop).map_err(FileError::clone)
            && (lacks_frames || lacks_files)
        {
            let mut later = Vec::new();
            for gives_up in [true, false] {
                let mut options = image.options.clone();
                options.store.gives_up_frames = gives_up && lacks_frames;
                options.gives_up_records = gives_up && lacks_files;
                match FileSystem::open(&platform, &handles, options).await {
                    Ok((system, _)) => {
                        let mut left = if gives_up { repair(&system).await.1 } else { still_to_do(&system).await };
                        let trees = read_all(&system, clients).await;
                        left.extend(if gives_up { system.close().await.err().map(words) } else { work(&system).await });
                        later.push(Ok((trees, left)));
                    }
                    Err(error) => later.push(Err(error)),
                }
            }
            return Err(Refused { error, later });
        }
        let (system, report) = opened?;
        let mut told: Vec<String> = report.store.problems.iter().map(ToString::to_string).collect();
        told.extend(report.problems);
        told.extend(report.store.mended.iter().map(ToString::to_string));
        told.extend(report.store.index_made_again.map(|why| format!("index made again: {why}")));
        let trees = read_all(&system, clients).await;
        for tree in trees.values() {
            match tree {
                Ok(tree) => told.extend(tree.damage.iter().cloned()),
                Err(FileError::NoEntry) => {}
                Err(error) => told.push(error.to_string()),
            }
        }
        let mut checked = Vec::new();
        match system.check_files(&|_| {}).await {
            Ok(check) => checked.extend(check.problems.iter().map(|problem| format!("{problem:?}"))),
            Err(error) => checked.push(error.to_string()),
        }
        let check = system.check_store(Depth::Deep, &|_, _| {}).await;
        checked.extend(check.problems.iter().map(|problem| format!("{problem:?}")));
        // Not every change can be made on damaged trees; what was accepted is there ever after.
        let changed = change(&system, b"between").await.ok();
        let (remedies, mut left) = repair(&system).await;
        left.extend(look_at_change(&system, changed).await);
        let mut later = vec![("after the repair", read_all(&system, clients).await, left)];
        // Whatever it says: it must come to an end.
        let _ = system.close().await;
        drop(system);
        let again = "opened after the repair";
        later.push(match FileSystem::open(&platform, &handles, image.options.clone()).await {
            Ok((system, _)) => {
                let mut left = still_to_do(&system).await;
                left.extend(look_at_change(&system, changed).await);
                let trees = read_all(&system, clients).await;
                left.extend(work(&system).await);
                (again, trees, left)
            }
            Err(error) => (again, Trees::new(), vec![format!("refused: {error}")]),
        });
        Ok(Found { trees, told, checked, remedies, later })
    });
    outcome.map_err(|halt| halt.to_string())
}

/// What is written between the damage and the repair.
const CHANGE: &[u8] = b"written between the damage and the repair";

fn words(error: FileError) -> String {
    format!("does not work: {error}")
}

/// What a check proposes after a repair.
async fn still_to_do(system: &Arc<FileSystem>) -> Vec<String> {
    match open_remedies(system).await {
        Ok(remedies) => remedies.iter().map(|remedy| format!("still to do: {remedy}")).collect(),
        Err(error) => vec![error],
    }
}

/// Everything works after a repair, to the clean end. What does not, unless a problem is open that explains it: a snapshot that cannot
/// be read keeps all room.
async fn work(system: &Arc<FileSystem>) -> Option<String> {
    const KEEPS_ROOM: [&str; 6] = ["HF1001", "HF1002", "HF1005", "HF1006", "HF1010", "HF1025"];
    let problems = system.check_files(&|_| {}).await.map_or(Vec::new(), |report| report.problems);
    let keeps_room = problems.iter().any(|problem| KEEPS_ROOM.contains(&problem.code) && problem.remedy.is_none());
    let worked = async {
        change(system, b"after").await?;
        system.commit().await?;
        system.snapshot("after").await?;
        system.delete_snapshot("after").await?;
        match system.reclaim(&file::Reclaim::default()).await {
            Err(error) if !keeps_room => return Err(error),
            _ => {}
        }
        system.remove_file(FileId::ROOT, b"after").await?;
        system.close().await
    };
    worked.await.err().map(|error| format!("{}, with {problems:?}", words(error)))
}

/// Makes a file in the root, where no client looks.
async fn change(system: &Arc<FileSystem>, name: &[u8]) -> Result<FileId, FileError> {
    let new = NewFile { kind: Kind::Regular, mode: 0o600, umask: 0, uid: 0, gid: 0, device: 0, target: b"" };
    let file = system.create_file(FileId::ROOT, name, &new).await?.file;
    system.write(file, 0, CHANGE, false).await?;
    system.sync(file).await?;
    Ok(file)
}

/// What is wrong with the file that was made.
async fn look_at_change(system: &Arc<FileSystem>, changed: Option<FileId>) -> Option<String> {
    let mut bytes = vec![0; CHANGE.len() + 1];
    match system.read(Node::live(changed?), 0, &mut bytes).await {
        Ok(count) if bytes[..count] == *CHANGE => None,
        Ok(count) => Some(format!("what was written has {count} other bytes")),
        Err(error) => Some(format!("what was written: {error}")),
    }
}

async fn read_all(system: &Arc<FileSystem>, clients: usize) -> Trees {
    let snapshots = system.snapshots().into_iter().map(|snapshot| {
        let view = system.find_snapshot(snapshot.name.as_bytes()).map_or(View::LIVE, |node| node.view);
        (snapshot.name, view)
    });
    let mut trees = BTreeMap::new();
    for (name, view) in std::iter::once((String::new(), View::LIVE)).chain(snapshots) {
        for client in 0..clients {
            let tree = read_tree(system, view, &Client::directory(client), true).await;
            trees.insert((name.clone(), client), tree);
        }
    }
    trees
}

fn judge(
    image: &Image,
    whole: &Found,
    found: &Found,
    has_a_stand_in: bool,
    findings: &mut Findings,
) -> Result<(), String> {
    let mut difference = None;
    for ((snapshot, client), before) in &whole.trees {
        let before = before.as_ref().map_err(|error| format!("the whole image cannot be read: {error}"))?;
        let what = if snapshot.is_empty() { "now".to_owned() } else { format!("snapshot {snapshot}") };
        match found.trees.get(&(snapshot.clone(), *client)) {
            None => difference = Some(format!("{what} is gone")),
            Some(Err(error)) => difference = Some(format!("{what}, client {client}: {error}")),
            Some(Ok(tree)) => {
                //
                if snapshot.is_empty() {
                    verify_damaged(&image.histories[*client], image.covered[*client], tree)?;
                } else if let Some((file, _)) =
                    tree.nodes.iter().find(|(file, seen)| before.nodes.get(file) != Some(*seen))
                {
                    return Err(format!("{what}, client {client}: {file} is not what it was"));
                }
                if tree.nodes != before.nodes {
                    difference = Some(format!("{what}, client {client}: not as it was"));
                }
            }
        }
    }
    // Who uses the file system must hear of a loss, not only who has it checked.
    match difference {
        Some(difference) if found.told.is_empty() => return Err(format!("nobody says so, but {difference}")),
        Some(difference) if has_a_stand_in => return Err(format!("something else stands in, but {difference}")),
        Some(_) => findings.lost += 1,
        None if found.told.is_empty() && found.checked.is_empty() => findings.harmless += 1,
        None => findings.mended += 1,
    }
    findings.repaired += u64::from(!found.remedies.is_empty());
    found.later.iter().try_for_each(|(when, trees, left)| {
        judge_repaired(image, found, trees, left).map_err(|what| format!("{when} ({:?}): {what}", found.remedies))
    })
}

/// Q-8 for the present, and Q-10. `has_trees`: the damage was none of the trees, so that all that they have is there.
fn judge_damaged(image: &Image, trees: &Trees, left: &[String], has_trees: bool) -> Result<(), String> {
    if let Some(left) = left.first() {
        return Err(left.clone());
    }
    for ((snapshot, client), tree) in trees {
        match tree {
            Err(error) if has_trees => return Err(format!("snapshot \"{snapshot}\", client {client}: {error}")),
            Ok(tree) if has_trees && !tree.damage.is_empty() => {
                return Err(format!("snapshot \"{snapshot}\", client {client}: {:?}", tree.damage));
            }
            Ok(tree) if snapshot.is_empty() => {
                verify_damaged(&image.histories[*client], image.covered[*client], tree)?;
            }
            _ => {}
        }
    }
    Ok(())
}

///
fn judge_repaired(image: &Image, found: &Found, after: &Trees, left: &[String]) -> Result<(), String> {
    if let Some(left) = left.first() {
        return Err(left.clone());
    }
    // Names that led nowhere are gone then, and with them the sizes and links of before.
    let lost_names = found.remedies.contains(&Remedy::Trees { gives_up: true });
    for ((snapshot, client), before) in &found.trees {
        let Ok(before) = before else { continue };
        let what = format!("snapshot \"{snapshot}\", client {client}");
        let tree = match after.get(&(snapshot.clone(), *client)) {
            Some(Ok(tree)) => tree,
            Some(Err(error)) => return Err(format!("{what}: {error}")),
            None => return Err(format!("{what} is gone")),
        };
        let is_kept = |file: &FileId, seen: &Seen| match tree.nodes.get(file) {
            Some(now) if lost_names => {
                // What has lost its name in a clone goes into a directory of the clone.
                let is_home = |name: &Name| seen.is_top_of_clone(*file) && name[..] == *b"lost+found";
                let is_same =
                    |(name, place): (&Name, &(FileId, Kind))| seen.entries.get(name) == Some(place) || is_home(name);
                let has_all = |(name, (file, _)): (&Name, &(FileId, Kind))| {
                    !before.nodes.contains_key(file) || now.entries.contains_key(name)
                };
                now.content == seen.content
                    && without_names(&now.attributes) == without_names(&seen.attributes)
                    && (&now.xattrs, &now.target) == (&seen.xattrs, &seen.target)
                    && now.entries.iter().all(is_same)
                    && seen.entries.iter().all(has_all)
            }
            now => now == Some(seen),
        };
        if let Some((file, _)) = before.nodes.iter().find(|(file, seen)| !is_kept(file, seen)) {
            return Err(format!("{what}: {file} is not what it was"));
        }
        if snapshot.is_empty() {
            let mut tree = tree.clone();
            tree.damage.extend(lost_names.then(|| "names were lost".to_owned()));
            verify_damaged(&image.histories[*client], image.covered[*client], &tree)?;
        }
    }
    Ok(())
}

/// What attributes say of the file itself, and not of the names around it.
fn without_names(attributes: &Attributes) -> Attributes {
    let size = if attributes.kind == Kind::Directory { 0 } else { attributes.size };
    let changed = Timestamp::default();
    Attributes { links: 0, parent: FileId::NONE, size, changed, ..attributes.clone() }
}

impl Damage {
    /// Whether it may keep the node from being opened: nobody else knows who the disks are, where the trees begin, and what was
    /// acknowledged last.
    fn may_refuse(&self) -> bool {
        matches!(place(&self.path), "disk" | "superblock" | "journal")
    }

    /// Whether the store must do without what was damaged: the index is made again from the packs, each superblock is there twice
    /// on every disk, and so is its identity.
    fn has_a_stand_in(&self) -> bool {
        matches!((place(&self.path), &self.how), ("index", _) | ("superblock" | "disk", How::Flip { .. }))
    }
}

/// The kind of a file: its directory, or itself.
fn place(path: &str) -> &str {
    path.split(['/', '-', '.']).next().unwrap_or(path)
}

/// Every kind of file is hit as often, and every part of it: where there are bytes, and at the ends where headers and footers lie.
fn choose(image: &Image, random: &mut Random) -> Option<Damage> {
    /// Of a disk: path and bytes.
    type File<'a> = (usize, (&'a String, &'a Vec<u8>));
    let mut places: BTreeMap<&str, Vec<File<'_>>> = BTreeMap::new();
    for (disk, (_, files)) in image.disks.iter().enumerate() {
        for file in files.iter().filter(|(_, bytes)| !bytes.is_empty()) {
            places.entry(place(file.0)).or_default().push((disk, file));
        }
    }
    let kinds: Vec<_> = places.values().collect();
    let files = kinds.get(random.index(kinds.len().max(1)))?;
    let (disk, (path, bytes)) = files[random.index(files.len())];
    let length = bytes.len() as u64;
    let end = |bytes: &[u8]| bytes.iter().rposition(|byte| *byte != 0).map_or(1, |last| last as u64 + 1);
    let offset = match random.below(4) {
        0 => random.below(length.min(8192)),
        1 => length - 1 - random.below(length.min(8192)),
        _ => random.below(end(bytes)),
    };
    let how = match random.below(20) {
        0 => How::Remove,
        1 | 2 => How::Truncate { length: offset },
        3 | 4 => {
            let count = 1 + random.below((length - offset).min(5000));
            How::Overwrite { offset, bytes: random.content(count) }
        }
        5 => How::Overwrite { offset, bytes: vec![0; usize::try_from((length - offset).min(4096)).unwrap_or(1)] },
        _ => How::Flip { offset, bit: u32::try_from(random.below(8)).unwrap_or(0) },
    };
    Some(Damage { disk, path: path.to_owned(), how })
}

#[cfg(test)]
mod tests {
    use super::{Findings, Found, Run, Trees, judge, look};
    use crate::plan::Plan;

    /// The judge is no rubber stamp: what is gone without a word, and bytes that were never written, are found out.
    #[test]
    fn silence_and_wrong_bytes_are_found_out() {
        let plan = Plan { operations: 80, ..Plan::find("calm").expect("it is the base of all") };
        let image = Run::new(3, plan, false).image().unwrap();
        let copy = || look(&image, 3, None).unwrap().unwrap_or_else(|refused| panic!("{}", refused.error));
        let whole = copy();
        let mut findings = Findings::default();
        assert_eq!(judge(&image, &whole, &copy(), true, &mut findings), Ok(()));
        assert_eq!(findings.harmless, 1);

        let without_a_node = || {
            let mut found: Found = copy();
            let tree =
                found.trees.values_mut().flatten().find(|tree| tree.nodes.len() > 1).expect("a client made files");
            let file = *tree.nodes.keys().find(|file| **file != tree.top).expect("more than the top");
            tree.nodes.remove(&file);
            tree.damage.push("a file".to_owned());
            found
        };
        let judge = |found: &Found, has_a_stand_in, findings: &mut Findings| {
            judge(&image, &whole, found, has_a_stand_in, findings)
                .map_err(|what| what.split(' ').next().unwrap().to_owned())
        };
        assert_eq!(judge(&without_a_node(), false, &mut findings), Err("nobody".to_owned()));
        let repaired = |later: (&'static str, Trees, Vec<String>)| Found { later: vec![later], ..copy() };
        let undone = repaired(("then", copy().trees, vec!["still to do: all".to_owned()]));
        assert_eq!(judge(&undone, false, &mut Findings::default()), Err("then".to_owned()));
        let lost = repaired(("then", without_a_node().trees, Vec::new()));
        assert_eq!(judge(&lost, false, &mut Findings::default()), Err("then".to_owned()));
        let told = || Found { told: vec!["a file is damaged".to_owned()], ..without_a_node() };
        assert_eq!(judge(&told(), true, &mut findings), Err("something".to_owned()));
        assert_eq!(judge(&told(), false, &mut findings), Ok(()));
        assert_eq!(findings.lost, 1);

        let mut wrong = copy();
        let seen = wrong.trees.values_mut().flatten().flat_map(|tree| tree.nodes.values_mut());
        let bytes = seen.map(|seen| &mut seen.content.bytes).find(|bytes| !bytes.is_empty()).expect("a client wrote");
        bytes.iter_mut().for_each(|byte| *byte ^= 0x5a);
        wrong.told.push("something else is damaged".to_owned());
        assert!(judge(&wrong, false, &mut findings).is_err());
    }
}
