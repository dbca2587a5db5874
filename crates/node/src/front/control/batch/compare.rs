//! Differences between two trees, told into windows as they are found.
//!
//! Not here: how they are found (`file`).

use std::time::Duration;

use file::{Attributes, BatchCompare, Compared, FileError, Node, Walked};
use parking_lot::Mutex;
use platform::real::block_on;
use serde_json::{Value, json};

use super::read::Filler;
use crate::control::batch::wire::{Change, PATH_BYTES_MAX, Record, State};
use crate::control::server::Brought;
use crate::control::wire::BatchComparing;
use crate::failure::Failure;
use crate::front::control::Control;
use crate::front::nodes::inode_number;

const WHAT: &str = "cannot compare";
/// What a comparison takes at most.
const MEMORY_MAX: u64 = 32 << 20;
/// What was found is handed over after this time, if there is anything.
const TELL_INTERVAL: Duration = Duration::from_millis(200);

impl Control {
    pub(in crate::front::control) fn batch_compare(
        &self,
        how: &BatchComparing,
        brought: Brought<'_, '_>,
    ) -> Result<Value, Failure> {
        let (memory, line) = self.memory(WHAT, brought, (how.windows, how.window_bytes))?;
        let find = |inode: u64| {
            let why = "the daemon knows no file of this inode number";
            let unknown = || Failure::new(WHAT, why).place(inode.to_string()).mend("keep it open meanwhile");
            self.find(inode).ok_or_else(unknown)
        };
        let (before, after) = (find(how.before)?, find(how.after)?);
        let started = self.platform.clock.elapsed();
        // What is found, and when it was last handed over.
        let filler = Mutex::new((Filler::begin(self, memory, line)?, started));
        let go_on = |(filler, told): &mut (Filler<'_, '_>, Duration), remark: &dyn Fn() -> String| {
            let now = self.platform.clock.elapsed();
            if now.saturating_sub(*told) >= TELL_INTERVAL {
                *told = now;
                return filler.remark(remark()).is_ok();
            }
            true
        };
        let mut found = 0_u64;
        let mut tell = |difference: Result<Compared<'_>, (&[u8], FileError)>| {
            let mut filler = filler.lock();
            found += 1;
            let appended = filler.0.append(&record((before, after), difference).encode());
            appended.is_ok() && go_on(&mut filler, &|| format!("found {found} differences"))
        };
        let progress = |looked_at: u64| {
            go_on(&mut filler.lock(), &|| format!("looked at {looked_at} files and directories of both"))
        };
        let memory = self.batch_bytes().min(MEMORY_MAX);
        let how = BatchCompare { content_only: how.content_only, memory, progress: &progress };
        filler.lock().0.has_memory = true;
        let compared = block_on(self.system.batch_compare(before, after, &how, &mut tell));
        filler.lock().0.has_memory = false;
        let report = compared.map_err(|error| match error {
            FileError::NotSupported(why) => Failure::new(WHAT, why),
            error => self.explain(WHAT)(error),
        })?;
        filler.into_inner().0.finish()?;
        Ok(json!({
            "looked_at": report.looked_at,
            "searched_names": report.searched,
            "seconds": self.platform.clock.elapsed().saturating_sub(started).as_secs_f64(),
        }))
    }
}

fn record((before, after): (Node, Node), difference: Result<Compared<'_>, (&[u8], FileError)>) -> Record {
    let seen = |side: Node, attributes: &Attributes| State {
        kind: attributes.kind,
        mode: attributes.mode,
        uid: attributes.uid,
        gid: attributes.gid,
        size: attributes.size,
        inode: inode_number(Node { view: side.view, file: attributes.file }),
    };
    let (path, change) = match difference {
        Ok(Compared::OnlyBefore(Walked { path, attributes, .. })) => {
            (path, Ok((Some(seen(before, attributes)), None, Vec::new())))
        }
        Ok(Compared::OnlyAfter(Walked { path, attributes, .. })) => {
            (path, Ok((None, Some(seen(after, attributes)), Vec::new())))
        }
        Ok(Compared::Changed { path, before: was, after: is, what }) => {
            (path, Ok((Some(seen(before, was)), Some(seen(after, is)), what.to_vec())))
        }
        Err((path, error)) => (path, Err(error)),
    };
    if path.len() > PATH_BYTES_MAX {
        return Record::Lost { path: path[..PATH_BYTES_MAX].to_vec(), why: FileError::NameTooLong.to_string() };
    }
    let path = path.to_vec();
    match change {
        Ok((before, after, what)) => Record::Change(Box::new(Change { path, before, after, what })),
        Err(error) => Record::Lost { path, why: error.to_string() },
    }
}
