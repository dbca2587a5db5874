//! The store of one node: what the layers above call.
//!
//! T-1   A commit settles first, writes the superblock second, and frees the journal third, so that each step rests on what the
//!       one before made durable (S-3, J-4).
//! T-2   A commit whose superblock could not be written, or that was dropped, leaves the one before untouched: the next superblock takes the
//!       same slot with a higher generation. Until then an opening may find either; the store, and who dropped it, go by the roots before.
//! T-3   A chunk that turned out to be damaged is no duplicate any more: putting its content again stores it anew.
//!
//! Not here: what becomes of the index (`store/index`), reading chunks (`reading`), opening (`recover`), giving back room (`reclaim`), looking for damage (`check`).

mod index;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::hash::DomainKey;
use base::id::{ChunkAddress, NodeNumber, Position};
use base::limits::CHUNK_BYTES_MAX;
use bytes::Bytes;
use parking_lot::Mutex;
use platform::Platform;
use platform::disk::{Disk, Space};
use platform::pools::{Pools, Reservation};
use platform::task::parallel;

use crate::cache::{Cache, Origin};
use crate::chunk::{Named, Packed, lots, pack_lot};
use crate::counters::Counters;
use crate::disks::DiskSet;
use crate::domain::Domain;
use crate::failure::{StoreError, refused};
use crate::format::{Class, Codec, Identity, ROOTS_BYTES_MAX, Superblock};
use crate::identity;
use crate::index::AddressSet;
use crate::journal::Journal;
use crate::level::{COPIES_MAX, Level, Resilience};
use crate::options::Options;
use crate::pack::{Moment, Packs};
use crate::pool::{Part, Pool};
use crate::superblock;

const SMALL_PUT_BYTES: u64 = 1 << 20;
/// Chunks that are stored anew together for who asks for more copies.
const RAISED_TOGETHER: usize = 8;

/// An open store. All methods may be called from many tasks.
pub struct Store {
    pub(crate) platform: Platform,
    pub(crate) identity: Identity,
    pub(crate) options: Options,
    pub(crate) pool: Arc<Pool>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) packs: Packs,
    pub(crate) journal: Arc<Journal>,
    pub(crate) cache: Arc<Cache>,
    /// Room for content on its way into packs.
    putting: Arc<Pools<1, 2>>,
    /// A permit for each byte that may be read ahead at the moment.
    pub(crate) ahead: Arc<tokio::sync::Semaphore>,
    pub(crate) root: tokio::sync::Mutex<Root>,
    /// Generation and covered position of the newest superblock, for `status`.
    newest: Mutex<(u64, Position)>,
    /// Held by who changes the index file.
    pub(crate) index_work: tokio::sync::Mutex<()>,
    /// Packs that scrub found damaged, and the first thing that is wrong with each.
    pub(crate) damaged: Mutex<BTreeMap<u64, String>>,
    /// Held by the task that makes the index again because somebody needs a chunk.
    index_making: Arc<tokio::sync::Mutex<()>>,
    /// When scrub read all of the index last.
    pub(crate) index_checked: Mutex<Option<std::time::Duration>>,
    pub(crate) reclaim_work: tokio::sync::Mutex<()>,
    /// F-8.
    pub(crate) copy_work: tokio::sync::Mutex<()>,
    /// Held by who measures disks: two at a time would measure each other.
    pub(crate) measuring: tokio::sync::Mutex<()>,
    /// Held by who changes which disks the node has.
    pub(crate) disk_work: tokio::sync::Mutex<()>,
}

/// What the next commit must know.
pub(crate) struct Root {
    /// Of the next superblock. Its slot is the one that does not hold the newest.
    next_generation: u64,
    /// Of the newest superblock.
    covered: Position,
    roots: Vec<u8>,
}

/// The right to put so many bytes of chunks.
#[must_use]
pub struct Room(#[expect(dead_code, reason = "held until it is dropped")] Reservation<1, 2>);

/// A small put goes past large ones for a while: who syncs little does not wait for streams.
fn line_of(bytes: u64) -> usize {
    usize::from(bytes <= SMALL_PUT_BYTES)
}

fn bytes_of(contents: &[Bytes]) -> u64 {
    contents.iter().map(|content| content.len() as u64).sum()
}

/// What [`Store::assemble`] puts together.
pub(crate) struct Parts {
    pub(crate) platform: Platform,
    pub(crate) identity: Identity,
    pub(crate) options: Options,
    pub(crate) pool: Arc<Pool>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) packs: Packs,
    pub(crate) journal: Arc<Journal>,
    pub(crate) superblock: Superblock,
}

