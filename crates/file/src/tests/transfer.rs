//! Snapshots that go from one node to another of a dedup domain.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::id::{ChunkAddress, FileId, NodeNumber};
use platform::sim::{Faults, SimDisk, World};
use store::{Domain, Resilience};

use super::content::pattern;
use super::{Machine, create, find, new, read_all};
use crate::extent::Extent;
use crate::transfer::format::Head;
use crate::{
    Attributes, FileError, FileSystem, Kind, NewFile, Node, Options, Received, Receiving, RenameMode, Sending, Sent,
    Snapshot, TransferError, XattrMode, format_node, format_node_in,
};

/// What is seen of a file: attributes, extended ones, and content, entries or target.
type Seen = (Attributes, BTreeMap<Vec<u8>, Vec<u8>>, Vec<u8>);

/// A machine with a node of the same dedup domain.
pub(super) fn beside(seed: u64, machine: &Machine) -> Machine {
    let world = World::new(seed);
    let disk = world.disk("disk", 1 << 30);
    let other =
        Machine { world, disk, more: Vec::new(), options: Options { dirty_bytes_max: 16 << 20, ..Options::default() } };
    let domain = machine.run(Domain::of(&machine.disks())).unwrap();
    let (platform, disks) = (other.world.platform(), other.disks());
    other.run(async { format_node_in(&domain, &platform, &disks, NodeNumber(1), (0, 0)).await }).unwrap();
    other
}

/// Everything below a directory, by path.
async fn dump(system: &FileSystem, top: Node) -> BTreeMap<String, Seen> {
    let (mut found, mut waiting) = (BTreeMap::new(), vec![(String::new(), top)]);
    while let Some((path, node)) = waiting.pop() {
        let attributes = system.attributes(node).await.unwrap();
        let mut xattrs = BTreeMap::new();
        for name in system.xattrs(node).await.unwrap() {
            xattrs.insert(name.to_vec(), system.xattr(node, &name).await.unwrap().to_vec());
        }
        let content = match attributes.kind {
            Kind::Regular => read_all(system, node).await,
            Kind::Symlink => system.read_link(node).await.unwrap().to_vec(),
            _ => Vec::new(),
        };
        if attributes.kind == Kind::Directory {
            let mut after = 0;
            loop {
                let entries = system.read_directory(node, after, 100).await.unwrap();
                let Some(last) = entries.last() else { break };
                after = last.cookie;
                let below = |entry: &crate::DirectoryEntry| {
                    (format!("{path}/{}", String::from_utf8_lossy(&entry.name)), entry.node)
                };
                waiting.extend(entries.iter().map(below));
            }
        }
        found.insert(path, (attributes, xattrs, content));
    }
    found
}

pub(super) fn send(machine: &Machine, system: &FileSystem, snapshot: &str, from: Option<&str>) -> (Vec<u8>, Sent) {
    let mut stream = Vec::new();
    let how = Sending { snapshot, from, resume: None, tell: &|_| {} };
    let planned = machine.run(system.send(&how, None)).unwrap();
    let sent = machine.run(system.send(&how, Some(&mut stream))).unwrap();
    assert_eq!(planned, sent, "a plan says what goes");
    assert_eq!(stream.len() as u64, sent.bytes);
    (stream, sent)
}

fn resumed(machine: &Machine, system: &FileSystem, snapshot: &str, token: &str) -> Result<Vec<u8>, TransferError> {
    let mut stream = Vec::new();
    let how = Sending { snapshot, from: None, resume: Some(token), tell: &|_| {} };
    machine.run(system.send(&how, Some(&mut stream))).map(|_| stream)
}

const AS_SENT: Receiving<'static> = Receiving { name: None, tell: &|_| {} };

pub(super) fn receive(
    machine: &Machine,
    system: &FileSystem,
    stream: &[u8],
) -> Result<(Snapshot, Received), TransferError> {
    machine.run(system.receive(&AS_SENT, &mut &stream[..]))
}

pub(super) fn expect_same(here: (&Machine, &FileSystem), there: (&Machine, &FileSystem), name: &str) {
    let shown = |(machine, system): (&Machine, &FileSystem)| {
        machine.run(async { dump(system, find(system, &format!(".snapshots/{name}")).await.unwrap()).await })
    };
    assert!(shown(here) == shown(there), "{name} is not the same");
}

