//! Whole file systems in which a structure lies, with every checksum and address right: opened, read, changed and checked, or refused;
//! never a panic, nor work without end. Targets of the crate `fuzz`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use base::codec::{Reader, Writer};
use base::id::{ChunkAddress, FileId, Position};
use base::limits::FILE_BYTES_MAX;
use bytes::Bytes;
use fuzz::{SLOW_CASES, Target, no_repair};
use platform::sim::{SimDisk, World};
use store::{Class, Depth, Store};

use super::batch_write::file;
use super::{Machine, create, new};
use crate::attributes::View;
use crate::extent::Extent;
use crate::format::{BranchValue, Entry, InodeValue, Root, Roots, XattrPlace, decode_record};
use crate::tree::{Edits, Trees};
use crate::{
    Allocate, AttributeChange, FileError, FileSystem, FilesReport, Kind, Node, Options, Problem, Remedy, RenameMode,
    Seek, StoreError, StoreOptions, TimeChange, XattrMode,
};

const CAPACITY: u64 = 64 << 20;
/// Steps of a world in which a small file system is opened and used: many times what a sound one takes.
const STEPS_MAX: u64 = 300_000;
/// Names and files that are looked at: directories that lie may form circles.
const VISITS_MAX: usize = 300;
/// Entries of the directory whose tree has several nodes.
const MANY: u32 = 250;

/// A file system as it lies on its disk, and its trees.
struct Image {
    files: BTreeMap<String, Vec<u8>>,
    roots: Vec<u8>,
    covered: Position,
    inodes: BTreeMap<u64, Bytes>,
    snapshots: Vec<(u64, Bytes)>,
    /// Of each inode whose tree has any: entries or extents.
    values: Vec<(u64, Vec<(u64, Bytes)>)>,
    /// Nodes of trees that are chunks: owner (0: the catalog), and the bytes.
    nodes: Vec<(u64, Bytes)>,
    xattrs: Vec<(u64, Bytes)>,
    /// Clones, and of each the inodes in its catalog.
    branches: Vec<(u64, Bytes)>,
    branch_inodes: Vec<(u64, Vec<(u64, Bytes)>)>,
    /// A frame behind the roots, for each kind of record.
    frames: Vec<Vec<u8>>,
}

fn options() -> Options {
    let store = StoreOptions {
        cache_bytes: 256 << 10,
        index_cache_bytes: 256 << 10,
        segment_bytes: 0,
        copies: 1,
        reserve_bytes: 8 << 20,
        ..StoreOptions::default()
    };
    Options { dirty_bytes_max: 1 << 20, store, ..Options::default() }
}

static IMAGE: LazyLock<Image> = LazyLock::new(|| image(false));
/// The same with a clone of a directory in which something has changed.
static CLONED: LazyLock<Image> = LazyLock::new(|| image(true));

fn image(has_clone: bool) -> Image {
    let machine = Machine::with(1, CAPACITY, options());
    let system = machine.open();
    machine.run(async {
        let directory = create(&system, FileId::ROOT, "dir", Kind::Directory).await.file;
        let file = create(&system, directory, "file", Kind::Regular).await.file;
        for (offset, length) in [(0, 3000), (100_000, 20_000), (1 << 40, 100)] {
            let bytes: Vec<u8> = (0..length).map(|at: u32| at.to_le_bytes()[at as usize % 3] ^ 0x5a).collect();
            system.write(file, offset, &bytes, false).await.unwrap();
            system.sync(file).await.unwrap();
        }
        system.allocate(file, Allocate::Reserve { keep_size: true }, 1 << 41, 1 << 20).await.unwrap();
        system.link(file, FileId::ROOT, b"link").await.unwrap();
        system.set_xattr(file, b"user.small", b"value", XattrMode::Set, false).await.unwrap();
        system.set_xattr(directory, b"user.large", &[7; 2000], XattrMode::Set, false).await.unwrap();
        let link = crate::NewFile { target: b"../target", ..new(Kind::Symlink) };
        system.create_file(directory, b"symlink", &link).await.unwrap();
        let many = create(&system, FileId::ROOT, "many", Kind::Directory).await.file;
        for number in 0..MANY {
            system.link(file, many, format!("name {number} {:0>100}", 0).as_bytes()).await.unwrap();
        }
        if has_clone {
            let made = system.clone_tree(Node::live(directory), FileId::ROOT, b"clone").await.unwrap();
            let inside = create(&system, made.file, "inside", Kind::Directory).await.file;
            let changed = create(&system, inside, "changed", Kind::Regular).await.file;
            system.write(changed, 0, &[3; 9000], false).await.unwrap();
            // A clone in a clone.
            system.clone_tree(Node::live(inside), made.file, b"again").await.unwrap();
        }
        system.snapshot("snapshot").await.unwrap();
        let inner = create(&system, directory, "inner", Kind::Directory).await.file;
        create(&system, inner, "fifo", Kind::Fifo).await;
        system.commit().await.unwrap();
        // What follows stays in the journal.
        system.write(file, 10, b"inline", false).await.unwrap();
        system.sync(file).await.unwrap();
        system.set_xattr(file, b"user.more", b"value", XattrMode::Set, false).await.unwrap();
        create(&system, inner, "fresh", Kind::Regular).await;
        system.rename(inner, b"fifo", directory, b"moved", RenameMode::Replace).await.unwrap();
        system.remove_file(directory, b"moved").await.unwrap();
        system.sync_all().await.unwrap();
    });
    drop(system);
    machine.world.crash();
    let files = machine.disk.snapshot_files();
    let (platform, disks) = (machine.world.platform(), machine.disks());
    machine.run(async {
        let (store, found) = Store::open(&platform, &disks, options().store).await.unwrap();
        let trees = Trees::new(store.clone());
        let roots = Roots::decode(&found.roots).unwrap();
        let catalog = entries_of(&trees, &roots.catalog).await;
        let (mut values, mut nodes, mut xattrs) =
            (Vec::new(), nodes_of(&trees, &store, &roots.catalog, 0).await, Vec::new());
        for (file, bytes) in &catalog {
            let base = InodeValue::decode(FileId::main(*file), bytes).unwrap().base;
            values.push((*file, entries_of(&trees, &base.tree).await));
            nodes.extend(nodes_of(&trees, &store, &base.tree, *file).await);
            match base.xattrs {
                XattrPlace::None => {}
                XattrPlace::Inline(bytes) => xattrs.push((*file, bytes)),
                XattrPlace::Chunk(address) => xattrs.push((*file, store.get(Class::Metadata, &address).await.unwrap())),
            }
        }
        values.retain(|(_, values)| !values.is_empty());
        let branches = entries_of(&trees, &roots.branches).await;
        assert_eq!(branches.len(), 2 * usize::from(has_clone));
        let mut branch_inodes = Vec::new();
        for (branch, bytes) in &branches {
            branch_inodes.push((*branch, entries_of(&trees, &BranchValue::decode(bytes).unwrap().catalog).await));
        }
        assert!(
            xattrs.len() == 2 && nodes.iter().filter(|(owner, _)| *owner != 0).count() > 2,
            "trees of several nodes"
        );
        Image {
            files,
            roots: found.roots,
            covered: found.covered,
            snapshots: entries_of(&trees, &roots.snapshots).await,
            inodes: catalog.into_iter().collect(),
            values,
            nodes,
            xattrs,
            branches,
            branch_inodes,
            frames: found.frames.into_iter().map(|(_, frame)| frame.to_vec()).collect(),
        }
    })
}

