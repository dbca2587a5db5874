//! Each inconsistency of trees has its number, is told with a place, and is mended: with every checksum and address right, as an error of
//! ours would leave it.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::codec::Reader;
use base::id::{ChunkAddress, FileId};
use store::{Class, Problem, Remedy};

use super::{Machine, chunk_place, create, find, list, read_all};
use crate::directory::encode_entry;
use crate::format::{BranchValue, Entry, InodeValue, Root, Roots, SnapshotValue};
use crate::namespace::Removal;
use crate::tree::Edits;
use crate::{BatchCopy, FileSystem, Kind, Node, Reclaim};

/// What the file system has that is lied about: `/directory/inner` and `/directory/file`.
struct Known {
    directory: FileId,
    inner: FileId,
    file: FileId,
    /// Of the name `file`.
    cookie: u64,
}

const CONTENT: &[u8] = b"content that is there after each repair";
/// All that one edit can make, and that costs nothing to mend.
const CODES: [&str; 9] =
    ["HF1003", "HF1009", "HF1012", "HF1013", "HF1014", "HF1014, of none", "HF1016", "HF1017", "HF1019"];

fn machine() -> (Machine, Known) {
    let machine = Machine::new(3);
    let system = machine.open();
    let known = machine.run(async {
        let directory = create(&system, FileId::ROOT, "directory", Kind::Directory).await.file;
        let inner = create(&system, directory, "inner", Kind::Directory).await.file;
        let file = create(&system, directory, "file", Kind::Regular).await.file;
        system.write(file, 0, CONTENT, false).await.unwrap();
        let listed = system.read_directory(Node::live(directory), 0, 10).await.unwrap();
        let cookie = listed.iter().find(|entry| *entry.name == *b"file").unwrap().cookie;
        system.close().await.unwrap();
        Known { directory, inner, file, cookie }
    });
    drop(system);
    machine.world.restart();
    (machine, known)
}

/// The root of a tree whose node is none.
async fn no_tree(system: &FileSystem) -> Root {
    Root::Node { address: system.store.put(Class::Metadata, b"no tree").await.unwrap(), level: 0 }
}

async fn put(system: &FileSystem, tree: &mut Root, key: u64, value: Option<Vec<u8>>) {
    *tree = system.trees.update(tree, Edits::from([(key, value)]), 0).await.unwrap();
}

async fn change(system: &FileSystem, catalog: &mut Root, file: FileId, lie: impl AsyncFnOnce(&mut InodeValue)) {
    let mut inode = system.load(catalog, file).await.unwrap().unwrap();
    lie(&mut inode).await;
    put(system, catalog, file.number, Some(inode.encode())).await;
}

/// Opens a file system whose roots are what `lie` makes of them.
fn lying(machine: &Machine, lie: impl AsyncFnOnce(&FileSystem, &mut Roots)) -> Arc<FileSystem> {
    let system = machine.open();
    machine.run(async {
        let mut roots = (**system.roots.lock()).clone();
        lie(&system, &mut roots).await;
        system.store.commit(system.store.moment(), &roots.encode(), system.store.last_logged()).await.unwrap();
    });
    machine.power_cycle(system)
}

/// Tells the lie that `code` is about.
async fn tell(code: &str, system: &FileSystem, roots: &mut Roots, known: &Known) {
    let entry = Entry { file: known.file, kind: Kind::Regular, name: (*b"file").into() };
    match code {
        "HF1003" => roots.next_counter = known.file.counter(),
        "HF1009" => change(system, &mut roots.catalog, known.file, async |inode| inode.attributes.allocated += 1).await,
        "HF1012" => {
            let elsewhere = known.cookie ^ 1 << 50;
            assert!(!system.cookies(&entry.name).contains(&elsewhere));
            let lie = async |inode: &mut InodeValue| {
                put(system, &mut inode.base.tree, known.cookie, None).await;
                put(system, &mut inode.base.tree, elsewhere, Some(encode_entry(&entry, 0))).await;
            };
            change(system, &mut roots.catalog, known.directory, lie).await;
        }
        "HF1013" => change(system, &mut roots.catalog, known.directory, async |inode| inode.attributes.size += 1).await,
        // One that nobody lists.
        "HF1014" => {
            let mut unlinked = system.load(&roots.catalog, known.file).await.unwrap().unwrap();
            unlinked.attributes.links = 0;
            let file = FileId::new(known.file.node(), roots.next_counter).unwrap();
            roots.next_counter += 1;
            put(system, &mut roots.catalog, file.number, Some(unlinked.encode())).await;
        }
        // A list that is none.
        "HF1014, of none" => roots.orphans = no_tree(system).await,
        "HF1016" => change(system, &mut roots.catalog, known.file, async |inode| inode.attributes.links += 1).await,
        "HF1017" => {
            change(system, &mut roots.catalog, known.inner, async |inode| inode.attributes.parent = known.inner).await
        }
        "HF1019" => {
            let entry = Entry { kind: Kind::Fifo, ..entry };
            let lie = async |inode: &mut InodeValue| {
                put(system, &mut inode.base.tree, known.cookie, Some(encode_entry(&entry, 0))).await
            };
            change(system, &mut roots.catalog, known.directory, lie).await;
        }
        _ => panic!("nothing is about {code}"),
    }
}

