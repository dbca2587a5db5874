//! Bad input: a message that says what, where, why and what to do; an exit code that is not 0; and nothing changed.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::process::{Command, Stdio};

use crate::support::{Folder, Mounted, Tmpfs, content, hydrafs, noise, spawn, succeed};

/// Runs a command line that must fail with all of these words, and change nothing in the folder.
#[track_caller]
fn refuse(folder: &Folder, arguments: &[&dyn AsRef<OsStr>], code: i32, words: &[&str]) {
    let before = content(&folder.0);
    let arguments: Vec<&OsStr> = arguments.iter().map(|argument| argument.as_ref()).collect();
    let output = hydrafs(&arguments);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
    assert!(message.starts_with("hydrafs: cannot "), "what was tried: {message}");
    for word in words {
        assert!(message.contains(word), "{arguments:?} should say {word:?}: {message}");
    }
    assert_eq!(output.stdout, b"", "{arguments:?}");
    let after = content(&folder.0);
    assert!(before == after, "{arguments:?} changed something: {:?}", changed(&before, &after));
}

fn changed<V: PartialEq>(
    before: &std::collections::BTreeMap<std::path::PathBuf, V>,
    after: &std::collections::BTreeMap<std::path::PathBuf, V>,
) -> Vec<std::path::PathBuf> {
    let names = before.keys().chain(after.keys());
    names.filter(|name| before.get(*name) != after.get(*name)).cloned().collect()
}

#[test]
fn a_folder_that_is_no_node() {
    let folder = Folder::new("none");
    let (nothing, empty, file) = (folder.join("nothing"), folder.make("empty"), folder.join("file"));
    fs::write(&file, "x").expect("room");
    for verb in ["status", "serve", "fsck", "gc", "scrub", "stop"] {
        let code = if verb == "fsck" { 2 } else { 1 };
        refuse(&folder, &[&verb, &nothing], code, &["cannot open the node: ", "no such folder", "hydrafs init"]);
        refuse(&folder, &[&verb, &empty], code, &["is no HydraFS node", "hydrafs init"]);
        refuse(&folder, &[&verb, &file], code, &["it is not a folder"]);
    }
    refuse(&folder, &[&"mount", &empty, &folder.make("m")], 1, &["is no HydraFS node"]);
    refuse(&folder, &[&"snapshot", &"list", &empty], 1, &["is no HydraFS node"]);
}

#[test]
fn shares_and_ages_that_are_none() {
    let folder = Folder::new("shares");
    let node = folder.node("n");
    for verb in ["gc", "scrub"] {
        for share in ["0", "101"] {
            refuse(&folder, &[&verb, &"--dry-run", &"--share", &share, &node], 1, &["1 to 100", "nothing was changed"]);
        }
    }
    refuse(&folder, &[&"scrub", &"--older-than", &"a week", &node], 1, &["a week", "expected a time such as"]);
}

#[test]
fn a_node_of_a_newer_format_and_a_broken_one() {
    let folder = Folder::new("newer");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let file = node.join("node");
    let text = fs::read_to_string(&file).expect("the node's file");
    fs::write(&file, text.replace("format = 1", "format = 7")).expect("room");
    refuse(&folder, &[&"mount", &node, &point], 1, &["n/node", "its format is 7", "use a newer hydrafs"]);
    fs::write(&file, "format = ").expect("room");
    refuse(&folder, &[&"mount", &node, &point], 1, &["cannot read the node's identity", "n/node"]);
}

#[test]
fn settings_that_are_not_known() {
    let folder = Folder::new("settings");
    let (node, point) = (folder.node("n"), folder.make("m"));
    fs::write(node.join("hydrafs.toml"), "[memory]\nbugdet = \"1 GiB\"\n").expect("room");
    let words = ["hydrafs.toml line 2", "unknown key \"memory.bugdet\"", "the keys of [memory] are budget"];
    refuse(&folder, &[&"mount", &node, &point], 1, &words);
    refuse(&folder, &[&"serve", &node], 1, &words);
    refuse(
        &folder,
        &[&"mount", &node, &point, &"-o", &"compress=9"],
        1,
        &["\"compress=9\" is not known", "leave it out"],
    );
}

#[test]
fn disks_that_are_missing_or_foreign() {
    let folder = Folder::new("disks");
    let (ours, other, point) = (folder.node("ours"), folder.node("other"), folder.make("m"));
    let aside = folder.join("aside");
    fs::rename(ours.join("disk"), &aside).expect("our own folder");
    refuse(&folder, &[&"mount", &ours, &point], 1, &["cannot open a disk", "ours/disk", "nothing was changed"]);

    // An empty directory in its place: the disk was not mounted.
    fs::create_dir(ours.join("disk")).expect("room");
    refuse(&folder, &[&"mount", &ours, &point], 1, &["cannot open the node", "ours/disk", "othing was changed"]);

    fs::remove_dir(ours.join("disk")).expect("it is empty");
    let swap = folder.join("swap");
    fs::rename(other.join("disk"), &swap).expect("our own folder");
    let text = fs::read_to_string(ours.join("node")).expect("the node's file");
    let both =
        text.replace("[\"disk\"]", &format!("[{:?}, {:?}]", aside.display().to_string(), swap.display().to_string()));
    assert_ne!(both, text);
    fs::write(ours.join("node"), both).expect("room");
    refuse(&folder, &[&"mount", &ours, &point], 1, &["cannot open the node", "othing was changed"]);
}

