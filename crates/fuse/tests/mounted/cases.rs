//! What must hold over either transport.

use crate::stage::Stage;
use fuse::Notice;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().name("client".to_owned()).spawn(work).expect("a thread")
}

fn read_in_thread(path: PathBuf) -> JoinHandle<io::Result<Vec<u8>>> {
    spawn(move || fs::read(path))
}

/// Bytes that differ from block to block.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index ^ (index >> 8) ^ (index >> 16)) as u8).collect()
}

pub(crate) fn files_are_written_read_and_renamed(stage: &mut Stage) {
    fs::write(stage.path("a"), b"hello").expect("write");
    assert_eq!(fs::read(stage.path("a")).expect("read"), b"hello");
    fs::rename(stage.path("a"), stage.path("b")).expect("rename");
    assert_eq!(fs::read(stage.path("a")).expect_err("renamed").kind(), io::ErrorKind::NotFound);
    assert_eq!(fs::metadata(stage.path("b")).expect("stat").len(), 5);
    fs::hard_link(stage.path("b"), stage.path("c")).expect("link");
    assert_eq!(fs::metadata(stage.path("c")).expect("stat").nlink(), 2);
    symlink("b", stage.path("s")).expect("symlink");
    assert_eq!(fs::read_link(stage.path("s")).expect("readlink"), Path::new("b"));
    fs::remove_file(stage.path("b")).expect("unlink");
    assert_eq!(fs::read(stage.path("c")).expect("read"), b"hello");
}

pub(crate) fn directories_are_listed_whole(stage: &mut Stage) {
    // Far more than one READDIR holds.
    let names: BTreeSet<String> = (0..3000).map(|number| format!("{number}-{}", "x".repeat(number % 200))).collect();
    fs::create_dir(stage.path("d")).expect("mkdir");
    for name in &names {
        File::create(stage.path("d").join(name)).expect("create");
    }
    let listed = fs::read_dir(stage.path("d")).expect("readdir");
    let listed: BTreeSet<String> =
        listed.map(|entry| entry.expect("entry").file_name().into_string().expect("text")).collect();
    assert!(listed == names, "{} of {} names", listed.len(), names.len());
}

pub(crate) fn attributes_beyond_stat_are_kept(stage: &mut Stage) {
    let path = stage.path("f");
    fs::write(&path, b"x").expect("write");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("chmod");
    assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, 0o640);
    let value = pattern(40_000);
    set_xattr(&path, "user.large", &value).expect("setxattr");
    set_xattr(&path, "user.small", b"1").expect("setxattr");
    assert_eq!(get_xattr(&path, "user.large", 65_536).expect("getxattr"), value);
    assert_eq!(get_xattr(&path, "user.large", 100).expect_err("small").raw_os_error(), Some(libc::ERANGE));
    assert_eq!(get_xattr(&path, "user.none", 100).expect_err("none").raw_os_error(), Some(libc::ENODATA));
    // Birth time comes by STATX only; older kernels do not ask.
    if let Ok(created) = fs::metadata(&path).and_then(|metadata| metadata.created()) {
        assert_eq!(created.duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs(), 7);
    }
}

pub(crate) fn large_writes_arrive_whole(stage: &mut Stage) {
    let data = pattern((3 << 20) + 4321);
    let mut file = OpenOptions::new().create(true).write(true).truncate(true).open(stage.path("l")).expect("create");
    for part in data.chunks(1 << 20) {
        assert_eq!(file.write(part).expect("write"), part.len());
    }
    drop(file);
    assert!(fs::read(stage.path("l")).expect("read") == data);
    let file = File::open(stage.path("l")).expect("open");
    let mut part = vec![0; 70_000];
    file.read_exact_at(&mut part, 1_000_001).expect("pread");
    assert!(part == data[1_000_001..1_070_001]);
}

