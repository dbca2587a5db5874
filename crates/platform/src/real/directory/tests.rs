//! A file that was written by runs is what was given, past the page cache or not.

use std::fs;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::{DirectoryFile, Inner};
use crate::disk::{File, RUN_ALIGN, RawFile, Read};
use crate::real::block_on;

fn opened(file: fs::File, direct: OnceLock<Option<fs::File>>, shown: &str) -> DirectoryFile {
    DirectoryFile { inner: Arc::new(Inner { file, direct, shown: shown.to_owned() }), device: Arc::default() }
}

/// Where runs end: within pages, at their borders, and more than a page on.
const ENDS: [usize; 9] = [1, 4096, 4097, 8192, 12_000, 50_000, 53_248, 53_250, 200_000];

fn file(name: &str, is_direct: bool) -> DirectoryFile {
    let path = std::env::temp_dir().join(format!("hydrafs-run-{}-{name}", std::process::id()));
    let file = fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let direct = if is_direct { OnceLock::new() } else { OnceLock::from(None) };
    let file = opened(file, direct, &path.display().to_string());
    // Opened by name, so that it can be removed now.
    if file.inner.direct().is_none() && is_direct {
        skipped::because(format_args!("{} takes no direct I/O", path.display()));
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
                let part = skipped..skipped + end - start;
                memory[part.clone()].copy_from_slice(&given[start..end]);
                let run = Bytes::from(memory).slice(part);
                block_on(file.begin_run(start as u64, &run).expect("it is begun")).unwrap();
                start = end;
            }
            let mut found = vec![0; given.len() + 1];
            assert_eq!(file.read_at(0, &mut found).unwrap(), given.len(), "direct {is_direct}, shift {shift}");
            assert!(found[..given.len()] == given, "direct {is_direct}, shift {shift}");
        }
    }
}

#[test]
fn a_thread_with_other_things_to_do_is_given_what_to_wait_for() {
    let given: Vec<u8> = (0..300_000_usize).map(|at| u8::try_from(at * at % 251).unwrap()).collect();
    let file = file("waits", false);
    // Pages that the kernel is reading ahead cannot be evicted.
    rustix::fs::fadvise(&file.inner.file, 0, None, rustix::fs::Advice::Random).unwrap();
    file.write_at(0, &given).unwrap();
    file.sync().unwrap();
    for (offset, length) in [(0, 300_000), (4095, 10_000), (299_000, 5000), (400_000, 10)] {
        let mut found = vec![0; length];
        // Linux begins to read what it lacks before it says so, and says nothing where that is done by then: where this thread had lost its CPU.
        let wait = || {
            rustix::fs::fadvise(&file.inner.file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            match file.read_or_wait(offset as u64, &mut found).unwrap() {
                Read::Waits(now, rest) => Some((now, rest)),
                Read::Done(_) => None,
            }
        };
        let waits = std::iter::repeat_with(wait).take(1000).flatten().next();
        let (now, rest) = waits.unwrap_or_else(|| panic!("{offset}: memory has it always, or the end was not met"));
        found.truncate(now);
        found.extend(block_on(rest).unwrap());
        assert!(found == given[offset.min(given.len())..given.len().min(offset + length)], "{length} at {offset}");
        let again = block_on(file.begin_read(offset as u64, &mut vec![1; length]).expect("it is begun")).unwrap();
        assert!(again == found);
    }
}

/// A pipe cannot be synced.
fn pipe() -> DirectoryFile {
    let (reader, _) = std::io::pipe().unwrap();
    opened(fs::File::from(OwnedFd::from(reader)), OnceLock::from(None), "a pipe")
}

#[test]
fn what_the_device_is_asked_for_is_counted_and_what_memory_has_is_not() {
    let file = file("counted", false);
    let counts = || {
        let counters = &file.device.counters;
        [&counters.read, &counters.write, &counters.sync].map(|times| times.distribution().count())
    };
    file.write_at(0, &[7; 10_000]).unwrap();
    assert_eq!(counts(), [0, 1, 0]);
    // Pages that wait to be written are in memory.
    assert_eq!(file.read_at(0, &mut [0; 10_000]).unwrap(), 10_000);
    assert_eq!(counts(), [0, 1, 0]);
    file.sync().unwrap();
    assert_eq!(counts(), [0, 1, 1]);
    // Where the file ends memory has nothing.
    assert_eq!(file.read_at(10_000, &mut [0; 10]).unwrap(), 0);
    assert_eq!(counts(), [1, 1, 1]);
}

#[test]
fn of_files_that_are_synced_together_each_has_its_own_answer() {
    for count in 0..5 {
        for bad in 0..=count {
            let make =
                |number| if number == bad { pipe() } else { file(&format!("sync-{count}-{bad}-{number}"), false) };
            let files: Vec<File> = (0..count).map(|number| File::new(Arc::new(make(number)))).collect();
            let synced = block_on(File::sync_all(&files.iter().collect::<Vec<_>>()));
            let are_right = synced.iter().enumerate().all(|(number, synced)| synced.is_err() == (number == bad));
            assert!(synced.len() == count && are_right, "{count} files, the bad one {bad}: {synced:?}");
        }
    }
}
