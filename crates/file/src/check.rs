//! Check: do the committed trees say one consistent thing?
//!
//! Everything recorded is committed first, so that the trees hold all, unless they are too damaged for it. Then every inode, entry and extent is looked at. The
//! bytes of chunks are the store's business; here every chunk that a file needs must be known to it.
//!
//! Each kind of problem has a number that is never given to another kind (docs/format.md, "Problems").
//!
//! A file is told by its path where it has one: after a walk the names that lead to those with problems are looked up.
//!
//! Not here: clones (`clones`); packs, index and journal (`store`); mending (`repair`).

mod clones;

use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use base::codec::Reader;
use base::id::{ChunkAddress, FileId};
use bytes::Bytes;
use store::{Class, Problem, Remedy, Store, StoreError};

pub(crate) use self::clones::CloneName;
use crate::attributes::Kind;
use crate::extent::Extent;
use crate::failure::FileError;
use crate::format::{Entry, InodeValue, Root, XattrPlace, decode_tree_extent, decode_xattrs};
use crate::system::{FileSystem, undecodable};
use crate::tree::Gap;

/// Beyond this many problems a list helps nobody.
pub(crate) const PROBLEMS_MAX: usize = 10_000;
/// Of a longer path the end is told: no path that the kernel takes is as long.
const PATH_BYTES_MAX: usize = 4096;

/// What a check of the file layer came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilesReport {
    /// What is wrong, as far as a list of it helps somebody.
    pub problems: Vec<Problem>,
    /// What can be done about all of it, also about what is beyond the list.
    pub remedies: BTreeSet<Remedy>,
    /// Inodes looked at, in the present and in snapshots.
    pub files: u64,
    /// Of them, directories.
    pub directories: u64,
    /// Directory entries.
    pub entries: u64,
    /// Extents of files.
    pub extents: u64,
}

/// What the walk of one catalog collects about a file.
struct Seen {
    /// As its inode says, if there is one that can be read.
    kind: Option<Kind>,
    links: u32,
    parent: FileId,
    /// Names that lead here, and for a directory the one that holds its name.
    names: u32,
    named_in: FileId,
    /// The kinds that the names say, one bit each.
    said: u16,
}

impl Default for Seen {
    fn default() -> Seen {
        let nobody = FileId::NONE;
        Seen { kind: None, links: 0, parent: nobody, names: 0, named_in: nobody, said: 0 }
    }
}

impl Seen {
    fn says(&self, kind: Kind) -> bool {
        self.said & 1 << kind as u8 != 0
    }
}

/// The names of one hash in one directory, as a scan of it meets them.
#[derive(Default)]
pub(crate) struct Namesakes {
    of: Option<(FileId, u64)>,
    names: Vec<Box<[u8]>>,
}

impl Namesakes {
    /// Whether an entry before this one had its name (I-50).
    pub(crate) fn is_second(&mut self, directory: FileId, cookie: u64, name: &[u8]) -> bool {
        let of = Some((directory, cookie >> 8));
        if self.of != of {
            self.of = of;
            self.names.clear();
        }
        let is_second = self.names.iter().any(|other| **other == *name);
        self.names.push(name.into());
        is_second
    }
}

/// Directories that the root does not lead to: those without a name, and of those that lie in themselves one of each ring.
pub(crate) fn unreachable(
    root: FileId,
    directories: impl Iterator<Item = FileId>,
    above: impl Fn(FileId) -> Option<FileId>,
) -> Vec<FileId> {
    let mut reached = BTreeSet::from([root]);
    let mut ends = Vec::new();
    for directory in directories {
        let (mut at, mut way) = (directory, BTreeSet::new());
        while !reached.contains(&at) && way.insert(at) {
            match above(at) {
                Some(directory) => at = directory,
                None => break,
            }
        }
        if !reached.contains(&at) {
            ends.push(at);
        }
        reached.extend(way);
    }
    ends
}

/// Why extended attributes cannot be read, if they cannot.
pub(crate) async fn lost_xattrs(store: &Arc<Store>, place: &XattrPlace) -> Option<StoreError> {
    let list = match place {
        XattrPlace::None => return None,
        XattrPlace::Inline(bytes) => bytes.clone(),
        XattrPlace::Chunk(address) => match store.get(Class::Metadata, address).await {
            Ok(bytes) => bytes,
            Err(error) => return Some(error),
        },
    };
    let wrong = |error| undecodable("extended attributes", "inode".to_owned(), error);
    decode_xattrs(&list).map_err(wrong).err()
}

