//! Snapshots: names for catalogs. A tree is never changed, so keeping its root keeps the whole file system of that moment.
//!
//! A snapshot appears as a directory below `.snapshots` in the root. Its files have the ids that they have in the present, in a
//! view of their own. One of a directory shows that directory alone; it keeps the whole catalog all the same, which is why it is taken in
//! constant time.
//!
//! I-103 A snapshot is in both superblock slots when its taking returns: no journal tells of it, so where the newest superblock rots, the
//!       one before must name it.
//!
//! The list is a tree, and a copy of it is in memory: as far as it could be read when it was loaded. What nobody may lose looks into the
//! tree.
//!
//! Not here: giving back the space of a deleted snapshot (`reclaim`).

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use base::id::FileId;
use base::time::Timestamp;
use bytes::Bytes;
use store::StoreError;

use crate::attributes::{Node, View};
use crate::commit::RootsChange;
use crate::directory::expect_directory;
use crate::failure::{FileError, is_loss};
use crate::format::{Root, SnapshotValue, VIEWS_MAX, is_name};
use crate::left_out::Whole;
use crate::system::{FileSystem, Listed, SNAPSHOTS, undecodable, untrue};

/// Directories above each other at most, as a path that the kernel takes can have.
const PATH_DEPTH_MAX: usize = 2048;

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its name below `.snapshots`.
    pub name: String,
    /// The moment it shows.
    pub taken: Timestamp,
    /// Its view.
    pub view: View,
    /// The directory that it shows: the root, if it is of everything.
    pub root: FileId,
}

/// Whether a snapshot can have this name: that of a directory entry that a terminal shows.
pub(crate) fn check_snapshot_name(name: &str) -> Result<(), FileError> {
    if !is_name(name.as_bytes()) || name.chars().any(char::is_control) {
        return Err(FileError::Invalid("a snapshot's name is one of a file: at most 255 bytes, without slashes"));
    }
    Ok(())
}

impl FileSystem {
    /// Takes a snapshot of everything: what was accepted before is in it. Durable when it returns.
    ///
    /// # Errors
    /// `Exists`, `Invalid` for a name that no directory entry could have, or the store's.
    pub async fn snapshot(&self, name: &str) -> Result<Snapshot, FileError> {
        self.snapshot_of(name, FileId::ROOT).await
    }

    /// The same, of one directory of the present.
    ///
    /// # Errors
    /// As there; `NotDirectory`, or `NoEntry` for one that is not there (any more).
    pub async fn snapshot_of(&self, name: &str, root: FileId) -> Result<Snapshot, FileError> {
        check_snapshot_name(name)?;
        if root == SNAPSHOTS {
            return Err(FileError::Invalid("it is where snapshots are shown"));
        }
        expect_directory(&self.live(root).await?.state.lock())?;
        let _change = self.snapshot_change.lock().await;
        if self.find_snapshot(name.as_bytes()).is_some() {
            return Err(FileError::Exists);
        }
        self.sync_all().await?;
        // A snapshot is of everything.
        self.commit_with(Some(RootsChange::Add { name: name.to_owned(), root }), Whole::OrNot).await?;
        // I-103. That it cannot be written once more is the disk's failure, which is noted, and not the snapshot's.
        let _ = self.store.renew_root().await;
        let snapshot = self.snapshots().into_iter().find(|snapshot| snapshot.name == name).ok_or(FileError::Stale)?;
        if root != FileId::ROOT
            && let Err(error) = self.expect_shown(&snapshot).await
        {
            self.drop_view(snapshot.view).await?;
            return Err(error);
        }
        Ok(snapshot)
    }

    /// The directory that a snapshot shows may have been removed while others were made durable.
    async fn expect_shown(&self, snapshot: &Snapshot) -> Result<(), FileError> {
        let attributes = self.attributes(Node { view: snapshot.view, file: snapshot.root }).await?;
        if attributes.links > 0 { Ok(()) } else { Err(FileError::NoEntry) }
    }

    /// Deletes a snapshot. Durable when it returns.
    ///
    /// # Errors
    /// `NoEntry`; `Busy` while it is sent, or the difference to it comes (I-115); or the store's.
    pub async fn delete_snapshot(&self, name: &str) -> Result<(), FileError> {
        let _change = self.snapshot_change.lock().await;
        let Node { view, .. } = self.find_snapshot(name.as_bytes()).ok_or(FileError::NoEntry)?;
        if self.held_views.lock().contains_key(&view) {
            return Err(FileError::Busy("it is being sent, or the difference to it is being received"));
        }
        self.drop_view(view).await
    }

