//! What copies take over, hand on and grant, and where they do not go: each way that `hydrafs cp` has, into mounts, out of them and past them.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::support::{Folder, Mounted, hydrafs, noise, os, run, succeed};

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// Beside and beyond what goes by batches.
const SIZES: [(&str, usize); 2] = [("small", 1000), ("large", 3 << 20)];

fn cp(arguments: &[&dyn AsRef<OsStr>]) -> Output {
    let arguments: Vec<&OsStr> = [OsStr::new("cp")].into_iter().chain(arguments.iter().map(|a| a.as_ref())).collect();
    hydrafs(&arguments)
}

#[track_caller]
fn copied(arguments: &[&dyn AsRef<OsStr>]) {
    let output = cp(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Copies, and something fails.
#[track_caller]
fn refused(arguments: &[&dyn AsRef<OsStr>]) -> String {
    let output = cp(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    said
}

/// A small file, a large one and a directory; their names.
fn sources(from: &Path) -> [&'static str; 3] {
    for (name, bytes) in SIZES {
        fs::write(from.join(name), noise(1, bytes)).expect("room");
    }
    fs::create_dir(from.join("directory")).expect("room");
    ["small", "large", "directory"]
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("there").mode() & 0o7777
}

/// An access list that lets user 1234 do all.
fn list() -> Vec<u8> {
    // Version 2; owner, user, group, mask and others.
    let entries = [(1u16, 7u16, u32::MAX), (2, 7, 1234), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 5, u32::MAX)];
    let of_entry = |(tag, bits, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &bits.to_le_bytes()[..], &id.to_le_bytes()[..]].concat()
    };
    [&2u32.to_le_bytes()[..], &entries.map(of_entry).concat()].concat()
}

fn set(path: &Path, name: &str, value: &[u8]) -> rustix::io::Result<()> {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())
}

fn get(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = [0; 1024];
    match rustix::fs::lgetxattr(path, name, &mut value[..]) {
        Ok(count) => Some(value[..count].to_vec()),
        Err(error) => {
            assert_eq!(error, Errno::NODATA, "{}", path.display());
            None
        }
    }
}

#[test]
fn attributes_and_access_lists_come_with_an_archive_by_each_way() {
    let folder = Folder::new("like-attributes");
    let (node, point, from) = (folder.node("n"), folder.make("m"), folder.make("from"));
    let names = sources(&from);
    for name in names {
        if set(&from.join(name), "user.color", b"blue").is_err() || set(&from.join(name), ACCESS, &list()).is_err() {
            return skipped::because("this folder's file system has no attributes or access lists");
        }
    }
    set(&from.join("directory"), DEFAULT, &list()).expect("as the other");
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let (inside, outside) = (point.join("in"), folder.join("out"));
    copied(&[&"-a", &from, &inside]);
    copied(&[&"-a", &inside, &outside]);
    copied(&[&"-a", &inside, &point.join("within")]);
    copied(&[&"-a", &"--no-batch", &from, &point.join("calls in")]);
    copied(&[&"-a", &"--no-batch", &inside, &folder.join("calls out")]);
    copied(&[&"-a", &from, &folder.join("beside")]);
    let copies = ["m/in", "out", "m/within", "m/calls in", "calls out", "beside"];
    for copy in copies.map(|copy| folder.join(copy)) {
        for name in names {
            let at = copy.join(name);
            let found = (get(&at, "user.color"), get(&at, ACCESS), mode(&at));
            assert_eq!(found, (Some(b"blue".to_vec()), Some(list()), mode(&from.join(name))), "{}", at.display());
        }
        assert_eq!(get(&copy.join("directory"), DEFAULT), Some(list()), "{}", copy.display());
    }
    mounted.umount();
}