/// Most bytes of a file that can be lost and noted: 64 TiB, as 2^14 extents.
pub(crate) const LOST_BYTES_MAX: u64 = u32::MAX as u64 * (1 << 14);

/// A stretch of a file of which nobody can tell what it has.
pub(crate) struct LostPart {
    code: &'static str,
    pub(crate) range: Range<u64>,
    pub(crate) error: StoreError,
}

impl LostPart {
    pub(crate) fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

impl FileSystem {
    /// Extents of a file of this size from `from` on, with offset and length, and between them what is lost; and where to go on.
    pub(crate) async fn scan_content(
        &self,
        tree: &Root,
        from: u64,
        size: u64,
    ) -> (Vec<Result<(u64, u64, Extent), LostPart>>, Option<u64>) {
        let until = |start: u64, end: Option<u64>| start..end.unwrap_or(size).max(start);
        let (values, next) = match self.trees.scan_past(tree, from, 1024).await {
            Ok(scanned) => scanned,
            Err(Gap { error, next }) => {
                return (vec![Err(LostPart { code: "HF1005", range: until(from, next), error })], next);
            }
        };
        let ends: Vec<Option<u64>> = values.iter().skip(1).map(|(offset, _)| Some(*offset)).chain([next]).collect();
        let part = |((offset, bytes), end): ((u64, Bytes), Option<u64>)| {
            let lost = |error| {
                let error = undecodable("extent", format!("offset {offset}"), error);
                LostPart { code: "HF1006", range: until(offset, end), error }
            };
            decode_tree_extent(&bytes).map(|(length, extent)| (offset, length, extent)).map_err(lost)
        };
        (values.into_iter().zip(ends).map(part).collect(), next)
    }
}

/// A catalog that is to be walked.
struct Scope<'a> {
    /// The path of its root.
    view: String,
    root: FileId,
    /// Of a clone: the directory that it is.
    top: Option<FileId>,
    /// Whether all of it can be reached. Of a branch that was not pruned what lies beside its top is nobody's, and may lack files (`prune`).
    is_pruned: bool,
    /// Whether it can go as a whole where all of it is lost, or as a clone be made anew where its directory is.
    may_go: bool,
    catalog: &'a Root,
    /// Of the present's main branch: files that were unlinked while they were open.
    orphans: Option<&'a Root>,
}

/// What a check has found so far.
struct Findings {
    report: FilesReport,
    /// Problems of the catalog that is walked, by their place in the report, and the files that have them.
    blamed: Vec<(usize, FileId)>,
    /// What is wrong with that catalog.
    codes: BTreeSet<&'static str>,
    /// The path of the root of that catalog: nothing, or the snapshot's or clone's.
    view: String,
    /// That root.
    root: FileId,
    is_pruned: bool,
    /// The tops of the clones that names there may lead to, and the directories that have those names, by branch.
    tops: BTreeMap<u32, (u64, FileId)>,
    /// Clones by the directory that has their names: how many.
    clones_in: BTreeMap<FileId, u32>,
    /// What each clone is called, and in which directory.
    clone_names: BTreeMap<u32, (String, FileId)>,
    /// Above the counter of each file in it: of one that came from another node, as counted there.
    next_counter: u64,
    /// Whether something of that catalog or its directories cannot be read.
    has_gaps: bool,
}

