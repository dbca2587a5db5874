//! What a copy takes over from its source besides content, with `--archive`: owner, mode, extended attributes, times.
//!
//! The order matters: a change of owner clears set-id bits, so the mode follows it; who may not write to a file may set no attributes, so those come
//! before a mode that takes that away; an access list sets the group's bits of the mode, so it follows; everything changes times, so they come last.
//! What only root may do, others leave out silently, as cp(1) does.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use base::time::Timestamp;
use file::Kind;
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, openat};
use rustix::io::Errno;

use crate::control::batch::wire::Entry;

/// The attributes that access lists are; the second is of directories alone.
const LISTS: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

/// What a copy is to be like.
pub(in crate::command) struct Likeness {
    kind: Kind,
    mode: u32,
    uid: u32,
    gid: u32,
    accessed: Timespec,
    modified: Timespec,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Likeness {
    /// Of an entry of a batch.
    pub(in crate::command) fn of(entry: &Entry) -> Likeness {
        let time = |of: Timestamp| Timespec { tv_sec: of.seconds, tv_nsec: of.nanos.into() };
        Likeness {
            kind: entry.kind,
            mode: entry.mode,
            uid: entry.uid,
            gid: entry.gid,
            accessed: time(entry.accessed),
            modified: time(entry.modified),
            xattrs: entry.xattrs.clone(),
        }
    }

    /// Of what is at `from`, as it was when `source` was read; `open`: the same, where it is open.
    pub(super) fn of_source(from: &Path, open: Option<&File>, source: &Metadata) -> io::Result<Likeness> {
        let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        Ok(Likeness {
            kind: kind_of(source),
            mode: source.mode() & 0o7777,
            uid: source.uid(),
            gid: source.gid(),
            accessed: time(source.atime(), source.atime_nsec()),
            modified: time(source.mtime(), source.mtime_nsec()),
            xattrs: xattrs(from, open)?,
        })
    }

    /// Makes a file so. Where something of it cannot be, all the rest is, but for what would grant more than the source does.
    pub(in crate::command) fn put_on(&self, to: &File) -> io::Result<()> {
        let (at, is_root) = (path_of(to), rustix::process::geteuid().is_root());
        let (owned, mode) = match rustix::fs::chown(&at, Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid))) {
            Ok(()) => (Ok(()), self.mode),
            // Set-id bits belong to an owner: without him they would give away the copier's rights.
            Err(Errno::PERM) if !is_root => (Ok(()), self.mode & !0o6000),
            Err(error) => (Err(io::Error::from(error)), self.mode & !0o6000),
        };
        let described = match self.kind {
            Kind::Symlink => put_xattrs(&self.xattrs, &at, is_root),
            _ => put_mode(&at, self.kind, mode, &self.xattrs, is_root),
        };
        let times = Timestamps { last_access: self.accessed, last_modification: self.modified };
        let dated = rustix::fs::utimensat(CWD, &at, &times, AtFlags::empty());
        owned.and(described).and(dated.map_err(io::Error::from))
    }
}

/// What is at a path, of this kind, open for its attributes. Who may write to the directory may put a link to another file there at any moment:
/// nothing that he could want for that file is done by a path.
pub(super) fn attributes_of(path: &Path, kind: Kind) -> io::Result<File> {
    let (file, found) = open(path)?;
    match found == kind {
        true => Ok(file),
        false => Err(io::Error::other("it was another kind of file a moment ago")),
    }
}

