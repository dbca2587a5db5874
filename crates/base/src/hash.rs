//! The three hashes of the system, and what each is for.
//!
//! *Address*: keyed BLAKE3, 256 bits: identity and integrity of a chunk. *Checksum*: XXH3 64 bits seeded by the
//! structure's place: finds torn and rotten headers, frames and superblocks. *Chain*: XXH3 128 bits over the previous value and a
//! record: versions of a file. Checksum and chain guard against accidents, the address also against intent.

use blake3::Hasher;
use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use twox_hash::{XxHash3_64, XxHash3_128};

use crate::id::ChunkAddress;

/// Bytes of a content that have a hash of their own: a part of it can be verified without the rest. A power of two of BLAKE3's own chunks.
pub const GROUP_BYTES: usize = 16 << 10;
/// The hash of a group: a chaining value of BLAKE3's tree, from which the address of the whole is made.
pub type GroupHash = [u8; 32];

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

    /// The address of a content, and, of one that is longer than a group, the hashes of its groups.
    #[must_use]
    pub fn address_and_groups(&self, content: &[u8]) -> (ChunkAddress, Vec<GroupHash>) {
        if content.len() <= GROUP_BYTES {
            return (self.address(content), Vec::new());
        }
        let hash = |(number, group)| self.group_hash(number, group);
        let groups: Vec<GroupHash> = content.chunks(GROUP_BYTES).enumerate().map(hash).collect();
        (self.address_of(&groups).expect("more than one"), groups)
    }

    /// The hash of the group with this number of a content that has more than one.
    #[must_use]
    pub fn group_hash(&self, number: usize, group: &[u8]) -> GroupHash {
        let mut hasher = Hasher::new_keyed(&self.0);
        hasher.set_input_offset((number * GROUP_BYTES) as u64).update(group);
        hasher.finalize_non_root()
    }

    /// The address of the content whose groups have these hashes; `None` for less than two.
    #[must_use]
    pub fn address_of(&self, groups: &[GroupHash]) -> Option<ChunkAddress> {
        let (left, right) = groups.split_at_checked(left_groups(groups.len())?)?;
        let root = merge_subtrees_root(&self.merged(left), &self.merged(right), Mode::KeyedHash(&self.0));
        Some(ChunkAddress(*root.as_bytes()))
    }

    fn merged(&self, groups: &[GroupHash]) -> GroupHash {
        match left_groups(groups.len()) {
            None => groups[0],
            Some(left) => {
                let (left, right) = groups.split_at(left);
                merge_subtrees_non_root(&self.merged(left), &self.merged(right), Mode::KeyedHash(&self.0))
            }
        }
    }

    /// What the domain is called: who holds the key can tell, nobody can tell the key from it, and no content has it as its address.
    #[must_use]
    pub fn identity(&self) -> [u8; 32] {
        blake3::derive_key("HydraFS 2026-11 identity of a dedup domain", &self.0)
    }

    /// A hash of what goes from one node of the domain to another, that nobody else can make.
    #[must_use]
    pub fn seal(&self, bytes: &[u8]) -> [u8; 32] {
        let key = blake3::derive_key("HydraFS 2026-11 seal of what nodes of a dedup domain exchange", &self.0);
        *blake3::keyed_hash(&key, bytes).as_bytes()
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

/// Of so many groups those in the left subtree: the largest power of two below (BLAKE3, section 2.1). `None` for one.
fn left_groups(count: usize) -> Option<usize> {
    (count > 1).then(|| 1 << (count - 1).ilog2())
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
    use super::{DomainKey, GROUP_BYTES, chain, checksum};

    #[test]
    fn addresses_depend_on_key_and_content() {
        let one = DomainKey([1; 32]);
        assert_eq!(one.address(b"abc"), one.address(b"abc"));
        assert_ne!(one.address(b"abc"), one.address(b"abd"));
        assert_ne!(one.address(b"abc"), DomainKey([2; 32]).address(b"abc"));
        assert!(!format!("{one:?}").contains('1'), "a key never prints itself");
        let (other, no_address) = (DomainKey([2; 32]), one.address(b"").0);
        assert!(one.identity() != other.identity() && one.identity() != no_address);
        assert!(one.seal(b"") != other.seal(b"") && one.seal(b"") != no_address);
    }

    #[test]
    fn an_address_is_made_of_the_hashes_of_groups() {
        let key = DomainKey([3; 32]);
        let content: Vec<u8> = (0..1 << 20).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let (group, far) = (GROUP_BYTES, content.len());
        for length in
            [0, 1, group, group + 1, 2 * group, 2 * group + 1, 3 * group, 5 * group - 7, 7 * group, far - 1, far]
        {
            let (address, groups) = key.address_and_groups(&content[..length]);
            assert_eq!(address, key.address(&content[..length]), "{length}");
            assert_eq!(groups.len(), if length > group { length.div_ceil(group) } else { 0 });
        }
        let (address, mut groups) = key.address_and_groups(&content);
        groups.swap(3, 4);
        assert_ne!(key.address_of(&groups), Some(address));
        assert_eq!(key.address_of(&groups[..1]), None);
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