async fn entries_of(trees: &Trees, root: &Root) -> Vec<(u64, Bytes)> {
    let mut entries = Vec::new();
    let leaf = &mut |key, value: &Bytes| {
        entries.push((key, value.clone()));
        Ok(())
    };
    trees.walk(root, &mut |_, _| true, leaf).await.unwrap();
    entries
}

async fn nodes_of(trees: &Trees, store: &Arc<Store>, root: &Root, owner: u64) -> Vec<(u64, Bytes)> {
    let mut addresses = Vec::new();
    let visit = &mut |address: &ChunkAddress, _| {
        addresses.push(*address);
        true
    };
    trees.walk(root, visit, &mut |_, _| Ok(())).await.unwrap();
    let mut nodes = Vec::new();
    for address in addresses {
        nodes.push((owner, store.get(Class::Metadata, &address).await.unwrap()));
    }
    nodes
}

/// A sample: which one, its key, and its bytes.
fn tagged(owner: u64, key: u64, bytes: &[u8]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.u64(owner).u64(key).put(bytes);
    writer.into_bytes()
}

fn untagged(bytes: &[u8]) -> Result<(u64, u64, Bytes), String> {
    let mut reader = Reader::new(bytes);
    let short = |_| "short".to_owned();
    let (owner, key) = (reader.u64("owner").map_err(short)?, reader.u64("key").map_err(short)?);
    Ok((owner, key, Bytes::copy_from_slice(&bytes[16..])))
}

