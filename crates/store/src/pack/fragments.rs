//! Packs in fragments: where those are, and reading them as the one file that they were cut from.
//!
//! K-10  A chunk of a pack in fragments is read where it lies, from one fragment or two, as from any pack. Where that fails, or does not
//!       verify, it is read block by block, each verified by its checksum, and what is bad or gone is made of the same range of k others.
//!
//! Not here: making fragments (`fragmenting`), what lies in a pack (`scan`, `read`).

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use platform::disk::{Access, DiskError, DiskErrorKind, File, Open, RawFile, Read};
use platform::task::{Boxed, all};

use super::{OF_FRAGMENT, PackKnown, PackState, Packs, scan};
use crate::disks::DiskSet;
use crate::erasure;
use crate::failure::StoreError;
use crate::format::{Cut, DAMAGED_SUFFIX, FragmentHeader, FragmentName, PACKS, pack_path};
use crate::identity::unfit_error;
use crate::pool::Pool;

/// Content of one fragment that is read at a time, in blocks.
const WINDOW_BLOCKS: u64 = 64;

/// Which disks have which fragment of a pack. One for each disk counts, so that who loses a disk loses one (E-5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fragments {
    pub(crate) cut: Cut,
    at: Vec<DiskSet>,
}

impl Fragments {
    pub(crate) fn new(cut: Cut) -> Fragments {
        Fragments { cut, at: vec![DiskSet::NONE; cut.erasure.count()] }
    }

    #[must_use]
    pub(crate) fn with(mut self, index: usize, disk: usize) -> Fragments {
        self.at[index] = self.at[index].with(disk);
        self
    }

    /// Without one of them on a disk.
    #[must_use]
    pub(crate) fn without_one(mut self, index: usize, disk: usize) -> Fragments {
        self.at[index] = self.at[index].without(disk);
        self
    }

    /// Without whatever a disk has.
    #[must_use]
    pub(crate) fn without(mut self, disk: usize) -> Fragments {
        self.at.iter_mut().for_each(|at| *at = at.without(disk));
        self
    }

    /// The disks that have one of them.
    pub(crate) fn at(&self, index: usize) -> DiskSet {
        self.at[index]
    }

    /// The disks on which one of them counts: those that have no other that does.
    pub(crate) fn counted_at(&self, index: usize) -> DiskSet {
        self.at[index].iter().filter(|disk| self.index_on(*disk) == Some(index)).collect()
    }

    /// Which one lies on a disk, and counts there.
    pub(crate) fn index_on(&self, disk: usize) -> Option<usize> {
        self.at.iter().position(|at| at.has(disk))
    }

    /// All disks that have any.
    pub(crate) fn disks(&self) -> DiskSet {
        self.at.iter().fold(DiskSet::NONE, |all, at| DiskSet::from_bits(all.bits() | at.bits()))
    }

    /// How many different ones lie on some disks.
    pub(crate) fn count_on(&self, disks: DiskSet) -> usize {
        self.at.iter().filter(|at| !at.both(disks).is_empty()).count()
    }

    /// Whether what lies on some disks gives back the pack.
    pub(crate) fn is_readable_on(&self, disks: DiskSet) -> bool {
        self.count_on(disks) >= usize::from(self.cut.erasure.data())
    }

    /// Those that count on none of some disks.
    pub(crate) fn lacking_on(&self, disks: DiskSet) -> impl Iterator<Item = usize> {
        (0..self.at.len()).filter(move |index| self.counted_at(*index).both(disks).is_empty())
    }

    /// Each with its disk.
    pub(crate) fn each(&self) -> impl Iterator<Item = (usize, usize)> {
        self.at.iter().enumerate().flat_map(|(index, at)| at.iter().map(move |disk| (index, disk)))
    }

    pub(crate) fn name(&self, pack: u64, index: usize) -> FragmentName {
        FragmentName::new(pack, self.cut.erasure, index)
    }
}

