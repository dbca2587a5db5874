//! A daemon that goes on in a new process while programs use its mount: nobody sees an error, and nothing is other than before.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::mount::{SMALL, over_each_transport_mut};
use crate::support::{Folder, Mapping, Mounted, hydrafs, is_mounted, run, script, spawn, succeed, within, within_or};
use crate::unit::INSTANCE;

/// Restarts in a row.
const RESTARTS: usize = 12;

fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at.wrapping_mul(seed * 2 + 1) >> 3) as u8).collect()
}

/// Writes, syncs, renames, reads and lists until told to stop; the error of the first call that failed. Gives its rounds.
fn work(directory: &Path, is_over: &AtomicBool) -> io::Result<usize> {
    fs::create_dir(directory)?;
    let mut log = OpenOptions::new().read(true).append(true).create(true).open(directory.join("log"))?;
    let mut round = 0;
    while !is_over.load(Ordering::Relaxed) {
        let bytes = pattern(round, 1 + round * 7919 % 300_000);
        let (new, old) = (directory.join("new"), directory.join("old"));
        let mut file = File::create(&new)?;
        file.write_all(&bytes)?;
        if round.is_multiple_of(3) {
            file.sync_all()?;
        }
        fs::rename(&new, &old)?;
        assert!(fs::read(&old)? == bytes, "round {round}");
        log.write_all(&(round as u64).to_le_bytes())?;
        assert_eq!(log.metadata()?.len(), 8 * (round as u64 + 1));
        assert_eq!(fs::read_dir(directory)?.count(), 2);
        round += 1;
    }
    let mut written = Vec::new();
    log.rewind()?;
    log.read_to_end(&mut written)?;
    let expected: Vec<u8> = (0..round as u64).flat_map(u64::to_le_bytes).collect();
    assert!(written == expected);
    Ok(round)
}

/// A program of somebody else's.
const PROGRAM: &str = "set -e; mkdir p; cd p; while [ ! -e ../over ]; do
    head -c 300000 /dev/urandom > a; cp a b; cmp a b; mv b c; sync c; ln c d; rm d; stat c > /dev/null; ls > /dev/null; done";

/// Whether another process can have the lock.
fn is_free(path: &Path) -> bool {
    run(Command::new("flock").arg("-n").arg(path).arg("true")).status.success()
}

/// What a program may have open, from before the restarts.
struct Held {
    unlinked: File,
    no_directory: File,
    locked: File,
    listing: fs::ReadDir,
    listed: BTreeSet<PathBuf>,
    mapping: Mapping,
    mapped: File,
    old: File,
}

impl Held {
    fn new(mounted: &Mounted) -> Held {
        let m = |name: &str| mounted.point.join(name);
        let open = |name: &str| {
            OpenOptions::new().read(true).write(true).create(true).truncate(true).open(m(name)).expect("room")
        };
        let mut unlinked = open("unlinked");
        unlinked.write_all(&pattern(5, 400_000)).expect("room");
        fs::remove_file(m("unlinked")).expect("there");
        fs::create_dir(m("gone")).expect("room");
        let no_directory = File::open(m("gone")).expect("there");
        fs::remove_dir(m("gone")).expect("empty");
        let locked = open("locked");
        rustix::fs::flock(&locked, FlockOperation::LockExclusive).expect("free");
        fs::create_dir(m("many")).expect("room");
        for number in 0..3000 {
            fs::write(m(&format!("many/{number:04}-{}", "n".repeat(40))), "").expect("room");
        }
        let mut listing = fs::read_dir(m("many")).expect("there");
        let listed = listing.by_ref().take(100).map(|entry| entry.expect("an entry").path()).collect();
        let mapped = open("mapped");
        mapped.set_len(4096).expect("room");
        let mapping = Mapping::new(&mapped, 4096);
        mapping.write(0, 1);
        fs::write(m("snapped"), "before").expect("room");
        succeed(&[OsStr::new("snapshot"), OsStr::new("create"), mounted.node.as_os_str(), OsStr::new("s")]);
        fs::write(m("snapped"), "after").expect("room");
        let old = File::open(m(".snapshots/s/snapped")).expect("there");
        Held { unlinked, no_directory, locked, listing, listed, mapping, mapped, old }
    }

