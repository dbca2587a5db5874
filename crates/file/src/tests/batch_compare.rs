//! Comparisons of trees, against a look at each name of both.

use std::collections::{BTreeMap, BTreeSet};

use base::id::FileId;

use super::content::pattern;
use super::{Machine, chunk_place, create, find, new, read_all};
use crate::attributes::AttributeChange;
use crate::{
    Aspect, Attributes, BatchCompare, BatchCompareReport, BatchCopy, Compared, FileError, FileSystem, Kind, NewFile,
    Node, Options, RenameMode, TimeChange, XattrMode,
};

/// What is told of a path: only before, only after, or in what it differs; or why it cannot be said.
type Told = BTreeMap<String, Result<(bool, bool, Vec<Aspect>), String>>;

const COPY: BatchCopy<'static> = BatchCopy { anew: None, tell: &|_, _| true, written: &|_, _| {} };

/// Enough of it.
const MEMORY: u64 = 32 << 20;

fn text(path: &[u8]) -> String {
    String::from_utf8(path.to_vec()).unwrap()
}

async fn compare_as(
    system: &FileSystem,
    before: Node,
    after: Node,
    (content_only, memory): (bool, u64),
) -> (Told, BatchCompareReport) {
    let mut told = Told::new();
    let mut tell = |difference: Result<Compared<'_>, (&[u8], FileError)>| {
        let (path, what) = match difference {
            Ok(Compared::OnlyBefore(walked)) => (text(walked.path), Ok((true, false, Vec::new()))),
            Ok(Compared::OnlyAfter(walked)) => (text(walked.path), Ok((false, true, Vec::new()))),
            Ok(Compared::Changed { path, what, .. }) => (text(path), Ok((true, true, what.to_vec()))),
            Err((path, error)) => (format!("{} (lost)", text(path)), Err(error.to_string())),
        };
        let again = told.insert(path.clone(), what);
        assert!(again.is_none(), "{path} is told twice");
        true
    };
    let how = BatchCompare { content_only, memory, progress: &|_| true };
    let report = system.batch_compare(before, after, &how, &mut tell).await.unwrap();
    (told, report)
}

async fn compare(system: &FileSystem, before: Node, after: Node) -> Told {
    compare_as(system, before, after, (false, MEMORY)).await.0
}

/// All that is seen of a file.
async fn look(system: &FileSystem, node: Node) -> (Attributes, Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>) {
    let attributes = system.attributes(node).await.unwrap();
    let content = match attributes.kind {
        Kind::Regular => read_all(system, node).await,
        Kind::Symlink => system.read_link(node).await.unwrap().to_vec(),
        _ => Vec::new(),
    };
    let mut xattrs = BTreeMap::new();
    for name in system.xattrs(node).await.unwrap() {
        xattrs.insert(name.to_vec(), system.xattr(node, &name).await.unwrap().to_vec());
    }
    (attributes, content, xattrs)
}

async fn names(system: &FileSystem, node: Option<Node>) -> BTreeMap<String, Node> {
    let (mut names, mut after) = (BTreeMap::new(), 0);
    let Some(node) = node else { return names };
    if system.attributes(node).await.unwrap().kind != Kind::Directory {
        return names;
    }
    loop {
        let entries = system.read_directory(node, after, 9).await.unwrap();
        let Some(last) = entries.last() else { return names };
        after = last.cookie;
        names.extend(entries.iter().map(|entry| (text(&entry.name), entry.node)));
    }
}

