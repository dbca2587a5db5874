//! Brings content to as many disks as its files have come to ask for: for who asks, and where somebody left it where it was (I-167).
//!
//! It goes by what commits have made of the catalogs: whoever looks syncs and commits first, and what is put after that is put as is asked. Content
//! is the same wherever it is named, so what a snapshot or clone took along before it was raised is raised there.
//!
//! Not here: what is left (`raising`), trees and packs (`mender`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::id::FileId;
use platform::task::first;
use store::{Class, Pace, Resilience, Share};

use crate::attributes::{Kind, View};
use crate::commit::RootsChange;
use crate::failure::FileError;
use crate::format::{InodeValue, Root};
use crate::left_out::Whole;
use crate::names::TreeOf;
use crate::raising::{PolicyReport, Raise};
use crate::system::{FileSystem, undecodable};
use crate::tree::Gap;

/// Inodes that are looked at together.
const INODES: usize = 1000;
/// Extents of a file that are.
const EXTENTS: usize = 256;
/// A chunk, about.
const CHUNK_BYTES: u64 = 64 << 10;
/// The task looks so often.
const PAUSE: Duration = Duration::from_secs(10);
/// The longest pause between walks that left something, but for what they take themselves.
const PAUSE_MAX: Duration = Duration::from_secs(160);
/// Walks that leave something take at most one part of the time, of so many.
const OF_TIME: u32 = 20;

/// A catalog: of which view, and of which branch there.
pub(crate) type CatalogOf = (View, u32);

/// What went wrong, and where to go on behind that.
type Stop = (FileError, Option<u64>);

