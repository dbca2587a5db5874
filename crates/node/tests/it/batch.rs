//! Batches: many files by one request, into mounts and out of them.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::copy::{fill, likeness};
use crate::mount::SMALL;
use crate::support::{Folder, Mounted, Tmpfs, hydrafs, noise, run, succeed};

fn cp(arguments: &[&dyn AsRef<OsStr>]) -> Output {
    let arguments: Vec<&OsStr> = [OsStr::new("cp")].into_iter().chain(arguments.iter().map(|a| a.as_ref())).collect();
    hydrafs(&arguments)
}

/// Copies, and gives what the command says of it.
#[track_caller]
fn copied(arguments: &[&dyn AsRef<OsStr>]) -> serde_json::Value {
    let output = cp(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

pub(crate) fn expect_whole(mounted: &Mounted) {
    let report = succeed(&[OsStr::new("fsck"), OsStr::new("--deep"), mounted.node.as_os_str()]);
    assert!(report.contains("all is well"), "{report}");
}

pub(crate) fn many(top: &Path, count: usize) {
    for directory in 0..count / 50 {
        let directory = top.join(format!("d{directory}"));
        fs::create_dir_all(&directory).expect("room");
        for number in 0..50 {
            fs::write(directory.join(format!("f{number}")), format!("{} {number}", directory.display())).expect("room");
        }
    }
}

#[test]
fn a_tree_goes_into_a_mount_by_batches_and_the_kernel_sees_it() {
    let folder = Folder::new("batch-into");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let from = folder.join("from");
    fill(&from);
    many(&from.join("many"), 1000);
    let Some(mut mounted) = Mounted::start(&node, &point, &[]) else { return };
    let to = point.join("to");
    // The kernel knows that there is no such name, and a listing without it.
    assert!(fs::metadata(&to).is_err());
    assert_eq!(fs::read_dir(&point).expect("mounted").count(), 0);
    let answer = copied(&[&"-a", &"--json", &from, &to]);
    assert_eq!(answer["failures"], 0);
    assert!(answer["units"].as_u64() >= Some(1) && answer["one_by_one"].is_null(), "{answer}");
    assert_eq!(fs::read_dir(&point).expect("mounted").count(), 1);
    assert_eq!(likeness(&from), likeness(&to));
    let answer = copied(&[&"-a", &"--json", &"--no-batch", &from.join("many/d1"), &point.join("one-by-one")]);
    assert_eq!(answer["units"], 0);
    fs::remove_dir_all(point.join("one-by-one")).expect("there");

    // Into what is there: a name that was absent, one that is replaced while the kernel has its pages.
    assert!(fs::metadata(to.join("many/d0/new")).is_err());
    assert_eq!(fs::read(to.join("many/d0/f1")).expect("there"), fs::read(from.join("many/d0/f1")).expect("there"));
    fs::write(from.join("many/d0/new"), "new").expect("room");
    fs::write(from.join("many/d0/f1"), "other content").expect("room");
    let answer = copied(&[&"-a", &"--json", &"--resume", &from.join("many"), &to]);
    assert_eq!(answer["skipped"], 999);
    assert_eq!(fs::read(to.join("many/d0/new")).expect("copied"), b"new");
    assert_eq!(fs::read(to.join("many/d0/f1")).expect("copied"), b"other content");
    assert_eq!(likeness(&from), likeness(&to));

    // It is durable.
    mounted.kill();
    mounted.mend();
    assert_eq!(likeness(&from), likeness(&to));
    expect_whole(&mounted);
    mounted.umount();
}

#[test]
fn all_or_nothing_and_each_failure_has_its_name() {
    let folder = Folder::new("batch-fails");
    let (node, point, from) = (folder.node("n"), folder.make("m"), folder.join("from"));
    fill(&from);
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    // A directory is in the way of one file.
    fs::create_dir_all(point.join("to/file")).expect("room");
    let output = cp(&[&"-a", &"--json", &from.join("file"), &from.join("sub"), &point.join("to")]);
    let said = String::from_utf8_lossy(&output.stderr);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((output.status.code(), answer["failures"].as_u64()), (Some(1), Some(1)), "{said}");
    assert!(answer["failed"][0]["path"].as_str().expect("a path").ends_with("from/file"), "{answer}");
    assert!(answer["failed"][0]["why"].as_str().expect("why").contains("directory"), "{answer}");
    assert!(said.contains("from/file; ") && said.contains("not everything was copied"), "{said}");
    assert_eq!(fs::read(point.join("to/sub/deep/again")).expect("copied").len(), 100_000);

    // All or nothing.
    let names = || fs::read_dir(&point).expect("mounted").count();
    let output = cp(&[&"-a", &"--atomic", &from, &point.join("to/sub")]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(likeness(&from), likeness(&point.join("to/sub/from")));
    let again = cp(&[&"-a", &"--atomic", &from, &point.join("to/sub")]);
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(again.status.code() == Some(1) && said.contains("something is there"), "{said}");
    let long = from.join("sub").join("n".repeat(250));
    fs::write(&long, "content").expect("room");
    copied(&[&"-a", &"--atomic", &"--json", &from, &point.join("whole")]);
    assert_eq!((likeness(&from), names()), (likeness(&point.join("whole")), 2));
    mounted.umount();
}

#[test]
fn a_tree_comes_out_of_a_mount_by_batches() {
    let folder = Folder::new("batch-out");
    let (node, point, from) = (folder.node("n"), folder.make("m"), folder.join("from"));
    fill(&from);
    many(&from.join("many"), 2000);
    fs::write(from.join("large"), (0..40u32 << 20).step_by(4).flat_map(u32::to_le_bytes).collect::<Vec<u8>>())
        .expect("room");
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    copied(&[&"-a", &"--json", &from, &point]);
    let before = lookups(&mounted);
    let answer = copied(&[&"-a", &"--json", &point.join("from"), &folder.join("out")]);
    assert_eq!(answer["failures"], 0);
    assert_eq!(likeness(&from), likeness(&folder.join("out")));
    assert!(fs::metadata(folder.join("out/sparse")).expect("copied").blocks() * 512 < 1 << 20, "holes stay holes");
    assert!(lookups(&mounted) - before < 100, "the kernel was not asked");

    // Over what is there, from a snapshot, a file by itself, and without -a.
    succeed(&[OsStr::new("snapshot"), OsStr::new("create"), node.as_os_str(), OsStr::new("s")]);
    fs::write(folder.join("out/file"), "something else").expect("room");
    fs::remove_dir_all(point.join("from/many")).expect("there");
    copied(&[&"-a", &"--json", &point.join(".snapshots/s/from"), &folder.make("again")]);
    assert_eq!(likeness(&from), likeness(&folder.join("again/from")));
    copied(&[&"-a", &"--json", &point.join("from/file"), &folder.join("out")]);
    assert_eq!(fs::read(folder.join("out/file")).expect("copied").len(), 100_000);
    copied(&[&"--json", &point.join("from/sub"), &folder.join("plain")]);
    let links = |path| fs::metadata(folder.join(path)).expect("copied").nlink();
    assert_eq!((links("out/sub/deep/again"), links("plain/deep/again")), (2, 1));
    assert_eq!(fs::read(folder.join("plain/deep/again")).expect("copied").len(), 100_000);

    // A directory is in the way of one file.
    fs::create_dir_all(folder.join("way/sub/empty/full")).expect("room");
    let output = cp(&[&"-a", &point.join("from/sub"), &folder.join("way")]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("from/sub/empty; "), "{said}");
    assert_eq!(fs::read(folder.join("way/sub/deep/again")).expect("copied").len(), 100_000);
    mounted.umount();
}

#[test]
fn a_tree_is_copied_within_a_mount_without_its_content() {
    let folder = Folder::new("batch-within");
    let (node, point, from) = (folder.node("n"), folder.make("m"), folder.join("from"));
    fill(&from);
    many(&from.join("many"), 2000);
    let Some(mut mounted) = Mounted::start(&node, &point, &[]) else { return };
    let source = point.join("from");
    copied(&[&"-a", &"--json", &from, &source]);
    succeed(&[OsStr::new("snapshot"), OsStr::new("create"), node.as_os_str(), OsStr::new("s")]);
    let to = point.join("to");
    assert!(fs::metadata(&to).is_err(), "the kernel knows that there is no such name");
    let before = (lookups(&mounted), counter(&mounted, "file_batch_bytes"), counter(&mounted, "file_flushed_bytes"));
    let answer = copied(&[&"-a", &"--json", &source, &to]);
    assert_eq!(answer["failures"], 0);
    assert!(answer["files"].as_u64() > Some(2000), "{answer}");
    let after = (lookups(&mounted), counter(&mounted, "file_batch_bytes"), counter(&mounted, "file_flushed_bytes"));
    assert_eq!((before.1, before.2), (after.1, after.2), "no content went anywhere");
    assert!(after.0 - before.0 < 100, "the kernel was not asked");
    assert_eq!(likeness(&from), likeness(&to));

    // From a snapshot, into a directory; a file; all or nothing; onto what is there, file by file.
    fs::remove_dir_all(source.join("many")).expect("there");
    let again = point.join("again");
    fs::create_dir(&again).expect("room");
    copied(&[&"-a", &"--json", &point.join(".snapshots/s/from"), &again]);
    assert_eq!(likeness(&from), likeness(&again.join("from")));
    copied(&[&"-a", &"--json", &again.join("from/file"), &again]);
    copied(&[&"-a", &"--atomic", &"--json", &to, &again.join("whole")]);
    assert_eq!(likeness(&from), likeness(&again.join("whole")));
    fs::write(to.join("file"), "something else").expect("room");
    copied(&[&"-a", &"--json", &again.join("from/file"), &to]);
    assert_eq!(likeness(&again.join("from")), likeness(&again.join("whole")));
    assert_eq!(fs::read(to.join("file")).expect("copied").len(), 100_000);
    // Without -a what is made is the caller's.
    copied(&[&"--json", &to.join("sub"), &again]);
    assert_eq!(fs::metadata(again.join("sub/deep/again")).expect("copied").nlink(), 1);

    // It is durable.
    mounted.kill();
    mounted.mend();
    assert_eq!(likeness(&from), likeness(&again.join("whole")));
    expect_whole(&mounted);
    mounted.umount();
}

#[test]
fn who_dies_in_the_middle_leaves_whole_files_and_a_daemon_that_goes_on() {
    let folder = Folder::new("batch-dies");
    let (node, point, from) = (folder.node("n"), folder.make("m"), folder.make("from"));
    // Some are parts of units, and some go by system calls.
    let content = |number: u8, round: u8| {
        let mut content = vec![number; (1 + usize::from(number) % 6) << 19];
        content[..2].copy_from_slice(&[number, round]);
        content
    };
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let to = point.join("from");
    // Into nothing, and over what is there.
    for round in 0..2 {
        for number in 0..120 {
            fs::write(from.join(format!("f{number}")), content(number, round)).expect("room");
        }
        let made = || fs::metadata(to.join("f0")).ok().map(|found| found.ino());
        let before = made();
        let program = Command::new(env!("CARGO_BIN_EXE_hydrafs")).args(["cp", "-aq"]).args([&from, &point]).spawn();
        let mut copy = program.expect("it runs");
        // The first unit has come.
        while made() == before && copy.try_wait().expect("our child").is_none() {
            std::thread::yield_now();
        }
        copy.kill().expect("our child");
        copy.wait().expect("our child");
        let mut missing = 0;
        for number in 0..120 {
            match fs::read(to.join(format!("f{number}"))) {
                Ok(found) => assert!((0..=round).any(|round| found == content(number, round)), "f{number}, {round}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NotFound);
                    missing += 1;
                }
            }
        }
        // A large file is removed a moment before its successor gets the name, one by each thread.
        assert!(round == 0 || missing <= 8, "{missing}");
        copied(&[&"-a", &"--json", &from, &point]);
        assert_eq!(likeness(&from), likeness(&to));
    }
    // And the next one is served.
    copied(&[&"-a", &"--json", &"--resume", &from, &point.join("whole")]);
    assert_eq!(likeness(&from), likeness(&point.join("whole")));
    expect_whole(&mounted);
    mounted.umount();
}

/// What was copied until then is told, and what was on its way is named: nothing else can be there.
#[test]
fn a_daemon_that_dies_in_the_middle_is_told_with_what_was_copied() {
    let folder = Folder::new("batch-daemon-dies");
    let (node, point, from) = (folder.node("n"), folder.make("m"), folder.join("from"));
    // Many times what is on its way at a time with little memory.
    const FILES: u64 = 4000;
    fs::create_dir(&from).expect("room");
    (0..FILES).for_each(|number| fs::write(from.join(format!("f{number}")), noise(number, 4096)).expect("room"));
    let Some(mut mounted) = Mounted::start(&node, &point, &[SMALL]) else { return };
    let mut program = Command::new(env!("CARGO_BIN_EXE_hydrafs"));
    program.args(["cp", "-a", "--json"]).args([&from, &point]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let copy = program.spawn().expect("it runs");
    // The first unit has come.
    while fs::symlink_metadata(point.join("from/f0")).is_err() {
        std::thread::yield_now();
    }
    mounted.kill();
    let output = copy.wait_with_output().expect("our child");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("what was copied is told");
    mounted.mend();
    let count = |name: &str| answer[name].as_u64().expect("a number");
    // The directory too. Nothing was promised to be durable before the end.
    let there = fs::read_dir(point.join("from")).map_or(0, |entries| 1 + entries.count() as u64);
    let told = count("files") + count("failures");
    assert!(there <= told && told <= FILES, "{there} are there, {told} were told of");
    assert!(count("units") <= count("files"), "{answer}");
    assert!(answer["ended"].as_str().is_some_and(|why| said.contains(why)), "{answer}: {said}");
    let whys = answer["failed"].as_array().expect("a list").iter().map(|failed| failed["why"].as_str().expect("why"));
    whys.for_each(|why| assert!(why.contains("it may be there or not"), "{why}"));
    copied(&[&"-a", &"--json", &from, &point]);
    assert_eq!(likeness(&from), likeness(&point.join("from")));
    mounted.umount();
}

/// Copies, and interrupts that once it has begun; it may be faster.
fn interrupted(arguments: &[&dyn AsRef<OsStr>], has_begun: impl Fn() -> bool) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_hydrafs"));
    let mut copy = program
        .arg("cp")
        .args(arguments.iter().map(|argument| argument.as_ref()))
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    while !has_begun() && copy.try_wait().expect("our child").is_none() {
        std::thread::yield_now();
    }
    let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&copy), rustix::process::Signal::INT);
    copy.wait_with_output().expect("our child")
}

fn names_in(directory: &Path) -> Vec<OsString> {
    fs::read_dir(directory).expect("mounted").flatten().map(|entry| entry.file_name()).collect()
}

#[test]
fn who_is_interrupted_leaves_all_or_nothing() {
    let folder = Folder::new("batch-interrupted");
    let (node, point, from) = (folder.node("n"), folder.make("m"), folder.make("from"));
    for number in 0..40 {
        fs::write(from.join(format!("f{number}")), vec![number; 2 << 20]).expect("room");
    }
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    for how in ["--jobs=8", "--no-batch"] {
        // Something of it has come, under another name.
        let output =
            interrupted(&[&"-aq", &"--atomic", &how, &from, &point.join("to")], || !names_in(&point).is_empty());
        let said = String::from_utf8_lossy(&output.stderr);
        let names = names_in(&point);
        if output.status.success() {
            // It was faster.
            assert_eq!(names, ["to"]);
            fs::remove_dir_all(point.join("to")).expect("room");
        } else {
            assert!(names.is_empty() && said.contains("the copy was interrupted"), "{names:?}: {said}");
        }
    }
    expect_whole(&mounted);
    mounted.umount();
}

#[test]
fn who_is_interrupted_within_a_mount_leaves_all_or_nothing() {
    let folder = Folder::new("within-interrupted");
    let (node, point, from) = (folder.node("n"), folder.make("m"), folder.join("from"));
    many(&from, 5000);
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    copied(&[&"-a", &"--json", &from, &point]);
    let (source, target) = (point.join("from"), point.join("target"));
    fs::create_dir(&target).expect("room");
    for how in ["--jobs=8", "--no-batch"] {
        // Something of it has come, under another name.
        let arguments: [&dyn AsRef<OsStr>; 5] = [&"-aq", &"--atomic", &how, &source, &target.join("to")];
        let output = interrupted(&arguments, || !names_in(&target).is_empty());
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            assert_eq!(names_in(&target), ["to"]);
            assert_eq!(likeness(&from), likeness(&target.join("to")));
            fs::remove_dir_all(target.join("to")).expect("there");
        } else {
            let names = names_in(&target);
            assert!(names.is_empty() && said.contains("the copy was interrupted"), "{names:?}: {said}");
        }
        assert_eq!(likeness(&from), likeness(&source));
    }
    expect_whole(&mounted);
    mounted.umount();
}

