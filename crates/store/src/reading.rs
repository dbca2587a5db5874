//! Reading of chunks: by themselves, in parts, many at a time, and ahead of who will want them.
//!
//! T-4   What is given was verified on the way here, or lies in the cache, where only what was verified is put. A chunk that does not verify
//!       is read once more, then looked for in another copy, then where the index made again says it is; only then it is an error, and of who wants
//!       a part of it only if that does not verify by itself.
//!
//! Not here: the cache (`cache`), the reads of a pack's bytes (`pack`).

use std::ops::Range;
use std::sync::Arc;

use base::hash::{GROUP_BYTES, checksum};
use base::id::ChunkAddress;
use bytes::{Bytes, BytesMut};
use platform::disk::DiskErrorKind;
use tokio::sync::oneshot;

use crate::cache::{Claim, Origin};
use crate::failure::{StoreError, unknown};
use crate::format::{Class, Codec, INDEX_FILE, Place, remains_of};
use crate::pack::Memo;
use crate::pack::scan::unsteady;
use crate::store::Store;

/// Tasks that read the chunks of one [`Store::get_many`] at most.
const READERS_MAX: usize = 4;
/// Chunks that one of them reads at least: a hand-over costs about as much as checking one.
const READ_TOGETHER_MIN: usize = 3;

/// Bytes of a pack that are read ahead at once, and the largest gap in them that nobody asked for.
const RUN_AHEAD_BYTES: u64 = 1 << 20;
const GAP_AHEAD_BYTES: u64 = 16 << 10;
/// Tasks that read ahead at a time, about.
const AHEAD_TASKS: u32 = 32;
/// Chunks that are looked up before the first of them is read.
const LOOKED_UP_TOGETHER: usize = 32;

/// The part of a chunk that the hashes of its groups are; the groups have their numbers.
const TABLE: usize = 0xff;

/// What a part of a chunk is called in the cache: no chunk's address, as far as addresses are random.
fn key_of_part(address: &ChunkAddress, part: usize) -> ChunkAddress {
    let mut key = *address;
    key.0.iter_mut().for_each(|byte| *byte = !*byte);
    key.0[8] ^= part as u8;
    key
}

/// What a bundle is called there, by where it lies: as random as addresses are.
fn key_of_bundle(pack: u64, start: u64) -> ChunkAddress {
    let mut key = [0; ChunkAddress::BYTES];
    for (number, word) in (0_u64..).zip(key.as_chunks_mut::<8>().0) {
        *word = checksum(pack ^ number << 62, &start.to_le_bytes()).to_le_bytes();
    }
    ChunkAddress(key)
}

