//! The probe: what a disk takes for a request, and how many at a time it does best, is measured, for disks differ a thousandfold.
//!
//! Small reads of packs at random, one at a time, then twice as many at a time as long as that gains something; then long ones. What
//! memory has tells nothing of the disk, and is passed over: nothing is made to be forgotten, for others read there.
//!
//! Not here: when it is measured (`file`), what is read by it (`ordered`, `reading`).

use std::time::Duration;

use platform::disk::{Disk, File};
use platform::task::all;

use crate::format::pack_path;
use crate::pack::PackState;
use crate::speed::DiskSpeed;
use crate::store::Store;

const SMALL_BYTES: u64 = 4 << 10;
const LONG_BYTES: u64 = 1 << 20;
/// Small reads one at a time go on for so long, or are so many: what is limited to so many in a second lets some through at once after a rest.
const ALONE: Duration = Duration::from_millis(250);
const ALONE_READS_MAX: u32 = 1000;
/// Small reads with several at a time: of a disk that turns few, for each takes long.
const MANY_READS: u32 = 64;
const FEW_READS: u32 = 8;
const SLOW: Duration = Duration::from_millis(1);
/// A search for the best depth goes so far.
const DEPTH_MAX: u32 = 32;
const LONG_READS: u32 = 4;
const LONG_DEPTH: u32 = 2;
/// Packs that are read, of those that are large enough. Of a disk with fewer bytes than the least nothing is told.
const PACKS_READ: usize = 16;
const PACK_BYTES_MIN: u64 = 2 << 20;
const BYTES_MIN: u64 = 16 << 20;
/// Places that memory has are passed over so many times.
const TRIES: u32 = 16;

impl Store {
    /// Measures each disk that can be read and was not measured since so long a time. Whether there is none left: on one that has little, or
    /// only what memory has, there is nothing to measure.
    pub async fn measure_speeds(&self, age: Duration) -> bool {
        let _one = self.measuring.lock().await;
        let mut are_all = true;
        let disks: Vec<usize> = self.pool.there().map(|(number, _)| number).collect();
        for number in disks {
            let clock = &self.platform.clock;
            let on = &self.pool.disks[number];
            let is_known = on.speed().is_some_and(|speed| clock.elapsed().saturating_sub(speed.measured) < age);
            if is_known || !on.is_good() {
                continue;
            }
            match self.measure_speed(number, &on.disk).await {
                Some(speed) => {
                    self.counters.speeds_measured.add(1);
                    on.set_speed(speed);
                }
                None => are_all = false,
            }
        }
        are_all
    }

    /// `None`: too little is there, or a read failed; whoever wants that chunk hears of it.
    async fn measure_speed(&self, number: usize, disk: &Disk) -> Option<DiskSpeed> {
        let probe = Probe::new(self, number, disk).await?;
        let alone = probe.read_alone().await?;
        let reads = if alone > SLOW { FEW_READS } else { MANY_READS };
        let (mut depth, mut request) = (1, alone);
        while depth < DEPTH_MAX {
            let deeper = probe.read(SMALL_BYTES, reads.max(depth * 4), depth * 2).await?;
            if deeper > request * 4 / 5 {
                break;
            }
            (depth, request) = (depth * 2, deeper);
        }
        let long = probe.read(LONG_BYTES, LONG_READS, LONG_DEPTH).await?;
        // Where nothing but requests is limited they tell nothing of bytes.
        let passing = long.saturating_sub(request).max(long / 8).max(Duration::from_nanos(1));
        let bytes_per_second = u128::from(LONG_BYTES) * 1_000_000_000 / passing.as_nanos();
        Some(DiskSpeed {
            alone,
            depth,
            request,
            bytes_per_second: u64::try_from(bytes_per_second).unwrap_or(u64::MAX),
            measured: self.platform.clock.elapsed(),
        })
    }

    /// Over how large a gap chunks of a pack are read together.
    pub(crate) fn gap_bytes_at(&self, pack: u64) -> u64 {
        let known = self.packs.known_pack(pack);
        known
            .and_then(|known| known.places().iter().next())
            .map_or_else(|| self.gap_bytes(None), |disk| self.gap_bytes(Some(disk)))
    }

