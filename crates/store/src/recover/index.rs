//! The index at an opening: opened where the superblock says that it is, or made empty, there or on another disk.
//!
//! X-2 makes it easy: what is in it can be had of the packs again. So no state of its file and no failure of its disk keeps a node from opening, as
//! long as some disk takes a new one. Which disk has it then is the pool's to say ([`Pool::index_disk`](crate::pool::Pool::index_disk)).
//!
//! Not here: reading the packs that it does not cover (`recover`), making it again while the store works (`reindex`).

use std::collections::BTreeMap;

use platform::disk::DiskErrorKind;

use super::{Listed, Recovery};
use crate::failure::{StoreError, corrupt};
use crate::format::{INDEX_FILE, INDEX_NEW};
use crate::index::{IndexFile, Opened};
use crate::options::Options;
use crate::pack::scan;

impl Recovery<'_> {
    /// Opens the index, or makes an empty one, on another disk where its own takes none. `is_there`: its disk is; packs have numbers up to
    /// `pack_max`.
    pub(super) async fn open_index(
        &mut self,
        options: &Options,
        found: &BTreeMap<u64, Listed>,
        (mut is_there, pack_max): (bool, u64),
    ) -> Result<Opened, StoreError> {
        let mut untried = self.pool.good();
        loop {
            let error = match self.open_index_here(options, found, (is_there, pack_max)).await {
                Err(StoreError::Disk(error)) => error,
                opened => return opened,
            };
            let error = self.pool.failed(self.pool.index_disk(), error, self.counters);
            untried = untried.without(self.pool.index_disk()).both(self.pool.good());
            let Some(other) = untried.both(self.pool.takers()).first().or(untried.first()) else { return Err(error) };
            self.pool.set_index_disk(other);
            is_there = false;
        }
    }

    /// Opens the index where it is, or makes an empty one where there is none that works.
    async fn open_index_here(
        &mut self,
        options: &Options,
        found: &BTreeMap<u64, Listed>,
        (is_there, pack_max): (bool, u64),
    ) -> Result<Opened, StoreError> {
        let disk = &self.pool.for_index().disk;
        let opened = match is_there {
            true => IndexFile::open(disk, options.index_pages_bytes(), self.pool.node_identity).and_then(|opened| {
                match opened.packs.keys().next_back() {
                    Some(last) if *last > pack_max => {
                        let path = format!("{}/{INDEX_FILE}", disk.path());
                        Err(corrupt("the chunk index", &path, 0, format!("packs up to {pack_max}"), last))
                    }
                    _ => Ok(opened),
                }
            }),
            false => {
                let cause = "the disk that has the index is missing";
                Err(StoreError::ReadOnly { cause: cause.into() })
            }
        };
        let covered = opened.as_ref().map(|opened| opened.packs.clone()).unwrap_or_default();
        for (pack, listed) in found.iter().filter(|(pack, _)| !covered.contains_key(pack)) {
            for disk in listed.whole.iter() {
                // Whatever else there is to say is said when the pack is read.
                if let Err(error @ StoreError::Refused { .. }) = scan::refuse_newer(&self.pool.disks[disk], *pack).await
                {
                    return Err(error);
                }
            }
            for (name, disk) in &listed.fragments {
                if let Err(error @ StoreError::Refused { .. }) = self.fragment_header(name, *disk).await {
                    return Err(error);
                }
            }
        }
        // One that was not complete when its maker died.
        let _ = disk.remove(INDEX_NEW);
        opened.or_else(|error| {
            let is_first =
                found.is_empty() && matches!(&error, StoreError::Disk(error) if error.kind == DiskErrorKind::Absent);
            if !is_first {
                // On another disk: why not on the first.
                self.report.index_made_again.get_or_insert_with(|| error.to_string());
            }
            IndexFile::make_again(disk, options.index_pages_bytes(), self.pool.node_identity)
        })
    }
}
