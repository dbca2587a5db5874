//! Processes that end between two steps of a disk that comes or goes: the node opens, has all that was synced, and what was asked for can be
//! asked for again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::id::{FileId, NodeNumber};
use file::{FileSystem, Kind, NewFile, Node};
use platform::real::{Directory, block_on, platform};

use super::Control;
use crate::config::Config;
use crate::node_folder::{FORMAT, Identity, NodeFolder};
use crate::opening;

/// A node of two disks, and a third directory. Gone when the test ends.
struct Place {
    folder: PathBuf,
    node: NodeFolder,
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn place(name: &str) -> Place {
    let folder = std::env::temp_dir().join(format!("hydrafs-steps-{name}-{}", std::process::id()));
    let at = |name: &str| folder.join(name);
    ["n", "a", "b", "c"].iter().for_each(|name| std::fs::create_dir_all(at(name)).expect("room"));
    let disks = [at("a"), at("b")];
    let opened = disks.each_ref().map(|disk| Directory::open(disk).expect("made above"));
    block_on(file::format_node(&platform(), &opened, NodeNumber(1), 0, 0)).expect("empty disks");
    let identity = Identity { format: FORMAT, uuid: "0".repeat(32), number: 1, disks: disks.to_vec() };
    let node = NodeFolder::create(&at("n"), identity).expect("room");
    let place = Place { folder, node };
    let (control, system) = place.process();
    block_on(async {
        let (kind, target) = (Kind::Regular, &[][..]);
        let new = NewFile { kind, mode: 0o644, umask: 0, uid: 0, gid: 0, device: 0, target };
        let file = system.create_file(FileId::ROOT, b"f", &new).await?;
        system.write(file.file, 0, &[7; 100_000], false).await?;
        system.sync_all().await
    })
    .expect("room");
    end(control, &system);
    place
}

/// The process ends. In order, for a thread of a test cannot be killed: what the steps before have left is what it is about.
fn end(control: Control, system: &FileSystem) {
    drop(control);
    block_on(system.close()).expect("room");
    system.unlock_disks();
}

impl Place {
    /// What a process has that begins now.
    fn process(&self) -> (Control, Arc<FileSystem>) {
        let node = NodeFolder::open(&self.node.path).expect("a node");
        let (system, _) = opening::open(&node, &Config::default(), &platform(), &[]).expect("a node that opens");
        (Control::new(&node, &platform(), &system), system)
    }

    fn disk(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The disks that the node has for a process that begins now, which finds its file; and the paths that its folder has.
    fn disks(&self) -> (usize, Vec<PathBuf>) {
        let (control, system) = self.process();
        let read = async {
            let (file, _) = system.lookup(Node::live(FileId::ROOT), b"f").await?;
            let mut bytes = vec![0; 100_001];
            let count = system.read(file, 0, &mut bytes).await?;
            bytes.truncate(count);
            Ok::<_, file::FileError>(bytes)
        };
        assert!(block_on(read).expect("synced") == [7; 100_000]);
        let status = system.status();
        assert!(status.store.disks.iter().all(|disk| !disk.is_missing), "{:?}", status.store.disks);
        end(control, &system);
        (status.store.disks.len(), NodeFolder::open(&self.node.path).expect("a node").disk_paths())
    }

    fn expect(&self, count: usize, paths: &[&str]) {
        let paths: Vec<PathBuf> = paths.iter().map(|name| self.disk(name)).collect();
        assert_eq!(self.disks(), (count, paths));
    }
}

fn open(disk: &Path) -> platform::disk::Disk {
    Directory::open(disk).expect("there")
}

#[test]
fn a_disk_that_was_formatted_and_not_taken_in_is_left_alone_noted_or_not() {
    for (is_noted, paths) in [(false, &["a", "b"][..]), (true, &["a", "b", "c"])] {
        let place = place(if is_noted { "noted" } else { "formatted" });
        let (control, system) = place.process();
        block_on(system.format_disk(&open(&place.disk("c")))).expect("an empty directory");
        if is_noted {
            place.node.note_disk(&place.disk("c")).expect("room");
        }
        end(control, &system);
        place.expect(2, paths);
        let (control, system) = place.process();
        control.add_disk(&place.disk("c")).expect("it goes on from there");
        end(control, &system);
        place.expect(3, &["a", "b", "c"]);
    }
}

#[test]
fn a_disk_that_was_removed_and_not_forgotten_is_left_alone() {
    let place = place("removed");
    let (control, system) = place.process();
    let number = system
        .status()
        .store
        .disks
        .iter()
        .find(|disk| Path::new(&disk.path) == place.disk("b"))
        .expect("it has it")
        .number;
    block_on(async {
        system.drain_disk(number, true).await?;
        while !system.empty_disk(number, file::Share::FULL, &|_, _| {}).await?.0 {}
        system.remove_disk(number, false).await
    })
    .expect("the other has room");
    end(control, &system);
    // It is none of those that are unlocked then; a process that is over has let go of it.
    std::fs::remove_file(place.disk("b").join("lock")).expect("it was locked");
    place.expect(1, &["a", "b"]);
    // What the next step would have done, too late: it is empty and can be added.
    place.node.forget_disk(&place.disk("b")).expect("room");
    place.expect(1, &["a"]);
}
