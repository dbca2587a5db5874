//! Check: is every byte of the store what it should be?

use crate::store::Store;

/// How thorough a check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Headers, directories, index, journal.
    Shallow,
    /// Every chunk's content too.
    Deep,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its permanent number, such as `HF0001`.
    pub code: &'static str,
    /// The structure, in words.
    pub what: &'static str,
    /// The file.
    pub path: String,
    /// Bytes from the start of the file.
    pub offset: u64,
    /// What should be there.
    pub expected: String,
    /// What is there.
    pub found: String,
    /// Whether the store mends it by itself, or can do without it.
    pub is_repairable: bool,
}

/// What a check came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Everything that is wrong.
    pub problems: Vec<Problem>,
    /// Superblock slots read.
    pub superblocks: u64,
    /// Packs read.
    pub packs: u64,
    /// Chunks found in them.
    pub chunks: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Entries of the index compared.
    pub index_entries: u64,
    /// Journal frames read.
    pub frames: u64,
}

impl Store {
    /// Not yet.
    pub async fn check(&self, _depth: Depth, _progress: &(dyn Fn(u64, u64) + Sync)) -> CheckReport {
        CheckReport::default()
    }
}
