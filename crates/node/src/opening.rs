//! From a node's folder to an open file system: options from settings, and failures in the user's words.

use std::sync::Arc;

use base::id::FileId;
use file::{FileError, FileSystem, OpenReport, Share, StoreError, Weights};
use platform::Platform;
use platform::disk::{Disk, DiskError, DiskErrorKind};
use platform::real::carry_out;

use crate::config::{Compression, Config};
use crate::failure::Failure;
use crate::node_folder::NodeFolder;

/// Memory that an inode takes with its share of maps, about.
const INODE_BYTES: u64 = 1024;
/// The same of a file with changes that no commit covers, and while a commit has it in hand: an inode of 900 bytes, 350 that the commit has
/// of it, the few extents of most files twice, maps, and what the allocator rounds up.
const UNCOMMITTED_BYTES: u64 = 2048;
/// A chunk that the index file does not have yet, about: an entry of its pack and one of a map.
const PENDING_CHUNK_BYTES: u64 = 160;
/// What the daemon takes whatever it does, beside the transport's buffers: code, stacks, contexts to compress with, and what the allocator
/// knows and has not given back yet (measured, beside programs that keep every processor busy).
const FIXED_BYTES: u64 = 28 << 20;
/// Runs of packs that are filled, written or kept for the next one, for each disk, and what each takes beyond the run: a chunk that begins before it, and
/// one that ends behind it.
const RUNS: u64 = 7;
const BESIDE_RUN_BYTES: u64 = 2 * file::CUT_BYTES_MAX as u64;
/// Of so many bytes the parts count two, and the others are resident all the same (measured): room to grow of hash tables and vectors, heads
/// of small things, what a flush, a commit or a pass of reclaim has in hand, what an allocator keeps.
const RESIDENT_FOR_TWO: u64 = 5;

/// Groups of a flush that the store takes at a time: some are hashed and compressed while others are written.
const GROUPS_AT_A_TIME: u64 = 5;

/// Opens the file system of a node whose lock the caller holds. `references`: what the kernel has of it, from a process before.
pub(crate) fn open(
    folder: &NodeFolder,
    config: &Config,
    platform: &Platform,
    references: &[(FileId, u32)],
) -> Result<(Arc<FileSystem>, OpenReport), Failure> {
    let disks = folder.disks()?;
    let mut options = options(config, ram_bytes(), disks.len());
    options.store.goes_without_disks = folder.goes_without_disks;
    carry_open(platform, &disks, options, references).map_err(|error| explain("cannot open the node", folder, &error))
}

/// On a thread that waits for disks: an opening reads much.
fn carry_open(
    platform: &Platform,
    disks: &[Disk],
    options: file::Options,
    references: &[(FileId, u32)],
) -> Result<(Arc<FileSystem>, OpenReport), FileError> {
    let (platform, disks, references) = (platform.clone(), disks.to_vec(), references.to_vec());
    carry_out(async move { FileSystem::open_in_use(&platform, &disks, options, &references).await })
}

/// The same for a repair: opens although frames of the journal are lost, or cannot be applied, and tells which. `plan` hears why before
/// anything is given up.
pub(crate) fn open_with_loss(
    folder: &NodeFolder,
    config: &Config,
    platform: &Platform,
    plan: &dyn Fn(&str),
) -> Result<(Arc<FileSystem>, OpenReport, Option<String>), Failure> {
    let disks = folder.disks()?;
    let mut options = options(config, ram_bytes(), disks.len());
    options.store.goes_without_disks = folder.goes_without_disks;
    let cannot = |error| explain("cannot open the node", folder, &error);
    let opened = carry_open(platform, &disks, options.clone(), &[]);
    // F-4: what else is lost may lie on a disk that is missing.
    let is_without = options.store.goes_without_disks;
    match opened {
        Err(error) if is_without && !matches!(error, FileError::Store(StoreError::JournalMissing { .. })) => {
            Err(cannot(error))
        }
        Err(
            error @ FileError::Store(
                StoreError::FramesLost { .. } | StoreError::TwoHistories { .. } | StoreError::JournalMissing { .. },
            ),
        ) => {
            plan(&error.to_string());
            options.store.gives_up_frames = true;
            let (system, report) = carry_open(platform, &disks, options, &[]).map_err(cannot)?;
            Ok((system, report, Some(error.to_string())))
        }
        Err(error @ FileError::Store(StoreError::Corrupt { .. } | StoreError::Absent { .. })) => {
            plan(&error.to_string());
            options.gives_up_records = true;
            let (system, report) = carry_open(platform, &disks, options, &[]).map_err(cannot)?;
            let files = report.given_up.iter().map(|file| format!(" {file}")).collect::<String>();
            let of_files = (!files.is_empty()).then(|| format!(". Changes of these files are lost:{files}"));
            let rest = report.rest_given_up.as_ref().map(|place| format!(". All changes from {place} on are lost"));
            let given_up = (of_files.is_some() || rest.is_some())
                .then(|| format!("{error}{}{}", of_files.unwrap_or_default(), rest.unwrap_or_default()));
            Ok((system, report, given_up))
        }
        opened => opened.map(|(system, report)| (system, report, None)).map_err(cannot),
    }
}

