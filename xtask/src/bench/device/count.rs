//! What a device did, by the kernel's own count.

use std::fs;

use anyhow::{Context, Result};

/// Of a device since it is there, or between two moments (Documentation/block/stat.rst of the kernel).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Count {
    pub(in super::super) reads: u64,
    /// Submissions that went into a request that was there already.
    pub(in super::super) reads_merged: u64,
    pub(in super::super) sectors_read: u64,
    pub(in super::super) writes: u64,
    pub(in super::super) writes_merged: u64,
    pub(in super::super) sectors_written: u64,
    pub(in super::super) flushes: u64,
}

impl Count {
    /// Of the device with this number, `8:0`.
    pub(in super::super) fn of(number: &str) -> Result<Count> {
        let path = format!("/sys/dev/block/{number}/stat");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        Count::parse(&text).with_context(|| format!("{path} says \"{}\"", text.trim()))
    }

    fn parse(text: &str) -> Option<Count> {
        let fields = text.split_whitespace().map(|field| field.parse().ok()).collect::<Option<Vec<u64>>>()?;
        Some(Count {
            reads: *fields.first()?,
            reads_merged: *fields.get(1)?,
            sectors_read: *fields.get(2)?,
            writes: *fields.get(4)?,
            writes_merged: *fields.get(5)?,
            sectors_written: *fields.get(6)?,
            // Since Linux 5.5; after the discards.
            flushes: fields.get(15).copied().unwrap_or(0),
        })
    }

    /// What came since.
    pub(in super::super) fn since(self, before: Count) -> Count {
        Count {
            reads: self.reads.saturating_sub(before.reads),
            reads_merged: self.reads_merged.saturating_sub(before.reads_merged),
            sectors_read: self.sectors_read.saturating_sub(before.sectors_read),
            writes: self.writes.saturating_sub(before.writes),
            writes_merged: self.writes_merged.saturating_sub(before.writes_merged),
            sectors_written: self.sectors_written.saturating_sub(before.sectors_written),
            flushes: self.flushes.saturating_sub(before.flushes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Count;

    #[test]
    fn the_kernels_line_is_read() {
        // A device of Linux 6.18: reads, writes, discards and flushes.
        let line = "    6471      305    57604   142361     1390     8248   729224    51234        0    51908   193595        1        2       3        4      207       99\n";
        let count = Count::parse(line).expect("a good line");
        let expected = Count {
            reads: 6471,
            reads_merged: 305,
            sectors_read: 57604,
            writes: 1390,
            writes_merged: 8248,
            sectors_written: 729_224,
            flushes: 207,
        };
        assert_eq!(count, expected);
        assert_eq!(count.since(count), Count::default());
        // Kernels before 4.18 have eleven.
        assert_eq!(Count::parse("1 2 3 4 5 6 7 8 9 10 11").map(|count| (count.writes, count.flushes)), Some((5, 0)));
        assert_eq!(Count::parse("1 2 3"), None);
        assert_eq!(Count::parse("1 2 x 4 5 6 7 8 9 10 11"), None);
    }
}
