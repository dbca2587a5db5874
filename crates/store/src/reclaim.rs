//! Reclaim: giving back the room of chunks that nobody needs any more.
//!
//! The caller knows which chunks are needed, the store knows where they lie. First the caller says [`Store::begin_mark`], then it finds
//! out what its roots and its memory name (`mark`), then it says [`Store::reclaim`]. Packs without a needed chunk go. Of packs that are
//! mostly dead the needed chunks are copied out first.
//!
//! L-1   What is found to be there by a put or by `contains` after `begin_mark` is kept, needed or not: it is pinned before the look at
//!       whether its pack is condemned, and a pack is condemned before the pins are looked at. Either the put sees the condemned pack and
//!       stores anew, or reclaim sees the pin.
//! L-2   A pack's file is removed only when, in this order, its needed chunks are durable elsewhere, the index names nothing in it,
//!       and both slots of the superblock hold roots that were in force since the mark began: an older one might need it.
//! L-3   A crash at any point leaves a pack that is whole. The next open finds it and indexes it again; the next reclaim removes it.
//! L-4   A copy that is needed goes for the sake of another one only if the index names that other place and the chunk was read there
//!       and verified: the index may be stale, a pack may be missing, and what lies there may have rotted. Nor does it go for one that
//!       lies on fewer disks than it should, where this lies on more, or on one that the other does not lie on: both together survive what the
//!       other would not.
//! L-6   A pack that cannot be copied, for a chunk of it is good nowhere, is emptied as far as it can be: what is needed and good goes where
//!       there are enough copies of it. The pack goes unless somebody needs what is not good.
//! L-8   A bundle is needed as far as what lies in it is: by itself it counts for nothing, and each chunk in it for its share.
//! L-9   Copies take room before any is given back, on full disks out of the reserve. They never take all of it: what follows needs some too, and
//!       so do commits.
//!
//! Not here: which chunks are needed, and when to ask.

use std::collections::BTreeSet;

use base::id::ChunkAddress;
use platform::disk::{DiskErrorKind, RUN_ALIGN};

use crate::failure::StoreError;
use crate::format::{Class, Codec, Entry, PACKS, Place, lots_of};
use crate::mark::Marks;
use crate::pace::Pace;
use crate::pack::{Copied, Memo, Moment, PackKnown, PackState};
use crate::store::Store;

/// A pack is compacted when less than this part of it is needed.
const SPARSE_PART: u64 = 2;

/// Bytes that are copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// L-9: this part of the reserve may be filled with copies before the packs that they came from go, and this one they leave.
const COPIED_PART: u64 = 8;
const LEFT_PART: u64 = 4;

/// How [`Store::reclaim`] goes about it.
pub struct Sweep<'a> {
    /// Its pace; after the end of it no other pack is looked at, and what was emptied by then goes.
    pub pace: &'a Pace<'a>,
    /// Packs are compacted for the sake of a single chunk that nobody needs.
    pub is_thorough: bool,
    /// It ends when it has given back so many bytes.
    pub wanted_bytes: Option<u64>,
    /// Hears of packs that were looked at, and of how many there are.
    pub tell: &'a (dyn Fn(u64, u64) + Sync),
}

/// What [`Store::reclaim`] did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReclaimReport {
    /// Packs that were examined.
    pub packs_examined: u64,
    /// Of them, packs without a chunk that is needed.
    pub packs_dead: u64,
    /// Of them, packs whose few needed chunks are copied to other packs.
    pub packs_sparse: u64,
    /// Packs that chunks were still put into: nobody looked at those.
    pub packs_open: u64,
    /// Packs removed.
    pub packs_deleted: u64,
    /// Bytes of the files removed, or that would be.
    pub bytes_freed: u64,
    /// Bytes copied out of sparse packs, or that would be.
    pub bytes_copied: u64,
    /// Packs that were left for a later pass: the index did not know them yet, or there was no room for copies.
    pub packs_left: u64,
    /// Bytes of chunks that nobody needs in packs that stay because most of them is needed.
    pub bytes_dead_left: u64,
    /// What was left alone because it could not be read or written, in words.
    pub problems: Vec<String>,
}

/// What the directory of a pack says, and what of it is needed.
struct Examined {
    pack: u64,
    entries: Vec<Entry>,
    /// Bytes that each takes.
    shares: Vec<u64>,
    /// The numbers of those that are needed.
    live: Vec<usize>,
    file_bytes: u64,
    /// L-6.
    is_rotten: bool,
}

