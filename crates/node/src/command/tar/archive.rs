//! Members of an archive as they come, each with what extended headers before it say, and where its content lies in the file.
//!
//! tar-rs reads single headers, and no more: it ends a record of an extended header at a line end, which a value may have; it takes names and
//! records into memory whatever their size; and it gives the holes of a sparse file as zeroes.
//!
//! Not here: what becomes of a member (`extract`).

use std::io::{self, Read};
use std::ops::Range;

use tar::{EntryType, GnuExtSparseHeader, GnuSparseHeader, Header};

const BLOCK_BYTES: usize = 512;
/// No file system has longer paths.
const NAME_BYTES_MAX: u64 = 1 << 20;
/// All extended attributes that a file can have, and more.
const RECORDS_BYTES_MAX: u64 = 16 << 20;
/// Runs of content between holes, of 16 bytes in memory each.
const RUNS_MAX: usize = 4 << 20;
/// Digits of a number that fits 64 bits.
const DIGITS_MAX: usize = 20;
/// Before the name of an extended attribute in a record.
const XATTR: &[u8] = b"SCHILY.xattr.";
/// What an attribute's name has in a record in place of what would end it there, as with GNU tar.
const ESCAPES: [(&[u8], u8); 2] = [(b"%25", b'%'), (b"%3D", b'=')];

/// A record of an extended header: key and value, of any bytes.
pub(super) type Record = (Vec<u8>, Vec<u8>);

/// An archive; reading it gives the content of the member that came last.
pub(super) struct Archive<R> {
    input: R,
    /// Bytes that were read.
    at: u64,
    /// Of the member's content that were not read yet, and of what fills the block behind it.
    content: u64,
    filling: u64,
}

/// A file in an archive.
pub(super) struct Member {
    pub(super) header: Header,
    pub(super) path: Vec<u8>,
    /// What it leads to.
    pub(super) link: Option<Vec<u8>>,
    pub(super) owner: (u64, u64),
    /// Of the file, with its holes.
    pub(super) size: u64,
    /// Where its content lies in the file, in the order in which it comes: ascending, none empty.
    pub(super) runs: Vec<Range<u64>>,
    pub(super) records: Vec<Record>,
    /// Why it cannot be made, alone of all.
    pub(super) bad: Option<String>,
}

/// What came before a member, and is about it.
#[derive(Default)]
struct Before {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    records: Option<Vec<u8>>,
}

/// What is wrong.
enum Wrong {
    Member(String),
    Archive(io::Error),
}

impl From<io::Error> for Wrong {
    fn from(error: io::Error) -> Wrong {
        Wrong::Archive(error)
    }
}

pub(super) fn cut_short() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the archive ends in the middle of it")
}

impl<R: Read> Read for Archive<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(self.content).unwrap_or(usize::MAX));
        let count = self.input.read(&mut buffer[..wanted])?;
        self.at += count as u64;
        self.content -= count as u64;
        Ok(count)
    }
}

impl<R: Read> Archive<R> {
    pub(super) fn new(input: R) -> Archive<R> {
        Archive { input, at: 0, content: 0, filling: 0 }
    }

    /// The next member; `None`: that was all.
    pub(super) fn next(&mut self) -> io::Result<Option<Member>> {
        let mut before = Before::default();
        let mut is_described = false;
        loop {
            self.skip()?;
            let Some(header) = self.header()? else {
                return match is_described {
                    true => Err(io::Error::other("the archive ends behind a header of a file that does not come")),
                    false => Ok(None),
                };
            };
            let is_known = header.as_gnu().is_some() || header.as_ustar().is_some();
            let (part, bytes_max) = match header.entry_type() {
                EntryType::GNULongName if is_known => (&mut before.path, NAME_BYTES_MAX),
                EntryType::GNULongLink if is_known => (&mut before.link, NAME_BYTES_MAX),
                EntryType::XHeader if is_known => (&mut before.records, RECORDS_BYTES_MAX),
                EntryType::XGlobalHeader => {
                    self.expect(header.entry_size()?);
                    continue;
                }
                _ => return self.member(header, before).map(Some),
            };
            if part.is_some() {
                return Err(self.refused(&header, "describes a file that one more describes"));
            }
            *part = Some(self.whole(&header, bytes_max)?);
            is_described = true;
        }
    }

