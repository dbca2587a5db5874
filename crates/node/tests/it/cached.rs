//! What the kernel keeps of a mount: looks that cost no request, and changes made elsewhere that are seen all the same.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Folder, Mounted, run, succeed};

/// How many requests of each kind came.
type Requests = BTreeMap<String, u64>;

/// Requests of the kernel so far. Not those that give references back: they come when the kernel likes.
fn requests(mounted: &Mounted) -> Requests {
    let text = succeed(&[OsStr::new("stats"), OsStr::new("--prometheus"), mounted.node.as_os_str()]);
    let request = |line: &str| {
        let (kind, count) = line.strip_prefix("hydrafs_fuse_requests_total{op=\"")?.split_once("\"} ")?;
        Some((kind.to_owned(), count.parse().expect("a number")))
    };
    text.lines().filter_map(request).filter(|(kind, _)| !kind.ends_with("forget")).collect()
}

/// What `work` costs.
fn cost(mounted: &Mounted, work: impl FnOnce()) -> Requests {
    let before = requests(mounted);
    work();
    let grown = |(kind, count): (String, u64)| (count - before.get(&kind).copied().unwrap_or(0), kind);
    requests(mounted)
        .into_iter()
        .map(grown)
        .filter(|(count, _)| *count > 0)
        .map(|(count, kind)| (kind, count))
        .collect()
}

fn count(requests: &Requests, kinds: &[&str]) -> u64 {
    kinds.iter().filter_map(|kind| requests.get(*kind)).sum()
}

/// The size of a file, if there is one.
fn size(path: &Path) -> Option<u64> {
    match fs::metadata(path) {
        Ok(found) => Some(found.len()),
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{}", path.display());
            None
        }
    }
}

#[track_caller]
fn expect_sizes(directory: &Path, sizes: &[(&str, Option<u64>)]) {
    for (name, expected) in sizes {
        assert_eq!(size(&directory.join(name)), *expected, "{name}");
    }
}

