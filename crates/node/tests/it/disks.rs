//! `hydrafs disk`: disks come, go, fail and are replaced while programs use the mount.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::Value;

use crate::support::{Folder, Mounted, hydrafs, succeed, within};

/// Bytes that are told apart by `seed`, and that no compressor shrinks.
fn bytes(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..25_000).flat_map(|_| next()).collect()
}

/// Writes file after file, each synced, until it is told to end.
struct Writer {
    thread: std::thread::JoinHandle<()>,
    is_over: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
}

impl Writer {
    fn start(point: &Path) -> Writer {
        Writer::start_at(point, 0)
    }

    fn start_at(point: &Path, first: u64) -> Writer {
        let (is_over, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(first)));
        let (point, ends, counts) = (point.to_owned(), is_over.clone(), count.clone());
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::SeqCst) {
                let number = counts.load(Ordering::SeqCst);
                let mut file = File::create(point.join(format!("f{number}"))).expect("it goes on");
                file.write_all(&bytes(number)).expect("it goes on");
                file.sync_all().expect("it goes on");
                counts.store(number + 1, Ordering::SeqCst);
            }
        });
        Writer { thread, is_over, count }
    }

    /// Returns when so many more were written.
    fn go_on(&self, more: u64) {
        let upto = self.count.load(Ordering::SeqCst) + more;
        while self.count.load(Ordering::SeqCst) < upto && !self.thread.is_finished() {
            std::thread::yield_now();
        }
    }

    /// Files that were written.
    fn end(self) -> u64 {
        self.is_over.store(true, Ordering::SeqCst);
        self.thread.join().expect("no write failed");
        self.count.load(Ordering::SeqCst)
    }
}

fn expect_files(point: &Path, count: u64) {
    for number in 0..count {
        let read = fs::read(point.join(format!("f{number}"))).unwrap_or_else(|error| panic!("f{number}: {error}"));
        assert!(read == bytes(number), "f{number}");
    }
}

fn init(folder: &Folder, disks: &[&PathBuf]) -> PathBuf {
    let node = folder.join("n");
    let mut init = vec![OsStr::new("init"), node.as_os_str()];
    disks.iter().for_each(|disk| init.extend([OsStr::new("--disk"), disk.as_os_str()]));
    succeed(&init);
    node
}

fn disk(arguments: &[&OsStr]) -> String {
    succeed(&[&[OsStr::new("disk")], arguments].concat())
}

#[track_caller]
fn refused(arguments: &[&OsStr], words: &str) {
    let output = hydrafs(&[&[OsStr::new("disk")], arguments].concat());
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && message.contains(words), "{message}");
}

fn list(node: &Path) -> Vec<Value> {
    let listed = disk(&[OsStr::new("list"), OsStr::new("--json"), node.as_os_str()]);
    serde_json::from_str(&listed).expect("JSON")
}

/// A folder that is no disk any more, or not yet.
fn is_empty(disk: &Path) -> bool {
    let names = fs::read_dir(disk).expect("it is there").map(|entry| entry.expect("readable").file_name());
    let packs = fs::read_dir(disk.join("packs")).map_or(0, Iterator::count);
    packs == 0 && !names.into_iter().any(|name| name == "disk" || name == "superblock")
}

