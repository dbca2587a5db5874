//! A file that was written by runs is what was given, past the page cache or not.

use std::fs;
use std::future::{pending, ready};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};

use super::{DirectoryFile, Overdue, beside, silent};
use crate::disk::{DiskError, DiskErrorKind, File, RUN_ALIGN, RawFile, Read};
use crate::real::block_on;

/// Where runs end: within pages, at their borders, and more than a page on.
const ENDS: [usize; 9] = [1, 4096, 4097, 8192, 12_000, 50_000, 53_248, 53_250, 200_000];

fn file(name: &str, is_direct: bool) -> DirectoryFile {
    let path = std::env::temp_dir().join(format!("hydrafs-run-{}-{name}", std::process::id()));
    let file = fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let direct = if is_direct { OnceLock::new() } else { OnceLock::from(None) };
    let file = DirectoryFile {
        file: Arc::new(file),
        direct,
        shown: path.display().to_string().into(),
        overdue: Overdue::default(),
    };
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

#[test]
fn a_thread_with_other_things_to_do_is_given_what_to_wait_for() {
    let given: Vec<u8> = (0..300_000_usize).map(|at| u8::try_from(at * at % 251).unwrap()).collect();
    let file = file("waits", false);
    // Pages that the kernel is reading ahead cannot be evicted.
    rustix::fs::fadvise(&*file.file, 0, None, rustix::fs::Advice::Random).unwrap();
    file.write_at(0, &given).unwrap();
    file.sync().unwrap();
    for (offset, length) in [(0, 300_000), (4095, 10_000), (299_000, 5000), (400_000, 10)] {
        rustix::fs::fadvise(&*file.file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let mut found = vec![0; length];
        let Read::Waits(now, rest) = file.read_or_wait(offset as u64, &mut found).unwrap() else {
            panic!("{offset}: nothing of it was in memory, or the end was not met");
        };
        found.truncate(now);
        found.extend(block_on(rest).unwrap());
        assert!(found == given[offset.min(given.len())..given.len().min(offset + length)], "{length} at {offset}");
        // Here there is nothing else to do.
        let mut again = vec![0; length];
        let read = block_on(async { file.read_or_wait(offset as u64, &mut again) });
        assert!(matches!(read.unwrap(), Read::Done(count) if again[..count] == found));
    }
}

#[test]
fn a_device_that_was_waited_for_in_vain_is_not_waited_for_again_until_it_answers() {
    let (overdue, said) = (Overdue::default(), || silent("read", "p"));
    let (send, receive) = channel();
    let (tell, told) = channel();
    let hangs = move || {
        receive.recv().expect("sent below");
        tell.send(()).expect("awaited below");
        Ok(1)
    };
    let kind = |result: Result<i32, DiskError>| result.map_err(|error| error.kind);
    // A patience that has ended.
    assert_eq!(kind(block_on(beside(hangs, &overdue, said(), ready(())))), Err(DiskErrorKind::Silent));
    assert_eq!(kind(block_on(beside(|| unreachable!(), &overdue, said(), pending()))), Err(DiskErrorKind::Silent));
    send.send(()).expect("it hangs");
    told.recv().expect("it goes on");
    while overdue.load(Ordering::SeqCst) > 0 {}
    assert_eq!(kind(block_on(beside(|| Ok(2), &overdue, said(), pending()))), Ok(2));
}

/// A pipe cannot be synced.
fn pipe() -> DirectoryFile {
    let (reader, _) = std::io::pipe().unwrap();
    let file = Arc::new(fs::File::from(OwnedFd::from(reader)));
    DirectoryFile { file, direct: OnceLock::from(None), shown: "a pipe".into(), overdue: Overdue::default() }
}

/// Whichever of them this thread syncs itself.
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
