//! The file part of the index: a redb database with four tables.
//!
//! `chunks` names places, `copies` further places of the few chunks that lie in more than one pack, `packs` the packs that are wholly
//! in it, and `about` says to which node and version it belongs, and whether it was made again and lacks packs that were there.
//! redb's own crash safety (a shadow-paged tree and two header slots) makes each transaction whole or absent. Damaged pages do not
//! reach it (`backend`, X-6), each value carries a check of its own, and whatever redb says or does all the same, a panic included,
//! becomes an error here.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::id::ChunkAddress;
use parking_lot::{Mutex, RwLock};
use platform::disk::{Disk, DiskErrorKind, File, Open};
use redb::{
    AccessGuard, Database, Durability, ReadOnlyTable, ReadableDatabase, ReadableTable, ReadableTableMetadata,
    StorageError, TableDefinition, TableError,
};

use super::backend::{Backend, Failure};
use super::{AddressSet, Change};
use crate::ages::Checked;
use crate::failure::{StoreError, corrupt};
use crate::format::{Codec, INDEX_FILE, INDEX_NEW, Place, Summary, VERSION};

type ChunkKey = &'static [u8; ChunkAddress::BYTES];
type ChunkValue = &'static [u8; Place::BYTES];
const CHUNKS: TableDefinition<'_, ChunkKey, ChunkValue> = TableDefinition::new("chunks");
const COPIES: TableDefinition<'_, (ChunkKey, u64), ChunkValue> = TableDefinition::new("copies");
type CopyRange<'a> = redb::Range<'a, (ChunkKey, u64), ChunkValue>;
const PACKS: TableDefinition<'_, u64, &'static [u8; Summary::BYTES]> = TableDefinition::new("packs");
/// Minutes since 1970. Those that an older HydraFS wrote have none of it.
const CHECKED: TableDefinition<'_, u64, u32> = TableDefinition::new("checked");
const ABOUT: TableDefinition<'_, &'static str, &'static [u8]> = TableDefinition::new("about");

/// Packs that were taken out while the file lacks packs.
const GONE: TableDefinition<'_, u64, ()> = TableDefinition::new("gone");

/// The field of `about` that is there as long as the file lacks packs.
const LACKS_PACKS: &str = "lacks packs";

/// A file of more is not walked at each opening to know what is new: that of some 200 GiB of content in chunks of 64 KiB.
const WALKED_BYTES_MAX: u64 = 256 << 20;
/// A file of more is not read whole before many look-ups: with all of it in memory already that is 10 ms of copying.
const EXPECTED_BYTES_MAX: u64 = 64 << 20;
/// Entries of one transaction at most: bounds redb's dirty pages.
const BATCH_ENTRIES: usize = 100_000;
/// Entries of a table that are gone through while one is looked up, about.
const LOOK_UP_ENTRIES: u64 = 16;

/// The open database and its newest snapshot for look-ups.
pub(crate) struct IndexFile {
    /// On its disk.
    name: &'static str,
    path: String,
    cache_bytes: usize,
    node_identity: [u8; 16],
    /// Whether it was made in this life of the store.
    is_made: bool,
    ///
    lacks_packs: AtomicBool,
    gone: Mutex<BTreeSet<u64>>,
    // `None` after a failure, until the next commit opens it anew.
    database: Mutex<Option<Contained<Database>>>,
    /// What the database lies in.
    file: Mutex<Option<File>>,
    tables: RwLock<Option<Arc<Contained<Tables>>>>,
    /// Of the database that is open.
    failure: Failure,
}

/// What look-ups look into.
struct Tables {
    chunks: ReadOnlyTable<ChunkKey, ChunkValue>,
    copies: ReadOnlyTable<(ChunkKey, u64), ChunkValue>,
}

impl Tables {
    fn of(database: &Database) -> Result<Arc<Contained<Tables>>, String> {
        let read = database.begin_read().map_err(words)?;
        let (chunks, copies) = (read.open_table(CHUNKS).map_err(words)?, read.open_table(COPIES).map_err(words)?);
        Ok(Arc::new(Contained::new(Tables { chunks, copies })))
    }
}

