//! Commands that go through a whole tree of a mount: walk, du, rm, tar.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::batch::{expect_whole, many};
use crate::copy::{fill, likeness};
use crate::support::{Folder, Mounted, Tmpfs, hydrafs, noise, os, refusal, run, spawn, succeed};

/// Every path below a folder, and the folder.
fn paths(top: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::from([top.to_owned()]);
    let mut todo = vec![top.to_owned()];
    while let Some(folder) = todo.pop() {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            if entry.file_type().expect("a kind").is_dir() {
                todo.push(entry.path());
            }
            found.insert(entry.path());
        }
    }
    found
}

#[test]
fn a_tree_is_listed_and_counted_as_by_find_and_du() {
    let folder = Folder::new("walk");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let top = point.join("top");
    fill(&top);
    many(&top.join("many"), 3000);
    let odd = OsStr::from_bytes(b"odd \xff\n name");
    fs::write(top.join(odd), "odd").expect("room");
    symlink("..", top.join("sub/loop")).expect("room");

    let zeroed = hydrafs(&[os("walk"), os("-0"), top.as_os_str()]);
    let listed: BTreeSet<PathBuf> = zeroed
        .stdout
        .split(|byte| *byte == 0)
        .filter(|path| !path.is_empty())
        .map(|path| PathBuf::from(OsStr::from_bytes(path)))
        .collect();
    assert_eq!(listed, paths(&top));
    let lines = |arguments: &[&str]| -> BTreeSet<String> {
        let arguments: Vec<&OsStr> =
            [os("walk")].into_iter().chain(arguments.iter().map(|a| os(a))).chain([top.as_os_str()]).collect();
        let said = hydrafs(&arguments).stdout;
        String::from_utf8_lossy(&said).lines().map(ToOwned::to_owned).collect()
    };
    let named = |name: &str| top.join(name).display().to_string();
    assert_eq!(lines(&["--name", "f1[0-9]", "--type", "f"]).len(), 60 * 10);
    assert_eq!(lines(&["--type", "l"]), BTreeSet::from(["dangling", "sub/link", "sub/loop"].map(named)));
    assert_eq!(lines(&["--size", "+9M"]), BTreeSet::from([named("sparse")]));
    let newer = named("file");
    assert!(lines(&["--newer", &newer, "--type", "f"]).contains(&named("sparse")));
    assert!(!lines(&["--newer", &named("many/d59/f49")]).contains(&named("file")));
    let json = succeed(&[os("walk"), os("--json"), top.join("sub/deep").as_os_str()]);
    let entries: Vec<serde_json::Value> = json.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(entries.len(), 2);
    assert_eq!((entries[0]["mode"].as_str(), entries[1]["links"].as_u64()), (Some("1555"), Some(2)));
    assert_eq!(entries[1]["inode"].as_u64(), Some(fs::metadata(top.join("file")).expect("there").ino()));

    // A file of two names counts once.
    let usage = succeed(&[os("du"), os("--json"), top.as_os_str()]);
    let usage: serde_json::Value = serde_json::from_str(&usage).expect("JSON");
    let files: Vec<fs::Metadata> = paths(&top)
        .iter()
        .map(|path| fs::symlink_metadata(path).expect("there"))
        .filter(fs::Metadata::is_file)
        .collect();
    let bytes: u64 = files.iter().map(|file| file.len() / file.nlink()).sum();
    let (count, usage) = (files.len() as u64 - 1, &usage[0]);
    assert_eq!((usage["files"].as_u64(), usage["bytes"].as_u64()), (Some(count), Some(bytes)));
    assert_eq!(usage["directories"].as_u64(), Some(4 + 60));

    for (arguments, words) in [
        ([os("walk"), folder.join("n").as_os_str()], "not on HydraFS"),
        ([os("walk"), point.join("nothing").as_os_str()], "No such file"),
        ([os("du"), folder.join("n").as_os_str()], "not on HydraFS"),
    ] {
        let said = refusal(&arguments);
        assert!(said.contains(words), "{said}");
    }
    let link = folder.join("link");
    symlink(&top, &link).expect("room");
    let said = refusal(&[os("walk"), link.as_os_str()]);
    assert!(said.contains("it is a symbolic link that leads to"), "{said}");
    // Whoever reads a part of it ends it, and not the daemon.
    let mut command = Command::new(env!("CARGO_BIN_EXE_hydrafs"));
    let mut child = spawn(command.arg("walk").arg(&top).stdout(Stdio::piped())).expect("it starts");
    child.stdout.take().expect("a pipe").read_exact(&mut [0; 10]).expect("it lists");
    assert!(child.wait().expect("our child").success());
    mounted.umount();
}

