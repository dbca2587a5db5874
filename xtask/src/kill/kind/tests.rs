//! The judges must be able to find something: loads run in a plain directory that is "killed" by moving it away, and what is left is
//! then damaged in each way that a broken file system might.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use super::super::load::{Tally, Verified, none_idle, one_order};
use super::{
    Append, Attributes, Git, Journal, Kind, Load, Names, Overwrite, Ranges, Replace, Round, Rsync, Shared, Sqlite,
    Trees, postgres,
};
use crate::kill::trees::Tool;
use crate::program::Program;

struct World {
    root: PathBuf,
    round: Round,
}

impl World {
    fn new(name: &str) -> World {
        let root = std::env::temp_dir().join(format!("xtask-kill-{name}-{}", std::process::id()));
        fs::create_dir_all(root.join("round")).expect("room");
        let round = Round::new(1, root.join("round"), root.clone(), 5);
        World { root, round }
    }

    /// Lets loads run a while.
    fn live(&self, loads: &mut [Box<dyn Load>]) {
        std::thread::scope(|scope| {
            let running: Vec<_> = loads.iter_mut().map(|load| scope.spawn(|| load.run())).collect();
            std::thread::sleep(Duration::from_millis(300));
            self.round.killing();
            // Names are gone at once; what writes to an open file only ends on its next open.
            fs::rename(self.root.join("round"), self.root.join("away")).expect("ours");
            for load in running {
                assert_eq!(load.join().expect("no panic"), None, "the kill is no failure");
            }
        });
        fs::rename(self.root.join("away"), self.root.join("round")).expect("ours");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // In the folder for temporary files anyway.
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn verdict(load: &dyn Load) -> String {
    load.verify().map_or_else(|error| format!("{error:#}"), |_| "good".to_owned())
}

fn any_file(folder: &Path, wanted: impl Fn(&Path) -> bool) -> PathBuf {
    let names = crate::tree::names(folder).expect("there");
    names.into_iter().map(|name| folder.join(name)).find(|path| wanted(path)).expect("a file of that kind")
}

#[test]
fn names_are_judged() {
    let world = World::new("names");
    let mut loads: Vec<Box<dyn Load>> = vec![
        Box::new(Names::new(&world.round, 0).expect("room")),
        Box::new(Names::new(&world.round, 1).expect("room")),
    ];
    world.live(&mut loads);
    for load in &loads {
        assert!(load.done() > 20, "{} operations", load.done());
        assert_eq!(verdict(load.as_ref()), "good");
    }
    one_order(&loads).expect("nothing was lost");

    let folder = world.round.folder.join("names-0");
    let is_long = |path: &Path| path.is_file() && fs::metadata(path).is_ok_and(|metadata| metadata.len() > 200);
    let path = any_file(&folder, is_long);
    let content = fs::read(&path).expect("there");
    let file = OpenOptions::new().write(true).open(&path).expect("there");
    file.write_all_at(&[0; 64], 128).expect("room");
    assert!(verdict(loads[0].as_ref()).contains("64 zeroes"), "{}", verdict(loads[0].as_ref()));
    file.write_all_at(&content, 0).expect("room");
    file.write_all_at(b"and more", content.len() as u64).expect("room");
    assert_ne!(verdict(loads[0].as_ref()), "good");
    file.set_len(content.len() as u64).expect("room");
    assert_eq!(verdict(loads[0].as_ref()), "good");

    // An empty file does not say whose it is; what was synced under its name does.
    world.round.all_synced(&world.round.progress());
    file.set_len(0).expect("room");
    assert!(verdict(loads[0].as_ref()).contains("has 0 bytes"), "{}", verdict(loads[0].as_ref()));
    file.write_all_at(&[0; 5], 0).expect("room");
    assert!(verdict(loads[0].as_ref()).contains("5 zeroes"), "{}", verdict(loads[0].as_ref()));
    file.write_all_at(&content, 0).expect("room");
    assert_eq!(verdict(loads[0].as_ref()), "good");

    fs::write(folder.join("ghost"), "").expect("room");
    assert!(verdict(loads[0].as_ref()).contains("ghost is there"), "{}", verdict(loads[0].as_ref()));
    fs::remove_file(folder.join("ghost")).expect("there");
    // All gone is a prefix, the empty one: but an older one than was synced.
    fs::remove_dir_all(&folder).expect("ours");
    fs::create_dir(&folder).expect("room");
    assert!(verdict(loads[0].as_ref()).contains("were synced"), "{}", verdict(loads[0].as_ref()));
    // And the other thread's later operations are there.
    let words = one_order(&loads).expect_err("no prefix").to_string();
    assert!(words.contains("no prefix") && words.contains("names-0 lost"), "{words}");
}

#[test]
fn loads_that_stand_still_are_found() {
    let world = World::new("still");
    let mut loads: Vec<Box<dyn Load>> = vec![
        Box::new(Names::new(&world.round, 0).expect("room")),
        Box::new(Replace::new(&world.round, 1).expect("room")),
    ];
    let (mut ran, mut idle) = (Tally::default(), Tally::default());
    idle.add(loads[0].as_ref(), Verified::default());
    assert_eq!(world.round.still(&[0, 0]), Some(0));
    world.live(&mut loads);
    assert_eq!(world.round.still(&[0, 0]), None);
    let now = world.round.progress();
    assert_eq!(world.round.still(&[0, now[1]]), Some(1));

    assert_eq!(Kind::Mixed.must_move_since(Duration::from_millis(900), now.clone()), None);
    assert_eq!(Kind::Mixed.must_move_since(Duration::from_secs(1), now.clone()), Some(vec![0; now.len()]));
    assert_eq!(Kind::Mixed.must_move_since(Duration::from_secs(3), now.clone()), Some(now));

    world.round.all_synced(&world.round.progress());
    ran.add(loads[0].as_ref(), loads[0].verify().expect("all is there"));
    none_idle(&[ran]).expect("it ran");
    let words = none_idle(&[idle]).expect_err("it did nothing").to_string();
    assert!(words.contains("names-0 judged nothing"), "{words}");
}

#[test]
fn programs_that_end_before_the_kill_are_found() {
    let world = World::new("ended");
    let ended = || Program::new("true").start(Stdio::null(), Stdio::null(), Stdio::null()).expect("it is here");
    let words = postgres::until_killed(&mut ended(), &world.round).expect("a process of ours");
    assert!(words.as_ref().is_some_and(|words| words.contains("before the kill")), "{words:?}");
    world.round.killing();
    assert_eq!(postgres::until_killed(&mut ended(), &world.round).expect("a process of ours"), None);
}

#[test]
fn replaced_files_are_judged() {
    let world = World::new("replace");
    let mut loads: Vec<Box<dyn Load>> = vec![Box::new(Replace::new(&world.round, 5).expect("room"))];
    world.live(&mut loads);
    let load = loads[0].as_ref();
    assert_eq!(verdict(load), "good");
    let path = world.round.folder.join("replace");
    let bytes = fs::read(&path).expect("there");
    fs::write(&path, &bytes[..bytes.len() - 1]).expect("room");
    assert!(verdict(load).contains("before its data was there"), "{}", verdict(load));
    fs::write(&path, "").expect("room");
    assert!(verdict(load).contains("no version"), "{}", verdict(load));
}

#[test]
fn streams_are_judged() {
    let world = World::new("streams");
    // Never run: what they made is there, and nothing else may be.
    let append = Append::new(&world.round, 3).expect("room");
    let overwrite = Overwrite::new(&world.round, 4).expect("room");
    assert_eq!((verdict(&append), verdict(&overwrite)), ("good".to_owned(), "good".to_owned()));
    fs::write(world.round.folder.join("append"), "x").expect("room");
    assert!(verdict(&append).contains("it has 1 bytes"), "{}", verdict(&append));
    let path = world.round.folder.join("overwrite");
    let bytes = fs::read(&path).expect("there");
    let damaged = |at: usize, with: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        fs::write(&path, bytes).expect("room");
        verdict(&overwrite)
    };
    assert!(damaged(8192, &[0; 4096]).contains("zeroes"));
    assert!(damaged(8192, &bytes[..4096]).contains("block 2"));
    assert!(damaged(8192 + 100, &[1]).contains("block 2"));
    assert_eq!(damaged(0, &[]), "good");
}

#[test]
fn a_file_of_several_writers_is_judged() {
    let world = World::new("shared");
    let mut load = Shared::new(&world.round, 9).expect("room");
    load.steps(60).expect("a whole disk");
    let load = &load;
    assert_eq!(verdict(load), "good");
    let path = world.round.folder.join("shared");
    let bytes = fs::read(&path).expect("there");
    let is_written = |block: &&[u8]| block.iter().any(|byte| *byte != 0);
    // Of the fourth writer, whose writes are all synced.
    let first = 6 << 20;
    let written = first + bytes[first..].chunks(4096).position(|block| is_written(&block)).expect("written") * 4096;
    let damaged = |at: usize, with: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        fs::write(&path, bytes).expect("room");
        verdict(load)
    };
    assert!(damaged(written, &[0; 4096]).contains("zeroes"), "{}", verdict(load));
    assert!(damaged(written + 100, &[1]).contains("writer 3"), "{}", verdict(load));
    let other = bytes[..first].chunks(4096).find(is_written).expect("others wrote");
    assert!(damaged(written, other).contains("writer 3"), "{}", verdict(load));
    assert_eq!(damaged(0, &[]), "good");
}

