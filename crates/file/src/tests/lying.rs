//! The only disk gives other bytes at every reading while it is worked with: who reads hears of it and never gets them, what is changed meanwhile
//! is there or was refused, and when the disk reads right again all is as before. Also who repairs meanwhile takes nothing away from anybody.

use std::sync::Arc;
use std::time::Duration;

use base::id::FileId;
use platform::sim::{Faults, each_seed};
use store::{Depth, Remedy, StoreError};

use super::content::pattern;
use super::{Machine, create, find, new, read_all};
use crate::{FileError, FileSystem, Kind, Node, Options, Reclaim, Share};

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

/// A node with files in a directory, closed and opened again.
fn node(seed: u64) -> (Machine, Arc<FileSystem>) {
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
    (machine, system)
}

/// One round of what `fsck --repair` does, without leave to give anything up: how much of it was done, and how much failed.
async fn repair(system: &Arc<FileSystem>) -> (usize, usize) {
    let of_store = system.check_store(Depth::Deep, &|_, _| {}).await.remedies;
    let of_files = system.check_files(&|_| {}).await.map(|report| report.remedies).unwrap_or_default();
    let (mut done, mut failed) = (0, 0);
    for remedy in of_store.union(&of_files).filter(|remedy| !remedy.gives_up()) {
        let result = match remedy {
            Remedy::Trees { .. } => system.repair_files(false, (0, 0)).await.map(drop),
            remedy => system.repair_store(*remedy).await.map(drop),
        };
        done += usize::from(result.is_ok());
        failed += usize::from(result.is_err());
    }
    (done, failed)
}

/// F-1 and I-101: what reads wrong now may read right when the cable is mended.
#[test]
fn who_repairs_a_disk_that_lies_takes_nothing_away() {
    let (mut done, mut failed) = (0, 0);
    for flip_read in [0.05, 0.3, 1.0] {
        each_seed(0..3, |seed| {
            let (machine, system) = node(seed);
            machine.disk.set_faults(Faults { flip_read, ..Faults::default() });
            machine.run(async {
                for _ in 0..3 {
                    let round = repair(&system).await;
                    (done, failed) = (done + round.0, failed + round.1);
                }
                system.scrub(Duration::ZERO, Share::FULL, &|_, _| {}).await;
                let _ = system.reclaim(&Reclaim { is_thorough: true, ..Reclaim::default() }).await;
            });
            machine.disk.set_faults(Faults::default());
            let expect_all = |system: &Arc<FileSystem>, when: &str| {
                machine.run(async {
                    for number in 0..FILES {
                        let found = read(system, number).await;
                        assert!(found.unwrap() == pattern(BYTES, number), "{flip_read}, {when}: file {number}");
                    }
                });
            };
            // An index that was made twice in vain is made again by the next opening: until then some files may give errors.
            machine.run(async {
                for number in 0..FILES {
                    match read(&system, number).await {
                        Ok(found) => assert!(found == pattern(BYTES, number), "{flip_read}, mended: file {number}"),
                        Err(error) => expect_io_error(&error, "mended"),
                    }
                }
            });
            let system = machine.power_cycle(system);
            expect_all(&system, "opened again");
            machine.run(repair(&system));
            expect_all(&system, "repaired");
            machine.check(&system);
        });
    }
    assert!(done > 5 && failed > 5, "{done} steps were done, {failed} failed: the test shows nothing");
}

#[test]
fn a_lone_disk_that_lies_gives_errors_and_never_other_bytes() {
    let (mut failed, mut refused) = (0, 0);
    each_seed(0..4, |seed| {
        let (machine, system) = node(seed);
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
