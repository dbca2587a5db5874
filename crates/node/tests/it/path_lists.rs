//! Lists of paths, which come from a file: what they name is copied, archived or removed, each of it once, and the fate of what cannot be is told.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::batch::many;
use crate::support::{Folder, Mounted, content, hydrafs, os, refusal, run, succeed};

/// A list that begins nowhere in particular, names some twice, and has what leads nowhere.
const LISTED: [&str; 13] = [
    "many/d3/f7",
    "many/d0/f1",
    "gone/f1",
    "./many/d0//f2",
    "many/d0/f1",
    "many/d3",
    "many/d0/f1/x",
    "many/d2/f0/x",
    "link/d1/f0",
    "loop",
    "/etc/hostname",
    "../x",
    "odd \u{e9}",
];
/// Those of them that cannot be had.
const FAILING: [&str; 6] = ["/etc/hostname", "../x", "gone/f1", "link/d1/f0", "many/d0/f1/x", "many/d2/f0/x"];

fn fill(top: &Path) {
    many(&top.join("many"), 500);
    symlink("many", top.join("link")).expect("room");
    symlink("loop", top.join("loop")).expect("room");
    fs::write(top.join("odd \u{e9}"), "odd").expect("room");
}

/// What is listed and can be had, below a folder.
fn expected(top: &Path) -> BTreeSet<PathBuf> {
    let files = (0..50).map(|number| format!("many/d3/f{number}"));
    // The way to what is no file below one is made all the same.
    let others =
        ["many", "many/d2", "many/d0", "many/d0/f1", "many/d0/f2", "many/d3", "loop", "odd \u{e9}"].map(str::to_owned);
    files.chain(others).map(|path| top.join(path)).collect()
}

/// The paths that an answer names as failed, as far as they lie below `top` seen from there.
fn failed(answer: &serde_json::Value, top: &Path) -> BTreeSet<String> {
    let path = |failed: &serde_json::Value| {
        let path = failed["path"].as_str().expect("text");
        Path::new(path).strip_prefix(top).map_or_else(|_| path.to_owned(), |below| below.display().to_string())
    };
    let named = answer["failed"].as_array().expect("a list");
    let paths: BTreeSet<String> = named.iter().map(path).collect();
    assert_eq!(paths.len(), named.len(), "each is told once: {answer}");
    paths
}

#[test]
fn what_a_list_names_is_copied_and_archived_and_what_cannot_be_is_told() {
    let folder = Folder::new("path-lists");
    let (node, point, out) = (folder.node("n"), folder.make("m"), folder.join("out"));
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    fill(&point);
    let list = folder.join("list");
    fs::write(&list, LISTED.join("\n")).expect("room");
    let failing = BTreeSet::from(FAILING.map(str::to_owned));

    let copy = |list: &Path, to: &Path| {
        hydrafs(&[
            os("cp"),
            os("-a"),
            os("--json"),
            os("--files-from"),
            list.as_os_str(),
            point.as_os_str(),
            to.as_os_str(),
        ])
    };
    let output = copy(&list, &out);
    assert_eq!(output.status.code(), Some(1));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(failed(&answer, &point), failing);
    let copied = content(&out);
    assert_eq!(copied.keys().cloned().collect::<BTreeSet<_>>(), expected(&out));
    for (path, found) in copied.iter().filter(|(path, _)| !path.ends_with("loop")) {
        let from = point.join(path.strip_prefix(&out).expect("below"));
        assert_eq!(found.2, if from.is_dir() { Vec::new() } else { fs::read(from).expect("there") }, "{path:?}");
    }

    // In several parts; what is in each of them is copied by each, and names of one file stay names of one.
    let long = folder.join("long");
    fs::hard_link(point.join("many/d0/f1"), point.join("many/d1/same")).expect("mounted");
    fs::write(&long, "many/d0/f1\n".repeat(300_000) + "many/d1/same\n").expect("room");
    let again = folder.join("again");
    let output = copy(&long, &again);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(content(&again).len(), 1 + 2 + 2);
    let inode = |path: &str| fs::metadata(again.join(path)).expect("copied").ino();
    assert_eq!(inode("many/d0/f1"), inode("many/d1/same"));

    // All, what lies in it, and what no listing of it shows: each once.
    succeed(&[os("snapshot"), os("create"), node.as_os_str(), os("s")]);
    fs::write(&list, "many/d1/f0\n.snapshots/s/many/d0\n.snapshots/s/many/d0/f1\n.\nmany/d4").expect("room");
    let (all, from) = (folder.join("all"), content(&point).len());
    let output = copy(&list, &all);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((output.status.code(), answer["failures"].as_u64()), (Some(0), Some(0)), "{answer}");
    assert_eq!(content(&all).len(), from + 4 + 50, "with the four directories that lead to the snapshot's");
    // The directory that all goes to, and the further name of a file.
    assert_eq!(answer["files"].as_u64(), Some(1 + from as u64 + 4 + 50), "{answer}");
    fs::write(&list, LISTED.join("\n")).expect("room");

    let archive = folder.join("out.tar");
    let zeroed = folder.join("zeroed");
    fs::write(&zeroed, LISTED.join("\0")).expect("room");
    let tar = [
        os("tar"),
        os("-c"),
        os("--json"),
        os("-f"),
        archive.as_os_str(),
        os("-C"),
        point.as_os_str(),
        os("-T"),
        zeroed.as_os_str(),
        os("--null"),
    ];
    let output = hydrafs(&tar);
    assert_eq!(output.status.code(), Some(1));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(failed(&answer, &point), failing);
    let taken = folder.make("taken");
    let extracted = run(Command::new("tar").args([os("-xf"), archive.as_os_str(), os("-C"), taken.as_os_str()]));
    assert!(extracted.status.success(), "{}", String::from_utf8_lossy(&extracted.stderr));
    let mut archived = expected(&taken);
    assert!(archived.remove(&taken.join("many/d2")), "an archive has what is listed alone");
    assert_eq!(content(&taken).into_keys().collect::<BTreeSet<_>>(), archived);
    let refused = refusal(&[os("tar"), os("-x"), os("-f"), archive.as_os_str(), os("-T"), list.as_os_str()]);
    assert!(refused.contains("all of it is extracted"), "{refused}");
    drop(mounted);
}

