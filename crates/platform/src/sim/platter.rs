//! A disk that turns: what a request takes by where it lies, and where the last one ended.
//!
//! The arm moves, and the time for that goes with the root of the distance (Ruemmler and Wilkes, "An introduction to disk drive modeling", IEEE
//! Computer 1994; the linear part of long seeks is left out). Then the platter turns until the place comes by, and the bytes pass. The drive reads on into its
//! buffer after a read, so what lies shortly behind costs only the passing, also when it is asked for later; and it joins writes that follow each other,
//! until a sync.
//!
//! Not here: in which order those are served who wait at the same time (`elevator`).
//!
//! Files get room on the platter in pieces of 8 MiB, in the order in which they are first touched, as ext4 gives it to files that grow. Room is
//! not used twice.

use std::collections::BTreeMap;
use std::time::Duration;

/// What ext4 sets aside at a time for a file that grows (ext4_mb_normalize_request).
const PIECE_BYTES: u64 = 8 << 20;

/// A drive's constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Platter {
    /// All of it.
    pub bytes: u64,
    /// What passes the heads without a move of the arm.
    pub cylinder_bytes: u64,
    /// One turn.
    pub turn: Duration,
    /// What passes the head in a second.
    pub bytes_per_second: u64,
    /// The arm to the next cylinder.
    pub seek_least: Duration,
    /// The arm over a third of the way, which is what random requests take on the average.
    pub seek_average: Duration,
    /// For each request, whatever it is: the command and the answer.
    pub command: Duration,
    /// How far it reads on.
    pub ahead_bytes: u64,
}

impl Platter {
    /// 4 TB at 7200 turns a minute, as in the evaluation of BFO (Yang et al., MSST 2019). Turn, cylinders (320,800) and buffer: Seagate, Constellation ES.3
    /// SAS product manual, 4.1. Seeks: data sheets of that class. Bytes a second: what the paper reads in order, 4 GiB in 28.2 s. Command: the
    /// least that small requests in a row take on such drives.
    pub const SAS_7200: Platter = Platter {
        bytes: 4_000_000_000_000,
        cylinder_bytes: 4_000_000_000_000 / 320_800,
        turn: Duration::from_nanos(60_000_000_000 / 7200),
        bytes_per_second: 152_000_000,
        seek_least: Duration::from_micros(500),
        seek_average: Duration::from_micros(8500),
        command: Duration::from_micros(100),
        ahead_bytes: 2 << 20,
    };

    /// The time of the arm over so many bytes.
    #[must_use]
    pub fn seek(&self, distance_bytes: u64) -> Duration {
        let cylinders = distance_bytes / self.cylinder_bytes;
        if cylinders == 0 {
            return Duration::ZERO;
        }
        let third = (self.bytes / self.cylinder_bytes) as f64 / 3.0;
        let further = (self.seek_average - self.seek_least).as_secs_f64();
        self.seek_least + Duration::from_secs_f64(further * (cylinders as f64 / third).sqrt())
    }

    /// The time in which so many bytes pass.
    fn passing(&self, bytes: u64) -> Duration {
        Duration::from_nanos(
            u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second)).unwrap_or(u64::MAX),
        )
    }

    /// When this place is under the head the next time.
    fn comes_by(&self, address: u64, after: Duration) -> Duration {
        let turn = self.turn.as_nanos();
        let there = self.passing(address).as_nanos() % turn;
        let wait = (there + turn - after.as_nanos() % turn) % turn;
        after + Duration::from_nanos(u64::try_from(wait).expect("below a turn"))
    }
}

/// A request as the drive did it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// When it was begun.
    pub begun: Duration,
    /// Where on the platter.
    pub address: u64,
    /// How long it is.
    pub bytes: u64,
    /// To the platter, or from it.
    pub is_write: bool,
    /// It was not behind the one before.
    pub is_sought: bool,
}

/// Where the head is.
#[derive(Clone, Copy, Debug)]
struct Head {
    address: u64,
    /// When it ended, or will end, what it was asked for last.
    free: Duration,
    /// Of which kind that was. Nothing joins what a sync ended.
    was_write: Option<bool>,
}

/// A drive at work.
#[derive(Debug)]
pub struct Spindle {
    platter: Platter,
    head: Head,
    /// Places of the pieces, by file and number in it.
    pieces: BTreeMap<(u64, u64), u64>,
    placed: Vec<Placed>,
}

impl Spindle {
    /// A drive with nothing on it.
    #[must_use]
    pub fn new(platter: Platter) -> Spindle {
        let head = Head { address: 0, free: Duration::ZERO, was_write: None };
        Spindle { platter, head, pieces: BTreeMap::new(), placed: Vec::new() }
    }

    /// A request that comes now: when it is done.
    pub fn request(&mut self, now: Duration, address: u64, bytes: u64, is_write: bool) -> Duration {
        let Head { address: at, free, was_write } = self.head;
        let begun = now.max(free);
        let is_near = if is_write { address == at } else { (at..=at + self.platter.ahead_bytes).contains(&address) };
        let end = address + bytes;
        let is_sought = was_write != Some(is_write) || !is_near;
        let ready = begun + self.platter.command;
        let done = if is_sought {
            let arrived = ready + self.platter.seek(at.abs_diff(address));
            self.platter.comes_by(address, arrived) + self.platter.passing(bytes)
        } else {
            // It went on by itself since it was free.
            ready.max(free + self.platter.passing(end - at))
        };
        self.head = Head { address: end, free: done, was_write: Some(is_write) };
        self.placed.push(Placed { begun, address, bytes, is_write, is_sought });
        done
    }

    /// All that came before is done, and nothing joins it.
    pub fn sync(&mut self, now: Duration) -> Duration {
        self.head.was_write = None;
        self.head.free = self.head.free.max(now) + self.platter.command;
        self.head.free
    }

    /// A request for bytes of a file: when it is done.
    pub(super) fn file_request(
        &mut self,
        now: Duration,
        file: u64,
        offset: u64,
        bytes: u64,
        is_write: bool,
    ) -> Duration {
        let (mut at, mut done) = (offset, now);
        while at < offset + bytes {
            let count = (PIECE_BYTES - at % PIECE_BYTES).min(offset + bytes - at);
            let address = self.address(file, at);
            done = self.request(now, address, count, is_write);
            at += count;
        }
        done
    }

    /// Where a byte of a file lies; it gets a place if it has none.
    pub(super) fn address(&mut self, file: u64, offset: u64) -> u64 {
        let next = self.pieces.len() as u64 * PIECE_BYTES;
        self.pieces.entry((file, offset / PIECE_BYTES)).or_insert(next).saturating_add(offset % PIECE_BYTES)
    }

    /// What it was to do beyond now it does not do.
    pub(super) fn abandon(&mut self, now: Duration) {
        self.head.free = self.head.free.min(now);
        self.head.was_write = None;
    }

    /// Where the last request ended.
    pub(super) fn address_now(&self) -> u64 {
        self.head.address
    }

    /// What was done since this was asked last.
    pub fn take(&mut self) -> Vec<Placed> {
        std::mem::take(&mut self.placed)
    }
}
