//! Trees that go at once.

use file::{FileError, View};
use platform::real::block_on;
use serde_json::{Value, json};

use crate::control::wire::Name;
use crate::failure::Failure;
use crate::front::control::Control;

impl Control {
    pub(in crate::front::control) fn batch_remove(&self, parent: u64, name: &Name) -> Result<Value, Failure> {
        let what = "cannot remove";
        let refuse = |why: &str| Failure::new(what, why).place(name.to_string()).mend("nothing was changed");
        let gone = "the daemon knows no directory of this inode number any more";
        let directory = self.find(parent).ok_or_else(|| refuse(gone))?;
        if directory.view != View::LIVE {
            return Err(refuse("it is in a snapshot, which does not change"));
        }
        let started = self.platform.clock.elapsed();
        let removed = block_on(self.system.batch_remove(directory.file, name.bytes()));
        self.names_changed(directory, [name.bytes()]);
        removed.map_err(|error| match error {
            FileError::NoEntry => refuse("there is no such file"),
            FileError::NotPermitted(why) | FileError::Busy(why) => refuse(why),
            error => self.explain(what)(error),
        })?;
        let seconds = self.platform.clock.elapsed().saturating_sub(started).as_secs_f64();
        Ok(json!({ "seconds": seconds }))
    }
}