impl FileSystem {
    /// Has the roots say that content may lie on fewer disks than its files ask for; durable when it returns.
    pub(crate) async fn begin_raise(&self) -> Result<Raise<'_>, FileError> {
        let _one = self.raising.work.lock().await;
        self.refuse_if_ending()?;
        if !self.roots.lock().is_raising || self.raising.is_uncertain.load(Ordering::SeqCst) {
            self.commit_with(Some(RootsChange::Raise(true)), Whole::AsFarAsRead).await?;
            // Where the newest superblock rots the journal has the policies all the same (as I-103).
            self.store.renew_root().await?;
            self.raising.is_uncertain.store(false, Ordering::SeqCst);
        }
        Ok(self.raising.begin(self.next_view.load(Ordering::SeqCst)))
    }

    /// All that was changed with it lies where it is to, but for what was cloned since, or is in a snapshot. The roots say so if nothing else is left.
    pub(crate) async fn end_raise(&self, mut raise: Raise<'_>) -> Result<(), FileError> {
        let _one = self.raising.work.lock().await;
        self.refuse_if_ending()?;
        raise.is_done = raise.views == self.next_view.load(Ordering::SeqCst);
        drop(raise);
        if self.raising.active.load(Ordering::SeqCst) > 0 || self.raising.is_left.load(Ordering::SeqCst) {
            return Ok(());
        }
        // Where it fails nobody knows what an opening would find.
        self.raising.is_uncertain.store(true, Ordering::SeqCst);
        self.commit_with(Some(RootsChange::Raise(false)), Whole::AsFarAsRead).await?;
        self.raising.is_uncertain.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// What could be done last about content that may lie on fewer disks than its file asks for. `None`: all lies where it is to.
    pub(crate) fn raising(&self) -> Option<PolicyReport> {
        let is_raising = self.roots.lock().is_raising;
        is_raising.then(|| self.raising.last.lock().clone())
    }

    /// Does what others left, if they did; whether all was done that can be.
    pub async fn raise_left(&self, share: Share) -> bool {
        let _one = self.raising.walk.lock().await;
        // Who is about to say that all is done does not wait for a walk.
        let is_wanted = {
            let _decided = self.raising.work.lock().await;
            self.raising.is_wanted()
        };
        if !is_wanted {
            return true;
        }
        let Ok(mut raise) = self.begin_raise().await else { return false };
        // What is left from now on is left once more.
        self.raising.is_left.store(false, Ordering::SeqCst);
        let mut report = PolicyReport::default();
        let walked = self.raise_all(share, false, &mut report).await;
        let ended = match walked {
            Ok(()) if report.failed == 0 => {
                // What was taken along meanwhile was looked at, or taken from what had been.
                raise.views = self.next_view.load(Ordering::SeqCst);
                self.end_raise(raise).await
            }
            walked => walked,
        };
        if let Err(error) = ended {
            report.fail("the rest", error);
        }
        let is_done = report.failed == 0;
        *self.raising.last.lock() = report;
        is_done
    }

    /// Looks at the content of all files that ask for copies or fragments of their own: `raised` are the chunks that lie on fewer disks than that. It walks
    /// all trees. What asks for what the settings say follows these pack by pack (`store`).
    ///
    /// # Errors
    /// Why not all of the node could be looked at. Files that cannot be read are in the report.
    pub async fn check_policies(&self) -> Result<PolicyReport, FileError> {
        let mut report = PolicyReport::default();
        self.raise_all(Share::FULL, true, &mut report).await?;
        Ok(report)
    }

    async fn raise_all(&self, share: Share, is_rehearsal: bool, report: &mut PolicyReport) -> Result<(), FileError> {
        self.sync_all().await?;
        // A commit that has content in hand puts it as was asked before.
        self.commit().await?;
        if !is_rehearsal {
            self.tell_left_out(report);
        }
        let (goes_on, of_time) = (|| !self.is_ending(), || share);
        let pace = Pace::new(&self.platform, &of_time, &goes_on);
        let mut done = BTreeSet::new();
        // What is taken of the present when that lies as it is to does so too: snapshots that come later need no look.
        self.raise_present(&mut done, &pace, is_rehearsal, report).await?;
        for of in self.catalogs_of_snapshots(report).await {
            self.raise_catalog_of(of, &pace, is_rehearsal, report).await?;
        }
        // Clones of snapshots that were not looked at yet.
        self.raise_present(&mut done, &pace, is_rehearsal, report).await
    }

    /// What commits leave out is in no catalog (I-106).
    pub(crate) fn tell_left_out(&self, report: &mut PolicyReport) {
        for (file, why) in self.left_out_files() {
            report.fail(format!("file {file}"), why);
        }
    }

    /// The catalogs of the present that are not done yet, until there are no more.
    async fn raise_present(
        &self,
        done: &mut BTreeSet<u32>,
        pace: &Pace<'_>,
        is_rehearsal: bool,
        report: &mut PolicyReport,
    ) -> Result<(), FileError> {
        loop {
            let mut branches: BTreeSet<u32> = self.branches.lock().keys().copied().collect();
            branches.insert(0);
            branches.retain(|branch| !done.contains(branch));
            if branches.is_empty() {
                return Ok(());
            }
            let in_use = self.grace.enter(0);
            let list = self.roots.lock().branches.clone();
            let (_, lost) = self.scan_branches(&list).await;
            drop(in_use);
            for (number, error) in lost {
                report.fail(format!("clones from {number} on"), error);
            }
            for branch in branches {
                self.raise_catalog_of((View::LIVE, branch), pace, is_rehearsal, report).await?;
                done.insert(branch);
            }
        }
    }

    async fn catalogs_of_snapshots(&self, report: &mut PolicyReport) -> Vec<CatalogOf> {
        let in_use = self.grace.enter(0);
        let list = self.roots.lock().snapshots.clone();
        let (snapshots, lost) = self.scan_snapshots(&list).await;
        drop(in_use);
        for (number, error) in lost {
            report.fail(format!("snapshots from {number} on"), error);
        }
        let mut catalogs = Vec::new();
        for (view, value) in snapshots {
            catalogs.push((View(view), 0));
            let _use = self.grace.enter(0);
            if !self.snapshots.lock().contains_key(&view) {
                // It went, or could not be read when the node was opened.
                continue;
            }
            let (branches, lost) = self.scan_branches(&value.branches).await;
            catalogs.extend(branches.keys().map(|branch| (View(view), *branch)));
            for (branch, error) in lost {
                report.fail(format!("clone {branch} of snapshot {view}"), error);
            }
        }
        catalogs
    }

    async fn raise_catalog_of(
        &self,
        of: CatalogOf,
        pace: &Pace<'_>,
        is_rehearsal: bool,
        report: &mut PolicyReport,
    ) -> Result<(), FileError> {
        let mut from = Some(0);
        while let Some(at) = from {
            if !pace.step().await {
                self.refuse_if_ending()?;
            }
            let files;
            (files, from) = match self.asking(of, at, is_rehearsal, report).await {
                Ok(found) => found,
                // It went meanwhile.
                Err((FileError::Stale, _)) => break,
                Err((error, next)) => {
                    report.fail(format!("files from {} on", FileId { branch: of.1, number: at }), error);
                    (Vec::new(), next)
                }
            };
            let (since, before) = (self.store.moment(), report.raised);
            for number in files {
                self.raise_file(of, number, pace, is_rehearsal, report).await?;
            }
            if !is_rehearsal && report.raised > before {
                self.store.settle(since).await?;
            }
        }
        Ok(())
    }

    /// Some files of a catalog that have content; and where to go on.
    async fn asking(
        &self,
        (view, branch): CatalogOf,
        from: u64,
        is_rehearsal: bool,
        report: &mut PolicyReport,
    ) -> Result<(Vec<u64>, Option<u64>), Stop> {
        let _use = self.grace.enter(from);
        let roots = self.roots.lock().clone();
        let catalog = self.catalog(&roots, view, branch).await.map_err(|error| (error, None))?;
        let scanned = self.trees.scan_past(&catalog, from, INODES).await;
        let (mut found, next) = scanned.map_err(|Gap { error, next }| (error.into(), next))?;
        if (view, branch) != (View::LIVE, 0) {
            // What is as it is in the present was looked at there. Where that cannot be read all is looked at.
            let numbers: Vec<u64> = found.iter().map(|(number, _)| *number).collect();
            let known = self.trees.get_many(&roots.catalog, &numbers).await.unwrap_or_default();
            let known = std::collections::BTreeMap::from_iter(known);
            found.retain(|(number, bytes)| known.get(number) != Some(bytes));
        }
        let mut asking = Vec::new();
        for (number, bytes) in found {
            let file = FileId { branch, number };
            match InodeValue::decode(file, &bytes) {
                Ok(InodeValue { attributes, base, .. }) => {
                    let asks = attributes.resilience != Resilience::OfNode || !is_rehearsal;
                    if asks && attributes.kind == Kind::Regular && base.tree != Root::Empty {
                        asking.push(number);
                    }
                }
                Err(error) => {
                    let error = undecodable("inode", format!("catalog entry of {file}"), error);
                    report.fail(format!("file {file}"), error);
                }
            }
        }
        Ok((asking, next))
    }

    /// Brings the content of one file there, as the catalog has it; durable after [`store::Store::settle`]. A rehearsal only counts the chunks.
    ///
    /// # Errors
    /// What concerns all files. What concerns this one alone is in the report.
    pub(crate) async fn raise_file(
        &self,
        of: CatalogOf,
        number: u64,
        pace: &Pace<'_>,
        is_rehearsal: bool,
        report: &mut PolicyReport,
    ) -> Result<(), FileError> {
        let (mut from, mut first_error) = (Some(0), None);
        while let Some(at) = from {
            if !pace.step().await {
                self.refuse_if_ending()?;
            }
            match self.raise_some(of, number, at, is_rehearsal).await {
                Ok((raised, next)) => {
                    report.raised += raised;
                    from = next;
                }
                // It went meanwhile.
                Err((FileError::NoEntry | FileError::Stale, _)) => from = None,
                Err((error, _)) if self.is_ending() || matches!(error, FileError::NoSpace) => return Err(error),
                Err((error, next)) => {
                    first_error = first_error.or(Some(error));
                    from = next;
                }
            }
        }
        report.files += 1;
        if let Some(error) = first_error {
            report.fail(format!("file {}", FileId { branch: of.1, number }), error);
        }
        Ok(())
    }

    /// Some extents of a file; how many of their chunks were stored anew, and where to go on.
    async fn raise_some(
        &self,
        (view, branch): CatalogOf,
        number: u64,
        from: u64,
        is_rehearsal: bool,
    ) -> Result<(u64, Option<u64>), Stop> {
        let at_once = |error: FileError| (error, None);
        // What is named stays meanwhile, for snapshots and clones may go, and files change.
        let _use = self.grace.enter(number);
        let roots = self.roots.lock().clone();
        let catalog = self.catalog(&roots, view, branch).await.map_err(at_once)?;
        let value = self.load(&catalog, FileId { branch, number }).await.map_err(at_once)?;
        let Some(InodeValue { attributes, base, .. }) = value.filter(|value| value.attributes.kind == Kind::Regular)
        else {
            return Ok((0, None));
        };
        let scanned = self.trees.scan_past(&base.tree, from, EXTENTS).await;
        let (extents, next) = scanned.map_err(|Gap { error, next }| (error.into(), next))?;
        let mut chunks = Vec::with_capacity(extents.len());
        for (key, bytes) in extents {
            let named = TreeOf::Extents.names(key, &bytes).map_err(|error| (error.into(), next))?;
            chunks.extend(
                named.chunks.into_iter().filter(|(class, _)| *class == Class::Data).map(|(_, address)| address),
            );
        }
        let chunks = self.store.lower(attributes.resilience, &chunks).await;
        if is_rehearsal || chunks.is_empty() {
            return Ok((chunks.len() as u64, next));
        }
        let raised = self.store.raise(attributes.resilience, &chunks).await;
        // What lay on fewer disks has no name any more: a pass of reclaim gives that room back, also where it is what was lacking.
        self.note_dropped(raised.as_ref().map_or(chunks.len() as u64, |raised| *raised) * CHUNK_BYTES);
        Ok((raised.map_err(|error| (error.into(), next))?, next))
    }

    /// The background task that does what was left.
    pub(crate) async fn run_raiser(self: Arc<Self>) {
        let mut pause = PAUSE;
        while !self.is_ending() {
            first(self.wants_raising.notified(), self.platform.tasks.sleep(pause)).await;
            if !self.is_ending() {
                let began = self.platform.clock.elapsed();
                let is_done = self.raise_left(self.options.repair_share).await;
                let took = self.platform.clock.elapsed().saturating_sub(began);
                pause = if is_done { PAUSE } else { PAUSE_MAX.min(2 * pause).max(took * OF_TIME) };
            }
        }
        self.stopped.add_permits(1);
    }
}
