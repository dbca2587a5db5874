//! Batches that other processes ask for, through shared memory.
//!
//! Not here: what the memory and the lines are (`control::batch`), how units are written and read (`file`).

mod copy;
mod list;

mod read;

mod compare;

mod remove;
mod write;

use std::io;
use std::os::fd::OwnedFd;

use file::{FileError, Node, WalkTell, Walked};
use platform::real::block_on;

use super::Control;
use crate::control::batch::memory::Memory;
use crate::control::server::{Brought, Line};
use crate::failure::Failure;

/// Of what may be accepted before it is stored a batch takes this part at most.
const BUFFER_PARTS: u64 = 4;
/// Why a conversation ends before its end.
const CLOSED: &str = "the node is being closed";

impl Control {
    /// The memory that came with a request, and the line to who brought it.
    fn memory<'a, 'b>(
        &self,
        what: &str,
        brought: Brought<'a, 'b>,
        (windows, window_bytes): (u32, u32),
    ) -> Result<(Memory, &'a mut Line<'b>), Failure> {
        let Brought { descriptor, line } = brought;
        let line = line.ok_or_else(|| Failure::new(what, "no daemon runs on this node").at(&self.folder.path))?;
        let none = || Failure::new(what, "no memory came with the request").mend("see docs/format.md");
        let descriptor: OwnedFd = descriptor.ok_or_else(none)?;
        let refuse = |why| Failure::new(what, format!("the memory that came is not as it must be: {why}"));
        let memory = Memory::accept(descriptor, windows, window_bytes);
        Ok((memory.map_err(|why| refuse(why).mend("nothing was changed"))?, line))
    }

    /// What of a window is taken into memory at a time (I-131).
    fn window_room(&self, memory: &Memory) -> u32 {
        u32::try_from(self.batch_bytes()).unwrap_or(u32::MAX).min(memory.window_bytes())
    }

    fn batch_bytes(&self) -> u64 {
        self.system.status().dirty_bytes_max / BUFFER_PARTS
    }
}

impl Control {
    /// Why nobody is waited for any more, if so.
    fn is_closed(&self) -> Option<&'static str> {
        self.system.is_ending().then_some(CLOSED)
    }

    /// Walks a tree; gives whether to its end, or else until `tell` wanted no more. That the node is closed meanwhile is an error: a part
    /// of a tree must not pass for all of it (I-157).
    pub(super) fn walk(&self, root: Node, tell: &mut WalkTell<'_>) -> Result<bool, FileError> {
        let (mut goes_on, mut is_cut) = (true, false);
        let mut tell_or_end = |step: Result<Walked<'_>, (&[u8], FileError)>| {
            goes_on = tell(step);
            is_cut = goes_on && self.system.is_ending();
            goes_on && !is_cut
        };
        block_on(self.system.batch_walk(root, &mut tell_or_end))?;
        if is_cut { Err(FileError::Busy(CLOSED)) } else { Ok(goes_on) }
    }
}

/// The name that a path leads to in its directory.
fn name_of(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// The failure of a batch whose client has gone.
fn lost(what: &str, error: &io::Error) -> Failure {
    Failure::new(what, format!("lost who asked: {error}"))
}

#[cfg(test)]
mod tests {
    use base::id::{FileId, NodeNumber};
    use file::{FileError, Node};
    use platform::real::{self, Directory, block_on};

    use super::{CLOSED, Control};
    use crate::config::Config;
    use crate::node_folder::{FORMAT, Identity, NodeFolder};
    use crate::opening;

    #[test]
    fn a_walk_that_the_nodes_end_cuts_short_is_none() {
        let folder = std::env::temp_dir().join(format!("hydrafs-cut-{}", std::process::id()));
        let (at, path) = (folder.join("disk"), folder.join("n"));
        [&at, &path].iter().for_each(|path| std::fs::create_dir_all(path).expect("room"));
        let platform = real::platform();
        let disks = [Directory::open(&at).expect("there")];
        block_on(file::format_node(&platform, &disks, NodeNumber(1), 0, 0)).expect("an empty disk");
        let identity = Identity { format: FORMAT, uuid: "0".repeat(32), number: 1, disks: vec![at] };
        let node = NodeFolder::create(&path, identity).expect("room");
        let (system, _) = opening::open(&node, &Config::default(), &platform, &[]).expect("a clean node");
        let control = Control::new(&node, &platform, &system);
        let root = Node::live(FileId::ROOT);
        assert!(control.walk(root, &mut |_| true).expect("a clean node"));
        assert!(!control.walk(root, &mut |_| false).expect("a clean node"));

        let cut = control.walk(root, &mut |_| {
            let closed = std::thread::scope(|scope| scope.spawn(|| block_on(system.close())).join());
            closed.expect("no panic").is_ok()
        });
        assert_eq!(cut.expect_err("more was to come").to_string(), FileError::Busy(CLOSED).to_string());
        let usage = control.usage(FileId::ROOT.number, &mut |_| {});
        assert!(usage.expect_err("only its root was counted").why.contains(CLOSED));
        std::fs::remove_dir_all(folder).expect("ours");
    }
}
