//! A node goes without a disk, and takes it in again; without the one that has the journal it goes when told to.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::PathBuf;

use crate::mount::{SMALL, status};
use crate::support::{Folder, Mounted, content, hydrafs, succeed};

/// So many that each disk has some of them whole, however they are flushed.
const FILES: u64 = 40;

#[test]
fn a_node_goes_without_a_disk_and_takes_it_in_again() {
    let folder = Folder::new("degraded");
    let (node, point, gone) = (folder.join("n"), folder.make("m"), folder.join("gone"));
    let disks = ["a", "b", "c"].map(|name| folder.join(name));
    let mut init = vec![OsStr::new("init"), node.as_os_str()];
    disks.iter().for_each(|disk| init.extend([OsStr::new("--disk"), disk.as_os_str()]));
    succeed(&init);
    let Some(mounted) = Mounted::start(&node, &point, &[SMALL]) else { return };
    // Random bytes: a chunk each, on all disks by turns.
    let bytes = |seed: u64| {
        let mut state = seed | 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33).to_le_bytes()[0]
        };
        (0..300_000).map(|_| next()).collect::<Vec<u8>>()
    };
    // One after the other: what is flushed together may all lie on one disk.
    for number in 0..FILES {
        fs::write(point.join(format!("f{number}")), bytes(number)).expect("room");
        File::open(point.join(format!("f{number}"))).and_then(|file| file.sync_all()).expect("it is synced");
    }
    mounted.umount();

    // Any but that with the journal: trees lie on two.
    let has_content =
        |disk: &PathBuf| content(&disk.join("packs")).values().any(|(_, _, bytes)| bytes.get(12) == Some(&2));
    assert!(disks.iter().all(has_content), "what is synced one after the other goes to all disks by turns");
    let lost = disks[2].clone();
    fs::rename(&lost, &gone).expect("our own disk");
    let refused = hydrafs(&[OsStr::new("mount"), node.as_os_str(), point.as_os_str()]);
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && message.contains("`--degraded`"), "{message}");
    // An empty directory where it should be mounted is no better.
    fs::create_dir(&lost).expect("room");
    let refused = hydrafs(&[OsStr::new("serve"), node.as_os_str()]);
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(message.contains("it is not a disk of a HydraFS node") && message.contains("`--degraded`"), "{message}");

    let said = succeed(&[OsStr::new("mount"), OsStr::new("--degraded"), node.as_os_str(), point.as_os_str()]);
    assert!(said.contains("DEGRADED") && said.contains(lost.to_str().expect("UTF-8")), "{said}");
    let mut mounted = Mounted::running(&node, &point);
    let unread: Vec<u64> = (0..FILES).filter(|number| fs::read(point.join(format!("f{number}"))).is_err()).collect();
    assert!(!unread.is_empty() && unread.len() < FILES as usize, "{unread:?}");
    for number in (0..FILES).filter(|number| !unread.contains(number)) {
        assert!(fs::read(point.join(format!("f{number}"))).expect("it lies elsewhere") == bytes(number));
    }
    let shown = status(&mounted);
    assert!(shown["missing"]["chunks"].as_u64().expect("a number") > 0, "{shown}");
    let missing = |disk: &serde_json::Value| disk["missing"] == true && disk["at_risk"]["chunks"].as_u64() > Some(0);
    assert_eq!(shown["disks"].as_array().expect("a list").iter().filter(|disk| missing(disk)).count(), 1);
    let text = succeed(&[OsStr::new("status"), node.as_os_str()]);
    assert!(text.contains("missing: it has no file `disk`") && text.contains("lie on no disk that is there"), "{text}");

    // The check tells which files, and nothing is repaired.
    let check = hydrafs(&[OsStr::new("fsck"), node.as_os_str()]);
    let text = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(check.status.code() == Some(1) && text.contains("HF0019") && text.contains("HF1024"), "{text}");
    assert!(text.contains(&format!("/f{}", unread[0])) && !text.contains("    repair:"), "{text}");
    let repair = hydrafs(&[OsStr::new("fsck"), OsStr::new("--repair"), node.as_os_str()]);
    let message = String::from_utf8_lossy(&repair.stderr).into_owned();
    assert!(repair.status.code() == Some(2) && message.contains("cannot repair the node"), "{message}");

    // What is written can be read, the same bytes as those that are missing too; also by the next process.
    fs::write(point.join("new"), bytes(100)).expect("room");
    fs::write(point.join("again"), bytes(unread[0])).expect("room");
    File::open(point.join("again")).and_then(|file| file.sync_all()).expect("on the other disks");
    mounted.restart();
    for (name, seed) in [("new", 100), ("again", unread[0])] {
        assert!(fs::read(point.join(name)).expect("it lies on the others") == bytes(seed), "{name}");
    }
    assert!(fs::read_dir(&lost).expect("ours").next().is_none(), "nothing was written where the disk should be");

    // It is back.
    fs::remove_dir(&lost).expect("empty");
    fs::rename(&gone, &lost).expect("our own disk");
    mounted.restart();
    assert_eq!(status(&mounted)["missing"], serde_json::Value::Null);
    for number in 0..FILES {
        assert!(fs::read(point.join(format!("f{number}"))).expect("it is back") == bytes(number));
    }
    mounted.umount();
    assert!(succeed(&[OsStr::new("fsck"), OsStr::new("--deep"), node.as_os_str()]).contains("all is well"));
    // The only home of the journal is the one disk that cannot be gone without, unless somebody gives up what was written last.
    fs::rename(&disks[0], &gone).expect("our own disk");
    let refused = hydrafs(&[OsStr::new("serve"), OsStr::new("--degraded"), node.as_os_str()]);
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && message.contains("the journal is on disk 0"), "{message}");
    let check = |more: &[&str]| {
        let arguments = ["fsck", "--degraded", "--repair"].iter().chain(more).map(OsStr::new);
        let output = hydrafs(&arguments.chain([node.as_os_str()]).collect::<Vec<_>>());
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for cautious in [&[][..], &["--accept-loss", "--dry-run"]] {
        let (code, message) = check(cautious);
        assert!(code == Some(2) && message.contains("goes on from the last commit"), "{message}");
    }
    let (code, message) = check(&["--accept-loss"]);
    assert!(
        code == Some(1) && message.contains("given up: ") && message.contains("the journal is on disk 0"),
        "{message}"
    );
    // From now on the journal is elsewhere.
    succeed(&[OsStr::new("mount"), OsStr::new("--degraded"), node.as_os_str(), point.as_os_str()]);
    let mounted = Mounted::running(&node, &point);
    fs::write(point.join("newest"), bytes(200)).expect("room");
    let there =
        (0..FILES).filter(|number| fs::read(point.join(format!("f{number}"))).is_ok_and(|read| read == bytes(*number)));
    assert!(there.count() > 0);
    assert_eq!(
        fs::read_dir(&point).expect("trees lie on two disks").count(),
        FILES as usize + 3,
        "and three that were made later"
    );
    mounted.umount();
    // And should it come back after all, it is one of the node's.
    fs::rename(&gone, &disks[0]).expect("our own disk");
    let Some(mounted) = Mounted::start(&node, &point, &[SMALL]) else { return };
    for number in 0..FILES {
        assert!(fs::read(point.join(format!("f{number}"))).expect("it is back") == bytes(number));
    }
    assert!(fs::read(point.join("newest")).expect("it was synced") == bytes(200));
    mounted.umount();
    assert!(succeed(&[OsStr::new("fsck"), OsStr::new("--deep"), node.as_os_str()]).contains("all is well"));
}
