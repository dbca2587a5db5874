//! The shared memory of a batch: a sealed memfd, in windows of equal size.
//!
//! Not here: what lies in it (`wire`).

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::io::Errno;

/// Windows of one batch.
pub const WINDOWS_MAX: u32 = 64;
/// Bytes of one window.
pub const WINDOW_BYTES_MIN: u32 = 64 << 10;
/// Bytes of one window at most.
pub const WINDOW_BYTES_MAX: u32 = 64 << 20;

/// What is put into a window in small pieces goes there in such large ones.
const PENDING_BYTES_MAX: usize = 256 << 10;

/// Slices that one system call takes (IOV_MAX).
const SLICES_MAX: usize = 1024;

/// Buffers that are kept for the next window: new ones would be faulted in page by page, which takes as long as copying.
const SPARE_MAX: usize = 3;

/// The memory, as either side has it.
pub struct Memory {
    file: File,
    windows: u32,
    window_bytes: u32,
    spare: Arc<Spare>,
}

/// Buffers of the size of a window, for what is read.
type Spare = Mutex<Vec<Vec<u8>>>;

/// What was read of a window; its buffer goes back when nobody uses it any more.
struct Window {
    buffer: Vec<u8>,
    bytes: usize,
    spare: Arc<Spare>,
}

impl AsRef<[u8]> for Window {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.bytes]
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let mut spare = self.spare.lock();
        if spare.len() < SPARE_MAX {
            spare.push(std::mem::take(&mut self.buffer));
        }
    }
}

impl Memory {
    /// Makes it.
    pub fn make(windows: u32, window_bytes: u32) -> io::Result<Memory> {
        let file = File::from(memfd_create("hydrafs-batch", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        file.set_len(u64::from(windows) * u64::from(window_bytes))?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Memory { file, windows, window_bytes, spare: Arc::default() })
    }

    /// Takes what somebody else made, or says what is wrong with it.
    pub fn accept(descriptor: OwnedFd, windows: u32, window_bytes: u32) -> Result<Memory, String> {
        if windows == 0 || windows > WINDOWS_MAX || !(WINDOW_BYTES_MIN..=WINDOW_BYTES_MAX).contains(&window_bytes) {
            return Err(format!(
                "it has 1 to {WINDOWS_MAX} windows of {WINDOW_BYTES_MIN} to {WINDOW_BYTES_MAX} bytes, not {windows} of {window_bytes}"
            ));
        }
        let seals = fcntl_get_seals(&descriptor).map_err(|_| "it is no memfd that can be sealed".to_owned())?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err("it is not sealed against shrinking and growing".to_owned());
        }
        let file = File::from(descriptor);
        let expected = u64::from(windows) * u64::from(window_bytes);
        match file.metadata() {
            Ok(found) if found.len() == expected => Ok(Memory { file, windows, window_bytes, spare: Arc::default() }),
            Ok(found) => Err(format!("it has {} bytes, and {windows} windows take {expected}", found.len())),
            Err(error) => Err(error.to_string()),
        }
    }

