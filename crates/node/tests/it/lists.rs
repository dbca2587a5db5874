//! Lists of system calls, each made in a mount and in a folder of the local file system: every result, every errno and the whole tree
//! must agree, also after the mount was taken away and made again. A list that fails is shrunk.
//!
//! `PROPTEST_CASES=1000 cargo test -p node lists` tries more. What the local file system does not offer (EOPNOTSUPP) is not compared; nor are
//! times, unless a call set them, and where holes lie: there every byte that is no data must read as zero.
//!
//! Not here: mappings and many processes (`make posix`: fsx, stress-ng); crashes (`sim`, `xtask kill`).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use proptest::prelude::{Just, ProptestConfig, Strategy, any};
use proptest::test_runner::{TestCaseError, TestRunner};
use proptest::{collection, prop_oneof, sample};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom, Timespec, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::Errno;

use crate::mount::{SMALL, transports};
use crate::support::{Folder, Mounted, succeed};

/// Lists in a plain test run, over each transport.
const CASES: u32 = 15;
/// Largest file of a list.
const FILE_BYTES_MAX: u64 = 400_000;
/// Open files of a list.
const SLOTS: usize = 5;
/// Times that a call set lie before this second, and times of changes behind it.
const OLD_SECONDS_MAX: i64 = 1_000_000;

type Name = String;