pub(crate) fn many_threads_at_once(stage: &mut Stage) {
    let clients = 16;
    let start = Arc::new(Barrier::new(clients));
    let work = |client: usize| {
        let (start, directory) = (start.clone(), stage.path(&format!("t{client}")));
        spawn(move || {
            start.wait();
            fs::create_dir(&directory).expect("mkdir");
            for round in 0..60 {
                let data = pattern(round * 997 + client);
                let path = directory.join(round.to_string());
                fs::write(&path, &data).expect("write");
                assert!(fs::read(&path).expect("read") == data);
                fs::rename(&path, directory.join("last")).expect("rename");
            }
            assert_eq!(fs::read_dir(&directory).expect("readdir").count(), 1);
        })
    };
    let threads: Vec<_> = (0..clients).map(work).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("client"));
}

pub(crate) fn slow_requests_hold_up_nobody(stage: &mut Stage) {
    let slow: Vec<_> = (0..6).map(|number| stage.path(&format!("slow{number}"))).collect();
    for path in &slow {
        fs::write(path, path.as_os_str().as_bytes()).expect("write");
    }
    let readers: Vec<_> = slow.iter().cloned().map(read_in_thread).collect();
    stage.service.gate.wait_for(slow.len());
    // They all wait; everybody else goes on.
    fs::write(stage.path("quick"), b"quick").expect("write");
    assert_eq!(fs::read(stage.path("quick")).expect("read"), b"quick");
    stage.service.gate.open();
    for (path, reader) in slow.iter().zip(readers) {
        assert_eq!(reader.join().expect("reader").expect("read"), path.as_os_str().as_bytes());
    }
}

/// All on one CPU, so that they meet in one queue: far more than the two slots it starts with. Each must reach the file
/// system while none of those before has been answered.
pub(crate) fn more_slow_requests_than_slots(stage: &mut Stage) {
    let count = 100;
    let files: Vec<_> = (0..count)
        .map(|number| {
            let path = stage.path(&format!("slow{number}"));
            fs::write(&path, b"late").expect("write");
            File::open(&path).expect("open")
        })
        .collect();
    let start = Arc::new(Barrier::new(count));
    let work = |file: File| {
        let start = start.clone();
        spawn(move || {
            pin(0);
            start.wait();
            let mut data = [0; 4];
            file.read_exact_at(&mut data, 0).map(|()| data)
        })
    };
    let readers: Vec<_> = files.into_iter().map(work).collect();
    stage.service.gate.wait_for(count);
    assert_eq!(fs::metadata(stage.path("slow0")).expect("stat").len(), 4);
    stage.service.gate.open();
    for reader in readers {
        assert_eq!(reader.join().expect("reader").expect("read"), *b"late");
    }
}

pub(crate) fn a_waiting_lock_is_interrupted(stage: &mut Stage) {
    ignore_signal();
    let file = OpenOptions::new().create(true).truncate(true).write(true).open(stage.path("f")).expect("create");
    let (tell, told) = mpsc::channel();
    let waiter = spawn(move || {
        // SAFETY: only reads.
        tell.send(unsafe { libc::pthread_self() }).expect("the test listens");
        lock_and_wait(&file)
    });
    let thread = told.recv().expect("a thread");
    stage.service.locks.wait_for(1);
    // SAFETY: the thread is not joined yet, so its number is valid.
    assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR2) }, 0);
    let error = waiter.join().expect("waiter").expect_err("interrupted");
    assert_eq!(error.raw_os_error(), Some(libc::EINTR));
    // A lock that is granted late is granted.
    let file = File::create(stage.path("g")).expect("create");
    let waiter = spawn(move || lock_and_wait(&file));
    stage.service.locks.wait_for(2);
    stage.service.locks.open();
    waiter.join().expect("waiter").expect("granted");
}

