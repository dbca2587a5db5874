//! Filling packs: lanes, the packs that they have in hand, and what comes of these when they are full.
//!
//! Keeps K-2 up to the directory, K-4, K-7 and K-9 of [`pack`](super): which disk takes a chunk, when its run is written, and when a pack is sealed.
//!
//! Not here: the bytes of one open pack (`open`), what makes them durable (`settle`), the directory (`unsealed`), what is known of packs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::id::ChunkAddress;
use platform::disk::{DiskError, Open};
use tokio::sync::oneshot;

use super::open::{Member, OpenPack, Writer, Written};
use super::read::Copied;
use super::{PackKnown, PackState, Packs};
use crate::chunk::{Compression, Named, Packed, lots, pack_lot};
use crate::disks::DiskSet;
use crate::failure::StoreError;
use crate::format::{Class, Codec, Entry, PACK_VERSION, PACKS, PackHeader, Place, pack_path};
use crate::level::Level;

/// Appended bytes after which the next lane takes its turn: what arrives together lies together, whatever memory there is, and a disk that
/// is lost costs few files.
const TURN_BYTES: usize = 1 << 20;

/// Bytes of copies between which what is bundled is brought together: no more than are read by one request.
const BESIDE_BYTES: usize = 256 << 10;

#[derive(Default)]
pub(super) struct Lane {
    pub(super) writer: Option<Writer>,
    /// Bytes appended in this turn.
    turn_bytes: usize,
}

/// Lanes of one disk: one for trees, and one for content of each level.
pub(super) const LANES: usize = 1 + Level::LANES;

fn lane_of(class: Class, level: Level) -> usize {
    match class {
        Class::Metadata => 0,
        Class::Data => 1 + level.lane(),
    }
}

impl Packs {
    /// Appends chunks that are in no pack, in order, and names them in the index. Accepted, not durable. `room` is whose room is used: chunks that were accepted
    /// already may go into the reserve.
    pub(crate) async fn append(
        &self,
        kind: (Class, Level),
        room: Class,
        chunks: Vec<Packed>,
    ) -> Result<(), StoreError> {
        let mut queue = chunks.into_iter().peekable();
        match self.append_queue(kind, room, &mut queue, false).await {
            // A pack that stopped when its disk was full takes nothing until it was settled. There may be room by now, on disks too that
            // nobody has looked at since they said that they are full.
            Err(StoreError::Full { .. }) => {
                self.settle_appended().await?;
                self.pool.look();
                self.append_queue(kind, room, &mut queue, false).await
            }
            appended => appended,
        }
    }

    /// `moves` appends even what the index knows, and names the new place.
    async fn append_queue(
        &self,
        (class, level): (Class, Level),
        room: Class,
        queue: &mut std::iter::Peekable<std::vec::IntoIter<Packed>>,
        moves: bool,
    ) -> Result<(), StoreError> {
        while let Some(next) = queue.peek() {
            let needed = next.taken_bytes() + PackHeader::BYTES as u64;
            let mut is_placed = false;
            for disk in self.candidates(room, needed, self.turns[lane_of(class, level)].load(Ordering::Relaxed)) {
                if self.append_run(disk, (class, level), room, queue, moves).await > 0 {
                    is_placed = true;
                    break;
                }
            }
            if !is_placed {
                return Err(self.pool.full("a chunk", needed));
            }
        }
        Ok(())
    }

