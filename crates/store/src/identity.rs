//! Who the disks are: formatting them, and refusing those that are not a whole, free, known node.
//!
//! D-1   A refused open or create has changed nothing: all checks come before the first write.
//! D-2   The identity file of a disk is written last, of disk 0 last of all: a node that was formatted halfway is no node.
//!       The copy of the identity stands in for one that is damaged or cannot be read, never for one that is not there. Who writes
//!       both (a newer format, one day) writes the copy first.
//! D-3   All disks are locked while the store is open.

use base::hash::DomainKey;
use base::id::{NodeNumber, Position};
use platform::Platform;
use platform::disk::{Disk, DiskError, DiskErrorKind, Open};

use crate::failure::{StoreError, corrupt, refused};
use crate::format::{
    DISKS_MAX, IDENTITY_COPY, IDENTITY_FILE, INDEX_FILE, Identity, JOURNAL, LOCK_FILE, PACKS, ROOTS_BYTES_MAX,
    SUPERBLOCK_FILE, Superblock, Unfit,
};

/// Held while the store is open.
pub(crate) type Locks = Vec<Box<dyn Send + Sync>>;

/// Formats empty disks as one node.
pub(crate) async fn create(
    platform: &Platform,
    disks: &[Disk],
    node: NodeNumber,
    roots: &[u8],
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
    let mut key = [0; 32];
    platform.chance.fill(&mut key);
    let superblock = Superblock {
        generation: 1,
        is_closed: false,
        node_identity,
        covered: Position(0),
        durable: Position(0),
        pack_next: 1,
        time: platform.clock.now(),
        disks: uuids.clone(),
        roots: roots.to_vec(),
    };
    for (number, disk) in disks.iter().enumerate().rev() {
        disk.make_directory(PACKS)?;
        if number == 0 {
            disk.make_directory(JOURNAL)?;
        }
        // Both slots exist from the start, so that a commit never changes the file's length.
        let mut slots = vec![0; Superblock::BYTES * 2];
        let offset = usize::try_from(Superblock::offset(1)).expect("below two slots");
        slots[offset..offset + Superblock::BYTES].copy_from_slice(&superblock.encode(&uuids[number]));
        disk.write_durably(SUPERBLOCK_FILE, &slots).await?;
        // Makes the lock file; nobody holds it after this.
        drop(disk.lock(LOCK_FILE)?);
        let identity = Identity {
            node_identity,
            node,
            disk: u16::try_from(number).expect("at most DISKS_MAX"),
            disk_count: u16::try_from(disks.len()).expect("at most DISKS_MAX"),
            disk_uuid: uuids[number],
            created: platform.clock.now(),
            key: DomainKey(key),
        };
        write_again(disk, &identity).await?;
    }
    Ok(())
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

/// The disks of a node, checked and locked.
pub(crate) struct Opened {
    /// By number.
    pub(crate) disks: Vec<(Disk, Identity)>,
    pub(crate) locks: Locks,
    /// Those where a file is to be written again, with what is wrong with it unless it was never there.
    pub(crate) damaged: Vec<(usize, Option<String>)>,
}

/// Reads who the disks are, checks that they are one whole node, and locks them.
pub(crate) async fn open(disks: &[Disk]) -> Result<Opened, StoreError> {
    let (mut known, mut damaged) = (Vec::new(), Vec::new());
    for disk in disks {
        let (identity, damage) = read(disk).await?;
        damaged.extend(damage.map(|what| (usize::from(identity.disk), what)));
        known.push((disk.clone(), identity));
    }
    known.sort_by_key(|(_, identity)| identity.disk);
    check_whole(&known)?;
    refuse_read_only(&known)?;
    let mut locks = Locks::new();
    for (disk, _) in &known {
        match disk.lock(LOCK_FILE) {
            Ok(lock) => locks.push(lock),
            Err(error) if error.kind == DiskErrorKind::Locked => {
                let why = "it is in use by another HydraFS process, which holds its lock.";
                return Err(refused(disk.path(), why, "Stop that process, or talk to it instead."));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Opened { disks: known, locks, damaged })
}

/// Whether nobody has a store open on one of these disks, nor is about to give it up: the locks are the last that goes.
pub fn are_free(disks: &[Disk]) -> bool {
    let is_held = |disk: &Disk| disk.lock(LOCK_FILE).is_err_and(|error| error.kind == DiskErrorKind::Locked);
    !disks.iter().any(is_held)
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
type Damage = Option<String>;

// Who the disk is, and whether its identity is to be written again.
async fn read(disk: &Disk) -> Result<(Identity, Option<Damage>), StoreError> {
    let first = match disk.read(IDENTITY_FILE).await {
        Ok(bytes) => Identity::decode(&bytes).map_err(|unfit| damaged(disk, IDENTITY_FILE, unfit)),
        Err(error) if error.kind == DiskErrorKind::Absent => {
            let why = "it is not a disk of a HydraFS node: it has no file `disk`.";
            return Err(refused(disk.path(), why, "Check the path and that the disk is mounted, or format it first."));
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
        (Ok(first), Ok(_)) => Ok((first, Some(Some(format!("{}/{IDENTITY_COPY} is another's", disk.path()))))),
        (Ok(first), Err(error)) => Ok((first, Some(Some(error.to_string())))),
        (Err(error), Ok(copy)) => Ok((copy, Some(Some(error.to_string())))),
        (Err(error), Err(_)) => Err(error),
    }
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

fn check_whole(known: &[(Disk, Identity)]) -> Result<(), StoreError> {
    let Some((_, first)) = known.first() else {
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
    for pair in known.windows(2) {
        if pair[0].1.disk == pair[1].1.disk {
            let why = format!("it is disk {} of the node, and so is {}.", pair[1].1.disk, pair[0].0.path());
            return Err(refused(
                pair[1].0.path(),
                why,
                "Name each disk once, and no copy of a disk beside its original.",
            ));
        }
    }
    let missing = (0..first.disk_count).find(|number| known.iter().all(|(_, identity)| identity.disk != *number));
    if let Some(number) = missing {
        let why = format!(
            "disk {number} of this node is missing: expected {} disks, found {}.",
            first.disk_count,
            known.len()
        );
        return Err(refused(known[0].0.path(), why, "Mount the missing disk and name it too."));
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