#[derive(Clone, Debug)]
enum Call {
    Open { slot: usize, path: Name, flags: u32, mode: u32 },
    Unnamed { slot: usize, path: Name },
    Close { slot: usize },
    Read { slot: usize, offset: u64, count: usize },
    Write { slot: usize, count: usize, byte: u8 },
    WriteAt { slot: usize, offset: u64, count: usize, byte: u8 },
    Truncate { slot: usize, length: u64 },
    Allocate { slot: usize, flags: u32, offset: u64, length: u64 },
    Copy { from: usize, to: usize, from_offset: u64, to_offset: u64, count: usize },
    Seek { slot: usize, how: u8, offset: u64 },
    Sync { slot: usize, data_only: bool },
    ChangeModeOpen { slot: usize, mode: u32 },
    MakeDirectory { path: Name, mode: u32 },
    MakeNode { path: Name, kind: FileType, mode: u32 },
    MakeLink { path: Name, target: Name },
    Link { from: Name, to: Name, follow: bool },
    LinkOpen { slot: usize, to: Name },
    Unlink { path: Name },
    RemoveDirectory { path: Name },
    Rename { from: Name, to: Name, flags: u32 },
    ChangeMode { path: Name, mode: u32 },
    ChangeOwner { path: Name, uid: u32, gid: u32, follow: bool },
    SetTimes { path: Name, accessed: i64, modified: i64, follow: bool },
    TruncatePath { path: Name, length: u64 },
    SetXattr { path: Name, name: &'static str, value: Vec<u8>, flags: u32 },
    GetXattr { path: Name, name: &'static str, room: usize },
    RemoveXattr { path: Name, name: &'static str },
    Look { path: Name, follow: bool },
    List { path: Name },
    Remount,
}

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

fn any_path() -> impl Strategy<Value = Name> {
    let name = prop_oneof![
        20 => sample::select(vec!["a", "b", "c", "d"]).prop_map(str::to_owned),
        1 => sample::select(vec![".", "..", ""]).prop_map(str::to_owned),
        1 => (250..260_usize).prop_map(|count| "l".repeat(count)),
    ];
    // A leading name keeps `..` inside the folder.
    (sample::select(vec!["a", "b", "c", "d"]), collection::vec(name, 0..3)).prop_map(|(first, rest)| {
        let inside = rest.iter().filter(|name| *name == "..").count() < 2;
        std::iter::once(first.to_owned()).chain(if inside { rest } else { Vec::new() }).collect::<Vec<_>>().join("/")
    })
}

fn any_list_of_rules() -> impl Strategy<Value = Vec<u8>> {
    let rule = |tag: u16| {
        let id = if tag == 2 || tag == 8 { 7_u32 } else { u32::MAX };
        (0..8_u16).prop_map(move |rights| [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat())
    };
    let whole = (rule(1), rule(2), rule(4), rule(16), rule(32));
    let minimal = (rule(1), rule(4), rule(32));
    let version = || 2_u32.to_le_bytes().to_vec();
    prop_oneof![
        4 => whole.prop_map(move |(a, b, c, d, e)| [version(), a, b, c, d, e].concat()),
        2 => minimal.prop_map(move |(a, b, c)| [version(), a, b, c].concat()),
        1 => collection::vec(any::<u8>(), 0..30),
    ]
}

fn any_value() -> impl Strategy<Value = (&'static str, Vec<u8>)> {
    prop_oneof![
        4 => (sample::select(vec!["user.a", "user.b", "trusted.c"]), collection::vec(any::<u8>(), 0..400)),
        2 => (sample::select(vec![ACCESS, DEFAULT]), any_list_of_rules()),
        1 => (sample::select(vec!["user.", "nonsense", "other.x"]), collection::vec(any::<u8>(), 0..3)),
    ]
}

fn any_name_of_value() -> impl Strategy<Value = &'static str> {
    sample::select(vec!["user.a", "user.b", "trusted.c", ACCESS, DEFAULT, "user.", "nonsense"])
}

fn any_call() -> impl Strategy<Value = Call> {
    let slot = || 0..SLOTS;
    let offset = || prop_oneof![Just(0), 0..300_u64, 0..FILE_BYTES_MAX / 2];
    let count = || prop_oneof![0..50_usize, 0..5000_usize, 0..100_000_usize];
    // Set-id bits of directories only: fallocate and copy_file_range do not say who calls, and take them from files of root, too.
    let mode = || prop_oneof![3 => Just(0o644_u32), 2 => 0..0o2000_u32];
    let directory_mode = || prop_oneof![2 => mode(), 1 => Just(0o2775_u32)];
    let path = any_path;
    let flags = prop_oneof![
        6 => Just(OFlags::RDWR | OFlags::CREATE),
        1 => Just(OFlags::RDWR | OFlags::CREATE | OFlags::EXCL),
        1 => Just(OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC),
        2 => Just(OFlags::RDWR | OFlags::CREATE | OFlags::APPEND),
        1 => Just(OFlags::RDONLY | OFlags::NONBLOCK),
        1 => Just(OFlags::WRONLY | OFlags::TRUNC | OFlags::NONBLOCK),
        1 => Just(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW),
        1 => Just(OFlags::RDONLY | OFlags::DIRECTORY),
    ];
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let zero = FallocateFlags::ZERO_RANGE;
    let allocation = sample::select(vec![
        FallocateFlags::empty(),
        FallocateFlags::KEEP_SIZE,
        punch,
        zero,
        zero | FallocateFlags::KEEP_SIZE,
        FallocateFlags::PUNCH_HOLE,
    ]);
    let renaming = prop_oneof![
        3 => Just(RenameFlags::empty()),
        1 => Just(RenameFlags::NOREPLACE),
        1 => Just(RenameFlags::EXCHANGE),
        1 => Just(RenameFlags::EXCHANGE | RenameFlags::NOREPLACE),
    ];
    let kind = sample::select(vec![FileType::Fifo, FileType::Socket, FileType::CharacterDevice, FileType::RegularFile]);
    let owner = || sample::select(vec![0_u32, 1, 7, u32::MAX]);
    let seconds = || -100..OLD_SECONDS_MAX;
    let opening = (slot(), path(), flags, mode()).prop_map(|(slot, path, flags, mode)| Call::Open {
        slot,
        path,
        flags: flags.bits(),
        mode,
    });
    let contents = prop_oneof![
        4 => (slot(), count(), any::<u8>()).prop_map(|(slot, count, byte)| Call::Write { slot, count, byte }),
        8 => (slot(), offset(), count(), any::<u8>())
            .prop_map(|(slot, offset, count, byte)| Call::WriteAt { slot, offset, count, byte }),
        4 => (slot(), offset(), count()).prop_map(|(slot, offset, count)| Call::Read { slot, offset, count }),
        4 => (slot(), offset()).prop_map(|(slot, length)| Call::Truncate { slot, length }),
        6 => (slot(), allocation, offset(), offset()).prop_map(|(slot, flags, offset, length)| Call::Allocate {
            slot,
            flags: flags.bits(),
            offset,
            length
        }),
        5 => (slot(), slot(), offset(), offset(), count()).prop_map(|(from, to, from_offset, to_offset, count)| Call::Copy {
            from,
            to,
            from_offset,
            to_offset,
            count
        }),
        3 => (slot(), 0..5_u8, offset()).prop_map(|(slot, how, offset)| Call::Seek { slot, how, offset }),
        2 => (slot(), any::<bool>()).prop_map(|(slot, data_only)| Call::Sync { slot, data_only }),
    ];
    let names = prop_oneof![
        4 => (path(), directory_mode()).prop_map(|(path, mode)| Call::MakeDirectory { path, mode }),
        1 => (path(), kind, mode()).prop_map(|(path, kind, mode)| Call::MakeNode { path, kind, mode }),
        2 => (path(), path()).prop_map(|(path, target)| Call::MakeLink { path, target }),
        3 => (path(), path(), any::<bool>()).prop_map(|(from, to, follow)| Call::Link { from, to, follow }),
        1 => (slot(), path()).prop_map(|(slot, to)| Call::LinkOpen { slot, to }),
        4 => path().prop_map(|path| Call::Unlink { path }),
        2 => path().prop_map(|path| Call::RemoveDirectory { path }),
        6 => (path(), path(), renaming).prop_map(|(from, to, flags)| Call::Rename { from, to, flags: flags.bits() }),
    ];
    let attributes = prop_oneof![
        3 => (path(), mode()).prop_map(|(path, mode)| Call::ChangeMode { path, mode }),
        1 => (slot(), mode()).prop_map(|(slot, mode)| Call::ChangeModeOpen { slot, mode }),
        2 => (path(), owner(), owner(), any::<bool>())
            .prop_map(|(path, uid, gid, follow)| Call::ChangeOwner { path, uid, gid, follow }),
        2 => (path(), seconds(), seconds(), any::<bool>())
            .prop_map(|(path, accessed, modified, follow)| Call::SetTimes { path, accessed, modified, follow }),
        1 => (path(), offset()).prop_map(|(path, length)| Call::TruncatePath { path, length }),
        // Both flags at once mean nothing, and file systems differ.
        6 => (path(), any_value(), 0..3_u32)
            .prop_map(|(path, (name, value), flags)| Call::SetXattr { path, name, value, flags }),
        2 => (path(), any_name_of_value(), 0..500_usize).prop_map(|(path, name, room)| Call::GetXattr { path, name, room }),
        2 => (path(), any_name_of_value()).prop_map(|(path, name)| Call::RemoveXattr { path, name }),
        2 => (path(), any::<bool>()).prop_map(|(path, follow)| Call::Look { path, follow }),
        1 => path().prop_map(|path| Call::List { path }),
    ];
    prop_oneof![
        10 => opening,
        1 => (slot(), path()).prop_map(|(slot, path)| Call::Unnamed { slot, path }),
        2 => slot().prop_map(|slot| Call::Close { slot }),
        30 => contents,
        25 => names,
        20 => attributes,
        1 => Just(Call::Remount),
    ]
}

/// One of the two folders, with its open files.
struct Side {
    folder: PathBuf,
    open: [Option<File>; SLOTS],
}

type Outcome = Result<String, Errno>;

fn at_flags(follow: bool) -> AtFlags {
    if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW }
}

fn io(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).expect("from the system")
}

impl Side {
    fn new(folder: PathBuf) -> Side {
        fs::create_dir(&folder).expect("room");
        Side { folder, open: Default::default() }
    }

