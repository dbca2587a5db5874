//! Bundles: small chunks that are compressed together, as one chunk that has their contents one behind the other.
//!
//! Small contents that come together mostly resemble each other, and a compressor that begins anew with each finds little in it
//! (docs/decisions/0015-bundles.md).
//!
//! C-5   What [`Bundle::content_of`] returns hashes to the address it was asked for: nobody believes a bundle.
//!
//! Not here: where bundles lie (`pack`), and when they go (`reclaim`).

use base::hash::DomainKey;
use base::id::ChunkAddress;
use bytes::{Bytes, BytesMut};

use super::{
    COMPRESS_BYTES_MIN, COUNTED_BYTES_MIN, Compression, Named, Packed, compress, decompress, looks_random, pack,
};
use crate::format::{BUNDLE_BYTES_MAX, ChunkHeader, Class, Codec, InBundle};

/// Chunks that are longer lie alone: they hold enough for a compressor, and who wants one of them reads no others.
pub(crate) const BUNDLED_BYTES_MAX: usize = 32 << 10;

/// Half must be saved: else who wants one small chunk would read more than he does of a large one that does not shrink.
const BUNDLE_SAVES: usize = 2;

/// Contents that are packed together: one, or what becomes a bundle.
pub(crate) struct Lot(Vec<Named>);

/// Divides new contents of one class into lots, in their order, about.
pub(crate) fn lots(compression: Compression, class: Class, contents: Vec<Named>) -> Vec<Lot> {
    if class == Class::Metadata || compression == Compression::None {
        // Nodes of trees are wanted one by one.
        return contents.into_iter().map(|named| Lot(vec![named])).collect();
    }
    // Where the lot is that takes more, and the content of it.
    let (mut lots, mut open) = (Vec::<Lot>::new(), None);
    for named in contents {
        let length = named.content.len();
        match &mut open {
            _ if length == 0 || length > BUNDLED_BYTES_MAX => lots.push(Lot(vec![named])),
            Some((at, bytes)) if *bytes + length <= BUNDLE_BYTES_MAX => {
                *bytes += length;
                let lot: &mut Lot = &mut lots[*at];
                lot.0.push(named);
            }
            _ => {
                open = Some((lots.len(), length));
                lots.push(Lot(vec![named]));
            }
        }
    }
    lots
}

/// Compresses a lot where that pays.
pub(crate) fn pack_lot(key: &DomainKey, compression: Compression, class: Class, lot: Lot) -> Vec<Packed> {
    let Lot(contents) = lot;
    let level = match compression {
        Compression::Zstd(level) if contents.len() > 1 => level,
        _ => return contents.into_iter().map(|named| pack(compression, class, named)).collect(),
    };
    let is_random = |named: &Named| named.content.len() >= COUNTED_BYTES_MIN && looks_random(&named.content);
    let (random, others): (Vec<_>, Vec<_>) = contents.into_iter().partition(is_random);
    let mut packed: Vec<Packed> = random.into_iter().map(|named| pack(Compression::None, class, named)).collect();
    match bundle(key, level, class, &others) {
        Some(bundle) => packed.push(bundle),
        None => packed.extend(others.into_iter().map(|named| pack(compression, class, named))),
    }
    packed
}

/// `None` where that saves too little, or there are not two.
fn bundle(key: &DomainKey, level: i32, class: Class, contents: &[Named]) -> Option<Packed> {
    let bytes: usize = contents.iter().map(|named| named.content.len()).sum();
    if contents.len() < 2 || bytes < COMPRESS_BYTES_MIN {
        return None;
    }
    let mut all = BytesMut::with_capacity(bytes);
    contents.iter().for_each(|named| all.extend_from_slice(&named.content));
    let payload = compress(level, &all, BUNDLE_SAVES)?;
    let stored = u32::try_from(payload.len()).ok()?;
    let within = |ahead, skip| {
        Some(InBundle { ahead, skip: u16::try_from(skip).ok()?, stored: u16::try_from(payload.len()).ok()? })
    };
    let (mut bundled, mut skip) = (Vec::with_capacity(contents.len()), 0);
    for (named, ahead) in contents.iter().zip((1..=u16::try_from(contents.len()).ok()?).rev()) {
        let raw = u32::try_from(named.content.len()).ok()?;
        let codec = Codec::Bundled(within(ahead, skip)?);
        bundled.push(ChunkHeader { class, codec, raw, stored: 0, address: named.address });
        skip += named.content.len();
    }
    let header = ChunkHeader {
        class,
        codec: Codec::Bundle,
        raw: u32::try_from(bytes).ok()?,
        stored,
        address: key.address(&all),
    };
    Some(Packed { header, table: Bytes::new(), payload, bundled })
}

/// The content of a bundle, decompressed.
#[derive(Clone, Debug)]
pub(crate) struct Bundle(Bytes);

impl Bundle {
    /// From the header that stands before it, and its payload; the error says what was found instead.
    pub(crate) fn open(header: &ChunkHeader, payload: &[u8]) -> Result<Bundle, String> {
        if header.codec != Codec::Bundle {
            return Err(format!("{header:?}, which is no bundle"));
        }
        let content = decompress(payload, header.raw as usize)?;
        match content.len() == header.raw as usize {
            true => Ok(Bundle(content)),
            false => Err(format!("a bundle of {} bytes instead of {}", content.len(), header.raw)),
        }
    }

    /// Whether it has what a header says.
    pub(crate) fn holds(&self, key: &DomainKey, header: &ChunkHeader) -> Result<(), String> {
        match header.codec {
            Codec::Bundled(within) => self.content_of(key, &header.address, header.raw, within).map(drop),
            _ => Err(format!("{header:?}, which lies in no bundle")),
        }
    }

    /// Of content that was opened before.
    pub(crate) fn of(content: Bytes) -> Bundle {
        Bundle(content)
    }

    pub(crate) fn into_content(self) -> Bytes {
        self.0
    }

    /// C-5. A copy, so that a small chunk does not keep all of it.
    pub(crate) fn content_of(
        &self,
        key: &DomainKey,
        address: &ChunkAddress,
        raw: u32,
        within: InBundle,
    ) -> Result<Bytes, String> {
        let start = usize::from(within.skip);
        let content = self.0.get(start..start + raw as usize);
        let content = content.ok_or_else(|| format!("a bundle of {} bytes", self.0.len()))?;
        let found = key.address(content);
        if found == *address { Ok(Bytes::copy_from_slice(content)) } else { Err(format!("content of {found}")) }
    }
}
