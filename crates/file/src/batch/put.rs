//! The content of a unit becomes chunks: one run, in the order of the unit, with a border at each file's start.
//!
//! Not here: which names the chunks get (`write`).

use std::collections::VecDeque;
use std::sync::Arc;

use base::id::ChunkAddress;
use bytes::Bytes;
use platform::task::parallel;
use store::{Class, Resilience, StoreError};
use tokio::sync::oneshot;

use super::unit::{BatchContent, BatchEntry};
use crate::extent::Extent;
use crate::failure::FileError;
use crate::format::Content;
use crate::system::FileSystem;

/// What comes of the content of one entry.
#[derive(Clone, Debug, Default)]
pub(super) struct Stored {
    /// Where it is: in order, without holes.
    pub(super) content: Vec<(u64, Content)>,
    /// What was asked for it, as its directory was then.
    pub(super) resilience: Option<Resilience>,
}

impl Stored {
    pub(super) fn bytes(&self) -> u64 {
        self.content.iter().map(|(_, content)| content.length()).sum()
    }
}

/// A chunk on its way: of which entry, and where in it.
struct Piece {
    entry: usize,
    offset: u64,
    bytes: Bytes,
}

impl FileSystem {
    /// Puts the content of the entries that have a resilience; durable when the store has settled. Little of it goes into the journal, as an fsync of
    /// it would: one wait for the disks instead of two. The caller is known to run (I-90).
    pub(super) async fn put_unit(
        &self,
        unit: &[BatchEntry],
        resilience: &[Option<Resilience>],
    ) -> Result<Vec<Stored>, FileError> {
        let mut stored: Vec<Stored> =
            resilience.iter().map(|resilience| Stored { content: Vec::new(), resilience: *resilience }).collect();
        let runs = runs_of(unit, resilience);
        let bytes: u64 = runs.iter().map(|piece| piece.bytes.len() as u64).sum();
        if bytes <= self.options.inline_bytes_max {
            for Piece { entry, offset, bytes } in runs {
                stored[entry].content.push((offset, Content::Inline(bytes.to_vec())));
            }
            return Ok(stored);
        }
        let mut pieces = parallel(&self.platform.tasks, runs, cut).into_iter().flatten().collect::<Vec<_>>();
        // The order stays within each.
        pieces.sort_by_key(|piece| resilience[piece.entry]);
        for part in pieces.chunk_by(|one, next| resilience[one.entry] == resilience[next.entry]) {
            let level = resilience[part[0].entry].unwrap_or_default();
            let addresses = self.put_run(level, part).await?;
            for (Piece { entry, offset, bytes }, address) in part.iter().zip(addresses) {
                let chunk_bytes = u32::try_from(bytes.len()).expect("a chunk is at most 1 MiB");
                let extent = Extent::Chunk { address, skip: 0, chunk_bytes };
                stored[*entry].content.push((*offset, Content::Extent(bytes.len() as u64, extent)));
            }
        }
        Ok(stored)
    }

    /// Submits one group after the other until the store is busy, and goes on when there is room (HydraFS, FAST'10).
    async fn put_run(&self, resilience: Resilience, pieces: &[Piece]) -> Result<Vec<ChunkAddress>, StoreError> {
        let mut groups = groups_of(pieces, self.options.group_bytes);
        // Here: what is small is put without a hand-over.
        let last = groups.pop().unwrap_or_default();
        let mut submitted = VecDeque::new();
        for group in groups {
            let room = self.store.room(group.iter().map(|chunk| chunk.len() as u64).sum()).await;
            let (send, receive) = oneshot::channel();
            let store = Arc::clone(&self.store);
            self.platform.tasks.aside_behind(Box::pin(async move {
                let put = store.put_with(room, (Class::Data, resilience), group).await;
                // Before it says so: who hears of the last may be the last to hold the store.
                drop(store);
                drop(send.send(put));
            }));
            submitted.push_back(receive);
        }
        let last = self.store.put_as(resilience, last).await;
        let mut result = Ok(Vec::with_capacity(pieces.len()));
        // All are waited for, also after a failure: none works for nobody.
        for put in submitted {
            add(&mut result, put.await.expect("a panic there is one here"));
        }
        add(&mut result, last);
        result
    }
}

fn add(result: &mut Result<Vec<ChunkAddress>, StoreError>, more: Result<Vec<ChunkAddress>, StoreError>) {
    match (&mut *result, more) {
        (Ok(addresses), Ok(more)) => addresses.extend(more),
        (Ok(_), Err(error)) => *result = Err(error),
        (Err(_), _) => {}
    }
}

/// The runs of those entries that are to be stored.
fn runs_of(unit: &[BatchEntry], resilience: &[Option<Resilience>]) -> Vec<Piece> {
    let mut runs = Vec::new();
    for (entry, BatchEntry { content, .. }) in unit.iter().enumerate() {
        if let BatchContent::Data(of_entry, _) = content
            && resilience[entry].is_some()
        {
            let full = of_entry.iter().filter(|(_, bytes)| !bytes.is_empty());
            runs.extend(full.map(|(offset, bytes)| Piece { entry, offset: *offset, bytes: bytes.clone() }));
        }
    }
    runs
}

fn cut(run: Piece) -> Vec<Piece> {
    let Piece { entry, mut offset, bytes: mut rest } = run;
    let mut pieces = Vec::new();
    for length in store::cut_points(&rest, true) {
        pieces.push(Piece { entry, offset, bytes: rest.split_to(length) });
        offset += length as u64;
    }
    pieces
}

fn groups_of(pieces: &[Piece], group_bytes: usize) -> Vec<Vec<Bytes>> {
    let (mut groups, mut bytes) = (Vec::new(), group_bytes);
    for piece in pieces {
        if bytes >= group_bytes {
            groups.push(Vec::new());
            bytes = 0;
        }
        bytes += piece.bytes.len();
        groups.last_mut().expect("pushed above").push(piece.bytes.clone());
    }
    groups
}