#[test]
fn each_inconsistency_has_its_number_and_is_mended() {
    for code in CODES {
        let (machine, known) = machine();
        let system = lying(&machine, async |system, roots| tell(code, system, roots, &known).await);
        let report = machine.run(system.check_files(&|_| {})).unwrap();
        assert!(!report.problems.is_empty(), "{code} is not found");
        for problem in &report.problems {
            assert_eq!(problem.code, &code[..6], "{problem:?}");
            assert!(!problem.path.is_empty() && problem.expected != problem.found, "{problem:?}");
            assert!(problem.remedy.is_some(), "{problem:?}");
        }
        machine.run(system.repair_files(true, (0, 0))).unwrap();
        machine.check(&system);
        let system = machine.power_cycle(system);
        machine.check(&system);
        machine.run(async {
            let file = find(&system, "directory/file").await.unwrap();
            assert_eq!(file, Node::live(known.file), "{code}");
            assert_eq!(read_all(&system, file).await, CONTENT, "{code}");
            assert_eq!(find(&system, "directory/inner").await.unwrap(), Node::live(known.inner), "{code}");
            let new = create(&system, FileId::ROOT, "new", Kind::Regular).await.file;
            assert!(new != known.file && new != known.inner && new != known.directory, "{code}: {new} is given twice");
            system.write(new, 0, b"new", false).await.unwrap();
            system.commit().await.unwrap();
        });
        machine.check(&system);
    }
}

/// Of a copy nothing is missing that nobody is told of: a name that leads nowhere is no file that went meanwhile.
#[test]
fn a_copy_tells_of_a_name_that_leads_nowhere() {
    let (machine, known) = machine();
    let lie = async |system: &FileSystem, roots: &mut Roots| {
        put(system, &mut roots.catalog, known.file.number, None).await;
    };
    let system = lying(&machine, lie);
    machine.run(async {
        let how = BatchCopy { anew: None, tell: &|_, _| true, written: &|_, _| {} };
        let report = system.batch_copy(Node::live(known.directory), FileId::ROOT, b"copy", &how).await.unwrap();
        let failed: Vec<&[u8]> = report.failed.iter().map(|(path, _)| &path[..]).collect();
        assert_eq!((report.files, report.failures, failed), (2, 1, vec![&b"copy/file"[..]]));
        assert!(report.ended.is_none());
        find(&system, "copy/inner").await.unwrap();
    });
}

const GIVES_UP: Option<Remedy> = Some(Remedy::Trees { gives_up: true });
const COSTS_NOTHING: Option<Remedy> = Some(Remedy::Trees { gives_up: false });
/// Part of what is told of [`no_tree`].
const NO_NODE: &str = "tree node in chunk ";

/// A problem. Of what is found it may name a part.
fn problem(
    code: &'static str,
    what: &'static str,
    (path, offset): (String, u64),
    (expected, found): (&str, &str),
    remedy: Option<Remedy>,
) -> Problem {
    Problem { code, what, path, offset, expected: expected.to_owned(), found: found.to_owned(), remedy }
}

fn expect(machine: &Machine, system: &FileSystem, expected: &[Problem]) {
    let report = machine.run(system.check_files(&|_| {})).unwrap();
    assert_eq!(report.remedies, expected.iter().filter_map(|problem| problem.remedy).collect(), "{report:#?}");
    let mut problems = report.problems;
    for (problem, expected) in problems.iter_mut().zip(expected) {
        if problem.found.contains(&expected.found) {
            problem.found.clone_from(&expected.found);
        }
    }
    assert_eq!(problems, expected);
}

