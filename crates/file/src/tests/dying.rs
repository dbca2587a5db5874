//! A disk dies while it is worked with: what lies on it alone is an error, everything else goes on, and nothing that was synced is lost
//! when it is there again.

use std::sync::Arc;
use std::time::Duration;

use base::id::{FileId, NodeNumber};
use platform::disk::Disk;
use platform::sim::{Faults, SimDisk, World};

use super::{create, find};
use crate::{FileError, FileSystem, Kind, Node, Options, format_node};

const FILES: usize = 120;
const BYTES: usize = 100_000;
/// Directories with so many long names that their trees lie on all disks.
const DIRECTORIES: usize = 6;
const NAMES: usize = 3500;

fn bytes(seed: usize, count: usize) -> Vec<u8> {
    let mut state = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..count / 8).flat_map(|_| next()).collect()
}

fn content(file: usize, life: usize) -> Vec<u8> {
    bytes(file * 7 + life, BYTES)
}

async fn open(world: &World, disks: &[Disk]) -> Arc<FileSystem> {
    let mut options = Options { dirty_bytes_max: 16 << 20, ..Options::default() };
    options.store.cache_bytes = 0;
    FileSystem::open(&world.platform(), disks, options).await.unwrap().0
}

/// With the settings of everybody.
async fn open_as(world: &World, disks: &[Disk], goes_without_disks: bool) -> Arc<FileSystem> {
    let mut options = Options::default();
    options.store.goes_without_disks = goes_without_disks;
    FileSystem::open(&world.platform(), disks, options).await.unwrap().0
}

async fn fill(world: &World, disks: &[Disk]) {
    format_node(&world.platform(), disks, NodeNumber(1), 0, 0).await.unwrap();
    let system = open(world, disks).await;
    for directory in 0..DIRECTORIES {
        let made = create(&system, FileId::ROOT, &format!("d{directory}"), Kind::Directory).await;
        for number in 0..NAMES {
            // Hardly anything that a compressor would save.
            let random = bytes(directory * NAMES + number, 240).into_iter().map(|byte| char::from(b'0' + byte % 64));
            let random: String = random.collect();
            create(&system, made.file, &random, Kind::Regular).await;
        }
    }
    for file in 0..FILES {
        write(&system, file, 0).await.unwrap();
    }
    system.close().await.unwrap();
}

async fn write(system: &FileSystem, file: usize, life: usize) -> Result<(), FileError> {
    let name = format!("f{file}");
    let node = match find(system, &name).await {
        Err(FileError::NoEntry) => {
            let new = super::new(Kind::Regular);
            Node::live(system.create_file(FileId::ROOT, name.as_bytes(), &new).await?.file)
        }
        found => found?,
    };
    system.write(node.file, 0, &content(file, life), false).await?;
    system.sync(node.file).await
}

/// Whose content a file has, of these lives. `None`: it cannot be read.
async fn read(system: &FileSystem, file: usize, lives: usize) -> Option<usize> {
    let node = find(system, &format!("f{file}")).await.ok()?;
    let mut bytes = vec![0; BYTES];
    let count = system.read(node, 0, &mut bytes).await.ok()?;
    bytes.truncate(count);
    let life = (0..lives).find(|life| bytes == content(file, *life));
    Some(life.unwrap_or_else(|| panic!("wrong bytes in file {file}")))
}

/// K-14: whichever it is, every name is there and takes changes.
#[test]
fn a_disk_that_dies_at_work_takes_nothing_with_it_but_content() {
    for dying in 0..3 {
        assert_eq!(die_at_work(dying as u64, 3, &[dying]), (0, 0), "left out and refused without disk {dying}");
    }
}

/// Trees that lie on both of two disks go with them.
#[test]
fn two_disks_that_die_at_work_stop_nobody_else() {
    let (mut left_out, mut refused) = (0, 0);
    for seed in 0..3 {
        let (some, more) = die_at_work(seed, 4, &[2, 3]);
        left_out += some;
        refused += more;
    }
    assert!(left_out > 0 && refused > 0, "{left_out} left out, {refused} refused");
}