/// Clones go with the snapshot that shows them; and what came is cloned to go on from there, with numbers that nothing there has.
#[test]
fn clones_go_along_and_what_came_goes_on_as_a_clone() {
    let machine = Machine::new(80);
    let system = machine.open();
    machine.run(async {
        let top = create(&system, FileId::ROOT, "top", Kind::Directory).await.file;
        for number in 0..300 {
            let file = create(&system, top, &format!("f{number}"), Kind::Regular).await.file;
            system.write(file, 0, &pattern(2000, number), false).await.unwrap();
        }
        system.snapshot("one").await.unwrap();
        let made = system.clone_tree(Node::live(top), FileId::ROOT, b"clone").await.unwrap();
        let new = create(&system, made.file, "new", Kind::Regular).await.file;
        system.write(new, 0, &pattern(2000, 500), false).await.unwrap();
        system.snapshot("two").await.unwrap();
    });
    let there = beside(81, &machine);
    let other = there.open();
    let (whole, _) = send(&machine, &system, "one", None);
    receive(&there, &other, &whole).unwrap();
    let (rest, sent) = send(&machine, &system, "two", Some("one"));
    assert!(sent.chunks < 12, "a clone and a file: {sent:?}");
    receive(&there, &other, &rest).unwrap();
    for name in ["one", "two"] {
        expect_same((&machine, &system), (&there, &other), name);
    }
    let other = there.power_cycle(other);
    there.run(async {
        for (from, name) in [(".snapshots/two/clone", "back"), (".snapshots/one/top", "top")] {
            let source = find(&other, from).await.unwrap();
            let made = other.clone_tree(source, FileId::ROOT, name.as_bytes()).await.unwrap();
            for number in 0..100 {
                // A number that something below has would change that.
                create(&other, made.file, &format!("more {number}"), Kind::Regular).await;
            }
            for number in 0..300 {
                let node = find(&other, &format!("{name}/f{number}")).await.unwrap();
                assert!(read_all(&other, node).await == pattern(2000, number), "{name}: f{number}");
            }
        }
        other.delete_snapshot("one").await.unwrap();
        other.delete_snapshot("two").await.unwrap();
        other.sync_all().await.unwrap();
    });
    let other = there.power_cycle(other);
    (0..3).for_each(|_| drop(there.run(other.reclaim(&crate::Reclaim::default())).unwrap()));
    there.run(async {
        let node = find(&other, "back/new").await.unwrap();
        assert!(read_all(&other, node).await == pattern(2000, 500));
        assert!(find(&other, "top/more 99").await.is_ok());
    });
    there.check(&other);
}

/// What it shows is in a catalog of the clone's. And whatever comes first, the oldest is the first.
#[test]
fn snapshots_of_directories_in_clones_arrive_and_are_listed_by_age() {
    let machine = Machine::new(82);
    let system = machine.open();
    machine.run(async {
        let top = create(&system, FileId::ROOT, "top", Kind::Directory).await.file;
        let file = create(&system, top, "file", Kind::Regular).await.file;
        system.write(file, 0, &pattern(2000, 1), false).await.unwrap();
        let made = system.clone_tree(Node::live(top), FileId::ROOT, b"clone").await.unwrap();
        let inner = create(&system, made.file, "inner", Kind::Directory).await.file;
        let file = create(&system, inner, "new", Kind::Regular).await.file;
        system.write(file, 0, &pattern(300_000, 2), false).await.unwrap();
        for (name, root) in [("first", made.file), ("second", inner), ("third", FileId::ROOT)] {
            machine.world.platform().tasks.sleep(Duration::from_secs(1)).await;
            system.snapshot_of(name, root).await.unwrap();
        }
    });
    let there = beside(83, &machine);
    let other = there.open();
    for name in ["third", "first", "second"] {
        let (stream, _) = send(&machine, &system, name, None);
        receive(&there, &other, &stream).unwrap();
        expect_same((&machine, &system), (&there, &other), name);
    }
    let names: Vec<String> = other.snapshots().into_iter().map(|snapshot| snapshot.name).collect();
    assert_eq!(names, ["first", "second", "third"]);
    let other = there.power_cycle(other);
    expect_same((&machine, &system), (&there, &other), "second");
    there.check(&other);
}

/// The disk is full of what nobody needs any more.
#[test]
fn a_stream_has_room_made_as_a_write_has() {
    let machine = Machine::new(84);
    let system = machine.open();
    machine.run(async {
        let file = create(&system, FileId::ROOT, "file", Kind::Regular).await.file;
        system.write(file, 0, &pattern(48 << 20, 1), false).await.unwrap();
        system.snapshot("s").await.unwrap();
    });
    let (stream, _) = send(&machine, &system, "s", None);
    let there = beside(85, &machine);
    there.disk.set_capacity(256 << 20);
    let other = there.open();
    let mut filled = 0;
    there.run(async {
        // Until there is no room.
        loop {
            let made = other.create_file(FileId::ROOT, format!("f{filled}").as_bytes(), &new(Kind::Regular)).await;
            let Ok(made) = made else { break };
            if other.write(made.file, 0, &pattern(1 << 20, 100 + filled), false).await.is_err() {
                break;
            }
            filled += 1;
        }
        other.sync_all().await.unwrap();
        other.commit().await.unwrap();
    });
    assert!(matches!(receive(&there, &other, &stream), Err(TransferError::File(FileError::NoSpace))));
    there.run(async {
        for number in 0..filled {
            other.remove_file(FileId::ROOT, format!("f{number}").as_bytes()).await.unwrap();
        }
        other.sync_all().await.unwrap();
    });
    receive(&there, &other, &stream).unwrap();
    expect_same((&machine, &system), (&there, &other), "s");
    there.check(&other);
}