/// Finds just this; gives up nothing before somebody says so, and leaves `left` then.
fn expect_mended(
    machine: &Machine,
    system: Arc<FileSystem>,
    problems: &[Problem],
    left: &[Problem],
) -> Arc<FileSystem> {
    expect(machine, &system, problems);
    machine.run(system.repair_files(false, (0, 0))).unwrap();
    let costly: Vec<Problem> = problems.iter().filter(|problem| problem.remedy != COSTS_NOTHING).cloned().collect();
    expect(machine, &system, &costly);
    let done = machine.run(system.repair_files(true, (0, 0))).unwrap();
    assert_eq!(done.is_empty(), !problems.iter().any(|problem| problem.remedy == GIVES_UP), "{done:?}");
    expect(machine, &system, left);
    let system = machine.power_cycle(system);
    expect(machine, &system, left);
    system
}

fn no_root(view: &str) -> Problem {
    let words = ("a root directory", "none that can be read");
    problem("HF1001", "catalog", (format!("{view}/"), 0), words, GIVES_UP)
}

/// A file that lost its name.
fn nameless(path: String, (links, found): (&str, &str), remedy: Option<Remedy>) -> Problem {
    let (expected, found) = (format!("{links} names"), format!("{found} links, 0 names"));
    problem("HF1016", "inode", (path, 0), (&expected, &found), remedy)
}

#[test]
fn a_catalog_that_cannot_be_read_is_told_and_given_up() {
    let (machine, known) = machine();
    let system = lying(&machine, async |system, roots| roots.catalog = no_tree(system).await);
    let unreadable = ("a readable tree", NO_NODE);
    let all = problem("HF1001", "catalog", ("/ from file 0 on".to_owned(), 0), unreadable, GIVES_UP);
    let system = expect_mended(&machine, system, &[all, no_root("")], &[]);
    assert_eq!(machine.run(list(&system, Node::live(FileId::ROOT), 10)), Vec::<String>::new());

    // Only the root is lost: what was in it is found.
    let machine = self::machine().0;
    let system =
        lying(&machine, async |system, roots| put(system, &mut roots.catalog, FileId::ROOT.number, None).await);
    let directory = nameless(format!("/ {}", known.directory), ("3 links, 1", "3"), GIVES_UP);
    let system = expect_mended(&machine, system, &[no_root(""), directory], &[]);
    machine.run(async {
        let file = find(&system, &format!("lost+found/{}/file", known.directory.number)).await.unwrap();
        assert_eq!(read_all(&system, file).await, CONTENT);
    });
}

/// A node with files in its root, and the leaves of its catalog in their order.
fn many() -> (Machine, Vec<FileId>, Vec<ChunkAddress>) {
    let machine = Machine::new(3);
    let system = machine.open();
    let files = machine.run(async {
        let mut files = Vec::new();
        for number in 0..300 {
            let file = create(&system, FileId::ROOT, &format!("f{number}"), Kind::Regular).await.file;
            system.write(file, 0, CONTENT, false).await.unwrap();
            files.push(file);
        }
        system.close().await.unwrap();
        files
    });
    let system = machine.power_cycle(system);
    let leaves = machine.run(async {
        let (catalog, mut leaves) = (system.roots.lock().catalog.clone(), Vec::new());
        let visit = &mut |address: &ChunkAddress, level| {
            leaves.extend((level == 0).then_some(*address));
            level > 0
        };
        system.trees.walk(&catalog, visit, &mut |_, _| Ok(())).await.unwrap();
        // The last was met first.
        leaves.reverse();
        leaves
    });
    drop(system);
    machine.world.restart();
    (machine, files, leaves)
}

/// The stretch that is told is that of the files which nobody can read.
#[test]
fn a_part_of_a_catalog_that_cannot_be_read_is_told_and_given_up() {
    for is_last in [false, true] {
        let (machine, files, leaves) = many();
        let leaf = if is_last { leaves.len() - 1 } else { leaves.len() / 2 };
        let (path, at) = chunk_place(&machine, &leaves[leaf]);
        machine.disk.flip_bit(&path, at + 60, 1);
        let system = machine.open();
        let is_lost = async |file: &FileId| system.attributes(Node::live(*file)).await.is_err();
        let mut lost = Vec::new();
        machine.run(async {
            for (number, file) in files.iter().enumerate() {
                lost.extend(is_lost(file).await.then_some(number));
            }
        });
        let (first, end) = (lost[0], lost[lost.len() - 1] + 1);
        assert!(lost.len() == end - first && lost.len() > 5 && first > 5, "one leaf of several: {lost:?}");
        let upto = files.get(end).map_or("on".to_owned(), |next| format!("to before {}", next.number));
        assert_eq!(upto == "on", is_last);
        let place = (format!("/ from file {} {upto}", files[first].number), 0);
        let mut problems = vec![problem("HF1001", "catalog", place, ("a readable tree", "is damaged"), GIVES_UP)];
        problems.extend(lost.iter().map(|number| {
            let place = (format!("/f{number} ({})", files[*number]), 0);
            let words = ("a file that exists, below the root", "1 names");
            problem("HF1015", "directory entry", place, words, GIVES_UP)
        }));
        let system = expect_mended(&machine, system, &problems, &[]);
        machine.run(async {
            for number in 0..files.len() {
                match find(&system, &format!("f{number}")).await {
                    Ok(file) => assert_eq!(read_all(&system, file).await, CONTENT),
                    Err(_) => assert!(lost.contains(&number), "f{number}"),
                }
            }
        });
    }
}

