//! `hydrafs send | hydrafs receive` between two nodes, with daemons and without.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::support::{Folder, Mounted, hydrafs, os, run, spawn, succeed};

/// Two nodes of one dedup domain.
fn nodes(folder: &Folder) -> [PathBuf; 2] {
    let one = folder.node("one");
    let (two, key) = (folder.join("two"), folder.join("key"));
    export(&one, &key);
    let disk = two.join("disk");
    succeed(&[os("init"), two.as_os_str(), os("--disk"), disk.as_os_str(), os("--domain-of"), key.as_os_str()]);
    [one, two]
}

fn export(node: &Path, to: &Path) {
    let out = File::create(to).expect("room");
    let mut command = Command::new(env!("CARGO_BIN_EXE_hydrafs"));
    command.args([os("domain"), os("export"), node.as_os_str()]).stdin(Stdio::null()).stdout(out);
    let child = spawn(command.stderr(Stdio::piped())).expect("the program starts");
    let output = child.wait_with_output().expect("our child");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("keep it secret"), "{said}");
    assert_eq!(fs::metadata(to).expect("there").mode() & 0o777, 0o600);
}

fn snapshot(node: &Path, name: &str) {
    succeed(&[os("snapshot"), os("create"), node.as_os_str(), os(name)]);
}

/// The stream of a snapshot.
fn sent(arguments: &[&OsStr]) -> Vec<u8> {
    let output = hydrafs(&[&[os("send")], arguments].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("sent "), "{said}");
    output.stdout
}

fn receive(arguments: &[&OsStr], stream: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hydrafs"));
    command.arg("receive").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = spawn(&mut command).expect("the program starts");
    // It may have heard enough.
    let _ = child.stdin.take().expect("a pipe").write_all(stream);
    child.wait_with_output().expect("our child")
}