    /// Appends copies of chunks that are elsewhere, in order, and names the new places in the index. What lay in bundles goes into new ones.
    pub(crate) async fn append_copies(
        &self,
        (class, level): (Class, Level),
        room: Class,
        copies: Vec<Copied>,
    ) -> Result<(), StoreError> {
        // As it was compressed where it comes from, whatever the settings say now: else what is freed might take more than it did.
        let compression = match self.compression {
            Compression::None => Compression::FASTEST,
            compression => compression,
        };
        let (mut packed, mut run, mut stored) = (Vec::with_capacity(copies.len()), Vec::new(), 0);
        for copy in copies {
            match copy {
                Copied::Stored(copy) => {
                    stored += copy.payload.len();
                    if stored > BESIDE_BYTES {
                        self.pack_run(compression, class, &mut run, &mut packed);
                        stored = copy.payload.len();
                    }
                    run.push(Ok(copy));
                }
                Copied::Content(_, named) => run.push(Err(named)),
            }
        }
        self.pack_run(compression, class, &mut run, &mut packed);
        let mut queue = packed.into_iter().peekable();
        match self.append_queue((class, level), room, &mut queue, true).await {
            // As above, but that who calls may be settling.
            Err(StoreError::Full { .. }) => {
                self.pool.look();
                self.append_queue((class, level), room, &mut queue, true).await
            }
            appended => appended,
        }
    }

    /// Packs copies that lie near each other: first what goes into bundles.
    fn pack_run(
        &self,
        compression: Compression,
        class: Class,
        run: &mut Vec<Result<Packed, Named>>,
        packed: &mut Vec<Packed>,
    ) {
        let (mut contents, mut stored) = (Vec::new(), Vec::new());
        for copy in run.drain(..) {
            match copy {
                Ok(copy) => stored.push(copy),
                Err(named) => contents.push(named),
            }
        }
        let lots = lots(compression, class, contents).into_iter();
        packed.extend(lots.flat_map(|lot| pack_lot(&self.key, compression, class, lot)));
        packed.append(&mut stored);
    }

    fn candidates(&self, room: Class, needed: u64, turn: usize) -> Vec<usize> {
        let candidates = self.pool.candidates(room, needed, turn);
        if !candidates.is_empty() {
            return candidates;
        }
        // Something may have been deleted since the last look.
        self.pool.look();
        self.pool.candidates(room, needed, turn)
    }

    /// Appends from the queue to one lane until its turn is over; how many chunks were taken. None: this disk cannot.
    async fn append_run(
        &self,
        disk: usize,
        (class, level): (Class, Level),
        room: Class,
        queue: &mut std::iter::Peekable<std::vec::IntoIter<Packed>>,
        moves: bool,
    ) -> usize {
        let mut lane = self.lanes[disk][lane_of(class, level)].lock().await;
        let mut taken = 0;
        while let Some(next) = queue.peek() {
            let (bytes, count) = (next.taken_bytes(), next.headers().count());
            if self.pool.room(disk, room) < bytes
                || !self.ready_writer(&mut lane, disk, (class, level), room, (bytes, count)).await
            {
                break;
            }
            let chunk = queue.next().expect("peeked");
            taken += 1;
            // Of a bundle what lies in it counts, and that goes together.
            let wanted = if chunk.bundled.is_empty() { std::slice::from_ref(&chunk.header) } else { &chunk.bundled };
            let is_there = |address: &ChunkAddress| {
                self.index.recent(address).is_some_and(|place| self.is_reliable(address, &place, level))
            };
            if !moves && wanted.iter().all(|header| is_there(&header.address)) {
                // Another caller was faster since our look-up.
                self.counters.chunks_duplicate.add(wanted.len() as u64);
                continue;
            }
            let writer = lane.writer.as_mut().expect("ready");
            let pack = writer.pack.clone();
            let entries = writer.push(&chunk);
            self.pool.promise(pack.disks(), bytes);
            self.counters.stored_bytes.add(bytes);
            self.counters.bundles.add(u64::from(!chunk.bundled.is_empty()));
            self.counters.chunks_bundled.add(chunk.bundled.len() as u64);
            // Before the index names it: whoever finds it there and settles waits for this count.
            self.appended.fetch_add(count as u64, Ordering::SeqCst);
            for entry in entries {
                let address = entry.header.address;
                // What lies well elsewhere stays named there.
                if moves || !is_there(&address) {
                    self.index.insert_recent(address, Place::of(pack.number, entry));
                    // C-6.
                    if entry.header.codec != Codec::Bundle {
                        self.doubted.lock().remove(&address);
                    }
                }
            }
            if writer.pack.waiting_bytes() >= self.run_bytes as u64 {
                self.write_beside(writer).await;
            }
            lane.turn_bytes += chunk.header.stored as usize;
            if lane.turn_bytes >= TURN_BYTES {
                lane.turn_bytes = 0;
                self.turns[lane_of(class, level)].fetch_add(1, Ordering::Relaxed);
                break;
            }
        }
        taken
    }

