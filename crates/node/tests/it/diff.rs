//! `hydrafs diff`: what it says of trees, snapshots and clones of a mount, and its exit codes.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags};
use serde_json::Value;

use crate::batch::{expect_whole, many};
use crate::copy::fill;
use crate::support::{Folder, Mounted, hydrafs, succeed};

/// Runs the comparison; gives its exit code and the lines that it prints, by path.
#[track_caller]
fn diff(options: &[&str], before: &Path, after: &Path) -> (i32, BTreeMap<String, String>) {
    let arguments = ["diff"].iter().chain(options).map(OsStr::new).chain([before.as_os_str(), after.as_os_str()]);
    let output = hydrafs(&arguments.collect::<Vec<_>>());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() != Some(2) && said.is_empty(), "{said}");
    let mut lines = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let (sign, rest) = line.split_once(' ').expect("a sign and a path");
        let (path, what) = rest.split_once(" (").unwrap_or((rest, ""));
        let again = lines.insert(path.to_owned(), format!("{sign}{}", what.trim_end_matches(')')));
        assert!(again.is_none(), "{path} is told twice");
    }
    (output.status.code().expect("an exit code"), lines)
}

#[track_caller]
fn refusal(before: &Path, after: &Path) -> String {
    let output = hydrafs(&[OsStr::new("diff"), before.as_os_str(), after.as_os_str()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn lines<const N: usize>(expected: [(&str, &str); N]) -> BTreeMap<String, String> {
    expected.into_iter().map(|(path, what)| (path.to_owned(), what.to_owned())).collect()
}

fn snapshot(node: &Path, name: &str) {
    succeed(&[OsStr::new("snapshot"), OsStr::new("create"), node.as_os_str(), OsStr::new(name)]);
}

/// All kinds of changes in a tree that `fill` made.
fn change(top: &Path) {
    let at = |name: &str| top.join(name);
    // A byte of a file of two names, through a mapping of nobody and without a sync.
    File::options().write(true).open(at("file")).expect("there").write_all_at(b"!", 70_000).expect("room");
    fs::set_permissions(at("file"), fs::Permissions::from_mode(0o751)).expect("ours");
    fs::remove_file(at("dangling")).expect("there");
    symlink("elsewhere", at("dangling")).expect("room");
    fs::rename(at("sparse"), at("sub/sparse")).expect("one file system");
    fs::remove_file(at("sub/empty")).expect("there");
    fs::create_dir(at("sub/empty")).expect("room");
    fs::write(at("sub/empty/new"), "new").expect("room");
    fs::set_permissions(at("sub"), fs::Permissions::from_mode(0o700)).expect("ours");
    fs::set_permissions(at("fifo"), fs::Permissions::from_mode(0o600)).expect("ours");
    rustix::fs::setxattr(at("many/d1/f3"), "user.a", b"b", XattrFlags::empty()).expect("room");
    rustix::fs::chownat(CWD, at("many/d1/f4"), Some(rustix::fs::Uid::from_raw(7)), None, AtFlags::empty())
        .expect("ours");
    let time = Timespec { tv_sec: 77, tv_nsec: 1 };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, at("many/d1/f5"), &times, AtFlags::empty()).expect("ours");
    // Read, and made once more as it was: no difference but in time.
    let same = fs::read(at("many/d2/f6")).expect("there");
    fs::write(at("many/d2/f6"), same).expect("room");
    fs::write(at("many/d3/f7"), "other").expect("room");
}

/// What that comes to.
fn changes() -> BTreeMap<String, String> {
    lines([
        ("dangling", "Mtarget, time"),
        ("fifo", "Mmode"),
        ("file", "Mcontent, mode, time"),
        ("many/d1/f3", "Mxattrs"),
        ("many/d1/f4", "Mowner"),
        ("many/d1/f5", "Mtime"),
        ("many/d2/f6", "Mtime"),
        ("many/d3/f7", "Mcontent, time"),
        ("sparse", "-"),
        ("sub", "Mmode"),
        ("sub/deep/again", "Mcontent, mode, time"),
        ("sub/empty", "Mkind"),
        ("sub/empty/new", "+"),
        ("sub/sparse", "+"),
    ])
}

/// The same the other way round.
fn back(lines: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let turned = |what: &String| match what.as_str() {
        "-" => "+".to_owned(),
        "+" => "-".to_owned(),
        what => what.to_owned(),
    };
    lines.iter().map(|(path, what)| (path.clone(), turned(what))).collect()
}

#[test]
fn trees_snapshots_and_clones_are_compared() {
    let folder = Folder::new("diff");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let Some(mut mounted) = Mounted::start(&node, &point, &[]) else { return };
    let m = |name: &str| point.join(name);
    fill(&m("t"));
    many(&m("t/many"), 2000);
    snapshot(&node, "before");
    succeed(&[OsStr::new("clone"), m("t").as_os_str(), m("clone").as_os_str()]);
    succeed(&[OsStr::new("cp"), OsStr::new("-a"), m("t").as_os_str(), m("copy").as_os_str()]);
    let none = (0, BTreeMap::new());
    let old = m(".snapshots/before/t");
    for other in ["t", "clone", "copy"] {
        assert_eq!(diff(&[], &old, &m(other)), none, "{other}");
    }
    assert_eq!(diff(&["-q"], &m("clone"), &m("t")), none);

    // In memory, as nobody has synced it; in the trees; in a snapshot.
    change(&m("t"));
    let expected = changes();
    assert_eq!(diff(&[], &old, &m("t")), (1, expected.clone()));
    for other in ["clone", "copy"] {
        assert_eq!(diff(&[], &m(other), &m("t")), (1, expected.clone()), "{other}");
        assert_eq!(diff(&[], &m("t"), &m(other)), (1, back(&expected)), "{other}");
    }
    snapshot(&node, "after");
    let new = m(".snapshots/after/t");
    assert_eq!(diff(&[], &old, &new), (1, expected.clone()));
    assert_eq!(diff(&[], &new, &m("t")), none);
    let whole = diff(&[], &m(".snapshots/before"), &point).1;
    assert!(expected.iter().all(|(path, what)| whole.get(&format!("t/{path}")) == Some(what)), "{whole:?}");
    assert_eq!(whole.get("clone").map(String::as_str), Some("+"));
    assert!(whole.contains_key("copy/many/d1/f5") && !whole.contains_key("t/many/d1"));

    // Of a clone that goes its own way, after a restart and a crash.
    change(&m("clone"));
    mounted.restart();
    let between = diff(&["--content-only"], &m("clone"), &m("t"));
    assert_eq!(between, none, "both were changed alike");
    File::open(m("clone/file")).expect("there").sync_all().expect("room");
    mounted.kill();
    mounted.mend();
    assert_eq!(diff(&[], &old, &m("t")), (1, expected.clone()));

    // What counts as content, files alone, and nothing said.
    let mut content = expected.clone();
    content.retain(|_, what| what.len() == 1 || ["Mkind", "Mcon", "Mtar"].iter().any(|begin| what.starts_with(begin)));
    content.values_mut().for_each(|what| what.truncate(what.find(',').unwrap_or(what.len())));
    assert_eq!(diff(&["--content-only"], &old, &new), (1, content));
    assert_eq!(diff(&[], &old.join("file"), &new.join("file")), (1, lines([(".", "Mcontent, mode, time")])));
    assert_eq!(diff(&[], &old.join("file"), &new.join("sub/link")), (1, lines([(".", "Mkind")])));
    assert_eq!(diff(&["-q"], &old, &new), (1, BTreeMap::new()));
    assert_eq!(diff(&["-q"], &old, &old), none);
    expect_whole(&mounted);
    mounted.umount();
}

#[test]
fn programs_are_told_and_what_cannot_be_compared_says_why() {
    let folder = Folder::new("diff-json");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let (other, elsewhere) = (folder.node("o"), folder.make("e"));
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let Some(second) = Mounted::start(&other, &elsewhere, &[]) else { return };
    let m = |name: &str| point.join(name);
    for name in ["a", "b"] {
        fs::create_dir_all(m(name).join("sub")).expect("room");
        fs::write(m(name).join("sub/file"), format!("of {name}")).expect("room");
    }
    fs::write(m("a/old"), "12345").expect("room");
    let odd = OsStr::from_bytes(b"odd \xff\n name");
    File::create(m("b").join(odd)).expect("room").write_all(b"odd").expect("room");
    let ask = |options: &[&str]| {
        let arguments: Vec<&OsStr> = ["diff"].iter().chain(options).map(OsStr::new).collect();
        let (a, b) = (m("a"), m("b"));
        let output = hydrafs(&arguments.into_iter().chain([a.as_os_str(), b.as_os_str()]).collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let plain = ask(&["--content-only"]);
    assert!(plain.windows(14).any(|bytes| bytes == b"+ odd \xff\n name\n"), "bytes of names are as they are");
    let said = String::from_utf8(ask(&["--json"])).expect("JSON");
    let mut found: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    found.sort_by_key(|line| line["path"].to_string());
    assert_eq!(found.len(), 3);
    assert_eq!(found[0]["change"], "added");
    assert_eq!((&found[1]["change"], &found[1]["before"]["size"]), (&"removed".into(), &5.into()));
    assert_eq!((&found[2]["path"], &found[2]["change"]), (&"sub/file".into(), &"changed".into()));
    assert_eq!((&found[2]["what"][0], &found[2]["after"]["kind"]), (&"content".into(), &"file".into()));
    let sum: Value = serde_json::from_slice(&ask(&["--summary", "--json"])).expect("JSON");
    let count = |pointer: &str| sum.pointer(pointer).and_then(Value::as_u64);
    assert_eq!((count("/removed/files"), count("/removed/bytes")), (Some(1), Some(5)));
    assert_eq!((count("/added/bytes"), count("/changed/files"), count("/failed")), (Some(3), Some(1), Some(0)));
    let said = String::from_utf8(ask(&["--summary"])).expect("text");
    assert!(said.starts_with("removed  1 files (5 B), 0 directories"), "{said}");

    fs::write(elsewhere.join("x"), "x").expect("room");
    for (before, after, words) in [
        (m("a"), node.clone(), "not on HydraFS"),
        (node.clone(), m("a"), "diff -r --no-dereference"),
        (m("a"), elsewhere.join("x"), "lies on another mount"),
        (m("a"), m("nothing"), "No such file"),
        (m(".snapshots"), m("a"), "name one of them"),
    ] {
        let said = refusal(&before, &after);
        assert!(said.contains(words), "{said}");
    }
    let output = hydrafs(&[OsStr::new("diff"), m("a").as_os_str()]);
    assert_eq!(output.status.code(), Some(2), "an argument is missing");
    second.umount();
    mounted.umount();
}