impl Store {
    /// Formats empty directories as a new node, whose first superblock holds `roots`.
    ///
    /// # Errors
    /// `Refused` for directories that hold a node or part of one, and then nothing was changed; a disk's error.
    pub async fn create(platform: &Platform, disks: &[Disk], node: NodeNumber, roots: &[u8]) -> Result<(), StoreError> {
        identity::create(platform, disks, node, roots, None).await
    }

    /// The same, as a node of a dedup domain that there is.
    ///
    /// # Errors
    /// As there.
    pub async fn create_in(
        domain: &Domain,
        platform: &Platform,
        disks: &[Disk],
        node: NodeNumber,
        roots: &[u8],
    ) -> Result<(), StoreError> {
        identity::create(platform, disks, node, roots, Some(&domain.0)).await
    }

    pub(crate) fn assemble(parts: Parts) -> Store {
        let Parts { platform, identity, options, pool, counters, packs, journal, superblock } = parts;
        Store {
            platform,
            identity,
            cache: Arc::new(Cache::new(options.cache_bytes, options.cache_weights, &counters)),
            putting: Pools::new([[options.put_bytes_max], [options.put_bytes_max + options.put_bytes_max / 2]]),
            ahead: Arc::new(tokio::sync::Semaphore::new(options.ahead_bytes_max as usize)),
            pool,
            counters,
            packs,
            journal,
            root: tokio::sync::Mutex::new(Root {
                next_generation: superblock.generation + 1,
                covered: superblock.covered,
                roots: superblock.roots,
            }),
            newest: Mutex::new((superblock.generation, superblock.covered)),
            index_work: tokio::sync::Mutex::new(()),
            damaged: Mutex::default(),
            index_making: Arc::default(),
            index_checked: Mutex::default(),
            reclaim_work: tokio::sync::Mutex::new(()),
            copy_work: tokio::sync::Mutex::new(()),
            measuring: tokio::sync::Mutex::new(()),
            disk_work: tokio::sync::Mutex::new(()),
            options,
        }
    }

    /// The key under which this store's chunks are addressed.
    #[must_use]
    pub fn key(&self) -> &DomainKey {
        &self.identity.key
    }

    /// The node's number.
    #[must_use]
    pub fn node(&self) -> NodeNumber {
        self.identity.node
    }

    // -------------------------------------------------------------------------------------------------------------
    // Chunks.

    /// Accepts a chunk: it can be read from now on, and is durable after [`Store::settle`].
    ///
    /// # Errors
    /// `TooLarge`, `Full`, `ReadOnly`.
    pub async fn put(&self, class: Class, content: &[u8]) -> Result<ChunkAddress, StoreError> {
        let addresses = self.put_many(class, vec![Bytes::copy_from_slice(content)]).await?;
        Ok(addresses[0])
    }

    /// Accepts chunks, hashed and compressed on all cores. What is there already is not stored again. Waits while the store is busy.
    ///
    /// # Errors
    /// `TooLarge`, `Full`, `ReadOnly`. Some of the chunks may have been accepted.
    pub async fn put_many(&self, class: Class, contents: Vec<Bytes>) -> Result<Vec<ChunkAddress>, StoreError> {
        let bytes = bytes_of(&contents);
        let room = match class {
            // A commit makes room; it waits for nobody who wants some.
            Class::Metadata => Room(self.putting.force([bytes])),
            Class::Data => self.room(bytes).await,
        };
        self.put_with(room, (class, Resilience::OfNode), contents).await
    }

    /// As [`Store::put_many`], for content of files that asks for more or less than the node's settings say.
    ///
    /// # Errors
    /// As there.
    pub async fn put_as(&self, resilience: Resilience, contents: Vec<Bytes>) -> Result<Vec<ChunkAddress>, StoreError> {
        let room = self.room(bytes_of(&contents)).await;
        self.put_with(room, (Class::Data, resilience), contents).await
    }