#[test]
fn what_a_request_takes_is_measured_on_request() {
    const FILES: u64 = 200;
    let folder = Folder::new("speeds");
    let (node, point) = (init(&folder, &[&folder.join("a")]), folder.make("m"));
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let measure = || {
        let output = hydrafs(&[OsStr::new("disk"), OsStr::new("measure"), OsStr::new("--json"), node.as_os_str()]);
        assert!(output.status.success(), "{output:?}");
        let disks: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
        (disks[0]["speed"].clone(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (speed, said) = measure();
    assert!(speed.is_null() && said.contains("too little"), "{speed}, {said}");
    for number in 0..FILES {
        fs::write(point.join(format!("f{number}")), bytes(number)).expect("there is room");
    }
    // Then packs are whole, and in no memory but where direct I/O is not to be had.
    mounted.umount();
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let (speed, said) = measure();
    let text = disk(&[OsStr::new("list"), node.as_os_str()]);
    if speed.is_null() {
        assert!(said.contains("not in memory") && !text.contains("a small read takes"), "{said}, {text}");
    } else {
        let number = |name: &str| speed[name].as_f64().unwrap_or_default();
        assert!(number("alone_seconds") > 0.0 && number("request_seconds") > 0.0, "{speed}");
        assert!((1.0..=32.0).contains(&number("depth")) && number("bytes_per_second") > 1e6, "{speed}");
        assert!((32768.0..=1048576.0).contains(&number("gap_bytes")), "{speed}");
        assert!(said.is_empty() && text.contains("a small read takes"), "{said}, {text}");
    }
    expect_files(&point, FILES);
    mounted.umount();
}

#[test]
fn disks_come_and_go_under_programs() {
    let folder = Folder::new("disks");
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| folder.join(name));
    let (node, point) = (init(&folder, &[&a, &b]), folder.make("m"));
    let Some(mut mounted) = Mounted::start(&node, &point, &[]) else { return };
    let path = node.as_os_str();
    let writer = Writer::start(&point);
    writer.go_on(20);
    assert!(disk(&[OsStr::new("add"), path, c.as_os_str()]).contains("added disk 2"));
    refused(&[OsStr::new("add"), path, c.as_os_str()], "it is a disk of a node already");
    refused(&[OsStr::new("add"), path, folder.0.as_os_str()], "the node's folder would lie in this disk");
    writer.go_on(20);
    let plan = disk(&[OsStr::new("drain"), OsStr::new("--dry-run"), path, OsStr::new("0")]);
    assert!(plan.starts_with("would bring ") && plan.contains("lie on disk 0"), "{plan}");
    refused(&[OsStr::new("remove"), path, a.as_os_str()], "it takes part in everything");
    refused(&[OsStr::new("drain"), path, OsStr::new("7")], "the node has none of this number or path");
    assert!(disk(&[OsStr::new("drain"), path, a.as_os_str()]).contains("disk 0 is empty"));
    let listed = list(&node);
    assert_eq!((&listed[0]["drained"], &listed[0]["packs"]), (&Value::Bool(true), &Value::from(0)), "{listed:?}");
    assert!(listed[2]["packs"].as_u64() > Some(0), "{listed:?}");
    assert!(disk(&[OsStr::new("remove"), path, a.as_os_str()]).contains("removed disk 0"));
    assert!(is_empty(&a), "{:?}", crate::support::content(&a).keys());
    let said = disk(&[OsStr::new("replace"), path, b.as_os_str(), d.as_os_str()]);
    assert!(said.contains("added disk 3") && said.contains("removed disk 1") && is_empty(&b), "{said}");
    writer.go_on(20);
    let count = writer.end();
    expect_files(&point, count);
    mounted.restart();
    expect_files(&point, count);
    let listed = list(&node);
    let numbers: Vec<u64> = listed.iter().filter_map(|disk| disk["number"].as_u64()).collect();
    assert_eq!(numbers, [2, 3]);
    refused(&[OsStr::new("remove"), path, d.as_os_str()], "it takes part in everything");
    mounted.umount();
    assert!(succeed(&[OsStr::new("fsck"), OsStr::new("--deep"), path]).contains("all is well"));
    // What was removed can be added again, and without a daemon too.
    assert!(disk(&[OsStr::new("add"), path, a.as_os_str()]).contains("added disk 0"));
    assert!(disk(&[OsStr::new("replace"), path, c.as_os_str(), b.as_os_str()]).contains("removed disk 2"));
    assert!(succeed(&[OsStr::new("fsck"), OsStr::new("--deep"), path]).contains("all is well"));
    let mounted = Mounted::start(&node, &point, &[]).expect("as before");
    expect_files(&point, count);
    mounted.umount();
}

/// A restart that fails takes the node back with the disks of now, and one that could not is refused before anybody waits.
#[test]
fn a_restart_goes_on_with_the_disks_that_the_node_has_by_now() {
    let folder = Folder::new("disks-restart");
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| folder.join(name));
    let (node, point) = (init(&folder, &[&a, &b]), folder.make("m"));
    fs::write(node.join("hydrafs.toml"), "[storage]\ncopies = 2\n").expect("room");
    let Some(mut mounted) = Mounted::start(&node, &point, &[]) else { return };
    let path = node.as_os_str();
    let write = |count: u64| {
        let writer = Writer::start_at(&point, count);
        writer.go_on(10);
        writer.end()
    };
    let fails = |words: &[&str]| {
        let output = hydrafs(&[OsStr::new("restart"), OsStr::new("--binary"), OsStr::new("/bin/false"), path]);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_told =
            words.iter().all(|word| message.contains(word)) && message.contains("the daemon goes on as before");
        assert!(output.status.code() == Some(1) && is_told, "{message}");
    };
    let count = write(0);
    disk(&[OsStr::new("add"), path, c.as_os_str()]);
    fails(&["/bin/false"]);
    expect_files(&point, count);
    disk(&[OsStr::new("replace"), path, b.as_os_str(), d.as_os_str()]);
    fs::remove_dir_all(&b).expect("ours");
    fails(&["/bin/false"]);
    let count = write(count);
    mounted.restart();
    expect_files(&point, count);
    // One is not where it was: nobody could open the node again, as it is open now.
    let away = folder.join("away");
    fs::rename(&d, &away).expect("ours");
    fails(&["cannot open a disk of the node", "No such file"]);
    fs::create_dir(&d).expect("room");
    fails(&["it has no file `disk`"]);
    fs::remove_dir(&d).expect("empty");
    let count = write(count);
    fs::rename(&away, &d).expect("ours");
    mounted.restart();
    expect_files(&point, count);
    mounted.umount();
    assert!(succeed(&[OsStr::new("fsck"), OsStr::new("--deep"), path]).contains("all is well"));
}

/// What a person asks more for survives what costs the rest.
#[test]
fn a_directory_with_more_copies_survives_the_loss_of_any_disk() {
    let folder = Folder::new("policy");
    let disks = ["a", "b", "c"].map(|name| folder.join(name));
    let (node, point) = (init(&folder, &[&disks[0], &disks[1], &disks[2]]), folder.make("m"));
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let (safe, scratch) = (point.join("safe"), point.join("scratch"));
    for directory in [safe.join("old"), scratch.clone()] {
        fs::create_dir_all(directory).expect("room");
    }
    let file = |directory: &Path, number: u64| directory.join(format!("f{number}"));
    (0..30).for_each(|number| fs::write(file(&safe.join("old"), number), bytes(number)).expect("room"));
    (100..130).for_each(|number| fs::write(file(&scratch, number), bytes(number)).expect("room"));
    succeed(&["sync", point.to_str().expect("ours")]);
    let policy = |arguments: &[&str], path: &Path| {
        let arguments = [&["policy"], arguments].concat();
        let words: Vec<&OsStr> = arguments.into_iter().map(OsStr::new).chain([path.as_os_str()]).collect();
        hydrafs(&words)
    };
    let said = policy(&["set", "--copies", "4", "--recursive"], &safe);
    let message = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.code() == Some(1) && message.contains("3 disks take something"), "{message}");
    let outside = policy(&["set", "--copies", "2"], &folder.0);
    let told = String::from_utf8_lossy(&outside.stderr);
    assert!(outside.status.code() == Some(1) && told.contains("not on HydraFS"), "outside of any mount: {told}");
    assert_eq!(policy(&["set", "--copies", "9"], &safe).status.code(), Some(2), "not a number of copies");
    let said = policy(&["set", "--copies", "2", "--recursive"], &safe);
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.status.success() && text.starts_with("set for 32 files and directories; "), "{text}");
    // What is made there inherits, also in a new directory.
    fs::create_dir(safe.join("new")).expect("room");
    (30..60).for_each(|number| fs::write(file(&safe.join("new"), number), bytes(number)).expect("room"));
    // The same content as in the other directory, and a part of it that is shared.
    fs::write(file(&safe.join("new"), 100), bytes(100)).expect("room");
    fs::copy(file(&scratch, 101), file(&safe.join("new"), 101)).expect("room");
    let shown = policy(&["get"], &file(&safe.join("new"), 30));
    assert_eq!(String::from_utf8_lossy(&shown.stdout), "2 copies\n");
    let shown = policy(&["get", "--json"], &file(&scratch, 100));
    assert!(String::from_utf8_lossy(&shown.stdout).contains("null"));
    succeed(&["sync", point.to_str().expect("ours")]);
    // Trees follow in the background.
    let asked = node.clone();
    within("the mender has done its work", move || {
        let lacking = || {
            let status = succeed(&[OsStr::new("status"), OsStr::new("--json"), asked.as_os_str()]);
            serde_json::from_str::<Value>(&status).expect("JSON")["lacking"] != Value::Null
        };
        while lacking() {}
    });
    // With one disk left there would be one copy.
    let path = node.as_os_str();
    assert!(disk(&[OsStr::new("drain"), path, OsStr::new("0")]).contains("disk 0 is empty"));
    refused(&[OsStr::new("drain"), path, OsStr::new("1")], "is to be on 2 disks, and 1 would be left");
    let plan = disk(&[OsStr::new("drain"), OsStr::new("--dry-run"), path, OsStr::new("1")]);
    assert!(plan.contains("is to be on 2 disks, and 1 would be left"), "{plan}");
    disk(&[OsStr::new("drain"), OsStr::new("--stop"), path, OsStr::new("0")]);
    mounted.umount();
    let mut lost_of_scratch = 0;
    for disk in &disks {
        let gone = folder.join("gone");
        fs::rename(disk, &gone).expect("ours");
        succeed(&[OsStr::new("mount"), OsStr::new("--degraded"), node.as_os_str(), point.as_os_str()]);
        let mounted = Mounted::running(&node, &point);
        let read = |directory: &Path, number: u64| {
            fs::read(file(directory, number)).ok().filter(|read| *read == bytes(number))
        };
        for number in 0..30 {
            assert!(read(&safe.join("old"), number).is_some(), "{number} without {}", disk.display());
        }
        for number in (30..60).chain([100, 101]) {
            assert!(read(&safe.join("new"), number).is_some(), "{number} without {}", disk.display());
        }
        lost_of_scratch += (102..130).filter(|number| read(&scratch, *number).is_none()).count();
        mounted.umount();
        fs::rename(&gone, disk).expect("ours");
    }
    assert!(lost_of_scratch > 0, "what lies on one disk goes with it");
    assert!(succeed(&[OsStr::new("fsck"), OsStr::new("--deep"), node.as_os_str()]).contains("all is well"));
}

