//! Fuzzing of decoders: sound samples, damaged in the ways that break decoders, and a table of targets in each crate's tests.
//!
//! A [`Target`] has samples made by the encoder, a decoder with its promises, and a repair of checksums, so that damage gets past
//! them. [`run`] is called by a plain test of the crate that has the decoder:
//!
//! 1. Every sample is accepted.
//! 2. Every file of the corpus `<crate>/fuzz/<target>` is tried, of which there is one at least: `*.good` must be accepted, `*.bad` refused,
//!    `*.found` must only not fail. The `good` ones hold the format still: what was written once is read for ever.
//! 3. Damaged samples are tried. A failure is shrunk to the least damage, and its bytes are kept as `*.found`.
//!
//! Everything follows from the seed. The environment (`cargo xtask fuzz` sets it) asks for more: `FUZZ_TARGET`, `FUZZ_SEED`,
//! `FUZZ_TIMES` as many damaged samples, and `FUZZ_KEEP=1` to write the corpus: the samples, and the shortest input for each different refusal.
//!
//! Not here: targets; guidance by coverage (the refusals' words stand in for it).
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "corpora are files of the project, read and written by tests")]

mod damage;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use base::hash::checksum;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

/// Damaged samples in a plain test run, of a target that takes microseconds.
pub const CASES: u32 = 300;
/// The same of a target that opens a whole node: milliseconds.
pub const SLOW_CASES: u32 = 40;
/// Longest sample and longest refused input that are kept in a corpus.
const KEPT_BYTES_MAX: [usize; 2] = [4096, 2048];
/// Refusals of a target of which an input is kept.
const KEPT_REFUSALS_MAX: usize = 12;

/// A decoder and what it promises.
pub struct Target {
    /// Its name, and that of its corpus.
    pub name: &'static str,
    /// Damaged samples in a plain test run.
    pub cases: u32,
    /// Sound inputs.
    pub samples: fn() -> Vec<Vec<u8>>,
    /// Makes checksums right again after damage.
    pub repair: fn(&mut [u8]),
    /// Decodes. `Err` has the words of the refusal. Panics where a promise is broken.
    pub check: fn(&[u8]) -> Result<(), String>,
}

/// For formats without a checksum.
pub fn no_repair(_: &mut [u8]) {}

/// Puts the checksum of all before it into the last eight bytes.
pub fn repair_tail(bytes: &mut [u8], seed: u64) {
    if let Some((body, tail)) = bytes.split_last_chunk_mut::<8>() {
        *tail = checksum(seed, body).to_le_bytes();
    }
}

/// Bytes that were accepted must be those that the encoder makes of what they mean, or one thing has two forms.
///
/// # Panics
/// They are not.
pub fn expect_canonical(given: &[u8], encoded_again: &[u8]) {
    assert!(given == encoded_again, "accepted, but encoded otherwise:\n{}\n{}", hex(given), hex(encoded_again));
}

/// Runs the targets of a crate whose folder is `folder` (see the head of this crate).
///
/// # Panics
/// A target broke a promise, or fits none of its own samples.
pub fn run(folder: &str, targets: &[Target]) {
    let asked = std::env::var("FUZZ_TARGET").ok();
    let keeps = std::env::var_os("FUZZ_KEEP").is_some();
    for target in targets.iter().filter(|target| asked.as_deref().is_none_or(|asked| asked == target.name)) {
        let corpus = Path::new(folder).join("fuzz").join(target.name);
        // Parts of a node mean something in that node only, and it is made anew by whatever the code then does: what they were damaged to must
        // only not fail.
        let (good, bad) = if target.cases >= CASES { ("good", "bad") } else { ("found", "found") };
        let samples = (target.samples)();
        assert!(!samples.is_empty(), "{}: samples", target.name);
        for (number, sample) in samples.iter().enumerate() {
            let checked = (target.check)(sample);
            assert_eq!(checked, Ok(()), "{}: sample {number} is refused", target.name);
            if keeps && sample.len() <= KEPT_BYTES_MAX[0] {
                keep(&corpus, sample, good);
            }
        }
        let replayed = replay(target, &corpus);
        assert!(replayed > 0 || keeps, "{}: no corpus in {}; make it with FUZZ_KEEP=1", target.name, corpus.display());
        let refusals = damage_samples(target, &samples, &corpus);
        if keeps {
            for bytes in refusals.values().filter(|bytes| bytes.len() <= KEPT_BYTES_MAX[1]).take(KEPT_REFUSALS_MAX) {
                keep(&corpus, bytes, bad);
            }
            // One at least, be it long.
            if count(&corpus) == 0 {
                match refusals.values().min_by_key(|bytes| bytes.len()) {
                    Some(shortest) => keep(&corpus, shortest, bad),
                    None => keep(&corpus, &samples[0], good),
                };
            }
        }
        println!("{}: {} samples, {replayed} of the corpus, {} refusals", target.name, samples.len(), refusals.len());
    }
}