    /// The same for content that was accepted long ago, and has to become durable chunks: it may take what data leaves free.
    ///
    /// # Errors
    /// As there.
    pub async fn put_accepted(
        &self,
        resilience: Resilience,
        contents: Vec<Bytes>,
    ) -> Result<Vec<ChunkAddress>, StoreError> {
        let room = self.room(bytes_of(&contents)).await;
        self.put_into(room, (Class::Data, resilience), Class::Metadata, contents).await
    }

    /// Those of these chunks that no pack has which is to lie on as many disks as is asked for, each once, in their order.
    pub async fn lower(&self, resilience: Resilience, addresses: &[ChunkAddress]) -> Vec<ChunkAddress> {
        let level = self.packs.level(Class::Data, resilience);
        let (mut seen, mut lower) = (BTreeSet::new(), Vec::new());
        for address in addresses.iter().filter(|address| seen.insert(**address)) {
            if !self.packs.is_at_level(address, level).await {
                lower.push(*address);
            }
        }
        lower
    }

    /// Has content that is there lie on as many disks as is asked for, durable after [`Store::settle`]; how many chunks were stored anew for it.
    ///
    /// # Errors
    /// As for reading and putting. Where one cannot be read the others are raised all the same.
    pub async fn raise(
        self: &Arc<Store>,
        resilience: Resilience,
        addresses: &[ChunkAddress],
    ) -> Result<u64, StoreError> {
        let level = self.packs.level(Class::Data, resilience);
        let mut seen = BTreeSet::new();
        let is_lower = |address: &ChunkAddress| seen.insert(*address) && self.packs.duplicate(address, level).is_none();
        let lower: Vec<ChunkAddress> = addresses.iter().copied().filter(is_lower).collect();
        let (mut raised, mut first_error) = (0, None);
        // Small ones of a group are compressed together, as they were.
        for group in lower.chunks(RAISED_TOGETHER) {
            let mut contents = Vec::with_capacity(group.len());
            match self.get_many(Class::Data, group).await {
                Ok(all) => contents = all,
                // One that cannot be read keeps no other where it is.
                Err(_) => {
                    for address in group {
                        match self.get(Class::Data, address).await {
                            Ok(content) => contents.push(content),
                            Err(error) => first_error = first_error.or(Some(error)),
                        }
                    }
                }
            }
            raised += contents.len() as u64;
            self.put_as(resilience, contents).await?;
        }
        first_error.map_or(Ok(raised), Err)
    }

    /// Has trees and the journal survive as much at least from now on as content of any file is asked to. Whether they did not
    /// before: what is stored already is brought there by [`Store::restore_copies`].
    ///
    /// # Errors
    /// `Refused` where there are not so many disks; why it could not be noted.
    pub async fn raise_floor(&self, resilience: Resilience) -> Result<bool, StoreError> {
        let takers = self.pool.takers().count();
        let refuse = |why: String| {
            let advice = "Add disks first (`hydrafs disk add`), or ask for fewer.";
            Err(refused("the node", format!("{why}, and {takers} disks take something."), advice))
        };
        let copies = match resilience {
            Resilience::OfNode => return Ok(false),
            Resilience::Copies(copies) if usize::from(copies) > takers || copies > COPIES_MAX => {
                return refuse(format!("{copies} copies are asked for, of {COPIES_MAX} at most"));
            }
            Resilience::Copies(copies) => copies,
            Resilience::Fragments(erasure) if erasure.count() > takers => {
                let count = erasure.count();
                return refuse(format!(
                    "{erasure} fragments are asked for, each on a disk of its own: {count} disks are needed"
                ));
            }
            Resilience::Fragments(erasure) => erasure.copies(),
        };
        // Who comes second finds it noted.
        let _work = self.disk_work.lock().await;
        let before = self.packs.floor();
        if copies <= before {
            return Ok(false);
        }
        self.packs.set_floor(copies);
        let noted = self.renew_root().await;
        match noted {
            Ok(()) => self.journal.set_copies(copies),
            Err(_) => self.packs.set_floor(before),
        }
        noted.map(|()| true)
    }