/// Everything in the folder of a disk goes, under load; then the daemon dies, and the disk is replaced.
#[test]
fn with_two_copies_a_disk_that_is_wiped_under_programs_costs_nothing() {
    let folder = Folder::new("copies");
    let disks = ["a", "b", "c"].map(|name| folder.join(name));
    let (node, point, new) = (init(&folder, &[&disks[0], &disks[1], &disks[2]]), folder.make("m"), folder.join("d"));
    let toml = node.join("hydrafs.toml");
    fs::write(&toml, "[storage]\ncopies = 2\n").expect("room");
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let writer = Writer::start(&point);
    writer.go_on(40);
    for entry in fs::read_dir(&disks[0]).expect("a disk").flatten().map(|entry| entry.path()) {
        if entry.is_dir() { fs::remove_dir_all(entry) } else { fs::remove_file(entry) }.expect("ours");
    }
    writer.go_on(40);
    let count = writer.end();
    expect_files(&point, count);
    mounted.kill();
    let path = node.as_os_str();
    let plain = hydrafs(&[OsStr::new("mount"), path, point.as_os_str()]);
    assert!(String::from_utf8_lossy(&plain.stderr).contains("`--degraded`"));
    succeed(&[OsStr::new("mount"), OsStr::new("--degraded"), path, point.as_os_str()]);
    let mut mounted = Mounted::running(&node, &point);
    expect_files(&point, count);
    assert_eq!(list(&node)[0]["missing"], Value::Bool(true));
    refused(
        &[OsStr::new("replace"), path, OsStr::new("0"), new.as_os_str()],
        "nobody can tell any more what is on it alone",
    );
    // The old one goes for none that cannot be added.
    let full = folder.make("full");
    fs::write(full.join("something"), "x").expect("room");
    let for_full = [OsStr::new("replace"), OsStr::new("--accept-loss"), path, OsStr::new("0"), full.as_os_str()];
    refused(&for_full, "has something in it");
    assert_eq!(list(&node)[0]["missing"], Value::Bool(true));
    // The index was there too.
    let said = disk(&[OsStr::new("replace"), OsStr::new("--accept-loss"), path, OsStr::new("0"), new.as_os_str()]);
    assert!(said.contains("removed disk 0") && said.contains("added disk "), "{said}");
    refused(&[OsStr::new("replace"), path, OsStr::new("77"), new.as_os_str()], "puts the new one in");
    // What the background does soon anyway.
    let repaired = hydrafs(&[OsStr::new("fsck"), OsStr::new("--deep"), OsStr::new("--repair"), path]);
    let report = String::from_utf8_lossy(&repaired.stdout).into_owned();
    assert!(repaired.status.success() && report.contains("all is well"), "{report}");
    mounted.restart();
    expect_files(&point, count);
    // Any other disk may go now.
    let lost = folder.join("lost");
    mounted.umount();
    fs::rename(&disks[1], &lost).expect("ours");
    succeed(&[OsStr::new("mount"), OsStr::new("--degraded"), path, point.as_os_str()]);
    let mounted = Mounted::running(&node, &point);
    expect_files(&point, count);
    mounted.umount();
}

