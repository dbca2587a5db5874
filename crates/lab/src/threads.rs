//! Many threads in few files: whatever runs beside it, each sees what it wrote, and so does who opens the node afterwards.
//!
//! The simulator has one thread and changes tasks where they wait; what goes wrong between two steps that do not wait is for
//! this. Several threads share each file, and no byte of it: the file is a row of pieces, and they take turns. So each knows what its pieces hold at any
//! moment, to the byte, also in a clone or a snapshot that it makes of the whole. Pieces have an odd length: neighbours share pages and chunks.
//! Beside them everything is flushed, committed and reclaimed, with a write buffer and a cache that are much too small.
//!
//! Not here: what a crash leaves (`cargo xtask kill`, the simulator).

use std::error::Error;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::id::{FileId, NodeNumber};
use file::{
    Allocate, AttributeChange, FileError, FileSystem, Kind, NewFile, Node, Options, Reclaim, RenameMode, StoreOptions,
    XattrMode, format_node,
};
use platform::Platform;
use platform::disk::Disk;
use platform::real::{Directory, block_on};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Files, writers of each, and pieces of each of those.
const FILES: u64 = 2;
const WRITERS: u64 = 3;
const PIECES: u64 = 10;
const PIECE_BYTES: usize = 37_003;
/// Different contents of a piece: few, so that chunks are found, dropped, and put again.
const CONTENTS: u64 = 12;
/// The most that a thread's own file has.
const OWN_BYTES_MAX: u64 = 200_000;

/// What was done.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    operations: AtomicU64,
    compared_bytes: AtomicU64,
    /// Syncs and commits of everything; passes of reclaim.
    rounds: [AtomicU64; 2],
}

impl Tally {
    /// Something was done of each kind: else nothing was shown.
    fn expect_all(&self) -> Outcome<()> {
        let counts = [&self.operations, &self.compared_bytes, &self.rounds[0], &self.rounds[1]];
        match counts.iter().all(|count| count.load(Ordering::SeqCst) > 0) {
            true => Ok(()),
            false => Err(format!("it was over before anything was shown: {self:?}").into()),
        }
    }
}

/// Runs until so many operations were done by each thread, or for so long.
pub(crate) struct Until {
    pub(crate) operations: u64,
    pub(crate) time: Duration,
}

pub(crate) fn run(folder: &Path, seconds: u64, seed: u64) -> Outcome<()> {
    let until = Until { operations: u64::MAX, time: Duration::from_secs(seconds) };
    let tally = stress(folder, seed, &until)?;
    tally.expect_all()?;
    let result = serde_json::json!({
        "experiment": "threads", "seed": seed, "threads": FILES * WRITERS,
        "operations": tally.operations.into_inner(), "compared_bytes": tally.compared_bytes.into_inner(),
        "rounds": tally.rounds.map(AtomicU64::into_inner),
    });
    println!("{result}");
    Ok(())
}

/// The stress in a node of its own.
///
/// # Errors
/// The first thing that was not what it should be.
pub(crate) fn stress(folder: &Path, seed: u64, until: &Until) -> Outcome<Tally> {
    let place = folder.join("node-threads");
    std::fs::create_dir_all(&place)?;
    let platform = platform::real::platform();
    let disks = vec![Directory::create(&place)?];
    let done = stress_disks(&platform, &disks, seed, until);
    drop(disks);
    // A node that failed is kept, to be looked at.
    let tally = done.map_err(|error| format!("seed {seed}: {error}; the node is {}", place.display()))?;
    std::fs::remove_dir_all(&place)?;
    Ok(tally)
}

fn options() -> Options {
    let store = StoreOptions {
        cache_bytes: 1 << 20,
        index_cache_bytes: 1 << 20,
        pack_bytes: 4 << 20,
        segment_bytes: 1 << 20,
        ..StoreOptions::default()
    };
    Options {
        dirty_bytes_max: 4 << 20,
        flush_interval: Duration::from_millis(20),
        stream_bytes: 1 << 20,
        commit_interval: Duration::from_millis(50),
        commit_journal_bytes: 1 << 20,
        inodes_max: 4,
        inline_bytes_max: 8 << 10,
        store,
        ..Options::default()
    }
}

