//! Trees become an archive: what comes from the daemon is written as it comes.
//!
//! An archive says how long a file is before its content. What changes while it is read, and is longer or shorter in the end, is cut or
//! filled with zeroes, and told.
//!
//! Files come in the order in which they lie, and so in the middle of those of other directories. GNU tar gives a directory its time as soon as
//! something comes that is not in it; so each directory comes once more in the end. It makes a symbolic link that leads upwards last of all, and its
//! directory's time waits for that only if the link comes right behind the directory; so there they come.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Component, Path, PathBuf};

use base::time::Timestamp;
use bytes::Bytes;
use file::Kind;
use tar::{Builder, EntryType, Header};

use super::archive::{Record as Extension, encode_records, xattr_key};
use super::{Arguments, Outcome};
use crate::command::path_list::Lines;
use crate::command::tree::{Paths, Tree, Wanted, garbled};
use crate::control::batch::wire::{Entry, Leads, Record, Records};
use crate::failure::Failure;

const WHAT: &str = "cannot make the archive";
/// What a header has room for.
const LINK_NAME_BYTES: usize = 100;

/// An archive under way.
struct Creation<W: Write> {
    builder: Builder<W>,
    outcome: Outcome,
}

pub(super) fn create(arguments: &Arguments) -> Result<Outcome, Failure> {
    if arguments.names.is_empty() && arguments.files_from.is_none() {
        return Err(
            Failure::new(WHAT, "nothing is named that is to be in it").mend("name files or directories, or `.`")
        );
    }
    let lines = arguments.files_from.as_deref().map(|list| Lines::open(list, arguments.null)).transpose()?;
    for name in &arguments.names {
        if !name.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
            let why = "a name in an archive begins in its directory and does not leave it";
            return Err(Failure::new(WHAT, why).at(name).mend("name the directory with -C"));
        }
    }
    let mut builder = Builder::new(BufWriter::with_capacity(1 << 20, output(&arguments.file)?));
    builder.preserve_absolute(false);
    let mut creation = Creation { builder, outcome: Outcome::default() };
    let wanted = Wanted { content: true, xattrs: arguments.xattrs };
    let paths: Vec<PathBuf> = arguments.names.iter().map(|name| arguments.directory.join(name)).collect();
    let mut at = 0;
    while at < paths.len() {
        match Tree::open_several(&paths[at..], WHAT, wanted) {
            Ok((tree, count)) => {
                creation.trees(tree, &Paths::new(arguments.names[at..at + count].to_vec()))?;
                at += count;
            }
            Err(failure) if paths.len() == 1 => return Err(failure),
            Err(failure) => {
                creation.outcome.fail(arguments.names[at].clone(), failure.why);
                at += 1;
            }
        }
    }
    if let Some(lines) = lines {
        creation.listed(&arguments.directory, lines, wanted)?;
    }
    let written = creation.builder.into_inner().and_then(|mut out| out.flush());
    written.map_err(unwritten)?;
    Ok(creation.outcome)
}

fn output(path: &Path) -> Result<Box<dyn Write>, Failure> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(io::stdout().lock()));
    }
    let file = File::options().write(true).create(true).truncate(true).open(path);
    file.map(|file| Box::new(file) as Box<dyn Write>).map_err(|error| Failure::new(WHAT, error).at(path))
}

fn unwritten(error: io::Error) -> Failure {
    Failure::new("cannot write the archive", error)
}

impl<W: Write> Creation<W> {
    /// Puts in what is listed below a directory.
    fn listed(&mut self, directory: &Path, lines: Lines, wanted: Wanted) -> Result<(), Failure> {
        let (creation, mut refused) = (&mut *self, Vec::new());
        let mut read = |list| {
            let tree = Tree::open_listed(directory, list, WHAT, wanted)?;
            creation.trees(tree, &Paths::new(vec![PathBuf::new()])).map(|()| true)
        };
        let read = lines.each_part(false, &mut read, &mut |path, why| refused.push((path, why)));
        refused.into_iter().for_each(|(path, why)| self.outcome.fail(path, why));
        read
    }

