//! Repair: trees that say one consistent thing again, from what can be read of them.
//!
//! Nobody uses the file system meanwhile. A survey reads every inode and every entry that can be read; then the nodes that differ are
//! written, and one superblock switches to them. A crash leaves the trees of before or those of after.
//!
//! I-100 Content is never made up: a file whose extents or chunks are lost keeps them, and reads as an error.
//! I-101 What only a part of the trees can tell (names, inodes) is given up only where somebody said so. A disk that gives no answer is
//!       no loss: then nothing is given up at all.
//! I-102 A file that has links and no name that leads to it is in `/lost+found`, under its number.
//!
//! Not here: what is wrong (`check`), packs, index and journal (`store`).

use std::collections::btree_map::Entry as MapEntry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::codec::Reader;
use base::id::{FileId, Version};
use bytes::Bytes;
use store::{Class, StoreError};

use crate::attributes::{Attributes, Kind, View};
use crate::directory::encode_entry;
use crate::failure::{FileError, is_loss};
use crate::format::{Base, Entry, INLINE_BYTES_MAX, InodeValue, Root, Roots, XattrPlace, decode_extent, decode_xattrs};
use crate::system::FileSystem;
use crate::tree::Edits;

/// The directory for files that lost their names.
const LOST_FOUND: &[u8] = b"lost+found";
/// Entries that go into a tree in one step while it is written again.
const STEP_ENTRIES: usize = 4096;

/// An inode, as far as names need it.
struct Known {
    kind: Kind,
    links: u32,
    parent: FileId,
    size: u64,
    allocated: u64,
    /// What its extents come to, if all of them can be read.
    covered: Option<u64>,
    /// Its extended attributes cannot be read.
    lost_xattrs: bool,
}

/// The place of a name.
#[derive(Clone)]
struct Place {
    directory: FileId,
    cookie: u64,
    name: Box<[u8]>,
}

/// What the trees should say.
#[derive(Default)]
struct Survey {
    known: BTreeMap<FileId, Known>,
    /// Inodes that cannot be read: single ones, and whether there are stretches of them.
    undecodable: Vec<FileId>,
    catalog_has_gaps: bool,
    /// Directories that are written again without what cannot be read.
    gaps: BTreeSet<FileId>,
    /// Changes of directories.
    edits: BTreeMap<FileId, Edits>,
    /// Entries that each directory has in the end.
    counts: BTreeMap<FileId, u64>,
    /// Names of files that are no directories: how many.
    names: BTreeMap<FileId, u32>,
    /// Names of directories.
    places: BTreeMap<FileId, Vec<Place>>,
    /// Something that is no directory is called as the directory of those without names should be.
    is_name_taken: bool,
    /// In words.
    done: Vec<String>,
}

impl FileSystem {
    /// Writes the trees again as what can be read of them says; with `accepts_loss` without what cannot be read. Tells in words what
    /// was changed. Nobody may use the file system meanwhile.
    ///
    /// # Errors
    /// The store's; the trees are as before then.
    pub async fn repair_files(&self, accepts_loss: bool) -> Result<Vec<String>, FileError> {
        // Before `commit`, as a pass of reclaim takes them.
        let _no_reclaim = self.reclaiming.lock().await;
        let (_commit, old) = loop {
            self.sync_all().await?;
            self.commit().await?;
            let commit = self.commit.lock().await;
            if self.touched.lock().is_empty() {
                break (commit, self.roots.lock().clone());
            }
        };
        let mut survey = Survey::default();
        self.survey_catalog(&old.catalog, &mut survey).await?;
        self.survey_directories(&old.catalog, accepts_loss, &mut survey).await?;
        let is_whole = !survey.catalog_has_gaps && survey.undecodable.is_empty() && survey.gaps.is_empty();
        let mut inodes: BTreeMap<FileId, Option<InodeValue>> = BTreeMap::new();
        if is_whole || accepts_loss {
            self.place_all(&old.catalog, &mut survey, &mut inodes).await?;
        }
        let judges_names = is_whole || accepts_loss;
        self.set_right(&old.catalog, judges_names, accepts_loss, &mut survey, &mut inodes).await?;
        let roots = self.write_repaired(&old, accepts_loss, judges_names, &survey, inodes).await?;
        if roots != *old {
            self.store.commit(&roots.encode(), self.store.last_logged()).await?;
            *self.roots.lock() = Arc::new(roots);
            self.table.remove_view(View::LIVE);
        }
        drop(_commit);
        if accepts_loss {
            self.drop_lost_snapshots(&mut survey).await?;
        }
        Ok(survey.done)
    }

