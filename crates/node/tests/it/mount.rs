//! A real mount, over each transport: one smoke of every operation, then what must hold over umount and crash.
//!
//! Conformance in depth is for the POSIX suites (`make posix`); here every operation is seen to reach the file layer and come back.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, SeekFrom, StatxFlags, XattrFlags,
};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, UnmountFlags};
use rustix::process::Signal;

use crate::copy::{fill, likeness};
use crate::hung::Hung;
use crate::support::{
    Folder, Mapping, Mounted, content, hydrafs, keeper, mounts_at, noise, run, spawn, succeed, within, within_or,
};

pub(crate) const SMALL: (&str, &str) = ("HYDRAFS_MEMORY_BUDGET", "64 MiB");

/// Runs a test over each transport that this machine has.
fn over_each_transport(name: &str, test: impl Fn(&Mounted)) {
    over_each_transport_mut(name, |mounted| test(mounted));
}

/// The transports that this machine has.
pub(crate) fn transports() -> impl Iterator<Item = &'static str> {
    let is_here = |transport: &&str| {
        let is_here = *transport == "device"
            || fs::read("/sys/module/fuse/parameters/enable_uring").is_ok_and(|on| on.starts_with(b"Y"));
        if !is_here {
            skipped::because("nothing over io_uring: it is off for FUSE here");
        }
        is_here
    };
    ["device", "ring"].into_iter().filter(is_here)
}

/// The same, of a test that restarts the daemon.
pub(crate) fn over_each_transport_mut(name: &str, test: impl Fn(&mut Mounted)) {
    for transport in transports() {
        let folder = Folder::new(name);
        let (node, point) = (folder.node("n"), folder.make("m"));
        let settings = [SMALL, ("HYDRAFS_MOUNT_TRANSPORT", transport)];
        let Some(mut mounted) = Mounted::start(&node, &point, &settings) else { return };
        eprintln!("{name} over {transport}");
        test(&mut mounted);
        let cached = [OsStr::new("fsck"), OsStr::new("--deep"), node.as_os_str()];
        assert!(succeed(&cached).contains("all is well"), "while mounted");
        mounted.umount();
        assert!(succeed(&cached).contains("all is well"), "after umount");
    }
}

fn open_new(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create_new(true).open(path).expect("a new file")
}

/// A large file and many small ones of which every page is changed through mappings that stay.
struct Mapped(Vec<(PathBuf, Mapping)>);

impl Mapped {
    const PAGE: usize = 4096;

    fn new(mounted: &Mounted) -> Mapped {
        let pages = |number: usize| if number == 0 { 8192 } else { 1 };
        let map = |number| {
            let path = mounted.point.join(format!("mapped-{number}"));
            let bytes = pages(number) * Self::PAGE;
            fs::write(&path, vec![b'-'; bytes]).expect("room");
            let file = OpenOptions::new().read(true).write(true).open(&path).expect("it is there");
            let mapping = Mapping::new(&file, bytes);
            (0..bytes).step_by(Self::PAGE).for_each(|at| mapping.write(at, b'+'));
            (path, mapping)
        };
        Mapped((0..300).map(map).collect())
    }

    /// Each page that is not as the mappings have it.
    fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        for (path, _) in &self.0 {
            let content = fs::read(path).expect("it is there");
            let old = content.chunks(Self::PAGE).filter(|page| page[0] != b'+').count();
            missing.extend((old > 0).then(|| format!("{old} pages of {}", path.display())));
        }
        missing
    }
}

/// The kernel gives them to nobody who syncs the file system as a whole.
#[test]
fn what_was_changed_through_mappings_is_synced_too() {
    over_each_transport_mut("mapped", |mounted| {
        let mapped = Mapped::new(mounted);
        succeed(&[OsStr::new("sync"), mounted.point.as_os_str()]);
        mounted.kill();
        mounted.mend();
        assert_eq!(mapped.missing(), Vec::<String>::new());
    });
}

#[test]
fn what_was_changed_through_mappings_is_there_when_the_mount_was_taken_from_them() {
    over_each_transport_mut("mapped-lazy", |mounted| {
        let mapped = Mapped::new(mounted);
        succeed(&[OsStr::new("stop"), OsStr::new("--lazy"), mounted.node.as_os_str()]);
        mounted.wait();
        mounted.mend();
        assert_eq!(mapped.missing(), Vec::<String>::new());
    });
}

#[test]
fn labels_and_created_files_are_as_on_a_local_disk() {
    over_each_transport("created", |mounted| {
        let m = |name: &str| mounted.point.join(name);
        fs::write(m("plain"), "x").expect("room");
        // No SELinux here: one answer for all files, unless somebody stored a label.
        let label = |name: &str| rustix::fs::getxattr(m(name), "security.selinux", &mut [0; 64]);
        assert_eq!(label("plain"), Err(Errno::OPNOTSUPP));
        rustix::fs::setxattr(m("plain"), "security.selinux", b"some_label", XattrFlags::CREATE).expect("root");
        assert_eq!(label("plain"), Ok(10));

        // A new file may be written through the descriptor that made it, whatever its mode.
        let mut file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o400).open(m("sealed"));
        let file = file.as_mut().expect("a new file");
        file.write_all(b"written once").expect("open for writing");
        assert_eq!(fs::read(m("sealed")).expect("readable"), b"written once");
        assert_eq!(fs::metadata(m("sealed")).expect("there").mode() & 0o7777, 0o400);
        // O_CREAT and O_TRUNC on a file that is there.
        fs::write(m("plain"), "yz").expect("room");
        assert_eq!(fs::read(m("plain")).expect("readable"), b"yz");
    });
}