    fn path(&self, name: &str) -> PathBuf {
        // Not `join`: an empty last name is a slash at the end, and that means something.
        PathBuf::from(format!("{}/{name}", self.folder.display()))
    }

    fn file(&self, slot: usize) -> Result<&File, Errno> {
        self.open[slot].as_ref().ok_or(Errno::BADF)
    }

    fn make(&mut self, call: &Call) -> Outcome {
        let done = |()| String::new();
        let mode = |mode: u32| Mode::from_raw_mode(mode);
        match call {
            Call::Open { slot, path, flags, mode: bits } => {
                // A fifo that is full, and that nobody reads, would be waited for without end.
                let flags = OFlags::from_bits_retain(*flags) | OFlags::NONBLOCK | OFlags::CLOEXEC;
                self.open[*slot] = None;
                self.open[*slot] = Some(rustix::fs::openat(CWD, self.path(path), flags, mode(*bits))?.into());
                Ok(String::new())
            }
            Call::Unnamed { slot, path } => {
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                self.open[*slot] = None;
                self.open[*slot] = Some(rustix::fs::openat(CWD, self.path(path), flags, mode(0o600))?.into());
                Ok(String::new())
            }
            Call::Close { slot } => Ok(format!("{}", self.open[*slot].take().is_some())),
            Call::Read { slot, offset, count } => {
                let mut bytes = vec![0; *count];
                let read = self.file(*slot)?.read_at(&mut bytes, *offset).map_err(|error| io(&error))?;
                Ok(digest(&bytes[..read]))
            }
            Call::Write { slot, count, byte } => {
                let file = self.file(*slot)?;
                if file.metadata().map_err(|error| io(&error))?.len() > FILE_BYTES_MAX {
                    return Ok("enough".to_owned());
                }
                Ok(rustix::io::write(file, &pattern(*count, *byte))?.to_string())
            }
            Call::WriteAt { slot, offset, count, byte } => {
                let written = self.file(*slot)?.write_at(&pattern(*count, *byte), *offset);
                written.map(|count| count.to_string()).map_err(|error| io(&error))
            }
            Call::Truncate { slot, length } => rustix::fs::ftruncate(self.file(*slot)?, *length).map(done),
            Call::Allocate { slot, flags, offset, length } => {
                let flags = FallocateFlags::from_bits_retain(*flags);
                rustix::fs::fallocate(self.file(*slot)?, flags, *offset, *length).map(done)
            }
            Call::Copy { from, to, from_offset, to_offset, count } => {
                let (mut from_at, mut to_at) = (*from_offset, *to_offset);
                let (from, to) = (self.file(*from)?, self.file(*to)?);
                let copied = rustix::fs::copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), *count)?;
                Ok(format!("{copied} {from_at} {to_at}"))
            }
            Call::Seek { slot, how, offset } => {
                let file = self.file(*slot)?;
                let signed = i64::try_from(*offset).expect("small");
                // The end of a directory is whatever a file system says.
                match how {
                    _ if file.metadata().is_ok_and(|metadata| metadata.is_dir()) => Ok("a directory".to_owned()),
                    0 => Ok(rustix::fs::seek(file, SeekFrom::Start(*offset))?.to_string()),
                    1 => Ok(rustix::fs::seek(file, SeekFrom::Current(-signed))?.to_string()),
                    2 => Ok(rustix::fs::seek(file, SeekFrom::End(signed))?.to_string()),
                    _ => expect_zeroes_outside_data(file),
                }
            }
            Call::Sync { slot, data_only: true } => rustix::fs::fdatasync(self.file(*slot)?).map(done),
            Call::Sync { slot, data_only: false } => rustix::fs::fsync(self.file(*slot)?).map(done),
            Call::ChangeModeOpen { slot, mode: bits } => rustix::fs::fchmod(self.file(*slot)?, mode(*bits)).map(done),
            Call::MakeDirectory { path, mode: bits } => {
                rustix::fs::mkdirat(CWD, self.path(path), mode(*bits)).map(done)
            }
            Call::MakeNode { path, kind, mode: bits } => {
                let device = rustix::fs::makedev(1, 3);
                rustix::fs::mknodat(CWD, self.path(path), *kind, mode(*bits), device).map(done)
            }
            Call::MakeLink { path, target } => rustix::fs::symlinkat(target, CWD, self.path(path)).map(done),
            Call::Link { from, to, follow } => {
                let flags = if *follow { AtFlags::SYMLINK_FOLLOW } else { AtFlags::empty() };
                rustix::fs::linkat(CWD, self.path(from), CWD, self.path(to), flags).map(done)
            }
            Call::LinkOpen { slot, to } => {
                let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(self.file(*slot)?));
                rustix::fs::linkat(CWD, own, CWD, self.path(to), AtFlags::SYMLINK_FOLLOW).map(done)
            }
            Call::Unlink { path } => rustix::fs::unlinkat(CWD, self.path(path), AtFlags::empty()).map(done),
            Call::RemoveDirectory { path } => rustix::fs::unlinkat(CWD, self.path(path), AtFlags::REMOVEDIR).map(done),
            Call::Rename { from, to, flags } => {
                let flags = RenameFlags::from_bits_retain(*flags);
                rustix::fs::renameat_with(CWD, self.path(from), CWD, self.path(to), flags).map(done)
            }
            Call::ChangeMode { path, mode: bits } => {
                rustix::fs::chmodat(CWD, self.path(path), mode(*bits), AtFlags::empty()).map(done)
            }
            Call::ChangeOwner { path, uid, gid, follow } => {
                let (uid, gid) = (*uid != u32::MAX).then_some(*uid).zip((*gid != u32::MAX).then_some(*gid)).unzip();
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                rustix::fs::chownat(CWD, self.path(path), uid, gid, at_flags(*follow)).map(done)
            }
            Call::SetTimes { path, accessed, modified, follow } => {
                let time = |seconds| Timespec { tv_sec: seconds, tv_nsec: 123_456_789 };
                let times = Timestamps { last_access: time(*accessed), last_modification: time(*modified) };
                rustix::fs::utimensat(CWD, self.path(path), &times, at_flags(*follow)).map(done)
            }
            Call::TruncatePath { path, length } => {
                // There is no truncate(2) in rustix; an open without waiting for the other end of a fifo stands in.
                let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = rustix::fs::openat(CWD, self.path(path), flags, Mode::empty())?;
                rustix::fs::ftruncate(&file, *length).map(done)
            }
            Call::SetXattr { path, name, value, flags } => {
                rustix::fs::lsetxattr(self.path(path), *name, value, XattrFlags::from_bits_retain(*flags)).map(done)
            }
            Call::GetXattr { path, name, room } => {
                let mut value = vec![0; *room];
                let count = rustix::fs::lgetxattr(self.path(path), *name, &mut value[..])?;
                Ok(format!("{count} {}", digest(&value[..count.min(*room)])))
            }
            Call::RemoveXattr { path, name } => rustix::fs::lremovexattr(self.path(path), *name).map(done),
            Call::Look { path, follow } => {
                let path = self.path(path);
                let metadata = if *follow { fs::metadata(path) } else { fs::symlink_metadata(path) };
                metadata.map(|metadata| attributes(&metadata)).map_err(|error| io(&error))
            }
            Call::List { path } => {
                names(&self.path(path)).map(|names| format!("{names:?}")).map_err(|error| io(&error))
            }
            Call::Remount => Ok(String::new()),
        }
    }

    /// Every name below the folder, with all that can be seen of it.
    fn tree(&self) -> BTreeMap<PathBuf, String> {
        let mut found = BTreeMap::new();
        let mut files: BTreeMap<u64, PathBuf> = BTreeMap::new();
        let mut waiting = vec![self.folder.clone()];
        while let Some(path) = waiting.pop() {
            let metadata = fs::symlink_metadata(&path).expect("it was listed");
            let name = path.strip_prefix(&self.folder).expect("below").to_owned();
            let mut seen = attributes(&metadata);
            if metadata.is_dir() {
                waiting.extend(names(&path).expect("a directory").into_iter().map(|name| path.join(name)));
            } else if metadata.is_symlink() {
                seen += &format!(" {:?}", fs::read_link(&path).expect("a link"));
            } else if metadata.is_file() {
                seen += &format!(" {}", digest(&fs::read(&path).expect("readable")));
                expect_zeroes_outside_data(&File::open(&path).expect("readable")).expect("seekable");
            }
            seen += &format!(" {:?}", xattrs(&path));
            // Names of one file are names of one file on the other side too.
            let first = files.entry(metadata.ino()).or_insert_with(|| name.clone());
            if !metadata.is_dir() && *first != name {
                seen += &format!(" as {}", first.display());
            }
            found.insert(name, seen);
        }
        found
    }

    /// What open files look like, whether they have names or not.
    fn open_files(&self) -> Vec<Option<String>> {
        let look = |file: &Option<File>| file.as_ref().map(|file| attributes(&file.metadata().expect("open")));
        self.open.iter().map(look).collect()
    }
}

