//! Repair: trees that say one consistent thing again, from what can be read of them.
//!
//! Nobody uses the file system meanwhile. A survey reads every inode and every entry that can be read; then the nodes that differ are
//! written, and one superblock switches to them. A crash leaves the trees of before or those of after.
//!
//! I-100 Content is never made up: a file whose extents or chunks are lost keeps them, or has extents of a chunk that nobody has in
//!       their place, and reads as an error.
//! I-101 What only a part of the trees can tell (names, inodes) is given up only where somebody said so. A disk that gives no answer is
//!       no loss: then nothing is given up at all.
//! I-102 A file that has links and no name that leads to it is in `/lost+found`, under its number; one of a clone in `lost+found` of the
//!       directory that the clone is.
//!
//! Not here: what is wrong (`check`), packs, index and journal (`store`).

mod clones;
mod committable;
mod survey;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as MapEntry;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::codec::{Reader, Writer};
use base::id::{ChunkAddress, FileId, Version};
use base::limits::NAME_BYTES_MAX;
use bytes::Bytes;

use self::survey::{Known, Place, Survey};
use crate::attributes::{Attributes, Kind, View};
use crate::check::{LOST_BYTES_MAX, lost_xattrs};
use crate::directory::encode_entry;
use crate::extent::Extent;
use crate::failure::{FileError, lost};
use crate::format::{
    Base, Entry, FILES_MAX, INLINE_BYTES_MAX, InodeValue, Root, Roots, SnapshotValue, XattrPlace, encode_extent,
};
use crate::system::{FileSystem, untrue};
use crate::tree::Edits;

/// The directory for files that lost their names.
const LOST_FOUND: &[u8] = b"lost+found";
/// Entries that go into a tree in one step while it is written again.
const STEP_ENTRIES: usize = 4096;

impl FileSystem {
    /// Writes the trees again as what can be read of them says; with `accepts_loss` without what cannot be read. Tells in words what
    /// was changed. Nobody may use the file system meanwhile. `owner`: who gets a root directory that is made anew.
    ///
    /// # Errors
    /// The store's; the trees are as before then, or as a commit of what was recorded has left them: a disk that gives no answer is met
    /// before that, unless it answered once and does not again.
    pub async fn repair_files(&self, accepts_loss: bool, owner: (u32, u32)) -> Result<Vec<String>, FileError> {
        // F-4: also where everything that is looked at gives an answer, what is not found is not lost.
        self.refuse_degraded()?;
        // What was removed is not found again, as far as it can be read.
        self.removals.try_again();
        let _ = self.finish_removals().await;
        let _no_removal = self.removals.work.lock().await;
        // Before `commit`, as a pass of reclaim takes them.
        let _no_reclaim = self.without_passes().await;
        let (_commit, old) = loop {
            self.sync_all().await?;
            match self.commit_whole().await {
                Err(FileError::Store(error)) if accepts_loss => {
                    lost(error)?;
                    self.commit_without_gaps().await?;
                }
                committed => committed?,
            }
            let commit = self.commit.lock().await;
            if self.touched.lock().is_empty() {
                break (commit, self.roots.lock().clone());
            }
        };
        let since = self.store.moment();
        let mut survey = Survey::of(FileId::ROOT);
        if accepts_loss {
            survey.stuck = self.stuck_clones().await?;
        }
        self.survey_catalog(&old.catalog, &mut survey).await?;
        self.survey_directories(&old.catalog, accepts_loss, &mut survey).await?;
        let (inodes, judges_names) = self.judge(&old.catalog, (accepts_loss, owner), &mut survey).await?;
        let (list, snapshots) = self.repaired_list(&old.snapshots, accepts_loss, &mut survey).await?;
        let (branches, clones) = self.repaired_branches(&old.branches, (accepts_loss, owner), &mut survey).await?;
        let roots = self.write_repaired(&old, accepts_loss, judges_names, &survey, inodes).await?;
        let roots = Roots { snapshots: list, branches, ..roots };
        if roots != *old {
            self.store.commit(since, &roots.encode(), self.store.last_logged()).await?;
            let changed = clones.keys().copied().chain([0]).collect();
            for (branch, _) in clones.iter().filter(|(_, value)| value.is_none()) {
                self.removals.forget(*branch);
            }
            let gone = self.replace_branches(clones);
            *self.snapshots.lock() = snapshots;
            *self.roots.lock() = Arc::new(roots);
            self.end_branches(&gone);
            self.table.remove_branches(&changed);
        }
        drop(_commit);
        if accepts_loss {
            self.drop_lost_snapshots(&mut survey).await?;
        }
        Ok(survey.done.into_words())
    }

