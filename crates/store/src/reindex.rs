//! The index made again while the store works.
//!
//! redb checks its pages only when it repairs, and a damaged branch page sends a search astray: it ends at nothing. So neither an error
//! nor a "none" of an index that was not made in this life is believed when somebody needs the chunk.
//!
//! X-4   What the index says of a chunk that is needed is believed when it names a place (X-2 checks that), or when it was made again from
//!       the packs in this life of the store; before that, it is made again first. At most once: a chunk that is missing then is lost.
//!
//! Not here: making it again while opening (`recover`).

use std::collections::BTreeSet;

use crate::failure::StoreError;
use crate::index::{Change, IndexFile, SealedPack};
use crate::pack::scan::{self, Found};
use crate::pack::{PackState, Packs};

/// Entries that go into the index in one step: bounds memory.
const STEP_ENTRIES: usize = 200_000;

/// A new index file of all sealed packs but those that wait to be taken in. Neither the index file nor the set of packs changes
/// meanwhile: the caller sees to that. A pack that cannot be read is left out, as by an opening.
pub(crate) async fn index_of_packs(packs: &Packs) -> Result<IndexFile, StoreError> {
    let disk = &packs.pool.disks[0].disk;
    let file = packs.index.file().made_again(disk)?;
    let waiting: BTreeSet<u64> = packs.sealed_waiting().iter().map(|sealed| sealed.pack).collect();
    let mut change = Change::default();
    let mut entries = 0;
    for (pack, known) in packs.known() {
        if matches!(known.state, PackState::Open(_)) || waiting.contains(&pack) {
            continue;
        }
        let on = &packs.pool.disks[known.disk];
        let sealed = match scan::read(on, &packs.key, pack).await {
            Ok(Found::Sealed(sealed)) => sealed,
            Ok(Found::Open { scanned, .. }) => SealedPack { pack, summary: known.summary, entries: scanned.entries },
            Err(_) => continue,
        };
        entries += sealed.entries.len();
        change.added.push(sealed);
        if entries >= STEP_ENTRIES {
            file.commit(disk, &std::mem::take(&mut change))?;
            entries = 0;
        }
    }
    file.commit(disk, &change)?;
    Ok(file)
}
