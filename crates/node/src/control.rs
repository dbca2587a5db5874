//! How the command line talks to a running daemon: a Unix socket in the node's folder.

pub mod wire;

mod descriptor;

pub mod client;

pub mod batch;

pub mod server;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// File name of the socket in the node's folder.
pub const SOCKET_NAME: &str = "control.sock";

/// A path to the socket that is short however deep the folder lies: socket addresses hold 107 bytes (unix(7)), so it goes through a
/// descriptor of the folder. The descriptor must stay open while the path is used.
fn short_path(folder: &Path) -> io::Result<(File, PathBuf)> {
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY;
    let flags = i32::try_from(flags.bits()).expect("open flags fit an int");
    let folder = File::options().read(true).custom_flags(flags).open(folder)?;
    let short = PathBuf::from(format!("/proc/self/fd/{}/{SOCKET_NAME}", folder.as_raw_fd()));
    Ok((folder, short))
}