/// The same by listings, looks and reads.
async fn expect(system: &FileSystem, before: Option<Node>, after: Option<Node>, path: String, told: &mut Told) {
    if let (Some(before), Some(after)) = (before, after) {
        let (was, is) = (look(system, before).await, look(system, after).await);
        let mut what = Vec::new();
        let mut note = |aspect, differs: bool| what.extend(differs.then_some(aspect));
        if was.0.kind != is.0.kind {
            note(Aspect::Kind, true);
        } else {
            note(Aspect::Content, is.0.kind == Kind::Regular && was.1 != is.1);
            note(Aspect::Target, is.0.kind == Kind::Symlink && was.1 != is.1);
            note(Aspect::Device, was.0.device != is.0.device);
            note(Aspect::Mode, was.0.mode != is.0.mode);
            note(Aspect::Owner, (was.0.uid, was.0.gid) != (is.0.uid, is.0.gid));
            note(Aspect::Time, is.0.kind != Kind::Directory && was.0.modified != is.0.modified);
            note(Aspect::Xattrs, was.2 != is.2);
        }
        if !what.is_empty() {
            told.insert(path.clone(), Ok((true, true, what)));
        }
        if was.0.kind != is.0.kind || is.0.kind != Kind::Directory {
            let (was, is) = (was.0.kind == Kind::Directory, is.0.kind == Kind::Directory);
            if was {
                Box::pin(expect_below(system, Some(before), None, path, told)).await;
            } else if is {
                Box::pin(expect_below(system, None, Some(after), path, told)).await;
            }
            return;
        }
    } else {
        told.insert(path.clone(), Ok((before.is_some(), after.is_some(), Vec::new())));
    }
    Box::pin(expect_below(system, before, after, path, told)).await;
}

async fn expect_below(system: &FileSystem, before: Option<Node>, after: Option<Node>, path: String, told: &mut Told) {
    let (was, is) = (names(system, before).await, names(system, after).await);
    let all: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
    for name in all {
        let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
        Box::pin(expect(system, was.get(name).copied(), is.get(name).copied(), path, told)).await;
    }
}

/// Compares both ways round; gives how many differences there are.
async fn expect_same(system: &FileSystem, before: Node, after: Node, what: &str) -> usize {
    for (before, after) in [(before, after), (after, before)] {
        let mut expected = Told::new();
        expect(system, Some(before), Some(after), String::new(), &mut expected).await;
        // With little memory all names are looked at, everywhere or in the directories in which much differs, and listed again.
        for memory in [MEMORY, 0, 1 << 13, 1 << 15] {
            let (told, _) = compare_as(system, before, after, (false, memory)).await;
            assert_eq!(told, expected, "{what}: {before:?} {after:?}, {memory}");
        }
        let (told, _) = compare_as(system, before, after, (true, MEMORY)).await;
        let mut content = expected;
        for what in content.values_mut().flatten() {
            what.2.retain(|aspect| *aspect < Aspect::Mode);
        }
        content.retain(|_, what| !matches!(what, Ok((true, true, what)) if what.is_empty()));
        assert_eq!(told, content, "{what}: {before:?} {after:?}, content only");
    }
    compare(system, before, after).await.len()
}

