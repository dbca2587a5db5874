//! Readers and where they go on: which file content somebody is about to want. Pure.
//!
//! A read that follows another of the same file in order, backwards, or at the distance of the two before tells where the next ones
//! will be. Their chunks are read ahead, in a window that doubles with each read that was foreseen. The tree's nodes are read several
//! windows further ahead: what the next block costs depends on its place in the tree, and a miss there stalls all the data behind it
//! (HydraFS, FAST'10, section 4.4).
//!
//! Not here: the reading (`prefetch`).

use std::ops::Range;

use parking_lot::Mutex;

use crate::attributes::Node;

/// Smallest window.
const WINDOW_BYTES_MIN: u64 = 256 << 10;
/// Requests of one reader change places: how far off its place a read may be at most, beside twice its length.
const SLACK_BYTES: u64 = 2 << 20;
/// A window is no more than so many times what the reader has read in this way.
const TRUST: u64 = 4;
/// Windows that the metadata is ahead of the data.
const METADATA_WINDOWS: u64 = 4;
/// Steps of a reader that leaves gaps that are read ahead at most.
const STEPS_MAX: u64 = 16;
/// Readers that are remembered.
const PLACES: usize = 1024;
/// Places that share a lock.
const PLACES_PER_LOCK: usize = 64;

/// Where a reader was, and what was foreseen for it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reader {
    node: Node,
    last: Range<u64>,
    /// How far it came: the end of what it read, or the beginning if it goes backwards.
    edge: u64,
    /// From the beginning of the read before to that of the last.
    step: i64,
    /// Whether the last read ended where the one before began.
    was_back: bool,
    way: Way,
    /// Bytes read in this way.
    run: u64,
    /// Bytes that are read ahead.
    window: u64,
    /// How far data and metadata were asked for, in the reader's direction.
    data: u64,
    metadata: u64,
}

/// How a reader goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Nobody knows.
    Unknown,
    Forward,
    Backward,
    /// At the same distance again.
    Steps,
}

/// What should be read ahead.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Ahead {
    /// Whether the reader jumped here: what lies about it is not wanted, as far as anybody knows.
    pub(crate) is_jump: bool,
    pub(crate) data: Vec<Range<u64>>,
    pub(crate) metadata: Vec<Range<u64>>,
}

impl Reader {
    fn new(node: Node, read: Range<u64>) -> Reader {
        let edge = read.end;
        let (way, data, metadata) = (Way::Unknown, edge, edge);
        Reader { node, last: read, edge, step: 0, was_back: false, way, run: 0, window: 0, data, metadata }
    }

    /// Takes note of the next read of a file of `size` bytes, and tells what to read ahead: nothing, unless the caller `may_ask` for it.
    fn note(&mut self, read: Range<u64>, size: u64, window_max: u64, may_ask: bool) -> Ahead {
        let length = read.end - read.start;
        let step = read.start.cast_signed().wrapping_sub(self.last.start.cast_signed());
        let is_near = |a: u64, b: u64, lengths: u64| a.abs_diff(b) <= (lengths * length).min(SLACK_BYTES);
        let end = if self.way == Way::Backward { self.last.end } else { self.edge };
        let is_back = step < 0 && is_near(read.end, self.last.start, 1);
        let way = match self.way {
            way if step == 0 => way,
            Way::Forward if is_near(read.start, self.edge, 2) => Way::Forward,
            Way::Backward if is_near(read.end, self.edge, 2) => Way::Backward,
            _ if step > 0 && is_near(read.start, end, 1) => Way::Forward,
            // Once is what two requests do that changed places.
            _ if is_back && self.was_back => Way::Backward,
            _ if step == self.step => Way::Steps,
            _ => Way::Unknown,
        };
        self.edge = match (way, self.way) {
            (Way::Backward, Way::Backward) => self.edge.min(read.start),
            (Way::Backward, _) => read.start,
            _ if is_near(read.end, end, 2) => end.max(read.end),
            _ => read.end,
        };
        if way != self.way || way == Way::Unknown {
            let done = if way == Way::Steps { read.start } else { self.edge };
            (self.run, self.window, self.data, self.metadata) = (0, 0, done, done);
        }
        (self.way, self.step, self.was_back, self.last) = (way, step, is_back, read.clone());
        if way == Way::Unknown || step == 0 {
            return Ahead { is_jump: way == Way::Unknown, ..Ahead::default() };
        }
        self.run = self.run.saturating_add(length);
        let trusted = (TRUST * self.run).max(WINDOW_BYTES_MIN);
        self.window = (2 * self.window).max(WINDOW_BYTES_MIN).max(2 * length).min(trusted).min(window_max.max(length));
        match way {
            _ if !may_ask => Ahead::default(),
            Way::Forward => self.forward(self.edge, size),
            Way::Backward => self.backward(self.edge),
            _ => self.steps(&read, size),
        }
    }

