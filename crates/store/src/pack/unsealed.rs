//! The last step of a pack, and packs that wait for it: all their chunks are durable, and their directory found no room, or there may be more of
//! them on a disk that does not answer (N-4). What a full disk could not take of such a pack is in others, and is cut off by the last step.
//!
//! So does one whose last step nobody was there to end: who seals may be dropped halfway.
//!
//! They stay open, take no more, and are tried again whenever packs are to be sealed, in turn; else the next opening finds them.
//!
//! Not here: what comes before the directory (`seal`).

use std::collections::VecDeque;
use std::sync::Arc;

use base::id::ChunkAddress;
use platform::disk::{DiskErrorKind, Open, RUN_ALIGN};

use super::read::Memo;
use super::{Member, OpenPack, PackKnown, PackState, Packs, Waits, Writer};
use crate::disks::DiskSet;
use crate::failure::StoreError;
use crate::format::{Codec, Entry, Place, Summary, encode_directory, pack_path};
use crate::index::SealedPack;

/// A pack whose last step is under way. It waits where that does not end: who seals it may be dropped halfway, with the request that he works for.
struct LastStep<'a> {
    packs: &'a Packs,
    writer: Option<Writer>,
}

impl Drop for LastStep<'_> {
    fn drop(&mut self) {
        self.packs.unsealed.lock().extend(self.writer.take());
    }
}

impl Packs {
    /// Writes the directory of a pack whose chunks are durable (K-2). `false` if its disks could not; where they are full it waits.
    pub(super) async fn end_with_directory(&self, writer: Writer) -> bool {
        let pack = writer.pack.clone();
        let data_bytes = u32::try_from(writer.end()).expect("at most PACK_BYTES_MAX");
        let entries = all_of(&writer);
        let directory = encode_directory(pack.number, data_bytes, &entries);
        let mut step = LastStep { packs: self, writer: Some(writer) };
        // Each time round but the last it leaves a disk that failed.
        while let Err((disk, error)) = pack.append_directory(u64::from(data_bytes), &directory, &self.counters).await {
            let is_full = error.kind == DiskErrorKind::Full;
            let _ = self.pool.failed(disk, error, &self.counters);
            if is_full {
                return true;
            }
            if !step.writer.as_mut().is_some_and(|writer| self.leave_failed(writer)) {
                // All in it is durable, and is copied away.
                return false;
            }
        }
        let Summary { level, was_left, .. } = pack.summary();
        let summary = Summary { was_left, ..Summary::of(data_bytes, &entries, level) };
        let Writer { mut entries, mut others, .. } = step.writer.take().expect("no other way out of the loop");
        if pack.is_found() {
            // What was stored once more meanwhile counts where it was, unless it may be lost there yet (K-12), or the index file would
            // not have it for certain.
            let is_elsewhere = |entry: &mut Entry| match self.index.lookup(&entry.header.address, &self.counters) {
                Ok(Some(place)) => {
                    // C-6.
                    let is_as_good = place.codec != Codec::Bundle || entry.header.codec == Codec::Bundle;
                    is_as_good && place.pack != pack.number && self.is_sealed(place.pack)
                }
                _ => false,
            };
            others.extend(entries.extract_if(.., is_elsewhere));
        }
        self.note_sealed(SealedPack { pack: pack.number, summary, entries, others }, pack.disks());
        true
    }

    /// Takes in a pack without a directory that an opening found, and leaves it so for now.
    pub(crate) fn note_unsealed(&self, found: SealedPack, disks: DiskSet, waits: Waits) {
        let (number, summary) = (found.pack, found.summary);
        let mut members = Vec::with_capacity(disks.count());
        for disk in disks.iter() {
            match self.pool.disks[disk].disk.open(&pack_path(number), Open::Write) {
                Ok(file) => members.push(Member::new(disk, file)),
                Err(error) => drop(self.pool.failed(disk, error, &self.counters)),
            }
        }
        if members.is_empty() {
            // Its files tell of themselves when they answer again.
            return self.note_sealed_at(number, PackKnown::sealed(disks, None, summary));
        }
        let named = |entry: &Entry| (entry.header.address, Place::of(number, entry));
        let named: Vec<(ChunkAddress, Place)> = found.entries.iter().map(named).collect();
        self.leave_unsealed(found, members, waits);
        named.into_iter().for_each(|(address, place)| self.index.insert_recent(address, place));
    }