#[test]
fn files_are_written_read_and_named() {
    over_each_transport("files", |mounted| {
        let m = |name: &str| mounted.point.join(name);
        let bytes: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
        fs::write(m("big"), &bytes).expect("room");
        assert!(fs::read(m("big")).expect("readable") == bytes);
        let file = File::options().read(true).write(true).open(m("big")).expect("it is there");
        file.write_all_at(b"patch", 5_000_001).expect("room");
        let mut found = [0; 7];
        file.read_exact_at(&mut found, 5_000_000).expect("readable");
        assert_eq!(&found[1..6], b"patch");
        file.set_len(10).expect("ours");
        assert_eq!((file.metadata().expect("open").len(), fs::read(m("big")).expect("readable").len()), (10, 10));

        let mut log = OpenOptions::new().append(true).create(true).open(m("log")).expect("room");
        log.write_all(b"one ").expect("room");
        log.write_all(b"two").expect("room");
        log.sync_all().expect("a disk");
        assert_eq!(fs::read(m("log")).expect("readable"), b"one two");
        let synchronous = OpenOptions::new().write(true).custom_flags(libc::O_DSYNC).open(m("log"));
        synchronous.expect("it is there").write_all_at(b"ONE", 0).expect("a disk");
        assert_eq!(fs::read(m("log")).expect("readable"), b"ONE two");

        assert_eq!(
            OpenOptions::new().write(true).create_new(true).open(m("log")).expect_err("it exists").raw_os_error(),
            Some(libc::EEXIST)
        );
        drop(OpenOptions::new().write(true).truncate(true).open(m("log")).expect("it is there"));
        assert_eq!(fs::metadata(m("log")).expect("it is there").len(), 0);

        fs::create_dir_all(m("a/b")).expect("room");
        assert_eq!(fs::metadata(m("a")).expect("it is there").nlink(), 3);
        fs::rename(m("big"), m("a/b/big")).expect("room");
        assert_eq!(fs::metadata(m("big")).expect_err("moved").raw_os_error(), Some(libc::ENOENT));
        assert_eq!(fs::remove_dir(m("a")).expect_err("not empty").raw_os_error(), Some(libc::ENOTEMPTY));
        assert_eq!(fs::rename(m("a"), m("a/b/c")).expect_err("into itself").raw_os_error(), Some(libc::EINVAL));
        fs::write(m("x"), "x").expect("room");
        fs::write(m("y"), "y").expect("room");
        let rename = |from: &str, to: &str, flags| rustix::fs::renameat_with(CWD, m(from), CWD, m(to), flags);
        assert_eq!(rename("x", "y", RenameFlags::NOREPLACE), Err(Errno::EXIST));
        rename("x", "y", RenameFlags::EXCHANGE).expect("both are there");
        assert_eq!(
            (fs::read(m("x")).expect("there"), fs::read(m("y")).expect("there")),
            (b"y".to_vec(), b"x".to_vec())
        );
        fs::rename(m("x"), m("y")).expect("replaces");
        assert_eq!(fs::read(m("y")).expect("there"), b"y");

        fs::hard_link(m("y"), m("z")).expect("room");
        let (y, z) = (fs::metadata(m("y")).expect("there"), fs::metadata(m("z")).expect("there"));
        assert_eq!((y.ino(), y.nlink(), z.nlink()), (z.ino(), 2, 2));
        fs::remove_file(m("y")).expect("there");
        assert_eq!(fs::metadata(m("z")).expect("there").nlink(), 1);
        symlink("no/such/\u{1f409}", m("link")).expect("room");
        assert_eq!(fs::read_link(m("link")).expect("there"), Path::new("no/such/\u{1f409}"));
        for (name, kind) in [("fifo", FileType::Fifo), ("socket", FileType::Socket)] {
            rustix::fs::mknodat(CWD, m(name), kind, Mode::from_raw_mode(0o600), 0).expect("room");
        }
        assert!(fs::metadata(m("fifo")).expect("there").file_type().is_fifo());
        let longest = "n".repeat(255);
        fs::write(m(&longest), "").expect("255 bytes fit");
        assert_eq!(fs::write(m(&(longest + "n")), "").expect_err("256").raw_os_error(), Some(libc::ENAMETOOLONG));
    });
}

#[test]
fn the_kernel_reads_ahead_as_far_as_it_is_told() {
    over_each_transport("ahead", |mounted| {
        let device = fs::metadata(&mounted.point).expect("a mount").dev();
        let set = format!("/sys/class/bdi/{}:{}/read_ahead_kb", rustix::fs::major(device), rustix::fs::minor(device));
        if OpenOptions::new().write(true).open(&set).is_err() {
            return skipped::because(format_args!("{set} cannot be written here"));
        }
        assert_eq!(fs::read_to_string(set).expect("readable").trim(), "1024");
    });
}

