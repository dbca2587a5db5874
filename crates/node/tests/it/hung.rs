//! A disk that does not answer: who wants nothing of it is served as ever, who waits for it goes on when it answers again, and who waits longer
//! than the patience gets an error, or what he wanted from another disk.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread::{JoinHandle, available_parallelism, spawn};

use rustix::fs::Advice;
use rustix::process::Signal;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::mount::{SMALL, transports};
use crate::support::{self, Folder, Mounted, hydrafs, succeed, within};

/// Bytes of each file: of more than one chunk.
const FILE_BYTES: usize = 300_000;

/// What is in a file: other bytes for each seed.
fn noise(seed: u64) -> Vec<u8> {
    support::noise(seed, FILE_BYTES)
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
pub(crate) struct Hung<'a>(&'a Mounted);

impl Hung<'_> {
    /// Stops it; returns when none of its threads runs.
    pub(crate) fn make(daemon: &Mounted) -> Hung<'_> {
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

/// How long the disks of these tests may take: long for one that works, on a machine with other work.
const PATIENCE: (&str, &str) = ("HYDRAFS_STORAGE_DISK_PATIENCE", "8 s");

/// A file with this content, durable when it returns.
fn write_synced(path: PathBuf, content: Vec<u8>) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(&content)?;
    file.sync_all()
}

/// Disks that can be made to hang, each a folder in a mount of its own; and a node on them.
fn on_hanging_disks(folder: &Folder, count: usize) -> Option<(Vec<Mounted>, PathBuf)> {
    let (node, mut below) = (folder.join("n"), Vec::new());
    let mut init = vec![OsStr::new("init").to_owned(), node.as_os_str().to_owned()];
    for number in 0..count {
        let (beneath, disk) = (folder.node(&format!("below{number}")), folder.make(&format!("disk{number}")));
        below.push(Mounted::start(&beneath, &disk, &[SMALL])?);
        init.extend([OsStr::new("--disk").to_owned(), disk.join("d").into_os_string()]);
    }
    succeed(&init.iter().map(|argument| argument.as_os_str()).collect::<Vec<_>>());
    Some((below, node))
}

#[test]
fn who_needs_a_disk_that_hangs_gets_an_error_and_nothing_synced_is_lost() {
    let folder = Folder::new("hung-write");
    let Some((mut below, node)) = on_hanging_disks(&folder, 1) else { return };
    let point = folder.make("m");
    let start = || Mounted::start(&node, &point, &[SMALL, PATIENCE]).expect("as the one below");
    let mounted = start();
    write_synced(point.join("before"), noise(1)).expect("room");
    mounted.umount();
    // Nobody has in memory what is in it.
    let mounted = start();
    assert_eq!(fs::metadata(point.join("before")).expect("there").len(), FILE_BYTES as u64);
    evict(&folder.join("disk0/d/packs"));
    let hung = Hung::make(&below[0]);

    let path = point.join("before");
    within("a read ends", move || fs::read(path)).expect_err("the disk hangs");
    let path = point.join("meanwhile");
    let writer = within("a sync ends", move || write_synced(path, noise(2)));
    writer.expect_err("the disk hangs");
    let root = point.clone();
    within("who wants nothing of the disk", move || {
        rustix::fs::statvfs(&root).expect("df");
        assert_eq!(fs::metadata(root.join("before")).expect("there").len(), FILE_BYTES as u64);
    });
    let status = succeed(&[OsStr::new("status"), node.as_os_str()]);
    assert!(status.contains("does not answer"), "{status}");
    let path = point.join("after");
    within("so does the next", move || write_synced(path, noise(3))).expect_err("the disk hangs");

    drop(hung);
    let path = point.join("before");
    // It owes some answers first.
    let read = within("it answers again", move || {
        loop {
            if let Ok(read) = fs::read(&path) {
                return read;
            }
        }
    });
    assert!(read == noise(1));
    // Not everything could be written, and it says so.
    let output = hydrafs(&[OsStr::new("umount"), point.as_os_str()]);
    assert!(
        !output.status.success() && String::from_utf8_lossy(&output.stderr).contains("does not answer"),
        "{output:?}"
    );
    mounted.wait();
    let mounted = start();
    assert!(fs::read(point.join("before")).expect("synced") == noise(1));
    mounted.umount();
    below.remove(0).umount();
}

#[test]
fn of_two_disks_one_that_hangs_is_taken_out_and_the_other_goes_on() {
    let folder = Folder::new("hung-of-two");
    let Some((below, node)) = on_hanging_disks(&folder, 2) else { return };
    let point = folder.make("m");
    let start = || Mounted::start(&node, &point, &[SMALL, PATIENCE, ("HYDRAFS_STORAGE_COPIES", "2")]);
    let mounted = start().expect("as the one below");
    write_synced(point.join("before"), noise(1)).expect("room");
    let hung = Hung::make(&below[0]);

    for number in 2..5 {
        let path = point.join(format!("f{number}"));
        within("the other disk takes it", move || write_synced(path, noise(number))).expect("one disk is enough");
    }
    let status = succeed(&[OsStr::new("status"), node.as_os_str()]);
    assert!(status.contains("does not answer"), "{status}");
    let at = point.clone();
    let read = within("reads", move || fs::read(at.join("before"))).expect("on the other disk");
    assert!(read == noise(1));
    let refused = hydrafs(&[OsStr::new("restart"), node.as_os_str()]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("does not answer"), "{refused:?}");
    // All is closed, but the process has a thread that waits for the disk. The next one goes without.
    let at = point.clone();
    within("it says so", move || succeed(&[OsStr::new("umount"), at.as_os_str()]));
    succeed(&[OsStr::new("mount"), OsStr::new("--degraded"), node.as_os_str(), point.as_os_str()]);
    let without = Mounted::running(&node, &point);
    assert!(fs::read(point.join("f4")).expect("on the other disk") == noise(4));
    write_synced(point.join("f5"), noise(5)).expect("one disk is enough");
    without.umount();

    drop(hung);
    mounted.wait();
    let mounted = start().expect("both answer");
    for number in 2..6 {
        assert!(fs::read(point.join(format!("f{number}"))).expect("synced") == noise(number));
    }
    mounted.umount();
    below.into_iter().for_each(Mounted::umount);
}