/// Tries the files of a corpus. Gives their number.
fn replay(target: &Target, corpus: &Path) -> usize {
    let Ok(files) = fs::read_dir(corpus) else { return 0 };
    let mut paths: Vec<PathBuf> = files.map(|file| file.expect("a folder of the project").path()).collect();
    paths.sort();
    for path in &paths {
        let checked = (target.check)(&fs::read(path).expect("a file of the project"));
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("good") => assert_eq!(checked, Ok(()), "{} was accepted once", path.display()),
            Some("bad") => assert!(checked.is_err(), "{} was refused once", path.display()),
            _ => {}
        }
    }
    paths.len()
}

fn count(corpus: &Path) -> usize {
    fs::read_dir(corpus).map_or(0, Iterator::count)
}

/// Gives the shortest input for each refusal.
fn damage_samples(target: &Target, samples: &[Vec<u8>], corpus: &Path) -> BTreeMap<String, Vec<u8>> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("FUZZ_SEED").unwrap_or(0);
    let times = number("FUZZ_TIMES").and_then(|times| u32::try_from(times).ok()).unwrap_or(1);
    let cases = target.cases.saturating_mul(times);
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
    let mut state = [0; 32];
    state[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &state));
    let refusals = std::cell::RefCell::new(BTreeMap::<String, Vec<u8>>::new());
    let bytes_of = |damage: &damage::Damage| {
        let mut bytes = damage.apply(samples);
        if damage.is_repaired {
            (target.repair)(&mut bytes);
        }
        bytes
    };
    let outcome = runner.run(&damage::any_damage(), |damage| {
        let bytes = bytes_of(&damage);
        if let Err(why) = (target.check)(&bytes) {
            // One refusal with other numbers in it is the same.
            let why = why.replace(|c: char| c.is_ascii_hexdigit(), "");
            let mut refusals = refusals.borrow_mut();
            let shortest = refusals.entry(why).or_insert_with(|| bytes.clone());
            if bytes.len() < shortest.len() {
                *shortest = bytes;
            }
        }
        Ok::<(), TestCaseError>(())
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(why, damage)) => {
            let bytes = bytes_of(&damage);
            let path = keep(corpus, &bytes, "found");
            panic!("{}: seed {seed}: {why}\n{damage:?}\nkept as {}\n{}", target.name, path.display(), hex(&bytes));
        }
        Err(TestError::Abort(why)) => panic!("{}: {why}", target.name),
    }
    refusals.into_inner()
}

fn keep(corpus: &Path, bytes: &[u8], extension: &str) -> PathBuf {
    let path = corpus.join(format!("{:016x}.{extension}", checksum(0, bytes)));
    fs::create_dir_all(corpus).expect("the project can be written");
    fs::write(&path, bytes).expect("the project can be written");
    path
}

fn hex(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(2048)];
    let digits: String = shown.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{} bytes: {digits}", bytes.len())
}

#[cfg(test)]
mod tests;
