//! What lies in the windows of a batch: records, one behind the other (docs/format.md, "Batches on the control socket").
//!
//! ```text
//!  0 | kind 1 | 0 3 | bytes behind this head 4 |
//! ```
//!
//! An *entry* says what a file is and how it is called, a *begin* that its content comes next, a *piece* is a run of it, an *end* says that all
//! of it came, or why not. A *path* is wanted by who reads a list. Entries are numbered from 0 in the order in which they come, over all windows of a
//! batch; pieces and ends name that number. Who writes sends each entry with its pieces behind it, and no ends: entries end where the next one
//! begins.
//!
//! Little endian, no padding beyond the heads, one form for each value.

use base::codec::{DecodeError, Reader, Writer};
use base::limits::{LINK_TARGET_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_TOTAL_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use base::time::Timestamp;
use bytes::Bytes;
use file::{Aspect, Kind};

/// Longest path of an entry: some deeper than a path that the kernel takes.
pub const PATH_BYTES_MAX: usize = 16 * 1024;
/// Longest reason.
const WHY_BYTES_MAX: usize = 4 * 1024;
/// Most extended attributes of one entry; together they are bounded by the file layer.
const XATTRS_MAX: usize = 4096;
/// Before each record.
pub const HEAD_BYTES: usize = 8;
/// What a piece has before its bytes.
pub const PIECE_HEAD_BYTES: usize = HEAD_BYTES + 16;

const ENTRY: u8 = 1;
const PIECE: u8 = 2;
const END: u8 = 3;
const LOST: u8 = 4;
const BEGIN: u8 = 5;
const CHANGE: u8 = 6;
const PATH: u8 = 7;

const NOTHING: u8 = 1;
const TARGET: u8 = 2;
const LINK: u8 = 3;

/// A path below what has this place in the list of what is read.
#[must_use]
pub fn of_root(root: usize, path: &[u8]) -> Vec<u8> {
    let root = root.to_string().into_bytes();
    if path.is_empty() { root } else { [&root[..], path].join(&b'/') }
}

/// The place in the list of what is read, and the path below that; `None`: it is no such path.
#[must_use]
pub fn split_root(path: &[u8]) -> Option<(usize, &[u8])> {
    let (root, rest) = match path.iter().position(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (path, &[][..]),
    };
    Some((std::str::from_utf8(root).ok()?.parse().ok()?, rest))
}

/// What a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where, from the batch's directory on: names with a slash between them. Empty: that directory itself. Of what is read see [`split_root`].
    pub path: Vec<u8>,
    /// Its kind.
    pub kind: Kind,
    /// Permission, set-id and sticky bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Of a device.
    pub device: u32,
    /// Hard links; 0 from who writes.
    pub links: u32,
    /// `st_ino`; 0 from who writes.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes that are no holes; 0 from who writes.
    pub allocated: u64,
    /// Last change of content.
    pub modified: Timestamp,
    /// Last read.
    pub accessed: Timestamp,
    /// Last change of anything; that of the epoch from who writes.
    pub changed: Timestamp,
    /// What it leads to.
    pub leads: Leads,
    /// Extended attributes.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What an entry leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Leads {
    /// Nothing but what it holds.
    #[default]
    Nothing,
    /// Of a symbolic link: its target.
    Target(Vec<u8>),
    /// It is one more name of the file with this path, as `Entry::path`.
    Link(Vec<u8>),
}

/// What differs between two trees that are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Where, from the trees' directories on.
    pub path: Vec<u8>,
    /// As it was; none: it was not there.
    pub before: Option<State>,
    /// As it is.
    pub after: Option<State>,
    /// In what it differs, in order; nothing where it is only in one of the trees.
    pub what: Vec<Aspect>,
}

/// What a file of one of them is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Its kind.
    pub kind: Kind,
    /// Permission, set-id and sticky bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// `st_ino`.
    pub inode: u64,
}

