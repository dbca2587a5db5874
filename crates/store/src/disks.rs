//! A set of disks of the node, by number.

/// Most disks of one node: the table of disks must fit into a superblock slot, and their numbers into a set.
pub const DISKS_MAX: usize = 64;

/// Some of the node's disks. As small as a number, for every pack has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DiskSet(u64);

const _: () = assert!(DISKS_MAX <= u64::BITS as usize);

impl DiskSet {
    pub(crate) const NONE: DiskSet = DiskSet(0);

    pub(crate) fn of(disk: usize) -> DiskSet {
        DiskSet::NONE.with(disk)
    }

    #[must_use]
    pub(crate) fn with(self, disk: usize) -> DiskSet {
        DiskSet(self.0 | 1 << disk)
    }

    #[must_use]
    pub(crate) fn without(self, disk: usize) -> DiskSet {
        DiskSet(self.0 & !(1 << disk))
    }

    pub(crate) fn from_bits(bits: u64) -> DiskSet {
        DiskSet(bits)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    pub(crate) fn has(self, disk: usize) -> bool {
        self.0 & 1 << disk != 0
    }

    /// Those that are in both.
    #[must_use]
    pub(crate) fn both(self, other: DiskSet) -> DiskSet {
        DiskSet(self.0 & other.0)
    }

    pub(crate) fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// In rising order.
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..DISKS_MAX).filter(move |disk| self.has(*disk))
    }

    /// The lowest number.
    pub(crate) fn first(self) -> Option<usize> {
        (self.0 != 0).then(|| self.0.trailing_zeros() as usize)
    }
}

impl FromIterator<usize> for DiskSet {
    fn from_iter<T: IntoIterator<Item = usize>>(disks: T) -> DiskSet {
        disks.into_iter().fold(DiskSet::NONE, DiskSet::with)
    }
}
