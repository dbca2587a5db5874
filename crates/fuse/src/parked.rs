//! A parked session, as one process hands it to the next: the open connection, what was agreed, the requests that wait in slots.
//!
//! The connection is the descriptor of /dev/fuse; as long as a process has it, the mount lives and requests wait. Everything else
//! is bytes, with a version in front: between two programs that know the same version, every byte means the same.
//!
//! ```text
//! version u32 | minor, bits, sizes | mount point, device, unique, by_helper | slots: queue u16, address, length, request, payload
//! ```
//!
//! Not here: how a session comes to stand still (`park`), what the file system has to remember (its own business).

use crate::buffer::{Area, PAGE, ROOM_AT};
use crate::mount::{Place, Unmounter};
use crate::settings::{MINOR, Negotiated};
use crate::wire::{self, RING_ENTRY_AT, RING_HEADER_BYTES};
use base::codec::{DecodeError, Reader, Writer};
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Version of the bytes. A kernel's ring entry is part of them.
const VERSION: u32 = 1;
/// Most slots of one session, and bytes of one: far beyond any machine's.
const SLOTS_MAX: u32 = 1 << 20;
const SLOT_BYTES_MAX: u64 = 1 << 30;
/// Linux: PATH_MAX.
const PATH_BYTES_MAX: usize = 4096;

/// A session that stands still. Its requests wait until `Session::resume`; dropped by all who have it, the mount is dead.
pub struct Parked {
    pub(crate) device: Arc<OwnedFd>,
    pub(crate) negotiated: Negotiated,
    pub(crate) unmounter: Unmounter,
    /// Slots with requests that nobody has served, and the queue of each.
    pub(crate) slots: Vec<(u16, Area)>,
}

impl Parked {
    /// What was agreed with the kernel.
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// Where the mount is.
    pub fn mountpoint(&self) -> &Path {
        self.unmounter.mountpoint()
    }

    /// The open connection. It goes to the next process by whatever way descriptors go.
    pub fn device(&self) -> &OwnedFd {
        &self.device
    }

    /// Everything else.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(1024);
        writer.u32(VERSION);
        let agreed = &self.negotiated;
        writer.u32(agreed.minor);
        writer.u64(agreed.bits());
        writer.u32(agreed.write_bytes_max);
        writer.u32(agreed.readahead_bytes_max);
        writer.u32(u32::try_from(agreed.payload_bytes).expect("at most 65535 pages"));
        let place = self.unmounter.place();
        writer.long_bytes(place.mountpoint.as_os_str().as_bytes());
        writer.long_bytes(place.device.as_bytes());
        writer.u64(place.unique.unwrap_or(0));
        writer.u8(u8::from(place.by_helper));
        writer.u32(u32::try_from(self.slots.len()).expect("below SLOTS_MAX"));
        for (queue, area) in &self.slots {
            writer.u16(*queue);
            writer.u64(area.address(0).addr() as u64);
            writer.u64(area.len() as u64);
            writer.long_bytes(area.part(0..RING_HEADER_BYTES));
            writer.long_bytes(area.part(ROOM_AT..ROOM_AT + payload_bytes(area)));
        }
        writer.into_bytes()
    }

    /// A session that another process encoded. An error says what does not fit; the session is as it was.
    pub fn decode(device: OwnedFd, bytes: &[u8]) -> io::Result<Parked> {
        let Encoded { negotiated, place, slots } = Encoded::decode(bytes)?;
        let slots = slots.iter().map(|slot| Ok((slot.queue, slot.map()?))).collect::<io::Result<_>>()?;
        Ok(Parked { device: Arc::new(device), negotiated, unmounter: Unmounter::of(place), slots })
    }
}

/// A session before the memory of its slots is made.
#[derive(Debug)]
pub(crate) struct Encoded<'a> {
    pub(crate) negotiated: Negotiated,
    place: Place,
    pub(crate) slots: Vec<Slot<'a>>,
}

impl Encoded<'_> {
    pub(crate) fn decode(bytes: &[u8]) -> io::Result<Encoded<'_>> {
        let mut reader = Reader::new(bytes);
        let wrong = |error: DecodeError| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
        match reader.u32("the version").map_err(wrong)? {
            VERSION => {}
            found => {
                let text =
                    format!("a session of version {found} was handed over; this program knows version {VERSION}");
                return Err(io::Error::new(io::ErrorKind::Unsupported, text));
            }
        }
        let (negotiated, place, count) = decode_fixed(&mut reader).map_err(wrong)?;
        let slots = (0..count).map(|_| decode_slot(&mut reader).map_err(wrong)).collect::<io::Result<_>>()?;
        Ok(Encoded { negotiated, place, slots })
    }
}

fn decode_fixed(reader: &mut Reader<'_>) -> Result<(Negotiated, Place, u32), DecodeError> {
    let (minor, bits) = (reader.u32("what was agreed")?, reader.u64("what was agreed")?);
    let mut size = || reader.u32("the sizes of requests");
    let negotiated = Negotiated::agreed(minor, bits, [size()?, size()?, size()?]);
    if minor > MINOR || negotiated.bits() != bits {
        // A newer program agreed on it, and the kernel counts on it.
        return Err(reader.refuse("what this program knows to be agreed on with a kernel"));
    }
    let place = Place {
        mountpoint: OsStr::from_bytes(reader.long_bytes("the mount point", PATH_BYTES_MAX)?).into(),
        device: String::from_utf8_lossy(reader.long_bytes("the device", PATH_BYTES_MAX)?).into_owned(),
        unique: Some(reader.u64("the mount's number")?).filter(|unique| *unique != 0),
        by_helper: reader.u8("who mounted")? != 0,
    };
    let count = reader.u32("the number of slots")?;
    if count > SLOTS_MAX { Err(reader.refuse("fewer slots")) } else { Ok((negotiated, place, count)) }
}

