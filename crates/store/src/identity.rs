//! Who the disks are: formatting them, and refusing those that are not a whole, free, known node.
//!
//! D-1   A refused open or create has changed nothing: all checks come before the first write.
//! D-2   The identity file of a disk is written last, of disk 0 last of all: a node that was formatted halfway is no node.
//!       The copy of the identity stands in for one that is damaged or cannot be read, never for one that is not there. Who writes
//!       both (a newer format, one day) writes the copy first.
//! D-3   All disks are locked while the store is open.
//! D-4   A node is opened without a disk only where the caller said so ([`crate::Options::goes_without_disks`]), and without the disks that
//!       have the journal only where what was written after the last commit was given up ([`crate::Options::gives_up_frames`]). A disk that is
//!       there and belongs to another node is refused all the same. Nothing is written to the place where a missing disk should be.
//! D-5   Which disks a node has the newest superblock says. One more is formatted first, and gets nothing before a superblock that names it is
//!       durable; one that goes has nothing any more when a superblock without it is written, and is wiped after that. So what says that it is
//!       a disk of the node, and is named nowhere, was never taken in or has gone: it is left alone.

use base::hash::DomainKey;
use base::id::{NodeNumber, Position};
use platform::Platform;
use platform::disk::{Disk, DiskError, DiskErrorKind, Open};

use crate::disks::{DISKS_MAX, DiskSet};
use crate::failure::{StoreError, corrupt, refused};
use crate::format::{
    Homes, IDENTITY_COPY, IDENTITY_FILE, INDEX_FILE, INDEX_NEW, Identity, JOURNAL, LOCK_FILE, PACKS, ROOTS_BYTES_MAX,
    SUPERBLOCK_FILE, Superblock, Unfit,
};
use crate::remedy::Problem;

/// Held while the store is open.
pub(crate) type Lock = Box<dyn Send + Sync>;

/// Formats empty disks as one node, of a dedup domain with this key or else of one of its own.
pub(crate) async fn create(
    platform: &Platform,
    disks: &[Disk],
    node: NodeNumber,
    roots: &[u8],
    key: Option<&DomainKey>,
) -> Result<(), StoreError> {
    let Some(first) = disks.first() else {
        return Err(refused("the node", "no disk was given.", "Name at least one directory."));
    };
    if disks.len() > DISKS_MAX {
        let why = format!("{} disks were given, at most {DISKS_MAX} fit.", disks.len());
        return Err(refused(first.path(), why, "Name fewer directories."));
    }
    if roots.len() > ROOTS_BYTES_MAX {
        return Err(too_large(roots));
    }
    for (number, disk) in disks.iter().enumerate() {
        refuse_used(disk)?;
        if disks[..number].iter().any(|other| other.path() == disk.path()) {
            return Err(refused(disk.path(), "it was given twice.", "Name each directory once."));
        }
    }
    let random = || {
        let mut bytes = [0; 16];
        platform.chance.fill(&mut bytes);
        bytes
    };
    let (node_identity, uuids) = (random(), disks.iter().map(|_| random()).collect::<Vec<_>>());
    let key = key.cloned().unwrap_or_else(|| {
        let mut key = [0; 32];
        platform.chance.fill(&mut key);
        DomainKey(key)
    });
    let superblock = Superblock {
        drained: DiskSet::NONE,
        floor: 1,
        generation: 1,
        is_closed: false,
        node_identity,
        covered: Position(0),
        durable: Position(0),
        pack_next: 1,
        time: platform.clock.now(),
        disks: uuids.clone(),
        without: DiskSet::NONE,
        homes: Homes::each_of(DiskSet::of(0)),
        index: 0,
        roots: roots.to_vec(),
    };
    for (number, disk) in disks.iter().enumerate().rev() {
        let mut slots = vec![0; Superblock::BYTES * 2];
        let offset = usize::try_from(Superblock::offset(1)).expect("below two slots");
        slots[offset..offset + Superblock::BYTES].copy_from_slice(&superblock.encode(&uuids[number]));
        let identity = Identity {
            node_identity,
            node,
            disk: u16::try_from(number).expect("at most DISKS_MAX"),
            disk_count: u16::try_from(disks.len()).expect("at most DISKS_MAX"),
            disk_uuid: uuids[number],
            created: platform.clock.now(),
            key: key.clone(),
        };
        format(disk, &identity, &slots).await?;
    }
    Ok(())
}

