//! Status: what a person may want to know about an open store, as plain numbers and words.

use std::sync::Arc;

use base::metric::Metric;
use platform::disk::DiskCounters;

use crate::format::{Class, Summary};
use crate::level::Erasure;
use crate::pack::PackState;
use crate::pack::fragments::Fragments;
use crate::pool::{Part, Pool, PoolDisk};
use crate::scrub::ScrubStatus;
use crate::speed::DiskSpeed;
use crate::store::Store;

/// A disk of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskStatus {
    /// Its number, from 0.
    pub number: u64,
    /// Its path.
    pub path: String,
    /// Its uuid in hexadecimal digits.
    pub uuid: String,
    /// Whether it takes writes.
    pub is_good: bool,
    /// Whether the store was opened without it.
    pub is_missing: bool,
    /// Whether it takes nothing new, and what it has is brought to others.
    pub is_drained: bool,
    /// Whether it owes an answer that somebody waited for in vain.
    pub is_silent: bool,
    /// `good`, that it does not answer or failed to read, or what failed.
    pub health: String,
    /// Reads since the store was opened that it failed, or answered with wrong bytes. Nothing new goes there while another has room.
    pub reads_failed: u64,
    /// What it takes for a request, once that was measured.
    pub speed: Option<DiskSpeed>,
    /// Its size.
    pub total_bytes: u64,
    /// What is free on it, the reserve included.
    pub free_bytes: u64,
    /// Packs on it.
    pub packs: u64,
    /// Bytes of headers and chunks in them.
    pub pack_bytes: u64,
    /// Chunks in them.
    pub chunks: u64,
    /// Content of those.
    pub content_bytes: u64,
    /// Fragments of packs on it.
    pub fragments: u64,
    /// Bytes of those.
    pub fragment_bytes: u64,
    /// What nobody could read without it: no other disk that takes writes has all of it, or enough of its fragments.
    pub alone: MissingStatus,
    /// Whether the journal lies on it.
    pub has_journal: bool,
    /// Whether the index lies on it.
    pub has_index: bool,
}

/// All packs of one class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassStatus {
    /// Packs.
    pub packs: u64,
    /// Of them, open ones.
    pub packs_open: u64,
    /// Chunks in them, those that nobody needs any more included.
    pub chunks: u64,
    /// Bytes of headers and chunks in them, as stored.
    pub stored_bytes: u64,
    /// Content of their chunks.
    pub content_bytes: u64,
}

/// Packs of which something is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingStatus {
    /// Packs.
    pub packs: u64,
    /// Bytes of headers and chunks in them.
    pub pack_bytes: u64,
    /// Chunks in them. What was put since is on other disks too.
    pub chunks: u64,
    /// Content of those.
    pub content_bytes: u64,
}

impl MissingStatus {
    fn add(&mut self, summary: &Summary) {
        self.packs += 1;
        self.pack_bytes += u64::from(summary.data_bytes);
        self.chunks += u64::from(summary.count);
        self.content_bytes += summary.raw_bytes;
    }
}

/// Packs that are in fragments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CutStatus {
    /// Packs.
    pub packs: u64,
    /// Bytes of headers and chunks in them.
    pub pack_bytes: u64,
    /// Fragments of them that are there.
    pub fragments: u64,
    /// Bytes of those.
    pub fragment_bytes: u64,
    /// What the settings ask for.
    pub asked: Option<Erasure>,
    /// How many disks more that takes: until they are there content lies in copies.
    pub disks_lacking: u64,
}

/// A store at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreStatus {
    /// How old the last check of what is stored is.
    pub scrub: ScrubStatus,
    /// The node's number.
    pub node: u64,
    /// The node's identity in hexadecimal digits.
    pub node_identity: String,
    /// By number, which may leave some out.
    pub disks: Vec<DiskStatus>,
    /// What the index knows of and no disk has, while one is missing: it lies on the missing ones, on all of them together. In
    /// `metadata` and `data` too.
    pub missing: MissingStatus,
    /// What is on fewer disks than it should be.
    pub lacking: MissingStatus,
    /// What is in fragments. In `data` too.
    pub cut: CutStatus,
    /// Packs of trees.
    pub metadata: ClassStatus,
    /// Packs of file content.
    pub data: ClassStatus,
    /// Entries of the index file.
    pub index_entries: u64,
    /// Entries in memory that the index file does not have yet.
    pub recent_entries: u64,
    /// Generation of the newest superblock.
    pub generation: u64,
    /// Frames up to here are in the roots of that superblock.
    pub covered: u64,
    /// The newest frame.
    pub last_logged: u64,
    /// The newest durable frame.
    pub last_durable: u64,
    /// Bytes of frames since the newest superblock.
    pub journal_bytes: u64,
    /// Journal segments on disk, spare ones included.
    pub journal_segments: u64,
    /// Why the journal takes no more frames, if so.
    pub journal_failure: Option<String>,
    /// Bytes of chunks in the cache.
    pub cache_bytes: u64,
}

impl StoreStatus {
    /// Chunks of both classes.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.metadata.chunks + self.data.chunks
    }
}