#[test]
fn files_without_names_and_holes() {
    over_each_transport("holes", |mounted| {
        let m = |name: &str| mounted.point.join(name);
        // Open and unlinked.
        let mut file = open_new(&m("gone"));
        file.write_all(b"still here").expect("room");
        fs::remove_file(m("gone")).expect("there");
        file.rewind().expect("a file");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("readable");
        assert_eq!((text.as_str(), file.metadata().expect("open").nlink()), ("still here", 0));
        drop(file);

        // O_TMPFILE, given a name later.
        let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
        let unnamed =
            File::from(rustix::fs::openat(CWD, &mounted.point, flags, Mode::from_raw_mode(0o600)).expect("6.6 has it"));
        unnamed.write_all_at(b"named late", 0).expect("room");
        let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&unnamed));
        rustix::fs::linkat(CWD, own, CWD, m("late"), AtFlags::SYMLINK_FOLLOW).expect("it has a user");
        drop(unnamed);
        assert_eq!(fs::read(m("late")).expect("there"), b"named late");

        // Holes: a file of many TiB takes what was written.
        const FAR: u64 = 40 << 40;
        let sparse = open_new(&m("sparse"));
        sparse.write_all_at(b"far", FAR).expect("room");
        let found = sparse.metadata().expect("open");
        assert_eq!(found.len(), FAR + 3);
        assert!(found.blocks() * 512 < 1 << 20, "{} blocks", found.blocks());
        assert_eq!(rustix::fs::seek(&sparse, SeekFrom::Data(0)).expect("data"), FAR);
        assert_eq!(rustix::fs::seek(&sparse, SeekFrom::Hole(0)).expect("a hole"), 0);
        assert_eq!(rustix::fs::seek(&sparse, SeekFrom::Hole(FAR)).expect("the end"), FAR + 3);
        assert_eq!(rustix::fs::seek(&sparse, SeekFrom::Data(FAR + 3)), Err(Errno::NXIO));

        // Allocate, punch, zero.
        let file = open_new(&m("allocated"));
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).expect("room");
        assert_eq!((file.metadata().expect("open").len(), file.metadata().expect("open").blocks()), (1 << 20, 2048));
        rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 1 << 20, 1 << 20).expect("room");
        assert_eq!(file.metadata().expect("open").len(), 1 << 20);
        file.write_all_at(&vec![7; 1 << 20], 0).expect("room");
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 4096, 8192).expect("a file");
        rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, 65_536, 100).expect("a file");
        let bytes = fs::read(m("allocated")).expect("readable");
        let expected = |at: usize| !(4096..12_288).contains(&at) && !(65_536..65_636).contains(&at);
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == if expected(at) { 7 } else { 0 }));
        assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(0)).expect("the punched one"), 4096);
        assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(4096)).expect("behind it"), 12_288);
        let collapse = FallocateFlags::COLLAPSE_RANGE;
        assert_eq!(rustix::fs::fallocate(&file, collapse, 0, 4096), Err(Errno::OPNOTSUPP));
        // What was allocated beyond the end goes with a truncation.
        file.set_len(0).expect("a file");
        assert_eq!(file.metadata().expect("open").blocks(), 0);
    });
}

#[test]
fn ranges_are_copied_by_sharing() {
    over_each_transport("copy", |mounted| {
        let m = |name: &str| mounted.point.join(name);
        let bytes: Vec<u8> = (0..1_500_000_u32).flat_map(|number| number.wrapping_mul(number).to_le_bytes()).collect();
        fs::write(m("a"), &bytes).expect("room");
        let (from, to) = (File::open(m("a")).expect("there"), open_new(&m("b")));
        let (mut from_at, mut to_at) = (1000, 5000);
        let mut left = 3_000_000;
        while left > 0 {
            let count = rustix::fs::copy_file_range(&from, Some(&mut from_at), &to, Some(&mut to_at), left);
            left -= count.expect("one mount");
        }
        let copied = fs::read(m("b")).expect("there");
        assert!(copied[5000..] == bytes[1000..3_001_000] && copied[..5000] == [0; 5000]);
        let before = status(mounted)["data"]["stored_bytes"].as_u64();
        succeed(&[OsStr::new("cp"), m("a").as_os_str(), m("c").as_os_str()]);
        assert!(fs::read(m("c")).expect("there") == bytes);
        assert_eq!(status(mounted)["data"]["stored_bytes"].as_u64(), before, "chunks are shared");
    });
}

#[test]
fn attributes_and_access() {
    over_each_transport("attributes", |mounted| {
        let m = |name: &str| mounted.point.join(name);
        fs::write(m("f"), "f").expect("room");
        fs::set_permissions(m("f"), fs::Permissions::from_mode(0o4755)).expect("ours");
        assert_eq!(fs::metadata(m("f")).expect("there").mode() & 0o7777, 0o4755);
        // What C's and Python's streams collect for one request.
        assert_eq!(fs::metadata(m("f")).expect("there").blksize(), 32 << 10);
        let flags = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let born = rustix::fs::statx(CWD, m("f"), AtFlags::SYMLINK_NOFOLLOW, flags).expect("there");
        assert!(born.stx_mask & StatxFlags::BTIME.bits() != 0 && born.stx_btime.tv_sec > 1_600_000_000);

        rustix::fs::setxattr(m("f"), "user.color", b"red", XattrFlags::CREATE).expect("room");
        assert_eq!(rustix::fs::setxattr(m("f"), "user.color", b"x", XattrFlags::CREATE), Err(Errno::EXIST));
        assert_eq!(rustix::fs::setxattr(m("f"), "user.none", b"x", XattrFlags::REPLACE), Err(Errno::NODATA));
        let mut value = [0; 8];
        assert_eq!(
            rustix::fs::getxattr(m("f"), "user.color", &mut value[..]).map(|count| value[..count].to_vec()),
            Ok(b"red".to_vec())
        );
        assert_eq!(rustix::fs::getxattr(m("f"), "user.color", &mut value[..2]), Err(Errno::RANGE));
        let mut list = [0; 64];
        let count = rustix::fs::listxattr(m("f"), &mut list[..]).expect("room");
        assert_eq!(&list[..count], b"user.color\0");
        rustix::fs::removexattr(m("f"), "user.color").expect("there");
        assert_eq!(rustix::fs::getxattr(m("f"), "user.color", &mut value[..]), Err(Errno::NODATA));
        let large = vec![5; 60_000];
        rustix::fs::setxattr(m("f"), "user.large", &large, XattrFlags::empty()).expect("64 KiB fit");

        // A default access list: user 1 may read what is made here, whatever the umask.
        fs::create_dir(m("shared")).expect("room");
        let id = |tag: u16, rights: u16, id: u32| {
            [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        let nobody = u32::MAX;
        let list = [id(1, 7, nobody), id(2, 4, 1), id(4, 0, nobody), id(16, 7, nobody), id(32, 0, nobody)].concat();
        let list = [&2_u32.to_le_bytes()[..], &list].concat();
        rustix::fs::setxattr(m("shared"), "system.posix_acl_default", &list, XattrFlags::empty())
            .expect("access lists");
        fs::write(m("shared/f"), "f").expect("room");
        let mut access = [0; 100];
        let count = rustix::fs::getxattr(m("shared/f"), "system.posix_acl_access", &mut access[..]).expect("inherited");
        assert_eq!(count, list.len());
        assert_eq!(fs::metadata(m("shared/f")).expect("there").mode() & 0o777, 0o660, "the mask is the group's bits");

        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(m("f"), Some(1), Some(2)).expect("root may");
            let found = fs::metadata(m("f")).expect("there");
            assert_eq!((found.uid(), found.gid(), found.mode() & 0o7000), (1, 2, 0), "set-id bits go with the owner");
            fs::set_permissions(m("f"), fs::Permissions::from_mode(0o600)).expect("root may");
            let denied = as_user(2, &["cat"], &m("f"));
            assert!(denied.contains("ermission denied"), "the kernel checks permissions: {denied}");
            assert_eq!(as_user(1, &["cat"], &m("f")), "f");
            // Set-id bits go with a write around the kernel's cache, and the kernel, asked for the mode alone, does not show the old one.
            let to = PathBuf::from(format!("of={}", m("f").display()));
            let direct = ["dd", "if=/dev/zero", "bs=4096", "count=1", "oflag=direct", "conv=notrunc", "status=none"];
            for (change, path) in [(&direct[..], &to), (&["fallocate", "-l", "100000"][..], &m("f"))] {
                fs::set_permissions(m("f"), fs::Permissions::from_mode(0o6777)).expect("root may");
                assert_eq!(as_user(1, change, path), "");
                let found = rustix::fs::statx(CWD, m("f"), AtFlags::empty(), StatxFlags::MODE).expect("there");
                assert_eq!(found.stx_mode & 0o7777, 0o777, "{change:?}");
            }
            // Not those of root's own doing; and where the group may not execute, by who is not of it.
            let length = |bytes: &str| ["-l", bytes].map(str::to_owned);
            let mode = || fs::metadata(m("f")).expect("there").mode() & 0o7777;
            fs::set_permissions(m("f"), fs::Permissions::from_mode(0o6777)).expect("root may");
            assert!(run(Command::new("fallocate").args(length("120000")).arg(m("f"))).status.success());
            assert_eq!(mode(), 0o6777, "root keeps them");
            fs::set_permissions(m("f"), fs::Permissions::from_mode(0o6666)).expect("root may");
            assert_eq!(as_user(1, &["fallocate", "-l", "140000"], &m("f")), "");
            assert_eq!(mode(), 0o666, "its group is 2");
        }
        // Locks are the kernel's own.
        let (one, other) = (File::open(m("f")).expect("there"), File::open(m("f")).expect("there"));
        rustix::fs::flock(&one, FlockOperation::LockExclusive).expect("free");
        assert_eq!(rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive), Err(Errno::WOULDBLOCK));
        let space = rustix::fs::statvfs(&mounted.point).expect("mounted");
        assert!(space.f_blocks > space.f_bavail && space.f_bavail > 0 && space.f_namemax == 255);
    });
}

