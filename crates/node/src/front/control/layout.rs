//! Layout upkeep and warming up that somebody asks for.
//!
//! Not here: what is done (`file`), and what of it goes on in the background.

use base::units::Bytes;
use file::{BatchOptimize, BatchWarm, FileError, LayoutStatus, View};
use parking_lot::Mutex;
use platform::real::block_on;
use serde_json::{Value, json};

use super::maintain::{Teller, beside};
use super::{Control, Named};
use crate::control::wire::Name;
use crate::failure::Failure;

const GONE: &str = "the daemon knows no file of this inode number any more: it was removed, or another mount is asked";

impl Control {
    pub(super) fn optimize(
        &self,
        inode: u64,
        (dry_run, share): (bool, u8),
        progress: &mut dyn FnMut(&str),
    ) -> Result<Value, Failure> {
        let what = "cannot bring files together";
        let refuse = |why: &str| Failure::new(what, why).mend("nothing was changed");
        let share = self.share(Some(share), what)?;
        let node = self.find(inode).ok_or_else(|| refuse(GONE))?;
        if node.view != View::LIVE {
            return Err(refuse("it is in a snapshot, whose files lie where they lay when it was taken"));
        }
        let started = self.platform.clock.elapsed();
        let unreadable = Mutex::new(Named::default());
        let report = beside(progress, |send| {
            let teller = Teller::new(&self.platform, send);
            let fail = |path: &[u8], error: FileError| unreadable.lock().add((Name::new(path), error.to_string()));
            let verb = if dry_run { "would be" } else { "were" };
            let tell = |files: u64, bytes: u64| {
                teller.tell(files, None, &|rate| {
                    format!("looked at {files} files, {rate}/s; {} {verb} written", Bytes(bytes))
                });
                true
            };
            let how =
                BatchOptimize { is_rehearsal: dry_run, share, tell: &tell, fail: &fail, ..BatchOptimize::default() };
            block_on(async {
                // What the journal alone has lies nowhere yet.
                self.system.sync_all().await?;
                self.system.commit().await?;
                self.system.batch_optimize(node.file, &how).await
            })
        });
        let report = report.map_err(|error| match error {
            FileError::NotDirectory => refuse("it is no directory").mend("name the directory that it is in"),
            error => self.explain(what)(error),
        })?;
        Ok(json!({
            "dry_run": dry_run,
            "complete": report.is_done,
            "files": report.files,
            "failed": report.failed,
            "unreadable": unreadable.into_inner().0,
            "runs_before": report.runs_before,
            "runs_after": report.runs_after,
            "runs_min": report.runs_min,
            "bytes": report.bytes,
            "seconds": self.platform.clock.elapsed().saturating_sub(started).as_secs_f64(),
        }))
    }

    pub(super) fn warm_up(
        &self,
        inodes: &[u64],
        metadata: bool,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Value, Failure> {
        let what = "cannot warm up";
        let roots: Option<Vec<_>> = inodes.iter().map(|inode| self.find(*inode)).collect();
        let roots = roots.ok_or_else(|| Failure::new(what, GONE))?;
        let started = self.platform.clock.elapsed();
        let failed = Mutex::new(Named::default());
        let warmed = beside(progress, |send| {
            let teller = Teller::new(&self.platform, send);
            let tell = |files: u64, bytes: u64| {
                teller.tell(files, None, &|rate| format!("{files} files, {}, {rate} files/s", Bytes(bytes)));
                true
            };
            let fail = |root: usize, path: &[u8], error: FileError| {
                failed.lock().add((root, Name::new(path), error.to_string()));
            };
            block_on(
                self.system.batch_warm(&roots, &BatchWarm { is_metadata_only: metadata, tell: &tell, fail: &fail }),
            )
        });
        let report = warmed.map_err(|(_, error)| self.explain(what)(error))?;
        Ok(json!({
            "metadata": metadata,
            "complete": report.is_done,
            "full": report.is_full,
            "files": report.files,
            "directories": report.directories,
            "others": report.others,
            "bytes": report.bytes,
            "held_bytes": report.held_bytes,
            "room_bytes": report.room_bytes,
            "failures": report.failed,
            "failed": failed.into_inner().0,
            "seconds": self.platform.clock.elapsed().saturating_sub(started).as_secs_f64(),
        }))
    }
}

/// What goes on in the background.
pub(super) fn status(layout: &LayoutStatus) -> Value {
    let report = &layout.report;
    let last = layout.ended.map(|ended| {
        json!({
            "ended_seconds": ended.as_secs(),
            "complete": report.is_done,
            "files": report.files,
            "failed": report.failed,
            "runs_before": report.runs_before,
            "runs_after": report.runs_after,
            "bytes": report.bytes,
            "failure": layout.failure,
        })
    });
    json!({
        "interval_seconds": layout.interval.as_secs(),
        "now": layout.now.map(|(files, bytes)| json!({ "files": files, "bytes": bytes })),
        "last": last,
        "obstacle": layout.obstacle,
    })
}