/// What cannot be read of a file's content is told where it begins; it is noted as lost, and putting it again mends it.
#[test]
fn content_that_cannot_be_read_is_told_and_noted() {
    for (code, offset, found) in [("HF1005", 0, NO_NODE), ("HF1006", 4096, "extent in offset 4096 at byte ")] {
        let (machine, known) = machine();
        let system = lying(&machine, async |system, roots| {
            let lie = async |inode: &mut InodeValue| {
                inode.attributes.size = 5000;
                match code {
                    "HF1005" => inode.base.tree = no_tree(system).await,
                    _ => put(system, &mut inode.base.tree, offset, Some(vec![9; 20])).await,
                }
            };
            change(system, &mut roots.catalog, known.file, lie).await;
        });
        let place = || (format!("/directory/file ({})", known.file), offset);
        let unreadable = problem(code, "content", place(), ("extents that can be read", found), GIVES_UP);
        let absent = ("a chunk of this node", "chunk 0000000000000000, absent");
        let noted = problem("HF1008", "extent", place(), absent, None);
        let system = expect_mended(&machine, system, &[unreadable], &[noted]);
        machine.run(async {
            let file = find(&system, "directory/file").await.unwrap();
            let mut bytes = [0; 5000];
            assert!(system.read(file, offset, &mut bytes).await.is_err(), "{code}");
            if code == "HF1006" {
                let count = system.read(file, 0, &mut bytes[..CONTENT.len()]).await.unwrap();
                assert_eq!(&bytes[..count], CONTENT);
            }
            system.write(known.file, offset, &[7; 5000], false).await.unwrap();
            system.commit().await.unwrap();
            system.read(file, offset, &mut bytes).await.unwrap();
            assert_eq!(bytes, [7; 5000], "{code}");
        });
        machine.check(&system);
    }
}

/// Nor is that made up as extents without number: the file has to go.
#[test]
fn more_lost_content_than_can_be_noted_is_told_and_stays() {
    let (machine, known) = machine();
    let system = lying(&machine, async |system, roots| {
        let lie = async |inode: &mut InodeValue| {
            (inode.attributes.size, inode.base.tree) = (1 << 47, no_tree(system).await);
        };
        change(system, &mut roots.catalog, known.file, lie).await;
    });
    let place = (format!("/directory/file ({})", known.file), 0);
    let lost = [problem("HF1023", "content", place, ("extents that can be read", NO_NODE), None)];
    let system = expect_mended(&machine, system, &lost, &lost);
    machine.run(async {
        system.remove_file(known.directory, b"file").await.unwrap();
        system.commit().await.unwrap();
    });
    machine.check(&system);
}

#[test]
fn a_directory_that_cannot_be_read_is_told_and_what_lay_there_is_found() {
    let (machine, known) = machine();
    let system = lying(&machine, async |system, roots| {
        let lie = async |inode: &mut InodeValue| inode.base.tree = no_tree(system).await;
        change(system, &mut roots.catalog, known.directory, lie).await;
    });
    let place = || (format!("/directory ({})", known.directory), 0);
    let problems = [
        problem("HF1010", "directory tree", place(), ("a readable tree", NO_NODE), GIVES_UP),
        problem("HF1016", "inode", place(), ("2 links, 1 names", "3 links, 1 names"), GIVES_UP),
        nameless(format!("/ {}", known.inner), ("2 links, 1", "2"), GIVES_UP),
        nameless(format!("/ {}", known.file), ("0 links, 0", "1"), GIVES_UP),
    ];
    let system = expect_mended(&machine, system, &problems, &[]);
    machine.run(async {
        let file = find(&system, &format!("lost+found/{}", known.file.number)).await.unwrap();
        assert_eq!(read_all(&system, file).await, CONTENT);
        let inner = find(&system, &format!("lost+found/{}", known.inner.number)).await.unwrap();
        assert_eq!(inner, Node::live(known.inner));
        assert_eq!(list(&system, Node::live(known.directory), 10).await, Vec::<String>::new());
    });
}

