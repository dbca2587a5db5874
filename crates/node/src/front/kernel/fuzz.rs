//! Calls that no kernel makes: numbers, names and orders of any kind, behind decoding. Targets of the crate `fuzz`.
//!
//! An input is a list of requests to a new file system on the simulated machine, each as opcode, node, number of bytes, and what follows the
//! header.

use std::sync::Arc;
use std::time::Duration;

use base::id::NodeNumber;
use file::{FileSystem, Options, format_node};
use fuse::{Errno, Exchange, Service};
use fuzz::{SLOW_CASES, Target, no_repair};
use platform::sim::{SimDisk, World};

use super::Kernel;

const TARGETS: &[Target] = &[Target { name: "kernel-calls", cases: SLOW_CASES, samples, repair: no_repair, check }];

const LOOKUP: u8 = 1;
const FORGET: u8 = 2;
const GETATTR: u8 = 3;
const SETATTR: u8 = 4;
const READLINK: u8 = 5;
const SYMLINK: u8 = 6;
const MKNOD: u8 = 8;
const MKDIR: u8 = 9;
const UNLINK: u8 = 10;
const RMDIR: u8 = 11;
const LINK: u8 = 13;
const READ: u8 = 15;
const WRITE: u8 = 16;
const STATFS: u8 = 17;
const FSYNC: u8 = 20;
const SETXATTR: u8 = 21;
const GETXATTR: u8 = 22;
const LISTXATTR: u8 = 23;
const REMOVEXATTR: u8 = 24;
const READDIR: u8 = 28;
const FALLOCATE: u8 = 43;
const READDIRPLUS: u8 = 44;
const RENAME2: u8 = 45;
const LSEEK: u8 = 46;
const COPY_FILE_RANGE: u8 = 47;
const SYNCFS: u8 = 50;
const TMPFILE: u8 = 51;
const STATX: u8 = 52;

const ROOT: u64 = 1;
const MODE_FILE: u64 = 0o10_0644;
/// Bits of SETATTR.
const SET_MODE: u64 = 1 << 0;
const SET_SIZE: u64 = 1 << 3;
const SET_ATIME: u64 = 1 << 4;
const SET_MTIME: u64 = 1 << 5;
/// Longest answer: what a rehearsal has room for.
const ANSWER_BYTES_MAX: usize = 2 << 20;
/// Requests of an input at most: damage may make many of few.
const REQUESTS_MAX: usize = 200;

/// A file system, and what serves it to a kernel.
struct Machine {
    world: World,
    disk: SimDisk,
    system: Arc<FileSystem>,
    kernel: Arc<Kernel>,
}

impl Machine {
    fn new() -> Machine {
        let world = World::new(1);
        let disk = world.disk("disk", 256 << 20);
        let (platform, disks) = (world.platform(), vec![disk.disk()]);
        let options = Options { dirty_bytes_max: 8 << 20, ..Options::default() };
        let system = world.run_until(async {
            format_node(&platform, &disks, NodeNumber(1), 0, 0).await?;
            FileSystem::open(&platform, &disks, options).await
        });
        let system = system.expect("nothing halts the machine").expect("a sound disk").0;
        let kernel = Arc::new(Kernel::new(Arc::clone(&system), &platform, Duration::from_secs(1)));
        Machine { world, disk, system, kernel }
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.world.run_until(future).expect("nothing halts the machine")
    }

    fn call(&self, opcode: u8, node: u64, body: &[u8]) -> Result<Vec<u8>, Errno> {
        if opcode == FORGET {
            let count = body.first_chunk().map_or(u64::MAX, |count| u64::from_le_bytes(*count));
            self.kernel.forget(node, count);
            return Ok(Vec::new());
        }
        let exchange = Exchange::rehearsal(u32::from(opcode), node, body).expect("memory");
        self.run(Arc::clone(&self.kernel).serve(exchange)).outcome()
    }

