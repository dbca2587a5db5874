//! Where a copy goes by system calls: under a final name there is never a part of a file.
//!
//! A small file that is new has its name from the beginning and loses it if it fails, which costs masses of them nothing. All else has no name until it is
//! whole: what is there stays as it is until its successor takes its place in one step, and stays for good if that fails.
//!
//! As with cp(1), what is replaced hands on its owner, mode and attributes unless those of the source are taken over. What has other names, or another
//! owner, stays the file that it is, and what came whole beside it is written into it once more, when there is room for that.
//!
//! Not so in a directory where nothing may be made: there it is written to in place. Not here: files of a mount that come by system calls (`whole`).

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FallocateFlags};
use rustix::io::Errno;

use super::into::parent_of;
use super::likeness::hand_on;

/// Beyond it a file takes so long that who kills the program will meet it half written.
const AT_ONCE_BYTES_MAX: u64 = 1 << 20;

/// A file on its way.
pub(super) struct Target {
    to: PathBuf,
    /// Until it has its name.
    file: Option<File>,
    place: Place,
    /// The file that is there.
    former: Option<File>,
    /// Whether that is to have the new content itself.
    is_kept: bool,
}

enum Place {
    /// It has its name, which was free.
    New,
    /// It has no name.
    Unnamed,
    /// It has another one beside its own.
    Aside(PathBuf),
    /// It is what was there: its directory lets nobody put another in its place.
    Within,
    /// It has its name, and all of it is there.
    Taken,
}

impl Target {
    /// Begins a file that is to lie at `to`, of about so many bytes.
    pub(super) fn begin(to: &Path, mode: u32, bytes: u64) -> io::Result<Target> {
        let target =
            |file, place, former, is_kept| Target { to: to.to_owned(), file: Some(file), place, former, is_kept };
        if bytes <= AT_ONCE_BYTES_MAX {
            match options(mode, 0).create_new(true).open(to) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                opened => return Ok(target(opened?, Place::New, None, false)),
            }
        }
        let former = former(to)?;
        let is_kept = former.as_ref().is_some_and(is_to_stay);
        match options(mode, libc::O_TMPFILE).open(parent_of(to)) {
            Ok(file) => return Ok(target(file, Place::Unnamed, former, is_kept)),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::ENOENT)) => {}
            Err(error) => return Ok(target(within(former, error)?, Place::Within, None, false)),
        }
        let aside = aside(to);
        match options(mode, 0).create_new(true).open(&aside) {
            Ok(file) => Ok(target(file, Place::Aside(aside), former, is_kept)),
            Err(error) => Ok(target(within(former, error)?, Place::Within, None, false)),
        }
    }

    /// What its content goes to.
    pub(super) fn file(&self) -> &File {
        self.file.as_ref().expect("it is given away with its place")
    }

    /// All of it is there: it takes its name. `is_like_source`: its attributes will be the source's, and not those of what it replaces. Gives the
    /// file that has its content now, for these: its name may lead elsewhere already, as whoever may write to the directory likes it.
    pub(super) fn take_place(mut self, is_like_source: bool) -> io::Result<File> {
        if let Some(former) = self.former.take_if(|_| self.is_kept) {
            overwrite(&former, self.file())?;
            return Ok(former);
        }
        if matches!(self.place, Place::Unnamed) {
            match name(self.file(), &self.to) {
                Err(Errno::EXIST) => {
                    let aside = aside(&self.to);
                    name(self.file(), &aside)?;
                    self.place = Place::Aside(aside);
                }
                named => named?,
            }
        }
        if let Place::Aside(aside) = &self.place {
            if let Some(former) = self.former.as_ref().filter(|_| !is_like_source) {
                hand_on(former, self.file())?;
            }
            match (fs::rename(aside, &self.to), self.former.take()) {
                // Something is mounted on it, a file most likely.
                (Err(error), Some(former)) if error.kind() == io::ErrorKind::ResourceBusy => {
                    overwrite(&former, self.file())?;
                    return Ok(former);
                }
                (renamed, _) => renamed?,
            }
        }
        self.place = Place::Taken;
        Ok(self.file.take().expect("it is given away with its place"))
    }
}

impl Drop for Target {
    /// Who gives up leaves nothing.
    fn drop(&mut self) {
        let left = match &self.place {
            Place::New => &self.to,
            Place::Aside(aside) => aside,
            Place::Unnamed | Place::Within | Place::Taken => return,
        };
        let place = |found: fs::Metadata| (found.dev(), found.ino());
        // Another of the same name may have taken its place.
        if fs::symlink_metadata(left).ok().map(place) == self.file().metadata().ok().map(place) {
            let _ = fs::remove_file(left);
        }
    }
}

/// Makes `new` one more name of a file, in place of what is there.
pub(super) fn link(existing: &Path, new: &Path) -> io::Result<()> {
    match fs::hard_link(existing, new) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        linked => return linked,
    }
    drop(former(new)?);
    let aside = aside(new);
    fs::hard_link(existing, &aside)?;
    let renamed = fs::rename(&aside, new);
    // A rename over another name of the same file does nothing.
    let _ = fs::remove_file(&aside);
    renamed
}

fn options(mode: u32, flags: i32) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(mode).custom_flags(flags);
    options
}

