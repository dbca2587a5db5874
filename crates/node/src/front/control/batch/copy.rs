//! Trees that are copied within the file system, with their content shared.
//!
//! Not here: how (`file`).

use base::units::Bytes;
use file::{BatchCopy, BatchEntry, BatchWriteReport, FileError, View};
use platform::real::block_on;
use serde_json::{Value, json};

use super::name_of;
use crate::control::wire::{Anew, Name};
use crate::failure::Failure;
use crate::front::control::Control;
use crate::front::control::maintain::{Teller, beside};

/// Failures that the answer lists; all of them are counted.
const LISTED_MAX: usize = 100_000;

impl Control {
    pub(in crate::front::control) fn batch_copy(
        &self,
        (source, parent, name): (u64, u64, &Name),
        anew: Option<Anew>,
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
        let copied = beside(progress, |send| {
            let teller = Teller::new(&self.platform, send);
            let tell = |files: u64, bytes: u64| {
                teller.tell(files, None, &|rate| format!("{files} files, {}, {rate} files/s", Bytes(bytes)));
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
        let listed = report.failed.iter().take(LISTED_MAX);
        let failed: Vec<_> = listed.map(|(path, error)| (Name::new(path), error.to_string())).collect();
        Ok(json!({
            "files": report.files,
            "bytes": report.bytes,
            "failures": report.failed.len(),
            "failed": failed,
            "seconds": self.platform.clock.elapsed().saturating_sub(started).as_secs_f64(),
        }))
    }
}