/// Who may not write to a file may set none of its attributes: they come before the mode.
#[test]
fn attributes_of_read_only_files_come_too() {
    let folder = Folder::new("like-read-only");
    let (node, point, from) = (folder.node("n"), folder.make("m"), folder.make("from"));
    let names = sources(&from);
    for name in names {
        if set(&from.join(name), "user.color", b"blue").is_err() {
            return skipped::because("this folder's file system has no attributes");
        }
        set_mode(&from.join(name), 0o444);
    }
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    if Command::new("setpriv").arg("--version").output().is_err() || !rustix::process::geteuid().is_root() {
        return skipped::because("without setpriv(1), or who is not root, cannot give the right away");
    }
    let (inside, outside) = (point.join("in"), folder.join("out"));
    let beside = folder.join("beside");
    for (from, to) in [(&from, &inside), (&inside, &outside), (&from, &beside)] {
        // With the rights of any other user over modes.
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", "-dac_override", "--inh-caps", "-dac_override"]);
        let output = run(command.arg(env!("CARGO_BIN_EXE_hydrafs")).args([
            os("cp"),
            os("-a"),
            from.as_os_str(),
            to.as_os_str(),
        ]));
        assert!(output.status.success(), "{}: {}", to.display(), String::from_utf8_lossy(&output.stderr));
        for name in names {
            let at = to.join(name);
            assert_eq!((get(&at, "user.color"), mode(&at)), (Some(b"blue".to_vec()), 0o444), "{}", at.display());
        }
    }
    // And a file that replaces one.
    let at = beside.join("small");
    fs::write(from.join("small"), "another").expect("root may");
    set_mode(&at, 0o644);
    copied(&[&from.join("small"), &at]);
    assert_eq!((get(&at, "user.color"), mode(&at)), (Some(b"blue".to_vec()), 0o644));
    mounted.umount();
}

/// What the directory that is copied into hands down to new files is nothing that their source has granted.
#[test]
fn an_archive_grants_no_more_than_its_source() {
    let folder = Folder::new("like-grants");
    let (node, point, from) = (folder.node("n"), folder.make("m"), folder.make("from"));
    for (name, bytes) in SIZES {
        fs::write(from.join(name), noise(1, bytes)).expect("room");
        set_mode(&from.join(name), 0o640);
    }
    fs::create_dir(from.join("directory")).expect("room");
    set_mode(&from.join("directory"), 0o750);
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let (inside, outside) = (point.join("shared"), folder.make("shared"));
    fs::create_dir(&inside).expect("mounted");
    set(&inside, DEFAULT, &list()).expect("a mount has them");
    let has_lists = set(&outside, DEFAULT, &list()).is_ok();
    copied(&[&"-a", &from, &inside.join("batch")]);
    copied(&[&"-a", &"--no-batch", &from, &inside.join("calls")]);
    let mut copies = vec![inside.join("batch"), inside.join("calls")];
    if has_lists {
        copied(&[&"-a", &from, &outside.join("beside")]);
        copied(&[&"-a", &inside.join("batch"), &outside.join("out")]);
        copies.extend([outside.join("beside"), outside.join("out")]);
    }
    let expect_no_lists = |copies: &[PathBuf]| {
        for copy in copies {
            for (name, bits) in [("small", 0o640), ("large", 0o640), ("directory", 0o750)] {
                let at = copy.join(name);
                assert_eq!((mode(&at), get(&at, ACCESS)), (bits, None), "{}", at.display());
            }
            assert_eq!(get(&copy.join("directory"), DEFAULT), None, "{}", copy.display());
        }
    };
    expect_no_lists(&copies);
    // Nor does what is there, and becomes like it.
    let again = [inside.join("batch"), inside.join("calls")];
    for (copy, ways) in again.iter().zip([&["-a"][..], &["-a", "--no-batch"]]) {
        for name in ["small", "large", "directory"] {
            set(&copy.join(name), ACCESS, &list()).expect("a mount has them");
        }
        set(&copy.join("directory"), DEFAULT, &list()).expect("a mount has them");
        let mut words: Vec<&dyn AsRef<OsStr>> = ways.iter().map(|word| word as &dyn AsRef<OsStr>).collect();
        let (source, copy) = (from.join("."), copy.as_path());
        words.extend([&source as &dyn AsRef<OsStr>, &copy]);
        copied(&words);
    }
    expect_no_lists(&again);
    mounted.umount();
}

