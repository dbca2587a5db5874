//! Whole nodes with a structure that lies, its checksum right: opened and used, or refused; never a panic, an end that does not
//! come, or bytes that nobody wrote. Targets of the crate `fuzz`.
//!
//! - `several`: nodes of several disks, of which one lies

mod several;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use base::hash::checksum;
use base::id::{ChunkAddress, Position};
use bytes::Bytes;
use fuzz::{SLOW_CASES, Target, no_repair, repair_tail};
use platform::disk::Disk;
use platform::sim::{SimDisk, World};

use super::{Machine, content, options, reclaim};
use crate::format::fuzz::repair_frame;
use crate::format::{
    ChunkHeader, Codec, Entry, FrameHeader, Homes, IDENTITY_FILE, INDEX_FILE, Identity, PackFooter, PackHeader,
    SUPERBLOCK_FILE, SegmentHeader, Summary, Superblock, encode_directory, pack_path, segment_path,
};
use crate::index::{Change, IndexSums, SealedPack};
use crate::level::Level;
use crate::{Class, Compression, Depth, Options, Store, StoreError};

const CAPACITY: u64 = 64 << 20;
/// Steps of a world in which a node of some chunks is opened and used: many times what a sound one takes.
const STEPS_MAX: u64 = 100_000;
/// Of a segment: its header and the frames of the image.
const SEGMENT_PART: std::ops::Range<usize> = 0..512;
/// Of a pack: its header, the first chunks, and their surroundings.
const PACK_PART: std::ops::Range<usize> = 0..2048;
const PACK: u64 = 1;
/// The one that the last frames went to.
const SEGMENT: u64 = 2;

/// A node as it lies on its disk: a pack of chunks, a journal of frames behind the second generation.
struct Image {
    files: BTreeMap<String, Vec<u8>>,
    contents: BTreeMap<ChunkAddress, Bytes>,
    identity: Identity,
    /// Its index, which is not among `files`.
    index: Vec<u8>,
}

static IMAGE: LazyLock<Image> = LazyLock::new(|| {
    let machine = Machine::new(1, 1, CAPACITY);
    let (store, _) = machine.open();
    let contents = (0..6).map(|number| content(number, 300)).map(|content| (store.key().address(&content), content));
    let contents: BTreeMap<ChunkAddress, Bytes> = contents.collect();
    machine.run(async {
        store.put_many(Class::Data, contents.values().cloned().collect()).await.unwrap();
        store.log(b"one");
        store.commit(store.moment(), b"second", Position(1)).await.unwrap();
        store.log(b"two");
        store.log(&[7; 100]);
        store.close().await.unwrap();
    });
    let mut files = machine.disks[0].snapshot_files();
    // What the packs say counts only where no index says it already.
    let index = files.remove(INDEX_FILE).expect("a node that was closed has one");
    let identity = Identity::decode(&files[IDENTITY_FILE]).unwrap();
    Image { files, contents, identity, index }
});