/// Also without --atomic: what is there is whole.
#[test]
fn who_is_interrupted_outside_leaves_no_part_of_a_file() {
    let folder = Folder::new("batch-out-interrupted");
    let (node, point, from) = (folder.node("n"), folder.make("m"), folder.make("from"));
    for number in 0..40 {
        fs::write(from.join(format!("f{number}")), noise(number, 3 << 20)).expect("room");
    }
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    copied(&[&"-a", &"--json", &from, &point]);
    let source = point.join("from");
    for how in ["--jobs=8", "--no-batch"] {
        let out = folder.make(&format!("out{how}"));
        let output = interrupted(&[&"-aq", &how, &source, &out], || out.join("from").exists());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || said.contains("the copy was interrupted"), "{said}");
        for entry in fs::read_dir(out.join("from")).expect("copied").flatten() {
            let source = fs::read(from.join(entry.file_name())).expect("nothing else is there");
            assert!(fs::read(entry.path()).expect("copied") == source, "{}", entry.path().display());
        }
    }
    mounted.umount();
}

/// A disk that is full in the middle: each file is there whole or named as failed, or, all or nothing, there is none; and room comes back.
#[test]
fn a_full_disk_in_the_middle_leaves_whole_files_or_nothing() {
    let folder = Folder::new("batch-full");
    let Some(disk) = Tmpfs::mount(&folder.make("disk"), 160 << 20) else {
        return skipped::because("a tmpfs cannot be mounted here");
    };
    let (node, point, from) = (folder.join("n"), folder.make("m"), folder.make("from"));
    succeed(&[OsStr::new("init"), node.as_os_str(), OsStr::new("--disk"), disk.0.as_os_str()]);
    for number in 0..900 {
        fs::write(from.join(format!("f{number}")), noise(number, 256 << 10)).expect("room");
    }
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let output = cp(&[&"-a", &"--atomic", &"--json", &from, &point.join("to")]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("o space"), "{said}");
    assert_eq!(fs::read_dir(&point).expect("mounted").count(), 0, "all or nothing");

    let output = cp(&[&"-a", &"--json", &from, &point.join("to")]);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let failed: BTreeSet<&str> =
        answer["failed"].as_array().expect("a list").iter().filter_map(|one| one["path"].as_str()).collect();
    assert_eq!(output.status.code(), Some(1));
    let mut whole = 0;
    for number in 0..900 {
        let name = format!("f{number}");
        match fs::read(point.join("to").join(&name)) {
            Ok(content) => {
                whole += 1;
                assert!(content == fs::read(from.join(&name)).expect("ours"), "{name} is not whole");
            }
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{name}");
                assert!(failed.iter().any(|path| path.ends_with(&format!("/{name}"))), "{name} is not named");
            }
        }
    }
    assert!((100..800).contains(&whole), "{whole} of 900");
    // What was given up takes no room for ever.
    succeed(&[OsStr::new("rm"), OsStr::new("-r"), point.join("to").as_os_str()]);
    let part = folder.make("part");
    for number in 0..whole * 3 / 4 {
        fs::hard_link(from.join(format!("f{number}")), part.join(format!("f{number}"))).expect("one file system");
    }
    copied(&[&"-r", &"--json", &part, &point.join("again")]);
    expect_whole(&mounted);
    mounted.umount();
}