    /// The block, or as much of it as came before the end.
    fn block(&mut self) -> io::Result<Vec<u8>> {
        let mut block = Vec::with_capacity(BLOCK_BYTES);
        let count = self.input.by_ref().take(BLOCK_BYTES as u64).read_to_end(&mut block)?;
        self.at += count as u64;
        Ok(block)
    }

    fn header(&mut self) -> io::Result<Option<Header>> {
        let block = self.block()?;
        if block.is_empty() {
            return Ok(None);
        }
        let mut header = Header::new_old();
        let bytes = header.as_mut_bytes();
        if block.len() < bytes.len() {
            return Err(cut_short());
        }
        bytes.copy_from_slice(&block);
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        // Of which the sum itself counts as spaces.
        let sum = block[..148].iter().chain(&block[156..]).fold(8 * 32, |sum: u32, byte| sum + u32::from(*byte));
        if header.cksum()? != sum {
            let why =
                format!("the header at byte {} has another checksum than its bytes", self.at - block.len() as u64);
            return Err(io::Error::other(why));
        }
        Ok(Some(header))
    }

    /// So much content comes.
    fn expect(&mut self, bytes: u64) {
        self.content = bytes;
        self.filling = (BLOCK_BYTES as u64 - bytes % BLOCK_BYTES as u64) % BLOCK_BYTES as u64;
    }

    /// Lets the rest of a member go by.
    fn skip(&mut self) -> io::Result<()> {
        for left in [std::mem::take(&mut self.content), std::mem::take(&mut self.filling)] {
            let count = io::copy(&mut self.input.by_ref().take(left), &mut io::sink())?;
            self.at += count;
            if count < left {
                return Err(cut_short());
            }
        }
        Ok(())
    }

    /// The content of a member that describes another one.
    fn whole(&mut self, header: &Header, bytes_max: u64) -> io::Result<Vec<u8>> {
        let bytes = header.entry_size()?;
        if bytes > bytes_max {
            return Err(
                self.refused(header, &format!("has {bytes} bytes, and {bytes_max} are the most that make sense"))
            );
        }
        self.expect(bytes);
        let mut content = Vec::new();
        self.read_to_end(&mut content)?;
        if (content.len() as u64) < bytes { Err(cut_short()) } else { Ok(content) }
    }

    fn refused(&self, header: &Header, why: &str) -> io::Error {
        let (name, kind) = (header.path_bytes(), char::from(header.entry_type().as_byte()));
        let at = self.at - BLOCK_BYTES as u64;
        io::Error::other(format!("member {:?} at byte {at}, of kind {kind:?}, {why}", String::from_utf8_lossy(&name)))
    }

    fn member(&mut self, header: Header, before: Before) -> io::Result<Member> {
        let (records, mut bad) = parse_records(&before.records.unwrap_or_default());
        let stored = match number(&records, b"size") {
            Ok(size) => size,
            Err(why) => {
                bad.get_or_insert(why);
                None
            }
        };
        let stored = stored.map_or_else(|| header.entry_size(), Ok)?;
        self.expect(stored);
        let (size, runs) = match self.layout(&header, &records, stored) {
            Ok(layout) => layout,
            Err(Wrong::Archive(error)) => return Err(error),
            Err(Wrong::Member(why)) => {
                bad.get_or_insert(why);
                (0, Vec::new())
            }
        };
        // Behind names that GNU tar made up.
        let keys: [&[u8]; 2] = [b"GNU.sparse.name", b"path"];
        let of_record = |key: &[u8]| record(&records, key).map(<[u8]>::to_vec);
        let path = before.path.map(without_end).or_else(|| keys.into_iter().find_map(of_record));
        let link = before.link.map(without_end).or_else(|| of_record(b"linkpath"));
        let mut owner = (header.uid()?, header.gid()?);
        for (id, key) in [(&mut owner.0, b"uid"), (&mut owner.1, b"gid")] {
            match number(&records, key) {
                Ok(found) => *id = found.unwrap_or(*id),
                Err(why) => {
                    bad.get_or_insert(why);
                }
            }
        }
        let path = path.unwrap_or_else(|| header.path_bytes().into_owned());
        let link = link.or_else(|| header.link_name_bytes().map(std::borrow::Cow::into_owned));
        Ok(Member { header, path, link, owner, size, runs, records, bad })
    }