const TARGETS: &[Target] = &[
    Target {
        name: "node-identity",
        cases: SLOW_CASES,
        samples: || vec![IMAGE.files[IDENTITY_FILE].clone()],
        repair: |bytes| repair_tail(bytes, 0),
        check: |bytes| survive(IDENTITY_FILE, bytes.to_vec()),
    },
    Target {
        name: "node-superblock",
        cases: SLOW_CASES,
        samples: || vec![IMAGE.files[SUPERBLOCK_FILE][..Superblock::BYTES].to_vec()],
        repair: |bytes| repair_tail(bytes, 0),
        // The other slot is the older one and stands in for this one.
        check: |bytes| survive(SUPERBLOCK_FILE, splice(SUPERBLOCK_FILE, 0..Superblock::BYTES, bytes)),
    },
    Target {
        name: "node-superblock-alone",
        cases: SLOW_CASES,
        samples: || vec![IMAGE.files[SUPERBLOCK_FILE][..Superblock::BYTES].to_vec()],
        repair: |bytes| repair_tail(bytes, 0),
        check: |bytes| {
            let mut slots = bytes.to_vec();
            slots.resize(2 * Superblock::BYTES, 0);
            survive(SUPERBLOCK_FILE, slots)
        },
    },
    Target {
        name: "node-pack-end",
        cases: SLOW_CASES,
        samples: || {
            let pack = &IMAGE.files[&pack_path(PACK)];
            vec![pack[directory_at(pack)..].to_vec()]
        },
        repair: |bytes| {
            if let Some((directory, footer)) = bytes.split_last_chunk_mut::<{ PackFooter::BYTES }>() {
                footer[32..40].copy_from_slice(&checksum(PACK, directory).to_le_bytes());
                repair_tail(footer, PACK);
            }
        },
        check: |bytes| {
            let path = pack_path(PACK);
            survive(&path, splice(&path, directory_at(&IMAGE.files[&path])..usize::MAX, bytes))
        },
    },
    Target {
        name: "node-pack-start",
        cases: SLOW_CASES,
        samples: || vec![IMAGE.files[&pack_path(PACK)][PACK_PART].to_vec()],
        repair: repair_chunks,
        // Without its end a pack is scanned.
        check: |bytes| survive(&pack_path(PACK), bytes.to_vec()),
    },
    Target {
        name: "node-segment",
        cases: SLOW_CASES,
        samples: || vec![IMAGE.files[&segment_path(SEGMENT)][SEGMENT_PART].to_vec()],
        repair: repair_frames,
        check: |bytes| survive(&segment_path(SEGMENT), splice(&segment_path(SEGMENT), SEGMENT_PART, bytes)),
    },
    // redb's own pages, behind our checksums of them.
    Target {
        name: "node-index",
        cases: SLOW_CASES,
        samples: || vec![INDEX_PAGES.iter().flat_map(|page| index_page(&IMAGE.index, *page)).copied().collect()],
        repair: no_repair,
        check: |bytes| survive(INDEX_FILE, index_of(bytes)),
    },
];

/// Pages of the image's index that have something.
static INDEX_PAGES: LazyLock<Vec<u64>> = LazyLock::new(|| {
    let is_used = |page: &u64| index_page(&IMAGE.index, *page).iter().any(|byte| *byte != 0);
    (0..IndexSums::pages_in(IMAGE.index.len() as u64)).filter(is_used).collect()
});

fn index_page(index: &[u8], page: u64) -> &[u8] {
    &index[usize::try_from(IndexSums::offset_of(page)).unwrap()..][..IndexSums::PAGE_BYTES]
}