    /// Room for chunks of so many bytes, unless the store is busy (HydraFS, FAST'10: the store may answer *busy*, and calls back when there is
    /// room, which here is [`Store::room`]).
    pub fn try_room(&self, bytes: u64) -> Option<Room> {
        let room = self.putting.try_reserve(line_of(bytes), [bytes]);
        self.counters.put_busy.add(u64::from(room.is_none()));
        room.map(Room)
    }

    /// Room for chunks of so many bytes, when those who came before have it.
    pub async fn room(&self, bytes: u64) -> Room {
        match self.try_room(bytes) {
            Some(room) => room,
            None => {
                let _time = self.pool.clock.timer(&self.counters.put_wait);
                Room(self.putting.reserve(line_of(bytes), [bytes]).await)
            }
        }
    }

    /// As [`Store::put_many`], for who has room for them.
    ///
    /// # Errors
    /// As there.
    pub async fn put_with(
        &self,
        room: Room,
        (class, resilience): (Class, Resilience),
        contents: Vec<Bytes>,
    ) -> Result<Vec<ChunkAddress>, StoreError> {
        self.put_into(room, (class, resilience), class, contents).await
    }

    /// `takes`: as what class it takes room on the disks.
    async fn put_into(
        &self,
        room: Room,
        (class, resilience): (Class, Resilience),
        takes: Class,
        contents: Vec<Bytes>,
    ) -> Result<Vec<ChunkAddress>, StoreError> {
        if let Some(large) = contents.iter().find(|content| content.len() > CHUNK_BYTES_MAX) {
            let (bytes, limit) = (large.len() as u64, CHUNK_BYTES_MAX as u64);
            return Err(StoreError::TooLarge { what: "a chunk", bytes, limit });
        }
        self.counters.chunks_put.add(contents.len() as u64);
        self.counters.put_bytes.add(bytes_of(&contents));
        let tasks = &self.platform.tasks;
        let time = self.pool.clock.timer(&self.counters.group_hash);
        let named = parallel(tasks, contents, |content: Bytes| self.named(class, content));
        drop(time);
        let addresses = named.iter().map(|named| named.address).collect();
        let level = self.packs.level(class, resilience);
        let new = self.new_ones(named, level);
        if !new.is_empty() {
            if class == Class::Metadata {
                for Named { address, content, .. } in &new {
                    // A copy, so that a small chunk does not keep the large buffer that it was cut from.
                    self.cache.insert(class, address, &Bytes::copy_from_slice(content), Origin::Wanted);
                }
            }
            let time = self.pool.clock.timer(&self.counters.group_compress);
            let lots = lots(self.options.compression, class, new);
            let packed = parallel(tasks, lots, |lot| pack_lot(self.key(), self.options.compression, class, lot));
            let packed = packed.into_iter().flatten().collect::<Vec<_>>();
            drop(time);
            let raw = packed.iter().filter(|packed| packed.header.codec != Codec::Zstd).count();
            self.counters.chunks_incompressible.add(raw as u64);
            self.append((class, level), takes, packed).await?;
            drop(room);
            if self.packs.is_much_waiting() {
                self.keep_index().await;
            }
        }
        Ok(addresses)
    }

    /// Gives packs what is in none. `room`: as what class it takes room.
    pub(crate) async fn append(
        &self,
        (class, level): (Class, Level),
        room: Class,
        packed: Vec<Packed>,
    ) -> Result<(), StoreError> {
        let _time = self.pool.clock.timer(&self.counters.group_append);
        // On as many disks as where it rotted: else that would be named again (K-9).
        let higher = |packed: &Packed| {
            let of_rotten = packed.headers().filter_map(|header| self.packs.doubted_level(&header.address));
            of_rotten.filter(|of_rotten| of_rotten.copies() > level.copies()).max_by_key(|level| level.copies())
        };
        let (doubted, packed): (Vec<_>, Vec<_>) = packed.into_iter().partition(|packed| higher(packed).is_some());
        self.packs.append((class, level), room, packed).await?;
        for packed in doubted {
            let level = higher(&packed).unwrap_or(level);
            self.packs.append((class, level), room, vec![packed]).await?;
        }
        Ok(())
    }

