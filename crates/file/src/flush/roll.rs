//! Rolling: the flush of a stream goes on with what is accepted behind its end meanwhile, and publishes its beginning once that is settled.
//! Neither cutting nor hashing waits for a disk to say that it has something, and a stream's buffers soon come back to be filled again.
//!
//! I-152 What a rolling flush takes lies behind all that it took before, so it never lies on that. What is accepted for what it took is newer than
//!       all of it, and stays in `dirty`.
//! I-153 Nobody waits for a stream that has no end: a flush takes no more once somebody waits for the file, for a round or for the end of what uses
//!       chunks, and once the round has lasted as long as it may.
//!
//! Not here: how what was taken is cut and put, and what of it is left in the end (`flush`).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use store::{Moment, StoreError};
use tokio::sync::oneshot;

use super::{Taken, record_write};
use crate::cut::Cutter;
use crate::inode::{Flushing, Run, State};
use crate::system::{FileSystem, Transaction};
use crate::write::RECORD_EXTENTS;

/// What is published at a time, what is taken at a time, and what is still to be cut when more is taken: as so many streams, the least that is
/// flushed while it is written.
const PUBLISHED_STREAMS: u64 = 2;
/// And such a part at least of all that is not local: each time the lanes of the packs are held up.
const PUBLISHED_PART: u64 = 4;
const TAKEN_STREAMS: u64 = 4;
const LEFT_STREAMS: u64 = 1;
/// Less than such a part of that is not worth it.
const TAKEN_PART: u64 = 8;

/// A flush that goes on.
pub(super) struct Roll<'a> {
    system: &'a FileSystem,
    /// Before anything was put.
    since: Moment,
    /// When it takes no more.
    until: Duration,
    /// How many pieces of the file's content are being settled, and what came of it.
    settling: Option<(usize, oneshot::Receiver<Result<(), StoreError>>)>,
}

impl Roll<'_> {
    pub(super) fn new(system: &FileSystem, since: Moment, until: Duration) -> Roll<'_> {
        Roll { system, since, until, settling: None }
    }

    /// Between two groups: publishes what is settled, has more settled, takes more.
    pub(super) fn go_on(&mut self, taken: &mut Taken, cutter: &mut Cutter) -> Result<(), StoreError> {
        if let Some((count, mut settled)) = self.settling.take() {
            match settled.try_recv() {
                Ok(result) => {
                    result?;
                    self.system.publish_first(taken, count);
                }
                Err(oneshot::error::TryRecvError::Empty) => self.settling = Some((count, settled)),
                Err(oneshot::error::TryRecvError::Closed) => panic!("a settle ended early"),
            }
        }
        let stream_bytes = self.system.stream_bytes();
        let put: u64 = taken.content.iter().map(|(_, content)| content.length()).sum();
        let is_worth_it = || put >= taken.inode.state.lock().unlogged_bytes() / PUBLISHED_PART;
        if self.settling.is_none() && put >= PUBLISHED_STREAMS * stream_bytes && is_worth_it() {
            self.settling = Some((taken.content.len(), self.begin_settle()));
        }
        if cutter.left_bytes() < LEFT_STREAMS * stream_bytes && self.takes_more(taken) {
            let least = stream_bytes / TAKEN_PART;
            cutter.extend(&self.system.take_behind(taken, least, TAKEN_STREAMS * stream_bytes));
        }
        Ok(())
    }

    /// Waits for what is being settled.
    pub(super) async fn end(self) -> Result<(), StoreError> {
        match self.settling {
            Some((_, settled)) => settled.await.expect("a panic there is one here"),
            None => Ok(()),
        }
    }

    /// I-153.
    fn takes_more(&self, taken: &Taken) -> bool {
        let system = self.system;
        let is_wanted =
            taken.inode.flush_waiting.are_any() || system.rounds_waiting.are_any() || system.grace.is_waited_for();
        !is_wanted && system.platform.clock.elapsed() < self.until
    }

    /// Settles what was put, beside who cuts.
    fn begin_settle(&self) -> oneshot::Receiver<Result<(), StoreError>> {
        let (send, settled) = oneshot::channel();
        let (store, since) = (Arc::clone(&self.system.store), self.since);
        self.system.platform.tasks.aside(Box::pin(async move {
            let result = store.settle(since).await;
            // Before it says so: who hears of it may be the last to hold the store.
            drop(store);
            drop(send.send(result));
        }));
        settled
    }
}

