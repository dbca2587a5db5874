//! The three hashes of the system, and what each is for.
//!
//! *Address*: keyed BLAKE3, 256 bits: identity and integrity of a chunk. *Checksum*: XXH3 64 bits seeded by the
//! structure's place: finds torn and rotten headers, frames and superblocks. *Chain*: XXH3 128 bits over the previous value and a
//! record: versions of a file. Checksum and chain guard against accidents, the address also against intent.

use twox_hash::{XxHash3_64, XxHash3_128};

use crate::id::ChunkAddress;

/// The secret key of a dedup domain. Does not print itself.
#[derive(Clone, PartialEq, Eq)]
pub struct DomainKey(pub [u8; 32]);

impl std::fmt::Debug for DomainKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DomainKey(…)")
    }
}

impl DomainKey {
    /// The address of a chunk's uncompressed content.
    #[must_use]
    pub fn address(&self, content: &[u8]) -> ChunkAddress {
        ChunkAddress(*blake3::keyed_hash(&self.0, content).as_bytes())
    }

    /// A 64-bit hash of a name that nobody without the key can steer into collisions.
    #[must_use]
    pub fn name_hash(&self, name: &[u8]) -> u64 {
        let hash = blake3::keyed_hash(&self.0, name);
        let mut head = [0; 8];
        head.copy_from_slice(&hash.as_bytes()[..8]);
        u64::from_le_bytes(head)
    }
}

/// Checksum of a structure. `seed` binds it to its place (a pack number, a segment number), so that the right bytes
/// in the wrong place do not pass.
#[must_use]
pub fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, bytes)
}

/// The next chain value of a file's version: `record` hashed onto `previous`.
#[must_use]
pub fn chain(previous: u128, record: &[u8]) -> u128 {
    let low = u64::try_from(previous & u128::from(u64::MAX)).expect("masked to 64 bits");
    let high = u64::try_from(previous >> 64).expect("128 - 64 bits");
    // The seed takes 64 bits; the other half is folded in afterwards by a rotation that no short record undoes.
    XxHash3_128::oneshot_with_seed(low, record) ^ u128::from(high).rotate_left(37)
}

#[cfg(test)]
mod tests {
    use super::{DomainKey, chain, checksum};

    #[test]
    fn addresses_depend_on_key_and_content() {
        let one = DomainKey([1; 32]);
        assert_eq!(one.address(b"abc"), one.address(b"abc"));
        assert_ne!(one.address(b"abc"), one.address(b"abd"));
        assert_ne!(one.address(b"abc"), DomainKey([2; 32]).address(b"abc"));
        assert!(!format!("{one:?}").contains('1'), "a key never prints itself");
    }

    #[test]
    fn chain_depends_on_order_and_both_halves_of_its_past() {
        let (a, b) = (chain(0, b"a"), chain(0, b"b"));
        assert_ne!(chain(a, b"b"), chain(b, b"a"));
        assert_ne!(chain(1, b"x"), chain(1 << 64, b"x"));
        assert_ne!(chain(0, b"x"), chain(1 << 100, b"x"));
    }

    #[test]
    fn checksum_is_bound_to_its_place() {
        assert_ne!(checksum(1, b"frame"), checksum(2, b"frame"));
    }
}