#[test]
fn databases_are_judged() {
    let world = World::new("sqlite");
    for (thread, journal) in [(0, Journal::Wal), (1, Journal::Delete)] {
        let mut load = Sqlite::new(&world.round, thread, journal).expect("sqlite3 is here");
        load.transactions(120).expect("a whole disk");
        assert_eq!(load.verify().expect("all is there").present, 120);
        let database = world.round.folder.join(format!("sqlite-{thread}.db"));
        let damage = |sql: &str| Program::new("sqlite3").arg(&database).arg(sql).output().expect("it does");
        damage("UPDATE row SET touched = 1 WHERE id = 1");
        assert!(verdict(&load).contains("there in part"), "{}", verdict(&load));
        damage(
            "DELETE FROM row WHERE id = 120; UPDATE row SET touched = 98 WHERE id = 1; UPDATE row SET touched = 23 WHERE id = 23",
        );
        assert!(verdict(&load).contains("119 rows; 120 were acknowledged"), "{}", verdict(&load));
    }
}

#[test]
fn commits_are_judged() {
    let world = World::new("git");
    let mut load = Git::new(&world.round, 0).expect("git is here");
    (0..3).for_each(|_| load.commit().expect("a whole disk"));
    assert_eq!(load.verify().expect("all is there").present, 3);
    let repository = world.round.folder.join("git-0");
    Program::new("git")
        .arg("-C")
        .arg(&repository)
        .args(["update-ref", "refs/heads/main", "main~1"])
        .output()
        .expect("it does");
    assert!(verdict(&load).contains("2 commits; 3 were acknowledged"), "{}", verdict(&load));
    let objects = repository.join(".git/objects");
    let dir = any_file(&objects, |path| path.file_name().is_some_and(|name| name.len() == 2));
    let object = any_file(&dir, |_| true);
    fs::remove_file(&object).expect("ours");
    fs::write(&object, "").expect("room");
    assert!(verdict(&load).contains("fsck"), "{}", verdict(&load));
}

