//! Problems, and remedies: what can be done about them.
//!
//! Not here: finding them (`check`, and in part whoever opens a store), doing it (`repair`, and the layer above).

use std::fmt;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its permanent number, such as `HF0001`.
    pub code: &'static str,
    /// The structure, in words.
    pub what: &'static str,
    /// The file.
    pub path: String,
    /// Bytes from the start of the file.
    pub offset: u64,
    /// What should be there.
    pub expected: String,
    /// What is there.
    pub found: String,
    /// What can be done about it; `None`: somebody has to look at it.
    pub remedy: Option<Remedy>,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Problem { code, what, path, offset, expected, found, .. } = self;
        write!(out, "{code} {what}: {path} at {offset}; expected {expected}, found {found}")
    }
}

/// What mends a problem. The order is that in which they are carried out: what comes later rests on what came before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Remedy {
    /// The identity of a disk, and its copy, are written again from memory.
    Identity {
        /// Its number.
        disk: usize,
    },
    /// The newest roots are written into both slots of every disk.
    Superblock,
    /// Everything that the journal should have is in memory: after a commit nobody needs the journal.
    Commit,
    /// The index is made again from the packs. Before the packs, whose repair rests on what it says.
    Index,
    /// A pack file that was left alone when the store was opened is read again and taken in.
    Adopt {
        /// The disk it lies on.
        disk: usize,
        /// Its number.
        pack: u64,
    },
    /// A pack that is on other disks too is written again to one.
    Copy {
        /// The disk.
        disk: usize,
        /// Its number.
        pack: u64,
    },
    /// A pack is brought onto as many disks as it should be on.
    Copies {
        /// Its number.
        pack: u64,
    },
    /// The good chunks of a pack are copied to other packs, and its file goes.
    Pack {
        /// Its number.
        pack: u64,
    },
    /// A pack that is gone is forgotten.
    Forget {
        /// Its number.
        pack: u64,
    },
    /// Of the layer above: its trees are written again as what can be read of them says.
    Trees {
        /// Without what cannot be read, which is lost then. Only if somebody said so.
        gives_up: bool,
    },
}

impl Remedy {
    /// Whether something is given up that might be found again some other way.
    #[must_use]
    pub fn gives_up(&self) -> bool {
        matches!(self, Remedy::Trees { gives_up: true })
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remedy::Identity { disk } => write!(f, "write the identity of disk {disk} again, from memory"),
            Remedy::Superblock => f.write_str("write the newest superblock into both slots of every disk"),
            Remedy::Commit => f.write_str("commit what is in memory, so that the journal is not needed any more"),
            Remedy::Index => f.write_str("make the index again from the packs; reads the directory of each"),
            Remedy::Adopt { disk, pack } => write!(f, "read pack {pack:016x} on disk {disk} again and take it in"),
            Remedy::Copy { disk, pack } => write!(f, "write pack {pack:016x} to disk {disk} again, as it is on others"),
            Remedy::Copies { pack } => write!(f, "copy pack {pack:016x} to as many disks as it should be on"),
            Remedy::Pack { pack } => write!(
                f,
                "copy the good chunks of pack {pack:016x} to other packs and take it out of use; reads it once and needs room for \
                 what is good; its file is set aside if something in it is lost, and removed if not"
            ),
            Remedy::Forget { pack } => write!(
                f,
                "forget pack {pack:016x}, so that its content is stored anew when it is written again; should its file come \
                 back, it is taken in by the next start"
            ),
            Remedy::Trees { gives_up: false } => {
                f.write_str("set links, sizes, parents and lists right; files that lost their names go to /lost+found")
            }
            Remedy::Trees { gives_up: true } => f.write_str(
                "write directories, the catalog and the list of snapshots again without what cannot be read of them, note what content \
                 is lost, remove the names that lead nowhere, and bring files that lost their names to /lost+found (needs \
                 --accept-loss)",
            ),
        }
    }
}
