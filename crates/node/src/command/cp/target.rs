//! A file that a copy makes by system calls: nothing half-written keeps its name, whatever fails in the middle.
//!
//! What has a new name is made under it, and goes if it does not become whole. What takes the place of a file is made beside it, under a name of its own, and
//! takes over when it is whole; so the old content stays until then. Who is killed by SIGKILL leaves what he was at.
//!
//! Not so a file that has further names, or another owner, or a directory where nothing may be made: as with cp(1) it is written to in place, and stays
//! what it is.
//!
//! Not here: files of a mount that come by system calls (`whole`).

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::likeness::{put_xattrs, xattrs};
use super::plain::remove_other;

/// Tells apart what is made beside files at a time.
static BESIDE: AtomicU64 = AtomicU64::new(0);

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
        let euid = rustix::process::geteuid();
        let is_his = euid.is_root() || old.uid() == euid.as_raw();
        let beside = match old.nlink() == 1 && is_his {
            true => make_beside(to, mode),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        };
        let in_place = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
        };
        if beside.as_ref().is_err_and(in_place) {
            let file = OpenOptions::new().write(true).truncate(true).open(to)?;
            let mut target = new(file, to.to_owned(), None);
            target.stays = true;
            return Ok(target);
        }
        let (file, at) = beside?;
        Ok(new(file, at, Some(old)))
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
            match fs::rename(&self.at, &self.to) {
                // Something is mounted on it, a file most likely.
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    return fs::copy(&self.at, &self.to).map(drop);
                }
                renamed => renamed?,
            }
        }
        self.stays = true;
        Ok(())
    }

    /// Who may make it may give it what the old one had: that was his, or he is root.
    fn be_like(&self, old: &Metadata) -> io::Result<()> {
        std::os::unix::fs::fchown(&self.file, Some(old.uid()), Some(old.gid()))?;
        self.file.set_permissions(fs::Permissions::from_mode(old.mode() & 0o7777))?;
        put_xattrs(&xattrs(&self.to, None)?, &self.at, rustix::process::geteuid().is_root())
    }
}

/// A file in the same directory, and its path. Another copy may have left one of that name.
fn make_beside(to: &Path, mode: u32) -> io::Result<(File, PathBuf)> {
    loop {
        let name = format!(".hydrafs-cp-{}-{}", std::process::id(), BESIDE.fetch_add(1, Ordering::Relaxed));
        let at = to.with_file_name(name);
        match OpenOptions::new().write(true).create_new(true).mode(mode).open(&at) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return Ok((made?, at)),
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if !self.stays {
            let _ = fs::remove_file(&self.at);
        }
    }
}
