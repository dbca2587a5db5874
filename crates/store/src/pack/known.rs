//! What is known of a pack: where it lies, whole, in fragments or in part, and whether it takes chunks.
//!
//! Keeps of K-6 what there is of a pack that is missing.
//!
//! Not here: the catalog of them all ([`pack`](super)), what of it counts as a duplicate (`duplicates`).

use std::sync::Arc;

use super::fragments::{Fragments, PackFile};
use super::open::OpenPack;
use crate::disks::DiskSet;
use crate::format::Summary;

/// A pack of the node.
#[derive(Clone)]
pub(crate) enum PackState {
    /// Takes chunks, or stopped taking them without being sealed (its disk filled or failed).
    Open(Arc<OpenPack>),
    /// Complete.
    Sealed,
    /// Complete, and on a disk that is missing, as far as anybody knows.
    Missing,
}

#[derive(Clone)]
pub(crate) struct PackKnown {
    /// Where all of it is. Of one that is missing: the first disk that is, for nobody knows more.
    pub(super) disks: DiskSet,
    /// Of one that was cut, or is about to be.
    pub(super) fragments: Option<Arc<Fragments>>,
    /// Of one that is missing: what there is of it all the same, as one that is sealed (K-6).
    rest: Option<Arc<PackKnown>>,
    /// Disks with files that are shorter than it, beside what has all of it: read where nothing else verifies (K-8).
    pub(super) short: DiskSet,
    /// Less than all of it is there, as far as an opening could see: nobody relies on it (K-9).
    pub(crate) is_part: bool,
    pub(crate) state: PackState,
    pub(crate) summary: Summary,
}

impl PackKnown {
    pub(crate) fn new(disks: DiskSet, state: PackState, summary: Summary) -> PackKnown {
        PackKnown { disks, fragments: None, rest: None, short: DiskSet::NONE, is_part: false, state, summary }
    }

    /// Sealed, in fragments too.
    pub(crate) fn sealed(disks: DiskSet, fragments: Option<Arc<Fragments>>, summary: Summary) -> PackKnown {
        PackKnown { fragments, ..PackKnown::new(disks, PackState::Sealed, summary) }
    }

    /// On a disk that is missing, and the rest of it on others: shorter files, too few fragments.
    pub(crate) fn missing(disk: usize, rest: Option<PackKnown>, summary: Summary) -> PackKnown {
        let rest = rest.filter(|rest| !rest.places().is_empty()).map(Arc::new);
        PackKnown { rest, ..PackKnown::new(DiskSet::of(disk), PackState::Missing, summary) }
    }

    /// Without what this disk has of it, of one that is not taking chunks.
    pub(super) fn without(&self, disk: usize) -> PackKnown {
        let fragments = self.fragments.as_ref().map(|fragments| match fragments.index_on(disk) {
            Some(_) => Arc::new(Fragments::clone(fragments).without(disk)),
            None => fragments.clone(),
        });
        let fragments = fragments.filter(|fragments| !fragments.disks().is_empty());
        PackKnown { disks: self.disks.without(disk), fragments, short: self.short.without(disk), ..self.clone() }
    }

    /// With files beside it that are shorter.
    pub(crate) fn beside(self, short: DiskSet) -> PackKnown {
        PackKnown { short, ..self }
    }

    /// Whether its fragments make it.
    fn is_made(&self) -> bool {
        self.fragments().is_some_and(|fragments| fragments.is_readable_on(fragments.disks()))
    }

    /// The disks that have shorter files of it.
    pub(crate) fn short(&self) -> DiskSet {
        self.short
    }

    /// As it is when the node does without `disk`, of one that takes no chunks; `missing`: another that is. `None`: nothing is left.
    pub(super) fn left_without(&self, disk: usize, missing: Option<usize>) -> Option<PackKnown> {
        let left = match &self.state {
            PackState::Missing => self.rest.as_ref().map(|rest| rest.without(disk)),
            PackState::Open(_) | PackState::Sealed => {
                let left = self.without(disk);
                match left.disks.is_empty() && !left.is_made() && !left.short.is_empty() {
                    true => Some(PackKnown { disks: left.short, short: DiskSet::NONE, is_part: true, ..left }),
                    false => Some(left),
                }
            }
        };
        let is_whole = left.as_ref().is_some_and(|left| !left.is_part && (!left.disks.is_empty() || left.is_made()));
        match (missing, left) {
            // K-6: the other may have it.
            (Some(other), left) if !is_whole => Some(PackKnown::missing(other, left, self.summary)),
            (_, left) => {
                let left = left.filter(|left| !left.places().is_empty())?;
                Some(PackKnown { is_part: !is_whole, ..left })
            }
        }
    }

    /// What can be read of it, if it is missing: of its rest.
    pub(crate) fn to_read(&self) -> &PackKnown {
        self.rest.as_deref().unwrap_or(self)
    }

    /// What there is of it in fragments.
    pub(crate) fn fragments(&self) -> Option<&Arc<Fragments>> {
        self.fragments.as_ref()
    }

    /// The disks that any of it is on.
    pub(crate) fn places(&self) -> DiskSet {
        let fragments = self.fragments().map_or(DiskSet::NONE, |fragments| fragments.disks());
        DiskSet::from_bits(self.disks().bits() | fragments.bits())
    }

    /// Its files.
    pub(crate) fn files(&self, pack: u64) -> Vec<PackFile> {
        let bytes = self.summary.file_bytes();
        let whole = DiskSet::from_bits(self.disks().bits() | self.short().bits());
        let whole = whole.iter().map(|disk| PackFile { disk, name: None, pack, bytes });
        let fragments = self.fragments().into_iter().flat_map(|fragments| {
            let bytes = fragments.cut.file_bytes();
            let file = move |(index, disk)| PackFile { disk, name: Some(fragments.name(pack, index)), pack, bytes };
            fragments.each().map(file)
        });
        whole.chain(fragments).collect()
    }

    /// Whether it lies as it did.
    pub(crate) fn is_where(&self, other: &PackKnown) -> bool {
        self.disks() == other.disks() && self.fragments == other.fragments
    }

    /// Whether only fragments of it are there.
    pub(crate) fn is_cut(&self) -> bool {
        self.fragments.is_some() && self.disks().is_empty()
    }

    /// The disks that all of it is on, as far as anybody knows.
    pub(crate) fn disks(&self) -> DiskSet {
        match &self.state {
            PackState::Open(open) => open.disks(),
            PackState::Sealed | PackState::Missing => self.disks,
        }
    }

    /// Its header and its chunks as stored; of an open one what was appended so far.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.state {
            PackState::Open(open) => open.bytes(),
            PackState::Sealed | PackState::Missing => u64::from(self.summary.data_bytes),
        }
    }
}
