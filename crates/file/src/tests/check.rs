//! Each inconsistency of trees has its number, is told with a place, and is mended: with every checksum and address right, as an error of
//! ours would leave it.

use base::id::FileId;

use super::{Machine, create, find, read_all};
use crate::directory::encode_entry;
use crate::format::{Entry, InodeValue, Root, Roots};
use crate::tree::Edits;
use crate::{FileSystem, Kind, Node};

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

async fn put(system: &FileSystem, tree: &mut Root, key: u64, value: Option<Vec<u8>>) {
    *tree = system.trees.update(tree, Edits::from([(key, value)]), 0).await.unwrap();
}

async fn change(system: &FileSystem, roots: &mut Roots, file: FileId, lie: impl AsyncFnOnce(&mut InodeValue)) {
    let mut inode = system.load(&roots.catalog, file).await.unwrap().unwrap();
    lie(&mut inode).await;
    put(system, &mut roots.catalog, file.number, Some(inode.encode())).await;
}

/// Tells the lie that `code` is about.
async fn tell(code: &str, system: &FileSystem, roots: &mut Roots, known: &Known) {
    let entry = Entry { file: known.file, kind: Kind::Regular, name: (*b"file").into() };
    match code {
        "HF1003" => roots.next_counter = known.file.counter(),
        "HF1009" => change(system, roots, known.file, async |inode| inode.attributes.allocated += 1).await,
        "HF1012" => {
            let elsewhere = known.cookie ^ 1 << 50;
            assert!(!system.cookies(&entry.name).contains(&elsewhere));
            let lie = async |inode: &mut InodeValue| {
                put(system, &mut inode.base.tree, known.cookie, None).await;
                put(system, &mut inode.base.tree, elsewhere, Some(encode_entry(&entry, 0))).await;
            };
            change(system, roots, known.directory, lie).await;
        }
        "HF1013" => change(system, roots, known.directory, async |inode| inode.attributes.size += 1).await,
        // One that nobody lists.
        "HF1014" => {
            let mut unlinked = system.load(&roots.catalog, known.file).await.unwrap().unwrap();
            unlinked.attributes.links = 0;
            let file = FileId::new(known.file.node(), roots.next_counter).unwrap();
            roots.next_counter += 1;
            put(system, &mut roots.catalog, file.number, Some(unlinked.encode())).await;
        }
        // A list that is none.
        "HF1014, of none" => {
            let address = system.store.put(store::Class::Metadata, b"no tree").await.unwrap();
            roots.orphans = Root::Node { address, level: 0 };
        }
        "HF1016" => change(system, roots, known.file, async |inode| inode.attributes.links += 1).await,
        "HF1017" => change(system, roots, known.inner, async |inode| inode.attributes.parent = known.inner).await,
        "HF1019" => {
            let entry = Entry { kind: Kind::Fifo, ..entry };
            let lie = async |inode: &mut InodeValue| {
                put(system, &mut inode.base.tree, known.cookie, Some(encode_entry(&entry, 0))).await
            };
            change(system, roots, known.directory, lie).await;
        }
        _ => panic!("nothing is about {code}"),
    }
}

#[test]
fn each_inconsistency_has_its_number_and_is_mended() {
    for code in CODES {
        let (machine, known) = machine();
        let system = machine.open();
        machine.run(async {
            let mut roots = (**system.roots.lock()).clone();
            tell(code, &system, &mut roots, &known).await;
            system.store.commit(system.store.moment(), &roots.encode(), system.store.last_logged()).await.unwrap();
        });
        let system = machine.power_cycle(system);
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