/// Something of redb's that may panic when it is dropped, after it panicked over damaged bytes.
struct Contained<T>(Option<T>);

impl<T> Contained<T> {
    fn new(inner: T) -> Contained<T> {
        Contained(Some(inner))
    }
}

impl<T> std::ops::Deref for Contained<T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.as_ref().expect("taken only by drop")
    }
}

impl<T> Drop for Contained<T> {
    fn drop(&mut self) {
        let inner = self.0.take();
        // Whatever was to be told of it was told by the panic before.
        let _ = catch_unwind(AssertUnwindSafe(move || drop(inner)));
    }
}

/// What opening found.
pub(crate) struct Opened {
    pub(crate) file: IndexFile,
    /// Whether it was made just now, and is empty.
    pub(crate) is_new: bool,
    /// Packs that the index covers.
    pub(crate) packs: BTreeMap<u64, Summary>,
    /// When they were checked.
    pub(crate) checked: Checked,
}

impl IndexFile {
    /// Opens the index that is there. Anything wrong with it is an error that [`IndexFile::make_again`] cures.
    pub(crate) fn open(disk: &Disk, cache_bytes: u64, node_identity: [u8; 16]) -> Result<Opened, StoreError> {
        let file = IndexFile::closed(disk, INDEX_FILE, cache_bytes, node_identity);
        let database = file.open_database(disk, Open::Write)?;
        let (packs, checked) = file.guarded("packs", || {
            let read = database.begin_read().map_err(words)?;
            let about = read.open_table(ABOUT).map_err(words)?;
            file.check_about(&about)?;
            file.lacks_packs.store(about.get(LACKS_PACKS).map_err(words)?.is_some(), Ordering::SeqCst);
            *file.gone.lock() = read_gone(&database)?;
            // One of an older form has none, and does not know of copies.
            read.open_table(COPIES).map_err(words)?;
            Ok((read_packs(&database)?, read_checked(&database)?))
        })?;
        file.publish(database)?;
        Ok(Opened { file, is_new: false, packs, checked })
    }

    fn closed(disk: &Disk, name: &'static str, cache_bytes: u64, node_identity: [u8; 16]) -> IndexFile {
        IndexFile {
            name,
            path: format!("{}/{name}", disk.path()),
            cache_bytes: usize::try_from(cache_bytes).unwrap_or(usize::MAX),
            node_identity,
            is_made: false,
            lacks_packs: AtomicBool::new(false),
            gone: Mutex::default(),
            database: Mutex::new(None),
            file: Mutex::new(None),
            tables: RwLock::new(None),
            failure: Failure::default(),
        }
    }

    /// Removes what is there and makes an empty index.
    pub(crate) fn make_again(disk: &Disk, cache_bytes: u64, node_identity: [u8; 16]) -> Result<Opened, StoreError> {
        let mut file = IndexFile::closed(disk, INDEX_FILE, cache_bytes, node_identity);
        file.make_empty(disk)?;
        Ok(Opened { file, is_new: true, packs: BTreeMap::new(), checked: Checked::new() })
    }

    /// An empty index beside this one, for [`Index::replace_file`](super::Index::replace_file) when it is complete.
    pub(crate) fn new_beside(&self, disk: &Disk) -> Result<IndexFile, StoreError> {
        let mut file = IndexFile::closed(disk, INDEX_NEW, self.cache_bytes as u64, self.node_identity);
        *file.gone.lock() = self.gone.lock().clone();
        file.make_empty(disk)?;
        Ok(file)
    }

    /// This one after it was renamed.
    pub(super) fn in_place(mut self, disk: &Disk) -> IndexFile {
        self.name = INDEX_FILE;
        self.path = format!("{}/{INDEX_FILE}", disk.path());
        self
    }

    /// whether packs were there, when it was made, that it has not taken in.
    pub(crate) fn lacks_packs(&self) -> bool {
        self.lacks_packs.load(Ordering::SeqCst)
    }

    /// Whether a pack was taken out while that is so: it is not one of those.
    pub(crate) fn is_gone(&self, pack: u64) -> bool {
        self.gone.lock().contains(&pack)
    }

