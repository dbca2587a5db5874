//! What a repair has found of one catalog, and how its names should be: in memory alone.
//!
//! Not here: reading the trees and writing them again (`repair`), what is special about clones (`clones`).

use std::collections::{BTreeMap, BTreeSet};

use base::id::FileId;

use super::LOST_FOUND;
use crate::attributes::Kind;
use crate::check::{Namesakes, PROBLEMS_MAX, unreachable};
use crate::tree::Edits;

/// An inode, as far as names need it.
pub(super) struct Known {
    pub(super) kind: Kind,
    pub(super) links: u32,
    pub(super) parent: FileId,
    pub(super) size: u64,
    pub(super) allocated: u64,
    /// What its extents come to, if all of them can be read.
    pub(super) covered: Option<u64>,
    /// Its extended attributes cannot be read.
    pub(super) lost_xattrs: bool,
}

/// The place of a name.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) directory: FileId,
    pub(super) cookie: u64,
    pub(super) name: Box<[u8]>,
}

/// What was done, in words: as much as helps somebody.
#[derive(Default)]
pub(super) struct Done {
    words: Vec<String>,
    more: u64,
}

impl Done {
    pub(super) fn push(&mut self, what: String) {
        if self.words.len() < PROBLEMS_MAX {
            self.words.push(what);
        } else {
            self.more += 1;
        }
    }

    /// Takes what was done in a clone.
    pub(super) fn extend(&mut self, branch: u32, other: Done) {
        other.words.into_iter().for_each(|what| self.push(format!("clone {branch}: {what}")));
        self.more += other.more;
    }

    pub(super) fn into_words(mut self) -> Vec<String> {
        self.words.extend((self.more > 0).then(|| format!("and {} changes more", self.more)));
        self.words
    }
}

/// What the trees of one catalog should say: the main one, or a clone's.
pub(super) struct Survey {
    /// The directory that everything is below.
    pub(super) root: FileId,
    pub(super) known: BTreeMap<FileId, Known>,
    /// Inodes that cannot be read: single ones, and whether there are stretches of them.
    pub(super) undecodable: Vec<FileId>,
    pub(super) catalog_has_gaps: bool,
    /// Directories that are written again without what cannot be read.
    pub(super) gaps: BTreeSet<FileId>,
    /// Files whose content is lost in part, and not noted yet.
    pub(super) lost_content: BTreeSet<FileId>,
    /// Changes of directories.
    pub(super) edits: BTreeMap<FileId, Edits>,
    /// Entries that each directory has in the end.
    pub(super) counts: BTreeMap<FileId, u64>,
    /// Names of files that are no directories: how many.
    pub(super) names: BTreeMap<FileId, u32>,
    /// Names of directories.
    pub(super) places: BTreeMap<FileId, Vec<Place>>,
    /// Of the directory that is looked at.
    pub(super) namesakes: Namesakes,
    /// Files that names were met for.
    pub(super) met: Vec<FileId>,
    /// Clones that were removed and cannot go, if that is accepted.
    pub(super) stuck: BTreeSet<u32>,
    /// The number behind a name that nobody has tried yet, by directory.
    pub(super) numbers: BTreeMap<(FileId, Box<[u8]>), u64>,
    pub(super) done: Done,
}

impl Known {
    pub(super) fn directory(parent: FileId) -> Known {
        Known { kind: Kind::Directory, links: 2, parent, size: 0, allocated: 0, covered: None, lost_xattrs: false }
    }
}

impl Survey {
    pub(super) fn of(root: FileId) -> Survey {
        Survey {
            root,
            known: BTreeMap::new(),
            undecodable: Vec::new(),
            catalog_has_gaps: false,
            gaps: BTreeSet::new(),
            lost_content: BTreeSet::new(),
            edits: BTreeMap::new(),
            counts: BTreeMap::new(),
            names: BTreeMap::new(),
            places: BTreeMap::new(),
            namesakes: Namesakes::default(),
            met: Vec::new(),
            stuck: BTreeSet::new(),
            numbers: BTreeMap::new(),
            done: Done::default(),
        }
    }

    /// Whether something cannot be read.
    pub(super) fn has_losses(&self) -> bool {
        let lost_xattrs = self.known.values().any(|known| known.lost_xattrs);
        self.catalog_has_gaps
            || lost_xattrs
            || [self.undecodable.is_empty(), self.gaps.is_empty(), self.edits.is_empty(), self.lost_content.is_empty()]
                .contains(&false)
    }

    pub(super) fn lost_found(&self) -> Option<FileId> {
        let is_it = |place: &Place| place.directory == self.root && &*place.name == LOST_FOUND;
        // A clone may have that name, and is in a catalog of its own.
        let is_here = |file: &FileId| file.branch == self.root.branch;
        self.places.iter().find(|(file, places)| is_here(file) && places.iter().any(is_it)).map(|(file, _)| *file)
    }

    /// Removes a name.
    pub(super) fn remove(&mut self, directory: FileId, cookie: u64, name: &str, why: &str) {
        self.edits.entry(directory).or_default().insert(cookie, None);
        *self.counts.entry(directory).or_default() -= 1;
        self.done.push(format!("the name {name} in directory {directory} is removed{why}"));
    }

    /// Of several names of a directory the one that it says itself stays, or else the first.
    pub(super) fn choose_places(&mut self) {
        for (file, mut places) in std::mem::take(&mut self.places) {
            let parent = self.known.get(&file).map_or(FileId::NONE, |known| known.parent);
            let own = places.iter().position(|place| place.directory == parent).unwrap_or(0);
            let chosen = places.swap_remove(own);
            for other in places {
                let name = String::from_utf8_lossy(&other.name).into_owned();
                self.remove(other.directory, other.cookie, &name, ": a directory has one name");
            }
            self.places.insert(file, vec![chosen]);
        }
    }

    /// Directories that the root does not lead to. They have no names then.
    pub(super) fn take_unreachable(&mut self) -> Vec<FileId> {
        // One that was removed while somebody used it has no links, and ends here.
        let wants_name = |(file, known): &(&FileId, &Known)| {
            // But not with what it has: a tree that could not be removed is found again.
            let has_entries = self.counts.get(file).is_some_and(|count| *count > 0);
            known.kind == Kind::Directory && (known.links > 0 || has_entries || self.places.contains_key(file))
        };
        let directories = self.known.iter().filter(wants_name).map(|(file, _)| *file);
        let above = |file| Some(self.places.get(&file)?.first()?.directory);
        let ends = unreachable(self.root, directories, above);
        for end in &ends {
            if let Some(place) = self.places.remove(end).and_then(|mut places| places.pop()) {
                let name = String::from_utf8_lossy(&place.name).into_owned();
                self.remove(place.directory, place.cookie, &name, ": it lay in itself");
            }
        }
        ends
    }
}
