//! At and over every limit, through the mount: what the kernel and we say, and that others are not harmed.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use rustix::fs::{Mode, XattrFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit};

use crate::mount::SMALL;
use crate::support::{Folder, Mounted, hydrafs, spawn, succeed, within};

#[test]
fn names_paths_attributes_and_open_files_at_and_over_their_limits() {
    let folder = Folder::new("limits");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let Some(mounted) = Mounted::start(&node, &point, &[SMALL]) else { return };
    let errno = |error: std::io::Error| error.raw_os_error();

    // A component of 255 bytes, whatever bytes, at any depth; and the longest path.
    let longest = "\u{fe}".repeat(127) + "x";
    let deep = point.join(&longest).join(&longest).join(&longest);
    fs::create_dir_all(&deep).expect("255 bytes each");
    fs::write(deep.join(&longest), "deep").expect("room");
    let over = longest.clone() + "x";
    for result in [fs::write(deep.join(&over), ""), fs::create_dir(deep.join(&over)), fs::remove_file(deep.join(&over))]
    {
        assert_eq!(result.map_err(errno), Err(Some(libc::ENAMETOOLONG)));
    }
    assert_eq!(fs::metadata(deep.join(&over)).map(|_| ()).map_err(errno), Err(Some(libc::ENAMETOOLONG)));
    let path = format!("{}{}", point.display(), "/.".repeat(2100));
    assert_eq!(fs::metadata(path).map(|_| ()).map_err(errno), Err(Some(libc::ENAMETOOLONG)));
    let targets = ["t".repeat(4095), "t".repeat(4096)];
    std::os::unix::fs::symlink(&targets[0], point.join("link")).expect("PATH_MAX less one");
    assert_eq!(fs::read_link(point.join("link")).expect("there").as_os_str().len(), 4095);
    let too_long = std::os::unix::fs::symlink(&targets[1], point.join("other")).map_err(errno);
    assert_eq!(too_long, Err(Some(libc::ENAMETOOLONG)));

    // Attributes.
    let file = point.join("file");
    fs::write(&file, "content").expect("room");
    let set = |name: &str, value: &[u8]| rustix::fs::setxattr(&file, name, value, XattrFlags::empty());
    let name = |bytes: usize| "user.".to_owned() + &"n".repeat(bytes - 5);
    assert_eq!(set(&name(255), &[1]), Ok(()));
    assert_eq!(set(&name(256), &[1]), Err(Errno::RANGE));
    assert_eq!(set("user.large", &vec![2; 65_536]), Ok(()));
    assert_eq!(set("user.larger", &vec![2; 65_537]), Err(Errno::TOOBIG));
    let mut value = vec![0; 65_536];
    assert_eq!(rustix::fs::getxattr(&file, "user.large", &mut value[..]), Ok(65_536));
    assert!(value.iter().all(|byte| *byte == 2));
    // Names of more than 64 KiB cannot be listed; each can still be read, and all can go.
    let many: Vec<String> = (0..300).map(|number| format!("user.{number:0>250}")).collect();
    many.iter().for_each(|name| set(name, b"value").expect("75 KB of 512"));
    assert_eq!(rustix::fs::listxattr(&file, &mut value[..]), Err(Errno::TOOBIG));
    assert_eq!(rustix::fs::getxattr(&file, many[299].as_str(), &mut value[..]), Ok(5));
    many.iter().for_each(|name| rustix::fs::removexattr(&file, name.as_str()).expect("there"));
    assert!(rustix::fs::listxattr(&file, &mut value[..]).is_ok());

    // Thousands of open files, without names: all are there, and end with their users.
    let mut open = Vec::new();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(4000);
    for number in 0..usize::try_from(limit.min(4000)).expect("few") - 100 {
        let path = point.join(format!("open {number}"));
        let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("below the limit");
        write!(file, "{number}").expect("room");
        fs::remove_file(path).expect("there");
        open.push(file);
    }
    for (number, file) in open.iter_mut().enumerate() {
        let mut text = String::new();
        file.rewind().and_then(|()| file.read_to_string(&mut text)).expect("open");
        assert_eq!(text, number.to_string());
    }
    drop(open);
    assert_eq!(File::open(point.join("open 1")).map(|_| ()).map_err(errno), Err(Some(libc::ENOENT)));

    // Nothing of this was lost over a new mount.
    mounted.umount();
    let mounted = Mounted::start(&node, &point, &[SMALL]).expect("as before");
    assert_eq!(fs::read(deep.join(&longest)).expect("there"), b"deep");
    assert_eq!(rustix::fs::getxattr(&file, "user.large", &mut value[..]), Ok(65_536));
    mounted.umount();
}