#[test]
fn trees_go_at_once() {
    let folder = Folder::new("rm");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let Some(mut mounted) = Mounted::start(&node, &point, &[]) else { return };
    let m = |name: &str| point.join(name);
    many(&m("a"), 2000);
    fs::write(m("a/kept"), "kept by who has it open").expect("room");
    fs::hard_link(m("a/d0/f0"), m("linked")).expect("one file system");
    fs::write(m("file"), "file").expect("room");
    let mut held = File::options().read(true).write(true).open(m("a/kept")).expect("there");
    let usage = succeed(&[os("rm"), os("-r"), os("--dry-run"), m("a").as_os_str()]);
    assert!(usage.contains("2001 files and 41 directories"), "{usage}");
    assert!(m("a/d0/f0").exists());

    for (arguments, words) in [
        (vec![os("rm"), m("a").as_os_str()], "it is a directory"),
        (vec![os("rm"), os("-r"), m("nothing").as_os_str()], "No such file"),
        (vec![os("rm"), os("-r"), point.as_os_str()], "it lies on"),
        (vec![os("rm"), os("-r"), node.as_os_str()], "not on HydraFS"),
        (vec![os("rm"), os("-r"), os(".snapshots/..")], "no name of its own"),
    ] {
        let said = refusal(&arguments);
        assert!(
            said.contains(words) || said.contains("something is mounted there") || said.contains("No such file"),
            "{said}"
        );
    }
    // Each is named, also where all fail for one reason.
    succeed(&[os("snapshot"), os("create"), node.as_os_str(), os("s")]);
    let shown = |name: &str| m(".snapshots/s").join(name);
    let said = refusal(&[os("rm"), shown("linked").as_os_str(), shown("file").as_os_str()]);
    assert!(said.contains("it is in a snapshot") && said.contains("s/linked") && said.contains("s/file"), "{said}");
    succeed(&[os("rm"), os("-f"), m("nothing").as_os_str()]);
    let output = hydrafs(&[
        os("rm"),
        os("-r"),
        os("--json"),
        m("a").as_os_str(),
        m("nothing").as_os_str(),
        m("file").as_os_str(),
    ]);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        (answer["removed"].as_array().map(Vec::len), answer["failed"].as_array().map(Vec::len)),
        (Some(2), Some(1))
    );

    // Many by their names, more than fit a request; one is there twice.
    let several: Vec<PathBuf> = (0..1500).map(|number| m(&format!("several {number} \u{e4}"))).collect();
    several.iter().for_each(|path| fs::write(path, "").expect("room"));
    let twice = several.iter().chain(&several[..1]).map(|path| path.as_os_str());
    let output = hydrafs(&[os("rm"), os("--json")].into_iter().chain(twice.clone()).collect::<Vec<_>>());
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (answer["removed"].as_array().map(Vec::len), answer["failed"].as_array().map(Vec::len)),
        (Some(1500), Some(1)),
        "{answer}"
    );
    succeed(&[os("rm"), os("-f")].into_iter().chain(twice).collect::<Vec<_>>());

    // The kernel knows, who had a file open has it, and another name keeps its file.
    let names: Vec<_> = fs::read_dir(&point).expect("mounted").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names, ["linked"]);
    assert!(fs::metadata(m("a/d0/f0")).is_err() && fs::metadata(m("a")).is_err() && fs::metadata(m("file")).is_err());
    let mut text = String::new();
    held.read_to_string(&mut text).expect("it is open");
    held.write_all(b", and written").expect("it is open");
    assert_eq!(text, "kept by who has it open");
    assert!(fs::read(m("linked")).expect("there").ends_with(b" 0"));
    drop(held);
    fs::create_dir(m("a")).expect("the name is free");
    assert_eq!(fs::read_dir(m("a")).expect("new").count(), 0);
    fs::remove_dir(m("a")).expect("empty");

    mounted.kill();
    mounted.mend();
    assert_eq!(fs::read_dir(&point).expect("mounted").count(), 1);
    expect_whole(&mounted);
    mounted.umount();
}

#[test]
fn trees_of_two_mounts_go_by_one_command_and_stay_away() {
    let folder = Folder::new("rm-two");
    let [one, two] = ["one", "two"].map(|name| (folder.node(&format!("n{name}")), folder.make(name)));
    let Some(first) = Mounted::start(&one.0, &one.1, &[]) else { return };
    let mut mounts = [first, Mounted::start(&two.0, &two.1, &[]).expect("as the first")];
    for mounted in &mounts {
        many(&mounted.point.join("a"), 100);
        fs::write(mounted.point.join("kept"), "kept").expect("room");
        succeed(&[os("sync"), mounted.point.as_os_str()]);
    }
    let paths = [one.1.join("a"), two.1.join("nothing"), two.1.join("a")];
    let output = hydrafs(&[[os("rm"), os("-r")].as_slice(), &paths.each_ref().map(|path| path.as_os_str())].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("two/nothing"), "{said}");
    for mounted in &mut mounts {
        mounted.kill();
        mounted.mend();
        let names: Vec<_> = fs::read_dir(&mounted.point).expect("mounted").flatten().map(|e| e.file_name()).collect();
        assert_eq!(names, ["kept"]);
        expect_whole(mounted);
    }
    mounts.into_iter().for_each(Mounted::umount);
}

