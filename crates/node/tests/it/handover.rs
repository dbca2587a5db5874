//! Restarts in the middle of which somebody dies, or is told to end: whoever is left goes on, and no program waits for ever.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::fs::{CWD, FileType, Mode};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::mount::{SMALL, over_each_transport_mut};
use crate::support::{Folder, Mounted, hydrafs, is_mounted, script, spawn, succeed, wait_for, within, within_or};

/// A restart whose new process waits for us.
struct Restart {
    /// `hydrafs restart`.
    command: Child,
    /// Number of the new process, and itself.
    process: i32,
    next: OwnedFd,
}

impl Restart {
    /// Begins one; returns when the new process runs, which is some time after the mount was parked. `then`: what it does, a script.
    fn begin(folder: &Folder, node: &Path, then: &str) -> Restart {
        let started = fifo(folder.join("started"));
        let program = script(folder, "next", &format!("echo $$ > '{}'\n{then}", started.display()));
        let mut command = Command::new(env!("CARGO_BIN_EXE_hydrafs"));
        command.args(["restart", "--binary"]).arg(&program).arg(node);
        let command = spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped())).expect("it starts");
        let process = within("the new process starts", move || fs::read_to_string(started).expect("a number"));
        let process = process.trim().parse().expect("a number");
        let next = rustix::process::pidfd_open(Pid::from_raw(process).expect("not 0"), PidfdFlags::empty());
        Restart { command, process, next: next.expect("it waits") }
    }

    fn end(self) -> Output {
        within("the restart ends", move || self.command.wait_with_output().expect("our child"))
    }
}

fn fifo(path: PathBuf) -> PathBuf {
    let _ = fs::remove_file(&path);
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("room");
    path
}

/// A new process that has the hand-over when this returns, and waits for its settings.
fn in_possession(folder: &Folder, mounted: &Mounted) -> (Restart, fs::File) {
    let settings = mounted.node.join("hydrafs.toml");
    fs::rename(&settings, mounted.node.join("settings")).expect("init wrote it");
    let settings = fifo(settings);
    let restart = Restart::begin(folder, &mounted.node, &format!("exec '{}' \"$@\"", env!("CARGO_BIN_EXE_hydrafs")));
    // Opening ends when it reads.
    let settings = within("the new process reads the settings", move || {
        OpenOptions::new().write(true).open(settings).expect("a reader")
    });
    (restart, settings)
}

fn settings_as_before(mounted: &Mounted) {
    fs::rename(mounted.node.join("settings"), mounted.node.join("hydrafs.toml")).expect("put aside before");
}

/// What a program meets that asks for a name that nobody asked for before.
fn ask(mounted: &Mounted, name: &str) -> impl FnOnce() -> io::Error + Send + 'static {
    let path = mounted.point.join(name);
    move || fs::metadata(path).expect_err("there is no such file")
}

#[test]
fn a_daemon_that_is_killed_while_its_mount_waits_leaves_one_that_can_be_mended() {
    over_each_transport_mut("killed", |mounted| {
        let folder = Folder::new("killed-next");
        fs::write(mounted.point.join("f"), "synced").expect("room");
        succeed(&[OsStr::new("sync"), mounted.point.as_os_str()]);
        let over = fifo(folder.join("over"));
        // It never looks at what it is given.
        let restart = Restart::begin(&folder, &mounted.node, &format!("read line < '{}'", over.display()));
        let program = std::thread::spawn(ask(mounted, "nobody"));
        mounted.signal(Signal::KILL);
        fs::write(over, "\n").expect("it reads");
        mounted.wait();
        let error = within("who waits hears of it", || program.join().expect("no panic"));
        let is_dead = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED].map(Some).contains(&error.raw_os_error());
        assert!(is_dead, "{error}");
        assert_eq!(restart.end().status.code(), Some(1));
        let status = succeed(&[OsStr::new("status"), mounted.node.as_os_str()]);
        assert!(status.contains("is dead: its daemon has died"), "{status}");
        mounted.mend();
        assert_eq!(fs::read(mounted.point.join("f")).expect("it was synced"), b"synced");
    });
}

#[test]
fn a_new_process_that_is_killed_with_the_hand_over_changes_nothing() {
    over_each_transport_mut("next-killed", |mounted| {
        let folder = Folder::new("next-killed-next");
        let (restart, settings) = in_possession(&folder, mounted);
        let program = std::thread::spawn(ask(mounted, "nobody"));
        rustix::process::pidfd_send_signal(&restart.next, Signal::KILL).expect("it waits");
        drop(settings);
        let output = restart.end();
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && message.contains("ended before it was ready"), "{message}");
        let error = within("the former answers", || program.join().expect("no panic"));
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        settings_as_before(mounted);
        mounted.restart();
    });
}