    fn check(&mut self, mounted: &Mounted, turn: usize) {
        let mut bytes = vec![0; 400_000];
        self.unlinked.read_exact_at(&mut bytes, 0).expect("its user is still there");
        bytes[..8].copy_from_slice(&pattern(5, 8));
        assert!(bytes == pattern(5, 400_000));
        self.unlinked.write_all_at(&turn.to_le_bytes(), 0).expect("room");
        assert_eq!(self.unlinked.metadata().expect("open").nlink(), 0);
        assert_eq!(self.no_directory.metadata().expect("open").nlink(), 0);
        let path = mounted.point.join("locked");
        assert!(!is_free(&path), "the lock is held");
        let other = File::open(&path).expect("there");
        assert_eq!(rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive), Err(Errno::WOULDBLOCK));
        self.listed.extend(self.listing.by_ref().take(100).map(|entry| entry.expect("an entry").path()));
        assert_eq!(self.mapping.read(turn), turn as u8 + 1);
        self.mapping.write(turn + 1, turn as u8 + 2);
        let mut old = [0; 6];
        self.old.read_exact_at(&mut old, 0).expect("the snapshot is still there");
        assert_eq!(&old, b"before");
    }

    fn end(mut self, mounted: &Mounted) {
        self.listed.extend(self.listing.by_ref().map(|entry| entry.expect("an entry").path()));
        assert_eq!(self.listed.len(), 3000, "each once");
        drop(self.mapping);
        self.mapped.sync_all().expect("a disk");
        let bytes = fs::read(mounted.point.join("mapped")).expect("there");
        assert!((0..=RESTARTS).all(|turn| bytes[turn] == turn as u8 + 1), "{:?}", &bytes[..=RESTARTS]);
        drop(self.locked);
        assert!(is_free(&mounted.point.join("locked")));
    }
}

#[test]
fn programs_see_no_error_while_the_daemon_restarts() {
    restarts_under_load("restart", |mounted, _| mounted.restart());
}

/// An upgrade, and the way back: to the daemon that `HYDRAFS_FORMER` names, of another build, and from it to ours, by turns.
#[test]
fn programs_see_no_error_while_another_build_takes_over() {
    let Some(former) = std::env::var_os("HYDRAFS_FORMER") else {
        return skipped::because("HYDRAFS_FORMER names no hydrafs of another build");
    };
    restarts_under_load("upgrade", |mounted, turn| {
        let next = if turn.is_multiple_of(2) { &former } else { OsStr::new(env!("CARGO_BIN_EXE_hydrafs")) };
        succeed(&[OsStr::new("restart"), OsStr::new("--binary"), next, mounted.node.as_os_str()]);
        mounted.wait();
        mounted.follow();
        let now = fs::read_link(format!("/proc/{}/exe", mounted.pid)).expect("it runs");
        assert_eq!(now, fs::canonicalize(next).expect("it is there"));
    });
}

