//! The inside of a simulated disk: names, contents, space, locks and the dice for its faults.
//!
//! Everything here is plain state without a lock, a clock or a power supply; `disk` puts those around it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::blocks::{BLOCK_BYTES, Blocks};
use super::content::{Content, SECTOR_BYTES};
use super::faults::Faults;
use super::names::{Names, Node, ancestors, parent};
use super::random::Random;
use crate::disk::{DiskErrorKind, Open, Space};

/// Why the disk does not do it: the kind and the words of a `DiskError`.
pub(super) type Refusal = (DiskErrorKind, &'static str);

const FAILED: Refusal = (DiskErrorKind::Failed, "the medium failed (injected fault)");
pub(super) const SILENT: Refusal = (DiskErrorKind::Silent, "the device does not answer");
/// Operations that are refused after a change that got no answer, at most.
const SILENT_FOR_MAX: u64 = 12;
const ABSENT: Refusal = (DiskErrorKind::Absent, "no such file or directory");

/// Files of one disk.
pub(super) struct Files {
    pub(super) capacity: u64,
    device: u64,
    pub(super) faults: Faults,
    /// Raised when all who use the disk lose it: open files and locks of an earlier boot are void.
    pub(super) boot: u64,
    /// The power goes during this very operation. Changes only wait for a sync anyway; a sync must not promise.
    pub(super) is_power_failing: bool,
    /// With what this very operation fails: M-9.
    pub(super) refusal: Option<Refusal>,
    /// So many operations are refused, because the disk owes an answer: M-9.
    pub(super) silent_for: u64,
    pub(super) names: Names,
    files: BTreeMap<u64, Entry>,
    file_last: u64,
    locks: BTreeSet<String>,
    dice: Random,
    /// Apart from the other dice: what a power loss takes does not depend on how many faults were rolled before.
    loss: Random,
}

#[derive(Default)]
struct Entry {
    content: Content,
    /// Handles of this boot.
    open_count: usize,
    is_named: bool,
    /// Bytes that the medium gives no more.
    unreadable: Range<u64>,
    /// Bits that flipped on their way into memory, by byte: whoever reads sees them, until they are overwritten or forgotten, or the
    /// power goes.
    misread: BTreeMap<u64, u8>,
}

impl Entry {
    /// A block comes as it was before the last sync that changed it.
    fn misread_old(&mut self, number: u64) {
        let Some(old) = self.content.older(number).cloned() else { return };
        let now = self.content.visible().block(number);
        for (at, (now, old)) in (number * BLOCK_BYTES as u64..).zip(now.iter().zip(old.iter())) {
            if now != old {
                self.misread.insert(at, now ^ old);
            }
        }
    }
}

impl Files {
    pub(super) fn new(seed: u64, name: &str, capacity: u64) -> Files {
        Files {
            capacity,
            device: Random::stream(seed, &format!("device of {name}")).below(u64::MAX),
            faults: Faults::default(),
            boot: 0,
            is_power_failing: false,
            refusal: None,
            silent_for: 0,
            names: Names::default(),
            files: BTreeMap::new(),
            file_last: 0,
            locks: BTreeSet::new(),
            dice: Random::stream(seed, &format!("faults of {name}")),
            loss: Random::stream(seed, &format!("losses of {name}")),
        }
    }

    /// Opens, and returns the file's number.
    pub(super) fn open(&mut self, path: &str, how: Open) -> Result<u64, Refusal> {
        if how != Open::Read {
            self.refuse_read_only()?;
        }
        let number = match (self.names.get(path), how) {
            (Some(Node::Directory), _) => return Err((DiskErrorKind::Failed, "it is a directory")),
            (Some(Node::File(_)), Open::Create) => return Err((DiskErrorKind::Exists, "the file exists already")),
            (Some(Node::File(number)), _) => {
                self.roll_read()?;
                number
            }
            (None, Open::Create) => self.create(path)?,
            (None, _) => return Err(ABSENT),
        };
        self.entry(number).open_count += 1;
        Ok(number)
    }

    pub(super) fn close(&mut self, number: u64) {
        self.entry(number).open_count -= 1;
    }

    pub(super) fn read(&mut self, number: u64, offset: u64, buffer: &mut [u8]) -> Result<usize, Refusal> {
        self.roll_read()?;
        let Range { start, end } = self.entry(number).unreadable;
        if offset < end && offset.saturating_add(buffer.len() as u64) > start {
            return Err(FAILED);
        }
        let count = self.entry(number).content.visible().read(offset, buffer);
        if count > 0 && self.dice.chance(self.faults.flip_read) {
            let at = self.dice.index(count);
            let bit = 1 << self.dice.below(8);
            *self.entry(number).misread.entry(offset + at as u64).or_default() ^= bit;
        }
        if count > 0 && self.dice.chance(self.faults.stale_read) {
            let at = offset + self.dice.index(count) as u64;
            self.entry(number).misread_old(at / BLOCK_BYTES as u64);
        }
        for (at, bits) in self.entry(number).misread.range(offset..offset + count as u64) {
            buffer[usize::try_from(at - offset).expect("below count")] ^= bits;
        }
        Ok(count)
    }

    /// What was read of these bytes is read anew.
    pub(super) fn forget(&mut self, number: u64, bytes: Range<u64>) {
        self.entry(number).misread.retain(|at, _| !bytes.contains(at));
    }

    pub(super) fn write(&mut self, number: u64, offset: u64, bytes: &[u8]) -> Result<(), Refusal> {
        self.refuse_read_only()?;
        let end = offset.checked_add(bytes.len() as u64).filter(|end| i64::try_from(*end).is_ok());
        let end = end.ok_or((DiskErrorKind::Failed, "beyond the largest offset"))?;
        let missing = self.entry(number).content.visible().missing(offset, bytes.len());
        if missing > 0 && missing > self.space().free {
            return Err((DiskErrorKind::Full, "no space left on the disk"));
        }
        if bytes.is_empty() {
            return Ok(());
        }
        self.forget(number, offset..end);
        if let Err(refusal) = self.roll(self.faults.write_error) {
            // Sectors up to some point, which may be none or all.
            let count = self.dice.index(bytes.len().div_ceil(SECTOR_BYTES) + 1) * SECTOR_BYTES;
            self.entry(number).content.write(offset, &bytes[..count.min(bytes.len())]);
            return Err(refusal);
        }
        if self.dice.chance(self.faults.lost_write) {
            self.entry(number).content.grow(end);
        } else if self.dice.chance(self.faults.misdirected_write) {
            self.entry(number).content.grow(end);
            self.misdirect(bytes);
        } else if self.dice.chance(self.faults.flip_write) {
            let mut wrong = bytes.to_vec();
            let at = self.dice.index(wrong.len());
            wrong[at] ^= 1 << self.dice.below(8);
            self.entry(number).content.write(offset, &wrong);
        } else {
            self.entry(number).content.write(offset, bytes);
        }
        Ok(())
    }

    pub(super) fn set_length(&mut self, number: u64, length: u64) -> Result<(), Refusal> {
        self.refuse_read_only()?;
        i64::try_from(length).map_err(|_| (DiskErrorKind::Failed, "beyond the largest offset"))?;
        let fails = self.roll_half_done(self.faults.write_error)?;
        self.forget(number, length..u64::MAX);
        self.entry(number).content.set_length(length);
        fails
    }

    pub(super) fn length(&mut self, number: u64) -> u64 {
        self.entry(number).content.visible().length()
    }

    pub(super) fn sync(&mut self, number: u64) -> Result<(), Refusal> {
        if self.is_power_failing {
            // What it would have made durable is left to the power loss, which may keep all of it.
            return Ok(());
        }
        let rolled = self.roll(self.faults.sync_error);
        let entry = self.files.get_mut(&number).expect("an open file is kept");
        match rolled {
            Ok(()) => entry.content.sync(),
            Err(_) => entry.content.fail_sync(&mut self.dice),
        }
        rolled?;
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &str) -> Result<(), Refusal> {
        self.refuse_read_only()?;
        let number = self.file(path)?;
        let fails = self.roll_half_done(self.faults.write_error)?;
        self.names.unlink(path);
        self.entry(number).is_named = false;
        fails
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> Result<(), Refusal> {
        self.refuse_read_only()?;
        let number = self.file(from)?;
        self.directory(parent(to))?;
        let replaced = match self.names.get(to) {
            Some(Node::Directory) => return Err((DiskErrorKind::Failed, "a directory is in the way")),
            Some(Node::File(replaced)) => Some(replaced),
            None => None,
        };
        let fails = self.roll_half_done(self.faults.write_error)?;
        if replaced == Some(number) {
            return fails;
        }
        self.names.rename(from, to, Node::File(number));
        if let Some(replaced) = replaced {
            self.entry(replaced).is_named = false;
        }
        fails
    }

    pub(super) fn list(&mut self, path: &str) -> Result<Vec<String>, Refusal> {
        self.directory(path)?;
        self.roll_read()?;
        Ok(self.names.list(path))
    }

    pub(super) fn make_directory(&mut self, path: &str) -> Result<(), Refusal> {
        self.refuse_read_only()?;
        for directory in ancestors(path).chain([path]) {
            match self.names.get(directory) {
                Some(Node::Directory) => {}
                Some(Node::File(_)) => return Err((DiskErrorKind::Failed, "a file is in the way")),
                None => {
                    let fails = self.roll_half_done(self.faults.write_error)?;
                    self.names.link(directory, Node::Directory);
                    fails?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn sync_directory(&mut self, path: &str) -> Result<(), Refusal> {
        self.directory(path)?;
        if self.is_power_failing {
            return Ok(());
        }
        self.roll(self.faults.sync_error)?;
        self.names.sync(path);
        self.forget_unreachable();
        Ok(())
    }

    /// Room by blocks of files that have a name or are open.
    pub(super) fn space(&self) -> Space {
        let living = self.files.values().filter(|entry| entry.is_named || entry.open_count > 0);
        let taken: u64 = living.map(|entry| entry.content.visible().taken()).sum();
        Space { total: self.capacity, free: self.capacity.saturating_sub(taken), device: self.device, is_late: false }
    }

    pub(super) fn lock(&mut self, path: &str) -> Result<(), Refusal> {
        self.refused()?;
        match self.names.get(path) {
            Some(Node::Directory) => return Err((DiskErrorKind::Failed, "it is a directory")),
            Some(Node::File(_)) => {}
            None => {
                self.refuse_read_only()?;
                self.create(path)?;
            }
        }
        if self.locks.insert(path.to_owned()) {
            Ok(())
        } else {
            Err((DiskErrorKind::Locked, "somebody holds the lock"))
        }
    }

    pub(super) fn unlock(&mut self, path: &str) {
        self.locks.remove(path);
    }

    /// All who use the disk are gone; what they wrote stays.
    pub(super) fn close_all(&mut self) {
        self.boot += 1;
        self.silent_for = 0;
        self.locks.clear();
        self.files.values_mut().for_each(|entry| entry.open_count = 0);
        self.forget_unreachable();
    }

    /// The power is gone.
    pub(super) fn lose(&mut self) {
        self.names.lose(&mut self.loss);
        let named: BTreeSet<u64> = self.names.files().map(|(_, number)| number).collect();
        for (number, entry) in &mut self.files {
            entry.content.lose(&mut self.loss);
            entry.is_named = named.contains(number);
            entry.misread.clear();
        }
        self.close_all();
    }

    /// A named file's content, for the hand of the test.
    pub(super) fn content(&mut self, path: &str) -> Option<&mut Content> {
        let number = self.file(path).ok()?;
        Some(&mut self.entry(number).content)
    }

    /// Has a bit of a named file be read wrongly; `false` if there is no such file.
    pub(super) fn misread(&mut self, path: &str, offset: u64, bit: u32) -> bool {
        let Ok(number) = self.file(path) else { return false };
        *self.entry(number).misread.entry(offset).or_default() ^= 1 << bit;
        true
    }

    /// Makes bytes of a named file unreadable; `false` if there is no such file.
    pub(super) fn set_unreadable(&mut self, path: &str, bytes: Range<u64>) -> bool {
        let Ok(number) = self.file(path) else { return false };
        self.entry(number).unreadable = bytes;
        true
    }

    /// Puts a file there, durable with its name and its directories.
    pub(super) fn install(&mut self, path: &str, bytes: &[u8]) {
        for directory in ancestors(path) {
            if self.names.get(directory).is_none() {
                self.names.link(directory, Node::Directory);
            }
        }
        let number = match self.names.get(path) {
            Some(Node::File(number)) => number,
            Some(Node::Directory) => panic!("{path} is a directory"),
            None => self.link_new(path),
        };
        self.names.sync_all();
        let mut content = Blocks::default();
        content.write(0, bytes);
        self.entry(number).content.replace(content);
    }

    /// Takes a file away, durably.
    pub(super) fn uninstall(&mut self, path: &str) -> bool {
        let Ok(number) = self.file(path) else { return false };
        self.names.unlink(path);
        self.names.sync_all();
        self.entry(number).is_named = false;
        self.forget_unreachable();
        true
    }

    fn create(&mut self, path: &str) -> Result<u64, Refusal> {
        self.directory(parent(path))?;
        if self.space().free < BLOCK_BYTES as u64 {
            // A full disk has no room for a directory's block either.
            return Err((DiskErrorKind::Full, "no space left on the disk"));
        }
        let fails = self.roll_half_done(self.faults.write_error)?;
        let number = self.link_new(path);
        fails.map(|()| number)
    }

    fn link_new(&mut self, path: &str) -> u64 {
        self.file_last += 1;
        self.files.insert(self.file_last, Entry { is_named: true, ..Entry::default() });
        self.names.link(path, Node::File(self.file_last));
        self.file_last
    }

    /// A write that lands elsewhere, on whole sectors. Media do not know of files: nothing grows.
    fn misdirect(&mut self, bytes: &[u8]) {
        let sized: Vec<u64> = self
            .files
            .iter()
            .filter(|(_, entry)| entry.content.visible().length() > 0)
            .map(|(number, _)| *number)
            .collect();
        if sized.is_empty() {
            return;
        }
        let victim = sized[self.dice.index(sized.len())];
        let length = self.length(victim);
        let offset = self.dice.below(length.div_ceil(SECTOR_BYTES as u64)) * SECTOR_BYTES as u64;
        self.entry(victim).content.alter(offset, bytes.len(), |at, byte| *byte = bytes[at]);
    }

    fn forget_unreachable(&mut self) {
        let reachable = self.names.reachable();
        self.files.retain(|number, entry| entry.open_count > 0 || reachable.contains(number));
    }

    fn file(&self, path: &str) -> Result<u64, Refusal> {
        match self.names.get(path) {
            Some(Node::File(number)) => Ok(number),
            Some(Node::Directory) => Err((DiskErrorKind::Failed, "it is a directory")),
            None => Err(ABSENT),
        }
    }

    fn directory(&self, path: &str) -> Result<(), Refusal> {
        match self.names.get(path) {
            Some(Node::Directory) => Ok(()),
            Some(Node::File(_)) => Err((DiskErrorKind::Failed, "it is not a directory")),
            None => Err(ABSENT),
        }
    }

    fn entry(&mut self, number: u64) -> &mut Entry {
        self.files.get_mut(&number).expect("a file that is named or open is kept")
    }

    fn refuse_read_only(&self) -> Result<(), Refusal> {
        if self.faults.is_read_only { Err((DiskErrorKind::ReadOnly, "the disk is read-only")) } else { Ok(()) }
    }

    /// M-9.
    fn refused(&mut self) -> Result<(), Refusal> {
        match self.refusal.take() {
            // It owes an answer for a while: rule B-2 of `real`.
            Some((DiskErrorKind::Silent, _)) => {
                self.silent_for = 1 + self.dice.below(SILENT_FOR_MAX);
                Err(SILENT)
            }
            Some(refusal) => Err(refusal),
            None => Ok(()),
        }
    }

    /// For what changes nothing: want of room is no reason.
    fn roll_read(&mut self) -> Result<(), Refusal> {
        match self.refusal.take() {
            Some((DiskErrorKind::Silent, _)) => Err(SILENT),
            Some(_) => Err(FAILED),
            None => self.roll(self.faults.read_error),
        }
    }

    fn roll(&mut self, probability: f64) -> Result<(), Refusal> {
        self.refused()?;
        if self.dice.chance(probability) { Err(FAILED) } else { Ok(()) }
    }

    /// For an operation that fails before or after it has happened: the outer error is before, the inner one after.
    fn roll_half_done(&mut self, probability: f64) -> Result<Result<(), Refusal>, Refusal> {
        match self.roll(probability) {
            Ok(()) => Ok(Ok(())),
            Err(refusal) if self.dice.coin() => Ok(Err(refusal)),
            Err(refusal) => Err(refusal),
        }
    }
}
