//! A buffer whose content lies in memory, relative to a page, as in its file, however it grows: so a device can take it from there
//! ([`platform::disk::File::write_run`]).
//!
//! Not here: when it is written.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use platform::disk::RUN_ALIGN;
use platform::memory::Memory;

#[derive(Default)]
pub(crate) struct Run {
    memory: Memory,
    /// Where the content begins, and where it ends.
    skipped: usize,
    end: usize,
}

impl Run {
    /// An empty one in the memory of this one, for what begins at `offset`, with room for `room` bytes before it has to move.
    pub(crate) fn begin(mut self, offset: u64, room: usize) -> Run {
        if self.memory.len() < room + RUN_ALIGN {
            self.memory = Memory::zeroed(room + RUN_ALIGN);
        }
        let within_page = usize::try_from(offset % RUN_ALIGN as u64).expect("below a page");
        self.skipped = (self.memory.as_ptr().align_offset(RUN_ALIGN) + within_page) % RUN_ALIGN;
        self.end = self.skipped;
        self
    }

    pub(crate) fn content(&self) -> &[u8] {
        &self.memory[self.skipped..self.end]
    }

    /// A part of its content, which is shared with whoever writes it to a disk: a device that does not answer keeps it.
    pub(crate) fn part(self: &Arc<Run>, range: Range<usize>) -> Bytes {
        struct Part(Arc<Run>, Range<usize>);
        impl AsRef<[u8]> for Part {
            fn as_ref(&self) -> &[u8] {
                &self.0.content()[self.1.clone()]
            }
        }
        Bytes::from_owner(Part(Arc::clone(self), range))
    }

    /// The run back from those it was shared with, or a copy of what one of them keeps.
    pub(crate) fn unshare(self: Arc<Run>) -> Run {
        Arc::try_unwrap(self).unwrap_or_else(|kept| {
            let mut run = Run::default().begin(0, kept.len());
            run.push(kept.content());
            run
        })
    }

    pub(crate) fn content_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.skipped..self.end]
    }

    pub(crate) fn len(&self) -> usize {
        self.end - self.skipped
    }

    /// Bytes of memory that it keeps.
    pub(crate) fn capacity(&self) -> usize {
        self.memory.len()
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.end + bytes.len() > self.memory.len() {
            // The bigger memory lies relative to a page as this one does.
            let within_page = (self.memory.as_ptr().addr() + self.skipped) % RUN_ALIGN;
            let room = (self.len() + bytes.len()).max(2 * self.len());
            let mut bigger = Run::default().begin(within_page as u64, room);
            bigger.append(self.content());
            *self = bigger;
        }
        self.append(bytes);
    }

    fn append(&mut self, bytes: &[u8]) {
        self.memory[self.end..][..bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
    }

    /// Appends zeroes until its length is a multiple of `align`.
    pub(crate) fn pad(&mut self, align: usize) {
        const ZEROES: [u8; RUN_ALIGN] = [0; RUN_ALIGN];
        let missing = self.len().next_multiple_of(align) - self.len();
        self.push(&ZEROES[..missing]);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use platform::disk::RUN_ALIGN;

    use super::Run;

    #[test]
    fn a_run_that_a_device_keeps_can_be_written_to_another() {
        let mut run = Run::default().begin(0, 100);
        run.push(b"abcdef");
        let shared = Arc::new(run);
        let kept = shared.part(1..3);
        let mut copy = shared.unshare();
        copy.content_mut().fill(b'x');
        assert_eq!((&kept[..], copy.content()), (&b"bc"[..], &b"xxxxxx"[..]));
        let memory = copy.content().as_ptr();
        let shared = Arc::new(copy);
        drop(shared.part(0..6));
        assert_eq!(shared.unshare().content().as_ptr(), memory, "nobody kept it");
    }

    /// Also when its memory is used again, and when it outgrows it.
    #[test]
    fn a_run_lies_in_memory_as_in_its_file() {
        let mut run = Run::default();
        for offset in [0, 1, 72, 4095, 4096, 4097, 1 << 20, (1 << 30) + 123] {
            for room in [0, 5000, 1 << 20] {
                run = run.begin(offset, room);
                let mut expected = Vec::new();
                for count in [0_usize, 1, 8, 4096, 3, 100_000, 4096] {
                    let piece = vec![count.to_le_bytes()[0] ^ 0x5a; count];
                    run.push(&piece);
                    expected.extend(piece);
                }
                assert_eq!((run.content().as_ptr().addr() % RUN_ALIGN) as u64, offset % RUN_ALIGN as u64);
                assert!(run.content() == expected && run.len() == expected.len());
                run.pad(RUN_ALIGN);
                assert!(run.len().is_multiple_of(RUN_ALIGN) && run.content().starts_with(&expected));
                assert!(run.content()[expected.len()..].iter().all(|byte| *byte == 0));
            }
        }
    }
}
