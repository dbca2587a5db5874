//! Memory for what goes to a device in one piece, in large pages where the system has them.
//!
//! A device takes only so many pieces of memory with one request: 128 are usual, which is 512 KiB of pages of 4 KiB that lie anywhere. In
//! large pages a request is as long as the device allows, and the first touch of the memory is one fault, not hundreds.
//!
//! Not here: when it is written, and where to.

use std::fmt;
use std::ops::{Deref, DerefMut};

use memmap2::{Advice, MmapMut};

/// Of x86-64 and of most others; elsewhere this only wastes a little.
const LARGE_PAGE_BYTES: usize = 2 << 20;
/// From here on a large page is worth it.
const LARGE_BYTES_MIN: usize = LARGE_PAGE_BYTES / 2;
/// From here on memory is the kernel's own, so that what is not touched is not there; an allocator may have to clear what it gives.
const MAPPED_BYTES_MIN: usize = 128 << 10;

/// A fixed amount of memory.
pub struct Memory(Kind);

enum Kind {
    Allocated(Vec<u8>),
    Mapped(MmapMut),
}

impl Memory {
    /// At least so many bytes, all of them zero. Of many, those that nobody touches take no memory, up to the end of a large page.
    pub fn zeroed(bytes: usize) -> Memory {
        Memory::with_pages(bytes, bytes >= LARGE_BYTES_MIN)
    }

    /// The same in the system's usual pages, however many bytes: no memory beyond them is taken.
    pub fn zeroed_in_small_pages(bytes: usize) -> Memory {
        Memory::with_pages(bytes, false)
    }

    fn with_pages(bytes: usize, is_large: bool) -> Memory {
        let length = if is_large { bytes.next_multiple_of(LARGE_PAGE_BYTES) } else { bytes };
        match (bytes >= MAPPED_BYTES_MIN).then(|| MmapMut::map_anon(length)) {
            Some(Ok(mapped)) => {
                if is_large {
                    // Advice: a system that has no large pages gives others.
                    let _ = mapped.advise(Advice::HugePage);
                }
                Memory(Kind::Mapped(mapped))
            }
            // It is not worth a mapping, or the process may have no more of them.
            None | Some(Err(_)) => Memory(Kind::Allocated(vec![0; bytes])),
        }
    }
}

impl Default for Memory {
    fn default() -> Memory {
        Memory(Kind::Allocated(Vec::new()))
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of memory", self.len())
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Kind::Allocated(bytes) => bytes,
            Kind::Mapped(mapped) => mapped,
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Kind::Allocated(bytes) => bytes,
            Kind::Mapped(mapped) => mapped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LARGE_BYTES_MIN, LARGE_PAGE_BYTES, MAPPED_BYTES_MIN, Memory};

    #[test]
    fn memory_is_as_large_as_asked_for_and_zero() {
        assert!(Memory::default().is_empty());
        for bytes in
            [1, 4096, MAPPED_BYTES_MIN, LARGE_BYTES_MIN - 1, LARGE_BYTES_MIN, LARGE_PAGE_BYTES, LARGE_PAGE_BYTES + 1]
        {
            for mut memory in [Memory::zeroed(bytes), Memory::zeroed_in_small_pages(bytes)] {
                assert!(memory.len() >= bytes && memory.iter().all(|byte| *byte == 0));
                memory.fill(7);
                assert!(memory.iter().all(|byte| *byte == 7));
            }
        }
        assert_eq!(Memory::zeroed_in_small_pages(LARGE_BYTES_MIN).len(), LARGE_BYTES_MIN);
    }
}
