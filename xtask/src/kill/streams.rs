//! Loads on one file's bytes: appends, overwrites of blocks, and replacement by rename.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::content::{self, Key};
use super::load::{Load, Round, Verified};

/// What the three have in common.
#[derive(Debug)]
struct Stream {
    round: Round,
    thread: u64,
    path: PathBuf,
    operations: u64,
}

impl Stream {
    fn new(round: &Round, thread: u64, name: &str) -> Stream {
        Stream { round: round.clone(), thread, path: round.folder.join(name), operations: 0 }
    }

    fn end(&self, outcome: io::Result<()>) -> Option<String> {
        self.round.judge(&outcome.expect_err("a load ends with an error"))
    }

    fn key(&self, number: u64) -> Key {
        Key::new(self.round.number, self.thread, number)
    }

    fn read(&self) -> Result<Vec<u8>> {
        fs::read(&self.path).with_context(|| format!("cannot read {}", self.path.display()))
    }
}

/// Appends of any length, now and then an fsync. What is left is a prefix, not shorter than the last fsync.
#[derive(Debug)]
pub(super) struct Append {
    stream: Stream,
    attempted: u64,
    synced: u64,
}

impl Append {
    pub(super) fn new(round: &Round, thread: u64) -> Result<Append> {
        let stream = Stream::new(round, thread, "append");
        File::create_new(&stream.path)?;
        Ok(Append { stream, attempted: 0, synced: 0 })
    }

    fn work(&mut self) -> io::Result<()> {
        let mut random = self.stream.round.random(self.stream.thread);
        let mut file = OpenOptions::new().append(true).open(&self.stream.path)?;
        loop {
            let count = random.between(1, 20_000);
            let bytes = content::make(self.stream.key(0), self.attempted, count as usize);
            self.attempted += count;
            file.write_all(&bytes)?;
            self.stream.operations += 1;
            self.stream.round.done(self.stream.thread, self.attempted);
            if random.one_in(20) {
                file.sync_data()?;
                self.synced = self.attempted;
            }
            if self.attempted > 256 << 20 {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        }
    }
}

impl Load for Append {
    fn name(&self) -> &str {
        "append"
    }

    fn run(&mut self) -> Option<String> {
        let outcome = self.work();
        self.stream.end(outcome)
    }

    fn done(&self) -> u64 {
        self.stream.operations
    }

    fn verify(&self) -> Result<Verified> {
        let bytes = self.stream.read()?;
        let (found, synced) = (bytes.len() as u64, self.synced.max(self.stream.round.covered(self.stream.thread)));
        if found < synced || found > self.attempted {
            bail!("it has {found} bytes; {synced} were synced, {} written", self.attempted);
        }
        content::check(self.stream.key(0), 0, &bytes)?;
        Ok(Verified { synced: u64::from(synced > 0), present: u64::from(found > 0), bytes: found })
    }
}

/// Blocks written again and again at random, now and then an fsync. Each block is whole and not older than the last fsync.
#[derive(Debug)]
pub(super) struct Overwrite {
    stream: Stream,
    /// The block of each version, from version 0 on: first all blocks in order.
    blocks: Vec<u64>,
    /// Versions up to here are synced.
    synced: u64,
}

const BLOCK: usize = 4096;
const BLOCKS: u64 = 400;

impl Overwrite {
    pub(super) fn new(round: &Round, thread: u64) -> Result<Overwrite> {
        let stream = Stream::new(round, thread, "overwrite");
        let file = File::create_new(&stream.path)?;
        for block in 0..BLOCKS {
            file.write_all_at(&content::make(stream.key(block), 0, BLOCK), block * BLOCK as u64)?;
        }
        file.sync_all()?;
        Ok(Overwrite { stream, blocks: (0..BLOCKS).collect(), synced: BLOCKS })
    }

    fn work(&mut self) -> io::Result<()> {
        let mut random = self.stream.round.random(self.stream.thread);
        let file = OpenOptions::new().write(true).open(&self.stream.path)?;
        loop {
            let (version, block) = (self.blocks.len() as u64, random.below(BLOCKS));
            self.blocks.push(block);
            file.write_all_at(&content::make(self.stream.key(version), 0, BLOCK), block * BLOCK as u64)?;
            self.stream.operations += 1;
            self.stream.round.done(self.stream.thread, version + 1);
            if random.one_in(30) {
                file.sync_data()?;
                self.synced = version + 1;
            }
        }
    }
}

impl Load for Overwrite {
    fn name(&self) -> &str {
        "overwrite"
    }