#[test]
fn copies_are_judged() {
    let world = World::new("rsync");
    let mut load = Rsync::new(&world.round, 0).expect("room");
    (0..8).for_each(|_| load.step().expect("rsync is here"));
    load.verify().expect("all is there");
    let copy = any_file(&world.round.folder.join("rsync-0/part-0"), Path::is_file);
    let modified = fs::metadata(&copy).expect("there").modified().expect("has one");
    let file = OpenOptions::new().write(true).open(&copy).expect("there");
    file.write_all_at(b"damage", 0).expect("room");
    file.set_modified(modified).expect("ours");
    assert!(verdict(&load).contains("was copied and synced"), "{}", verdict(&load));
}

#[test]
fn ranges_are_judged() {
    let world = World::new("ranges");
    let mut load = Ranges::new(&world.round, 6).expect("room");
    let file = load.open().expect("there");
    (0..200).for_each(|_| load.step(&file).expect("a whole disk"));
    let load = &load;
    assert_eq!(verdict(load), "good");
    world.round.all_synced(&world.round.progress());
    assert_eq!(verdict(load), "good");

    let path = world.round.folder.join("ranges");
    let bytes = fs::read(&path).expect("there");
    let is_written = |block: &&[u8]| block.iter().any(|byte| *byte != 0);
    let written = bytes.chunks(4096).position(|block| is_written(&block)).expect("something is written") * 4096;
    let damaged = |at: usize, with: &[u8]| {
        let mut bytes = bytes.clone();
        bytes.splice(at..(at + with.len()).min(bytes.len()), with.iter().copied());
        fs::write(&path, bytes).expect("room");
        verdict(load)
    };
    assert!(damaged(written, &[0; 4096]).contains("zeroes (expected"), "{}", verdict(load));
    assert!(damaged(written + 1000, &[1, 2, 3]).contains("byte 100"), "{}", verdict(load));
    // A block that is right elsewhere in the file.
    let other = bytes[written + 4096..].chunks(4096).find(is_written).expect("several are written");
    assert!(damaged(written, other).contains("is of no version"), "{}", verdict(load));
    assert!(damaged(bytes.len(), &[0; 4096]).contains("bytes; since the last sync it had"), "{}", verdict(load));
    assert_eq!(damaged(0, &[]), "good");
}