    pub(crate) fn named(&self, class: Class, content: Bytes) -> Named {
        Named::of(self.key(), class, content)
    }

    // What is in no pack yet, each content once.
    fn new_ones(&self, named: Vec<Named>, level: Level) -> Vec<Named> {
        let mut seen = AddressSet::default();
        let mut new = Vec::new();
        for named in named {
            if !seen.insert(named.address) || self.packs.duplicate(&named.address, level).is_some() {
                self.counters.chunks_duplicate.add(1);
            } else {
                self.counters.new_bytes.add(named.content.len() as u64);
                new.push(named);
            }
        }
        new
    }

    /// Whether a chunk can be relied upon to be here.
    #[must_use]
    pub fn contains(&self, address: &ChunkAddress) -> bool {
        self.packs.duplicate(address, Level::default()).is_some()
    }

    /// Whether a chunk is here, as far as anybody knows: unlike [`Store::contains`] also where a put stores it once more.
    #[must_use]
    pub async fn has(&self, address: &ChunkAddress) -> bool {
        self.packs.has_chunk(address).await
    }

    /// Whether a chunk that can be relied upon to be here is durable. Who did not store it himself, and settled that, asks before he names it.
    #[must_use]
    pub fn is_durable(&self, address: &ChunkAddress) -> bool {
        self.packs.duplicate(address, Level::default()).is_some_and(|place| self.packs.is_durable(&place))
    }

    /// This moment: to be taken before anything is put, or looked for, that is to be relied upon.
    #[must_use]
    pub fn moment(&self) -> Moment {
        self.packs.moment()
    }

    /// Makes all chunks durable that were accepted before, and answers for what the caller put or found here since a moment.
    ///
    /// # Errors
    /// `Full` or `ReadOnly`: not all of them could be made durable. They can still be read, and another try is welcome. `Dropped`: what
    /// was accepted went with a disk, and what is of that time may be among it. It is to be put again, after another moment.
    pub async fn settle(&self, since: Moment) -> Result<(), StoreError> {
        self.packs.settle(since).await
    }

    pub(crate) fn cached_bytes(&self) -> u64 {
        self.cache.bytes()
    }

    // -------------------------------------------------------------------------------------------------------------
    // The journal.

    /// Accepts a frame and tells its position. Durable after [`Store::sync_log`].
    ///
    /// # Panics
    /// For more than `FRAME_BYTES_MAX` bytes.
    pub fn log(&self, frame: &[u8]) -> Position {
        self.journal.log(frame)
    }

    /// The newest frame.
    #[must_use]
    pub fn last_logged(&self) -> Position {
        self.journal.last_logged()
    }

    /// Whether durable frames are on no disk any more that works: a crash loses them, unless a commit covers them before, with both superblocks.
    pub async fn lacks_frames(&self) -> bool {
        self.journal.lacks_frames().await
    }

    /// Has the next frames go to disks that work, where those of the journal failed.
    ///
    /// # Errors
    /// Why nothing could be prepared there.
    pub async fn move_journal(&self) -> Result<(), StoreError> {
        self.journal.move_homes().await
    }

    /// The newest durable frame.
    #[must_use]
    pub fn last_durable(&self) -> Position {
        self.journal.last_durable()
    }

    /// Returns when all frames up to `upto` are durable.
    ///
    /// # Errors
    /// `Full`: the frames wait for another try. `ReadOnly`: the journal has ended.
    ///
    /// # Panics
    /// If no such frame was logged.
    pub async fn sync_log(&self, upto: Position) -> Result<(), StoreError> {
        self.journal.sync(upto).await
    }

    /// Begins to make all frames up to `upto` durable, for who is about to wait for that. Whether it came to be [`sync_log`](Store::sync_log) tells.
    ///
    /// # Panics
    /// If no such frame was logged.
    pub fn begin_sync_log(&self, upto: Position) {
        self.journal.begin_sync(upto);
    }

    /// Bytes of frames that are in memory only.
    #[must_use]
    pub fn pending_log_bytes(&self) -> u64 {
        self.journal.pending_bytes()
    }

    /// Bytes of frames since the newest superblock: what a recovery would have to replay.
    #[must_use]
    pub fn journal_bytes(&self) -> u64 {
        self.journal.bytes()
    }

