//! Every byte the store writes to a disk. Described with pictures and reasons in docs/format.md, "Store".
//!
//! Little endian, fixed sizes, explicit padding of zeroes. The first bytes are a magic number; no field that is an enum
//! uses 0, so a block of zeroes is never valid. Checksums are `base::hash::checksum`, seeded by the place where the
//! structure belongs, so that the right bytes in the wrong place (a misdirected write) do not pass.
//!
//! Decoding never panics: it returns what is wrong, in words, and the caller adds path and offset.
//! Not here: reading, writing, meaning.

mod domain;
mod fragment;
mod journal;
mod pack;
mod place;
mod root;

use base::codec::{DecodeError, Reader, Writer};
use base::hash::checksum;

pub(crate) use self::domain::DomainFile;
pub(crate) use self::fragment::{Cut, FragmentHeader, FragmentName};
pub(crate) use self::journal::{FrameHeader, SegmentHeader};
pub use self::pack::Class;
pub(crate) use self::pack::{
    BUNDLE_BYTES_MAX, ChunkHeader, Codec, Entry, InBundle, PACK_VERSION, PackFooter, PackHeader, decode_directory,
    encode_directory, lots_of, remains_of,
};
pub(crate) use self::place::{Place, Summary};
pub(crate) use self::root::{Homes, Identity, Superblock};

/// The version this program writes. A disk with a higher one is refused.
///
/// | version | date | change |
/// |---|---|---|
/// | 1 | 2025-11 | first |
pub(crate) const VERSION: u32 = 1;

/// The versions of what this program writes on disks: where those of two programs differ the one may not read what the other wrote.
pub const FORMS: [u32; 5] =
    [VERSION, Superblock::VERSION, journal::SegmentHeader::VERSION, PACK_VERSION, fragment::FRAGMENT_VERSION];

/// Most bytes of the opaque payload of a superblock.
pub const ROOTS_BYTES_MAX: usize = 2048;

/// Greatest generation, position, and number of a pack or segment. They rise by ones, so that nothing real comes near; what says more is
/// hostile, and adding to it must not overflow.
const NUMBER_MAX: u64 = 1 << 62;

/// An opening goes on from no greater one: what it would write could soon be read by none.
pub(crate) const NUMBER_OPENED_MAX: u64 = NUMBER_MAX / 2;

/// A file, or a row of the index, whose number is further than this beyond those that there are is nobody's. More than a thousand openings
/// without a disk leave out.
pub(crate) const NUMBERS_AHEAD_MAX: u64 = 1 << 48;

/// Why bytes are not the structure they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unfit {
    /// What should be there.
    pub(crate) expected: String,
    /// What is there.
    pub(crate) found: String,
    /// Set where the bytes are sound and only newer than this program.
    pub(crate) newer: Option<u32>,
    /// Set where they are sound and older than what this program reads.
    pub(crate) older: Option<u32>,
}

impl Unfit {
    pub(crate) fn new(expected: impl ToString, found: impl ToString) -> Unfit {
        Unfit { expected: expected.to_string(), found: found.to_string(), newer: None, older: None }
    }
}

impl From<DecodeError> for Unfit {
    fn from(error: DecodeError) -> Unfit {
        Unfit::new("a whole structure", error)
    }
}

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, expected: T, found: T) -> Result<(), Unfit> {
    if expected == found { Ok(()) } else { Err(Unfit::new(format!("{what} {expected:?}"), format!("{found:?}"))) }
}

fn expect_magic(expected: [u8; 8], found: [u8; 8]) -> Result<(), Unfit> {
    let name = |magic: [u8; 8]| format!("magic \"{}\"", magic.escape_ascii());
    if expected == found { Ok(()) } else { Err(Unfit::new(name(expected), name(found))) }
}

fn expect_version(ours: u32, found: u32) -> Result<(), Unfit> {
    if found == ours {
        return Ok(());
    }
    Err(Unfit {
        newer: (found > ours).then_some(found),
        older: (1..ours).contains(&found).then_some(found),
        ..Unfit::new(format!("format version {ours}"), format!("version {found}"))
    })
}

/// Splits a trailing 64-bit checksum off and compares it.
fn checked(bytes: &[u8], seed: u64) -> Result<&[u8], Unfit> {
    let Some((body, tail)) = bytes.split_last_chunk::<8>() else {
        return Err(Unfit::new("a checksum", format!("{} bytes", bytes.len())));
    };
    let (expected, found) = (checksum(seed, body), u64::from_le_bytes(*tail));
    if expected == found {
        Ok(body)
    } else {
        Err(Unfit::new(format!("checksum {expected:016x}"), format!("{found:016x}")))
    }
}

/// A structure of fixed size, whose fields have been read, holds nothing else before its checksum.
fn expect_end(reader: &mut Reader<'_>, bytes: usize) -> Result<(), Unfit> {
    expect("length in bytes", bytes, reader.offset() + reader.remaining())?;
    Ok(reader.zeroes("padding", bytes - 8 - reader.offset())?)
}

fn expect_numbers(reader: &Reader<'_>, numbers: &[u64]) -> Result<(), Unfit> {
    if numbers.iter().all(|number| *number <= NUMBER_MAX) {
        Ok(())
    } else {
        Err(reader.refuse("numbers that rise").into())
    }
}

fn seal(mut writer: Writer, bytes: usize, seed: u64) -> Vec<u8> {
    assert!(writer.bytes().len() <= bytes - 8, "the fields of a structure fit into its fixed size");
    let padding = bytes - 8 - writer.bytes().len();
    writer.put(&vec![0; padding]);
    let sum = checksum(seed, writer.bytes());
    writer.u64(sum);
    writer.into_bytes()
}
// ---------------------------------------------------------------------------------------------------------------
// Names.

pub(crate) const IDENTITY_FILE: &str = "disk";
/// The same bytes once more.
pub(crate) const IDENTITY_COPY: &str = "disk.copy";
pub(crate) const LOCK_FILE: &str = "lock";
pub(crate) const SUPERBLOCK_FILE: &str = "superblock";
pub(crate) const INDEX_FILE: &str = "index";
/// The index while it is made again.
pub(crate) const INDEX_NEW: &str = "index.new";
pub(crate) const PACK_SUFFIX: &str = ".pack";
/// Added to the name of a pack that was set aside: nothing good was found in it, or a repair saved what was.
pub(crate) const DAMAGED_SUFFIX: &str = ".pack.damaged";
/// Of a copy of a pack that is not whole yet.
pub(crate) const COPY_SUFFIX: &str = ".copy";
pub(crate) const PACKS: &str = "packs";
pub(crate) const JOURNAL: &str = "journal";

/// The path of a pack on its disk.
pub(crate) fn pack_path(pack: u64) -> String {
    format!("{PACKS}/{pack:016x}.pack")
}

/// Where a further copy of a pack is written until it is whole.
pub(crate) fn copy_path(pack: u64) -> String {
    format!("{PACKS}/{pack:016x}{COPY_SUFFIX}")
}

/// The path of a journal segment.
pub(crate) fn segment_path(segment: u64) -> String {
    format!("{JOURNAL}/{segment:016x}.segment")
}

/// The number in a name such as `00000000000000ff.pack`; `None` for names that are not ours.
pub(crate) fn number_of(name: &str, suffix: &str) -> Option<u64> {
    let digits = name.strip_suffix(suffix)?;
    let ours = digits.len() == 16 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let number = if ours { u64::from_str_radix(digits, 16).ok() } else { None };
    number.filter(|number| *number <= NUMBER_MAX)
}

#[cfg(test)]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;
