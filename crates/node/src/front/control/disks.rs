//! Disks that come and go: the store and the list in the node's folder are changed in the order that a crash in between does not matter.
//!
//! Not here: how (`store`).

use std::path::Path;

use base::units::Bytes;
use file::{FileError, Share};
use platform::real::{Directory, block_on};
use serde_json::{Value, json};

use super::Control;
use super::maintain::{Teller, beside};
use crate::failure::Failure;
use crate::opening;

impl Control {
    /// Formatted, noted in the folder, taken in: one that is noted and was not taken in is left alone by the next opening.
    pub(super) fn add_disk(&self, path: &Path) -> Result<Value, Failure> {
        let what = "cannot add the disk";
        let _list = self.disk_list.lock();
        let disk = Directory::open(path).map_err(|error| opening::explain_disk(what, &error))?;
        block_on(self.system.format_disk(&disk)).map_err(self.explain(what))?;
        self.folder.note_disk(path)?;
        let number = block_on(self.system.take_in_disk(&disk)).map_err(|error| {
            // It stays as a directory that is formatted; adding it again goes on from there.
            let _ = self.folder.forget_disk(path);
            self.explain(what)(error)
        })?;
        Ok(json!({ "number": number, "path": path.display().to_string() }))
    }

    pub(super) fn drain_plan(&self, disk: u64) -> Result<Value, Failure> {
        let plan = self.system.drain_plan(disk).map_err(self.explain("cannot drain the disk"))?;
        Ok(json!({
            "dry_run": true,
            "number": disk,
            "packs": plan.packs,
            "bytes": plan.bytes,
            "room_bytes": plan.room_bytes,
            "copies": plan.copies,
            "disks_left": plan.disks_left,
        }))
    }

    pub(super) fn take_part_again(&self, disk: u64) -> Result<Value, Failure> {
        block_on(self.system.drain_disk(disk, false)).map_err(self.explain("cannot end the draining"))?;
        Ok(json!({ "number": disk, "drained": false }))
    }

    pub(super) fn drain_disk(
        &self,
        disk: u64,
        (share, accept_fewer): (Option<u8>, bool),
        progress: &mut dyn FnMut(&str),
    ) -> Result<Value, Failure> {
        let what = "cannot drain the disk";
        let plan = self.system.drain_plan(disk).map_err(self.explain(what))?;
        if plan.lowers() && plan.disks_left > 0 && !accept_fewer {
            let why = format!(
                "what lies there is to be on {} disks, and {} would be left that take something",
                plan.copies, plan.disks_left
            );
            let mend = "add a disk first (`hydrafs disk add`), or put one in its place (`hydrafs disk replace`); `--accept-fewer-copies` does with fewer";
            return Err(Failure::new(what, why).at(&self.folder.path).mend(mend));
        }
        let share = match share {
            None => self.system.repair_share(),
            share => self.share(share, what)?,
        };
        let started = self.platform.clock.elapsed();
        block_on(self.system.drain_disk(disk, true)).map_err(self.explain(what))?;
        let (written, bytes) = beside(progress, |send| {
            let teller = Teller::new(&self.platform, send);
            let tell = |done, all| {
                teller.tell(done, Some(all), &|rate| {
                    format!("moved {} of {}, {}/s", Bytes(done), Bytes(all), Bytes(rate))
                });
            };
            self.empty_disk(disk, share, &tell)
        })?;
        Ok(json!({
            "number": disk,
            "drained": true,
            "seconds": self.platform.clock.elapsed().saturating_sub(started).as_secs_f64(),
            "packs_written": written,
            "bytes_written": bytes,
        }))
    }

    /// Pass by pass, for what was written meanwhile may lie there too. What cannot be brought away is told.
    fn empty_disk(&self, disk: u64, share: Share, tell: &(dyn Fn(u64, u64) + Sync)) -> Result<(u64, u64), Failure> {
        let what = "cannot bring all that is on the disk to others";
        let (mut written, mut bytes) = (0, 0);
        loop {
            let emptied = block_on(self.system.empty_disk(disk, share, tell));
            let (is_empty, report) = emptied.map_err(self.explain(what))?;
            written += report.written;
            bytes += report.bytes;
            if is_empty {
                return Ok((written, bytes));
            }
            if report.lacking > 0 || !report.problems.is_empty() || report.packs == 0 {
                let why = report.problems.first().cloned().unwrap_or_else(|| "something is there still".to_owned());
                return Err(Failure::new(what, why)
                    .at(&self.folder.path)
                    .mend("the disk takes nothing new and is tried again in the background; `hydrafs disk drain --stop` calls it off"));
            }
        }
    }

    /// Removed, forgotten in the folder, wiped: one that is in the folder and was removed is left alone by the next opening.
    pub(super) fn remove_disk(&self, disk: u64, accept_loss: bool) -> Result<Value, Failure> {
        let what = "cannot remove the disk";
        let _list = self.disk_list.lock();
        let gone = block_on(self.system.remove_disk(disk, accept_loss)).map_err(self.explain(what))?;
        let path = gone.path().to_owned();
        let disks = self.system.status().store.disks;
        if disks.iter().any(|disk| disk.is_missing) {
            self.folder.forget_disk(Path::new(&path))?;
        } else {
            // Which of several missing disks lay where nobody can tell, so that their paths are there still: now none of those is one of the node's.
            self.folder.keep_disks(&disks.iter().map(|disk| Path::new(&disk.path)).collect::<Vec<_>>())?;
        }
        let left = gone.wipe().err().map(|error| FileError::from(error).to_string());
        Ok(json!({ "number": disk, "path": path, "not_wiped": left }))
    }
}

#[cfg(test)]
mod tests;