fn pattern(count: usize, byte: u8) -> Vec<u8> {
    (0..count).map(|at| byte.wrapping_add(at.to_le_bytes()[0]).wrapping_mul(at.to_le_bytes()[1] | 1)).collect()
}

/// Short words for bytes: their number, and a sum in which places count.
fn digest(bytes: &[u8]) -> String {
    let sum =
        bytes.iter().fold(0_u64, |sum, byte| sum.wrapping_mul(0x100_0000_01b3).wrapping_add(u64::from(*byte) + 1));
    format!("{} bytes {sum:x}", bytes.len())
}

fn attributes(metadata: &fs::Metadata) -> String {
    let size = if metadata.is_dir() { 0 } else { metadata.size() };
    let modified = Some((metadata.mtime(), metadata.mtime_nsec())).filter(|(seconds, _)| *seconds < OLD_SECONDS_MAX);
    let (mode, links, uid, gid) = (metadata.mode(), metadata.nlink(), metadata.uid(), metadata.gid());
    format!("{mode:o} {links} links {uid}:{gid} size {size} device {} {modified:?}", metadata.rdev())
}

fn names(path: &Path) -> std::io::Result<Vec<std::ffi::OsString>> {
    let mut names = fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

fn xattrs(path: &Path) -> BTreeMap<String, String> {
    let mut list = vec![0; 65_536];
    let count = rustix::fs::llistxattr(path, &mut list[..]).unwrap_or(0);
    let names = list[..count].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let name = String::from_utf8_lossy(name).into_owned();
        let mut value = vec![0; 65_536];
        let count = rustix::fs::lgetxattr(path, name.as_str(), &mut value[..]).expect("it was listed");
        (name, digest(&value[..count]))
    };
    names.map(value).collect()
}