    // -------------------------------------------------------------------------------------------------------------
    // The root.

    /// Makes all accepted chunks and then `roots` durable. From then on the frames up to `covered` are not needed any more:
    /// an open gives back these roots and the frames after them. What they name was put or found here since a moment, or is durable.
    ///
    /// # Errors
    /// `TooLarge`, or why the chunks or the superblock could not be written. The roots before are still in force then, or, where
    /// the failure was not certain, either is.
    pub async fn commit(&self, since: Moment, roots: &[u8], covered: Position) -> Result<(), StoreError> {
        if roots.len() > ROOTS_BYTES_MAX {
            return Err(identity::too_large(roots));
        }
        assert!(covered <= self.last_logged(), "a commit covers frames that were logged");
        self.settle(since).await?;
        // Before the lock: who makes a frame durable may have to write a superblock (J-11).
        self.journal.begin_for(covered).await?;
        self.keep_index().await;
        let mut root = self.root.lock().await;
        assert!(covered >= root.covered, "commits cover more and more");
        self.write_root(&mut root, roots.to_vec(), covered, false).await?;
        Ok(())
    }

    /// Writes the newest roots once more, so that both slots hold them, with what else a superblock says.
    ///
    /// # Errors
    /// Why the superblock could not be written.
    pub async fn renew_root(&self) -> Result<(), StoreError> {
        let mut root = self.root.lock().await;
        let (roots, covered) = (root.roots.clone(), root.covered);
        self.write_root(&mut root, roots, covered, false).await
    }

    pub(crate) async fn write_root(
        &self,
        root: &mut Root,
        roots: Vec<u8>,
        covered: Position,
        is_closed: bool,
    ) -> Result<(), StoreError> {
        // One that was on a disk which was removed is made again by the next opening, on a disk that is there.
        let members: DiskSet = self.pool.disks.iter().map(|(number, _)| number).collect();
        let is_member = |disk: &usize| members.has(*disk);
        let index = Some(self.pool.index_disk()).filter(is_member).or(members.first()).expect("there is a disk");
        // The journal may be choosing others.
        let homes = self.pool.homes();
        assert!(homes.both(members) == homes, "the journal leaves a disk before that is removed");
        let homes = self.journal.begin_naming(covered).await;
        let superblock = Superblock {
            generation: root.next_generation,
            is_closed,
            node_identity: self.pool.node_identity,
            covered,
            durable: self.last_durable(),
            pack_next: self.packs.next(),
            time: self.platform.clock.now(),
            disks: self.pool.table(),
            without: self.pool.without(),
            drained: self.pool.drained(),
            floor: self.packs.floor(),
            homes,
            index: u16::try_from(index).expect("below DISKS_MAX"),
            roots,
        };
        // Should this fail, or be dropped halfway, the slot may hold anything, this superblock included: T-2.
        root.next_generation += Superblock::SLOTS;
        let time = self.pool.clock.timer(&self.counters.superblock_write);
        superblock::write(&self.pool, &superblock, &self.counters).await?;
        drop(time);
        // The root holds, whatever comes of it; only room may not be given back. Nothing is waited for from then on: who is dropped before goes by the
        // roots before, and so does the next superblock.
        self.journal.covered(covered, root.covered).await;
        self.journal.note_named(covered, homes);
        root.next_generation = superblock.generation + 1;
        root.roots = superblock.roots;
        root.covered = covered;
        *self.newest.lock() = (superblock.generation, covered);
        Ok(())
    }

    /// Generation and covered position of the newest superblock.
    pub(crate) fn newest_superblock(&self) -> (u64, u64) {
        let (generation, covered) = *self.newest.lock();
        (generation, covered.0)
    }

    /// Brings everything accepted to rest: frames and chunks durable, packs sealed, index complete. The next open has the less
    /// to do; where the newest superblock covers all frames it says so, and the next open need not look for any (S-5): then no frame is
    /// taken from now on. Does not commit roots.
    ///
    /// # Errors
    /// As for [`Store::sync_log`] and [`Store::settle`].
    pub async fn close(&self) -> Result<(), StoreError> {
        let closed = self.bring_to_rest().await;
        // Also where that failed: the locks of the disks may go next, and no write goes on after them (K-13).
        self.packs.end_writes().await;
        closed
    }

