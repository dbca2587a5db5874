//! Memory a request and its answer share: whole pages, so that data can go to disks without a copy.
//!
//! ```text
//!            0            4016 4096                                       4096 + payload   + 4096
//! /dev/fuse  |   unused    |hd+args|  data of WRITE, or answer of READ ...              | spare |
//! io_uring   |hd args entry| unused|  names and data, then the answer ...               | spare |
//! ```
//!
//! Over /dev/fuse a request is one run of bytes; it is read to 80 bytes before the page boundary, because the header
//! and the fixed part of WRITE are 80 bytes together. READ has a fixed part of the same size, so its answer may start
//! at the boundary too. Over io_uring header and payload are apart by design. The spare page is where answers go that
//! must not cover the name in their request (GETXATTR).

#![expect(unsafe_code, reason = "anonymous mappings are made and read through pointers")]

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Alignment of data; the smallest page of any machine we run on.
pub(crate) const PAGE: usize = 4096;
/// Where data of requests and answers starts.
pub(crate) const ROOM_AT: usize = PAGE;
/// Where a request from /dev/fuse starts.
pub(crate) const DEVICE_AT: usize = PAGE - 80;

/// Where the next steady area is wished for. 64 TiB: half-way up the user's half of 47 bits of address, where neither programs,
/// libraries, stacks nor allocators are put. On machines with less it is only a wish.
static STEADY: AtomicUsize = AtomicUsize::new(1 << 46);

/// Pages of our own, zero when new, given back to the system when dropped.
pub(crate) struct Area {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an `Area` owns its mapping alone; it is memory like a `Box<[u8]>` and tied to no thread.
unsafe impl Send for Area {}
// SAFETY: through `&Area` memory can only be read.
unsafe impl Sync for Area {}

impl Area {
    /// Room for a header and `payload_bytes` of data. Pages cost memory only once they are touched.
    pub(crate) fn new(payload_bytes: usize) -> io::Result<Area> {
        let bytes = PAGE + payload_bytes.next_multiple_of(PAGE) + PAGE;
        Area::map(0, bytes, 0)
    }

    /// Like `new`, at an address that another process of ours has free too, as far as the machine goes along: the kernel knows
    /// a ring's memory by its address alone, so that the next process can take it over there (`at`).
    pub(crate) fn steady(payload_bytes: usize) -> io::Result<Area> {
        let bytes = PAGE + payload_bytes.next_multiple_of(PAGE) + PAGE;
        Area::map(STEADY.fetch_add(bytes, Ordering::Relaxed), bytes, 0)
    }

    /// The same memory as another process had at this address, empty. An error if anything is there.
    pub(crate) fn at(address: usize, bytes: usize) -> io::Result<Area> {
        let end = address.checked_add(bytes).filter(|end| address.is_multiple_of(PAGE) && end.is_multiple_of(PAGE));
        let end = end.ok_or(io::ErrorKind::InvalidInput)?;
        STEADY.fetch_max(end, Ordering::Relaxed);
        let area = Area::map(address, bytes, libc::MAP_FIXED_NOREPLACE)?;
        // Kernels before 4.17 take the flag for a wish.
        if area.start.as_ptr().addr() == address { Ok(area) } else { Err(io::ErrorKind::AddrInUse.into()) }
    }

    fn map(address: usize, bytes: usize, flags: libc::c_int) -> io::Result<Area> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | flags;
        // SAFETY: the address is a wish, or taken only where nothing is: no existing memory is touched.
        let mapped = unsafe { libc::mmap(std::ptr::without_provenance_mut(address), bytes, protection, kind, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(mapped.cast()).ok_or_else(|| io::Error::other("mapping at address 0"))?;
        Ok(Area { start, bytes })
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// All bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `start` is valid for `bytes` bytes, which are initialised (zero pages) and live as long as `self`.
        // The kernel writes only during calls that hold `&mut self` (`device`) or while the ring has the area and
        // nobody borrows from it (`ring`).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// All bytes, to write.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes us the only one.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }

    /// Some bytes, clipped to those that exist.
    pub(crate) fn part(&self, range: Range<usize>) -> &[u8] {
        let end = range.end.min(self.bytes);
        &self.bytes()[range.start.min(end)..end]
    }

    /// Address of the byte at `offset`, for the kernel.
    pub(crate) fn address(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.bytes);
        // SAFETY: `offset` is inside the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`; nothing borrows from it any more.
        let result = unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert_eq!(result, 0, "munmap of an own mapping");
    }
}