/// Says in the log what opening had to mend.
pub(crate) fn log(report: &OpenReport) {
    let store = &report.store;
    let is_clean = report.frames == 0 && report.orphans == 0 && store.packs_cut == 0 && store.frames_cut == 0;
    if !is_clean {
        tracing::info!(
            "recovered: {} journal frames with {} records, {} unlinked files ended, {} packs cut, {} frames dropped",
            report.frames,
            report.records,
            report.orphans,
            store.packs_cut,
            store.frames_cut
        );
    }
    if report.passed_over > 0 {
        tracing::info!("{} of the records are of clones that had been removed", report.passed_over);
    }
    if let Some(why) = &store.index_made_again {
        tracing::warn!("the index was made again: {why}");
    }
    store.mended.iter().for_each(|problem| tracing::warn!("{problem}; it was written again"));
    report.problems.iter().for_each(|problem| tracing::warn!("{problem}"));
    store.problems.iter().for_each(|problem| tracing::warn!("{problem}"));
}

/// What opening has put right, each with the number by which a check would have told of it.
pub(crate) fn mended(report: &OpenReport) -> Vec<String> {
    let store = &report.store;
    let index = store.index_made_again.iter().map(|why| format!("HF0010 the index, made again: {why}"));
    store.mended.iter().map(ToString::to_string).chain(index).collect()
}

/// The options of the layers below, with the memory budget divided among them: a part of it is for code, stacks and the transport's
/// buffers, a part for what nobody counts; of the rest a third caches chunks.
fn options(config: &Config, ram_bytes: u64, disk_count: usize) -> file::Options {
    let memory = config.memory(ram_bytes);
    let transport = u64::from(config.request_bytes(ram_bytes, cpus())) * u64::from(config.queue_depth) * cpus() as u64;
    let disk_count = disk_count.max(1) as u64;
    let fixed = FIXED_BYTES + transport + disk_count * RUNS * BESIDE_RUN_BYTES;
    let shared = memory.saturating_sub(fixed).max(memory / 4) * 2 / RESIDENT_FOR_TWO;
    let count = |bytes: u64, each: u64| usize::try_from(bytes / each).unwrap_or(usize::MAX);
    let mut options = file::Options {
        dirty_bytes_max: shared / 6,
        group_bytes: count(shared / 192, 1).clamp(256 << 10, 2 << 20),
        flush_interval: config.flush_interval,
        commit_interval: config.commit_interval,
        // Twice as much may wait while a commit runs.
        commit_journal_bytes: (shared / 24).min(64 << 20),
        unlogged_files_max: count(shared / 12, INODE_BYTES),
        pending_log_bytes: (shared / 96).min(4 << 20),
        uncommitted_files_max: count(shared / 12, UNCOMMITTED_BYTES),
        inodes_max: count(shared / 12, INODE_BYTES),
        access_times: config.access_times,
        background_share: Share::percent(config.background_share).unwrap_or(Share::DEFAULT),
        repair_share: Share::percent(config.repair_share).unwrap_or(Share::DEFAULT),
        scrub_interval: config.scrub_interval,
        layout_interval: config.layout_interval,
        ..file::Options::default()
    };
    options.store.cache_bytes = shared / 3;
    options.store.cache_weights = if config.weighs_cache { Weights::WEIGHTED } else { Weights::EQUAL };
    // What one reader has ahead of it fits the cache with that of others.
    options.read_ahead_bytes_max = config.prefetch_bytes.min(options.store.cache_bytes / 4);
    options.directory_ahead_bytes_max = config.prefetch_directory_bytes;
    options.batch_bytes_max = (shared / 12).min(256 << 20);
    options.store.put_bytes_max = GROUPS_AT_A_TIME * (options.group_bytes + file::CUT_BYTES_MAX) as u64;
    options.store.ahead_bytes_max = count(shared / 24, 1).min(8 << 20) as u32;
    options.store.index_cache_bytes = shared / 12;
    options.store.run_bytes =
        count(shared / 48 / disk_count, 1).clamp(*file::RUN_BYTES.start(), *file::RUN_BYTES.end());
    // Each disk has two packs in hand, and as much may wait for the index file.
    let packs = 2 * disk_count + 1;
    options.store.pack_chunks_max = count(shared / 12, PENDING_CHUNK_BYTES * packs).clamp(1024, 64 << 10);
    options.store.copies = config.copies;
    options.store.fragments = config.fragments;
    options.store.compression = match config.compression {
        Compression::None => file::Compression::None,
        Compression::Zstd(level) => file::Compression::Zstd(level),
    };
    options
}