/// A file of a pack.
pub(crate) struct PackFile {
    pub(crate) disk: usize,
    /// Of a fragment.
    pub(super) name: Option<FragmentName>,
    pub(super) pack: u64,
    /// As long as it should be.
    pub(crate) bytes: u64,
}

impl PackFile {
    pub(crate) fn path(&self) -> String {
        self.name.map_or_else(|| pack_path(self.pack), |name| name.path())
    }

    /// Where it is set aside.
    pub(crate) fn damaged_path(&self) -> String {
        let pack = self.pack;
        self.name.map_or_else(|| format!("{PACKS}/{pack:016x}{DAMAGED_SUFFIX}"), |name| name.damaged_path())
    }
}

/// One fragment, open.
pub(crate) struct Fragment {
    pub(crate) disk: usize,
    pub(crate) file: File,
}

/// The fragments of a pack, open and read as one file, each block verified.
pub(crate) struct Joined {
    pack: u64,
    cut: Cut,
    /// By index.
    members: Vec<Result<Fragment, DiskError>>,
    /// Disks whose fragment turned out to be bad.
    bad: Mutex<DiskSet>,
    /// Why one could not be read where it may be good.
    silent: Mutex<Option<DiskError>>,
    path: String,
}

impl Joined {
    pub(crate) fn new(pack: u64, cut: Cut, members: Vec<Result<Fragment, DiskError>>) -> Joined {
        let path = format!("{} in {} fragments", pack_path(pack), cut.erasure);
        Joined { pack, cut, members, bad: Mutex::default(), silent: Mutex::default(), path }
    }

    /// Opens what there is, as far as possible on disks that are not `doubtful`.
    pub(crate) fn open(pool: &Pool, pack: u64, fragments: &Fragments, doubtful: DiskSet) -> Joined {
        let open = |index: usize| {
            let name = fragments.name(pack, index);
            let disk = best(fragments.at(index), doubtful).ok_or_else(|| absent(&name))?;
            let file = pool.disks[disk].disk.open(&name.path(), Open::Read)?;
            Ok(Fragment { disk, file })
        };
        Joined::new(pack, fragments.cut, (0..fragments.cut.erasure.count()).map(open).collect())
    }

    /// It, as a file that is read and nothing else.
    pub(crate) fn into_file(self) -> File {
        File::new(Arc::new(JoinedFile(Arc::new(self))))
    }

    /// Disks whose fragment turned out to be bad so far.
    pub(crate) fn bad(&self) -> DiskSet {
        *self.bad.lock()
    }

    /// Why something could not be read so far that may be good.
    pub(crate) fn silent(&self) -> Option<DiskError> {
        let mut unopened = self.members.iter().filter_map(|member| member.as_ref().err());
        let unopened = unopened.find(|error| error.kind != DiskErrorKind::Absent);
        unopened.cloned().or_else(|| self.silent.lock().clone())
    }

    /// Bytes of the pack's file, fewer only at its end.
    pub(crate) async fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>, DiskError> {
        let mut bytes = Vec::with_capacity(usize::try_from(length.min(self.cut.whole_bytes)).unwrap_or(0));
        for (index, range) in self.cut.pieces(offset..offset.saturating_add(length)) {
            let blocks = self.cut.blocks_of(&range);
            for start in blocks.clone().step_by(WINDOW_BLOCKS as usize) {
                let window = start..(start + WINDOW_BLOCKS).min(blocks.end);
                let content = self.cut.content_of(&window);
                let read = self.blocks(index, window).await?;
                let within = |at: u64| usize::try_from(at - content.start).expect("within a window");
                let (from, to) = (range.start.max(content.start), range.end.min(content.end));
                bytes.extend_from_slice(&read[within(from)..within(to)]);
            }
        }
        Ok(bytes)
    }