    /// Deletes the snapshot of a view: of two that lie about their name this one. The caller holds `snapshot_change`.
    pub(crate) async fn drop_view(&self, view: View) -> Result<(), FileError> {
        self.commit_with(Some(RootsChange::Remove { view: view.0 }), Whole::AsFarAsRead).await?;
        self.table.remove_view(view);
        // How much it held alone only a pass can tell.
        self.dropped_bytes.fetch_add(1 << 50, Ordering::Relaxed);
        Ok(())
    }

    /// What can be read of the list of snapshots, and where the rest would be and why it cannot be read.
    pub(crate) async fn scan_snapshots(&self, list: &Root) -> (BTreeMap<u32, SnapshotValue>, Vec<(u64, StoreError)>) {
        self.scan_list(list, decode_listed).await
    }

    /// Takes the list of snapshots into memory. Tells in words what is lost of it.
    pub(crate) async fn load_snapshots(&self) -> Result<Vec<String>, FileError> {
        // A commit changes the tree and the memory.
        let _commit = self.commit.lock().await;
        let root = self.roots.lock().snapshots.clone();
        let (listed, lost) = self.scan_snapshots(&root).await;
        let mut problems = Vec::new();
        for (_, error) in lost {
            if !is_loss(&error) {
                return Err(error.into());
            }
            problems.push(format!("the list of snapshots: {error}"));
        }
        *self.snapshots.lock() = listed;
        Ok(problems)
    }

    /// All snapshots, oldest first.
    #[must_use]
    pub fn snapshots(&self) -> Vec<Snapshot> {
        let snapshots = self.snapshots.lock();
        let snapshot = |(view, value): (&u32, &SnapshotValue)| Snapshot {
            name: value.name.clone(),
            taken: value.taken,
            view: View(*view),
            root: value.root,
        };
        let mut snapshots: Vec<Snapshot> = snapshots.iter().map(snapshot).collect();
        // One that came from another node may be older than those that were here before it.
        snapshots.sort_by_key(|snapshot| (snapshot.taken, snapshot.view.0));
        snapshots
    }

    /// The root directory of a snapshot.
    #[must_use]
    pub fn find_snapshot(&self, name: &[u8]) -> Option<Node> {
        let snapshots = self.snapshots.lock();
        let found = snapshots.iter().find(|(_, snapshot)| snapshot.name.as_bytes() == name);
        found.map(|(view, snapshot)| Node { view: View(*view), file: snapshot.root })
    }

    /// The directory that a directory lies in. What a snapshot shows lies in itself, as the root does.
    ///
    /// # Errors
    /// `NoEntry`, or the store's.
    pub async fn parent(&self, directory: Node) -> Result<Node, FileError> {
        let root = self.snapshots.lock().get(&directory.view.0).map_or(FileId::ROOT, |snapshot| snapshot.root);
        if directory.view != View::LIVE && directory.file == root {
            return Ok(directory);
        }
        let file = self.attributes(directory).await?.parent;
        Ok(Node { view: directory.view, file })
    }

    /// The path in the file system of the directory that a snapshot is of.
    ///
    /// # Errors
    /// The store's; `Stale` for one that is not there.
    pub async fn path_of(&self, snapshot: &Snapshot) -> Result<String, FileError> {
        let (view, mut file, mut path) = (snapshot.view, snapshot.root, String::new());
        for _ in 0..PATH_DEPTH_MAX {
            if file == FileId::ROOT {
                return Ok(if path.is_empty() { "/".to_owned() } else { path });
            }
            let parent = self.attributes(Node { view, file }).await?.parent;
            let name = self.name_in(Node { view, file: parent }, file).await?;
            path = format!("/{}{path}", String::from_utf8_lossy(&name));
            file = parent;
        }
        Err(FileError::Stale)
    }

    async fn name_in(&self, directory: Node, file: FileId) -> Result<Bytes, FileError> {
        let mut after = 0;
        loop {
            let entries = self.read_directory(directory, after, 1000).await?;
            let Some(last) = entries.last() else { return Err(FileError::Stale) };
            after = last.cookie;
            if let Some(found) = entries.iter().find(|entry| entry.node.file == file) {
                return Ok(found.name.clone());
            }
        }
    }
}

/// An entry of the list: its view, which is never the present's, and what it shows.
pub(crate) fn decode_listed(view: u64, bytes: &[u8]) -> Listed<SnapshotValue> {
    let place = || format!("view {view}");
    let value = SnapshotValue::decode(bytes).map_err(|error| undecodable("snapshot", place(), error))?;
    match u32::try_from(view) {
        Ok(number) if View(number) != View::LIVE && number < VIEWS_MAX => Ok((number, value)),
        _ => Err(untrue("snapshot", place(), "the number of a view that a snapshot has", &view)),
    }
}
