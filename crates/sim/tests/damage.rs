//! Damage at rest: a thing at a time on whole images. `sim --damage 10000` does more of the same.

use platform::task::parallel;

/// Images, each damaged in some fifty ways: some, and those that showed a defect.
const IMAGES: [u64; 10] = [
    0, 1, 2, 3, 4,
    // `FileSystem::open`: an entry of the index whose damage was met by the replay made the opening fail, instead of a new index.
    25,
    // `Store::place`: a damaged page of the index sent look-ups astray, and chunks that were there read as absent.
    96, 112, 185, 195,
];

#[test]
fn damage_is_reported_or_mended_and_never_read() {
    let tasks = platform::real::platform().tasks;
    let mut total = sim::Findings::default();
    for findings in parallel(&tasks, IMAGES.to_vec(), sim::damage) {
        total.add(findings.expect("an image to damage"));
    }
    assert!(total.failures.is_empty(), "{total}\n{}", total.failures.join("\n"));
    assert!(total.refused > 0 && total.lost > 0 && total.mended > 0, "damage of every consequence: {total}");
}
