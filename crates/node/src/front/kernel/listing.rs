//! Listings of directories, plain and with attributes.
//!
//! A cookie is where a listing goes on after an entry. 1 and 2 are those of `.` and `..`, which the file layer does not have; it
//! begins its own behind them.

use file::{DirectoryEntry, FileError, Kind, Node};
use fuse::{DirectoryWriter, Service};

use super::Kernel;
use super::reply::{Answer, Reply};
use crate::front::nodes::inode_number;

const DOT: u64 = 1;
const DOT_DOT: u64 = 2;
/// Bytes of an average entry, plain and with attributes: how many entries are asked for at a time.
const ENTRY_BYTES: usize = 40;
const ENTRY_PLUS_BYTES: usize = ENTRY_BYTES + 128;

impl Kernel {
    pub(super) async fn list(&self, directory: Node, offset: u64, room: &mut [u8]) -> Answer {
        let limit = room.len() / ENTRY_BYTES;
        let mut writer = DirectoryWriter::new(room);
        for (cookie, node, name) in self.dots(directory, offset).await? {
            if !writer.add(inode_number(node), cookie, kind_number(Kind::Directory), name) {
                return Ok(Reply::Data(writer.bytes()));
            }
        }
        for entry in self.system.read_directory(directory, offset, limit).await? {
            if !writer.add(inode_number(entry.node), entry.cookie, kind_number(entry.kind), &entry.name) {
                break;
            }
        }
        Ok(Reply::Data(writer.bytes()))
    }

    pub(super) async fn list_plus(&self, directory: Node, offset: u64, caller: u32, room: &mut [u8]) -> Answer {
        let limit = room.len() / ENTRY_PLUS_BYTES;
        let mut writer = DirectoryWriter::new(room);
        for (cookie, node, name) in self.dots(directory, offset).await? {
            let kind = kind_number(Kind::Directory);
            // The kernel knows these two; it wants no attributes and counts no reference.
            if !writer.add_plus(&fuse::Entry::default(), inode_number(node), cookie, kind, name) {
                return Ok(Reply::Data(writer.bytes()));
            }
        }
        let entries = self.system.read_directory(directory, offset, limit).await?;
        let wants_all = self.listers.wants_attributes(directory, caller);
        let is_wanted = |entry: &DirectoryEntry| wants_all || entry.kind == Kind::Directory;
        // More than fit may come: whole nodes of the directory's tree do.
        let wanted: Vec<Node> =
            entries.iter().take(limit).filter(|entry| is_wanted(entry)).map(|entry| entry.node).collect();
        self.system.load_listed(directory, &wanted).await;
        for entry in &entries {
            let is_added = match is_wanted(entry) {
                true => self.add_plus(&mut writer, directory, entry).await,
                false => add_name(&mut writer, entry),
            };
            if !is_added {
                break;
            }
        }
        Ok(Reply::Data(writer.bytes()))
    }

    /// Fails in no case: the kernel would hear of none of the references that it was given by entries before this one (I-91).
    async fn add_plus(&self, writer: &mut DirectoryWriter<'_>, directory: Node, listed: &DirectoryEntry) -> bool {
        let kind = kind_number(listed.kind);
        let inode = inode_number(listed.node);
        let found = match self.system.attributes(listed.node).await {
            Ok(attributes) => match self.system.retain_found(listed.node).await {
                Ok(()) => Ok(self.told(listed.node, attributes).await),
                Err(error) => Err(error),
            },
            error => error,
        };
        let entry = match found {
            Ok(attributes) => self.entry(listed.node, &attributes, self.valid_in(directory)),
            // Removed meanwhile, or damaged: the name stands, and whoever uses it hears what is wrong.
            Err(_) => return add_name(writer, listed),
        };
        let is_added = writer.add_plus(&entry, inode, listed.cookie, kind, &listed.name);
        if !is_added {
            // The kernel does not get it after all.
            self.forget(entry.node, 1);
        }
        is_added
    }

    /// `.` and `..` with their cookies, as far as they come after `offset`.
    async fn dots(&self, directory: Node, offset: u64) -> Result<Vec<(u64, Node, &'static [u8])>, FileError> {
        let mut dots: Vec<(u64, Node, &[u8])> = Vec::new();
        if offset < DOT {
            dots.push((DOT, directory, b"."));
        }
        if offset < DOT_DOT {
            dots.push((DOT_DOT, self.system.parent(directory).await?, b".."));
        }
        Ok(dots)
    }
}

/// Adds a name without attributes, and without a reference.
fn add_name(writer: &mut DirectoryWriter<'_>, listed: &DirectoryEntry) -> bool {
    let (inode, kind) = (inode_number(listed.node), kind_number(listed.kind));
    writer.add_plus(&fuse::Entry::default(), inode, listed.cookie, kind, &listed.name)
}

/// `d_type`: our kinds have its numbers.
fn kind_number(kind: Kind) -> u32 {
    u32::from(kind as u8)
}