/// Everything in the folder of a disk goes, also what comes while it goes.
#[test]
fn no_disk_gives_way_to_itself_or_to_one_that_is_counted_on() {
    let folder = Folder::new("replace");
    let [a, b, c] = ["a", "b", "c"].map(|name| folder.join(name));
    let (node, point) = (init(&folder, &[&a, &b]), folder.make("m"));
    fs::write(node.join("hydrafs.toml"), "[storage]\ncopies = 2\n").expect("room");
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    fs::write(point.join("f"), bytes(1)).expect("room");
    let path = node.as_os_str();
    let expect_refusals = || {
        refused(&[OsStr::new("replace"), path, OsStr::new("0"), a.as_os_str()], "it would take its own place");
        refused(&[OsStr::new("replace"), path, OsStr::new("0"), b.as_os_str()], "1 would be left");
        let inside = a.join("inside");
        refused(&[OsStr::new("add"), path, inside.as_os_str()], "one disk would lie in another");
        assert!(!inside.exists() && list(&node).len() == 2);
    };
    expect_refusals();
    mounted.umount();
    expect_refusals();
    // A link in place of the file that is written aside leads nowhere.
    let third = folder.join("third");
    fs::write(&third, "of a third").expect("room");
    std::os::unix::fs::symlink(&third, node.join("node.new")).expect("room");
    // One that was interrupted goes on.
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(node.join("node"), Some(1000), Some(1000)).expect("root");
    }
    let before = fs::metadata(node.join("node")).expect("there").uid();
    assert!(disk(&[OsStr::new("add"), path, c.as_os_str()]).contains("added disk 2"));
    assert_eq!(fs::metadata(node.join("node")).expect("there").uid(), before, "whose it was");
    assert!(disk(&[OsStr::new("replace"), path, OsStr::new("0"), c.as_os_str()]).contains("removed disk 0"));
    assert_eq!(fs::read(&third).expect("there"), b"of a third");
    let mounted = Mounted::start(&node, &point, &[]).expect("as before");
    assert_eq!(fs::read(point.join("f")).expect("there"), bytes(1));
    mounted.umount();
    assert!(succeed(&[OsStr::new("fsck"), OsStr::new("--deep"), path]).contains("all is well"));
}

