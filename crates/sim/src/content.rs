//! The content of a model's file: its bytes, and which of them are no holes.

use std::collections::BTreeMap;
use std::ops::Range;

/// Distinct ranges of offsets; neighbours are one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds a range.
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        let touching: Vec<(u64, u64)> =
            self.0.range(..=end).rev().take_while(|(_, e)| **e >= start).map(|(s, e)| (*s, *e)).collect();
        for (s, e) in touching {
            self.0.remove(&s);
            (start, end) = (start.min(s), end.max(e));
        }
        self.0.insert(start, end);
    }

    /// Takes a range out.
    pub(crate) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let hit: Vec<(u64, u64)> =
            self.0.range(..range.end).rev().take_while(|(_, e)| **e > range.start).map(|(s, e)| (*s, *e)).collect();
        for (s, e) in hit {
            self.0.remove(&s);
            if s < range.start {
                self.0.insert(s, range.start);
            }
            if e > range.end {
                self.0.insert(range.end, e);
            }
        }
    }

    /// The parts inside a range.
    pub(crate) fn within(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let hit = self.0.iter().map(|(s, e)| (*s).max(range.start)..(*e).min(range.end));
        hit.filter(|range| !range.is_empty()).collect()
    }

    /// Bytes in all of them.
    pub(crate) fn total(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// The first offset at or after `at` that is in a range.
    pub(crate) fn next_inside(&self, at: u64) -> Option<u64> {
        self.0.iter().find(|(_, end)| **end > at).map(|(start, _)| (*start).max(at))
    }

    /// The first offset at or after `at` that is in none.
    pub(crate) fn next_outside(&self, at: u64) -> u64 {
        self.0.iter().find(|(start, end)| **start <= at && at < **end).map_or(at, |(_, end)| *end)
    }
}

/// Bytes and allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    /// Up to the size.
    pub(crate) bytes: Vec<u8>,
    /// What is no hole, beyond the size too; `None` after a crash that left it open.
    pub(crate) allocated: Option<Ranges>,
}

impl Content {
    /// Of a new file.
    pub(crate) fn empty() -> Content {
        Content { bytes: Vec::new(), allocated: Some(Ranges::default()) }
    }

    pub(crate) fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The bytes of a range, as far as the file goes.
    pub(crate) fn slice(&self, offset: u64, length: u64) -> &[u8] {
        let start = index(offset.min(self.size()));
        let end = index((offset + length).min(self.size()));
        &self.bytes[start..end]
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        self.grow(offset + data.len() as u64);
        self.bytes[index(offset)..index(offset) + data.len()].copy_from_slice(data);
        self.allocate(offset..offset + data.len() as u64);
    }

    pub(crate) fn truncate(&mut self, size: u64) {
        self.bytes.resize(index(size), 0);
        if let Some(allocated) = &mut self.allocated {
            allocated.remove(size..u64::MAX);
        }
    }

    /// Extends with zeroes that are a hole.
    pub(crate) fn grow(&mut self, size: u64) {
        if size > self.size() {
            self.bytes.resize(index(size), 0);
        }
    }

    pub(crate) fn allocate(&mut self, range: Range<u64>) {
        if let Some(allocated) = &mut self.allocated {
            allocated.insert(range);
        }
    }

    /// Makes a range zeroes, as far as the file goes, and a hole.
    pub(crate) fn punch(&mut self, range: Range<u64>) {
        let end = range.end.min(self.size());
        if range.start < end {
            self.bytes[index(range.start)..index(end)].fill(0);
        }
        if let Some(allocated) = &mut self.allocated {
            allocated.remove(range);
        }
    }

    /// Copies a range of `source` here, holes as holes.
    pub(crate) fn copy(&mut self, source: &Content, from: u64, to: u64, length: u64) {
        let bytes = source.slice(from, length).to_vec();
        let end = to + bytes.len() as u64;
        self.grow(end);
        self.bytes[index(to)..index(end)].copy_from_slice(&bytes);
        match (&mut self.allocated, &source.allocated) {
            (Some(own), Some(other)) => {
                own.remove(to..end);
                for part in other.within(from..from + bytes.len() as u64) {
                    own.insert(part.start - from + to..part.end - from + to);
                }
            }
            (own, _) => *own = None,
        }
    }
}

/// An offset in memory.
pub(crate) fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("the model's files fit in memory")
}

#[cfg(test)]
mod tests {
    use super::{Content, Ranges};

    impl<const N: usize> From<[(u64, u64); N]> for Ranges {
        fn from(ranges: [(u64, u64); N]) -> Ranges {
            Ranges(ranges.into())
        }
    }

    #[test]
    fn ranges_join_and_split() {
        let mut ranges = Ranges::default();
        ranges.insert(10..20);
        ranges.insert(30..40);
        ranges.insert(20..30);
        assert_eq!(ranges, Ranges::from([(10, 40)]));
        ranges.remove(15..35);
        assert_eq!(ranges, Ranges::from([(10, 15), (35, 40)]));
        assert_eq!((ranges.next_inside(16), ranges.next_outside(36), ranges.total()), (Some(35), 40, 10));
    }

    #[test]
    fn a_copy_keeps_holes() {
        let mut source = Content::empty();
        source.write(4, b"abcd");
        let mut target = Content::empty();
        target.write(0, b"xxxxxxxxxx");
        target.copy(&source, 2, 1, 4);
        assert_eq!(target.bytes, b"x\0\0abxxxxx");
        assert_eq!(target.allocated, Some(Ranges::from([(0, 1), (3, 10)])));
    }
}
