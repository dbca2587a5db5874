//! Where to cut? What several ways of cutting store of some trees, one after the other, as versions come: the rule of the store, smaller and
//! larger chunks, and two sizes (Kruus, Ungureanu, Dubnicki, *Bimodal Content Defined Chunking for Backup Streams*, FAST 2010, breaking apart): a stream is
//! cut large, and a large chunk that is new is cut small where a neighbour of it is known, for there a change begins or ends.
//!
//! What a way costs beside content is counted as so many bytes for each chunk and each extent.
//!
//! What looking for cuts takes of one core is told of ways of one size: what lies before the least length is not looked at.
//!
//! Not here: how fast all else is.

use std::collections::{BTreeMap, HashSet};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::hash::DomainKey;
use base::id::ChunkAddress;
use platform::Clock;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// A chunk's header, its line in the directory of its pack, and its entry in the index; and an extent in a tree.
const CHUNK_BYTES: u64 = 56 + 56 + 64;
const EXTENT_BYTES: u64 = 48;
const KEY: DomainKey = DomainKey([1; 32]);
const LEVEL: i32 = 1;

/// The least length of chunks, and the average that FastCDC is told; four times that is the most.
#[derive(Clone, Copy)]
struct Size(usize, usize);

/// As FastCDC is used most often: the least is a quarter of the average, and cuts are near the average.
const fn quarter(average: usize) -> Size {
    Size(average / 4, average)
}

/// A way of cutting.
#[derive(Clone, Copy)]
enum Way {
    /// One size.
    One(Size),
    /// A large and a small one.
    Two(Size, Size),
    /// As long as they are, at their places.
    Blocks(usize),
}

const WAYS: [(&str, Way); 12] = [
    ("16 KiB", Way::One(quarter(16 << 10))),
    ("32 KiB", Way::One(quarter(32 << 10))),
    ("64 KiB", Way::One(quarter(64 << 10))),
    ("128 KiB", Way::One(quarter(128 << 10))),
    ("256 KiB", Way::One(quarter(256 << 10))),
    ("64 KiB, at least 32", Way::One(Size(32 << 10, 64 << 10))),
    ("32 KiB, at least 32", Way::One(Size(32 << 10, 32 << 10))),
    ("64 KiB, at least 64", Way::One(Size(64 << 10, 64 << 10))),
    ("128 KiB, at least 128", Way::One(Size(128 << 10, 128 << 10))),
    ("128 and 16 KiB", Way::Two(quarter(128 << 10), quarter(16 << 10))),
    ("256 and 32 KiB", Way::Two(quarter(256 << 10), quarter(32 << 10))),
    ("blocks of 64 KiB", Way::Blocks(64 << 10)),
];

/// What a way stores.
struct Stored {
    way: Way,
    compressor: zstd::bulk::Compressor<'static>,
    known: HashSet<ChunkAddress>,
    /// New chunks, and their bytes before and after compression.
    chunks: u64,
    raw_bytes: u64,
    bytes: u64,
    extents: u64,
    clock: Arc<dyn Clock>,
    /// Of one core, to find the cuts.
    cutting: Duration,
}

pub(crate) fn run(trees: &[PathBuf]) -> Outcome<()> {
    let mut stored = BTreeMap::new();
    let clock = platform::real::platform().clock;
    for (number, (_, way)) in WAYS.iter().enumerate() {
        let compressor = zstd::bulk::Compressor::new(LEVEL)?;
        let known = HashSet::new();
        let empty = Stored {
            way: *way,
            compressor,
            known,
            chunks: 0,
            raw_bytes: 0,
            bytes: 0,
            extents: 0,
            clock: Arc::clone(&clock),
            cutting: Duration::ZERO,
        };
        stored.insert(number, empty);
    }
    for tree in trees {
        let mut files = Vec::new();
        list(tree, &mut files)?;
        let mut total = 0;
        for file in files {
            // Inputs are the outside world.
            #[allow(clippy::disallowed_methods)]
            let content = fs::read(&file)?;
            total += content.len() as u64;
            stored.values_mut().try_for_each(|stored| stored.file(&content))?;
        }
        for (number, Stored { chunks, raw_bytes, bytes, extents, cutting, .. }) in &stored {
            let all = bytes + chunks * CHUNK_BYTES + extents * EXTENT_BYTES;
            let result = serde_json::json!({
                "experiment": "cuts", "way": WAYS[*number].0, "up_to": tree, "tree_bytes": total, "chunks": chunks, "extents": extents,
                "new_bytes": raw_bytes, "compressed_bytes": bytes, "stored_bytes": all,
                "cutting_seconds": cutting.as_secs_f64(),
            });
            println!("{result}");
        }
    }
    Ok(())
}

/// The regular files of a tree, by name.
fn list(path: &Path, files: &mut Vec<PathBuf>) -> Outcome<()> {
    let kind = fs::symlink_metadata(path)?.file_type();
    if kind.is_file() {
        files.push(path.to_owned());
    } else if kind.is_dir() {
        let mut names: Vec<PathBuf> = fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<Outcome<_>>()?;
        names.sort();
        names.iter().try_for_each(|name| list(name, files))?;
    }
    Ok(())
}

impl Size {
    fn cut<'a>(self, bytes: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let Size(least, average) = self;
        let cuts = fastcdc::v2020::FastCDC::new(bytes, least, average, 4 * average);
        cuts.map(|cut| &bytes[cut.offset..][..cut.length])
    }
}

impl Stored {
    fn file(&mut self, content: &[u8]) -> Outcome<()> {
        match self.way {
            Way::One(size) => {
                let started = self.clock.elapsed();
                let cuts: Vec<&[u8]> = size.cut(content).collect();
                self.cutting += self.clock.elapsed() - started;
                cuts.into_iter().try_for_each(|chunk| self.chunk(chunk))
            }
            Way::Blocks(bytes) => content.chunks(bytes).try_for_each(|chunk| self.chunk(chunk)),
            Way::Two(large, small) => {
                let cuts: Vec<&[u8]> = large.cut(content).collect();
                let known: Vec<bool> = cuts.iter().map(|chunk| self.known.contains(&KEY.address(chunk))).collect();
                let is_known = |number: usize| known.get(number).copied().unwrap_or(false);
                for (number, chunk) in cuts.into_iter().enumerate() {
                    let is_edge = (number > 0 && is_known(number - 1)) || is_known(number + 1);
                    match !is_known(number) && is_edge {
                        true => small.cut(chunk).try_for_each(|chunk| self.chunk(chunk))?,
                        false => self.chunk(chunk)?,
                    }
                }
                Ok(())
            }
        }
    }

    fn chunk(&mut self, chunk: &[u8]) -> Outcome<()> {
        self.extents += 1;
        if self.known.insert(KEY.address(chunk)) {
            self.chunks += 1;
            self.raw_bytes += chunk.len() as u64;
            self.bytes += self.compressor.compress(chunk)?.len().min(chunk.len()) as u64;
        }
        Ok(())
    }
}