const TARGETS: &[Target] = &[
    Target {
        name: "tree-roots",
        cases: SLOW_CASES,
        samples: || vec![IMAGE.roots.clone()],
        repair: no_repair,
        check: |bytes| survive(Lie::Roots(bytes.to_vec())),
    },
    Target {
        name: "tree-inode",
        cases: SLOW_CASES,
        samples: || IMAGE.inodes.iter().map(|(file, bytes)| tagged(*file, 0, bytes)).collect(),
        repair: no_repair,
        check: |bytes| untagged(bytes).and_then(|(file, _, bytes)| survive(Lie::Inode(file, bytes))),
    },
    Target {
        name: "tree-value",
        cases: SLOW_CASES,
        samples: || {
            let few = |(owner, values): &(u64, Vec<(u64, Bytes)>)| {
                values.iter().take(4).map(|(key, bytes)| tagged(*owner, *key, bytes)).collect::<Vec<_>>()
            };
            IMAGE.values.iter().flat_map(few).collect()
        },
        repair: no_repair,
        check: |bytes| untagged(bytes).and_then(|(file, key, bytes)| survive(Lie::Value(file, key, bytes))),
    },
    Target {
        name: "tree-snapshot",
        cases: SLOW_CASES,
        samples: || IMAGE.snapshots.iter().map(|(key, bytes)| tagged(0, *key, bytes)).collect(),
        repair: no_repair,
        check: |bytes| untagged(bytes).and_then(|(_, key, bytes)| survive(Lie::Snapshot(key, bytes))),
    },
    Target {
        name: "tree-xattrs",
        cases: SLOW_CASES,
        samples: || IMAGE.xattrs.iter().map(|(file, bytes)| tagged(*file, 0, bytes)).collect(),
        repair: no_repair,
        check: |bytes| untagged(bytes).and_then(|(file, _, bytes)| survive(Lie::Xattrs(file, bytes))),
    },
    Target {
        name: "tree-node",
        cases: SLOW_CASES,
        samples: || IMAGE.nodes.iter().enumerate().map(|(at, (_, bytes))| tagged(at as u64, 0, bytes)).collect(),
        repair: no_repair,
        check: |bytes| untagged(bytes).and_then(|(at, _, bytes)| survive(Lie::Node(at, bytes))),
    },
    Target {
        name: "tree-branch",
        cases: SLOW_CASES,
        samples: || CLONED.branches.iter().map(|(branch, bytes)| tagged(*branch, 0, bytes)).collect(),
        repair: no_repair,
        check: |bytes| untagged(bytes).and_then(|(branch, _, bytes)| survive(Lie::Branch(branch, bytes))),
    },
    Target {
        name: "tree-branch-inode",
        cases: SLOW_CASES,
        samples: || {
            let tag = |(branch, inodes): &(u64, Vec<(u64, Bytes)>)| {
                inodes.iter().map(|(file, bytes)| tagged(*branch, *file, bytes)).collect::<Vec<_>>()
            };
            CLONED.branch_inodes.iter().flat_map(tag).collect()
        },
        repair: no_repair,
        check: |bytes| untagged(bytes).and_then(|(branch, file, bytes)| survive(Lie::BranchInode(branch, file, bytes))),
    },
    Target {
        name: "journal-frame",
        cases: SLOW_CASES,
        samples: || IMAGE.frames.iter().enumerate().map(|(at, frame)| tagged(at as u64, 0, frame)).collect(),
        repair: no_repair,
        check: |bytes| untagged(bytes).and_then(|(at, _, frame)| survive(Lie::Frame(at, frame))),
    },
];

/// What is put in the place of a truth.
enum Lie {
    Roots(Vec<u8>),
    Inode(u64, Bytes),
    /// In the tree of a file or directory.
    Value(u64, u64, Bytes),
    Snapshot(u64, Bytes),
    Xattrs(u64, Bytes),
    /// Of the nodes of the image, by number.
    Node(u64, Bytes),
    /// In the place of a frame behind the roots, by number.
    Frame(u64, Bytes),
    /// In the list of clones.
    Branch(u64, Bytes),
    /// In the catalog of a clone.
    BranchInode(u64, u64, Bytes),
}

impl Lie {
    /// What it is told of.
    fn image(&self) -> &'static Image {
        if matches!(self, Lie::Branch(..) | Lie::BranchInode(..)) { &CLONED } else { &IMAGE }
    }
}

/// Tells the lie in a copy of the image, and uses it. `Err`: it was refused.
fn survive(lie: Lie) -> Result<(), String> {
    let image = lie.image();
    let world = World::new(1);
    world.set_step_limit(STEPS_MAX);
    let disk = world.disk("disk", CAPACITY);
    image.files.iter().for_each(|(path, bytes)| disk.install(path, bytes));
    world.run_until(tell(&world, &disk, lie)).expect("an end")?;
    world.restart();
    let first = world.run_until(life(&world, &disk, image)).expect("an end");
    world.restart();
    // What it made of the lie is opened, too, as its own.
    let second = world.run_until(life(&world, &disk, image)).expect("an end");
    assert!(first.is_err() || second.is_ok(), "{:?}", second.err());
    first.map_err(|error| error.to_string())
}

async fn tell(world: &World, disk: &SimDisk, lie: Lie) -> Result<(), String> {
    let (store, found) = Store::open(&world.platform(), &[disk.disk()], options().store).await.unwrap();
    let trees = Trees::new(store.clone());
    let image = lie.image();
    let mut roots = Roots::decode(&image.roots).unwrap();
    let mut bytes = None;
    let mut frames: Vec<Vec<u8>> = Vec::new();
    match lie {
        Lie::Roots(lie) if lie.len() > store::ROOTS_BYTES_MAX => return Err("too long".to_owned()),
        Lie::Roots(lie) => bytes = Some(lie),
        Lie::Inode(file, lie) => roots.catalog = with(&trees, &roots.catalog, file, lie).await,
        Lie::Snapshot(view, lie) => roots.snapshots = with(&trees, &roots.snapshots, view, lie).await,
        Lie::Value(file, key, lie) => {
            let mut inode = inode(file)?;
            inode.base.tree = with(&trees, &inode.base.tree, key, lie).await;
            roots.catalog = with(&trees, &roots.catalog, file, inode.encode().into()).await;
        }
        Lie::Xattrs(file, lie) => {
            let mut inode = inode(file)?;
            inode.base.xattrs = XattrPlace::Chunk(store.put(Class::Metadata, &lie).await.unwrap());
            roots.catalog = with(&trees, &roots.catalog, file, inode.encode().into()).await;
        }
        Lie::Node(at, lie) => {
            let (owner, old) = IMAGE.nodes.get(usize::try_from(at).unwrap_or(usize::MAX)).ok_or("no node")?;
            let (from, to) = (store.key().address(old), store.put(Class::Metadata, &lie).await.unwrap());
            match owner {
                0 => roots.catalog = replaced(&store, &roots.catalog, &from, &to).await,
                file => {
                    let mut inode = inode(*file)?;
                    inode.base.tree = replaced(&store, &inode.base.tree, &from, &to).await;
                    roots.catalog = with(&trees, &roots.catalog, *file, inode.encode().into()).await;
                }
            }
        }
        Lie::Frame(at, lie) => {
            frames.clone_from(&IMAGE.frames);
            *frames.get_mut(usize::try_from(at).unwrap_or(usize::MAX)).ok_or("no frame")? = lie.to_vec();
            let mut chains = BTreeMap::new();
            frames.iter_mut().for_each(|frame| chain(frame, &mut chains));
        }
        Lie::Branch(branch, lie) => roots.branches = with(&trees, &roots.branches, branch, lie).await,
        Lie::BranchInode(branch, file, lie) => {
            let (_, bytes) = image.branches.iter().find(|(of, _)| *of == branch).ok_or("no branch")?;
            let mut value = BranchValue::decode(bytes).unwrap();
            value.catalog = with(&trees, &value.catalog, file, lie).await;
            roots.branches = with(&trees, &roots.branches, branch, value.encode().into()).await;
        }
    }
    let covered = found.frames.last().map_or(image.covered, |(position, _)| *position);
    store
        .commit(store.moment(), &bytes.unwrap_or_else(|| roots.encode()), covered)
        .await
        .map_err(|error| error.to_string())?;
    frames.iter().filter(|frame| !frame.is_empty()).for_each(|frame| {
        store.log(frame);
    });
    store.sync_log(store.last_logged()).await.unwrap();
    store.close().await.unwrap();
    Ok(())
}