impl StoreStatus {
    fn count_fragments(&mut self, fragments: &Fragments, summary: &Summary, is_cut: bool) {
        let bytes = fragments.cut.file_bytes();
        for (_, number) in fragments.each() {
            if let Some(disk) = self.disks.iter_mut().find(|disk| disk.number == number as u64) {
                disk.fragments += 1;
                disk.fragment_bytes += bytes;
            }
        }
        if is_cut {
            self.cut.packs += 1;
            self.cut.pack_bytes += u64::from(summary.data_bytes);
            self.cut.fragments += fragments.each().count() as u64;
            self.cut.fragment_bytes += fragments.each().count() as u64 * bytes;
        }
    }
}

impl Store {
    /// What each disk was asked for and how long that took, disk after disk for each metric; nothing of one that is not measured.
    #[must_use]
    pub fn disk_metrics(&self) -> Vec<Metric> {
        let measured = |(number, disk): (usize, &PoolDisk)| Some((number, disk.disk.counters()?.list()));
        let lists: Vec<_> = self.pool.there().filter_map(measured).collect();
        let of_all = |at: usize| {
            let of_one = move |(number, list): &(usize, Vec<Metric>)| Metric {
                label: Some(("disk", number.to_string())),
                ..list[at].clone()
            };
            lists.iter().map(of_one)
        };
        (0..DiskCounters::DESCRIPTIONS.len()).flat_map(of_all).collect()
    }

    /// Whether a disk is missing: what is not found may lie there.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.pool.missing().is_some()
    }

    /// The store as it is now.
    #[must_use]
    pub fn status(&self) -> StoreStatus {
        let mut status = StoreStatus {
            scrub: self.scrub_status(),
            node: u64::from(self.node().0),
            node_identity: crate::identity::hex(&self.pool.node_identity),
            disks: disks(&self.pool),
            index_entries: self.packs.index.file().count(),
            recent_entries: self.packs.index.recent_count() as u64,
            last_logged: self.last_logged().0,
            last_durable: self.last_durable().0,
            journal_bytes: self.journal_bytes(),
            journal_segments: self.journal.segment_count(),
            journal_failure: self.journal.failure().map(|failure| failure.to_string()),
            cache_bytes: self.cached_bytes(),
            ..StoreStatus::default()
        };
        (status.generation, status.covered) = self.newest_superblock();
        status.cut.asked = self.options.fragments;
        let asked = self.options.fragments.map_or(0, Erasure::count);
        status.cut.disks_lacking = asked.saturating_sub(self.pool.takers().count()) as u64;
        let good = self.pool.good();
        for known in self.packs.known().into_values() {
            let summary = match &known.state {
                PackState::Open(pack) => pack.summary(),
                PackState::Sealed | PackState::Missing => known.summary,
            };
            if matches!(known.state, PackState::Missing) {
                status.missing.add(&summary);
            } else {
                let disks = known.disks();
                for number in disks.iter() {
                    let Some(disk) = status.disks.iter_mut().find(|disk| disk.number == number as u64) else {
                        continue;
                    };
                    disk.packs += 1;
                    disk.pack_bytes += u64::from(summary.data_bytes);
                    disk.chunks += u64::from(summary.count);
                    disk.content_bytes += summary.raw_bytes;
                }
                for disk in &mut status.disks {
                    let number = disk.number as usize;
                    let others = good.without(number);
                    let has_enough = |fragments: &Arc<Fragments>| fragments.is_readable_on(others);
                    let is_elsewhere = !disks.both(others).is_empty() || known.fragments().is_some_and(has_enough);
                    if known.places().has(number) && !is_elsewhere {
                        disk.alone.add(&summary);
                    }
                }
                if let Some(fragments) = known.fragments() {
                    status.count_fragments(fragments, &summary, known.is_cut());
                }
                if self.packs.is_short(&known, &summary) {
                    status.lacking.add(&summary);
                }
            }
            let class = match summary.class {
                Class::Metadata => &mut status.metadata,
                Class::Data => &mut status.data,
            };
            class.packs += 1;
            class.packs_open += u64::from(matches!(known.state, PackState::Open(_)));
            class.chunks += u64::from(summary.count);
            class.stored_bytes += u64::from(summary.data_bytes);
            class.content_bytes += summary.raw_bytes;
        }
        status
    }
}

/// The health of a disk that takes writes, but has not said how much room it has.
const SILENT: &str = "it does not answer: see the system's log";

fn disks(pool: &Arc<Pool>) -> Vec<DiskStatus> {
    let status = |(number, disk): (usize, &PoolDisk)| {
        let space = disk.disk.space().unwrap_or_default();
        DiskStatus {
            number: number as u64,
            path: disk.disk.path().to_owned(),
            uuid: crate::identity::hex(&disk.uuid),
            is_good: disk.is_good(),
            is_missing: disk.is_missing,
            is_drained: disk.part() == Part::Drained,
            is_silent: disk.disk.is_silent(),
            health: match disk.reads_failed() {
                _ if (space.is_late || disk.disk.is_silent()) && disk.is_good() => SILENT.to_owned(),
                failed if failed > 0 && disk.is_good() => format!("it failed {failed} reads"),
                _ if disk.is_good() && disk.part() == Part::Drained => {
                    "it is drained: nothing new goes there".to_owned()
                }
                _ => disk.words(),
            },
            reads_failed: disk.reads_failed(),
            speed: disk.speed(),
            total_bytes: space.total,
            free_bytes: space.free,
            has_journal: pool.homes().has(number),
            has_index: pool.index_disk() == number,
            ..DiskStatus::default()
        }
    };
    pool.disks.iter().map(status).collect()
}
