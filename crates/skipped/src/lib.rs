//! What a test cannot try on this machine, told to who counts tests: a test runner takes it for passed, and nobody sees what it printed.
//!
//! `cargo xtask test` names a file in `TESTS_SKIPPED` and counts the tests that are in it as ignored, with their reasons.
//!
//! Not here: what a machine has, which each test sees for itself.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "the environment and a file are what a test process has to tell by")]

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// Where what was skipped is noted, a line each: the test process, the test, and why.
const FILE_VARIABLE: &str = "TESTS_SKIPPED";

/// The test of this thread leaves something out.
///
/// # Panics
/// It cannot be noted where somebody wants to read it.
pub fn because(why: impl Display) {
    eprintln!("skipped: {why}");
    let Some(file) = std::env::var_os(FILE_VARIABLE) else { return };
    let program = std::env::current_exe().unwrap_or_default();
    let test = std::thread::current().name().unwrap_or("a thread of a test").to_owned();
    let line = format!("{} {test}: {why}\n", process_name(&program));
    let mut file = OpenOptions::new().create(true).append(true).open(file).expect("who counts made room for it");
    // At once, for others write as well.
    file.write_all(line.as_bytes()).expect("who counts made room for it");
}

/// Without what cargo puts behind the name.
fn process_name(program: &Path) -> &str {
    let stem = program.file_stem().and_then(|stem| stem.to_str()).unwrap_or("?");
    stem.rsplit_once('-').map_or(stem, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::process_name;

    #[test]
    fn a_process_has_the_name_of_its_tests() {
        assert_eq!(process_name(Path::new("/target/debug/deps/it-0123456789abcdef")), "it");
        assert_eq!(process_name(Path::new("it")), "it");
    }
}
