//! The only disk gives other bytes at every reading while it is worked with: who reads hears of it and never gets them, what is changed meanwhile
//! is there or was refused, and when the disk reads right again all is as before.

use base::id::FileId;
use platform::sim::{Faults, each_seed};
use store::StoreError;

use super::content::pattern;
use super::{Machine, create, find, new, read_all};
use crate::{FileError, FileSystem, Kind, Node, Options};

const FILES: u64 = 40;
const BYTES: usize = 60_000;

/// Nothing is read from memory.
fn options() -> Options {
    let mut options = Options { dirty_bytes_max: 16 << 20, inodes_max: 1, ..Options::default() };
    options.store.cache_bytes = 0;
    options.store.index_cache_bytes = 0;
    options
}

/// EIO: that bytes are damaged or unknown, and never that there is nothing.
fn expect_io_error(error: &FileError, what: &str) {
    let is_told = matches!(error, FileError::Store(StoreError::Corrupt { .. } | StoreError::Disk(_)));
    assert!(is_told, "{what}: {error:?}");
}

/// The content of a file, by its name.
async fn read(system: &FileSystem, number: u64) -> Result<Vec<u8>, FileError> {
    let node = find(system, &format!("d/f{number}")).await?;
    let mut bytes = vec![0; BYTES + 1];
    let count = system.read(node, 0, &mut bytes).await?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Changes a file and makes one; whether each of them has happened and is durable.
async fn change(system: &FileSystem, number: u64) -> [Result<(), FileError>; 2] {
    let changed = async {
        let file = find(system, &format!("d/f{number}")).await?.file;
        system.write(file, 0, &pattern(BYTES, 1000 + number), false).await?;
        system.sync(file).await
    };
    let changed = changed.await;
    let made = async {
        let directory = find(system, "d").await?.file;
        let made = system.create_file(directory, format!("new{number}").as_bytes(), &new(Kind::Regular)).await?;
        system.sync(made.file).await
    };
    [changed, made.await]
}

#[test]
fn a_lone_disk_that_lies_gives_errors_and_never_other_bytes() {
    let (mut failed, mut refused) = (0, 0);
    each_seed(0..4, |seed| {
        let machine = Machine::with(seed, 1 << 30, options());
        let system = machine.open();
        machine.run(async {
            let directory = create(&system, FileId::ROOT, "d", Kind::Directory).await.file;
            for number in 0..FILES {
                let file = create(&system, directory, &format!("f{number}"), Kind::Regular).await.file;
                system.write(file, 0, &pattern(BYTES, number), false).await.unwrap();
            }
            system.close().await.unwrap();
        });
        drop(system);
        machine.world.restart();
        let system = machine.open();
        let lies = Faults { flip_read: 1.0, ..Faults::default() };
        machine.disk.set_faults(lies.clone());
        let begun = machine.world.operations();
        let changed = machine.run(async {
            for number in 0..FILES {
                match read(&system, number).await {
                    Ok(bytes) => assert!(bytes == pattern(BYTES, number), "other bytes in file {number}"),
                    Err(error) => {
                        expect_io_error(&error, "read");
                        failed += 1;
                    }
                }
            }
            let mut changed = Vec::new();
            for number in (0..FILES).step_by(4) {
                let results = change(&system, number).await;
                results.iter().filter_map(|result| result.as_ref().err()).for_each(|error| {
                    expect_io_error(error, "change");
                    refused += 1;
                });
                changed.push((number, results.map(|result| result.is_ok())));
            }
            if let Err(error) = system.commit().await {
                expect_io_error(&error, "commit");
            }
            changed
        });
        let asked = machine.world.operations() - begun;
        assert!(asked < 20_000, "{asked} operations");
        let expect_all = |system: &FileSystem| {
            machine.run(async {
                for number in 0..FILES {
                    let found = read(system, number).await.unwrap();
                    let is_new = found == pattern(BYTES, 1000 + number);
                    let change = changed.iter().find(|(other, _)| *other == number);
                    let may_be_new = change.is_some();
                    let must_be_new = change.is_some_and(|(_, [is_changed, _])| *is_changed);
                    assert!(is_new || found == pattern(BYTES, number), "other bytes in file {number}");
                    assert!(if is_new { may_be_new } else { !must_be_new }, "file {number}");
                }
                for (number, [_, is_made]) in &changed {
                    match find(system, &format!("d/new{number}")).await {
                        Ok(node) => assert_eq!(read_all(system, node).await, b""),
                        Err(FileError::NoEntry) => assert!(!is_made, "new{number} is lost"),
                        Err(error) => panic!("new{number}: {error}"),
                    }
                }
            });
        };
        machine.disk.set_faults(Faults::default());
        expect_all(&system);
        machine.run(async {
            let file = create(&system, FileId::ROOT, "after", Kind::Regular).await.file;
            system.write(file, 0, b"after", false).await.unwrap();
            system.sync(file).await.unwrap();
            system.commit().await.unwrap();
            assert_eq!(read_all(&system, Node::live(file)).await, b"after");
        });
        machine.check(&system);
        let system = machine.power_cycle(system);
        expect_all(&system);
        machine.check(&system);
    });
    assert!(
        failed > 20 && refused > 5,
        "{failed} reads failed, {refused} changes were refused: the test shows nothing"
    );
}
