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
    hydrafs serve ./node          until Ctrl-C, SIGTERM or `hydrafs stop ./node`")]
pub(super) struct Arguments {
    /// The node's folder.
    node: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    life::run(&NodeFolder::open(&arguments.node)?, None)?;
    Ok(ExitCode::SUCCESS)
}