    async fn bring_to_rest(&self) -> Result<(), StoreError> {
        self.packs.index.end_filter();
        // Who reads ahead has ended, and nobody does from now on. Closed already: the same.
        if let Ok(all) = self.ahead.acquire_many(self.options.ahead_bytes_max).await {
            all.forget();
            self.ahead.close();
        }
        // Nor does who put chunks for a caller that has gone.
        drop(self.putting.reserve(0, [self.options.put_bytes_max]).await);
        let last = self.last_logged();
        self.sync_log(last).await?;
        self.packs.settle_appended().await?;
        self.packs.seal_all().await;
        self.keep_index().await;
        let mut root = self.root.lock().await;
        if root.covered == last && self.journal.close(last).await {
            let (roots, covered) = (root.roots.clone(), root.covered);
            self.write_root(&mut root, roots, covered, true).await?;
        }
        Ok(())
    }

    /// Whether the disks that it has could be opened again from these directories, once it is closed: for who is about to close it and go on in
    /// another process. They are neither locked nor changed.
    ///
    /// # Errors
    /// Which disk could not, and why.
    pub async fn could_open_again(&self, disks: &[Disk], goes_without: bool) -> Result<(), StoreError> {
        // One that is joining no superblock names.
        let there = self.pool.disks.iter().filter(|(_, disk)| !disk.is_missing && disk.part() != Part::Joining);
        let there: Vec<_> = there.map(|(number, disk)| (number, disk.uuid)).collect();
        identity::could_open_again(&there, disks, goes_without).await
    }

    /// Lets go of its disks' locks (D-3): for a process that ends, and that a call to one disk may keep from ending (B-5).
    pub fn unlock_disks(&self) {
        self.pool.disks.iter().for_each(|(_, disk)| disk.unlock());
    }

    /// Has a filter for what is new made beside the work. The store is closed when that has ended.
    pub(crate) fn begin_filter(self: &Arc<Store>) {
        let Ok(permit) = Arc::clone(&self.ahead).try_acquire_owned() else { return };
        let Some(filter) = self.packs.index.begin_filter(self.options.index_filter_bytes()) else { return };
        let store = Arc::clone(self);
        self.platform.tasks.aside(Box::pin(async move {
            store.packs.index.fill_filter(&filter);
            // Before it says so: who hears of it may be the last to hold the store.
            drop(store);
            drop(permit);
        }));
    }

    /// Why so many bytes more find no room: `Full`, or `ReadOnly` where no disk takes anything any more.
    #[must_use]
    pub fn want_of_room(&self, needed: u64) -> StoreError {
        self.pool.full("what is to be changed", needed)
    }

    /// Room for chunks, each as often as it is stored, on all good disks together, without the reserves.
    #[must_use]
    pub fn space(&self) -> Space {
        self.space_for(Resilience::OfNode)
    }

    /// The same for content that asks for this. There is none where the trees that lead to it would find none.
    #[must_use]
    pub fn space_for(&self, resilience: Resilience) -> Space {
        let level = self.packs.level(Class::Data, resilience);
        let erasure = level.erasure().filter(|erasure| self.pool.takers().count() >= erasure.count());
        let (of, copies) = match erasure {
            Some(erasure) => (u64::from(erasure.data()), erasure.count()),
            None => (1, self.packs.asked_now((Class::Data, level))),
        };
        let rooms = self.pool.rooms();
        let of_trees = self.packs.asked_now((Class::Metadata, self.packs.level(Class::Metadata, Resilience::OfNode)));
        let (space, takes_trees) = (rooms.for_copies(copies), rooms.for_copies(of_trees).free > 0);
        let free = if takes_trees { space.free.saturating_mul(of) } else { 0 };
        Space { total: space.total.saturating_mul(of), free, ..space }
    }

    /// What data leaves free on the disk that has the index, for journal, index and trees.
    #[must_use]
    pub fn reserve_bytes(&self) -> u64 {
        self.pool.for_index().reserve_bytes
    }

    /// What was counted since the store was opened.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}