/// Makes a directory a disk: everything that a disk has, and who it is last (D-2). `slots` is for its superblocks: both are there from the
/// start, so that a commit never changes the file's length.
async fn format(disk: &Disk, identity: &Identity, slots: &[u8]) -> Result<(), StoreError> {
    disk.make_directory(PACKS)?;
    disk.make_directory(JOURNAL)?;
    disk.write_durably(SUPERBLOCK_FILE, slots).await?;
    // Makes the lock file; nobody holds it after this.
    drop(disk.lock(LOCK_FILE)?);
    write_again(disk, identity).await?;
    Ok(())
}

/// Formats a directory as one more disk of a node, that no superblock names yet (D-5). One that was formatted so before, and never taken in, is
/// formatted again.
pub(crate) async fn format_more(disk: &Disk, identity: &Identity, table: &[[u8; 16]]) -> Result<(), StoreError> {
    match disk.read(IDENTITY_FILE).await.map(|bytes| Identity::decode(&bytes)) {
        Ok(Ok(found)) if found.node_identity == identity.node_identity && !table.contains(&found.disk_uuid) => {
            if !disk.list(PACKS)?.is_empty() {
                let why = "it was a disk of this node, and packs are on it (files under `packs`).";
                return Err(refused(disk.path(), why, "Remove them yourself if nobody needs them."));
            }
            wipe(disk)?;
        }
        _ => {}
    }
    refuse_used(disk)?;
    format(disk, identity, &[0; Superblock::BYTES * 2]).await
}

/// Makes a directory no disk: who it was goes first.
pub(crate) fn wipe(disk: &Disk) -> Result<(), DiskError> {
    let remove = |path: &str| match disk.remove(path) {
        Err(error) if error.kind != DiskErrorKind::Absent => Err(error),
        _ => Ok(()),
    };
    remove(IDENTITY_FILE)?;
    remove(IDENTITY_COPY)?;
    disk.sync_directory("")?;
    for file in [SUPERBLOCK_FILE, INDEX_FILE, INDEX_NEW] {
        remove(file)?;
    }
    for name in disk.list(JOURNAL).unwrap_or_default() {
        remove(&format!("{JOURNAL}/{name}"))?;
    }
    disk.sync_directory(JOURNAL)?;
    disk.sync_directory("")
}

pub(crate) fn too_large(roots: &[u8]) -> StoreError {
    StoreError::TooLarge {
        what: "the payload of a superblock",
        bytes: roots.len() as u64,
        limit: ROOTS_BYTES_MAX as u64,
    }
}

// A `superblock`, `lock` or empty directory alone is left over from a format that did not finish, and may be replaced.
fn refuse_used(disk: &Disk) -> Result<(), StoreError> {
    let names = disk.list("")?;
    let has = |name: &str| names.iter().any(|found| found == name);
    let holds = |directory: &str| Ok::<_, StoreError>(has(directory) && !disk.list(directory)?.is_empty());
    for (found, what) in [
        (
            has(IDENTITY_FILE),
            "it is a disk of a node already, or of one whose formatting was cut short (it has a file `disk`).",
        ),
        (has(INDEX_FILE), "it holds a chunk index (a file `index`)."),
        (holds(PACKS)?, "it holds packs (files under `packs`)."),
        (holds(JOURNAL)?, "it holds a journal (files under `journal`)."),
    ] {
        if found {
            return Err(refused(disk.path(), what, "Name an empty directory, or remove what is there yourself."));
        }
    }
    Ok(())
}

/// A disk that is not there.
pub(crate) struct Missing {
    pub(crate) number: u16,
    /// Where it should be, as far as anybody knows.
    pub(crate) path: String,
    pub(crate) why: String,
}