    /// Reads everything, where some are lacking: whether they are good enough to make all of it.
    pub(crate) async fn are_enough(&self) -> Result<(), DiskError> {
        if self.members.iter().all(Result::is_ok) {
            return Ok(());
        }
        let step = WINDOW_BLOCKS * Cut::BLOCK_BYTES;
        for start in (0..self.cut.whole_bytes).step_by(usize::try_from(step).expect("a window fits in memory")) {
            self.read(start, step).await?;
        }
        Ok(())
    }

    /// All of the pack's file, with zeroes for the blocks that cannot be had.
    pub(crate) async fn read_what_answers(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(usize::try_from(self.cut.whole_bytes).unwrap_or(0));
        for (index, range) in self.cut.pieces(0..self.cut.whole_bytes) {
            let base = index as u64 * self.cut.bytes();
            for window in steps(base + range.start..base + range.end, WINDOW_BLOCKS * Cut::BLOCK_BYTES) {
                if let Ok(read) = self.read(window.start, window.end - window.start).await {
                    bytes.extend(read);
                    continue;
                }
                // One bad block costs no other. From the fragment's beginning on, as they lie in it.
                for block in steps(window, Cut::BLOCK_BYTES) {
                    let length = block.end - block.start;
                    let zeroes = || vec![0; usize::try_from(length).expect("a block fits in memory")];
                    bytes.extend(self.read(block.start, length).await.unwrap_or_else(|_| zeroes()));
                }
            }
        }
        bytes
    }

    /// Some blocks of one fragment, from there or from others.
    pub(crate) async fn blocks(&self, index: usize, blocks: Range<u64>) -> Result<Vec<u8>, DiskError> {
        match self.own_blocks(index, blocks.clone()).await {
            Some(bytes) => Ok(bytes),
            None => self.restored(index, blocks).await,
        }
    }

    /// The same, from others alone.
    pub(crate) async fn restored(&self, index: usize, blocks: Range<u64>) -> Result<Vec<u8>, DiskError> {
        let k = usize::from(self.cut.erasure.data());
        let (mut found, mut rest) = (Vec::with_capacity(k), (0..self.members.len()).filter(|other| *other != index));
        while found.len() < k {
            let others: Vec<usize> = rest.by_ref().take(k - found.len()).collect();
            if others.is_empty() {
                return Err(self.too_few(found.len()));
            }
            let read = all(others.iter().map(|other| self.own_blocks(*other, blocks.clone()))).await;
            found.extend(others.into_iter().zip(read).filter_map(|(other, bytes)| Some((other, bytes?))));
        }
        Ok(erasure::restore(self.cut.erasure, &found, index).expect("k of them were found"))
    }

    /// Blocks as they lie in one fragment, verified; `None` if they are not what they should be.
    async fn own_blocks(&self, index: usize, blocks: Range<u64>) -> Option<Vec<u8>> {
        let Fragment { disk, file } = self.members[index].as_ref().ok()?;
        let mut before = None;
        for number in 1.. {
            let error = match read_blocks(file, &self.cut, (self.pack, index), &blocks).await {
                Ok(bytes) => return Some(bytes),
                Err(error) => error,
            };
            match &error {
                StoreError::Disk(error) if is_the_disks(error) => {
                    self.silent.lock().get_or_insert_with(|| error.clone());
                }
                // N-6.
                _ if number == scan::READINGS_MAX => {
                    self.silent.lock().get_or_insert_with(|| scan::unsteady(file.path(), 0));
                }
                _ => {}
            }
            if number == scan::READINGS_MAX || before.replace(error.to_string()) == Some(error.to_string()) {
                break;
            }
            // A bit that flipped on its way here may be right the next time.
            file.forget(0, self.cut.file_bytes());
        }
        let mut bad = self.bad.lock();
        *bad = bad.with(*disk);
        None
    }