    /// Notes durably that it lacks none.
    pub(crate) fn note_complete(&self, disk: &Disk) -> Result<(), StoreError> {
        self.change(disk, &|database| {
            let mut write = database.begin_write().map_err(words)?;
            write.set_durability(Durability::Immediate).map_err(words)?;
            write.set_quick_repair(true);
            write.open_table(ABOUT).map_err(words)?.remove(LACKS_PACKS).map_err(words)?;
            write.delete_table(GONE).map_err(words)?;
            write.commit().map_err(words)
        })?;
        self.lacks_packs.store(false, Ordering::SeqCst);
        self.gone.lock().clear();
        Ok(())
    }

    /// Whether it was made in this life of the store.
    pub(super) fn is_made(&self) -> bool {
        self.is_made
    }

    /// Reads a group of pages from the disk and compares them with their checksums; `false`: there is no such group. The caller keeps changes
    /// away. What a power cut left half written, and nothing leads to, does not match either.
    pub(crate) fn verify_group(&self, group: u64) -> Result<bool, StoreError> {
        let Some(file) = self.file.lock().clone() else {
            return Err(corrupt("the chunk index", &self.path, 0, "an open index", "one that failed before"));
        };
        // redb does not hear of this one.
        let failure = Failure::default();
        let backend = Backend::new(file, failure.clone());
        self.told("pages", || backend.verify_group(group).map_err(words), &failure)
    }

    fn make_empty(&mut self, disk: &Disk) -> Result<(), StoreError> {
        self.is_made = true;
        self.lacks_packs.store(true, Ordering::SeqCst);
        match disk.remove(self.name) {
            Err(error) if error.kind != DiskErrorKind::Absent => return Err(error.into()),
            _ => {}
        }
        let database = self.open_database(disk, Open::Create)?;
        disk.sync_directory("")?;
        self.guarded("its tables", || {
            let mut write = database.begin_write().map_err(words)?;
            write.set_durability(Durability::Immediate).map_err(words)?;
            {
                let mut about = write.open_table(ABOUT).map_err(words)?;
                about.insert("node", &self.node_identity[..]).map_err(words)?;
                about.insert("version", &VERSION.to_le_bytes()[..]).map_err(words)?;
                about.insert(LACKS_PACKS, &[][..]).map_err(words)?;
                write.open_table(CHUNKS).map_err(words)?;
                write.open_table(COPIES).map_err(words)?;
                write.open_table(PACKS).map_err(words)?;
                write.open_table(CHECKED).map_err(words)?;
                let mut gone = write.open_table(GONE).map_err(words)?;
                for pack in &*self.gone.lock() {
                    gone.insert(*pack, ()).map_err(words)?;
                }
            }
            write.commit().map_err(words)
        })?;
        self.publish(database)
    }

    fn open_database(&self, disk: &Disk, how: Open) -> Result<Contained<Database>, StoreError> {
        let file = disk.open(self.name, how)?;
        // Nothing is asked for ahead here: what an opening reads of trees would wait behind it, and whoever looks up much has all of it read soon
        // (`Backend::note_read`), the filter's walk first of all.
        *self.file.lock() = Some(file.clone());
        *self.failure.lock() = None;
        let backend = Backend::new(file, self.failure.clone());
        self.guarded("its header", || {
            let mut builder = Database::builder();
            builder.set_cache_size(self.cache_bytes);
            builder.create_with_backend(backend).map(Contained::new).map_err(words)
        })
    }

    fn check_about(&self, about: &ReadOnlyTable<&'static str, &'static [u8]>) -> Result<(), String> {
        let expected = [("node", &self.node_identity[..]), ("version", &VERSION.to_le_bytes()[..])];
        for (name, expected) in expected {
            let found = about.get(name).map_err(words)?;
            if found.as_ref().map(|found| found.value()) != Some(expected) {
                return Err(format!("an index of another node or version (field `{name}`)"));
            }
        }
        Ok(())
    }

    // Look-ups see the newest commit through one long-lived read transaction: beginning one for each would cost more
    // than the look-up.
    fn publish(&self, database: Contained<Database>) -> Result<(), StoreError> {
        *self.tables.write() = Some(self.guarded("its tables", || Tables::of(&database))?);
        *self.database.lock() = Some(database);
        Ok(())
    }

