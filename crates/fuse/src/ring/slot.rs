//! A ring entry as both sides see it: its memory, the commands that hand it over, the request and answer inside.
//!
//! The kernel keeps the header (the request's or answer's, 128 bytes; fixed arguments, 128; `RingEntry`, 32) apart from
//! the payload. A request has its first argument in the header and the rest in the payload; an answer is all payload.

#![expect(unsafe_code, reason = "one field of an SQE the io-uring crate cannot set")]

use super::mailbox::{Mailbox, SlotWaker};
use crate::buffer::{Area, PAGE, ROOM_AT};
use crate::crew::Pending;
use crate::exchange::{Core, Home};
use crate::request::Dialect;
use crate::wire::{self, RING_ARGUMENTS_AT, RING_ARGUMENTS_BYTES, RING_ENTRY_AT, RING_HEADER_BYTES};
use io_uring::{opcode, squeue, types};
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;
use zerocopy::{FromBytes, IntoBytes};

/// `FUSE_IO_URING_CMD_REGISTER`.
pub(super) const REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`.
const COMMIT_AND_FETCH: u32 = 2;

/// A ring entry.
pub(super) struct Slot {
    /// There while the kernel holds the slot.
    pub(super) core: Option<Box<Core>>,
    /// The future of the request the slot carries, if it is late.
    pub(super) pending: Option<Pending>,
    /// When that came.
    pub(super) since: Instant,
    pub(super) arm: Arc<SlotWaker>,
    pub(super) waker: Waker,
    /// Header and payload, read by the kernel at REGISTER.
    parts: Box<[libc::iovec; 2]>,
}

impl Slot {
    pub(super) fn new(mailbox: &Arc<Mailbox>, number: u32, area: Area) -> Slot {
        let payload_bytes = area.len() - 2 * PAGE;
        let part = |at, bytes| libc::iovec { iov_base: area.address(at).cast(), iov_len: bytes };
        let parts = Box::new([part(0, RING_HEADER_BYTES), part(ROOM_AT, payload_bytes)]);
        let home: Arc<dyn Home> = mailbox.clone();
        let core = Some(Box::new(Core::new(area, Some(home), number)));
        let arm = SlotWaker::new(mailbox.clone(), number);
        Slot { core, pending: None, since: Instant::now(), waker: Waker::from(arm.clone()), arm, parts }
    }

    /// The command that makes the slot known to the kernel.
    pub(super) fn register(&self, device: types::Fd, queue: u16) -> squeue::Entry128 {
        let entry = opcode::UringCmd80::new(device, REGISTER).cmd(command(0, queue));
        let mut entry = entry.addr(Some(self.parts.as_ptr() as u64)).build();
        // SAFETY: an `Entry128` is a kernel SQE of 128 bytes; `len` is its 32-bit word at byte 24 (io_uring.h). The
        // crate cannot set it for this opcode; FUSE wants the number of parts there.
        unsafe { (&raw mut entry).cast::<u32>().add(6).write(2) };
        entry
    }
}

/// The command that answers a request and hands its slot back.
pub(super) fn commit(device: types::Fd, queue: u16, commit_id: u64) -> squeue::Entry128 {
    opcode::UringCmd80::new(device, COMMIT_AND_FETCH).cmd(command(commit_id, queue)).build()
}

/// Takes up the request in a slot's area.
pub(super) fn begin(core: &mut Core, dialect: Dialect) {
    let area = core.area.bytes();
    let (header, _) = wire::InHeader::read_from_prefix(area).expect("an area has a page for the header");
    let (entry, _) = wire::RingEntry::read_from_prefix(&area[RING_ENTRY_AT..]).expect("the page holds both");
    let payload = (entry.payload_bytes as usize).min(area.len() - ROOM_AT);
    let rest = (header.bytes as usize).saturating_sub(size_of::<wire::InHeader>() + payload);
    let arguments = rest.min(RING_ARGUMENTS_BYTES);
    core.begin(0, RING_ARGUMENTS_AT..RING_ARGUMENTS_AT + arguments, ROOM_AT..ROOM_AT + payload, dialect);
}

/// Puts the answer where the kernel takes it from. Returns the id to commit.
pub(super) fn finish(core: &mut Core) -> u64 {
    let payload_bytes = core.gather() as u32;
    let (error, unique) = (core.error(), core.header.unique);
    let area = core.area.bytes_mut();
    let (mut entry, _) = wire::RingEntry::read_from_prefix(&area[RING_ENTRY_AT..]).expect("the page holds it");
    entry.payload_bytes = payload_bytes;
    let header = wire::OutHeader { bytes: size_of::<wire::OutHeader>() as u32 + payload_bytes, error, unique };
    area[RING_ENTRY_AT..][..size_of::<wire::RingEntry>()].copy_from_slice(entry.as_bytes());
    area[..size_of::<wire::OutHeader>()].copy_from_slice(header.as_bytes());
    entry.commit_id
}

/// The command area of an SQE.
fn command(commit_id: u64, queue: u16) -> [u8; 80] {
    let mut bytes = [0; 80];
    let command = wire::RingCommand { flags: 0, commit_id, queue, padding: [0; 6] };
    bytes[..size_of::<wire::RingCommand>()].copy_from_slice(command.as_bytes());
    bytes
}
