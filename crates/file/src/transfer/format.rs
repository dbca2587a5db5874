//! The bytes of a stream between two nodes of a dedup domain (docs/format.md, "Stream").
//!
//! Whoever reads them believes no length before it was compared with its limit, and allocates no more than a chunk may have.
//! Not here: which chunks go, and what becomes of them (`send`, `receive`).

use base::codec::{DecodeError, Reader, Writer};
use base::hash::DomainKey;
use base::id::ChunkAddress;
use base::limits::CHUNK_BYTES_MAX;
use store::{Class, Packing};

use crate::format::SnapshotValue;

const MAGIC: [u8; 8] = *b"HydrSend";
/// Whoever changes what a byte of a stream means raises this.
const VERSION: u32 = 1;
/// Magic, version, length of the snapshot.
pub(crate) const START_BYTES: usize = 16;
/// Longest value of a snapshot: a name, and a few trees that lie inside it.
const SNAPSHOT_BYTES_MAX: usize = 4096;
/// More chunks than a stream comes to: counting on from them would overflow.
pub(crate) const CHUNKS_MAX: u64 = 1 << 48;
/// What is around it, with the start.
const HEAD_BYTES: usize = START_BYTES + 3 * 32 + 8 + SEAL_BYTES;
const SEAL_BYTES: usize = 32;
/// Of a chunk what comes before its payload; an end has as many.
pub(crate) const PART_BYTES: usize = 48;

/// Why bytes are no head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoHead {
    /// They are no stream at all.
    Foreign,
    /// A stream of a version that this program does not know.
    Version(u32),
    /// Of the dedup domain with this identity.
    OtherDomain([u8; 32]),
    /// It is not what was sent.
    Damaged(DecodeError),
}

impl From<DecodeError> for NoHead {
    fn from(error: DecodeError) -> NoHead {
        NoHead::Damaged(error)
    }
}

/// What a stream is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// Of the trees of the snapshot.
    pub(crate) identity: [u8; 32],
    /// Of the trees of the one before; `None`: everything is sent.
    pub(crate) base: Option<[u8; 32]>,
    /// Chunks before the first one that is sent: another stream brought them.
    pub(crate) first: u64,
    pub(crate) snapshot: SnapshotValue,
}

impl Head {
    pub(crate) fn encode(&self, key: &DomainKey) -> Vec<u8> {
        let snapshot = self.snapshot.encode();
        let mut writer = Writer::with_capacity(HEAD_BYTES + snapshot.len());
        writer.put(&MAGIC).u32(VERSION).u32(u32::try_from(snapshot.len()).expect("a name and a few roots"));
        writer.put(&key.identity()).put(&self.identity).put(&self.base.unwrap_or_default()).u64(self.first);
        writer.put(&snapshot);
        let seal = key.seal(writer.bytes());
        writer.put(&seal);
        writer.into_bytes()
    }

    /// How many bytes the head has that begins so.
    pub(crate) fn bytes(start: &[u8]) -> Result<usize, NoHead> {
        let mut reader = Reader::new(start);
        if reader.array::<8>("magic").map_err(|_| NoHead::Foreign)? != MAGIC {
            return Err(NoHead::Foreign);
        }
        match reader.u32("version")? {
            VERSION => {}
            version => return Err(NoHead::Version(version)),
        }
        let snapshot = reader.u32("length of the snapshot")? as usize;
        if snapshot > SNAPSHOT_BYTES_MAX {
            return Err(reader.refuse("length of the snapshot").into());
        }
        Ok(HEAD_BYTES + snapshot)
    }

    /// All bytes of a head.
    pub(crate) fn decode(bytes: &[u8], key: &DomainKey) -> Result<Head, NoHead> {
        let length = Head::bytes(bytes)?;
        let mut reader = Reader::new(bytes);
        reader.take("start", START_BYTES)?;
        let domain = reader.array::<32>("domain")?;
        if domain != key.identity() {
            return Err(NoHead::OtherDomain(domain));
        }
        let identity = reader.array::<32>("identity of the snapshot")?;
        let base = reader.array::<32>("identity of the one before")?;
        let first = reader.u64("number of the first chunk")?;
        if first > CHUNKS_MAX {
            return Err(reader.refuse("number of the first chunk").into());
        }
        let snapshot = reader.take("snapshot", length - HEAD_BYTES)?;
        let sealed = &bytes[..reader.offset()];
        if reader.array::<SEAL_BYTES>("seal")? != key.seal(sealed) {
            return Err(reader.refuse("seal").into());
        }
        reader.finish("head")?;
        let base = (base != [0; 32]).then_some(base);
        Ok(Head { identity, base, first, snapshot: SnapshotValue::decode(snapshot)? })
    }
}

/// What comes after the head, again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A chunk, whose payload of so many bytes follows.
    Chunk { class: Class, packing: Packing, raw: u32, stored: u32, address: ChunkAddress },
    /// The end: so many chunks in all, with those before the first. The seal vouches for it and for the head.
    End { count: u64, seal: [u8; SEAL_BYTES] },
}

impl Part {
    /// The end of a stream with this head.
    pub(crate) fn end(count: u64, head: &[u8], key: &DomainKey) -> Part {
        Part::End { count, seal: key.seal(&[&end(count), head].concat()) }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(PART_BYTES);
        match self {
            Part::Chunk { class, packing, raw, stored, address } => {
                let class = match class {
                    Class::Metadata => 1,
                    Class::Data => 2,
                };
                let packing = match packing {
                    Packing::Raw => 1,
                    Packing::Zstd => 2,
                };
                writer.u8(1).u8(class).u8(packing).u8(0).u32(*raw).u32(*stored).u32(0).address(address);
            }
            Part::End { count, seal } => {
                writer.put(&end(*count)).put(seal);
            }
        }
        writer.into_bytes()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Part, DecodeError> {
        let mut reader = Reader::new(bytes);
        let part = match reader.u8("kind of part")? {
            1 => decode_chunk(&mut reader)?,
            2 => {
                reader.zeroes("padding", 7)?;
                Part::End { count: reader.u64("count of chunks")?, seal: reader.array("seal")? }
            }
            _ => return Err(reader.refuse("kind of part")),
        };
        reader.finish("part")?;
        Ok(part)
    }
}

fn decode_chunk(reader: &mut Reader<'_>) -> Result<Part, DecodeError> {
    let class = match reader.u8("class")? {
        1 => Class::Metadata,
        2 => Class::Data,
        _ => return Err(reader.refuse("class")),
    };
    let packing = match reader.u8("packing")? {
        1 => Packing::Raw,
        2 => Packing::Zstd,
        _ => return Err(reader.refuse("packing")),
    };
    reader.zeroes("padding", 1)?;
    let (raw, stored) = (reader.u32("length of content")?, reader.u32("length of payload")?);
    let fits = if packing == Packing::Raw { stored == raw } else { stored <= raw };
    if raw as usize > CHUNK_BYTES_MAX || !fits {
        return Err(reader.refuse("lengths that a chunk can have"));
    }
    reader.zeroes("padding", 4)?;
    Ok(Part::Chunk { class, packing, raw, stored, address: reader.address("address")? })
}

/// What an end says beside its seal.
fn end(count: u64) -> Vec<u8> {
    let mut writer = Writer::with_capacity(PART_BYTES);
    writer.u8(2).put(&[0; 7]).u64(count);
    writer.into_bytes()
}
