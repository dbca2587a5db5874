//! The file that makes nodes share a dedup domain.

use base::codec::{Reader, Writer};
use base::hash::DomainKey;

use super::{Unfit, VERSION, checked, expect_end, expect_magic, expect_version, seal};

/// The key of a dedup domain, on its way from one node to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DomainFile {
    pub(crate) key: DomainKey,
}

impl DomainFile {
    pub(crate) const BYTES: usize = 64;
    const MAGIC: [u8; 8] = *b"HydrDomn";

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(Self::BYTES);
        writer.put(&Self::MAGIC).u32(VERSION).u32(0).put(&self.key.0);
        seal(writer, Self::BYTES, 0)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<DomainFile, Unfit> {
        let mut reader = Reader::new(bytes);
        expect_magic(Self::MAGIC, reader.array("magic")?)?;
        expect_version(VERSION, reader.u32("version")?)?;
        checked(bytes, 0)?;
        reader.zeroes("padding", 4)?;
        let key = DomainKey(reader.array("domain key")?);
        expect_end(&mut reader, Self::BYTES)?;
        Ok(DomainFile { key })
    }
}
