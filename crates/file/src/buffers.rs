//! Buffers: the memory of accepted data, on its way through the write buffer and the store.
//!
//! A stream takes a MiB each millisecond. Fresh pages from the system for it, faulted in one by one, cost as much as copying
//! the data (measured: a quarter of the daemon's time), so a stream's buffers are kept: while data streams as many as a
//! flush takes at a time, then a few. (Large pages took longer to clear than small ones take to fault, on a virtual machine.) They are long, for what is cut across the border of two runs is copied together and looked at twice.
//!
//! Not here: how much may wait (`write`), small files, whose runs are memory of their own.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use base::interval::Piece;
use bytes::Bytes;
use parking_lot::Mutex;
use platform::memory::Memory;

/// A run that is no stream's grows by appending up to this, so that small appends share an allocation and none is copied often.
pub(crate) const OWN_BYTES_MAX: usize = 1 << 20;
/// A stream's buffer, in bytes: a part of the write buffer, within these bounds.
const STREAM_BYTES_MIN: usize = OWN_BYTES_MAX;
const STREAM_BYTES_MAX: usize = 4 << 20;
const STREAM_PART: u64 = 64;
/// Bytes of buffers that are kept at most, and when nothing waits in the write buffer.
const KEPT_BYTES_MAX: u64 = 128 << 20;
const KEPT_IDLE_BYTES_MAX: usize = 64 << 20;

/// A run of accepted data, and the memory that it is in.
#[derive(Debug)]
pub(crate) enum Buffer {
    Own(Vec<u8>),
    /// The first so many bytes of a stream's buffer.
    Stream(Memory, usize),
    /// Of who wrote it: nothing is appended. Behind it, how long it was at first: a small part would keep all of that.
    Shared(Bytes, usize),
}

/// Data on its way into the write buffer.
pub(crate) enum Incoming<'a> {
    /// To be copied.
    Borrowed(&'a [u8]),
    /// To become a run as it is.
    Owned(Buffer),
}

impl Deref for Incoming<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Incoming::Borrowed(data) => data,
            Incoming::Owned(run) => run,
        }
    }
}

impl Buffer {
    /// Appends, if there is room without copying much of what there is.
    pub(crate) fn append(&mut self, data: &[u8]) -> bool {
        match self {
            Buffer::Own(bytes) => {
                let has_room = bytes.len() + data.len() <= OWN_BYTES_MAX;
                if has_room {
                    bytes.extend_from_slice(data);
                }
                has_room
            }
            Buffer::Stream(memory, length) => {
                let room = memory.get_mut(*length..*length + data.len());
                *length += room.as_ref().map_or(0, |room| room.len());
                room.map(|room| room.copy_from_slice(data)).is_some()
            }
            Buffer::Shared(..) => false,
        }
    }

    /// Keeps so many bytes from the beginning on.
    pub(crate) fn truncate(&mut self, bytes: usize) {
        match self {
            Buffer::Own(own) => own.truncate(bytes),
            Buffer::Stream(_, length) => *length = bytes.min(*length),
            Buffer::Shared(shared, _) => shared.truncate(bytes),
        }
    }