    /// Puts in what is read, under these names.
    fn trees(&mut self, tree: Tree, names: &Paths) -> Result<(), Failure> {
        let mut stream = Stream::new(tree);
        let (mut files, mut links, mut directories, mut next) = (HashMap::new(), Vec::new(), Vec::new(), 0);
        let mut symlinks: HashMap<Vec<u8>, Vec<_>> = HashMap::new();
        while let Some(record) = stream.next()? {
            match record {
                Record::Entry(entry) => {
                    let number = next;
                    next += 1;
                    if matches!(entry.leads, Leads::Link(_)) && entry.kind != Kind::Socket {
                        links.push(entry);
                    } else if entry.kind == Kind::Regular {
                        files.insert(number, entry);
                    } else if entry.kind == Kind::Symlink && entry.links == 1 && entry.path.contains(&b'/') {
                        // One of several names comes before the links to it.
                        symlinks.entry(directory_of(&entry.path).to_vec()).or_default().push(entry);
                    } else {
                        self.described(names, &entry)?;
                        directories.extend((entry.kind == Kind::Directory).then_some(entry));
                    }
                }
                Record::Begin { number, size } => {
                    if let Some(entry) = files.remove(&number) {
                        self.file(names, &entry, size, &mut stream)?;
                    }
                }
                Record::Piece { .. } | Record::Change(_) | Record::Path(_) => {}
                Record::End { number, why, .. } => {
                    if let Some(entry) = files.remove(&number) {
                        self.outcome.fail(stream.tree.path_of(&entry.path)?, why);
                    }
                }
                Record::Lost { path, why } => self.outcome.fail(stream.tree.path_of(&path)?, why),
            }
        }
        for entry in files.into_values() {
            self.outcome.fail(stream.tree.path_of(&entry.path)?, "its content did not come");
        }
        // What they lead to has come.
        for entry in links {
            self.described(names, &entry)?;
        }
        for entry in directories.iter().rev() {
            self.described(names, entry)?;
            self.outcome.entries -= 1;
            for link in symlinks.remove(&entry.path).into_iter().flatten() {
                self.described(names, &link)?;
            }
        }
        // Those that a list names without their directories.
        for link in symlinks.into_values().flatten() {
            self.described(names, &link)?;
        }
        Ok(())
    }

    /// What has no content.
    fn described(&mut self, names: &Paths, entry: &Entry) -> Result<(), Failure> {
        let path = name_of(names, &entry.path, entry.kind)?;
        let mut header = self.header(entry)?;
        header.set_size(0);
        let appended = match &entry.leads {
            // To the byte: `a//b` leads where `a/b` does, and is another target. All of a long one came before, as an extension.
            Leads::Target(target) => {
                let short = &target[..target.len().min(LINK_NAME_BYTES)];
                header.set_link_name_literal(short).map_err(unwritten)?;
                self.builder.append_data(&mut header, &path, io::empty())
            }
            _ if entry.kind == Kind::Socket => {
                self.outcome.fail(path, "an archive has no sockets");
                return Ok(());
            }
            Leads::Link(first) => {
                header.set_entry_type(EntryType::Link);
                self.builder.append_link(&mut header, &path, name_of(names, first, entry.kind)?)
            }
            Leads::Nothing => self.builder.append_data(&mut header, &path, io::empty()),
        };
        appended.map_err(unwritten)?;
        self.outcome.entries += 1;
        Ok(())
    }

    fn file(&mut self, names: &Paths, entry: &Entry, size: u64, stream: &mut Stream) -> Result<(), Failure> {
        let path = name_of(names, &entry.path, entry.kind)?;
        let mut header = self.header(entry)?;
        header.set_size(size);
        let mut content = Content { stream, piece: Bytes::new(), at: 0, piece_at: 0, size, ended: None, failure: None };
        self.builder.append_data(&mut header, &path, &mut content).map_err(unwritten)?;
        content.drain();
        if let Some(failure) = content.failure {
            return Err(failure);
        }
        let why = content.ended.unwrap_or_default();
        self.outcome.entries += 1;
        self.outcome.bytes += size;
        if !why.is_empty() {
            self.outcome.fail(path, why);
        }
        Ok(())
    }

    fn header(&mut self, entry: &Entry) -> Result<Header, Failure> {
        let mut header = Header::new_gnu();
        header.set_mode(entry.mode);
        header.set_uid(entry.uid.into());
        header.set_gid(entry.gid.into());
        header.set_mtime(u64::try_from(entry.modified.seconds).unwrap_or(0));
        header.set_entry_type(match entry.kind {
            Kind::Regular | Kind::Socket => EntryType::Regular,
            Kind::Directory => EntryType::Directory,
            Kind::Symlink => EntryType::Symlink,
            Kind::Fifo => EntryType::Fifo,
            Kind::CharacterDevice => EntryType::Char,
            Kind::BlockDevice => EntryType::Block,
        });
        let device = u64::from(entry.device);
        let devices = [rustix::fs::major(device), rustix::fs::minor(device)];
        header.set_device_major(devices[0]).and_then(|()| header.set_device_minor(devices[1])).map_err(unwritten)?;
        self.extensions(entry)?;
        Ok(header)
    }