    /// Makes the lane have an open pack with room for `bytes`; `false` if the disk cannot.
    async fn ready_writer(
        &self,
        lane: &mut Lane,
        disk: usize,
        (class, level): (Class, Level),
        room: Class,
        (bytes, count): (u64, usize),
    ) -> bool {
        let kind = (class, level);
        if let Some(writer) = &mut lane.writer {
            if writer.is_stuck && !self.leave_failed(writer) {
                return false;
            }
            let disks = writer.pack.disks();
            let copies = self.copies_now(kind, disks, bytes);
            // What nobody asked for takes room as trees do, whatever is asked for.
            let has = |room: Class| disks.iter().filter(|disk| self.pool.room(*disk, room) >= bytes).count();
            let has_room = self.pool.room(disk, room) >= bytes
                && has(room) >= self.asked_now(kind).min(disks.count())
                && has(Class::Metadata) == disks.count();
            // K-7.
            let is_on_enough = disks.count() >= copies && disks.both(self.pool.takers()) == disks;
            let fits = writer.end() + bytes <= self.pack_bytes && writer.entries.len() + count <= self.pack_chunks_max;
            // A lane may have several codes of the same parity.
            let is_of_level = writer.pack.summary().level == level;
            if fits && has_room && is_on_enough && is_of_level {
                return true;
            }
            // Fewer of its disks may have room.
            let is_least = disks.count() <= self.asked_now(kind);
            if writer.entries.is_empty() && is_on_enough && is_of_level && (has_room || is_least) {
                return has_room;
            }
            if !self.seal(lane).await {
                return false;
            }
        }
        // Each time round but the last a disk is found to have failed.
        let asked = self.asked_now(kind);
        let more = |disks: usize| disks.saturating_sub(asked);
        while let Some(disks) =
            self.pool.disks_for(disk, room, bytes, (asked, more(self.copies_now(kind, DiskSet::of(disk), bytes))))
        {
            match self.create(disks, disk, kind) {
                Ok(writer) => {
                    lane.writer = Some(writer);
                    return true;
                }
                Err((failed, error)) => {
                    let _ = self.pool.failed(failed, error, &self.counters);
                }
            }
        }
        false
    }

    /// K-7: has a pack go on without disks that failed; `false` where none is left, or it is stuck for another reason.
    pub(super) fn leave_failed(&self, writer: &mut Writer) -> bool {
        let disks = writer.pack.disks();
        let failed_here = writer.pack.failed_disks();
        let failed: DiskSet =
            disks.iter().filter(|disk| failed_here.has(*disk) || !self.pool.disks[*disk].is_good()).collect();
        // Others may leave it too: a disk that is removed.
        if failed.is_empty() || !writer.pack.leave(failed) {
            return false;
        }
        failed.iter().for_each(|disk| self.pool.disks[disk].settle_promise(writer.promised()));
        self.counters.pack_disks_left.add(failed.count() as u64);
        writer.is_stuck = false;
        true
    }

    fn create(&self, disks: DiskSet, first: usize, kind: (Class, Level)) -> Result<Writer, (usize, DiskError)> {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        self.making.lock().insert(number);
        let made = self.make(number, disks, first, kind);
        self.making.lock().remove(&number);
        made
    }

