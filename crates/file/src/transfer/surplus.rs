//! What one snapshot needs and another does not have.

use std::collections::VecDeque;

use base::id::ChunkAddress;
use store::{Class, StoreError};

use crate::format::{Root, SnapshotValue};
use crate::names::{Named, TreeOf};
use crate::tree::{Difference, Step, Trees};

/// A walk over the chunks that one snapshot needs, past the subtrees that another shares with it: children before those that name them.
/// What lies elsewhere in the other, and what several files share, is told all the same, and each time.
pub(super) struct Surplus<'a> {
    trees: &'a Trees,
    /// Trees that a value has just named, and their counterparts.
    named: Vec<(TreeOf, Root, Root)>,
    /// Those that are being walked, each of them named by a value of the one before it.
    walks: Vec<(TreeOf, Difference)>,
    chunks: VecDeque<(Class, ChunkAddress)>,
    /// The main catalog of the other: what a branch that it lacks began with, or something like it.
    other_catalog: Root,
}

impl<'a> Surplus<'a> {
    pub(super) fn new(trees: &'a Trees, this: &SnapshotValue, other: Option<&SnapshotValue>) -> Surplus<'a> {
        let named = |value: &SnapshotValue| Named { trees: value.trees(), ..Named::default() };
        let other_catalog = other.map(|other| other.catalog.clone()).unwrap_or_default();
        let (named_trees, walks) = (Vec::new(), Vec::new());
        let mut surplus = Surplus { trees, named: named_trees, walks, chunks: VecDeque::new(), other_catalog };
        surplus.add(named(this), other.map(named).unwrap_or_default());
        surplus
    }

    fn add(&mut self, this: Named, other: Named) {
        self.chunks.extend(this.chunks.into_iter().filter(|chunk| !other.chunks.contains(chunk)));
        let mut counterparts = other.trees.into_iter();
        for (of, root) in this.trees {
            let counterpart = counterparts.next().filter(|(other, _)| *other == of);
            self.named.push((of, root, counterpart.map_or(Root::Empty, |(_, root)| root)));
        }
    }

    /// What to compare with where the other has nothing.
    fn in_place_of(&self, of: TreeOf, this: &Named) -> Named {
        let catalog = this.trees.first().filter(|_| of == TreeOf::Branches).map(|(of, _)| *of);
        let trees = catalog.map(|of| (of, self.other_catalog.clone()));
        Named { trees: trees.into_iter().collect(), ..Named::default() }
    }

    pub(super) async fn next(&mut self) -> Result<Option<(Class, ChunkAddress)>, StoreError> {
        loop {
            if let Some(chunk) = self.chunks.pop_front() {
                return Ok(Some(chunk));
            }
            if let Some((of, this, other)) = self.named.pop() {
                self.walks.push((of, Difference::begin(self.trees, &this, &other).await?));
            }
            let Some((of, walk)) = self.walks.last_mut() else { return Ok(None) };
            let of = *of;
            match walk.next(self.trees).await? {
                None => drop(self.walks.pop()),
                Some(Step::Node(address)) => return Ok(Some((Class::Metadata, address))),
                Some(Step::Value { key, value, other }) => {
                    let this = of.names(key, &value)?;
                    let other = match other {
                        Some(other) => of.names(key, &other)?,
                        None => self.in_place_of(of, &this),
                    };
                    self.add(this, other);
                }
            }
        }
    }
}
