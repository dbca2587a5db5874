//! Nodes of several disks, of which one lies: with two copies, and with fragments.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use base::hash::checksum;
use base::id::{ChunkAddress, Position};
use bytes::Bytes;
use fuzz::{SLOW_CASES, Target, repair_tail};
use platform::disk::Disk;
use platform::sim::World;

use super::super::fragments::cut_all;
use super::super::{Machine, content, hurried, options};
use super::{CAPACITY, PACK_PART, directory_of, life, repair_chunks_of, two_lives};
use crate::format::{
    ChunkHeader, Cut, FragmentHeader, FragmentName, INDEX_FILE, PackFooter, SUPERBLOCK_FILE, Superblock,
};
use crate::{Class, Erasure, Options, Store, StoreError};

/// Steps of a world of several disks in which a node is opened and used: many times what a sound one takes.
const STEPS_MAX: u64 = 400_000;
/// Where the content of a fragment begins whose blocks are few.
const CONTENT_AT: usize = 4096;
/// Of a fragment: its header, the checksums of its blocks, and the first of its content.
const FRAGMENT_PART: usize = CONTENT_AT + 512;
/// Of the disks, the one that lies.
const LIAR: usize = 0;

/// A node as it lies on its disks.
struct Image {
    disks: Vec<BTreeMap<String, Vec<u8>>>,
    contents: BTreeMap<ChunkAddress, Bytes>,
    options: Options,
}

impl Image {
    fn of(disks: usize, content_bytes: usize, options: Options) -> Image {
        let machine = Machine::new(2, disks, CAPACITY);
        let opened = machine.run(Store::open(&machine.world.platform(), &machine.handles(), options.clone()));
        let (store, _) = opened.expect("it is sound");
        let contents = (0..6).map(|number| content(number, content_bytes));
        let contents: BTreeMap<ChunkAddress, Bytes> =
            contents.map(|content| (store.key().address(&content), content)).collect();
        machine.run(async {
            store.put_many(Class::Data, contents.values().cloned().collect()).await.unwrap();
            store.log(b"one");
            store.commit(store.moment(), b"second", Position(1)).await.unwrap();
            cut_all(&store).await;
            store.restore_copies(&hurried(&store), &|_, _| {}).await;
            store.log(b"two");
            store.close().await.unwrap();
        });
        let mut disks: Vec<_> = machine.disks.iter().map(|disk| disk.snapshot_files()).collect();
        // What the packs say counts only where no index says it already.
        disks.iter_mut().for_each(|files| drop(files.remove(INDEX_FILE)));
        Image { disks, contents, options }
    }

    /// The file of the liar that has content, and ends so.
    fn path(&self, suffix: &str) -> String {
        let has_content = |files: &BTreeMap<String, Vec<u8>>, path: &str| {
            self.contents.keys().any(|address| files[path].windows(32).any(|window| window == address.0))
        };
        let all = self.disks[LIAR].keys().filter(|path| path.ends_with(suffix));
        let mut holding = all.filter(|path| suffix == ".fragment" || has_content(&self.disks[LIAR], path));
        holding.next().unwrap_or_else(|| panic!("{suffix} among {:?}", self.disks[LIAR].keys())).clone()
    }

    fn file(&self, path: &str) -> &[u8] {
        &self.disks[LIAR][path]
    }

    /// Its disks, with a file of the liar replaced.
    fn with(&self, path: &str, bytes: &[u8]) -> (World, Vec<Disk>) {
        let world = World::new(1);
        world.set_step_limit(STEPS_MAX);
        let install = |(number, files): (usize, &BTreeMap<String, Vec<u8>>)| {
            let disk = world.disk(&format!("/d{number}"), CAPACITY);
            files.iter().for_each(|(name, file)| disk.install(name, file));
            if number == LIAR {
                disk.install(path, bytes);
            }
            disk.disk()
        };
        let disks = self.disks.iter().enumerate().map(install).collect();
        (world, disks)
    }

    /// Opens and uses it with a file of the liar replaced. `Err`: it was refused.
    fn survive(&self, path: &str, bytes: &[u8]) -> Result<(), String> {
        let (world, disks) = self.with(path, bytes);
        two_lives(&world, &|| life(&world, &disks, (self.options.clone(), &self.contents)))
    }

    /// The same, and what the other disks have is there.
    fn survive_whole(&self, path: &str, bytes: &[u8]) -> Result<(), String> {
        let (world, disks) = self.with(path, bytes);
        let read = async {
            let (store, _) = Store::open(&world.platform(), &disks, self.options.clone()).await?;
            for (address, content) in &self.contents {
                let found = store.get(Class::Data, address).await;
                assert_eq!(found.unwrap_or_else(|error| panic!("{address}: {error}")), *content);
            }
            store.close().await
        };
        world.run_until(read).expect("an end").map_err(|error: StoreError| error.to_string())?;
        self.survive(path, bytes)
    }
}

static COPIES: LazyLock<Image> =
    LazyLock::new(|| Image::of(2, 300, Options { copies: 2, goes_without_disks: true, ..options() }));