/// A random change, somewhere.
async fn change(machine: &Machine, system: &FileSystem, directories: &mut Vec<FileId>, step: u64) {
    let below = |bound: u64| machine.world.below(bound);
    let parent = directories[below(directories.len() as u64) as usize];
    let name = format!("n{}", below(25));
    let other = format!("n{}", below(25));
    // Some find no name, or one that is there.
    let found = system.lookup(Node::live(parent), name.as_bytes()).await;
    match below(14) {
        0 => {
            let made = system.create_file(parent, name.as_bytes(), &new(Kind::Directory)).await;
            directories.extend(made.map(|made| made.file));
        }
        1..4 => {
            let made = system.create_file(parent, name.as_bytes(), &new(Kind::Regular)).await;
            if let Ok(made) = made {
                let bytes = below(9000) as usize;
                system.write(made.file, below(5000), &pattern(bytes, step), false).await.unwrap();
            }
        }
        4 => {
            let link = NewFile { target: other.as_bytes(), ..new(Kind::Symlink) };
            drop(system.create_file(parent, name.as_bytes(), &link).await);
        }
        5 => {
            let device = NewFile { device: step as u32, ..new(Kind::BlockDevice) };
            drop(system.create_file(parent, name.as_bytes(), &device).await);
        }
        6 => drop(system.remove_file(parent, name.as_bytes()).await),
        7 => {
            if let Ok((node, _)) = found {
                let to = directories[below(directories.len() as u64) as usize];
                drop(system.link(node.file, to, other.as_bytes()).await);
            }
        }
        8 => {
            let to = directories[below(directories.len() as u64) as usize];
            let mode = [RenameMode::Replace, RenameMode::Exchange][below(2) as usize];
            drop(system.rename(parent, name.as_bytes(), to, other.as_bytes(), mode).await);
        }
        9 => {
            let file = found.map_or(parent, |(node, _)| node.file);
            let change = match below(3) {
                0 => AttributeChange { mode: Some(step as u32 & 0o777), ..AttributeChange::default() },
                1 => AttributeChange { uid: Some(step as u32 & 3), ..AttributeChange::default() },
                _ => AttributeChange { modified: Some(TimeChange::Now), ..AttributeChange::default() },
            };
            drop(system.set_attributes(file, &change).await);
        }
        10 => {
            let file = found.map_or(parent, |(node, _)| node.file);
            let value = pattern(if below(2) == 0 { 3 } else { 900 }, below(3));
            drop(system.set_xattr(file, b"user.x", &value, XattrMode::Set, false).await);
        }
        11 => drop(system.batch_remove(parent, name.as_bytes()).await),
        _ => {
            if let Ok((node, attributes)) = found
                && attributes.kind == Kind::Regular
            {
                let size = attributes.size;
                match below(4) {
                    // The same bytes once more are no difference.
                    0 => {
                        let bytes = read_all(system, node).await;
                        system.write(node.file, 0, &bytes, false).await.unwrap();
                    }
                    1 => {
                        let change = AttributeChange { size: Some(below(size + 2)), ..AttributeChange::default() };
                        system.set_attributes(node.file, &change).await.unwrap();
                    }
                    _ => {
                        let bytes = pattern(below(300) as usize, step);
                        system.write(node.file, below(size + 1), &bytes, false).await.unwrap();
                    }
                }
            }
        }
    }
}

/// Random histories with snapshots, clones and copies, of which everything is compared with everything.
#[test]
fn a_comparison_tells_what_looks_at_both_trees_tell() {
    let mut differences = 0;
    for seed in 0..24 {
        let options = Options { inodes_max: if seed % 2 == 0 { 16 } else { 100_000 }, ..Options::default() };
        let machine = Machine::with(seed, 1 << 30, options);
        let mut system = machine.open();
        let below = |bound: u64| machine.world.below(bound);
        let mut directories = vec![FileId::ROOT];
        let mut tops = Vec::new();
        for round in 0..7 {
            machine.run(async {
                for step in 0..30 {
                    change(&machine, &system, &mut directories, round * 100 + step).await;
                }
                let source = Node::live(directories[below(directories.len() as u64) as usize]);
                match round {
                    0 | 2 | 4 => tops.push(system.snapshot(&format!("s{round}")).await.unwrap().view),
                    1 | 3 => {
                        let name = format!("clone{round}");
                        let made = system.clone_tree(source, FileId::ROOT, name.as_bytes()).await;
                        directories.extend(made.map(|made| made.file));
                    }
                    _ => {
                        let name = format!("copy{round}");
                        drop(system.batch_copy(source, FileId::ROOT, name.as_bytes(), &COPY).await);
                    }
                }
            });
            if round % 3 == 1 {
                machine.run(system.commit()).unwrap();
            }
            if round == 3 {
                system = machine.power_cycle(system);
            }
            if round < 2 {
                continue;
            }
            machine.run(async {
                for step in 0..below(6) {
                    change(&machine, &system, &mut directories, round * 100 + 50 + step).await;
                }
                let views = tops.iter().copied().chain([crate::View::LIVE]).collect::<Vec<_>>();
                let roots: Vec<Node> = views.iter().map(|view| Node { view: *view, file: FileId::ROOT }).collect();
                let mut nodes = roots.clone();
                for root in &roots {
                    nodes.extend(names(&system, Some(*root)).await.into_values());
                }
                for (place, before) in roots.iter().enumerate() {
                    for after in &roots[place..] {
                        differences += expect_same(&system, *before, *after, &format!("seed {seed}")).await;
                    }
                }
                for _ in 0..8 {
                    let before = nodes[below(nodes.len() as u64) as usize];
                    let after = nodes[below(nodes.len() as u64) as usize];
                    differences += expect_same(&system, before, after, &format!("seed {seed}")).await;
                }
            });
        }
        machine.run(system.commit()).unwrap();
    }
    assert!(differences > 10_000, "{differences}");
}