    fn forward(&mut self, at: u64, size: u64) -> Ahead {
        let further = |done: &mut u64, distance: u64| {
            *done = (*done).max(at);
            // Not for each read: by half windows.
            let wanted = at.saturating_add(distance).min(size);
            let is_worth = *done < at.saturating_add(distance / 2) && *done < wanted;
            is_worth.then(|| std::mem::replace(done, wanted)..wanted)
        };
        let data = further(&mut self.data, self.window);
        let metadata = further(&mut self.metadata, self.window.saturating_mul(METADATA_WINDOWS));
        Ahead { data: data.into_iter().collect(), metadata: metadata.into_iter().collect(), is_jump: false }
    }

    fn backward(&mut self, at: u64) -> Ahead {
        let further = |done: &mut u64, distance: u64| {
            *done = (*done).min(at);
            let wanted = at.saturating_sub(distance);
            let is_worth = *done > at.saturating_sub(distance / 2) && *done > wanted;
            is_worth.then(|| wanted..std::mem::replace(done, wanted))
        };
        let data = further(&mut self.data, self.window);
        let metadata = further(&mut self.metadata, self.window.saturating_mul(METADATA_WINDOWS));
        Ahead { data: data.into_iter().collect(), metadata: metadata.into_iter().collect(), is_jump: false }
    }

    /// A step is a window here: `data` and `metadata` are where the last foreseen one begins.
    fn steps(&mut self, read: &Range<u64>, size: u64) -> Ahead {
        let (step, length) = (self.step, read.end - read.start);
        let count = (self.window / length.max(1)).clamp(1, STEPS_MAX);
        let further = |done: &mut u64, count: u64| {
            let mut found = Vec::new();
            let is_behind = |done: u64, at: u64| if step > 0 { done < at } else { done > at };
            if is_behind(*done, read.start) {
                *done = read.start;
            }
            let end = read.start.saturating_add_signed(step.saturating_mul(count.cast_signed()));
            while is_behind(*done, end) {
                let Some(next) = done.checked_add_signed(step).filter(|next| *next < size) else { break };
                *done = next;
                found.push(next..next.saturating_add(length).min(size));
            }
            found
        };
        let data = further(&mut self.data, count);
        let metadata = further(&mut self.metadata, count * METADATA_WINDOWS);
        Ahead { data, metadata, is_jump: false }
    }
}

type Places = [Option<Reader>; PLACES_PER_LOCK];

/// The readers of all files, each in a place that its file has: the newer of two has it.
pub(crate) struct Readers {
    places: Box<[Mutex<Places>]>,
    window_max: u64,
}

impl Readers {
    /// `window_max`: bytes that are read ahead of one reader; 0: nothing is.
    pub(crate) fn new(window_max: u64) -> Readers {
        let lock = |_| Mutex::new([const { None }; PLACES_PER_LOCK]);
        Readers { places: (0..PLACES / PLACES_PER_LOCK).map(lock).collect(), window_max }
    }

    /// Somebody reads `read` of a file of `size` bytes: what should be read ahead for it. Unless one `may_ask`, it is asked for by a later read.
    pub(crate) fn note(&self, node: Node, read: Range<u64>, size: u64, may_ask: bool) -> Ahead {
        if read.is_empty() {
            return Ahead::default();
        }
        let number = place_of(node);
        let locks = self.places.len();
        let place = &mut self.places[number % locks].lock()[number / locks];
        match place {
            Some(reader) if reader.node == node => {
                reader.note(read, size, self.window_max, may_ask && self.window_max > 0)
            }
            _ => {
                let is_jump = read.start > 0;
                *place = Some(Reader::new(node, read));
                Ahead { is_jump, ..Ahead::default() }
            }
        }
    }
}

fn place_of(node: Node) -> usize {
    // Files of one directory have numbers in a row; the same file of two views should not share a place.
    (node.file.number.wrapping_add(u64::from(node.view.0).wrapping_mul(337)) % PLACES as u64) as usize
}

#[cfg(test)]
mod tests;
