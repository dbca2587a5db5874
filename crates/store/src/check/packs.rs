//! Packs and their chunks.

use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use base::hash::DomainKey;
use base::id::ChunkAddress;
use bytes::Bytes;
use platform::disk::{DiskErrorKind, File, Open};
use platform::task::parallel;

use super::{Check, Depth, PROBLEMS_MAX};
use crate::chunk::{Bundle, verify};
use crate::failure::{StoreError, corrupt};
use crate::format::{
    ChunkHeader, Cut, DAMAGED_SUFFIX, Entry, FragmentHeader, FragmentName, NUMBERS_AHEAD_MAX, PACK_SUFFIX, PACKS,
    PackHeader, Place, Unfit, lots_of, number_of, pack_path,
};
use crate::pack::fragments::{Fragments, Joined, read_blocks, read_header};
use crate::pack::scan::{read_directory, read_footer};
use crate::pack::{Member, OpenPack, PackKnown, PackState};
use crate::remedy::Remedy;

/// Bytes read and verified in one step.
const STEP_BYTES: u64 = 8 << 20;
/// The same where callers' reads come between.
const PACED_STEP_BYTES: u64 = 1 << 20;

impl Check<'_> {
    pub(super) async fn packs(&mut self) {
        let mut known = self.store.packs.known();
        // Their disk was told of.
        known.retain(|_, known| !matches!(known.state, PackState::Missing));
        self.total_bytes = known.values().map(|known| self.cost(known)).sum();
        (self.progress)(0, self.total_bytes);
        let mut done = 0;
        for (pack, known) in &known {
            let before = self.found();
            match &known.state {
                PackState::Sealed => self.sealed(*pack, known).await,
                PackState::Open(open) if self.depth == Depth::Deep => self.open(open).await,
                PackState::Open(_) | PackState::Missing => {}
            }
            if !self.store.packs.has(*pack) {
                // Reclaim removed it meanwhile: whatever was wrong with it is no more.
                self.forget_since(before);
                self.named.remove(pack);
            }
            self.keep(PROBLEMS_MAX);
            self.report.packs += 1;
            done += self.cost(known);
            (self.progress)(done, self.total_bytes);
        }
    }

    /// A disk that takes no writes keeps its packs until it is well again. What is elsewhere too is written again from there.
    fn remedy(&self, pack: u64, disk: usize, is_elsewhere: bool) -> Option<Remedy> {
        let remedy = if is_elsewhere { Remedy::Copy { disk, pack } } else { Remedy::Pack { pack } };
        self.store.pool.disks[disk].is_good().then_some(remedy)
    }

    fn cost(&self, known: &PackKnown) -> u64 {
        let of_one = match self.depth {
            Depth::Deep => u64::from(known.summary.data_bytes),
            Depth::Shallow => u64::from(known.summary.count) * Entry::BYTES as u64,
        };
        let fragments = known.fragments().map_or(0, |fragments| match self.depth {
            // Each by itself, and what they make.
            Depth::Deep => fragments.cut.all_bytes() + of_one,
            Depth::Shallow => of_one,
        });
        of_one * known.disks().count() as u64 + fragments
    }

    pub(crate) async fn sealed(&mut self, pack: u64, known: &PackKnown) {
        let (mut known, before) = (known.clone(), self.found());
        loop {
            self.bad.clear();
            self.sealed_at(pack, &known).await;
            let now = self.store.packs.known_pack(pack);
            match now.filter(|now| self.found() != before && !now.is_where(&known)) {
                // It was cut into fragments meanwhile, or left a disk.
                Some(now) => known = now,
                None => break,
            }
            self.forget_since(before);
        }
        self.doubt(pack).await;
    }

    /// T-3: of what is bad in one file of a pack, what cannot be read from any, where the index names it there.
    async fn doubt(&mut self, pack: u64) {
        let packs = &self.store.packs;
        for address in std::mem::take(&mut self.bad) {
            if let Ok(Some(place)) = packs.index.lookup(&address, &packs.counters)
                && place.pack == pack
                && packs.is_good(&address, &place).await.is_err()
            {
                packs.doubt(address);
            }
        }
    }

    async fn sealed_at(&mut self, pack: u64, known: &PackKnown) {
        let disks = known.disks();
        let mut is_compared = false;
        if let Some(fragments) = known.fragments() {
            is_compared = self.fragments(pack, known, fragments).await.is_some();
        }
        let is_elsewhere = disks.count() > 1 || is_compared;
        for disk in disks.iter() {
            let remedy = self.remedy(pack, disk, is_elsewhere);
            is_compared |= self.sealed_on(disk, pack, known, remedy, !is_compared).await.is_some();
        }
        // The mender sees it without reading anything.
        let asked = self.store.packs.asked_copies((known.summary.class, known.summary.level));
        if self.pace.is_none() && !known.is_cut() && disks.count() < asked {
            let words = (format!("a pack on {asked} disks"), format!("one on {}", disks.count()));
            let remedy = Some(Remedy::Copies { pack });
            self.problem("HF0020", "a pack", (self.store.packs.path_of(pack), 0), words, remedy);
        }
    }

    /// The file of a pack on one disk. `Some` if it has a directory, which was compared with the index if that was asked for.
    async fn sealed_on(
        &mut self,
        disk: usize,
        pack: u64,
        known: &PackKnown,
        remedy: Option<Remedy>,
        compares: bool,
    ) -> Option<()> {
        let on = &self.store.pool.disks[disk].disk;
        let path = format!("{}/{}", on.path(), pack_path(pack));
        let file = match on.open(&pack_path(pack), Open::Read) {
            Ok(file) => file,
            Err(error) if error.kind == DiskErrorKind::Absent => {
                let words = (format!("a pack with {} chunks", known.summary.count), "no such file");
                let is_alone = known.disks().count() == 1;
                let remedy = if is_alone { Some(Remedy::Forget { pack }) } else { remedy };
                self.problem("HF0009", "a pack", (path, 0), words, remedy);
                return None;
            }
            Err(error) => {
                self.failed("HF0009", path, error.into(), None);
                return None;
            }
        };
        if let Err(error) = self.header(&file, pack).await {
            self.failed_in_pack("HF0004", path.clone(), error, remedy);
        }
        let footer = match read_footer(&file, pack).await {
            Ok(Ok(footer)) => footer,
            Ok(Err(Unfit { expected, found, .. })) => {
                let at = (path, file.length().unwrap_or(0));
                self.problem("HF0005", "the footer of a pack", at, (expected, found), remedy);
                return None;
            }
            Err(error) => {
                self.failed_in_pack("HF0005", path, error, remedy);
                return None;
            }
        };
        let entries = match read_directory(&file, &footer).await {
            Ok(entries) => entries,
            Err(error) => {
                self.failed_in_pack("HF0006", path, error, remedy);
                return None;
            }
        };
        self.report.chunks += entries.len() as u64;
        self.report.bytes += footer.directory_bytes();
        if compares {
            self.compare(pack, &path, &entries);
        }
        if self.depth == Depth::Deep {
            self.contents(&file, pack, &entries, remedy).await;
        }
        Some(())
    }

    /// A pack in fragments: each by itself, and what they make. `Some` if that has a directory, which was compared with the index.
    async fn fragments(&mut self, pack: u64, known: &PackKnown, fragments: &Arc<Fragments>) -> Option<()> {
        for (index, disk) in fragments.each() {
            let is_good = self.store.pool.disks[disk].is_good();
            let remedy = is_good.then_some(Remedy::Copy { disk, pack });
            let name = fragments.name(pack, index);
            let path = format!("{}/{}", self.store.pool.disks[disk].disk.path(), name.path());
            match self.fragment(&name, fragments, disk).await {
                Ok(bytes) => self.report.bytes += bytes,
                Err(StoreError::Disk(error)) if error.kind == DiskErrorKind::Absent => {
                    self.problem("HF0021", "a fragment", (path, 0), ("a fragment of a pack", "no such file"), remedy);
                }
                Err(error) => match error {
                    StoreError::Corrupt { what, offset, expected, found, .. } => {
                        self.problem("HF0021", what, (path, offset), (expected, found), remedy);
                    }
                    error => self.problem("HF0021", "a fragment", (path, 0), ("to read it", error), remedy),
                },
            }
        }
        let lacking = fragments.lacking_on(fragments.disks()).count();
        if self.pace.is_none() && known.is_cut() && lacking > 0 {
            let count = fragments.cut.erasure.count();
            let words = (format!("a pack in {count} fragments"), format!("{} of them", count - lacking));
            let remedy = Some(Remedy::Copies { pack });
            self.problem("HF0020", "a pack", (self.store.packs.path_of(pack), 0), words, remedy);
        }
        let joined = Joined::open(&self.store.pool, pack, fragments, self.store.packs.suspect_on(pack)).into_file();
        let remedy = Some(Remedy::Pack { pack });
        let path = joined.path().to_owned();
        let directory = match read_footer(&joined, pack).await {
            Ok(Ok(footer)) => read_directory(&joined, &footer).await,
            Ok(Err(unfit)) => Err(corrupt("the footer of a pack", &path, 0, unfit.expected, unfit.found)),
            Err(error) => Err(error),
        };
        let entries = match directory {
            Ok(entries) => entries,
            Err(StoreError::Disk(error)) => {
                self.problem("HF0009", "a pack", (path, 0), ("enough fragments of it", error), remedy);
                return None;
            }
            Err(error) => {
                self.failed("HF0006", path, error, remedy);
                return None;
            }
        };
        self.report.chunks += entries.len() as u64;
        self.compare(pack, &path, &entries);
        if self.depth == Depth::Deep {
            self.contents(&joined, pack, &entries, remedy).await;
        }
        Some(())
    }

    /// The file of one fragment; the bytes that were read.
    pub(crate) async fn fragment(
        &self,
        name: &FragmentName,
        fragments: &Fragments,
        disk: usize,
    ) -> Result<u64, StoreError> {
        let file = self.store.pool.disks[disk].disk.open(&name.path(), Open::Read)?;
        let (cut, index) = (fragments.cut, usize::from(name.index));
        file.forget(0, cut.file_bytes());
        let header = read_header(&file, name).await?;
        let expected = FragmentHeader { node_identity: self.store.pool.node_identity, cut, ..header.clone() };
        if header != expected {
            return Err(corrupt(
                "the header of a fragment",
                file.path(),
                0,
                format!("{expected:?}"),
                format!("{header:?}"),
            ));
        }
        let sums_at = cut.sums_at(&(0..cut.blocks()));
        let mut sums = vec![0; usize::try_from(sums_at.end - sums_at.start).expect("few bytes for each block")];
        file.read_exact_at(sums_at.start, &mut sums).await?;
        let found = FragmentHeader::sum_of_sums(name.pack, name.index, &sums);
        if found != header.sums {
            let (expected, found) = (format!("checksum {:016x}", header.sums), format!("{found:016x}"));
            return Err(corrupt("the checksums of a fragment", file.path(), sums_at.start, expected, found));
        }
        if self.depth == Depth::Shallow {
            return Ok(sums_at.end);
        }
        let step = PACED_STEP_BYTES / Cut::BLOCK_BYTES;
        for start in (0..cut.blocks()).step_by(usize::try_from(step).expect("some blocks")) {
            if let Some(pace) = self.pace {
                pace.step().await;
            }
            let blocks = start..(start + step).min(cut.blocks());
            if read_blocks(&file, &cut, (name.pack, index), &blocks).await.is_err() {
                // A bit that flipped on its way here may be right the next time.
                file.forget(0, cut.file_bytes());
                read_blocks(&file, &cut, (name.pack, index), &blocks).await?;
            }
        }
        Ok(cut.file_bytes())
    }

    /// A pack of which the disk does not give everything: what it gives can be copied.
    fn failed_in_pack(&mut self, code: &'static str, path: String, error: StoreError, remedy: Option<Remedy>) {
        match error {
            StoreError::Disk(error) => self.problem("HF0016", "a pack", (path, 0), ("to read it", error), remedy),
            error => self.failed(code, path, error, remedy),
        }
    }

    async fn header(&self, file: &File, pack: u64) -> Result<(), StoreError> {
        let mut bytes = [0; PackHeader::BYTES];
        file.read_exact_at(0, &mut bytes).await?;
        let found = PackHeader::decode(&bytes, pack)
            .map_err(|unfit| corrupt("a pack header", file.path(), 0, unfit.expected, unfit.found))?;
        let expected = PackHeader { node_identity: self.store.pool.node_identity, ..found.clone() };
        if found == expected {
            Ok(())
        } else {
            Err(corrupt("a pack header", file.path(), 0, format!("{expected:?}"), format!("{found:?}")))
        }
    }

    /// Is every chunk of a directory in the index?
    fn compare(&mut self, pack: u64, path: &str, entries: &[Entry]) {
        let store = self.store;
        for entry in entries {
            let (address, place) = (entry.header.address, Place::of(pack, entry));
            match store.packs.index.lookup(&address, &store.counters) {
                Ok(Some(found)) if found == place => {
                    if store.packs.index.recent(&address).is_none() {
                        self.named.entry(pack).or_default().add(&address, &place);
                    }
                }
                // Another copy of it: that one's pack is looked at too.
                Ok(Some(_)) => {}
                // Reclaim takes a pack out of the index, and a moment later away.
                Ok(None) if store.packs.condemned.read().contains(&pack) => {}
                Ok(None) => {
                    let at = (path.to_owned(), u64::from(entry.offset));
                    let words = (format!("an index entry for {address}"), "none");
                    self.problem("HF0014", "the index", at, words, Some(Remedy::Index));
                }
                Err(error) => return self.failed("HF0010", path.to_owned(), error, Some(Remedy::Index)),
            }
        }
    }

    async fn contents(&mut self, file: &File, pack: u64, entries: &[Entry], remedy: Option<Remedy>) {
        let mut rest = entries;
        while let Some(first) = rest.first() {
            if let Some(pace) = self.pace {
                // To the end of the pack, once begun: a part of it counts for nothing.
                pace.step().await;
            }
            let start = u64::from(first.offset);
            let step_bytes = if self.pace.is_some() { PACED_STEP_BYTES } else { STEP_BYTES };
            // What is verified together is read together.
            let is_near = |lot: &&[Entry]| lot[lot.len() - 1].end() - start <= step_bytes;
            let first = lots_of(rest).next().map_or(1, <[Entry]>::len);
            let count = first + lots_of(&rest[first..]).take_while(is_near).map(<[Entry]>::len).sum::<usize>();
            let (step, later) = rest.split_at(count);
            rest = later;
            let end = step[count - 1].end();
            let mut bytes = vec![0; usize::try_from(end - start).expect("a step fits in memory")];
            // What lies on the disk, not what memory keeps of it.
            file.forget(start, end - start);
            match file.read_exact_at(start, &mut bytes).await {
                Ok(()) => self.step(file, pack, step, &Bytes::from(bytes), remedy).await,
                // A sector that cannot be read must not hide what lies beside it.
                Err(_) if count > first => {
                    for lot in lots_of(step) {
                        Box::pin(self.contents(file, pack, lot, remedy)).await;
                    }
                }
                Err(error) => {
                    for entry in step {
                        let at = (file.path().to_owned(), u64::from(entry.offset));
                        self.problem("HF0007", "a chunk", at, (entry.header.address, &error), remedy);
                        self.bad.insert(entry.header.address);
                    }
                }
            }
        }
    }

    async fn step(&mut self, file: &File, pack: u64, entries: &[Entry], bytes: &Bytes, remedy: Option<Remedy>) {
        let (store, start) = (self.store, entries[0].offset);
        let lots = lots_of(entries).map(<[Entry]>::to_vec).collect();
        let verified =
            parallel(&store.platform.tasks, lots, |lot: Vec<Entry>| verify_lot(store.key(), pack, &lot, start, bytes));
        self.report.bytes += bytes.len() as u64;
        self.report.chunks_verified += entries.len() as u64;
        for (lot, mut verified) in lots_of(entries).zip(verified) {
            if verified.iter().any(Result::is_err) {
                verified = self.verify_again(file, pack, lot, verified).await;
            }
            for (entry, result) in lot.iter().zip(verified) {
                let address = entry.header.address;
                match result {
                    Ok(()) => store.packs.trust(&address, &Place::of(pack, entry)),
                    Err(found) => {
                        let at = (file.path().to_owned(), u64::from(entry.offset));
                        self.problem("HF0007", "a chunk", at, (format!("content of {address}"), found), remedy);
                        self.bad.insert(address);
                    }
                }
            }
        }
    }

    /// A bit that flipped on its way here may be right the next time: what comes of chunks that are verified together, of which some were bad.
    async fn verify_again(
        &self,
        file: &File,
        pack: u64,
        lot: &[Entry],
        before: Vec<Result<(), String>>,
    ) -> Vec<Result<(), String>> {
        let (start, end) = (lot[0].offset, lot[lot.len() - 1].end());
        let mut bytes = vec![0; usize::try_from(end - u64::from(start)).expect("a lot fits in memory")];
        file.forget(u64::from(start), bytes.len() as u64);
        if file.read_exact_at(u64::from(start), &mut bytes).await.is_err() {
            return before;
        }
        let again = verify_lot(self.store.key(), pack, lot, start, &Bytes::from(bytes));
        self.store.counters.verify_failures.add(before.iter().filter(|result| result.is_err()).count() as u64);
        // What was right once is right.
        before.into_iter().zip(again).map(|(before, again)| before.or(again)).collect()
    }

    /// What of an open pack is in its file.
    pub(crate) async fn open(&mut self, open: &Arc<OpenPack>) {
        let Some(written) = open.written() else { return };
        let before = self.found();
        for member in &*open.members() {
            self.open_on(open, member, written).await;
        }
        if self.found() == before || self.store.packs.is_open(open) {
            return;
        }
        // It has a directory by now, or is cut off where its disk had no room: what counts is what it is now.
        self.forget_since(before);
        let Some(now) = self.store.packs.known_pack(open.number) else { return };
        match &now.state {
            PackState::Sealed => self.sealed(open.number, &now).await,
            PackState::Open(now) => Box::pin(self.open(now)).await,
            PackState::Missing => {}
        }
    }

    async fn open_on(&mut self, open: &OpenPack, member: &Member, written: u64) {
        let mut bytes = vec![0; usize::try_from(written).expect("packs fit in memory")];
        let path = member.file.path().to_owned();
        let remedy = self.remedy(open.number, member.disk, open.disks().count() > 1);
        member.file.forget(0, written);
        if let Err(error) = member.file.read_exact_at(0, &mut bytes).await {
            return self.failed("HF0007", path, error.into(), remedy);
        }
        let bytes = Bytes::from(bytes);
        let scanned = crate::pack::scan::scan(self.store.key(), open.number, &bytes);
        self.report.chunks += scanned.entries.len() as u64;
        self.report.chunks_verified += scanned.entries.len() as u64;
        self.report.bytes += bytes.len() as u64;
        // What lies between the chunks of one that was found without a directory was looked at then.
        let is_whole = match open.is_found() {
            true => scanned.entries.len() == open.summary().count as usize,
            false => scanned.bad_bytes == 0,
        };
        if !is_whole {
            let words = ("chunks without gaps", format!("{} bytes that are none", scanned.bad_bytes));
            self.problem("HF0007", "an open pack", (path, 0), words, remedy);
        }
    }

    /// Files among the packs that the store does not know: disk, name, and number unless they were set aside.
    pub(super) fn strangers(&mut self) -> Vec<(usize, String, Option<u64>)> {
        let store = self.store;
        let mut strangers = Vec::new();
        for (number, disk) in store.pool.there() {
            let names = match disk.disk.list(PACKS) {
                Ok(names) => names,
                Err(error) => {
                    self.failed("HF0016", format!("{}/{PACKS}", disk.disk.path()), error.into(), None);
                    continue;
                }
            };
            for name in names {
                let pack = number_of(&name, PACK_SUFFIX);
                if let Some(fragment) = FragmentName::of(&name) {
                    if !self.has_fragment(&fragment, number) {
                        strangers.push((number, name, Some(fragment.pack)));
                    }
                } else if number_of(&name, DAMAGED_SUFFIX).is_some()
                    || FragmentName::of_damaged(&name).is_some()
                    || pack.is_some_and(|pack| !self.has_whole(pack, number))
                {
                    strangers.push((number, name, pack));
                }
            }
        }
        strangers
    }

    /// Those that are strangers still: a pack is a file for a moment before the store knows it, and after. On a slow disk the moment is
    /// long, so what is being made or removed is no stranger.
    pub(super) fn tell_strangers(&mut self, strangers: Vec<(usize, String, Option<u64>)>) {
        let store = self.store;
        // Where there are many of them the directories are listed once.
        let listed = LazyCell::new(|| store.packs.listed());
        for (number, name, pack) in strangers {
            self.keep(PROBLEMS_MAX);
            let disk = &store.pool.disks[number].disk;
            let path = format!("{}/{PACKS}/{name}", disk.path());
            match pack {
                // Asked before whether the store knows it, which is so when it is made, and not any more when it is removed.
                Some(pack) if store.packs.is_passing(pack) => {}
                // Let go of, and not removed by a disk that failed.
                Some(pack) if store.packs.is_emptied(pack) && !store.pool.disks[number].is_good() => {}
                None => {
                    let words =
                        ("no such file", "what could not be saved of a pack; remove it when you have looked at it");
                    self.problem("HF0017", "a pack that was set aside", (path, 0), words, None);
                }
                Some(_) if let Some(fragment) = FragmentName::of(&name) => {
                    if !self.has_fragment(&fragment, number) && disk.open(&fragment.path(), Open::Read).is_ok() {
                        let words = (
                            "a fragment that the store knows",
                            "one that belongs to no pack it has, or is elsewhere too",
                        );
                        self.problem("HF0008", "a fragment", (path, 0), words, None);
                    }
                }
                Some(pack) if !self.has_whole(pack, number) && disk.open(&pack_path(pack), Open::Read).is_ok() => {
                    let words = ("a pack that the store knows", "one that was left alone when the store was opened");
                    // Two of one number: only a person knows which is the copy. P-1 for the disk.
                    // E-6, for fragments.
                    // One that the opening did not believe to be a pack of the node would not be found by the next one either.
                    let is_to_adopt = !store.packs.has(pack)
                        && pack <= store.packs.next() + NUMBERS_AHEAD_MAX
                        && store.pool.disks[number].is_good()
                        && listed.as_ref().is_ok_and(|listed| !listed.in_fragments.contains(&pack));
                    let remedy = is_to_adopt.then_some(Remedy::Adopt { disk: number, pack });
                    self.problem("HF0008", "a pack", (path, 0), words, remedy);
                }
                Some(_) => {}
            }
        }
    }

    fn has_fragment(&self, name: &FragmentName, disk: usize) -> bool {
        let known = self.store.packs.known_pack(name.pack);
        let is_here = |fragments: &Arc<Fragments>| {
            fragments.cut.erasure == name.erasure && fragments.at(usize::from(name.index)).has(disk)
        };
        known.is_some_and(|known| known.to_read().fragments().is_some_and(is_here))
    }

    /// Whether a disk has a file of a pack that the store knows, be it less than all of it (K-6).
    fn has_whole(&self, pack: u64, disk: usize) -> bool {
        let known = self.store.packs.known_pack(pack);
        known.is_some_and(|known| [known.disks(), known.short(), known.to_read().disks()].iter().any(|on| on.has(disk)))
    }

    /// The entries of a sealed pack, for a second look.
    pub(super) async fn directory(&self, pack: u64, known: &PackKnown) -> Option<BTreeSet<(ChunkAddress, u32)>> {
        let (entries, _) = self.store.directory(pack, known).await.ok()?;
        Some(entries.iter().map(|entry| (entry.header.address, entry.offset)).collect())
    }
}