/// What is copied out is there whole, or as it was before, or not at all and named: a target that is full in the middle.
#[test]
fn no_part_of_a_file_has_its_name_outside() {
    let folder = Folder::new("batch-out-full");
    let (node, point, from) = (folder.node("n"), folder.make("m"), folder.make("from"));
    for number in 0..60 {
        fs::write(from.join(format!("f{number}")), noise(number, 200 << 10)).expect("room");
    }
    for number in 60..68 {
        fs::write(from.join(format!("f{number}")), noise(number, 3 << 20)).expect("room");
    }
    for number in 0..68 {
        fs::hard_link(from.join(format!("f{number}")), from.join(format!("l{number}"))).expect("one file system");
    }
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    copied(&[&"-a", &"--json", &from, &point]);
    let source = point.join("from");
    let is_of_before = |number: u32| number.is_multiple_of(3);
    let names = || (0..68).flat_map(|number| ["f", "l"].map(|kind| (number, format!("{kind}{number}"))));
    for how in [["-a", "--jobs=8"], ["-r", "--jobs=8"], ["-a", "--no-batch"]] {
        let Some(small) = Tmpfs::mount(&folder.make("small"), 20 << 20) else {
            return skipped::because("a tmpfs cannot be mounted here");
        };
        let to = small.0.join("from");
        fs::create_dir(&to).expect("room");
        for (number, name) in names().filter(|(number, _)| is_of_before(*number)) {
            fs::write(to.join(&name), "of before").expect("room");
            if number.is_multiple_of(2) {
                // One that has another name elsewhere.
                fs::hard_link(to.join(&name), small.0.join(&name)).expect("one file system");
            }
        }
        // Over what is there as well as beside it.
        let output = cp(&[&how[0], &how[1], &"--json", &source, &small.0]);
        let said = String::from_utf8_lossy(&output.stderr);
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert!(output.status.code() == Some(1) && said.contains("o space"), "{said}");
        let failed = answer["failed"].as_array().expect("a list").iter().filter_map(|one| one["path"].as_str());
        let failed: BTreeSet<&str> = failed.filter_map(|path| path.rsplit('/').next()).collect();
        let mut whole = 0;
        for (number, name) in names() {
            match fs::read(to.join(&name)) {
                Ok(found) if found == fs::read(from.join(&name)).expect("ours") => whole += 1,
                Ok(found) => {
                    assert!(is_of_before(number) && found == b"of before", "{how:?}: {name} has {} bytes", found.len());
                    assert!(failed.contains(&name[..]), "{name} is not named");
                }
                Err(error) => {
                    assert!(error.kind() == ErrorKind::NotFound && !is_of_before(number), "{name}: {error}");
                    assert!(failed.contains(&name[..]), "{name} is not named");
                }
            }
        }
        assert!((20..130).contains(&whole), "{whole} of 136");
        let count = fs::read_dir(&to).expect("ours").count();
        let expected = names().filter(|(_, name)| to.join(name).exists()).count();
        assert_eq!(count, expected, "nothing else is there");
        // What was emptied and not filled would be seen at the other name.
        for (number, name) in names().filter(|(number, _)| number.is_multiple_of(6)) {
            let found = fs::read(small.0.join(&name)).expect("ours");
            assert!(found == b"of before" || found == fs::read(from.join(&name)).expect("ours"), "{how:?}: {number}");
        }
    }
    mounted.umount();
}

