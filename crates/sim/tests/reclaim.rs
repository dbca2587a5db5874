//! Reclaim beside operations of other clients on the same files: the one thing that the clients of a run, each in its own
//! directory, do not do to each other.

use std::time::Duration;

use base::id::{FileId, NodeNumber};
use file::{AttributeChange, Compression, FileSystem, Kind, NewFile, Node, Options, StoreOptions, format_node};
use platform::sim::{Faults, World, each_seed};

/// Small packs and no cache: every look at a chunk or a tree is a look at the disk.
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

/// Bytes like no others, of many chunks.
fn content(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..100_000).flat_map(next).collect()
}

async fn make(system: &FileSystem, name: &[u8]) -> FileId {
    let new = NewFile { kind: Kind::Regular, mode: 0o644, umask: 0, uid: 0, gid: 0, device: 0, target: b"" };
    system.create_file(FileId::ROOT, name, &new).await.expect("a new name").file
}

/// A copy has found the chunks of its source and not named them yet, when the source is cut off, that is committed, and
/// room is reclaimed. Whoever copied has a right to what it copied.
#[test]
fn a_copy_keeps_the_chunks_that_its_source_drops() {
    each_seed(0..60, |seed| {
        let world = World::new(seed);
        let disk = world.disk("/d0", 1 << 30);
        let platform = world.platform();
        world.run_until(format_node(&platform, &[disk.disk()], NodeNumber(1), 0, 0)).unwrap().unwrap();
        let (system, _) = world.run_until(FileSystem::open(&platform, &[disk.disk()], options())).unwrap().unwrap();
        let bytes = content(seed);
        let (source, target) = world
            .run_until(async {
                let (source, target) = (make(&system, b"source").await, make(&system, b"target").await);
                system.write(source, 0, &bytes, false).await.unwrap();
                system.snapshot("whole").await.unwrap();
                (source, target)
            })
            .unwrap();
        disk.set_faults(Faults { slowness: 1 + u32::try_from(world.below(20)).unwrap(), ..Faults::default() });
        let delay = || platform.tasks.sleep(Duration::from_micros(world.below(60_000)));
        let spawn = |name: &str, work: platform::task::Boxed<()>| platform.tasks.spawn(name, work);
        let (copier, wait) = (system.clone(), delay());
        spawn(
            "copy",
            Box::pin(async move {
                wait.await;
                // The source may be cut off already; what was copied is right in any case.
                copier.copy_range(Node::live(source), 0, target, 0, 1 << 30).await.unwrap();
            }),
        );
        let (cutter, wait) = (system.clone(), delay());
        spawn(
            "cut",
            Box::pin(async move {
                wait.await;
                let change = AttributeChange { size: Some(0), ..AttributeChange::default() };
                cutter.set_attributes(source, &change).await.unwrap();
                cutter.delete_snapshot("whole").await.unwrap();
            }),
        );
        let (reclaimer, wait) = (system.clone(), delay());
        spawn(
            "reclaim",
            Box::pin(async move {
                wait.await;
                reclaimer.reclaim(false).await.unwrap();
            }),
        );
        world.run_for(Duration::from_secs(100)).unwrap();
        let copied = world
            .run_until(async {
                // Twice: both superblocks forget, and what nobody marked is gone for good.
                for round in 0..4_u8 {
                    let file = make(&system, &[b'a' + round]).await;
                    system.write(file, 0, &[round], false).await.unwrap();
                    system.sync_all().await.unwrap();
                    system.commit().await.unwrap();
                    system.reclaim(false).await.unwrap();
                }
                let mut copied = vec![0; bytes.len()];
                let count = system.read(Node::live(target), 0, &mut copied).await.expect("what was copied");
                copied.truncate(count);
                copied
            })
            .unwrap();
        assert!(copied.is_empty() || copied == bytes, "{} bytes, and not those", copied.len());
        let report = world.run_until(system.check_files(&|_| {})).unwrap().unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    });
}