#[test]
fn reading_moves_the_access_time_unless_it_is_told_not_to() {
    over_each_transport("access", |mounted| {
        let path = mounted.point.join("f");
        let file = open_new(&path);
        file.write_all_at(b"read", 0).and_then(|()| file.sync_all()).expect("room");
        // The daemon sees reads that the kernel cannot answer.
        let read = |flags: OFlags| {
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("clean");
            let before = fs::metadata(&path).expect("there").accessed().expect("kept");
            let reader = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(&path);
            reader.expect("there").read_exact(&mut [0; 4]).expect("readable");
            fs::metadata(&path).expect("there").accessed().expect("kept") != before
        };
        assert!(!read(OFlags::NOATIME));
        assert!(read(OFlags::empty()));
        assert!(!read(OFlags::empty()), "relatime");
    });
}

/// One call that the kernel sends as many requests at a time, each of which has pages of a file that was written taken away, and makes much durable: more
/// than may wait for disks at a time, and syncs of several threads beside the flusher's rounds. What was lost there was lost once in six times.
#[test]
fn a_large_direct_and_synchronous_write_over_pages_ends_and_is_there() {
    const BYTES: usize = 64 << 20;
    // Each page says where it belongs.
    let mut content = Vec::with_capacity(BYTES);
    (0..BYTES as u64).step_by(8).for_each(|at| content.extend_from_slice(&at.to_le_bytes()));
    over_each_transport("direct", |mounted| {
        let folder = mounted.point.parent().expect("it has a folder");
        for round in 0..4 {
            let path = mounted.point.join(format!("f{round}"));
            fs::write(&path, noise(round, BYTES)).expect("room");
            let from = folder.join("new");
            fs::write(&from, &content).expect("room");
            let files = [format!("if={}", from.display()), format!("of={}", path.display())];
            let write = move || {
                run(Command::new("dd").args(files).args([
                    "bs=64M",
                    "oflag=direct,dsync",
                    "conv=notrunc",
                    "status=none",
                ]))
            };
            let force = || {
                let _ = rustix::mount::unmount(&mounted.point, UnmountFlags::FORCE | UnmountFlags::DETACH);
            };
            let written = within_or("a direct write", force, write);
            assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
            let found = fs::read(&path).expect("there");
            let wrong = found.chunks(4096).zip(content.chunks(4096)).position(|(found, content)| found != content);
            assert!(found.len() == BYTES && wrong.is_none(), "round {round}, page {wrong:?}");
        }
    });
}

#[test]
fn a_listing_goes_on_while_its_entries_are_removed() {
    over_each_transport("listing", |mounted| {
        let directory = mounted.point.join("d");
        fs::create_dir(&directory).expect("room");
        for number in 0..5000 {
            fs::write(directory.join(format!("file-{number}")), "").expect("room");
        }
        let mut seen = 0;
        for entry in fs::read_dir(&directory).expect("there") {
            // std skips `.` and `..`.
            fs::remove_file(entry.expect("an entry").path()).expect("each is seen once");
            seen += 1;
        }
        assert_eq!(seen, 5000);
        assert_eq!(fs::read_dir(&directory).expect("there").count(), 0);
        fs::remove_dir(&directory).expect("it is empty");
    });
}