    /// What a header has no room for.
    fn extensions(&mut self, entry: &Entry) -> Result<(), Failure> {
        let xattrs = entry.xattrs.iter().map(|(name, value)| (xattr_key(name), value.clone()));
        let mut records: Vec<Extension> = xattrs.collect();
        let Timestamp { seconds, .. } = entry.modified;
        if let Leads::Target(target) = &entry.leads
            && target.len() > LINK_NAME_BYTES
        {
            records.push((b"linkpath".to_vec(), target.clone()));
        }
        if seconds < 0 {
            records.push((b"mtime".to_vec(), seconds.to_string().into_bytes()));
        }
        if records.is_empty() {
            return Ok(());
        }
        let records = encode_records(&records);
        let mut header = Header::new_ustar();
        header.set_size(records.len() as u64);
        header.set_entry_type(EntryType::XHeader);
        header.set_cksum();
        self.builder.append(&header, records.as_slice()).map_err(unwritten)
    }
}

/// The path of the directory that a path within the tree lies in.
fn directory_of(path: &[u8]) -> &[u8] {
    &path[..path.iter().rposition(|byte| *byte == b'/').unwrap_or(0)]
}

/// What the entry of a path is called in the archive.
fn name_of(names: &Paths, path: &[u8], kind: Kind) -> Result<PathBuf, Failure> {
    let name = names.of(path).ok_or_else(|| garbled("a path of nothing that was asked for"))?;
    // Of a list, the directory that it begins in.
    let name = if name.as_os_str().is_empty() { PathBuf::from(".") } else { name };
    // A directory's name ends with a slash.
    Ok(if kind == Kind::Directory { name.join("") } else { name })
}

/// The records of a tree, one after the other.
struct Stream {
    tree: Tree,
    records: Option<Records>,
    /// The one that comes next, where it was looked at.
    kept: Option<Record>,
}

impl Stream {
    fn new(tree: Tree) -> Stream {
        Stream { tree, records: None, kept: None }
    }

    fn next(&mut self) -> Result<Option<Record>, Failure> {
        if let Some(record) = self.kept.take() {
            return Ok(Some(record));
        }
        loop {
            if let Some(record) = self.records.as_mut().and_then(Iterator::next) {
                return record.map(Some).map_err(garbled);
            }
            self.records = self.tree.next_window()?;
            if self.records.is_none() {
                return Ok(None);
            }
        }
    }
}

/// The content of a file, as long as its header says.
struct Content<'a> {
    stream: &'a mut Stream,
    piece: Bytes,
    /// Where the archive is in the file, and where the piece lies.
    at: u64,
    piece_at: u64,
    size: u64,
    /// All of it came; why it is not whole.
    ended: Option<String>,
    failure: Option<Failure>,
}

impl Content<'_> {
    /// The next piece, or the end.
    fn fetch(&mut self) {
        match self.stream.next() {
            Ok(Some(Record::Piece { offset, content, .. })) => (self.piece, self.piece_at) = (content, offset),
            Ok(Some(Record::End { why, .. })) => {
                self.ended.get_or_insert(why);
            }
            Ok(Some(Record::Begin { .. })) => {
                self.ended =
                    Some("it was changed while it was read: what is in the archive is of several moments".into());
                self.skip();
            }
            Ok(Some(other)) => {
                self.stream.kept = Some(other);
                self.ended.get_or_insert("its end did not come".to_owned());
            }
            Ok(None) => {
                self.ended.get_or_insert("its end did not come".to_owned());
            }
            Err(failure) => {
                self.ended.get_or_insert(failure.to_string());
                self.failure = Some(failure);
            }
        }
    }

    /// Lets the rest go by.
    fn skip(&mut self) {
        loop {
            match self.stream.next() {
                Ok(Some(Record::Piece { .. } | Record::Begin { .. })) => {}
                Ok(Some(Record::End { .. }) | None) => return,
                Ok(Some(other)) => {
                    self.stream.kept = Some(other);
                    return;
                }
                Err(failure) => {
                    self.failure = Some(failure);
                    return;
                }
            }
        }
    }

    /// The rest of what there is of it.
    fn drain(&mut self) {
        while self.ended.is_none() {
            self.fetch();
        }
    }
}

impl Read for Content<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(self.size - self.at).unwrap_or(usize::MAX));
        let buffer = &mut buffer[..wanted];
        if buffer.is_empty() {
            return Ok(0);
        }
        while self.ended.is_none() && self.piece_at + self.piece.len() as u64 <= self.at {
            self.fetch();
        }
        let end = self.piece_at + self.piece.len() as u64;
        let (zeroes, is_inside) = match self.ended.is_none() {
            true if self.piece_at > self.at => (self.piece_at - self.at, false),
            true => (0, true),
            false => (u64::MAX, false),
        };
        let count = if is_inside {
            let skip = usize::try_from(self.at - self.piece_at).expect("inside of it");
            let count = buffer.len().min(usize::try_from(end - self.at).expect("inside of it"));
            buffer[..count].copy_from_slice(&self.piece[skip..skip + count]);
            count
        } else {
            let count = buffer.len().min(usize::try_from(zeroes).unwrap_or(usize::MAX));
            buffer[..count].fill(0);
            count
        };
        self.at += count as u64;
        Ok(count)
    }
}
