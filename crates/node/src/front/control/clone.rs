//! Clones of directories, as the command line asks for them.
//!
//! Not here: what a clone is (`file`).

use file::{FileError, View};
use platform::real::block_on;
use serde_json::{Value, json};

use super::Control;
use crate::failure::Failure;
use crate::front::nodes::inode_number;

impl Control {
    pub(super) fn clone_tree(&self, source: u64, parent: u64, name: &str) -> Result<Value, Failure> {
        let what = "cannot clone the directory";
        let refuse = |why: &str| Failure::new(what, why).place(name).mend("nothing was changed");
        let gone = "the daemon knows no file of this inode number any more: it was removed, or another mount is asked";
        let source = self.find(source).ok_or_else(|| refuse(gone))?;
        let directory = self.find(parent).ok_or_else(|| refuse(gone))?;
        if directory.view != View::LIVE {
            return Err(refuse("the clone would be in a snapshot, which does not change"));
        }
        let started = self.platform.clock.elapsed();
        let made = block_on(self.system.clone_tree(source, directory.file, name.as_bytes()));
        // Also if it failed: what failed last is to make it local, and then it is there.
        self.names_changed(directory, [name.as_bytes()]);
        let made = made.map_err(|error| match error {
            FileError::Exists => refuse("there is a file of this name"),
            FileError::NotDirectory => refuse(
                "only a directory is cloned: of a file `cp --reflink` makes a second one that shares its content",
            ),
            FileError::NotSupported(why) => refuse(why),
            error => self.explain(what)(error),
        })?;
        let seconds = self.platform.clock.elapsed().saturating_sub(started).as_secs_f64();
        Ok(json!({ "inode": inode_number(file::Node::live(made.file)), "clone": made.file.branch, "seconds": seconds }))
    }
}