pub(crate) fn panics_end_one_request(stage: &mut Stage) {
    for name in ["panic", "late-panic"] {
        fs::write(stage.path(name), b"x").expect("write");
        for _ in 0..20 {
            let error = fs::read(stage.path(name)).expect_err("panics");
            assert_eq!(error.raw_os_error(), Some(libc::EIO));
        }
    }
    fs::write(stage.path("calm"), b"x").expect("write");
    assert_eq!(fs::read(stage.path("calm")).expect("read"), b"x");
}

pub(crate) fn dropped_and_foreign_answers_arrive(stage: &mut Stage) {
    fs::write(stage.path("lost"), b"x").expect("write");
    fs::write(stage.path("elsewhere"), [0; 14]).expect("write");
    for _ in 0..40 {
        assert_eq!(fs::read(stage.path("lost")).expect_err("dropped").raw_os_error(), Some(libc::EIO));
        let mut data = [0; 14];
        let mut file = File::open(stage.path("elsewhere")).expect("open");
        file.read_exact(&mut data).expect("read");
        assert_eq!(&data, b"from elsewhere");
    }
}

pub(crate) fn unmounting_ends_the_session(stage: &mut Stage) {
    // Not by this process: a program that another case starts meanwhile (parking does, by stat(1)) has a copy of every
    // descriptor until its exec, and keeps what we had open in use behind our close.
    let status = Command::new("touch").arg(stage.path("f")).status().expect("touch(1)");
    assert!(status.success() && stage.path("f").exists(), "{status}");
    assert!(stage.unmounter.is_mounted().expect("mount table"));
    stage.unmounter.unmount().expect("unmount");
    stage.join().expect("a clean end");
    assert!(stage.service.is_destroyed.load(Ordering::SeqCst));
    assert!(!stage.unmounter.is_mounted().expect("mount table"));
    assert!(!stage.path("f").exists());
    // Once more is no mistake.
    stage.unmounter.unmount().expect("nothing to do");
}

pub(crate) fn a_busy_mount_is_not_unmounted(stage: &mut Stage) {
    let file = File::create(stage.path("f")).expect("create");
    let error = stage.unmounter.unmount().expect_err("in use");
    assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
    // Detached, it serves on until the last file is closed.
    stage.unmounter.detach().expect("detach");
    assert!(!stage.path("f").exists());
    file.write_all_at(b"still there", 0).expect("write");
    assert!(stage.notifier.is_connected());
    drop(file);
    stage.join().expect("a clean end");
    assert!(!stage.notifier.is_connected());
}

pub(crate) fn force_ends_requests_that_wait(stage: &mut Stage) {
    let paths: Vec<_> = (0..5).map(|number| stage.path(&format!("slow{number}"))).collect();
    paths.iter().for_each(|path| fs::write(path, b"x").expect("write"));
    let readers: Vec<_> = paths.into_iter().map(read_in_thread).collect();
    stage.service.gate.wait_for(readers.len());
    stage.unmounter.abort().expect("abort");
    for reader in readers {
        reader.join().expect("reader").expect_err("the connection has ended");
    }
    stage.join().expect("a clean end");
    assert!(stage.service.is_destroyed.load(Ordering::SeqCst));
}

pub(crate) fn notices_reach_the_kernel(stage: &mut Stage) {
    fs::write(stage.path("f"), b"x").expect("write");
    let node = fs::metadata(stage.path("f")).expect("stat").ino();
    let notifier = &stage.notifier;
    let all = Notice::InvalidateInode { node, offset: 0, bytes: 0 };
    assert!(notifier.send(&all).expect("sent"));
    assert!(!notifier.send(&Notice::InvalidateInode { node: 1 << 40, offset: 0, bytes: 0 }).expect("sent"));
    let stored = Notice::Store { node, offset: 0, data: b"y".to_vec() };
    assert!(notifier.send(&stored).expect("sent"));
    let _held = File::open(stage.path("f")).expect("open");
    for notice in [
        Notice::InvalidateEntry { parent: 1, name: b"f".to_vec() },
        Notice::ExpireEntry { parent: 1, name: b"f".to_vec() },
        Notice::DeleteEntry { parent: 1, child: node, name: b"none".to_vec() },
    ] {
        let result = notifier.send(&notice);
        assert!(result.is_ok(), "{notice:?}: {result:?}");
        notifier.post(notice);
    }
    assert_eq!(fs::metadata(stage.path("f")).expect("stat").len(), 1);
}