    fn run(&mut self) -> Option<String> {
        let outcome = self.work();
        self.stream.end(outcome)
    }

    fn done(&self) -> u64 {
        self.stream.operations
    }

    fn verify(&self) -> Result<Verified> {
        let bytes = self.stream.read()?;
        if bytes.len() as u64 != BLOCKS * BLOCK as u64 {
            bail!("it has {} bytes; {} were synced", bytes.len(), BLOCKS * BLOCK as u64);
        }
        let synced = self.synced.max(self.stream.round.covered(self.stream.thread));
        let mut oldest = vec![0; BLOCKS as usize];
        for (version, block) in self.blocks.iter().enumerate().take(synced as usize) {
            oldest[*block as usize] = version as u64;
        }
        let mut present = 0;
        for (block, bytes) in (0..BLOCKS).zip(bytes.chunks(BLOCK)) {
            let key = content::owner(bytes).expect("a whole block");
            let version = key.0.wrapping_sub(self.stream.key(0).0);
            let is_ours = self.blocks.get(version as usize) == Some(&block);
            if !is_ours {
                content::check(self.stream.key(oldest[block as usize]), 0, bytes)
                    .with_context(|| format!("block {block}"))?;
            }
            content::check(key, 0, bytes).with_context(|| format!("block {block}"))?;
            if version < oldest[block as usize] {
                bail!("block {block} is of version {version}; version {} was synced", oldest[block as usize]);
            }
            present = present.max(version + 1);
        }
        Ok(Verified { synced: synced - BLOCKS, present: present.saturating_sub(BLOCKS), bytes: bytes.len() as u64 })
    }
}

/// A file replaced by rename, mostly without an fsync. It is always one whole version, not older than the last fsync (V-4).
#[derive(Debug)]
pub(super) struct Replace {
    stream: Stream,
    attempted: u64,
    synced: u64,
}

impl Replace {
    pub(super) fn new(round: &Round, thread: u64) -> Result<Replace> {
        let stream = Stream::new(round, thread, "replace");
        fs::write(&stream.path, content::make(stream.key(0), 0, size(0)))?;
        Ok(Replace { stream, attempted: 0, synced: 0 })
    }

    fn work(&mut self) -> io::Result<()> {
        let mut random = self.stream.round.random(self.stream.thread);
        let new = self.stream.path.with_extension("new");
        loop {
            let version = self.attempted + 1;
            self.attempted = version;
            let mut file = File::create(&new)?;
            file.write_all(&content::make(self.stream.key(version), 0, size(version)))?;
            fs::rename(&new, &self.stream.path)?;
            self.stream.operations += 1;
            self.stream.round.done(self.stream.thread, version);
            if random.one_in(30) {
                file.sync_all()?;
                self.synced = version;
            }
        }
    }
}

/// Bytes of a version.
fn size(version: u64) -> usize {
    64 + (version * 7919 % 50_000) as usize
}

impl Load for Replace {
    fn name(&self) -> &str {
        "replace"
    }

    fn run(&mut self) -> Option<String> {
        let outcome = self.work();
        self.stream.end(outcome)
    }

    fn done(&self) -> u64 {
        self.stream.operations
    }

    fn verify(&self) -> Result<Verified> {
        let bytes = self.stream.read()?;
        let key = content::owner(&bytes).with_context(|| format!("it has {} bytes: no version", bytes.len()))?;
        content::check(key, 0, &bytes)?;
        let version = key.0.wrapping_sub(self.stream.key(0).0);
        let synced = self.synced.max(self.stream.round.covered(self.stream.thread));
        if version < synced || version > self.attempted {
            bail!("it is version {version}; {synced} was synced, {} written", self.attempted);
        }
        if bytes.len() != size(version) {
            bail!(
                "version {version} has {} bytes of {}: renamed before its data was there",
                bytes.len(),
                size(version)
            );
        }
        Ok(Verified { synced, present: version, bytes: bytes.len() as u64 })
    }
}
