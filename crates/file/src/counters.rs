//! What the file layer counts, declared once: name, help, value.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// The sum so far.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($name:ident: $help:literal),+ $(,)?) => {
        /// Counters of the file layer.
        #[derive(Debug, Default)]
        pub struct Counters {
            $(#[doc = $help] pub $name: Counter,)+
        }

        impl Counters {
            /// Name, help and value of each.
            #[must_use]
            pub fn list(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((concat!("file_", stringify!($name)), $help, self.$name.value())),+]
            }
        }
    };
}

counters! {
    lookups: "look-ups of names",
    inode_loads: "inodes loaded from the catalog",
    reads: "read calls",
    read_bytes: "bytes read",
    writes: "write calls",
    write_bytes: "bytes written",
    record_waits: "changes that waited for a commit because the journal was far ahead",
    write_waits: "writes that waited for room in the write buffer",
    flushes: "flushes of batches of files to the store",
    flushes_overtaken: "files that a sync or a cut took back out of a running batch",
    flushed_bytes: "bytes moved from the write buffer to chunks",
    inlined_bytes: "bytes that an fsync put into the journal",
    flush_failures: "flushes that failed; their data stays in memory",
    syncs: "fsync calls",
    namespace_changes: "creates, links, removes and renames",
    commits: "commits of the tree",
    commit_inodes: "inodes written by commits",
    commit_failures: "commits that failed; their records stay in the journal",
    commit_micros: "microseconds spent in commits",
}
