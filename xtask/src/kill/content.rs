//! Bytes that say where they belong: each cell of 64 bytes holds its file's key, its own offset, and what follows from both.
//!
//! So content of any length can be made and judged from any offset on, without memory, and a wrong byte can be told from zeroes,
//! from another file's content, and from the same file's content of another place.

use anyhow::{Result, bail};

use crate::random::Random;

const CELL: usize = 64;

/// Whose bytes they are: round, thread, file or version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key(pub(super) u64);

impl Key {
    /// Rounds and threads are few, files may be many.
    pub(super) fn new(round: u64, thread: u64, number: u64) -> Key {
        Key(round << 44 | thread << 36 | number)
    }

    fn words(self) -> String {
        format!("round {} thread {} number {}", self.0 >> 44, self.0 >> 36 & 0xff, self.0 & 0xf_ffff_ffff)
    }
}

fn cell(key: Key, index: u64) -> [u8; CELL] {
    let mut cell = [0; CELL];
    let offset = index * CELL as u64;
    cell[..8].copy_from_slice(&key.0.to_le_bytes());
    cell[8..16].copy_from_slice(&offset.to_le_bytes());
    Random::new(key.0.rotate_left(17) ^ offset).fill(&mut cell[16..]);
    cell
}

/// The content of the file `key` from `offset` on.
pub(super) fn make(key: Key, offset: u64, count: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count + 2 * CELL);
    let first = offset / CELL as u64;
    let skip = (offset % CELL as u64) as usize;
    for index in first.. {
        if bytes.len() >= count + skip {
            break;
        }
        bytes.extend_from_slice(&cell(key, index));
    }
    bytes.drain(..skip);
    bytes.truncate(count);
    bytes
}

/// Whether these are the bytes of the file `key` from `offset` on; what they are, if not.
pub(super) fn check(key: Key, offset: u64, bytes: &[u8]) -> Result<()> {
    let expected = make(key, offset, bytes.len());
    if expected == bytes {
        return Ok(());
    }
    let same = expected.iter().zip(bytes).take_while(|(left, right)| left == right).count();
    let at = offset + same as u64;
    let from = (at / CELL as u64 * CELL as u64).saturating_sub(offset) as usize;
    bail!("from byte {at} on {} (expected {})", describe(&bytes[from.min(bytes.len())..]), key.words());
}

/// What some bytes are.
fn describe(bytes: &[u8]) -> String {
    let zeroes = bytes.iter().take_while(|byte| **byte == 0).count();
    if zeroes >= bytes.len().min(16) {
        return format!("{zeroes} zeroes");
    }
    let Some(head) = bytes.first_chunk::<16>() else { return format!("{bytes:02x?}") };
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let (key, offset) = (Key(number(&head[..8])), number(&head[8..]));
    let is_ours = bytes.first_chunk::<CELL>().is_some_and(|bytes| *bytes == cell(key, offset / CELL as u64));
    if is_ours {
        format!("content of {} for its offset {offset}", key.words())
    } else {
        format!("bytes that nobody wrote: {head:02x?}")
    }
}

/// The file that a content belongs to, by its first cell; `None` if there is none, an error if it is nobody's.
pub(super) fn owner(bytes: &[u8]) -> Option<Key> {
    Some(Key(u64::from_le_bytes(*bytes.first_chunk::<8>()?)))
}

#[cfg(test)]
mod tests {
    use super::{Key, check, make};

    #[test]
    fn content_is_known_from_anywhere() {
        let key = Key::new(3, 2, 77);
        let whole = make(key, 0, 1000);
        assert_eq!(make(key, 100, 500), whole[100..600]);
        assert!(make(key, 0, 0).is_empty());
        check(key, 65, &whole[65..]).expect("its own");
    }

    #[test]
    fn wrong_content_is_described() {
        let key = Key::new(3, 2, 77);
        let mut bytes = make(key, 0, 1000);
        bytes[640..704].fill(0);
        let words = check(key, 0, &bytes).expect_err("zeroes").to_string();
        assert!(words.contains("byte 640") && words.contains("64 zeroes"), "{words}");
        bytes[640..704].copy_from_slice(&make(Key::new(1, 0, 5), 128, 64));
        let words = check(key, 0, &bytes).expect_err("another's").to_string();
        assert!(words.contains("round 1 thread 0 number 5") && words.contains("offset 128"), "{words}");
    }
}
