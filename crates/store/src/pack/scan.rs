//! Reading a whole pack file: by its directory if it was sealed, else chunk by chunk.
//!
//! A pack that a crash left open holds, in any order, chunks that were synced, chunks that were only written, and holes. So
//! the scan believes nothing but a chunk whose header is bound to its place and whose content hashes to its address, and it
//! does not stop at the first bad one: a rotten sector in the middle must not cost the synced chunks behind it.
//!
//! N-1   Every chunk that was durable when the crash came, and has not rotted, is found.
//! N-2   What is found can be believed like a sealed pack: it was verified here.
//! N-3   A pack on several disks is the same on each afterwards: of one that was sealed somewhere, that is what the others become; of one that
//!       was not, each gets what was good on any.
//! N-4   A pack that should be on several disks and is sealed on none that answers is not sealed while a disk does not: it may have more of it,
//!       and what is sealed counts for the whole. Its chunks are taken in, and it stays as it is.
//! N-5   What ends like a sealed pack and is none, for somebody wrote such content and a crash left the pack open behind it, is not believed:
//!       a directory has the addresses of chunks, which nobody can know who does not have the key.
//! N-6   What recovery cuts off is lost, of a pack as of the journal: so no bit that flipped on its way decides. A file that reads
//!       differently each time is one that cannot be read.

use base::hash::DomainKey;
use base::id::ChunkAddress;
use bytes::{Bytes, BytesMut};
use platform::disk::{DiskError, DiskErrorKind, File, Open, RUN_ALIGN};

use crate::chunk::{Bundle, mended, unpack, verify};
use crate::failure::{StoreError, corrupt};
use crate::format::{
    ChunkHeader, Codec, DAMAGED_SUFFIX, Entry, InBundle, PACK_VERSION, PACKS, PackFooter, PackHeader, Summary, Unfit,
    decode_directory, encode_directory, pack_path,
};
use crate::identity::unfit_error;
use crate::index::SealedPack;
use crate::level::Level;
use crate::pool::{Pool, PoolDisk};

/// Longest pack: chunks are placed by 32-bit offsets. `PACK_BYTES_MAX` and the directory of the smallest chunks, which is as long, come to
/// no more.
const FILE_BYTES_MAX: u64 = u32::MAX as u64;
/// Readings of the same bytes, each unlike the one before, after which they count as bytes that cannot be read.
pub(crate) const READINGS_MAX: usize = 8;
/// How often the length of a file, or of a pack, may be hashed in vain for what looks like chunks: what a crash or rot leaves costs far less.
const WASTED_MAX: usize = 64;
const WASTED_LENGTH_MIN: usize = 64 << 20;
/// What is read again at a time.
const PIECE_BYTES: usize = 1 << 20;
/// What a disk gives or does not give as a whole.
const SECTOR_BYTES: usize = 4096;

/// Tells what a footer says, or why there is none.
pub(crate) async fn read_footer(file: &File, pack: u64) -> Result<Result<PackFooter, Unfit>, StoreError> {
    let length = file.length()?;
    let Some(at) = length.checked_sub(PackFooter::BYTES as u64) else {
        let found = format!("{length} bytes");
        return Ok(Err(Unfit::new("a footer", found)));
    };
    let mut bytes = [0; PackFooter::BYTES];
    file.read_exact_at(at, &mut bytes).await?;
    Ok(PackFooter::decode(&bytes, pack).and_then(|footer| {
        let expected = u64::from(footer.data_bytes) + footer.directory_bytes() + PackFooter::BYTES as u64;
        if expected == length && length <= FILE_BYTES_MAX {
            Ok(footer)
        } else {
            Err(Unfit::new(format!("a file of {expected} bytes"), length))
        }
    }))
}