/// A slot before its memory is made.
#[derive(Debug)]
pub(crate) struct Slot<'a> {
    queue: u16,
    address: usize,
    pub(crate) bytes: usize,
    request: &'a [u8],
    pub(crate) payload: &'a [u8],
}

fn decode_slot<'a>(reader: &mut Reader<'a>) -> Result<Slot<'a>, DecodeError> {
    let (queue, address, bytes) = (reader.u16("a slot")?, reader.u64("a slot")?, reader.u64("a slot")?);
    let request = reader.long_bytes("the request of a slot", RING_HEADER_BYTES)?;
    let payload = reader.long_bytes("the payload of a slot", SLOT_BYTES_MAX as usize)?;
    let fits = request.len() == RING_HEADER_BYTES
        && bytes <= SLOT_BYTES_MAX
        && (payload.len() + 2 * PAGE) as u64 <= bytes
        && address > 0;
    match (usize::try_from(address), usize::try_from(bytes)) {
        (Ok(address), Ok(bytes)) if fits => Ok(Slot { queue, address, bytes, request, payload }),
        _ => Err(reader.refuse("a slot whose request fits its memory")),
    }
}

impl Slot<'_> {
    /// The kernel knows the memory by its address, which is why it has to be the same.
    fn map(&self) -> io::Result<Area> {
        let mut area = Area::at(self.address, self.bytes).map_err(|error| {
            let text =
                format!("the memory at {:#x} cannot be had, where the kernel expects a slot: {error}", self.address);
            io::Error::new(error.kind(), text)
        })?;
        area.bytes_mut()[..RING_HEADER_BYTES].copy_from_slice(self.request);
        area.bytes_mut()[ROOM_AT..ROOM_AT + self.payload.len()].copy_from_slice(self.payload);
        Ok(area)
    }
}

/// Bytes of the request in a slot's payload.
fn payload_bytes(area: &Area) -> usize {
    let (entry, _) = wire::RingEntry::read_from_prefix(area.part(RING_ENTRY_AT..RING_HEADER_BYTES))
        .expect("an area has a page for the header");
    (entry.payload_bytes as usize).min(area.len() - 2 * PAGE)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{Area, Parked, Place, ROOM_AT, Unmounter};
    use crate::settings::Negotiated;
    use crate::wire::RING_ENTRY_AT;
    use std::sync::Arc;

    fn device() -> std::os::fd::OwnedFd {
        std::io::pipe().expect("a pipe").0.into()
    }

    pub(crate) fn parked() -> Parked {
        let place = Place { mountpoint: "/m n".into(), device: "0:77".to_owned(), unique: Some(9), by_helper: true };
        let mut area = Area::steady(1 << 16).expect("memory");
        area.bytes_mut()[7] = 7;
        // `payload_bytes` of the entry.
        area.bytes_mut()[RING_ENTRY_AT + 16] = 5;
        area.bytes_mut()[ROOM_AT..ROOM_AT + 6].copy_from_slice(b"namex!");
        let negotiated = Negotiated::agreed(45, 1 << 41 | 1 << 29 | 1 << 20, [1 << 16, 1 << 17, 1 << 16]);
        let unmounter = Unmounter::of(place);
        Parked { device: Arc::new(device()), negotiated, unmounter, slots: vec![(3, area)] }
    }

    #[test]
    fn a_session_reads_back_at_the_same_place() {
        let first = parked();
        let bytes = first.encode();
        let refused = Parked::decode(device(), &bytes).err().expect("the memory is still ours");
        assert!(refused.to_string().contains("where the kernel expects a slot"), "{refused}");
        let address = first.slots[0].1.address(0).addr();
        let agreed = format!("{:?}", first.negotiated);
        drop(first);
        let second = Parked::decode(device(), &bytes).expect("nothing is there any more");
        assert_eq!(second.unmounter.place(), parked().unmounter.place());
        assert_eq!(format!("{:?}", second.negotiated), agreed);
        let (queue, area) = &second.slots[0];
        assert_eq!((*queue, area.address(0).addr(), area.bytes()[7]), (3, address, 7));
        assert_eq!(area.part(ROOM_AT..ROOM_AT + 6), b"namex\0", "what is no part of the request stays behind");
    }

    #[test]
    fn hostile_bytes_are_errors() {
        let bytes = {
            let mut first = parked();
            first.slots.clear();
            first.encode()
        };
        for length in 0..bytes.len() {
            assert!(Parked::decode(device(), &bytes[..length]).is_err(), "{length} bytes");
        }
        let mut newer = bytes.clone();
        newer[0] = 2;
        let refused = Parked::decode(device(), &newer).err().expect("another version");
        assert!(refused.to_string().contains("version 2 was handed over"), "{refused}");
        // What another program agreed on with the kernel, and this one does not know.
        for (at, bit) in [(15, 0x40), (5, 1)] {
            let mut unknown = bytes.clone();
            unknown[at] |= bit;
            let refused = Parked::decode(device(), &unknown).err().expect("nobody speaks that here");
            assert!(refused.to_string().contains("agreed on"), "{refused}");
        }
        let mut many = bytes;
        let at = many.len() - 4;
        many[at..].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Parked::decode(device(), &many).is_err());
    }
}
