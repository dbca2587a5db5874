//! A cold stream from a disk that is far away, with and without each of the two measures of the read path (HydraFS, FAST'10: 36 % faster with
//! both, accesses of the cache down by 57 %, misses of data by 72 %).
//!
//! On the simulated platform: the time is virtual, and the same in each run.

use std::error::Error;
use std::time::Duration;

use base::id::{FileId, NodeNumber};
use base::metric::{Metric, Value};
use file::{FileSystem, Kind, NewFile, Node, Options, StoreOptions, Weights, format_node};
use platform::sim::{Faults, World};

/// What a program reads at once.
const READ_BYTES: usize = 128 << 10;
const FILE_BYTES: u64 = 256 << 20;
const LATENCY: Duration = Duration::from_millis(5);
const CACHE_BYTES: u64 = 16 << 20;
/// Far less than what is between two uses of a leaf.
const SMALL_CACHE_BYTES: u64 = 2 << 20;
const AHEAD_BYTES: u64 = 4 << 20;
const SEED: u64 = 1;

pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    let world = World::new(SEED);
    let disk = world.disk("far", 8 * FILE_BYTES);
    let (platform, disks) = (world.platform(), vec![disk.disk()]);
    let run = "nothing halts the machine";
    world.run_until(format_node(&platform, &disks, NodeNumber(1), 0, 0)).expect(run)?;
    let file = world.run_until(async {
        let (system, _) = FileSystem::open(&platform, &disks, Options::default()).await?;
        let new = NewFile { kind: Kind::Regular, mode: 0o644, umask: 0, uid: 0, gid: 0, device: 0, target: b"" };
        let file = system.create_file(FileId::ROOT, b"stream", &new).await?.file;
        let mut bytes = vec![0; READ_BYTES];
        for at in (0..FILE_BYTES).step_by(READ_BYTES) {
            platform.chance.fill(&mut bytes);
            system.write(file, at, &bytes, false).await?;
        }
        system.close().await?;
        Ok::<_, file::FileError>(file)
    });
    let file = file.expect(run)?;
    let stream: Vec<u64> = (0..FILE_BYTES).step_by(READ_BYTES).collect();
    // Neighbours in the file are far from each other in time: leaves are used again after much data.
    let mut random = stream.clone();
    (1..random.len()).for_each(|last| random.swap(last, world.below(last as u64 + 1) as usize));
    let patterns = [("stream", &stream, CACHE_BYTES), ("random", &random, SMALL_CACHE_BYTES)];
    let settings = [(false, false), (true, false), (false, true), (true, true)];
    for ((pattern, offsets, cache_bytes), (reads_ahead, is_weighted)) in
        patterns.iter().flat_map(|pattern| settings.map(|setting| (*pattern, setting)))
    {
        world.restart();
        disk.set_faults(Faults::default());
        let cache_weights = if is_weighted { Weights::WEIGHTED } else { Weights::EQUAL };
        let options = Options {
            read_ahead_bytes_max: if reads_ahead { AHEAD_BYTES } else { 0 },
            store: StoreOptions { cache_bytes, cache_weights, ..StoreOptions::default() },
            ..Options::default()
        };
        let (system, _) = world.run_until(FileSystem::open(&platform, &disks, options)).expect(run)?;
        disk.set_faults(Faults { latency: LATENCY, ..Faults::default() });
        let started = platform.clock.elapsed();
        let read = world.run_until(async {
            let mut buffer = vec![0; READ_BYTES];
            for at in offsets {
                system.read(Node::live(file), *at, &mut buffer).await?;
            }
            Ok::<_, file::FileError>(())
        });
        read.expect(run)?;
        let time = platform.clock.elapsed() - started;
        println!("{}", result(pattern, reads_ahead, is_weighted, time, &system.status().metrics));
    }
    Ok(())
}

fn result(
    pattern: &str,
    reads_ahead: bool,
    is_weighted: bool,
    time: Duration,
    metrics: &[Metric],
) -> serde_json::Value {
    let count = |name: &str| {
        let found = metrics.iter().find(|metric| metric.description.key() == name);
        match found.map(|metric| &metric.value) {
            Some(Value::Number(count)) => *count,
            _ => panic!("there is a counter {name}"),
        }
    };
    let [data_hits, data_misses] = ["store_cache_data_hits", "store_cache_data_misses"].map(count);
    let [metadata_hits, metadata_misses] = ["store_cache_metadata_hits", "store_cache_metadata_misses"].map(count);
    serde_json::json!({
        "experiment": "far", "pattern": pattern, "reads_ahead": reads_ahead, "weighted": is_weighted,
        "megabytes_per_second": FILE_BYTES as f64 / 1e6 / time.as_secs_f64(),
        "accesses": data_hits + data_misses + metadata_hits + metadata_misses,
        "data_misses": data_misses, "metadata_misses": metadata_misses,
    })
}