    /// Nothing is wrong with what was committed, nor after a crash.
    fn expect_sound(self) {
        let check = async |system: &FileSystem| {
            // A full disk keeps what it has.
            let _ = system.commit().await;
            let report = system.check_files(&|_| {}).await.expect("a sound disk");
            assert!(report.problems.is_empty(), "{:#?}", report.problems);
        };
        self.run(check(&self.system));
        let Machine { world, disk, system, kernel } = self;
        drop((kernel, system));
        world.crash();
        let disks = [disk.disk()];
        let again = world.run_until(async {
            let (system, _) =
                FileSystem::open(&world.platform(), &disks, Options::default()).await.expect("a sound disk");
            check(&system).await;
        });
        again.expect("nothing halts the machine");
    }
}

/// Arguments: each a number and its bytes.
fn numbers(numbers: &[(u64, usize)]) -> Vec<u8> {
    numbers.iter().flat_map(|(number, bytes)| number.to_le_bytes()[..*bytes].to_vec()).collect()
}

fn words(words: &[u64]) -> Vec<u8> {
    numbers(&words.iter().map(|word| (*word, 4)).collect::<Vec<_>>())
}

/// Requests that are made while they are written down, so that they can name what earlier ones made.
struct Script {
    machine: Machine,
    input: Vec<u8>,
}

impl Script {
    fn call(&mut self, opcode: u8, node: u64, parts: &[&[u8]]) -> Result<Vec<u8>, Errno> {
        let body = parts.concat();
        let length = u16::try_from(body.len()).expect("a short request");
        self.input.extend([&[opcode][..], &node.to_le_bytes(), &length.to_le_bytes(), &body].concat());
        self.machine.call(opcode, node, &body)
    }

    fn does(&mut self, opcode: u8, node: u64, parts: &[&[u8]]) -> Vec<u8> {
        self.call(opcode, node, parts).unwrap_or_else(|errno| panic!("{opcode}: {errno:?}"))
    }

    /// What an entry that is answered names.
    fn makes(&mut self, opcode: u8, node: u64, parts: &[&[u8]]) -> u64 {
        u64::from_le_bytes(*self.does(opcode, node, parts).first_chunk().expect("an entry"))
    }

    fn file(&mut self, name: &[u8]) -> u64 {
        self.makes(MKNOD, ROOT, &[&words(&[MODE_FILE, 0, 0, 0]), name])
    }

    fn writes(&mut self, node: u64, offset: u64, data: &[u8]) {
        self.does(WRITE, node, &[&writing(offset, data.len(), 0, 0), data]);
    }
}

/// `how`: of the request; `flags`: of the open file.
fn writing(offset: u64, bytes: usize, how: u32, flags: u32) -> Vec<u8> {
    numbers(&[(0, 8), (offset, 8), (bytes as u64, 4), (how.into(), 4), (0, 8), (flags.into(), 4), (0, 4)])
}

/// READ's, READDIR's.
fn reading(offset: u64, bytes: u64) -> Vec<u8> {
    numbers(&[(0, 8), (offset, 8), (bytes, 4), (0, 4), (0, 8), (0, 8)])
}

fn setattr(valid: u64, size: u64, mode: u64) -> Vec<u8> {
    let times = [(77, 8), (88, 8), (99, 8), (1, 4), (2, 4), (3, 4)];
    let rest = [(mode, 4), (0, 4), (1000, 4), (1000, 4), (0, 4)];
    numbers(&[&[(valid, 4), (0, 4), (0, 8), (size, 8), (0, 8)][..], &times, &rest].concat())
}