/// A history of changes of everything that a file system has.
pub(super) struct History {
    state: u64,
    directories: Vec<FileId>,
    files: Vec<(FileId, String, FileId)>,
    count: u64,
}

impl History {
    pub(super) fn new(seed: u64) -> History {
        History { state: seed | 1, directories: vec![FileId::ROOT], files: Vec::new(), count: 0 }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) % below
    }

    fn name(&mut self) -> String {
        self.count += 1;
        format!("name {}", self.count)
    }

    fn any_file(&mut self) -> Option<usize> {
        (!self.files.is_empty()).then(|| self.draw(self.files.len() as u64) as usize)
    }

    async fn step(&mut self, system: &FileSystem) {
        let directory = self.draw(self.directories.len() as u64);
        let directory = self.directories[directory as usize];
        let (what, salt, name) = (self.draw(12), self.draw(1 << 40), self.name());
        match (what, self.any_file()) {
            (0, _) => self.directories.push(create(system, directory, &name, Kind::Directory).await.file),
            (1..=3, _) | (_, None) => {
                let file = create(system, directory, &name, Kind::Regular).await.file;
                let length = 1 << self.draw(19);
                system.write(file, 0, &pattern(length, salt), false).await.unwrap();
                self.files.push((directory, name, file));
            }
            (4, _) => {
                let link = NewFile { kind: Kind::Symlink, target: b"to somewhere", ..new(Kind::Symlink) };
                system.create_file(directory, name.as_bytes(), &link).await.unwrap();
            }
            (5, Some(at)) => {
                let (_, _, file) = self.files[at].clone();
                system.link(file, directory, name.as_bytes()).await.unwrap();
            }
            (6, Some(at)) => {
                let (parent, name, _) = self.files.swap_remove(at);
                system.remove_file(parent, name.as_bytes()).await.unwrap();
            }
            (7, Some(at)) => {
                let (parent, old, file) = self.files.swap_remove(at);
                let mode = RenameMode::Replace;
                system.rename(parent, old.as_bytes(), directory, name.as_bytes(), mode).await.unwrap();
                self.files.push((directory, name, file));
            }
            (8, Some(at)) => {
                let file = self.files[at].2;
                let value = pattern(if salt % 2 == 0 { 20 } else { 3000 }, salt);
                system.set_xattr(file, b"user.x", &value, XattrMode::Set, false).await.unwrap();
            }
            (9, Some(at)) => {
                let file = self.files[at].2;
                let size = Some(self.draw(300_000));
                let change = crate::AttributeChange { size, ..Default::default() };
                system.set_attributes(file, &change).await.unwrap();
            }
            (_, Some(at)) => {
                let (file, offset) = (self.files[at].2, self.draw(400_000));
                system.write(file, offset, &pattern(5000, salt), false).await.unwrap();
            }
        }
    }

    pub(super) async fn go_on(&mut self, system: &FileSystem, steps: u64) {
        for _ in 0..steps {
            self.step(system).await;
        }
    }
}

/// For the crate `fuzz`: a stream, and a node that receives it. They are the same each time.
fn small() -> Machine {
    let machine = Machine::new(80);
    let system = machine.open();
    machine.run(async {
        for number in 0..30 {
            let file = create(&system, FileId::ROOT, &format!("file {number}"), Kind::Regular).await.file;
            system.write(file, 0, &pattern(50, number), false).await.unwrap();
            system.set_xattr(file, b"user.x", &pattern(600, number), XattrMode::Set, false).await.unwrap();
        }
        system.snapshot("s").await.unwrap();
        system.close().await.unwrap();
    });
    drop(system);
    machine
}

pub(super) fn sample() -> Vec<u8> {
    let machine = small();
    send(&machine, &machine.open(), "s", None).0
}

/// Makes the seals of head and end right again, as somebody can who has the key.
pub(super) fn seal_again(bytes: &mut [u8]) {
    let machine = Machine::new(80);
    let key = machine.open().store.key().clone();
    let Some(length) = Head::bytes(bytes).ok().filter(|length| length + 48 < bytes.len()) else { return };
    let (head, rest) = bytes.split_at_mut(length);
    let (sealed, seal) = head.split_at_mut(length - 32);
    seal.copy_from_slice(&key.seal(sealed));
    let (_, end) = rest.split_at_mut(rest.len() - 48);
    let seal = key.seal(&[&end[..16], &*head].concat());
    end[16..].copy_from_slice(&seal);
}

