//! Settings and lines of the control socket that nobody means well with. Targets of the crate `fuzz`.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use base::id::FileId;
use bytes::Bytes;
use file::{Node, View};
use fuzz::{CASES, Target, expect_canonical, no_repair};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::command::mount::parse_options;
use crate::command::tar;
use crate::config::tests::bare_starter;
use crate::config::{Config, starter};
use crate::control::batch::wire::tests::samples;
use crate::control::batch::wire::{Record, Records};
use crate::control::wire::{
    Answer, BatchComparing, BatchReading, BatchWriting, Emptied, Filled, Listing, Name, REQUEST_BYTES_MAX, Request,
    Turn, read_line, write_line,
};
use crate::failure::Failure;
use crate::handover::Handover;
use crate::mounts;
use crate::node_folder::{Holder, Identity, Stage};
use crate::scrape;

const TARGETS: &[Target] = &[
    Target { name: "config", cases: CASES, samples: configs, repair: no_repair, check: config },
    Target { name: "control-request", cases: CASES, samples: requests, repair: no_repair, check: line::<Request> },
    Target { name: "control-turn", cases: CASES, samples: turns, repair: no_repair, check: line::<Turn> },
    Target { name: "control-answer", cases: CASES, samples: answers, repair: no_repair, check: line::<Answer> },
    Target { name: "batch-window", cases: CASES, samples: windows, repair: no_repair, check: window },
    Target { name: "node-file", cases: CASES, samples: node_files, repair: no_repair, check: node_file },
    Target { name: "lock-file", cases: CASES, samples: lock_files, repair: no_repair, check: lock_file },
    Target { name: "mount-table", cases: CASES, samples: mount_tables, repair: no_repair, check: mount_table },
    Target { name: "mount-options", cases: CASES, samples: mount_options, repair: no_repair, check: options },
    Target { name: "handover", cases: CASES, samples: handovers, repair: no_repair, check: handover },
    tar::ARCHIVE,
    scrape::HEAD,
];

fn configs() -> Vec<Vec<u8>> {
    let bare = bare_starter();
    let settings: String = bare.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect();
    vec![starter().into_bytes(), settings.into_bytes()]
}

/// In force and within limits, or refused with a line of the file.
fn config(bytes: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "not UTF-8")?;
    let mut config = Config::default();
    if let Err(failure) = config.apply_file(text, Path::new("hydrafs.toml")) {
        let lines = text.matches('\n').count() + 1;
        let line = failure.place.strip_prefix("hydrafs.toml line ").and_then(|line| line.parse::<usize>().ok());
        assert!(line.is_some_and(|line| (1..=lines).contains(&line)), "{failure} of {lines} lines");
        assert!(!failure.mend.is_empty(), "{failure}");
        return Err(failure.why.chars().filter(|c| c.is_ascii_lowercase()).take(20).collect());
    }
    assert!(config.memory_bytes.is_none_or(|bytes| (32 << 20..=1 << 44).contains(&bytes)));
    let request_bytes = config.request_bytes(8 << 30, 4);
    assert!((4096..=16 << 20).contains(&request_bytes) && (1..=256).contains(&config.queue_depth));
    assert!(config.flush_interval.as_millis() >= 50 && config.commit_interval.as_millis() >= 100);
    Ok(())
}

fn lines<T: Serialize>(messages: &[T]) -> Vec<Vec<u8>> {
    let line = |message| {
        let mut line = Vec::new();
        write_line(&mut line, message).expect("memory");
        line
    };
    messages.iter().map(line).collect()
}

