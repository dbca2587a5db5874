//! What is mounted where, from /proc/self/mountinfo; and who uses a mount.
//!
//! Ours are those of type `fuse.hydrafs`; their source is the absolute path of the node's folder, by which a command finds
//! the daemon of a mount. Nothing here touches a mount itself: a dead one answers ENOTCONN and a hung one never.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags};

use crate::failure::Failure;

/// The type of our mounts in the mount table.
pub const KIND: &str = "fuse.hydrafs";

/// One line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Identity of the mount, as in statx.
    pub id: u64,
    /// Device number of its files.
    pub device: (u32, u32),
    /// The directory within the file system that is mounted.
    pub root: PathBuf,
    /// Where.
    pub point: PathBuf,
    /// Options of the mount, separated by commas.
    pub options: String,
    /// File system type with subtype.
    pub kind: String,
    /// What is mounted: for ours the node's folder.
    pub source: PathBuf,
}

impl Mount {
    /// Whether it is a mount of ours.
    #[must_use]
    pub fn is_hydrafs(&self) -> bool {
        self.kind == KIND
    }

    /// Whether it is a mount of the node in this folder, with this device number (`major:minor`).
    #[must_use]
    pub fn is_of(&self, source: &Path, device: &str) -> bool {
        self.is_hydrafs() && self.source == source && self.has_device(device)
    }

    /// Whether its files have this device number (`major:minor`).
    #[must_use]
    pub fn has_device(&self, device: &str) -> bool {
        format!("{}:{}", self.device.0, self.device.1) == device
    }

    /// Whether it was mounted with this option.
    #[must_use]
    pub fn has(&self, option: &str) -> bool {
        self.options.split(',').any(|word| word == option)
    }
}

/// The mount table of this process.
#[expect(clippy::disallowed_methods, reason = "the mount table is the outside")]
pub fn read() -> Result<Vec<Mount>, Failure> {
    let path = Path::new("/proc/self/mountinfo");
    let bytes = std::fs::read(path)
        .map_err(|error| Failure::new("cannot read the mount table", error).at(path).mend("mount /proc"))?;
    Ok(parse(&bytes))
}

