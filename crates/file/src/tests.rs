//! The file layer on a simulated machine. Long random histories with crashes are in the crate `sim`; here are the truths that
//! have a short proof each.

mod admission;
mod batch_compare;
mod batch_copy;
mod batch_optimize;
mod batch_read;
mod batch_remove;
mod batch_walk;
mod batch_warm;
mod batch_write;
mod calls;
mod check;
mod clones;
mod commits;
mod content;
mod dying;
mod format;
mod full;
mod fuzz;
mod habit;
mod hostile;
mod layout;
mod left_out;
mod limits;
mod lying;
mod moments;
mod namespace;
mod open;
mod policy;
mod prefetch;
mod races;
mod reclaim;
mod repair;
mod snapshots;
mod streams;
mod transfer;
mod transfer_calls;
mod tree;

use std::sync::Arc;

use base::id::{ChunkAddress, FileId, NodeNumber};
use platform::disk::Disk;
use platform::sim::{SimDisk, World};

use crate::{Attributes, FileError, FileSystem, Kind, NewFile, Node, Options, format_node};

/// A machine with one disk, mostly, and what it needs to open a file system.
pub(super) struct Machine {
    pub(super) world: World,
    pub(super) disk: SimDisk,
    /// Further ones.
    pub(super) more: Vec<SimDisk>,
    pub(super) options: Options,
}

impl Machine {
    pub(super) fn new(seed: u64) -> Machine {
        Machine::with(seed, 1 << 30, Options { dirty_bytes_max: 16 << 20, ..Options::default() })
    }

    /// With a disk of so many bytes.
    pub(super) fn with(seed: u64, capacity: u64, options: Options) -> Machine {
        Machine::on(seed, 1, capacity, options)
    }

    /// With several of them.
    pub(super) fn on(seed: u64, disks: usize, capacity: u64, options: Options) -> Machine {
        let world = World::new(seed);
        let disk = world.disk("disk", capacity);
        let more = (1..disks).map(|number| world.disk(&format!("disk{number}"), capacity)).collect();
        let machine = Machine { world, disk, more, options };
        let (platform, disks) = (machine.world.platform(), machine.disks());
        machine.run(async { format_node(&platform, &disks, NodeNumber(1), 0, 0).await }).unwrap();
        machine
    }

    pub(super) fn disks(&self) -> Vec<Disk> {
        std::iter::once(&self.disk).chain(&self.more).map(SimDisk::disk).collect()
    }

    pub(super) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.world.run_until(future).expect("nothing halts the machine")
    }

    pub(super) fn open(&self) -> Arc<FileSystem> {
        let (platform, disks, options) = (self.world.platform(), self.disks(), self.options.clone());
        self.run(async { FileSystem::open(&platform, &disks, options).await }).unwrap().0
    }

    /// The process dies, and comes back.
    pub(super) fn crash(&self, system: Arc<FileSystem>) -> Arc<FileSystem> {
        drop(system);
        self.world.crash();
        self.open()
    }

    /// The power goes, and comes back.
    pub(super) fn power_cycle(&self, system: Arc<FileSystem>) -> Arc<FileSystem> {
        drop(system);
        self.world.restart();
        self.open()
    }

    /// Nothing is wrong with what was committed.
    pub(super) fn check(&self, system: &FileSystem) {
        let report = self.run(system.check_files(&|_| {})).unwrap();
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
    }
}

pub(super) fn new(kind: Kind) -> NewFile<'static> {
    NewFile { kind, mode: 0o644, umask: 0, uid: 0, gid: 0, device: 0, target: b"" }
}

pub(super) async fn create(system: &FileSystem, parent: FileId, name: &str, kind: Kind) -> Attributes {
    system.create_file(parent, name.as_bytes(), &new(kind)).await.unwrap()
}

pub(super) async fn read_all(system: &FileSystem, node: Node) -> Vec<u8> {
    let size = system.attributes(node).await.unwrap().size;
    let mut bytes = vec![0xAA; usize::try_from(size).unwrap() + 10];
    let count = system.read(node, 0, &mut bytes).await.unwrap();
    bytes.truncate(count);
    bytes
}

pub(super) async fn find(system: &FileSystem, path: &str) -> Result<Node, FileError> {
    let mut node = Node::live(FileId::ROOT);
    for name in path.split('/') {
        node = system.lookup(node, name.as_bytes()).await?.0;
    }
    Ok(node)
}

pub(super) async fn list(system: &FileSystem, node: Node, limit: usize) -> Vec<String> {
    let (mut names, mut after) = (Vec::new(), 0);
    loop {
        let entries = system.read_directory(node, after, limit).await.unwrap();
        let Some(last) = entries.last() else { return names };
        after = last.cookie;
        names.extend(entries.iter().map(|entry| String::from_utf8(entry.name.to_vec()).unwrap()));
    }
}

/// The chunks of trees: file and offset.
pub(super) fn tree_chunks(machine: &Machine) -> Vec<(String, u64)> {
    let packs = machine.disk.snapshot_files();
    let packs = packs.iter().filter(|(path, bytes)| path.starts_with("packs/") && bytes[12] == 1);
    let chunks = packs.flat_map(|(path, bytes)| {
        let found = bytes.windows(4).enumerate().filter(|(_, window)| window == b"Chnk");
        found.map(|(at, _)| (path.clone(), at as u64)).collect::<Vec<_>>()
    });
    chunks.collect()
}

/// Where a chunk of trees lies on the disk: file and offset.
pub(super) fn chunk_place(machine: &Machine, address: &ChunkAddress) -> (String, u64) {
    let files = machine.disk.snapshot_files();
    let is_it = |(path, at): &(String, u64)| {
        let start = usize::try_from(*at).unwrap() + 16;
        files[path][start..].starts_with(&address.0)
    };
    tree_chunks(machine).into_iter().find(is_it).expect("it was written")
}