/// A disk of a node that is being opened.
pub(crate) struct Member {
    pub(crate) disk: Disk,
    pub(crate) identity: Identity,
    /// Why it is not there, if it is not.
    pub(crate) missing: Option<String>,
    pub(crate) lock: Option<Lock>,
}

/// A directory that says that it is a disk of the node.
pub(crate) struct Candidate {
    pub(crate) disk: Disk,
    pub(crate) identity: Identity,
    /// D-3.
    lock: Lock,
    /// Whether a file of its identity is to be written again, and what is wrong with it unless it was never there.
    damage: Option<Damage>,
}

/// What was named as the disks of a node.
pub(crate) struct Opened {
    /// By number; at least one.
    pub(crate) candidates: Vec<Candidate>,
    /// Paths of what is not there, with the reasons.
    let_go: Vec<(String, String)>,
}

/// Disks that say that they are of one node.
struct Introduced {
    known: Vec<(Disk, Identity)>,
    damages: Vec<Option<Damage>>,
    let_go: Vec<(String, String)>,
}

async fn introduce(disks: &[Disk], goes_without: bool) -> Result<Introduced, StoreError> {
    let (mut known, mut damages, mut let_go) = (Vec::new(), Vec::new(), Vec::new());
    for disk in disks {
        match read(disk).await {
            Ok((identity, damage)) => {
                damages.push(damage);
                known.push((disk.clone(), identity));
            }
            Err(error) if goes_without && is_missing(disk, &error) => {
                let why = if is_nobody(disk) { "it has no file `disk`".to_owned() } else { error.to_string() };
                let_go.push((disk.path().to_owned(), why));
            }
            Err(error) => return Err(error),
        }
    }
    refuse_foreign(&known, &let_go)?;
    refuse_read_only(&known)?;
    Ok(Introduced { known, damages, let_go })
}

/// Whether those of an open store that are `there`, by number and uuid, could be opened from these directories once it has been closed. They are
/// neither locked nor changed.
pub(crate) async fn could_open_again(
    there: &[(usize, [u8; 16])],
    disks: &[Disk],
    goes_without: bool,
) -> Result<(), StoreError> {
    let Introduced { known, .. } = introduce(disks, goes_without).await?;
    let is_known = |uuid: &[u8; 16]| known.iter().any(|(_, identity)| identity.disk_uuid == *uuid);
    match there.iter().find(|(_, uuid)| !is_known(uuid)) {
        Some((number, _)) if !goes_without => {
            let why = format!("disk {number} of this node is not there any more.");
            Err(refused(disks.first().map_or("the node", Disk::path), why, "Mount it again."))
        }
        _ => Ok(()),
    }
}

/// Reads who the disks are, checks that they are of one node, and locks them. If it `goes_without` some, what is not there is let go.
pub(crate) async fn open(disks: &[Disk], goes_without: bool) -> Result<Opened, StoreError> {
    let Introduced { known, damages, mut let_go } = introduce(disks, goes_without).await?;
    let (mut candidates, mut locked) = (Vec::with_capacity(known.len()), Vec::new());
    for ((disk, identity), damage) in known.into_iter().zip(damages) {
        match lock(&disk) {
            Ok(lock) => candidates.push(Candidate { disk, identity, lock, damage }),
            // Mostly of a process that ended, but for a call to this disk: the caller has the node. What that call still changes is on a disk
            // that is missing here.
            Err(error) if goes_without && is_kept(&error) => locked.push((disk.path().to_owned(), error)),
            Err(error) => return Err(error),
        }
    }
    if candidates.is_empty()
        && let Some((_, error)) = locked.pop()
    {
        return Err(error);
    }
    let_go.extend(locked.into_iter().map(|(path, error)| (path, error.to_string())));
    candidates.sort_by_key(|candidate| candidate.identity.disk);
    Ok(Opened { candidates, let_go })
}

/// Takes the lock of a disk.
pub(crate) fn lock(disk: &Disk) -> Result<Lock, StoreError> {
    disk.lock(LOCK_FILE).map_err(|error| match error.kind {
        DiskErrorKind::Locked => {
            let why = "it is in use by another HydraFS process, which holds its lock.";
            refused(disk.path(), why, "Stop that process, or talk to it instead.")
        }
        _ => error.into(),
    })
}

