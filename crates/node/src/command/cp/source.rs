//! What lies on another file system, as entries of a batch.

use std::fs::{self, File, Metadata};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use base::time::Timestamp;
use file::Kind;
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::content::next_data;
use super::likeness::{kind_of, xattrs};
use crate::control::batch::wire::{Entry, Leads};

/// A file that is written to while it is read is read again so often.
const TRIES: usize = 3;

/// Whose copies are made, and what of the sources goes with them.
#[derive(Clone, Debug)]
pub(super) struct Taker {
    archive: bool,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

/// The contents of some files, one behind the other.
#[derive(Default)]
pub(super) struct Content {
    /// What is behind `used` is of files before: clearing it for each would take as long as a part of reading.
    buffer: Vec<u8>,
    used: usize,
}

/// A file's content: runs of bytes by offset, and where they lie.
pub(super) type Runs = Vec<(u64, Range<usize>)>;

/// A regular file that was read.
pub(super) struct Taken {
    pub(super) entry: Entry,
    pub(super) runs: Runs,
    /// It was written to each time that it was read: nobody knows whether it ever had this content. Its time is of before, so that who resumes the
    /// copy does not take it for the file.
    pub(super) is_torn: bool,
}

impl Content {
    pub(super) fn of(&self, runs: &Runs) -> Vec<(u64, &[u8])> {
        runs.iter().map(|(offset, range)| (*offset, &self.buffer[range.clone()])).collect()
    }

    pub(super) fn bytes(&self) -> usize {
        self.used
    }

    pub(super) fn clear(&mut self) {
        self.used = 0;
    }
}

/// Opens files one after the other. Those of a directory come together: by the open directory the way along the path is spared.
#[derive(Default)]
pub(super) struct Opener {
    directory: Option<(PathBuf, OwnedFd)>,
}

impl Opener {
    fn open(&mut self, path: &Path) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(openat(CWD, path, flags, Mode::empty())?.into());
        };
        let directory = match &self.directory {
            Some((known, directory)) if known == parent => directory,
            _ => {
                let named = if parent == Path::new("") { Path::new(".") } else { parent };
                let directory = openat(CWD, named, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
                &self.directory.insert((parent.to_owned(), directory)).1
            }
        };
        Ok(openat(directory, name, flags, Mode::empty())?.into())
    }
}

impl Taker {
    pub(super) fn new(archive: bool) -> Taker {
        let groups = rustix::process::getgroups().unwrap_or_default();
        Taker {
            archive,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(rustix::process::Gid::as_raw).collect(),
        }
    }

    /// The entry of what is at `from`, without its content; `open`: the same, where it is open. What only root may do, others leave out silently,
    /// as cp(1) does.
    pub(super) fn entry(
        &self,
        from: &Path,
        open: Option<&File>,
        path: Vec<u8>,
        source: &Metadata,
    ) -> io::Result<Entry> {
        let time = |seconds, nanos: i64| Timestamp { seconds, nanos: u32::try_from(nanos).unwrap_or(0) };
        let kind = kind_of(source);
        let mut entry = Entry {
            mode: source.mode() & if self.archive { 0o7777 } else { 0o777 },
            uid: self.uid,
            gid: self.gid,
            size: if kind == Kind::Regular { source.len() } else { 0 },
            modified: time(source.mtime(), source.mtime_nsec()),
            accessed: time(source.atime(), source.atime_nsec()),
            ..Entry::new(path, kind)
        };
        if matches!(kind, Kind::BlockDevice | Kind::CharacterDevice) {
            entry.device = u32::try_from(source.rdev()).map_err(io::Error::other)?;
        }
        if kind == Kind::Symlink {
            entry.leads = Leads::Target(fs::read_link(from)?.into_os_string().into_vec());
        }
        if self.archive {
            self.take_over(from, open, &mut entry, source)?;
        }
        Ok(entry)
    }

    fn take_over(&self, from: &Path, open: Option<&File>, entry: &mut Entry, source: &Metadata) -> io::Result<()> {
        let is_root = self.uid == 0;
        let may_give = source.uid() == self.uid && (source.gid() == self.gid || self.groups.contains(&source.gid()));
        if is_root || may_give {
            (entry.uid, entry.gid) = (source.uid(), source.gid());
        } else {
            // Set-id bits belong to an owner: without him they would give away the copier's rights.
            entry.mode &= !0o6000;
        }
        entry.xattrs = xattrs(from, open)?;
        if !is_root {
            entry.xattrs.retain(|(name, _)| name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_"));
        }
        Ok(())
    }

    /// The entry of a regular file, and its content, which comes behind that of others; `None`: it has more than `bytes_max`.
    pub(super) fn file(
        &self,
        opener: &mut Opener,
        (from, path): (&Path, Vec<u8>),
        bytes_max: u64,
        content: &mut Content,
    ) -> io::Result<Option<Taken>> {
        let (file, begin) = (opener.open(from)?, content.used);
        let taken = self.open_file(&file, (from, path), bytes_max, content);
        if !matches!(taken, Ok(Some(_))) {
            content.used = begin;
        }
        taken
    }

    fn open_file(
        &self,
        file: &File,
        (from, path): (&Path, Vec<u8>),
        bytes_max: u64,
        content: &mut Content,
    ) -> io::Result<Option<Taken>> {
        let (begin, mut runs, mut is_all) = (content.used, Runs::new(), true);
        let found = steadily(file, |source| {
            content.used = begin;
            runs.clear();
            let read = read(file, source, bytes_max, (content, &mut runs))?;
            is_all = read != Some(Read::Short);
            Ok(read.is_some())
        })?;
        let Some((source, is_torn)) = found else { return Ok(None) };
        let mut entry = self.entry(from, Some(file), path, &source)?;
        let end = runs.last().map_or(0, |(offset, range)| offset + range.len() as u64);
        entry.size = if is_all { end.max(entry.size) } else { end };
        Ok(Some(Taken { entry, runs, is_torn }))
    }
}

/// Reads until nothing was written to the file meanwhile, or so often. Gives what it was before the last time, and whether it was written to then;
/// `None`: nothing was read.
fn steadily(file: &File, mut read: impl FnMut(&Metadata) -> io::Result<bool>) -> io::Result<Option<(Metadata, bool)>> {
    let state = |of: &Metadata| (of.len(), of.mtime(), of.mtime_nsec());
    let (mut source, mut tries) = (file.metadata()?, TRIES);
    if !source.is_file() {
        return Err(io::Error::other("it was another kind of file a moment ago"));
    }
    loop {
        if !read(&source)? {
            return Ok(None);
        }
        tries -= 1;
        let now = file.metadata()?;
        let is_torn = state(&source) != state(&now);
        if !is_torn || tries == 0 {
            return Ok(Some((source, is_torn)));
        }
        source = now;
    }
}

/// The bits that this process takes away from modes.
pub(in crate::command) fn umask() -> u32 {
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(umask);
    umask.bits()
}

/// How a file was read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    /// To its size.
    All,
    /// To its end, which comes before: /sys says 4096 of files with a few bytes.
    Short,
}