/// Whoever nests directories without end, with the longest names, has paths of half a gigabyte in all; who walks there has one of them.
#[test]
fn trees_that_nest_without_end_cost_little_memory() {
    const DEPTH: usize = 2000;
    const MEMORY: u64 = 160 << 20;
    let folder = Folder::new("deep");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let Some(mounted) = Mounted::start(&node, &point, &[SMALL]) else { return };
    let name = "n".repeat(255);
    let open = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::RDONLY;
    let top = point.join("top");
    fs::create_dir(&top).expect("room");
    let mut at = rustix::fs::open(&top, open, Mode::empty()).expect("there");
    for _ in 0..DEPTH {
        rustix::fs::mkdirat(&at, name.as_str(), Mode::RWXU).expect("room");
        at = rustix::fs::openat(&at, name.as_str(), open, Mode::empty()).expect("there");
    }
    drop(at);
    let run = |words: &[&str]| {
        let mut arguments: Vec<OsString> = words.iter().map(OsString::from).collect();
        arguments.push(top.clone().into());
        let output = within("a command on a deep tree", move || hydrafs(&arguments));
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // What has too long a path is named, and is no more than that.
    for command in [&["walk", "--json"][..], &["tar", "-c", "-f", "/dev/null", ".", "-C"]] {
        let (code, errors) = run(command);
        assert!(code == Some(1) && errors.contains("ame too long"), "{code:?}: {}", &errors[errors.len().min(300)..]);
    }
    assert_eq!(run(&["du"]).0, Some(0));
    assert!(mounted.most_memory() < MEMORY, "{} bytes", mounted.most_memory());
    assert_eq!(run(&["rm", "-r"]).0, Some(0));
    mounted.umount();
    assert!(hydrafs(&[OsStr::new("fsck"), node.as_os_str()]).status.success());
}

/// A program that makes files, has all of them open at once, and puts into each what it is given at the end.
struct Tee {
    child: Child,
    /// What it could not open.
    errors: BufReader<ChildStderr>,
}

impl Tee {
    /// `limit`: of its open files, as `ulimit` takes it.
    fn start(limit: &str, files: &[PathBuf]) -> Tee {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {limit} && exec tee \"$@\""), "sh"]).args(files).env("LC_ALL", "C");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = spawn(&mut command).expect("every system has it");
        let errors = BufReader::new(child.stderr.take().expect("piped"));
        Tee { child, errors }
    }

    /// Has it write and end; gives its exit code.
    fn end(mut self, content: &[u8]) -> Option<i32> {
        self.child.stdin.take().expect("piped").write_all(content).expect("it reads");
        self.child.wait().expect("our child").code()
    }
}

fn is_there(path: &Path) -> bool {
    fs::metadata(path).is_ok()
}

#[test]
fn who_has_open_as_many_files_as_it_may_is_told_and_others_go_on() {
    const LIMIT: usize = 64;
    let folder = Folder::new("open-files");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let Some(mounted) = Mounted::start(&node, &point, &[SMALL]) else { return };
    let files: Vec<PathBuf> = (0..2 * LIMIT).map(|number| point.join(format!("f{number}"))).collect();
    let mut tee = Tee::start(&LIMIT.to_string(), &files);
    // It names each that it cannot open, the last one at the end.
    let mut refused = 0;
    let mut line = String::new();
    while !line.contains(&format!("/f{}: ", files.len() - 1)) {
        line.clear();
        assert!(tee.errors.read_line(&mut line).expect("a pipe") > 0, "it could open the last");
        assert!(line.ends_with(": Too many open files\n"), "{line}");
        refused += 1;
    }
    // A few it has beside.
    assert!((LIMIT..LIMIT + 10).contains(&refused), "{refused} of {}", files.len());
    // Another program opens twice as many meanwhile.
    let others: Vec<PathBuf> = (0..2 * LIMIT).map(|number| point.join(format!("other-{number}"))).collect();
    let open: Vec<File> = others.iter().map(|path| File::create_new(path).expect("another's limit")).collect();
    open.iter().for_each(|mut file| file.write_all(b"other").expect("room"));
    assert_eq!(tee.end(b"content"), Some(1));
    for (number, file) in files.iter().enumerate() {
        match number < files.len() - refused {
            true => assert_eq!(fs::read(file).expect("it was opened"), b"content"),
            false => assert!(!is_there(file), "{}", file.display()),
        }
    }
    drop(open);
    assert!(others.iter().all(|path| fs::read(path).is_ok_and(|content| content == b"other")));
    mounted.umount();
    assert!(hydrafs(&[OsStr::new("fsck"), node.as_os_str()]).status.success());
}

/// The daemon has nothing open for a file that a program has open, and need not even have it in memory.
#[test]
fn files_that_programs_have_open_take_no_descriptors_of_the_daemon_and_little_memory() {
    const LIMIT: u64 = 100;
    const FILES: usize = 8000;
    const MEMORY: u64 = 96 << 20;
    let folder = Folder::new("descriptors");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let Some(mounted) = Mounted::start(&node, &point, &[SMALL]) else { return };
    let low = Rlimit { current: Some(LIMIT), maximum: Some(LIMIT) };
    let former = rustix::process::prlimit(Pid::from_raw(mounted.pid), Resource::Nofile, low).expect("our own daemon");
    assert!(former.current.is_none_or(|former| former > LIMIT), "it was lower: {former:?}");
    let most = rustix::process::getrlimit(Resource::Nofile).maximum.map_or(FILES, |most| most as usize - 100);
    let files: Vec<PathBuf> = (0..most.min(FILES)).map(|number| point.join(number.to_string())).collect();
    assert!(files.len() as u64 > 8 * LIMIT, "{} files", files.len());
    let tee = Tee::start("$(ulimit -Hn)", &files);
    let last = files[files.len() - 1].clone();
    within("the last is open", move || while !is_there(&last) {});
    let daemon = fs::read_dir(format!("/proc/{}/fd", mounted.pid)).expect("our own daemon").count() as u64;
    assert!(daemon < LIMIT, "{daemon} of {LIMIT}");
    let text = succeed(&[OsStr::new("stats"), OsStr::new("--prometheus"), node.as_os_str()]);
    let inodes = text.lines().find_map(|line| line.strip_prefix("hydrafs_file_inodes ")).expect("a gauge");
    assert!(inodes.parse::<usize>().expect("a number") < files.len() / 2, "{inodes} in memory");
    assert_eq!(tee.end(b"content"), Some(0));
    assert!(files.iter().all(|file| fs::read(file).is_ok_and(|content| content == b"content")));
    assert!(mounted.most_memory() < MEMORY, "{} bytes", mounted.most_memory());
    mounted.umount();
    assert!(hydrafs(&[OsStr::new("fsck"), node.as_os_str()]).status.success());
}