/// Whether somebody has the lock of a disk, or nobody can tell because it does not answer.
fn is_kept(error: &StoreError) -> bool {
    match error {
        StoreError::Refused { .. } => true,
        StoreError::Disk(error) => error.kind == DiskErrorKind::Silent,
        _ => false,
    }
}

/// Whether nobody has a store open on one of these disks, nor is about to give it up: the locks are the last that goes. One that does not
/// answer is not free.
pub fn are_free(disks: &[Disk]) -> bool {
    let holds = [DiskErrorKind::Locked, DiskErrorKind::Silent];
    let is_held = |disk: &Disk| disk.lock(LOCK_FILE).is_err_and(|error| holds.contains(&error.kind));
    // D-4: to lock is to make a file.
    !disks.iter().any(|disk| !is_nobody(disk) && is_held(disk))
}

/// Whether a directory is no disk of any node, such as one where a disk should be mounted.
fn is_nobody(disk: &Disk) -> bool {
    disk.open(IDENTITY_FILE, Open::Read).is_err_and(|error| error.kind == DiskErrorKind::Absent)
}

// Nobody can tell who it is. What an older or a newer program wrote is there.
fn is_missing(disk: &Disk, error: &StoreError) -> bool {
    matches!(error, StoreError::Disk(_) | StoreError::Corrupt { .. }) || is_nobody(disk)
}

/// The disks of a node, checked and locked.
pub(crate) struct Whole {
    /// By number, with those that are missing.
    pub(crate) members: Vec<Member>,
    /// Those where a file is to be written again, with what is wrong with it unless it was never there.
    pub(crate) damaged: Vec<(usize, Damage)>,
    /// Paths of what is no disk of the node (any more), though it says so.
    pub(crate) strangers: Vec<String>,
}

impl Opened {
    /// The whole node that `table` names, uuids by number with zeroes where there is no disk; or all of it that is there, if it `goes_without`
    /// the rest.
    pub(crate) fn whole(self, table: &[[u8; 16]], goes_without: bool) -> Result<Whole, StoreError> {
        let Opened { candidates, let_go } = self;
        let (known, strangers): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|candidate| table.contains(&candidate.identity.disk_uuid));
        for Candidate { disk, identity, .. } in &known {
            let uuid = table.get(usize::from(identity.disk));
            if uuid != Some(&identity.disk_uuid) {
                let why = format!(
                    "it is not the disk that the superblock knows as number {}: expected {}, found {}.",
                    identity.disk,
                    uuid.map_or("none".to_owned(), |uuid| hex(uuid)),
                    hex(&identity.disk_uuid)
                );
                return Err(refused(disk.path(), why, "Name the original disk."));
            }
        }
        let strangers: Vec<String> = strangers.into_iter().map(|stranger| stranger.disk.path().to_owned()).collect();
        let Some(first) = known.first().map(|known| known.identity.clone()) else {
            let path = strangers.first().map_or("the node", String::as_str);
            let why =
                "its superblock names other disks of the node, and not this one, which was never taken in or has gone.";
            return Err(refused(path, why, "Name the disks that the node has."));
        };
        let missing = name_missing(missing_numbers(&known, table, goes_without)?, let_go);
        let damaged = known.iter().filter_map(|known| Some((usize::from(known.identity.disk), known.damage.clone()?)));
        let damaged = damaged.collect();
        let missing = missing.into_iter().map(|Missing { number, path, why }| {
            let detail = format!("disk {number} is missing ({why}); mount it again and restart the daemon");
            // Never written: it is good for words only.
            let identity = Identity { disk: number, disk_uuid: table[usize::from(number)], ..first.clone() };
            Member { disk: Disk::missing(path, detail), identity, missing: Some(why), lock: None }
        });
        let known = known.into_iter().map(|Candidate { disk, identity, lock, .. }| Member {
            disk,
            identity,
            missing: None,
            lock: Some(lock),
        });
        let mut members: Vec<Member> = known.chain(missing).collect();
        members.sort_by_key(|member| member.identity.disk);
        Ok(Whole { members, damaged, strangers })
    }
}