/// Verifies one chunk, or what lies in a bundle and that, from bytes of a pack that begin at `start`.
fn verify_lot(key: &DomainKey, pack: u64, lot: &[Entry], start: u32, bytes: &Bytes) -> Vec<Result<(), String>> {
    let payload = |entry: &Entry| {
        let from = (entry.offset - start) as usize;
        match ChunkHeader::decode(&bytes[from..from + ChunkHeader::BYTES], pack, entry.offset) {
            Ok(header) if header == entry.header => {
                Ok(bytes.slice(from + ChunkHeader::BYTES..from + entry.header.stored_bytes() as usize))
            }
            Ok(header) => Err(format!("a header of {}", header.address)),
            Err(unfit) => Err(format!("a header with {} instead of {}", unfit.found, unfit.expected)),
        }
    };
    let (last, bundled) = lot.split_last().expect("a lot is not empty");
    let itself = payload(last).and_then(|payload| verify(key, &last.header, &payload));
    let mut verified = Vec::with_capacity(lot.len());
    if !bundled.is_empty() {
        let bundle = payload(last).and_then(|payload| Bundle::open(&last.header, &payload));
        verified.extend(bundled.iter().map(|entry| {
            payload(entry)?;
            bundle.as_ref().map_err(Clone::clone)?.holds(key, &entry.header)
        }));
    }
    verified.push(itself);
    verified
}