/// So many directories with a thousand files each, and a snapshot `before` of them.
async fn fill(system: &FileSystem, directories: u64) {
    for directory in 0..directories {
        let made = create(system, FileId::ROOT, &format!("d{directory}"), Kind::Directory).await.file;
        for file in 0..1000 {
            create(system, made, &format!("file {file}"), Kind::Regular).await;
        }
    }
    system.snapshot("before").await.unwrap();
}

/// Compares two snapshots in a process that has read nothing; gives what is told, and the tree nodes that were read.
fn compare_cold(machine: &Machine) -> (Told, BatchCompareReport, u64) {
    let system = machine.open();
    let nodes = |system: &FileSystem| {
        let store = system.store.counters();
        store.cache_metadata_misses.value() + store.prefetched_chunks.value()
    };
    let first = nodes(&system);
    let snapshots = ["before", "after"].map(|name| system.find_snapshot(name.as_bytes()).unwrap());
    let (told, report) = machine.run(compare_as(&system, snapshots[0], snapshots[1], (false, MEMORY)));
    let read = nodes(&system) - first;
    machine.run(system.close()).unwrap();
    (told, report, read)
}

#[test]
fn what_two_snapshots_share_is_not_read() {
    const DIRECTORIES: u64 = 20;
    let machine = Machine::new(1);
    let system = machine.open();
    machine.run(async {
        fill(&system, DIRECTORIES).await;
        for file in 0..10 {
            let path = format!("d{}/file {}", file % 3, file * 77);
            let node = find(&system, &path).await.unwrap();
            system.write(node.file, 0, b"changed", false).await.unwrap();
        }
        system.snapshot("after").await.unwrap();
        system.close().await.unwrap();
    });
    drop(system);
    let (told, report, nodes) = compare_cold(&machine);
    assert_eq!(told.len(), 10, "{told:?}");
    assert!(told.values().all(|what| what.as_ref().unwrap().2.contains(&Aspect::Content)));
    // The root and three directories on the way, and ten files.
    assert_eq!(report.looked_at, 14);
    assert_eq!(report.searched, 3 * 1000);

    // As a process that asks for each name would do it.
    let system = machine.open();
    let first = system.store.counters().cache_metadata_misses.value();
    let mut expected = Told::new();
    let [before, after] = ["before", "after"].map(|name| system.find_snapshot(name.as_bytes()));
    machine.run(expect(&system, before, after, String::new(), &mut expected));
    assert_eq!(told, expected);
    let all = system.store.counters().cache_metadata_misses.value() - first;
    assert!(nodes < 45 && all > 10 * nodes, "{nodes} of {all} nodes were read");
    machine.run(system.close()).unwrap();
}