#[test]
fn snapshots_keep_what_was() {
    over_each_transport("snapshots", |mounted| {
        let m = |name: &str| mounted.point.join(name);
        fs::create_dir(m("d")).expect("room");
        fs::write(m("d/f"), "then").expect("room");
        let snapshot = |arguments: &[&str]| {
            let (verb, rest) = arguments.split_first().expect("a verb");
            let mut all = vec![OsStr::new("snapshot"), OsStr::new(verb), mounted.node.as_os_str()];
            all.extend(rest.iter().map(OsStr::new));
            succeed(&all)
        };
        let list = || -> Vec<String> {
            let entries = fs::read_dir(m(".snapshots")).expect("always there");
            let mut names: Vec<_> =
                entries.map(|entry| entry.expect("a name").file_name().into_string().expect("ours")).collect();
            names.sort();
            names
        };
        assert_eq!(list(), Vec::<String>::new());
        snapshot(&["create", "one"]);
        assert_eq!(list(), ["one"], "the listing that the kernel kept is dropped");
        fs::write(m("d/f"), "now").expect("room");
        fs::write(m("d/new"), "new").expect("room");
        assert_eq!(fs::read(m(".snapshots/one/d/f")).expect("there"), b"then");
        assert_eq!(fs::metadata(m(".snapshots/one/d/new")).expect_err("later").raw_os_error(), Some(libc::ENOENT));
        assert_eq!(fs::write(m(".snapshots/one/d/f"), "x").expect_err("read-only").raw_os_error(), Some(libc::EROFS));
        for refused in [
            fs::create_dir(m(".snapshots/x")),
            fs::remove_dir(m(".snapshots/one")),
            fs::remove_file(m(".snapshots/one/d/f")),
        ] {
            assert_eq!(refused.expect_err("snapshots do not change").raw_os_error(), Some(libc::EROFS));
        }
        let names = fs::read_dir(&mounted.point).expect("mounted").map(|entry| entry.expect("a name").file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["d"], "the directory of snapshots is not listed");
        let ids = [m("d/f"), m(".snapshots/one/d/f")].map(|path| fs::metadata(path).expect("there").ino());
        assert_ne!(ids[0], ids[1]);
        let info = succeed(&[OsStr::new("info"), OsStr::new("--json"), m(".snapshots/one/d/f").as_os_str()]);
        let info: serde_json::Value = serde_json::from_str(&info).expect("JSON");
        assert_eq!((&info["size"], &info["file"]), (&serde_json::json!(4), &serde_json::json!(ids[0])));
        // Restored by copying.
        succeed(&[OsStr::new("cp"), OsStr::new("-a"), m(".snapshots/one/d").as_os_str(), m("back").as_os_str()]);
        assert_eq!(fs::read(m("back/f")).expect("restored"), b"then");
        snapshot(&["create", "two"]);
        snapshot(&["delete", "one"]);
        assert_eq!(list(), ["two"]);
        assert_eq!(fs::metadata(m(".snapshots/one")).expect_err("deleted").raw_os_error(), Some(libc::ENOENT));
    });
}

#[test]
fn everything_is_there_again() {
    let folder = Folder::new("again");
    let (node, point, source) = (folder.node("n"), folder.make("m"), folder.join("source"));
    let other = folder.make("other");
    fill(&source);
    let expected = likeness(&source);
    let copy = point.join("copy");
    let Some(mounted) = Mounted::start(&node, &point, &[SMALL]) else { return };
    succeed(&[OsStr::new("cp"), OsStr::new("-a"), source.as_os_str(), copy.as_os_str()]);
    assert_eq!(likeness(&copy), expected);

    // A second daemon, and a second mount at the same place. The first one stands still: whatever changes is their doing.
    let refusals = [
        (vec![OsStr::new("serve"), node.as_os_str()], format!("process {}", mounted.pid)),
        (vec![OsStr::new("mount"), node.as_os_str(), point.as_os_str()], "is mounted there already".to_owned()),
        (vec![OsStr::new("mount"), node.as_os_str(), other.as_os_str()], format!("process {}", mounted.pid)),
    ];
    // The kernel knows it from now on.
    assert!(fs::metadata(&point).expect("mounted").is_dir());
    let hung = Hung::make(&mounted);
    let all = || (content(&node), content(&other), [&point, &other].map(|point| mounts_at(point)));
    let before = all();
    for (arguments, words) in refusals {
        let arguments: Vec<OsString> = arguments.into_iter().map(OsStr::to_owned).collect();
        let output = within_or("nobody is asked", || mounted.signal(Signal::CONT), move || hydrafs(&arguments));
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && message.contains(&words), "{message}");
        assert!(all() == before, "something was changed: {message}");
    }
    drop(hung);
    // In use: nothing happens, and the message says by whom.
    let held = File::open(copy.join("file")).expect("there");
    let output = hydrafs(&[OsStr::new("umount"), point.as_os_str()]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && message.contains(&format!("in use: {} (", std::process::id())),
        "{message}"
    );
    assert_eq!(likeness(&copy), expected, "still mounted");
    drop(held);
    mounted.umount();
    assert!(fs::read_dir(&point).expect("an empty directory").next().is_none());

    let mounted = Mounted::start(&node, &point, &[SMALL]).expect("as before");
    assert_eq!(likeness(&copy), expected, "after umount and mount");
    let file = open_new(&point.join("synced"));
    file.write_all_at(b"synced", 0).expect("room");
    file.sync_all().expect("a disk");
    fs::write(point.join("more"), "more").expect("room");
    succeed(&[OsStr::new("sync"), point.as_os_str()]);
    drop(file);
    mounted.kill();

    // The dead mount is taken away by the next one.
    let mounted = Mounted::start(&node, &point, &[SMALL]).expect("as before");
    assert_eq!(likeness(&copy), expected, "after a crash");
    assert_eq!(fs::read(point.join("synced")).expect("an fsync was promised"), b"synced");
    assert_eq!(fs::read(point.join("more")).expect("a sync was promised"), b"more");

    // Detached while in use, with a page that only a mapping has changed... is the POSIX suites' business; here: it ends.
    let held = File::open(copy.join("file")).expect("there");
    succeed(&[OsStr::new("stop"), OsStr::new("--lazy"), node.as_os_str()]);
    drop(held);
    drop(mounted);
    assert!(succeed(&[OsStr::new("fsck"), OsStr::new("--deep"), node.as_os_str()]).contains("all is well"));
}