#[test]
fn archives_are_those_of_tar() {
    let folder = Folder::new("tar");
    let (node, point, from) = (folder.node("n"), folder.make("m"), folder.join("from"));
    fill(&from);
    many(&from.join("many"), 1000);
    fs::write(from.join("large"), vec![5; 9_000_001]).expect("room");
    let long = from.join("n".repeat(120)).join("m".repeat(120));
    fs::create_dir_all(&long).expect("room");
    fs::write(long.join("l".repeat(200)), "long").expect("room");
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    // Times are whole seconds in archives.
    let seconds = |folder: &Path| -> Vec<String> {
        likeness(folder)
            .into_iter()
            .map(|line| {
                let (before, behind) = line.split_once(", ").expect("a time");
                let (_, behind) = behind.split_once(')').expect("a time");
                format!("{before}{behind}")
            })
            .collect()
    };
    let tar = |arguments: &[&OsStr]| {
        let output = run(Command::new("tar").args(arguments));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };

    // Archives of tar(1), in each of its formats, extracted by ours.
    for format in ["gnu", "posix"] {
        let archive = folder.join(format!("{format}.tar"));
        let into = point.join(format);
        fs::create_dir(&into).expect("mounted");
        let form = format!("--format={format}");
        tar(&[os(&form), os("-cf"), archive.as_os_str(), os("-C"), folder.0.as_os_str(), os("from")]);
        let answer =
            succeed(&[os("tar"), os("-x"), os("--json"), os("-f"), archive.as_os_str(), os("-C"), into.as_os_str()]);
        let answer: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!(answer["failures"], 0, "{format}");
        assert_eq!(seconds(&from), seconds(&into.join("from")), "{format}");
    }
    fs::rename(point.join("gnu/from"), point.join("from")).expect("mounted");

    // One of ours, extracted by tar(1).
    let ours = folder.join("ours.tar");
    succeed(&[os("tar"), os("-c"), os("-f"), ours.as_os_str(), os("-C"), point.as_os_str(), os("from")]);
    tar(&[os("-xpf"), ours.as_os_str(), os("-C"), folder.make("out").as_os_str()]);
    assert_eq!(seconds(&from), seconds(&folder.join("out/from")));

    // Cut in a small file, and in a large one: what came before is there, and of that one nothing.
    let parts = folder.make("parts");
    let names = ["1", "2", "3", "large", "4"];
    for name in names {
        fs::write(parts.join(name), name.repeat(if name == "large" { 600_000 } else { 3000 })).expect("room");
    }
    let all = folder.join("all.tar");
    let in_parts = [os("-cf"), all.as_os_str(), os("-C"), parts.as_os_str()];
    tar(&[&in_parts[..], &names.map(os)[..]].concat());
    let bytes = fs::read(&all).expect("readable");
    for (number, (end, whole)) in [(512 * 20, 2), (2_000_000, 3)].into_iter().enumerate() {
        let (archive, into) = (folder.join("part.tar"), point.join(format!("part{number}")));
        fs::write(&archive, &bytes[..end]).expect("room");
        fs::create_dir(&into).expect("mounted");
        let said = refusal(&[os("tar"), os("-x"), os("-f"), archive.as_os_str(), os("-C"), into.as_os_str()]);
        assert!(said.contains("ends in the middle of it") && said.contains(names[whole]), "{said}");
        let mut found: Vec<_> = fs::read_dir(&into).expect("there").map(|entry| entry.expect("there").path()).collect();
        found.sort();
        assert!(found.iter().zip(names).all(|(path, name)| path.ends_with(name)) && found.len() == whole, "{found:?}");
        assert!(found.iter().all(|path| fs::read(path).ok() == fs::read(parts.join(path.file_name().unwrap())).ok()));
    }

    // Again over what is there; and what is no archive, or would leave the directory.
    fs::write(point.join("from/file"), "other").expect("room");
    succeed(&[os("tar"), os("-x"), os("-f"), ours.as_os_str(), os("-C"), point.as_os_str()]);
    assert_eq!(seconds(&from), seconds(&point.join("from")));
    let bytes = fs::read(&ours).expect("readable");
    fs::write(folder.join("cut.tar"), &bytes[..bytes.len() / 2 + 100]).expect("room");
    fs::write(folder.join("none.tar"), "no archive".repeat(1000)).expect("room");
    tar(&[
        os("-P"),
        os("-cf"),
        folder.join("out.tar").as_os_str(),
        os("-C"),
        folder.join("from/sub").as_os_str(),
        os("../file"),
    ]);
    for (archive, words) in [
        ("cut.tar", "cannot read the archive"),
        ("none.tar", "cannot read the archive"),
        ("out.tar", "it would lie outside of the directory"),
        ("nothing.tar", "No such file"),
    ] {
        let said = refusal(&[
            os("tar"),
            os("-x"),
            os("-f"),
            folder.join(archive).as_os_str(),
            os("-C"),
            folder.join("m").as_os_str(),
        ]);
        assert!(said.contains(words), "{said}");
    }
    let said = refusal(&[os("tar"), os("-c"), os("-C"), point.as_os_str(), os("../m/from")]);
    assert!(said.contains("does not leave it"), "{said}");
    expect_whole(&mounted);
    mounted.umount();
}