/// The image's index with other bytes in those pages, and the checksums of what is there then.
fn index_of(bytes: &[u8]) -> Vec<u8> {
    let mut index = IMAGE.index.clone();
    for (page, bytes) in INDEX_PAGES.iter().zip(bytes.chunks(IndexSums::PAGE_BYTES)) {
        let offset = usize::try_from(IndexSums::offset_of(*page)).unwrap();
        index[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    let pages = IndexSums::pages_in(index.len() as u64);
    for group in 0..pages.div_ceil(IndexSums::PAGES as u64) {
        let mut sums = IndexSums::unwritten();
        let first = group * IndexSums::PAGES as u64;
        for page in first..pages.min(first + IndexSums::PAGES as u64) {
            let content = index_page(&index, page);
            let is_written = content.iter().any(|byte| *byte != 0);
            sums.sums[usize::try_from(page - first).unwrap()] =
                if is_written { IndexSums::sum(page, content) } else { 0 };
        }
        let offset = usize::try_from(IndexSums::offset(group)).unwrap();
        index[offset..offset + IndexSums::PAGE_BYTES].copy_from_slice(&sums.encode(group));
    }
    index
}

fn directory_at(pack: &[u8]) -> usize {
    directory_of(PACK, pack)
}

/// Where a pack's directory begins.
fn directory_of(number: u64, pack: &[u8]) -> usize {
    let (_, footer) = pack.split_last_chunk::<{ PackFooter::BYTES }>().unwrap();
    PackFooter::decode(footer, number).unwrap().data_bytes as usize
}

/// A file of the image with other bytes in a range.
fn splice(path: &str, range: std::ops::Range<usize>, bytes: &[u8]) -> Vec<u8> {
    let mut file = IMAGE.files[path].clone();
    let end = range.end.min(file.len());
    file.splice(range.start..end, bytes.iter().copied());
    file
}

fn repair_chunks(bytes: &mut [u8]) {
    repair_chunks_of(PACK, bytes);
}

fn repair_chunks_of(pack: u64, bytes: &mut [u8]) {
    let tail = |bytes: &mut [u8], range: std::ops::Range<usize>, seed| {
        if let Some(header) = bytes.get_mut(range) {
            repair_tail(header, seed);
        }
    };
    tail(bytes, 0..PackHeader::BYTES, pack);
    for at in positions(bytes, &ChunkHeader::MAGIC) {
        let seed = ChunkHeader::seed(pack, u32::try_from(at).unwrap());
        tail(bytes, at..at + ChunkHeader::BYTES, seed);
    }
}

fn repair_frames(bytes: &mut [u8]) {
    if let Some(header) = bytes.get_mut(..SegmentHeader::BYTES) {
        repair_tail(header, SEGMENT);
    }
    let life = FrameHeader::life(SEGMENT, &IMAGE.identity.node_identity);
    for at in positions(bytes, &FrameHeader::MAGIC) {
        repair_frame(&mut bytes[at..], life);
    }
}

fn positions(bytes: &[u8], magic: &[u8; 4]) -> Vec<usize> {
    bytes.windows(4).enumerate().filter(|(_, window)| window == magic).map(|(at, _)| at).collect()
}

/// Opens and uses the node with a file replaced. `Err`: it was refused.
fn survive(path: &str, bytes: Vec<u8>) -> Result<(), String> {
    let world = World::new(1);
    world.set_step_limit(STEPS_MAX);
    let disk = world.disk("/d0", CAPACITY);
    IMAGE.files.iter().for_each(|(name, file)| disk.install(name, file));
    disk.install(path, &bytes);
    two_lives(&world, &|| lone(&world, &disk))
}

/// A life, and where the node was not refused another one: what was accepted once and closed is accepted again.
fn two_lives<L: Future<Output = Result<(), StoreError>>>(world: &World, life: &dyn Fn() -> L) -> Result<(), String> {
    let first = world.run_until(life()).expect("an end");
    if first.is_ok() {
        world.restart();
        world.run_until(life()).expect("an end").expect("what it wrote itself");
    }
    first.map_err(|error| error.to_string())
}

/// The life of the image's one disk.
async fn lone(world: &World, disk: &SimDisk) -> Result<(), StoreError> {
    life(world, &[disk.disk()], (options(), &IMAGE.contents)).await
}

/// Everything that a store can be asked for. Errors in between are answers; a failed opening is returned.
async fn life(
    world: &World,
    disks: &[Disk],
    (options, contents): (Options, &BTreeMap<ChunkAddress, Bytes>),
) -> Result<(), StoreError> {
    let (store, recovered) = Store::open(&world.platform(), disks, options).await?;
    let store: Arc<Store> = store;
    for (address, content) in contents {
        for class in [Class::Data, Class::Metadata] {
            if let Ok(found) = store.get(class, address).await {
                assert_eq!(found, *content, "{address} is what its name says");
            }
        }
    }
    let _ = store.check(Depth::Deep, &|_, _| {}).await;
    let fresh = content(world.below(1 << 40), 500);
    let address = store.put(Class::Data, &fresh).await;
    let position = store.log(b"three");
    let _ = store.sync_log(position).await;
    let _ = store.commit(store.moment(), &recovered.roots, position).await;
    let _ = reclaim(&store, &|address| contents.contains_key(address)).await;
    if let Ok(address) = address
        && let Ok(found) = store.get(Class::Data, &address).await
    {
        assert_eq!(found, fresh);
    }
    let _ = store.close().await;
    Ok(())
}

/// Files longer than memory, as a sparse one can be: opening ends, and reads no more than is sensible.
#[test]
fn endless_files_are_not_read_into_memory() {
    for path in [IDENTITY_FILE, SUPERBLOCK_FILE, &segment_path(SEGMENT), &pack_path(PACK)] {
        let world = World::new(1);
        let disk = world.disk("/d0", CAPACITY);
        IMAGE.files.iter().for_each(|(name, file)| disk.install(name, file));
        disk.truncate(path, 1 << 50);
        let outcome = world.run_until(lone(&world, &disk)).expect("an end");
        // Packs prove themselves one by one: the node opens without this one. Of slots only the beginning counts, and the identity has
        // a copy. Nothing stands in for the journal.
        let is_refused = path == segment_path(SEGMENT);
        assert_eq!(outcome.is_err(), is_refused, "{path}: {outcome:?}");
    }
}

/// A sparse pack whose sound footer tells of a directory of 240 GB.
#[test]
fn an_endless_directory_is_not_read_into_memory() {
    let world = World::new(1);
    let disk = world.disk("/d0", CAPACITY);
    IMAGE.files.iter().for_each(|(name, file)| disk.install(name, file));
    let path = pack_path(PACK);
    let mut footer = IMAGE.files[&path].last_chunk::<{ PackFooter::BYTES }>().unwrap().to_vec();
    footer[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    repair_tail(&mut footer, PACK);
    let directory_bytes = u64::from(u32::MAX) * Entry::BYTES as u64;
    let end = directory_at(&IMAGE.files[&path]) as u64 + directory_bytes;
    disk.truncate(&path, end + PackFooter::BYTES as u64);
    disk.corrupt(&path, end, &footer);
    world.run_until(lone(&world, &disk)).expect("an end").expect("the pack is left alone");
}

#[test]
fn nodes_that_lie_are_survived() {
    fuzz::run(env!("CARGO_MANIFEST_DIR"), TARGETS);
}

/// N-5: who writes what ends like a sealed pack, where the pack ends when the power goes, takes nothing from others.
#[test]
fn content_that_ends_like_a_sealed_pack_is_content() {
    let machine = Machine::new(80, 1, 64 << 20);
    let options = Options { compression: Compression::None, ..options() };
    let open = || machine.run(Store::open(&machine.world.platform(), &machine.handles(), options.clone())).unwrap();
    let others = [content(0, 5000), content(2, 6000)];
    // Both are settled with the pack's page filled up, so the next one begins a page.
    let begin = 72 + others.iter().map(|content| ChunkHeader::BYTES + content.len()).sum::<usize>();
    let begin = begin.next_multiple_of(4096);
    let forged = {
        let end = begin + 4096;
        let footer = encode_directory(1, u32::try_from(end - PackFooter::BYTES).unwrap(), &[]);
        let random = content(4, 4096 - ChunkHeader::BYTES - footer.len());
        Bytes::from([&random[..], &footer].concat())
    };
    let (store, _) = open();
    machine.run(async {
        store.put_many(Class::Data, others.to_vec()).await.unwrap();
        store.settle(store.moment()).await.unwrap();
        store.put(Class::Data, &forged).await.unwrap();
        store.settle(store.moment()).await.unwrap();
    });
    drop(store);
    machine.world.crash();
    machine.world.restart();
    let (path, bytes) = machine.disks[0].durable_files().into_iter().find(|(path, _)| path.ends_with(".pack")).unwrap();
    assert!(bytes.len() == begin + 4096 && bytes.ends_with(&forged), "{path} ends with it: {} bytes", bytes.len());
    let (store, recovered) = open();
    assert_eq!(recovered.report.packs_cut, 1);
    machine.run(async {
        for content in others.iter().chain([&forged]) {
            assert_eq!(store.get(Class::Data, &store.key().address(content)).await.unwrap(), content);
        }
    });
}

/// What an opening takes over from names of files must be read by all that follow: files with endless numbers are nobody's.
#[test]
fn endless_numbers_in_names_cost_nothing() {
    for number in [1_u64 << 62, (1 << 62) - 1, 1 << 61, 1 << 60] {
        let names = [
            pack_path(number),
            format!("packs/{number:016x}.pack.damaged"),
            format!("packs/{number:016x}.4+2.1.fragment"),
            segment_path(number),
        ];
        for name in names {
            let machine = Machine::new(81, 1, CAPACITY);
            machine.disks[0].install(&name, b"");
            for life in 0..3 {
                let (store, recovered) = machine.open();
                assert_eq!(recovered.frames.len(), life, "{name}, life {life}");
                let told = |problem: &String| problem.contains(&name) && problem.contains("left alone");
                assert!(recovered.report.problems.iter().any(told), "{name}: {:?}", recovered.report.problems);
                machine.run(async {
                    let content = content(life as u64, 300);
                    let address = store.put(Class::Data, &content).await.unwrap();
                    store.settle(store.moment()).await.unwrap();
                    store.sync_log(store.log(&address.0)).await.unwrap();
                    store.renew_root().await.unwrap();
                });
                drop(store);
                machine.world.crash();
                machine.world.restart();
                let (store, recovered) = machine.open();
                for (_, address) in &recovered.frames {
                    let address = ChunkAddress(address[..].try_into().unwrap());
                    machine.run(store.get(Class::Data, &address)).unwrap();
                }
            }
        }
    }
}

/// The same of rows of the index, which is made again.
#[test]
fn endless_numbers_in_the_index_cost_nothing() {
    let machine = Machine::new(82, 1, CAPACITY);
    let (store, _) = machine.open();
    let content = content(0, 300);
    machine.run(async {
        store.put(Class::Data, &content).await.unwrap();
        store.close().await.unwrap();
    });
    let summary = Summary::of(72, &[], Level::default());
    let change = Change { added: vec![SealedPack::new(1 << 62, summary, Vec::new())], ..Change::default() };
    store.packs.index.file().commit(&machine.disks[0].disk(), &change).unwrap();
    drop(store);
    for life in 0..2 {
        machine.world.crash();
        machine.world.restart();
        let (store, recovered) = machine.open();
        assert_eq!(recovered.report.index_made_again.is_some(), life == 0, "{:?}", recovered.report);
        assert_eq!(machine.run(store.get(Class::Data, &store.key().address(&content))).unwrap(), content);
        machine.run(store.close()).unwrap();
    }
}

/// One disk of a node, whose superblocks say what they should not; `Err`: why it was refused.
fn open_with(disks: usize, on: usize, lie: impl Fn(&mut Superblock)) -> StoreError {
    let machine = Machine::new(83, disks, CAPACITY);
    let disk = &machine.disks[on];
    let files = disk.snapshot_files();
    let uuid = Identity::decode(&files[IDENTITY_FILE]).unwrap().disk_uuid;
    let at = usize::try_from(Superblock::offset(1)).unwrap();
    let found = &files[SUPERBLOCK_FILE][at..at + Superblock::BYTES];
    let mut superblock = Superblock::decode(found, &uuid, at as u64).unwrap();
    lie(&mut superblock);
    disk.corrupt(SUPERBLOCK_FILE, Superblock::offset(superblock.generation), &superblock.encode(&uuid));
    let options = Options { goes_without_disks: true, ..options() };
    let opened = machine.run(Store::open(&machine.world.platform(), &[disk.disk()], options));
    let told = opened.err().expect("it lies");
    let after = disk.snapshot_files();
    assert_eq!(after[SUPERBLOCK_FILE][at..at + Superblock::BYTES], superblock.encode(&uuid)[..], "nothing was changed");
    told
}

#[test]
fn superblocks_that_name_other_disks_are_refused() {
    let told = open_with(1, 0, |superblock| superblock.disks = vec![[7; 16]]);
    assert!(matches!(told, StoreError::Refused { .. }) && told.to_string().contains("names other disks"), "{told}");
    // A home of the journal where there is no disk, and frames that are lost.
    let told = open_with(2, 1, |superblock| {
        superblock.disks[0] = [0; 16];
        superblock.homes = Homes::each_of([0, 1].into_iter().collect());
        superblock.index = 1;
        superblock.durable = Position(3);
    });
    assert!(matches!(told, StoreError::FramesLost { .. }), "{told}");
}

#[test]
fn superblocks_with_endless_numbers_are_refused() {
    let refuses = |lie: fn(&mut Superblock)| {
        let told = open_with(1, 0, lie);
        assert!(
            matches!(told, StoreError::Refused { .. }) && told.to_string().contains("no node comes near"),
            "{told}"
        );
    };
    refuses(|superblock| superblock.generation = (1 << 62) - 1);
    refuses(|superblock| superblock.covered = Position(1 << 62));
    refuses(|superblock| superblock.durable = Position(1 << 62));
    refuses(|superblock| superblock.pack_next = 1 << 62);
}

/// The files of a pack that was never in the index, one for each disk.
fn open_with_pack(files: &[Vec<u8>]) -> (Machine, Arc<Store>, Vec<String>) {
    let machine = Machine::new(84, files.len(), CAPACITY);
    for (disk, bytes) in machine.disks.iter().zip(files) {
        disk.install(&pack_path(PACK), bytes);
    }
    let (store, recovered) = machine.open();
    (machine, store, recovered.report.problems)
}

fn pack_header() -> Vec<u8> {
    let (node_identity, disk_uuid) = ([1; 16], [2; 16]);
    PackHeader { version: 6, pack: PACK, node_identity, disk_uuid, class: Class::Data, level: Level::default() }
        .encode()
}

fn chunk(offset: u32, (raw, stored): (u32, u32), codec: Codec, address: ChunkAddress) -> Entry {
    Entry { offset, header: ChunkHeader { class: Class::Data, codec, raw, stored, address } }
}

/// N-3: of two files of a pack the one ends within what the directory of the other has at the same place.
#[test]
fn two_files_that_name_different_chunks_at_a_place_agree() {
    let entry = chunk(72, (1000, 1000), Codec::Raw, ChunkAddress([9; 32]));
    let mut sealed = pack_header();
    sealed.extend(entry.header.encode(PACK, 72));
    sealed.extend([9; 1000]);
    sealed.extend(encode_directory(PACK, 72 + 56 + 1000, &[entry]));
    // The key is random: what the other file has is made when it is known.
    let machine = Machine::new(84, 2, CAPACITY);
    let (store, _) = machine.open();
    let content = [5; 10];
    let mut open = pack_header();
    open.extend(chunk(72, (10, 10), Codec::Raw, store.key().address(&content)).header.encode(PACK, 72));
    open.extend(content);
    drop(store);
    let (machine, store, problems) = open_with_pack(&[sealed, open]);
    assert_eq!(problems, Vec::<String>::new());
    let files: Vec<_> = machine.disks.iter().map(|disk| disk.snapshot_files()[&pack_path(PACK)].clone()).collect();
    assert!(files[0] == files[1]);
    assert!(machine.run(store.get(Class::Data, &ChunkAddress([9; 32]))).is_err());
}

/// What looks like chunks throughout, each of which is hashed in vain, is not read to its end, and not cut off either.
#[test]
fn headers_that_cost_more_than_they_are_long_are_not_believed_without_end() {
    let mut pack = pack_header();
    while pack.len() < 2 << 20 {
        let offset = u32::try_from(pack.len()).unwrap();
        pack.extend(chunk(offset, (1 << 20, 1 << 20), Codec::Raw, ChunkAddress([9; 32])).header.encode(PACK, offset));
    }
    pack.resize(3 << 20, 1);
    let (machine, _, problems) = open_with_pack(std::slice::from_ref(&pack));
    assert!(problems.iter().any(|problem| problem.contains("looks like chunks")), "{problems:?}");
    assert!(machine.disks[0].snapshot_files()[&pack_path(PACK)] == pack);
}