#[test]
fn places_that_cannot_be_mounted_on() {
    let folder = Folder::new("places");
    let node = folder.node("n");
    let (missing, full, file) = (folder.join("missing"), folder.make("full"), folder.join("file"));
    fs::write(full.join("x"), "x").expect("room");
    fs::write(&file, "x").expect("room");
    refuse(&folder, &[&"mount", &node, &missing], 1, &["no such directory", "mkdir"]);
    refuse(&folder, &[&"mount", &node, &full], 1, &["is not empty", "name an empty directory"]);
    refuse(&folder, &[&"mount", &node, &file], 1, &["is not a directory"]);
    refuse(&folder, &[&"mount", &node, &folder.0], 1, &["would be hidden"]);
    if let Some(other) = Tmpfs::mount(&folder.make("used"), 1 << 20) {
        refuse(
            &folder,
            &[&"mount", &node, &other.0],
            1,
            &["(tmpfs) is mounted there already", "name another directory"],
        );
        refuse(&folder, &[&"umount", &other.0], 1, &["mount of another file system", "findmnt"]);
    }
    refuse(&folder, &[&"umount", &full], 1, &["nothing is mounted there"]);
    refuse(&folder, &[&"info", &file], 1, &["not on HydraFS"]);
    refuse(&folder, &[&"sync", &file], 1, &["not on HydraFS"]);
    refuse(&folder, &[&"stop", &node], 1, &["no daemon runs", "hydrafs mount"]);
    refuse(&folder, &[&"stats", &node], 1, &["no daemon runs"]);
}

#[test]
fn nodes_that_cannot_be_made() {
    let folder = Folder::new("init");
    let node = folder.node("n");
    let (new, full, file) = (folder.join("new"), folder.make("full"), folder.join("file"));
    fs::write(full.join("x"), "x").expect("room");
    fs::write(&file, "x").expect("room");
    let (disk, inner) = (folder.join("disk"), folder.join("disk/inner"));
    refuse(&folder, &[&"init", &node, &"--disk", &disk], 1, &["it is a node already", "nothing was changed"]);
    refuse(&folder, &[&"init", &full, &"--disk", &disk], 1, &["full", "it is in use: it holds \"x\""]);
    refuse(&folder, &[&"init", &new, &"--disk", &full], 1, &["full", "it is in use: it holds \"x\""]);
    refuse(&folder, &[&"init", &new, &"--disk", &node.join("disk")], 1, &["it is in use"]);
    refuse(&folder, &[&"init", &new, &"--disk", &file], 1, &["it is not a directory"]);
    refuse(&folder, &[&"init", &file, &"--disk", &disk], 1, &["it is not a directory"]);
    refuse(&folder, &[&"init", &new, &"--disk", &disk, &"--disk", &disk], 1, &["this disk is named twice"]);
    refuse(&folder, &[&"init", &new, &"--disk", &disk, &"--disk", &inner], 1, &["one disk would lie in another"]);
    refuse(&folder, &[&"init", &inner, &"--disk", &disk], 1, &["the node's folder would lie in this disk"]);
}

#[test]
fn disks_that_are_full_or_read_only() {
    let folder = Folder::new("full");
    let node = folder.join("n");
    let Some(disk) = Tmpfs::mount(&folder.make("disk"), 256 << 10) else {
        return skipped::because("a tmpfs cannot be mounted here");
    };
    refuse(&folder, &[&"init", &node, &"--disk", &disk.0], 1, &["cannot make the node", "room"]);
    disk.make_read_only();
    refuse(&folder, &[&"init", &node, &"--disk", &disk.0], 1, &["cannot make the node", "ead-only"]);
    drop(disk);

    // A node whose disk is full has no room for what was written meanwhile: who ends it hears that while it can be helped.
    let disk = Tmpfs::mount(&folder.join("disk"), 256 << 20).expect("it worked before");
    succeed(&[OsStr::new("init"), node.as_os_str(), OsStr::new("--disk"), disk.0.as_os_str()]);
    let point = folder.make("m");
    let settings = [("HYDRAFS_DURABILITY_FLUSH_INTERVAL", "1 h"), ("HYDRAFS_MEMORY_BUDGET", "1 GiB")];
    if let Some(mounted) = Mounted::start(&node, &point, &settings) {
        let bytes = noise(5, 4_000_000);
        fs::write(point.join("f"), &bytes).expect("accepted");
        let filler = disk.0.join("filler");
        let room = rustix::fs::statvfs(&disk.0).expect("it is mounted");
        // Less than the eighth that content does not get is left.
        fs::write(&filler, vec![1; (room.f_bavail * room.f_frsize) as usize - (20 << 20)]).expect("room");
        let refused = hydrafs(&[OsStr::new("umount"), point.as_os_str()]);
        let message = String::from_utf8_lossy(&refused.stderr).into_owned();
        let is_told = message.contains("no room for what was accepted") && message.contains("--lazy");
        assert!(refused.status.code() == Some(1) && is_told, "{message}");
        assert!(fs::read(point.join("f")).expect("it goes on") == bytes);
        fs::remove_file(&filler).expect("ours");
        mounted.umount();
        let mounted = Mounted::start(&node, &point, &[]).expect("as before");
        assert!(fs::read(point.join("f")).expect("it is there") == bytes);
        mounted.umount();
    }
    fs::remove_dir_all(&node).expect("ours");
    drop(disk);

    // A node whose disk turned read-only.
    let disk = Tmpfs::mount(&folder.join("disk"), 512 << 20).expect("it worked before");
    succeed(&[OsStr::new("init"), node.as_os_str(), OsStr::new("--disk"), disk.0.as_os_str()]);
    disk.make_read_only();
    refuse(&folder, &[&"mount", &node, &folder.make("m")], 1, &["ead-only", "for writing"]);
}