/// Who copies over a file without -a writes into it, as it were.
#[test]
fn what_is_replaced_hands_on_its_mode_and_owner() {
    if !rustix::process::geteuid().is_root() {
        return skipped::because("only root may give files away");
    }
    let folder = Folder::new("like-former");
    let (node, point, from, outside) = (folder.node("n"), folder.make("m"), folder.make("from"), folder.make("out"));
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    for (name, bytes) in SIZES {
        fs::write(from.join(name), noise(1, bytes)).expect("room");
        set_mode(&from.join(name), 0o755);
        for way in ["--quiet", "--no-batch", "--atomic"] {
            for to in [&point, &outside] {
                let at = to.join(name);
                fs::write(&at, "of before").expect("room");
                set_mode(&at, 0o640);
                std::os::unix::fs::chown(&at, Some(1234), Some(1235)).expect("root may");
                copied(&[&way, &from.join(name), to]);
                let found = fs::metadata(&at).expect("copied");
                assert_eq!((mode(&at), found.uid(), found.gid()), (0o640, 1234, 1235), "{way} {}", at.display());
                assert!(fs::read(&at).expect("copied") == noise(1, bytes), "{way} {}", at.display());
                // And with -a it is like its source.
                copied(&[&way, &"-a", &from.join(name), to]);
                let found = fs::metadata(&at).expect("copied");
                assert_eq!((mode(&at), found.uid(), found.gid()), (0o755, 0, 0), "{way} {}", at.display());
            }
        }
        // What was no file hands on nothing.
        for to in [&point, &outside] {
            fs::remove_file(to.join(name)).expect("copied");
            symlink("/nowhere", to.join(name)).expect("room");
            copied(&[&"--atomic", &from.join(name), to]);
            assert_eq!(mode(&to.join(name)), 0o755);
        }
    }
    mounted.umount();
}

/// A symbolic link in the target is no directory: whose it is would have the files, and what the directory becomes, elsewhere.
#[test]
fn no_link_in_the_target_leads_a_copy_elsewhere() {
    let folder = Folder::new("like-link");
    let (from, to, elsewhere) = (folder.make("from"), folder.make("to"), folder.make("elsewhere"));
    fs::create_dir(from.join("sub")).expect("room");
    fs::write(from.join("sub/file"), "file").expect("room");
    fs::create_dir(from.join("sub/deeper")).expect("room");
    fs::write(from.join("sub/deeper/file"), noise(1, 3 << 20)).expect("room");
    symlink("file", from.join("sub/link")).expect("room");
    fs::hard_link(from.join("sub/file"), from.join("sub/deeper/linked")).expect("room");
    fs::write(from.join("beside"), "beside").expect("room");
    set_mode(&from.join("sub"), 0o777);
    set_mode(&elsewhere, 0o700);
    symlink(&elsewhere, to.join("sub")).expect("room");
    for archive in ["--quiet", "-a"] {
        let said = refused(&[&archive, &from.join("."), &to]);
        assert!(said.contains("to/sub; ") && said.contains("ot a directory"), "{said}");
        assert_eq!((mode(&elsewhere), fs::read_dir(&elsewhere).expect("ours").count()), (0o700, 0));
        assert_eq!(fs::read(to.join("beside")).expect("copied"), b"beside");
    }
    // Where it is what was named it is meant.
    copied(&[&"-a", &from.join("."), &to.join("sub")]);
    assert_eq!(fs::read(elsewhere.join("sub/file")).expect("copied"), b"file");
    // Out of a mount what lies below comes all the same.
    fs::remove_dir_all(elsewhere.join("sub")).expect("copied");
    fs::remove_file(elsewhere.join("beside")).expect("copied");
    set_mode(&elsewhere, 0o700);
    let (node, point) = (folder.node("n"), folder.make("m"));
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    copied(&[&"-a", &from, &point.join("in")]);
    for way in ["--quiet", "-a", "--no-batch"] {
        fs::remove_file(to.join("beside")).expect("copied");
        let said = refused(&[&way, &point.join("in/."), &to]);
        assert!(said.contains("to/sub; ") && said.contains("ot a directory"), "{said}");
        assert_eq!((mode(&elsewhere), fs::read_dir(&elsewhere).expect("ours").count()), (0o700, 0), "{way} {said}");
        assert_eq!(fs::read(to.join("beside")).expect("copied"), b"beside");
        if way != "--no-batch" {
            for name in ["file", "link", "deeper", "deeper/file", "deeper/linked"] {
                assert!(
                    said.contains(&format!("in/sub/{name}; ")) || said.contains(&format!("in/./sub/{name}; ")),
                    "{name} {said}"
                );
            }
        }
    }
    mounted.umount();
}