    async fn survey_catalog(&self, catalog: &Root, survey: &mut Survey) -> Result<(), FileError> {
        let mut from = Some(0);
        while let Some(at) = from {
            let (inodes, next) = match self.trees.scan_past(catalog, at, 256).await {
                Ok(scanned) => scanned,
                Err(gap) => {
                    survey.catalog_has_gaps = true;
                    from = lost(gap.error).map(|()| gap.next)?;
                    continue;
                }
            };
            for (file, bytes) in inodes {
                let file = FileId(file);
                let Ok(InodeValue { attributes, base, .. }) = InodeValue::decode(file, &bytes) else {
                    survey.undecodable.push(file);
                    continue;
                };
                let Attributes { kind, links, parent, size, allocated, .. } = attributes;
                let covered = if kind == Kind::Regular { self.covered(&base.tree).await? } else { None };
                let lost_xattrs = self.has_lost_xattrs(&base.xattrs).await?;
                survey.known.insert(file, Known { kind, links, parent, size, allocated, covered, lost_xattrs });
            }
            from = next;
        }
        Ok(())
    }

    /// The bytes that the extents of a tree cover; `None` if not all of them can be read.
    async fn covered(&self, tree: &Root) -> Result<Option<u64>, FileError> {
        let (mut covered, mut from) = (0, Some(0));
        while let Some(at) = from {
            let (extents, next) = match self.trees.scan(tree, at, 1024).await {
                Ok(scanned) => scanned,
                Err(error) => return Ok(lost(error).map(|()| None)?),
            };
            for (_, bytes) in extents {
                let Ok((length, _)) = decode_extent(&mut Reader::new(&bytes)) else { return Ok(None) };
                covered += length;
            }
            from = next;
        }
        Ok(Some(covered))
    }

    async fn has_lost_xattrs(&self, xattrs: &XattrPlace) -> Result<bool, FileError> {
        let XattrPlace::Chunk(address) = xattrs else { return Ok(false) };
        match self.store.get(Class::Metadata, address).await {
            Ok(bytes) => Ok(decode_xattrs(&bytes).is_err()),
            Err(error) => Ok(lost(error).map(|()| true)?),
        }
    }

    /// Looks at every name.
    async fn survey_directories(
        &self,
        catalog: &Root,
        accepts_loss: bool,
        survey: &mut Survey,
    ) -> Result<(), FileError> {
        let directories: Vec<FileId> =
            survey.known.iter().filter(|(_, known)| known.kind == Kind::Directory).map(|(file, _)| *file).collect();
        for directory in directories {
            let value = self.load(catalog, directory).await?.ok_or(FileError::Stale)?;
            let mut from = Some(0);
            while let Some(at) = from {
                let (entries, next) = match self.trees.scan_past(&value.base.tree, at, 1024).await {
                    Ok(scanned) => scanned,
                    Err(gap) => {
                        survey.gaps.insert(directory);
                        from = lost(gap.error).map(|()| gap.next)?;
                        continue;
                    }
                };
                for (cookie, bytes) in entries {
                    self.survey_entry((directory, &value.base.tree), cookie, &bytes, accepts_loss, survey).await?;
                }
                from = next;
            }
        }
        Ok(())
    }

    async fn survey_entry(
        &self,
        (directory, tree): (FileId, &Root),
        cookie: u64,
        bytes: &Bytes,
        accepts_loss: bool,
        survey: &mut Survey,
    ) -> Result<(), FileError> {
        *survey.counts.entry(directory).or_default() += 1;
        let Ok(entry) = Entry::decode(&mut Reader::new(bytes)) else {
            if accepts_loss {
                survey.remove(directory, cookie, "<a name that cannot be read>", "");
            } else {
                // Nobody knows whose name it was.
                survey.gaps.insert(directory);
            }
            return Ok(());
        };
        let name = String::from_utf8_lossy(&entry.name).into_owned();
        let kind = survey.known.get(&entry.file).map(|known| known.kind);
        let Some(kind) = kind.filter(|_| entry.file != FileId::ROOT) else {
            if accepts_loss {
                survey.remove(directory, cookie, &name, &format!(": its file {} is lost", entry.file));
            }
            return Ok(());
        };
        survey.is_name_taken |= directory == FileId::ROOT && &*entry.name == LOST_FOUND && kind != Kind::Directory;
        let mut place = Place { directory, cookie, name: entry.name.clone() };
        if !self.cookies(&entry.name).contains(&cookie) || entry.kind != kind {
            survey.edits.entry(directory).or_default().insert(cookie, None);
            place.cookie = self.free_cookie(directory, tree, &entry.name, survey).await?;
            let edits = survey.edits.entry(directory).or_default();
            edits.insert(place.cookie, Some(encode_entry(&Entry { kind, ..entry.clone() })));
            survey.done.push(format!("the name {name} in directory {directory} is where it belongs again"));
        }
        if kind == Kind::Directory {
            survey.places.entry(entry.file).or_default().push(place);
        } else {
            *survey.names.entry(entry.file).or_default() += 1;
        }
        Ok(())
    }