#[test]
fn snapshots_without_a_daemon() {
    let folder = Folder::new("snapshots");
    let node = folder.node("n");
    let snapshot = |verb: &str, name: &str| {
        succeed(&[OsStr::new("snapshot"), OsStr::new(verb), node.as_os_str(), OsStr::new(name)])
    };
    assert!(snapshot("create", "monday").contains("took the snapshot monday"));
    let list = succeed(&[OsStr::new("snapshot"), OsStr::new("list"), OsStr::new("--json"), node.as_os_str()]);
    let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
    assert_eq!(list["snapshots"][0]["name"], "monday");
    refuse_in(&[&"snapshot", &"create", &node, &"monday"], &["there is a snapshot of this name"]);
    refuse_in(&[&"snapshot", &"create", &node, &"a/b"], &["cannot take the snapshot: a/b", "slash"]);
    refuse_in(&[&"snapshot", &"delete", &node, &"friday"], &["there is no snapshot of this name", "snapshot list"]);
    snapshot("delete", "monday");
    assert_eq!(succeed(&[OsStr::new("snapshot"), OsStr::new("list"), node.as_os_str()]), "");
}

/// As [`refuse`], for commands that open the node, which writes its journal anew.
#[track_caller]
fn refuse_in(arguments: &[&dyn AsRef<OsStr>], words: &[&str]) {
    let arguments: Vec<&OsStr> = arguments.iter().map(|argument| argument.as_ref()).collect();
    let output = hydrafs(&arguments);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    words.iter().for_each(|word| assert!(message.contains(word), "{message}"));
}

/// What a command does it does to its end, whoever hears of it; and who could not hear of it is told by the exit code.
#[test]
fn what_cannot_be_told_is_done_all_the_same() {
    let folder = Folder::new("untold");
    let full = || File::options().write(true).open("/dev/full").expect("Linux has it");
    let closed = || {
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        writer
    };
    for (name, outputs) in [("a", [Stdio::from(full()), full().into()]), ("b", [closed().into(), closed().into()])] {
        let (node, disk) = (folder.join(name), folder.join(format!("disk of {name}")));
        let commands = [
            vec![OsStr::new("init"), node.as_os_str(), OsStr::new("--disk"), disk.as_os_str()],
            vec![OsStr::new("status"), node.as_os_str()],
        ];
        for (arguments, output) in commands.iter().zip(outputs) {
            let mut command = Command::new(env!("CARGO_BIN_EXE_hydrafs"));
            let ended = spawn(command.args(arguments).stdout(output).stderr(Stdio::piped())).expect("it starts");
            let ended = ended.wait_with_output().expect("our child");
            let said = String::from_utf8_lossy(&ended.stderr).into_owned();
            assert_eq!(ended.status.code(), Some(i32::from(name == "a")), "{arguments:?}: {said}");
            assert_eq!(said.contains("cannot write to standard output"), name == "a", "{said}");
        }
        assert!(succeed(&[OsStr::new("fsck"), node.as_os_str()]).contains("all is well"));
    }
}

#[test]
fn help_has_examples_and_completions_are_scripts() {
    let verbs = [
        "init",
        "mount",
        "serve",
        "umount",
        "stop",
        "status",
        "stats",
        "info",
        "sync",
        "fsck",
        "snapshot",
        "cp",
        "doctor",
        "completion",
    ];
    for verb in verbs {
        let help = succeed(&[verb, "--help"]);
        assert!(help.contains("Examples:") && help.contains("hydrafs "), "{verb}: {help}");
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(succeed(&["completion", shell]).contains("snapshot"), "{shell}");
    }
    let checks: serde_json::Value = serde_json::from_slice(&hydrafs(&["doctor", "--json"]).stdout).expect("JSON");
    assert!(checks["checks"].as_array().expect("a list").len() >= 7);
}