/// Some of the disks die in the middle of the work, and are there again. How many files were left out of a commit, and how many directories took no
/// name.
fn die_at_work(seed: u64, disks: usize, dying: &[usize]) -> (usize, usize) {
    let (mut left_out, mut refused) = (0, 0);
    let world = World::new(seed);
    let sims: Vec<SimDisk> = (0..disks).map(|number| world.disk(&format!("d{number}"), 1 << 30)).collect();
    let set_dead = |is_dead: bool| {
        dying.iter().for_each(|disk| sims[*disk].set_faults(Faults { is_dead, ..Faults::default() }));
    };
    let disks: Vec<Disk> = sims.iter().map(SimDisk::disk).collect();
    world.run_until(fill(&world, &disks)).unwrap();
    let system = world.run_until(open(&world, &disks)).unwrap();
    let work = async {
        for file in (0..FILES).step_by(3) {
            write(&system, file, 1).await.unwrap();
        }
        for directory in 0..DIRECTORIES {
            let directory = find(&system, &format!("d{directory}")).await.unwrap();
            create(&system, directory.file, "late", Kind::Regular).await;
        }
        system.sync_all().await.unwrap();
        // In the middle of it.
        set_dead(true);
        let mut synced: Vec<Option<usize>> = (0..FILES).map(|file| Some(usize::from(file % 3 == 0))).collect();
        synced.resize(FILES + 20, None);
        for file in (0..FILES).step_by(2).chain(FILES..FILES + 20) {
            let written = write(&system, file, 2).await;
            assert!(matches!(written, Ok(()) | Err(FileError::Store(_))), "file {file}: {written:?}");
            if written.is_ok() {
                synced[file] = Some(2);
            }
            if file % 30 == 0 {
                system.commit().await.unwrap();
            }
        }
        system.commit().await.unwrap();
        let status = system.status();
        assert!(dying.iter().all(|disk| !status.store.disks[*disk].is_good) && status.commit_failure.is_none());
        left_out += status.left_out.len();
        for directory in 0..DIRECTORIES {
            let directory = find(&system, &format!("d{directory}")).await.unwrap();
            let made = system.create_file(directory.file, b"later", &super::new(Kind::Regular)).await;
            assert!(matches!(made, Ok(_) | Err(FileError::Store(_))), "{made:?}");
            refused += usize::from(made.is_err());
        }
        let (mut readable, mut took) = (0, 0);
        for (file, synced) in synced.iter().enumerate() {
            let found = read(&system, file, 3).await;
            assert!(found.is_none() || found == *synced, "file {file}: {found:?} and not {synced:?}");
            readable += usize::from(found.is_some());
            took += usize::from(*synced == Some(2));
        }
        assert!((FILES / 2..FILES + 20).contains(&readable), "{readable} could be read");
        assert!(took > FILES / 3, "{took} took changes");
        if dying.len() == 1 {
            assert_eq!(took, FILES / 2 + 20, "files that were synced meanwhile");
        }
        synced
    };
    let synced = world.run_until(work).unwrap();
    // It is there again, after the power was away.
    drop(system);
    world.restart();
    set_dead(false);
    let system = world.run_until(open(&world, &disks)).unwrap();
    let look = async {
        for (file, synced) in synced.iter().enumerate() {
            let found = read(&system, file, 3).await;
            assert!(found == *synced || found == Some(2), "seed {seed}, file {file}: {found:?} and not {synced:?}");
        }
        for directory in 0..DIRECTORIES {
            find(&system, &format!("d{directory}/late")).await.unwrap();
        }
        system.commit().await.unwrap();
        assert!(system.status().left_out.is_empty());
        let report = system.check_files(&|_| {}).await.unwrap();
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
    };
    world.run_until(look).unwrap();
    (left_out, refused)
}

