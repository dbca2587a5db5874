//! One tree that cannot be read stops no other file: I-106.

use std::sync::Arc;
use std::time::Duration;

use base::id::FileId;

use super::{Machine, chunk_place, create, find, read_all};
use crate::format::Root;
use crate::{AttributeChange, FileError, FileSystem, Kind, Node, Options};

const PIECE: usize = 4096;
const PIECES: u64 = 300;
const NAMES: usize = 300;

/// A node whose trees are not cached, and what is in it.
struct Setup {
    machine: Machine,
    file: FileId,
    directory: FileId,
    other: FileId,
    /// Where the top nodes of the trees of file and directory lie: a pack, and offsets in it.
    tops: (String, [u64; 2]),
}

fn piece(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(PIECE / 8)
}

impl Setup {
    fn new(seed: u64) -> Setup {
        Setup::with(seed, Options { dirty_bytes_max: 16 << 20, ..Options::default() })
    }

    fn with(seed: u64, mut options: Options) -> Setup {
        options.store.cache_bytes = 0;
        let machine = Machine::with(seed, 1 << 30, options);
        let system = machine.open();
        let (file, directory, other, tops) = machine.run(async {
            let file = create(&system, FileId::ROOT, "file", Kind::Regular).await.file;
            let directory = create(&system, FileId::ROOT, "directory", Kind::Directory).await.file;
            let other = create(&system, FileId::ROOT, "other", Kind::Regular).await.file;
            for number in 0..PIECES {
                system.write(file, number * 2 * PIECE as u64, &piece(number), false).await.unwrap();
            }
            for number in 0..NAMES {
                create(&system, directory, &format!("name-{number}"), Kind::Regular).await;
            }
            system.sync_all().await.unwrap();
            system.commit().await.unwrap();
            let roots = system.roots.lock().clone();
            let mut tops = Vec::new();
            for file in [file, directory] {
                let value = system.load(&roots.catalog, file).await.unwrap().unwrap();
                let Root::Node { address, .. } = value.base.tree else { panic!("too large for the inode") };
                tops.push(address);
            }
            (file, directory, other, tops)
        });
        // The pack is sealed by an opening.
        drop(machine.power_cycle(system));
        machine.world.restart();
        let [(path, first), (same, second)] = [&tops[0], &tops[1]].map(|address| chunk_place(&machine, address));
        assert_eq!(path, same);
        let tops = (path, [first, second]);
        Setup { machine, file, directory, other, tops }
    }

    /// Changes of everything, local and not committed.
    fn changed(&self) -> Arc<FileSystem> {
        let system = self.machine.open();
        self.machine.run(async {
            create(&system, self.directory, "late", Kind::Regular).await;
            system.write(self.file, PIECE as u64, b"little", false).await.unwrap();
            system.write(self.other, 0, b"other", false).await.unwrap();
            system.sync_all().await.unwrap();
            system.write(self.file, 1 << 30, &vec![7; 1 << 20], false).await.unwrap();
            system.sync_all().await.unwrap();
        });
        system
    }

    /// The two trees rot.
    fn lose(&self) {
        let (path, tops) = &self.tops;
        tops.iter().for_each(|at| self.machine.disk.flip_bit(path, at + 60, 1));
    }

    /// The two trees cannot be read any more, or can again.
    fn set_readable(&self, is_readable: bool) {
        let (path, tops) = &self.tops;
        let (first, last) = (tops[0].min(tops[1]), tops[0].max(tops[1]));
        self.machine.disk.set_unreadable(path, if is_readable { 0..0 } else { first + 59..last + 60 });
    }

    async fn is_there(&self, system: &FileSystem) {
        let mut bytes = [0; 6];
        system.read(Node::live(self.file), PIECE as u64, &mut bytes).await.unwrap();
        assert_eq!(&bytes, b"little");
        let mut bytes = vec![0; 1 << 20];
        system.read(Node::live(self.file), 1 << 30, &mut bytes).await.unwrap();
        assert!(bytes == vec![7; 1 << 20]);
        assert_eq!(read_all(system, Node::live(self.other)).await, b"other");
    }