fn requests() -> Vec<Vec<u8>> {
    lines(&[
        Request::Status {},
        Request::Counters {},
        Request::Info { inode: u64::MAX },
        Request::Sync {},
        Request::Cached { part: None },
        Request::Cached { part: Some((1, 3)) },
        Request::Device {},
        Request::On { device: "0:41".to_owned(), request: Box::new(Request::Usage { inode: 1 }) },
        Request::SnapshotCreate { name: "a \"b\"\n\u{1f409}".to_owned(), of: Some(9) },
        Request::SnapshotList {},
        Request::SnapshotDelete { name: "monday".to_owned() },
        Request::Send { snapshot: "b".to_owned(), from: Some("a".to_owned()), resume: None, dry_run: false },
        Request::Receive { name: Some("c".to_owned()) },
        Request::Fsck { deep: true },
        Request::Gc { dry_run: true, thorough: false, share: Some(200) },
        Request::Scrub { dry_run: false, older_than_seconds: u64::MAX, share: None },
        Request::PolicySet { inode: 1, copies: Some(3), fragments: Some("4+2".into()), recursive: false },
        Request::DiskAdd { path: "/d".into() },
        Request::DiskDrain { disk: 1, dry_run: false, stop: true, share: Some(50), accept_fewer: true },
        Request::DiskMeasure {},
        Request::DiskRemove { disk: u64::MAX, accept_loss: false },
        Request::Stop { detach: false },
        Request::BatchWrite(writing()),
        Request::BatchCompare(BatchComparing {
            before: 1,
            after: 2,
            windows: 4,
            window_bytes: 1 << 24,
            content_only: true,
        }),
        Request::BatchCopy { source: 2, parent: 1, name: Name::new(b"a"), anew: None },
        Request::BatchRemove { parent: 1, names: vec![Name::new(b"a\xff"), Name::new(b"b")], recursive: true },
        Request::Usage { inode: 1 },
        Request::BatchRead(BatchReading {
            roots: vec![1, 2],
            windows: 4,
            window_bytes: 1 << 24,
            content: true,
            xattrs: false,
            list: None,
        }),
        Request::BatchRead(BatchReading {
            roots: vec![1],
            windows: 8,
            window_bytes: 1 << 21,
            content: true,
            xattrs: true,
            list: Some(Listing { bytes: 99, parents: true }),
        }),
    ])
}

fn writing() -> BatchWriting {
    let (windows, window_bytes) = (4, 1 << 24);
    let lists = true;
    BatchWriting { parent: 1, windows, window_bytes, replace: true, atomic: false, preserve: true, lists, umask: 0o22 }
}

fn turns() -> Vec<Vec<u8>> {
    lines(&[Turn::Filled(Filled { window: 1, bytes: u32::MAX }), Turn::Given { window: 0 }, Turn::End {}])
}

fn answers() -> Vec<Vec<u8>> {
    lines(&[
        Answer::Progress("flushing".to_owned()),
        Answer::Ready { window_bytes: 1 },
        Answer::Emptied(Emptied { window: 3, failed: vec![(7, "file exists".to_owned())], units: 2 }),
        Answer::Done(serde_json::json!({"a": [1, null, {"b": -1.5e300}], "c": "\u{0}"})),
        Answer::Failed(Failure::new("cannot open", "why").place("where").mend("how")),
    ])
}

/// A line is a message, which is written and read again as the same, or an error; one that is too long is not read to its end.
fn line<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> Result<(), String> {
    let mut input = bytes;
    let message = read_line::<T>(&mut input, REQUEST_BYTES_MAX);
    let read = bytes.len() - input.len();
    assert!(read as u64 <= REQUEST_BYTES_MAX + 1, "{read} bytes read of a line");
    let message = message.map_err(|error| error.to_string())?.ok_or("the end")?;
    let mut again = Vec::new();
    write_line(&mut again, &message).expect("memory");
    assert_eq!(read_line::<T>(&mut again.as_slice(), 1 << 20).expect("what was written"), Some(message));
    Ok(())
}

fn windows() -> Vec<Vec<u8>> {
    let records = samples();
    vec![Vec::new(), records.iter().flat_map(Record::encode).collect(), records[1].encode()]
}

/// Records that are written as they were read, and then the end or an error.
fn window(bytes: &[u8]) -> Result<(), String> {
    let mut again = Vec::new();
    for record in Records::new(Bytes::copy_from_slice(bytes)) {
        again.extend(record.map_err(|error| error.what.to_owned())?.encode());
    }
    expect_canonical(bytes, &again);
    Ok(())
}

fn node_files() -> Vec<Vec<u8>> {
    let disks = vec![PathBuf::from("/d/\u{e9} \"x\""), PathBuf::from("disk")];
    let identity = Identity { format: 1, uuid: "0".repeat(32), number: 7, disks };
    vec![toml::to_string(&identity).expect("plain").into_bytes()]
}

/// The disks that it names, or a refusal that says what to do about it.
fn node_file(bytes: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "not UTF-8")?;
    let parse = |text: &str| Identity::parse(text, Path::new("/n/node"));
    let identity = parse(text).map_err(|failure| failure.why.chars().take(20).collect::<String>())?;
    assert!(!identity.disks.is_empty());
    let again = toml::to_string(&identity).expect("what was read can be written");
    assert!(parse(&again).is_ok_and(|again| again == identity), "another one when it is written:\n{again}");
    Ok(())
}