pub(crate) fn names_are_forgotten(stage: &mut Stage) {
    for number in 0..50 {
        let path = stage.path(&number.to_string());
        fs::write(&path, b"x").expect("write");
        fs::remove_file(&path).expect("unlink");
    }
    // Unlinked and closed: the kernel lets go of them, by FORGETs behind the requests that follow. Unmounting takes
    // none back, so these have to be seen before.
    while stage.service.forgotten.load(Ordering::Relaxed) < 50 {
        fs::metadata(stage.path("")).expect("stat");
        std::thread::yield_now();
    }
}

pub(crate) fn the_mount_table_names_us(stage: &mut Stage) {
    let table = fs::read_to_string("/proc/self/mounts").expect("mount table");
    let mountpoint = format!(" {} ", stage.unmounter.mountpoint().display());
    let line = table.lines().find(|line| line.contains(&mountpoint)).expect("our line");
    assert!(line.starts_with("a\\040source "), "{line}");
    assert!(line.contains(" fuse.hydrafs rw,"), "{line}");
    assert!(line.contains("default_permissions") && line.contains("allow_other"), "{line}");
}

fn c_string(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no zero byte")
}

/// A shared mapping of the beginning of a file, for the rest of this process's life.
fn map(file: &File, bytes: usize) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at a place of the kernel's choice.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    assert_ne!(at, libc::MAP_FAILED, "{}", io::Error::last_os_error());
    at.cast()
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    let (path, name) = (c_string(path), c_string(Path::new(name)));
    // SAFETY: two zero-terminated strings and a value of the stated length.
    match unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn get_xattr(path: &Path, name: &str, bytes_max: usize) -> io::Result<Vec<u8>> {
    let (path, name) = (c_string(path), c_string(Path::new(name)));
    let mut value = vec![0_u8; bytes_max];
    // SAFETY: two zero-terminated strings and room of the stated length.
    let bytes = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    value.truncate(usize::try_from(bytes).map_err(|_| io::Error::last_os_error())?);
    Ok(value)
}

fn lock_and_wait(file: &File) -> io::Result<()> {
    // SAFETY: a `flock` may be all zeros; the call reads it.
    let result = unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        lock.l_type = libc::F_WRLCK as _;
        libc::fcntl(file.as_raw_fd(), libc::F_SETLKW, &raw const lock)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A handler that does nothing, so that the signal only interrupts.
fn ignore_signal() {
    extern "C" fn nothing(_signal: libc::c_int) {}
    // SAFETY: installs a handler that touches nothing; without SA_RESTART calls come back with EINTR.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()), 0);
    }
}

