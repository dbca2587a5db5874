//! Reads past the kernel's cache.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::OFlags;

pub(super) const PAGE: usize = 4096;

/// A page where direct I/O wants it.
#[repr(align(4096))]
pub(super) struct Page(pub(super) [u8; PAGE]);

impl Page {
    pub(super) fn new() -> Box<Page> {
        Box::new(Page([0; PAGE]))
    }
}

/// Opens a file to be read past the cache.
pub(super) fn open(path: &Path) -> Result<File> {
    let mut options = File::options();
    let opened = options.read(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(path);
    opened.with_context(|| format!("cannot open {} for direct reads", path.display()))
}
