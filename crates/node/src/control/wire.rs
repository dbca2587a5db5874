//! What the command line and the daemon say to each other on the control socket.
//!
//! One request per connection, one line of JSON; the answer is any number of `progress` lines and then one `done` or `failed`:
//!
//! ```text
//! > {"do":"snapshot-create","name":"monday"}
//! < {"progress":"flushing"}
//! < {"done":{"name":"monday", ...}}
//! ```
//!
//! `send`, `receive` and `fill` bring a descriptor along (`descriptor`).
//!
//! JSON and lines, because a person with `socat` and a program in any language can speak it; a line has a bound, so a
//! hostile peer costs at most that much memory. Unknown requests and fields are an error that says so: a newer command
//! line that asks an older daemon for something must not get half of it.

use std::fmt;
use std::io::{self, BufRead, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::failure::Failure;

/// Longest request: some hundred names.
pub const REQUEST_BYTES_MAX: u64 = 16 * 1024;
/// What the names of one request may come to. One of 255 bytes is a list of numbers where it is no text: a kilobyte.
pub const NAMES_BYTES_MAX: usize = 12 * 1024;
/// Files and directories that are read as one batch: their numbers fit a request, and who asks can hold them open.
pub const ROOTS_MAX: usize = 256;
/// The list of what is to be read in one batch, some ten thousand paths: a longer one goes in parts, each a pass over the disks.
pub const LIST_BYTES_MAX: u32 = 2 << 20;
/// Longest answer: a list of many thousand snapshots.
pub const ANSWER_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// How a daemon fails a request that it does not know, or knows with other fields.
pub const NOT_UNDERSTOOD: &str = "cannot understand the request";

/// What is asked. Those without fields are written `{}`, because serde lets unknown fields pass in plain ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The state of the daemon, its files and its disks.
    Status {},
    /// All metrics, as JSON with whole histograms.
    Counters {},
    /// All metrics, as text for Prometheus.
    Metrics {},
    /// What is known of the file with this inode number.
    Info {
        /// `st_ino`.
        inode: u64,
    },
    /// Everything that was accepted becomes local.
    Sync {},
    /// The numbers of the files of which the kernel may have pages that were changed through mappings.
    Cached {
        /// This part, of so many; of 0: the first, and the daemon says of how many. `None`: all in one answer, which takes memory by their number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        part: Option<(u32, u32)>,
    },
    /// The device number of the mount's files, as in the mount table; none: it has no mount.
    Device {},
    /// Something about files of the mount with this device number, which inode numbers in it belong to: refused by a daemon that serves another
    /// one, for they mean other files there (I-158).
    On {
        /// `major:minor`.
        device: String,
        /// What is asked.
        request: Box<Request>,
    },
    /// Takes a snapshot.
    SnapshotCreate {
        /// Its name.
        name: String,
        /// `st_ino` of the directory that it is to show; none: everything.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        of: Option<u64>,
    },
    /// Lists the snapshots.
    SnapshotList {},
    /// Deletes a snapshot.
    SnapshotDelete {
        /// Its name.
        name: String,
    },
    /// Clones a directory, with everything below it.
    Clone {
        /// `st_ino` of the directory, of the present or of a snapshot.
        source: u64,
        /// That of the directory that the clone is made in.
        parent: u64,
        /// What it is called there.
        name: String,
    },
    /// Counts what is below a directory; tells how far it is.
    Usage {
        /// `st_ino` of the directory, or of a file.
        inode: u64,
    },
    /// Copies a file, or a directory with everything below it, within the file system; tells how far it is.
    BatchCopy {
        /// `st_ino` of it, of the present or of a snapshot.
        source: u64,
        /// That of the directory that the copy is made in.
        parent: u64,
        /// What it is called there.
        name: Name,
        /// Whose new files it is to be; none: it keeps what the source has.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        anew: Option<Anew>,
    },
    /// Removes names of one directory, and everything below them.
    BatchRemove {
        /// `st_ino` of the directory that they are in.
        parent: u64,
        /// The names.
        names: Vec<Name>,
        /// Directories too: else they stay.
        recursive: bool,
    },
    /// Writes files and directories that lie in the memory that comes with the request (`batch`).
    BatchWrite(BatchWriting),
    /// Reads content for a file from the descriptor that comes with the request, of a file on a disk of this machine.
    Fill {
        /// `st_ino` of the file that gets it, of the present.
        inode: u64,
        /// Where, in both files.
        offset: u64,
        /// How much, or up to the end of the file that comes.
        length: u64,
    },
    /// Reads a file, or a directory with everything below it, into the memory that comes with the request.
    BatchRead(BatchReading),
    /// Compares two files, or two directories with everything below them; what differs comes into the memory that comes with the request.
    BatchCompare(BatchComparing),
    /// Writes a snapshot into the descriptor that comes with the request; tells how far it is.
    Send {
        /// Its name.
        snapshot: String,
        /// The name of one that the receiver has.
        from: Option<String>,
        /// The place at which a stream that was cut goes on.
        resume: Option<String>,
        /// Only find out what would go; no descriptor comes then.
        dry_run: bool,
    },
    /// Makes a snapshot of what comes out of the descriptor that comes with the request; tells how far it is.
    Receive {
        /// Its name here, unless it is that which it had.
        name: Option<String>,
    },
    /// Checks everything that is stored; tells how far it is.
    Fsck {
        /// Read the content of every chunk too.
        deep: bool,
    },
    /// One round of a repair: carries out what the last check planned, step by step, checks again, and plans the next round; tells how far it is.
    Repair {
        /// As for the check.
        deep: bool,
        /// Give up what cannot be read of directories and the catalog.
        accept_loss: bool,
    },
    /// Gives back the room of what nobody needs; tells how far it is.
    Gc {
        /// Only find out what would be done.
        dry_run: bool,
        /// Every chunk that nobody needs, not only where a pack is mostly of those.
        thorough: bool,
        /// Percentage of the time that it may take; none: that of the settings.
        #[serde(default)]
        share: Option<u8>,
    },
    /// Reads what is stored again; tells how far it is.
    Scrub {
        /// Only find out what would be read.
        dry_run: bool,
        /// Only what was last checked as long ago.
        older_than_seconds: u64,
        /// As for `Gc`.
        #[serde(default)]
        share: Option<u8>,
    },
    /// Has the small files below a directory lie next to each other; tells how far it is.
    Optimize {
        /// `st_ino` of the directory, of the present.
        inode: u64,
        /// Only find out how they lie.
        dry_run: bool,
        /// Percentage of the time that it may take.
        share: u8,
    },
    /// Reads trees into memory; tells how far it is.
    Warmup {
        /// `st_ino` of directories or files, of the present or of snapshots.
        inodes: Vec<u64>,
        /// Only names and attributes.
        metadata: bool,
    },
    /// Sets what is asked for a file or directory against the loss of disks, and has its content lie so; tells how far it is.
    PolicySet {
        /// `st_ino`.
        inode: u64,
        /// On so many disks; none: as the settings say, or as `fragments`.
        copies: Option<u8>,
        /// In so many fragments, such as 4+2.
        #[serde(default)]
        fragments: Option<String>,
        /// And for everything below it.
        recursive: bool,
    },
    /// Formats an empty directory and takes it in as one more disk.
    DiskAdd {
        /// Absolute.
        path: std::path::PathBuf,
    },
    /// Has a disk take nothing new, and brings what lies there to others; tells how far it is.
    DiskDrain {
        /// Its number.
        disk: u64,
        /// Only find out what would be done.
        dry_run: bool,
        /// Take part again instead.
        stop: bool,
        /// As for `Gc`; none: that of repairs.
        #[serde(default)]
        share: Option<u8>,
        /// Also if something will be on fewer disks than was asked for.
        #[serde(default)]
        accept_fewer: bool,
    },
    /// Measures what a request takes on each disk.
    DiskMeasure {},
    /// Does without a disk from now on.
    DiskRemove {
        /// Its number.
        disk: u64,
        /// Also if something is there and on no other disk, where it takes no writes.
        accept_loss: bool,
    },
    /// Unmounts, makes everything local, commits, and ends the daemon. Fails and changes nothing while the mount is in use,
    /// unless it is to be detached.
    Stop {
        /// Take the mount away even if it is in use.
        detach: bool,
    },
    /// Goes on in a new process: a newer program, or changed settings. Who uses the mount sees a pause.
    Restart {
        /// The program, an absolute path; none: the one that was started.
        #[serde(default)]
        program: Option<std::path::PathBuf>,
    },
}