/// K-12: with one copy of everything, a disk that dies in the middle of a flush takes with it what the flush has written there. The flush still
/// has what that was of.
#[test]
fn what_a_dying_disk_takes_out_of_a_flush_is_stored_on_another() {
    let content = bytes(5, 6 << 20);
    let mut again = 0;
    for writes in [1, 4, 16, 64] {
        let world = World::new(writes);
        let sims: Vec<SimDisk> = (0..2).map(|number| world.disk(&format!("d{number}"), 1 << 30)).collect();
        let disks: Vec<Disk> = sims.iter().map(SimDisk::disk).collect();
        let mut options = Options { dirty_bytes_max: 32 << 20, ..Options::default() };
        // Written run by run, long before a pack is sealed.
        options.store.run_bytes = 0;
        options.store.cache_bytes = 0;
        let open = async || FileSystem::open(&world.platform(), &disks, options.clone()).await.unwrap().0;
        let work = async {
            format_node(&world.platform(), &disks, NodeNumber(1), 0, 0).await.unwrap();
            let system = open().await;
            let file = create(&system, FileId::ROOT, "file", Kind::Regular).await.file;
            system.sync_all().await.unwrap();
            system.write(file, 0, &content, false).await.unwrap();
            let (tasks, store, dying) = (world.platform().tasks, Arc::clone(&system.store), sims[1].clone());
            let clock = Arc::clone(&tasks);
            tasks.spawn(
                "death",
                Box::pin(async move {
                    let last = store.counters().pack_writes.value() + writes;
                    while store.counters().pack_writes.value() < last {
                        clock.sleep(Duration::from_micros(1)).await;
                    }
                    dying.set_faults(Faults { is_dead: true, ..Faults::default() });
                }),
            );
            // The caller hears nothing of it.
            system.sync(file).await.unwrap();
            again += system.counters.flushes_again.value();
            assert!(!system.status().store.disks[1].is_good, "{writes} writes: it lives on");
            let mut found = vec![0; content.len()];
            assert_eq!(system.read(Node::live(file), 0, &mut found).await.unwrap(), content.len());
            assert!(found == content);
            create(&system, FileId::ROOT, "other", Kind::Regular).await;
            system.commit().await.unwrap();
            system.close().await.unwrap();
        };
        world.run_until(work).unwrap();
        world.restart();
        sims[1].set_faults(Faults::default());
        let look = async {
            let system = open().await;
            let file = find(&system, "file").await.unwrap();
            let mut found = vec![0; content.len()];
            assert_eq!(system.read(file, 0, &mut found).await.unwrap(), content.len());
            assert!(found == content, "{writes} writes");
            find(&system, "other").await.unwrap();
            let report = system.check_files(&|_| {}).await.unwrap();
            assert!(report.problems.is_empty(), "{:#?}", report.problems);
        };
        world.run_until(look).unwrap();
    }
    assert!(again > 0, "no flush lost anything: the test shows nothing");
}

