//! Check: do the committed trees say one consistent thing?
//!
//! Everything recorded is committed first, so that the trees hold all. Then every inode, entry and extent is looked at. The
//! bytes of chunks are the store's business; here every chunk that a file needs must be known to it.
//!
//! Each kind of problem has a number that is never given to another kind (docs/format.md, "Problems").
//!
//! Not here: packs, index and journal (`store`); repair.

use std::collections::BTreeMap;

use base::codec::Reader;
use base::id::FileId;
use bytes::Bytes;
use store::Problem;

use crate::attributes::Kind;
use crate::extent::Extent;
use crate::failure::FileError;
use crate::format::{Entry, InodeValue, Root, XattrPlace, decode_extent, decode_xattrs};
use crate::system::FileSystem;

/// What a check of the file layer came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilesReport {
    /// Everything that is wrong.
    pub problems: Vec<Problem>,
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
    kind: Option<Kind>,
    links: u32,
    parent: FileId,
    /// Names that lead here, and for a directory the one that holds its name.
    names: u32,
    named_in: FileId,
    /// For a directory: subdirectories.
    subdirectories: u32,
}

impl Default for Seen {
    fn default() -> Seen {
        let nobody = FileId(0);
        Seen { kind: None, links: 0, parent: nobody, names: 0, named_in: nobody, subdirectories: 0 }
    }
}

impl FileSystem {
    /// Checks the trees of the present and of every snapshot. `progress` hears of the files looked at.
    ///
    /// # Errors
    /// Only what keeps the check from running; what it finds is in the report.
    pub async fn check_files(&self, progress: &(dyn Fn(u64) + Sync)) -> Result<FilesReport, FileError> {
        self.sync_all().await?;
        self.commit().await?;
        // Not beside a pass of reclaim: chunks on their way out of a sparse pack would pass for absent.
        let _no_reclaim = self.reclaiming.lock().await;
        let _use = self.grace.enter(0);
        let roots = self.roots.lock().clone();
        let snapshots = self.snapshots.lock().clone();
        let mut report = FilesReport::default();
        self.check_catalog("", &roots.catalog, Some(&roots.orphans), &mut report, progress).await?;
        for snapshot in snapshots.values() {
            let name = format!(".snapshots/{}: ", snapshot.name);
            self.check_catalog(&name, &snapshot.catalog, None, &mut report, progress).await?;
        }
        Ok(report)
    }