/// What lies in a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The next file.
    Entry(Box<Entry>),
    /// The content of a file comes next, all of it before that of another. Said once more of the same: it has changed, and what came
    /// of it before counts for nothing.
    Begin {
        /// The entry's number.
        number: u64,
        /// The file's size as it is read.
        size: u64,
    },
    /// Content of a file.
    Piece {
        /// The entry's number.
        number: u64,
        /// In the file.
        offset: u64,
        /// The bytes.
        content: Bytes,
    },
    /// All pieces of a file have come.
    End {
        /// The entry's number.
        number: u64,
        /// The file's size as it was read; 0 of one that is not whole.
        size: u64,
        /// Why it is not whole; empty: it is. With a size: all of it came, and parts may be older than others.
        why: String,
    },
    /// What is wanted, from who reads a list: below its root, as `Entry::path`.
    Path(Vec<u8>),
    /// What differs between two trees.
    Change(Box<Change>),
    /// What cannot even be described.
    Lost {
        /// Where.
        path: Vec<u8>,
        /// Why.
        why: String,
    },
}

impl Record {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(256);
        match self {
            Record::Entry(entry) => {
                entry.encode(&mut writer);
                headed(ENTRY, writer)
            }
            Record::Piece { number, offset, content } => {
                let mut bytes = piece_head(*number, *offset, content.len()).to_vec();
                bytes.extend_from_slice(content);
                bytes
            }
            Record::Begin { number, size } => {
                writer.u64(*number).u64(*size);
                headed(BEGIN, writer)
            }
            Record::End { number, size, why } => {
                writer.u64(*number).u64(*size);
                put_long(&mut writer, short(why));
                headed(END, writer)
            }
            Record::Path(path) => {
                writer.put(path);
                headed(PATH, writer)
            }
            Record::Change(change) => {
                change.encode(&mut writer);
                headed(CHANGE, writer)
            }
            Record::Lost { path, why } => {
                put_long(&mut writer, path);
                put_long(&mut writer, short(why));
                headed(LOST, writer)
            }
        }
    }
}

/// What stands before the bytes of a piece.
#[must_use]
pub fn piece_head(number: u64, offset: u64, bytes: usize) -> [u8; PIECE_HEAD_BYTES] {
    let mut writer = Writer::with_capacity(PIECE_HEAD_BYTES);
    let behind = u32::try_from(bytes + PIECE_HEAD_BYTES - HEAD_BYTES).expect("a window is addressed by 32 bits");
    writer.u8(PIECE).put(&[0; 3]).u32(behind).u64(number).u64(offset);
    writer.into_bytes().try_into().expect("the head's size")
}

fn headed(kind: u8, body: Writer) -> Vec<u8> {
    let mut writer = Writer::with_capacity(HEAD_BYTES + body.bytes().len());
    let behind = u32::try_from(body.bytes().len()).expect("its parts are bounded");
    writer.u8(kind).put(&[0; 3]).u32(behind).put(body.bytes());
    writer.into_bytes()
}

fn put_long(writer: &mut Writer, bytes: &[u8]) {
    writer.u32(u32::try_from(bytes.len()).expect("what a record names is bounded")).put(bytes);
}

/// As much of a reason as a record has room for.
fn short(why: &str) -> &[u8] {
    &why.as_bytes()[..why.floor_char_boundary(WHY_BYTES_MAX)]
}

impl Entry {
    /// One that is nothing yet.
    #[must_use]
    pub fn new(path: Vec<u8>, kind: Kind) -> Entry {
        let none = Timestamp::default();
        Entry {
            path,
            kind,
            mode: 0,
            uid: 0,
            gid: 0,
            device: 0,
            links: 0,
            inode: 0,
            size: 0,
            allocated: 0,
            modified: none,
            accessed: none,
            changed: none,
            leads: Leads::Nothing,
            xattrs: Vec::new(),
        }
    }