/// It is received whole, or nothing of it is there.
pub(super) fn check_stream(bytes: &[u8]) -> Result<(), String> {
    let here = Machine::new(80);
    let there = beside(81, &here);
    let system = there.open();
    let received = receive(&there, &system, bytes);
    assert_eq!(system.snapshots().len(), usize::from(received.is_ok()));
    if received.is_ok() {
        there.run(async { dump(&system, Node { view: system.snapshots()[0].view, file: FileId::ROOT }).await });
    }
    there.check(&system);
    received.map(drop).map_err(|error| error.to_string())
}

#[test]
fn what_is_received_is_what_was_sent() {
    for seed in 0..4 {
        let here = Machine::new(40 + seed);
        let there = beside(50 + seed, &here);
        let (one, mut two) = (here.open(), there.open());
        let (mut history, mut other_history) = (History::new(seed + 1), History::new(seed + 100));
        let (mut before, mut streamed): (Option<String>, u64) = (None, 0);
        for round in 0..4 {
            let name = format!("s{round}");
            here.run(async {
                history.go_on(&one, if round == 0 { 150 } else { 20 }).await;
                one.snapshot(&name).await.unwrap();
            });
            // The receiver's own files, whose numbers are the same.
            there.run(other_history.go_on(&two, 10));
            let (stream, sent) = send(&here, &one, &name, before.as_deref());
            let (made, received) = receive(&there, &two, &stream).unwrap();
            assert_eq!((made.name.as_str(), received.chunks, received.bytes), (name.as_str(), sent.chunks, sent.bytes));
            streamed += received.bytes;
            assert_eq!(two.counters.received_bytes.value(), streamed);
            expect_same((&here, &one), (&there, &two), &name);
            there.run(two.reclaim(&crate::Reclaim::default())).unwrap();
            there.check(&two);
            (two, streamed) = (there.power_cycle(two), 0);
            expect_same((&here, &one), (&there, &two), &name);
            before = Some(name);
        }
        // The other way round, with what is there both ways.
        there.run(two.delete_snapshot("s0")).unwrap();
        let (stream, _) = send(&there, &two, "s1", None);
        let name = Receiving { name: Some("back"), tell: &|_| {} };
        let (_, received) = here.run(one.receive(&name, &mut &stream[..])).unwrap();
        assert_eq!(received.had, received.chunks, "all of it was here");
        let shown = |path: &str| here.run(async { dump(&one, find(&one, path).await.unwrap()).await });
        assert!(shown(".snapshots/back") == shown(".snapshots/s1"));
        here.check(&one);
    }
}

/// A node with many files, and one large one.
fn large(seed: u64) -> (Machine, Arc<FileSystem>, FileId) {
    let machine = Machine::new(seed);
    let system = machine.open();
    let file = machine.run(async {
        for number in 0..3000 {
            let file = create(&system, FileId::ROOT, &format!("file {number}"), Kind::Regular).await.file;
            system.write(file, 0, &pattern(100, number), false).await.unwrap();
        }
        let file = create(&system, FileId::ROOT, "large", Kind::Regular).await.file;
        system.write(file, 0, &pattern(12 << 20, 7), false).await.unwrap();
        system.snapshot("before").await.unwrap();
        file
    });
    (machine, system, file)
}

#[test]
fn a_difference_costs_what_changed() {
    let (machine, system, file) = large(60);
    let (_, all) = send(&machine, &system, "before", None);
    assert!(all.chunks > 3100, "{all:?}");
    let change = |name: &str, since: &str| {
        machine.run(system.snapshot(name)).unwrap();
        let sent = send(&machine, &system, name, Some(since)).1;
        (sent.chunks - sent.metadata_chunks, sent.metadata_chunks, sent.bytes)
    };
    assert_eq!(change("nothing", "before").0, 0);
    machine.run(system.write(file, 5 << 20, &pattern(4096, 8), false)).unwrap();
    let (data, trees, bytes) = change("overwritten", "nothing");
    assert!(data <= 3 && trees <= 8 && bytes < 400_000, "{data} chunks of data, {trees} of trees, {bytes} bytes");
    machine.run(async {
        create(&system, FileId::ROOT, "one more", Kind::Regular).await;
    });
    let (data, trees, bytes) = change("made", "overwritten");
    assert!(data == 0 && trees <= 8 && bytes < 100_000, "{data} chunks of data, {trees} of trees, {bytes} bytes");
    // As editors save: all of it is in a new file, with something put in near the beginning.
    machine.run(async {
        let old = read_all(&system, Node::live(file)).await;
        let saved = create(&system, FileId::ROOT, "large.new", Kind::Regular).await.file;
        let content = [&old[..100_000], b"put in", &old[100_000..]].concat();
        system.write(saved, 0, &content, false).await.unwrap();
        let mode = RenameMode::Replace;
        system.rename(FileId::ROOT, b"large.new", FileId::ROOT, b"large", mode).await.unwrap();
    });
    let (data, trees, bytes) = change("saved", "made");
    assert!(data <= 4 && trees <= 10 && bytes < 1_200_000, "{data} chunks of data, {trees} of trees, {bytes} bytes");
    // A copy is sent once.
    machine.run(async {
        let found = find(&system, "large").await.unwrap();
        for name in ["copy", "another"] {
            let copy = create(&system, FileId::ROOT, name, Kind::Regular).await.file;
            system.write(copy, 0, &pattern(1 << 20, 9), false).await.unwrap();
        }
        system.write(found.file, 0, b"x", false).await.unwrap();
    });
    let (data, ..) = change("copied", "saved");
    assert!((10..=30).contains(&data), "{data} chunks of data");
}