/// The regular file that is at a path, if one is, open for its attributes.
pub(in crate::command) fn regular(path: &Path) -> io::Result<Option<File>> {
    match open(path) {
        Ok((file, found)) => Ok((found == Kind::Regular).then_some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn open(path: &Path) -> io::Result<(File, Kind)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(openat(CWD, path, flags, Mode::empty())?);
    let kind = kind_of(&file.metadata()?);
    Ok((file, kind))
}

/// Takes these bits away from a directory's mode.
pub(super) fn take_bits(directory: &Path, bits: u32) -> io::Result<()> {
    let directory = attributes_of(directory, Kind::Directory)?;
    let mode = directory.metadata()?.mode() & 0o7777 & !bits;
    std::fs::set_permissions(path_of(&directory), std::fs::Permissions::from_mode(mode))
}

/// Gives a file what the one that it is to replace has, as if that had been written into. Who may not give it away keeps it, without bits that would
/// give away his own rights.
pub(super) fn hand_on(former: &File, to: &File) -> io::Result<()> {
    let (found, from, at) = (former.metadata()?, path_of(former), path_of(to));
    let mode = match rustix::fs::chown(&at, Some(Uid::from_raw(found.uid())), Some(Gid::from_raw(found.gid()))) {
        Ok(()) => found.mode() & 0o7777,
        Err(Errno::PERM) => found.mode() & 0o1777,
        Err(error) => return Err(error.into()),
    };
    let mut xattrs = At::Linked(&from).xattrs()?;
    // Capabilities and the like were of the former content.
    xattrs.retain(|(name, _)| !name.starts_with(b"security."));
    put_mode(&at, Kind::Regular, mode, &xattrs, rustix::process::geteuid().is_root())
}

/// Gives what has its owner its mode and attributes: all that can be; then the first failure is told.
fn put_mode(at: &str, kind: Kind, mode: u32, xattrs: &[(Vec<u8>, Vec<u8>)], is_root: bool) -> io::Result<()> {
    let set = |mode| std::fs::set_permissions(at, std::fs::Permissions::from_mode(mode));
    let (lists, others): (Vec<_>, Vec<_>) = xattrs.iter().cloned().partition(|(name, _)| is_list(name));
    let forgotten = forget_lists(at, kind);
    // With a list the group's bits are its mask, which without it would be the group's rights.
    let is_masked = forgotten.is_err() || lists.iter().any(|(name, _)| name == LISTS[0].as_bytes());
    let mode = if is_masked { mode & !0o070 } else { mode };
    let may_write = if others.is_empty() { 0 } else { 0o200 };
    let opened = set(mode | may_write);
    let put = put_xattrs(&others, at, is_root);
    let closed = if mode | may_write == mode { Ok(()) } else { set(mode) };
    forgotten.and(opened).and(put).and(closed).and(put_xattrs(&lists, at, is_root))
}

/// Takes away the access lists that a file has of its directory, or of before: they grant what its source does not.
fn forget_lists(at: &str, kind: Kind) -> io::Result<()> {
    for name in &LISTS[..if kind == Kind::Directory { 2 } else { 1 }] {
        // Most have none, which takes less to learn than to bring about.
        let absent = rustix::fs::getxattr_query(at, *name).and_then(|_| rustix::fs::removexattr(at, *name));
        match absent {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(error) => return Err(io::Error::other(format!("access list {name}: {}", io::Error::from(error)))),
        }
    }
    Ok(())
}

/// A path to what is open, also where that is a symbolic link, or open for its attributes alone.
fn path_of(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Makes a FIFO, socket or device.
pub(in crate::command) fn make_special(to: &Path, kind: Kind, mode: u32, device: u64) -> io::Result<()> {
    use rustix::fs::FileType;
    let (kind, device) = match kind {
        Kind::Fifo => (FileType::Fifo, 0),
        Kind::Socket => (FileType::Socket, 0),
        Kind::CharacterDevice => (FileType::CharacterDevice, device),
        Kind::BlockDevice => (FileType::BlockDevice, device),
        Kind::Regular | Kind::Directory | Kind::Symlink => {
            return Err(io::Error::other("it is no FIFO, socket or device"));
        }
    };
    rustix::fs::mknodat(CWD, to, kind, Mode::from_raw_mode(mode & 0o777), device)?;
    Ok(())
}

/// The kind of a file.
pub(super) fn kind_of(source: &Metadata) -> Kind {
    let kind = source.file_type();
    if kind.is_dir() {
        Kind::Directory
    } else if kind.is_symlink() {
        Kind::Symlink
    } else if kind.is_fifo() {
        Kind::Fifo
    } else if kind.is_socket() {
        Kind::Socket
    } else if kind.is_char_device() {
        Kind::CharacterDevice
    } else if kind.is_block_device() {
        Kind::BlockDevice
    } else {
        Kind::Regular
    }
}

/// The extended attributes that can be read of what is at `from`, and that others may have; `open`: the same, where it is open, which spares the way along the path.
pub(super) fn xattrs(from: &Path, open: Option<&File>) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    open.map_or(At::Path(from), At::Open).xattrs()
}

/// Whether an attribute is one that every file system may have. Those of other name spaces are of their own file system, and no other takes them.
pub(in crate::command) fn is_handed_over(name: &[u8]) -> bool {
    let spaces: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    is_list(name) || spaces.iter().any(|space| name.starts_with(space))
}

/// Whether an attribute is an access list.
fn is_list(name: &[u8]) -> bool {
    LISTS.iter().any(|list| name == list.as_bytes())
}

/// What has extended attributes.
enum At<'a> {
    Path(&'a Path),
    Open(&'a File),
    /// What this path of an open file leads to.
    Linked(&'a str),
}

impl At<'_> {
    fn xattrs(&self) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        // Most have none, and to learn that takes no buffer.
        let names = match self.list_bytes() {
            Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Ok(_) => sized(|buffer| self.list(buffer))?,
            Err(error) => return Err(error.into()),
        };
        let mut found = Vec::new();
        for name in names.split(|byte| *byte == 0).filter(|name| is_handed_over(name)) {
            match sized(|buffer| self.get(name, buffer)) {
                Ok(value) => found.push((name.to_vec(), value)),
                // It went meanwhile, or is not for us.
                Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(found)
    }

    fn list_bytes(&self) -> rustix::io::Result<usize> {
        match self {
            At::Path(path) => rustix::fs::llistxattr_query(*path),
            At::Open(file) => rustix::fs::flistxattr_query(file),
            At::Linked(path) => rustix::fs::listxattr_query(*path),
        }
    }

    fn list(&self, buffer: &mut [u8]) -> rustix::io::Result<usize> {
        match self {
            At::Path(path) => rustix::fs::llistxattr(*path, buffer),
            At::Open(file) => rustix::fs::flistxattr(file, buffer),
            At::Linked(path) => rustix::fs::listxattr(*path, buffer),
        }
    }

    fn get(&self, name: &[u8], buffer: &mut [u8]) -> rustix::io::Result<usize> {
        match self {
            At::Path(path) => rustix::fs::lgetxattr(*path, name, buffer),
            At::Open(file) => rustix::fs::fgetxattr(file, name, buffer),
            At::Linked(path) => rustix::fs::getxattr(*path, name, buffer),
        }
    }
}

/// Sets all that can be set. What only root may set others leave out, and what the file system has not is left out, as cp(1) does; but not access
/// lists, for want of which others grant less or more than the source does.
fn put_xattrs(xattrs: &[(Vec<u8>, Vec<u8>)], to: &str, is_root: bool) -> io::Result<()> {
    let mut put = Ok(());
    for (name, value) in xattrs {
        match rustix::fs::setxattr(to, name.as_slice(), value, XattrFlags::empty()) {
            Ok(()) => {}
            Err(Errno::PERM | Errno::ACCESS) if !is_root && !name.starts_with(b"user.") => {}
            Err(Errno::OPNOTSUPP) if !is_list(name) => {}
            Err(error) => {
                let why = format!("extended attribute {}: {}", String::from_utf8_lossy(name), io::Error::from(error));
                put = put.and(Err(io::Error::other(why)));
            }
        }
    }
    put
}

/// Asks with a buffer that grows until the answer fits.
fn sized(ask: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut buffer = vec![0; 4096];
    loop {
        match ask(&mut buffer[..]) {
            Ok(count) => {
                buffer.truncate(count);
                return Ok(buffer);
            }
            // XATTR_LIST_MAX and XATTR_SIZE_MAX are 64 KiB.
            Err(Errno::RANGE) if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 4, 0),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files are what is tested")]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::{Path, PathBuf};

    use file::Kind;
    use rustix::fs::XattrFlags;
    use rustix::io::Errno;

    use super::{Likeness, attributes_of, hand_on, is_handed_over, kind_of, take_bits};

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("hydrafs-likeness-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a temporary folder");
        folder
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).expect("there").mode() & 0o7777
    }

    fn of(path: &Path) -> Likeness {
        Likeness::of_source(path, None, &fs::symlink_metadata(path).expect("there")).expect("readable")
    }

    /// Each kind becomes like its source, and what its name leads to meanwhile stays as it is.
    #[test]
    fn what_is_open_is_changed_and_not_what_its_name_leads_to() {
        let folder = folder("open");
        let at = |name: &str| folder.join(name);
        for name in ["from", "to", "other"] {
            fs::write(at(name), name).expect("room");
            fs::create_dir(at(&format!("{name} directory"))).expect("room");
            symlink("nowhere", at(&format!("{name} link"))).expect("room");
        }
        for (name, bits) in [("from", 0o4710), ("to", 0o600), ("other", 0o600)] {
            fs::set_permissions(at(name), fs::Permissions::from_mode(bits)).expect("ours");
            let directory = at(&format!("{name} directory"));
            fs::set_permissions(directory, fs::Permissions::from_mode(bits & 0o777 | 0o100)).expect("ours");
        }
        for suffix in ["", " directory", " link"] {
            let named = |name: &str| at(&format!("{name}{suffix}"));
            let kind = kind_of(&fs::symlink_metadata(named("to")).expect("there"));
            let there = attributes_of(&named("to"), kind).expect("there");
            fs::rename(named("to"), named("moved")).expect("ours");
            symlink(named("other"), named("to")).expect("room");
            let before = mode(&named("other"));
            of(&named("from")).put_on(&there).expect("ours");
            assert_eq!((mode(&named("moved")), mode(&named("other"))), (mode(&named("from")), before), "{kind:?}");
            let time = |name: &str| fs::symlink_metadata(named(name)).expect("there").modified().expect("a time");
            assert_eq!(time("moved"), time("from"), "{kind:?}");
            assert_eq!(attributes_of(&named("to"), kind).is_ok(), kind == Kind::Symlink, "no link is followed");
        }
        assert!(take_bits(&at("to directory"), 0o700).is_err());
        assert_eq!(mode(&at("other directory")), 0o700);
        fs::remove_dir_all(&folder).expect("our own folder");
    }

    /// NFS and btrfs list attributes of their own, which no other file system takes.
    #[test]
    fn attributes_of_one_file_system_alone_are_left_out() {
        let names =
            ["user.color", "trusted.x", "security.capability", "system.posix_acl_access", "system.posix_acl_default"];
        for name in names {
            assert!(is_handed_over(name.as_bytes()), "{name}");
        }
        for name in ["system.nfs4_acl", "btrfs.compression", "system.posix_acl_access2", "user", "other.user.x", ""] {
            assert!(!is_handed_over(name.as_bytes()), "{name}");
        }
    }

    /// What a directory hands down to files that are made in it is nothing that their source, or what they replace, has granted.
    #[test]
    fn an_access_list_that_the_source_has_not_is_taken_away() {
        let folder = folder("lists");
        let at = |name: &str| folder.join(name);
        fs::write(at("from"), "").expect("room");
        fs::create_dir(at("from directory")).expect("room");
        for name in ["from", "from directory"] {
            fs::set_permissions(at(name), fs::Permissions::from_mode(0o750)).expect("ours");
        }
        fs::create_dir(at("shared")).expect("room");
        // Version 2; owner, user 1234, group, mask and others.
        let entries = [(1u16, 7u16, u32::MAX), (2, 7, 1234), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 5, u32::MAX)];
        let of_entry = |(tag, bits, id): (u16, u16, u32)| {
            [&tag.to_le_bytes()[..], &bits.to_le_bytes()[..], &id.to_le_bytes()[..]].concat()
        };
        let list = [&2u32.to_le_bytes()[..], &entries.map(of_entry).concat()].concat();
        let (access, default) = ("system.posix_acl_access", "system.posix_acl_default");
        match rustix::fs::setxattr(at("shared"), default, &list, XattrFlags::empty()) {
            Err(Errno::OPNOTSUPP) => return skipped::because("no access lists are there"),
            set => set.expect("ours"),
        }
        let has = |name: &str, list: &str| rustix::fs::getxattr_query(at(name), list) != Err(Errno::NODATA);
        for way in ["like", "handed"] {
            let name = format!("shared/{way}");
            fs::write(at(&name), "").expect("room");
            assert!(has(&name, access), "inherited");
            let file = File::options().write(true).open(at(&name)).expect("ours");
            match way {
                "like" => of(&at("from")).put_on(&file).expect("ours"),
                _ => hand_on(&attributes_of(&at("from"), Kind::Regular).expect("there"), &file).expect("ours"),
            }
            assert_eq!((mode(&at(&name)), has(&name, access)), (0o750, false), "{way}");
        }
        fs::create_dir(at("shared/directory")).expect("room");
        assert!(has("shared/directory", default), "inherited");
        let directory = attributes_of(&at("shared/directory"), Kind::Directory).expect("there");
        of(&at("from directory")).put_on(&directory).expect("ours");
        assert_eq!(mode(&at("shared/directory")), 0o750);
        assert!(!has("shared/directory", access) && !has("shared/directory", default));
        // What the source has comes.
        rustix::fs::setxattr(at("from"), access, &list, XattrFlags::empty()).expect("ours");
        fs::write(at("has"), "").expect("room");
        of(&at("from")).put_on(&File::options().write(true).open(at("has")).expect("ours")).expect("ours");
        assert!(has("has", access));
        fs::remove_dir_all(&folder).expect("our own folder");
    }

    /// An attribute that cannot be set costs nothing else, and no moment at which more is granted.
    #[test]
    fn what_cannot_be_set_leaves_the_rest() {
        let folder = folder("rest");
        let at = |name: &str| folder.join(name);
        fs::write(at("from"), "").expect("room");
        fs::set_permissions(at("from"), fs::Permissions::from_mode(0o470)).expect("ours");
        for (attribute, bits) in [("foreign.x", Some(0o470)), ("system.posix_acl_access", None)] {
            fs::write(at(attribute), "").expect("room");
            let to = File::options().write(true).open(at(attribute)).expect("ours");
            let likeness = Likeness { xattrs: vec![(attribute.into(), b"no list".to_vec())], ..of(&at("from")) };
            // A list that is none: what its mask says is nobody's right without it.
            assert_eq!(likeness.put_on(&to).is_ok(), bits.is_some(), "{attribute}");
            assert_eq!(mode(&at(attribute)), bits.unwrap_or(0o400), "{attribute}");
            let time = |name: &str| fs::metadata(at(name)).expect("there").modified().expect("a time");
            assert_eq!(time(attribute), time("from"), "{attribute}");
        }
        fs::remove_dir_all(&folder).expect("our own folder");
    }
}
