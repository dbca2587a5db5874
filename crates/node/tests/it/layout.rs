//! `hydrafs optimize` and `hydrafs warmup`: what lies scattered comes together, what will be read is in memory.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::Value;

use crate::batch::expect_whole;
use crate::support::{Folder, Mounted, hydrafs, noise, os, refusal, run, succeed};

const FILES: usize = 60;

fn json(arguments: &[&OsStr]) -> Value {
    serde_json::from_str(&succeed(arguments)).expect("JSON")
}

fn number(answer: &Value, name: &str) -> u64 {
    answer.pointer(name).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {name} in {answer}"))
}

fn content(number: usize) -> Vec<u8> {
    noise(number as u64, 3000)
}

/// Small files, each far from the one before it.
fn scatter(mounted: &Mounted, small: &Path, large: &Path) {
    for folder in [small.to_owned(), small.join("sub"), large.to_owned()] {
        fs::create_dir_all(folder).expect("mounted");
    }
    for number in 0..FILES {
        let folder = if number % 3 == 0 { small.join("sub") } else { small.to_owned() };
        let mut file = fs::File::create(folder.join(format!("f{number}"))).expect("room");
        file.write_all(&content(number)).expect("room");
        if number % 2 == 0 {
            // Into the journal: those come together by a commit.
            file.sync_all().expect("room");
        }
        fs::write(large.join(format!("l{number}")), noise(1000 + number as u64, 200_000)).expect("room");
        succeed(&[os("sync"), mounted.point.as_os_str()]);
    }
}

fn expect_same(small: &Path) {
    for number in 0..FILES {
        let folder = if number % 3 == 0 { small.join("sub") } else { small.to_owned() };
        assert!(fs::read(folder.join(format!("f{number}"))).expect("there") == content(number), "{number}");
    }
}

#[test]
fn scattered_files_come_together_and_stay_the_same() {
    let folder = Folder::new("optimize");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let Some(mut mounted) = Mounted::start(&node, &point, &[]) else { return };
    let (small, large) = (point.join("small"), point.join("large"));
    scatter(&mounted, &small, &large);
    succeed(&[os("snapshot"), os("create"), node.as_os_str(), os("then")]);

    let ask = |arguments: &[&str]| {
        let arguments: Vec<&OsStr> = arguments.iter().map(|argument| os(argument)).collect();
        json(&[&[os("optimize"), os("--json")], &arguments[..], &[small.as_os_str()]].concat())[0].clone()
    };
    let plan = ask(&["--dry-run"]);
    assert_eq!((number(&plan, "/files"), number(&plan, "/failed")), (FILES as u64, 0), "{plan}");
    assert!(number(&plan, "/runs_before") >= 25 && number(&plan, "/runs_min") == 1, "{plan}");
    let again = ask(&["--dry-run"]);
    assert_eq!(again["runs_before"], plan["runs_before"], "nothing was written");
    let done = ask(&["--share", "100"]);
    assert_eq!(
        (&done["complete"], &done["runs_before"], &done["bytes"]),
        (&true.into(), &plan["runs_before"], &plan["bytes"])
    );
    assert!(number(&done, "/runs_after") <= 2, "{done}");
    let said = succeed(&[os("optimize"), small.as_os_str()]);
    assert!(said.contains("60 small files lie in") && said.contains("there is nothing to do"), "{said}");
    expect_same(&small);

    fs::write(point.join("file"), "file").expect("room");
    let link = folder.join("link");
    symlink(&small, &link).expect("room");
    for (path, words) in [
        (point.join("file"), "it is no directory"),
        (point.join("nothing"), "No such file"),
        (point.join(".snapshots/then/small"), "it is in a snapshot"),
        (node.clone(), "not on HydraFS"),
        (link, "it is no directory"),
    ] {
        let said = refusal(&[os("optimize"), path.as_os_str()]);
        assert!(said.contains(words), "{}: {said}", path.display());
    }
    let said = refusal(&[os("optimize"), os("--share"), os("0"), small.as_os_str()]);
    assert!(said.contains("1 to 100"), "{said}");

    succeed(&[os("gc"), os("--thorough"), node.as_os_str()]);
    mounted.kill();
    mounted.mend();
    expect_same(&small);
    expect_same(&point.join(".snapshots/then/small"));
    assert_eq!(number(&ask(&[]), "/bytes"), 0, "they stay together");
    expect_whole(&mounted);
    mounted.umount();
}

#[test]
fn upkeep_in_the_background_is_told_of_by_status() {
    let folder = Folder::new("upkeep");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let settings = [("HYDRAFS_STORAGE_LAYOUT_INTERVAL", "1 s"), ("HYDRAFS_STORAGE_BACKGROUND_SHARE", "100")];
    let Some(mounted) = Mounted::start(&node, &point, &settings) else { return };
    let small = point.join("small");
    scatter(&mounted, &small, &point.join("large"));
    // The next pass that begins after this sees all of it.
    let passes = || {
        number(&json(&[os("stats"), os("--json"), os("-n"), os("1"), node.as_os_str()]), "/counters/file_layout_passes")
    };
    let before = passes();
    while passes() < before + 2 {}
    let plan = json(&[os("optimize"), os("--json"), os("--dry-run"), small.as_os_str()]);
    let status = json(&[os("status"), os("--json"), node.as_os_str()]);
    // Passes went on while files were written: each directory lies together, in a few runs.
    assert!((1..=6).contains(&number(&plan[0], "/runs_before")), "{plan} {}", status["layout"]);
    assert_eq!(number(&status, "/layout/interval_seconds"), 1);
    assert_eq!(status["layout"]["last"]["complete"], true, "{status}");
    let said = succeed(&[os("status"), node.as_os_str()]);
    assert!(said.contains("layout    ") && said.contains(" small files in "), "{said}");
    expect_same(&small);
    mounted.umount();
}

