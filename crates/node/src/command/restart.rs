//! `hydrafs restart`: the daemon of a node goes on in a new process, under the programs that use the mount.
//!
//! Restart and not upgrade: a newer program is one reason, a changed setting another, and both are the same work.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::text;
use crate::control::client::Daemon;
use crate::control::wire::Request;
use crate::failure::Failure;
use crate::node_folder::NodeFolder;

/// Go on in a new process: with a newer program, or changed settings. Programs that use the mount wait for a moment, and see no
/// error; if the new process cannot go on, the old one does.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    hydrafs restart ./node                       the program from where it was started, which may be newer now\n  \
    hydrafs restart --binary ./hydrafs ./node    this program\n\n\
    Open files, locks, listings and mappings go on. Options of the mount, request_size, read_ahead and transport stay as they are\n\
    until the next mount.")]
pub(super) struct Arguments {
    /// The node's folder.
    node: PathBuf,
    /// The program to go on with.
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let folder = NodeFolder::open(&arguments.node)?;
    let absolute = |path: &PathBuf| {
        path.canonicalize().map_err(|error| Failure::new("cannot restart with this program", error).at(path))
    };
    let program = arguments.binary.as_ref().map(absolute).transpose()?;
    let outcome = Daemon::find(&folder.path)?.ask(&Request::Restart { program }, super::remark)?;
    super::say(format!("{}, by process {}", text(&outcome, "/words"), super::number(&outcome, "/process")));
    Ok(ExitCode::SUCCESS)
}
