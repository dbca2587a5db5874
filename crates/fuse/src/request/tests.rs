//! Decoding of what no kernel sends: nothing may panic, loop, or read outside the request.

use super::{Dialect, Header, Reader, Request, SetTime, decode, forgotten, interrupted};
use crate::Exchange;
use crate::errno::Errno;
use crate::flags::opcode;
use crate::wire;
use zerocopy::IntoBytes;

/// A small generator, so that a failure can be replayed from its seed alone (SplitMix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.roll() % limit as u64) as usize
    }

    /// Bytes in which zeros, small numbers and all ones are common, as they are where lengths go wrong.
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count)
            .map(|_| match self.below(4) {
                0 => 0,
                1 => self.below(8) as u8,
                2 => 0xff,
                _ => self.roll() as u8,
            })
            .collect()
    }
}

fn read(number: u32, first: &[u8], second: &[u8]) -> Result<String, Errno> {
    let reader = Reader::new(first, second, 0)?;
    decode(number, reader, Dialect { setxattr_ext: true }).map(|request| format!("{request:?}"))
}

#[test]
fn random_bytes_never_panic() {
    let seed = 1;
    println!("seed {seed}");
    let mut dice = Dice(seed);
    for round in 0..40_000 {
        let number = (round % 66) as u32;
        let (first, second) = (dice.below(160), dice.below(2) * dice.below(300));
        let (first, second) = (dice.bytes(first), dice.bytes(second));
        let words = if dice.below(4) == 0 { dice.roll() as u16 } else { dice.below(3) as u16 };
        let Ok(reader) = Reader::new(&first, &second, words) else { continue };
        for setxattr_ext in [false, true] {
            if let Ok(request) = decode(number, reader, Dialect { setxattr_ext }) {
                assert!(format!("{request:?}").len() > 2);
            }
        }
        let header = Header { opcode: number, ..Default::default() };
        if let Ok(nodes) = forgotten(&header, reader) {
            assert!(nodes.count() <= 1 + (first.len() + second.len()) / size_of::<wire::ForgetOne>());
        }
        let _ = interrupted(reader);
    }
}

#[test]
fn whatever_is_asked_can_be_answered() {
    let mut dice = Dice(2);
    for number in 0..66 {
        for _ in 0..20 {
            let count = dice.below(200);
            let mut exchange = Exchange::rehearsal(number, 1, &dice.bytes(count)).expect("memory");
            let room = exchange.reply_room().len();
            assert!(room <= 1 << 20);
            exchange.reply_room().fill(7);
            exchange.answer_data(room);
            exchange.answer_xattr(&[1; 100]);
            exchange.answer_ioctl(0, room);
            exchange.answer_copied(5);
            exchange.answer_data(room + 1);
            assert_eq!(exchange.outcome(), Err(Errno::EIO));
        }
    }
}

#[test]
fn every_prefix_of_a_request_is_refused_or_understood() {
    let write = wire::WriteIn { size: 5, ..Default::default() };
    let whole = [write.as_bytes(), b"hello"].concat();
    for end in 0..whole.len() {
        assert_eq!(read(opcode::WRITE, &whole[..end], &[]), Err(Errno::EIO), "{end} bytes");
    }
    assert!(read(opcode::WRITE, &whole, &[]).is_ok());
}

#[test]
fn both_transports_read_the_same() {
    let rename = wire::Rename2In { parent: 9, flags: 1, padding: 0 };
    let names = b"old\0new\0";
    let expected = Request::Rename { name: b"old", new_parent: 9, new_name: b"new", flags: 1 };
    let whole = [rename.as_bytes(), names].concat();
    for reader in [Reader::new(&whole, &[], 0), Reader::new(rename.as_bytes(), names, 0)] {
        let request = decode(opcode::RENAME2, reader.expect("no extension"), Dialect::default());
        assert_eq!(request, Ok(expected));
    }
    assert_eq!(read(opcode::RENAME2, &whole[..whole.len() - 1], &[]), Err(Errno::EIO));
}

#[test]
fn names_must_be_there_and_end() {
    assert_eq!(read(opcode::LOOKUP, b"name", &[]), Err(Errno::EIO));
    assert_eq!(read(opcode::LOOKUP, b"\0", &[]), Err(Errno::EINVAL));
    assert!(read(opcode::LOOKUP, b"\xff\xfe\0", &[]).is_ok());
    assert_eq!(read(opcode::LOOKUP, &[], b"name"), Err(Errno::EIO));
}

#[test]
fn extensions_are_cut_off() {
    let make = wire::MkDirIn { mode: 0o755, umask: 0 };
    let body = [make.as_bytes(), b"d\0", &[0xee; 16]].concat();
    let reader = Reader::new(&body, &[], 2).expect("two words are there");
    let expected = Request::MkDir { name: b"d", mode: 0o755, umask: 0 };
    assert_eq!(decode(opcode::MKDIR, reader, Dialect::default()), Ok(expected));
    assert!(Reader::new(&body, &[], 100).is_err());
}

#[test]
fn times_are_signed_and_nanoseconds_kept_small() {
    let sent = wire::SetAttrIn {
        valid: crate::flags::setattr::ATIME | crate::flags::setattr::MTIME | crate::flags::setattr::MTIME_NOW,
        atime: (-5_i64).cast_unsigned(),
        atime_ns: u32::MAX,
        ..Default::default()
    };
    let reader = Reader::new(sent.as_bytes(), &[], 0).expect("no extension");
    let Ok(Request::SetAttr(change)) = decode(opcode::SETATTR, reader, Dialect::default()) else { panic!("SETATTR") };
    assert_eq!(change.mtime, Some(SetTime::Now));
    let Some(SetTime::At(time)) = change.atime else { panic!("a time") };
    assert_eq!((time.seconds, time.nanoseconds), (-5, 999_999_999));
}

#[test]
fn unknown_requests_are_enosys() {
    for number in [0, 2, 7, 19, 26, 54, 200, u32::MAX] {
        assert_eq!(read(number, &[0; 64], &[]), Err(Errno::ENOSYS), "{number}");
    }
}
