//! A restart whose flush fails while the mount waits: what was accepted is still there.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use base::id::{FileId, NodeNumber};
use file::Node;
use platform::real::{Directory, block_on};
use rustix::mount::{MountFlags, UnmountFlags};

use super::restart::{Passed, as_before, may_pass_on};
use super::{Event, House, Life, Serving, done};
use crate::config::Config;
use crate::failure::Failure;
use crate::front::Answer;
use crate::node_folder::{FORMAT, Identity, NodeFolder};
use crate::start::{self, MountOptions};

/// A mount that has gone when a test ends, however it ends.
struct Gone<'a>(&'a Path);

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0, UnmountFlags::DETACH);
    }
}

/// A disk that can be full.
struct Disk<'a>(Gone<'a>);

impl Disk<'_> {
    fn mount(at: &Path) -> Option<Disk<'_>> {
        rustix::mount::mount("hydrafs-test", at, "tmpfs", MountFlags::empty(), c"size=256m,mode=700").ok()?;
        Some(Disk(Gone(at)))
    }

    /// Leaves less than an eighth, which data does not get (P-2).
    #[expect(clippy::disallowed_methods, reason = "no file of the node's")]
    fn fill(&self) {
        let mut file = File::create(self.0.0.join("filler")).expect("room");
        while rustix::fs::statvfs(self.0.0).expect("it is mounted").f_bavail * 4096 > 24 << 20 {
            file.write_all(&[1; 1 << 16]).expect("room");
        }
    }

    fn empty(&self) {
        std::fs::remove_file(self.0.0.join("filler")).expect("filled before");
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a program that uses the mount")]
fn what_cannot_be_flushed_outlives_the_restart_that_fails() {
    let folder = std::env::temp_dir().join(format!("hydrafs-life-{}", std::process::id()));
    let [at, point, path] = ["disk", "m", "n"].map(|name| folder.join(name));
    [&at, &point, &path].iter().for_each(|path| std::fs::create_dir_all(path).expect("room"));
    let (Some(disk), Ok(_)) = (Disk::mount(&at), File::open("/dev/fuse")) else {
        return skipped::because("this needs a tmpfs and /dev/fuse");
    };
    let platform = platform::real::platform();
    let disks = [Directory::open(&at).expect("there")];
    block_on(file::format_node(&platform, &disks, NodeNumber(1), 0, 0)).expect("an empty disk");
    let identity = Identity { format: FORMAT, uuid: "0".repeat(32), number: 1, disks: vec![at.clone()] };
    let node = NodeFolder::create(&path, identity).expect("room");
    // Nothing is flushed that nobody asks for.
    let config = Config { memory_bytes: Some(1 << 30), flush_interval: Duration::from_secs(3600), ..Config::default() };
    let lock = node.lock().expect("ours");
    let (mut life, inbox) = Life::new(&node, config, lock);
    let system = life.open(&[]).expect("a clean node");
    let _gone = Gone(&point);
    let mounted = start::mount(&node, &life.config, (&life.platform, &system), (&point, MountOptions::default()));
    let (session, kernel) = mounted.expect("as doctor says");
    let mut house = House { system, serving: Some(Serving::new(session, kernel)) };
    life.ready(&mut house).expect("a thread").go();

    let bytes: Vec<u8> = (0..1_000_000_u32).flat_map(|number| number.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
    let mut file = File::create(point.join("f")).expect("room");
    file.write_all(&bytes).expect("accepted");
    life.open_desk(&house);
    let parked = life.park(&house, &inbox, &mut VecDeque::new()).expect("nothing is under way");
    assert_eq!(house.system.status().dirty_bytes, bytes.len() as u64, "nothing is flushed yet");
    disk.fill();
    let passed = life.pass_on(house, parked, Path::new("/bin/true"), &Answer::to_nobody());
    let Ok(Passed::Back { failure, next }) = passed else { panic!("it cannot go on elsewhere, and can here") };
    let message = failure.to_string();
    assert!(message.contains("no space left") && message.contains("the daemon goes on as before"), "{message}");

    file.sync_all().expect_err("there is still no room");
    disk.empty();
    file.sync_all().expect("room");
    let read = async {
        let (found, _) = next.system.lookup(Node::live(FileId::ROOT), b"f").await?;
        let mut read = vec![0; bytes.len() + 1];
        let count = next.system.read(found, 0, &mut read).await?;
        read.truncate(count);
        Ok::<_, file::FileError>(read)
    };
    assert!(block_on(read).expect("a good disk") == bytes);
    drop(file);
    assert_eq!(done(&next.system.status()), done(&next.system.status()), "nobody does anything");
    for _ in 0..2 {
        let before = next.system.status();
        life.prepare_restart(&next, Some("/bin/true".into()), &Answer::to_nobody()).expect("it can run");
        assert!(matches!(inbox.recv(), Ok(Event::Flushed(_, Ok(())))));
        let after = next.system.status();
        // Also the second time, when there is nothing to commit.
        assert!(after.store.generation > before.store.generation, "a disk that hangs would not be met");
        assert_ne!(done(&before), done(&after));
    }
    next.unmounter().expect("mounted").unmount().expect("nobody uses it");
    inbox.recv().expect("its session has ended");
    life.close(&next, &[]).expect("room");
    drop(next);
    drop(disk);
    std::fs::remove_dir_all(folder).expect("ours");
}

#[test]
fn a_restart_that_failed_keeps_its_advice() {
    let failure = as_before(Failure::new("cannot open the node", "no space left").mend("make room"));
    assert_eq!(failure.to_string(), "cannot open the node: no space left; make room; the daemon goes on as before");
    let failure = as_before(Failure::new("cannot restart", "no memory"));
    assert_eq!(failure.to_string(), "cannot restart: no memory; the daemon goes on as before");
}

#[test]
fn the_first_process_of_a_container_does_not_pass_on() {
    may_pass_on(2).expect("others outlive it");
    let failure = may_pass_on(1).expect_err("all others would end").to_string();
    assert!(failure.contains("--init"), "{failure}");
}
