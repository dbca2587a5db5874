//! Sets of files with a content that is known from their number.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::random::Random;

const FILES_PER_DIRECTORY: u64 = 200;
/// What was copied is compared in one file of so many.
const CHECKED_ONE_IN: usize = 16;

/// In which order files are taken, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// As they are named, directory by directory.
    Listed,
    Random,
}

impl Order {
    pub(super) fn words(self) -> &'static str {
        match self {
            Order::Listed => "in order",
            Order::Random => "at random",
        }
    }

    /// Numbers of all files in this order; another one for each seed.
    fn of(self, count: u64, seed: u64) -> Vec<u64> {
        let mut numbers: Vec<u64> = (0..count).collect();
        if self == Order::Random {
            let mut random = Random::new(seed);
            for last in (1..numbers.len()).rev() {
                numbers.swap(last, random.below(last as u64 + 1) as usize);
            }
        }
        numbers
    }
}

/// Files of one size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Set {
    pub(super) files: u64,
    pub(super) file_bytes: u64,
    pub(super) order: Order,
}

impl Set {
    /// Makes the files, or writes over those that are there, one after the other.
    pub(super) fn write(&self, dir: &Path, content: u64) -> Result<()> {
        for number in (0..self.files).step_by(FILES_PER_DIRECTORY as usize) {
            fs::create_dir_all(directory(dir, number))?;
        }
        let mut bytes = self.buffer()?;
        for number in self.order.of(self.files, content) {
            self.fill(&mut bytes, content, number);
            let path = path(dir, number);
            let file = File::options().write(true).create(true).truncate(false).open(&path);
            file.and_then(|mut file| file.write_all(&bytes))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    /// Reads all files, one after the other.
    pub(super) fn read(&self, dir: &Path) -> Result<()> {
        // Another order than that of any writing.
        for number in self.order.of(self.files, u64::MAX) {
            let path = path(dir, number);
            let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            if bytes.len() as u64 != self.file_bytes {
                bail!("{} has {} bytes, expected {}", path.display(), bytes.len(), self.file_bytes);
            }
        }
        Ok(())
    }

    /// That all files are there, and what some of them hold.
    pub(super) fn check(&self, dir: &Path, content: u64) -> Result<()> {
        let mut bytes = self.buffer()?;
        for number in 0..self.files {
            let path = path(dir, number);
            let length = fs::metadata(&path).with_context(|| format!("cannot look at {}", path.display()))?.len();
            if length != self.file_bytes {
                bail!("{} has {length} bytes, expected {}", path.display(), self.file_bytes);
            }
            if number.is_multiple_of(CHECKED_ONE_IN as u64) {
                self.fill(&mut bytes, content, number);
                if fs::read(&path)? != bytes {
                    bail!("{} holds something else than was written", path.display());
                }
            }
        }
        Ok(())
    }

    /// No file has a block in common with another, of any set: what is stored once would not be written.
    fn fill(&self, bytes: &mut [u8], content: u64, number: u64) {
        let set = self.file_bytes * 16 + content * 2 + u64::from(self.order == Order::Random);
        Random::new(set << 32 | number).fill(bytes);
    }

    fn buffer(&self) -> Result<Vec<u8>> {
        Ok(vec![0; usize::try_from(self.file_bytes)?])
    }
}

fn directory(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("d{}", number / FILES_PER_DIRECTORY))
}

fn path(dir: &Path, number: u64) -> PathBuf {
    directory(dir, number).join(format!("file-{number}"))
}

#[cfg(test)]
mod tests {
    use super::{Order, Set};

    #[test]
    fn an_order_has_each_file_once() {
        assert_eq!(Order::Listed.of(4, 9), [0, 1, 2, 3]);
        let mut random = Order::Random.of(1000, 1);
        assert_ne!(random, Order::Random.of(1000, 2));
        assert_ne!(random, Order::Listed.of(1000, 1));
        random.sort_unstable();
        assert_eq!(random, Order::Listed.of(1000, 1));
    }

    #[test]
    fn a_set_that_is_not_whole_is_noticed() {
        let dir = std::env::temp_dir().join(format!("hydrafs-set-{}", std::process::id()));
        let set = Set { files: 300, file_bytes: 100, order: Order::Random };
        set.write(&dir, 1).expect("writes");
        set.read(&dir).expect("all there");
        set.check(&dir, 1).expect("as written");
        set.check(&dir, 2).expect_err("another content");
        set.write(&dir, 2).expect("writes over it");
        set.check(&dir, 2).expect("as written");
        std::fs::write(dir.join("d1/file-299"), "short").expect("writes");
        set.read(&dir).expect_err("one is short");
        std::fs::remove_file(dir.join("d1/file-299")).expect("removes");
        set.check(&dir, 2).expect_err("one is missing");
        std::fs::remove_dir_all(&dir).expect("ours");
    }
}