/// Twelve of them, beside programs that work and one that has everything open which can be.
fn restarts_under_load(name: &str, restart: impl Fn(&mut Mounted, usize)) {
    over_each_transport_mut(name, |mounted| {
        let mut held = Held::new(mounted);
        let is_over = AtomicBool::new(false);
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(PROGRAM).current_dir(&mounted.point).stderr(Stdio::piped());
        let shell = spawn(&mut shell).expect("sh");
        let directories: Vec<PathBuf> = (0..4).map(|number| mounted.point.join(format!("w{number}"))).collect();
        std::thread::scope(|scope| {
            let workers: Vec<_> =
                directories.iter().map(|directory| scope.spawn(|| work(directory, &is_over))).collect();
            // Whatever fails, the others end.
            let over = Over(&is_over);
            for turn in 0..RESTARTS {
                held.check(mounted, turn);
                restart(mounted, turn);
            }
            drop(over);
            for worker in workers {
                assert!(worker.join().expect("nothing wrong is read").expect("no error") > 0);
            }
        });
        fs::write(mounted.point.join("over"), "").expect("room");
        let shell = shell.wait_with_output().expect("our child");
        assert!(shell.status.success(), "{}", String::from_utf8_lossy(&shell.stderr));
        held.end(mounted);
        let log = fs::read_to_string(mounted.node.join("hydrafs.log")).expect("a log");
        assert_eq!(log.matches("goes on").count(), RESTARTS, "{log}");
    });
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_program_that_cannot_go_on_changes_nothing() {
    let folder = Folder::new("refused");
    let ends = script(&folder, "ends", "exit 1");
    // What another version of ours would say, read by the one that hands over.
    let verdict = r#"{"Failed":{"what":"cannot take the daemon over","place":"","why":"version 1, not 0","mend":""}}"#;
    let refuses = script(&folder, "refuses", &format!("cat > /dev/null & echo '{verdict}' >&0; wait"));
    let none = folder.join("none");
    let plain = folder.join("plain");
    fs::write(&plain, "no program").expect("room");
    over_each_transport_mut("goes-on", |mounted| {
        let held = File::create_new(mounted.point.join("f")).expect("room");
        fs::remove_file(mounted.point.join("f")).expect("there");
        let is_over = AtomicBool::new(false);
        let directory = mounted.point.join("w");
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| work(&directory, &is_over));
            let over = Over(&is_over);
            for turn in 0..2 {
                for (program, words) in [
                    (&ends, "the new process ended before it was ready"),
                    (&refuses, "version 1, not 0"),
                    (&none, "No such file"),
                    (&plain, "cannot be run"),
                ] {
                    held.write_all_at(words.as_bytes(), turn).expect("room");
                    let binary = [OsStr::new("restart"), OsStr::new("--binary"), program.as_os_str()];
                    let output = hydrafs(&[&binary[..], &[mounted.node.as_os_str()]].concat());
                    let message = String::from_utf8_lossy(&output.stderr);
                    assert!(output.status.code() == Some(1) && message.contains(words), "{message}");
                    let mut found = vec![0; words.len()];
                    held.read_exact_at(&mut found, turn).expect("its user is still there");
                    assert_eq!(found, words.as_bytes());
                }
                // And back to one that can.
                mounted.restart();
            }
            drop(over);
            assert!(worker.join().expect("nothing wrong is read").expect("no error") > 0);
        });
    });
}

#[test]
fn settings_change_and_a_daemon_without_a_mount_goes_on_too() {
    let folder = Folder::new("settings");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let Some(mut mounted) = Mounted::start(&node, &point, &[SMALL]) else { return };
    fs::write(node.join("hydrafs.toml"), "[log]\nlevel = \"nothing\"\n").expect("room");
    let output = hydrafs(&[OsStr::new("restart"), node.as_os_str()]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && message.contains("hydrafs.toml line 2"), "{message}");
    fs::write(node.join("hydrafs.toml"), "[log]\nlevel = \"debug\"\n").expect("room");
    mounted.restart();
    fs::write(point.join("f"), "f").expect("it goes on");
    succeed(&[OsStr::new("sync"), point.as_os_str()]);
    let log = fs::read_to_string(node.join("hydrafs.log")).expect("a log");
    assert!(log.contains("DEBUG"), "{log}");
    mounted.umount();

    let mut serve = Command::new(env!("CARGO_BIN_EXE_hydrafs"));
    let mut serve = spawn(serve.arg("serve").arg(&node).stderr(Stdio::piped())).expect("it starts");
    let mut log = io::BufReader::new(serve.stderr.take().expect("piped"));
    let mut line = String::new();
    while !line.contains("without a mount") {
        line.clear();
        assert!(io::BufRead::read_line(&mut log, &mut line).expect("a log") > 0, "it ended");
    }
    succeed(&[OsStr::new("restart"), node.as_os_str()]);
    assert!(serve.wait().expect("our child").success(), "the former has ended");
    let stopped = succeed(&[OsStr::new("stop"), node.as_os_str()]);
    assert!(stopped.contains("everything is on the disks"), "{stopped}");
}

/// What a service manager hears.
struct Heard(UnixDatagram);

impl Heard {
    fn new(folder: &Folder) -> Heard {
        let socket = UnixDatagram::bind(folder.join("notify")).expect("room");
        // A message that never comes fails the test instead of hanging it.
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
        Heard(socket)
    }

