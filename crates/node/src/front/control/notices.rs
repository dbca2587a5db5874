//! What the kernel must hear of changes that did not come from it.
//!
//! I-133 Who changes names or files by another way than the mount has the kernel forget what it keeps of them after the change and before
//!       he answers: a look-up that begins then finds what is there now. Of a directory that it was not given it keeps nothing.
//!
//! Never called on a thread that serves the kernel.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::id::FileId;
use file::{BatchWriteReport, Node};
use fuse::Notice;

use super::{Control, Mounted};

impl Control {
    /// These names of a directory are made, gone, or lead elsewhere.
    pub(super) fn names_changed<'a>(&self, directory: Node, names: impl IntoIterator<Item = &'a [u8]>) {
        if let Some((mount, parent)) = self.known(directory) {
            names_changed_in(mount, parent, names);
        }
    }

    /// A unit of a batch was written. `names`: of each of its entries.
    pub(super) fn unit_written<'a>(&self, names: impl IntoIterator<Item = &'a [u8]>, report: &BatchWriteReport) {
        if !report.is_done {
            return;
        }
        let mut changed: BTreeMap<FileId, Vec<&[u8]>> = BTreeMap::new();
        for (name, home) in names.into_iter().zip(&report.homes).filter(|(_, home)| **home != FileId::NONE) {
            changed.entry(*home).or_default().push(name);
        }
        for (directory, names) in changed {
            self.names_changed(Node::live(directory), names);
        }
        // Who was just looked up by one of these names is known by now.
        report.fates.iter().flatten().for_each(|file| self.file_changed(*file));
    }

    /// A file has other attributes and other content.
    pub(super) fn file_changed(&self, file: FileId) {
        let Some((mount, node)) = self.known(Node::live(file)) else { return };
        tell(mount, &Notice::InvalidateInode { node, offset: 0, bytes: 0 });
    }

    /// Names that go behind, with a tree, take links off files that the kernel may know by other names (I-133).
    pub(crate) fn hear_of_links(self: &Arc<Self>) {
        // The file system must not keep who keeps it.
        let control = Arc::downgrade(self);
        self.system.hear_of_links(move |file| {
            let control = control.upgrade();
            control.inspect(|control| control.links_changed(file)).is_some()
        });
    }

    /// A file has other attributes. Its content is as before: to have the kernel drop that is to wait for requests of it, which wait
    /// themselves while the mount is parked, for who removes a tree.
    fn links_changed(&self, file: FileId) {
        let Some((mount, node)) = self.known(Node::live(file)) else { return };
        told(mount.notifier.forget_attributes(node));
    }

    /// The mount, and the kernel's number of a node, if it may keep something of it.
    fn known(&self, node: Node) -> Option<(&Mounted, u64)> {
        let mount = self.mount.as_ref()?;
        let is_known = self.system.is_referenced(node.file);
        Some((mount, mount.kernel.number_of(node).filter(|_| is_known)?))
    }
}

/// Names first: the kernel takes the directory's lock for each, and so waits for a listing that is under way and would be kept.
pub(super) fn names_changed_in<'a>(mount: &Mounted, parent: u64, names: impl IntoIterator<Item = &'a [u8]>) {
    for name in names {
        tell(mount, &Notice::InvalidateEntry { parent, name: name.to_vec() });
    }
    // Its listing, and its attributes.
    tell(mount, &Notice::InvalidateInode { node: parent, offset: 0, bytes: 0 });
}

fn tell(mount: &Mounted, notice: &Notice) {
    told(mount.notifier.send(notice));
}

fn told(result: std::io::Result<bool>) {
    // It fails when the mount goes away at this moment, and then nobody looks.
    if let Err(error) = result {
        tracing::debug!("the kernel was not told of a change: {error}");
    }
}