#[test]
fn a_stream_that_does_not_fit_changes_nothing() {
    let (machine, system, file) = large(61);
    machine.run(async {
        system.write(file, 0, b"changed", false).await.unwrap();
        system.snapshot("after").await.unwrap();
    });
    let (all, _) = send(&machine, &system, "before", None);
    let (difference, _) = send(&machine, &system, "after", Some("before"));
    // Another domain.
    let foreign = Machine::new(62);
    let other = foreign.open();
    let refused = receive(&foreign, &other, &all);
    assert!(matches!(refused, Err(TransferError::OtherDomain(_))), "{refused:?}");
    // Without the one before.
    let there = beside(63, &machine);
    let receiver = there.open();
    let refused = receive(&there, &receiver, &difference);
    assert!(matches!(refused, Err(TransferError::NoBase)), "{refused:?}");
    // Nothing, and something else.
    for bytes in [&b""[..], b"#!/bin/sh\necho hello, this is no stream at all\n", &all[..100]] {
        let refused = receive(&there, &receiver, bytes);
        assert!(matches!(refused, Err(TransferError::NoStream(_))), "{refused:?}");
    }
    assert!(receiver.snapshots().is_empty());
    // A name that exists, a name that none can have, a snapshot that is not there.
    receive(&there, &receiver, &all).unwrap();
    let again = receive(&there, &receiver, &all);
    assert!(matches!(again, Err(TransferError::File(FileError::Exists))), "{again:?}");
    let named = Receiving { name: Some("a/b"), tell: &|_| {} };
    let refused = there.run(receiver.receive(&named, &mut &all[..]));
    assert!(matches!(refused, Err(TransferError::File(FileError::Invalid(_)))), "{refused:?}");
    let how = Sending { snapshot: "none", from: None, resume: None, tell: &|_| {} };
    assert!(matches!(machine.run(system.send(&how, None)), Err(TransferError::NoSnapshot(_))));
    assert!(matches!(resumed(&machine, &system, "before", "7-000000000000"), Err(TransferError::NoSuchPlace(_))));
    receive(&there, &receiver, &difference).unwrap();
    expect_same((&machine, &system), (&there, &receiver), "after");
    there.check(&receiver);
}

#[test]
fn a_stream_that_is_cut_or_damaged_makes_no_snapshot_and_can_come_again() {
    let here = Machine::new(64);
    let there = beside(65, &here);
    let (one, two) = (here.open(), there.open());
    here.run(async {
        History::new(9).go_on(&one, 60).await;
        one.snapshot("s").await.unwrap();
    });
    let (stream, sent) = send(&here, &one, "s", None);
    for at in (0..stream.len()).step_by(stream.len() / 60) {
        let mut damaged = stream.clone();
        damaged[at] ^= 1 << (at % 8);
        for bytes in [&stream[..at], &damaged] {
            let refused = receive(&there, &two, bytes);
            assert!(
                matches!(
                    refused,
                    Err(TransferError::Cut { .. } | TransferError::NoStream(_) | TransferError::OtherDomain(_))
                ),
                "at {at}: {refused:?}"
            );
        }
        assert!(two.snapshots().is_empty());
    }
    there.check(&two);
    let (_, received) = receive(&there, &two, &stream).unwrap();
    assert!(received.had > sent.chunks * 9 / 10, "{received:?} of {sent:?}");
    expect_same((&here, &one), (&there, &two), "s");
}