    /// In memory that is no larger.
    pub(crate) fn into_vec(self) -> Vec<u8> {
        match self {
            Buffer::Own(mut bytes) => {
                bytes.shrink_to_fit();
                bytes
            }
            Buffer::Stream(..) | Buffer::Shared(..) => self.to_vec(),
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Buffer::Own(bytes) => bytes,
            Buffer::Stream(memory, length) => &memory[..*length],
            Buffer::Shared(shared, _) => shared,
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        if let Buffer::Shared(shared, _) = self {
            *self = Buffer::Own(shared.to_vec());
        }
        match self {
            Buffer::Own(bytes) => bytes,
            Buffer::Stream(memory, length) => &mut memory[..*length],
            Buffer::Shared(..) => unreachable!("it was copied above"),
        }
    }
}

impl Piece for Buffer {
    fn split_off(&mut self, at: u64) -> Buffer {
        let index = usize::try_from(at).expect("a piece in memory is addressable");
        match self {
            Buffer::Own(bytes) => Buffer::Own(Piece::split_off(bytes, at)),
            Buffer::Shared(shared, whole) => {
                let (tail, whole) = (shared.split_off(index), *whole);
                let head = std::mem::take(shared);
                // Who has most of it keeps it.
                let part = |part: Bytes| {
                    if 2 * part.len() < whole { Buffer::Own(part.to_vec()) } else { Buffer::Shared(part, whole) }
                };
                *self = part(head);
                part(tail)
            }
            Buffer::Stream(memory, length) => {
                let tail = memory[index..*length].to_vec();
                *length = index;
                // The head keeps all of its memory, and would count for its length alone.
                if memory.len() > 2 * index {
                    *self = Buffer::Own(self.to_vec());
                }
                Buffer::Own(tail)
            }
        }
    }
}

/// See the module's head.
pub(crate) struct Buffers {
    /// Of a stream's length, and of [`OWN_BYTES_MAX`].
    free: Mutex<[Vec<Memory>; 2]>,
    stream_bytes: usize,
    kept_bytes_max: usize,
}

/// A buffer on its way through the store.
struct Lent {
    memory: Memory,
    length: usize,
    home: Arc<Buffers>,
}

impl Buffers {
    /// For a write buffer of `dirty_bytes_max`: no more than half of it is kept.
    pub(crate) fn new(dirty_bytes_max: u64) -> Arc<Buffers> {
        let part = usize::try_from(dirty_bytes_max / STREAM_PART).unwrap_or(STREAM_BYTES_MAX);
        let stream_bytes = match part.checked_ilog2() {
            Some(log) => (1 << log).clamp(STREAM_BYTES_MIN, STREAM_BYTES_MAX),
            None => STREAM_BYTES_MIN,
        };
        let kept_bytes_max = usize::try_from((dirty_bytes_max / 2).min(KEPT_BYTES_MAX)).unwrap_or(0);
        Arc::new(Buffers { free: Mutex::default(), stream_bytes, kept_bytes_max })
    }

    /// The most that a run holds.
    pub(crate) fn run_bytes_max(&self) -> usize {
        self.stream_bytes
    }

    /// How much a run is best given of so much.
    pub(crate) fn run_bytes(&self, left: u64) -> usize {
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        left.min(if fills(left, self.stream_bytes) { self.stream_bytes } else { OWN_BYTES_MAX })
    }

    /// A new run with this data, of a file that has so many bytes in runs. `goes_on`: behind one that is full.
    pub(crate) fn begin(&self, data: &[u8], goes_on: bool, dirty_bytes: u64) -> Buffer {
        let is_stream = goes_on && dirty_bytes >= self.stream_bytes as u64 && data.len() <= self.stream_bytes;
        if let Some(length) = if is_stream { Some(self.stream_bytes) } else { self.length_for(data.len()) } {
            let mut run = Buffer::Stream(self.take(length), 0);
            let has_room = run.append(data);
            assert!(has_room, "{} bytes fit a buffer", data.len());
            return run;
        }
        let mut own = Vec::with_capacity(if goes_on { data.len().max(OWN_BYTES_MAX) } else { data.len() });
        own.extend_from_slice(data);
        Buffer::Own(own)
    }

    /// A run of so many bytes, at most [`run_bytes_max`](Buffers::run_bytes_max), which may be anything.
    pub(crate) fn filled(&self, bytes: usize) -> Buffer {
        match self.length_for(bytes) {
            Some(length) => Buffer::Stream(self.take(length), bytes),
            None => Buffer::Own(vec![0; bytes]),
        }
    }

    /// A run of somebody's memory, where it would fill a buffer; smaller ones share an allocation.
    pub(crate) fn shared(&self, bytes: Bytes) -> Option<Buffer> {
        let length = bytes.len();
        fills(length.min(OWN_BYTES_MAX), OWN_BYTES_MAX).then(|| Buffer::Shared(bytes, length))
    }

    /// The length of a buffer that so many bytes fill, about: what they leave of one that was used before takes memory, and nobody counts it.
    fn length_for(&self, bytes: usize) -> Option<usize> {
        [self.stream_bytes, OWN_BYTES_MAX].into_iter().find(|length| fills(bytes, *length) && bytes <= *length)
    }

