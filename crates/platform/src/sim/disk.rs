//! A simulated disk, as the code under test sees it and as the test does.
//!
//! Each operation first meets the power supply, which counts it, then the disk's health, then happens, and leaves a line in the
//! world's trace. The pause before an operation is drawn from the seed, so that tasks overtake each other, or follows from its place (`elevator`); the
//! blocking operation itself takes no time, so that it can be used beneath a library that cannot wait.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use base::hash::checksum;
use parking_lot::{Mutex, MutexGuard};

use super::blocks::Blocks;
use super::elevator::Elevator;
use super::faults::Faults;
use super::files::{Files, Refusal, SILENT};
use super::names::clean;
use super::platter::{Placed, Platter};
use super::power::Current;
use super::random::Random;
use super::schedule::Machine;
use crate::disk::{Access, Disk, DiskError, DiskErrorKind, Open, RawDisk, RawFile, Space};
use crate::task::Boxed;

/// Least and most that an operation takes beside its bytes: an NVMe disk, quiet and busy.
const LATENCY_MICROS: (u64, u64) = (20, 200);
/// One in this many takes a hundred times as long: the disk collects its garbage.
const STALL_ONE_IN: u64 = 100;
/// 1 GB/s.
const NANOS_PER_BYTE: u64 = 1;

/// A simulated disk. Cheap to clone; all clones are the same disk.
#[derive(Clone)]
pub struct SimDisk(Arc<Device>);

struct Device {
    name: String,
    machine: Arc<Machine>,
    files: Mutex<Files>,
    latency: Mutex<Random>,
    /// If it is one that turns: then no time is drawn.
    elevator: Mutex<Option<Arc<Elevator>>>,
}

impl SimDisk {
    pub(super) fn new(machine: &Arc<Machine>, name: &str, capacity: u64) -> SimDisk {
        SimDisk(Arc::new(Device {
            name: name.to_owned(),
            machine: machine.clone(),
            files: Mutex::new(Files::new(machine.seed, name, capacity)),
            latency: Mutex::new(Random::stream(machine.seed, &format!("latency of {name}"))),
            elevator: Mutex::new(None),
        }))
    }

    /// Operations take the time of a drive that turns from now on, by where they lie, instead of one that is drawn.
    pub fn set_platter(&self, platter: Platter) {
        *self.0.elevator.lock() = Some(Arc::new(Elevator::new(&self.0.machine.timeline, platter)));
    }

    /// What the drive did since this was asked last, if it is one that turns.
    #[must_use]
    pub fn take_placed(&self) -> Vec<Placed> {
        self.0.elevator.lock().as_ref().map(|elevator| elevator.take()).unwrap_or_default()
    }

    /// The disk as code takes it.
    #[must_use]
    pub fn disk(&self) -> Disk {
        Disk::new(Arc::new(self.clone()))
    }