fn inode(file: u64) -> Result<InodeValue, String> {
    Ok(InodeValue::decode(FileId::main(file), IMAGE.inodes.get(&file).ok_or("no file")?).unwrap())
}

async fn with(trees: &Trees, root: &Root, key: u64, value: Bytes) -> Root {
    trees.update(root, Edits::from([(key, Some(value.to_vec()))]), 0).await.unwrap()
}

/// The root of a tree of two levels at most in which another node stands in the place of `from`.
async fn replaced(store: &Arc<Store>, root: &Root, from: &ChunkAddress, to: &ChunkAddress) -> Root {
    let Root::Node { address, level } = root else { panic!("a node of this tree is a chunk") };
    if address == from {
        return Root::Node { address: *to, level: *level };
    }
    let mut top = store.get(Class::Metadata, address).await.unwrap().to_vec();
    let at = top.windows(ChunkAddress::BYTES).position(|window| window == from.0).expect("its child");
    top[at..at + ChunkAddress::BYTES].copy_from_slice(&to.0);
    Root::Node { address: store.put(Class::Metadata, &top).await.unwrap(), level: *level }
}

/// Gives the records of a frame the chains that they should have, as far as they can be read.
fn chain(frame: &mut [u8], chains: &mut BTreeMap<FileId, u128>) {
    let mut at = 0;
    while at < frame.len() {
        let mut reader = Reader::new(&frame[at..]);
        let Ok((record, covered)) = decode_record(&mut reader) else { return };
        let committed = || inode(record.file.number).map_or(0, |inode| inode.version.chain);
        let chain = base::hash::chain(*chains.entry(record.file).or_insert_with(committed), covered);
        chains.insert(record.file, chain);
        at += reader.offset();
        frame[at - 16..at].copy_from_slice(&chain.to_le_bytes());
    }
}

/// Everything that a file system can be asked for. Errors in between are answers; a failed opening is returned.
async fn life(world: &World, disk: &SimDisk, image: &Image) -> Result<(), FileError> {
    let (system, _) = FileSystem::open(&world.platform(), &[disk.disk()], options()).await?;
    let views = system.snapshots().into_iter().filter_map(|snapshot| system.find_snapshot(snapshot.name.as_bytes()));
    let mut nodes = BTreeSet::new();
    for root in views.chain([Node::live(FileId::ROOT)]).collect::<Vec<_>>() {
        nodes.extend(look_around(&system, root).await);
    }
    // Files that no name leads to, too.
    nodes.extend(image.inodes.keys().map(|file| Node::live(FileId::main(*file))));
    for node in &nodes {
        look_at(&system, *node).await;
        if node.view == View::LIVE {
            change(&system, node.file).await;
        }
    }
    let _ = system.snapshot("another").await;
    let _ = system.sync_all().await;
    let _ = system.commit().await;
    for node in &nodes {
        look_at(&system, *node).await;
    }
    mend(&system).await;
    let _ = system.delete_snapshot("snapshot").await;
    for remedy in system.check_store(Depth::Deep, &|_, _| {}).await.remedies {
        let _ = system.repair_store(remedy).await;
    }
    for (number, node) in nodes.iter().filter(|node| node.view == View::LIVE).take(5).enumerate() {
        let _ = system.clone_tree(*node, FileId::ROOT, format!("clone {number}").as_bytes()).await;
    }
    let _ = system.batch_remove(FileId::ROOT, b"clone").await;
    let _ = system.commit().await;
    let _ = system.reclaim(&crate::Reclaim::default()).await;
    let _ = system.status();
    let _ = system.close().await;
    Ok(())
}