/// Of an archive that is cut all is there that is whole in it, and nothing else: in a small file, in a large one, in the holes of a sparse one.
#[test]
fn of_a_cut_archive_what_came_before_is_there() {
    let folder = Folder::new("tar-cut");
    let (node, point, from) = (folder.node("n"), folder.make("m"), folder.make("from"));
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    fs::create_dir(from.join("d")).expect("room");
    for number in 0..20 {
        fs::write(from.join(format!("d/f{number}")), noise(number, 3000)).expect("room");
    }
    File::open(from.join("d")).and_then(|made| made.set_modified(time)).expect("ours");
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    for (last, bytes, is_sparse) in [("small", 300_000, false), ("large", 5 << 20, false), ("sparse", 4 << 20, true)] {
        let file = File::create(from.join(last)).expect("room");
        file.write_all_at(&noise(99, bytes), 0).expect("room");
        if is_sparse {
            file.write_all_at(b"behind the hole", 20 << 20).expect("room");
        }
        let archive = folder.join(format!("{last}.tar"));
        let made =
            run(Command::new("tar").arg("--sparse").arg("-cf").arg(&archive).arg("-C").arg(&from).args(["d", last]));
        assert!(made.status.success());
        let into = point.join(last);
        fs::create_dir(&into).expect("mounted");
        fs::write(into.join(last), "of before").expect("room");
        let cut = File::options().write(true).open(&archive).expect("there");
        cut.set_len(cut.metadata().expect("a file").len() - 200_000).expect("ours");
        let output =
            hydrafs(&[os("tar"), os("-x"), os("--json"), os("-f"), archive.as_os_str(), os("-C"), into.as_os_str()]);
        let said = String::from_utf8_lossy(&output.stderr);
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("cannot read the archive") && said.contains("what came before is there"), "{said}");
        assert_eq!((&answer["is_cut"], &answer["entries"], &answer["failures"]), (&true.into(), &21.into(), &1.into()));
        assert!(answer["failed"][0]["path"].as_str().expect("a path").ends_with(last), "{answer}");
        assert_eq!(fs::read(into.join(last)).expect("of before"), b"of before");
        for number in 0..20 {
            assert!(fs::read(into.join(format!("d/f{number}"))).expect("there") == noise(number, 3000), "{number}");
        }
        assert_eq!(fs::metadata(into.join("d")).and_then(|made| made.modified()).expect("there"), time);
    }
    expect_whole(&mounted);
    mounted.umount();
}

/// A disk that is full in the middle: each entry is there whole, or named as failed.
#[test]
fn of_an_archive_that_finds_no_room_each_entry_is_there_or_named() {
    let folder = Folder::new("tar-full");
    let Some(disk) = Tmpfs::mount(&folder.make("disk"), 160 << 20) else {
        return skipped::because("a tmpfs cannot be mounted here");
    };
    let (node, point, from) = (folder.join("n"), folder.make("m"), folder.make("from"));
    succeed(&[os("init"), node.as_os_str(), os("--disk"), disk.0.as_os_str()]);
    let name = |number: u64| format!("f{number}");
    let content = |number: u64| noise(number, if number % 100 == 99 { 3 << 20 } else { 256 << 10 });
    for number in 0..800 {
        fs::write(from.join(name(number)), content(number)).expect("room");
    }
    let archive = folder.join("archive");
    assert!(run(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&from).arg(".")).status.success());
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let output =
        hydrafs(&[os("tar"), os("-x"), os("--json"), os("-f"), archive.as_os_str(), os("-C"), point.as_os_str()]);
    let said = String::from_utf8_lossy(&output.stderr);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(output.status.code(), Some(1), "{said}");
    let failed = answer["failed"].as_array().expect("a list").iter().filter_map(|one| one["path"].as_str());
    let failed: BTreeSet<_> = failed.filter_map(|path| path.rsplit('/').next()).collect();
    let mut whole = 0;
    for number in 0..800 {
        match fs::read(point.join(name(number))) {
            Ok(found) => {
                whole += 1;
                assert!(found == content(number), "{} is not whole", name(number));
            }
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
                assert!(failed.contains(name(number).as_str()), "{} is not named: {said}", name(number));
            }
        }
    }
    assert!((100..700).contains(&whole), "{whole} of 800");
    // What was given up takes no room for ever.
    for number in 0..800 {
        let _ = fs::remove_file(point.join(name(number)));
    }
    fs::write(point.join("again"), noise(7, 60 << 20)).expect("room came back");
    succeed(&[os("sync"), point.as_os_str()]);
    expect_whole(&mounted);
    mounted.umount();
}

