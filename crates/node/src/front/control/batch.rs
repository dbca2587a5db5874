//! Batches that other processes ask for, through shared memory.
//!
//! Not here: what the memory and the lines are (`control::batch`), how units are written and read (`file`).

mod copy;
mod read;

mod compare;

mod remove;
mod write;

use std::io;
use std::os::fd::OwnedFd;

use super::Control;
use crate::control::batch::memory::Memory;
use crate::control::server::{Brought, Line};
use crate::failure::Failure;

/// Of what may be accepted before it is stored a batch takes this part at most.
const BUFFER_PARTS: u64 = 4;

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
        self.system.is_ending().then_some("the node is being closed")
    }
}

/// The failure of a batch whose client has gone.
fn lost(what: &str, error: &io::Error) -> Failure {
    Failure::new(what, format!("lost who asked: {error}"))
}
