//! The store of one node: what the layers above call.
//!
//! T-1   A commit settles first, writes the superblock second, and frees the journal third, so that each step rests on what the
//!       one before made durable (S-3, J-4).
//! T-2   A commit whose superblock could not be written leaves the one before untouched: the next try takes the same slot with a
//!       higher generation.
//! T-3   A chunk that turned out to be damaged is no duplicate any more: putting its content again stores it anew.
//!
//! Not here: opening (`recover`), giving back room (`reclaim`), looking for damage (`check`).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use base::hash::{DomainKey, GROUP_BYTES};
use base::id::{ChunkAddress, NodeNumber, Position};
use base::limits::CHUNK_BYTES_MAX;
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use platform::Platform;
use platform::disk::{Disk, DiskErrorKind, Space};
use platform::pools::{Pools, Reservation};
use platform::task::parallel;
use tokio::sync::oneshot;

use crate::cache::{Cache, Claim, Origin};
use crate::chunk::{Named, pack};
use crate::counters::Counters;
use crate::failure::{StoreError, unknown};
use crate::format::{Class, Codec, INDEX_FILE, Identity, Place, ROOTS_BYTES_MAX, Superblock};
use crate::identity;
use crate::index::{AddressSet, Change};
use crate::journal::Journal;
use crate::options::Options;
use crate::pack::Packs;
use crate::pool::Pool;
use crate::reindex::NewIndex;
use crate::superblock;

/// Tasks that read the chunks of one [`Store::get_many`] at most.
const READERS_MAX: usize = 4;
/// Chunks that one of them reads at least: a hand-over costs about as much as checking one.
const READ_TOGETHER_MIN: usize = 3;

const SMALL_PUT_BYTES: u64 = 1 << 20;
/// Bytes of a pack that are read ahead at once, and the largest gap in them that nobody asked for.
const RUN_AHEAD_BYTES: u64 = 1 << 20;
const GAP_AHEAD_BYTES: u64 = 16 << 10;
/// Tasks that read ahead at a time, about.
const AHEAD_TASKS: u32 = 32;
/// Chunks that are looked up before the first of them is read.
const LOOKED_UP_TOGETHER: usize = 32;

/// An open store. All methods may be called from many tasks.
pub struct Store {
    pub(crate) platform: Platform,
    pub(crate) identity: Identity,
    pub(crate) options: Options,
    pub(crate) pool: Arc<Pool>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) packs: Packs,
    pub(crate) journal: Arc<Journal>,
    cache: Arc<Cache>,
    /// Room for content on its way into packs.
    putting: Arc<Pools<1, 2>>,
    /// A permit for each byte that may be read ahead at the moment.
    ahead: Arc<tokio::sync::Semaphore>,
    pub(crate) root: tokio::sync::Mutex<Root>,
    /// Generation and covered position of the newest superblock, for `status`.
    newest: Mutex<(u64, Position)>,
    /// Held by who changes the index file.
    pub(crate) index_work: tokio::sync::Mutex<()>,
    /// Held by the task that makes the index again because somebody needs a chunk.
    index_making: Arc<tokio::sync::Mutex<()>>,
    pub(crate) reclaim_work: tokio::sync::Mutex<()>,
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

/// The part of a chunk that the hashes of its groups are; the groups have their numbers.
const TABLE: usize = 0xff;

