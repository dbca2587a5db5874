//! Does a store with a hundred times as many chunks take more memory? Chunks of a few bytes stand for such of 96 KiB: what memory holds of a
//! chunk does not depend on its size. They are put, committed, half of them marked, and the rest given back; each phase tells the most
//! memory that it took, as the kernel counted it.
//!
//! Not here: trees, whose leaves a mark reads one by one (`file`).

use std::error::Error;
use std::path::Path;

use base::id::NodeNumber;
use bytes::Bytes;
use file::format_node;
use platform::real::{Directory, block_on};
use store::{Class, Options, Pace, Share, Store, Sweep};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// What a chunk of a store would be, on average.
const STANDS_FOR_BYTES: u64 = store::CUT_BYTES_AVERAGE as u64;
const CHUNK_BYTES: usize = 24;
/// Chunks that are put at once, and those between two commits.
const GROUP_CHUNKS: u64 = 8192;
const COMMIT_CHUNKS: u64 = 64 * GROUP_CHUNKS;

pub(crate) fn run(folder: &Path, counts: &[u64]) -> Outcome<()> {
    for count in counts {
        let place = folder.join(format!("chunks-{count}"));
        std::fs::create_dir_all(&place)?;
        let measured = measure(&place, *count);
        std::fs::remove_dir_all(&place)?;
        for (phase, most_bytes) in measured? {
            let result = serde_json::json!({
                "experiment": "chunks", "chunks": count, "stand_for_bytes": count * STANDS_FOR_BYTES, "phase": phase,
                "memory_bytes": most_bytes,
            });
            println!("{result}");
        }
    }
    Ok(())
}

fn chunk(number: u64) -> Bytes {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(CHUNK_BYTES, 0);
    bytes.into()
}

/// The most memory of each phase.
fn measure(place: &Path, count: u64) -> Outcome<Vec<(&'static str, u64)>> {
    let platform = platform::real::platform();
    let disks = vec![Directory::create(place)?];
    block_on(format_node(&platform, &disks, NodeNumber(1), 0, 0))?;
    // The cache of content would hide the rest.
    let options = Options { cache_bytes: 8 << 20, ..Options::default() };
    let mut phases = Vec::new();
    let mut phase = |name| -> Outcome<()> {
        phases.push((name, most_memory()?));
        Ok(())
    };
    block_on(async {
        forget_most_memory()?;
        let (store, found) = Store::open(&platform, &disks, options.clone()).await?;
        phase("open an empty store")?;
        let since = store.moment();
        for first in (0..count).step_by(usize::try_from(GROUP_CHUNKS)?) {
            let group = (first..count.min(first + GROUP_CHUNKS)).map(chunk).collect();
            store.put_many(Class::Data, group).await?;
            if first % COMMIT_CHUNKS == 0 {
                store.commit(since, &found.roots, store.last_logged()).await?;
            }
        }
        store.commit(since, &found.roots, store.last_logged()).await?;
        phase("put")?;
        forget_most_memory()?;
        reclaim(&platform, &store, count).await?;
        phase("mark and reclaim half")?;
        store.close().await?;
        drop(store);
        forget_most_memory()?;
        let (store, _) = Store::open(&platform, &disks, options).await?;
        phase("open")?;
        store.close().await?;
        Ok::<_, Box<dyn Error>>(())
    })?;
    Ok(phases)
}

/// Every other chunk is needed. Addresses come in no order of the disk's, as a walk over trees meets them.
async fn reclaim(platform: &platform::Platform, store: &Store, count: u64) -> Outcome<()> {
    let (share, goes_on) = (|| Share::FULL, || true);
    let pace = Pace::new(platform, &share, &goes_on);
    let mut marks = store.begin_mark(false).await?;
    for number in (0..count).step_by(2) {
        marks.add(&store.key().address(&chunk(number)));
        if marks.is_full() {
            marks.sort_in(&pace).await;
        }
    }
    let report =
        store.reclaim(marks, &Sweep { pace: &pace, is_thorough: true, wanted_bytes: None, tell: &|_, _| {} }).await?;
    if report.packs_deleted == 0 || !report.problems.is_empty() {
        return Err(format!("nothing was given back: {report:?}").into());
    }
    Ok(())
}

/// The most memory of this process since that was forgotten (`VmHWM`).
pub(crate) fn most_memory() -> Outcome<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("the kernel tells no VmHWM")?;
    Ok(line.trim_end_matches("kB").trim().parse::<u64>()? << 10)
}

#[expect(clippy::disallowed_methods, reason = "a switch of the kernel, and no file of ours")]
pub(crate) fn forget_most_memory() -> Outcome<()> {
    Ok(std::fs::write("/proc/self/clear_refs", "5")?)
}
