//! Walks and attributes of many, against one look after the other.

use std::sync::Arc;

use base::id::FileId;

use super::content::pattern;
use super::{Machine, chunk_place, create, find};
use crate::attributes::AttributeChange;
use crate::format::{Change, Entry, Root};
use crate::system::{SNAPSHOTS, Transaction};
use crate::{Attributes, FileError, FileSystem, Kind, Node, Options, RenameMode};

/// What a walk tells, or what went wrong at a path.
type Told = Vec<(String, Result<(Node, Attributes), String>)>;

fn text(path: &[u8]) -> String {
    String::from_utf8(path.to_vec()).unwrap()
}

async fn walk(system: &FileSystem, root: Node) -> Told {
    let mut told = Told::new();
    let mut tell = |walked: Result<crate::Walked<'_>, (&[u8], FileError)>| {
        told.push(match walked {
            Ok(walked) => (text(walked.path), Ok((walked.node, walked.attributes.clone()))),
            Err((path, error)) => (text(path), Err(error.to_string())),
        });
        true
    };
    system.batch_walk(root, &mut tell).await.unwrap();
    told
}

/// The same by listings and looks.
async fn look(system: &FileSystem, node: Node, path: String, told: &mut Told) {
    let attributes = match system.attributes(node).await {
        Ok(attributes) => attributes,
        Err(error) => return told.push((path, Err(error.to_string()))),
    };
    let kind = attributes.kind;
    told.push((path.clone(), Ok((node, attributes))));
    if kind != Kind::Directory {
        return;
    }
    let mut after = 0;
    loop {
        let entries = system.read_directory(node, after, 7).await.unwrap();
        let Some(last) = entries.last() else { return };
        after = last.cookie;
        for entry in entries {
            let name = text(&entry.name);
            let path = if path.is_empty() { name } else { format!("{path}/{name}") };
            Box::pin(look(system, entry.node, path, told)).await;
        }
    }
}

async fn expect_same(system: &FileSystem, root: Node) -> usize {
    let mut looked = Told::new();
    look(system, root, String::new(), &mut looked).await;
    let walked = walk(system, root).await;
    assert_eq!(walked, looked);
    let nodes: Vec<Node> = looked.iter().rev().map(|(_, found)| found.as_ref().unwrap().0).collect();
    let stats = system.batch_stat(&nodes).await;
    for ((_, found), stat) in looked.iter().rev().zip(stats) {
        assert_eq!(stat.unwrap(), found.as_ref().unwrap().1);
    }
    expect_found(system, root, &looked).await;
    looked.len()
}

/// One lookup after the other.
async fn look_up(system: &FileSystem, root: Node, path: &str) -> Result<(Node, Attributes), String> {
    let attributes = system.attributes(root).await.map_err(|error| error.to_string())?;
    let mut found = (root, attributes);
    for name in path.split('/').filter(|_| !path.is_empty()) {
        found = system.lookup(found.0, name.as_bytes()).await.map_err(|error| error.to_string())?;
    }
    Ok(found)
}

/// A list of paths, some of which lead nowhere and some of which are in it twice, is found as lookups find them.
async fn expect_found(system: &FileSystem, root: Node, told: &Told) {
    let below = |path: &str, name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
    let mut paths: Vec<String> = told.iter().map(|(path, _)| path.clone()).collect();
    paths.push(".snapshots/first".to_owned());
    paths
        .extend(told.iter().step_by(3).flat_map(|(path, _)| [below(path, "n7"), below(path, "gone/n7"), path.clone()]));
    // In an order that is neither that of a tree nor that of the names.
    paths.sort_by_key(|path| path.bytes().fold(7_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into())));
    let found = system.batch_find(root, &paths).await;
    assert_eq!(found.len(), paths.len());
    for (path, found) in paths.iter().zip(found) {
        assert_eq!(found.map_err(|error| error.to_string()), look_up(system, root, path).await, "{path:?}");
    }
}

