//! What is asked for files against the loss of disks comes with them, and has their content lie so here: it came as the settings say.
//!
//! Not here: how content is kept so (`store`), or is brought there where more is asked for it later (`raiser`).

use base::id::{ChunkAddress, FileId};
use bytes::Bytes;
use store::{Class, Resilience, StoreError};

use crate::attributes::Kind;
use crate::failure::FileError;
use crate::format::{InodeValue, Root, SnapshotValue};
use crate::names::TreeOf;
use crate::system::{FileSystem, decode_branch, undecodable};
use crate::tree::{Difference, Step};

/// Chunks that are looked at together.
const TOGETHER: usize = 1024;

/// What was done for a snapshot that came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Levels {
    /// Chunks that were stored anew.
    pub(super) raised: u64,
    /// Files that ask for more than this node's disks can give.
    pub(super) unmet: u64,
}

impl FileSystem {
    /// Has the content of a snapshot lie as its files ask for, if that of the one before does. What there are too few disks for stays as the
    /// settings say, and is counted.
    pub(super) async fn raise_received(
        &self,
        snapshot: &SnapshotValue,
        base: Option<&SnapshotValue>,
    ) -> Result<Levels, FileError> {
        let mut levels = Levels::default();
        let empty = SnapshotValue { catalog: Root::Empty, branches: Root::Empty, ..snapshot.clone() };
        let base = base.unwrap_or(&empty);
        self.raise_catalog(0, (&snapshot.catalog, &base.catalog), &mut levels).await?;
        let mut branches = Difference::begin(&self.trees, &snapshot.branches, &base.branches).await?;
        while let Some(step) = branches.next(&self.trees).await? {
            let Step::Value { key, value, other } = step else { continue };
            let (branch, value) = decode_branch(key, &value)?;
            // A branch that is new began with the catalog, or something like it.
            let before = match other {
                Some(other) => decode_branch(key, &other)?.1.catalog,
                None => base.catalog.clone(),
            };
            self.raise_catalog(branch, (&value.catalog, &before), &mut levels).await?;
        }
        Ok(levels)
    }

    async fn raise_catalog(
        &self,
        branch: u32,
        (this, base): (&Root, &Root),
        levels: &mut Levels,
    ) -> Result<(), FileError> {
        let mut inodes = Difference::begin(&self.trees, this, base).await?;
        while let Some(step) = inodes.next(&self.trees).await? {
            self.refuse_if_ending()?;
            let Step::Value { key, value, other } = step else { continue };
            let (resilience, tree) = content_of(FileId { branch, number: key }, &value)?;
            if resilience == Resilience::OfNode || tree == Root::Empty {
                continue;
            }
            let other = other.map(|other| content_of(FileId { branch, number: key }, &other)).transpose()?;
            let before = other.filter(|(asked, _)| *asked == resilience).map_or(Root::Empty, |(_, tree)| tree);
            match self.store.raise_floor(resilience).await {
                Ok(true) => self.wants_mending.notify_one(),
                Ok(false) => {}
                Err(StoreError::Refused { .. }) => {
                    levels.unmet += 1;
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            levels.raised += self.raise_extents(resilience, (&tree, &before)).await?;
        }
        Ok(())
    }

    async fn raise_extents(&self, resilience: Resilience, (this, base): (&Root, &Root)) -> Result<u64, FileError> {
        let mut extents = Difference::begin(&self.trees, this, base).await?;
        let (mut raised, mut chunks) = (0, Vec::<ChunkAddress>::new());
        while let Some(step) = extents.next(&self.trees).await? {
            let Step::Value { key, value, .. } = step else { continue };
            let named = TreeOf::Extents.names(key, &value)?.chunks.into_iter();
            chunks.extend(named.filter(|(class, _)| *class == Class::Data).map(|(_, address)| address));
            if chunks.len() >= TOGETHER {
                self.refuse_if_ending()?;
                raised += self.store.raise(resilience, &std::mem::take(&mut chunks)).await?;
            }
        }
        Ok(raised + self.store.raise(resilience, &chunks).await?)
    }
}

/// What is asked for a file, and its extents.
fn content_of(file: FileId, value: &Bytes) -> Result<(Resilience, Root), StoreError> {
    let value = InodeValue::decode(file, value)
        .map_err(|error| undecodable("inode", format!("catalog entry of {file}"), error))?;
    let is_regular = value.attributes.kind == Kind::Regular;
    Ok((value.attributes.resilience, if is_regular { value.base.tree } else { Root::Empty }))
}