/// Sources that are replaced or go while others are copied: each is copied whole, as it was or as it is, or named, and the rest goes on.
#[test]
fn sources_that_change_or_vanish_are_whole_or_named() {
    const FILES: usize = 400;
    let folder = Folder::new("batch-vanish");
    let (node, point, from) = (folder.node("n"), folder.make("m"), folder.make("from"));
    let (before, after) = (noise(1, 1 << 20), noise(2, 700_000));
    let name = |number: usize| format!("f{number:03}");
    fs::write(folder.join("before"), &before).expect("room");
    for number in 0..FILES {
        // Not -a: each name is a file of its own, and to make them takes no time.
        fs::hard_link(folder.join("before"), from.join(name(number))).expect("one file system");
    }
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let to = point.join("to");
    let program = Command::new(env!("CARGO_BIN_EXE_hydrafs"))
        .args(["cp", "-r", "--json"])
        .args([&from, &to])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let copy = program.expect("it runs");
    let pid = rustix::process::Pid::from_child(&copy);
    let tell = |signal| rustix::process::kill_process(pid, signal).expect("our child");
    // The first unit has come: it has listed all of them and read some.
    while fs::metadata(&to).is_err() {
        std::thread::yield_now();
    }
    tell(rustix::process::Signal::STOP);
    // One of its threads hears of it and tells the others, when it has a processor: until then they read.
    rustix::process::waitid(rustix::process::WaitId::Pid(pid), rustix::process::WaitIdOptions::STOPPED)
        .expect("our child");
    let middle = FILES / 2;
    for number in middle..FILES {
        let path = from.join(name(number));
        fs::remove_file(&path).expect("ours");
        match number % 3 {
            0 => fs::write(&path, &after).expect("room"),
            1 => fs::create_dir(&path).expect("room"),
            _ => {}
        }
    }
    tell(rustix::process::Signal::CONT);
    let output = copy.wait_with_output().expect("our child");
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let failed: BTreeSet<&str> =
        answer["failed"].as_array().expect("a list").iter().filter_map(|one| one["path"].as_str()).collect();
    let mut found = [0; 3];
    for number in 0..FILES {
        let is_named = failed.iter().any(|path| path.ends_with(&format!("/{}", name(number))));
        let kind = match fs::read(to.join(name(number))) {
            Ok(content) if content == before => 0,
            Ok(content) => {
                assert!(content == after && number >= middle && number.is_multiple_of(3), "{number} is not whole");
                1
            }
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{number}");
                assert!(number >= middle, "{number} was always there");
                2
            }
        };
        assert_eq!(is_named, kind == 2, "{number}: {answer}");
        found[kind] += 1;
    }
    assert!(found.iter().all(|count| *count > 0), "{found:?}: the copy was faster");
    assert_eq!(output.status.code(), Some(1));
    expect_whole(&mounted);
    mounted.umount();
}