    /// What is wrong with it now.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.0.files.lock().faults.clone()
    }

    /// Sets what is wrong with it from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.0.files.lock().faults = faults;
    }

    /// Makes the disk larger or smaller. What is on it stays.
    pub fn set_capacity(&self, bytes: u64) {
        self.0.files.lock().capacity = bytes;
    }

    /// This disk loses its power: the seed takes what it may of all that was not synced, open files fail from now on, locks are
    /// free. The rest of the machine does not notice; [`super::World::restart`] does this to every disk.
    pub fn power_loss(&self) {
        self.0.files.lock().lose();
        self.0.elevator.lock().iter().for_each(|elevator| elevator.abandon());
    }

    /// All files as a reader sees them now. Costs no operation and works without power.
    #[must_use]
    pub fn snapshot_files(&self) -> BTreeMap<String, Vec<u8>> {
        self.snapshot(|files, path| files.content(path).map(|content| content.visible().to_vec()))
    }

    /// Files by their current names with the bytes that certainly survive a power loss, if the name does.
    #[must_use]
    pub fn durable_files(&self) -> BTreeMap<String, Vec<u8>> {
        self.snapshot(|files, path| files.content(path).map(|content| content.durable().to_vec()))
    }

    /// Flips one bit (0 to 7) of a byte at rest.
    ///
    /// # Panics
    /// If there is no such file or byte: the test is wrong.
    pub fn flip_bit(&self, path: &str, offset: u64, bit: u32) {
        self.alter(path, offset, 1, |_, byte| *byte ^= 1 << bit);
    }

    /// One bit (0 to 7) of a byte has flipped on its way into memory: rule M-8.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn misread(&self, path: &str, offset: u64, bit: u32) {
        assert!(self.0.files.lock().misread(&clean(path), offset, bit), "no file {path} on disk {}", self.0.name);
    }

    /// Overwrites bytes at rest, as a medium does that rots: no length changes, and no sync mends it.
    ///
    /// # Panics
    /// If there is no such file or the range goes beyond its end.
    pub fn corrupt(&self, path: &str, offset: u64, bytes: &[u8]) {
        self.alter(path, offset, bytes.len(), |at, byte| *byte = bytes[at]);
    }

    /// Reads that touch these bytes of a file fail from now on, and no others of it: an empty range makes it whole again. What is there
    /// stays, and takes writes.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn set_unreadable(&self, path: &str, bytes: Range<u64>) {
        assert!(self.0.files.lock().set_unreadable(&clean(path), bytes), "no file {path} on disk {}", self.0.name);
    }

    /// Cuts a file at rest; what was waiting for a sync is first made durable.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn truncate(&self, path: &str, length: u64) {
        self.with_content(path, |content| {
            let mut blocks: Blocks = content.visible().clone();
            blocks.set_length(length);
            content.replace(blocks);
        });
    }

    /// Takes a file away, durably; all names that wait for a sync become durable with it. `false` if there is none.
    pub fn remove(&self, path: &str) -> bool {
        self.0.files.lock().uninstall(&clean(path))
    }

    /// Puts a file with these bytes there, or replaces one, durably and with its directories; all names that wait for a
    /// sync become durable with it.
    pub fn install(&self, path: &str, bytes: &[u8]) {
        self.0.files.lock().install(&clean(path), bytes);
    }

    pub(super) fn close_all(&self) {
        self.0.files.lock().close_all();
        self.0.elevator.lock().iter().for_each(|elevator| elevator.abandon());
    }

    fn snapshot(&self, read: impl Fn(&mut Files, &str) -> Option<Vec<u8>>) -> BTreeMap<String, Vec<u8>> {
        let mut files = self.0.files.lock();
        let paths: Vec<String> = files.names.files().map(|(path, _)| path.clone()).collect();
        paths.into_iter().filter_map(|path| read(&mut files, &path).map(|bytes| (path, bytes))).collect()
    }

    fn alter(&self, path: &str, offset: u64, count: usize, change: impl Fn(usize, &mut u8)) {
        self.with_content(path, |content| {
            let length = content.visible().length();
            assert!(offset + count as u64 <= length, "{path} has {length} bytes, no {count} at {offset}");
            content.alter(offset, count, change);
        });
    }

    fn with_content(&self, path: &str, change: impl FnOnce(&mut super::content::Content)) {
        let mut files = self.0.files.lock();
        change(files.content(&clean(path)).unwrap_or_else(|| panic!("no file {path} on disk {}", self.0.name)));
    }
}

impl Device {
    /// One operation: counted, refused without power or on a dead disk, noted in the trace.
    fn operate<T>(
        &self,
        operation: &'static str,
        path: &str,
        numbers: [u64; 2],
        run: impl FnOnce(&mut Files) -> Result<T, Refusal>,
    ) -> Result<T, DiskError> {
        let current = self.machine.power.operation();
        let result = self.attempt(current, run);
        let outcome = result.as_ref().map_or_else(|(kind, _)| 1 + *kind as u64, |_| 0);
        self.machine.note(operation, &self.name, &[]);
        self.machine.note("", path, &[numbers[0], numbers[1], outcome]);
        result.map_err(|refusal| self.describe(operation, path, refusal))
    }