/// The directory of a sealed pack.
pub(crate) async fn read_directory(file: &File, footer: &PackFooter) -> Result<Vec<Entry>, StoreError> {
    let mut bytes = vec![0; usize::try_from(footer.directory_bytes()).expect("checked against the file's length")];
    let offset = u64::from(footer.data_bytes);
    file.read_exact_at(offset, &mut bytes).await?;
    decode_directory(footer, &bytes)
        .map_err(|unfit| corrupt("the directory of a pack", file.path(), offset, unfit.expected, unfit.found))
}

/// What lies in a pack without a directory.
#[derive(Default)]
pub(crate) struct Scanned {
    pub(crate) entries: Vec<Entry>,
    /// Where the directory goes, if that is known of another file of the pack (N-3), and else behind the last chunk.
    data_bytes: Option<u32>,
    /// Stretches between or behind the good chunks that are no chunks, in bytes.
    pub(crate) bad_bytes: u64,
    /// Chunks whose header is sound and whose content is not: only of use to who looks for what is left.
    pub(crate) damaged: Vec<Entry>,
    /// So much in it looks like chunks and is none that it was not read to its end.
    is_muddled: bool,
}

/// Finds every verifiable chunk in the bytes of a pack file.
pub(crate) fn scan(key: &DomainKey, pack: u64, bytes: &Bytes) -> Scanned {
    let (mut scanned, mut opened, mut wasted) = (Scanned::default(), None, 0);
    let mut offset = PackHeader::BYTES;
    while offset + ChunkHeader::BYTES <= bytes.len() {
        let place = u32::try_from(offset).expect("packs end below 4 GiB");
        let Ok(header) = ChunkHeader::decode(&bytes[offset..offset + ChunkHeader::BYTES], pack, place) else {
            if let Some(padded) = padding(bytes, offset) {
                offset = padded;
                continue;
            }
            let next = next_magic(bytes, offset + 1);
            scanned.bad_bytes += (next - offset) as u64;
            offset = next;
            continue;
        };
        let start = offset + ChunkHeader::BYTES;
        let end = start + header.stored as usize;
        let is_good = match header.codec {
            Codec::Bundled(within) => content_in(key, pack, bytes, (offset, &header, within), &mut opened).is_some(),
            Codec::Remains => end <= bytes.len() && verify(key, &header, &bytes.slice(start..end)).is_ok(),
            _ => end <= bytes.len() && unpack(key, &header, bytes.slice(start..end)).is_ok(),
        };
        if is_good {
            scanned.entries.push(Entry { offset: place, header });
            offset = end;
        } else {
            // The stored length came from a sound header, but what follows may have been lost with it.
            scanned.damaged.push(Entry { offset: place, header });
            wasted += header.raw as usize;
            if wasted / WASTED_MAX > bytes.len().max(WASTED_LENGTH_MIN) {
                scanned.is_muddled = true;
                break;
            }
            let next = next_magic(bytes, offset + 1);
            scanned.bad_bytes += (next - offset) as u64;
            offset = next;
        }
    }
    let offset = padding(bytes, offset).unwrap_or(offset);
    scanned.bad_bytes += bytes.len().saturating_sub(offset) as u64;
    scanned
}

/// A bundle that was looked for: where, and what it holds if it is one.
type Opened = Option<(usize, Option<Bundle>)>;

/// The content of a chunk that lies in a bundle, verified; `None` where the bundle behind it does not have it.
fn content_in(
    key: &DomainKey,
    pack: u64,
    bytes: &Bytes,
    (offset, header, within): (usize, &ChunkHeader, InBundle),
    opened: &mut Opened,
) -> Option<Bytes> {
    let at = offset + within.distance() as usize;
    if opened.as_ref().is_none_or(|(there, _)| *there != at) {
        let open = || {
            let (payload, place) = (at + ChunkHeader::BYTES, u32::try_from(at).ok()?);
            let of_bundle = ChunkHeader::decode(bytes.get(at..payload)?, pack, place).ok()?;
            // By its own address too: what is sealed then has all that its headers name.
            let content =
                bytes.get(payload..payload + of_bundle.stored as usize).map(|found| bytes.slice_ref(found))?;
            let content = unpack(key, &of_bundle, content).ok()?;
            (of_bundle.codec == Codec::Bundle).then(|| Bundle::of(content))
        };
        *opened = Some((at, open()));
    }
    let bundle = opened.as_ref()?.1.as_ref()?;
    bundle.content_of(key, &header.address, header.raw, within).ok()
}