    /// One that did not answer may have it; else it is nowhere.
    fn too_few(&self, found: usize) -> DiskError {
        let silent = self.silent();
        let k = self.cut.erasure.data();
        let detail = format!("{found} other fragments of it are good here, and {k} are needed");
        DiskError {
            kind: silent.as_ref().map_or(DiskErrorKind::Absent, |error| error.kind),
            operation: "read",
            path: self.path.clone(),
            detail: silent.map_or(detail.clone(), |error| format!("{detail}; {error}")),
        }
    }

    fn forget(&self, offset: u64, bytes: u64) {
        for (index, range) in self.cut.pieces(offset..offset.saturating_add(bytes)) {
            if let Ok(Fragment { file, .. }) = &self.members[index] {
                file.forget(self.cut.content_at() + range.start, range.end - range.start);
            }
        }
    }
}

/// A range in pieces of so many bytes; the last one may be shorter.
fn steps(range: Range<u64>, bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    range
        .step_by(usize::try_from(bytes).expect("a piece fits in memory"))
        .map(move |start| start..(start + bytes).min(end))
}

/// Whether the disk failed to read what may be there: not that the file ends before.
fn is_the_disks(error: &DiskError) -> bool {
    !matches!(error.kind, DiskErrorKind::Absent | DiskErrorKind::Short)
}

/// The disk of several that a fragment is read on.
pub(crate) fn best(disks: DiskSet, doubtful: DiskSet) -> Option<usize> {
    disks.iter().find(|disk| !doubtful.has(*disk)).or_else(|| disks.first())
}

pub(crate) fn absent(name: &FragmentName) -> DiskError {
    let detail = "it is on no disk that is there".to_owned();
    DiskError { kind: DiskErrorKind::Absent, operation: "find", path: name.path(), detail }
}

/// Some blocks of a fragment's file, verified.
pub(crate) async fn read_blocks(
    file: &File,
    cut: &Cut,
    (pack, index): (u64, usize),
    blocks: &Range<u64>,
) -> Result<Vec<u8>, StoreError> {
    let (sums_at, content) = (cut.sums_at(blocks), cut.content_of(blocks));
    let length = |range: &Range<u64>| usize::try_from(range.end - range.start).expect("a fragment fits in memory");
    let (mut sums, mut bytes) = (vec![0; length(&sums_at)], vec![0; length(&content)]);
    file.read_exact_at(sums_at.start, &mut sums).await?;
    file.read_exact_at(cut.content_at() + content.start, &mut bytes).await?;
    let (sums, _) = sums.as_chunks();
    let each = blocks.clone().zip(bytes.chunks(Cut::BLOCK_BYTES as usize)).zip(sums);
    for ((block, bytes), sum) in each {
        let (expected, found) = (u64::from_le_bytes(*sum), FragmentHeader::sum(pack, index, block, bytes));
        if expected != found {
            let at = cut.content_at() + block * Cut::BLOCK_BYTES;
            let (expected, found) = (format!("checksum {expected:016x}"), format!("{found:016x}"));
            return Err(crate::failure::corrupt("a block of a fragment", file.path(), at, expected, found));
        }
    }
    Ok(bytes)
}

/// The header of a fragment's file.
pub(crate) async fn read_header(file: &File, name: &FragmentName) -> Result<FragmentHeader, StoreError> {
    let mut bytes = [0; FragmentHeader::BYTES];
    file.read_exact_at(0, &mut bytes).await?;
    let (directory, path) = file.path().rsplit_once('/').unwrap_or_default();
    FragmentHeader::decode(&bytes, name).map_err(|unfit| unfit_error("a fragment", directory, path, 0, unfit))
}

impl Packs {
    /// Notes that fragments of a pack are where `changed` says, unless it is gone: `false`.
    pub(crate) fn set_fragments(&self, pack: u64, cut: Cut, changed: impl FnOnce(Fragments) -> Fragments) -> bool {
        let mut catalog = self.catalog.write();
        let Some(known) = catalog.get_mut(&pack) else { return false };
        let before = known.fragments.as_deref().filter(|fragments| fragments.cut == cut).cloned();
        let after = changed(before.unwrap_or_else(|| Fragments::new(cut)));
        // Whoever reads what was there before reads no more of it.
        after.disks().iter().for_each(|disk| drop(self.files(disk).remove(&(pack | OF_FRAGMENT))));
        known.fragments = (!after.disks().is_empty()).then(|| Arc::new(after));
        true
    }