#[test]
fn a_second_look_costs_nothing_and_sees_what_was_changed_around_the_kernel() {
    let folder = Folder::new("looks");
    let (node, point, from) = (folder.node("n"), folder.make("m"), folder.make("from"));
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let to = point.join("to");
    fs::create_dir_all(to.join("tree/below")).expect("room");
    for name in ["changed", "left", "tree/file", "tree/below/file"] {
        fs::write(to.join(name), "old").expect("room");
    }
    let sizes = |sizes: &[(&'static str, Option<u64>)]| {
        expect_sizes(&to, sizes);
        for _ in 0..3 {
            assert_eq!(cost(&mounted, || expect_sizes(&to, sizes)), Requests::new(), "nothing happened since");
        }
    };
    let old = [("changed", Some(3)), ("left", Some(3)), ("tree/file", Some(3)), ("tree/below/file", Some(3))];
    sizes(&old);
    // A name that is not there costs one look as well.
    for name in ["new", "absent", "tree/absent"] {
        let looked_up = Requests::from([("lookup".to_owned(), 1)]);
        assert_eq!(cost(&mounted, || expect_sizes(&to, &[(name, None)])), looked_up, "{name}");
        sizes(&[(name, None)]);
    }

    // A batch puts a file where none was, and another over one that the kernel has, content and all.
    assert_eq!(fs::read(to.join("changed")).expect("it is there"), b"old");
    fs::write(from.join("new"), "that is new").expect("room");
    fs::write(from.join("changed"), "other content").expect("room");
    let arguments = ["cp", "-aq"].map(OsStr::new);
    let (new, changed) = (from.join("new"), from.join("changed"));
    let copied = cost(&mounted, || {
        succeed(&[&arguments[..], &[new.as_os_str(), changed.as_os_str(), to.as_os_str()]].concat());
    });
    assert_eq!(count(&copied, &["mknod", "create", "write", "rename"]), 0, "it went around the kernel: {copied:?}");
    // The command ends with a sync, which opens the files that the kernel has by their numbers; after that the kernel asks for each of their names
    // once more, but not for those of directories, nor for those that are not there: of these only what was changed is looked up.
    let once = |names: &[(&'static str, Option<u64>)], changed: u64| {
        let again = cost(&mounted, || assert!(size(&to).is_some()));
        assert_eq!(count(&again, &["lookup"]), 0, "a directory has no pages to bring");
        let looked = cost(&mounted, || expect_sizes(&to, names));
        let there = names.iter().filter(|(_, size)| size.is_some()).count() as u64;
        assert!(count(&looked, &["lookup"]) <= there + changed, "{looked:?}");
    };
    once(&[("absent", None)], 0);
    once(&[("left", Some(3)), ("new", Some(11)), ("changed", Some(13))], 0);
    sizes(&[("new", Some(11)), ("changed", Some(13)), ("left", Some(3)), ("absent", None), ("tree/absent", None)]);
    assert_eq!(fs::read(to.join("changed")).expect("it is there"), b"other content");

    // A tree goes at once.
    succeed(&[OsStr::new("rm"), OsStr::new("-r"), to.join("tree").as_os_str()]);
    once(&[("absent", None)], 0);
    once(&[("tree", None), ("left", Some(3)), ("new", Some(11))], 1);
    sizes(&[("tree", None), ("tree/file", None), ("tree/below/file", None), ("tree/absent", None)]);
    // And comes again, by the kernel itself.
    fs::create_dir_all(to.join("tree/below")).expect("room");
    fs::write(to.join("tree/file"), "again").expect("room");
    sizes(&[("tree/file", Some(5)), ("tree/below/file", None)]);
    mounted.umount();

    // Who asks that nothing is kept has each look asked.
    let mounted = Mounted::start(&node, &point, &[("HYDRAFS_MOUNT_CACHE_TIME", "0")]).expect("as before");
    let looks = [("new", Some(11)), ("absent", None)];
    expect_sizes(&to, &looks);
    let again = cost(&mounted, || expect_sizes(&to, &looks));
    assert!(count(&again, &["lookup"]) >= 2, "{again:?}");
    mounted.umount();
}

#[test]
fn who_looks_at_what_it_lists_is_given_attributes_with_the_names() {
    const DIRECTORIES: usize = 4;
    const FILES: usize = 300;
    let folder = Folder::new("listed");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    for directory in (0..DIRECTORIES).map(|number| point.join(format!("d{number}"))) {
        fs::create_dir(&directory).expect("room");
        for number in 0..FILES {
            fs::write(directory.join(format!("f{number}")), vec![1; number]).expect("room");
        }
    }
    mounted.umount();

    // As `ls -l` does it: each as it comes. Birth times, which std asks for too, come with no listing.
    let look = |directory: &Path| {
        let files = fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("a name").path());
        let size = |file: PathBuf| rustix::fs::lstat(&file).expect("it is there").st_size;
        let sizes: Vec<i64> = files.map(size).collect();
        assert_eq!((sizes.len(), sizes.iter().sum::<i64>()), (FILES, (0..FILES as i64).sum()));
    };
    let looks = ["lookup", "getattr", "statx"];
    let mounted = Mounted::start(&node, &point, &[]).expect("as before");
    // Nobody knows yet what the program wants, but for directories: a walk goes there next.
    let directories: Vec<PathBuf> =
        fs::read_dir(&point).expect("mounted").map(|entry| entry.expect("a name").path()).collect();
    let first = cost(&mounted, || look(&directories[0]));
    assert!(count(&first, &looks) <= FILES as u64, "{first:?}");
    let others = cost(&mounted, || directories[1..].iter().for_each(|directory| look(directory)));
    assert_eq!(count(&others, &looks), 0, "{others:?}");
    assert!(count(&others, &["readdirplus"]) >= DIRECTORIES as u64 - 1, "{others:?}");
    // All of it is kept, but for what listing does to a directory: it moves the access time.
    let again = cost(&mounted, || directories.iter().for_each(|directory| look(directory)));
    assert_eq!(count(&again, &["lookup", "statx", "readdir", "readdirplus"]), 0, "{again:?}");
    assert!(count(&again, &["getattr"]) <= DIRECTORIES as u64, "{again:?}");
    mounted.umount();

    // A program that we did not write.
    let mounted = Mounted::start(&node, &point, &[]).expect("as before");
    let all = cost(&mounted, || {
        let output = run(Command::new("ls").arg("-lR").arg(&point));
        assert!(output.status.success());
        let lines = String::from_utf8(output.stdout).expect("UTF-8");
        assert_eq!(lines.lines().filter(|line| line.starts_with("-rw")).count(), DIRECTORIES * FILES);
    });
    assert!(count(&all, &looks) < FILES as u64 + 10, "{all:?}");
    mounted.umount();
}