#[test]
fn a_stream_goes_on_where_it_was_cut() {
    let here = Machine::new(66);
    let there = beside(67, &here);
    let (one, mut two) = (here.open(), there.open());
    here.run(async {
        History::new(10).go_on(&one, 120).await;
        one.snapshot("s").await.unwrap();
    });
    let (stream, sent) = send(&here, &one, "s", None);
    let cut = |two: &FileSystem, bytes: &[u8]| match receive(&there, two, bytes) {
        Err(TransferError::Cut { chunks, token, .. }) => (chunks, token),
        other => panic!("{other:?}"),
    };
    let (chunks, token) = cut(&two, &stream[..stream.len() / 2]);
    assert!(chunks > sent.chunks / 4 && chunks < sent.chunks, "{chunks} of {sent:?}");
    // What came is kept, though nobody has named it, and reclaim runs while more comes.
    for _ in 0..2 {
        there.run(two.reclaim(&crate::Reclaim { is_thorough: true, ..Default::default() })).unwrap();
    }
    let rest = resumed(&here, &one, "s", &token).unwrap();
    assert!(rest.len() < stream.len() * 3 / 4);
    let (more, token) = cut(&two, &rest[..rest.len() / 2]);
    assert!(more > chunks);
    let rest = resumed(&here, &one, "s", &token).unwrap();
    let (_, received) = receive(&there, &two, &rest).unwrap();
    assert_eq!((received.chunks, received.had), (sent.chunks - more, 0));
    expect_same((&here, &one), (&there, &two), "s");
    // Where what came was given back meanwhile, that is seen before there is a snapshot.
    there.run(two.delete_snapshot("s")).unwrap();
    two = there.power_cycle(two);
    for _ in 0..2 {
        there.run(two.reclaim(&crate::Reclaim { is_thorough: true, ..Default::default() })).unwrap();
    }
    let refused = receive(&there, &two, &rest);
    assert!(matches!(refused, Err(TransferError::Incomplete(_))), "{refused:?}");
    assert!(two.snapshots().is_empty());
    receive(&there, &two, &stream).unwrap();
    expect_same((&here, &one), (&there, &two), "s");
    there.check(&two);
}

/// Passes of reclaim, one after the other, until told to end.
async fn reclaim_on(system: Arc<FileSystem>, tasks: Arc<dyn platform::task::Tasks>, passes: Arc<AtomicU64>) {
    while passes.load(Ordering::Relaxed) < ENOUGH {
        system.reclaim(&crate::Reclaim { is_thorough: true, ..Default::default() }).await.unwrap();
        passes.fetch_add(1, Ordering::Relaxed);
        tasks.sleep(Duration::from_millis(1)).await;
    }
}

/// More passes than any test waits for.
const ENOUGH: u64 = 1 << 30;

/// Reads everything that receipts name; how much it is.
async fn read_receipts(system: &FileSystem) -> u64 {
    let mut count = 0;
    for arrivals in system.receipts.trees(Duration::ZERO) {
        let mut from = Some(0);
        while let Some(at) = from {
            let (entries, next) = system.trees.scan(&arrivals, at, 1000).await.unwrap();
            for (_, bytes) in entries {
                let address = ChunkAddress(bytes[..].try_into().unwrap());
                system.store.get(store::Class::Data, &address).await.unwrap();
                count += 1;
            }
            from = next;
        }
    }
    count
}

/// What came and has no name yet is needed, at whatever moment a pass of reclaim looks.
#[test]
fn reclaim_beside_a_stream_takes_nothing_of_it() {
    for seed in 0..3 {
        let here = Machine::new(72);
        let there = beside(73 + seed, &here);
        let (one, two) = (here.open(), there.open());
        here.run(async {
            History::new(12).go_on(&one, 200).await;
            one.snapshot("s").await.unwrap();
        });
        let (stream, sent) = send(&here, &one, "s", None);
        let (passes, tasks) = (Arc::new(AtomicU64::new(0)), there.world.platform().tasks);
        tasks.spawn("passes", Box::pin(reclaim_on(two.clone(), tasks.clone(), passes.clone())));
        there.run(async {
            let dead = create(&two, FileId::ROOT, "dead", Kind::Regular).await.file;
            for cut in 1..=8 {
                // Dead at the next turn, so that there is something to give back.
                two.write(dead, 0, &pattern(500_000, cut as u64), false).await.unwrap();
                two.sync_all().await.unwrap();
                two.commit().await.unwrap();
                let received = two.receive(&AS_SENT, &mut &stream[..stream.len() * cut / 8]).await;
                assert_eq!(received.is_ok(), cut == 8, "{received:?}");
                let before = passes.load(Ordering::Relaxed);
                while passes.load(Ordering::Relaxed) < before + 3 {
                    tasks.sleep(Duration::from_millis(1)).await;
                }
                let expected = if cut == 8 { 0 } else { sent.chunks * (cut as u64 - 1) / 16 };
                let kept = read_receipts(&two).await;
                assert!(kept >= expected, "{kept} chunks after {cut} eighths of {sent:?}");
            }
        });
        passes.store(ENOUGH, Ordering::Relaxed);
        expect_same((&here, &one), (&there, &two), "s");
        there.check(&two);
    }
}

