//! Directory listings: entries packed into the reply room until it is full.
//!
//! Every record starts at a multiple of 8 bytes. A record that does not fit is not begun, and the kernel asks again
//! from the last cookie it saw: so the caller stops at the first refusal.

use crate::answer::Entry;
use crate::wire;
use zerocopy::IntoBytes;

/// Packs the answer to READDIR or READDIRPLUS. Finish with `Exchange::answer_data(writer.bytes())`.
pub struct DirectoryWriter<'a> {
    room: &'a mut [u8],
    used: usize,
}

impl<'a> DirectoryWriter<'a> {
    /// Starts an empty listing in `room`, which is what `Exchange::reply_room` gave.
    pub fn new(room: &'a mut [u8]) -> DirectoryWriter<'a> {
        DirectoryWriter { room, used: 0 }
    }

    /// Adds a name to a READDIR. `cookie` is where the next request continues after this entry; `kind` is a `DT_`
    /// number. False when the listing is full: the entry was not added.
    #[must_use]
    pub fn add(&mut self, node: u64, cookie: u64, kind: u32, name: &[u8]) -> bool {
        self.record(&[], node, cookie, kind, name)
    }

    /// Adds a name and its node to a READDIRPLUS. `entry.node` of 0 sends the name alone; any other adds 1 to the
    /// node's count, as LOOKUP does, except for "." and "..".
    #[must_use]
    pub fn add_plus(&mut self, entry: &Entry, node: u64, cookie: u64, kind: u32, name: &[u8]) -> bool {
        self.record(wire::EntryOut::from(entry).as_bytes(), node, cookie, kind, name)
    }

    /// Bytes written so far.
    pub fn bytes(&self) -> usize {
        self.used
    }

    fn record(&mut self, front: &[u8], node: u64, cookie: u64, kind: u32, name: &[u8]) -> bool {
        let Ok(name_bytes) = u32::try_from(name.len()) else { return false };
        let head = wire::Dirent { node, cookie, name_bytes, kind };
        let bytes = (front.len() + size_of::<wire::Dirent>() + name.len()).next_multiple_of(8);
        let Some(place) = self.room[self.used..].get_mut(..bytes) else { return false };
        let (start, place) = place.split_at_mut(front.len());
        start.copy_from_slice(front);
        let (middle, place) = place.split_at_mut(size_of::<wire::Dirent>());
        middle.copy_from_slice(head.as_bytes());
        let (text, padding) = place.split_at_mut(name.len());
        text.copy_from_slice(name);
        padding.fill(0);
        self.used += bytes;
        true
    }
}