    /// The inodes that should differ, and whether names were judged: not where one may be in what cannot be read, unless that is given up.
    async fn judge(
        &self,
        catalog: &Root,
        (accepts_loss, owner): (bool, (u32, u32)),
        survey: &mut Survey,
    ) -> Result<(BTreeMap<FileId, Option<InodeValue>>, bool), FileError> {
        let has_all_inodes = !survey.catalog_has_gaps && survey.undecodable.is_empty();
        let is_whole = has_all_inodes && survey.gaps.is_empty() && survey.known.contains_key(&survey.root);
        let mut inodes = BTreeMap::new();
        let judges_names = is_whole || accepts_loss;
        if judges_names {
            self.place_all(catalog, (accepts_loss, owner), survey, &mut inodes).await?;
        }
        self.set_right(catalog, judges_names, accepts_loss, survey, &mut inodes).await?;
        Ok((inodes, judges_names))
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
                let file = survey.root.beside(file);
                // The directory for what has no name gets a number that is nobody's, whatever the roots say.
                if file.node() == self.store.node() && file.counter() < FILES_MAX {
                    self.next_counter.fetch_max(file.counter() + 1, Ordering::SeqCst);
                }
                let Ok(InodeValue { attributes, base, .. }) = InodeValue::decode(file, &bytes) else {
                    survey.undecodable.push(file);
                    continue;
                };
                let Attributes { kind, links, parent, size, allocated, .. } = attributes;
                let covered = match kind {
                    Kind::Regular => self.survey_content(file, &base.tree, size, survey).await?,
                    _ => None,
                };
                let lost_xattrs = match lost_xattrs(&self.store, &base.xattrs).await {
                    Some(error) => lost(error).map(|()| true)?,
                    None => false,
                };
                survey.known.insert(file, Known { kind, links, parent, size, allocated, covered, lost_xattrs });
            }
            from = next;
        }
        Ok(())
    }

    /// The bytes that the extents of a file cover; `None` if not all of them can be read.
    async fn survey_content(
        &self,
        file: FileId,
        tree: &Root,
        size: u64,
        survey: &mut Survey,
    ) -> Result<Option<u64>, FileError> {
        let (mut covered, mut lost_bytes, mut is_whole, mut from) = (0_u64, 0_u64, true, Some(0));
        while let Some(at) = from {
            let (parts, next) = self.scan_content(tree, at, size).await;
            for part in parts {
                match part {
                    Ok((_, length, _)) => covered = covered.saturating_add(length),
                    Err(part) => {
                        lost_bytes = lost_bytes.saturating_add(part.bytes());
                        is_whole = false;
                        lost(part.error)?;
                    }
                }
            }
            from = next;
        }
        if !is_whole && lost_bytes <= LOST_BYTES_MAX {
            survey.lost_content.insert(file);
        }
        Ok(is_whole.then_some(covered))
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
            self.survey_directory(catalog, directory, accepts_loss, survey).await?;
        }
        Ok(())
    }

    async fn survey_directory(
        &self,
        catalog: &Root,
        directory: FileId,
        accepts_loss: bool,
        survey: &mut Survey,
    ) -> Result<(), FileError> {
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
        let Ok(entry) = Entry::decode(directory.branch, &mut Reader::new(bytes)) else {
            if accepts_loss {
                survey.remove(directory, cookie, "<a name that cannot be read>", "");
            } else {
                // Nobody knows whose name it was.
                survey.gaps.insert(directory);
            }
            return Ok(());
        };
        let name = String::from_utf8_lossy(&entry.name).into_owned();
        let found = if entry.file.branch == directory.branch {
            survey.known.get(&entry.file).filter(|_| entry.file != survey.root).map(|known| known.kind)
        } else {
            // A clone is in a catalog of its own.
            self.is_top_in(entry.file, directory).then_some(Kind::Directory)
        };
        if found.is_none() && accepts_loss {
            survey.remove(directory, cookie, &name, &format!(": its file {} is lost", entry.file));
            return Ok(());
        }
        let kind = found.unwrap_or(entry.kind);
        let mut place = Place { directory, cookie, name: entry.name.clone() };
        let is_second = survey.namesakes.is_second(directory, cookie, &entry.name);
        if is_second || !self.cookies(&entry.name).contains(&cookie) || entry.kind != kind {
            survey.edits.entry(directory).or_default().insert(cookie, None);
            (place.cookie, place.name) = self.free_place(directory, tree, &entry.name, survey).await?;
            let right = Entry { file: entry.file, kind, name: place.name.clone() };
            survey
                .edits
                .entry(directory)
                .or_default()
                .insert(place.cookie, Some(encode_entry(&right, directory.branch)));
            let now = String::from_utf8_lossy(&place.name).into_owned();
            survey.done.push(format!("the name {name} in directory {directory} is where it belongs again, as {now}"));
        }
        survey.met.extend(found.map(|_| entry.file));
        match found {
            Some(Kind::Directory) => survey.places.entry(entry.file).or_default().push(place),
            Some(_) => *survey.names.entry(entry.file).or_default() += 1,
            None => {}
        }
        Ok(())
    }

    /// A place for a name in a directory. Where an entry has the name already, it gets a number (I-50).
    async fn free_place(
        &self,
        directory: FileId,
        tree: &Root,
        name: &[u8],
        survey: &mut Survey,
    ) -> Result<(u64, Box<[u8]>), FileError> {
        let wanted: (FileId, Box<[u8]>) = (directory, name.into());
        // Those below were taken when somebody looked: for many of one name they would be looked through again and again.
        let mut number = survey.numbers.get(&wanted).copied().unwrap_or(0);
        loop {
            let name = numbered(name, number);
            let namesakes = self.namesakes(directory, tree, &name, survey).await?;
            let is_taken = namesakes.values().flatten().any(|other| *other == name);
            let free = self.cookies(&name).find(|cookie| !namesakes.contains_key(cookie));
            number += 1;
            if let Some(cookie) = free.filter(|_| !is_taken) {
                survey.numbers.insert(wanted, number);
                return Ok((cookie, name));
            }
        }
    }

    /// What can be read of the entries that share the hash of a name: their names, if they can be decoded.
    async fn namesakes(
        &self,
        directory: FileId,
        tree: &Root,
        name: &[u8],
        survey: &Survey,
    ) -> Result<BTreeMap<u64, Option<Box<[u8]>>>, FileError> {
        let (first, last) = self.cookies(name).into_inner();
        let name_of =
            |bytes: &[u8]| Entry::decode(directory.branch, &mut Reader::new(bytes)).ok().map(|entry| entry.name);
        let (mut names, mut from) = (BTreeMap::new(), Some(first));
        while let Some(at) = from.filter(|at| *at <= last) {
            match self.trees.scan_past(tree, at, 1).await {
                Ok((entries, next)) => {
                    let entries = entries.into_iter().take_while(|(cookie, _)| *cookie <= last);
                    names.extend(entries.map(|(cookie, bytes)| (cookie, name_of(&bytes))));
                    from = next;
                }
                Err(gap) => from = lost(gap.error).map(|()| gap.next)?,
            }
        }
        for (cookie, edit) in survey.edits.get(&directory).into_iter().flat_map(|edits| edits.range(first..=last)) {
            match edit {
                Some(bytes) => names.insert(*cookie, name_of(bytes)),
                None => names.remove(cookie),
            };
        }
        Ok(names)
    }

    /// Sees to it that every file is reached from the root (I-102), and every directory by one name.
    async fn place_all(
        &self,
        catalog: &Root,
        (accepts_loss, owner): (bool, (u32, u32)),
        survey: &mut Survey,
        inodes: &mut BTreeMap<FileId, Option<InodeValue>>,
    ) -> Result<(), FileError> {
        let root = survey.root;
        if let MapEntry::Vacant(vacant) = survey.known.entry(root) {
            vacant.insert(Known::directory(root));
            inodes.insert(root, Some(self.new_directory(root, 0o755, owner)));
            survey.done.push("the root directory is made anew".to_owned());
        }
        survey.choose_places();
        let mut homeless = survey.take_unreachable();
        let nameless = survey.known.iter().filter(|(file, known)| {
            known.kind != Kind::Directory && known.links > 0 && !survey.names.contains_key(file)
        });
        homeless.extend(nameless.map(|(file, _)| *file));
        if root == FileId::ROOT {
            homeless.extend(self.nameless_clones(survey, accepts_loss).await?);
        }
        if homeless.is_empty() {
            return Ok(());
        }
        let (home, home_name) = match survey.lost_found() {
            Some(home) => (home, LOST_FOUND.into()),
            None => {
                let home = root.beside(self.new_files(1)?.number);
                survey.known.insert(home, Known::directory(root));
                // Nobody but them gets at what may have been private; and they must, also where they are not user 0.
                let owner = match inodes.get(&root) {
                    Some(_) => owner,
                    None => self.load(catalog, root).await?.map_or(owner, |root| {
                        let Attributes { uid, gid, .. } = root.attributes;
                        (uid, gid)
                    }),
                };
                inodes.insert(home, Some(self.new_directory(home, 0o700, owner)));
                (home, self.attach(catalog, survey, root, home, LOST_FOUND).await?)
            }
        };
        let home_name = String::from_utf8_lossy(&home_name).into_owned();
        for file in homeless {
            let name = self.attach(catalog, survey, home, file, file.number.to_string().as_bytes()).await?;
            let name = String::from_utf8_lossy(&name).into_owned();
            survey.done.push(format!("file {file} had lost its name: /{home_name}/{name}"));
        }
        Ok(())
    }

    /// Gives a file a name: this one, or this with a number.
    async fn attach(
        &self,
        catalog: &Root,
        survey: &mut Survey,
        directory: FileId,
        file: FileId,
        name: &[u8],
    ) -> Result<Box<[u8]>, FileError> {
        // A clone is a directory, and in a catalog of its own.
        let kind = survey.known.get(&file).map_or(Kind::Directory, |known| known.kind);
        let tree = match self.load(catalog, directory).await {
            Ok(value) => value.map_or(Root::Empty, |value| value.base.tree),
            Err(FileError::Store(error)) => lost(error).map(|()| Root::Empty)?,
            Err(error) => return Err(error),
        };
        let (cookie, name) = self.free_place(directory, &tree, name, survey).await?;
        let edits = survey.edits.entry(directory).or_default();
        edits.insert(cookie, Some(encode_entry(&Entry { file, kind, name: name.clone() }, directory.branch)));
        *survey.counts.entry(directory).or_default() += 1;
        if kind == Kind::Directory {
            survey.places.insert(file, vec![Place { directory, cookie, name: name.clone() }]);
        } else {
            survey.names.insert(file, 1);
        }
        Ok(name)
    }

    /// A directory in the root, or the root.
    fn new_directory(&self, file: FileId, mode: u32, owner: (u32, u32)) -> InodeValue {
        let attributes = Attributes::empty_directory(file, FileId::ROOT, mode, owner, self.now());
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
                let is_named = place.is_some() || *file == survey.root;
                links = if is_named { 2 + subdirectories } else { names };
                parent = match place {
                    _ if *file == FileId::ROOT => *file,
                    // The top of a clone has its name in another branch.
                    _ if *file == survey.root => parent,
                    place => place.map_or(parent, |place| place.directory),
                };
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
            let loses_content = survey.lost_content.contains(file) && accepts_loss;
            let before = (known.links, known.parent, known.size, known.allocated);
            let is_edited = survey.edits.contains_key(file) || survey.gaps.contains(file) || loses_content;
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
            if loses_content {
                survey
                    .done
                    .push(format!("what is lost of the content of file {file} is noted, and goes on to be an error"));
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
        inodes: BTreeMap<FileId, Option<InodeValue>>,
    ) -> Result<Roots, FileError> {
        let catalog = self.written_catalog(&old.catalog, accepts_loss, survey, inodes).await?;
        Ok(Roots {
            catalog,
            orphans: if judges_names { Root::Empty } else { old.orphans.clone() },
            next_counter: self.next_counter.load(Ordering::SeqCst).max(old.next_counter),
            ..old.clone()
        })
    }

    async fn written_catalog(
        &self,
        old: &Root,
        accepts_loss: bool,
        survey: &Survey,
        mut inodes: BTreeMap<FileId, Option<InodeValue>>,
    ) -> Result<Root, FileError> {
        for (file, value) in &mut inodes {
            let Some(value) = value else { continue };
            if survey.gaps.contains(file) && accepts_loss {
                value.base.tree = self.without_gaps(&value.base.tree).await?;
            }
            if survey.lost_content.contains(file) && accepts_loss {
                let (tree, size) = (&value.base.tree, value.attributes.size);
                let (tree, allocated) = self.with_lost_content(*file, tree, size).await?;
                (value.base.tree, value.base.allocated, value.attributes.allocated) = (tree, allocated, allocated);
            }
            if let Some(edits) = survey.edits.get(file) {
                value.base.tree = self.trees.update(&value.base.tree, edits.clone(), INLINE_BYTES_MAX).await?;
            }
        }
        let has_gaps = survey.catalog_has_gaps && accepts_loss;
        let catalog = if has_gaps { self.without_gaps(old).await? } else { old.clone() };
        let undecodable = survey.undecodable.iter().filter(|_| accepts_loss);
        let mut edits: Edits = undecodable.map(|file| (file.number, None)).collect();
        // Later: the root may be one of those, and is made anew.
        edits.extend(inodes.iter().map(|(file, value)| (file.number, value.as_ref().map(InodeValue::encode))));
        let catalog = self.trees.update(&catalog, edits, INLINE_BYTES_MAX).await?;
        let own = survey.known.keys().filter(|file| file.node() == self.store.node());
        let counter = own.map(|file| file.counter() + 1).max().unwrap_or(0);
        self.next_counter.fetch_max(counter, Ordering::SeqCst);
        Ok(catalog)
    }

    /// The list of snapshots, and what it says; without what cannot be read if that is accepted.
    async fn repaired_list(
        &self,
        list: &Root,
        accepts_loss: bool,
        survey: &mut Survey,
    ) -> Result<(Root, BTreeMap<u32, SnapshotValue>), FileError> {
        let (listed, gone) = self.scan_snapshots(list).await;
        if gone.is_empty() || !accepts_loss {
            return Ok((list.clone(), listed));
        }
        let count = gone.len();
        gone.into_iter().try_for_each(|(_, error)| lost(error))?;
        let edits = listed.iter().map(|(view, value)| (u64::from(*view), Some(value.encode()))).collect();
        survey.done.push(format!(
            "the list of snapshots is written again with the {} that can be read; {count} parts of it are lost",
            listed.len()
        ));
        Ok((self.trees.update(&Root::Empty, edits, INLINE_BYTES_MAX).await?, listed))
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

    /// The same extents, and the bytes that they cover; where they cannot be read the file needs a chunk that nobody has, and goes on to
    /// read as an error (I-100).
    async fn with_lost_content(&self, file: FileId, tree: &Root, size: u64) -> Result<(Root, u64), FileError> {
        let (mut kept, mut covered, mut lost_bytes, mut from) = (Root::Empty, 0_u64, 0_u64, Some(0));
        while let Some(at) = from {
            let (parts, next) = self.scan_content(tree, at, size).await;
            let mut extents = Edits::new();
            for part in parts {
                let part = match part {
                    Ok((offset, length, extent)) => {
                        extents.insert(offset, Some(encoded_extent(length, &extent)));
                        covered = covered.saturating_add(length);
                        continue;
                    }
                    Err(part) => part,
                };
                lost_bytes = lost_bytes.saturating_add(part.bytes());
                if lost_bytes > LOST_BYTES_MAX {
                    let expected = "no more lost content than can be noted: remove the file";
                    return Err(
                        untrue("extent tree", file.to_string(), expected, &format!("{lost_bytes} bytes")).into()
                    );
                }
                covered = covered.saturating_add(part.bytes());
                lost(part.error)?;
                for start in part.range.clone().step_by(u32::MAX as usize) {
                    let length = u32::try_from(part.range.end - start).unwrap_or(u32::MAX);
                    // No content has this address.
                    let extent = Extent::Chunk { address: ChunkAddress::NONE, skip: 0, chunk_bytes: length };
                    extents.insert(start, Some(encoded_extent(u64::from(length), &extent)));
                }
            }
            kept = self.trees.update(&kept, extents, INLINE_BYTES_MAX).await?;
            from = next;
        }
        Ok((kept, covered))
    }

    /// Removes the snapshots of which nothing can be read.
    async fn drop_lost_snapshots(&self, survey: &mut Survey) -> Result<(), FileError> {
        let _change = self.snapshot_change.lock().await;
        let snapshots = self.snapshots.lock().clone();
        for (view, snapshot) in &snapshots {
            let (mut from, mut has_files) = (Some(0), false);
            while let Some(at) = from.filter(|_| !has_files) {
                match self.trees.scan_past(&snapshot.catalog, at, 1).await {
                    Ok((files, next)) => (has_files, from) = (!files.is_empty(), next),
                    Err(gap) => from = lost(gap.error).map(|()| gap.next)?,
                }
            }
            if !has_files {
                self.drop_view(View(*view)).await?;
                survey.done.push(format!("snapshot {} is gone: nothing of it could be read", snapshot.name));
            }
        }
        Ok(())
    }
}

/// A name with a number behind it, unless that is 0.
fn numbered(name: &[u8], number: u64) -> Box<[u8]> {
    if number == 0 {
        return name.into();
    }
    let number = format!(".{number}");
    let kept = name.len().min(NAME_BYTES_MAX - number.len());
    [&name[..kept], number.as_bytes()].concat().into()
}

fn encoded_extent(length: u64, extent: &Extent) -> Vec<u8> {
    let mut writer = Writer::with_capacity(64);
    encode_extent(length, extent, &mut writer);
    writer.into_bytes()
}
