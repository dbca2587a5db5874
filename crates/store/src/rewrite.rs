//! Writing chunks again next to each other: what was stored over weeks lies scattered, and each of it costs a request.
//!
//! L-7   A chunk goes to a new place as it was stored, or out of one bundle into another, verified, and the index names that place from then on. The old one stays until a pass of
//!       reclaim has read the new one (L-4). No pass is at work meanwhile: it would take the old place for one that nobody needs. The
//!       caller sees to that.
//!
//! Not here: which chunks should lie together (`file`).

use std::collections::BTreeSet;

use base::id::ChunkAddress;

use crate::failure::StoreError;
use crate::format::{ChunkHeader, Class, Codec, Place};
use crate::level::Level;
use crate::ordered;
use crate::pace::Pace;
use crate::pack::{Copied, Memo};
use crate::store::Store;

/// Bytes that are read by the order of their places before they are written by another.
const WINDOW_BYTES: u64 = 16 << 20;

/// How scattered chunks lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scatter {
    /// Different chunks whose place is known.
    pub chunks: u64,
    /// Bytes of them, as stored.
    pub bytes: u64,
    /// Runs that they are read by.
    pub runs: u64,
}

impl Scatter {
    /// The fewest runs that so many bytes could be read by.
    #[must_use]
    pub fn runs_min(&self) -> u64 {
        self.bytes.div_ceil(ordered::RUN_BYTES_MAX)
    }
}

impl Store {
    /// How scattered chunks lie for who reads one part of them after the other, each in the order in which it lies. `ends`: where parts end.
    #[must_use]
    pub fn scatter(&self, addresses: &[ChunkAddress], ends: &[usize]) -> Scatter {
        let mut places = Vec::with_capacity(addresses.len());
        let (mut seen, mut start) = (BTreeSet::new(), 0);
        for end in ends.iter().copied().chain([addresses.len()]) {
            let mut part: Vec<Place> =
                self.new_places(&addresses[start..end], &mut seen).map(|(place, _)| place).collect();
            part.sort_unstable_by_key(|place| (place.pack, place.offset));
            places.extend(part);
            start = end;
        }
        let bytes = stored_bytes(places.iter());
        let runs = ordered::runs(&places, |pack| self.gap_bytes_at(pack));
        Scatter { chunks: places.len() as u64, bytes, runs }
    }

    /// Writes chunks of file content again, in this order, and makes that durable. Those that cannot be read stay where they are. Bytes that were
    /// written, as stored. No pass of reclaim is at work (L-7). Ends where the pace does: what was not written by then stays.
    ///
    /// # Errors
    /// `Full`, or why it could not be made durable: nothing is lost then.
    pub async fn rewrite(&self, addresses: &[ChunkAddress], pace: &Pace<'_>) -> Result<u64, StoreError> {
        let since = self.moment();
        let places = self.places_of(addresses);
        let window_bytes = WINDOW_BYTES.min(self.options.put_bytes_max / 2);
        let (mut at, mut written) = (0, 0);
        while at < places.len() && pace.goes_on() {
            let (mut end, mut bytes) = (at, 0);
            while end < places.len() && bytes <= window_bytes {
                bytes += stored_bytes([&places[end].0].into_iter());
                end += 1;
            }
            written += self.rewrite_window(&places[at..end], pace).await?;
            at = end;
        }
        self.settle(since).await?;
        Ok(written)
    }

    async fn rewrite_window(&self, places: &[(Place, ChunkAddress)], pace: &Pace<'_>) -> Result<u64, StoreError> {
        let mut order: Vec<usize> = (0..places.len()).collect();
        order.sort_unstable_by_key(|number| (places[*number].0.pack, places[*number].0.offset));
        let mut copies: Vec<Option<Copied>> = places.iter().map(|_| None).collect();
        let mut memo = Memo::default();
        for number in order {
            if !pace.step().await {
                return Ok(0);
            }
            let (place, address) = &places[number];
            copies[number] = self.packs.read_copy(address, place, &mut memo).await.ok();
        }
        let read = places.iter().zip(&copies).filter(|(_, copy)| copy.is_some());
        let bytes = stored_bytes(read.map(|((place, _), _)| place));
        let mut alike = Vec::<(Level, Vec<Copied>)>::new();
        for ((place, _), copy) in places.iter().zip(copies) {
            let Some(copy) = copy else { continue };
            let level = self.packs.level_now(place.pack);
            match alike.last_mut().filter(|(last, _)| *last == level) {
                Some((_, others)) => others.push(copy),
                None => alike.push((level, vec![copy])),
            }
        }
        for (level, copies) in alike {
            self.packs.append_copies((Class::Data, level), Class::Data, copies).await?;
        }
        self.counters.rewritten_bytes.add(bytes);
        Ok(bytes)
    }

    /// Where each of some chunks of file content lies, once, in their order.
    fn places_of(&self, addresses: &[ChunkAddress]) -> Vec<(Place, ChunkAddress)> {
        self.new_places(addresses, &mut BTreeSet::new()).collect()
    }

    /// The same of those that were not seen yet.
    fn new_places<'a>(
        &'a self,
        addresses: &'a [ChunkAddress],
        seen: &'a mut BTreeSet<ChunkAddress>,
    ) -> impl Iterator<Item = (Place, ChunkAddress)> + use<'a> {
        let new = addresses.iter().filter(|address| seen.insert(**address));
        new.filter_map(|address| {
            let place = self.packs.index.lookup(address, &self.counters).ok()??;
            (place.class == Class::Data && self.packs.has(place.pack)).then_some((place, *address))
        })
    }
}

/// Headers and payloads, those of bundles once.
fn stored_bytes<'a>(places: impl Iterator<Item = &'a Place>) -> u64 {
    let mut bundles = BTreeSet::new();
    let bytes = |place: &Place| {
        let is_new = matches!(place.codec, Codec::Bundled(_)) && bundles.insert((place.pack, place.span().start));
        let bundle = if is_new { place.record().len() as u64 } else { 0 };
        ChunkHeader::BYTES as u64 + u64::from(place.stored) + bundle
    };
    places.map(bytes).sum()
}
