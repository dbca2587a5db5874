//! A disk without room, under programs: what they are told, what stays, and that there is room again when files go.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use crate::batch::expect_whole;
use crate::support::{Folder, Mounted, Tmpfs, noise, succeed};

/// An eighth of it is the reserve, which content does not get.
const DISK_BYTES: u64 = 256 << 20;
const FILE_BYTES: usize = 1 << 20;

/// A node in this folder with a small disk of its own. `None` where we may not mount. Its settings hold for each daemon of a test.
fn node_on_a_small_disk(folder: &Folder, settings: &str) -> Option<(Tmpfs, PathBuf)> {
    let Some(disk) = Tmpfs::mount(&folder.make("disk"), DISK_BYTES) else {
        skipped::because("a tmpfs cannot be mounted here");
        return None;
    };
    let node = folder.join("n");
    succeed(&[OsStr::new("init"), node.as_os_str(), OsStr::new("--disk"), disk.0.as_os_str()]);
    fs::write(node.join("hydrafs.toml"), settings).expect("room");
    Some((disk, node))
}

/// Fails with "no space left", and with nothing else.
#[track_caller]
fn refused_for_room<T>(what: &str, result: io::Result<T>) {
    assert_eq!(result.map(drop).map_err(|error| error.raw_os_error()), Err(Some(libc::ENOSPC)), "{what}");
}

fn write_and_sync(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Files that were synced, and the seeds of their content.
type Synced = BTreeMap<PathBuf, u64>;

/// Three programs write files and sync each, until they are told that there is no room.
fn fill(point: &Path, round: u64) -> Synced {
    let program = |program: u64| {
        let mut synced = Synced::new();
        for number in 0..DISK_BYTES / FILE_BYTES as u64 {
            let (path, seed) =
                (point.join(format!("{round}-{program}-{number}")), (round * 3 + program) << 16 | number);
            match write_and_sync(&path, &noise(seed, FILE_BYTES)) {
                Ok(()) => synced.insert(path, seed),
                refused => {
                    refused_for_room(&path.display().to_string(), refused);
                    return synced;
                }
            };
        }
        panic!("it never fills");
    };
    std::thread::scope(|scope| {
        let programs = [0, 1, 2].map(|number| scope.spawn(move || program(number)));
        programs.into_iter().flat_map(|program| program.join().expect("told of want of room alone")).collect()
    })
}

#[track_caller]
fn expect_synced(synced: &Synced) {
    for (path, seed) in synced {
        let found = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(found == noise(*seed, FILE_BYTES), "{}", path.display());
    }
}

#[test]
fn programs_fill_a_disk_keep_what_they_synced_and_have_room_again_when_files_go() {
    let folder = Folder::new("filled");
    let Some((_disk, node)) = node_on_a_small_disk(&folder, "[memory]\nbudget = \"64 MiB\"\n") else { return };
    let point = folder.make("m");
    let Some(mut mounted) = Mounted::start(&node, &point, &[]) else { return };
    let mut synced = fill(&point, 0);
    assert!(synced.len() > 120, "only {} files", synced.len());
    // What the kernel has kept of it proves nothing: a daemon that finds the disk full has all of it.
    mounted.kill();
    mounted.mend();
    expect_synced(&synced);

    let gone: Vec<PathBuf> = synced.keys().step_by(2).cloned().collect();
    for path in &gone {
        fs::remove_file(path).expect("want of room keeps nobody from removing");
        synced.remove(path);
    }
    let more = fill(&point, 1);
    assert!(more.len() > gone.len() / 2, "{} files for {} that went", more.len(), gone.len());
    synced.extend(more);
    expect_whole(&mounted);
    mounted.umount();
    let report = succeed(&[OsStr::new("fsck"), OsStr::new("--deep"), node.as_os_str()]);
    assert!(report.contains("all is well"), "{report}");
    let mounted = Mounted::start(&node, &point, &[]).expect("as before");
    expect_synced(&synced);
    mounted.umount();
}

/// Something else takes the room, after what programs wrote was accepted.
#[test]
fn who_syncs_writes_or_makes_names_hears_that_the_room_has_gone_and_goes_on_when_it_is_back() {
    let folder = Folder::new("taken");
    // Nothing is stored before somebody says so.
    let settings = "[memory]\nbudget = \"1 GiB\"\n[durability]\nflush_interval = \"1 h\"\n";
    let Some((disk, node)) = node_on_a_small_disk(&folder, settings) else { return };
    let point = folder.make("m");
    let Some(mut mounted) = Mounted::start(&node, &point, &[]) else { return };
    let m = |name: &str| point.join(name);
    let synced: Synced = (0..8).map(|seed| (m(&format!("synced-{seed}")), seed)).collect();
    synced.iter().for_each(|(path, seed)| write_and_sync(path, &noise(*seed, FILE_BYTES)).expect("room"));
    let content = noise(100, 4 << 20);
    let late = OpenOptions::new().read(true).write(true).create_new(true).open(m("late")).expect("room");
    late.write_all_at(&content, 0).expect("accepted");

    let filler = disk.0.join("filler");
    let room = rustix::fs::statvfs(&disk.0).expect("it is mounted");
    // Less than the reserve is left.
    fs::write(&filler, vec![1; (room.f_bavail * room.f_frsize) as usize - (20 << 20)]).expect("room");
    for _ in 0..2 {
        refused_for_room("fsync", late.sync_all());
        refused_for_room("fdatasync", late.sync_data());
        refused_for_room("write", late.write_all_at(&content, content.len() as u64));
        refused_for_room("mkdir", fs::create_dir(m("directory")));
        refused_for_room("open", File::create_new(m("file")));
        refused_for_room("symlink", symlink("late", m("symlink")));
        refused_for_room("link", fs::hard_link(m("late"), m("link")));
        let over = OpenOptions::new().write(true).open(m("synced-0")).expect("it is there");
        refused_for_room("write over", over.write_all_at(&content[..FILE_BYTES], 0));
        // Nobody else is harmed.
        let names = fs::read_dir(&point).expect("a listing").count();
        assert_eq!(names, synced.len() + 1);
        expect_synced(&synced);
        assert!(fs::read(m("late")).expect("accepted") == content);
    }
    fs::remove_file(filler).expect("ours");
    late.sync_all().expect("room");
    drop(late);
    fs::create_dir(m("directory")).expect("room");
    write_and_sync(&m("directory/file"), &content[..FILE_BYTES]).expect("room");
    mounted.kill();
    mounted.mend();
    expect_synced(&synced);
    assert!(fs::read(m("late")).expect("synced") == content);
    assert!(fs::read(m("directory/file")).expect("synced") == content[..FILE_BYTES]);
    expect_whole(&mounted);
    mounted.umount();
    let report = succeed(&[OsStr::new("fsck"), OsStr::new("--deep"), node.as_os_str()]);
    assert!(report.contains("all is well"), "{report}");
}