impl Request {
    /// Whether it is answered from memory, or by reading a little.
    #[must_use]
    pub fn is_quick(&self) -> bool {
        match self {
            Request::On { request, .. } => request.is_quick(),
            Request::Status {} | Request::Counters {} | Request::Metrics {} => true,
            Request::Info { .. } | Request::SnapshotList {} | Request::Device {} => true,
            Request::Sync {} | Request::Cached { .. } | Request::Fsck { .. } | Request::Repair { .. } => false,
            Request::Gc { .. } | Request::Scrub { .. } => false,
            Request::PolicySet { .. } | Request::Optimize { .. } | Request::Warmup { .. } => false,
            Request::DiskAdd { .. } | Request::DiskDrain { .. } | Request::DiskMeasure {} => false,
            Request::DiskRemove { .. } => false,
            Request::SnapshotCreate { .. } | Request::SnapshotDelete { .. } | Request::Clone { .. } => false,
            Request::Send { .. } | Request::Receive { .. } => false,
            Request::BatchWrite(_) | Request::BatchRead(_) | Request::BatchRemove { .. } => false,
            Request::BatchCopy { .. } | Request::BatchCompare(_) | Request::Usage { .. } | Request::Fill { .. } => {
                false
            }
            Request::Stop { .. } | Request::Restart { .. } => false,
        }
    }

