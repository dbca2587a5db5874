//! `hydrafs cp` from folder to folder: what it takes over, what it refuses, what it says of files that fail.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps};

use crate::support::{Folder, Mounted, Tmpfs, content, hydrafs, noise, succeed};

fn cp(arguments: &[&dyn AsRef<OsStr>]) -> std::process::Output {
    let arguments: Vec<&OsStr> = [OsStr::new("cp")].into_iter().chain(arguments.iter().map(|a| a.as_ref())).collect();
    hydrafs(&arguments)
}

/// Fills a folder with one of everything.
pub(crate) fn fill(folder: &Path) {
    fs::create_dir_all(folder.join("sub/deep")).expect("room");
    fs::write(folder.join("file"), vec![b'x'; 100_000]).expect("room");
    fs::write(folder.join("sub/empty"), "").expect("room");
    fs::hard_link(folder.join("file"), folder.join("sub/deep/again")).expect("one file system");
    symlink("../file", folder.join("sub/link")).expect("room");
    symlink("nowhere", folder.join("dangling")).expect("room");
    rustix::fs::mknodat(CWD, folder.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).expect("room");
    let sparse = fs::File::create(folder.join("sparse")).expect("room");
    sparse.write_all_at(b"data", 5 << 20).expect("room");
    sparse.set_len(9 << 20).expect("room");
    fs::set_permissions(folder.join("file"), fs::Permissions::from_mode(0o4751)).expect("ours");
    fs::set_permissions(folder.join("sub/deep"), fs::Permissions::from_mode(0o1555)).expect("ours");
    let time = |seconds| Timespec { tv_sec: seconds, tv_nsec: 123_456_789 };
    let times = Timestamps { last_access: time(1_000_000_000), last_modification: time(-5) };
    for name in ["file", "dangling", "sub"] {
        rustix::fs::utimensat(CWD, folder.join(name), &times, AtFlags::SYMLINK_NOFOLLOW).expect("ours");
    }
}

/// What a copy must have kept, by name.
pub(crate) fn likeness(folder: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(&at).expect("a folder") {
            let path = entry.expect("an entry").path();
            let found = fs::symlink_metadata(&path).expect("it is there");
            let name = path.strip_prefix(folder).expect("below").display().to_string();
            let content = if found.is_file() { fs::read(&path).expect("readable") } else { Vec::new() };
            let target = fs::read_link(&path).unwrap_or_default();
            let links = if found.is_dir() { 0 } else { found.nlink() };
            let time = (found.mtime(), found.mtime_nsec());
            let sum: u64 = content.iter().enumerate().map(|(at, byte)| at as u64 * u64::from(*byte)).sum();
            lines.push(format!(
                "{name} {:o} {links} {time:?} {} {sum} {}",
                found.mode(),
                content.len(),
                target.display()
            ));
            if found.is_dir() {
                folders.push(path);
            }
        }
    }
    lines.sort();
    lines
}

#[test]
fn an_archive_is_like_its_source() {
    let folder = Folder::new("cp");
    let (from, to) = (folder.join("from"), folder.join("to"));
    fill(&from);
    let output = cp(&[&"-a", &from, &to]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(likeness(&from), likeness(&to));
    assert!(fs::metadata(to.join("sparse")).expect("copied").blocks() * 512 < 1 << 20, "holes stay holes");

    // Again, into what is there: the same, and `-a SRC DIR` goes below DIR.
    succeed(&[OsStr::new("cp"), OsStr::new("-aq"), from.join("file").as_os_str(), to.as_os_str()]);
    succeed(&[OsStr::new("cp"), OsStr::new("-a"), from.as_os_str(), folder.make("other").as_os_str()]);
    assert_eq!(likeness(&from), likeness(&folder.join("other/from")));
}

#[test]
fn what_cannot_be_copied_is_named_and_the_rest_is_copied() {
    let folder = Folder::new("cp-fails");
    let from = folder.make("from");
    fs::write(from.join("good"), "good").expect("room");
    fs::write(from.join("bad"), "bad").expect("room");
    // A directory is in the way of one file.
    let to = folder.make("to");
    fs::create_dir(to.join("bad")).expect("room");
    let output = cp(&[&from.join("good"), &from.join("bad"), &to]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("cannot copy: ") && message.contains("from/bad; "), "{message}");
    assert!(message.contains("not everything was copied: 1 failed and 1 were copied"), "{message}");
    assert_eq!(fs::read(to.join("good")).expect("copied"), b"good");

    for (arguments, words) in [
        ([&folder.join("nothing"), &to], "No such file"),
        // A device is hardly meant to become a file.
        ([&from.join("good"), &PathBuf::from("/dev/null")], "a device is in the way"),
        ([&from, &from.join("inside")], "copied into itself"),
        ([&from.join("good"), &from.join("good")], "the same file"),
    ] {
        let output = cp(&[arguments[0], arguments[1]]);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && message.contains(words), "{message}");
    }
    assert!(!from.join("inside").exists());
}