#[test]
fn two_sources_of_one_name_do_not_replace_each_other() {
    let folder = Folder::new("like-names");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let (a, b) = (folder.make("a"), folder.make("b"));
    for top in [&a, &b] {
        fs::write(top.join("x"), top.as_os_str().as_encoded_bytes()).expect("room");
        fs::create_dir(top.join("directory")).expect("room");
        fs::write(top.join("directory").join(top.file_name().expect("a or b")), "").expect("room");
    }
    fs::write(b.join("last"), "last").expect("room");
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    for (number, way) in ["--quiet", "--no-batch"].into_iter().enumerate() {
        for top in [&point, &folder.join(".")] {
            let to = top.join(format!("to{number}"));
            fs::create_dir(&to).expect("room");
            let said = refused(&[&way, &a.join("x"), &b.join("x"), &b.join("last"), &to]);
            assert!(said.contains("b/x; ") && said.contains("a/x goes to the same place"), "{said}");
            assert_eq!(fs::read(to.join("x")).expect("copied"), a.as_os_str().as_encoded_bytes());
            assert_eq!(fs::read(to.join("last")).expect("copied"), b"last");
            let said = refused(&[&way, &a.join("x"), &b.join("directory"), &a.join("directory"), &b.join("x"), &to]);
            assert!(said.contains("1 failed"), "{said}");
            assert_eq!(fs::read_dir(to.join("directory")).expect("copied").count(), 2, "directories are merged");
            // The same once more is no other.
            copied(&[&way, &a.join("x"), &a.join("../a/x"), &to]);
            fs::remove_dir_all(&to).expect("ours");
            fs::create_dir(&to).expect("ours");
            for name in ["x", "directory"] {
                let said = refused(&[&way, &"--atomic", &a.join(name), &b.join(name), &to]);
                assert!(said.contains("goes to the same place"), "{said}");
            }
            assert_eq!(fs::read_dir(&to).expect("ours").count(), 0);
        }
    }
    mounted.umount();
}

/// A directory that its owner may not write to is filled by its owner, and is so in the end: what caches of modules are.
#[test]
fn read_only_directories_are_filled_by_their_owner() {
    let folder = Folder::new("like-closed");
    let (node, point, from) = (folder.node("n"), folder.make("m"), folder.make("from"));
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let closed = from.join("closed");
    fs::create_dir(&closed).expect("room");
    for (name, bytes) in SIZES {
        fs::write(closed.join(name), noise(1, bytes)).expect("room");
    }
    set_mode(&closed, 0o555);
    let archive = folder.join("archive");
    assert!(run(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&from).arg("closed")).status.success());
    fs::create_dir_all(point.join("there/closed")).expect("room");
    fs::create_dir(point.join("tar")).expect("room");
    // Root without the right to pass over modes, as any other user who runs a daemon.
    let as_owner = |arguments: &[&OsStr]| {
        let mut command = Command::new("setpriv");
        let rights = "-dac_override,-dac_read_search";
        command.args(["--bounding-set", rights, "--inh-caps", rights]);
        run(command.arg(env!("CARGO_BIN_EXE_hydrafs")).args(arguments))
    };
    if Command::new("setpriv").arg("--version").output().is_err() || !rustix::process::geteuid().is_root() {
        return skipped::because("without setpriv(1), or who is not root, cannot give the right away");
    }
    let extract: [&OsStr; 6] = [os("tar"), os("-x"), os("-f"), archive.as_os_str(), os("-C"), os("")];
    let into = [("archive", 0o555), ("plain", 0o555), ("there", 0o755), ("tar", 0o555)];
    for (name, expected) in into {
        let to = point.join(name);
        let output = match name {
            "archive" => as_owner(&[os("cp"), os("-a"), from.as_os_str(), to.as_os_str()]),
            "plain" => as_owner(&[os("cp"), from.as_os_str(), to.as_os_str()]),
            "there" => as_owner(&[os("cp"), from.join(".").as_os_str(), to.as_os_str()]),
            _ => as_owner(&[&extract[..5], &[to.as_os_str()]].concat()),
        };
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(mode(&to.join("closed")), expected, "{name}");
        for (file, bytes) in SIZES {
            assert!(fs::read(to.join("closed").join(file)).expect("copied") == noise(1, bytes), "{name} {file}");
        }
    }
    // One in another, both of which only others may search.
    let nested = folder.make("nested");
    fs::create_dir_all(nested.join("outer/inner")).expect("room");
    for name in ["outer/inner", "outer"] {
        set_mode(&nested.join(name), 0o055);
        std::os::unix::fs::chown(nested.join(name), Some(1234), Some(1235)).expect("root may");
    }
    let output = as_owner(&[os("cp"), nested.join("outer").as_os_str(), point.as_os_str()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!((mode(&point.join("outer")), mode(&point.join("outer/inner"))), (0o055, 0o055));
    // Outside, one that was there keeps its mode too.
    fs::create_dir_all(folder.join("out/closed")).expect("room");
    for source in [&from, &point.join("archive")] {
        copied(&[&source.join("."), &folder.join("out")]);
        assert_eq!(mode(&folder.join("out/closed")), 0o755);
    }
    mounted.umount();
}

/// A daemon that dies takes with it what would have undone an atomic copy: what is left is named.
#[test]
fn what_cannot_be_undone_is_named() {
    let folder = Folder::new("like-undone");
    let (node, point, from) = (folder.node("n"), folder.make("m"), folder.make("from"));
    fs::write(folder.join("content"), noise(1, 1 << 20)).expect("room");
    for number in 0..400 {
        // Not -a: each name is a file of its own, and to make them takes no time.
        fs::hard_link(folder.join("content"), from.join(number.to_string())).expect("one file system");
    }
    let Some(mut mounted) = Mounted::start(&node, &point, &[]) else { return };
    let mut command = Command::new(env!("CARGO_BIN_EXE_hydrafs"));
    command.args(["cp", "-q", "--atomic"]).args([&from, &point.join("to")]);
    let copy = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it runs");
    let pid = rustix::process::Pid::from_child(&copy);
    let tell = |signal| rustix::process::kill_process(pid, signal).expect("our child");
    let aside = || -> Option<PathBuf> { Some(fs::read_dir(&point).ok()?.next()?.ok()?.path()) };
    while aside().is_none() {
        std::thread::yield_now();
    }
    tell(rustix::process::Signal::STOP);
    let aside = aside().expect("it was there");
    let name = aside.file_name().expect("a name").to_string_lossy().into_owned();
    assert!(name.starts_with(".hydrafs-cp-") && !name.contains(&copy.id().to_string()), "{name}");
    mounted.kill();
    tell(rustix::process::Signal::CONT);
    let output = copy.wait_with_output().expect("our child");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains(&format!("remove {}", aside.display())), "{said}");
    mounted.mend();
    assert!(!point.join("to").exists());
    succeed(&[os("fsck"), os("--deep"), node.as_os_str()]);
    mounted.umount();
}