    fn make(
        &self,
        number: u64,
        disks: DiskSet,
        first: usize,
        (class, level): (Class, Level),
    ) -> Result<Writer, (usize, DiskError)> {
        let mut members: Vec<Member> = Vec::with_capacity(disks.count());
        for disk in disks.iter() {
            let on = &self.pool.disks[disk].disk;
            let made = on.open(&pack_path(number), Open::Create).and_then(|file| {
                // The name is durable before anything that is in it is relied upon.
                on.sync_directory(PACKS)?;
                Ok(file)
            });
            match made {
                Ok(file) => members.push(Member::new(disk, file)),
                Err(error) => {
                    // There is nothing in them.
                    for member in members {
                        let _ = self.pool.disks[member.disk].disk.remove(&pack_path(number));
                    }
                    return Err((disk, error));
                }
            }
        }
        let (node_identity, disk_uuid) = (self.pool.node_identity, self.pool.disks[first].uuid);
        let header = PackHeader { version: PACK_VERSION, pack: number, node_identity, disk_uuid, class, level };
        let pack = Arc::new(OpenPack::new(&header, members, self.run_bytes));
        let known = PackKnown::new(disks, PackState::Open(pack.clone()), pack.summary());
        self.catalog.write().insert(number, known);
        self.ages.note(number);
        self.counters.packs_created.add(1);
        Ok(Writer::new(pack))
    }

    /// Writes the buffer, filled up to a page (K-11).
    pub(super) async fn flush_all(&self, writer: &mut Writer) {
        let padded = writer.pad();
        self.pool.promise(writer.pack.disks(), padded);
        self.end_writing(writer).await;
        if writer.is_stuck {
            return;
        }
        let pack = &writer.pack;
        let give_back = |bytes| self.give_back(pack, bytes);
        let written = pack.flush(None, &self.counters, &give_back).await;
        self.note_written(writer, written);
    }

    /// Has the whole pages of the buffer written while it fills again, once those before them are (K-13).
    async fn write_beside(&self, writer: &mut Writer) {
        self.end_writing(writer).await;
        if writer.is_stuck {
            return;
        }
        let Some(write) = writer.pack.begin_write(Some(writer.pages()), &self.counters) else { return };
        let ((send, written), pool) = (oneshot::channel(), Arc::clone(&self.pool));
        self.tasks.aside(Box::pin(async move {
            let written = write.make().await;
            // Not before: the locks of the disks go with it.
            drop(pool);
            drop(send.send(written));
        }));
        writer.under_way = Some(written);
    }

    /// Waits for the run that is being written (K-13).
    pub(super) async fn end_writing(&self, writer: &mut Writer) {
        let Some(written) = &mut writer.under_way else { return };
        let written = written.await.expect("a panic there is one here");
        writer.under_way = None;
        if written.is_ok() {
            let bytes = writer.pack.end_write();
            self.give_back(&writer.pack, bytes);
        }
        self.note_written(writer, written);
    }

    /// Waits for all runs that are being written.
    pub(crate) async fn end_writes(&self) {
        for lane in self.lanes() {
            if let Some(writer) = &mut lane.lock().await.writer {
                self.end_writing(writer).await;
            }
        }
    }

    /// What was promised of a pack's disks is on them.
    fn give_back(&self, pack: &OpenPack, bytes: u64) {
        pack.disks().iter().for_each(|disk| self.pool.disks[disk].settle_promise(bytes));
    }

    /// After a failure the writer is stuck, and keeps what it has.
    fn note_written(&self, writer: &mut Writer, written: Written) {
        if let Err((disk, error)) = written {
            writer.is_stuck = true;
            let _ = self.pool.failed(disk, error, &self.counters);
            return;
        }
        for disk in writer.pack.disks().iter() {
            if let Err(error) = self.pool.disks[disk].look() {
                let _ = self.pool.failed(disk, error, &self.counters);
            }
        }
    }