    /// Starts a daemon that tells us.
    fn start(folder: &Folder, node: &Path, point: &Path, log: Stdio) -> std::process::Child {
        let mut daemon = Command::new(env!("CARGO_BIN_EXE_hydrafs"));
        daemon.args(["mount", "--foreground"]).arg(node).arg(point).env("NOTIFY_SOCKET", folder.join("notify"));
        spawn(daemon.stderr(log)).expect("it starts")
    }

    /// The next message with a line that begins so.
    fn hear(&self, wanted: &str) -> String {
        let mut buffer = [0; 4096];
        loop {
            let bytes = self.0.recv(&mut buffer).unwrap_or_else(|error| panic!("no {wanted}: {error}"));
            let text = String::from_utf8_lossy(&buffer[..bytes]).into_owned();
            if text.lines().any(|line| line.starts_with(wanted)) {
                return text;
            }
        }
    }
}

/// Its disk is full, or who reads it has gone.
#[test]
fn a_log_that_cannot_be_written_ends_nobody() {
    let folder = Folder::new("full-log");
    let (node, point) = (folder.node("n"), folder.make("m"));
    if OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err() {
        return skipped::because("/dev/fuse cannot be opened here");
    }
    let manager = Heard::new(&folder);
    for restarts in [false, true] {
        let full = OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
        let mut daemon = Heard::start(&folder, &node, &point, full.into());
        manager.hear("READY=1");
        fs::write(point.join(format!("f{restarts}")), "not synced").expect("it is ready");
        let process = if restarts {
            succeed(&[OsStr::new("restart"), node.as_os_str()]);
            let next = manager.hear("MAINPID=");
            let process = next.lines().find_map(|line| line.strip_prefix("MAINPID=")).expect("heard");
            rustix::process::Pid::from_raw(process.parse().expect("a number")).expect("not 0")
        } else {
            rustix::process::Pid::from_child(&daemon)
        };
        assert_eq!(fs::read(point.join("ffalse")).expect("it goes on"), b"not synced");
        rustix::process::kill_process(process, rustix::process::Signal::TERM).expect("it runs");
        manager.hear("STOPPING=1");
        // The last it does is to take its socket away.
        let _ = hydrafs(&[OsStr::new("stop"), node.as_os_str()]);
        assert!(daemon.wait().expect("our child").success() && !is_mounted(&point));
    }
    let mounted = Mounted::start(&node, &point, &[]).expect("it was mounted before");
    for name in ["ffalse", "ftrue"] {
        assert_eq!(fs::read(point.join(name)).expect("flushed"), b"not synced");
    }
    mounted.umount();
}

#[test]
fn the_service_manager_hears_of_everything() {
    let folder = Folder::new("notify");
    let (node, point) = (folder.node("n"), folder.make("m"));
    if OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err() {
        return skipped::because("/dev/fuse cannot be opened here");
    }
    let manager = Heard::new(&folder);
    let hear = |wanted: &str| manager.hear(wanted);
    // As the unit does it, by a link with an escaped name.
    let link = folder.join(INSTANCE);
    std::os::unix::fs::symlink(&node, &link).expect("room");
    let mut daemon = Heard::start(&folder, &link, &point, Stdio::null());
    let ready = hear("READY=1");
    assert!(ready.contains("STATUS=") && ready.contains("is mounted at"), "{ready}");
    fs::write(point.join("f"), "f").expect("it is ready");
    let refused = hydrafs(&[OsStr::new("restart"), OsStr::new("--binary"), OsStr::new("/bin/false"), link.as_os_str()]);
    assert_eq!(refused.status.code(), Some(1));
    let back = hear(&format!("STATUS={}", node.display()));
    assert!(back.contains("is mounted at"), "{back}");
    succeed(&[OsStr::new("restart"), link.as_os_str()]);
    let next = hear("MAINPID=");
    assert!(next.contains("STATUS=") && next.contains("is mounted at"), "what it says is not that it flushes: {next}");
    let process = next.lines().find_map(|line| line.strip_prefix("MAINPID=")).expect("heard");
    let process: i32 = process.parse().expect("a number");
    assert!(daemon.wait().expect("our child").success());
    assert_eq!(fs::read(point.join("f")).expect("it goes on"), b"f");
    let process = rustix::process::Pid::from_raw(process).expect("not 0");
    rustix::process::kill_process(process, rustix::process::Signal::TERM).expect("the next one");
    hear("STOPPING=1");
    // The last it does is to take its socket away; who asks it to stop meanwhile hears that it is ending, and waits for that.
    let _ = hydrafs(&[OsStr::new("stop"), node.as_os_str()]);
    assert!(!is_mounted(&point));
}