    fn left_out(system: &FileSystem) -> Vec<FileId> {
        let status = system.status();
        assert_eq!(status.commit_failure, None);
        status.left_out.into_iter().map(|(file, _)| file).collect()
    }
}

#[test]
fn a_tree_that_cannot_be_read_stops_no_other_file() {
    for is_lost in [true, false] {
        let setup = Setup::new(11);
        let machine = &setup.machine;
        let mut system = setup.changed();
        if is_lost {
            setup.lose()
        } else {
            setup.set_readable(false)
        }
        for life in 0..3 {
            machine.run(async {
                system.commit().await.unwrap();
                assert_eq!(Setup::left_out(&system), [setup.file, setup.directory]);
                setup.is_there(&system).await;
                // Nothing that would need the trees; attributes need none.
                let refused = |result: Result<(), FileError>| assert!(matches!(result, Err(FileError::Store(_))));
                refused(system.write(setup.file, 0, b"x", false).await);
                refused(system.create_file(setup.directory, b"more", &super::new(Kind::Regular)).await.map(drop));
                refused(system.snapshot("whole").await.map(drop));
                let mode = AttributeChange { mode: Some(0o600), ..AttributeChange::default() };
                system.set_attributes(setup.file, &mode).await.unwrap();
                // Everybody else goes on, and the journal stays short.
                let mut journal = Vec::new();
                for round in 0..10 {
                    create(&system, FileId::ROOT, &format!("more-{life}-{round}"), Kind::Regular).await;
                    system.write(setup.other, 0, b"other", false).await.unwrap();
                    system.sync_all().await.unwrap();
                    system.commit().await.unwrap();
                    journal.push(system.store.journal_bytes());
                }
                assert!(journal[9] < journal[2] + 4096, "{journal:?}");
                let generation = system.status().store.generation;
                system.commit().await.unwrap();
                assert_eq!(system.status().store.generation, generation, "there was nothing new");
            });
            system = if life == 0 { machine.crash(system) } else { machine.power_cycle(system) };
            machine.run(setup.is_there(&system));
        }
        if is_lost {
            // What needs no tree ends it.
            machine.run(async {
                system.commit().await.unwrap();
                assert_eq!(Setup::left_out(&system), [setup.file, setup.directory]);
                let cut = AttributeChange { size: Some(0), ..AttributeChange::default() };
                system.set_attributes(setup.file, &cut).await.unwrap();
                system.commit().await.unwrap();
                assert_eq!(Setup::left_out(&system), [setup.directory]);
                system.write(setup.file, 0, b"anew", false).await.unwrap();
                system.remove_file(FileId::ROOT, b"other").await.unwrap();
                system.commit().await.unwrap();
            });
            let system = machine.power_cycle(system);
            assert_eq!(machine.run(read_all(&system, Node::live(setup.file))), b"");
            assert!(matches!(machine.run(find(&system, "other")), Err(FileError::NoEntry)));
            continue;
        }
        // It is told, and nothing is given up for a disk that gives no answer (I-101).
        machine.run(async {
            let report = system.check_files(&|_| {}).await.unwrap();
            assert!(report.problems.iter().any(|problem| problem.code == "HF1021"), "{:#?}", report.problems);
            assert!(system.repair_files(true, (0, 0)).await.is_err());
        });
        // The disk answers again.
        setup.set_readable(true);
        machine.run(async {
            system.platform.tasks.sleep(Duration::from_secs(61)).await;
            system.commit().await.unwrap();
            assert_eq!(Setup::left_out(&system), []);
            system.snapshot("whole").await.unwrap();
            system.write(setup.file, 0, &piece(0), false).await.unwrap();
            system.close().await.unwrap();
        });
        let system = machine.power_cycle(system);
        machine.run(async {
            setup.is_there(&system).await;
            find(&system, "directory/late").await.unwrap();
            let mut bytes = vec![0; PIECE];
            for number in 0..PIECES {
                system.read(Node::live(setup.file), number * 2 * PIECE as u64, &mut bytes).await.unwrap();
                assert_eq!(bytes, piece(number));
            }
        });
        machine.check(&system);
    }
}