    /// The same where the index knows of all of it.
    fn leave_unsealed(&self, found: SealedPack, members: Vec<Member>, waits: Waits) {
        let SealedPack { pack: number, summary, entries, others } = found;
        let disks = members.iter().map(|member| member.disk).collect();
        let pack = Arc::new(OpenPack::found(number, members, summary, waits));
        self.note_sealed_at(number, PackKnown::new(disks, PackState::Open(Arc::clone(&pack)), summary));
        self.unsealed.lock().push_back(Writer::found(pack, entries, others));
    }

    /// Has a pack of which the rest went elsewhere wait with what is durable of it, as if an opening had found it; without any it goes.
    pub(super) fn leave_what_is_durable(&self, writer: &Writer) {
        let (pack, durable) = (&writer.pack, writer.pack.synced());
        let (entries, rest) =
            writer.entries.split_at(writer.entries.partition_point(|entry| entry.content_end() <= durable));
        let Some(last) = entries.last() else {
            self.index.forget_recent(pack.number);
            return self.remove_open(pack);
        };
        // K-11: with what fills its last page up, where that is durable.
        let page_end = last.end().next_multiple_of(RUN_ALIGN as u64);
        let next = rest.first().map_or(durable, |next| u64::from(next.offset));
        let end = if page_end <= next.min(durable) { page_end } else { last.end() };
        let data_bytes = u32::try_from(end).expect("at most PACK_BYTES_MAX");
        let Summary { level, was_left, .. } = pack.summary();
        let summary = Summary { was_left, ..Summary::of(data_bytes, entries, level) };
        self.index.forget_behind(pack.number, end);
        let members = pack.members().iter().map(|member| member.of_what_was_synced()).collect();
        self.leave_unsealed(SealedPack::new(pack.number, summary, entries.to_vec()), members, Waits::Room);
    }

    /// Tries again. Whether one was sealed.
    pub(crate) async fn seal_unsealed(&self) -> bool {
        let (mut is_any, count) = (false, self.unsealed.lock().len());
        // Each once: those that wait on go to the end.
        for _ in 0..count {
            let Some(mut writer) = self.unsealed.lock().pop_front() else { break };
            let pack = writer.pack.number;
            if !self.has(pack) {
                continue;
            }
            if writer.pack.is_sync_unknown() {
                self.unsealed.lock().push_back(writer);
                continue;
            }
            self.leave_failed(&mut writer);
            let is_on_good = writer.pack.disks().iter().any(|disk| self.pool.disks[disk].is_good());
            if !is_on_good || self.may_be_elsewhere(&writer.pack) {
                self.unsealed.lock().push_back(writer);
            } else {
                self.end_with_directory(writer).await;
                is_any |= self.is_sealed(pack);
            }
        }
        is_any
    }

    /// Chunks of packs that wait for disks, or lie on disks alone that failed, and are on fewer than they should be, as far as disks for them are
    /// there: no other pack has them.
    pub(crate) fn held(&self) -> Vec<(Arc<OpenPack>, Vec<Entry>)> {
        let unsealed = self.unsealed.lock();
        let is_held = |pack: &OpenPack| (self.may_be_elsewhere(pack) || self.is_left(pack)) && self.is_on_few(pack);
        let held = unsealed.iter().filter(|writer| is_held(&writer.pack));
        let alone = held.map(|writer| {
            let is_left = self.is_left(&writer.pack);
            let is_here = |entry: &&Entry| {
                let place = Place::of(writer.pack.number, entry);
                let is_here = match is_left {
                    true => !self.is_safe_beside(writer.pack.number, &entry.header.address),
                    false => self.index.recent(&entry.header.address) == Some(place),
                };
                place.codec != Codec::Bundle && is_here
            };
            (Arc::clone(&writer.pack), writer.entries.iter().filter(is_here).copied().collect::<Vec<Entry>>())
        });
        alone.filter(|(_, entries)| !entries.is_empty()).collect()
    }

