//! Who a disk is, and the node's root.
//!
//! Not here: which of several superblocks counts (`superblock`).

use base::codec::{Reader, Writer};
use base::hash::DomainKey;
use base::id::{NodeNumber, Position};
use base::time::Timestamp;

use super::{
    ROOTS_BYTES_MAX, Unfit, VERSION, checked, expect, expect_end, expect_magic, expect_numbers, expect_version, seal,
};
use crate::disks::{DISKS_MAX, DiskSet};
use crate::level::COPIES_MAX;

// ---------------------------------------------------------------------------------------------------------------
// Identity of a disk: the file `disk`.

/// Who a disk is and to whom it belongs. Written once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) node_identity: [u8; 16],
    pub(crate) node: NodeNumber,
    /// Counted from 0.
    pub(crate) disk: u16,
    /// Disks that the node had when this one was formatted: for people.
    pub(crate) disk_count: u16,
    pub(crate) disk_uuid: [u8; 16],
    pub(crate) created: Timestamp,
    pub(crate) key: DomainKey,
}

impl Identity {
    pub(crate) const BYTES: usize = 256;
    const MAGIC: [u8; 8] = *b"HydrDisk";

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(Self::BYTES);
        writer.put(&Self::MAGIC).u32(VERSION).u16(self.node.0).u16(self.disk).u16(self.disk_count).u16(0);
        writer.timestamp(self.created).put(&self.node_identity).put(&self.disk_uuid).put(&self.key.0);
        seal(writer, Self::BYTES, 0)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Identity, Unfit> {
        let mut reader = Reader::new(bytes);
        expect_magic(Self::MAGIC, reader.array("magic")?)?;
        // Here alone the version comes before the size and the checksum: a newer format may have moved both.
        expect_version(VERSION, reader.u32("version")?)?;
        expect("length in bytes", Self::BYTES, bytes.len())?;
        checked(bytes, 0)?;
        let (node, disk, disk_count) = (reader.u16("node")?, reader.u16("disk")?, reader.u16("disk count")?);
        reader.zeroes("padding", 2)?;
        let identity = Identity {
            node: NodeNumber(node),
            disk,
            disk_count,
            created: reader.timestamp("created")?,
            node_identity: reader.array("node identity")?,
            disk_uuid: reader.array("disk uuid")?,
            key: DomainKey(reader.array("domain key")?),
        };
        expect_end(&mut reader, Self::BYTES)?;
        Ok(identity)
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Superblock: two slots in the file `superblock` of every disk.

/// Where a superblock says the journal is (J-11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Homes {
    pub(crate) disks: DiskSet,
    /// Frames are spread over them, and all are needed; else each of them has every frame.
    pub(crate) are_all_needed: bool,
}

impl Homes {
    /// Each of these has every frame.
    pub(crate) fn each_of(disks: DiskSet) -> Homes {
        Homes { disks, are_all_needed: false }
    }

    /// Whether who has these disks has every frame.
    pub(crate) fn are_among(self, there: DiskSet) -> bool {
        let found = self.disks.both(there);
        if self.are_all_needed { found == self.disks } else { !found.is_empty() }
    }

    /// Whether frames that are on these disks alone will be met by whoever has enough to open the node.
    pub(crate) fn lead_to(self, on: DiskSet) -> bool {
        let found = self.disks.both(on);
        if self.are_all_needed { !found.is_empty() } else { found == self.disks }
    }
}

/// One generation of the node's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) generation: u64,
    /// The store was closed: no frame follows `covered`.
    pub(crate) is_closed: bool,
    pub(crate) node_identity: [u8; 16],
    /// Journal frames up to here are in the trees that `roots` names.
    pub(crate) covered: Position,
    /// Journal frames up to here were durable when this was written; fewer on open means lost data.
    pub(crate) durable: Position,
    /// Packs begin at this number or above from now on.
    pub(crate) pack_next: u64,
    pub(crate) time: Timestamp,
    /// Uuid of each disk, by number; zeroes where there is none.
    pub(crate) disks: Vec<[u8; 16]>,
    /// Disks that it was not written to: they were missing, or had failed.
    pub(crate) without: DiskSet,
    /// Where the journal is.
    pub(crate) homes: Homes,
    /// The disk that the index is on.
    pub(crate) index: u16,
    /// Disks that are drained.
    pub(crate) drained: DiskSet,
    /// Trees and the journal lie on so many disks at least, whatever the settings say.
    pub(crate) floor: u8,
    /// Opaque to the store.
    pub(crate) roots: Vec<u8>,
}

impl Superblock {
    pub(crate) const BYTES: usize = 4096;
    pub(crate) const SLOTS: u64 = 2;
    /// The version that this program writes. It reads those before too: with 2 no disk is drained, with 1 journal and index are on disk 0.
    pub(super) const VERSION: u32 = 3;
    const MAGIC: [u8; 8] = *b"HydrSupr";
    /// Flags.
    const CLOSED: u32 = 1;
    const ALL_HOMES: u32 = 2;
    const FIXED_BYTES: usize = 8 + 4 + 4 + 8 + 16 + 16 + 8 + 8 + 8 + 12 + 2 + 2 + 8 + 8 + 2 + 8 + 1;