/// Until the commit that leaves it out is durable, and after it.
#[test]
fn the_power_may_go_at_any_moment_of_a_commit_that_leaves_files_out() {
    let operations = |cut: Option<u64>| -> u64 {
        let setup = Setup::new(12);
        let machine = &setup.machine;
        let system = setup.changed();
        setup.set_readable(false);
        let before = machine.world.operations();
        if let Some(cut) = cut {
            machine.world.cut_power_at(before + cut);
        }
        let committed = machine.world.run_until(async { system.commit().await });
        let operations = machine.world.operations() - before;
        drop(committed);
        let system = machine.power_cycle(system);
        setup.set_readable(true);
        machine.run(async {
            setup.is_there(&system).await;
            find(&system, "directory/late").await.unwrap();
            system.commit().await.unwrap();
            assert_eq!(Setup::left_out(&system), []);
        });
        machine.check(&system);
        operations
    };
    let count = operations(None);
    assert!(count > 20, "{count}");
    for cut in 0..count {
        operations(Some(cut));
    }
}

/// However much it is, and however few files make a commit due.
#[test]
fn nobody_waits_for_what_is_left_out() {
    let options = Options {
        commit_journal_bytes: 16 << 10,
        uncommitted_files_max: 0,
        inline_bytes_max: 64 << 10,
        ..Options::default()
    };
    let setup = Setup::with(13, options);
    let machine = &setup.machine;
    let system = machine.open();
    setup.lose();
    machine.run(async {
        // In the journal, and more than three commits of it.
        let written = piece(7).repeat(15);
        system.write(setup.file, PIECE as u64, &written, false).await.unwrap();
        system.sync(setup.file).await.unwrap();
        let before = system.store.counters().log_bytes.value();
        for round in 0..50 {
            create(&system, FileId::ROOT, &format!("more-{round}"), Kind::Regular).await;
            system.write(setup.other, 0, b"other", false).await.unwrap();
            system.sync_all().await.unwrap();
        }
        assert_eq!(Setup::left_out(&system), [setup.file]);
        let logged = system.store.counters().log_bytes.value() - before;
        assert!(logged < 1 << 20, "{logged} bytes were logged by 50 small changes");
        let mut found = vec![0; written.len()];
        system.read(Node::live(setup.file), PIECE as u64, &mut found).await.unwrap();
        assert!(found == written);
    });
    let system = machine.power_cycle(system);
    machine.run(async {
        let mut found = vec![0; 15 * PIECE];
        system.read(Node::live(setup.file), PIECE as u64, &mut found).await.unwrap();
        assert!(found == piece(7).repeat(15));
        find(&system, "more-49").await.unwrap();
    });
}

/// While no commit succeeds, what removals leave to do stays bounded.
#[test]
fn changes_end_when_commits_go_on_failing() {
    const FILES: usize = 300;
    let mut options = Options { uncommitted_files_max: 10, ..Options::default() };
    options.store.cache_bytes = 0;
    let machine = Machine::with(16, 1 << 30, options);
    let system = machine.open();
    let (files, catalog) = machine.run(async {
        let mut files = Vec::new();
        for number in 0..FILES {
            files.push(create(&system, FileId::ROOT, &format!("file-{number}"), Kind::Regular).await.file);
        }
        system.commit().await.unwrap();
        let Root::Node { address, .. } = system.roots.lock().catalog else { panic!("too small for a node") };
        (files, address)
    });
    let (path, at) = chunk_place(&machine, &catalog);
    machine.disk.flip_bit(&path, at + 60, 1);
    machine.run(async {
        let change = AttributeChange { mode: Some(0o600), ..AttributeChange::default() };
        let mut changed = 0;
        for file in &files {
            match system.set_attributes(*file, &change).await {
                Ok(_) => changed += 1,
                Err(error) => assert!(error.is_unreadable(), "{error}"),
            }
        }
        assert!((30..=90).contains(&changed), "{changed} of {FILES} were changed");
        assert!(system.remove_file(FileId::ROOT, b"file-1").await.is_err());
        assert!(system.touched.lock().len() <= 90);
    });
    machine.disk.flip_bit(&path, at + 60, 1);
    machine.run(async {
        system.commit().await.unwrap();
        system.remove_file(FileId::ROOT, b"file-1").await.unwrap();
    });
}