/// An entry that no batch takes fails by itself.
#[test]
fn what_is_beyond_a_limit_keeps_no_other_from_being_extracted() {
    let folder = Folder::new("tar-limits");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let mut builder = tar::Builder::new(Vec::new());
    let long = "n/".repeat(10_000);
    let mut put = |path: &str, leads: Option<(tar::EntryType, &str)>| {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(0);
        let appended = match leads {
            Some((kind, target)) => {
                header.set_entry_type(kind);
                builder.append_link(&mut header, path, target)
            }
            None if path == "xattr" => {
                let value = [b'v'; 70_000];
                builder.append_pax_extensions([("SCHILY.xattr.user.long", &value[..])]).expect("memory");
                builder.append_data(&mut header, path, std::io::empty())
            }
            None => builder.append_data(&mut header, path, std::io::empty()),
        };
        appended.expect("memory");
    };
    put("before", None);
    put(&(long.clone() + "deep"), None);
    put(&"n".repeat(256), None);
    put("symlink", Some((tar::EntryType::Symlink, &"t".repeat(4096))));
    put("link", Some((tar::EntryType::Link, &long)));
    put("xattr", None);
    put("behind", None);
    let archive = folder.join("limits.tar");
    fs::write(&archive, builder.into_inner().expect("memory")).expect("room");
    let output = hydrafs(&[
        os("tar"),
        os("-x"),
        os("--xattrs"),
        os("--json"),
        os("-f"),
        archive.as_os_str(),
        os("-C"),
        point.as_os_str(),
    ]);
    let said = String::from_utf8_lossy(&output.stderr);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((output.status.code(), answer["failures"].as_u64()), (Some(1), Some(5)), "{said}");
    let names: BTreeSet<_> = fs::read_dir(&point).expect("mounted").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names, ["before", "behind"].map(Into::into).into());
    expect_whole(&mounted);
    mounted.umount();
}

