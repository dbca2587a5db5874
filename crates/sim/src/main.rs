//! Replays seeds.
fn main() {}