/// Check and repair are of one mind: what is proposed is done and nothing else, and then there is nothing left to do.
async fn mend(system: &FileSystem) {
    let trees = |gives_up| Remedy::Trees { gives_up };
    let Ok(mut before) = system.check_files(&|_| {}).await else { return };
    for gives_up in [false, true] {
        let done = match system.repair_files(gives_up, (0, 0)).await {
            Ok(done) => done,
            // Trees to which nothing can be added are mended by giving up a part of them, or, of a file's content, not at all.
            Err(FileError::Store(StoreError::Corrupt { .. }))
                if before.remedies.contains(&trees(true)) && !gives_up
                    || before.problems.iter().any(|problem| problem.code == "HF1023") =>
            {
                continue;
            }
            Err(error) => panic!("{error} {:#?}", before.problems),
        };
        assert!(done.is_empty() || !before.remedies.is_empty(), "not proposed: {done:?}");
        let after = system.check_files(&|_| {}).await.unwrap();
        assert!(!after.remedies.contains(&trees(gives_up)), "not done: {:#?}\n{done:?}", after.problems);
        let codes = |report: &FilesReport| report.problems.iter().map(|problem| problem.code).collect::<BTreeSet<_>>();
        let mut may_be = codes(&before);
        if may_be.contains("HF1026") {
            // It has a name now, and what lies in it is looked at.
            let nameless = before.problems.iter().filter(|problem| problem.code == "HF1026");
            let clones: Vec<String> =
                nameless.filter_map(|of| Some(of.path.split_once("(clone ")?.1.to_owned())).collect();
            let is_inside = |path: &str| clones.iter().any(|clone| path.contains(&format!("(clone {clone}")));
            may_be.extend(after.problems.iter().filter(|of| is_inside(&of.path)).map(|of| of.code));
        }
        // Lost extents are noted as extents of a chunk that nobody has.
        may_be.extend((may_be.contains("HF1005") || may_be.contains("HF1006")).then_some("HF1008"));
        assert!(codes(&after).is_subset(&may_be), "made: {:#?}\nof {:#?}", after.problems, before.problems);
        before = after;
    }
}

/// Files below a node, as far as `VISITS_MAX` allows.
async fn look_around(system: &FileSystem, root: Node) -> Vec<Node> {
    let mut found = vec![root];
    let mut at = 0;
    while at < found.len() && found.len() < VISITS_MAX {
        let directory = found[at];
        at += 1;
        let (mut after, mut lists) = (0, 0);
        while let Ok(entries) = system.read_directory(directory, after, 100).await {
            let Some(last) = entries.last() else { break };
            assert!(last.cookie > after, "a listing goes forward");
            after = last.cookie;
            let nodes: Vec<Node> = entries.iter().map(|entry| entry.node).collect();
            system.load_listed(directory, &nodes).await;
            for entry in entries {
                let _ = system.lookup(directory, &entry.name).await;
                if !found.contains(&entry.node) && found.len() < VISITS_MAX {
                    found.push(entry.node);
                }
            }
            lists += 1;
            assert!(lists < 10_000, "a listing ends");
        }
    }
    found
}

async fn look_at(system: &FileSystem, node: Node) {
    let size = system.attributes(node).await.map_or(0, |attributes| attributes.size);
    let _ = system.describe(node).await;
    let _ = system.lookup(node, b"..").await;
    let _ = system.read_link(node).await;
    for name in system.xattrs(node).await.unwrap_or_default() {
        let _ = system.xattr(node, &name).await;
    }
    let mut buffer = vec![0; 30_000];
    for offset in [0, 1000, 90_000, 1 << 40, 1 << 41, size.saturating_sub(1000), size / 2, u64::MAX - 10] {
        let _ = system.read(node, offset, &mut buffer).await;
        let _ = system.seek(node, offset, Seek::Data).await;
        let _ = system.seek(node, offset, Seek::Hole).await;
    }
}

async fn change(system: &FileSystem, file: FileId) {
    let size = system.attributes(Node::live(file)).await.map_or(0, |attributes| attributes.size);
    for offset in [5, 120_000, size] {
        let _ = system.write(file, offset, &[9; 5000], true).await;
    }
    let _ = system.sync(file).await;
    let _ = system.allocate(file, Allocate::Punch, 4096, 1 << 39).await;
    let _ = system.allocate(file, Allocate::Zero { keep_size: false }, 1 << 20, 9000).await;
    let _ = system.allocate(file, Allocate::Reserve { keep_size: true }, 0, 1 << 42).await;
    let _ = system.copy_range(Node::live(file), 0, file, 1 << 21, 1 << 20).await;
    let now = Some(TimeChange::Now);
    let truncate =
        AttributeChange { size: Some(size / 2), mode: Some(0o640), uid: Some(9), accessed: now, ..Default::default() };
    let _ = system.set_attributes(file, &truncate).await;
    let _ = system.set_xattr(file, b"user.new", &[1; 700], XattrMode::Set, true).await;
    let _ = system.remove_xattr(file, b"user.small").await;
    // As a directory.
    for kind in [Kind::Directory, Kind::Regular] {
        let _ = system.create_file(file, b"new", &new(kind)).await;
        let _ = system.create_file(file, b"newer", &new(kind)).await;
        let _ = system
            .rename(file, b"new", FileId::ROOT, format!("from {}", file.number).as_bytes(), RenameMode::Replace)
            .await;
        let _ = system.rename(file, b"newer", file, b"inner", RenameMode::Exchange).await;
        let _ = system.remove_file(file, b"newer").await;
        let _ = system.remove_directory(file, b"newer").await;
    }
    let _ = system.link(file, FileId::ROOT, format!("link {}", file.number).as_bytes()).await;
    for name in [b"file".as_slice(), b"symlink", b"link", b"dir", b"many"] {
        let _ = system.remove_file(file, name).await;
        let _ = system.remove_directory(file, name).await;
    }
}