/// The regular file that is to be replaced, if there is one: it must be one that may be written. What is of another kind may go, but for directories
/// and devices. No symbolic link that comes in its place meanwhile leads to another.
fn former(to: &Path) -> io::Result<Option<File>> {
    match fs::symlink_metadata(to) {
        Ok(found) if found.is_file() => {
            let file = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(to)?;
            let is_file = file.metadata()?.is_file();
            is_file.then_some(Some(file)).ok_or_else(|| io::Error::other("it was another kind of file a moment ago"))
        }
        Ok(found) if found.is_dir() => Err(io::Error::from(io::ErrorKind::IsADirectory)),
        Ok(found) if found.file_type().is_block_device() || found.file_type().is_char_device() => {
            Err(io::Error::other("a device is in the way"))
        }
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_to_stay(former: &File) -> bool {
    let (user, found) = (rustix::process::geteuid(), former.metadata());
    found.is_ok_and(|found| found.nlink() > 1 || !user.is_root() && found.uid() != user.as_raw())
}

/// Writes what is whole into what is there.
fn overwrite(mut there: &File, mut whole: &File) -> io::Result<()> {
    let bytes = whole.metadata()?.len();
    match rustix::fs::fallocate(there, FallocateFlags::KEEP_SIZE, 0, bytes.max(1)) {
        // Where room cannot be had beforehand.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        Err(error) => return Err(error.into()),
    }
    whole.rewind()?;
    io::copy(&mut whole, &mut there)?;
    there.set_len(bytes)
}

/// What is there, empty, where nothing can be made beside it.
fn within(former: Option<File>, error: io::Error) -> io::Result<File> {
    match former {
        Some(file) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::EROFS)) => {
            file.set_len(0)?;
            Ok(file)
        }
        _ => Err(error),
    }
}

/// A name beside another that nobody has: who else copies there, maybe under the same process id in another container, draws another.
pub(in crate::command) fn aside(to: &Path) -> PathBuf {
    to.with_file_name(format!(".hydrafs-cp-{:016x}", RandomState::new().hash_one(())))
}

fn name(file: &File, to: &Path) -> rustix::io::Result<()> {
    let open = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, &open, CWD, to, AtFlags::SYMLINK_FOLLOW)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files are what is tested")]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
    use std::path::PathBuf;

    use super::{AT_ONCE_BYTES_MAX, Place, Target, aside, link, options};

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("hydrafs-target-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a temporary folder");
        folder
    }

    #[test]
    fn who_gives_up_leaves_what_was_there_and_nothing_else() {
        let folder = folder("fails");
        fs::write(folder.join("there"), "of before").expect("room");
        for bytes in [1, AT_ONCE_BYTES_MAX + 1] {
            for name in ["new", "there"] {
                let target = Target::begin(&folder.join(name), 0o600, bytes).expect("room");
                target.file().write_all_at(b"a part", 0).expect("room");
            }
            let to = folder.join("there");
            let beside = aside(&to);
            let file = options(0o600, 0).create_new(true).open(&beside).expect("room");
            drop(Target { to, file: Some(file), place: Place::Aside(beside), former: None, is_kept: false });
            assert_eq!(fs::read_dir(&folder).expect("ours").count(), 1);
            assert_eq!(fs::read(folder.join("there")).expect("ours"), b"of before");
        }
        fs::remove_dir_all(&folder).expect("our own folder");
    }

    #[test]
    fn what_is_whole_takes_its_place() {
        let folder = folder("whole");
        fs::create_dir(folder.join("directory")).expect("room");
        for bytes in [1, AT_ONCE_BYTES_MAX + 1] {
            let kept = folder.join("kept");
            fs::write(folder.join("there"), "of before").expect("room");
            fs::set_permissions(folder.join("there"), fs::Permissions::from_mode(0o640)).expect("ours");
            fs::hard_link(folder.join("there"), &kept).expect("one file system");
            symlink("kept", folder.join("link")).expect("room");
            for name in ["new", "there", "link"] {
                let target = Target::begin(&folder.join(name), 0o600, bytes).expect("room");
                target.file().write_all_at(b"all", 0).expect("room");
                let taken = target.take_place(false).expect("room");
                let place = |found: fs::Metadata| (found.dev(), found.ino());
                let there = fs::symlink_metadata(folder.join(name)).expect("there");
                assert_eq!(place(taken.metadata().expect("open")), place(there), "{name}");
                assert_eq!(fs::read(folder.join(name)).expect("there"), b"all");
            }
            assert!(Target::begin(&folder.join("directory"), 0o600, bytes).is_err());
            assert_eq!(
                (fs::read(&kept).expect("another name"), fs::metadata(&kept).expect("there").nlink()),
                (b"all".to_vec(), 2)
            );
            assert_eq!(fs::metadata(folder.join("there")).expect("there").mode() & 0o777, 0o640);
            // Over another file, over nothing, and over itself.
            for _ in 0..2 {
                link(&folder.join("new"), &kept).expect("one file system");
            }
            assert_eq!(fs::metadata(&kept).expect("there").nlink(), 2);
            assert_eq!(fs::read_dir(&folder).expect("ours").count(), 5);
            for name in ["new", "there", "link", "kept"] {
                fs::remove_file(folder.join(name)).expect("ours");
            }
        }
        fs::remove_dir_all(&folder).expect("our own folder");
    }
}
