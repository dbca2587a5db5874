//! An archive becomes a tree: units of many files, and large ones by system calls.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

use base::time::Timestamp;
use file::Kind;
use tar::EntryType;

use super::archive::{Archive, Member, cut_short, xattr_name};
use super::{Arguments, Outcome};
use crate::command::cp::{Likeness, is_handed_over, stream, umask};
use crate::command::info::Held;
use crate::command::sync::{mount_of, sync};
use crate::command::tree::below;
use crate::command::whole::Whole;
use crate::control::batch::client::{BatchWriter, Writing};
use crate::control::batch::wire::{Entry, Leads};
use crate::control::client::Daemon;
use crate::failure::Failure;

const WHAT: &str = "cannot extract the archive";
/// Access lists as text, which other tars write.
const ACCESS_LIST: &[u8] = b"SCHILY.acl.access";
const DEFAULT_LIST: &[u8] = b"SCHILY.acl.default";
/// A request to write what lies between holes.
const REQUEST_BYTES: u64 = 1 << 20;

/// An extraction under way.
struct Extraction<'a> {
    directory: &'a Path,
    writer: BatchWriter,
    xattrs: bool,
    is_root: bool,
    umask: u32,
    outcome: Outcome,
    /// What is on its way, by number.
    away: BTreeMap<u64, Away>,
    /// Directories that are there, or on their way.
    known: HashSet<Vec<u8>>,
    /// Those of them that could not be made.
    unmade: HashSet<Vec<u8>>,
    /// Those of the archive, whose times come last.
    directories: Vec<Entry>,
    /// For large files.
    buffer: Vec<u8>,
}

/// What is on its way.
struct Away {
    path: Vec<u8>,
    /// The file that it is one more name of.
    link_of: Option<Vec<u8>>,
    bytes: u64,
    /// It is a directory that is there, and gets its time and mode.
    is_again: bool,
}

impl Away {
    /// Whether it has to be there before something is made at `path` by other means.
    fn comes_before(&self, path: &[u8]) -> bool {
        let is_below = |path: &[u8], above: &[u8]| path.strip_prefix(above).is_some_and(|rest| rest.starts_with(b"/"));
        let Away { path: ours, link_of, .. } = self;
        ours == path || is_below(path, ours) || is_below(ours, path) || link_of.as_deref() == Some(path)
    }
}

pub(super) fn extract(arguments: &Arguments) -> Result<Outcome, Failure> {
    if !arguments.names.is_empty() || arguments.files_from.is_some() {
        return Err(Failure::new(WHAT, "all of it is extracted, and not single names").mend("leave them out"));
    }
    let directory = arguments.directory.as_path();
    let mount = mount_of(directory)?;
    if mount.has("ro") {
        return Err(Failure::new(WHAT, "it is mounted read-only").at(directory));
    }
    let directory = directory.canonicalize().map_err(|error| Failure::new(WHAT, error).at(directory))?;
    let held = Held::open(&directory, WHAT)?;
    let how = Writing { parent: held.inode, replace: true, preserve: true, lists: false, umask: 0 };
    let writer = BatchWriter::begin(Daemon::of(&mount.source, mount.device)?, &how)?;
    let mut extraction = Extraction {
        directory: &directory,
        writer,
        xattrs: arguments.xattrs,
        is_root: rustix::process::geteuid().is_root(),
        umask: umask(),
        outcome: Outcome::default(),
        away: BTreeMap::new(),
        known: HashSet::new(),
        unmade: HashSet::new(),
        directories: Vec::new(),
        buffer: Vec::new(),
    };
    let mut archive = Archive::new(BufReader::with_capacity(1 << 20, input(&arguments.file)?));
    let read = extraction.all(&mut archive);
    // What came before the end of an archive that is cut is to be there.
    let settled = extraction.finish_directories();
    extraction.tell_settled();
    let Extraction { writer, mut outcome, away, .. } = extraction;
    outcome.units = writer.units();
    match settled.and_then(|()| writer.finish()) {
        Ok(_) => {
            outcome.broken = read.err();
            sync(&directory)?;
        }
        Err(failure) => {
            for Away { path, is_again, .. } in away.into_values() {
                let what = if is_again { "its time and mode" } else { "it" };
                let why = format!("the batch ended, and {what} may be there or not: {}", failure.why);
                outcome.fail(below(&directory, &path), why);
            }
            outcome.broken = Some(read.err().unwrap_or(failure));
        }
    }
    Ok(outcome)
}