/// Directories whose parents go in a circle: moving something there is refused. It went round for ever, and no other rename came through.
#[test]
fn parents_in_a_circle_are_not_followed_for_ever() {
    let directory = file_of(FileId::ROOT, "dir");
    let inner = file_of(directory, "inner");
    let mut lie = inode(inner.number).unwrap();
    lie.attributes.parent = inner;
    let world = World::new(1);
    world.set_step_limit(STEPS_MAX);
    let disk = world.disk("disk", CAPACITY);
    IMAGE.files.iter().for_each(|(path, bytes)| disk.install(path, bytes));
    world.run_until(tell(&world, &disk, Lie::Inode(inner.number, lie.encode().into()))).unwrap().unwrap();
    world.restart();
    let ended = world.run_until(async {
        let (system, _) = FileSystem::open(&world.platform(), &[disk.disk()], options()).await.unwrap();
        let moved = system.rename(FileId::ROOT, b"many", inner, b"many", RenameMode::Replace).await;
        assert!(matches!(moved, Err(FileError::Store(StoreError::Corrupt { .. }))), "{moved:?}");
        system.rename(FileId::ROOT, b"many", directory, b"many", RenameMode::Replace).await.unwrap();
        system.close().await.unwrap();
    });
    ended.expect("an end");
}

fn file_of(inside: FileId, name: &str) -> FileId {
    entry_of(inside, name).1.file
}

fn entry_of(inside: FileId, name: &str) -> (u64, Entry) {
    let (_, entries) = IMAGE.values.iter().find(|(owner, _)| *owner == inside.number).unwrap();
    let mut entries = entries.iter().map(|(key, bytes)| (*key, Entry::decode(0, &mut Reader::new(bytes)).unwrap()));
    entries.find(|(_, entry)| &*entry.name == name.as_bytes()).unwrap()
}

/// Clones whose name is said to be in themselves, in each other, or in nothing; that are the main catalog; that have their own list for a catalog.
#[test]
fn clones_in_a_circle_are_not_followed_for_ever() {
    let value = |at: usize| BranchValue::decode(&CLONED.branches[at].1).unwrap();
    let (numbers, roots) = ([0, 1].map(|at| CLONED.branches[at].0), Roots::decode(&CLONED.roots).unwrap());
    let top = |at: usize| FileId { branch: u32::try_from(numbers[at]).unwrap(), number: value(at).top };
    let lies = [
        (0, BranchValue { above: top(0), ..value(0) }),
        (0, BranchValue { above: top(1), ..value(0) }),
        (1, BranchValue { above: top(1), ..value(1) }),
        (1, BranchValue { above: FileId::main(u64::MAX), ..value(1) }),
        (0, BranchValue { catalog: roots.catalog.clone(), ..value(0) }),
        (0, BranchValue { catalog: roots.branches.clone(), ..value(0) }),
        (1, BranchValue { orphans: roots.catalog.clone(), ..value(1) }),
        (0, BranchValue { top: 1 << 50, root: 1 << 51, ..value(0) }),
        (0, BranchValue { top: 0, ..value(0) }),
    ];
    for (number, (at, lie)) in lies.into_iter().enumerate() {
        let survived = survive(Lie::Branch(numbers[at], lie.encode().into()));
        // Of some nothing can be read, and they are refused.
        assert!(number > 6 || survived.is_ok(), "lie {number}: {survived:?}");
    }
}

/// A machine with the image in which inodes and values of their trees are others.
fn lying(inodes: Vec<InodeValue>, values: Vec<(FileId, u64, Option<Vec<u8>>)>) -> (World, SimDisk) {
    let world = World::new(1);
    let disk = world.disk("disk", CAPACITY);
    IMAGE.files.iter().for_each(|(path, bytes)| disk.install(path, bytes));
    let lie = async {
        let (store, found) = Store::open(&world.platform(), &[disk.disk()], options().store).await.unwrap();
        let trees = Trees::new(store.clone());
        let mut roots = Roots::decode(&IMAGE.roots).unwrap();
        let mut lies: BTreeMap<u64, InodeValue> =
            inodes.into_iter().map(|inode| (inode.attributes.file.number, inode)).collect();
        let mut edits: BTreeMap<u64, Edits> = BTreeMap::new();
        for (file, key, value) in values {
            edits.entry(file.number).or_default().insert(key, value);
        }
        for (file, edits) in edits {
            let inode = lies.entry(file).or_insert_with(|| inode(file).unwrap());
            inode.base.tree = trees.update(&inode.base.tree, edits, 0).await.unwrap();
        }
        let edits = lies.into_iter().map(|(file, inode)| (file, Some(inode.encode()))).collect();
        roots.catalog = trees.update(&roots.catalog, edits, 0).await.unwrap();
        let covered = found.frames.last().map_or(IMAGE.covered, |(position, _)| *position);
        store.commit(store.moment(), &roots.encode(), covered).await.unwrap();
        store.close().await.unwrap();
    };
    world.run_until(lie).unwrap();
    world.restart();
    (world, disk)
}

