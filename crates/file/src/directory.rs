//! Directories: entries by cookie, where a cookie is a hash of the name with room for collisions.
//!
//! A cookie is 63 bits: 55 bits of a keyed hash of the name, then 8 bits that tell apart names of equal hash. An entry keeps its
//! cookie while it exists, so a listing can go on at a cookie whatever was added and removed meanwhile.
//!
//! I-50  No two entries of a directory have the same name, nor the same cookie.
//! I-51  The size of a directory is the number of its entries.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::codec::{Reader, Writer};
use base::id::FileId;
use base::limits::NAME_BYTES_MAX;
use bytes::Bytes;

use crate::attributes::{Attributes, Kind, Node, View};
use crate::failure::FileError;
use crate::format::{Entry, Root};
use crate::inode::{Inode, State};
use crate::system::{FileSystem, SNAPSHOTS, SNAPSHOTS_NAME, corrupt};
use crate::tree::Start;

/// Names with equal 55-bit hash that a directory can hold. The hash is keyed: nobody can aim for more.
pub(crate) const COLLISIONS_MAX: u64 = 256;
/// Cookies below are the front ends': 0 is the start, 1 and 2 are `.` and `..`.
const COOKIE_MIN: u64 = COLLISIONS_MAX;

/// One entry of a listing.
#[derive(Clone, Debug)]
pub struct DirectoryEntry {
    /// Where to go on after it.
    pub cookie: u64,
    /// Its name.
    pub name: Bytes,
    /// The file.
    pub node: Node,
    /// The file's kind.
    pub kind: Kind,
}

/// The entries whose names share a hash.
pub(crate) struct Slots {
    first: u64,
    entries: BTreeMap<u64, Entry>,
}

impl Slots {
    pub(crate) fn find(&self, name: &[u8]) -> Option<(u64, &Entry)> {
        self.entries.iter().find(|(_, entry)| *entry.name == *name).map(|(cookie, entry)| (*cookie, entry))
    }

    /// No entry, in a directory that has none.
    pub(crate) fn none(first: u64) -> Slots {
        Slots { first, entries: BTreeMap::new() }
    }

    pub(crate) fn into_entries(self) -> impl Iterator<Item = Entry> {
        self.entries.into_values()
    }

    /// A cookie that no entry has.
    pub(crate) fn free(&self) -> Result<u64, FileError> {
        self.free_beside(|_| false)
    }

    /// The same, where some are taken by entries that are not there yet.
    pub(crate) fn free_beside(&self, is_taken: impl Fn(u64) -> bool) -> Result<u64, FileError> {
        let mut cookies = self.first..self.first + COLLISIONS_MAX;
        let free = cookies.find(|cookie| !self.entries.contains_key(cookie) && !is_taken(*cookie));
        free.ok_or(FileError::NoSpace)
    }
}

/// The first cookie of the names that share a hash, by one of theirs.
pub(crate) fn group_of(cookie: u64) -> u64 {
    cookie & !(COLLISIONS_MAX - 1)
}

pub(crate) fn check_name(name: &[u8]) -> Result<(), FileError> {
    match name {
        b"" => Err(FileError::NoEntry),
        b"." | b".." => Err(FileError::Exists),
        name if name.len() > NAME_BYTES_MAX => Err(FileError::NameTooLong),
        name if name.contains(&b'/') || name.contains(&0) => Err(FileError::Invalid("a slash or zero in a name")),
        _ => Ok(()),
    }
}

/// The state of a directory that still exists; what else it is, is an error.
pub(crate) fn expect_directory(state: &State) -> Result<(), FileError> {
    if state.attributes.kind != Kind::Directory {
        Err(FileError::NotDirectory)
    } else if state.is_gone || state.attributes.links == 0 {
        Err(FileError::NoEntry)
    } else {
        Ok(())
    }
}

impl FileSystem {
    /// The node and attributes of a name.
    ///
    /// # Errors
    /// `NoEntry`, `NotDirectory`, `NameTooLong`, or the store's.
    pub async fn lookup(&self, parent: Node, name: &[u8]) -> Result<(Node, Attributes), FileError> {
        self.counters.lookups.add(1);
        if name.len() > NAME_BYTES_MAX {
            return Err(FileError::NameTooLong);
        }
        if parent == Node::live(SNAPSHOTS) {
            let node = self.find_snapshot(name).ok_or(FileError::NoEntry)?;
            return Ok((node, self.attributes(node).await?));
        }
        if parent == Node::live(FileId::ROOT) && name == SNAPSHOTS_NAME {
            return Ok((Node::live(SNAPSHOTS), self.attributes(Node::live(SNAPSHOTS)).await?));
        }
        let directory = self.inode(parent).await?;
        if name == b"." || name == b".." {
            let node = if name == b"." { parent } else { self.parent(parent).await? };
            return Ok((node, self.attributes(node).await?));
        }
        let mut gone = None;
        loop {
            let slots = self.slots(&directory, name).await?;
            let (_, entry) = slots.find(name).ok_or(FileError::NoEntry)?;
            let node = Node { view: parent.view, file: entry.file };
            match self.attributes(node).await {
                // Of what a batch puts in its place between the two looks the name never was free.
                Err(FileError::NoEntry) if gone != Some(node) => gone = Some(node),
                attributes => {
                    let attributes = attributes?;
                    self.note_seen(parent, &[node]);
                    return Ok((node, attributes));
                }
            }
        }
    }