impl FileSystem {
    /// Checks the trees of the present and of every snapshot. `progress` hears of the files looked at.
    ///
    /// # Errors
    /// Only what keeps the check from running, as a close does; what it finds is in the report.
    pub async fn check_files(&self, progress: &(dyn Fn(u64) + Sync)) -> Result<FilesReport, FileError> {
        self.sync_all().await?;
        let uncommitted = match self.commit_whole().await {
            Ok(()) => None,
            // The trees are too damaged to take it. They are looked at as they are, and the journal keeps the rest.
            Err(error) if error.is_unreadable() => Some(error),
            Err(error) => return Err(error),
        };
        // Not beside a pass of reclaim: chunks on their way out of a sparse pack would pass for absent.
        let _no_reclaim = self.without_passes().await;
        let _use = self.grace.enter(0);
        let roots = self.roots.lock().clone();
        let (snapshots, lost) = self.scan_snapshots(&roots.snapshots).await;
        let mut found = Findings::new();
        for (view, error) in lost {
            let place = "/.snapshots".to_owned();
            found.note_at("HF1022", "list of snapshots", place, view, "a list that can be read", &error);
        }
        if let Some(error) = uncommitted {
            let place = "journal".to_owned();
            found.note_at("HF1021", "changes", place, 0, "trees that they can be added to", &error);
        }
        let branches = self.listed_branches("", &roots.branches, &mut found).await;
        let (catalog, orphans) = (&roots.catalog, Some(&roots.orphans));
        let (view, root) = (String::new(), FileId::ROOT);
        let scope = Scope { view, root, top: None, is_pruned: true, may_go: true, catalog, orphans };
        found.next_counter = roots.next_counter;
        self.check_catalog(scope, &mut found, progress).await?;
        self.check_branches("", branches, &mut found, progress).await?;
        for snapshot in snapshots.values() {
            found.next_counter = if snapshot.next_counter > 0 { snapshot.next_counter } else { roots.next_counter };
            let name = format!("/.snapshots/{}", snapshot.name);
            let branches = self.listed_branches(&name, &snapshot.branches, &mut found).await;
            let (root, catalog) = (FileId::ROOT, &snapshot.catalog);
            let scope =
                Scope { view: name.clone(), root, top: None, is_pruned: true, may_go: true, catalog, orphans: None };
            self.check_catalog(scope, &mut found, progress).await?;
            self.check_branches(&name, branches, &mut found, progress).await?;
        }
        Ok(found.report)
    }