fn stress_disks(platform: &Platform, disks: &[Disk], seed: u64, until: &Until) -> Outcome<Tally> {
    block_on(format_node(platform, disks, NodeNumber(1), 0, 0))?;
    let (system, _) = block_on(FileSystem::open(platform, disks, options()))?;
    let mut files = Vec::new();
    let directory = NewFile { kind: Kind::Directory, ..new() };
    let directory = block_on(system.create_file(FileId::ROOT, DIRECTORY, &directory))?.file;
    for number in 0..FILES {
        files.push(block_on(system.create_file(directory, &shared_name(number), &new()))?.file);
    }
    let stress = Stress {
        system,
        end: platform.clock.elapsed() + until.time,
        operations: until.operations,
        platform: platform.clone(),
        tally: Tally::default(),
        failure: Mutex::default(),
        is_over: AtomicBool::new(false),
    };
    let mut writers: Vec<Writer> = Vec::new();
    for (number, file) in (0..).zip(&files) {
        writers.extend((0..WRITERS).map(|place| Writer::new(seed, (number, *file), place)));
    }
    std::thread::scope(|scope| {
        let rounds: Vec<_> = [0, 1]
            .map(|kind| {
                let stress = &stress;
                scope.spawn(move || stress.rounds(kind))
            })
            .into();
        let threads: Vec<_> = writers
            .iter_mut()
            .map(|writer| {
                let stress = &stress;
                scope.spawn(move || stress.carry(writer))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("a writer does not panic"));
        stress.is_over.store(true, Ordering::SeqCst);
        rounds.into_iter().for_each(|thread| thread.join().expect("a round does not panic"));
    });
    let Stress { system, tally, failure, .. } = stress;
    if let Some(failure) = failure.into_inner().expect("nobody panics with it") {
        return Err(failure.into());
    }
    // Once more as it is, and as the next process finds it.
    judge(&system, &mut writers, &tally)?;
    block_on(system.close())?;
    let closed = Arc::downgrade(&system);
    drop(system);
    // Whoever had it last may still be at dropping it, as when a daemon restarts.
    while closed.strong_count() > 0 || !file::are_free(disks) {
        std::thread::yield_now();
    }
    let (system, _) = block_on(FileSystem::open(platform, disks, options()))?;
    judge(&system, &mut writers, &tally).map_err(|error| format!("opened again: {error}"))?;
    block_on(system.close())?;
    Ok(tally)
}

/// Everything is what the threads know of it, and nothing is wrong with the trees.
fn judge(system: &Arc<FileSystem>, writers: &mut [Writer], tally: &Tally) -> Outcome<()> {
    for writer in writers {
        block_on(writer.compare_all(system, Node::live(writer.shared), tally))?;
        block_on(writer.compare_own(system, tally))?;
    }
    let report = block_on(system.check_files(&|_| {}))?;
    if !report.problems.is_empty() {
        return Err(format!("{:#?}", report.problems).into());
    }
    Ok(())
}

/// Where the shared files are, and their names.
const DIRECTORY: &[u8] = b"shared";

fn shared_name(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

fn new() -> NewFile<'static> {
    NewFile { kind: Kind::Regular, mode: 0o644, umask: 0, uid: 0, gid: 0, device: 0, target: b"" }
}

struct Stress {
    system: Arc<FileSystem>,
    platform: Platform,
    end: Duration,
    operations: u64,
    tally: Tally,
    failure: Mutex<Option<String>>,
    is_over: AtomicBool,
}

impl Stress {
    fn fail(&self, failure: String) {
        self.is_over.store(true, Ordering::SeqCst);
        self.failure.lock().expect("nobody panics with it").get_or_insert(failure);
    }

    fn carry(&self, writer: &mut Writer) {
        /// Ends all when one panics.
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.store(true, Ordering::SeqCst);
                }
            }
        }
        let _over = Over(&self.is_over);
        for number in 0..self.operations {
            if self.is_over.load(Ordering::SeqCst) || self.platform.clock.elapsed() >= self.end {
                break;
            }
            if let Err(error) = block_on(writer.step(&self.system, &self.tally)) {
                return self.fail(format!("{}, operation {number}: {error}", writer.words()));
            }
            self.tally.operations.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What the daemon does by itself, without its pauses.
    fn rounds(&self, kind: usize) {
        let mut seen = u64::MAX;
        while !self.is_over.load(Ordering::SeqCst) {
            let now = self.tally.operations.load(Ordering::Relaxed);
            if now == seen {
                std::thread::yield_now();
                continue;
            }
            seen = now;
            let round = async {
                if kind == 0 {
                    self.system.sync_all().await?;
                    self.system.commit().await
                } else {
                    let how = Reclaim { is_thorough: true, ..Reclaim::default() };
                    let report = self.system.reclaim(&how).await?;
                    if let Some(problem) = report.problems.first() {
                        self.fail(format!("reclaim left something alone: {problem}"));
                    }
                    Ok::<_, FileError>(())
                }
            };
            if let Err(error) = block_on(round) {
                return self.fail(format!("beside the writers, {kind}: {error}"));
            }
            self.tally.rounds[kind].fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Choices from a seed (splitmix64; Steele, Lea and Flood 2014).
struct Choice(u64);

impl Choice {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % below
    }

    /// A range that is not empty within so many bytes; now and then all of it.
    fn range(&mut self, bytes: usize) -> std::ops::Range<usize> {
        if self.below(3) == 0 {
            return 0..bytes;
        }
        let start = self.below(bytes as u64);
        let length = 1 + self.below(bytes as u64 - start);
        start as usize..(start + length) as usize
    }
}

/// One of few contents, of so many bytes.
fn content(choice: &mut Choice, bytes: usize) -> Vec<u8> {
    let mut from = Choice(choice.below(CONTENTS));
    let mut content = Vec::with_capacity(bytes + 8);
    while content.len() < bytes {
        // Half of it can be compressed.
        content.extend_from_slice(&from.below(u64::from(u32::MAX)).to_le_bytes());
    }
    content.truncate(bytes);
    content
}

/// A thread, and what its bytes are.
struct Writer {
    number: u64,
    place: u64,
    shared: FileId,
    choice: Choice,
    pieces: Vec<Vec<u8>>,
    /// A file of its own: `None` where there is none.
    own: Option<Vec<u8>>,
    made: u64,
}

impl Writer {
    fn new(seed: u64, (number, shared): (u64, FileId), place: u64) -> Writer {
        let number = number * WRITERS + place;
        let choice = Choice(seed.wrapping_mul(1009).wrapping_add(number));
        Writer { number, place, shared, choice, pieces: vec![Vec::new(); PIECES as usize], own: None, made: 0 }
    }

    fn words(&self) -> String {
        format!("thread {} (writer {} of file {})", self.number, self.place, self.shared.number)
    }

    /// Where a piece begins in the file.
    fn offset(&self, piece: usize) -> u64 {
        (piece as u64 * WRITERS + self.place) * PIECE_BYTES as u64
    }

    fn own_name(&self) -> Vec<u8> {
        format!("own-{}", self.number).into_bytes()
    }

    async fn step(&mut self, system: &Arc<FileSystem>, tally: &Tally) -> Outcome<()> {
        let piece = self.choice.below(PIECES) as usize;
        let (file, at) = (self.shared, self.offset(piece));
        match self.choice.below(40) {
            0..12 => {
                let range = self.choice.range(PIECE_BYTES);
                let bytes = content(&mut self.choice, range.len());
                system.write(file, at + range.start as u64, &bytes, false).await?;
                self.becomes(piece, range, &bytes);
            }
            12..17 => system.sync(file).await?,
            17..24 => self.compare(system, Node::live(file), piece, tally).await?,
            24 => self.compare_all(system, Node::live(file), tally).await?,
            25 => {
                let range = self.choice.range(PIECE_BYTES);
                let how = Allocate::Zero { keep_size: false };
                system.allocate(file, how, at + range.start as u64, range.len() as u64).await?;
                let zeroes = vec![0; range.len()];
                self.becomes(piece, range, &zeroes);
            }
            26 => {
                let range = self.choice.range(PIECE_BYTES);
                system.allocate(file, Allocate::Punch, at + range.start as u64, range.len() as u64).await?;
                // Nothing becomes longer.
                let piece = &mut self.pieces[piece];
                let end = piece.len().min(range.end);
                piece[range.start.min(end)..end].fill(0);
            }
            27 => {
                let range = self.choice.range(PIECE_BYTES);
                let how = Allocate::Reserve { keep_size: true };
                system.allocate(file, how, at + range.start as u64, range.len() as u64).await?;
            }
            28 | 29 => self.copy(system, piece).await?,
            30 if self.choice.below(2) == 0 => self.clone_all(system, tally).await?,
            30 => self.copy_all(system, tally).await?,
            31 => self.snapshot(system, tally).await?,
            32 => {
                let name = format!("user.{}", self.number);
                let value = content(&mut self.choice, 3000);
                system.set_xattr(file, name.as_bytes(), &value, XattrMode::Set, false).await?;
                if *system.xattr(Node::live(file), name.as_bytes()).await? != value[..] {
                    return Err(format!("the attribute {name} has another value").into());
                }
            }
            33 => {
                let mode = Some(0o600 + self.choice.below(0o100) as u32);
                system.set_attributes(file, &AttributeChange { mode, ..AttributeChange::default() }).await?;
            }
            _ => self.step_own(system, tally).await?,
        }
        Ok(())
    }

    fn becomes(&mut self, piece: usize, range: std::ops::Range<usize>, bytes: &[u8]) {
        let piece = &mut self.pieces[piece];
        piece.resize(piece.len().max(range.end), 0);
        piece[range].copy_from_slice(bytes);
    }

    /// What is read there is what was written; beyond what was written come zeroes, or the end.
    async fn compare(&self, system: &FileSystem, node: Node, piece: usize, tally: &Tally) -> Outcome<()> {
        let mut found = vec![0xAA; PIECE_BYTES];
        let count = system.read(node, self.offset(piece), &mut found).await?;
        found[count..].fill(0);
        self.expect(piece, &found, tally)
    }

    fn expect(&self, piece: usize, found: &[u8], tally: &Tally) -> Outcome<()> {
        let mut expected = self.pieces[piece].clone();
        expected.resize(PIECE_BYTES, 0);
        differ(&expected, found).map_err(|words| format!("piece {piece} at {}: {words}", self.offset(piece)))?;
        tally.compared_bytes.fetch_add(PIECE_BYTES as u64, Ordering::Relaxed);
        Ok(())
    }

    async fn compare_all(&self, system: &FileSystem, node: Node, tally: &Tally) -> Outcome<()> {
        let mut found = vec![0xAA; (PIECES * WRITERS) as usize * PIECE_BYTES];
        let count = system.read(node, 0, &mut found).await?;
        let written = (0..PIECES as usize).filter(|piece| !self.pieces[*piece].is_empty());
        let end = written.map(|piece| self.offset(piece) + self.pieces[piece].len() as u64).max().unwrap_or(0);
        if end > count as u64 {
            return Err(format!("the file has {count} bytes; this thread alone wrote as far as {end}").into());
        }
        found[count..].fill(0);
        for piece in 0..PIECES as usize {
            let at = self.offset(piece) as usize;
            self.expect(piece, &found[at..at + PIECE_BYTES], tally)?;
        }
        Ok(())
    }

    /// Shares a piece, or a part of it, with another.
    async fn copy(&mut self, system: &FileSystem, from: usize) -> Outcome<()> {
        let to = self.choice.below(PIECES) as usize;
        let length = self.pieces[from].len();
        if to == from || length == 0 {
            return Ok(());
        }
        let range = self.choice.range(length);
        let bytes = self.pieces[from][range.clone()].to_vec();
        let (mut done, all) = (0, bytes.len() as u64);
        while done < all {
            let (source, target) = (self.offset(from) + range.start as u64, self.offset(to) + range.start as u64);
            let node = Node::live(self.shared);
            let copied = system.copy_range(node, source + done, self.shared, target + done, all - done).await?;
            if copied == 0 {
                return Err(format!("{done} bytes of {all} were copied from piece {from}, at {source}").into());
            }
            done += copied;
        }
        self.becomes(to, range, &bytes);
        Ok(())
    }

    /// A clone of all files has what this thread wrote, and goes its own way.
    async fn clone_all(&mut self, system: &FileSystem, tally: &Tally) -> Outcome<()> {
        self.made += 1;
        let name = format!("clone-{}-{}", self.number, self.made).into_bytes();
        let directory = system.lookup(Node::live(FileId::ROOT), DIRECTORY).await?.0;
        let clone = system.clone_tree(directory, FileId::ROOT, &name).await?.file;
        let file = system.lookup(Node::live(clone), &shared_name(self.number / WRITERS)).await?.0.file;
        self.compare_all(system, Node::live(file), tally).await?;
        let bytes = content(&mut self.choice, PIECE_BYTES);
        system.write(file, self.offset(0), &bytes, false).await?;
        self.compare(system, Node::live(self.shared), 0, tally).await?;
        let mut found = vec![0xAA; PIECE_BYTES];
        let count = system.read(Node::live(file), self.offset(0), &mut found).await?;
        differ(&bytes, &found[..count]).map_err(|words| format!("what was written into a clone: {words}"))?;
        system.batch_remove(FileId::ROOT, &name).await?;
        Ok(())
    }

    /// So has a copy that shares chunks, for as long as it takes.
    async fn copy_all(&mut self, system: &FileSystem, tally: &Tally) -> Outcome<()> {
        self.made += 1;
        let name = format!("copy-{}-{}", self.number, self.made).into_bytes();
        let file = system.create_file(FileId::ROOT, &name, &new()).await?.file;
        let (mut done, size) = (0, system.attributes(Node::live(self.shared)).await?.size);
        while done < size {
            let copied = system.copy_range(Node::live(self.shared), done, file, done, size - done).await?;
            if copied == 0 {
                return Err(format!("{done} bytes of {size} were copied").into());
            }
            done += copied;
        }
        self.compare_all(system, Node::live(file), tally).await?;
        system.remove_file(FileId::ROOT, &name).await?;
        Ok(())
    }

    async fn snapshot(&mut self, system: &FileSystem, tally: &Tally) -> Outcome<()> {
        self.made += 1;
        let name = format!("snapshot-{}-{}", self.number, self.made);
        let view = system.snapshot(&name).await?.view;
        self.compare_all(system, Node { view, file: self.shared }, tally).await?;
        system.delete_snapshot(&name).await?;
        Ok(())
    }

    /// The thread's own file comes, is written, cut, replaced by another and removed.
    async fn step_own(&mut self, system: &FileSystem, tally: &Tally) -> Outcome<()> {
        let name = self.own_name();
        let Some(mut bytes) = self.own.take() else {
            system.create_file(FileId::ROOT, &name, &new()).await?;
            self.own = Some(Vec::new());
            return Ok(());
        };
        let file = system.lookup(Node::live(FileId::ROOT), &name).await?.0.file;
        match self.choice.below(8) {
            0 => {
                system.remove_file(FileId::ROOT, &name).await?;
                match system.lookup(Node::live(FileId::ROOT), &name).await {
                    Err(FileError::NoEntry) => return Ok(()),
                    other => return Err(format!("a name that was removed: {other:?}").into()),
                }
            }
            1 => {
                let size = self.choice.below(OWN_BYTES_MAX);
                system
                    .set_attributes(file, &AttributeChange { size: Some(size), ..AttributeChange::default() })
                    .await?;
                bytes.resize(size as usize, 0);
            }
            2 => {
                let other = [&name[..], b".new"].concat();
                let file = system.create_file(FileId::ROOT, &other, &new()).await?.file;
                let length = 1 + self.choice.below(OWN_BYTES_MAX) as usize;
                bytes = content(&mut self.choice, length);
                system.write(file, 0, &bytes, false).await?;
                system.rename(FileId::ROOT, &other, FileId::ROOT, &name, RenameMode::Replace).await?;
            }
            3 => system.sync(file).await?,
            _ => {
                let at = self.choice.below(OWN_BYTES_MAX) as usize;
                let length = 1 + self.choice.below(30_000) as usize;
                let written = content(&mut self.choice, length);
                system.write(file, at as u64, &written, false).await?;
                bytes.resize(bytes.len().max(at + length), 0);
                bytes[at..at + length].copy_from_slice(&written);
            }
        }
        self.own = Some(bytes);
        self.compare_own(system, tally).await
    }

    async fn compare_own(&self, system: &FileSystem, tally: &Tally) -> Outcome<()> {
        let found = system.lookup(Node::live(FileId::ROOT), &self.own_name()).await;
        let Some(expected) = &self.own else {
            return match found {
                Err(FileError::NoEntry) => Ok(()),
                other => Err(format!("a name that was removed: {other:?}").into()),
            };
        };
        let node = found?.0;
        let size = system.attributes(node).await?.size;
        if size != expected.len() as u64 {
            return Err(
                format!("{} of {}: {size} bytes instead of {}", self.number, self.words(), expected.len()).into()
            );
        }
        let mut bytes = vec![0xAA; expected.len()];
        let count = system.read(node, 0, &mut bytes).await?;
        differ(expected, &bytes[..count]).map_err(|words| format!("the own file of {}: {words}", self.words()))?;
        tally.compared_bytes.fetch_add(size, Ordering::Relaxed);
        Ok(())
    }
}

/// Where two differ, and what is there.
fn differ(expected: &[u8], found: &[u8]) -> Result<(), String> {
    if expected == found {
        return Ok(());
    }
    if expected.len() != found.len() {
        return Err(format!("{} bytes were read instead of {}", found.len(), expected.len()));
    }
    let differs: Vec<usize> = (0..found.len()).filter(|at| expected[*at] != found[*at]).collect();
    let (first, last) = (differs[0], differs[differs.len() - 1]);
    let zeroes = differs.iter().filter(|at| found[**at] == 0).count();
    Err(format!("{} bytes differ, from {first} to {last}; {zeroes} of them are zero", differs.len()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Until, stress};

    #[test]
    fn each_thread_sees_what_it_wrote() {
        let folder = std::env::temp_dir().join(format!("hydrafs-threads-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let until = Until { operations: 400, time: Duration::MAX / 2 };
        let tally = stress(&folder, 1, &until).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        tally.expect_all().unwrap();
    }
}