#[test]
fn a_daemon_that_is_killed_with_its_hand_over_given_is_followed() {
    over_each_transport_mut("followed", |mounted| {
        let folder = Folder::new("followed-next");
        fs::write(mounted.point.join("f"), "f").expect("room");
        let (restart, settings) = in_possession(&folder, mounted);
        let program = std::thread::spawn(ask(mounted, "nobody"));
        mounted.signal(Signal::KILL);
        // The new process finds nobody to say that it is ready.
        drop(settings);
        let error = within("the next answers", || program.join().expect("no panic"));
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        mounted.wait();
        let process = restart.process;
        assert_eq!(restart.end().status.code(), Some(1), "nobody said how it went");
        mounted.follow();
        assert_eq!(mounted.pid, process);
        assert_eq!(fs::read(mounted.point.join("f")).expect("it goes on"), b"f");
        settings_as_before(mounted);
        mounted.restart();
    });
}

#[test]
fn a_signal_that_comes_during_a_restart_ends_the_next() {
    over_each_transport_mut("signalled", |mounted| {
        let folder = Folder::new("signalled-next");
        fs::write(mounted.point.join("f"), "f").expect("room");
        let (restart, settings) = in_possession(&folder, mounted);
        mounted.signal(Signal::TERM);
        drop(settings);
        let next = restart.next.try_clone().expect("a descriptor");
        let output = restart.end();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        wait_for(&next, &mounted.point);
        assert!(!is_mounted(&mounted.point), "the next has taken it away");
        settings_as_before(mounted);
        mounted.wait();
        mounted.mend();
        assert_eq!(fs::read(mounted.point.join("f")).expect("it was closed cleanly"), b"f");
    });
}

#[test]
fn a_daemon_that_flushes_for_a_restart_still_hears_that_it_is_to_end() {
    let folder = Folder::new("deaf");
    let (below, disk) = (folder.node("below"), folder.make("disk"));
    // A disk that can be made to hang: a mount whose daemon is stopped.
    let Some(below) = Mounted::start(&below, &disk, &[SMALL]) else { return };
    let (node, point) = (folder.join("n"), folder.make("m"));
    succeed(&[OsStr::new("init"), node.as_os_str(), OsStr::new("--disk"), disk.join("d").as_os_str()]);
    let mounted = Mounted::start(&node, &point, &[SMALL]).expect("as the one below");
    fs::write(point.join("f"), vec![7; 1 << 20]).expect("room");
    below.signal(Signal::STOP);
    let mut command = Command::new(env!("CARGO_BIN_EXE_hydrafs"));
    command.arg("restart").arg(&node).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut command = spawn(&mut command).expect("it starts");
    let mut said = BufReader::new(command.stderr.take().expect("piped"));
    let mut line = String::new();
    said.read_line(&mut line).expect("it says what it does");
    assert!(line.contains("flushing"), "{line}");
    mounted.signal(Signal::TERM);
    let hung = std::thread::spawn(move || {
        let mut text = String::new();
        said.read_to_string(&mut text).map(|_| (text, command.wait()))
    });
    let (text, status) = within_or(
        "the daemon is deaf",
        || below.signal(Signal::CONT),
        move || hung.join().expect("no panic").expect("text"),
    );
    assert!(status.expect("our child").code() == Some(1) && text.contains("the daemon is ending"), "{text}");
    below.signal(Signal::CONT);
    mounted.wait();
    assert!(!is_mounted(&point));
    let mounted = Mounted::start(&node, &point, &[SMALL]).expect("as before");
    assert!(fs::read(point.join("f")).expect("it was flushed") == vec![7; 1 << 20]);
    mounted.umount();
    below.umount();
}

#[test]
fn a_program_on_the_mount_itself_is_refused() {
    over_each_transport_mut("itself", |mounted| {
        let program = mounted.point.join("bin/hydrafs");
        fs::create_dir(mounted.point.join("bin")).expect("room");
        fs::copy(env!("CARGO_BIN_EXE_hydrafs"), &program).expect("room");
        let around = mounted.node.join("link");
        std::os::unix::fs::symlink(&program, &around).expect("room");
        for program in [&program, &around] {
            let output = hydrafs(&[
                OsStr::new("restart"),
                OsStr::new("--binary"),
                program.as_os_str(),
                mounted.node.as_os_str(),
            ]);
            let message = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.code() == Some(1) && message.contains("lies on the mount itself"), "{message}");
        }
        fs::write(mounted.point.join("f"), "f").expect("it goes on");
    });
}