/// What is named and is not there keeps nothing else from being copied; and a directory that is named by `.` gives what it holds.
#[test]
fn the_rest_is_copied_and_a_dot_is_what_it_holds() {
    let folder = Folder::new("cp-rest");
    let (from, to) = (folder.make("from"), folder.make("to"));
    fs::write(from.join("a"), "a").expect("room");
    fs::write(from.join("b"), "b").expect("room");
    let output = cp(&[&from.join("a"), &from.join("gone"), &from.join("b"), &to]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && message.contains("from/gone; No such file"), "{message}");
    assert_eq!(content(&to).len(), 2, "{message}");
    for (name, path) in [("dot", "."), ("dots", "./."), ("above", "sub/..")] {
        fs::create_dir_all(from.join("sub")).expect("room");
        let into = folder.make(name);
        assert!(cp(&[&"-a", &from.join(path), &into]).status.success(), "{path}");
        assert_eq!(likeness(&into), likeness(&from), "{path}");
    }
}

/// One name of a file over another: neither is emptied.
/// Whichever way each goes: into the mount, within it, out of it, by system calls.
#[test]
fn of_directories_that_are_merged_the_last_one_wins() {
    let folder = Folder::new("merged");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let sources = [folder.join("a/d"), point.join("b/d"), folder.join("c/d")];
    for (number, source) in sources.iter().enumerate() {
        fs::create_dir_all(source).expect("room");
        fs::write(source.join("file"), format!("{number}")).expect("room");
        fs::write(source.join(format!("of {number}")), "").expect("room");
    }
    for (to, target) in [&*folder.0, &point].into_iter().enumerate() {
        for [first, second] in [[0, 1], [1, 0], [0, 2], [2, 0]] {
            let target = target.join(format!("to {to}{first}{second}"));
            fs::create_dir(&target).expect("room");
            let output = cp(&[&"-a", &"--json", &sources[first], &sources[second], &target]);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let found = fs::read_to_string(target.join("d/file")).expect("copied");
            assert_eq!(found, second.to_string(), "{}", target.display());
            for number in [first, second] {
                assert!(target.join(format!("d/of {number}")).exists(), "{}", target.display());
            }
        }
    }
    mounted.umount();
}

#[test]
fn a_file_is_not_copied_over_itself() {
    let folder = Folder::new("cp-self");
    let (from, to) = (folder.make("from"), folder.make("to"));
    fs::write(from.join("file"), "content").expect("room");
    fs::hard_link(from.join("file"), to.join("file")).expect("one file system");
    let output = cp(&[&"-a", &from.join("."), &to]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && message.contains("the same file"), "{message}");
    assert_eq!(fs::read(to.join("file")).expect("there"), b"content");
}

/// A file system that is too small for all of it: no file there is half of one, what it has had stays, and so do further names.
#[test]
fn nothing_half_written_remains_where_the_target_is_full() {
    let folder = Folder::new("cp-full");
    let (node, point, small) = (folder.node("n"), folder.make("m"), folder.make("small"));
    let Some(_small) = Tmpfs::mount(&small, 3 << 20) else {
        return skipped::because("a tmpfs cannot be mounted here");
    };
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let from = point.join("from");
    fs::create_dir(&from).expect("mounted");
    fs::write(from.join("small"), noise(1, 1000)).expect("mounted");
    fs::write(from.join("large"), noise(2, 5 << 20)).expect("mounted");
    fs::hard_link(from.join("large"), from.join("large again")).expect("mounted");
    fs::write(from.join("old"), noise(3, 5 << 20)).expect("mounted");
    let old = noise(4, 2 << 20);
    for way in ["--no-batch", "--quiet"] {
        let to = small.join("from");
        fs::create_dir_all(&to).expect("room");
        fs::write(to.join("old"), &old).expect("room");
        let output = cp(&[&"-a", &way, &from, &small]);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        for failed in ["/large;", "/large again;", "/old;"] {
            assert!(message.contains(failed), "{way}: {message}");
        }
        // The small one may have come when the others had taken all room.
        for (path, (.., bytes)) in content(&to) {
            let expected = if path.ends_with("old") { &old } else { &noise(1, 1000) };
            assert!(bytes == *expected, "{way}: {}, {} bytes", path.display(), bytes.len());
        }
        assert!(to.join("old").exists(), "{way}");
        // With room the old one makes way.
        let output = cp(&[&way, &from.join("small"), &to.join("old")]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(fs::read(to.join("old")).expect("there"), noise(1, 1000));
        fs::remove_dir_all(&to).expect("ours");
    }
    mounted.umount();
}