#[test]
fn attributes_are_judged() {
    let world = World::new("attributes");
    // ext4 has some 4 KB for all of them.
    let mut loads: Vec<Box<dyn Load>> = vec![Box::new(Attributes::new(&world.round, 7, 250).expect("room"))];
    world.live(&mut loads);
    let load = loads[0].as_ref();
    assert!(load.done() > 20, "{} operations", load.done());
    assert_eq!(verdict(load), "good");
    world.round.all_synced(&world.round.progress());
    assert_eq!(verdict(load), "good");
    let path = world.round.folder.join("attributes");
    rustix::fs::setxattr(&path, "user.more", b"1", rustix::fs::XattrFlags::empty()).expect("room");
    assert!(verdict(load).contains("never such") && verdict(load).contains("with 1 differences"), "{}", verdict(load));
    rustix::fs::removexattr(&path, "user.more").expect("there");
    let before = fs::metadata(&path).expect("there").modified().expect("has one");
    let file = OpenOptions::new().write(true).open(&path).expect("there");
    file.set_modified(before + Duration::from_nanos(1)).expect("ours");
    assert!(verdict(load).contains("with 1 differences"), "{}", verdict(load));
}

/// Programs that every machine has, in the place of hydrafs. Snapshots are copies.
#[derive(Debug)]
struct Plain(PathBuf);

fn plain(program: &str, how: &str, paths: &[&Path]) -> anyhow::Result<()> {
    Program::new(program).arg(how).args(paths).output().map(drop)
}

impl Tool for Plain {
    fn copy(&self, from: &Path, to: &Path, _: bool) -> anyhow::Result<()> {
        plain("cp", "-a", &[from, to])
    }

    fn clone_tree(&self, from: &Path, to: &Path) -> anyhow::Result<()> {
        plain("cp", "-a", &[from, to])
    }

    fn remove(&self, path: &Path) -> anyhow::Result<()> {
        plain("rm", "-r", &[path])
    }

    fn take_snapshot(&self, name: &str, of: &Path) -> anyhow::Result<()> {
        plain("cp", "-a", &[of, &self.0.join(name)])
    }

    fn forget_snapshot(&self, _: &str) -> anyhow::Result<()> {
        Ok(())
    }

    fn snapshots(&self) -> PathBuf {
        self.0.clone()
    }
}

#[test]
fn trees_are_judged() {
    let world = World::new("trees");
    let snapshots = world.root.join("snapshots");
    fs::create_dir(&snapshots).expect("room");
    let mut load = Trees::new(&world.round, 8, Box::new(Plain(snapshots.clone()))).expect("room");
    (0..12).for_each(|_| load.step().expect("a whole disk"));
    assert_eq!(verdict(&load), "good");
    load.cut().expect("a prefix").expect("names are there");

    let folder = world.round.folder.join("trees");
    let tree = any_file(&folder, Path::is_dir);
    let (path, bytes) = (tree.join("below/0"), fs::read(tree.join("below/0")).expect("there"));
    fs::remove_file(&path).expect("there");
    assert!(verdict(&load).contains("cannot read"), "{}", verdict(&load));
    fs::write(&path, &bytes[1..]).expect("room");
    assert!(verdict(&load).contains("from byte 0"), "{}", verdict(&load));
    fs::write(&path, &bytes).expect("room");
    assert_eq!(verdict(&load), "good");
    fs::rename(&tree, folder.join("ghost")).expect("ours");
    assert!(verdict(&load).contains("are no prefix of 12 steps"), "{}", verdict(&load));
    fs::rename(folder.join("ghost"), &tree).expect("ours");
    let snapshot =
        any_file(&snapshots, |snapshot| fs::read_dir(snapshot).is_ok_and(|mut trees| trees.next().is_some()));
    let shown = any_file(&snapshot, Path::is_dir);
    fs::rename(&shown, world.root.join("elsewhere")).expect("ours");
    assert!(verdict(&load).contains("it was taken of"), "{}", verdict(&load));
    fs::rename(world.root.join("elsewhere"), &shown).expect("ours");
    fs::remove_dir_all(&snapshot).expect("ours");
    assert!(verdict(&load).contains("are no prefix"), "{}", verdict(&load));
}