/// Which of the disks that were let go is which, where there is only one. A number for which there is none was not given at all.
fn name_missing(numbers: Vec<u16>, let_go: Vec<(String, String)>) -> Vec<Missing> {
    let mut let_go = let_go.into_iter();
    if let ([number], 1) = (&numbers[..], let_go.len()) {
        let (path, why) = let_go.next().expect("one");
        return vec![Missing { number: *number, path, why }];
    }
    // Which of several is which nobody knows: a path that is wrong would have another disk removed.
    let paths: Vec<String> = let_go.map(|(path, why)| format!("{path}: {why}")).collect();
    let why = match paths.is_empty() {
        true => "it was not named".to_owned(),
        false => format!("it may be one of those that are not there: {}", paths.join(", ")),
    };
    numbers.into_iter().map(|number| Missing { number, path: format!("disk {number}"), why: why.clone() }).collect()
}

/// Numbers of the disks that are missing.
fn missing_numbers(known: &[Candidate], table: &[[u8; 16]], goes_without: bool) -> Result<Vec<u16>, StoreError> {
    let numbers = (0..).zip(table).filter(|(_, uuid)| **uuid != [0; 16]).map(|(number, _)| number);
    let is_there = |number: &u16| known.iter().any(|candidate| candidate.identity.disk == *number);
    let missing: Vec<u16> = numbers.clone().filter(|number| !is_there(number)).collect();
    let Some(number) = missing.first() else { return Ok(missing) };
    if !goes_without {
        let (expected, found) = (numbers.count(), known.len());
        let why = format!("disk {number} of this node is missing: expected {expected} disks, found {found}.");
        let advice = "Mount the missing disk and name it too, or go without it (`--degraded`): what lies there cannot be read then.";
        return Err(refused(known[0].disk.path(), why, advice));
    }
    Ok(missing)
}

// Tells at once what the first commit would meet.
fn refuse_read_only(known: &[(Disk, Identity)]) -> Result<(), StoreError> {
    for (disk, _) in known {
        if let Err(error) = disk.open(SUPERBLOCK_FILE, Open::Write)
            && matches!(error.kind, DiskErrorKind::ReadOnly | DiskErrorKind::Denied)
        {
            let why = format!("expected a disk that can be written, found \"{}\".", error.detail);
            return Err(refused(disk.path(), why, "Mount it for writing, or run as its owner."));
        }
    }
    Ok(())
}

/// Writes an identity and its copy. One of them is whole at any moment.
pub(crate) async fn write_again(disk: &Disk, identity: &Identity) -> Result<(), DiskError> {
    disk.write_durably(IDENTITY_COPY, &identity.encode()).await?;
    disk.write_durably(IDENTITY_FILE, &identity.encode()).await
}

/// What is wrong with a file of an identity, unless it was never there.
pub(crate) type Damage = Option<Problem>;

// Who the disk is, and whether its identity is to be written again.
pub(crate) async fn read(disk: &Disk) -> Result<(Identity, Option<Damage>), StoreError> {
    let first = match disk.read(IDENTITY_FILE).await {
        Ok(bytes) => Identity::decode(&bytes).map_err(|unfit| damaged(disk, IDENTITY_FILE, unfit)),
        Err(error) if error.kind == DiskErrorKind::Absent => {
            let why = "it is not a disk of a HydraFS node: it has no file `disk`.";
            let advice = "Check the path and that the disk is mounted, or format it first; of a node with several disks, `--degraded` goes \
                          without it.";
            return Err(refused(disk.path(), why, advice));
        }
        Err(error) => Err(error.into()),
    };
    let copy = match disk.read(IDENTITY_COPY).await {
        Ok(bytes) => Identity::decode(&bytes).map_err(|unfit| damaged(disk, IDENTITY_COPY, unfit)),
        // A node that was made before there were copies.
        Err(error) if error.kind == DiskErrorKind::Absent => return first.map(|identity| (identity, Some(None))),
        Err(error) => Err(error.into()),
    };
    match (first, copy) {
        (Ok(first), Ok(copy)) if first == copy => Ok((first, None)),
        (Ok(first), Ok(copy)) => {
            let error = corrupt("the identity", disk.path(), 0, words(&first), difference(&first, &copy));
            Ok((first, Some(Some(problem(disk, IDENTITY_COPY, error)))))
        }
        (Ok(first), Err(error)) => Ok((first, Some(Some(problem(disk, IDENTITY_COPY, error))))),
        (Err(error), Ok(copy)) => {
            let problem = problem(disk, IDENTITY_FILE, error);
            Ok((copy, Some(Some(problem))))
        }
        (Err(error), Err(_)) => Err(error),
    }
}