    /// A cookie for a name in a directory.
    async fn free_cookie(
        &self,
        directory: FileId,
        tree: &Root,
        name: &[u8],
        survey: &Survey,
    ) -> Result<u64, FileError> {
        for cookie in self.cookies(name) {
            let is_free = match survey.edits.get(&directory).and_then(|edits| edits.get(&cookie)) {
                Some(edit) => edit.is_none(),
                None => match self.trees.get(tree, cookie).await {
                    Ok(entry) => entry.is_none(),
                    Err(error) => lost(error).map(|()| true)?,
                },
            };
            if is_free {
                return Ok(cookie);
            }
        }
        Err(FileError::NoSpace)
    }

    /// Sees to it that every file is reached from the root (I-102), and every directory by one name.
    async fn place_all(
        &self,
        catalog: &Root,
        survey: &mut Survey,
        inodes: &mut BTreeMap<FileId, Option<InodeValue>>,
    ) -> Result<(), FileError> {
        if let MapEntry::Vacant(vacant) = survey.known.entry(FileId::ROOT) {
            vacant.insert(Known::directory(FileId::ROOT));
            inodes.insert(FileId::ROOT, Some(self.new_directory(FileId::ROOT, FileId::ROOT)));
            survey.done.push("the root directory is made anew".to_owned());
        }
        survey.choose_places();
        let mut homeless = survey.unreachable_directories();
        let nameless = survey.known.iter().filter(|(file, known)| {
            known.kind != Kind::Directory && known.links > 0 && !survey.names.contains_key(file)
        });
        homeless.extend(nameless.map(|(file, _)| *file));
        if homeless.is_empty() {
            return Ok(());
        }
        let home = match survey.lost_found() {
            Some(home) => home,
            None => {
                let name = survey.lost_found_name();
                let counter = self.next_counter.fetch_add(1, Ordering::SeqCst);
                let home = FileId::new(self.store.node(), counter).expect("2^48 files need centuries");
                survey.known.insert(home, Known::directory(FileId::ROOT));
                inodes.insert(home, Some(self.new_directory(home, FileId::ROOT)));
                self.attach(catalog, survey, FileId::ROOT, home, name).await?;
                home
            }
        };
        for file in homeless {
            self.attach(catalog, survey, home, file, file.0.to_string().as_bytes()).await?;
            survey.done.push(format!(
                "file {file} had lost its name: /{}/{}",
                String::from_utf8_lossy(survey.lost_found_name()),
                file.0
            ));
        }
        Ok(())
    }

    /// Gives a file a name.
    async fn attach(
        &self,
        catalog: &Root,
        survey: &mut Survey,
        directory: FileId,
        file: FileId,
        name: &[u8],
    ) -> Result<(), FileError> {
        let kind = survey.known[&file].kind;
        let tree = match self.load(catalog, directory).await {
            Ok(value) => value.map_or(Root::Empty, |value| value.base.tree),
            Err(FileError::Store(error)) => lost(error).map(|()| Root::Empty)?,
            Err(error) => return Err(error),
        };
        let cookie = self.free_cookie(directory, &tree, name, survey).await?;
        let edits = survey.edits.entry(directory).or_default();
        edits.insert(cookie, Some(encode_entry(&Entry { file, kind, name: name.into() })));
        *survey.counts.entry(directory).or_default() += 1;
        if kind == Kind::Directory {
            survey.places.insert(file, vec![Place { directory, cookie, name: name.into() }]);
        } else {
            survey.names.insert(file, 1);
        }
        Ok(())
    }

    fn new_directory(&self, file: FileId, parent: FileId) -> InodeValue {
        let mode = if file == FileId::ROOT { 0o755 } else { 0o700 };
        let attributes = Attributes::empty_directory(file, parent, mode, (0, 0), self.now());
        let base =
            Base { tree: Root::Empty, target: Bytes::new(), xattrs: XattrPlace::None, allocated: 0, is_orphan: false };
        InodeValue { attributes, version: Version::default(), base }
    }