/// With `/clone`, of `/directory`, and a snapshot of both.
fn with_clone() -> (Machine, Known, FileId) {
    let (machine, known) = machine();
    let system = machine.open();
    let top = machine.run(async {
        let top = system.clone_tree(Node::live(known.directory), FileId::ROOT, b"clone").await.unwrap().file;
        system.snapshot("snapshot").await.unwrap();
        system.close().await.unwrap();
        top
    });
    drop(system);
    machine.world.restart();
    (machine, known, top)
}

/// Takes the name of a clone out of the root.
async fn unname(system: &FileSystem, catalog: &mut Root, top: FileId) {
    let lie = async |root: &mut InodeValue| {
        let cookie = cookie_of(system, &root.base.tree, top).await;
        put(system, &mut root.base.tree, cookie, None).await;
        root.attributes.size -= 1;
        root.attributes.links -= 1;
    };
    change(system, catalog, FileId::ROOT, lie).await;
}

async fn cookie_of(system: &FileSystem, tree: &Root, file: FileId) -> u64 {
    let (entries, _) = system.trees.scan(tree, 0, 10).await.unwrap();
    let is_it = |bytes: &[u8]| Entry::decode(0, &mut Reader::new(bytes)).unwrap().file == file;
    entries.iter().find(|(_, bytes)| is_it(bytes)).unwrap().0
}

async fn change_clone(system: &FileSystem, roots: &mut Roots, branch: u32, lie: impl AsyncFnOnce(&mut BranchValue)) {
    let bytes = system.trees.get(&roots.branches, branch.into()).await.unwrap().unwrap();
    let mut value = BranchValue::decode(&bytes).unwrap();
    lie(&mut value).await;
    put(system, &mut roots.branches, branch.into(), Some(value.encode())).await;
}

/// The list of clones, or one entry of it: the clone is lost, and its name goes. A snapshot has a list of its own.
#[test]
fn a_list_of_clones_that_cannot_be_read_is_told_and_given_up() {
    for (offset, found) in [(0, NO_NODE), (1, "branch in branch 1 at byte ")] {
        let (machine, known, top) = with_clone();
        assert_eq!(top.branch, 1);
        let mut cookie = 0;
        let system = lying(&machine, async |system, roots| {
            let root = system.load(&roots.catalog, FileId::ROOT).await.unwrap().unwrap();
            cookie = cookie_of(system, &root.base.tree, top).await;
            match offset {
                0 => roots.branches = no_tree(system).await,
                branch => put(system, &mut roots.branches, branch, Some(vec![1, 2, 3])).await,
            }
        });
        let root = format!("/ ({})", FileId::ROOT);
        let (list, entry) = (("a list that can be read", found), ("a clone that exists", &*top.to_string()));
        let problems = [
            problem("HF1025", "list of clones", ("/".to_owned(), offset), list, GIVES_UP),
            problem("HF1015", "directory entry", (root.clone(), cookie), entry, GIVES_UP),
            problem("HF1016", "inode", (root, 0), ("3 links, 1 names", "4 links, 1 names"), COSTS_NOTHING),
        ];
        let system = expect_mended(&machine, system, &problems, &[]);
        machine.run(async {
            assert!(find(&system, "clone").await.is_err());
            for path in ["directory/file", ".snapshots/snapshot/clone/file"] {
                assert_eq!(read_all(&system, find(&system, path).await.unwrap()).await, CONTENT, "{path}");
            }
            let source = Node::live(known.directory);
            system.clone_tree(source, FileId::ROOT, b"another").await.unwrap();
            system.commit().await.unwrap();
        });
        machine.check(&system);
    }
}