/// Attributes of any bytes, and holes: what tar(1) has of them in each of its formats, and what it reads of ours.
#[test]
fn attributes_and_holes_of_files_are_in_archives() {
    let folder = Folder::new("tar-odd");
    let (node, point, from, out) = (folder.node("n"), folder.make("m"), folder.make("from"), folder.make("out"));
    let (small, large) = (from.join("small"), from.join("large"));
    for (path, at, bytes) in [(&small, 100 << 10, 3), (&large, 40 << 20, 2 << 20), (&large, 90 << 20, 5000)] {
        let file = File::options().create(true).truncate(false).write(true).open(path).expect("room");
        file.write_all_at(&noise(1, bytes), at).expect("room");
        file.set_len(at + (1 << 20)).expect("room");
    }
    fs::write(from.join("behind"), "behind").expect("room");
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let extract = |archive: &Path, into: &Path| {
        fs::create_dir(into).expect("mounted");
        hydrafs(&[os("tar"), os("-x"), os("--xattrs"), os("-f"), archive.as_os_str(), os("-C"), into.as_os_str()])
    };
    for format in ["gnu", "posix"] {
        let (archive, into) = (folder.join(format!("{format}.tar")), point.join(format));
        let mut tar = Command::new("tar");
        tar.args(["--sparse", &format!("--format={format}"), "-cf"]).arg(&archive).arg("-C").arg(&from).arg(".");
        assert!(run(&mut tar).status.success());
        let output = extract(&archive, &into);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for name in ["small", "large", "behind"] {
            let (made, source) = (into.join(name), from.join(name));
            assert!(fs::read(&made).expect("there") == fs::read(&source).expect("there"), "{format}: {name}");
            assert!(fs::metadata(&made).expect("there").blocks() * 512 <= 4 << 20, "{format}: {name}");
        }
    }

    // Of attributes all bytes come back, and who does not want them has the files all the same.
    let odd = [("user.lines", &b"a\nb\n12 path=x\n"[..]), ("user.a=b%3D", b"=\0\n"), ("user.none", b"")];
    for (name, value) in odd {
        rustix::fs::setxattr(point.join("gnu/small"), name, value, rustix::fs::XattrFlags::empty()).expect("room");
    }
    let ours = folder.join("ours.tar");
    let make = [os("tar"), os("-c"), os("--xattrs"), os("-f"), ours.as_os_str(), os("-C")];
    succeed(&[&make[..], &[point.join("gnu").as_os_str(), os(".")]].concat());
    let output = extract(&ours, &point.join("again"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut tar = Command::new("tar");
    tar.args(["--xattrs", "--xattrs-include=*", "-xf"]).arg(&ours).arg("-C").arg(&out);
    assert!(run(&mut tar).status.success());
    let attribute = |path: PathBuf, name: &str| {
        let mut value = [0; 100];
        rustix::fs::getxattr(path, name, &mut value[..]).map(|bytes| value[..bytes].to_vec())
    };
    // What the temporary folder lies on may have none.
    let is_told = attribute(out.join("small"), "user.lines") != Err(rustix::io::Errno::OPNOTSUPP);
    for (name, value) in odd {
        assert_eq!(attribute(point.join("again/small"), name).as_deref(), Ok(value), "{name}");
        assert!(!is_told || attribute(out.join("small"), name).as_deref() == Ok(value), "{name}");
    }
    let into = point.join("without");
    fs::create_dir(&into).expect("mounted");
    succeed(&[os("tar"), os("-x"), os("-f"), ours.as_os_str(), os("-C"), into.as_os_str()]);
    assert_eq!(fs::read(into.join("behind")).expect("there"), b"behind");

    // A hole costs nothing, and a file that cannot be is the failure of that alone.
    let mut builder = tar::Builder::new(Vec::new());
    for (name, size) in [("hole", 1_u64 << 42), ("more", 1 << 60), ("most", 1 << 63)] {
        let mut header = tar::Header::new_gnu();
        header.set_path(name).expect("short");
        header.set_entry_type(tar::EntryType::GNUSparse);
        header.as_gnu_mut().expect("of GNU tar").set_real_size(size);
        header.set_size(0);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_cksum();
        builder.append(&header, std::io::empty()).expect("memory");
    }
    builder.append_pax_extensions([("GNU.sparse.map", &b"0,1"[..])]).expect("memory");
    let mut header = tar::Header::new_gnu();
    header.set_size(6);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    builder.append_data(&mut header, "older", &b"sparse"[..]).expect("memory");
    builder.append_data(&mut header, "behind", &b"behind"[..]).expect("memory");
    let (archive, into) = (folder.join("holes.tar"), point.join("holes"));
    fs::write(&archive, builder.into_inner().expect("memory")).expect("room");
    let output = extract(&archive, &into);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        ["most; no file can have", "older; it is sparse in a way"].iter().all(|words| said.contains(words)),
        "{said}"
    );
    assert_eq!(fs::metadata(into.join("hole")).map(|hole| (hole.len(), hole.blocks())).expect("there"), (1 << 42, 0));
    assert_eq!(fs::read(into.join("behind")).expect("there"), b"behind");
    assert!(["most", "older"].iter().all(|name| !into.join(name).exists()));
    expect_whole(&mounted);
    mounted.umount();
}

/// A node in the place of another one's folder, of which inode numbers mean other files.
#[test]
fn what_is_asked_of_a_mount_goes_to_no_other() {
    let folder = Folder::new("moved");
    let node = |disk: &str| {
        let node = folder.join("a");
        succeed(&[os("init"), node.as_os_str(), os("--disk"), folder.join(disk).as_os_str()]);
        node
    };
    let (point, other) = (folder.make("m"), folder.make("n"));
    let Some(moved) = Mounted::start(&node("disk1"), &point, &[]) else { return };
    fs::rename(folder.join("a"), folder.join("b")).expect("ours");
    let mounted = Mounted::start(&node("disk2"), &other, &[]).expect("the first could be");
    for point in [&point, &other] {
        fs::create_dir(point.join("data")).expect("mounted");
        fs::write(point.join("data/file"), "content").expect("mounted");
    }
    let (data, copy) = (point.join("data"), point.join("copy"));
    let archive = folder.join("data.tar");
    for arguments in [
        &[os("rm"), os("-r"), data.as_os_str()][..],
        &[os("clone"), data.as_os_str(), copy.as_os_str()],
        &[os("policy"), os("set"), data.as_os_str(), os("--copies"), os("1")],
        &[os("sync"), point.as_os_str()],
        &[os("umount"), point.as_os_str()],
        &[os("tar"), os("-c"), os("-f"), archive.as_os_str(), os("-C"), point.as_os_str(), os("data")],
    ] {
        let said = refusal(arguments);
        assert!(said.contains("serves another mount"), "{said}");
    }
    // Who found the right one a moment ago.
    let mut talk = UnixStream::connect(mounted.node.join("control.sock")).expect("it listens");
    let request = r#"{"do":"on","device":"0:0","request":{"do":"usage","inode":1}}"#;
    talk.write_all(format!("{request}\n").as_bytes()).expect("it hears");
    let mut said = String::new();
    talk.read_to_string(&mut said).expect("it answers");
    assert!(said.contains("serves another mount"), "{said}");
    // By system calls.
    succeed(&[os("cp"), os("-a"), data.as_os_str(), copy.as_os_str()]);
    assert_eq!(fs::read(copy.join("file")).expect("copied"), b"content");
    assert_eq!(fs::read(other.join("data/file")).expect("nobody meant it"), b"content");
    assert!(!other.join("copy").exists());
    succeed(&[os("stop"), folder.join("b").as_os_str()]);
    moved.wait();
    mounted.umount();
}

/// A mount whose node was moved, and in whose place is another node that nobody uses: its free lock tells nothing of the mount.
#[test]
fn a_mount_whose_folder_another_node_has_now_is_not_taken_away_by_force() {
    let folder = Folder::new("replaced");
    let node = |disk: &str| {
        let node = folder.join("a");
        succeed(&[os("init"), node.as_os_str(), os("--disk"), folder.join(disk).as_os_str()]);
        node
    };
    let point = folder.make("m");
    let (first, moved) = (node("disk1"), folder.join("b"));
    let Some(mounted) = Mounted::start(&first, &point, &[]) else { return };
    fs::rename(&first, &moved).expect("ours");
    let second = node("disk2");
    let mut file = File::create(point.join("file")).expect("mounted");
    file.write_all(b"con").expect("room");
    let said = refusal(&[os("mount"), second.as_os_str(), point.as_os_str()]);
    assert!(said.contains("is mounted there already"), "{said}");
    let said = refusal(&[os("umount"), point.as_os_str()]);
    assert!(said.contains("busy"), "{said}");
    file.write_all(b"tent").expect("nothing was done to it");
    drop(file);
    succeed(&[os("umount"), point.as_os_str()]);
    mounted.wait();
    let mounted = Mounted::start(&moved, &point, &[]).expect("the first could be");
    assert_eq!(fs::read(point.join("file")).expect("made local at the end"), b"content");
    mounted.umount();
}

/// A mount whose daemon died, and whose node is mounted elsewhere since: nothing ends the good one.
#[test]
fn a_dead_mount_is_taken_away_beside_that_of_today() {
    let folder = Folder::new("died");
    let (node, point, other) = (folder.node("n"), folder.make("m"), folder.make("o"));
    let Some(dead) = Mounted::start(&node, &point, &[]) else { return };
    fs::write(point.join("file"), "content").expect("mounted");
    succeed(&[os("sync"), point.as_os_str()]);
    dead.kill();
    let mounted = Mounted::start(&node, &other, &[]).expect("the first could be");
    let said = refusal(&[os("sync"), point.as_os_str()]);
    assert!(said.contains("has died") && said.contains("hydrafs umount"), "{said}");
    succeed(&[os("umount"), point.as_os_str()]);
    assert_eq!(fs::read_dir(&point).expect("no mount").count(), 0);
    assert_eq!(fs::read(other.join("file")).expect("mounted"), b"content");
    mounted.umount();
}

/// Appends to an archive, with tar(1).
fn append(archive: &Path, folder: &Path, arguments: &[&str]) {
    let output = run(Command::new("tar").arg("-rf").arg(archive).arg("-C").arg(folder).args(arguments));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Attributes that only the file system has where the archive was made.
#[test]
fn foreign_attributes_keep_nothing_from_being_extracted() {
    let folder = Folder::new("foreign");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let mut builder = tar::Builder::new(Vec::new());
    let foreign = [("SCHILY.xattr.com.apple.provenance", &b"x"[..]), ("SCHILY.xattr.user.ours", &b"y"[..])];
    for (name, kind) in [("d/", tar::EntryType::Directory), ("d/file", tar::EntryType::Regular)] {
        builder.append_pax_extensions(foreign).expect("memory");
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(kind);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(0);
        header.set_mode(0o755);
        header.set_mtime(0);
        builder.append_data(&mut header, name, std::io::empty()).expect("memory");
    }
    let archive = folder.join("archive");
    fs::write(&archive, builder.into_inner().expect("memory")).expect("room");
    succeed(&[os("tar"), os("-x"), os("--xattrs"), os("-f"), archive.as_os_str(), os("-C"), point.as_os_str()]);
    let mut value = [0; 10];
    let length = rustix::fs::getxattr(point.join("d/file"), "user.ours", &mut value).expect("one of ours");
    assert_eq!(value[..length], *b"y");
    expect_whole(&mounted);
    mounted.umount();
}

/// What other tars write, and what is in an archive to the byte.
#[test]
fn what_an_archive_says_in_an_old_or_another_way_is_understood_or_told() {
    let folder = Folder::new("archive-ways");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let archive = folder.join("old.tar");
    let mut builder = tar::Builder::new(File::create(&archive).expect("room"));
    let mut append = |name: &str, kind: tar::EntryType, mode: u32, content: &[u8]| {
        let mut header = tar::Header::new_ustar();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1);
        header.set_size(content.len() as u64);
        header.set_cksum();
        builder.append(&header, content).expect("room");
    };
    // As before there were kinds.
    append("old/", tar::EntryType::new(0), 0o750, b"");
    append("old/file", tar::EntryType::new(0), 0o640, b"content");
    let list = b"38 SCHILY.acl.access=user::rw-,user:1\n";
    assert_eq!(list.len(), 38);
    append("pax", tar::EntryType::XHeader, 0o644, list);
    append("listed", tar::EntryType::Regular, 0o664, b"secret");
    builder.into_inner().expect("room");
    let to = point.join("plain");
    fs::create_dir(&to).expect("room");
    succeed(&[os("tar"), os("-x"), os("-f"), archive.as_os_str(), os("-C"), to.as_os_str()]);
    let mode = |path: PathBuf| fs::metadata(path).expect("extracted").mode() & 0o7777;
    assert!(to.join("old").is_dir() && fs::read(to.join("old/file")).expect("extracted") == b"content");
    assert_eq!([mode(to.join("old")), mode(to.join("old/file")), mode(to.join("listed"))], [0o750, 0o640, 0o664]);
    // Who asks for access lists hears that this one is missing, and nobody has more rights than it gave.
    let said = refusal(&[os("tar"), os("-x"), os("--xattrs"), os("-f"), archive.as_os_str(), os("-C"), to.as_os_str()]);
    assert!(said.contains("listed") && said.contains("access list"), "{said}");
    assert_eq!(mode(to.join("listed")), 0o604);

    // A target is what it is, and not another that leads to the same.
    for target in ["a//b", "./a/./b/", "a"] {
        let from = point.join("from");
        fs::create_dir(&from).expect("room");
        symlink(target, from.join("link")).expect("room");
        let made = folder.join("made.tar");
        succeed(&[os("tar"), os("-c"), os("-f"), made.as_os_str(), os("-C"), from.as_os_str(), os("link")]);
        let mut archive = tar::Archive::new(File::open(&made).expect("made"));
        let entry = archive.entries().expect("an archive").next().expect("one entry").expect("whole");
        assert_eq!(entry.link_name_bytes().expect("a target"), target.as_bytes());

        // And named with a slash it is what it leads to, which is not what goes.
        fs::create_dir_all(from.join("a/b")).expect("room");
        let said = refusal(&[os("rm"), os("-r"), from.join("link/").as_os_str()]);
        assert!(said.contains("symbolic link") && from.join("link").is_symlink(), "{said}");
        succeed(&[os("rm"), os("-r"), from.as_os_str()]);
    }
    succeed(&[os("rm"), os("-f"), to.join("old/file/below").as_os_str()]);
    mounted.umount();
}

#[test]
fn large_files_come_in_the_archives_order_and_follow_no_link_out_of_the_directory() {
    let folder = Folder::new("tar-large");
    let (node, point, from, elsewhere) =
        (folder.node("n"), folder.make("m"), folder.make("from"), folder.make("elsewhere"));
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let archive = folder.join("order.tar");
    // What is on its way when a large file comes: its directory, a smaller file of its name, one more name of what it replaces, small ones.
    fs::create_dir_all(from.join("a/b")).expect("room");
    fs::write(from.join("a/b/small"), "small").expect("room");
    fs::write(from.join("a/b/first"), "old").expect("room");
    append(&archive, &from, &["a/b/small", "a/b/first"]);
    fs::hard_link(from.join("a/b/first"), from.join("a/b/link")).expect("room");
    append(&archive, &from, &["a/b/first", "a/b/link"]);
    fs::remove_file(from.join("a/b/first")).expect("there");
    for (number, name) in ["first", "second", "third"].into_iter().enumerate() {
        fs::write(from.join("a/b").join(name), noise(number as u64, (3 << 20) + number)).expect("room");
        append(&archive, &from, &[&format!("a/b/{name}")]);
    }
    fs::hard_link(from.join("a/b/second"), from.join("a/b/another")).expect("room");
    append(&archive, &from, &["a/b/second", "a/b/another"]);
    succeed(&[os("tar"), os("-x"), os("-f"), archive.as_os_str(), os("-C"), point.as_os_str()]);
    assert_eq!(fs::read(point.join("a/b/link")).expect("there"), b"old");
    for (number, name) in ["first", "second", "third"].into_iter().enumerate() {
        assert!(
            fs::read(point.join("a/b").join(name)).expect("there") == noise(number as u64, (3 << 20) + number),
            "{name}"
        );
    }
    let inode = |name| fs::metadata(point.join("a/b").join(name)).expect("there").ino();
    assert_eq!(inode("second"), inode("another"));

    // A symbolic link of the archive, or one that is there, leads a large file no further than a small one.
    let (hostile, names) = (folder.join("hostile.tar"), ["out/large", "out/small"]);
    symlink(&elsewhere, from.join("out")).expect("room");
    append(&hostile, &from, &["out"]);
    fs::remove_file(from.join("out")).expect("there");
    fs::create_dir(from.join("out")).expect("room");
    fs::write(from.join("out/large"), noise(9, 8 << 20)).expect("room");
    fs::write(from.join("out/small"), "small").expect("room");
    append(&hostile, &from, &names);
    for _ in 0..2 {
        let said = refusal(&[os("tar"), os("-x"), os("-f"), hostile.as_os_str(), os("-C"), point.as_os_str()]);
        assert!(names.iter().all(|name| said.contains(name)), "{said}");
        assert!(said.contains("a symbolic link is where a directory is meant"), "{said}");
    }
    fs::create_dir_all(from.join("deep/out")).expect("room");
    fs::write(from.join("deep/out/large"), noise(9, 8 << 20)).expect("room");
    fs::create_dir(point.join("deep")).expect("room");
    symlink(&elsewhere, point.join("deep/out")).expect("room");
    let said = refusal(&[os("cp"), os("-a"), from.join("deep").as_os_str(), point.as_os_str()]);
    assert!(
        said.contains("deep/out/large") && said.contains("a symbolic link is where a directory is meant"),
        "{said}"
    );
    assert_eq!(fs::read_dir(&elsewhere).expect("readable").count(), 0);
    expect_whole(&mounted);
    mounted.umount();
}