    /// Whether there are any.
    pub(crate) fn is_held(&self) -> bool {
        !self.held().is_empty()
    }

    /// Stores some of what [`Packs::held`] gave once more, on as many disks as it should be on.
    ///
    /// # Errors
    /// The last one that something met; the rest is stored all the same.
    pub(crate) async fn copy_held(&self, pack: &OpenPack, some: &[Entry]) -> Result<(), StoreError> {
        let (mut copies, mut memo, mut result) = (Vec::with_capacity(some.len()), Memo::default(), Ok(()));
        for entry in some {
            match self.read_copy(&entry.header.address, &Place::of(pack.number, entry), &mut memo).await {
                Ok(copy) => copies.push(copy),
                Err(error) => result = Err(error),
            }
        }
        self.append_copies((pack.class, pack.summary().level), pack.class, copies).await?;
        result
    }

    /// Whether what lies in an open pack is on disks alone that failed: it is never sealed there, and can be read as long as they answer.
    fn is_left(&self, pack: &OpenPack) -> bool {
        pack.disks().both(self.pool.good()).is_empty()
    }

    /// Whether there is such a pack.
    pub(crate) fn has_left(&self) -> bool {
        self.unsealed.lock().iter().any(|writer| self.is_left(&writer.pack))
    }

    /// Lets go of those of which everything is elsewhere by now, and durable there.
    pub(crate) fn drop_left(&self) {
        let left = {
            let mut unsealed = self.unsealed.lock();
            let is_left = |writer: &Writer| self.is_left(&writer.pack);
            let (left, others) = std::mem::take(&mut *unsealed).into_iter().partition(is_left);
            *unsealed = others;
            let left: VecDeque<Writer> = left;
            left
        };
        for writer in left {
            let number = writer.pack.number;
            // Of a bundle what lies in it counts (C-6).
            let is_safe = |entry: &Entry| {
                entry.header.codec == Codec::Bundle || self.is_safe_beside(number, &entry.header.address)
            };
            if writer.entries.iter().all(is_safe) {
                self.index.forget_recent(number);
                // Its files are for the next opening, should the disk be well again.
                self.emptied.lock().insert(number);
                self.drop_pack(number);
            } else {
                self.unsealed.lock().push_back(writer);
            }
        }
    }

    /// Whether a chunk is named in another pack than this one, durable, and on a disk that works.
    fn is_safe_beside(&self, pack: u64, address: &ChunkAddress) -> bool {
        let Ok(Some(place)) = self.index.lookup(address, &self.counters) else { return false };
        let is_on_good = || self.known_pack(place.pack).is_some_and(|known| self.copies_on_good(&known) > 0);
        place.pack != pack && self.is_durable(&place) && is_on_good()
    }

    /// Whether nobody needs what a disk that failed has of a pack, which is in the catalog no more.
    pub(crate) fn is_emptied(&self, pack: u64) -> bool {
        self.emptied.lock().contains(&pack)
    }

    /// N-4: whether it may be on a disk that does not answer, with more in it.
    pub(super) fn may_be_elsewhere(&self, pack: &OpenPack) -> bool {
        match pack.found {
            Some(Waits::Disks) => !self.pool.without().is_empty(),
            Some(Waits::Opening) => true,
            Some(Waits::Room) | None => false,
        }
    }
}

/// All chunks of a pack, in the order of their places.
fn all_of(writer: &Writer) -> Vec<Entry> {
    let mut all = [&writer.entries[..], &writer.others].concat();
    all.sort_unstable_by_key(|entry| entry.offset);
    all
}