/// A list of clones of a snapshot goes with that.
#[test]
fn what_is_wrong_with_the_clones_of_a_snapshot_has_no_remedy() {
    for code in ["HF1025", "HF1026"] {
        let (machine, _, top) = with_clone();
        let system = lying(&machine, async |system, roots| {
            let (view, bytes) = system.trees.scan(&roots.snapshots, 0, 10).await.unwrap().0.remove(0);
            let mut snapshot = SnapshotValue::decode(&bytes).unwrap();
            match code {
                "HF1025" => snapshot.branches = no_tree(system).await,
                _ => unname(system, &mut snapshot.catalog, top).await,
            }
            put(system, &mut roots.snapshots, view, Some(snapshot.encode())).await;
        });
        let report = machine.run(system.check_files(&|_| {})).unwrap();
        assert_eq!(report.remedies, BTreeSet::new(), "{report:#?}");
        let first = &report.problems[0];
        assert!(first.code == code && first.path.starts_with("/.snapshots/snapshot/"), "{report:#?}");
        assert_eq!(first.path.ends_with(" (clone 1)"), code == "HF1026", "{first}");
        assert!(report.problems.iter().all(|problem| problem.path.starts_with("/.snapshots/snapshot/")));
        assert_eq!(machine.run(system.repair_files(true, (0, 0))).unwrap(), Vec::<String>::new());
        expect(&machine, &system, &report.problems);
        machine.run(system.delete_snapshot("snapshot")).unwrap();
        machine.check(&system);
        assert_eq!(machine.run(async { find(&system, "clone/file").await.unwrap().file.branch }), top.branch);
    }
}

fn without_name(branch: u32, remedy: Option<Remedy>) -> Problem {
    problem("HF1026", "clone", (format!("/ (clone {branch})"), 0), ("a name that leads to it", "none"), remedy)
}

/// Where all names can be read it costs nothing to give a clone another one.
#[test]
fn a_clone_without_a_name_is_told_and_gets_one() {
    let (machine, _, top) = with_clone();
    let system = lying(&machine, async |system, roots| unname(system, &mut roots.catalog, top).await);
    let problems = [without_name(top.branch, COSTS_NOTHING)];
    expect(&machine, &system, &problems);
    let done = machine.run(system.repair_files(false, (0, 0))).unwrap();
    assert!(!done.is_empty());
    machine.check(&system);
    let system = machine.power_cycle(system);
    machine.check(&system);
    machine.run(async {
        assert_eq!(find(&system, &format!("lost+found/{}", top.number)).await.unwrap(), Node::live(top));
        let file = find(&system, &format!("lost+found/{}/file", top.number)).await.unwrap();
        assert_eq!(read_all(&system, file).await, CONTENT);
    });
}

/// Its name may be in the clone that cannot be read: it gets another one only if that is given up.
#[test]
fn a_clone_whose_name_may_be_in_another_gets_one_only_if_that_is_given_up() {
    let (machine, known, outer) = with_clone();
    let system = machine.open();
    let inner = machine.run(async {
        let inner = system.clone_tree(Node::live(known.directory), outer, b"nested").await.unwrap().file;
        system.commit().await.unwrap();
        // What lies beside the clones goes.
        system.reclaim(&Reclaim::default()).await.unwrap();
        system.close().await.unwrap();
        inner
    });
    drop(system);
    machine.world.restart();
    let system = lying(&machine, async |system, roots| {
        let lie = async |value: &mut BranchValue| {
            assert!(value.is_pruned());
            let lie = async |inode: &mut InodeValue| inode.base.tree = no_tree(system).await;
            change(system, &mut value.catalog, outer, lie).await;
        };
        change_clone(system, roots, outer.branch, lie).await;
    });
    let view = format!("/…/clone (clone {})", outer.branch);
    let place = || (format!("{view}/ ({outer})"), 0);
    let lost = |file: FileId| format!("{view}/ {}", outer.beside(file.number));
    let problems = [
        problem("HF1010", "directory tree", place(), ("a readable tree", NO_NODE), GIVES_UP),
        problem("HF1016", "inode", place(), ("2 links, 1 names", "4 links, 1 names"), GIVES_UP),
        nameless(lost(known.inner), ("2 links, 1", "2"), GIVES_UP),
        nameless(lost(known.file), ("0 links, 0", "1"), GIVES_UP),
        without_name(inner.branch, GIVES_UP),
    ];
    let system = expect_mended(&machine, system, &problems, &[]);
    machine.run(async {
        let found = format!("lost+found/{}/file", inner.number);
        for path in [&found, &format!("clone/lost+found/{}", known.file.number)] {
            assert_eq!(read_all(&system, find(&system, path).await.unwrap()).await, CONTENT, "{path}");
        }
    });
}

