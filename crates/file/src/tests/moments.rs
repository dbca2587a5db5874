//! Snapshots of directories.

use base::id::FileId;

use super::{Machine, create, find, list, read_all};
use crate::{FileError, Kind, Node, SNAPSHOTS};

#[test]
fn a_snapshot_of_a_directory_shows_it_as_its_root() {
    let machine = Machine::new(31);
    let mut system = machine.open();
    machine.run(async {
        let above = create(&system, FileId::ROOT, "above", Kind::Directory).await.file;
        let inside = create(&system, above, "inside", Kind::Directory).await.file;
        let file = create(&system, inside, "f", Kind::Regular).await.file;
        create(&system, FileId::ROOT, "beside", Kind::Regular).await;
        system.write(file, 0, b"then", false).await.unwrap();
        let taken = system.snapshot_of("s", inside).await.unwrap();
        assert_eq!((taken.root, system.path_of(&taken).await.unwrap()), (inside, "/above/inside".to_owned()));
        system.write(file, 0, b"now!", false).await.unwrap();
        system.remove_file(inside, b"f").await.unwrap();
        system.remove_directory(above, b"inside").await.unwrap();
        assert!(matches!(system.snapshot_of("t", inside).await, Err(FileError::NoEntry)));
        assert!(matches!(system.snapshot_of("t", SNAPSHOTS).await, Err(FileError::Invalid(_))));
    });
    for _ in 0..2 {
        machine.run(async {
            let shown = find(&system, ".snapshots/s").await.unwrap();
            assert_eq!(list(&system, shown, 10).await, ["f"]);
            assert_eq!(read_all(&system, find(&system, ".snapshots/s/f").await.unwrap()).await, b"then");
            assert_eq!(system.lookup(shown, b"..").await.unwrap().0, shown, "nothing lies above what it shows");
            assert!(find(&system, ".snapshots/s/beside").await.is_err());
            let listed = system.read_directory(Node::live(SNAPSHOTS), 0, 9).await.unwrap();
            assert_eq!((listed.len(), listed[0].node), (1, shown));
            assert_eq!(system.snapshots().len(), 1);
            system.reclaim(&crate::Reclaim::default()).await.unwrap();
        });
        machine.check(&system);
        system = machine.power_cycle(system);
    }
    machine.run(async {
        let file = create(&system, FileId::ROOT, "file", Kind::Regular).await.file;
        assert!(matches!(system.snapshot_of("u", file).await, Err(FileError::NotDirectory)));
        system.delete_snapshot("s").await.unwrap();
    });
    machine.check(&system);
}
