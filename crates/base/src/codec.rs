//! Reading and writing of little-endian bytes that may be cut short or hostile.
//!
//! A [`Reader`] never panics and never reads past its end; every `format.rs` decodes through it.

use std::fmt;

use crate::id::{ChunkAddress, FileId};
use crate::time::Timestamp;

/// The bytes end before the value does, or a value is out of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// What was being read.
    pub what: &'static str,
    /// Where, in bytes from the start of the structure.
    pub offset: usize,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot read {} at byte {}: cut short or out of range", self.what, self.offset)
    }
}

impl std::error::Error for DecodeError {}

/// Takes values off the front of a byte slice.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    /// Starts at the first byte.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, offset: 0 }
    }

    /// Bytes not read yet.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.offset
    }

    /// Position from the start.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The error for a value that was read but makes no sense.
    #[must_use]
    pub fn refuse(&self, what: &'static str) -> DecodeError {
        DecodeError { what, offset: self.offset }
    }

    /// The next `count` bytes.
    pub fn take(&mut self, what: &'static str, count: usize) -> Result<&'a [u8], DecodeError> {
        let end = self.offset.checked_add(count).ok_or(DecodeError { what, offset: self.offset })?;
        let bytes = self.bytes.get(self.offset..end).ok_or(DecodeError { what, offset: self.offset })?;
        self.offset = end;
        Ok(bytes)
    }

    /// A fixed array.
    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(what, N)?);
        Ok(array)
    }

    /// One byte.
    pub fn u8(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        Ok(self.array::<1>(what)?[0])
    }

    /// Two bytes.
    pub fn u16(&mut self, what: &'static str) -> Result<u16, DecodeError> {
        self.array(what).map(u16::from_le_bytes)
    }

    /// Four bytes.
    pub fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        self.array(what).map(u32::from_le_bytes)
    }

    /// Eight bytes.
    pub fn u64(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Eight bytes, signed.
    pub fn i64(&mut self, what: &'static str) -> Result<i64, DecodeError> {
        self.array(what).map(i64::from_le_bytes)
    }

    /// Sixteen bytes.
    pub fn u128(&mut self, what: &'static str) -> Result<u128, DecodeError> {
        self.array(what).map(u128::from_le_bytes)
    }

    /// A chunk address.
    pub fn address(&mut self, what: &'static str) -> Result<ChunkAddress, DecodeError> {
        self.array(what).map(ChunkAddress)
    }

    /// A file id: its branch, its number.
    pub fn file(&mut self, what: &'static str) -> Result<FileId, DecodeError> {
        Ok(FileId { branch: self.u32(what)?, number: self.u64(what)? })
    }

    /// Seconds, then nanoseconds below a billion.
    pub fn timestamp(&mut self, what: &'static str) -> Result<Timestamp, DecodeError> {
        let (seconds, nanos) = (self.i64(what)?, self.u32(what)?);
        if nanos < 1_000_000_000 { Ok(Timestamp { seconds, nanos }) } else { Err(self.refuse(what)) }
    }

    /// Bytes behind a 16-bit length.
    pub fn short_bytes(&mut self, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let count = self.u16(what)?;
        self.take(what, usize::from(count))
    }

    /// Bytes behind a 32-bit length, at most `limit`.
    pub fn long_bytes(&mut self, what: &'static str, limit: usize) -> Result<&'a [u8], DecodeError> {
        let count = self.u32(what)? as usize;
        if count > limit { Err(self.refuse(what)) } else { self.take(what, count) }
    }

    /// Padding: `count` bytes that must be 0, so that a value has one form only.
    pub fn zeroes(&mut self, what: &'static str, count: usize) -> Result<(), DecodeError> {
        let offset = self.offset;
        match self.take(what, count)?.iter().position(|byte| *byte != 0) {
            None => Ok(()),
            Some(at) => Err(DecodeError { what, offset: offset + at }),
        }
    }

    /// Nothing may be left.
    pub fn finish(&self, what: &'static str) -> Result<(), DecodeError> {
        if self.remaining() == 0 { Ok(()) } else { Err(self.refuse(what)) }
    }
}

/// Appends values to a byte vector.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Empty, with room for `capacity` bytes.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Writer {
        Writer { bytes: Vec::with_capacity(capacity) }
    }

    /// Bytes so far.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The finished bytes.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Raw bytes.
    pub fn put(&mut self, bytes: &[u8]) -> &mut Writer {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) -> &mut Writer {
        self.put(&[value])
    }

    /// Two bytes.
    pub fn u16(&mut self, value: u16) -> &mut Writer {
        self.put(&value.to_le_bytes())
    }

    /// Four bytes.
    pub fn u32(&mut self, value: u32) -> &mut Writer {
        self.put(&value.to_le_bytes())
    }

    /// Eight bytes.
    pub fn u64(&mut self, value: u64) -> &mut Writer {
        self.put(&value.to_le_bytes())
    }

    /// Eight bytes, signed.
    pub fn i64(&mut self, value: i64) -> &mut Writer {
        self.put(&value.to_le_bytes())
    }

    /// Sixteen bytes.
    pub fn u128(&mut self, value: u128) -> &mut Writer {
        self.put(&value.to_le_bytes())
    }

    /// A chunk address.
    pub fn address(&mut self, value: &ChunkAddress) -> &mut Writer {
        self.put(&value.0)
    }

    /// A file id: its branch, its number.
    pub fn file(&mut self, value: FileId) -> &mut Writer {
        self.u32(value.branch).u64(value.number)
    }

    /// Seconds, then nanoseconds.
    pub fn timestamp(&mut self, value: Timestamp) -> &mut Writer {
        self.i64(value.seconds).u32(value.nanos)
    }

    /// A 16-bit length, then the bytes. Panics past 64 KiB: callers check limits first.
    pub fn short_bytes(&mut self, bytes: &[u8]) -> &mut Writer {
        self.u16(u16::try_from(bytes.len()).expect("callers keep short fields below 64 KiB")).put(bytes)
    }

    /// A 32-bit length, then the bytes.
    pub fn long_bytes(&mut self, bytes: &[u8]) -> &mut Writer {
        self.u32(u32::try_from(bytes.len()).expect("callers keep long fields below 4 GiB")).put(bytes)
    }

    /// Overwrites four bytes at `offset`, for lengths known only at the end.
    pub fn patch_u32(&mut self, offset: usize, value: u32) {
        self.bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::{Reader, Writer};
    use crate::time::Timestamp;

    #[test]
    fn what_was_written_is_read() {
        let mut writer = Writer::default();
        writer.u8(1).u16(2).u32(3).u64(4).i64(-5).u128(6).short_bytes(b"name").long_bytes(b"data");
        writer.timestamp(Timestamp::new(-1, 999));
        let bytes = writer.into_bytes();
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.u8("a"), Ok(1));
        assert_eq!(reader.u16("b"), Ok(2));
        assert_eq!(reader.u32("c"), Ok(3));
        assert_eq!(reader.u64("d"), Ok(4));
        assert_eq!(reader.i64("e"), Ok(-5));
        assert_eq!(reader.u128("f"), Ok(6));
        assert_eq!(reader.short_bytes("g"), Ok(&b"name"[..]));
        assert_eq!(reader.long_bytes("h", 4), Ok(&b"data"[..]));
        assert_eq!(reader.timestamp("i"), Ok(Timestamp::new(-1, 999)));
        assert_eq!(reader.finish("end"), Ok(()));
    }

    #[test]
    fn every_cut_is_an_error() {
        let mut writer = Writer::default();
        writer.u64(7).short_bytes(b"name").long_bytes(b"data");
        let bytes = writer.into_bytes();
        for cut in 0..bytes.len() {
            let mut reader = Reader::new(&bytes[..cut]);
            let all = reader.u64("a").and_then(|_| reader.short_bytes("b")).and_then(|_| reader.long_bytes("c", 9));
            assert!(all.is_err(), "cut at {cut}");
        }
        assert!(Reader::new(&[255, 255, 255, 255]).long_bytes("c", 9).is_err(), "a length beyond its limit");
        assert_eq!(Reader::new(&[0, 0, 1]).zeroes("padding", 2), Ok(()));
        assert_eq!(Reader::new(&[0, 0, 1]).zeroes("padding", 3).map_err(|error| error.offset), Err(2));
    }
}