/// What a part of a chunk is called in the cache: no chunk's address, as far as addresses are random.
fn key_of_part(address: &ChunkAddress, part: usize) -> ChunkAddress {
    let mut key = *address;
    key.0.iter_mut().for_each(|byte| *byte = !*byte);
    key.0[8] ^= part as u8;
    key
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
        identity::create(platform, disks, node, roots).await
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
            index_making: Arc::default(),
            reclaim_work: tokio::sync::Mutex::new(()),
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
        self.put_with(room, class, contents).await
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
        class: Class,
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
        let new = self.new_ones(named);
        if !new.is_empty() {
            if class == Class::Metadata {
                for Named { address, content, .. } in &new {
                    // A copy, so that a small chunk does not keep the large buffer that it was cut from.
                    self.cache.insert(class, address, &Bytes::copy_from_slice(content), Origin::Wanted);
                }
            }
            let time = self.pool.clock.timer(&self.counters.group_compress);
            let packed = parallel(tasks, new, |named| pack(self.options.compression, class, named));
            drop(time);
            let raw = packed.iter().filter(|packed| packed.header.codec != Codec::Zstd).count();
            self.counters.chunks_incompressible.add(raw as u64);
            let time = self.pool.clock.timer(&self.counters.group_append);
            self.packs.append(class, packed).await?;
            drop(time);
            drop(room);
            if self.packs.is_much_waiting() {
                self.keep_index().await;
            }
        }
        Ok(addresses)
    }

    fn named(&self, class: Class, content: Bytes) -> Named {
        let (address, groups) = match class {
            Class::Data => self.key().address_and_groups(&content),
            // Of a tree's node nobody wants a part.
            Class::Metadata => (self.key().address(&content), Vec::new()),
        };
        Named { address, groups, content }
    }

    // What is in no pack yet, each content once.
    fn new_ones(&self, named: Vec<Named>) -> Vec<Named> {
        let mut seen = AddressSet::default();
        let mut new = Vec::new();
        for named in named {
            if !seen.insert(named.address) || self.packs.duplicate(&named.address).is_some() {
                self.counters.chunks_duplicate.add(1);
            } else {
                self.counters.new_bytes.add(named.content.len() as u64);
                new.push(named);
            }
        }
        new
    }

    /// The content of a chunk, verified against its address.
    ///
    /// # Errors
    /// `Absent`, or `Corrupt`: never wrong bytes. `Disk` where nobody knows: a disk gave no answer that would tell.
    pub async fn get(self: &Arc<Store>, class: Class, address: &ChunkAddress) -> Result<Bytes, StoreError> {
        self.counters.chunks_read.add(1);
        match self.cache.hit(class, address) {
            Some(content) => Ok(content),
            // Boxed: most find it cached, and need not carry this.
            None => Box::pin(self.cache.read_through(class, address, self.read(address))).await,
        }
    }

    /// A part of the content of a chunk of file content, verified; shorter where the chunk ends before. Of a chunk whose groups have hashes of
    /// their own only those groups are read that have a byte of it, unless they are most of it. `or_more`: where memory has room to spare, the
    /// whole chunk is, for what lies about it.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub async fn get_part(
        self: &Arc<Store>,
        address: &ChunkAddress,
        part: Range<u32>,
        or_more: bool,
    ) -> Result<Bytes, StoreError> {
        let is_whole = self.cache.has(address) || (or_more && self.cache.has_plenty(address));
        if !is_whole && let Some(found) = Box::pin(self.read_part(address, &part)).await {
            return Ok(found);
        }
        // Also where a part could not be read, or verified: there all that can be done for a chunk is done.
        let content = self.get(Class::Data, address).await?;
        let end = content.len().min(part.end as usize);
        Ok(content.slice(end.min(part.start as usize)..end))
    }

    async fn read_part(self: &Arc<Store>, address: &ChunkAddress, part: &Range<u32>) -> Option<Bytes> {
        let place = self.place(address, None).await.ok()?;
        let groups = part.start as usize / GROUP_BYTES..(part.end as usize).div_ceil(GROUP_BYTES);
        let is_little = 2 * groups.len() <= (place.raw as usize).div_ceil(GROUP_BYTES);
        if place.codec != Codec::Groups || part.is_empty() || part.end > place.raw || !is_little {
            return None;
        }
        let table_key = key_of_part(address, TABLE);
        let table = match self.cache.hit(Class::Metadata, &table_key) {
            Some(table) => table,
            None => {
                let read = self.packs.read_groups(address, &place, groups.start);
                self.cache.read_through(Class::Metadata, &table_key, read).await.ok()?
            }
        };
        let mut found = BytesMut::with_capacity(part.len());
        for number in groups {
            let key = key_of_part(address, number);
            let group = match self.cache.hit(Class::Data, &key) {
                Some(group) => group,
                None => {
                    self.counters.groups_read.add(1);
                    let read = self.packs.read_group(address, &place, &table, number);
                    self.cache.read_through(Class::Data, &key, read).await.ok()?
                }
            };
            let start = number * GROUP_BYTES;
            let from = (part.start as usize).max(start) - start;
            let to = (part.end as usize).min(start + group.len()).checked_sub(start)?;
            found.extend_from_slice(group.get(from..to)?);
        }
        Some(found.freeze())
    }

    /// The contents of chunks, in their order, each as [`Store::get`] gives it. Of many that are not cached some are read and checked
    /// at the same time.
    ///
    /// # Errors
    /// As [`Store::get`], of one of them.
    pub async fn get_many(
        self: &Arc<Store>,
        class: Class,
        addresses: &[ChunkAddress],
    ) -> Result<Vec<Bytes>, StoreError> {
        let absent: Vec<usize> = match addresses {
            [_] => Vec::new(),
            _ => (0..addresses.len()).filter(|number| !self.cache.has(&addresses[*number])).collect(),
        };
        let each = absent.len().div_ceil(READERS_MAX).max(READ_TOGETHER_MIN);
        let mut parts: Vec<&[usize]> = absent.chunks(each).collect();
        // The last is read here, with what is cached.
        parts.pop();
        let begin = |part: &&[usize]| self.get_aside(class, part.iter().map(|number| addresses[*number]).collect());
        let begun: Vec<_> = parts.iter().map(begin).collect();
        let mut contents: Vec<Option<Bytes>> = vec![None; addresses.len()];
        let is_elsewhere = |number: &usize| parts.iter().any(|part| part.contains(number));
        let mut result = Ok(());
        for number in (0..addresses.len()).filter(|number| !is_elsewhere(number)) {
            match self.get(class, &addresses[number]).await {
                Ok(content) => contents[number] = Some(content),
                Err(error) => result = Err(error),
            }
        }
        // All are waited for: none works for nobody.
        for (part, begun) in parts.into_iter().zip(begun) {
            match begun.await.expect("a panic there is one here") {
                Ok(read) => part.iter().zip(read).for_each(|(number, content)| contents[*number] = Some(content)),
                Err(error) => result = Err(error),
            }
        }
        result.map(|()| contents.into_iter().flatten().collect())
    }

    /// Begins to get chunks, beside the caller.
    fn get_aside(
        self: &Arc<Store>,
        class: Class,
        addresses: Vec<ChunkAddress>,
    ) -> oneshot::Receiver<Result<Vec<Bytes>, StoreError>> {
        let (send, receive) = oneshot::channel();
        let store = Arc::clone(self);
        self.platform.tasks.aside(Box::pin(async move {
            let mut contents = Vec::with_capacity(addresses.len());
            let mut result = Ok(());
            for address in &addresses {
                // Who asked may have gone.
                if send.is_closed() || result.is_err() {
                    break;
                }
                result = store.get(class, address).await.map(|content| contents.push(content));
            }
            drop(store);
            drop(send.send(result.map(|()| contents)));
        }));
        receive
    }

    /// Reads chunks that somebody is likely to want: those that lie together in a pack by one read. A guess: what cannot be found by a
    /// look-up, or read, is left to who wants it. Returns when the reading of the last has begun.
    pub async fn prefetch(self: &Arc<Store>, class: Class, addresses: &[ChunkAddress]) {
        for some in addresses.chunks(LOOKED_UP_TOGETHER) {
            for run in self.runs_of(some) {
                let stored = run.last().map_or(0, |(place, _)| stored_end(place)) - u64::from(run[0].0.offset);
                let content: u64 = run.iter().map(|(place, _)| u64::from(place.raw)).sum();
                // What a task costs beside them bounds the number of tasks.
                let most = self.options.ahead_bytes_max;
                let cost = u32::try_from(stored + content).unwrap_or(most).max(most / AHEAD_TASKS).min(most);
                let Ok(permit) = Arc::clone(&self.ahead).acquire_many_owned(cost).await else { return };
                // Only now: who wants one of them waits for nothing but the disk.
                let claimed: Vec<_> = run
                    .into_iter()
                    .filter_map(|member| self.cache.claim(&member.1).map(|claim| (member, claim)))
                    .collect();
                if claimed.is_empty() {
                    continue;
                }
                let store = Arc::clone(self);
                self.platform.tasks.aside(Box::pin(async move {
                    store.read_ahead(class, claimed).await;
                    drop(store);
                    drop(permit);
                }));
            }
        }
    }

    /// Where chunks lie that are not cached, those that lie together in one group.
    fn runs_of(&self, addresses: &[ChunkAddress]) -> Vec<Vec<(Place, ChunkAddress)>> {
        let absent = addresses.iter().filter(|address| !self.cache.has(address));
        let place = |address: &ChunkAddress| {
            let place = self.packs.index.lookup(address, &self.counters).ok()??;
            Some((place, *address))
        };
        let mut places: Vec<(Place, ChunkAddress)> = absent.filter_map(place).collect();
        places.sort_unstable_by_key(|(place, _)| (place.pack, place.offset));
        places.dedup_by_key(|(_, address)| *address);
        let bytes_max = RUN_AHEAD_BYTES.min(u64::from(self.options.ahead_bytes_max) / 4);
        let (mut runs, mut content) = (Vec::<Vec<(Place, ChunkAddress)>>::new(), 0);
        for member in places {
            content += u64::from(member.0.raw);
            let is_next = |run: &Vec<(Place, ChunkAddress)>| {
                content <= RUN_AHEAD_BYTES && is_of_run(&run[0].0, &run[run.len() - 1].0, &member.0, bytes_max)
            };
            match runs.last_mut().filter(|run| is_next(run)) {
                Some(run) => run.push(member),
                None => {
                    content = u64::from(member.0.raw);
                    runs.push(vec![member]);
                }
            }
        }
        runs
    }

    async fn read_ahead(&self, class: Class, claimed: Vec<((Place, ChunkAddress), Claim)>) {
        let (members, claims): (Vec<_>, Vec<_>) = claimed.into_iter().unzip();
        let run = self.packs.read_run(&members).await;
        for ((place, address), claim) in members.iter().zip(claims) {
            // One after the other: who waits for the first has it before the last is verified.
            if let Some(content) =
                run.as_ref().and_then(|run| self.packs.content_of(run, &members[0].0, place, address))
            {
                self.counters.prefetched_chunks.add(1);
                self.cache.insert(class, address, &content, Origin::Ahead);
                claim.give(content);
            }
        }
    }

    /// Reads past the cache.
    pub(crate) async fn read(self: &Arc<Store>, address: &ChunkAddress) -> Result<Bytes, StoreError> {
        let _time = self.pool.clock.timer(&self.counters.chunk_read);
        let mut place = self.place(address, None).await?;
        let mut is_second = false;
        loop {
            let error = match self.packs.read(address, &place).await {
                Ok(content) => return Ok(content),
                Err(error) => error,
            };
            self.counters.verify_failures.add(u64::from(matches!(error, StoreError::Corrupt { .. })));
            let now = self.place(address, None).await?;
            if now != place {
                // It was moved meanwhile.
                place = now;
            } else if is_second || is_silence(&error) {
                self.packs.note_failed_read(&place, &error);
                if let Some(content) = self.other_copy(address, place).await {
                    return Ok(content);
                }
                place = self.place_after(address, place, error).await?;
                is_second = false;
            } else {
                // A bit that flipped on its way here may be right the next time.
                self.packs.forget_read(&place).await;
                is_second = true;
            }
        }
    }

    /// The content of a further copy of a chunk that does not verify at `place`, if there is a good one.
    async fn other_copy(&self, address: &ChunkAddress, place: Place) -> Option<Bytes> {
        // What keeps the copies from being known is no worse than what is wrong already.
        for copy in self.packs.index.file().copies_of(address).unwrap_or_default() {
            if copy == place || !self.packs.has(copy.pack) {
                continue;
            }
            if let Ok(content) = self.packs.read(address, &copy).await {
                // T-3: the one that is named is a bad one still.
                self.packs.doubt(*address);
                self.counters.other_copies.add(1);
                return Some(content);
            }
        }
        None
    }

    /// Another place than the one where the chunk was looked for in vain, if there is one: an older version of a page of the index
    /// names places of old.
    async fn place_after(
        self: &Arc<Store>,
        address: &ChunkAddress,
        place: Place,
        error: StoreError,
    ) -> Result<Place, StoreError> {
        let other = match &error {
            StoreError::Corrupt { .. } => match self.packs.is_named_at(address, &place).await {
                Ok(true) => Err(error.clone()),
                Ok(false) => self.place(address, Some(place)).await,
                Err(failure) => Err(failure),
            },
            _ => Err(error.clone()),
        };
        other.map_err(|other| {
            self.packs.doubt(*address);
            // In a pack that is there, it is the chunk that is damaged.
            if matches!(other, StoreError::Absent { .. }) && self.packs.has(place.pack) { error } else { other }
        })
    }

    /// Where a chunk lies. X-4; `wrong` is a place that counts for none.
    async fn place(self: &Arc<Store>, address: &ChunkAddress, wrong: Option<Place>) -> Result<Place, StoreError> {
        let index = &self.packs.index;
        let look = || {
            // Before the look-up: what a file says that is replaced meanwhile is not believed for the new one.
            let (made, file) = (index.made_again(), index.file());
            let found = index.lookup(address, &self.counters).map(|found| found.filter(|place| Some(*place) != wrong));
            // Nor what it says after a repair made it forget.
            (found, made.filter(|_| index.made_again().is_some()), file)
        };
        let (mut found, mut made, mut file) = look();
        if !matches!(found, Ok(Some(_))) && made.is_none() {
            self.make_index_again().await;
            (found, made, file) = look();
        }
        let disk = &self.pool.disks[0].disk;
        let cause = match (found, made) {
            (Ok(Some(place)), _) => return Ok(place),
            (Err(error), _) => {
                index.doubt(disk, &file);
                error
            }
            (Ok(None), Some(Ok(()))) => match self.packs.unread() {
                None => return Err(StoreError::Absent { chunk: *address }),
                Some(error) => error,
            },
            (Ok(None), Some(Err(error))) => error,
            (Ok(None), None) => StoreError::ReadOnly { cause: "the task that makes the index again ended".into() },
        };
        Err(unknown(&format!("{}/{INDEX_FILE}", disk.path()), &cause))
    }

    /// Returns when the index was made again in this life of the store, or could not be. Whoever comes second waits for the first.
    async fn make_index_again(self: &Arc<Store>) {
        let making = self.index_making.clone().lock_owned().await;
        if self.packs.index.made_again().is_some() {
            return;
        }
        let store = self.clone();
        // Beside the caller, whose thread may serve others too: it takes as long as to read every directory.
        self.platform.tasks.aside(Box::pin(async move {
            // For nobody it is not made.
            let made = store.remake_index(&|| Arc::strong_count(&store) > 1).await;
            // That it could be done was noted at once: a repair may have come since.
            if made.is_err() {
                store.packs.index.note_made_again(made);
            }
            drop(making);
        }));
        drop(self.index_making.lock().await);
    }

    /// Makes the index again, whatever was made before.
    pub(crate) async fn remake_index(&self, goes_on: &(dyn Fn() -> bool + Sync)) -> Result<(), StoreError> {
        // No reclaim meanwhile, for it decides by what the index names.
        let _no_reclaim = self.reclaim_work.lock().await;
        self.remake_held_index(goes_on).await
    }

    /// The same; the caller holds `reclaim_work`.
    pub(crate) async fn remake_held_index(&self, goes_on: &(dyn Fn() -> bool + Sync)) -> Result<(), StoreError> {
        if !self.pool.disks[0].is_good() {
            return Err(StoreError::ReadOnly { cause: "disk 0, which holds the index, failed".into() });
        }
        let mut new = NewIndex::begin(&self.packs)?;
        new.take_packs(goes_on).await?;
        let _work = self.index_work.lock().await;
        // Those that the old one took in meanwhile.
        new.take_packs(goes_on).await?;
        new.put_in_place()?;
        self.counters.index_made_again.add(1);
        self.packs.index.note_made_again(Ok(()));
        Ok(())
    }

    /// Whether a chunk can be relied upon to be here.
    #[must_use]
    pub fn contains(&self, address: &ChunkAddress) -> bool {
        self.packs.duplicate(address).is_some()
    }

    /// Makes all chunks durable that were accepted before.
    ///
    /// # Errors
    /// `Full` or `ReadOnly`: not all of them could be made durable. They can still be read, and another try is welcome.
    pub async fn settle(&self) -> Result<(), StoreError> {
        self.packs.settle().await
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
    /// an open gives back these roots and the frames after them.
    ///
    /// # Errors
    /// `TooLarge`, or why the chunks or the superblock could not be written. The roots before are still in force then, or, where
    /// the failure was not certain, either is.
    pub async fn commit(&self, roots: &[u8], covered: Position) -> Result<(), StoreError> {
        if roots.len() > ROOTS_BYTES_MAX {
            return Err(identity::too_large(roots));
        }
        assert!(covered <= self.last_logged(), "a commit covers frames that were logged");
        let mut root = self.root.lock().await;
        assert!(covered >= root.covered, "commits cover more and more");
        self.settle().await?;
        self.journal.begin_for(covered).await?;
        self.keep_index().await;
        self.write_root(&mut root, roots.to_vec(), covered, false).await?;
        Ok(())
    }

    /// Writes the newest roots once more, so that both slots hold them.
    ///
    /// # Errors
    /// Why the superblock could not be written.
    pub async fn renew_root(&self) -> Result<(), StoreError> {
        let mut root = self.root.lock().await;
        let (roots, covered) = (root.roots.clone(), root.covered);
        self.write_root(&mut root, roots, covered, false).await
    }

    async fn write_root(
        &self,
        root: &mut Root,
        roots: Vec<u8>,
        covered: Position,
        is_closed: bool,
    ) -> Result<(), StoreError> {
        let superblock = Superblock {
            generation: root.next_generation,
            is_closed,
            node_identity: self.pool.node_identity,
            covered,
            durable: self.last_durable(),
            pack_next: self.packs.next(),
            time: self.platform.clock.now(),
            disks: self.pool.disks.iter().map(|disk| disk.uuid).collect(),
            roots,
        };
        // Should this fail, or be dropped halfway, the slot may hold anything, this superblock included: T-2.
        root.next_generation += Superblock::SLOTS;
        let time = self.pool.clock.timer(&self.counters.superblock_write);
        superblock::write(&self.pool, &superblock, &self.counters).await?;
        drop(time);
        root.next_generation = superblock.generation + 1;
        root.roots = superblock.roots;
        let before = std::mem::replace(&mut root.covered, covered);
        *self.newest.lock() = (superblock.generation, covered);
        if let Err(error) = self.journal.covered(covered, before).await {
            // The root holds; only room was not given back.
            let _ = self.pool.failed(0, error, &self.counters);
        }
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
        // Who reads ahead has ended, and nobody does from now on. Closed already: the same.
        if let Ok(all) = self.ahead.acquire_many(self.options.ahead_bytes_max).await {
            all.forget();
            self.ahead.close();
        }
        let last = self.last_logged();
        self.sync_log(last).await?;
        self.settle().await?;
        self.packs.seal_all().await;
        self.keep_index().await;
        let mut root = self.root.lock().await;
        if root.covered == last && self.journal.close(last).await {
            let (roots, covered) = (root.roots.clone(), root.covered);
            self.write_root(&mut root, roots, covered, true).await?;
        }
        Ok(())
    }

    /// Gives sealed packs to the index file. A failure is no loss: the entries stay in memory, and the packs know them.
    pub(crate) async fn keep_index(&self) {
        let _ = self.take_into_index().await;
    }

    /// Gives the index file all packs that are sealed by now.
    pub(crate) async fn take_into_index(&self) -> Result<(), StoreError> {
        let _work = self.index_work.lock().await;
        if !self.packs.is_sealed_waiting() {
            return Ok(());
        }
        self.refuse_index()?;
        let change = Change { added: self.packs.sealed_waiting(), ..Change::default() };
        self.change_index(&change)?;
        self.packs.forget_sealed(&change.added);
        Ok(())
    }

    /// Why the index file takes no changes, if it takes none.
    fn refuse_index(&self) -> Result<(), StoreError> {
        if self.pool.disks[0].is_good() && !self.packs.index.is_doubted() {
            return Ok(());
        }
        self.counters.index_failures.add(1);
        let cause = "the disk of the index failed, or the index is damaged";
        Err(StoreError::ReadOnly { cause: cause.into() })
    }

    /// Changes the index file. The caller holds `index_work`.
    pub(crate) fn change_index(&self, change: &Change) -> Result<(), StoreError> {
        self.refuse_index()?;
        let disk = &self.pool.disks[0];
        match self.packs.index.commit(&disk.disk, change, &self.counters) {
            Err(StoreError::Disk(error)) => {
                let failure = self.pool.failed(0, error, &self.counters);
                if !disk.is_good() {
                    // What a failed sync left in the page cache may look whole to the next process, and not be.
                    self.doubt_index();
                }
                Err(failure)
            }
            Err(error) => {
                self.doubt_index();
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    /// Takes packs that go out of the index file, with the chunks in them. The caller holds `index_work` and, so that the packs of heirs
    /// stay, `reclaim_work`.
    pub(crate) async fn forget_in_index(&self, removed: Vec<(u64, Vec<ChunkAddress>)>) -> Result<(), StoreError> {
        self.refuse_index()?;
        let heirs = match self.heirs(&removed).await {
            Err(error @ StoreError::Corrupt { .. }) => {
                self.doubt_index();
                return Err(error);
            }
            heirs => heirs?,
        };
        self.change_index(&Change { added: Vec::new(), removed, heirs })
    }

    /// Places in packs that stay, for chunks that the index names in packs that go: X-5. What does not verify is no heir: the next put of
    /// such a chunk would rely on it. Nobody relies on what lies on a missing disk (K-6), so that is one where there is no better.
    async fn heirs(&self, removed: &[(u64, Vec<ChunkAddress>)]) -> Result<Vec<(ChunkAddress, Place)>, StoreError> {
        let gone = |place: &Place| removed.iter().any(|(pack, _)| *pack == place.pack);
        let addresses = removed.iter().flat_map(|(_, addresses)| addresses).copied().collect();
        let copies = self.packs.index.file().copies(&self.pool.disks[0].disk, &addresses)?;
        let (mut heirs, mut missing) = (BTreeMap::new(), BTreeMap::new());
        for (address, place) in copies {
            if heirs.contains_key(&address) || gone(&place) || !self.packs.has(place.pack) {
                continue;
            }
            if !self.packs.index.lookup(&address, &self.counters)?.is_some_and(|named| gone(&named)) {
                continue;
            }
            if self.packs.is_missing(place.pack) {
                missing.insert(address, place);
            } else if self.is_sound(&address, &place).await {
                heirs.insert(address, place);
            }
        }
        missing.extend(heirs);
        Ok(missing.into_iter().collect())
    }

    async fn is_sound(&self, address: &ChunkAddress, place: &Place) -> bool {
        if self.packs.read(address, place).await.is_ok() {
            return true;
        }
        // A bit that flipped on its way here may be right the next time.
        self.packs.forget_read(place).await;
        self.packs.read(address, place).await.is_ok()
    }

    /// Whether the index turned out to be damaged. It is made again by the next opening.
    #[must_use]
    pub fn is_index_doubted(&self) -> bool {
        self.packs.index.is_doubted()
    }

    /// The caller holds `index_work`: the file that it found damaged is the current one.
    fn doubt_index(&self) {
        self.packs.index.doubt(&self.pool.disks[0].disk, &self.packs.index.file());
    }

    /// Room on all good disks together, without the reserves.
    #[must_use]
    pub fn space(&self) -> Space {
        self.pool.space()
    }

    /// What data leaves free on the disk that has the journal, for journal, index and trees.
    #[must_use]
    pub fn reserve_bytes(&self) -> u64 {
        self.pool.disks[0].reserve_bytes
    }

    /// What was counted since the store was opened.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}

/// Whether a disk did not answer: it was waited for long enough.
fn is_silence(error: &StoreError) -> bool {
    matches!(error, StoreError::Disk(error) if error.kind == DiskErrorKind::Silent)
}

/// Whether a place is read with those from `first` to `last`, together no more than `bytes_max`.
fn is_of_run(first: &Place, last: &Place, place: &Place, bytes_max: u64) -> bool {
    place.pack == first.pack
        && stored_end(place).saturating_sub(u64::from(first.offset)) <= bytes_max
        && u64::from(place.offset).saturating_sub(stored_end(last)) <= GAP_AHEAD_BYTES
}

fn stored_end(place: &Place) -> u64 {
    u64::from(place.offset) + u64::from(place.stored)
}