fn pin(cpu: usize) {
    // SAFETY: a CPU set may be all zeros; the call reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

/// Clients at work meanwhile see nothing of it.
pub(crate) fn a_session_is_parked_and_goes_on(stage: &mut Stage) {
    let is_over = Arc::new(AtomicBool::new(false));
    // The first close, which asks (`memory`), is over before the session parks.
    fs::write(stage.path("closed"), b"").expect("write");
    let work = |number: usize| {
        let (is_over, directory) = (is_over.clone(), stage.path(&format!("d{number}")));
        // Here, for `d0` is asked for below.
        fs::create_dir(&directory).expect("a new name");
        spawn(move || -> io::Result<usize> {
            let open =
                OpenOptions::new().read(true).write(true).create(true).truncate(true).open(directory.join("open"))?;
            let mut round = 0;
            while round < 20 || !is_over.load(Ordering::Relaxed) {
                let bytes = pattern(3000 * (round % 100) + number);
                let (one, two) = (directory.join("one"), directory.join("two"));
                fs::write(&one, &bytes)?;
                fs::rename(&one, &two)?;
                open.write_all_at(&bytes, 0)?;
                let mut found = vec![0; bytes.len()];
                open.read_exact_at(&mut found, 0)?;
                assert!(found == bytes && fs::read(&two)? == bytes && fs::read_dir(&directory)?.count() == 2);
                round += 1;
            }
            Ok(round)
        })
    };
    let workers: Vec<_> = (0..6).map(work).collect();
    for _ in 0..20 {
        let parked = stage.park(Duration::from_secs(60)).expect("nothing is late");
        stage.resume(parked).expect("resumed");
        fs::metadata(stage.path("d0")).expect("served");
    }
    is_over.store(true, Ordering::Relaxed);
    for worker in workers {
        assert!(worker.join().expect("no wrong bytes").expect("no error") >= 20);
    }
}

pub(crate) fn changed_pages_are_brought_and_waited_for(stage: &mut Stage) {
    let paths = ["pages", "other"].map(|name| stage.path(name));
    let (changed, numbers) = mpsc::channel();
    let (end, is_over) = mpsc::channel::<()>();
    // In a thread with a descriptor table of its own. Programs that other cases start have copies of all descriptors of the common one until
    // their exec, which closes them one by one, and waits for the changed pages of each file; a store into a page waits for that page when it is
    // written back at the very moment; and who stores would not come to open the gate for it. That is for a thread of the common
    // table to do: who wakes a session needs its descriptors.
    let client = spawn(move || {
        // SAFETY: what is closed is closed for this thread alone, which has used none of it.
        let closed = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_UNSHARE) };
        assert_eq!(closed, 0, "{}", io::Error::last_os_error());
        let make = |path: PathBuf| {
            fs::write(&path, pattern(4096)).expect("write");
            OpenOptions::new().read(true).write(true).open(&path).expect("open")
        };
        let files = paths.map(make);
        let mappings = files.each_ref().map(|file| map(file, 4096));
        // SAFETY: within mappings of a page each, that are never taken away.
        mappings.iter().for_each(|at| unsafe { at.write_volatile(b'+') });
        changed.send(files.each_ref().map(|file| file.metadata().expect("stat").ino())).expect("it is waited for");
        // To close a file is to wait for its pages.
        let _ = is_over.recv();
    });
    let numbers = numbers.recv().expect("they are changed");
    // A directory, and a number that nobody holds: neither has a page.
    let asked = [1, numbers[0], 1 << 40, numbers[1]];
    let point = stage.path("");
    let brings = spawn(move || fuse::bring_pages(&point, asked));
    stage.service.gate.wait_for(1);
    fs::write(stage.path("quick"), b"quick").expect("nobody else waits");
    assert!(!brings.is_finished(), "the page is not accepted yet");
    stage.service.gate.open();
    brings.join().expect("no panic").expect("all are accepted");
    drop(end);
    client.join().expect("no panic");
    for number in numbers {
        assert_eq!(stage.service.content(number)[0], b'+');
    }
}

pub(crate) fn what_is_late_keeps_a_session_from_parking(stage: &mut Stage) {
    fs::write(stage.path("slow"), b"late").expect("write");
    let reader = read_in_thread(stage.path("slow"));
    stage.service.gate.wait_for(1);
    let refused = stage.park(Duration::from_millis(300)).err().expect("a request is late");
    assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
    fs::write(stage.path("quick"), b"quick").expect("it goes on");
    stage.service.gate.open();
    assert_eq!(reader.join().expect("reader").expect("read"), b"late");
    let parked = stage.park(Duration::from_secs(60)).expect("nothing is late");
    let reader = read_in_thread(stage.path("quick"));
    stage.resume(parked).expect("resumed");
    assert_eq!(reader.join().expect("reader").expect("read"), b"quick");
}