impl Store {
    /// The content of a chunk, verified against its address.
    ///
    /// # Errors
    /// `Absent`, or `Corrupt`: never wrong bytes. `Disk` where nobody knows: a disk gave no answer that would tell.
    pub async fn get(self: &Arc<Store>, class: Class, address: &ChunkAddress) -> Result<Bytes, StoreError> {
        self.counters.chunks_read.add(1);
        match self.cache.hit(class, address) {
            Some(content) => Ok(content),
            // Boxed: most find it cached, and need not carry this.
            None => Box::pin(self.cache.read_through(class, address, self.read_by(address, true))).await,
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
        match self.get(Class::Data, address).await {
            Ok(content) => {
                let end = content.len().min(part.end as usize);
                Ok(content.slice(end.min(part.start as usize)..end))
            }
            // The part may be good where the whole is not, or left where that was given up.
            Err(error) => Box::pin(self.read_what_is_left(address, &part)).await.ok_or(error),
        }
    }

    /// A part, by the groups that have it. `None`: it is to be read with the whole chunk.
    async fn read_part(self: &Arc<Store>, address: &ChunkAddress, part: &Range<u32>) -> Option<Bytes> {
        let place = self.place(address, None).await.ok()?;
        let groups = part.start as usize / GROUP_BYTES..(part.end as usize).div_ceil(GROUP_BYTES);
        let is_little = 2 * groups.len() <= (place.raw as usize).div_ceil(GROUP_BYTES);
        if !is_little || place.codec != Codec::Groups {
            return None;
        }
        self.read_groups(address, address, &place, part).await
    }

    /// A part of a chunk that cannot be read.
    async fn read_what_is_left(self: &Arc<Store>, address: &ChunkAddress, part: &Range<u32>) -> Option<Bytes> {
        for (name, codec) in [(*address, Codec::Groups), (remains_of(address), Codec::Remains)] {
            let lookup = || self.packs.index.lookup(&name, &self.counters).ok().flatten();
            let mut place = lookup().filter(|place| place.codec == codec);
            while let Some(at) = place {
                if let Some(found) = self.read_groups(address, &name, &at, part).await {
                    self.counters.parts_of_damaged.add(1);
                    return Some(found);
                }
                // It may have been moved meanwhile.
                place = lookup().filter(|now| *now != at && now.codec == codec);
            }
        }
        None
    }

    /// Of the chunk with this address, or of what is left of it: `name` is what lies at `place`.
    async fn read_groups(
        self: &Arc<Store>,
        address: &ChunkAddress,
        name: &ChunkAddress,
        place: &Place,
        part: &Range<u32>,
    ) -> Option<Bytes> {
        if part.is_empty() || part.end > place.raw {
            return None;
        }
        let groups = part.start as usize / GROUP_BYTES..(part.end as usize).div_ceil(GROUP_BYTES);
        let table_key = key_of_part(address, TABLE);
        let table = match self.cache.hit(Class::Metadata, &table_key) {
            Some(table) => table,
            None => {
                let read = self.packs.read_groups(name, place, groups.start);
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
                    let read = async {
                        let read = self.packs.read_group(name, place, &table, number).await;
                        read.and_then(|group| group.ok_or(StoreError::Absent { chunk: *address }))
                    };
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

    /// Whether memory has a chunk.
    #[must_use]
    pub fn is_cached(&self, address: &ChunkAddress) -> bool {
        self.cache.has(address)
    }

    /// Reads chunks that somebody is likely to want: those that lie together in a pack by one read. A guess: what cannot be found by a
    /// look-up, or read, is left to who wants it. Returns when the reading of the last has begun.
    pub async fn prefetch(self: &Arc<Store>, class: Class, addresses: &[ChunkAddress]) {
        for some in addresses.chunks(LOOKED_UP_TOGETHER) {
            self.prefetch_runs(class, self.runs_of(some, |_| GAP_AHEAD_BYTES), &|| true).await;
        }
    }

    /// The same, all of them by the order in which they lie, as long as that goes on.
    pub async fn prefetch_in_order(
        self: &Arc<Store>,
        class: Class,
        addresses: &[ChunkAddress],
        goes_on: &(dyn Fn() -> bool + Sync),
    ) {
        self.prefetch_runs(class, self.runs_of(addresses, |pack| self.gap_bytes_at(pack)), goes_on).await;
    }

    async fn prefetch_runs(
        self: &Arc<Store>,
        class: Class,
        runs: Vec<Vec<(Place, ChunkAddress)>>,
        goes_on: &(dyn Fn() -> bool + Sync),
    ) {
        for run in runs {
            let stored = run.last().map_or(0, |(place, _)| place.span().end) - u64::from(run[0].0.offset);
            let content: u64 = run.iter().map(|(place, _)| u64::from(place.raw)).sum();
            // What a task costs beside them bounds the number of tasks.
            let most = self.options.ahead_bytes_max;
            let cost = u32::try_from(stored + content).unwrap_or(most).max(most / AHEAD_TASKS).min(most);
            let Ok(permit) = Arc::clone(&self.ahead).acquire_many_owned(cost).await else { return };
            if !goes_on() {
                return;
            }
            // Only now: who wants one of them waits for nothing but the disk.
            let claimed: Vec<_> =
                run.into_iter().filter_map(|member| self.cache.claim(&member.1).map(|claim| (member, claim))).collect();
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

    /// Where chunks lie that are not cached, those that lie together, over gaps of so many bytes, in one group.
    fn runs_of(&self, addresses: &[ChunkAddress], gap_bytes: impl Fn(u64) -> u64) -> Vec<Vec<(Place, ChunkAddress)>> {
        let absent = addresses.iter().filter(|address| !self.cache.has(address));
        let place = |address: &ChunkAddress| {
            let place = self.packs.index.lookup(address, &self.counters).ok()??;
            Some((place, *address))
        };
        let mut places: Vec<(Place, ChunkAddress)> = absent.filter_map(place).collect();
        places.sort_unstable_by_key(|(place, _)| (place.pack, place.offset));
        places.dedup_by_key(|(_, address)| *address);
        let bytes_max = RUN_AHEAD_BYTES.min(u64::from(self.options.ahead_bytes_max) / 4);
        let (mut runs, mut content, mut gap) = (Vec::<Vec<(Place, ChunkAddress)>>::new(), 0, 0);
        for member in places {
            if runs.last().is_none_or(|run| run[0].0.pack != member.0.pack) {
                gap = gap_bytes(member.0.pack);
            }
            content += u64::from(member.0.raw);
            let is_next = |run: &Vec<(Place, ChunkAddress)>| {
                content <= RUN_AHEAD_BYTES && is_of_run(&run[0].0, &run[run.len() - 1].0, &member.0, (bytes_max, gap))
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
        let mut memo = Memo::default();
        for ((place, address), claim) in members.iter().zip(claims) {
            // One after the other: who waits for the first has it before the last is verified.
            let content =
                run.as_ref().and_then(|run| self.packs.content_of(run, &members[0].0, place, address, &mut memo));
            if let Some(content) = content {
                self.counters.prefetched_chunks.add(1);
                self.cache.insert(class, address, &content, Origin::Ahead);
                claim.give(content);
            }
        }
    }

    /// Reads past the cache.
    pub(crate) async fn read(self: &Arc<Store>, address: &ChunkAddress) -> Result<Bytes, StoreError> {
        self.read_by(address, false).await
    }

    /// Reads what the cache does not have. `by_bundles`: but a bundle that it lies in is taken from there, and kept there.
    async fn read_by(self: &Arc<Store>, address: &ChunkAddress, by_bundles: bool) -> Result<Bytes, StoreError> {
        let _time = self.pool.clock.timer(&self.counters.chunk_read);
        let mut place = self.place(address, None).await?;
        let mut is_second = false;
        loop {
            let read = match place.codec {
                Codec::Bundled(_) if by_bundles => self.read_bundled(address, &place).await,
                _ => self.packs.read(address, &place).await,
            };
            let error = match read {
                Ok(content) => return Ok(content),
                Err(error) => error,
            };
            self.counters.verify_failures.add(u64::from(matches!(error, StoreError::Corrupt { .. })));
            let now = self.place(address, None).await?;
            if now != place {
                // It was moved meanwhile.
                place = now;
            } else if is_second || is_silence(&error) {
                let error = match self.packs.look_closely(address, &place, error.clone()).await {
                    Some(error) => error,
                    // Its disk gave it at last.
                    None => match self.packs.read(address, &place).await {
                        Ok(content) => return Ok(content),
                        Err(_) => unsteady(&self.packs.path_of(place.pack), place.span().start).into(),
                    },
                };
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

    /// Keeps the bundle that a chunk lies in: its neighbours are wanted next, mostly.
    async fn read_bundled(&self, address: &ChunkAddress, place: &Place) -> Result<Bytes, StoreError> {
        let start = place.span().start;
        let key = key_of_bundle(place.pack, start);
        let kept = self.cache.take(&key);
        let is_kept = kept.is_some();
        let mut memo = Memo::new(place, kept);
        let content = self.packs.read_by(address, place, &mut memo).await?;
        if let Some(bundle) = memo.into_content().filter(|_| !is_kept) {
            self.cache.insert(Class::Data, &key, &bundle, Origin::Wanted);
        }
        Ok(content)
    }

    /// The content of a further copy of a chunk that does not verify at `place`, if there is a good one.
    async fn other_copy(&self, address: &ChunkAddress, place: Place) -> Option<Bytes> {
        let content = self.good_copy_of(address, |copy| *copy != place).await?;
        // T-3: the one that is named is a bad one still.
        self.packs.doubt(*address);
        self.counters.other_copies.add(1);
        Some(content)
    }

    /// The content of the first further copy that is good, of those that count.
    pub(crate) async fn good_copy_of(&self, address: &ChunkAddress, counts: impl Fn(&Place) -> bool) -> Option<Bytes> {
        // What keeps the copies from being known is no worse than what is wrong already.
        let copies = self.packs.index.file().copies_of(address).unwrap_or_default();
        // A bundle that is new is named nowhere else (C-6).
        for copy in copies.into_iter().chain(self.packs.index.recent(address)) {
            if counts(&copy)
                && self.packs.has(copy.pack)
                && let Ok(content) = self.packs.read(address, &copy).await
            {
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
        if found.is_err() {
            // A change of the file that failed fails those who look meanwhile; then it is opened again.
            drop(self.index_work.lock().await);
            (found, made, file) = look();
        }
        // Once, and once more for each disk that lies.
        for _ in 0..=self.pool.disks.iter().count() {
            if matches!(found, Ok(Some(_))) {
                break;
            }
            if let (Err(_), Some(Ok(()))) = (&found, &made) {
                self.doubt_index_file(&file);
            }
            if index.made_again().is_none() {
                self.make_index_again().await;
            } else if made.is_some() && Arc::ptr_eq(&file, &index.file()) {
                break;
            }
            (found, made, file) = look();
        }
        let disk = &self.pool.for_index().disk;
        let cause = match (found, made) {
            (Ok(Some(place)), _) => return Ok(place),
            (Err(error), _) => {
                self.doubt_index_file(&file);
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
}

/// Whether a disk did not answer: it was waited for long enough.
fn is_silence(error: &StoreError) -> bool {
    matches!(error, StoreError::Disk(error) if error.kind == DiskErrorKind::Silent)
}

/// Whether a place is read with those from `first` to `last`, together no more than so many bytes, over no larger gap.
fn is_of_run(first: &Place, last: &Place, place: &Place, (bytes_max, gap_bytes): (u64, u64)) -> bool {
    place.pack == first.pack
        && place.span().end.saturating_sub(u64::from(first.offset)) <= bytes_max
        && u64::from(place.offset).saturating_sub(last.span().end) <= gap_bytes
}