fn received(arguments: &[&OsStr], stream: &[u8]) -> Value {
    let output = receive(&[arguments, &[os("--json")]].concat(), stream);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn refused(arguments: &[&OsStr], stream: &[u8], words: &[&str]) -> String {
    let output = receive(arguments, stream);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let says_all = words.iter().all(|words| said.contains(words));
    assert!(output.status.code() == Some(1) && says_all, "{said}");
    said
}

/// The same names, kinds, contents, modes, times and extended attributes.
fn expect_same(one: &Path, two: &Path) {
    let different = run(Command::new("diff").arg("-r").arg("--no-dereference").args([one, two]));
    assert!(different.status.success(), "{}", String::from_utf8_lossy(&different.stdout));
    let listed = |at: &Path| {
        let format = "%P %y %m %n %s %T@ %l\n";
        let found = run(Command::new("find").arg(at).args(["-printf", format]));
        let mut lines: Vec<String> = String::from_utf8_lossy(&found.stdout).lines().map(ToOwned::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(listed(one), listed(two));
}

/// More than pipes hold, of what no compressor shrinks.
fn noise() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..400_000).flat_map(|_| next()).collect()
}

fn fill(at: &Path) {
    fs::create_dir_all(at.join("a/b/c")).expect("room");
    for number in 0..200 {
        fs::write(at.join(format!("a/file {number}")), format!("content {number}\n").repeat(number * 7)).expect("room");
    }
    fs::write(at.join("a/b/large"), noise()).expect("room");
    fs::hard_link(at.join("a/b/large"), at.join("a/b/c/again")).expect("room");
    symlink("b/large", at.join("a/link")).expect("room");
    fs::set_permissions(at.join("a/file 7"), fs::Permissions::from_mode(0o4711)).expect("ours");
    // Where a value is, a tool that shows it need not be.
    rustix::fs::setxattr(at.join("a/file 8"), "user.x", &[7; 3000], rustix::fs::XattrFlags::empty()).expect("room");
}

#[test]
fn snapshots_go_from_mount_to_mount() {
    let folder = Folder::new("transfer");
    let nodes = nodes(&folder);
    let [point, other_point] = ["m1", "m2"].map(|name| folder.make(name));
    let Some(one) = Mounted::start(&nodes[0], &point, &[]) else { return };
    let Some(mut two) = Mounted::start(&nodes[1], &other_point, &[]) else { return };
    let [from, to] = [one.node.clone(), two.node.clone()];
    let [from, to] = [from.as_os_str(), to.as_os_str()];
    fill(&point);
    snapshot(&one.node, "first");
    let listed = fs::read_dir(other_point.join(".snapshots")).expect("always there").count();
    assert_eq!(listed, 0);
    // A pipe, as a user makes it.
    let script = format!("\"$0\" send '{}' first | \"$0\" receive '{}'", one.node.display(), two.node.display());
    let output = run(Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_hydrafs")]));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("received the snapshot first"), "{output:?}");
    expect_same(&point.join(".snapshots/first"), &other_point.join(".snapshots/first"));
    let xattr = |at: &Path| {
        let mut value = [0; 4000];
        let length = rustix::fs::getxattr(at.join(".snapshots/first/a/file 8"), "user.x", &mut value).expect("there");
        value[..length].to_vec()
    };
    assert_eq!(xattr(&other_point), [7; 3000]);

    // A change, and what it costs.
    let mut large = fs::read(point.join("a/b/large")).expect("there");
    large.splice(1_000_000..1_000_000, *b"put in");
    fs::write(point.join("a/b/large"), &large).expect("room");
    fs::rename(point.join("a/file 9"), point.join("a/b/renamed")).expect("ours");
    fs::remove_file(point.join("a/file 10")).expect("ours");
    snapshot(&one.node, "second");
    let plan = succeed(&[os("send"), from, os("second"), os("--from"), os("first"), os("--dry-run"), os("--json")]);
    let plan: Value = serde_json::from_str(&plan).expect("JSON");
    let difference = sent(&[from, os("second"), os("--from"), os("first")]);
    assert_eq!(plan["bytes"].as_u64(), Some(difference.len() as u64));
    assert!(difference.len() < 600_000, "{} bytes", difference.len());
    let answer = received(&[to], &difference);
    assert_eq!(answer["name"], "second");
    expect_same(&point.join(".snapshots/second"), &other_point.join(".snapshots/second"));
    // The receiver's own files were never touched, and it can be restarted.
    fs::write(other_point.join("mine"), "mine").expect("room");
    two.restart();
    expect_same(&point.join(".snapshots/second"), &other_point.join(".snapshots/second"));
    refused(&[to], &difference, &["there is a snapshot of this name", "--name"]);
    let again = received(&[to, os("--name"), os("again")], &difference);
    assert_eq!(again["chunks"], again["chunks_here_before"]);

    // One behind the other, and something behind them that is none.
    let [third, fourth] = ["third", "fourth"].map(|name| {
        fs::write(point.join(name), name).expect("room");
        snapshot(&one.node, name);
        sent(&[from, os(name)])
    });
    let both = received(&[to], &[&third[..], &fourth].concat());
    assert_eq!((&both["before"][0]["name"], &both["name"]), (&"third".into(), &"fourth".into()));
    expect_same(&point.join(".snapshots/fourth"), &other_point.join(".snapshots/fourth"));
    let named = [to, os("--name"), os("fifth")];
    refused(&named, &[&third[..], &fourth].concat(), &["the snapshot fifth, which was received", "without --name"]);
    succeed(&[os("snapshot"), os("delete"), to, os("fourth")]);
    refused(
        &[to],
        &[&fourth[..], b"no stream"].concat(),
        &["the snapshot fourth, which was received", "ended too early"],
    );
    expect_same(&point.join(".snapshots/fourth"), &other_point.join(".snapshots/fourth"));
    for (mounted, point) in [(one, point), (two, other_point)] {
        let node = mounted.node.clone();
        assert!(succeed(&[os("fsck"), node.as_os_str()]).contains("all is well"), "{}", point.display());
        mounted.umount();
    }
}

#[test]
fn what_is_cut_goes_on_and_what_does_not_fit_is_refused() {
    let folder = Folder::new("cut");
    let nodes = nodes(&folder);
    let point = folder.make("m");
    let Some(one) = Mounted::start(&nodes[0], &point, &[]) else { return };
    fill(&point);
    snapshot(&one.node, "first");
    fs::write(point.join("more"), "more").expect("room");
    snapshot(&one.node, "second");
    let of = point.join("a/b");
    let create = [os("snapshot"), os("create"), one.node.as_os_str(), os("part"), os("--of"), of.as_os_str()];
    assert!(succeed(&create).trim_end().ends_with("of /a/b"));
    assert!(point.join(".snapshots/part/c/again").exists() && !point.join(".snapshots/part/a").exists());
    let from = one.node.as_os_str();
    let (all, difference) = (sent(&[from, os("first")]), sent(&[from, os("second"), os("--from"), os("first")]));
    // To a node that no daemon has open, and to one that has.
    let to = nodes[1].as_os_str();
    refused(&[to], &difference, &["the difference to a snapshot that is not here", "nothing was changed"]);
    refused(&[to], b"no stream", &["it ended too early"]);
    refused(&[to], &[b'x'; 4000], &["it is no stream of `hydrafs send`"]);
    let foreign = folder.node("foreign");
    refused(&[foreign.as_os_str()], &all, &["the stream is of dedup domain", "hydrafs domain export"]);
    let other_point = folder.make("m2");
    for is_mounted in [false, true] {
        let mounted = is_mounted.then(|| Mounted::start(&nodes[1], &other_point, &[]).expect("as before"));
        let name = if is_mounted { "mounted" } else { "first" };
        let into = [to, os("--name"), os(name)];
        let mut damaged = all.clone();
        damaged[all.len() * 3 / 4] ^= 1;
        refused(&into, &damaged, &["the stream was cut after", "no snapshot was made"]);
        let said = refused(&into, &all[..all.len() / 2], &["it ended too early", "--resume"]);
        let place = said.split("--resume ").nth(1).and_then(|rest| rest.split('`').next()).expect("a place");
        let rest = sent(&[from, os("first"), os("--resume"), os(place)]);
        assert!(rest.len() < all.len() * 2 / 3, "{} of {} bytes", rest.len(), all.len());
        let answer = received(&into, &rest);
        assert!(answer["chunks"].as_u64() > Some(0));
        if let Some(mounted) = mounted {
            expect_same(&point.join(".snapshots/first"), &other_point.join(".snapshots/first"));
            expect_same(&point.join(".snapshots/first"), &other_point.join(".snapshots/mounted"));
            // Of a directory: its root is there too.
            received(&[to], &sent(&[from, os("part")]));
            expect_same(&point.join(".snapshots/part"), &other_point.join(".snapshots/part"));
            let listed = succeed(&[os("snapshot"), os("list"), to]);
            assert!(listed.lines().any(|line| line.ends_with("part  of /a/b")), "{listed}");
            mounted.umount();
        }
    }
    assert!(succeed(&[os("fsck"), to]).contains("all is well"));
    let stopped = hydrafs(&[os("send"), from, os("none")]);
    assert!(String::from_utf8_lossy(&stopped.stderr).contains("there is no snapshot none"));
    one.umount();
}

/// What makes two nodes share a domain is a secret, and is nothing else.
#[test]
fn the_key_of_a_domain_is_kept_close() {
    let folder = Folder::new("key");
    let (one, key) = (folder.node("one"), folder.join("key"));
    export(&one, &key);
    let (two, disk) = (folder.join("two"), folder.join("disk"));
    let init = |of: &Path| {
        hydrafs(&[os("init"), two.as_os_str(), os("--disk"), disk.as_os_str(), os("--domain-of"), of.as_os_str()])
    };
    let refused = |of: &Path, words: &str| {
        let output = init(of);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains(words), "{said}");
        assert!(!two.exists() && !disk.exists(), "nothing was made");
    };
    let close = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
    refused(&folder.join("none"), "No such file");
    close(&key, 0o640);
    refused(&key, "others can read it");
    close(&key, 0o600);
    let mut bytes = fs::read(&key).expect("ours");
    bytes[20] ^= 1;
    let damaged = folder.join("damaged");
    fs::write(&damaged, &bytes).expect("room");
    close(&damaged, 0o600);
    refused(&damaged, "it is no whole file of a dedup domain");
    assert!(init(&key).status.success());
    let shown = |node: &Path| succeed(&[os("domain"), os("show"), node.as_os_str()]);
    assert_eq!(shown(&one), shown(&two));
    assert_ne!(shown(&one), shown(&folder.node("three")));
    // A file that others could read is closed to them before the key is in it.
    close(&key, 0o644);
    export(&one, &key);
}

/// Who reads, or writes, goes away or does not move: nobody waits for it for ever.
#[test]
fn an_end_that_goes_away_or_stands_still_holds_nobody_up() {
    let folder = Folder::new("still");
    let nodes = nodes(&folder);
    let point = folder.make("m");
    let Some(one) = Mounted::start(&nodes[0], &point, &[]) else { return };
    fill(&point);
    snapshot(&one.node, "s");
    let mut command = Command::new(env!("CARGO_BIN_EXE_hydrafs"));
    command.args([os("send"), one.node.as_os_str(), os("s")]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut start = |stderr| {
        let mut child = spawn(command.stderr(stderr)).expect("the program starts");
        let mut bytes = [0; 100];
        child.stdout.as_mut().expect("a pipe").read_exact(&mut bytes).expect("a head");
        child
    };
    // Who reads has gone.
    let mut child = start(Stdio::piped());
    drop(child.stdout.take());
    let said = String::from_utf8_lossy(&child.wait_with_output().expect("our child").stderr).into_owned();
    assert!(said.contains("who reads the stream has ended"), "{said}");
    // He stands still: the snapshot is held, and the daemon ends all the same.
    let mut child = start(Stdio::null());
    let held = hydrafs(&[os("snapshot"), os("delete"), one.node.as_os_str(), os("s")]);
    assert!(String::from_utf8_lossy(&held.stderr).contains("it is being sent"), "{held:?}");
    one.umount();
    child.kill().expect("our child");
    child.wait().expect("our child");
}
