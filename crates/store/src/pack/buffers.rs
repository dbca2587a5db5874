//! Buffers for runs that are read: used again, because an allocator that is asked for many zeroes at a time gets them as fresh pages from the
//! system. Each is a page fault then, which takes about as long as reading it from memory.
//!
//! Not here: how many runs are read at a time (`ordered`, `reading`); the write buffer (`file`).

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

/// Bytes of a buffer that is kept. Runs may be longer by their last chunk's header.
const BUFFER_BYTES: usize = (1 << 20) + (64 << 10);
/// What is shorter is no run worth it.
const LENT_BYTES_MIN: usize = 128 << 10;
/// Buffers are kept for so much of the cache.
const CACHE_PER_BUFFER: u64 = 32 << 20;
const KEPT_MAX: u64 = 16;

/// Those that nobody uses.
pub(super) struct Buffers {
    free: Mutex<Vec<Vec<u8>>>,
    kept_max: usize,
}

/// A buffer of so many bytes, of whatever was in it before.
pub(super) struct Lent {
    buffer: Vec<u8>,
    length: usize,
    home: Arc<Buffers>,
}

impl Buffers {
    /// For a store with so large a cache: they take no more than a thirtieth of it.
    pub(super) fn new(cache_bytes: u64) -> Arc<Buffers> {
        let kept_max = usize::try_from((cache_bytes / CACHE_PER_BUFFER).min(KEPT_MAX)).unwrap_or(0);
        Arc::new(Buffers { free: Mutex::default(), kept_max })
    }

    pub(super) fn lend(self: &Arc<Self>, length: usize) -> Lent {
        let is_kept = (LENT_BYTES_MIN..=BUFFER_BYTES).contains(&length) && self.kept_max > 0;
        let kept = if is_kept { self.free.lock().pop() } else { None };
        let buffer = kept.unwrap_or_else(|| vec![0; if is_kept { BUFFER_BYTES } else { length }]);
        Lent { buffer, length, home: Arc::clone(self) }
    }
}

impl Lent {
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.length]
    }

    /// What was read. The buffer goes back when nobody uses it any more.
    pub(super) fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.buffer.len() == BUFFER_BYTES {
            let mut free = self.home.free.lock();
            if free.len() < self.home.kept_max {
                free.push(std::mem::take(&mut self.buffer));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BUFFER_BYTES, Buffers, LENT_BYTES_MIN};

    #[test]
    fn a_buffer_goes_back_when_its_bytes_are_dropped() {
        let buffers = Buffers::new(256 << 20);
        for length in [1, LENT_BYTES_MIN, BUFFER_BYTES, BUFFER_BYTES + 1] {
            let mut lent = buffers.lend(length);
            lent.bytes().fill(7);
            let bytes = lent.into_bytes();
            assert_eq!(bytes.len(), length);
            let part = bytes.slice(length / 2..);
            drop(bytes);
            assert!(part.iter().all(|byte| *byte == 7));
        }
        assert_eq!(buffers.free.lock().len(), 1, "one after the other used the same");
        let all: Vec<_> = (0..20).map(|_| buffers.lend(BUFFER_BYTES)).collect();
        drop(all);
        assert_eq!(buffers.free.lock().len(), 8, "no more than the cache allows");
    }

    #[test]
    fn with_little_memory_none_is_kept() {
        let buffers = Buffers::new(16 << 20);
        assert_eq!(buffers.lend(LENT_BYTES_MIN).into_bytes().len(), LENT_BYTES_MIN);
        assert!(buffers.free.lock().is_empty());
    }
}
