//! `hydrafs serve`: runs the daemon of a node without a mount, in the foreground.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::failure::Failure;
use crate::life;
use crate::node_folder::NodeFolder;

/// Run a node's daemon without a mount; stays in the foreground until it is stopped.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs serve ./node               until Ctrl-C, SIGTERM or `hydrafs stop ./node`\n  \
    hydrafs serve --degraded ./node    the same without a disk that is gone")]
pub(super) struct Arguments {
    /// The node's folder.
    node: PathBuf,
    /// Go on although disks are missing, if one that has the journal is there: what lies on them alone cannot be read until they are back.
    #[arg(long)]
    degraded: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    life::run(&NodeFolder::open(&arguments.node)?.degraded(arguments.degraded), None)?;
    Ok(ExitCode::SUCCESS)
}
