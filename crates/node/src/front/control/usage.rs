//! What a tree takes.

use std::collections::HashSet;

use base::id::FileId;
use base::units::Bytes;
use file::{FileError, Kind, Walked};
use serde_json::{Value, json};

use super::maintain::{Teller, beside};
use super::{Control, Named};
use crate::control::wire::Name;
use crate::failure::Failure;

/// Files of several names that are remembered, so that they count once.
const LINKED_MAX: usize = 4 << 20;

#[derive(Default)]
struct Usage {
    files: u64,
    directories: u64,
    others: u64,
    bytes: u64,
    allocated: u64,
    failed: u64,
    unreadable: Named,
    linked: HashSet<FileId>,
}

impl Control {
    pub(super) fn usage(&self, inode: u64, progress: &mut dyn FnMut(&str)) -> Result<Value, Failure> {
        let what = "cannot count";
        let unknown = || Failure::new(what, "the daemon knows no file of this inode number").place(inode.to_string());
        let root = self.find(inode).ok_or_else(unknown)?;
        let started = self.platform.clock.elapsed();
        let mut usage = Usage::default();
        let walked = beside(progress, |send| {
            let teller = Teller::new(&self.platform, send);
            let mut tell = |step: Result<Walked<'_>, (&[u8], FileError)>| {
                usage.add(step);
                if usage.files.is_multiple_of(1 << 12) {
                    let (files, bytes) = (usage.files, usage.bytes);
                    teller.tell(files, None, &|rate| format!("{files} files, {}, {rate}/s", Bytes(bytes)));
                }
                true
            };
            self.walk(root, &mut tell)
        });
        walked.map_err(self.explain(what))?;
        Ok(json!({
            "files": usage.files,
            "directories": usage.directories,
            "others": usage.others,
            "bytes": usage.bytes,
            "allocated_bytes": usage.allocated,
            "failed": usage.failed,
            "unreadable": usage.unreadable.0,
            "seconds": self.platform.clock.elapsed().saturating_sub(started).as_secs_f64(),
        }))
    }
}

impl Usage {
    fn add(&mut self, step: Result<Walked<'_>, (&[u8], FileError)>) {
        let attributes = match step {
            Ok(Walked { attributes, .. }) => attributes,
            Err((path, error)) => {
                self.failed += 1;
                self.unreadable.add((Name::new(path), error.to_string()));
                return;
            }
        };
        match attributes.kind {
            Kind::Directory => self.directories += 1,
            _ if attributes.links > 1 && !self.is_new(attributes.file) => {}
            Kind::Regular => {
                self.files += 1;
                self.bytes += attributes.size;
                self.allocated += attributes.allocated;
            }
            _ => self.others += 1,
        }
    }

    fn is_new(&mut self, file: FileId) -> bool {
        // Beyond that each name counts.
        self.linked.len() >= LINKED_MAX || self.linked.insert(file)
    }
}