/// The content of a chunk that was scanned, if it lies in a bundle.
pub(crate) fn bundled(key: &DomainKey, pack: u64, bytes: &Bytes, entry: &Entry) -> Option<Bytes> {
    let Codec::Bundled(within) = entry.header.codec else { return None };
    content_in(key, pack, bytes, (entry.offset as usize, &entry.header, within), &mut None)
}

/// The end of the page, or of the bytes, if there is nothing but zeroes up to there: what was settled is filled up with them (K-11).
fn padding(bytes: &[u8], from: usize) -> Option<usize> {
    let end = from.next_multiple_of(RUN_ALIGN).min(bytes.len());
    (from < end && bytes[from..end].iter().all(|byte| *byte == 0)).then_some(end)
}

// The next place where a chunk may begin, or the end.
fn next_magic(bytes: &[u8], from: usize) -> usize {
    let found = bytes[from..].windows(4).position(|window| window == ChunkHeader::MAGIC);
    found.map_or(bytes.len(), |at| from + at)
}

/// N-6: reads a whole file, each piece of it until two readings agree.
///
/// # Errors
/// The disk's, also where no two agree; `Corrupt` for a file of more than `bytes_max` bytes, which nobody here wrote: it may be longer than memory.
pub(crate) async fn read_whole(file: &File, bytes_max: u64) -> Result<Bytes, StoreError> {
    let length = file.length()?;
    if length > bytes_max {
        return Err(corrupt("a file", file.path(), bytes_max, format!("at most {bytes_max} bytes"), length));
    }
    let length = usize::try_from(length).expect("at most `bytes_max`, which fits into memory");
    let mut bytes = vec![0; length];
    file.read_long_at(0, &mut bytes).await?;
    // One for all pieces: memory that the system has to give anew for each costs more than the reading.
    let mut again = Vec::new();
    let mut offset = 0;
    for piece in bytes.chunks_mut(PIECE_BYTES) {
        let mut readings = 1;
        loop {
            if readings == READINGS_MAX {
                return Err(unsteady(file.path(), offset).into());
            }
            readings += 1;
            // From the device, or it would be the same reading.
            file.forget(offset, piece.len() as u64);
            again.resize(piece.len(), 0);
            file.read_long_at(offset, &mut again).await?;
            if again == piece {
                break;
            }
            piece.copy_from_slice(&again);
        }
        offset += piece.len() as u64;
    }
    Ok(Bytes::from(bytes))
}

/// The disk gives other bytes each time.
pub(crate) fn unsteady(path: &str, offset: u64) -> DiskError {
    let detail = format!("from byte {offset} on it gives other bytes at each reading; check the disk and its cable");
    DiskError { kind: DiskErrorKind::Failed, operation: "read", path: path.to_owned(), detail }
}

/// What can be read of a pack file where the disk does not answer everywhere, with zeroes for the rest.
pub(crate) async fn read_what_answers(on: &PoolDisk, pack: u64) -> Result<Bytes, StoreError> {
    let file = on.disk.open(&pack_path(pack), Open::Read)?;
    let length = file.length()?.min(FILE_BYTES_MAX);
    let mut bytes = vec![0; usize::try_from(length).expect("at most 4 GiB, which fits into memory")];
    let mut offset = 0;
    for piece in bytes.chunks_mut(PIECE_BYTES) {
        if file.read_exact_at(offset, piece).await.is_err() {
            let mut at = offset;
            for sector in piece.chunks_mut(SECTOR_BYTES) {
                if file.read_exact_at(at, sector).await.is_err() {
                    sector.fill(0);
                }
                at += sector.len() as u64;
            }
        }
        offset += piece.len() as u64;
    }
    Ok(Bytes::from(bytes))
}