#[test]
fn other_names_of_a_file_are_found_among_all_names() {
    let machine = Machine::new(2);
    let system = machine.open();
    machine.run(async {
        let made = create(&system, FileId::ROOT, "z", Kind::Regular).await.file;
        fill(&system, 5).await;
        for name in ["one", "other"] {
            let directory = find(&system, "d3").await.unwrap().file;
            system.link(made, directory, name.as_bytes()).await.unwrap();
        }
        system.delete_snapshot("before").await.unwrap();
        system.snapshot("before").await.unwrap();
        system.write(made, 0, b"changed", false).await.unwrap();
        system.snapshot("after").await.unwrap();
        system.close().await.unwrap();
    });
    drop(system);
    let (told, report, nodes) = compare_cold(&machine);
    let paths: Vec<&str> = told.keys().map(String::as_str).collect();
    assert_eq!(paths, ["d3/one", "d3/other", "z"]);
    // The root and d3, and three names. Names were listed until all were found, and no inode of theirs was read.
    assert_eq!(report.looked_at, 5);
    assert!((1000..6100).contains(&report.searched), "{report:?}");
    assert!(nodes < 60, "{nodes} nodes were read");
}

/// Content with other borders of chunks, and content that is in no chunk.
#[test]
fn equal_bytes_are_equal_however_they_lie() {
    let machine = Machine::new(3);
    let system = machine.open();
    machine.run(async {
        let bytes = pattern(3 << 20, 1);
        let mut files = Vec::new();
        for name in ["whole", "pieces", "dirty"] {
            files.push(create(&system, FileId::ROOT, name, Kind::Regular).await.file);
        }
        system.write(files[0], 0, &bytes, false).await.unwrap();
        system.sync_all().await.unwrap();
        // Each sync ends a chunk.
        for (number, piece) in bytes.chunks(100_000).enumerate() {
            system.write(files[1], number as u64 * 100_000, piece, false).await.unwrap();
            system.sync_all().await.unwrap();
        }
        system.write(files[2], 0, &bytes, false).await.unwrap();
        let reads = || system.counters.read_bytes.value();
        let node = Node::live;
        for (before, after) in [(0, 1), (1, 2), (2, 0)] {
            let (told, _) = compare_as(&system, node(files[before]), node(files[after]), (true, MEMORY)).await;
            assert_eq!(told, Told::new(), "{before} {after}");
        }
        assert!(reads() > 0);
        // Of the same chunks nothing is read.
        let before = reads();
        system.batch_copy(node(files[0]), FileId::ROOT, b"copy", &COPY).await.unwrap();
        let copy = find(&system, "copy").await.unwrap();
        assert_eq!(compare_as(&system, node(files[0]), copy, (true, MEMORY)).await.0, Told::new());
        assert_eq!(reads(), before);
        // And where a byte differs, little.
        system.write(copy.file, 2 << 20, b"!", false).await.unwrap();
        let told = compare_as(&system, node(files[0]), copy, (true, MEMORY)).await.0;
        assert_eq!(told[""], Ok((true, true, vec![Aspect::Content])));
        assert!(reads() - before < 1 << 20, "{}", reads() - before);
        // Zeroes are the same as a hole.
        let sparse = create(&system, FileId::ROOT, "sparse", Kind::Regular).await.file;
        let zeroes = create(&system, FileId::ROOT, "zeroes", Kind::Regular).await.file;
        let size = AttributeChange { size: Some(300_000), ..AttributeChange::default() };
        system.set_attributes(sparse, &size).await.unwrap();
        system.write(zeroes, 0, &vec![0; 300_000], false).await.unwrap();
        system.commit().await.unwrap();
        assert_eq!(compare_as(&system, node(sparse), node(zeroes), (true, MEMORY)).await.0, Told::new());
    });
}

