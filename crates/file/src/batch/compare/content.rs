//! Whether two files have the same bytes: extents that name the same parts of the same chunks do, and only what else there is is read.

use std::ops::Range;

use crate::attributes::Node;
use crate::extent::Extent;
use crate::failure::FileError;
use crate::format::{Root, decode_tree_extent};
use crate::read::Settled;
use crate::system::{FileSystem, corrupt};
use crate::tree::{Difference, Step};
use crate::write::Layers;

/// Of a file so much is compared at a time.
const WINDOW_BYTES: u64 = 16 << 20;
/// And read at a time, of each.
const READ_BYTES: u64 = 1 << 20;
/// Places in which extent trees differ that are gathered; with more of them the files are compared as a whole.
const PLACES_MAX: usize = 4096;

/// What lies in a range of a file; `None`: bytes that are in no chunk yet.
type Piece = (Range<u64>, Option<Extent>);

impl FileSystem {
    /// Whether two files differ in size or bytes.
    pub(super) async fn has_other_content(
        &self,
        (before, was): (Node, u64),
        (after, is): (Node, u64),
    ) -> Result<bool, FileError> {
        if was != is {
            return Ok(true);
        }
        let places = {
            // Before the roots are taken (I-90).
            let _use = self.grace.enter(after.file.number);
            match (self.committed_content(before).await?, self.committed_content(after).await?) {
                (Some(one), Some(other)) if one == other => return Ok(false),
                (Some(one), Some(other)) => self.places(&one, &other, is).await.ok().flatten(),
                _ => None,
            }
        };
        for place in places.unwrap_or_else(|| vec![0..is]) {
            if self.differs_in(before, after, place).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The extent tree of a file of which no layer above has anything.
    async fn committed_content(&self, node: Node) -> Result<Option<Root>, FileError> {
        let inode = self.inode(node).await?;
        let state = inode.state.lock();
        state.expect_there()?;
        let is_below = |overlay: &crate::extent::Overlay| overlay.extents.is_empty() && overlay.inlined.is_empty();
        let is_committed = !state.has_unlogged() && state.overlays().all(is_below);
        Ok(is_committed.then(|| state.base.tree.clone()))
    }

    /// Where two extent trees differ; `None`: in too many places.
    async fn places(&self, before: &Root, after: &Root, size: u64) -> Result<Option<Vec<Range<u64>>>, FileError> {
        let mut places: Vec<Range<u64>> = Vec::new();
        for (this, other) in [(after, before), (before, after)] {
            let mut difference = Difference::begin(&self.trees, this, other).await?;
            while let Some(step) = difference.next(&self.trees).await? {
                let Step::Value { key, value, .. } = step else { continue };
                let wrong = |error| corrupt("extent", format!("offset {key}"), error);
                let (length, _) = decode_tree_extent(&value).map_err(wrong)?;
                let end = key.saturating_add(length).min(size);
                match places.last_mut() {
                    Some(last) if last.start <= key && key <= last.end => last.end = last.end.max(end),
                    _ if key < end => places.push(key..end),
                    _ => {}
                }
                if places.len() > PLACES_MAX {
                    return Ok(None);
                }
            }
        }
        Ok(Some(places))
    }

    /// Whether bytes differ in a range.
    async fn differs_in(&self, before: Node, after: Node, range: Range<u64>) -> Result<bool, FileError> {
        let mut at = range.start;
        while at < range.end {
            let window = at..range.end.min(at.saturating_add(WINDOW_BYTES));
            let (was, is) = (self.pieces(before, &window).await?, self.pieces(after, &window).await?);
            for suspect in suspects(&was, &is) {
                if self.reads_otherwise(before, after, suspect).await? {
                    return Ok(true);
                }
            }
            at = window.end;
        }
        Ok(false)
    }

    /// What lies in a range, all of it, in order.
    async fn pieces(&self, node: Node, range: &Range<u64>) -> Result<Vec<Piece>, FileError> {
        let _use = self.grace.enter(node.file.number);
        let inode = self.inode(node).await?;
        let Layers { settled, memory, .. } = self.layers(&inode, range.clone()).await?;
        let settled = settled.into_iter().map(|(range, extent): Settled| (range, Some(extent)));
        let mut found: Vec<Piece> = settled.chain(memory.into_iter().map(|(range, _)| (range, None))).collect();
        found.sort_unstable_by_key(|(range, _)| range.start);
        let (mut pieces, mut at) = (Vec::with_capacity(found.len()), range.start);
        for (found, content) in found {
            if at < found.start {
                pieces.push((at..found.start, Some(Extent::Hole)));
            }
            at = found.end;
            pieces.push((found, content));
        }
        if at < range.end {
            pieces.push((at..range.end, Some(Extent::Hole)));
        }
        Ok(pieces)
    }

    /// Whether two files have other bytes in a range, as they are read.
    async fn reads_otherwise(&self, before: Node, after: Node, range: Range<u64>) -> Result<bool, FileError> {
        let mut at = range.start;
        while at < range.end {
            let bytes = usize::try_from(READ_BYTES.min(range.end - at)).expect("a MiB at most");
            let (mut was, mut is) = (vec![0; bytes], vec![0; bytes]);
            // A short read is of a file that was cut meanwhile.
            let count = self.read_noting(before, at, &mut was, false).await?;
            if self.read_noting(after, at, &mut is, false).await? != count || was != is {
                return Ok(true);
            }
            at += bytes as u64;
        }
        Ok(false)
    }
}

/// The ranges of which the pieces do not say that they are equal. Both cover the same.
fn suspects(was: &[Piece], is: &[Piece]) -> Vec<Range<u64>> {
    let mut suspects: Vec<Range<u64>> = Vec::new();
    let (mut was, mut is) = (was.iter().peekable(), is.iter().peekable());
    while let (Some((one, first)), Some((other, second))) = (was.peek(), is.peek()) {
        let (start, end) = (one.start.max(other.start), one.end.min(other.end));
        let ahead = |range: &Range<u64>, piece: &Option<Extent>| piece.map(|piece| piece.advanced(start - range.start));
        if !are_equal(ahead(one, first), ahead(other, second)) {
            match suspects.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => suspects.push(start..end),
            }
        }
        if one.end == end {
            was.next();
        }
        if is.peek().is_some_and(|(other, _)| other.end == end) {
            is.next();
        }
    }
    suspects
}

/// Whether two pieces of equal length have the same bytes, as far as their names say.
fn are_equal(one: Option<Extent>, other: Option<Extent>) -> bool {
    match (one, other) {
        (Some(Extent::Hole | Extent::Zero), Some(Extent::Hole | Extent::Zero)) => true,
        (Some(Extent::Chunk { address, skip, .. }), Some(Extent::Chunk { address: other, skip: other_skip, .. })) => {
            (address, skip) == (other, other_skip) && address != base::id::ChunkAddress::NONE
        }
        _ => false,
    }
}