/// What recovery made of one pack file.
pub(crate) enum Recovered {
    /// It was sealed.
    Sealed(SealedPack),
    /// It was open; what is good in it is sealed now.
    Cut { sealed: SealedPack, bad_bytes: u64 },
    /// It was open, and there was no room for a directory, or it is to get none (N-4): its chunks are good and it stays as it is.
    Unsealed { sealed: SealedPack },
    /// It was open and held no good chunk: the file is gone, or set aside as `.damaged` if there is anything in it.
    Removed { bad_bytes: u64 },
}

/// A pack file as read.
pub(crate) enum Found {
    /// By its directory; and on how many disks it should be, if its header can be read.
    Sealed(SealedPack, Option<Level>),
    /// Without one: all of its bytes, and what is good in them.
    Open { bytes: Bytes, scanned: Scanned },
}

impl Found {
    /// On how many disks it should be, if its header can be read.
    pub(crate) fn level(&self, pack: u64) -> Option<Level> {
        match self {
            Found::Sealed(_, level) => *level,
            Found::Open { .. } => self.level_of_open(pack),
        }
    }

    /// On how many disks an open pack should be, if that can be read.
    pub(crate) fn level_of_open(&self, pack: u64) -> Option<Level> {
        match self {
            Found::Sealed(..) => None,
            Found::Open { bytes, .. } => level_in(pack, bytes),
        }
    }
}

fn header_in(pack: u64, bytes: &[u8]) -> Option<PackHeader> {
    bytes.get(..PackHeader::BYTES).and_then(|header| PackHeader::decode(header, pack).ok())
}

/// On how many disks the pack should be that these bytes are, if its header is among them.
pub(crate) fn level_in(pack: u64, bytes: &[u8]) -> Option<Level> {
    header_in(pack, bytes).map(|header| header.level)
}

/// On how many disks a pack should be, if its header can be read.
pub(crate) async fn read_level(file: &File, pack: u64) -> Option<Level> {
    let mut bytes = [0; PackHeader::BYTES];
    let length = file.read_at(0, &mut bytes).await.unwrap_or(0);
    PackHeader::decode(&bytes[..length], pack).ok().map(|header| header.level)
}

/// Has the files of a pack agree, as far as that can be told from memory (N-3). Those that cannot be made to agree are left out.
pub(crate) async fn agree(
    pool: &Pool,
    key: &DomainKey,
    pack: u64,
    mut found: Vec<(usize, Found)>,
) -> Result<Vec<(usize, Found)>, StoreError> {
    if found.len() < 2 {
        return Ok(found);
    }
    let sealed = found.iter().filter_map(|(disk, found)| match found {
        Found::Sealed(sealed, _) => Some((*disk, sealed)),
        Found::Open { .. } => None,
    });
    // Who sealed it with less knew of less.
    let truth = sealed.reduce(|one, other| if other.1.entries.len() > one.1.entries.len() { other } else { one });
    let truth = truth.map(|(disk, sealed)| (disk, sealed.clone()));
    if let Some((disk, truth)) = truth {
        let is_other = |sealed: &SealedPack| {
            sealed.entries != truth.entries || sealed.summary.data_bytes != truth.summary.data_bytes
        };
        found.retain(|(_, found)| !matches!(found, Found::Sealed(sealed, _) if is_other(sealed)));
        if found.iter().all(|(_, found)| matches!(found, Found::Sealed(..))) {
            return Ok(found);
        }
        let file = pool.disks[disk].disk.open(&pack_path(pack), Open::Read)?;
        let sound = read_whole(&file, FILE_BYTES_MAX).await?;
        for (_, found) in &mut found {
            if let Found::Open { bytes, scanned } = found {
                let entries = &scanned.entries;
                // At one place may lie two chunks, if somebody made the files.
                let at = |entry: &Entry| entries.binary_search_by_key(&entry.offset, |one| one.offset);
                let is_here = |entry: &Entry| at(entry).is_ok_and(|at| entries[at] == *entry);
                let lacking: Vec<Entry> = truth.entries.iter().filter(|entry| !is_here(entry)).copied().collect();
                *bytes = with_chunks(pack, bytes, &sound, &lacking);
                *scanned = Scanned {
                    entries: truth.entries.clone(),
                    data_bytes: Some(truth.summary.data_bytes),
                    ..Scanned::default()
                };
            }
        }
        return Ok(found);
    }
    let mut merged: Option<(Bytes, Vec<Entry>)> = None;
    let mut is_one = true;
    for (_, found) in &found {
        let Found::Open { bytes, scanned } = found else { continue };
        match &mut merged {
            None => merged = Some((bytes.clone(), scanned.entries.clone())),
            // With the header goes what was asked for it, and that is as much to agree on as the chunks.
            Some((all, entries))
                if *entries != scanned.entries
                    || header_in(pack, all).is_some() != header_in(pack, bytes).is_some() =>
            {
                is_one = false;
                *all = with_chunks(pack, all, bytes, &scanned.entries);
            }
            Some(_) => {}
        }
    }
    if let Some((all, _)) = merged.filter(|_| !is_one) {
        for (_, found) in &mut found {
            *found = open_pack(key, pack, all.clone())?;
        }
    }
    Ok(found)
}

