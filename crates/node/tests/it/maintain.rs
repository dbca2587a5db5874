//! `hydrafs gc`, `hydrafs scrub` and what `hydrafs fsck` says of the opening before it, under a mount and without one.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{Folder, Mounted, hydrafs, noise, succeed};

fn json(arguments: &[&str], node: &Path) -> Value {
    let node = node.to_str().expect("a name of ours");
    let arguments: Vec<&str> = arguments.iter().copied().chain(["--json", node]).collect();
    serde_json::from_str(&succeed(&arguments)).expect("JSON")
}

fn number(answer: &Value, name: &str) -> u64 {
    answer.pointer(name).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {name} in {answer}"))
}

fn packs(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            packs(&entry, found);
        } else if entry.extension().is_some_and(|extension| extension == "pack") {
            found.push(entry);
        }
    }
}

#[test]
fn removed_files_give_their_room_back_when_somebody_says_so() {
    let folder = Folder::new("gc");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let bytes = noise(1, 80 << 20);
    fs::write(point.join("goes"), &bytes).expect("room");
    fs::write(point.join("stays"), noise(2, 1 << 20)).expect("room");
    succeed(&["sync", point.to_str().expect("a name of ours")]);
    fs::remove_file(point.join("goes")).expect("it is there");
    let plan = json(&["gc", "--dry-run"], &node);
    assert!(number(&plan, "/bytes_freed") > 60 << 20, "a pack is full and dead: {plan}");
    assert_eq!(number(&plan, "/packs_deleted"), 0, "{plan}");
    let done = json(&["gc", "--thorough"], &node);
    assert!(number(&done, "/bytes_freed") > 80 << 20, "{done}");
    let again = json(&["gc", "--thorough", "--share", "100"], &node);
    assert_eq!((number(&again, "/bytes_freed"), number(&again, "/bytes_dead_left")), (0, 0), "{again}");
    assert_eq!(fs::read(point.join("stays")).expect("it stays"), noise(2, 1 << 20));
    mounted.umount();
}

#[test]
fn scrub_finds_what_rotted_and_says_how_old_the_last_look_is() {
    let folder = Folder::new("scrub");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    fs::write(point.join("file"), noise(3, 10 << 20)).expect("room");
    succeed(&["sync", point.to_str().expect("a name of ours")]);
    let plan = json(&["scrub", "--dry-run"], &node);
    assert!(number(&plan, "/planned_bytes") > 10 << 20, "{plan}");
    assert_eq!(number(&json(&["scrub", "--dry-run", "--older-than", "1 d"], &node), "/planned_packs"), 0);
    let done = json(&["scrub", "--share", "50"], &node);
    assert!(number(&done, "/bytes") >= number(&plan, "/planned_bytes"), "{done}");
    assert_eq!((number(&done, "/status/unknown_packs"), number(&done, "/status/damaged_packs")), (0, 0), "{done}");
    mounted.umount();
    let mut found = Vec::new();
    packs(&folder.0, &mut found);
    let largest = found.iter().max_by_key(|path| fs::metadata(path).expect("a pack").len()).expect("a pack");
    fs::File::options().write(true).open(largest).expect("ours").write_all_at(b"rot", 1 << 20).expect("room");
    let node = node.to_str().expect("a name of ours");
    let output = hydrafs(&["scrub", node]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("DAMAGED: HF0007 a chunk: ") && text.contains("fsck --deep --repair"), "{text}");
}

/// What an opening puts right nobody finds afterwards: it is told by who opened the node.
#[test]
fn fsck_tells_what_opening_the_node_has_mended() {
    let folder = Folder::new("mended");
    let node = folder.node("n");
    let mended = || {
        let report = json(&["fsck", "--deep"], &node);
        assert_eq!(report["clean"], true, "{report}");
        report["mended"].as_array().expect("a list").iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    // The first commit has written one of the two slots, each end of a command another.
    for _ in 0..3 {
        assert_eq!(mended(), Vec::<String>::new());
    }
    for (file, at, code) in [
        ("superblock", 50, "HF0001"),
        ("superblock", 4096 + 50, "HF0001"),
        ("disk", 60, "HF0003"),
        ("disk.copy", 60, "HF0018"),
        ("index", 40, "HF0010"),
    ] {
        let path = node.join("disk").join(file);
        let spoilt = File::options().read(true).write(true).open(&path).expect("our own disk");
        let mut byte = [0];
        spoilt.read_exact_at(&mut byte, at).expect("it is as long");
        spoilt.write_all_at(&[!byte[0]], at).expect("room");
        let told = mended();
        let place = if file == "index" { "the index".to_owned() } else { format!("/disk/{file} at {}", at & !4095) };
        assert!(told.len() == 1 && told[0].contains(code) && told[0].contains(&place), "{file} at {at}: {told:?}");
        assert_eq!(mended(), Vec::<String>::new(), "{file} at {at} was mended");
    }
}