    fn tables(&self) -> Result<Arc<Contained<Tables>>, StoreError> {
        let tables = self.tables.read().clone();
        tables.ok_or_else(|| corrupt("the chunk index", &self.path, 0, "an open index", "one that failed before"))
    }

    /// The place that the file knows.
    pub(crate) fn lookup(&self, address: &ChunkAddress) -> Result<Option<Place>, StoreError> {
        let tables = self.tables()?;
        self.guarded("an entry", || match tables.chunks.get(&address.0).map_err(words)? {
            None => Ok(None),
            Some(value) => Place::decode(address, value.value())
                .map(Some)
                .ok_or_else(|| "an entry whose check does not match".to_owned()),
        })
    }

    /// The packs that the file covers.
    pub(crate) fn packs(&self) -> Result<BTreeMap<u64, Summary>, StoreError> {
        let slot = self.database.lock();
        let Some(database) = slot.as_ref() else {
            return Err(corrupt("the chunk index", &self.path, 0, "an open index", "one that failed before"));
        };
        self.guarded("packs", || read_packs(database))
    }

    /// Further places of a chunk, in the order of packs: hints, of which some may be of packs that are gone.
    pub(crate) fn copies_of(&self, address: &ChunkAddress) -> Result<Vec<Place>, StoreError> {
        let tables = self.tables()?;
        self.guarded("copies", || {
            let (mut copies, mut rising) = (Vec::new(), Rising(None));
            for entry in tables.copies.range((&address.0, 0)..=(&address.0, u64::MAX)).map_err(words)? {
                let (key, value) = entry.map_err(words)?;
                rising.pass(key.value().1)?;
                copies.extend(Place::decode(address, value.value()));
            }
            Ok(copies)
        })
    }