fn wipe(disk: &Path) {
    loop {
        let entries: Vec<PathBuf> = fs::read_dir(disk).expect("a disk").flatten().map(|entry| entry.path()).collect();
        if entries.is_empty() {
            return;
        }
        for entry in entries {
            let _ = if entry.is_dir() { fs::remove_dir_all(entry) } else { fs::remove_file(entry) };
        }
    }
}

/// When the mender has cut what is sealed, or begun to.
fn wait_for_fragments(node: &Path) {
    let node = node.to_owned();
    within("fragments are made", move || {
        loop {
            let status = succeed(&[OsStr::new("status"), OsStr::new("--json"), node.as_os_str()]);
            let status: Value = serde_json::from_str(&status).expect("JSON");
            if status["fragments"]["packs"].as_u64().expect("a number") > 0 {
                return;
            }
        }
    });
}

/// Two of six disks are wiped under a writer; the node goes on, is opened without them, gets others, and has all.
#[test]
fn with_fragments_two_of_six_disks_that_are_wiped_cost_nothing() {
    for wiped in [[0, 1], [2, 5]] {
        let folder = Folder::new("fragments");
        let disks = ["a", "b", "c", "d", "e", "f"].map(|name| folder.join(name));
        let named: Vec<&PathBuf> = disks.iter().collect();
        let (node, point) = (init(&folder, &named), folder.make("m"));
        fs::write(node.join("hydrafs.toml"), "[storage]\nfragments = \"4+2\"\n").expect("room");
        let Some(mut mounted) = Mounted::start(&node, &point, &[]) else { return };
        let path = node.as_os_str();
        let writer = Writer::start(&point);
        writer.go_on(60);
        let old = writer.end();
        // What is closed is sealed, and what is sealed is cut.
        mounted.restart();
        wait_for_fragments(&node);
        let writer = Writer::start_at(&point, old);
        writer.go_on(20);
        wiped.iter().for_each(|number| wipe(&disks[*number]));
        writer.go_on(20);
        let count = writer.end();
        expect_files(&point, count);
        mounted.kill();
        succeed(&[OsStr::new("mount"), OsStr::new("--degraded"), path, point.as_os_str()]);
        let mounted = Mounted::running(&node, &point);
        expect_files(&point, count);
        for number in wiped.map(|disk| disk.to_string()) {
            // The index was on the first.
            let said = disk(&[OsStr::new("remove"), OsStr::new("--accept-loss"), path, OsStr::new(&number)]);
            assert!(said.contains(&format!("removed disk {number}")), "{said}");
        }
        for new in ["g", "h"] {
            assert!(disk(&[OsStr::new("add"), path, folder.join(new).as_os_str()]).contains("added disk "));
        }
        let repaired = hydrafs(&[OsStr::new("fsck"), OsStr::new("--deep"), OsStr::new("--repair"), path]);
        let report = String::from_utf8_lossy(&repaired.stdout).into_owned();
        assert!(repaired.status.success() && report.contains("all is well"), "{report}");
        expect_files(&point, count);
        mounted.umount();
        // The node has all its disks, and is asked for no other: nobody could tell which of the two that are gone lay where.
        let mounted = Mounted::start(&node, &point, &[]).expect("it was mounted before");
        expect_files(&point, count);
        mounted.umount();
        // Any two others may go now.
        for gone in [&disks[3], &disks[4]] {
            fs::rename(gone, folder.join(format!("lost-{}", gone.file_name().expect("a name").display())))
                .expect("ours");
        }
        succeed(&[OsStr::new("mount"), OsStr::new("--degraded"), path, point.as_os_str()]);
        let mounted = Mounted::running(&node, &point);
        expect_files(&point, count);
        mounted.umount();
    }
}