    /// Whether it is work in masses, which gets a CPU after others.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        match self {
            Request::On { request, .. } => request.is_behind(),
            Request::BatchWrite(_) | Request::BatchRead(_) | Request::BatchCopy { .. } => true,
            Request::BatchCompare(_) | Request::Warmup { .. } | Request::Fill { .. } => true,
            Request::Scrub { .. } | Request::Optimize { .. } | Request::Fsck { .. } => true,
            Request::Send { .. } | Request::Receive { .. } | Request::DiskDrain { .. } | Request::DiskMeasure {} => {
                true
            }
            Request::Status {} | Request::Counters {} | Request::Metrics {} | Request::Info { .. } => false,
            Request::Cached { .. } | Request::Device {} => false,
            // Names; what they had goes later. Who waits for room waits for a pass.
            Request::BatchRemove { .. } | Request::Gc { .. } => false,
            Request::Usage { .. } | Request::Sync {} | Request::PolicySet { .. } | Request::Clone { .. } => false,
            Request::SnapshotCreate { .. } | Request::SnapshotList {} | Request::SnapshotDelete { .. } => false,
            Request::DiskAdd { .. } | Request::DiskRemove { .. } | Request::Repair { .. } => false,
            Request::Stop { .. } | Request::Restart { .. } => false,
        }
    }
}

/// Numbers as the step from each to the next one above it: an answer may name a million files.
#[must_use]
pub fn steps(mut numbers: Vec<u64>) -> Vec<u64> {
    numbers.sort_unstable();
    let before = std::iter::once(0).chain(numbers.iter().copied());
    numbers.iter().zip(before).map(|(number, before)| number - before).collect()
}

/// The numbers that [`steps`] was given.
pub fn ascending(steps: &Value) -> impl Iterator<Item = u64> {
    let steps = steps.as_array().into_iter().flatten().filter_map(Value::as_u64);
    steps.scan(0_u64, |number, step| {
        *number = number.checked_add(step)?;
        Some(*number)
    })
}

/// A name of a file: text, or bytes that are none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Name {
    /// UTF-8, as most are.
    Text(String),
    /// Any bytes.
    Bytes(Vec<u8>),
}