fn encoded(entry: Entry) -> Option<Vec<u8>> {
    Some(crate::directory::encode_entry(&entry, 0))
}

/// Opens a file system that lies: the codes of its problems, once each, and what is left of them after a repair.
fn mended(inodes: Vec<InodeValue>, values: Vec<(FileId, u64, Option<Vec<u8>>)>) -> (Vec<&'static str>, Vec<Problem>) {
    let (world, disk) = lying(inodes, values);
    let outcome = world.run_until(async {
        let (system, _) = FileSystem::open(&world.platform(), &[disk.disk()], options()).await.unwrap();
        let problems = system.check_files(&|_| {}).await.unwrap().problems;
        assert!(problems.iter().all(|problem| problem.remedy.is_some()), "{problems:#?}");
        mend(&system).await;
        let left = system.check_files(&|_| {}).await.unwrap().problems;
        system.close().await.unwrap();
        (problems.into_iter().map(|problem| problem.code).collect::<BTreeSet<_>>(), left)
    });
    let (codes, left) = outcome.unwrap();
    (codes.into_iter().collect(), left)
}

/// What the check did not see, and the repair changed, or did not see either.
#[test]
fn check_and_repair_are_of_one_mind() {
    let directory = file_of(FileId::ROOT, "dir");
    let inner = file_of(directory, "inner");
    let lie = |file: FileId, change: &dyn Fn(&mut InodeValue)| {
        let mut inode = inode(file.number).unwrap();
        change(&mut inode);
        inode
    };
    let put = |inside: FileId, name: &str, change: &dyn Fn(&mut Entry)| {
        let (cookie, mut entry) = entry_of(inside, name);
        change(&mut entry);
        (inside, cookie, encoded(entry))
    };

    // Two directories, each in the other.
    let (cookie, _) = entry_of(FileId::ROOT, "dir");
    let (fifo, entry) = entry_of(inner, "fifo");
    let ring = vec![
        (FileId::ROOT, cookie, None),
        (inner, fifo, encoded(Entry { file: directory, kind: Kind::Directory, ..entry })),
    ];
    let inodes = vec![
        lie(FileId::ROOT, &|root| (root.attributes.links, root.attributes.size) = (3, 2)),
        lie(directory, &|directory| directory.attributes.parent = inner),
        lie(inner, &|inner| inner.attributes.links = 3),
    ];
    let (codes, left) = mended(inodes, ring);
    assert!(codes.contains(&"HF1018") && left.is_empty(), "{codes:?} {left:#?}");

    // An entry of another kind than its file.
    let (codes, left) = mended(Vec::new(), vec![put(FileId::ROOT, "link", &|entry| entry.kind = Kind::Socket)]);
    assert_eq!((codes, left), (vec!["HF1019"], Vec::new()));

    // Extended attributes in the inode that are none.
    let file = file_of(FileId::ROOT, "link");
    let wrong = lie(file, &|file| file.base.xattrs = XattrPlace::Inline(Bytes::from_static(b"none")));
    assert_eq!(mended(vec![wrong], Vec::new()), (vec!["HF1004"], Vec::new()));

    // A name that leads to a directory that is not there: its parent counts it.
    let missing = put(directory, "inner", &|entry| entry.file = FileId::main(inner.number + 5));
    let (codes, left) = mended(Vec::new(), vec![missing]);
    assert!(codes.contains(&"HF1015") && codes.contains(&"HF1016") && left.is_empty(), "{codes:?} {left:#?}");

    // Two entries of one name.
    let (cookie, entry) = entry_of(FileId::ROOT, "link");
    let twice = vec![(FileId::ROOT, cookie + 1, encoded(entry))];
    let inodes =
        vec![lie(FileId::ROOT, &|root| root.attributes.size += 1), lie(file, &|file| file.attributes.links += 1)];
    assert_eq!(mended(inodes, twice), (vec!["HF1020"], Vec::new()));

    // Names that no path can have.
    for name in [&b"."[..], b"..", b"a/b", b"a\0"] {
        let (codes, left) = mended(Vec::new(), vec![put(directory, "file", &|entry| entry.name = name.into())]);
        assert!(codes.contains(&"HF1011") && left.is_empty(), "{codes:?} {left:#?}");
    }

    // A file longer than offsets go.
    let inodes = vec![lie(file, &|file| file.attributes.size = FILE_BYTES_MAX + 1)];
    let (codes, left) = mended(inodes, Vec::new());
    assert!(codes.contains(&"HF1002") && left.is_empty(), "{codes:?} {left:#?}");

    // A root that is no directory; what was in it is found again.
    let (codes, left) = mended(vec![lie(FileId::ROOT, &|root| root.attributes.kind = Kind::Fifo)], Vec::new());
    assert!(codes.contains(&"HF1002") && left.is_empty(), "{codes:?} {left:#?}");
}