    fn attempt<T>(&self, current: Current, run: impl FnOnce(&mut Files) -> Result<T, Refusal>) -> Result<T, Refusal> {
        const GONE: Refusal = (DiskErrorKind::Failed, "power is gone");
        if current == Current::Gone {
            return Err(GONE);
        }
        let mut files = self.files.lock();
        if files.faults.is_dead {
            return Err((DiskErrorKind::Failed, "the disk does not answer"));
        }
        if let Some(left) = files.silent_for.checked_sub(1) {
            files.silent_for = left;
            return Err(SILENT);
        }
        files.is_power_failing = current == Current::Failing;
        files.refusal = match current {
            Current::Refused(kind) => Some((kind, "injected fault")),
            _ => None,
        };
        let result = run(&mut files);
        if current == Current::Failing { Err(GONE) } else { result }
    }

    fn describe(&self, operation: &'static str, path: &str, (kind, detail): Refusal) -> DiskError {
        DiskError { kind, operation, path: self.show(path), detail: detail.to_owned() }
    }

    fn show(&self, path: &str) -> String {
        format!("{}/{path}", self.name)
    }

    /// What is asked without touching the medium: not counted, but answered only while there is one.
    fn ask(&self, operation: &'static str, path: &str) -> Result<MutexGuard<'_, Files>, DiskError> {
        let files = self.files.lock();
        let refusal = match () {
            () if !self.machine.power.is_on() => (DiskErrorKind::Failed, "power is gone"),
            () if files.faults.is_dead => (DiskErrorKind::Failed, "the disk does not answer"),
            () if files.silent_for > 0 => SILENT,
            () => return Ok(files),
        };
        drop(files);
        Err(self.describe(operation, path, refusal))
    }
}

impl RawDisk for SimDisk {
    fn open(&self, path: &str, how: Open) -> Result<Arc<dyn RawFile>, DiskError> {
        let path = clean(path);
        let (number, boot) = self.0.operate("open", &path, [how as u64, 0], |files| {
            let number = files.open(&path, how)?;
            Ok((number, files.boot))
        })?;
        let shown = self.0.show(&path);
        Ok(Arc::new(Handle { device: self.0.clone(), number, boot, is_writable: how != Open::Read, path, shown }))
    }

    fn remove(&self, path: &str) -> Result<(), DiskError> {
        let path = clean(path);
        self.0.operate("remove", &path, [0, 0], |files| files.remove(&path))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        let (from, to) = (clean(from), clean(to));
        self.0.operate("rename", &from, [checksum(0, to.as_bytes()), 0], |files| files.rename(&from, &to))
    }

    fn list(&self, path: &str) -> Result<Vec<String>, DiskError> {
        let path = clean(path);
        self.0.operate("list", &path, [0, 0], |files| files.list(&path))
    }

    fn make_directory(&self, path: &str) -> Result<(), DiskError> {
        let path = clean(path);
        self.0.operate("make directory", &path, [0, 0], |files| files.make_directory(&path))
    }

    fn sync_directory(&self, path: &str) -> Result<(), DiskError> {
        let path = clean(path);
        self.0.operate("sync directory", &path, [0, 0], |files| files.sync_directory(&path))
    }

    fn space(&self) -> Result<Space, DiskError> {
        self.0.ask("measure the space of", "").map(|files| files.space())
    }

    fn lock(&self, path: &str) -> Result<Box<dyn Send + Sync>, DiskError> {
        let path = clean(path);
        let boot = self.0.operate("lock", &path, [0, 0], |files| files.lock(&path).map(|()| files.boot))?;
        Ok(Box::new(Lock { device: self.0.clone(), path, boot }))
    }