impl Name {
    /// Of these bytes.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Name {
        let text = str::from_utf8(bytes).map(ToOwned::to_owned);
        text.map_or_else(|_| Name::Bytes(bytes.to_vec()), Name::Text)
    }

    /// What it takes of a line, with the comma behind it.
    #[must_use]
    pub fn line_bytes(&self) -> usize {
        serde_json::to_vec(self).map_or(usize::MAX, |line| line.len() + 1)
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Name::Text(text) => text.as_bytes(),
            Name::Bytes(bytes) => bytes,
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.bytes()))
    }
}

/// What a batch is written by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchWriting {
    /// `st_ino` of the directory that paths begin in.
    pub parent: u64,
    /// Windows of the memory.
    pub windows: u32,
    /// Bytes of each.
    pub window_bytes: u32,
    /// A file that is there is replaced; else it is a failure.
    pub replace: bool,
    /// What fails of one entry of a unit fails the unit.
    pub atomic: bool,
    /// Modes, owners and times are as the entries say, also of directories that are there.
    pub preserve: bool,
    /// So are access lists, also where an entry has none.
    #[serde(default)]
    pub lists: bool,
    /// Bits to take away from modes where they are not preserved.
    pub umask: u32,
}

/// Whose a copy is that is made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Anew {
    /// Owner.
    pub uid: u32,
    /// Group, where the directory gives none.
    pub gid: u32,
    /// Bits to take away from modes.
    pub umask: u32,
}

/// What a batch is read by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchReading {
    /// `st_ino` of each file or directory, 1 to [`ROOTS_MAX`].
    pub roots: Vec<u64>,
    /// Windows of the memory.
    pub windows: u32,
    /// Bytes of each.
    pub window_bytes: u32,
    /// Content too; else only what the files are.
    pub content: bool,
    /// Extended attributes too.
    pub xattrs: bool,
    /// Of the one root only what is listed, with everything below that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list: Option<Listing>,
}

/// A list of what is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listing {
    /// So many bytes of the first window are paths, at most [`LIST_BYTES_MAX`].
    pub bytes: u32,
    /// The directories that lead to them are told of too.
    pub parents: bool,
}

/// What two trees are compared by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchComparing {
    /// `st_ino` of the file or directory as it was.
    pub before: u64,
    /// That of what it is compared with.
    pub after: u64,
    /// Windows of the memory.
    pub windows: u32,
    /// Bytes of each.
    pub window_bytes: u32,
    /// Only kinds, content, link targets and device numbers count.
    pub content_only: bool,
}

/// What who asked says further on, while a batch is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Turn {
    /// A window holds records.
    Filled(Filled),
    /// A window that was filled is free again.
    Given {
        /// Which.
        window: u32,
    },
    /// Nothing more comes.
    End {},
}

/// A window that holds records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filled {
    /// Which.
    pub window: u32,
    /// So many bytes from its begin on.
    pub bytes: u32,
}

/// What came of what a window held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Emptied {
    /// Which.
    pub window: u32,
    /// Entries that were not written, by number, and why.
    pub failed: Vec<(u64, String)>,
    /// Units that it was written as.
    pub units: u64,
}

/// A line of the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// What goes on meanwhile, for a person.
    Progress(String),
    /// A batch may begin: of a window so much may be filled at a time.
    Ready {
        /// In bytes.
        window_bytes: u32,
    },
    /// A window that the client filled is free again.
    Emptied(Emptied),
    /// A window holds records for the client.
    Filled(Filled),
    /// It is done; this came out.
    Done(Value),
    /// It did not work.
    Failed(Failure),
}

/// Writes one line.
pub fn write_line(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message).map_err(io::Error::other)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    stream.flush()
}