fn contents() -> Vec<u8> {
    let mut script = Script { machine: Machine::new(), input: Vec::new() };
    let file = script.file(b"f\0");
    let other = script.file(b"g\0");
    script.writes(file, 4900, &[7; 100]);
    script.writes(file, 1 << 20, b"far");
    script.does(READ, file, &[&reading(4000, 4096)]);
    for (mode, offset, length) in [(0, 0, 1 << 21), (1, 0, 4096), (3, 4096, 8192), (0x10, 10, 100), (0x11, 0, 1 << 22)]
    {
        let arguments = numbers(&[(0, 8), (offset, 8), (length, 8), (mode, 8)]);
        script.does(FALLOCATE, file, &[&arguments]);
    }
    for whence in [3, 4] {
        script.does(LSEEK, file, &[&numbers(&[(0, 8), (100, 8), (whence, 8)])]);
    }
    let copied = |to: u64| numbers(&[(0, 8), (0, 8), (to, 8), (0, 8), (300, 8), (1 << 20, 8), (0, 8)]);
    script.does(COPY_FILE_RANGE, file, &[&copied(other)]);
    script.does(SETATTR, file, &[&setattr(SET_SIZE, 3000, 0)]);
    script.does(SETATTR, other, &[&setattr(SET_MODE | SET_ATIME | SET_MTIME, 0, 0o4755)]);
    script.does(FSYNC, file, &[&numbers(&[(0, 8), (1, 8)])]);
    script.does(GETATTR, file, &[&[0; 16]]);
    script.does(STATX, other, &[&numbers(&[(0, 8), (0, 8), (0, 4), (0xfff, 4)])]);
    script.does(SYNCFS, ROOT, &[&[0; 8]]);
    script.input
}

fn names() -> Vec<u8> {
    let mut script = Script { machine: Machine::new(), input: Vec::new() };
    let file = script.file(b"f\0");
    let directory = script.makes(MKDIR, ROOT, &[&words(&[0o755, 0o22]), b"d\0"]);
    let below = script.makes(MKDIR, directory, &[&words(&[0o755, 0o22]), b"e\0"]);
    let link = script.makes(SYMLINK, directory, &[b"l\0", b"../f\0"]);
    script.does(READLINK, link, &[]);
    script.does(LINK, below, &[&file.to_le_bytes(), b"h\0"]);
    script.does(LOOKUP, below, &[b"h\0"]);
    script.does(LOOKUP, below, &[b"..\0"]);
    let renamed = |to: u64, flags: u64| numbers(&[(to, 8), (flags, 8)]);
    script.does(RENAME2, below, &[&renamed(directory, 1), b"h\0", b"i\0"]);
    script.does(RENAME2, ROOT, &[&renamed(directory, 2), b"f\0", b"i\0"]);
    script.does(RENAME2, directory, &[&renamed(ROOT, 0), b"e\0", b"e\0"]);
    for opcode in [READDIR, READDIRPLUS] {
        script.does(opcode, directory, &[&reading(0, 4096)]);
        script.does(opcode, ROOT, &[&reading(1, 200)]);
    }
    script.does(UNLINK, directory, &[b"i\0"]);
    script.does(UNLINK, ROOT, &[b"f\0"]);
    script.writes(file, 0, b"without a name");
    script.does(FORGET, file, &[&2_u64.to_le_bytes()]);
    script.does(RMDIR, ROOT, &[b"e\0"]);
    script.does(TMPFILE, ROOT, &[&words(&[0o2, MODE_FILE, 0, 0]), b"#\0"]);
    script.does(STATFS, ROOT, &[]);
    script.input
}