    /// The same on a disk.
    pub(crate) fn gap_bytes(&self, disk: Option<usize>) -> u64 {
        if let Some(bytes) = self.options.gap_bytes {
            return u64::from(bytes);
        }
        let speed = disk.and_then(|disk| self.pool.disks[disk].speed());
        speed.map_or(GAP_BYTES_UNMEASURED, |speed| speed.gap_bytes())
    }

    /// How many requests at a time a disk is given by who reads in masses.
    pub(crate) fn depth(&self, disk: usize) -> u32 {
        self.pool.disks[disk].speed().map_or(DEPTH_UNMEASURED, |speed| speed.depth)
    }
}

/// As long as nothing was measured: little beside what a disk that turns passes in the time of a request, and some requests of one that does not.
const GAP_BYTES_UNMEASURED: u64 = 128 << 10;
const DEPTH_UNMEASURED: u32 = 16;

/// Reads of one disk that nobody wants.
struct Probe<'a> {
    store: &'a Store,
    /// Files of packs, and how long they are.
    files: Vec<(File, u64)>,
}

impl Probe<'_> {
    async fn new<'a>(store: &'a Store, number: usize, disk: &Disk) -> Option<Probe<'a>> {
        let mut packs: Vec<(u64, u64)> = Vec::new();
        for (pack, known) in store.packs.known() {
            let bytes = u64::from(known.summary.data_bytes);
            let is_whole = matches!(known.state, PackState::Sealed) && known.disks().has(number);
            packs.extend((is_whole && bytes >= PACK_BYTES_MIN).then_some((pack, bytes)));
        }
        let mut probe = Probe { store, files: Vec::new() };
        while probe.files.len() < PACKS_READ && !packs.is_empty() {
            let (pack, bytes) = packs.swap_remove(usize::try_from(probe.chance(packs.len() as u64)).ok()?);
            // One that is just being removed is no matter.
            probe.files.extend(disk.open_to_read(&pack_path(pack)).await.ok().map(|file| (file, bytes)));
        }
        (probe.files.iter().map(|(_, bytes)| bytes).sum::<u64>() >= BYTES_MIN).then_some(probe)
    }

    fn chance(&self, below: u64) -> u64 {
        let mut bytes = [0; 8];
        self.store.platform.chance.fill(&mut bytes);
        u64::from_le_bytes(bytes) % below.max(1)
    }

    /// What each of so many reads takes, some at a time.
    async fn read(&self, bytes: u64, count: u32, depth: u32) -> Option<Duration> {
        let clock = &self.store.platform.clock;
        let start = clock.elapsed();
        let each = count.div_ceil(depth);
        let readers = (0..depth).map(|_| async {
            for _ in 0..each {
                self.read_one(bytes).await?;
            }
            Some(())
        });
        let read = all(readers).await;
        let time = clock.elapsed().saturating_sub(start) / (each * depth);
        read.into_iter().all(|read| read.is_some()).then_some(time)
    }

    /// What a small read takes while there is no other.
    async fn read_alone(&self) -> Option<Duration> {
        let clock = &self.store.platform.clock;
        let (start, mut reads) = (clock.elapsed(), 0);
        loop {
            self.read_one(SMALL_BYTES).await?;
            reads += 1;
            let time = clock.elapsed().saturating_sub(start);
            if reads == ALONE_READS_MAX || time >= ALONE {
                return Some(time / reads);
            }
        }
    }

    async fn read_one(&self, bytes: u64) -> Option<()> {
        for _ in 0..TRIES {
            let (file, length) = &self.files[usize::try_from(self.chance(self.files.len() as u64)).ok()?];
            let offset = self.chance((length - bytes) / SMALL_BYTES) * SMALL_BYTES;
            if file.read_fresh(offset, usize::try_from(bytes).ok()?).await.ok()? {
                return Some(());
            }
        }
        None
    }
}