/// Reads one line of at most `bytes_max` bytes; `None` at the end of the stream.
pub fn read_line<T: DeserializeOwned>(stream: &mut impl BufRead, bytes_max: u64) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    let count = stream.by_ref().take(bytes_max + 1).read_until(b'\n', &mut line)?;
    if count == 0 {
        return Ok(None);
    }
    if line.last() != Some(&b'\n') {
        let what =
            if count as u64 > bytes_max { format!("longer than {bytes_max} bytes") } else { "cut short".to_owned() };
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("the line is {what}")));
    }
    serde_json::from_slice(&line).map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, ErrorKind};

    use serde_json::json;

    use super::{Anew, Answer, BatchComparing, Name, REQUEST_BYTES_MAX, Request, read_line, write_line};
    use crate::failure::Failure;

    fn request(bytes: &[u8]) -> Result<Option<Request>, ErrorKind> {
        read_line(&mut BufReader::new(bytes), REQUEST_BYTES_MAX).map_err(|error| error.kind())
    }

    #[test]
    fn messages_read_back() {
        for message in [
            Request::Status {},
            Request::Info { inode: u64::MAX },
            Request::SnapshotCreate { name: "a \"b\"\n\u{1f409}".to_owned(), of: None },
            Request::SnapshotCreate { name: String::new(), of: Some(u64::MAX) },
            Request::Clone { source: 1 << 63, parent: 2, name: "a b".to_owned() },
            Request::Send { snapshot: "b".into(), from: Some("a".into()), resume: None, dry_run: true },
            Request::Receive { name: None },
            Request::Cached { part: None },
            Request::Cached { part: Some((3, 7)) },
            Request::Gc { dry_run: true, thorough: true, share: Some(1) },
            Request::Scrub { dry_run: false, older_than_seconds: u64::MAX, share: None },
            Request::PolicySet { inode: 2, copies: None, fragments: Some("4+2".into()), recursive: true },
            Request::Optimize { inode: u64::MAX, dry_run: true, share: 100 },
            Request::Warmup { inodes: vec![1 << 63, 2], metadata: true },
            Request::DiskAdd { path: "/a \"b\"".into() },
            Request::DiskDrain { disk: 3, dry_run: true, stop: false, share: None, accept_fewer: false },
            Request::DiskMeasure {},
            Request::DiskRemove { disk: 63, accept_loss: true },
            Request::Stop { detach: true },
            Request::Restart { program: Some("/a b".into()) },
            Request::BatchRemove { parent: 1, names: vec![Name::new(b"a \"b\""), Name::new(b"c")], recursive: true },
            Request::BatchCopy { source: 1 << 63, parent: 1, name: Name::new(b"\xff"), anew: None },
            Request::BatchCopy {
                source: 1,
                parent: 1,
                name: Name::new(b"a"),
                anew: Some(Anew { uid: 1, gid: 2, umask: 0o22 }),
            },
            Request::BatchRemove { parent: u64::MAX, names: vec![Name::new(b"\xff\0")], recursive: false },
            Request::Fill { inode: 1 << 63, offset: u64::MAX, length: 1 },
            Request::BatchCompare(BatchComparing {
                before: 1,
                after: 1 << 63,
                windows: 4,
                window_bytes: 1 << 24,
                content_only: true,
            }),
        ] {
            let mut line = Vec::new();
            write_line(&mut line, &message).expect("memory");
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
            assert_eq!(request(&line), Ok(Some(message)));
        }
        let answers = [
            Answer::Progress("x".into()),
            Answer::Done(json!({"a": [1, null]})),
            Answer::Failed(Failure::new("a", "b")),
        ];
        for answer in answers {
            let mut line = Vec::new();
            write_line(&mut line, &answer).expect("memory");
            assert_eq!(read_line(&mut &line[..], 1000).expect("valid"), Some(answer));
        }
    }

    #[test]
    fn hostile_requests_are_errors() {
        assert_eq!(request(b""), Ok(None));
        let long = vec![b'['; 3 * REQUEST_BYTES_MAX as usize];
        let deep = [vec![b'['; 10_000], vec![b'\n']].concat();
        let hostile: [&[u8]; 10] = [
            b"\n",
            b"{}\n",
            b"{\"do\":\"status\"}",
            b"{\"do\":\"format-the-disk\"}\n",
            b"{\"do\":\"status\",\"also\":1}\n",
            b"{\"do\":\"info\",\"inode\":-1}\n",
            b"{\"do\":\"info\",\"inode\":18446744073709551616}\n",
            b"\xff\xfe\0\n",
            &long,
            &deep,
        ];
        for bytes in hostile {
            assert_eq!(request(bytes), Err(ErrorKind::InvalidData), "{:?}", &bytes[..bytes.len().min(40)]);
        }
    }
}