fn attributes() -> Vec<u8> {
    let mut script = Script { machine: Machine::new(), input: Vec::new() };
    let file = script.file(b"f\0");
    script.does(SETXATTR, file, &[&words(&[5, 0, 0, 0]), b"user.one\0", b"value"]);
    script.does(SETXATTR, file, &[&words(&[5, 2, 0, 0]), b"user.one\0", b"VALUE"]);
    script.does(SETXATTR, file, &[&words(&[0, 1, 0, 0]), b"trusted.two\0"]);
    script.does(GETXATTR, file, &[&words(&[0, 0]), b"user.one\0"]);
    script.does(GETXATTR, file, &[&words(&[100, 0]), b"user.one\0"]);
    script.does(LISTXATTR, file, &[&words(&[100, 0])]);
    let entries: [(u16, u16, u32); 5] =
        [(1, 6, u32::MAX), (2, 7, 1000), (4, 4, u32::MAX), (0x10, 6, u32::MAX), (0x20, 4, u32::MAX)];
    let acl = entries
        .iter()
        .flat_map(|(tag, rights, id)| [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat());
    let acl: Vec<u8> = 2_u32.to_le_bytes().into_iter().chain(acl).collect();
    let directory = script.makes(MKDIR, ROOT, &[&words(&[0o755, 0]), b"d\0"]);
    for (node, name) in [(file, &b"system.posix_acl_access\0"[..]), (directory, b"system.posix_acl_default\0")] {
        script.does(SETXATTR, node, &[&words(&[acl.len() as u64, 0, 0, 0]), name, &acl]);
    }
    script.makes(MKNOD, directory, &[&words(&[MODE_FILE, 0, 0o77, 0]), b"inherits\0"]);
    script.does(REMOVEXATTR, file, &[b"user.one\0"]);
    script.input
}

fn samples() -> Vec<Vec<u8>> {
    vec![contents(), names(), attributes()]
}

/// The requests of an input, up to where it makes no sense.
fn requests(input: &[u8]) -> Vec<(u8, u64, &[u8])> {
    let (mut rest, mut requests) = (input, Vec::new());
    while let [opcode, tail @ ..] = rest
        && let Some((node, tail)) = tail.split_first_chunk()
        && let Some((length, tail)) = tail.split_first_chunk()
    {
        let length = usize::from(u16::from_le_bytes(*length)).min(tail.len());
        requests.push((*opcode, u64::from_le_bytes(*node), &tail[..length]));
        rest = &tail[length..];
    }
    requests
}

/// Every request is answered, and afterwards nothing is wrong with the file system, nor after a crash.
fn check(bytes: &[u8]) -> Result<(), String> {
    let (machine, mut refused) = (Machine::new(), Ok(()));
    for (opcode, node, body) in requests(bytes).into_iter().take(REQUESTS_MAX) {
        match machine.call(opcode, node, body) {
            Ok(answer) => assert!(answer.len() <= ANSWER_BYTES_MAX, "{opcode}: {} bytes", answer.len()),
            Err(errno) => refused = refused.and(Err(format!("{opcode} {errno:?}"))),
        }
    }
    machine.expect_sound();
    refused
}

#[test]
fn who_reads_or_writes_through_the_cache_is_taken_down() {
    let mut script = Script { machine: Machine::new(), input: Vec::new() };
    let direct = libc::O_DIRECT.cast_unsigned();
    let mut uses_cache = |opcode, arguments: &[u8], data: &[u8]| {
        let name = format!("{}\0", script.input.len());
        let file = script.file(name.as_bytes());
        script.does(opcode, file, &[arguments, data]);
        let Machine { world, kernel, .. } = &script.machine;
        kernel.around.has_old_pages(file, world.platform().clock.elapsed())
    };
    assert!(uses_cache(READ, &reading(0, 4096), &[]));
    assert!(uses_cache(WRITE, &writing(0, 1, 0, 0), b"x"));
    assert!(
        uses_cache(WRITE, &writing(0, 1, fuse::flags::write::CACHE, direct), b"x"),
        "of a page that is written back"
    );
    assert!(!uses_cache(WRITE, &writing(0, 1, 0, direct), b"x"));
}

#[test]
fn calls_of_any_kind_are_answered() {
    fuzz::run(env!("CARGO_MANIFEST_DIR"), TARGETS);
}

/// Each argument of each request of the samples with each number that is the first or last of something, and then as it is.
#[test]
fn the_least_and_the_most_numbers_are_answered() {
    let numbers = [0, 1, i64::MAX as u64 - 1, i64::MAX as u64, 1 << 63, u64::MAX - 1, u64::MAX];
    for sample in samples() {
        let machine = Machine::new();
        for (opcode, node, body) in requests(&sample) {
            for at in (0..body.len()).step_by(4) {
                for (number, width) in numbers.iter().flat_map(|number| [(number, 4), (number, 8)]) {
                    let mut body = body.to_vec();
                    // Its lower bytes, or its upper: the same for those of four bytes.
                    let bytes = if width == 4 { &number.to_be_bytes()[..4] } else { &number.to_le_bytes()[..] };
                    let end = body.len().min(at + width);
                    body[at..end].copy_from_slice(&bytes[..end - at]);
                    let _ = machine.call(opcode, node, &body);
                }
            }
            for number in numbers {
                let _ = machine.call(opcode, number, body);
            }
            let _ = machine.call(opcode, node, body);
        }
        machine.expect_sound();
    }
}