    /// Refuses a directory in a tree that was removed, whose turn has not come yet: as if it had (I-127).
    pub(crate) async fn refuse_removed(&self, directory: &Arc<Inode>) -> Result<(), FileError> {
        if self.removals.are_none() {
            return Ok(());
        }
        let (mut at, mut passed) = (directory.clone(), BTreeSet::new());
        // Parents that lead back are told by the check.
        while at.file != FileId::ROOT && passed.insert(at.file) {
            let parent = {
                let state = at.state.lock();
                expect_directory(&state)?;
                state.attributes.parent
            };
            at = self.live(parent).await?;
        }
        Ok(())
    }

    /// The entries that a name could be among. The caller holds the operation lock if it means to change them.
    pub(crate) async fn slots(&self, directory: &Arc<Inode>, name: &[u8]) -> Result<Slots, FileError> {
        self.slots_of(directory, *self.cookies(name).start()).await
    }

    /// The same of the names that share the hash to which this first cookie belongs.
    pub(crate) async fn slots_of(&self, directory: &Arc<Inode>, first: u64) -> Result<Slots, FileError> {
        let _use = self.grace.enter(directory.file.number);
        let last = first + (COLLISIONS_MAX - 1);
        let (tree, decided, version) = {
            let state = directory.state.lock();
            expect_directory(&state)?;
            if state.vacant == Some((first, state.version)) {
                return Ok(Slots::none(first));
            }
            (state.base.tree.clone(), state.decided_entries(first..=last), state.version)
        };
        let mut entries = BTreeMap::new();
        let _time = (tree != Root::Empty).then(|| self.platform.clock.timer(&self.counters.find));
        let (found, _) = self.trees.range(&tree, first..=last, Start::AtOrAbove, usize::MAX).await?;
        for (cookie, bytes) in found {
            entries.insert(cookie, decode_entry(directory, &bytes)?);
        }
        for (cookie, entry) in decided {
            match entry {
                Some(entry) => entries.insert(cookie, entry),
                None => entries.remove(&cookie),
            };
        }
        if entries.is_empty() {
            let mut state = directory.state.lock();
            if state.base.tree == tree {
                state.vacant = Some((first, version));
            }
        }
        Ok(Slots { first, entries })
    }

    /// Where an entry of a name that is not there yet goes. The caller holds the operation lock.
    pub(crate) async fn free_cookie(&self, directory: &Arc<Inode>, name: &[u8]) -> Result<u64, FileError> {
        let slots = self.slots(directory, name).await?;
        if slots.find(name).is_some() { Err(FileError::Exists) } else { slots.free() }
    }

    /// The cookies that an entry of this name may have.
    pub(crate) fn cookies(&self, name: &[u8]) -> std::ops::RangeInclusive<u64> {
        let hash = self.store.key().name_hash(name) >> 9 << 8;
        let first = hash.max(COOKIE_MIN);
        first..=first + (COLLISIONS_MAX - 1)
    }

    /// Entries after the cookie `after` (0: from the start), about `limit` of them; none: the end. Without `.` and `..`.
    ///
    /// # Errors
    /// `NotDirectory`, `NoEntry`, or the store's.
    pub async fn read_directory(&self, node: Node, after: u64, limit: usize) -> Result<Vec<DirectoryEntry>, FileError> {
        if node == Node::live(SNAPSHOTS) {
            return Ok(self.list_snapshots(after));
        }
        let directory = self.inode(node).await?;
        if after < COOKIE_MIN {
            self.walk_ahead(node, &directory);
        }
        let mut after = after;
        loop {
            let (found, end) = self.list_range(&directory, after, limit.max(1)).await?;
            if !found.is_empty() || end == u64::MAX {
                let entry = |(cookie, entry): (u64, Entry)| DirectoryEntry {
                    cookie,
                    name: Bytes::from(entry.name),
                    node: Node { view: node.view, file: entry.file },
                    kind: entry.kind,
                };
                return Ok(found.into_iter().map(entry).collect());
            }
            after = end;
        }
    }

    /// Brings the inodes of listed entries into memory together, for whoever asks for their attributes next. Files of one directory
    /// are neighbours in the catalog (`ID_RUN`), so this is much cheaper than one after the other.
    pub async fn load_listed(&self, directory: Node, listed: &[Node]) {
        self.load_together(listed).await;
        self.note_seen(directory, listed);
    }