    /// Why the other side would refuse it, and all that came with it.
    pub fn refusal(&self) -> Option<&'static str> {
        let is_long = |(name, value): &(Vec<u8>, Vec<u8>)| {
            name.len() > XATTR_NAME_BYTES_MAX || value.len() > XATTR_VALUE_BYTES_MAX
        };
        let xattr_bytes: usize = self.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        match &self.leads {
            _ if self.path.len() > PATH_BYTES_MAX => Some("its path is too long"),
            Leads::Target(target) if target.len() > LINK_TARGET_BYTES_MAX => Some("what it leads to is too long"),
            Leads::Link(first) if first.len() > PATH_BYTES_MAX => Some("the path of its first name is too long"),
            _ if self.xattrs.len() > XATTRS_MAX => Some("it has too many extended attributes"),
            _ if self.xattrs.iter().any(is_long) => Some("an extended attribute of it is too long"),
            // All of them together might not fit a window.
            _ if xattr_bytes > XATTR_TOTAL_BYTES_MAX => Some("its extended attributes are too long"),
            _ => None,
        }
    }

    fn encode(&self, writer: &mut Writer) {
        let (code, leads): (u8, &[u8]) = match &self.leads {
            Leads::Nothing => (NOTHING, &[]),
            Leads::Target(target) => (TARGET, target),
            Leads::Link(path) => (LINK, path),
        };
        writer.u8(self.kind as u8).u8(code).u16(0);
        writer.u32(self.mode).u32(self.uid).u32(self.gid).u32(self.device).u32(self.links);
        writer.u64(self.inode).u64(self.size).u64(self.allocated);
        for time in [self.modified, self.accessed, self.changed] {
            writer.timestamp(time);
        }
        put_long(writer, &self.path);
        put_long(writer, leads);
        writer.u32(u32::try_from(self.xattrs.len()).expect("they are bounded"));
        for (name, value) in &self.xattrs {
            put_long(writer, name);
            put_long(writer, value);
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Entry, DecodeError> {
        let kind = reader.u8("kind of file")?;
        let kind = Kind::from_number(kind).ok_or_else(|| reader.refuse("kind of file"))?;
        let code = reader.u8("what an entry leads to")?;
        reader.zeroes("padding of an entry", 2)?;
        let mut number = || reader.u32("number of an entry");
        let (mode, uid, gid, device, links) = (number()?, number()?, number()?, number()?, number()?);
        if mode & !file::MODE_MASK != 0 {
            return Err(reader.refuse("mode"));
        }
        let mut long = || reader.u64("number of an entry");
        let (inode, size, allocated) = (long()?, long()?, long()?);
        let mut time = || reader.timestamp("time of an entry");
        let (modified, accessed, changed) = (time()?, time()?, time()?);
        let path = reader.long_bytes("path", PATH_BYTES_MAX)?.to_vec();
        let leads = reader.long_bytes("what an entry leads to", PATH_BYTES_MAX)?;
        let leads = match code {
            NOTHING if leads.is_empty() => Leads::Nothing,
            TARGET if leads.len() <= LINK_TARGET_BYTES_MAX => Leads::Target(leads.to_vec()),
            LINK => Leads::Link(leads.to_vec()),
            _ => return Err(reader.refuse("what an entry leads to")),
        };
        let count = reader.u32("extended attributes")? as usize;
        if count > XATTRS_MAX {
            return Err(reader.refuse("extended attributes"));
        }
        let mut xattrs = Vec::new();
        for _ in 0..count {
            let name = reader.long_bytes("name of an attribute", XATTR_NAME_BYTES_MAX)?.to_vec();
            xattrs.push((name, reader.long_bytes("attribute", XATTR_VALUE_BYTES_MAX)?.to_vec()));
        }
        Ok(Entry {
            path,
            kind,
            mode,
            uid,
            gid,
            device,
            links,
            inode,
            size,
            allocated,
            modified,
            accessed,
            changed,
            leads,
            xattrs,
        })
    }
}

impl Change {
    fn encode(&self, writer: &mut Writer) {
        let bits = self.what.iter().fold(0, |bits, aspect| bits | 1 << *aspect as u8);
        let sides = [&self.before, &self.after];
        writer.u8(u8::from(self.before.is_some()) | u8::from(self.after.is_some()) << 1).u8(bits).u16(0);
        for State { kind, mode, uid, gid, size, inode } in sides.into_iter().flatten() {
            writer.u8(*kind as u8).put(&[0; 3]).u32(*mode).u32(*uid).u32(*gid).u64(*size).u64(*inode);
        }
        put_long(writer, &self.path);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Change, DecodeError> {
        let sides = reader.u8("sides of a change")?;
        let bits = reader.u8("what has changed")?;
        reader.zeroes("padding of a change", 2)?;
        if !(1..=3).contains(&sides) || (bits != 0) != (sides == 3) {
            return Err(reader.refuse("sides of a change"));
        }
        let what = Aspect::ALL.into_iter().filter(|aspect| bits & 1 << *aspect as u8 != 0).collect();
        let mut state = |side: u8| if sides & side == 0 { Ok(None) } else { State::decode(reader).map(Some) };
        let (before, after) = (state(1)?, state(2)?);
        let path = reader.long_bytes("path", PATH_BYTES_MAX)?.to_vec();
        Ok(Change { path, before, after, what })
    }
}

impl State {
    fn decode(reader: &mut Reader<'_>) -> Result<State, DecodeError> {
        let kind = reader.u8("kind of file")?;
        let kind = Kind::from_number(kind).ok_or_else(|| reader.refuse("kind of file"))?;
        reader.zeroes("padding of a file", 3)?;
        let (mode, uid, gid) = (reader.u32("mode")?, reader.u32("owner")?, reader.u32("group")?);
        if mode & !file::MODE_MASK != 0 {
            return Err(reader.refuse("mode"));
        }
        Ok(State { kind, mode, uid, gid, size: reader.u64("size")?, inode: reader.u64("inode number")? })
    }
}

/// The records of what was filled of a window. The first that is none is the last that is told.
pub struct Records {
    bytes: Bytes,
    at: usize,
}

impl Records {
    /// Of these bytes. Pieces share them.
    #[must_use]
    pub fn new(bytes: Bytes) -> Records {
        Records { bytes, at: 0 }
    }

    fn next_record(&mut self) -> Result<Record, DecodeError> {
        let bytes = self.bytes.slice(self.at..);
        let mut reader = Reader::new(&bytes);
        let kind = reader.u8("kind of record")?;
        reader.zeroes("padding of a record", 3)?;
        let behind = reader.u32("length of a record")? as usize;
        let mut body = Reader::new(reader.take("record", behind)?);
        self.at += HEAD_BYTES + behind;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        let record = match kind {
            ENTRY => Record::Entry(Box::new(Entry::decode(&mut body)?)),
            PIECE => {
                let (number, offset) = (body.u64("number of an entry")?, body.u64("offset")?);
                let content = bytes.slice(PIECE_HEAD_BYTES..HEAD_BYTES + behind);
                return Ok(Record::Piece { number, offset, content });
            }
            BEGIN => Record::Begin { number: body.u64("number of an entry")?, size: body.u64("size")? },
            END => {
                let (number, size) = (body.u64("number of an entry")?, body.u64("size")?);
                let why = text(body.long_bytes("reason", WHY_BYTES_MAX)?).ok_or_else(|| body.refuse("reason"))?;
                Record::End { number, size, why }
            }
            PATH if behind > PATH_BYTES_MAX => return Err(body.refuse("path")),
            PATH => Record::Path(body.take("path", behind)?.to_vec()),
            CHANGE => Record::Change(Box::new(Change::decode(&mut body)?)),
            LOST => {
                let path = body.long_bytes("path", PATH_BYTES_MAX)?.to_vec();
                let why = text(body.long_bytes("reason", WHY_BYTES_MAX)?).ok_or_else(|| body.refuse("reason"))?;
                Record::Lost { path, why }
            }
            _ => return Err(reader.refuse("kind of record")),
        };
        body.finish("record")?;
        Ok(record)
    }
}

impl Iterator for Records {
    type Item = Result<Record, DecodeError>;

    fn next(&mut self) -> Option<Result<Record, DecodeError>> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let start = self.at;
        let record = self.next_record();
        if record.is_err() {
            self.at = self.bytes.len();
        }
        Some(record.map_err(|error| DecodeError { offset: start + error.offset, ..error }))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use base::time::Timestamp;
    use bytes::Bytes;
    use file::{Aspect, Kind};

    use super::{Change, Entry, Leads, Record, Records, State};

    /// One of each.
    pub(crate) fn samples() -> Vec<Record> {
        let file = Entry {
            mode: 0o4755,
            uid: 1000,
            gid: u32::MAX,
            links: 2,
            inode: u64::MAX,
            size: 10,
            allocated: 4,
            modified: Timestamp { seconds: -5, nanos: 999_999_999 },
            xattrs: vec![(b"user.a".to_vec(), b"value".to_vec()), (b"user.b".to_vec(), Vec::new())],
            ..Entry::new(b"sub/\xff name".to_vec(), Kind::Regular)
        };
        let link = Entry { leads: Leads::Link(b"sub".to_vec()), ..Entry::new(b"again".to_vec(), Kind::Regular) };
        let target = Leads::Target(b"../x".to_vec());
        let state = State { kind: Kind::Regular, mode: 0o644, uid: 1, gid: u32::MAX, size: 5, inode: u64::MAX };
        let (path, all) = (b"a/\xff".to_vec(), Aspect::ALL.to_vec());
        let removed = Change { path: path.clone(), before: Some(state), after: None, what: Vec::new() };
        let added = Change { before: None, after: Some(state), ..removed.clone() };
        let changed = Change { path, before: Some(state), after: Some(state), what: all };
        vec![
            Record::Entry(Box::new(Entry::new(Vec::new(), Kind::Directory))),
            Record::Entry(Box::new(file)),
            Record::Begin { number: 1, size: 10 },
            Record::Piece { number: 1, offset: 6, content: Bytes::from_static(b"data") },
            Record::End { number: 1, size: 10, why: String::new() },
            Record::Entry(Box::new(Entry { leads: target, ..Entry::new(b"s".to_vec(), Kind::Symlink) })),
            Record::Entry(Box::new(link)),
            Record::End { number: 1, size: 11, why: "it changed".to_owned() },
            Record::Path(b"a/\xff".to_vec()),
            Record::Lost { path: b"lost".to_vec(), why: "it is damaged".to_owned() },
            Record::Change(Box::new(removed)),
            Record::Change(Box::new(added)),
            Record::Change(Box::new(changed)),
        ]
    }

    #[test]
    fn records_read_back() {
        let bytes: Vec<u8> = samples().iter().flat_map(Record::encode).collect();
        let found: Result<Vec<Record>, _> = Records::new(Bytes::from(bytes)).collect();
        assert_eq!(found.expect("what was written"), samples());
    }

    #[test]
    fn what_no_record_takes_is_known_before() {
        let new = || Entry::new(b"e".to_vec(), Kind::Symlink);
        let (path_bytes, target_bytes) = (super::PATH_BYTES_MAX, base::limits::LINK_TARGET_BYTES_MAX);
        let xattr = |name: usize, value: usize| vec![(vec![b'n'; name], vec![0; value])];
        for over in [0, 1] {
            let entries = [
                Entry { path: vec![b'p'; path_bytes + over], ..new() },
                Entry { leads: Leads::Target(vec![b't'; target_bytes + over]), ..new() },
                Entry { leads: Leads::Link(vec![b'l'; path_bytes + over]), ..new() },
                Entry { xattrs: xattr(255 + over, 0), ..new() },
                Entry { xattrs: xattr(1, (64 << 10) + over), ..new() },
                Entry { xattrs: vec![(Vec::new(), Vec::new()); super::XATTRS_MAX + over], ..new() },
            ];
            for entry in entries {
                let is_taken =
                    Records::new(Bytes::from(Record::Entry(Box::new(entry.clone())).encode())).all(|r| r.is_ok());
                assert_eq!((entry.refusal().is_none(), is_taken), (over == 0, over == 0), "{:?}", entry.refusal());
            }
        }
        let many = Entry { xattrs: vec![xattr(1, 64 << 10).remove(0); 9], ..new() };
        assert!(many.refusal().is_some(), "more than a file has");
    }

    #[test]
    fn what_is_cut_or_changed_is_an_error_or_another_record_and_never_a_panic() {
        let bytes: Vec<u8> = samples().iter().flat_map(Record::encode).collect();
        for length in 0..bytes.len() {
            let cut = Bytes::copy_from_slice(&bytes[..length]);
            let whole = Records::new(cut).take_while(Result::is_ok).count();
            assert!(whole < samples().len(), "{length}");
        }
        for at in 0..bytes.len() {
            for flip in [1, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] ^= flip;
                assert!(Records::new(Bytes::from(changed)).count() <= bytes.len());
            }
        }
        let failed = Records::new(Bytes::from_static(&[9; 64])).next().expect("something");
        assert!(failed.expect_err("no such kind").to_string().contains("padding"));
    }
}