    /// The size of a file, and where its content lies, of which so much is stored.
    fn layout(&mut self, header: &Header, records: &[Record], stored: u64) -> Result<(u64, Vec<Range<u64>>), Wrong> {
        let sparse = |key: &str| number(records, format!("GNU.sparse.{key}").as_bytes()).map_err(Wrong::Member);
        let (size, list) = if header.entry_type().is_gnu_sparse() {
            self.list_of_headers(header)?
        } else if !records.iter().any(|(key, _)| key.starts_with(b"GNU.sparse.")) {
            (stored, vec![(0, stored)])
        } else if let ((Some(1), Some(0)), Some(size)) = ((sparse("major")?, sparse("minor")?), sparse("realsize")?) {
            (size, self.list_of_content()?)
        } else {
            let why = "it is sparse in a way that is not understood here: extract it with tar(1)";
            return Err(Wrong::Member(why.to_owned()));
        };
        if i64::try_from(size).is_err() {
            return Err(Wrong::Member(format!("no file can have {size} bytes")));
        }
        // Without a list that came in front of it.
        let runs = runs(&list, size, self.content).map_err(|why| Wrong::Member(why.to_owned()))?;
        Ok((size, runs))
    }

    /// Of a sparse file of GNU tar's own format: its list begins in the header and goes on in blocks behind it.
    fn list_of_headers(&mut self, header: &Header) -> Result<(u64, Vec<(u64, u64)>), Wrong> {
        let gnu =
            header.as_gnu().ok_or_else(|| Wrong::Member("it is sparse, and its header is none of GNU tar".into()))?;
        let mut list = Vec::new();
        let mut wrong = None;
        let mut add = |headers: &[GnuSparseHeader]| {
            for header in headers.iter().filter(|header| !header.is_empty()) {
                match (header.offset(), header.length()) {
                    (Ok(offset), Ok(length)) if list.len() < RUNS_MAX => list.push((offset, length)),
                    (Err(error), _) | (_, Err(error)) => wrong = Some(error.to_string()),
                    _ => wrong = Some(too_many()),
                }
            }
        };
        add(&gnu.sparse);
        let mut goes_on = gnu.is_extended();
        while goes_on {
            let block = self.block()?;
            let mut more = GnuExtSparseHeader::new();
            if block.len() < BLOCK_BYTES {
                return Err(cut_short().into());
            }
            more.as_mut_bytes().copy_from_slice(&block);
            add(more.sparse());
            goes_on = more.is_extended();
        }
        match wrong {
            Some(why) => Err(Wrong::Member(why)),
            None => Ok((gnu.real_size()?, list)),
        }
    }

