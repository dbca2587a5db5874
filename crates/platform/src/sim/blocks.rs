//! The bytes of a file, sparse, with blocks shared between copies until one of them changes.
//!
//! Truth kept: bytes of the last block beyond the length are zero, and there is no block beyond it.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

/// What a file takes from its disk's space at a time, as on ext4 and XFS.
pub(super) const BLOCK_BYTES: usize = 4096;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// One block, shared by the copies that have it.
pub(super) type Block = Arc<[u8; BLOCK_BYTES]>;

/// What nobody wrote to. Spare segments of a journal are nothing else.
static ZEROES: LazyLock<Block> = LazyLock::new(|| Arc::new([0; BLOCK_BYTES]));

/// Bytes of a file.
#[derive(Clone, Default)]
pub(super) struct Blocks {
    length: u64,
    blocks: BTreeMap<u64, Block>,
}

impl Blocks {
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Bytes of disk that it takes.
    pub(super) fn taken(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK
    }

    /// Bytes of disk that a write here would take in addition.
    pub(super) fn missing(&self, offset: u64, count: usize) -> u64 {
        let blocks = pieces(offset, count).filter(|piece| !self.blocks.contains_key(&piece.block));
        blocks.count() as u64 * BLOCK
    }

    /// Reads what there is up to the length.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let rest = usize::try_from(self.length.saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = buffer.len().min(rest);
        for piece in pieces(offset, count) {
            let target = &mut buffer[piece.at..piece.at + piece.count];
            match self.blocks.get(&piece.block) {
                Some(block) => target.copy_from_slice(&block[piece.start..piece.start + piece.count]),
                None => target.fill(0),
            }
        }
        count
    }

    /// Writes, growing if needed.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        for piece in pieces(offset, bytes.len()) {
            let source = &bytes[piece.at..piece.at + piece.count];
            let block = self.blocks.entry(piece.block).or_insert_with(|| Arc::clone(&ZEROES));
            if Arc::ptr_eq(block, &ZEROES) && source == &ZEROES[..source.len()] {
                continue;
            }
            Arc::make_mut(block)[piece.start..piece.start + piece.count].copy_from_slice(source);
        }
        if !bytes.is_empty() {
            self.length = self.length.max(offset + bytes.len() as u64);
        }
    }

    /// Cuts, or extends with zeroes.
    pub(super) fn set_length(&mut self, length: u64) {
        self.blocks.split_off(&length.div_ceil(BLOCK));
        let tail = usize::try_from(length % BLOCK).expect("below the block size");
        if tail > 0
            && let Some(block) = self.blocks.get_mut(&(length / BLOCK))
        {
            Arc::make_mut(block)[tail..].fill(0);
        }
        self.length = length;
    }

    /// `count` bytes or fewer from `offset`.
    pub(super) fn slice(&self, offset: u64, count: usize) -> Vec<u8> {
        let rest = usize::try_from(self.length.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; count.min(rest)];
        self.read(offset, &mut bytes);
        bytes
    }

    /// A block; zeroes where nothing was written.
    pub(super) fn block(&self, number: u64) -> Block {
        self.blocks.get(&number).cloned().unwrap_or_else(|| Arc::clone(&ZEROES))
    }

    /// All bytes.
    pub(super) fn to_vec(&self) -> Vec<u8> {
        self.slice(0, usize::MAX)
    }
}

/// The part of a range that lies in one block.
struct Piece {
    block: u64,
    /// Where in the block.
    start: usize,
    /// Where in the range.
    at: usize,
    count: usize,
}

fn pieces(offset: u64, count: usize) -> impl Iterator<Item = Piece> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let position = offset + at as u64;
        let start = usize::try_from(position % BLOCK).expect("below the block size");
        let piece = Piece { block: position / BLOCK, start, at, count: (BLOCK_BYTES - start).min(count - at) };
        at += piece.count;
        (piece.count > 0).then_some(piece)
    })
}