    async fn check_catalog(
        &self,
        view: &str,
        catalog: &Root,
        orphans: Option<&Root>,
        report: &mut FilesReport,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(), FileError> {
        let mut seen: BTreeMap<FileId, Seen> = BTreeMap::new();
        let mut from = Some(0);
        while let Some(at) = from {
            let (inodes, next) = match self.trees.scan(catalog, at, 256).await {
                Ok(found) => found,
                Err(error) => {
                    report.note("HF1001", "catalog", format!("{view}from file {at} on"), 0, "a readable tree", &error);
                    break;
                }
            };
            for (file, bytes) in inodes {
                let file = FileId(file);
                match InodeValue::decode(file, &bytes) {
                    Ok(value) => self.check_inode(view, file, &value, &mut seen, report).await?,
                    Err(error) => {
                        let place = format!("{view}{file}");
                        report.note(
                            "HF1002",
                            "inode",
                            place,
                            error.offset as u64,
                            error.what,
                            &"bytes of another form",
                        );
                    }
                }
                report.files += 1;
                if report.files.is_multiple_of(1024) {
                    progress(report.files);
                }
            }
            from = next;
        }
        check_links(view, &seen, report);
        if let Some(orphans) = orphans {
            self.check_orphans(orphans, &seen, report).await?;
        }
        Ok(())
    }

    async fn check_inode(
        &self,
        view: &str,
        file: FileId,
        value: &InodeValue,
        seen: &mut BTreeMap<FileId, Seen>,
        report: &mut FilesReport,
    ) -> Result<(), FileError> {
        let place = format!("{view}{file}");
        let attributes = &value.attributes;
        let entry = seen.entry(file).or_default();
        (entry.kind, entry.links, entry.parent) = (Some(attributes.kind), attributes.links, attributes.parent);
        if file.node() == self.store.node() && file.counter() >= self.roots.lock().next_counter {
            report.note("HF1003", "file counter", place.clone(), 0, "a counter above every file", &file);
        }
        if let XattrPlace::Chunk(address) = &value.base.xattrs {
            match self.store.get(store::Class::Metadata, address).await {
                Ok(bytes) if decode_xattrs(&bytes).is_ok() => {}
                Ok(_) => report.note("HF1004", "extended attributes", place.clone(), 0, "a list", &"other bytes"),
                Err(error) => report.note("HF1004", "extended attributes", place.clone(), 0, "a chunk", &error),
            }
        }
        match attributes.kind {
            Kind::Regular => self.check_extents(place, value, report).await,
            Kind::Directory => {
                report.directories += 1;
                self.check_entries(place, file, value, seen, report).await
            }
            _ => Ok(()),
        }
    }

    async fn check_extents(
        &self,
        place: String,
        value: &InodeValue,
        report: &mut FilesReport,
    ) -> Result<(), FileError> {
        let (mut end, mut allocated, mut from) = (0, 0, Some(0));
        while let Some(at) = from {
            let (extents, next) = match self.trees.scan(&value.base.tree, at, 1024).await {
                Ok(found) => found,
                Err(error) => {
                    report.note("HF1005", "extent tree", place, at, "a readable tree", &error);
                    return Ok(());
                }
            };
            for (offset, bytes) in extents {
                report.extents += 1;
                let Ok((length, extent)) = decode_extent(&mut Reader::new(&bytes)) else {
                    report.note("HF1006", "extent", place.clone(), offset, "an extent", &"bytes of another form");
                    continue;
                };
                if offset < end || length == 0 || offset.checked_add(length).is_none() {
                    report.note(
                        "HF1007",
                        "extent",
                        place.clone(),
                        offset,
                        "one after the last",
                        &format!("{length} bytes"),
                    );
                }
                end = offset.saturating_add(length);
                allocated += length;
                if let Extent::Chunk { address, .. } = extent
                    && !self.store.contains(&address)
                {
                    report.note(
                        "HF1008",
                        "extent",
                        place.clone(),
                        offset,
                        "a chunk of this node",
                        &format!("{address}, absent"),
                    );
                }
            }
            from = next;
        }
        if allocated != value.attributes.allocated {
            let expected = format!("{allocated} bytes allocated");
            report.note("HF1009", "inode", place, 0, &expected, &value.attributes.allocated);
        }
        Ok(())
    }

    async fn check_entries(
        &self,
        place: String,
        directory: FileId,
        value: &InodeValue,
        seen: &mut BTreeMap<FileId, Seen>,
        report: &mut FilesReport,
    ) -> Result<(), FileError> {
        let (mut count, mut subdirectories, mut from) = (0, 0, Some(0));
        while let Some(at) = from {
            let (entries, next) = match self.trees.scan(&value.base.tree, at, 1024).await {
                Ok(found) => found,
                Err(error) => {
                    report.note("HF1010", "directory tree", place, at, "a readable tree", &error);
                    return Ok(());
                }
            };
            for (cookie, bytes) in entries {
                count += 1;
                let Some(entry) = decoded_entry(&bytes) else {
                    report.note(
                        "HF1011",
                        "directory entry",
                        place.clone(),
                        cookie,
                        "an entry",
                        &"bytes of another form",
                    );
                    continue;
                };
                if !self.cookies(&entry.name).contains(&cookie) {
                    let name = String::from_utf8_lossy(&entry.name).into_owned();
                    report.note("HF1012", "directory entry", place.clone(), cookie, "the cookie of its name", &name);
                }
                let target = seen.entry(entry.file).or_default();
                target.names += 1;
                target.named_in = directory;
                // The file may come later in the catalog: kinds are compared at the end by what is known of them.
                target.kind.get_or_insert(entry.kind);
                if entry.kind == Kind::Directory {
                    subdirectories += 1;
                }
            }
            from = next;
        }
        report.entries += count;
        seen.entry(directory).or_default().subdirectories = subdirectories;
        if count != value.attributes.size {
            report.note("HF1013", "directory", place, 0, &format!("size {count}"), &value.attributes.size);
        }
        Ok(())
    }

    async fn check_orphans(
        &self,
        orphans: &Root,
        seen: &BTreeMap<FileId, Seen>,
        report: &mut FilesReport,
    ) -> Result<(), FileError> {
        let mut listed = Vec::new();
        let mut from = Some(0);
        while let Some(at) = from {
            let (entries, next) = self.trees.scan(orphans, at, 1024).await?;
            listed.extend(entries.into_iter().map(|(file, _)| FileId(file)));
            from = next;
        }
        let unlinked: Vec<FileId> =
            seen.iter().filter(|(_, seen)| seen.links == 0 && seen.names == 0).map(|(file, _)| *file).collect();
        if listed != unlinked {
            let expected = format!("{} unlinked files", unlinked.len());
            report.note("HF1014", "list of unlinked files", "superblock".to_owned(), 0, &expected, &listed.len());
        }
        Ok(())
    }
}

fn decoded_entry(bytes: &Bytes) -> Option<Entry> {
    Entry::decode(&mut Reader::new(bytes)).ok()
}

/// Compares what inodes say of themselves with the names that lead to them.
fn check_links(view: &str, seen: &BTreeMap<FileId, Seen>, report: &mut FilesReport) {
    for (file, seen) in seen {
        let place = format!("{view}{file}");
        let Some(kind) = seen.kind else { continue };
        if seen.links == 0 {
            if seen.names > 0 {
                report.note(
                    "HF1015",
                    "directory entry",
                    place,
                    0,
                    "a file that exists",
                    &format!("{} names", seen.names),
                );
            }
            // Without names it was open and unlinked; in a snapshot it takes room and harms nothing.
            continue;
        }
        let is_root = *file == FileId::ROOT;
        let names = if is_root { 1 } else { seen.names };
        let expected = if kind == Kind::Directory { 2 + seen.subdirectories } else { names };
        if seen.links != expected || names == 0 || (kind == Kind::Directory && names != 1) {
            let expected = format!("{expected} links, {} names", if kind == Kind::Directory { 1 } else { expected });
            report.note(
                "HF1016",
                "inode",
                place.clone(),
                0,
                &expected,
                &format!("{} links, {names} names", seen.links),
            );
        }
        if kind == Kind::Directory && !is_root && seen.parent != seen.named_in {
            report.note("HF1017", "inode", place, 0, &format!("parent {}", seen.named_in), &seen.parent);
        }
    }
}

impl FilesReport {
    fn note(
        &mut self,
        code: &'static str,
        what: &'static str,
        path: String,
        offset: u64,
        expected: &str,
        found: &dyn std::fmt::Display,
    ) {
        /// Beyond this many a list helps nobody.
        const PROBLEMS_MAX: usize = 10_000;
        if self.problems.len() < PROBLEMS_MAX {
            let (expected, found) = (expected.to_owned(), found.to_string());
            self.problems.push(Problem { code, what, path, offset, expected, found, is_repairable: false });
        }
    }
}