    /// Of a sparse file of format 1.0 (GNU tar's manual, "PAX Format, Version 1.0"): numbers, each with a line end, up to the end of a block in
    /// front of the content.
    fn list_of_content(&mut self) -> Result<Vec<(u64, u64)>, Wrong> {
        let mut block = Vec::new().into_iter();
        let mut number = || {
            let mut digits = String::new();
            loop {
                match block.next() {
                    Some(digit @ b'0'..=b'9') if digits.len() < DIGITS_MAX => digits.push(char::from(digit)),
                    Some(b'\n') => return digits.parse::<u64>().map_err(|_| unreadable_list()),
                    None if self.content >= BLOCK_BYTES as u64 => {
                        let next = self.block()?;
                        if next.len() < BLOCK_BYTES {
                            return Err(cut_short().into());
                        }
                        self.content -= BLOCK_BYTES as u64;
                        block = next.into_iter();
                    }
                    _ => return Err(unreadable_list()),
                }
            }
        };
        let count = usize::try_from(number()?).unwrap_or(usize::MAX);
        if count > RUNS_MAX {
            return Err(Wrong::Member(too_many()));
        }
        let mut list = Vec::new();
        for _ in 0..count {
            list.push((number()?, number()?));
        }
        Ok(list)
    }
}

fn too_many() -> String {
    format!("it has more than {RUNS_MAX} runs of content between holes")
}

fn unreadable_list() -> Wrong {
    Wrong::Member("its list of holes cannot be read".to_owned())
}

/// Offsets and lengths as runs of a file of this size, of which so much is stored.
fn runs(list: &[(u64, u64)], size: u64, stored: u64) -> Result<Vec<Range<u64>>, &'static str> {
    let (mut runs, mut end, mut left): (Vec<Range<u64>>, _, _) = (Vec::new(), 0, stored);
    for (offset, length) in list.iter().copied().filter(|(_, length)| *length > 0) {
        if offset < end {
            return Err("runs of its content overlap");
        }
        // Each begins with a block of its own with one program, and not with another.
        if !(stored - left).is_multiple_of(BLOCK_BYTES as u64) {
            return Err("a run of its content ends within a block");
        }
        end = offset.checked_add(length).filter(|end| *end <= size).ok_or("its content goes beyond its size")?;
        left = left.checked_sub(length).ok_or("less of its content is stored than its list of holes says")?;
        match runs.last_mut() {
            Some(last) if last.end == offset => last.end = end,
            _ => runs.push(offset..end),
        }
    }
    if left > 0 { Err("more of its content is stored than its list of holes says") } else { Ok(runs) }
}

/// A name that ends as in C.
fn without_end(mut name: Vec<u8>) -> Vec<u8> {
    name.pop_if(|byte| *byte == 0);
    name
}

/// The value of a record: the last one of this key. An empty one takes back what was said before.
fn record<'a>(records: &'a [Record], key: &[u8]) -> Option<&'a [u8]> {
    let found = records.iter().rev().find(|(other, _)| other == key);
    found.map(|(_, value)| value.as_slice()).filter(|value| !value.is_empty())
}

fn number(records: &[Record], key: &[u8]) -> Result<Option<u64>, String> {
    let Some(value) = record(records, key) else { return Ok(None) };
    let number = str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    number.map(Some).ok_or_else(|| format!("its record {:?} is no number", String::from_utf8_lossy(key)))
}

/// The records of an extended header, `length key=value` with a line end each (pax(1)), up to one that makes no sense, and what is wrong with that.
fn parse_records(mut bytes: &[u8]) -> (Vec<Record>, Option<String>) {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let Some((record, rest)) = split_record(bytes) else {
            let why = format!("record {} of its extended header makes no sense", records.len() + 1);
            return (records, Some(why));
        };
        records.push(record);
        bytes = rest;
    }
    (records, None)
}

fn split_record(bytes: &[u8]) -> Option<(Record, &[u8])> {
    let space = bytes.iter().take(DIGITS_MAX).position(|byte| *byte == b' ')?;
    let length: usize = str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
    let (record, rest) = bytes.split_at_checked(length)?;
    let record = record.strip_suffix(b"\n")?.get(space + 1..)?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some(((record[..equals].to_vec(), record[equals + 1..].to_vec()), rest))
}