#[test]
fn what_root_unmounts_can_be_mounted_again_at_once() {
    over_each_transport_mut("unmounted", |mounted| {
        for round in 0..4u8 {
            let bytes = vec![round; 4 << 20];
            let path = mounted.point.join(round.to_string());
            // Not on the disks when the mount goes.
            fs::write(&path, &bytes).expect("room");
            mounted.take_away();
            mounted.mend();
            assert_eq!(fs::read(&path).expect("made local at the end"), bytes);
        }
    });
}

#[test]
fn a_mount_that_another_namespace_keeps_ends_with_that_or_by_force() {
    over_each_transport_mut("kept", |mounted| {
        fs::write(mounted.point.join("f"), "kept").expect("room");
        for by_force in [true, false] {
            let Some(mut keeper) = keeper(&mounted.point) else { return };
            let there = PathBuf::from(format!("/proc/{}/root{}/f", keeper.id(), mounted.point.display()));
            let refused = hydrafs(&[OsStr::new("umount"), mounted.point.as_os_str()]);
            let message = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert!(refused.status.code() == Some(1), "{message}");
            assert!(message.contains(&format!("goes on in the mount namespace of {} (sh)", keeper.id())), "{message}");
            assert_eq!(fs::read(&there).expect("served as before"), b"kept");
            if by_force {
                succeed(&[OsStr::new("stop"), OsStr::new("--lazy"), mounted.node.as_os_str()]);
                fs::metadata(&there).expect_err("nobody serves it");
            }
            drop(keeper.stdin.take());
            keeper.wait().expect("our child");
            mounted.wait();
            mounted.mend();
        }
    });
}

#[test]
fn each_of_several_mounts_of_one_file_system_is_taken_away_alone() {
    over_each_transport_mut("bound", |mounted| {
        if !rustix::process::geteuid().is_root() {
            return skipped::because("only root may bind");
        }
        let folder = Folder::new("bound-elsewhere");
        let (there, umount) = (folder.make("there"), OsStr::new("umount"));
        fs::create_dir(mounted.point.join("d")).and_then(|()| fs::write(mounted.point.join("d/f"), "f")).expect("room");
        let bind = || rustix::mount::mount_bind(mounted.point.join("d"), &there).expect("root may");
        bind();
        succeed(&[umount, there.as_os_str()]);
        assert!(!there.join("f").exists() && mounted.point.join("d/f").exists());
        bind();
        succeed(&[umount, mounted.point.as_os_str()]);
        assert!(!mounted.point.join("d").exists());
        assert_eq!(fs::read(there.join("f")).expect("served as before"), b"f");
        let refused = hydrafs(&[OsStr::new("stop"), mounted.node.as_os_str()]);
        let message = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(1) && message.contains(&format!("at {}", there.display())), "{message}");
        succeed(&[umount, there.as_os_str()]);
        mounted.wait();
        mounted.mend();
    });
}

#[test]
fn what_is_written_until_a_signal_ends_a_mount_that_goes_on_elsewhere_is_there() {
    over_each_transport_mut("signalled-elsewhere", |mounted| {
        if !rustix::process::geteuid().is_root() {
            return skipped::because("only root may bind");
        }
        const AT_A_TIME: usize = 512;
        let folder = Folder::new("signalled-elsewhere-there");
        let there = folder.make("there");
        rustix::mount::mount_bind(&mounted.point, &there).expect("root may");
        let mut file = open_new(&there.join("f"));
        let (tell, told) = std::sync::mpsc::channel();
        let writer = std::thread::spawn(move || {
            let mut written = 0_u64;
            loop {
                match file.write_all(&[b'w'; AT_A_TIME]) {
                    Ok(()) => written += 1,
                    Err(error) => return (written, error),
                }
                // Nobody listens to more than the first.
                let _ = tell.send(());
            }
        });
        told.recv().expect("it writes");
        mounted.signal(Signal::TERM);
        let (written, error) = within("who writes hears of the end", move || writer.join().expect("no panic"));
        let is_over = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED].map(Some).contains(&error.raw_os_error());
        assert!(is_over, "{error}");
        mounted.wait();
        rustix::mount::unmount(&there, UnmountFlags::DETACH).expect("bound before");
        mounted.mend();
        let content = fs::read(mounted.point.join("f")).expect("it was made local");
        assert!(content.len() as u64 >= written * AT_A_TIME as u64, "{written} were acknowledged: {}", content.len());
        assert!(content.iter().all(|byte| *byte == b'w'));
    });
}

/// A copy of the mount in no namespace is in no mount table either, like one that a container does not see.
#[test]
fn a_signal_ends_a_mount_that_is_kept_where_nobody_sees_it() {
    let folder = Folder::new("kept-unseen");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let Some(mut mounted) = Mounted::start(&node, &point, &[]) else { return };
    if !rustix::process::geteuid().is_root() {
        return skipped::because("only root may copy a mount");
    }
    let copy = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let kept = rustix::mount::open_tree(CWD, &point, copy).expect("root may");
    let open = |flags| rustix::fs::openat(&kept, "f", flags, Mode::RUSR);
    let file = open(OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC).expect("it is served there too");
    rustix::io::write(&file, b"accepted").expect("room");
    mounted.signal(Signal::TERM);
    mounted.wait();
    let error = rustix::io::write(&file, b"more").expect_err("nobody is there");
    assert!([Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED].contains(&error), "{error}");
    mounted.mend();
    assert_eq!(fs::read(point.join("f")).expect("it was made local"), b"accepted");
    mounted.umount();
}