/// Reads a mount table; a line that is none is skipped.
#[must_use]
pub fn parse(table: &[u8]) -> Vec<Mount> {
    table.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /root /point rw,noatime master:1 - ext3 /dev/x rw`: six fields, any number of optional ones, ` - `, three more
/// (proc_pid_mountinfo(5)).
fn parse_line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dash = fields.iter().skip(6).position(|field| *field == b"-")? + 6;
    let text = |index: usize| std::str::from_utf8(fields.get(index)?).ok();
    let path = |index: usize| fields.get(index).map(|field| PathBuf::from(unescape(field)));
    let (major, minor) = text(2)?.split_once(':')?;
    Some(Mount {
        id: text(0)?.parse().ok()?,
        device: (major.parse().ok()?, minor.parse().ok()?),
        root: path(3)?,
        point: path(4)?,
        options: text(5)?.to_owned(),
        kind: text(dash + 1)?.to_owned(),
        source: path(dash + 2)?,
    })
}

/// Space, tab, newline and backslash are written as three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes)
}

/// The topmost mount exactly at `point`.
#[must_use]
pub fn at<'a>(mounts: &'a [Mount], point: &Path) -> Option<&'a Mount> {
    mounts.iter().rev().find(|mount| mount.point == point)
}

/// The mount that `path` lies in: by its mount id where the path answers, else the longest mount point above it.
#[must_use]
pub fn covering<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    if let Ok(status) = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::MNT_ID)
        && status.stx_mask & StatxFlags::MNT_ID.bits() != 0
        && let Some(mount) = mounts.iter().find(|mount| mount.id == status.stx_mnt_id)
    {
        return Some(mount);
    }
    let above = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    // Of equal length the later one covers the earlier.
    above.max_by_key(|mount| mount.point.as_os_str().len())
}

/// The absolute path of something that may be in a dead mount: what is above it is resolved, the names in it are kept.
pub fn absolute(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if is_dead(&error) => match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => {
                let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
                Ok(absolute(parent)?.join(name))
            }
            _ => Err(error),
        },
        result => result,
    }
}

/// Whether this is how a mount answers whose daemon is gone.
#[must_use]
pub fn is_dead(error: &io::Error) -> bool {
    // ECONNABORTED: the connection was aborted through /sys/fs/fuse/connections. ECANCELED: the call was on its way to an io_uring
    // queue when the daemon died (Linux 6.18).
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED))
}

/// Processes that hold something open below `point`, as "pid (name)", at most `limit`. Only links of /proc are read, so a
/// hung mount does not hang us. Other users' processes are visible to root only.
#[must_use]
pub fn users(point: &Path, limit: usize) -> Vec<String> {
    let uses = |name: &OsString| {
        let folder = Path::new("/proc").join(name);
        let links = ["cwd", "root", "exe"].map(|link| folder.join(link));
        let open = std::fs::read_dir(folder.join("fd")).into_iter().flatten().flatten().map(|entry| entry.path());
        links.into_iter().chain(open).any(|link| std::fs::read_link(link).is_ok_and(|target| target.starts_with(point)))
    };
    processes().filter(uses).map(describe).take(limit).collect()
}

/// Where else the file system of this node with this device number (`major:minor`) is mounted, at most `limit` places: "at POINT" in our
/// mount table (a bind mount), or "in the mount namespace of pid (name)" (a container, a service, unshare(1)). Other users' processes are
/// visible to root only. The number alone tells too little: the kernel gives it to the next file system when ours has gone.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the mount tables are the outside")]
pub fn elsewhere(source: &Path, device: &str, limit: usize) -> Vec<String> {
    let namespace = |process: &Path| std::fs::read_link(process.join("ns/mnt")).ok();
    let found = |process: &Path| {
        let table = std::fs::read(process.join("mountinfo")).unwrap_or_default();
        parse(&table).into_iter().find(|mount| mount.is_of(source, device))
    };
    let own = Path::new("/proc/self");
    let ours = found(own).map(|mount| format!("at {}", mount.point.display()));
    let others = processes().filter(|name| {
        let process = Path::new("/proc").join(name);
        namespace(&process) != namespace(own) && found(&process).is_some()
    });
    let others = others.map(|name| format!("in the mount namespace of {}", describe(name)));
    ours.into_iter().chain(others).take(limit).collect()
}

/// Names in /proc of all processes.
fn processes() -> impl Iterator<Item = OsString> {
    let names = std::fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter(|name| name.as_bytes().iter().all(u8::is_ascii_digit))
}

/// A process for people: "pid (name)".
fn describe(process: OsString) -> String {
    let command = std::fs::read_to_string(Path::new("/proc").join(&process).join("comm")).unwrap_or_default();
    format!("{} ({})", process.display(), command.trim_end())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{at, covering, parse};

    const TABLE: &[u8] = b"22 1 254:0 / / rw,relatime - ext4 /dev/root rw\n\
        30 22 0:41 / /srv/my\\040mnt rw,nosuid shared:5 master:2 - fuse.hydrafs /srv/the\\134node rw,user_id=0\n\
        31 22 0:42 / /a rw - tmpfs tmpfs rw\n\
        32 31 0:43 / /a rw - fuse.hydrafs /n rw\n\
        broken line\n\
        33 22 x:1 / /b rw - tmpfs tmpfs rw\n\
        34 22 0:44 / /c rw\n";

    #[test]
    fn lines_are_read_with_escapes_and_optional_fields() {
        let mounts = parse(TABLE);
        assert_eq!(mounts.len(), 4);
        assert_eq!(mounts[1].point, Path::new("/srv/my mnt"));
        assert_eq!(mounts[1].source, Path::new("/srv/the\\node"));
        assert_eq!(mounts[1].device, (0, 41));
        assert!(mounts[1].is_hydrafs() && !mounts[0].is_hydrafs());
        let node = Path::new("/srv/the\\node");
        assert!(mounts[1].is_of(node, "0:41") && !mounts[1].is_of(node, "0:42"));
        assert!(!mounts[1].is_of(Path::new("/n"), "0:41") && !mounts[2].is_of(Path::new("tmpfs"), "0:42"));
        assert!(mounts[1].has("nosuid") && !mounts[1].has("suid") && !mounts[1].has("user_id=0"));
    }

    #[test]
    fn the_topmost_mount_counts() {
        let mounts = parse(TABLE);
        assert_eq!(at(&mounts, Path::new("/a")).map(|mount| mount.id), Some(32));
        assert_eq!(at(&mounts, Path::new("/nowhere")), None);
        let covered = covering(&mounts, Path::new("/a/no/such/file"));
        assert_eq!(covered.map(|mount| mount.id), Some(32));
    }

    #[test]
    fn hostile_tables_are_survived() {
        for table in [&b""[..], b"\n\n", b"- - - - - - - - -", b"1 2 3:4 / \\", b"1 2 3:4 / /\\40 rw - t", &[0xff; 300]]
        {
            let _ = parse(table);
        }
    }
}