#[test]
fn what_a_list_names_is_removed_and_nothing_else() {
    let folder = Folder::new("path-lists-rm");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    fill(&point);
    let before: BTreeSet<PathBuf> = content(&point).into_keys().collect();
    let list = folder.join("list");
    let below = ["many/d0/f1", "many/d3/f7", "loop", "many/d3", "gone", "many/d0/f1"].map(|path| point.join(path));
    let bytes: Vec<&[u8]> = below.iter().map(|path| path.as_os_str().as_bytes()).collect();
    fs::write(&list, bytes.join(&0)).expect("room");
    let rm = |further: &[&str]| {
        let arguments = [os("rm"), os("-r"), os("--null"), os("--json"), os("--files-from"), list.as_os_str()];
        hydrafs(&arguments.into_iter().chain(further.iter().map(|a| os(a))).collect::<Vec<&OsStr>>())
    };
    let output = rm(&[]);
    assert_eq!(output.status.code(), Some(1));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(failed(&answer, &point), BTreeSet::from(["gone".to_owned()]));
    let is_removed = |path: &Path| path.starts_with(&below[3]) || path == below[0] || path == below[2];
    let after: BTreeSet<PathBuf> = content(&point).into_keys().collect();
    assert_eq!(after, before.into_iter().filter(|path| !is_removed(path)).collect());
    // All of it has gone, which is no failure for who says so.
    assert!(rm(&["-f"]).status.success());
    drop(mounted);
}

#[test]
fn a_list_that_makes_no_sense_is_refused_before_anything_is_done() {
    let folder = Folder::new("path-lists-refused");
    let (node, point, list) = (folder.node("n"), folder.make("m"), folder.join("list"));
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    fs::write(point.join("f"), "content").expect("room");
    fs::write(&list, "x".repeat(20_000)).expect("room");
    let (to, plain) = (folder.join("to"), folder.make("plain"));
    let cp = |arguments: &[&OsStr]| {
        let arguments = [os("cp"), os("--files-from")].into_iter().chain(arguments.iter().copied());
        refusal(&arguments.collect::<Vec<_>>())
    };
    let (from, into) = (point.as_os_str(), to.as_os_str());
    assert!(cp(&[list.as_os_str(), from, into]).contains("a path of more than"));
    assert!(cp(&[os("/no/such/list"), from, into]).contains("cannot read the list: /no/such/list"));
    fs::write(&list, "f").expect("room");
    assert!(cp(&[list.as_os_str(), plain.as_os_str(), into]).contains("list what lies in a mount"));
    assert!(cp(&[list.as_os_str(), from, from, into]).contains("one directory"));
    assert!(cp(&[list.as_os_str(), os("--no-batch"), from, into]).contains("leave out the other options"));
    assert!(!to.exists());
    succeed(&[os("cp"), os("--files-from"), list.as_os_str(), from, into]);
    assert_eq!(fs::read(to.join("f")).expect("copied"), b"content");
    drop(mounted);
}