fn input(path: &Path) -> Result<Box<dyn Read>, Failure> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(io::stdin().lock()));
    }
    let file = File::options().read(true).open(path);
    file.map(|file| Box::new(file) as Box<dyn Read>).map_err(|error| Failure::new(WHAT, error).at(path))
}

fn unreadable(error: io::Error) -> Failure {
    let mend = "what came before is there; of a compressed one see `zstd -dc` and the like";
    Failure::new("cannot read the archive", error).mend(mend)
}

impl Extraction<'_> {
    fn all(&mut self, archive: &mut Archive<impl Read>) -> Result<(), Failure> {
        let mut content = Vec::new();
        while let Some(member) = archive.next().map_err(unreadable)? {
            let shown = PathBuf::from(std::ffi::OsString::from_vec(member.path.clone()));
            let mut entry = match self.describe(&member, &shown).map_err(unreadable)? {
                Ok(entry) => entry,
                Err(why) => {
                    self.outcome.fail(shown, why);
                    continue;
                }
            };
            if let Some(why) = entry.refusal() {
                self.outcome.fail(shown, why);
                continue;
            }
            let has = |list: &[u8]| self.xattrs && member.records.iter().any(|(key, _)| key == list);
            if has(ACCESS_LIST) && entry.kind != Kind::Symlink {
                // The group's bits of its mode are the list's mask: the most that anybody named there has.
                entry.mode &= !0o070;
                let why = "its access list is text, which is not understood: it has none, and its group no rights";
                self.outcome.fail(shown.clone(), why);
            } else if has(DEFAULT_LIST) {
                self.outcome
                    .fail(shown.clone(), "its default access list is text, which is not understood: it has none");
            }
            self.make_above(&entry.path)?;
            if entry.kind == Kind::Directory {
                self.known.insert(entry.path.clone());
                self.directories.push(entry.clone());
                // Its owner may always write while it is filled.
                entry.mode |= 0o700;
            }
            if entry.kind == Kind::Regular && entry.size > self.writer.content_bytes_max() {
                self.large(&entry, &member.runs, archive)?;
                continue;
            }
            content.clear();
            let runs = if entry.size > 0 { &member.runs[..] } else { &[] };
            if !runs.is_empty() {
                archive.read_to_end(&mut content).map_err(unreadable)?;
                if content.len() as u64 != stored(runs) {
                    self.outcome.fail(shown, cut_short());
                    return Err(unreadable(cut_short()));
                }
            }
            self.put(&entry, runs, &content)?;
        }
        Ok(())
    }

    /// What an archive says; or why it cannot be made.
    fn describe(&self, found: &Member, shown: &Path) -> io::Result<Result<Entry, String>> {
        if let Some(why) = &found.bad {
            return Ok(Err(why.clone()));
        }
        let Some(path) = cleaned(shown) else { return Ok(Err("it would lie outside of the directory".to_owned())) };
        let header = &found.header;
        let kind = match header.entry_type() {
            // Older than kinds: a directory's name ends with a slash.
            EntryType::Regular if found.path.ends_with(b"/") && found.size == 0 => Kind::Directory,
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse | EntryType::Link => Kind::Regular,
            EntryType::Directory => Kind::Directory,
            EntryType::Symlink => Kind::Symlink,
            EntryType::Fifo => Kind::Fifo,
            EntryType::Char => Kind::CharacterDevice,
            EntryType::Block => Kind::BlockDevice,
            other => {
                return Ok(Err(format!("archives have entries of kind {:?}, which are no files", other.as_byte())));
            }
        };
        if path.is_empty() && kind != Kind::Directory {
            return Ok(Err("it has no name".to_owned()));
        }
        let mut entry = Entry::new(path, kind);
        entry.leads = match (header.entry_type(), found.link.clone()) {
            (EntryType::Symlink, Some(target)) => Leads::Target(target),
            (EntryType::Link, Some(first)) => match cleaned(Path::new(std::ffi::OsStr::from_bytes(&first))) {
                Some(first) => Leads::Link(first),
                None => return Ok(Err("it leads outside of the directory".to_owned())),
            },
            (EntryType::Symlink | EntryType::Link, None) => return Ok(Err("it leads nowhere".to_owned())),
            _ => Leads::Nothing,
        };
        entry.mode = header.mode()? & file::MODE_MASK;
        entry.size = if kind == Kind::Regular && entry.leads == Leads::Nothing { found.size } else { 0 };
        // Before 1970 GNU tar writes the number with its sign.
        let seconds = header.mtime()?.cast_signed();
        entry.modified = Timestamp { seconds, nanos: 0 };
        // tar(1) leaves the fields empty for all else.
        if matches!(kind, Kind::CharacterDevice | Kind::BlockDevice)
            && let (Some(major), Some(minor)) = (header.device_major()?, header.device_minor()?)
        {
            entry.device = u32::try_from(rustix::fs::makedev(major, minor)).map_err(io::Error::other)?;
        }
        self.own(&mut entry, found.owner);
        self.extend(&mut entry, found);
        entry.accessed = entry.modified;
        Ok(Ok(entry))
    }

    /// Files are of who extracts them, with no more rights than he gives to what he makes, but for root, who gives them away.
    fn own(&self, entry: &mut Entry, (uid, gid): (u64, u64)) {
        if self.is_root {
            (entry.uid, entry.gid) = (u32::try_from(uid).unwrap_or(0), u32::try_from(gid).unwrap_or(0));
        } else {
            (entry.uid, entry.gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            entry.mode &= if entry.kind == Kind::Symlink { !0 } else { !(0o6000 | self.umask) };
        }
    }

    fn extend(&self, entry: &mut Entry, found: &Member) {
        for (key, value) in &found.records {
            if key == b"mtime" {
                if let Some(time) = str::from_utf8(value).ok().and_then(parse_time) {
                    entry.modified = time;
                }
            } else if let Some(name) = xattr_name(key).filter(|_| self.xattrs)
                && (self.is_root || name.starts_with(b"user."))
                && is_handed_over(&name)
            {
                entry.xattrs.push((name, value.clone()));
            }
        }
    }

    /// Directories that the archive does not name.
    fn make_above(&mut self, path: &[u8]) -> Result<(), Failure> {
        for (end, _) in path.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            let above = &path[..end];
            if self.known.contains(above) {
                continue;
            }
            self.known.insert(above.to_vec());
            if !fs::symlink_metadata(below(self.directory, above)).is_ok_and(|found| found.is_dir()) {
                let mut entry = Entry { mode: 0o777 & !self.umask, ..Entry::new(above.to_vec(), Kind::Directory) };
                self.own(&mut entry, (0, 0));
                self.put(&entry, &[], &[])?;
            }
        }
        Ok(())
    }

    fn put(&mut self, entry: &Entry, runs: &[Range<u64>], content: &[u8]) -> Result<(), Failure> {
        let (mut rest, mut pieces) = (content, Vec::with_capacity(runs.len()));
        for run in runs {
            let (piece, behind) = rest.split_at(usize::try_from(run.end - run.start).expect("it is in memory"));
            pieces.push((run.start, piece));
            rest = behind;
        }
        let number = self.writer.put(entry, &pieces)?;
        let link_of = if let Leads::Link(first) = &entry.leads { Some(first.clone()) } else { None };
        let (path, bytes) = (entry.path.clone(), content.len() as u64);
        self.away.insert(number, Away { path, link_of, bytes, is_again: false });
        self.tell_settled();
        Ok(())
    }

    fn tell_settled(&mut self) {
        let failed: BTreeMap<u64, String> = self.writer.take_failed().into_iter().collect();
        let settled = self.writer.settled();
        while let Some(entry) = self.away.first_entry().filter(|entry| *entry.key() < settled) {
            let (number, Away { path, bytes, is_again, .. }) = entry.remove_entry();
            match failed.get(&number) {
                // What could not be made was told of.
                Some(_) if is_again && self.unmade.contains(&path) => {}
                Some(why) if is_again => {
                    self.outcome.fail(below(self.directory, &path), format!("its time and mode: {why}"));
                }
                Some(why) => {
                    self.outcome.fail(below(self.directory, &path), why);
                    if self.known.contains(&path) {
                        self.unmade.insert(path);
                    }
                }
                None if is_again => {}
                None => {
                    self.outcome.entries += 1;
                    self.outcome.bytes += bytes;
                }
            }
        }
    }

    /// A file that is no part of a unit. Units are waited for only where they concern it: a tree may have a large file here and there.
    fn large(&mut self, entry: &Entry, runs: &[Range<u64>], found: &mut impl Read) -> Result<(), Failure> {
        if self.away.values().any(|away| away.comes_before(&entry.path)) {
            self.settle()?;
        }
        let made = Whole::begin(self.directory, &entry.path, 0o600).and_then(|whole| {
            let bytes = match runs {
                [all] if *all == (0..entry.size) => stream(found, whole.file(), &mut self.buffer)?,
                _ => spread(found, whole.file(), (runs, entry.size), &mut self.buffer)?,
            };
            if bytes != stored(runs) {
                return Err(cut_short());
            }
            self.outcome.bytes += bytes;
            whole.finish(|file, _| Likeness::of(entry).put_on(file))
        });
        match made {
            Ok(()) => self.outcome.entries += 1,
            Err(error) => self.outcome.fail(below(self.directory, &entry.path), error),
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<(), Failure> {
        let settled = self.writer.settle();
        self.tell_settled();
        settled
    }

    /// What was put into directories has changed their times.
    fn finish_directories(&mut self) -> Result<(), Failure> {
        self.settle()?;
        for entry in std::mem::take(&mut self.directories) {
            let number = self.writer.put(&entry, &[])?;
            self.away.insert(number, Away { path: entry.path, link_of: None, bytes: 0, is_again: true });
        }
        self.settle()
    }
}

/// Bytes that an archive has of a file with these runs.
fn stored(runs: &[Range<u64>]) -> u64 {
    runs.iter().map(|run| run.end - run.start).sum()
}

/// Writes what comes to an empty file, to where it lies; gives how much came. The rest are holes, which cost nothing.
fn spread(
    from: &mut impl Read,
    to: &File,
    (runs, size): (&[Range<u64>], u64),
    buffer: &mut Vec<u8>,
) -> io::Result<u64> {
    let mut bytes = 0;
    to.set_len(size)?;
    for run in runs {
        let mut at = run.start;
        while at < run.end {
            buffer.clear();
            let count = from.by_ref().take((run.end - at).min(REQUEST_BYTES)).read_to_end(buffer)? as u64;
            if count == 0 {
                return Ok(bytes);
            }
            to.write_all_at(buffer, at)?;
            (at, bytes) = (at + count, bytes + count);
        }
    }
    Ok(bytes)
}

/// A path from the directory on; `None`: it leaves it.
fn cleaned(path: &Path) -> Option<Vec<u8>> {
    let mut names: Vec<&[u8]> = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => names.push(name.as_bytes()),
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    Some(names.join(&b'/'))
}

/// Seconds with a fraction.
fn parse_time(text: &str) -> Option<Timestamp> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanos: u32 = digits.parse().ok()?;
    // A fraction counts away from zero.
    match (whole.starts_with('-'), nanos) {
        (true, 1..) => Some(Timestamp { seconds: seconds.checked_sub(1)?, nanos: 1_000_000_000 - nanos }),
        _ => Some(Timestamp { seconds, nanos }),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use base::time::Timestamp;

    use super::{cleaned, parse_time};

    #[test]
    fn paths_stay_in_the_directory() {
        for (path, expected) in
            [("a/b", Some("a/b")), ("/a//b/", Some("a/b")), ("./.", Some("")), ("../a", None), ("a/../b", None)]
        {
            assert_eq!(cleaned(Path::new(path)).as_deref(), expected.map(str::as_bytes), "{path}");
        }
    }

    #[test]
    fn times_are_read_with_their_fraction() {
        let time = |seconds, nanos| Some(Timestamp { seconds, nanos });
        assert_eq!((parse_time("5"), parse_time("5.25")), (time(5, 0), time(5, 250_000_000)));
        assert_eq!((parse_time("-4.75"), parse_time("-0.25")), (time(-5, 250_000_000), time(-1, 750_000_000)));
        assert_eq!((parse_time(""), parse_time("x.1")), (None, None));
    }
}