    /// One more descriptor of it, for the other side.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned()
    }

    /// How many windows.
    #[must_use]
    pub fn windows(&self) -> u32 {
        self.windows
    }

    /// Bytes of each.
    #[must_use]
    pub fn window_bytes(&self) -> u32 {
        self.window_bytes
    }

    /// What was filled of a window.
    pub fn read(&self, window: u32, bytes: u32) -> io::Result<Bytes> {
        let place = self.place(window, 0, bytes)?;
        let spare = self.spare.lock().pop();
        let buffer = spare.unwrap_or_else(|| vec![0; self.window_bytes as usize]);
        let mut window = Window { buffer, bytes: bytes as usize, spare: Arc::clone(&self.spare) };
        self.file.read_exact_at(&mut window.buffer[..bytes as usize], place)?;
        Ok(Bytes::from_owner(window))
    }

    /// Puts bytes into a window.
    pub fn write(&self, window: u32, at: u32, bytes: &[u8]) -> io::Result<()> {
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        self.file.write_all_at(bytes, self.place(window, at, length)?)
    }

    /// Puts what lies in several places into a window, one behind the other.
    pub fn write_gathered(&self, window: u32, at: u32, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        let length = u32::try_from(slices.iter().map(|slice| slice.len()).sum::<usize>()).map_err(io::Error::other)?;
        let mut place = self.place(window, at, length)?;
        while !slices.is_empty() {
            match rustix::io::pwritev(&self.file, &slices[..slices.len().min(SLICES_MAX)], place) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    place += count as u64;
                    IoSlice::advance_slices(&mut slices, count);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn place(&self, window: u32, at: u32, bytes: u32) -> io::Result<u64> {
        let is_inside = window < self.windows && at.checked_add(bytes).is_some_and(|end| end <= self.window_bytes);
        let wrong = || io::Error::new(io::ErrorKind::InvalidInput, format!("{bytes} bytes at {at} of window {window}"));
        is_inside.then(|| u64::from(window) * u64::from(self.window_bytes) + u64::from(at)).ok_or_else(wrong)
    }
}

/// A window that is being filled.
pub struct Filling {
    window: u32,
    /// Bytes that are in it, without those that are to come.
    written: u32,
    pending: Vec<u8>,
}

impl Filling {
    /// Begins with an empty window.
    #[must_use]
    pub fn begin(window: u32) -> Filling {
        Filling { window, written: 0, pending: Vec::new() }
    }

    /// How much was put into it.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.written + u32::try_from(self.pending.len()).expect("of a window")
    }

    /// Puts more into it.
    pub fn put(&mut self, memory: &Memory, bytes: &[u8]) -> io::Result<()> {
        if self.pending.len() + bytes.len() > PENDING_BYTES_MAX {
            self.flush(memory)?;
        }
        if bytes.len() >= PENDING_BYTES_MAX {
            memory.write(self.window, self.written, bytes)?;
            self.written += u32::try_from(bytes.len()).expect("of a window");
        } else {
            self.pending.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// The same with what lies in several places, none of it empty. Where it is much it goes from there.
    pub fn put_gathered(&mut self, memory: &Memory, slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        let bytes: usize = slices.iter().map(|slice| slice.len()).sum();
        if bytes < PENDING_BYTES_MAX {
            return slices.iter().try_for_each(|slice| self.put(memory, slice));
        }
        self.flush(memory)?;
        memory.write_gathered(self.window, self.written, slices)?;
        self.written += u32::try_from(bytes).expect("of a window");
        Ok(())
    }

    /// All of it is there: the window, and how much it holds.
    pub fn end(mut self, memory: &Memory) -> io::Result<(u32, u32)> {
        self.flush(memory)?;
        Ok((self.window, self.written))
    }

    fn flush(&mut self, memory: &Memory) -> io::Result<()> {
        memory.write(self.window, self.written, &self.pending)?;
        self.written = self.bytes();
        self.pending.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::os::fd::OwnedFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::{Filling, Memory, PENDING_BYTES_MAX, WINDOW_BYTES_MIN};

    #[test]
    fn both_sides_see_the_same_and_nothing_beyond_a_window() {
        let ours = Memory::make(2, WINDOW_BYTES_MIN).expect("memory");
        let theirs = Memory::accept(ours.share().expect("a descriptor"), 2, WINDOW_BYTES_MIN).expect("it is sealed");
        ours.write(1, WINDOW_BYTES_MIN - 4, b"data").expect("room");
        assert_eq!(&theirs.read(1, WINDOW_BYTES_MIN).expect("there")[WINDOW_BYTES_MIN as usize - 4..], b"data");
        for (window, at, bytes) in [(2, 0, 1), (0, WINDOW_BYTES_MIN, 1), (0, u32::MAX, 2), (u32::MAX, 0, 0)] {
            assert!(theirs.write(window, at, &vec![0; bytes]).is_err());
        }
        assert!(theirs.read(0, WINDOW_BYTES_MIN + 1).is_err());
    }

    #[test]
    fn pieces_of_all_lengths_lie_one_behind_the_other() {
        let memory = Memory::make(2, 4 << 20).expect("memory");
        let (mut filling, mut all) = (Filling::begin(1), Vec::new());
        for (number, bytes) in
            [1, 100, PENDING_BYTES_MAX - 101, 1, PENDING_BYTES_MAX, 0, 77, 1 << 20].iter().enumerate()
        {
            let piece = vec![number as u8 + 1; *bytes];
            filling.put(&memory, &piece).expect("room");
            all.extend(piece);
            assert_eq!(filling.bytes() as usize, all.len());
        }
        let (window, bytes) = filling.end(&memory).expect("room");
        assert_eq!((window, bytes as usize), (1, all.len()));
        assert_eq!(memory.read(1, bytes).expect("there"), all);
        let mut filling = Filling::begin(2);
        filling.put(&memory, b"nowhere").and_then(|()| filling.end(&memory)).expect_err("no such window");
    }

    #[test]
    fn what_lies_in_many_places_lies_in_one_behind_what_came_before() {
        let memory = Memory::make(2, 1 << 20).expect("memory");
        // Little, which waits with what comes next, and much; more slices than one call takes.
        for length in [7, 300] {
            let pieces: Vec<Vec<u8>> = (0..2500_usize).map(|number| vec![number as u8; 1 + number % length]).collect();
            assert_eq!(pieces.concat().len() < PENDING_BYTES_MAX, length == 7, "one of either");
            let mut filling = Filling::begin(1);
            filling.put(&memory, b"head").expect("room");
            let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
            filling.put_gathered(&memory, &mut slices).expect("room");
            filling.put(&memory, b"tail").expect("room");
            let all = [b"head".as_slice(), &pieces.concat(), b"tail"].concat();
            assert_eq!(filling.bytes() as usize, all.len());
            let (window, bytes) = filling.end(&memory).expect("room");
            assert_eq!(memory.read(window, bytes).expect("there"), all);
        }
        let large = vec![0; 1 << 20];
        let mut filling = Filling::begin(0);
        filling.put(&memory, b"x").expect("room");
        filling.put_gathered(&memory, &mut [IoSlice::new(&large)]).expect_err("one byte too many");
    }

    #[test]
    fn what_is_no_sealed_memory_of_the_size_is_refused() {
        let refusal = |descriptor: OwnedFd, windows, bytes| {
            Memory::accept(descriptor, windows, bytes).err().expect("it is refused")
        };
        let pipe = || OwnedFd::from(std::io::pipe().expect("a pipe").0);
        let open = memfd_create("open", MemfdFlags::ALLOW_SEALING).expect("memory");
        ftruncate(&open, u64::from(WINDOW_BYTES_MIN)).expect("room");
        let sealed = || Memory::make(2, WINDOW_BYTES_MIN).and_then(|memory| memory.share()).expect("memory");
        assert!(refusal(pipe(), 1, WINDOW_BYTES_MIN).contains("no memfd"));
        assert!(refusal(open, 1, WINDOW_BYTES_MIN).contains("not sealed"));
        assert!(refusal(sealed(), 3, WINDOW_BYTES_MIN).contains("windows take"));
        for (windows, bytes) in [(0, WINDOW_BYTES_MIN), (u32::MAX, WINDOW_BYTES_MIN), (1, 1), (1, u32::MAX)] {
            assert!(refusal(sealed(), windows, bytes).contains("not "));
        }
    }
}