/// Records as they lie in an extended header.
pub(super) fn encode_records(records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (key, value) in records {
        // The length counts its own digits.
        let others = key.len() + value.len() + 3;
        let with = |digits: usize| others + digits;
        let digits = (1..).find(|digits| with(*digits).to_string().len() == *digits).unwrap_or(1);
        bytes.extend_from_slice(with(digits).to_string().as_bytes());
        for part in [b" ", key.as_slice(), b"=", value, b"\n"] {
            bytes.extend_from_slice(part);
        }
    }
    bytes
}

/// The key of an extended attribute's record.
pub(super) fn xattr_key(name: &[u8]) -> Vec<u8> {
    let mut key = XATTR.to_vec();
    for byte in name {
        match ESCAPES.iter().find(|(_, escaped)| escaped == byte) {
            Some((escape, _)) => key.extend_from_slice(escape),
            None => key.push(*byte),
        }
    }
    key
}

/// The name of the extended attribute that a record of this key is of.
pub(super) fn xattr_name(key: &[u8]) -> Option<Vec<u8>> {
    let (mut rest, mut name) = (key.strip_prefix(XATTR)?, Vec::new());
    while let Some((first, tail)) = rest.split_first() {
        let escaped = ESCAPES.iter().find_map(|(escape, byte)| Some((*byte, rest.strip_prefix(*escape)?)));
        let (byte, behind) = escaped.unwrap_or((*first, tail));
        name.push(byte);
        rest = behind;
    }
    Some(name)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Read;

    use fuzz::{CASES, Target};
    use tar::{EntryType, Header};

    use super::{Archive, Member, encode_records, parse_records, xattr_key, xattr_name};

    /// Members with all that is said of them, or a refusal; each can be made as it says.
    pub(crate) const TARGET: Target = Target { name: "archive", cases: CASES, samples, repair, check };

    const BLOCK: usize = 512;

    fn samples() -> Vec<Vec<u8>> {
        let value = b"a\n12 path=b\n\0";
        let said: [(&str, &[u8]); 4] =
            [("SCHILY.xattr.user.a%3D", value), ("uid", b"7"), ("size", b"7"), ("GNU.sparse", b"none")];
        let long = |kind| member("././@LongLink", kind, &[b'n'; 150]);
        let list = [(0, 512), (1024, 512), (2048, 512), (3072, 512), (4096, 1)];
        vec![
            [records(&said), member("a", EntryType::Regular, b"content")].concat(),
            [long(EntryType::GNULongName), long(EntryType::GNULongLink), member("a", EntryType::Symlink, b"")].concat(),
            sparse(1 << 40, &list, &[1; 2049]),
            sparse_by_records(9000, &list[..2], &[1; 1024]),
        ]
    }

    /// Of each header.
    fn repair(bytes: &mut [u8]) {
        for block in bytes.chunks_exact_mut(BLOCK).filter(|block| block[257..262] == *b"ustar") {
            let sum = block[..148].iter().chain(&block[156..]).fold(8 * 32, |sum: u32, byte| sum + u32::from(*byte));
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }

    fn check(bytes: &[u8]) -> Result<(), String> {
        let mut archive = Archive::new(bytes);
        let mut outcome = Ok(());
        let words = |why: &str| why.chars().filter(char::is_ascii_lowercase).take(30).collect::<String>();
        while let Some(member) = archive.next().map_err(|error| words(&error.to_string()))? {
            let Member { size, runs, records, bad, .. } = member;
            assert!(i64::try_from(size).is_ok() && runs.iter().all(|run| run.start < run.end && run.end <= size));
            assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start));
            let stored: u64 = runs.iter().map(|run| run.end - run.start).sum();
            assert!(bad.is_some() || stored == archive.content, "{stored} of {} have a place", archive.content);
            assert_eq!(parse_records(&encode_records(&records)), (records, None));
            outcome = outcome.and(bad.map_or(Ok(()), |why| Err(words(&why))));
            let mut content = Vec::new();
            archive.read_to_end(&mut content).expect("memory");
        }
        outcome
    }

    fn header(name: &str, kind: EntryType, size: u64) -> Header {
        let mut header = Header::new_gnu();
        header.set_path(name).expect("it is short");
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(0o644);
        header.set_uid(1);
        header.set_gid(2);
        header.set_mtime(0);
        header.set_cksum();
        header
    }

    fn member(name: &str, kind: EntryType, content: &[u8]) -> Vec<u8> {
        let mut bytes = header(name, kind, content.len() as u64).as_bytes().to_vec();
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        bytes
    }

    fn records(records: &[(&str, &[u8])]) -> Vec<u8> {
        let records: Vec<_> = records.iter().map(|(key, value)| (key.as_bytes().to_vec(), value.to_vec())).collect();
        member("x", EntryType::XHeader, &encode_records(&records))
    }

    /// All members with their content, and how it ended.
    fn read(bytes: &[u8]) -> (Vec<(Member, Vec<u8>)>, Option<String>) {
        let (mut archive, mut found) = (Archive::new(bytes), Vec::new());
        loop {
            match archive.next() {
                Ok(Some(member)) => {
                    let mut content = Vec::new();
                    archive.read_to_end(&mut content).expect("memory");
                    found.push((member, content));
                }
                Ok(None) => return (found, None),
                Err(error) => return (found, Some(error.to_string())),
            }
        }
    }

    fn why(found: &Member) -> &str {
        found.bad.as_deref().unwrap_or("nothing")
    }

    #[test]
    fn a_value_of_a_record_has_any_bytes() {
        let hidden = b"a\n12 size=100\n13 path=other\n";
        for length in [0, 1, 80, 81, 82, 83, 980, 981, 982, 70_000] {
            let value = vec![b'\n'; length];
            let all = [
                ("SCHILY.xattr.user.a", &value[..]),
                ("SCHILY.xattr.user.b", hidden),
                ("path", b"long"),
                ("uid", b"7"),
            ];
            let bytes = [
                records(&all),
                member("short", EntryType::Regular, b"content"),
                member("next", EntryType::Regular, b""),
            ];
            let (found, end) = read(&bytes.concat());
            assert_eq!((found.len(), end), (2, None));
            let (first, content) = &found[0];
            assert_eq!((&first.path[..], &content[..], why(first)), (&b"long"[..], &b"content"[..], "nothing"));
            assert_eq!((first.owner, first.size, first.records.len()), ((7, 2), 7, 4));
            assert!(first.records[0].1 == value && first.records[1].1 == hidden);
            assert_eq!((&found[1].0.path[..], found[1].0.owner), (&b"next"[..], (1, 2)));
        }
        for name in ["user.a=b", "user.%3D", "%25%", "="] {
            let key = xattr_key(name.as_bytes());
            assert!(!key.contains(&b'='));
            assert_eq!(xattr_name(&key).as_deref(), Some(name.as_bytes()));
        }
        assert_eq!(xattr_name(b"path"), None);
    }

    #[test]
    fn a_record_that_makes_no_sense_is_its_files_own_failure() {
        let hostile: [&[u8]; 9] = [
            b"5 a=b\n",
            b"7 a=b\n",
            b"x a=b\n",
            b" a=b\n",
            b"6 a=b",
            b"5 ab\n",
            b"2 \n",
            b"18446744073709551615 a=b\n",
            b"\0",
        ];
        for bytes in hostile {
            let (good, bad) = parse_records(&[b"6 a=c\n", bytes].concat());
            assert_eq!(good, [(b"a".to_vec(), b"c".to_vec())]);
            assert!(bad.is_some_and(|why| why.contains("record 2")), "{}", String::from_utf8_lossy(bytes));
            let all = [
                member("x", EntryType::XHeader, bytes),
                member("a", EntryType::Regular, b"b"),
                member("c", EntryType::Regular, b"d"),
            ];
            let (found, end) = read(&all.concat());
            assert_eq!((found.len(), end), (2, None));
            assert!(why(&found[0].0).contains("makes no sense") && why(&found[1].0) == "nothing");
        }
        let (found, _) = read(&[records(&[("size", b"-1")]), member("a", EntryType::Regular, b"b")].concat());
        assert!(why(&found[0].0).contains("is no number"));
    }

    #[test]
    fn what_describes_a_file_is_read_within_bounds() {
        for (kind, bytes) in
            [(EntryType::GNULongName, 1 << 20), (EntryType::GNULongLink, 1 << 20), (EntryType::XHeader, 16 << 20)]
        {
            let header = header("name", kind, bytes + 1);
            let endless = header.as_bytes().chain(std::io::repeat(b'n'));
            let error = Archive::new(endless).next().map(|_| ()).expect_err("more than any has").to_string();
            assert!(error.contains("\"name\"") && error.contains("are the most"), "{error}");
        }
        let name = vec![b'n'; 1 << 20];
        let (found, end) =
            read(&[member("l", EntryType::GNULongName, &name), member("a", EntryType::Regular, b"")].concat());
        assert!(found[0].0.path == name && end.is_none());
        // What nothing comes behind, and what comes twice.
        let (found, end) = read(&records(&[("path", b"a")]));
        assert!(found.is_empty() && end.is_some_and(|why| why.contains("does not come")));
        let (found, end) = read(&[records(&[("path", b"a")]), records(&[("path", b"b")])].concat());
        assert!(found.is_empty() && end.is_some_and(|why| why.contains("one more")));
    }

    /// Offsets and lengths.
    type List<'a> = &'a [(u64, u64)];

    fn sparse(size: u64, list: List<'_>, content: &[u8]) -> Vec<u8> {
        let mut header = header("sparse", EntryType::GNUSparse, content.len() as u64);
        let gnu = header.as_gnu_mut().expect("of GNU tar");
        gnu.set_real_size(size);
        for (place, (offset, length)) in gnu.sparse.iter_mut().zip(list) {
            place.set_offset(*offset);
            place.set_length(*length);
        }
        let rest = &list[list.len().min(4)..];
        gnu.set_is_extended(!rest.is_empty());
        header.set_cksum();
        let mut bytes = header.as_bytes().to_vec();
        for (number, part) in rest.chunks(21).enumerate() {
            let mut more = tar::GnuExtSparseHeader::new();
            for (place, (offset, length)) in more.sparse_mut().iter_mut().zip(part) {
                place.set_offset(*offset);
                place.set_length(*length);
            }
            more.set_is_extended((number + 1) * 21 < rest.len());
            bytes.extend_from_slice(more.as_bytes());
        }
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        bytes
    }

    fn sparse_by_records(size: u64, list: List<'_>, content: &[u8]) -> Vec<u8> {
        let mut stored = format!("{}\n", list.len()).into_bytes();
        list.iter().for_each(|(offset, length)| stored.extend(format!("{offset}\n{length}\n").into_bytes()));
        stored.resize(stored.len().next_multiple_of(BLOCK), 0);
        stored.extend_from_slice(content);
        let size = size.to_string();
        let said: [(&str, &[u8]); 4] = [
            ("GNU.sparse.major", b"1"),
            ("GNU.sparse.minor", b"0"),
            ("GNU.sparse.name", b"sparse"),
            ("GNU.sparse.realsize", size.as_bytes()),
        ];
        [records(&said), member("GNUSparseFile.0/sparse", EntryType::Regular, &stored)].concat()
    }

    #[test]
    fn sparse_files_have_their_content_where_it_lies() {
        let next = member("next", EntryType::Regular, b"n");
        for make in [sparse, sparse_by_records] {
            for count in [0, 1, 4, 5, 25, 26, 300] {
                let list: Vec<_> = (0..count).map(|number| (1024 * number + 512, 512)).chain([(1 << 60, 0)]).collect();
                let content: Vec<u8> = (0..count).flat_map(|number| [number as u8; BLOCK]).collect();
                let (found, end) = read(&[make(1 << 60, &list, &content), next.clone()].concat());
                assert_eq!((found.len(), end, why(&found[0].0)), (2, None, "nothing"), "{count}");
                let (first, stored) = &found[0];
                assert_eq!((&first.path[..], first.size, stored), (&b"sparse"[..], 1 << 60, &content));
                let runs: Vec<_> =
                    list.iter().filter(|(_, bytes)| *bytes > 0).map(|(at, bytes)| *at..at + bytes).collect();
                assert_eq!(first.runs, runs);
                assert_eq!(found[1].1, b"n");
            }
            // Neighbours are one; the last may end anywhere.
            let (found, _) = read(&make(2000, &[(0, 512), (512, 512), (1500, 7)], &[1; 1031]));
            assert_eq!(found[0].0.runs, [0..1024, 1500..1507]);
            let wrong: [(u64, List<'_>, usize, &str); 7] = [
                (1 << 63, &[], 0, "no file can have"),
                (u64::MAX, &[], 0, "no file can have"),
                (2000, &[(512, 512), (600, 512)], 1024, "overlap"),
                (2000, &[(0, 500), (1000, 500)], 1000, "within a block"),
                (2000, &[(1999, 512)], 512, "beyond its size"),
                (2000, &[(0, 512)], 511, "less of its content"),
                (2000, &[(0, 511)], 512, "more of its content"),
            ];
            for (size, list, stored, words) in wrong {
                let (found, end) = read(&[make(size, list, &vec![0; stored]), next.clone()].concat());
                assert_eq!((found.len(), end), (2, None), "{words}");
                assert!(
                    why(&found[0].0).contains(words) && found[0].0.path == b"sparse",
                    "{words}: {}",
                    why(&found[0].0)
                );
            }
        }
        let older: [&[(&str, &[u8])]; 2] = [
            &[("GNU.sparse.map", b"0,512"), ("GNU.sparse.size", b"9999"), ("GNU.sparse.name", b"sparse")],
            &[
                ("GNU.sparse.major", b"2"),
                ("GNU.sparse.minor", b"0"),
                ("GNU.sparse.realsize", b"1"),
                ("path", b"sparse"),
            ],
        ];
        for said in older {
            let all = [records(said), member("a", EntryType::Regular, &[1; 512]), next.clone()];
            let (found, end) = read(&all.concat());
            assert_eq!((found.len(), end, &found[0].0.path[..]), (2, None, &b"sparse"[..]));
            assert!(why(&found[0].0).contains("not understood"));
        }
        for list in
            ["", "1", "1\n0\n", "x\n", "\n", "1\n99999999999999999999\n0\n", "4194305\n", "00000000000000000000001\n"]
        {
            let said: [(&str, &[u8]); 3] =
                [("GNU.sparse.major", b"1"), ("GNU.sparse.minor", b"0"), ("GNU.sparse.realsize", b"9")];
            let mut stored = list.as_bytes().to_vec();
            stored.resize(BLOCK, 0);
            let (found, end) = read(&[records(&said), member("a", EntryType::Regular, &stored), next.clone()].concat());
            assert_eq!((found.len(), end), (2, None), "{list:?}");
            assert!(why(&found[0].0).contains("list of holes") || why(&found[0].0).contains("more than"), "{list:?}");
        }
    }

    #[test]
    fn where_an_archive_is_cut_it_says_so() {
        let whole =
            [sparse_by_records(9000, &[(0, 512), (4096, 512)], &[1; 1024]), sparse(1 << 40, &[(0, 512); 0], &[])]
                .concat();
        for end in 0..whole.len() {
            let (found, error) = read(&whole[..end]);
            let is_between = end == 0 || end == whole.len() - BLOCK;
            assert_eq!(error.is_none(), is_between, "{end}");
            assert!(found.len() < 2);
        }
        let mut damaged = whole;
        damaged[3] ^= 1;
        assert!(read(&damaged).1.is_some_and(|why| why.contains("checksum")));
    }
}
