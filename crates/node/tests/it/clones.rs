//! `hydrafs clone`: a tree twice, under the programs that use both.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::support::{self, Folder, Mounted, hydrafs, succeed};

fn fill(top: &Path) {
    fs::create_dir_all(top.join("a/b")).expect("room");
    for number in 0..400 {
        fs::write(top.join(format!("a/f{number}")), format!("file {number}")).expect("room");
    }
    fs::write(top.join("a/b/large"), vec![7; 3 << 20]).expect("room");
    fs::hard_link(top.join("a/b/large"), top.join("again")).expect("room");
    std::os::unix::fs::symlink("a/b/large", top.join("link")).expect("room");
}

/// Mode, size and bytes of a file, by its path.
type Found = (PathBuf, (u32, u64, Vec<u8>));

/// What is below a directory, by its path there.
fn content(top: &Path) -> Vec<Found> {
    let found = support::content(top).into_iter();
    found.map(|(path, what)| (path.strip_prefix(top).expect("below").to_owned(), what)).collect()
}

fn clone(from: &Path, to: &Path) -> serde_json::Value {
    let answer = succeed(&[OsStr::new("clone"), OsStr::new("--json"), from.as_os_str(), to.as_os_str()]);
    serde_json::from_str(&answer).expect("JSON")
}

fn refusal(from: &Path, to: &Path) -> String {
    let output = hydrafs(&[OsStr::new("clone"), from.as_os_str(), to.as_os_str()]);
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn expect_whole(mounted: &Mounted) {
    let report = succeed(&[OsStr::new("fsck"), OsStr::new("--deep"), mounted.node.as_os_str()]);
    assert!(report.contains("all is well"), "{report}");
}

#[test]
fn a_clone_goes_its_own_way() {
    let folder = Folder::new("clones");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let Some(mut mounted) = Mounted::start(&node, &point, &[]) else { return };
    let m = |name: &str| point.join(name);
    fill(&m("source"));
    let expected = content(&m("source"));
    // The kernel knows that there is no such name, and the listing without it.
    assert!(fs::metadata(m("one")).is_err());
    assert_eq!(fs::read_dir(&point).expect("mounted").count(), 1);
    let (links, names) =
        (fs::metadata(&point).expect("mounted").nlink(), |path| fs::read_dir(path).expect("there").count());
    let answer = clone(&m("source"), &m("one"));
    assert_eq!(fs::metadata(m("one")).expect("made").ino(), answer["inode"].as_u64().expect("a number"));
    assert_eq!((names(&point), fs::metadata(&point).expect("mounted").nlink()), (2, links + 1));
    assert!(content(&m("one")) == expected);

    // Programs that hold files of both.
    let ids = [m("source/a/f1"), m("one/a/f1")].map(|path| fs::metadata(path).expect("there").ino());
    assert_ne!(ids[0], ids[1]);
    let (large, again) = (m("one/a/b/large"), m("one/again"));
    assert_eq!(fs::metadata(&large).expect("there").ino(), fs::metadata(again).expect("there").ino());
    let mut held = File::options().append(true).open(&large).expect("there");
    held.write_all(b"more").expect("room");
    fs::remove_file(&large).expect("there");
    fs::write(m("one/a/f1"), "changed").expect("room");
    fs::write(m("one/a/new"), "new").expect("room");
    fs::remove_file(m("source/a/f2")).expect("there");
    assert_eq!(fs::read(m("source/a/f1")).expect("there"), b"file 1");
    assert_eq!(fs::read(m("one/a/f2")).expect("there"), b"file 2");
    assert_eq!(fs::metadata(m("source/again")).expect("there").len(), 3 << 20);
    assert_eq!(fs::metadata(m("one/again")).expect("there").len(), (3 << 20) + 4);
    let moved = fs::rename(m("one/a/f3"), m("f3")).expect_err("another branch");
    assert_eq!(moved.raw_os_error(), Some(libc::EXDEV));
    succeed(&[OsStr::new("cp"), OsStr::new("-a"), m("one/a/f3").as_os_str(), m("f3").as_os_str()]);
    assert_eq!(fs::read(m("f3")).expect("copied"), b"file 3");

    // Over a restart under the program that holds a file, a crash, and a clean end.
    let then = content(&m("one"));
    mounted.restart();
    held.write_all(b"and more").expect("it goes on");
    held.sync_all().expect("it goes on");
    assert_eq!(fs::metadata(m("one/again")).expect("there").len(), (3 << 20) + 12);
    drop(held);
    clone(&m("one"), &m("two"));
    fs::write(m("two/a/f1"), "again").expect("room");
    File::open(m("two/a/f1")).expect("there").sync_all().expect("room");
    mounted.kill();
    mounted.mend();
    let differ = |path: &Path| content(path).into_iter().filter(|found| !then.contains(found)).count();
    assert_eq!((differ(&m("one")), differ(&m("two"))), (1, 2));
    expect_whole(&mounted);

    // A snapshot, a clone of it; all of them go.
    succeed(&[OsStr::new("snapshot"), OsStr::new("create"), node.as_os_str(), OsStr::new("then")]);
    fs::remove_dir_all(m("two")).expect("there");
    let mut read = String::new();
    File::open(m(".snapshots/then/two/a/f1")).expect("there").read_to_string(&mut read).expect("there");
    assert_eq!(read, "again");
    clone(&m(".snapshots/then/source"), &m("three"));
    assert_eq!(fs::read(m("three/a/f1")).expect("there"), b"file 1");
    fs::create_dir(m("box")).expect("room");
    fs::rename(m("three"), m("box/three")).expect("it is a directory like any other");
    fs::remove_dir_all(m("box")).expect("there");
    fs::remove_dir_all(m("one")).expect("there");
    succeed(&[OsStr::new("sync"), point.as_os_str()]);
    expect_whole(&mounted);
    mounted.umount();
}

#[test]
fn what_cannot_be_cloned_says_why() {
    let folder = Folder::new("no-clones");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let (other, elsewhere) = (folder.node("o"), folder.make("e"));
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let Some(second) = Mounted::start(&other, &elsewhere, &[]) else { return };
    let m = |name: &str| point.join(name);
    fill(&m("source"));
    succeed(&[OsStr::new("snapshot"), OsStr::new("create"), node.as_os_str(), OsStr::new("s")]);
    clone(&m("source"), &m("source/below"));
    for (from, to, words) in [
        (m("source/again"), m("x"), "cp --reflink"),
        (m("nothing"), m("x"), "No such file"),
        (m("source"), m("source"), "there is a file of this name"),
        (m("source"), m("x"), "has a clone below it"),
        (m("source/a"), m(".snapshots/s/x"), "a snapshot, which does not change"),
        (m("source/a"), elsewhere.join("x"), "lies on another mount"),
        (m("source/a"), folder.join("x"), "not on HydraFS"),
        (m(".snapshots"), m("x"), "clone one of them"),
    ] {
        let message = refusal(&from, &to);
        assert!(message.contains(words), "{message}");
    }
    assert!(fs::metadata(m("x")).is_err(), "nothing was made");
    second.umount();
    mounted.umount();
}
