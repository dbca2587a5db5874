//! The fuzzer itself: it finds what is planted, and lets pass what is sound.

use std::panic::catch_unwind;
use std::path::PathBuf;

use crate::{CASES, Target, expect_canonical, repair_tail, run};

fn samples() -> Vec<Vec<u8>> {
    let mut sample = vec![b'L', 3, b'a', b'b', b'c'];
    sample.extend([0; 8]);
    repair(&mut sample);
    vec![sample]
}

fn repair(bytes: &mut [u8]) {
    repair_tail(bytes, 7);
}

fn body(bytes: &[u8]) -> Result<&[u8], String> {
    let (body, tail) = bytes.split_last_chunk::<8>().ok_or("short")?;
    if base::hash::checksum(7, body).to_le_bytes() == *tail { Ok(body) } else { Err("checksum".to_owned()) }
}

fn sound(bytes: &[u8]) -> Result<(), String> {
    match body(bytes)? {
        [b'L', length, text @ ..] if usize::from(*length) == text.len() => Ok(()),
        _ => Err("no text".to_owned()),
    }
}

/// Believes the length.
fn trusting(bytes: &[u8]) -> Result<(), String> {
    let body = body(bytes)?;
    let text = &body.get(2..).ok_or("no text")?[..usize::from(body[1])];
    if text.len() == body.len() - 2 { Ok(()) } else { Err("no text".to_owned()) }
}

/// Drops what it does not know.
fn forgetful(bytes: &[u8]) -> Result<(), String> {
    let body = body(bytes)?;
    let text = body.get(2..).and_then(|rest| rest.get(..usize::from(body[1]))).ok_or("no text")?;
    let mut again = vec![b'L', body[1]];
    again.extend_from_slice(text);
    again.extend([0; 8]);
    repair_tail(&mut again, 7);
    expect_canonical(bytes, &again);
    Ok(())
}

fn folder(name: &str) -> PathBuf {
    // Beside the test's own program: the folder of the build.
    let program = std::env::current_exe().expect("a running program");
    program.parent().expect("a folder").join(format!("fuzz-{name}-{}", std::process::id()))
}

fn survives(name: &'static str, check: fn(&[u8]) -> Result<(), String>) -> bool {
    let folder = folder(name);
    let targets = [Target { name, cases: CASES, samples, repair, check }];
    let corpus = folder.join("fuzz").join(name);
    std::fs::create_dir_all(&corpus).expect("room");
    std::fs::write(corpus.join("sample.good"), &samples()[0]).expect("room");
    let outcome = catch_unwind(|| run(folder.to_str().expect("a path in ASCII"), &targets));
    let kept = std::fs::read_dir(&corpus).expect("made above").count() - 1;
    let _ = std::fs::remove_dir_all(&folder);
    assert_eq!(kept, usize::from(outcome.is_err()), "a failure is kept, and nothing else");
    outcome.is_ok()
}

#[test]
fn a_target_without_a_corpus_is_not_passed() {
    let folder = folder("bare");
    let targets = [Target { name: "bare", cases: CASES, samples, repair, check: sound }];
    let outcome = catch_unwind(|| run(folder.to_str().expect("a path in ASCII"), &targets));
    let why = outcome.expect_err("it has none");
    assert!(why.downcast_ref::<String>().is_some_and(|why| why.contains("no corpus")));
}

#[test]
fn planted_faults_are_found_behind_the_checksum() {
    assert!(survives("sound", sound));
    assert!(!survives("trusting", trusting));
    assert!(!survives("forgetful", forgetful));
}
