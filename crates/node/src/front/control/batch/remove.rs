//! Trees that go at once.

use file::{FileError, View};
use platform::real::block_on;
use serde_json::{Value, json};

use crate::control::wire::Name;
use crate::failure::Failure;
use crate::front::control::Control;

/// Names that go before the kernel hears of them, about.
const TOGETHER: usize = 256;

impl Control {
    /// Tells of those that did not go: the place in the list, whether nothing was there, and why.
    pub(in crate::front::control) fn batch_remove(
        &self,
        parent: u64,
        names: &[Name],
        recursive: bool,
    ) -> Result<Value, Failure> {
        let what = "cannot remove";
        let refuse = |why: &str| Failure::new(what, why).mend("nothing was changed");
        let gone = "the daemon knows no directory of this inode number any more";
        let directory = self.find(parent).ok_or_else(|| refuse(gone))?;
        if directory.view != View::LIVE {
            return Err(refuse("it is in a snapshot, which does not change"));
        }
        let started = self.platform.clock.elapsed();
        let names: Vec<&[u8]> = names.iter().map(Name::bytes).collect();
        let mut removed = Vec::with_capacity(names.len());
        for names in names.chunks(TOGETHER) {
            removed.extend(block_on(self.system.batch_remove_names(directory.file, names, recursive)));
            self.names_changed(directory, names.iter().copied());
        }
        let mut failed = Vec::new();
        for (place, error) in
            removed.into_iter().enumerate().filter_map(|(place, removed)| Some((place, removed.err()?)))
        {
            let is_absent = matches!(error, FileError::NoEntry);
            let failure = match error {
                FileError::NoEntry => refuse("there is no such file"),
                FileError::IsDirectory => refuse("it is a directory"),
                FileError::NotPermitted(why) | FileError::Busy(why) => refuse(why),
                error => self.explain(what)(error),
            };
            failed.push(json!({ "place": place, "absent": is_absent, "failure": failure }));
        }
        let seconds = self.platform.clock.elapsed().saturating_sub(started).as_secs_f64();
        Ok(json!({ "seconds": seconds, "failed": failed }))
    }
}