    fn kind_of(&self, length: usize) -> usize {
        usize::from(length != self.stream_bytes)
    }

    fn take(&self, length: usize) -> Memory {
        let kept = self.free.lock()[self.kind_of(length)].pop();
        kept.unwrap_or_else(|| Memory::zeroed_in_small_pages(length))
    }

    fn give(&self, memory: Memory) {
        let mut free = self.free.lock();
        if bytes_of(&free) + memory.len() <= self.kept_bytes_max {
            free[self.kind_of(memory.len())].push(memory);
        }
    }

    /// Nothing waits in the write buffer: keeps a few for the next stream.
    pub(crate) fn rest(&self) {
        let most = KEPT_IDLE_BYTES_MAX.min(self.kept_bytes_max / 2);
        let mut rest = Vec::new();
        let mut free = self.free.lock();
        while bytes_of(&free) > most {
            let [streams, others] = &mut *free;
            rest.extend(others.pop().or_else(|| streams.pop()));
        }
        // Not under the lock: that takes the system a while.
        drop(free);
        drop(rest);
    }

    /// The bytes of a run; a stream's buffer comes back when the last slice of them is dropped.
    pub(crate) fn lend(self: &Arc<Self>, run: Buffer) -> Bytes {
        match run {
            Buffer::Own(bytes) => Bytes::from(bytes),
            Buffer::Shared(shared, _) => shared,
            Buffer::Stream(memory, length) => Bytes::from_owner(Lent { memory, length, home: Arc::clone(self) }),
        }
    }
}

/// Whether so many bytes are most of a buffer.
fn fills(bytes: usize, length: usize) -> bool {
    bytes >= length / 8 * 7
}

fn bytes_of(free: &[Vec<Memory>; 2]) -> usize {
    free.iter().flatten().map(|memory| memory.len()).sum()
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.memory[..self.length]
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.home.give(std::mem::take(&mut self.memory));
    }
}

#[cfg(test)]
mod tests {
    use base::interval::Piece;
    use bytes::Bytes;

    use super::{Buffer, Buffers, OWN_BYTES_MAX, STREAM_BYTES_MAX, STREAM_BYTES_MIN};

    fn kept(buffers: &Buffers) -> usize {
        buffers.free.lock().iter().flatten().count()
    }

    #[test]
    fn a_buffer_comes_back_with_the_last_slice_and_is_used_again() {
        let buffers = Buffers::new(8 << 20);
        let run = buffers.begin(&[1; STREAM_BYTES_MIN], false, 0);
        let place = run.as_ptr();
        let bytes = buffers.lend(run);
        let slice = bytes.slice(10..20);
        drop(bytes);
        assert_eq!(kept(&buffers), 0);
        assert_eq!(slice[..], [1; 10]);
        drop(slice);
        assert_eq!(kept(&buffers), 1);
        let mut again = buffers.begin(&[2; 3], true, STREAM_BYTES_MIN as u64);
        assert_eq!((again.as_ptr(), &again[..]), (place, &[2; 3][..]));
        assert!(again.append(&[3; STREAM_BYTES_MIN - 3]) && !again.append(&[4]));
        assert_eq!((again.len(), &again[2..4]), (STREAM_BYTES_MIN, &[2, 3][..]));
    }

    #[test]
    fn no_more_are_kept_than_half_of_the_write_buffer_and_fewer_at_rest() {
        let buffers = Buffers::new(8 << 20);
        let lent: Vec<_> = (0..5).map(|_| buffers.lend(buffers.filled(STREAM_BYTES_MIN))).collect();
        drop(lent);
        assert_eq!(kept(&buffers), 4);
        drop(buffers.lend(buffers.begin(&[0; 100], false, 0)));
        drop(buffers.lend(buffers.begin(&vec![0; STREAM_BYTES_MIN * 3 / 2], false, 0)));
        assert_eq!(kept(&buffers), 4, "others are none of ours");
        buffers.rest();
        buffers.rest();
        assert_eq!(kept(&buffers), 2);
    }