#[test]
fn a_damaged_pack_is_an_error_and_never_wrong_data() {
    let folder = Folder::new("damaged");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let bytes: Vec<u8> = (0..1_000_000_u32).flat_map(|number| number.wrapping_mul(number).to_le_bytes()).collect();
    let Some(mounted) = Mounted::start(&node, &point, &[SMALL]) else { return };
    fs::write(point.join("f"), &bytes).expect("room");
    mounted.umount();
    let mut packs: Vec<PathBuf> = content(&node.join("disk/packs")).into_keys().collect();
    packs.sort_by_key(|pack| fs::metadata(pack).expect("there").len());
    let largest = packs.last().expect("4 MB of data are in a pack");
    let length = fs::metadata(largest).expect("there").len();
    File::options().write(true).open(largest).and_then(|pack| pack.set_len(length / 2)).expect("our own disk");

    let output = hydrafs(&[OsStr::new("fsck"), OsStr::new("--deep"), node.as_os_str()]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text} {}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("HF") && text.contains("n/disk") && text.contains("expected"), "{text}");
    let mounted = Mounted::start(&node, &point, &[SMALL]).expect("as before");
    assert_eq!(fs::read(point.join("f")).expect_err("half of it is lost").raw_os_error(), Some(libc::EIO));
    assert!(fs::read_to_string(node.join("hydrafs.log")).expect("a log").contains("the store failed"));
    mounted.umount();

    // A plan changes nothing, a repair loses no more, and says by name what is lost.
    let repair = ["fsck", "--deep", "--repair"].map(OsStr::new);
    let dry = hydrafs(&[&repair[..], &[OsStr::new("--dry-run"), node.as_os_str()]].concat());
    let text = String::from_utf8_lossy(&dry.stdout);
    assert!(
        dry.status.code() == Some(1) && text.contains("the plan, in 1 steps:\n  1. copy the good chunks"),
        "{text}"
    );
    assert!(largest.exists());
    let repaired = hydrafs(&[&repair[..], &[node.as_os_str()]].concat());
    let text = String::from_utf8_lossy(&repaired.stdout);
    assert_eq!(repaired.status.code(), Some(1), "{text}");
    assert!(text.contains("done: copy the good chunks") && text.contains("after the repair:"), "{text}");
    assert!(text.contains("HF1008 extent: /f (") && text.contains("backup"), "{text}");
    assert!(!largest.exists() && largest.with_extension("pack.damaged").exists());

    // The same content, brought back under any name, mends every file that has it.
    let mounted = Mounted::start(&node, &point, &[SMALL]).expect("as before");
    assert_eq!(fs::read(point.join("f")).expect_err("half of it is lost").raw_os_error(), Some(libc::EIO));
    fs::write(point.join("backup"), &bytes).expect("room");
    succeed(&[OsStr::new("sync"), point.as_os_str()]);
    assert!(fs::read(point.join("f")).expect("it is whole again") == bytes);
    fs::remove_file(largest.with_extension("pack.damaged")).expect("looked at");
    let output = hydrafs(&[&repair[..], &[OsStr::new("--json"), node.as_os_str()]].concat());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(output.status.success() && report["clean"] == true && report["plan"] == serde_json::json!([]), "{report}");
    mounted.umount();
}

/// A journal that lost what was synced: refused, explained, and opened without it only when told to.
#[test]
fn a_rotten_journal_is_cut_when_told_to() {
    let folder = Folder::new("rotten");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let Some(mounted) = Mounted::start(&node, &point, &[SMALL]) else { return };
    for name in ["first", "second", "third"] {
        let file = open_new(&point.join(name));
        file.write_all_at(name.repeat(100).as_bytes(), 0).expect("room");
        file.sync_all().expect("a disk");
    }
    mounted.kill();
    drop(mounted);
    let second = b"second".repeat(100);
    let find = |bytes: &[u8]| bytes.windows(second.len()).position(|window| window == second);
    let segments = content(&node.join("disk/journal"));
    let found = segments.iter().find_map(|(path, (_, _, bytes))| Some((path, find(bytes)?)));
    let (segment, at) = found.expect("an fsync of little data goes into the journal");
    let file = File::options().write(true).open(segment).expect("our own disk");
    file.write_all_at(b"rotten", at as u64).expect("room");

    let fsck = |options: &[&str]| {
        let options = options.iter().map(OsStr::new);
        let output =
            hydrafs(&[OsStr::new("fsck")].into_iter().chain(options).chain([node.as_os_str()]).collect::<Vec<_>>());
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let before = content(&node.join("disk/journal"));
    for options in [&[][..], &["--repair"], &["--repair", "--dry-run"], &["--repair", "--accept-loss", "--dry-run"]] {
        let (code, text) = fsck(options);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains("the changes of frames") && text.contains("--repair --accept-loss"), "{text}");
    }
    assert!(content(&node.join("disk/journal")) == before, "nothing was given up");
    let (code, text) = fsck(&["--deep", "--repair", "--accept-loss"]);
    assert!(code == Some(0) && text.contains("given up: the journal is damaged"), "{text}");
    assert!(text.contains("open the node without what is lost of its journal: the journal is damaged"), "{text}");
    let mounted = Mounted::start(&node, &point, &[SMALL]).expect("as before");
    assert_eq!(fs::read(point.join("first")).expect("before the loss"), b"first".repeat(100));
    assert!(!point.join("third").exists(), "what comes after the loss is lost");
    mounted.umount();
    assert_eq!(fsck(&["--deep"]).0, Some(0));
}

