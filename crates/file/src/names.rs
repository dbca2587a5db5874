//! What the values of trees name: chunks, and trees in their turn. One place knows it, for who marks what is needed (`reclaim`) and for who
//! sends what another node lacks (`transfer`).
//!
//! Not here: the nodes of a tree, which its parents name (`tree`).

use base::id::{ChunkAddress, FileId};
use bytes::Bytes;
use store::{Class, StoreError};

use crate::attributes::Kind;
use crate::extent::Extent;
use crate::format::{InodeValue, Root, SnapshotValue, XattrPlace, decode_tree_extent};
use crate::system::{decode_branch, undecodable};

/// What the values of a tree are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TreeOf {
    /// Inodes of a branch, by number.
    Inodes(u32),
    /// Branches, by number.
    Branches,
    /// Extents of a file.
    Extents,
    /// What names nothing: entries of a directory, whose files the catalog has.
    Nothing,
}

/// A tree, and what its values are.
pub(crate) type Tree = (TreeOf, Root);

/// What a value names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) chunks: Vec<(Class, ChunkAddress)>,
    /// Those of one file in another snapshot are in the same order.
    pub(crate) trees: Vec<Tree>,
}

impl SnapshotValue {
    /// All trees of a snapshot: whoever walks these, and what their values name, has met everything that it needs.
    pub(crate) fn trees(&self) -> Vec<Tree> {
        vec![(TreeOf::Inodes(0), self.catalog.clone()), (TreeOf::Branches, self.branches.clone())]
    }
}

impl TreeOf {
    /// What the value of `key` names.
    pub(crate) fn names(self, key: u64, value: &Bytes) -> Result<Named, StoreError> {
        match self {
            TreeOf::Inodes(branch) => named_by_inode(FileId { branch, number: key }, value),
            TreeOf::Branches => {
                let (branch, value) = decode_branch(key, value)?;
                let trees = vec![(TreeOf::Inodes(branch), value.catalog), (TreeOf::Nothing, value.orphans)];
                Ok(Named { chunks: Vec::new(), trees })
            }
            TreeOf::Extents => {
                let chunk = match decoded_extent(key, value)? {
                    Extent::Chunk { address, .. } => named_chunk(Class::Data, address),
                    _ => None,
                };
                Ok(Named { chunks: chunk.into_iter().collect(), trees: Vec::new() })
            }
            TreeOf::Nothing => Ok(Named::default()),
        }
    }
}

fn named_by_inode(file: FileId, value: &Bytes) -> Result<Named, StoreError> {
    let value = InodeValue::decode(file, value)
        .map_err(|error| undecodable("inode", format!("catalog entry of {file}"), error))?;
    let chunk = match value.base.xattrs {
        XattrPlace::Chunk(address) => named_chunk(Class::Metadata, address),
        XattrPlace::None | XattrPlace::Inline(_) => None,
    };
    let of = if value.attributes.kind == Kind::Regular { TreeOf::Extents } else { TreeOf::Nothing };
    Ok(Named { chunks: chunk.into_iter().collect(), trees: vec![(of, value.base.tree)] })
}

/// What a repair noted as lost is the name of no chunk.
fn named_chunk(class: Class, address: ChunkAddress) -> Option<(Class, ChunkAddress)> {
    (address != ChunkAddress::NONE).then_some((class, address))
}

fn decoded_extent(offset: u64, bytes: &Bytes) -> Result<Extent, StoreError> {
    let wrong = |error| undecodable("extent", format!("offset {offset}"), error);
    decode_tree_extent(bytes).map(|(_, extent)| extent).map_err(wrong)
}