static FRAGMENTS: LazyLock<Image> = LazyLock::new(|| {
    Image::of(3, 20_000, Options { fragments: Erasure::new(2, 1), goes_without_disks: true, ..options() })
});

/// All checksums of a fragment of which this is the beginning: of its blocks, of these, and of its header.
fn repair_fragment(bytes: &mut [u8]) {
    let path = FRAGMENTS.path(".fragment");
    let name = path.strip_prefix("packs/").and_then(FragmentName::of).expect("a fragment");
    let whole = begin_with(&path, bytes);
    let content = whole.get(CONTENT_AT..).unwrap_or_default();
    let sum = |(block, bytes): (usize, &[u8])| {
        FragmentHeader::sum(name.pack, usize::from(name.index), block as u64, bytes).to_le_bytes()
    };
    let blocks = content.chunks(usize::try_from(Cut::BLOCK_BYTES).unwrap());
    let sums: Vec<u8> = blocks.enumerate().flat_map(sum).collect();
    let Some((header, after)) = bytes.split_first_chunk_mut::<{ FragmentHeader::BYTES }>() else { return };
    let Some(place) = after.get_mut(..sums.len()) else { return };
    place.copy_from_slice(&sums);
    header[48..56].copy_from_slice(&FragmentHeader::sum_of_sums(name.pack, name.index, &sums).to_le_bytes());
    repair_tail(header, ChunkHeader::seed(name.pack, u32::from(name.index)));
}

/// The liar's fragment with another beginning.
fn begin_with(path: &str, bytes: &[u8]) -> Vec<u8> {
    let rest = FRAGMENTS.file(path).get(FRAGMENT_PART..).unwrap_or_default();
    [bytes, rest].concat()
}

const TARGETS: &[Target] = &[
    Target {
        name: "copies-superblock",
        cases: SLOW_CASES,
        samples: || vec![COPIES.file(SUPERBLOCK_FILE)[..Superblock::BYTES].to_vec()],
        repair: |bytes| repair_tail(bytes, 0),
        check: |bytes| {
            let older = &COPIES.file(SUPERBLOCK_FILE)[Superblock::BYTES..];
            COPIES.survive(SUPERBLOCK_FILE, &[bytes, older].concat())
        },
    },
    Target {
        name: "copies-pack-end",
        cases: SLOW_CASES,
        samples: || {
            let path = COPIES.path(".pack");
            let pack = COPIES.file(&path);
            vec![pack[directory_of(number_of(&path), pack)..].to_vec()]
        },
        repair: |bytes| {
            let pack = number_of(&COPIES.path(".pack"));
            if let Some((directory, footer)) = bytes.split_last_chunk_mut::<{ PackFooter::BYTES }>() {
                footer[32..40].copy_from_slice(&checksum(pack, directory).to_le_bytes());
                repair_tail(footer, pack);
            }
        },
        check: |bytes| {
            let path = COPIES.path(".pack");
            let pack = COPIES.file(&path);
            // What it says of a chunk goes into the index, for both disks: the chunk's own header may then say otherwise on each.
            COPIES.survive(&path, &[&pack[..directory_of(number_of(&path), pack)], bytes].concat())
        },
    },
    Target {
        name: "copies-pack-start",
        cases: SLOW_CASES,
        samples: || {
            let pack = COPIES.file(&COPIES.path(".pack"));
            vec![pack[..PACK_PART.end.min(pack.len())].to_vec()]
        },
        repair: |bytes| repair_chunks_of(number_of(&COPIES.path(".pack")), bytes),
        // Without its end a pack is scanned.
        check: |bytes| COPIES.survive_whole(&COPIES.path(".pack"), bytes),
    },
    Target {
        name: "fragments-superblock",
        cases: SLOW_CASES,
        samples: || vec![FRAGMENTS.file(SUPERBLOCK_FILE)[..Superblock::BYTES].to_vec()],
        repair: |bytes| repair_tail(bytes, 0),
        check: |bytes| {
            let older = &FRAGMENTS.file(SUPERBLOCK_FILE)[Superblock::BYTES..];
            FRAGMENTS.survive(SUPERBLOCK_FILE, &[bytes, older].concat())
        },
    },
    Target {
        name: "fragments-one",
        cases: SLOW_CASES,
        samples: || vec![FRAGMENTS.file(&FRAGMENTS.path(".fragment"))[..FRAGMENT_PART].to_vec()],
        repair: repair_fragment,
        check: |bytes| {
            let path = FRAGMENTS.path(".fragment");
            FRAGMENTS.survive_whole(&path, &begin_with(&path, bytes))
        },
    },
];

/// Of a pack, by its path.
fn number_of(path: &str) -> u64 {
    let digits = path.strip_prefix("packs/").and_then(|name| name.strip_suffix(".pack")).expect("a pack");
    u64::from_str_radix(digits, 16).expect("a number")
}

#[test]
fn nodes_with_one_disk_that_lies_are_survived() {
    fuzz::run(env!("CARGO_MANIFEST_DIR"), TARGETS);
}