/// Directories of more names than are listed at a time: as they are cut, and as other entries come between.
#[test]
fn large_directories_are_walked_side_by_side() {
    let machine = Machine::new(4);
    let system = machine.open();
    machine.run(async {
        fill(&system, 3).await;
        let source = find(&system, "d1").await.unwrap();
        for number in 1000..5000 {
            create(&system, source.file, &format!("file {number}"), Kind::Regular).await;
        }
        system.batch_copy(source, FileId::ROOT, b"copy", &COPY).await.unwrap();
        let copy = find(&system, "copy").await.unwrap();
        for number in (0..5000).step_by(7) {
            let (name, other) = (format!("file {number}"), format!("other {number}"));
            let mode = RenameMode::Replace;
            system.rename(copy.file, name.as_bytes(), copy.file, other.as_bytes(), mode).await.unwrap();
        }
        let told = compare(&system, source, copy).await;
        assert_eq!(told.len(), 2 * 715);
        assert!(told.values().all(|what| matches!(what, Ok((was, is, _)) if was != is)));
        // Of two states of one directory too, of which so much differs that it is not looked for.
        let before = Node { view: system.find_snapshot(b"before").unwrap().view, file: source.file };
        for memory in [MEMORY, 0] {
            let (told, report) = compare_as(&system, before, source, (false, memory)).await;
            assert_eq!((told.len(), report.looked_at), (4000, 1001 - u64::from(memory > 0) * 1000), "{memory}");
        }
        for number in 0..1000 {
            let node = find(&system, &format!("d1/file {number}")).await.unwrap();
            system.write(node.file, 0, b"changed", false).await.unwrap();
        }
        assert_eq!(compare(&system, before, source).await.len(), 5000);
    });
}

/// A leaf of a catalog or of a directory that has rotted.
#[test]
fn what_cannot_be_read_is_told_and_the_rest_goes_on() {
    for is_catalog in [false, true] {
        let machine = Machine::new(5);
        let system = machine.open();
        let mut copy = Node::live(FileId::ROOT);
        machine.run(async {
            fill(&system, 3).await;
            let source = find(&system, "d1").await.unwrap();
            system.batch_copy(source, FileId::ROOT, b"copy", &COPY).await.unwrap();
            copy = find(&system, "copy").await.unwrap();
            for number in 0..50 {
                let changed = find(&system, &format!("d1/file {number}")).await.unwrap();
                system.write(changed.file, 0, b"changed", false).await.unwrap();
            }
            system.snapshot("after").await.unwrap();
        });
        let tree = if is_catalog {
            system.roots.lock().catalog.clone()
        } else {
            let inode = machine.run(system.inode(copy)).unwrap();
            let state = inode.state.lock();
            state.base.tree.clone()
        };
        // The last one first, and so those of the copy.
        let mut leaves = Vec::new();
        let mut visit = |address: &_, level| {
            leaves.extend((level == 0).then_some(*address));
            true
        };
        machine.run(system.trees.walk(&tree, &mut visit, &mut |_, _| Ok(()))).unwrap();
        let (path, at) = chunk_place(&machine, &leaves[leaves.len() / 8]);
        machine.run(system.close()).unwrap();
        drop(system);
        machine.disk.flip_bit(&path, at + 80, 3);
        let system = machine.open();
        machine.run(async {
            let source = find(&system, "d1").await.unwrap();
            let told = compare_as(&system, source, copy, (true, MEMORY)).await.0;
            let lost = told.values().filter(|what| what.is_err()).count();
            // All files of a leaf of the catalog; a part of a directory is told as one.
            assert!(
                if is_catalog { (10..100).contains(&lost) } else { lost == 1 },
                "{is_catalog} {} {path} {at}: {told:?}",
                leaves.len()
            );
            let rest: Vec<_> = told.into_iter().filter(|(_, what)| what.is_ok()).collect();
            assert!((30..50).contains(&rest.len()) || is_catalog && rest.len() == 50, "{is_catalog}: {rest:?}");
            let changed = Ok((true, true, vec![Aspect::Content]));
            assert!(rest.iter().all(|(_, what)| *what == changed));
            let [before, after] = ["before", "after"].map(|name| system.find_snapshot(name.as_bytes()).unwrap());
            let told = compare_as(&system, before, after, (true, MEMORY)).await.0;
            assert_eq!(told.values().filter(|what| **what == changed).count(), 50);
            assert!(told.values().any(Result::is_err));
        });
    }
}