impl Examined {
    fn new(pack: u64, entries: Vec<Entry>, file_bytes: u64, is_rotten: bool) -> Examined {
        let shares = shares(&entries);
        Examined { pack, entries, shares, live: Vec::new(), file_bytes, is_rotten }
    }

    /// What is needed takes so many bytes.
    fn live_bytes(&self) -> u64 {
        self.live.iter().map(|number| self.shares[*number]).sum()
    }

    /// Everything does.
    fn stored_bytes(&self) -> u64 {
        self.shares.iter().sum()
    }

    fn live_entries(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.live.iter().map(|number| &self.entries[*number])
    }

    fn is_worth_it(&self, is_thorough: bool) -> bool {
        if self.is_rotten {
            return true;
        }
        if is_thorough {
            return self.live_bytes() < self.stored_bytes() || self.entries.is_empty();
        }
        // With the gaps between chunks (K-11), but for as many as are made by bringing few chunks elsewhere.
        let end = self.entries.last().map_or(0, Entry::end);
        let taken = end.saturating_sub(RUN_ALIGN as u64).max(self.stored_bytes());
        self.live_bytes() * SPARSE_PART < taken.max(1)
    }
}

/// What each entry of a directory takes. A bundle takes nothing: what lies in it takes its share of that (L-8), the last of them what is over.
fn shares(entries: &[Entry]) -> Vec<u64> {
    let mut shares = Vec::with_capacity(entries.len());
    for lot in lots_of(entries) {
        let (last, bundled) = lot.split_last().expect("no lot is empty");
        let (all, content) = (u64::from(last.header.stored_bytes()), u64::from(last.header.raw).max(1));
        let mut rest = all;
        for (number, entry) in (1..).zip(bundled) {
            let share = if number == bundled.len() { rest } else { all * u64::from(entry.header.raw) / content };
            let share = share.min(rest);
            rest -= share;
            shares.push(u64::from(entry.header.stored_bytes()) + share);
        }
        shares.push(rest);
    }
    shares
}

/// Lets packs go that were condemned in vain, however the reclaim ends.
struct Condemning<'a>(&'a Store);

impl Drop for Condemning<'_> {
    fn drop(&mut self) {
        self.0.packs.condemned.write().clear();
    }
}

impl Store {
    /// Gives back the room of all chunks of the listed packs that are neither marked nor pinned. A rehearsal only tells what there is to
    /// gain.
    ///
    /// Packs go a few at a time, so that memory is bounded.
    ///
    /// # Errors
    /// Why copies or the superblock could not be made durable. Nothing is lost then.
    pub async fn reclaim(&self, mut marks: Marks<'_>, sweep: &Sweep<'_>) -> Result<ReclaimReport, StoreError> {
        marks.sort_in(sweep.pace).await;
        let _one_at_a_time = self.reclaim_work.lock().await;
        let _condemning = Condemning(self);
        // L-2 goes by what is found elsewhere, and by what is copied.
        let since = self.moment();
        let mut report = ReclaimReport { problems: std::mem::take(&mut marks.problems), ..ReclaimReport::default() };
        let unindexed = self.packs.unindexed();
        let (mut doomed, mut doomed_chunks, mut copied_bytes) = (Vec::new(), 0, 0);
        let known = self.packs.known();
        let total = known.len() as u64;
        for (number, (pack, known)) in (0..).zip(known) {
            // K-6, for those that are missing: they are not listed.
            if matches!(known.state, PackState::Open(_)) {
                report.packs_open += 1;
            }
            if !marks.lists(pack) {
                continue;
            }
            if unindexed.contains(&pack) && !marks.is_rehearsal {
                report.packs_left += 1;
                continue;
            }
            (sweep.tell)(number, total);
            if !sweep.pace.step().await {
                break;
            }
            report.packs_examined += 1;
            match self.examine(pack, &known, &marks).await {
                Ok(examined) if !examined.is_worth_it(sweep.is_thorough) => {
                    report.bytes_dead_left += examined.stored_bytes() - examined.live_bytes();
                }
                Ok(examined) if marks.is_rehearsal => report.count(&examined),
                Ok(examined) => match self.empty(examined, &marks, sweep).await {
                    Ok(Some(examined)) => {
                        report.count(&examined);
                        self.counters.reclaim_copied_bytes.add(examined.live_bytes());
                        doomed_chunks += examined.entries.len();
                        copied_bytes += examined.live_bytes();
                        doomed.push(examined);
                    }
                    Ok(None) => {}
                    Err(error) => report.leave(&self.packs.path_of(pack), &error),
                },
                Err(error) => report.leave(&self.packs.path_of(pack), &error),
            }
            if sweep.wanted_bytes.is_some_and(|wanted| report.bytes_freed >= report.bytes_copied.saturating_add(wanted))
            {
                break;
            }
            // What goes is remembered chunk by chunk.
            if doomed_chunks >= self.options.pack_chunks_max || self.is_much_copied(copied_bytes) {
                self.remove(since, &doomed, sweep.pace, &mut report).await?;
                (doomed_chunks, copied_bytes) = (0, 0);
                doomed.clear();
            }
        }
        if !doomed.is_empty() {
            self.remove(since, &doomed, sweep.pace, &mut report).await?;
        }
        Ok(report)
    }