fn lock_files() -> Vec<Vec<u8>> {
    let text = |stage| Holder::text("its daemon (process 7, mounted at /a)", stage, Some("0:41")).into_bytes();
    [Stage::Working, Stage::Mounted, Stage::Ending].map(text).to_vec()
}

/// Somebody, who has a name. It only tells who is waited for.
fn lock_file(bytes: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "not UTF-8")?;
    let holder = Holder::parse(text);
    assert!(!holder.name.is_empty() && !holder.name.contains('\n'));
    let stage = holder.stage.ok_or("another version's")?;
    // A line's end of another system belongs to no name.
    let again = Holder::parse(&Holder::text(&holder.name, stage, holder.mount.as_deref()));
    assert_eq!((again.stage, again.mount), (Some(stage), Some(holder.mount.unwrap_or_default())));
    Ok(())
}

fn mount_tables() -> Vec<Vec<u8>> {
    let lines = "22 28 0:21 / /proc rw,nosuid shared:5 - proc proc rw\n\
                 36 35 98:0 /a\\040b /mnt\\134\\012x rw,noatime master:1 propagate_from:2 - fuse.hydrafs /srv/node rw,user_id=0\n";
    vec![lines.as_bytes().to_vec(), lines.lines().last().expect("two").as_bytes().to_vec()]
}

/// As the kernel writes a path in its table.
fn escaped(path: &Path) -> Vec<u8> {
    let escape = |byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        byte => vec![*byte],
    };
    path.as_os_str().as_bytes().iter().flat_map(escape).collect()
}

/// Mounts that are in it, each of its line: written as the kernel writes them they are read again as the same.
fn mount_table(bytes: &[u8]) -> Result<(), String> {
    let found = mounts::parse(bytes);
    assert!(found.len() <= bytes.split(|byte| *byte == b'\n').count());
    for mount in &found {
        let head = format!("{} 1 {}:{} ", mount.id, mount.device.0, mount.device.1).into_bytes();
        let middle = format!(" {} - {} ", mount.options, mount.kind).into_bytes();
        let paths = [&mount.root, &mount.point, &mount.source].map(|path| escaped(path));
        let line = [&head[..], &paths[0], b" ", &paths[1], &middle, &paths[2], b" rw"].concat();
        assert_eq!(mounts::parse(&line), std::slice::from_ref(mount), "{}", String::from_utf8_lossy(&line));
    }
    if found.is_empty() { Err("no mount in it".to_owned()) } else { Ok(()) }
}

fn mount_options() -> Vec<Vec<u8>> {
    let samples =
        ["ro,nosuid,nodev,noexec", "rw,noatime,,allow_other,x-systemd.automount", "defaults,nofail,_netdev,degraded"];
    samples.map(|sample| sample.as_bytes().to_vec()).to_vec()
}

/// In force, or refused by name; `-s` skips what it does not know, and changes nothing else.
fn options(bytes: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "not UTF-8")?.to_owned();
    let lists = [text.clone()];
    let tolerant = parse_options(&lists, true).expect("it skips what it does not know");
    match parse_options(&lists, false) {
        Ok(strict) => assert_eq!(strict, tolerant),
        Err(failure) => {
            let unknown = text.split(',').any(|option| failure.why.contains(&format!("\"{option}\"")));
            assert!(unknown && !failure.mend.is_empty(), "{failure}");
            return Err("not known".to_owned());
        }
    }
    Ok(())
}

/// The lock and the connection stand for descriptors that arrived.
fn descriptor() -> OwnedFd {
    std::io::pipe().expect("a pipe").0.into()
}

fn handovers() -> Vec<Vec<u8>> {
    let old = Node { view: View(3), file: FileId::main(9) };
    let handover = |references, known| Handover {
        lock: descriptor(),
        references,
        numbers: (1 << 63 | 5, known),
        session: Some((descriptor(), b"session".to_vec())),
    };
    let full = handover(vec![(FileId::main(1), 3), (FileId::main(9), 1)], vec![(1 << 63 | 4, old, 2)]);
    vec![full.encode(), handover(Vec::new(), Vec::new()).encode()]
}

fn handover(bytes: &[u8]) -> Result<(), String> {
    let descriptors = [descriptor(), descriptor()].into_iter();
    let found = Handover::decode(bytes, descriptors).map_err(|error| error.what.to_owned())?;
    expect_canonical(bytes, &found.encode());
    Ok(())
}

#[test]
fn settings_and_lines_are_in_force_or_refused() {
    fuzz::run(env!("CARGO_MANIFEST_DIR"), TARGETS);
}
