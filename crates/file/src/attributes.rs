//! What a file is, apart from its content: kind, owner, mode, times, sizes; and how callers change it.

use base::id::FileId;
use base::time::Timestamp;
use store::Resilience;

/// Kinds of files. The numbers are the format's (and those of `d_type`), so that a directory entry can carry one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A FIFO.
    Fifo = 1,
    /// A character device.
    CharacterDevice = 2,
    /// A directory.
    Directory = 4,
    /// A block device.
    BlockDevice = 6,
    /// A regular file.
    Regular = 8,
    /// A symbolic link.
    Symlink = 10,
    /// A Unix socket.
    Socket = 12,
}

impl Kind {
    /// The kind with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Kind> {
        [
            Kind::Fifo,
            Kind::CharacterDevice,
            Kind::Directory,
            Kind::BlockDevice,
            Kind::Regular,
            Kind::Symlink,
            Kind::Socket,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == number)
    }

    /// The file type bits of `st_mode`: the number shifted by twelve, by the ancient agreement of both encodings.
    #[must_use]
    pub fn mode_bits(self) -> u32 {
        (self as u32) << 12
    }
}

/// Set-user-id.
pub const SET_UID: u32 = 0o4000;
/// Set-group-id.
pub const SET_GID: u32 = 0o2000;
/// Permission bits with set-id and sticky.
pub const MODE_MASK: u32 = 0o7777;

/// A mode without set-user-id, and without set-group-id where the group may execute (else it means mandatory locking).
pub(crate) fn without_set_id(mode: u32) -> u32 {
    let group = if mode & 0o010 != 0 { SET_GID } else { 0 };
    mode & !(SET_UID | group)
}

/// The attributes of a file, as `stat` shows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Its id.
    pub file: FileId,
    /// Its kind.
    pub kind: Kind,
    /// Permission, set-id and sticky bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links. For directories: 2 and one for each directory in it. 0: unlinked.
    pub links: u32,
    /// Device number of a device file.
    pub device: u32,
    /// Bytes; for a directory the number of entries; for a symbolic link the length of its target.
    pub size: u64,
    /// Bytes that are not holes, before dedup and compression: what `st_blocks` counts.
    pub allocated: u64,
    /// Last read (relatime).
    pub accessed: Timestamp,
    /// Last change of content.
    pub modified: Timestamp,
    /// Last change of anything.
    pub changed: Timestamp,
    /// When it was made.
    pub born: Timestamp,
    /// For a directory, the one it lies in; the root lies in itself. For anything else a hint: the directory that it was made in or moved to
    /// last. It may have names elsewhere, or only there; 0: it was made by an older program.
    pub parent: FileId,
    /// Whether space was allocated beyond the size, so that size and allocation say nothing about holes.
    pub is_preallocated: bool,
    /// What is asked for its content against the loss of disks; of a directory, for what is made in it.
    pub resilience: Resilience,
}

impl Attributes {
    /// Of a directory without entries.
    pub(crate) fn empty_directory(
        file: FileId,
        parent: FileId,
        mode: u32,
        (uid, gid): (u32, u32),
        now: Timestamp,
    ) -> Self {
        Attributes {
            file,
            kind: Kind::Directory,
            mode,
            uid,
            gid,
            links: 2,
            device: 0,
            size: 0,
            allocated: 0,
            accessed: now,
            modified: now,
            changed: now,
            born: now,
            parent,
            is_preallocated: false,
            resilience: Resilience::OfNode,
        }
    }
}

/// A new value of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeChange {
    /// The clock's time.
    Now,
    /// This time.
    At(Timestamp),
}

/// What to change. Default: nothing.
#[derive(Clone, Debug, Default)]
pub struct AttributeChange {
    /// Permission, set-id and sticky bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Truncate or extend.
    pub size: Option<u64>,
    /// Access time.
    pub accessed: Option<TimeChange>,
    /// Modification time.
    pub modified: Option<TimeChange>,
    /// Clear set-user-id, and set-group-id where the group may execute (a write, truncate or chown by the unprivileged).
    pub clear_set_id: bool,
}

/// What a new file is to be.
#[derive(Clone, Debug)]
pub struct NewFile<'a> {
    /// Its kind.
    pub kind: Kind,
    /// Permission, set-id and sticky bits asked for.
    pub mode: u32,
    /// Bits to take away where the directory has no default ACL.
    pub umask: u32,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory has set-group-id.
    pub gid: u32,
    /// Device number.
    pub device: u32,
    /// Target of a symbolic link.
    pub target: &'a [u8],
}

/// Which state of the file system: the live one or a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct View(pub u32);

impl View {
    /// The present.
    pub const LIVE: View = View(0);
}

/// A file in a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    /// Live or snapshot.
    pub view: View,
    /// The file.
    pub file: FileId,
}

impl Node {
    /// A file of the present.
    #[must_use]
    pub fn live(file: FileId) -> Node {
        Node { view: View::LIVE, file }
    }
}