    /// L-9: whether copies have taken enough of what some disk keeps back.
    fn is_much_copied(&self, bytes: u64) -> bool {
        let takers = self.pool.takers();
        let mut disks = takers.iter().map(|disk| &self.pool.disks[disk]);
        disks.any(|disk| bytes >= disk.reserve_bytes / COPIED_PART && disk.free() < disk.reserve_bytes * 2)
    }

    /// L-9: refuses to copy what would leave too little.
    fn expect_room(&self, bytes: u64, copies: usize) -> Result<(), StoreError> {
        let needed = |disk: usize| bytes + self.pool.disks[disk].reserve_bytes / LEFT_PART;
        let is_there = || {
            let takers = self.pool.takers();
            takers.iter().filter(|disk| self.pool.room(*disk, Class::Metadata) >= needed(*disk)).count() >= copies
        };
        if is_there() {
            return Ok(());
        }
        // Something may have been deleted since the last look.
        self.pool.look();
        if is_there() { Ok(()) } else { Err(self.pool.full("copies of what is needed in a pack", bytes)) }
    }

    async fn examine(&self, pack: u64, known: &PackKnown, marks: &Marks<'_>) -> Result<Examined, StoreError> {
        let (entries, file_bytes) = self.directory(pack, known).await?;
        let mut examined = Examined::new(pack, entries, file_bytes, self.packs.is_rotten(pack));
        examined.live = self.live(pack, &examined.entries, marks).await?;
        Ok(examined)
    }

    /// The chunks that are needed and not elsewhere.
    async fn live(&self, pack: u64, entries: &[Entry], marks: &Marks<'_>) -> Result<Vec<usize>, StoreError> {
        let mut live = Vec::new();
        for (number, entry) in entries.iter().enumerate() {
            let address = &entry.header.address;
            if (marks.has(pack, number) || self.packs.index.is_pinned(&entry.header.whole().address))
                && !self.is_elsewhere(address, &Place::of(pack, entry)).await?
                && !self.is_whole_again(&entry.header).await?
            {
                live.push(number);
            }
        }
        Ok(live)
    }

    /// L-4. Few chunks lie in two places, so few are read.
    async fn is_elsewhere(&self, address: &ChunkAddress, here: &Place) -> Result<bool, StoreError> {
        match self.packs.index.lookup(address, &self.counters)? {
            // C-6.
            Some(at) if at != *here && at.codec != Codec::Bundle => {
                Ok(self.packs.stands_for(at.pack, here.pack) && self.packs.is_good(address, &at).await.is_ok())
            }
            _ => Ok(false),
        }
    }

