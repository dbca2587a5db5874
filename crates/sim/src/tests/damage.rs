//! Damage at rest: a thing at a time on whole images. `sim --damage 10000` does more of the same, and `make soak` has fresh ones.

use platform::task::parallel;

/// Images by seed and plan, each damaged in some fifty ways: some, and those that showed a defect.
const IMAGES: [(u64, &str); 14] = [
    (0, "calm"),
    // `FileSystem::open`: an entry of the index whose damage was met by the replay made the opening fail, instead of a new index.
    (25, "calm"),
    // `Store::place`: a damaged page of the index sent look-ups astray, and chunks that were there read as absent.
    (96, "calm"),
    (112, "calm"),
    (185, "calm"),
    (195, "calm"),
    // `check_catalog`: there was a remedy for what a snapshot has of a clone, and no end to it.
    (0, "clones"),
    // `repaired_branches`: a clone of which nothing could be read stayed as it was, and so did one without a name.
    (9, "clones"),
    (27, "clones"),
    (33, "clones"),
    (0, "copies"),
    (0, "fragments"),
    // `open_remedies`: whose identity is gone is a missing disk, and nothing is repaired then (F-4).
    (589_516_400, "copies"),
    (589_516_403, "fragments"),
];

#[test]
fn damage_is_reported_or_mended_and_never_read() {
    let tasks = platform::real::platform().tasks;
    let mut total = crate::Findings::default();
    for findings in parallel(&tasks, IMAGES.to_vec(), crate::damage) {
        total.add(findings.expect("an image to damage"));
    }
    assert!(total.failures.is_empty(), "{total}\n{}", total.failures.join("\n"));
    assert!(total.refused > 0 && total.lost > 0 && total.mended > 0, "damage of every consequence: {total}");
}