/// `bytes`, with chunks that are whole in `from`, and its header where this one's is not.
fn with_chunks(pack: u64, bytes: &Bytes, from: &Bytes, chunks: &[Entry]) -> Bytes {
    let mut all = bytes.to_vec();
    all.resize(all.len().max(PackHeader::BYTES), 0);
    if PackHeader::decode(&all[..PackHeader::BYTES], pack).is_err()
        && let Some(header) = from.get(..PackHeader::BYTES)
    {
        all[..PackHeader::BYTES].copy_from_slice(header);
    }
    for entry in chunks {
        let (start, end) = (entry.offset as usize, usize::try_from(entry.end()).expect("packs end below 4 GiB"));
        if let Some(chunk) = from.get(start..end) {
            all.resize(all.len().max(end), 0);
            all[start..end].copy_from_slice(chunk);
        }
    }
    Bytes::from(all)
}

/// Reads a pack that the index does not cover. Changes nothing.
pub(crate) async fn read(on: &PoolDisk, key: &DomainKey, pack: u64) -> Result<Found, StoreError> {
    read_file(&on.disk.open(&pack_path(pack), Open::Read)?, key, pack).await
}

/// The same from what reads like its file.
pub(crate) async fn read_file(file: &File, key: &DomainKey, pack: u64) -> Result<Found, StoreError> {
    if let Ok(footer) = read_footer(file, pack).await? {
        match read_directory(file, &footer).await {
            Ok(entries) if is_ours(file, pack, &entries).await? => {
                let level = read_level(file, pack).await;
                let summary = Summary::of(footer.data_bytes, &entries, level.unwrap_or_default());
                return Ok(Found::Sealed(SealedPack::new(pack, summary, entries), level));
            }
            Ok(_) => {}
            // Where a footer vouches for a directory that has rotted the chunks tell themselves.
            Err(StoreError::Corrupt { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let bytes = read_whole(file, FILE_BYTES_MAX).await?;
    open_pack(key, pack, bytes)
}

/// Whether a file of a pack that the index covers has the pack's directory: on its disk, and not in memory alone, where a sync that failed leaves it.
pub(crate) async fn has_directory(on: &PoolDisk, pack: u64, summary: &Summary) -> Result<bool, StoreError> {
    let file = on.disk.open(&pack_path(pack), Open::Read)?;
    file.forget(0, summary.file_bytes());
    match read_footer(&file, pack).await? {
        Ok(footer) if (footer.data_bytes, footer.count) == (summary.data_bytes, summary.count) => {
            Ok(read_directory(&file, &footer).await.is_ok())
        }
        _ => Ok(false),
    }
}

/// N-5: whether a directory has the first chunk that can be told to be one. Where none can, damage is told by who reads.
async fn is_ours(file: &File, pack: u64, entries: &[Entry]) -> Result<bool, StoreError> {
    let begin = u32::try_from(PackHeader::BYTES).expect("a small header");
    for offset in std::iter::once(begin).chain(entries.iter().map(|entry| entry.offset)) {
        let mut bytes = [0; ChunkHeader::BYTES];
        let read = match file.read_at(u64::from(offset), &mut bytes).await {
            // In fragments of which too few are good there.
            Err(error) if error.kind == DiskErrorKind::Absent => continue,
            read => read?,
        };
        if let Ok(header) = ChunkHeader::decode(&bytes[..read], pack, offset) {
            return Ok(entries.contains(&Entry { offset, header }));
        }
    }
    Ok(true)
}

/// What counts of the bytes of a pack that is to be sealed. The content of a chunk decides whether it does, so a table of groups that a
/// power cut tore off it, or that rotted, is made again: the seal vouches for all of it.
///
/// # Errors
/// `Corrupt` where chunks may be behind what was looked at: nothing may be cut off.
fn open_pack(key: &DomainKey, pack: u64, bytes: Bytes) -> Result<Found, StoreError> {
    let scanned = scan(key, pack, &bytes);
    if scanned.is_muddled {
        let found = "more that looks like chunks, and is none, than anybody here wrote";
        return Err(corrupt("a pack", &pack_path(pack), 0, "chunks", found));
    }
    let mut all = bytes.clone();
    for Entry { offset, header } in &scanned.entries {
        let start = *offset as usize + ChunkHeader::BYTES;
        let range = start..start + header.stored as usize;
        let payload = bytes.slice(range.clone());
        let right = mended(key, header, payload.clone());
        if right != payload {
            let mut patched = BytesMut::from(all);
            patched[range].copy_from_slice(&right);
            all = patched.freeze();
        }
    }
    Ok(Found::Open { bytes: all, scanned })
}

/// Chunks that the directory of a pack names and that are not what they should be; `None`: all of them are, and there are no others.
pub(crate) async fn unsound(
    on: &PoolDisk,
    key: &DomainKey,
    sealed: &SealedPack,
) -> Result<Option<Vec<ChunkAddress>>, StoreError> {
    let file = on.disk.open(&pack_path(sealed.pack), Open::Read)?;
    let scanned = scan(key, sealed.pack, &read_whole(&file, FILE_BYTES_MAX).await?);
    if scanned.entries == sealed.entries {
        return Ok(None);
    }
    let is_good = |entry: &Entry| {
        let from = scanned.entries.partition_point(|found| found.offset < entry.offset);
        scanned.entries[from..].iter().take_while(|found| found.offset == entry.offset).any(|found| found == entry)
    };
    let bad = sealed.entries.iter().filter(|entry| !is_good(entry));
    Ok(Some(bad.map(|entry| entry.header.address).collect()))
}

/// What an open pack that is brought into order ends with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Directory,
    /// N-4.
    None,
}

/// Brings a pack that was read into order, and makes it durable.
pub(crate) async fn put_in_order(
    on: &PoolDisk,
    node_identity: [u8; 16],
    (pack, level): (u64, Level),
    found: Found,
    ending: Ending,
) -> Result<Recovered, DiskError> {
    match found {
        Found::Sealed(sealed, _) => {
            // O-3: whoever wrote the directory may have died before it was synced, or have had a sync that failed, after which the
            // next one says that all is well. The chunks were synced before it (K-2).
            let file = on.disk.open(&pack_path(pack), Open::Write)?;
            let data_bytes = sealed.summary.data_bytes;
            file.write_at(u64::from(data_bytes), &encode_directory(pack, data_bytes, &sealed.entries)).await?;
            file.sync().await?;
            Ok(Recovered::Sealed(sealed))
        }
        Found::Open { bytes, scanned } if scanned.entries.is_empty() => remove(on, pack, &bytes, scanned.bad_bytes),
        Found::Open { bytes, scanned } => {
            let class = scanned.entries[0].header.class;
            let found = header_in(pack, &bytes);
            // The first of its disks is lost with it.
            let lost = || PackHeader { version: PACK_VERSION, pack, node_identity, disk_uuid: [0; 16], class, level };
            let header = found.unwrap_or_else(lost);
            seal(on, &header, &bytes, scanned, ending).await
        }
    }
}

// Zeroes are what a crash leaves of a file that was never synced. Anything else may be somebody's rotten data: it is set aside
// for a person to look at.
fn remove(on: &PoolDisk, pack: u64, bytes: &[u8], bad_bytes: u64) -> Result<Recovered, DiskError> {
    let path = pack_path(pack);
    if bytes.iter().skip(PackHeader::BYTES).all(|byte| *byte == 0) {
        on.disk.remove(&path)?;
    } else {
        on.disk.rename(&path, &format!("{PACKS}/{pack:016x}{DAMAGED_SUFFIX}"))?;
    }
    on.disk.sync_directory(PACKS)?;
    Ok(Recovered::Removed { bad_bytes })
}

async fn seal(
    on: &PoolDisk,
    header: &PackHeader,
    bytes: &[u8],
    scanned: Scanned,
    ending: Ending,
) -> Result<Recovered, DiskError> {
    let pack = header.pack;
    let Scanned { entries, bad_bytes, data_bytes, .. } = scanned;
    let last = entries.last().expect("the caller looked").end();
    let data_bytes = data_bytes.unwrap_or_else(|| u32::try_from(last).expect("packs end below 4 GiB"));
    let end = u64::from(data_bytes);
    let sealed = SealedPack::new(pack, Summary::of(data_bytes, &entries, header.level), entries);
    let file = on.disk.open(&pack_path(pack), Open::Write)?;
    // Written again before it is synced: O-3; only what was verified, lest a reading that went wrong be made to last. The chunks
    // first, the footer second: K-2 holds here too. A crash in between leaves a pack that is scanned again.
    file.write_at(0, &header.encode()).await?;
    for run in sealed.entries.chunk_by(|one, two| one.end() == u64::from(two.offset)) {
        let (start, run_end) = (run[0].offset, run[run.len() - 1].end());
        let verified = start as usize..usize::try_from(run_end).expect("within the bytes that were scanned");
        file.write_at(u64::from(start), &bytes[verified]).await?;
    }
    file.sync().await?;
    if ending == Ending::None {
        return Ok(Recovered::Unsealed { sealed });
    }
    let directory = encode_directory(pack, data_bytes, &sealed.entries);
    let finish = async {
        file.set_length(end)?;
        file.write_at(end, &directory).await?;
        file.sync().await
    };
    match finish.await {
        Ok(()) => Ok(Recovered::Cut { sealed, bad_bytes }),
        // Without its footer the file ends in part of a directory, which no scan takes for a chunk.
        Err(error) if error.kind == DiskErrorKind::Full => Ok(Recovered::Unsealed { sealed }),
        Err(error) => Err(error),
    }
}

/// A pack of a newer format is refused, before anything is changed. One whose header was lost is only damaged: its chunks
/// prove themselves.
pub(crate) async fn refuse_newer(on: &PoolDisk, pack: u64) -> Result<(), StoreError> {
    let path = pack_path(pack);
    let file = on.disk.open(&path, Open::Read)?;
    let mut bytes = [0; PackHeader::BYTES];
    if file.read_at(0, &mut bytes).await? < bytes.len() {
        return Ok(());
    }
    match PackHeader::decode(&bytes, pack) {
        Err(unfit) if unfit.newer.is_some() => Err(unfit_error("a pack", on.disk.path(), &path, 0, unfit)),
        _ => Ok(()),
    }
}
