//! Pages of checksums that are damaged. Target of the crate `fuzz`.

use fuzz::{CASES, Target, expect_canonical, no_repair};

use super::format::IndexSums;

const GROUP: u64 = 7;

const TARGETS: &[Target] = &[Target {
    name: "index-sums",
    cases: CASES,
    samples: || {
        let mut sums = IndexSums::unwritten();
        sums.sums.iter_mut().enumerate().for_each(|(page, sum)| *sum = IndexSums::sum(page as u64, b"a page"));
        vec![sums.encode(GROUP).to_vec(), IndexSums::unwritten().encode(GROUP).to_vec()]
    },
    repair: no_repair,
    check: |bytes| {
        let bytes: &[u8; IndexSums::PAGE_BYTES] = bytes.try_into().map_err(|_| "length")?;
        let sums = IndexSums::decode(GROUP, bytes).ok_or("of no group, or of another")?;
        // Of one that nobody wrote there is nothing, not even that.
        if bytes.iter().any(|byte| *byte != 0) {
            expect_canonical(bytes, &sums.encode(GROUP));
        }
        Ok(())
    },
}];

#[test]
fn damaged_pages_are_refused_or_mean_what_they_are() {
    fuzz::run(env!("CARGO_MANIFEST_DIR"), TARGETS);
}