    /// Condemns a pack and copies what is needed out of it; `None` if it is needed more than it seemed (L-1).
    async fn empty(
        &self,
        mut examined: Examined,
        marks: &Marks<'_>,
        sweep: &Sweep<'_>,
    ) -> Result<Option<Examined>, StoreError> {
        let pack = examined.pack;
        self.packs.condemned.write().insert(pack);
        let emptied = async {
            examined.live = self.live(pack, &examined.entries, marks).await?;
            if !examined.is_worth_it(sweep.is_thorough) {
                return Ok(None);
            }
            let level = self.packs.level_now(pack);
            if let Some(first) = examined.live_entries().next() {
                self.expect_room(examined.live_bytes(), self.packs.asked_now((first.header.class, level)))?;
            }
            let (mut copies, mut bytes, mut lost, mut memo) = (Vec::<Copied>::new(), 0, None, Memo::default());
            let last = examined.live.len().saturating_sub(1);
            for (number, entry) in examined.live_entries().enumerate() {
                // Only what is what it should be is copied, and it is copied as it was stored.
                match self.packs.read_copy(&entry.header.address, &Place::of(pack, entry), &mut memo).await {
                    Ok(copy) => {
                        bytes += copy.bytes();
                        copies.push(copy);
                    }
                    // It stays, and what is good in it goes (L-6).
                    Err(error) if examined.is_rotten => lost = Some(error),
                    Err(error) => return Err(error),
                }
                if (bytes >= COPY_BYTES || number == last) && !copies.is_empty() {
                    let kind = (copies[0].class(), level);
                    self.packs.append_copies(kind, Class::Metadata, std::mem::take(&mut copies)).await?;
                    bytes = 0;
                    // To the end, once begun: a pack that is half empty is of no use.
                    sweep.pace.step().await;
                }
            }
            match lost {
                None => Ok(Some(examined)),
                Some(error) => Err(error),
            }
        };
        let emptied = emptied.await;
        if !matches!(emptied, Ok(Some(_))) {
            self.packs.condemned.write().remove(&pack);
        }
        emptied
    }

    /// L-2, step by step.
    async fn remove(
        &self,
        since: Moment,
        doomed: &[Examined],
        pace: &Pace<'_>,
        report: &mut ReclaimReport,
    ) -> Result<(), StoreError> {
        self.settle(since).await?;
        let addresses = |examined: &Examined| examined.entries.iter().map(|entry| entry.header.address).collect();
        let removed = || doomed.iter().map(|examined| (examined.pack, addresses(examined))).collect();
        let forget = async || {
            let _work = self.index_work.lock().await;
            self.forget_in_index(removed()).await
        };
        // Each of what follows is a step of its own; to the end, once begun.
        pace.step().await;
        let forgotten = forget().await;
        if forgotten.is_err() && self.packs.index.is_doubted() && self.pool.for_index().is_good() {
            // It turned out to be damaged. The packs that go are still there, and in the new one they are forgotten too.
            self.remake_held_index(&|| pace.goes_on()).await?;
            forget().await?;
        } else {
            forgotten?;
        }
        pace.step().await;
        self.renew_root().await?;
        let mut disks = BTreeSet::new();
        for examined in doomed {
            pace.step().await;
            let mut is_gone = true;
            self.packs.index.forget_older(|place| place.pack != examined.pack);
            for file in self.packs.drop_pack(examined.pack) {
                let disk = file.disk;
                match self.pool.disks[disk].disk.remove(&file.path()) {
                    // It went before, or is one that the mender took away.
                    Err(error) if error.kind == DiskErrorKind::Absent => {}
                    Ok(()) => {
                        self.counters.reclaimed_bytes.add(file.bytes);
                        disks.insert(disk);
                    }
                    // The next open finds it, the next reclaim removes it.
                    Err(error) => {
                        is_gone = false;
                        report.problems.push(self.pool.failed(disk, error, &self.counters).to_string());
                    }
                }
            }
            report.packs_deleted += u64::from(is_gone);
            self.counters.packs_deleted.add(u64::from(is_gone));
        }
        for disk in disks {
            if let Err(error) = self.pool.disks[disk].disk.sync_directory(PACKS) {
                report.problems.push(self.pool.failed(disk, error, &self.counters).to_string());
            }
            let _ = self.pool.disks[disk].look();
        }
        Ok(())
    }
}

impl ReclaimReport {
    fn leave(&mut self, path: &str, error: &StoreError) {
        // Another pass may find room; what rotted stays.
        self.packs_left += u64::from(matches!(error, StoreError::Full { .. }));
        self.problems.push(format!("{path} stays: {error}"));
    }

    fn count(&mut self, examined: &Examined) {
        if examined.live.is_empty() {
            self.packs_dead += 1;
        } else {
            self.packs_sparse += 1;
            self.bytes_copied += examined.live_bytes();
        }
        self.bytes_freed += examined.file_bytes;
    }
}