    /// Notes that only fragments of a pack are there from now on, all of them; the disks that had it whole. The files are the caller's.
    pub(crate) fn leave_whole(&self, pack: u64) -> DiskSet {
        let mut catalog = self.catalog.write();
        let Some(known) = catalog.get_mut(&pack) else { return DiskSet::NONE };
        let all = known.fragments().is_some_and(|fragments| fragments.lacking_on(self.pool.good()).next().is_none());
        if !all || !matches!(known.state, PackState::Sealed) {
            return DiskSet::NONE;
        }
        let disks = std::mem::take(&mut known.disks);
        known.short = DiskSet::NONE;
        disks.iter().for_each(|disk| drop(self.files(disk).remove(&pack)));
        self.suspects.lock().retain(|(suspect, _)| *suspect != pack);
        disks
    }

    /// The file of a pack as each disk has it that has all of it, and as its fragments make it.
    pub(crate) fn to_read(&self, pack: u64, known: &PackKnown) -> Vec<Result<File, DiskError>> {
        let whole = known.disks();
        let open = |disk: usize| self.pool.disks[disk].disk.open(&pack_path(pack), Open::Read);
        let joined =
            known.fragments().map(|fragments| Joined::open(&self.pool, pack, fragments, self.suspect_on(pack)));
        whole.iter().map(open).chain(joined.map(|joined| Ok(joined.into_file()))).collect()
    }

    /// What is good in a pack of which there are too few fragments: what lies in those that are there; and why nobody knows whether that is all.
    pub(crate) async fn scan_fragments(
        &self,
        pack: u64,
        known: &PackKnown,
    ) -> Option<(scan::Scanned, Option<DiskError>)> {
        let fragments = known.fragments()?;
        let joined = Joined::open(&self.pool, pack, fragments, self.suspect_on(pack));
        let bytes = Bytes::from(joined.read_what_answers().await);
        Some((scan::scan(&self.key, pack, &bytes), joined.silent()))
    }
}

struct JoinedFile(Arc<Joined>);

impl JoinedFile {
    fn refuse<T>(&self, operation: &'static str) -> Result<T, DiskError> {
        let detail = "fragments are only read, and waited for".to_owned();
        Err(DiskError { kind: DiskErrorKind::ReadOnly, operation, path: self.0.path.clone(), detail })
    }
}

impl RawFile for JoinedFile {
    fn read_at(&self, _offset: u64, _buffer: &mut [u8]) -> Result<usize, DiskError> {
        self.refuse("read")
    }
    fn read_or_wait(&self, offset: u64, buffer: &mut [u8]) -> Result<Read, DiskError> {
        let (joined, length) = (self.0.clone(), buffer.len() as u64);
        Ok(Read::Waits(0, Box::pin(async move { joined.read(offset, length).await })))
    }
    fn write_at(&self, _offset: u64, _bytes: &[u8]) -> Result<(), DiskError> {
        self.refuse("write")
    }
    fn forget(&self, offset: u64, bytes: u64) {
        self.0.forget(offset, bytes);
    }
    fn sync(&self) -> Result<(), DiskError> {
        self.refuse("sync")
    }
    fn length(&self) -> Result<u64, DiskError> {
        Ok(self.0.cut.whole_bytes)
    }
    fn set_length(&self, _length: u64) -> Result<(), DiskError> {
        self.refuse("cut")
    }
    fn pause(&self, _access: Access) -> Option<Boxed<()>> {
        None
    }
    fn path(&self) -> &str {
        &self.0.path
    }
}
