//! Buffers of streams: memory that goes from the write buffer to the store and comes back.
//!
//! A stream takes a MiB each millisecond. Fresh pages from the system for it, faulted in one by one, cost as much as copying
//! the data (measured: a quarter of the daemon's time), so buffers are kept: while data streams as many as a flush takes at a time, then a few.
//!
//! Not here: how much may wait (`write`), small files, whose buffers are as small.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

/// Runs of accepted data grow by appending up to this, so that small appends share an allocation and none is copied often.
pub(crate) const RUN_BYTES_MAX: usize = 1 << 20;
/// Buffers that are kept at most, and when nothing waits in the write buffer.
const KEPT_MAX: u64 = 128;
const KEPT_IDLE_MAX: usize = 64;
/// A run of this many bytes at once is part of a stream, and fills its buffer, about.
const STREAM_BYTES_MIN: usize = RUN_BYTES_MAX / 8 * 7;

/// See the module's head.
pub(crate) struct Buffers {
    free: Mutex<Vec<Vec<u8>>>,
    kept_max: usize,
}

/// A buffer on its way through the store.
struct Lent {
    run: Vec<u8>,
    home: Arc<Buffers>,
}

impl Buffers {
    /// For a write buffer of `dirty_bytes_max`: no more than half of it is kept.
    pub(crate) fn new(dirty_bytes_max: u64) -> Arc<Buffers> {
        let kept_max = (dirty_bytes_max / 2 / RUN_BYTES_MAX as u64).min(KEPT_MAX);
        Arc::new(Buffers { free: Mutex::default(), kept_max: usize::try_from(kept_max).unwrap_or(0) })
    }

    /// A new run with this data. `is_stream`: more is expected to follow.
    pub(crate) fn begin(&self, data: &[u8], is_stream: bool) -> Vec<u8> {
        if !is_stream && !Buffers::fills(data.len()) || data.len() > RUN_BYTES_MAX {
            return data.to_vec();
        }
        let mut run = self.take();
        run.extend_from_slice(data);
        run
    }

    /// An empty buffer with room for a whole run.
    pub(crate) fn take(&self) -> Vec<u8> {
        let kept = self.free.lock().pop();
        kept.unwrap_or_else(|| Vec::with_capacity(RUN_BYTES_MAX))
    }

    /// Whether so many bytes in a buffer of [`take`](Buffers::take) are worth it: else they are copied into one of their size.
    pub(crate) fn fills(bytes: usize) -> bool {
        bytes >= STREAM_BYTES_MIN
    }

    /// Takes a buffer back that was not lent.
    pub(crate) fn give(&self, mut run: Vec<u8>) {
        run.clear();
        let mut free = self.free.lock();
        if run.capacity() == RUN_BYTES_MAX && free.len() < self.kept_max {
            free.push(run);
        }
    }

    /// Nothing waits in the write buffer: keeps a few for the next stream.
    pub(crate) fn rest(&self) {
        let mut free = self.free.lock();
        let kept = free.len().min(KEPT_IDLE_MAX).min(self.kept_max / 2);
        let rest = free.split_off(kept);
        // Not under the lock: that takes the system a while.
        drop(free);
        drop(rest);
    }

    /// The bytes of a run; its buffer comes back when the last slice of them is dropped.
    pub(crate) fn lend(self: &Arc<Self>, run: Vec<u8>) -> Bytes {
        if run.capacity() == RUN_BYTES_MAX {
            Bytes::from_owner(Lent { run, home: Arc::clone(self) })
        } else {
            Bytes::from(run)
        }
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.run
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.home.give(std::mem::take(&mut self.run));
    }
}

#[cfg(test)]
mod tests {
    use super::{Buffers, RUN_BYTES_MAX, STREAM_BYTES_MIN};

    #[test]
    fn a_buffer_comes_back_with_the_last_slice_and_is_used_again() {
        let buffers = Buffers::new(8 << 20);
        let run = buffers.begin(&[1; STREAM_BYTES_MIN], false);
        let place = run.as_ptr();
        let bytes = buffers.lend(run);
        let slice = bytes.slice(10..20);
        drop(bytes);
        assert_eq!(buffers.free.lock().len(), 0);
        assert_eq!(slice[..], [1; 10]);
        drop(slice);
        assert_eq!(buffers.free.lock().len(), 1);
        let again = buffers.begin(&[2; 3], true);
        assert_eq!((again.as_ptr(), &again[..], again.capacity()), (place, &[2; 3][..], RUN_BYTES_MAX));
    }

    #[test]
    fn no_more_are_kept_than_half_of_the_write_buffer_and_fewer_at_rest() {
        let buffers = Buffers::new(8 << 20);
        let lent: Vec<_> = (0..5).map(|_| buffers.lend(buffers.begin(&[0; RUN_BYTES_MAX], false))).collect();
        drop(lent);
        assert_eq!(buffers.free.lock().len(), 4);
        drop(buffers.lend(buffers.begin(&[0; 100], false)));
        drop(buffers.lend(vec![0; RUN_BYTES_MAX * 3 / 2]));
        assert_eq!(buffers.free.lock().len(), 4, "others are none of ours");
        buffers.rest();
        buffers.rest();
        assert_eq!(buffers.free.lock().len(), 2);
    }
}