    async fn check_catalog(
        &self,
        Scope { view, root, top, is_pruned, may_go, catalog, orphans }: Scope<'_>,
        found: &mut Findings,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(), FileError> {
        found.view = view;
        found.has_gaps = false;
        (found.root, found.is_pruned) = (root, is_pruned);
        found.clones_in.clear();
        // The present is looked at first, and has what was found before it.
        let first = if orphans.is_some() { 0 } else { found.report.problems.len() };
        let files = found.report.files;
        let mut seen: BTreeMap<FileId, Seen> = BTreeMap::new();
        let mut from = Some(0);
        while let Some(at) = from {
            self.refuse_if_ending()?;
            let (inodes, next) = match self.trees.scan_past(catalog, at, 256).await {
                Ok(scanned) => scanned,
                Err(gap) => {
                    let upto = gap.next.map_or_else(|| "on".to_owned(), |next| format!("to before {next}"));
                    let place = format!("{}/ from file {at} {upto}", found.view);
                    found.note_at("HF1001", "catalog", place, 0, "a readable tree", &gap.error);
                    found.has_gaps = true;
                    from = gap.next;
                    continue;
                }
            };
            for (file, bytes) in inodes {
                let file = found.root.beside(file);
                match InodeValue::decode(file, &bytes) {
                    Ok(value) => self.check_inode(file, &value, &mut seen, found).await?,
                    Err(error) => {
                        found.note("HF1002", "inode", file, error.offset as u64, error.what, &"bytes of another form");
                        found.has_gaps = true;
                    }
                }
                found.report.files += 1;
                if found.report.files.is_multiple_of(1024) {
                    progress(found.report.files);
                }
            }
            from = next;
        }
        check_links(&seen, top, found);
        check_ways(&seen, found);
        if let Some(orphans) = orphans {
            self.check_orphans(orphans, &seen, found).await;
        }
        let is_topless = top.is_some_and(|top| seen.get(&top).is_none_or(|top| top.kind.is_none()));
        if is_topless && top != Some(root) {
            let place = format!("{}/", found.view);
            found.note_at("HF1001", "catalog", place, 0, "the directory that the clone is", &"none that can be read");
        }
        let (has_gaps, is_lost) = (found.has_gaps, may_go && (is_topless || found.report.files == files));
        let is_live = orphans.is_some() || may_go && top.is_some();
        let remedy = |code: &str| {
            // Of a branch that was not pruned only what is lost is mended: what else is wrong may lie beside its top, and goes (I-112).
            let remedy = remedy(code, has_gaps || !is_pruned, is_live, is_lost);
            remedy.filter(|_| is_pruned || code == "HF1001" || OF_LOSS.contains(&code))
        };
        for problem in &mut found.report.problems[first..] {
            problem.remedy = remedy(problem.code);
        }
        found.report.remedies.extend(std::mem::take(&mut found.codes).into_iter().filter_map(remedy));
        self.name_blamed(catalog, &seen, found).await;
        Ok(())
    }

    async fn check_inode(
        &self,
        file: FileId,
        value: &InodeValue,
        seen: &mut BTreeMap<FileId, Seen>,
        found: &mut Findings,
    ) -> Result<(), FileError> {
        let attributes = &value.attributes;
        let entry = seen.entry(file).or_default();
        (entry.kind, entry.links, entry.parent) = (Some(attributes.kind), attributes.links, attributes.parent);
        if file.node() == self.store.node() && file.counter() >= found.next_counter {
            found.note("HF1003", "file counter", file, 0, "a counter above every file", &file);
        }
        if let Some(error) = lost_xattrs(&self.store, &value.base.xattrs).await {
            found.note("HF1004", "extended attributes", file, 0, "a list", &error);
        }
        match attributes.kind {
            Kind::Regular => {
                self.check_extents(file, value, found).await?;
                Ok(())
            }
            Kind::Directory => {
                found.report.directories += 1;
                self.check_entries(file, value, seen, found).await
            }
            _ => Ok(()),
        }
    }

    async fn check_extents(&self, file: FileId, value: &InodeValue, found: &mut Findings) -> Result<(), FileError> {
        let (mut end, mut allocated, mut lost, mut lost_bytes, mut from) = (0, 0_u64, Vec::new(), 0_u64, Some(0));
        while let Some(at) = from {
            self.refuse_if_ending()?;
            let (parts, next) = self.scan_content(&value.base.tree, at, value.attributes.size).await;
            for part in parts {
                let (offset, length, extent) = match part {
                    Ok(extent) => extent,
                    Err(part) => {
                        lost_bytes = lost_bytes.saturating_add(part.bytes());
                        lost.push(part);
                        continue;
                    }
                };
                found.report.extents += 1;
                if offset < end || length == 0 || offset.checked_add(length).is_none() {
                    found.note("HF1007", "extent", file, offset, "one after the last", &format!("{length} bytes"));
                }
                end = offset.saturating_add(length);
                allocated = allocated.saturating_add(length);
                if let Extent::Chunk { address, .. } = extent
                    && !self.store.has(&address).await
                {
                    // What a repair noted as lost is on no disk.
                    let may_come_back = self.store.is_degraded() && address != ChunkAddress::NONE;
                    let (code, whereabouts) =
                        if may_come_back { ("HF1024", "on no disk that is there") } else { ("HF1008", "absent") };
                    let found_words = format!("{address}, {whereabouts}");
                    found.note(code, "extent", file, offset, "a chunk of this node", &found_words);
                }
            }
            from = next;
        }
        for LostPart { code, range, error } in &lost {
            let code = if lost_bytes > LOST_BYTES_MAX { "HF1023" } else { code };
            found.note(code, "content", file, range.start, "extents that can be read", error);
        }
        // What all extents come to is not known if one of them is not.
        if lost.is_empty() && allocated != value.attributes.allocated {
            let expected = format!("{allocated} bytes allocated");
            found.note("HF1009", "inode", file, 0, &expected, &value.attributes.allocated);
        }
        Ok(())
    }

    async fn check_entries(
        &self,
        file: FileId,
        value: &InodeValue,
        seen: &mut BTreeMap<FileId, Seen>,
        found: &mut Findings,
    ) -> Result<(), FileError> {
        let (mut count, mut namesakes, mut is_whole, mut from) = (0, Namesakes::default(), true, Some(0));
        while let Some(at) = from {
            self.refuse_if_ending()?;
            let (entries, next) = match self.trees.scan_past(&value.base.tree, at, 1024).await {
                Ok(scanned) => scanned,
                Err(gap) => {
                    found.note("HF1010", "directory tree", file, at, "a readable tree", &gap.error);
                    (found.has_gaps, is_whole, from) = (true, false, gap.next);
                    continue;
                }
            };
            for (cookie, bytes) in entries {
                count += 1;
                let Some(entry) = decoded_entry(file.branch, &bytes) else {
                    found.note("HF1011", "directory entry", file, cookie, "an entry", &"bytes of another form");
                    found.has_gaps = true;
                    continue;
                };
                let name = || String::from_utf8_lossy(&entry.name).into_owned();
                if !self.cookies(&entry.name).contains(&cookie) {
                    found.note("HF1012", "directory entry", file, cookie, "the cookie of its name", &name());
                }
                if namesakes.is_second(file, cookie, &entry.name) {
                    found.note("HF1020", "directory entry", file, cookie, "a name of its own", &name());
                }
                if entry.file.branch != file.branch {
                    found.note_clone(file, cookie, &entry);
                    continue;
                }
                let target = seen.entry(entry.file).or_default();
                target.names += 1;
                target.named_in = file;
                // The file may come later in the catalog: kinds are compared at the end.
                target.said |= 1 << entry.kind as u8;
            }
            from = next;
        }
        found.report.entries += count;
        if is_whole && count != value.attributes.size {
            found.note("HF1013", "directory", file, 0, &format!("size {count}"), &value.attributes.size);
        }
        Ok(())
    }

    async fn check_orphans(&self, orphans: &Root, seen: &BTreeMap<FileId, Seen>, found: &mut Findings) {
        let mut listed = Vec::new();
        let mut from = Some(0);
        while let Some(at) = from {
            let (entries, next) = match self.trees.scan(orphans, at, 1024).await {
                Ok(scanned) => scanned,
                Err(error) => {
                    let place = "superblock".to_owned();
                    return found.note_at("HF1014", "list of unlinked files", place, 0, "a readable tree", &error);
                }
            };
            listed.extend(entries.into_iter().map(|(file, _)| found.root.beside(file)));
            from = next;
        }
        let unlinked: Vec<FileId> =
            seen.iter().filter(|(_, seen)| seen.links == 0 && seen.names == 0).map(|(file, _)| *file).collect();
        if listed != unlinked {
            let expected = format!("{} unlinked files", unlinked.len());
            found.note_at("HF1014", "list of unlinked files", "superblock".to_owned(), 0, &expected, &listed.len());
        }
    }
}

/// What cannot be read, or has to be written elsewhere.
const OF_LOSS: [&str; 8] = ["HF1002", "HF1004", "HF1005", "HF1006", "HF1010", "HF1011", "HF1012", "HF1020"];

/// What can be done about a problem of the present, or of a snapshot, which never changes: it can only go as a whole.
fn remedy(code: &str, has_gaps: bool, is_live: bool, is_lost: bool) -> Option<Remedy> {
    match code {
        _ if !is_live => (code == "HF1001" && is_lost).then_some(Remedy::Trees { gives_up: true }),
        // Lost content stays lost, and is never made up.
        "HF1007" | "HF1008" | "HF1023" | "HF1024" => None,
        "HF1001" | "HF1002" | "HF1004" | "HF1005" | "HF1006" | "HF1010" | "HF1011" | "HF1015" | "HF1021" | "HF1022"
        | "HF1025" => Some(Remedy::Trees { gives_up: true }),
        // A name that was lost may still be found again.
        _ => Some(Remedy::Trees { gives_up: has_gaps }),
    }
}

impl FileSystem {
    /// Puts paths in the place of numbers, as far as names lead there.
    async fn name_blamed(&self, catalog: &Root, seen: &BTreeMap<FileId, Seen>, found: &mut Findings) {
        let blamed = std::mem::take(&mut found.blamed);
        let mut wanted: BTreeSet<FileId> = BTreeSet::new();
        for (_, file) in &blamed {
            // Up to the root, or to where it has been.
            let mut at = *file;
            while wanted.insert(at) {
                at = seen.get(&at).map_or(FileId::NONE, |seen| seen.named_in);
            }
        }
        let directories: BTreeSet<FileId> =
            wanted.iter().filter_map(|file| seen.get(file)).map(|seen| seen.named_in).collect();
        let mut names: BTreeMap<FileId, String> = BTreeMap::new();
        for directory in directories {
            // What cannot be read is told already.
            let Ok(Some(value)) = self.load(catalog, directory).await else { continue };
            let mut from = Some(0);
            while let Some(at) = from {
                let Ok((entries, next)) = self.trees.scan(&value.base.tree, at, 1024).await else { break };
                for entry in entries.iter().filter_map(|(_, bytes)| decoded_entry(directory.branch, bytes)) {
                    if wanted.contains(&entry.file)
                        && seen.get(&entry.file).is_some_and(|seen| seen.named_in == directory)
                    {
                        names.insert(entry.file, String::from_utf8_lossy(&entry.name).into_owned());
                    }
                }
                from = next;
            }
        }
        for (problem, file) in blamed {
            let Some(problem) = found.report.problems.get_mut(problem) else { continue };
            if let Some(path) = path_of(found.root, file, seen, &names) {
                problem.path = format!("{}{path} ({file})", found.view);
            }
        }
    }
}

/// The path of a file, if names lead there from the root.
fn path_of(
    root: FileId,
    file: FileId,
    seen: &BTreeMap<FileId, Seen>,
    names: &BTreeMap<FileId, String>,
) -> Option<String> {
    let (mut path, mut at) = (String::new(), file);
    // A directory that says it lies in itself is no reason to go round for ever.
    for _ in 0..=names.len() {
        if at == root {
            return Some(if path.is_empty() { "/".to_owned() } else { path });
        }
        path = format!("/{}{path}", names.get(&at)?);
        if path.len() > PATH_BYTES_MAX {
            return Some(format!("…{path}"));
        }
        at = seen.get(&at)?.named_in;
    }
    None
}

/// Whether all ways from a directory lead up to the root. Those without a name are told by [`check_links`].
fn check_ways(seen: &BTreeMap<FileId, Seen>, found: &mut Findings) {
    let above = |file: FileId| seen.get(&file).filter(|seen| seen.names > 0).map(|seen| seen.named_in);
    let directories = seen.iter().filter(|(_, seen)| seen.kind == Some(Kind::Directory)).map(|(file, _)| *file);
    for file in unreachable(found.root, directories, above) {
        if let Some(above) = above(file) {
            found.note("HF1018", "directory", file, 0, "a way to the root", &format!("itself above {above}"));
        }
    }
}

fn decoded_entry(home: u32, bytes: &Bytes) -> Option<Entry> {
    Entry::decode(home, &mut Reader::new(bytes)).ok()
}

/// Compares what inodes say of themselves with the names that lead to them.
fn check_links(seen: &BTreeMap<FileId, Seen>, top: Option<FileId>, found: &mut Findings) {
    let root = found.root;
    if seen.get(&root).is_none_or(|root| root.kind.is_none()) {
        let place = format!("{}/", found.view);
        found.note_at("HF1001", "catalog", place, 0, "a root directory", &"none that can be read");
        // The names in it may be found again: nothing is judged without them.
        found.has_gaps = true;
    }
    let mut subdirectories = std::mem::take(&mut found.clones_in);
    for seen in seen.iter().filter(|(file, seen)| **file != root && seen.names > 0).map(|(_, seen)| seen) {
        // The inode that cannot be read may be a directory, as the name says.
        let is_directory =
            seen.kind.map_or(found.has_gaps && seen.says(Kind::Directory), |kind| kind == Kind::Directory);
        if is_directory {
            *subdirectories.entry(seen.named_in).or_default() += 1;
        }
    }
    for (&file, seen) in seen {
        let is_root = file == root;
        let is_nobodys = !found.is_pruned && seen.kind.is_none();
        if seen.names > 0 && (seen.kind.is_none() || is_root) && !is_nobodys {
            let names = format!("{} names", seen.names);
            found.note("HF1015", "directory entry", file, 0, "a file that exists, below the root", &names);
        }
        let Some(kind) = seen.kind else { continue };
        // Without links and names it was open and unlinked; in a snapshot it takes room and harms nothing.
        if !is_root && seen.links == 0 && seen.names == 0 {
            continue;
        }
        if !is_root && seen.said & !(1 << kind as u8) != 0 {
            found.note("HF1019", "directory entry", file, 0, &format!("the kind {kind:?}"), &"another");
        }
        let is_directory = kind == Kind::Directory;
        let names = if is_root { 1 } else { seen.names };
        let below = subdirectories.get(&file).copied().unwrap_or(0);
        let expected = if is_directory { 2 + below } else { names };
        let lacks_hidden = !found.is_pruned && !is_directory && seen.links < expected;
        if (seen.links != expected && !lacks_hidden) || names == 0 || (is_directory && names != 1) {
            let expected = format!("{expected} links, {} names", if is_directory { 1 } else { expected });
            found.note("HF1016", "inode", file, 0, &expected, &format!("{} links, {names} names", seen.links));
        }
        let parent = if is_root { file } else { seen.named_in };
        // The top of a clone has its name in another branch (and one here, where it was cloned from). Beside it, in one that was not pruned,
        // may be that of the clone it was cloned from.
        let may_be_elsewhere = top == Some(file) || (!found.is_pruned && seen.parent.branch != root.branch);
        if is_directory && names > 0 && seen.parent != parent && !may_be_elsewhere {
            found.note("HF1017", "inode", file, 0, &format!("parent {parent}"), &seen.parent);
        }
    }
}

impl Findings {
    fn new() -> Findings {
        Findings {
            report: FilesReport::default(),
            blamed: Vec::new(),
            codes: BTreeSet::new(),
            view: String::new(),
            root: FileId::ROOT,
            is_pruned: true,
            tops: BTreeMap::new(),
            clones_in: BTreeMap::new(),
            clone_names: BTreeMap::new(),
            next_counter: 0,
            has_gaps: false,
        }
    }