/// Out of a mount without `-a`, where each name is made anew; and in an archive, where a link comes after what it leads to.
#[test]
fn further_names_of_what_has_no_content_are_what_they_are() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    let folder = Folder::new("further");
    let (node, point, out) = (folder.node("n"), folder.make("m"), folder.make("out"));
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    let from = point.join("from");
    fs::create_dir(&from).expect("room");
    mknodat(CWD, from.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).expect("room");
    symlink("target", from.join("link")).expect("room");
    for name in ["fifo", "link"] {
        fs::hard_link(from.join(name), from.join(format!("{name} again"))).expect("room");
        fs::hard_link(from.join(name), from.join(format!("a {name}"))).expect("room");
    }
    copied(&[&"-r", &from, &out]);
    let archive = folder.join("archive");
    succeed(&[os("tar"), os("-c"), os("-f"), archive.as_os_str(), os("-C"), point.as_os_str(), os("from")]);
    let extracted = folder.make("extracted");
    let output = run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&extracted));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for copy in [out.join("from"), extracted.join("from")] {
        for name in ["fifo", "fifo again", "a fifo", "link", "link again", "a link"] {
            let found = fs::symlink_metadata(copy.join(name)).expect("there").file_type();
            match name.contains("fifo") {
                true => {
                    assert_eq!(found, fs::symlink_metadata(from.join("fifo")).expect("there").file_type(), "{name}")
                }
                false => assert_eq!(fs::read_link(copy.join(name)).expect("a link"), Path::new("target"), "{name}"),
            }
        }
    }
    let archived = |name: &str| fs::symlink_metadata(extracted.join("from").join(name)).expect("there").nlink();
    assert_eq!((archived("fifo"), archived("link")), (3, 3));
    mounted.umount();
}

/// Files of /sys have a page by their size, and a few bytes.
#[test]
fn a_copy_ends_where_its_source_does() {
    let source = Path::new("/sys/kernel/uevent_seqnum");
    let content = fs::read(source).unwrap_or_default();
    if fs::metadata(source).map_or(0, |found| found.len()) <= content.len() as u64 || content.is_empty() {
        return skipped::because("there is no such file here");
    }
    let folder = Folder::new("short");
    let (node, point, out) = (folder.node("n"), folder.make("m"), folder.make("out"));
    let Some(mounted) = Mounted::start(&node, &point, &[]) else { return };
    for to in [&point, &out] {
        copied(&[&source, to]);
        let copy = fs::read(to.join("uevent_seqnum")).expect("copied");
        assert!(copy.len() < 100 && copy.ends_with(b"\n"), "{} bytes", copy.len());
    }
    mounted.umount();
}
