//! `hydrafs take-over`: the new process of a restart; the daemon that restarts calls it, with a socket for standard input.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::daemon;
use crate::failure::Failure;
use crate::life;
use crate::node_folder::NodeFolder;

/// Go on for a daemon that restarts. `hydrafs restart` has it called.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// The node's folder.
    node: PathBuf,
    /// Go without disks that are missing, as the daemon that restarts.
    #[arg(long)]
    degraded: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let socket = daemon::take_standard_input()
        .map(UnixStream::from)
        .map_err(|error| Failure::new("cannot take the daemon over", error))?;
    life::take_over(&NodeFolder::open(&arguments.node)?.degraded(arguments.degraded), &socket)?;
    Ok(ExitCode::SUCCESS)
}