    /// Makes inodes say what names and extents say.
    async fn set_right(
        &self,
        catalog: &Root,
        judges_names: bool,
        accepts_loss: bool,
        survey: &mut Survey,
        inodes: &mut BTreeMap<FileId, Option<InodeValue>>,
    ) -> Result<(), FileError> {
        let mut subdirectories: BTreeMap<FileId, u32> = BTreeMap::new();
        for place in survey.places.values().flatten() {
            *subdirectories.entry(place.directory).or_default() += 1;
        }
        let mut count = 0;
        for (file, known) in &survey.known {
            let is_directory = known.kind == Kind::Directory;
            let place = survey.places.get(file).and_then(|places| places.first());
            let names = survey.names.get(file).copied().unwrap_or(0);
            let subdirectories = subdirectories.get(file).copied().unwrap_or(0);
            let (mut links, mut parent, mut size) = (known.links, known.parent, known.size);
            if judges_names {
                let is_named = place.is_some() || *file == FileId::ROOT;
                links = if is_named { 2 + subdirectories } else { names };
                parent = if *file == FileId::ROOT { *file } else { place.map_or(parent, |place| place.directory) };
            }
            if is_directory && (judges_names || !survey.gaps.contains(file)) {
                size = survey.counts.get(file).copied().unwrap_or(0);
            }
            if judges_names && links == 0 {
                // It was unlinked, and nobody uses it.
                inodes.insert(*file, None);
                continue;
            }
            let allocated = known.covered.unwrap_or(known.allocated);
            let drops_xattrs = known.lost_xattrs && accepts_loss;
            let before = (known.links, known.parent, known.size, known.allocated);
            let is_edited = survey.edits.contains_key(file) || survey.gaps.contains(file);
            if before == (links, parent, size, allocated) && !drops_xattrs && !is_edited && !inodes.contains_key(file) {
                continue;
            }
            let value = match inodes.remove(file).flatten() {
                Some(value) => Some(value),
                None => self.load(catalog, *file).await?,
            };
            let Some(mut value) = value else { continue };
            let attributes = &mut value.attributes;
            (attributes.links, attributes.parent, attributes.size) = (links, parent, size);
            (attributes.allocated, value.base.allocated) = (allocated, allocated);
            if drops_xattrs {
                value.base.xattrs = XattrPlace::None;
                survey.done.push(format!("the extended attributes of file {file} are lost"));
            }
            inodes.insert(*file, Some(value));
            count += 1;
        }
        if count > 0 {
            survey.done.push(format!("{count} inodes say what names and extents say"));
        }
        Ok(())
    }

    /// Writes directories, then the catalog; nobody names them yet.
    async fn write_repaired(
        &self,
        old: &Roots,
        accepts_loss: bool,
        judges_names: bool,
        survey: &Survey,
        mut inodes: BTreeMap<FileId, Option<InodeValue>>,
    ) -> Result<Roots, FileError> {
        for (file, value) in &mut inodes {
            let Some(value) = value else { continue };
            if survey.gaps.contains(file) && accepts_loss {
                value.base.tree = self.without_gaps(&value.base.tree).await?;
            }
            if let Some(edits) = survey.edits.get(file) {
                value.base.tree = self.trees.update(&value.base.tree, edits.clone(), INLINE_BYTES_MAX).await?;
            }
        }
        let has_gaps = survey.catalog_has_gaps && accepts_loss;
        let catalog = if has_gaps { self.without_gaps(&old.catalog).await? } else { old.catalog.clone() };
        let mut edits: Edits =
            inodes.iter().map(|(file, value)| (file.0, value.as_ref().map(InodeValue::encode))).collect();
        if accepts_loss {
            edits.extend(survey.undecodable.iter().map(|file| (file.0, None)));
        }
        let catalog = self.trees.update(&catalog, edits, INLINE_BYTES_MAX).await?;
        let own = survey.known.keys().filter(|file| file.node() == self.store.node());
        let counter = own.map(|file| file.counter() + 1).max().unwrap_or(0);
        self.next_counter.fetch_max(counter, Ordering::SeqCst);
        Ok(Roots {
            catalog,
            orphans: if judges_names { Root::Empty } else { old.orphans.clone() },
            next_counter: self.next_counter.load(Ordering::SeqCst).max(old.next_counter),
            ..old.clone()
        })
    }