/// Walks over the data that lseek tells of: between it there must be zeroes.
fn expect_zeroes_outside_data(file: &File) -> Outcome {
    let metadata = file.metadata().map_err(|error| io(&error))?;
    if !metadata.is_file() {
        return Ok("no file".to_owned());
    }
    let before = rustix::fs::seek(file, SeekFrom::Current(0))?;
    let mut bytes = vec![0; usize::try_from(metadata.len()).expect("small")];
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => {}
        // Open for writing only.
        Err(_) => return Ok("unreadable".to_owned()),
    }
    let mut at = 0;
    while at < metadata.len() {
        let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => metadata.len(),
            Err(error) => return Err(error),
        };
        let index = |at: u64| usize::try_from(at).expect("small");
        assert!(data >= at && bytes[index(at)..index(data)].iter().all(|byte| *byte == 0), "data in a hole at {at}");
        if data == metadata.len() {
            break;
        }
        at = rustix::fs::seek(file, SeekFrom::Hole(data))?;
        assert!(at > data, "data of no bytes at {data}");
    }
    rustix::fs::seek(file, SeekFrom::Start(before))?;
    Ok("sparse".to_owned())
}

/// The mount, made again when a list asks for it.
struct Stage {
    // Dropped in this order: a folder with a mount in it cannot be removed.
    mounted: Option<Mounted>,
    folder: Folder,
    transport: &'static str,
    lists: u32,
}