/// The directory that a clone is, beside which nobody has let go yet of what it does not lead to.
#[test]
fn a_clone_whose_directory_is_lost_is_told_and_made_anew() {
    let (machine, known, top) = with_clone();
    let system = lying(&machine, async |system, roots| {
        let lie = async |value: &mut BranchValue| put(system, &mut value.catalog, top.number, None).await;
        change_clone(system, roots, top.branch, lie).await;
    });
    let view = format!("/…/clone (clone {})", top.branch);
    let of_clone = |file: FileId| top.beside(file.number);
    let words = ("the directory that the clone is", "none that can be read");
    // I-112: what else is told may lie beside the clone.
    let problems = [
        problem(
            "HF1016",
            "inode",
            (format!("{view}/ ({})", of_clone(FileId::ROOT)), 0),
            ("2 links, 1 names", "3 links, 1 names"),
            None,
        ),
        nameless(format!("{view}/ {}", of_clone(known.inner)), ("2 links, 1", "2"), None),
        nameless(format!("{view}/ {}", of_clone(known.file)), ("0 links, 0", "1"), None),
        problem("HF1001", "catalog", (format!("{view}/"), 0), words, GIVES_UP),
    ];
    let system = expect_mended(&machine, system, &problems, &[]);
    machine.run(async {
        let file = find(&system, &format!("clone/{}", known.file.number)).await.unwrap();
        assert_eq!(read_all(&system, file).await, CONTENT);
    });
}

/// A clone that was removed and cannot go, for `lie` is what is left of it.
fn expect_gone(why: impl FnOnce(FileId) -> String, lie: impl AsyncFnOnce(&FileSystem, &mut BranchValue)) {
    let (machine, _, top) = with_clone();
    let system = lying(&machine, async |system, roots| {
        let _not_yet = system.removals.work.lock().await;
        system.remove(FileId::ROOT, b"clone", Removal::Tree).await.unwrap();
        system.commit().await.unwrap();
        roots.clone_from(&system.roots.lock());
        let lie = async |value: &mut BranchValue| {
            assert!(value.is_going());
            lie(system, value).await;
        };
        change_clone(system, roots, top.branch, lie).await;
    });
    let why = why(top);
    let place = (format!("/ (clone {})", top.branch), 0);
    let problems = [problem("HF1001", "catalog", place, ("a clone that goes", &why), GIVES_UP)];
    let system = expect_mended(&machine, system, &problems, &[]);
    assert_eq!(system.branches.lock().len(), 0);
    machine.run(system.reclaim(&Reclaim::default())).unwrap();
    machine.check(&system);
}

/// What has to be read for its removal is lost.
#[test]
fn a_clone_that_cannot_go_is_told_and_goes() {
    let why = |top| format!("its own directory {top} cannot be read");
    expect_gone(why, async |system, value| value.catalog = no_tree(system).await);
}

/// Somebody had a file of it open that was unlinked: it ends with that file, which is lost.
#[test]
fn a_removed_clone_whose_unlinked_file_is_lost_is_told_and_goes() {
    let file = |top: FileId| top.beside(77_777);
    let why = |top| format!("{}, which was unlinked while it was open, cannot be read", file(top));
    expect_gone(why, async |system, value| {
        value.top = 0;
        put(system, &mut value.orphans, 77_777, Some(Vec::new())).await;
    });
}

/// A pass of reclaim needs the list, whether something is in it or not.
#[test]
fn a_clone_whose_list_of_unlinked_files_cannot_be_read_is_told_and_mended() {
    for is_pruned in [false, true] {
        let (machine, _, top) = with_clone();
        if is_pruned {
            let system = machine.open();
            machine.run(async {
                system.reclaim(&Reclaim::default()).await.unwrap();
                system.close().await.unwrap();
            });
            drop(system);
            machine.world.restart();
        }
        let system = lying(&machine, async |system, roots| {
            let lie = async |value: &mut BranchValue| {
                assert_eq!(value.is_pruned(), is_pruned);
                value.orphans = no_tree(system).await;
            };
            change_clone(system, roots, top.branch, lie).await;
        });
        let place = (format!("/ (clone {})", top.branch), 0);
        let remedy = if is_pruned { COSTS_NOTHING } else { GIVES_UP };
        let problems = [problem("HF1014", "list of unlinked files", place, ("a readable tree", NO_NODE), remedy)];
        machine.run(system.reclaim(&Reclaim::default())).unwrap_err();
        let system = expect_mended(&machine, system, &problems, &[]);
        machine.run(async {
            assert_eq!(read_all(&system, find(&system, "clone/file").await.unwrap()).await, CONTENT);
            system.reclaim(&Reclaim::default()).await.unwrap();
            assert_eq!(read_all(&system, find(&system, "clone/file").await.unwrap()).await, CONTENT);
        });
        machine.check(&system);
    }
}

