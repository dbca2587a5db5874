//! Which nodes have been checked: an address names the same bytes for ever, so what was found of them once holds.
//!
//! A place for each address, and the newer one has it: what was forgotten is checked again.

use std::sync::Arc;

use base::id::ChunkAddress;
use parking_lot::Mutex;

/// Nodes remembered. With 33 bytes each, and of about 8 KiB each, these are the nodes of 16 MiB of trees.
const PLACES: usize = 2048;
/// Places that share a lock.
const PLACES_PER_LOCK: usize = 64;

type Places = [Option<(ChunkAddress, u8)>; PLACES_PER_LOCK];

/// Nodes that are whole, by address and level.
#[derive(Clone)]
pub(super) struct Checked {
    places: Arc<[Mutex<Places>]>,
}

impl Checked {
    pub(super) fn new() -> Checked {
        Checked { places: (0..PLACES / PLACES_PER_LOCK).map(|_| Mutex::new([None; PLACES_PER_LOCK])).collect() }
    }

    pub(super) fn has(&self, address: &ChunkAddress, level: u8) -> bool {
        let (places, place) = self.place(address);
        places.lock()[place] == Some((*address, level))
    }

    pub(super) fn note(&self, address: &ChunkAddress, level: u8) {
        let (places, place) = self.place(address);
        places.lock()[place] = Some((*address, level));
    }

    fn place(&self, address: &ChunkAddress) -> (&Mutex<Places>, usize) {
        // An address is a hash: any of its bytes will do.
        let number = usize::from(u16::from_le_bytes([address.0[0], address.0[1]])) % PLACES;
        (&self.places[number / PLACES_PER_LOCK], number % PLACES_PER_LOCK)
    }
}

#[cfg(test)]
mod tests {
    use super::{Checked, PLACES};
    use base::id::ChunkAddress;

    #[test]
    fn the_newer_of_two_has_the_place_and_a_level_counts() {
        let checked = Checked::new();
        let (first, mut second) = (ChunkAddress([7; ChunkAddress::BYTES]), ChunkAddress([7; ChunkAddress::BYTES]));
        second.0[9] = 8;
        assert!(!checked.has(&first, 1));
        checked.note(&first, 1);
        assert!(checked.has(&first, 1) && !checked.has(&first, 0) && !checked.has(&second, 1));
        checked.note(&second, 1);
        assert!(checked.has(&second, 1) && !checked.has(&first, 1));
    }

    #[test]
    fn every_address_has_a_place() {
        let checked = Checked::new();
        for number in 0..=u16::MAX {
            let mut address = ChunkAddress([0; ChunkAddress::BYTES]);
            address.0[..2].copy_from_slice(&number.to_le_bytes());
            checked.note(&address, 0);
            assert!(checked.has(&address, 0));
        }
        let is_full = checked.places.iter().all(|places| places.lock().iter().all(Option::is_some));
        assert!(is_full, "all {PLACES} places are used");
    }
}