    /// Further places of these chunks, in the order of addresses and packs: hints, of which some may be of packs that are gone.
    pub(crate) fn copies(&self, disk: &Disk, of: &AddressSet) -> Result<Vec<(ChunkAddress, Place)>, StoreError> {
        let mut slot = self.database.lock();
        let database = self.open_again(disk, &mut slot)?;
        self.guarded("copies", || {
            let mut copies = Vec::new();
            let table = database.begin_read().map_err(words)?.open_table(COPIES).map_err(words)?;
            let mut take = |entries: CopyRange<'_>| {
                let mut rising = Rising(None);
                for entry in entries {
                    let (key, value) = entry.map_err(words)?;
                    let (address, pack) = (ChunkAddress(*key.value().0), key.value().1);
                    rising.pass((address, pack))?;
                    let place = Place::decode(&address, value.value()).filter(|_| of.contains(&address));
                    copies.extend(place.map(|place| (address, place)));
                }
                Ok::<(), String>(())
            };
            // Mostly few chunks lie in two places: then all are looked at.
            if table.len().map_err(words)? <= LOOK_UP_ENTRIES * of.len() as u64 {
                take(table.iter().map_err(words)?)?;
            } else {
                let mut addresses: Vec<&ChunkAddress> = of.iter().collect();
                addresses.sort_unstable();
                for address in addresses {
                    take(table.range((&address.0, 0)..=(&address.0, u64::MAX)).map_err(words)?)?;
                }
            }
            Ok(copies)
        })
    }

    /// Chunks in the file.
    pub(crate) fn count(&self) -> u64 {
        let length = |tables: Arc<Contained<Tables>>| self.guarded("its length", || tables.chunks.len().map_err(words));
        self.tables().and_then(length).unwrap_or(0)
    }

    /// Every entry, in the order of addresses; for `check`.
    pub(crate) fn walk(&self, visit: &mut dyn FnMut(ChunkAddress, Option<Place>)) -> Result<(), StoreError> {
        let tables = self.tables()?;
        self.guarded("an entry", || {
            let mut rising = Rising(None);
            for entry in tables.chunks.iter().map_err(words)? {
                let (key, value) = entry.map_err(words)?;
                let address = ChunkAddress(*key.value());
                rising.pass(address)?;
                visit(address, Place::decode(&address, value.value()));
            }
            Ok(())
        })
    }

    /// Whether all of it may be read for one purpose.
    pub(super) fn is_small(&self) -> bool {
        self.file.lock().as_ref().is_some_and(|file| file.length().is_ok_and(|length| length <= WALKED_BYTES_MAX))
    }

    /// The addresses of all entries, in order, as long as that is wanted. Whether they were all.
    pub(super) fn walk_while(&self, visit: &mut dyn FnMut(ChunkAddress) -> bool) -> Result<bool, StoreError> {
        let tables = self.tables()?;
        self.guarded("an entry", || {
            let mut rising = Rising(None);
            for entry in tables.chunks.iter().map_err(words)? {
                let address = ChunkAddress(*entry.map_err(words)?.0.value());
                rising.pass(address)?;
                if !visit(address) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// So many look-ups come, by hash, from everywhere in the file. Where they want so much of it that reading all of it in order costs less than
    /// their pages one by one, it is read now, by large reads: the kernel keeps it for them.
    pub(crate) fn expect(&self, lookups: u64, gap_bytes: u64) {
        const READ_BYTES: u64 = 1 << 20;
        let Some(file) = self.file.lock().clone() else { return };
        let worth = lookups.saturating_mul(gap_bytes).min(EXPECTED_BYTES_MAX);
        let Some(length) = file.length().ok().filter(|length| *length <= worth) else { return };
        let mut buffer = vec![0; READ_BYTES.min(length) as usize];
        for offset in (0..length).step_by(READ_BYTES as usize) {
            // What cannot be read is told to who wants it.
            if file.raw().read_at(offset, &mut buffer).is_err() {
                return;
            }
        }
    }

    /// The database. After a failure, of whoever used it, it is opened again: redb does nothing more with a file that failed once.
    fn open_again<'a>(
        &self,
        disk: &Disk,
        slot: &'a mut Option<Contained<Database>>,
    ) -> Result<&'a Contained<Database>, StoreError> {
        if self.failure.lock().is_some() {
            *slot = None;
        }
        if slot.is_none() {
            // The old snapshot must be gone before another instance may reuse its pages.
            *self.tables.write() = None;
            let database = self.open_database(disk, Open::Write)?;
            *self.tables.write() = Some(self.guarded("its tables", || Tables::of(&database))?);
            *slot = Some(database);
        }
        Ok(slot.as_ref().expect("opened above"))
    }

    /// Makes a change durable.
    pub(crate) fn commit(&self, disk: &Disk, change: &Change) -> Result<(), StoreError> {
        let notes_gone = self.lacks_packs();
        self.change(disk, &|database| write_change(database, change, notes_gone))?;
        // Also while it lacks none: one that is made again may.
        let mut gone = self.gone.lock();
        for sealed in &change.added {
            gone.remove(&sealed.pack);
        }
        gone.extend(change.removed.iter().map(|(pack, _)| *pack));
        Ok(())
    }

    /// Makes a change durable. After a failure the database is opened again by the next try; look-ups meanwhile go on
    /// with the old snapshot where redb lets them.
    fn change(&self, disk: &Disk, write: &dyn Fn(&Database) -> Result<(), String>) -> Result<(), StoreError> {
        let mut slot = self.database.lock();
        let database = self.open_again(disk, &mut slot)?;
        let done = self.guarded("a commit", || {
            write(database)?;
            Tables::of(database)
        });
        match done {
            Ok(tables) => {
                *self.tables.write() = Some(tables);
                Ok(())
            }
            Err(error) => {
                *self.tables.write() = None;
                *slot = None;
                // Reads must go on: open at once. If that fails too, the next commit tries again.
                if let Ok(database) = self.open_database(disk, Open::Write) {
                    drop(slot);
                    self.publish(database)?;
                }
                Err(error)
            }
        }
    }

    /// Work on the open database. What the disk said first comes first, redb's own words second: after that redb gives no other answer, to
    /// nobody, until it is opened again.
    fn guarded<T>(&self, what: &'static str, work: impl FnOnce() -> Result<T, String>) -> Result<T, StoreError> {
        self.told(what, work, &self.failure)
    }

    fn told<T>(
        &self,
        what: &'static str,
        work: impl FnOnce() -> Result<T, String>,
        failure: &Failure,
    ) -> Result<T, StoreError> {
        let result =
            catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err("bytes that made redb panic".to_owned()));
        result.map_err(|found| match failure.lock().clone() {
            Some(error) => StoreError::Disk(error),
            None => corrupt("the chunk index", &self.path, 0, what, found),
        })
    }
}

