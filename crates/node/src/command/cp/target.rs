//! A file that a copy makes by system calls: nothing half-written keeps its name, whatever fails in the middle.
//!
//! What has a new name is made under it, and goes if it does not become whole. What takes the place of a file is made beside it, under a name of its own, and
//! takes over when it is whole; so the old content stays until then. Who is killed by SIGKILL leaves what he was at.
//!
//! Not so a file that has further names: they are to have the new content too, as with cp(1), so it is written to in place.
//!
//! Not here: files of a mount that come by system calls (`whole`).

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::XattrFlags;

use super::plain::remove_other;

/// Tells apart what is made beside files at a time.
static BESIDE: AtomicU64 = AtomicU64::new(0);

/// An access list, which the mode is a part of.
const ACCESS_LIST: &str = "system.posix_acl_access";

/// Gives a file its attributes.
type Describe<'a> = &'a dyn Fn(&Path) -> io::Result<()>;

/// A file on its way.
pub(super) struct Target {
    file: File,
    /// Where it is, and where it goes.
    at: PathBuf,
    to: PathBuf,
    /// What it takes the place of.
    old: Option<Metadata>,
    /// Whether it is not to go when this is dropped.
    stays: bool,
}

impl Target {
    /// Begins it. Of what takes the place of a file and is not to be like its source the mode is that file's at the end.
    pub(super) fn begin(to: &Path, mode: u32) -> io::Result<Target> {
        let create = |at: &Path| OpenOptions::new().write(true).create_new(true).mode(mode).open(at);
        let new = |file, at: PathBuf, old| Target { file, at, to: to.to_owned(), old, stays: false };
        match create(to) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return Ok(new(made?, to.to_owned(), None)),
        }
        let old = fs::symlink_metadata(to)?;
        if !old.is_file() {
            remove_other(to)?;
            return Ok(new(create(to)?, to.to_owned(), None));
        }
        if old.nlink() > 1 {
            let file = OpenOptions::new().write(true).truncate(true).open(to)?;
            let mut target = new(file, to.to_owned(), None);
            target.stays = true;
            return Ok(target);
        }
        let name = format!(".hydrafs-cp-{}-{}", std::process::id(), BESIDE.fetch_add(1, Ordering::Relaxed));
        let at = to.with_file_name(name);
        Ok(new(create(&at)?, at, Some(old)))
    }

    /// What its content goes to.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// All of its content is there: `describe` gets a path to it, for its attributes; `None`: what it takes the place of says them.
    pub(super) fn finish(mut self, describe: Option<Describe<'_>>) -> io::Result<()> {
        match (describe, &self.old) {
            (Some(describe), _) => describe(&self.at)?,
            (None, Some(old)) => self.be_like(old)?,
            (None, None) => {}
        }
        if self.old.is_some() {
            fs::rename(&self.at, &self.to)?;
        }
        self.stays = true;
        Ok(())
    }

    fn be_like(&self, old: &Metadata) -> io::Result<()> {
        let mut mode = old.mode() & 0o7777;
        if std::os::unix::fs::fchown(&self.file, Some(old.uid()), Some(old.gid())).is_err() {
            // Only root gives files away. Without the owner set-id bits would give away the copier's rights.
            mode &= 0o777;
        }
        self.file.set_permissions(fs::Permissions::from_mode(mode))?;
        let mut access = [0; 64 << 10];
        if let Ok(length) = rustix::fs::lgetxattr(&self.to, ACCESS_LIST, &mut access[..]) {
            rustix::fs::fsetxattr(&self.file, ACCESS_LIST, &access[..length], XattrFlags::empty())?;
        }
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if !self.stays {
            let _ = fs::remove_file(&self.at);
        }
    }
}
