//! Marking: which chunks, of the packs that are there, does somebody need?
//!
//! [`Store::begin_mark`] brings all packs to their end and lists them. Then the caller adds the addresses that it finds needed, in any
//! order and as often as it meets them; they wait until they are many, and [`Marks::sort_in`] goes through the directories of the listed
//! packs and gives each chunk among them its bit. So a mark takes a bit for each chunk that there is, and what waits; and what is made
//! meanwhile has no bit and needs none, for it lies in packs that are not listed.
//!
//! L-5  Packs are listed before the pins begin, and only those that take no more chunks. What is put later either lies in other packs or
//!      is a duplicate, and pinned (L-1).
//!
//! Of an address that waits the first 8 bytes are kept. Two chunks that share them keep each other; nothing worse.
//!
//! Not here: who needs what (the caller), what becomes of the rest (`reclaim`).

use std::collections::BTreeMap;

use base::id::ChunkAddress;
use platform::disk::{DiskError, File};

use crate::failure::{StoreError, corrupt};
use crate::format::{Entry, PackFooter};
use crate::index::head;
use crate::pace::Pace;
use crate::pack::scan::{read_directory, read_footer};
use crate::pack::{PackKnown, PackState};
use crate::store::Store;

/// Part of the chunk cache's room that addresses may take while they wait, 8 bytes each.
const WAITING_PART: u64 = 8;
/// The least of them: to go through all directories costs something.
const WAITING_MIN: usize = 1024;
/// Part of it for what is pinned meanwhile, and the least of that.
const PINS_PART: u64 = 16;
const PINS_BYTES_MIN: u64 = 1 << 20;

/// A mark that runs. It ends when this is dropped.
#[must_use]
pub struct Marks<'a> {
    store: &'a Store,
    /// Only to tell what there is to gain.
    pub(crate) is_rehearsal: bool,
    /// Of each listed pack a bit for each chunk, in the order of its directory.
    packs: BTreeMap<u64, Vec<u64>>,
    /// Heads of addresses.
    waiting: Vec<u64>,
    waiting_max: usize,
    /// Packs whose directories could not be read, and why: they stay.
    pub(crate) problems: Vec<String>,
}

impl Drop for Marks<'_> {
    fn drop(&mut self) {
        self.store.packs.index.end_mark();
    }
}

impl Store {
    /// Lists the packs that may be given back, and keeps from now on every chunk that is found to be there already. Who put a chunk before
    /// that, and has not named it yet, must be waited for; then the caller may begin to find out what is needed. A rehearsal changes
    /// nothing on the disks.
    ///
    /// # Errors
    /// Why chunks could not be made durable.
    pub async fn begin_mark(&self, is_rehearsal: bool) -> Result<Marks<'_>, StoreError> {
        if !is_rehearsal {
            self.packs.try_rotten();
            // Open packs take part too.
            self.packs.settle_appended().await?;
            self.packs.seal_all().await;
            self.keep_index().await;
        }
        let known = self.packs.known().into_iter().filter(|(_, known)| matches!(known.state, PackState::Sealed));
        let bits = |known: &PackKnown| vec![0; (known.summary.count as usize).div_ceil(64)];
        let packs = known.map(|(pack, known)| (pack, bits(&known))).collect();
        self.packs.index.begin_mark((self.options.cache_bytes / PINS_PART).max(PINS_BYTES_MIN));
        let room = usize::try_from(self.options.cache_bytes / WAITING_PART / 8).unwrap_or(usize::MAX);
        let waiting_max = room.max(WAITING_MIN);
        Ok(Marks { store: self, is_rehearsal, packs, waiting: Vec::new(), waiting_max, problems: Vec::new() })
    }

    /// The directory of a sealed pack, and the bytes of its file.
    pub(crate) async fn directory(&self, pack: u64, known: &PackKnown) -> Result<(Vec<Entry>, u64), StoreError> {
        if known.summary.lacks_directory {
            // O-6. It may be readable by now, and then has more than the index knows: an opening takes that in.
            let found = "one that could not be read when the index was made: repair, or restart the daemon";
            let path = self.packs.path_of(pack);
            return Err(corrupt("a pack in fragments", &path, 0, "a directory", found));
        }
        let mut known = known.clone();
        loop {
            let mut failure = None;
            // The first that is whole counts.
            for file in self.packs.to_read(pack, &known) {
                match directory_of(file, pack).await {
                    Ok(directory) => return Ok(directory),
                    Err(error) => failure = Some(error),
                }
            }
            // It may have been cut into fragments meanwhile, or left a disk.
            match self.packs.known_pack(pack).filter(|now| !now.is_where(&known)) {
                Some(now) => known = now,
                None => return Err(failure.expect("a pack is somewhere")),
            }
        }
    }
}

async fn directory_of(file: Result<File, DiskError>, pack: u64) -> Result<(Vec<Entry>, u64), StoreError> {
    let file = file?;
    let footer = read_footer(&file, pack)
        .await?
        .map_err(|unfit| corrupt("the footer of a pack", file.path(), 0, unfit.expected, unfit.found))?;
    let entries = read_directory(&file, &footer).await?;
    Ok((entries, u64::from(footer.data_bytes) + footer.directory_bytes() + PackFooter::BYTES as u64))
}

impl Marks<'_> {
    /// Notes that a chunk is needed.
    pub fn add(&mut self, address: &ChunkAddress) {
        self.waiting.push(head(address));
    }

    /// Whether so many wait that it is time to [`Marks::sort_in`].
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= self.waiting_max
    }

    /// Gives their bits to the chunks that wait.
    pub async fn sort_in(&mut self, pace: &Pace<'_>) {
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.sort_unstable();
        waiting.dedup();
        if !waiting.is_empty() {
            self.keep(&|address| waiting.binary_search(&head(address)).is_ok(), pace).await;
        }
        waiting.clear();
        self.waiting = waiting;
    }

    /// Gives their bits to all chunks of which `is_needed` says so, and to what is left of such.
    pub(crate) async fn keep(&mut self, is_needed: &(dyn Fn(&ChunkAddress) -> bool + Sync), pace: &Pace<'_>) {
        let known = self.store.packs.known();
        let mut lost = Vec::new();
        for (pack, bits) in &mut self.packs {
            // An end is for who marks, not for half of what is marked.
            pace.step().await;
            // What went meanwhile was repaired, and lies elsewhere.
            let Some(known) = known.get(pack) else {
                lost.push(*pack);
                continue;
            };
            let entries = match self.store.directory(*pack, known).await {
                Ok((entries, _)) => entries,
                Err(error) => {
                    self.problems.push(format!("{} stays: {error}", self.store.packs.path_of(*pack)));
                    lost.push(*pack);
                    continue;
                }
            };
            bits.resize(bits.len().max(entries.len().div_ceil(64)), 0);
            let is_needed = |entry: &Entry| is_needed(&entry.header.whole().address);
            for (number, _) in entries.iter().enumerate().filter(|(_, entry)| is_needed(entry)) {
                bits[number / 64] |= 1 << (number % 64);
            }
        }
        lost.iter().for_each(|pack| drop(self.packs.remove(pack)));
    }

    /// Whether the pack was there when the mark began, and could be read since.
    pub(crate) fn lists(&self, pack: u64) -> bool {
        self.packs.contains_key(&pack)
    }

    /// Whether the chunk with this number in the directory of a listed pack is needed.
    pub(crate) fn has(&self, pack: u64, number: usize) -> bool {
        self.packs[&pack].get(number / 64).is_some_and(|word| word & 1 << (number % 64) != 0)
    }
}