/// What all extents come to is not known if one of them is not, and was told with a remedy that never ended.
#[test]
fn extents_that_cannot_be_read_say_nothing_of_the_rest() {
    let file = file_of(FileId::ROOT, "link");
    let (world, disk) = lying(Vec::new(), vec![(file, 0, Some(vec![9; 20]))]);
    let encoded = |length, extent| {
        let mut writer = Writer::default();
        crate::format::encode_extent(length, &extent, &mut writer);
        Some(writer.into_bytes())
    };
    let zeroes = || encoded(1 << 63, Extent::Zero);
    let large = lying(Vec::new(), vec![(file, 0, zeroes()), (file, 1, zeroes())]);
    let hole = lying(Vec::new(), vec![(file, 0, encoded(3000, Extent::Hole))]);
    for ((world, disk), expected) in [((world, disk), "HF1008"), (large, "HF1007"), (hole, "HF1008")] {
        let outcome = world.run_until(async {
            let (system, _) = FileSystem::open(&world.platform(), &[disk.disk()], options()).await.unwrap();
            mend(&system).await;
            let read = system.read(Node::live(file), 0, &mut [0; 2]).await;
            assert!(matches!(read, Err(FileError::Store(_))), "{expected}: {read:?}");
            let problems = system.check_files(&|_| {}).await.unwrap().problems;
            assert!(problems.iter().all(|problem| problem.code == expected), "{problems:#?}");
            assert!(!problems.is_empty());
            system.close().await.unwrap();
        });
        outcome.unwrap();
    }
}

/// A lost pack of data filled the list of problems, and what could be done about the directories behind them was not planned.
#[test]
fn remedies_are_there_beyond_the_list_of_problems() {
    let file = file_of(FileId::ROOT, "link");
    // It comes later in the catalog.
    let inner = file_of(file_of(FileId::ROOT, "dir"), "inner");
    assert!(inner > file);
    let mut values: Vec<_> = (0..11_000).map(|number| (file, (1 << 50) + number, Some(vec![9; 3]))).collect();
    values.push((inner, 300, Some(vec![9; 3])));
    let (world, disk) = lying(Vec::new(), values);
    let outcome = world.run_until(async {
        let (system, _) = FileSystem::open(&world.platform(), &[disk.disk()], options()).await.unwrap();
        let report = system.check_files(&|_| {}).await.unwrap();
        assert_eq!(report.problems.len(), 10_000);
        assert_eq!(report.remedies, BTreeSet::from([Remedy::Trees { gives_up: true }]));
        mend(&system).await;
        system.close().await.unwrap();
    });
    outcome.unwrap();
}

/// Entries that lead to their own directory, or to the root: its state was locked twice, for ever, with everything else behind it.
#[test]
fn an_entry_that_leads_to_its_own_directory_is_refused() {
    let directory = file_of(FileId::ROOT, "dir");
    let to = |inside: FileId, name: &str, file: FileId| {
        let (cookie, entry) = entry_of(inside, name);
        (inside, cookie, encoded(Entry { file, ..entry }))
    };
    let lies = vec![
        to(directory, "symlink", directory),
        to(directory, "inner", directory),
        to(FileId::ROOT, "link", FileId::ROOT),
    ];
    let (world, disk) = lying(Vec::new(), lies);
    let work = async move |system: &FileSystem| {
        use RenameMode::{Exchange, Replace};
        let (root, mut answers) = (FileId::ROOT, Vec::new());
        answers.push(system.remove_file(directory, b"symlink").await);
        answers.push(system.remove_directory(directory, b"inner").await);
        answers.push(system.remove_file(root, b"link").await);
        answers.extend(system.batch_remove_names(directory, &[b"symlink", b"inner"], true).await);
        answers.extend(system.batch_remove_names(root, &[b"link"], true).await);
        answers.push(system.rename(directory, b"symlink", directory, b"new", Replace).await);
        answers.push(system.rename(directory, b"symlink", root, b"new", Replace).await);
        answers.push(system.rename(root, b"link", directory, b"new", Replace).await);
        answers.push(system.rename(directory, b"file", directory, b"symlink", Replace).await);
        answers.push(system.rename(directory, b"file", directory, b"symlink", Exchange).await);
        answers.push(system.rename(directory, b"file", root, b"link", Replace).await);
        answers.push(system.rename(root, b"link", directory, b"symlink", Exchange).await);
        let replace = crate::BatchWrite { replace: true, ..crate::BatchWrite::default() };
        for (parent, name) in [(directory, "symlink"), (root, "link"), (root, "dir/symlink")] {
            let linked = crate::BatchEntry { content: crate::BatchContent::Link(name.into()), ..file("another", b"") };
            for entry in [file(name, b"new"), linked] {
                let report = system.batch_write(parent, vec![entry], &replace).await.unwrap();
                answers.extend(report.fates.into_iter().map(|fate| fate.map(drop)));
            }
        }
        answers
    };
    let (send, answers) = std::sync::mpsc::channel();
    // A lock that is waited for by who holds it holds this thread, and not the test.
    #[expect(clippy::disallowed_methods, reason = "nothing simulated can see a thread that stands still")]
    std::thread::spawn(move || {
        let answers = world.run_until(async {
            let (system, _) = FileSystem::open(&world.platform(), &[disk.disk()], options()).await.unwrap();
            let answers = work(&system).await;
            system.close().await.unwrap();
            answers
        });
        let _ = send.send(answers.unwrap());
    });
    let answers = answers.recv_timeout(std::time::Duration::from_secs(60)).expect("no thread stands still");
    assert!(answers.iter().all(Result::is_err), "{answers:#?}");
}

#[test]
fn file_systems_that_lie_are_survived() {
    fuzz::run(env!("CARGO_MANIFEST_DIR"), TARGETS);
}