/// Keys in the order in which a table has them. Pages that lie may lead to the same page again and again: a walk over 40 of them, each of which
/// leads twice to the next, would not end.
struct Rising<K>(Option<K>);

impl<K: Ord> Rising<K> {
    fn pass(&mut self, key: K) -> Result<(), String> {
        if self.0.as_ref().is_some_and(|last| *last >= key) {
            return Err("keys that do not rise".to_owned());
        }
        self.0 = Some(key);
        Ok(())
    }
}

fn read_packs(database: &Database) -> Result<BTreeMap<u64, Summary>, String> {
    let (mut packs, mut rising) = (BTreeMap::new(), Rising(None));
    let table = database.begin_read().map_err(words)?.open_table(PACKS).map_err(words)?;
    for entry in table.iter().map_err(words)? {
        let (pack, summary) = entry.map_err(words)?;
        rising.pass(pack.value())?;
        packs.insert(pack.value(), Summary::decode(summary.value()));
    }
    Ok(packs)
}

fn read_checked(database: &Database) -> Result<Checked, String> {
    let table = match database.begin_read().map_err(words)?.open_table(CHECKED) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(Checked::new()),
        table => table.map_err(words)?,
    };
    let mut rising = Rising(None);
    let minutes = |entry: Result<(AccessGuard<'_, u64>, AccessGuard<'_, u32>), StorageError>| {
        let (pack, at) = entry.map_err(words)?;
        rising.pass(pack.value())?;
        Ok((pack.value(), at.value()))
    };
    table.iter().map_err(words)?.map(minutes).collect()
}

fn read_gone(database: &Database) -> Result<BTreeSet<u64>, String> {
    let table = match database.begin_read().map_err(words)?.open_table(GONE) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(BTreeSet::new()),
        table => table.map_err(words)?,
    };
    let mut rising = Rising(None);
    let pack = |entry: Result<(AccessGuard<'_, u64>, AccessGuard<'_, ()>), StorageError>| {
        let pack = entry.map_err(words)?.0.value();
        rising.pass(pack)?;
        Ok(pack)
    };
    table.iter().map_err(words)?.map(pack).collect()
}

fn words<E: std::fmt::Display>(error: E) -> String {
    error.to_string()
}

// Several transactions where there is much; each pack is whole within one.
fn write_change(database: &Database, change: &Change, notes_gone: bool) -> Result<(), String> {
    let mut added = &change.added[..];
    let mut removed = &change.removed[..];
    let mut checked = Some(&change.checked).filter(|checked| !checked.is_empty());
    while !added.is_empty() || !removed.is_empty() || checked.is_some() {
        let (mut count, mut packs) = (0, 0);
        while packs < added.len() && (packs == 0 || count + added[packs].entries.len() <= BATCH_ENTRIES) {
            count += added[packs].entries.len();
            packs += 1;
        }
        let (now, later) = added.split_at(packs);
        // Removals come last: what replaces a chunk is in before the chunk goes.
        let is_last = later.is_empty();
        let going = if is_last { std::mem::take(&mut removed) } else { &[] };
        write_batch(database, now, going, &change.heirs, checked.take_if(|_| is_last), notes_gone)?;
        added = later;
    }
    Ok(())
}

