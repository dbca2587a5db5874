//! Cutting: accepted data becomes pieces, each a chunk of the store, where its content says so (`store::first_cut`).
//!
//! Not here: who takes the data and where the chunks go (`flush`), the rule of the cuts (`store`).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use base::interval::IntervalMap;
use bytes::Bytes;
use platform::task::Tasks;

use crate::inode::{Flushing, Inode, Run};

/// Runs that other cores cut before they are reached.
const RUNS_AHEAD: usize = 8;
/// Of a chunk that may lie across the border of two runs: nineteen of twenty are shorter.
const CROSSING_BYTES: usize = 160 << 10;
/// A shorter run is cut before another core could begin, or holds few cuts that would be met.
const AHEAD_BYTES_MIN: usize = 512 << 10;

/// Where a group of chunks lies: file of the batch, offset, length of each.
pub(crate) type Places = Vec<(usize, u64, u32)>;

/// Chunks on their way into the store.
#[derive(Default)]
pub(crate) struct Pieces {
    pub(crate) chunks: Vec<Bytes>,
    pub(crate) places: Places,
    pub(crate) bytes: usize,
}

impl Pieces {
    fn push(&mut self, number: usize, offset: u64, piece: Bytes) {
        self.places.push((number, offset, u32::try_from(piece.len()).expect("a chunk is at most 1 MiB")));
        self.bytes += piece.len();
        self.chunks.push(piece);
    }
}

/// Cuts the files of a batch, a group of pieces at a time.
pub(crate) struct Cutter {
    tasks: Arc<dyn Tasks>,
    group_bytes: usize,
    /// The files that come next, the last one first.
    files: Vec<(usize, ToCut)>,
    current: Option<(usize, Cuts)>,
    /// The ends of streams that stay behind, by file.
    pub(crate) tails: Vec<(usize, (u64, Bytes))>,
}

/// A file whose content was taken to be flushed.
pub(crate) struct ToCut {
    pub(crate) inode: Arc<Inode>,
    pub(crate) flushing: Arc<Flushing>,
    /// Whether the end of the stream stays behind until more of it is there.
    pub(crate) keeps_tail: bool,
}

impl Cutter {
    /// Files are named by their place among `files`.
    pub(crate) fn new(
        tasks: &Arc<dyn Tasks>,
        files: impl DoubleEndedIterator<Item = ToCut> + ExactSizeIterator,
        group_bytes: usize,
    ) -> Cutter {
        let files = files.enumerate().rev().collect();
        Cutter { tasks: Arc::clone(tasks), group_bytes: group_bytes.max(1), files, current: None, tails: Vec::new() }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.files.is_empty() && self.current.is_none()
    }

    /// What is to be cut of the file at work.
    pub(crate) fn left_bytes(&self) -> u64 {
        self.current.as_ref().map_or(0, |(_, cuts)| cuts.left_bytes())
    }

    /// More of the file at work, behind what there is of it.
    pub(crate) fn extend(&mut self, runs: &[(u64, Bytes)]) {
        if let Some((_, cuts)) = &mut self.current {
            cuts.runs.extend(runs.iter().map(|(offset, run)| Piece::new(*offset, run.clone())));
        }
    }

    /// The next pieces, a whole group if there are as many. What was taken back meanwhile is left out.
    pub(crate) fn next(&mut self) -> Option<Pieces> {
        let mut pieces = Pieces::default();
        while pieces.bytes < self.group_bytes {
            let Some((number, cuts)) = &mut self.current else {
                let Some((number, file)) = self.files.pop() else { break };
                if file.inode.state.lock().is_flushing(&file.flushing) {
                    self.current = Some((number, Cuts::new(&file.flushing.runs, file.keeps_tail)));
                }
                continue;
            };
            for (ahead, run) in cuts.next_ahead() {
                self.tasks.compute_beside(Box::new(move || ahead.look(&run)));
            }
            match cuts.next() {
                Some((offset, piece)) => pieces.push(*number, offset, piece),
                None => {
                    let tail = cuts.tail().map(|tail| (*number, tail));
                    self.tails.extend(tail);
                    self.current = None;
                }
            }
        }
        (!pieces.chunks.is_empty()).then_some(pieces)
    }
}

/// Cuts runs into chunks, across the borders of runs that touch. Chunks are slices of their runs; only one that lies across a
/// border is copied together.
struct Cuts {
    runs: VecDeque<Piece>,
    keeps_tail: bool,
    /// What was not cut yet, and where it begins.
    offset: u64,
    rest: Bytes,
    /// What is known of the run whose end `rest` is, and that run's length.
    known: Option<(Arc<Ahead>, usize)>,
}

/// A run that waits, and where it lies.
struct Piece {
    offset: u64,
    run: Bytes,
    /// The cuts that another core looks for.
    ahead: Option<Arc<Ahead>>,
}

