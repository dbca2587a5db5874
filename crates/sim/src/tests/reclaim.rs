//! Reclaim beside operations of other clients on the same files: the one thing that the clients of a run, each in its own
//! directory, do not do to each other.

use std::time::Duration;

use base::id::{FileId, NodeNumber};
use file::{
    AttributeChange, Compression, FileError, FileSystem, Kind, NewFile, Node, Options, StoreOptions, format_node,
};
use platform::sim::{Faults, World, each_seed};

/// Distinct extents of the source: enough for a tree of many nodes.
const EXTENTS: u64 = 3000;
/// From the start of one to the start of the next; the rest is a hole.
const STRIDE: u64 = 64;
const DATA: usize = 24;

/// Small packs and no cache: every look at a tree is a look at the disk.
fn options() -> Options {
    let store = StoreOptions {
        cache_bytes: 0,
        pack_bytes: 0,
        segment_bytes: 0,
        compression: Compression::None,
        ..StoreOptions::default()
    };
    Options { commit_interval: Duration::from_secs(3600), inodes_max: 1, store, ..Options::default() }
}

fn data(seed: u64, number: u64) -> [u8; DATA] {
    let word = base::hash::checksum(seed, &number.to_le_bytes()).to_le_bytes();
    std::array::from_fn(|at| word[at % 8] ^ u8::try_from(at).expect("few"))
}

async fn make(system: &FileSystem, name: &[u8]) -> Result<FileId, FileError> {
    let new = NewFile { kind: Kind::Regular, mode: 0o644, umask: 0, uid: 0, gid: 0, device: 0, target: b"" };
    Ok(system.create_file(FileId::ROOT, name, &new).await?.file)
}

/// A file whose old content is in the snapshot `whole` only, and an empty one.
async fn prepare(system: &FileSystem, seed: u64) -> Result<(Node, FileId), FileError> {
    let (source, target) = (make(system, b"source").await?, make(system, b"target").await?);
    for number in 0..EXTENTS {
        system.write(source, number * STRIDE, &data(seed, number), false).await?;
    }
    let view = system.snapshot("whole").await?.view;
    let change = AttributeChange { size: Some(0), ..AttributeChange::default() };
    system.set_attributes(source, &change).await?;
    system.commit().await?;
    Ok((Node { view, file: source }, target))
}

/// Until both superblocks have forgotten, and what nobody marked is gone for good.
async fn forget(system: &FileSystem) -> Result<(), FileError> {
    for round in 0..4_u8 {
        make(system, &[b'a' + round]).await?;
        system.commit().await?;
        system.reclaim(&file::Reclaim::default()).await?;
    }
    Ok(())
}

/// A copy has found the chunks of its source and not named them yet; the snapshot that it copies from is deleted, and
/// room is reclaimed. Whoever copied has a right to what it copied.
#[test]
fn a_copy_keeps_the_chunks_that_its_source_drops() {
    each_seed(0..30, |seed| {
        let world = World::new(seed);
        let disk = world.disk("/d0", 1 << 30);
        let platform = world.platform();
        world.run_until(format_node(&platform, &[disk.disk()], NodeNumber(1), 0, 0)).unwrap().unwrap();
        let (system, _) = world.run_until(FileSystem::open(&platform, &[disk.disk()], options())).unwrap().unwrap();
        let (source, target) = world.run_until(prepare(&system, seed)).unwrap().unwrap();

        disk.set_faults(Faults { slowness: 1 + u32::try_from(world.below(5)).unwrap(), ..Faults::default() });
        let delay = || platform.tasks.sleep(Duration::from_micros(world.below(4000)));
        let (copier, wait) = (system.clone(), delay());
        let copy = async move {
            wait.await;
            match copier.copy_range(source, 0, target, 0, u64::MAX >> 1).await {
                // The snapshot was deleted before.
                Ok(_) | Err(FileError::Stale | FileError::NoEntry) => {}
                Err(error) => panic!("copy: {error}"),
            }
        };
        let (deleter, wait) = (system.clone(), delay());
        let delete = async move {
            wait.await;
            deleter.delete_snapshot("whole").await.unwrap();
        };
        let (reclaimer, wait) = (system.clone(), delay());
        let reclaim = async move {
            wait.await;
            reclaimer.reclaim(&file::Reclaim::default()).await.unwrap();
        };
        platform.tasks.spawn("copy", Box::pin(copy));
        platform.tasks.spawn("delete", Box::pin(delete));
        platform.tasks.spawn("reclaim", Box::pin(reclaim));
        world.run_for(Duration::from_secs(100)).unwrap();

        world.run_until(forget(&system)).unwrap().unwrap();
        let report = world.run_until(system.check_files(&|_| {})).unwrap().unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems.first());
        let size = world.run_until(system.attributes(Node::live(target))).unwrap().unwrap().size;
        for number in (0..EXTENTS).filter(|number| number * STRIDE < size) {
            let mut found = [0; DATA];
            world.run_until(system.read(Node::live(target), number * STRIDE, &mut found)).unwrap().unwrap();
            assert_eq!(found, data(seed, number), "extent {number}");
        }
    });
}
