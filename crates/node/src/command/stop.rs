//! `hydrafs stop`: ends the daemon of a node, mounted or not.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::control::client::Daemon;
use crate::failure::Failure;
use crate::node_folder::NodeFolder;

/// End a node's daemon: unmount, make everything local, end. Fails and changes nothing while the mount is in use.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs stop ./node\n  \
    hydrafs stop --lazy ./node    even if programs still use the mount; they get errors from then on")]
pub(super) struct Arguments {
    /// The node's folder.
    node: PathBuf,
    /// Take the mount away even if it is in use.
    #[arg(long)]
    lazy: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let folder = NodeFolder::open(&arguments.node)?;
    Daemon::find(&folder.path)?.stop(arguments.lazy, super::remark)?;
    Ok(ExitCode::SUCCESS)
}