impl Piece {
    fn new(offset: u64, run: Bytes) -> Piece {
        Piece { offset, run, ahead: None }
    }
}

/// Cuts of a run that begin at its first byte. The stream's own begin elsewhere, and meet these after a few chunks (C-2);
/// from there on they are the same, and nobody looks for them twice.
#[derive(Default)]
struct Ahead {
    /// Who cuts the stream has come here: looking ahead is of no use any more.
    is_reached: AtomicBool,
    /// Offsets within the run, ascending, from 0.
    cuts: OnceLock<Vec<usize>>,
}

impl Ahead {
    fn look(&self, run: &Bytes) {
        let mut cuts = vec![0];
        let mut at = 0;
        while !self.is_reached.load(Ordering::Relaxed)
            && let Some(length) = store::first_cut(&run[at..], false)
        {
            at += length;
            cuts.push(at);
        }
        let _ = self.cuts.set(cuts);
    }

    /// Bytes from `at` to the next cut, if a cut at `at` is known.
    fn first_cut(&self, at: usize) -> Option<usize> {
        let cuts = self.cuts.get()?;
        let place = cuts.binary_search(&at).ok()?;
        cuts.get(place + 1).map(|next| next - at)
    }
}

impl Cuts {
    fn new(runs: &IntervalMap<Run>, keeps_tail: bool) -> Cuts {
        let runs = runs.iter().map(|(range, run)| Piece::new(range.start, run.0.clone())).collect();
        Cuts { runs, keeps_tail, offset: 0, rest: Bytes::new(), known: None }
    }

    fn left_bytes(&self) -> u64 {
        let runs: usize = self.runs.iter().map(|piece| piece.run.len()).sum();
        (self.rest.len() + runs) as u64
    }

    /// The long runs that come soon and that nobody looks into yet, for other cores.
    fn next_ahead(&mut self) -> impl Iterator<Item = (Arc<Ahead>, Bytes)> {
        let soon = self.runs.iter_mut().take(RUNS_AHEAD);
        let fresh = soon.filter(|piece| piece.run.len() >= AHEAD_BYTES_MIN && piece.ahead.is_none());
        fresh.map(|piece| (Arc::clone(piece.ahead.insert(Arc::default())), piece.run.clone()))
    }

    fn next(&mut self) -> Option<(u64, Bytes)> {
        loop {
            if let Some(length) = self.first_cut() {
                return Some(self.give(length));
            }
            let known = self.rest.len();
            let border = self.offset + known as u64;
            let Some(piece) = self.runs.pop_front_if(|piece| known == 0 || piece.offset == border) else {
                let is_end = !self.runs.is_empty() || !self.keeps_tail;
                return store::first_cut(&self.rest, true).filter(|_| is_end).map(|length| self.give(length));
            };
            if known == 0 {
                self.offset = piece.offset;
                self.enter(piece, 0);
                continue;
            }
            // A chunk that begins before the border ends within the largest chunk behind it, or needs still more runs. Most are short: little
            // is copied first, and more if that is not enough.
            let most = piece.run.len().min(store::CUT_BYTES_MAX);
            let few = if known < CROSSING_BYTES { most.min(CROSSING_BYTES - known) } else { most };
            let joined = |head: usize| Bytes::from([&self.rest[..], &piece.run[..head]].concat());
            let mut rest = joined(few);
            let mut cut = store::first_cut(&rest, false);
            if cut.is_none() && few < most {
                rest = joined(most);
                cut = store::first_cut(&rest, false);
            }
            self.rest = rest;
            self.known = None;
            if let Some(length) = cut {
                let chunk = self.give(length);
                if length < known {
                    // FastCDC looks at bytes in pairs: a cut before the last byte may show only when that has a partner.
                    self.rest.truncate(known - length);
                    self.runs.push_front(piece);
                } else {
                    self.enter(piece, length - known);
                }
                return Some(chunk);
            }
        }
    }

    /// Goes on within a run.
    fn enter(&mut self, piece: Piece, at: usize) {
        if let Some(ahead) = &piece.ahead {
            ahead.is_reached.store(true, Ordering::Relaxed);
        }
        self.known = piece.ahead.map(|ahead| (ahead, piece.run.len()));
        self.rest = piece.run.slice(at..);
    }

    fn first_cut(&self) -> Option<usize> {
        let known = self.known.as_ref().and_then(|(ahead, end)| ahead.first_cut(end - self.rest.len()));
        known.or_else(|| store::first_cut(&self.rest, false))
    }

    fn give(&mut self, length: usize) -> (u64, Bytes) {
        let offset = self.offset;
        self.offset += length as u64;
        (offset, self.rest.split_to(length))
    }

    /// The end of the stream, where it is kept.
    fn tail(&mut self) -> Option<(u64, Bytes)> {
        (!self.rest.is_empty()).then(|| (self.offset, std::mem::take(&mut self.rest)))
    }
}

#[cfg(test)]
mod tests;