/// J-9: with one copy of everything the disk dies that has the journal, and a sync of little data, which goes there alone, is the first to meet it.
/// What was synced before and after is there when the disk is; and without it once that was committed, by who asks for that or by itself, soon (I-166).
#[test]
fn where_the_disk_with_the_journal_dies_files_are_synced_all_the_same() {
    let little = |file: usize, life: usize| bytes(file * 7 + life, 4000);
    for (seed, (is_committed, waits, is_back)) in
        [(false, false, true), (true, false, true), (true, false, false), (false, true, true), (false, true, false)]
            .into_iter()
            .enumerate()
    {
        let world = World::new(seed as u64);
        let sims: Vec<SimDisk> = (0..3).map(|number| world.disk(&format!("d{number}"), 1 << 30)).collect();
        let disks: Vec<Disk> = sims.iter().map(SimDisk::disk).collect();
        let work = async {
            format_node(&world.platform(), &disks, NodeNumber(1), 0, 0).await.unwrap();
            let system = open_as(&world, &disks, false).await;
            let mut made = Vec::new();
            for file in 0..10 {
                made.push(create(&system, FileId::ROOT, &format!("f{file}"), Kind::Regular).await.file);
                system.write(made[file], 0, &little(file, 0), false).await.unwrap();
                system.sync(made[file]).await.unwrap();
            }
            assert!(system.status().store.disks[0].has_journal);
            sims[0].set_faults(Faults { is_dead: true, ..Faults::default() });
            for (file, id) in made.into_iter().enumerate().skip(5) {
                system.write(id, 0, &little(file, 1), false).await.unwrap();
                system.sync(id).await.unwrap();
            }
            let status = system.status();
            assert!(!status.store.disks[0].is_good && !status.store.disks[0].has_journal);
            assert!(status.journal_failure.is_none() && status.store.journal_failure.is_none());
            if is_committed {
                system.commit().await.unwrap();
            }
            if waits {
                world.platform().tasks.sleep(Options::default().commit_interval / 5).await;
                assert_eq!(system.counters.commits_of_lost_frames.value(), 1);
            }
        };
        world.run_until(work).unwrap();
        world.crash();
        world.restart();
        sims[0].set_faults(Faults { is_dead: !is_back, ..Faults::default() });
        let look = async {
            let system = open_as(&world, &disks, !is_back).await;
            for file in 0..10 {
                let node = find(&system, &format!("f{file}")).await.unwrap();
                let mut found = vec![0; 5000];
                let count = system.read(node, 0, &mut found).await.unwrap();
                assert!(found[..count] == little(file, usize::from(file >= 5)), "file {file}");
            }
            let report = system.check_files(&|_| {}).await.unwrap();
            assert!(report.problems.is_empty(), "{:#?}", report.problems);
        };
        world.run_until(look).unwrap();
    }
}

/// I-166 where no other disk has room for a segment of the journal: nothing more is acknowledged, and what was is committed all the same.
#[test]
fn what_a_dead_disk_had_of_the_journal_is_committed_where_no_other_has_room_for_one() {
    let little = |file: usize| bytes(file, 4000);
    let world = World::new(1);
    let sims: Vec<SimDisk> = (0..3).map(|number| world.disk(&format!("d{number}"), 1 << 30)).collect();
    let disks: Vec<Disk> = sims.iter().map(SimDisk::disk).collect();
    let work = async {
        format_node(&world.platform(), &disks, NodeNumber(1), 0, 0).await.unwrap();
        let system = open_as(&world, &disks, false).await;
        for file in 0..10 {
            let made = create(&system, FileId::ROOT, &format!("f{file}"), Kind::Regular).await.file;
            system.write(made, 0, &little(file), false).await.unwrap();
            system.sync(made).await.unwrap();
        }
        sims[0].set_faults(Faults { is_dead: true, ..Faults::default() });
        for disk in &sims[1..] {
            let space = disk.disk().space().unwrap();
            disk.set_capacity(space.total - space.free + (8 << 20));
        }
        let file = find(&system, "f0").await.unwrap().file;
        system.write(file, 0, &little(100), false).await.unwrap();
        assert!(matches!(system.sync(file).await, Err(FileError::NoSpace)));
        world.platform().tasks.sleep(Options::default().commit_interval / 5).await;
        assert_eq!(system.counters.commits_of_lost_frames.value(), 1);
        assert!(!system.store.lacks_frames().await);
    };
    world.run_until(work).unwrap();
    world.crash();
    world.restart();
    let look = async {
        let system = open_as(&world, &disks, true).await;
        for file in 1..10 {
            let node = find(&system, &format!("f{file}")).await.unwrap();
            let mut found = vec![0; 5000];
            let count = system.read(node, 0, &mut found).await.unwrap();
            assert!(found[..count] == little(file), "file {file}");
        }
    };
    world.run_until(look).unwrap();
}