/// Who may not use the daemon's socket copies by system calls, as far as the kernel lets him, and hears what he could not.
#[test]
fn another_user_copies_what_he_may() {
    const USER: u32 = 1234;
    if !rustix::process::geteuid().is_root() {
        return skipped::because("only root may be somebody else");
    }
    let folder = Folder::new("batch-user");
    let (node, point, from) = (folder.node("n"), folder.make("m"), folder.make("from"));
    let (open, closed) = (point.join("open"), point.join("closed"));
    many(&from, 200);
    let set_mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
    set_mode(&from.join("d1/f7"), 0o600);
    set_mode(&from.join("d2"), 0o700);
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    for (path, mode) in [(&open, 0o777), (&closed, 0o755)] {
        fs::create_dir(path).expect("mounted");
        set_mode(path, mode);
    }
    // Where he can run it, wherever this was built.
    let program = folder.join("hydrafs");
    assert!(run(Command::new("cp").arg(env!("CARGO_BIN_EXE_hydrafs")).arg(&program)).status.success());
    let as_user = |arguments: &[&dyn AsRef<OsStr>]| {
        let mut command = Command::new(&program);
        run(command.arg("cp").args(arguments.iter().map(|one| one.as_ref())).current_dir("/").uid(USER).gid(USER))
    };
    let named = |output: &Output| -> BTreeSet<String> {
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let failed = answer["failed"].as_array().expect("a list").iter();
        failed.map(|one| one["path"].as_str().expect("a path").to_owned()).collect()
    };
    let paths = |top: &Path, names: &[&str]| -> BTreeSet<String> {
        names.iter().map(|name| top.join(name).display().to_string()).collect()
    };

    // Into the mount.
    let output = as_user(&[&"-a", &"--json", &from, &open]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(named(&output), paths(&from, &["d1/f7", "d2"]));
    let copy = open.join("from");
    assert_eq!(fs::read(copy.join("d3/f49")).expect("copied"), fs::read(from.join("d3/f49")).expect("ours"));
    assert_eq!(fs::metadata(copy.join("d3/f49")).expect("copied").uid(), USER);
    // Where he may not.
    let output = as_user(&[&"-a", &"--json", &from.join("d1/f1"), &closed]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!((named(&output), fs::read_dir(&closed).expect("ours").count()), (paths(&from, &["d1/f1"]), 0));
    // Within the mount, and out of it.
    set_mode(&copy.join("d0/f3"), 0o600);
    std::os::unix::fs::chown(copy.join("d0/f3"), Some(0), Some(0)).expect("root may");
    let outside = folder.make("outside");
    set_mode(&outside, 0o777);
    for to in [open.join("again"), outside.join("again")] {
        let output = as_user(&[&"-a", &"--json", &copy, &to]);
        assert_eq!((output.status.code(), named(&output)), (Some(1), paths(&copy, &["d0/f3"])));
        assert_eq!(fs::read(to.join("d3/f49")).expect("copied"), fs::read(from.join("d3/f49")).expect("ours"));
        assert!(!to.join("d0/f3").exists() && !to.join("d1/f7").exists());
    }
    expect_whole(&mounted);
    mounted.umount();
}

/// The same source twice, and loops of links: nothing is followed for ever, and each fate is told.
#[test]
fn lists_with_duplicates_and_loops_end() {
    let folder = Folder::new("batch-twice");
    let (node, point, from) = (folder.node("n"), folder.make("m"), folder.join("from"));
    fill(&from);
    symlink("..", from.join("sub/loop")).expect("room");
    // Links of one file are links in the copies of all sources together.
    fs::remove_file(from.join("sub/deep/again")).expect("ours");
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let to = point.join("to");
    fs::create_dir(&to).expect("mounted");
    copied(&[&"-a", &"--json", &from, &from, &from.join("sub"), &from.join("file"), &from.join("file"), &to]);
    assert_eq!(likeness(&from), likeness(&to.join("from")));
    assert_eq!(likeness(&from.join("sub")), likeness(&to.join("sub")));
    assert_eq!(fs::read(to.join("file")).expect("copied").len(), 100_000);
    let output = cp(&[&"-a", &"--json", &from.join("nothing"), &from.join("file"), &to]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("nothing"), "{said}");
    // What a directory holds goes there, beside what is named with it, also into the top of the mount and over what is there.
    fs::write(folder.join("one"), "one").expect("room");
    for (number, sources) in [["from/.", "one"], ["one", "from/."]].into_iter().enumerate() {
        let into = point.join(format!("dot{number}"));
        fs::create_dir(&into).expect("mounted");
        copied(&[&"-a", &"--json", &folder.join(sources[0]), &folder.join(sources[1]), &into]);
        assert_eq!(fs::read(into.join("one")).expect("copied"), b"one");
        assert!(!point.join("one").exists());
        fs::remove_file(into.join("one")).expect("copied");
        copied(&[&"-a", &"--json", &folder.join("from/."), &into]);
        assert_eq!(likeness(&from), likeness(&into));
    }
    copied(&[&"-a", &"--json", &folder.join("from/sub/."), &point]);
    assert!(point.join("deep").is_dir() && point.join("to").is_dir());
    let output = cp(&[&"-a", &point.join("."), &to]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("itself"), "{said}");
    // Within the mount, into a directory of itself, and a directory over a file.
    for (from, to, words) in
        [(to.clone(), to.join("from/in"), "itself"), (to.join("from/sub"), to.join("file/x"), "ot a directory")]
    {
        let output = cp(&[&"-a", &from, &to]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(words), "{said}");
    }
    expect_whole(&mounted);
    mounted.umount();
}

/// Names that the kernel has asked the daemon for.
fn lookups(mounted: &Mounted) -> u64 {
    counter(mounted, "file_lookups")
}

fn counter(mounted: &Mounted, name: &str) -> u64 {
    let stats = succeed(&[OsStr::new("stats"), OsStr::new("--json"), OsStr::new("-n1"), mounted.node.as_os_str()]);
    let stats: serde_json::Value = serde_json::from_str(&stats).expect("JSON");
    stats["counters"][name].as_u64().expect("it is counted")
}

/// The daemon reads large files itself, where reading ends: on a disk of this machine, not in a mount.
#[test]
fn the_daemon_reads_large_files_itself() {
    let folder = Folder::new("filled");
    let (from, point) = (folder.make("from"), folder.make("m"));
    let Some(mounted) = Mounted::start(&folder.node("n"), &point, &[]) else { return };
    let Some(other) = Mounted::start(&folder.node("o"), &folder.make("other"), &[]) else { return };
    let (large, odd) = (noise(1, 40 << 20), noise(2, (3 << 20) + 4097));
    fs::write(from.join("large"), &large).expect("room");
    let sparse = fs::File::create(from.join("sparse")).expect("room");
    sparse.write_all_at(&odd, 7 << 20).expect("room");
    sparse.set_len(20 << 20).expect("room");
    copied(&[&"-a", &"--json", &from, &point.join("copy")]);
    assert_eq!(counter(&mounted, "file_filled_bytes"), (large.len() + odd.len().next_multiple_of(4096)) as u64);
    assert_eq!(likeness(&from), likeness(&point.join("copy")));
    // As long as the source, at once and after the kernel has forgotten it.
    let holes = fs::metadata(point.join("copy/sparse")).expect("copied").blocks() * 512;
    assert!(holes < 5 << 20, "{holes} bytes: holes stay holes");
    // From one mount to another by calls.
    copied(&[&"-a", &"--json", &point.join("copy/large"), &other.point.join("large")]);
    copied(&[&"-a", &"--json", &point.join("copy/sparse"), &point.join("copy/again")]);
    assert_eq!(counter(&other, "file_filled_bytes"), 0);
    assert!(fs::read(other.point.join("large")).expect("readable") == large);
    expect_whole(&mounted);
    other.umount();
    mounted.umount();
}

/// A daemon with little memory takes little of a window at a time; what does not fit goes by system calls, from a folder and from an archive.
#[test]
fn files_of_any_size_go_into_a_node_with_little_memory() {
    let folder = Folder::new("little");
    let (node, point, from) = (folder.node("n"), folder.make("m"), folder.make("from"));
    let Some(mounted) = Mounted::start(&node, &point, &[SMALL]) else { return };
    for kibibytes in [1_u64, 200, 500, 900, 1100, 2100, 3900, 5000] {
        fs::write(from.join(format!("{kibibytes}")), noise(kibibytes, (kibibytes as usize) << 10)).expect("room");
    }
    copied(&[&"-r", &"--json", &from, &point.join("copy")]);
    let archive = folder.join("archive");
    run(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(folder.join("")).arg("from"));
    let [tar, extract, file, into] = ["tar", "-x", "-f", "-C"].map(OsStr::new);
    succeed(&[tar, extract, file, archive.as_os_str(), into, point.as_os_str()]);
    let expected = likeness(&from).len();
    for copy in ["copy", "from"] {
        for name in fs::read_dir(&from).expect("a folder").map(|entry| entry.expect("an entry").file_name()) {
            let (one, other) = (fs::read(from.join(&name)), fs::read(point.join(copy).join(&name)));
            assert!(one.expect("readable") == other.expect("readable"), "{copy}/{}", name.display());
        }
        assert_eq!(fs::read_dir(point.join(copy)).expect("a folder").count(), expected);
    }
    expect_whole(&mounted);
}

/// Runs hydrafs with some words, and with what is to be named by paths.
fn with_paths(words: &[&str], paths: &[PathBuf]) -> Output {
    let arguments: Vec<&OsStr> =
        words.iter().map(OsStr::new).chain(paths.iter().map(|path| path.as_os_str())).collect();
    hydrafs(&arguments)
}

/// More files than are read as one batch, among them a link, a further name, and a tree.
fn several(from: &Path) -> Vec<PathBuf> {
    fs::create_dir_all(from.join("tree/sub")).expect("mounted");
    for number in 0..300 {
        fs::write(from.join(format!("f{number:03}")), noise(number, 3000)).expect("mounted");
    }
    fs::write(from.join("tree/sub/deep"), noise(999, 100_000)).expect("mounted");
    fs::hard_link(from.join("f290"), from.join("tree/again")).expect("mounted");
    symlink("f001", from.join("link")).expect("mounted");
    let mut paths: Vec<PathBuf> = fs::read_dir(from).expect("mounted").map(|entry| entry.expect("it").path()).collect();
    paths.sort();
    paths
}

/// What is copied out of a mount by its names is read together, whatever becomes of some, and keeps further names.
#[test]
fn several_sources_are_read_together() {
    let folder = Folder::new("batch-several");
    let (node, point, out) = (folder.node("n"), folder.make("m"), folder.make("out"));
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let from = point.join("from");
    let paths = several(&from);
    let read = || counter(&mounted, "file_batch_read_files");
    let before = read();
    let arguments = [&paths[..], &[from.join("gone"), out.clone()]].concat();
    let output = with_paths(&["cp", "-a", "--quiet"], &arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("from/gone; No such file"), "{said}");
    assert_eq!(likeness(&out), likeness(&from), "{said}");
    assert_eq!(read() - before, 301, "all by batches, and what has two names once");
    // What comes second of one name is refused, however the two lie.
    fs::create_dir(point.join("later")).expect("mounted");
    fs::write(point.join("later/f007"), "later").expect("mounted");
    let twice = folder.make("twice");
    let output = with_paths(&["cp"], &[from.join("f007"), point.join("later/f007"), twice.clone()]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("goes to the same place"), "{said}");
    assert_eq!(fs::read(twice.join("f007")).expect("there"), noise(7, 3000));
    // Names of one file, now and in a snapshot: two contents.
    fs::hard_link(from.join("f000"), from.join("f000 too")).expect("mounted");
    let [snapshot, create, node] = [OsStr::new("snapshot"), OsStr::new("create"), node.as_os_str()];
    succeed(&[snapshot, create, node, OsStr::new("then")]);
    fs::write(from.join("f000"), "now").expect("mounted");
    let views = folder.make("views");
    let then = point.join(".snapshots/then/from/f000 too");
    assert!(with_paths(&["cp", "-a"], &[from.join("f000"), then, views.clone()]).status.success());
    assert_eq!(fs::read(views.join("f000")).expect("there"), b"now");
    assert_eq!(fs::read(views.join("f000 too")).expect("there"), noise(0, 3000));
    let then = point.join(".snapshots/then/from/f000");
    assert_eq!(with_paths(&["cp", "-a"], &[from.join("f000"), then, views.clone()]).status.code(), Some(1));
    fs::remove_file(from.join("f000 too")).expect("mounted");
    // Within the mount.
    let copies = point.join("copies");
    fs::create_dir(&copies).expect("mounted");
    assert!(
        with_paths(&["cp", "-a", "--quiet"], &[&paths[..], std::slice::from_ref(&copies)].concat()).status.success()
    );
    assert_eq!(likeness(&copies), likeness(&from));
    mounted.umount();
}

#[test]
fn an_archive_of_several_names_is_read_together() {
    let folder = Folder::new("batch-names");
    let (node, point, out) = (folder.node("n"), folder.make("m"), folder.make("out"));
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let from = point.join("from");
    let mut names: Vec<PathBuf> =
        several(&from).iter().map(|path| path.file_name().expect("one").to_owned().into()).collect();
    names.insert(3, "gone".into());
    let archive = folder.join("archive");
    let words = ["tar", "-c", "-f", archive.to_str().expect("text"), "-C", from.to_str().expect("text")];
    let output = with_paths(&words, &names);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("gone"), "{said}");
    let output = run(Command::new("tar").arg("-xpf").arg(&archive).arg("-C").arg(&out));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Content, kinds and targets: an archive has whole seconds, and names of two batches are files of their own.
    let without_links = |folder: &Path| -> Vec<String> {
        let kept = |line: String| {
            let words: Vec<&str> = line.split(' ').collect();
            format!("{} {} {:?}", words[0], words[1], &words[5..])
        };
        likeness(folder).into_iter().map(kept).collect()
    };
    assert_eq!(without_links(&out), without_links(&from));
    mounted.umount();
}