#[test]
fn a_mount_whose_daemon_died_says_so_and_is_mended() {
    over_each_transport_mut("dead", |mounted| {
        let (node, point) = (mounted.node.clone(), mounted.point.clone());
        let file = point.join("d/f");
        fs::create_dir(point.join("d")).expect("room");
        fs::write(&file, "synced").expect("room");
        succeed(&[OsStr::new("sync"), point.as_os_str()]);
        mounted.kill();
        let mend = format!("`hydrafs mount {} {}`", node.display(), point.display());
        let status = succeed(&[OsStr::new("status"), node.as_os_str()]);
        assert!(status.contains("is dead: its daemon has died") && status.contains(&mend), "{status}");
        let outside = node.join("copy");
        let cases: [&[&OsStr]; 6] = [
            &[OsStr::new("info"), file.as_os_str()],
            &[OsStr::new("info"), point.as_os_str()],
            &[OsStr::new("sync"), file.as_os_str()],
            &[OsStr::new("cp"), file.as_os_str(), outside.as_os_str()],
            &[OsStr::new("cp"), OsStr::new("/etc/passwd"), file.as_os_str()],
            &[OsStr::new("cp"), OsStr::new("/etc/passwd"), point.as_os_str()],
        ];
        for arguments in cases {
            let output = hydrafs(arguments);
            let message = String::from_utf8_lossy(&output.stderr);
            let is_clear = message.contains("the daemon of this mount has died") && message.contains(&mend);
            assert!(output.status.code() == Some(1) && is_clear, "{arguments:?}: {message}");
        }
        // Mended, and used like any other.
        mounted.mend();
        assert_eq!(fs::read(&file).expect("it was synced"), b"synced");
        let status = succeed(&[OsStr::new("status"), node.as_os_str()]);
        assert!(!status.contains("is dead"), "{status}");
        let table = fs::read_to_string("/proc/self/mountinfo").expect("a mount table");
        let count = table.lines().filter(|line| line.contains(point.to_str().expect("UTF-8"))).count();
        assert_eq!(count, 1, "the dead mount is not below the new one");
    });
}

#[test]
fn a_dead_mount_that_does_not_answer_is_mended() {
    if !rustix::process::geteuid().is_root() {
        return skipped::because("only root may end a connection by force");
    }
    over_each_transport_mut("silent", |mounted| {
        let file = mounted.point.join("f");
        fs::write(&file, "synced").expect("room");
        succeed(&[OsStr::new("sync"), mounted.point.as_os_str()]);
        let held = File::open(&file).expect("there");
        // While anybody has the connection open, calls wait for an answer, whoever might give it.
        let connections = mounted.connections();
        assert!(!connections.is_empty());
        mounted.kill();
        let asked = mounted.point.clone();
        let asks = std::thread::spawn(move || rustix::fs::statvfs(&asked));
        let (node, point) = (mounted.node.clone(), mounted.point.clone());
        let mend = move || succeed(&[OsStr::new("mount"), node.as_os_str(), point.as_os_str()]);
        let point = mounted.point.clone();
        let force = move || {
            let _ = rustix::mount::unmount(&point, UnmountFlags::FORCE | UnmountFlags::DETACH);
        };
        within_or("hydrafs mount", force, mend);
        mounted.follow();
        // It waited until the mount was taken away, or asked the new one.
        let asked = within("who asked the dead mount", move || asks.join());
        if let Err(error) = asked.expect("no panic") {
            assert!(is_of_dead(error), "{error:?}");
        }
        // No answer to that is ever kept.
        let error = rustix::fs::fsync(&held).expect_err("the mount of this file has gone");
        assert!(is_of_dead(error), "{error:?}");
        assert_eq!(fs::read(&file).expect("it was synced"), b"synced");
        drop(connections);
    });
}

/// Whether a mount answers so whose daemon is gone. ECANCELED: the call was on its way to an io_uring queue when the daemon died.
fn is_of_dead(error: Errno) -> bool {
    matches!(error, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED)
}
