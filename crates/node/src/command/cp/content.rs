//! The bytes of one file: data is copied, holes stay holes, and within one file system chunks are shared.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::filler::Filler;

/// 1 MiB: the largest request that the kernel hands to FUSE by default.
const BUFFER_BYTES: usize = 1 << 20;
/// Most that one copy_file_range is asked for, so that progress is seen.
const SHARE_BYTES: usize = 64 << 20;

/// Writes all that comes to an empty file, by requests as large as can be; gives its length. `buffer` is kept for the next file.
pub(in crate::command) fn stream(from: &mut impl Read, to: &File, buffer: &mut Vec<u8>) -> io::Result<u64> {
    let mut at = 0;
    loop {
        buffer.clear();
        let count = from.by_ref().take(BUFFER_BYTES as u64).read_to_end(buffer)?;
        if count == 0 {
            return Ok(at);
        }
        to.write_all_at(buffer, at)?;
        at += count as u64;
    }
}

/// Copies content; one per worker, for its buffer.
pub(super) struct Copier<'a> {
    buffer: Vec<u8>,
    /// Who may read it himself.
    filler: Option<&'a Filler>,
}

/// One copy under way.
struct Copy<'a> {
    from: &'a File,
    to: &'a File,
    /// Whether copy_file_range is worth a try: it shares chunks within a mount.
    can_share: bool,
    /// Who is worth a try before we read.
    filler: Option<&'a Filler>,
    progress: &'a dyn Fn(u64) -> io::Result<()>,
}

impl<'a> Copier<'a> {
    /// `filler`: of the mount that targets are in, if it can be asked.
    pub(super) fn new(filler: Option<&'a Filler>) -> Copier<'a> {
        Copier { buffer: Vec::new(), filler }
    }

    /// Copies all of `from` into `to`, which is empty. Gives the length. `progress` hears how much more is there, and may end it.
    pub(super) fn copy(
        &mut self,
        from: &File,
        to: &File,
        can_share: bool,
        progress: &dyn Fn(u64) -> io::Result<()>,
    ) -> io::Result<u64> {
        let bytes = from.metadata()?.len();
        let mut copy = Copy { from, to, can_share, filler: self.filler, progress };
        if bytes == 0 {
            // Files of /proc have content and no size.
            return self.range(&mut copy, 0..u64::MAX);
        }
        let (mut at, mut ended) = (0, None);
        while let Some(data) = next_data(from, at, bytes)? {
            at = data.end;
            let start = data.start;
            let end = start + self.range(&mut copy, data)?;
            if end < at {
                // Somebody made the source shorter, or it never had what its size says (/sys).
                ended = Some(end);
                break;
            }
        }
        // A hole at the end has no data that would set the length.
        let bytes = ended.unwrap_or(bytes).min(from.metadata()?.len());
        if to.metadata()?.len() < bytes {
            to.set_len(bytes)?;
        }
        Ok(bytes)
    }

    /// Copies a range up to the end of the file; gives how much there was.
    fn range(&mut self, copy: &mut Copy<'_>, range: Range<u64>) -> io::Result<u64> {
        let mut at = range.start;
        while at < range.end {
            let wanted = usize::try_from(range.end - at).unwrap_or(usize::MAX);
            let shared = if copy.can_share { share(copy, at, wanted)? } else { None };
            let count = match shared.or_else(|| fill(copy, at, wanted)) {
                Some(count) => count,
                None => self.read_and_write(copy, at, wanted)?,
            };
            if count == 0 {
                break;
            }
            at += count as u64;
            (copy.progress)(count as u64)?;
        }
        Ok(at - range.start)
    }

    fn read_and_write(&mut self, copy: &Copy<'_>, at: u64, wanted: usize) -> io::Result<usize> {
        self.buffer.resize(BUFFER_BYTES, 0);
        let wanted = wanted.min(self.buffer.len());
        let count = loop {
            match copy.from.read_at(&mut self.buffer[..wanted], at) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result?,
            }
        };
        copy.to.write_all_at(&self.buffer[..count], at)?;
        Ok(count)
    }
}

/// copy_file_range; `None` when these two files cannot share, which is then remembered.
fn share(copy: &mut Copy<'_>, at: u64, wanted: usize) -> io::Result<Option<usize>> {
    let (mut from_at, mut to_at) = (at, at);
    let wanted = wanted.min(SHARE_BYTES);
    match rustix::fs::copy_file_range(copy.from, Some(&mut from_at), copy.to, Some(&mut to_at), wanted) {
        // Files of /proc give nothing here although a read does.
        Ok(0) if at == 0 => {}
        Ok(count) => return Ok(Some(count)),
        Err(Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => {}
        Err(error) => return Err(error.into()),
    }
    copy.can_share = false;
    Ok(None)
}

/// What the daemon reads; `None` when it does not, which is then remembered.
fn fill(copy: &mut Copy<'_>, at: u64, wanted: usize) -> Option<usize> {
    let filled = copy.filler?.fill(copy.from, copy.to, at, wanted);
    if filled.is_none() {
        copy.filler = None;
    }
    filled
}

/// The next stretch of data at or after `at`; `None` when only a hole follows.
pub(super) fn next_data(file: &File, at: u64, bytes: u64) -> io::Result<Option<Range<u64>>> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // A file system that knows nothing of holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok((at < bytes).then_some(at..bytes)),
        Err(error) => return Err(error.into()),
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
    Ok(Some(start..end.max(start + 1)))
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files are what is tested")]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::Copier;

    #[test]
    fn content_and_holes_are_copied() {
        let folder = std::env::temp_dir().join(format!("hydrafs-cp-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a temporary folder");
        let (source, target) = (folder.join("a"), folder.join("b"));
        let from = File::create(&source).expect("a file");
        from.write_all_at(&[7; 5000], 1 << 20).expect("room");
        from.write_all_at(b"x", 3 << 20).expect("room");
        from.set_len(5 << 20).expect("room");
        for can_share in [false, true] {
            let from = File::open(&source).expect("the file");
            let to = File::create(&target).expect("a file");
            assert_eq!(Copier::new(None).copy(&from, &to, can_share, &|_| Ok(())).expect("room"), 5 << 20);
            assert!(fs::read(&source).expect("readable") == fs::read(&target).expect("readable"));
            assert!(to.metadata().expect("a file").blocks() * 512 < 1 << 20, "holes stay holes");
        }
        let (from, to) = (File::open("/proc/self/status").expect("/proc"), File::create(&target).expect("a file"));
        assert!(Copier::new(None).copy(&from, &to, true, &|_| Ok(())).expect("room") > 0);
        fs::remove_dir_all(&folder).expect("our own folder");
    }
}