#[test]
fn a_power_cut_leaves_no_snapshot_or_a_whole_one() {
    let here = Machine::new(68);
    let one = here.open();
    here.run(async {
        History::new(11).go_on(&one, 40).await;
        one.snapshot("s").await.unwrap();
    });
    let (stream, _) = send(&here, &one, "s", None);
    let (mut step, mut made) = (1, [0, 0]);
    loop {
        let there = beside(69, &here);
        let two = there.open();
        let mine = there.run(async {
            let mine = create(&two, FileId::ROOT, "mine", Kind::Regular).await.file;
            two.write(mine, 0, &pattern(100_000, 3), false).await.unwrap();
            two.snapshot("mine").await.unwrap();
            mine
        });
        there.world.cut_power_at(there.world.operations() + step);
        let received = there.world.run_until(two.receive(&AS_SENT, &mut &stream[..]));
        let is_whole = there.world.is_powered();
        assert!(!is_whole || received.as_ref().is_ok_and(Result::is_ok), "{received:?}");
        let two = there.power_cycle(two);
        let has = two.find_snapshot(b"s").is_some();
        made[usize::from(has)] += 1;
        if has {
            expect_same((&here, &one), (&there, &two), "s");
        }
        there.check(&two);
        there.run(async {
            assert!(read_all(&two, Node::live(mine)).await == pattern(100_000, 3));
            assert!(read_all(&two, find(&two, ".snapshots/mine/mine").await.unwrap()).await == pattern(100_000, 3));
            two.reclaim(&crate::Reclaim::default()).await.unwrap();
        });
        if !has {
            receive(&there, &two, &stream).unwrap();
            expect_same((&here, &one), (&there, &two), "s");
        }
        there.check(&two);
        if is_whole {
            break;
        }
        step += 1;
    }
    assert!(made[0] > 5 && made[1] > 1, "{made:?}: cut before and after");
}

#[test]
fn what_is_sent_or_built_upon_is_not_deleted() {
    let (machine, system, file) = large(70);
    machine.run(async {
        system.write(file, 0, b"changed", false).await.unwrap();
        system.snapshot("after").await.unwrap();
    });
    let there = beside(71, &machine);
    let receiver = there.open();
    let (all, _) = send(&machine, &system, "before", None);
    receive(&there, &receiver, &all).unwrap();
    let busy = AtomicU64::new(0);
    let count = |refused: Result<(), FileError>| {
        assert!(matches!(refused, Err(FileError::Busy(_))), "{refused:?}");
        busy.fetch_add(1, Ordering::Relaxed);
    };
    // A sink that asks for the deletion of both meanwhile.
    struct Deleter<'a>(&'a FileSystem, &'a (dyn Fn(Result<(), FileError>) + Sync), Vec<u8>);
    impl std::io::Write for Deleter<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            for name in ["before", "after"] {
                let mut deleted = std::pin::pin!(self.0.delete_snapshot(name));
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                let std::task::Poll::Ready(refused) = deleted.as_mut().poll(&mut context) else { panic!("at once") };
                self.1(refused);
            }
            self.2.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut deleter = Deleter(&system, &count, Vec::new());
    let how = Sending { snapshot: "after", from: Some("before"), resume: None, tell: &|_| {} };
    machine.run(system.send(&how, Some(&mut deleter))).unwrap();
    assert!(busy.load(Ordering::Relaxed) > 4);
    machine.run(system.delete_snapshot("before")).unwrap();
    receive(&there, &receiver, &deleter.2).unwrap();
    expect_same((&machine, &system), (&there, &receiver), "after");
}

/// A world with a node of a dedup domain, or of its own, on so many disks.
fn on_disks(
    seed: u64,
    count: usize,
    domain: Option<&Domain>,
    options: Options,
) -> (World, Vec<SimDisk>, Arc<FileSystem>) {
    let world = World::new(seed);
    let disks: Vec<SimDisk> = (0..count).map(|number| world.disk(&format!("disk{number}"), 1 << 30)).collect();
    let (platform, handles) = (world.platform(), disks.iter().map(SimDisk::disk).collect::<Vec<_>>());
    let opened = world.run_until(async {
        match domain {
            Some(domain) => format_node_in(domain, &platform, &handles, NodeNumber(1), (0, 0)).await.unwrap(),
            None => format_node(&platform, &handles, NodeNumber(1), 0, 0).await.unwrap(),
        }
        FileSystem::open(&platform, &handles, options).await.unwrap().0
    });
    (world, disks, opened.expect("nothing halts the machine"))
}

/// Where the header of a pack has its class, and that of content: trees name the chunk too.
const CLASS: (usize, u8) = (12, 2);

/// The only chunk of a small file.
pub(super) async fn chunk_of(system: &FileSystem, path: &str) -> ChunkAddress {
    let inode = system.inode(find(system, path).await.unwrap()).await.unwrap();
    let tree = inode.state.lock().base.tree.clone();
    let (extents, _) = system.base_extents(&tree, 0..SMALL_BYTES as u64, 2).await.unwrap();
    let [(_, Extent::Chunk { address, .. })] = extents[..] else { panic!("{extents:?}") };
    address
}