/// A pack that gives no answer may come back: nothing that lies there is given up, whatever was said.
#[test]
fn a_pack_that_gives_no_answer_is_no_loss() {
    let folder = Folder::new("silent");
    let (node, point) = (folder.node("n"), folder.make("m"));
    let Some(mounted) = Mounted::start(&node, &point, &[SMALL]) else { return };
    for number in 0..300 {
        fs::write(point.join(format!("file number {number}")), "content").expect("room");
    }
    mounted.umount();
    let packs = content(&node.join("disk/packs")).into_iter();
    let trees: Vec<PathBuf> = packs.filter(|(_, (_, _, bytes))| bytes[12] == 1).map(|(path, _)| path).collect();
    let aside = |pack: &Path| folder.join(pack.file_name().expect("a file"));
    for pack in &trees {
        fs::rename(pack, aside(pack)).expect("our own disk");
        // It can be opened, and every read fails.
        fs::create_dir(pack).expect("room");
    }
    fs::remove_file(node.join("disk/index")).expect("it is made again without the packs");
    let options = ["fsck", "--repair", "--accept-loss"].map(OsStr::new);
    let output = hydrafs(&[&options[..], &[node.as_os_str()]].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text} {}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("FAILED: read pack") && text.contains("gives no answer"), "{text}");

    for pack in &trees {
        fs::remove_dir(pack).expect("empty");
        fs::rename(aside(pack), pack).expect("our own disk");
    }
    assert!(succeed(&[OsStr::new("fsck"), OsStr::new("--deep"), node.as_os_str()]).contains("all is well"));
    let mounted = Mounted::start(&node, &point, &[SMALL]).expect("as before");
    assert_eq!(fs::read_dir(&point).expect("readable").count(), 300);
    mounted.umount();
}

/// A disk that is gone at the start: refused, then gone without, then taken in again by a restart.
#[test]
fn mount_8_finds_its_helpers() {
    use std::os::unix::process::CommandExt;
    let folder = Folder::new("helper");
    let (node, point) = (folder.node("n"), folder.make("m"));
    if File::options().read(true).write(true).open("/dev/fuse").is_err() {
        return skipped::because("/dev/fuse cannot be opened here");
    }
    let call = |name: &str, arguments: &[&OsStr]| {
        let output = run(Command::new(env!("CARGO_BIN_EXE_hydrafs")).arg0(name).args(arguments));
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success() && said.is_empty(), "{name}: {}", String::from_utf8_lossy(&said));
    };
    let options = ["-o", "rw,nosuid,noatime,_netdev"].map(OsStr::new);
    call("/sbin/mount.hydrafs", &[node.as_os_str(), point.as_os_str(), options[0], options[1]]);
    let table = fs::read_to_string("/proc/self/mountinfo").expect("a mount table");
    let line = table.lines().find(|line| line.contains(point.to_str().expect("UTF-8"))).expect("it is mounted");
    assert!(line.contains("nosuid") && line.contains("fuse.hydrafs"), "{line}");
    let file = point.join("f");
    fs::write(&file, "f").expect("room");
    let accessed = || fs::metadata(&file).expect("it is there").accessed().expect("kept");
    let before = accessed();
    assert_eq!(fs::read(&file).expect("readable"), b"f");
    assert_eq!(accessed(), before, "noatime");
    call("/sbin/mount.hydrafs", &[node.as_os_str(), point.as_os_str(), options[0], OsStr::new("remount,ro,noatime")]);
    let error = fs::write(&file, "g").expect_err("read-only");
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    call("/sbin/mount.hydrafs", &[node.as_os_str(), point.as_os_str(), options[0], OsStr::new("remount,rw")]);
    fs::write(&file, "g").expect("writable again");
    call("/sbin/umount.fuse.hydrafs", &[point.as_os_str()]);
    assert!(!point.join("f").exists());
}

#[test]
fn a_daemon_without_a_mount_answers() {
    let folder = Folder::new("serve");
    let node = folder.node("n");
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_hydrafs"));
    let mut daemon = spawn(daemon.arg("serve").arg(&node).stderr(std::process::Stdio::piped())).expect("it starts");
    // Its log says when it is ready.
    let mut log = std::io::BufReader::new(daemon.stderr.take().expect("piped"));
    let mut line = String::new();
    while !line.contains("without a mount") {
        line.clear();
        assert!(std::io::BufRead::read_line(&mut log, &mut line).expect("a log") > 0, "it ended");
    }
    let status: serde_json::Value =
        serde_json::from_str(&succeed(&[OsStr::new("status"), OsStr::new("--json"), node.as_os_str()])).expect("JSON");
    assert_eq!((&status["running"], &status["mount"]), (&serde_json::json!(true), &serde_json::Value::Null));
    let socket = fs::metadata(node.join("control.sock")).expect("there");
    assert!(socket.file_type().is_socket() && socket.mode() & 0o777 == 0o600);
    let line =
        succeed(&[OsStr::new("stats"), OsStr::new("--json"), node.as_os_str(), OsStr::new("0.01"), OsStr::new("-n1")]);
    assert!(
        serde_json::from_str::<serde_json::Value>(&line).expect("one line of JSON")["counters"]["file_lookups"]
            .is_u64()
    );
    succeed(&[OsStr::new("stop"), node.as_os_str()]);
    assert!(daemon.wait().expect("our child").success());
    assert!(!node.join("control.sock").exists());
}

/// What `hydrafs status` says when everything was synced.
pub(crate) fn status(mounted: &Mounted) -> serde_json::Value {
    succeed(&[OsStr::new("sync"), mounted.point.as_os_str()]);
    let text = succeed(&[OsStr::new("status"), OsStr::new("--json"), mounted.node.as_os_str()]);
    serde_json::from_str(&text).expect("JSON")
}

/// What a command of another user prints.
fn as_user(uid: u32, command: &[&str], path: &PathBuf) -> String {
    use std::os::unix::process::CommandExt;
    let output = run(Command::new(command[0]).args(&command[1..]).arg(path).current_dir("/").uid(uid).gid(uid));
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}