/// What is wrong with a file of the identity of a disk, as a check tells of it.
fn problem(disk: &Disk, file: &str, error: StoreError) -> Problem {
    let code = if file == IDENTITY_COPY { "HF0018" } else { "HF0003" };
    let (offset, expected, found) = match error {
        StoreError::Corrupt { offset, expected, found, .. } => (offset, expected.into(), found.into()),
        error => (0, "to read it".to_owned(), error.to_string()),
    };
    let path = format!("{}/{file}", disk.path());
    Problem { code, what: "the identity", path, offset, expected, found, remedy: None }
}

fn damaged(disk: &Disk, file: &str, unfit: Unfit) -> StoreError {
    unfit_error("the identity", disk.path(), file, 0, unfit)
}

/// A format that this program does not read is refused, anything else is damage.
pub(crate) fn unfit_error(what: &'static str, disk: &str, file: &str, offset: u64, unfit: Unfit) -> StoreError {
    let path = format!("{disk}/{file}");
    let (age, advice) = match &unfit {
        Unfit { newer: Some(_), .. } => ("a newer", "Use that HydraFS, or a newer one."),
        Unfit { older: Some(_), .. } => ("an older", "Open the node once with that HydraFS, and stop it."),
        _ => return corrupt(what, &path, offset, unfit.expected, unfit.found),
    };
    let why = format!("{what} was written by {age} HydraFS: expected {}, found {}.", unfit.expected, unfit.found);
    refused(&path, why, advice)
}

fn refuse_foreign(known: &[(Disk, Identity)], let_go: &[(String, String)]) -> Result<(), StoreError> {
    let Some((_, first)) = known.first() else {
        if let Some((path, why)) = let_go.first() {
            let why = format!("every disk of this node is missing. {path}: {why}.");
            return Err(refused(path, why, "Mount the missing disks."));
        }
        return Err(refused("the node", "no disk was given.", "Name the directories of all its disks."));
    };
    for (disk, identity) in known {
        if identity.node_identity != first.node_identity || identity.node != first.node || identity.key != first.key {
            let why = format!(
                "it belongs to another node than {}: expected node {} {}, found node {} {}.",
                known[0].0.path(),
                first.node.0,
                hex(&first.node_identity),
                identity.node.0,
                hex(&identity.node_identity)
            );
            return Err(refused(disk.path(), why, "Name only the disks of one node."));
        }
    }
    for (at, (disk, identity)) in known.iter().enumerate() {
        let is_same = |(_, other): &&(Disk, Identity)| other.disk_uuid == identity.disk_uuid;
        if let Some((other, _)) = known[..at].iter().find(is_same) {
            let why = format!("it is disk {} of the node, and so is {}.", identity.disk, other.path());
            return Err(refused(disk.path(), why, "Name each disk once, and no copy of a disk beside its original."));
        }
    }
    Ok(())
}

/// Who a disk is. The key is a secret.
pub(crate) fn words(identity: &Identity) -> String {
    let Identity { node_identity, node, disk, disk_count, disk_uuid, created, .. } = identity;
    format!(
        "disk {disk} of {disk_count}, {}, of node {} {}, made at second {}.{:09} of 1970",
        hex(disk_uuid),
        node.0,
        hex(node_identity),
        created.seconds,
        created.nanos
    )
}

/// Who another disk is, that is not this one.
pub(crate) fn difference(this: &Identity, other: &Identity) -> String {
    let key = if this.key == other.key { "" } else { ", with another key" };
    format!("{}{key}", words(other))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