    /// Seals the lane's pack; `false` if the disk could not, and then the lane is stuck or empty.
    async fn seal(&self, lane: &mut Lane) -> bool {
        let Some(writer) = &mut lane.writer else { return true };
        if writer.entries.is_empty() {
            self.discard(lane);
            return true;
        }
        let pack = writer.pack.clone();
        // Each time round but the last it leaves a disk that failed.
        loop {
            self.flush_all(writer).await;
            if !writer.is_stuck
                && let Err((disk, error)) = pack.sync(&self.counters).await
            {
                writer.is_stuck = true;
                let _ = self.pool.failed(disk, error, &self.counters);
            }
            if !writer.is_stuck {
                break;
            }
            if !self.leave_failed(writer) {
                return false;
            }
        }
        let writer = lane.writer.take().expect("looked at above");
        let promised = (writer.entries.len() * Entry::BYTES) as u64;
        pack.disks().iter().for_each(|disk| self.pool.disks[disk].settle_promise(promised));
        self.end_with_directory(writer).await
    }

    /// Lets go of an open pack in which there is nothing.
    fn discard(&self, lane: &mut Lane) {
        let Some(writer) = lane.writer.take() else { return };
        writer.pack.disks().iter().for_each(|disk| self.pool.disks[disk].settle_promise(writer.promised()));
        self.remove_open(&writer.pack);
    }

    /// Removes an open pack in which there is nothing.
    pub(super) fn remove_open(&self, pack: &OpenPack) {
        self.drop_pack(pack.number);
        for disk in pack.disks().iter() {
            // What is left of one is removed by the next opening.
            let on = &self.pool.disks[disk];
            if on.disk.remove(&pack_path(pack.number)).is_err() && !on.is_good() {
                self.emptied.lock().insert(pack.number);
            }
        }
    }

    /// Seals the open packs on some disks.
    pub(crate) async fn seal_on(&self, disks: DiskSet) {
        self.seal_where(|pack| !pack.disks().both(disks).is_empty()).await;
    }

    /// Seals the open packs that are on fewer disks than they should be, so that they are brought to more.
    pub(crate) async fn seal_lacking(&self) {
        self.seal_where(|pack| self.is_lacking(pack)).await;
    }

    /// Whether any is.
    pub(crate) fn is_open_lacking(&self) -> bool {
        let catalog = self.catalog.read();
        catalog.values().any(|known| matches!(&known.state, PackState::Open(pack) if self.is_lacking(pack)))
    }

    fn is_lacking(&self, pack: &OpenPack) -> bool {
        !self.may_be_elsewhere(pack) && self.is_on_few(pack)
    }

    /// Whether an open pack with chunks is on fewer disks than it should be, as far as disks for it are there.
    pub(super) fn is_on_few(&self, pack: &OpenPack) -> bool {
        let takers = self.pool.takers();
        let summary = pack.summary();
        let disks = pack.disks();
        let kind = (summary.class, self.now(&summary));
        summary.count > 0 && disks.both(takers).count() < self.copies_now(kind, disks, u64::from(summary.data_bytes))
    }

    async fn seal_where(&self, is_due: impl Fn(&OpenPack) -> bool) {
        self.seal_unsealed().await;
        for lane in self.lanes() {
            let mut lane = lane.lock().await;
            if lane.writer.as_ref().is_some_and(|writer| is_due(&writer.pack)) {
                self.seal(&mut lane).await;
            }
        }
    }

    /// Seals every open pack, for a clean close and before reclaim. Whether all of them are sealed.
    pub(crate) async fn seal_all(&self) -> bool {
        let mut is_all = true;
        self.seal_unsealed().await;
        for lane in self.lanes() {
            let mut lane = lane.lock().await;
            let pack =
                lane.writer.as_ref().filter(|writer| !writer.entries.is_empty()).map(|writer| writer.pack.number);
            if let Some(pack) = pack {
                self.seal(&mut lane).await;
                is_all &= self.is_sealed(pack);
            }
        }
        is_all
    }

    /// The lanes of all disks.
    pub(super) fn lanes(&self) -> impl Iterator<Item = &tokio::sync::Mutex<Lane>> {
        self.lanes.iter().take(self.pool.disks.end()).flatten()
    }
}
