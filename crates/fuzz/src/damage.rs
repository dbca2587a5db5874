//! What is done to a sample. As a value, so that a failure is shrunk to the least of it.

use proptest::prelude::{Just, Strategy, any};
use proptest::sample::Index;
use proptest::{collection, prop_oneof};

/// One way to spoil bytes.
#[derive(Clone, Debug)]
enum Blow {
    Flip {
        at: Index,
        bit: u8,
    },
    /// A little-endian number of `bytes` bytes, as lengths, counts and offsets are.
    Number {
        at: Index,
        bytes: usize,
        value: u64,
    },
    /// The same, near the number of bytes there are: lengths that nearly fit.
    Length {
        at: Index,
        bytes: usize,
        off: i64,
    },
    /// The same, a little more or less than what stands there.
    Step {
        at: Index,
        bytes: usize,
        off: i64,
    },
    Cut {
        at: Index,
    },
    Remove {
        at: Index,
        count: usize,
    },
    Repeat {
        at: Index,
        count: usize,
    },
    Insert {
        at: Index,
        bytes: Vec<u8>,
    },
    /// A piece of another sample.
    Splice {
        at: Index,
        sample: Index,
        from: Index,
        count: usize,
    },
}

/// All that is done to one sample.
#[derive(Clone, Debug)]
pub(crate) struct Damage {
    sample: Index,
    blows: Vec<Blow>,
    /// Whether the checksums are made right afterwards.
    pub(crate) is_repaired: bool,
}

/// Every damage, the smaller the likelier.
pub(crate) fn any_damage() -> impl Strategy<Value = Damage> {
    let repaired = prop_oneof![4 => Just(true), 1 => Just(false)];
    (any::<Index>(), collection::vec(any_blow(), 1..6), repaired).prop_map(|(sample, blows, is_repaired)| Damage {
        sample,
        blows,
        is_repaired,
    })
}

fn any_blow() -> impl Strategy<Value = Blow> {
    let at = any::<Index>;
    let width = || prop_oneof![Just(1_usize), Just(2), Just(4), Just(8)];
    let edges = (0..64_u32, -2..=2_i64).prop_map(|(bit, off)| (1_u64 << bit).wrapping_add_signed(off));
    let value = prop_oneof![2 => 0..5_u64, 2 => Just(u64::MAX), 1 => (0..300_u64).prop_map(|off| u64::MAX - off), 3 => edges, 1 => any::<u64>()];
    let off = || -40..=40_i64;
    prop_oneof![
        3 => (at(), 0..8_u8).prop_map(|(at, bit)| Blow::Flip { at, bit }),
        6 => (at(), width(), value).prop_map(|(at, bytes, value)| Blow::Number { at, bytes, value }),
        2 => (at(), width(), off()).prop_map(|(at, bytes, off)| Blow::Length { at, bytes, off }),
        2 => (at(), width(), off()).prop_map(|(at, bytes, off)| Blow::Step { at, bytes, off }),
        1 => at().prop_map(|at| Blow::Cut { at }),
        1 => (at(), 1..40_usize).prop_map(|(at, count)| Blow::Remove { at, count }),
        1 => (at(), 1..40_usize).prop_map(|(at, count)| Blow::Repeat { at, count }),
        1 => (at(), collection::vec(any::<u8>(), 1..20)).prop_map(|(at, bytes)| Blow::Insert { at, bytes }),
        1 => (at(), at(), at(), 1..100_usize)
            .prop_map(|(at, sample, from, count)| Blow::Splice { at, sample, from, count }),
    ]
}

impl Damage {
    /// The damaged sample.
    pub(crate) fn apply(&self, samples: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = self.sample.get(samples).clone();
        for blow in &self.blows {
            if !bytes.is_empty() {
                blow.strike(&mut bytes, samples);
            }
        }
        bytes
    }
}

impl Blow {
    fn strike(&self, bytes: &mut Vec<u8>, samples: &[Vec<u8>]) {
        let length = bytes.len();
        let number = |at: &Index, width: usize| at.index(length)..(at.index(length) + width).min(length);
        match self {
            Blow::Flip { at, bit } => bytes[at.index(length)] ^= 1 << bit,
            Blow::Number { at, bytes: width, value } => put(&mut bytes[number(at, *width)], *value),
            Blow::Length { at, bytes: width, off } => {
                put(&mut bytes[number(at, *width)], (length as u64).wrapping_add_signed(*off));
            }
            Blow::Step { at, bytes: width, off } => {
                let place = &mut bytes[number(at, *width)];
                let old = place.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
                put(place, old.wrapping_add_signed(*off));
            }
            Blow::Cut { at } => bytes.truncate(at.index(length)),
            Blow::Remove { at, count } => drop(bytes.drain(number(at, *count))),
            Blow::Repeat { at, count } => {
                let range = number(at, *count);
                let piece = bytes[range.clone()].to_vec();
                bytes.splice(range.start..range.start, piece);
            }
            Blow::Insert { at, bytes: piece } => {
                let at = at.index(length);
                bytes.splice(at..at, piece.iter().copied());
            }
            Blow::Splice { at, sample, from, count } => {
                let other = sample.get(samples);
                if !other.is_empty() {
                    let from = from.index(other.len());
                    let piece = &other[from..(from + count).min(other.len())];
                    bytes.splice(number(at, *count), piece.iter().copied());
                }
            }
        }
    }
}

/// As many bytes of the number as there is room.
fn put(place: &mut [u8], value: u64) {
    place.iter_mut().zip(value.to_le_bytes()).for_each(|(place, byte)| *place = byte);
}