/// A random history of names and attributes, with commits, snapshots and clones in between.
#[test]
fn a_walk_tells_what_listings_and_looks_tell() {
    for seed in 0..30 {
        let options = Options { inodes_max: if seed % 2 == 0 { 16 } else { 100_000 }, ..Options::default() };
        let machine = Machine::with(seed, 1 << 30, options);
        let mut system = machine.open();
        let below = |bound: u64| machine.world.below(bound);
        let mut directories = vec![FileId::ROOT];
        for round in 0..6 {
            machine.run(async {
                for step in 0..60 {
                    let parent = directories[below(directories.len() as u64) as usize];
                    let name = format!("n{}", below(40));
                    let other = format!("n{}", below(40));
                    // Some find no name, or one that is there.
                    match below(8) {
                        0 => {
                            let new = super::new(Kind::Directory);
                            let made = system.create_file(parent, name.as_bytes(), &new).await;
                            directories.extend(made.map(|made| made.file));
                        }
                        1..4 => {
                            let made = system.create_file(parent, name.as_bytes(), &super::new(Kind::Regular)).await;
                            if let Ok(made) = made {
                                let bytes = below(3000) as usize;
                                system.write(made.file, below(5000), &pattern(bytes, step), false).await.unwrap();
                            }
                        }
                        4 => drop(system.remove_file(parent, name.as_bytes()).await),
                        5 => {
                            if let Ok((node, _)) = system.lookup(Node::live(parent), name.as_bytes()).await {
                                drop(system.link(node.file, FileId::ROOT, other.as_bytes()).await);
                            }
                        }
                        6 => {
                            let to = directories[below(directories.len() as u64) as usize];
                            let mode = RenameMode::Replace;
                            drop(system.rename(parent, name.as_bytes(), to, other.as_bytes(), mode).await);
                        }
                        _ => {
                            let change = AttributeChange { mode: Some(step as u32), ..AttributeChange::default() };
                            drop(system.set_attributes(parent, &change).await);
                        }
                    }
                }
                match round {
                    1 => drop(system.snapshot("first").await.unwrap()),
                    3 => {
                        let source = Node::live(directories[below(directories.len() as u64) as usize]);
                        let made = system.clone_tree(source, FileId::ROOT, b"clone").await;
                        directories.extend(made.map(|made| made.file));
                    }
                    4 => drop(system.snapshot("second").await.unwrap()),
                    _ => {}
                }
                expect_same(&system, Node::live(FileId::ROOT)).await;
                system.sync_all().await.unwrap();
                expect_same(&system, Node::live(FileId::ROOT)).await;
            });
            if round % 2 == 0 {
                machine.run(system.commit()).unwrap();
            }
            if round % 3 == 1 {
                system = machine.power_cycle(system);
            }
            let told = machine.run(async {
                for directory in &directories {
                    if system.attributes(Node::live(*directory)).await.is_ok() {
                        expect_same(&system, Node::live(*directory)).await;
                    }
                }
                expect_same(&system, Node::live(FileId::ROOT)).await + expect_same(&system, Node::live(SNAPSHOTS)).await
            });
            assert!(told > 5, "seed {seed}: {told}");
        }
    }
}

/// Directories of so many files each.
async fn make(system: &FileSystem, directories: u64, files: u64) {
    for directory in 0..directories {
        let made = create(system, FileId::ROOT, &format!("d{directory}"), Kind::Directory).await.file;
        for file in 0..files {
            create(system, made, &format!("file {file}"), Kind::Regular).await;
        }
    }
    system.sync_all().await.unwrap();
    system.commit().await.unwrap();
}

/// Three directories of so many files each, in a machine that has nothing of them in memory.
fn made_before(seed: u64, files: u64) -> (Machine, Arc<FileSystem>) {
    let mut machine = Machine::new(seed);
    let system = machine.open();
    machine.run(make(&system, 3, files));
    machine.run(system.close()).unwrap();
    drop(system);
    machine.options.inodes_max = 100_000;
    let system = machine.open();
    (machine, system)
}

/// Most nodes of trees were read ahead, and only directories are in the table. Gives how many nodes were read.
fn expect_read_ahead(system: &FileSystem) -> u64 {
    assert!(system.counters.inode_loads.value() <= 4 && system.table.count() <= 4, "directories only");
    let store = system.store.counters();
    let (missed, ahead) = (store.cache_metadata_misses.value(), store.prefetched_chunks.value());
    assert!(ahead > 5 * missed, "{missed} of {} nodes were waited for one by one", missed + ahead);
    missed + ahead
}