    fn path(&self) -> &str {
        &self.0.name
    }
}

/// A lock that is held.
struct Lock {
    device: Arc<Device>,
    path: String,
    boot: u64,
}

impl Drop for Lock {
    fn drop(&mut self) {
        let mut files = self.device.files.lock();
        if files.boot == self.boot {
            files.unlock(&self.path);
        }
    }
}

/// An open file.
struct Handle {
    device: Arc<Device>,
    number: u64,
    boot: u64,
    is_writable: bool,
    path: String,
    shown: String,
}

impl Handle {
    fn operate<T>(
        &self,
        operation: &'static str,
        numbers: [u64; 2],
        run: impl FnOnce(&mut Files) -> Result<T, Refusal>,
    ) -> Result<T, DiskError> {
        self.device.operate(operation, &self.path, numbers, |files| {
            self.refuse_stale(files)?;
            run(files)
        })
    }

    /// A drive that turns is busy with what nobody waited for.
    fn charge(&self, access: Access) {
        if let Some(elevator) = self.device.elevator.lock().as_ref() {
            elevator.charge(self.number, access);
        }
    }

    /// What an operation takes by the seed.
    fn drawn_pause(&self, access: Access) -> Duration {
        let bytes = match access {
            Access::Read(_, bytes) | Access::Write(_, bytes) => bytes,
            Access::Sync => 0,
        };
        let (slowness, further) = {
            let faults = &self.device.files.lock().faults;
            (u64::from(faults.slowness), faults.latency)
        };
        let mut latency = self.device.latency.lock();
        let (least, most) = LATENCY_MICROS;
        let quiet = (least + latency.below(most - least)) * 1000 + bytes * NANOS_PER_BYTE;
        let nanos = if latency.below(STALL_ONE_IN) == 0 { quiet * 100 } else { quiet };
        Duration::from_nanos(nanos.saturating_mul(slowness)) + further
    }

    fn refuse_stale(&self, files: &Files) -> Result<(), Refusal> {
        if files.boot == self.boot { Ok(()) } else { Err((DiskErrorKind::Failed, "it was opened before a crash")) }
    }

    fn refuse_reader(&self) -> Result<(), Refusal> {
        if self.is_writable { Ok(()) } else { Err((DiskErrorKind::Denied, "it is open for reading only")) }
    }
}

impl RawFile for Handle {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        let count = buffer.len() as u64;
        self.charge(Access::Read(offset, count));
        self.operate("read", [offset, count], |files| files.read(self.number, offset, buffer))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.charge(Access::Write(offset, bytes.len() as u64));
        self.operate("write", [offset, checksum(bytes.len() as u64, bytes)], |files| {
            self.refuse_reader()?;
            files.write(self.number, offset, bytes)
        })
    }

    fn forget(&self, offset: u64, bytes: u64) {
        let end = offset.saturating_add(bytes);
        // Nothing to fail, and nothing that takes time.
        let _ = self.operate("forget", [offset, bytes], |files| {
            files.forget(self.number, offset..end);
            Ok(())
        });
    }

    fn sync(&self) -> Result<(), DiskError> {
        self.charge(Access::Sync);
        self.operate("sync", [0, 0], |files| files.sync(self.number))
    }

    fn length(&self) -> Result<u64, DiskError> {
        let mut files = self.device.ask("measure", &self.path)?;
        let stale = self.refuse_stale(&files);
        stale
            .map(|()| files.length(self.number))
            .map_err(|refusal| self.device.describe("measure", &self.path, refusal))
    }

    fn set_length(&self, length: u64) -> Result<(), DiskError> {
        self.operate("resize", [length, 0], |files| {
            self.refuse_reader()?;
            files.set_length(self.number, length)
        })
    }

    fn pause(&self, access: Access) -> Option<Boxed<()>> {
        if let Some(elevator) = self.device.elevator.lock().as_ref() {
            return Some(elevator.request(self.number, access));
        }
        Some(self.device.machine.timeline.sleep(self.drawn_pause(access)))
    }

    #[expect(
        clippy::misnamed_getters,
        reason = "`path` is within the disk; callers are told the one with the disk's name"
    )]
    fn path(&self) -> &str {
        &self.shown
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut files = self.device.files.lock();
        if files.boot == self.boot {
            files.close(self.number);
        }
    }
}