#[test]
fn what_was_warmed_is_read_from_memory() {
    let folder = Folder::new("warmup");
    let (node, point) = (folder.node("n"), folder.make("m"));
    // Commits read trees; what a reader does is looked at here.
    let settings = [("HYDRAFS_MOUNT_ACCESS_TIMES", "noatime"), ("HYDRAFS_DURABILITY_COMMIT_INTERVAL", "1 h")];
    let Some(mounted) = Mounted::start(&node, &point, &settings) else { return };
    let (small, large) = (point.join("small"), point.join("large"));
    scatter(&mounted, &small, &large);
    succeed(&[os("snapshot"), os("create"), node.as_os_str(), os("then")]);
    mounted.umount();
    // Neither the daemon nor the kernel has any of it.
    let Some(mounted) = Mounted::start(&node, &point, &settings) else { return };
    let counters = |node: &Path| json(&[os("stats"), os("--json"), os("-n"), os("1"), node.as_os_str()]);
    let reads = |stats: &Value| {
        ["read_bytes", "prefetched_chunks", "cache_data_misses", "cache_metadata_misses", "ordered_runs", "groups_read"]
            .map(|name| number(stats, &format!("/counters/store_{name}")))
    };
    let cold = reads(&counters(&node));
    let warmed = json(&[os("warmup"), os("--json"), small.as_os_str(), large.join("l7").as_os_str()]);
    assert_eq!((number(&warmed, "/files"), number(&warmed, "/directories")), (FILES as u64 + 1, 2), "{warmed}");
    assert_eq!((&warmed["complete"], &warmed["full"]), (&true.into(), &false.into()), "{warmed}");
    let stats = counters(&node);
    let (warm, calls) = (reads(&stats), number(&stats, "/counters/file_reads"));
    assert!(warm[0] > cold[0] && warm[4] > cold[4], "{cold:?} {warm:?}");
    expect_same(&small);
    assert!(fs::read(large.join("l7")).expect("there") == noise(1007, 200_000));
    let stats = counters(&node);
    assert!(number(&stats, "/counters/file_reads") > calls + FILES as u64, "the kernel had none of it");
    assert_eq!(reads(&stats), warm, "all of it came from memory");

    let then = point.join(".snapshots/then/small");
    let said = succeed(&[os("warmup"), os("--metadata"), then.as_os_str()]);
    assert!(said.starts_with("attributes of 60 files and 2 directories are in memory"), "{said}");
    let said = succeed(&[os("warmup"), then.as_os_str()]);
    assert!(said.starts_with("60 files and 2 directories are in memory: ") && said.contains("memory holds "), "{said}");

    for (path, words) in [(point.join("nothing"), "No such file"), (node.clone(), "not on HydraFS")] {
        let said = refusal(&[os("warmup"), small.as_os_str(), path.as_os_str()]);
        assert!(said.contains(words), "{}: {said}", path.display());
    }
    mounted.umount();
}

#[test]
fn a_small_memory_says_how_much_it_has_room_for_and_damage_is_named() {
    let folder = Folder::new("warmup-little");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let settings = [("HYDRAFS_MEMORY_BUDGET", "64 MiB")];
    let Some(mounted) = Mounted::start(&node, &point, &settings) else { return };
    let folder_of_many = point.join("many");
    fs::create_dir(&folder_of_many).expect("mounted");
    for number in 0..40_u64 {
        fs::write(folder_of_many.join(format!("f{number}")), noise(number, 1 << 20)).expect("room");
    }
    succeed(&[os("sync"), point.as_os_str()]);
    let warmed = json(&[os("warmup"), os("--json"), folder_of_many.as_os_str()]);
    assert_eq!((&warmed["complete"], &warmed["full"]), (&false.into(), &true.into()), "{warmed}");
    let files = number(&warmed, "/files");
    assert!((1..40).contains(&files) && number(&warmed, "/bytes") == files << 20, "{warmed}");
    assert!(number(&warmed, "/held_bytes") <= number(&warmed, "/room_bytes"), "{warmed}");
    let said = succeed(&[os("warmup"), folder_of_many.as_os_str()]);
    assert!(said.contains("memory is full ("), "{said}");
    mounted.umount();

    // A byte of the content of one of them rots.
    let rotten = noise(7, 1 << 20);
    let packs = run(std::process::Command::new("find").arg(&folder.0).args(["-name", "*.pack"]));
    let packs = String::from_utf8_lossy(&packs.stdout).into_owned();
    let (pack, at) = packs
        .lines()
        .find_map(|pack| {
            let bytes = fs::read(pack).expect("readable");
            Some((pack, bytes.windows(64).position(|window| *window == rotten[5000..5064])?))
        })
        .expect("it is stored as it is");
    let mut bytes = fs::read(pack).expect("readable");
    bytes[at] ^= 1;
    fs::write(pack, bytes).expect("ours");
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let output = hydrafs(&[os("warmup"), os("--json"), folder_of_many.as_os_str()]);
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let path = folder_of_many.join("f7").display().to_string();
    assert_eq!(
        (answer["failed"][0]["path"].as_str(), answer["failures"].as_u64()),
        (Some(&path[..]), Some(1)),
        "{answer}"
    );
    assert!(said.contains(&format!("cannot read: {path}; ")) && said.contains("not everything was read"), "{said}");
    assert_eq!(number(&answer, "/files"), 39);
    mounted.umount();
}