    #[test]
    fn buffers_of_a_stream_are_a_part_of_the_write_buffer() {
        let sizes = [0, 8 << 20, 100 << 20, 256 << 20, u64::MAX].map(|dirty| Buffers::new(dirty).run_bytes_max());
        assert_eq!(sizes, [STREAM_BYTES_MIN, STREAM_BYTES_MIN, STREAM_BYTES_MIN, STREAM_BYTES_MAX, STREAM_BYTES_MAX]);
    }

    #[test]
    fn little_takes_no_buffer_of_a_stream() {
        let buffers = Buffers::new(256 << 20);
        let is_own = |run: &Buffer| matches!(run, Buffer::Own(_));
        // The second run of a file that is little longer than one.
        let mut second = buffers.begin(&[1; 4096], true, OWN_BYTES_MAX as u64);
        assert!(is_own(&second) && second.append(&[2; 4096]));
        assert!(is_own(&buffers.filled(OWN_BYTES_MAX / 2)));
        assert!(is_own(&buffers.filled(STREAM_BYTES_MAX / 2)));
        let memory = |run: &Buffer| match run {
            Buffer::Own(bytes) => bytes.capacity(),
            Buffer::Stream(memory, _) => memory.len(),
            Buffer::Shared(..) => panic!("it is nobody's"),
        };
        for left in [1, 5000, OWN_BYTES_MAX, 3 << 20, STREAM_BYTES_MAX - 5, STREAM_BYTES_MAX, 1 << 30] {
            let bytes = buffers.run_bytes(left as u64);
            let run = buffers.filled(bytes);
            assert!(run.len() == bytes && bytes <= left && memory(&run) / 8 * 7 <= bytes, "{bytes} of {left}");
        }
        assert_eq!(buffers.run_bytes(u64::MAX), STREAM_BYTES_MAX);
        assert!(!is_own(&buffers.begin(&[1; 4096], true, STREAM_BYTES_MAX as u64)));
        let mut own = buffers.begin(&[1], false, 0);
        assert!(own.append(&[2; OWN_BYTES_MAX - 1]) && !own.append(&[3]));
    }

    #[test]
    fn memory_of_who_wrote_is_kept_by_most_of_it_and_copied_for_less() {
        let buffers = Buffers::new(256 << 20);
        let bytes = Bytes::from(vec![5; OWN_BYTES_MAX]);
        assert!(buffers.shared(bytes.slice(..100_000)).is_none());
        let is_shared = |run: &Buffer| matches!(run, Buffer::Shared(..));
        let mut run = buffers.shared(bytes.clone()).unwrap();
        assert!(is_shared(&run) && run.as_ptr() == bytes.as_ptr() && !run.append(&[6]));
        let tail = run.split_off(OWN_BYTES_MAX as u64 / 4);
        assert!(!is_shared(&run) && is_shared(&tail) && run.len() + tail.len() == bytes.len());
        let lent = buffers.lend(tail);
        assert_eq!(lent.as_ptr(), bytes[OWN_BYTES_MAX / 4..].as_ptr());
        // Who wrote it keeps what he had.
        let mut run = buffers.shared(bytes.clone()).unwrap();
        run[3] = 7;
        assert!(!is_shared(&run) && (run[3], bytes[3]) == (7, 5) && run.len() == bytes.len());
    }

    #[test]
    fn what_is_cut_short_gives_its_memory_back() {
        let buffers = Buffers::new(256 << 20);
        let mut run = buffers.filled(STREAM_BYTES_MAX);
        run.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 251) as u8);
        let tail = run.split_off(3 << 20);
        assert_eq!((run.len(), tail.len(), tail[0]), (3 << 20, 1 << 20, ((3 << 20) % 251) as u8));
        assert!(matches!(run, Buffer::Stream(..)), "most of it is in use");
        let middle = run.split_off(10);
        assert!(matches!(&run, Buffer::Own(bytes) if bytes.capacity() < 100));
        assert_eq!((&run[..], middle.len()), (&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9][..], (3 << 20) - 10));
        let mut few = buffers.filled(STREAM_BYTES_MAX);
        few.truncate(5);
        assert_eq!((few.len(), few.into_vec().capacity()), (5, 5));
    }
}