/// All memory of this machine.
pub(crate) fn ram_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    // The fields' types differ per architecture.
    #[allow(clippy::useless_conversion, clippy::unnecessary_cast, reason = "u64 on some architectures")]
    let bytes = (info.totalram as u64).saturating_mul(info.mem_unit as u64);
    bytes
}

/// CPUs of this machine.
pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// What a failure of the layers below means to a user.
pub(crate) fn explain(what: &str, folder: &NodeFolder, error: &FileError) -> Failure {
    let at_node = |why: String| Failure::new(what, why).at(&folder.path);
    match error {
        FileError::NoSpace => at_node(error.to_string()).mend("make room on them, then try again"),
        FileError::ReadOnly => at_node(error.to_string()).mend("`hydrafs status` says why it takes no changes"),
        FileError::Busy(_) => at_node(error.to_string()).mend("try again when that is over"),
        FileError::Store(StoreError::Refused { path, why, advice }) => {
            Failure::new(what, why.trim_end_matches('.')).place(&**path).mend(format!("{advice} Nothing was changed"))
        }
        FileError::Store(StoreError::Corrupt { what: part, path, offset, expected, found }) => Failure::new(
            what,
            format!("{part} at byte {offset} is damaged: expected {expected}, found {found}"),
        )
        .place(&**path)
        .mend("check the disk; `hydrafs fsck` lists all damage; `hydrafs fsck --repair --accept-loss` goes on without it; \
               bring the file back from a backup if you have one"),
        FileError::Store(StoreError::FramesLost { path, offset, first, last, behind, witness }) => Failure::new(
            what,
            format!(
                "the journal is damaged at byte {offset}: the changes of frames {first} to {last} are lost ({witness} knew them to be \
                 durable; {behind} of them can be read and make no sense without the first)"
            ),
        )
        .place(&**path)
        .mend("check the disk; `hydrafs fsck --repair --accept-loss` goes on with what was before them; nothing was changed"),
        FileError::Store(StoreError::TwoHistories { newer, older }) => {
            Failure::new(what, format!("this disk and {older} were each used without the other, and each has what the other has not"))
                .place(&**newer)
                .mend(format!(
                    "name the node without one of them (`--degraded`) to see what it has and to copy it; `hydrafs fsck --repair \
                     --accept-loss` goes on with what {newer} has; nothing was changed"
                ))
        }
        FileError::Store(StoreError::JournalMissing { path, why }) => {
            Failure::new(what, why.trim_end_matches('.')).place(&**path).mend(
                "mount the missing disk and name it too; where it is gone for good, `hydrafs fsck --degraded --repair --accept-loss` goes on from \
                 the last commit, without what was written after it; nothing was changed",
            )
        }
        FileError::Store(StoreError::Disk(error)) => explain_disk(what, error),
        error => at_node(error.to_string()),
    }
}

/// What a failure of a disk means to a user.
pub(crate) fn explain_disk(what: &str, error: &DiskError) -> Failure {
    let mend = match error.kind {
        DiskErrorKind::Absent => "mount or reconnect the disk, or bring its files back",
        DiskErrorKind::Full => "make room on the disk, then try again",
        DiskErrorKind::ReadOnly => {
            "mount the disk for writing (if it turned read-only by itself, check it first: see dmesg)"
        }
        DiskErrorKind::Denied => "run the command as the user who owns the disk's folder, or as root",
        DiskErrorKind::Locked => "another process uses the disk; end it first",
        DiskErrorKind::Exists | DiskErrorKind::Short | DiskErrorKind::Silent | DiskErrorKind::Failed => {
            "check the disk: see dmesg and smartctl"
        }
    };
    Failure::new(what, format!("cannot {}: {}", error.operation, error.detail)).place(error.path.clone()).mend(mend)
}

#[cfg(test)]
mod tests {
    use super::options;
    use crate::config::Config;

    #[test]
    fn the_parts_stay_within_the_budget() {
        for memory in [64 << 20, 256 << 20, 4 << 30] {
            let config = Config { memory_bytes: Some(memory), ..Config::default() };
            let options = options(&config, 0, 1);
            let parts = [
                3 * options.store.pack_chunks_max as u64 * super::PENDING_CHUNK_BYTES,
                options.pending_log_bytes,
                super::RUNS * (options.store.run_bytes as u64 + super::BESIDE_RUN_BYTES),
                u64::from(options.store.ahead_bytes_max),
                options.unlogged_files_max as u64 * super::INODE_BYTES,
                u64::from(config.request_bytes(0, 4)) * u64::from(config.queue_depth) * 4,
                options.dirty_bytes_max,
                options.store.cache_bytes,
                options.store.index_cache_bytes,
                // Cut beside them.
                options.group_bytes as u64,
                options.store.put_bytes_max,
                2 * options.commit_journal_bytes,
                2 * options.uncommitted_files_max as u64 * super::UNCOMMITTED_BYTES,
                options.inodes_max as u64 * super::INODE_BYTES,
            ];
            assert!(parts.iter().sum::<u64>() <= memory, "{parts:?} of {memory}");
        }
    }
}
