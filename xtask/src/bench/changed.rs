//! What a small change of a large file costs: an overwrite, an insert, an append, one after the other, of 4 KiB each.
//!
//! Ours is changed in place, through the mount; an insert moves what is behind it, as every program has to. The others look at the same
//! changed file again, whole. Blocks of a fixed size are counted and not stored: each that was not there before costs its size.
//!
//! Not here: how long it takes (`dedup` times ingests).

use std::collections::HashSet;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};

use super::dedup::{prepare, read, take};
use super::{Line, Run, Side, Unit};
use crate::random::Random;
use crate::tree;

const CHANGE_BYTES: usize = 4096;
/// As large as our chunks are on average.
const BLOCK_BYTES: usize = 64 << 10;

const TERMS: &str = "synced; stored bytes that came, of data and of what leads to it";
const fn line(name: &'static str) -> Line {
    Line { name, unit: Unit::Kilobytes, terms: TERMS }
}
const CHUNKS: &str = "synced; chunks that came";
const fn chunks(name: &'static str) -> Line {
    Line { name, unit: Unit::Count, terms: CHUNKS }
}

/// What one change costs: bytes, chunks of content, nodes of trees.
type Lines = [Line; 3];
const OVERWRITE: Lines = [
    line("4 KiB of a large file overwritten"),
    chunks("4 KiB of a large file overwritten: content"),
    chunks("4 KiB of a large file overwritten: trees"),
];
const INSERT: Lines = [
    line("4 KiB inserted in its middle"),
    chunks("4 KiB inserted in its middle: content"),
    chunks("4 KiB inserted in its middle: trees"),
];
const APPEND: Lines = [line("4 KiB appended"), chunks("4 KiB appended: content"), chunks("4 KiB appended: trees")];

/// All that a side has stored by some moment.
struct Kept {
    bytes: u64,
    /// Chunks of content, where they can be counted from outside, and nodes of trees, where there are such.
    content: Option<u64>,
    trees: Option<u64>,
}

pub(super) fn changes(run: &mut Run<'_>) -> Result<()> {
    let repository = run.dir.join("repository");
    prepare(run, &repository)?;
    let path = run.dir.join("large");
    let (bytes, mut random) = (run.scaled(1000) * 1_000_000, Random::new(11));
    let mut content = vec![0; usize::try_from(bytes)?];
    random.fill(&mut content);
    fs::write(&path, &content)?;
    let middle = content.len() / 2 + 12_345;
    let rest = content.split_off(middle);
    drop(content);
    let mut before = keep(run, &repository, &path, 0)?;
    for (number, [bytes_line, content_line, trees_line]) in (1..).zip([&OVERWRITE, &INSERT, &APPEND]) {
        let mut change = vec![0; CHANGE_BYTES];
        random.fill(&mut change);
        let file = File::options().write(true).open(&path)?;
        match number {
            1 => file.write_all_at(&change, bytes / 3 / 4096 * 4096)?,
            2 => {
                file.write_all_at(&change, middle as u64)?;
                file.write_all_at(&rest, (middle + CHANGE_BYTES) as u64)?;
            }
            _ => file.write_all_at(&change, bytes + CHANGE_BYTES as u64)?,
        }
        file.sync_all()?;
        drop(file);
        let after = keep(run, &repository, &path, number)?;
        run.record(bytes_line, after.bytes.saturating_sub(before.bytes) as f64 / 1e3);
        for (line, before, after) in
            [(content_line, before.content, after.content), (trees_line, before.trees, after.trees)]
        {
            if let (Some(before), Some(after)) = (before, after) {
                run.record(line, after.saturating_sub(before) as f64);
            }
        }
        before = after;
    }
    Ok(())
}

/// Has a side take the file as it is now. Gives all that it has stored by then.
fn keep(run: &mut Run<'_>, repository: &Path, path: &Path, number: u32) -> Result<Kept> {
    match run.side {
        Side::Hydrafs => {
            // Ended cleanly, so that the trees are stored too, and not only in the journal.
            run.sides.volume().unmount()?;
            run.sides.volume().mount()?;
            let status = run.sides.volume().status()?;
            let told = |class: &str, what: &str| {
                status[class][what].as_u64().with_context(|| format!("`status` tells no {what} of {class}"))
            };
            Ok(Kept {
                bytes: told("data", "stored_bytes")? + told("metadata", "stored_bytes")?,
                content: Some(told("data", "chunks")?),
                trees: Some(told("metadata", "chunks")?),
            })
        }
        Side::FixedBlocks => {
            let known = repository.join("blocks");
            let mut blocks: HashSet<u64> = match fs::read(&known) {
                Ok(bytes) => bytes.as_chunks().0.iter().map(|block| u64::from_le_bytes(*block)).collect(),
                Err(_) => HashSet::new(),
            };
            let (mut file, mut block) = (File::open(path)?, vec![0; BLOCK_BYTES]);
            loop {
                let length = fill(&mut file, &mut block)?;
                if length == 0 {
                    break;
                }
                let mut hasher = DefaultHasher::new();
                hasher.write(&block[..length]);
                blocks.insert(hasher.finish());
            }
            let bytes: Vec<u8> = blocks.iter().flat_map(|block| block.to_le_bytes()).collect();
            fs::write(known, bytes)?;
            let content = blocks.len() as u64;
            Ok(Kept { bytes: content * BLOCK_BYTES as u64, content: Some(content), trees: None })
        }
        _ => {
            read(path)?;
            take(run, repository, path, &format!("state-{number}"))?;
            Ok(Kept { bytes: tree::size(repository)?.bytes, content: None, trees: None })
        }
    }
}

/// Reads until the buffer is full, or the file ends.
fn fill(file: &mut File, buffer: &mut [u8]) -> Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..])? {
            0 => break,
            count => length += count,
        }
    }
    Ok(length)
}
