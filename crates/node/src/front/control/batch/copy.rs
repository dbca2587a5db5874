//! Trees that are copied within the file system, with their content shared. Who hangs up, or says anything, wants no more of it.
//!
//! Not here: how (`file`).

use std::sync::atomic::{AtomicBool, Ordering};

use base::units::Bytes;
use file::{BatchCopy, BatchEntry, BatchWriteReport, FileError, View};
use platform::real::block_on;
use serde_json::{Value, json};

use super::name_of;
use crate::control::server::Brought;
use crate::control::wire::{Anew, Name};
use crate::failure::Failure;
use crate::front::control::Control;
use crate::front::control::maintain::{Teller, beside};

impl Control {
    pub(in crate::front::control) fn batch_copy(
        &self,
        (source, parent, name): (u64, u64, &Name),
        anew: Option<Anew>,
        brought: Brought<'_, '_>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Value, Failure> {
        let what = "cannot copy";
        let refuse = |why: &str| Failure::new(what, why).place(name.to_string()).mend("nothing was changed");
        let gone = "the daemon knows no file of this inode number any more: it was removed, or another mount is asked";
        let source = self.find(source).ok_or_else(|| refuse(gone))?;
        let directory = self.find(parent).ok_or_else(|| refuse(gone))?;
        if directory.view != View::LIVE {
            return Err(refuse("it would be in a snapshot, which does not change"));
        }
        let started = self.platform.clock.elapsed();
        let is_stopped = AtomicBool::new(false);
        let mut say = |text: &str| {
            progress(text);
            // Of one that cannot be asked nobody knows that he waits.
            let has_left = brought.line.as_ref().is_some_and(|line| line.has_more().unwrap_or(true));
            is_stopped.fetch_or(has_left, Ordering::Relaxed);
        };
        let copied = beside(&mut say, |send| {
            let teller = Teller::new(&self.platform, send);
            let tell = |files: u64, bytes: u64| {
                teller.tell(files, None, &|rate| format!("{files} files, {}, {rate} files/s", Bytes(bytes)));
                !is_stopped.load(Ordering::Relaxed)
            };
            let anew = anew.map(|Anew { uid, gid, umask }| file::Anew { uid, gid, umask: umask & 0o777 });
            // Who looks into the copy meanwhile has the kernel keep what there is of it.
            let written = |entries: &[BatchEntry], report: &BatchWriteReport| {
                self.unit_written(entries.iter().map(|entry| name_of(&entry.path)), report);
            };
            let how = BatchCopy { anew, tell: &tell, written: &written };
            block_on(async {
                let copied = self.system.batch_copy(source, directory.file, name.bytes(), &how).await;
                self.system.sync(directory.file).await.and(copied)
            })
        });
        let report = copied.map_err(|error| match error {
            FileError::Exists => refuse("there is a file of this name"),
            FileError::NotSupported(why) | FileError::Invalid(why) => refuse(why),
            error => self.explain(what)(error),
        })?;
        let listed = report.failed.iter();
        let failed: Vec<_> = listed.map(|(path, error)| (Name::new(path), error.to_string())).collect();
        Ok(json!({
            "files": report.files,
            "bytes": report.bytes,
            "failures": report.failures,
            "failed": failed,
            "units": report.units,
            "ended": report.ended.map(|error| error.to_string()),
            "seconds": self.platform.clock.elapsed().saturating_sub(started).as_secs_f64(),
        }))
    }
}
