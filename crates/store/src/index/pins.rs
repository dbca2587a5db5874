//! What was found as a duplicate while a mark runs, and so is kept (L-1): exact while it is little, then by a filter of fixed size, so that a pass of
//! days beside a stream of duplicates takes no more memory than one of seconds. What the filter cannot tell apart stays until the next pass.
//!
//! Not here: who pins, and when (`pack`, `reclaim`).

use base::id::ChunkAddress;
use hashbrown::HashSet;

use super::{AddressHash, Filter, head};

/// An address takes so many bytes of the set, at most: it doubles when it is full.
const ADDRESS_BYTES: usize = 24;

pub(super) struct Pins {
    /// Heads of the first.
    few: HashSet<u64, AddressHash>,
    few_max: usize,
    /// The others.
    many: Option<Filter>,
    bytes: u64,
}

impl Pins {
    /// None, in no more than so many bytes for the first ones and as many for the others.
    pub(super) fn new(bytes: u64) -> Pins {
        let few_max = usize::try_from(bytes).unwrap_or(usize::MAX) / ADDRESS_BYTES;
        Pins { few: HashSet::default(), few_max, many: None, bytes }
    }

    pub(super) fn add(&mut self, address: &ChunkAddress) {
        if self.few.len() < self.few_max || self.few.contains(&head(address)) {
            self.few.insert(head(address));
        } else {
            self.many.get_or_insert_with(|| Filter::of_bytes(self.bytes)).add(address);
        }
    }

    /// Whether it was added; rather yes than no.
    pub(super) fn may_have(&self, address: &ChunkAddress) -> bool {
        self.few.contains(&head(address)) || self.many.as_ref().is_some_and(|many| many.may_have(address))
    }
}

#[cfg(test)]
mod tests {
    use base::hash::DomainKey;
    use base::id::ChunkAddress;

    use super::{ADDRESS_BYTES, Pins};

    fn address(number: u64) -> ChunkAddress {
        DomainKey([7; 32]).address(&number.to_le_bytes())
    }

    #[test]
    fn what_was_added_is_there_however_much_it_is() {
        const BYTES: u64 = 64 << 10;
        let mut pins = Pins::new(BYTES);
        for (count, wrong_max) in [(BYTES / ADDRESS_BYTES as u64, 0), (BYTES / 2, 500), (8 * BYTES, 10_000)] {
            (0..count).for_each(|number| pins.add(&address(number)));
            assert!((0..count).all(|number| pins.may_have(&address(number))), "of {count}");
            let wrong = (count..count + 10_000).filter(|number| pins.may_have(&address(*number))).count();
            assert!(wrong <= wrong_max, "{wrong} of 10000 beside {count}");
            assert!(pins.few.len() <= pins.few_max);
        }
    }
}