    /// Notes an entry that leads to another branch: to the top of a clone (I-109), which has one name.
    fn note_clone(&mut self, directory: FileId, cookie: u64, entry: &Entry) {
        let branch = entry.file.branch;
        if branch < self.root.branch && !self.is_pruned {
            // Older than this branch: it lies beside what was cloned, where nobody comes.
            *self.clones_in.entry(directory).or_default() += 1;
            return;
        }
        // As of `is_top_in` in `repair::clones`: a name in the main branch sets right what a clone says of where it lies, and is the one it has.
        let has_main_name = self.clone_names.get(&branch).is_some_and(|(_, named_in)| named_in.branch == 0);
        let is_top = self.tops.get(&branch).is_some_and(|(top, above)| {
            let may_be_here = directory.branch == 0 || *above == directory && !has_main_name;
            *top == entry.file.number && may_be_here && entry.kind == Kind::Directory
        });
        if !is_top {
            let expected = "a clone that exists";
            return self.note("HF1015", "directory entry", directory, cookie, expected, &entry.file);
        }
        *self.clones_in.entry(directory).or_default() += 1;
        let name = String::from_utf8_lossy(&entry.name).into_owned();
        match self.clone_names.entry(branch) {
            Slot::Vacant(slot) => drop(slot.insert((name, directory))),
            Slot::Occupied(_) => self.note("HF1016", "clone", directory, cookie, "one name", &"several"),
        }
    }