    /// The same for who does not list: of nodes of one view.
    pub async fn load_together(&self, nodes: &[Node]) {
        let Some(first) = nodes.first() else { return };
        let files: Vec<FileId> = nodes.iter().filter(|node| node.view == first.view).map(|node| node.file).collect();
        self.load_neighbours(first.view, &files).await;
    }

    /// Notes where files were found: whoever reads some of a directory may want the others.
    fn note_seen(&self, directory: Node, found: &[Node]) {
        if !self.siblings.is_on() {
            return;
        }
        for inode in found.iter().filter_map(|node| self.table.find(*node)) {
            inode.seen_in.store(directory.file.number, Ordering::Relaxed);
        }
    }

    /// Entries in `(after, end]`, in order, and that end, which is `u64::MAX` when nothing follows.
    pub(crate) async fn list_range(
        &self,
        directory: &Arc<Inode>,
        after: u64,
        limit: usize,
    ) -> Result<(Vec<(u64, Entry)>, u64), FileError> {
        self.list_past(directory, after, limit).await.map_err(|(error, _)| error)
    }

    /// The same; with an error comes where to go on behind what cannot be read.
    pub(crate) async fn list_past(
        &self,
        directory: &Arc<Inode>,
        after: u64,
        limit: usize,
    ) -> Result<(Vec<(u64, Entry)>, u64), (FileError, u64)> {
        // No entry of ours has the last cookie, but one in a damaged tree may: it is not listed for ever.
        let Some(first) = after.checked_add(1) else { return Ok((Vec::new(), u64::MAX)) };
        let _use = self.grace.enter(directory.file.number);
        // Tree and decisions of one moment: a commit in between moves entries from one to the other.
        let (tree, decided, mut end) = {
            let state = directory.state.lock();
            state.expect_there().map_err(|error| (error, u64::MAX))?;
            if state.attributes.kind != Kind::Directory {
                return Err((FileError::NotDirectory, u64::MAX));
            }
            let mut decided = BTreeMap::new();
            let mut end = u64::MAX;
            let frozen = state.frozen.iter().map(|frozen| &frozen.layer.entries);
            for entries in frozen.chain(std::iter::once(&state.active.entries)) {
                let mut after_cookie = entries.range(first..);
                for (cookie, entry) in after_cookie.by_ref().take(limit) {
                    decided.insert(*cookie, entry.clone());
                }
                if let Some((next, _)) = after_cookie.next() {
                    end = end.min(next - 1);
                }
            }
            (state.base.tree.clone(), decided, end)
        };
        let before = |next: Option<u64>| next.map_or(u64::MAX, |next| next - 1);
        let scanned = self.trees.scan_past(&tree, first, limit).await;
        let (found, next) = scanned.map_err(|gap| (gap.error.into(), before(gap.next)))?;
        end = end.min(before(next));
        let mut entries = Vec::with_capacity(found.len() + decided.len());
        let mut decided = decided.into_iter().take_while(|(cookie, _)| *cookie <= end).peekable();
        let mut decide = |entries: &mut Vec<(u64, Entry)>, before: u64| {
            while let Some((cookie, entry)) = decided.next_if(|(cookie, _)| *cookie <= before) {
                entries.extend(entry.map(|entry| (cookie, entry)));
                if cookie == before {
                    return true;
                }
            }
            false
        };
        for (cookie, bytes) in found.into_iter().take_while(|(cookie, _)| *cookie <= end) {
            if !decide(&mut entries, cookie) {
                entries.push((cookie, decode_entry(directory, &bytes).map_err(|error| (error, u64::MAX))?));
            }
        }
        decide(&mut entries, end);
        Ok((entries, end))
    }

    pub(crate) fn list_snapshots(&self, after: u64) -> Vec<DirectoryEntry> {
        let snapshots = self.snapshots.lock();
        let listed = snapshots.iter().map(|(view, snapshot)| (COOKIE_MIN + u64::from(*view), *view, snapshot));
        listed
            .filter(|(cookie, _, _)| *cookie > after)
            .map(|(cookie, view, snapshot)| DirectoryEntry {
                cookie,
                name: Bytes::copy_from_slice(snapshot.name.as_bytes()),
                node: Node { view: View(view), file: snapshot.root },
                kind: Kind::Directory,
            })
            .collect()
    }
}

/// An entry as a directory of branch `home` has it.
pub(crate) fn encode_entry(entry: &Entry, home: u32) -> Vec<u8> {
    let mut writer = Writer::with_capacity(16 + entry.name.len());
    entry.encode(home, &mut writer);
    writer.into_bytes()
}

fn decode_entry(directory: &Arc<Inode>, bytes: &[u8]) -> Result<Entry, FileError> {
    let wrong = |error| corrupt("directory entry", format!("directory {}", directory.file), error);
    Entry::decode(directory.file.branch, &mut Reader::new(bytes)).map_err(wrong)
}
