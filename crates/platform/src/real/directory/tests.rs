//! A file that was written by runs is what was given, past the page cache or not.

use std::fs;
use std::sync::OnceLock;

use super::DirectoryFile;
use crate::disk::{RUN_ALIGN, RawFile};

/// Where runs end: within pages, at their borders, and more than a page on.
const ENDS: [usize; 9] = [1, 4096, 4097, 8192, 12_000, 50_000, 53_248, 53_250, 200_000];

fn file(name: &str, is_direct: bool) -> DirectoryFile {
    let path = std::env::temp_dir().join(format!("hydrafs-run-{}-{name}", std::process::id()));
    let file = fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let direct = if is_direct { OnceLock::new() } else { OnceLock::from(None) };
    let file = DirectoryFile { file, direct, shown: path.display().to_string() };
    // Opened by name, so that it can be removed now.
    if file.direct().is_none() && is_direct {
        eprintln!("skipped: {} takes no direct I/O", path.display());
    }
    fs::remove_file(path).unwrap();
    file
}

#[test]
fn runs_at_odd_offsets_are_written_as_they_were_given() {
    let given: Vec<u8> = (0..*ENDS.last().unwrap()).map(|at| u8::try_from(at * at % 251).unwrap()).collect();
    for is_direct in [true, false] {
        // In memory as in the file relative to a page, and not.
        for shift in [0, 1, 512] {
            let file = file(&format!("{is_direct}-{shift}"), is_direct);
            let mut start = 0;
            for end in ENDS {
                let mut memory = vec![0xff; end - start + 2 * RUN_ALIGN];
                let skipped = (memory.as_ptr().align_offset(RUN_ALIGN) + start + shift) % RUN_ALIGN;
                let run = &mut memory[skipped..skipped + end - start];
                run.copy_from_slice(&given[start..end]);
                file.write_run(start as u64, run).unwrap();
                start = end;
            }
            let mut found = vec![0; given.len() + 1];
            assert_eq!(file.read_at(0, &mut found).unwrap(), given.len(), "direct {is_direct}, shift {shift}");
            assert!(found[..given.len()] == given, "direct {is_direct}, shift {shift}");
        }
    }
}
