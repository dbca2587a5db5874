//! A disk that does not answer: who wants nothing of it is served as ever, and who waits for it goes on when it answers again.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;
use std::thread::{JoinHandle, available_parallelism, spawn};

use rustix::fs::Advice;
use rustix::process::Signal;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::mount::{SMALL, transports};
use crate::support::{Folder, Mounted, succeed, within};

/// Bytes of each file: of more than one chunk.
const FILE_BYTES: usize = 300_000;

/// Bytes without a pattern, other ones for each seed (SplitMix64).
fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed << 32;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ (z >> 27)) as u8
    };
    (0..FILE_BYTES).map(|_| next()).collect()
}

/// Runs `work` on this CPU: over io_uring each has a queue of its own.
fn on<T: Send + 'static>(cpu: usize, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    spawn(move || {
        let mut cpus = CpuSet::new();
        cpus.set(cpu);
        sched_setaffinity(None, &cpus).expect("a CPU of ours");
        work()
    })
}

/// Has the system forget what it has of the files below a folder.
fn evict(folder: &Path) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            evict(&path);
        } else {
            let file = File::open(path).expect("a file");
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).expect("a file");
        }
    }
}

fn reads(node: &Path) -> u64 {
    let text = succeed(&[OsStr::new("stats"), OsStr::new("--prometheus"), node.as_os_str()]);
    let line = text.lines().find_map(|line| line.strip_prefix("hydrafs_file_reads_total ")).expect("a counter");
    line.parse().expect("a number")
}

/// A daemon that is stopped; it goes on when this is dropped, however the test ends.
struct Hung<'a>(&'a Mounted);

impl Hung<'_> {
    /// Stops it; returns when none of its threads runs.
    fn make(daemon: &Mounted) -> Hung<'_> {
        let hung = Hung(daemon);
        daemon.signal(Signal::STOP);
        let threads = format!("/proc/{}/task", daemon.pid);
        let runs = |thread: fs::DirEntry| {
            fs::read_to_string(thread.path().join("stat")).is_ok_and(|stat| !stat.contains(") T "))
        };
        let any_runs = move || fs::read_dir(&threads).is_ok_and(|found| found.flatten().any(runs));
        within("it stops", move || while any_runs() {});
        hung
    }
}

impl Drop for Hung<'_> {
    fn drop(&mut self) {
        self.0.signal(Signal::CONT);
    }
}

#[test]
fn a_disk_that_hangs_keeps_nobody_else_waiting() {
    let cpus = available_parallelism().map_or(1, |count| count.get());
    // Two for each CPU: the second is served although the first waits.
    let readers = 2 * cpus;
    for transport in transports() {
        let folder = Folder::new("hung");
        let (below, disk) = (folder.node("below"), folder.make("disk"));
        // A disk that can be made to hang: a mount whose daemon is stopped.
        let Some(below) = Mounted::start(&below, &disk, &[SMALL]) else { return };
        let (node, point) = (folder.join("n"), folder.make("m"));
        succeed(&[OsStr::new("init"), node.as_os_str(), OsStr::new("--disk"), disk.join("d").as_os_str()]);
        let settings = [SMALL, ("HYDRAFS_MOUNT_TRANSPORT", transport)];
        let start = || Mounted::start(&node, &point, &settings).expect("as the one below");
        let mounted = start();
        let name = |number: usize| point.join(format!("f{number}"));
        (0..readers).for_each(|number| fs::write(name(number), noise(number as u64)).expect("room"));
        mounted.umount();
        let mounted = start();
        assert!((0..readers).all(|number| name(number).is_file()));
        evict(&disk.join("d/packs"));
        let before = reads(&node);
        let hung = Hung::make(&below);

        let reader = |number: usize| {
            let path = name(number);
            on(number % cpus, move || fs::read(path).expect("it was only late"))
        };
        let waiting: Vec<_> = (0..readers).map(reader).collect();
        let asked = node.clone();
        within("each read reaches the file system", move || while reads(&asked) < before + readers as u64 {});

        assert!(!waiting.iter().any(JoinHandle::is_finished), "the disk did not hang");
        let status = succeed(&[OsStr::new("status"), node.as_os_str()]);
        assert!(status.contains("it does not answer"), "{status}");
        for cpu in 0..cpus {
            let (root, file) = (point.clone(), name(cpu));
            let others = on(cpu, move || {
                rustix::fs::statvfs(&root).expect("df");
                fs::create_dir(root.join(format!("d{cpu}"))).expect("room");
                assert_eq!(fs::read_dir(&root).expect("a directory").count(), readers + cpu + 1);
                assert_eq!(fs::metadata(file).expect("there").len(), FILE_BYTES as u64);
            });
            within("who wants nothing of the disk", move || others.join()).expect("no panic");
        }
        drop(hung);
        for (number, reader) in waiting.into_iter().enumerate() {
            assert!(reader.join().expect("no panic") == noise(number as u64), "over {transport}");
        }
        mounted.umount();
        below.umount();
    }
}