fn write_batch(
    database: &Database,
    added: &[super::SealedPack],
    removed: &[(u64, Vec<ChunkAddress>)],
    heirs: &[(ChunkAddress, Place)],
    ages: Option<&Checked>,
    notes_gone: bool,
) -> Result<(), String> {
    let mut write = database.begin_write().map_err(words)?;
    write.set_durability(Durability::Immediate).map_err(words)?;
    // Opening after a crash then takes no walk over the whole file.
    write.set_quick_repair(true);
    {
        let mut chunks = write.open_table(CHUNKS).map_err(words)?;
        let mut copies = write.open_table(COPIES).map_err(words)?;
        let mut packs = write.open_table(PACKS).map_err(words)?;
        let mut checked = write.open_table(CHECKED).map_err(words)?;
        for (pack, at) in ages.into_iter().flatten() {
            checked.insert(*pack, *at).map_err(words)?;
        }
        let mut sorted: Vec<(ChunkAddress, Place)> = added
            .iter()
            .flat_map(|sealed| sealed.entries.iter().map(|entry| (entry.header.address, Place::of(sealed.pack, entry))))
            .collect();
        for sealed in added {
            packs.insert(sealed.pack, &sealed.summary.encode()).map_err(words)?;
        }
        let copies_of = |pack: u64| {
            let summary = packs.get(pack).map_err(words)?;
            Ok::<_, String>(summary.map_or(0, |summary| Summary::decode(summary.value()).level.copies()))
        };
        // In key order the tree's pages are touched once each; of two places of one chunk the one that came later is named.
        sorted.sort_by_key(|(address, _)| *address);
        for (address, place) in &sorted {
            let old = chunks.insert(&address.0, &place.encode(address)).map_err(words)?;
            let Some(old) = old.and_then(|old| Place::decode(address, old.value())) else { continue };
            // C-6: a bundle takes nobody's name.
            let is_old_named = match (old.codec == Codec::Bundle, place.codec == Codec::Bundle) {
                (false, true) => true,
                (true, false) => false,
                _ if old.pack == place.pack => false,
                // K-9: what lies on more disks stays what is named.
                _ => copies_of(place.pack)? < copies_of(old.pack)?,
            };
            let (named, other) = if is_old_named { (old, *place) } else { (*place, old) };
            if is_old_named {
                chunks.insert(&address.0, &named.encode(address)).map_err(words)?;
            }
            if named.pack == other.pack {
                continue;
            }
            copies.insert((&address.0, other.pack), &other.encode(address)).map_err(words)?;
        }
        for (address, place) in heirs {
            let old = chunks.get(&address.0).map_err(words)?.and_then(|old| Place::decode(address, old.value()));
            if old.is_some_and(|old| removed.iter().any(|(pack, _)| *pack == old.pack)) {
                chunks.insert(&address.0, &place.encode(address)).map_err(words)?;
            }
        }
        // In key order too: a pack's addresses come in the order of its chunks, from everywhere in the tree.
        let mut going: Vec<(&ChunkAddress, u64)> =
            removed.iter().flat_map(|(pack, addresses)| addresses.iter().map(|address| (address, *pack))).collect();
        going.sort_unstable();
        for (address, pack) in going {
            copies.remove((&address.0, pack)).map_err(words)?;
            let is_there = chunks
                .get(&address.0)
                .map_err(words)?
                .is_some_and(|value| Place::decode(address, value.value()).is_none_or(|place| place.pack == pack));
            if is_there {
                chunks.remove(&address.0).map_err(words)?;
            }
        }
        for (pack, _) in removed {
            packs.remove(*pack).map_err(words)?;
            checked.remove(*pack).map_err(words)?;
        }
        for sealed in added {
            for entry in &sealed.others {
                let (address, place) = (entry.header.address, Place::of(sealed.pack, entry));
                let named =
                    chunks.get(&address.0).map_err(words)?.and_then(|named| Place::decode(&address, named.value()));
                if named.is_some() {
                    copies.insert((&address.0, sealed.pack), &place.encode(&address)).map_err(words)?;
                } else {
                    // What was named when this was found to be another has gone since.
                    chunks.insert(&address.0, &place.encode(&address)).map_err(words)?;
                }
            }
        }
        if notes_gone {
            let mut gone = write.open_table(GONE).map_err(words)?;
            for sealed in added {
                gone.remove(sealed.pack).map_err(words)?;
            }
            for (pack, _) in removed {
                gone.insert(*pack, ()).map_err(words)?;
            }
        }
    }
    write.commit().map_err(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_that_comes_back_ends() {
        let mut rising = Rising(None);
        assert!([1, 2, 5].into_iter().all(|key| rising.pass(key).is_ok()));
        assert!(rising.pass(5).is_err() && rising.pass(1).is_err() && rising.pass(6).is_ok());
    }
}