#[test]
fn a_walk_reads_each_node_once_and_leaves_the_table_alone() {
    const FILES: u64 = 1500;
    let (machine, system) = made_before(1, FILES);
    let told = machine.run(walk(&system, Node::live(FileId::ROOT)));
    assert_eq!(told.len() as u64, 1 + 3 + 3 * FILES);
    assert_eq!(system.counters.batch_stats.value(), 3 * (FILES + 1));
    let nodes = expect_read_ahead(&system);
    // Warm, nothing is read.
    machine.run(walk(&system, Node::live(FileId::ROOT)));
    assert_eq!(expect_read_ahead(&system), nodes);
}

#[test]
fn a_list_reads_each_node_once_and_leaves_the_table_alone() {
    const FILES: u64 = 1500;
    let (machine, system) = made_before(7, FILES);
    let paths = |directory| (0..FILES).rev().map(move |file| format!("d{directory}/file {file}"));
    let paths: Vec<String> = (0..3).flat_map(paths).collect();
    let found = machine.run(system.batch_find(Node::live(FileId::ROOT), &paths));
    assert!(found.len() as u64 == 3 * FILES && found.iter().all(Result::is_ok));
    assert_eq!(system.counters.batch_stats.value(), 3 * FILES);
    let nodes = expect_read_ahead(&system);
    machine.run(system.batch_find(Node::live(FileId::ROOT), &paths));
    assert_eq!(expect_read_ahead(&system), nodes);
}

#[test]
fn who_is_told_enough_ends_the_walk() {
    let machine = Machine::new(2);
    let system = machine.open();
    machine.run(async {
        make(&system, 3, 10).await;
        for most in 1..34 {
            let mut count = 0;
            let mut tell = |_: Result<crate::Walked<'_>, (&[u8], FileError)>| {
                count += 1;
                count < most
            };
            system.batch_walk(Node::live(FileId::ROOT), &mut tell).await.unwrap();
            assert_eq!(count, most);
        }
    });
}

#[test]
fn of_deep_trees_little_is_kept() {
    const DEPTH: u64 = 60;
    let machine = Machine::new(3);
    let system = machine.open();
    machine.run(async {
        let mut at = FileId::ROOT;
        for _ in 0..DEPTH {
            for file in 0..400 {
                create(&system, at, &format!("f{file}"), Kind::Regular).await;
            }
            at = create(&system, at, "deeper", Kind::Directory).await.file;
        }
        assert_eq!(expect_same(&system, Node::live(FileId::ROOT)).await as u64, 1 + DEPTH * 401);
    });
}

/// Three directories of 1000 files, of which `d1` has a leaf that cannot be read.
pub(super) fn with_damaged_leaf(machine: &Machine) -> (Arc<FileSystem>, Node) {
    let system = machine.open();
    let (directory, leaf) = machine.run(async {
        make(&system, 3, 1000).await;
        let directory = find(&system, "d1").await.unwrap();
        let inode = system.inode(directory).await.unwrap();
        let tree = inode.state.lock().base.tree.clone();
        let mut leaves = Vec::new();
        let mut visit = |address: &_, level| {
            leaves.extend((level == 0).then_some(*address));
            true
        };
        system.trees.walk(&tree, &mut visit, &mut |_, _| Ok(())).await.unwrap();
        assert!(matches!(tree, Root::Node { .. }) && leaves.len() > 2);
        (directory, leaves[1])
    });
    machine.run(system.close()).unwrap();
    drop(system);
    let (path, at) = chunk_place(machine, &leaf);
    machine.disk.flip_bit(&path, at + 80, 3);
    (machine.open(), directory)
}

#[test]
fn a_damaged_leaf_of_a_directory_is_told_of_and_the_rest_goes_on() {
    let machine = Machine::new(4);
    let (system, directory) = with_damaged_leaf(&machine);
    let told = machine.run(walk(&system, Node::live(FileId::ROOT)));
    let failed: Vec<_> = told.iter().filter(|(_, found)| found.is_err()).collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0].0, "d1");
    assert!((2600..3004).contains(&(told.len() - 1)), "{}", told.len());
    assert_eq!(machine.run(walk(&system, directory)).len(), told.len() - 2 * 1001 - 1);
}