impl Stage {
    fn remount(&mut self) {
        self.mounted.take().expect("mounted between calls").umount();
        let settings = [SMALL, ("HYDRAFS_MOUNT_TRANSPORT", self.transport)];
        self.mounted = Mounted::start(&self.folder.join("n"), &self.folder.join("m"), &settings);
    }

    fn follow(&mut self, list: &[Call]) -> Result<(), String> {
        self.lists += 1;
        let name = self.lists.to_string();
        let mut here = Side::new(self.folder.join("reference").join(&name));
        let mut there = Side::new(self.folder.join("m").join(&name));
        for (number, call) in list.iter().chain([&Call::Remount]).enumerate() {
            if matches!(call, Call::Remount) {
                compare("open files", &here.open_files(), &there.open_files())?;
                (here.open, there.open) = Default::default();
                compare("the tree", &here.tree(), &there.tree())?;
                self.remount();
                compare("the tree after a new mount", &here.tree(), &there.tree())?;
            }
            let expected = here.make(call);
            if expected == Err(Errno::OPNOTSUPP) {
                continue;
            }
            let found = there.make(call);
            if expected != found {
                return Err(format!("call {number}, {call:?}: expected {expected:?}, found {found:?}"));
            }
        }
        fs::remove_dir_all(&here.folder).map_err(|error| error.to_string())?;
        fs::remove_dir_all(&there.folder).map_err(|error| error.to_string())
    }
}