/// On how many of the disks the only chunk of a file lies.
pub(super) async fn disks_of(disks: &[SimDisk], system: &FileSystem, path: &str) -> usize {
    let address = chunk_of(system, path).await;
    let is_there = |bytes: &Vec<u8>| bytes.windows(address.0.len()).any(|window| window == address.0);
    let has = |disk: &&SimDisk| {
        let packs = disk.durable_files().into_iter().filter(|(path, _)| path.starts_with("packs/"));
        packs.into_iter().any(|(_, bytes)| bytes.get(CLASS.0) == Some(&CLASS.1) && is_there(&bytes))
    };
    disks.iter().filter(has).count()
}

/// Of one chunk.
const SMALL_BYTES: usize = 10_000;

/// What is asked for a file against the loss of disks is done where it comes to, whether its content comes with that or was there; and where there
/// are too few disks it is said.
#[test]
fn what_comes_lies_on_as_many_disks_as_it_asks_for() {
    let (here, disks, system) = on_disks(90, 2, None, Options::default());
    let send = |snapshot: &str, from: Option<&str>| {
        let mut stream = Vec::new();
        let how = Sending { snapshot, from, resume: None, tell: &|_| {} };
        here.run_until(system.send(&how, Some(&mut stream))).unwrap().unwrap();
        stream
    };
    let ask_for_two = async |name: &str| {
        let file = find(&system, name).await.unwrap().file;
        system.set_policy_below(file, Resilience::Copies(2), false, &|_| {}).await.unwrap();
    };
    here.run_until(async {
        for (number, name) in ["plain", "safe"].into_iter().enumerate() {
            let file = create(&system, FileId::ROOT, name, Kind::Regular).await.file;
            system.write(file, 0, &pattern(SMALL_BYTES, number as u64), false).await.unwrap();
        }
        ask_for_two("safe").await;
        system.snapshot("one").await.unwrap();
    })
    .unwrap();
    let first = send("one", None);
    here.run_until(async {
        ask_for_two("plain").await;
        system.snapshot("two").await.unwrap();
    })
    .unwrap();
    let second = send("two", Some("one"));
    let handles: Vec<_> = disks.iter().map(SimDisk::disk).collect();
    let domain = here.run_until(Domain::of(&handles)).unwrap().unwrap();
    for (count, lies, unmet) in [(2, [1, 2, 2], [0, 0]), (1, [1, 1, 1], [1, 1])] {
        let (there, disks, system) = on_disks(91, count, Some(&domain), Options::default());
        let receive = |stream: &[u8]| there.run_until(system.receive(&AS_SENT, &mut &stream[..])).unwrap().unwrap().1;
        let on = |path: &str| there.run_until(disks_of(&disks, &system, path)).unwrap();
        let one = receive(&first);
        let lay = [on(".snapshots/one/plain"), on(".snapshots/one/safe")];
        let two = receive(&second);
        assert_eq!([lay[0], lay[1], on(".snapshots/two/plain")], lies);
        assert_eq!([one.unmet, two.unmet], unmet);
        assert_eq!([one.raised, two.raised], [count as u64 - 1; 2]);
    }
}

/// A stream that a disk dies beside, after so many bytes.
struct Deadly<'a> {
    stream: &'a [u8],
    left: usize,
    disk: &'a SimDisk,
}

impl std::io::Read for Deadly<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.stream.read(buffer)?;
        self.left = self.left.saturating_sub(count);
        if self.left == 0 {
            self.disk.set_faults(Faults { is_dead: true, ..Faults::default() });
        }
        Ok(count)
    }
}

/// K-12: what came and went with a disk that dies comes again; nothing that is kept of the stream names it.
#[test]
fn a_disk_that_dies_beside_a_stream_takes_nothing_that_does_not_come_again() {
    let (here, system, _) = large(92);
    let (stream, _) = send(&here, &system, "before", None);
    let domain = here.run(Domain::of(&here.disks())).unwrap();
    let mut failed = 0;
    for part in 1..8 {
        let mut options = Options::default();
        // Written run by run, long before a pack is sealed.
        options.store.run_bytes = 0;
        let (world, disks, other) = on_disks(92 + part, 2, Some(&domain), options);
        let work = async {
            let left = stream.len() * part as usize / 8;
            let first = other.receive(&AS_SENT, &mut Deadly { stream: &stream, left, disk: &disks[1] }).await;
            if first.is_err() {
                failed += 1;
                // All that it has come to is there.
                read_receipts(&other).await;
                other.receive(&AS_SENT, &mut &stream[..]).await.unwrap();
            }
            assert!(!other.status().store.disks[1].is_good);
            // A pass reads all that is named.
            other.reclaim(&crate::Reclaim { is_thorough: true, ..Default::default() }).await.unwrap();
            dump(&other, find(&other, ".snapshots/before").await.unwrap()).await
        };
        let came = world.run_until(work).unwrap();
        let sent = here.run(async { dump(&system, find(&system, ".snapshots/before").await.unwrap()).await });
        assert!(came == sent, "{part} eighths");
    }
    assert!(failed > 0, "no disk took anything: the test shows nothing");
}