#[test]
fn a_damaged_leaf_of_the_catalog_fails_its_files_alone() {
    let machine = Machine::new(5);
    let system = machine.open();
    let leaf = machine.run(async {
        make(&system, 1, 1000).await;
        let catalog = system.roots.lock().catalog.clone();
        let mut leaves = Vec::new();
        let mut visit = |address: &_, level| {
            leaves.extend((level == 0).then_some(*address));
            true
        };
        system.trees.walk(&catalog, &mut visit, &mut |_, _| Ok(())).await.unwrap();
        leaves[leaves.len() / 2]
    });
    machine.run(system.close()).unwrap();
    drop(system);
    let (path, at) = chunk_place(&machine, &leaf);
    machine.disk.flip_bit(&path, at + 80, 3);
    let system = machine.open();
    let told = machine.run(walk(&system, Node::live(FileId::ROOT)));
    assert_eq!(told.len(), 1002);
    let failed = told.iter().filter(|(_, found)| found.is_err()).count();
    assert!((10..400).contains(&failed), "{failed}");
    let mut looked = Told::new();
    machine.run(look(&system, Node::live(FileId::ROOT), String::new(), &mut looked));
    assert_eq!(told, looked);
}

#[test]
fn a_directory_below_itself_is_told_of_and_not_entered() {
    let machine = Machine::new(6);
    let system = machine.open();
    machine.run(async {
        let outer = create(&system, FileId::ROOT, "outer", Kind::Directory).await.file;
        let inner = create(&system, outer, "inner", Kind::Directory).await.file;
        let inode = system.live(inner).await.unwrap();
        let cookie = system.free_cookie(&inode, b"outer").await.unwrap();
        let mut transaction = Transaction::begin(&system);
        let entry = Entry { file: outer, kind: Kind::Directory, name: (*b"outer").into() };
        transaction.record(&inode, &mut inode.state.lock(), Change::Insert { cookie, entry });
        transaction.log();
        let told = walk(&system, Node::live(FileId::ROOT)).await;
        let paths: Vec<_> = told.iter().map(|(path, found)| (path.as_str(), found.is_ok())).collect();
        assert_eq!(
            paths,
            [
                ("", true),
                ("outer", true),
                ("outer/inner", true),
                ("outer/inner/outer", true),
                ("outer/inner/outer", false)
            ]
        );
    });
}

/// What is there all the time is told of once, whatever comes and goes beside the walk, and nothing is told of as an error.
#[test]
fn changes_beside_a_walk_are_seen_or_not_and_no_error() {
    for seed in 0..20 {
        let machine = Machine::with(seed, 1 << 30, Options { inodes_max: 16, ..Options::default() });
        let system = machine.open();
        machine.run(make(&system, 3, 600));
        let system = machine.power_cycle(system);
        let changes = async {
            for step in 0..60_u64 {
                let directory = find(&system, &format!("d{}", step % 3)).await.unwrap().file;
                // Those that go have numbers that three divides.
                let (old, new) = (format!("file {}", 3 * (step / 3)), format!("new {step}"));
                match step % 2 {
                    0 => system.remove_file(directory, old.as_bytes()).await.unwrap(),
                    _ => {
                        let (old, new) = (old.as_bytes(), new.as_bytes());
                        system.rename(directory, old, directory, new, RenameMode::Replace).await.unwrap();
                    }
                }
                create(&system, directory, &format!("more {step}"), Kind::Regular).await;
                if step % 16 == 15 {
                    system.commit().await.unwrap();
                }
            }
        };
        let walks = async {
            let mut told = Vec::new();
            for _ in 0..4 {
                told.push(walk(&system, Node::live(FileId::ROOT)).await);
            }
            told
        };
        let told = machine.run(both(changes, walks));
        for told in told {
            for (path, found) in &told {
                assert!(found.is_ok(), "seed {seed}: {path}: {found:?}");
            }
            let stay = told.iter().filter(|(path, _)| {
                let number = path.split_once("file ").and_then(|(_, number)| number.parse::<u64>().ok());
                number.is_some_and(|number| number % 3 != 0)
            });
            assert_eq!(stay.count(), 3 * 400, "seed {seed}");
        }
        machine.run(expect_same(&system, Node::live(FileId::ROOT)));
    }
}

async fn both<T>(side: impl Future<Output = ()>, main: impl Future<Output = T>) -> T {
    let side = async {
        side.await;
        None
    };
    let main = async { Some(main.await) };
    let both: [std::pin::Pin<Box<dyn Future<Output = Option<T>>>>; 2] = [Box::pin(side), Box::pin(main)];
    platform::task::all(both).await.into_iter().flatten().next().expect("one gives something")
}
