//! The index file against the packs.

use std::collections::{BTreeMap, BTreeSet};

use base::id::ChunkAddress;

use super::{Check, Fingerprint, PROBLEMS_MAX};
use crate::format::{INDEX_FILE, Place};
use crate::pack::{PackNames, PackState};
use crate::remedy::Remedy;

const REMEDY: Option<Remedy> = Some(Remedy::Index);

/// What one walk over the index file finds.
#[derive(Default)]
struct Walk {
    entries: u64,
    rotten: Vec<ChunkAddress>,
    by_pack: BTreeMap<u64, Fingerprint>,
}

impl Check<'_> {
    pub(super) async fn index(&mut self) {
        let store = self.store;
        let path = format!("{}/{INDEX_FILE}", store.pool.for_index().disk.path());
        let mut missing = self.missing().await;
        let known = store.packs.known();
        missing
            .extend(known.iter().filter(|(_, known)| matches!(known.state, PackState::Missing)).map(|(pack, _)| *pack));
        let mut walk = Walk::default();
        let walked = store.packs.index.file().walk(&mut |address, place| {
            walk.entries += 1;
            match place {
                Some(place) => walk.by_pack.entry(place.pack).or_default().add(&address, &place),
                None => walk.rotten.push(address),
            }
        });
        self.report.index_entries = walk.entries;
        if let Err(error) = walked {
            return self.failed("HF0010", path, error, REMEDY);
        }
        for address in walk.rotten {
            let words = (format!("an entry for {address}"), "one whose check does not match");
            self.problem("HF0011", "the index", (path.clone(), 0), words, REMEDY);
        }
        for (pack, fingerprint) in walk.by_pack {
            if !missing.contains(&pack) && self.named.get(&pack) != Some(&fingerprint) {
                self.look_again(pack, &path).await;
            }
        }
    }

    /// Packs that the index covers and no disk had when the store was opened. A damaged index is told of by the walk.
    async fn missing(&mut self) -> BTreeSet<u64> {
        let store = self.store;
        let _rest = store.index_work.lock().await;
        let Ok(mut packs) = store.packs.index.file().packs() else { return BTreeSet::new() };
        let known = store.packs.known();
        packs.retain(|pack, _| !known.contains_key(pack));
        let listed = if packs.is_empty() { Ok(PackNames::default()) } else { store.packs.listed() };
        for (pack, summary) in &packs {
            // What is there of it is taken in by the next opening.
            let (found, remedy) = match &listed {
                Ok(listed) if !listed.has(*pack) => ("no such file on any disk", Some(Remedy::Forget { pack: *pack })),
                Ok(_) => ("some of it, which the store left alone: restart the daemon", None),
                Err(_) => ("no such file on any disk that says what it has", None),
            };
            let words = (format!("a pack with {} chunks", summary.count), found);
            self.problem("HF0009", "a pack", (crate::format::pack_path(*pack), 0), words, remedy);
            self.keep(PROBLEMS_MAX);
        }
        packs.into_keys().collect()
    }

    /// The sums of a pack differ: the store moved meanwhile, or the two do not agree. With the index at rest it shows.
    async fn look_again(&mut self, pack: u64, path: &str) {
        let store = self.store;
        if store.packs.lacks_directory(pack) {
            // There is nothing to compare with, and that was told already.
            return;
        }
        let _rest = store.index_work.lock().await;
        let mut indexed: Vec<(ChunkAddress, Place)> = Vec::new();
        let walked = store.packs.index.file().walk(&mut |address, place| {
            indexed.extend(place.filter(|place| place.pack == pack).map(|place| (address, place)));
        });
        if walked.is_err() || indexed.is_empty() {
            return;
        }
        let at = (path.to_owned(), 0);
        let Some(known) = store.packs.known().remove(&pack) else {
            let words = (format!("pack {pack:016x}"), format!("{} entries of a pack that is not there", indexed.len()));
            return self.problem("HF0012", "the index", at, words, REMEDY);
        };
        // Without its directory there is nothing to compare with, and that was told already.
        let Some(named) = self.directory(pack, &known).await else { return };
        let strange = indexed.iter().find(|(address, place)| !named.contains(&(*address, place.offset)));
        if let Some((address, place)) = strange {
            let expected = format!("the directory of pack {pack:016x}");
            let found = format!("{address} at byte {}, which that does not name", place.offset);
            self.problem("HF0013", "the index", at, (expected, found), REMEDY);
        }
    }
}