    /// The slot's offset in its file.
    pub(crate) fn offset(generation: u64) -> u64 {
        generation % Self::SLOTS * Self::BYTES as u64
    }

    fn flags(&self) -> u32 {
        let closed = if self.is_closed { Self::CLOSED } else { 0 };
        closed | if self.homes.are_all_needed { Self::ALL_HOMES } else { 0 }
    }

    /// The bytes of the copy that goes to the disk with `home` as uuid.
    pub(crate) fn encode(&self, home: &[u8; 16]) -> Vec<u8> {
        assert!(self.disks.len() <= DISKS_MAX && self.roots.len() <= ROOTS_BYTES_MAX, "checked by the caller");
        let mut writer = Writer::with_capacity(Self::BYTES);
        writer.put(&Self::MAGIC).u32(Self::VERSION).u32(self.flags()).u64(self.generation);
        writer.put(&self.node_identity).put(home);
        writer.u64(self.covered.0).u64(self.durable.0).u64(self.pack_next).timestamp(self.time);
        let disks = u16::try_from(self.disks.len()).expect("at most DISKS_MAX");
        writer.u16(disks).short_bytes(&self.roots);
        self.disks.iter().for_each(|uuid| {
            writer.put(uuid);
        });
        writer
            .u64(self.without.bits())
            .u64(self.homes.disks.bits())
            .u16(self.index)
            .u64(self.drained.bits())
            .u8(self.floor);
        seal(writer, Self::BYTES, Self::offset(self.generation))
    }

    /// Reads the slot at `offset` of the disk with `home` as uuid.
    pub(crate) fn decode(bytes: &[u8], home: &[u8; 16], offset: u64) -> Result<Superblock, Unfit> {
        let mut reader = Reader::new(bytes);
        expect_magic(Self::MAGIC, reader.array("magic")?)?;
        checked(bytes, offset)?;
        let version = reader.u32("version")?;
        if !(1..Self::VERSION).contains(&version) {
            expect_version(Self::VERSION, version)?;
        }
        let flags = reader.u32("flags")?;
        if flags > Self::CLOSED | Self::ALL_HOMES {
            return Err(reader.refuse("flags").into());
        }
        let (is_closed, are_all_needed) = (flags & Self::CLOSED != 0, flags & Self::ALL_HOMES != 0);
        let generation = reader.u64("generation")?;
        expect("slot offset", Self::offset(generation), offset)?;
        let node_identity = reader.array("node identity")?;
        expect("home disk", *home, reader.array("home disk")?)?;
        let (covered, durable) = (Position(reader.u64("covered")?), Position(reader.u64("durable")?));
        let (pack_next, time) = (reader.u64("next pack")?, reader.timestamp("time")?);
        expect_numbers(&reader, &[generation, covered.0, durable.0, pack_next])?;
        let disk_count = usize::from(reader.u16("disk count")?);
        let roots = reader.short_bytes("roots")?.to_vec();
        if disk_count > DISKS_MAX || roots.len() > ROOTS_BYTES_MAX {
            return Err(reader.refuse("counts").into());
        }
        let disks = (0..disk_count).map(|_| reader.array("disk uuid")).collect::<Result<_, _>>()?;
        let (mut without, mut homes, mut index) = (DiskSet::NONE, DiskSet::of(0), 0);
        if version > 1 {
            without = DiskSet::from_bits(reader.u64("disks without")?);
            homes = DiskSet::from_bits(reader.u64("disks of the journal")?);
            index = reader.u16("disk of the index")?;
        }
        let (mut drained, mut floor) = (DiskSet::NONE, 1);
        if version > 2 {
            drained = DiskSet::from_bits(reader.u64("disks drained")?);
            floor = reader.u8("copies of trees")?;
        }
        let is_known = |disk: usize| disk < disk_count;
        let mut named = [without, homes, drained].into_iter().flat_map(|disks| disks.iter());
        if !(1..=COPIES_MAX).contains(&floor)
            || homes.is_empty()
            || !named.all(is_known)
            || !is_known(usize::from(index))
        {
            return Err(reader.refuse("numbers of disks").into());
        }
        expect_end(&mut reader, Self::BYTES)?;
        Ok(Superblock {
            generation,
            is_closed,
            node_identity,
            covered,
            durable,
            pack_next,
            time,
            disks,
            roots,
            without,
            homes: Homes { disks: homes, are_all_needed },
            index,
            drained,
            floor,
        })
    }
}

const _: () = assert!(Superblock::FIXED_BYTES + DISKS_MAX * 16 + ROOTS_BYTES_MAX + 8 <= Superblock::BYTES);