    /// Notes what is wrong with a file.
    fn note(
        &mut self,
        code: &'static str,
        what: &'static str,
        file: FileId,
        offset: u64,
        expected: &str,
        found: &dyn std::fmt::Display,
    ) {
        if self.report.problems.len() < PROBLEMS_MAX {
            self.blamed.push((self.report.problems.len(), file));
        }
        self.note_at(code, what, format!("{}/ {file}", self.view), offset, expected, found);
    }

    /// Offers a remedy for what was noted last.
    fn offer(&mut self, code: &'static str, remedy: Option<Remedy>) {
        self.codes.remove(code);
        self.report.remedies.extend(remedy);
        // No more are kept than help somebody.
        if let Some(problem) = self.report.problems.last_mut().filter(|problem| problem.code == code) {
            problem.remedy = remedy;
        }
    }

    fn note_at(
        &mut self,
        code: &'static str,
        what: &'static str,
        path: String,
        offset: u64,
        expected: &str,
        found: &dyn std::fmt::Display,
    ) {
        self.codes.insert(code);
        if self.report.problems.len() < PROBLEMS_MAX {
            let (expected, found) = (expected.to_owned(), found.to_string());
            self.report.problems.push(Problem { code, what, path, offset, expected, found, remedy: None });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use base::id::FileId;

    use super::{PATH_BYTES_MAX, Seen, path_of};

    /// Each directory of a long way down has a problem: their paths together would be as long as the square of it.
    #[test]
    fn a_path_that_is_long_is_told_by_its_end() {
        let (mut seen, mut names) = (BTreeMap::new(), BTreeMap::new());
        for file in 3..100_000 {
            let above = if file == 3 { FileId::ROOT } else { FileId::main(file - 1) };
            seen.insert(FileId::main(file), Seen { named_in: above, ..Seen::default() });
            names.insert(FileId::main(file), format!("name {file}"));
        }
        assert_eq!(path_of(FileId::ROOT, FileId::main(4), &seen, &names).unwrap(), "/name 3/name 4");
        let path = path_of(FileId::ROOT, FileId::main(99_999), &seen, &names).unwrap();
        assert!(path.starts_with("…/name ") && path.ends_with("/name 99998/name 99999"), "{path}");
        assert!(path.len() < PATH_BYTES_MAX + 300);
    }
}