impl FileSystem {
    /// Logs the first pieces of what a file's flush has put, which are settled: all that it took before their end.
    fn publish_first(&self, taken: &mut Taken, count: usize) {
        let content: Vec<_> = taken.content.drain(..count).collect();
        let Some(end) = content.last().map(|(offset, content)| offset + content.length()) else { return };
        let inode = Arc::clone(&taken.inode);
        // As for the whole: before the room in the buffer is given back.
        self.measure_space();
        let mut groups = content.chunks(RECORD_EXTENTS).peekable();
        while let Some(group) = groups.next() {
            let mut transaction = Transaction::begin(self);
            let mut state = inode.state.lock();
            // The file's lock is held.
            assert!(taken.is_ours(&state), "nobody takes content back from who has the lock (I-64)");
            let is_last = groups.peek().is_none();
            if is_last {
                let mut runs = taken.flushing.runs.clone();
                let bytes = bytes_of(&runs.remove(0..end));
                let left = taken.flushing.bytes - bytes;
                replace(taken, &mut state, Flushing { runs, bytes: left, ..*taken.flushing });
                self.counters.flushed_bytes.add(bytes);
                self.release_dirty(bytes);
                self.counters.flush_beginnings.add(1);
            }
            if !state.is_gone {
                record_write(&mut transaction, &inode, &mut state, group.to_vec(), if is_last { end } else { 0 });
                transaction.log();
            }
        }
    }

    /// I-152: takes at least and at most about so many of the bytes that were accepted behind what a file's flush has taken.
    fn take_behind(&self, taken: &mut Taken, least: u64, most: u64) -> Vec<(u64, Bytes)> {
        let inode = Arc::clone(&taken.inode);
        let mut state = inode.state.lock();
        let end = taken.flushing.runs.end();
        let (mut bytes, mut upto) = (0, end);
        for (range, _) in state.dirty.overlapping(end..u64::MAX) {
            bytes += range.end - range.start.max(end);
            upto = range.end;
            if bytes >= most {
                break;
            }
        }
        // Who asks for something else gets it from a flush of its own (I-108).
        if state.is_gone || bytes < least || state.attributes.resilience != taken.resilience {
            return Vec::new();
        }
        let mut runs = taken.flushing.runs.clone();
        let mut more = Vec::new();
        for (range, run) in state.dirty.remove(end..upto) {
            let run = self.buffers.lend(run);
            more.push((range.start, run.clone()));
            runs.insert(range, Run(run));
        }
        state.dirty_bytes -= bytes;
        let behind = state.dirty.overlapping(upto..u64::MAX).next().map(|(range, _)| range.start);
        // As far as there is nothing that this flush does not have (I-31).
        let (bytes, size) = (taken.flushing.bytes + bytes, behind.unwrap_or(state.attributes.size));
        replace(taken, &mut state, Flushing { runs, bytes, size, ..*taken.flushing });
        self.counters.flush_extensions.add(1);
        more
    }
}

/// Has a flush have taken something else than it had.
fn replace(taken: &mut Taken, state: &mut State, flushing: Flushing) {
    taken.flushing = Arc::new(flushing);
    state.flushing = Some(Arc::clone(&taken.flushing));
}

fn bytes_of(runs: &[(std::ops::Range<u64>, Run)]) -> u64 {
    runs.iter().map(|(range, _)| range.end - range.start).sum()
}

#[cfg(test)]
mod tests {
    use base::id::FileId;

    use crate::Kind;
    use crate::extent::Extent;
    use crate::format::Content;
    use crate::tests::{Machine, create};

    /// I-31: what a flush takes later may end before what was accepted, and it may end without a tail.
    #[test]
    fn a_flush_makes_no_size_local_beyond_what_it_took() {
        const MIB: u64 = 1 << 20;
        let machine = Machine::new(65);
        let system = machine.open();
        machine.run(async {
            let file = create(&system, FileId::ROOT, "f", Kind::Regular).await.file;
            let inode = system.live(file).await.unwrap();
            let write = async |at: u64| system.write(file, at, &[0; MIB as usize], false).await.unwrap();
            write(0).await;
            let lock = system.lock_flush(&inode).await;
            let mut taken = system.take(inode.clone(), lock, (true, true, None)).unwrap();
            write(MIB).await;
            write(2 * MIB).await;
            assert!(system.take_behind(&mut taken, 3 * MIB, 4 * MIB).is_empty(), "there is not as much");
            let more = system.take_behind(&mut taken, 1, MIB);
            assert_eq!(more.iter().map(|(at, run)| (*at, run.len() as u64)).collect::<Vec<_>>(), [(MIB, MIB)]);
            // The beginning, then the rest of what was taken; something else is still accepted.
            taken.content = vec![(0, Content::Extent(MIB / 2, Extent::Zero))];
            system.publish_first(&mut taken, 1);
            assert_eq!((inode.state.lock().logged.size, taken.flushing.bytes), (MIB / 2, 3 * MIB / 2));
            assert_eq!(system.dirty_bytes(), 5 * MIB / 2);
            taken.content = vec![(MIB / 2, Content::Extent(3 * MIB / 2, Extent::Zero))];
            assert!(system.publish(taken).is_none());
            assert_eq!((inode.state.lock().logged.size, system.dirty_bytes()), (2 * MIB, MIB));
            system.sync(file).await.unwrap();
            assert_eq!((inode.state.lock().logged.size, system.dirty_bytes()), (3 * MIB, 0));
        });
        machine.check(&system);
    }
}
