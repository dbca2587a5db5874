//! A large file of a mount, made by system calls, that takes its name when all of it is there, as a small one of a batch does: who makes it may
//! die in the middle, and nothing of it remains.
//!
//! Not so where O_TMPFILE is missing (before Linux 6.6): there it has its name from the beginning.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD};
use rustix::io::Errno;

use super::beneath::{Beneath, beneath};
use super::cp::{aside, may_go, regular, remove_other};

/// Its pages are not the kernel's: from our buffer to the daemon, which a mount takes at any offset and in any length. The kernel's
/// pages of large files, made, filled and given back, took an eighth of the processors' time of a whole copy (measured).
const AROUND_PAGES: i32 = libc::O_DIRECT;

/// A file on its way.
pub(super) struct Whole {
    place: Beneath,
    file: File,
    /// The regular file that had its name.
    former: Option<File>,
    /// Before all of it is there.
    has_name: bool,
}

impl Drop for Whole {
    /// Who gives up leaves no half of it.
    fn drop(&mut self) {
        if self.has_name {
            let _ = fs::remove_file(self.place.path());
        }
    }
}

impl Whole {
    /// Begins a file that is to lie at `path` below `top`, where no symbolic link leads it elsewhere.
    pub(super) fn begin(top: &Path, path: &[u8], mode: u32) -> io::Result<Whole> {
        let place = beneath(top, path)?;
        let former = regular(&place.path())?;
        let options = |flags| {
            let mut options = File::options();
            options.write(true).mode(mode).custom_flags(AROUND_PAGES | flags);
            options
        };
        match options(libc::O_TMPFILE).open(place.directory()) {
            Ok(file) => Ok(Whole { place, file, former, has_name: false }),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::ENOENT)) => {
                let to = place.path();
                remove_other(&to)?;
                let file = options(0).create_new(true).open(&to)?;
                Ok(Whole { place, file, former, has_name: true })
            }
            Err(error) => Err(error),
        }
    }

    /// What its content goes to.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// All of it is there: `describe` gives it its attributes, also those of the regular file whose place it takes, and then it takes its name, also
    /// where that failed: what is whole stays. From then on the name may lead elsewhere, as whoever may write to the directory likes it. What had the
    /// name has it until then, and goes in one step, when the content of its successor is on the disks.
    pub(super) fn finish(mut self, describe: impl FnOnce(&File, Option<&File>) -> io::Result<()>) -> io::Result<()> {
        let described = describe(&self.file, self.former.as_ref());
        if !std::mem::take(&mut self.has_name) {
            name(&self.file, &self.place.path())?;
        }
        described
    }
}

/// Gives a name to a file that has none, in place of what has it and may go.
fn name(file: &File, to: &Path) -> io::Result<()> {
    match link(file, to) {
        Err(Errno::EXIST) => {}
        linked => return Ok(linked?),
    }
    may_go(to)?;
    // Now, for the rename waits for it while nobody else can make anything in that directory.
    file.sync_data()?;
    let aside = aside(to);
    link(file, &aside)?;
    fs::rename(&aside, to).inspect_err(|_| drop(fs::remove_file(&aside)))
}

fn link(file: &File, to: &Path) -> rustix::io::Result<()> {
    let open = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, &open, CWD, to, AtFlags::SYMLINK_FOLLOW)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files are what is tested")]
mod tests {
    use std::fs;
    use std::io::Error;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::Whole;

    #[test]
    fn what_is_whole_is_described_before_it_has_its_name_and_stays_where_that_fails() {
        let top = std::env::temp_dir().join(format!("hydrafs-whole-{}", std::process::id()));
        fs::create_dir(&top).expect("room");
        fs::write(top.join("other"), "").expect("room");
        fs::set_permissions(top.join("other"), fs::Permissions::from_mode(0o600)).expect("ours");
        for is_ok in [true, false] {
            // A name that leads elsewhere at any moment.
            symlink("other", top.join("file")).expect("room");
            let whole = Whole::begin(&top, b"file", 0o600).expect("room");
            whole.file().set_len(5).expect("room");
            let finished = whole.finish(|file, former| {
                assert!(former.is_none(), "a link is no file");
                assert!(file.metadata()?.nlink() == 0 || !top.join("file").is_symlink(), "it has no name");
                file.set_permissions(fs::Permissions::from_mode(0o604))?;
                if is_ok { Ok(()) } else { Err(Error::other("no owners are on a FAT")) }
            });
            assert_eq!(finished.is_ok(), is_ok, "{finished:?}");
            let mode = |name: &str| fs::symlink_metadata(top.join(name)).expect("there").mode() & 0o777;
            assert_eq!((mode("file"), mode("other")), (0o604, 0o600));
            assert_eq!(fs::read(top.join("file")).expect("there"), [0; 5]);
            // It is the former of the next.
            let next = Whole::begin(&top, b"file", 0o600).expect("room");
            next.finish(|file, former| file.set_permissions(former.expect("it is there").metadata()?.permissions()))
                .expect("ours");
            assert_eq!((mode("file"), fs::read(top.join("file")).expect("there")), (0o604, Vec::new()));
            fs::remove_file(top.join("file")).expect("ours");
        }
        // What has the name and is not to go keeps it, and nothing is left beside it.
        let whole = Whole::begin(&top, b"file", 0o600).expect("room");
        fs::create_dir(top.join("file")).expect("room");
        assert!(whole.finish(|_, _| Ok(())).is_err());
        assert!(top.join("file").is_dir() && fs::read_dir(&top).expect("ours").count() == 2);
        fs::remove_dir_all(&top).expect("ours");
    }
}