/// Takes the name of a file out of a directory.
async fn unname_file(system: &FileSystem, catalog: &mut Root, directory: FileId, file: FileId) {
    let lie = async |inode: &mut InodeValue| {
        let cookie = cookie_of(system, &inode.base.tree, file).await;
        put(system, &mut inode.base.tree, cookie, None).await;
        inode.attributes.size -= 1;
    };
    change(system, catalog, directory, lie).await;
}

/// A clone may have the name of the directory for what has none.
#[test]
fn what_has_no_name_is_found_beside_a_clone_that_is_called_lost_and_found() {
    let (machine, known) = machine();
    let system = machine.open();
    machine.run(async {
        system.clone_tree(Node::live(known.inner), FileId::ROOT, b"lost+found").await.unwrap();
        system.close().await.unwrap();
    });
    drop(system);
    machine.world.restart();
    let system = lying(&machine, async |system, roots| {
        unname_file(system, &mut roots.catalog, known.directory, known.file).await;
    });
    let problems = [nameless(format!("/ {}", known.file), ("0 links, 0", "1"), COSTS_NOTHING)];
    expect(&machine, &system, &problems);
    machine.run(system.repair_files(false, (0, 0))).unwrap();
    machine.check(&system);
    let system = machine.power_cycle(system);
    machine.check(&system);
    machine.run(async {
        let file = find(&system, &format!("lost+found.1/{}", known.file.number)).await.unwrap();
        assert_eq!(read_all(&system, file).await, CONTENT);
        assert_eq!(list(&system, find(&system, "lost+found").await.unwrap(), 10).await, Vec::<String>::new());
    });
}

/// Whatever the roots say of numbers: the directory for what has no name gets one that no file of the clone has.
#[test]
fn the_directory_for_what_a_clone_lost_takes_no_files_number() {
    let (machine, known, top) = with_clone();
    let system = machine.open();
    let file = machine.run(async {
        let file = create(&system, top, "made in the clone", Kind::Regular).await.file;
        system.write(file, 0, CONTENT, false).await.unwrap();
        system.commit().await.unwrap();
        // What lies beside the clone goes.
        system.reclaim(&Reclaim::default()).await.unwrap();
        system.close().await.unwrap();
        file
    });
    drop(system);
    machine.world.restart();
    let system = lying(&machine, async |system, roots| {
        roots.next_counter = file.counter();
        let lie = async |value: &mut BranchValue| unname_file(system, &mut value.catalog, top, known.file).await;
        change_clone(system, roots, top.branch, lie).await;
    });
    machine.run(system.repair_files(true, (0, 0))).unwrap();
    machine.check(&system);
    machine.run(async {
        for path in ["clone/made in the clone", &format!("clone/lost+found/{}", known.file.number)] {
            assert_eq!(read_all(&system, find(&system, path).await.unwrap()).await, CONTENT, "{path}");
        }
    });
}

/// Only the directory that a clone is has its parent in another branch.
#[test]
fn a_parent_in_another_branch_is_told_and_mended() {
    let (machine, known, top) = with_clone();
    let system = lying(&machine, async |system, roots| {
        change(system, &mut roots.catalog, known.inner, async |inode| inode.attributes.parent = top).await;
    });
    let words = (&*format!("parent {}", known.directory), &*top.to_string());
    let place = (format!("/directory/inner ({})", known.inner), 0);
    expect_mended(&machine, system, &[problem("HF1017", "inode", place, words, COSTS_NOTHING)], &[]);
}

/// A clone of what lies in a clone begins with the catalog of that, where the directory which that is has a parent in the main branch.
#[test]
fn a_clone_of_a_part_of_a_clone_is_sound_before_it_is_pruned() {
    let (machine, known) = machine();
    let system = machine.open();
    machine.run(async {
        let first = system.clone_tree(Node::live(known.directory), FileId::ROOT, b"first").await.unwrap().file;
        system.commit().await.unwrap();
        let inner = find(&system, "first/inner").await.unwrap();
        assert_eq!(inner.file.branch, first.branch);
        system.clone_tree(inner, FileId::ROOT, b"second").await.unwrap();
        system.snapshot("both").await.unwrap();
    });
    machine.check(&system);
    machine.run(system.reclaim(&Reclaim::default())).unwrap();
    machine.check(&system);
}
