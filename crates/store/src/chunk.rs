//! Chunks: cutting streams, and turning content into what is stored and back.
//!
//! C-1   What [`unpack`] returns hashes to the address it was asked for; nothing else leaves the store.
//! C-2   Cuts depend only on the bytes from the last cut on, never on how a stream was divided into calls.

use std::cell::RefCell;

use base::hash::DomainKey;
use base::id::ChunkAddress;
use bytes::Bytes;

use crate::format::{ChunkHeader, Class, Codec};

/// How new chunks are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Stored as they are.
    None,
    /// zstd at this level, where it saves at least a sixteenth.
    Zstd(i32),
}

/// Smallest chunk that [`cut_points`] cuts from a stream, except at its end.
pub const CUT_BYTES_MIN: usize = 16 * 1024;
/// The size that cuts aim at.
pub const CUT_BYTES_AVERAGE: usize = 64 * 1024;
/// Largest chunk of a stream.
pub const CUT_BYTES_MAX: usize = 256 * 1024;

/// Below this compression is not tried: the header of a zstd frame eats what it saves.
const COMPRESS_BYTES_MIN: usize = 64;

/// Where to cut `bytes`, the continuation of a stream from its last cut on: the lengths of the chunks.
///
/// Unless these are the `last` bytes, what might be cut otherwise if more were known is left out: the caller keeps that
/// tail (less than [`CUT_BYTES_MAX`] bytes) and gives it again with what follows.
#[must_use]
pub fn cut_points(bytes: &[u8], last: bool) -> Vec<usize> {
    let cutter = fastcdc::v2020::FastCDC::new(bytes, CUT_BYTES_MIN, CUT_BYTES_AVERAGE, CUT_BYTES_MAX);
    let mut cuts = Vec::with_capacity(bytes.len() / CUT_BYTES_AVERAGE + 1);
    let mut start = 0;
    while start < bytes.len() {
        let remaining = bytes.len() - start;
        let (_, end) = cutter.cut(start, remaining);
        // A cut at the end of what is known is no cut, unless it is the largest chunk that there may be.
        if !last && end == bytes.len() && remaining < CUT_BYTES_MAX {
            break;
        }
        cuts.push(end - start);
        start = end;
    }
    cuts
}

/// A chunk ready to be appended to a pack.
pub(crate) struct Packed {
    pub(crate) header: ChunkHeader,
    pub(crate) payload: Bytes,
}

thread_local! {
    // A compression context is half a megabyte; making one per chunk would cost more than compressing.
    static COMPRESSOR: RefCell<Option<(i32, zstd::bulk::Compressor<'static>)>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Compresses where that pays.
pub(crate) fn pack(compression: Compression, class: Class, address: ChunkAddress, content: Bytes) -> Packed {
    let raw = u32::try_from(content.len()).expect("the caller checked CHUNK_BYTES_MAX");
    let compressed = match compression {
        Compression::Zstd(level) if content.len() >= COMPRESS_BYTES_MIN => compress(level, &content),
        _ => None,
    };
    let (codec, payload) = match compressed {
        Some(compressed) => (Codec::Zstd, Bytes::from(compressed)),
        None => (Codec::Raw, content),
    };
    let stored = u32::try_from(payload.len()).expect("not longer than the content");
    Packed { header: ChunkHeader { class, codec, raw, stored, address }, payload }
}

// `None` where less than a sixteenth is saved: zstd gives up when its output buffer of that size is full, and on random
// bytes it does so after a glance, at several GB/s (measured), so no sampling comes before it.
fn compress(level: i32, content: &[u8]) -> Option<Vec<u8>> {
    COMPRESSOR.with_borrow_mut(|slot| {
        if slot.as_ref().is_none_or(|(at, _)| *at != level) {
            *slot = Some((level, zstd::bulk::Compressor::new(level).ok()?));
        }
        let (_, compressor) = slot.as_mut()?;
        let mut output = Vec::with_capacity(content.len() - content.len() / 16);
        compressor.compress_to_buffer(content, &mut output).ok()?;
        (output.len() <= content.len() - content.len() / 16).then(|| {
            output.shrink_to_fit();
            output
        })
    })
}

/// The content of a stored chunk, verified against its address; the error says what was found instead.
pub(crate) fn unpack(key: &DomainKey, header: &ChunkHeader, payload: Bytes) -> Result<Bytes, String> {
    let content = match header.codec {
        Codec::Raw => payload,
        Codec::Zstd => decompress(&payload, header.raw as usize)?,
    };
    if content.len() != header.raw as usize {
        return Err(format!("{} bytes instead of {}", content.len(), header.raw));
    }
    let found = key.address(&content);
    if found == header.address { Ok(content) } else { Err(format!("content of {found}")) }
}

fn decompress(payload: &[u8], raw: usize) -> Result<Bytes, String> {
    DECOMPRESSOR.with_borrow_mut(|slot| {
        if slot.is_none() {
            *slot = Some(zstd::bulk::Decompressor::new().map_err(|error| format!("no decompressor: {error}"))?);
        }
        let decompressor = slot.as_mut().expect("made above");
        let output =
            decompressor.decompress(payload, raw).map_err(|error| format!("bytes that zstd refuses: {error}"))?;
        Ok(Bytes::from(output))
    })
}

#[cfg(test)]
mod tests;
