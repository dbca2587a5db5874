//! `hydrafs cp` from folder to folder: what it takes over, what it refuses, what it says of files that fail.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps};

use crate::support::{Folder, hydrafs, succeed};

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
        ([&from, &from.join("inside")], "copied into itself"),
        ([&from.join("good"), &from.join("good")], "the same file"),
    ] {
        let output = cp(&[arguments[0], arguments[1]]);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && message.contains(words), "{message}");
    }
    assert!(!from.join("inside").exists());
}