#[test]
fn fragments_are_asked_for_by_directory_and_refused_where_disks_are_too_few() {
    let folder = Folder::new("fragment-policy");
    let disks = ["a", "b", "c"].map(|name| folder.join(name));
    let (node, point) = (init(&folder, &[&disks[0], &disks[1], &disks[2]]), folder.make("m"));
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let safe = point.join("safe");
    fs::create_dir(&safe).expect("room");
    let policy = |arguments: &[&str]| {
        let arguments = arguments.iter().map(OsStr::new).chain([safe.as_os_str()]);
        hydrafs(&[OsStr::new("policy")].into_iter().chain(arguments).collect::<Vec<_>>())
    };
    let told = |output: &std::process::Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let few = policy(&["set", "--fragments", "4+2"]);
    assert!(
        !few.status.success() && told(&few).contains("6 disks are needed, and 3 disks take something"),
        "{}",
        told(&few)
    );
    let both = policy(&["set", "--fragments", "2+1", "--copies", "2"]);
    assert!(!both.status.success() && told(&both).contains("cannot be used with"), "{}", told(&both));
    let wrong = policy(&["set", "--fragments", "2"]);
    assert!(!wrong.status.success() && told(&wrong).contains("expected k+m such as 4+2"), "{}", told(&wrong));
    assert!(policy(&["set", "--fragments", "2+1"]).status.success());
    fs::write(safe.join("f"), bytes(1)).expect("room");
    for of in [safe.clone(), safe.join("f")] {
        assert!(succeed(&[OsStr::new("policy"), OsStr::new("get"), of.as_os_str()]).contains("2+1 fragments"));
    }
    mounted.umount();
}