/// Reads all of a file; `None`: it has more than `bytes_max`.
fn read(
    file: &File,
    source: &Metadata,
    bytes_max: u64,
    (content, runs): (&mut Content, &mut Runs),
) -> io::Result<Option<Read>> {
    let size = source.len();
    if size > bytes_max {
        return Ok(None);
    }
    if size == 0 {
        // Files of /proc have content and no size.
        let is_end = read_run(file, 0..bytes_max, (content, runs))?;
        return Ok(is_end.then_some(Read::All));
    }
    let has_holes = source.blocks() * 512 < size;
    let mut at = 0;
    while let Some(data) = if has_holes { next_data(file, at, size)? } else { (at < size).then_some(at..size) } {
        if data.start >= size {
            // It has grown since.
            break;
        }
        at = data.end.max(at + 1);
        if read_run(file, data.start..data.end.min(size), (content, runs))? {
            return Ok(Some(Read::Short));
        }
    }
    Ok(Some(Read::All))
}

/// Reads a range; whether the file ended before its end.
fn read_run(file: &File, range: Range<u64>, (content, runs): (&mut Content, &mut Runs)) -> io::Result<bool> {
    let begin = content.used;
    let mut at = range.start;
    let is_end = loop {
        if at == range.end {
            break false;
        }
        let wanted = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(1 << 20);
        let place = content.used;
        if content.buffer.len() < place + wanted {
            content.buffer.resize(place + wanted, 0);
        }
        let count = loop {
            match file.read_at(&mut content.buffer[place..place + wanted], at) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result?,
            }
        };
        content.used += count;
        at += count as u64;
        if count == 0 {
            break true;
        }
    };
    if content.used > begin {
        runs.push((range.start, begin..content.used));
    }
    Ok(is_end)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files are what is tested")]
mod tests {
    use std::fs::{self, File};
    use std::io::Read;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    use super::{Opener, TRIES, steadily};

    #[test]
    fn files_of_several_directories_are_opened_one_after_the_other() {
        let folder = std::env::temp_dir().join(format!("hydrafs-opener-{}", std::process::id()));
        for directory in ["a", "b"] {
            fs::create_dir_all(folder.join(directory)).expect("a temporary folder");
            for name in ["x", "y"] {
                fs::write(folder.join(directory).join(name), format!("{directory}/{name}")).expect("room");
            }
        }
        std::os::unix::fs::symlink("x", folder.join("a/link")).expect("a link");
        let mut opener = Opener::default();
        let mut open = |path: &str| {
            let mut content = String::new();
            opener.open(&folder.join(path)).and_then(|mut file| file.read_to_string(&mut content)).map(|_| content)
        };
        for path in ["a/x", "a/y", "b/x", "a/x"] {
            assert_eq!(open(path).expect("it is there"), path);
        }
        assert!(open("a/link").is_err(), "no link is followed");
        assert!(open("a/gone").is_err() && open("gone/x").is_err());
        assert_eq!(open("a/y").expect("it is there"), "a/y", "what failed is in nobody's way");
        let mut elsewhere = Opener::default();
        assert!(elsewhere.open(Path::new("/")).is_ok(), "what has no name");
        assert!(elsewhere.open(Path::new("no-such-file")).is_err(), "below the present directory");
        fs::remove_dir_all(&folder).expect("our own folder");
    }

    /// Who resumes a copy compares sizes and times: what was torn must not look like its source.
    #[test]
    fn what_is_written_to_while_it_is_read_is_as_it_was_before() {
        let path = std::env::temp_dir().join(format!("hydrafs-torn-{}", std::process::id()));
        let file = File::create(&path).expect("room");
        for (writes, is_torn) in [(0, false), (TRIES - 1, false), (TRIES, true)] {
            let (mut reads, before) = (0, file.metadata().expect("open").len());
            let found = steadily(&file, |source| {
                reads += 1;
                if reads <= writes {
                    file.write_all_at(b"x", source.len())?;
                }
                Ok(true)
            });
            let (source, found) = found.expect("open").expect("it was read");
            assert_eq!((reads, found), ((writes + 1).min(TRIES), is_torn));
            assert_eq!(source.len(), before + reads as u64 - 1, "as it was before it was read the last time");
        }
        fs::remove_file(&path).expect("ours");
    }
}