fn compare<T: PartialEq + std::fmt::Debug>(what: &str, expected: &T, found: &T) -> Result<(), String> {
    if expected == found { Ok(()) } else { Err(format!("{what}: expected\n{expected:?}\nfound\n{found:?}")) }
}

#[test]
fn every_list_of_calls_does_what_the_local_file_system_does() {
    transports().for_each(over);
}

fn over(transport: &'static str) {
    let folder = Folder::new(&format!("lists-{transport}"));
    let (node, point, _) = (folder.node("n"), folder.make("m"), folder.make("reference"));
    let settings = [SMALL, ("HYDRAFS_MOUNT_TRANSPORT", transport)];
    let Some(mounted) = Mounted::start(&node, &point, &settings) else { return };
    let stage = std::cell::RefCell::new(Stage { folder, transport, mounted: Some(mounted), lists: 0 });
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { ProptestConfig::default().cases } else { CASES };
    let config =
        ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 400, ..ProptestConfig::default() };
    let outcome = TestRunner::new(config).run(&collection::vec(any_call(), 1..150), |list| {
        stage.borrow_mut().follow(&list).map_err(TestCaseError::fail)
    });
    if let Err(error) = outcome {
        panic!("over {transport}: {error}");
    }
    let mut stage = stage.into_inner();
    stage.mounted.take().expect("mounted").umount();
    assert!(succeed(&["fsck".as_ref(), "--deep".as_ref(), node.as_os_str()]).contains("all is well"));
}