    /// The same tree of what can be read.
    async fn without_gaps(&self, tree: &Root) -> Result<Root, FileError> {
        let (mut kept, mut from) = (Root::Empty, Some(0));
        while let Some(at) = from {
            match self.trees.scan_past(tree, at, STEP_ENTRIES).await {
                Ok((entries, next)) => {
                    let edits = entries.into_iter().map(|(key, value)| (key, Some(value.to_vec()))).collect();
                    kept = self.trees.update(&kept, edits, INLINE_BYTES_MAX).await?;
                    from = next;
                }
                Err(gap) => from = lost(gap.error).map(|()| gap.next)?,
            }
        }
        Ok(kept)
    }

    /// Removes the snapshots of which nothing can be read.
    async fn drop_lost_snapshots(&self, survey: &mut Survey) -> Result<(), FileError> {
        let snapshots = self.snapshots.lock().clone();
        for snapshot in snapshots.values() {
            let (mut from, mut has_gaps, mut has_files) = (Some(0), false, false);
            while let Some(at) = from.filter(|_| !has_files) {
                match self.trees.scan_past(&snapshot.catalog, at, 1).await {
                    Ok((files, next)) => (has_files, from) = (!files.is_empty(), next),
                    Err(gap) => (has_gaps, from) = (true, lost(gap.error).map(|()| gap.next)?),
                }
            }
            if has_gaps && !has_files {
                self.delete_snapshot(&snapshot.name).await?;
                survey.done.push(format!("snapshot {} is gone: nothing of it could be read", snapshot.name));
            }
        }
        Ok(())
    }
}

impl Known {
    fn directory(parent: FileId) -> Known {
        Known { kind: Kind::Directory, links: 2, parent, size: 0, allocated: 0, covered: None, lost_xattrs: false }
    }
}

impl Survey {
    fn lost_found_name(&self) -> &'static [u8] {
        if self.is_name_taken { b"lost+found.files" } else { LOST_FOUND }
    }

    fn lost_found(&self) -> Option<FileId> {
        let name = self.lost_found_name();
        let is_it =
            |places: &[Place]| places.iter().any(|place| place.directory == FileId::ROOT && &*place.name == name);
        self.places.iter().find(|(_, places)| is_it(places)).map(|(file, _)| *file)
    }

    /// Removes a name.
    fn remove(&mut self, directory: FileId, cookie: u64, name: &str, why: &str) {
        self.edits.entry(directory).or_default().insert(cookie, None);
        *self.counts.entry(directory).or_default() -= 1;
        self.done.push(format!("the name {name} in directory {directory} is removed{why}"));
    }

    /// Of several names of a directory the one that it says itself stays, or else the first.
    fn choose_places(&mut self) {
        for (file, mut places) in std::mem::take(&mut self.places) {
            let parent = self.known[&file].parent;
            let own = places.iter().position(|place| place.directory == parent).unwrap_or(0);
            let chosen = places.swap_remove(own);
            for other in places {
                let name = String::from_utf8_lossy(&other.name).into_owned();
                self.remove(other.directory, other.cookie, &name, ": a directory has one name");
            }
            self.places.insert(file, vec![chosen]);
        }
    }

    /// Directories that no name leads to; of a ring of directories the first, which loses its name.
    fn unreachable_directories(&mut self) -> Vec<FileId> {
        // One that was removed while somebody used it has no links, and ends here.
        let wants_name = |(file, known): &(&FileId, &Known)| {
            known.kind == Kind::Directory && (known.links > 0 || self.places.contains_key(file))
        };
        let directories: Vec<FileId> = self.known.iter().filter(wants_name).map(|(file, _)| *file).collect();
        let mut reached = BTreeSet::from([FileId::ROOT]);
        let mut homeless = Vec::new();
        for directory in directories {
            let (mut at, mut way) = (directory, BTreeSet::new());
            while !reached.contains(&at) && way.insert(at) {
                match self.places.get(&at).and_then(|places| places.first()) {
                    Some(place) => at = place.directory,
                    None => break,
                }
            }
            if !reached.contains(&at) {
                // The end of the way has no name, or the way leads back to it.
                if let Some(place) = self.places.remove(&at).and_then(|mut places| places.pop()) {
                    let name = String::from_utf8_lossy(&place.name).into_owned();
                    self.remove(place.directory, place.cookie, &name, ": it lay in itself");
                }
                homeless.push(at);
            }
            reached.extend(way);
        }
        homeless
    }
}

fn lost(error: StoreError) -> Result<(), StoreError> {
    if is_loss(&error) { Ok(()) } else { Err(error) }
}
